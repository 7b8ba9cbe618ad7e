"""From finished trials to the curves and numbers of a figure, by both estimators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from ...laws import Empirical, Estimate, kl, paper_kl
from ...nn import Attention
from ._densities import AGAIN, GRID, Agreement, Array, Plan, on_grid
from ._experiments import Case, Figure, limit_law

Row = dict[str, Any]

# The part of the grid that is drawn: four standard deviations of the outputs.
SHOWN = np.abs(GRID) < 2.5
# Numbers of heads of the exact distance from the limit to the Gaussian.
HEADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WELL_ABOVE = 4  # standard errors above 0 of the points that a slope is fitted to


def _paper_kl(first: list[Empirical], second: list[Empirical]) -> list[float]:
    """The paper's D(first ‖ second), one for each trial, on a grid over all draws.

    Trial k compares the k-th law of both lists.
    """
    laws = [*first, *second]
    lowest = min(law.draws[0] for law in laws)
    highest = max(law.draws[-1] for law in laws)
    grid = np.linspace(lowest, highest, 500)
    return [paper_kl(a, b, grid) for a, b in zip(first, second, strict=True)]


def _case_columns(case: Case) -> Row:
    """The columns that say which case a row is about."""
    return {
        "tokens": case.tokens,
        "heads": case.heads,
        "activation": case.activation,
        "n": case.width,
        "head_dim": case.head_dim or "",
    }


@dataclass(frozen=True)
class Curve:
    """A density with its errors, on the grid y."""

    role: str  # width n, limit or infinitely many heads
    estimator: str  # exact or paper
    case: Case
    y: Array
    density: Array
    error: Array


@dataclass(frozen=True)
class Densities:
    """A figure of densities."""

    figure: Figure
    curves: list[Curve]

    def rows(self) -> Iterator[Row]:
        """A row for each point."""
        for curve in self.curves:
            points = zip(curve.y, curve.density, curve.error, strict=True)
            for y, density, error in points:
                yield {
                    **_case_columns(curve.case),
                    "law": curve.role,
                    "estimator": curve.estimator,
                    "y": y,
                    "density": density,
                    "error": error,
                }


def densities(plan: Plan, figure: Figure) -> Densities:
    """Each case at its width, and its limit.

    A figure over heads at width 256 has the Gaussian of infinitely many heads too.
    """
    curves = []
    y = GRID[SHOWN]
    for case in figure.cases:
        if plan.exact:
            curves.append(_exact_curve(plan, case, y))
        if plan.paper:
            curves.append(_kernel_curve("width n", case, law=plan.draws(case)[0], y=y))
    for limit in dict.fromkeys(case.limit for case in figure.cases):
        if plan.exact:
            density, error = limit_law(limit).with_error.pdf(y)
            curves.append(
                Curve(
                    role="limit",
                    estimator="exact",
                    case=limit,
                    y=y,
                    density=density,
                    error=error,
                )
            )
        if plan.paper:
            curves.append(
                _kernel_curve("limit", case=limit, law=plan.limit_draws(limit)[0], y=y)
            )
    if figure.parameter == "H" and figure.cases[0].head_dim is None:
        limit = figure.cases[0].limit
        density = limit_law(limit).infinite_heads().pdf(y)
        role = "infinitely many heads"
        error = np.zeros_like(y)
        curves.append(
            Curve(
                role=role,
                estimator="exact",
                case=limit,
                y=y,
                density=density,
                error=error,
            )
        )
    return Densities(figure, curves)


def _exact_curve(plan: Plan, case: Case, y: Array) -> Curve:
    """Our estimate at finite width, with standard errors from blocks of replicas."""
    blocks = plan.blocks(case)[:, SHOWN]  # densities (blocks, points)
    error = blocks.std(axis=0, ddof=1) / math.sqrt(len(blocks))
    return Curve(
        role="width n",
        estimator="exact",
        case=case,
        y=y,
        density=blocks.mean(axis=0),
        error=error,
    )


def _kernel_curve(role: str, case: Case, law: Empirical, y: Array) -> Curve:
    """The paper's kernel estimate of the density, from the draws of one trial."""
    density, error = law.with_error.pdf(y)
    return Curve(
        role=role, estimator="paper", case=case, y=y, density=density, error=error
    )


@dataclass(frozen=True)
class Divergences:
    """A figure of KL divergences: one point for each case, by one estimator or both."""

    figure: Figure
    # The paper's estimator: for each case, a value of each trial.
    paper: list[list[float]] = field(default_factory=list)
    # The same for the limit against itself.
    floor: list[list[float]] = field(default_factory=list)
    # Our estimator.
    exact: list[Estimate] = field(default_factory=list)
    # Whether the limit agrees with the engine, where widths are measured through it.
    limits: list[Agreement | None] = field(default_factory=list)

    @property
    def parameters(self) -> list[float]:
        """The varied parameter: n or H."""
        if self.figure.parameter == "n":
            return [case.width for case in self.figure.cases]
        return [case.heads for case in self.figure.cases]

    def best(self) -> list[Estimate]:
        """The best estimate of each case that there is.

        It is ours if it was run. Otherwise it is the paper's, a mean over trials, minus
        its value for the limit against itself, which is its bias where the divergence
        is 0. Trial k has the same draws of the limit in both, so the difference is
        taken trial by trial. Where there is no such value (the limit against the
        Gaussian), the bias stays.
        """
        if self.exact:
            return self.exact
        if not self.floor:
            return [_mean(np.array(trials)) for trials in self.paper]
        unbiased = []
        for trials, floor in zip(self.paper, self.floor, strict=True):
            differences = np.subtract(trials, floor)  # of the k-th trials
            unbiased.append(_mean(differences))
        return unbiased

    @cached_property
    def slope(self) -> Estimate | None:
        """The slope of log KL against log n over all points."""
        return slope(self.parameters, self.best())

    @cached_property
    def last_slope(self) -> Estimate | None:
        """The same between the last two points."""
        return slope(self.parameters[-2:], self.best()[-2:])

    def rows(self) -> Iterator[Row]:
        """A row for each trial of the paper's estimator, and one for our estimate.

        The paper's estimates for a limit against itself occur once.
        """
        limits_listed: set[Case] = set()
        for index, case in enumerate(self.figure.cases):
            columns = {**_case_columns(case), "compared": "width n with limit"}
            if self.paper:
                yield from _trial_rows(columns, self.paper[index])
            if self.floor and case.limit not in limits_listed:
                limits_listed.add(case.limit)
                limit_columns = {
                    **_case_columns(case.limit),
                    "compared": "limit with itself",
                }
                yield from _trial_rows(limit_columns, self.floor[index])
            if self.exact:
                yield _exact_row(columns, self.exact[index])


def _trial_rows(columns: Row, trials: Sequence[float]) -> Iterator[Row]:
    """A row for each trial of the paper's estimator."""
    for trial, value in enumerate(trials):
        yield {
            **columns,
            "estimator": "paper",
            "trial": trial,
            "kl": value,
            "error": "",
        }


def _exact_row(columns: Row, estimate: Estimate) -> Row:
    """The row of our estimate."""
    return {
        **columns,
        "estimator": "exact",
        "trial": "",
        "kl": estimate.value,
        "error": estimate.error,
    }


def _mean(trials: Array) -> Estimate:
    """The mean with its standard error, wider for few trials.

    Four of these errors then have the same level for any number of trials: that of four
    errors of a normal.
    """
    mean = float(np.mean(trials))
    if len(trials) < 2:
        return Estimate(mean, math.inf)
    level = scipy.special.ndtr(4.0)
    student = float(scipy.special.stdtrit(len(trials) - 1, level)) / 4
    std = float(np.std(trials, ddof=1))
    return Estimate(mean, student * std / math.sqrt(len(trials)))


def slope(parameters: Sequence[float], values: Sequence[Estimate]) -> Estimate | None:
    """The slope of log KL against the log of a parameter, by least squares.

    Only points that are well above their errors count; None for fewer than two.
    """
    value = np.array([estimate.value for estimate in values])
    error = np.array([estimate.error for estimate in values])
    well_above = value > WELL_ABOVE * error
    if np.count_nonzero(well_above) < 2:
        return None
    value = value[well_above]
    error = error[well_above]
    log_n = np.log(np.array(parameters)[well_above])
    x = log_n - log_n.mean()
    weights = x / np.sum(x**2)
    # to first order, the error of log value is error/value
    slope_error = np.sqrt(np.sum((weights * error / value) ** 2))
    return Estimate(float(weights @ np.log(value)), float(slope_error))


@lru_cache(maxsize=32)
def _floor(plan: Plan, limit: Case) -> list[float]:
    """The values of the paper's estimator for the limit against itself, one for each
    trial: those of two independent sets of draws. Without its error it would be 0.
    """
    return _paper_kl(plan.limit_draws(limit, AGAIN), plan.limit_draws(limit))


def divergences(plan: Plan, figure: Figure) -> Divergences:
    """D(width n ‖ limit) for each case."""
    curve = Divergences(figure)
    for case in figure.cases:
        if plan.paper:
            limit_draws = plan.limit_draws(case.limit)
            curve.paper.append(_paper_kl(plan.draws(case), limit_draws))
            curve.floor.append(_floor(plan, case.limit))
        if plan.exact:
            curve.exact.append(plan.kl(case))
            curve.limits.append(plan.agreement(case))
    return curve


@dataclass(frozen=True)
class Histogram:
    """Draws of one score: the first trial in bins, and numbers from all of them."""

    case: Case
    edges: Array
    counts: npt.NDArray[np.int64]
    variance: Estimate
    kolmogorov: Estimate  # to N(0, 1)


@dataclass(frozen=True)
class Scores:
    """The figure of one score under both scalings."""

    figure: Figure
    histograms: list[Histogram]

    def rows(self) -> Iterator[Row]:
        """A row for each bin."""
        for h in self.histograms:
            density = h.counts / (h.counts.sum() * np.diff(h.edges))
            bins = zip(h.edges[:-1], h.edges[1:], h.counts, density, strict=True)
            for left, right, count, height in bins:
                yield {
                    "n": h.case.width,
                    "scaling": h.case.scaling,
                    "left": left,
                    "right": right,
                    "count": int(count),
                    "density": height,
                }


def scores(plan: Plan, figure: Figure) -> Scores:
    """Histograms of p_11, over √n and over n."""
    histograms = [_histogram(plan, case) for case in figure.cases]
    return Scores(figure, histograms)


def _histogram(plan: Plan, case: Case) -> Histogram:
    """The histogram of one score, its variance, and Kolmogorov's distance to
    N(0, 1).
    """
    # (trials, draws)
    trials = np.stack([arrays["draws"] for arrays in plan.load(case)])
    trials = trials.astype(np.float64)
    # bins with one centred at 0, up to the largest draw of the first trial
    bin_width = 0.1 if case.scaling == "sqrt" else 0.1 / math.sqrt(case.width)
    reach = (math.ceil(np.abs(trials[0]).max() / bin_width) + 0.5) * bin_width
    bins = round(2 * reach / bin_width)
    counts, edges = np.histogram(trials[0], bins=bins, range=(-reach, reach))

    draws = np.sort(trials.ravel())
    squares = draws**2  # the mean of a score is 0
    error = float(squares.std(ddof=1) / math.sqrt(draws.size))
    # the empirical distribution function below the first draw and above each
    cdf = np.arange(draws.size + 1) / draws.size
    normal_cdf = scipy.special.ndtr(draws)
    above = np.max(cdf[1:] - normal_cdf)
    below = np.max(normal_cdf - cdf[:-1])
    return Histogram(
        case=case,
        edges=edges,
        counts=counts,
        variance=Estimate(float(squares.mean()), error),
        kolmogorov=Estimate(float(max(above, below)), 0.5 / math.sqrt(draws.size)),
    )


@dataclass(frozen=True)
class Heads:
    """KL against the number of heads.

    Width 256 is compared with the limit, and the limit with the Gaussian.
    """

    finite: Divergences
    gaussian: Divergences  # by the paper's estimator only
    many: list[Estimate]  # the exact D(limit ‖ Gaussian), for each of HEADS
    variances: list[Estimate]  # at width 256, for each case
    limit_variances: list[float]
    gaussian_variance: Estimate

    @property
    def figure(self) -> Figure:
        """The subject of the figure."""
        return self.finite.figure

    def rows(self) -> Iterator[Row]:
        """The rows of both comparisons."""
        yield from self.finite.rows()
        for row in self.gaussian.rows():
            if row["compared"] == "width n with limit":
                yield {**row, "n": math.inf, "compared": "limit with Gaussian"}
        for count, estimate in zip(HEADS, self.many, strict=False):
            columns = {
                **_case_columns(self.figure.cases[0]),
                "heads": count,
                "n": math.inf,
                "compared": "limit with Gaussian",
            }
            yield _exact_row(columns, estimate)


def heads(plan: Plan, figure: Figure) -> Heads:
    """Both comparisons, for each case; the exact one for more numbers of heads."""
    gaussian = Divergences(figure)
    if plan.paper:
        for case in figure.cases:
            limit_draws = plan.limit_draws(case.limit)
            gaussian_draws = plan.gaussian_draws(case.limit)
            gaussian.paper.append(_paper_kl(limit_draws, gaussian_draws))
    limit = limit_law(figure.cases[0])
    normal = limit.infinite_heads()
    many = []
    if plan.exact:
        many = [kl(limit.with_heads(count), normal) for count in HEADS]
    # The Gaussian's variance a second time, independently: E[A K A^T] over all scores
    # instead of the law of one head. Clipping at 100 leaves K = I.
    joint = Attention(np.eye(figure.cases[0].tokens)).infinite_heads(points=2**19)
    return Heads(
        finite=divergences(plan, figure),
        gaussian=gaussian,
        many=many,
        variances=[plan.variance(case) for case in figure.cases],
        limit_variances=[limit.with_heads(case.heads).var() for case in figure.cases],
        gaussian_variance=joint[0].with_error.var(),
    )


def limits_ahead(plan: Plan, figure: Figure) -> Iterator[None]:
    """Compute and cache the limits that a figure needs, one piece for each `yield`, so
    that the caller can do other work in between.
    """
    for limit in dict.fromkeys(case.limit for case in figure.cases if not case.score):
        if plan.exact:
            on_grid(limit)
            yield
        if plan.paper:
            plan.limit_draws(limit)
            yield
            if figure.kind != "density":
                _floor(plan, limit)
                yield


MEASURES = {"density": densities, "kl": divergences, "scores": scores, "heads": heads}
