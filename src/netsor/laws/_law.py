"""Laws of one variable, with the methods of scipy.stats and with standard errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partialmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._array_api import one_blas_thread, single_threaded
from .._validate import as_number, flag
from . import _law_base as base
from ._estimate import Array, Estimate, Replicated, Sources, combined
from ._law_base import KINDS, LawBase, LawError, Provenance
from ._numerics import entropy, expectation, pointwise, quantiles, values
from ._plot import card, plot_law

# below it a density has lost digits, and its logarithm is computed by itself
MIN_DENSITY = 1e-290


class Distribution(ABC):
    """What distances and plots read of a law: density, distribution function, scales.

    `Law` has all of it; the frozen distributions of scipy.stats get it from `ScipyLaw`.
    The points y are finite and have the shape (k,). The defaults suit an exact
    distribution with a smooth density.
    """

    @property
    @abstractmethod
    def method(self) -> str:
        """How the distribution was computed, in words."""

    @property
    @abstractmethod
    def sources(self) -> Sources:
        """The sources of its errors: those with a common source are correlated."""

    @abstractmethod
    def mean(self) -> float:
        """E[Y]."""

    @abstractmethod
    def std(self) -> float:
        """The standard deviation."""

    @abstractmethod
    def interval(self, confidence: float) -> tuple[float, float]:
        """The central interval with this probability."""

    @abstractmethod
    def _pdf(self, y: Array) -> Estimate:
        """The density."""

    @abstractmethod
    def _distribution(self, y: Array) -> Array:
        """P(Y ≤ y)."""

    @abstractmethod
    def _sf(self, y: Array) -> Array:
        """P(Y > y), accurate where it is small."""

    @abstractmethod
    def _logpdf(self, y: Array) -> Array:
        """The logarithm of the density, also where the density underflows."""

    def _log_doubt(self, y: Array) -> Array:
        """How wrong log f(y) may be where blocks of replicas do not show it, else 0."""
        return np.zeros(len(y))

    @abstractmethod
    def _scales(self) -> tuple[Array, Array]:
        """Locations and scales of the features of the density, for quadrature."""

    @property
    def atoms(self) -> tuple[tuple[float, Estimate], ...]:
        """The points with positive probability, each with that probability."""
        return ()

    @property
    def _has_density(self) -> bool:
        """Whether the law is not made of atoms only."""
        return True

    def _density(self, y: Array) -> Array:
        """The density, without its error."""
        return np.asarray(self._pdf(y).value)

    def _density_with_error(self, y: Array) -> Estimate:
        """The density with all its errors, quadrature included."""
        value, error = self._pdf(y)
        doubt = self.doubt(lambda law: law._pdf(y).value)
        return Estimate(value, combined(error, doubt))

    def _dense(self, factor: float = 1.0) -> Distribution:
        """The same with kernels of `factor` bandwidths around its draws, if any."""
        return self

    def _densities(self, y: Array) -> Replicated:
        """The density by blocks."""
        return Replicated(self._density(y)[None], np.ones(1))

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        """The distribution function by blocks: P(Y ≤ y), or P(Y < y) on the left."""
        return Replicated(self._distribution(y)[None], np.ones(1))

    def _jumps(self) -> Array:
        """Where the distribution function jumps."""
        return np.zeros(0)

    def _read(self, y: Array) -> tuple[Array, Array, Array]:
        """P(Y ≤ y), P(Y > y) and the density, of the part without jumps."""
        return self._distribution(y), self._sf(y), self._density(y)

    def doubt(self, read: Callable[[Any], Any]) -> Any:
        """How much a number changes when the law moves by its quadrature error."""
        return combined()


@single_threaded
class Law(LawBase, Distribution):
    """A law of one variable, with the methods of scipy.stats.

    Every number has an error: `law.with_error` provides all methods that return
    numbers, and each returns an `Estimate`, a value with its standard error (`interval`
    and `stats` return several). Points may be numbers or arrays. `status` says what is
    proved, and `method` how the law was computed. Programs return laws; you do not call
    this class yourself.

    The public methods check arguments and return plain numbers. A subclass supplies the
    private methods marked abstract, which get checked points as an array and return
    estimates. These contain the sampling error. `doubt` adds the quadrature error: it
    computes every number again for slightly different laws.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> print(f"{law.pdf(0.5):.6f} {law.cdf(0.5):.6f} {law.ppf(0.99):.6f}")
    0.462403 0.790300 1.472684
    >>> law.status, law.random_numbers, law.support()
    ('proved', 0, (-inf, inf))
    >>> near = law.gaussian()  # same mean and variance; the law has heavier tails
    >>> print(f"{near.var():.6f} {law.pdf(3.0) / near.pdf(3.0):.1f}")
    0.391971 4.4
    >>> print(f"{law.expect(abs):.4f} {law.entropy():.4f}", law.rvs(3, seed=0).shape)
    0.4972 0.9504 (3,)
    >>> value, error = ns.paper.layer().law(n=64, draws=1000).with_error.var()
    >>> print(f"{value:.2f} ± {error:.2f}")
    0.40 ± 0.01
    """

    # What a subclass supplies, beside the abstract methods of `Distribution`. The
    # points y and t are finite and have the shape (k,).

    @abstractmethod
    def _cdf(self, y: Array) -> Estimate:
        """The distribution function P(Y ≤ y)."""

    @abstractmethod
    def _log_tail(self, y: Array, sign: int) -> Array:
        """log P(Y > y) where P underflows; for −Y and −y if the sign is −1."""

    @abstractmethod
    def _cf(self, t: Array) -> Estimate:
        """The characteristic function."""

    @abstractmethod
    def _moment(self, order: int) -> Estimate:
        """E[Y^order]."""

    @abstractmethod
    def _var(self) -> Estimate:
        """The variance."""

    @abstractmethod
    def _shape(self) -> tuple[Estimate, Estimate]:
        """Skewness and excess kurtosis, with all their errors, quadrature included."""

    @abstractmethod
    def _moved(self, error: float, origin: Provenance) -> Sequence[tuple[Law, Law]]:
        """The laws of `_perturbed` for this relative quadrature error."""

    # Defaults that a subclass may improve

    def _distribution(self, y: Array) -> Array:
        """P(Y ≤ y), (points,)."""
        return np.asarray(self._cdf(y).value)

    def _log_side(self, y: Array, sign: int) -> Array:
        """log P(Y > y), or log P(Y ≤ y) if the sign is −1, accurate in both tails."""
        probability = self._sf(y)
        complement = self._distribution(y)
        if sign == -1:
            probability, complement = complement, probability
        with np.errstate(divide="ignore"):
            log_of_small = np.log(np.maximum(probability, 0.0))
            log_of_large = np.log1p(-np.minimum(complement, 1.0))
        logs = np.where(probability < 0.5, log_of_small, log_of_large)
        underflows = np.isneginf(logs)
        if underflows.any():
            logs[underflows] = self._log_tail(y[underflows], sign)
        return logs

    def _log_side_error(self, y: Array, sign: int) -> Array:
        """The error of `_log_side`, which is the relative error of the probability."""
        logs = self._log_side(y, sign)
        probability = np.exp(np.minimum(logs, 0.0))
        error = np.broadcast_to(self._cdf(y).error, y.shape)
        unknown = np.where(error > 0, np.inf, 0.0)
        known = probability > 0
        relative = np.divide(error, probability, out=unknown, where=known)
        # far out P is f times a length, so that both logarithms have one error; the
        # error of P may underflow too
        underflows = probability < MIN_DENSITY
        far = (underflows | (relative >= 1)) & np.isfinite(logs)
        if far.any():
            of_density = self._log_error(y[far])
            smaller = np.minimum(relative[far], of_density)
            relative[far] = np.where(underflows[far], of_density, smaller)
        return np.asarray(relative)

    def _log_error(self, y: Array) -> Array:
        """The error of log f(y), which is the relative error of the density f."""
        value, error = self._pdf(y)
        unknown = np.full(len(y), np.inf)
        positive = np.asarray(value) > 0
        with np.errstate(over="ignore"):  # beside a density near 0 it is infinite
            relative = np.divide(error, value, out=unknown, where=positive)
        return np.asarray(relative)

    def _log_doubt(self, y: Array) -> Array:
        """How far log f(y) may be off where few replicas or none reach y, (points,)."""
        # where f(y) underflows, or its error is larger: few replicas or none reach
        # there, and all blocks miss the same part of f
        relative = self._log_error(y)
        far = (relative >= 1) | (self._density(y) <= MIN_DENSITY)
        # f may be f (1 + relative error), or at most about 1 if nothing is known
        known = np.log1p(relative)
        unknown = np.abs(self._logpdf(y))
        return np.where(far, np.minimum(known, unknown), 0.0)

    def _ppf(self, q: Array, upper: bool) -> Array:
        """Quantiles, or with `upper` the inverse of P(Y > y)."""
        return quantiles(self, q, upper)

    @cached_property
    def _perturbed(self) -> Sequence[tuple[Law, Law]]:
        """Pairs of laws that differ from this one by ±ε, one pair for each quantity
        with an error ε; none if the error is only rounding.
        """
        error = self.origin.quadrature_error
        if error < base.NO_QUADRATURE_ERROR:
            return ()
        without_error = Provenance(self.status, self.method, seed=self.origin.seed)
        return self._moved(error, without_error)

    def doubt(self, read: Callable[[Any], Any]) -> Any:
        """How much a number changes when the law moves by its quadrature error.

        `read` computes the number, or an array of numbers, from a law. Each pair of
        laws in `_perturbed` contributes its larger change; the pairs are independent.
        """
        if not self._perturbed:
            return combined()
        value = read(self)
        changes = []
        for law, opposite in self._perturbed:
            change = np.abs(read(law) - value)
            opposite_change = np.abs(read(opposite) - value)
            changes.append(np.maximum(change, opposite_change))
        return combined(*changes)

    # The public methods

    @property
    def with_error(self) -> WithError:
        """The same numbers, each an `Estimate`: a value and its error."""
        return WithError(self)

    def pdf(self, y: npt.ArrayLike) -> Any:
        """The density; if the law has atoms, that of the rest."""
        return values("pdf", self._density, y)

    def logpdf(self, y: npt.ArrayLike) -> Any:
        """The logarithm of the density."""
        return values("logpdf", self._logpdf, y)

    def cdf(self, y: npt.ArrayLike) -> Any:
        """P(Y ≤ y)."""
        return values("cdf", self._distribution, y)

    def sf(self, y: npt.ArrayLike) -> Any:
        """P(Y > y)."""
        return values("sf", self._sf, y)

    def logcdf(self, y: npt.ArrayLike) -> Any:
        """log P(Y ≤ y), accurate in both tails."""
        return values("logcdf", lambda p: self._log_side(p, -1), y)

    def logsf(self, y: npt.ArrayLike) -> Any:
        """log P(Y > y), accurate in both tails."""
        return values("logsf", lambda p: self._log_side(p, 1), y)

    def ppf(self, q: npt.ArrayLike) -> Any:
        """The quantile: the smallest y with P(Y ≤ y) ≥ q."""
        return values("ppf", lambda p: self._ppf(p, upper=False), base.levels(q, "ppf"))

    def isf(self, q: npt.ArrayLike) -> Any:
        """The inverse of `sf`: where P(Y > y) is q. Accurate for small q."""
        return values("isf", lambda p: self._ppf(p, upper=True), base.levels(q, "isf"))

    def median(self) -> float:
        """The median."""
        return float(self.ppf(0.5))

    def interval(self, confidence: float) -> tuple[float, float]:
        """The central interval with this probability."""
        beyond = _share_beyond(confidence)
        return float(self.ppf(beyond)), float(self.isf(beyond))

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
        return float(self._moment(base.checked_order(order)).value)

    def kurtosis(self) -> float:
        """The excess kurtosis, E[(Y − EY)⁴]/Var(Y)² − 3."""
        return float(self._shape()[1].value)

    def skewness(self) -> float:
        """E[(Y − EY)³]/Var(Y)^(3/2)."""
        return float(self._shape()[0].value)

    def stats(self, moments: str = "mv") -> Any:
        """Mean, variance, skewness and excess kurtosis, as in scipy.stats.

        `moments` names them by the letters m, v, s and k. The result is a tuple in this
        order, or a float if there is one letter.
        """
        return _named_moments(self, moments)

    def expect(self, func: Callable[[Any], Any]) -> float:
        """E[func(Y)] by quadrature."""
        return float(self.with_error.expect(func).value)

    def entropy(self) -> float:
        """−E[log f(Y)], by quadrature; −∞ for a law with atoms."""
        return float(self.with_error.entropy().value)

    def cf(self, t: npt.ArrayLike) -> Any:
        """The characteristic function E[e^(itY)]."""
        return self.with_error.cf(t).value

    def gaussian(self) -> Any:
        """The Gaussian of equal mean and variance, a `Mixture` of one component."""
        variance, error = self.with_error.var()
        relative_error = 0.0
        if variance > 0 and math.isfinite(error):
            relative_error = error / variance
        origin = Provenance(
            status=self.status,
            method=f"the Gaussian with mean and variance of: {self.method}",
            quadrature_error=relative_error,
        )
        return KINDS["Mixture"](self.mean(), variance, origin)

    def support(self) -> tuple[float, float]:
        """The ends of the support, the outermost atoms if the law has only atoms."""
        return -math.inf, math.inf

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        *,
        gaussian: bool = True,
        log: bool = False,
    ) -> Any:
        """Plot the density with its error as a band.

        A dashed line shows the Gaussian of equal mean and variance.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes; pyplot's current ones if None.
        label : str, optional
            The name in the legend.
        gaussian : bool
            Whether to show the Gaussian.
        log : bool
            Whether to use a logarithmic scale and show more of the tails, where a law
            differs most from a Gaussian.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The axes with the picture.
        """
        return plot_law(
            self, ax, label, gaussian=flag(gaussian, "gaussian"), log=flag(log, "log")
        )

    _repr_html_ = card

    def __repr__(self) -> str:
        numbers = [
            f"variance {self.var():.6g}",
            f"excess kurtosis {self.kurtosis():.4g}",
        ]
        for point, mass in self.atoms[:3]:
            numbers.append(f"P(Y = {point:g}) = {mass.value:.4g}")
        text = "; ".join([", ".join(numbers), *self._labels])
        return f"<{type(self).__name__}: {text}>"


def _share_beyond(confidence: float) -> float:
    """The probability on each side of the central interval with this probability."""
    share = as_number(confidence)
    if share is None or not 0 <= share <= 1:
        raise LawError("interval", "confidence", confidence, "between 0 and 1")
    return (1 - share) / 2


MOMENTS = {"m": "mean", "v": "var", "s": "skewness", "k": "kurtosis"}


def _named_moments(law: Law | WithError, moments: str) -> Any:
    """The moments that these letters name: a tuple, or one number for one letter."""
    is_text = isinstance(moments, str) and bool(moments)
    if not is_text or not set(moments) <= set(MOMENTS):
        raise LawError("stats", "moments", moments, "letters among m, v, s and k")
    numbers = []
    for letter, name in MOMENTS.items():  # in the order of the table, as in scipy
        if letter in moments:
            moment = getattr(law, name)
            numbers.append(moment())
    return tuple(numbers) if len(numbers) > 1 else numbers[0]


ROOT_ATOL = 1e-14  # error of a quantile by root finding, in standard deviations
WIDE = 1.96  # standard errors on each side of an interval that covers 95 %


@single_threaded
class WithError:
    """The methods of a law that return numbers, each returning an `Estimate`."""

    def __init__(self, law: Law) -> None:
        self._law = law

    @one_blas_thread()
    def _of(self, f: Callable[[Any], Estimate]) -> Estimate:
        """f(law), a number or an array, with the errors of sampling and quadrature.

        The estimate f(law) has the error of sampling only. The error of quadrature is
        the change of f(law) between slightly different laws, so f reads the law that it
        gets, and not `self._law`.
        """
        value, sampling = f(self._law)
        doubt = self._law.doubt(lambda law: f(law).value)
        return Estimate(value, combined(sampling, doubt), self._law.sources)

    def _at(
        self, operation: str, f: Callable[[Any, Array], Estimate], y: npt.ArrayLike
    ) -> Estimate:
        """f(law, y) at points y of any shape, with both errors of `_of`.

        `pointwise` sets the values at ±∞ by the name of the operation, and passes on
        the finite points (k,).
        """

        def at_finite_points(finite_points: Array) -> Estimate:
            """The numbers at these points, with their errors."""

            def of_law(law: Any) -> Estimate:
                """The numbers by one law: this one, or one that differs slightly."""
                return f(law, finite_points)

            return self._of(of_law)

        value, error = pointwise(operation, at_finite_points, y)
        return Estimate(value, error, self._law.sources)

    def ppf(self, q: npt.ArrayLike) -> Estimate:
        """The quantile; its error is its change as the level moves by its error.

        The error of the level is that of the distribution function, in log odds.
        """
        return self._quantile(base.levels(q, "ppf"), upper=False)

    def isf(self, q: npt.ArrayLike) -> Estimate:
        """The inverse of `sf`: where P(Y > y) is q; its error is that of `ppf`."""
        return self._quantile(base.levels(q, "isf"), upper=True)

    def median(self) -> Estimate:
        """The median."""
        return self.ppf(0.5)

    def interval(self, confidence: float) -> tuple[Estimate, Estimate]:
        """The ends of the central interval with this probability."""
        beyond = _share_beyond(confidence)
        return self.ppf(beyond), self.isf(beyond)

    def _quantile(self, level: Array, *, upper: bool) -> Estimate:
        """Quantiles, or with `upper` the inverse of P(Y > y), with their errors."""
        law = self._law
        value = np.asarray(law.isf(level) if upper else law.ppf(level))
        probability = self.sf if upper else self.cdf
        atoms = [point for point, _ in law.atoms]
        level_error = np.asarray(probability(value).error)
        if atoms:  # a level may miss an atom on either side
            left_of_value = probability(np.nextafter(value, -np.inf))
            level_error = np.maximum(level_error, left_of_value.error)

        error = self._change_of_quantile(level, level_error, value, upper=upper)
        # at least the error over the density, which steps of draws would hide; an atom
        # has no density
        density = np.zeros_like(level_error)
        if law._has_density:
            density = np.asarray(law.pdf(value))
        with np.errstate(over="ignore"):
            zeros = np.zeros_like(level_error)
            linear = np.divide(level_error, density, out=zeros, where=density > 0)
        is_atom = np.isin(value, atoms)
        error = np.where(is_atom, error, np.maximum(error, linear))
        is_exact = ~np.isfinite(value) | (error < ROOT_ATOL * law.std())
        error = np.where(is_exact, 0.0, error)
        return Estimate(value[()], error[()], law.sources)

    def _change_of_quantile(
        self, level: Array, level_error: Array, value: Array, *, upper: bool
    ) -> Array:
        """The largest change of quantiles `value` as their levels move by their errors.

        Levels move in log odds, by one error and by more: a jump of the quantile may
        lie in between.
        """
        quantile = self._law.isf if upper else self._law.ppf
        inner = np.where((level > 0) & (level < 1), level, 0.5)
        # an overflow means that nothing is known about the log odds of a tiny level
        with np.errstate(over="ignore"):
            step = level_error / (inner * (1 - inner))
        largest = np.zeros_like(level_error)
        for steps in (-WIDE, -1.0, 1.0, WIDE):
            log_odds = scipy.special.logit(inner) + steps * step
            moved = np.asarray(quantile(scipy.special.expit(log_odds)))
            with np.errstate(invalid="ignore"):  # infinity minus infinity
                change = np.abs(moved - value) / abs(steps)
                largest = np.maximum(largest, change)
        return largest

    def cf(self, t: npt.ArrayLike) -> Estimate:
        """The characteristic function; its error is the radius of a circle in the
        plane.
        """
        points = base.points(t, "t", "cf")
        if (np.abs(points) > base.MAX_MAGNITUDE).any():
            raise LawError(
                "cf", "t", t, f"finite, and at most {base.MAX_MAGNITUDE:g} in size"
            )
        value, error = self._of(lambda law: law._cf(points.ravel()))
        return Estimate(
            value=value.reshape(points.shape)[()],
            error=error.reshape(points.shape)[()],
            sources=self._law.sources,
        )

    def moment(self, order: int) -> Estimate:
        """E[Y^order]."""
        k = base.checked_order(order)
        return self._of(lambda law: law._moment(k))

    def std(self) -> Estimate:
        """The standard deviation, with its error from that of the variance."""
        var, var_error = self.var()
        value = var**0.5
        error = var_error / (2 * value) if var else 0.0
        return Estimate(value, error, self._law.sources)

    def skewness(self) -> Estimate:
        """E[(Y − EY)³]/Var(Y)^(3/2)."""
        (value, error), _ = self._law._shape()
        return Estimate(value, error, self._law.sources)

    def kurtosis(self) -> Estimate:
        """The excess kurtosis, E[(Y − EY)⁴]/Var(Y)² − 3."""
        _, (value, error) = self._law._shape()
        return Estimate(value, error, self._law.sources)

    def expect(self, func: Callable[[Any], Any]) -> Estimate:
        """E[func(Y)] by quadrature."""
        return self._of(lambda law: expectation(law, func))

    def stats(self, moments: str = "mv") -> Any:
        """Mean, variance, skewness and excess kurtosis; the parameter is that of
        `Law.stats`.
        """
        return _named_moments(self, moments)

    mean = partialmethod(moment, 1)
    var = partialmethod(_of, lambda law: law._var())
    entropy = partialmethod(_of, entropy)
    pdf = partialmethod(_at, "pdf", lambda law, y: law._pdf(y))
    cdf = partialmethod(_at, "cdf", lambda law, y: law._cdf(y))
    sf = partialmethod(
        _at, "sf", lambda law, y: Estimate(law._sf(y), law._cdf(y).error)
    )
    # where the density underflows, the error of its logarithm is infinite if the law is
    # known by draws alone
    logpdf = partialmethod(
        _at, "logpdf", lambda law, y: Estimate(law._logpdf(y), law._log_error(y))
    )
    logcdf = partialmethod(
        _at,
        "logcdf",
        lambda law, y: Estimate(law._log_side(y, -1), law._log_side_error(y, -1)),
    )
    logsf = partialmethod(
        _at,
        "logsf",
        lambda law, y: Estimate(law._log_side(y, 1), law._log_side_error(y, 1)),
    )
