"""The limit law of a sum over heads, to many digits, by Fourier inversion.

Given its scores, an output coordinate is N(0, v) with v = (σ²/H) Σ_a w_a, the w_a i.i.d. over heads. So its
characteristic function is ψ(σ² t²/2H)^H with ψ(u) = E[e^(−uw)], and the density and distribution function are
one-dimensional integrals, for any H. It is chosen for attention at infinite width with a kernel that is not random.

Far out, where the density is below rounding, the line of integration is shifted to the saddle point: ψ is entire, so
f(y) = e^(−θy) M(θ) (1/π) ∫ Re[e^(−ity) M(θ + it)/M(θ)] dt for every θ, M(θ) = E[e^(θY)].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ._law import Array, Estimate, Law, Origin, normal_moment
from ._mixture import Mixture, compress

CENTRAL = 6.0  # standard deviations within which plain inversion keeps its digits


class Head:
    """The law of w, what one head adds to the variance: several independent samples (sets, points), for the error.

    `moments` are E[w], E[w²], … where formulas give them. Samples are kept as rules, nodes and weights for E[g(w)].
    """

    def __init__(self, samples: Array, moments: Array | None = None) -> None:
        self.moments = moments
        self.rules = [self._rule(sample) for sample in samples]
        self.rule = self._rule(samples.ravel())  # from all samples together

    def _rule(self, sample: Array) -> tuple[Array, Array]:
        nodes, weights = compress(sample)
        if self.moments is not None:
            weights = calibrated(nodes, weights, self.moments)
        return nodes, weights


class HeadSum(Law):
    """The law of Y given v = (scale/H) Σ_a w_a, Y ~ N(0, v), the w_a independent and each with the law of one head.

    `head` is a function that makes the law of one head, when it is first needed. `mixture`, if given, is one that makes
    the same law as a mixture over replicas of the engine, for coupling with other widths.
    """

    def __init__(self, head: Callable[[], Head], heads: int, scale: float, origin: Origin, mixture: Any = None) -> None:
        self.heads, self.scale, self.origin = int(heads), float(scale), origin
        self._make_head, self._make_mixture = head, mixture

    @cached_property
    def head(self) -> Head:
        """The law of one head."""
        return self._make_head()

    @cached_property
    def mixture(self) -> Mixture | None:
        """The same law as a mixture over replicas."""
        return self._make_mixture() if self._make_mixture is not None else None

    def with_heads(self, heads: int) -> HeadSum:
        """The law of the same layer with another number of heads."""
        if isinstance(heads, bool) or not hasattr(heads, "__index__") or heads < 1:
            raise ValueError(f"heads={heads!r} must be a positive integer")
        return HeadSum(lambda: self.head, heads, self.scale, self.origin)

    def infinite_heads(self) -> Mixture:
        """The Gaussian of the same layer with infinitely many heads: it has the variance of every number of heads."""
        return Mixture(0.0, self.var(), Origin(self.status, "infinitely many heads (Hron et al. 2020)"))

    # Moments

    def _power_moments(self, nodes: Array, weights: Array, order: int) -> Array:
        """E[v^k] for k = 0 … order: a power of the generating function of w."""
        raw = np.array([np.sum(weights * nodes**k) for k in range(order + 1)])
        if self.head.moments is not None:
            known = min(order, len(self.head.moments))
            raw[1 : known + 1] = self.head.moments[:known]
        factorial = special.factorial(np.arange(order + 1))
        series, power, n = np.eye(1, order + 1)[0], raw / factorial, self.heads
        while n:
            if n & 1:
                series = np.convolve(series, power)[: order + 1]
            power, n = np.convolve(power, power)[: order + 1], n >> 1
        return np.asarray(series * factorial * (self.scale / self.heads) ** np.arange(order + 1))

    def _moment(self, order: int) -> Estimate:
        if order % 2:
            return Estimate(0.0, 0.0)
        k = order // 2
        double = normal_moment(order)
        exact = self.head.moments is not None and k <= len(self.head.moments)
        spread = [self._power_moments(*rule, k)[k] for rule in self.head.rules]
        value = self._power_moments(*self.head.rule, k)[k]
        return Estimate(double * float(value), 0.0 if exact else double * float(_error(np.array(spread))))

    def _var(self) -> Estimate:
        return self._moment(2)

    def _kurtosis(self) -> Estimate:
        def one(nodes: Array, weights: Array) -> float:
            w, square = (np.sum(weights * nodes**k) for k in (1, 2))
            if self.head.moments is not None:
                w, square = self.head.moments[:2]
            return float(3 * (square / w**2 - 1) / self.heads)

        spread = np.array([one(*rule) for rule in self.head.rules])
        return Estimate(one(*self.head.rule), 0.0 if self.head.moments is not None else float(_error(spread)))

    # Inversion

    def cf(self, t: npt.ArrayLike) -> Any:
        """The characteristic function ψ(σ² t²/2H)^H."""
        return self._cf(np.asarray(t, dtype=np.float64), *self.head.rule)[()]

    def _cf(self, t: Array, nodes: Array, weights: Array) -> Array:
        u = self.scale * t[..., None] ** 2 / (2 * self.heads)
        psi = np.maximum(np.expm1(-u * nodes) @ weights, -1.0)  # less 1: right for many heads
        with np.errstate(divide="ignore"):  # where it is 0
            return np.asarray(np.exp(self.heads * np.log1p(psi)))

    @cached_property
    def _line(self) -> tuple[Array, float]:
        """The points of the trapezoidal rule in t: as far as the characteristic function reaches, and no aliases."""
        nodes, _ = self.head.rule
        far = np.sqrt(self.scale * nodes.max())
        step = 2 * np.pi / ((CENTRAL + 2) * self.std() + (CENTRAL + 10) * far)
        reach = 9.2 / np.sqrt(self.scale * nodes.min())
        return np.arange(0, int(reach / step) + 2) * step, float(step)

    @cached_property
    def _transforms(self) -> Array:
        """The characteristic function on the line: of all samples together, then of each."""
        t, _ = self._line
        return np.stack([self._cf(t, *rule) for rule in (self.head.rule, *self.head.rules)])

    def _invert(self, y: Array, kernel: Any) -> Estimate:
        t, step = self._line
        weights = np.full(len(t), step / np.pi)
        weights[0] /= 2
        pieces = np.array_split(y, 1 + y.size * t.size // 2**22)
        found = np.concatenate([kernel(piece[:, None], t) @ (weights * self._transforms).T for piece in pieces])
        return Estimate(found[:, 0], _error(found[:, 1:].T))

    def _pdf(self, y: Array) -> Estimate:
        value, error = self._invert(y, lambda p, t: np.cos(p * t))
        far = np.abs(y) > CENTRAL * self.std()
        if far.any():
            value[far] = np.exp(self._tail(np.abs(y[far]))[0])
        return Estimate(value, np.minimum(error, np.abs(value)))

    def _logpdf(self, y: Array) -> Array:
        far = np.abs(y) > CENTRAL * self.std()
        result = np.empty(len(y))
        result[~far] = np.log(self._invert(y[~far], lambda p, t: np.cos(p * t)).value)
        if far.any():
            result[far] = self._tail(np.abs(y[far]))[0]
        return result

    def _cdf(self, y: Array) -> Estimate:
        value, error = self._invert(y, lambda p, t: p * np.sinc(p * t / np.pi))  # sin(ty)/t
        value = value + 0.5
        far = np.abs(y) > CENTRAL * self.std()
        if far.any():
            tail = np.exp(self._tail(np.abs(y[far]))[1])
            value[far] = np.where(y[far] > 0, 1 - tail, tail)
        return Estimate(value, error)

    def _sf(self, y: Array) -> Array:
        return np.asarray(self._cdf(-y).value)

    def _tail(self, y: Array) -> tuple[Array, Array]:
        """log f(y) and log P(Y > y) for y > 0, by the shifted line; each right to many digits, however small."""
        y, back = np.unique(y, return_inverse=True)  # grids are symmetric
        nodes, weights = self.head.rule
        c = self.scale / (2 * self.heads)
        low, high = np.zeros_like(y), y / (self.scale * nodes.min())
        for _ in range(25):  # near the saddle point, K'(θ) = θ σ² E_θ[w] = y, increasing in θ; any θ is right
            theta = (low + high) / 2
            tilt = np.log(weights) + c * theta[:, None] ** 2 * nodes
            mean = np.exp(tilt - special.logsumexp(tilt, axis=1, keepdims=True)) @ nodes
            above = theta * self.scale * mean > y
            low, high = np.where(above, low, theta), np.where(above, theta, high)
        t, step = self._line
        log_f, log_sf = np.empty_like(y), np.empty_like(y)
        for i, (point, shift) in enumerate(zip(y, theta, strict=True)):
            exponent = np.log(weights) + c * shift**2 * nodes
            top = special.logsumexp(exponent)
            near = exponent > top - 42  # far out a few of the nodes carry all the weight that a double sees
            turn = c * ((shift + 1j * t[:, None]) ** 2 - shift**2)
            ratio = np.exp(turn * nodes[near]) @ np.exp(exponent[near] - top)
            wave = ratio**self.heads * np.exp(-1j * t * point) * step / np.pi
            wave[0] /= 2
            height = self.heads * top - shift * point
            log_f[i] = height + np.log(wave.sum().real)
            log_sf[i] = height + np.log((wave / (shift + 1j * t)).sum().real)
        return log_f[back], log_sf[back]

    @cached_property
    def _transport(self) -> Any:
        """The increasing function T with T(Z) ~ Y for Z ~ N(0, 1), a spline: T(z) = F⁻¹(Φ(z)), to |z| = 8.5."""
        from scipy import interpolate  # slow to import, and seldom needed

        core = 1 / (np.sqrt(2 * np.pi) * self.pdf(0.0))  # the standard deviation of a normal law as high as this one
        near = core * np.sinh(np.linspace(0.0, np.arcsinh(CENTRAL * self.std() / core), 241)[:-1])
        far = np.linspace(CENTRAL, 14.0, 33) * self.std()
        near_sf = np.log(np.asarray(self._cdf(-near).value))
        z = -special.ndtri_exp(np.concatenate([near_sf, self._tail(far)[1]]))
        y = np.concatenate([near, far])
        z[0] = 0.0
        keep = z <= np.min(z[z > 8.5], initial=np.inf)
        z, y = z[keep], y[keep]
        return interpolate.CubicSpline(np.concatenate([-z[:0:-1], z]), np.concatenate([-y[:0:-1], y]))

    def rvs(self, size: int = 1, seed: int | None = None) -> Array:
        """Independent draws: the quantile function of this law at Φ(Z), one normal Z a draw."""
        return np.asarray(self._transport(np.random.default_rng(seed).standard_normal(size)))


def calibrated(nodes: Array, weights: Array, moments: Array) -> Array:
    """The weights, changed as little as can be, so that the first moments are as given (a control variate each).

    In orthonormal polynomials p_k of the rule, the new weights are weights · Σ_k E[p_k] p_k(nodes). Of as many moments
    as leave them positive: a small sample cannot bear high ones.
    """
    mean, var = moments[0], moments[1] - moments[0] ** 2
    if var <= 1e-12 * mean**2:
        return weights
    x = (nodes - mean) / np.sqrt(var)
    raw = np.concatenate([[1.0], moments])
    central = np.array(
        [
            sum(math.comb(k, i) * raw[i] * (-mean) ** (k - i) for i in range(k + 1)) / var ** (k / 2)
            for k in range(len(raw))
        ]
    )
    root = np.sqrt(weights)
    for count in range(min(len(raw), len(nodes)), 2, -1):
        q, r = np.linalg.qr(root[:, None] * x[:, None] ** np.arange(count))
        changed = np.asarray(root * (q @ np.linalg.solve(r.T, central[:count])))
        if (changed > 0).all():
            return changed
    return weights


def _error(spread: Array) -> Any:
    """The standard error of a mean over independent sets."""
    if len(spread) < 2:
        return np.zeros(spread.shape[1:])[()]
    return spread.std(axis=0, ddof=1) / np.sqrt(len(spread))
