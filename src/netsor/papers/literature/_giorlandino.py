"""Giorlandino and Goldt: the cosine of tokens through 50 layers, and the gradient of
queries, over β.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._mpl_style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new
from ...laws import Estimate
from ...laws._estimate import student
from ...nn import attention_std
from ...studies import Arrays, derive_seed
from .._significance import (
    AGREES,
    DISAGREES,
    SIGMAS,
    combine,
    decide_below,
    decide_decreasing,
    extrapolate,
)
from ._giorlandino_networks import condensed, encoder, query_gradient, theory
from ._result import Array, Claim, Numbers, Part, Picture, Result, average, near, within

WIDTH, LAYERS, TOKENS = 720, 50, 176
READ = {  # their measured means, off the figure in their notebook
    0.5: {10: 0.278, 15: 0.497, 20: 0.705, 25: 0.865, 30: 0.940},
    3.0: {
        10: 0.138,
        15: 0.220,
        20: 0.328,
        25: 0.452,
        30: 0.604,
        35: 0.774,
        40: 0.886,
        45: 0.952,
    },
}
# theirs are means over this many models; and how precisely a figure can be read
MODELS, READING = 3, 0.01
COSINE_ATOL = 0.03  # of cosines
GRADIENT = {
    0.65: 0.4e-6,
    1.08: 2.35e-6,
    1.505: 4.7e-6,
    2.146: 7.05e-6,
    3.0: 8.8e-6,
}  # read off likewise, T = 2048, 4096
GRADIENT_RTOL = 0.2  # of gradients
NO_DROPOUT = (1.505, 3.0)  # without dropout too
HEAD = 256
LENGTHS = (512, 2048, 16_384, 10**6, 10**9)
SHARES_BETA = 2.5  # at which Σ_j a_j² is compared


def cosines(
    tokens: int, beta: float, width: float | None, draws: int, index: int, seed: int
) -> Arrays:
    """The mean cosine by layer, a row for each draw; `width` None is infinite."""
    net = encoder(tokens, beta, LAYERS)
    made = net.draw(
        n=math.inf if width is None else width,
        draws=draws,
        seed=derive_seed(seed, index),
        workers=1,
        progress=False,
    )
    return {"cosine": np.asarray(made, dtype=np.float64)}


def gradients(
    tokens: int, beta: float, width: int, dropout: float, draws: int, seed: int
) -> Arrays:
    """|∂L/∂W_Q|² for each draw."""
    net = query_gradient(tokens, beta, width, dropout)
    return {
        "square": np.asarray(
            net.draw(draws=draws, seed=seed, workers=1, progress=False),
            dtype=np.float64,
        )
    }


def shares(tokens: list[int], beta: float, seed: int) -> Arrays:
    """E Σ_j a_j² of uncorrelated tokens by their number, exactly."""
    found = [
        attention_std(s, WIDTH, scale=beta * math.sqrt(math.log(s) / WIDTH)) ** 2
        for s in tokens
    ]
    return {
        "tokens": np.array(tokens),
        "share": np.array([e.value for e in found]),
        "error": np.array([e.error for e in found]),
    }


def parts(quick: bool) -> list[Part]:
    """Draws at width 720 and in the limit; the gradient at three lengths; Σ_j a_j² by
    length.
    """
    made = []
    for beta in READ:
        for index in range(1 if quick else 6):
            given: dict[str, Any] = {
                "tokens": TOKENS,
                "beta": beta,
                "width": WIDTH,
                "draws": 4,
                "index": index,
            }
            made.append(Part(f"wide {beta} {index}", cosines, given, 8.0))
        # the limit varies less
        for index in range((beta > 1) if quick else 3 if beta > 1 else 1):
            given = {
                "tokens": TOKENS,
                "beta": beta,
                "width": None,
                "draws": 3 if quick else 6,
                "index": index,
            }
            made.append(
                Part(f"limit {beta} {index}", cosines, given, 33.0 if quick else 39.0)
            )
    lengths = (
        ((80, 40, 0.8), (240, 8, 1.6))
        if quick
        else ((80, 80, 1.5), (240, 16, 3.0), (960, 3, 23.0))
    )
    for tokens, draws, seconds in lengths:  # the longest of them is judged
        for beta in GRADIENT if tokens > lengths[0][0] else (0.65, 3.0):
            for dropout in (0.1, 0.0) if beta in NO_DROPOUT else (0.1,):
                given = {
                    "tokens": tokens,
                    "beta": beta,
                    "width": HEAD,
                    "dropout": dropout,
                    "draws": draws,
                }
                made.append(
                    Part(
                        f"gradient {tokens} {beta} {dropout}", gradients, given, seconds
                    )
                )
    return [
        *made,
        Part("shares", shares, {"tokens": list(LENGTHS), "beta": SHARES_BETA}, 2.0),
    ]


def drawn(numbers: Numbers, kind: str, beta: float) -> Array | None:
    """All draws of the cosine by layer (draws, layers), at width 720 or in the
    limit.
    """
    found = [
        arrays["cosine"]
        for label, arrays in numbers.items()
        if label.startswith(f"{kind} {beta}")
    ]
    return np.concatenate(found) if found else None


def _theory(numbers: Numbers, kind: str, beta: float) -> Claim:
    found = drawn(numbers, kind, beta)
    assert found is not None
    mean, error = average(found)
    told = theory(float(mean[0]), beta, LAYERS)
    off = np.abs(told - mean)
    at = int(
        np.argmax(
            off - SIGMAS * error if np.any(off - SIGMAS * error > COSINE_ATOL) else off
        )
    )
    at_35 = (
        f" At layer 35: {told[35]:.3f} and"
        f" {Estimate(float(mean[35]), float(error[35]))}."
        if at != 35
        else ""
    )
    where = f"at width {WIDTH}" if kind == "wide" else "at infinite width"
    return Claim(
        "Their theory, of infinite width and infinitely many tokens, gives the cosine"
        f" at β = {beta:g}, {where}.",
        f"It is within {COSINE_ATOL} of the mean of our law of {TOKENS} tokens at all"
        f" {LAYERS} layers.",
        f"Farthest off at layer {at}: theory {told[at]:.3f}, law"
        f" {Estimate(float(mean[at]), float(error[at]))} ({len(found)} draws).{at_35}",
        extrapolate(
            combine(
                *(
                    decide_below(Estimate(float(o), float(e)), COSINE_ATOL)
                    for o, e in zip(off, error, strict=True)
                )
            )
        ),
    )


def _measured(numbers: Numbers, beta: float) -> Claim:
    found = drawn(numbers, "wide", beta)
    assert found is not None
    mean, spread, count = found.mean(axis=0), found.std(axis=0, ddof=1), len(found)
    allowed = (
        SIGMAS * student(count) * spread * math.sqrt(1 / MODELS + 1 / count) + READING
    )
    off = {layer: abs(value - mean[layer]) for layer, value in READ[beta].items()}
    worst = max(off, key=lambda layer: off[layer] / allowed[layer])
    listed = ", ".join(
        f"{value:.3f} and {mean[layer]:.3f} (layer {layer})"
        for layer, value in READ[beta].items()
    )
    return Claim(
        f"Their measured cosine at β = {beta:g}, a mean over {MODELS} models.",
        "It is within four standard errors of such a mean from our law at width"
        f" {WIDTH}, and {READING} for reading the figure, at every layer that was"
        " read.",
        f"Theirs and ours: {listed}. Largest difference: {off[worst]:.3f}, allowed"
        f" {allowed[worst]:.3f}.",
        AGREES if off[worst] <= allowed[worst] else DISAGREES,
    )


def _shares(numbers: Numbers) -> Claim:
    found = numbers["shares"]
    told = condensed(0.0, SHARES_BETA)
    pairs = [
        (int(s), Estimate(v, e))
        for s, v, e in zip(found["tokens"], found["share"], found["error"], strict=True)
    ]
    first = pairs[0][1]
    return Claim(
        "Attention weights condense as in the random energy model: Σ_j a_j² is"
        f" {told:.4f} at β = {SHARES_BETA:g}.",
        f"It is within {COSINE_ATOL} of the exact mean at T = 512, the length of their"
        " model.",
        "; ".join(f"{value.value:.4f} at T = {s:,}" for s, value in pairs) + ".",
        extrapolate(near(first, told, COSINE_ATOL)),
    )


def scaled(square: Sequence[float] | Array, tokens: int) -> Estimate:
    """Their number, (mean of |∂L/∂W_Q|)² T d^(−2) (log T)^(−½), from squared gradients
    of draws.
    """
    mean, error = average(np.sqrt(np.asarray(square)))
    factor = tokens / HEAD**2 / math.sqrt(math.log(tokens))
    return Estimate(factor * mean**2, factor * 2 * mean * error)


def _found(numbers: Numbers) -> dict[tuple[int, float, float], Estimate]:
    """The gradient by (tokens, β, dropout)."""
    made = {}
    for label, arrays in numbers.items():
        if label.startswith("gradient"):
            tokens, beta, dropout = label.split()[1:]
            made[int(tokens), float(beta), float(dropout)] = scaled(
                arrays["square"], int(tokens)
            )
    return made


def _gradient(numbers: Numbers, dropout: float) -> Claim:
    found = _found(numbers)
    longest = max(tokens for tokens, *_ in found)
    pairs = {
        b: (v, found[longest, b, dropout])
        for b, v in GRADIENT.items()
        if (longest, b, dropout) in found and b > 1
    }
    verdicts = [within(p, e, GRADIENT_RTOL) for p, e in pairs.values()]
    listed = "; ".join(
        f"{1e6 * p:.2f} and {1e6 * e} (β = {b:g})" for b, (p, e) in pairs.items()
    )
    with_ = (
        f"with dropout {dropout}, which their notebook leaves on"
        if dropout
        else "without dropout"
    )
    return Claim(
        "Their measured |∂L/∂W_Q|² T d^(−2) (log T)^(−½) by β, T = 2048 and 4096; and"
        f" our law {with_}.",
        f"It is within {GRADIENT_RTOL:.0%} of our law of {longest} tokens, d = {HEAD},"
        " at β above 1.",
        f"Theirs and ours, in units of 10⁻⁶: {listed}.",
        combine(*verdicts) if dropout else extrapolate(combine(*verdicts)),
    )


def _vanishing(numbers: Numbers) -> Claim:
    found = _found(numbers)
    lengths = sorted({tokens for tokens, *_ in found})
    ratios = [found[tokens, 0.65, 0.1] / found[tokens, 3.0, 0.1] for tokens in lengths]
    return Claim(
        "Below the critical β gradients of queries vanish as the number of tokens"
        " grows.",
        "In their units, the gradient at β = 0.65 over that at β = 3 falls from the"
        " shortest length to the longest.",
        "; ".join(
            f"{ratio} at T = {tokens}"
            for tokens, ratio in zip(lengths, ratios, strict=True)
        )
        + ".",
        decide_decreasing(ratios[0], ratios[-1]),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Theory and measurements of the cosine; condensation; the gradient."""
    claims = [_theory(numbers, "wide", beta) for beta in READ]
    claims += [
        _theory(numbers, "limit", beta)
        for beta in READ
        if drawn(numbers, "limit", beta) is not None
    ]
    claims += [_measured(numbers, beta) for beta in READ]
    return [
        *claims,
        _shares(numbers),
        *(_gradient(numbers, p) for p in (0.1, 0.0)),
        _vanishing(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The cosine by layer."""
    for beta in READ:
        for kind in ("wide", "limit"):
            found = drawn(numbers, kind, beta)
            if found is None:
                continue
            mean, error = average(found)
            told = theory(float(mean[0]), beta, LAYERS)
            for layer in range(LAYERS + 1):
                yield {
                    "beta": beta,
                    "width": WIDTH if kind == "wide" else "inf",
                    "layer": layer,
                    "law": mean[layer],
                    "error": error[layer],
                    "theory": told[layer],
                    "read": READ[beta].get(layer, ""),
                }


def draw(numbers: Numbers) -> Any:
    """The cosine by layer: their theory, their measurements, our law at their width and
    in the limit.
    """
    figure = new(2.9)
    axes = figure.subplots()
    layers = np.arange(LAYERS + 1)
    for beta, colour, mark in ((0.5, BLUE, "o"), (3.0, GREEN, "s")):
        found, limit = (drawn(numbers, kind, beta) for kind in ("wide", "limit"))
        assert found is not None
        mean, spread = found.mean(axis=0), found.std(axis=0, ddof=1)
        axes.fill_between(
            layers, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0
        )
        axes.plot(
            layers,
            mean,
            color=colour,
            marker=mark,
            ms=3,
            markevery=10,
            label=f"our law, width {WIDTH}, β = {beta:g}",
        )
        if limit is not None:
            axes.plot(
                layers, limit.mean(axis=0), color=BLACK, linestyle=":", lw=1.2, zorder=3
            )
        axes.plot(
            layers,
            theory(float(mean[0]), beta, LAYERS),
            color=colour,
            linestyle="--",
            lw=0.9,
        )
        axes.plot(
            *zip(*READ[beta].items(), strict=True),
            mark,
            mfc="white",
            color=colour,
            zorder=4,
        )
    axes.plot(
        [], [], color=BLACK, linestyle=":", lw=1.2, label="our law, infinite width"
    )
    axes.plot([], [], color=GREY, linestyle="--", lw=0.9, label="their theory")
    axes.plot([], [], "o", mfc="white", color=GREY, label="their measurement")
    axes.set(xlabel="layer", ylabel="mean cosine of two tokens", ylim=(0, 1.02))
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def gradient_rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The gradient by length, β and dropout."""
    for (tokens, beta, dropout), value in _found(numbers).items():
        yield {
            "tokens": tokens,
            "beta": beta,
            "dropout": dropout,
            "law": value.value,
            "error": value.error,
            "read": GRADIENT[beta],
        }


def gradient_draw(numbers: Numbers) -> Any:
    """The gradient over β."""
    figure = new(2.9)
    axes = figure.subplots()
    found = _found(numbers)
    lengths = sorted({tokens for tokens, *_ in found})[1:]
    lines = [
        (tokens, 0.1, *style)
        for tokens, style in zip(lengths, ((SKY, "s-"), (BLUE, "^-")), strict=False)
    ]
    for tokens, dropout, colour, style in [
        *lines,
        (lengths[-1], 0.0, VERMILLION, "D-"),
    ]:
        points = [
            (b, found[tokens, b, dropout])
            for b in GRADIENT
            if (tokens, b, dropout) in found
        ]
        x, e = zip(*points, strict=True)
        name = "with dropout" if dropout else "no dropout"
        axes.errorbar(
            x,
            [1e6 * v.value for v in e],
            [1e6 * v.error for v in e],
            color=colour,
            fmt=style,
            ms=3,
            capsize=2,
            label=f"our law, T = {tokens}, {name}",
        )
    axes.plot(
        list(GRADIENT),
        [1e6 * v for v in GRADIENT.values()],
        "o",
        mfc="white",
        color=ORANGE,
        label="theirs, T = 2048 and 4096",
    )
    axes.set(
        xlabel="β",
        ylabel="|∂L/∂W$_Q$|² T d$^{-2}$ (log T)$^{-1/2}$ · 10⁶",
        ylim=(0, None),
    )
    figure.legend(loc="outside lower center", ncols=1)
    return figure


RESULT = Result(
    name="giorlandino",
    title=(
        "Two failure modes of deep transformers: cosines through depth, gradients of"
        " queries"
    ),
    source=(
        "Giorlandino and Goldt, Two failure modes of deep transformers and how to avoid"
        " them (ICLR 2026), with public notebooks."
    ),
    links=(
        "https://arxiv.org/abs/2505.24333",
        "https://github.com/aGiorlandino/ICLR-Signal-Propagation-Transformers",
    ),
    setting=(
        f"Their encoder: post-norm, one head, width {WIDTH} throughout, ReLU, {LAYERS}"
        " layers, weights of variance 0.2 over the fan-in, biases 4e-4, queries and"
        " keys of variance β √(log 512) over it, residual connections of strength 1."
        f" Their text is drawn at random and not recorded: ours is one of {TOKENS}"
        " tokens, whose tokens have a mean cosine of 0.024 at first, as theirs"
        " (0.025). Their measured means are published as a picture, and were read off"
        " it. Gradients: one layer, d = 256, the loss of masked language modelling"
        " with the input as its labels; their notebook does not switch dropout off, so"
        " ours is with it and without. Their T = 2048 and 4096 are run in part, at"
        " 960. Their theory is about infinitely many tokens: a gap at finitely many is"
        " outside its range."
    ),
    unread=(
        "the text beyond the abstract, the statement on gradients among it; the"
        " notebooks were read."
    ),
    quick=(
        "4 draws at width 720 instead of 24, the limit at β = 3 alone, and gradients at"
        " up to 240 tokens."
    ),
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "giorlandino-cosine",
            "The mean cosine of two tokens by layer; the band is one standard deviation"
            " between initialisations.",
            draw,
            rows,
        ),
        Picture(
            "giorlandino-gradient",
            "The squared gradient of queries in their units over β, at initialisation,"
            " one layer.",
            gradient_draw,
            gradient_rows,
        ),
    ),
)
