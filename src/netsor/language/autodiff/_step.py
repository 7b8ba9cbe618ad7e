"""Optimiser steps: the same outputs with the updated weights, as values of the same
program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._validate import (
    TraceError,
    also_spelled,
    alternatives,
    as_whole,
    one_of,
    real,
    shown,
    whole,
)
from ...optim import MAX_NS_STEPS, MAX_STEPS, NAMED, Muon, Optimiser, Rate
from ...optim import newton_schulz as newton_schulz_steps
from ..operations import _operation as ops
from ..values._array import Source, Value
from ..values._graph import topological_order
from ..values._parameters import Weight
from ..values._scalar import Scalar
from ..values._vector import Vector
from ..values._width import Width
from ._grad import Parameter, Parameters, Term, as_loss
from ._tangent_kernel import Gradients, clipped, gradients

NAMELESS = "a parameter without a name"  # in messages
# The key, in a dictionary of optimisers, of all weights that have no key of their own.
MATRICES = "matrices"


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
    - "adam": G/(|G| + eps), entry by entry: the first step of Adam and AdamW.
    - "lion": the sign of every entry of G, the first step of Lion; the same as "adam"
      with eps = 0.

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
        An object of `ns.optim`, a dictionary of them, or "sgd", "muon", "adam" or
        "lion".
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

    Returns
    -------
    outputs : Value, or tuple or list of Value
        The outputs after the step, in the structure of `outputs`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, n, name="hidden"), ns.gaussian(n)
    >>> h = ns.tanh(w @ ns.gaussian(n))
    >>> f = ns.mean_dot(r, h)
    >>> after = ns.step(h, (f - 1.0) ** 2, lr=0.5)
    >>> moved = ns.Program(ns.mean_dot(after - h, after - h))
    >>> limit = moved.law(n=ns.inf).with_error.mean()
    >>> print(f"{moved.draw(n=1000, draws=50).mean():.2f}, {limit} at infinite width")
    0.19, 0.187627 ± 5.7e-05 at infinite width
    """
    several = isinstance(outputs, list | tuple)
    values = list(outputs) if several else [outputs]
    if not all(isinstance(value, Value) for value in values):
        raise TraceError(
            "step", "outputs", outputs, "a value of the program, or a list of them"
        )
    p = as_loss(loss, "step", "loss")
    if not isinstance(lr_factor, Scalar):
        lr_factor = real(lr_factor, "lr_factor", "step", least=0)
    chosen = Parameters(weights, topological_order([p, *values], past=False), "step")
    optimisers = _optimisers(
        optimiser,
        lr,
        eps=eps,
        newton_schulz=newton_schulz,
        weight_decay=weight_decay,
        scale=scale,
    )
    gradient = gradients(p, values, chosen)
    if not gradient.terms and not gradient.leaves:
        raise TraceError(
            "step",
            f"loss={p!r} depends on no weight: name the parameters to update,"
            " weights=[…]",
        )
    optimisers.check(
        {source.name for source in gradient.latest}
        | {_source(leaf).name for leaf in gradient.leaves}
    )
    if clip_norm is not None:
        gradient = clipped(gradient, real(clip_norm, "clip_norm", "step", above=0))
    stepped = _with_updated_parameters(values, gradient, optimisers, lr_factor)
    if several:
        return type(outputs)(stepped)
    return stepped[0]


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
    """The outputs after 0, 1, …, `steps` steps of one optimiser.

    The other parameters are those of `step`.

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

    Returns
    -------
    outputs : list
        `steps` + 1 entries: the outputs before training and after each step, each in
        the structure of `outputs`.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, 2, name="in"), ns.gaussian(n, name="out")
    >>> f = ns.dot(r, ns.tanh(w @ ns.data([[1.0, 0.5], [-0.3, 0.8]])))
    >>> loss = ((f - np.array([1.0, -1.0])) ** 2).mean()
    >>> adam = ns.optim.AdamW(ns.hyperparameter("lr"))
    >>> losses = ns.train(
    ...     loss, loss, adam, 4, [w, r], schedule=lambda t: (t + 1) / 4, clip_norm=1.0
    ... )
    >>> net = ns.Program(losses[-1])
    >>> [f"{net.draw(n=64, draws=100, lr=lr).mean():.2f}" for lr in (0.0, 0.05, 0.1)]
    ['1.22', '0.19', '0.16']
    """
    if schedule is not None and not _takes_one_argument(schedule):
        raise TraceError(
            "train",
            "schedule",
            schedule,
            "a function of the step, 0, 1, …, that returns a factor",
        )
    several = isinstance(outputs, list | tuple)
    values = list(outputs) if several else [outputs]
    losses: list[Any] = list(loss) if isinstance(loss, list | tuple) else [loss]
    history = [outputs]
    for t in range(whole(steps, "steps", "train", most=MAX_STEPS)):
        lr_factor: float | Scalar = 1.0
        if schedule is not None:
            lr_factor = schedule(t)
        stepped = step(
            [*values, *losses],
            losses[t % len(losses)],
            optimiser=optimiser,
            weights=weights,
            lr_factor=lr_factor,
            clip_norm=clip_norm,
        )
        values, losses = stepped[: len(values)], stepped[len(values) :]
        history.append(type(outputs)(values) if several else values[0])
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


# The updated program


def _with_updated_parameters(
    outputs: Sequence[Value],
    gradient: Gradients,
    optimisers: _OptimiserTable,
    lr_factor: float | Scalar,
) -> list[Value]:
    """The outputs of a program whose parameters have taken one more step.

    The program is rebuilt from its parameters to its outputs. The gradients of earlier
    steps are those of the program before, and stay as they are.
    """
    matrix_updates = {}
    for source, terms in gradient.terms.items():
        matrix = terms[0].used.drawn
        matrix_updates[source] = _update_of(matrix, optimisers, lr_factor)
    new: dict[Value, Value] = {}  # each value in the program after the step
    for leaf, cotangents in gradient.leaves.items():
        update = _update_of(leaf, optimisers, lr_factor)
        new[leaf] = _stepped_parameter(leaf, update, cotangents)
    for value in topological_order(outputs, past=False):
        op = value.op
        if value in new:
            continue
        if isinstance(op, ops.SteppedParameter):  # one that takes no step now
            new[value] = value
            continue
        # the other inputs are gradients of earlier steps, which stay as they are
        current = ops.current_inputs(op)
        past = op.inputs[len(current) :]
        new[value] = value.with_inputs(*(new[x] for x in current), *past)
        if not isinstance(op, ops.Acting):
            continue
        # matrices that have taken all steps so far take one more
        source = op.weight.source
        if source in matrix_updates and ops.steps_of(op) == gradient.latest[source]:
            stepped = _with_step(
                new[value].op, matrix_updates[source], gradient.terms[source]
            )
            new[value] = replace(new[value], op=stepped)
    return [new[output] for output in outputs]


def _stepped_parameter(
    leaf: Value, update: _Update, cotangents: Sequence[tuple[str | None, Any]]
) -> Value:
    """An initial value after one step along its gradient.

    `cotangents` are pairs of a unit and the cotangent in this unit.
    """
    op = ops.SteppedParameter(
        x=leaf,
        d=tuple(d for _, d in cotangents),
        scalars=update.scalars,
        units=tuple(unit for unit, _ in cotangents),
        rule=update.rule,
    )
    return replace(leaf, op=op)


class _Update(NamedTuple):
    """The step of one parameter, and the scalars of the program that it depends on."""

    rule: ops.OptimiserStep
    scalars: tuple[Scalar, ...]  # the learning rate, then the weight decay


def _update_of(
    parameter: Weight | Value, optimisers: _OptimiserTable, lr_factor: float | Scalar
) -> _Update:
    """The step that a parameter takes now."""
    optimiser = optimisers.optimiser_of(parameter)
    if optimiser.matrices_only and not isinstance(parameter, Weight):
        raise TraceError("step", _not_a_matrix(parameter, optimiser))
    lr = _scalar_rate(optimiser.lr, lr_factor)
    decay = optimiser.weight_decay
    scalars = tuple(number for number in (lr, decay) if isinstance(number, Scalar))
    for number in scalars:
        if number.shape:
            raise TraceError(
                "step",
                f"lr or weight_decay {number!r} must be a single scalar: index it",
            )
    # a vector in R^n is n × 1, a scalar 1 × 1
    in_width = Width(1)
    out_width = Width(1)
    if isinstance(parameter, Weight):
        in_width = parameter.in_width
        out_width = parameter.out_width
    elif isinstance(parameter, Vector):
        out_width = parameter.width
    rule = ops.OptimiserStep(
        name=_source(parameter).name or NAMELESS,
        optimiser=optimiser,
        factor=1.0 if isinstance(lr_factor, Scalar) else lr_factor,
        scalars=(isinstance(lr, Scalar), isinstance(decay, Scalar)),
        in_width=in_width,
        out_width=out_width,
    )
    return _Update(rule, scalars)


def _not_a_matrix(parameter: Value, optimiser: Optimiser) -> str:
    """The message for a parameter that the optimiser cannot update."""
    optimiser_name = type(optimiser).__name__
    constructor = optimiser_name
    if isinstance(optimiser, Muon):
        constructor = f"ns.optim.{optimiser_name}"
    remedy = f"optimiser={{'{MATRICES}': {constructor}(…), None: ns.optim.AdamW(…)}}"
    return (
        f"weights={parameter!r} is not a matrix, and {optimiser_name} updates only"
        f" matrices: give {remedy}"
    )


def _scalar_rate(lr: Rate | Scalar, lr_factor: float | Scalar) -> Scalar | None:
    """The part of the learning rate that is a scalar of the program, if any."""
    if isinstance(lr, Scalar) and isinstance(lr_factor, Scalar):
        return lr_factor * lr
    if isinstance(lr, Scalar):
        return lr
    if isinstance(lr_factor, Scalar):
        return lr_factor
    return None


def _with_step(op: Any, update: _Update, terms: Sequence[Term]) -> ops.SteppedMatMul:
    """The same product with matrices that have taken one more step."""
    if not isinstance(op, ops.SteppedMatMul):
        op = ops.SteppedMatMul(
            weight=op.weight,
            x=op.x,
            each=op.each,
            left=(),
            right=(),
            scalars=(),
            parts=(),
            steps=(),
        )
    number = len(op.steps)
    gradient_terms = [
        ops.GradientTerm(
            step=number, members=term.members, used=term.used, unit=term.unit
        )
        for term in terms
    ]
    stepped: ops.SteppedMatMul = replace(
        op,
        left=(*op.left, *(term.left for term in terms)),
        right=(*op.right, *(term.right for term in terms)),
        scalars=(*op.scalars, *update.scalars),
        parts=(*op.parts, *gradient_terms),
        steps=(*op.steps, update.rule),
    )
    return stepped


# Which optimiser updates which parameter


# A weight or initial value by its source, a name, or None for all other parameters
ParameterKey = Source | str | None


class _OptimiserTable:
    """The optimiser of each parameter, from the user's argument called `argument`."""

    def __init__(self, entries: Any, argument: str) -> None:
        """Check `entries`, a dictionary by parameter or one optimiser for all."""
        self.argument = argument
        self.optimisers: dict[ParameterKey, Optimiser] = {}
        if not isinstance(entries, Mapping):
            entries = {None: entries}
        for key, optimiser in entries.items():
            checked_key = self._checked_key(key)
            if not isinstance(optimiser, Optimiser):
                names = alternatives(map(repr, NAMED))
                allowed = f"an object of ns.optim, a dictionary of them, {names}"
                raise TraceError("step", argument, optimiser, allowed)
            self.optimisers[checked_key] = optimiser

    def _checked_key(self, key: Any) -> ParameterKey:
        """The source of a weight or an initial value; names and None as they are."""
        match key:
            case Weight() if len(np.unique(key.members)) < key.count:
                raise TraceError(
                    "step",
                    f"{self.argument} has the key {key!r}, a part of a batch: give the"
                    " whole batch",
                )
            case Weight(source=source):
                return source
            case Value(op=ops.Gaussian(source=source) | ops.Normal(source=source)):
                return source
            case str() | None:
                return key
        raise TraceError(
            "step",
            f"{self.argument} has the key {shown(key)}: give weights, names or None",
        )

    def check(self, names: Collection[str | None]) -> None:
        """Reject a name that no parameter has, as it is probably misspelt."""
        for key in self.optimisers:
            if not isinstance(key, str) or key == MATRICES or key in names:
                continue
            listed = ", ".join(sorted(name for name in names if name))
            raise TraceError(
                "step",
                f"{self.argument} has the key {key!r}, but the weights are called:"
                f" {listed or 'none has a name'}",
            )

    def optimiser_of(self, parameter: Weight | Value) -> Optimiser:
        """That of the parameter itself, of its name, of all matrices, or of None."""
        source = _source(parameter)
        keys: list[ParameterKey] = [source]
        remedies = ["the parameter itself"]
        # a parameter of the name "matrices" has no entry by name: that is for all
        if source.name and source.name != MATRICES:
            keys.append(source.name)
            remedies.append(f"its name {source.name!r}")
        if isinstance(parameter, Weight):
            keys.append(MATRICES)
            remedies.append(f"{MATRICES!r} for all other weights")
        keys.append(None)
        for key in keys:
            if key in self.optimisers:
                return self.optimisers[key]
        raise TraceError(
            "step",
            f"{self.argument} has no entry for {source.name or NAMELESS},"
            f" {parameter!r}: add {', '.join(remedies)}, or None for all others",
        )


def _optimisers(optimiser: Any, lr: Any, **options: Any) -> _OptimiserTable:
    """The optimisers of `step`: objects, or a name with a learning rate and options."""
    if not isinstance(optimiser, Optimiser | Mapping):
        without_rate = _without_memory(optimiser, **options)
        rates = lr if isinstance(lr, Mapping) else {None: lr}
        entries = {key: replace(without_rate, lr=rate) for key, rate in rates.items()}
        return _OptimiserTable(entries, "lr")
    for name, option in {"lr": lr, **options}.items():
        is_default = option is None or (isinstance(option, float) and option == 0)
        if not is_default:
            raise TraceError(
                "step",
                f"{name}={shown(option)} is for an optimiser by name: give it to"
                " the object",
            )
    return _OptimiserTable(optimiser, "optimiser")


def _without_memory(
    optimiser_name: Any, *, eps: Any, newton_schulz: Any, weight_decay: Any, scale: Any
) -> Any:
    """The optimiser that a string names, without its learning rate."""
    one_of(optimiser_name, "optimiser", "step", tuple(NAMED))
    eps = real(eps, "eps", "step", least=0)
    adjustment = _adjustment(scale)
    coefficients = None
    if newton_schulz is not None:
        coefficients = _newton_schulz(newton_schulz)
    options = {"newton_schulz": newton_schulz, "scale": scale}
    if eps > 0:
        options = {"eps": eps, **options}
    for name, option in options.items():
        if option is not None and name not in NAMED[optimiser_name].takes:
            takers = [key for key, named in NAMED.items() if name in named.takes]
            raise TraceError(
                "step",
                f"{name}={shown(option)} is for optimiser={takers[0]!r}, got"
                f" {optimiser_name!r}",
            )
    return NAMED[optimiser_name].first_step(
        weight_decay=weight_decay,
        eps=eps,
        coefficients=coefficients,
        lr_factor=adjustment,
    )


def _adjustment(scale: Any) -> Callable[[float, float], float]:
    """The factor of an update, as a function of fan-in and fan-out."""
    if callable(scale):
        adjustment: Callable[[float, float], float] = scale
        return adjustment
    factor = 1.0
    if scale is not None:
        factor = real(scale, "scale", "step", least=0)
    return lambda fan_in, fan_out: factor


def _newton_schulz(argument: Any) -> Any:
    """The coefficients of each Newton–Schulz step, from the argument of `step`."""
    coefficients = argument
    steps = 5
    count = as_whole(argument)
    if count is not None:
        coefficients = Muon.ns_coefficients
        steps = count
    allowed = (
        f"a number of steps with Muon's coefficients, 1 to {MAX_NS_STEPS}; three"
        " coefficients for five steps"
    )
    problem = f"newton_schulz={shown(argument)} must be {allowed}"
    return newton_schulz_steps("step", problem, coefficients, steps)


def _source(parameter: Weight | Value) -> Any:
    """The source of a matrix, or of an initial value before its steps: its identity."""
    if isinstance(parameter, Weight):
        return parameter.source
    drawn: Any = ops.initial_value(parameter)[0].op
    return drawn.source
