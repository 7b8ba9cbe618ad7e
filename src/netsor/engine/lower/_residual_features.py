"""Coordinates of the outputs of nonlinearities at infinite width: regression on
Gaussian vectors, and residuals.

A feature F = φ(u; p) of Gaussian vectors u is F = E[F] 1 + β u + residual, with β =
E[φ'] by Stein's lemma (docs/theory.md, "Infinite width is the same code"). The Cholesky
factor of the Gram matrix of all residuals gives each feature coordinates along the
earlier ones, and one new direction.

If no product with a linear vector (or with features of another nonlinearity) is needed,
features get no coordinates along it: the shortcut `apart`. The shortcut `named` uses
formulas for kernels and conditional means of known functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import starmap
from operator import call, or_
from typing import Any, NamedTuple

import numpy as np

from ...activations import IDENTITY, Function
from .._ir import Register
from .._ir_builder import Builder, named
from ..passes.fuse_nonlinearities import Composed, is_smooth
from ._components import SeedKey

# functions, each of some of the arguments
Factors = list[tuple[Function, tuple[int, ...]]]
# arguments, a function of them, and its parameters
Part = tuple[Register, Function, tuple[Register, ...]]


class SignFactor(NamedTuple):
    """A factor of a function of sources: what it does if these change their signs
    together.
    """

    reach: int  # the sources
    odd: bool  # it changes its sign
    # or changes in another way: it is neither odd nor even, or its argument has a mean
    fixed: bool


def _classes(factors: Sequence[SignFactor]) -> list[SignFactor]:
    """Factors multiplied that have sources in common: no two have then, so that each
    class has signs of its own.
    """
    found: list[SignFactor] = []
    for new in factors:
        for other in [c for c in found if c.reach & new.reach]:
            found.remove(other)
            new = SignFactor(
                new.reach | other.reach, new.odd != other.odd, new.fixed or other.fixed
            )
        found.append(new)
    return [c for c in found if c.reach]


def has_mean_zero(factors: Sequence[SignFactor]) -> bool:
    """Whether the mean of a product is 0 by structure: it is odd in some sources."""
    return any(c.odd and not c.fixed for c in _classes(factors))


def slopes(factors: Sequence[SignFactor]) -> int:
    """The sources that a product can have coordinates along."""
    classes = _classes(factors)
    odd = [c for c in classes if c.odd and not c.fixed]
    return reduce(
        or_, (c.reach for c in classes if (c.fixed and not odd) or odd == [c]), 0
    )


@dataclass(frozen=True, eq=False)
class ResidualFeatures:
    """Functions of Gaussian vectors, in the frames of a group: (frames, k) of them."""

    f: Function
    rows: tuple[Register, ...]  # the arguments, (frames, k, directions) each
    # of each argument: random directions along which some frame's has coordinates
    supports: tuple[int, ...]
    params: tuple[Register, ...]  # (frames, k) each
    centred: tuple[bool, ...]  # of each argument, whether its mean is 0
    nested: bool  # whether an argument is made of outputs of nonlinearities
    basis: ResidualBasis  # the component that they are in

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return self.rows[0].shape[1]

    @cached_property
    def reach(self) -> int:
        """The directions that they are functions of."""
        return reduce(or_, self.supports)

    def signs_of(self, of: tuple[int, ...], parity: int | None) -> list[SignFactor]:
        """A function of some arguments, with a parity if there is one argument."""
        known = parity if len(of) == 1 else None
        vectors = [number for number in of if number < len(self.supports)]
        return [
            SignFactor(
                self.supports[k], known == -1, known is None or not self.centred[k]
            )
            for k in vectors
        ]

    @cached_property
    def signs(self) -> list[SignFactor]:
        """Their factors, by what these do when sources change their signs."""
        return [sign for f, of in self.factors for sign in self.signs_of(of, f.parity)]

    def changes(self, number: int, b: SignFactor) -> Iterator[list[SignFactor]]:
        """How an output changes if an argument does, by a small vector b: ∂φ(x) b, a
        term for each factor of φ.

        Where a factor has a kink and its argument an atom, the change is another
        function of b.
        """
        for k, (f, of) in enumerate(self.factors):
            if number in of:
                rest = self.factors[:k] + self.factors[k + 1 :]
                others = [
                    sign for g, at in rest for sign in self.signs_of(at, g.parity)
                ]
                smooth = is_smooth(f)
                parity = -f.parity if smooth and f.parity is not None else None
                own = [] if f is IDENTITY else self.signs_of(of, parity)
                yield [*others, *own, b if smooth else b._replace(fixed=True)]

    @cached_property
    def slopes(self) -> int:
        """The directions along which they can have coordinates: E[F e] ≠ 0 for a source
        e.
        """
        return slopes(self.signs)

    def related(self, other: ResidualFeatures) -> bool:
        """Whether products with other features can be other than 0."""
        return not has_mean_zero([*self.signs, *other.signs])

    @cached_property
    def factors(self) -> Factors:
        """The functions that these are products of, each with the numbers of its
        arguments (vectors, then scalars).
        """
        if isinstance(self.f, Composed) and self.f.factors:
            return list(self.f.factors)
        return [(self.f, tuple(range(len(self.supports) + len(self.params))))]

    def part(self, builder: Builder, factors: Factors) -> Part:
        """Some factors as features: arguments, function and parameters."""
        vectors = len(self.supports)
        numbers = sorted({number for _, of in factors for number in of})
        chosen = [n for n in numbers if n < vectors]
        params = tuple(self.params[n - vectors] for n in numbers if n >= vectors)
        if len(factors) == 1 and list(factors[0][1]) == numbers:
            f = factors[0][0]
        else:
            place = {number: k for k, number in enumerate(numbers)}
            f = Function(
                "product",
                partial(
                    _product,
                    tuple((g, tuple(place[n] for n in of)) for g, of in factors),
                ),
            )
        # scalars alone: a function of an argument that it does not look at
        if not chosen:
            chosen, f = [0], Function(f.name, partial(_of_parameters, f))
        rows = [self.rows[n] for n in chosen]
        return (
            builder.step(
                "join",
                *(builder.reshape(a, *a.shape[:2], 1, a.shape[-1]) for a in rows),
                axis=2,
            ),
            f,
            params,
        )


@dataclass(eq=False)
class ResidualBasis:
    """The features of one component of a frame so far, and the factor of the Gram
    matrix of their rests.
    """

    features: list[ResidualFeatures] = field(default_factory=list)
    # of each: the coordinates along linear directions
    along: list[Register] = field(default_factory=list)
    factor: Register | None = None  # (frames, K, K)
    # of the factor, those that have a direction
    columns: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # and these directions

    def add(
        self,
        builder: Builder,
        new: ResidualFeatures,
        number: SeedKey,
        old: int,
        linear: bool,
        constant: bool,
    ) -> Register:
        """The coordinates (frames, k, directions) of new features: along the old
        directions, and one more for each.

        A feature that those before it are known to span adds no direction. Nearly
        dependent features are taken in another order, in which rounding errors do not
        grow.

        `linear`: products with linear vectors are asked for. `constant`: (1, …, 1) is
        the first direction.
        """
        frames, count, words = new.rows[0].shape[0], new.count, named(new.f)
        if linear and (new.slopes or (constant and not has_mean_zero(new.signs))):
            along = _regression(builder, new, constant, old)
        else:
            along = builder.constant(np.zeros((frames, count, old)))
        whole = _kernel(builder, new, new, constant, words)
        block = _less(builder, whole, along, along) if linear else whole
        below, rest = None, block
        if self.factor is not None:
            cross = []
            for earlier, part in zip(self.features, self.along, strict=True):
                if not new.related(earlier):
                    cross.append(
                        builder.constant(np.zeros((frames, count, earlier.count)))
                    )
                    continue
                both = _kernel(builder, new, earlier, constant, words)
                cross.append(
                    _less(builder, both, along, builder.pad_or_cut(part, old))
                    if linear
                    else both
                )
            below = builder.step(
                "solve", self.factor, builder.step("join", *cross, axis=2)
            )
            rest = _less(builder, block, below, below)
        order = builder.pivot_order(rest, whole, number)
        if moves := not np.array_equal(order, np.arange(count)):
            rows, params = (
                tuple(builder.take(a, order, axis=1) for a in some)
                for some in (new.rows, new.params)
            )
            new = replace(new, rows=rows, params=params)
            along, below = (
                builder.take(along, order, axis=1),
                below and builder.take(below, order, axis=1),
            )
            rest, whole = (
                builder.take(builder.take(a, order, axis=1), order, axis=2)
                for a in (rest, whole)
            )
        made, size = along, 0
        fresh = builder.step("residual", rest, whole, words=f"coordinates of {words}")
        if self.factor is None or below is None:
            self.factor = fresh
        else:
            size = self.factor.shape[-1]
            above = builder.step("pad", self.factor, before=0, after=count)
            self.factor = builder.step(
                "join", above, builder.step("join", below, fresh, axis=2), axis=1
            )
            # of each direction among the rests; the last is a 0
            place = np.full(old, size)
            place[self.places] = self.columns
            spread = builder.step(
                "take",
                builder.step("pad", below, before=0, after=1),
                places=place,
                axis=2,
            )
            made = builder.step("add", made, spread)
        some = builder.independent_columns(fresh, number)
        self.columns += [size + int(k) for k in some]
        self.places += range(old, old + len(some))
        self.features.append(new)
        self.along.append(along)
        made = builder.step("join", made, builder.take(fresh, some, axis=2), axis=2)
        if len(some) < count:  # a direction for what is left out
            made = (
                self._moved(builder, made, count)
                if builder.shift
                else builder.step("pad", made, before=0, after=1)
            )
        return builder.take(made, np.argsort(order), axis=1) if moves else made

    def _moved(self, builder: Builder, rows: Register, count: int) -> Register:
        """The coordinates of features, with how far each is from what all directions
        span along a direction of 0.
        """
        # So a plan with a shift shows whether a law depends on what is left out. Along
        # a direction that others have, it would turn the directions of all that is
        # computed from these features, and so what replicas draw.
        assert self.factor is not None
        size = self.factor.shape[-1]
        rest = np.setdiff1d(np.arange(size), self.columns)
        if not rest.size:
            return builder.step("pad", rows, before=0, after=1)
        new = builder.take(self.factor, np.arange(size - count, size), axis=1)
        apart = builder.step(
            "root", builder.step("squares", builder.take(new, rest, axis=2))
        )
        return builder.step(
            "join", rows, builder.reshape(apart, *apart.shape, 1), axis=2
        )


def _less(builder: Builder, gram: Register, a: Register, b: Register) -> Register:
    """A Gram matrix less the products of rows."""
    return builder.step(
        "add", gram, builder.step("scale", builder.step("gram", a, b), by=-1.0)
    )


def _kernel(
    builder: Builder,
    x: ResidualFeatures,
    y: ResidualFeatures,
    constant: bool,
    words: str,
) -> Register:
    """E[F_i F'_j], (frames, i, j): a product over the sets of factors that are
    independent of each other.
    """

    def expected(ours: Factors, theirs: Factors) -> Register:
        if not theirs:
            return _mean_and_slopes(builder, x.part(builder, ours), constant)[0]
        if not ours:
            return builder.step(
                "transposed",
                _mean_and_slopes(builder, y.part(builder, theirs), constant)[0],
            )
        (u, f, p), (v, g, q) = x.part(builder, ours), y.part(builder, theirs)
        width = max(u.shape[-1], v.shape[-1])
        return builder.step(
            "kernel",
            builder.pad_or_cut(u, width),
            builder.pad_or_cut(v, width),
            *p,
            *q,
            f=f,
            g=g,
            given=len(p),
            constant=constant,
            made=(u.shape[0], u.shape[1], v.shape[1]),
            words=f"E[{named(f)} {named(g)}] for {words}",
        )

    return builder.fold("multiply", starmap(expected, independent(x, y)))


def _mean_and_slopes(
    builder: Builder, part: Part, constant: bool
) -> tuple[Register, Register]:
    """E[f(u_i)], (frames, i, 1), and the coefficients of the regression on the
    arguments, (frames, i, 1, r).
    """
    u, f, params = part
    frames, count, r, _ = u.shape
    found = builder.step(
        "moments", u, *params, made=(frames, count, 1 + r), f=f, constant=constant
    )
    slopes = builder.reshape(
        builder.step("part", found, start=1, stop=1 + r), frames, count, 1, r
    )
    return builder.step("part", found, start=0, stop=1), slopes


def _regression(
    builder: Builder, new: ResidualFeatures, constant: bool, directions: int
) -> Register:
    """E[F] along (1, …, 1) and β · u along the rest, (frames, k, directions): of each
    set, times the others' means.
    """
    means, rows = [], []
    for factors, _ in independent(new, None):
        part = new.part(builder, factors)
        mean, slopes = _mean_and_slopes(builder, part, constant)
        row = builder.step("product", slopes, part[0])
        means.append(mean)
        rows.append(builder.reshape(row, *row.shape[:2], row.shape[-1]))
    terms = (
        builder.fold("multiply", [row, *means[:k], *means[k + 1 :]])
        for k, row in enumerate(rows)
    )
    total = builder.pad_or_cut(builder.fold("add", terms), directions)
    # the first direction: the mean itself, instead of β times the means of the
    # arguments
    if constant:
        rest = builder.step("part", total, start=1, stop=directions)
        total = builder.step("join", builder.fold("multiply", means), rest, axis=2)
    return total


def independent(
    x: ResidualFeatures, y: ResidualFeatures | None
) -> list[tuple[Factors, Factors]]:
    """The factors of x, and of y, in sets that have no direction in common; by
    structure, not by drawn numbers.
    """
    sets: list[tuple[int, Factors, Factors]] = []
    for side, features in enumerate((x,) if y is None else (x, y)):
        for factor in features.factors:
            reach = reduce(
                or_,
                (features.supports[k] for k in factor[1] if k < len(features.supports)),
                0,
            )
            ours, theirs = ([], [factor]) if side else ([factor], [])
            apart, attached, alone = [], False, not reach
            for other in sets:
                # a factor that is not random goes with any one of the others
                if other[0] & reach or not other[0] or (alone and not attached):
                    attached = True
                    reach, ours, theirs = (
                        reach | other[0],
                        other[1] + ours,
                        other[2] + theirs,
                    )
                else:
                    apart.append(other)
            sets = [*apart, (reach, ours, theirs)]
    return [(ours, theirs) for _, ours, theirs in sets]


# Functions made of others, as partial functions of this module: steps of a plan are
# equal if their arguments are


def unnamed(f: Function) -> Function:
    """The same function without its formulas: its values, its parity, and whether it is
    smooth.
    """
    breaks = () if is_smooth(f) else None
    if isinstance(f, Composed):
        factors = tuple((unnamed(g), of) for g, of in f.factors)
        return Composed(
            f.name, partial(call, f.f), breaks=breaks, parity=f.parity, factors=factors
        )
    return Function(f.name, partial(call, f.f), breaks=breaks, parity=f.parity)


def _product(
    factors: Sequence[tuple[Function, tuple[int, ...]]], *arguments: Any
) -> Any:
    """The product of functions, each of some of the arguments."""
    made = 1.0
    for f, numbers in factors:
        made = made * f(*(arguments[k] for k in numbers))
    return made


def _of_parameters(f: Function, u: Any, *params: Any) -> Any:
    """A function of parameters alone, with an argument in front."""
    return f(*params) + 0.0 * u
