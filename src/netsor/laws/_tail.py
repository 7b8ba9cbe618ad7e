"""What the tail of a law may hold beyond the draws there are: for errors of means over few of them.

The mean of n draws lacks what lies beyond the largest of them, and so does their spread: a sample without the rare
large values looks like one of a law that has none. So the error is not read from their spread, but from how fast the
largest of them grow.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

STEEPER = 1.0  # standard errors by which the tail of a mean is taken to be heavier than it looks
TAIL = 20  # deviations, the largest, by which a tail is read; of fewer than 100 draws a fifth of them
FEWEST = 5  # of them, however few draws there are
SAME = 1e-12  # of the largest deviation: one below is none, as of draws from an atom
PIECE = 2**22  # numbers handled at a time, to bound memory
LARGEST = 709.0  # logarithm of the largest double


def unseen(samples: Array, share: Array | None, count: float, steeper: float = 0.0) -> Array:
    """How much of the mean of each column may lie beyond its draws.

    Deviations from the median are taken to be lognormal beyond x_p, which a share p of them exceeds: log x = log x_p +
    σ (z − z_p) with z standard normal. So σ = E[log(x/x_p)]/(φ(z_p)/p − z_p) over those beyond x_p, and of the mean of
    such a law x_p e^(σ²/2 − σ z_p) Φ(σ − z_n) lies beyond the last of n draws, z_n = Φ⁻¹(1 − 1/n). The draws are of
    equal share unless shares are given, and say as much as `count` equal ones. `steeper` is by how many of its standard
    errors (one over the root of the number beyond x_p) σ is raised. Fewer than ten draws say nothing of a tail, and
    nothing is added then.
    """
    if count < 2 * FEWEST:
        return np.zeros(samples.shape[1:])
    flat = samples.reshape(len(samples), -1)
    step = max(1, PIECE // len(flat))
    found = [_unseen(flat[:, k : k + step], share, count, steeper) for k in range(0, flat.shape[1], step)]
    return np.concatenate(found).reshape(samples.shape[1:]) if found else np.zeros(samples.shape[1:])


def _unseen(samples: Array, share: Array | None, count: float, steeper: float) -> Array:
    size, each, differ = _largest(samples, share)
    # half of what differs at all is the tail, at most: the other half says where it begins
    some = np.clip(np.minimum(min(TAIL, max(count / 5, FEWEST)), count * differ / 2), 1, None) / count
    mass = np.cumsum(each, axis=0)
    last = np.minimum(np.sum(mass < some * (1 - 1e-9), axis=0), len(size) - 2)  # beyond x_p
    column = np.arange(size.shape[1])
    p, start = mass[last, column], size[last + 1, column]
    tail = start > 0  # one value, and at most one other, have none
    start = np.where(tail, start, np.where(size[0] > 0, size[0], 1.0))
    beyond = np.where(np.arange(len(size))[:, None] <= last, np.log(np.maximum(size, start) / start), 0.0)
    z = -scipy.special.ndtri(np.minimum(p, 0.5))
    slope = np.sum(each * beyond, axis=0) / (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) - p * z)
    slope = slope * (1 + steeper / np.sqrt(p * count))
    exponent = np.log(start) + slope**2 / 2 - slope * z + scipy.special.log_ndtr(slope + scipy.special.ndtri(1 / count))
    with np.errstate(over="ignore"):
        return np.asarray(np.where(size[0] > 0, np.exp(np.where(exponent < LARGEST, exponent, np.inf)), 0.0))


def _largest(samples: Array, share: Array | None) -> tuple[Array, Array, Array]:
    """The largest deviations from the median of each column, falling; their shares; and what share of all differs."""
    if share is None:
        size = np.abs(samples - np.median(samples, axis=0))
        differ = np.mean(size > SAME * size.max(axis=0), axis=0)
        first = max(len(size) - TAIL - 2, 0)
        size = np.sort(np.partition(size, first, axis=0)[first:], axis=0)[::-1]
        return size, np.full(size.shape, 1 / len(samples)), differ
    order = np.argsort(samples, axis=0)
    middle = np.sum(np.cumsum(share[order], axis=0) < 0.5, axis=0)
    column = np.arange(samples.shape[1])
    size = np.abs(samples - samples[order[np.minimum(middle, len(order) - 1), column], column])
    differ = share @ (size > SAME * size.max(axis=0))
    order = np.argsort(-size, axis=0)
    return np.take_along_axis(size, order, axis=0), share[order], differ
