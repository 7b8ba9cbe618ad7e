"""The exact interpreter: the law of a program at any width, finite or infinite, without drawing a weight matrix.

Given its inputs, the rows of (W x^1, …, W x^k) are i.i.d. N(0, σ_W² G), G_ij = ⟨x^i, x^j⟩/in. If σ_W² G = C C^T, then
(W x^i)_i = C E, with E fresh standard isotropic vectors: the sources. A vector is kept as its coordinates in the frame
of its cluster (see `_frame`), so that products are sums over a few directions in place of n coordinates.

Vectors are arrays (replicas or 1, *shape, blocks, directions); scalars (replicas or 1, *shape). What does not vary
between replicas has one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..language._operation import (
    Add,
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Scale,
    Source,
    Take,
)
from ..language._value import Scalar, Value, Vector
from ._compact import compact
from ._coordinates import (
    PARTS,
    Coordinates,
    array_namespace,
    concatenated,
    factor,
    joined,
    lined_up,
    merged,
    mixed,
    padded,
    picked,
    plus,
    product,
    products,
    scaled,
    scattered,
    shaped,
    square_sum,
    swapped,
    taken,
    transposed,
)
from ._error import ExactError
from ._frame import SAMPLE, Frame, Streams
from ._limit import Limit
from ._plan import Plan
from ._reuse import projected
from ._rewrite import Fuse

Array = Any


class Exact:
    """One run of a plan for a number of replicas: evaluates every value in order."""

    def __init__(self, plan: Plan, streams: Streams, asarray: Callable[[Array], Array]) -> None:
        self.plan, self.streams, self.asarray = plan, streams, asarray
        self.frames = {group: Frame(group, streams) for group in plan.groups}
        self.limit = Limit(plan, self.frames, asarray)
        self.vectors: dict[Value, Coordinates] = {}
        self.scalars: dict[Value, Array] = {}
        self.used: dict[Source, list[Value]] = {}  # the MatMuls of each matrix, so far
        self.factors: dict[tuple[Value, bool, bool], Array] = {}
        self.columns = 1  # of `sample`: the value, then a Gaussian variable each
        for index, value in enumerate(plan.values):
            if isinstance(value, Vector):
                self.vectors[value] = self.vector(value)
                for group in plan.groups:
                    if group.nonlinear and group.nonlinear[-1] is value:
                        compact(self, group, plan.values[index + 1 :])
            elif isinstance(value, Scalar):
                self.scalars[value] = self.scalar(value)

    # Vectors

    def vector(self, value: Vector) -> Coordinates:
        """The coordinates of a value, by the rule for its operation."""
        match value.op:
            case Gaussian(_, mean, factor):
                return self.gaussian(value, mean, factor)
            case Data(vectors):
                return Coordinates(self.asarray(vectors.reshape(1, *value.shape, self.plan.blocks_of(value), -1)))
            case MatMul():
                return self.matmul(value)
            case Fuse(x):
                return self.fuse(value, x)
            case Nonlin(f, vectors, scalars):
                given = [self.lined_up(x, value.ndim) for x in vectors]
                numbers = [lined_up(self.scalars[p], p.ndim, value.ndim)[..., None, None] for p in scalars]
                if math.isinf(self.plan.widths[value.width]):
                    return self.limit.nonlin(f, list(zip(vectors, given, strict=True)), numbers)
                return Coordinates(f(*(c.lead for c in given), *numbers))
            case Add(x, y):
                return self.linear(value, lambda a, b: a + b, [x, y], value.ndim)
            case Scale(c, x):
                scale = lined_up(self.scalars[c], c.ndim, value.ndim)[..., None, None]
                return self.linear(value, lambda a: scale * a, [x], value.ndim)
            case Mix(a, x):
                weights = lined_up(self.scalars[a], a.ndim, value.ndim + 1)
                return self.linear(value, lambda v: mixed(weights, v), [x], value.ndim)
            case Concat(x, axis):
                return self.linear(value, lambda a: concatenated(a, axis), [x])
            case Take(x, flat):
                return self.linear(value, lambda a: taken(a, x.ndim, flat), [x])
            case Join(parts):
                return self.linear(value, joined, parts)
        raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")

    def lined_up(self, x: Value, ndim: int) -> Coordinates:
        """The coordinates of a value, ready to broadcast to more axes."""
        return self.vectors[x].each(lambda a: lined_up(a, x.ndim, ndim))

    def linear(
        self, value: Value, act: Callable[..., Array], inputs: Sequence[Value], ndim: int | None = None
    ) -> Coordinates:
        """A linear operation acts on every part of the coordinates alike."""
        given = [self.vectors[x] for x in inputs]
        if isinstance(value.op, Take) and given[0].f is not None:  # still a function of Gaussian vectors
            return given[0].each(act)
        if any(c.nonlinear for c in given):
            given = [replace(c, nodes=self.limit.at_nodes(x, c), f=None) for x, c in zip(inputs, given, strict=True)]
        parts = {}
        for name in PARTS:
            arrays = [getattr(c, name) for c in given]
            if all(a is None for a in arrays):
                continue
            width = max(a.shape[-1] for a in arrays if a is not None)
            arrays = [padded(c.lead[..., :0] if a is None else a, width) for a, c in zip(arrays, given, strict=True)]
            if ndim is not None:
                arrays = [lined_up(a, x.ndim, ndim) for a, x in zip(arrays, inputs, strict=True)]
            parts[name] = act(*arrays)
        return Coordinates(**parts)

    def gaussian(self, value: Vector, mean: Array, factor: Array) -> Coordinates:
        """h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k."""
        blocks, rank = self.plan.blocks_of(value), factor.shape[-1]
        combine = self.asarray(factor.reshape(1, value.size, rank))

        def combined(e: Array) -> Array:  # from (replicas, rank · blocks, 1, directions)
            made = combine @ shaped(e, e.shape[0], rank, blocks * e.shape[-1])
            return shaped(made, e.shape[0], *value.shape, blocks, e.shape[-1])

        result = self.sources(value, rank * blocks, 1).each(combined)
        return self.shifted(value, result, mean[None, ..., None]) if mean.any() else result

    def shifted(self, value: Vector, x: Coordinates, mean: Array) -> Coordinates:
        """x + mean · (1, …, 1); the mean is an array (replicas or 1, *shape, blocks or 1)."""
        constant = self.constant(value)
        shift = self.asarray(mean)[..., None]
        width = max(constant.shape[-1], x.lead.shape[-1])
        lead = padded(x.lead, width) + shift * padded(constant, width)
        sample = x.sample
        if value in self.plan.coordinates and math.isinf(self.plan.widths[value.width]):
            sample = plus(sample, shift * self.asarray(np.ones(1)))
        return replace(x, lead=lead, sample=sample)

    def constant(self, value: Vector) -> Array:
        """The coordinates of (1, …, 1) in the frame of each vector of a value; 0 where its cluster has no means."""
        shape = (*value.shape, self.plan.blocks_of(value))
        parts = []
        for group in self.plan.groups_of(value):
            frame, count = self.frames[group], group.positions[value].shape[1]
            row = np.zeros((1, group.frames, 0)) if frame.constant is None else np.asarray(frame.constant)
            parts.append((group.positions[value], np.repeat(row[:, :, None], count, axis=2)))
        rows = scattered(parts)
        return self.asarray(shaped(rows, rows.shape[0], *shape, rows.shape[-1]))

    def matmul(self, value: Vector) -> Coordinates:
        """W x = C E; for a matrix that acted before, W x = (W X) X⁺ x + C E for what of x is orthogonal to X."""
        assert isinstance(value.op, MatMul)
        weight, x, each = value.op.weight, value.op.x, value.op.each
        members, blocks = weight.members.size, self.plan.blocks_of(value)
        drawn = value in self.plan.drawn or value in self.plan.virtual
        earlier = self.used.setdefault(weight.source, [])
        known: Coordinates | None = None
        if earlier:
            inputs, known = projected(self, value, earlier)
            c = self.reduced(inputs) if drawn or inputs.shape[-2] == 1 else inputs
        else:
            key = x, each, drawn
            if key not in self.factors:
                inputs, norm = self.unscaled(x, members if each else 1)
                # sources that are never drawn cost nothing, but a norm costs less than many of them
                inputs = self.reduced(inputs) if drawn or inputs.shape[-2] == 1 else inputs
                self.factors[key] = inputs * (1.0 / norm)
            c = self.factors[key]
        earlier.append(value)
        c = weight.std * c

        def multiplied(e: Array) -> Array:  # from (replicas, members · blocks, sources, directions)
            e = swapped(shaped(e, e.shape[0], members, blocks, *e.shape[2:]), 3, 4)
            factor = transposed(c)[:, :, None, ...]
            # (replicas, members, blocks, directions, vectors); fresh sources may be changed in place
            made = scaled(e, factor) if c.shape[-2:] == (1, 1) else product(e, factor)
            return swapped(swapped(made, 3, 4), 2, 3)  # (replicas, members, vectors, blocks, directions)

        made = self.sources(value, members * blocks, c.shape[-1]).each(multiplied)
        if known is not None:
            made = Coordinates(**{name: plus(getattr(made, name), getattr(known, name)) for name in PARTS[:3]})
        return made.each(lambda a: shaped(a, a.shape[0], *value.shape, blocks, a.shape[-1]))

    def rows(self, x: Value, copies: int) -> Array:
        """Vectors as rows (replicas, copies, vectors, ·) whose products are ⟨x^i, x^j⟩/in."""
        rows, norm = self.unscaled(x, copies)
        return rows * (1.0 / norm)

    def unscaled(self, x: Value, copies: int) -> tuple[Array, float]:
        """The same rows before they are divided by a number, and that number: it is cheaper to divide later."""
        c = self.vectors[x]
        if c.nonlinear:
            rows = self.arranged(x, c, copies)
            return factor(self.limit.gram(rows, rows)), 1.0
        lead = shaped(c.lead, c.lead.shape[0], copies, x.size // copies, *c.lead.shape[-2:])
        return merged(lead), self.norm(x)

    def arranged(self, x: Value, c: Coordinates, copies: int) -> tuple[Coordinates, Array]:
        """Vectors as (replicas, copies, vectors, blocks, ·), with their Gaussian means."""
        mean = self.limit.mean(x, c)
        size = x.size // copies
        return (
            c.each(lambda a: shaped(a, a.shape[0], copies, size, *a.shape[-2:])),
            mean.reshape(mean.shape[0], copies, size, mean.shape[-1]),
        )

    def norm(self, x: Value) -> float:
        """What coordinates are divided by so that their products are means over the coordinates α."""
        assert isinstance(x, Vector)
        width = self.plan.widths[x.width]
        return math.sqrt(self.plan.blocks_of(x) * (1.0 if math.isinf(width) else width))

    def reduced(self, rows: Array) -> Array:
        """C with the products of the rows: the rows, or a factor of their Gram matrix if that takes fewer sources."""
        if rows.shape[-1] <= rows.shape[-2]:
            return rows
        if rows.shape[-2] == 1:
            return array_namespace(rows).sqrt(square_sum(rows))[..., None]
        return factor(rows @ transposed(rows))

    def fuse(self, value: Vector, x: Vector) -> Coordinates:
        """Fresh sources for vectors that are linear in sources of their own: x = C E with C C^T their covariance."""
        places = self.plan.parts[value]  # (members, vectors of each)
        lead = self.vectors[x].lead
        xp = array_namespace(lead)
        flat = shaped(lead, lead.shape[0], places.size, lead.shape[-1])
        rows = shaped(picked(flat, places.ravel()), flat.shape[0], *places.shape, lead.shape[-1])
        constant = self.constant(x)
        has_mean = constant.shape[-1] > 0
        mean = None
        if has_mean:  # the first direction of these frames
            square = xp.sum(constant * constant, axis=-1)
            mean = xp.sum(lead[..., : constant.shape[-1]] * constant, axis=-1) / xp.where(square > 0, square, 1.0)
            rows = rows[..., 1:]
        c = self.reduced(rows)
        back = np.argsort(places.ravel())

        def multiplied(e: Array) -> Array:  # from (replicas, members, sources, directions)
            made = product(c, e)
            made = picked(shaped(made, made.shape[0], places.size, made.shape[-1]), back)
            return shaped(made, made.shape[0], *value.shape, self.plan.blocks_of(value), made.shape[-1])

        made = self.sources(value, len(places), c.shape[-1]).each(multiplied)
        return made if mean is None else self.shifted(value, made, mean)

    def sources(self, value: Value, slots: int, sources: int) -> Coordinates:
        """Fresh standard isotropic vectors, so many for each slot (member and block): (replicas, slots, sources, ·)."""
        plan, number = self.plan, self.plan.origin[value]
        lead: Array = np.zeros((1, slots, sources, 0))
        fluct: Array = None
        if slots and (value in plan.drawn or value in plan.virtual):
            leads, flucts = [], []
            for group in plan.groups:
                if value not in group.slots:
                    continue
                places, frame = group.slots[value], self.frames[group]
                count = places.shape[1] * sources
                if value in plan.virtual:
                    a, b = frame.unit(count), None
                else:
                    kind = (value in s for s in (plan.leaves, plan.scored, plan.scored_within))
                    a, b = frame.grow(number, count, *kind)
                leads.append((places, shaped(a, *a.shape[:2], places.shape[1], sources, a.shape[-1])))
                if b is not None:
                    flucts.append((places, shaped(b, *b.shape[:2], places.shape[1], sources, b.shape[-1])))
                elif value in plan.scored and frame.infinite:
                    flucts.append((places, 0.0 * leads[-1][1]))
            lead = scattered(leads)
            fluct = scattered(flucts) if flucts else None
        sample: Array = None
        if value in plan.coordinates and (math.isinf(plan.width_of(value)) or value not in plan.drawn):
            if value in plan.into_nonlin and math.isinf(plan.width_of(value)):
                sample = self.streams.normals(number, SAMPLE, slots, sources)[..., None]
            else:  # a Gaussian variable each, never drawn
                sample = np.eye(slots * sources, self.columns + slots * sources, self.columns)
                sample = sample.reshape(1, slots, sources, sample.shape[-1])
                self.columns = sample.shape[-1]
        return Coordinates(lead, fluct, sample).each(self.asarray)

    # Scalars

    def scalar(self, value: Scalar) -> Array:
        """The array of a value, by the rule for its operation."""
        match value.op:
            case Constant(numbers):
                return self.asarray(numbers[None])
            case Dot(x, y, power):
                return self.dot(value, x, y, power)
            case Apply(f, scalars, axes):
                leading = max(p.ndim for p in scalars) - axes
                made = f(*(lined_up(self.scalars[p], p.ndim, leading + axes) for p in scalars))
                return array_namespace(made).broadcast_to(made, (made.shape[0], *value.shape))
            case Take(x, flat):
                return taken(self.scalars[x], x.ndim, flat)
            case Join(parts):
                return joined(*(self.scalars[part] for part in parts))
        raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")

    def dot(self, value: Scalar, x: Vector, y: Vector, power: float) -> Array:
        """n^(−power) ⟨x_i, y_j⟩; at infinite width a score is lead · fluct + fluct · lead."""
        ndim = value.ndim - 1
        a, b = self.lined_up(x, ndim), self.lined_up(y, ndim)
        if a.nonlinear or b.nonlinear:
            if power == 0.5:
                raise ExactError(value, "a score of the output of a nonlinearity has no known law at infinite width")
            if a.nodes is not None or b.nodes is not None:
                nodes = (lined_up(self.limit.at_nodes(v, self.vectors[v]), v.ndim, ndim) for v in (x, y))
                a, b = (replace(c, nodes=n, f=None) for c, n in zip((a, b), nodes, strict=True))
            means = [lined_up(self.limit.mean(v, self.vectors[v]), v.ndim, ndim) for v in (x, y)]
            return self.limit.gram((a, means[0]), (b, means[1]))
        if power == 1 or not math.isinf(self.plan.widths[x.width]):
            scale = self.norm(x) ** 2 if power == 1 else self.norm(x)
            return products(a.lead * (1.0 / scale), b.lead)
        if any(self.frames[group].compact for v in (x, y) for group in self.plan.groups_of(v)):
            self.check_compact(value, x, y)
        xp = array_namespace(a.lead)
        tied = products(xp.abs(a.lead), xp.abs(b.lead))
        if bool(xp.any(tied > 1e-12)):
            raise ExactError(value, "a score of factors that share a source diverges, or has no known law, as n → ∞")
        shape = tied.shape[1:]
        total: Array = xp.zeros((1, *shape), dtype=a.lead.dtype)
        for p, q in ((a.lead, b.fluct), (a.fluct, b.lead)):
            if p is not None and q is not None:
                total = total + products(p, q)
        return total * (1.0 / self.norm(x))

    def check_compact(self, value: Value, x: Vector, y: Vector) -> None:
        """A score needs a factor that is a fresh source, not two that both come from a nonlinearity's cluster."""
        xp = array_namespace(self.vectors[x].lead)
        old = []
        for v in (x, y):
            most = max(self.frames[group].compact for group in self.plan.groups_of(v))
            old.append(bool(xp.any(self.vectors[v].lead[..., :most] != 0)))
        if all(old):
            raise ExactError(value, "a score of two vectors that met a nonlinearity has no known law as n → ∞")
