"""Distances of two laws, with errors of sampling, kernels and quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
from numpy.polynomial.polynomial import polyint

from ._estimate import Array, Estimate, Replicated, bootstrap, combined, jackknife
from ._law import MIN_DENSITY, Distribution, Law
from ._law_base import MAX_MAGNITUDE, LawError, numbers
from ._mixture import Empirical, Mixture
from ._numerics import integrated, kernel_bias_of, resolved
from .attention._attention_limit import HeadSum

# share of the largest probability of a cell of KL, below which a cell says nothing
NEGLIGIBLE = 1e-20
# KL beyond the last node may not grow by more than this as y grows by a factor e
TAIL_ATOL = 1e-12
MIN_POWER = 1e-6  # of y: an integrand over y that falls more slowly has no integral
W1_RTOL = 1e-9  # relative error of W1 by cubics
LEVEL = 1e-7  # level of the test that a limit law agrees with its own replicas


def coupled(p: Distribution, q: Distribution) -> tuple[Mixture, Mixture] | None:
    """Both laws as mixtures over the same random numbers; None if they are not.

    A limit law q may bring replicas; the result then contains these instead of q.
    """
    replicas_of_q = q.mixture if isinstance(q, HeadSum) else q
    if not isinstance(p, Mixture) or not isinstance(replicas_of_q, Mixture):
        return None
    if p.origin.seed is None or p.replicas < 2:
        return None
    if p.origin.seed != replicas_of_q.origin.seed:
        return None
    if p.replicas != replicas_of_q.replicas:
        return None
    if p.weight is not None or replicas_of_q.weight is not None:
        return None
    if isinstance(q, HeadSum) and not consistent_with(q, replicas_of_q):
        return None
    return p, replicas_of_q


def consistent_with(law: Law, replicas: Mixture) -> bool:
    """Whether these replicas may have this law: a test by the largest deviation of
    probabilities and two moments, in standard errors.
    """
    quantiles = law.ppf(np.linspace(0.5, 0.999, 18))
    y = np.unique(np.concatenate([quantiles, [law.mean()]]))

    def numbers_of(law: Law) -> tuple[Array, Array]:
        """Probabilities and moments of a law, (numbers,), and their errors."""
        estimates = [
            law.with_error.cdf(y),
            law.with_error.moment(2),
            law.with_error.moment(4),
        ]
        values = [np.atleast_1d(estimate.value) for estimate in estimates]
        errors = [np.atleast_1d(estimate.error) for estimate in estimates]
        return np.concatenate(values), np.concatenate(errors)

    value, error = numbers_of(law)
    value_of_replicas, error_of_replicas = numbers_of(replicas)
    rounding = 1e-12 * np.abs(value)
    total_error = combined(error, error_of_replicas, rounding)
    safe_error = np.where(total_error > 0, total_error, np.inf)
    deviation = np.abs(value - value_of_replicas) / safe_error
    # two-sided, for some 20 numbers with errors from 40 blocks
    threshold = scipy.special.stdtrit(39, 1 - LEVEL / 2 / 20)
    return float(deviation.max()) < float(threshold)


def distance_by_cubics(name: str, width: Array, d: Array) -> float:
    """A distance from the difference D = P − Q of two distribution functions.

    It is ½ ∫ |dD| for "total_variation", sup |D| for "kolmogorov" and ∫ |D| for
    "wasserstein1". D is a cubic on each of the cells between nodes, and may jump at the
    nodes. `width` are the widths of the cells. `d` holds, one after the other, three
    rows (nodes,): D after each node, D before each node, and its slope.
    """
    after, before, slope = d.reshape(3, -1)
    # D at both ends of each cell, and its slopes there in t on [0, 1]
    start = after[:-1]
    end = before[1:]
    slope_at_start = slope[:-1] * width
    slope_at_end = slope[1:] * width
    # Hermite's cubic, coefficients of 1, t, t² and t³
    cubic = np.stack(
        [
            start,
            slope_at_start,
            3 * (end - start) - 2 * slope_at_start - slope_at_end,
            slope_at_start + slope_at_end - 2 * (end - start),
        ]
    )
    if name == "wasserstein1":
        integrals = _integrals_of_absolute_value(cubic, start, end)
        return float(np.sum(width * integrals))

    turn = _values_at_turns(cubic, end)
    if name == "total_variation":
        moves = (turn - start, end - turn, after - before)
        total = 0.5 * sum(np.abs(move).sum() for move in moves)
        return float(min(total, 1.0))
    largest = max(np.abs(values).max(initial=0.0) for values in (after, before, turn))
    return float(min(largest, 1.0))


def _integrals_of_absolute_value(cubic: Array, start: Array, end: Array) -> Array:
    """∫ |c(t)| dt over [0, 1] of cubics with these values at 0 and 1: (cubics,).

    cubic: coefficients (4, cubics). At most one change of sign is taken into account.
    """
    # Newton's method starts at the zero of the line from one end to the other
    has_zero = start * end < 0
    zero_of_line = start[has_zero] / (start - end)[has_zero]
    zero = np.zeros_like(start)
    zero[has_zero] = _roots(cubic[:, has_zero], zero_of_line)

    # the integral from 0 to t is a polynomial; at 1 it is the sum of its coefficients
    antiderivative = np.asarray(polyint(cubic), dtype=np.float64)
    before_zero = _values(antiderivative, zero)
    after_zero = antiderivative.sum(axis=0) - before_zero
    return np.asarray(np.abs(before_zero) + np.abs(after_zero))


def _values_at_turns(cubic: Array, end: Array) -> Array:
    """The value of each cubic at its extremum inside [0, 1]; `end`, its value at 1, if
    there is none.

    cubic: coefficients (4, cubics).
    """
    # the slope is a polynomial; at 0 it is its first coefficient, at 1 their sum
    slopes = _derivatives(cubic)
    slope_at_0 = slopes[0]
    slope_at_1 = slopes.sum(axis=0)
    turns = slope_at_0 * slope_at_1 < 0
    zero_of_line = slope_at_0[turns] / (slope_at_0 - slope_at_1)[turns]
    extrema = _roots(slopes[:, turns], zero_of_line)
    values = end.copy()
    values[turns] = _values(cubic[:, turns], extrema)
    return values


def _roots(polynomials: Array, t: Array) -> Array:
    """Roots in [0, 1] of polynomials near t, by Newton's method: (polynomials,).

    polynomials: coefficients (degree + 1, polynomials).
    """
    slopes = _derivatives(polynomials)
    for _ in range(3):
        value = _values(polynomials, t)
        slope = _values(slopes, t)
        no_step = np.zeros_like(t)
        step = np.divide(value, slope, out=no_step, where=slope != 0)
        t = np.clip(t - step, 0.0, 1.0)
    return t


def _values(polynomials: Array, t: Array) -> Array:
    """The polynomials (degree + 1, polynomials) at t (polynomials,), by Horner's rule.

    `numpy.polynomial` does the same, but takes most of its time to move axes.
    """
    value: Array = polynomials[-1]
    for coefficient in polynomials[-2::-1]:
        value = coefficient + value * t
    return value


def _derivatives(polynomials: Array) -> Array:
    """The derivatives of polynomials (degree + 1, polynomials)."""
    degrees = np.arange(1, len(polynomials))
    return polynomials[1:] * degrees[:, None]


class DistanceEstimator:
    """Distances of two laws, coupled if they have the same replicas.

    Coupled laws are averages over the same random numbers, whose noise largely cancels
    in their difference.
    """

    def __init__(
        self,
        p: Distribution,
        q: Distribution,
        couple: bool = True,
        grid: DistanceEstimator | None = None,
    ) -> None:
        self.p = p
        self.q = q
        # an estimator for nearly the same laws, whose nodes and quadrature we use too
        self._grid = grid
        self.coupled = coupled(p, q) if couple else None
        self._uncoupled = cache(_without_coupling)
        self._with_kernels = cache(self._smoothed)
        self._distance = cache(self._computed)

    def distance(self, name: str) -> Estimate:
        """A distance, with errors of sampling, of smoothing and of quadrature."""
        laws = self.p, self.q
        if name == "wasserstein1":
            self._check_means()
        if name in ("wasserstein1", "kolmogorov"):
            # by distribution functions, where draws need no kernels
            value, error = self._distance(name)
            has_kernels = any(isinstance(law, Empirical) for law in laws)
        else:
            value, error = self._with_kernels()._distance(name)
            has_kernels = any(law._dense(2.0) is not law for law in laws)
        if np.isfinite(value) and has_kernels:
            change, bias = self._kernel_bias(name)
            value = value - change
            error = combined(error, bias)
        if not math.isfinite(value):
            return Estimate(value, error)

        # quadrature moves the laws within their errors

        def between(p: Distribution, q: Distribution) -> float:
            """The distance of two laws without errors."""
            return float(self._uncoupled(p, q)._distance(name, errors=False).value)

        doubt_of_p = self.p.doubt(lambda moved: between(moved, self.q))
        doubt_of_q = self.q.doubt(lambda moved: between(self.p, moved))
        return Estimate(value, combined(error, doubt_of_p, doubt_of_q))

    def _check_means(self) -> None:
        """Reject laws without a mean, for the distance W₁."""
        for law in (self.p, self.q):
            if not math.isfinite(law.mean()):
                raise LawError(
                    "wasserstein1", f"{law.method} has no mean, so no finite distance"
                )

    def _kernel_bias(self, name: str) -> tuple[float, float]:
        """What the kernels around draws add to a distance: the part to subtract, and
        the error that remains.
        """
        # Twice the variance of the kernels at most doubles their bias. We subtract the
        # change, and the whole bias counts as an error. Both are computed without
        # coupling: narrow kernels would add noise.

        def without_noise(factor: float) -> float:
            """The distance with kernels of `factor` bandwidths."""
            uncoupled = self._with_kernels(factor, couple=False)
            return float(uncoupled._distance(name).value)

        return kernel_bias_of(without_noise, without_noise(1.0))

    def _smoothed(self, factor: float = 1.0, couple: bool = True) -> DistanceEstimator:
        """The estimator for laws with kernels of `factor` bandwidths around draws.

        It is this estimator if there are no draws and nothing to uncouple.
        """
        p = self.p._dense(factor)
        q = self.q._dense(factor)
        if p is self.p and q is self.q and (couple or self.coupled is None):
            return self
        if factor == 1 and couple:
            return DistanceEstimator(p, q)
        return DistanceEstimator(p, q, couple=couple, grid=self._with_kernels())

    @cached_property
    def _nodes(self) -> Array:
        """A grid for both laws' smooth parts; empty if they are points."""
        if self._grid is not None:
            return self._grid._nodes
        smooth = [law for law in (self.p, self.q) if len(law._scales()[0])]
        if not smooth:
            return np.zeros(0)
        return resolved(*smooth)

    def _computed(self, name: str, errors: bool = True) -> Estimate:
        """The distance of laws that have their kernels, less the bias from noise.

        Without `errors` it is the plain value, with the error 0.
        """
        if name == "kl":
            return self._kl(errors)
        width, groups = self._groups

        def distance(*rows: Array) -> float:
            """The distance of laws whose distribution functions differ by the sum of
            the rows.
            """
            total: Any = sum(rows)
            return distance_by_cubics(name, width, total)

        value, error = bootstrap(distance, groups, errors)
        if name != "wasserstein1" or not len(self._nodes):
            return Estimate(value, error)
        # W1 is ∫ |P − Q|: add the part beyond the first and the last node
        tails = self._integrals_of_tails(self.p) - self._integrals_of_tails(self.q)
        beyond = float(np.abs(tails).sum())
        if beyond > W1_RTOL * value:
            error = combined(error, beyond)
        return Estimate(value + beyond, error)

    def _integrals_of_tails(self, law: Distribution) -> Array:
        """∫ P(Y ≤ y) dy before the first node, and ∫ P(Y > y) dy after the last: (2,).

        They are 0 for a mixture: the nodes cover all of it.
        """
        if isinstance(law, Mixture):
            return np.zeros(2)
        outermost = self._nodes[[0, -1]]
        below, above, density = law._read(outermost)
        # A heavy tail P(Y > t) falls like t^(−α) with α = y f(y)/P(Y > y) beyond the
        # last node y, and its integral is y P(Y > y)/(α − 1).
        y = np.abs(outermost)
        mass = np.maximum([below[0], above[1]], MIN_DENSITY)
        alpha = y * density / mass
        return np.asarray(y * mass / np.maximum(alpha - 1, MIN_POWER))

    @cached_property
    def _groups(self) -> tuple[Array, list[Replicated]]:
        """The widths of the cells of a grid, and rows for `distance_by_cubics`.

        The rows of D = P − Q are the sum of the groups' means. There is one group of
        blocks if the laws are coupled; otherwise there are two independent ones, of P
        and of −Q.
        """
        edges = np.concatenate([self._nodes, self.p._jumps(), self.q._jumps()])
        y = np.unique(edges)
        width = np.diff(y)
        p, q = self.coupled or (self.p, self.q)
        of_p = _distribution_and_slope(p, y)
        of_q = _distribution_and_slope(q, y)
        if self.coupled is not None:
            difference = Replicated(of_p.rows - of_q.rows, of_p.weight)
            return width, [difference]
        minus_q = Replicated(-of_q.rows, of_q.weight)
        return width, [of_p, minus_q]

    @cached_property
    def _kl_rule(self) -> KLRule:
        """The quadrature for KL."""
        if self._grid is not None:
            return self._grid._kl_rule

        def terms(y: Array) -> Array:
            """The integrand at y."""
            f = self.p._densities(y).mean
            g = self.q._densities(y).mean
            return kl_terms(f, g, log_of_tiny(self.q, y, g[None]))

        nodes = self._nodes
        lowest = nodes[0]
        highest = nodes[-1]
        beyond = 0.0
        for end, opposite in ((lowest, highest), (highest, lowest)):
            if abs(end) * terms(np.array([end]))[0] <= TAIL_ATOL:
                continue
            # p has a heavy tail: the nodes go on until it underflows, and we assume
            # powers of y beyond
            doublings = math.log2(MAX_MAGNITUDE / (abs(end) + abs(opposite)))
            distances = (end - opposite) * 2.0 ** np.arange(doublings)
            y = end + distances
            y = y[self.p._density(y) > MIN_DENSITY]
            nodes = np.union1d(nodes, y)
            growth = np.abs(y) * terms(y)  # of KL, from y to e·y
            beyond += _integral_beyond(growth)
        y, weights = integrated(terms, nodes)
        return KLRule(y, weights, beyond)

    def _kl(self, errors: bool) -> Estimate:
        """KL of laws that have their kernels: of atoms, of densities, and beyond the
        nodes. Without `errors` it is the plain value, with the error 0.
        """
        of_atoms = _kl_of_atoms(self.p, self.q)
        if of_atoms is None or self._has_density_of_p_alone():
            return Estimate(math.inf, 0.0)
        value_of_atoms, atom_errors = of_atoms
        if not len(self._nodes):  # both laws have only atoms
            return Estimate(value_of_atoms, combined(*atom_errors))
        beyond = self._kl_rule.beyond
        if beyond == math.inf:
            return Estimate(math.inf, 0.0)
        of_densities = self._kl_of_densities(errors)
        value = of_densities.value + (value_of_atoms + beyond)
        if not errors:
            return Estimate(value, 0.0)
        error = combined(of_densities.error, *atom_errors, beyond)
        return Estimate(value, error)

    def _has_density_of_p_alone(self) -> bool:
        """Whether p has a density somewhere where q has none."""
        p = self.p
        q = self.q
        if len(p._scales()[0]) and not len(q._scales()[0]):
            return True  # q has only atoms
        nodes = self._nodes
        middle = (nodes[:-1] + nodes[1:]) / 2
        if not len(middle):
            return False
        log_q = log_of_tiny(q, middle, q._densities(middle).rows)
        without_q = middle[np.isneginf(log_q)]
        return bool((p._densities(without_q).mean > 0).any())

    def _kl_of_densities(self, errors: bool) -> Estimate:
        """The part of KL on the points of `_kl_rule`, less its bias from noise.

        Without `errors` it is the plain value, with the error 0.
        """
        if self.coupled is None:
            groups, kl = self._uncoupled_kl()
        else:
            groups, kl = self._coupled_kl(*self.coupled)
        if not errors:
            group_means = [group.mean for group in groups]
            return Estimate(float(kl(*group_means)), 0.0)
        estimate = jackknife(kl, groups).corrected()
        p = self.p
        q = self.q
        if self.coupled is not None or p is q:  # the doubts of both cancel
            return estimate
        y, weights, _ = self._kl_rule
        mass = weights * groups[0].mean
        at = mass > NEGLIGIBLE * mass.max()
        doubt = float(mass[at] @ q._log_doubt(y[at]))
        return Estimate(estimate.value, combined(estimate.error, doubt))

    def _uncoupled_kl(self) -> KLOfMeans:
        """KL as a function of the densities of both laws, a group for each law."""
        p = self.p
        q = self.q
        y, weights, _ = self._kl_rule
        of_p = p._densities(y)
        of_q = q._densities(y)
        log_q = log_of_tiny(q, y, of_q.rows)

        def kl(*means: Array) -> Array:
            """KL from the densities of both laws at the points."""
            f, g = means
            return np.asarray(np.sum(weights * kl_terms(f, g, log_q), axis=-1))

        return KLOfMeans([of_p, of_q], kl)

    def _coupled_kl(
        self, replicas_of_p: Distribution, replicas_of_q: Distribution
    ) -> KLOfMeans:
        """KL as a function of the densities of the same replicas for both laws: one
        group of blocks, with both densities side by side, (blocks, 2 · points).

        If q is a limit, which is known better than from its replicas, it is a second
        group.
        """
        q = self.q
        y, weights, _ = self._kl_rule
        of_p = replicas_of_p._densities(y)
        of_q = replicas_of_q._densities(y)
        rows = np.concatenate([of_p.rows, of_q.rows], axis=1)
        groups = [Replicated(rows, of_p.weight)]
        is_limit = replicas_of_q is not q
        if is_limit:
            of_q = q._densities(y)
            groups.append(of_q)
        log_q = log_of_tiny(q, y, of_q.rows)

        def kl(*means: Array) -> Array:
            """KL from the densities of coupled laws, one after the other."""
            f, g = np.split(means[0], 2, axis=-1)
            if is_limit:
                # f_n = f_∞ + E[N(y; v_n) − N(y; v_∞)], equation (8)
                limit = means[1]
                f = limit + (f - g)
                g = limit
            return np.asarray(np.sum(weights * kl_terms(f, g, log_q), axis=-1))

        return KLOfMeans(groups, kl)


class KLOfMeans(NamedTuple):
    """KL as a function of densities that are means over blocks."""

    groups: list[Replicated]  # each of independent blocks
    kl: Callable[..., Array]  # of the mean of each group


class KLRule(NamedTuple):
    """A quadrature for KL: points and weights, and the part of KL beyond the points."""

    y: Array
    weights: Array
    beyond: float


def _without_coupling(p: Distribution, q: Distribution) -> DistanceEstimator:
    """The estimator for laws with kernels, as if their draws were independent."""
    return DistanceEstimator(p._dense(), q._dense(), couple=False)


def _distribution_and_slope(law: Distribution, y: Array) -> Replicated:
    """P(Y ≤ y), P(Y < y) and the density, side by side: rows (blocks, 3 · points).

    These are the rows for `distance_by_cubics`. In the upper half of the points they
    store P − 1 instead of P, which keeps all digits of a heavy tail.
    """
    in_upper_half = y > y[len(y) // 2]
    density = law._densities(y)
    distributions = law._distributions(y)
    has_one_block = len(distributions.rows) == 1
    has_jumps = len(law._jumps()) > 0
    after = distributions.rows - in_upper_half
    before = after
    if has_jumps:
        before = law._distributions(y, "left").rows - in_upper_half
    elif has_one_block:
        # −P(Y > y) has more digits than P(Y ≤ y) − 1
        after = np.where(in_upper_half, -law._sf(y), distributions.rows[0])[None]
        before = after
    rows = np.concatenate([after, before, density.rows], axis=1)
    return Replicated(rows, distributions.weight)


def _kl_of_atoms(p: Distribution, q: Distribution) -> tuple[float, list[float]] | None:
    """The part of KL from atoms, and its independent errors; None if q lacks an atom
    of p.

    It is Σ p log(p/q) − p + q over the atoms, with the masses p and q, as in
    `kl_terms`.
    """
    masses_of_q = dict(q.atoms)
    value = sum(mass.value for mass in masses_of_q.values())
    errors = []  # by the delta method
    for point, mass in p.atoms:
        if point not in masses_of_q:
            return None
        mass_of_q = masses_of_q[point]
        ratio = mass.value / mass_of_q.value
        value += mass.value * math.log(ratio) - mass.value
        errors.append(mass.error * math.log(ratio))
        errors.append(mass_of_q.error * (1 - ratio))
    return value, errors


def log_of_tiny(law: Distribution, y: Array, rows: Array) -> Array:
    """log f(y) where a mean of blocks of f may be 0 by rounding; 0 elsewhere.

    rows: f(y) by blocks, (blocks, points). The result has the shape (points,).
    """
    lowest = rows.min(axis=0)
    highest = rows.max(axis=0)
    # a mean without one block may cancel if that block has nearly all
    tiny = lowest <= MIN_DENSITY + 1e-9 * (highest - lowest)
    logs = np.zeros(len(y))
    logs[tiny] = law._logpdf(y[tiny])
    return logs


def _integral_beyond(growth: Array) -> float:
    """∫ growth dy/y from the last point on, for growth ∝ y^(−power).

    `growth` (points,) is that at points each twice as far as the one before. It is 0 if
    the growth is negligible, and infinite if it hardly falls.
    """
    if len(growth) < 2 or not growth[-1] > TAIL_ATOL:
        return 0.0
    power = math.log2(growth[-2] / growth[-1])
    if power > MIN_POWER:
        return float(growth[-1] / power)
    return math.inf


def kl_terms(f: Array, g: Array, log_g: Array) -> Array:
    """f log(f/g) − f + g for densities f and g at the same points.

    `log_g` is used where g may underflow. For laws of mass 1 the last two terms cancel,
    and errors of quadrature cancel with them.
    """
    f = np.maximum(f, 0.0)
    g = np.maximum(g, 0.0)
    f, g = np.broadcast_arrays(f, g)
    does_not_underflow = g > MIN_DENSITY
    safe_f = np.where(f > 0, f, 1.0)
    safe_g = np.where(g > 0, g, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_g = np.where(does_not_underflow, np.log(safe_g), log_g)
        log_ratio = np.log(safe_f) - log_g
        divergence = np.where(f > 0, f * log_ratio, 0.0)
        terms = divergence - f + g

        # Near f = g the three terms cancel. They are g h(x) with x = (f − g)/g and
        # h(x) = (1 + x) log(1 + x) − x = x²/2 − x³/6 + x⁴/12 − …
        infinite = np.full(np.shape(f), np.inf)
        x = np.divide(f - g, g, out=infinite, where=does_not_underflow)
        is_near = np.abs(x) < 1e-3
        x = np.where(is_near, x, 0.0)
        h = x**2 / 2 - x**3 / 6 + x**4 / 12
        return np.where(is_near, g * h, terms)


def paper_kl(
    finite: npt.ArrayLike | Empirical,
    limit: npt.ArrayLike | Empirical,
    grid: npt.ArrayLike | None = None,
) -> float:
    """The paper's estimator: D(finite ‖ limit) of two kernel estimates on a grid of 500
    points, from draws of each.

    It adds 1e-12 to both estimates and normalises them by the trapezoidal rule. Its
    noise hides divergences below about 5e-4, which `ns.kl` resolves; see "The paper
    reproduced" in the documentation.

    Parameters
    ----------
    finite, limit : array_like or Empirical
        Draws at finite width, and of the limit.
    grid : array_like, optional
        The points; they span both samples if None (in the paper, the draws of all
        trials).

    Examples
    --------
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> draws, others = law.rvs(50_000, seed=0), law.rvs(50_000, seed=1)
    >>> print(f"{ns.paper_kl(draws, others):.0e}")  # of a law and itself
    4e-04
    """
    p = finite if isinstance(finite, Empirical) else Empirical(finite)
    q = limit if isinstance(limit, Empirical) else Empirical(limit)
    if grid is None:
        lowest = min(p.draws[0], q.draws[0])
        highest = max(p.draws[-1], q.draws[-1])
        grid = np.linspace(lowest, highest, 500)
    y = numbers(grid, "paper_kl", "grid")
    if y.ndim != 1 or y.size < 2 or not (np.diff(y) > 0).all():
        raise LawError("paper_kl", "grid", grid, "two or more increasing points")
    f = p.pdf(y) + 1e-12
    g = q.pdf(y) + 1e-12
    f = f / np.trapezoid(f, y)
    g = g / np.trapezoid(g, y)
    return float(np.trapezoid(f * np.log(f / g), y))
