"""Giorlandino and Goldt: the cosine of tokens through 50 layers, and the gradient of
queries, by the scale β of scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._validate import percent
from ...laws import Estimate
from ...laws._estimate import student
from ...nn import attention_std
from ...report._mpl_style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new
from ...studies import Arrays, derive_seed
from .._significance import (
    SIGMAS,
    combine,
    decide,
    decide_below,
    decide_decreasing,
    extrapolate,
)
from ._giorlandino_networks import condensed, encoder, query_gradient, theory
from ._result import (
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    as_arrays,
    average,
    estimates,
    near,
    width_of,
    within,
)

WIDTH, LAYERS, TOKENS = 720, 50, 176
# Their measured mean cosines by β and layer, off the figure in their notebook.
READ = {
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
MODELS = 3  # their numbers are means over this many models
READING = 0.01  # precision with which a figure can be read
COSINE_ATOL = 0.03  # of cosines
SHARE_ATOL = 0.03  # of Σ_j a_j²
# Their gradients in their units by β, read off likewise, at T = 2048 and 4096.
GRADIENT = {0.65: 0.4e-6, 1.08: 2.35e-6, 1.505: 4.7e-6, 2.146: 7.05e-6, 3.0: 8.8e-6}
GRADIENT_RTOL = 0.2  # of gradients
LOW_BETA, HIGH_BETA = 0.65, 3.0  # whose gradients are compared, by length
NO_DROPOUT = (1.505, 3.0)  # values of β at which gradients are computed without it too
HEAD = 256  # width of the layer whose gradient is taken
LENGTHS = (512, 2048, 16_384, 10**6, 10**9)
SHARES_BETA = 2.5  # at which Σ_j a_j² is compared


def cosines(
    tokens: int, beta: float, width: float | None, draws: int, index: int, seed: int
) -> Arrays:
    """The mean cosine by layer, a row for each draw; `width` None is infinite."""
    net = encoder(tokens, beta, LAYERS)
    draws_of_cosine = net.draw(
        n=width_of(width),
        draws=draws,
        seed=derive_seed(seed, index),
        workers=1,
        progress=False,
    )
    return {"cosine": np.asarray(draws_of_cosine, dtype=np.float64)}


def gradients(
    tokens: int,
    beta: float,
    width: int,
    dropout: float,
    draws: int,
    index: int,
    seed: int,
) -> Arrays:
    """|∂L/∂W_Q|² for each draw; `index` makes the draws of each part independent."""
    net = query_gradient(tokens, beta, width, dropout)
    squares = net.draw(
        draws=draws, seed=derive_seed(seed, index), workers=1, progress=False
    )
    return {"square": np.asarray(squares, dtype=np.float64)}


def shares(tokens: list[int], beta: float, seed: int) -> Arrays:
    """E Σ_j a_j² of uncorrelated tokens by their number, exactly."""
    sums = []
    for s in tokens:
        scale = beta * math.sqrt(math.log(s) / WIDTH)
        sums.append(attention_std(s, WIDTH, scale=scale) ** 2)
    return {"tokens": np.array(tokens), **as_arrays("share", sums)}


def parts(quick: bool) -> list[Part]:
    """Cosines at width 720 and in the limit; gradients at three lengths; Σ_j a_j²."""
    share_arguments = {"tokens": list(LENGTHS), "beta": SHARES_BETA}
    return [
        *_cosine_parts(quick),
        *_gradient_parts(quick),
        Part(label="shares", work=shares, arguments=share_arguments, seconds=2.0),
    ]


def _cosine_parts(quick: bool) -> list[Part]:
    """Cosines by β: parts at their width, and parts in the limit, each with a few
    draws.
    """
    parts = []
    for beta in READ:
        for index in range(1 if quick else 6):
            arguments = _cosine_arguments(beta, WIDTH, draws=4, index=index)
            label = f"wide {beta} {index}"
            parts.append(Part(label, work=cosines, arguments=arguments, seconds=8.0))
        for index in range(_limit_part_count(beta, quick)):
            draws, seconds = (3, 33.0) if quick else (6, 39.0)
            arguments = _cosine_arguments(beta, width=None, draws=draws, index=index)
            label = f"limit {beta} {index}"
            parts.append(
                Part(label, work=cosines, arguments=arguments, seconds=seconds)
            )
    return parts


def _limit_part_count(beta: float, quick: bool) -> int:
    """How many parts the limit has: it varies less than the law at their width."""
    if beta > 1:
        return 1 if quick else 3
    return 0 if quick else 1


def _cosine_arguments(
    beta: float, width: int | None, draws: int, index: int
) -> dict[str, Any]:
    """Arguments of `cosines`; `index` makes the seed of each part different."""
    return {
        "tokens": TOKENS,
        "beta": beta,
        "width": width,
        "draws": draws,
        "index": index,
    }


class _Length(NamedTuple):
    """Gradients at one number of tokens, and the seconds they take."""

    tokens: int
    draws: int
    seconds: float


def _gradient_parts(quick: bool) -> list[Part]:
    """Gradients by length, β and dropout, a part for each."""
    if quick:
        lengths = [
            _Length(tokens=80, draws=40, seconds=0.8),
            _Length(tokens=240, draws=8, seconds=1.6),
        ]
    else:
        lengths = [
            _Length(tokens=80, draws=80, seconds=1.5),
            _Length(tokens=240, draws=16, seconds=3.0),
            _Length(tokens=960, draws=3, seconds=23.0),
        ]
    parts: list[Part] = []
    for tokens, draws, seconds in lengths:
        betas = list(GRADIENT)
        if tokens == lengths[0].tokens:
            # only for the fall of the ratio of these two with length
            betas = [LOW_BETA, HIGH_BETA]
        for beta in betas:
            dropouts = [0.1, 0.0] if beta in NO_DROPOUT else [0.1]
            for dropout in dropouts:
                arguments = {
                    "tokens": tokens,
                    "beta": beta,
                    "width": HEAD,
                    "dropout": dropout,
                    "draws": draws,
                    # two parts are divided by each other (see `_vanishing`)
                    "index": len(parts),
                }
                label = f"gradient {tokens} {beta} {dropout}"
                parts.append(
                    Part(
                        label=label,
                        work=gradients,
                        arguments=arguments,
                        seconds=seconds,
                    )
                )
    return parts


def drawn(numbers: Numbers, kind: str, beta: float) -> Array | None:
    """All draws of the cosine by layer, an array (draws, layers).

    `kind` is wide (width 720) or limit; None if it was not run.
    """
    draws = []
    for label, arrays in numbers.items():
        if label.startswith(f"{kind} {beta}"):
            draws.append(arrays["cosine"])
    return np.concatenate(draws) if draws else None


def _theory(numbers: Numbers, kind: str, beta: float) -> Claim:
    """The claim on their recursion, against the mean of our law, layer by layer.

    `kind` is as in `drawn`. The recursion begins with our mean before the first layer.
    """
    draws = drawn(numbers, kind, beta)
    assert draws is not None
    mean, error = average(draws)
    recursion = theory(float(mean[0]), beta, LAYERS)
    distance = np.abs(recursion - mean)
    # show the layer that is surely too far off, if there is one
    lower_bound = distance - SIGMAS * error
    worst = int(np.argmax(distance))
    if np.any(lower_bound > COSINE_ATOL):
        worst = int(np.argmax(lower_bound))
    ours = estimates(mean, error)
    at_35 = ""
    if worst != 35:
        at_35 = f" At layer 35: {recursion[35]:.3f} and {ours[35]}."
    width = f"at width {WIDTH}" if kind == "wide" else "at infinite width"
    verdicts = []
    for estimate in estimates(distance, error):  # of each layer
        verdicts.append(decide_below(estimate, COSINE_ATOL))
    return Claim(
        published=(
            "Their theory, of infinite width and infinitely many tokens, gives the"
            f" cosine at β = {beta:g}, {width}."
        ),
        rule=(
            f"It is within {COSINE_ATOL} of the mean of our law of {TOKENS} tokens at"
            f" all {LAYERS} layers."
        ),
        ours=f"Farthest off at layer {worst}: theory {recursion[worst]:.3f}, law"
        f" {ours[worst]} ({len(draws)} draws).{at_35}",
        verdict=extrapolate(combine(*verdicts)),
    )


def _measured(numbers: Numbers, beta: float) -> Claim:
    """The claim that their measured means follow our law at their width, layer by layer
    where the figure was read.
    """
    draws = drawn(numbers, "wide", beta)
    assert draws is not None
    mean = draws.mean(axis=0)
    std = draws.std(axis=0, ddof=1)
    count = len(draws)
    # of the difference of two means, theirs over models and ours over draws
    error = student(count) * std * math.sqrt(1 / MODELS + 1 / count)
    allowed = SIGMAS * error + READING  # (layers,)
    distance: dict[int, float] = {}  # by layer
    over_allowed: dict[int, float] = {}  # the distance over the allowed one
    lines = []
    for layer, value in READ[beta].items():
        distance[layer] = abs(value - mean[layer])
        over_allowed[layer] = distance[layer] / allowed[layer]
        lines.append(f"{value:.3f} and {mean[layer]:.3f} (layer {layer})")
    worst = max(over_allowed, key=over_allowed.__getitem__)
    listed = ", ".join(lines)
    return Claim(
        published=(
            f"Their measured cosine at β = {beta:g}, a mean over {MODELS} models."
        ),
        rule="It is within four standard errors of such a mean from our law at width"
        f" {WIDTH}, and {READING} for reading the figure, at every layer that was"
        " read.",
        ours=(
            f"Theirs and ours: {listed}. Largest difference: {distance[worst]:.3f},"
            f" allowed {allowed[worst]:.3f}."
        ),
        verdict=decide(distance[worst] <= allowed[worst]),
    )


def _shares(numbers: Numbers) -> Claim:
    """The claim on Σ_j a_j² of the random energy model, against the exact mean.

    The model is a limit, T → ∞. Their length `LENGTHS[0]` is finite, so a distance
    there is no disagreement with them (`extrapolate`).
    """
    arrays = numbers["shares"]
    # for tokens that are orthogonal: of cosine 0
    limit = condensed(cosine=0.0, beta=SHARES_BETA)
    ours = estimates(arrays["share"], arrays["error"])
    texts = []
    for s, share in zip(arrays["tokens"], ours, strict=True):
        texts.append(f"{share.value:.4f} at T = {int(s):,}")
    return Claim(
        published=(
            "Attention weights condense as in the random energy model: Σ_j a_j² is"
            f" {limit:.4f} at β = {SHARES_BETA:g}."
        ),
        rule=(
            f"It is within {SHARE_ATOL} of the exact mean at T = {LENGTHS[0]}, the"
            " length of their model."
        ),
        ours=f"{'; '.join(texts)}.",
        verdict=extrapolate(near(ours[0], limit, SHARE_ATOL)),
    )


def scaled(square: Sequence[float] | Array, tokens: int) -> Estimate:
    """Their number, (mean of |∂L/∂W_Q|)² T d^(−2) (log T)^(−½), with its standard
    error.

    `square` holds the squared gradient of each draw, T is `tokens`.
    """
    mean, error = average(np.sqrt(np.asarray(square)))
    factor = tokens / HEAD**2 / math.sqrt(math.log(tokens))
    return Estimate(factor * mean**2, factor * 2 * mean * error)


class _Setting(NamedTuple):
    """Where a gradient is taken."""

    tokens: int
    beta: float
    dropout: float


def _scaled_gradients(numbers: Numbers) -> dict[_Setting, Estimate]:
    """Their number (see `scaled`) for each setting that was run.

    The setting is in the label of the part: "gradient 240 3.0 0.1" has 240 tokens,
    β = 3 and dropout 0.1.
    """
    gradients = {}
    for label, arrays in numbers.items():
        kind, *fields = label.split()
        if kind == "gradient":
            tokens, beta, dropout = fields
            setting = _Setting(int(tokens), float(beta), float(dropout))
            gradients[setting] = scaled(arrays["square"], setting.tokens)
    return gradients


def _lengths(gradients: Iterable[_Setting]) -> list[int]:
    """The numbers of tokens of these settings, the smallest first."""
    return sorted({setting.tokens for setting in gradients})


def _gradient(numbers: Numbers, dropout: float) -> Claim:
    """The claim on their measured gradients, against our law of the longest text that
    was run, with or without dropout.
    """
    gradients = _scaled_gradients(numbers)
    longest = _lengths(gradients)[-1]
    listed = []
    verdicts = []
    for beta, published in GRADIENT.items():
        ours = gradients.get(_Setting(longest, beta, dropout))
        if ours is not None and beta > 1:
            listed.append(f"{1e6 * published:.2f} and {1e6 * ours} (β = {beta:g})")
            verdicts.append(within(published, ours, GRADIENT_RTOL))
    if dropout:
        setting = f"with dropout {dropout}, which their notebook leaves on"
    else:
        setting = "without dropout"
    verdict = combine(*verdicts)
    return Claim(
        published=(
            "Their measured |∂L/∂W_Q|² T d^(−2) (log T)^(−½) by β, T = 2048 and 4096;"
            f" and our law {setting}."
        ),
        rule=(
            f"It is within {percent(GRADIENT_RTOL)} of our law of {longest} tokens, d ="
            f" {HEAD}, at β above 1."
        ),
        ours=f"Theirs and ours, in units of 10⁻⁶: {'; '.join(listed)}.",
        verdict=extrapolate(verdict, stated=dropout > 0),
    )


def _vanishing(numbers: Numbers) -> Claim:
    """The claim that gradients below the critical β vanish with the length, relative to
    those above it.
    """
    gradients = _scaled_gradients(numbers)
    lengths = _lengths(gradients)
    ratios = []
    for tokens in lengths:
        low = gradients[_Setting(tokens, LOW_BETA, 0.1)]
        high = gradients[_Setting(tokens, HIGH_BETA, 0.1)]
        ratios.append(low / high)
    lines = []
    for tokens, ratio in zip(lengths, ratios, strict=True):
        lines.append(f"{ratio} at T = {tokens}")
    return Claim(
        published=(
            "Below the critical β gradients of queries vanish as the number of tokens"
            " grows."
        ),
        rule=(
            "In their units, the gradient at β = 0.65 over that at β = 3 falls from"
            " the shortest length to the longest."
        ),
        ours=f"{'; '.join(lines)}.",
        verdict=decide_decreasing(ratios[0], ratios[-1]),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Theory and measurements of the cosine; condensation; the gradient."""
    claims = [_theory(numbers, "wide", beta) for beta in READ]
    for beta in READ:
        if drawn(numbers, "limit", beta) is not None:
            claims.append(_theory(numbers, "limit", beta))
    claims += [_measured(numbers, beta) for beta in READ]
    return [
        *claims,
        _shares(numbers),
        _gradient(numbers, 0.1),
        _gradient(numbers, 0.0),
        _vanishing(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The cosine by layer."""
    for beta in READ:
        for kind in ("wide", "limit"):
            draws = drawn(numbers, kind, beta)
            if draws is None:
                continue
            mean, error = average(draws)
            recursion = theory(float(mean[0]), beta, LAYERS)
            for layer in range(LAYERS + 1):
                yield {
                    "beta": beta,
                    "width": WIDTH if kind == "wide" else "inf",
                    "layer": layer,
                    "law": mean[layer],
                    "error": error[layer],
                    "theory": recursion[layer],
                    "read": READ[beta].get(layer, ""),
                }


LIMIT_STYLE = {"color": BLACK, "linestyle": ":", "lw": 1.2}
THEORY_STYLE = {"linestyle": "--", "lw": 0.9}


def draw(numbers: Numbers) -> Any:
    """The cosine by layer.

    Their theory, their measurements, and our law at their width and in the limit.
    """
    figure = new(2.9)
    axes = figure.subplots()
    layers = np.arange(LAYERS + 1)
    for beta, colour, mark in ((0.5, BLUE, "o"), (3.0, GREEN, "s")):
        wide = drawn(numbers, "wide", beta)
        limit = drawn(numbers, "limit", beta)
        assert wide is not None
        mean = wide.mean(axis=0)
        std = wide.std(axis=0, ddof=1)
        axes.fill_between(layers, mean - std, mean + std, color=colour, alpha=0.2, lw=0)
        label = f"our law, width {WIDTH}, β = {beta:g}"
        style = {"color": colour, "marker": mark, "ms": 3, "markevery": 10}
        axes.plot(layers, mean, label=label, **style)
        if limit is not None:
            axes.plot(layers, limit.mean(axis=0), zorder=3, **LIMIT_STYLE)
        recursion = theory(float(mean[0]), beta, LAYERS)
        axes.plot(layers, recursion, color=colour, **THEORY_STYLE)
        read_layers = list(READ[beta])
        read_means = list(READ[beta].values())
        axes.plot(read_layers, read_means, mark, mfc="white", color=colour, zorder=4)
    axes.plot([], [], label="our law, infinite width", **LIMIT_STYLE)
    axes.plot([], [], color=GREY, label="their theory", **THEORY_STYLE)
    axes.plot([], [], "o", mfc="white", color=GREY, label="their measurement")
    axes.set(xlabel="layer", ylabel="mean cosine of two tokens", ylim=(0, 1.02))
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


def gradient_rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The gradient by length, β and dropout."""
    for (tokens, beta, dropout), gradient in _scaled_gradients(numbers).items():
        yield {
            "tokens": tokens,
            "beta": beta,
            "dropout": dropout,
            "law": gradient.value,
            "error": gradient.error,
            "read": GRADIENT[beta],
        }


def gradient_draw(numbers: Numbers) -> Any:
    """The gradient over β."""
    figure = new(2.9)
    axes = figure.subplots()
    gradients = _scaled_gradients(numbers)
    # the shortest length has too few values of β
    longer = _lengths(gradients)[1:]
    styles = ((SKY, "s-"), (BLUE, "^-"))
    for tokens, (colour, fmt) in zip(longer, styles, strict=False):
        style = {"color": colour, "fmt": fmt}
        _plot_gradients(axes, gradients, tokens, dropout=0.1, **style)
    style = {"color": VERMILLION, "fmt": "D-"}
    _plot_gradients(axes, gradients, tokens=longer[-1], dropout=0.0, **style)
    axes.plot(
        list(GRADIENT),
        [1e6 * value for value in GRADIENT.values()],
        "o",
        mfc="white",
        color=ORANGE,
        label="theirs, T = 2048 and 4096",
    )
    axes.set(xlabel="β", ylim=(0, None))
    axes.set_ylabel("|∂L/∂W$_Q$|² T d$^{-2}$ (log T)$^{-1/2}$ · 10⁶")
    figure.legend(loc="outside lower center", ncols=1)
    return figure


def _plot_gradients(
    axes: Any,
    gradients: dict[_Setting, Estimate],
    tokens: int,
    dropout: float,
    **style: Any,
) -> None:
    """Plot our gradients at one length by β, with their standard errors; `style` is the
    colour and the format of the line.
    """
    points: dict[float, Estimate] = {}  # by β
    for beta in GRADIENT:
        setting = _Setting(tokens, beta, dropout)
        if setting in gradients:
            points[beta] = gradients[setting]
    axes.errorbar(
        list(points),
        [1e6 * gradient.value for gradient in points.values()],
        [1e6 * gradient.error for gradient in points.values()],
        ms=3,
        capsize=2,
        label=f"our law, T = {tokens}, {'with' if dropout else 'no'} dropout",
        **style,
    )


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
            name="giorlandino-cosine",
            caption=(
                "The mean cosine of two tokens by layer; the band is one standard"
                " deviation between initialisations."
            ),
            draw=draw,
            rows=rows,
        ),
        Picture(
            name="giorlandino-gradient",
            caption=(
                "The squared gradient of queries in their units over β, at"
                " initialisation, one layer."
            ),
            draw=gradient_draw,
            rows=gradient_rows,
        ),
    ),
)
