"""Chowdhury: the share of each position in the gradient at initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...nn import Rotary, block, mlp
from ...nn import attention as attention_layer
from ...programs._program import Program
from ...report._mpl_style import (
    BLUE,
    GREEN,
    MARK_OF,
    ORANGE,
    PURPLE,
    VERMILLION,
    width_colours,
)
from ...studies import Arrays
from .._figures import new_wide
from .._significance import combine, decide_below, extrapolate
from ._depth import stream
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean
from ._uniform import Network, Perceptron, Uniform, shares

STD = 0.02  # of all weights and embeddings, as in both models' code


class Size(NamedTuple):
    """A model: its blocks, widths, heads, and what differs between the two."""

    depth: int
    width: int
    hidden: int
    heads: int
    groups: int
    gated: bool
    scaled: bool  # output matrices of the branches divided by √(2 · depth)


HEAD_DIM = 64
MODELS = {
    "gpt2": Size(12, 768, 3072, heads=12, groups=12, gated=False, scaled=True),
    "qwen2": Size(24, 896, 4864, heads=14, groups=2, gated=True, scaled=False),
}
ROTARY_BASE = 1e6
# Of exact laws with scores.
LENGTHS = (16, 64, 128)
LENGTH = 64  # where one thing is changed at a time
ROTARY_LENGTH, ROTARY_DRAWS = 16, 128  # of Qwen2 with and without rotary positions
WINDOW, SINKS = 16, 1
# Of the limit without scores.
LONG_LENGTHS = (16, 64, 128, 256, 1024, 4096)
LONG_LENGTH = 512
DEPTHS = (3, 6, 12, 24, 48)
LONG_WINDOWS = ((64, 0), (64, 4), (256, 4))
CESARO_POWERS, CESARO_TOKENS = (2, 3, 4, 5, 6), 4096
CESARO_AT = (0.1, 0.25, 0.5, 0.75)  # positions over length
# The stack without norms and perceptrons: its blocks, tokens and (σ_V σ_O)².
LINEAR_DEPTH, LINEAR_TOKENS, LINEAR_GAIN = 12, 512, 1.0
# Rules, fixed before the run of the default seed.
ANCHOR_MIN = 10.0  # the last token's share over that of the token before it
PRIMACY_MIN = 4.0  # the first token's share over the mean share of the middle half
RISE_MIN = 1.1  # the mean share of the last eighth, without the last token, over that
ROTARY_RTOL = 0.1
DEAD_RATIO = 0.1  # of the share of the middle half, from 6 blocks to 24
CESARO_RTOL = 0.05
AMPLITUDE_FACTOR = 2.0
LINEAR_ATOL = 1e-12


def network(model: str, depth: int | None = None, positions: bool = True) -> Network:
    """A model at infinite width, without scores; `depth` replaces its own."""
    size = MODELS[model]
    blocks = depth or size.depth
    branch_scale = 1 / math.sqrt(2 * blocks) if size.scaled else 1.0
    sigma = STD * math.sqrt(size.width)
    has_learned_positions = model == "gpt2" and positions
    return Network(
        depth=blocks,
        embedding=STD * math.sqrt(2.0 if has_learned_positions else 1.0),
        values=sigma * STD * math.sqrt(size.heads * HEAD_DIM) * branch_scale,
        perceptron=Perceptron(
            activation="silu" if size.gated else "gelu",
            hidden=sigma,
            out=STD * math.sqrt(size.hidden) * branch_scale,
            gated=size.gated,
        ),
    )


def stack(model: str, tokens: int, positions: str, window: int, sinks: int) -> Program:
    """|∂f/∂x_t|²/n of each token t, (tokens,), at the model's own widths.

    f is a random readout of the last token. `positions` is "learned", "rotary" or
    "none"; `window` is 0 for none.
    """
    size = MODELS[model]
    n = ns.Width("n")
    scaled = 1 / math.sqrt(2 * size.depth) if size.scaled else 1.0
    sigma = STD * math.sqrt(size.width)
    mask = Uniform(tokens, window or None, sinks).matrix() > 0
    rotary = Rotary(base=ROTARY_BASE) if positions == "rotary" else None
    norm = ns.rms_norm if size.gated else ns.layer_norm

    def attention(y: ns.Vector) -> ns.Vector:
        """The attention of all heads."""
        return attention_layer(
            y,
            heads=size.heads,
            head_dim=HEAD_DIM,
            groups=size.groups,
            mask=mask,
            rotary=rotary,
            sigma_q=sigma,
            sigma_k=sigma,
            sigma_v=sigma,
            sigma_o=STD * math.sqrt(size.heads * HEAD_DIM) * scaled,
        )

    def feed(y: ns.Vector) -> ns.Vector:
        """The perceptron."""
        return mlp(
            y,
            hidden=size.hidden,
            activation=ns.silu if size.gated else ns.gelu,
            gate=size.gated,
            sigma_w=sigma,
            sigma_out=STD * math.sqrt(size.hidden) * scaled,
        )

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block of attention and a perceptron."""
        return block(x, attention, feed, norm=norm).output

    variance = 2.0 if positions == "learned" else 1.0
    start = STD * math.sqrt(variance) * ns.gaussian(n, tokens)
    last = norm(stream(start, next_block, size.depth)[-1])[-1:]
    f = ns.dot(ns.gaussian(n).reshape(1), last)[0, 0]
    gradient = ns.grad(f, start).reshape((tokens, 1))
    return Program(ns.mean_dot(gradient, gradient)[:, 0, 0])


def sampled(
    model: str,
    tokens: int,
    positions: str,
    window: int,
    sinks: int,
    draws: int,
    seed: int,
) -> Arrays:
    """The shares of the positions, (draws, tokens), of the exact law."""
    net = stack(model, tokens, positions, window, sinks)
    width = MODELS[model].width
    drawn = net.draw(n=width, draws=draws, seed=seed, workers=1, progress=False)
    squares = np.asarray(drawn, dtype=np.float64)
    return {"shares": squares / squares.sum(axis=1, keepdims=True)}


def limits(
    model: str, tokens: int, depth: int, window: int, sinks: int, seed: int
) -> Arrays:
    """The shares at infinite width without scores, (1, tokens); there is no draw."""
    limit_shares = shares(network(model, depth), Uniform(tokens, window or None, sinks))
    return {"shares": limit_shares[None]}


def linear(seed: int) -> Arrays:
    """Stacks without norms and perceptrons, and powers of the Cesàro matrix.

    "density" are T times the last rows of M^H at CESARO_AT, (powers, positions);
    "shares" the exact shares by recursion, "paths" those of the closed form, and
    "amplitude" those of squares of the last row of ((1 − α)I + αM)^L.
    """
    cesaro = Uniform(CESARO_TOKENS)
    row = np.zeros((CESARO_TOKENS, 1))
    row[-1] = 1.0
    positions = np.round(np.array(CESARO_AT) * CESARO_TOKENS).astype(int) - 1
    densities = []
    for power in range(1, max(CESARO_POWERS) + 1):
        row = cesaro.gathered_rows(row)
        if power in CESARO_POWERS:
            densities.append(CESARO_TOKENS * row[positions, 0])
    return {
        "density": np.array(densities),
        "shares": shares(_linear_network(), Uniform(LINEAR_TOKENS)),
        "paths": path_shares(LINEAR_TOKENS, LINEAR_DEPTH, LINEAR_GAIN),
        "amplitude": amplitude_shares(LINEAR_TOKENS, LINEAR_DEPTH, LINEAR_GAIN),
    }


def _linear_network() -> Network:
    """Residual blocks of attention alone, without norms."""
    return Network(
        depth=LINEAR_DEPTH,
        embedding=1.0,
        values=math.sqrt(LINEAR_GAIN),
        perceptron=None,
        normed=False,
    )


def last_rows(tokens: int, powers: int) -> Array:
    """The last rows of M^0, …, M^powers, (powers + 1, tokens)."""
    cesaro = Uniform(tokens)
    last_row = np.zeros((tokens, 1))  # of M^0, as a column
    last_row[-1] = 1.0
    columns = [last_row]
    for _ in range(powers):
        columns.append(cesaro.gathered_rows(columns[-1]))
    return np.hstack(columns).T


def path_shares(tokens: int, depth: int, gain: float) -> Array:
    """Shares ∝ Σ_k C(L, k) c^k (M^k)_Tj²: paths with other matrices do not interfere.

    A path through the branches of k blocks has the product of their k matrices, which
    all tokens share; products over different blocks are uncorrelated.
    """
    rows = last_rows(tokens, depth)
    squares = _binomial_weights(depth, gain) @ rows**2
    return np.asarray(squares / squares.sum())


def _binomial_weights(depth: int, factor: float) -> Array:
    """C(L, k) factor^k for k = 0, …, L."""
    return np.array([math.comb(depth, k) * factor**k for k in range(depth + 1)])


def amplitude_shares(tokens: int, depth: int, gain: float) -> Array:
    """Shares of the squares of the last row of ((1 − α)I + αM)^L.

    α/(1 − α) is √c, so that one block has the ratio of `path_shares`.
    """
    rows = last_rows(tokens, depth)
    amplitudes = _binomial_weights(depth, math.sqrt(gain)) @ rows
    return np.asarray(amplitudes**2 / np.sum(amplitudes**2))


def cesaro_density(power: int, x: Array) -> Array:
    """The published density (ln 1/x)^(H−1)/(H−1)! of the last row of M^H."""
    return np.asarray(np.log(1 / x) ** (power - 1) / math.factorial(power - 1))


# The variants of exact laws at LENGTH, by label: positions, window and sinks.
VARIANTS: Mapping[str, tuple[str, str, int, int]] = {
    "gpt2 none": ("gpt2", "none", 0, 0),
    "gpt2 rotary": ("gpt2", "rotary", 0, 0),
    "gpt2 window": ("gpt2", "learned", WINDOW, 0),
    "gpt2 window sink": ("gpt2", "learned", WINDOW, SINKS),
    "qwen2 rotary": ("qwen2", "rotary", 0, 0),
    "qwen2 none": ("qwen2", "none", 0, 0),
}
SECONDS_A_DRAW = 1.5e-3  # for a block and a token, with the backward pass


def parts(quick: bool) -> list[Part]:
    """Exact laws by length and variant, limits by length, depth and window."""
    parts: list[Part] = [Part(label="linear", work=linear, seconds=2)]
    cases = {}
    for tokens in LENGTHS[: 2 if quick else None]:
        cases[f"gpt2 {tokens}"] = ("gpt2", tokens, "learned", 0, 0)
    for label, (model, positions, window, sinks) in VARIANTS.items():
        tokens = ROTARY_LENGTH if quick or model == "qwen2" else LENGTH
        seen = min(window, tokens // 4)
        cases[label] = (model, tokens, positions, seen, sinks)
    for label, (model, tokens, positions, window, sinks) in cases.items():
        draws = max(8, 1024 // tokens)
        if model == "qwen2":
            draws = ROTARY_DRAWS
        if quick:
            draws = 4
        seconds = 4 + SECONDS_A_DRAW * draws * tokens * MODELS[model].depth
        arguments = {
            "model": model,
            "tokens": tokens,
            "positions": positions,
            "window": window,
            "sinks": sinks,
            "draws": draws,
        }
        parts.append(
            Part(label=label, work=sampled, arguments=arguments, seconds=seconds)
        )
    return parts + _limit_parts(quick)


def _limit_parts(quick: bool) -> list[Part]:
    """The limits without scores."""
    parts: list[Part] = []

    def add(
        model: str, tokens: int, depth: int, window: int = 0, sinks: int = 0
    ) -> None:
        """Add a case; the same case is run once."""
        label = f"limit {model} {tokens} {depth} {window} {sinks}"
        if label in {part.label for part in parts}:
            return
        arguments = {
            "model": model,
            "tokens": tokens,
            "depth": depth,
            "window": window,
            "sinks": sinks,
        }
        seconds = 1 + 2e-7 * depth * tokens**2
        parts.append(
            Part(label=label, work=limits, arguments=arguments, seconds=seconds)
        )

    for model, size in MODELS.items():
        for depth in DEPTHS:
            add(model, _long_length(quick), depth)
        for tokens in LONG_LENGTHS[: -2 if quick else None]:
            if model == "gpt2" or tokens < LONG_LENGTHS[-1]:
                add(model, tokens, size.depth)
    for window, sinks in LONG_WINDOWS:
        add("gpt2", _long_length(quick), MODELS["gpt2"].depth, window, sinks)
    return parts


def _long_length(quick: bool) -> int:
    """The length of the limits that differ in one thing."""
    return 128 if quick else LONG_LENGTH


def summaries(shares: Array) -> dict[str, Estimate]:
    """Ratios of shares: the anchor, primacy and rise of the rules; and some shares.

    `shares` is (draws, tokens); a limit has one row, and no error.
    """
    tokens = shares.shape[1]
    first_quarter = tokens // 4
    last_quarter = 3 * tokens // 4
    last_eighth = tokens - max(tokens // 8, 2)
    first = shares[:, 0]
    before_last = shares[:, -2]
    last = shares[:, -1]
    middle = shares[:, first_quarter:last_quarter].mean(axis=1)
    right = shares[:, last_eighth:-1].mean(axis=1)
    columns = {
        "first": first,
        "middle half": middle * (last_quarter - first_quarter),
        "last": last,
        "anchor": last / before_last,
        "primacy": first / middle,
        "rise": right / middle,
    }
    if len(shares) == 1:
        return {name: Estimate(float(x[0]), 0.0) for name, x in columns.items()}
    return {name: mean(x) for name, x in columns.items()}


def _limit(numbers: Numbers, model: str, depth: int) -> dict[str, Estimate]:
    """The summaries of the limit of this depth, at the length that was run."""
    lengths = (_long_length(False), _long_length(True))
    for label, arrays in numbers.items():
        if not label.startswith(f"limit {model} "):
            continue
        tokens, blocks, window, _sinks = map(int, label.split()[2:])
        if tokens in lengths and blocks == depth and not window:
            return summaries(arrays["shares"])
    raise KeyError(f"limit {model} {depth}")


def _lengths(numbers: Numbers) -> dict[str, dict[str, Estimate]]:
    """The summaries of GPT-2 by length, exact laws first, then limits."""
    by_length = {}
    for label, arrays in numbers.items():
        words = label.split()
        if words[0] == "gpt2" and words[-1].isdigit():
            by_length[f"{words[1]} tokens"] = summaries(arrays["shares"])
    return {**by_length, **_limits_by_length(numbers, "gpt2")}


def _limits_by_length(numbers: Numbers, model: str) -> dict[str, dict[str, Estimate]]:
    """The summaries of a model's limits by length."""
    by_length = {}
    depth = MODELS[model].depth
    for tokens in LONG_LENGTHS:
        label = f"limit {model} {tokens} {depth} 0 0"
        if label in numbers:
            name = f"{tokens} tokens, limit"
            by_length[name] = summaries(numbers[label]["shares"])
    return by_length


def _ends(numbers: Numbers) -> Claim:
    """The claim that both ends have more than the middle."""
    by_length = _lengths(numbers)
    verdicts = []
    lines = []
    for name, summary in by_length.items():
        for quantity, bound in (("anchor", ANCHOR_MIN), ("primacy", PRIMACY_MIN)):
            ratio = summary[quantity]
            verdicts.append(decide_below(Estimate(-ratio.value, ratio.error), -bound))
        shown = [summary[part] for part in ("first", "middle half", "last")]
        lines.append(f"{name}: {', '.join(percent(share.value, 2) for share in shown)}")
    return Claim(
        published=(
            "The U-shape is present at initialisation: a tail at the start, and an"
            " isolated anchor at the final token (GPT-2)."
        ),
        rule=(
            "In GPT-2 the last token has more than"
            f" {ANCHOR_MIN:g} times the share of the token before it, and the first"
            f" more than {PRIMACY_MIN:g} times the mean share in the middle half, at"
            " every length."
        ),
        ours=f"Shares of the first token, the middle half and the last: {lines[0]};"
        f" {'; '.join(lines[1:])}.",
        verdict=combine(*verdicts),
    )


def _ends_of_qwen2(numbers: Numbers) -> Claim:
    """The claim on both ends in Qwen2, where they stand out less."""
    by_length = {
        f"{ROTARY_LENGTH} tokens": summaries(numbers["qwen2 rotary"]["shares"]),
        **_limits_by_length(numbers, "qwen2"),
    }
    verdicts = []
    lines = []
    for name, summary in by_length.items():
        ratios = [summary[quantity] for quantity in ("anchor", "primacy")]
        for ratio in ratios:
            verdicts.append(decide_below(Estimate(-ratio.value, ratio.error), -1.0))
        lines.append(f"{name}: {ratios[0]}, {ratios[1]}")
    return Claim(
        published="The U-shape is present in Qwen2, without a size of the two ends.",
        rule=(
            "The last token has more than the share of the token before it, and the"
            " first more than the mean share in the middle half. This rule was added"
            " after the shares had been seen: with 16 tokens Qwen2 does not meet that"
            " of GPT-2."
        ),
        ours=f"These ratios are {'; '.join(lines)}.",
        verdict=combine(*verdicts),
    )


def _right_side(numbers: Numbers) -> Claim:
    """Whether shares rise towards the end, apart from the last token."""
    by_length = _lengths(numbers)
    rises = {name: summary["rise"] for name, summary in by_length.items()}
    verdicts = []
    for rise in rises.values():
        verdicts.append(decide_below(Estimate(-rise.value, rise.error), -RISE_MIN))
    listed = ", ".join(f"{rise} ({name})" for name, rise in rises.items())
    return Claim(
        published="The U-shape, without the final token: shares rise towards the end.",
        rule=(
            "The mean share in the last eighth, without the last token, is more than"
            f" {RISE_MIN:g} times that in the middle half. The abstract states no rise"
            " before the final token."
        ),
        ours=f"{listed}.",
        verdict=extrapolate(combine(*verdicts)),
    )


def _rotary(numbers: Numbers) -> Claim:
    """The claim that rotary positions change nothing."""
    rotary = summaries(numbers["qwen2 rotary"]["shares"])
    none = summaries(numbers["qwen2 none"]["shares"])
    verdicts = []
    lines = []
    for part in ("first", "middle half", "last"):
        ratio = rotary[part] / none[part]
        distance = Estimate(abs(ratio.value - 1), ratio.error)
        verdicts.append(decide_below(distance, ROTARY_RTOL))
        lines.append(f"{part} {ratio}")
    return Claim(
        published="The U-shape is identical with or without RoPE.",
        rule=(
            "In Qwen2, shares of the first token, the middle half and the last with"
            f" rotary positions are within {percent(ROTARY_RTOL)} of those without."
        ),
        ours=f"Ratios: {', '.join(lines)}.",
        verdict=combine(*verdicts),
    )


def _dead_zone(numbers: Numbers) -> Claim:
    """The claim that the middle dies with the depth."""
    verdicts = []
    lines = []
    for model in MODELS:
        middles = {}
        for depth in DEPTHS:
            middles[depth] = _limit(numbers, model, depth)["middle half"].value
        shallow = DEPTHS[1]
        deep = DEPTHS[3]
        ratio = Estimate(middles[deep] / middles[shallow], 0.0)
        verdicts.append(decide_below(ratio, DEAD_RATIO))
        listed = ", ".join(percent(share, 3) for share in middles.values())
        lines.append(f"{model} {listed}")
    return Claim(
        published=(
            "Between the ends lies a factorial dead zone of order 1/(H−1)!, where H is"
            " the depth."
        ),
        rule=(
            "In models with norms, perceptrons and their own scales, the share of the"
            f" middle half with {DEPTHS[3]} blocks is below {DEAD_RATIO:g} of that with"
            f" {DEPTHS[1]}; factorials would make it 2e20 times smaller. The statement"
            " is derived for powers of the Cesàro matrix."
        ),
        ours=(
            f"Shares of the middle half at depths {', '.join(map(str, DEPTHS))}:"
            f" {'; '.join(lines)}."
        ),
        verdict=extrapolate(combine(*verdicts)),
    )


def _cesaro(numbers: Numbers) -> Claim:
    """The claim on powers of the Cesàro matrix."""
    densities = numbers["linear"]["density"]
    exact = np.array([cesaro_density(h, np.array(CESARO_AT)) for h in CESARO_POWERS])
    worst = Estimate(float(np.abs(densities / exact - 1).max()), 0.0)
    return Claim(
        published=(
            "The influence density of H uniform layers without residuals is"
            " (ln 1/x)^(H−1)/(H−1)!."
        ),
        rule=(
            f"At {CESARO_TOKENS} tokens the last row of M^H is within"
            f" {percent(CESARO_RTOL)} of it for H = {CESARO_POWERS[0]} to"
            f" {CESARO_POWERS[-1]}, at x = {', '.join(map(str, CESARO_AT))}."
        ),
        ours=f"The largest relative difference is {worst.value:.4f}.",
        verdict=decide_below(worst, CESARO_RTOL),
    )


def _paths(numbers: Numbers) -> Claim:
    """The exact shares with residuals, in closed form."""
    arrays = numbers["linear"]
    difference = float(np.abs(arrays["shares"] - arrays["paths"]).max())
    return Claim(
        published=(
            "Ours: with residuals, without norms and perceptrons, shares are"
            " proportional to Σ_k C(L, k) c^k (M^k)²."
        ),
        rule=(
            f"The largest difference from the recursion at {LINEAR_TOKENS} tokens and"
            f" {LINEAR_DEPTH} blocks is below {LINEAR_ATOL:g}."
        ),
        ours=f"{difference:.1e}.",
        verdict=decide_below(Estimate(difference, 0.0), LINEAR_ATOL),
    )


def _amplitude(numbers: Numbers) -> Claim:
    """The published matrix with residuals, against the exact shares."""
    arrays = numbers["linear"]
    middle = LINEAR_TOKENS // 2
    ratio = float(arrays["amplitude"][middle] / arrays["shares"][middle])
    farther = Estimate(max(ratio, 1 / ratio), 0.0)
    return Claim(
        published=(
            "With residuals the influence is that of powers of (1 − α)I + αM: read as"
            " shares of squared gradients."
        ),
        rule=(
            "The square of the last row at the middle token is within a factor"
            f" {AMPLITUDE_FACTOR:g} of the exact share. The abstract does not say that"
            " it is a squared gradient."
        ),
        ours=(
            f"It is {ratio:.3g} times the exact share: powers add the paths of"
            " different blocks as numbers, but their matrices are independent."
        ),
        verdict=extrapolate(decide_below(farther, AMPLITUDE_FACTOR)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Both ends, the right side, rotation, the dead zone, closed forms, and Qwen2."""
    return [
        _ends(numbers),
        _right_side(numbers),
        _rotary(numbers),
        _dead_zone(numbers),
        _cesaro(numbers),
        _paths(numbers),
        _amplitude(numbers),
        _ends_of_qwen2(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean shares by case and position."""
    for label, arrays in numbers.items():
        if label == "linear":
            continue
        shares_of_draws = arrays["shares"]
        for position, column in enumerate(shares_of_draws.T, start=1):
            error = 0.0 if len(shares_of_draws) == 1 else mean(column).error
            yield {
                "case": label,
                "tokens": shares_of_draws.shape[1],
                "position": position,
                "share": float(column.mean()),
                "error": error,
            }


def draw(numbers: Numbers) -> Any:
    """Shares by position: by length, and for variants of one length."""
    figure = new_wide(2.8)
    left, right = figure.subplots(1, 2)
    _plot_lengths(left, numbers)
    _plot_variants(right, numbers)
    for axes in (left, right):
        axes.set(yscale="log")
    left.set_ylim(2e-7, 30)
    left.legend(fontsize=6, ncols=2, loc="upper center")
    right.legend(fontsize=6)
    return figure


def _plot_lengths(axes: Any, numbers: Numbers) -> None:
    """Shares in GPT-2 by length: limits as lines, and the exact law as points.

    Without the exact law, one point at the last token names the length.
    """
    depth = MODELS["gpt2"].depth
    colours = width_colours(len(LONG_LENGTHS))
    for tokens, colour in zip(LONG_LENGTHS, colours, strict=True):
        label = f"limit gpt2 {tokens} {depth} 0 0"
        if label not in numbers:
            continue
        limit = numbers[label]["shares"][0]
        positions = np.arange(1, tokens + 1) / tokens
        axes.plot(positions, limit, color=colour, lw=1)
        exact = numbers.get(f"gpt2 {tokens}")
        if exact is None:
            positions = positions[-1:]
            points = limit[-1:]
        else:
            points = exact["shares"].mean(axis=0)
        style = {"ls": "", "ms": 2.5, "color": colour, "marker": "o"}
        axes.plot(positions, points, label=f"{tokens:,} tokens", **style)
    axes.set(
        title="GPT-2: only the last token keeps its share",
        xlabel="position / length",
        ylabel="share of the squared gradient",
    )


def _plot_variants(axes: Any, numbers: Numbers) -> None:
    """Mean shares of the exact law of each variant."""
    variants = {
        "gpt2 none": ("GPT-2, no positions", BLUE),
        "gpt2 rotary": ("GPT-2, rotary", ORANGE),
        "gpt2 window": (f"GPT-2, window {WINDOW}", VERMILLION),
        "gpt2 window sink": (f"GPT-2, window {WINDOW}, sink", GREEN),
        "qwen2 rotary": ("Qwen2", PURPLE),
    }
    for label, (name, colour) in variants.items():
        means = numbers[label]["shares"].mean(axis=0)
        positions = np.arange(1.0, len(means) + 1)
        style = {"marker": MARK_OF[colour], "ms": 2, "mfc": "none", "color": colour}
        axes.plot(positions, means, lw=1, label=name, **style)
    axes.set(title="A window of attention reverses the profile", xlabel="position")


RESULT = Result(
    name="positions",
    title="Chowdhury: gradients by position at initialisation",
    source=(
        "Chowdhury, Lost in the middle at birth: an exact theory of transformer"
        " position bias (2026)."
    ),
    links=("https://arxiv.org/abs/2603.10123",),
    setting=(
        "The share of each input token in the squared gradient of a random readout of"
        " the last token. GPT-2 (12 blocks of width 768, LayerNorm, GELU, outputs of"
        " branches divided by √24) and Qwen2-0.5B (24 blocks of width 896, RMSNorm,"
        " SwiGLU, rotary, 2 groups of keys), without biases, weights and embeddings of"
        f" standard deviation {STD:g}, different tokens. Up to {LENGTHS[-1]} tokens"
        " shares are draws of the exact law at the models' widths; beyond, they are"
        " those of infinite width with scores 0, where attention is uniform and the"
        " shares are numbers. The published quantity is the norm of a Jacobian; its"
        " details were not read."
    ),
    quick="up to 256 tokens; fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="positions",
            caption=(
                "Left: shares by position in GPT-2; points are means of the exact law"
                " (beyond 128 tokens the last token only), lines infinite width"
                " without scores. Right: variants."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread="the paper beyond its abstract.",
)
