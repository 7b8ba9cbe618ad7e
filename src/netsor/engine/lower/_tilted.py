"""Functions e_a F_l of the sources of a space at infinite width, with F = ψ(g) χ(v) … a product of functions.

They are features as others are. Their expectations are products over sets of factors that are independent of each
other (as those of all features are), and in the set of e_a they follow from those of pairs (g, h) by regression of e_a
on g and h, E[e_a ψ(g) e_b χ(h)] = Σ α β E[g^p ψ(g) h^q χ(h)] + c E[ψ(g) χ(h)].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...activations import Function
from .._builder import Builder, named
from .._error import InfiniteError
from .._steps import Register
from ._bits import ranged
from ._features import Factors, Features, Part, independent, kernel, moments


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


def _one(x: Any) -> Any:
    return 1.0 + 0.0 * x


ONE = Function("1", _one)


Side = tuple[Register | None, Part]  # e_a or none, and a function of one argument


@dataclass(frozen=True, eq=False)
class Tilted(Features):
    """The functions e_a F_l for all a and l, in this order: features F ⊙ u, with a block of sources e in place of u."""

    u: int = 0  # the number of u among the arguments
    start: int = 0  # of the directions of e
    stop: int = 0
    directions: int = 0  # of the frame

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return (self.stop - self.start) * self.arguments.shape[1]

    @property
    def words(self) -> str:
        """The names of their factors."""
        return "e " + " ".join(f.name for f, of in self.factors() if self.u not in of)

    def linear(self, build: Builder, factors: Factors, constant: bool) -> tuple[Register, Register]:
        """The means of a set and its coordinates along linear directions, E[e_a F_l x] if e is in it."""
        e, (u, f, params) = _side(build, self, factors)
        if e is None:
            mean, row = super().linear(build, factors, constant)
            return self._spread(build, mean, 1), self._spread(build, build.fitted(row, self.directions), 1)
        means = [
            build.step("part", moments(build, u, times(f, power), params, False), start=0, stop=1) for power in (0, 2)
        ]
        rows = build.reshape(build.fitted(u, self.directions), *u.shape[:2], self.directions)
        along = build.step("tilted_means", e, rows, *means, words=f"E[e {named(f)}(g) e']")
        return _tilted(build, (e, (u, f, params)), (None, _one_of(build, u.shape[0], 1, u.shape[-1])), "a mean"), along

    def expected(
        self, build: Builder, ours: Factors, other: Features, theirs: Factors, constant: bool, words: str
    ) -> Register:
        """E[e_a F_l F'_j]."""
        if not (_of_one(self, ours) and _of_one(other, theirs)):
            raise InfiniteError("gradients behind a nonlinearity of several vectors, at width inf")
        left, right = _side(build, self, ours), _side(build, other, theirs)
        if left[0] is not None:
            found = _tilted(build, left, right, words)
        elif right[0] is not None:
            found = build.step("transposed", _tilted(build, right, left, words))
        else:
            found = super().expected(build, ours, other, theirs, constant, words)
        found = self._spread(build, found, 1)
        return other._spread(build, found, 2) if isinstance(other, Tilted) else found

    def e(self, build: Builder) -> Register:
        """The sources, (frames, A, directions)."""
        rows = np.eye(self.stop - self.start, self.directions, self.start)
        return build.constant(np.broadcast_to(rows, (self.arguments.shape[0], *rows.shape)))

    def _spread(self, build: Builder, found: Register, axis: int) -> Register:
        """What was found for all l, for all a and l."""
        count = self.arguments.shape[1]
        if found.shape[axis] != count:  # already so, or one number for all
            return found
        return build.taken(found, np.tile(np.arange(count), self.stop - self.start), axis=axis)


def tilted(feature: Features, start: int, stop: int, directions: int) -> Tilted:
    """The functions e_a F_l, for features F ⊙ u and the sources e along these directions."""
    assert feature.gradient is not None
    u = feature.gradient.u
    supports, centred = list(feature.supports), list(feature.centred)
    supports[u], centred[u] = ranged(start, stop), True
    return Tilted(
        feature.f, feature.arguments, tuple(supports), feature.params, tuple(centred), (), rests=feature.rests,
        u=u, start=start, stop=stop, directions=directions,
    )  # fmt: skip


def simple(x: Features, y: Features) -> bool:
    """Whether each set of independent factors of two features has functions of one argument a side, beside e."""
    return all(_of_one(x, ours) and _of_one(y, theirs) for ours, theirs in independent(x, y))


def _of_one(x: Features, factors: Factors) -> bool:
    e = {x.u} if isinstance(x, Tilted) else set()
    return len({number for _, of in factors for number in of if number < len(x.supports)} - e) <= 1


def _side(build: Builder, x: Features, factors: Factors) -> Side:
    """The factors of features that lie in a set; without any function, the function 1 of an argument that is 0."""
    e = None
    if isinstance(x, Tilted):
        rest = [(f, of) for f, of in factors if x.u not in of]
        e, factors = x.e(build) if len(rest) < len(factors) else None, rest
    frames, count, _, directions = x.arguments.shape
    return e, x.part(build, factors) or _one_of(build, frames, 1 if e is None else count, directions)


def _one_of(build: Builder, frames: int, count: int, directions: int) -> Part:
    return build.constant(np.zeros((frames, count, 1, directions))), ONE, ()


def _tilted(build: Builder, left: Side, right: Side, words: str) -> Register:
    """E[e_a ψ(g_l) e'_b χ(h_m)], (frames, A k, B m), with or without e'."""
    (e, (x, f, p)), (other, (y, g, q)) = left, right
    pairs = ((1, 0), (0, 1)) if other is None else ((2, 0), (1, 1), (0, 2), (0, 0))
    kernels = [kernel(build, (x, times(f, i), p), (y, times(g, j), q), False) for i, j in pairs]
    rows = [build.reshape(a, *a.shape[:2], a.shape[-1]) for a in (e, x, y, other) if a is not None]
    width = max(a.shape[-1] for a in rows)
    rows = [build.fitted(a, width) for a in rows]
    return build.step("tilted", *rows, *kernels, rows=len(rows), words=f"E[e {named(f)}(g) …] for {words}")
