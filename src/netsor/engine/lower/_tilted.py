"""The ε part of ⟨e, ψ(g) ⊙ u⟩: a forward vector against a gradient behind a nonlinearity, at infinite width.

With u independent of e and g, ⟨e_a, ψ(g_l) ⊙ u⟩ = ⟨e_a ψ(g_l), u⟩, so its ε part is Σ_b f_b P(q_b, u): f_b are the
coordinates of the function e_a ψ(g_l) along orthonormal functions q_b of the forward sources, and P(q_b, u) is the ε
part of ⟨q_b, u⟩: normals for pairs of directions, and what u has of q_b itself. The functions e_a ψ(g_l) are features
as others are; their expectations follow from those of pairs (g, h) by regression of e_a on g and h,
E[e_a ψ(g) e_b χ(h)] = Σ α β E[g^p ψ(g) h^q χ(h)] + c E[ψ(g) χ(h)].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...activations import IDENTITY, Function
from .._plan import Builder, Register
from ._clusters import Group
from ._features import Features, added
from ._state import Bools, State
from .frames import NO_VALUE, Directions, Limit


@dataclass(frozen=True)
class _Times:
    """x^p ψ(x), and further arguments of ψ."""

    power: int
    f: Function

    def __call__(self, x: Any, *params: Any) -> Any:
        return x**self.power * self.f(x, *params)


def times(f: Function, power: int) -> Function:
    """The function x^p ψ(x)."""
    return f if power == 0 else Function(f"x^{power} {f.name}", _Times(power, f), breaks=f.breaks)


@dataclass(frozen=True)
class _Tilt:
    """e ψ(g), of two arguments."""

    f: Function

    def __call__(self, e: Any, g: Any, *params: Any) -> Any:
        return e * self.f(g, *params)


@dataclass(frozen=True, eq=False)
class Tilted(Features):
    """The functions e_a ψ(g_l) for all a and l, in this order; `params` are those of ψ, for each l."""

    psi: Function = IDENTITY
    e: Register | None = None  # (frames, A, directions)
    g: Register | None = None  # (frames, k, directions)
    own: tuple[Register, ...] = ()  # the parameters of ψ, (frames, k) each
    of: Features | None = None  # the features ψ(g) ⊙ u that these serve

    def regression(self, build: Builder, directions: int) -> Register:
        """E[e_a ψ(g_l) e_b] = α β E[g² ψ(g)] + c E[ψ(g)], (frames, A k, directions)."""
        assert self.e is not None
        assert self.g is not None
        one = build.reshape(self.g, *self.g.shape[:2], 1, self.g.shape[-1])
        means = []
        for power in (0, 2):
            f = times(self.psi, power)
            found = build.step("moments", one, *self.own, made=(*one.shape[:2], 2), f=f, constant=False)
            means.append(build.step("part", found, start=0, stop=1))
        made = build.step("tilted_means", self.e, self.g, *means, words=f"E[e {self.psi.name}(g) e']")
        return build.fitted(made, directions)

    def kernel(self, build: Builder, other: Features, words: str) -> Register | None:
        """E[e_a ψ(g_l) F_j] for features F of one argument, or for others of this kind."""
        assert self.e is not None
        assert self.g is not None
        if len(other.supports) > 1 and not isinstance(other, Tilted):
            return None
        h, psi, own = _argument(build, other)
        pairs = ((2, 0), (1, 1), (0, 2), (0, 0)) if isinstance(other, Tilted) else ((1, 0), (0, 1))
        width = max(self.g.shape[-1], h.shape[-1])
        first, second = (build.reshape(build.fitted(a, width), *a.shape[:2], 1, width) for a in (self.g, h))
        kernels = [
            build.step(
                "kernel", first, second, *self.own, *own, f=times(self.psi, p), g=times(psi, q), given=len(self.own),
                constant=False, made=(first.shape[0], first.shape[1], second.shape[1]),
            )
            for p, q in pairs
        ]  # fmt: skip
        rows = [self.e, self.g, h, *([other.e] if isinstance(other, Tilted) and other.e is not None else [])]
        width = max(a.shape[-1] for a in rows)
        rows = [build.fitted(a, width) for a in rows]
        return build.step("tilted", *rows, *kernels, rows=len(rows), words=f"E[e {self.psi.name}(g) …] for {words}")


def _argument(build: Builder, x: Features) -> tuple[Register, Function, tuple[Register, ...]]:
    """The argument of features of one argument, (frames, k, directions), their function and its parameters."""
    if isinstance(x, Tilted):
        assert x.g is not None
        return x.g, x.psi, x.own
    return build.reshape(x.arguments, *x.arguments.shape[:2], x.arguments.shape[-1]), x.f, x.params


def tilt(feature: Features) -> tuple[int, Function, int, tuple[int, ...]] | None:
    """If features are ψ(g; p) ⊙ u with u centred and apart from g: the numbers of u, ψ, of g, and of the p."""
    vectors = len(feature.supports)
    linear = [of[0] for f, of in feature.factors() if f is IDENTITY and len(of) == 1 and of[0] < vectors]
    for u in linear:
        others = [(f, of) for f, of in feature.factors() if not (f is IDENTITY and of == (u,))]
        if len(others) != 1 or len(feature.factors()) != 2:
            continue
        f, of = others[0]
        g = [number for number in of if number < vectors]
        if len(g) == 1 and feature.centred[u] and not (feature.supports[u] & feature.supports[g[0]]).any():
            return u, f, g[0], tuple(number - vectors for number in of if number >= vectors)
    return None


def known(frame: Limit, source: Directions, feature: Features) -> bool:
    """Whether the normals of a source with features follow from the rule of this file, as far as these features go."""
    found = tilt(feature)
    if found is None or source.number == NO_VALUE or not ruled(frame, feature):
        return False
    return not feature.supports[found[0]][source.start : source.stop].any()


def ruled(frame: Limit, feature: Features) -> bool:
    """Whether features have the form ψ(g) ⊙ u of this file, among others whose products with e ψ(g) are known."""
    found = tilt(feature)
    if found is None or frame.group.constant:
        return False
    others = feature.rests.features if feature.rests is not None else []
    return all(len(x.supports) == 1 or isinstance(x, Tilted) or not feature_like(feature, found[2], x) for x in others)


def feature_like(feature: Features, g: int, other: Features) -> bool:
    """Whether products of other features with functions of the forward argument g can be other than 0."""
    alone = replace(
        feature,
        f=Function("forward", _Tilt(IDENTITY)),
        arguments=feature.arguments,
        supports=feature.supports[[g]],
        centred=(feature.centred[g],),
        params=(),
    )
    return alone.related(other)


def enter_normals(s: State, group: Group, i: int, j: int, epsilon: Any) -> None:
    """Enter the normals of a source block with a block of features ψ(g) ⊙ u into the frame, if they are asked for.

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
    found = tilt(feature)
    if (max(e, f), min(e, f)) in frame.pairs or found is None or not known(frame, source, feature):
        return
    u, psi, g, params = found
    frames, count, size = group.frames, feature.count, source.stop - source.start
    forward = _functions(s, group, source, feature, psi, g, params)
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
    made = build.step("total", made, words="⟨e, ψ(g) u⟩ at order n^(-1/2)")  # (frames, size, count): with the features
    # and with their own directions: less what the features have along others
    assert feature.rows is not None
    marks = _marks(frame, feature)
    for k in _blocks(frame, marks):
        if k == f:
            continue
        other = frame.blocks[k]
        enter_normals(s, group, e, k, epsilon)
        along = build.step("part", feature.rows, start=other.start, stop=other.stop)
        less = build.step("gram", frame.normals(e, k), along)
        made = build.step("add", made, build.step("scale", less, by=-1.0))
    own = build.step("part", feature.rows, start=block.start, stop=block.stop)
    solved = build.step("solve", own, made)
    frame.pairs[max(e, f), min(e, f)] = solved if e > f else build.step("transposed", solved)


def _functions(
    s: State, group: Group, source: Directions, feature: Features, psi: Function, g: int, params: Sequence[int]
) -> Features:
    """The functions e_a ψ(g_l) with coordinates in the frame, which gets directions for them."""
    frame, build = s.limit(group), s.build
    for block in frame.blocks:
        made = block.feature
        if isinstance(made, Tilted) and made.psi is psi and block.number == source.number and made.of is feature:
            return made
    frames, count, size = group.frames, feature.count, source.stop - source.start
    d = frame.directions
    unit = build.constant(np.broadcast_to(np.eye(size, d, source.start), (frames, size, d)))
    rows = _argument_rows(build, feature, g)
    every = [
        build.step("take", unit, places=np.repeat(np.arange(size), count), axis=1),
        build.step("take", build.fitted(rows, d), places=np.tile(np.arange(count), size), axis=1),
    ]
    arguments = build.step("join", *(build.reshape(a, frames, size * count, 1, d) for a in every), axis=2)
    supports = np.zeros((2, d), dtype=bool)
    supports[0, source.start : source.stop] = True
    supports[1, : feature.supports.shape[1]] = feature.supports[g]
    own = tuple(feature.params[k] for k in params)
    every_own = tuple(build.step("take", p, places=np.tile(np.arange(count), size), axis=1) for p in own)
    new = Tilted(
        Function(f"e {psi.name}(g)", _Tilt(psi)), arguments, supports, every_own, (True, feature.centred[g]), (),
        psi=psi, e=unit, g=build.fitted(rows, d), own=own, of=feature, rests=feature.rests,
    )  # fmt: skip
    added(
        build,
        frame,
        feature.rests,
        new,
        True,
        (source.number[0], source.number[1] + 2**16, source.number[2]),
        new.f.name,
    )
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
