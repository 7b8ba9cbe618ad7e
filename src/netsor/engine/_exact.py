"""The exact interpreter: the law of a program at any width, finite or infinite, without drawing a weight matrix.

Given its inputs, the rows of (W x^1, …, W x^k) are i.i.d. N(0, σ_W² G), G_ij = ⟨x^i, x^j⟩/in. So if σ_W² G = C C^T, then
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
from array_api_compat import array_namespace

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
from ._coordinates import (
    PARTS,
    Coordinates,
    concatenated,
    joined,
    lined_up,
    merged,
    mixed,
    padded,
    plus,
    pseudo_inverse,
    root,
    swapped,
    taken,
    transposed,
)
from ._frame import SAMPLE, Frame, Streams
from ._limit import Limit
from ._plan import Group, Plan
from ._rewrite import Fuse

Array = Any


class ExactError(NotImplementedError):
    """A program that the exact engine cannot do; it says which operation, and what can be done instead."""

    def __init__(self, value: Value, problem: str) -> None:
        super().__init__(f"{problem} (at {value.where}); net.simulate draws it literally, at finite widths")


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
                        self.compact(group, plan.values[index + 1 :])
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
                given = [self.vectors[x].each(lambda a, x=x: lined_up(a, x.ndim, value.ndim)) for x in vectors]
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
            made = combine @ e.reshape(e.shape[0], rank, blocks * e.shape[-1])
            return made.reshape(e.shape[0], *value.shape, blocks, e.shape[-1])

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
        return self.asarray(rows.reshape(rows.shape[0], *shape, rows.shape[-1]))

    def matmul(self, value: Vector) -> Coordinates:
        """W x = C E; for a matrix that acted before, W x = (W X) X⁺ x + C E for what of x is orthogonal to X."""
        assert isinstance(value.op, MatMul)
        weight, x, each = value.op.weight, value.op.x, value.op.each
        members, blocks = weight.members.size, self.plan.blocks_of(value)
        drawn = value in self.plan.drawn or value in self.plan.virtual
        earlier = self.used.setdefault(weight.source, [])
        known: Coordinates | None = None
        if earlier:
            inputs, known = self.projected(value, earlier)
            c = self.reduced(inputs) if drawn else inputs
        else:
            key = x, each, drawn
            if key not in self.factors:
                inputs = self.rows(x, members if each else 1)
                self.factors[key] = self.reduced(inputs) if drawn else inputs
            c = self.factors[key]
        earlier.append(value)
        c = weight.std * c

        def multiplied(e: Array) -> Array:  # from (replicas, members · blocks, sources, directions)
            e = e.reshape(e.shape[0], members, blocks, *e.shape[2:])
            return swapped(c[:, :, None] @ e, 2, 3)  # (replicas, members, vectors, blocks, directions)

        made = self.sources(value, members * blocks, c.shape[-1]).each(multiplied)
        if known is not None:
            made = Coordinates(**{name: plus(getattr(made, name), getattr(known, name)) for name in PARTS[:3]})
        return made.each(lambda a: a.reshape(a.shape[0], *value.shape, blocks, a.shape[-1]))

    def rows(self, x: Value, members: int) -> Array:
        """Vectors as rows (replicas, members, vectors, ·) whose products are ⟨x^i, x^j⟩/in."""
        c = self.vectors[x]
        arranged = c.each(lambda a: a.reshape(a.shape[0], members, x.size // members, *a.shape[-2:]))
        if c.nonlinear:
            mean = self.limit.mean(x, c)
            mean = mean.reshape(mean.shape[0], members, x.size // members, -1)
            return root(self.limit.gram((arranged, mean), (arranged, mean)))
        lead = arranged.lead
        return merged(lead) / self.norm(x)

    def norm(self, x: Value) -> float:
        """What coordinates are divided by so that their products are means over the coordinates α."""
        assert isinstance(x, Vector)
        width = self.plan.widths[x.width]
        return math.sqrt(self.plan.blocks_of(x) * (1.0 if math.isinf(width) else width))

    def reduced(self, rows: Array) -> Array:
        """C with the products of the rows: the rows, or their root if that takes fewer sources."""
        if rows.shape[-1] <= rows.shape[-2]:
            return rows
        if rows.shape[-2] == 1:
            xp = array_namespace(rows)
            return xp.sqrt(xp.sum(rows * rows, axis=-1, keepdims=True))
        return root(rows @ transposed(rows))

    def projected(self, value: Vector, earlier: Sequence[Value]) -> tuple[Array, Coordinates]:
        """What of the inputs is orthogonal to the earlier inputs X of the matrix, and (W X) X⁺ x for the rest."""
        assert isinstance(value.op, MatMul)
        numbers = value.op.weight.members.ravel().tolist()
        uses = [(v, v.op.weight.members.ravel().tolist()) for v in (*earlier, value) if isinstance(v.op, MatMul)]
        if any(self.vectors[v.op.x].nonlinear for v, _ in uses if isinstance(v.op, MatMul)):
            rows = self.joint_rows(uses, numbers)
        else:
            rows = [self.member_rows(v, then, numbers) for v, then in uses]
        width = max(r.shape[-1] for r in rows)
        *old, new = (padded(r, width) for r in rows)
        xp = array_namespace(new)
        replicas = max(r.shape[0] for r in (*old, new))
        x = xp.concat([xp.broadcast_to(r, (replicas, len(numbers), *r.shape[2:])) for r in old], axis=2)
        project = new @ transposed(x) @ pseudo_inverse(x @ transposed(x))
        total: dict[str, Array] = dict.fromkeys(PARTS[:3])
        start = 0
        for (v, then), r in zip(uses[:-1], old, strict=True):
            part = project[..., start : start + r.shape[2]]
            start += r.shape[2]
            for name in PARTS[:3]:
                outputs = getattr(self.vectors[v], name)
                if outputs is not None:
                    y = outputs.reshape(outputs.shape[0], len(then), v.size // len(then), *outputs.shape[-2:])
                    y = self.chosen(y, then, numbers)
                    image = part @ merged(y)
                    total[name] = plus(total[name], image.reshape(*image.shape[:3], *y.shape[3:]))
        return new - project @ x, Coordinates(**total)

    def chosen(self, rows: Array, then: list[int], now: list[int]) -> Array:
        """Of rows for the members `then` (or for all, if one), those for the members `now`; 0 for the absent."""
        xp = array_namespace(rows)
        present = np.array([float(m in then) for m in now]).reshape(1, -1, *(1,) * (rows.ndim - 2))
        if rows.shape[1] > 1:
            rows = xp.take(rows, xp.asarray([then.index(m) if m in then else 0 for m in now]), axis=1)
        return self.asarray(present) * rows

    def member_rows(self, v: Value, then: list[int], now: list[int]) -> Array:
        """The inputs of one use of a matrix, for the members `now`."""
        assert isinstance(v.op, MatMul)
        return self.chosen(self.rows(v.op.x, len(then) if v.op.each else 1), then, now)

    def joint_rows(self, uses: Sequence[tuple[Value, list[int]]], now: list[int]) -> list[Array]:
        """The inputs of all uses of a matrix, by a root of their joint Gram matrix: for outputs of nonlinearities."""
        parts, sizes = [], []
        at_nodes = any(self.vectors[v.op.x].nodes is not None for v, _ in uses if isinstance(v.op, MatMul))
        for v, then in uses:
            assert isinstance(v.op, MatMul)
            x, members = v.op.x, len(then) if v.op.each else 1
            c = self.vectors[x]
            if at_nodes:
                c = replace(c, nodes=self.limit.at_nodes(x, c), f=None)
            c = c.each(lambda a, x=x, n=members: a.reshape(a.shape[0], n, x.size // n, *a.shape[-2:]))
            mean = self.limit.mean(x, self.vectors[x])
            mean = mean.reshape(mean.shape[0], members, x.size // members, -1)
            if members > 1:
                order = [then.index(m) if m in then else 0 for m in now]
                c, mean = c.each(lambda a, o=order: a[:, o]), mean[:, order]
            present = np.array([float(m in then) for m in now])[None, :, None]
            parts.append((c, mean, present))
            sizes.append(x.size // members)
        gram = self.limit.joint_gram(parts)
        split = np.cumsum([0, *sizes])
        rows = root(gram)
        return [rows[:, :, a:b] for a, b in zip(split[:-1].tolist(), split[1:].tolist(), strict=True)]

    def fuse(self, value: Vector, x: Vector) -> Coordinates:
        """Fresh sources for vectors that are linear in sources of their own: x = C E with C C^T their covariance."""
        places = self.plan.parts[value]  # (members, vectors of each)
        lead = self.vectors[x].lead
        xp = array_namespace(lead)
        flat = lead.reshape(lead.shape[0], places.size, lead.shape[-1])
        rows = xp.take(flat, xp.asarray(places.ravel()), axis=1).reshape(flat.shape[0], *places.shape, lead.shape[-1])
        constant = self.constant(x)
        has_mean = constant.shape[-1] > 0
        mean = None
        if has_mean:  # the first direction of these frames
            square = xp.sum(constant * constant, axis=-1)
            mean = xp.sum(lead[..., : constant.shape[-1]] * constant, axis=-1) / xp.where(square > 0, square, 1.0)
            rows = rows[..., 1:]
        c = self.reduced(rows)
        back = xp.asarray(np.argsort(places.ravel()))

        def multiplied(e: Array) -> Array:  # from (replicas, members, sources, directions)
            made = c @ e
            made = xp.take(made.reshape(made.shape[0], places.size, made.shape[-1]), back, axis=1)
            return made.reshape(made.shape[0], *value.shape, self.plan.blocks_of(value), made.shape[-1])

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
                    a, b = frame.grow(number, count, value in plan.leaves, value in plan.scored)
                leads.append((places, a.reshape(*a.shape[:2], places.shape[1], sources, a.shape[-1])))
                if b is not None:
                    flucts.append((places, b.reshape(*b.shape[:2], places.shape[1], sources, b.shape[-1])))
                elif value in plan.scored:
                    flucts.append((places, 0.0 * leads[-1][1]))
            lead = scattered(leads)
            fluct = scattered(flucts) if flucts and math.isinf(plan.width_of(value)) else None
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
        a, b = (self.vectors[v].each(lambda array, v=v: lined_up(array, v.ndim, ndim)) for v in (x, y))
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
            return _products(a.lead, b.lead) / scale
        if any(self.frames[group].compact for v in (x, y) for group in self.plan.groups_of(v)):
            self.check_compact(value, x, y)
        xp = array_namespace(a.lead)
        tied = _products(xp.abs(a.lead), xp.abs(b.lead))
        if bool(xp.any(tied > 1e-12)):
            raise ExactError(value, "a score of factors that share a source diverges, or has no known law, as n → ∞")
        shape = tied.shape[1:]
        total: Array = xp.zeros((1, *shape), dtype=a.lead.dtype)
        for p, q in ((a.lead, b.fluct), (a.fluct, b.lead)):
            if p is not None and q is not None:
                total = total + _products(p, q)
        return total / self.norm(x)

    def check_compact(self, value: Value, x: Vector, y: Vector) -> None:
        """A score needs a factor that is a fresh source, not two that both come from a nonlinearity's cluster."""
        xp = array_namespace(self.vectors[x].lead)
        old = []
        for v in (x, y):
            most = max(self.frames[group].compact for group in self.plan.groups_of(v))
            old.append(bool(xp.any(self.vectors[v].lead[..., :most] != 0)))
        if all(old):
            raise ExactError(value, "a score of two vectors that met a nonlinearity has no known law as n → ∞")

    # After the last nonlinearity of a cluster

    def compact(self, group: Group, later: Sequence[Value]) -> None:
        """Turn the frame so that it spans the vectors still in use and no more: their coordinates become a root.

        So what follows a nonlinearity needs as many directions as there are vectors, not one for each coordinate.
        """
        frame = self.frames[group]
        needed = {x for value in later for x in value.op.inputs} | set(self.plan.outputs)
        for value in later:  # a matrix that acts again needs what it did before
            if isinstance(value.op, MatMul):
                for used in self.used.get(value.op.weight.source, ()):
                    needed |= {used, *used.op.inputs}
        live = [v for v in group.positions if v in self.vectors and v in needed]
        count = sum(group.positions[v].shape[1] for v in live) + (frame.constant is not None)
        if not live or (frame.standard and count >= group.width):
            return
        gathered = [self.gathered(group, v) for v in live]
        if frame.infinite:
            gram, oriented = self.limit.live_gram(group, live, gathered), None
        else:
            rows = [c.lead for c in gathered]
            if frame.constant is not None:
                rows.append(self.asarray(np.broadcast_to(frame.constant[:, :, None], (1, group.frames, 1, frame.directions))))
            stacked = _stacked(rows)
            gram = stacked @ transposed(stacked)
        coordinates = root(gram)
        if not frame.infinite:
            first = stacked[..., :1]
            oriented = np.asarray((pseudo_inverse(coordinates) @ first)[..., 0])
        constant = np.asarray(coordinates[:, :, -1]) if frame.constant is not None else None
        frame.replace(count, constant, oriented)
        start = 0
        for v in live:
            places = group.positions[v]
            part = coordinates[:, :, start : start + places.shape[1]]
            start += places.shape[1]
            self.vectors[v] = self.put(v, group, part)

    def gathered(self, group: Group, value: Value) -> Coordinates:
        """The vectors of a value that lie in a group, (replicas, frames, vectors, directions)."""
        places = group.positions[value]

        def gather(a: Array) -> Array:
            xp = array_namespace(a)
            flat = a.reshape(a.shape[0], math.prod(a.shape[1:-1]), a.shape[-1])
            return xp.take(flat, xp.asarray(places.ravel()), axis=1).reshape(a.shape[0], *places.shape, a.shape[-1])

        return self.vectors[value].each(gather)

    def put(self, value: Vector, group: Group, part: Array) -> Coordinates:
        """A value with new coordinates for its vectors in a group; it keeps those in others."""
        old = self.vectors[value]
        shape = (*value.shape, self.plan.blocks_of(value))
        places = group.positions[value]
        rest = np.setdiff1d(np.arange(math.prod(shape)), places.ravel())
        parts = [(places.reshape(-1, 1), part.reshape(part.shape[0], places.size, 1, part.shape[-1]))]
        if rest.size:
            if old.nonlinear:
                raise ExactError(value, "vectors of different clusters went through one nonlinearity at infinite width")
            others = old.lead.reshape(old.lead.shape[0], math.prod(shape), old.lead.shape[-1])
            parts.append((rest.reshape(-1, 1), np.asarray(others)[:, rest][:, :, None]))
        rows = self.asarray(scattered([(p, np.asarray(a)) for p, a in parts]))
        return Coordinates(rows.reshape(rows.shape[0], *shape, rows.shape[-1]), None, old.sample)

    # Outputs

    def result(self) -> tuple[Array, Array]:
        """For all outputs, side by side: the mean and the coefficients, given what was drawn, of one coordinate.

        A coordinate of the outputs is mean + coefficients · N(0, I); scalars have no coefficients.
        """
        means, coefficients = [], []
        for output in self.plan.outputs:
            if isinstance(output, Scalar):
                drawn = np.asarray(self.scalars[output])
                means.append(drawn.reshape(drawn.shape[0], -1))
                coefficients.append(np.zeros((1, output.size, 0)))
                continue
            assert isinstance(output, Vector)
            c = self.vectors[output]
            mean, gaussian = np.zeros((1, output.size)), np.zeros((1, output.size, 0))
            if c.sample is not None:
                sample = np.asarray(c.sample)[..., 0, :]  # of the first block
                mean = sample[..., 0].reshape(sample.shape[0], -1)
                gaussian = sample[..., 1:].reshape(sample.shape[0], output.size, sample.shape[-1] - 1)
            if not math.isinf(self.plan.widths[output.width]) and c.lead.shape[-1]:
                mean = mean + self.first_coordinate(output, np.asarray(c.lead))
            means.append(mean)
            coefficients.append(gaussian)
        width = max(c.shape[-1] for c in coefficients)
        return _side_by_side(means), _side_by_side([padded(c, width) for c in coefficients])

    def first_coordinate(self, output: Vector, lead: Array) -> Array:
        """The first coordinate of vectors whose coordinates in a frame are known."""
        shape = (*output.shape, self.plan.blocks_of(output))
        parts = []
        for group in self.plan.groups_of(output):
            number = -1 - self.plan.groups.index(group)
            o = self.frames[group].orientation(abs(number) + len(self.plan.origin))
            parts.append((group.positions[output], np.repeat(o[:, :, None], group.positions[output].shape[1], axis=2)))
        oriented = scattered(parts)
        oriented = oriented.reshape(oriented.shape[0], *shape, oriented.shape[-1])
        width = max(oriented.shape[-1], lead.shape[-1])
        first = np.sum(padded(lead, width)[..., 0, :] * padded(oriented, width)[..., 0, :], axis=-1)
        return first.reshape(first.shape[0], -1)


def scattered(parts: Sequence[tuple[Array, Array]]) -> Array:
    """Arrays (replicas or 1, frames, count, …, ·) laid out by their positions, (replicas, positions, …, ·)."""
    width = max(a.shape[-1] for _, a in parts)
    replicas = max(a.shape[0] for _, a in parts)
    places = np.concatenate([p.ravel() for p, _ in parts])
    flat = [padded(a.reshape(a.shape[0], a.shape[1] * a.shape[2], *a.shape[3:]), width) for _, a in parts]
    rows = flat[0] if len(flat) == 1 else np.concatenate([np.broadcast_to(a, (replicas, *a.shape[1:])) for a in flat], 1)
    order = np.argsort(places)
    return rows if (order == np.arange(len(order))).all() else rows[:, order]


def _products(a: Array, b: Array) -> Array:
    """Σ over blocks and directions of a[…, i, ·, ·] b[…, j, ·, ·]."""
    width = max(a.shape[-1], b.shape[-1])
    a, b = padded(a, width), padded(b, width)
    return merged(a) @ transposed(merged(b))


def _stacked(rows: Sequence[Array]) -> Array:
    xp = array_namespace(*rows)
    replicas = max(r.shape[0] for r in rows)
    return xp.concat([xp.broadcast_to(r, (replicas, *r.shape[1:])) for r in rows], axis=2)


def _side_by_side(arrays: Sequence[Array]) -> Array:
    replicas = max(a.shape[0] for a in arrays)
    return np.concatenate([np.broadcast_to(a, (replicas, *a.shape[1:])) for a in arrays], axis=1)
