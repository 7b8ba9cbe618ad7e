"""Joint laws: mixtures of Gaussian vectors over replicas, for several outputs at
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import scipy

from .._array_api import single_threaded
from .._sobol import Sobol
from .._validate import SCALE, as_whole, shown
from . import _law_base as base
from ._estimate import Array, Estimate, Replicas, combined, proportion_error
from ._gaussian_mixture import GaussianVectors, rectangles, tail_of_logs
from ._law_base import CONSTANT, MAX_MAGNITUDE, LawBase, LawError, Provenance
from ._likelihood import conditioned
from ._mixture import Mixture
from ._plot import card, plot_joint

# distance of a probability from 0 or 1 below which its spread over replicas is rounding
SURE = 1e-12
# quasi-random points for the probability of a rectangle, over all replicas
RECTANGLE = 2**14
# largest size of a negative variance that is a rounding error, over the largest of the
# covariances
VARIANCE_RTOL = 1e-9
# what a law of one output has, and a joint law has not
OF_ONE_OUTPUT = (
    "atoms",
    "cf",
    "entropy",
    "expect",
    "interval",
    "isf",
    "kurtosis",
    "logcdf",
    "logsf",
    "median",
    "moment",
    "ppf",
    "sf",
    "skewness",
    "stats",
    "support",
)


@single_threaded
class Joint(LawBase):
    """The mixture of N(mean_r, cov_r) over replicas r: the joint law of one coordinate
    of each output vector.

    It contains the entries of all outputs (tokens, heads, scalars), flattened in
    numpy's order. `law[i]` is the law of one entry, `law.combination(w)` the law of Σ_i
    w_i Y_i, and `law.condition({i: y})` the law given data. `with_error` gives mean,
    var, cov, corr, pdf and cdf with standard errors. `dim` is the number of entries,
    `replicas` the number of replicas (1 if nothing random is left), and `effective` the
    effective sample size of their weights, 1/Σ w². `Program.law` returns it.

    Parameters
    ----------
    mean, cov : array_like
        (replicas, entries) and (replicas, entries, entries).
    origin : Provenance
        How the law was computed, and its status.
    weight : array_like, optional
        The weight of each replica; equal if None.
    log_evidence : Estimate, optional
        The logarithm of the density of the data that the law was conditioned on.
    mean_error : array_like, optional
        The errors of the means of the entries, in addition to those of sampling and of
        `origin`; 0 if None.

    Examples
    --------
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(ns.Width("n"), 3), heads=1))
    >>> law = net.law(n=ns.inf, draws=1000)
    >>> len(law), round(law[0].var(), 2)
    (3, 0.49)
    >>> print(np.round(law.corr(), 2))
    [[1.   0.68 0.69]
     [0.68 1.   0.69]
     [0.69 0.69 1.  ]]
    >>> difference = law.combination([1, -1, 0])
    >>> print(f"{difference.var():.2f} {law.cdf([0.0, 0.0, 0.0]):.1f}")
    0.31 0.3
    >>> law.pdf(np.zeros((5, 3))).shape, law.marginal([2, 0]).dim
    ((5,), 2)
    >>> given = law.condition({0: 1.5}, noise=0.1)
    >>> print(f"{given.mean()[0]:.1f} {given.log_evidence.value:.1f}")
    1.5 -2.9
    """

    def __init__(
        self,
        mean: npt.ArrayLike,
        cov: npt.ArrayLike,
        origin: Provenance,
        weight: npt.ArrayLike | None = None,
        log_evidence: Estimate | None = None,
        mean_error: npt.ArrayLike | None = None,
    ) -> None:
        """`log_evidence` is that of the data on which the law was conditioned, and
        `mean_error` (entries,) the error of the mean that is no error of sampling.
        """
        self.component_mean = base.numbers(mean, "Joint", "mean")  # (replicas, entries)
        # (replicas, entries, entries)
        self.component_cov = base.numbers(cov, "Joint", "cov")
        self._check_components()
        self.weight = base.checked_weights(weight, len(self.component_mean), "Joint")
        self.origin = base.checked_origin(origin, "Joint")
        self.log_evidence = log_evidence
        self.replicas, self.dim = map(int, self.component_mean.shape)
        self.mean_error = np.zeros(self.dim)
        if mean_error is not None:
            self.mean_error = base.numbers(mean_error, "Joint", "mean_error")
            if self.mean_error.shape != (self.dim,) or (self.mean_error < 0).any():
                raise LawError(
                    "Joint", "mean_error", mean_error, f"{self.dim} numbers, 0 or more"
                )
        self._replicas = Replicas(self.replicas, self.weight)
        self.effective = float(self._replicas.count)

    def _check_components(self) -> None:
        """Reject means and covariances whose shapes do not fit, that are too large for
        doubles, or with a negative variance.
        """
        shape = (*self.component_mean.shape, *self.component_mean.shape[-1:])
        if len(shape) != 3 or self.component_cov.shape != shape:
            shapes = f"{self.component_mean.shape} and {self.component_cov.shape}"
            raise LawError(
                "Joint",
                f"mean and cov of shape {shapes} must be (replicas, k) and (replicas,"
                " k, k)",
            )
        largest_mean = _largest_size(self.component_mean)
        largest_cov = _largest_size(self.component_cov)
        if largest_mean > MAX_MAGNITUDE or largest_cov > MAX_MAGNITUDE**2:
            raise LawError(
                "Joint",
                f"mean must be below {MAX_MAGNITUDE:g} in size, cov below"
                f" {MAX_MAGNITUDE**2:g}",
            )
        smallest = np.diagonal(self.component_cov, axis1=1, axis2=2).min()
        # conditioning may leave a 0 with a rounding error
        if smallest < -VARIANCE_RTOL * largest_cov:
            raise LawError(
                "Joint",
                "cov has a variance below 0; covariances must be positive semidefinite",
            )

    if not TYPE_CHECKING:  # so that mypy still finds names that do not exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error for a name that is not here, which says what to write."""
            if name not in OF_ONE_OUTPUT:
                raise AttributeError(f"a Joint has no {name!r}")
            raise AttributeError(
                f"a joint law of {self.dim} outputs has no {name!r}: use that of one"
                f" output, law[0].{name}"
            )

    def __len__(self) -> int:
        return len(self.component_mean.T)

    def __getitem__(self, entry: int) -> Mixture:
        """The law of one entry."""
        k = as_whole(entry)
        if k is None:
            raise TypeError(
                f"entry {shown(entry)} of a joint law must be an integer; several:"
                " law.marginal([…])"
            )
        if not -self.dim <= k < self.dim:
            raise IndexError(
                f"entry {shown(entry)} of a joint law of {self.dim} entries (all"
                " outputs, flattened)"
            )
        var = np.maximum(self.component_cov[:, k, k], 0.0)
        return self._mixture(self.component_mean[:, k], var, self.mean_error[k])

    def _mixture(self, mean: Array, var: Array, mean_error: float) -> Mixture:
        """The law of one entry or combination, from its means and variances
        (replicas,).

        The quadrature error of its origin includes the error of its mean.
        """
        law = Mixture(mean, var, self.origin, self.weight)
        # the unit of errors: the standard deviation, or the mean of a constant
        unit = abs(law.mean())
        if law.std() > CONSTANT * unit:
            unit = law.std()
        if mean_error == 0 or unit == 0:
            return law
        error = combined(self.origin.quadrature_error, mean_error / unit)
        origin = replace(self.origin, quadrature_error=error)
        return Mixture(mean, var, origin, self.weight)

    def __repr__(self) -> str:
        return f"<Joint over {self.dim} entries: {'; '.join(self._labels)}>"

    _repr_html_ = card

    @property
    def _labels(self) -> list[str]:
        """Method, status and cost; and the evidence if it was conditioned on data."""
        if self.log_evidence is None:
            return super()._labels
        evidence = (
            f"given data, log evidence {self.log_evidence}, effective sample size"
            f" {self.effective:.0f}"
        )
        return [*super()._labels, evidence]

    def marginal(self, entries: npt.ArrayLike) -> Joint:
        """The joint law of some of the entries."""
        numbers = np.atleast_1d(base.points(entries, "entries", "marginal"))
        is_whole = numbers == np.round(numbers)
        is_in_range = (numbers >= -self.dim) & (numbers < self.dim)
        is_list = numbers.ndim == 1 and numbers.size > 0
        if not is_list or not (is_whole & is_in_range).all():
            raise LawError(
                "marginal", "entries", entries, f"integers from 0 to {self.dim - 1}"
            )
        chosen = numbers.astype(np.intp)
        return Joint(
            mean=self.component_mean[:, chosen],
            cov=self.component_cov[:, chosen[:, None], chosen],
            origin=self.origin,
            weight=self.weight,
            log_evidence=self.log_evidence,
            mean_error=self.mean_error[chosen],
        )

    def combination(self, weights: npt.ArrayLike) -> Any:
        """The law of a linear combination of the entries, or the joint law of several
        (one for each row of weights).
        """
        w = base.numbers(weights, "combination", "weights")
        if w.ndim not in (1, 2) or w.shape[-1] != self.dim:
            raise LawError(
                "combination",
                f"weights of shape {w.shape} must be ({self.dim},), or (m, {self.dim})",
            )
        if np.abs(w).max() > SCALE:
            raise LawError(
                "combination", "weights", weights, f"at most {SCALE:g} in size"
            )
        mean_error = np.abs(w) @ self.mean_error
        if w.ndim == 2:
            return Joint(
                mean=self.component_mean @ w.T,
                cov=w @ self.component_cov @ w.T,
                origin=self.origin,
                weight=self.weight,
                log_evidence=self.log_evidence,
                mean_error=mean_error,
            )
        # w^T C_r w of each replica r
        var = np.einsum("rj,j->r", self.component_cov @ w, w)
        return self._mixture(
            mean=self.component_mean @ w,
            var=np.maximum(var, 0.0),
            mean_error=float(mean_error),
        )

    def condition(
        self, observed: Mapping[int, float], noise: npt.ArrayLike = 0.0
    ) -> Joint:
        """The law of all entries given that some were observed.

        Each replica is conditioned, and weighted by the density of the data under it.
        If only a few replicas have weight, netsor warns you; use `Program.posterior` in
        that case.

        Parameters
        ----------
        observed : mapping of int to float
            The observed values by entry.
        noise : float or array_like
            The standard deviation of the noise of all observations, or of each.

        Returns
        -------
        law : Joint
            The law of all entries, including the observed ones. `log_evidence` is the
            log density of the data with its error, and `effective` the number of
            replicas that still count.
        """
        return Joint(**conditioned(self, observed, noise)._asdict())

    def gaussian(self) -> Joint:
        """The Gaussian with this law's mean and covariance."""
        value, error = self.with_error.cov()
        variances = np.diag(value)
        # the errors of a law are relative to the standard deviations
        unit = np.sqrt(np.outer(variances, variances))
        is_known = (unit > 0) & np.isfinite(error)
        relative_error = np.divide(error, unit, out=np.zeros_like(unit), where=is_known)
        origin = Provenance(
            status=self.status,
            method=f"the Gaussian with mean and covariance of: {self.method}",
            quadrature_error=float(relative_error.max()),
        )
        return Joint(self.mean()[None], value[None], origin)

    @property
    def with_error(self) -> JointWithError:
        """mean, var, std, cov, corr, pdf, logpdf and cdf, each an `Estimate`."""
        return JointWithError(self)

    def mean(self) -> Array:
        """E[Y], (entries,)."""
        return self._replicas.mean(self.component_mean)

    def cov(self) -> Array:
        """The covariance matrix, (entries, entries)."""
        return self._replicas.mean(self._central_moments())

    def _central_moments(self) -> Array:
        """E[(Y − E[Y])(Y − E[Y])^T | replica], (replicas, entries, entries), whose mean
        is the covariance.
        """
        off = self.component_mean - self.mean()
        return np.asarray(self.component_cov + off[:, :, None] * off[:, None, :])

    def var(self) -> Array:
        """The variance of each entry, (entries,)."""
        return np.maximum(np.diag(self.cov()), 0.0)

    def std(self) -> Array:
        """The standard deviation of each entry, (entries,)."""
        return np.sqrt(self.var())

    def corr(self) -> Array:
        """The correlation matrix, (entries, entries).

        Rows and columns of entries without variance are NaN.
        """
        return np.asarray(self.with_error.corr().value)

    # Densities and probabilities

    @cached_property
    def _gaussians(self) -> GaussianVectors:
        """The components with a density, whitened."""
        return GaussianVectors(
            self.component_mean, self.component_cov, self._replicas.weights
        )

    @property
    def singular(self) -> Estimate:
        """The probability that the covariance is singular, so that no joint density
        exists.

        Rounding causes it: one token can take a whole attention row, and the weights of
        the others underflow.
        """
        singular = self._gaussians.singular
        if singular.all() or not singular.any():
            return Estimate(float(singular.all()), 0.0, self.sources)
        share = float(singular @ self._replicas.weights)
        error = float(proportion_error(share, self.effective))
        return Estimate(share, error, self.sources)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the law."""
        if not 0 < self.singular.value < 1:
            return super().notes
        note = (
            f"P(Y has no joint density) = {self.singular}: a singular covariance; the"
            " density describes the rest"
        )
        return (*super().notes, note)

    def _points(
        self, operation: str, y: npt.ArrayLike
    ) -> tuple[Array, tuple[int, ...]]:
        """Points y (…, entries) as an array (points, entries), and the shape (…)."""
        points = base.points(y, "y", operation)
        if points.ndim == 0 or points.shape[-1] != self.dim:
            raise LawError(
                operation,
                f"y of shape {points.shape} must have {self.dim} entries along the last"
                " axis",
            )
        return points.reshape(-1, self.dim), points.shape[:-1]

    def logpdf(self, y: npt.ArrayLike) -> Any:
        """The logarithm of the joint density at points (…, entries), of shape (…)."""
        points, shape = self._points("logpdf", y)
        logs = []
        for terms in self._gaussians.log_terms(points):
            logs.append(scipy.special.logsumexp(terms, axis=1))
        return np.concatenate(logs).reshape(shape)[()]

    def pdf(self, y: npt.ArrayLike) -> Any:
        """The joint density at points (…, entries), of shape (…).

        If some replicas are `singular`, it is that of the rest.
        """
        points, shape = self._points("pdf", y)
        densities = []
        for terms in self._gaussians.log_terms(points):
            densities.append(np.exp(terms).sum(axis=1))
        return np.concatenate(densities).reshape(shape)[()]

    def _pdf_with_error(self, y: Array, unseen: bool = True) -> Estimate:
        """The density at points y (points, entries) with its standard error; with
        `unseen`, the error includes what other replicas may add.
        """
        replicas = self._replicas
        weight = replicas.weights
        has_weight = weight > 0
        with np.errstate(divide="ignore"):  # of replicas without weight
            log_weight = np.log(weight)
        has_density = has_weight & ~self._gaussians.singular
        heights = np.exp(self._gaussians.height - log_weight)
        # what one more draw adds at most, if it is no narrower than these
        largest_term = float(heights[has_density].max(initial=0.0)) / replicas.count
        values = []
        errors = []
        for terms in self._gaussians.log_terms(y):
            # the density of each replica: (points, replicas)
            densities = np.divide(
                np.exp(terms), weight, out=np.zeros_like(terms), where=has_weight
            )
            values.append(replicas.mean(densities.T))
            error = replicas.spread(densities.T)
            if unseen and self.replicas > 1:
                with np.errstate(invalid="ignore"):  # −∞ + ∞
                    logs = np.where(has_weight, terms - log_weight, -np.inf)
                tail = tail_of_logs(logs, self.weight, replicas.count)
                underflows = densities.max(axis=1) == 0
                is_unknown = underflows & (tail > largest_term)
                tail = np.where(is_unknown, np.inf, np.minimum(tail, largest_term))
                error = combined(error, tail)
            errors.append(error)
        return Estimate(np.concatenate(values), np.concatenate(errors))

    def cdf(self, y: npt.ArrayLike, lower: npt.ArrayLike | None = None) -> float:
        """The probability of a rectangle: lower < Y ≤ y in every entry.

        Parameters
        ----------
        y : array_like
            The upper corner: a number for each entry, or one for all.
        lower : array_like, optional
            The lower corner; −∞ if None.
        """
        return float(self.with_error.cdf(y, lower).value)

    @property
    def _varies(self) -> bool:
        """Whether the replicas differ."""
        means_differ = np.ptp(self.component_mean, axis=0).any()
        return bool(means_differ or np.ptp(self.component_cov, axis=0).any())

    def _rectangle(self, lower: Array, upper: Array) -> Estimate:
        """P(lower < Y ≤ upper) for corners (entries,).

        It is the mean over replicas of a mean over a few quasi-random points.
        """
        replicas = self._replicas
        count, entries = self.component_mean.shape
        points = 1  # for each replica; the probability of one entry needs no more
        if entries > 1:
            points = max(1, RECTANGLE // count)
        sobol = Sobol(max(entries - 1, 1), np.random.default_rng(2020))
        values = rectangles(  # (points, replicas)
            cov=self.component_cov,
            lower=lower - self.component_mean,
            upper=upper - self.component_mean,
            u=sobol.random(points * count).reshape(points, count, -1),
        )
        of_replica = values.mean(axis=0)
        value = float(replicas.mean(of_replica))
        error = float(replicas.spread(of_replica))
        is_whole_space = (np.isneginf(lower) & np.isposinf(upper)).all()
        if self.replicas > 1 and not is_whole_space:
            unseen = 1 / replicas.count  # what one more draw adds at most
            # If all replicas agree on 0 or 1 although they differ, their spread is
            # rounding and shows no tail.
            spread_is_rounding = min(value, 1 - value) < SURE and self._varies
            if not spread_is_rounding:
                tail = float(replicas.unseen(of_replica))
                unseen = min(tail, unseen)
            error = combined(error, unseen)
        if points > 1:
            of_point = values @ replicas.weights
            error_of_points = float(Replicas(points).spread(of_point))
            error = combined(error, error_of_points)
        return Estimate(value, error)

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        """Draws (size, entries), each from the Gaussian of a random replica."""
        replica_of_draw = self._replicas.choose(size, rng)
        mean = self.component_mean[replica_of_draw]
        cov = self.component_cov[replica_of_draw]
        variances, axes = np.linalg.eigh(cov)
        std = np.sqrt(np.maximum(variances, 0.0))
        along_axes = std * rng.standard_normal(std.shape)
        deviations = (axes @ along_axes[..., None])[..., 0]
        return np.asarray(mean + deviations)

    def plot(self, ax: Any = None, entries: tuple[int, int] = (0, 1)) -> Any:
        """Contours of the joint density of two entries.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes; pyplot's current ones if None.
        entries : tuple of int
            The two entries.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The axes with the picture.
        """
        return plot_joint(self, ax, entries)

    def _arrays(self) -> dict[str, Any]:
        """The law for a file, as arrays by name: the inverse of `_from_arrays`."""
        evidence = None if self.log_evidence is None else tuple(self.log_evidence)
        mean_error = self.mean_error if self.mean_error.any() else None
        return {
            "mean": self.component_mean,
            "cov": self.component_cov,
            "weight": self.weight,
            "evidence": evidence,
            "mean_error": mean_error,
        }

    @classmethod
    def _from_arrays(
        cls, origin: Provenance, evidence: Array | None = None, **arrays: Any
    ) -> Joint:
        """The law that `_arrays` wrote; `evidence` is a value and its error."""
        if evidence is None:
            return cls(**arrays, origin=origin)
        log_evidence = Estimate(float(evidence[0]), float(evidence[1]))
        if log_evidence.error < 0:
            raise LawError(
                "Joint",
                f"log_evidence has an error of {log_evidence.error:g}; it must be 0 or"
                " more",
            )
        return cls(**arrays, origin=origin, log_evidence=log_evidence)


def _largest_size(a: Array) -> float:
    """max |a|, without a copy of the array as np.abs would make."""
    return float(max(a.max(), -a.min()))


@single_threaded
class JointWithError:
    """Methods of a joint law; each returns an Estimate, a value with its standard
    error.
    """

    def __init__(self, law: Joint) -> None:
        self._law = law

    def mean(self) -> Estimate:
        """E[Y], (entries,)."""
        law = self._law
        value, error = law._replicas.average(law.component_mean)
        return Estimate(value, combined(error, self._mean_doubt()), law.sources)

    def _mean_doubt(self) -> Array:
        """The error of each mean that is no error of sampling, (entries,)."""
        law = self._law
        if not law.component_mean.any():  # means that are 0 have no quadrature error
            return law.mean_error
        std = law.std()
        size = np.abs(law.mean())
        unit = np.where(std > CONSTANT * size, std, size)
        quadrature_error = law.origin.quadrature_error * unit
        return np.asarray(combined(quadrature_error, law.mean_error))

    def cov(self) -> Estimate:
        """The covariance matrix, (entries, entries)."""
        law = self._law
        value, error = law._replicas.average(law._central_moments())
        std = np.sqrt(np.maximum(np.diag(value), 0.0))
        doubt = law.origin.quadrature_error * np.outer(std, std)
        return Estimate(value, combined(error, doubt), law.sources)

    def var(self) -> Estimate:
        """The variance of each entry, (entries,)."""
        cov, cov_error = self.cov()
        variance = np.maximum(np.diag(cov), 0.0)
        error = np.diag(cov_error).copy()
        return Estimate(variance, error, self._law.sources)

    def std(self) -> Estimate:
        """The standard deviation of each entry, (entries,)."""
        variance, error = self.var()
        value = np.sqrt(variance)
        zeros = np.zeros_like(value)
        half = np.divide(error, 2 * value, out=zeros, where=value > 0)
        return Estimate(value, half, self._law.sources)

    def corr(self) -> Estimate:
        """The correlation matrix, (entries, entries); NaN without variance."""
        law = self._law
        moments = law._central_moments()  # (replicas, entries, entries)
        variance = np.maximum(np.diag(law._replicas.mean(moments)), 0.0)
        std = np.sqrt(variance)
        is_constant = ~(std > CONSTANT * np.abs(law.mean()))
        std = np.where(is_constant, np.nan, std)
        unit_moments = moments / np.outer(std, std)
        rho = law._replicas.mean(unit_moments)
        # delta method: ρ_ij = C_ij/√(C_ii C_jj) moves by δC_ij − ρ_ij (δC_ii + δC_jj)/2
        variances = np.diagonal(unit_moments, axis1=1, axis2=2)
        sum_of_variances = variances[:, :, None] + variances[:, None, :]
        influence = unit_moments - 0.5 * rho * sum_of_variances
        error = np.asarray(law._replicas.average(influence).error)
        np.fill_diagonal(error, 0.0)
        np.fill_diagonal(rho, std / std)  # 1, or NaN without variance
        doubt = law.origin.quadrature_error * (1 - rho**2)
        return Estimate(rho, combined(error, doubt), law.sources)

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The joint density at points (…, entries), of shape (…)."""
        points, shape = self._law._points("pdf", y)
        value, error = self._law._pdf_with_error(points)
        doubt = self._doubt(value, lambda law: law.pdf(points))
        total_error = np.asarray(combined(error, doubt))
        return Estimate(
            value=value.reshape(shape)[()],
            error=total_error.reshape(shape)[()],
            sources=self._law.sources,
        )

    def logpdf(self, y: npt.ArrayLike) -> Estimate:
        """The logarithm of the joint density at points (…, entries), of shape (…).

        Its error is the relative error of the density.
        """
        points, shape = self._law._points("logpdf", y)
        value = np.asarray(self._law.logpdf(points))
        density, error = self._law._pdf_with_error(points)
        unknown = np.where(error > 0, np.inf, 0.0)
        relative = np.divide(error, density, out=unknown, where=density > 0)
        doubt = self._doubt(value, lambda law: law.logpdf(points))
        total_error = np.asarray(combined(relative, doubt))
        return Estimate(
            value=value.reshape(shape)[()],
            error=total_error.reshape(shape)[()],
            sources=self._law.sources,
        )

    def cdf(self, y: npt.ArrayLike, lower: npt.ArrayLike | None = None) -> Estimate:
        """P(lower < Y ≤ y) for corners of a number for each entry, or one for all."""
        upper = self._corner("y", y)
        low = self._corner("lower", -math.inf if lower is None else lower)
        if np.isnan(upper).any():
            raise LawError("cdf", "y", y, "numbers without NaN")
        if not (low <= upper).all():
            raise LawError(
                "cdf", "lower", lower, f"at most y={shown(y)}, in every entry"
            )
        value, error = self._law._rectangle(low, upper)
        doubt = self._doubt(value, lambda law: law._rectangle(low, upper).value)
        return Estimate(value, combined(error, doubt), self._law.sources)

    def _doubt(self, value: Any, read: Callable[[Joint], Any]) -> Any:
        """The change of a number when the law moves by errors other than of sampling.

        `read` computes the number, or an array of them, from a law; `value` is that of
        this law. It is the larger change of each pair of `_moved`, and the changes of
        different pairs are independent.
        """
        changes = []
        for law, opposite in self._moved():
            change = np.abs(read(law) - value)
            opposite_change = np.abs(read(opposite) - value)
            changes.append(np.maximum(change, opposite_change))
        return combined(*changes)

    def _moved(self) -> Iterator[tuple[Joint, Joint]]:
        """Pairs of laws that differ from this one by ±ε, for each quantity with an
        error ε: first all covariances, then the mean of each entry.
        """
        law = self._law

        def moved(shift: Array | float, share: float) -> Joint:
            """The law with means moved by `shift`, and covariances changed by a share
            of themselves.
            """
            mean = law.component_mean + shift
            cov = law.component_cov * max(1 + share, 0.0)
            return Joint(mean, cov, law.origin, law.weight)

        error = law.origin.quadrature_error
        if error > base.NO_QUADRATURE_ERROR:
            yield moved(0.0, error), moved(0.0, -error)
        doubts = self._mean_doubt()
        rounding = base.NO_QUADRATURE_ERROR * np.maximum(law.std(), np.abs(law.mean()))
        for entry in np.flatnonzero(doubts > rounding):
            shift = np.zeros(law.dim)
            shift[entry] = doubts[entry]
            yield moved(shift, 0.0), moved(-shift, 0.0)

    def _corner(self, name: str, value: npt.ArrayLike) -> Array:
        """A corner of a rectangle: a number for each entry, or one for all."""
        corner = base.points(value, name, "cdf")
        if corner.shape not in ((), (1,), (self._law.dim,)):
            raise LawError(
                "cdf",
                f"{name} of shape {corner.shape} must be a number, or"
                f" ({self._law.dim},)",
            )
        return np.broadcast_to(corner, (self._law.dim,))
