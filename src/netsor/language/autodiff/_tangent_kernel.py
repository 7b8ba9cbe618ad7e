"""The tangent kernel, gradients with respect to all parameters, and their norms.

With terms l r^T of ∂p/∂W (see `_grad`), Σ_W ⟨∂p/∂W, ∂q/∂W⟩ = Σ ⟨l, l'⟩ ⟨r, r'⟩ over
pairs of uses of the same matrix.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import array_namespace
from ..._validate import TraceError, also_spelled, one_of
from ...functions.activations import Function
from ..operations._operation import (
    Acting,
    Gaussian,
    Normal,
    OptimiserStep,
    initial_value,
    steps_of,
)
from ..operations._score import join, mean_dot, stack
from ..values._array import Source, Value
from ..values._graph import topological_order
from ..values._parameters import Weight
from ..values._scalar import Floats, Scalar, applied, constant
from ..values._vector import Vector, mix
from ..values._width import Width
from ._derivative import scale, width_ratio
from ._grad import Parameter, Parameters, Reverse, Term, alone, as_loss, terms_of

# Added to the norm of a gradient before it is clipped, as in PyTorch.
CLIP_EPS = 1e-6
# Initial vectors whose correlation is larger than this are no rounding errors of
# independent ones.
CORRELATED = 1e-12

# A matrix, and the steps that it has taken.
Version = tuple[Source, tuple[OptimiserStep, ...]]


@also_spelled(parametrization="parametrisation")
def ntk(
    p: Scalar,
    q: Scalar | None = None,
    weights: Parameter | Sequence[Parameter] | None = None,
    parametrisation: str = "ntk",
) -> Scalar:
    """The tangent kernel Σ_W ⟨∂p_a/∂W, ∂q_b/∂W⟩, as scalars of the same program.

    Its shape is p.shape + q.shape. For a coordinate of an output y, use a random
    readout `ns.dot(r, y)`; r is then the last layer, also in `weights`.

    Parameters
    ----------
    p : Scalar
        Of any shape.
    q : Scalar, optional
        Of any shape; by default p.
    weights : Weight, Vector, Scalar, or list of them, optional
        The weights (`W[0]` is one matrix), initial vectors and random scalars to
        include; all matrices by default.
    parametrisation : str
        "ntk": with respect to N with entries N(0, 1), where W = (σ/√in) N. Σ_W (σ²/in)
        ⟨∂p/∂W, ∂q/∂W⟩ has a limit (learning rates η σ²/in in `ns.step`). "standard":
        with respect to the entries of W; it grows like the width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x, r = ns.gaussian(n, 2), ns.gaussian(n)
    >>> p = ns.dot(r, x + ns.nn.attention(x, heads=1))  # two outputs
    >>> ns.Program((p, ns.ntk(p))).law(n=16, draws=100).dim
    6
    """
    first = as_loss(p, "ntk")
    second = first if q is None else as_loss(q, "ntk", "q")
    one_of(parametrisation, "parametrisation", "ntk", ("ntk", "standard"))
    chosen = Parameters(weights, topological_order([first, second], past=False), "ntk")
    left = _backward(first, chosen)
    right = left if second is first else _backward(second, chosen)
    standard = parametrisation == "standard"
    summands: list[Scalar] = []
    for version, terms in left.terms.items():
        sides = terms, right.terms.get(version, [])
        for pair, gram in _products(sides, standard):
            sum_left = _sum_over_uses(pair[0], first.size)
            sum_right = _sum_over_uses(pair[1], second.size)
            summands.append(
                constant(sum_left) @ gram.sum(0) @ constant(sum_right.T.copy())
            )
    for k, leaf in enumerate(chosen.leaves):
        cotangents = [
            [of_output[k] for of_output in side.leaves] for side in (left, right)
        ]
        summands.append(_leaf_term(leaf, cotangents, standard))
    if not summands:
        summands = [constant(np.zeros((first.size, second.size)))]
    return reduce(operator.add, summands).reshape(*first.shape, *second.shape)


def _sum_over_uses(terms: Sequence[Term], outputs: int) -> Floats:
    """The matrix (outputs, K) that sums over the K vectors that belong to an output."""
    sizes = [max(term.left.shape[1], term.right.shape[1]) for term in terms]
    output_of_vector = np.repeat([term.output for term in terms], sizes)
    return np.eye(outputs)[:, output_of_vector]


@also_spelled(parametrization="parametrisation")
def grad_norm(
    p: Scalar, weight: Parameter, parametrisation: str = "standard"
) -> Scalar:
    """The squared norm of the gradient of p by one parameter, |∂p/∂W|².

    It is a scalar of the same program.

    Parameters
    ----------
    p : Scalar
        A single scalar.
    weight : Weight, Vector or Scalar
        A weight (all matrices of its batch; `W[0]` is one), an initial vector or random
        scalars.
    parametrisation : str
        As in `ntk`. "standard" is Σ (∂p/∂W_ij)², as an optimiser sees it; "ntk" is
        σ²/in times that, which has a limit.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, n), ns.gaussian(n)
    >>> p = ns.dot(r, ns.tanh(w @ ns.gaussian(n)))
    >>> ns.Program(ns.grad_norm(p, w)).law(n=16, draws=100).mean() > 0
    True
    """
    if as_loss(p, "grad_norm").shape:
        raise TraceError(
            "grad_norm",
            f"p must be one scalar, got shape {p.shape}: index it, or sum it",
        )
    if not isinstance(weight, Weight | Vector | Scalar):
        raise TraceError(
            "grad_norm",
            "weight",
            weight,
            "a weight, an initial vector or random scalars",
        )
    return ntk(p, None, weight, parametrisation)


class _OutputGradients(NamedTuple):
    """The gradients of all outputs."""

    terms: dict[Version, list[Term]]  # of each matrix, for all outputs
    leaves: list[list[Value]]  # for each output, the cotangents of other parameters


def _backward(p: Scalar, chosen: Parameters) -> _OutputGradients:
    terms: dict[Version, list[Term]] = {}
    leaves: list[list[Value]] = []
    for output in range(p.size):
        entry = p if not p.shape else p.reshape(-1)[output]
        reverse = Reverse(
            [(entry, constant(np.ones(())))], chosen.leaves, chosen.counts
        )
        for use in reverse.uses:
            version = use.op.weight.source, steps_of(use.op)
            terms.setdefault(version, []).extend(terms_of(output, use, chosen))
        leaves.append([reverse.of(leaf) for leaf in chosen.leaves])
    return _OutputGradients(terms, leaves)


def _products(
    sides: Sequence[Sequence[Term]], standard: bool
) -> Iterator[tuple[list[list[Term]], Scalar]]:
    """⟨l, l'⟩ ⟨r, r'⟩ for all pairs of uses of one weight, (matrices, K, K').

    There is one such array for each group of matrices that the same terms belong to.
    It comes with these terms, one list for each side.
    """
    if len({term.members for side in sides for term in side}) > 1:
        sides = [
            [alone(term, k) for term in side for k in range(len(term.members))]
            for side in sides
        ]
    for members in dict.fromkeys(term.members for term in sides[0]):
        pair = [[term for term in side if term.members == members] for side in sides]
        if all(pair):
            lefts = [
                pooled([scale(_unit(term, standard), term.left) for term in side])
                for side in pair
            ]
            rights = [pooled([term.right for term in side]) for side in pair]
            yield pair, mean_dot(lefts[0], lefts[-1]) * mean_dot(rights[0], rights[-1])


def _unit(term: Term, standard: bool) -> Scalar | float:
    """The factor from l r^T to the gradient, with inner products ⟨l, l'⟩/out · ⟨r,
    r'⟩/in.

    For a use y = (std/√fan) N x with √(width of y) ∂p/∂y = δ, the gradient with respect
    to N is (std/√fan) δ x^T/√(width of y). With respect to W = (std/√in) N it is
    √in/std times that.
    """
    drawn = term.used.drawn
    over = [drawn.out_width, drawn.in_width]
    under = [term.used.fan, term.used.out_width]
    if standard:
        over.append(drawn.in_width)
    if term.unit:
        under.append(Width(term.unit))
    ratio = width_ratio(tuple(over), tuple(under))
    return ratio if standard else drawn.std * ratio


def _leaf_term(leaf: Value, sides: Sequence[Sequence[Value]], standard: bool) -> Scalar:
    """⟨∂p/∂b, ∂q/∂b⟩ for initial vectors or random scalars b.

    Unless `standard`, it is with respect to b/σ, which is N(0, 1).
    """
    law: Any = initial_value(leaf)[0].op
    # (entries, outputs)
    rows: list[Any] = [stack([d.reshape(-1) for d in side], axis=1) for side in sides]
    if isinstance(law, Normal):
        kernel: Scalar = rows[0].transpose() @ rows[1]
        return kernel if standard else law.std**2 * kernel
    if not standard:  # h = mean + factor E
        factor = constant(law.factor.reshape(leaf.size, -1).T.copy())
        rows = [mix(factor, row.transpose()).transpose() for row in rows]
    return mean_dot(*rows).sum(0)


def pooled(parts: Sequence[Vector]) -> Vector:
    """Join the vectors of several uses, (matrices, K), along K."""
    rows = max(part.shape[0] for part in parts)
    if len(parts) == 1:
        return parts[0]
    return join([part.broadcast_to((rows, part.shape[1])) for part in parts], axis=1)


class Gradients(NamedTuple):
    """The gradient of a loss by each parameter of a step, with one part per unit."""

    terms: dict[Source, list[Term]]  # of each matrix
    # Of each initial value: units with cotangents. Equal initial vectors have the sum
    # of their gradients.
    leaves: dict[Value, list[tuple[str | None, Any]]]
    latest: dict[Source, tuple[OptimiserStep, ...]]  # the steps of each matrix so far


def gradients(p: Scalar, outputs: Sequence[Value], chosen: Parameters) -> Gradients:
    """The gradient of Σ p by the chosen parameters.

    They are those after the last step that `outputs` depend on.
    """
    latest: dict[Source, tuple[OptimiserStep, ...]] = {}
    for value in topological_order([p, *outputs], past=False):
        if isinstance(value.op, Acting):
            source = value.op.weight.source
            steps = steps_of(value.op)
            latest[source] = max(latest.get(source, ()), steps, key=len)

    def counts(op: Acting) -> bool:
        """Skip uses of a matrix before its last step: they belong to earlier steps."""
        return steps_of(op) == latest[op.weight.source] and chosen.counts(op)

    seed = [(p, constant(np.ones(p.shape)))]
    first = Reverse(seed, chosen.leaves, counts, unit=None)
    terms: dict[Source, list[Term]] = {}
    leaves: dict[Value, list[tuple[str | None, Any]]] = {}
    for unit in first.units:
        reverse = first
        if unit is not None:
            reverse = Reverse(seed, chosen.leaves, counts, unit=unit)
        for use in reverse.uses:
            use_terms = terms_of(0, use, chosen, unit)
            terms.setdefault(use.op.weight.source, []).extend(use_terms)
        for leaf in chosen.leaves:
            d = reverse.of(leaf)
            tied = _tied(leaf)
            if tied is not None:
                d = mix(constant(tied), d.reshape(-1)).reshape(*leaf.shape)
            leaves.setdefault(leaf, []).append((unit, d))
    return Gradients(terms, leaves, latest)


def _tied(leaf: Value) -> np.ndarray | None:
    """Which initial vectors are equal, as a matrix of 0 and 1; None if all differ.

    Equal vectors are one parameter, as for a token that occurs twice.
    """
    first = initial_value(leaf)[0].op
    if not isinstance(first, Gaussian):
        return None
    rows = np.column_stack([first.mean.ravel(), first.factor.reshape(leaf.size, -1)])
    _, group = np.unique(rows, axis=0, return_inverse=True)
    group = group.ravel()
    cov = rows[:, 1:] @ rows[:, 1:].T
    variance = np.diagonal(cov)
    # biases that start at equal numbers are separate parameters
    same = (group[:, None] == group) & (variance > 0)
    same |= np.eye(leaf.size, dtype=bool)
    largest_cov = np.sqrt(np.outer(variance, variance))
    if (np.abs(cov) > CORRELATED * largest_cov)[~same].any():
        raise TraceError(
            "step",
            f"weights={leaf!r} are correlated: write them as sums of independent ones",
        )
    return None if same.sum() == leaf.size else same.astype(np.float64)


def clipped(whole: Gradients, most: float) -> Gradients:
    """Gradients times min(1, most/(norm + 1e-6)), with the norm over all of them."""
    squares = []
    for matrix_terms in whole.terms.values():
        squares += [gram.sum() for _, gram in _products((matrix_terms,), standard=True)]
    for leaf, parts in whole.leaves.items():
        squares.append(_squared_norm(leaf, parts))
    f = Function("clip_norm", partial(_clip_factor, most=most), lipschitz=True)
    factor = applied(f, (reduce(operator.add, squares),), ())
    terms = {
        source: [replace(term, left=factor * term.left) for term in matrix_terms]
        for source, matrix_terms in whole.terms.items()
    }
    leaves = {
        leaf: [(unit, factor * d) for unit, d in parts]
        for leaf, parts in whole.leaves.items()
    }
    return Gradients(terms, leaves, whole.latest)


def _squared_norm(leaf: Value, parts: Sequence[tuple[str | None, Any]]) -> Scalar:
    """|∂L/∂x|² of initial vectors or random scalars; equal vectors count once."""
    in_one_unit = []
    for unit, part in parts:
        under = (Width(unit),) if unit else ()
        in_one_unit.append(scale(width_ratio((), under), part))
    d: Any = reduce(operator.add, in_one_unit).reshape(-1)
    if isinstance(d, Vector):
        squares = mean_dot(d[:, None], d[:, None])[:, 0, 0]
    else:
        squares = d * d
    tied = _tied(leaf)
    if tied is not None:
        squares = squares * (1.0 / tied.sum(axis=1))
    return squares.sum()


def _clip_factor(square: Any, most: float) -> Any:
    xp = array_namespace(square)
    norm = xp.sqrt(xp.clip(square, 0.0, None))
    return xp.clip(most / (norm + CLIP_EPS), None, 1.0)
