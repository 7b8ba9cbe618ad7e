"""Limits by extrapolation over the width, for limits that the engine cannot compute;
docs/theory.md, "Extrapolation".

A statistic at width n is S(n) = a + Σ_k b_k n^(−kp) with p = 1, 1/2 or 1/4, and S(2n) −
S(n) ~ n^γ.
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

from ._array_api import Floats as Array
from ._bound_program import AtWidths, Coordinates
from ._validate import ArgumentError
from .engine import ExactError, NoLimitError, Sampling
from .engine._exceptions import GrowingStepError
from .engine._plan_query import asks_products_alone, optimiser_steps
from .language._array import Value
from .language._graph import topological_order
from .language._operation import Apply
from .language._scalar import ADD, MATMUL, MEAN, MULTIPLY, SUBTRACT, SUM
from .language._vector import Nonlin, Vector
from .laws import Estimate, Joint, LawError, Mixture
from .laws._estimate import combined, student

Statistic = Callable[[Any], npt.ArrayLike]

# the smallest width, or eight times the vectors of a value: above the directions in use
FIRST_WIDTH = 32
# if only products are needed: a law costs the same at every width
FIRST_WIDTH_OF_PRODUCTS = 2**24
LEVELS = 4  # widths, each twice the one before
BLOCKS = 16  # of draws; each uses its own seed at all widths
SCALE_DRAWS = 256  # to see which arguments of functions narrow as the width grows
# from the smallest to the largest width, 8 times as wide, n^(−1/4) falls to 0.59
FALL = 0.7
# times the median of |u|: larger ones are clipped, because the square of one outlier
# hides growth
TAIL = 8.0
# fractions of an argument at which a function is compared with itself
RAY = 4.0 ** -np.arange(21.0)
RAY_RTOL = 1e-9  # smaller changes of a function are rounding errors
BEND = 0.1  # exponents of a function along a ray that differ by less count as one
STEEP = 6.0  # a larger exponent means that the function grows faster than powers
NARROWEST = 1e-6  # of its spread: the narrowest law that counts as the limit of one
# of the quantiles that locate a law: exist for all tails
CENTRE_LEVELS = (np.arange(8) + 0.5) / 8
ARITHMETIC = ADD, SUBTRACT, SUM, MEAN, MULTIPLY, MATMUL  # functions without a scale
# relative to a statistic: changes of a law that change it by less do not count
ROUNDING = 1e-9
PART = 0.1  # of a move of a law, by which a statistic is seen to be linear or not
# a statistic counts as linear if its curvature explains a smaller share of a change
LINEAR = 0.1
# of the noise of a number: a smaller difference adds less than noise even if it falls
# like n^(−1/10)
SLOW = 2**0.1 - 1
SIGNIFICANT = 3.0  # standard errors: a larger difference is not 0
SLOWEST = -0.25  # the exponent γ of limits that are reached most slowly
# standard error of γ that tells SLOWEST from 0, by two errors to each side
DECISIVE = 0.06
# smallest and largest factor of draws that a message suggests
LEAST_MORE, MORE = 4, 100
# p, with its prior probability: most programs have whole powers
POWERS = {1.0: 0.5, 0.5: 0.35, 0.25: 0.15}
# of b_1 n^(−p) at the smallest width, over the change from there: equally probable
SIZES = 2.0 ** np.arange(-6, 7)
# sizes of the terms k = 1, 2, 3 at the smallest width, over that of the first
NEXT_TERMS = 4.0 ** -np.arange(3)


class Extrapolated(NamedTuple):
    """The limit of one number: value and error, and γ with its error."""

    value: float
    error: float
    growth: float
    growth_error: float


def extrapolated(blocks: Array, widths: Sequence[int]) -> Extrapolated:
    """The limit of block means (blocks, widths); an infinite error if the differences
    between widths do not fall.
    """
    n, count = np.asarray(widths, dtype=float), len(blocks)
    mean, cov = blocks.mean(axis=0), np.atleast_2d(np.cov(blocks.T)) / count

    def noise(weights: Array) -> float:
        return math.sqrt(max(float(weights @ cov @ weights), 0.0))

    steps = np.diff(np.eye(len(n)), axis=0)
    difference, error = steps @ mean, np.array([noise(w) for w in steps])
    rounding = 1e-12 * np.abs(mean).max()
    significant = np.abs(difference) > SIGNIFICANT * error + rounding
    growth = spread = math.nan
    if (
        significant[-1]
        and significant[-2]
        and (ratio := difference[-1] / difference[-2]) > 0
    ):
        growth = math.log2(ratio)
        spread = math.hypot(
            error[-1] / difference[-1], error[-2] / difference[-2]
        ) / math.log(2)
    may_rise = growth - 2 * spread > SLOWEST or (
        growth > SLOWEST and growth + 2 * spread > -0.1
    )
    if math.isnan(growth):  # does the last difference exceed the one before?
        sign = np.sign(difference)
        more = sign[-1] * steps[-1] - sign[-2] * steps[-2]
        may_rise = more @ mean > SIGNIFICANT * noise(more)
    # else terms of opposite signs cancelled between
    still = abs(difference[-1]) > 2**SLOWEST * np.abs(difference[0])
    matters = abs(difference[-1]) > SLOW * noise(np.eye(len(n))[-1])
    if significant[-1] and may_rise and still and matters:
        return Extrapolated(math.nan, math.inf, growth, spread)
    # The posterior mean and standard deviation of a, for normal b_k and each power and
    # size, averaged by their evidence An estimate whose weights come from the estimated
    # covariance has more noise than that covariance says
    free = count - len(n)
    cov = (count - 1) * (count - 2) / (free * (free - 1)) * cov
    cov += np.eye(len(n)) * (
        rounding**2 + ROUNDING * np.diag(cov).mean() + np.finfo(float).tiny
    )
    size = SIZES * max(
        np.abs(mean - mean[-1]).max(),
        math.sqrt(np.mean(np.diag(steps @ cov @ steps.T))),
    )
    terms = [
        NEXT_TERMS * (n[:, None] / n[0]) ** (-power * (np.arange(len(NEXT_TERMS)) + 1))
        for power in POWERS
    ]
    # (powers, sizes, n, n)
    total = cov + np.array(
        [size[:, None, None] ** 2 * (term @ term.T) for term in terms]
    )
    inverse = np.linalg.inv(total)
    precision = inverse.sum(axis=(2, 3))
    off = mean - mean[-1]
    # from the mean at the largest width, here and below
    value = inverse.sum(axis=2) @ off / precision
    rest = off - value[..., None]
    misfit = np.einsum("psi,psij,psj->ps", rest, inverse, rest)
    prior = np.log([*POWERS.values()])[:, None]
    spreads = (np.linalg.slogdet(total)[1] + np.log(precision)) / 2
    # the noise is estimated too
    evidence = (
        prior - spreads - (count + len(n) - 2) / 2 * np.log1p(misfit / (count - 1))
    )
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    limit = float(np.sum(weight * value))
    deviation = math.sqrt(np.sum(weight * (1 / precision + (value - limit) ** 2)))
    return Extrapolated(
        float(mean[-1]) + limit,
        student(free + 1, 2.0) * deviation + rounding,
        growth,
        spread,
    )


def _refuse_fixed_scales(values: Sequence[Value], finite: Sequence[AtWidths]) -> None:
    """Reject a scale that the widths have not passed: numbers at these widths do not
    tend to the limit.
    """
    for value in values:
        if any(
            step.eps(finite[0].bound) == step.eps(finite[-1].bound) > 0
            for step in optimiser_steps(value.op)
        ):
            problem = (
                "Adam with eps > 0, extrapolated: entries of gradients fall with the"
                " width towards eps"
            )
            raise ExactError(value, problem, instead="take eps=0")
    functions = [
        v
        for v in values
        if isinstance(v.op, Apply | Nonlin) and v.op.f not in ARITHMETIC
    ]
    arguments = tuple(dict.fromkeys(x for v in functions for x in v.op.inputs))
    if not arguments:
        return
    how = Sampling(SCALE_DRAWS, progress=False)
    by_width = [
        replace(at, outputs=arguments, whole=arguments).unchecked(how) for at in finite
    ]
    drawn = dict(zip(arguments, zip(*by_width, strict=True), strict=True))
    for value in functions:
        op = value.op
        assert isinstance(op, Apply | Nonlin)
        ndim = op.leading + op.axes if isinstance(op, Apply) else value.ndim
        shapes = {
            x: (SCALE_DRAWS, *(1,) * (ndim - x.ndim), *drawn[x][0].shape[1:])
            for x in op.inputs
        }
        if bends(
            op.f, [[some.reshape(shapes[x]) for some in drawn[x]] for x in op.inputs]
        ):
            raise ExactError(
                value,
                f"{op.f.name} of an argument that narrows or grows with the width,"
                " extrapolated: within the range of the argument at finite widths the"
                " function is not what it is near the limit of the argument",
                instead=(
                    "take eps=0 in a norm, scores over n, or a function without a scale"
                ),
            )


def _refuse_growing_steps(at: AtWidths) -> None:
    """Reject a step that grows with the width: at these widths a small learning rate
    hides it.
    """
    try:
        at.plan()
    except GrowingStepError:
        raise
    except ExactError:  # why the limit is extrapolated
        pass


def bends(f: Callable[..., Array], arguments: Sequence[Sequence[Array]]) -> bool:
    """Whether f has a scale that its arguments have not passed, from draws of each
    argument at all widths.

    Let c be the limit of arguments that narrow, and D(t) the mean of |f(c + t (u − c))
    − f(c)| over draws u at the smallest width. A function without a scale has D(t) ~
    t^γ from t = 1 down to 0. If the exponent changes, f at larger widths is not what it
    is at these. For arguments that grow, c = 0 and t goes up.
    """
    draws = [by_width[0] for by_width in arguments]
    centres, exact, grow = zip(*map(_limit_point, arguments), strict=True)
    # nothing narrows or grows
    if all((u == c).all() for u, c in zip(draws, centres, strict=True)):
        return False
    rays = list(zip(draws, centres, grow, strict=True))
    with np.errstate(all="ignore"):
        there = np.asarray(f(*centres))
        base = np.where(np.isfinite(there), there, 0.0)
        moved = ([c + (1 / t if up else t) * (u - c) for u, c, up in rays] for t in RAY)
        distance = np.array([np.abs(f(*along) - base).mean(axis=0) for along in moved])
        visible = distance > RAY_RTOL * np.abs(base).max(axis=0, initial=0.0)
        gamma = np.log(distance[:-1] / distance[1:]) / np.log(RAY[0] / RAY[1])
        known = visible[:-1] & visible[1:] & np.isfinite(gamma)
        change = np.where(known, gamma - gamma[0], 0.0)
    bent = (
        (change > BEND) | (all(exact) & (change < -BEND)) | (np.abs(gamma[0]) > STEEP)
    )
    return bool((bent & known[0]).any())


def _limit_point(drawn: Sequence[Array]) -> tuple[Array, bool, bool]:
    """Where draws of an argument tend to, entry by entry, whether that is known
    exactly, and whether they grow.

    That is 0 if they vanish or grow, and their mean at the largest width if only their
    spread falls; others stay.
    """
    narrow, wide = drawn[0], drawn[-1]
    most = TAIL * np.median(np.abs(wide))
    clipped = np.array(
        [
            [np.square(b.clip(-most, most)).mean() for b in np.array_split(u, BLOCKS)]
            for u in drawn
        ]
    )
    larger = clipped[-1].mean() > clipped[0].mean()
    if larger and math.isinf(
        extrapolated(clipped.T, [2**k for k in range(len(drawn))]).error
    ):
        return np.zeros_like(narrow), True, True
    before, after = (np.abs(u).mean(axis=0) for u in (narrow, wide))
    vanishes = after < FALL * before
    narrows = ~vanishes & (wide.std(axis=0) < FALL * narrow.std(axis=0))
    return (
        np.where(vanishes, 0.0, np.where(narrows, wide.mean(axis=0), narrow)),
        not narrows.any(),
        False,
    )


def _pooled(laws: Sequence[Any]) -> Any:
    """The law of the draws of all blocks."""
    spread = "component_cov" if isinstance(laws[0], Joint) else "component_var"
    parts = (
        np.concatenate([getattr(law, name) for law in laws])
        for name in ("component_mean", spread)
    )
    return type(laws[0])(*parts, laws[0].origin)


def _centres_and_spreads(law: Any) -> Array:
    """For each entry: the mean of the quantiles at some levels, and how far the upper
    half is above the lower.
    """
    each = [law[i] for i in range(law.dim)] if isinstance(law, Joint) else [law]
    low, high = (
        half.mean(axis=0)
        for half in np.split(np.array([one.ppf(CENTRE_LEVELS) for one in each]).T, 2)
    )
    return np.array([(high + low) / 2, high - low])


@dataclass(frozen=True, eq=False)
class ExtrapolatedLaw:
    """A limit law by extrapolation from exact laws at finite widths; `net.law(n=inf,
    method="extrapolate")` makes it.

    Every number is an `Estimate`, whose error holds noise and the bias of the
    extrapolation.

    Parameters
    ----------
    name : str
        Of the program.
    widths : tuple of int
        The widths that stand for an infinite one.
    laws : tuple of tuple of Mixture or Joint
        The laws by block of draws, at each width.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> x = ns.gaussian(n, 2)
    >>> net = ns.Program(ns.rms_norm(ns.mean_dot(x, x)[0, 1] * x[0], eps=0.0))  # of a vector that vanishes
    >>> limit = net.law(n=ns.inf, draws=4000, method="extrapolate")
    >>> limit.status, abs(limit.var().value - 1) < 4 * limit.var().error
    ('extrapolated from n ≤ 134,217,728', True)
    """

    name: str
    widths: tuple[int, ...]
    laws: tuple[tuple[Mixture | Joint, ...], ...]

    @property
    def status(self) -> str:
        """From which widths it is."""
        return f"extrapolated from n ≤ {self.widths[-1]:,}"

    def details(self, statistic: Statistic) -> list[Extrapolated]:
        """Value, error and growth exponent of each entry of a statistic, a function of
        a law.

        A statistic may have a scale that the law has not reached at these widths: P(Y >
        t) has the scale t. So it is also evaluated for the law moved to where its
        centre and spread tend, and the error includes what that changes.
        """
        found, last = self._extrapolated(statistic), np.ravel(statistic(self._last))
        moves, parts = (
            np.array([np.ravel(statistic(law)) - last for law in laws])
            for laws in self._moved
        )
        # a statistic that does not depend on centre and spread
        moves[np.abs(moves) <= ROUNDING * np.abs(last)] = 0.0
        change = np.array([one.value for one in found]) - last
        off = np.abs(moves - change)
        # If a move changes the statistic less than the extrapolation does, the rest is
        # a change of shape. If the statistic is linear within the move, the
        # extrapolation sees all of it.
        beyond = (moves < np.minimum(0.0, change)) | (moves > np.maximum(0.0, change))
        curved = np.abs(moves - parts / PART) > LINEAR * off
        unseen = np.max(off, axis=0, where=beyond & curved, initial=0.0)
        return [
            one._replace(error=max(one.error, float(more) / 2))
            for one, more in zip(found, unseen, strict=True)
        ]

    def _extrapolated(self, statistic: Statistic) -> list[Extrapolated]:
        """By the jackknife's values of a statistic: a variance of few draws is biased,
        and its limit would be.
        """
        count, values = len(self.laws), []
        for laws in zip(*self.laws, strict=True):
            whole = np.ravel(statistic(_pooled(laws)))
            rest = (
                np.ravel(statistic(_pooled([*laws[:k], *laws[k + 1 :]])))
                for k in range(count)
            )
            values.append([count * whole - (count - 1) * without for without in rest])
        by_width = np.array(values, dtype=float)  # (widths, blocks, entries)
        return [
            extrapolated(by_width[:, :, k].T, self.widths)
            for k in range(by_width.shape[2])
        ]

    def limit(self, statistic: Statistic) -> Estimate:
        """The limit of a statistic, a function of a law that returns numbers; an error
        if it may have none.
        """
        entries = self.details(statistic)
        for one in entries:
            if math.isinf(one.error):
                self._refuse(one)
        shape = np.shape(statistic(self.laws[0][0]))
        value, error = (
            np.array([one[k] for one in entries]).reshape(shape) for k in (0, 1)
        )
        return Estimate(value, error) if shape else Estimate(float(value), float(error))

    def _refuse(self, one: Extrapolated) -> NoReturn:
        """Raise an error: no limit exists, or the draws do not decide whether one
        exists.
        """
        exponent = f"n^({one.growth:.2f} ± {one.growth_error:.2g})"
        of = (
            f"extrapolation of {self.name} from widths"
            f" {', '.join(map(str, self.widths))}"
        )
        if one.growth - 2 * one.growth_error > SLOWEST:
            raise NoLimitError(
                f"{of} shows no limit: differences between widths do not fall, they"
                f" change like {exponent}"
            )
        unknown = math.isnan(one.growth)
        factor = (
            MORE
            if unknown
            else min(
                max(LEAST_MORE, math.ceil((one.growth_error / DECISIVE) ** 2)), MORE
            )
        )
        draws = sum(laws[-1].replicas for laws in self.laws)
        change = (
            "rise by more than their noise"
            if unknown
            else f"change like {exponent}, which may fall or not"
        )
        remedy = f"take {'up to' if factor == MORE else 'about'} draws={factor * draws}"
        raise LawError(
            "limit",
            f"{of} with draws={draws} does not show whether there is a limit:"
            f" differences {change}; {remedy}",
        )

    @property
    def with_error(self) -> ExtrapolatedLaw:
        """The law itself: every number that it returns is an `Estimate`."""
        return self

    def mean(self) -> Estimate:
        """The limit of the mean."""
        return self.limit(lambda law: law.mean())

    def var(self) -> Estimate:
        """The limit of the variance; of several entries, of each."""
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
        """The limit of the density; its error includes that of a block's density, which
        may be a kernel estimate.
        """
        found = self.limit(lambda law: law.pdf(y))
        blocks = [np.asarray(laws[-1].with_error.pdf(y).error) for laws in self.laws]
        return Estimate(found.value, combined(found.error, np.mean(blocks, axis=0)))

    @cached_property
    def _last(self) -> Any:
        """The law at the largest width."""
        return _pooled([laws[-1] for laws in self.laws])

    @cached_property
    def _moved(self) -> tuple[list[Any], list[Any]]:
        """The law at the largest width, moved to the limits of its centre and spread,
        two errors to each side.

        If these show no limit, they move as far again as from the smallest width to the
        largest. The second list has the laws moved by a fraction PART of that.
        """
        last, first = (
            _centres_and_spreads(law)
            for law in (self._last, _pooled([laws[0] for laws in self.laws]))
        )
        limits = np.array(
            [one[:2] for one in self._extrapolated(_centres_and_spreads)]
        ).T.reshape(2, *last.shape)
        value, error = np.where(
            np.isfinite(limits[1]), limits, [last, np.abs(last - first) / 2]
        )
        ends = [
            value + np.array(sides)[:, None] * error
            for sides in product((-2.0, 2.0), repeat=2)
        ]

        def moved(centre: Array, spread: Array) -> Any:
            """The law of by · y + shift, entry by entry."""
            random = last[1] > 0
            by = np.where(
                random,
                np.maximum(spread / np.where(random, last[1], 1.0), NARROWEST),
                1.0,
            )
            mean, origin = (
                self._last.component_mean * by + centre - by * last[0],
                self._last.origin,
            )
            if isinstance(self._last, Joint):
                return Joint(mean, self._last.component_cov * np.outer(by, by), origin)
            return Mixture(mean, self._last.component_var * by**2, origin)

        return [moved(*end) for end in ends], [
            moved(*(last + PART * (end - last))) for end in ends
        ]

    def __repr__(self) -> str:
        return f"<ExtrapolatedLaw of {self.name}, {self.status}>"


def extrapolate(
    name: str, at: AtWidths, coordinates: Coordinates, how: Sampling
) -> ExtrapolatedLaw:
    """The limit at the infinite ones of the widths, from exact laws at finite ones."""
    if math.inf not in at.bound.values():
        raise ArgumentError(
            "method", "extrapolate", "left out at finite widths, where laws are exact"
        )
    if how.draws < 2 * BLOCKS:
        raise ArgumentError(
            "draws", how.draws, f"{2 * BLOCKS} or more for method='extrapolate'"
        )
    values = topological_order(at.whole)
    vectors = max(value.size for value in values if isinstance(value, Vector))
    first = max(FIRST_WIDTH, 2 ** math.ceil(math.log2(8 * vectors)))
    if asks_products_alone(values, at.bound):
        first = FIRST_WIDTH_OF_PRODUCTS
    widths = tuple(first * 2**k for k in range(LEVELS))
    finite = [
        replace(
            at, widths=tuple((k, n if math.isinf(own) else own) for k, own in at.widths)
        )
        for n in widths
    ]
    _refuse_fixed_scales(values, finite)
    if first < FIRST_WIDTH_OF_PRODUCTS and any(
        optimiser_steps(value.op) for value in values
    ):
        _refuse_growing_steps(at)
    seeds = [int(s) for s in np.random.SeedSequence(how.seed).generate_state(BLOCKS)]
    blocks = [
        replace(how, draws=how.draws // BLOCKS, seed=seed, progress=False)
        for seed in seeds
    ]
    laws: Any = tuple(
        tuple(each.law(coordinates, block) for each in finite) for block in blocks
    )
    return ExtrapolatedLaw(name, widths, laws)
