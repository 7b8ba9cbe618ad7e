"""Conditioning a joint law on data: exact given the replicas, the hierarchical counterpart of GP regression.

A joint law is Σ_r w_r N(m_r, V_r). Observing some entries with Gaussian noise τ² multiplies each w_r by
N(obs; m_r, V_r + τ²I) and conditions each Gaussian: again a joint law, with log evidence log Σ_r w_r N(…).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ._estimate import Array, Estimate, combined
from ._likelihood import checked_data, log_density, updated
from ._origin import Origin
from ._replicas import average

FEW = 100.0  # effective sample size below which a warning is given
Conditioned = tuple[Array, Array, Origin, Array, Estimate]


def conditioned(
    mean: Array, cov: Array, weight: Array, observed: Mapping[int, float], noise: npt.ArrayLike, origin: Origin
) -> Conditioned:
    """Means, covariances, origin, weights and log evidence of the law given data."""
    data = checked_data(mean.shape[1], observed, noise)
    entries = data.entries
    new_mean, new_cov, root, z = updated(mean, cov, data)
    posterior, evidence = _weighed(weight, log_density(root, z))
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
    method = f"{origin.method}, given {len(entries)} observation{'s' * (len(entries) > 1)}"
    given = Origin(origin.status, method, origin.random_numbers,
                   origin.seed, origin.quadrature_error, origin.notes)  # fmt: skip
    return new_mean, new_cov, given, posterior, Estimate(evidence, combined(error, doubt))


def _weighed(weight: Array, log_density: Array) -> tuple[Array, float]:
    """Weights after the data, and the log evidence: the largest term first, or digits of an exponent would be lost."""
    with np.errstate(divide="ignore"):
        joint = np.log(weight) + log_density
    top = float(joint.max())
    each = np.exp(joint - top)
    return each / each.sum(), top + float(np.log(each.sum()))
