"""One step of an optimiser: the same outputs with the weights after it, as values of the same program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .._validate import TraceError, as_floats, as_whole, one_of, real, shown
from ._array import Source, Value
from ._grad import Parameter, Parameters, Reverse, Term, as_loss, terms_of
from ._graph import topological_order
from ._operation import (
    Gaussian,
    GradientTerm,
    MatMul,
    Normal,
    OptimiserStep,
    Rate,
    SteppedMatMul,
    SteppedParameter,
    initial_value,
    steps_of,
)
from ._parameters import Weight
from ._scalar import Scalar, constant
from ._vector import Vector, mix
from ._width import Width

MUON = (3.4445, -4.7750, 2.0315)  # the coefficients of Muon's public code, for every step
STEPS = 100  # at most: (1.5, −0.5, 0) takes a singular value from rounding error, 1e-16, to 1 in 91 steps
NAMELESS = "a parameter without a name"
LR = "a number, a function of fan-in and fan-out, or a dictionary of these by weights or their names"


def step(
    outputs: Any,
    loss: Scalar,
    lr: Rate | Mapping[Any, Rate],
    optimiser: str = "sgd",
    weights: Parameter | Sequence[Parameter] | None = None,
    *,
    eps: float = 0.0,
    newton_schulz: int | tuple[float, float, float] | None = None,
    weight_decay: float = 0.0,
    scale: Rate | None = None,
) -> Any:
    """The outputs after one step of an optimiser on the loss, as values of the same program.

    A step moves a matrix W to (1 − η·weight_decay) W − η U. With G the gradient of the loss by **the entries of W
    themselves**, as an optimiser sees them (entries N(0, σ²/fan-in), no factor taken out), U is

    - "sgd": G. Momentum's first step is the same.
    - "muon": the polar factor of G, scale · A B^T for G = A S B^T (without singular values below 1e-5 of the largest,
      which Muon's own polynomial leaves near 0), or that polynomial of Newton and Schulz. Each matrix of a batch, such
      as a head of attention, has its own step.
    - "adam": G/(|G| + eps), entry by entry: the first step of Adam and AdamW, and with eps = 0 of signSGD and Lion.

    Nothing is trained. G = Σ_i δ_i x_i^T over all uses of W (tokens, layers that share it), so
    W' x = W x − η Σ_i ⟨x_i, x⟩ δ_i: the law after the step is exact at every finite width. Adam's step needs every
    entry of G, in · out · (uses) operations a replica and matrix, and is refused above 8·10⁹ entries.

    Parameters
    ----------
    outputs
        A value of the program, or a list or tuple of them, to be computed with the weights after the step.
    loss
        A scalar of the program; several are summed.
    lr
        η: a number, a function of fan-in and fan-out, or a dictionary of these, by weight or by name (`name=` of
        `ns.weight` and `ns.gaussian`), with None for all others. Fan-in and fan-out are numbers; a vector of R^n has
        fan-in 1 and fan-out n. At infinite width the power of n in η is found at large numbers.
    optimiser
        "sgd", "muon" or "adam".
    weights
        The parameters that move: weights, initial vectors (biases, embeddings, a readout) and random scalars; by
        default all matrices that the loss depends on. Equal random vectors, such as those of a token that occurs twice,
        are one parameter; vectors without variance (biases that start at 0) are separate ones.
    eps
        ε̂ of Adam.
    newton_schulz
        For Muon: a number of steps with the coefficients of its public code (3.4445, −4.7750, 2.0315), three
        coefficients for five steps, or a list of three for each step, at most 100; by default the polar factor itself.
    weight_decay
        λ, decoupled as in AdamW.
    scale
        For Muon: a factor of its matrix, a number or a function of fan-in and fan-out; 1 by default.

    Returns
    -------
    Any
        The outputs after the step, in the same structure. You can use them in another step; as in training, gradients
        do not flow through a step.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, n, name="hidden"), ns.gaussian(n)
    >>> h = ns.tanh(w @ ns.gaussian(n))
    >>> f = ns.mean_dot(r, h)
    >>> after = ns.step(h, (f - 1.0) ** 2, lr=0.5)
    >>> moved = ns.Program(ns.mean_dot(after - h, after - h))
    >>> print(f"{moved.draw(n=1000, draws=50).mean():.2f}, {moved.law(n=ns.inf).with_error.mean()} at infinite width")
    0.19, 0.187597 ± 7.7e-05 at infinite width
    """
    several = isinstance(outputs, list | tuple)
    listed = list(outputs) if several else [outputs]
    for value in listed:
        if not isinstance(value, Value):
            raise TraceError("step", "outputs", value, "a value of the program, or a list of them")
    p = as_loss(loss, "step", "loss")
    one_of(optimiser, "optimiser", "step", ("sgd", "muon", "adam"))
    decay = real(weight_decay, "weight_decay", "step", least=0)
    chosen = Parameters(weights, topological_order([p, *listed], past=False), "step")
    rates, small = _Rates(lr), real(eps, "eps", "step", least=0)
    steps, factor = _newton_schulz(newton_schulz), 1.0 if scale is None else _rate(scale, "scale")
    for name, given, owner in (("eps", small, "adam"), ("newton_schulz", steps, "muon"), ("scale", scale, "muon")):
        if given and optimiser != owner:
            raise TraceError("step", f"{name}={shown(given)} is for optimiser={owner!r}, got {optimiser!r}")
    if optimiser == "muon" and chosen.leaves:
        raise TraceError(
            "step",
            f"weights={chosen.leaves[0]!r} is no matrix, and optimiser='muon' moves matrices alone: move it by a step "
            "of its own, with another optimiser",
        )

    def rule(of: Weight | Value) -> OptimiserStep:
        name = _source(of).name or NAMELESS
        return OptimiserStep(name, optimiser, rates.of(of), decay, small, steps, factor, *_sizes(of))

    found = _gradients(p, listed, chosen)
    if not found.terms and not found.leaves:
        raise TraceError("step", f"loss={p!r} depends on no weight that could move: name what moves, weights=[…]")
    rates.check({source.name for source in found.latest} | {_source(leaf).name for leaf in found.leaves})
    matrices = {source: (rule(terms[0][0].used.drawn), terms) for source, terms in found.terms.items()}
    shifted: dict[Value, Value] = {}
    for leaf, parts in found.leaves.items():
        units, d = zip(*parts, strict=True)
        shifted[leaf] = replace(
            leaf, op=SteppedParameter(leaf, tuple(_tied_gradients(leaf, x) for x in d), units, rule(leaf))
        )
    made = _rebuilt(listed, matrices, found.latest, shifted)
    return type(outputs)(made) if several else made[0]


class _Gradients(NamedTuple):
    terms: dict[Source, list[tuple[Term, str | None]]]  # of each matrix, with its unit
    leaves: dict[Value, list[tuple[str | None, Value]]]
    latest: dict[Source, tuple[OptimiserStep, ...]]  # the steps that a matrix has made


def _gradients(p: Scalar, outputs: Sequence[Value], chosen: Parameters) -> _Gradients:
    """What moves the chosen parameters: the gradient of Σ p, in parts of one unit each."""
    latest: dict[Source, tuple[OptimiserStep, ...]] = {}
    for value in topological_order([p, *outputs], past=False):
        if isinstance(value.op, MatMul | SteppedMatMul):
            before, steps = latest.get(value.op.weight.source, ()), steps_of(value.op)
            latest[value.op.weight.source] = max(before, steps, key=len)

    def counts(op: MatMul | SteppedMatMul) -> bool:
        """What a matrix made before its last step is of the past."""
        return steps_of(op) == latest[op.weight.source] and chosen.counts(op)

    seed = [(p, constant(np.ones(p.shape)))]
    first = Reverse(seed, chosen.leaves, counts, unit=None)
    terms: dict[Source, list[tuple[Term, str | None]]] = {}
    leaves: dict[Value, list[tuple[str | None, Value]]] = {}
    for unit in first.units:
        reverse = first if unit is None else Reverse(seed, chosen.leaves, counts, unit=unit)
        for use in reverse.uses:
            terms.setdefault(use.op.weight.source, []).extend((term, unit) for term in terms_of(0, use, chosen))
        for leaf in chosen.leaves:
            leaves.setdefault(leaf, []).append((unit, reverse.of(leaf)))
    return _Gradients(terms, leaves, latest)


def _rebuilt(
    outputs: Sequence[Value],
    matrices: Mapping[Source, tuple[OptimiserStep, list[tuple[Term, str | None]]]],
    latest: Mapping[Source, tuple[OptimiserStep, ...]],
    shifted: Mapping[Value, Value],
) -> list[Value]:
    """The outputs made again, with what moved in the place of what it was."""
    new: dict[Value, Value] = dict(shifted)
    for value in topological_order(outputs, past=False):
        op = value.op
        if value in new or isinstance(op, SteppedParameter):
            new.setdefault(value, value)
            continue
        if isinstance(op, SteppedMatMul):
            x = new[op.x]
            assert isinstance(x, Vector)
            made: Any = op if x is op.x else replace(op, x=x)
        else:
            inputs = [new[x] for x in op.inputs]
            same = all(a is b for a, b in zip(inputs, op.inputs, strict=True))
            made = op if same else op.with_inputs(*inputs)
        if isinstance(made, MatMul | SteppedMatMul) and made.weight.source in matrices:
            rule, terms = matrices[made.weight.source]
            if steps_of(made) == latest[made.weight.source]:
                made = _with_step(made, rule, terms)
        new[value] = value if made is op else replace(value, op=made)
    return [new[output] for output in outputs]


def _with_step(
    op: MatMul | SteppedMatMul, rule: OptimiserStep, terms: Sequence[tuple[Term, str | None]]
) -> SteppedMatMul:
    """The operation with its matrices moved."""
    before = op if isinstance(op, SteppedMatMul) else SteppedMatMul(op.weight, op.x, op.each, (), (), (), ())
    parts = tuple(GradientTerm(len(before.steps), term.members, term.used, unit) for term, unit in terms)
    return replace(
        before,
        left=before.left + tuple(term.left for term, _ in terms),
        right=before.right + tuple(term.right for term, _ in terms),
        parts=before.parts + parts,
        steps=(*before.steps, rule),
    )


def _tied_gradients(leaf: Value, d: Value) -> Value:
    """The gradients of initial vectors: those that are equal, as for a token that occurs twice, are one parameter."""
    first = initial_value(leaf)[0].op
    if not isinstance(first, Gaussian):
        return d
    rows = np.column_stack([first.mean.ravel(), first.factor.reshape(leaf.size, -1)])
    _, which = np.unique(rows, axis=0, return_inverse=True)
    between = rows[:, 1:] @ rows[:, 1:].T
    random = np.diagonal(between) > 0  # biases that begin as the same numbers are parameters of their own
    same = (which.ravel()[:, None] == which.ravel()) & random | np.eye(leaf.size, dtype=bool)
    size = np.sqrt(np.outer(np.diagonal(between), np.diagonal(between)))
    if (np.abs(between) > 1e-12 * size)[~same].any():
        raise TraceError(
            "step",
            f"weights={leaf!r} are correlated, so which of them are parameters is not known: write them as sums of "
            "independent ones (ns.gaussian with cov a number), and list those",
        )
    if same.sum() == leaf.size:
        return d
    assert isinstance(d, Vector)
    return mix(constant(same.astype(np.float64)), d.reshape(-1)).reshape(*leaf.shape)


class _Rates:
    """Learning rates as the user gave them."""

    def __init__(self, lr: Any) -> None:
        self.given: dict[Source | str | None, Rate] = {}
        for key, rate in (lr if isinstance(lr, Mapping) else {None: lr}).items():
            match key:
                case Weight() if len(np.unique(key.members)) < key.count:
                    raise TraceError(
                        "step",
                        f"lr has the key {key!r}, a part of a batch of {key.count} matrices, which have one rate: give "
                        "the batch, or make them weights of their own",
                    )
                case Weight(source=source) | Value(op=Gaussian(source=source) | Normal(source=source)):
                    self.given[source] = _rate(rate, "lr")
                case str() | None:
                    self.given[key] = _rate(rate, "lr")
                case _:
                    raise TraceError("step", f"lr has the key {shown(key)}: give {LR}, or None for all others")

    def check(self, names: Collection[str | None]) -> None:
        """Refuse a name that nothing has: it would be misspelt."""
        for key in self.given:
            if isinstance(key, str) and key not in names:
                known = ", ".join(sorted(name for name in names if name)) or "none has a name"
                raise TraceError("step", f"lr has the key {key!r}, which no weight of the program is called: {known}")

    def of(self, parameter: Weight | Value) -> Rate:
        source = _source(parameter)
        for key in (source, source.name, None):
            if key in self.given:
                return self.given[key]
        raise TraceError(
            "step",
            f"lr has no entry for {source.name or NAMELESS}, {parameter!r}: add one by its name, by "
            "the weight itself, or None for all others; or list the weights that move, weights=[…]",
        )


def _newton_schulz(given: Any) -> tuple[tuple[float, float, float], ...] | None:
    """Coefficients, a triple for each step."""
    if given is None:
        return None
    count = as_whole(given)
    triples: Any = given
    if count is not None:
        triples = [MUON] * min(max(count, 0), STEPS + 1)
    elif isinstance(given, tuple) and len(given) == 3 and not isinstance(given[0], tuple | list):
        triples = [given] * 5
    found = [as_floats(triple) for triple in triples] if isinstance(triples, list | tuple) else []
    if not 1 <= len(found) <= STEPS or any(a is None or a.shape != (3,) or not np.isfinite(a).all() for a in found):
        raise TraceError(
            "step",
            f"newton_schulz={shown(given)} must be a number of steps with Muon's coefficients, 1 to {STEPS}; three "
            f"coefficients for five steps; or a list of three finite numbers for each of at most {STEPS} steps",
        )
    return tuple((float(a[0]), float(a[1]), float(a[2])) for a in found if a is not None)


def _source(parameter: Weight | Value) -> Source:
    if isinstance(parameter, Weight):
        return parameter.source
    op = initial_value(parameter)[0].op
    assert isinstance(op, Gaussian | Normal)
    return op.source


def _rate(rate: Any, name: str) -> Rate:
    if callable(rate):
        return rate  # type: ignore[no-any-return]
    return real(rate, name, "step")


def _sizes(parameter: Weight | Value) -> tuple[Width, Width]:
    """Fan-in and fan-out: a vector of R^n is n × 1."""
    if isinstance(parameter, Weight):
        return parameter.in_width, parameter.out_width
    return Width(1), parameter.width if isinstance(parameter, Vector) else Width(1)
