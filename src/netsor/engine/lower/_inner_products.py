"""Inner products of vectors: means over coordinates, and scores.

At infinite width a score is the ε part of a product whose part of order 1 is 0 (see `_dual_numbers`): a sum over pairs
of directions, Σ_ab x_a N_ab y_b (docs/theory.md, equation 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ...language._check_function import content_of
from ...language._operation import Dot
from ...language._rotary import Rotate
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._exceptions import ExactError
from .._ir import Register
from ..passes._orders import union
from ._components import FrameBatch
from ._infinite_frames import InfiniteWidthFrame, NodeFrame
from ._linear import without_rounding
from ._state import LoweredVector, State


def rotated(s: State, value: Vector, op: Rotate) -> LoweredVector:
    """R_{t_i} x_i, the tokens along the last axis."""
    build, x, blocks = s.build, s.vectors[op.x], s.facts.blocks[value]
    if value in s.facts.limits:
        raise ExactError(
            value,
            "rotary positions of vectors at width inf",
            instead="bind their width to a number, d=64 say: the stream may be infinitely wide",
        )
    width = int(s.facts.widths[value])
    key = content_of(op.positions), op.base, op.fraction, op.stretch, blocks * width
    if key not in s.turns:
        angles = op.angles(blocks * width)
        s.turns[key] = tuple(build.constant(f(angles)[:, None, :]) for f in (np.cos, np.sin))
    cos, sin = s.turns[key]
    whole = build.reshape(build.pad_or_cut(x.lead, width), *value.shape, 1, blocks * width)
    lead = build.step("rotate", whole, cos, sin, words="coordinates turned by positions")
    return LoweredVector(build.reshape(lead, *value.shape, blocks, width))


def mean(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n."""
    made = products(s, x, y, value.ndim, "⟨x, x'⟩/n")
    if x in s.facts.limits:
        arrays = [s.vectors[v].lead for v in (x, y)]
        made = without_rounding(
            s, lambda sizes, _: paired_products(s, sizes[0], sizes[1], x, y, value.ndim), made, arrays
        )
    if any(isinstance(s.frames[group], NodeFrame) for group in s.groups_of(x)):  # no quadrature error for a known 0
        made = s.build.step("multiply", made, s.build.constant(s.meets(x, y, value.ndim) * 1.0))
    return s.build.step("scale", made, by=1 / s.norm(x) ** 2)


def products(s: State, x: Vector, y: Vector, ndim: int, words: str) -> Register:
    """Σ over blocks and directions of x[…, i, ·, ·] y[…, j, ·, ·], in an array with so many axes."""
    return paired_products(s, s.vectors[x].lead, s.vectors[y].lead, x, y, ndim, words)


def paired_products(s: State, a: Register, b: Register, x: Vector, y: Vector, ndim: int, words: str = "") -> Register:
    """The same of arrays instead of the coordinates of x and y."""
    width = min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
    rows = [s.align_axes(s.rows(array, width), v.ndim, ndim - 1) for array, v in ((a, x), (b, y))]
    return s.build.step("gram", *rows, words=words)


def products_of_coordinates(s: State, value: Scalar) -> Register | None:
    """X^T X/n instead of the means X X^T/n of vectors with themselves, if it is smaller: same eigenvalues, but for 0.

    None if it is not smaller, or if the value is not such means.
    """
    op = value.op
    if not isinstance(op, Dot) or op.power != 1 or op.x is not op.y or op.x in s.facts.limits:
        return None
    x = s.rows(s.vectors[op.x].lead, s.vectors[op.x].lead.shape[-1])
    if len(x.shape) < 2 or x.shape[-1] >= x.shape[-2]:
        return None
    columns = s.build.step("transposed", x)
    return s.build.step("scale", s.build.step("gram", columns, columns, words="X^T X/n"), by=1 / s.norm(op.x) ** 2)


def crossed_products(s: State, x: Vector, y: Vector, ndim: int) -> Register:
    """Σ_ab x_a N_ab y_b, summed over blocks."""
    more, other = (x, y) if x.size <= y.size else (y, x)
    start, stop = s.reach(other)
    rows = _crossed(s, more, other, start, stop), s.build.step("part", s.vectors[other].lead, start=start, stop=stop)
    return paired_products(s, *(rows if more is x else rows[::-1]), x, y, ndim, "p = ⟨q, k⟩")


def _crossed(s: State, x: Vector, y: Vector, start: int, stop: int) -> Register:
    """Σ_a x_a N_ab for the directions b of y in a range, instead of the coordinates of x."""
    build, lead, parts = s.build, s.vectors[x].lead, []

    def terms(group: FrameBatch) -> Iterator[Register]:
        frame = s.frames[group]
        rows = s.gather(lead, group.positions[x], frame.directions)
        if isinstance(frame, NodeFrame):
            yield build.pad_or_cut(build.step("multiply", rows, frame.white_noise()), stop)
            return
        assert isinstance(frame, InfiniteWidthFrame)
        here, there = (union(s.sets(v).ravel()[group.positions[v]]) for v in (x, y))
        ours, theirs = ([(k, b) for k, b in enumerate(frame.blocks) if b.bits & some] for some in (here, there))
        for (j, b), (i, a) in product(theirs, ours):
            normals = frame.normals(i, j, i == j and bool(here & there & a.bits))
            made = build.step("product", build.step("part", rows, start=a.start, stop=a.stop), normals)
            low, high = max(b.start, start), min(b.stop, stop)
            made = build.step("part", made, start=low - b.start, stop=high - b.start)
            yield build.step("pad", made, before=low - start, after=stop - high)

    for group in s.groups_of(x):
        places = group.positions[x]
        found = list(terms(group)) if y in group.positions else []
        parts.append((places, build.fold("add", found or [build.constant(np.zeros((*places.shape, 0)))])))
    return s.scatter(parts, *lead.shape[:-1])
