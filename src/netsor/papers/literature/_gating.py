"""Bordelon, Chaudhry and Pehlevan: gates with scores over √N have a random limit, and
with scores over N a deterministic one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from ... import language as ns
from ...laws import Estimate
from ...programs._program import Program
from ...report._mpl_style import BLACK, BLUE, VERMILLION, new
from ...studies import Arrays, derive_seed
from .._significance import SIGMAS, combine, decide
from ._result import Array, Claim, Numbers, Part, Picture, Result, width_of

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


class Run(NamedTuple):
    """A run of the notebook."""

    gates: int
    correlation: float  # the largest one of a key and its query
    power: float  # of N, by which scores are divided
    printed: Mapping[int, float]  # the mean of A² at the start, by N


RUNS = {
    "warm": Run(gates=4, correlation=0.8, power=0.5, printed=WARM),
    "cold": Run(gates=8, correlation=0.0, power=0.5, printed=COLD),
    "cold over N": Run(gates=8, correlation=0.0, power=1.0, printed=COLD_OVER_N),
    "warm over N": Run(gates=6, correlation=0.9, power=1.0, printed=WARM_OVER_N),
}
LEVEL = float(2 * scipy.stats.norm.sf(SIGMAS))  # of four standard errors
# A number settles if its spread in the limit is below this share of that at N = 100; it
# was fixed before any number was computed.
SETTLED = 0.5


def gates(name: str) -> Program:
    """The mean of A² over gates and inputs at the start, of one of RUNS.

    For each gate A = ρ a |z|²/N + √(1 − ρ²) ⟨z, ξ⟩/√N (or over N), with a key z, its
    correlation ρ with the query, the common part a for each of two inputs, and
    independent ξ.
    """
    run = RUNS[name]
    n = ns.Width("n")
    correlations = np.linspace(-run.correlation, run.correlation, run.gates)
    squares = []
    for rho, common in zip(correlations, COMMON[run.gates], strict=True):
        key = ns.gaussian(n).reshape(1)  # z
        independent = ns.gaussian(n, 2)  # ξ, for both inputs
        if run.power == 0.5:
            product = ns.dot(key, independent)  # over √N
        else:
            product = ns.mean_dot(key, independent)  # over N
        common_part = rho * ns.mean_dot(key, key) * np.array([common])
        gate_score = common_part + math.sqrt(1 - rho**2) * product  # A
        squares.append((gate_score**2).mean())
    return Program(ns.stack(squares).mean())


def order(name: str, width: int | None, draws: int, seed: int) -> Arrays:
    """Draws of the mean of A² of one run, (draws,); `width` None is infinite."""
    squares = gates(name).draw(
        n=width_of(width),
        draws=draws,
        seed=derive_seed(seed, width or 0),
        workers=1,
        progress=False,
    )
    return {"order": np.asarray(squares, dtype=np.float64)}


def parts(quick: bool) -> list[Part]:
    """The values at every N of the notebook, and in the limit."""
    draws = 4000 if quick else 20_000
    parts = []
    for name, run in RUNS.items():
        for width in (*run.printed, None):
            arguments = {"name": name, "width": width, "draws": draws}
            parts.append(
                Part(
                    label=f"{name} {width}",
                    work=order,
                    arguments=arguments,
                    seconds=0.1,
                )
            )
    return parts


def ranks(numbers: Numbers, name: str) -> Array:
    """The share of draws below each printed number, at its own N; uniform in [0, 1] if
    the printed numbers are draws of our laws.
    """
    shares = []
    for n, value in RUNS[name].printed.items():
        shares.append(np.mean(numbers[f"{name} {n}"]["order"] < value))
    return np.array(shares)


def _drawn(numbers: Numbers, name: str, words: str) -> Claim:
    """The claim that the printed numbers are draws of our laws; `words` names them."""
    rank = ranks(numbers, name)
    level = float(scipy.stats.kstest(rank, "uniform").pvalue)
    printed = RUNS[name].printed.items()
    listed = ", ".join(f"{value:.3g} ({n:,})" for n, value in printed)
    ranks_in_law = ", ".join(f"{share:.2f}" for share in rank)
    return Claim(
        published=f"{words}: {listed}.",
        rule=(
            "They are independent draws of our law at their N: Kolmogorov's test does"
            f" not reject it at {LEVEL:.0e}."
        ),
        ours=f"Their ranks in the law: {ranks_in_law}; level {level:.2f}.",
        verdict=decide(level > LEVEL),
    )


def spread(numbers: Numbers, name: str, width: int | None) -> Estimate:
    """The standard deviation at one N with its standard error; `width` None is
    infinite.
    """
    draws = numbers[f"{name} {width}"]["order"]
    error = 0.0
    if draws.std() > 0:
        # by the delta method: that of the variance over twice the standard deviation
        squares = (draws - draws.mean()) ** 2
        error = float(np.std(squares) / (2 * draws.std() * math.sqrt(len(draws))))
    return Estimate(float(draws.std(ddof=1)), error)


def _settles(numbers: Numbers, name: str, settles: bool) -> Claim:
    """The claim that the numbers tend to one number as N grows, or that they do not;
    `settles` is what is stated.
    """
    narrowest = spread(numbers, name, width=100)
    last = spread(numbers, name, width=None)
    bound = SETTLED * narrowest.value
    margin = SIGMAS * math.hypot(last.error, SETTLED * narrowest.error)
    if settles:
        agrees = last.value + margin < bound
    else:
        agrees = last.value - margin > bound
    limit = numbers[f"{name} None"]["order"].mean()  # at infinite N
    if settles:
        scaling, behaviour, side = "N", "settle on a number", "below"
    else:
        scaling, behaviour, side = "√N", "do not settle", "above"
    return Claim(
        published=(
            f"The numbers printed for scores over {scaling}, {name.split()[0]} start,"
            f" {behaviour} as N grows."
        ),
        rule=f"The standard deviation in the limit is {side} half of that at N = 100.",
        ours=f"Mean {limit:.4f} and standard deviation {last.value:.4f} in the limit;"
        f" standard deviation {narrowest.value:.4f} at N = 100.",
        verdict=decide(agrees),
    )


def _theory(numbers: Numbers) -> Claim:
    """The claim that the numbers for scores over N are near their limit: each is within
    four standard deviations of the mean at its N.
    """
    limit = float(numbers["warm over N None"]["order"].mean())
    verdicts = []
    deviations = []
    for n, value in WARM_OVER_N.items():
        draws = numbers[f"warm over N {n}"]["order"]
        deviation = (value - draws.mean()) / draws.std(ddof=1)
        verdicts.append(decide(abs(deviation) < SIGMAS))
        deviations.append(f"{deviation:+.1f}")
    listed = ", ".join(f"{value:.3f} ({n:,})" for n, value in WARM_OVER_N.items())
    return Claim(
        published=(
            "For scores over N their theory of infinite N starts at a number, which"
            f" networks approach: {listed}."
        ),
        rule=f"Each is within {SIGMAS:g} standard deviations of the mean of our law at"
        " its N.",
        ours=(
            f"The limit is {limit:.4f}. Standard deviations away:"
            f" {', '.join(deviations)}."
        ),
        verdict=combine(*verdicts),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Printed numbers as draws of laws, and whether these have a random limit."""
    warm = "The mean of A² for scores over √N, four gates, warm start, printed by N"
    return [
        _drawn(numbers, "warm", warm),
        _drawn(numbers, "cold", "The same for eight gates, cold start"),
        _settles(numbers, "warm", settles=False),
        _settles(numbers, "cold", settles=False),
        _drawn(numbers, "cold over N", "The same for scores over N"),
        _settles(numbers, "cold over N", settles=True),
        _theory(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the figure's table: quantiles of each law by N, the limit among them,
    with the printed numbers.
    """
    for name, run in RUNS.items():
        for width in (*run.printed, None):
            draws = numbers[f"{name} {width}"]["order"]
            low, middle, high = np.quantile(draws, (0.05, 0.5, 0.95))
            yield {
                "run": name,
                "N": width_of(width),
                "printed": "" if width is None else run.printed.get(width, ""),
                "q05": low,
                "median": middle,
                "q95": high,
            }


def draw(numbers: Numbers) -> Any:
    """The printed numbers, with the law, for scores over √N and over N."""
    figure = new(2.4)
    left, right = figure.subplots(1, 2)
    _plot_run(left, numbers, name="warm", colour=VERMILLION)
    left.set(title="scores over √N", ylabel="mean of A²")
    _plot_run(right, numbers, name="warm over N", colour=BLUE)
    right.set(title="scores over N")
    return figure


def _plot_run(axes: Any, numbers: Numbers, name: str, colour: str) -> None:
    """Plot the printed numbers of a run, over 90 % of the law at each N."""
    printed = RUNS[name].printed
    widths = list(printed)
    low = []
    high = []
    for n in widths:
        draws = numbers[f"{name} {n}"]["order"]
        low.append(np.quantile(draws, 0.05))
        high.append(np.quantile(draws, 0.95))
    axes.fill_between(widths, low, high, color=colour, alpha=0.25, lw=0)
    axes.plot(widths, list(printed.values()), "o", ms=4, color=BLACK)
    axes.set(xscale="log", xlabel="N", ylim=(0, 2.2))


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
            name="gating",
            caption=(
                "The mean of A² at the start: printed (dots), and 90 % of our law"
                " (band). Over √N it stays random."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread="the paper beyond its abstract; verdicts are on the notebook.",
)
