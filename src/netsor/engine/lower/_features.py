"""Outputs of nonlinearities at infinite width, as rows of coordinates: features.

A feature F = φ(u; p) of Gaussian vectors u is its regression on them and a rest orthogonal to them: F = E[F] 1 + β u +
rest, β = E[φ'] by Stein's lemma. The rests of all features of a frame have a Gram matrix of Gaussian expectations, and
its triangular factor gives each feature coordinates along the rests before it and one new direction. So, as everywhere
in the engine, products are sums over directions.

Features that are never asked for a product with a linear vector (or with those of another nonlinearity) need no
coordinates along it: the shortcut `apart`. A function that the library knows has a formula for its kernel or for its
conditional means: the shortcut `named`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...activations import IDENTITY, Function
from ...language._value import Vector
from .._plan import Builder, Register, named
from ..passes.compose import Composed
from ._clusters import Group, Number

Factors = list[tuple[Function, tuple[int, ...]]]  # functions, each of some of the arguments
Part = tuple[Register, Function, tuple[Register, ...]]  # arguments, a function of them, and its parameters


@dataclass(frozen=True, eq=False)
class Features:
    """Functions of Gaussian vectors, in the frames of a group: (frames, k) of them."""

    f: Function
    arguments: Register  # (frames, k, r, directions)
    supports: npt.NDArray[np.bool_]  # (r, directions): random ones, along which some frame's argument has coordinates
    params: tuple[Register, ...]  # (frames, k) each
    centred: tuple[bool, ...]  # of each argument, whether its mean is 0
    vectors: tuple[tuple[Vector, npt.NDArray[np.intp]], ...]  # each argument, and its places (frames, k) there
    rows: Register | None = None  # the coordinates (frames, k, directions) that they have got
    rests: Any = None  # the component that they are in

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return self.arguments.shape[1]

    @property
    def reach(self) -> npt.NDArray[np.bool_]:
        """The directions that they are functions of."""
        return np.asarray(self.supports.any(axis=0))

    def regression(self, build: Builder, directions: int) -> Register | None:
        """Their coordinates along linear directions, if they have a rule of their own for them."""
        return None

    def kernel(self, build: Builder, other: Features, words: str) -> Register | None:
        """Their products with other features, if they have a rule of their own for them."""
        return None

    def zero(self, factors: Factors) -> bool:
        """Whether a product of some factors has mean 0 by its structure: a centred Gaussian vector itself."""
        return len(factors) == 1 and factors[0][0] is IDENTITY and self.centred[factors[0][1][0]]

    def slopes(self) -> npt.NDArray[np.bool_]:
        """The directions along which they can have coordinates: those of a factor if no other has mean 0."""
        found = np.zeros(self.supports.shape[1], dtype=bool)
        parts = [factors for factors, _ in independent(self, None)]
        for k, factors in enumerate(parts):
            if not any(self.zero(other) for i, other in enumerate(parts) if i != k):
                numbers = {number for _, of in factors for number in of if number < len(self.supports)}
                found |= np.logical_or.reduce([self.supports[number] for number in numbers], initial=False)
        return found

    def related(self, other: Features) -> bool:
        """Whether products with other features can be other than 0."""
        for ours, theirs in independent(self, other):
            if (not theirs and self.zero(ours)) or (not ours and other.zero(theirs)):
                return False
        return True

    def factors(self) -> list[tuple[Function, tuple[int, ...]]]:
        """The functions that these are products of, each with the numbers of its arguments (vectors, then scalars)."""
        if isinstance(self.f, Composed) and self.f.factors:
            return list(self.f.factors)
        return [(self.f, tuple(range(len(self.supports) + len(self.params))))]


@dataclass(frozen=True)
class _Unnamed:
    """What a function computes, and nothing else that is known of it."""

    f: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.f(*arguments)


def unnamed(f: Function) -> Function:
    """The same function, as one that nothing is known of."""
    if isinstance(f, Composed):
        return Composed(f.name, _Unnamed(f.f), factors=tuple((unnamed(g), of) for g, of in f.factors))
    return Function(f.name, _Unnamed(f.f))


class Grows(Protocol):
    """A frame that gets directions for features."""

    group: Group
    directions: int

    def unit(self, number: Number, sources: int, feature: Features | None = None) -> Register:
        """New directions, one for each of so many features."""


@dataclass(eq=False)
class Rests:
    """The features of one component of a frame so far, and the factor of the Gram matrix of their rests."""

    features: list[Features] = field(default_factory=list)
    along: list[Register] = field(default_factory=list)  # of each: the coordinates along linear directions
    factor: Register | None = None  # (frames, K, K)
    places: list[int] = field(default_factory=list)  # the directions of the rests


def added(
    build: Builder, frame: Grows, rests: Rests, new: Features, linear: bool, number: Number, words: str
) -> Register:
    """The coordinates (frames, k, directions) of new features; `linear` if products with linear vectors are asked for.

    The frame gets a direction for each.
    """
    frames, count, old = frame.group.frames, new.count, frame.directions
    constant = bool(frame.group.constant)
    if linear and new.slopes().any():
        along = new.regression(build, old) or _regression(build, new, constant, old)
    else:
        along = build.constant(np.zeros((frames, count, old)))
    whole = _kernel(build, new, new, constant, words)
    block = _less(build, whole, along, along) if linear else whole
    rows = along
    if rests.factor is None:
        fresh = rests.factor = build.step("residual", block, whole, words=f"coordinates of {words}")
    else:
        cross = []
        for earlier, part in zip(rests.features, rests.along, strict=True):
            if not new.related(earlier):
                cross.append(build.constant(np.zeros((frames, count, earlier.count))))
                continue
            both = _kernel(build, new, earlier, constant, words)
            cross.append(_less(build, both, along, build.fitted(part, old)) if linear else both)
        joined = build.step("join", *cross, axis=2) if len(cross) > 1 else cross[0]
        below = build.step("solve", rests.factor, joined)
        fresh = build.step("residual", _less(build, block, below, below), whole, words=f"coordinates of {words}")
        size = rests.factor.shape[-1]
        above = build.step("pad", rests.factor, before=0, after=count)
        rests.factor = build.step("join", above, build.step("join", below, fresh, axis=2), axis=1)
        place = np.full(old, size)  # of each direction among the rests; the last is a 0
        place[rests.places] = np.arange(size)
        spread = build.step("take", build.step("pad", below, before=0, after=1), places=place, axis=2)
        rows = build.step("add", rows, spread)
    rows = build.step("join", rows, fresh, axis=2)
    frame.unit(number, count, replace(new, rows=rows, rests=rests))
    rests.places += range(old, old + count)
    rests.features.append(new)
    rests.along.append(along)
    return rows


def _less(build: Builder, gram: Register, a: Register, b: Register) -> Register:
    """A Gram matrix less the products of rows."""
    return build.step("add", gram, build.step("scale", build.step("gram", a, b), by=-1.0))


def _kernel(build: Builder, x: Features, y: Features, constant: bool, words: str) -> Register:
    """E[F_i F'_j]: a product over the parts of the factors that are independent of each other."""
    if (own := x.kernel(build, y, words)) is not None:
        return own
    if (own := y.kernel(build, x, words)) is not None:
        return build.step("transposed", own)
    total: Register | None = None
    for ours, theirs in independent(x, y):
        left, right = (part(build, z, factors) for z, factors in ((x, ours), (y, theirs)))
        found = expected(build, left, right, constant, words)
        total = found if total is None else build.step("multiply", total, found)
    assert total is not None
    return total


def expected(build: Builder, left: Part | None, right: Part | None, constant: bool, words: str) -> Register:
    """E[f(u_i) g(v_j)], (frames, i, j); of one function alone its mean, (frames, i, 1) or (frames, 1, j)."""
    if left is None or right is None:
        side = left or right
        assert side is not None
        mean = build.step("part", moments(build, *side, constant), start=0, stop=1)
        return mean if left else build.step("transposed", mean)
    (u, f, p), (v, g, q) = left, right
    width = max(u.shape[-1], v.shape[-1])
    return build.step(
        "kernel",
        build.fitted(u, width),
        build.fitted(v, width),
        *p,
        *q,
        words=f"E[{named(f)} {named(g)}] for {words}",
        made=(u.shape[0], u.shape[1], v.shape[1]),
        f=f,
        g=g,
        given=len(p),
        constant=constant,
    )


def moments(build: Builder, u: Register, f: Function, params: Sequence[Register], constant: bool) -> Register:
    """E[f(u_i)], then the coefficients of the regression on the arguments, (frames, i, 1 + r)."""
    made = (*u.shape[:2], 1 + u.shape[2])
    return build.step("moments", u, *params, made=made, f=f, constant=constant)


def _regression(build: Builder, new: Features, constant: bool, directions: int) -> Register:
    """E[F] along (1, …, 1) and β · u along the rest, (frames, k, directions)."""
    frames, count = new.arguments.shape[:2]
    parts = [part(build, new, factors) for factors, _ in independent(new, None)]
    found = [(p[0], moments(build, *p, constant)) for p in parts if p is not None]
    means = [build.step("part", m, start=0, stop=1) for _, m in found]
    total: Register | None = None
    for k, (u, m) in enumerate(found):
        slopes = build.reshape(build.step("part", m, start=1, stop=m.shape[-1]), frames, count, 1, u.shape[2])
        row = build.reshape(build.step("product", slopes, u), frames, count, u.shape[-1])
        for i, mean in enumerate(means):
            if i != k:
                row = build.step("multiply", row, mean)
        total = row if total is None else build.step("add", total, row)
    assert total is not None
    total = build.fitted(total, directions)
    if constant:  # the first direction: the mean itself, in place of β times the means of the arguments
        mean = means[0]
        for other in means[1:]:
            mean = build.step("multiply", mean, other)
        total = build.step("join", mean, build.step("part", total, start=1, stop=directions), axis=2)
    return total


def independent(x: Features, y: Features | None) -> list[tuple[Factors, Factors]]:
    """The factors of x, and of y, in sets that have no direction in common; by structure, not by drawn numbers."""
    sets: list[tuple[npt.NDArray[np.bool_], Factors, Factors]] = []
    for side, features in enumerate((x, y) if y is not None else (x,)):
        vectors = len(features.supports)
        width = max(features.supports.shape[1], *(z.supports.shape[1] for z in (x, y) if z is not None))
        for f, numbers in features.factors():
            reach = np.zeros(width, dtype=bool)
            for number in numbers:
                if number < vectors:
                    reach[: features.supports.shape[1]] |= features.supports[number]
            found: tuple[npt.NDArray[np.bool_], Factors, Factors] = (reach, [], [])
            found[1 + side].append((f, numbers))  # type: ignore[union-attr]
            apart, attached = [], False
            for other in sets:
                meets = (other[0][: len(reach)] & found[0][: len(other[0])]).any()
                # a factor that is not random goes with any one of the others
                loose = not other[0].any() or (not reach.any() and not attached)
                if meets or loose:
                    attached = True
                    both = np.zeros(max(len(other[0]), len(found[0])), dtype=bool)
                    both[: len(other[0])] |= other[0]
                    both[: len(found[0])] |= found[0]
                    found = both, other[1] + found[1], other[2] + found[2]
                else:
                    apart.append(other)
            sets = [*apart, found]
    return [(ours, theirs) for _, ours, theirs in sets]


@dataclass(frozen=True)
class Product:
    """The product of functions, each of some of the arguments."""

    factors: tuple[tuple[Function, tuple[int, ...]], ...]

    def __call__(self, *arguments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        made = 1.0
        for f, numbers in self.factors:
            made = made * f(*(arguments[k] for k in numbers))
        return made  # type: ignore[return-value]


def part(build: Builder, x: Features, factors: Factors) -> Part | None:
    """Some factors of features as features: arguments, function and parameters; None if there are no factors."""
    if not factors:
        return None
    vectors = len(x.supports)
    numbers = sorted({number for _, of in factors for number in of})
    chosen = [n for n in numbers if n < vectors]
    params = tuple(x.params[n - vectors] for n in numbers if n >= vectors)
    if len(factors) == 1 and list(factors[0][1]) == numbers:
        f = factors[0][0]
    else:
        place = {number: k for k, number in enumerate(numbers)}
        f = Function("product", Product(tuple((g, tuple(place[n] for n in of)) for g, of in factors)))
    if not chosen:  # scalars alone: a function of an argument that it does not look at
        chosen, f = [0], Function(f.name, _Constant(f))
    return build.taken(x.arguments, np.array(chosen), axis=2), f, params


@dataclass(frozen=True)
class _Constant:
    """A function of parameters alone, with an argument in front."""

    f: Function

    def __call__(self, u: npt.NDArray[np.float64], *params: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return self.f(*params) + 0.0 * u  # type: ignore[no-any-return]
