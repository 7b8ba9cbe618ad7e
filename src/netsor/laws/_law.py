"""What every law has: the methods of scipy.stats, an error for each number, and a word on how it was obtained.

A law of one variable gives its density and distribution function with their errors; everything else follows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A value and its standard error, which is 0 where the value is exact but for rounding or quadrature."""

    value: Any
    error: Any

    def __str__(self) -> str:
        if np.ndim(self.value):
            return repr(self)
        if self.value == 0 or self.error == 0 or not np.isfinite([self.value, self.error]).all():
            return f"{self.value:.6g} ± {self.error:.2g}"
        digits = math.floor(math.log10(abs(self.value))) - math.floor(math.log10(self.error)) + 2  # two of the error
        return f"{self.value:.{min(max(digits, 2), 12)}g} ± {self.error:.2g}"


@dataclass(frozen=True)
class Origin:
    """How a law was obtained, and what is known of it."""

    status: str
    method: str
    random_numbers: int = 0
    seed: int | None = None
    quadrature_error: float = 0.0
    notes: tuple[str, ...] = ()


def normal_moment(k: int) -> int:
    """E[Z^k] of a standard normal Z, for even k: (k − 1)!!."""
    return math.prod(range(k - 1, 0, -2))


class Described:
    """A law, with its origin."""

    origin: Origin

    @property
    def status(self) -> str:
        """`proved`, `exact` or `conjectured`."""
        return self.origin.status

    @property
    def method(self) -> str:
        """How the law was obtained, in words."""
        return self.origin.method

    @property
    def random_numbers(self) -> int:
        """How many random numbers were drawn for each replica."""
        return self.origin.random_numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """What the engine wants known, such as activations that it treated as the identity."""
        error = self.origin.quadrature_error
        if error < 1e-6:
            return self.origin.notes
        doubt = f"Gaussian expectations are off by about {error:.1g}, or by more for a function with jumps or poles"
        return (*self.origin.notes, doubt)


class WithError:
    """The methods of a law, each returning an Estimate: the value and its standard error."""

    def __init__(self, law: Law) -> None:
        self._law = law

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The density."""
        return _shaped(self._law._pdf, y, (0.0, 0.0))

    def cdf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y ≤ y)."""
        value, error = _shaped(self._law._cdf, y, (0.0, 1.0))
        return Estimate(np.clip(value, 0.0, 1.0)[()], error)

    def moment(self, order: int) -> Estimate:
        """E[Y^order]."""
        return self._law._moment(_order(order))

    def mean(self) -> Estimate:
        """E[Y]."""
        return self._law._moment(1)

    def var(self) -> Estimate:
        """The variance."""
        return self._law._var()

    def std(self) -> Estimate:
        """The standard deviation."""
        value, error = self._law._var()
        return Estimate(value**0.5, error / (2 * value**0.5) if value else 0.0)

    def kurtosis(self) -> Estimate:
        """The excess kurtosis."""
        return self._law._kurtosis()


class Law(Described, ABC):
    """A law of one variable. Points may be arrays; `law.with_error` has the same methods with standard errors."""

    @abstractmethod
    def _pdf(self, y: Array) -> Estimate:
        """The density at points (k,), with errors."""

    @abstractmethod
    def _cdf(self, y: Array) -> Estimate:
        """The distribution function at points (k,), with errors."""

    @abstractmethod
    def _moment(self, order: int) -> Estimate:
        """E[Y^order]."""

    @abstractmethod
    def rvs(self, size: int = 1, seed: int | None = None) -> Array:
        """Independent draws."""

    @abstractmethod
    def cf(self, t: npt.ArrayLike) -> Any:
        """The characteristic function E[e^(itY)]."""

    @property
    def with_error(self) -> WithError:
        """The same methods, each returning (value, error)."""
        return WithError(self)

    def pdf(self, y: npt.ArrayLike) -> Any:
        """The density."""
        return self.with_error.pdf(y).value

    def logpdf(self, y: npt.ArrayLike) -> Any:
        """The logarithm of the density."""
        return _shaped(lambda p: Estimate(self._logpdf(p), 0.0), y, (-np.inf, -np.inf)).value

    def cdf(self, y: npt.ArrayLike) -> Any:
        """P(Y ≤ y)."""
        return self.with_error.cdf(y).value

    def sf(self, y: npt.ArrayLike) -> Any:
        """P(Y > y)."""
        return _shaped(lambda p: Estimate(self._sf(p), 0.0), y, (1.0, 0.0)).value

    def ppf(self, q: npt.ArrayLike) -> Any:
        """The quantile: where the distribution function is q."""
        return _shaped(lambda p: Estimate(self._ppf(p), 0.0), q, (np.nan, np.nan)).value

    def interval(self, confidence: float) -> tuple[float, float]:
        """The central interval of this probability."""
        if not 0 <= confidence <= 1:
            raise ValueError(f"interval: confidence={confidence!r} must be between 0 and 1")
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def mean(self) -> float:
        """E[Y]."""
        return float(self._moment(1).value)

    def var(self) -> float:
        """The variance."""
        return float(self._var().value)

    def std(self) -> float:
        """The standard deviation."""
        return float(self.var() ** 0.5)

    def moment(self, order: int) -> float:
        """E[Y^order]."""
        return float(self._moment(_order(order)).value)

    def kurtosis(self) -> float:
        """The excess kurtosis, E[(Y − EY)⁴]/Var(Y)² − 3."""
        return float(self._kurtosis().value)

    def entropy(self) -> float:
        """−E[log f(Y)], by quadrature."""
        y, w = self.grid()
        f = self.pdf(y)
        return float(-np.sum(w * np.where(f > 0, f * np.log(np.maximum(f, 1e-300)), 0.0)))

    def __repr__(self) -> str:
        known = f"{self.method}; {self.status}"
        numbers = f"; {self.random_numbers} random numbers a replica" if self.random_numbers else ""
        shape = f"variance {self.var():.6g}, excess kurtosis {self.kurtosis():.4g}"
        return f"<{type(self).__name__}: {shape}; {known}{numbers}>"

    # What follows from the density, the distribution function and the moments, unless a law knows better

    def _logpdf(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._pdf(y).value))

    def _sf(self, y: Array) -> Array:
        return 1.0 - np.asarray(self._cdf(y).value)

    def _var(self) -> Estimate:
        mean, second = self._moment(1), self._moment(2)
        return Estimate(second.value - mean.value**2, second.error)

    def _kurtosis(self) -> Estimate:
        m = [self._moment(k).value for k in range(5)]
        centred = m[4] - 4 * m[1] * m[3] + 6 * m[1] ** 2 * m[2] - 3 * m[1] ** 4
        return Estimate(centred / self.var() ** 2 - 3, self._moment(4).error / self.var() ** 2)

    def _ppf(self, q: Array) -> Array:
        from scipy import optimize  # slow to import, and seldom needed

        if ((q < 0) | (q > 1)).any():
            raise ValueError(f"ppf: q={q} must be between 0 and 1")
        centre, scale = self.mean(), self.std()
        if scale == 0:  # a point mass
            return np.full(len(q), centre)
        result = np.where(q == 0, -np.inf, np.inf)
        for i in np.flatnonzero((q > 0) & (q < 1)):
            reach = 8.0
            while self.cdf(centre - reach * scale) > q[i] or self.sf(centre + reach * scale) > 1 - q[i]:
                reach *= 2

            def excess(y: float, level: float = float(q[i])) -> float:
                return float(self.cdf(y) - level) if level < 0.5 else float((1 - level) - self.sf(y))

            result[i] = optimize.brentq(excess, centre - reach * scale, centre + reach * scale, xtol=1e-12)
        return result

    def grid(self, points: int = 1001) -> tuple[Array, Array]:
        """Nodes and weights for integrals over the line: dense at the centre, far into the tails."""
        return even_grid(self.mean(), self.std(), points)


def even_grid(centre: float, scale: float, points: int = 1001, reach: float = 40.0) -> tuple[Array, Array]:
    """Nodes and weights for integrals over the line, even in arcsinh(y): dense at the centre, to so many scales out."""
    x, step = np.linspace(-1, 1, points, retstep=True)
    reach = float(np.arcsinh(reach))
    return centre + scale * np.sinh(reach * x), step * reach * scale * np.cosh(reach * x)


def _order(order: int) -> int:
    if isinstance(order, bool) or not hasattr(order, "__index__") or order < 0:
        raise ValueError(f"moment: order={order!r} must be an integer, 0 or more")
    return int(order)


def _shaped(f: Callable[[Array], Estimate], y: npt.ArrayLike, ends: tuple[float, float]) -> Estimate:
    """Apply a function of finite points (k,) to points of any shape; `ends` are its values at ±∞, and NaN stays NaN."""
    points = np.asarray(y, dtype=np.float64)
    flat = points.reshape(-1)
    value = np.where(flat == np.inf, ends[1], np.where(flat == -np.inf, ends[0], np.nan))
    error = np.zeros_like(value)
    finite = np.isfinite(flat)
    if finite.any():
        value[finite], error[finite] = f(flat[finite])
    value, error = value.reshape(points.shape), error.reshape(points.shape)
    return Estimate(float(value), float(error)) if points.ndim == 0 else Estimate(value, error)
