"""Gaussian process regression: given a replica, outputs are N(m, V) with V = C C^T, and
data y are N(m, V + τ²I).
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
from ._law_base import MAX_MAGNITUDE, LawError, numbers

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
    """Observed entries, their values, the standard deviation of the noise of each, and
    the method that got them.
    """

    entries: npt.NDArray[np.intp]
    values: Array
    noise: Array
    operation: str = "condition"


def checked_data(
    dim: int, observed: Mapping[int, float], noise: npt.ArrayLike, operation: str
) -> Observations:
    """The user's data {entry: value}, with noise.

    The noise is a standard deviation, or one for each value.
    """
    if not isinstance(observed, Mapping) or not observed:
        raise LawError(
            operation, "observed", observed, "a mapping {entry: value}, not empty"
        )
    data: dict[int, float] = {}
    for entry, value in observed.items():
        position = as_whole(entry)
        number = as_number(value)
        if position is None or not -dim <= position < dim:
            raise LawError(
                operation,
                f"observed: entry {shown(entry)} must be an integer from 0 to"
                f" {dim - 1}",
            )
        if number is None or not abs(number) <= MAX_MAGNITUDE:
            raise LawError(
                operation,
                f"observed[{position}]={shown(value)} must be finite, at most"
                f" {MAX_MAGNITUDE:g}",
            )
        if position % dim in data:
            raise LawError(
                operation, f"observed={shown(observed)} names an entry twice"
            )
        data[position % dim] = number
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
        np.array(list(data), dtype=np.intp),
        np.array(list(data.values())),
        np.broadcast_to(tau, (len(data),)).copy(),
        operation,
    )


class Update(NamedTuple):
    """Each replica's mean and covariance given data, and what gave them."""

    mean: Array
    cov: Array
    root: Array  # R, the root of V + τ²I
    z: Array  # R^(−1) (y − m)


def updated(mean: Array, cov: Array, data: Observations) -> Update:
    """Each replica's mean and covariance given data."""
    entries, values, tau, _ = data
    root = _root(cov[:, entries[:, None], entries], data)
    z = _solved(root, (values - mean[:, entries])[..., None])[..., 0]
    half = _solved(root, np.swapaxes(cov[:, :, entries], 1, 2))
    new_mean = mean + np.einsum("rij,ri->rj", half, z)
    new_cov = cov - np.swapaxes(half, 1, 2) @ half
    # without noise they are known exactly, but the formula leaves rounding errors
    exact = entries[tau == 0]
    new_mean[:, exact] = values[tau == 0]
    var = np.diagonal(new_cov, axis1=1, axis2=2)
    prior_var = np.diagonal(cov, axis1=1, axis2=2)
    # these entries follow from the others, and have a variance of either sign
    determined = var <= ROUNDING * prior_var
    determined[:, exact] = True
    new_cov[determined[:, :, None] | determined[:, None, :]] = 0.0
    return Update(new_mean, new_cov, root, z)


def log_likelihood(mean: Array, columns: Array, data: Observations) -> Array:
    """log N(y; m, C C^T + τ²I) of each replica.

    m is an array (replicas, entries), and C one (replicas, entries, columns).
    """
    solution = _solution(mean, columns, data)
    if not isinstance(solution, _FewColumns):
        return log_density(solution.root, solution.z)
    diagonal = np.diagonal(solution.root, axis1=1, axis2=2)
    heights = (
        np.log(diagonal).sum(axis=1) + np.log(np.sqrt(2 * np.pi) * data.noise).sum()
    )
    square = (solution.residual**2).sum(axis=1) + (solution.beta**2).sum(axis=1)
    return np.asarray(-0.5 * square - heights)


def fitted(mean: Array, columns: Array, data: Observations) -> tuple[Array, Array]:
    """Each replica's mean and variance of all entries given data.

    They are those of `updated_by_columns`.
    """
    solution = _solution(mean, columns, data)
    transposed = np.swapaxes(columns, 1, 2)
    if isinstance(solution, _FewColumns):  # m + C β and the diagonal of C B^(−1) C^T
        half = _solved(solution.root, transposed)
        new_mean = mean + np.einsum("rnk,rk->rn", columns, solution.beta)
        return new_mean, np.sum(half**2, axis=1)
    half = _solved(solution.root, columns[:, data.entries] @ transposed)
    new_mean = mean + np.einsum("rij,ri->rj", half, solution.z)
    new_var = np.sum(columns**2, axis=2) - np.sum(half**2, axis=1)
    return new_mean, np.maximum(new_var, 0.0)


def updated_by_columns(
    mean: Array,
    columns: Array,
    data: Observations,
    rows: slice | npt.NDArray[np.intp] = slice(None),
) -> tuple[Array, Array]:
    """Each replica's mean and covariance of some entries given data, from m and C."""
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
    """log N(y; m, R R^T), from z = R^(−1) (y − m)."""
    diagonal = np.diagonal(root, axis1=1, axis2=2)
    heights = np.log(np.sqrt(2 * np.pi) * diagonal).sum(axis=1)
    return np.asarray(-0.5 * (z**2).sum(axis=1) - heights)


class _ManyColumns(NamedTuple):
    """The observations solved by their covariance C C^T + τ²I = R R^T."""

    root: Array  # R
    z: Array  # R^(−1) (y − m)


class _FewColumns(NamedTuple):
    """The observations solved in the space of the columns.

    In units of the noise, y' = (y − m)/τ and C' = C/τ. With B = I + C'^T C' = R R^T and
    β = B^(−1) C'^T y', the quadratic form of the density is |y' − C' β|² + |β|², not a
    difference of large numbers; |C C^T + τ²I| = |B| Π τ².
    """

    root: Array  # R
    beta: Array
    residual: Array  # y' − C' β


def _solution(
    mean: Array, columns: Array, data: Observations
) -> _ManyColumns | _FewColumns:
    """Solve for the observations, in the smaller space where rounding allows it."""
    entries, values, tau, _ = data
    deviation = values - mean[:, entries]
    observed_columns = columns[:, entries]
    count, rank = observed_columns.shape[1:]
    largest = np.einsum("rnk,rnk->rn", observed_columns, observed_columns).max()
    if 2 * rank > count or tau.min() ** 2 <= MIN_NOISE_RATIO * largest:
        root = _root(observed_columns @ np.swapaxes(observed_columns, 1, 2), data)
        return _ManyColumns(root, _solved(root, deviation[..., None])[..., 0])
    y = deviation / tau
    c = observed_columns / tau[:, None]
    b = np.swapaxes(c, 1, 2) @ c + np.eye(c.shape[2])
    root = np.asarray(np.linalg.cholesky(b))
    half = _solved(root, np.einsum("rnk,rn->rk", c, y)[..., None])
    # R^T with rows and columns in reverse order is lower triangular
    reversed_root = root[:, ::-1, ::-1].swapaxes(1, 2)
    beta = _solved(reversed_root, half[:, ::-1])[:, ::-1, 0]
    return _FewColumns(root, beta, y - np.einsum("rnk,rk->rn", c, beta))


def _solved(root: Array, b: Array) -> Array:
    """R^(−1) b for triangular R.

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
    """The triangular roots of the covariances of the observations."""
    inner = cov.copy()
    tau = data.noise
    inner[:, np.arange(len(tau)), np.arange(len(tau))] += tau**2
    try:
        root = np.asarray(np.linalg.cholesky(inner), dtype=np.float64)
    except np.linalg.LinAlgError:
        root = np.zeros_like(inner)
    size = np.sqrt(np.diagonal(inner, axis1=1, axis2=2))
    if (np.diagonal(root, axis1=1, axis2=2) <= MIN_PIVOT_RATIO * size).any():
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
    """log N(y; m, C C^T + τ²I) of each replica, on a device.

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
    root_of_two_pi = math.sqrt(2 * math.pi)
    if 2 * rank > count:
        noise = xp.eye(count, dtype=observed_columns.dtype) * tau**2
        cov = observed_columns @ xp.matrix_transpose(observed_columns) + noise
        root = library.cholesky(cov)
        pivots = xp.linalg.diagonal(root)
        z = library.triangular(root, deviation[:, None, :])[:, 0]
        volume = xp.sum(xp.log(root_of_two_pi * pivots), axis=-1)
        height = -0.5 * xp.sum(z**2, axis=-1) - volume
        std = xp.sqrt(xp.linalg.diagonal(cov))
        is_accurate = xp.all(pivots > MIN_PIVOT_RATIO * std, axis=-1)
    else:  # see `_FewColumns`
        y = (deviation / tau)[:, None, :]
        c = observed_columns / tau[:, None]
        b = xp.matrix_transpose(c) @ c + xp.eye(rank, dtype=c.dtype)
        root = library.cholesky(b)
        half = library.triangular(root, y @ c)
        # R^T with rows and columns in reverse order is lower triangular
        reversed_root = xp.matrix_transpose(xp.flip(root, axis=(-2, -1)))
        reversed_beta = library.triangular(reversed_root, xp.flip(half, axis=-1))
        beta = xp.flip(reversed_beta, axis=-1)
        residual = y - beta @ xp.matrix_transpose(c)
        volume = xp.sum(xp.log(xp.linalg.diagonal(root)), axis=-1)
        volume = volume + xp.sum(xp.log(root_of_two_pi * tau))
        height = (
            -0.5 * xp.sum(residual**2, axis=(-2, -1))
            - 0.5 * xp.sum(beta**2, axis=(-2, -1))
            - volume
        )
        largest = xp.max(xp.sum(observed_columns**2, axis=-1), axis=-1)
        is_accurate = xp.min(tau) ** 2 > MIN_NOISE_RATIO * largest
    nan = xp.asarray(math.nan, dtype=observed_columns.dtype)
    return xp.where(is_accurate, height, nan)


MIN_EFFECTIVE_SAMPLES = 100.0  # effective sample size below which you get a warning


def conditioned(
    law: Any, observed: Mapping[int, float], noise: npt.ArrayLike
) -> tuple[Any, ...]:
    """The arguments of the `Joint` given data.

    They are means, covariances, origin, weights and log evidence.
    """
    cov = law.component_cov
    weight = law._replicas.weights
    origin = law.origin
    data = checked_data(law.dim, observed, noise, "condition")
    entries = data.entries
    update = updated(law.component_mean, cov, data)
    with np.errstate(divide="ignore"):  # of replicas without weight
        log_joint = np.log(weight) + log_density(update.root, update.z)
    posterior = scipy.special.softmax(log_joint)
    evidence = float(scipy.special.logsumexp(log_joint))
    effective = 1 / float(np.sum(posterior**2))
    error = 0.0
    if len(weight) > 1:
        # the likelihood relative to the evidence, of mean 1: the error of its mean is
        # also that of the logarithm
        relative = np.divide(
            posterior, weight, out=np.zeros_like(weight), where=weight > 0
        )
        error = float(Replicas(len(weight), weight).average(relative).error)
        if effective < MIN_EFFECTIVE_SAMPLES:
            warnings.warn(
                f"condition: the data leave an effective sample of {effective:.0f} of"
                f" {len(weight)} replicas; take more draws, or more noise",
                stacklevel=4,
            )
    doubt = 0.0
    if origin.quadrature_error > 1e-14:
        std = np.sqrt(np.maximum(np.diagonal(cov, axis1=1, axis2=2)[:, entries], 0.0))
        slope = _slope_of_log_density(update.root, update.z, std)
        doubt = 0.5 * origin.quadrature_error * float(posterior @ slope)
    method = f"{origin.method}, given {counted(len(entries), 'observation')}"
    return (
        update.mean,
        update.cov,
        replace(origin, method=method),
        posterior,
        Estimate(evidence, combined(error, doubt)),
    )


def _slope_of_log_density(root: Array, z: Array, std: Array) -> Array:
    """Twice the change of each replica's log density over ε.

    Each entry S_ij of the covariance of the observations is off by ±ε √(C_ii C_jj),
    `std` are the √C_ii, and S = R R^T. The changes of all entries are independent.
    """
    # d log N = ½ tr((S⁻¹ r r^T S⁻¹ − S⁻¹) dC), with r = R z
    identity = np.broadcast_to(np.eye(root.shape[-1]), root.shape)
    inverse = np.linalg.solve(root, identity)
    alpha = np.einsum("rij,ri->rj", inverse, z)  # S⁻¹ r
    inverse_cov = np.swapaxes(inverse, 1, 2) @ inverse
    slope = alpha[:, :, None] * alpha[:, None, :] - inverse_cov
    changes = slope * std[:, :, None] * std[:, None, :]
    return np.asarray(np.sqrt(np.sum(changes**2, axis=(1, 2))))
