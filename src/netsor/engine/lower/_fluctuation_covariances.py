"""Fluctuations of order n^(−1/2) whose covariances are known (docs/theory.md, "Orders in n").

The ε parts of products (see `_dual_numbers`) are N[f] for functions f of the sources of a space, normal with
Cov(N[f], N[f']) = Cov(f, f') by the central limit theorem. Suppose that each has the form N[f u], with u a source that
comes after all sources of f in one order of them. Then Cov(N[f u_k], N[f' u_l]) = δ_kl E[f f']: so there is one normal
for u and each of the orthonormal functions q_b, the directions of the frame, and N[f u] = Σ_b E[f q_b] N[q_b u].

Any order will do, it need not be that in which sources are drawn. So the forms of all fluctuations that are asked for
put sources in a partial order (`InfiniteWidthFrame.precede`), and a form that would close a cycle has no known law.

Two sources have this form in any order. For a source e and outputs F of a nonlinearity there are two forms:
PLAIN: F is no function of e, and comes before it, u = e.
GRADIENT: F = G ⊙ u with u linear, centred, and independent of G and e: N[(e G) u].
Products of two nonlinearities' outputs, and of one with (1, …, 1), have neither: they are drawn at nodes (`NodeFrame`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...language._vector import Vector
from ..passes._orders import Bools, Sets, union
from ._components import FrameBatch
from ._infinite_frames import NO_VALUE, Directions, Form, InfiniteWidthFrame, NodeFrame
from ._residual_features import ResidualFeatures, SourceTimesFeature, simple, tilted
from ._state import Fluctuation, State, pairs_meet

FindEpsilon = Callable[[Vector], Fluctuation]  # the ε part of a vector


def form_of(frame: InfiniteWidthFrame, i: int, j: int, epsilon: FindEpsilon) -> Form:
    """The form of the fluctuations of two blocks, decided when they are first asked for."""
    e, f = (i, j) if frame.blocks[i].feature is None else (j, i)
    source, feature = frame.blocks[e], frame.blocks[f].feature
    if feature is None:
        return Form.PLAIN
    if source.feature is not None or source.number == NO_VALUE:
        return Form.UNKNOWN
    if (e, f) not in frame.forms:
        rules = [(Form.GRADIENT, _gradient), (Form.PLAIN, _plain)]
        if source.start >= feature.reach.bit_length():  # drawn after all that the features are functions of
            rules.reverse()
        known = (form for form, rule in rules if rule(frame, source, feature, epsilon))
        frame.forms[e, f] = next(known, Form.UNKNOWN)
    return frame.forms[e, f]


def _plain(frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures, epsilon: FindEpsilon) -> bool:
    if feature.reach & source.bits:
        return False
    if feature.gradient is not None:  # of G ⊙ u, changes of the arguments along e would show
        inside = source.bits
        for block in frame.blocks:
            if block.feature is not None and block.feature.reach & source.bits:
                inside |= block.bits
        parts = [epsilon(vector) for vector, _ in feature.vectors]
        if any(union(part.support | part.unknown) & inside for part in parts):
            return False
    return frame.precede(feature.reach, source.bits)


def _gradient(frame: InfiniteWidthFrame, source: Directions, feature: ResidualFeatures, epsilon: FindEpsilon) -> bool:
    form = feature.gradient
    if form is None or frame.group.constant or form.own & source.bits:
        return False
    function = tilted(feature, source.start, source.stop, frame.directions)
    others = feature.rests.features if feature.rests is not None else []
    if not simple(function, function) or any(function.related(x) and not simple(function, x) for x in others):
        return False  # the expectations E[e G q_b] are not known
    along, before = frame.coordinates(function, feature.rests, True), form.forward | source.bits
    for block in frame.blocks:
        if block.feature is None:
            along |= block.bits
        elif along & block.bits:
            before |= block.feature.reach
    if union(epsilon(feature.vectors[form.u][0]).unknown) & along & ~form.own:
        return False
    return frame.precede(before, form.own)


def add_gradient_fluctuations(s: State, group: FrameBatch, i: int, j: int, epsilon: FindEpsilon) -> None:
    """Enter the normals of a source block with a block of features G ⊙ u into the frame, if they are asked for."""
    frame, build = s.limit(group), s.build
    e, f = (i, j) if frame.blocks[i].feature is None else (j, i)
    source, block = frame.blocks[e], frame.blocks[f]
    feature, pair = block.feature, (max(e, f), min(e, f))
    if feature is None or pair in frame.pairs or form_of(frame, i, j, epsilon) is not Form.GRADIENT:
        return
    assert feature.gradient is not None
    assert feature.rows is not None
    u, own = feature.gradient.u, feature.gradient.own
    frames, count, size = group.frames, feature.count, source.stop - source.start
    new = tilted(feature, source.start, source.stop, frame.directions)
    value, place, which = source.number
    made = sum(isinstance(b.feature, SourceTimesFeature) for b in frame.blocks)  # so that no two have the same seeds
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
    for k in _blocks(frame, frame.blocks[-1].along):
        here = frame.blocks[k]
        for m in _blocks(frame, own):
            some = build.step("part", rows, start=frame.blocks[m].start, stop=frame.blocks[m].stop)
            one = build.step("product", some, frame.normals(m, k))
            wide = build.step("pad", one, before=here.start, after=directions - here.stop)
            total = build.step("add", total, wide)
    functions = build.reshape(functions, frames, size, count, directions)
    found = build.step("multiply", functions, build.reshape(total, frames, 1, count, directions))
    found = build.step("total", found, words="⟨e, G ⊙ u⟩ at order n^(-1/2)")  # (frames, size, count): with the features
    # and with their own directions: less what the features have along others
    for k in _blocks(frame, block.along):
        if k < f:
            other = frame.blocks[k]
            add_gradient_fluctuations(s, group, e, k, epsilon)
            along = build.step("part", feature.rows, start=other.start, stop=other.stop)
            less = build.step("gram", frame.normals(e, k), along)
            found = build.step("add", found, build.step("scale", less, by=-1.0))
    solved = build.step("solve", build.step("part", feature.rows, start=block.start, stop=block.stop), found)
    frame.pairs[pair] = solved if e > f else build.step("transposed", solved)


def _blocks(frame: InfiniteWidthFrame, some: int) -> list[int]:
    """The blocks that have some of these directions."""
    return [k for k, block in enumerate(frame.blocks) if block.bits & some]


def unknown_pairs(s: State, x: Vector, y: Vector, ndim: int, epsilon: FindEpsilon) -> Bools:
    """Pairs of vectors that reach a pair of blocks of directions whose normals have no known law."""
    none = np.zeros(1, dtype=object)
    found = pairs_meet(x, np.broadcast_to(none, s.sets(x).shape), y, s.sets(y), ndim)
    for group in s.groups_of(x):
        frame = s.frames[group]
        if y not in group.positions or isinstance(frame, NodeFrame):
            continue
        limit = s.limit(group)
        blocks = limit.blocks
        ours, theirs = (_inside(s, v, group) for v in (x, y))
        here, there = ([k for k, b in enumerate(blocks) if b.bits & union(sets)] for sets in (ours, theirs))
        for i in here:  # no more: the rule for a gradient asks for other pairs itself
            clash = [j for j in there if form_of(limit, i, j, epsilon) is Form.UNKNOWN]
            if clash:
                both = (ours, blocks[i].bits), (theirs, sum(blocks[j].bits for j in clash))
                reached = ((sets & bits != 0).astype(object) for sets, bits in both)
                found = found | pairs_meet(x, next(reached), y, next(reached), ndim)
    return found


def _inside(s: State, x: Vector, group: FrameBatch) -> Sets:
    """The sets of the vectors that lie in a group, and none for all others."""
    sets, places = s.sets(x), group.positions[x]
    found = np.zeros(sets.shape, dtype=object)
    found.reshape(-1)[places] = sets.ravel()[places]
    return found
