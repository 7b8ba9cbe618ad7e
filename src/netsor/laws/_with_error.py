"""The methods of a law with standard errors: each returns an Estimate, of one variable or of several.

An error has up to three parts: of sampling, of the tail that the replicas do not show, and of ε (see `_law`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._array_api import single_threaded
from .._validate import shown
from ._estimate import Array, Estimate, combined
from ._gaussian_mixture import GaussianMixtureND
from ._law_base import CONSTANT, LawError, checked_order, levels, points
from ._numerics import entropy, expectation

ROOT_ATOL = 1e-14  # error of a root found numerically, in standard deviations
WIDE = 1.96  # standard errors on either side of 95 %
MAX_POINT = 1e150  # largest size of a point: no law has mass beyond, and its square would overflow
ENDS = {"pdf": (0.0, 0.0), "logpdf": (-math.inf, -math.inf), "cdf": (0.0, 1.0), "sf": (1.0, 0.0),
        "logcdf": (-math.inf, 0.0), "logsf": (0.0, -math.inf)}  # fmt: skip  # values at −∞ and ∞


def pointwise(operation: str, f: Callable[[Array], Estimate], y: npt.ArrayLike) -> Estimate:
    """Apply a function of finite points (k,) to points of any shape; NaN stays NaN."""
    at = points(y, "y", operation)
    flat = np.where(np.abs(at) > MAX_POINT, np.copysign(np.inf, at), at).reshape(-1)
    low, high = ENDS.get(operation, (math.nan, math.nan))
    value = np.where(flat == np.inf, high, np.where(flat == -np.inf, low, np.nan))
    error, finite = np.zeros_like(value), np.isfinite(flat)
    if finite.any():
        value[finite], error[finite] = f(flat[finite])
    value, error = value.reshape(at.shape), error.reshape(at.shape)
    return Estimate(float(value), float(error)) if at.ndim == 0 else Estimate(value, error)


def values(operation: str, f: Callable[[Array], Array], y: npt.ArrayLike) -> Any:
    """The same for a function that gives no errors."""
    return pointwise(operation, lambda p: Estimate(f(p), 0.0), y).value


@single_threaded
class WithError:
    """The methods of a law, each returning an Estimate: the value and its standard error."""

    def __init__(self, law: Any) -> None:
        self._law = law

    def _at(self, operation: str, f: Callable[[Any, Array], Estimate], y: npt.ArrayLike) -> Estimate:
        """A function of points, with the error of sampling and of quadrature."""
        law = self._law

        def with_doubt(p: Array) -> Estimate:
            value, error = f(law, p)
            return Estimate(value, combined(error, law.doubt(lambda other: f(other, p).value)))

        value, error = pointwise(operation, with_doubt, y)
        return Estimate(value, error, law.sources)

    def _number(self, f: Callable[[Any], Estimate]) -> Estimate:
        """A number, with the error of sampling and of quadrature."""
        value, error = f(self._law)
        return self._with_sources(Estimate(value, combined(float(error), self._law.doubt(lambda law: f(law).value))))

    def _with_sources(self, number: Estimate) -> Estimate:
        return Estimate(float(number.value), float(number.error), self._law.sources)

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The density."""
        return self._at("pdf", lambda law, p: law._pdf(p), y)

    def cdf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y ≤ y)."""
        return self._at("cdf", lambda law, p: law._cdf(p), y)

    def sf(self, y: npt.ArrayLike) -> Estimate:
        """P(Y > y)."""
        return self._at("sf", lambda law, p: Estimate(law._sf(p), law._cdf(p).error), y)

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
        """The logarithm of the density; where that is no double, an infinite error if only draws are known."""
        return self._at("logpdf", lambda law, p: Estimate(law._logpdf(p), law._log_error(p)), y)

    def cf(self, t: npt.ArrayLike) -> Estimate:
        """The characteristic function, within a circle of this error in the plane."""
        law, at = self._law, points(t, "t", "cf")
        if (np.abs(at) > MAX_POINT).any():
            raise LawError("cf", "t", t, f"finite, and at most {MAX_POINT:g} in size")
        if not at.size:
            return Estimate(np.zeros(at.shape, dtype=np.complex128), np.zeros(at.shape))
        value, error = law._cf(at.ravel())
        error = combined(error, law.doubt(lambda other: other._cf(at.ravel()).value))
        error = np.broadcast_to(error, value.shape).reshape(at.shape)
        return Estimate(value.reshape(at.shape)[()], error[()], law.sources)

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
        return self._with_sources(self._law._kurtosis())

    def skewness(self) -> Estimate:
        """E[(Y − EY)³]/Var(Y)^(3/2)."""
        return self._with_sources(self._law._skewness())

    def expect(self, func: Callable[[Any], Any]) -> Estimate:
        """E[func(Y)]."""
        return self._number(lambda law: expectation(law, func))

    def entropy(self) -> Estimate:
        """−E[log f(Y)]."""
        return self._number(entropy)


@single_threaded
class JointWithError:
    """The numbers of a joint law, each as an Estimate."""

    def __init__(self, law: Any) -> None:
        self._law = law

    def _with_doubt(self, estimate: Estimate, doubt: Any) -> Estimate:
        return Estimate(estimate.value, combined(estimate.error, doubt), self._law.sources)

    def mean(self) -> Estimate:
        """E[Y]."""
        law = self._law
        mean = law._replicas.average(law.component_mean)
        if not law.component_mean.any():
            return self._with_doubt(mean, 0.0)
        std, size = law.std(), np.abs(mean.value)
        return self._with_doubt(mean, law.origin.quadrature_error * np.where(std > CONSTANT * size, std, size))

    def cov(self) -> Estimate:
        """The covariance matrix."""
        law = self._law
        cov = law._replicas.average(law._second())
        std = np.sqrt(np.maximum(np.diag(cov.value), 0.0))
        return self._with_doubt(cov, law.origin.quadrature_error * np.outer(std, std))

    def var(self) -> Estimate:
        """The variance of each entry."""
        value, error = self.cov()
        return Estimate(np.diag(value).copy(), np.diag(error).copy(), self._law.sources)

    def corr(self) -> Estimate:
        """The correlation matrix; NaN for an entry without variance."""
        law = self._law
        second = law._second()
        std = spread(law._replicas.mean(second))
        unit = second / np.outer(std, std)
        rho = law._replicas.mean(unit)
        own = np.diagonal(unit, axis1=1, axis2=2)
        influence = unit - 0.5 * rho * (own[:, :, None] + own[:, None, :])  # delta method
        error = np.asarray(law._replicas.average(influence).error)
        np.fill_diagonal(error, 0.0)
        np.fill_diagonal(rho, std / std)
        return self._with_doubt(Estimate(rho, error), law.origin.quadrature_error * (1 - rho**2))

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The joint density at points (…, entries)."""
        law = self._law
        at = law._at("pdf", y)
        flat = at.reshape(-1, law.dim)
        value, error = law._normals.pdf_with_error(flat)
        doubt = np.max([np.abs(other.pdf(flat) - value) for other in self._off()] or [0.0], axis=0)
        total = np.broadcast_to(combined(error, doubt, law._normals.unseen(flat)), value.shape)
        shape = at.shape[:-1]
        return Estimate(value.reshape(shape)[()], total.reshape(shape)[()], law.sources)

    def cdf(self, y: npt.ArrayLike, lower: npt.ArrayLike | None = None) -> Estimate:
        """The probability of a rectangle: lower < Y ≤ y in every entry."""
        upper, low = self._corner("y", y), self._corner("lower", -math.inf if lower is None else lower)
        if not (low <= upper).all():
            raise LawError("cdf", "lower", lower, f"at most y={shown(y)}, in every entry")
        probability = self._law._normals.rectangle(low, upper)
        changes = [abs(other.rectangle(low, upper).value - probability.value) for other in self._off()]
        return self._with_doubt(probability, max(changes, default=0.0))

    def _off(self) -> list[GaussianMixtureND]:
        """The law with covariances off by the error of Gaussian expectations, either way; none if exact."""
        law, error = self._law, self._law.origin.quadrature_error
        signs = (1, -1) if error > 1e-14 else ()
        return [
            GaussianMixtureND(law.component_mean, law.component_cov * (1 + sign * error), law.weight) for sign in signs
        ]

    def _corner(self, name: str, value: npt.ArrayLike) -> Array:
        """A corner of a rectangle: a number for each entry, or one for all."""
        corner = points(value, name, "cdf")
        if corner.shape not in ((), (1,), (self._law.dim,)):
            raise LawError("cdf", f"{name} of shape {corner.shape} must be a number, or ({self._law.dim},)")
        return np.broadcast_to(corner, (self._law.dim,))


def spread(cov: Array) -> Array:
    """Standard deviations; NaN for an entry without variance, which has no correlations."""
    std = np.sqrt(np.diag(cov))
    return np.where(std > 0, std, np.nan)
