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

from ..._validate import percent
from ...laws import Estimate
from ...nn import attention_std
from ...report._mpl_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARK_OF,
    ORANGE,
    VERMILLION,
    new,
)
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._result import (
    EXPONENT_ATOL,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    as_arrays,
    estimates,
    near,
    width_of,
    within,
)

LENGTHS = (1024, 8192, 131_072, 10**6)
SHORT, LONG = 8192, 131_072  # where exponents are measured, and advice is given
HALF = 0.5  # the critical scale at finite length: half the attention is on one token
FIXED_NORM = 10**8  # a head dimension at which |q|²/d is 1: scores are normal
DIMENSIONS = (128, 64, 32, 16)  # of tokens that are random
RHO = 0.5  # the cosine of two tokens
# At which entropies are computed, as shares of the critical scale √(2 log T).
SHARES = (0.5, 1.0, 1.5)
# Tolerances; they were fixed before any number was seen.
SCALE_RTOL, COSINE_ATOL, ENTROPY_ATOL = 0.1, 0.05, 0.1
COLOURS = dict(zip(LENGTHS, (GREEN, ORANGE, VERMILLION, BLACK), strict=True))


def share(tokens: int, beta: float, head_dim: int = FIXED_NORM) -> Estimate:
    """E Σ_j a_j² of attention weights for scores β⟨q, k⟩/√d, with d = `head_dim`."""
    std = attention_std(tokens, head_dim, scale=beta / math.sqrt(head_dim))
    square: Estimate = std**2
    return square


def entropy(tokens: int, beta: float) -> float:
    """E[−Σ_j a_j log a_j] for independent normal scores of standard deviation β.

    It is F − βF′ with F(β) = E log Σ_j e^{βz_j}, and F′ = β(1 − E Σ_j a_j²) by
    integration by parts.
    """

    def slope(b: float) -> float:
        """F′(b)."""
        return float(b * (1 - share(tokens, b).value))

    # F(β) = log T + the integral of F′ from 0 to β, by Gauss–Legendre
    nodes, weights = np.polynomial.legendre.leggauss(40)
    slopes = [slope(b) for b in beta * (nodes + 1) / 2]
    f = math.log(tokens) + beta / 2 * (weights @ slopes)
    return float(f - beta**2 * (1 - share(tokens, beta).value))  # βF′ = β²(1 − …)


def own_share(tokens: int, b: float, dimension: float) -> Estimate:
    """E A_ii, the weight of a token on itself, for scores β⟨y_i, y_j⟩ of unit vectors
    with ⟨y_i, y_j⟩ = ρ + (1 − ρ)t.

    b = β(1 − ρ). For a simplex (infinite dimension) t is 0, and else it is the cosine
    of two random vectors of this dimension. A_ii is 1/S for a sum S over tokens of
    independent terms e^{−b(1 − t)}, and 1 for i itself. Since 1/S = ∫ e^{−sS} ds, with
    s = e^u, E A_ii = ∫ e^{u − e^u} E[exp(−e^{u − b(1 − t)})]^{T − 1} du. The error is
    the difference from a coarser rule.
    """
    if dimension == math.inf:
        return Estimate(1 / (1 + (tokens - 1) * math.exp(-b)), 0.0)
    coarse = _own_share_integral(tokens, b, dimension, nodes=300, step=0.15)
    fine = _own_share_integral(tokens, b, dimension, nodes=400, step=0.1)
    return Estimate(fine, abs(fine - coarse))


def _own_share_integral(
    tokens: int, b: float, dimension: float, nodes: int, step: float
) -> float:
    """The integral for E A_ii in `own_share`, over u at equal steps.

    The expectation over t, the cosine of two random vectors, is by Gauss–Gegenbauer.
    """
    t, weight = scipy.special.roots_gegenbauer(nodes, (dimension - 2) / 2)
    probability = weight / weight.sum()
    u = np.arange(-45.0, 5.0, step)
    # 1 − E[exp(−e^{u − b(1 − t)})]: the expectation is too near 1 to be subtracted
    exponent = u[:, None] - b * (1 - t)  # (u, t)
    complement = -np.expm1(-np.exp(exponent)) @ probability
    log_power = (tokens - 1) * np.log1p(-np.minimum(complement, 1 - 1e-16))
    integrand = np.exp(u - np.exp(u) + log_power)
    return float(step * np.sum(integrand))


def cosine(tokens: int, b: float, rho: float) -> float:
    """The cosine of two outputs of a layer of attention whose tokens form a simplex:
    all pairs have the cosine ρ.

    b = β(1 − ρ), as in `own_share`. There is no residual connection.
    """
    # weights of a token on itself, and on each of the others
    diagonal = own_share(tokens, b, math.inf).value
    others = (1 - diagonal) / (tokens - 1)
    # ⟨x_i, x_j⟩ = ρ + (1 − ρ) Σ_k A_ik A_jk for outputs x = A y, as rows of A add up to
    # 1
    rows_product = 2 * diagonal * others + (tokens - 2) * others**2
    rows_square = diagonal**2 + (tokens - 1) * others**2
    product = rho + (1 - rho) * rows_product
    square = rho + (1 - rho) * rows_square
    return float(product / square)


def _reaches_half(
    law: Callable[[float], Estimate], low: float, high: float
) -> Estimate:
    """The x between `low` and `high` where an increasing function reaches one half.

    Its error is that of the function there, over the slope.
    """

    def above_half(x: float) -> float:
        """The distribution function at x, less 1/2."""
        return float(law(x).value - HALF)

    x = float(scipy.optimize.brentq(above_half, low, high, xtol=1e-9))
    slope = (law(1.001 * x).value - law(0.999 * x).value) / (0.002 * x)
    return Estimate(x, law(x).error / slope + 1e-8)


def normal_scores(lengths: list[int], head_dim: int, seed: int) -> Arrays:
    """The β at which E Σ_j a_j² is one half, for each length; `seed` is not used."""
    scales = []
    for s in lengths:
        law = partial(share, s, head_dim=head_dim)
        scales.append(_reaches_half(law, low=1.0, high=40.0))
    return as_arrays("scale", scales)


def own_scores(lengths: list[int], dimension: float | None, seed: int) -> Arrays:
    """The b = β(1 − ρ) at which E A_ii is one half; `dimension` None is a simplex."""
    d = width_of(dimension)
    scales = []
    for s in lengths:
        law = partial(own_share, s, dimension=d)
        scales.append(_reaches_half(law, 0.1, 20 * math.log(s)))
    return as_arrays("scale", scales)


def entropies(lengths: list[int], shares: list[float], seed: int) -> Arrays:
    """E H / log T, the mean entropy of attention relative to uniform weights: an array
    (lengths, shares). The scores have these shares of the critical scale √(2 log T).
    """
    rows = []
    for s in lengths:
        critical = math.sqrt(2 * math.log(s))
        rows.append([entropy(s, x * critical) / math.log(s) for x in shares])
    return {"entropy": np.array(rows)}


def parts(quick: bool) -> list[Part]:
    """All of it takes seconds, so a quick run is the same."""
    lengths = list(LENGTHS)
    parts = []
    for head_dim in (FIXED_NORM, 128):
        arguments: dict[str, Any] = {"lengths": lengths, "head_dim": head_dim}
        parts.append(
            Part(
                label=f"normal {head_dim}",
                work=normal_scores,
                arguments=arguments,
                seconds=1.0,
            )
        )
    for dimension in (*DIMENSIONS, None):
        arguments = {"lengths": lengths, "dimension": dimension}
        parts.append(
            Part(
                label=f"own {dimension}",
                work=own_scores,
                arguments=arguments,
                seconds=1.2,
            )
        )
    arguments = {"lengths": lengths, "shares": list(SHARES)}
    return [
        *parts,
        Part(label="entropy", work=entropies, arguments=arguments, seconds=2.0),
    ]


def _scales(numbers: Numbers, label: str) -> dict[int, Estimate]:
    """Critical scales by length."""
    arrays = numbers[label]
    scales = estimates(arrays["scale"], arrays["error"])
    return dict(zip(LENGTHS, scales, strict=True))


def _power(numbers: Numbers, label: str, published: float, words: str) -> Claim:
    """The claim on the power of log T that a critical scale grows like, between 8k and
    128k tokens. `label` is that of the part, `words` names the scores.
    """
    scales = _scales(numbers, label)
    factor = scales[LONG].value / scales[SHORT].value
    power = math.log(factor) / math.log(math.log(LONG) / math.log(SHORT))
    return Claim(
        published=f"The critical scale of {words} grows like (log T)^{published:g}.",
        rule=(
            f"Between {SHORT:,} and {LONG:,} tokens the exponent of log T in the scale"
            f" at which half the attention is on one token is within {EXPONENT_ATOL:g}"
            f" of {published:g}."
        ),
        ours=f"{power:.3f}: from {scales[SHORT].value:.3f} to {scales[LONG].value:.3f},"
        f" {factor:.3f} times as large.",
        verdict=extrapolate(near(Estimate(power, scales[LONG].error), published)),
    )


def _collapse(numbers: Numbers) -> Claim:
    """The claim on the entropy of attention around its critical scale."""
    entropies = numbers["entropy"]["entropy"]
    limit = [max(0.0, 1 - x * x) for x in SHARES]
    largest = float(np.abs(entropies - limit).max())
    lines = []
    for s, row in zip(LENGTHS, entropies, strict=True):
        lines.append(f"T = {s:,}: " + ", ".join(f"{value:.3f}" for value in row))
    limits = ", ".join(f"{value:g}" for value in limit)
    shares = ", ".join(f"{share:g}" for share in SHARES)
    return Claim(
        published=(
            "Above the critical scale the entropy of attention collapses. For normal"
            " scores this is √(2 log T) (the random energy model), and entropy over"
            f" log T tends to {limits} at {shares} times it."
        ),
        rule=f"The exact mean entropy is within {ENTROPY_ATOL:g} log T of that at all"
        f" lengths from {LENGTHS[0]:,} to 10⁶.",
        ours=f"{'; '.join(lines)}.",
        verdict=extrapolate(decide_below(Estimate(largest, 1e-6), ENTROPY_ATOL)),
    )


def _threshold(numbers: Numbers, label: str, words: str, stated: bool) -> Claim:
    """The claim on the scale above which a token keeps its own weight, for the tokens
    of one part.

    `stated` says whether the authors state it for these tokens.
    """
    ratios = {s: scale / math.log(s) for s, scale in _scales(numbers, label).items()}
    verdict = combine(*(within(1.0, ratio, SCALE_RTOL) for ratio in ratios.values()))
    listed = "; ".join(f"{e.value:.4f} at T = {s:,}" for s, e in ratios.items())
    return Claim(
        published=f"A token keeps its own weight above β = log T/(1 − ρ): {words}.",
        rule=(
            f"The β at which the mean of A_ii is one half is within"
            f" {percent(SCALE_RTOL)} of that at every length."
        ),
        ours=f"Exact over published: {listed}.",
        verdict=extrapolate(verdict, stated=stated),
    )


def _phases(shares: tuple[float, float], stated: bool) -> Claim:
    """The claim on what a layer does to tokens below and above the critical scale.

    `shares` are two scales, as multiples of the critical one: below it and above it.
    """
    below, above = shares
    largest = -math.inf
    listed = []
    for s in LENGTHS:
        if s >= SHORT:
            low = cosine(s, below * math.log(s), RHO)
            high = cosine(s, above * math.log(s), RHO)
            largest = max(largest, 1 - low, abs(high - RHO))
            listed.append(f"{low:.3f} and {high:.3f} at T = {s:,}")
    verdict = decide_below(Estimate(largest, 1e-12), COSINE_ATOL)
    return Claim(
        published=(
            "Below the critical scale a layer collapses tokens to one direction, above"
            f" it does nothing: at {below:g} and {above:g} times 1/(1 − ρ), the cosine"
            f" of two outputs is 1 and ρ = {RHO:g}."
        ),
        rule=(
            f"Both cosines are within {COSINE_ATOL:g} of that for a simplex of"
            f" {SHORT:,} tokens and more."
        ),
        ours=f"{'; '.join(listed)}.",
        verdict=extrapolate(verdict, stated=stated),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The limits of two papers, where they state them and at the lengths in use."""
    claims = [
        _threshold(
            numbers, label="own None", words="tokens of equal cosines ρ", stated=True
        ),
        _phases((0.5, 1.5), stated=True),
        _phases((0.9, 1.1), stated=False),
    ]
    for d in DIMENSIONS:
        words = f"random tokens of dimension {d}, with mean cosine ρ"
        claims.append(_threshold(numbers, label=f"own {d}", words=words, stated=False))
    return [
        *claims,
        _power(numbers, label="own None", published=1.0, words="equal competitors"),
        _power(
            numbers,
            label=f"normal {FIXED_NORM}",
            published=0.5,
            words="independent normal scores",
        ),
        _collapse(numbers),
    ]


def _limit(label: str, tokens: int) -> float:
    """The published critical scale for T → ∞, at this many tokens, for the scores of a
    part.
    """
    if label.startswith("own"):
        return math.log(tokens)
    return 2 * math.sqrt(2 * math.log(tokens))


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Critical scales by length, over their limits."""
    for label in numbers:
        if label != "entropy":
            for s, scale in _scales(numbers, label).items():
                yield {
                    "scores": label,
                    "tokens": s,
                    "scale": scale.value,
                    "error": scale.error,
                    "over_limit": scale.value / _limit(label, s),
                }


def draw(numbers: Numbers) -> Any:
    """The transition at four lengths, and critical scales over their limits."""
    figure = new(3.0)
    left, right = figure.subplots(1, 2)
    x = np.linspace(0.2, 1.6, 141)
    for s, colour in COLOURS.items():
        weights = [own_share(s, g * math.log(s), math.inf).value for g in x]
        label = f"{s // 1024}k" if s < 10**6 else "10⁶"
        left.plot(x, weights, color=colour, label=label)
    left.plot([0.2, 1, 1, 1.6], [0, 0, 1, 1], ":", color=GREY, label="∞")
    left.set(xlabel="β (1 − ρ) / log T", ylabel="weight of a token on itself")
    left.legend(title="T", loc="upper left")

    lines = (
        ("own None", BLACK, "equal cosines"),
        ("own 64", ORANGE, "random, dimension 64"),
        ("own 16", VERMILLION, "random, dimension 16"),
        (f"normal {FIXED_NORM}", BLUE, "normal scores"),
    )
    for label, colour, words in lines:
        ratios = []
        for s, scale in _scales(numbers, label).items():
            ratios.append(scale.value / _limit(label, s))
        style = {"marker": MARK_OF[colour], "ms": 3, "color": colour}
        right.plot(LENGTHS, ratios, label=words, **style)
    right.axhline(1.0, color=GREY, lw=0.6, ls=":")
    right.set(xscale="log", xlabel="tokens T")
    right.set(ylabel="critical scale over its limit", ylim=(0.75, 2.3))
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
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
            name="temperature",
            caption=(
                "Left: how much a token attends to itself when all others are equally"
                " far, by the scale of scores. Right: the scale at which half the"
                " attention is on one token, over its limit for infinitely many"
                " tokens."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "both papers beyond their abstracts, and a review of Chen et al. that states"
        " their assumptions; so which scores have (log T)² is not judged, and the"
        " constant √2 is from the random energy model."
    ),
)
