"""The ε part of ⟨e, F ⊙ u⟩: a forward vector against a gradient behind a nonlinearity or a gate, at infinite width.

u is linear, centred and apart from all that e and F = ψ(g) χ(v) … are functions of. So ⟨e_a, F_l ⊙ u⟩ = ⟨e_a F_l, u⟩,
and its ε part is Σ_b f_b P(q_b, u): f_b are the coordinates of the function e_a F_l (see `_tilted`) along orthonormal
functions q_b of the forward sources, and P(q_b, u) is the ε part of ⟨q_b, u⟩: normals for pairs of directions, and what
u has of q_b itself.

In a gate ψ(g) ⊙ v ⊙ u both v and u could be the u of this rule. It is the one that was drawn last, for then all normals
have the form N[f(e) u] with u later than e, and Cov(N[f u_k], N[f' u_l]) = δ_kl E[f f'].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...activations import IDENTITY
from .._plan import Builder, Register
from ._clusters import Group
from ._features import Factors, Features, added
from ._state import Bools, State
from ._tilted import Tilted, filled, simple, tilted
from .frames import NO_VALUE, Directions, Limit


class Gradient(NamedTuple):
    """Features as F ⊙ u."""

    u: int  # the number of u among the arguments
    rest: Factors  # the factors of F
    forward: Bools  # the directions that F is a function of
    last: bool  # whether u was drawn after all of them


def gradient(feature: Features) -> Gradient | None:
    """Features as F ⊙ u with u linear, centred and apart from F, if they are; of several u the one drawn last."""
    vectors, factors = len(feature.supports), feature.factors()
    found: Gradient | None = None
    for u in [of[0] for f, of in factors if f is IDENTITY and len(of) == 1 and of[0] < vectors]:
        rest = [(f, of) for f, of in factors if not (f is IDENTITY and of == (u,))]
        numbers = {number for _, of in rest for number in of if number < vectors}
        if not numbers or u in numbers or not feature.centred[u] or len(rest) != len(factors) - 1:
            continue
        forward = np.asarray(feature.supports[list(numbers)].any(axis=0))
        own = feature.supports[u]
        if not (forward & own).any() and (found is None or _first(own) > _first(feature.supports[found.u])):
            found = Gradient(u, rest, forward, _first(own) >= _end(forward))
    return found


def _first(marks: Bools) -> int:
    return int(np.argmax(marks)) if marks.any() else len(marks)


def _end(marks: Bools) -> int:
    return len(marks) - int(np.argmax(marks[::-1])) if marks.any() else 0


def after(source: Directions, feature: Features) -> bool:
    """Whether a source was drawn after all that features are functions of: in their normals it is the u itself."""
    return source.start >= _end(feature.reach)


def between(source: Directions, feature: Features) -> bool:
    """Whether a source was drawn neither before the u of features F ⊙ u nor after all of it."""
    found = gradient(feature)
    if found is None or not found.last or after(source, feature):
        return False
    return source.stop > _first(feature.supports[found.u])


def known(frame: Limit, source: Directions, feature: Features) -> bool:
    """Whether the normals of a source with features follow from the rule of this file, as far as these features go."""
    found = gradient(feature)
    if found is None or source.number == NO_VALUE or after(source, feature) or between(source, feature):
        return False
    return not feature.supports[found.u][source.start : source.stop].any() and ruled(frame, feature, source)


def ruled(frame: Limit, feature: Features, source: Directions | None = None) -> bool:
    """Whether features have the form F ⊙ u, among others whose products with e F are known; e is `source`, or any."""
    found = gradient(feature)
    if found is None or frame.group.constant:
        return False
    function = _structure(frame, feature, source)
    others = feature.rests.features if feature.rests is not None else []
    return simple(function, function) and all(
        isinstance(x, Tilted) or simple(function, x) or not function.related(x) for x in others
    )


def _structure(frame: Limit, feature: Features, source: Directions | None = None) -> Tilted:
    found = gradient(feature)
    assert found is not None
    start, stop = (0, 0) if source is None else (source.start, source.stop)
    return tilted(feature, found.rest, start, stop, frame.directions)


def concerns(frame: Limit, source: Directions, feature: Features, other: Features) -> bool:
    """Whether other features have coordinates that count in ⟨e F, u⟩."""
    return _structure(frame, feature, source).related(other)


def enter_normals(s: State, group: Group, i: int, j: int, epsilon: Any) -> None:
    """Enter the normals of a source block with a block of features F ⊙ u into the frame, if they are asked for.

    `epsilon` gives the ε part of a vector.
    """
    frame, build = s.limit(group), s.build
    a, b = frame.blocks[i], frame.blocks[j]
    if (a.feature is None) == (b.feature is None):
        return
    e, f = (i, j) if a.feature is None else (j, i)
    source, block = frame.blocks[e], frame.blocks[f]
    feature = block.feature
    assert feature is not None
    found = gradient(feature)
    if (max(e, f), min(e, f)) in frame.pairs or found is None or not known(frame, source, feature):
        return
    u = found.u
    frames, count, size = group.frames, feature.count, source.stop - source.start
    forward = _functions(s, group, source, feature)
    assert forward.rows is not None
    # P(q_b, u_l), for all directions q_b of the functions
    rows = _argument_rows(build, feature, u)
    vector, places = feature.vectors[u]
    directions = forward.rows.shape[-1]
    more = epsilon(vector).part
    total = build.constant(np.zeros((frames, count, directions)))
    if more is not None:
        total = s.gathered(more, places, directions)
    reach = _blocks(frame, feature.supports[u])
    for k in _blocks(frame, _marks(frame, forward)):
        part = [
            build.step("product", build.step("part", rows, start=c.start, stop=c.stop), frame.normals(m, k))
            for m, c in ((m, frame.blocks[m]) for m in reach)
        ]
        for one in part:
            here = frame.blocks[k]
            wide = build.step("pad", one, before=here.start, after=directions - here.stop)
            total = build.step("add", total, wide)
    functions = build.reshape(forward.rows, frames, size, count, directions)
    made = build.step("multiply", functions, build.reshape(total, frames, 1, count, directions))
    made = build.step("total", made, words="⟨e, F ⊙ u⟩ at order n^(-1/2)")  # (frames, size, count): with the features
    # and with their own directions: less what the features have along others
    assert feature.rows is not None
    marks = _marks(frame, feature)
    for k in _blocks(frame, marks):
        if k >= f:
            continue
        other = frame.blocks[k]
        enter_normals(s, group, e, k, epsilon)
        along = build.step("part", feature.rows, start=other.start, stop=other.stop)
        less = build.step("gram", frame.normals(e, k), along)
        made = build.step("add", made, build.step("scale", less, by=-1.0))
    own = build.step("part", feature.rows, start=block.start, stop=block.stop)
    solved = build.step("solve", own, made)
    frame.pairs[max(e, f), min(e, f)] = solved if e > f else build.step("transposed", solved)


def _functions(s: State, group: Group, source: Directions, feature: Features) -> Features:
    """The functions e_a F_l with coordinates in the frame, which gets directions for them."""
    frame, build = s.limit(group), s.build
    new = filled(build, _structure(frame, feature, source), feature, source.start, source.stop)
    value, place, which = source.number
    made = sum(isinstance(block.feature, Tilted) for block in frame.blocks)  # so that no two have the same seeds
    added(build, frame, feature.rests, new, True, (value, place + 2**16 * (1 + made), which), new.f.name)
    found = frame.blocks[-1].feature
    assert found is not None
    return found


def _argument_rows(build: Builder, feature: Features, number: int) -> Register:
    """One of the arguments of features, (frames, k, directions)."""
    frames, count, _, directions = feature.arguments.shape
    return build.reshape(build.taken(feature.arguments, np.array([number]), axis=2), frames, count, directions)


def _marks(frame: Limit, feature: Features) -> Bools:
    """The directions along which features have coordinates."""
    found = np.zeros(frame.directions, dtype=bool)
    found[: feature.supports.shape[1]] = feature.slopes()
    for block in frame.blocks:
        if block.feature is not None and block.feature.rests is feature.rests and block.feature.related(feature):
            found[block.start : block.stop] = True
    return found


def _blocks(frame: Limit, marks: Bools) -> list[int]:
    """The blocks with marked directions."""
    wide = np.zeros(frame.directions, dtype=bool)
    wide[: len(marks)] = marks
    return [k for k, block in enumerate(frame.blocks) if wide[block.start : block.stop].any()]
