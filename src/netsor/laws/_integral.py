"""Integrals over a law: its entropy, and the expectation of a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from ..language._given import shown
from ._estimate import Array, Estimate, combined
from ._grid import coarser, integrated, resolved
from ._law_error import LawError
from ._resample import Jackknife, jackknife

if TYPE_CHECKING:
    from collections.abc import Sequence


def entropy(dense: Any, wider: Any) -> Estimate:
    """−E[log f(Y)] of a law with a density; `wider` is the law with kernels of twice the variance, or the same."""
    value, bias, error, _ = _entropy(dense)
    # the bias of the kernels: doubling their variance doubles it, so it is the change
    smoothing = 0.0 if wider is dense else _entropy(wider).value - value
    return Estimate(value, combined(error, bias, smoothing))  # of this law as it is, so a bias is an error


def _entropy(law: Any) -> Jackknife:
    nodes = resolved([law._read], *law._pieces())

    def integrand(y: Array) -> Array:
        log_f = law._logpdf(y)
        return np.asarray(-np.exp(log_f) * np.maximum(log_f, -1e300))

    y, weights = integrated(integrand, coarser(nodes))

    def functional(f: Array) -> Array:
        logs = np.log(np.where(f > 0, f, 1.0))
        return np.asarray(-np.sum(weights * f * logs, axis=-1))

    return jackknife(functional, [law._densities(y)])


def expectation(dense: Any, wider: Any, atoms: Sequence[tuple[float, Estimate]], f: Callable[[Any], Any]) -> Estimate:
    """E[f(Y)]: over the density by quadrature, and at the atoms."""
    value, error = 0.0, 0.0
    if len(dense._pieces()[0]):
        value, _, error, _ = _expectation(dense, f)
        smoothing = 0.0 if wider is dense else _expectation(wider, f).value - value
        error = combined(error, smoothing)
    at = _called(f, np.array([place for place, _ in atoms])) if atoms else np.zeros(0)
    masses = [mass for _, mass in atoms]
    value += math.fsum(height * mass.value for height, mass in zip(at, masses, strict=True))
    # what one atom has too much others have too little, so that the errors of their masses add in the worst case
    return Estimate(value, error + math.fsum(abs(h) * mass.error for h, mass in zip(at, masses, strict=True)))


def _expectation(law: Any, f: Callable[[Any], Any]) -> Jackknife:
    nodes = resolved([law._read], *law._pieces())
    y, weights = integrated(lambda y: _called(f, y) * law._density(y), coarser(nodes))
    heights = weights * _called(f, y)
    return jackknife(lambda density: np.sum(heights * density, axis=-1), [law._densities(y)])


def _called(f: Callable[[Any], Any], y: Array) -> Array:
    if not callable(f):
        raise LawError("expect", f"func={shown(f)} must be a function of numbers")
    found = np.asarray(f(y), dtype=np.float64)
    if found.shape != y.shape:
        if found.shape:
            raise LawError(
                "expect", f"func gave shape {found.shape} for {y.shape}: it must act on each number for itself"
            )
        found = np.full(y.shape, float(found))
    if not np.isfinite(found).all():
        bad = y[~np.isfinite(found)][0]
        raise LawError("expect", f"func({bad:g}) is not finite: the expectation is not known")
    return found


def log_share(share: Array, rest: Array) -> Array:
    """The logarithm of a probability, from it and 1 minus it, right at both ends."""
    with np.errstate(divide="ignore"):
        return np.where(share < 0.5, np.log(np.maximum(share, 0.0)), np.log1p(-np.minimum(rest, 1.0)))


def log_mean(logs: Array) -> Array:
    """The logarithm of the mean over the last axis of numbers that may be no doubles."""
    return np.asarray(scipy.special.logsumexp(logs, axis=-1) - math.log(logs.shape[-1]))


def log_upper(found: Array, y: Array, mean: Array, var: Array, weight: Array) -> Array:
    """log P(Y > y) of Gaussians, where it was found to be −∞ because P is no double."""
    for i in np.flatnonzero(np.isneginf(found)):
        terms = scipy.special.log_ndtr((mean - y[i]) / np.sqrt(var)) + np.log(weight)
        found[i] = scipy.special.logsumexp(terms)
    return found
