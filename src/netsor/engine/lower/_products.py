"""Products of vectors: means and scores. At infinite width a score is a sum over pairs of directions."""

from __future__ import annotations

import math

import numpy as np

from ...language._asked import asked_entries
from ...language._expand import Expansion
from ...language._value import Scalar, Vector
from .._error import ExactError
from .._plan import Register
from ._frame import AT_NODES, NO_VALUE
from ._rotary import Angles, process, turned_products
from ._state import Bools, Floats, State


def dot(s: State, value: Scalar, x: Vector, y: Vector, power: float) -> Register:
    """n^(−power) ⟨x_i, y_j⟩; at infinite width a score is a sum over pairs of directions."""
    a, b = s.vectors[x].lead, s.vectors[y].lead
    by = 1 / s.norm(x) ** (2 if power == 1 else 1)
    turned = process(s, value, x, y)
    if power == 0.5 and math.isinf(s.widths[x]):
        _check_score(s, value, x, y)
        if turned is not None:
            return turned_products(s, value, x, y, _crossed(s, value, x, y, turned))
        if x.size <= y.size:
            start, stop = _reach(s, y)
            a, b = _crossed(s, value, x, y), s.build.step("part", b, start=start, stop=stop)
        else:
            start, stop = _reach(s, x)
            a, b = s.build.step("part", a, start=start, stop=stop), _crossed(s, value, y, x)
    if turned is not None:
        return turned_products(s, value, x, y, None)
    made = _products(s, a, b, x.ndim, y.ndim, value.ndim - 1, "p = ⟨q, k⟩" if power == 0.5 else "⟨x, x'⟩/n")
    return s.build.step("scale", made, by=by)


def _products(s: State, a: Register, b: Register, x: int, y: int, ndim: int, words: str) -> Register:
    """Σ over blocks and directions of a[…, i, ·, ·] b[…, j, ·, ·]."""
    build, width = s.build, min(a.shape[-1], b.shape[-1])  # beyond, one of them is 0
    rows = []
    for array, axes in ((a, x), (b, y)):
        array = s.lined(build.fitted(array, width), axes, ndim)
        rows.append(build.reshape(array, *array.shape[:-2], array.shape[-2] * width))
    return build.step("gram", *rows, words=words)


def _reach(s: State, x: Vector) -> tuple[int, int]:
    """The range of directions along which vectors of a value can have coordinates."""
    support = s.vectors[x].support
    assert support is not None
    found = np.flatnonzero(support.reshape(-1, support.shape[-1]).any(axis=0))
    return (int(found[0]), int(found[-1]) + 1) if found.size else (0, 0)


def _crossed(s: State, value: Scalar, x: Vector, y: Vector, turned: tuple[Floats, Angles] | None = None) -> Register:
    """Σ_a x_a N_ab for the directions b that y reaches, in place of the coordinates of x (*shape, blocks, ·).

    For vectors that were turned by positions, Σ_a x_a N_ab(r) for all differences r, (*shape, blocks, r, ·).
    """
    more = () if turned is None else (len(turned[0]),)
    build, parts = s.build, []
    start, stop = _reach(s, y) if turned is None else (0, s.vectors[y].lead.shape[-1])
    lead, ours, theirs = s.vectors[x].lead, s.vectors[x].support, s.vectors[y].support
    if turned is not None:  # what tends to 0 (a mean that a norm takes off) makes nothing of a score
        ours, theirs = s.vectors[x].strong, s.vectors[y].strong
    assert ours is not None
    assert theirs is not None
    for group in s.groups_of(x):
        frame, places = s.frames[group], group.positions[x]
        if y not in group.positions or frame.directions == 0:
            parts.append((places, build.constant(np.zeros((*places.shape, *more, 0)))))
            continue
        rows = s.gathered(lead, places, frame.directions)
        here: Bools = ours.reshape(-1, ours.shape[-1])[places.ravel()].any(axis=0)  # type: ignore[assignment]
        there: Bools = theirs.reshape(-1, theirs.shape[-1])[group.positions[y].ravel()].any(axis=0)  # type: ignore[assignment]
        total: Register | None = None
        for j, second in enumerate(frame.blocks):
            if not there[second.start : second.stop].any():
                continue
            for i, first in enumerate(frame.blocks):
                if here[first.start : first.stop].any():
                    some = build.step("part", rows, start=first.start, stop=first.stop)
                    if turned is None:
                        made = build.step("product", some, frame.normals(i, j))
                    else:
                        normals = frame.process(i, j, *turned)
                        if normals is None:
                            raise ExactError(
                                value,
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


def _check_score(s: State, value: Scalar, x: Vector, y: Vector) -> None:
    """A score has a limit that is known if its factors have no direction in common, and are functions of none."""
    kinds = {s.frames[group].kind for v in (x, y) for group in s.groups_of(v)}
    if AT_NODES in kinds:
        raise ExactError(
            value, "a score in a space where a nonlinearity acts on a mixture of another's outputs, at width inf"
        )
    ndim = value.ndim - 1
    marks, strong, odd, features, behind = [], [], [], [], []
    for v in (x, y):
        support, leading = s.vectors[v].support, s.vectors[v].strong
        assert support is not None
        assert leading is not None
        flat = support.reshape(-1, support.shape[-1])
        strange, kind, back = np.zeros((3, *flat.shape), dtype=bool)
        for group in s.groups_of(v):
            frame, places = s.frames[group], group.positions[v]
            size = min(flat.shape[-1], frame.directions)
            # (1, …, 1) has a score with sources alone, as a feature has
            special = [b for b in frame.blocks if b.feature or b.number == NO_VALUE]
            strange[places.ravel(), :size] = frame.mask(special)[:size]
            kind[places.ravel(), :size] = frame.mask([b for b in frame.blocks if b.feature])[:size]
            back[places.ravel(), :size] = np.repeat(frame.behind, places.shape[1], axis=0)[:, :size]
        shape = (*(1,) * (ndim - v.ndim), *support.shape)
        marks.append(support.reshape(shape))
        strong.append(leading.reshape(*shape[:-1], leading.shape[-1]))
        odd.append((flat & strange).any(axis=-1).reshape(shape[:-1]))
        features.append((flat & kind).any(axis=-1).reshape(shape[:-1]))
        behind.append((flat & back).any(axis=-1).reshape(shape[:-1]))
    # parts that tend to 0 are of order 1/√n: two of them make nothing of a score, one and one of order 1 do
    shared = _paired(marks[0], strong[1]) | _paired(strong[0], marks[1])
    if shared.any() and (shared & _counted(s, value, x, y)).any():
        raise ExactError(
            value, "a score of factors that share a source, or a mean, diverges or has no known law as n → ∞"
        )
    met = features[0][..., :, None, :] & odd[1][..., None, :, :]
    met |= odd[0][..., :, None, :] & features[1][..., None, :, :]
    met |= features[0][..., :, None, :] & behind[1][..., None, :, :]
    met |= behind[0][..., :, None, :] & features[1][..., None, :, :]
    if met.any() and (met.any(axis=-1) & _counted(s, value, x, y)).any():
        raise ExactError(
            value,
            "a score of two vectors that met nonlinearities or have means, or of one with what it is a function of, "
            "has no known law as n → ∞",
        )


def _counted(s: State, value: Scalar, x: Vector, y: Vector) -> Bools:
    """The scores that something asks for (a mask may leave out some), of factors that are not 0 at every width."""
    expansion, counted = Expansion(s.values), asked_entries(s.outputs)[value].copy()
    for v, places in ((x, np.s_[..., :, None]), (y, np.s_[..., None, :])):
        counted &= (np.diff(expansion.rows[v].indptr) > 0).reshape(v.shape)[places]
    return counted


def _paired(a: Bools, b: Bools) -> Bools:
    """Whether rows a[…, i, block, ·] and b[…, j, block, ·] have an entry in common."""
    width = min(a.shape[-1], b.shape[-1])
    rows = [m[..., :width].reshape(*m.shape[:-2], m.shape[-2] * width).astype(np.float64) for m in (a, b)]
    return np.asarray(rows[0] @ np.swapaxes(rows[1], -1, -2) > 0)
