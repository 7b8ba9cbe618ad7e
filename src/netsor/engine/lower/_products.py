"""Products of vectors: means over the coordinates, and scores.

At infinite width a score is what is left of a product when its part of order 1 is 0 (see `dual`): a sum over pairs of
directions, Σ_ab x_a N_ab y_b.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...language._value import Scalar, Vector
from .._error import ExactError
from .._plan import Register
from ._bits import bits, lowest
from ._clusters import Group
from ._rotation import Angles, process, turned_products
from ._state import Floats, State


def mean(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n."""
    if process(s, value, x, y) is not None:
        return turned_products(s, value, x, y, None)
    made = products(s, x, y, value.ndim, "⟨x, x'⟩/n")
    return s.build.step("scale", made, by=1 / s.norm(x) ** 2)


def products(s: State, x: Vector, y: Vector, ndim: int, words: str) -> Register:
    """Σ over blocks and directions of x[…, i, ·, ·] y[…, j, ·, ·], in an array with so many axes."""
    return paired_products(s, s.vectors[x].lead, s.vectors[y].lead, x, y, ndim, words)


def paired_products(s: State, a: Register, b: Register, x: Vector, y: Vector, ndim: int, words: str = "") -> Register:
    """The same of arrays in place of the coordinates of x and y."""
    build, width = s.build, min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
    rows = []
    for array, v in ((a, x), (b, y)):
        array = s.lined(build.fitted(array, width), v.ndim, ndim - 1)
        rows.append(build.reshape(array, *array.shape[:-2], array.shape[-2] * width))
    return build.step("gram", *rows, words=words)


Prepare = Callable[
    [State, Group, int, int], None
]  # makes normals of two blocks of a frame that have a rule of their own


def crossed_products(s: State, x: Vector, y: Vector, ndim: int, prepare: Prepare) -> Register:
    """Σ_ab x_a N_ab y_b, summed over blocks."""
    a, b = s.vectors[x].lead, s.vectors[y].lead
    if x.size <= y.size:
        start, stop = _reach(s, y)
        a, b = crossed(s, x, y, prepare), s.build.step("part", b, start=start, stop=stop)
    else:
        start, stop = _reach(s, x)
        a, b = s.build.step("part", a, start=start, stop=stop), crossed(s, y, x, prepare)
    return paired_products(s, a, b, x, y, ndim, "p = ⟨q, k⟩")


def turned_scores(s: State, value: Scalar, x: Vector, y: Vector) -> Register | None:
    """Scores of vectors of which some were turned by rotary positions; None if none was."""
    turned = process(s, value, x, y)
    return None if turned is None else turned_products(s, value, x, y, crossed(s, x, y, None, (value, *turned)))


def _reach(s: State, x: Vector) -> tuple[int, int]:
    """The range of directions along which vectors of a value can have coordinates."""
    found = bits(s.support(x))
    return lowest(found, 0), found.bit_length()


def crossed(
    s: State, x: Vector, y: Vector, prepare: Prepare | None, turned: tuple[Scalar, Floats, Angles] | None = None
) -> Register:
    """Σ_a x_a N_ab for the directions b that y reaches, in place of the coordinates of x (*shape, blocks, ·).

    For vectors that were turned by positions, Σ_a x_a N_ab(r) for all differences r, (*shape, blocks, r, ·).
    """
    more = () if turned is None else (len(turned[1]),)
    build, parts = s.build, []
    start, stop = _reach(s, y) if turned is None else (0, s.vectors[y].lead.shape[-1])
    lead = s.vectors[x].lead
    for group in s.groups_of(x):
        frame, places = s.limit(group), group.positions[x]
        if y not in group.positions or frame.directions == 0:
            parts.append((places, build.constant(np.zeros((*places.shape, *more, 0)))))
            continue
        rows = s.gathered(lead, places, frame.directions)
        here, there = (_directions(s, v, group) for v in (x, y))
        total: Register | None = None
        for j, second in enumerate(frame.blocks):
            if not there & second.bits:
                continue
            for i, first in enumerate(frame.blocks):
                if here & first.bits:
                    some = build.step("part", rows, start=first.start, stop=first.stop)
                    if prepare is not None:
                        prepare(s, group, i, j)
                    if turned is None:
                        same = i == j and bool(here & there & first.bits)
                        made = build.step("product", some, frame.normals(i, j, same))
                    else:
                        normals = frame.process(i, j, *turned[1:])
                        if normals is None:
                            raise ExactError(
                                turned[0],
                                "vectors asked for scores by different bases or fractions of rotary positions, or with "
                                "vectors drawn together with them, at width inf",
                            )
                        made = build.step("product", some, normals)
                        made = build.reshape(made, *made.shape[:2], *more, second.stop - second.start)
                    low, high = max(second.start, start), min(second.stop, stop)
                    made = build.step("part", made, start=low - second.start, stop=high - second.start)
                    wide = build.step("pad", made, before=low - start, after=stop - high)
                    total = wide if total is None else build.step("add", total, wide)
        parts.append((places, total if total is not None else build.constant(np.zeros((*places.shape, *more, 0)))))
    rows = s.scattered(parts)
    return build.reshape(rows, *lead.shape[:-1], *more, rows.shape[-1])


def _directions(s: State, x: Vector, group: Group) -> int:
    """The directions of a frame that some vector of a value reaches."""
    support = s.support(x)
    return bits(support.reshape(-1, support.shape[-1])[group.positions[x].ravel()])
