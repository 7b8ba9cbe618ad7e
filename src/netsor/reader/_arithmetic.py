"""Arithmetic on vectors and scalars: sums, products, functions, norms, choices.

Each function applies the axis rule of `_axes` to one operation of a module, whatever
framework the module is written in. It takes a `Call`, and then its arguments: vectors,
scalars, coordinates that wait to be recognised, parameters, or given numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import language as ns
from .._array_api import Floats, array_namespace
from .._validate import Shape
from ..functions.activations import Function
from ..functions.recurrence import UNIT_LOWER_INVERSE
from ..language.values._scalar import constant
from ..models._training import exponential
from ..programs._program import Program
from ._axes import (
    NEVER,
    Average,
    Linear,
    Refusal,
    Root,
    Scalars,
    Vectors,
    refuse_if,
    same_vectors,
    settled,
)
from ._interleaved import ZERO, Interleaved
from ._layout import Expand, Permute, Reshape
from ._random_parameters import MOST_ENTRIES, Draws, Random, has_few_coordinates

# numbers up to this one that meet scores are masks: for scores of usual size, e^(−10⁴)
# is 0
MASKED = -1e4
# a low number hides scores up to this one if it is so many times larger than the
# relative rounding of their type
HIDDEN = 16.0
MAX_POWER = 8  # of coordinates
Tensor = Any  # Vectors, Scalars, Linear, Random, an array or a number
VALUES = (Vectors, Scalars, Linear, Random, Interleaved)


class Call(NamedTuple):
    """What an operation needs besides its arguments."""

    draws: Draws  # the random objects of the program
    shapes: list[Shape]  # of the tensors that the operation returns
    eps: float  # the distance from 1 to the next number of their type
    # the operation of the framework, as a function of an array that stands for its
    # first argument; None if others are random too
    of_array: Callable[[Floats], Floats] | None = None
    # whether 0 takes the place of NaN in the result
    nan_is_zero: bool = False

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return self.shapes[0]

    def returning(self, shape: Sequence[int]) -> Call:
        """The same for an operation that returns a tensor of another shape."""
        return self._replace(shapes=[tuple(shape)])

    def computed(self, x: Floats) -> Floats:
        """The result of the framework for an array that stands for the argument."""
        if self.of_array is None:
            raise Refusal("other arguments are random too")
        return self.of_array(x)

    def vectors(self, x: Tensor) -> Vectors:
        """The argument as vectors.

        Given numbers have their coordinates along the last axis.
        """
        x = self.settled(x)
        if isinstance(x, np.ndarray):
            is_floating = np.issubdtype(x.dtype, np.floating)
            if x.ndim and is_floating:
                return Vectors.of(ns.data(x))
        if isinstance(x, Vectors) and x.is_interleaved:
            x = self.draws.entries(x)
        if isinstance(x, Scalars):
            is_masked = x.shown is not None
            if x.shape and not is_masked:
                return vectors_of_scalars(x)
        if not isinstance(x, Vectors):
            raise Refusal(f"needs vectors, got {kind(x)}")
        return x

    def settled(self, x: Tensor) -> Tensor:
        """Vectors, scalars or numbers: nothing that waits to be recognised."""
        if isinstance(x, Random):
            is_one_number = not x.shape
            if is_one_number:
                return self.draws.entries_of_parameter(x)
            return self.draws.vectors(x)
        if isinstance(x, Linear):
            return settled(x)
        if isinstance(x, Interleaved):
            raise Refusal("the coordinates of vectors are interleaved with positions")
        return x

    def ranked(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Two operands: vectors before scalars, and scalars before numbers.

        The coordinates of two vectors lie along the same axis of the result, and those
        along which the other operand has indices are scalars.
        """
        x, y = self._settled_pair(first, second)
        if _rank(x) <= _rank(y):
            return [x, y]
        return [y, x]

    def _settled_pair(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Two operands whose coordinates, indices and numbers can be combined."""
        x = self.beside(first, second)
        y = self.beside(second, first)
        if isinstance(x, Vectors) and isinstance(y, Vectors):
            return self._along_one_axis(x, y)
        if not is_random(y):
            return self.unless_repeated(x, numbers(y)), y
        if not is_random(x):
            return x, self.unless_repeated(y, numbers(x))
        if isinstance(x, Vectors) and isinstance(y, Scalars):
            return self._vectors_beside_scalars(x, y)
        if isinstance(x, Scalars) and isinstance(y, Vectors):
            return self._vectors_beside_scalars(y, x)
        return x, y

    def _vectors_beside_scalars(self, x: Vectors, y: Scalars) -> tuple[Tensor, Tensor]:
        """Both of one kind, if the scalars differ along the coordinates."""
        if not _varies_along(y, x.from_end):
            return x, y
        return self._of_one_kind(x, y)

    def beside(self, x: Tensor, other: Tensor) -> Tensor:
        """`settled` for an operand: a parameter takes the axis of coordinates it meets.

        If it has one entry there, its entries are scalars. So are coordinates that
        are interleaved with positions, beside scalars, and single coordinates of
        vectors.
        """
        if isinstance(x, Interleaved) and isinstance(other, Scalars):
            return self.draws.single_entries(x)
        if isinstance(x, Linear):
            x = settled(x)
        if isinstance(x, Vectors) and x.is_interleaved:
            return self.draws.entries(x)
        if not isinstance(x, Random) or isinstance(other, Random):
            return self.settled(x)
        other = self.settled(other)
        if not isinstance(other, Vectors) or len(x.shape) < -other.from_end:
            return self.settled(x)
        size = x.shape[other.from_end]
        if size == other.shape[other.axis]:
            return self.draws.vectors(x, other.from_end)
        return self.draws.entries_of_parameter(x)

    def unless_repeated(self, x: Tensor, factors: Floats) -> Tensor:
        """Vectors beside given numbers; a single coordinate beside many is a scalar."""
        if not isinstance(x, Vectors | Linear) or not x.shape:
            return x
        axis = -1 if isinstance(x, Linear) else x.from_end  # of the coordinates
        has_one_coordinate = x.shape[axis] == 1
        if not has_one_coordinate or not _varies_along(factors, axis):
            return x
        vectors = settled(x) if isinstance(x, Linear) else x
        return self.draws.entries(vectors)

    def _of_one_kind(self, x: Vectors, y: Scalars) -> tuple[Tensor, Tensor]:
        """Vectors and scalars that differ along their coordinates: both of one kind.

        They are vectors if there are many coordinates, and no mask; else scalars.
        """
        has_one_coordinate = x.shape[x.axis] == 1
        has_many_coordinates = not has_one_coordinate and not has_few_coordinates(x)
        is_masked = y.shown is not None
        if x.last and has_many_coordinates and not is_masked:
            return x, vectors_of_scalars(y)
        return self.draws.scalars(x), y

    def _along_one_axis(self, a: Vectors, b: Vectors) -> tuple[Tensor, Tensor]:
        """Two operands, at most one of which has coordinates that the other has not.

        Coordinates along which the other operand has indices become scalars; of two
        vectors that make a product of all coordinates with all, the shorter ones.
        """
        size_a = a.shape[a.axis]
        size_b = b.shape[b.axis]
        if a.from_end == b.from_end:
            if size_a == size_b:
                return a, b
            # one coordinate beside many
            if size_a == 1:
                return self.draws.entries(a), b
            return a, self.draws.entries(b)
        a_becomes_scalars = _varies_along(b, a.from_end)
        b_becomes_scalars = _varies_along(a, b.from_end)
        if not a_becomes_scalars and not b_becomes_scalars:
            # all coordinates meet all; of equally many, those of the last axis stay
            a_becomes_scalars = size_a < size_b or (size_a == size_b and b.last)
            b_becomes_scalars = not a_becomes_scalars
        x: Tensor = self.draws.entries(a) if a_becomes_scalars else a
        y: Tensor = self.draws.entries(b) if b_becomes_scalars else b
        return x, y


def vectors_of_scalars(x: Scalars) -> Vectors:
    """Scalars along the last axis as the coordinates of vectors: Σ_i x_i e_i."""
    size = x.shape[-1]
    refuse_if(
        size > MOST_ENTRIES,
        f"vectors of {size} scalars: at most {MOST_ENTRIES} are read",
    )
    return Vectors.of(x.value @ ns.data(np.eye(size)))


def _rank(x: Tensor) -> int:
    """The order of operands: vectors, scalars, numbers."""
    if isinstance(x, Vectors):
        return 0
    if isinstance(x, Scalars):
        return 1
    return 2


def is_random(x: Tensor) -> bool:
    """Whether an argument depends on a random parameter."""
    return isinstance(x, VALUES)


def kind(x: Tensor) -> str:
    """The kind of an argument, for messages."""
    names = {
        Vectors: "vectors",
        Scalars: "scalars",
        Linear: "coordinates",
        Random: "a parameter",
        Interleaved: "coordinates that are interleaved with positions",
    }
    return names.get(type(x), "numbers")


def numbers(x: Any) -> Floats:
    """Given numbers as an array."""
    return np.asarray(x, dtype=float)


def _varies_along(x: Tensor, axis_from_end: int) -> bool:
    """Whether an operand has more than one entry along an axis of the result."""
    return len(x.shape) >= -axis_from_end and x.shape[axis_from_end] != 1


def values_beside(a: Vectors, b: Tensor) -> Any:
    """The tensor b as an operand of `a.plain`.

    The result has vectors, or a scalar or a number for each vector.
    """
    axis = a.from_end
    if isinstance(b, Vectors):
        refuse_if(
            b.from_end != axis,
            "vectors whose coordinates are along different axes meet",
        )
        return b.plain
    if isinstance(b, Scalars):
        b = b.before(a.shape)
        refuse_if(
            _varies_along(b, axis),
            "scalars that differ along the coordinates of vectors",
        )
        if len(b.shape) < -axis:
            return b.value
        later_axes = (slice(None),) * (-axis - 1)
        return b.value[(..., 0, *later_axes)]
    if b.ndim >= -axis:
        factors = np.moveaxis(b, axis, -1)
    else:
        factors = b[..., None]
    has_one_entry = factors.shape[-1] == 1
    if has_one_entry or np.ptp(factors, axis=-1).max() == 0:
        return factors[..., 0]  # the same for all coordinates
    return ns.data(factors)


def _expanded(a: Vectors, shape: Shape) -> Vectors:
    """Vectors repeated as beside a tensor of this shape."""
    return a.viewed(Expand(np.broadcast_shapes(a.shape, shape)))


# Sums


def add(call: Call, a: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """a + alpha · other."""
    b: Any = other
    if alpha != 1:
        b = multiply(call, other, float(alpha))
    if same_vectors(a, b) and a.shape == b.shape:
        return Linear.sum(a, b)
    centred = _centred(call, a, b) or _centred(call, b, a)
    if centred is not None:
        return centred
    variances = _difference_of_squares(call, a, b) or _difference_of_squares(call, b, a)
    if variances is not None:
        return variances
    a, b = call.ranked(a, b)
    if not is_random(b):
        b = numbers(b)
    if not is_random(a):
        return numbers(a) + b
    if isinstance(a, Scalars):
        return _add_to_scalars(a, b)
    return _add_to_vectors(call, a, b)


def _centred(call: Call, x: Tensor, minus_average: Tensor) -> Vectors | None:
    """The sum of vectors and minus their own averages; None if it is another one."""
    if not isinstance(x, Vectors) or not isinstance(minus_average, Scalars):
        return None
    average = minus_average.average
    if average is None or average.power != 1 or not _is_one(-minus_average.factor):
        return None
    if not _is_one_for_each(minus_average.before(x.shape), x):
        return None
    if not _are_same(average.vectors, x):
        return None
    return call.draws.centred(x)


def _difference_of_squares(
    call: Call, mean_square: Tensor, minus_square: Tensor
) -> Scalars | None:
    """The variances mean(x²) − mean(x)² of vectors x; None if it is another sum."""
    if not isinstance(mean_square, Scalars) or not isinstance(minus_square, Scalars):
        return None
    root = mean_square.root
    average = minus_square.average
    if root is None or average is None or average.power != 2:
        return None
    is_mean_square = root.power == 1 and root.eps == 0 and _is_one(mean_square.factor)
    if not is_mean_square or not _is_one(-minus_square.factor):
        return None
    x = root.vectors
    if mean_square.shape != minus_square.shape or not _are_same(average.vectors, x):
        return None
    variances = variance(call, x, axes=x.axis, keepdims=True, correction=0)
    return variances.viewed(Reshape(mean_square.shape))


def _are_same(x: Vectors, y: Vectors) -> bool:
    """Whether two tensors are the same vectors, along the same axis."""
    return x is y or ((x.shape, x.axis) == (y.shape, y.axis) and x.plain is y.plain)


def _is_one(factor: float) -> bool:
    """Whether a factor is 1 up to rounding."""
    return abs(factor - 1) < 1e-12


def _add_to_vectors(call: Call, a: Vectors, b: Any) -> Tensor:
    """The sum of vectors and vectors, scalars or numbers."""
    if isinstance(b, Scalars):
        b = b.before(a.shape)
    if not is_random(b):
        is_mask = (b <= MASKED).any()
        if is_mask and call.draws.can_be_scores(a):  # relative positions of heads
            scores = call.draws.scalars(a)
            return add(call, scores, b)
        if not b.any():
            return _expanded(a, b.shape)
    summed = a.plain + values_beside(a, b)
    return Vectors.of(summed, a.from_end)


def subtract(call: Call, a: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """a − alpha · other."""
    return add(call, a, other, alpha=-float(alpha))


def _add_to_scalars(a: Scalars, b: Scalars | Floats) -> Scalars:
    """The sum of scalars and scalars or numbers, which has the masks of both."""
    if isinstance(b, Scalars):
        both = Scalars(a.unmasked + b.unmasked)
        return both.lowered(a.low).lowered(b.low)
    if not b.any() and np.broadcast_shapes(a.shape, b.shape) == a.shape:
        return a
    if a.root is not None:
        is_mean_square = a.root.power == 1 and _is_one(a.factor)
        is_one_number = b.size == 1 and b.ndim <= len(a.shape)
        if is_mean_square and is_one_number:
            return _with_eps(a, a.root, float(b.ravel()[0]))
    without_mask = np.where(b <= NEVER, 0.0, b)
    total = Scalars(a.unmasked + without_mask).lowered(a.low)
    # low numbers are masks: scores that reports do not show, or that are left out
    is_low = b <= MASKED
    if not is_low.any():
        return total
    return total.lowered(np.where(is_low, b, 0.0))


def _with_eps(a: Scalars, root: Root, eps: float) -> Scalars:
    """The mean square of vectors plus a number, which a norm takes the root of."""
    radicand = a.base + eps
    new_root = Root(vectors=root.vectors, radicand=radicand, eps=root.eps + eps)
    return replace(a, base=radicand, factor=1.0, root=new_root)


# Products


def multiply(call: Call, a: Tensor, other: Tensor) -> Tensor:
    """The product of any two tensors."""
    if is_random(other) and not is_random(a):
        a, other = other, a
    if not is_random(a):
        return numbers(a) * numbers(other)
    if not is_random(other):
        return _multiply_by_numbers(call, a, numbers(other))
    a, b = call.ranked(a, other)
    if isinstance(a, Scalars):
        if a is b and a.average is not None:
            return raised(a, 2.0)
        return Scalars(a.value * b.value)
    if a is b:
        square = Vectors.of(a.plain * a.plain, a.from_end)
        call.draws.squares[square.value] = a
        return square
    if isinstance(b, Scalars):
        return _multiply_by_scalars(a, b.before(a.shape))
    products = a.plain * values_beside(a, b)
    return Vectors.of(products, a.from_end)


def _multiply_by_scalars(a: Vectors, b: Scalars) -> Vectors:
    """Vectors times scalars; times their own root of power −1/2 it is `rms_norm`."""
    root = b.root
    if root is not None and _is_one_for_each(b, a):
        is_inverse_root = root.power == -0.5
        if is_inverse_root and _are_same(root.vectors, a):
            normed = ns.rms_norm(a.plain, root.eps, gain=b.factor)
            return Vectors.of(normed, a.from_end)
    products = values_beside(a, b) * a.plain
    return Vectors.of(products, a.from_end)


def _is_one_for_each(scalars: Scalars, x: Vectors) -> bool:
    """Whether scalars have the shape of vectors with an axis of 1 for coordinates."""
    shape = list(x.shape)
    shape[x.axis] = 1
    return tuple(scalars.shape) == tuple(shape)


def _multiply_by_numbers(call: Call, a: Tensor, c: Floats) -> Tensor:
    """A random tensor times given numbers."""
    if c.size > 1 and not c.any():
        return np.zeros(call.shape)
    adds_no_axes = c.ndim <= len(a.shape)
    is_one_number = c.size == 1 and adds_no_axes
    if isinstance(a, Vectors) and a.is_interleaved and not is_one_number:
        a = call.draws.entries(a)
    a = call.unless_repeated(a, c)
    if isinstance(a, Scalars):
        if is_one_number:
            return _scaled(a, float(c.ravel()[0]))
        return Scalars(a.value * c)
    if isinstance(a, Linear) and adds_no_axes:
        return Linear.scaled(a, c)
    if is_one_number and c.ravel()[0] == 1:
        return a
    return _multiply_vectors_by_numbers(call.vectors(a), c)


def _multiply_vectors_by_numbers(a: Vectors, c: Floats) -> Tensor:
    """Vectors times given numbers."""
    factors = values_beside(a, c)
    differ_by_coordinate = isinstance(factors, ns.Vector)
    if differ_by_coordinate:
        if a.last:
            return Linear.scaled(a, c)
    elif (factors == 1).all():
        return _expanded(a, c.shape)
    products = factors * a.plain
    return Vectors.of(products, a.from_end)


def _scaled(a: Scalars, c: float) -> Scalars:
    """Scalars times one number; masks stay if it is positive."""
    refuse_if(
        a.allowed is not None and c <= 0,
        f"masked scores times {c:g}: masks are read for positive factors",
    )
    low = None
    if a.low is not None and c > 0:
        # what a softmax leaves out stays left out, also times a small number
        still_never = np.minimum(c * a.low, NEVER)
        low = np.where(a.low <= NEVER, still_never, c * a.low)
    root = a.root if c > 0 else None
    return replace(a, factor=a.factor * c, root=root, low=low)


def divide(call: Call, a: Tensor, other: Tensor) -> Tensor:
    """The quotient; vectors are divided by numbers and scalars."""
    if not is_random(other):
        return multiply(call, a, 1.0 / numbers(other))
    if not isinstance(other, Scalars):
        raise Refusal(f"divides by {kind(other)}: divide only by numbers and scalars")
    if is_random(a):
        return multiply(call, a, raised(other, -1.0))
    return Scalars(numbers(a) / other.value)


def power(call: Call, x: Tensor, exponent: Any) -> Tensor:
    """x^k for one given number k: of scalars any k, of vectors k = 1, 2, … up to
    MAX_POWER.
    """
    refuse_if(is_random(exponent), "a power whose exponent is random")
    refuse_if(
        np.size(exponent) != 1, "powers are read if the exponent is one given number"
    )
    x = call.settled(x)
    k = float(np.ravel(numbers(exponent))[0])
    if isinstance(x, Scalars):
        return raised(x, k)
    refuse_if(
        k not in range(1, MAX_POWER + 1),
        f"the power {k:g} of coordinates: positive integers up to {MAX_POWER} are read",
    )
    # The first product is that of x with itself, the same object: `multiply` records
    # such squares, by which a later mean of them is recognised.
    product = x
    for _ in range(int(k) - 1):
        product = multiply(call, x, product)
    return product


def raised(x: Scalars, k: float) -> Scalars:
    """x^k.

    A power of a mean square stays one in `root`, so that a later product with the
    vectors is recognised as their norm. Scalars that repeat are raised once.
    """

    def to_the_power(scalars: ns.Scalar) -> ns.Scalar:
        if k == -1:
            return 1.0 / scalars
        return scalars**k

    if x.root is None:
        not_repeated = replace(x, expanded=None).value
        average = None
        if x.average is not None and _is_one(x.factor):
            average = replace(x.average, power=x.average.power * k)
        return Scalars(to_the_power(not_repeated), average=average, expanded=x.expanded)
    return Scalars(
        base=to_the_power(x.base),
        factor=x.factor**k,
        root=replace(x.root, power=x.root.power * k),
        expanded=x.expanded,
    )


# Functions of entries


def entrywise(f: Callable[[Any], Any]) -> Callable[[Call, Tensor], Tensor]:
    """An operation on coordinates or on scalars.

    f is a function of the language that takes both.
    """

    def operation(call: Call, x: Tensor) -> Tensor:
        if isinstance(x, Vectors) and x.is_interleaved:
            x = Interleaved.of_view(x)
        if isinstance(x, Interleaved):
            refuse_if(
                (x.origins == ZERO).any() and not _keeps_zero(f),
                "a function that is not 0 at 0, of zeros beside images",
            )
            return x.mapped(f)
        x = call.settled(x)
        if isinstance(x, Scalars):
            # repeated scalars: f of each once, and the result is repeated instead
            not_repeated = replace(x, expanded=None)
            return Scalars(f(not_repeated.value), expanded=x.expanded)
        return Vectors.of(f(x.plain), x.from_end)

    return operation


def _keeps_zero(f: Callable[[Any], Any]) -> bool:
    """Whether f(0) = 0, for a function of the language."""
    at_zero = Program(f(constant(np.zeros(())))).simulate(draws=1, seed=0)
    return bool(np.all(at_zero == 0))


def apply_function(f: Function, call: Call, x: Tensor) -> Tensor:
    """A function with known properties, of coordinates or of scalars."""

    def of_entries(value: Any) -> Any:
        return (
            ns.nonlin(f, value) if isinstance(value, ns.Vector) else ns.apply(f, value)
        )

    return entrywise(of_entries)(call, x)


EXP = Function(
    "exp", exponential, bounded=False, lipschitz=False, derivative=exponential
)


def _root(x: Any) -> Any:
    return x**0.5


def _slope_of_root(x: Any) -> Any:
    return 0.5 * x**-0.5


SQUARE_ROOT = Function("sqrt", _root, derivative=_slope_of_root)


def _log_of_sum(x: Any, y: Any) -> Any:
    return array_namespace(x, y).logaddexp(x, y)


def _share_of_first(x: Any, y: Any) -> Any:
    """The derivative of log(e^x + e^y) by x."""
    xp = array_namespace(x, y)
    return xp.exp(x - xp.logaddexp(x, y))


def _share_of_second(x: Any, y: Any) -> Any:
    return _share_of_first(y, x)


LOG_OF_SUM = Function(
    "logaddexp",
    _log_of_sum,
    bounded=False,
    lipschitz=True,
    derivative=(_share_of_first, _share_of_second),
)


def log_of_sum(call: Call, x: Tensor, y: Tensor) -> Vectors:
    """log(e^x + e^y) of vectors."""
    a, b = call.ranked(x, y)
    refuse_if(not isinstance(b, Vectors), "the logarithm of a sum of other numbers")
    logs = ns.nonlin(LOG_OF_SUM, a.plain, b.plain)
    return Vectors.of(logs, a.from_end)


class Bounds(NamedTuple):
    """x ↦ factor · x^power, between two bounds."""

    least: float
    most: float
    factor: float = 1.0
    power: float = 1.0

    def value(self, x: Any) -> Any:
        """The bounded number."""
        return array_namespace(x).clip(self._unbounded(x), self.least, self.most)

    def _unbounded(self, x: Any) -> Any:
        return self.factor * x**self.power

    def slope(self, x: Any) -> Any:
        """The derivative.

        It is 0 beyond the bounds, also where that of the power is infinite.
        """
        xp = array_namespace(x)
        value = self._unbounded(x)
        is_inside = (value >= self.least) & (value <= self.most)
        inside_or_one = xp.where(is_inside, x, 1.0)
        slope = self.factor * self.power * inside_or_one ** (self.power - 1.0)
        return xp.where(is_inside, slope, 0.0)

    @property
    def function(self) -> Function:
        """The function with its properties."""
        finite = tuple(
            bound for bound in (self.least, self.most) if math.isfinite(bound)
        )
        is_identity_inside = self.factor == self.power == 1.0
        name = "clamp_max"
        if len(finite) == 2:
            name = "clamp"
        elif math.isfinite(self.least):
            name = "clamp_min"
        parameters: tuple[float, ...] = (*finite, self.factor, self.power)
        return Function(
            name,
            self.value,
            bounded=len(finite) == 2,
            lipschitz=True if is_identity_inside else None,
            parameters=finite if is_identity_inside else parameters,
            breaks=finite if is_identity_inside else None,
            derivative=self.slope,
        )


def clamp(call: Call, x: Tensor, least: Any = None, most: Any = None) -> Tensor:
    """Scalars, or coordinates, between two numbers; None is no bound."""
    low = _bound(least, -math.inf)
    high = _bound(most, math.inf)
    refuse_if(low > high, f"a lower bound {low:g} above the upper bound {high:g}")
    if isinstance(x, Scalars) and x.root is not None:
        if high == math.inf and low <= 0 and x.factor > 0:
            return x  # mean squares and their powers are not negative
        # one function of the mean square, whose slope at 0 is finite
        bounds = Bounds(least=low, most=high, factor=x.factor, power=x.root.power)
        bounded = ns.apply(bounds.function, x.root.radicand)
        return Scalars(bounded, expanded=x.expanded)
    return apply_function(Bounds(low, high).function, call, x)


def _bound(x: Any, default: float) -> float:
    """A bound as a number."""
    if x is None:
        return default
    refuse_if(
        is_random(x) or numbers(x).size > 1, "bounds are read if they are numbers"
    )
    return float(numbers(x).ravel()[0])


def maximum(call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The larger of random numbers and a given one."""
    if is_random(x):
        return clamp(call, x, least=other)
    return clamp(call, other, least=x)


def minimum(call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The smaller of random numbers and a given one."""
    if is_random(x):
        return clamp(call, x, most=other)
    return clamp(call, other, most=x)


# Means and norms


def mean(call: Call, x: Tensor, axes: Any = None, keepdims: bool = False) -> Tensor:
    """Means over axes: of coordinates they are scalars. None: over all axes."""
    return _reduced(call, x, axes, keepdims, is_sum=False)


def total(call: Call, x: Tensor, axes: Any = None, keepdims: bool = False) -> Tensor:
    """Sums over axes: of coordinates they are scalars. None: over all axes."""
    return _reduced(call, x, axes, keepdims, is_sum=True)


def _reduced(
    call: Call, x: Tensor, axes: Any, keepdims: bool, *, is_sum: bool
) -> Tensor:
    """Means, or sums, which are multiples of them."""
    x = call.settled(x)
    ndim = len(x.shape)
    axes = range(ndim) if axes is None else np.ravel(axes).tolist()
    reduced = sorted({axis % ndim for axis in axes})
    factor = 1.0
    if is_sum:
        factor = float(math.prod(x.shape[axis] for axis in reduced))
    shape = _reduced_shape(x.shape, reduced, keepdims)
    if isinstance(x, Scalars):
        means_of_scalars = x.value.mean(axis=tuple(reduced))
        return Scalars(means_of_scalars.reshape(*shape), factor)
    # axes of indices, as axes of `x.plain`, which has no axis of coordinates
    index_axes = tuple(
        axis - 1 if axis > x.axis else axis for axis in reduced if axis != x.axis
    )
    if x.axis in reduced:
        return _mean_of_coordinates(call, x, index_axes, shape, factor)
    removed_before = sum(axis < x.axis for axis in reduced)
    means = Vectors.of(x.plain.mean(axis=index_axes), x.axis - removed_before)
    return multiply(call, means.viewed(Reshape(shape)), factor)


def _reduced_shape(shape: Shape, reduced: Sequence[int], keepdims: bool) -> Shape:
    """The shape after a reduction: its axes are left out, or have size 1."""
    sizes = []
    for axis, size in enumerate(shape):
        if axis not in reduced:
            sizes.append(size)
        elif keepdims:
            sizes.append(1)
    return tuple(sizes)


def _mean_of_coordinates(
    call: Call, x: Vectors, index_axes: tuple[int, ...], shape: Shape, factor: float
) -> Scalars:
    """Means over coordinates, and over some axes of `x.plain`.

    Of squares of vectors alone, they are mean squares, which norms are made of.
    """
    vectors = _root_of_squares(call, x)
    if vectors is not None and not index_axes:
        column = vectors.plain[..., None]
        mean_square = ns.mean_dot(column, column)[..., 0, 0].reshape(*shape)
        return Scalars(mean_square, factor, root=Root(vectors, mean_square))
    scalars = ns.mean_dot(x.plain, ns.ones(x.plain.width))
    if index_axes:
        scalars = scalars.mean(axis=index_axes)
    average = None if index_axes else Average(x)
    return Scalars(scalars.reshape(*shape), factor, average=average)


def _root_of_squares(call: Call, x: Vectors) -> Vectors | None:
    """The vectors whose squares are x, coordinate by coordinate; None if unknown."""
    vectors = call.draws.squares.get(x.plain)
    if vectors is None:
        return None
    is_moved = (vectors.shape, vectors.axis) != (x.shape, x.axis)
    return None if is_moved else vectors


def norm(
    call: Call, x: Tensor, order: Any = 2, axes: Any = None, keepdims: bool = False
) -> Tensor:
    """The Euclidean norm of vectors, or of each coordinate over axes of indices."""
    x = call.vectors(x)
    refuse_if(float(order) != 2, "norms are read if they are Euclidean")
    if axes is None:
        axes = tuple(range(len(x.shape)))
    squares = multiply(call, x, x)
    sums = total(call, x=squares, axes=axes, keepdims=keepdims)
    if isinstance(sums, Scalars):
        return raised(sums, 0.5)
    return apply_function(SQUARE_ROOT, call, sums)


def _only_coordinates(x: Vectors, axes: Any) -> bool:
    """Whether these axes are only the axis of coordinates."""
    return [axis % len(x.shape) for axis in np.ravel(axes)] == [x.axis]


def variance(
    call: Call, x: Tensor, axes: Any = (), keepdims: bool = False, correction: float = 1
) -> Scalars:
    """The variance of coordinates: sums are divided by their number − correction."""
    x = call.vectors(x)
    refuse_if(
        not _only_coordinates(x, axes),
        "variances are read over coordinates of vectors",
    )
    average = mean(call, x, axes=x.axis, keepdims=True)
    # the difference of two means would lose digits
    centred = subtract(call, x, average)
    squares = multiply(call, centred, centred)
    mean_square = mean(call, x=squares, axes=x.axis, keepdims=keepdims)
    size = x.shape[x.axis]
    return _scaled(mean_square, size / (size - correction))


def normalised(
    f: Callable[..., ns.Vector],
    call: Call,
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor = None,
    bias: Tensor = None,
    eps: float | None = None,
) -> Tensor:
    """Layer or root mean square norm over the last axis, with its weight and bias."""
    x = call.vectors(x)
    refuse_if(
        len(normalized_shape) > 1 or not x.last,
        "norms are read over the last axis, if it holds the coordinates",
    )
    if eps is None:
        eps = call.eps
    y: Tensor = Vectors.of(f(x.plain, eps))
    if weight is not None:
        y = multiply(call, y, weight)
    if bias is not None:
        y = add(call, y, bias)
    return y


# Matrix products and attention


def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """x Wᵀ + b."""
    refuse_if(
        not isinstance(weight, Random),
        f"multiplies by {kind(weight)}: a matrix must be a parameter",
    )
    if isinstance(x, Interleaved):
        return _with_bias(call, _product_of_flattened(call, x, weight), bias)
    known_numbers = None if is_random(x) else numbers(x)
    x = call.vectors(x)
    if x.from_end == -2:  # it mixes tokens: its entries are scalars
        *batch, rows, columns = call.shape
        mixed = matmul(call.returning((*batch, columns, rows)), weight, transposed(x))
        return _with_bias(call, transposed(mixed), bias)
    refuse_if(
        not x.last,
        "a matrix acts on an axis that does not hold the coordinates of vectors",
    )
    if call.draws.acts_row_by_row(weight):
        product: Tensor = _product_of_rows(call, x, weight)
    else:
        product = call.draws.product(weight, x.plain, known_numbers)
    return _with_bias(call, product, bias)


def _product_of_rows(call: Call, x: Vectors, weight: Random) -> Scalars:
    """W x as products with the rows of W, which are vectors: one scalar for each.

    x has the shape (…, inputs), the result (…, outputs).
    """
    *batch, inputs = x.shape
    outputs = weight.shape[0]
    rows = call.draws.vectors(weight).plain
    products = ns.dot(x.plain.reshape(-1), rows)  # Σ x w / √inputs
    return Scalars(products.reshape(*batch, outputs), math.sqrt(inputs))


def _with_bias(call: Call, product: Tensor, bias: Tensor) -> Tensor:
    """The product with a matrix plus a bias; that of logits has one scalar a word."""
    if bias is None:
        return product
    if isinstance(product, Scalars) and isinstance(bias, Random):
        bias = call.draws.scalars(call.draws.vectors(bias))
    return add(call, product, bias)


def _product_of_flattened(call: Call, x: Interleaved, weight: Random) -> Tensor:
    """W x for images x that were flattened channel by channel.

    The columns of W are sorted by positions, and then W acts on one vector.
    """
    vectors = x.channels_first()
    if vectors is None:
        raise Refusal("the coordinates of vectors are interleaved with positions")
    outputs = weight.shape[0]
    channels = x.width
    by_channel = weight.viewed(Reshape((outputs, channels, vectors.shape[-1])))
    by_position = by_channel.viewed(Permute((0, 2, 1)))
    return call.draws.product(by_position, ns.concat(vectors, axis=-1))


def matmul(call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The product of two tensors.

    Vectors with vectors give scores, scalars with vectors combinations, and a parameter
    is a linear layer. Coordinates that meet indices are used one by one.
    """
    if isinstance(other, Random) and len(other.shape) == 2:
        return linear(call, x, transposed(other))
    is_batch = isinstance(other, Random) and len(other.shape) == 3 and is_random(x)
    if is_batch and not call.draws.acts_row_by_row(transposed(other)):
        return _product_of_batch(call, x, other)
    y = call.settled(other)
    if isinstance(x, Random) and len(x.shape) == 2:
        are_columns = isinstance(y, Vectors) and y.from_end == -2
        if are_columns:  # W y
            return transposed(linear(call, transposed(y), x))
    return _product_of_settled(call, call.settled(x), y)


def _product_of_settled(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The product of two tensors that are no parameters."""
    if is_zero(x) or is_zero(y):
        return np.zeros(call.shape)
    if len(y.shape) == 1 and isinstance(y, Vectors | Scalars):
        return _product_with_column(call, x, y)
    if isinstance(x, Vectors) and isinstance(y, Vectors):
        sums_over_coordinates = x.last and y.from_end == -2
        if sums_over_coordinates:
            width = x.shape[-1]
            scores = ns.dot(x.plain, transposed(y).plain)  # Σ x y / √width
            return Scalars(scores, math.sqrt(width))
    return _combination(call, x, y)


def _product_with_column(call: Call, x: Tensor, y: Vectors | Scalars) -> Tensor:
    """The product with a tensor of one axis, as with a matrix of one column."""
    column = y.viewed(Reshape((y.shape[0], 1)))
    product = matmul(call.returning((*call.shape, 1)), x, column)
    return product.viewed(Reshape(call.shape))


def is_zero(x: Tensor) -> bool:
    """Whether a tensor is given, and 0."""
    return not is_random(x) and not np.any(x)


def _combination(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """x @ y, where coordinates of at most one of the two stay: sums over indices."""
    if _has_coordinates_in_batch(x) or _has_coordinates_in_batch(y):
        return _sum_of_products(call, x, y)
    x, y = _with_entries(call, x, y)
    if isinstance(x, Vectors):
        # (yᵀ xᵀ)ᵀ: the scalars come first
        y_transposed = transposed(y) if is_random(y) else numbers(y).mT
        return transposed(_combination(call, y_transposed, transposed(x)))
    scalars: Any = x.value if isinstance(x, Scalars) else numbers(x)
    if isinstance(y, Scalars):
        return Scalars(scalars @ y.value)
    if not isinstance(y, Vectors):
        return Scalars(scalars @ numbers(y))
    refuse_if(
        not y.last, "scalars multiply the coordinates of vectors, not the vectors"
    )
    return Vectors.of(scalars @ y.plain)


def _has_coordinates_in_batch(x: Tensor) -> bool:
    """Whether a factor of x @ y has its coordinates along an axis of the batch."""
    return isinstance(x, Vectors) and x.from_end < -2


def _sum_of_products(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """x @ y as the products of all entries, (…, row, summed, column), and their sum."""
    x = _or_numbers(x)
    y = _or_numbers(y)
    *batch, summed, columns = y.shape
    products = multiply(
        call,
        _with_shape(x, (*x.shape, 1)),
        _with_shape(y, (*batch, 1, summed, columns)),
    )
    return total(call, x=products, axes=-2)


def _or_numbers(x: Tensor) -> Tensor:
    """A random tensor itself; given numbers as an array."""
    return x if is_random(x) else numbers(x)


def _with_shape(x: Tensor, shape: Shape) -> Tensor:
    """The same entries in another shape."""
    return x.viewed(Reshape(shape)) if is_random(x) else x.reshape(shape)


def _with_entries(call: Call, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of x @ y, at most one of which still consists of vectors.

    Coordinates that the product sums over become scalars. Where all coordinates of x
    meet all of y, those of the narrower factor do.
    """
    # the product sums over the last axis of x and the last but one of y
    if isinstance(y, Vectors) and y.from_end == -2:
        y = call.draws.entries(y)
    if isinstance(x, Vectors) and x.last:
        x = call.draws.entries(x)
    if not isinstance(x, Vectors) or not isinstance(y, Vectors):
        return x, y
    if x.from_end != -2 or y.from_end != -1:
        raise Refusal("a product of vectors along axes of the batch")
    size_x = x.shape[-2]
    size_y = y.shape[-1]
    if size_x < size_y:
        return call.draws.entries(x), y
    return x, call.draws.entries(y)


def _product_of_batch(call: Call, x: Tensor, matrices: Random) -> Tensor:
    """The product with a parameter of three axes, one matrix for each entry of a batch.

    Vectors without a batch meet every matrix, as in experts; otherwise blocks of
    coordinates have their own matrices.
    """
    x = call.vectors(x)
    is_each = len(x.shape) == 3 and x.shape[0] == matrices.shape[0]
    refuse_if(
        not x.last or not (is_each or len(x.shape) == 2),
        "a parameter of three axes multiplies from the right, one matrix for each entry"
        " of a batch",
    )
    return call.draws.products(transposed(matrices), x.plain, each=is_each)


def solve_unit_lower(call: Call, system: Tensor, right: Tensor) -> Vectors:
    """The solution of a lower triangular system of scalars, with ones on the diagonal.

    The right sides are vectors, which the inverse of the system combines.
    """
    right = call.settled(right)
    refuse_if(
        not isinstance(system, Scalars) or not isinstance(right, Vectors),
        "a triangular system of other numbers than scalars, for vectors",
    )
    inverse = ns.apply(UNIT_LOWER_INVERSE, system.value, axes=2)
    return call.vectors(matmul(call, Scalars(inverse), right))


def transposed(x: Tensor) -> Tensor:
    """The tensor with its last two axes exchanged."""
    return x.viewed(Permute.swapping(-2, -1, ndim=len(x.shape)))


def add_matmul(
    call: Call,
    bias: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    beta: float,
    alpha: float,
) -> Tensor:
    """beta · bias + alpha · first @ second."""
    product = multiply(call, matmul(call, first, second), float(alpha))
    if beta == 0:
        return product
    return add(call, product, multiply(call, bias, float(beta)))


def softmax(call: Call, x: Tensor, axis: int) -> Scalars:
    """The softmax over the last axis of scores, without those that are masked."""
    refuse_if(
        not isinstance(x, Scalars),
        f"of {kind(x)}: only scores, products of queries and keys, are read",
    )
    refuse_if(axis % len(x.shape) != len(x.shape) - 1, "only over the last axis")
    if x.low is None:
        return Scalars(ns.softmax(x.unmasked))
    largest = x.low.max(axis=-1, keepdims=True)
    refuse_if(
        np.isneginf(largest).any() and not call.nan_is_zero,
        "a mask leaves a row of scores without any entry, and its softmax is NaN: fill"
        " in the number torch.finfo(x.dtype).min, or use nan_to_num after it",
    )
    is_hidden = largest * call.eps <= -HIDDEN
    mask = (x.low > NEVER) | is_hidden
    weights = ns.softmax(x.unmasked, None if mask.all() else mask)
    if not is_hidden.any():
        return Scalars(weights)
    # Rounding hides the scores of a row that a mask leaves no entry: its weights are
    # equal where its low numbers are largest, and 0 instead of NaN
    is_largest = (x.low == largest) & np.isfinite(x.low)
    counts = np.maximum(is_largest.sum(axis=-1, keepdims=True), 1)
    equal_weights = np.where(is_hidden, is_largest / counts, 0.0)
    return Scalars(weights * np.where(is_hidden, 0.0, 1.0) + equal_weights)


def shares(call: Call, x: Tensor, log_sum: Tensor) -> Tensor:
    """The softmax of each coordinate, exp(x − log Σ exp x), over an axis of indices."""
    return apply_function(EXP, call, subtract(call, x, log_sum))


# Choices


def where(call: Call, condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """Random numbers where a given condition is true, elsewhere given ones, or reverse.

    Scores that become very low numbers are masked: a softmax leaves them out.
    """
    if isinstance(condition, Scalars):
        return _chosen_by_scalars(call, condition, chosen, other)
    if is_random(condition):
        raise Refusal("a condition that is random")
    kept = numbers(condition).astype(bool)
    if is_random(chosen) and is_random(other):
        chosen_part = multiply(call, chosen, kept.astype(float))
        return add(call, chosen_part, multiply(call, other, 1.0 - kept))
    if is_random(chosen):
        x = chosen
        fill = numbers(other)
    else:
        kept = ~kept
        x = other
        fill = numbers(chosen)
    if (fill <= MASKED).all():
        return _with_mask(call, x, kept, fill)
    kept_part = multiply(call, x, kept.astype(float))
    if not fill.any():
        return kept_part
    return add(call, kept_part, np.where(kept, 0.0, fill))


def _chosen_by_scalars(
    call: Call, condition: Scalars, chosen: Tensor, other: Tensor
) -> Tensor:
    """The choice by random scalars that are 0 or 1."""
    for x in (chosen, other):
        refuse_if(
            not is_random(x) and not np.isfinite(numbers(x)).all(),
            "a random choice between vectors and infinite numbers",
        )
    chosen_part = multiply(call, chosen, condition)
    not_chosen = Scalars(1.0 - condition.value)
    return add(call, chosen_part, multiply(call, other, not_chosen))


def _with_mask(call: Call, x: Tensor, kept: Any, fill: Floats) -> Scalars:
    """Scores where they are kept, elsewhere the low numbers `fill`."""
    x = call.settled(x)
    if isinstance(x, Vectors):
        x = call.draws.scalars(x)
    kept = np.broadcast_to(kept, call.shape)
    is_never = fill <= NEVER
    scores = x.unmasked.broadcast_to(call.shape)
    if not is_never.all():  # low numbers are scores that reports do not show
        kept_scores = scores * kept.astype(float)
        scores = kept_scores + np.where(kept | is_never, 0.0, fill)
    low_before = 0.0 if x.low is None else x.low
    low = np.where(kept, low_before, fill)
    masked = Scalars(scores)
    if low.any():
        masked = masked.lowered(low)
    return masked


def detach(call: Call, x: Tensor) -> Tensor:
    """The same tensor, without a gradient."""
    if isinstance(x, Random):
        return replace(x, frozen=True)
    if not is_random(x):
        return x
    if isinstance(x, Linear):  # still recognised together with its other parts
        return replace(x, x=call.draws.without_gradient(x.x))
    x = call.settled(x)
    if isinstance(x, Scalars):
        return replace(x, base=ns.stop_gradient(x.base), root=None, average=None)
    return call.draws.without_gradient(x)
