"""Optimisers of optax: what a user passes, and what their first step does.

A transformation of optax is a function that does not show its learning rates, so the
first step is found by running it: on known gradients it is a multiple of the gradient,
of its sign, or of Muon's polynomial of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._array_api import Floats
from .._validate import ArgumentError, shown
from ..optim import NAMED, Optimiser
from ._models import Leaves

EXPECTED = "an optax.GradientTransformation, or a function that returns one"
KINDS = "SGD, Adam, Lion, sign descent or Muon, with rates that may differ"
TOLERANCE = 1e-3  # of a multiple, relative to it
SIZES = (1e3, 2e3)  # of gradients: so large that an eps does nothing
LARGE = 1e6  # size of parameters: so large that a decay inside the gradient shows


def is_transformation(optimiser: Any) -> bool:
    """Whether this is a gradient transformation of optax."""
    return all(callable(getattr(optimiser, name, None)) for name in ("init", "update"))


def transformation_of(optimiser: Any, params: Any = None) -> Any:
    """The transformation of a user: the object, or what a function returns, which takes
    nothing or the parameters.
    """
    transformation = optimiser
    if not is_transformation(optimiser) and callable(optimiser):
        transformation = optimiser(*_arguments(optimiser, params))
    if not is_transformation(transformation):
        raise ArgumentError("optimiser", _name_of(optimiser), EXPECTED)
    return transformation


def _name_of(optimiser: Any) -> str:
    """What a user calls an optimiser, for messages."""
    return str(getattr(optimiser, "__name__", type(optimiser).__name__))


def _arguments(function: Any, params: Any) -> tuple[Any, ...]:
    """What a function that makes an optimiser is called with: nothing, or the
    parameters if it needs one argument and they are known.

    Functions of optax themselves need a learning rate, which is not given here.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # it has no signature that Python knows
        return ()
    try:
        signature.bind()
    except TypeError as error:
        if params is None or "learning_rate" in signature.parameters:
            raise ArgumentError(
                "optimiser",
                _name_of(function),
                f"{EXPECTED} without arguments ({error})",
            ) from None
        return (params,)
    return ()


class Step(NamedTuple):
    """The first step of a parameter: its kind, and its learning rate."""

    kind: str  # a name of `netsor.optim`
    rate: float

    def optimiser(self) -> Optimiser:
        """The optimiser that takes this step."""
        return NAMED[self.kind].with_memory(self.rate, 0.0)


def first_steps(optimiser: Any, params: Any) -> dict[str, Step]:
    """The first step of every matrix, by name; `params` are shapes of the parameters.

    The optimiser takes a first step from zero parameters on gradients of two sizes, and
    one from large parameters, which shows a decay that is not weight decay. Weight
    decay itself is left out, as for optimisers of PyTorch.
    """
    names = Leaves.of(params).names
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    transformation = transformation_of(optimiser, zeros)
    unit_gradients = _unit_gradients(zeros)
    large = jax.tree.map(lambda x: LARGE * jnp.sin(x), unit_gradients)

    def updates(size: float, parameters: Any) -> list[Floats]:
        """The updates of gradients of this size."""
        gradients = jax.tree.map(lambda x: size * x, unit_gradients)
        state = transformation.init(parameters)
        tree, _ = transformation.update(gradients, state, parameters)
        return [np.asarray(x, dtype=float) for x in jax.tree.leaves(tree)]

    leaves = zip(
        names,
        jax.tree.leaves(unit_gradients),
        jax.tree.leaves(large),
        updates(SIZES[0], zeros),
        updates(SIZES[1], zeros),
        updates(SIZES[0], large),
        strict=True,
    )
    steps = {}
    for name, gradient, large_p, update, of_second_size, of_large_p in leaves:
        if gradient.ndim < 2:
            continue
        change_by_p = of_large_p - update
        _check_decay(name, change_by_p, np.asarray(large_p, dtype=float))
        gradient = np.asarray(gradient, dtype=float)
        steps[name] = _step_of(name, gradient, update, of_second_size)
    return steps


def _unit_gradients(parameters: Any) -> Any:
    """Random numbers for each parameter, none near 0, where an eps would show."""
    generator = np.random.default_rng(0)

    def gradient_of(x: Any) -> Any:
        z = generator.normal(size=x.shape)
        return jnp.asarray(z + 0.5 * np.sign(z), x.dtype)

    return jax.tree.map(gradient_of, parameters)


def _check_decay(name: str, change: Floats, p: Floats) -> None:
    """Reject a step that depends on the parameter otherwise than by its decay."""
    if np.abs(change).max() > 0 and _multiple(change, p) is None:
        raise ArgumentError(
            "optimiser",
            f"the step of {name}",
            "without weight decay inside the gradient, or factors of the size of the"
            " parameter",
        )


def _step_of(name: str, gradient: Floats, first: Floats, second: Floats) -> Step:
    """The step whose updates of two gradients, one twice the other, are these.

    SGD doubles its update with the gradient. Adam, Lion, sign descent and Muon do not:
    their updates are multiples of the sign, or of Muon's polynomial.
    """
    if not first.any() and not second.any():
        return Step("sgd", 0.0)
    rate = _multiple(-first, gradient)
    if rate is not None:
        if not np.allclose(second, 2 * first, rtol=TOLERANCE, atol=0):
            raise ArgumentError(
                "optimiser",
                "a chain with clipping",
                f"without clipping: it changes the step of {shown(name)} by the size of"
                " all gradients",
            )
        return Step("sgd", rate / SIZES[0])
    directions = {"adam": np.sign(gradient)}
    if gradient.ndim == 2:
        directions["muon"] = newton_schulz_of(gradient)
    is_scale_free = np.allclose(first, second, rtol=TOLERANCE, atol=0)
    for kind, direction in directions.items():
        rate = _multiple(-first, direction)
        if rate is not None and is_scale_free:
            return Step(kind, rate)
    raise ArgumentError(
        "optimiser", f"the step of {name}", f"that of {KINDS} between matrices"
    )


def newton_schulz_of(gradient: Floats) -> Floats:
    """Muon's polynomial of a gradient, with its usual coefficients.

    Each Newton-Schulz iteration replaces X by a X + (b X Xᵀ + c (X Xᵀ)²) X, which
    brings all singular values near 1.
    """
    optimiser = NAMED["muon"].with_memory(1.0, 0.0)
    coefficients = getattr(optimiser, "iterations")  # noqa: B009  # of Muon alone
    x = gradient / np.linalg.norm(gradient)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:  # the smaller of X Xᵀ and Xᵀ X
        x = x.T
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def _multiple(x: Floats, of: Floats) -> float | None:
    """The number that x is, times another array; None if it is no multiple.

    It is the least-squares coefficient ⟨x, of⟩ / ⟨of, of⟩.
    """
    coefficient = float((x * of).sum() / (of * of).sum())
    error = np.abs(x - coefficient * of).max()
    largest_error = TOLERANCE * np.abs(x).max()
    return coefficient if error <= largest_error else None


def optimisers_of(steps: Mapping[str, Step], names: set[Any]) -> dict[Any, Optimiser]:
    """The optimiser of each matrix of a program; of one of several layers that a scan
    reads, that of the array of all.
    """
    optimisers = {}
    for name in names:
        step = steps.get(str(name)) or _of_all_layers(steps, str(name))
        optimisers[name] = (step or Step("sgd", 0.0)).optimiser()
    return optimisers


def _of_all_layers(steps: Mapping[str, Step], name: str) -> Step | None:
    """The step of the array that a parameter of one layer is a part of.

    Its name is that of the parameter without one or several numbers of layers.
    """
    parts = name.split(".")
    for position, part in enumerate(parts):
        if not part.isdigit():
            continue
        without_number = ".".join((*parts[:position], *parts[position + 1 :]))
        step = steps.get(without_number) or _of_all_layers(steps, without_number)
        if step is not None:
            return step
    return None
