"""Numbers with standard errors: their arithmetic, and how they follow from replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy

from ..report._html import note, table

Array = npt.NDArray[np.float64]
Sources = frozenset[Any]
SHOWN = 12  # largest number of entries of an array that a notebook shows


class _Error:
    """One independent error, which several estimates may have in common.

    Two errors are the same only if they are one object.
    """

    __slots__ = ("size", "sources")

    def __init__(self, size: Any, sources: Sources) -> None:
        """`size` is the standard error; `sources` says what it comes from."""
        self.size = size
        self.sources = sources


class Estimate(np.lib.mixins.NDArrayOperatorsMixin):
    """A value and its standard error.

    Read them by `value, error = estimate`, `estimate.value` or `float(estimate)`. The
    error is 0 where the value is exact up to rounding, and infinite where nothing
    is known about it. You can add, subtract, multiply, divide and compare estimates,
    numbers and arrays; `log`, `exp` and `sqrt` are methods, and work as numpy's
    functions too. Errors remember their sources: `e − e` is 0 ± 0.

    Parameters
    ----------
    value : float or numpy.ndarray
        The number, or an array of numbers.
    error : float or numpy.ndarray
        Its standard error, in the same shape.
    sources : frozenset
        The sources of the error: errors with a common source add linearly, others in
        squares.

    Examples
    --------
    >>> a, b = ns.Estimate(2.0, 0.3), ns.Estimate(1.0, 0.4)
    >>> print(a + b, "|", a - a, "|", (a / b).log())
    3 ± 0.5 | 0 ± 0 | 0.69 ± 0.43
    >>> value, error = a
    >>> float(a), error
    (2.0, 0.3)
    """

    __slots__ = ("_slopes", "error", "value")

    def __init__(self, value: Any, error: Any, sources: Sources = frozenset()) -> None:
        """An estimate with an error of its own, which no other estimate shares yet."""
        self.value = value
        self.error = error
        # how much the value changes with each independent error, to first order: 1 for
        # e itself, 2 for e + e and 0 for e − e
        self._slopes: dict[_Error, Any] = {_Error(error, sources): 1.0}

    # an estimate unpacks like the pair (value, error)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.error))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.value, self.error)[index]

    def __repr__(self) -> str:
        return f"Estimate(value={self.value!r}, error={self.error!r})"

    def __str__(self) -> str:
        """Value ± error, with as many digits of the value as the error leaves.

        For example, 1.23456 with the error 0.0123 is "1.235 ± 0.012".
        """
        if np.ndim(self.value):
            return repr(self)
        if self.error == math.inf:
            return f"{self.value:.3g} ± inf (too few draws for an error)"
        are_finite = np.isfinite([self.value, self.error]).all()
        if self.value == 0 or self.error == 0 or not are_finite:
            return f"{self.value:.6g} ± {self.error:.2g}"
        exponent = math.floor(math.log10(abs(self.value)))
        exponent_of_error = math.floor(math.log10(self.error))
        digits = exponent - exponent_of_error + 2  # two digits of the error
        digits = min(max(digits, 2), 12)
        return f"{self.value:.{digits}g} ± {self.error:.2g}"

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ± {self.error:{spec}}" if spec else str(self)

    def brief(self) -> str:
        """The number for a table, with its error if there is one."""
        return f"{self.value:.6g}" if self.error == 0 else str(self)

    def _repr_html_(self) -> str:
        """A table for a notebook: one cell, or a row for each of the first entries."""
        if not np.ndim(self.value):
            return table([[str(self)]])
        value, error = np.broadcast_arrays(self.value, self.error)
        rows = []
        for index in list(np.ndindex(value.shape))[:SHOWN]:
            entry = Estimate(value[index].item(), error[index].item())
            rows.append([", ".join(map(str, index)), str(entry)])
        html = table(rows, ["entry", "value ± error"])
        if value.size > SHOWN:
            html += note(f"and {value.size - SHOWN} more, of shape {value.shape}")
        return html

    def __float__(self) -> float:
        if np.iscomplexobj(self.value):  # numpy would drop the imaginary part
            raise TypeError(
                f"float of the complex estimate {self}: take its value.real, or"
                " abs(estimate)"
            )
        return float(self.value)

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Only the value; without this method numpy would read (value, error)."""
        return np.array(self.value, dtype=dtype)

    # Not numpy's equality (`numpy.equal` compares only values, entry by entry): two
    # estimates are one object each, as in an assertion of a test.

    def __eq__(self, other: object) -> Any:
        """Whether the estimate is equal to another object:

        - another estimate: a bool, whether all values and all errors are equal;
        - a tuple: a bool, whether it is the pair (value, error);
        - a number or an array: whether the value is equal to it, a bool for each entry.
        """
        if isinstance(other, Estimate):
            return bool(
                np.array_equal(self.value, other.value)
                and np.array_equal(self.error, other.error)
            )
        if isinstance(other, tuple):
            return tuple(self) == other
        return self.value == other

    def __ne__(self, other: object) -> Any:
        return np.logical_not(self == other)[()]

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    # Arithmetic: the operators of the mixin call numpy's functions, which call this
    # method

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """`ufunc(*inputs)`: an estimate, or an array of bools for a comparison.

        To first order, an error e of an argument x changes f(x) by f'(x) e.
        """
        values = [np.asarray(x) * np.float64(1) for x in inputs]  # as doubles
        is_supported = ufunc in _COMPARISONS or ufunc in _SLOPES
        if method != "__call__" or kwargs or not is_supported:
            return NotImplemented  # numpy's error names the function
        if ufunc in _COMPARISONS:
            return ufunc(*values)[()]
        _check_operands(ufunc, inputs, values)

        with np.errstate(divide="ignore"):  # √x is infinitely steep at 0
            slopes_of_arguments = _SLOPES[ufunc](*values)
        slopes: dict[_Error, Any] = {}
        for operand, outer_slope in zip(inputs, slopes_of_arguments, strict=True):
            if not isinstance(operand, Estimate):
                continue
            for error, inner_slope in operand._slopes.items():
                slope = _product(outer_slope, inner_slope)  # the chain rule
                slopes[error] = _sum_of_slopes(slopes.get(error, 0.0), slope)

        value = ufunc(*values)
        if np.ndim(value) == 0:
            value = value.item()
        result = Estimate(value, _total_error(slopes))
        result._slopes = slopes
        return result

    def log(self) -> Estimate:
        """The natural logarithm."""
        return cast(Estimate, np.log(self))

    def exp(self) -> Estimate:
        """The exponential."""
        return cast(Estimate, np.exp(self))

    def sqrt(self) -> Estimate:
        """The square root."""
        return cast(Estimate, np.sqrt(self))


def _check_operands(
    ufunc: Any, operands: tuple[Any, ...], values: list[npt.NDArray[Any]]
) -> None:
    """Raise an error where the result or its error would not be defined."""
    if ufunc is np.power and isinstance(operands[1], Estimate):
        raise TypeError(
            "an estimate to the power of an estimate: take (log(a) * b).exp()"
        )
    if ufunc is np.divide and not np.all(values[1]):
        raise ZeroDivisionError("division of an estimate by 0")
    if ufunc is np.log and not np.all(values[0] > 0):
        raise ValueError(f"log of {operands[0]}: the value must be above 0")
    if ufunc is np.sqrt and np.any(values[0] < 0):
        raise ValueError(f"sqrt of {operands[0]}: the value must be 0 or more")


def _product(a: Any, b: Any) -> Any:
    """a b, where 0 times infinity is 0 and not NaN."""
    is_zero = (np.asarray(a) == 0) | (np.asarray(b) == 0)
    with np.errstate(invalid="ignore"):
        return np.where(is_zero, 0.0, np.multiply(a, b))


def _sum_of_slopes(a: Any, b: Any) -> Any:
    """a + b, where ∞ − ∞ is ∞: nothing is known about such a difference."""
    with np.errstate(invalid="ignore"):
        total = np.add(a, b)
    is_difference_of_infinities = np.isnan(total) & np.isinf(a) & np.isinf(b)
    return np.where(is_difference_of_infinities, math.inf, total)


def _slope_of_power(x: Any, p: Any) -> Any:
    """p x^(p − 1), the derivative of x^p; 0 for p = 0, where x^p is 1."""
    is_constant = p == 0
    slope = p * x ** np.where(is_constant, 1.0, p - 1)
    return np.where(is_constant, 0.0, slope)


# the derivatives of each function with respect to its arguments
_SLOPES: dict[Any, Callable[..., tuple[Any, ...]]] = {
    np.add: lambda x, y: (1.0, 1.0),
    np.subtract: lambda x, y: (1.0, -1.0),
    np.multiply: lambda x, y: (y, x),
    np.divide: lambda x, y: (1 / y, -x / y**2),
    np.power: lambda x, p: (_slope_of_power(x, p), 0.0),
    np.positive: lambda x: (1.0,),
    np.negative: lambda x: (-1.0,),
    # |x| changes by all of an error at 0, where it has no derivative
    np.absolute: lambda x: (np.where(x == 0, 1.0, np.sign(x)),),
    np.exp: lambda x: (np.exp(x),),
    np.log: lambda x: (1 / x,),
    np.sqrt: lambda x: (0.5 / np.sqrt(x),),
}
_COMPARISONS = (
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.equal,
    np.not_equal,
)


class _ConnectedErrors(NamedTuple):
    """Errors that are connected by common sources, and the sum of their sizes."""

    sources: Sources
    total: Any


def _total_error(slopes: dict[_Error, Any]) -> Any:
    """The standard error of a value that changes with errors at these slopes.

    Those that share sources add linearly, which is the worst case; others in squares.
    For example, errors a, b and c with sources {1}, {1, 2} and {3} have the total
    √((|a| + |b|)² + c²).
    """
    groups: list[_ConnectedErrors] = []
    for error, slope in slopes.items():
        all_sources = error.sources
        total = np.abs(_product(slope, error.size))
        unconnected = []
        for group in groups:
            if group.sources & error.sources:
                all_sources = all_sources | group.sources
                total = total + group.total
            else:
                unconnected.append(group)
        groups = [*unconnected, _ConnectedErrors(all_sources, total)]
    return combined(*(group.total for group in groups))


# number of values from which a series in 1/count gives all digits of Student's
# quantile; it spares loading scipy.special, which is slow
MANY = 10**4


def student(count: int, errors: float = 1.0) -> float:
    """The factor that widens a standard error from `count` values: Student's t quantile
    over the normal one.

    With it, an interval of one error to each side covers the truth in 68 % of cases,
    and one of `errors` errors as often as that of a normal law. It is infinite for
    fewer than two values.
    """
    if count < 2:
        return math.inf
    if count > MANY:
        # the expansion of the quantile in 1/(degrees of freedom) for z = `errors`:
        # 1 + c1 x + c2 x² + c3 x³, by Horner's rule
        x = 1 / (count - 1)
        z = errors**2
        c1 = (z + 1) / 4
        c2 = (5 * z**2 + 16 * z + 3) / 96
        c3 = (3 * z**3 + 19 * z**2 + 17 * z - 15) / 384
        return 1 + x * (c1 + x * (c2 + x * c3))
    probability = scipy.special.ndtr(errors)
    quantile = float(scipy.special.stdtrit(count - 1, probability))
    return quantile / errors


def combined(*errors: Any) -> Any:
    """The total of independent errors: the root of the sum of their squares."""
    arrays = [np.asarray(error, dtype=np.float64) for error in errors]
    sum_of_squares: Any = np.zeros(())
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is right
        for array in arrays:
            sum_of_squares = sum_of_squares + array**2
        total = np.sqrt(sum_of_squares)
    for array in arrays:  # squares of tiny errors may underflow to 0
        total = np.maximum(total, np.abs(array))
    return float(total) if np.ndim(total) == 0 else total


# standard errors by which the tail of a decisive quantity, for example a fourth moment,
# counts as heavier than it looks
STEEPER = 1.0
# the same for a mean or a variance of many draws, whose error is small if the tail is
# light
STEEPER_OF_MANY = 2.0
# number of the largest deviations that show a tail; of fewer than 100 draws, a fifth
TAIL = 20
MIN_DRAWS_FOR_TAIL = 5 * TAIL  # draws from which TAIL are not more than a fifth
FEWEST = 5  # smallest such number, however few the draws
# share of the largest deviation below which a deviation is rounding, for example in
# draws from an atom
SAME = 1e-12
NUMBERS_IN_BATCH = 2**22  # that are sorted together, to bound memory
LOG_MAX_DOUBLE = 709.0  # logarithm of the largest double


def tail_error(
    samples: Array, share: Array | None, count: float, steeper: float = 0.0
) -> Array:
    """How much of the mean of each column may lie beyond its draws.

    samples: (draws, …), and the result has the shape (…). The draws have the weights
    `share` of sum 1, or equal ones if None, and are worth `count` draws of equal
    weight. `steeper` is in standard errors, by which the tail counts as heavier than
    it looks.
    """
    # We assume that deviations from the median are lognormal beyond x_p, which a share
    # p of them exceeds: log x = log x_p + σ (z − z_p) with z standard normal. So σ =
    # E[log(x/x_p)]/(φ(z_p)/p − z_p) over those beyond x_p. We raise it by `steeper` of
    # its standard errors, 1/√(number beyond x_p). The part of the mean beyond the last
    # of n draws is then x_p e^(σ²/2 − σ z_p) Φ(σ − z_n), z_n = Φ⁻¹(1 − 1/n).
    if count < 2 * FEWEST:  # too few to show a tail
        return np.zeros(samples.shape[1:])
    if share is not None and not share.all():  # draws without weight show nothing
        has_weight = share > 0
        samples = samples[has_weight]
        share = share[has_weight]
    flat = samples.reshape(len(samples), -1)
    errors = [
        _tail_errors(columns.T, share, count, steeper)
        for columns in batches(flat.T, len(flat), NUMBERS_IN_BATCH)
    ]
    return np.concatenate(errors).reshape(samples.shape[1:])


def _tail_errors(
    samples: Array, share: Array | None, count: float, steeper: float
) -> Array:
    """`tail_error` for samples (draws, columns), as an array (columns,)."""
    deviation, weight, share_that_differs = _largest_deviations(samples, share)
    # the number of draws in the tail of each column: at most half of the draws that
    # differ, because the other half shows where the tail begins
    largest_tail = min(TAIL, max(count / 5, FEWEST))
    tail_draws = np.minimum(largest_tail, count * share_that_differs / 2)
    tail_share = np.clip(tail_draws, 1, None) / count
    tail = _tail_of_columns(deviation, weight, tail_share)

    # p is the probability of the tail, and x_p where it starts
    p = tail.share
    z_p = -_quantile(np.clip(p, 1e-300, 0.5))
    log_start = np.log(tail.start)

    # σ from the mean of log(x/x_p) over the tail: for a lognormal law it is
    # σ (density(z_p) − p z_p), summed with the weights of the tail
    rank = np.arange(len(deviation))
    is_in_tail = rank[:, None] <= tail.last
    log_ratio = np.log(np.maximum(deviation, tail.start)) - log_start
    log_ratio = np.where(is_in_tail, log_ratio, 0.0)
    sum_of_logs = np.sum(weight * log_ratio, axis=0)
    normal_density = np.exp(-(z_p**2) / 2) / math.sqrt(2 * math.pi)
    sigma = sum_of_logs / (normal_density - p * z_p)
    sigma = sigma * (1 + steeper / np.sqrt(p * count))

    # the logarithm of x_p e^(σ²/2 − σ z_p) Φ(σ − z_n)
    minus_z_n = _quantile(1 / count)
    log_probability = np.log(_cdf(sigma + minus_z_n))
    log_error = log_start + sigma**2 / 2 - sigma * z_p + log_probability
    log_error = np.where(log_error < LOG_MAX_DOUBLE, log_error, np.inf)
    has_deviations = deviation[0] > 0
    return np.where(has_deviations, np.exp(log_error), 0.0)


class _Tail(NamedTuple):
    """The largest deviations of each column, as arrays (columns,)."""

    last: Array  # the position of the smallest of them
    share: Array  # p, their share of the weight
    start: Array  # x_p, the next smaller deviation


def _tail_of_columns(deviation: Array, weight: Array, tail_share: Array) -> _Tail:
    """The tail of each column, with at least the weight `tail_share` (columns,).

    The deviations (draws, columns) fall, and `weight` has their weights.
    """
    draws, columns = deviation.shape
    column = np.arange(columns)
    weight_up_to = np.cumsum(weight, axis=0)
    # the last draw of the tail; the next smaller deviation is its start
    rounded_share = tail_share * (1 - 1e-9)
    last = np.sum(weight_up_to < rounded_share, axis=0)
    last = np.minimum(last, draws - 2)
    start = deviation[last + 1, column]
    # a column of only two different values has no tail: it starts at the largest
    largest = deviation[0]
    safe_largest = np.where(largest > 0, largest, 1.0)
    start = np.where(start > 0, start, safe_largest)
    return _Tail(last=last, share=weight_up_to[last, column], start=start)


def tail_index(samples: Array) -> Array:
    """Index 1/α of a tail P(X > x) ∝ x^(−α), for each column of positive numbers.

    samples: (draws, …). The mean is infinite if the index is 1 or more. It is the
    smaller of Hill's estimates from the largest `TAIL` numbers and from half as many:
    a power law has the same index further out, but a bounded law that only looks heavy
    has a smaller one.
    """
    falling = np.sort(samples, axis=0)[::-1]

    def hill(count: int) -> Array:
        """The mean of log(x/x_0) of the `count` largest x, for the next smaller x_0."""
        largest = falling[: count + 1]  # with x_0, (count + 1, columns)
        positive = np.maximum(largest, np.finfo(float).tiny)
        logs = np.log(positive)
        log_ratios = logs[:-1] - logs[-1]
        return np.asarray(np.mean(log_ratios, axis=0))

    return np.minimum(hill(TAIL), hill(TAIL // 2))


# Φ⁻¹ and Φ of few numbers, by the standard library: scipy.special takes a quarter of a
# second to load
def _cdf_of_number(x: float) -> float:
    """Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2


_quantile = np.vectorize(NormalDist().inv_cdf, otypes=[float])
_cdf = np.vectorize(_cdf_of_number, otypes=[float])


class _Deviations(NamedTuple):
    """The largest deviations |x − median| of each column, from the largest on.

    Without weights these are the few that can be in a tail, with weights all of them.
    """

    size: Array  # (deviations, columns), falling along the first axis
    weight: Array  # (deviations, columns)
    share_that_differs: Array  # (columns,): of all deviations that exceed rounding


def _largest_deviations(samples: Array, share: Array | None) -> _Deviations:
    """The largest deviations from the median of each column.

    samples: (draws, columns). `share` are the weights of the draws, None if equal.
    """
    if share is None:
        median = np.median(samples, axis=0)
    else:
        median = _weighted_median(samples, share)
    size = np.abs(samples - median)
    differs = size > SAME * size.max(axis=0)

    if share is not None:
        order = np.argsort(-size, axis=0)
        return _Deviations(
            size=np.take_along_axis(size, order, axis=0),
            weight=share[order],
            share_that_differs=share @ differs,
        )

    # a partial sort, which is faster than a full one
    start = max(len(size) - TAIL - 2, 0)
    largest = np.partition(size, start, axis=0)[start:]
    falling = np.sort(largest, axis=0)[::-1]
    return _Deviations(
        size=falling,
        weight=np.full(falling.shape, 1 / len(samples)),
        share_that_differs=np.mean(differs, axis=0),
    )


def _weighted_median(samples: Array, share: Array) -> Array:
    """The first draw of each column up to which the weights add up to 1/2 or more.

    samples: (draws, columns). The result has the shape (columns,).
    """
    order = np.argsort(samples, axis=0)
    weight_up_to = np.cumsum(share[order], axis=0)
    position = np.sum(weight_up_to < 0.5, axis=0)
    position = np.minimum(position, len(order) - 1)  # if rounding leaves them below 1/2
    column = np.arange(samples.shape[1])
    median_draw = order[position, column]
    return np.asarray(samples[median_draw, column])


BLOCKS = 40  # blocks of replicas that give the errors of quantities other than averages


def batches(y: Array, width: int, entries: int = 2**20) -> Iterator[Array]:
    """Slices of an array along its first axis, at least one, to bound memory.

    A table with a row of `width` numbers for each entry of a slice has about `entries`
    numbers: 2500 points with `width=1000` and `entries=10**6` are slices of 1000, 1000
    and 500 points.
    """
    step = max(1, entries // max(width, 1))
    for start in range(0, max(len(y), 1), step):
        yield y[start : start + step]


class Replicated(NamedTuple):
    """A quantity at points, for each independent block of a law's replicas."""

    rows: Array  # (blocks, points)
    weight: Array  # of each block; their sum is 1

    @property
    def mean(self) -> Array:
        """The law's own value; exact if there is one row."""
        return np.asarray(self.weight @ self.rows)


class Replicas:
    """Averages over replicas with their standard errors.

    Replicas are independent draws of a random network; samples are arrays (replicas, …)
    and averages have the shape (…). Weights have the sum 1; without them all are equal.
    Rows of samples may stand for several replicas: then `number` is the number of rows
    and `count` that of all replicas.
    """

    def __init__(
        self, number: int, weight: Array | None = None, count: float | None = None
    ) -> None:
        """Weights are (number,) or None; see the class."""
        self.weight = weight  # None if equal
        self.weights = np.full(number, 1 / number) if weight is None else weight
        # the effective number of replicas
        self.count: float
        if count:
            self.count = count
        elif weight is None:
            self.count = number
        else:
            self.count = float(1 / np.sum(weight**2))
        # Σ w² over the replicas of each row of samples: a row with the weight W stands
        # for W·count replicas with the weight 1/count each
        self._square = self.weights / count if count else self.weights**2

    def choose(self, size: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
        """Indices of `size` rows, drawn independently by weight."""
        if self.weight is None:
            return rng.integers(len(self.weights), size=size)
        return rng.choice(len(self.weight), size=size, p=self.weight)

    def mean(self, samples: Array) -> Array:
        """The weighted mean of samples (replicas, …), of shape (…)."""
        if self.weight is None:
            return np.asarray(samples.mean(axis=0))
        return np.asarray(np.tensordot(self.weight, samples, axes=1))

    def spread(self, samples: Array) -> Array:
        """The standard error of the mean from the spread of the replicas.

        It is 0 for one replica, which is exact.
        """
        if self.count == 1:
            return np.zeros(samples.shape[1:])
        deviation = samples - self.mean(samples)
        # squares of deviations in units of the largest one do not overflow
        scale = np.abs(deviation).max(axis=0)
        safe_scale = np.where(scale > 0, scale, 1.0)
        relative = deviation / safe_scale
        # Σ w² (x − mean)², the variance of the mean, in these units
        variance = np.tensordot(self._square, relative**2, axes=1)
        bessel = math.sqrt(self.count / max(self.count - 1, 0.5))
        factor = student(max(2, math.floor(self.count))) * bessel
        return np.asarray(factor * scale * np.sqrt(variance))

    def unseen(self, samples: Array, decisive: bool = False) -> Array:
        """The largest contribution of a tail beyond these replicas to the mean.

        `decisive` says that the tail decides the mean, as in a fourth moment. Then it
        counts as heavier than it looks, and as infinite with fewer than 10 replicas.
        """
        if not decisive:
            # With a hundred replicas, a fifth of them shows the tail. There most laws
            # look heavier than further out, so we take the tail as it looks; with more
            # replicas it counts as up to STEEPER_OF_MANY errors heavier.
            share_of_more = max(0.0, 1 - MIN_DRAWS_FOR_TAIL / self.count)
            steeper = STEEPER_OF_MANY * share_of_more
            return tail_error(
                samples, share=self.weight, count=self.count, steeper=steeper
            )
        if 1 < self.count < 2 * FEWEST:
            return np.where(np.ptp(samples, axis=0) > 0, np.inf, 0.0)
        return tail_error(samples, share=self.weight, count=self.count, steeper=STEEPER)

    def average(self, samples: Array, decisive: bool = False) -> Estimate:
        """The mean of samples (replicas, …), with the errors `spread` and `unseen`."""
        value = self.mean(samples)
        error = combined(self.spread(samples), self.unseen(samples, decisive))
        if np.ndim(value) == 0:
            return Estimate(float(value), float(error))
        return Estimate(value, error)


def proportion_error(share: Any, count: float) -> Any:
    """The error of a share of `count` draws; it is positive even if the share is 0."""
    if count == 1:
        return np.zeros_like(share)
    # Wilson's interval is (p + z²/2n ± z √(p(1 − p)/n + z²/4n²))/(1 + z²/n). We combine
    # the offset of its middle with half its width, for z = 1, or take half of the same
    # for z = 2 if that is more.
    variance = share * (1 - share) / count
    errors = []
    for z in (1.0, 2.0):
        half_width = z * np.sqrt(variance + z**2 / (4 * count**2))
        offset = z**2 / count * (0.5 - share)
        divisor = 1 + z**2 / count  # of the whole interval
        error_of_interval = combined(offset, half_width) / divisor
        errors.append(error_of_interval / z)
    return student(max(2, int(count))) * np.maximum(*errors)


REPETITIONS = 100  # of the bootstrap
MIN_BLOCKS_FOR_BIAS = 10  # with fewer blocks a bias is too uncertain to be subtracted


class Jackknife(NamedTuple):
    """A value, its bias from noise, and its standard error."""

    value: float
    bias: float
    error: float
    blocks: int  # the least number of blocks in a group; 0 if all are exact

    def corrected(self) -> Estimate:
        """The value less its bias, if enough blocks show it; the bias is an error."""
        # near a minimum (KL of nearly equal laws) the gradient vanishes, and with it
        # the error: the bias remains
        subtracted = self.bias if self.blocks >= MIN_BLOCKS_FOR_BIAS else 0.0
        return Estimate(self.value - subtracted, combined(self.error, self.bias))


def jackknife(
    functional: Callable[..., Array], groups: Sequence[Replicated]
) -> Jackknife:
    """A smooth function of the means of independent groups, by the jackknife.

    `functional` takes the mean (points,) of each group in their order, and gives a
    number. It also takes a stack (blocks, points) for one of them and gives (blocks,).
    A group of one block is exact.
    """
    means = [group.mean for group in groups]
    value = float(functional(*means))
    bias = 0.0
    errors = []
    for position, group in enumerate(groups):
        count = len(group.rows)
        if count < 2 or not np.isfinite(value):
            continue
        weight = group.weight
        remaining_weight = 1 - weight
        # the mean of this group without each of its blocks: (blocks, points)
        contributions = weight[:, None] * group.rows
        sums_without = means[position] - contributions
        means_without = sums_without / remaining_weight[:, None]
        arguments = [*means]
        arguments[position] = means_without
        values_without = np.asarray(functional(*arguments))

        bias += float(np.sum(remaining_weight * (values_without - value)))
        deviation = values_without - values_without.mean()
        variance = np.sum(remaining_weight * deviation**2)
        standard_error = float(np.sqrt(variance))
        errors.append(student(count) * standard_error)
    counts = [len(group.rows) for group in groups if len(group.rows) > 1]
    return Jackknife(
        value=value,
        bias=bias,
        error=combined(*errors),
        blocks=min(counts, default=0),
    )


def bootstrap(
    functional: Callable[..., float], groups: Sequence[Replicated], errors: bool = True
) -> Estimate:
    """A function with kinks of the means of groups, less its bias from noise, with its
    standard error.

    `functional` takes the mean (points,) of each group in their order. Groups of one
    block are exact. Without `errors` the result is just the value.
    """
    # More noise of the same size shows the bias. Where the truth is 0, it shows the
    # smaller half of it, so we count one and a half times what we find as an error.
    value = functional(*[group.mean for group in groups])
    random_groups = [group for group in groups if len(group.rows) > 1]
    if not errors or not random_groups:
        return Estimate(value, 0.0)
    repeated_values = _bootstrap_values(functional, groups)
    bias = float(repeated_values.mean()) - value
    fewest_blocks = min(len(group.rows) for group in random_groups)
    subtracted = bias if fewest_blocks >= MIN_BLOCKS_FOR_BIAS else 0.0
    standard_error = float(repeated_values.std(ddof=1))
    sampling = student(fewest_blocks) * standard_error
    error_of_bias = 1.5 * max(bias, 0.0)
    return Estimate(value - subtracted, combined(sampling, error_of_bias))


def _bootstrap_values(
    functional: Callable[..., float], groups: Sequence[Replicated]
) -> Array:
    """The function of means with random weights of the blocks, (REPETITIONS,)."""
    rng = np.random.default_rng(2025)
    weights = [_bootstrap_weights(group, rng) for group in groups]
    values = np.empty(REPETITIONS)
    for repetition in range(REPETITIONS):
        means = []
        for group, weights_of_group in zip(groups, weights, strict=True):
            means.append(weights_of_group[repetition] @ group.rows)
        values[repetition] = functional(*means)
    return values


def _bootstrap_weights(group: Replicated, rng: np.random.Generator) -> Array:
    """Random weights (REPETITIONS, blocks) for the Bayesian bootstrap of a group.

    A mean with such weights varies around the group's mean as much as the mean of
    fresh blocks would vary around the truth.
    """
    count = len(group.rows)
    weights = rng.dirichlet(np.ones(count), REPETITIONS) * group.weight * count
    weights = weights / weights.sum(axis=1, keepdims=True)
    if count == 1:
        return np.asarray(weights)
    # these weights vary by 1/(count + 1), fresh blocks by 1/(count − 1)
    stretch = np.sqrt((count + 1) / (count - 1))
    deviation = (weights - group.weight) * stretch
    return np.asarray(group.weight + deviation)
