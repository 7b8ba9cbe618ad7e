"""Replaces rotary positions of infinitely wide vectors by copies of what made them.

Identity: let q and k be independent vectors of width d, and R_t the rotation of
position t, with angles t θ for θ = base^(−u) and u spread over 0 < u < 1. Then
d^(−1/2) ⟨R_s q, R_t k⟩ depends only on the gap r = t − s. As d → ∞ it is a Gaussian
process N(r): its covariance is that of d^(−1/2) ⟨q, k⟩ (equation 2 of docs/theory.md)
times κ(r − r') = ∫ cos((r − r') base^(−u)) du. With κ = L Lᵀ over all gaps of the
program,

    d^(−1/2) ⟨R_s q, R_t k⟩ = Σ_m L_rm d^(−1/2) ⟨q_m, k⟩

in law, where the q_m are copies of q by independent matrices. The gap 0 comes first, so
that q_0 = q, and scores with and without positions have the right joint law. Means over
coordinates are d^(−1) ⟨R_s q, R_t k⟩ = κ(r) d^(−1) ⟨q, k⟩.

Rotations that are used for anything else than products stay, and lowering rejects them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import NamedTuple, cast

import numpy as np
import scipy

from ..._array_api import Floats, Ints
from ...language.operations._operation import Add, Dot, Join, MatMul, Source, Take
from ...language.operations._rotary import Rotate, Stretch
from ...language.values._array import Operation, Value
from ...language.values._scalar import Scalar, constant
from ...language.values._vector import Gaussian, Mix, Nonlin, Scale, Vector
from ..graph._rewrite import Context, rewritten

# Residual variance of N(r), for a variance of 1, that counts as rounding
NEGLIGIBLE = 1e-13
# The quadrature for stretched frequencies: its least and most panels, and the nodes of
# each
MIN_PANELS = 4
MAX_PANELS = 2**12
NODES_PER_PANEL = 16
# A random vector: the products with a member of a weight, or initial vectors (member 0)
Leaf = tuple[Source, int]
LINEAR_OR_ENTRYWISE = (Add, Join, Mix, Nonlin, Scale, Take)


@dataclass(frozen=True)
class Angles:
    """The frequencies by which positions rotate, θ = base^(−u), 0 < u < 1."""

    base: float
    fraction: float  # of the coordinates that are rotated
    stretch: Stretch | None
    interleaved: bool

    def kappa(self, r: Floats) -> Floats:
        """κ(r) = 1 − fraction + fraction ∫₀¹ cos(r base^(−u)) du, for gaps r.

        The integral is (Ci(r) − Ci(r/base))/log(base), unless frequencies are
        stretched. κ is the covariance of N(s) and N(s + r), see the top of the file.
        """
        gap = np.abs(np.asarray(r, dtype=np.float64))
        if self.base == 1.0:
            mean_cosine = np.cos(gap)
        elif self.stretch is not None:
            mean_cosine = self._mean_stretched_cosine(self.stretch, gap)
        else:
            mean_cosine = _integral(gap, 1.0, 1 / self.base) / math.log(self.base)
        mean_cosine = np.where(gap > 0, mean_cosine, 1.0)
        not_rotated = 1.0 - self.fraction
        return np.asarray(not_rotated + self.fraction * mean_cosine)

    def _mean_stretched_cosine(self, stretch: Stretch, gap: Floats) -> Floats:
        """The mean cosine ∫ cos(r θ') dθ/θ / log(base) of stretched frequencies θ'.

        High frequencies are kept, θ' = θ, and low ones divided, θ' = θ/factor: these
        integrals are exact. Between, it is a quadrature.
        """
        lowest = 1 / self.base
        per_turn = 2 * math.pi / stretch.original
        high = min(1.0, max(lowest, per_turn * stretch.high))
        low = min(1.0, max(lowest, per_turn * stretch.low))
        total = _integral(gap, 1.0, high)
        total = total + _integral(gap / stretch.factor, low, lowest)
        if low < high:
            total = total + _integral_by_quadrature(stretch, gap, low, high)
        return np.asarray(total / math.log(self.base))


def _integral_by_quadrature(
    stretch: Stretch, gap: Floats, low: float, high: float
) -> Floats:
    """∫ cos(r θ') dθ/θ from low to high, for stretched frequencies θ' and gaps r.

    By Gauss–Legendre in equal panels of log θ. As θ' is at most θ, and a parabola in
    it, the phase r θ' grows by r high (1 + high/(high − low)) at most per unit of log
    θ. So a panel has at most log(high/low) (1 + high/(high − low))/2 turns: 1.6 for the
    factors 4 and 1 of Llama 3. 16 nodes integrate 2 turns to rounding, and 3.5 turns,
    for factors 32 and 1, to 1e-11.
    """
    distinct_gaps, position = np.unique(gap, return_inverse=True)
    turns = float(gap.max(initial=0.0)) * high / (2 * math.pi)
    panels = MIN_PANELS + math.ceil(2 * turns)
    if panels > MAX_PANELS:
        raise ValueError(
            "rotary positions too far apart for the stretched frequencies of a limit"
        )
    # the nodes of all panels, in log θ, and their weights
    edges = np.linspace(math.log(low), math.log(high), panels + 1)
    half_lengths = 0.5 * np.diff(edges)[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)  # on (−1, 1)
    log_theta = edges[:-1, None] + half_lengths * (1 + nodes)
    theta = stretch.of(np.exp(log_theta)).ravel()
    weights_of_nodes = (half_lengths * weights).ravel()

    # (distinct gaps, nodes): of thousands of positions most pairs have equal gaps
    cosines = np.cos(distinct_gaps[:, None] * theta)
    integrals = cosines @ weights_of_nodes
    return np.asarray(integrals[position].reshape(gap.shape))


def _integral(r: Floats, top: float, bottom: float) -> Floats:
    """∫ cos(r θ) dθ/θ from bottom to top, for r ≥ 0.

    It is Ci(r top) − Ci(r bottom) with the cosine integral Ci, and log(top/bottom) for
    r = 0.
    """
    is_positive = r > 0
    safe_r = np.where(is_positive, r, 1.0)
    _, ci_of_top = scipy.special.sici(safe_r * top)
    _, ci_of_bottom = scipy.special.sici(safe_r * bottom)
    at_zero = math.log(top / bottom)
    return np.where(is_positive, ci_of_top - ci_of_bottom, at_zero)


@dataclass(frozen=True, eq=False)
class Rotated:
    """R_{t_i} x_i: vectors before their rotation, and a position t_i for each."""

    x: Vector
    positions: Floats  # with the shape of x
    angles: Angles | None  # None if the vectors are not rotated


class RotatedProduct(NamedTuple):
    """A product of vectors of which at least one side is rotated."""

    x: Rotated
    y: Rotated
    angles: Angles  # of both sides


@dataclass
class Process:
    """N(r) of all scores with the same angles: the gaps r, and the root L of κ.

    Gaps are added to `gaps`; `factor` then computes the root.
    """

    gaps: set[float] = field(default_factory=lambda: {0.0})
    # the gaps in the order of the rows of the root
    ordered: Floats = field(default_factory=lambda: np.zeros(1))
    root: Floats = field(default_factory=lambda: np.ones((1, 1)))

    def factor(self, angles: Angles) -> None:
        """Compute L with κ(r − r') = L Lᵀ, by a Cholesky decomposition with pivots."""
        gaps = np.array([0.0, *sorted(self.gaps - {0.0})])
        self.ordered = gaps
        residual = angles.kappa(gaps[:, None] - gaps)
        columns = []
        pivot = 0  # the gap 0 first, then the largest residual variance
        while residual[pivot, pivot] > NEGLIGIBLE:
            std = math.sqrt(residual[pivot, pivot])
            column = residual[:, pivot] / std
            columns.append(column)
            residual = residual - np.outer(column, column)
            pivot = int(np.argmax(np.diagonal(residual)))
        self.root = np.stack(columns, axis=1)

    def rows(self, gap: Floats) -> Floats:
        """The row of L for each gap, (*shape of gap, copies)."""
        return self.root[_positions_in(self.ordered, gap)]


def _positions_in(values: Floats, numbers: Floats) -> Ints:
    """The position of each number in an array that contains it."""
    order = np.argsort(values)
    return order[np.searchsorted(values, numbers, sorter=order)]


def expand_rotary(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Replace products of rotated vectors of infinite width.

    See the top of the file for the identity.
    """
    values = context.ordered(outputs)
    if not any(
        isinstance(value.op, Rotate) and math.isinf(context.width(value))
        for value in values
    ):
        return list(outputs)
    limit = _RotaryLimit(context)
    for value in values:
        limit.collect(value)
    limit.prepare()
    return rewritten(outputs, context, limit.change)


class _Link(NamedTuple):
    """Another random vector of the same score."""

    leaf: Leaf
    is_opposite: bool  # whether it belongs to the other factor


class _RotaryLimit:
    """The rotations of one program, collected first, and the rewrite without them.

    Attributes
    ----------
    rotated : dict
        The values that are rotations of other vectors.
    scores : list of RotatedProduct
        The scores of rotated vectors.
    angles_of : dict
        For each random vector, all angles of the scores that it is in.
    copied : dict
        For each random vector, whether scores take copies of it, or of the other side.
    processes : dict
        The gaps and the root for each kind of angles.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rotated: dict[Value, Rotated] = {}
        self.scores: list[RotatedProduct] = []
        self.angles_of: dict[Leaf, set[Angles]] = {}
        self.copied: dict[Leaf, bool] = {}
        self.processes: dict[Angles, Process] = {}
        # by the original, and the number of the copy
        self._sources: dict[tuple[Source, int], Source] = {}
        self._copies: dict[tuple[Value, int], Value] = {}

    # First pass: which gaps are needed, and which side of each score to copy

    def collect(self, value: Value) -> None:
        """Note a rotation or a score of the program; call it in program order."""
        if isinstance(value, Vector):
            rotated = self._rotation(value)
            if rotated is not None:
                self.rotated[value] = rotated
        elif isinstance(value.op, Dot) and value.op.is_score:
            score = self._rotated_product(value.op)
            if score is None:
                return
            self.scores.append(score)
            for leaf in _leaves(score.x.x) + _leaves(score.y.x):
                self.angles_of.setdefault(leaf, set()).add(score.angles)

    def prepare(self) -> None:
        """Choose the sides to copy, and factor the covariances κ of all gaps."""
        self._choose_sides()
        for x, y, angles in self.scores:
            if self._has_law(x.x, y.x):
                process = self.processes.setdefault(angles, Process())
                process.gaps.update(np.unique(self._gaps(x, y)).tolist())
        for angles, process in self.processes.items():
            process.factor(angles)

    def _choose_sides(self) -> None:
        """Decide for each random vector whether its scores take copies of it."""
        # Each random vector is copied in all its scores or in none, and its partners
        # are not, or are: a colouring of the leaves by two colours.
        links = self._links()
        for start in links:
            if start in self.copied:
                continue
            self.copied[start] = True
            pending = [start]
            while pending:
                leaf = pending.pop()
                for link in links[leaf]:
                    if link.leaf not in self.copied:
                        self.copied[link.leaf] = self.copied[leaf] ^ link.is_opposite
                        pending.append(link.leaf)

    def _links(self) -> dict[Leaf, list[_Link]]:
        """For each random vector, those whose copying decides about its own.

        All random vectors of one side of a score are copied, or none; those of the
        other side are not, or are.
        """
        links: dict[Leaf, list[_Link]] = {}

        def connect(a: Leaf, b: Leaf, is_opposite: bool) -> None:
            """Link two leaves in both directions."""
            links.setdefault(a, []).append(_Link(b, is_opposite))
            links.setdefault(b, []).append(_Link(a, is_opposite))

        for x, y, _ in self.scores:
            x_leaves = _leaves(x.x)
            y_leaves = _leaves(y.x)
            if not (x_leaves and y_leaves):
                continue
            connect(x_leaves[0], y_leaves[0], is_opposite=True)
            for leaf in x_leaves:
                connect(x_leaves[0], leaf, is_opposite=False)
            for leaf in y_leaves:
                connect(y_leaves[0], leaf, is_opposite=False)
        return links

    def _rotation(self, value: Vector) -> Rotated | None:
        """The rotation of vectors, or None if they are not rotated.

        A rotation commutes with selections, multiples and concatenations of vectors.
        """
        op = value.op
        if isinstance(op, Rotate):
            return self._after_rotation(value, op)
        if isinstance(op, Take) and op.x in self.rotated:
            x = self.rotated[op.x]
            unrotated = replace(value, op=replace(op, x=x.x))
            positions = x.positions.ravel()[op.flat].reshape(value.shape)
            return Rotated(unrotated, positions, x.angles)
        if isinstance(op, Scale) and op.x in self.rotated:
            x = self.rotated[op.x]
            unrotated = replace(value, op=replace(op, x=x.x))
            positions = np.broadcast_to(x.positions, value.shape)
            return Rotated(unrotated, positions, x.angles)
        if isinstance(op, Join) and self.rotated.keys() >= set(op.parts):
            return self._concatenation(value, op)
        return None

    def _after_rotation(self, value: Vector, op: Rotate) -> Rotated | None:
        """The rotation R_t R_s x = R_(t+s) x; None at finite width, or for two kinds of
        angles.
        """
        if not math.isinf(self.context.width(value)):
            return None
        angles = Angles(op.base, op.fraction, op.stretch, op.interleaved)
        positions = np.broadcast_to(op.positions, value.shape)
        before = self.rotated.get(op.x)
        if before is None:
            return Rotated(op.x, positions, angles)
        if before.angles != angles:
            return None
        return Rotated(before.x, before.positions + positions, angles)

    def _concatenation(self, value: Vector, op: Join) -> Rotated | None:
        """The rotation of rotated vectors end to end, if all have the same angles."""
        rotated_parts = [self.rotated[part] for part in op.parts]
        angles = rotated_parts[0].angles
        if any(rotated.angles != angles for rotated in rotated_parts):
            return None
        parts = tuple([rotated.x for rotated in rotated_parts])
        unrotated = replace(value, op=replace(op, parts=parts))
        positions = np.concatenate([rotated.positions for rotated in rotated_parts])
        return Rotated(unrotated, positions, angles)

    def _rotated_product(self, op: Dot) -> RotatedProduct | None:
        """The factors of a product, and their angles.

        None if neither is rotated, or if they are rotated by different angles.
        """

        def side(factor: Vector) -> Rotated:
            """One side of a score as rotated vectors; with angles of None if it is not
            rotated.
            """
            unrotated = Rotated(factor, np.zeros(factor.shape), angles=None)
            return self.rotated.get(factor, unrotated)

        x = side(op.x)
        y = side(op.y)
        angles = x.angles if x.angles is not None else y.angles
        if angles is None:
            return None
        if y.angles is not None and y.angles != angles:
            return None
        return RotatedProduct(x, y, angles)

    # Second pass: the products

    def change(self, old: Value, new: Value) -> Value:
        """What replaces a value, given its copy on rewritten inputs."""
        if isinstance(new, Vector):
            rotated = self._rotation(new)
            if rotated is not None:
                self.rotated[new] = rotated
            return new
        if not isinstance(new.op, Dot) or not isinstance(old.op, Dot):
            return new
        factors = self._rotated_product(new.op)
        if factors is None:
            return new
        x, y, angles = factors
        if new.op.power == 1.0:
            mean = cast(Scalar, replace(new, op=replace(new.op, x=x.x, y=y.x)))
            gap = y.positions[..., None, :] - x.positions[..., :, None]
            if not gap.any():
                return mean
            return constant(angles.kappa(gap)) * mean
        if not self._has_law(x.x, y.x):
            return new
        rows = self.processes[angles].rows(self._gaps(x, y))
        return self._score(new, new.op, x.x, y.x, rows)

    def _gaps(self, x: Rotated, y: Rotated) -> Floats:
        """The gaps r of all pairs of a score, (…, i, j) for x (…, i) and y (…, j).

        Positions of the side that is kept, less those of the side that is copied.
        """
        gap = y.positions[..., None, :] - x.positions[..., :, None]
        first_leaf = _leaves(x.x)[0]  # all leaves of x are copied, or none
        copies_x = self.copied[first_leaf]
        return gap if copies_x else -gap

    def _has_law(self, x: Vector, y: Vector) -> bool:
        """Whether copies of one factor give scores with the right joint law.

        All random vectors of one factor must be copied, and none of the other.
        """
        if not (_is_copyable(x) and _is_copyable(y)):
            return False
        x_leaves = _leaves(x)
        y_leaves = _leaves(y)
        if any(len(self.angles_of[leaf]) > 1 for leaf in x_leaves + y_leaves):
            return False  # κ for gaps of two kinds of angles is not implemented
        copied_x = {self.copied.get(leaf) for leaf in x_leaves}
        copied_y = {self.copied.get(leaf) for leaf in y_leaves}
        return (copied_x, copied_y) in (({True}, {False}), ({False}, {True}))

    def _score(
        self, value: Value, op: Dot, x: Vector, y: Vector, rows: Floats
    ) -> Value:
        """Σ_m L_rm ⟨x_m, y⟩, or Σ_m L_rm ⟨x, y_m⟩ if y is copied.

        `rows`, (*shape of the scores, copies), has L_rm for the gap r of each score.
        """
        copies_x = self.copied[_leaves(x)[0]]
        terms: list[Scalar] = []
        for m in range(rows.shape[-1]):
            weights = rows[..., m]
            if not weights.any():
                continue
            if copies_x:
                factors = replace(op, x=cast(Vector, self._copy(x, m)), y=y)
            else:
                factors = replace(op, x=x, y=cast(Vector, self._copy(y, m)))
            product = cast(Scalar, replace(value, op=factors))
            terms.append(constant(weights) * product)
        return reduce(add, terms)

    def _copy(self, value: Value, m: int) -> Value:
        """Copy number m of vectors, by independent matrices; the original for m = 0."""
        if m == 0:
            return value
        key = value, m
        if key not in self._copies:
            self._copies[key] = replace(value, op=self._copied_operation(value, m))
        return self._copies[key]

    def _copied_operation(self, value: Value, m: int) -> Operation:
        """The operation of a value with copies of its sources, or on copied inputs."""
        op = value.op
        if isinstance(op, MatMul):
            source = self._source(op.weight.source, m)
            return replace(op, weight=replace(op.weight, source=source))
        if isinstance(op, Gaussian):
            return replace(op, source=self._source(op.source, m))
        inputs: list[Value] = []
        for x in op.inputs:
            inputs.append(self._copy(x, m) if isinstance(x, Vector) else x)
        return op.with_inputs(*inputs)

    def _source(self, source: Source, m: int) -> Source:
        """Copy number m of a source: one with independent random numbers."""
        key = source, m
        if key not in self._sources:
            self._sources[key] = Source(source.name, source.std_factor)
        return self._sources[key]


def _leaves(x: Value) -> list[Leaf]:
    """The random vectors that vectors are a function of, without those behind matrices.

    They are products with members of weights, and initial vectors.
    """
    leaves: dict[Leaf, None] = {}  # in order, so that seeds do not depend on hashes
    seen = {x}
    pending = [x]
    while pending:
        value = pending.pop()
        op = value.op
        if isinstance(op, MatMul):
            for member in op.weight.members.ravel().tolist():
                leaves[op.weight.source, member] = None
        elif isinstance(op, Gaussian):
            leaves[op.source, 0] = None
        else:
            for x in op.inputs:
                if isinstance(x, Vector) and x not in seen:
                    seen.add(x)
                    pending.append(x)
    return list(leaves)


def _is_copyable(x: Value) -> bool:
    """Whether all operations between the random vectors and x act on coordinates."""
    if isinstance(x.op, MatMul | Gaussian):
        return True
    if not isinstance(x.op, LINEAR_OR_ENTRYWISE):
        return False
    vectors = [v for v in x.op.inputs if isinstance(v, Vector)]
    return bool(vectors) and all(_is_copyable(v) for v in vectors)
