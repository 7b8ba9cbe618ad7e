"""Limits by extrapolation over the width, where the engine cannot compute them.

A statistic at width n is S(n) = a + Σ_k b_k n^(−kp) with p = 1, 1/2 or 1/4, and a is
its limit. The exponent γ of the differences, S(2n) − S(n) ~ n^γ, tells whether it has
one. See docs/theory.md, "Extrapolation".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from .._array_api import Floats as Array
from .._validate import ArgumentError
from ..engine import ExactError, NoLimitError, Sampling
from ..engine._exceptions import GrowingStepError
from ..engine.plan._plan_query import asks_products_alone, optimiser_steps
from ..language.operations._operation import Apply
from ..language.values._array import Value
from ..language.values._graph import topological_order
from ..language.values._scalar import ADD, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM
from ..language.values._vector import Nonlin, Vector
from ..laws import Estimate, Joint, LawError, Mixture
from ..laws._estimate import combined, student
from ._bound_program import AtWidths, Coordinates

Statistic = Callable[[Any], npt.ArrayLike]

# Widths

# The smallest width is this, or eight times the vectors of a value: above the
# directions in use.
FIRST_WIDTH = 32
# If only products are needed, a law costs the same at every width.
FIRST_WIDTH_OF_PRODUCTS = 2**24
LEVELS = 4  # the number of widths, each twice the one before
BLOCKS = 16  # of draws; each uses its own seed at all widths

# Scales of functions

SCALE_DRAWS = 256  # show which arguments of functions narrow as the width grows
# An argument vanishes or narrows if its size falls below this share from the smallest
# to the largest width. They differ by a factor of 8, over which n^(−1/4) falls to 0.59.
FALL = 0.7
# Draws are clipped at this multiple of the median of |u|, because the square of one
# outlier hides growth.
TAIL = 8.0
# The fractions of an argument at which a function is compared with itself.
RAY = 4.0 ** -np.arange(21.0)
RAY_RTOL = 1e-9  # relative changes of a function below this are rounding errors
BEND = 0.1  # exponents of a function along a ray that differ by less count as equal
STEEP = 6.0  # a larger exponent means that the function grows faster than powers
ARITHMETIC = ADD, SUBTRACT, SUM, MEAN, MULTIPLY, MATMUL  # functions without a scale

# Laws moved to where they tend

# The least width of a moved law, relative to the unmoved one, that stands for a limit.
NARROWEST = 1e-6
# The quantiles that locate a law: they exist for all tails.
CENTRE_LEVELS = (np.arange(8) + 0.5) / 8
# Moves of a law that change a statistic by less than this share do not change it.
ROUNDING = 1e-9
PART = 0.1  # the share of a move that shows whether a statistic is linear
# A statistic counts as linear if its curvature explains a smaller share of a change.
LINEAR = 0.1

# Decisions about the exponent γ

NEARLY_CONSTANT = -0.1  # a larger exponent γ counts as no fall
# A difference below this share of a number's noise adds less than noise to the limit,
# even if the differences fall as slowly as n^(−1/10).
SLOW = 2**-NEARLY_CONSTANT - 1
SIGNIFICANT = 3.0  # a difference beyond this many standard errors is not 0
SLOWEST = -0.25  # the exponent γ of limits that are reached most slowly
# The standard error of γ that tells SLOWEST from 0, by two errors to each side.
DECISIVE = 0.06
# The smallest and the largest factor of draws that a message suggests.
SMALLEST_FACTOR = 4
LARGEST_FACTOR = 100

# Prior of the extrapolation

# The probability of each power p: most programs have whole powers.
POWERS = {1.0: 0.5, 0.5: 0.35, 0.25: 0.15}
# Sizes of b_1 n^(−p) at the smallest width, relative to the change from there to the
# largest width; all are equally probable.
SIZES = 2.0 ** np.arange(-6, 7)
# Sizes of the terms k = 1, 2, 3 at the smallest width, relative to the first.
NEXT_TERMS = 4.0 ** -np.arange(3)


class Extrapolated(NamedTuple):
    """The limit of one number: value and error, and γ with its error."""

    value: float
    error: float
    growth: float
    growth_error: float


class Growth(NamedTuple):
    """The exponent γ with its error, and whether the differences may not fall.

    The exponent is NaN if noise hides the last two differences, or they differ in sign.
    """

    exponent: float
    error: float
    may_diverge: bool


class Limit(NamedTuple):
    """The posterior mean and the error of a limit."""

    value: float
    error: float


def extrapolated(blocks: Array, widths: Sequence[int]) -> Extrapolated:
    """The limit of block means, an array (blocks, widths).

    The error is infinite if the differences between widths do not fall.
    """
    count = len(blocks)
    mean = blocks.mean(axis=0)
    cov = np.atleast_2d(np.cov(blocks.T)) / count
    rounding = 1e-12 * np.abs(mean).max()
    growth = _growth(mean, cov, rounding)
    if growth.may_diverge:
        limit = Limit(math.nan, math.inf)
    else:
        limit = _posterior_limit(mean, cov, count, widths, rounding)
    return Extrapolated(
        value=limit.value,
        error=limit.error,
        growth=growth.exponent,
        growth_error=growth.error,
    )


def _growth(mean: Array, cov: Array, rounding: float) -> Growth:
    """How the differences between neighbouring widths change.

    `mean`, (widths,), are the means of a number S at all widths, and `cov`, (widths,
    widths), the covariance of their noise.
    """

    def noise(weights: Array) -> float:
        """The standard error of weights · mean."""
        return math.sqrt(max(float(weights @ cov @ weights), 0.0))

    at_width = np.eye(len(mean))
    # weights of S(2n) − S(n), for each n but the last
    steps = np.diff(at_width, axis=0)
    difference = steps @ mean
    error = np.array([noise(step) for step in steps])
    is_significant = np.abs(difference) > SIGNIFICANT * error + rounding

    first = difference[0]
    before_last = difference[-2]
    last = difference[-1]
    exponent = math.nan
    exponent_error = math.nan
    if is_significant[-1] and is_significant[-2] and last / before_last > 0:
        exponent, exponent_error = _exponent(difference[-2:], error[-2:])

    if math.isnan(exponent):
        # does the size of the last difference exceed that of the one before?
        excess = np.sign(last) * steps[-1] - np.sign(before_last) * steps[-2]
        may_rise = excess @ mean > SIGNIFICANT * noise(excess)
    else:
        may_rise = _may_not_fall(exponent, exponent_error)

    # If the last difference is far below the first, terms of opposite signs cancelled
    # in between, and the exponent means nothing.
    is_still_large = abs(last) > 2**SLOWEST * abs(first)
    matters = abs(last) > SLOW * noise(at_width[-1])
    may_diverge = is_significant[-1] and may_rise and is_still_large and matters
    return Growth(exponent, exponent_error, may_diverge=bool(may_diverge))


def _exponent(difference: Array, error: Array) -> tuple[float, float]:
    """The exponent p of differences S(2n) − S(n) ~ n^p, and its error.

    `difference` and `error` are those of a width and of twice this width.
    """
    before_last, last = difference
    error_before, last_error = error
    relative_errors = (last_error / last, error_before / before_last)
    return math.log2(last / before_last), math.hypot(*relative_errors) / math.log(2)


def _may_not_fall(exponent: float, error: float) -> bool:
    """Whether differences ~ n^exponent may fall too slowly for a limit, or rise."""
    surely_too_slow = exponent - 2 * error > SLOWEST
    perhaps_constant = exponent + 2 * error > NEARLY_CONSTANT
    return surely_too_slow or (exponent > SLOWEST and perhaps_constant)


def _posterior_limit(
    mean: Array, cov: Array, count: int, widths: Sequence[int], rounding: float
) -> Limit:
    """The posterior mean and error of a, for normal b_k.

    `mean` and `cov` are as in `_growth`, from `count` blocks. There is one posterior
    for each power and size of the prior; they are averaged by their evidence.
    """
    n = np.asarray(widths, dtype=float)
    # numbers are relative to the mean at the largest width, here and below
    off = mean - mean[-1]
    cov = _inflated(cov, count, rounding)

    # the sizes of the prior: multiples of the change over the widths, or of its noise
    steps = np.diff(np.eye(len(n)), axis=0)
    variances_of_steps = np.diag(steps @ cov @ steps.T)
    noise_of_steps = math.sqrt(np.mean(variances_of_steps))
    change = np.abs(off).max()
    size = SIZES * max(change, noise_of_steps)

    total = cov + _prior_covs(n, size)
    posterior = _posteriors(off, total)
    weight = _evidence(posterior, off, total, count)
    limit = float(np.sum(weight * posterior.value))
    variance = 1 / posterior.precision + (posterior.value - limit) ** 2
    deviation = math.sqrt(np.sum(weight * variance))
    degrees_of_freedom = count - len(n) + 1
    return Limit(
        value=float(mean[-1]) + limit,
        error=student(degrees_of_freedom, 2.0) * deviation + rounding,
    )


class _Posteriors(NamedTuple):
    """The normal posterior of a for each power and size of the prior."""

    value: Array  # (powers, sizes): the means
    precision: Array  # (powers, sizes): 1 over the variances
    inverse: Array  # (powers, sizes, widths, widths): of the covariances of the means


def _posteriors(off: Array, total: Array) -> _Posteriors:
    """The posteriors of a, given off = a + N(0, total) with a flat prior of a.

    off: (widths,), total: (powers, sizes, widths, widths).
    """
    inverse = np.linalg.inv(total)
    precision = inverse.sum(axis=(2, 3))
    value = inverse.sum(axis=2) @ off / precision
    return _Posteriors(value, precision, np.asarray(inverse, dtype=np.float64))


def _evidence(posterior: _Posteriors, off: Array, total: Array, count: int) -> Array:
    """The weight of each power and size of the prior, (powers, sizes), of sum 1.

    The likelihood is Student's, because the noise is estimated too, from `count`
    blocks; the others are those of `_posteriors`.
    """
    # in the einsum, p are powers, s sizes, i and j widths
    residual = off - posterior.value[..., None]
    misfit = np.einsum("psi,psij,psj->ps", residual, posterior.inverse, residual)
    log_prior = np.log([*POWERS.values()])[:, None]
    _, log_determinant = np.linalg.slogdet(total)
    log_volume = (log_determinant + np.log(posterior.precision)) / 2
    log_student = (count + len(off) - 2) / 2 * np.log1p(misfit / (count - 1))
    log_evidence = log_prior - log_volume - log_student
    weight = np.exp(log_evidence - log_evidence.max())
    weight /= weight.sum()
    return np.asarray(weight)


def _inflated(cov: Array, count: int, rounding: float) -> Array:
    """The covariance of the noise of an estimate that is weighted by `cov`.

    An estimate whose weights come from a covariance that is itself estimated, from
    `count` blocks, has more noise than that covariance says.
    """
    free = count - len(cov)  # degrees of freedom
    inflation = (count - 1) * (count - 2) / (free * (free - 1))
    inflated = inflation * cov
    mean_variance = np.diag(inflated).mean()
    jitter = rounding**2 + ROUNDING * mean_variance + np.finfo(float).tiny
    identity = np.eye(len(cov))
    return np.asarray(inflated + identity * jitter)


def _prior_covs(n: Array, size: Array) -> Array:
    """The covariances of Σ_k b_k n^(−kp) at the widths n, (powers p, sizes, n, n).

    b_k has the standard deviation size · NEXT_TERMS[k − 1] at the smallest width.
    """
    k = np.arange(len(NEXT_TERMS)) + 1
    relative_width = n[:, None] / n[0]
    variance = size[:, None, None] ** 2
    covs = []
    for power in POWERS:
        terms = NEXT_TERMS * relative_width ** (-power * k)  # (widths, terms)
        covs.append(variance * (terms @ terms.T))
    return np.array(covs)


def _refuse_fixed_eps(values: Sequence[Value], finite: Sequence[AtWidths]) -> None:
    """Reject an optimiser's eps that does not fall with the width."""
    for value in values:
        for step in optimiser_steps(value.op):
            if step.eps(finite[0].bound) == step.eps(finite[-1].bound) > 0:
                optimiser = type(step.optimiser).__name__
                raise ExactError(
                    value,
                    f"{optimiser} with eps > 0, extrapolated: entries of gradients fall"
                    " with the width towards eps",
                    instead="take eps=0",
                )


def _refuse_fixed_scales(values: Sequence[Value], finite: Sequence[AtWidths]) -> None:
    """Reject functions with a scale that their arguments have not passed.

    Numbers at these widths would not tend to the limit.
    """
    functions = []
    arguments: dict[Value, None] = {}  # each once, in order
    for value in values:
        if isinstance(value.op, Apply | Nonlin) and value.op.f not in ARITHMETIC:
            functions.append(value)
            arguments |= dict.fromkeys(value.op.inputs)
    if not arguments:
        return
    draws_by_width = _draws_by_width(tuple(arguments), finite)
    for value in functions:
        op = value.op
        assert isinstance(op, Apply | Nonlin)
        ndim = op.leading + op.axes if isinstance(op, Apply) else value.ndim
        draws_of_inputs = []
        for x in op.inputs:
            # axes of length 1 after the replicas, so that the inputs broadcast
            new_axes = tuple(range(1, 1 + ndim - x.ndim))
            draws_of_inputs.append(
                [np.expand_dims(draws, new_axes) for draws in draws_by_width[x]]
            )
        if bends(op.f, draws_of_inputs):
            raise ExactError(
                value,
                f"{op.f.name} of an argument that narrows or grows with the width,"
                " extrapolated: over the range of the argument at these widths the"
                " function behaves differently than near the limit of the argument",
                instead=(
                    "take eps=0 in a norm, scores over n, or a function without a scale"
                ),
            )


def _draws_by_width(
    values: tuple[Value, ...], finite: Sequence[AtWidths]
) -> dict[Value, list[Array]]:
    """Draws of each value, (SCALE_DRAWS, …), at each of some widths."""
    sampling = Sampling(SCALE_DRAWS, progress=False)
    draws_of: dict[Value, list[Array]] = {value: [] for value in values}
    for at in finite:
        draws_at_width = replace(at, outputs=values, whole=values).unchecked(sampling)
        for value, draws in zip(values, draws_at_width, strict=True):
            draws_of[value].append(draws)
    return draws_of


def _refuse_growing_steps(at: AtWidths) -> None:
    """Reject a step that grows with the width.

    A small learning rate would hide it at the widths of the extrapolation.
    """
    try:
        at.plan()
    except GrowingStepError:
        raise
    except ExactError:  # why the limit is extrapolated
        pass


def bends(f: Callable[..., Array], arguments: Sequence[Sequence[Array]]) -> bool:
    """Whether f has a scale that its arguments have not passed.

    `arguments` are draws of each argument at all widths. Let c be the limit of
    arguments that narrow, and D(t) the mean of |f(c + t (u − c)) − f(c)| over draws u
    at the smallest width. A function without a scale has D(t) ~ t^γ from t = 1 down to
    0. If the exponent changes, f at larger widths is not what it is at these. For
    arguments that grow, c = 0 and t goes up.
    """
    points = [_limit_point(by_width) for by_width in arguments]
    smallest = [by_width[0] for by_width in arguments]
    pairs = list(zip(smallest, points, strict=True))
    if all((u == point.value).all() for u, point in pairs):
        return False  # nothing narrows or grows

    with np.errstate(all="ignore"):
        distance, size = _distances_along_rays(f, smallest, points)
        # exponents γ between neighbouring t, (steps of t, …)
        log_step = np.log(RAY[0] / RAY[1])
        gamma = np.log(distance[:-1] / distance[1:]) / log_step
        is_visible = distance > RAY_RTOL * size
        is_reliable = is_visible[:-1] & is_visible[1:] & np.isfinite(gamma)
        change = np.where(is_reliable, gamma - gamma[0], 0.0)

    all_exact = all(point.exact for point in points)
    steepens = change > BEND
    flattens = all_exact & (change < -BEND)  # or c is off, which also flattens D
    is_too_steep = np.abs(gamma[0]) > STEEP
    has_scale = steepens | flattens | is_too_steep
    return bool((has_scale & is_reliable[0]).any())


def _distances_along_rays(
    f: Callable[..., Array], arguments: Sequence[Array], points: Sequence[LimitPoint]
) -> tuple[Array, Array]:
    """D(t) of `bends` for each t of RAY, (ts, …), and the largest |f(c)|, (…).

    `arguments` are the draws u of each argument at the smallest width, (draws, …).
    """
    value_at_limit = np.asarray(f(*[point.value for point in points]))
    base = np.where(np.isfinite(value_at_limit), value_at_limit, 0.0)
    distances = []
    for t in RAY:
        moved = []
        for u, point in zip(arguments, points, strict=True):
            factor = 1 / t if point.grows else t
            moved.append(point.value + factor * (u - point.value))
        deviation = np.abs(f(*moved) - base)
        distances.append(deviation.mean(axis=0))
    return np.array(distances), np.abs(base).max(axis=0, initial=0.0)


class LimitPoint(NamedTuple):
    """Where draws of an argument tend to as the width grows, entry by entry.

    0 if they vanish or grow, and their mean at the largest width if only their spread
    falls. Otherwise they stay where they are at the smallest width.
    """

    value: Array
    exact: bool  # whether `value` is known exactly
    grows: bool


def _limit_point(by_width: Sequence[Array]) -> LimitPoint:
    """Where draws of an argument, at each width, tend to."""
    smallest = by_width[0]
    largest = by_width[-1]
    if _grows(by_width):
        return LimitPoint(np.zeros_like(smallest), exact=True, grows=True)
    before = np.abs(smallest).mean(axis=0)
    after = np.abs(largest).mean(axis=0)
    vanishes = after < FALL * before
    narrows = ~vanishes & (largest.std(axis=0) < FALL * smallest.std(axis=0))
    value = np.where(narrows, largest.mean(axis=0), smallest)
    value = np.where(vanishes, 0.0, value)
    return LimitPoint(value, exact=not narrows.any(), grows=False)


def _grows(by_width: Sequence[Array]) -> bool:
    """Whether the mean square of an argument grows with the width, without a limit.

    `by_width` are draws at each width, each twice the one before.
    """
    largest_draw = TAIL * np.median(np.abs(by_width[-1]))
    mean_squares = np.empty((len(by_width), BLOCKS))
    for level, draws in enumerate(by_width):
        clipped = draws.clip(-largest_draw, largest_draw)
        blocks = np.array_split(clipped, BLOCKS)
        mean_squares[level] = [np.square(block).mean() for block in blocks]
    grows_at_these = mean_squares[-1].mean() > mean_squares[0].mean()
    if not grows_at_these:  # or NaN
        return False
    relative_widths = [2**level for level in range(len(by_width))]
    limit = extrapolated(mean_squares.T, relative_widths)
    return math.isinf(limit.error)


def _pooled(laws: Sequence[Any]) -> Any:
    """One law that pools the draws of all blocks."""
    first = laws[0]
    means = [law.component_mean for law in laws]
    if isinstance(first, Joint):
        spreads = [law.component_cov for law in laws]
    else:
        spreads = [law.component_var for law in laws]
    return type(first)(np.concatenate(means), np.concatenate(spreads), first.origin)


def _centres_and_spreads(law: Any) -> Array:
    """The centre and the spread of each entry, an array (2, entries).

    With the means of the lower and of the upper half of some quantiles, the centre is
    their middle and the spread their distance.
    """
    entries = [law]
    if isinstance(law, Joint):
        entries = [law[i] for i in range(law.dim)]
    quantiles = np.array([entry.ppf(CENTRE_LEVELS) for entry in entries]).T
    lower_half, upper_half = np.split(quantiles, 2)
    low = lower_half.mean(axis=0)
    high = upper_half.mean(axis=0)
    return np.array([(high + low) / 2, high - low])


@dataclass(frozen=True, eq=False)
class ExtrapolatedLaw:
    """A limit law extrapolated from exact laws at finite widths.

    `net.law(n=inf, method="extrapolate")` returns it. Every number is an `Estimate`,
    whose error includes noise and the bias of the extrapolation.

    Parameters
    ----------
    name : str
        The name of the program.
    widths : tuple of int
        The widths that stand for an infinite one.
    laws : tuple of tuple of Mixture or Joint
        The laws by block of draws, at each width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.gaussian(n, 2)
    >>> vanishing = ns.mean_dot(x, x)[0, 1] * x[0]
    >>> net = ns.Program(ns.rms_norm(vanishing, eps=0.0))
    >>> limit = net.law(n=ns.inf, draws=4000, method="extrapolate")
    >>> limit.status, abs(limit.var().value - 1) < 4 * limit.var().error
    ('extrapolated from n ≤ 134,217,728', True)
    """

    name: str
    widths: tuple[int, ...]
    laws: tuple[tuple[Mixture | Joint, ...], ...]

    @property
    def status(self) -> str:
        """The largest width of the extrapolation: "extrapolated from n ≤ N"."""
        return f"extrapolated from n ≤ {self.widths[-1]:,}"

    def details(self, statistic: Statistic) -> list[Extrapolated]:
        """Value, error and growth exponent of each entry of a statistic of a law.

        A statistic may have a scale that the law has not reached at these widths: P(Y >
        t) has the scale t. So it is also evaluated for the law shifted and scaled to
        its extrapolated centre and spread, and the error includes the change.
        """
        entries = self._extrapolated(statistic)
        limits = np.array([entry.value for entry in entries])
        unseen_changes = self._unseen_changes(statistic, limits)
        details = []
        for entry, unseen_change in zip(entries, unseen_changes, strict=True):
            error = max(entry.error, float(unseen_change) / 2)
            details.append(entry._replace(error=error))
        return details

    def _unseen_changes(self, statistic: Statistic, limits: Array) -> Array:
        """How far a statistic of moved laws is from its limits, (entries,).

        It is the largest distance among moves whose effect the extrapolation may not
        see; 0 if there are none.
        """
        last = np.ravel(statistic(self._last))

        def changes(laws: Sequence[Any]) -> Array:
            """Changes of the statistic from the last law to others, (laws, entries)."""
            return np.array([np.ravel(statistic(law)) - last for law in laws])

        by_move = changes(self._moved.fully)
        by_partial_move = changes(self._moved.partly)
        # a statistic that does not depend on centre and spread
        by_move[np.abs(by_move) <= ROUNDING * np.abs(last)] = 0.0
        by_extrapolation = limits - last
        distance = np.abs(by_move - by_extrapolation)

        # If a move changes the statistic less than the extrapolation does, what is
        # beyond it is a change of shape.
        is_below = by_move < np.minimum(0.0, by_extrapolation)
        is_above = by_move > np.maximum(0.0, by_extrapolation)
        # If the statistic is linear within the move, the extrapolation sees all of it.
        curvature = np.abs(by_move - by_partial_move / PART)
        is_curved = curvature > LINEAR * distance
        is_unseen = (is_below | is_above) & is_curved
        return np.asarray(np.max(distance, axis=0, where=is_unseen, initial=0.0))

    def _extrapolated(self, statistic: Statistic) -> list[Extrapolated]:
        """Extrapolate each entry of a statistic, from its jackknife pseudovalues.

        With B blocks, that of block k is B S − (B − 1) S_k, where S is the statistic of
        all blocks, and S_k that of all but k. Statistics of single blocks would be
        biased, like a variance of few draws, and so would be their limits.
        """
        by_width = []
        for laws_of_blocks in zip(*self.laws, strict=True):
            by_width.append(_pseudovalues(statistic, laws_of_blocks))
        values = np.array(by_width, dtype=float)  # (widths, blocks, entries)
        by_entry = values.transpose(2, 1, 0)
        return [extrapolated(blocks, self.widths) for blocks in by_entry]

    def limit(self, statistic: Statistic) -> Estimate:
        """The limit of a statistic, a function of a law that returns numbers.

        It raises an error if there may be no limit.
        """
        entries = self.details(statistic)
        for entry in entries:
            if math.isinf(entry.error):
                self._refuse(entry)
        shape = np.shape(statistic(self.laws[0][0]))
        if not shape:
            (entry,) = entries
            return Estimate(float(entry.value), float(entry.error))
        value = np.array([entry.value for entry in entries]).reshape(shape)
        error = np.array([entry.error for entry in entries]).reshape(shape)
        return Estimate(value, error)

    def _refuse(self, entry: Extrapolated) -> NoReturn:
        """Raise an error: there is no limit, or the draws do not decide it."""
        exponent = f"n^({entry.growth:.2f} ± {entry.growth_error:.2g})"
        widths = ", ".join(map(str, self.widths))
        label = f"extrapolation of {self.name} from widths {widths}"
        is_known = not math.isnan(entry.growth)
        if is_known and entry.growth - 2 * entry.growth_error > SLOWEST:
            raise NoLimitError(
                f"{label} shows no limit: differences between widths do not fall but"
                f" change like {exponent}"
            )
        if is_known:
            # the error of γ falls like 1/√draws: so many times the draws make it
            # DECISIVE
            decisive = math.ceil((entry.growth_error / DECISIVE) ** 2)
            factor = min(max(SMALLEST_FACTOR, decisive), LARGEST_FACTOR)
            change = f"change like {exponent}, which may fall or not"
        else:
            factor = LARGEST_FACTOR
            change = "rise by more than their noise"
        draws = sum(laws[-1].replicas for laws in self.laws)
        about = "up to" if factor == LARGEST_FACTOR else "about"
        raise LawError(
            "limit",
            f"{label} with draws={draws} does not show whether there is a limit:"
            f" differences {change}; take {about} draws={factor * draws}",
        )

    @property
    def with_error(self) -> ExtrapolatedLaw:
        """The law itself: every number that it returns is an `Estimate`."""
        return self

    def mean(self) -> Estimate:
        """The limit of the mean."""
        return self.limit(lambda law: law.mean())

    def var(self) -> Estimate:
        """The limit of the variance, one number for each entry."""
        return self.limit(lambda law: law.var())

    def kurtosis(self) -> Estimate:
        """The limit of the excess kurtosis."""
        return self.limit(lambda law: law.kurtosis())

    def cdf(self, y: npt.ArrayLike) -> Estimate:
        """The limit of the distribution function."""
        return self.limit(lambda law: law.cdf(y))

    def ppf(self, q: npt.ArrayLike) -> Estimate:
        """The limit of the quantiles."""
        return self.limit(lambda law: law.ppf(q))

    def pdf(self, y: npt.ArrayLike) -> Estimate:
        """The limit of the density.

        Its error includes that of a block's density, which may be a kernel estimate.
        """
        density = self.limit(lambda law: law.pdf(y))
        errors_of_blocks = []
        for laws in self.laws:
            estimate = laws[-1].with_error.pdf(y)
            errors_of_blocks.append(np.asarray(estimate.error))
        error_of_block = np.mean(errors_of_blocks, axis=0)
        return Estimate(density.value, combined(density.error, error_of_block))

    @cached_property
    def _last(self) -> Any:
        """The law at the largest width."""
        return _pooled([laws[-1] for laws in self.laws])

    @cached_property
    def _moved(self) -> _MovedLaws:
        """The law at the largest width, moved to the limits of its centre and spread.

        It moves to two errors on each side of them: four laws. If centre or spread show
        no limit, it moves as far again as from the smallest width to the largest.
        """
        # arrays (2, outputs): the centres and the spreads
        law_at_smallest_width = _pooled([laws[0] for laws in self.laws])
        at_smallest = _centres_and_spreads(law_at_smallest_width)
        at_largest = _centres_and_spreads(self._last)
        limits = self._extrapolated(_centres_and_spreads)
        value = np.array([limit.value for limit in limits]).reshape(at_largest.shape)
        error = np.array([limit.error for limit in limits]).reshape(at_largest.shape)
        has_limit = np.isfinite(error)
        value = np.where(has_limit, value, at_largest)
        half_change = np.abs(at_largest - at_smallest) / 2
        error = np.where(has_limit, error, half_change)
        fully = []
        partly = []
        for sides in product((-2.0, 2.0), repeat=2):  # of the centre and of the spread
            target = value + np.array(sides)[:, None] * error
            on_the_way = at_largest + PART * (target - at_largest)
            fully.append(self._move_to(target, at_largest))
            partly.append(self._move_to(on_the_way, at_largest))
        return _MovedLaws(fully, partly)

    def _move_to(self, target: Array, last: Array) -> Any:
        """The last law, moved from its centres and spreads `last` to `target`.

        Both are (2, entries), as from `_centres_and_spreads`.
        """
        centre, spread = target
        last_centre, last_spread = last
        is_random = last_spread > 0
        ratio = spread / np.where(is_random, last_spread, 1.0)
        factor = np.where(is_random, np.maximum(ratio, NARROWEST), 1.0)
        # y becomes centre + factor (y − last_centre)
        mean = self._last.component_mean * factor + centre - factor * last_centre
        origin = self._last.origin
        if isinstance(self._last, Joint):
            cov = self._last.component_cov * np.outer(factor, factor)
            return Joint(mean, cov, origin)
        return Mixture(mean, self._last.component_var * factor**2, origin)

    def __repr__(self) -> str:
        return f"<ExtrapolatedLaw of {self.name}, {self.status}>"


def _pseudovalues(statistic: Statistic, laws: Sequence[Any]) -> list[Array]:
    """B S − (B − 1) S_k for each of B blocks, (entries,) each.

    `laws` are those of the blocks at one width; see `ExtrapolatedLaw._extrapolated`.
    """
    count = len(laws)
    of_all_blocks = np.ravel(statistic(_pooled(laws)))
    pseudovalues = []
    for k in range(count):
        other_blocks = [*laws[:k], *laws[k + 1 :]]
        without_k = np.ravel(statistic(_pooled(other_blocks)))
        pseudovalues.append(count * of_all_blocks - (count - 1) * without_k)
    return pseudovalues


class _MovedLaws(NamedTuple):
    """A law moved in several directions, all the way and by the fraction PART."""

    fully: list[Any]
    partly: list[Any]


def extrapolate(
    name: str, at: AtWidths, coordinates: Coordinates, sampling: Sampling
) -> ExtrapolatedLaw:
    """The limit at the infinite ones of the widths, from exact laws at finite ones."""
    if math.inf not in at.bound.values():
        raise ArgumentError(
            "method", "extrapolate", "left out at finite widths, where laws are exact"
        )
    if sampling.draws < 2 * BLOCKS:
        raise ArgumentError(
            "draws", sampling.draws, f"{2 * BLOCKS} or more for method='extrapolate'"
        )
    values = topological_order(at.whole)
    first_width = _first_width(values, at)
    widths = tuple(first_width * 2**level for level in range(LEVELS))
    finite = [_with_finite_widths(at, width) for width in widths]
    _refuse_fixed_eps(values, finite)
    _refuse_fixed_scales(values, finite)
    has_steps = any(optimiser_steps(value.op) for value in values)
    if has_steps and first_width < FIRST_WIDTH_OF_PRODUCTS:
        _refuse_growing_steps(at)
    seeds = np.random.SeedSequence(sampling.seed).generate_state(BLOCKS)
    draws = sampling.draws // BLOCKS
    laws: list[Any] = []
    for seed in seeds:
        of_block = replace(sampling, draws=draws, seed=int(seed), progress=False)
        laws.append(tuple(at_width.law(coordinates, of_block) for at_width in finite))
    return ExtrapolatedLaw(name, widths, tuple(laws))


def _first_width(values: Sequence[Value], at: AtWidths) -> int:
    """The smallest width of the extrapolation, a power of two (see `FIRST_WIDTH`)."""
    if asks_products_alone(values, at.bound):
        return FIRST_WIDTH_OF_PRODUCTS
    vectors = max(value.size for value in values if isinstance(value, Vector))
    power_of_two: int = 2 ** math.ceil(math.log2(8 * vectors))
    return max(FIRST_WIDTH, power_of_two)


def _with_finite_widths(at: AtWidths, finite_width: int) -> AtWidths:
    """The program with every infinite width replaced by a finite one."""
    widths = tuple(
        (name, finite_width if math.isinf(width) else width)
        for name, width in at.widths
    )
    return replace(at, widths=widths)
