"""What a law can be compared with: other laws, frozen distributions of scipy.stats, arrays of draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..language._given import shown
from ._checked import checked_draws, numbers
from ._estimate import Array, Estimate
from ._joint import Joint
from ._law import Law
from ._law_base import LawBase, LawError, Provenance
from ._mixture import Mixture, gaussian_like


def as_law(other: Any) -> Law:
    """The law that is meant."""
    if isinstance(other, Law):
        return other
    if isinstance(other, LawBase):
        raise LawError(
            "distance", f"is between laws of one variable, got {shown(other)}; of a joint law take one, law[i]"
        )
    if all(hasattr(other, name) for name in ("pdf", "cdf", "sf", "rvs")) and not isinstance(other, np.ndarray):
        return ScipyLaw(other)
    if hasattr(other, "pmf"):
        raise LawError("distance", f"{shown(other)} is discrete; it needs a law with a density, or an array of draws")
    if isinstance(other, np.ndarray | list | tuple):
        draws = checked_draws(other)
        return Mixture(draws, 0.0, Provenance("estimated", f"{draws.size} draws"))
    hint = "; ask for its law first, net.law(n=…)" if hasattr(other, "law") else ""
    raise LawError(
        "a law is needed",
        "what is compared or drawn are laws, frozen distributions of scipy.stats and arrays of draws, "
        f"got {type(other).__name__}{hint}",
    )


def as_joint(other: Any, dim: int, operation: str) -> Joint:
    """The joint law of so many entries that is meant; draws, an array (draws, entries), are points."""
    if isinstance(other, Joint):
        law = other
    elif all(hasattr(other, name) for name in ("mean", "cov", "logpdf", "rvs")):  # multivariate_normal
        law = Joint(
            np.atleast_2d(other.mean), np.atleast_2d(other.cov)[None], Provenance("exact", "scipy.stats normal")
        )
    elif isinstance(other, np.ndarray) and other.ndim == 2 and len(other) > 1:
        draws = numbers(other, operation, "draws")
        cov = np.zeros((*draws.shape, draws.shape[1]))
        law = Joint(draws, cov, Provenance("estimated", f"{len(draws)} draws"))
    else:
        raise LawError(
            operation,
            "is between joint laws, frozen scipy.stats.multivariate_normal and arrays (draws, entries), "
            f"got {shown(other)}; for one variable take an entry, law[i]",
        )
    if law.dim != dim:
        raise LawError(operation, f"joint laws of {dim} and {law.dim} entries; take marginals")
    return law


class ScipyLaw(Law):
    """A frozen distribution of scipy.stats, as a law without errors."""

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution
        kind = getattr(distribution, "dist", distribution)
        self.origin = Provenance("exact", f"scipy.stats {getattr(kind, 'name', type(kind).__name__)}")

    def _pdf(self, y: Array) -> Estimate:
        try:
            value = np.asarray(self.distribution.pdf(y), dtype=np.float64)
        except OverflowError:  # some say so, and some return infinity
            value = np.full(len(y), np.inf)
        if not np.isfinite(value).all():
            raise LawError(
                "density",
                f"{self.method} has an infinite density somewhere; a distance needs a bounded one, "
                "or an array of draws",
            )
        return Estimate(value, np.zeros(len(y)))

    def _cdf(self, y: Array) -> Estimate:
        return Estimate(np.asarray(self.distribution.cdf(y), dtype=np.float64), np.zeros(len(y)))

    def _sf(self, y: Array) -> Array:
        return np.asarray(self.distribution.sf(y), dtype=np.float64)

    def _logpdf(self, y: Array) -> Array:
        return np.asarray(self.distribution.logpdf(y), dtype=np.float64)

    def _moment(self, order: int) -> Estimate:
        value = self.distribution.mean() if order == 1 else self.distribution.moment(order)
        return Estimate(float(value), 0.0)

    def _var(self) -> Estimate:
        return Estimate(float(self.distribution.var()), 0.0)

    def _kurtosis(self) -> Estimate:
        return Estimate(float(self.distribution.stats(moments="k")), 0.0)

    def _skewness(self) -> Estimate:
        return Estimate(float(self.distribution.stats(moments="s")), 0.0)

    def support(self) -> tuple[float, float]:
        """The ends of where the law is."""
        low, high = self.distribution.support()
        return float(low), float(high)

    def _pieces(self) -> tuple[Array, Array]:
        low, middle, high = (float(self.distribution.ppf(q)) for q in (0.1, 0.5, 0.9))
        return np.array([middle]), np.array([max((high - low) / 2.5, math.ulp(middle))])

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        return np.asarray(self.distribution.rvs(size, random_state=rng), dtype=np.float64)

    def _cf(self, t: Array) -> Estimate:
        # by quadrature over the density
        from ._numerics import integrated, resolved  # seldom needed

        y, w = integrated(lambda p: self._pdf(p).value, resolved([self._read], *self._pieces()))
        return Estimate(np.exp(1j * t[:, None] * y) @ (w * self._pdf(y).value), np.zeros(len(t)))

    def gaussian(self) -> Mixture:
        """The Gaussian with its mean and variance."""
        return gaussian_like(self)
