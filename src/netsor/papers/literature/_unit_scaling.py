"""Unit scaling and u-µP: a fitted standard deviation of attention's output, compared
with the exact one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._validate import percent
from ...laws import Estimate
from ...nn import attention_std
from ...report._mpl_style import (
    BLUE,
    GREEN,
    GREY,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    new,
)
from ...studies import Arrays
from .._significance import AGREES, DISAGREES, combine
from ._result import Claim, Numbers, Part, Picture, Result, estimates, near, within

MULTS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
LENGTHS = (256, 1024, 4096, 16384)
HEADS = (16, 64, 256)
# At which the log-normal rule is checked.
RULE_LENGTHS, RULE_HEADS = (384, 1536, 6144, 24_576), (24, 96, 192)
# Tolerance for a standard deviation that should be 1, in the library's own tests.
TOLERANCE = 0.1
RULE_RTOL = 0.05  # how near the log-normal rule is to the exact number if it holds
COLOURS = dict(zip(MULTS, (SKY, BLUE, GREEN, ORANGE, VERMILLION), strict=True))
LINES = {16: ":", 64: "--", 256: "-"}  # by head dimension


def fitted(tokens: int, head_dim: int, mult: float, causal: bool) -> float:
    """The library's model of the standard deviation of attention's output.

    In the logarithm it interpolates between that of flat attention, `flat`, and 1.
    """
    share = 1 / (1 + 4 * head_dim / mult**2)
    flat = math.sqrt((math.log(tokens) if causal else 1.0) / tokens)
    return math.exp((1 - share) * math.log(flat))


def exact(
    tokens: list[int], head_dims: list[int], mults: list[float], causal: bool, seed: int
) -> Arrays:
    """The exact standard deviation and its error at every point of a grid, one column
    for each field of a point.

    Nothing is random.
    """
    rows = []
    for s, d, mult in itertools.product(tokens, head_dims, mults):
        std, error = attention_std(s, head_dim=d, scale=mult / d, causal=causal)
        rows.append(
            (s, d, mult, std, error, fitted(s, head_dim=d, mult=mult, causal=causal))
        )
    names = ("tokens", "head_dim", "mult", "std", "error", "fitted")
    columns = np.array(rows).T
    return dict(zip(names, columns, strict=True))


def lognormal(tokens: list[int], head_dims: list[int], seed: int) -> Arrays:
    """The exact standard deviation with scores ⟨q, k⟩/√d, which √(e/s) stands for."""
    rows = []
    for s, d in itertools.product(tokens, head_dims):
        std, error = attention_std(s, d)
        rows.append((s, d, std, error))
    names = ("tokens", "head_dim", "std", "error")
    return dict(zip(names, np.array(rows).T, strict=True))


def parts(quick: bool) -> list[Part]:
    """All of it takes seconds, so a quick run is the same."""
    test = {"tokens": [64], "head_dims": [64], "mults": [1.0], "causal": False}
    grid = {"tokens": list(LENGTHS), "head_dims": list(HEADS), "mults": list(MULTS)}
    rule = {"tokens": list(RULE_LENGTHS), "head_dims": list(RULE_HEADS)}
    return [
        Part(label="tested", work=exact, arguments=test, seconds=0.1),
        Part(
            label="plain", work=exact, arguments={**grid, "causal": False}, seconds=0.6
        ),
        Part(
            label="causal", work=exact, arguments={**grid, "causal": True}, seconds=1.0
        ),
        Part(label="lognormal", work=lognormal, arguments=rule, seconds=0.1),
    ]


class _Point(NamedTuple):
    """A point of a grid, with the exact and the fitted standard deviation."""

    tokens: int
    head_dim: int
    mult: float
    exact: Estimate
    fitted: float

    @property
    def scaled(self) -> Estimate:
        """The exact standard deviation after scaling by the fitted one."""
        return Estimate(self.exact.value / self.fitted, self.exact.error / self.fitted)

    @property
    def verdict(self) -> str:
        """Whether that is 1 within the tolerance."""
        return near(self.scaled, 1.0, TOLERANCE)


def _points(arrays: Arrays) -> list[_Point]:
    """The points of a grid, from the columns that `exact` returns."""
    points = []
    for k in range(len(arrays["tokens"])):
        points.append(
            _Point(
                tokens=int(arrays["tokens"][k]),
                head_dim=int(arrays["head_dim"][k]),
                mult=arrays["mult"][k],
                exact=Estimate(arrays["std"][k], arrays["error"][k]),
                fitted=arrays["fitted"][k],
            )
        )
    return points


RULE = (
    f"After scaling, the standard deviation is within {TOLERANCE:g} of 1, the"
    " tolerance of the library's tests"
)


def _tested(numbers: Numbers) -> Claim:
    """The claim on the fit at the point of the library's own test."""
    (point,) = _points(numbers["tested"])
    return Claim(
        published=(
            "The fitted model gives attention's output standard deviation 1 at s = 64,"
            " d = 64, mult = 1 (its test)."
        ),
        rule=f"{RULE}.",
        ours=f"{point.scaled.value:.4f} ± {point.scaled.error:.0e}.",
        verdict=point.verdict,
    )


def _grid(numbers: Numbers, label: str, words: str) -> Claim:
    """The claim on the fit on the grid of the library's own analysis; `label` is that
    of the part.
    """
    points = _points(numbers[label])
    verdicts = [point.verdict for point in points]
    worst = max(points, key=lambda point: abs(math.log(point.scaled.value)))
    exact = worst.exact
    fit = worst.fitted
    excess = fit / exact.value - 1
    side = "above" if excess > 0 else "below"
    return Claim(
        published="It gives standard deviation 1 on the grid of the library's analysis"
        f" too, {words}.",
        rule=f"{RULE}, at all points.",
        ours=(
            f"Outside at {verdicts.count(DISAGREES)} of {len(points)} points. Farthest"
            f" off at s = {worst.tokens}, d = {worst.head_dim}, mult = {worst.mult:g}:"
            f" fitted {fit:.5g}, exact {exact.value:.5g} ± {exact.error:.0e},"
            f" {percent(abs(excess))} {side}; scaled, the output has"
            f" {worst.scaled.value:.3f} where 1 is meant."
        ),
        verdict=combine(*verdicts),
    )


def _lognormal(numbers: Numbers) -> Claim:
    """The claim on the log-normal rule √(e/s), at every length and head dimension."""
    arrays = numbers["lognormal"]
    tokens = arrays["tokens"]
    head_dims = arrays["head_dim"]
    published = [math.sqrt(math.e / s) for s in tokens]
    ours = estimates(arrays["std"], arrays["error"])
    verdicts = []
    distances = []
    for by_rule, exact in zip(published, ours, strict=True):
        verdicts.append(within(by_rule, exact, RULE_RTOL))
        distances.append(abs(math.log(by_rule / exact.value)))
    worst = distances.index(max(distances))
    return Claim(
        published=(
            "With scores ⟨q, k⟩/√d the output has standard deviation √(e/s), from a"
            " log-normal model."
        ),
        rule=f"√(e/s) is within {100 * RULE_RTOL:g} % of the exact number for s ="
        f" {RULE_LENGTHS[0]} to {RULE_LENGTHS[-1]:,} and d = {RULE_HEADS[0]} to"
        f" {RULE_HEADS[-1]}.",
        ours=f"Holds at {verdicts.count(AGREES)} of {len(ours)} points; farthest off at"
        f" s = {tokens[worst]:.0f}, d = {head_dims[worst]:.0f}:"
        f" {published[worst]:.5g},"
        f" exact {ours[worst].value:.5g} ± {ours[worst].error:.0e}.",
        verdict=combine(*verdicts),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The fit where it is tested and on a grid, and the log-normal rule."""
    return [
        _tested(numbers),
        _grid(numbers, "plain", "without a mask"),
        _grid(numbers, "causal", "with a causal mask"),
        _lognormal(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Every point of both grids."""
    for label in ("plain", "causal"):
        for point in _points(numbers[label]):
            yield {
                "causal": label == "causal",
                "tokens": point.tokens,
                "head_dim": point.head_dim,
                "mult": point.mult,
                "exact": point.exact.value,
                "error": point.exact.error,
                "fitted": point.fitted,
            }


MULT_MARKS = dict(zip(MULTS, MARKS, strict=False))


def draw(numbers: Numbers) -> Any:
    """The fitted number over the exact one, against the length."""
    figure = new(2.9)
    left, right = figure.subplots(1, 2, sharey=True)
    _plot_grid(left, _points(numbers["plain"]))
    left.set_title("no mask")
    _plot_grid(right, _points(numbers["causal"]))
    right.set_title("causal")

    left.set_ylabel("fitted / exact")
    ticks = [0.9, 1, 1.1, 1.2, 1.4, 1.6]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    for mult in MULTS:
        style = {"color": COLOURS[mult], "marker": MULT_MARKS[mult], "ms": 2.5}
        left.plot([], [], label=f"mult {mult:g}", **style)
    for head_dim, line in LINES.items():
        style = {"color": PURPLE, "linestyle": line, "lw": 1.0}
        left.plot([], [], label=f"d = {head_dim}", **style)
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0)
    return figure


def _plot_grid(axes: Any, points: list[_Point]) -> None:
    """Plot fitted over exact against the length: a line for each multiplier and head
    dimension, and the tolerance in grey.
    """
    tolerance = (1 / (1 + TOLERANCE), 1 / (1 - TOLERANCE))
    axes.axhspan(*tolerance, color=GREY, alpha=0.2, lw=0)
    for mult, head_dim in itertools.product(MULTS, LINES):
        line = [p for p in points if p.head_dim == head_dim and p.mult == mult]
        axes.plot(
            [point.tokens for point in line],
            [point.fitted / point.exact.value for point in line],
            color=COLOURS[mult],
            linestyle=LINES[head_dim],
            lw=1.0,
            marker=MULT_MARKS[mult],
            ms=2.5,
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens s")
    axes.set_xticks(LENGTHS, ["256", "1k", "4k", "16k"])
    axes.minorticks_off()


RESULT = Result(
    name="unit-scaling",
    title="Unit scaling and u-µP: the standard deviation of attention's output",
    source=(
        "Blake et al., Unit Scaling (ICML 2023) and u-µP (ICLR 2025), and their public"
        " library unit-scaling, whose attention divides its output by an “empirical"
        " model of attention output std”."
    ),
    links=(
        "https://arxiv.org/abs/2303.11257",
        "https://arxiv.org/abs/2407.17465",
        "https://github.com/graphcore-research/unit-scaling",
    ),
    setting=(
        "One head; queries, keys and values with independent N(0, 1) coordinates;"
        " scores mult·⟨q, k⟩/d. The grid is that of the library's own analysis: s = 256"
        " to 16384, d = 16, 64, 256, mult = 1/16 to 16, with and without a causal mask."
        " Ours is ns.attention_std, exact by one-dimensional integrals in milliseconds."
        " The rule √(e/s) is from the library's article on almost-scaled attention. The"
        " measured curves of the analysis are published as a picture alone, and were"
        " not read off."
    ),
    quick="nothing is left out.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="unit-scaling",
            caption="The fitted standard deviation over the exact one; grey: within the"
            " tolerance of the library's own tests.",
            draw=draw,
            rows=rows,
        ),
    ),
)
