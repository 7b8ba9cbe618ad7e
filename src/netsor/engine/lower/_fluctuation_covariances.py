"""Fluctuations of order n^(−1/2) whose covariances are known (docs/theory.md, "Orders in n").

The ε parts of products (see `_dual_numbers`) are N[f] for functions f of the sources of a space, normal with
Cov(N[f], N[f']) = Cov(f, f') by the central limit theorem. For two sources, N[e_a e_b] is a normal of its own. For a
source e_a and an output F_b of a nonlinearity it is one if all other pairs that are asked for agree: E[e_a F_b e_c F_d]
is 0 unless F_d is a function of e_a, F_b of e_c, and both of something else, or F_b is a function of e_a itself. Such
pairs are unknown, and a score that needs one is refused; except for gradients.

A gradient behind a nonlinearity is F ⊙ u, where u is linear, centred, and independent of everything that e and
F = ψ(g) χ(v) … are functions of. So ⟨e_a, F_l ⊙ u⟩ = ⟨e_a F_l, u⟩, with the ε part Σ_b f_b P(q_b, u): f_b are the
coordinates of the function e_a F_l along orthonormal functions q_b of the forward sources, and P(q_b, u) is the ε part
of ⟨q_b, u⟩. In a gate ψ(g) ⊙ v ⊙ u both v and u could be the u of this rule. It is the one drawn last: then all normals
have the form N[f(e) u] with u later than e, and Cov(N[f u_k], N[f' u_l]) = δ_kl E[f f'].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...language._vector import Vector
from ..passes._orders import Bools, Sets, lowest_bit, union
from ._components import FrameBatch
from ._infinite_frames import NO_VALUE, Directions, InfiniteWidthFrame
from ._residual_features import ResidualFeatures, SourceTimesFeature, simple, tilted
from ._state import Fluctuation, State, pairs_meet


def drawn_after(source: Directions, feature: ResidualFeatures) -> bool:
    """Whether a source was drawn after all that features are functions of: in their normals it is the u itself."""
    return source.start >= feature.reach.bit_length()


def drawn_between(source: Directions, feature: ResidualFeatures) -> bool:
    """Whether a source was drawn after u began but before F ⊙ u was complete: then no rule applies."""
    found = feature.gradient
    if found is None or not found.last or drawn_after(source, feature):
        return False
    return source.stop > lowest_bit(found.own, source.stop)


def has_known_fluctuation(frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures) -> bool:
    """Whether the covariance of ⟨source, features⟩ is given by the rule for gradients, other features aside."""
    found = feature.gradient
    if found is None or source.number == NO_VALUE or drawn_after(source, feature) or drawn_between(source, feature):
        return False
    return not found.own & source.bits and is_gradient_form(frame, feature, source)


def is_gradient_form(frame: InfiniteWidthFrame, feature: ResidualFeatures, source: Directions | None = None) -> bool:
    """Whether features have the form F ⊙ u, among others whose products with e F are known; e is `source`, or any."""
    if feature.gradient is None or frame.group.constant:
        return False
    function = _functions(frame, feature, source)
    others = feature.rests.features if feature.rests is not None else []
    return simple(function, function) and all(simple(function, x) or not function.related(x) for x in others)


def _functions(frame: InfiniteWidthFrame, feature: ResidualFeatures, source: Directions | None) -> SourceTimesFeature:
    """The functions e F for features F ⊙ u."""
    start, stop = (0, 0) if source is None else (source.start, source.stop)
    return tilted(feature, start, stop, frame.directions)


def add_gradient_fluctuations(s: State, group: FrameBatch, i: int, j: int, epsilon: Any) -> None:
    """Enter the normals of a source block with a block of features F ⊙ u into the frame, if they are asked for.

    `epsilon` gives the ε part of a vector.
    """
    frame, build = s.limit(group), s.build
    e, f = (i, j) if frame.blocks[i].feature is None else (j, i)
    source, block = frame.blocks[e], frame.blocks[f]
    feature, pair = block.feature, (max(e, f), min(e, f))
    if (
        feature is None
        or source.feature is not None
        or pair in frame.pairs
        or not has_known_fluctuation(frame, source, feature)
    ):
        return
    assert feature.gradient is not None
    assert feature.rows is not None
    u, own = feature.gradient.u, feature.gradient.own
    frames, count, size = group.frames, feature.count, source.stop - source.start
    new = _functions(frame, feature, source)
    value, place, which = source.number
    made = sum(
        isinstance(block.feature, SourceTimesFeature) for block in frame.blocks
    )  # so that no two have the same seeds
    functions = frame.add(new, feature.rests, True, (value, place + 2**16 * (1 + made), which), new.words)
    # P(q_b, u_l), for all directions q_b of the functions
    rows = build.take(feature.arguments, np.array([u]), axis=2)
    rows = build.reshape(rows, frames, count, rows.shape[-1])
    vector, places = feature.vectors[u]
    directions = functions.shape[-1]
    more = epsilon(vector).part
    total = build.constant(np.zeros((frames, count, directions)))
    if more is not None:
        total = s.gather(more, places, directions)
    for k in _blocks(frame, _along(frame, new)):
        here = frame.blocks[k]
        for m in _blocks(frame, own):
            some = build.step("part", rows, start=frame.blocks[m].start, stop=frame.blocks[m].stop)
            one = build.step("product", some, frame.normals(m, k))
            wide = build.step("pad", one, before=here.start, after=directions - here.stop)
            total = build.step("add", total, wide)
    functions = build.reshape(functions, frames, size, count, directions)
    found = build.step("multiply", functions, build.reshape(total, frames, 1, count, directions))
    found = build.step("total", found, words="⟨e, F ⊙ u⟩ at order n^(-1/2)")  # (frames, size, count): with the features
    # and with their own directions: less what the features have along others
    for k in _blocks(frame, _along(frame, feature)):
        if k < f:
            other = frame.blocks[k]
            add_gradient_fluctuations(s, group, e, k, epsilon)
            along = build.step("part", feature.rows, start=other.start, stop=other.stop)
            less = build.step("gram", frame.normals(e, k), along)
            found = build.step("add", found, build.step("scale", less, by=-1.0))
    solved = build.step("solve", build.step("part", feature.rows, start=block.start, stop=block.stop), found)
    frame.pairs[pair] = solved if e > f else build.step("transposed", solved)


def _along(frame: InfiniteWidthFrame, feature: ResidualFeatures) -> int:
    """The directions along which features have coordinates."""
    found = feature.slopes
    for block in frame.blocks:
        if block.feature is not None and block.feature.rests is feature.rests and block.feature.related(feature):
            found |= block.bits
    return found


def _blocks(frame: InfiniteWidthFrame, some: int) -> list[int]:
    """The blocks that have some of these directions."""
    return [k for k, block in enumerate(frame.blocks) if block.bits & some]


FindEpsilon = Callable[[Vector], Fluctuation]  # the ε part of a vector


def unknown_pairs(s: State, x: Vector, y: Vector, ndim: int, epsilon: FindEpsilon) -> Bools:
    """Pairs of vectors that reach a pair of blocks of directions whose normals have no known law."""
    none = np.zeros(1, dtype=object)
    found = pairs_meet(x, np.broadcast_to(none, s.sets(x).shape), y, s.sets(y), ndim)
    for group in s.groups_of(x):
        frame = s.frames[group]
        if y not in group.positions or frame.directions == 0:
            continue
        ours, theirs = (_inside(s, v, group) for v in (x, y))
        # else no direction is known apart
        limit = frame if isinstance(frame, InfiniteWidthFrame) and frame.has_fluctuations else None
        blocks = limit.blocks if limit else [Directions(0, frame.directions, NO_VALUE)]
        here, there = ([b for b in blocks if b.bits & union(sets)] for sets in (ours, theirs))
        for a in here:  # no more: the rule for a gradient asks for other pairs itself
            clash = [b.bits for b in there if limit is None or _has_unknown_covariance(limit, a, b, epsilon)]
            if clash:
                reached = ((sets & bits != 0).astype(object) for sets, bits in ((ours, a.bits), (theirs, sum(clash))))
                found = found | pairs_meet(x, next(reached), y, next(reached), ndim)
    return found


def _inside(s: State, x: Vector, group: FrameBatch) -> Sets:
    """The sets of the vectors that lie in a group, and none for all others."""
    sets, places = s.sets(x), group.positions[x]
    found = np.zeros(sets.shape, dtype=object)
    found.reshape(-1)[places] = sets.ravel()[places]
    return found


def _has_unknown_covariance(frame: InfiniteWidthFrame, a: Directions, b: Directions, epsilon: FindEpsilon) -> bool:
    """Whether the normals of two blocks have no known law: two features, a feature with (1, …, 1), or as said above."""
    if a.feature is None and b.feature is None:
        return False
    source, feature = (b, a.feature) if a.feature is not None else (a, b.feature)
    if feature is None or source.feature is not None or source.number == NO_VALUE:
        return True
    if has_known_fluctuation(frame, source, feature):
        return _in_another_form(frame, source, feature) or _argument_unknown(frame, source, feature, epsilon)
    if feature.reach & source.bits or drawn_between(source, feature) or _changes(frame, source, feature, epsilon):
        return True
    return any(
        other.reach & source.bits and other.reach & feature.reach and not _of_the_rule(frame, other, source, feature)
        for other in _others(frame, feature)
    )


def _others(frame: InfiniteWidthFrame, feature: ResidualFeatures) -> Iterator[ResidualFeatures]:
    """The outputs of other nonlinearities in a frame."""
    for block in frame.blocks:
        other = block.feature
        if other is not None and not isinstance(other, SourceTimesFeature) and other.arguments is not feature.arguments:
            yield other


def _of_the_rule(
    frame: InfiniteWidthFrame, other: ResidualFeatures, source: Directions, feature: ResidualFeatures
) -> bool:
    """Whether N[F u] is one of the normals from which those of gradients F ⊙ u are made, u this source."""
    form = other.gradient
    if form is None or not form.own & source.bits or form.forward & source.bits or feature.reach & form.own:
        return False
    return is_gradient_form(frame, other)


def _in_another_form(frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures) -> bool:
    """Whether another nonlinearity has u as an argument, or e as its own u: the two formulas would be inconsistent.

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
        if ours.last and ((theirs is not None and theirs.last) or not other.reach >> lowest_bit(ours.own, 0)):
            continue
        if (
            u & source.bits
            or (rest & ours.own and other.reach & ours.forward)
            or (u & ours.forward and feature.reach & rest)
        ):
            return True
    return False


def _argument_unknown(
    frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures, epsilon: FindEpsilon
) -> bool:
    """Whether the u of features F ⊙ u has an ε part that is unknown along what e F is made of."""
    assert feature.gradient is not None
    unknown = union(epsilon(feature.vectors[feature.gradient.u][0]).unknown) & ~feature.gradient.own
    function = _functions(frame, feature, source)
    for block in frame.blocks:
        if block.feature is not None and not function.related(block.feature):
            unknown &= ~block.bits
    return bool(unknown)


def _changes(frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures, epsilon: FindEpsilon) -> bool:
    """Whether an argument of features F ⊙ u has an ε part along a source that was drawn after it."""
    if feature.gradient is None or not drawn_after(source, feature):
        return False
    inside = source.bits
    for block in frame.blocks:
        if block.feature is not None and block.feature.reach & source.bits:
            inside |= block.bits
    parts = [epsilon(vector) for vector, _ in feature.vectors]
    return any(union(part.support | part.unknown) & inside for part in parts)
