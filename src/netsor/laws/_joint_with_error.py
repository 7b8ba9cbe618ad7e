"""The numbers of a joint law with their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .._array_api import single_threaded
from ..language._given import shown
from ._checked import points
from ._estimate import Array, Estimate, combined
from ._law_base import LawError
from ._mixture import CONSTANT
from ._mixture_nd import GaussianMixtureND

Joint = Any  # `_joint.Joint`, which imports this file


@single_threaded
class JointWithError:
    """The numbers of a joint law, each as an Estimate."""

    def __init__(self, law: Joint) -> None:
        self._law = law

    def _made(self, found: Estimate, doubt: Any) -> Estimate:
        return Estimate(found.value, combined(found.error, doubt), self._law.sources)

    def mean(self) -> Estimate:
        """E[Y]."""
        law = self._law
        found = law._replicas.average(law.component_mean)
        if not law.component_mean.any():
            return self._made(found, 0.0)
        std, size = law.std(), np.abs(found.value)
        return self._made(found, law.origin.quadrature_error * np.where(std > CONSTANT * size, std, size))

    def cov(self) -> Estimate:
        """The covariance matrix."""
        law = self._law
        found = law._replicas.average(law._second())
        std = np.sqrt(np.maximum(np.diag(found.value), 0.0))
        return self._made(found, law.origin.quadrature_error * np.outer(std, std))

    def var(self) -> Estimate:
        """The variance of each entry."""
        value, error = self.cov()
        return Estimate(np.diag(value).copy(), np.diag(error).copy(), self._law.sources)

    def corr(self) -> Estimate:
        """The correlation matrix; NaN for an entry without variance."""
        law = self._law
        second = law._second()
        std = spread(law._replicas.mean(second))
        unit = second / np.outer(std, std)
        rho = law._replicas.mean(unit)
        own = np.diagonal(unit, axis1=1, axis2=2)
        influence = unit - 0.5 * rho * (own[:, :, None] + own[:, None, :])  # delta method
        error = np.asarray(law._replicas.average(influence).error)
        np.fill_diagonal(error, 0.0)
        np.fill_diagonal(rho, std / std)
        return self._made(Estimate(rho, error), law.origin.quadrature_error * (1 - rho**2))

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The joint density at points (…, entries)."""
        law = self._law
        at = law._at("pdf", y)
        flat = at.reshape(-1, law.dim)
        value, error = law._normals.pdf_with_error(flat)
        doubt = np.max([np.abs(other.pdf(flat) - value) for other in self._off()] or [0.0], axis=0)
        total = np.broadcast_to(combined(error, doubt, law._normals.unseen(flat)), value.shape)
        shape = at.shape[:-1]
        return Estimate(value.reshape(shape)[()], total.reshape(shape)[()], law.sources)

    def cdf(self, y: npt.ArrayLike, lower: npt.ArrayLike | None = None) -> Estimate:
        """The probability of a rectangle: lower < Y ≤ y in every entry."""
        upper, low = self._corner("y", y), self._corner("lower", -math.inf if lower is None else lower)
        if not (low <= upper).all():
            raise LawError("cdf", f"lower={shown(lower)} must be at most y={shown(y)}, in every entry")
        found = self._law._normals.rectangle(low, upper)
        others = [other.rectangle(low, upper).value for other in self._off()]
        return self._made(found, max((abs(other - found.value) for other in others), default=0.0))

    def _off(self) -> list[GaussianMixtureND]:
        """The law with covariances off by the error of Gaussian expectations, either way; none if exact."""
        law, error = self._law, self._law.origin.quadrature_error
        signs = (1, -1) if error > 1e-14 else ()
        return [
            GaussianMixtureND(law.component_mean, law.component_cov * (1 + sign * error), law.weight) for sign in signs
        ]

    def _corner(self, name: str, given: npt.ArrayLike) -> Array:
        """A corner of a rectangle: a number for each entry, or one for all."""
        corner = points(given, name, "cdf")
        if corner.shape not in ((), (1,), (self._law.dim,)):
            raise LawError("cdf", f"{name} of shape {corner.shape} must be a number, or ({self._law.dim},)")
        return np.broadcast_to(corner, (self._law.dim,))


def spread(cov: Array) -> Array:
    """Standard deviations; NaN for an entry without variance, which has no correlations."""
    std = np.sqrt(np.diag(cov))
    return np.where(std > 0, std, np.nan)
