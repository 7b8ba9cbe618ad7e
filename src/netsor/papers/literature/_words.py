"""Li et al. and Tong et al.: favourite words of untrained transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special, stats

from ... import language as ns
from ...laws import Estimate
from ...models import Transformer, _build
from ...models import read as read_model
from ...nn import Embedding, mlp
from ...nn import attention as attention_layer
from ...nn import block as block_layer
from ...programs._program import Program
from ...report._mpl_style import (
    BLUE,
    GREEN,
    MARK_OF,
    ORANGE,
    SKY,
    VERMILLION,
    new,
    width_colours,
)
from ...studies import Arrays
from .._figures import new_wide
from .._significance import combine, decide_below, extrapolate
from ._depth import stream
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean
from ._uniform import Network, Perceptron, Uniform, forward, normalised

# Of the stacks: the widths of Llama 2 7B, perceptrons of four times the width without
# gates and of 8/3 of it with gates, weights of standard deviation STD.
DEPTH, WIDTH, HEADS, STD = 32, 4096, 32, 0.02
# Contexts by their length; 0 stands for single words and perceptrons without attention.
CONTEXTS = {0: 4, 4: 4, 64: 2}
DRAWS = {0: 40, 4: 12, 64: 6}
SHORT, LONG = 4, 64
ATLAS_CONTEXTS, ATLAS_TOKENS = 4, 4
HIDDEN = {False: 16384, True: 11008}  # by whether there is a gate
ACTIVATIONS: Mapping[str, tuple[Callable[[ns.Vector], ns.Vector], bool]] = {
    "ReLU": (ns.relu, False),
    "GELU": (ns.gelu, False),
    "SwiGLU": (ns.silu, True),
    "GeGLU": (ns.gelu, True),
}
SEEN_BLOCKS = (1, 2, 4, 8, 16, 32)
# Built-in models that read words without an encoder.
ATLAS = (
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "pythia-410m",
    "bert-base",
    "gemma-2-9b",
    "llama-3-8b",
    "qwen3-8b",
)
VOCABULARIES = (1_000, 32_000, 151_936)
# Of the stack without scores whose contexts share words by chance.
SHARED_LENGTHS, SHARED_VOCABULARY = (16, 64, 256, 1024), 32_000
# Rules, fixed before the run of the default seed.
COSINE_MIN = 0.1  # of contexts with a common direction
COSINE_MAX = 0.05  # of contexts without one
PROBABILITY_MIN = 10.0  # the favourite word's probability over that of a typical word
# How often two contexts agree on a word, over 1/vocabulary, for a bias that is weak.
BIAS_MIN, BIAS_MAX = 1.01, 2.0
# Of integrals over logits: nodes, the lowest logit, the probability beyond the largest;
# and nodes over cosines.
AGREEMENT_NODES, LOWEST, TAIL, DIRECTION_NODES = 320, -5.0, 1e-8, 8
NARROW = 64  # a width at which the mean cosine of order 1/n can be resolved


def stack(activation: str, length: int, width: int = WIDTH) -> Program:
    """Gram matrices of contexts after each of SEEN_BLOCKS: (blocks, c, c).

    The last token of each of c contexts of different words, in a pre-norm stack of this
    activation, with RMSNorm; without attention if the length is 0. Weights keep the
    variances that they have at width WIDTH.
    """
    phi, gated = ACTIVATIONS[activation]
    n = ns.Width("n")
    sigma = STD * math.sqrt(WIDTH)
    hidden = HIDDEN[gated] * width // WIDTH

    def attention(y: ns.Vector) -> ns.Vector:
        """Causal attention, with heads of dimension 128 at full width."""
        return attention_layer(
            y,
            heads=HEADS,
            head_dim=max(1, width // HEADS),
            mask="causal",
            sigma_q=sigma,
            sigma_k=sigma,
            sigma_v=sigma,
            sigma_o=sigma,
        )

    def feed(y: ns.Vector) -> ns.Vector:
        """The perceptron."""
        return mlp(
            y,
            hidden=hidden,
            activation=phi,
            gate=gated,
            sigma_w=sigma,
            sigma_out=STD * math.sqrt(HIDDEN[gated]),
        )

    def next_block(x: ns.Vector) -> ns.Vector:
        """A block, or its perceptron alone."""
        if length:
            return block_layer(x, attention, feed, norm=ns.rms_norm).output
        return x + feed(ns.rms_norm(x))

    contexts = CONTEXTS[length]
    tokens = max(length, 1)
    start = STD * ns.gaussian(n, contexts * tokens).reshape(contexts, tokens)
    states = stream(start, next_block, DEPTH)
    grams = [ns.mean_dot(x[:, -1], x[:, -1]) for x in (states[i] for i in SEEN_BLOCKS)]
    return Program(ns.stack(grams))


def mean_cosine(grams: Array) -> Array:
    """The mean cosine of different contexts, (…), from Gram matrices (…, c, c)."""
    sizes = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    cosines = grams / (sizes[..., :, None] * sizes[..., None, :])
    contexts = grams.shape[-1]
    pairs = contexts * (contexts - 1)
    off_diagonal = cosines.sum(axis=(-2, -1)) - contexts
    return np.asarray(off_diagonal / pairs)


def stacks(activation: str, length: int, width: int, draws: int, seed: int) -> Arrays:
    """The mean cosine after each of SEEN_BLOCKS, (draws, blocks)."""
    net = stack(activation, length, width)
    drawn = net.draw(n=width, draws=draws, seed=seed, workers=1, progress=False)
    return {"cosine": mean_cosine(np.asarray(drawn, dtype=np.float64))}


def contexts_of(model: Transformer, contexts: int, tokens: int) -> Program:
    """The Gram matrix of the last tokens of contexts of different words."""
    words = Embedding(np.arange(contexts * tokens), _build.n, model.std_embedding)
    x = words(np.arange(contexts * tokens).reshape(contexts, tokens))
    x = model.embedding_scale * x
    if model.positions == "learned" and model.std_position:
        table = Embedding(np.arange(tokens), _build.n, model.std_position)
        x = x + table()
    if model.std_type:
        x = x + ns.gaussian(_build.n, cov=model.std_type**2)
    if model.input_norm:
        x = _build.normed(model, x)
    inputs = _build.Inputs(tokens, tuple(range(tokens)))
    last = _build.trace(model, inputs, embedded=x).output[:, -1]
    return Program(ns.mean_dot(last, last))


def atlas(name: str, draws: int, seed: int) -> Arrays:
    """The mean cosine and mean square of last states of a model, (draws,).

    Learned positions of "no positions" are left out.
    """
    model = read_model(name)
    by_label = {}
    for label in ("cosine", "no positions"):
        if label == "no positions":
            if not model.std_position and not model.std_type:
                continue
            model = model.replace(std_position=0.0, std_type=0.0)
        net = contexts_of(model, ATLAS_CONTEXTS, ATLAS_TOKENS)
        widths: dict[str, Any] = model.widths()
        drawn = net.draw(draws=draws, seed=seed, workers=1, progress=False, **widths)
        grams = np.asarray(drawn, dtype=np.float64)
        by_label[label] = mean_cosine(grams)
        squares = np.diagonal(grams, axis1=1, axis2=2).mean(axis=1)
        by_label[f"{label} square"] = squares
    return by_label


def shared_words(tokens: int, seed: int) -> Arrays:
    """The cosine of two contexts of random words, which share some by chance.

    The stack of SwiGLU at infinite width without scores, for words drawn uniformly from
    SHARED_VOCABULARY. "cosine" is that of the last states, "overlap" T/(V + T − 1), the
    cosine of the means of two such contexts.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(SHARED_VOCABULARY, size=2 * tokens)
    start = (ids[:, None] == ids[None, :]).astype(np.float64)
    sigma = STD * math.sqrt(WIDTH)
    perceptron = Perceptron(
        activation="silu",
        hidden=sigma,
        out=STD * math.sqrt(HIDDEN[True]),
        gated=True,
    )
    net = Network(depth=DEPTH, embedding=STD, values=sigma**2, perceptron=perceptron)
    last, _ = forward(net, Uniform(tokens), start)
    cosines, _ = normalised(last)
    # every pair of late positions of the two contexts
    late = slice(3 * tokens // 4, tokens)
    across = cosines[:tokens, tokens:][late, late]
    overlap = tokens / (SHARED_VOCABULARY + tokens - 1)
    return {"cosine": np.array([across.mean()]), "overlap": np.array([overlap])}


@lru_cache(maxsize=256)
def agreement(rho: float, vocabulary: int) -> float:
    """The probability that two contexts have the same likeliest word.

    Logits of a word in two contexts are jointly normal with correlation ρ, the cosine
    of the contexts' states, and words are independent. So it is V ∫∫ φ₂(x, y; ρ)
    Φ₂(x, y; ρ)^(V−1), by Gauss–Legendre quadrature.
    """
    if rho >= 1:
        return 1.0
    nodes, weights = np.polynomial.legendre.leggauss(AGREEMENT_NODES)
    lowest = LOWEST
    highest = float(stats.norm.isf(TAIL / vocabulary))
    length = highest - lowest
    x = lowest + (nodes + 1) / 2 * length
    dx = weights * length / 2
    density = _bivariate_density(x, rho)
    cdf = np.maximum(bivariate_cdf(x, rho), 1e-300)
    integrand = density * np.exp((vocabulary - 1) * np.log(cdf))
    return float(vocabulary * (dx @ integrand @ dx))


def _bivariate_density(x: Array, rho: float) -> Array:
    """φ₂(x_i, x_j; ρ), the density of two normals with correlation ρ."""
    variance = 1 - rho**2  # of one given the other
    squares = x[:, None] ** 2 + x[None, :] ** 2
    form = squares - 2 * rho * np.multiply.outer(x, x)
    exponential = np.exp(-0.5 * form / variance)
    return np.asarray(exponential / (2 * math.pi * math.sqrt(variance)))


def bivariate_cdf(x: Array, rho: float) -> Array:
    """P(X ≤ x_i, Y ≤ x_j) of normals with correlation ρ, by Plackett's integral.

    ∂Φ₂/∂ρ is the density, and Φ₂ at ρ = 0 the product. With ρ = sin θ, the integral is
    that of exp(−(x² + y² − 2xy sin θ)/(2 cos² θ))/2π over θ, by Gauss–Legendre.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    angle = math.asin(rho)
    squares = x[:, None] ** 2 + x[None, :] ** 2
    products = np.multiply.outer(x, x)
    integral = np.zeros((len(x), len(x)))
    for node, weight in zip(nodes, weights, strict=True):
        theta = angle * (node + 1) / 2
        sine = math.sin(theta)
        cosine = math.cos(theta)
        exponent = -(squares - 2 * sine * products) / (2 * cosine**2)
        integral += weight * angle / 2 * np.exp(exponent)
    cdf = special.ndtr(x)
    independent = np.multiply.outer(cdf, cdf)
    return np.asarray(independent + integral / (2 * math.pi))


def direction_agreement(width: int, vocabulary: int) -> float:
    """How often contexts in independent directions of R^n agree on the likeliest word.

    Averaged over the rows u_w of the output matrix, it is the mean of `agreement` over
    the cosine of the directions, whose density is ∝ (1 − c²)^((n−3)/2). Most of it is
    due to the lengths of rows: a word with a longer row wins more often.
    """
    exponent = (width - 3) / 2
    nodes, weights = special.roots_jacobi(DIRECTION_NODES, exponent, exponent)
    chances = [agreement(float(node), vocabulary) for node in nodes]
    return float(weights @ chances / weights.sum())


def largest_of(vocabulary: int) -> float:
    """The mean of the largest M of V independent standard normal numbers.

    E M = ∫_0^∞ P(M > z) dz − ∫_{−∞}^0 P(M ≤ z) dz, where log P(M ≤ z) = V log Φ(z).
    """
    z_above = np.linspace(0, 12, 12_001)  # the tails beyond 12 and −8 are negligible
    z_below = np.linspace(-8, 0, 8_001)
    above = np.trapezoid(-np.expm1(vocabulary * special.log_ndtr(z_above)), z_above)
    below = np.trapezoid(np.exp(vocabulary * special.log_ndtr(z_below)), z_below)
    return float(above - below)


def preference(rho: float, vocabulary: int, std: float) -> float:
    """The favourite word's probability over that of a typical one.

    Geometric means over contexts: e^(s √ρ E max g), for logits of standard deviation s
    whose part of variance ρ is common to all contexts.
    """
    return math.exp(std * math.sqrt(max(rho, 0.0)) * largest_of(vocabulary))


def parts(quick: bool) -> list[Part]:
    """Stacks by activation, built-in models, and contexts that share words."""
    parts = []
    for activation in ACTIVATIONS:
        for length in CONTEXTS:
            if quick and length == LONG:
                continue
            draws = 2 if quick else DRAWS[length]
            label = f"{activation} {length}"
            arguments = {
                "activation": activation,
                "length": length,
                "width": WIDTH,
                "draws": draws,
            }
            parts.append(
                Part(
                    label=label,
                    work=stacks,
                    arguments=arguments,
                    seconds=4 + draws * (0.5 + 0.05 * length),
                )
            )
    arguments = {
        "activation": "SwiGLU",
        "length": SHORT,
        "width": NARROW,
        "draws": 50 if quick else 1000,
    }
    parts.append(Part(label="narrow", work=stacks, arguments=arguments, seconds=20))
    for name in ATLAS[: 1 if quick else None]:
        arguments = {"name": name, "draws": 2 if quick else 4}
        seconds = 12.0 if quick else 30.0
        parts.append(
            Part(
                label=f"atlas {name}", work=atlas, arguments=arguments, seconds=seconds
            )
        )
    for tokens in SHARED_LENGTHS[: 2 if quick else None]:
        parts.append(
            Part(
                label=f"shared {tokens}",
                work=shared_words,
                arguments={"tokens": tokens},
                seconds=1 + 4e-5 * tokens**2,
            )
        )
    return parts


def _last(numbers: Numbers, activation: str, length: int) -> Estimate:
    """The mean cosine after the last block."""
    return mean(numbers[f"{activation} {length}"]["cosine"][:, -1])


def _longest(numbers: Numbers) -> int:
    """The longest contexts that were run."""
    return LONG if f"ReLU {LONG}" in numbers else SHORT


def _concentration(numbers: Numbers) -> Claim:
    """The claim that asymmetric activations concentrate contexts."""
    cosines = {name: _last(numbers, name, 0) for name in ("ReLU", "GELU")}
    verdicts = [decide_below(-1 * e, -COSINE_MIN) for e in cosines.values()]
    listed = ", ".join(f"{name} {e}" for name, e in cosines.items())
    return Claim(
        published=(
            "Asymmetric activations of perceptrons concentrate the states of different"
            " sequences."
        ),
        rule=(
            f"After {DEPTH} perceptrons, states of different words have a mean cosine"
            f" above {COSINE_MIN:g} with ReLU and with GELU."
        ),
        ours=f"{listed}.",
        verdict=combine(*verdicts),
    )


def _amplified(numbers: Numbers) -> Claim:
    """The claim that attention amplifies the concentration."""
    verdicts = []
    lines = []
    for name in ("ReLU", "GELU"):
        cosine_at = {}
        for length in CONTEXTS:
            if f"{name} {length}" in numbers:
                cosine_at[length] = _last(numbers, name, length)
        alone = cosine_at[0]
        attended = cosine_at[_longest(numbers)]
        error = math.hypot(alone.error, attended.error)
        verdicts.append(
            decide_below(Estimate(alone.value - attended.value, error), 0.0)
        )
        listed = ", ".join(f"{e} ({k} tokens)" for k, e in cosine_at.items() if k)
        lines.append(f"{name} {alone} alone, {listed}")
    return Claim(
        published="Self-attention amplifies the concentration, by local aggregation.",
        rule=(
            f"The mean cosine of different contexts of {LONG} tokens is larger than"
            f" that of words without attention, after {DEPTH} blocks, by four standard"
            " errors. A quick run has shorter contexts, which the statement does not"
            " cover."
        ),
        ours=f"{'; '.join(lines)}.",
        verdict=extrapolate(combine(*verdicts), stated=_longest(numbers) == LONG),
    )


def _gated(numbers: Numbers) -> Claim:
    """Whether gated perceptrons concentrate contexts."""
    longest = _longest(numbers)
    cosines = {name: _last(numbers, name, longest) for name in ("SwiGLU", "GeGLU")}
    verdicts = [decide_below(-1 * e, -COSINE_MIN) for e in cosines.values()]
    listed = ", ".join(f"{name} {e}" for name, e in cosines.items())
    return Claim(
        published="Untrained transformers concentrate states: with gated perceptrons.",
        rule=(
            f"The same above {COSINE_MIN:g} with SwiGLU and GeGLU, with attention. The"
            " abstract speaks of asymmetric activations; a product with an independent"
            " Gaussian vector is symmetric."
        ),
        ours=f"{listed}. At infinite width it is 0.",
        verdict=extrapolate(combine(*verdicts)),
    )


def _logit_std() -> float:
    """The standard deviation of untied logits, for normed states."""
    return STD * math.sqrt(WIDTH)


def _orders(numbers: Numbers) -> Claim:
    """The claim on the size of preferences."""
    verdicts = []
    lines = []
    for name in ("ReLU", "GELU"):
        cosine = _last(numbers, name, _longest(numbers))
        std = _logit_std()
        low = preference(cosine.value - cosine.error, 32_000, std)
        high = preference(cosine.value + cosine.error, 32_000, std)
        ratio = preference(cosine.value, 32_000, std)
        estimate = Estimate(-ratio, (high - low) / 2)
        verdicts.append(decide_below(estimate, -PROBABILITY_MIN))
        lines.append(f"{name} {ratio:.0f}")
    return Claim(
        published=(
            "Certain words are predicted with probabilities orders of magnitude larger,"
            " across random sequences."
        ),
        rule=(
            "With 32,000 untied words, the favourite has more than"
            f" {PROBABILITY_MIN:g} times the probability of a typical word, as"
            " geometric means over contexts."
        ),
        ours=f"Times: {', '.join(lines)}; logits have standard deviation"
        f" {_logit_std():.2f}.",
        verdict=combine(*verdicts),
    )


def _seed_bias(numbers: Numbers) -> Claim:
    """The claim of a weak bias by seed in Llama-style models.

    A ratio is how often two contexts agree on the likeliest word, over 1/vocabulary.
    """
    ratio_of_rows = SHARED_VOCABULARY * direction_agreement(WIDTH, SHARED_VOCABULARY)
    ratios_of_lengths = []
    lines = []
    for tokens in SHARED_LENGTHS:
        label = f"shared {tokens}"
        if label in numbers:  # a quick run has fewer lengths
            cosine = float(numbers[label]["cosine"][0])
            ratio = SHARED_VOCABULARY * agreement(cosine, SHARED_VOCABULARY)
            lines.append(f"{tokens} tokens {ratio:.3f} (cosine {cosine:.5f})")
            ratios_of_lengths.append(ratio)
    # To first order, the excesses of the ratios over 1 add up. A context has only one
    # of the lengths, so that the sum over all lengths is more than the bias of any.
    all_ratios = [ratio_of_rows, *ratios_of_lengths]
    upper_ratio = 1 + sum(ratio - 1 for ratio in all_ratios)
    # what a finite width adds to the cosines; no part of the verdict
    cosine_times_width = mean(numbers["narrow"]["cosine"][:, -1]) * NARROW
    # integrals have no sampling error
    verdicts = [
        decide_below(Estimate(-ratio_of_rows, 0.0), -BIAS_MIN),
        decide_below(Estimate(upper_ratio, 0.0), BIAS_MAX),
    ]
    return Claim(
        published=(
            "Untrained Llama-style models have weak but reproducible preferences for"
            " some words, by seed (SeedPrints)."
        ),
        rule=(
            f"In the stack with SwiGLU, two contexts of random words of"
            f" {SHARED_VOCABULARY:,} agree on the likeliest one more than"
            f" {BIAS_MIN:g} times as often as by chance, from the rows of the output"
            f" matrix, and less than {BIAS_MAX:g} times together with words"
            " that both contexts share."
        ),
        ours=(
            f"Times as often, from the lengths and directions of the rows:"
            f" {ratio_of_rows:.3f}; from words that both contexts share by chance:"
            f" {', '.join(lines)}. The mean cosine of contexts is"
            f" ({cosine_times_width})/n at width {NARROW}."
        ),
        verdict=combine(*verdicts),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Concentration, its amplification, gates, preferences, and biases by seed."""
    return [
        _concentration(numbers),
        _amplified(numbers),
        _gated(numbers),
        _orders(numbers),
        _seed_bias(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean cosines by activation and block."""
    for activation in ACTIVATIONS:
        for length in CONTEXTS:
            label = f"{activation} {length}"
            if label not in numbers:
                continue
            cosines = numbers[label]["cosine"]
            for block, column in zip(SEEN_BLOCKS, cosines.T, strict=True):
                mean_cosine_of_block = mean(column)
                yield {
                    "activation": activation,
                    "tokens": length,
                    "block": block,
                    "cosine": mean_cosine_of_block.value,
                    "error": mean_cosine_of_block.error,
                }


def atlas_rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Cosines of built-in models, and their effect on the logits of the vocabulary."""
    for name in ATLAS:
        label = f"atlas {name}"
        if label not in numbers:
            continue
        arrays = numbers[label]
        model = read_model(name)
        cosine = mean(arrays["cosine"])
        alone = mean(arrays.get("no positions", arrays["cosine"]))
        vocabulary = model.vocabulary or 2
        entry = model.std_embedding if model.tied else model.std_logits
        square = float(arrays["cosine square"].mean())
        std = model.logit_scale * entry * math.sqrt(model.width * square)
        rho = max(cosine.value, 0.0)
        yield {
            "model": name,
            "activation": f"{model.activation}{' gated' if model.gated else ''}",
            "positions": model.positions,
            "cosine": cosine.value,
            "error": cosine.error,
            "cosine_without_positions": alone.value,
            "logit_std": std,
            "preference": preference(rho, vocabulary, std),
            "agreement": agreement(rho, vocabulary) * vocabulary,
        }


def draw(numbers: Numbers) -> Any:
    """Cosines by block; and the chance that two contexts agree, by cosine."""

    figure = new_wide(2.6)
    left, right = figure.subplots(1, 2)
    colours = (BLUE, VERMILLION, GREEN, ORANGE)
    for activation, colour in zip(ACTIVATIONS, colours, strict=True):
        for length, line in ((_longest(numbers), "-"), (0, ":")):
            cosines = numbers[f"{activation} {length}"]["cosine"]
            style = {"color": colour, "ls": line, "marker": MARK_OF[colour], "ms": 3}
            label = activation if length else None
            left.plot(SEEN_BLOCKS, cosines.mean(axis=0), label=label, **style)
    left.set(
        title="Favourite words need an MLP without a gate",
        xscale="log",
        xlabel="block (dotted: without attention)",
        ylabel="cosine of two contexts",
    )
    left.set_xticks(SEEN_BLOCKS, map(str, SEEN_BLOCKS))
    left.minorticks_off()
    left.legend()
    cosines = np.linspace(0, 0.8, 33)
    colours_by_size = width_colours(len(VOCABULARIES))
    for vocabulary, colour in zip(VOCABULARIES, colours_by_size, strict=True):
        chances = [agreement(float(rho), vocabulary) for rho in cosines]
        right.plot(cosines, chances, color=colour, label=f"{vocabulary:,} words")
    right.set(
        title="A common direction makes contexts agree",
        yscale="log",
        xlabel="cosine of two contexts",
        ylabel="probability of one likeliest word",
    )
    right.legend()
    return figure


def draw_atlas(numbers: Numbers) -> Any:
    """Cosines of built-in models, with and without their learned positions."""
    figure = new(2.4)
    axes = figure.subplots()
    rows = list(atlas_rows(numbers))[::-1]  # bars are drawn from below
    heights = np.arange(len(rows))
    cosines = [row["cosine"] for row in rows]
    errors = [4 * row["error"] for row in rows]
    axes.barh(heights, cosines, xerr=errors, color=SKY, label="as built")
    alone = [row["cosine_without_positions"] for row in rows]
    axes.plot(alone, heights, "D", ms=3, color=VERMILLION, label="without positions")
    axes.set_yticks(heights, [row["model"] for row in rows])
    axes.set(xlabel="cosine of two contexts of four words")
    axes.legend()
    figure.suptitle("Positions make most of GPT-2's common direction", size=8)
    return figure


RESULT = Result(
    name="words",
    title="Li et al., Tong et al.: favourite words at initialisation",
    source=(
        "Li, Tong, Wang and Hu, Transformers are born biased (2026); Tong, Wang, Li,"
        " Kawaguchi and Hu, SeedPrints (ICLR 2026)."
    ),
    links=("https://arxiv.org/abs/2602.05927", "https://arxiv.org/abs/2509.26404"),
    setting=(
        f"Pre-norm stacks of {DEPTH} blocks of width {WIDTH} with RMSNorm, {HEADS}"
        " heads, causal attention without positions, all entries of standard deviation"
        f" {STD:g}; contexts of {SHORT} and {LONG} different words; the states of the"
        " last tokens. The law of the networks is exact at this width. Given the"
        " states, untied logits of a word are normal with the states' Gram matrix, and"
        " words are independent, so that vocabularies need no draws. Contexts that"
        " share words are computed at infinite width without scores."
    ),
    quick="fewer draws, one built-in model, contexts up to 64 tokens.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="words",
            caption=(
                "Left: mean cosine of different contexts by block; dotted: perceptrons"
                " alone. Right: the probability that two contexts have the same"
                " likeliest word, by their cosine."
            ),
            draw=draw,
            rows=rows,
        ),
        Picture(
            name="words-models",
            caption=(
                "Mean cosine of different contexts in built-in models, with four"
                " standard errors; and without learned positions and types."
            ),
            draw=draw_atlas,
            rows=atlas_rows,
        ),
    ),
    unread="the papers beyond their abstracts.",
)
