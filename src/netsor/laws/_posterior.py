"""Conditioning a joint law on data: exact given the replicas, the hierarchical counterpart of GP regression.

A joint law is Σ_r w_r N(m_r, V_r). Observing some entries with Gaussian noise τ² multiplies each w_r by
N(obs; m_r, V_r + τ²I) and conditions each Gaussian: again a joint law, with log evidence log Σ_r w_r N(…).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..language._given import as_number, as_whole, shown
from ._checked import LARGEST, numbers
from ._estimate import Array, Estimate, combined
from ._law_error import LawError
from ._origin import Origin
from ._replicas import average

FEW = 100.0  # effective sample size below which a warning is given
Conditioned = tuple[Array, Array, Origin, Array, Estimate]


def conditioned(
    mean: Array, cov: Array, weight: Array, observed: Mapping[int, float], noise: npt.ArrayLike, origin: Origin
) -> Conditioned:
    """Means, covariances, origin, weights and log evidence of the law given data."""
    entries, values, tau = _checked(mean.shape[1], observed, noise)
    off, across = values - mean[:, entries], cov[:, :, entries]
    root = _root(across[:, entries, :], tau, noise)
    z = np.asarray(np.linalg.solve(root, off[..., None])[..., 0], dtype=np.float64)
    half = np.linalg.solve(root, np.swapaxes(across, 1, 2))
    log_density = _log_density(root, z)
    posterior, evidence = _weighed(weight, log_density)
    effective = 1 / float(np.sum(posterior**2))
    error = 0.0
    if len(weight) > 1:
        relative = np.divide(posterior, weight, out=np.zeros_like(weight), where=weight > 0)  # of mean 1
        error = float(average(relative, weight).error)  # which is that of the logarithm
        if effective < FEW:
            warnings.warn(
                f"condition: the data leave an effective sample of {effective:.0f} of {len(weight)} replicas; take "
                "more draws, or more noise",
                stacklevel=4,
            )
    doubt = 0.0
    if origin.quadrature_error > 1e-14:
        # d log N = ½ tr((S⁻¹zz^TS⁻¹ − S⁻¹) dC), each entry of C off by ε √(C_ii C_jj), either way
        inverse = np.linalg.solve(root, np.broadcast_to(np.eye(len(entries)), root.shape))
        alpha = np.einsum("rij,ri->rj", inverse, z)
        slope = alpha[:, :, None] * alpha[:, None, :] - np.swapaxes(inverse, 1, 2) @ inverse
        std = np.sqrt(np.maximum(np.diagonal(cov, axis1=1, axis2=2)[:, entries], 0.0))
        each = np.sqrt(np.sum((slope * std[:, :, None] * std[:, None, :]) ** 2, axis=(1, 2)))
        doubt = 0.5 * origin.quadrature_error * float(posterior @ each)
    new_mean = mean + np.einsum("rij,ri->rj", half, z)
    new_cov = cov - np.swapaxes(half, 1, 2) @ half
    exact = entries[tau == 0]
    new_mean[:, exact] = values[
        tau == 0
    ]  # observed without noise: known exactly, where the formula leaves rounding errors
    new_cov[:, exact, :] = 0.0
    new_cov[:, :, exact] = 0.0
    method = f"{origin.method}, given {len(entries)} observation{'s' * (len(entries) > 1)}"
    given = Origin(origin.status, method, origin.random_numbers,
                   origin.seed, origin.quadrature_error, origin.notes)  # fmt: skip
    return new_mean, new_cov, given, posterior, Estimate(evidence, combined(error, doubt))


def _root(cov: Array, tau: Array, noise: npt.ArrayLike) -> Array:
    """The triangular roots of the covariances of what was observed."""
    inner = cov + np.diag(tau**2)
    try:
        root = np.asarray(np.linalg.cholesky(inner), dtype=np.float64)
    except np.linalg.LinAlgError:
        root = np.zeros_like(inner)
    size = np.sqrt(np.diagonal(inner, axis1=1, axis2=2))
    if (np.diagonal(root, axis1=1, axis2=2) <= 1e-7 * size).any():
        raise LawError(
            "condition",
            "what was observed is determined by the rest in some replicas, so the data have no density; "
            f"give noise above 0, got noise={shown(noise)}",
        )
    return root


def _log_density(root: Array, z: Array) -> Array:
    heights = np.log(np.sqrt(2 * np.pi) * np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return np.asarray(-0.5 * (z**2).sum(axis=1) - heights)


def _weighed(weight: Array, log_density: Array) -> tuple[Array, float]:
    """Weights after the data, and the log evidence: the largest term first, or digits of an exponent would be lost."""
    with np.errstate(divide="ignore"):
        joint = np.log(weight) + log_density
    top = float(joint.max())
    each = np.exp(joint - top)
    return each / each.sum(), top + float(np.log(each.sum()))


def _checked(
    dim: int, observed: Mapping[int, float], noise: npt.ArrayLike
) -> tuple[npt.NDArray[np.intp], Array, Array]:
    if not isinstance(observed, Mapping) or not observed:
        raise LawError("condition", f"observed={shown(observed)} must be a mapping {{entry: value}}, not empty")
    values, places = [], []
    for entry, value in observed.items():
        place, number = as_whole(entry), as_number(value)
        if place is None or not -dim <= place < dim:
            raise LawError("condition", f"observed: entry {shown(entry)} must be an integer from 0 to {dim - 1}")
        if number is None or not abs(number) <= LARGEST:
            raise LawError(
                "condition",
                f"observed: the value {shown(value)} of entry {place} must be a finite number, at most {LARGEST:g}",
            )
        places.append(place % dim)
        values.append(number)
    if len(set(places)) < len(places):
        raise LawError("condition", f"observed={shown(observed)} names an entry twice")
    tau = numbers(noise, "condition", "noise")
    if tau.shape not in ((), (len(places),)) or (tau < 0).any() or tau.max() > LARGEST:
        raise LawError(
            "condition", f"noise={shown(noise)} must be a standard deviation, 0 or more, or one for each value"
        )
    return np.array(places, dtype=np.intp), np.array(values), np.broadcast_to(tau, (len(places),)).copy()
