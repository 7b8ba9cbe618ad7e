"""Gaussian process regression: given a replica, outputs are N(m, V) with V = C C^T, and
data y are N(m, V + τ²I).

Shapes: the mean m is (replicas, entries), the covariance V (replicas, entries,
entries), and C (replicas, entries, columns). In einsums, r are replicas, n observed or
other entries, k columns, i and j any two axes of entries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from .._validate import as_number, as_whole, counted, shown
from ._estimate import Array, Estimate, Replicas, combined
from ._law_base import (
    MAX_MAGNITUDE,
    NO_QUADRATURE_ERROR,
    LawError,
    Provenance,
    numbers,
)

ROOT_2PI = math.sqrt(2 * math.pi)
# rows of a triangular matrix from which substitution, one by one, is faster than
# numpy's solve
SUBSTITUTED = 32
# τ² over the largest variance: below it we factor V + τ²I itself, never by its columns
MIN_NOISE_RATIO = 1e-12
# a variance given data over that before: below it, rounding is all that is left
ROUNDING = 1e-14
# a pivot over the standard deviation: below it, other observations determine this one
MIN_PIVOT_RATIO = 1e-7


class Observations(NamedTuple):
    """Observed entries with values and noise, (observations,) each."""

    entries: npt.NDArray[np.intp]
    values: Array
    noise: Array  # standard deviations τ
    operation: str = "condition"  # the method that got them, for messages


def _checked_observation(
    entry: Any, value: Any, dim: int, operation: str
) -> tuple[int, float]:
    """The position of one observed entry, from 0 to dim − 1, and its value."""
    position = as_whole(entry)
    number = as_number(value)
    if position is None or not -dim <= position < dim:
        raise LawError(
            operation,
            f"observed: entry {shown(entry)} must be an integer from 0 to {dim - 1}",
        )
    if number is None or not abs(number) <= MAX_MAGNITUDE:
        raise LawError(
            operation,
            f"observed[{position}]={shown(value)} must be finite, at most"
            f" {MAX_MAGNITUDE:g}",
        )
    return position % dim, number


def checked_data(
    dim: int, observed: Mapping[int, float], noise: npt.ArrayLike, operation: str
) -> Observations:
    """The user's data {entry: value} of a law of `dim` entries, after checks.

    The noise is a standard deviation, or one for each value. Negative entries count
    from the end.
    """
    if not isinstance(observed, Mapping) or not observed:
        raise LawError(
            operation, "observed", observed, "a non-empty mapping {entry: value}"
        )
    data: dict[int, float] = {}
    for entry, value in observed.items():
        position, number = _checked_observation(entry, value, dim, operation)
        if position in data:
            raise LawError(
                operation, f"observed={shown(observed)} names an entry twice"
            )
        data[position] = number
    tau = numbers(noise, operation, "noise")
    has_right_shape = tau.shape in ((), (len(data),))
    if not has_right_shape or (tau < 0).any() or tau.max() > MAX_MAGNITUDE:
        raise LawError(
            operation,
            "noise",
            noise,
            "a standard deviation, 0 or more, or one for each value",
        )
    return Observations(
        entries=np.array(list(data), dtype=np.intp),
        values=np.array(list(data.values())),
        noise=np.broadcast_to(tau, (len(data),)).copy(),
        operation=operation,
    )


class Update(NamedTuple):
    """Each replica's mean and covariance given data, and the solution that gave
    them.
    """

    mean: Array
    cov: Array
    root: Array  # R, the root of V + τ²I
    z: Array  # R^(−1) (y − m)


def updated(mean: Array, cov: Array, data: Observations) -> Update:
    """Each replica's mean and covariance given data, from m and V.

    With observed entries o and R R^T = V_oo + τ²I, they are m + H^T R⁻¹ (y − m_o) and V
    − H^T H, where H = R⁻¹ V_o. mean: (replicas, entries), cov: (replicas, entries,
    entries).
    """
    entries, values, tau, _ = data
    cov_of_observed = cov[:, entries[:, None], entries]
    cov_with_observed = cov[:, :, entries]
    deviation = values - mean[:, entries]
    root = _root(cov_of_observed, data)
    z = _solved(root, deviation[..., None])[..., 0]
    h = _solved(root, np.swapaxes(cov_with_observed, 1, 2))
    new_mean = mean + np.einsum("rij,ri->rj", h, z)
    new_cov = cov - np.swapaxes(h, 1, 2) @ h

    # without noise they are known exactly, but the formula leaves rounding errors
    is_exact = tau == 0
    exact_entries = entries[is_exact]
    new_mean[:, exact_entries] = values[is_exact]
    # other entries may follow from these: they have a variance of either sign
    var = np.diagonal(new_cov, axis1=1, axis2=2)
    prior_var = np.diagonal(cov, axis1=1, axis2=2)
    is_determined = var <= ROUNDING * prior_var  # (replicas, entries)
    is_determined[:, exact_entries] = True
    in_row_or_column = is_determined[:, :, None] | is_determined[:, None, :]
    new_cov[in_row_or_column] = 0.0
    return Update(mean=new_mean, cov=new_cov, root=root, z=z)


def log_likelihood(mean: Array, columns: Array, data: Observations) -> Array:
    """log N(y; m, C C^T + τ²I) of each replica, (replicas,)."""
    solution = _solution(mean, columns, data)
    if not isinstance(solution, _FewColumns):
        return log_density(solution.root, solution.z)
    # ½ log |2π (C C^T + τ²I)|, see `_FewColumns`
    diagonal = np.diagonal(solution.root, axis1=1, axis2=2)
    log_volume_of_noise = np.log(ROOT_2PI * data.noise).sum()
    log_volume = np.log(diagonal).sum(axis=1) + log_volume_of_noise
    square_of_residual = (solution.residual**2).sum(axis=1)
    square_of_beta = (solution.beta**2).sum(axis=1)
    square = square_of_residual + square_of_beta
    return np.asarray(-0.5 * square - log_volume)


def fitted(mean: Array, columns: Array, data: Observations) -> tuple[Array, Array]:
    """Each replica's mean and variance of all entries given data, (replicas, entries).

    They are those of `updated_by_columns`, without the covariances.
    """
    solution = _solution(mean, columns, data)
    transposed = np.swapaxes(columns, 1, 2)
    if isinstance(solution, _FewColumns):  # m + C β and the diagonal of C B^(−1) C^T
        half = _solved(solution.root, transposed)
        new_mean = mean + np.einsum("rnk,rk->rn", columns, solution.beta)
        return new_mean, np.sum(half**2, axis=1)
    cov_with_observed = columns[:, data.entries] @ transposed
    half = _solved(solution.root, cov_with_observed)
    new_mean = mean + np.einsum("rij,ri->rj", half, solution.z)
    var = np.sum(columns**2, axis=2)
    new_var = var - np.sum(half**2, axis=1)
    return new_mean, np.maximum(new_var, 0.0)


def updated_by_columns(
    mean: Array,
    columns: Array,
    data: Observations,
    rows: slice | npt.NDArray[np.intp] = slice(None),
) -> tuple[Array, Array]:
    """Each replica's mean (replicas, rows) and covariance (replicas, rows, rows) of the
    entries `rows` given data, from m and C.
    """
    solution = _solution(mean, columns, data)
    if not isinstance(solution, _FewColumns):
        update = updated(mean, columns @ np.swapaxes(columns, 1, 2), data)
        return update.mean[:, rows], update.cov[:, rows][:, :, rows]
    # m + C β and C B^(−1) C^T
    c = columns[:, rows]
    half = _solved(solution.root, np.swapaxes(c, 1, 2))
    new_mean = mean[:, rows] + np.einsum("rnk,rk->rn", c, solution.beta)
    return new_mean, np.swapaxes(half, 1, 2) @ half


def log_density(root: Array, z: Array) -> Array:
    """log N(y; m, R R^T) of each replica, from the triangular R and z = R^(−1)
    (y − m).
    """
    diagonal = np.diagonal(root, axis1=1, axis2=2)
    log_volume = np.log(ROOT_2PI * diagonal).sum(axis=1)  # ½ log |2π R R^T|
    half_square = 0.5 * (z**2).sum(axis=1)
    return np.asarray(-half_square - log_volume)


class _ManyColumns(NamedTuple):
    """The observations solved by their covariance C C^T + τ²I = R R^T."""

    root: Array  # R, (replicas, observations, observations)
    z: Array  # R^(−1) (y − m), (replicas, observations)


class _FewColumns(NamedTuple):
    """The observations solved in the space of the columns.

    In units of the noise, y' = (y − m)/τ and C' = C/τ. With B = I + C'^T C' = R R^T and
    β = B^(−1) C'^T y', the quadratic form of the density is |y' − C' β|² + |β|², not a
    difference of large numbers; |C C^T + τ²I| = |B| Π τ².
    """

    root: Array  # R, (replicas, columns, columns)
    beta: Array  # (replicas, columns)
    residual: Array  # y' − C' β, (replicas, observations)


def _solution(
    mean: Array, columns: Array, data: Observations
) -> _ManyColumns | _FewColumns:
    """Solve for the observations, in the space of the columns if these are few and the
    noise is not too small for it.
    """
    entries, values, tau, _ = data
    deviation = values - mean[:, entries]
    observed_columns = columns[:, entries]  # (replicas, observations, columns)
    count, rank = observed_columns.shape[1:]
    variances = np.einsum("rnk,rnk->rn", observed_columns, observed_columns)
    noise_is_tiny = tau.min() ** 2 <= MIN_NOISE_RATIO * variances.max()
    if 2 * rank <= count and not noise_is_tiny:
        return _few_columns(deviation / tau, observed_columns / tau[:, None])
    cov = observed_columns @ np.swapaxes(observed_columns, 1, 2)
    root = _root(cov, data)
    z = _solved(root, deviation[..., None])[..., 0]
    return _ManyColumns(root, z)


def _few_columns(y: Array, c: Array) -> _FewColumns:
    """The solution in the space of the columns, in the symbols of `_FewColumns`.

    y (replicas, observations) and c (replicas, observations, columns) are in units of
    the noise.
    """
    rank = c.shape[2]
    b = np.swapaxes(c, 1, 2) @ c + np.eye(rank)
    root = np.asarray(np.linalg.cholesky(b))
    c_y = np.einsum("rnk,rn->rk", c, y)
    half = _solved(root, c_y[..., None])

    # R^T with rows and columns in reverse order is lower triangular
    reversed_root = root[:, ::-1, ::-1].swapaxes(1, 2)
    reversed_beta = _solved(reversed_root, half[:, ::-1])
    beta = reversed_beta[:, ::-1, 0]
    residual = y - np.einsum("rnk,rk->rn", c, beta)
    return _FewColumns(root, beta, residual)


def _solved(root: Array, b: Array) -> Array:
    """R^(−1) b for lower triangular R (replicas, s, s) and b (replicas, s, columns).

    Large matrices are solved one by one, by substitution; many small ones at once.
    """
    if root.shape[-1] < SUBSTITUTED:
        return np.asarray(np.linalg.solve(root, b), dtype=np.float64)
    # R^T of a matrix in Fortran's order, by LAPACK itself: scipy's function takes
    # longer to check than to solve
    solutions = []
    for r, x in zip(root, b, strict=True):
        solution, _ = scipy.linalg.lapack.dtrtrs(r.T, x, lower=0, trans=1)
        solutions.append(solution)
    return np.stack(solutions)


def _root(cov: Array, data: Observations) -> Array:
    """The triangular roots of V + τ²I, for the covariance V of the observations.

    Raises an error if it is singular up to rounding.
    """
    tau = data.noise
    noisy_cov = cov.copy()
    diagonal = np.arange(len(tau))
    noisy_cov[:, diagonal, diagonal] += tau**2
    try:
        root = np.asarray(np.linalg.cholesky(noisy_cov), dtype=np.float64)
    except np.linalg.LinAlgError:
        root = np.zeros_like(noisy_cov)  # raises the error below
    std = np.sqrt(np.diagonal(noisy_cov, axis1=1, axis2=2))
    pivots = np.diagonal(root, axis1=1, axis2=2)
    if (pivots <= MIN_PIVOT_RATIO * std).any():
        noise = float(tau[0]) if np.ptp(tau) == 0 else tau
        raise LawError(
            data.operation,
            "some observations determine others: give noise above 0, got"
            f" noise={shown(noise)}",
        )
    return root


def log_likelihood_on_device(
    library: Any, mean: Any, columns: Any, data: Observations
) -> Any:
    """log N(y; m, C C^T + τ²I) of each replica, (replicas,), on a device.

    It is NaN where rounding would hide it, or where there is no density. The library
    has `cholesky` (NaN where it fails) and `triangular(C, b)`, X with X C^T = b.
    """
    xp = library.xp
    entries = xp.asarray(np.array(data.entries))
    values = xp.asarray(np.array(data.values))
    tau = xp.asarray(np.array(data.noise))
    deviation = values - xp.take(mean, entries, axis=1)
    observed_columns = xp.take(columns, entries, axis=1)
    count, rank = observed_columns.shape[1:]
    if 2 * rank > count:
        return _log_density_by_cov(
            library, deviation, columns=observed_columns, tau=tau
        )
    return _log_density_by_columns(
        library, deviation, columns=observed_columns, tau=tau
    )


def _log_density_by_cov(library: Any, deviation: Any, columns: Any, tau: Any) -> Any:
    """log N(deviation; 0, C C^T + τ²I), by `_ManyColumns`; NaN where it is inaccurate.

    Deviations are (replicas, observations), and columns those of the observations.
    """
    xp = library.xp
    count = columns.shape[1]
    noise = xp.eye(count, dtype=columns.dtype) * tau**2
    cov = columns @ xp.matrix_transpose(columns) + noise
    root = library.cholesky(cov)
    pivots = xp.linalg.diagonal(root)
    z = library.triangular(root, deviation[:, None, :])[:, 0]
    log_volume = xp.sum(xp.log(ROOT_2PI * pivots), axis=-1)  # ½ log |2π cov|
    log_density = -0.5 * xp.sum(z**2, axis=-1) - log_volume
    std = xp.sqrt(xp.linalg.diagonal(cov))
    is_large = pivots > MIN_PIVOT_RATIO * std
    is_accurate = xp.all(is_large, axis=-1)
    nan = xp.asarray(math.nan, dtype=columns.dtype)
    return xp.where(is_accurate, log_density, nan)


def _log_density_by_columns(
    library: Any, deviation: Any, columns: Any, tau: Any
) -> Any:
    """The same for fewer columns than observations, by `_FewColumns`."""
    xp = library.xp
    rank = columns.shape[2]
    y = (deviation / tau)[:, None, :]
    c = columns / tau[:, None]
    b = xp.matrix_transpose(c) @ c + xp.eye(rank, dtype=c.dtype)
    root = library.cholesky(b)
    half = library.triangular(root, y @ c)

    # R^T with rows and columns in reverse order is lower triangular
    reversed_root = xp.matrix_transpose(xp.flip(root, axis=(-2, -1)))
    reversed_beta = library.triangular(reversed_root, xp.flip(half, axis=-1))
    beta = xp.flip(reversed_beta, axis=-1)
    residual = y - beta @ xp.matrix_transpose(c)

    # ½ log |2π (C C^T + τ²I)|
    log_determinant = xp.sum(xp.log(xp.linalg.diagonal(root)), axis=-1)
    log_volume_of_noise = xp.sum(xp.log(ROOT_2PI * tau))
    log_volume = log_determinant + log_volume_of_noise
    square_of_residual = xp.sum(residual**2, axis=(-2, -1))
    square_of_beta = xp.sum(beta**2, axis=(-2, -1))
    log_density = -0.5 * square_of_residual - 0.5 * square_of_beta - log_volume

    # no number where the noise is too small for this formula
    variances = xp.sum(columns**2, axis=-1)
    largest_variance = xp.max(variances, axis=-1)
    is_accurate = xp.min(tau) ** 2 > MIN_NOISE_RATIO * largest_variance
    nan = xp.asarray(math.nan, dtype=columns.dtype)
    return xp.where(is_accurate, log_density, nan)


MIN_EFFECTIVE_SAMPLES = 100.0  # effective sample size below which you get a warning


class Conditioned(NamedTuple):
    """The arguments of the `Joint` of all entries given data."""

    mean: Array
    cov: Array
    origin: Provenance
    weight: Array
    log_evidence: Estimate


def conditioned(
    law: Any, observed: Mapping[int, float], noise: npt.ArrayLike
) -> Conditioned:
    """The parts of a joint law given data: each replica is conditioned, and weighted by
    the density of the data under it.
    """
    cov = law.component_cov
    weight = law._replicas.weights
    origin = law.origin
    observations = checked_data(law.dim, observed, noise, "condition")
    entries = observations.entries
    update = updated(law.component_mean, cov, observations)
    with np.errstate(divide="ignore"):  # of replicas without weight
        log_joint = np.log(weight) + log_density(update.root, update.z)
    posterior = scipy.special.softmax(log_joint)
    evidence = float(scipy.special.logsumexp(log_joint))
    replicas = len(weight)
    error = 0.0
    if replicas > 1:
        # the likelihood relative to the evidence, of mean 1: the error of its mean is
        # also that of the logarithm
        zeros = np.zeros_like(weight)
        relative = np.divide(posterior, weight, out=zeros, where=weight > 0)
        error = float(Replicas(replicas, weight).average(relative).error)
        effective = 1 / float(np.sum(posterior**2))
        if effective < MIN_EFFECTIVE_SAMPLES:
            warnings.warn(
                f"condition: the data leave an effective sample of {effective:.0f} of"
                f" {replicas} replicas; take more draws, or more noise",
                stacklevel=4,
            )
    doubt = 0.0
    if origin.quadrature_error > NO_QUADRATURE_ERROR:
        var = np.diagonal(cov, axis1=1, axis2=2)[:, entries]
        std = np.sqrt(np.maximum(var, 0.0))
        slope = _slope_of_log_density(update.root, update.z, std)
        doubt = 0.5 * origin.quadrature_error * float(posterior @ slope)
    method = f"{origin.method}, given {counted(len(entries), 'observation')}"
    return Conditioned(
        mean=update.mean,
        cov=update.cov,
        origin=replace(origin, method=method),
        weight=posterior,
        log_evidence=Estimate(evidence, combined(error, doubt)),
    )


def _slope_of_log_density(root: Array, z: Array, std: Array) -> Array:
    """Twice the change of each replica's log density over ε, (replicas,).

    Each entry S_ij of the covariance of the observations is off by ±ε √(C_ii C_jj),
    `std` are the √C_ii, and S = R R^T. The changes of all entries are independent.
    """
    # d log N = ½ tr((α α^T − S⁻¹) dS), with α = S⁻¹ r = R^(−T) z for the residual
    # r = R z of the observations
    identity = np.broadcast_to(np.eye(root.shape[-1]), root.shape)
    inverse_root = np.linalg.solve(root, identity)
    inverse_cov = np.swapaxes(inverse_root, 1, 2) @ inverse_root
    alpha = np.einsum("rij,ri->rj", inverse_root, z)
    alpha_alpha = alpha[:, :, None] * alpha[:, None, :]
    derivative = alpha_alpha - inverse_cov  # twice that by each entry of S
    change_of_entry = derivative * std[:, :, None] * std[:, None, :]
    sum_of_squares = np.sum(change_of_entry**2, axis=(1, 2))
    return np.asarray(np.sqrt(sum_of_squares))
