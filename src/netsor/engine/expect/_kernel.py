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
    phi, psi = base(f), base(g)
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
    phi, psi = base(f), base(g)
    if phi is _IDENTITY and psi is _IDENTITY:
        return c + mu * nu
    if {phi, psi} <= {_SIN, _COS}:
        return _waves(phi is _SIN, psi is _SIN, mu, nu, a, c, b)
    # the other formulas are for means of 0
    if not has_closed_form(f, g) or not (_is_zero(mu) and _is_zero(nu)):
        return None
    if phi is _ERF:
        # Williams 1996: (2/π) arcsin(2c/√((1+2a)(1+2b)))
        return 2 / np.pi * _angle(2 * a, 2 * c, 2 * b).arcsine
    if phi is _GELU:
        return _of_gelu(a, c, b)
    linear_f, linear_g = _piecewise_linear(f), _piecewise_linear(g)
    assert linear_f is not None and linear_g is not None
    return _of_piecewise_linear(linear_f, linear_g, a, c, b)


def _of_piecewise_linear(
    f: tuple[float, float],
    g: tuple[float, float],
    a: Array,
    c: Array,
    b: Array,
) -> Array:
    """E[(α u + β relu(u)) (γ v + δ relu(v))] for f = (α, β) and g = (γ, δ).

    E[u v] = c, and E[u relu(v)] = E[relu(u) v] = c/2.
    """
    alpha, beta = f
    gamma, delta = g
    linear = (alpha * gamma + (alpha * delta + beta * gamma) / 2) * c
    if not beta * delta:
        return linear
    return linear + beta * delta * _relu(a, c, b)


def _of_gelu(a: Array, c: Array, b: Array) -> Array:
    """E[u Φ(u) v Φ(v)], by Stein's lemma twice.

    It is c E[ΦΦ'] + a c E[∂²_u] + b c E[∂²_v] + (ab + c²) E[∂_u ∂_v] of Φ(u)Φ(v), where
    E[ΦΦ'] = 1/4 + arcsin(r)/2π with r = c/√((1+a)(1+b)).
    """
    mixed = a * b + c * c * (1.0 - a / (1.0 + a) - b / (1.0 + b))
    angle = _angle(a, c, b)
    from_stein = mixed / (2 * np.pi * angle.root)
    return c * (0.25 + angle.arcsine / (2 * np.pi)) + from_stein


def _is_zero(mean: Array) -> bool:
    """Whether all means are 0; a plain float needs no array library."""
    if isinstance(mean, float):
        return bool(mean == 0.0)
    return not bool(array_namespace(mean).any(mean != 0))


def _piecewise_linear(f: Function) -> tuple[float, float] | None:
    """(α, β) with φ(x) = α x + β relu(x); None if φ is not of this form."""
    if base(f) is _LEAKY_RELU:
        slope = f.parameters[0]
        return slope, 1.0 - slope
    coefficients_of = {_IDENTITY: (1.0, 0.0), _RELU: (0.0, 1.0), _ABS: (-1.0, 2.0)}
    return coefficients_of.get(base(f))


def _relu(a: Array, c: Array, b: Array) -> Array:
    """√(ab)/(2π) (√(1−ρ²) + ρ (π − arccos ρ)) (Cho and Saul 2009)."""
    xp = array_namespace(a, c, b)
    scale = xp.sqrt(a) * xp.sqrt(b)
    rho = xp.clip(c / xp.where(scale > 0, scale, 1.0), -1.0, 1.0)
    sine = xp.sqrt((1 - rho) * (1 + rho))
    shape = sine + rho * (np.pi - xp.acos(rho))
    return scale / (2 * np.pi) * shape


class _Angle(NamedTuple):
    """The angle whose sine is r = c/√((1+a)(1+b))."""

    arcsine: Array
    root: Array  # √((1+a)(1+b) − c²)


def _angle(a: Array, c: Array, b: Array) -> _Angle:
    """arcsin(r) as an arctangent, which keeps its digits near r = 1, where c² ≤ ab."""
    xp = array_namespace(a, c, b)
    root = xp.sqrt(1.0 + a + b + xp.clip(a * b - c * c, 0.0, None))
    return _Angle(xp.atan2(c, root), root)


def _waves(
    sine_u: bool, sine_v: bool, mu: Array, nu: Array, a: Array, c: Array, b: Array
) -> Array:
    """E[φ(u) ψ(v)] where φ and ψ are sines (`sine_u`, `sine_v`) or cosines.

    For centred x = u − μ and y = v − ν, with m = (a + b)/2, E[cos x cos y] = e^−m cosh c
    and E[sin x sin y] = e^−m sinh c; the mixed products have mean 0. The means enter by
    the addition theorems.
    """
    xp = array_namespace(a, c, b)
    m = (a + b) / 2
    size = xp.abs(c)
    # without overflow: cosh c = e^|c| (2 + e^(−2|c|) − 1)/2, and similarly sinh c
    decay = xp.expm1(-2 * size)
    peak = xp.exp(size - m) / 2
    cosines = peak * (2 + decay)  # e^−m cosh c
    sines = -xp.sign(c) * peak * decay  # e^−m sinh c

    def addition_theorem(mean: Array, is_sine: bool) -> tuple[Array, Array]:
        """(p, q) with φ(mean + x) = p cos x − q sin x."""
        if is_sine:
            return xp.sin(mean), -xp.cos(mean)
        return xp.cos(mean), xp.sin(mean)

    cos_u, sin_u = addition_theorem(mu, sine_u)
    cos_v, sin_v = addition_theorem(nu, sine_v)
    return cos_u * cos_v * cosines + sin_u * sin_v * sines


# Conditioning: E[φ(u) ψ(v)] = E[φ(u) E[ψ(v) | u]], for correlations too near ±1 for a
# series. E[ψ(v) | u] is a formula for every named activation, and an integral for other
# functions. The integral over u has panel edges at the breakpoints of φ, and around
# those of ψ at distances of the order of the standard deviation of v given u. standard
# deviations covered on each side: the density is 1e-22 there
TRUNCATION_STD = 10.0
# end of φ² times the density, in standard deviations, up to which TRUNCATION_STD is
# enough
BOUNDED = 13.0
STEP = 1.0  # of panels, in standard deviations, before they are halved
# panel edges at a break of ψ, in units of s
AROUND = np.array([-8.0, -4.5, -2.5, -1.0, 0.0, 1.0, 2.5, 4.5, 8.0])
TOLERANCE = 1e-13  # of an integral, relative to `scale`
OPERATION_RTOL = 2e-16  # relative rounding error of one operation in double precision
CONDITIONED_PAIRS_PER_BATCH = 1024  # bounds memory


def conditioned(x: Single, y: Single, rho: Array, scale: Array) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for pairs of rows with correlations ρ, and the error; tolerances are
    relative to `scale`.
    """
    if y.f.smoothed is None and x.f.smoothed is not None:
        x, y = y, x
    value, error = np.empty(len(rho)), np.empty(len(rho))
    batch = CONDITIONED_PAIRS_PER_BATCH
    if y.f.smoothed is None:
        batch //= 16
    for block in slices(len(rho), batch):
        value[block], error[block] = _block(
            x.take(block), y.take(block), rho[block], scale[block]
        )
    return value, error


def _block(x: Single, y: Single, rho: Array, scale: Array) -> tuple[Array, Array]:
    """The same for a few pairs, by integration over u."""
    slope = rho * y.std
    residual_std = y.std * np.sqrt((1.0 - rho) * (1.0 + rho))

    def values(pair: Array, at: Array) -> Array:
        """φ(u) E[ψ(m + s z)] at u = μ + σ x; v given u is m + s z."""
        m = y.mean[pair][:, None] + slope[pair][:, None] * at
        s = residual_std[pair]
        if y.f.smoothed is not None:
            conditional = y.f.smoothed(m, s[:, None])
        else:
            points = m.shape[1]
            given_u = replace(
                y,
                mean=m.ravel(),
                std=np.repeat(s, points),
                params=tuple(np.repeat(p[pair], points) for p in y.params),
            )
            conditional = series(given_u, 1).coefficients[0].reshape(m.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            return x.at(pair, at) * conditional

    rows = np.arange(len(rho))
    # the end of the mass of φ² and ψ², hence (Cauchy–Schwarz) of φ E[ψ(v) | u]
    far = [float(np.max(ends(f, rows)[0])) for f in (x, y) if f.f.smoothed is None]
    whole = max([TRUNCATION_STD, *(end for end in far if end > BOUNDED)])
    even = between(whole, STEP)
    along = replace(y, std=np.abs(slope))  # ψ(E[v | u])
    edges = [
        np.broadcast_to(even, (len(rho), len(even))),
        x.edges(rows, whole, STEP),
        np.sign(rho)[:, None] * along.edges(rows, whole, STEP),
    ]
    # around the breaks of ψ, E[ψ(v) | u] varies fast
    breaks = y.features.breaks
    lowest = np.min(y.mean - whole * y.std)
    highest = np.max(y.mean + whole * y.std)
    breaks = breaks[(breaks > lowest) & (breaks < highest)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        v = breaks[:, None] + AROUND * residual_std[:, None, None]
        at_breaks = (v - y.mean[:, None, None]) / slope[:, None, None]
        at_breaks = np.nan_to_num(at_breaks.reshape(len(rho), -1), nan=whole)
        edges.append(np.clip(at_breaks, -whole, whole))
        tolerance = max(TOLERANCE, 4 * x.features.noise, 4 * y.features.noise)
        panels = resolve(
            values, np.concatenate(edges, axis=1), largest_density, tolerance, scale
        )
        density = np.exp(log_density(panels.x))
        value = panels.integrate(panels.values * density)
        # a formula for E[ψ(v) | u] sums terms as large as 1 + |v|, even if the result
        # is small
        pair = panels.row[:, None]
        size = 1.0 + np.abs(y.mean)[pair]
        size = size + np.abs(slope)[pair] * np.abs(panels.x) + residual_std[pair]
        terms = np.abs(x.at(panels.row, panels.x)) * size * density
        rounding = OPERATION_RTOL * panels.integrate(terms)
    is_users = x.f.smoothed is None or y.f.smoothed is None
    widened = is_users & (panels.rough > 0)
    missing = np.where(widened, UNSETTLED * panels.error, panels.error)
    return value, np.where(np.isfinite(value), missing + rounding, np.inf)


# Mehler's series E[φ(u) ψ(v)] = Σ_k φ_k ψ_k ρ^k of Hermite coefficients, where it
# converges; conditioning elsewhere.
PAIRS_PER_BATCH = 2**13  # their arrays fit in a cache
PRECISION = 3e-12  # bound on the remainder of a series, relative to √(E[φ²] E[ψ²])
# Lengths of the series to try, and the number of pairs from which their table costs
# less than conditioning, with and without a formula for E[ψ(v) | u].
LENGTHS = ((64, 1, 1), (256, 500, 8), (1024, 5000, 64))
# of a correlation: two relative rounding errors of double precision
CORRELATION_RTOL = 4e-16


def coefficients(f: Single, terms: int) -> Series:
    """The Hermite coefficients of rows: from the table if they are centred, else each
    by a separate integral.
    """
    rows = Series(
        coefficients=np.empty((terms, len(f))),
        square=np.empty(len(f)),
        error=np.full(len(f), np.inf),
    )
    centred = np.zeros(len(f), dtype=bool)
    if not f.params:
        centred = (f.mean == 0.0) & (f.std > 0.0)
    if centred.any():
        table = tabulated(f.f, f.std[centred] ** 2, terms)
        if centred.all() and np.isfinite(table.error).all():
            return table
        for array, entries in zip(rows, table, strict=True):
            array[..., centred] = entries
    # also rows of the table if E[φ²] is finite only for some variances of a piece
    remaining = np.isinf(rows.error)
    if remaining.any():
        separate = series(f.take(remaining), terms)
        for array, entries in zip(rows, separate, strict=True):
            array[..., remaining] = entries
    return rows


def pairs(
    x: Single, y: Single, ix: Array, iy: Array, covariance: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for the pairs (ix, iy) of rows with the given covariances, and its
    error.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = covariance / (x.std[ix] * y.std[iy])
    rho = np.where((x.std[ix] > 0) & (y.std[iy] > 0), rho, 0.0)
    # |ρ| > 1, from rounding or a mistake of the caller
    excess = np.maximum(np.abs(rho) - 1.0, 0.0)
    rho = np.where(np.abs(rho) > 1.0 - CORRELATION_RTOL, np.sign(rho), rho)
    value, error, scale = np.empty(len(rho)), np.empty(len(rho)), np.empty(len(rho))
    todo = np.ones(len(rho), dtype=bool)
    has_formula = x.f.smoothed is not None or y.f.smoothed is not None
    longest = _longest_series(x, y)
    for terms, pairs_with_formula, pairs_without in LENGTHS:
        worthwhile = pairs_with_formula if has_formula else pairs_without
        remaining = np.nonzero(todo)[0]
        if len(remaining) < worthwhile or terms > longest:
            break
        for block in slices(len(remaining), PAIRS_PER_BATCH):
            batch = remaining[block]
            sums = _summed(x, y, ix[batch], iy[batch], rho[batch], terms)
            value[batch] = sums.value
            error[batch] = sums.error
            scale[batch] = sums.scale
            todo[batch] = sums.too_short
    remaining = np.nonzero(todo)[0]
    if len(remaining):
        value[remaining], further = conditioned(
            x.take(ix[remaining]),
            y.take(iy[remaining]),
            rho[remaining],
            scale[remaining],
        )
        error[remaining] += further
    with np.errstate(invalid="ignore"):
        error += np.where(excess > 4 * CORRELATION_RTOL, excess, 0.0) * scale
    # then dE[φψ]/dρ ~ (1 − ρ²)^(−1/2), and ρ is rounded
    if x.features.jumps and y.features.jumps:
        away = np.maximum(1.0 - np.abs(rho), CORRELATION_RTOL)
        error += scale * CORRELATION_RTOL / np.sqrt(away)
    return value, np.where(np.isfinite(value) & np.isfinite(error), error, np.inf)


def _longest_series(x: Single, y: Single) -> int:
    """The terms from which conditioning costs less: fewer for functions with kinks, and
    for rows that are not centred.
    """
    is_smooth = not len(x.features.breaks) or not len(y.features.breaks)
    is_centred = x.centred and y.centred
    if is_smooth and is_centred:
        return 1024
    return 256 if is_smooth or is_centred else 64


class Sums(NamedTuple):
    """Sums of Mehler's series for some pairs."""

    value: Array
    error: Array  # where the series is too short, only that of the rows
    scale: Array  # √(E[φ²] E[ψ²])
    too_short: Array  # whether more terms are needed


def _summed(x: Single, y: Single, ix: Array, iy: Array, rho: Array, terms: int) -> Sums:
    """The series with up to this many terms, fewer where they are enough."""
    if x is y:
        pairs_of_x = len(ix)
        rows, index = _unique_rows(np.concatenate([ix, iy]))
        ix, iy = index[:pairs_of_x], index[pairs_of_x:]
        rows_x = rows_y = x.take(rows)
    else:
        rows, ix = _unique_rows(ix)
        rows_x = x.take(rows)
        rows, iy = _unique_rows(iy)
        rows_y = y.take(rows)
    f = coefficients(rows_x, terms)
    g = f if rows_x is rows_y else coefficients(rows_y, terms)
    with np.errstate(invalid="ignore", over="ignore"):
        norm_f, norm_g = np.sqrt(f.square)[ix], np.sqrt(g.square)[iy]
        scale = norm_f * norm_g
        error = f.error[ix] * norm_g + g.error[iy] * norm_f + CORRELATION_RTOL * scale
    value = np.zeros(len(rho))
    todo = np.ones(len(rho), dtype=bool)
    if x.f is y.f:
        # φ(u) = ψ(v)
        equal = (
            (rho == 1.0)
            & (rows_x.mean[ix] == rows_y.mean[iy])
            & (rows_x.std[ix] == rows_y.std[iy])
        )
        for p, q in zip(rows_x.params, rows_y.params, strict=True):
            equal &= p[ix] == q[iy]
        value[equal] = f.square[ix[equal]]
        todo &= ~equal
    lengths = (terms // 8, terms // 4, terms // 2, terms)
    remainders_f = _remainder_norms(f, lengths)
    remainders_g = remainders_f if g is f else _remainder_norms(g, lengths)
    parity = _parity(f)
    if parity is None and g is not f:
        parity = _parity(g)
    if parity is None:
        parity = (0, 1)
    is_symmetric = x.f is y.f and x.f.smoothed is None and parity[1] == 2
    if is_symmetric and rows_x.centred and rows_y.centred:
        # φ(−u) = ± φ(u)
        mirrored = todo & (rho == -1.0) & (rows_x.std[ix] == rows_y.std[iy])
        value[mirrored] = (1 - 2 * parity[0]) * f.square[ix[mirrored]]
        todo &= ~mirrored
    for length, norm_f, norm_g in zip(lengths, remainders_f, remainders_g, strict=True):
        batch = np.nonzero(todo)[0]
        if not len(batch):
            break
        remainder = np.abs(rho[batch]) ** length * norm_f[ix[batch]]
        remainder = remainder * norm_g[iy[batch]]
        is_enough = ~(remainder > PRECISION * scale[batch])
        batch = batch[is_enough]
        value[batch] = _mehler(f, g, length, ix[batch], iy[batch], rho[batch], parity)
        with np.errstate(invalid="ignore"):
            error[batch] += remainder[is_enough]
        todo[batch] = False
    return Sums(value, error, scale, too_short=todo)


def _unique_rows(index: Array) -> tuple[Any, Array]:
    """The rows that occur, and the index among them."""
    first, last = index.min(), index.max()
    if last - first < len(index):
        return slice(first, last + 1), index - first
    rows, inverse = np.unique(index, return_inverse=True)
    return rows, inverse


def _remainder_norms(f: Series, lengths: tuple[int, ...]) -> list[Array]:
    """√(E[φ²] − Σ_{k < length} f_k²) for each length; if the last coefficients vanish,
    √(Σ_{k ≥ length} f_k²).
    """
    columns, square = f.coefficients, f.square
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(columns**2, [0, *lengths[:-1]], axis=0)
        unknown = square - np.sum(sums, axis=0)
        last = np.abs(columns[-(len(columns) // 4) :])
        ended = np.all(last <= 1e-14 * np.sqrt(square), axis=0)
        ended &= np.abs(unknown) <= 1e-13 * square
        unknown = np.where(ended, 1e-26 * square, np.maximum(unknown, 4e-15 * square))
        return [
            np.sqrt(unknown + np.sum(sums[k:], axis=0))
            for k in range(1, len(lengths) + 1)
        ]


def _mehler(
    f: Series,
    g: Series,
    length: int,
    ix: Array,
    iy: Array,
    rho: Array,
    parity: tuple[int, int],
) -> Array:
    """Σ_{k < length} f_k g_k ρ^k, by Horner's rule; for odd and even functions in
    ρ².
    """
    start, stride = parity
    factor = rho if stride == 1 else rho * rho
    total = np.zeros(len(rho))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in range(start, length, stride)[::-1]:
            total *= factor
            total += f.coefficients[k].take(ix) * g.coefficients[k].take(iy)
        return total * rho if start else total


def _parity(f: Series) -> tuple[int, int] | None:
    """(start, stride) of the terms of an even or an odd function; None for others."""
    negligible = 1e-14 * np.sqrt(f.square)
    for start in (0, 1):
        sizes = np.abs(f.coefficients[1 - start :: 2])  # 0 if f has this parity
        if np.all(sizes[0] <= negligible) and np.all(sizes <= negligible):
            return start, 2
    return None


def kernel(
    x: BatchedFunction, y: BatchedFunction, xx: Array, xy: Array, yy: Array
) -> tuple[Array, Array]:
    """E[φ(u) ψ(v)] for all pairs of rows, (..., i, j), and an estimate of its absolute
    error, 0 for a closed form.
    """
    # xx (..., i, 1, 1) and yy (..., j, 1, 1) are variances of the arguments, xy (...,
    # i, j, 1, 1) covariances.
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
    rows_x, lead_x = _single(x, xx)
    is_same = x is y and xx is yy
    rows_y, lead_y = (rows_x, lead_x) if is_same else _single(y, yy)
    shape, ix, iy = paired(lead_x, lead_y, xy.shape[:-2])
    covariance = np.broadcast_to(np.asarray(xy, dtype=float)[..., 0, 0], shape)
    if not is_same or not np.array_equal(covariance, np.swapaxes(covariance, -1, -2)):
        value, error = pairs(rows_x, rows_y, ix, iy, covariance.ravel())
        return value.reshape(shape), error.reshape(shape)
    # half of a symmetric kernel
    i, j = np.triu_indices(shape[-1])

    def upper(entries: Array) -> Array:
        triangle: Array = entries.reshape(shape)[..., i, j]
        return triangle.ravel()

    half = pairs(rows_x, rows_x, upper(ix), upper(iy), upper(covariance))
    kernels = np.empty((2, *shape))  # value and error
    triangles = np.reshape(half, (2, *shape[:-2], -1))
    kernels[..., i, j] = triangles
    kernels[..., j, i] = triangles
    return kernels[0], kernels[1]


def moments(x: BatchedFunction, xx: Array) -> tuple[Array, Array, Array]:
    """E[φ(u)] (..., i), the regression coefficient β (..., i, 1), and an absolute error
    (..., i).
    """
    # β = E[φ(u)(u − mean)]/xx is E[∂φ/∂u] for smooth φ (Stein). The error is the larger
    # of the mean's and β √xx's.
    rows, lead = _single(x, xx)
    hermite = coefficients(rows, 2)
    mean, linear = hermite.coefficients
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(rows.std > 0, linear / rows.std, 0.0)
    return mean.reshape(lead), slope.reshape(*lead, 1), hermite.error.reshape(lead)


def _single(x: BatchedFunction, xx: Array) -> tuple[Single, tuple[int, ...]]:
    """Flattened rows and their shape; raises an error if the function has a pole
    there.
    """
    lead, mean, variance, params = flattened(x, xx)
    rows = single(x.f, mean[:, 0], np.sqrt(np.maximum(variance[:, 0, 0], 0.0)), params)
    for pole in rows.features.poles[rows.near_poles(reach(terms=3)).any(axis=0)]:
        if not is_integrable(x.f, float(pole)):
            raise InfiniteError(
                f"{x.f.name} is infinite at u = {pole + 0.0:.6g}, so that its second"
                " moment is infinite: bound the function"
            )
    return rows, lead
