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

# the part of the grid that is drawn: four standard deviations
SHOWN = np.abs(GRID) < 2.5
# for the exact distance from the limit to the Gaussian
HEADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _kernel(first: list[Empirical], second: list[Empirical]) -> list[float]:
    """The paper's D(first ‖ second), one for each trial, on a grid over the draws of
    all trials.
    """
    laws = [*first, *second]
    grid = np.linspace(
        min(law.draws[0] for law in laws), max(law.draws[-1] for law in laws), 500
    )
    return [paper_kl(a, b, grid) for a, b in zip(first, second, strict=True)]


def _place(case: Case) -> Row:
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
    """A density: of a finite width, a limit, or the Gaussian of infinitely many
    heads.
    """

    role: str
    estimator: str
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
        for c in self.curves:
            for y, density, error in zip(c.y, c.density, c.error, strict=True):
                yield {
                    **_place(c.case),
                    "law": c.role,
                    "estimator": c.estimator,
                    "y": y,
                    "density": density,
                    "error": error,
                }


def densities(plan: Plan, figure: Figure) -> Densities:
    """Each case at its width, and its limit; for a figure over heads at width 256, the
    Gaussian too.
    """
    curves = []
    y = GRID[SHOWN]
    none = np.zeros_like(y)
    for case in figure.cases:
        if plan.exact:
            blocks = plan.blocks(case)[:, SHOWN]
            error = blocks.std(axis=0, ddof=1) / math.sqrt(len(blocks))
            curves.append(
                Curve("width n", "exact", case, y, blocks.mean(axis=0), error)
            )
        if plan.paper:
            curves.append(_kernel_curve("width n", case, plan.draws(case)[0], y))
    for limit in dict.fromkeys(case.limit for case in figure.cases):
        if plan.exact:
            density, error = limit_law(limit).with_error.pdf(y)
            curves.append(Curve("limit", "exact", limit, y, density, error))
        if plan.paper:
            curves.append(_kernel_curve("limit", limit, plan.limit_draws(limit)[0], y))
    if figure.parameter == "H" and figure.cases[0].head_dim is None:
        gaussian = limit_law(figure.cases[0]).infinite_heads().pdf(y)
        curves.append(
            Curve(
                "infinitely many heads",
                "exact",
                figure.cases[0].limit,
                y,
                gaussian,
                none,
            )
        )
    return Densities(figure, curves)


def _kernel_curve(role: str, case: Case, law: Empirical, y: Array) -> Curve:
    value, error = law.with_error.pdf(y)
    return Curve(role, "paper", case, y, value, error)


@dataclass(frozen=True)
class Divergences:
    """A figure of KL divergences: one point for each case, by one estimator or both."""

    figure: Figure
    # a list of trials for each case
    paper: list[list[float]] = field(default_factory=list)
    # the same, of the limit against itself
    floor: list[list[float]] = field(default_factory=list)
    exact: list[Estimate] = field(default_factory=list)
    # whether each limit is the engine's own
    limits: list[Agreement | None] = field(default_factory=list)

    @property
    def parameters(self) -> list[float]:
        """The varied parameter: n or H."""
        return [
            case.width if self.figure.parameter == "n" else case.heads
            for case in self.figure.cases
        ]

    def best(self) -> list[Estimate]:
        """Our estimates; otherwise the paper's, minus its value for the limit against
        itself.
        """
        floors = self.floor or [[0.0] * len(trials) for trials in self.paper]
        less = [
            np.subtract(trials, floor)
            for trials, floor in zip(self.paper, floors, strict=True)
        ]
        return self.exact or [_mean(trials) for trials in less]

    @cached_property
    def slope(self) -> Estimate | None:
        """The slope of log KL against log n, by least squares over the points well
        above their errors.
        """
        return slope(self.parameters, self.best())

    @cached_property
    def last_slope(self) -> Estimate | None:
        """The same between the last two points."""
        return slope(self.parameters[-2:], self.best()[-2:])

    def rows(self) -> Iterator[Row]:
        """A row for each trial of the paper's estimator, and one for ours; of the limit
        with itself, once.
        """
        shown: set[Case] = set()
        for index, case in enumerate(self.figure.cases):
            place = {**_place(case), "compared": "width n with limit"}
            yield from _trial_rows(place, self.paper[index] if self.paper else ())
            if self.floor and case.limit not in shown:
                shown.add(case.limit)
                itself = {**_place(case.limit), "compared": "limit with itself"}
                yield from _trial_rows(itself, self.floor[index])
            if self.exact:
                yield {
                    **place,
                    "estimator": "exact",
                    "trial": "",
                    "kl": self.exact[index].value,
                    "error": self.exact[index].error,
                }


def _trial_rows(place: Row, trials: Sequence[float]) -> Iterator[Row]:
    for trial, value in enumerate(trials):
        yield {**place, "estimator": "paper", "trial": trial, "kl": value, "error": ""}


def _mean(trials: Array) -> Estimate:
    """The mean, with its standard error; larger for few trials: four standard errors
    have the same level for all.
    """
    if len(trials) < 2:
        return Estimate(float(np.mean(trials)), math.inf)
    student = float(scipy.special.stdtrit(len(trials) - 1, scipy.special.ndtr(4.0))) / 4
    return Estimate(
        float(np.mean(trials)),
        student * float(np.std(trials, ddof=1)) / math.sqrt(len(trials)),
    )


def slope(parameters: Sequence[float], values: Sequence[Estimate]) -> Estimate | None:
    """The slope of log KL against the log of a parameter, by least squares over the
    points well above their errors.
    """
    kept = [
        (n, e.value, e.error)
        for n, e in zip(parameters, values, strict=True)
        if e.value > 4 * e.error
    ]
    if len(kept) < 2:
        return None
    n, value, error = (np.array(column) for column in zip(*kept, strict=True))
    x = np.log(n) - np.log(n).mean()
    weights = x / np.sum(x**2)
    return Estimate(
        float(weights @ np.log(value)),
        float(np.sqrt(np.sum((weights * error / value) ** 2))),
    )


@lru_cache(maxsize=32)
def _floor(plan: Plan, limit: Case) -> list[float]:
    """The value of the paper's estimator for the limit against itself."""
    return _kernel(plan.limit_draws(limit, AGAIN), plan.limit_draws(limit))


def divergences(plan: Plan, figure: Figure) -> Divergences:
    """D(width n ‖ limit) for each case."""
    curve = Divergences(figure)
    for case in figure.cases:
        if plan.paper:
            curve.paper.append(_kernel(plan.draws(case), plan.limit_draws(case.limit)))
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
            for left, right, count, value in zip(
                h.edges[:-1], h.edges[1:], h.counts, density, strict=True
            ):
                yield {
                    "n": h.case.width,
                    "scaling": h.case.scaling,
                    "left": left,
                    "right": right,
                    "count": int(count),
                    "density": value,
                }


def scores(plan: Plan, figure: Figure) -> Scores:
    """Histograms of p_11, over √n and over n."""
    histograms = []
    for case in figure.cases:
        draws = np.stack([arrays["draws"] for arrays in plan.load(case)]).astype(
            np.float64
        )
        width = 0.1 if case.scaling == "sqrt" else 0.1 / math.sqrt(case.width)
        reach = (math.ceil(np.abs(draws[0]).max() / width) + 0.5) * width
        counts, edges = np.histogram(
            draws[0], bins=round(2 * reach / width), range=(-reach, reach)
        )
        every = np.sort(draws.ravel())
        square = every**2
        rank = np.arange(every.size + 1) / every.size
        normal = scipy.special.ndtr(every)
        distance = float(max(np.max(rank[1:] - normal), np.max(normal - rank[:-1])))
        histograms.append(
            Histogram(
                case,
                edges,
                counts,
                Estimate(
                    float(square.mean()),
                    float(square.std(ddof=1) / math.sqrt(every.size)),
                ),
                Estimate(distance, 0.5 / math.sqrt(every.size)),
            )
        )
    return Scores(figure, histograms)


@dataclass(frozen=True)
class Heads:
    """KL against the number of heads: width 256 against the limit, and the limit
    against the Gaussian.
    """

    finite: Divergences
    gaussian: Divergences  # of the paper's numbers of heads
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
        for heads, estimate in zip(HEADS, self.many, strict=False):
            yield {
                **_place(self.figure.cases[0]),
                "heads": heads,
                "n": math.inf,
                "compared": "limit with Gaussian",
                "estimator": "exact",
                "trial": "",
                "kl": estimate.value,
                "error": estimate.error,
            }


def heads(plan: Plan, figure: Figure) -> Heads:
    """Both comparisons, for each case; the exact one for more numbers of heads."""
    gaussian = Divergences(figure)
    if plan.paper:
        for case in figure.cases:
            gaussian.paper.append(
                _kernel(plan.limit_draws(case.limit), plan.gaussian_draws(case.limit))
            )
    one = limit_law(figure.cases[0])
    normal = one.infinite_heads()
    many = [kl(one.with_heads(count), normal) for count in HEADS] if plan.exact else []
    # independently: E[A K A^T] over all scores, instead of the law of one head;
    # clipping at 100 leaves K = I
    joint = Attention(np.eye(figure.cases[0].tokens)).infinite_heads(points=2**19)
    return Heads(
        divergences(plan, figure),
        gaussian,
        many,
        [plan.variance(case) for case in figure.cases],
        [one.with_heads(case.heads).var() for case in figure.cases],
        joint[0].with_error.var(),
    )


def limits_ahead(plan: Plan, figure: Figure) -> Iterator[None]:
    """Compute and cache the limits that a figure needs, piece by piece."""
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
