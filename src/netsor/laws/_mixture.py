"""Mixtures of Gaussians: laws that are Gaussian given the replica (Rao–Blackwell),
equation (4) of docs/theory.md.

A replica without variance is a point. Points that repeat are atoms: they have a
probability, and the density is that of the rest. The others are draws of a quantity
that is known by draws alone, such as a norm, with a kernel estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._array_api import single_threaded
from ._estimate import (
    Array,
    Estimate,
    Replicated,
    batches,
    combined,
    proportion_error,
    student,
)
from ._gaussian_mixture import UNDERFLOW, GaussianMixture1D, normal_moment
from ._law import Law
from ._law_base import (
    CONSTANT,
    MAX_MAGNITUDE,
    LawError,
    Provenance,
    checked_draws,
    real,
)
from ._mixture_components import Components, Points
from ._numerics import edge_bias, edges, kernel_bias


class _Moments(NamedTuple):
    """Mean, variance and raw moments of each component, (components,) each."""

    mean: Array
    var: Array
    second: Array
    third: Array
    fourth: Array


@single_threaded
class Mixture(Components, Law):
    """The mixture of N(mean_r, var_r) over replicas r, of equal weight unless weights
    are given.

    `Program.law` returns it for one output: given the rest of the network, a coordinate
    is Gaussian. `replicas` is the number of replicas (1 if nothing random is left), and
    `effective` the effective sample size of the weights, 1/Σ w².

    Parameters
    ----------
    mean, var : array_like
        The mean and the variance of each component, or one for all; a component of
        variance 0 is a point.
    origin : Provenance
        How the law was computed, and its status.
    weight : array_like, optional
        The weight of each component.
    count : array_like, optional
        The number of replicas that each component represents, instead of weights.
    binning : float
        With `count`, the error of the density due to binning, relative to its largest
        value.

    Examples
    --------
    >>> law = ns.paper.layer().law(n=64, draws=2000)
    >>> type(law).__name__, law.replicas
    ('Mixture', 2000)
    >>> print(f"{law.var():.3f}")
    0.400
    """

    def smoothed(self, factor: float = 1.0) -> Mixture:
        """The law with a Gaussian kernel of `factor` bandwidths around each draw; the
        law itself if it has no draws.
        """
        draws = self._points.draws
        if not len(draws):
            return self
        var = self.component_var.copy()
        var[draws] = (factor * self.bandwidth) ** 2
        law = Mixture(self.component_mean, var, self.origin, self.weight)
        law._kernels = draws
        return law

    @property
    def atoms(self) -> tuple[tuple[float, Estimate], ...]:
        """The points with positive probability, each with that probability."""
        atoms = []
        points = self._points
        for point, mass in zip(points.atoms, points.masses, strict=True):
            error = float(proportion_error(mass, self.effective))
            probability = Estimate(float(mass), error, self.sources)
            atoms.append((float(point), probability))
        return tuple(atoms)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the law."""
        notes = [*super().notes]
        if len(self._points.draws):
            notes.append(
                "known by draws: its density is a kernel estimate of bandwidth"
                f" {self.bandwidth:.3g}"
            )
        if self.count is not None:
            notes.append(
                f"{self.replicas:,} replicas gathered in {len(self.count):,} Gaussians,"
                f" which moves the density by {self.binning:.0e} of its largest value"
            )
        for point, mass in self.atoms[:3]:
            notes.append(f"P(Y = {point:g}) = {mass}; the density describes the rest")
        return tuple(notes)

    # Densities and distribution functions

    @property
    def _has_density(self) -> bool:
        """Whether not all components are atoms."""
        return bool(len(self._smooth) or len(self._points.draws))

    def _with_density(self, operation: str) -> Mixture:
        """The law with kernels around draws; an error for a law of atoms only."""
        if not self._has_density:
            atoms = [f"{point:g}" for point in self._points.atoms]
            law = "made of point masses at" if len(atoms) > 1 else "the point mass at"
            if len(atoms) > 3:
                atoms = [*atoms[:3], "…"]
            raise LawError(
                operation,
                f"this law is {law} {', '.join(atoms)}, which has no density;"
                " law.atoms gives their masses",
            )
        return self.smoothed()

    def _error(
        self,
        value: Array,
        y: Array,
        kernel: str,
        points: Array | float = 0.0,
        sign: int = 1,
    ) -> Array:
        """The standard error of v(y) = Σ_r w_r k_r(y), which is `value`, at points y.

        The sum is over the components r, with weights w_r of sum 1. They are random
        draws, so the variance of v is estimated by

            Σ w² (k − v)² = Σ w² k² − 2 v Σ w² k + v² Σ w².

        k_r is the density ("pdf") or the distribution function ("cdf") of a Gaussian
        component. The other components are points, and k_r is 1 for those that the sum
        counts, a share `points` of all weight, and 0 for the rest. What components that
        the draws did not show may add (`unseen`) is part of the error.

        With the sign −1, all this is for −Y: `value` and `points` count what is above
        y. All arrays are (len(y),).
        """
        if self.replicas == 1:
            return np.zeros_like(value)
        gaussians = self._compressed
        gaussians = gaussians._replace(mean=sign * gaussians.mean)
        signed_y = sign * y
        n = self.effective  # Σ w² = 1/n over all components

        # Σ w² k² and Σ w² k over the Gaussians. For a counted point k = k² = 1; with
        # weights of points that are taken as equal, both sums grow by points/n, and
        # the variance by (1 − 2 v) points/n.
        root_weight = self._root_weight(gaussians)
        squared = gaussians._replace(weight=root_weight)
        sum_of_k_squared, sum_of_k = squared.squares(signed_y, kernel)
        of_gaussians = sum_of_k_squared - 2 * value * sum_of_k
        of_points = points * (1 - 2 * value) / n
        variance = of_gaussians + value**2 / n + of_points

        spread = self._standard_error(np.maximum(variance, 0.0))
        unseen = gaussians.unseen(signed_y, kernel, n)
        error = np.asarray(combined(spread, unseen))
        far = value < UNDERFLOW  # squares may underflow to 0
        if far.any():
            relative, _ = self._relative_spread(gaussians, signed_y[far], kernel)
            error[far] = np.hypot(value[far] * relative, unseen[far])
        return error

    def _root_weight(self, gaussians: GaussianMixture1D) -> Array:
        """Weights of components whose squares are the sums of those of replicas."""
        # w_i² of each replica is w_i/N if all weights are equal, also where one
        # component stands for several replicas
        equal_weights = self.weight is None or self.count is not None
        if equal_weights:
            return np.sqrt(gaussians.weight / self.replicas)
        return gaussians.weight

    def _relative_spread(
        self, gaussians: GaussianMixture1D, y: Array, kernel: str
    ) -> tuple[Array, Array]:
        """The standard error and the unseen part of Σ_r w_r k_r, relative to it."""
        root = self._root_weight(gaussians)
        variance, unseen = gaussians.relative(y, kernel, root, self.effective)
        return self._standard_error(variance), unseen

    def _standard_error(self, variance: Array) -> Array:
        """The standard error of sums Σ_r w_r k_r from Σ_r w_r² (k_r − mean)²."""
        # n − 1 degrees of freedom; weights may leave an effective n of hardly 1
        n = self.effective
        unbiased = variance * n / max(n - 1, 0.5)
        return np.asarray(student(max(2, int(n))) * np.sqrt(unbiased))

    def _pdf(self, y: Array) -> Estimate:
        """The density at y (points,), or that of the rest if there are atoms."""
        if len(self._points.draws):
            return self._kernel_pdf(y)
        value = self._density(y)
        error = self._error(value, y, "pdf")
        if self.binning:
            locations, _ = self._scales()
            highest = float(self._compressed.pdf(locations).max())
            error = combined(error, self.binning * highest)
        return Estimate(value, error)

    def _kernel_pdf(self, y: Array) -> Estimate:
        """The density at y (points,) with kernels around the draws."""

        def density_with(factor: float, y: Array = y) -> Array:
            """The density with kernels of this factor times the bandwidth."""
            return self.smoothed(factor)._compressed.pdf(y)

        value, error = self.smoothed()._pdf(y)
        bias = kernel_bias(
            value,
            density=density_with,
            bandwidth=self.bandwidth,
            draws=self.effective,
        )
        for edge, inside in self._edges:
            beside = edge_bias(y, value, partial(density_with, 1.0), edge, inside)
            bias = np.maximum(bias, beside)
        return Estimate(value, combined(error, bias))

    @cached_property
    def _edges(self) -> list[tuple[float, int]]:
        """The edges that the draws show, and on which side of each they are."""
        if len(self._smooth):  # Gaussians have no edge
            return []
        draws = self._points.draws
        return edges(
            self.component_mean[draws],
            weight=self.component_weight[draws],
            bandwidth=self.bandwidth,
            count=self.effective,
        )

    def _density(self, y: Array) -> Array:
        """The density at y, (points,)."""
        return self._with_density("pdf")._compressed.pdf(y)

    def _logpdf(self, y: Array) -> Array:
        """log f(y), accurate at any distance, for y (points,)."""
        law = self._with_density("logpdf")
        is_compressed = len(law._compressed.var) != len(law._smooth)
        if not is_compressed:
            return law._gaussians.logpdf(y)
        # fewer components suffice where the density is not small
        value = law._compressed.pdf(y)
        near = value > 1e-6 / law.std()
        result = np.log(np.where(near, value, 1.0))
        result[~near] = law._gaussians.logpdf(y[~near])
        return result

    def _log_error(self, y: Array) -> Array:
        """The error of the logarithm of the density, (points,)."""
        if self.replicas == 1:
            return np.zeros(len(y))
        law = self._with_density("logpdf")
        error = super()._log_error(y)
        far = law._density(y) < UNDERFLOW
        if far.any():
            error[far] = combined(*law._relative_spread(law._compressed, y[far], "pdf"))
        return error

    def _log_tail(self, y: Array, sign: int) -> Array:
        """log P(Y > y), or log P(Y < y) if the sign is −1, of the Gaussians."""
        signed = self._gaussians._replace(mean=sign * self._gaussians.mean)
        return signed.logsf(sign * y)

    def _distribution(self, y: Array) -> Array:
        """P(Y ≤ y), (points,)."""
        return np.minimum(self._compressed.cdf(y) + self._steps(y, "right").mean, 1.0)

    def _cdf(self, y: Array) -> Estimate:
        """P(Y ≤ y), for y (points,)."""
        value = self._distribution(y)
        if not len(self._smooth):  # a law of points
            return Estimate(value, proportion_error(value, self.effective))
        points_below, points_above = self._masses_of_points(y)
        error = np.empty_like(value)
        # from the smaller tail: in the other the squares are near 1, and their
        # differences are rounding errors
        low = value <= 0.5
        error[low] = self._error(
            value[low], y=y[low], kernel="cdf", points=points_below[low]
        )
        high = ~low
        above = self._sf(y)[high]
        error[high] = self._error(
            above, y=y[high], kernel="cdf", points=points_above[high], sign=-1
        )
        return Estimate(value, combined(error, self.binning))

    def _sf(self, y: Array) -> Array:
        """P(Y > y), (points,), accurate where it is small."""
        _, points_above = self._masses_of_points(y)
        return np.asarray(self._compressed.sf(y) + points_above)

    def _masses_of_points(self, y: Array) -> tuple[Array, Array]:
        """The masses of atoms and draws up to y, and above y: (len(y),) each."""
        steps = self._steps(np.append(y, np.inf), "right").mean
        below = steps[:-1]
        return below, steps[-1] - below

    def _ppf(self, q: Array, upper: bool) -> Array:
        """Quantiles; for a law of points, the first one up to which the mass is q."""
        if len(self._smooth):
            return super()._ppf(q, upper)
        order = np.argsort(self.component_mean)
        points = self.component_mean[order]
        level = 1 - q if upper else q
        mass = np.cumsum(self.component_weight[order])
        # 1e-14 allows for rounding of the sum
        mass_of_level = level * (1 - 1e-14) * mass[-1]
        position = np.searchsorted(mass, mass_of_level, side="left")
        last = len(points) - 1
        result = points[np.minimum(position, last)]
        if self.replicas > 1:
            result = np.where(level == 0, -np.inf, result)
            result = np.where(level == 1, np.inf, result)
        return np.asarray(result)

    # For distances

    _dense = smoothed

    def _densities(self, y: Array) -> Replicated:
        """The density of the Gaussians by blocks: rows (blocks, len(y))."""
        gaussians, mass = self._blocked
        return Replicated(gaussians.pdf(y).T, mass)

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        """P(Y ≤ y), or P(Y < y) for side "left", by blocks: rows (blocks, len(y))."""
        gaussians, _ = self._blocked
        rows, mass = self._steps(y, side)
        return Replicated(rows + gaussians.cdf(y).T, mass)

    def _read(self, y: Array) -> tuple[Array, Array, Array]:
        """P(Y ≤ y), P(Y > y) and the density of the Gaussians without the points, as a
        law of mass 1.
        """
        gaussians, mass_of_block = self._blocked
        weight = gaussians.weight @ mass_of_block
        without_points = gaussians._replace(weight=weight / weight.sum())
        below = without_points.cdf(y)
        small_above = without_points.sf(y)
        above = np.where(below < 0.5, 1 - below, small_above)
        return below, above, without_points.pdf(y)

    def _moved(self, error: float, origin: Provenance) -> Sequence[tuple[Law, Law]]:
        """Pairs of laws moved by a relative error up and down: first in all variances,
        then in all means.
        """
        weight = None if self.count is not None else self.weight

        def moved(shift: Array | float, share: float) -> Mixture:
            """The law with means moved by `shift`, and variances changed by a share of
            themselves.
            """
            mean = self.component_mean + shift
            var = self.component_var * max(1 + share, 0.0)
            return Mixture(mean, var, origin, weight, count=self.count)

        pairs: list[tuple[Law, Law]] = []
        if len(self._smooth):
            pairs.append((moved(0.0, error), moved(0.0, -error)))
        if not self.centred:
            # the unit of an error is the standard deviation of the component; for a
            # point it is that of the law, or its mean if the law is constant
            unit = abs(self.mean())
            if self.std() > CONSTANT * unit:
                unit = self.std()
            is_random = self.component_var > 0
            shift = error * np.where(is_random, np.sqrt(self.component_var), unit)
            pairs.append((moved(shift, 0.0), moved(-shift, 0.0)))
        return pairs

    def _moment(self, order: int) -> Estimate:
        """E[Y^order]."""
        mean = self.component_mean
        var = self.component_var
        total = np.zeros_like(mean)
        with np.errstate(over="ignore"):
            # E(μ + σZ)^p = Σ_k C(p, k) μ^(p−k) σ^k (k − 1)!!
            for k in range(0, order + 1, 2):
                if k == order or mean.any():
                    power = mean ** (order - k) * var ** (k // 2)
                    total = total + math.comb(order, k) * power * normal_moment(k)
        if not np.isfinite(total).all():
            raise OverflowError(
                f"moment: order={order}: E[Y^{order}] is above the largest double; take"
                " a lower order"
            )
        return self._replicas.average(total, decisive=order > 2)

    def _central(self) -> Array:
        """The means of components, less the mean of the law."""
        return self.component_mean - self._replicas.mean(self.component_mean)

    def _var(self) -> Estimate:
        """The mean variance of the components, plus the variance of their means."""
        return self._replicas.average(self.component_var + self._central() ** 2)

    # Values without their errors, which take most of the time: the errors of tails
    # need the largest deviations

    @cached_property
    def _value_of_mean(self) -> float:
        return float(self._replicas.mean(self.component_mean))

    @cached_property
    def _value_of_var(self) -> float:
        return float(self._replicas.mean(self.component_var + self._central() ** 2))

    def mean(self) -> float:
        """E[Y]."""
        return self._value_of_mean

    def var(self) -> float:
        """The variance."""
        return self._value_of_var

    def skewness(self) -> float:
        """E[(Y − EY)³]/Var(Y)^(3/2)."""
        if self.std() == 0:
            return math.nan
        return float(self._replicas.mean(self._standardised().third))

    def kurtosis(self) -> float:
        """The excess kurtosis, E[(Y − EY)⁴]/Var(Y)² − 3."""
        if self.std() == 0:
            return math.nan
        return float(self._replicas.mean(self._standardised().fourth)) - 3

    def _standardised(self) -> _Moments:
        """The moments of the components of the standardised law: Σ w mean = 0 and Σ w
        second = 1.
        """
        mean = self._central() / self.std()
        var = self.component_var / self.var()
        return _Moments(
            mean=mean,
            var=var,
            second=var + mean**2,
            third=3 * mean * var + mean**3,
            fourth=3 * var**2 + 6 * var * mean**2 + mean**4,
        )

    def _shape(self) -> tuple[Estimate, Estimate]:
        """Skewness and excess kurtosis, NaN for a point mass.

        They are m3 and m4 − 3 for the moments of the standardised law.
        """
        if self.std() == 0:
            return Estimate(math.nan, 0.0), Estimate(math.nan, 0.0)
        replicas = self._replicas
        standardised = self._standardised()
        mean = standardised.mean
        var = standardised.var
        second = standardised.second
        third = standardised.third
        fourth = standardised.fourth
        m3 = float(replicas.mean(third))
        m4 = float(replicas.mean(fourth))

        # The error of sampling, by the delta method: a replica moves m3 and m4 through
        # its own moments, and through the mean and the variance that standardise Y.
        influence3 = third - 3 * mean - 1.5 * m3 * second
        influence4 = fourth - 2 * m4 * second - 4 * m3 * mean
        sampling3 = replicas.spread(influence3)
        sampling4 = replicas.spread(influence4)

        # The error of a tail beyond the replicas: it increases E[Y²] too.
        tail2 = float(replicas.unseen(second, decisive=True))
        tail3 = float(replicas.unseen(third, decisive=True))
        tail4 = float(replicas.unseen(fourth, decisive=True))

        def change_by_tail(moment: float, tail: float, power: float) -> float:
            """The change of E[Y^p]/E[Y²]^power, `moment`, by the tail of E[Y^p]."""
            if not math.isfinite(tail):
                return math.inf
            with_tail = (moment + tail) / (1 + tail2) ** power
            return float(with_tail - moment)

        unseen3 = change_by_tail(abs(m3), tail3, power=1.5)
        unseen4 = change_by_tail(m4, tail4, power=2)

        # The error of quadrature: relative changes of the variance of each component
        # move the moments by these multiples.
        change3 = 3 * mean * var - 1.5 * m3 * var
        change4 = 6 * var**2 + 6 * var * mean**2 - 2 * m4 * var
        relative_error = self.origin.quadrature_error
        doubt3 = relative_error * replicas.mean(np.abs(change3))
        doubt4 = relative_error * replicas.mean(np.abs(change4))

        error3 = combined(sampling3, unseen3, doubt3)
        error4 = combined(sampling4, unseen4, doubt4)
        return Estimate(m3, error3), Estimate(m4 - 3, error4)

    def support(self) -> tuple[float, float]:
        """The ends of the support; for a law that consists of points, the smallest and
        the largest.
        """
        if self.component_var.any():
            return super().support()
        return float(self.component_mean.min()), float(self.component_mean.max())

    def latex(self) -> str:
        """The formula of the program at infinite width, or N(m, v) for a single
        component.
        """
        if self._formula is None and len(self.component_var) == 1:
            return (
                rf"Y \sim \mathcal{{N}}({self.component_mean[0]:.6g},"
                rf" {self.component_var[0]:.6g})"
            )
        return super().latex()

    def _cf(self, t: Array) -> Estimate:
        """E[e^(itY)] = Σ_r w_r e^(itm_r − t²v_r/2), for t (points,).

        Its error is the radius of a circle.
        """
        values = []
        errors = []
        for points in batches(t, len(self.component_var)):
            with np.errstate(over="ignore"):  # e^(−∞) is 0
                phase = np.outer(self.component_mean, points)
                decay = np.outer(self.component_var, points**2) / 2
                terms = np.exp(1j * phase - decay)
            values.append(self._replicas.mean(terms))
            error_of_real = self._replicas.spread(terms.real)
            error_of_imaginary = self._replicas.spread(terms.imag)
            errors.append(combined(error_of_real, error_of_imaginary))
        return Estimate(np.concatenate(values), np.concatenate(errors))

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        """`size` draws: each from the Gaussian of a random replica."""
        chosen = self._replicas.choose(size, rng)
        noise = np.sqrt(self.component_var[chosen]) * rng.standard_normal(size)
        return np.asarray(self.component_mean[chosen] + noise)

    def _arrays(self) -> dict[str, Any]:
        """The law for a file, as arrays by name: arguments of the class."""
        arrays: dict[str, Any] = {
            "mean": self.component_mean,
            "var": self.component_var,
        }
        if self.count is None:
            return {**arrays, "weight": self.weight}
        return {**arrays, "count": self.count, "binning": self.binning}


class Empirical(Mixture):
    """The kernel density estimate of a sample, as in the paper's figures.

    Parameters
    ----------
    draws : array_like
        The sample: two or more numbers that are not all equal.
    bandwidth : float, optional
        The standard deviation of the Gaussian kernels: Scott's, n^(−1/5) σ, unless
        given.

    Examples
    --------
    >>> draws = np.random.default_rng(0).standard_normal(10_000)
    >>> law = ns.Empirical(draws)
    >>> print(f"{law.pdf(0.0):.2f} {law.bandwidth:.2f}")
    0.38 0.16
    >>> law.status
    'estimated'
    """

    # the paper takes logarithms of densities, which need more digits than distances
    lattice = 32

    def __init__(self, draws: npt.ArrayLike, bandwidth: float | None = None) -> None:
        sample = checked_draws(draws)
        if bandwidth is None:  # Scott's rule
            h = float(sample.std(ddof=1) * sample.size ** (-0.2))
        else:
            h = real(bandwidth, "bandwidth", "Empirical", above=0.0, most=MAX_MAGNITUDE)
        origin = Provenance(
            "estimated", f"Gaussian kernel estimate from {sample.size} draws"
        )
        super().__init__(sample, h**2, origin)
        self.draws = np.sort(sample)
        self.bandwidth = h
        self._kernels = np.arange(sample.size)

    @cached_property
    def _sample(self) -> Mixture:
        """The draws without kernels; their density is the same kernel estimate."""
        sample = Mixture(self.component_mean, 0.0, self.origin)
        # draws even if they repeat or are few
        sample._points = Points(self._kernels, np.zeros(0), np.zeros(0))
        sample.bandwidth = self.bandwidth
        return sample

    def _dense(self, factor: float = 1.0) -> Empirical:
        """The law with `factor` times the bandwidth of its kernels."""
        if factor == 1.0:
            return self
        return Empirical(self.component_mean, factor * self.bandwidth)

    def _pdf(self, y: Array) -> Estimate:
        """The density with its error."""
        return Estimate(self._density(y), self._sample._pdf(y).error)

    def _cdf(self, y: Array) -> Estimate:
        """P(Y ≤ y), with the bias of the kernels as an error."""
        value = self._distribution(y)
        bias = np.abs(self._dense(math.sqrt(2))._distribution(y) - value)
        return Estimate(value, combined(proportion_error(value, self.replicas), bias))

    # Numbers of the kernel estimate; the change that the kernels make counts as an
    # error

    def _moment(self, order: int) -> Estimate:
        """A raw moment of the kernel estimate, with its difference from that of the
        draws as an error.
        """
        return _biased(super()._moment(order), self._sample._moment(order))

    def _var(self) -> Estimate:
        """The variance of the kernel estimate, with its difference from that of the
        draws as an error.
        """
        return _biased(super()._var(), self._sample._var())

    def _shape(self) -> tuple[Estimate, Estimate]:
        """Skewness and excess kurtosis, with the effect of the kernels as errors."""
        skewness, kurtosis = super()._shape()
        skewness_of_sample, kurtosis_of_sample = self._sample._shape()
        return (
            _biased(skewness, skewness_of_sample),
            _biased(kurtosis, kurtosis_of_sample),
        )

    def _cf(self, t: Array) -> Estimate:
        """The characteristic function of the kernel estimate, with its difference from
        that of the draws as an error.
        """
        return _biased(super()._cf(t), self._sample._cf(t))

    def _arrays(self) -> dict[str, Any]:
        """The arrays of a saved law."""
        return {"draws": self.component_mean, "bandwidth": self.bandwidth}

    @classmethod
    def _from_arrays(cls, origin: Provenance, **arrays: Any) -> Empirical:
        """A law from the arrays of `_arrays`."""
        return cls(**arrays)


def _biased(estimate: Estimate, of_sample: Estimate) -> Estimate:
    """A number of the kernel estimate, with its difference from that of the sample as
    an error.
    """
    bias = np.abs(estimate.value - of_sample.value)
    return Estimate(estimate.value, combined(of_sample.error, bias))
