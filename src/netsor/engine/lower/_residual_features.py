"""Outputs of nonlinearities at infinite width, as rows of coordinates: features.

A feature F = φ(u; p) of Gaussian vectors u is its regression on them and a residual orthogonal to them (docs/theory.md,
"Infinite width is the same code"): F = E[F] 1 + β u + residual, with β = E[φ'] by Stein's lemma. The residuals of all
features of a frame have a Gram matrix of Gaussian expectations. Its Cholesky factor gives each feature coordinates
along the residuals before it, and one new direction. So products are sums over directions here too.

Features that are never asked for a product with a linear vector (or with those of another nonlinearity) need no
coordinates along it: the shortcut `apart`. A function that the library knows has a formula for its kernel or for its
conditional means: the shortcut `named`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...activations import IDENTITY, Function
from ...language._vector import Vector
from .._error import InfiniteError
from .._ir import Register
from .._ir_builder import Builder, named
from ..passes._orders import bit_range, lowest_bit
from ..passes.fuse_nonlinearities import Composed, is_smooth

Factors = list[tuple[Function, tuple[int, ...]]]  # functions, each of some of the arguments
Part = tuple[Register, Function, tuple[Register, ...]]  # arguments, a function of them, and its parameters


class SignFactor(NamedTuple):
    """A factor of a function of sources: what it does if these change their signs together."""

    reach: int  # the sources
    odd: bool  # it changes its sign
    fixed: bool  # or changes in another way: it is neither odd nor even, or its argument has a mean


def _classes(factors: Sequence[SignFactor]) -> list[SignFactor]:
    """Factors multiplied that have sources in common: no two have then, so that each class has signs of its own."""
    found: list[SignFactor] = []
    for new in factors:
        for other in [c for c in found if c.reach & new.reach]:
            found.remove(other)
            new = SignFactor(new.reach | other.reach, new.odd != other.odd, new.fixed or other.fixed)
        found.append(new)
    return [c for c in found if c.reach]


def has_mean_zero(factors: Sequence[SignFactor]) -> bool:
    """Whether the mean of a product is 0 by structure: it is odd in some sources."""
    return any(c.odd and not c.fixed for c in _classes(factors))


def slopes(factors: Sequence[SignFactor]) -> int:
    """The sources that a product can have coordinates along."""
    classes = _classes(factors)
    odd = [c for c in classes if c.odd and not c.fixed]
    return reduce(or_, (c.reach for c in classes if (c.fixed and not odd) or odd == [c]), 0)


class GradientForm(NamedTuple):
    """Features as F ⊙ u, with u linear, centred and apart from F."""

    u: int  # the number of u among the arguments
    rest: Factors  # the factors of F
    forward: int  # the directions that F is a function of
    own: int  # those of u


@dataclass(frozen=True, eq=False)
class ResidualFeatures:
    """Functions of Gaussian vectors, in the frames of a group: (frames, k) of them."""

    f: Function
    arguments: Register  # (frames, k, r, directions)
    supports: tuple[int, ...]  # of each argument: random directions along which some frame's has coordinates
    params: tuple[Register, ...]  # (frames, k) each
    centred: tuple[bool, ...]  # of each argument, whether its mean is 0
    vectors: tuple[tuple[Vector, npt.NDArray[np.intp]], ...]  # each argument, and its places (frames, k) there
    rows: Register | None = None  # the coordinates (frames, k, directions) that they have got
    rests: Any = None  # the component that they are in

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return self.arguments.shape[1]

    @cached_property
    def reach(self) -> int:
        """The directions that they are functions of."""
        return reduce(or_, self.supports)

    def of(self, factors: Factors) -> int:
        """The directions that some factors are functions of."""
        numbers = {number for _, of in factors for number in of if number < len(self.supports)}
        return reduce(or_, (self.supports[number] for number in numbers), 0)

    def signs_of(self, of: tuple[int, ...], parity: int | None) -> list[SignFactor]:
        """A function of some arguments, with a parity if there is one argument."""
        known = parity if len(of) == 1 else None
        vectors = [number for number in of if number < len(self.supports)]
        return [SignFactor(self.supports[k], known == -1, known is None or not self.centred[k]) for k in vectors]

    @cached_property
    def signs(self) -> list[SignFactor]:
        """Their factors, by what these do when sources change their signs."""
        return [sign for f, of in self.factors() for sign in self.signs_of(of, f.parity)]

    def changes(self, number: int, b: SignFactor) -> Iterator[list[SignFactor]]:
        """How an output changes if an argument does, by a small vector b: ∂φ(x) b, a term for each factor of φ.

        Where a factor has a kink and its argument an atom, the change is another function of b.
        """
        factors = self.factors()
        for k, (f, of) in enumerate(factors):
            if number in of:
                others = [sign for j, (g, at) in enumerate(factors) if j != k for sign in self.signs_of(at, g.parity)]
                smooth = is_smooth(f)
                parity = -f.parity if smooth and f.parity is not None else None
                own = [] if f is IDENTITY else self.signs_of(of, parity)
                yield [*others, *own, b if smooth else b._replace(fixed=True)]

    @cached_property
    def slopes(self) -> int:
        """The directions along which they can have coordinates: E[F e] ≠ 0 for a source e."""
        return slopes(self.signs)

    def related(self, other: ResidualFeatures) -> bool:
        """Whether products with other features can be other than 0."""
        return not has_mean_zero([*self.signs, *other.signs])

    def factors(self) -> Factors:
        """The functions that these are products of, each with the numbers of its arguments (vectors, then scalars)."""
        if isinstance(self.f, Composed) and self.f.factors:
            return list(self.f.factors)
        return [(self.f, tuple(range(len(self.supports) + len(self.params))))]

    @cached_property
    def gradient(self) -> GradientForm | None:
        """Features as F ⊙ u, if they are of this form; of several u the one drawn last."""
        found: list[GradientForm] = []
        factors = self.factors()
        for u in [of[0] for f, of in factors if f is IDENTITY and len(of) == 1 and of[0] < len(self.supports)]:
            rest = [(f, of) for f, of in factors if not (f is IDENTITY and of == (u,))]
            numbers = {number for _, of in rest for number in of}
            forward, own = self.of(rest), self.supports[u]
            vectors = any(number < len(self.supports) for number in numbers)
            if vectors and u not in numbers and self.centred[u] and len(rest) == len(factors) - 1 and not forward & own:
                found.append(GradientForm(u, rest, forward, own))
        return max(found, key=lambda g: lowest_bit(g.own, self.reach.bit_length()), default=None)

    def part(self, build: Builder, factors: Factors) -> Part | None:
        """Some factors as features: arguments, function and parameters; None if there are no factors."""
        if not factors:
            return None
        vectors = len(self.supports)
        numbers = sorted({number for _, of in factors for number in of})
        chosen = [n for n in numbers if n < vectors]
        params = tuple(self.params[n - vectors] for n in numbers if n >= vectors)
        if len(factors) == 1 and list(factors[0][1]) == numbers:
            f = factors[0][0]
        else:
            place = {number: k for k, number in enumerate(numbers)}
            f = Function("product", partial(_product, tuple((g, tuple(place[n] for n in of)) for g, of in factors)))
        if not chosen:  # scalars alone: a function of an argument that it does not look at
            chosen, f = [0], Function(f.name, partial(_of_parameters, f))
        return build.take(self.arguments, np.array(chosen), axis=2), f, params

    def linear(self, build: Builder, factors: Factors, constant: bool) -> tuple[Register, Register]:
        """Of some factors: their means (frames, k, 1), and coordinates β · u along linear directions."""
        given = self.part(build, factors)
        assert given is not None
        u, (frames, count) = given[0], given[0].shape[:2]
        found = moments(build, *given, constant)
        slopes = build.reshape(build.step("part", found, start=1, stop=1 + u.shape[2]), frames, count, 1, u.shape[2])
        row = build.reshape(build.step("product", slopes, u), frames, count, u.shape[-1])
        return build.step("part", found, start=0, stop=1), row

    def expected(
        self, build: Builder, ours: Factors, other: ResidualFeatures, theirs: Factors, constant: bool, words: str
    ) -> Register:
        """E[f(u_i) g(v_j)] of some factors and those of others, (frames, i, j); of one alone its mean."""
        left, right = self.part(build, ours), other.part(build, theirs)
        if left is None or right is None:
            side = left or right
            assert side is not None
            mean = build.step("part", moments(build, *side, constant), start=0, stop=1)
            return mean if left else build.step("transposed", mean)
        (u, f, p), (v, g, q) = left, right
        return kernel(build, (u, f, p), (v, g, q), constant, f"E[{named(f)} {named(g)}] for {words}")


@dataclass(eq=False)
class ResidualBasis:
    """The features of one component of a frame so far, and the factor of the Gram matrix of their rests."""

    features: list[ResidualFeatures] = field(default_factory=list)
    along: list[Register] = field(default_factory=list)  # of each: the coordinates along linear directions
    factor: Register | None = None  # (frames, K, K)
    places: list[int] = field(default_factory=list)  # the directions of the rests

    def add(
        self, build: Builder, new: ResidualFeatures, old: int, linear: bool, constant: bool, words: str
    ) -> Register:
        """The coordinates (frames, k, directions) of new features: along the old directions, and one more for each.

        `linear`: products with linear vectors are asked for. `constant`: (1, …, 1) is the first direction.
        """
        frames, count = new.arguments.shape[0], new.count
        if linear and (new.slopes or (constant and not has_mean_zero(new.signs))):
            along = _regression(build, new, constant, old)
        else:
            along = build.constant(np.zeros((frames, count, old)))
        whole = _kernel(build, new, new, constant, words)
        block = _less(build, whole, along, along) if linear else whole
        rows = along
        if self.factor is None:
            fresh = self.factor = build.step("residual", block, whole, words=f"coordinates of {words}")
        else:
            cross = []
            for earlier, part in zip(self.features, self.along, strict=True):
                if not new.related(earlier):
                    cross.append(build.constant(np.zeros((frames, count, earlier.count))))
                    continue
                both = _kernel(build, new, earlier, constant, words)
                cross.append(_less(build, both, along, build.pad_or_cut(part, old)) if linear else both)
            below = build.step("solve", self.factor, build.step("join", *cross, axis=2))
            fresh = build.step("residual", _less(build, block, below, below), whole, words=f"coordinates of {words}")
            size = self.factor.shape[-1]
            above = build.step("pad", self.factor, before=0, after=count)
            self.factor = build.step("join", above, build.step("join", below, fresh, axis=2), axis=1)
            place = np.full(old, size)  # of each direction among the rests; the last is a 0
            place[self.places] = np.arange(size)
            spread = build.step("take", build.step("pad", below, before=0, after=1), places=place, axis=2)
            rows = build.step("add", rows, spread)
        self.places += range(old, old + count)
        self.features.append(new)
        self.along.append(along)
        return build.step("join", rows, fresh, axis=2)


def _less(build: Builder, gram: Register, a: Register, b: Register) -> Register:
    """A Gram matrix less the products of rows."""
    return build.step("add", gram, build.step("scale", build.step("gram", a, b), by=-1.0))


def _kernel(build: Builder, x: ResidualFeatures, y: ResidualFeatures, constant: bool, words: str) -> Register:
    """E[F_i F'_j]: a product over the parts of the factors that are independent of each other."""
    if type(x) is ResidualFeatures and type(y) is not ResidualFeatures:  # those with rules of their own come first
        return build.step("transposed", _kernel(build, y, x, constant, words))
    sets = independent(x, y)
    return build.fold("multiply", (x.expected(build, ours, y, theirs, constant, words) for ours, theirs in sets))


def kernel(build: Builder, left: Part, right: Part, constant: bool, words: str = "") -> Register:
    """E[f(u_i) g(v_j)], (frames, i, j)."""
    (u, f, p), (v, g, q) = left, right
    width = max(u.shape[-1], v.shape[-1])
    return build.step(
        "kernel", build.pad_or_cut(u, width), build.pad_or_cut(v, width), *p, *q, words=words, f=f, g=g, given=len(p),
        constant=constant, made=(u.shape[0], u.shape[1], v.shape[1]),
    )  # fmt: skip


def moments(build: Builder, u: Register, f: Function, params: Sequence[Register], constant: bool) -> Register:
    """E[f(u_i)], then the coefficients of the regression on the arguments, (frames, i, 1 + r)."""
    made = (*u.shape[:2], 1 + u.shape[2])
    return build.step("moments", u, *params, made=made, f=f, constant=constant)


def _regression(build: Builder, new: ResidualFeatures, constant: bool, directions: int) -> Register:
    """E[F] along (1, …, 1) and β · u along the rest, (frames, k, directions): of each set, times the others' means."""
    found = [new.linear(build, factors, constant) for factors, _ in independent(new, None)]
    means = [mean for mean, _ in found]
    rows = (build.fold("multiply", [row, *means[:k], *means[k + 1 :]]) for k, (_, row) in enumerate(found))
    total = build.pad_or_cut(build.fold("add", rows), directions)
    if constant:  # the first direction: the mean itself, instead of β times the means of the arguments
        rest = build.step("part", total, start=1, stop=directions)
        total = build.step("join", build.fold("multiply", means), rest, axis=2)
    return total


def independent(x: ResidualFeatures, y: ResidualFeatures | None) -> list[tuple[Factors, Factors]]:
    """The factors of x, and of y, in sets that have no direction in common; by structure, not by drawn numbers."""
    sets: list[tuple[int, Factors, Factors]] = []
    for side, features in enumerate((x,) if y is None else (x, y)):
        for factor in features.factors():
            reach = features.of([factor])
            ours, theirs = ([], [factor]) if side else ([factor], [])
            apart, attached, alone = [], False, not reach
            for other in sets:
                # a factor that is not random goes with any one of the others
                if other[0] & reach or not other[0] or (alone and not attached):
                    attached = True
                    reach, ours, theirs = reach | other[0], other[1] + ours, other[2] + theirs
                else:
                    apart.append(other)
            sets = [*apart, (reach, ours, theirs)]
    return [(ours, theirs) for _, ours, theirs in sets]


# Functions made of others, as partial functions of this module: steps of a plan are equal if their arguments are


def _call(f: Callable[..., Any], *arguments: Any) -> Any:
    return f(*arguments)


def unnamed(f: Function) -> Function:
    """The same function without its formulas: its values, its parity, and whether it is smooth."""
    breaks = () if is_smooth(f) else None
    if isinstance(f, Composed):
        factors = tuple((unnamed(g), of) for g, of in f.factors)
        return Composed(f.name, partial(_call, f.f), breaks=breaks, parity=f.parity, factors=factors)
    return Function(f.name, partial(_call, f.f), breaks=breaks, parity=f.parity)


def _product(factors: Sequence[tuple[Function, tuple[int, ...]]], *arguments: Any) -> Any:
    """The product of functions, each of some of the arguments."""
    made = 1.0
    for f, numbers in factors:
        made = made * f(*(arguments[k] for k in numbers))
    return made


def _of_parameters(f: Function, u: Any, *params: Any) -> Any:
    """A function of parameters alone, with an argument in front."""
    return f(*params) + 0.0 * u


def _times(power: int, f: Function, x: Any, *params: Any) -> Any:
    return x**power * f(x, *params)


def times(f: Function, power: int) -> Function:
    """The function x^p ψ(x), and further arguments of ψ."""
    return f if power == 0 else Function(f"x^{power} {f.name}", partial(_times, power, f), breaks=f.breaks)


def _one(x: Any) -> Any:
    return 1.0 + 0.0 * x


ONE = Function("1", _one)


# Functions e_a F_l of the sources of a space, with F = ψ(g) χ(v) … a product of functions. They are features like
# others: their expectations are products over independent sets of factors. In the set of e_a they follow from those of
# pairs (g, h) by regression of e_a on g and h: E[e_a ψ(g) e_b χ(h)] = Σ α β E[g^p ψ(g) h^q χ(h)] + c E[ψ(g) χ(h)].

Side = tuple[Register | None, Part]  # e_a or none, and a function of one argument


@dataclass(frozen=True, eq=False)
class SourceTimesFeature(ResidualFeatures):
    """The functions e_a F_l for all a and l, in this order: features F ⊙ u, with a block of sources e instead of u."""

    u: int = 0  # the number of u among the arguments
    start: int = 0  # of the directions of e
    stop: int = 0
    directions: int = 0  # of the frame

    @property
    def count(self) -> int:
        """How many there are in a frame."""
        return (self.stop - self.start) * self.arguments.shape[1]

    @property
    def gradient(self) -> None:
        """They come from gradients, and are none: e was put in for u."""

    @property
    def words(self) -> str:
        """The names of their factors."""
        return "e " + " ".join(f.name for f, of in self.factors() if self.u not in of)

    def linear(self, build: Builder, factors: Factors, constant: bool) -> tuple[Register, Register]:
        """The means of a set and its coordinates along linear directions, E[e_a F_l x] if e is in it."""
        e, (u, f, params) = _side(build, self, factors)
        if e is None:
            mean, row = super().linear(build, factors, constant)
            return self._spread(build, mean, 1), self._spread(build, build.pad_or_cut(row, self.directions), 1)
        means = [
            build.step("part", moments(build, u, times(f, power), params, False), start=0, stop=1) for power in (0, 2)
        ]
        rows = build.reshape(build.pad_or_cut(u, self.directions), *u.shape[:2], self.directions)
        along = build.step("tilted_means", e, rows, *means, words=f"E[e {named(f)}(g) e']")
        return _tilted(build, (e, (u, f, params)), (None, _one_of(build, u.shape[0], 1, u.shape[-1])), "a mean"), along

    def expected(
        self, build: Builder, ours: Factors, other: ResidualFeatures, theirs: Factors, constant: bool, words: str
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
        return other._spread(build, found, 2) if isinstance(other, SourceTimesFeature) else found

    def e(self, build: Builder) -> Register:
        """The sources, (frames, A, directions)."""
        rows = np.eye(self.stop - self.start, self.directions, self.start)
        return build.constant(np.broadcast_to(rows, (self.arguments.shape[0], *rows.shape)))

    def _spread(self, build: Builder, found: Register, axis: int) -> Register:
        """What was found for all l, for all a and l."""
        count = self.arguments.shape[1]
        if found.shape[axis] != count:  # already so, or one number for all
            return found
        return build.take(found, np.tile(np.arange(count), self.stop - self.start), axis=axis)


def tilted(feature: ResidualFeatures, start: int, stop: int, directions: int) -> SourceTimesFeature:
    """The functions e_a F_l, for features F ⊙ u and the sources e along these directions."""
    assert feature.gradient is not None
    u = feature.gradient.u
    supports, centred = list(feature.supports), list(feature.centred)
    supports[u], centred[u] = bit_range(start, stop), True
    return SourceTimesFeature(
        feature.f, feature.arguments, tuple(supports), feature.params, tuple(centred), (), rests=feature.rests,
        u=u, start=start, stop=stop, directions=directions,
    )  # fmt: skip


def simple(x: ResidualFeatures, y: ResidualFeatures) -> bool:
    """Whether each set of independent factors of two features has functions of one argument a side, apart from e."""
    return all(_of_one(x, ours) and _of_one(y, theirs) for ours, theirs in independent(x, y))


def _of_one(x: ResidualFeatures, factors: Factors) -> bool:
    e = {x.u} if isinstance(x, SourceTimesFeature) else set()
    return len({number for _, of in factors for number in of if number < len(x.supports)} - e) <= 1


def _side(build: Builder, x: ResidualFeatures, factors: Factors) -> Side:
    """The factors of features that lie in a set; if none is left, the constant function 1 of a dummy argument."""
    e = None
    if isinstance(x, SourceTimesFeature):
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
    rows = [build.pad_or_cut(a, width) for a in rows]
    return build.step("tilted", *rows, *kernels, rows=len(rows), words=f"E[e {named(f)}(g) …] for {words}")
