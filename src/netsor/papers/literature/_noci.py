"""Noci et al. 2022: gradients of queries and of values, exactly and under the
assumption of uniform attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._validate import percent
from ...language import Width, dot, gaussian, grad_norm, mean_dot, softmax, weight
from ...laws import Estimate
from ...programs._decorator import program
from ...report._mpl_style import BLUE, GREEN, GREY, MARKS, PURPLE, VERMILLION, new
from ...studies import Arrays, slope_of
from .._significance import AGREES, DISAGREES, SIGMAS, UNDECIDED, combine, extrapolate
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean, within

TOKENS, WIDTH = 20, 96
# σ_Q σ_K, the standard deviation of a score of tokens with mean square 1.
SCALES = (0.4, 1.0, 2.5)
COSINES = (0.0, 0.3, 0.6, 0.88, 0.95, 0.985)  # of two tokens
NEARLY, COLLAPSED = 0.88, 0.985  # cosines of tokens that have nearly become equal
SHARE = 0.1  # relative tolerance for means and powers
FACTOR = 2  # tolerance for medians in deep stacks
DEPTHS, DEEP_SCALES, DEEP_TOKENS = (1, 2, 4, 6, 8, 10, 12), (0.1, 1.0), 10
COLOURS = dict(zip(SCALES, (GREEN, BLUE, VERMILLION), strict=True))
N = Width("n")


def _read(s: Any, tokens: int) -> Any:
    """p = n^(−1/2) Σ_i ⟨r_i, S_i⟩ of outputs S, with random r."""
    directions = gaussian(N, tokens).reshape((tokens, 1))
    return dot(directions, s.reshape((tokens, 1))).sum()


@program
def layer(cosine: float, scale: float) -> Any:
    """|∂p/∂W|² for queries and values, and the products of the tokens.

    p = n^(−1/2) Σ_i ⟨r_i, S_i⟩ reads the output. Over the independent N(0, 1)
    coordinates of r, n |∂p/∂W|² has the mean ‖∂S/∂W‖², which the paper looks at.
    """
    x = gaussian(N, TOKENS, cov=(1 - cosine) * np.eye(TOKENS) + cosine)
    query = weight(N, N)
    key = weight(N, N)
    value = weight(N, N)
    attention = softmax(scale * dot(query @ x, key @ x))
    s = attention @ (value @ x)
    p = _read(s, TOKENS)
    return grad_norm(p, query), grad_norm(p, value), mean_dot(x, x)


@program
def last_layer(depth: int, scale: float) -> Any:
    """The same as `layer` for the last of several layers, with residual connections and
    no norm; the tokens are those before that layer.
    """
    x = gaussian(N, DEEP_TOKENS)
    for _ in range(depth):
        before = x
        query = weight(N, N)
        key = weight(N, N)
        value = weight(N, N)
        attention = softmax(scale * dot(query @ x, key @ x))
        s = attention @ (value @ x)
        x = x + s
    p = _read(s, DEEP_TOKENS)
    return grad_norm(p, query), grad_norm(p, value), mean_dot(before, before)


class Squares(NamedTuple):
    """Squared norms of the gradients of queries and of values, over n."""

    query: Array
    value: Array


def uniform(gram: Array, width: int, scale: float) -> Squares:
    """Their means under the paper's assumption A = 1/s, given the tokens.

    `gram` is ⟨x, x'⟩/width, (…, s, s) for s tokens. With entries N(0, σ²/n),
    (1/n) ‖∂S/∂W^V‖² = s |x̄|² and
    (1/n) ‖∂S/∂W^Q‖² = (σ_K²/(s² n²)) ‖X‖² ‖X^T (1 − 11^T/s) X‖².
    """
    s = gram.shape[-1]
    centred = (np.eye(s) - 1 / s) @ gram * width
    # the trace of centred², which is ‖X^T (1 − 11^T/s) X‖²
    square = np.einsum("...ij,...ji->...", centred, centred)
    size = np.einsum("...ii->...", gram) * width  # the trace: ‖X‖²
    return Squares(
        query=scale**2 * size * square / (s * width) ** 2,
        value=gram.sum(axis=(-2, -1)) * width / s,
    )


def gradients(scale: float, cosines: list[float], draws: int, seed: int) -> Arrays:
    """Both squared norms for tokens of each cosine, exactly and by the assumption:
    arrays (cosines, draws).
    """
    exact = []
    assumed = []
    for cosine in cosines:
        outputs = layer(cosine, scale).draw(
            n=WIDTH, draws=draws, seed=seed, progress=False
        )
        query, value, gram = map(np.asarray, outputs)
        exact.append(Squares(query, value))
        assumed.append(uniform(gram, WIDTH, scale))
    return {
        "query": np.stack([squares.query for squares in exact]),
        "value": np.stack([squares.value for squares in exact]),
        "query_uniform": np.stack([squares.query for squares in assumed]),
        "value_uniform": np.stack([squares.value for squares in assumed]),
        "cosine": np.array(cosines),
    }


def depths(scale: float, depths: list[int], draws: int, seed: int) -> Arrays:
    """‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² in the last layer of stacks of these depths.

    It is computed exactly and by the formula, for each network: arrays (depths, draws).
    """
    exact = []
    formula = []
    for depth in depths:
        outputs = last_layer(depth, scale).draw(
            n=WIDTH, draws=draws, seed=seed, progress=False
        )
        query, value, gram = map(np.asarray, outputs)
        exact.append(query / value)
        assumed = uniform(gram, WIDTH, scale)
        formula.append(np.divide(assumed.query, assumed.value))
    return {
        "exact": np.stack(exact),
        "formula": np.stack(formula),
        "depth": np.array(depths),
    }


def parts(quick: bool) -> list[Part]:
    """One layer for each scale of scores, and stacks."""
    parts = []
    for scale in SCALES:
        arguments = {
            "scale": scale,
            "cosines": [0.0, NEARLY, COLLAPSED] if quick else list(COSINES),
            "draws": 1000 if quick else 5000,
        }
        seconds = 5.0 if quick else 40.0
        parts.append(
            Part(
                label=f"scale {scale:g}",
                work=gradients,
                arguments=arguments,
                seconds=seconds,
            )
        )
    for scale in DEEP_SCALES:
        arguments = {
            "scale": scale,
            "depths": [1, 6, 12] if quick else list(DEPTHS),
            "draws": 200 if quick else 2000,
        }
        seconds = 3.0 if quick else 25.0
        parts.append(
            Part(
                label=f"depth {scale:g}",
                work=depths,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _ratio_of_means(top: Array, bottom: Array) -> Estimate:
    """The ratio of two means over the same draws, with its standard error."""
    ratio = top.mean() / bottom.mean()
    # to first order, that of the mean of (top − ratio · bottom)/E bottom
    error = mean((top - ratio * bottom) / bottom.mean()).error
    return Estimate(float(ratio), float(error))


def _median(draws: Array) -> Estimate:
    """The median with its standard error.

    The error is half the distance of the quantiles one standard error of a rank to
    either side.
    """
    step = 0.5 / len(draws) ** 0.5
    low, middle, high = np.quantile(draws, [0.5 - step, 0.5, 0.5 + step])
    return Estimate(float(middle), float(high - low) / 2)


def _position(arrays: Arrays, cosine: float) -> int:
    """The index of a cosine in the arrays of one scale."""
    return int(np.argmin(np.abs(arrays["cosine"] - cosine)))


def _exact_over_uniform(arrays: Arrays, name: str, cosine: float) -> Estimate:
    """The exact mean of a squared gradient over that by the assumption."""
    position = _position(arrays, cosine)
    exact = arrays[name][position]
    assumed = arrays[f"{name}_uniform"][position]
    return _ratio_of_means(exact, assumed)


def _formula(numbers: Numbers, name: str, cosine: float) -> Claim:
    """The claim that a formula is near the exact mean, for tokens of one cosine; `name`
    is that of the matrix, "query" or "value".

    Only tokens that have collapsed are in the range that the authors state.
    """
    formula = {
        "query": "E‖∂S/∂W^Q‖² ∝ ‖X‖² ‖X^T(1 − 11^T/s)X‖²",
        "value": "E‖∂S/∂W^V‖² ∝ s |x̄|²",
    }[name]
    is_collapsed = cosine == COLLAPSED
    if is_collapsed:
        tokens = f"for tokens of cosine {COLLAPSED:g}"
    else:
        tokens = "for independent tokens"
    scales = SCALES if is_collapsed else (1.0,)
    verdicts = []
    listed = []
    for scale in scales:
        ratio = _exact_over_uniform(numbers[f"scale {scale:g}"], name, cosine)
        verdicts.append(within(1.0, ratio, SHARE))
        listed.append(f"σ_Qσ_K = {scale:g}: {ratio.value:.3f} ± {ratio.error:.3f}")
    verdict = combine(*verdicts)
    return Claim(
        published=f"{formula}, from the assumption of uniform attention, {tokens}.",
        rule=(
            f"The formula is within {percent(SHARE)} of the exact mean over"
            " initialisations, by four standard errors."
        ),
        ours=f"Exact over formula: {'; '.join(listed)}.",
        verdict=extrapolate(verdict, stated=is_collapsed),
    )


def _vanishing(numbers: Numbers) -> Claim:
    """The claim on how gradients of queries vanish against those of values as tokens
    collapse: the power of 1 − cosine, between two cosines.
    """
    arrays = numbers["scale 1"]
    distances = []
    ratios = []
    for cosine in (NEARLY, COLLAPSED):
        k = _position(arrays, cosine)
        distances.append(1 - arrays["cosine"][k])
        ratios.append(_ratio_of_means(arrays["query"][k], arrays["value"][k]))
    power = slope_of(distances, ratios)
    collapsed = ratios[-1]
    return Claim(
        published=(
            "As tokens collapse, gradients of queries and keys vanish and those of"
            " values do not."
        ),
        rule="‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² falls like (1 − cosine)², the power that the"
        " formulas give, to 10 %, by four standard errors.",
        ours=f"Power {power.value:.3f} ± {power.error:.3f}; the ratio is"
        f" {collapsed.value:.2e} ± {collapsed.error:.0e} at cosine {COLLAPSED:g},"
        " σ_Qσ_K = 1.",
        verdict=within(2.0, power, SHARE),
    )


def _within_factor(formula: float, ours: Estimate) -> str:
    """The verdict on whether a formula gives our number to a factor of FACTOR, by four
    standard errors.
    """
    low = ours.value - SIGMAS * ours.error
    high = ours.value + SIGMAS * ours.error
    smallest = formula / FACTOR
    largest = formula * FACTOR
    if smallest > high or largest < low:
        return DISAGREES
    if high < largest and low > smallest:
        return AGREES
    return UNDECIDED


def _deep(numbers: Numbers) -> Claim:
    """The claim on the formulas in stacks, at the usual scale of scores, by depth."""
    verdicts = []
    listed = []
    for depth, exact, formula in _medians(numbers["depth 1"]):
        verdicts.append(_within_factor(formula, exact))
        listed.append(
            f"{depth}: {formula:.2g}, ours {exact.value:.2g} ± {exact.error:.1g}"
        )
    return Claim(
        published=(
            "The same formulas, under the same assumption, for every layer of a stack"
            " with residual connections."
        ),
        rule=(
            "In the last layer of a stack without norms, σ_Qσ_K = 1, the formulas give"
            " the median over networks of ‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² to a factor of 2 at"
            " every depth, by four standard errors."
        ),
        ours=(
            f"By depth, {'; '.join(listed)}. The stream grows, so scores do, and"
            " attention becomes the opposite of uniform."
        ),
        verdict=extrapolate(combine(*verdicts)),
    )


class _DepthMedians(NamedTuple):
    """Medians over networks of the ratio of gradients, in stacks of one depth."""

    depth: int
    exact: Estimate
    formula: float


def _medians(arrays: Arrays) -> list[_DepthMedians]:
    """The medians at each depth, from the arrays of `depths`."""
    medians = []
    for k, depth in enumerate(arrays["depth"]):
        exact = arrays["exact"][k]
        formula = arrays["formula"][k]
        median = _DepthMedians(int(depth), _median(exact), float(np.median(formula)))
        medians.append(median)
    return medians


def judge(numbers: Numbers) -> list[Claim]:
    """Both formulas when tokens have collapsed and when they have not, how queries
    vanish, and the formulas in stacks.
    """
    return [
        _formula(numbers, "value", COLLAPSED),
        _formula(numbers, "query", COLLAPSED),
        _formula(numbers, "value", 0.0),
        _formula(numbers, "query", 0.0),
        _vanishing(numbers),
        _deep(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the figure's table: the mean squared gradients at every scale of scores
    and cosine, then the median ratios by depth; exact, and by uniform attention.
    """
    for scale in SCALES:
        arrays = numbers[f"scale {scale:g}"]
        for k, cosine in enumerate(arrays["cosine"]):
            for name in ("query", "value"):
                exact = mean(arrays[name][k])
                yield {
                    "quantity": f"{name}, mean",
                    "scale": scale,
                    "cosine": float(cosine),
                    "depth": 1,
                    "exact": exact.value,
                    "error": exact.error,
                    "uniform_attention": float(arrays[f"{name}_uniform"][k].mean()),
                }
    for scale in DEEP_SCALES:
        for depth, exact, formula in _medians(numbers[f"depth {scale:g}"]):
            yield {
                "quantity": "query / value, median",
                "scale": scale,
                "cosine": 0.0,
                "depth": depth,
                "exact": exact.value,
                "error": exact.error,
                "uniform_attention": formula,
            }


MARK_OF_SCALE = dict(zip(SCALES, MARKS, strict=False))
UNIFORM_STYLE = {"linestyle": ":", "lw": 1.2}


def draw(numbers: Numbers) -> Any:
    """Gradients against the distance of tokens, and by depth.

    Left: queries over values. Right: exact over formula. Below: queries over values.
    """
    figure = new(4.4)
    panels = figure.subplot_mosaic("ab;cc")
    bottom = panels["c"]
    _plot_distances(panels["a"], panels["b"], numbers)
    for scale, colour in COLOURS.items():
        style = {"marker": MARK_OF_SCALE[scale], "ms": 3, "color": colour}
        bottom.plot([], [], label=f"scores × {scale:g}", **style)  # for the legend
    small, usual = DEEP_SCALES
    small_style = {"marker": "D", "ms": 3, "color": PURPLE}
    usual_style = {"marker": MARK_OF_SCALE[usual], "ms": 3, "color": COLOURS[usual]}
    _plot_depths(bottom, numbers[f"depth {small:g}"], small_style)
    _plot_depths(bottom, numbers[f"depth {usual:g}"], usual_style)
    bottom.plot([], [], label=f"scores × {small:g}", **small_style)
    bottom.plot([], [], ":", color=GREY, label="uniform attention")
    bottom.plot([], [], "--", color=GREY, label="values (top right)")
    bottom.set(xlabel="layers", yscale="log", ylim=(1e-6, 1e2))
    bottom.set_ylabel("queries / values")
    bottom.set_xticks(numbers["depth 1"]["depth"])
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _plot_distances(left: Any, right: Any, numbers: Numbers) -> None:
    """Plot gradients against the distance 1 − cosine of tokens: queries over values on
    the left, exact ones over those of uniform attention on the right.
    """
    for scale, colour in COLOURS.items():
        style = {"marker": MARK_OF_SCALE[scale], "ms": 3, "color": colour}
        arrays = numbers[f"scale {scale:g}"]
        distance = 1 - arrays["cosine"]
        query = arrays["query"].mean(axis=1)
        value = arrays["value"].mean(axis=1)
        query_uniform = arrays["query_uniform"].mean(axis=1)
        value_uniform = arrays["value_uniform"].mean(axis=1)
        left.plot(distance, query / value, **style)
        uniform_ratio = query_uniform / value_uniform
        left.plot(distance, uniform_ratio, color=colour, **UNIFORM_STYLE)
        right.plot(distance, query / query_uniform, **style)
        right.plot(distance, value / value_uniform, "--", **style)
    left.set(yscale="log", ylabel="queries / values")
    right.set(yscale="log", ylabel="exact / uniform")
    right.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    for axes in (left, right):
        axes.set(xscale="log", xlabel="1 − cosine")
        axes.minorticks_off()


def _plot_depths(axes: Any, arrays: Arrays, style: dict[str, Any]) -> None:
    """Plot medians by depth, with 90 % of networks, and those of the formula."""
    quantiles = np.quantile(arrays["exact"], [0.05, 0.5, 0.95], axis=1)
    low, middle, high = np.maximum(quantiles, 1e-30)
    depth = arrays["depth"]
    colour = style["color"]
    axes.fill_between(depth, low, high, color=colour, alpha=0.15, lw=0)
    axes.plot(depth, middle, **style)
    formula = np.median(arrays["formula"], axis=1)
    axes.plot(depth, formula, color=colour, **UNIFORM_STYLE)


RESULT = Result(
    name="noci",
    title="Noci et al.: gradients of queries and values when tokens collapse",
    source=(
        "Noci et al., Signal Propagation in Transformers: Theoretical Perspectives and"
        " the Role of Rank Collapse (NeurIPS 2022), whose formulas for gradients assume"
        " that every token attends equally to all."
    ),
    links=("https://arxiv.org/abs/2206.03126",),
    setting=(
        f"One attention layer S = A X W^V, one head, {TOKENS} tokens of width {WIDTH}"
        " with mean square 1 and one cosine between any two, weights N(0, σ²/n),"
        " scores over √n; and the last of 1 to 12 such layers with residual"
        f" connections and no norms, on {DEEP_TOKENS} independent tokens. Exact: the"
        " mean over initialisations of ‖∂S/∂W‖², by ns.grad_norm. The paper states the"
        " assumption A = 1/s; where attention is not uniform, as for independent"
        " tokens and in deep stacks, its formulas are outside that range. Its"
        " experiments on translation are not run."
    ),
    unread=(
        "all but the introduction. The formulas judged here are derived by us from the"
        " stated assumption A = 1/s."
    ),
    quick="three cosines and three depths, with fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="noci",
            caption=(
                "Top: mean squared gradients of an attention layer against the"
                " distance of its tokens, exact and (dotted) with uniform attention."
                " Bottom: the last layer of stacks with residual connections, median"
                " and 90 % of networks, and (dotted) with uniform attention."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
)
