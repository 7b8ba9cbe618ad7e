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
from operator import call, or_
from typing import Any, NamedTuple

import numpy as np

from ...functions.activations import IDENTITY, Function
from ..passes.fuse_nonlinearities import Composed, is_smooth
from ..plan._ir import Register
from ..plan._ir_builder import Builder, named
from ._components import Ints, SeedKey

# The factors of a product φ(u_0, u_1, …): functions, each with the numbers of its
# arguments
Factors = list[tuple[Function, tuple[int, ...]]]


class Part(NamedTuple):
    """Some factors of k features in each frame, as one function f(u; p)."""

    arguments: Register  # u, (frames, k, arguments, directions)
    f: Function
    params: tuple[Register, ...]  # the scalar arguments p, (frames, k) each


class SignFactor(NamedTuple):
    """What a factor of a product does when sources change their signs together."""

    reach: int  # the sources that it depends on, a bit set
    odd: bool  # whether it changes its sign
    # whether it changes in another way: it is neither odd nor even, or its argument has
    # a mean
    fixed: bool


def _classes(factors: Sequence[SignFactor]) -> list[SignFactor]:
    """Multiply the factors that have sources in common, also by way of other factors.

    The results have no sources in common: each class of sources can change its signs
    without the others. For example, factors of the sources {0}, {1} and {0, 2} become
    two, of {1} and {0, 2}.
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
    return [merged for merged in classes if merged.reach]


def has_mean_zero(factors: Sequence[SignFactor]) -> bool:
    """Whether the mean of a product is 0 by structure.

    It is if the product is odd in some sources: their signs are symmetric.
    """
    return any(c.odd and not c.fixed for c in _classes(factors))


def slopes(factors: Sequence[SignFactor]) -> int:
    """The sources e with E[F e] ≠ 0 for a product F of factors, as a bit set.

    If F is odd in one class of sources, only these; if in several, none. Otherwise all
    sources in which it is not even.
    """
    classes = _classes(factors)
    odd = [c for c in classes if c.odd and not c.fixed]
    if len(odd) > 1:
        return 0
    if odd:
        return odd[0].reach
    sources = 0
    for c in classes:
        if c.fixed:
            sources |= c.reach
    return sources


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
        """The directions that they are functions of, a bit set."""
        return reduce(or_, self.supports)

    @cached_property
    def factors(self) -> Factors:
        """The functions whose product φ is, each with the numbers of its arguments.

        Vectors are numbered first, then scalars. φ itself, if it is no known product.
        """
        if isinstance(self.f, Composed) and self.f.factors:
            return list(self.f.factors)
        all_arguments = range(len(self.supports) + len(self.params))
        return [(self.f, tuple(all_arguments))]

    def signs_of(self, arguments: tuple[int, ...], parity: int | None) -> Signs:
        """What a function of these arguments does when sources change their signs.

        `parity`: 1 if it is even, −1 if it is odd; it counts only for one argument.
        """
        if len(arguments) > 1:
            parity = None
        signs = []
        for k in arguments:
            if k >= len(self.supports):  # a scalar, which has no sources
                continue
            is_odd = parity == -1
            has_no_symmetry = parity is None or not self.centred[k]
            signs.append(SignFactor(self.supports[k], is_odd, fixed=has_no_symmetry))
        return signs

    @cached_property
    def signs(self) -> Signs:
        """What all factors do when sources change their signs."""
        return self._signs_of_factors(self.factors)

    def _signs_of_factors(self, factors: Factors) -> Signs:
        """What some factors do when sources change their signs."""
        signs: Signs = []
        for f, arguments in factors:
            signs += self.signs_of(arguments, f.parity)
        return signs

    def changes(self, number: int, b: SignFactor) -> Iterator[Signs]:
        """The change ∂φ(x) b of outputs if argument `number` changes by a small b.

        By the product rule it has a term for each factor of φ that depends on the
        argument; each is given by what its factors do when sources change their signs.
        Where a factor has a kink and its argument an atom, the change is another
        function of b.
        """
        for k, (f, arguments) in enumerate(self.factors):
            if number not in arguments:
                continue
            other_factors = self.factors[:k] + self.factors[k + 1 :]
            signs = self._signs_of_factors(other_factors)
            smooth = is_smooth(f)
            if f is not IDENTITY:  # whose derivative, 1, depends on nothing
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
        """The sources e with E[F e] ≠ 0: directions along which F can have coordinates,
        as a bit set.
        """
        return slopes(self.signs)

    def related(self, other: ResidualFeatures) -> bool:
        """Whether E[F F'] of these and of other features can be other than 0."""
        return not has_mean_zero([*self.signs, *other.signs])

    def part(self, builder: Builder, factors: Factors) -> Part:
        """The product of some factors, as one function of the arguments it depends on.

        It is a function of at least one vector.
        """
        numbers: set[int] = set()
        for _, arguments in factors:
            numbers.update(arguments)
        in_order = sorted(numbers)
        first_scalar = len(self.supports)  # vectors are numbered before scalars
        vector_numbers = [n for n in in_order if n < first_scalar]
        scalar_numbers = [n for n in in_order if n >= first_scalar]
        params = tuple(self.params[n - first_scalar] for n in scalar_numbers)
        f = _product_of(factors, in_order)
        if not vector_numbers:  # only scalars: f ignores a vector in front of them
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
    """The product of factors, as a function of the arguments with these numbers.

    For example, the factor f(u_3) with the numbers [1, 3] becomes a function of (u_1,
    u_3), whose argument 1 is that of f.
    """
    if len(factors) == 1:
        f, arguments = factors[0]
        if list(arguments) == numbers:
            return f
    position = {number: k for k, number in enumerate(numbers)}
    renumbered = []
    for f, arguments in factors:
        positions = tuple(position[number] for number in arguments)
        renumbered.append((f, positions))
    return Function("product", partial(_product, tuple(renumbered)))


class _NewResiduals(NamedTuple):
    """New features F and their residuals, before these have directions."""

    features: ResidualFeatures
    along_linear: Register  # coordinates along linear directions, (frames, k, old)
    # coordinates along the K residuals so far, (frames, k, K); None if there are none
    along_earlier: Register | None
    gram: Register  # E[F_i F_j], (frames, k, k)
    residual_gram: Register  # the same less the products of these coordinates

    def reordered(self, builder: Builder, order: Ints) -> _NewResiduals:
        """The same with the features in another order."""
        features = self.features.reordered(builder, order)
        along_linear = builder.take(self.along_linear, order, axis=1)
        along_earlier = self.along_earlier
        if along_earlier is not None:
            along_earlier = builder.take(along_earlier, order, axis=1)
        residual_gram = _reordered_matrix(builder, self.residual_gram, order)
        gram = _reordered_matrix(builder, self.gram, order)
        return _NewResiduals(features, along_linear, along_earlier, gram, residual_gram)


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
        """Add features; returns their coordinates, (frames, k, directions).

        These are along the `old` directions of the frame, and one more for each
        feature, except for those that the features before them are known to span.
        Nearly dependent features are taken in another order, in which rounding errors
        do not grow.

        `seed_key` identifies the features in all runs. `linear`: products with linear
        vectors are asked for. `constant`: (1, …, 1) is the first direction.
        """
        residuals = self._residuals_of(builder, new, old, linear, constant)
        order = builder.pivot_order(residuals.residual_gram, residuals.gram, seed_key)
        reorders = not np.array_equal(order, np.arange(new.count))
        if reorders:
            residuals = residuals.reordered(builder, order)
        # the triangular factor of what is left: coordinates along new directions
        fresh = builder.step(
            "residual",
            residuals.residual_gram,
            residuals.gram,
            label=f"coordinates of {named(new.f)}",
        )
        coordinates = residuals.along_linear
        if residuals.along_earlier is not None:
            spread = self._along_directions(builder, residuals.along_earlier, old)
            coordinates = builder.step("add", coordinates, spread)
        # the columns of `fresh` that get a direction
        independent = builder.independent_columns(fresh, seed_key)
        self._extend(builder, residuals.along_earlier, fresh, independent, old)
        self.features.append(residuals.features)
        self.along.append(residuals.along_linear)
        along_new = builder.take(fresh, independent, axis=2)
        coordinates = builder.step("join", coordinates, along_new, axis=2)
        if len(independent) < new.count:  # a direction for what is left out
            coordinates = self._with_direction_left_out(builder, coordinates, new.count)
        if reorders:  # back to the order of the caller
            coordinates = builder.take(coordinates, np.argsort(order), axis=1)
        return coordinates

    def _residuals_of(
        self,
        builder: Builder,
        new: ResidualFeatures,
        old: int,
        linear: bool,
        constant: bool,
    ) -> _NewResiduals:
        """What new features have along linear directions and earlier residuals, and
        what is left of them. See `add` for the arguments.
        """
        along_linear = _along_linear_directions(
            builder, new, directions=old, linear=linear, constant=constant
        )
        gram = _kernel(
            builder, x=new, y=new, constant=constant, feature_name=named(new.f)
        )
        residual_gram = gram
        if linear:
            residual_gram = _less(builder, gram, along_linear, along_linear)
        along_earlier = None
        if self.factor is not None:
            products = self._products_with_features(
                builder, new, along=along_linear, linear=linear, constant=constant
            )
            along_earlier = builder.step("solve", self.factor, products)
            residual_gram = _less(builder, residual_gram, along_earlier, along_earlier)
        return _NewResiduals(
            features=new,
            along_linear=along_linear,
            along_earlier=along_earlier,
            gram=gram,
            residual_gram=residual_gram,
        )

    def _extend(
        self,
        builder: Builder,
        below: Register | None,
        fresh: Register,
        independent: Ints,
        old: int,
    ) -> None:
        """Add the rows of new residuals to the factor of the Gram matrix.

        `below` are their coordinates along the residuals so far, `fresh` their own
        factor. Its `independent` columns get the directions `old`, `old` + 1, ….
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
        """E[F_i F'_j] of new and all earlier features, (frames, new, earlier).

        With `linear`, less the products of their coordinates along linear directions:
        the products of residuals. `along` are these coordinates of the new features.
        """
        frames, count, old = along.shape
        products: list[Register] = []
        for earlier, earlier_along in zip(self.features, self.along, strict=True):
            if not new.related(earlier):
                zeros = np.zeros((frames, count, earlier.count))
                products.append(builder.constant(zeros))
                continue
            product = _kernel(
                builder, x=new, y=earlier, constant=constant, feature_name=named(new.f)
            )
            if linear:
                padded = builder.pad_or_cut(earlier_along, old)
                product = _less(builder, product, along, padded)
            products.append(product)
        return builder.step("join", *products, axis=2)

    def _along_directions(
        self, builder: Builder, below: Register, old: int
    ) -> Register:
        """Coordinates along the residuals so far, as coordinates along old directions.

        From `below`, (frames, k, residuals), to (frames, k, old).
        """
        # for each direction, its column among the residuals; the last column is a 0
        column = np.full(old, below.shape[-1])
        column[self.directions] = self.columns
        padded = builder.step("pad", below, before=0, after=1)
        return builder.step("take", padded, places=column, axis=2)

    def _with_direction_left_out(
        self, builder: Builder, rows: Register, count: int
    ) -> Register:
        """The coordinates of the last `count` features, with one direction more.

        They are 0 along it; in a plan with a shift, each feature's distance from what
        all directions span.
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
    """The coordinates of features along linear directions, (frames, k, directions).

    They are 0 by structure, or not needed, unless `linear` (products with linear
    vectors are asked for) and features have a mean or slopes.
    """
    has_mean = constant and not has_mean_zero(new.signs)
    if linear and (new.slopes or has_mean):
        return _regression(builder, new, constant, directions)
    frames = new.rows[0].shape[0]
    return builder.constant(np.zeros((frames, new.count, directions)))


def _extended_factor(
    builder: Builder, factor: Register, below: Register, fresh: Register
) -> Register:
    """The triangular factor [[factor, 0], [below, fresh]] with rows for new vectors."""
    above = builder.step("pad", factor, before=0, after=fresh.shape[-1])
    rows = builder.step("join", below, fresh, axis=2)
    return builder.step("join", above, rows, axis=1)


def _reordered_matrix(builder: Builder, gram: Register, order: Ints) -> Register:
    """The Gram matrix of the same vectors in another order."""
    return builder.take(builder.take(gram, order, axis=1), order, axis=2)


def _less(builder: Builder, gram: Register, a: Register, b: Register) -> Register:
    """gram − a b^T: a Gram matrix less that of coordinates a and b."""
    products = builder.step("gram", a, b)
    return builder.step("add", gram, builder.step("scale", products, by=-1.0))


def _kernel(
    builder: Builder,
    x: ResidualFeatures,
    y: ResidualFeatures,
    constant: bool,
    feature_name: str,
) -> Register:
    """E[F_i F'_j] of features x and y, (frames, i, j).

    It is a product over the sets of factors that are independent of each other.
    """

    def expected(factors: _FactorSet) -> Register:
        """The expectation of the product of the factors in one set."""
        if not factors.of_y:
            mean, _ = _mean_and_slopes(builder, x.part(builder, factors.of_x), constant)
            return mean
        if not factors.of_x:
            mean, _ = _mean_and_slopes(builder, y.part(builder, factors.of_y), constant)
            return builder.step("transposed", mean)
        u, f, p = x.part(builder, factors.of_x)  # f(u; p)
        v, g, q = y.part(builder, factors.of_y)  # g(v; q)
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
            result_shape=(u.shape[0], u.shape[1], v.shape[1]),
            label=f"E[{named(f)} {named(g)}] for {feature_name}",
        )

    return builder.fold("multiply", map(expected, independent(x, y)))


def _mean_and_slopes(
    builder: Builder, part: Part, constant: bool
) -> tuple[Register, Register]:
    """E[f(u_i)], (frames, i, 1), and the slopes E[∂_r f(u_i)], (frames, i, 1, r).

    The slopes are the coefficients of the regression on the r arguments.
    """
    u, f, params = part
    frames, count, r, _ = u.shape
    moments = builder.step(
        "moments",
        u,
        *params,
        result_shape=(frames, count, 1 + r),
        f=f,
        constant=constant,
    )
    slopes = builder.step("part", moments, start=1, stop=1 + r)
    slopes = builder.reshape(slopes, frames, count, 1, r)
    return builder.step("part", moments, start=0, stop=1), slopes


def _regression(
    builder: Builder, new: ResidualFeatures, constant: bool, directions: int
) -> Register:
    """The regression E[F] 1 + β · u of features, (frames, k, directions).

    If F is a product of independent sets of factors, E[F] is the product of their
    means, and β u is a sum over the sets: that of the set, times the means of all
    others. With `constant`, the first direction is (1, …, 1).
    """
    means: list[Register] = []
    rows: list[Register] = []
    for factors in independent(new, y=None):
        part = new.part(builder, factors.of_x)
        mean, slopes = _mean_and_slopes(builder, part, constant)
        row = builder.step("product", slopes, part.arguments)
        means.append(mean)
        rows.append(builder.reshape(row, *row.shape[:2], row.shape[-1]))
    terms = []
    for k, row in enumerate(rows):
        other_means = means[:k] + means[k + 1 :]
        terms.append(builder.fold("multiply", [row, *other_means]))
    total = builder.pad_or_cut(builder.fold("add", terms), directions)
    if constant:
        # along (1, …, 1): E[F] itself, instead of β times the means of the arguments
        random_part = builder.step("part", total, start=1, stop=directions)
        mean = builder.fold("multiply", means)
        total = builder.step("join", mean, random_part, axis=2)
    return total


class _FactorSet(NamedTuple):
    """Factors of features x and y that are functions of the same directions."""

    reach: int  # the directions, a bit set
    of_x: Factors
    of_y: Factors


def independent(x: ResidualFeatures, y: ResidualFeatures | None) -> list[_FactorSet]:
    """The factors of x and of y, in sets that are independent of each other.

    No two sets have a direction in common, by structure, not by drawn numbers.
    """
    sets: list[_FactorSet] = []
    for f, arguments in x.factors:
        reach = _reach(x, arguments)
        sets = _with_factor(sets, _FactorSet(reach, of_x=[(f, arguments)], of_y=[]))
    if y is None:
        return sets
    for f, arguments in y.factors:
        reach = _reach(y, arguments)
        sets = _with_factor(sets, _FactorSet(reach, of_x=[], of_y=[(f, arguments)]))
    return sets


def _reach(features: ResidualFeatures, arguments: Sequence[int]) -> int:
    """The directions that a function of some arguments depends on, a bit set."""
    reach = 0
    for k in arguments:
        if k < len(features.supports):  # a vector, not a scalar
            reach |= features.supports[k]
    return reach


def _with_factor(sets: Sequence[_FactorSet], new: _FactorSet) -> list[_FactorSet]:
    """Sets without a direction in common, to which a set with one factor is added.

    It merges all sets that share a direction with it. A factor that is not random (its
    reach is 0) gets no separate set: it joins the first one.
    """
    apart: list[_FactorSet] = []
    merged = new
    is_number = new.reach == 0
    attached = False
    for other in sets:
        shares_direction = bool(other.reach & merged.reach)
        other_is_number = other.reach == 0
        joins_first = is_number and not attached
        if shares_direction or other_is_number or joins_first:
            attached = True
            merged = _FactorSet(
                reach=merged.reach | other.reach,
                of_x=other.of_x + merged.of_x,
                of_y=other.of_y + merged.of_y,
            )
        else:
            apart.append(other)
    return [*apart, merged]


# Functions made of others. They are partial functions of this module, not closures, so
# that steps of a plan with equal arguments are equal


def unnamed(f: Function) -> Function:
    """The same function without its formulas for kernels and conditional means.

    It has its values, its parity, and whether it is smooth.
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
    """The product of functions, each of the arguments with some numbers."""
    product = 1.0
    for f, numbers in factors:
        chosen = [arguments[k] for k in numbers]
        product = product * f(*chosen)
    return product


def _of_parameters(f: Function, u: Any, *params: Any) -> Any:
    """f of the parameters only, with the shape of u, which it ignores."""
    return f(*params) + 0.0 * u
