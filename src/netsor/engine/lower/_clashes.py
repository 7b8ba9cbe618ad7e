"""Which pairs of directions have normals whose law is known, at infinite width where nonlinearities met scores.

The ε parts of products are N[f] for functions f of the sources of a space, with Cov(N[f], N[f']) = Cov(f, f'). Of two
sources N[e_a e_b] is a normal of its own. Of a source e_a and an output F_b of a nonlinearity it is one if all other
pairs that are asked for agree: E[e_a F_b e_c F_d] is 0 unless F_d is a function of e_a, F_b of e_c, and both of
something else, or F_b is a function of e_a itself. Such pairs are unknown, but for gradients F ⊙ u (see
`_gradient_normals`), whose normals are all of one form, N[f(e) u].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...language._value import Vector
from ._clusters import Group
from ._features import Features
from ._gradient_normals import after, between, concerns, gradient, known, ruled
from ._marks import lined, paired
from ._state import Bools, Epsilon, State
from ._tilted import Tilted
from .frames import NO_VALUE, Directions, Limit

FindEpsilon = Callable[[Vector], Epsilon]  # the ε part of a vector


def unknown_pairs(s: State, x: Vector, y: Vector, ndim: int, epsilon: FindEpsilon) -> Bools:
    """Pairs of vectors that reach a pair of blocks of directions whose normals have no known law."""
    found: Bools | None = None
    for group in s.groups_of(x):
        frame = s.frames[group]
        if y not in group.positions or frame.directions == 0:
            continue
        if not isinstance(frame, Limit) or not frame.scores:
            ours, theirs = (_within(s, v, group, np.ones((1, 1), dtype=bool), ndim) for v in (x, y))
            clash = np.ones((1, 1), dtype=bool)
        else:
            inside = np.stack([frame.mask([b]) for b in frame.blocks], axis=1)  # (directions, blocks)
            ours, theirs = (_within(s, v, group, inside, ndim) for v in (x, y))
            clash = np.zeros((len(frame.blocks),) * 2, dtype=bool)
            here, there = (np.flatnonzero(v.reshape(-1, v.shape[-1]).any(axis=0)) for v in (ours, theirs))
            for i, j in (
                (i, j) for i in here for j in there
            ):  # no more: the rule for a gradient asks for other pairs itself
                clash[i, j] = _clash(s, frame, int(i), int(j), epsilon)
        met = paired((ours.astype(np.float64) @ clash.astype(np.float64)) > 0, theirs)
        found = met if found is None else found | met
    if found is None:
        shapes = [(1,) * (ndim - 1 - v.ndim) + v.shape for v in (x, y)]
        batch = np.broadcast_shapes(shapes[0][:-1], shapes[1][:-1])
        return np.zeros((*batch, shapes[0][-1], shapes[1][-1]), dtype=bool)
    return found


def _within(s: State, x: Vector, group: Group, inside: Bools, ndim: int) -> Bools:
    """Which blocks of directions each vector that lies in a group reaches, (…, i, blocks of the space, ·)."""
    support = s.vectors[x].support
    assert support is not None
    flat = support.reshape(-1, support.shape[-1])
    made = np.zeros((len(flat), inside.shape[1]), dtype=bool)
    places = group.positions[x].ravel()
    if len(inside) == 1:
        made[places] = flat[places].any(axis=-1, keepdims=True)
    else:
        size = min(flat.shape[1], len(inside))
        made[places] = flat[places, :size].astype(np.float64) @ inside[:size].astype(np.float64) > 0
    return lined(made.reshape(*support.shape[:-1], -1), x, ndim - 1)


def _clash(s: State, frame: Limit, i: int, j: int, epsilon: FindEpsilon) -> bool:
    """Whether the normals of two blocks have no known law: two features, a feature with (1, …, 1), or as said above."""
    a, b = frame.blocks[i], frame.blocks[j]
    if a.feature is None and b.feature is None:
        return False
    if a.feature is not None and b.feature is not None:
        return True
    source, feature = (b, a.feature) if a.feature is not None else (a, b.feature)
    assert feature is not None
    if source.number == NO_VALUE:
        return True
    if known(frame, source, feature):
        return _in_another_form(frame, source, feature) or _argument_unknown(frame, source, feature, epsilon)
    if _is_of(feature, source) or between(source, feature) or _changes(frame, source, feature, epsilon):
        return True
    return any(
        _is_of(other, source) and _meet(other.reach, feature.reach) and not _of_the_rule(frame, other, source, feature)
        for other in _others(frame, feature)
    )


def _others(frame: Limit, feature: Features) -> Iterator[Features]:
    """The outputs of other nonlinearities in a frame."""
    for block in frame.blocks:
        other = block.feature
        if other is not None and not isinstance(other, Tilted) and other.arguments is not feature.arguments:
            yield other


def _meet(a: Bools, b: Bools) -> bool:
    size = min(len(a), len(b))
    return bool((a[:size] & b[:size]).any())


def _is_of(feature: Features, source: Directions) -> bool:
    """Whether features are functions of a source."""
    return bool(feature.reach[source.start : source.stop].any())


def _gradient(feature: Features) -> tuple[Bools, Bools]:
    """The directions of u and those of F, if features are F ⊙ u; else none, and all that they are functions of."""
    found = gradient(feature)
    if found is None:
        return np.zeros_like(feature.reach), feature.reach
    return feature.supports[found.u], found.forward


def _of_the_rule(frame: Limit, gradient: Features, source: Directions, feature: Features) -> bool:
    """Whether N[F u] is one of the normals from which those of gradients F ⊙ u are made, u this source."""
    u, g = _gradient(gradient)
    inside = slice(source.start, source.stop)
    return ruled(frame, gradient) and bool(u[inside].any()) and not g[inside].any() and not _meet(feature.reach, u)


def _in_another_form(frame: Limit, source: Directions, feature: Features) -> bool:
    """Whether other features need N[e F ⊙ u] in another form: u is an argument of theirs, or e a u of theirs.

    Not if in each normal the u was drawn last: then two normals of different u are independent.
    """
    ours = gradient(feature)
    assert ours is not None
    u, g = feature.supports[ours.u], ours.forward
    for other in _others(frame, feature):
        found, (theirs, rest) = gradient(other), _gradient(other)
        if not _meet(other.reach, feature.reach):
            continue
        if ours.last and ((found is not None and found.last) or not other.reach[int(np.argmax(u)) :].any()):
            continue
        if theirs[source.start : source.stop].any():
            return True
        if (_meet(rest, u) and _meet(other.reach, g)) or (_meet(theirs, g) and _meet(feature.reach, rest)):
            return True
    return False


def _argument_unknown(frame: Limit, source: Directions, feature: Features, epsilon: FindEpsilon) -> bool:
    """Whether the u of features F ⊙ u has an ε part that is unknown along what e F is made of."""
    found = gradient(feature)
    assert found is not None
    unknown = epsilon(feature.vectors[found.u][0]).unknown
    marks = np.asarray(unknown.reshape(-1, unknown.shape[-1]).any(axis=0))
    marks[: len(feature.reach)] &= ~feature.supports[found.u][: len(marks)]
    for block in frame.blocks:
        if block.feature is not None and not concerns(frame, source, feature, block.feature):
            marks[block.start : block.stop] = False
    return bool(marks.any())


def _changes(frame: Limit, source: Directions, feature: Features, epsilon: FindEpsilon) -> bool:
    """Whether an argument of features F ⊙ u has an ε part along a source that was drawn after it."""
    if gradient(feature) is None or not after(source, feature):
        return False
    inside = frame.mask(
        [b for b in frame.blocks if b is source or (b.feature is not None and _is_of(b.feature, source))]
    )
    for vector, _ in feature.vectors:
        found = epsilon(vector)
        marks = np.asarray((found.support | found.unknown).reshape(-1, found.support.shape[-1]).any(axis=0))
        if _meet(marks, inside):
            return True
    return False
