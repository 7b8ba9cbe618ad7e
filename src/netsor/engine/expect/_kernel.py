"""Kernels E[φ(u) ψ(v)] and moments of functions of one Gaussian argument; see also
`_multivariate`.

Closed forms for (u, v) ~ N((μ, ν), [[a, c], [c, b]]); otherwise a Hermite series, or
conditioning on u if it is long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, array_namespace
from ...functions import activations
from ...functions.activations import Function
from ...functions.derivatives import base
from .._exceptions import InfiniteError
from ._gauss_legendre import largest_density, log_density, resolve
from ._hermite_series import UNSETTLED, Series, reach, series, tabulated
from ._poles import is_integrable
from ._univariate import (
    BatchedFunction,
    Single,
    between,
    ends,
    flattened,
    paired,
    single,
    slices,
)

_IDENTITY = base(activations.IDENTITY)
_RELU = base(activations.RELU)
_ABS = base(activations.ABS)
_ERF = base(activations.ERF)
_GELU = base(activations.GELU)
_SIN = base(activations.SIN)
_COS = base(activations.COS)
_LEAKY_RELU = base(activations.leaky_relu(0.0))


def has_closed_form(f: Function, g: Function) -> bool:
    """Whether a formula for E[φ(u) ψ(v)] is known if the means of u and v are 0."""
    phi = base(f)
    psi = base(g)
    if {phi, psi} <= {_SIN, _COS}:
        return True
    if (phi, psi) in ((_ERF, _ERF), (_GELU, _GELU)):
        return True
    return _piecewise_linear(f) is not None and _piecewise_linear(g) is not None


def closed_form(
    f: Function, g: Function, mu: Array, nu: Array, a: Array, c: Array, b: Array
) -> Array | None:
    """E[φ(u) ψ(v)] for φ = f and ψ = g; None if no formula is known.

    The means μ and ν, the variances a and b and the covariance c broadcast.
    """
    phi = base(f)
    psi = base(g)
    if phi is _IDENTITY and psi is _IDENTITY:
        return c + mu * nu
    if {phi, psi} <= {_SIN, _COS}:
        return _waves(
            sine_u=phi is _SIN, sine_v=psi is _SIN, mu=mu, nu=nu, a=a, c=c, b=b
        )

    # the other formulas are for means of 0, and for two functions of one family
    if not has_closed_form(f, g) or not (_is_zero(mu) and _is_zero(nu)):
        return None
    if phi is _ERF:
        # Williams 1996: (2/π) arcsin(2c/√((1+2a)(1+2b)))
        return 2 / np.pi * _angle(2 * a, 2 * c, 2 * b).arcsine
    if phi is _GELU:
        return _of_gelu(a, c, b)

    linear_f = _piecewise_linear(f)
    linear_g = _piecewise_linear(g)
    assert linear_f is not None
    assert linear_g is not None
    return _of_piecewise_linear(linear_f, linear_g, a=a, c=c, b=b)


class _PiecewiseLinear(NamedTuple):
    """The function φ(x) = α x + β relu(x)."""

    alpha: float
    beta: float


def _of_piecewise_linear(
    f: _PiecewiseLinear, g: _PiecewiseLinear, a: Array, c: Array, b: Array
) -> Array:
    """E[f(u) g(v)], from E[u v] = c and E[u relu(v)] = E[relu(u) v] = c/2."""
    linear_terms = f.alpha * g.alpha
    mixed_terms = f.alpha * g.beta + f.beta * g.alpha
    without_relus = (linear_terms + mixed_terms / 2) * c
    relu_terms = f.beta * g.beta
    if not relu_terms:
        return without_relus
    return without_relus + relu_terms * _relu(a, c, b)


def _of_gelu(a: Array, c: Array, b: Array) -> Array:
    """E[u v P] with P = Φ(u) Φ(v), where Φ is the distribution function of N(0, 1).

    u and v have means of 0. The formula is, with the mixed derivative M below,

        E[u v P] = c E[P] + (ab + c² (1 − a/(1 + a) − b/(1 + b))) M.

    Its steps use Stein's lemma, E[u F] = a E[∂_u F] + c E[∂_v F], and the same for v:

    1. The lemma for u, then for v, gives E[u v P]
       = c E[P] + ac E[∂_u² P] + bc E[∂_v² P] + (ab + c²) M, where M = E[∂_u ∂_v P].
    2. ∂_u² P = −u p(u) Φ(v) for the density p of N(0, 1). The lemma for this u gives
       E[∂_u² P] = −a E[∂_u² P] − c M. So E[∂_u² P] = −c M/(1 + a), and similarly for
       v. This removes both second derivatives from step 1.
    3. E[P] = 1/4 + arcsin(r)/2π and M = E[p(u) p(v)] = 1/(2π root) are Gaussian
       integrals, with r and the root of `_Angle`.
    """
    angle = _angle(a, c, b)
    mean_of_p = 0.25 + angle.arcsine / (2 * np.pi)
    from_second_u = a / (1.0 + a)  # of −c² M: what ac E[∂_u² P] contributes
    from_second_v = b / (1.0 + b)
    factor_of_m = a * b + c * c * (1.0 - from_second_u - from_second_v)
    return c * mean_of_p + factor_of_m / (2 * np.pi * angle.root)


def _is_zero(mean: Array) -> bool:
    """Whether all means are 0; a plain float needs no array library."""
    if isinstance(mean, float):
        return bool(mean == 0.0)
    return not bool(array_namespace(mean).any(mean != 0))


def _piecewise_linear(f: Function) -> _PiecewiseLinear | None:
    """f as α x + β relu(x); None if it is not of this form."""
    if base(f) is _LEAKY_RELU:
        slope = f.parameters[0]
        return _PiecewiseLinear(alpha=slope, beta=1.0 - slope)
    known_functions = {
        _IDENTITY: _PiecewiseLinear(alpha=1.0, beta=0.0),
        _RELU: _PiecewiseLinear(alpha=0.0, beta=1.0),
        _ABS: _PiecewiseLinear(alpha=-1.0, beta=2.0),
    }
    return known_functions.get(base(f))


def _relu(a: Array, c: Array, b: Array) -> Array:
    """E[relu(u) relu(v)] = √(ab)/(2π) (sin θ + (π − θ) cos θ) for the correlation
    cos θ = c/√(ab) (Cho and Saul 2009).
    """
    xp = array_namespace(a, c, b)
    stds = xp.sqrt(a) * xp.sqrt(b)
    safe_stds = xp.where(stds > 0, stds, 1.0)
    cosine = xp.clip(c / safe_stds, -1.0, 1.0)
    sine = xp.sqrt((1 - cosine) * (1 + cosine))
    theta = xp.acos(cosine)
    of_unit_variances = sine + cosine * (np.pi - theta)
    return stds / (2 * np.pi) * of_unit_variances


class _Angle(NamedTuple):
    """The angle whose sine is r = c/√((1+a)(1+b))."""

    arcsine: Array
    root: Array  # √((1+a)(1+b) − c²)


def _angle(a: Array, c: Array, b: Array) -> _Angle:
    """arcsin(r) as an arctangent, which keeps its digits near r = 1, where c² ≤ ab."""
    xp = array_namespace(a, c, b)
    determinant = a * b - c * c
    determinant = xp.clip(determinant, 0.0, None)  # rounding may make it negative
    root = xp.sqrt(1.0 + a + b + determinant)  # of (1 + a)(1 + b) − c²
    return _Angle(arcsine=xp.atan2(c, root), root=root)


def _waves(
    sine_u: bool, sine_v: bool, mu: Array, nu: Array, a: Array, c: Array, b: Array
) -> Array:
    """E[φ(u) ψ(v)] where φ and ψ are sines (`sine_u`, `sine_v`) or cosines.

    For x = u − μ, y = v − ν and m = (a + b)/2, E[cos x cos y] = e^−m cosh c and
    E[sin x sin y] = e^−m sinh c; the mixed products have mean 0. The means enter by the
    addition theorems.
    """
    xp = array_namespace(a, c, b)
    m = (a + b) / 2
    size = xp.abs(c)
    # without overflow, with d = e^(−2|c|) − 1:
    # cosh c = e^|c| (2 + d)/2, and sinh c = −sign(c) e^|c| d/2
    d = xp.expm1(-2 * size)
    peak = xp.exp(size - m) / 2  # e^(|c| − m)/2
    mean_of_cosines = peak * (2 + d)  # E[cos x cos y]
    mean_of_sines = -xp.sign(c) * peak * d  # E[sin x sin y]

    def addition_theorem(mean: Array, is_sine: bool) -> tuple[Array, Array]:
        """(p, q) with φ(mean + x) = p cos x − q sin x."""
        if is_sine:
            return xp.sin(mean), -xp.cos(mean)
        return xp.cos(mean), xp.sin(mean)

    p_u, q_u = addition_theorem(mu, sine_u)
    p_v, q_v = addition_theorem(nu, sine_v)
    return p_u * p_v * mean_of_cosines + q_u * q_v * mean_of_sines


# Conditioning: E[φ(u) ψ(v)] = E[φ(u) E[ψ(v) | u]], for correlations too near ±1 for a
# series. E[ψ(v) | u] is a formula (`smoothed`) for every named activation, and an
# integral for other functions. The integral over u has panel edges at the breakpoints
# of φ, and around those of ψ at distances of the order of the standard deviation of v
# given u.

# standard deviations covered on each side: the density is 1e-22 there
TRUNCATION_STD = 10.0
# end of φ² times the density, in standard deviations, up to which TRUNCATION_STD is
# enough
BOUNDED = 13.0
STEP = 1.0  # of panels, in standard deviations, before they are halved
# panel edges at a break of ψ, in standard deviations of v given u
AROUND = np.array([-8.0, -4.5, -2.5, -1.0, 0.0, 1.0, 2.5, 4.5, 8.0])
TOLERANCE = 1e-13  # of an integral, relative to `scale`
OPERATION_RTOL = 2e-16  # relative rounding error of one operation in double precision
CONDITIONED_PAIRS_PER_BATCH = 1024  # bounds memory


def conditioned(x: Single, y: Single, rho: Array, scale: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] and its error for pairs of rows, by conditioning.

    Pair k consists of u, row k of x, and v, row k of y. `rho` (pairs,) are their
    correlations, and tolerances are relative to `scale` (pairs,).
    """
    if y.f.smoothed is None and x.f.smoothed is not None:
        x, y = y, x
    value = np.empty(len(rho))
    error = np.empty(len(rho))
    pairs_per_batch = CONDITIONED_PAIRS_PER_BATCH
    if y.f.smoothed is None:
        pairs_per_batch //= 16  # E[ψ(v) | u] needs an integral for each u
    for block in slices(len(rho), pairs_per_batch):
        batch = _ConditionedPairs(x.take(block), y.take(block), rho[block])
        value[block], error[block] = batch.expectations(scale[block])
    return value, error


class _ConditionedPairs:
    """Pairs (u, v) of Gaussian variables; v given u is N(m(u), s²).

    With u = μ + σ t, m(u) = ν + slope · t, where ν is the mean of v.
    """

    def __init__(self, x: Single, y: Single, rho: Array) -> None:
        """The pairs consist of the rows of x and those of y, with correlations rho."""
        self.x = x  # φ(u), with the distribution of u
        self.y = y  # ψ(v), with the distribution of v
        self.rho = rho
        self.slope = rho * y.std
        self.residual_std = y.std * np.sqrt((1.0 - rho) * (1.0 + rho))  # s

    def integrand(self, pair: Array, t: Array) -> Array:
        """φ(u) E[ψ(v) | u] for some pairs, at standardised u, (pairs, points)."""
        y = self.y
        mean_of_v = y.mean[pair][:, None]
        slope = self.slope[pair][:, None]
        m = mean_of_v + slope * t
        s = self.residual_std[pair]
        if y.f.smoothed is not None:
            conditional_mean = y.f.smoothed(m, s[:, None])
        else:
            # a row for each value of u
            points = m.shape[1]
            given_u = replace(
                y,
                mean=m.ravel(),
                std=np.repeat(s, points),
                params=tuple(np.repeat(p[pair], points) for p in y.params),
            )
            means = series(given_u, 1).coefficients[0]
            conditional_mean = means.reshape(m.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            return self.x.at(pair, t) * conditional_mean

    def expectations(self, scale: Array) -> tuple[Array, Array]:
        """E[φ(u) ψ(v)] and its error for all pairs, by integration over u."""
        x = self.x
        y = self.y
        tolerance = max(TOLERANCE, 4 * x.features.noise, 4 * y.features.noise)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            panels = resolve(
                self.integrand,
                edges=self._edges(),
                density=largest_density,
                tolerance=tolerance,
                scale=scale,
            )
            density = np.exp(log_density(panels.x))
            value = panels.integrate(panels.values * density)

            # a formula for E[ψ(v) | u] sums terms as large as 1 + |v|, even if the
            # result is small
            pair = panels.row[:, None]
            size_of_v = 1.0 + np.abs(y.mean)[pair]
            size_of_v = size_of_v + np.abs(self.slope)[pair] * np.abs(panels.x)
            size_of_v = size_of_v + self.residual_std[pair]
            size_of_phi = np.abs(x.at(panels.row, panels.x))
            rounding = OPERATION_RTOL * panels.integrate(
                size_of_phi * size_of_v * density
            )

        needs_values = x.f.smoothed is None or y.f.smoothed is None
        is_rough = needs_values & (panels.rough > 0)
        unresolved = np.where(is_rough, UNSETTLED * panels.error, panels.error)
        error = np.where(np.isfinite(value), unresolved + rounding, np.inf)
        return value, error

    def _edges(self) -> Array:
        """Edges of panels for the integral over standardised u, (pairs, edges).

        Panels must resolve φ(u), and E[ψ(v) | u], which follows ψ at the conditional
        mean m(u) of v: for nearly equal u and v it varies as fast as ψ itself. Edges
        are in no order and may repeat.
        """
        pairs = np.arange(len(self.rho))
        end = self._end()
        equally_spaced = between(end, STEP)
        # ψ(m(u)) is ψ of a normal with the standard deviation |slope|; for a negative
        # correlation, m(u) falls as u grows, so that its edges are mirrored
        psi_at_m = replace(self.y, std=np.abs(self.slope))
        direction_of_m = np.sign(self.rho)[:, None]
        edges = [
            np.broadcast_to(equally_spaced, (len(pairs), len(equally_spaced))),
            self.x.edges(pairs, end, STEP),
            direction_of_m * psi_at_m.edges(pairs, end, STEP),
            self._edges_around_breaks(end),
        ]
        return np.concatenate(edges, axis=1)

    def _edges_around_breaks(self, end: float) -> Array:
        """Edges where m(u) is near a break of ψ, because E[ψ(v) | u] varies fast there.

        They are (pairs, edges), in standardised u, and clipped to ± end.
        """
        y = self.y
        breaks = y.features.breaks
        lowest = np.min(y.mean - end * y.std)
        highest = np.max(y.mean + end * y.std)
        is_in_reach = (lowest < breaks) & (breaks < highest)
        breaks = breaks[is_in_reach]

        # values of m(u) around each break, (pairs, breaks, AROUND), and the
        # standardised u there, as m(u) = ν + slope · t
        residual_std = self.residual_std[:, None, None]
        mean_of_v = y.mean[:, None, None]
        slope = self.slope[:, None, None]
        m = breaks[:, None] + AROUND * residual_std
        t = (m - mean_of_v) / slope
        # a slope of 0 gives ±∞, which is clipped, or NaN
        t = t.reshape(len(self.rho), -1)
        t = np.nan_to_num(t, nan=end)
        return np.clip(t, -end, end)

    def _end(self) -> float:
        """Where to truncate the integral over u, in standard deviations.

        The mass of φ² and ψ² ends there, hence (Cauchy–Schwarz) that of φ E[ψ(v) | u].
        """
        rows = np.arange(len(self.rho))
        end = TRUNCATION_STD
        for f in (self.x, self.y):
            if f.f.smoothed is None:
                end_of_f = float(np.max(ends(f, rows)[0]))
                if end_of_f > BOUNDED:
                    end = max(end, end_of_f)
        return end


# Mehler's series E[φ(u) ψ(v)] = Σ_k φ_k ψ_k ρ^k of Hermite coefficients, where it
# converges; conditioning elsewhere.
PAIRS_PER_BATCH = 2**13  # their arrays fit in a cache
PRECISION = 3e-12  # bound on the remainder of a series, relative to √(E[φ²] E[ψ²])


class _SeriesLength(NamedTuple):
    """A length of the series to try.

    It is worthwhile from a number of pairs on: its table then costs less than
    conditioning, with or without a formula for E[ψ(v) | u].
    """

    terms: int
    pairs_with_formula: int
    pairs_without_formula: int


LENGTHS = (
    _SeriesLength(terms=64, pairs_with_formula=1, pairs_without_formula=1),
    _SeriesLength(terms=256, pairs_with_formula=500, pairs_without_formula=8),
    _SeriesLength(terms=1024, pairs_with_formula=5000, pairs_without_formula=64),
)
# of a correlation: two relative rounding errors of double precision
CORRELATION_RTOL = 4e-16


def coefficients(f: Single, terms: int) -> Series:
    """The first `terms` Hermite coefficients of rows.

    They are from the table for centred rows, and otherwise by an integral for each row.
    """
    result = Series(
        coefficients=np.empty((terms, len(f))),
        square=np.empty(len(f)),
        error=np.full(len(f), np.inf),
    )

    def fill(rows: Array, columns: Series) -> None:
        """Write the coefficients of some rows, selected by booleans."""
        result.coefficients[:, rows] = columns.coefficients
        result.square[rows] = columns.square
        result.error[rows] = columns.error

    is_centred = np.zeros(len(f), dtype=bool)
    if not f.params:
        is_centred = (f.mean == 0.0) & (f.std > 0.0)
    if is_centred.any():
        table = tabulated(f.f, f.std[is_centred] ** 2, terms)
        if is_centred.all() and np.isfinite(table.error).all():
            return table
        fill(is_centred, table)
    # rows that are not centred, and those of the table if E[φ²] is finite only for some
    # variances of a cell
    is_missing = np.isinf(result.error)
    if is_missing.any():
        fill(is_missing, series(f.take(is_missing), terms))
    return result


def pairs(
    x: Single, y: Single, ix: Array, iy: Array, covariance: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] and its error for pairs of rows, (pairs,).

    In pair k, u is row ix[k] of x, v is row iy[k] of y, and covariance[k] is their
    covariance. A series is tried first, and longer ones for pairs for which it is too
    short; conditioning computes what remains.
    """
    std_u = x.std[ix]
    std_v = y.std[iy]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / (std_u * std_v)
    rho = np.where((std_u > 0) & (std_v > 0), rho, 0.0)
    # |ρ| > 1, from rounding or a mistake of the caller
    excess = np.maximum(np.abs(rho) - 1.0, 0.0)
    rho = np.where(np.abs(rho) > 1.0 - CORRELATION_RTOL, np.sign(rho), rho)

    sums = _shortest_sums(x, y, ix=ix, iy=iy, rho=rho)
    value = sums.value
    error = sums.error
    scale = sums.scale
    open_pairs = np.nonzero(sums.too_short)[0]
    if len(open_pairs):
        value[open_pairs], integration_error = conditioned(
            x.take(ix[open_pairs]),
            y.take(iy[open_pairs]),
            rho=rho[open_pairs],
            scale=scale[open_pairs],
        )
        error[open_pairs] += integration_error

    with np.errstate(invalid="ignore"):
        is_excessive = excess > 4 * CORRELATION_RTOL
        error += np.where(is_excessive, excess, 0.0) * scale
    if x.features.jumps and y.features.jumps:
        # then dE[φψ]/dρ ~ (1 − ρ²)^(−1/2), and ρ is rounded
        distance_from_one = np.maximum(1.0 - np.abs(rho), CORRELATION_RTOL)
        error += scale * CORRELATION_RTOL / np.sqrt(distance_from_one)
    is_finite = np.isfinite(value) & np.isfinite(error)
    return value, np.where(is_finite, error, np.inf)


def _shortest_sums(x: Single, y: Single, ix: Array, iy: Array, rho: Array) -> Sums:
    """The sums of Mehler's series for pairs of rows (see `pairs`).

    Each of LENGTHS, in increasing order, is tried for the pairs for which the earlier
    ones were too short, as long as enough pairs remain to be worth its coefficients.
    """
    count = len(rho)
    result = Sums(
        value=np.empty(count),
        error=np.empty(count),
        scale=np.empty(count),
        too_short=np.ones(count, dtype=bool),
    )
    has_formula = x.f.smoothed is not None or y.f.smoothed is not None
    longest = _longest_series(x, y)
    for length in LENGTHS:
        worthwhile_pairs = length.pairs_without_formula
        if has_formula:
            worthwhile_pairs = length.pairs_with_formula
        open_pairs = np.nonzero(result.too_short)[0]
        if len(open_pairs) < worthwhile_pairs or length.terms > longest:
            break
        for block in slices(len(open_pairs), PAIRS_PER_BATCH):
            batch = open_pairs[block]
            sums = _summed(
                x, y, ix=ix[batch], iy=iy[batch], rho=rho[batch], terms=length.terms
            )
            result.value[batch] = sums.value
            result.error[batch] = sums.error
            result.scale[batch] = sums.scale
            result.too_short[batch] = sums.too_short
    return result


def _longest_series(x: Single, y: Single) -> int:
    """The terms of the longest series to try: longer ones cost more than conditioning.

    They are fewer for functions with kinks, and for rows that are not centred.
    """
    is_smooth = not len(x.features.breaks) or not len(y.features.breaks)
    is_centred = x.centred and y.centred
    if is_smooth and is_centred:
        return 1024
    return 256 if is_smooth or is_centred else 64


class Sums(NamedTuple):
    """Sums of Mehler's series for some pairs."""

    value: Array  # undefined where the series is too short
    error: Array  # where the series is too short, only that of the rows
    scale: Array  # √(E[φ²] E[ψ²])
    too_short: Array  # whether more terms are needed


def _summed(x: Single, y: Single, ix: Array, iy: Array, rho: Array, terms: int) -> Sums:
    """The series for pairs of rows (see `pairs`), with up to this many terms.

    It is as short as each pair allows: an eighth, a quarter, a half of the terms, or
    all of them.
    """
    occurring = _series_of_pairs(x, y, ix=ix, iy=iy, terms=terms)
    f = occurring.f
    g = occurring.g
    ix = occurring.ix
    iy = occurring.iy
    with np.errstate(invalid="ignore", over="ignore"):
        norm_f = np.sqrt(f.square)[ix]
        norm_g = np.sqrt(g.square)[iy]
        scale = norm_f * norm_g
        error_of_rows = f.error[ix] * norm_g + g.error[iy] * norm_f
        error = error_of_rows + CORRELATION_RTOL * scale

    # E[φ(u) ψ(v)] = ± E[φ(u)²] if φ(u) = ± ψ(v)
    parity = _common_parity(f, g)
    sign = _sign_if_equal(
        occurring.rows_x, occurring.rows_y, ix=ix, iy=iy, rho=rho, parity=parity
    )
    is_exact = sign != 0
    value = np.zeros(len(rho))
    value[is_exact] = sign[is_exact] * f.square[ix[is_exact]]

    is_open = ~is_exact  # whether the value is not known yet
    lengths = (terms // 8, terms // 4, terms // 2, terms)
    remainders_f = _remainder_norms(f, lengths)
    remainders_g = remainders_f if g is f else _remainder_norms(g, lengths)
    for length, remainder_f, remainder_g in zip(
        lengths, remainders_f, remainders_g, strict=True
    ):
        batch = np.nonzero(is_open)[0]
        if not len(batch):
            break
        # |Σ_{k ≥ length} f_k g_k ρ^k| is at most this, by Cauchy and Schwarz
        power_of_rho = np.abs(rho[batch]) ** length
        remainder = power_of_rho * remainder_f[ix[batch]] * remainder_g[iy[batch]]
        is_enough = ~(remainder > PRECISION * scale[batch])
        batch = batch[is_enough]
        value[batch] = _mehler(
            f,
            g,
            length=length,
            ix=ix[batch],
            iy=iy[batch],
            rho=rho[batch],
            parity=parity,
        )
        with np.errstate(invalid="ignore"):
            error[batch] += remainder[is_enough]
        is_open[batch] = False
    return Sums(value=value, error=error, scale=scale, too_short=is_open)


class _SeriesOfPairs(NamedTuple):
    """The rows that occur in some pairs, and their series."""

    rows_x: Single
    rows_y: Single
    f: Series  # of rows_x
    g: Series  # of rows_y
    ix: Array  # (pairs,): the position of u of each pair in rows_x
    iy: Array  # (pairs,): that of v in rows_y


def _series_of_pairs(
    x: Single, y: Single, ix: Array, iy: Array, terms: int
) -> _SeriesOfPairs:
    """The series of the rows ix of x and iy of y that occur; one for both if x is y."""
    if x is y:
        rows, index = _unique_rows(np.concatenate([ix, iy]))
        position_u, position_v = np.split(index, [len(ix)])
        rows_x = rows_y = x.take(rows)
        f = g = coefficients(rows_x, terms)
    else:
        rows, position_u = _unique_rows(ix)
        rows_x = x.take(rows)
        rows, position_v = _unique_rows(iy)
        rows_y = y.take(rows)
        f = coefficients(rows_x, terms)
        g = coefficients(rows_y, terms)
    return _SeriesOfPairs(
        rows_x=rows_x, rows_y=rows_y, f=f, g=g, ix=position_u, iy=position_v
    )


def _sign_if_equal(
    x: Single, y: Single, ix: Array, iy: Array, rho: Array, parity: Parity
) -> Array:
    """For pairs of rows, 1 if φ(u) = ψ(v) always, −1 if φ(u) = −ψ(v), else 0."""
    sign = np.zeros(len(rho))
    if x.f is not y.f:
        return sign
    have_same_std = x.std[ix] == y.std[iy]
    is_equal = (rho == 1.0) & (x.mean[ix] == y.mean[iy]) & have_same_std
    for p, q in zip(x.params, y.params, strict=True):
        is_equal &= p[ix] == q[iy]
    sign[is_equal] = 1.0
    has_parity = x.f.smoothed is None and parity.stride == 2
    if has_parity and x.centred and y.centred:
        # v = −u, and φ(−u) = φ(u) for an even function, −φ(u) for an odd one
        is_opposite = ~is_equal & (rho == -1.0) & have_same_std
        sign[is_opposite] = 1 - 2 * parity.start
    return sign


def _unique_rows(index: Array) -> tuple[Any, Array]:
    """The rows that occur in an index array, and the index among these.

    For example, [7, 4, 7] becomes the rows [4, 7] and the index [1, 0, 1]. If most rows
    of a range occur, the result has all of them, as a slice.
    """
    lowest = index.min()
    highest = index.max()
    if highest - lowest < len(index):
        return slice(lowest, highest + 1), index - lowest
    rows, inverse = np.unique(index, return_inverse=True)
    return rows, inverse


def _remainder_norms(f: Series, lengths: tuple[int, ...]) -> list[Array]:
    """Norms of what series of some lengths leave out: for each length, (rows,).

    They are √(E[φ²] − Σ_{k < length} f_k²), or √(Σ_{k ≥ length} f_k²) if the last
    coefficients vanish. The lengths increase, and the last one is that of f.
    """
    columns = f.coefficients
    square = f.square
    with np.errstate(invalid="ignore", over="ignore"):
        # Σ f_k² between one length and the next, (lengths, rows)
        sums = np.add.reduceat(columns**2, [0, *lengths[:-1]], axis=0)
        beyond = square - np.sum(sums, axis=0)

        quarter = len(columns) // 4
        last_quarter = np.abs(columns[-quarter:])
        has_ended = np.all(last_quarter <= 1e-14 * np.sqrt(square), axis=0)
        has_ended &= np.abs(beyond) <= 1e-13 * square
        # what round-off can hide in either case
        hidden_if_ended = 1e-26 * square
        hidden = 4e-15 * square
        beyond = np.where(has_ended, hidden_if_ended, np.maximum(beyond, hidden))
        norms = []
        for k in range(1, len(lengths) + 1):
            norms.append(np.sqrt(beyond + np.sum(sums[k:], axis=0)))
        return norms


class Parity(NamedTuple):
    """The terms k = start, start + stride, … of a series that are not 0."""

    start: int
    stride: int


def _mehler(
    f: Series,
    g: Series,
    length: int,
    ix: Array,
    iy: Array,
    rho: Array,
    parity: Parity,
) -> Array:
    """Σ_{k < length} f_k g_k ρ^k for pairs of rows ix and iy, by Horner's rule.

    It is a polynomial in ρ² (times ρ) for even (odd) functions.
    """
    factor = rho if parity.stride == 1 else rho * rho
    total = np.zeros(len(rho))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in reversed(range(parity.start, length, parity.stride)):
            f_k = f.coefficients[k].take(ix)
            g_k = g.coefficients[k].take(iy)
            total *= factor
            total += f_k * g_k
        return total * rho if parity.start else total


def _common_parity(f: Series, g: Series) -> Parity:
    """The terms k in which neither f_k nor g_k is 0 because of a parity."""
    parity = _parity(f)
    if parity is None and g is not f:
        parity = _parity(g)
    if parity is None:
        return Parity(start=0, stride=1)
    return parity


def _parity(f: Series) -> Parity | None:
    """The terms of an even or an odd function; None for others."""
    negligible = 1e-14 * np.sqrt(f.square)
    for start in (0, 1):
        sizes = np.abs(f.coefficients[1 - start :: 2])  # 0 if f has this parity
        # look at one coefficient first, which is faster
        if np.all(sizes[0] <= negligible) and np.all(sizes <= negligible):
            return Parity(start, stride=2)
    return None


def kernel(
    x: BatchedFunction, y: BatchedFunction, xx: Array, xy: Array, yy: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and its absolute error.

    xx (..., i, 1, 1) and yy (..., j, 1, 1) are the variances of the arguments, and xy
    (..., i, j, 1, 1) their covariances. The error is 0 for a closed form.
    """
    if not x.params and not y.params:
        a = np.clip(xx[..., 0, 0], 0.0, None)
        b = np.clip(yy[..., 0, 0], 0.0, None)
        exact = closed_form(
            x.f,
            y.f,
            mu=x.mean[..., :, None, 0],
            nu=y.mean[..., None, :, 0],
            a=a[..., :, None],
            c=xy[..., 0, 0],
            b=b[..., None, :],
        )
        if exact is not None:
            return exact, np.zeros((1,) * exact.ndim)

    is_same = x is y and xx is yy
    rows_x, lead_x = _single(x, xx)
    if is_same:
        rows_y = rows_x
        lead_y = lead_x
    else:
        rows_y, lead_y = _single(y, yy)
    all_pairs = paired(lead_x, lead_y, xy.shape[:-2])
    shape = all_pairs.shape
    ix = all_pairs.row_of_x
    iy = all_pairs.row_of_y
    covariance = np.asarray(xy, dtype=float)[..., 0, 0]
    covariance = np.broadcast_to(covariance, shape)
    transposed = np.swapaxes(covariance, -1, -2)
    is_symmetric = is_same and np.array_equal(covariance, transposed)
    if is_symmetric:
        return _symmetric_pairs(rows_x, ix=ix, iy=iy, covariance=covariance)
    value, error = pairs(rows_x, rows_y, ix=ix, iy=iy, covariance=covariance.ravel())
    return value.reshape(shape), error.reshape(shape)


def _symmetric_pairs(
    rows: Single, ix: Array, iy: Array, covariance: Array
) -> tuple[Array, Array]:
    """`pairs` of rows of one function for a symmetric covariance (..., i, i).

    It computes the upper triangle, and copies it to the lower one. The flat ix and iy
    have the rows of all pairs; the results have the shape of the covariance.
    """
    shape = covariance.shape
    i, j = np.triu_indices(shape[-1])

    def upper(entries: Array) -> Array:
        """The entries of the upper triangles, end to end."""
        triangle: Array = entries.reshape(shape)[..., i, j]
        return triangle.ravel()

    def symmetric(triangles: Array) -> Array:
        """The symmetric matrices with these entries of their upper triangles."""
        by_matrix = triangles.reshape(*shape[:-2], len(i))
        matrices = np.empty(shape)
        matrices[..., i, j] = by_matrix
        matrices[..., j, i] = by_matrix
        return matrices

    value, error = pairs(
        rows, rows, ix=upper(ix), iy=upper(iy), covariance=upper(covariance)
    )
    return symmetric(value), symmetric(error)


def moments(x: BatchedFunction, xx: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficient β (..., i, 1), and an absolute error
    (..., i), for arguments with variances xx (..., i, 1, 1).

    β = E[φ(u)(u − mean)]/xx is E[∂φ/∂u] for smooth φ (Stein). The error is the larger
    one of those of the mean and of β √xx.
    """
    rows, lead = _single(x, xx)
    hermite = coefficients(rows, 2)
    # with u = mean + std z, the coefficient of h_1(z) = z is β std
    mean, linear = hermite.coefficients
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = np.where(rows.std > 0, linear / rows.std, 0.0)
    error = hermite.error
    return mean.reshape(lead), beta.reshape(*lead, 1), error.reshape(lead)


def _single(x: BatchedFunction, xx: Array) -> tuple[Single, tuple[int, ...]]:
    """The flattened rows of a function of one argument, and their shape.

    It raises an error if the function has a pole there without a second moment.
    """
    flat = flattened(x, xx)
    variance = flat.matrices[:, 0, 0]
    std = np.sqrt(np.maximum(variance, 0.0))
    rows = single(x.f, mean=flat.mean[:, 0], std=std, params=flat.params)
    is_near = rows.near_poles(reach(terms=3)).any(axis=0)
    for pole in rows.features.poles[is_near]:
        if not is_integrable(x.f, float(pole)):
            raise InfiniteError(
                f"{x.f.name} is infinite at u = {pole + 0.0:.6g}, so that its second"
                " moment is infinite: bound the function"
            )
    return rows, flat.lead
