"""Optimiser steps: the same outputs with the updated weights, as values of the same
program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._validate import TraceError, also_spelled, as_whole, one_of, real, shown, whole
from ..optim import MAX_NS_STEPS, MAX_STEPS, NAMED, Muon, Optimiser, Rate
from ..optim import newton_schulz as newton_schulz_steps
from . import _operation as ops
from ._array import Source, Value
from ._grad import Parameter, Parameters, Term, as_loss
from ._graph import topological_order
from ._parameters import Weight
from ._scalar import Scalar
from ._tangent_kernel import clipped, gradients
from ._width import Width

NAMELESS = "a parameter without a name"
MATRICES = "matrices"  # the key of all weights without their own key


@also_spelled(optimizer="optimiser")
def step(
    outputs: Any,
    loss: Scalar,
    lr: Rate | Scalar | Mapping[Any, Any] | None = None,
    optimiser: str | Optimiser | Mapping[Any, Optimiser] = "sgd",
    weights: Parameter | Sequence[Parameter] | None = None,
    *,
    eps: float = 0.0,
    newton_schulz: int | tuple[float, float, float] | None = None,
    weight_decay: float | Scalar = 0.0,
    scale: Rate | None = None,
    clip_norm: float | None = None,
    lr_factor: float | Scalar = 1.0,
) -> Any:
    """The outputs after one optimiser step on the loss, as values of the same program
    and in the same structure.

    You can chain steps. As in training, gradients do not flow through a step.

    `optimiser` is an object of `ns.optim`, which keeps its moments for the next step,
    or a dictionary of them by weight or by name, with "matrices" for all other weights
    and None for all other parameters. A string is an optimiser without memory: it
    updates a matrix W to (1 − η·weight_decay) W − η U. Let G be the gradient with
    respect to **the entries of W themselves**, N(0, σ²/fan-in) without a factor in
    front. Then U is

    - "sgd": G.
    - "muon": the polar factor of G, scale · A B^T for G = A S B^T (without singular
      values below 1e-5 of the largest), or Muon's Newton–Schulz polynomial. Each matrix
      of a batch, such as an attention head, takes its own step.
    - "adam": G/(|G| + eps), entry by entry: the first step of Adam and AdamW, and with
      eps = 0 of signSGD and Lion.

    No network is trained. G = Σ_i δ_i x_i^T over all uses of W (tokens, layers that
    share it), so W' x = W x − η Σ_i ⟨x_i, x⟩ δ_i has an exact law at every finite
    width. Adam's first step needs all entries of G (at most 8·10⁹). With moments, or if
    a matrix acts on more vectors than it has rows, netsor samples the matrix.

    Parameters
    ----------
    outputs
        A value of the program, or a list or tuple of values.
    loss
        A scalar of the program; several are summed.
    lr
        η, if the optimiser is a string: a number, a function of fan-in and fan-out, a
        scalar of the program such as `ns.hyperparameter("lr")`, or a dictionary of
        these by weight or by name (`name=` of `ns.weight` and `ns.gaussian`), with None
        for all others. A vector in R^n has fan-in 1 and fan-out n.
    optimiser
        An object of `ns.optim`, a dictionary of them, or "sgd", "muon" or "adam".
    weights
        The parameters to update: weights, initial vectors (biases, embeddings, a
        readout) and random scalars; by default all matrices that the loss depends on.
        Equal random vectors, such as those of a token that occurs twice, are one
        parameter; vectors without variance (biases that start at 0) are separate
        parameters.
    eps, weight_decay
        ε̂ of "adam"; and λ of any string optimiser, decoupled as in AdamW.
    newton_schulz
        For "muon": a number of steps with the coefficients of its public code (3.4445,
        −4.7750, 2.0315), three coefficients for five steps, or a list of three per
        step, at most 100 steps; by default the exact polar factor.
    scale
        For "muon": the factor of its update, a number or a function of fan-in and
        fan-out; 1 by default.
    clip_norm
        The largest norm of the whole gradient, at finite widths; a larger gradient is
        scaled down, as in PyTorch.
    lr_factor
        A number or scalar that multiplies every learning rate in this step, as in a
        schedule.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, n, name="hidden"), ns.gaussian(n)
    >>> h = ns.tanh(w @ ns.gaussian(n))
    >>> f = ns.mean_dot(r, h)
    >>> after = ns.step(h, (f - 1.0) ** 2, lr=0.5)
    >>> moved = ns.Program(ns.mean_dot(after - h, after - h))
    >>> print(f"{moved.draw(n=1000, draws=50).mean():.2f}, {moved.law(n=ns.inf).with_error.mean()} at infinite width")
    0.19, 0.187627 ± 5.7e-05 at infinite width
    """
    several = isinstance(outputs, list | tuple)
    listed = list(outputs) if several else [outputs]
    if not all(isinstance(value, Value) for value in listed):
        raise TraceError(
            "step", "outputs", outputs, "a value of the program, or a list of them"
        )
    p = as_loss(loss, "step", "loss")
    factor = 1.0
    by: Scalar | None = None
    if isinstance(lr_factor, Scalar):
        by = lr_factor
    else:
        factor = real(lr_factor, "lr_factor", "step", least=0)
    chosen = Parameters(weights, topological_order([p, *listed], past=False), "step")
    options = {
        "eps": eps,
        "newton_schulz": newton_schulz,
        "weight_decay": weight_decay,
        "scale": scale,
    }
    if isinstance(optimiser, Optimiser | Mapping):
        for name, option in {"lr": lr, **options}.items():
            if option is not None and not (isinstance(option, float) and option == 0):
                raise TraceError(
                    "step",
                    f"{name}={shown(option)} is for an optimiser by name: give it to"
                    " the object",
                )
        optimisers = _ByParameter(optimiser, "optimiser")
    else:
        first, rates = (
            _without_memory(optimiser, **options),
            lr if isinstance(lr, Mapping) else {None: lr},
        )
        optimisers = _ByParameter(
            {key: replace(first, lr=rate) for key, rate in rates.items()}, "lr"
        )

    def rule(of: Weight | Value) -> tuple[ops.OptimiserStep, tuple[Scalar, ...]]:
        """The step of one parameter, and the scalars of the program in it."""
        name, own = _source(of).name or NAMELESS, optimisers.of(of)
        if own.matrices_only and not isinstance(of, Weight):
            optimiser = type(own).__name__
            spelled = f"ns.optim.{optimiser}" if isinstance(own, Muon) else optimiser
            remedy = (
                f"optimiser={{'{MATRICES}': {spelled}(…), None: ns.optim.AdamW(…)}}"
            )
            raise TraceError(
                "step",
                f"weights={of!r} is not a matrix, and {optimiser} updates only"
                f" matrices: give {remedy}",
            )
        lr = (
            by
            if not isinstance(own.lr, Scalar)
            else own.lr
            if by is None
            else by * own.lr
        )
        there = isinstance(lr, Scalar), isinstance(own.weight_decay, Scalar)
        scalars = tuple(
            number for number in (lr, own.weight_decay) if isinstance(number, Scalar)
        )
        for number in scalars:
            if number.shape:
                raise TraceError(
                    "step",
                    f"lr or weight_decay {number!r} must be a single scalar: index it",
                )
        one = Width(1)  # a vector in R^n is n × 1
        fans = (
            (of.in_width, of.out_width)
            if isinstance(of, Weight)
            else (one, getattr(of, "width", one))
        )
        return ops.OptimiserStep(name, own, factor, there, *fans), scalars

    moved = gradients(p, listed, chosen)
    if not moved.terms and not moved.leaves:
        raise TraceError(
            "step",
            f"loss={p!r} depends on no weight: name the parameters to update,"
            " weights=[…]",
        )
    optimisers.check(
        {source.name for source in moved.latest}
        | {_source(leaf).name for leaf in moved.leaves}
    )
    if clip_norm is not None:
        moved = clipped(moved, real(clip_norm, "clip_norm", "step", above=0))
    matrices = {
        source: (*rule(terms[0].used.drawn), terms)
        for source, terms in moved.terms.items()
    }
    new: dict[Value, Value] = {}
    for leaf, parts in moved.leaves.items():
        units, d = zip(*parts, strict=True)
        own, scalars = rule(leaf)
        new[leaf] = replace(leaf, op=ops.SteppedParameter(leaf, d, scalars, units, own))
    # rebuild the outputs from the updated parameters
    for value in topological_order(listed, past=False):
        op: Any = value.op
        if value in new or isinstance(op, ops.SteppedParameter):
            new.setdefault(value, value)
            continue
        current = ops.current_inputs(op)
        new[value] = value.with_inputs(
            *(new[x] for x in current), *op.inputs[len(current) :]
        )
        source = op.weight.source if isinstance(op, ops.Acting) else None
        if source in matrices and ops.steps_of(op) == moved.latest[source]:
            new[value] = replace(
                new[value], op=_stepped(new[value].op, *matrices[source])
            )
    stepped = [new[output] for output in listed]
    return type(outputs)(stepped) if several else stepped[0]


def train(
    outputs: Any,
    loss: Scalar | Sequence[Scalar],
    optimiser: Optimiser | Mapping[Any, Optimiser],
    steps: int,
    weights: Parameter | Sequence[Parameter] | None = None,
    *,
    schedule: Callable[[int], float | Scalar] | None = None,
    clip_norm: float | None = None,
) -> list[Any]:
    """The outputs after 0, 1, …, `steps` steps of one optimiser. The other parameters
    are those of `step`.

    Parameters
    ----------
    loss
        A scalar of the program, or a list of scalars, one per batch; the steps cycle
        through them.
    optimiser
        An object of `ns.optim`, or a dictionary as in `ns.step`.
    steps
        The number of steps.
    schedule
        A function of the step 0, 1, … that multiplies all learning rates, such as
        `lambda t: min(1.0, (t + 1) / 5)`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, 2, name="in"), ns.gaussian(n, name="out")
    >>> f = ns.dot(r, ns.tanh(w @ ns.data([[1.0, 0.5], [-0.3, 0.8]])))
    >>> loss = ((f - np.array([1.0, -1.0])) ** 2).mean()
    >>> adam = ns.optim.AdamW(ns.hyperparameter("lr"))
    >>> net = ns.Program(ns.train(loss, loss, adam, 4, [w, r], schedule=lambda t: (t + 1) / 4, clip_norm=1.0)[-1])
    >>> [f"{net.draw(n=64, draws=100, lr=lr).mean():.2f}" for lr in (0.0, 0.05, 0.1)]
    ['1.22', '0.19', '0.16']
    """
    several = isinstance(outputs, list | tuple)
    losses = list(loss) if isinstance(loss, list | tuple) else [loss]
    now = [*(outputs if several else [outputs]), *losses]
    history = [outputs]
    if schedule is not None and not _takes_one_argument(schedule):
        raise TraceError(
            "train",
            "schedule",
            schedule,
            "a function of the step, 0, 1, …, that returns a factor",
        )
    for t in range(whole(steps, "steps", "train", most=MAX_STEPS)):
        factor = 1.0 if schedule is None else schedule(t)
        by = now[len(now) - len(losses) + t % len(losses)]
        now = step(
            now,
            by,
            optimiser=optimiser,
            weights=weights,
            lr_factor=factor,
            clip_norm=clip_norm,
        )
        history.append(type(outputs)(now[: -len(losses)]) if several else now[0])
    return history


def _takes_one_argument(function: object) -> bool:
    """Whether `function` can be called with one argument, as far as Python can tell."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins do not tell
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    return True


def _stepped(
    op: Any, rule: ops.OptimiserStep, scalars: tuple[Scalar, ...], terms: list[Term]
) -> Any:
    """An operation with its matrices updated."""
    if not isinstance(op, ops.SteppedMatMul):
        op = ops.SteppedMatMul(op.weight, op.x, op.each, (), (), (), (), ())
    number = len(op.steps)
    return replace(
        op,
        left=(*op.left, *(term.left for term in terms)),
        right=(*op.right, *(term.right for term in terms)),
        scalars=(*op.scalars, *scalars),
        parts=(
            *op.parts,
            *(ops.GradientTerm(number, t.members, t.used, t.unit) for t in terms),
        ),
        steps=(*op.steps, rule),
    )


class _ByParameter:
    """The optimiser of each parameter, from the user's argument `name`."""

    def __init__(self, given: Any, name: str) -> None:
        self.name = name
        self.given: dict[Source | str | None, Optimiser] = {}
        for key, own in (
            given if isinstance(given, Mapping) else {None: given}
        ).items():
            match key:
                case Weight() if len(np.unique(key.members)) < key.count:
                    raise TraceError(
                        "step",
                        f"{name} has the key {key!r}, a part of a batch: give the whole"
                        " batch",
                    )
                case (
                    Weight(source=source)
                    | Value(op=ops.Gaussian(source=source) | ops.Normal(source=source))
                ):
                    key = source
                case _ if not isinstance(key, str | None):
                    raise TraceError(
                        "step",
                        f"{name} has the key {shown(key)}: give weights, names or None",
                    )
            if not isinstance(own, Optimiser):
                allowed = (
                    "an object of ns.optim, a dictionary of them, 'sgd', 'muon' or"
                    " 'adam'"
                )
                raise TraceError("step", name, own, allowed)
            self.given[key] = own

    def check(self, names: Collection[str | None]) -> None:
        """Reject a name that no parameter has, as it is probably misspelt."""
        for key in self.given:
            if isinstance(key, str) and key not in {*names, MATRICES}:
                known = (
                    ", ".join(sorted(name for name in names if name))
                    or "none has a name"
                )
                raise TraceError(
                    "step",
                    f"{self.name} has the key {key!r}, but the weights are called:"
                    f" {known}",
                )

    def of(self, parameter: Weight | Value) -> Optimiser:
        source = _source(parameter)
        keys = source, source.name, MATRICES if isinstance(parameter, Weight) else None
        for key in (*filter(None, keys), None):
            if key in self.given:
                return self.given[key]
        remedy = "add its name, the weight itself, or None for all others"
        raise TraceError(
            "step",
            f"{self.name} has no entry for {source.name or NAMELESS}, {parameter!r}:"
            f" {remedy}",
        )


def _without_memory(
    kind: Any, eps: Any, newton_schulz: Any, weight_decay: Any, scale: Any
) -> Any:
    """The optimiser that a string names, without its learning rate."""
    one_of(kind, "optimiser", "step", tuple(NAMED))
    eps = real(eps, "eps", "step", least=0)
    factor = (
        1.0
        if scale is None or callable(scale)
        else real(scale, "scale", "step", least=0)
    )
    adjustment, iterations = (
        scale if callable(scale) else lambda fan_in, fan_out: factor,
        None,
    )
    if newton_schulz is not None:
        count = as_whole(newton_schulz)
        coefficients, steps = (
            (newton_schulz, 5) if count is None else (Muon.ns_coefficients, count)
        )
        allowed = (
            f"a number of steps with Muon's coefficients, 1 to {MAX_NS_STEPS}; three"
            " coefficients for five steps"
        )
        problem = f"newton_schulz={shown(newton_schulz)} must be {allowed}"
        iterations = newton_schulz_steps("step", problem, coefficients, steps)
    given = {
        "eps": eps > 0,
        "newton_schulz": newton_schulz is not None,
        "scale": scale is not None,
    }
    for name, option in {
        "eps": eps,
        "newton_schulz": newton_schulz,
        "scale": scale,
    }.items():
        if given[name] and name not in NAMED[kind].takes:
            owner = next(each for each, known in NAMED.items() if name in known.takes)
            raise TraceError(
                "step",
                f"{name}={shown(option)} is for optimiser={owner!r}, got {kind!r}",
            )
    return NAMED[kind].first_step(
        weight_decay=weight_decay,
        eps=eps,
        coefficients=iterations,
        lr_factor=adjustment,
    )


def _source(parameter: Weight | Value) -> Any:
    drawn: Any = (
        parameter
        if isinstance(parameter, Weight)
        else ops.initial_value(parameter)[0].op
    )
    return drawn.source
