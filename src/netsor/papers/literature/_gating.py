"""Bordelon, Chaudhry and Pehlevan: gates whose scores are divided by √N have a random
limit; and by N, none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from ... import language as ns
from ..._mpl_style import BLACK, BLUE, VERMILLION, new
from ..._program import Program
from ...studies import Arrays, derive_seed
from .._significance import AGREES, DISAGREES, SIGMAS, combine
from ._result import Array, Claim, Numbers, Part, Picture, Result

# The mean of A² over gates and inputs at the start, as the notebook prints it, by N.
WARM = {
    100: 1.6881278,
    250: 1.1292499,
    500: 0.5221684,
    1000: 1.2404193,
    2500: 0.4239758,
    5000: 0.5348620,
    8000: 1.4141821,
}
COLD = {
    100: 1.1524953,
    250: 0.4672348,
    500: 1.0610982,
    1000: 1.5377109,
    2500: 0.6834596,
    5000: 0.6380333,
    8000: 0.8022413,
}
COLD_OVER_N = {
    100: 1.1524947e-2,
    250: 1.8689397e-3,
    500: 2.1221957e-3,
    1000: 1.5377116e-3,
    2500: 2.7338392e-4,
    5000: 1.2760665e-4,
    8000: 1.0028013e-4,
    10_000: 1.6161092e-4,
}
WARM_OVER_N = {
    100: 0.5023247,
    250: 0.3355942,
    500: 0.3232797,
    1000: 0.3267391,
    2500: 0.3288150,
    5000: 0.3443579,
    8000: 0.3405167,
    10_000: 0.3368921,
    20_000: 0.3438847,
}
# The common part of a gate's query and key, for the inputs (1, 1) and (1, −1): drawn
# once, the same at every N.
COMMON = {
    4: ((0.4128, -1.0847), (0.6144, 0.6611), (-2.1408, 0.2257), (0.5336, 0.9813)),
    6: (
        (0.9485, 0.5915),
        (1.5751, 1.7746),
        (1.3769, -0.6188),
        (0.0755, 1.0207),
        (-0.2211, -0.252),
        (-0.8979, -0.8871),
    ),
    8: ((0.0, 0.0),) * 8,
}
# name: (gates, largest correlation of a key and its query, power of N that scores are
# divided by, the printed number)
RUNS: dict[str, tuple[int, float, float, Mapping[int, float]]] = {
    "warm": (4, 0.8, 0.5, WARM),
    "cold": (8, 0.0, 0.5, COLD),
    "cold over N": (8, 0.0, 1.0, COLD_OVER_N),
    "warm over N": (6, 0.9, 1.0, WARM_OVER_N),
}
LEVEL = float(2 * scipy.stats.norm.sf(SIGMAS))  # of four standard errors
# the share of its spread at N = 100 below which a number settles; fixed before it was
# computed
SETTLED = 0.5


def gates(name: str) -> Program:
    """The mean of A² at the start: A = ρ a |z|²/N + √(1 − ρ²) ⟨z, ξ⟩/√N, or 1/N for the
    second, for every gate.
    """
    count, correlation, power, _ = RUNS[name]
    n = ns.Width("n")
    squares = []
    for rho, common in zip(
        np.linspace(-correlation, correlation, count), COMMON[count], strict=True
    ):
        key, other = ns.gaussian(n).reshape(1), ns.gaussian(n, 2)
        product = ns.dot(key, other) if power == 0.5 else ns.mean_dot(key, other)
        a = (
            rho * ns.mean_dot(key, key) * np.array([common])
            + math.sqrt(1 - rho**2) * product
        )
        squares.append((a**2).mean())
    return Program(ns.stack(squares).mean())


def order(name: str, width: int | None, draws: int, seed: int) -> Arrays:
    """Draws of it; `width` None is infinite."""
    n = math.inf if width is None else width
    made = gates(name).draw(
        n=n, draws=draws, seed=derive_seed(seed, width or 0), workers=1, progress=False
    )
    return {"order": np.asarray(made, dtype=np.float64)}


def parts(quick: bool) -> list[Part]:
    """At every N of the notebook, and in the limit."""
    draws = 4000 if quick else 20_000
    return [
        Part(
            f"{name} {width}",
            order,
            {"name": name, "width": width, "draws": draws},
            0.1,
        )
        for name, (*_, printed) in RUNS.items()
        for width in (*printed, None)
    ]


def ranks(numbers: Numbers, name: str) -> Array:
    """The share of draws below each printed number, at its own N."""
    printed = RUNS[name][3]
    return np.array(
        [
            np.mean(numbers[f"{name} {n}"]["order"] < value)
            for n, value in printed.items()
        ]
    )


def _drawn(numbers: Numbers, name: str, words: str) -> Claim:
    rank = ranks(numbers, name)
    level = float(scipy.stats.kstest(rank, "uniform").pvalue)
    listed = ", ".join(f"{value:.3g} ({n:,})" for n, value in RUNS[name][3].items())
    return Claim(
        f"{words}: {listed}.",
        "They are independent draws of our law at their N: Kolmogorov's test does not"
        f" reject it at {LEVEL:.0e}.",
        f"Their ranks in the law: {', '.join(f'{r:.2f}' for r in rank)}; level"
        f" {level:.2f}.",
        AGREES if level > LEVEL else DISAGREES,
    )


def spread(numbers: Numbers, name: str) -> dict[int | None, tuple[float, float]]:
    """The standard deviation at each N with its error."""
    found = {
        width: numbers[f"{name} {width}"]["order"] for width in (*RUNS[name][3], None)
    }
    return {
        n: (
            float(v.std(ddof=1)),
            (
                float(np.std((v - v.mean()) ** 2) / (2 * v.std() * math.sqrt(len(v))))
                if v.std() > 0
                else 0.0
            ),
        )
        for n, v in found.items()
    }


def _settles(numbers: Numbers, name: str, settles: bool) -> Claim:
    found = spread(numbers, name)
    (first, first_error), (last, last_error) = found[100], found[None]
    bound = SETTLED * first
    error = SIGMAS * math.hypot(last_error, SETTLED * first_error)
    below = last + error < bound
    above = last - error > bound
    limit = numbers[f"{name} None"]["order"].mean()
    words = "settle on a number" if settles else "do not settle"
    return Claim(
        f"The numbers printed for scores over {'N' if settles else '√N'},"
        f" {name.split()[0]} start, {words} as N grows.",
        f"The standard deviation in the limit is {'below' if settles else 'above'} half"
        " of that at N = 100.",
        f"Mean {limit:.4f} and standard deviation {last:.4f} in the limit; standard"
        f" deviation {first:.4f} at N = 100.",
        AGREES if (below if settles else above) else DISAGREES,
    )


def _theory(numbers: Numbers) -> Claim:
    limit = float(numbers["warm over N None"]["order"].mean())
    verdicts, listed = [], []
    for n, value in WARM_OVER_N.items():
        drawn = numbers[f"warm over N {n}"]["order"]
        away = (value - drawn.mean()) / drawn.std(ddof=1)
        verdicts.append(AGREES if abs(away) < SIGMAS else DISAGREES)
        listed.append(f"{away:+.1f}")
    return Claim(
        "For scores over N their theory of infinite N starts at a number, which"
        " networks approach:"
        f" {', '.join(f'{v:.3f} ({n:,})' for n, v in WARM_OVER_N.items())}.",
        f"Each is within {SIGMAS:g} standard deviations of the mean of our law at"
        " its N.",
        f"The limit is {limit:.4f}. Standard deviations away: {', '.join(listed)}.",
        combine(*verdicts),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Printed numbers as draws of laws, and whether these have a random limit."""
    return [
        _drawn(
            numbers,
            "warm",
            "The mean of A² for scores over √N, four gates, warm start, printed by N",
        ),
        _drawn(numbers, "cold", "The same for eight gates, cold start"),
        _settles(numbers, "warm", False),
        _settles(numbers, "cold", False),
        _drawn(numbers, "cold over N", "The same for scores over N"),
        _settles(numbers, "cold over N", True),
        _theory(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Quantiles of each law, with the printed numbers."""
    for name, (*_, printed) in RUNS.items():
        for width in (*printed, None):
            low, middle, high = np.quantile(
                numbers[f"{name} {width}"]["order"], (0.05, 0.5, 0.95)
            )
            yield {
                "run": name,
                "N": width or "inf",
                "printed": printed.get(width, "") if width else "",
                "q05": low,
                "median": middle,
                "q95": high,
            }


def draw(numbers: Numbers) -> Any:
    """The printed numbers, with the law, for scores over √N and over N."""
    figure = new(2.4)
    both = figure.subplots(1, 2)
    for axes, name, title, colour in zip(
        both,
        ("warm", "warm over N"),
        ("scores over √N", "scores over N"),
        (VERMILLION, BLUE),
        strict=True,
    ):
        printed = RUNS[name][3]
        band = np.array(
            [
                np.quantile(numbers[f"{name} {n}"]["order"], (0.05, 0.95))
                for n in printed
            ]
        )
        axes.fill_between(
            list(printed), band[:, 0], band[:, 1], color=colour, alpha=0.25, lw=0
        )
        axes.plot(list(printed), list(printed.values()), "o", ms=4, color=BLACK)
        axes.set(xscale="log", xlabel="N", ylim=(0, 2.2), title=title)
    both[0].set_ylabel("mean of A²")
    return figure


RESULT = Result(
    name="gating",
    title="Bordelon et al.: gates with scores over √N",
    source=(
        "Bordelon, Chaudhry and Pehlevan, Infinite limits of multi-head transformer"
        " dynamics (NeurIPS 2024), and their public notebook simple_gating_NN."
    ),
    links=(
        "https://arxiv.org/abs/2405.15712",
        "https://github.com/Pehlevan-Group/inf_transformer_limits",
    ),
    setting=(
        "Gates exp(A) on the four points of XOR, A = ⟨q, k⟩ over N^α with keys and"
        " queries that begin with a correlation (warm) or without (cold). Judged is the"
        " mean of A² at the start, which the notebook prints for N = 100 to 20,000. Run"
        " with its own seeds, its initialisation gives the printed numbers to six"
        " digits, for correlations up to 0.8 where the notebook now says 0.9; the part"
        " of queries that is the same at every N is taken from these seeds. Ours is the"
        " law over keys and the rest of queries, exact at every N and in the limit."
        " Training is not run."
    ),
    quick="4,000 draws for every N.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "gating",
            "The mean of A² at the start: printed (dots), and 90 % of our law (band)."
            " Over √N it stays random.",
            draw,
            rows,
        ),
    ),
    unread="the paper beyond its abstract; verdicts are on the notebook.",
)
