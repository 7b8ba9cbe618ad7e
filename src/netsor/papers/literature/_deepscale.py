"""DeepScaleLM: formulas for variances and covariances of activations and gradients.

They are compared with the exact law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...nn import attention, attention_std, mlp
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREEN, GREY, MARKS, ORANGE, SKY, VERMILLION, new
from ...studies import Arrays
from .._significance import combine, decide_below, extrapolate
from ._result import (
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    average,
    estimates,
    near,
    within,
)


class Moments(NamedTuple):
    """The variance of a token, and the covariance of two."""

    variance: float
    covariance: float


def attention_formula(tokens: int, width: float, score: float, r: float) -> Moments:
    """Moments of the output of attention, by their formula without dropout.

    Inputs have variance 1 and correlation r, `score` is the variance of a score, and
    values have variance 1.
    """
    w = score / width
    # of a token with itself, and with the tokens - 1 others
    self_term = math.exp((1 - r) * score) * (4 * (1 - r) ** 2 * w + (1 - r))
    other_term = (1 - r) ** 2 * (tokens - 1) * w
    variance = (other_term + self_term) / tokens + r
    covariance = r + (2 * (1 - r) ** 2 * w + (1 - r)) / tokens
    return Moments(variance, covariance)


def gradient_formula(tokens: int, width: int, head_dim: int) -> float:
    """Their variance of the gradient by attention's input.

    Gradients from above are independent and have variance 1.
    """
    return head_dim / width / tokens


def perceptron_formula(r: float) -> float:
    """Their quadratic approximation of the correlation of outputs of a ReLU perceptron.

    r is the correlation of its two inputs.
    """
    return 1 / math.pi + r / 2 + (0.5 - 1 / math.pi) * r**2


def stack_formula(tokens: int, width: int, score: float, depth: int) -> Array:
    """Moments of a pre-norm stream before the first block and after each, by their
    formulas in a row.

    An array (depth + 1, 2): the variance of a token, and the covariance of two. Each
    branch sees normalised tokens, so it depends on the correlation alone. Its output is
    independent of the stream, so variances and covariances add.
    """
    variance, covariance = 1.0, 0.0
    moments = [Moments(variance, covariance)]
    for _ in range(depth):
        attended = attention_formula(tokens, width, score, r=covariance / variance)
        variance += attended.variance
        covariance += attended.covariance
        correlation = covariance / variance
        # the perceptron's outputs have variance 1: their covariance is the correlation
        variance += 1
        covariance += perceptron_formula(correlation)
        moments.append(Moments(variance, covariance))
    return np.array(moments)


def head(tokens: int, width: int, head_dim: int, score: float, r: float) -> Program:
    """Mean square and mean product of two tokens of the output of one head.

    Inputs have variance 1 and correlation r, `score` is the variance of a score, and
    the values are the inputs.
    """
    x = _correlated(tokens, width, r)
    q = ns.weight(head_dim, width, std=score**0.25) @ x
    k = ns.weight(head_dim, width, std=score**0.25) @ x
    return Program(_moments(ns.softmax(ns.dot(q, k)) @ x))


def head_gradient(
    tokens: int, width: int, head_dim: int, score: float, r: float
) -> Program:
    """The same of the gradient by the inputs of one head.

    Gradients from above are independent and normal.
    """
    x = _correlated(tokens, width, r)
    q = ns.weight(head_dim, width, std=score**0.25) @ x
    k = ns.weight(head_dim, width, std=score**0.25) @ x
    v = ns.weight(head_dim, width, std=1.0) @ x
    gradient_from_above = ns.gaussian(head_dim, tokens)
    y = (ns.softmax(ns.dot(q, k)) @ v) * gradient_from_above
    # the loss is the sum of all entries of y
    total = y.sum(0).reshape(1)
    ones = ns.ones(head_dim).reshape(1)
    loss = head_dim * ns.mean_dot(total, ones)[0, 0]
    # √width · ∂loss/∂x is what `grad` returns
    return Program(_moments(ns.grad(loss, x) / math.sqrt(width)))


def perceptron(r: float) -> Program:
    """The product of two outputs of a ReLU perceptron, over their squares."""
    n = ns.Width("n")
    y = mlp(_correlated(2, n, r), n)
    g = ns.mean_dot(y, y)
    return Program(g[0, 1] / g[0, 0])


def stack(tokens: int, heads: int, head_dim: int, score: float, depth: int) -> Program:
    """Mean square and mean product of two tokens of a pre-norm stream.

    They are taken before the first block and after each.
    """
    width = heads * head_dim
    sigma = score**0.25
    x = ns.gaussian(width, tokens)
    moments = [_moments(x)]
    for _ in range(depth):
        y = ns.layer_norm(x)
        x = x + attention(y, heads, head_dim=head_dim, sigma_q=sigma, sigma_k=sigma)
        x = x + mlp(ns.layer_norm(x), 4 * width, sigma_out=math.sqrt(2))
        moments.append(_moments(x))
    return Program(ns.stack(moments))


def _correlated(tokens: int, width: ns.Width | int, r: float) -> ns.Vector:
    """Normal tokens with entries of variance 1, and of correlation r between tokens."""
    return ns.gaussian(width, tokens, cov=(1 - r) * np.eye(tokens) + r)


def _moments(x: ns.Vector) -> ns.Scalar:
    """The mean square of a token, and the mean product of two different ones: (2,)."""
    gram = ns.mean_dot(x, x)
    return ns.stack([ns.apply(_square, gram, axes=2), ns.apply(_product, gram, axes=2)])


def _square(gram: Array) -> Array:
    """The mean of the diagonals of Gram matrices (…, T, T)."""
    return np.asarray(np.trace(gram, axis1=-2, axis2=-1) / gram.shape[-1])


def _product(gram: Array) -> Array:
    """The mean of the entries off the diagonals of Gram matrices (…, T, T)."""
    tokens = gram.shape[-1]
    off_diagonal = gram.sum((-2, -1)) - tokens * _square(gram)
    return np.asarray(off_diagonal / (tokens * (tokens - 1)))


# Variances of scores in their simulation.
SCORES = tuple(sigma**4 for sigma in (0.1, 0.245, 0.6))
CORRELATIONS = (0.0, 1 / 3, 2 / 3)
WIDTHS = (100, 316, 1000)
# The fewest tokens of their simulation, and one of its head dimensions.
TOKENS, HEAD = 300, 64
LARGER = (*SCORES, 0.25, 0.5, 1.0, 2.0, 4.0)
LIMIT_LENGTHS = (4, 16, 64, 300, 1000)  # tokens of exact limits at infinite width
BACKWARD = (*SCORES, 0.4, 1.0)
BACKWARD_WIDTH = 316
# The errors that they publish are below this at the 99th percentile.
MAX_RELATIVE_ERROR = 0.1
# The 99th percentile of |actual − predicted|/actual that they publish for gradients.
MAX_GRADIENT_ERROR = 0.445
DEPTH, HEADS, LENGTH = 10, 4, 48  # of the stack of blocks
# correlations of a perceptron's inputs
PAIRS = tuple((k + 0.5) / 20 for k in range(20))


def forward(width: int, r: float, scores: list[float], draws: int, seed: int) -> Arrays:
    """Moments of one head's output for each draw, an array (scores, draws, 2)."""
    moments = []
    for score in scores:
        moments.append(
            _drawn(head(TOKENS, width, head_dim=HEAD, score=score, r=r), draws, seed)
        )
    return {"moments": np.stack(moments)}


def backward(width: int, scores: list[float], draws: int, seed: int) -> Arrays:
    """Moments of the gradient by one head's inputs for each draw, (scores, draws, 2).

    The inputs are independent.
    """
    moments = []
    for score in scores:
        net = head_gradient(TOKENS, width, head_dim=HEAD, score=score, r=0.0)
        moments.append(_drawn(net, draws, seed))
    return {"moments": np.stack(moments)}


def limits(tokens: list[int], scores: list[float], seed: int) -> Arrays:
    """The exact variance of one head's output, with its error: arrays (tokens, scores).

    Inputs are independent and of infinite width, so `seed` is not used.
    """
    values = []
    errors = []
    for s in tokens:
        variances = []
        for score in scores:
            std = attention_std(s, HEAD, scale=math.sqrt(score / HEAD))
            variances.append(std**2)
        values.append([variance.value for variance in variances])
        errors.append([variance.error for variance in variances])
    return {"value": np.array(values), "error": np.array(errors)}


def perceptrons(correlations: list[float], seed: int) -> Arrays:
    """The correlation of two outputs of a perceptron at infinite width, an array.

    `correlations` are those of its two inputs. It is not random, so one draw is exact.
    """
    values = []
    for r in correlations:
        draws = perceptron(r).draw(n=math.inf, draws=1, progress=False)
        values.append(float(np.asarray(draws)[0]))
    return {"value": np.array(values)}


def stacks(score: float, draws: int, seed: int) -> Arrays:
    """Moments of the stream by block for each draw, an array (draws, blocks, 2)."""
    return {
        "moments": _drawn(
            stack(LENGTH, HEADS, head_dim=HEAD, score=score, depth=DEPTH), draws, seed
        )
    }


def _drawn(net: Program, draws: int, seed: int) -> Array:
    """Draws of a program with one output, (draws, …)."""
    moments = net.draw(draws=draws, seed=seed, workers=1, progress=False)
    return np.asarray(moments, dtype=np.float64)


def parts(quick: bool) -> list[Part]:
    """One head over their grid and beyond; its gradient; perceptrons; a stack."""
    parts = []
    correlations = (0.0,) if quick else CORRELATIONS
    for width, r in itertools.product(WIDTHS, correlations):
        arguments: dict[str, Any] = {
            "width": width,
            "r": r,
            "scores": list(SCORES),
            "draws": 100 if quick else 400,
        }
        seconds = 4.0 if quick else 15.0
        parts.append(
            Part(
                label=_forward_label(width, r),
                work=forward,
                arguments=arguments,
                seconds=seconds,
            )
        )

    arguments = {
        "width": BACKWARD_WIDTH,
        "scores": list(BACKWARD),
        "draws": 20 if quick else 80,
    }
    parts.append(
        Part(
            label="backward",
            work=backward,
            arguments=arguments,
            seconds=10.0 if quick else 40.0,
        )
    )
    arguments = {"tokens": list(LIMIT_LENGTHS), "scores": list(LARGER)}
    parts.append(Part(label="limits", work=limits, arguments=arguments, seconds=2.0))
    parts.append(
        Part(
            label="perceptrons",
            work=perceptrons,
            arguments={"correlations": list(PAIRS)},
            seconds=1.0,
        )
    )
    for score in (1.0, 4.0):
        arguments = {"score": score, "draws": 16 if quick else 100}
        seconds = 2.0 if quick else 10.0
        parts.append(
            Part(
                label=f"stack {score:g}",
                work=stacks,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _forward_label(width: int, r: float) -> str:
    """The label of a forward pass at one width and ratio."""
    return f"forward {width} {r:.3f}"


def mean(draws: Array) -> Estimate:
    """The mean with its standard error, wider for few draws."""
    value, error = average(draws)
    return Estimate(float(value), float(error))


def ratio(published: float, ours: Estimate) -> Estimate:
    """The published number divided by ours."""
    return Estimate(published / ours.value, published * ours.error / ours.value**2)


class _Point(NamedTuple):
    """Published over ours, at one point of their grid."""

    width: int
    correlation: float
    score: float  # variance of scores
    variance: Estimate
    covariance: Estimate


def _forward(numbers: Numbers) -> list[_Point]:
    """Published over ours, at the points of their grid that were run."""
    points = []
    for width, r in itertools.product(WIDTHS, CORRELATIONS):
        arrays = numbers.get(_forward_label(width, r))
        if arrays is None:
            continue
        for score, draws in zip(SCORES, arrays["moments"], strict=True):
            formula = attention_formula(TOKENS, width, score, r)
            points.append(
                _Point(
                    width=width,
                    correlation=r,
                    score=score,
                    variance=ratio(formula.variance, mean(draws[:, 0])),
                    covariance=ratio(formula.covariance, mean(draws[:, 1])),
                )
            )
    return points


def _grid(points: list[_Point], quantity: str, words: str) -> Claim:
    """The claim on the formula for the variance or the covariance over their grid.

    `quantity` is the field of the points, `words` its name in the text.
    """
    ratios: list[Estimate] = [getattr(point, quantity) for point in points]
    distances = [abs(ratio.value - 1) for ratio in ratios]
    worst = distances.index(max(distances))
    point = points[worst]
    return Claim(
        published=(
            f"The formula for the {words} of attention's output holds over their grid."
        ),
        rule=f"It is within {percent(MAX_RELATIVE_ERROR)} of our law at all its points:"
        f" T = {TOKENS}, d = {HEAD}, input widths {', '.join(map(str, WIDTHS))}, scores"
        " of standard deviation up to 0.36.",
        ours=f"Published over ours, farthest off: {ratios[worst]} (width {point.width},"
        f" correlation {point.correlation:.2f}, variance of scores {point.score:.2g}),"
        f" of {len(ratios)} points.",
        verdict=combine(*(near(ratio, 1.0, MAX_RELATIVE_ERROR) for ratio in ratios)),
    )


def _limit(numbers: Numbers, tokens: int, score: float) -> Estimate:
    """The exact variance of a head's output at infinite width, of one of the computed
    numbers of tokens and variances of scores.
    """
    position = LIMIT_LENGTHS.index(tokens), LARGER.index(score)
    arrays = numbers["limits"]
    return Estimate(float(arrays["value"][position]), float(arrays["error"][position]))


def _beyond(numbers: Numbers, tokens: int, score: float, words: str) -> Claim:
    """The claim on the formula for the variance beyond their grid, at infinite width;
    `words` says where.
    """
    exact = _limit(numbers, tokens, score)
    published = attention_formula(tokens, width=math.inf, score=score, r=0.0).variance
    return Claim(
        published=f"The formula for the variance of attention's output, {words}.",
        rule=f"It is within {percent(MAX_RELATIVE_ERROR)} of the exact variance of"
        f" {tokens} independent tokens, scores of variance {score:g}.",
        ours=f"Published {published:.4g}, exact {exact.value:.4g} ± {exact.error:.0e}:"
        f" {published / exact.value:.2f} times.",
        verdict=extrapolate(within(published, exact, MAX_RELATIVE_ERROR)),
    )


def _gradient_ratios(numbers: Numbers) -> list[Estimate]:
    """The published variance of the gradient over ours, for each variance of scores in
    BACKWARD.
    """
    published = gradient_formula(TOKENS, BACKWARD_WIDTH, HEAD)
    ratios = []
    for moments in numbers["backward"]["moments"]:  # (draws, 2), as in `_moments`
        mean_squares = moments[:, 0]
        ratios.append(ratio(published, mean(mean_squares)))
    return ratios


def _backward(numbers: Numbers, score: float, words: str) -> Claim:
    """The claim on the formula for the variance of the gradient, at one variance of
    scores; `words` says where.
    """
    gradient_ratio = _gradient_ratios(numbers)[BACKWARD.index(score)]
    through_values = _limit(numbers, TOKENS, score).value * TOKENS
    verdict = near(gradient_ratio, 1.0, MAX_GRADIENT_ERROR)
    return Claim(
        published=(
            "The formula for the variance of the gradient by attention's input,"
            f" {words}."
        ),
        rule=(
            f"It is within {percent(MAX_GRADIENT_ERROR, 1)} of our law, the 99th"
            f" percentile of the errors that they publish (T = {TOKENS}, d = {HEAD},"
            f" width {BACKWARD_WIDTH}, scores of variance {score:.2g})."
        ),
        ours=f"Published over ours: {gradient_ratio}. The formula has the path through"
        " values alone, and flat attention: with the exact weights that path is"
        f" {through_values:.2f} times it, the whole gradient"
        f" {1 / gradient_ratio.value:.2f} times.",
        verdict=extrapolate(verdict, stated=score in SCORES),
    )


def _perceptrons(numbers: Numbers) -> Claim:
    """The claim on the formula for a ReLU perceptron."""
    published = np.array([perceptron_formula(r) for r in PAIRS])
    distance = np.abs(published - numbers["perceptrons"]["value"])
    worst = int(np.argmax(distance))
    largest = float(distance[worst])
    return Claim(
        published=(
            "The correlation of outputs of a ReLU perceptron is 1/π + r/2 + (1/2 −"
            " 1/π) r², approximately."
        ),
        rule="It is within 0.01 of our law at infinite width for r = 0.025, 0.075, …,"
        " 0.975.",
        ours=f"Farthest off by {largest:.4f}, at r = {PAIRS[worst]:g}.",
        verdict=decide_below(Estimate(largest, 0.0), 0.01),
    )


def correlations(moments: Array) -> tuple[Array, Array]:
    """The mean product over the mean square by block, (blocks,), and its standard
    error.

    `moments` is an array (draws, blocks, 2).
    """
    squares = moments[..., 0]
    products = moments[..., 1]
    ratio = products.mean(0) / squares.mean(0)
    # to first order, the error of a ratio of means is that of the mean of these
    residuals = products - ratio * squares
    _, error = average(residuals)
    return ratio, error / squares.mean(0)


def _stack(numbers: Numbers, score: float) -> Claim:
    """The claim on the formulas in a row, against a stack of blocks."""
    moments = numbers[f"stack {score:g}"]["moments"]
    published = stack_formula(LENGTH, width=HEADS * HEAD, score=score, depth=DEPTH)
    published_variance = float(published[-1, 0])
    published_correlation = published[:, 1] / published[:, 0]

    variance = mean(moments[:, -1, 0])
    correlation, error = correlations(moments)
    distance = np.abs(published_correlation - correlation)
    worst = int(np.argmax(distance))
    verdicts = [within(published_variance, variance, MAX_RELATIVE_ERROR)]
    for estimate in estimates(distance, error):  # of each block
        verdicts.append(decide_below(estimate, 0.05))
    return Claim(
        published=(
            "Block after block, the formulas give the moments of a pre-norm stream, at"
            f" scores of variance {score:g}."
        ),
        rule=(
            f"After {DEPTH} blocks the variance is within {percent(MAX_RELATIVE_ERROR)}"
            f" of our law, and the correlation within 0.05 in all of them (T ="
            f" {LENGTH}, width {HEADS * HEAD}, {HEADS} heads)."
        ),
        ours=(
            f"Variance: published {published_variance:.2f}, ours {variance}."
            f" Correlation, farthest off after block {worst}: published"
            f" {published_correlation[worst]:.3f}, ours"
            f" {estimates(correlation, error)[worst]}."
        ),
        verdict=extrapolate(combine(*verdicts)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Forward on their grid and beyond, backward, perceptrons, and blocks in a row."""
    points = _forward(numbers)
    xavier = "at scores of variance 1, as Xavier's rule makes them"
    return [
        _grid(points, "variance", "variance"),
        _grid(points, "covariance", "covariance of two tokens"),
        _beyond(numbers, TOKENS, score=1.0, words=xavier),
        _beyond(numbers, TOKENS, score=4.0, words="at large scores"),
        _beyond(numbers, tokens=4, score=1.0, words="at few tokens"),
        _backward(numbers, SCORES[-1], "at the largest scores of their grid"),
        _backward(numbers, 1.0, "at scores of variance 1"),
        _perceptrons(numbers),
        _stack(numbers, 1.0),
        _stack(numbers, 4.0),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the figure's table: published over ours, for the variance of one head's
    output by tokens and variance of scores, then for its gradient.
    """
    for tokens, score in itertools.product(LIMIT_LENGTHS, LARGER):
        published = attention_formula(
            tokens, width=math.inf, score=score, r=0.0
        ).variance
        ours = ratio(published, _limit(numbers, tokens, score))
        yield _row("output", tokens, score, ratio=ours)
    for score, ours in zip(BACKWARD, _gradient_ratios(numbers), strict=True):
        yield _row("gradient", TOKENS, score, ratio=ours)


def _row(quantity: str, tokens: int, score: float, ratio: Estimate) -> dict[str, Any]:
    """One row of the table."""
    return {
        "quantity": quantity,
        "tokens": tokens,
        "scores": score,
        "published/ours": ratio.value,
        "error": ratio.error,
    }


def draw(numbers: Numbers) -> Any:
    """Published over ours, against the variance of scores."""
    figure = new(2.9)
    axes = figure.subplots()
    tolerance = (1 - MAX_RELATIVE_ERROR, 1 + MAX_RELATIVE_ERROR)
    axes.axhspan(*tolerance, color=GREY, alpha=0.2, lw=0)
    axes.axvspan(7e-5, SCORES[-1], color=GREY, alpha=0.1, lw=0)
    colours = (VERMILLION, ORANGE, GREEN, SKY, BLUE)
    for row, (tokens, colour) in enumerate(zip(LIMIT_LENGTHS, colours, strict=True)):
        published = []
        for score in LARGER:
            published.append(
                attention_formula(tokens, width=math.inf, score=score, r=0.0).variance
            )
        ratios = np.array(published) / numbers["limits"]["value"][row]
        style = {"color": colour, "marker": MARKS[row + 2], "ms": 3}
        axes.plot(LARGER, ratios, label=f"output, T = {tokens}", **style)
    gradient_ratios = _gradient_ratios(numbers)
    axes.errorbar(
        BACKWARD,
        [ratio.value for ratio in gradient_ratios],
        [ratio.error for ratio in gradient_ratios],
        color="black",
        fmt="s--",
        ms=3,
        capsize=2,
        lw=1.0,
        label=f"gradient, T = {TOKENS}",
    )
    axes.set(xscale="log", xlabel="variance of scores", xlim=(7e-5, 4.5))
    axes.set(yscale="log", ylabel="published / ours")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
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
            name="deepscale",
            caption=(
                "Published variance over the exact one, one head, against the variance"
                " of scores; grey: within 10 %, and the scores of their own grid."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
)
