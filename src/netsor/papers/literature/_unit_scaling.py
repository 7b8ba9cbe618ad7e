"""Unit scaling and u-µP: a fitted standard deviation of attention's output, compared
with the exact one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._mpl_style import (
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
from ...laws import Estimate
from ...nn import attention_std
from ...studies import Arrays
from .._significance import AGREES, DISAGREES, UNDECIDED, combine
from ._result import Claim, Numbers, Part, Picture, Result, within

MULTS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
LENGTHS = (256, 1024, 4096, 16384)
HEADS = (16, 64, 256)
# of the log-normal rule
RULE_LENGTHS, RULE_HEADS = (384, 1536, 6144, 24_576), (24, 96, 192)
# of the standard deviation of what should have 1, in the library's own tests
TOLERANCE = 0.1
COLOURS = dict(zip(MULTS, (SKY, BLUE, GREEN, ORANGE, VERMILLION), strict=True))
LINES = {16: ":", 64: "--", 256: "-"}


def fitted(tokens: int, head_dim: int, mult: float, causal: bool) -> float:
    """The library's model of the standard deviation, between that of flat attention and
    1 by the logarithm.
    """
    share = 1 / (1 + 4 * head_dim / mult**2)
    flat = math.sqrt((math.log(tokens) if causal else 1.0) / tokens)
    return math.exp((1 - share) * math.log(flat))


def exact(
    tokens: list[int], head_dims: list[int], mults: list[float], causal: bool, seed: int
) -> Arrays:
    """The exact standard deviation and its error at every point of a grid; nothing is
    random.
    """
    found = [
        (
            s,
            d,
            mult,
            *attention_std(s, d, scale=mult / d, causal=causal),
            fitted(s, d, mult, causal),
        )
        for s, d, mult in itertools.product(tokens, head_dims, mults)
    ]
    names = ("tokens", "head_dim", "mult", "std", "error", "fitted")
    return dict(zip(names, np.array(found).T, strict=True))


def lognormal(tokens: list[int], head_dims: list[int], seed: int) -> Arrays:
    """The exact standard deviation with scores ⟨q, k⟩/√d, next to √(e/s)."""
    found = [
        (s, d, *attention_std(s, d)) for s, d in itertools.product(tokens, head_dims)
    ]
    return dict(
        zip(("tokens", "head_dim", "std", "error"), np.array(found).T, strict=True)
    )


def parts(quick: bool) -> list[Part]:
    """All of it takes seconds, so a quick run is the same."""
    every = {"tokens": list(LENGTHS), "head_dims": list(HEADS), "mults": list(MULTS)}
    return [
        Part(
            "tested",
            exact,
            {"tokens": [64], "head_dims": [64], "mults": [1.0], "causal": False},
            0.1,
        ),
        Part("plain", exact, {**every, "causal": False}, 0.6),
        Part("causal", exact, {**every, "causal": True}, 1.0),
        Part(
            "lognormal",
            lognormal,
            {"tokens": list(RULE_LENGTHS), "head_dims": list(RULE_HEADS)},
            0.1,
        ),
    ]


def _points(found: Arrays) -> list[tuple[Any, ...]]:
    """(tokens, head_dim, mult, exact, fitted) at each point."""
    columns = (
        found[name] for name in ("tokens", "head_dim", "mult", "std", "error", "fitted")
    )
    return [
        (int(s), int(d), m, Estimate(v, e), f)
        for s, d, m, v, e, f in zip(*columns, strict=True)
    ]


def _scaled(found: Arrays) -> list[tuple[float, str]]:
    """At each point the standard deviation after scaling, and whether it is within the
    tolerance of 1.
    """
    made = []
    for *_, value, fit in _points(found):
        std = value.value / fit
        off, error = abs(std - 1), 4 * value.error / fit
        verdict = (
            AGREES
            if off + error < TOLERANCE
            else DISAGREES
            if off - error > TOLERANCE
            else UNDECIDED
        )
        made.append((std, verdict))
    return made


def _grid(found: Arrays) -> tuple[str, str]:
    scaled, points = _scaled(found), _points(found)
    bad = sum(verdict == DISAGREES for _, verdict in scaled)
    worst = max(range(len(scaled)), key=lambda k: abs(math.log(scaled[k][0])))
    s, d, mult, value, fit = points[worst]
    text = (
        f"Outside at {bad} of {len(points)} points. Farthest off at s = {s}, d = {d},"
        f" mult = {mult:g}: fitted {fit:.5g}, exact {value.value:.5g} ±"
        f" {value.error:.0e}, {abs(fit / value.value - 1):.0%}"
        f" {'above' if fit > value.value else 'below'}; scaled, the output has"
        f" {scaled[worst][0]:.3f} where 1 is meant."
    )
    return text, combine(*(verdict for _, verdict in scaled))


def judge(numbers: Numbers) -> list[Claim]:
    """The fit at the point of its own test, and on the grid of its own analysis; and
    the log-normal rule.
    """
    rule = (
        f"After scaling, the standard deviation is within {TOLERANCE:g} of 1, the"
        " tolerance of the library's tests"
    )
    ((std, verdict),) = _scaled(numbers["tested"])
    claims = [
        Claim(
            "The fitted model gives attention's output standard deviation 1 at s = 64,"
            " d = 64, mult = 1 (its test).",
            f"{rule}.",
            f"{std:.4f} ±"
            f" {numbers['tested']['error'][0] / numbers['tested']['fitted'][0]:.0e}.",
            verdict,
        )
    ]
    for label, words in (("plain", "without a mask"), ("causal", "with a causal mask")):
        text, verdict = _grid(numbers[label])
        claims.append(
            Claim(
                "It gives standard deviation 1 on the grid of the library's analysis"
                f" too, {words}.",
                f"{rule}, at all points.",
                text,
                verdict,
            )
        )
    found = numbers["lognormal"]
    rows = list(
        zip(
            *(found[name] for name in ("tokens", "head_dim", "std", "error")),
            strict=True,
        )
    )
    verdicts = [
        within(math.sqrt(math.e / s), Estimate(std, error), 0.05)
        for s, _, std, error in rows
    ]
    far = max(rows, key=lambda row: abs(math.log(math.sqrt(math.e / row[0]) / row[2])))
    claims.append(
        Claim(
            "With scores ⟨q, k⟩/√d the output has standard deviation √(e/s), from a"
            " log-normal model.",
            f"√(e/s) is within 5 % of the exact number for s = {RULE_LENGTHS[0]} to"
            f" {RULE_LENGTHS[-1]:,} and d = {RULE_HEADS[0]} to {RULE_HEADS[-1]}.",
            f"Holds at {verdicts.count(AGREES)} of {len(rows)} points; farthest off at"
            f" s = {far[0]:.0f}, d = {far[1]:.0f}: {math.sqrt(math.e / far[0]):.5g},"
            f" exact {far[2]:.5g} ± {far[3]:.0e}.",
            combine(*verdicts),
        )
    )
    return claims


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Every point of both grids."""
    for label in ("plain", "causal"):
        for s, d, mult, value, fit in _points(numbers[label]):
            yield {
                "causal": label == "causal",
                "tokens": s,
                "head_dim": d,
                "mult": mult,
                "exact": value.value,
                "error": value.error,
                "fitted": fit,
            }


def draw(numbers: Numbers) -> Any:
    """The fitted number over the exact one, against the length."""
    figure = new(2.9)
    both = figure.subplots(1, 2, sharey=True)
    for axes, (label, title) in zip(
        both, (("plain", "no mask"), ("causal", "causal")), strict=True
    ):
        points = _points(numbers[label])
        axes.axhspan(
            1 / (1 + TOLERANCE), 1 / (1 - TOLERANCE), color=GREY, alpha=0.2, lw=0
        )
        for (mult, mark), d in itertools.product(
            zip(COLOURS, MARKS, strict=False), LINES
        ):
            line = [
                (s, fit / value.value)
                for s, dim, m, value, fit in points
                if (dim, m) == (d, mult)
            ]
            axes.plot(
                *zip(*line, strict=True),
                color=COLOURS[mult],
                linestyle=LINES[d],
                lw=1.0,
                marker=mark,
                ms=2.5,
            )
        axes.set(xscale="log", yscale="log", xlabel="tokens s", title=title)
        axes.set_xticks(LENGTHS, ["256", "1k", "4k", "16k"])
        axes.minorticks_off()
    both[0].set_ylabel("fitted / exact")
    both[0].set_yticks(
        [0.9, 1, 1.1, 1.2, 1.4, 1.6], ["0.9", "1", "1.1", "1.2", "1.4", "1.6"]
    )
    for (mult, colour), mark in zip(COLOURS.items(), MARKS, strict=False):
        both[0].plot([], [], color=colour, marker=mark, ms=2.5, label=f"mult {mult:g}")
    for d, style in LINES.items():
        both[0].plot([], [], color=PURPLE, linestyle=style, lw=1.0, label=f"d = {d}")
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.0)
    return figure


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
            "unit-scaling",
            "The fitted standard deviation over the exact one; grey: within the"
            " tolerance of the library's own tests.",
            draw,
            rows,
        ),
    ),
)
