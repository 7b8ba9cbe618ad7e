"""Laws of more replicas than are kept: Gaussians that stand for cells of them, with how many each stands for.

A number of the law is an average over all replicas, and its error follows from the spread between them, as ever: the
cells say both. Distances need blocks of replicas; since replicas are exchangeable, the counts of a block are those of
the cells split at random, which is done with a fixed seed.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..language._given import numbers
from ..language._where import TraceError
from ._cf import mixture_cf
from ._checked import checked_origin
from ._estimate import Array, Estimate, combined, student
from ._gaussians import Gaussians, normal_moment
from ._law import Law
from ._mixture import gaussian_like
from ._origin import Origin
from ._replicas import BLOCKS, Replicas, Replicated
from ._shape import STEEPER, Shape
from ._store import storable


@storable
class Gathered(Law):
    """The mixture of N(mean_k, var_k), each component standing for count_k replicas.

    `binning` is how far the density is off because of the cells, relative to its largest value: measured on replicas
    that were kept one by one.
    """

    def __init__(
        self, mean: npt.ArrayLike, var: npt.ArrayLike, count: npt.ArrayLike, origin: Origin, binning: float = 0.0
    ) -> None:
        given = {"mean": mean, "var": var, "count": count}
        self.component_mean, self.component_var, self.count = (numbers(a, "Gathered", k) for k, a in given.items())
        shapes = {a.shape for a in (self.component_mean, self.component_var, self.count)}
        if len(shapes) > 1 or self.count.ndim != 1:
            raise TraceError("Gathered", f"mean, var and count must be (components,), got {sorted(shapes)}")
        for name, array in (("var", self.component_var), ("count", self.count)):
            if (array < 0).any():
                raise TraceError("Gathered", f"{name} has {array.min():g}; it must be 0 or more")
        if not (self.count @ self.component_var > 0):
            raise TraceError("Gathered", "no component has a variance and a count above 0; Mixture takes points alone")
        self.origin, self.binning = checked_origin(origin, "Gathered"), float(binning)
        self.replicas = round(float(self.count.sum()))
        self.component_weight = self.count / self.count.sum()
        smooth = self.component_var > 0
        self._smooth = Gaussians(self.component_mean[smooth], self.component_var[smooth], self.component_weight[smooth])
        at, where = np.unique(self.component_mean[~smooth], return_inverse=True)
        self._points = at, np.bincount(where, self.component_weight[~smooth], len(at)).astype(np.float64)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of this law."""
        many = f"{self.replicas:,} replicas gathered in {len(self.count):,} Gaussians"
        return (*super().notes, f"{many}, which moves the density by {self.binning:.0e} of its largest value")

    def _spread(self, square: Array, value: Any = 0.0) -> Array:
        """The standard error of an average over replicas, from the average of its square, about 0 or the value."""
        variance = np.maximum(square - value**2, 0.0)
        return np.asarray(student(max(2, self.replicas)) * np.sqrt(variance / max(self.replicas - 1, 1)))

    @property
    def _replicas(self) -> Replicas:
        return Replicas(len(self.count), self.component_weight, self.replicas)

    def _steps(self, y: Array, side: Any = "right") -> Array:
        at, mass = self._points
        return np.concatenate([[0.0], np.cumsum(mass)])[np.searchsorted(at, y, side=side)]

    @property
    def atoms(self) -> tuple[tuple[float, Estimate], ...]:
        """The points that have a probability of their own, with that probability."""
        errors = self._spread(self._points[1], self._points[1])
        return tuple(
            (float(at), Estimate(float(mass), float(error), self.sources))
            for at, mass, error in zip(*self._points, errors, strict=True)
        )

    # Densities and distribution functions

    def _pdf(self, y: Array) -> Estimate:
        value = self._smooth.pdf(y)
        square = Gaussians(self._smooth.mean, self._smooth.var, np.sqrt(self._smooth.weight)).squares(y, "pdf")[:, 0]
        unseen = self._smooth.unseen(y, "pdf", self.replicas)
        return Estimate(value, combined(self._spread(square, value), unseen, self.binning * self._largest))

    @cached_property
    def _largest(self) -> float:
        """Of the density: as far as it is known at the components that a grid is made for."""
        return float(self._smooth.pdf(self._pieces()[0]).max())

    def _logpdf(self, y: Array) -> Array:
        return self._smooth.logpdf(y)

    def _cdf(self, y: Array) -> Estimate:
        steps = self._steps(y)
        value = np.minimum(self._smooth.cdf(y) + steps, 1.0)
        # of the smaller one of the two tails: the other's square is 1, but for what is asked for
        upper = value > 0.5
        side, tail = np.where(upper, -1.0, 1.0), np.where(upper, self._sf(y), value)
        points = np.where(upper, self._points[1].sum() - steps, steps)
        square = np.empty_like(value)
        for sign in (1.0, -1.0):
            here = side == sign
            one = Gaussians(sign * self._smooth.mean, self._smooth.var, np.sqrt(self._smooth.weight))
            square[here] = one.squares(sign * y[here], "cdf")[:, 0]
        unseen = self._smooth.unseen(y, "cdf", self.replicas)
        return Estimate(value, combined(self._spread(square + points, tail), unseen, self.binning))

    def _sf(self, y: Array) -> Array:
        return np.asarray(self._smooth.sf(y) + self._points[1].sum() - self._steps(y))

    # For distances

    @cached_property
    def _blocked(self) -> tuple[Array, Array]:
        """The weights of the components in each block (components, blocks), and the blocks' weights."""
        rng = np.random.default_rng([self.replicas, len(self.count)])
        whole = np.floor(self.count).astype(np.int64)
        split = rng.multinomial(whole, np.full(BLOCKS, 1 / BLOCKS)).astype(np.float64)
        split += (self.count - whole)[:, None] / BLOCKS  # two nodes may share a cell's count, in parts
        mass = split.sum(axis=0)
        return split / mass, mass / mass.sum()

    def _sums(self) -> tuple[Gaussians, Array]:
        weight, mass = self._blocked
        return Gaussians(self._smooth.mean, self._smooth.var, weight[self.component_var > 0]), mass

    def _densities(self, y: Array) -> Replicated:
        gaussians, mass = self._sums()
        return Replicated(gaussians.pdf(y).T, mass)

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        gaussians, mass = self._sums()
        return Replicated(gaussians.cdf(y).T + self._steps(y, side), mass)

    def _jumps(self) -> Array:
        return self._points[0]

    def _read(self, y: Array) -> tuple[Array, Array, Array]:
        whole = self._smooth._replace(weight=self._smooth.weight / self._smooth.weight.sum())
        return whole.cdf(y), whole.sf(y), whole.pdf(y)

    def _pieces(self) -> tuple[Array, Array]:
        std = np.sqrt(self._smooth.var)
        order = np.lexsort((std, self._smooth.mean))
        chosen = order[np.linspace(0, len(std) - 1, min(len(std), 33)).astype(np.intp)]
        chosen = np.append(chosen, [np.argmin(std), np.argmax(std)])
        spread = max(float(np.ptp(self._smooth.mean)), float(std.max()))
        return np.append(self._smooth.mean[chosen], self._smooth.mean.mean()), np.append(std[chosen], spread)

    def _perturbed(self) -> Any:
        error = self.origin.quadrature_error
        if error < 1e-14:
            return ()
        origin = Origin(self.status, self.method, seed=self.origin.seed)
        up, down = (
            Gathered(self.component_mean, self.component_var * max(1 + sign * error, 0.0), self.count, origin)
            for sign in (1, -1)
        )
        if not self.component_mean.any():
            return [(up, down)]
        scale = np.where(self.component_var > 0, np.sqrt(self.component_var), self.std())
        right, left = (
            Gathered(self.component_mean + sign * error * scale, self.component_var, self.count, origin)
            for sign in (1, -1)
        )
        return [(up, down), (right, left)]

    # Moments

    def _moment(self, order: int) -> Estimate:
        mean, var = self.component_mean, self.component_var
        total = np.zeros_like(mean)
        with np.errstate(over="ignore"):
            for k in range(0, order + 1, 2):  # E(μ + σZ)^p = Σ_k C(p, k) μ^(p−k) σ^k (k − 1)!!
                total = total + math.comb(order, k) * mean ** (order - k) * var ** (k // 2) * normal_moment(k)
        if not np.isfinite(total).all():
            raise OverflowError(f"moment: order={order}: E[Y^{order}] is above the largest double; take a lower order")
        return self._replicas.average(total, STEEPER if order > 2 else 0.0)

    def _var(self) -> Estimate:
        centre = self.component_weight @ self.component_mean
        return self._replicas.average(self.component_var + (self.component_mean - centre) ** 2)

    def _kurtosis(self) -> Estimate:
        return self._shape().kurtosis()

    def _skewness(self) -> Estimate:
        return self._shape().skewness()

    def _shape(self) -> Shape:
        unit = math.sqrt(self.var())
        mean = (self.component_mean - self.component_weight @ self.component_mean) / unit
        return Shape(mean, self.component_var / unit**2, self._replicas, self.origin.quadrature_error)

    # Others

    def _cf(self, t: Array) -> Estimate:
        return mixture_cf(t, self.component_mean, self.component_var, self._replicas)

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        chosen = rng.choice(len(self.count), size=size, p=self.component_weight)
        noise = np.sqrt(self.component_var[chosen]) * rng.standard_normal(size)
        return np.asarray(self.component_mean[chosen] + noise)

    def gaussian(self) -> Law:
        """The Gaussian with this law's mean and variance."""
        return gaussian_like(self)

    def _arrays(self) -> dict[str, Any]:
        return {
            "mean": self.component_mean, "var": self.component_var, "count": self.count, "binning": self.binning
        }  # fmt: skip

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any], origin: Origin) -> Gathered:
        return cls(arrays["mean"], arrays["var"], arrays["count"], origin, float(arrays["binning"]))
