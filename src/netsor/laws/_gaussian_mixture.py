"""Weighted sums of Gaussians, of numbers and of vectors: densities, probabilities,
probabilities of rectangles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from ._estimate import FEWEST, Array, batches, tail_error
from ._law_base import MAX_MAGNITUDE, LawError

# entries of a table (points × components × k) computed at a time: 1 MiB, in cache
VECTOR_ENTRIES_PER_BATCH = 2**17
# the least variance over the median: if it is above this, no density diverges
NARROW = 1e-4
# Hill's estimate from the √n largest of n numbers, above which we assume that they have
# no mean
HEAVIEST = 0.8
# standard deviations between means above which points are compared with each mean
# separately, to keep digits
FAR = 1e6
# eigenvalues of correlations below it, relative to the largest, are 0 up to rounding
SINGULAR = 1e-13
ROOT = float(np.sqrt(2 * np.pi))
# largest value of a kernel below which we compare logarithms: the others may underflow
# to 0
UNDERFLOW = 1e-100
# share of a sum of fewer than ten components in one of them, from which it tells little
# about the others
DOMINANT = 0.75


def normal_moment(k: int) -> float:
    """E[Z^k] of a standard normal Z, for even k: (k − 1)!!."""
    return float(math.prod(range(k - 1, 0, -2)))


def weighted(table: Array, weight: Array) -> Array:
    """Σ_i table[p, i] weight[i] for each point p; its last digits do not depend on the
    other points.
    """
    # in a product of the whole table they would: BLAS adds in another order for one row
    # than for many
    rows = table[:, None, :]
    return np.asarray((rows @ np.asfortranarray(weight))[:, 0])


class GaussianMixture1D(NamedTuple):
    """Σ_i w_i N(m_i, v_i) with v > 0; weights are (n,), or (n, sums) for several sums
    over the same components.
    """

    mean: Array
    var: Array
    weight: Array

    def _tables(
        self, y: Array, kernel: Callable[[Array, Array], Array]
    ) -> Iterator[Array]:
        """kernel((y − m_i)/√v_i, √v_i), (points, components), some points at a time.

        Kernels may work in place.
        """
        std = np.sqrt(self.var)
        for points in batches(y[:, None], len(std)):
            z = points - self.mean
            z /= std
            yield kernel(z, std)

    def _sum(self, y: Array, kernel: Callable[[Array, Array], Array]) -> Array:
        """Σ_i w_i kernel((y − m_i)/√v_i, √v_i), (points,) or (points, sums)."""
        return np.concatenate(
            [weighted(table, self.weight) for table in self._tables(y, kernel)]
        )

    def pdf(self, y: Array) -> Array:
        """The density at y, (points,) or (points, sums)."""
        return self._sum(y, _KERNELS["pdf"])

    def cdf(self, y: Array) -> Array:
        """The distribution function at y, (points,) or (points, sums)."""
        return self._sum(y, _KERNELS["cdf"])

    def sf(self, y: Array) -> Array:
        """1 minus the distribution function, accurate where it is small."""
        return self._sum(y, _upper_probability)

    def squares(self, y: Array, kernel: str) -> tuple[Array, Array]:
        """Σ_i w_i² k_i² and Σ_i w_i² k_i at y (points,), for the error of Σ_i w_i k_i.

        k_i is the density ("pdf") or the distribution function ("cdf") of component i.
        """
        k = _KERNELS[kernel]

        def square(z: Array, std: Array) -> Array:
            """The square of the kernel."""
            return k(z, std) ** 2

        squared_weights = self._replace(weight=self.weight**2)
        return squared_weights._sum(y, square), squared_weights._sum(y, k)

    def relative(
        self, y: Array, kernel: str, root: Array, count: float
    ) -> tuple[Array, Array]:
        """Σ_i u_i² (k_i/S − 1)² and `unseen`/S for S = Σ_i w_i k_i and weights u.

        They are right also where all k_i underflow. Σ_i u_i² must be 1/count.
        """
        total = self.weight.sum()
        share = self._shares()
        variances = []
        tails = []
        with np.errstate(divide="ignore"):  # log 0 is −∞
            log_weight = np.log(self.weight)
        for log_kernels in self._tables(y, _LOG_KERNELS[kernel]):
            log_terms = log_kernels + log_weight
            log_sum = scipy.special.logsumexp(log_terms, axis=1, keepdims=True)
            log_ratio = log_kernels - log_sum  # log(k_i/S)
            deviation = np.exp(log_ratio) - 1
            variances.append(deviation**2 @ root**2)
            tail = tail_of_logs(log_ratio, share, count * total)
            tails.append(total * tail)
        return np.concatenate(variances), np.concatenate(tails)

    def _shares(self) -> Array | None:
        """The weights divided by their sum; None if all are equal."""
        if np.ptp(self.weight) == 0:
            return None
        shares: Array = self.weight / self.weight.sum()
        return shares

    def unseen(self, y: Array, kernel: str, count: float) -> Array:
        """How much the sum Σ_i w_i k_i may lack of components that `count` draws do not
        show: (points,).

        See `tail_error`; the kernel is "pdf" or "cdf". It is infinite where the density
        underflows, unless all components agree on how small it is.
        """
        total = self.weight.sum()
        share = self._shares()
        tail, largest_term = self._tails(y, kernel, share, count=count * total)
        estimate = total * tail

        # one more draw adds at most 1/count times its height: that of the narrowest
        # Gaussian, or for a distribution function 1 (1/2 if all means are 0)
        if kernel == "cdf":
            height = 1.0 if self.mean.any() else 0.5
            return np.asarray(np.minimum(estimate, height / count))

        least_var = self.var.min()
        height = 1 / (ROOT * np.sqrt(least_var))
        most = height / count
        is_unknown = (largest_term == 0) & (estimate > most)
        if least_var < NARROW * np.median(self.var):
            diverges = [self._diverges(point, count) for point in y]
            is_unknown |= np.array(diverges, dtype=bool)
        return np.where(is_unknown, np.inf, np.minimum(estimate, most))

    def _tails(
        self, y: Array, kernel: str, share: Array | None, count: float
    ) -> tuple[Array, Array]:
        """`tail_error` of the kernels of components, and their largest: (points,) each.

        `share` are the weights of sum 1, or None if equal; `count` is the number of
        draws that the components represent.
        """
        batches_of_tails = []
        batches_of_largest = []
        for table in self._tables(y, _KERNELS[kernel]):
            tail = tail_error(table.T, share, count)
            if count < 2 * FEWEST:
                tail = np.where(rests_on_one(table, share), np.inf, tail)
            batches_of_tails.append(tail)
            batches_of_largest.append(table.max(axis=1))
        tails = np.concatenate(batches_of_tails)
        largest = np.concatenate(batches_of_largest)
        underflows = largest < UNDERFLOW
        if underflows.any():
            tables_of_logs = self._tables(y[underflows], _LOG_KERNELS[kernel])
            by_logs = [tail_of_logs(logs, share, count) for logs in tables_of_logs]
            tails[underflows] = np.concatenate(by_logs)
        return tails, largest

    def _diverges(self, y: float, count: float) -> bool:
        """Whether the heights x of components at the point y seem to have no mean.

        That is so if a share x^(−α) of them is above x, and α ≤ 1.
        """
        # the heights are densities at y, up to a factor
        exponent = -((y - self.mean) ** 2) / (2 * self.var)
        log_height = exponent - 0.5 * np.log(self.var)
        falling_order = np.argsort(-log_height)

        # the √n highest of n components: those of 1/√n of the weight
        mass = np.cumsum(self.weight[falling_order])
        mass_of_highest = self.weight.sum() / math.sqrt(count)
        highest = int(np.searchsorted(mass, mass_of_highest))
        if highest == 0:
            return False

        # Hill's estimate of 1/α is the mean of log(x/x_p) beyond x_p
        beyond = falling_order[:highest]
        threshold = log_height[falling_order[highest]]
        mean_log = np.average(log_height[beyond], weights=self.weight[beyond])
        return bool(mean_log > threshold + HEAVIEST)

    def logpdf(self, y: Array) -> Array:
        """The logarithm of the density, accurate at any distance."""
        return self._log_sum(y, _LOG_KERNELS["pdf"])

    def logsf(self, y: Array) -> Array:
        """The logarithm of `sf`, accurate at any distance."""
        return self._log_sum(y, _log_upper_probability)

    def _log_sum(self, y: Array, log_kernel: Callable[[Array, Array], Array]) -> Array:
        """log Σ_i w_i e^(log_kernel((y − m_i)/√v_i, √v_i)), (points,)."""
        logs = []  # scipy's logsumexp takes seven times as long
        with np.errstate(divide="ignore"):  # log 0 is −∞
            log_weight = np.log(self.weight)
            for log_kernels in self._tables(y, log_kernel):
                exponent = log_weight + log_kernels
                largest = exponent.max(axis=1, initial=-np.inf)
                total = np.exp(exponent - largest[:, None]).sum(axis=1)
                logs.append(largest + np.log(total))
        return np.concatenate(logs)


# Kernels of z = (y − m)/√v, (points, components), and of √v, (components,): densities
# and distribution functions of N(m, v) at y, and their logarithms.


def _density(z: Array, std: Array) -> Array:
    """e^(−z²/2)/√(2πv); the result overwrites z."""
    z *= z
    z *= -0.5
    np.exp(z, out=z)  # in place: passes over memory cost as much as the exponential
    z /= ROOT * std
    return z


def _probability(z: Array, _: Array) -> Array:
    """Φ(z); the result overwrites z."""
    return np.asarray(scipy.special.ndtr(z, out=z))


def _upper_probability(z: Array, _: Array) -> Array:
    """1 − Φ(z) = Φ(−z); the result overwrites z."""
    np.negative(z, out=z)
    return np.asarray(scipy.special.ndtr(z, out=z))


def _log_density(z: Array, std: Array) -> Array:
    """The logarithm of `_density`."""
    return np.asarray(-np.log(ROOT * std) - z**2 / 2)


def _log_probability(z: Array, _: Array) -> Array:
    """log Φ(z)."""
    return np.asarray(scipy.special.log_ndtr(z))


def _log_upper_probability(z: Array, _: Array) -> Array:
    """log (1 − Φ(z))."""
    return np.asarray(scipy.special.log_ndtr(-z))


_KERNELS = {"pdf": _density, "cdf": _probability}
_LOG_KERNELS = {"pdf": _log_density, "cdf": _log_probability}


def rests_on_one(sizes: Array, share: Array | None) -> npt.NDArray[np.bool_]:
    """Whether one of a few components makes most of the mean of the sizes.

    sizes: (points, components), with the weights `share` (components,) or equal ones if
    None. The answer is for each point, (points,). A single component does not count.
    """
    if sizes.shape[1] == 1:
        return np.zeros(len(sizes), dtype=bool)
    terms = sizes if share is None else sizes * share
    largest = terms.max(axis=1)
    total = terms.sum(axis=1)
    return np.asarray(largest > DOMINANT * total)


def _second_largest(sizes: Array, share: Array | None, count: float) -> Array:
    """The largest size below those of the largest draw of `count`, for each point.

    sizes: (points, components), and the result has the shape (points,). With equal
    weights it is the second largest size. With weights `share`, the largest draw may
    consist of several components of weights below 1/count.
    """
    last_rank = sizes.shape[1] - 1
    if share is None:
        rank = min(1, last_rank)
        partitioned = -np.partition(-sizes, rank, axis=1)
        return np.asarray(partitioned[:, rank])

    falling_order = np.argsort(-sizes, axis=1)
    falling_sizes = np.take_along_axis(sizes, falling_order, axis=1)
    mass = np.cumsum(share[falling_order], axis=1)
    is_in_largest_draw = mass < (1 - 1e-9) / count  # as in `tail_error`
    ranks = np.minimum(is_in_largest_draw.sum(axis=1) + 1, last_rank)
    points = np.arange(len(sizes))
    return np.asarray(falling_sizes[points, ranks])


def tail_of_logs(logs: Array, share: Array | None, count: float) -> Array:
    """`tail_error` of e^logs (points, components) for each point, (points,).

    It is right also where e^logs underflows, and infinite where nothing shows it.
    """
    if share is not None:  # components without weight show nothing
        has_weight = share > 0
        logs = logs[:, has_weight]
        share = share[has_weight]

    # scale the numbers of each point so that the largest is 1
    largest = logs.max(axis=1)
    all_are_zero = np.isneginf(largest)  # at infinity
    largest = np.where(all_are_zero, 0.0, largest)
    scaled = np.exp(logs - largest[:, None])
    with np.errstate(divide="ignore", over="ignore"):  # log 0 is −∞
        log_scaled_tail = np.log(tail_error(scaled.T, share, count))
        tail = np.exp(log_scaled_tail + largest)

    # a tail shows in the draws below the largest: it does not if they underflow even
    # beside the largest
    is_unknown = _second_largest(scaled, share, count) == 0
    if count < 2 * FEWEST:
        is_unknown |= rests_on_one(scaled, share)
    tail = np.where(is_unknown, np.inf, tail)
    return np.where(all_are_zero, 0.0, tail)


class GaussianVectors:
    """Σ_r w_r N(m_r, C_r) of vectors with k entries.

    mean: (components, k), cov: (components, k, k), weight: (components,). A component
    whose C_r is singular has no density, and counts as 0.

    The density of component r is e^(height_r − |z|²/2) with z = (y − m_r)^T W_r, where
    `whiten` holds the matrices W_r with W_r^T C_r W_r = 1, as an array (k, k,
    components).
    """

    def __init__(self, mean: Array, cov: Array, weight: Array) -> None:
        """Compute the whitening matrices and the heights of all components."""
        # cov = D R D with the standard deviations D and the correlations R, and
        # R = Q Λ Q^T
        self.mean = mean
        var = np.diagonal(cov, axis1=1, axis2=2)
        std = np.sqrt(np.maximum(var, 0.0))
        unit = np.where(std > 0, std, 1.0)
        products_of_stds = unit[:, :, None] * unit[:, None, :]
        correlations = cov / products_of_stds
        eigenvalues, vectors = np.linalg.eigh(correlations)  # in increasing order

        smallest = eigenvalues[:, 0]
        largest = eigenvalues[:, -1]
        has_constant_entry = (std == 0).any(axis=1)
        has_dependent_entries = smallest <= SINGULAR * largest
        singular = np.asarray(has_dependent_entries | has_constant_entry)
        # singular components get numbers without meaning, so that no operation fails
        std = np.where(singular[:, None], 1.0, std)
        eigenvalues = np.where(singular[:, None], 1.0, eigenvalues)

        # the whitening matrix is D^(−1) Q Λ^(−1/2)
        root_eigenvalues = np.sqrt(eigenvalues)
        whiten = vectors / root_eigenvalues[:, None, :] / std[:, :, None]
        whiten = np.where(singular[:, None, None], 0.0, whiten)
        self.whiten = np.ascontiguousarray(whiten.transpose(1, 2, 0))

        # log of weight/√|2π cov|, where |2π cov| = |2π Λ| |D|²
        with np.errstate(divide="ignore"):  # log 0 is −∞
            log_weight = np.log(np.where(singular, 0.0, weight))
        log_eigenvalues = np.log(2 * np.pi * eigenvalues).sum(axis=1)
        log_stds = np.log(std).sum(axis=1)
        self.height = log_weight - 0.5 * log_eigenvalues - log_stds
        self.singular = singular

    def log_terms(self, y: Array) -> Iterator[Array]:
        """The logarithm of w_r times the density of component r, (points, components).

        It comes for some points at a time; y: (all points, k).
        """
        if self.singular.all():
            raise LawError(
                "density",
                "every replica has a singular covariance: take a marginal, or entries"
                " one by one",
            )
        # in the einsums, p are points, r components, i entries and j whitened entries
        centre = self.mean.mean(axis=0)
        shift = np.einsum("ri,ijr->jr", self.mean - centre, self.whiten)
        means_are_near = np.abs(shift).max() < FAR
        for points in batches(y, shift.size, VECTOR_ENTRIES_PER_BATCH):
            # points at infinity, and NaN
            with np.errstate(invalid="ignore", over="ignore"):
                if means_are_near:  # one matrix product for all points and components
                    whiten = self.whiten.reshape(len(centre), -1)
                    whitened = (points - centre) @ whiten
                    z = whitened.reshape(-1, *shift.shape)
                    z -= shift
                else:
                    deviations = points[:, None] - self.mean
                    z = np.einsum("pri,ijr->pjr", deviations, self.whiten)
                squared_length = np.einsum("pjr,pjr->pr", z, z)
                terms = self.height - 0.5 * squared_length

            is_far = (np.abs(points) > MAX_MAGNITUDE).any(axis=1)
            is_nan = np.isnan(points).any(axis=1)
            terms[is_far & ~is_nan] = -np.inf
            yield terms


# a variance given other entries over that without: below it, only rounding is left
ROUNDED_VARIANCE = 1e-13
UNIFORM_ENDS = 1e-300, 1 - 1e-16  # whose normal quantiles are finite


def _normal_cdf(bound: Array, mean: Array, std: Array) -> Array:
    """P(N(mean, std²) ≤ bound), (values, components); a step where std is 0.

    bound and std: (components,), mean: (values, components).
    """
    is_random = std > 0
    scale = np.where(is_random, std, 1.0)
    probability = scipy.special.ndtr((bound - mean) / scale)
    return np.where(is_random, probability, bound >= mean)


def rectangles(cov: Array, lower: Array, upper: Array, u: Array) -> Array:
    """Unbiased values of P(lower < N(0, cov_r) ≤ upper) for components r.

    cov: (components, k, k), lower and upper: (components, k). There is a value for each
    of the uniforms u (values, components, k − 1), and the result has the shape (values,
    components).
    """
    # Genz's sequential conditioning: entry j given the earlier ones is normal, and is
    # drawn between its bounds. It is mean_j + std_j z_j with mean_j = Σ_{i < j} L_ji
    # z_i, where L is the Cholesky factor of the covariance.
    factor, stds = _cholesky_factors(cov)
    entries = cov.shape[1]
    values_and_components = u.shape[:2]
    z = np.zeros((*values_and_components, entries))
    probability = np.ones(values_and_components)
    for j in range(entries):
        # m are values, r components
        mean = np.einsum("ri,mri->mr", factor[:, j, :j], z[..., :j])
        std = stds[:, j]
        below_lower = _normal_cdf(lower[:, j], mean, std)
        below_upper = _normal_cdf(upper[:, j], mean, std)
        between = below_upper - below_lower
        probability *= between
        if j < entries - 1:
            uniform = below_lower + u[..., j] * between
            uniform = np.clip(uniform, *UNIFORM_ENDS)
            z[..., j] = scipy.special.ndtri(uniform)
    return probability


def _cholesky_factors(cov: Array) -> tuple[Array, Array]:
    """The lower triangular L with L L^T = cov_r, (components, k, k), and the standard
    deviations of the entries given the earlier ones, (components, k).

    A direction without variance has a column of zeros, and the deviation 0.
    """
    conditional_cov = cov.copy()  # given the entries before j
    factor = np.zeros_like(cov)
    stds = np.zeros(cov.shape[:2])
    for j in range(cov.shape[1]):
        var = conditional_cov[:, j, j]
        is_random = var > ROUNDED_VARIANCE * cov[:, j, j]
        safe_std = np.sqrt(np.where(is_random, var, 1.0))
        stds[:, j] = np.where(is_random, safe_std, 0.0)

        # column j of L from the diagonal down; above, it is 0
        column = conditional_cov[:, j:, j] / safe_std[:, None]
        factor[:, j:, j] = np.where(is_random[:, None], column, 0.0)
        l_j = factor[:, :, j]
        conditional_cov -= l_j[:, :, None] * l_j[:, None, :]
    return factor, stds
