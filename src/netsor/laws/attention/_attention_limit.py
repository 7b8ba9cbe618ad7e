"""The limit law of a sum over heads, to many digits, from the law of one head.

Given its scores, an output is N(0, v), v = (σ²/H) Σ_a w_a with w_a i.i.d. over heads:
equation (9) of docs/theory.md. A sample of w becomes a rule of a few hundred nodes, and
repeated squaring gives the law of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy

from ..._array_api import single_threaded
from .._estimate import Array, Estimate, Replicas, Replicated, combined
from .._gaussian_mixture import GaussianMixture1D, normal_moment, weighted
from .._law import Law
from .._law_base import Provenance, checked_heads, real
from .._mixture import Mixture
from .._mixture_components import CELL, cell_width
from .._numerics import log_mean
from ._attention_head import Head, joined, power_moments, power_rule
from ._correction import Correction, LayerFluctuations, correction

CENTRAL = 6.0  # standard deviations of Y within which we use the plain sample of w
# largest exponent of the tilt for which we use the plain sample in the tails too
MAX_UNTILTED_EXPONENT = 1.0
# standard deviations of Y beyond which the logarithm of the density, below −10⁹, grows
# like y²
END = 1e5
SOFT = 100.0  # ratio of the smallest w of two samples above which we assume E[1/√w] = ∞
# fields of the replicas' provenance that a file keeps
REPLICAS = "seed", "random_numbers", "quadrature_error"
RUNG = 1.3  # ratio of two rungs of the ladder of points y that have their own tilt


@single_threaded
class HeadSum(Law):
    """The law of Y given v = (scale/H) Σ_a w_a, Y ~ N(0, v), the w_a independent and
    each with the law of one head.

    It is the law of one coordinate of an attention layer at infinite width, to many
    digits: `ns.Attention(…).law(heads)` and `Program.law` make it.

    Parameters
    ----------
    head : Head or callable
        The law of one head, or a function that makes it when it is first needed.
    heads : int
        H, the number of heads.
    scale : float
        σ_O²σ_V².
    origin : Provenance
        How the law was computed, and its standing.
    mixture : Mixture or callable, optional
        The same law over replicas of the engine, which couples it with other widths; or
        a function that makes it.

    Examples
    --------
    >>> law = ns.Attention(np.eye(4)).law(heads=2)
    >>> print(f"{law.pdf(0.0):.6f} {law.kurtosis():.6f}")
    0.646080 0.121659
    """

    # set if a program made the law
    _fluctuations: Callable[[], LayerFluctuations | None] | None = None

    def __init__(
        self,
        head: Head | Callable[[], Head],
        heads: int,
        scale: float,
        origin: Provenance,
        mixture: Mixture | Callable[[], Any] | None = None,
    ) -> None:
        self.heads, self.scale, self.origin = int(heads), float(scale), origin
        self._head, self._mixture = head, mixture

    @cached_property
    def head(self) -> Head:
        """The law of one head."""
        return self._head if isinstance(self._head, Head) else self._head()

    @cached_property
    def mixture(self) -> Mixture | None:
        """The same law as a mixture over replicas, or None if no program made the
        law.
        """
        return self._mixture() if callable(self._mixture) else self._mixture

    def with_heads(self, heads: int) -> HeadSum:
        """The law of the same layer with another number of heads."""
        law = HeadSum(
            self.head, checked_heads(heads, "with_heads"), self.scale, self.origin
        )
        law._fluctuations = self._fluctuations
        return law

    def infinite_heads(self) -> Mixture:
        """The Gaussian law of the same layer with infinitely many heads; all numbers of
        heads have its variance.
        """
        value, error = self.with_error.var()
        origin = Provenance(
            self.status,
            "infinitely many heads (Hron et al. 2020)",
            quadrature_error=error / value,
        )
        return Mixture(0.0, value, origin)

    def correction(self) -> Correction:
        layer = self._fluctuations() if self._fluctuations else None
        return (
            correction(layer, self.heads, self.scale) if layer else super().correction()
        )

    def _moment(self, order: int) -> Estimate:
        if order % 2 or order == 0:
            return Estimate(float(order == 0), 0.0)
        k = order // 2
        known = self.head.moments is not None and k <= len(self.head.moments)
        with np.errstate(over="ignore"):
            each = (
                power_moments(self.head, self.heads, k)
                * normal_moment(order)
                * self.scale**k
            )
        if not np.isfinite(each).all():
            raise OverflowError(
                f"moment: order={order}: E[Y^{order}] is above the largest double; take"
                " a lower order"
            )
        return Estimate(
            float(each.mean()), 0.0 if known else float(self._sets.spread(each))
        )

    def _var(self) -> Estimate:
        return self._moment(2)

    @cached_property
    def _std(self) -> float:
        return self.std()

    def _shape(self) -> tuple[Estimate, Estimate]:
        nodes, weights, moments = self.head.nodes, self.head.weights, self.head.moments
        if moments is not None:
            each = np.array([moments[1] / moments[0] ** 2 - 1])
        else:
            each = (
                weights
                * (nodes / (weights * nodes).sum(axis=1, keepdims=True) - 1) ** 2
            ).sum(axis=1)
        each = 3 * each / self.heads
        v, weight = self._rule.var / self.var(), self._rule.weight.mean(axis=1)
        # if each v moves by ±ε of itself
        worst = weight @ np.abs(6 * v**2 - 2 * (weight @ (3 * v**2)) * v)
        sampling = Replicas(len(each)).spread(each)
        error = combined(sampling, self.origin.quadrature_error * float(worst))
        # the law is symmetric
        return Estimate(0.0, 0.0), Estimate(float(each.mean()), error)

    # The law as Gaussians over a few variances, by sets

    @cached_property
    def _rule(self) -> GaussianMixture1D:
        """Variances, with weights (nodes, sets)."""
        sets, key = (
            zip(self.head.nodes, self.head.weights, strict=True),
            (self.heads, self.scale),
        )
        rules = (power_rule(*rule, self.heads) for rule in sets)
        return self.head.kept(key, lambda: joined([*rules], self.scale / self.heads))

    @property
    def _sets(self) -> Replicas:
        return Replicas(len(self.head.nodes))

    def _logs(self, y: Array, tail: int) -> Array:
        """log f(y), or with `tail` log P(Y > |y|), by sets (points, sets); tilted rules
        give the tails.
        """
        size, logs = np.abs(y), np.empty((len(y), len(self.head.nodes)))
        near = size <= CENTRAL * self._std
        each = (self._rule.sf if tail else self._rule.pdf)(size[near]) * logs.shape[1]
        with np.errstate(divide="ignore"):  # log 0 is −∞
            logs[near] = np.log(np.maximum(each, 0.0))
        logs[~near] = self._tail_logs(size[~near], tail)
        return logs

    def _densities(self, y: Array) -> Replicated:
        return Replicated(np.exp(self._logs(y, 0)).T, self._sets.weights)

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        tail = np.exp(self._logs(y, 1)).T
        return Replicated(np.where(y > 0, 1 - tail, tail), self._sets.weights)

    def _estimate(self, sets: Replicated) -> Estimate:
        value = sets.rows.mean(axis=0)
        return Estimate(
            value, combined(self._sets.spread(sets.rows), self._coarse * value)
        )

    @cached_property
    def _coarse(self) -> float:
        """The largest relative error of the density from wide cells: (h/2)⁴/3! for each
        squaring; 0 for fine cells.
        """
        width = cell_width(float(np.ptp(np.log(self.head.nodes), axis=1).max()))
        return (
            (width / 2) ** 4 / 6 * (1 + math.log2(self.heads)) if width > CELL else 0.0
        )

    def _pdf(self, y: Array) -> Estimate:
        value, error = self._estimate(self._densities(y))
        lowest = self.head.nodes.min(axis=1)
        # unbounded at 0, and samples do not show it
        if self.heads == 1 and lowest.max() > SOFT * lowest.min():
            error = np.where(y**2 < self.scale * lowest.max(), np.inf, error)
        return Estimate(value, error)

    def _cdf(self, y: Array) -> Estimate:
        # the error is that of the smaller tail: in the other, differences are lost in
        # rounding
        tail = Replicated(np.exp(self._logs(y, 1)).T, self._sets.weights)
        return Estimate(self._distribution(y), self._estimate(tail).error)

    def _distribution(self, y: Array) -> Array:
        return np.asarray(self._distributions(y).rows.mean(axis=0))

    def _sf(self, y: Array) -> Array:
        return self._distribution(-y)

    def _read(self, y: Array) -> tuple[Array, Array, Array]:
        # once for both sides, as the law is symmetric
        tail = np.exp(self._logs(y, 1)).mean(axis=1)
        return (
            np.where(y > 0, 1 - tail, tail),
            np.where(y < 0, 1 - tail, tail),
            self._density(y),
        )

    def _ppf(self, q: Array, upper: bool) -> Array:
        return np.where(q == 0.5, 0.0, super()._ppf(q, upper))  # the law is symmetric

    def _logpdf(self, y: Array) -> Array:
        return log_mean(self._logs(y, 0))

    def _log_tail(self, y: Array, sign: int) -> Array:
        return log_mean(self._logs(y, 1))

    def _log_error(self, y: Array) -> Array:
        # in the tails the density may underflow, but not the ratios of its sets
        logs = self._logs(y, 0)
        part = np.exp(logs - np.maximum(logs.max(axis=1, keepdims=True), -1e300)).T
        mean, spread = part.mean(axis=0), self._sets.spread(part)
        share = np.divide(spread, mean, out=np.zeros(len(y)), where=mean > 0)
        near = np.abs(y) <= CENTRAL * self._std
        return np.where(near, super()._log_error(y), share + self._coarse)

    def _scales(self) -> tuple[Array, Array]:
        std = np.sqrt(self._rule.var)
        scales = np.geomspace(std.min(), std.max(), 9)
        return np.zeros(len(scales)), scales

    def _moved(self, error: float, origin: Provenance) -> Sequence[tuple[Law, Law]]:
        up, down = (
            HeadSum(self.head, self.heads, self.scale * (1 + e), origin)
            for e in (error, -error)
        )
        return [(up, down)]

    # The tails
    #
    # In the tails, f(y) = E[N(y; v)] comes from large v, which are missing in a plain
    # sample. With v tilted by e^(θv), f(y) = E[e^(θv)] E_θ[e^(−θv) N(y; v)]. For θ =
    # y²/2v*² the exponent −θv − y²/2v is largest at v*, and we choose v* as the mean of
    # v under the tilt (the saddle point). Heads are independent, so we tilt each alone:
    # E[e^(θv)] is a power of that of one head. One θ serves all points near a rung of a
    # ladder.

    def _tail_logs(self, y: Array, tail: int) -> Array:
        """`_logs` for large y > 0."""
        y, beyond = (
            np.minimum(y, END * self._std),
            np.maximum(y / (END * self._std), 1.0)[:, None],
        )
        rung = np.rint(np.log(y / (CENTRAL * self._std)) / math.log(RUNG)).astype(
            np.intp
        )
        logs = np.empty((len(y), len(self.head.nodes)))
        for k in np.unique(rung).tolist():
            mine = rung == k
            at = CENTRAL * self._std * RUNG**k
            rule, tilt, height = self.head.kept(
                (self.heads, self.scale, k), partial(self._tilted, at)
            )
            std = np.sqrt(rule.var)
            z = y[mine, None] / std
            exponent = (
                scipy.special.log_ndtr(-z)
                if tail
                else -(z**2) / 2 - np.log(np.sqrt(2 * np.pi) * std)
            )
            exponent = exponent - tilt * rule.var
            top = exponent.max(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                total = np.log(
                    np.maximum(weighted(np.exp(exponent - top), rule.weight), 0.0)
                )
            logs[mine] = height + top + total
        with np.errstate(over="ignore"):
            return np.asarray(logs * beyond**2)

    def _tilted(self, y: float) -> tuple[GaussianMixture1D, float, float]:
        """For points near y: variances with weights by sets, the tilt, and log ψ^H."""
        w, log_weight = self.head.plain
        if (
            y * y / (2 * self.scale * float(w.max()) * self.heads)
            >= MAX_UNTILTED_EXPONENT
        ):
            w, log_weight = self.head.tail  # the tilt needs rare values
        low, high = 0.0, self.scale * float(w.max())
        # v* by bisection in one set, to 9 digits; any tilt gives the right law
        for _ in range(30):
            v = (low + high) / 2
            exponent = (
                log_weight[0] + y**2 / (2 * v**2) * self.scale / self.heads * w[0]
            )
            tilted = np.exp(exponent - exponent.max())
            # the mean falls as v grows
            below = self.scale * float(np.sum(tilted * w[0]) / tilted.sum()) > v
            low, high = (v, high) if below else (low, v)
        tilt = y**2 / (2 * v**2)
        steep = tilt * self.scale / self.heads
        exponent = log_weight + steep * w
        # log ψ to all digits, because we multiply it by the number of heads
        if steep * float(w.max()) < 1:
            tops = np.log1p((np.exp(log_weight) * np.expm1(steep * w)).sum(axis=1))
        else:
            tops = scipy.special.logsumexp(exponent, axis=1)
        top = float(tops.mean())
        near = exponent > exponent.max(axis=1, keepdims=True) - 42
        weights = np.where(near, np.exp(exponent - tops[:, None]), 0.0)
        cell = min(0.01, 0.1 * math.sqrt(v) / y)
        rules = [
            power_rule(*rule, self.heads, cell) for rule in zip(w, weights, strict=True)
        ]
        heights = np.exp(np.minimum(self.heads * (tops - top), 700.0)) * len(w)
        rules = [
            (nodes, weights * height)
            for (nodes, weights), height in zip(rules, heights, strict=True)
        ]
        return joined(rules, self.scale / self.heads), tilt, self.heads * top

    def _cf(self, t: Array) -> Estimate:
        # ψ(σ² t²/2H)^H
        with np.errstate(over="ignore"):  # e^(−∞) is 0
            u = self.scale * t[:, None] ** 2 / (2 * self.heads)
        rules = zip(self.head.nodes, self.head.weights, strict=True)
        # ψ − 1
        psi = [
            np.maximum(weighted(np.expm1(-u * nodes), weights), -1.0)
            for nodes, weights in rules
        ]
        with np.errstate(divide="ignore"):  # ψ may be 0
            each = np.exp(self.heads * np.log1p(psi))
            value = np.exp(self.heads * np.log1p(np.mean(psi, axis=0)))
        return Estimate(
            value.astype(np.complex128),
            combined(self._sets.spread(each), self._coarse * value),
        )

    def latex(self) -> str:
        """The formula of the program that made the law; without a program, by the
        variance of each head.
        """
        if self._formula is not None:
            return super().latex()
        var = (
            rf"\frac{{{self.scale:.6g}}}{{{self.heads}}}"
            rf" \sum_{{a=1}}^{{{self.heads}}} w_a"
        )
        return (
            rf"Y \mid w \sim \mathcal{{N}}\Bigl(0, {var}\Bigr), \quad w_a ="
            r" \sum_{j,k} A_{aj} A_{ak} K_{jk}"
        )

    def _rvs(self, size: int, rng: np.random.Generator) -> Array:
        # a variance of the rule times a normal
        weight = np.maximum(self._rule.weight.sum(axis=1), 0.0)
        var = rng.choice(self._rule.var, size=size, p=weight / weight.sum())
        return np.asarray(np.sqrt(var) * rng.standard_normal(size))

    def _arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "heads": str(self.heads),
            "scale": self.scale,
            **self.head.arrays(),
        }
        if self._fluctuations and (layer := self._fluctuations()):
            arrays |= {
                f"correction_{name}": value for name, value in vars(layer).items()
            }
        if self.mixture is not None:
            made = {name: getattr(self.mixture.origin, name) for name in REPLICAS}
            arrays |= {
                f"mixture_{name}": value
                for name, value in (self.mixture._arrays() | made).items()
            }
        return arrays

    @classmethod
    def _from_arrays(cls, origin: Provenance, **arrays: Any) -> HeadSum:
        own, first = (
            {
                name.removeprefix(prefix): arrays[name]
                for name in arrays
                if name.startswith(prefix)
            }
            for prefix in ("mixture_", "correction_")
        )
        mixture = None
        if own:
            seed, numbers, error = (own.pop(name, None) for name in REPLICAS)
            about, known = (
                f"replicas of: {origin.method}",
                None if seed is None else int(seed),
            )
            made = Provenance(
                origin.status, about, int(numbers or 0), known, float(error or 0.0)
            )
            mixture = Mixture(origin=made, **own)
        heads = checked_heads(int(str(arrays["heads"])), "HeadSum")
        scale = real(arrays["scale"], "scale", "HeadSum", above=0.0)
        law = cls(Head.from_arrays(arrays), heads, scale, origin, mixture)
        if first:
            layer = LayerFluctuations.from_arrays(**first)
            law._fluctuations = lambda: layer
        return law
