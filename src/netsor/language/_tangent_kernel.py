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

from .._array_api import array_namespace
from .._validate import TraceError, also_spelled, one_of
from ..activations import Function
from ._array import Source, Value
from ._derivative import scale, width_ratio
from ._grad import Parameter, Parameters, Reverse, Term, alone, as_loss, terms_of
from ._graph import topological_order
from ._operation import Acting, Gaussian, Normal, OptimiserStep, initial_value, steps_of
from ._parameters import Weight
from ._scalar import Scalar, applied, constant
from ._score import join, mean_dot, stack
from ._vector import Vector, mix
from ._width import Width

# a matrix, and the steps that it has taken
Version = tuple[Source, tuple[OptimiserStep, ...]]


@also_spelled(parametrization="parametrisation")
def ntk(
    p: Scalar,
    q: Scalar | None = None,
    weights: Parameter | Sequence[Parameter] | None = None,
    parametrisation: str = "ntk",
) -> Scalar:
    """The tangent kernel Σ_W ⟨∂p_a/∂W, ∂q_b/∂W⟩, as scalars of the same program with
    shape p.shape + q.shape.

    For a coordinate of an output y, use a random readout `ns.dot(r, y)`; r is then the
    last layer, also in `weights`.

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
    sides = [_backward(first, chosen)]
    sides.append(sides[0] if second is first else _backward(second, chosen))
    shape, standard = (first.size, second.size), parametrisation == "standard"
    found: list[Scalar] = []
    for version, own in sides[0][0].items():
        for pair, gram in _products((own, sides[1][0].get(version, [])), standard):
            sums = []  # (outputs, K): the output that each use belongs to
            for side, outputs in zip(pair, shape, strict=True):
                sizes = [max(term.left.shape[1], term.right.shape[1]) for term in side]
                sums.append(
                    np.eye(outputs)[:, np.repeat([term.output for term in side], sizes)]
                )
            found.append(constant(sums[0]) @ gram.sum(0) @ constant(sums[1].T.copy()))
    for k, leaf in enumerate(chosen.leaves):
        found.append(
            _leaf_term(
                leaf, [[row[k] for row in leaves] for _, leaves in sides], standard
            )
        )
    total = reduce(operator.add, found) if found else constant(np.zeros(shape))
    return total.reshape(*first.shape, *second.shape)


@also_spelled(parametrization="parametrisation")
def grad_norm(
    p: Scalar, weight: Parameter, parametrisation: str = "standard"
) -> Scalar:
    """The squared norm of the gradient of p with respect to one parameter, |∂p/∂W|², as
    a scalar of the program.

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


def _backward(
    p: Scalar, chosen: Parameters
) -> tuple[dict[Version, list[Term]], list[list[Value]]]:
    """For each output of p: the terms of each matrix, and the cotangents of the other
    parameters.
    """
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
    return terms, leaves


def _products(
    sides: Sequence[Sequence[Term]], standard: bool
) -> Iterator[tuple[list[list[Term]], Scalar]]:
    """⟨l, l'⟩ ⟨r, r'⟩ for all pairs of uses of one weight, (matrices, K, K'), with the
    terms of each group.
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
    over = drawn.out_width, drawn.in_width, *([drawn.in_width] if standard else [])
    under = (
        term.used.fan,
        term.used.out_width,
        *([Width(term.unit)] if term.unit else []),
    )
    return (
        width_ratio(over, under) if standard else drawn.std * width_ratio(over, under)
    )


def _leaf_term(leaf: Value, sides: Sequence[Sequence[Value]], standard: bool) -> Scalar:
    """For initial vectors and random scalars: ⟨∂p/∂b, ∂q/∂b⟩, or with respect to b/σ,
    which is N(0, 1).
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
    same = [
        part if part.shape[0] == rows else part.broadcast_to((rows, part.shape[1]))
        for part in parts
    ]
    return same[0] if len(same) == 1 else join(same, axis=1)


class Gradients(NamedTuple):
    """The gradient of a loss with respect to each parameter of a step, with one part
    per unit.
    """

    terms: dict[Source, list[Term]]  # of each matrix
    # equal initial vectors get the sum of their gradients
    leaves: dict[Value, list[tuple[str | None, Any]]]
    # the steps that each matrix has taken
    latest: dict[Source, tuple[OptimiserStep, ...]]


def gradients(p: Scalar, outputs: Sequence[Value], chosen: Parameters) -> Gradients:
    """The gradient of Σ p with respect to the chosen parameters, after the steps that
    `outputs` depend on.
    """
    latest: dict[Source, tuple[OptimiserStep, ...]] = {}
    for value in topological_order([p, *outputs], past=False):
        if isinstance(value.op, Acting):
            before, steps = latest.get(value.op.weight.source, ()), steps_of(value.op)
            latest[value.op.weight.source] = max(before, steps, key=len)

    def counts(op: Acting) -> bool:
        """Skip uses before the last step of a matrix: they belong to an earlier
        step.
        """
        return steps_of(op) == latest[op.weight.source] and chosen.counts(op)

    seed = [(p, constant(np.ones(p.shape)))]
    first = Reverse(seed, chosen.leaves, counts, unit=None)
    terms: dict[Source, list[Term]] = {}
    leaves: dict[Value, list[tuple[str | None, Any]]] = {}
    for unit in first.units:
        reverse = (
            first if unit is None else Reverse(seed, chosen.leaves, counts, unit=unit)
        )
        for use in reverse.uses:
            terms.setdefault(use.op.weight.source, []).extend(
                terms_of(0, use, chosen, unit)
            )
        for leaf in chosen.leaves:
            d, same = reverse.of(leaf), _tied(leaf)
            total = (
                d
                if same is None
                else mix(constant(same), d.reshape(-1)).reshape(*leaf.shape)
            )
            leaves.setdefault(leaf, []).append((unit, total))
    return Gradients(terms, leaves, latest)


def _tied(leaf: Value) -> np.ndarray | None:
    """Which initial vectors are equal, hence one parameter, as for a token that occurs
    twice; None if all differ.
    """
    first = initial_value(leaf)[0].op
    if not isinstance(first, Gaussian):
        return None
    rows = np.column_stack([first.mean.ravel(), first.factor.reshape(leaf.size, -1)])
    _, which = np.unique(rows, axis=0, return_inverse=True)
    between = rows[:, 1:] @ rows[:, 1:].T
    # biases that start at equal numbers are separate parameters
    random = np.diagonal(between) > 0
    same = (which.ravel()[:, None] == which.ravel()) & random | np.eye(
        leaf.size, dtype=bool
    )
    size = np.sqrt(np.outer(np.diagonal(between), np.diagonal(between)))
    if (np.abs(between) > 1e-12 * size)[~same].any():
        raise TraceError(
            "step",
            f"weights={leaf!r} are correlated: write them as sums of independent ones",
        )
    return None if same.sum() == leaf.size else same.astype(np.float64)


def clipped(whole: Gradients, most: float) -> Gradients:
    """Gradients times min(1, most/(norm + 1e-6)), with the norm over all of them."""
    squares = []
    for own in whole.terms.values():
        squares += [gram.sum() for _, gram in _products((own,), standard=True)]
    for leaf, parts in whole.leaves.items():  # equal initial vectors count once
        d = reduce(
            operator.add,
            (
                scale(width_ratio((), (Width(unit),) if unit else ()), d)
                for unit, d in parts
            ),
        )
        d, tied = d.reshape(-1), _tied(leaf)
        each = (
            mean_dot(d[:, None], d[:, None])[:, 0, 0]
            if isinstance(d, Vector)
            else d * d
        )
        squares.append(
            (each if tied is None else each * (1.0 / tied.sum(axis=1))).sum()
        )
    f = Function("clip_norm", partial(_clip_factor, most=most), lipschitz=True)
    by = applied(f, (reduce(operator.add, squares),), ())
    terms = {
        source: [replace(term, left=by * term.left) for term in terms]
        for source, terms in whole.terms.items()
    }
    leaves = {
        leaf: [(unit, by * d) for unit, d in parts]
        for leaf, parts in whole.leaves.items()
    }
    return Gradients(terms, leaves, whole.latest)


def _clip_factor(square: Any, most: float) -> Any:
    xp = array_namespace(square)
    # 1e-6 as in PyTorch
    return xp.clip(most / (xp.sqrt(xp.clip(square, 0.0, None)) + 1e-6), None, 1.0)
