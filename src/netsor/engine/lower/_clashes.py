"""Which pairs of directions have normals whose law is known, at infinite width where nonlinearities met scores.

The ε parts of products are N[f] for functions f of the sources of a space, with Cov(N[f], N[f']) = Cov(f, f'). Of two
sources N[e_a e_b] is a normal of its own. Of a source e_a and an output F_b of a nonlinearity it is one if all other
pairs that are asked for agree: E[e_a F_b e_c F_d] is 0 unless F_d is a function of e_a, F_b of e_c, and both of
something else, or F_b is a function of e_a itself. Such pairs are unknown, but for gradients F ⊙ u (see
`_gradient_normals`), whose normals are all of one form, N[f(e) u].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from ...language._vector import Vector
from ._bits import bits, lowest, marks
from ._clusters import Group
from ._features import Features
from ._gradient_normals import after, between, concerns, known, ruled
from ._marks import lined, overlap, paired
from ._state import Bools, Epsilon, State
from ._tilted import Tilted
from .frames import NO_VALUE, Directions, Limit

FindEpsilon = Callable[[Vector], Epsilon]  # the ε part of a vector


def unknown_pairs(s: State, x: Vector, y: Vector, ndim: int, epsilon: FindEpsilon) -> Bools:
    """Pairs of vectors that reach a pair of blocks of directions whose normals have no known law."""
    found = np.zeros_like(overlap(s, x, y, ndim))
    for group in s.groups_of(x):
        frame = s.frames[group]
        if y not in group.positions or frame.directions == 0:
            continue
        limit = frame if isinstance(frame, Limit) and frame.scores else None  # else no direction is known apart
        blocks = limit.blocks if limit else [Directions(0, frame.directions, NO_VALUE)]
        inside = np.stack([marks(block.bits, frame.directions) for block in blocks], axis=1)  # (directions, blocks)
        ours, theirs = (_within(s, v, group, inside, ndim) for v in (x, y))
        clash = np.zeros((len(blocks),) * 2)
        here, there = (np.flatnonzero(v.reshape(-1, v.shape[-1]).any(axis=0)) for v in (ours, theirs))
        for i, j in product(here, there):  # no more: the rule for a gradient asks for other pairs itself
            clash[i, j] = limit is None or _clash(limit, blocks[i], blocks[j], epsilon)
        found = found | paired(ours @ clash > 0, theirs)
    return found


def _within(s: State, x: Vector, group: Group, inside: Bools, ndim: int) -> Bools:
    """Which blocks of directions each vector that lies in a group reaches, (…, i, blocks of the space, ·)."""
    support = s.support(x)
    flat = support.reshape(-1, support.shape[-1])[:, : len(inside)].astype(np.float64)
    made = np.zeros((len(flat), inside.shape[1]), dtype=bool)
    places = group.positions[x].ravel()
    made[places] = flat[places] @ inside[: flat.shape[1]] > 0
    return lined(made.reshape(*support.shape[:-1], -1), x, ndim - 1)


def _clash(frame: Limit, a: Directions, b: Directions, epsilon: FindEpsilon) -> bool:
    """Whether the normals of two blocks have no known law: two features, a feature with (1, …, 1), or as said above."""
    if a.feature is None and b.feature is None:
        return False
    source, feature = (b, a.feature) if a.feature is not None else (a, b.feature)
    if feature is None or source.feature is not None or source.number == NO_VALUE:
        return True
    if known(frame, source, feature):
        return _in_another_form(frame, source, feature) or _argument_unknown(frame, source, feature, epsilon)
    if feature.reach & source.bits or between(source, feature) or _changes(frame, source, feature, epsilon):
        return True
    return any(
        other.reach & source.bits and other.reach & feature.reach and not _of_the_rule(frame, other, source, feature)
        for other in _others(frame, feature)
    )


def _others(frame: Limit, feature: Features) -> Iterator[Features]:
    """The outputs of other nonlinearities in a frame."""
    for block in frame.blocks:
        other = block.feature
        if other is not None and not isinstance(other, Tilted) and other.arguments is not feature.arguments:
            yield other


def _of_the_rule(frame: Limit, other: Features, source: Directions, feature: Features) -> bool:
    """Whether N[F u] is one of the normals from which those of gradients F ⊙ u are made, u this source."""
    form = other.gradient
    if form is None or not form.own & source.bits or form.forward & source.bits or feature.reach & form.own:
        return False
    return ruled(frame, other)


def _in_another_form(frame: Limit, source: Directions, feature: Features) -> bool:
    """Whether other features need N[e F ⊙ u] in another form: u is an argument of theirs, or e a u of theirs.

    Not if in each normal the u was drawn last: then two normals of different u are independent.
    """
    ours = feature.gradient
    assert ours is not None
    for other in _others(frame, feature):
        theirs, (u, rest) = other.gradient, (0, other.reach)
        if theirs is not None:
            u, rest = theirs.own, theirs.forward
        if not other.reach & feature.reach:
            continue
        if ours.last and ((theirs is not None and theirs.last) or not other.reach >> lowest(ours.own, 0)):
            continue
        if (
            u & source.bits
            or (rest & ours.own and other.reach & ours.forward)
            or (u & ours.forward and feature.reach & rest)
        ):
            return True
    return False


def _argument_unknown(frame: Limit, source: Directions, feature: Features, epsilon: FindEpsilon) -> bool:
    """Whether the u of features F ⊙ u has an ε part that is unknown along what e F is made of."""
    assert feature.gradient is not None
    unknown = bits(epsilon(feature.vectors[feature.gradient.u][0]).unknown) & ~feature.gradient.own
    for block in frame.blocks:
        if block.feature is not None and not concerns(frame, source, feature, block.feature):
            unknown &= ~block.bits
    return bool(unknown)


def _changes(frame: Limit, source: Directions, feature: Features, epsilon: FindEpsilon) -> bool:
    """Whether an argument of features F ⊙ u has an ε part along a source that was drawn after it."""
    if feature.gradient is None or not after(source, feature):
        return False
    inside = source.bits
    for block in frame.blocks:
        if block.feature is not None and block.feature.reach & source.bits:
            inside |= block.bits
    parts = [epsilon(vector) for vector, _ in feature.vectors]
    return any(bits(part.support | part.unknown) & inside for part in parts)
