"""Products of vectors: means over the coordinates, and scores.

At infinite width a score is what is left of a product when its part of order 1 is 0 (see `dual`): a sum over pairs of
directions, Σ_ab x_a N_ab y_b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, product

import numpy as np

from ...language._operation import Dot
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._error import ExactError
from .._steps import Register
from ._bits import bits, lowest
from ._clusters import Group
from ._rotation import gaps_of, picked
from ._state import State

Normals = Callable[[Group, int, int, bool], Register]  # of two blocks, and whether of directions with themselves


def mean(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n; of vectors turned by rotary positions, times κ of their difference."""
    made, turned = products(s, x, y, value.ndim, "⟨x, x'⟩/n"), gaps_of(s, value, x, y)
    if turned is not None:
        return s.build.step("multiply", made, s.build.constant(turned[1].kappa(turned[0])))
    return s.build.step("scale", made, by=1 / s.norm(x) ** 2)


def products(s: State, x: Vector, y: Vector, ndim: int, words: str) -> Register:
    """Σ over blocks and directions of x[…, i, ·, ·] y[…, j, ·, ·], in an array with so many axes."""
    return paired_products(s, s.vectors[x].lead, s.vectors[y].lead, x, y, ndim, words)


def paired_products(s: State, a: Register, b: Register, x: Vector, y: Vector, ndim: int, words: str = "") -> Register:
    """The same of arrays in place of the coordinates of x and y."""
    width = min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
    rows = [s.lined(s.rows(array, width), v.ndim, ndim - 1) for array, v in ((a, x), (b, y))]
    return s.build.step("gram", *rows, words=words)


def products_of_coordinates(s: State, value: Scalar) -> Register | None:
    """X^T X/n in place of the means X X^T/n of vectors with themselves, if it is smaller: same eigenvalues, but for 0.

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


def crossed_products(s: State, x: Vector, y: Vector, ndim: int, normals: Normals) -> Register:
    """Σ_ab x_a N_ab y_b, summed over blocks."""
    more, other = (x, y) if x.size <= y.size else (y, x)
    start, stop = _reach(s, other)
    a, b = _crossed(s, more, other, start, stop, (), normals), s.vectors[other].lead
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

    def normals(group: Group, i: int, j: int, same: bool) -> Register:
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


def _reach(s: State, x: Vector) -> tuple[int, int]:
    """The range of directions along which vectors of a value can have coordinates."""
    found = bits(s.support(x))
    return lowest(found, 0), found.bit_length()


def _crossed(
    s: State, x: Vector, y: Vector, start: int, stop: int, more: tuple[int, ...], normals: Normals
) -> Register:
    """Σ_a x_a N_ab for the directions b of y in a range, in place of the coordinates of x (*shape, blocks, *more, ·).

    The normals of two blocks of directions are (frames, a's, more · b's).
    """
    build, lead, parts = s.build, s.vectors[x].lead, []

    def terms(group: Group) -> Iterator[Register]:
        blocks, places = s.limit(group).blocks, group.positions[x]
        rows = s.gathered(lead, places, s.frames[group].directions)
        here, there = (_directions(s, v, group) for v in (x, y))
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
    rows = s.scattered(parts)
    return build.reshape(rows, *lead.shape[:-1], *more, rows.shape[-1])


def _directions(s: State, x: Vector, group: Group) -> int:
    """The directions of a frame that some vector of a value reaches."""
    support = s.support(x)
    return bits(support.reshape(-1, support.shape[-1])[group.positions[x].ravel()])
