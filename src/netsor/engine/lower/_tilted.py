"""Functions e_a F_l of the sources of a space at infinite width, with F = ψ(g) χ(v) … a product of functions.

They are features as others are. Their expectations are products over sets of factors that are independent of each
other (as those of all features are), and in the set of e_a they follow from those of pairs (g, h) by regression of e_a
on g and h, E[e_a ψ(g) e_b χ(h)] = Σ α β E[g^p ψ(g) h^q χ(h)] + c E[ψ(g) χ(h)].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...activations import IDENTITY, Function
from .._plan import Builder, Register, named
from ..passes.compose import Composed
from ._features import Factors, Features, Part, Product, expected, independent, moments, part


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
E = 0  # the number of e among the arguments


class _Side(NamedTuple):
    """The factors of one of two features in a set: e_a or none, and a function of one argument (frames, k, ·)."""

    e: Register | None
    x: Register
    f: Function
    params: tuple[Register, ...]


@dataclass(frozen=True, eq=False)
class Tilted(Features):
    """The functions e_a F_l for all a and l, in this order; e is argument 0."""

    e: Register | None = None  # (frames, A, directions)
    base: Features | None = None  # the F_l
    chosen: tuple[int, ...] = ()  # the arguments of F among those of the features that it is a part of

    def regression(self, build: Builder, directions: int) -> Register:
        """E[e_a F_l e_b], (frames, A k, directions): along the directions of a set, times the means of the others."""
        sets = [ours for ours, _ in independent(self, None)]
        means = [self._spread(build, self._mean(build, ours), 1) for ours in sets]
        total: Register | None = None
        for i, ours in enumerate(sets):
            row = build.fitted(self._along(build, ours), directions)
            for j, mean in enumerate(means):
                if i != j:
                    row = build.step("multiply", row, mean)
            total = row if total is None else build.step("add", total, row)
        assert total is not None
        return total

    def kernel(self, build: Builder, other: Features, words: str) -> Register | None:
        """E[e_a F_l F'_j], if no set of factors has functions of several arguments."""
        if not simple(self, other):
            return None
        total: Register | None = None
        for ours, theirs in independent(self, other):
            x, y = _side(build, self, ours), _side(build, other, theirs)
            if x.e is not None:
                found = _tilted(build, x, y, words)
            elif y.e is not None:
                found = build.step("transposed", _tilted(build, y, x, words))
            else:
                found = expected(
                    build, _part(build, x) if ours else None, _part(build, y) if theirs else None, False, words
                )
            found = self._spread(build, found, 1)
            if isinstance(other, Tilted):
                found = other._spread(build, found, 2)
            total = found if total is None else build.step("multiply", total, found)
        return total

    def _mean(self, build: Builder, ours: Factors) -> Register:
        """The mean of the functions of a set."""
        side = _side(build, self, ours)
        if side.e is None:
            return expected(build, _part(build, side), None, False, "")
        nothing = _Side(None, build.constant(np.zeros((side.x.shape[0], 1, side.x.shape[-1]))), ONE, ())
        return _tilted(build, side, nothing, "a mean")

    def _along(self, build: Builder, ours: Factors) -> Register:
        """The coordinates of the functions of a set along linear directions, for all a and l."""
        side = _side(build, self, ours)
        u, f, params = _part(build, side)
        if side.e is None:
            slopes = build.step("part", moments(build, u, f, params, False), start=1, stop=2)
            return self._spread(build, build.step("multiply", slopes, side.x), 1)
        means = [
            build.step("part", moments(build, u, times(f, power), params, False), start=0, stop=1) for power in (0, 2)
        ]
        width = max(side.e.shape[-1], side.x.shape[-1])
        rows = [build.fitted(a, width) for a in (side.e, side.x)]
        return build.step("tilted_means", *rows, *means, words=f"E[e {named(f)}(g) e']")

    def _spread(self, build: Builder, found: Register, axis: int) -> Register:
        """What was found for all l, for all a and l."""
        assert self.base is not None
        assert self.e is not None
        count = self.base.count
        if found.shape[axis] != count:  # already so, or one number for all
            return found
        return build.step("take", found, places=np.tile(np.arange(count), self.e.shape[1]), axis=axis)


def _part(build: Builder, side: _Side) -> Part:
    return build.reshape(side.x, *side.x.shape[:2], 1, side.x.shape[-1]), side.f, side.params


def _tilted(build: Builder, x: _Side, y: _Side, words: str) -> Register:
    """E[e_a ψ(g_l) e'_b χ(h_m)], (frames, A k, B m), with or without e'."""
    pairs = ((1, 0), (0, 1)) if y.e is None else ((2, 0), (1, 1), (0, 2), (0, 0))
    width = max(x.x.shape[-1], y.x.shape[-1])
    first, second = (build.reshape(build.fitted(z.x, width), *z.x.shape[:2], 1, width) for z in (x, y))
    kernels = [
        build.step(
            "kernel", first, second, *x.params, *y.params, f=times(x.f, p), g=times(y.f, q), given=len(x.params),
            constant=False, made=(first.shape[0], first.shape[1], second.shape[1]),
        )
        for p, q in pairs
    ]  # fmt: skip
    rows = [a for a in (x.e, x.x, y.x, y.e) if a is not None]
    width = max(a.shape[-1] for a in rows)
    rows = [build.fitted(a, width) for a in rows]
    return build.step("tilted", *rows, *kernels, rows=len(rows), words=f"E[e {named(x.f)}(g) …] for {words}")


def _side(build: Builder, x: Features, factors: Factors) -> _Side:
    """The factors of features that lie in a set; without any function, the function 1 of an argument that is 0."""
    e, base = None, x
    if isinstance(x, Tilted):
        assert x.base is not None
        e, base = x.e if any(E in of for _, of in factors) else None, x.base
        factors = [(f, tuple(number - 1 for number in of)) for f, of in factors if E not in of]
    frames, count, _, directions = base.arguments.shape
    found = part(build, base, factors)
    if found is None:
        return _Side(e, build.constant(np.zeros((frames, count if e is not None else 1, directions))), ONE, ())
    return _Side(e, build.reshape(found[0], frames, count, directions), *found[1:])


def simple(x: Features, y: Features) -> bool:
    """Whether each set of independent factors of two features has functions of one argument a side, beside e."""

    def one(features: Features, factors: Factors) -> bool:
        vectors, first = len(features.supports), int(isinstance(features, Tilted))
        return len({number for _, of in factors for number in of if first <= number < vectors}) <= 1

    return all(one(x, ours) and one(y, theirs) for ours, theirs in independent(x, y))


def tilted(feature: Features, factors: Factors, start: int, stop: int, directions: int) -> Tilted:
    """The structure of e_a F_l, without arrays: e along these directions, F the product of some factors of features."""
    vectors = len(feature.supports)
    chosen = sorted({number for _, of in factors for number in of if number < vectors})
    place = {number: 1 + k for k, number in enumerate(chosen)}
    place |= {vectors + k: 1 + len(chosen) + k for k in range(len(feature.params))}
    moved: Factors = [(f, tuple(place[number] for number in of)) for f, of in factors]
    supports = np.zeros((1 + len(chosen), directions), dtype=bool)
    supports[E, start:stop] = True
    supports[1:, : feature.supports.shape[1]] = feature.supports[chosen]
    name = "e " + " ".join(f.name for f, _ in factors)
    return Tilted(
        _product(name, [(IDENTITY, (E,)), *moved]), feature.arguments, supports, feature.params,
        (True, *(feature.centred[number] for number in chosen)), (), rests=feature.rests, chosen=tuple(chosen),
    )  # fmt: skip


def filled(build: Builder, x: Tilted, feature: Features, start: int, stop: int) -> Tilted:
    """The same with its arrays."""
    frames, count, size, d = feature.arguments.shape[0], feature.count, stop - start, x.supports.shape[1]
    e = build.constant(np.broadcast_to(np.eye(size, d, start), (frames, size, d)))
    base = Features(
        _product(x.f.name, [(f, tuple(number - 1 for number in of)) for f, of in x.factors()[1:]]),
        build.fitted(build.taken(feature.arguments, np.array(x.chosen), axis=2), d), x.supports[1:], x.params,
        x.centred[1:], (),
    )  # fmt: skip
    every = np.tile(np.arange(count), size)
    repeated = build.step("take", e, places=np.repeat(np.arange(size), count), axis=1)
    arguments = build.step(
        "join",
        build.reshape(repeated, frames, size * count, 1, d),
        build.step("take", base.arguments, places=every, axis=1),
        axis=2,
    )
    params = tuple(build.step("take", p, places=every, axis=1) for p in x.params)
    return replace(x, arguments=arguments, params=params, e=e, base=base)


def _product(name: str, factors: Factors) -> Composed:
    return Composed(name, Product(tuple(factors)), factors=tuple(factors))
