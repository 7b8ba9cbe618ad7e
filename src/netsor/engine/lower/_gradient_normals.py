"""The ε part of ⟨e, F ⊙ u⟩: a forward vector against a gradient behind a nonlinearity or a gate, at infinite width.

u is linear, centred and apart from all that e and F = ψ(g) χ(v) … are functions of. So ⟨e_a, F_l ⊙ u⟩ = ⟨e_a F_l, u⟩,
and its ε part is Σ_b f_b P(q_b, u): f_b are the coordinates of the function e_a F_l (see `_tilted`) along orthonormal
functions q_b of the forward sources, and P(q_b, u) is the ε part of ⟨q_b, u⟩: normals for pairs of directions, and what
u has of q_b itself.

In a gate ψ(g) ⊙ v ⊙ u both v and u could be the u of this rule. It is the one that was drawn last, for then all normals
have the form N[f(e) u] with u later than e, and Cov(N[f u_k], N[f' u_l]) = δ_kl E[f f'].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._builder import Builder
from .._steps import Register
from ._bits import lowest
from ._clusters import Group
from ._features import Features
from ._state import State
from ._tilted import Tilted, simple, tilted
from .frames import NO_VALUE, Directions, Limit


def after(source: Directions, feature: Features) -> bool:
    """Whether a source was drawn after all that features are functions of: in their normals it is the u itself."""
    return source.start >= feature.reach.bit_length()


def between(source: Directions, feature: Features) -> bool:
    """Whether a source was drawn neither before the u of features F ⊙ u nor after all of it."""
    found = feature.gradient
    if found is None or not found.last or after(source, feature):
        return False
    return source.stop > lowest(found.own, source.stop)


def known(frame: Limit, source: Directions, feature: Features) -> bool:
    """Whether the normals of a source with features follow from the rule of this file, as far as these features go."""
    found = feature.gradient
    if found is None or source.number == NO_VALUE or after(source, feature) or between(source, feature):
        return False
    return not found.own & source.bits and ruled(frame, feature, source)


def ruled(frame: Limit, feature: Features, source: Directions | None = None) -> bool:
    """Whether features have the form F ⊙ u, among others whose products with e F are known; e is `source`, or any."""
    if feature.gradient is None or frame.group.constant:
        return False
    function = _functions(frame, feature, source)
    others = feature.rests.features if feature.rests is not None else []
    return simple(function, function) and all(simple(function, x) or not function.related(x) for x in others)


def _functions(frame: Limit, feature: Features, source: Directions | None) -> Tilted:
    """The functions e F for features F ⊙ u."""
    start, stop = (0, 0) if source is None else (source.start, source.stop)
    return tilted(feature, start, stop, frame.directions)


def concerns(frame: Limit, source: Directions, feature: Features, other: Features) -> bool:
    """Whether other features have coordinates that count in ⟨e F, u⟩."""
    return _functions(frame, feature, source).related(other)


def enter_normals(s: State, group: Group, i: int, j: int, epsilon: Any) -> None:
    """Enter the normals of a source block with a block of features F ⊙ u into the frame, if they are asked for.

    `epsilon` gives the ε part of a vector.
    """
    frame, build = s.limit(group), s.build
    e, f = (i, j) if frame.blocks[i].feature is None else (j, i)
    source, block = frame.blocks[e], frame.blocks[f]
    feature, pair = block.feature, (max(e, f), min(e, f))
    if feature is None or source.feature is not None or pair in frame.pairs or not known(frame, source, feature):
        return
    assert feature.gradient is not None
    assert feature.rows is not None
    u, own = feature.gradient.u, feature.gradient.own
    frames, count, size = group.frames, feature.count, source.stop - source.start
    new = _functions(frame, feature, source)
    value, place, which = source.number
    made = sum(isinstance(block.feature, Tilted) for block in frame.blocks)  # so that no two have the same seeds
    functions = frame.add(new, feature.rests, True, (value, place + 2**16 * (1 + made), which), new.words)
    # P(q_b, u_l), for all directions q_b of the functions
    rows = _argument_rows(build, feature, u)
    vector, places = feature.vectors[u]
    directions = functions.shape[-1]
    more = epsilon(vector).part
    total = build.constant(np.zeros((frames, count, directions)))
    if more is not None:
        total = s.gathered(more, places, directions)
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
            enter_normals(s, group, e, k, epsilon)
            along = build.step("part", feature.rows, start=other.start, stop=other.stop)
            less = build.step("gram", frame.normals(e, k), along)
            found = build.step("add", found, build.step("scale", less, by=-1.0))
    solved = build.step("solve", build.step("part", feature.rows, start=block.start, stop=block.stop), found)
    frame.pairs[pair] = solved if e > f else build.step("transposed", solved)


def _argument_rows(build: Builder, feature: Features, number: int) -> Register:
    """One of the arguments of features, (frames, k, directions)."""
    frames, count, _, directions = feature.arguments.shape
    return build.reshape(build.taken(feature.arguments, np.array([number]), axis=2), frames, count, directions)


def _along(frame: Limit, feature: Features) -> int:
    """The directions along which features have coordinates."""
    found = feature.slopes
    for block in frame.blocks:
        if block.feature is not None and block.feature.rests is feature.rests and block.feature.related(feature):
            found |= block.bits
    return found


def _blocks(frame: Limit, some: int) -> list[int]:
    """The blocks that have some of these directions."""
    return [k for k, block in enumerate(frame.blocks) if block.bits & some]
