"""Lowering: a graph with its widths bound becomes a plan. Every decision is taken here, from structure and constants.

Given its inputs, the rows of (W x^1, …, W x^k) are i.i.d. N(0, σ_W² G), G_ij = ⟨x^i, x^j⟩/in. If σ_W² G = C C^T, then
(W x^i)_i = C E, with E fresh standard isotropic vectors: the sources. A vector is kept as its coordinates in the frame
of its cluster (see `_frame`), so that products are sums over a few directions in place of n coordinates.

Without any shortcut every source is drawn whole in the frame of its cluster, and every Gram matrix asked for directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._graph import ordered
from ..language._names import names_of
from ..language._narrow import narrow
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
from ..language._score import MASKED_SOFTMAX
from ..language._value import Scalar, Value, Vector
from ._clusters import Clusters, Group, blocks_of
from ._error import ExactError
from ._expectation import NODES
from ._features import Features, Rests, added
from ._frame import AT_NODES, GROWING, LIMIT, NO_VALUE, STANDARD, UNITS, Frame
from ._plan import SAMPLE, Builder, Plan, Register, named
from ._reuse import Matrix
from .passes import SHORTCUTS, rewrite
from .passes._rewrite import Context, Fuse, asked, asked_together, earlier_uses, linear_sources
from .passes.leaves import leaves

LARGEST = 2**33  # bytes of a single replica, above which a program is refused

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A vector value: `lead`, coordinates in the frame (*shape, blocks, directions).

    `sample` is what an output needs to know of one coordinate α (*shape, blocks, ·): its value so far, then its
    coefficients of Gaussian variables that are never drawn. `support`, at infinite width, says along which directions
    there can be coordinates.
    """

    lead: Register
    sample: Register | None = None
    support: Bools | None = None


def make_plan(
    outputs: Sequence[Value],
    bound: Mapping[str, float],
    title: str = "",
    without: Collection[str] = (),
    shift: int = 0,
) -> Plan:
    """The plan for a program with its widths bound; `without` names shortcuts to leave out."""
    unknown = set(without) - set(SHORTCUTS)
    if unknown:
        raise ValueError(f"without={sorted(unknown)} must be among {', '.join(SHORTCUTS)}")
    narrowed = narrow(outputs)
    context = Context(bound, {value: number for number, value in enumerate(ordered(narrowed))})
    lowering = Lowering(rewrite(narrowed, context, without), context, frozenset(without), shift)
    return lowering.plan(title)


class Lowering:
    """One program on its way to a plan: each value by the rule for its operation."""

    def __init__(self, outputs: list[Value], context: Context, without: frozenset[str], shift: int) -> None:
        self.outputs, self.context, self.without = outputs, context, without
        self.build = Builder(shift)
        values = ordered(outputs)
        self.names = names_of([v for v in values if not isinstance(v.op, Fuse)])
        made = linear_sources(values)
        self.virtual = {source for value in values if isinstance(value.op, Fuse) for source in made[value.op.x]}
        edges = asked_together(values, made)
        self.coordinates = _coordinates(outputs, earlier_uses(values))
        self.leaves: set[Value] = set()
        if "leaves" not in without:
            self.leaves, values = leaves(values, edges, self.coordinates)
        # data is given in the standard basis, so it comes before any frame is turned
        self.values = sorted(values, key=lambda value: not isinstance(value.op, Data))
        begun = [v for v in values if v in made and v in made[v]]
        self.drawn = {v for v in begun if v in edges or "undrawn" in without} - self.virtual
        self.blocks, self.widths = blocks_of(values, context.bound)
        self.clusters = Clusters(self.values, self.blocks)
        self.groups = self.clusters.groups(self.widths)
        self.into = {
            s for v in values if isinstance(v.op, Nonlin) and v in self.coordinates for x in asked(v) for s in made[x]
        }
        if "undrawn" in without:
            self.into |= self.coordinates
        for group in self.groups:
            self._check_room(group)
        self.frames = {group: Frame(group, self._kind(group, made), self.build) for group in self.groups}
        self.rests = {group: self._rests(group, edges) for group in self.groups}
        self.matrices: dict[Source, Matrix] = {}
        uses = Counter(v.op.weight.source for v in values if isinstance(v.op, MatMul))
        self.uses: dict[Source, list[Value]] = {source: [] for source, times in uses.items() if times > 1}
        self.members = _all_members(values)
        self.vectors: dict[Value, Lowered] = {}
        self.scalars: dict[Value, Register] = {}
        self.columns = 1  # of `sample`: the value, then a Gaussian variable each
        self.last = {value: k for k, value in enumerate(self.values)}
        self.number: dict[Value, tuple[int, int]] = {}  # what seeds are made from: the place as written, and a count
        count: Counter[int] = Counter()
        for value in values:
            if value in made and value in made[value]:
                place = context.origin[value]
                self.number[value] = place, count[place]
                count[place] += 1

    def _check_room(self, group: Group) -> None:
        """Refuse, before anything is made, coordinates that no memory holds."""
        if group.nonlinear and group.width < math.inf:
            size = 8 * group.width * sum(places.size for places in group.positions.values())
            if size > LARGEST:
                raise ExactError(
                    group.nonlinear[0],
                    f"a nonlinearity at width {group.width:.0f} needs {size:.1e} bytes for the coordinates of a replica",
                    instead="take the width inf, or a smaller one",
                )

    def _kind(self, group: Group, made: Mapping[Value, frozenset[Value]]) -> str:
        """What coordinates the vectors of a group have."""
        if any(value in self.virtual for value in group.slots):
            return UNITS
        if group.width < math.inf:
            return STANDARD if group.nonlinear or group.given else GROWING
        nested = any(
            isinstance(source.op, Nonlin) for value in group.nonlinear for x in asked(value) for source in made[x]
        )
        return AT_NODES if nested else LIMIT

    def _rests(self, group: Group, edges: Mapping[Value, set[Value]]) -> dict[Value, tuple[Rests, bool]]:
        """For each nonlinearity of a group at infinite width: with which others it has a Gram matrix, and whether with
        linear vectors too."""
        parts: list[set[Value | None]] = [{None}]  # None stands for all linear vectors
        for value in group.nonlinear:
            near = {x if isinstance(x.op, Nonlin) else None for x in edges.get(value, ())}
            if "apart" in self.without:
                near.add(None)
            joined: set[Value | None] = {value} | {x for x in near if x is None or x in group.nonlinear}
            for part in [p for p in parts if p & joined]:
                joined |= part
                parts.remove(part)
            parts.append(joined)
        found: dict[Value, tuple[Rests, bool]] = {}
        for part in parts:
            rests = Rests()
            found.update({value: (rests, None in part) for value in part if value is not None})
        return found

    def plan(self, title: str) -> Plan:
        """Lower every value, in order, and what is asked of the outputs."""
        live = _last_uses(self.values, self.outputs)
        for index, value in enumerate(self.values):
            if isinstance(value, Vector):
                self.vectors[value] = self._vector(value)
                for group in self.groups:
                    if group.nonlinear and group.nonlinear[-1] is value:
                        self._turn(group, index, live)
            elif isinstance(value, Scalar):
                self.scalars[value] = self._scalar(value)
        mean, columns = self._results()
        return Plan(title, self.build.steps, mean, columns, tuple(self.context.notes), self.build.expects)

    # Vectors

    def _vector(self, value: Vector) -> Lowered:
        build = self.build
        match value.op:
            case Gaussian():
                return self._gaussian(value, value.op)
            case Data(vectors):
                return Lowered(build.constant(vectors.reshape(*value.shape, self.blocks[value.width], -1)))
            case MatMul():
                return self._matmul(value, value.op)
            case Fuse(x):
                return self._fuse(value, x)
            case Nonlin(f, vectors, scalars):
                return self._nonlin(value, f, vectors, scalars)
            case Add(x, y):
                return self._linear(value, [x, y], lambda a, b: build.step("add", a, b), lined=True)
            case Scale(c, x):
                factor = self._lined(self.scalars[c], c.ndim, value.ndim)
                factor = build.reshape(factor, *factor.shape, 1, 1)
                return self._linear(value, [x], lambda a: build.step("multiply", a, factor), lined=True, by=c)
            case Mix(a, x):
                weights = self._lined(self.scalars[a], a.ndim, value.ndim + 1)
                return self._linear(value, [x], lambda v: self._mixed(weights, v), lined=True, by=a)
            case Concat(x, axis):
                return self._linear(value, [x], lambda a: self._concatenated(a, axis))
            case Take(x, flat):
                return self._linear(value, [x], lambda a: self._taken(a, x.ndim, flat))
            case Join(parts):
                return self._linear(value, parts, lambda *arrays: build.step("join", *arrays, axis=0))
        raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")

    def _lined(self, a: Register, ndim: int, to: int) -> Register:
        """An array of values with `ndim` axes, with axes of size 1 set in front, so that it broadcasts."""
        return self.build.reshape(a, *(1,) * (to - ndim), *a.shape)

    def _linear(
        self,
        value: Value,
        inputs: Sequence[Value],
        act: Callable[..., Register],
        lined: bool = False,
        by: Scalar | None = None,
    ) -> Lowered:
        """A linear operation acts on coordinates, samples and supports alike; `by` are its coefficients."""
        build = self.build
        given = [self.vectors[x] for x in inputs]

        def acted(arrays: Sequence[Register]) -> Register:
            width = max(a.shape[-1] for a in arrays)
            fitted = [build.fitted(a, width) for a in arrays]
            if lined:
                fitted = [self._lined(a, x.ndim, value.ndim) for a, x in zip(fitted, inputs, strict=True)]
            return act(*fitted)

        lead = acted([x.lead for x in given])
        sample = None
        if any(x.sample is not None for x in given):
            sample = acted([x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given])
        support = None
        if any(x.support is not None for x in given):
            marks = [
                build.constant(x.support if x.support is not None else np.zeros((*x.lead.shape[:-1], 0))) for x in given
            ]
            if by is None:
                found = acted(marks)
            else:
                mark = self._lined(marks[0], inputs[0].ndim, value.ndim)
                some = self.build.constant(~_zeros(by))
                if isinstance(value.op, Mix):
                    found = self._mixed(self._lined(some, by.ndim, value.ndim + 1), mark)
                else:
                    some = self._lined(some, by.ndim, value.ndim)
                    found = build.step("multiply", mark, build.reshape(some, *some.shape, 1, 1))
            support = np.asarray(found.value)[0] > 0
            support = np.broadcast_to(support, (*lead.shape[:-1], support.shape[-1]))
        return Lowered(lead, sample, support)

    def _mixed(self, weights: Register, v: Register) -> Register:
        """Σ_j a[…, i, j] v[…, j, block, direction]."""
        *front, blocks, directions = v.shape
        made = self.build.step("product", weights, self.build.reshape(v, *front, blocks * directions))
        return self.build.reshape(made, *made.shape[:-1], blocks, directions)

    def _concatenated(self, a: Register, axis: int) -> Register:
        """The values along an axis become blocks of one."""
        order = [k for k in range(len(a.shape)) if k != axis]
        order.insert(len(order) - 2, axis)
        made = self.build.step("permute", a, axes=tuple(order)) if order != sorted(order) else a
        *front, count, blocks, directions = made.shape
        return self.build.reshape(made, *front, count * blocks, directions)

    def _taken(self, a: Register, ndim: int, flat: Ints) -> Register:
        """The entries at flat positions among the first `ndim` axes."""
        rest = a.shape[ndim:]
        entries = self.build.reshape(a, math.prod(a.shape[:ndim]), *rest)
        return self.build.reshape(self.build.taken(entries, flat.ravel(), axis=0), *flat.shape, *rest)

    # Sources

    def _words(self, value: Value) -> str:
        match value.op:
            case MatMul(weight):
                return f"{self.names.get(weight.source, 'W')} x"
            case Gaussian():
                return "initial vectors"
        return "combined sources"

    def _sources(self, value: Value, slots: int, sources: int) -> tuple[Register, Register | None]:
        """Fresh standard isotropic vectors, so many for each slot (member and block): lead and sample (slots, k, ·)."""
        build, number = self.build, self.number[value]
        infinite = math.isinf(self.widths[value.width])  # type: ignore[attr-defined]
        lead = build.constant(np.zeros((slots, sources, 0)))
        if slots and (value in self.drawn or value in self.virtual):
            parts = []
            for group in self.groups:
                if value in group.slots:
                    places = group.slots[value]
                    made = self.frames[group].grow(
                        number, places.shape[1] * sources, value in self.leaves, self._words(value)
                    )
                    parts.append((places, build.reshape(made, *places.shape, sources, made.shape[-1])))
            lead = self._scattered(parts)
        sample = None
        if slots and value in self.coordinates and (infinite or value not in self.drawn):
            if value in self.into and (infinite or "undrawn" in self.without):
                drawn = build.draw(
                    "normals", (*number, 0, SAMPLE, 0), (slots, sources, 1), f"{self._words(value)}: one coordinate"
                )
                sample = drawn
            else:  # a Gaussian variable each, never drawn
                unit = np.eye(slots * sources, self.columns + slots * sources, self.columns)
                self.columns = unit.shape[-1]
                sample = build.constant(unit.reshape(slots, sources, -1))
        return lead, sample

    def _scattered(self, parts: Sequence[tuple[Ints, Register]]) -> Register:
        """Arrays (frames, k, …, ·) laid out by their positions, (positions, …, ·)."""
        build = self.build
        width = max(a.shape[-1] for _, a in parts)
        flat = [build.fitted(build.reshape(a, a.shape[0] * a.shape[1], *a.shape[2:]), width) for _, a in parts]
        rows = build.step("join", *flat, axis=0) if len(flat) > 1 else flat[0]
        return build.taken(rows, np.argsort(np.concatenate([p.ravel() for p, _ in parts])), axis=0)

    def _gathered(self, a: Register, places: Ints, width: int) -> Register:
        """The vectors of a value that lie in a group, (frames, vectors, directions)."""
        flat = self.build.reshape(a, math.prod(a.shape[:-1]), a.shape[-1])
        chosen = self.build.taken(self.build.fitted(flat, width), places.ravel(), axis=0)
        return self.build.reshape(chosen, *places.shape, width)

    def _groups_of(self, value: Value) -> list[Group]:
        return [group for group in self.groups if value in group.positions]

    def _support(self, value: Vector, lead: Register) -> Bools | None:
        """What fresh constants say: where a source has coordinates."""
        if not math.isinf(self.widths[value.width]):
            return None
        return np.asarray(_marks(lead).value)[0] > 0

    def _gaussian(self, value: Vector, op: Gaussian) -> Lowered:
        """h[i] = mean[i] (1, …, 1) + Σ_k factor[i, k] E_k."""
        build, blocks, rank = self.build, self.blocks[value.width], op.factor.shape[-1]
        combine = op.factor.reshape(value.size, rank)
        lead, sample = self._sources(value, rank * blocks, 1)

        def combined(e: Register) -> Register:  # from (rank · blocks, 1, ·)
            rows = build.reshape(e, rank, blocks * e.shape[-1])
            if rank == 0:
                made = build.constant(np.zeros((value.size, blocks * e.shape[-1])))
            elif combine.shape[0] == rank and np.array_equal(combine, combine[0, 0] * np.eye(rank)):
                made = rows if combine[0, 0] == 1 else build.step("scale", rows, by=float(combine[0, 0]))
            else:
                made = build.step("product", build.constant(combine), rows)
            return build.reshape(made, *value.shape, blocks, e.shape[-1])

        x = combined(lead)
        found = Lowered(x, None if sample is None else combined(sample), self._support(value, x))
        return self._shifted(value, found, build.constant(op.mean[..., None, None])) if op.mean.any() else found

    def _shifted(self, value: Vector, x: Lowered, mean: Register) -> Lowered:
        """x + mean · (1, …, 1); the mean is (*shape, blocks or 1, 1)."""
        build = self.build
        one = self._constant(value)
        width = max(one.shape[-1], x.lead.shape[-1])
        shift = build.step("multiply", build.fitted(one, width), mean)
        lead = build.step("add", build.fitted(x.lead, width), shift)
        sample, support = x.sample, x.support
        if math.isinf(self.widths[value.width]):
            if value in self.coordinates:
                wide = build.fitted(mean, self.columns)
                old = sample or build.constant(np.zeros((*x.lead.shape[:-1], 1)))
                sample = build.step("add", build.fitted(old, self.columns), wide)
            marks = np.zeros(lead.shape, dtype=bool)
            if support is not None:
                marks[..., : support.shape[-1]] |= support
            marks |= np.asarray(build.fitted(one, width).value)[0] != 0
            support = marks
        return Lowered(lead, sample, support)

    def _constant(self, value: Vector) -> Register:
        """The coordinates of (1, …, 1) in the frame of each vector of a value; 0 where its cluster has no means."""
        parts = []
        for group in self._groups_of(value):
            row, count = self.frames[group].constant, group.positions[value].shape[1]
            if row is None:
                row = self.build.constant(np.zeros((group.frames, 0)))
            wide = self.build.reshape(row, group.frames, 1, row.shape[-1])
            parts.append(
                (group.positions[value], self.build.step("spread", wide, shape=(group.frames, count, row.shape[-1])))
            )
        rows = self._scattered(parts)
        return self.build.reshape(rows, *value.shape, self.blocks[value.width], rows.shape[-1])

    # Matrices

    def _norm(self, x: Value) -> float:
        """What coordinates are divided by so that their products are means over the coordinates α."""
        assert isinstance(x, Vector)
        width = self.widths[x.width]
        return math.sqrt(self.blocks[x.width] * (1.0 if math.isinf(width) else width))

    def _rows(self, x: Value, copies: int) -> Register:
        """Vectors as rows (copies, vectors, ·) whose products are ⟨x^i, x^j⟩, up to a norm."""
        lead = self.vectors[x].lead
        return self.build.reshape(lead, copies, x.size // copies, lead.shape[-2] * lead.shape[-1])

    def _reduced(self, rows: Register, words: str) -> Register:
        """C with the products of the rows: the rows, or a factor of their Gram matrix if that takes fewer sources."""
        build = self.build
        if rows.shape[-1] <= rows.shape[-2]:
            return rows
        if rows.shape[-2] == 1:
            norm = build.step("root", build.step("squares", rows, words=f"|x|² for {words}"))
            return build.reshape(norm, *norm.shape, 1)
        gram = build.step("gram", rows, rows, words=f"⟨x, x'⟩ for {words}")
        return build.step("factor", gram, words=f"K = C C^T for {words}")

    def _matmul(self, value: Vector, op: MatMul) -> Lowered:
        """W x = C E."""
        build, weight, x = self.build, op.weight, op.x
        members, blocks = weight.members.size, self.blocks[value.width]
        drawn = value in self.drawn or value in self.virtual
        if weight.source in self.uses:
            return self._again(value, op)
        rows = self._rows(x, members if op.each else 1)
        # sources that are never drawn cost nothing, but a norm costs less than many of them
        c = self._reduced(rows, self._words(value)) if drawn or rows.shape[-2] == 1 else rows
        c = build.step("scale", c, by=weight.std / self._norm(x))
        lead, sample = self._sources(value, members * blocks, c.shape[-1])
        return self._combined(value, c, lead, sample, members)

    def _combined(self, value: Vector, c: Register, lead: Register, sample: Register | None, members: int) -> Lowered:
        """C E, from (members or 1, vectors, k) and sources (members · blocks, k, ·)."""
        build, blocks = self.build, self.blocks[value.width]

        def multiplied(c: Register, e: Register, words: str = "") -> Register:
            k, last = e.shape[-2:]
            e = build.reshape(e, members, blocks, k, last)
            if blocks > 1:
                e = build.step("permute", e, axes=(0, 2, 1, 3))
            e = build.reshape(e, members, k, blocks * last)
            made = build.step("product", c, e, words=words)
            made = build.reshape(made, *made.shape[:-1], blocks, last)
            return build.reshape(made, *value.shape, blocks, last)

        x = multiplied(c, lead, f"{self._words(value)} = C E" if lead.size else "")
        support = None
        if math.isinf(self.widths[value.width]):
            # products that vanish in the limit are of order 1/√n, and count in a score: all vectors share all sources
            every = build.constant(np.ones(c.shape))
            support = np.asarray(multiplied(every, _marks(lead)).value)[0] > 0
        return Lowered(x, None if sample is None else multiplied(c, sample), support)

    def _again(self, value: Vector, op: MatMul) -> Lowered:
        """A matrix that acts more than once: see `_reuse`."""
        build, blocks = self.build, self.blocks[value.width]
        source, every = op.weight.source, self.members[op.weight.source]
        matrix = self.matrices.setdefault(source, Matrix(build, len(every)))
        self.uses[source].append(value)
        uses = []
        for use in self.uses[source]:
            assert isinstance(use.op, MatMul)
            weight, x = use.op.weight, use.op.x
            rows = self._rows(x, weight.members.size if use.op.each else 1)
            present = [every.index(int(m)) for m in weight.members.ravel()]
            uses.append((build.step("scale", rows, by=weight.std / self._norm(x)), present))
        c = matrix.coefficients(uses, self._words(value))
        rows, present = uses[-1]
        lead, sample = self._sources(value, len(present) * blocks, rows.shape[1])
        matrix.remember(lead, sample, present, blocks)
        return self._combined(value, c, *matrix.sources(present), len(present))

    def _fuse(self, value: Vector, x: Vector) -> Lowered:
        """Fresh sources for vectors that are linear in sources of their own: x = C E with C C^T their covariance."""
        build, places = self.build, self.clusters.parts[value]  # (members, vectors of each)
        given = self.vectors[x]
        rows = self._gathered(given.lead, places, given.lead.shape[-1])
        # (1, …, 1) is the first direction of these frames
        means = any(group.constant for group in self._groups_of(x))
        mean = build.step("part", given.lead, start=0, stop=1) if means else None
        rows = build.step("part", rows, start=1, stop=rows.shape[-1])
        c = self._reduced(rows, "combined sources")
        lead, sample = self._sources(value, len(places), c.shape[-1])
        back = np.argsort(places.ravel())

        def multiplied(e: Register) -> Register:  # from (members, sources, ·)
            made = build.step("product", c, e)
            flat = build.taken(build.reshape(made, places.size, made.shape[-1]), back, axis=0)
            return build.reshape(flat, *value.shape, self.blocks[value.width], made.shape[-1])

        found = multiplied(lead)
        support = None
        if math.isinf(self.widths[value.width]):
            flags = np.asarray(_marks(lead).value)[0] > 0
            flat = np.repeat(flags.any(axis=1)[:, None], places.shape[1], axis=1).reshape(places.size, -1)[back]
            support = flat.reshape(found.shape)
        made = Lowered(found, None if sample is None else multiplied(sample), support)
        return made if mean is None else self._shifted(value, made, mean)

    # Nonlinearities

    def _nonlin(self, value: Vector, f: Any, vectors: Sequence[Vector], scalars: Sequence[Scalar]) -> Lowered:
        build, infinite = self.build, math.isinf(self.widths[value.width])
        given = [self.vectors[x] for x in vectors]
        numbers = [self._lined(self.scalars[p], p.ndim, value.ndim) for p in scalars]
        numbers = [build.reshape(p, *p.shape, 1, 1) for p in numbers]
        blocks = self.blocks[value.width]

        def applied(arrays: Sequence[Register], last: int) -> Register:
            lined = [self._lined(a, x.ndim, value.ndim) for a, x in zip(arrays, vectors, strict=True)]
            return build.step(
                "apply", *lined, *numbers, made=(*value.shape, blocks, last), words=f"{named(f)} of coordinates",
                f=f, shape=(*value.shape, blocks, last),
            )  # fmt: skip

        if not infinite:
            width = int(self.widths[value.width])
            return Lowered(applied([build.fitted(x.lead, width) for x in given], width))
        sample = None
        if value in self.coordinates:
            columns = [x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given]
            sample = applied([build.fitted(a, 1) for a in columns], 1)
        parts, marks = [], []
        for group in self._groups_of(value):
            places, frame = group.positions[value], self.frames[group]
            if frame.kind == AT_NODES:
                lead, some = self._at_nodes(value, f, group, vectors, scalars), np.ones((*places.shape, NODES))
            else:
                lead, some = self._features(value, f, group, vectors, scalars)
            parts.append((places, lead))
            marks.append((places, build.constant(some)))
        rows, found = self._scattered(parts), self._scattered(marks)
        shape = (*value.shape, blocks, rows.shape[-1])
        return Lowered(build.reshape(rows, *shape), sample, np.asarray(found.value)[0].reshape(shape) > 0)

    def _argument(self, x: Value, value: Value, places: Ints) -> Ints:
        """Where the entries of an argument are that belong to the entries of a value at these flat places."""
        blocks = self.blocks[value.width]  # type: ignore[attr-defined]
        index = np.broadcast_to(np.arange(x.size).reshape(x.shape), value.shape).ravel()
        if isinstance(x, Scalar):
            return np.asarray(index[places // blocks])
        return np.asarray(index[places // blocks] * blocks + places % blocks)

    def _features(
        self, value: Vector, f: Any, group: Group, vectors: Sequence[Vector], scalars: Sequence[Scalar]
    ) -> tuple[Register, Bools]:
        """The coordinates of features in the frames of a group, and along which directions they can have any."""
        build, frame, places = self.build, self.frames[group], group.positions[value]
        frames, count, d = *places.shape, frame.directions
        arguments, supports = [], []
        along = np.zeros((frames, count, d), dtype=bool)
        for x in vectors:
            at = self._argument(x, value, places)
            rows = self._gathered(self.vectors[x].lead, at, d)
            arguments.append(build.reshape(rows, frames, count, 1, d))
            support = self.vectors[x].support
            assert support is not None
            marks = np.zeros((math.prod(support.shape[:-1]), d), dtype=bool)
            marks[:, : min(d, support.shape[-1])] = support.reshape(len(marks), -1)[:, :d]
            marks = marks[at]  # (frames, k, directions)
            along |= marks
            frame.behind |= marks.any(axis=1)
            reach = marks.any(axis=(0, 1))
            if group.constant:
                reach[0] = False
            supports.append(reach)
        u = build.step("join", *arguments, axis=2) if len(arguments) > 1 else arguments[0]
        params = []
        for p in scalars:
            flat = build.reshape(self.scalars[p], p.size)
            chosen = build.taken(flat, self._argument(p, value, places).ravel(), axis=0)
            params.append(build.reshape(chosen, frames, count))
        rests, linear = self.rests[group][value]
        along[..., rests.places] = True
        along[..., : int(group.constant)] = True
        new = Features(f, u, np.stack(supports), tuple(params))
        lead = added(build, frame, rests, new, linear, self.number[value], named(f))
        return lead, np.pad(along, ((0, 0), (0, 0), (0, count)), constant_values=True)

    def _at_nodes(
        self, value: Vector, f: Any, group: Group, vectors: Sequence[Vector], scalars: Sequence[Scalar]
    ) -> Register:
        """Values at the nodes; coordinates are these over √NODES, as those along an orthonormal frame are."""
        build, places = self.build, group.positions[value]
        frames, count = places.shape
        arrays = [
            build.step(
                "scale", self._gathered(self.vectors[x].lead, self._argument(x, value, places), NODES), by=NODES**0.5
            )
            for x in vectors
        ]
        for p in scalars:
            flat = build.reshape(self.scalars[p], p.size)
            chosen = build.taken(flat, self._argument(p, value, places).ravel(), axis=0)
            arrays.append(build.reshape(chosen, frames, count, 1))
        build.expects = True
        shape = frames, count, NODES
        made = build.step("apply", *arrays, made=shape, words=f"{named(f)} at {NODES} nodes", f=f, shape=shape)
        return build.step("scale", made, by=NODES**-0.5)

    def _turn(self, group: Group, index: int, live: Mapping[Value, int]) -> None:
        """After the last nonlinearity of a cluster of finite width, turn its frame to span the vectors still in use."""
        frame = self.frames[group]
        if "turn" in self.without or frame.kind != STANDARD:
            return
        vectors = [
            v for v in group.positions
            if v in self.vectors and live[v] > index and self.vectors[v].lead.shape[-1]
        ]  # fmt: skip
        count = sum(group.positions[v].shape[1] for v in vectors) + (frame.constant is not None)
        if not vectors or count >= group.width or not self._grows(group, index):
            return
        rows = [self._gathered(self.vectors[v].lead, group.positions[v], frame.directions) for v in vectors]
        outputs = any(output in group.positions for output in self.outputs)
        for v, part in zip(vectors, frame.turn(rows, outputs), strict=True):
            self.vectors[v] = self._put(v, group, part)

    def _grows(self, group: Group, index: int) -> bool:
        """Whether a source is still to come in this cluster: only then is it worth to turn its frame.

        A matrix that acted before and will act again keeps its inputs and sources as they are: then it is not turned.
        """
        for uses in self.uses.values():
            for use in uses:
                assert isinstance(use.op, MatMul)
                more = any(
                    self.last[v] > index
                    for v in self.values
                    if isinstance(v.op, MatMul) and v.op.weight.source is use.op.weight.source
                )
                if more and (use in group.positions or use.op.x in group.positions):
                    return False
        return any(self.last[value] > index and value in self.drawn for value in group.slots)

    def _put(self, value: Value, group: Group, part: Register) -> Lowered:
        """A value with new coordinates for its vectors in a group; those in other groups stay as they are."""
        assert isinstance(value, Vector)
        old = self.vectors[value]
        shape = (*value.shape, self.blocks[value.width])
        parts = [(group.positions[value], part)]
        rest = np.setdiff1d(np.arange(math.prod(shape)), group.positions[value].ravel())
        if rest.size:
            others = self.build.reshape(old.lead, math.prod(shape), old.lead.shape[-1])
            others = self.build.taken(others, rest, axis=0)
            parts.append((rest[None], self.build.reshape(others, 1, *others.shape)))
        rows = self._scattered(parts)
        return replace(old, lead=self.build.reshape(rows, *shape, rows.shape[-1]))

    # Scalars

    def _scalar(self, value: Scalar) -> Register:
        build = self.build
        match value.op:
            case Constant(numbers):
                return build.constant(numbers)
            case Dot(x, y, power):
                return self._dot(value, x, y, power)
            case Apply(f, scalars, axes):
                leading = max(p.ndim for p in scalars) - axes
                arrays = [self._lined(self.scalars[p], p.ndim, leading + axes) for p in scalars]
                return build.step(
                    "apply", *arrays, made=value.shape, words=f"{named(f)} of scalars", f=f, shape=value.shape
                )
            case Take(x, flat):
                return self._taken(self.scalars[x], x.ndim, flat)
            case Join(parts):
                return build.step("join", *(self.scalars[part] for part in parts), axis=0)
        raise ExactError(value, f"{type(value.op).__name__} is unknown to the exact engine")

    def _dot(self, value: Scalar, x: Vector, y: Vector, power: float) -> Register:
        """n^(−power) ⟨x_i, y_j⟩; at infinite width a score is a sum over pairs of directions."""
        a, b = self.vectors[x].lead, self.vectors[y].lead
        by = 1 / self._norm(x) ** (2 if power == 1 else 1)
        if power == 0.5 and math.isinf(self.widths[x.width]):
            self._check_score(value, x, y)
            if x.size <= y.size:
                a = self._crossed(x, y)
            else:
                b = self._crossed(y, x)
        made = self._products(a, b, x.ndim, y.ndim, value.ndim - 1, "p = ⟨q, k⟩" if power == 0.5 else "⟨x, x'⟩/n")
        return self.build.step("scale", made, by=by)

    def _products(self, a: Register, b: Register, x: int, y: int, ndim: int, words: str) -> Register:
        """Σ over blocks and directions of a[…, i, ·, ·] b[…, j, ·, ·]."""
        build, width = self.build, min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
        rows = []
        for array, axes in ((a, x), (b, y)):
            array = self._lined(build.fitted(array, width), axes, ndim)
            rows.append(build.reshape(array, *array.shape[:-2], array.shape[-2] * width))
        return build.step("gram", *rows, words=words)

    def _crossed(self, x: Vector, y: Vector) -> Register:
        """Σ_a x_a N_ab for the directions b of y, in place of the coordinates of x."""
        build, parts = self.build, []
        lead, ours, theirs = self.vectors[x].lead, self.vectors[x].support, self.vectors[y].support
        assert ours is not None and theirs is not None
        for group in self._groups_of(x):
            frame, places = self.frames[group], group.positions[x]
            if y not in group.positions or frame.directions == 0:
                parts.append((places, build.constant(np.zeros((*places.shape, 0)))))
                continue
            rows = self._gathered(lead, places, frame.directions)
            here = ours.reshape(-1, ours.shape[-1])[places.ravel()].any(axis=0)
            there = theirs.reshape(-1, theirs.shape[-1])[group.positions[y].ravel()].any(axis=0)
            total: Register | None = None
            for j, second in enumerate(frame.blocks):
                if not there[second.start : second.stop].any():
                    continue
                for i, first in enumerate(frame.blocks):
                    if here[first.start : first.stop].any():
                        some = build.step("part", rows, start=first.start, stop=first.stop)
                        made = build.step("product", some, frame.normals(i, j))
                        wide = build.step("pad", made, before=second.start, after=frame.directions - second.stop)
                        total = wide if total is None else build.step("add", total, wide)
            parts.append((places, total if total is not None else build.constant(np.zeros((*places.shape, 0)))))
        rows = self._scattered(parts)
        return build.reshape(rows, *lead.shape[:-1], rows.shape[-1])

    def _check_score(self, value: Scalar, x: Vector, y: Vector) -> None:
        """A score has a limit that is known if its factors have no direction in common, and are functions of none."""
        kinds = {self.frames[group].kind for v in (x, y) for group in self._groups_of(v)}
        if AT_NODES in kinds:
            raise ExactError(
                value, "a score in a space where a nonlinearity acts on a mixture of another's outputs, at width inf"
            )
        ndim = value.ndim - 1
        marks, odd, features, behind = [], [], [], []
        for v in (x, y):
            support = self.vectors[v].support
            assert support is not None
            flat = support.reshape(-1, support.shape[-1])
            strange, kind, back = np.zeros((3, *flat.shape), dtype=bool)
            for group in self._groups_of(v):
                frame, places = self.frames[group], group.positions[v]
                size = min(flat.shape[-1], frame.directions)
                # (1, …, 1) has a score with sources alone, as a feature has
                strange[places.ravel(), :size] = frame.mask(
                    [b for b in frame.blocks if b.feature or b.number == NO_VALUE]
                )[:size]
                kind[places.ravel(), :size] = frame.mask([b for b in frame.blocks if b.feature])[:size]
                back[places.ravel(), :size] = np.repeat(frame.behind, places.shape[1], axis=0)[:, :size]
            shape = (*(1,) * (ndim - v.ndim), *support.shape)
            marks.append(support.reshape(shape))
            odd.append((flat & strange).any(axis=-1).reshape(shape[:-1]))
            features.append((flat & kind).any(axis=-1).reshape(shape[:-1]))
            behind.append((flat & back).any(axis=-1).reshape(shape[:-1]))
        width = min(m.shape[-1] for m in marks)
        common = _paired(marks[0][..., :width], marks[1][..., :width])
        if common.any():
            raise ExactError(
                value, "a score of factors that share a source, or a mean, diverges or has no known law as n → ∞"
            )
        met = odd[0][..., :, None, :] & odd[1][..., None, :, :]
        met |= features[0][..., :, None, :] & behind[1][..., None, :, :]
        met |= behind[0][..., :, None, :] & features[1][..., None, :, :]
        if met.any():
            raise ExactError(
                value,
                "a score of two vectors that met nonlinearities or have means, or of one with what it is a function of, "
                "has no known law as n → ∞",
            )

    # Outputs

    def _results(self) -> tuple[Register, Register]:
        """For all outputs, side by side: mean and coefficients, so that a coordinate is mean + coefficients · N(0, I).

        Sources that were never drawn are the Gaussian part (Rao–Blackwell); scalars have none.
        """
        build, means, columns = self.build, [], []
        for output in self.outputs:
            if isinstance(output, Scalar):
                means.append(build.reshape(self.scalars[output], output.size))
                columns.append(build.constant(np.zeros((output.size, self.columns - 1))))
                continue
            assert isinstance(output, Vector)
            found = self.vectors[output]
            blocks = self.blocks[output.width]
            first = np.arange(output.size) * blocks  # of the first block
            mean = build.constant(np.zeros(output.size))
            gaussian = build.constant(np.zeros((output.size, self.columns - 1)))
            if found.sample is not None:
                flat = build.reshape(found.sample, output.size * blocks, found.sample.shape[-1])
                flat = build.taken(flat, first, axis=0)
                mean = build.reshape(build.step("part", flat, start=0, stop=1), output.size)
                gaussian = build.fitted(build.step("part", flat, start=1, stop=flat.shape[-1]), self.columns - 1)
            if not math.isinf(self.widths[output.width]) and found.lead.shape[-1]:
                mean = build.step("add", mean, self._first_coordinate(output, found.lead, first))
            means.append(mean)
            columns.append(gaussian)
        if len(means) == 1:
            return means[0], columns[0]
        return build.step("join", *means, axis=0), build.step("join", *columns, axis=0)

    def _first_coordinate(self, output: Vector, lead: Register, first: Ints) -> Register:
        """The first coordinate of vectors whose coordinates in a frame are known, by the orientation of the frame."""
        build, blocks = self.build, self.blocks[output.width]
        flat = build.taken(build.reshape(lead, output.size * blocks, lead.shape[-1]), first, axis=0)
        frames = [self.frames[group] for group in self._groups_of(output)]
        if all(frame.kind == STANDARD and not frame.turned for frame in frames):
            return build.reshape(build.step("part", flat, start=0, stop=1), output.size)
        parts = []
        for group in self._groups_of(output):
            places = group.positions[output]
            oriented = self.frames[group].orientation()
            wide = build.reshape(oriented, group.frames, 1, oriented.shape[-1])
            parts.append((places, build.step("spread", wide, shape=(*places.shape, oriented.shape[-1]))))
        o = build.taken(self._scattered(parts), first, axis=0)
        width = max(o.shape[-1], flat.shape[-1])
        row = build.reshape(build.fitted(flat, width), output.size, 1, width)
        column = build.reshape(build.fitted(o, width), output.size, 1, width)
        return build.reshape(build.step("gram", row, column), output.size)


def _marks(a: Register) -> Register:
    """Where an array can be other than 0: everywhere if it is drawn."""
    return Register(a.shape, np.ones((1, *a.shape)) if a.value is None else (a.value != 0).astype(np.float64))


def _zeros(value: Scalar) -> Bools:
    """The scalars that are 0 by the program, at every width: a number that only tends to 0 counts in a score."""
    match value.op:
        case Constant(numbers):
            return np.asarray(numbers == 0)
        case Take(Scalar() as x, flat):
            return _zeros(x).ravel()[flat]
        case Join(parts):
            return np.concatenate([_zeros(part) for part in parts if isinstance(part, Scalar)])
        case Apply(f, (_, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            return np.broadcast_to(allowed == 0, value.shape)
    return np.zeros(value.shape, dtype=bool)


def _paired(a: Bools, b: Bools) -> Bools:
    """Whether rows a[…, i, block, ·] and b[…, j, block, ·] have an entry in common."""
    rows = [m.reshape(*m.shape[:-2], m.shape[-2] * m.shape[-1]).astype(np.float64) for m in (a, b)]
    return np.asarray(rows[0] @ np.swapaxes(rows[1], -1, -2) > 0)


def _coordinates(outputs: Sequence[Value], used: Mapping[Value, list[Value]]) -> set[Value]:
    """The vectors of which the outputs need a coordinate: back from them to the sources."""
    found: set[Value] = set()
    pending: list[Value] = [output for output in outputs if isinstance(output, Vector)]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += used[value]
            if not isinstance(value.op, Gaussian | MatMul | Fuse | Data):
                pending += [x for x in value.op.inputs if isinstance(x, Vector)]
    return found


def _all_members(values: Sequence[Value]) -> dict[Source, list[int]]:
    """The members of each matrix that act anywhere in the program."""
    found: dict[Source, list[int]] = {}
    for value in values:
        if isinstance(value.op, MatMul):
            known = found.setdefault(value.op.weight.source, [])
            known += [int(m) for m in value.op.weight.members.ravel() if int(m) not in known]
    return found


def _last_uses(values: Sequence[Value], outputs: Sequence[Value]) -> dict[Value, int]:
    """The place of the last value that needs the coordinates of each."""
    last = dict.fromkeys(values, -1)
    for k, value in enumerate(values):
        for x in value.op.inputs:
            last[x] = k
    for output in outputs:
        last[output] = len(values)
    return last
