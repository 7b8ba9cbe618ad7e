"""DeepScaleLM: formulas for the variance and covariance of activations and gradients,
compared with the exact law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ... import language as ns
from ..._mpl_style import BLUE, GREEN, GREY, MARKS, ORANGE, SKY, VERMILLION, new
from ..._program import Program
from ...laws import Estimate
from ...nn import attention, attention_std, mlp
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._result import Array, Claim, Numbers, Part, Picture, Result, average, near, within


def attention_told(
    tokens: int, width: float, score: float, r: float
) -> tuple[float, float]:
    """Variance and covariance of the output of attention, by their formula without
    dropout.

    Inputs have variance 1 and correlation r, `score` is the variance of a score, and
    values have variance 1.
    """
    w = score / width
    own = (1 - r) ** 2 * (tokens - 1) * w + math.exp((1 - r) * score) * (
        4 * (1 - r) ** 2 * w + (1 - r)
    )
    return own / tokens + r, r + (2 * (1 - r) ** 2 * w + (1 - r)) / tokens


def gradient_told(tokens: int, width: int, head_dim: int) -> float:
    """The variance of the gradient by the input for independent gradients of variance 1
    from above, likewise.
    """
    return head_dim / width / tokens


def perceptron_told(r: float) -> float:
    """Their quadratic approximation of the correlation of two outputs of a ReLU
    perceptron.
    """
    return 1 / math.pi + r / 2 + (0.5 - 1 / math.pi) * r**2


def stack_told(tokens: int, width: int, score: float, depth: int) -> Array:
    """Variance and covariance of a pre-norm stream after each block, by their formulas
    one after another.
    """
    v, c = 1.0, 0.0
    found = [(v, c)]
    for _ in range(depth):
        own, pair = attention_told(tokens, width, score, c / v)
        v, c = v + own, c + pair
        v, c = v + 1, c + perceptron_told(c / v)
        found.append((v, c))
    return np.array(found)


def head(tokens: int, width: int, head_dim: int, score: float, r: float) -> Program:
    """Mean square and mean product of two tokens of what one head mixes: with values of
    variance 1, of its output.
    """
    x = _correlated(tokens, width, r)
    q, k = (ns.weight(head_dim, width, std=score**0.25) @ x for _ in range(2))
    return Program(_moments(ns.softmax(ns.dot(q, k)) @ x))


def head_gradient(
    tokens: int, width: int, head_dim: int, score: float, r: float
) -> Program:
    """The same of the gradient by the inputs of one head, for independent normal
    gradients from above.
    """
    x = _correlated(tokens, width, r)
    q, k, v = (
        ns.weight(head_dim, width, std=std) @ x
        for std in (score**0.25, score**0.25, 1.0)
    )
    y = (ns.softmax(ns.dot(q, k)) @ v) * ns.gaussian(head_dim, tokens)
    loss = (
        head_dim * ns.mean_dot(y.sum(0).reshape(1), ns.ones(head_dim).reshape(1))[0, 0]
    )
    # √width · ∂loss/∂x is what `grad` returns
    return Program(_moments(ns.grad(loss, x) / math.sqrt(width)))


def perceptron(r: float) -> Program:
    """The product of two outputs of a ReLU perceptron, over their squares."""
    n = ns.Width("n")
    y = mlp(_correlated(2, n, r), n)
    g = ns.mean_dot(y, y)
    return Program(g[0, 1] / g[0, 0])


def stack(tokens: int, heads: int, head_dim: int, score: float, depth: int) -> Program:
    """Mean square and mean product of two tokens of a pre-norm stream, before the first
    block and after each.
    """
    width, sigma = heads * head_dim, score**0.25
    x = ns.gaussian(width, tokens)
    found = [_moments(x)]
    for _ in range(depth):
        x = x + attention(
            ns.layer_norm(x), heads, head_dim=head_dim, sigma_q=sigma, sigma_k=sigma
        )
        x = x + mlp(ns.layer_norm(x), 4 * width, sigma_out=math.sqrt(2))
        found.append(_moments(x))
    return Program(ns.stack(found))


def _correlated(tokens: int, width: ns.Width | int, r: float) -> ns.Vector:
    return ns.gaussian(width, tokens, cov=(1 - r) * np.eye(tokens) + r)


def _moments(x: ns.Vector) -> ns.Scalar:
    """The mean square of a token, and the mean product of two."""
    gram = ns.mean_dot(x, x)
    return ns.stack([ns.apply(_square, gram, axes=2), ns.apply(_product, gram, axes=2)])


def _square(gram: Array) -> Array:
    return np.asarray(np.trace(gram, axis1=-2, axis2=-1) / gram.shape[-1])


def _product(gram: Array) -> Array:
    s = gram.shape[-1]
    return np.asarray((gram.sum((-2, -1)) - s * _square(gram)) / (s * (s - 1)))


# variances of scores in their simulation
SCORES = tuple(sigma**4 for sigma in (0.1, 0.245, 0.6))
CORRELATIONS = (0.0, 1 / 3, 2 / 3)
WIDTHS = (100, 316, 1000)
# the fewest tokens of their simulation, and one of its head dimensions
TOKENS, HEAD = 300, 64
LARGER = (*SCORES, 0.25, 0.5, 1.0, 2.0, 4.0)
QUICK_DEPTHS = (4, 16, 64, 300, 1000)
BACKWARD = (*SCORES, 0.4, 1.0)
# the errors that they publish are below this at the 99th percentile
MAX_RELATIVE_ERROR = 0.1
# the 99th percentile of |actual − predicted|/actual that they publish for the gradient
MAX_GRADIENT_ERROR = 0.445
DEPTH, HEADS, LENGTH = 10, 4, 48
# correlations of inputs of a perceptron
PAIRS = tuple((k + 0.5) / 20 for k in range(20))


def forward(width: int, r: float, scores: list[float], draws: int, seed: int) -> Arrays:
    """Variance and covariance of one head's output, for each draw: (scores, draws,
    2).
    """
    return {
        "moments": np.stack(
            [
                _drawn(head(TOKENS, width, HEAD, score, r), draws, seed)
                for score in scores
            ]
        )
    }


def backward(width: int, scores: list[float], draws: int, seed: int) -> Arrays:
    """The same of the gradient by its inputs, which are independent."""
    return {
        "moments": np.stack(
            [
                _drawn(head_gradient(TOKENS, width, HEAD, score, 0.0), draws, seed)
                for score in scores
            ]
        )
    }


def limits(tokens: list[int], scores: list[float], seed: int) -> Arrays:
    """The variance for independent inputs of infinite width, exactly: (tokens, scores),
    and its error.
    """
    found = [
        [attention_std(s, HEAD, scale=math.sqrt(v / HEAD)) ** 2 for v in scores]
        for s in tokens
    ]
    return {
        "value": np.array([[e.value for e in row] for row in found]),
        "error": np.array([[e.error for e in row] for row in found]),
    }


def perceptrons(correlations: list[float], seed: int) -> Arrays:
    """The correlation of two outputs of a perceptron at infinite width: it is not
    random.
    """
    found = [
        float(np.asarray(perceptron(r).draw(n=math.inf, draws=1, progress=False))[0])
        for r in correlations
    ]
    return {"value": np.array(found)}


def stacks(score: float, draws: int, seed: int) -> Arrays:
    """Variance and covariance of the stream by block, for each draw: (draws, blocks,
    2).
    """
    return {"moments": _drawn(stack(LENGTH, HEADS, HEAD, score, DEPTH), draws, seed)}


def _drawn(net: Any, draws: int, seed: int) -> Array:
    return np.asarray(
        net.draw(draws=draws, seed=seed, workers=1, progress=False), dtype=np.float64
    )


def parts(quick: bool) -> list[Part]:
    """One head over their grid and beyond; its gradient; perceptrons; a stack."""
    made = []
    for width, r in itertools.product(WIDTHS, (0.0,) if quick else CORRELATIONS):
        given: dict[str, Any] = {
            "width": width,
            "r": r,
            "scores": list(SCORES),
            "draws": 100 if quick else 400,
        }
        made.append(
            Part(f"forward {width} {r:.3f}", forward, given, 4.0 if quick else 15.0)
        )
    draws, seconds = (20, 10.0) if quick else (80, 40.0)
    made.append(
        Part(
            "backward",
            backward,
            {"width": 316, "scores": list(BACKWARD), "draws": draws},
            seconds,
        )
    )
    made.append(
        Part(
            "limits",
            limits,
            {"tokens": list(QUICK_DEPTHS), "scores": list(LARGER)},
            2.0,
        )
    )
    made.append(Part("perceptrons", perceptrons, {"correlations": list(PAIRS)}, 1.0))
    for score in (1.0, 4.0):
        draws, seconds = (16, 2.0) if quick else (100, 10.0)
        made.append(
            Part(f"stack {score:g}", stacks, {"score": score, "draws": draws}, seconds)
        )
    return made


def mean(draws: Array) -> Estimate:
    """The mean with its standard error, wider for few draws."""
    value, error = average(draws)
    return Estimate(float(value), float(error))


def ratio(told: float, ours: Estimate) -> Estimate:
    """The published number divided by ours."""
    return Estimate(told / ours.value, told * ours.error / ours.value**2)


Points = Mapping[tuple[int, float, float], tuple[Estimate, Estimate]]


def _forward(numbers: Numbers) -> Points:
    """Published over ours, (variance, covariance), by (width, correlation, variance of
    scores).
    """
    found = {}
    for label, arrays in numbers.items():
        if not label.startswith("forward"):
            continue
        width, r = (
            int(label.split()[1]),
            next(r for r in CORRELATIONS if f"{r:.3f}" == label.split()[2]),
        )
        for score, draws in zip(SCORES, arrays["moments"], strict=True):
            told = attention_told(TOKENS, width, score, r)
            found[width, r, score] = (
                ratio(told[0], mean(draws[:, 0])),
                ratio(told[1], mean(draws[:, 1])),
            )
    return found


def _grid(points: Points, which: int, name: str) -> Claim:
    ratios = {place: pair[which] for place, pair in points.items()}
    worst = max(ratios, key=lambda place: abs(ratios[place].value - 1))
    width, r, score = worst
    return Claim(
        f"The formula for the {name} of attention's output holds over their grid.",
        f"It is within {MAX_RELATIVE_ERROR:.0%} of our law at all its points: T ="
        f" {TOKENS}, d = {HEAD}, input widths {', '.join(map(str, WIDTHS))}, scores of"
        " standard deviation up to 0.36.",
        f"Published over ours, farthest off: {ratios[worst]} (width {width},"
        f" correlation {r:.2f}, variance of scores {score:.2g}), of {len(ratios)}"
        " points.",
        combine(*(near(e, 1.0, MAX_RELATIVE_ERROR) for e in ratios.values())),
    )


def _beyond(numbers: Numbers, tokens: int, score: float, words: str) -> Claim:
    row, column = QUICK_DEPTHS.index(tokens), LARGER.index(score)
    value = Estimate(
        float(numbers["limits"]["value"][row, column]),
        float(numbers["limits"]["error"][row, column]),
    )
    told = attention_told(tokens, math.inf, score, 0.0)[0]
    return Claim(
        f"The formula for the variance of attention's output, {words}.",
        f"It is within {MAX_RELATIVE_ERROR:.0%} of the exact variance of {tokens}"
        f" independent tokens, scores of variance {score:g}.",
        f"Published {told:.4g}, exact {value.value:.4g} ± {value.error:.0e}:"
        f" {told / value.value:.2f} times.",
        extrapolate(within(told, value, MAX_RELATIVE_ERROR)),
    )


def _gradients(numbers: Numbers) -> list[Estimate]:
    """Published over ours, by variance of scores."""
    told = gradient_told(TOKENS, 316, HEAD)
    return [ratio(told, mean(draws[:, 0])) for draws in numbers["backward"]["moments"]]


def _backward(numbers: Numbers, score: float, words: str) -> Claim:
    found = _gradients(numbers)[BACKWARD.index(score)]
    share = (
        numbers["limits"]["value"][QUICK_DEPTHS.index(TOKENS), LARGER.index(score)]
        * TOKENS
    )
    verdict = near(found, 1.0, MAX_GRADIENT_ERROR)
    return Claim(
        f"The formula for the variance of the gradient by attention's input, {words}.",
        f"It is within {MAX_GRADIENT_ERROR:.1%} of our law, the 99th percentile of the"
        f" errors that they publish (T = {TOKENS}, d = {HEAD}, width 316, scores of"
        f" variance {score:.2g}).",
        f"Published over ours: {found}. The formula has the path through values alone,"
        f" and flat attention: with the exact weights that path is {share:.2f} times"
        f" it, the whole gradient {1 / found.value:.2f} times.",
        verdict if score in SCORES else extrapolate(verdict),
    )


def _perceptrons(numbers: Numbers) -> Claim:
    off = np.abs(
        np.array([perceptron_told(r) for r in PAIRS]) - numbers["perceptrons"]["value"]
    )
    at = int(np.argmax(off))
    return Claim(
        "The correlation of outputs of a ReLU perceptron is 1/π + r/2 + (1/2 − 1/π) r²,"
        " approximately.",
        "It is within 0.01 of our law at infinite width for r = 0.025, 0.075, …,"
        " 0.975.",
        f"Farthest off by {off[at]:.4f}, at r = {PAIRS[at]:g}.",
        decide_below(Estimate(float(off[at]), 0.0), 0.01),
    )


def correlations(moments: Array) -> tuple[Array, Array]:
    """The mean product over the mean square by block, with its standard error (of a
    ratio of means).
    """
    square, product = moments[..., 0].mean(0), moments[..., 1].mean(0)
    rest = moments[..., 1] - product / square * moments[..., 0]
    return product / square, average(rest)[1] / square


def _stack(numbers: Numbers, score: float) -> Claim:
    moments = numbers[f"stack {score:g}"]["moments"]
    told = stack_told(LENGTH, HEADS * HEAD, score, DEPTH)
    pairs, error = correlations(moments)
    variance = mean(moments[:, -1, 0])
    off = np.abs(told[:, 1] / told[:, 0] - pairs)
    at = int(np.argmax(off))
    return Claim(
        "Block after block, the formulas give the moments of a pre-norm stream, at"
        f" scores of variance {score:g}.",
        f"After {DEPTH} blocks the variance is within {MAX_RELATIVE_ERROR:.0%} of our"
        f" law, and the correlation within 0.05 in all of them (T = {LENGTH}, width"
        f" {HEADS * HEAD}, {HEADS} heads).",
        f"Variance: published {told[-1, 0]:.2f}, ours {variance}. Correlation, farthest"
        f" off after block {at}: published {told[at, 1] / told[at, 0]:.3f}, ours"
        f" {Estimate(float(pairs[at]), float(error[at]))}.",
        extrapolate(
            combine(
                within(float(told[-1, 0]), variance, MAX_RELATIVE_ERROR),
                *(
                    decide_below(Estimate(float(o), float(e)), 0.05)
                    for o, e in zip(off, error, strict=True)
                ),
            )
        ),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Forward over their grid and beyond it, backward, perceptrons, and blocks in a
    row.
    """
    points = _forward(numbers)
    return [
        _grid(points, 0, "variance"),
        _grid(points, 1, "covariance of two tokens"),
        _beyond(
            numbers, TOKENS, 1.0, "at scores of variance 1, as Xavier's rule makes them"
        ),
        _beyond(numbers, TOKENS, 4.0, "at large scores"),
        _beyond(numbers, 4, 1.0, "at few tokens"),
        _backward(numbers, SCORES[-1], "at the largest scores of their grid"),
        _backward(numbers, 1.0, "at scores of variance 1"),
        _perceptrons(numbers),
        _stack(numbers, 1.0),
        _stack(numbers, 4.0),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The variance of one head by tokens and variance of scores, and its gradient."""
    for (row, tokens), (column, score) in itertools.product(
        enumerate(QUICK_DEPTHS), enumerate(LARGER)
    ):
        value, error = (
            float(numbers["limits"][name][row, column]) for name in ("value", "error")
        )
        told = attention_told(tokens, math.inf, score, 0.0)[0]
        yield {
            "quantity": "output",
            "tokens": tokens,
            "scores": score,
            "published/ours": told / value,
            "error": told * error / value**2,
        }
    for score, found in zip(BACKWARD, _gradients(numbers), strict=True):
        yield {
            "quantity": "gradient",
            "tokens": TOKENS,
            "scores": score,
            "published/ours": found.value,
            "error": found.error,
        }


def draw(numbers: Numbers) -> Any:
    """Published over ours, against the variance of scores."""
    figure = new(2.9)
    axes = figure.subplots()
    axes.axhspan(
        1 - MAX_RELATIVE_ERROR, 1 + MAX_RELATIVE_ERROR, color=GREY, alpha=0.2, lw=0
    )
    axes.axvspan(7e-5, SCORES[-1], color=GREY, alpha=0.1, lw=0)
    for (row, tokens), colour in zip(
        enumerate(QUICK_DEPTHS), (VERMILLION, ORANGE, GREEN, SKY, BLUE), strict=True
    ):
        style = {"color": colour, "marker": MARKS[row + 2], "ms": 3}
        told = [attention_told(tokens, math.inf, score, 0.0)[0] for score in LARGER]
        axes.plot(
            LARGER,
            told / numbers["limits"]["value"][row],
            **style,
            label=f"output, T = {tokens}",
        )
    found = _gradients(numbers)
    axes.errorbar(
        BACKWARD,
        [e.value for e in found],
        [e.error for e in found],
        color="black",
        fmt="s--",
        ms=3,
        capsize=2,
        lw=1.0,
        label=f"gradient, T = {TOKENS}",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="variance of scores",
        ylabel="published / ours",
        xlim=(7e-5, 4.5),
    )
    axes.set_yticks(
        [0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
    )
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.0)
    return figure


RESULT = Result(
    name="deepscale",
    title=(
        "DeepScaleLM: variances and covariances through attention, perceptrons and"
        " blocks"
    ),
    source=(
        "Kedia et al., Transformers Get Stable: An End-to-End Signal Propagation Theory"
        " for Language Models (ICML 2024), with public simulations of its formulas."
    ),
    links=(
        "https://arxiv.org/abs/2403.09635",
        "https://github.com/akhilkedia/TranformersGetStable",
    ),
    setting=(
        "Their simulation of one head: normal inputs of variance 1 and correlation 0,"
        " 1/3, 2/3 between tokens, input widths 100 to 1000, 300 tokens or more,"
        " weights of queries and keys of 0.1 to 0.6 over the root of the fan-in, so"
        " that scores have variances of 1e-4 to 0.13. They publish errors of 1.4, 4.1"
        " and 7.8 % (median, 90th and 99th percentile) for the variance, and of 2.2,"
        " 13.3 and 44.5 % for that of the gradient. Ours is at finite input width by"
        f" draws, T = {TOKENS} and d = {HEAD} throughout, and beyond that grid exact at"
        " infinite width: larger scores, fewer tokens and blocks in a row are outside"
        " the range that they state. Left out: dropout, 547 and 1000 tokens, other"
        " head dimensions, correlated gradients from above."
    ),
    unread=(
        "the formula for whole blocks. The formulas judged here come from the public"
        " simulation; blocks are these formulas in a row."
    ),
    quick="correlation 0 alone, and a quarter of the draws or fewer.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "deepscale",
            "Published variance over the exact one, one head, against the variance of"
            " scores; grey: within 10 %, and the scores of their own grid.",
            draw,
            rows,
        ),
    ),
)
