"""The tangent kernel, gradients with respect to all parameters, and their norms.

With terms l r^T of ∂p/∂W (see `_grad`), Σ_W ⟨∂p/∂W, ∂q/∂W⟩ = Σ ⟨l, l'⟩ ⟨r, r'⟩ over
pairs of uses of the same matrix.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator, Mapping, Sequence
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
    p = as_loss(p, "ntk")
    q = p if q is None else as_loss(q, "ntk", "q")
    one_of(parametrisation, "parametrisation", "ntk", ("ntk", "standard"))
    chosen = Parameters(weights, topological_order([p, q], past=False), "ntk")
    p_gradients = _gradients_of_outputs(p, chosen)
    q_gradients = p_gradients
    if q is not p:
        q_gradients = _gradients_of_outputs(q, chosen)
    standard = parametrisation == "standard"
    summands = [
        *_matrix_kernels(
            p_gradients.terms,
            q_gradients.terms,
            sizes=(p.size, q.size),
            standard=standard,
        ),
        *_leaf_kernels(p_gradients, q_gradients, chosen.leaves, standard),
    ]
    if not summands:
        summands = [constant(np.zeros((p.size, q.size)))]
    return reduce(operator.add, summands).reshape(*p.shape, *q.shape)


def _matrix_kernels(
    p_terms: Mapping[Version, Sequence[Term]],
    q_terms: Mapping[Version, Sequence[Term]],
    sizes: tuple[int, int],
    standard: bool,
) -> Iterator[Scalar]:
    """⟨∂p_i/∂W, ∂q_j/∂W⟩ for the matrices of these terms; `sizes` are those of p, q."""
    p_size, q_size = sizes
    for version, terms in p_terms.items():
        for product in _products(terms, q_terms.get(version, []), standard):
            products = product.gram.sum(0)  # over matrices, (vectors of p, of q)
            sum_p = constant(_sum_over_uses(product.p_terms, p_size))
            sum_q = constant(_sum_over_uses(product.q_terms, q_size).T.copy())
            yield sum_p @ products @ sum_q


def _leaf_kernels(
    p_gradients: _OutputGradients,
    q_gradients: _OutputGradients,
    leaves: Sequence[Value],
    standard: bool,
) -> Iterator[Scalar]:
    """⟨∂p_i/∂b, ∂q_j/∂b⟩ for some of the leaves that have gradients."""
    for leaf in leaves:
        yield _leaf_kernel(
            leaf,
            [of_output[leaf] for of_output in p_gradients.leaves],
            [of_output[leaf] for of_output in q_gradients.leaves],
            standard,
        )


def _sum_over_uses(terms: Sequence[Term], outputs: int) -> Floats:
    """The matrix (outputs, K) of 0 and 1 that sums the K vectors of terms by output.

    For example, terms of the outputs 0 and 1 with two and one vectors have the rows
    [1, 1, 0] and [0, 0, 1].
    """
    output_of_vector: list[int] = []
    for term in terms:
        vectors = max(term.left.shape[1], term.right.shape[1])
        output_of_vector += [term.output] * vectors
    return np.eye(outputs)[:, output_of_vector]


@also_spelled(parametrization="parametrisation")
def grad_norm(
    p: Scalar,
    weight: Parameter | Sequence[Parameter],
    parametrisation: str = "standard",
) -> Any:
    """The squared norm of the gradient of p with respect to one parameter, |∂p/∂W|².

    It is a scalar of the same program.

    Parameters
    ----------
    p : Scalar
        A single scalar.
    weight : Weight, Vector, Scalar, or list of them
        A weight (all matrices of its batch; `W[0]` is one), an initial vector or random
        scalars. For several parameters, a tuple of squared norms is returned, in the
        same order. They share one backward pass, which is faster than separate calls.
    parametrisation : str
        As in `ntk`. "standard" is Σ (∂p/∂W_ij)², as an optimiser sees it; "ntk" is
        σ²/in times that, which has a limit.

    Returns
    -------
    squared_norm : Scalar, or tuple of Scalar
        One for each parameter, in the order that you gave.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> w, r = ns.weight(n, n), ns.gaussian(n)
    >>> p = ns.dot(r, ns.tanh(w @ ns.gaussian(n)))
    >>> ns.Program(ns.grad_norm(p, w)).law(n=16, draws=100).mean() > 0
    True
    >>> of_w, of_r = ns.grad_norm(p, [w, r])
    """
    p = as_loss(p, "grad_norm")
    if p.shape:
        raise TraceError(
            "grad_norm",
            f"p must be one scalar, got shape {p.shape}: index it, or sum it",
        )
    one_of(parametrisation, "parametrisation", "standard", ("ntk", "standard"))
    several = isinstance(weight, list | tuple)
    listed: Any = weight if several else [weight]
    for parameter in listed:
        if not isinstance(parameter, Weight | Vector | Scalar):
            raise TraceError(
                "grad_norm",
                "weight",
                parameter,
                "a weight, an initial vector or random scalars, or a list of them",
            )
    norms = _squared_norms(p, listed, standard=parametrisation == "standard")
    return norms if several else norms[0]


def _squared_norms(
    p: Scalar, parameters: Sequence[Parameter], standard: bool
) -> tuple[Scalar, ...]:
    """|∂p/∂W|² for each parameter, from one pass back."""
    values = topological_order([p], past=False)
    together = _gradients_of_outputs(p, Parameters(parameters, values, "grad_norm"))
    norms = []
    for parameter in parameters:
        single = Parameters(parameter, values, "grad_norm")
        terms = _terms_of_members(together.terms, single.members)
        summands = [
            *_matrix_kernels(terms, terms, sizes=(1, 1), standard=standard),
            *_leaf_kernels(together, together, single.leaves, standard),
        ]
        if summands:
            norms.append(reduce(operator.add, summands).reshape())
        else:
            norms.append(constant(np.zeros(())))
    return tuple(norms)


def _terms_of_members(
    terms: Mapping[Version, Sequence[Term]], members: Mapping[Source, Container[int]]
) -> dict[Version, list[Term]]:
    """The terms that belong to these matrices of each batch."""
    selected: dict[Version, list[Term]] = {}
    for version, version_terms in terms.items():
        source, _ = version
        selected_members = members.get(source, ())
        for term in version_terms:
            positions = [
                b for b, member in enumerate(term.members) if member in selected_members
            ]
            if len(positions) == len(term.members):
                of_members = [term]
            else:
                of_members = [alone(term, b) for b in positions]
            if of_members:
                selected.setdefault(version, []).extend(of_members)
    return selected


class _OutputGradients(NamedTuple):
    """The gradients of all outputs."""

    terms: dict[Version, list[Term]]  # of each matrix, for all outputs
    # for each output, the cotangents of the other parameters
    leaves: list[dict[Value, Value]]


def _gradients_of_outputs(p: Scalar, chosen: Parameters) -> _OutputGradients:
    """The gradient of each entry of p by the chosen parameters."""
    terms: dict[Version, list[Term]] = {}
    leaves: list[dict[Value, Value]] = []
    entries = p.reshape(-1)
    for output in range(p.size):
        entry = entries[output] if p.shape else p
        seed = entry, constant(np.ones(()))
        reverse = Reverse([seed], chosen.leaves, chosen.counts)
        for use in reverse.uses:
            version = use.op.weight.source, steps_of(use.op)
            terms.setdefault(version, []).extend(terms_of(output, use, chosen))
        leaves.append({leaf: reverse.cotangent(leaf) for leaf in chosen.leaves})
    return _OutputGradients(terms, leaves)


class _TermProducts(NamedTuple):
    """Inner products of terms of ∂p/∂W with terms of ∂q/∂W, for some matrices W."""

    p_terms: list[Term]
    q_terms: list[Term]
    gram: Scalar  # ⟨l, l'⟩ ⟨r, r'⟩, (matrices, K, K') for all pairs of vectors


def _products(
    p_terms: Sequence[Term], q_terms: Sequence[Term] | None, standard: bool
) -> Iterator[_TermProducts]:
    """⟨l, l'⟩ ⟨r, r'⟩ for all pairs of uses of one weight.

    There is one array for each group of matrices that the same terms belong to, as each
    term has one or all chosen matrices of the batch. Without `q_terms`, these are
    products of the terms of p with each other.
    """
    all_terms = p_terms if q_terms is None else [*p_terms, *q_terms]
    if len({term.members for term in all_terms}) > 1:
        p_terms = _one_matrix_each(p_terms)
        if q_terms is not None:
            q_terms = _one_matrix_each(q_terms)
    for members in dict.fromkeys(term.members for term in p_terms):
        p_side = _side(p_terms, members, standard)
        q_side = p_side
        if q_terms is not None:
            q_side = _side(q_terms, members, standard)
        if p_side is not None and q_side is not None:
            left_gram = mean_dot(p_side.left, q_side.left)
            right_gram = mean_dot(p_side.right, q_side.right)
            yield _TermProducts(p_side.terms, q_side.terms, left_gram * right_gram)


class _Side(NamedTuple):
    """The terms of one side of a kernel that belong to the same matrices."""

    terms: list[Term]
    left: Vector  # the l of all terms, (matrices, K)
    right: Vector  # the r of all terms


def _side(
    terms: Sequence[Term], members: tuple[int, ...], standard: bool
) -> _Side | None:
    """The terms of these matrices, with their vectors; None if there are none."""
    of_members = [term for term in terms if term.members == members]
    if not of_members:
        return None
    left, right = _joined_factors(of_members, standard)
    return _Side(of_members, left, right)


def _one_matrix_each(terms: Sequence[Term]) -> list[Term]:
    """The same terms, split so that each belongs to one matrix."""
    return [alone(term, b) for term in terms for b in range(len(term.members))]


def _joined_factors(terms: Sequence[Term], standard: bool) -> tuple[Vector, Vector]:
    """The factors l and r of several terms, (matrices, K) each."""
    scaled_lefts = [scale(_scale_of_term(term, standard), term.left) for term in terms]
    rights = [term.right for term in terms]
    return pooled(scaled_lefts), pooled(rights)


def _scale_of_term(term: Term, standard: bool) -> Scalar | float:
    """The factor s of a term, for which gradients have the inner products of s l r^T in
    normalised products: s s' ⟨l, l'⟩/out · ⟨r, r'⟩/in.

    With δ = √m ∂p/∂y, a use y = (std/√fan) N x in R^m has the gradient (std/√fan)
    δ x^T/√m with respect to N. The products of two such matrices are ⟨δ, δ'⟩ ⟨x, x'⟩,
    which is out · in times the normalised ones, and a unit √u of the term divides its
    gradient by √u (see `Term`). So

        s = std √(out · in)/√(fan · m · u),

    which is std for W x in the unit 1, where fan = in and m = out. With respect to the
    entries of W = (std/√in) N, the gradient is √in/std times that.
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


def _leaf_kernel(
    leaf: Value,
    p_cotangents: Sequence[Value],
    q_cotangents: Sequence[Value],
    standard: bool,
) -> Scalar:
    """⟨∂p_i/∂b, ∂q_j/∂b⟩ for initial vectors or random scalars b.

    The cotangents are those of each output. Unless `standard`, the gradients are with
    respect to b/σ, which is N(0, 1).
    """
    law: Any = initial_value(leaf)[0].op
    # (entries, outputs)
    p_rows: Any = stack([d.reshape(-1) for d in p_cotangents], axis=1)
    q_rows: Any = stack([d.reshape(-1) for d in q_cotangents], axis=1)
    if isinstance(law, Normal):
        kernel: Scalar = p_rows.transpose() @ q_rows
        return kernel if standard else law.std**2 * kernel
    if not standard:  # b = mean + factor E, so ∂p/∂E = factor^T ∂p/∂b
        factor = constant(law.factor.reshape(leaf.size, -1).T.copy())
        p_rows = mix(factor, p_rows.transpose()).transpose()
        q_rows = mix(factor, q_rows.transpose()).transpose()
    return mean_dot(p_rows, q_rows).sum(0)


def pooled(vectors: Sequence[Vector]) -> Vector:
    """Join the vectors of several uses, (matrices, K), along K.

    A use of shape (1, K) has the same vectors for all matrices.
    """
    if len(vectors) == 1:
        return vectors[0]
    matrices = max(x.shape[0] for x in vectors)
    for_each_matrix = [x.broadcast_to((matrices, x.shape[1])) for x in vectors]
    return join(for_each_matrix, axis=1)


class Gradients(NamedTuple):
    """The gradient of a loss by each parameter of a step, with one part per unit."""

    terms: dict[Source, list[Term]]  # of each matrix
    # Of each initial value: pairs of a unit and a cotangent. Equal initial vectors have
    # the sum of their gradients.
    leaves: dict[Value, list[tuple[str | None, Any]]]
    latest: dict[Source, tuple[OptimiserStep, ...]]  # the steps of each matrix so far


def _latest_steps(
    values: Sequence[Value],
) -> dict[Source, tuple[OptimiserStep, ...]]:
    """All steps of each matrix that the values depend on, up to its last one."""
    latest: dict[Source, tuple[OptimiserStep, ...]] = {}
    for value in topological_order(values, past=False):
        if isinstance(value.op, Acting):
            source = value.op.weight.source
            steps = steps_of(value.op)
            latest[source] = max(latest.get(source, ()), steps, key=len)
    return latest


def gradients(p: Scalar, outputs: Sequence[Value], chosen: Parameters) -> Gradients:
    """The gradient of Σ p by the chosen parameters.

    They are those after the last step that `outputs` depend on.
    """
    latest = _latest_steps([p, *outputs])

    def counts(op: Acting) -> bool:
        """Skip uses of a matrix before its last step: they belong to earlier steps."""
        return steps_of(op) == latest[op.weight.source] and chosen.counts(op)

    seed = [(p, constant(np.ones(p.shape)))]
    without_unit = Reverse(seed, chosen.leaves, chosen=counts, unit=None)
    terms: dict[Source, list[Term]] = {}
    leaves: dict[Value, list[tuple[str | None, Any]]] = {}
    for unit in without_unit.units:
        reverse = without_unit
        if unit is not None:
            reverse = Reverse(seed, chosen.leaves, chosen=counts, unit=unit)
        for use in reverse.uses:
            use_terms = terms_of(output=0, use=use, chosen=chosen, unit=unit)
            terms.setdefault(use.op.weight.source, []).extend(use_terms)
        for leaf in chosen.leaves:
            d = reverse.cotangent(leaf)
            equal = _equal_vectors(leaf)
            if equal is not None:
                d = mix(constant(equal), d.reshape(-1)).reshape(*leaf.shape)
            leaves.setdefault(leaf, []).append((unit, d))
    return Gradients(terms, leaves, latest)


def _equal_vectors(leaf: Value) -> Floats | None:
    """Which initial vectors are equal, as a matrix of 0 and 1; None if all differ.

    Equal vectors are one parameter, as for a token that occurs twice. For example,
    three vectors, the first two equal, have the rows [1, 1, 0], [1, 1, 0]
    and [0, 0, 1].
    """
    law = initial_value(leaf)[0].op
    if not isinstance(law, Gaussian):
        return None
    # vector i is mean_i + Σ_k factor_ik E_k: equal rows are equal vectors
    factor = law.factor.reshape(leaf.size, -1)
    rows = np.column_stack([law.mean.ravel(), factor])
    _, group = np.unique(rows, axis=0, return_inverse=True)
    group = group.ravel()
    cov = factor @ factor.T
    variance = np.diagonal(cov)
    # biases that start at equal numbers are separate parameters
    equal = (group[:, None] == group) & (variance > 0)
    equal |= np.eye(leaf.size, dtype=bool)
    largest_cov = np.sqrt(np.outer(variance, variance))
    if (np.abs(cov) > CORRELATED * largest_cov)[~equal].any():
        raise TraceError(
            "step",
            f"weights={leaf!r} are correlated: write them as sums of independent ones",
        )
    if equal.sum() == leaf.size:
        return None
    groups: Floats = equal.astype(np.float64)
    return groups


def clipped(gradient: Gradients, max_norm: float) -> Gradients:
    """Gradients times min(1, max_norm/(norm + 1e-6)), the norm over all of them."""
    squares = []
    for matrix_terms in gradient.terms.values():
        for product in _products(matrix_terms, q_terms=None, standard=True):
            squares.append(product.gram.sum())
    for leaf, cotangents in gradient.leaves.items():
        squares.append(_squared_norm(leaf, cotangents))
    total = reduce(operator.add, squares)
    f = Function("clip_norm", partial(_clip_factor, max_norm=max_norm), lipschitz=True)
    factor = applied(f, (total,), ())

    terms: dict[Source, list[Term]] = {}
    for source, matrix_terms in gradient.terms.items():
        scaled = [replace(term, left=factor * term.left) for term in matrix_terms]
        terms[source] = scaled
    leaves: dict[Value, list[tuple[str | None, Any]]] = {}
    for leaf, cotangents in gradient.leaves.items():
        leaves[leaf] = [(unit, factor * d) for unit, d in cotangents]
    return Gradients(terms, leaves, gradient.latest)


def _squared_norm(leaf: Value, cotangents: Sequence[tuple[str | None, Any]]) -> Scalar:
    """|∂L/∂x|² of initial vectors or random scalars; equal vectors count once.

    `cotangents` are pairs of a unit and the cotangent in this unit.
    """
    in_one_unit = []
    for unit, cotangent in cotangents:
        under = (Width(unit),) if unit else ()
        in_one_unit.append(scale(width_ratio((), under), cotangent))
    d: Any = reduce(operator.add, in_one_unit).reshape(-1)
    if isinstance(d, Vector):
        squares = mean_dot(d[:, None], d[:, None])[:, 0, 0]
    else:
        squares = d * d
    equal = _equal_vectors(leaf)  # (vectors, vectors)
    if equal is not None:
        # each of k equal vectors has the sum of all k gradients
        squares = squares * (1.0 / equal.sum(axis=1))
    return squares.sum()


def _clip_factor(squared_norm: Any, max_norm: float) -> Any:
    """min(1, max_norm/(norm + 1e-6))."""
    xp = array_namespace(squared_norm)
    norm = xp.sqrt(xp.clip(squared_norm, 0.0, None))
    return xp.clip(max_norm / (norm + CLIP_EPS), None, 1.0)
