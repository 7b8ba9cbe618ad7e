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

from ...functions.activations import IDENTITY, Function
from ..passes.fuse_nonlinearities import Composed, is_smooth
from ..plan._ir import Register
from ..plan._ir_builder import Builder, named
from ._components import Ints, SeedKey

# Functions, each with the numbers of its arguments
Factors = list[tuple[Function, tuple[int, ...]]]


class Part(NamedTuple):
    """Some factors of features, as one function."""

    arguments: Register  # (frames, k, arguments, directions)
    f: Function
    params: tuple[Register, ...]


class SignFactor(NamedTuple):
    """A factor of a function of sources, when these change their signs together."""

    reach: int  # the sources
    odd: bool  # whether it changes its sign
    # whether it changes in another way: it is neither odd nor even, or its argument has
    # a mean
    fixed: bool


def _classes(factors: Sequence[SignFactor]) -> list[SignFactor]:
    """Multiply the factors that have sources in common.

    No two of the results have, so that the sources of each have signs of their own.
    """
    classes: list[SignFactor] = []
    for factor in factors:
        merged = factor
        for other in list(classes):
            if other.reach & merged.reach:
                classes.remove(other)
                merged = SignFactor(
                    reach=merged.reach | other.reach,
                    odd=merged.odd != other.odd,
                    fixed=merged.fixed or other.fixed,
                )
        classes.append(merged)
    return [c for c in classes if c.reach]


def has_mean_zero(factors: Sequence[SignFactor]) -> bool:
    """Whether the mean of a product is 0 by structure: it is odd in some sources."""
    return any(c.odd and not c.fixed for c in _classes(factors))


def slopes(factors: Sequence[SignFactor]) -> int:
    """The sources that a product can have coordinates along.

    If it is odd in one class of sources, only these; if in several, none.
    """
    classes = _classes(factors)
    odd = [c for c in classes if c.odd and not c.fixed]
    if len(odd) > 1:
        return 0
    if odd:
        return odd[0].reach
    return reduce(or_, (c.reach for c in classes if c.fixed), 0)


# The factors of a product
Signs = list[SignFactor]


@dataclass(frozen=True, eq=False)
class ResidualFeatures:
    """Functions of Gaussian vectors, in the frames of a group: (frames, k) of them.

    Attributes
    ----------
    f : Function
        The function.
    rows : tuple of Register
        The arguments, (frames, k, directions) each.
    supports : tuple of int
        For each argument, the random directions along which it has coordinates in some
        frame.
    params : tuple of Register
        The scalar arguments, (frames, k) each.
    centred : tuple of bool
        For each argument, whether its mean is 0.
    nested : bool
        Whether an argument is made of outputs of nonlinearities.
    basis : ResidualBasis
        The features of the component that they are in.
    """

    f: Function
    rows: tuple[Register, ...]
    supports: tuple[int, ...]
    params: tuple[Register, ...]
    centred: tuple[bool, ...]
    nested: bool
    basis: ResidualBasis

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return self.rows[0].shape[1]

    @cached_property
    def reach(self) -> int:
        """The directions that they are functions of."""
        return reduce(or_, self.supports)

    @cached_property
    def factors(self) -> Factors:
        """The functions that these are products of, with the numbers of their arguments
        (vectors, then scalars).
        """
        if isinstance(self.f, Composed) and self.f.factors:
            return list(self.f.factors)
        return [(self.f, tuple(range(len(self.supports) + len(self.params))))]

    def signs_of(self, arguments: tuple[int, ...], parity: int | None) -> Signs:
        """A function of some arguments, with a parity if there is one argument."""
        if len(arguments) > 1:
            parity = None
        signs = []
        for k in arguments:
            if k >= len(self.supports):  # a scalar
                continue
            fixed = parity is None or not self.centred[k]
            signs.append(SignFactor(self.supports[k], odd=parity == -1, fixed=fixed))
        return signs

    @cached_property
    def signs(self) -> Signs:
        """Their factors, by what these do when sources change their signs."""
        return self._signs_of_factors(self.factors)

    def _signs_of_factors(self, factors: Factors) -> Signs:
        signs: Signs = []
        for f, arguments in factors:
            signs += self.signs_of(arguments, f.parity)
        return signs

    def changes(self, number: int, b: SignFactor) -> Iterator[Signs]:
        """How an output changes if an argument does, by a small vector b: ∂φ(x) b, a
        term for each factor of φ.

        Where a factor has a kink and its argument an atom, the change is another
        function of b.
        """
        for k, (f, arguments) in enumerate(self.factors):
            if number not in arguments:
                continue
            signs = self._signs_of_factors(self.factors[:k] + self.factors[k + 1 :])
            smooth = is_smooth(f)
            if f is not IDENTITY:  # its derivative is 1
                derivative_parity = None
                if smooth and f.parity is not None:
                    derivative_parity = -f.parity
                signs += self.signs_of(arguments, derivative_parity)
            change = b
            if not smooth:
                change = b._replace(fixed=True)
            yield [*signs, change]

    @cached_property
    def slopes(self) -> int:
        """The directions along which they can have coordinates: E[F e] ≠ 0 for a source
        e.
        """
        return slopes(self.signs)

    def related(self, other: ResidualFeatures) -> bool:
        """Whether products with other features can be other than 0."""
        return not has_mean_zero([*self.signs, *other.signs])

    def part(self, builder: Builder, factors: Factors) -> Part:
        """Some factors as features: arguments, function and parameters."""
        vectors = len(self.supports)
        numbers: set[int] = set()
        for _, arguments in factors:
            numbers.update(arguments)
        in_order = sorted(numbers)
        vector_numbers = [number for number in in_order if number < vectors]
        params = tuple(self.params[n - vectors] for n in in_order if n >= vectors)
        f = _product_of(factors, in_order)
        # only scalars: a function of a vector that it does not look at
        if not vector_numbers:
            vector_numbers = [0]
            f = Function(f.name, partial(_of_parameters, f))
        columns = []
        for number in vector_numbers:
            rows = self.rows[number]
            frames, count, directions = rows.shape
            columns.append(builder.reshape(rows, frames, count, 1, directions))
        return Part(builder.step("join", *columns, axis=2), f, params)

    def reordered(self, builder: Builder, order: Ints) -> ResidualFeatures:
        """The features in another order."""
        rows = tuple(builder.take(a, order, axis=1) for a in self.rows)
        params = tuple(builder.take(p, order, axis=1) for p in self.params)
        return replace(self, rows=rows, params=params)


def _product_of(factors: Factors, numbers: Sequence[int]) -> Function:
    """The product of factors, as a function of the arguments with these numbers."""
    if len(factors) == 1 and list(factors[0][1]) == numbers:
        return factors[0][0]
    position = {number: k for k, number in enumerate(numbers)}
    renumbered = []
    for f, arguments in factors:
        renumbered.append((f, tuple(position[number] for number in arguments)))
    return Function("product", partial(_product, tuple(renumbered)))


@dataclass(eq=False)
class ResidualBasis:
    """The features of one component of a frame so far.

    Attributes
    ----------
    features : list of ResidualFeatures
        The features, in the order in which they came.
    along : list of Register
        For each, the coordinates along linear directions.
    factor : Register or None
        The factor of the Gram matrix of all residuals, (frames, K, K).
    columns : list of int
        The columns of the factor that have a direction.
    directions : list of int
        These directions.
    """

    features: list[ResidualFeatures] = field(default_factory=list)
    along: list[Register] = field(default_factory=list)
    factor: Register | None = None
    columns: list[int] = field(default_factory=list)
    directions: list[int] = field(default_factory=list)

    def add(
        self,
        builder: Builder,
        new: ResidualFeatures,
        seed_key: SeedKey,
        old: int,
        linear: bool,
        constant: bool,
    ) -> Register:
        """The coordinates (frames, k, directions) of new features: along the `old`
        directions, and one more for each.

        A feature that those before it are known to span adds no direction. Nearly
        dependent features are taken in another order, in which rounding errors do not
        grow.

        `linear`: products with linear vectors are asked for. `constant`: (1, …, 1) is
        the first direction.
        """
        count, label = new.count, named(new.f)
        along = _along_linear_directions(builder, new, old, linear, constant)
        gram = _kernel(builder, new, new, constant, label)
        residual_gram = gram
        if linear:
            residual_gram = _less(builder, gram, along, along)
        below = None  # along the residuals so far
        if self.factor is not None:
            cross = self._products_with_features(builder, new, along, linear, constant)
            below = builder.step("solve", self.factor, cross)
            residual_gram = _less(builder, residual_gram, below, below)
        order = builder.pivot_order(residual_gram, gram, seed_key)
        reorders = not np.array_equal(order, np.arange(count))
        if reorders:
            new = new.reordered(builder, order)
            along = builder.take(along, order, axis=1)
            if below is not None:
                below = builder.take(below, order, axis=1)
            residual_gram = _reordered_matrix(builder, residual_gram, order)
            gram = _reordered_matrix(builder, gram, order)
        label = f"coordinates of {label}"
        fresh = builder.step("residual", residual_gram, gram, words=label)
        coordinates = along
        if below is not None:
            spread = self._along_directions(builder, below, old)
            coordinates = builder.step("add", along, spread)
        independent = builder.independent_columns(fresh, seed_key)
        self._extend(builder, below, fresh, independent, old)
        self.features.append(new)
        self.along.append(along)
        along_new = builder.take(fresh, independent, axis=2)
        coordinates = builder.step("join", coordinates, along_new, axis=2)
        if len(independent) < count:  # a direction for what is left out
            coordinates = self._with_direction_left_out(builder, coordinates, count)
        if reorders:
            coordinates = builder.take(coordinates, np.argsort(order), axis=1)
        return coordinates

    def _extend(
        self,
        builder: Builder,
        below: Register | None,
        fresh: Register,
        independent: Ints,
        old: int,
    ) -> None:
        """Extend the factor, and give its independent new columns directions from `old`
        on.

        `below` are the coordinates of new residuals along the old ones, `fresh` their
        own factor.
        """
        size = 0
        if self.factor is None or below is None:
            self.factor = fresh
        else:
            size = self.factor.shape[-1]
            self.factor = _extended_factor(builder, self.factor, below, fresh)
        self.columns += [size + int(k) for k in independent]
        self.directions += range(old, old + len(independent))

    def _products_with_features(
        self,
        builder: Builder,
        new: ResidualFeatures,
        along: Register,
        linear: bool,
        constant: bool,
    ) -> Register:
        """E[F_i F'_j] of new features and all earlier ones, less those of their parts
        along linear directions.
        """
        frames, count, old = along.shape
        products: list[Register] = []
        for earlier, earlier_along in zip(self.features, self.along, strict=True):
            if not new.related(earlier):
                zeros = np.zeros((frames, count, earlier.count))
                products.append(builder.constant(zeros))
                continue
            product = _kernel(builder, new, earlier, constant, named(new.f))
            if linear:
                padded = builder.pad_or_cut(earlier_along, old)
                product = _less(builder, product, along, padded)
            products.append(product)
        return builder.step("join", *products, axis=2)

    def _along_directions(
        self, builder: Builder, below: Register, old: int
    ) -> Register:
        """Coordinates along the residuals so far, laid out along all old directions."""
        # for each direction, its column among the residuals; the last column is a 0
        column = np.full(old, below.shape[-1])
        column[self.directions] = self.columns
        padded = builder.step("pad", below, before=0, after=1)
        return builder.step("take", padded, places=column, axis=2)

    def _with_direction_left_out(
        self, builder: Builder, rows: Register, count: int
    ) -> Register:
        """The coordinates of the last `count` features, with one direction more: 0.

        In a plan with a shift, how far each is from what all directions span.
        """
        # So a plan with a shift shows whether a law depends on what is left out. Along
        # a direction that others have, it would turn the directions of all that is
        # computed from these features, and so what replicas draw.
        assert self.factor is not None
        size = self.factor.shape[-1]
        left_out = np.setdiff1d(np.arange(size), self.columns)
        if not builder.shift or not left_out.size:
            return builder.step("pad", rows, before=0, after=1)
        new = builder.take(self.factor, np.arange(size - count, size), axis=1)
        squares = builder.step("squares", builder.take(new, left_out, axis=2))
        distance = builder.step("root", squares)
        column = builder.reshape(distance, *distance.shape, 1)
        return builder.step("join", rows, column, axis=2)


def _along_linear_directions(
    builder: Builder,
    new: ResidualFeatures,
    directions: int,
    linear: bool,
    constant: bool,
) -> Register:
    """The coordinates of features along linear directions, where they can have some."""
    has_mean = constant and not has_mean_zero(new.signs)
    if linear and (new.slopes or has_mean):
        return _regression(builder, new, constant, directions)
    frames = new.rows[0].shape[0]
    return builder.constant(np.zeros((frames, new.count, directions)))


def _extended_factor(
    builder: Builder, factor: Register, below: Register, fresh: Register
) -> Register:
    """The triangular factor with new rows below: coordinates along the old ones, and
    their own factor.
    """
    above = builder.step("pad", factor, before=0, after=fresh.shape[-1])
    rows = builder.step("join", below, fresh, axis=2)
    return builder.step("join", above, rows, axis=1)


def _reordered_matrix(builder: Builder, gram: Register, order: Ints) -> Register:
    """A Gram matrix of vectors in another order."""
    return builder.take(builder.take(gram, order, axis=1), order, axis=2)


def _less(builder: Builder, gram: Register, a: Register, b: Register) -> Register:
    """A Gram matrix less the products of rows."""
    products = builder.step("gram", a, b)
    return builder.step("add", gram, builder.step("scale", products, by=-1.0))


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
            mean, _ = _mean_and_slopes(builder, x.part(builder, ours), constant)
            return mean
        if not ours:
            mean, _ = _mean_and_slopes(builder, y.part(builder, theirs), constant)
            return builder.step("transposed", mean)
        u, f, p = x.part(builder, ours)
        v, g, q = y.part(builder, theirs)
        width = max(u.shape[-1], v.shape[-1])
        return builder.step(
            "kernel",
            builder.pad_or_cut(u, width),
            builder.pad_or_cut(v, width),
            *p,
            *q,
            f=f,
            g=g,
            params_of_f=len(p),
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
    moments = builder.step(
        "moments", u, *params, made=(frames, count, 1 + r), f=f, constant=constant
    )
    slopes = builder.step("part", moments, start=1, stop=1 + r)
    slopes = builder.reshape(slopes, frames, count, 1, r)
    return builder.step("part", moments, start=0, stop=1), slopes


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
        row = builder.step("product", slopes, part.arguments)
        means.append(mean)
        rows.append(builder.reshape(row, *row.shape[:2], row.shape[-1]))
    terms = []
    for k, row in enumerate(rows):
        other_means = means[:k] + means[k + 1 :]
        terms.append(builder.fold("multiply", [row, *other_means]))
    total = builder.pad_or_cut(builder.fold("add", terms), directions)
    # the first direction: the mean itself, instead of β times the means of the
    # arguments
    if constant:
        random_part = builder.step("part", total, start=1, stop=directions)
        mean = builder.fold("multiply", means)
        total = builder.step("join", mean, random_part, axis=2)
    return total


class _FactorSet(NamedTuple):
    """Factors of two features that are functions of the same directions."""

    reach: int
    ours: Factors
    theirs: Factors


def independent(
    x: ResidualFeatures, y: ResidualFeatures | None
) -> list[tuple[Factors, Factors]]:
    """The factors of x, and of y, in sets that have no direction in common; by
    structure, not by drawn numbers.
    """
    sets: list[_FactorSet] = []
    for factor in x.factors:
        sets = _with_factor(sets, _FactorSet(_reach(x, factor[1]), [factor], []))
    if y is not None:
        for factor in y.factors:
            sets = _with_factor(sets, _FactorSet(_reach(y, factor[1]), [], [factor]))
    return [(factors.ours, factors.theirs) for factors in sets]


def _reach(features: ResidualFeatures, arguments: Sequence[int]) -> int:
    """The directions that a function of some arguments depends on."""
    supports = features.supports
    return reduce(or_, (supports[k] for k in arguments if k < len(supports)), 0)


def _with_factor(sets: Sequence[_FactorSet], new: _FactorSet) -> list[_FactorSet]:
    """Sets without a direction in common, with one more factor.

    A factor that is not random goes with any one of the others.
    """
    apart: list[_FactorSet] = []
    merged = new
    is_number = not new.reach
    attached = False
    for other in sets:
        shares = other.reach & merged.reach or not other.reach
        if shares or (is_number and not attached):
            attached = True
            merged = _FactorSet(
                reach=merged.reach | other.reach,
                ours=other.ours + merged.ours,
                theirs=other.theirs + merged.theirs,
            )
        else:
            apart.append(other)
    return [*apart, merged]


# Functions made of others, as partial functions of this module: steps of a plan are
# equal if their arguments are


def unnamed(f: Function) -> Function:
    """The same function without its formulas: its values, its parity, and whether it is
    smooth.
    """
    breaks = () if is_smooth(f) else None
    if isinstance(f, Composed):
        factors = tuple((unnamed(g), arguments) for g, arguments in f.factors)
        return Composed(
            f.name, partial(call, f.f), breaks=breaks, parity=f.parity, factors=factors
        )
    return Function(f.name, partial(call, f.f), breaks=breaks, parity=f.parity)


def _product(
    factors: Sequence[tuple[Function, tuple[int, ...]]], *arguments: Any
) -> Any:
    """The product of functions, each of some of the arguments."""
    product = 1.0
    for f, numbers in factors:
        product = product * f(*(arguments[k] for k in numbers))
    return product


def _of_parameters(f: Function, u: Any, *params: Any) -> Any:
    """A function of parameters alone, with an argument in front."""
    return f(*params) + 0.0 * u
