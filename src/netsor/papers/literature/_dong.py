"""Dong et al. 2021: attention alone makes all tokens equal, doubly exponentially in the
depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...language import (
    Scalar,
    Vector,
    Width,
    apply,
    dot,
    gaussian,
    gelu,
    layer_norm,
    mean_dot,
    softmax,
    stack,
    weight,
)
from ...nn import attention
from ...programs._decorator import program
from ...report._mpl_style import BLUE, GREEN, GREY, ORANGE, VERMILLION, new
from ...studies import Arrays
from .._significance import (
    ABSENT,
    combine,
    decide,
    decide_below,
    extrapolate,
)
from ._result import (
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    mean,
    width_of,
    within,
)

N = Width("n")
# BERT-base: its tokens as in the paper, width, hidden units, heads, and the standard
# deviation of all weights.
TOKENS, DIM, HIDDEN, HEADS, STD = 128, 768, 3072, 12, 0.02


def _square(x: Vector) -> Scalar:
    """|x|²/n of one vector, or their mean over several."""
    vectors = x.reshape((x.size, 1))
    return mean_dot(vectors, vectors).mean()


@program
def bert_program(layers: int, skip: bool, mlp: bool) -> Any:
    """Products of the mean and the residuals of BERT's tokens, before and after each
    layer.

    m is the mean of all tokens, residuals r_i are tokens minus m. The outputs are,
    layer by layer, three: |m|²/n, the products ⟨r_i, r_j⟩/n (T, T), and ⟨m, r_i⟩/n
    (T,).
    """
    sigma = STD * math.sqrt(DIM)
    # Word, position and type of token: the last is the same for all.
    x = layer_norm(gaussian(DIM, TOKENS, cov=(2 * np.eye(TOKENS) + 1) / 3), eps=0.0)
    outputs = _mean_and_residuals(x)
    for _ in range(layers):
        y = attention(
            x,
            HEADS,
            DIM // HEADS,
            sigma_q=sigma,
            sigma_k=sigma,
            sigma_v=sigma,
            sigma_o=sigma,
        )
        if skip:
            y = x + y
        x = layer_norm(y, eps=0.0)
        if mlp:
            active = gelu(weight(HIDDEN, DIM, entry_std=STD) @ x)
            x = layer_norm(x + weight(DIM, HIDDEN, entry_std=STD) @ active, eps=0.0)
        outputs += _mean_and_residuals(x)
    return tuple(outputs)


def _mean_and_residuals(x: Vector) -> list[Any]:
    """The three products of one layer, see `bert_program`."""
    m = stack([x.mean()])
    r = x - x.mean()
    return [mean_dot(m, m)[0, 0], mean_dot(r, r), mean_dot(m, r)[0]]


def _grown(score: Array, log: Array) -> Array:
    """expm1(e^(2λ) p)/e^(2λ) for a score p and λ = `log`.

    It is about p where e^(2λ) is tiny, also where that underflows to 0.
    """
    square = np.exp(2 * log)
    exponent = square * score
    is_small = np.abs(exponent) < 1e-8
    quotient = np.expm1(exponent) / np.where(is_small, 1.0, square)
    series = score * (1 + exponent / 2)
    return np.where(is_small, series, quotient)


def _sized(r: Vector) -> tuple[Vector, Scalar]:
    """Vectors r as e^λ u, with u of mean square 1: (u, λ)."""
    square = _square(r)
    unit = apply(_inverse_root, square) * r
    return unit, 0.5 * apply(np.log, square)


def _inverse_root(square: Any) -> Any:
    """1/√p."""
    return 1 / np.sqrt(square)


@program
def pure_program(tokens: int, layers: int) -> Any:
    """log of |residual|/|mean| before and after each layer.

    The layers are attention with one head, without W^O and norm. Residuals soon are too
    small for floating-point numbers, so tokens are x_i = m + e^λ u_i, with u of mean
    square 1, and a layer is written for m, u and λ; see `_pure_layer`.
    """
    x = gaussian(N, tokens)
    m = x.mean()
    u, log = _sized(x - m)
    ratios = [log - 0.5 * apply(np.log, _square(m))]
    for _ in range(layers):
        m, u, log = _pure_layer(m, u, log, tokens)
        ratios.append(log - 0.5 * apply(np.log, _square(m)))
    return tuple(ratios)


def _pure_layer(
    m: Vector, u: Vector, log: Scalar, tokens: int
) -> tuple[Vector, Vector, Scalar]:
    """The mean m, the residuals u and λ = `log` of tokens m + e^λ u_i after a layer.

    ⟨W^Q x_i, W^K m⟩ is the same for all j in Σ_j, so the softmax cancels it. With
    k = W^K u, the scores are e^λ ⟨W^Q m, k_j⟩, which give weights a_j that all tokens
    share, plus e^(2λ) p_ij, p_ij = ⟨W^Q u_i, k_j⟩. Then A_ij = a_j + e^(2λ) c_ij with

        c_ij = a_j (e_ij − ē_i) / (1 + e^(2λ) ē_i),  ē_i = Σ_j a_j e_ij,
        e_ij = expm1(e^(2λ) p_ij)/e^(2λ).

    Outputs are W^V m + e^λ Σ_j A_ij v_j, v = W^V u. Their mean has the mean c̄_j of
    c_ij over i, and their residuals are e^(3λ) Σ_j (c_ij − c̄_j) v_j.
    """
    query = weight(N, N)
    key = weight(N, N)
    value = weight(N, N)
    size = apply(np.exp, log)  # e^λ
    k = key @ u
    v = value @ u
    a = softmax(size * dot(stack([query @ m]), k)[0])
    e = apply(_grown, dot(query @ u, k), log)
    mean_e = (e * a).sum(1).reshape((tokens, 1))
    c = (e - mean_e) * a / (1 + size * size * mean_e)
    mean_c = c.mean(0)
    new_m = value @ m + size * ((a + size * size * mean_c) @ v)
    new_u, log_size = _sized((c - mean_c) @ v)
    return new_m, new_u, 3 * log + log_size


WIDTH, LAYERS = 768, 12  # of BERT-base
MAX_Z = 4.0  # standard deviations of one network, by our law
PURE, PURE_WIDTH = {"tokens": 20, "layers": 6}, 96
PURE_LABELS = (f"width {PURE_WIDTH}", "width ∞")
# ‖res‖/‖X‖ after 0 to 12 layers of BERT-base at initialisation, in the norm √(‖·‖_1
# ‖·‖_∞), one network and the mean over 32 texts: the vertices of the curves in the
# published figure, a vector graphic.
PUBLISHED = {
    "attention": (
        0.61175,
        0.017580,
        6.99e-7,
        1.9e-7,
        1.9e-7,
        1.9e-7,
        1.9e-7,
        1.8e-7,
        1.9e-7,
        1.9e-7,
        1.9e-7,
        1.9e-7,
        1.9e-7,
    ),
    "with skip": (
        0.60717,
        0.56492,
        0.55881,
        0.56515,
        0.56247,
        0.55172,
        0.52903,
        0.50261,
        0.49595,
        0.48743,
        0.47190,
        0.46305,
        0.44889,
    ),
    "transformer": (
        0.59709,
        0.56295,
        0.53506,
        0.56538,
        0.53687,
        0.52921,
        0.49319,
        0.46351,
        0.43929,
        0.41372,
        0.40595,
        0.36451,
        0.34531,
    ),
}
# where the published curve of attention alone becomes flat: float32
FLOAT32_FLOOR = 1.9e-7


def composite(x: Array) -> Array:
    """√(‖X‖_1 ‖X‖_∞) over the last two axes, the norm of the paper: the largest sum of
    a column and the largest sum of a row, of absolute values.
    """
    size = np.abs(x)
    largest_column = size.sum(axis=-2).max(axis=-1)
    largest_row = size.sum(axis=-1).max(axis=-1)
    return np.asarray(np.sqrt(largest_column * largest_row))


def coordinates(
    square: float, gram: Array, cross: Array, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Random residuals (T, 768) and a mean (768,) with given products over the width.

    `gram` (T, T) holds the products of residuals, `cross` (T,) those of the mean with
    them, `square` that of the mean with itself. The law beyond these products is that
    of a uniformly random frame, because LayerNorm treats all directions equally.
    """
    # gram = root @ root.T; residuals add up to 0, so one eigenvalue is 0 up to rounding
    eigenvalues, vectors = np.linalg.eigh(gram)
    nonzero = eigenvalues > 1e-10 * eigenvalues.max()
    root = vectors[:, nonzero] * np.sqrt(eigenvalues[nonzero])
    # A direction of mean square 1 for each column of the root, and one more for the
    # mean; orthogonal to (1, …, 1), as outputs of LayerNorm are.
    normals = generator.standard_normal((WIDTH, nonzero.sum() + 1))
    orthonormal, _ = np.linalg.qr(normals - normals.mean(axis=0))
    frame = math.sqrt(WIDTH) * orthonormal.T
    # the mean: coordinates in the directions of the residuals, and the one beside them
    along = np.linalg.lstsq(root, cross, rcond=None)[0]
    beside = math.sqrt(max(square - along @ along, 0.0))
    residuals = root @ frame[:-1]
    mean = along @ frame[:-1] + beside * frame[-1]
    return residuals, mean


def bert(layers: int, skip: bool, mlp: bool, draws: int, seed: int) -> Arrays:
    """‖res‖/‖X‖ after each layer of BERT-base at initialisation.

    An array (layers + 1, draws).
    """
    program = bert_program(layers, skip, mlp)
    outputs = program.draw(draws=draws, seed=seed, progress=False)
    arrays = [np.asarray(output) for output in outputs]
    generator = np.random.default_rng(seed)
    ratios = np.empty((layers + 1, draws))
    for layer in range(layers + 1):
        # three outputs for each layer, (draws, …)
        squares, grams, crosses = arrays[3 * layer : 3 * layer + 3]
        for draw in range(draws):
            square = float(squares[draw])
            residual, centre = coordinates(
                square, gram=grams[draw], cross=crosses[draw], generator=generator
            )
            ratios[layer, draw] = composite(residual) / composite(residual + centre)
    return {"ratio": ratios}


def pure(width: int | None, tokens: int, layers: int, draws: int, seed: int) -> Arrays:
    """log10 of |residual|/|mean| after each layer of attention alone.

    An array (layers + 1, draws). `width` None is infinite.
    """
    program = pure_program(tokens, layers)
    outputs = program.draw(n=width_of(width), draws=draws, seed=seed, progress=False)
    logs = np.stack([np.asarray(output) for output in outputs])
    return {"log": logs / math.log(10)}


def bound(width: int, tokens: int, layers: int, draws: int, seed: int) -> Arrays:
    """log10 of the theorem's bound over its value at depth 0, for drawn matrices.

    The bound is (4β/√d)^((3^L − 1)/2) ‖res X‖^(3^L), with β the largest
    ‖W^Q W^K^T‖_1 ‖W^V‖ over layers; `log` is an array (layers + 1, draws). `scale` is
    the size of tokens, instead of 1, below which the bound falls with depth at all.
    """
    generator = np.random.default_rng(seed)
    logs = np.empty((layers + 1, draws))
    scales = np.empty(draws)
    for draw in range(draws):
        x = generator.standard_normal((tokens, width))
        start = composite(x - x.mean(axis=0))  # ‖res X‖
        beta = 0.0
        logs[0, draw] = 0.0
        for layer in range(1, layers + 1):
            matrices = generator.standard_normal((3, width, width)) / math.sqrt(width)
            query, key, value = matrices
            norm = np.abs(query @ key.T).sum(axis=0).max()  # ‖W^Q W^K^T‖_1
            beta = max(beta, norm * composite(value))
            power = 3**layer
            per_power = math.log10(4 * beta / math.sqrt(width))
            logs[layer, draw] = (power - 1) * math.log10(start)
            logs[layer, draw] += (power - 1) / 2 * per_power
        scales[draw] = math.sqrt(math.sqrt(width) / (4 * beta)) / start
    return {"log": logs, "scale": scales}


def parts(quick: bool) -> list[Part]:
    """Attention alone, and deeper networks.

    Those with residual connections and whole transformers are run only in full, as they
    are deep.
    """
    shallow = {"layers": 2, "skip": False, "mlp": False, "draws": 12 if quick else 48}
    pure_arguments = {**PURE, "draws": 300 if quick else 3000}
    finite = {"width": PURE_WIDTH, **pure_arguments}
    infinite = {"width": None, **pure_arguments}
    seconds = 3.0 if quick else 30.0
    parts = [
        Part(
            label="attention",
            work=bert,
            arguments=shallow,
            seconds=4.0 if quick else 16.0,
        ),
        Part(label=PURE_LABELS[0], work=pure, arguments=finite, seconds=seconds),
        Part(label=PURE_LABELS[1], work=pure, arguments=infinite, seconds=seconds),
        Part(
            label="bound",
            work=bound,
            arguments={"width": PURE_WIDTH, **PURE, "draws": 100},
            seconds=1.0,
        ),
    ]
    if not quick:
        deep = {"layers": LAYERS, "skip": True, "draws": 16}
        parts.append(
            Part(
                label="with skip",
                work=bert,
                arguments={**deep, "mlp": False},
                seconds=30.0,
            )
        )
        parts.append(
            Part(
                label="transformer",
                work=bert,
                arguments={**deep, "mlp": True},
                seconds=45.0,
            )
        )
    return parts


def _curve(numbers: Numbers, name: str, statement: str) -> Claim:
    """The claim on one curve of the figure, layer by layer in logarithms; `statement`
    is what was published.

    Where float32 rounds, a factor of 2 is allowed. A quick run has no deep curves.
    """
    rule = (
        f"After every layer the published ratio is within {MAX_Z:g} standard deviations"
        " of the law of one network"
    )
    if name == "attention":
        rule += (
            "; after two layers within a factor of 2 of its mean, as float32 rounds at"
            f" {FLOAT32_FLOOR:g}"
        )
    if name not in numbers:
        return Claim(
            published=statement,
            rule=f"{rule}.",
            ours="Not in a quick run.",
            verdict=ABSENT,
        )

    ratios = numbers[name]["ratio"]
    published = PUBLISHED[name][: len(ratios)]
    logs = np.log(ratios)
    deviations = []
    for ratio, log in zip(published, logs, strict=True):
        deviations.append((math.log(ratio) - log.mean()) / log.std(ddof=1))
    is_near = [abs(deviation) < MAX_Z for deviation in deviations]
    if name == "attention":  # after two layers float32 rounds
        is_near[2] = abs(math.log(published[2]) - logs[2].mean()) < math.log(2)
    ours = mean(ratios[-1])
    measured = (
        f"After {len(ratios) - 1} layers published {published[-1]:.3g},"
        f" ours {ours.value:.3g} ± {ours.error:.1g} (standard deviation over networks"
        f" {ratios[-1].std(ddof=1):.1g}); farthest {max(deviations, key=abs):+.1f}"
        " standard deviations."
    )
    return Claim(
        published=statement,
        rule=f"{rule}.",
        ours=measured,
        verdict=decide(all(is_near)),
    )


def _rate(numbers: Numbers) -> Claim:
    """The claim on the cubic rate: that one step of the logarithm is three times the
    step before.
    """
    verdicts = []
    measured = []
    for label in PURE_LABELS:
        logs = numbers[label]["log"]
        steps = np.diff(logs, axis=0)
        power = mean(steps[-1] / steps[-2])
        final = mean(logs[-1])
        verdicts.append(within(3.0, power, share=0.02))
        measured.append(
            f"{label}: power {power.value:.4f} ± {power.error:.0e}, and"
            f" 10^({final.value:.0f} ± {final.error:.1g}) after {PURE['layers']} layers"
        )
    first_means = [f"{log.mean():.2f}" for log in numbers["width ∞"]["log"][:4]]
    return Claim(
        published=(
            "Attention alone loses rank at a cubic rate: the residual after L layers"
            " is of the order of a 3^L-th power."
        ),
        rule=(
            "The last step of log |residual|/|mean| is 3 times the step before, to 2"
            " %, by four standard errors."
        ),
        ours=f"{'; '.join(measured)}. The first layers are slower: the mean of log10 is"
        f" {', '.join(first_means)} after 0 to 3 of them.",
        verdict=combine(*verdicts),
    )


def _theorem(numbers: Numbers) -> Claim:
    """The claim on the theorem's condition, under which its bound falls with depth."""
    bounds = numbers["bound"]
    logs = numbers[PURE_LABELS[0]]["log"]
    bound_growth = mean(bounds["log"][1])
    scale = mean(bounds["scale"])
    growth = mean(logs[1] - logs[0])
    return Claim(
        published=(
            "‖res‖ after L layers is at most (4β/√d)^((3^L − 1)/2) ‖res X‖^(3^L),"
            " which vanishes if ‖res X‖² < √d/(4β)."
        ),
        rule=(
            "That condition holds at a usual initialisation (tokens with mean square"
            f" 1, weights N(0, 1/d), d = {PURE_WIDTH}): the bound after one layer is"
            " below ‖res X‖, by four standard errors."
        ),
        ours=f"After one layer the bound is 10^({bound_growth.value:.2f} ±"
        f" {bound_growth.error:.1g}) times ‖res X‖, and it grows with depth; the"
        f" relative residual itself is 10^({growth.value:.3f} ± {growth.error:.3f}) of"
        " what it was. The bound falls for tokens smaller than"
        f" {scale.value:.4f} ± {scale.error:.0e} of that size, so a usual"
        " initialisation is outside its condition. Tokens collapse there all the same.",
        verdict=extrapolate(decide_below(bound_growth, 0.0)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The curves of BERT at initialisation, the rate, and the bound."""
    curve = "‖res‖/‖X‖ of BERT-base at initialisation, by layer"
    without_both = f"{curve}, without residual connections and perceptrons."
    without_perceptrons = (
        f"{curve}, without perceptrons: residual connections stop the collapse."
    )
    return [
        _curve(numbers, "attention", without_both),
        _curve(numbers, "with skip", without_perceptrons),
        _curve(numbers, "transformer", f"{curve}, the whole transformer."),
        _rate(numbers),
        _theorem(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the figure's table: the curves of BERT by layer with the published ones,
    then those of attention alone and of the bound in log10, which are not published.
    """
    for name, published in PUBLISHED.items():
        if name in numbers:
            for layer, ratios in enumerate(numbers[name]["ratio"]):
                yield _row(
                    f"BERT: {name}", layer, published=published[layer], draws=ratios
                )
    for label in (*PURE_LABELS, "bound"):
        for layer, logs in enumerate(numbers[label]["log"]):
            yield _row(
                f"log10 of attention alone: {label}",
                layer,
                published=math.nan,
                draws=logs,
            )


def _row(curve: str, layer: int, published: float, draws: Array) -> dict[str, Any]:
    """One row of the table, with the mean of the draws and their spread."""
    ours = mean(draws)
    return {
        "curve": curve,
        "layer": layer,
        "published": published,
        "ours": ours.value,
        "error": ours.error,
        "standard_deviation": float(draws.std(ddof=1)),
    }


def draw(numbers: Numbers) -> Any:
    """BERT's curves with the published ones, and attention alone with the bound."""
    deep = [name for name in ("with skip", "transformer") if name in numbers]
    figure = new(4.6 if deep else 2.6)
    panels = figure.subplot_mosaic("ab;cc" if deep else "ab")
    _plot_bert_attention(panels["a"], numbers)
    _plot_attention_alone(panels["b"], numbers)
    if deep:
        for name, colour, mark in zip(deep, (GREEN, BLUE), "s^", strict=False):
            _plot_curve(
                panels["c"], numbers, name, label=name, colour=colour, mark=mark
            )
        panels["c"].set(xlabel="layer of BERT-base", ylabel="‖res‖/‖X‖", ylim=(0, 0.8))
        panels["c"].legend(loc="lower left")
    return figure


def _plot_bert_attention(axes: Any, numbers: Numbers) -> None:
    """BERT without residual connections and perceptrons."""
    _plot_curve(
        axes, numbers, name="attention", label="our law", colour=VERMILLION, mark="o"
    )
    axes.axhline(FLOAT32_FLOOR, color=GREY, lw=0.6, ls=":")
    style = {"color": GREY, "fontsize": 6, "ha": "right", "va": "top"}
    axes.text(LAYERS, FLOAT32_FLOOR / 1.6, "rounding of float32", **style)
    axes.set(xlabel="layer of BERT-base", title="attention alone")
    axes.set(yscale="log", ylabel="‖res‖/‖X‖", ylim=(3e-8, 2))
    axes.legend(loc="center right")


def _plot_attention_alone(axes: Any, numbers: Numbers) -> None:
    """The theorem's layers, and its bound."""
    for label, colour, mark in zip(PURE_LABELS, (ORANGE, BLUE), "so", strict=True):
        means = numbers[label]["log"].mean(axis=1)
        axes.plot(means, marker=mark, ms=2.5, color=colour, label=label)
    bounds = numbers["bound"]["log"][:5].mean(axis=1)
    axes.plot(bounds, "--", color=GREY, lw=1.0, label="the bound")
    axes.set(xlabel="layer", title="the theorem's layers")
    axes.set(yscale="symlog", ylabel="log10 of residual/mean")
    axes.set_xticks(range(PURE["layers"] + 1))
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.6), handlelength=1.2)


def _plot_curve(
    axes: Any, numbers: Numbers, name: str, label: str, *, colour: str, mark: str
) -> None:
    """Our law of one curve of BERT, with 90 % of networks, and the published curve."""
    ratio = numbers[name]["ratio"]
    low, high = np.quantile(ratio, [0.05, 0.95], axis=1)
    axes.fill_between(range(len(ratio)), low, high, color=colour, alpha=0.2, lw=0)
    axes.plot(ratio.mean(axis=1), color=colour, label=label)
    axes.plot(PUBLISHED[name], mark, ms=2.5, color=colour, label="published")


RESULT = Result(
    name="dong",
    title="Dong et al.: attention alone loses rank doubly exponentially",
    source=(
        "Dong, Cordonnier and Loukas, Attention is not all you need: pure attention"
        " loses rank doubly exponentially with depth (ICML 2021), with the vector"
        " graphics of its figure in the public repository."
    ),
    links=(
        "https://arxiv.org/abs/2103.03404",
        "https://github.com/twistedcubic/attention-rank-collapse",
    ),
    setting=(
        "BERT-base at initialisation (d = 768, 12 heads, standard deviations 0.02,"
        " LayerNorm) on 128 tokens, with and without residual connections and"
        " perceptrons; res X is X less its mean over tokens, the norm √(‖·‖_1 ‖·‖_∞)."
        " Their tokens are of 32 texts, whose ids could not be read: ours are 128"
        f" different ones. For the theorem: one head, no norm, {PURE['tokens']}"
        f" independent tokens with mean square 1, weights N(0, 1/d), d = {PURE_WIDTH}"
        " and ∞, written for the mean of the tokens and for their residual by itself,"
        " so that nothing cancels at 10^(−100). The bound is computed with sampled"
        " matrices."
    ),
    unread=(
        "the theorem. Its inequality comes from secondary sources, for one head; some"
        " have a factor γ of the attention weights next to β."
    ),
    quick="the curves with residual connections are left out, others have fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="dong",
            caption=(
                "BERT-base at initialisation, our law (with 90 % of networks) and the"
                " published curves. Right: attention alone, the mean of log10 of"
                " residual over mean, and the theorem's bound on it over its value at"
                " layer 0."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
)
