"""The state of a lowering: what is known of a program before a step is made, and what was made so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...language._graph import ordered
from ...language._names import names_of
from ...language._operation import Data, Dot, Gaussian, MatMul, Nonlin, Normal
from ...language._stretch import Stretch
from ...language._value import Scalar, Value, Vector
from .._error import ExactError
from .._plan import LARGEST, Builder, Register
from ..passes._operations import Fuse
from ..passes._rewrite import Context, asked, asked_together, linear_sources
from ..passes.leaves import leaves
from ._clusters import Clusters, Group, blocks_of
from ._features import Rests
from ._frame import AT_NODES, GROWING, LIMIT, STANDARD, UNITS, Frame

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Turned:
    """By what rotary positions the vectors of a value at infinite width were turned: a position each, (*shape,)."""

    positions: Floats
    base: float
    fraction: float
    stretch: Stretch | None = None

    @property
    def rule(self) -> tuple[float, float, Stretch | None]:
        """By what positions become angles: two values turned by one rule have products."""
        return self.base, self.fraction, self.stretch


@dataclass(frozen=True, eq=False)
class Lowered:
    """A vector value: `lead`, coordinates in the frame (*shape, blocks, directions).

    `sample` is what an output needs to know of the coordinates α asked for (*shape, blocks, ·): a value each so far,
    then coefficients of Gaussian variables that are never drawn, a set of which each coordinate has for itself. At
    infinite width, `support` says along which directions there can be coordinates of order 1, and `turned` by what
    rotary positions the vectors were turned that these coordinates stand for.
    """

    lead: Register
    sample: Register | None = None
    support: Bools | None = None
    turned: Turned | None = None
    start: int = 0  # before this direction all coordinates are 0


Unit = tuple[str | None, float]  # ε = (factor · width)^(−1/2), by the name of a width


@dataclass(frozen=True, eq=False)
class Faint:
    """An ε part: the numbers as far as they are known, where they can be other than 0, and where they are unknown."""

    part: Register | None
    support: Bools
    unknown: Bools
    unit: Unit | None = None  # of scalars that have one


class State:
    """Facts about one program, and its values that are lowered already."""

    def __init__(
        self,
        outputs: list[Value],
        context: Context,
        without: frozenset[str],
        shift: int,
        picked: Sequence[int] | None,
        written: Sequence[Value],
        nested: frozenset[int] = frozenset(),
    ) -> None:
        self.nested = nested  # groups in which a nonlinearity acts on another's outputs
        self.outputs, self.context, self.without, self.chosen = outputs, context, without, picked is not None
        self.picked = (0,) if picked is None else tuple(picked)
        self.written = written  # the outputs as they were: a scalar may have become a vector
        self.build = Builder(shift)
        values = ordered(_shallow_first(outputs))
        self.names = names_of(ordered(written))
        made = linear_sources(values)
        self.virtual = {source for value in values if isinstance(value.op, Fuse) for source in made[value.op.x]}
        edges = asked_together(values, made)
        self.coordinates = _coordinates(outputs)
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
        self.with_vectors: dict[Value, list[Group]] = {}
        self.with_sources: dict[Value, list[Group]] = {}
        for group in self.groups:
            for table, found in ((group.positions, self.with_vectors), (group.slots, self.with_sources)):
                for value in table:
                    found.setdefault(value, []).append(group)
        self.into = {
            s for v in values if isinstance(v.op, Nonlin) and v in self.coordinates for x in asked(v) for s in made[x]
        }
        if "undrawn" in without:
            self.into |= self.coordinates
        scores = [v.op for v in values if isinstance(v.op, Dot) and v.op.power == 0.5]
        self.scored = {group for op in scores for x in (op.x, op.y) for group in self.groups_of(x)}
        for group in self.groups:
            self._check_room(group)
        self.frames = {group: Frame(group, self._kind(group), self.build, self.picked) for group in self.groups}
        self.rests = {group: self._rests(group, edges) for group in self.groups}
        self.vectors: dict[Value, Lowered] = {}
        self.held: dict[Group, list[Value]] = {group: [] for group in self.groups}  # those of `vectors` still in use
        self.scalars: dict[Value, Register] = {}
        self.faint: dict[Value, Faint] = {}  # and the parts of order n^(−1/2) that were asked for
        self.asked: dict[Value, Bools] | None = None  # the entries that outputs depend on, once that was asked for
        self.marks: dict[Value, Bools] = {}  # at infinite width, which scalars can be other than 0
        self.columns = len(self.picked)  # of `sample`: a value each, then a Gaussian variable each
        self.last = {value: k for k, value in enumerate(self.values)}
        self.number: dict[Value, tuple[int, int]] = {}  # what seeds are made from: the place as written, and a count
        count: Counter[int] = Counter()
        for value in values:
            if isinstance(value.op, Normal) or (value in made and value in made[value]):
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
                    f"a nonlinearity at width {group.width:.0f} needs {size:.1e} bytes for its coordinates",
                    instead="take the width inf, or a smaller one",
                )

    def _kind(self, group: Group) -> str:
        """What coordinates the vectors of a group have."""
        if any(value in self.virtual for value in group.slots):
            return UNITS
        if group.width < math.inf:
            return STANDARD if group.nonlinear or group.given else GROWING
        return AT_NODES if group.number in self.nested else LIMIT

    def _rests(self, group: Group, edges: Mapping[Value, set[Value]]) -> dict[Value, tuple[Rests, bool]]:
        """For each nonlinearity of a group at infinite width: with which others it is asked for products.

        And whether with linear vectors too.
        """
        parts: list[set[Value | None]] = [{None}]  # None stands for all linear vectors
        for value in (v for v in group.nonlinear if isinstance(v.op, Nonlin)):
            near: set[Value | None] = {x if isinstance(x.op, Nonlin) else None for x in edges.get(value, ())}
            if "apart" in self.without:
                near.add(None)
            joined: set[Value | None] = {x for x in near if x is None or x in group.nonlinear}
            joined.add(value)
            for part in [p for p in parts if p & joined]:
                joined |= part
                parts.remove(part)
            parts.append(joined)
        found: dict[Value, tuple[Rests, bool]] = {}
        for part in parts:
            rests = Rests()
            found.update({value: (rests, None in part) for value in part if value is not None})
        return found

    def lined(self, a: Register, ndim: int, to: int) -> Register:
        """An array of values with `ndim` axes, with axes of size 1 set in front, so that it broadcasts."""
        return self.build.reshape(a, *(1,) * (to - ndim), *a.shape)

    def scattered(self, parts: Sequence[tuple[Ints, Register]]) -> Register:
        """Arrays (frames, k, …, ·) laid out by their positions, (positions, …, ·)."""
        build = self.build
        width = max(a.shape[-1] for _, a in parts)
        flat = [build.fitted(build.reshape(a, a.shape[0] * a.shape[1], *a.shape[2:]), width) for _, a in parts]
        rows = build.step("join", *flat, axis=0) if len(flat) > 1 else flat[0]
        return build.taken(rows, np.argsort(np.concatenate([p.ravel() for p, _ in parts])), axis=0)

    def gathered(self, a: Register, places: Ints, width: int) -> Register:
        """The vectors of a value that lie in a group, (frames, vectors, directions)."""
        flat = self.build.reshape(a, math.prod(a.shape[:-1]), a.shape[-1])
        chosen = self.build.taken(self.build.fitted(flat, width), places.ravel(), axis=0)
        return self.build.reshape(chosen, *places.shape, width)

    def groups_of(self, value: Value) -> list[Group]:
        """The groups that have vectors of a value."""
        return self.with_vectors.get(value, [])

    def groups_from(self, value: Value) -> list[Group]:
        """The groups that have sources of a value."""
        return self.with_sources.get(value, [])

    def norm(self, x: Value) -> float:
        """What coordinates are divided by so that their products are means over the coordinates α."""
        assert isinstance(x, Vector)
        width = self.widths[x]
        return math.sqrt(self.blocks[x] * (1.0 if math.isinf(width) else width))

    def words(self, value: Value) -> str:
        match value.op:
            case MatMul(weight):
                return f"{self.names.get(weight.source, weight.source.name or 'W')} x"
            case Gaussian():
                return "initial vectors"
        return "combined sources"

    def argument(self, x: Value, value: Value, places: Ints) -> Ints:
        """Where the entries of an argument are that belong to the entries of a value at these flat places."""
        blocks = self.blocks[value]
        index = np.broadcast_to(np.arange(x.size).reshape(x.shape), value.shape).ravel()
        if isinstance(x, Scalar):
            return np.asarray(index[places // blocks])
        return np.asarray(index[places // blocks] * blocks + places % blocks)

    def ones(self, value: Vector) -> Register:
        """The coordinates of (1, …, 1) in the frame of each vector of a value; 0 where its cluster has no means."""
        parts = []
        for group in self.groups_of(value):
            row, count = self.frames[group].constant, group.positions[value].shape[1]
            if row is None:
                row = self.build.constant(np.zeros((group.frames, 0)))
            wide = self.build.reshape(row, group.frames, 1, row.shape[-1])
            parts.append(
                (group.positions[value], self.build.step("spread", wide, shape=(group.frames, count, row.shape[-1])))
            )
        rows = self.scattered(parts)
        return self.build.reshape(rows, *value.shape, self.blocks[value], rows.shape[-1])


def _shallow_first(outputs: Sequence[Value]) -> list[Value]:
    """Outputs of early layers before those of late ones: so what they are made of need not be kept until the end."""
    depth: dict[Value, int] = {}
    for value in ordered(outputs):
        depth[value] = 1 + max((depth[x] for x in value.op.inputs), default=0)
    return sorted(outputs, key=lambda output: depth[output])


def _coordinates(outputs: Sequence[Value]) -> set[Value]:
    """The vectors of which the outputs need a coordinate: back from them to the sources."""
    found: set[Value] = set()
    pending: list[Value] = [output for output in outputs if isinstance(output, Vector)]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            if not isinstance(value.op, Gaussian | MatMul | Fuse | Data):
                pending += [x for x in value.op.inputs if isinstance(x, Vector)]
    return found
