"""Whether chains agree, and what their draws are worth: rank-normalised split R-hat and effective sample size.

After Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021). Draws are (chains, draws, quantities).
"""

from __future__ import annotations

import numpy as np
import scipy

from ._estimate import Array


def r_hat(draws: Array) -> Array:
    """R-hat of each quantity: the larger of that of the ranks and that of the ranks of distances to the median."""
    folded = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.maximum(_ratio(_ranked(_split(draws))), _ratio(_ranked(_split(folded))))


def effective(draws: Array) -> Array:
    """How many independent draws would say as much of the mean of each quantity's ranks, after Geyer (1992)."""
    x = _ranked(_split(draws))
    chains, length, _ = x.shape
    total = chains * length
    within, between = _variances(x)
    off = x - x.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(off, 2 * length, axis=1)
    auto = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(axis=0) / length  # (lags, quantities)
    whole = within * (length - 1) / length + between
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.where(whole > 0, 1 - (within - auto * length / (length - 1)) / whole, 0.0)
    rho[0] = 1.0
    pairs = rho[: length - length % 2].reshape(length // 2, 2, -1).sum(axis=1)
    # sums of neighbours are positive and fall: from the first that is not, noise alone is left
    pairs = np.where(np.cumprod(pairs > 0, axis=0) > 0, pairs, 0.0)
    pairs = np.minimum.accumulate(pairs, axis=0)
    time = np.maximum(-1 + 2 * pairs.sum(axis=0), 1 / np.log10(max(total, 10)))
    return np.asarray(np.minimum(total / time, total * np.log10(max(total, 10))))


def _split(draws: Array) -> Array:
    """Every chain in two halves, so that a chain that drifts disagrees with itself."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _ranked(x: Array) -> Array:
    """Normal scores of the ranks over all chains: for them a mean and a variance exist."""
    flat = x.reshape(-1, x.shape[-1])
    ranks = scipy.stats.rankdata(flat, axis=0)
    return np.asarray(scipy.special.ndtri((ranks - 0.375) / (len(flat) + 0.25))).reshape(x.shape)


def _variances(x: Array) -> tuple[Array, Array]:
    """Within chains, and of their means."""
    return x.var(axis=1, ddof=1).mean(axis=0), x.mean(axis=1).var(axis=0, ddof=1)


def _ratio(x: Array) -> Array:
    length = x.shape[1]
    within, between = _variances(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt((length - 1) / length + between / within)
    return np.where(within > 0, found, np.where(between > 0, np.inf, 1.0))
