"""The critical temperature of attention by the length of the context: limits of √log T
and log T, at finite lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy

from ..._mpl_style import BLACK, BLUE, GREEN, GREY, MARK_OF, ORANGE, VERMILLION, new
from ...laws import Estimate
from ...nn import attention_std
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._result import EXPONENT_ATOL, Claim, Numbers, Part, Picture, Result, near, within

LENGTHS = (1024, 8192, 131_072, 10**6)
SHORT, LONG = 8192, 131_072  # where exponents are measured, and the advice for practice
HALF = 0.5  # the critical scale at finite length: half the attention is on one token
FIXED_NORM = 10**8  # a head dimension at which |q|²/d is 1: scores are normal
DIMENSIONS = (128, 64, 32, 16)  # of tokens that are random
RHO = 0.5  # the cosine of two tokens
# of the critical scale √(2 log T), at which entropies are computed
SHARES = (0.5, 1.0, 1.5)
# fixed before any number was seen
SCALE_RTOL, COSINE_ATOL, ENTROPY_ATOL = 0.1, 0.05, 0.1
COLOURS = dict(zip(LENGTHS, (GREEN, ORANGE, VERMILLION, BLACK), strict=True))


def share(tokens: int, beta: float, head_dim: int = FIXED_NORM) -> Estimate:
    """E Σ_j a_j² for scores β⟨q, k⟩/√d."""
    square: Estimate = (
        attention_std(tokens, head_dim, scale=beta / math.sqrt(head_dim)) ** 2
    )
    return square


def entropy(tokens: int, beta: float) -> float:
    """E[−Σ_j a_j log a_j] for independent normal scores of standard deviation β.

    It is F − βF′ with F(β) = E log Σ_j e^{βz_j}, and F′ = β(1 − E Σ_j a_j²) by
    integration by parts.
    """
    nodes, weights = np.polynomial.legendre.leggauss(40)
    places = beta * (nodes + 1) / 2
    slopes = [b * (1 - share(tokens, b).value) for b in places]
    return float(
        math.log(tokens)
        + beta / 2 * (weights @ slopes)
        - beta**2 * (1 - share(tokens, beta).value)
    )


def own_share(tokens: int, b: float, dimension: float) -> Estimate:
    """E A_ii of tokens with scores β⟨y_i, y_j⟩ and b = β(1 − ρ), where ⟨y_i, y_j⟩ = ρ +
    (1 − ρ)t.

    t is 0 for a simplex (infinite dimension), and else the cosine of two random vectors
    of this dimension. Since 1/S = ∫ e^{−sS} ds, E A_ii = ∫ e^{u − e^u} E[exp(−e^{u −
    b(1 − t)})]^{T − 1} du.
    """
    if dimension == math.inf:
        return Estimate(1 / (1 + (tokens - 1) * math.exp(-b)), 0.0)
    found = []
    for nodes, step in ((300, 0.15), (400, 0.1)):
        t, weight = scipy.special.roots_gegenbauer(nodes, (dimension - 2) / 2)
        u = np.arange(-45.0, 5.0, step)
        less = -np.expm1(-np.exp(u[:, None] - b * (1 - t))) @ (weight / weight.sum())
        found.append(
            step
            * np.sum(
                np.exp(
                    u
                    - np.exp(u)
                    + (tokens - 1) * np.log1p(-np.minimum(less, 1 - 1e-16))
                )
            )
        )
    return Estimate(found[1], abs(found[1] - found[0]))


def cosine(tokens: int, b: float, rho: float) -> float:
    """The cosine of two outputs of a layer whose tokens form a simplex, without a
    residual connection.
    """
    own = own_share(tokens, b, math.inf).value
    other = (1 - own) / (tokens - 1)
    two = rho + (1 - rho) * (2 * own * other + (tokens - 2) * other**2)
    return float(two / (rho + (1 - rho) * (own**2 + (tokens - 1) * other**2)))


def _where(law: Callable[[float], Estimate], low: float, high: float) -> Estimate:
    """Where an increasing law reaches one half, with the error that its own error makes
    there.
    """
    at = float(
        scipy.optimize.brentq(lambda x: law(x).value - HALF, low, high, xtol=1e-9)
    )
    slope = (law(1.001 * at).value - law(0.999 * at).value) / (0.002 * at)
    return Estimate(at, law(at).error / slope + 1e-8)


def normal_scores(lengths: list[int], head_dim: int, seed: int) -> Arrays:
    """The β at which E Σ_j a_j² is one half."""
    found = [_where(lambda b, s=s: share(s, b, head_dim), 1.0, 40.0) for s in lengths]  # type: ignore[misc]
    return {
        "scale": np.array([e.value for e in found]),
        "error": np.array([e.error for e in found]),
    }


def entropies(lengths: list[int], shares: list[float], seed: int) -> Arrays:
    """E H / log T at shares of √(2 log T)."""
    found = [
        [entropy(s, x * math.sqrt(2 * math.log(s))) / math.log(s) for x in shares]
        for s in lengths
    ]
    return {"entropy": np.array(found)}


def own_scores(lengths: list[int], dimension: float | None, seed: int) -> Arrays:
    """The b = β(1 − ρ) at which E A_ii is one half; None is a simplex."""
    d = math.inf if dimension is None else dimension
    found = [
        _where(partial(own_share, s, dimension=d), 0.1, 20 * math.log(s))
        for s in lengths
    ]
    return {
        "scale": np.array([e.value for e in found]),
        "error": np.array([e.error for e in found]),
    }


def parts(quick: bool) -> list[Part]:
    """All of it takes seconds, so a quick run is the same."""
    lengths = list(LENGTHS)
    made = [
        Part(f"normal {d}", normal_scores, {"lengths": lengths, "head_dim": d}, 1.0)
        for d in (FIXED_NORM, 128)
    ]
    made += [
        Part(f"own {d}", own_scores, {"lengths": lengths, "dimension": d}, 1.2)
        for d in (*DIMENSIONS, None)
    ]
    return [
        *made,
        Part("entropy", entropies, {"lengths": lengths, "shares": list(SHARES)}, 2.0),
    ]


def _scales(numbers: Numbers, label: str) -> dict[int, Estimate]:
    found = numbers[label]
    return {
        s: Estimate(float(v), float(e))
        for s, v, e in zip(LENGTHS, found["scale"], found["error"], strict=True)
    }


def _exponent(numbers: Numbers, label: str) -> tuple[float, float]:
    """d log β/d log log T between 8k and 128k, and the factor on β."""
    found = _scales(numbers, label)
    factor = found[LONG].value / found[SHORT].value
    return math.log(factor) / math.log(math.log(LONG) / math.log(SHORT)), factor


def _power(numbers: Numbers, label: str, told: float, words: str) -> Claim:
    power, factor = _exponent(numbers, label)
    scales = _scales(numbers, label)
    return Claim(
        f"The critical scale of {words} grows like (log T)^{told:g}.",
        f"Between {SHORT:,} and {LONG:,} tokens the exponent of log T in the scale at"
        f" which half the attention is on one token is within {EXPONENT_ATOL:g} of"
        f" {told:g}.",
        f"{power:.3f}: from {scales[SHORT].value:.3f} to {scales[LONG].value:.3f},"
        f" {factor:.3f} times as large.",
        extrapolate(near(Estimate(power, scales[LONG].error), told)),
    )


def _collapse(numbers: Numbers) -> Claim:
    found = numbers["entropy"]["entropy"]
    limit = [max(0.0, 1 - x * x) for x in SHARES]
    off = np.abs(found - limit)
    listed = "; ".join(
        f"T = {s:,}: " + ", ".join(f"{v:.3f}" for v in row)
        for s, row in zip(LENGTHS, found, strict=True)
    )
    return Claim(
        "Above the critical scale the entropy of attention collapses. For normal"
        " scores this is √(2 log T) (the random energy model), and entropy over log T"
        f" tends to {', '.join(f'{v:g}' for v in limit)} at"
        f" {', '.join(f'{x:g}' for x in SHARES)} times it.",
        f"The exact mean entropy is within {ENTROPY_ATOL:g} log T of that at all"
        f" lengths from {LENGTHS[0]:,} to 10⁶.",
        f"{listed}.",
        extrapolate(decide_below(Estimate(float(off.max()), 1e-6), ENTROPY_ATOL)),
    )


def _threshold(numbers: Numbers, label: str, words: str, stated: bool) -> Claim:
    found = {s: e / math.log(s) for s, e in _scales(numbers, label).items()}
    verdict = combine(*(within(1.0, e, SCALE_RTOL) for e in found.values()))
    return Claim(
        f"A token keeps its own weight above β = log T/(1 − ρ): {words}.",
        f"The β at which the mean of A_ii is one half is within {SCALE_RTOL:.0%} of"
        " that at every length.",
        "Exact over published: "
        + "; ".join(f"{e.value:.4f} at T = {s:,}" for s, e in found.items())
        + ".",
        verdict if stated else extrapolate(verdict),
    )


def _phases(shares: tuple[float, float], stated: bool) -> Claim:
    below, above = shares
    found = {
        s: [cosine(s, x * math.log(s), RHO) for x in shares]
        for s in LENGTHS
        if s >= SHORT
    }
    off = max(max(1 - low, abs(high - RHO)) for low, high in found.values())
    verdict = decide_below(Estimate(off, 1e-12), COSINE_ATOL)
    return Claim(
        "Below the critical scale a layer collapses tokens to one direction, above it"
        f" does nothing: at {below:g} and {above:g} times 1/(1 − ρ), the cosine of two"
        f" outputs is 1 and ρ = {RHO:g}.",
        f"Both cosines are within {COSINE_ATOL:g} of that for a simplex of {SHORT:,}"
        " tokens and more.",
        "; ".join(
            f"{low:.3f} and {high:.3f} at T = {s:,}" for s, (low, high) in found.items()
        )
        + ".",
        verdict if stated else extrapolate(verdict),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The limits of two papers, where they state them and at the lengths in use."""
    return [
        _threshold(numbers, "own None", "tokens of equal cosines ρ", True),
        _phases((0.5, 1.5), True),
        _phases((0.9, 1.1), False),
        *(
            _threshold(
                numbers,
                f"own {d}",
                f"random tokens of dimension {d}, with mean cosine ρ",
                False,
            )
            for d in DIMENSIONS
        ),
        _power(numbers, "own None", 1.0, "equal competitors"),
        _power(numbers, f"normal {FIXED_NORM}", 0.5, "independent normal scores"),
        _collapse(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Critical scales by length, over their limits."""
    for label in numbers:
        if label != "entropy":
            for s, e in _scales(numbers, label).items():
                told = (
                    math.log(s)
                    if label.startswith("own")
                    else 2 * math.sqrt(2 * math.log(s))
                )
                yield {
                    "scores": label,
                    "tokens": s,
                    "scale": e.value,
                    "error": e.error,
                    "over_limit": e.value / told,
                }


def draw(numbers: Numbers) -> Any:
    """The transition at four lengths, and how near critical scales are to their
    limits.
    """
    figure = new(3.0)
    left, right = figure.subplots(1, 2)
    x = np.linspace(0.2, 1.6, 141)
    for s, colour in COLOURS.items():
        own = [own_share(s, g * math.log(s), math.inf).value for g in x]
        left.plot(x, own, color=colour, label=f"{s // 1024}k" if s < 10**6 else "10⁶")
    left.plot([0.2, 1, 1, 1.6], [0, 0, 1, 1], ":", color=GREY, label="∞")
    left.set(xlabel="β (1 − ρ) / log T", ylabel="weight of a token on itself")
    left.legend(title="T", loc="upper left")
    for label, colour, words in (
        ("own None", BLACK, "equal cosines"),
        ("own 64", ORANGE, "random, dimension 64"),
        ("own 16", VERMILLION, "random, dimension 16"),
        (f"normal {FIXED_NORM}", BLUE, "normal scores"),
    ):
        line = [row["over_limit"] for row in rows({label: numbers[label]})]
        right.plot(
            LENGTHS, line, marker=MARK_OF[colour], ms=3, color=colour, label=words
        )
    right.axhline(1.0, color=GREY, lw=0.6, ls=":")
    right.set(
        xscale="log",
        xlabel="tokens T",
        ylabel="critical scale over its limit",
        ylim=(0.75, 2.3),
    )
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=2
    )
    return figure


RESULT = Result(
    name="temperature",
    title="The critical temperature of attention, by the length of the context",
    source=(
        "Chen, Lin, Polyanskiy and Rigollet, Critical attention scaling in long-context"
        " transformers (ICLR 2026), and Hayase and Karakida, A unified framework for"
        " critical scaling of inverse temperature in self-attention (2026)."
    ),
    links=("https://arxiv.org/abs/2510.05554", "https://arxiv.org/abs/2605.12697"),
    setting=(
        "Both are statements for T → ∞. Chen et al.: scores β⟨y_i, y_j⟩ of tokens with"
        " equal cosines ρ, and values y_j; the critical β is log T/(1 − ρ). Hayase and"
        " Karakida: critical scales from (log T)^½ to (log T)², by the scores that"
        " compete with the largest. Ours are exact at finite T: in closed form for"
        " equal cosines, by one-dimensional integrals for random tokens, and by"
        " ns.attention_std for normal scores β⟨q, k⟩/√d. The critical scale at finite T"
        " is that at which half the attention is on one token: A_ii = ½, or E Σ_j a_j²"
        " = ½, whose limit for normal scores is 2√(2 log T). As initialised β is 1."
    ),
    quick="nothing is left out.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "temperature",
            "Left: how much a token attends to itself when all others are equally far,"
            " by the scale of scores. Right: the scale at which half the attention is"
            " on one token, over its limit for infinitely many tokens.",
            draw,
            rows,
        ),
    ),
    unread=(
        "both papers beyond their abstracts, and a review of Chen et al. that states"
        " their assumptions; so which scores have (log T)² is not judged, and the"
        " constant √2 is from the random energy model."
    ),
)
