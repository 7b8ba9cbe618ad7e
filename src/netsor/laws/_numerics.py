"""Numerical methods for laws: grids, integrals, biases of kernels and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from ._estimate import Array, Estimate, Jackknife, combined, jackknife
from ._law_base import MAX_MAGNITUDE, LawError, points

CDF_ATOL = 1e-9  # largest error of a cubic that replaces a distribution function
MAX_OUTSIDE = 1e-18  # largest probability beyond the last node
ROOT_TWO = math.sqrt(2)
# assumed minimal growth of the bias of kernels as their bandwidth grows by √2, so that
# the bias is at most 5 times its change
MIN_GROWTH = 1.2
MAX_NODES = 60_000  # largest number of nodes of a grid
# factors of the bandwidth at which the bias of kernels shows
NARROWER = 0.5 ** np.arange(1, 7)
SIGNIFICANT = 2.0  # standard errors from which a change is more than noise
# draws that kernels put beyond the last one where they do not fit: by chance none is
# there with probability e⁻³
LEAKED = 3.0
INTEGRAL_RTOL = 1e-8  # relative error of an integral over a law
HALVINGS = 40  # of a cell of an integral, at most
INTEGRAL_ATOL = 1e-15  # absolute error of the part over one cell: rounding
# first nodes around each feature of a density, in its scales
FIRST = np.array([-6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0])
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(6)


def resolved(*laws: Any) -> Array:
    """Nodes of a grid that resolves the distribution functions of laws, increasing.

    Between two nodes, these are cubics up to CDF_ATOL, apart from their jumps: the cell
    between two nodes is halved until this holds in its middle.
    """
    first_table = _read_laws(laws, _first_nodes(laws))
    tables = [first_table]
    # the ends of the cells to check
    left = first_table.take(slice(None, -1))
    right = first_table.take(slice(1, None))
    count = len(first_table.y)
    while len(left.y) and count < MAX_NODES:
        length = right.y - left.y
        middle = _read_laws(laws, left.y + length / 2)
        tables.append(middle)
        count += len(middle.y)

        # Hermite's cubic in the middle of a cell
        mean_value = (left.values + right.values) / 2
        cubic = mean_value + length * (left.slopes - right.slopes) / 8
        deviation = np.abs(middle.values - cubic)  # (laws, cells)
        is_rough = (deviation > CDF_ATOL).any(axis=0)
        # a cell as narrow as rounding, around a jump, cannot be halved
        size = np.maximum(np.abs(left.y), np.abs(right.y))
        is_rough &= length > 2e-14 * size

        # the halves of rough cells are the next ones to check
        middle = middle.take(is_rough)
        left = _joined_tables(left.take(is_rough), middle)
        right = _joined_tables(middle, right.take(is_rough))
    return np.unique(np.concatenate([table.y for table in tables]))


class _Table(NamedTuple):
    """The distribution functions of some laws at points."""

    y: Array  # (points,)
    values: Array  # (laws, points): P(Y ≤ y)
    slopes: Array  # (laws, points): the densities

    def take(self, points: Any) -> _Table:
        """The table at some of the points."""
        return _Table(self.y[points], self.values[:, points], self.slopes[:, points])


def _read_laws(laws: tuple[Any, ...], y: Array) -> _Table:
    """The table of some laws at points y."""
    values = []
    slopes = []
    for law in laws:
        below, above, density = law._read(y)
        values.append(np.where(below < 0.5, below, 1 - above))
        slopes.append(density)
    return _Table(y, np.stack(values), np.stack(slopes))


def _joined_tables(first: _Table, second: _Table) -> _Table:
    """The points of both tables, those of the first before those of the second."""
    return _Table(
        y=np.concatenate([first.y, second.y]),
        values=np.concatenate([first.values, second.values], axis=1),
        slopes=np.concatenate([first.slopes, second.slopes], axis=1),
    )


def _first_nodes(laws: tuple[Any, ...]) -> Array:
    """Nodes at the features of densities, and on both sides of them until no law has
    more than MAX_OUTSIDE beyond.
    """
    locations, scales = np.concatenate([law._scales() for law in laws], axis=1)
    around_features = locations[:, None] + scales[:, None] * FIRST
    features = np.unique(around_features.ravel())
    lowest = features[0]
    highest = features[-1]
    first_step = max(float(highest - lowest), np.finfo(float).tiny) / 4
    outer: list[float] = []
    for sign, end in ((-1.0, lowest), (1.0, highest)):
        point = float(end)
        step = first_step
        while np.isfinite(point) and _largest_tail(laws, point, sign) > MAX_OUTSIDE:
            point += sign * step
            step *= 1.1
            outer.append(point)
    finite = [point for point in outer if np.isfinite(point)]
    return np.unique(np.concatenate([features, finite]))


def _largest_tail(laws: tuple[Any, ...], point: float, sign: float) -> float:
    """The largest probability of these laws beyond a point, on the side of the sign."""
    tails = []
    for law in laws:
        below, above, _ = law._read(np.array([point]))
        tail = below if sign < 0 else above
        tails.append(float(tail[0]))
    return max(tails)


def integrated(
    integrand: Callable[[Array], Array], nodes: Array
) -> tuple[Array, Array]:
    """Points and weights of a Gauss rule on cells between nodes, both (points,).

    The integral is Σ weights · integrand(points). Cells are halved until it settles to
    INTEGRAL_RTOL.
    """

    def integrals(cells: Array) -> Array:
        """The integral over each cell, (cells,); cells as in `_gauss_rule`."""
        points, weights = _gauss_rule(cells)
        heights = integrand(points.ravel()).reshape(points.shape)
        return np.asarray(np.sum(weights * heights, axis=1))

    # a Gauss rule integrates wider cells than a cubic
    nodes = np.append(nodes[:-1:3], nodes[-1])
    cells = np.stack([nodes[:-1], nodes[1:]])
    whole = integrals(cells)
    settled_cells: list[Array] = []
    settled_total = 0.0
    for _ in range(HALVINGS):
        a, b = cells
        middle = a + (b - a) / 2
        # all left halves, then all right halves
        halves = np.concatenate([[a, middle], [middle, b]], axis=1)
        of_halves = integrals(halves)
        refined = of_halves.reshape(2, -1).sum(axis=0)

        # errors have either sign, so each of N cells may be off by the error of the sum
        # over √N
        total = settled_total + np.abs(refined).sum()
        error_per_cell = INTEGRAL_RTOL * total / np.sqrt(len(a))
        tolerance = np.maximum(error_per_cell, INTEGRAL_ATOL)
        # a NaN settles, and so does a cell that cannot be halved
        has_changed = np.abs(whole - refined) > tolerance
        cannot_be_halved = (middle <= a) | (middle >= b)
        is_settled = ~has_changed | cannot_be_halved
        settled_total += float(np.abs(refined[is_settled]).sum())

        half_is_settled = np.tile(is_settled, 2)
        settled_cells.append(halves[:, half_is_settled])
        cells = halves[:, ~half_is_settled]
        whole = of_halves[~half_is_settled]
        if not cells.size or cells.shape[1] > MAX_NODES:
            break
    all_cells = np.concatenate([*settled_cells, cells], axis=1)
    points, weights = _gauss_rule(all_cells)
    order = np.argsort(points.ravel())
    return points.ravel()[order], weights.ravel()[order]


def _gauss_rule(cells: Array) -> tuple[Array, Array]:
    """Points and weights of the Gauss rule in each cell, (cells, 6) each.

    Cells are arrays (2, cells) of their left and right ends.
    """
    left, right = cells[..., None]
    centre = (left + right) / 2
    half_length = (right - left) / 2
    points = centre + half_length * GAUSS_NODES
    weights = half_length * GAUSS_WEIGHTS
    return points, weights


def kernel_bias_of(
    number: Callable[[float], float], value: float
) -> tuple[float, float]:
    """The change of a number from kernels of bandwidth h to √2 h, and its bias at h.

    `number(factor)` is the number with kernels of bandwidth factor · h, and `value` is
    `number(1)`.
    """
    # A bias proportional to h^p grows by ρ = 2^(p/2) with each factor √2, so it is the
    # change over ρ − 1. p is 2 for a smooth density, 1 for one with an edge, and less
    # where two edges meet. The changes from h/√2 to h and from h to √2 h show which. If
    # their signs differ, both are noise.
    change = number(ROOT_TWO) - value
    change_before = value - number(1 / ROOT_TWO)
    ratio = change / change_before if change_before else 2.0
    if not ratio > 0:  # noise, or NaN
        return change, change
    growth = min(max(ratio, MIN_GROWTH), 2.0)
    return change, change / (growth - 1)


def kernel_bias(
    value: Array, density: Callable[[float], Array], bandwidth: float, draws: float
) -> Array:
    """The bias of a kernel estimate of the density, at points (points,).

    `density(factor)` is the estimate (points,) with `factor` times the bandwidth, and
    `value` is `density(1)`, from this number of draws.
    """

    def noise_of_change(
        wider: Array, narrower: Array, factors: tuple[float, float]
    ) -> Array:
        """`_noise_of_change` for these draws, with factors of the bandwidth."""
        return _noise_of_change(
            np.maximum(wider, narrower), factors, bandwidth=bandwidth, draws=draws
        )

    # Where the density is smooth, the bias is proportional to h², so it is the change
    # from h² to 2h². Beside a narrow peak it grows less with h, and the next change
    # shows by how much (see `kernel_bias_of`): at a cusp, like h. Its noise could hide
    # that, so we take the least growth within one standard error. The bias is a shift
    # and no noise, so the error counts the largest one within a standard error too.
    wider = density(ROOT_TWO)
    widest = density(2.0)
    change = wider - value
    next_change = widest - wider
    next_noise = noise_of_change(widest, wider, (2.0, ROOT_TWO))
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = (np.abs(next_change) - next_noise) / np.abs(change)
    noise = noise_of_change(wider, value, (ROOT_TWO, 1.0))
    is_known = (np.abs(change) > noise) & (next_change * change > 0)
    growth = np.clip(np.where(is_known, growth, 2.0), ROOT_TWO, 2.0)
    bias = (np.abs(change) + noise) / (growth - 1)

    # Near an edge or a steep rise it is not, and between two edges that change can be
    # 0. There narrower kernels show it: we take the largest change that exceeds their
    # noise, and that to half the bandwidth, less its noise, in any case.
    for factor in NARROWER:
        narrower = density(factor)
        noise = noise_of_change(value, narrower, (1.0, factor))
        change = np.abs(narrower - value)
        shown = np.where(change > SIGNIFICANT * noise, change, 0.0)
        if factor == NARROWER[0]:
            beyond_noise = np.sqrt(np.maximum(change**2 - noise**2, 0.0))
            shown = np.maximum(shown, beyond_noise)
        bias = np.maximum(bias, shown)
    return np.asarray(bias)


def _noise_of_change(
    density: Array, factors: tuple[float, float], bandwidth: float, draws: float
) -> Array:
    """The standard error of the difference of two kernel estimates, (points,).

    Their kernels have the `factors` a > b times the bandwidth. `density` is the larger
    estimate at each point. The variance is f ∫ (k_a − k_b)² over the draws; the
    integral is that of two Gaussian kernels, in bandwidths.
    """
    a, b = factors
    integral_of_squares = (1 / a + 1 / b) / (2 * math.sqrt(math.pi))
    twice_integral_of_product = 2 / math.sqrt(2 * math.pi * (a**2 + b**2))
    integral = integral_of_squares - twice_integral_of_product
    # the density f near a point is at least that of half a draw
    of_half_a_draw = 0.5 / (draws * bandwidth * b)
    density = np.maximum(density, of_half_a_draw)
    variance = density * integral / (draws * bandwidth)
    return np.asarray(np.sqrt(variance))


def edges(
    draws: Array, weight: Array, bandwidth: float, count: float
) -> list[tuple[float, int]]:
    """The ends of a sample at which its law is likely to have an edge, and on which
    side of each (1 is above) the sample is.

    `weight` (draws,) sums to 1 or less, and `count` is the number of draws that it is
    worth. At an edge, kernels put draws beyond the last one, where none was found.
    """
    edges = []
    for end, inside in ((draws.min(), 1), (draws.max(), -1)):
        beyond = scipy.special.ndtr(inside * (end - draws) / bandwidth)
        if count * (weight @ beyond) > LEAKED:
            edges.append((float(end), inside))
    return edges


def edge_bias(
    y: Array, value: Array, density: Callable[[Array], Array], edge: float, inside: int
) -> Array:
    """The bias of a kernel estimate beside an edge, at points y (points,).

    `density(y)` is the estimate, `value` is that at y, and the law is on the side
    `inside` (1 or −1) of the edge. Inside, the estimate lacks what the kernels put
    beyond the edge. A point just outside may be inside, or have density 0.
    """
    mirrored = density(2 * edge - y)
    is_inside = inside * (y - edge) >= 0
    return np.where(is_inside, mirrored, np.maximum(mirrored, value))


def _integral(
    law: Any, term: Callable[[Array, Array], Array]
) -> Callable[[Any], Jackknife]:
    """A function that gives ∫ term(y, f(y)) dy for a law with density f.

    Its points and weights suit `law` and others near it.
    """
    y, weights = integrated(lambda y: term(y, law._density(y)), resolved(law))

    def integral(density: Array) -> Array:
        """The integral for a density at the points y, (…, points)."""
        return np.asarray(np.sum(weights * term(y, density), axis=-1))

    def integral_of(nearby_law: Any) -> Jackknife:
        """The integral for a law, with its error."""
        return jackknife(integral, [nearby_law._densities(y)])

    return integral_of


def entropy(law: Any) -> Estimate:
    """−E[log f(Y)], with kernels around draws; −∞ for a law with atoms."""
    if law.atoms:
        return Estimate(-math.inf, 0.0)
    dense = law._dense()

    def term(y: Array, density: Array) -> Array:
        """−f log f."""
        return np.asarray(scipy.special.entr(np.maximum(density, 0.0)))

    integral = _integral(dense, term)
    value, bias, error, _ = integral(dense)
    smoothing = 0.0
    has_kernels = law._dense(ROOT_TWO) is not dense
    if has_kernels:

        def entropy_with(factor: float) -> float:
            """The entropy with kernels of this factor times the bandwidth."""
            return integral(law._dense(factor)).value

        _, smoothing = kernel_bias_of(entropy_with, value)
    # the value is that of this law as it is, so its biases are errors
    return Estimate(value, combined(error, bias, smoothing))


def expectation(law: Any, f: Callable[[Any], Any]) -> Estimate:
    """E[f(Y)]: over the density by quadrature, and at the atoms.

    `f` takes points (points,) and gives a number for each, or one for all.
    """
    if not callable(f):
        raise LawError("expect", "func", f, "a function of numbers")
    value = 0.0
    error = 0.0
    dense = law._dense()
    locations, _ = dense._scales()
    has_density = len(locations) > 0
    if has_density:
        integral = _integral(dense, lambda y, density: _values_of(f, y) * density)
        value, _, error, _ = integral(dense)
        wider = law._dense(ROOT_TWO)
        has_kernels = wider is not dense
        if has_kernels:
            error = combined(error, integral(wider).value - value)
    for point, mass in law.atoms:
        height = float(_values_of(f, np.array([point]))[0])
        value += height * mass.value
        # errors of masses add in the worst case: their sum is 0
        error += abs(height) * mass.error
    return Estimate(value, error)


def _values_of(f: Callable[[Any], Any], y: Array) -> Array:
    """f(y), checked to be a finite real number for each of the points (points,)."""
    values = np.asarray(f(y))
    if np.iscomplexobj(values):  # numpy would drop the imaginary parts
        raise LawError(
            "expect",
            "func gave complex numbers: take the expectations of their real and of"
            " their imaginary parts; law.cf(t) is that of exp(1j * t * y)",
        )
    values = np.asarray(values, dtype=np.float64)
    if values.shape not in ((), y.shape):
        raise LawError(
            "expect",
            f"func gave shape {values.shape} for {y.shape}: it must act on each number",
        )
    values = np.broadcast_to(values, y.shape)
    if not np.isfinite(values).all():
        bad = y[~np.isfinite(values)][0]
        raise LawError(
            "expect", f"func({bad:g}) is not finite: the expectation is not known"
        )
    return values


def log_mean(logs: Array) -> Array:
    """The logarithm of a mean over the last axis, of terms with these logarithms.

    logs: (…, terms), and the result has the shape (…). The terms themselves may
    underflow.
    """
    # scipy's logsumexp takes several times as long
    largest = np.maximum(logs.max(axis=-1), -1e300)  # finite if all terms are 0
    relative_terms = np.exp(logs - largest[..., None])
    mean = relative_terms.mean(axis=-1)
    with np.errstate(divide="ignore"):  # log 0 is −∞
        return np.asarray(largest + np.log(mean))


# −LOG_ZERO stands for log 0: it is below the logarithm of every positive double
LOG_ZERO = 1e4
# relative error by which rounding may move P(Y ≤ y) at an atom from the level q
LEVEL_RTOL = 1e-13
# Of the search for quantiles, in standard deviations: half the length of the first
# bracket, the error of a root, and how far below its bracket an atom is looked for.
FIRST_BRACKET, ROOT_ATOL, ATOM_ATOL = 8.0, 1e-17, 1e-9
# times that a bracket may double: to the largest double, from the smallest
BRACKET_STEPS = 1100


def quantiles(law: Any, q: Array, upper: bool) -> Array:
    """Points where P(Y ≤ y) is q, or with `upper` where P(Y > y) is q; q (points,).

    At an atom, where no point has this probability, it is the atom.
    """
    from scipy.optimize import elementwise  # slow to import

    # q = 0 is reached at −∞ and q = 1 at ∞, with `upper` the other way round
    at_lower_end = (q == 0) != upper
    result = np.where(at_lower_end, -np.inf, np.inf)
    inner = np.flatnonzero((q > 0) & (q < 1))
    centre = law.mean()
    scale = law.std()
    if scale == 0:  # a point mass
        return np.full(len(q), centre)
    if not len(inner):
        return result
    level = q[inner]
    excess = partial(_excess, law, upper)
    bracket = elementwise.bracket_root(
        excess,
        np.full(len(inner), centre - FIRST_BRACKET * scale),
        np.full(len(inner), centre + FIRST_BRACKET * scale),
        args=(level,),
        maxiter=BRACKET_STEPS,
    ).bracket
    root = elementwise.find_root(
        excess, bracket, args=(level,), tolerances={"xatol": ROOT_ATOL * scale}
    )
    # a root; or, at a jump without a root, the upper end of the bracket
    low, high = root.bracket
    quantile = np.where(root.f_x == 0, root.x, high)
    for atom, _ in law.atoms:
        is_near = (low - ATOM_ATOL * scale < atom) & (atom <= quantile)
        near = np.flatnonzero(is_near)
        # the atom is the quantile if the distribution reaches the level there
        reached = excess(np.full(len(near), atom), level[near]) >= -LEVEL_RTOL
        quantile[near[reached]] = atom
    result[inner] = quantile
    return result


def _excess(law: Any, upper: bool, y: Array, level: Array) -> Array:
    """An increasing function of y that is 0 at the quantile of a level, as in
    `quantiles`; y and `level` are (points,), and so is the result.

    It is the log of P(Y ≤ y) over its level, or minus that of P(Y > y), whichever
    probability is below 1/2 at the quantile.
    """
    if upper:
        level_above = level
        level_below = 1 - level
        is_in_lower_half = level >= 0.5
    else:
        level_above = 1 - level
        level_below = level
        is_in_lower_half = level < 0.5
    excess = np.empty(len(y))
    low = is_in_lower_half
    if low.any():
        excess[low] = _log_ratio(law._distribution(y[low]), level_below[low])
    high = ~is_in_lower_half
    if high.any():
        excess[high] = -_log_ratio(law._sf(y[high]), level_above[high])
    return excess


def _log_ratio(probability: Array, target: Array) -> Array:
    """log(probability/target), with −LOG_ZERO for log 0."""
    with np.errstate(divide="ignore"):
        log_probability = np.log(np.maximum(probability, 0.0))
    return np.asarray(np.maximum(log_probability, -LOG_ZERO) - np.log(target))


# values at −∞ and ∞
ENDS = {
    "pdf": (0.0, 0.0),
    "logpdf": (-math.inf, -math.inf),
    "cdf": (0.0, 1.0),
    "sf": (1.0, 0.0),
    "logcdf": (-math.inf, 0.0),
    "logsf": (0.0, -math.inf),
}


def pointwise(
    operation: str, f: Callable[[Array], Estimate], y: npt.ArrayLike
) -> Estimate:
    """Apply a function of finite points (k,) to points of any shape.

    NaN stays NaN, and at ±∞ the results are those in ENDS: the distribution function
    `operation="cdf"` has the value 0 at −∞.
    """
    y = points(y, "y", operation)
    is_infinite = np.abs(y) > MAX_MAGNITUDE
    flat = np.where(is_infinite, np.copysign(np.inf, y), y).reshape(-1)
    low, high = ENDS.get(operation, (math.nan, math.nan))
    value = np.full(flat.shape, np.nan)
    value[flat == -np.inf] = low
    value[flat == np.inf] = high
    error = np.zeros_like(value)
    finite = np.isfinite(flat)
    if finite.any():
        value[finite], error[finite] = f(flat[finite])
    if y.ndim == 0:
        return Estimate(float(value[0]), float(error[0]))
    return Estimate(value.reshape(y.shape), error.reshape(y.shape))


def values(operation: str, f: Callable[[Array], Array], y: npt.ArrayLike) -> Any:
    """The same for a function without errors."""
    return pointwise(operation, lambda p: Estimate(f(p), 0.0), y).value
