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
    """The user's data {entry: value}, with noise: a standard deviation, or one for each
    value.
    """
    if not isinstance(observed, Mapping) or not observed:
        raise LawError(
            operation, "observed", observed, "a mapping {entry: value}, not empty"
        )
    data: dict[int, float] = {}
    for entry, value in observed.items():
        place, number = as_whole(entry), as_number(value)
        if place is None or not -dim <= place < dim:
            raise LawError(
                operation,
                f"observed: entry {shown(entry)} must be an integer from 0 to"
                f" {dim - 1}",
            )
        if number is None or not abs(number) <= MAX_MAGNITUDE:
            raise LawError(
                operation,
                f"observed[{place}]={shown(value)} must be finite, at most"
                f" {MAX_MAGNITUDE:g}",
            )
        if place % dim in data:
            raise LawError(
                operation, f"observed={shown(observed)} names an entry twice"
            )
        data[place % dim] = number
    tau = numbers(noise, operation, "noise")
    if (
        tau.shape not in ((), (len(data),))
        or (tau < 0).any()
        or tau.max() > MAX_MAGNITUDE
    ):
        raise LawError(
            operation,
            "noise",
            noise,
            "a standard deviation, 0 or more, or one for each value",
        )
    entries, values = np.array(list(data), dtype=np.intp), np.array(list(data.values()))
    return Observations(
        entries, values, np.broadcast_to(tau, (len(data),)).copy(), operation
    )


def updated(
    mean: Array, cov: Array, data: Observations
) -> tuple[Array, Array, Array, Array]:
    """Each replica's mean and covariance given data; the roots R of V + τ²I, and R^(−1)
    (y − m).
    """
    entries, values, tau, _ = data
    root = _root(cov[:, entries[:, None], entries], data)
    z = _solved(root, (values - mean[:, entries])[..., None])[..., 0]
    half = _solved(root, np.swapaxes(cov[:, :, entries], 1, 2))
    new_mean = mean + np.einsum("rij,ri->rj", half, z)
    new_cov = cov - np.swapaxes(half, 1, 2) @ half
    # without noise they are known exactly, but the formula leaves rounding errors
    exact = entries[tau == 0]
    new_mean[:, exact] = values[tau == 0]
    var, before = (np.diagonal(c, axis1=1, axis2=2) for c in (new_cov, cov))
    # these entries follow from the others, and have a variance of either sign
    known = var <= ROUNDING * before
    known[:, exact] = True
    new_cov[known[:, :, None] | known[:, None, :]] = 0.0
    return new_mean, new_cov, root, z


def log_likelihood(mean: Array, columns: Array, data: Observations) -> Array:
    """log N(y; m, C C^T + τ²I) of each replica, from m (replicas, entries) and C
    (replicas, entries, ·).
    """
    root, z, rest = _solution(mean, columns, data)
    if rest is None:
        return log_density(root, z)
    heights = (
        np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        + np.log(np.sqrt(2 * np.pi) * data.noise).sum()
    )
    return np.asarray(-0.5 * ((rest**2).sum(axis=1) + (z**2).sum(axis=1)) - heights)


def fitted(mean: Array, columns: Array, data: Observations) -> tuple[Array, Array]:
    """Each replica's mean and variance of all entries given data, as in
    `updated_by_columns`.
    """
    root, z, rest = _solution(mean, columns, data)
    across = np.swapaxes(columns, 1, 2)
    half = _solved(
        root, across if rest is not None else columns[:, data.entries] @ across
    )
    var = np.sum(half**2, axis=1)
    if rest is not None:
        return mean + np.einsum("rnk,rk->rn", columns, z), var
    return mean + np.einsum("rij,ri->rj", half, z), np.maximum(
        np.sum(columns**2, axis=2) - var, 0.0
    )


def updated_by_columns(
    mean: Array,
    columns: Array,
    data: Observations,
    rows: slice | npt.NDArray[np.intp] = slice(None),
) -> tuple[Array, Array]:
    """Each replica's mean and covariance of some entries given data, from m and C."""
    root, beta, rest = _solution(mean, columns, data)
    if rest is None:
        new_mean, new_cov = updated(mean, columns @ np.swapaxes(columns, 1, 2), data)[
            :2
        ]
        return new_mean[:, rows], new_cov[:, rows][:, :, rows]
    some = columns[:, rows]  # m + C β and C B^(−1) C^T, see `_solution`
    half = _solved(root, np.swapaxes(some, 1, 2))
    return (
        mean[:, rows] + np.einsum("rnk,rk->rn", some, beta),
        np.swapaxes(half, 1, 2) @ half,
    )


def log_density(root: Array, z: Array) -> Array:
    """log N(y; m, R R^T), from z = R^(−1) (y − m)."""
    heights = np.log(np.sqrt(2 * np.pi) * np.diagonal(root, axis1=1, axis2=2)).sum(
        axis=1
    )
    return np.asarray(-0.5 * (z**2).sum(axis=1) - heights)


def _solution(
    mean: Array, columns: Array, data: Observations
) -> tuple[Array, Array, Array | None]:
    """The root R of C C^T + τ²I, R^(−1) (y − m), and None; with few columns, the root R
    of B, β and y' − C' β.
    """
    # In units of the noise, y' = (y − m)/τ and C' = C/τ. With B = I + C'^T C' = R R^T
    # and β = B^(−1) C'^T y', the quadratic form of the density is |y' − C' β|² + |β|²,
    # not a difference of large numbers; |C C^T + τ²I| = |B| Π τ².
    entries, values, tau, _ = data
    off, own = values - mean[:, entries], columns[:, entries]
    largest = np.einsum("rnk,rnk->rn", own, own).max()
    if 2 * own.shape[2] > len(entries) or tau.min() ** 2 <= MIN_NOISE_RATIO * largest:
        root = _root(own @ np.swapaxes(own, 1, 2), data)
        return root, _solved(root, off[..., None])[..., 0], None
    y, c = off / tau, own / tau[:, None]
    inner = np.swapaxes(c, 1, 2) @ c + np.eye(c.shape[2])
    root = np.asarray(np.linalg.cholesky(inner))
    half = _solved(root, np.einsum("rnk,rn->rk", c, y)[..., None])
    # R^T, turned, is lower triangular
    beta = _solved(root[:, ::-1, ::-1].swapaxes(1, 2), half[:, ::-1])[:, ::-1, 0]
    return root, beta, y - np.einsum("rnk,rk->rn", c, beta)


def _solved(root: Array, b: Array) -> Array:
    """R^(−1) b for triangular R: large matrices one by one, by substitution; many small
    ones at once.
    """
    if root.shape[-1] < SUBSTITUTED:
        return np.asarray(np.linalg.solve(root, b), dtype=np.float64)
    # R^T of a matrix in Fortran's order, by LAPACK itself: scipy's function takes
    # longer to check than to solve
    return np.stack(
        [
            scipy.linalg.lapack.dtrtrs(r.T, x, lower=0, trans=1)[0]
            for r, x in zip(root, b, strict=True)
        ]
    )


def _root(cov: Array, data: Observations) -> Array:
    """The triangular roots of the covariances of the observations."""
    inner, tau = cov.copy(), data.noise
    inner[:, np.arange(len(tau)), np.arange(len(tau))] += tau**2
    try:
        root = np.asarray(np.linalg.cholesky(inner), dtype=np.float64)
    except np.linalg.LinAlgError:
        root = np.zeros_like(inner)
    size = np.sqrt(np.diagonal(inner, axis1=1, axis2=2))
    if (np.diagonal(root, axis1=1, axis2=2) <= MIN_PIVOT_RATIO * size).any():
        given = shown(float(tau[0]) if np.ptp(tau) == 0 else tau)
        raise LawError(
            data.operation,
            "some observations determine others: give noise above 0, got"
            f" noise={given}",
        )
    return root


def log_likelihood_on_device(
    library: Any, mean: Any, columns: Any, data: Observations
) -> Any:
    """log N(y; m, C C^T + τ²I) of each replica; NaN where rounding would hide it, or
    where there is no density.
    """
    # it also has `cholesky` (NaN where it fails) and `triangular(C, b)`, X with X C^T =
    # b
    xp = library.xp
    entries, values, tau = (xp.asarray(np.array(part)) for part in data[:3])
    off, own = (
        values - xp.take(mean, entries, axis=1),
        xp.take(columns, entries, axis=1),
    )
    count, rank = own.shape[1:]
    if 2 * rank > count:
        inner = own @ xp.matrix_transpose(own) + xp.eye(count, dtype=own.dtype) * tau**2
        root = library.cholesky(inner)
        pivots = xp.linalg.diagonal(root)
        z = library.triangular(root, off[:, None, :])[:, 0]
        height = -0.5 * xp.sum(z**2, axis=-1) - xp.sum(
            xp.log(math.sqrt(2 * math.pi) * pivots), axis=-1
        )
        sure = xp.all(
            pivots > MIN_PIVOT_RATIO * xp.sqrt(xp.linalg.diagonal(inner)), axis=-1
        )
    else:  # in units of the noise, as in `_likelihood._solution`
        y, c = (off / tau)[:, None, :], own / tau[:, None]
        root = library.cholesky(
            xp.matrix_transpose(c) @ c + xp.eye(rank, dtype=c.dtype)
        )
        half = library.triangular(root, y @ c)
        # R^T, turned, is lower triangular
        turned = xp.matrix_transpose(xp.flip(root, axis=(-2, -1)))
        beta = xp.flip(library.triangular(turned, xp.flip(half, axis=-1)), axis=-1)
        rest = y - beta @ xp.matrix_transpose(c)
        volume = xp.sum(xp.log(xp.linalg.diagonal(root)), axis=-1) + xp.sum(
            xp.log(math.sqrt(2 * math.pi) * tau)
        )
        height = (
            -0.5 * xp.sum(rest**2, axis=(-2, -1))
            - 0.5 * xp.sum(beta**2, axis=(-2, -1))
            - volume
        )
        sure = xp.min(tau) ** 2 > MIN_NOISE_RATIO * xp.max(
            xp.sum(own**2, axis=-1), axis=-1
        )
    return xp.where(sure, height, xp.asarray(math.nan, dtype=own.dtype))


MIN_EFFECTIVE_SAMPLES = 100.0  # effective sample size below which you get a warning


def conditioned(
    law: Any, observed: Mapping[int, float], noise: npt.ArrayLike
) -> tuple[Any, ...]:
    """The arguments of the `Joint` given data: means, covariances, origin, weights and
    log evidence.
    """
    cov, weight, origin = law.component_cov, law._replicas.weights, law.origin
    data = checked_data(law.dim, observed, noise, "condition")
    entries = data.entries
    new_mean, new_cov, root, z = updated(law.component_mean, cov, data)
    with np.errstate(divide="ignore"):  # of replicas without weight
        joint = np.log(weight) + log_density(root, z)
    posterior, evidence = (
        scipy.special.softmax(joint),
        float(scipy.special.logsumexp(joint)),
    )
    effective = 1 / float(np.sum(posterior**2))
    error = 0.0
    if len(weight) > 1:
        # of mean 1
        relative = np.divide(
            posterior, weight, out=np.zeros_like(weight), where=weight > 0
        )
        # also that of the logarithm
        error = float(Replicas(len(weight), weight).average(relative).error)
        if effective < MIN_EFFECTIVE_SAMPLES:
            left = (
                f"the data leave an effective sample of {effective:.0f} of"
                f" {len(weight)} replicas"
            )
            warnings.warn(
                f"condition: {left}; take more draws, or more noise", stacklevel=4
            )
    doubt = 0.0
    if origin.quadrature_error > 1e-14:
        # d log N = ½ tr((S⁻¹zz^TS⁻¹ − S⁻¹) dC), where each entry of C may be off by ±ε
        # √(C_ii C_jj)
        inverse = np.linalg.solve(
            root, np.broadcast_to(np.eye(len(entries)), root.shape)
        )
        alpha = np.einsum("rij,ri->rj", inverse, z)
        slope = (
            alpha[:, :, None] * alpha[:, None, :] - np.swapaxes(inverse, 1, 2) @ inverse
        )
        std = np.sqrt(np.maximum(np.diagonal(cov, axis1=1, axis2=2)[:, entries], 0.0))
        each = np.sqrt(
            np.sum((slope * std[:, :, None] * std[:, None, :]) ** 2, axis=(1, 2))
        )
        doubt = 0.5 * origin.quadrature_error * float(posterior @ each)
    method = f"{origin.method}, given {counted(len(entries), 'observation')}"
    return (
        new_mean,
        new_cov,
        replace(origin, method=method),
        posterior,
        Estimate(evidence, combined(error, doubt)),
    )
