"""Inner products of vectors: means over the coordinates, and scores.

At infinite width a score is what is left of a product when its part of order 1 is 0 (see `_dual_numbers`): a sum over
pairs of directions, Σ_ab x_a N_ab y_b (docs/theory.md, equation 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, product

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
from ._infinite_frames import NodeFrame
from ._rotary_angles import Angles, Floats
from ._state import LoweredVector, RotaryPositions, State


def rotated(s: State, value: Vector, op: Rotate) -> LoweredVector:
    """R_{t_i} x_i, the tokens along the last axis."""
    build, x, blocks = s.build, s.vectors[op.x], s.facts.blocks[value]
    if value in s.facts.limits:
        if blocks > 1:
            raise ExactError(value, "rotary positions of a concatenation of narrower vectors, at width inf")
        turned = RotaryPositions(np.broadcast_to(op.positions, value.shape), Angles(op.base, op.fraction, op.stretch))
        return LoweredVector(x.lead, x.sample, x.sets, turned)
    width = int(s.facts.widths[value])
    key = content_of(op.positions), op.base, op.fraction, op.stretch, blocks * width
    if key not in s.turns:
        angles = op.angles(blocks * width)
        s.turns[key] = tuple(build.constant(f(angles)[:, None, :]) for f in (np.cos, np.sin))
    cos, sin = s.turns[key]
    whole = build.reshape(build.pad_or_cut(x.lead, width), *value.shape, 1, blocks * width)
    lead = build.step("rotate", whole, cos, sin, words="coordinates turned by positions")
    return LoweredVector(build.reshape(lead, *value.shape, blocks, width))


def gaps_of(s: State, value: Scalar, x: Vector, y: Vector) -> tuple[Floats, Angles] | None:
    """The differences t_j − s_i of positions in an array of products, and the angles; None if nothing was turned."""
    found = [s.vectors[v].turned for v in (x, y)]
    angles = {t.by for t in found if t is not None}
    if not angles:
        return None
    if len(angles) > 1:
        raise ExactError(value, "a product of vectors turned by different bases, fractions or stretches, at width inf")
    if not (x.ndim and y.ndim):
        raise ExactError(value, "a product of single vectors that were turned, at width inf")
    first, second = (np.zeros(v.shape) if t is None else t.positions for t, v in zip(found, (x, y), strict=True))
    return second[..., None, :] - first[..., :, None], angles.pop()


def picked(s: State, value: Scalar, x: Vector, y: Vector, gaps: Floats, crossed: Register) -> Register:
    """Scores from Σ_a x_a N_ab(r) for all differences r and the directions b of y, (*shape of x, 1, r, directions)."""
    build, ndim = s.build, value.ndim - 1
    made = s.align_axes(crossed, x.ndim, ndim)  # (…, i, 1, r, directions)
    *front, i, _, count, directions = made.shape
    made = build.reshape(made, math.prod(front) * i * count, directions)
    _, place = np.unique(gaps, return_inverse=True)
    b = s.align_axes(s.vectors[y].lead, y.ndim, ndim)
    at = np.arange(math.prod(front) * i).reshape(*front, i, 1) * count + place.reshape(gaps.shape)
    batch = np.broadcast_shapes(tuple(front), b.shape[:-3])
    at = np.broadcast_to(at, (*batch, i, b.shape[-3]))
    chosen = build.reshape(build.take(made, at.ravel(), axis=0), *at.shape, directions)  # (…, i, j, directions)
    keys = build.pad_or_cut(build.reshape(b, *b.shape[:-3], 1, b.shape[-3], b.shape[-1]), directions)
    return build.step("total", build.step("multiply", chosen, keys), words="p = ⟨R q, R k⟩")


Normals = Callable[[FrameBatch, int, int, bool], Register]  # of two blocks, and whether of directions with themselves


def mean(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n; of vectors turned by rotary positions, times κ of their difference."""
    made, turned = products(s, x, y, value.ndim, "⟨x, x'⟩/n"), gaps_of(s, value, x, y)
    if turned is not None:
        return s.build.step("multiply", made, s.build.constant(turned[1].kappa(turned[0])))
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
    a, b = (
        _crossed(s, more, other, start, stop, (), lambda group, *blocks: s.limit(group).normals(*blocks)),
        s.vectors[other].lead,
    )
    rows = a, s.build.step("part", b, start=start, stop=stop)
    return paired_products(s, *(rows if more is x else rows[::-1]), x, y, ndim, "p = ⟨q, k⟩")


def turned_scores(s: State, value: Scalar, x: Vector, y: Vector) -> Register | None:
    """Scores of vectors of which some were turned by rotary positions; None if none was.

    Their normals N_ab are processes over the differences of positions.
    """
    turned = gaps_of(s, value, x, y)
    if turned is None:
        return None
    gaps, by = turned
    each = np.unique(gaps)

    def normals(group: FrameBatch, i: int, j: int, same: bool) -> Register:
        made = s.limit(group).process(i, j, each, by)
        if made is None:
            raise ExactError(
                value,
                "vectors asked for scores by different bases or fractions of rotary positions, or with "
                "vectors drawn together with them, at width inf",
            )
        return made

    crossed = _crossed(s, x, y, 0, s.vectors[y].lead.shape[-1], (len(each),), normals)
    return picked(s, value, x, y, gaps, crossed)


def _crossed(
    s: State, x: Vector, y: Vector, start: int, stop: int, more: tuple[int, ...], normals: Normals
) -> Register:
    """Σ_a x_a N_ab for the directions b of y in a range, instead of the coordinates of x (*shape, blocks, *more, ·).

    The normals of two blocks of directions are (frames, a's, more · b's).
    """
    build, lead, parts = s.build, s.vectors[x].lead, []

    def terms(group: FrameBatch) -> Iterator[Register]:
        frame, places = s.frames[group], group.positions[x]
        rows = s.gather(lead, places, frame.directions)
        if isinstance(frame, NodeFrame):
            if more:
                raise ExactError(y, "scores of outputs of nonlinearities turned by rotary positions, at width inf")
            yield build.pad_or_cut(build.step("multiply", rows, frame.white_noise()), stop)
            return
        blocks = s.limit(group).blocks
        here, there = (union(s.sets(v).ravel()[group.positions[v]]) for v in (x, y))
        ours, theirs = ([(k, b) for k, b in enumerate(blocks) if b.bits & some] for some in (here, there))
        for (j, b), (i, a) in product(theirs, ours):
            some = build.step("part", rows, start=a.start, stop=a.stop)
            made = build.step("product", some, normals(group, i, j, i == j and bool(here & there & a.bits)))
            made = build.reshape(made, *places.shape, *more, b.stop - b.start)
            low, high = max(b.start, start), min(b.stop, stop)
            made = build.step("part", made, start=low - b.start, stop=high - b.start)
            yield build.step("pad", made, before=low - start, after=stop - high)

    for group in s.groups_of(x):
        shape = (*group.positions[x].shape, *more, 0)
        some = terms(group) if y in group.positions else iter(())
        one = next(some, build.constant(np.zeros(shape)))
        parts.append((group.positions[x], build.fold("add", chain([one], some))))
    rows = s.scatter(parts)
    return build.reshape(rows, *lead.shape[:-1], *more, rows.shape[-1])
