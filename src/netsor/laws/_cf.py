"""The characteristic function of a mixture of Gaussians, with its error."""

from __future__ import annotations

import numpy as np

from ._estimate import Array, Estimate, combined
from ._replicas import Replicas

PIECE = 2**20  # entries of a table (replicas × points) computed at a time, to bound memory


def mixture_cf(t: Array, mean: Array, var: Array, replicas: Replicas) -> Estimate:
    """Σ_r w_r e^(itm_r − t²v_r/2) at points; its error is the radius of a circle about the value."""
    values, errors = [], []
    step = max(1, PIECE // len(mean))
    for k in range(0, len(t), step):
        p = t[k : k + step]
        with np.errstate(over="ignore"):  # e^(−∞) is 0
            size = np.exp(-np.outer(var, p**2) / 2)
        turn = np.outer(mean, p)
        real, imaginary = size * np.cos(turn), size * np.sin(turn)
        values.append(replicas.mean(real) + 1j * replicas.mean(imaginary))
        errors.append(combined(replicas.spread(real), replicas.spread(imaginary)))
    return Estimate(np.concatenate(values), np.concatenate(errors))
