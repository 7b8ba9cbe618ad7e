"""The numbers of a law with their errors, at points of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._array_api import single_threaded
from ..language._given import shown
from ._checked import checked_order, levels, points
from ._estimate import Array, Estimate, combined
from ._law_base import LawError

Law = Any  # `_law.Law`, which imports this file
ROOT_ATOL = 1e-14  # error of a root found numerically, in standard deviations
WIDE = 1.96  # standard errors on either side of 95 %
MAX_POINT = 1e150  # largest size of a point: no law has mass beyond, and its square would overflow


@single_threaded
class WithError:
    """The methods of a law, each returning an Estimate: the value and its standard error."""

    def __init__(self, law: Law) -> None:
        self._law = law

    def _at(
        self, operation: str, f: Callable[[Law, Array], Estimate], y: npt.ArrayLike, ends: tuple[float, float]
    ) -> Estimate:
        """A function of points, with the doubt that quadrature leaves."""
        law = self._law

        def with_doubt(p: Array) -> Estimate:
            value, error = f(law, p)
            return Estimate(value, combined(error, law.doubt(lambda other: f(other, p).value)))

        value, error = shaped(operation, with_doubt, y, ends)
        return Estimate(value, error, law.sources)

    def _number(self, f: Callable[[Law], Estimate]) -> Estimate:
        value, error = f(self._law)
        doubt = self._law.doubt(lambda other: f(other).value)
        return Estimate(float(value), combined(float(error), doubt), self._law.sources)

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The density."""
        return self._at("pdf", lambda law, p: law._pdf(p), y, (0.0, 0.0))

    def cdf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y ≤ y)."""
        return self._at("cdf", lambda law, p: law._cdf(p), y, (0.0, 1.0))

    def sf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y > y)."""
        return self._at("sf", lambda law, p: Estimate(law._sf(p), law._cdf(p).error), y, (1.0, 0.0))

    def ppf(self, q: npt.ArrayLike) -> Estimate:
        """The quantile: how far it moves as the level moves by the error of the distribution function, in log odds.

        One error to either side, or WIDE errors for a WIDE-th of the way: a jump of the quantile (between atoms, across
        a gap) that lies beyond one error is still within reach of two.
        """
        law = self._law
        level, value = levels(q, "ppf"), np.asarray(law.ppf(q))
        inner = np.where((level > 0) & (level < 1), level, 0.5)
        error, atoms = np.asarray(self.cdf(value).error), [at for at, _ in law.atoms]
        if atoms:  # which the level may leave on either side
            error = np.maximum(error, self.cdf(np.nextafter(value, -np.inf)).error)
        step, reach = error / (inner * (1 - inner)), np.zeros_like(error)
        for wide in (-WIDE, -1.0, 1.0, WIDE):
            moved = np.asarray(law.ppf(scipy.special.expit(scipy.special.logit(inner) + wide * step)))
            with np.errstate(invalid="ignore"):
                reach = np.maximum(reach, np.abs(moved - value) / abs(wide))
        # and at least what the slope says, which draws hide between them; an atom has none
        slope = np.asarray(law._slope(value))
        straight = np.divide(error, slope, out=np.zeros_like(error), where=slope > 0)
        reach = np.where(np.isin(value, atoms), reach, np.maximum(reach, straight))
        known = ~np.isfinite(value) | (reach < ROOT_ATOL * law.std())
        return Estimate(value[()], np.where(known, 0.0, reach)[()], law.sources)

    def median(self) -> Estimate:
        """The median."""
        return self.ppf(0.5)

    def logpdf(self, y: npt.ArrayLike) -> Estimate:
        """The logarithm of the density; where that is no double, an infinite error if draws alone tell of it."""
        return self._at("logpdf", lambda law, p: Estimate(law._logpdf(p), law._log_error(p)), y, (-np.inf, -np.inf))

    def cf(self, t: npt.ArrayLike) -> Estimate:
        """The characteristic function, within a circle of this error in the plane."""
        law, given = self._law, points(t, "t", "cf")
        if (np.abs(given) > MAX_POINT).any():
            raise LawError("cf", f"t={shown(t)} must be finite, and at most {MAX_POINT:g} in size")
        if not given.size:
            return Estimate(np.zeros(given.shape, dtype=np.complex128), np.zeros(given.shape))
        value, error = law._cf(given.ravel())
        error = combined(error, law.doubt(lambda other: other._cf(given.ravel()).value))
        error = np.broadcast_to(error, value.shape).reshape(given.shape)
        return Estimate(value.reshape(given.shape)[()], error[()], law.sources)

    def moment(self, order: int) -> Estimate:
        """E[Y^order]."""
        k = checked_order(order)
        return self._number(lambda law: law._moment(k))

    def mean(self) -> Estimate:
        """E[Y]."""
        return self.moment(1)

    def var(self) -> Estimate:
        """The variance."""
        return self._number(lambda law: law._var())

    def std(self) -> Estimate:
        """The standard deviation."""
        value, error = self.var()
        return Estimate(value**0.5, error / (2 * value**0.5) if value else 0.0, self._law.sources)

    def kurtosis(self) -> Estimate:
        """The excess kurtosis."""
        value, error = self._law._kurtosis()
        return Estimate(float(value), float(error), self._law.sources)

    def skewness(self) -> Estimate:
        """E[(Y − EY)³]/Var(Y)^(3/2)."""
        value, error = self._law._skewness()
        return Estimate(float(value), float(error), self._law.sources)

    def expect(self, func: Callable[[Any], Any]) -> Estimate:
        """E[func(Y)]."""
        return self._number(lambda law: law._expect(func))

    def entropy(self) -> Estimate:
        """−E[log f(Y)]."""
        return self._number(lambda law: law._entropy())


def shaped(operation: str, f: Callable[[Array], Estimate], y: npt.ArrayLike, ends: tuple[float, float]) -> Estimate:
    """Apply a function of finite points (k,) to points of any shape; `ends` are its values at ±∞, and NaN stays NaN."""
    given = points(y, "y", operation)
    flat = given.reshape(-1)
    flat = np.where(np.abs(flat) > MAX_POINT, np.copysign(np.inf, flat), flat)
    value = np.where(flat == np.inf, ends[1], np.where(flat == -np.inf, ends[0], np.nan))
    error = np.zeros_like(value)
    finite = np.isfinite(flat)
    if finite.any():
        value[finite], error[finite] = f(flat[finite])
    value, error = value.reshape(given.shape), error.reshape(given.shape)
    return Estimate(float(value), float(error)) if given.ndim == 0 else Estimate(value, error)


def values(operation: str, f: Callable[[Array], Array], y: npt.ArrayLike, ends: tuple[float, float]) -> Any:
    """The same for a function that gives no errors."""
    return shaped(operation, lambda p: Estimate(f(p), 0.0), y, ends).value
