"""The limit law of a sum over heads, to many digits, from the law of one head.

Given its scores, an output is N(0, v), v = (σ²/H) Σ_a w_a with w_a i.i.d. over heads:
equation (9) of docs/theory.md. A sample of w becomes a rule of a few hundred nodes, and
repeated squaring gives the law of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy

from ..._array_api import single_threaded
from .._estimate import Array, Estimate, Replicas, Replicated, combined
from .._gaussian_mixture import GaussianMixture1D, normal_moment, weighted
from .._law import MIN_DENSITY, Law
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
# ratio of the smallest w of two samples above which we assume E[1/√w] = ∞
UNRESOLVED = 100.0
# fields of the replicas' provenance that a file keeps
REPLICA_FIELDS = "seed", "random_numbers", "quadrature_error"
# e^(−42) is below half a unit in the last place of a double: smaller weights are 0
LOG_RANGE = 42
LARGEST_LOG = 700.0  # close to the logarithm of the largest double
BISECTIONS = 30  # for 9 digits
ROUNDING = 1e-8  # relative error of log f in the tails, from cells of a rule; measured
RUNG = 1.3  # ratio of two rungs of the ladder of points y that have their own tilt


class _TiltedRule(NamedTuple):
    """The variances v tilted by e^(θv), for y near one point."""

    variances: GaussianMixture1D  # with weights (nodes, sets)
    tilt: float  # θ
    log_scale: float  # log E[e^(θv)], the mean over sets


@single_threaded
class HeadSum(Law):
    """The law of Y given v = (scale/H) Σ_a w_a, Y ~ N(0, v), the w_a independent and
    each with the law of one head.

    It is the law of one coordinate of an attention layer at infinite width, to many
    digits: `ns.Attention(…).law(heads)` and `Program.law` return it.

    Parameters
    ----------
    head : Head or callable
        The law of one head, or a function that makes it when it is first needed.
    heads : int
        H, the number of heads.
    scale : float
        σ_O²σ_V².
    origin : Provenance
        How the law was computed, and its status.
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
        self.heads = int(heads)
        self.scale = float(scale)
        self.origin = origin
        # either may be a function that makes it: `head` and `mixture` call it
        self._head = head
        self._mixture = mixture

    @cached_property
    def head(self) -> Head:
        """The law of one head."""
        if isinstance(self._head, Head):
            return self._head
        return self._head()

    @cached_property
    def mixture(self) -> Mixture | None:
        """The same law as a mixture over replicas; None if no program made the law."""
        if not callable(self._mixture):
            return self._mixture
        mixture: Mixture | None = self._mixture()
        return mixture

    def with_heads(self, heads: int) -> HeadSum:
        """The law of the same layer with another number of heads."""
        heads = checked_heads(heads, "with_heads")
        law = HeadSum(self.head, heads, self.scale, self.origin)
        law._fluctuations = self._fluctuations
        return law

    def infinite_heads(self) -> Mixture:
        """The Gaussian law of the same layer with infinitely many heads.

        Its variance is the same for every number of heads.
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
        if layer is None:
            error: Correction = super().correction()  # raises
            return error
        return correction(layer, self.heads, self.scale)

    def _moment(self, order: int) -> Estimate:
        """E[Y^order]; without an error if it follows from exact moments of w."""
        if order == 0:
            return Estimate(1.0, 0.0)
        if order % 2:  # the law is symmetric
            return Estimate(0.0, 0.0)
        k = order // 2
        # E[Y^2k] = E[v^k] E[Z^2k] with a standard normal Z
        with np.errstate(over="ignore"):
            by_set = power_moments(self.head, self.heads, k) * normal_moment(order)
            by_set = by_set * self.scale**k
        if not np.isfinite(by_set).all():
            raise OverflowError(
                f"moment: order={order}: E[Y^{order}] is above the largest double; take"
                " a lower order"
            )
        is_exact = self.head.moments is not None and k <= len(self.head.moments)
        error = 0.0 if is_exact else float(self._sets.spread(by_set))
        return Estimate(float(by_set.mean()), error)

    def _var(self) -> Estimate:
        """The variance is the second moment, because the mean is 0."""
        return self._moment(2)

    @cached_property
    def _std(self) -> float:
        """The standard deviation, computed once."""
        return self.std()

    def _shape(self) -> tuple[Estimate, Estimate]:
        """Skewness and excess kurtosis."""
        # the excess kurtosis is 3 Var[v]/E[v]² = (3/H) Var[w]/E[w]²
        kurtosis_by_set = 3 * self._relative_variances() / self.heads
        sampling = Replicas(len(kurtosis_by_set)).spread(kurtosis_by_set)
        # Quadrature may move each v by ±ε of itself. In units in which E[v] = 1, the
        # kurtosis 3 E[v²]/E[v]² then changes by up to ε E|6 v² − 2 E[3 v²] v|.
        v = self._rule.var / self.var()
        weight = self._rule.weight.mean(axis=1)
        fourth_moment = weight @ (3 * v**2)
        change_by_component = 6 * v**2 - 2 * fourth_moment * v
        largest_change = float(weight @ np.abs(change_by_component))
        quadrature = self.origin.quadrature_error * largest_change
        kurtosis = Estimate(
            float(kurtosis_by_set.mean()), combined(sampling, quadrature)
        )
        skewness = Estimate(0.0, 0.0)  # the law is symmetric
        return skewness, kurtosis

    def _relative_variances(self) -> Array:
        """Var[w]/E[w]² by sets: (sets,), or (1,) if the moments of w are exact."""
        moments = self.head.moments
        if moments is not None:
            return np.array([moments[1] / moments[0] ** 2 - 1])
        nodes = self.head.nodes
        weights = self.head.weights
        mean = (weights * nodes).sum(axis=1, keepdims=True)
        deviation = nodes / mean - 1
        return np.asarray((weights * deviation**2).sum(axis=1))

    # The law as Gaussians over a few variances, by sets

    @cached_property
    def _rule(self) -> GaussianMixture1D:
        """Variances, with weights (nodes, sets)."""
        return self.head.kept((self.heads, self.scale), self._variances)

    def _variances(self) -> GaussianMixture1D:
        """The law of v, the convolution power of the law of one head."""
        rules = [
            power_rule(nodes, weights, self.heads)
            for nodes, weights in zip(self.head.nodes, self.head.weights, strict=True)
        ]
        return joined(rules, self.scale / self.heads)

    @property
    def _sets(self) -> Replicas:
        """Averages over the sets, with their errors."""
        return Replicas(len(self.head.nodes))

    def _logs(self, y: Array, tail: bool) -> Array:
        """log f(y), or with `tail` log P(Y > |y|): (points, sets) for y (points,).

        The plain rule gives it near the centre, and tilted rules in the tails.
        """
        size = np.abs(y)
        sets = len(self.head.nodes)
        logs = np.empty((len(y), sets))
        near = size <= CENTRAL * self._std
        function = self._rule.sf if tail else self._rule.pdf
        # the rule's weights have the sum 1 over all sets
        by_set = function(size[near]) * sets
        with np.errstate(divide="ignore"):  # log 0 is −∞
            logs[near] = np.log(np.maximum(by_set, 0.0))
        far = ~near
        logs[far] = self._tail_logs(size[far], tail)
        return logs

    def _densities(self, y: Array) -> Replicated:
        """f(y) by sets: rows (sets, points)."""
        densities = np.exp(self._logs(y, tail=False)).T
        return Replicated(densities, self._sets.weights)

    def _distributions(self, y: Array, side: str = "right") -> Replicated:
        """P(Y ≤ y) by sets: rows (sets, points). The law has no atoms, so that both
        sides are the same.
        """
        tail = np.exp(self._logs(y, tail=True)).T
        return Replicated(np.where(y > 0, 1 - tail, tail), self._sets.weights)

    def _estimate(self, sets: Replicated) -> Estimate:
        """The mean over sets, with the errors of sampling and of wide cells."""
        value = sets.rows.mean(axis=0)
        sampling = self._sets.spread(sets.rows)
        return Estimate(value, combined(sampling, self._coarse * value))

    @cached_property
    def _coarse(self) -> float:
        """The largest relative error of the density from wide cells; 0 for fine cells.

        It is (h/2)⁴/3! for each squaring, with cells of width h.
        """
        range_of_logs = np.ptp(np.log(self.head.nodes), axis=1)  # of each set
        width = cell_width(float(range_of_logs.max()))
        if width <= CELL:
            return 0.0
        squarings = 1 + math.log2(self.heads)
        return (width / 2) ** 4 / 6 * squarings

    def _pdf(self, y: Array) -> Estimate:
        """f(y), for y (points,)."""
        value, error = self._estimate(self._densities(y))
        # With one head, f(0) ∝ E[1/√w] may be infinite, which samples do not show. We
        # assume it if the smallest w of the samples differ much.
        if self.heads == 1:
            smallest_w = self.head.nodes.min(axis=1)  # of each set
            differ_much = smallest_w.max() > UNRESOLVED * smallest_w.min()
            if differ_much:
                is_near_0 = y**2 < self.scale * smallest_w.max()
                error = np.where(is_near_0, np.inf, error)
        return Estimate(value, error)

    def _cdf(self, y: Array) -> Estimate:
        """P(Y ≤ y), for y (points,)."""
        # the error is that of the smaller tail: in the other, differences are lost in
        # rounding
        tail = np.exp(self._logs(y, tail=True)).T
        of_tail = self._estimate(Replicated(tail, self._sets.weights))
        return Estimate(self._distribution(y), of_tail.error)

    def _distribution(self, y: Array) -> Array:
        """P(Y ≤ y), (points,)."""
        return np.asarray(self._distributions(y).rows.mean(axis=0))

    def _sf(self, y: Array) -> Array:
        """P(Y > y) = P(Y ≤ −y), because the law is symmetric."""
        return self._distribution(-y)

    def _read(self, y: Array) -> tuple[Array, Array, Array]:
        """P(Y ≤ y), P(Y > y) and f(y), for y (points,)."""
        # P(Y > |y|), one tail for both sides, as the law is symmetric
        tail_by_set = np.exp(self._logs(y, tail=True))
        tail = tail_by_set.mean(axis=1)
        below = np.where(y > 0, 1 - tail, tail)
        above = np.where(y < 0, 1 - tail, tail)
        return below, above, self._density(y)

    def _ppf(self, q: Array, upper: bool) -> Array:
        """Quantiles of the levels q."""
        return np.where(q == 0.5, 0.0, super()._ppf(q, upper))  # the law is symmetric

    def _logpdf(self, y: Array) -> Array:
        """The logarithm of the density, (points,)."""
        return log_mean(self._logs(y, tail=False))

    def _log_tail(self, y: Array, sign: int) -> Array:
        """The logarithm of the probability beyond y, on the side of the sign."""
        return log_mean(self._logs(y, tail=True))

    def _log_error(self, y: Array) -> Array:
        """The error of log f(y): the relative error of f(y), for y (points,)."""
        # in the tails the density may underflow, but not the ratios of its sets
        logs = self._logs(y, tail=False)  # (points, sets)
        largest = np.maximum(logs.max(axis=1), -1e300)  # finite if f(y) is 0
        ratios = np.exp(logs - largest[:, None]).T
        mean = ratios.mean(axis=0)
        spread = self._sets.spread(ratios)
        zeros = np.zeros(len(y))
        relative_spread = np.divide(spread, mean, out=zeros, where=mean > 0)
        rounding = ROUNDING * np.abs(largest)
        error_in_tail = relative_spread + self._coarse + rounding
        is_central = np.abs(y) <= CENTRAL * self._std
        return np.where(is_central, super()._log_error(y), error_in_tail)

    def _log_doubt(self, y: Array) -> Array:
        """The error of the log density where the density underflows; else 0."""
        # tilted rules reach every y, but blocks of underflowing densities show no error
        return np.where(self._density(y) <= MIN_DENSITY, self._log_error(y), 0.0)

    def _scales(self) -> tuple[Array, Array]:
        """Centres and widths of the features of the density: all are at 0."""
        std = np.sqrt(self._rule.var)
        scales = np.geomspace(std.min(), std.max(), 9)
        return np.zeros(len(scales)), scales

    def _moved(self, error: float, origin: Provenance) -> Sequence[tuple[Law, Law]]:
        """One pair: the law with all variances larger, and smaller, by a share of
        `error`.
        """
        up = HeadSum(
            self.head, self.heads, scale=self.scale * (1 + error), origin=origin
        )
        down = HeadSum(
            self.head, self.heads, scale=self.scale * (1 - error), origin=origin
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

    def _tail_logs(self, y: Array, tail: bool) -> Array:
        """`_logs` for y > 0 in the tail: (points, sets)."""
        # beyond END, the logarithm grows like y²
        end = END * self._std
        beyond_end = np.maximum(y / end, 1.0)[:, None]
        y = np.minimum(y, end)
        # the tilted law of the nearest rung start · RUNG^k of a ladder serves a point
        start = CENTRAL * self._std
        steps = np.log(y / start) / math.log(RUNG)
        rungs = np.rint(steps).astype(np.intp)
        logs = np.empty((len(y), len(self.head.nodes)))
        for rung in np.unique(rungs).tolist():
            on_rung = rungs == rung
            key = (self.heads, self.scale, rung)
            compute = partial(self._tilted, start * RUNG**rung)
            tilted = self.head.kept(key, compute)
            logs[on_rung] = _logs_of_tilted(tilted, y[on_rung], tail)
        with np.errstate(over="ignore"):
            return np.asarray(logs * beyond_end**2)

    def _tilted(self, y: float) -> _TiltedRule:
        """The rule for points near y, tilted to the saddle point there."""
        w, log_weight = self.head.plain  # both (sets, points)
        largest_v = self.scale * float(w.max())
        if y * y / (2 * largest_v * self.heads) >= MAX_UNTILTED_EXPONENT:
            w, log_weight = self.head.tail  # the tilt needs rare values
        v = self._saddle_point(y, w[0], log_weight[0])
        tilt = y**2 / (2 * v**2)
        head_tilt = tilt * self.scale / self.heads  # of one w
        # the tilted law of one w: weights e^(tilt w)/ψ, without negligible ones
        exponent = log_weight + head_tilt * w
        log_psi = _log_psi(w, log_weight, head_tilt)
        mean_log_psi = float(log_psi.mean())
        is_large = exponent > exponent.max(axis=1, keepdims=True) - LOG_RANGE
        weights = np.where(is_large, np.exp(exponent - log_psi[:, None]), 0.0)

        # The sets differ in ψ^H, which becomes a factor of their weights.
        log_ratios = self.heads * (log_psi - mean_log_psi)
        ratios = np.exp(np.minimum(log_ratios, LARGEST_LOG)) * len(w)
        # far in the tail the tilted rule is narrow in log v, and so are its cells
        cell = min(CELL, 0.1 * math.sqrt(v) / y)
        rules = []
        for set_w, set_weights, ratio in zip(w, weights, ratios, strict=True):
            sum_nodes, sum_weights = power_rule(
                set_w, weights=set_weights, count=self.heads, cell=cell
            )
            rules.append((sum_nodes, sum_weights * ratio))
        return _TiltedRule(
            variances=joined(rules, self.scale / self.heads),
            tilt=tilt,
            log_scale=self.heads * mean_log_psi,
        )

    def _saddle_point(self, y: float, w: Array, log_weight: Array) -> float:
        """v*, the mean of v under the tilt θ = y²/2v*², in one set.

        w, log_weight: (points,). Bisection gives 9 digits, which is enough, because any
        tilt gives the right law.
        """
        low = 0.0
        high = self.scale * float(w.max())
        for _ in range(BISECTIONS):
            v = (low + high) / 2
            tilt = y**2 / (2 * v**2)
            head_tilt = tilt * self.scale / self.heads  # of one w
            exponent = log_weight + head_tilt * w
            tilted_weight = np.exp(exponent - exponent.max())
            mean_w = np.sum(tilted_weight * w) / tilted_weight.sum()
            mean = self.scale * float(mean_w)
            if mean > v:  # the mean falls as v grows
                low = v
            else:
                high = v
        return v

    def _cf(self, t: Array) -> Estimate:
        """E[e^(itY)] = ψ(σ² t²/2H)^H with ψ(u) = E[e^(−uw)], equation (9); t (points,).

        Its error is that of the magnitude.
        """
        with np.errstate(over="ignore"):  # e^(−∞) is 0
            u = self.scale * t[:, None] ** 2 / (2 * self.heads)
        excess = []  # ψ − 1 of each set
        for nodes, weights in zip(self.head.nodes, self.head.weights, strict=True):
            psi_minus_one = weighted(np.expm1(-u * nodes), weights)
            excess.append(np.maximum(psi_minus_one, -1.0))
        mean_excess = np.mean(excess, axis=0)
        with np.errstate(divide="ignore"):  # ψ may be 0
            by_set = np.exp(self.heads * np.log1p(excess))
            value = np.exp(self.heads * np.log1p(mean_excess))
        error = combined(self._sets.spread(by_set), self._coarse * value)
        return Estimate(value.astype(np.complex128), error)

    def latex(self) -> str:
        """The formula of the program that made the law.

        Without a program, it is a formula with the variance of each head.
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
        """`size` draws √v Z, with a variance v of the rule and a standard normal Z."""
        rule = self._rule
        weight = np.maximum(rule.weight.sum(axis=1), 0.0)
        probability = weight / weight.sum()
        var = rng.choice(rule.var, size=size, p=probability)
        z = rng.standard_normal(size)
        return np.asarray(np.sqrt(var) * z)

    def _arrays(self) -> dict[str, Any]:
        """The law for a file, as arrays by name: the inverse of `_from_arrays`.

        Those of its correction and of its mixture have the prefixes `correction_` and
        `mixture_`.
        """
        arrays: dict[str, Any] = {
            "heads": str(self.heads),
            "scale": self.scale,
            **self.head.arrays(),
        }
        layer = self._fluctuations() if self._fluctuations else None
        if layer is not None:
            for name, value in vars(layer).items():
                arrays[f"correction_{name}"] = value
        if self.mixture is not None:
            for name, value in self.mixture._arrays().items():
                arrays[f"mixture_{name}"] = value
            for name in REPLICA_FIELDS:
                arrays[f"mixture_{name}"] = getattr(self.mixture.origin, name)
        return arrays

    @classmethod
    def _from_arrays(cls, origin: Provenance, **arrays: Any) -> HeadSum:
        """The law that `_arrays` wrote, after checks."""
        mixture = None
        mixture_arrays = _with_prefix(arrays, "mixture_")
        if mixture_arrays:
            mixture = _mixture_from_arrays(mixture_arrays, origin)
        heads = checked_heads(int(str(arrays["heads"])), "HeadSum")
        scale = real(arrays["scale"], "scale", "HeadSum", above=0.0)
        law = cls(Head.from_arrays(arrays), heads, scale, origin, mixture)
        layer_arrays = _with_prefix(arrays, "correction_")
        if layer_arrays:
            layer = LayerFluctuations.from_arrays(**layer_arrays)
            law._fluctuations = lambda: layer
        return law


def _mixture_from_arrays(arrays: dict[str, Any], origin: Provenance) -> Mixture:
    """The mixture over replicas of the law with this origin, from a file's arrays."""
    arrays = dict(arrays)
    seed = arrays.pop("seed", None)
    random_numbers = arrays.pop("random_numbers", None)
    quadrature_error = arrays.pop("quadrature_error", None)
    origin_of_replicas = Provenance(
        status=origin.status,
        method=f"replicas of: {origin.method}",
        random_numbers=int(random_numbers or 0),
        seed=None if seed is None else int(seed),
        quadrature_error=float(quadrature_error or 0.0),
    )
    return Mixture(origin=origin_of_replicas, **arrays)


def _log_psi(w: Array, log_weight: Array, tilt: float) -> Array:
    """log E[e^(tilt w)] of each set, (sets,), from w and its weights (sets, points).

    It has all digits, because it is multiplied by the number of heads.
    """
    exponent = tilt * w
    if tilt * float(w.max()) < 1:  # log(1 + E[e^(tilt w) − 1])
        excess = np.exp(log_weight) * np.expm1(exponent)
        return np.asarray(np.log1p(excess.sum(axis=1)))
    return np.asarray(scipy.special.logsumexp(log_weight + exponent, axis=1))


def _logs_of_tilted(tilted: _TiltedRule, y: Array, tail: bool) -> Array:
    """log f(y), or with `tail` log P(Y > y), from a tilted rule: (points, sets).

    f(y) = E[e^(θv)] E_θ[e^(−θv) N(y; v)], and the same for P(Y > y).
    """
    rule = tilted.variances
    std = np.sqrt(rule.var)
    z = y[:, None] / std
    if tail:
        log_normal = scipy.special.log_ndtr(-z)
    else:
        log_normal = -(z**2) / 2 - np.log(np.sqrt(2 * np.pi) * std)
    exponent = log_normal - tilted.tilt * rule.var
    largest = exponent.max(axis=1, keepdims=True)
    total = weighted(np.exp(exponent - largest), rule.weight)
    with np.errstate(divide="ignore"):
        log_total = np.log(np.maximum(total, 0.0))
    return np.asarray(tilted.log_scale + largest + log_total)


def _with_prefix(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names begin with a prefix, under their names without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
