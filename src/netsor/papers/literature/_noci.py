"""Noci et al. 2022: gradients of queries and of values, exactly and under the
assumption of uniform attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._decorator import program
from ..._mpl_style import BLUE, GREEN, GREY, MARKS, PURPLE, VERMILLION, new
from ...language import Width, dot, gaussian, grad_norm, mean_dot, softmax, weight
from ...laws import Estimate
from ...studies import Arrays, slope_of
from .._significance import AGREES, DISAGREES, SIGMAS, UNDECIDED, combine, extrapolate
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean, within

TOKENS, WIDTH = 20, 96
# σ_Q σ_K, the standard deviation of a score of tokens with mean square 1
SCALES = (0.4, 1.0, 2.5)
COSINES = (0.0, 0.3, 0.6, 0.88, 0.95, 0.985)  # of two tokens
NEARLY, COLLAPSED = 0.88, 0.985
SHARE = 0.1
DEPTHS, DEEP_SCALES, DEEP_TOKENS = (1, 2, 4, 6, 8, 10, 12), (0.1, 1.0), 10
COLOURS = dict(zip(SCALES, (GREEN, BLUE, VERMILLION), strict=True))
N = Width("n")


def _read(s: Any, tokens: int) -> Any:
    """n^(−1/2) Σ_i ⟨r_i, S_i⟩."""
    return dot(gaussian(N, tokens).reshape((tokens, 1)), s.reshape((tokens, 1))).sum()


@program
def layer(cosine: float, scale: float) -> Any:
    """|∂p/∂W|² for queries and values, with p = n^(−1/2) Σ_i ⟨r_i, S_i⟩, and the
    products of the tokens.

    Over the independent N(0, 1) coordinates of r, n |∂p/∂W|² has the mean ‖∂S/∂W‖²,
    which the paper looks at.
    """
    x = gaussian(N, TOKENS, cov=(1 - cosine) * np.eye(TOKENS) + cosine)
    query, key, value = (weight(N, N) for _ in range(3))
    s = softmax(scale * dot(query @ x, key @ x)) @ (value @ x)
    p = _read(s, TOKENS)
    return grad_norm(p, query), grad_norm(p, value), mean_dot(x, x)


@program
def last_layer(depth: int, scale: float) -> Any:
    """The same for the last of several layers with residual connections and no norm."""
    x = gaussian(N, DEEP_TOKENS)
    for _ in range(depth):
        before = x
        query, key, value = (weight(N, N) for _ in range(3))
        s = softmax(scale * dot(query @ x, key @ x)) @ (value @ x)
        x = x + s
    p = _read(s, DEEP_TOKENS)
    return grad_norm(p, query), grad_norm(p, value), mean_dot(before, before)


def uniform(gram: Array, width: int, scale: float) -> tuple[Array, Array]:
    """The mean of these two under the paper's assumption A = 1/s, given the tokens;
    gram is ⟨x, x'⟩/width.

    With entries N(0, σ²/n), (1/n) ‖∂S/∂W^V‖² = s |x̄|² and
    (1/n) ‖∂S/∂W^Q‖² = (σ_K²/(s² n²)) ‖X‖² ‖X^T (1 − 11^T/s) X‖².
    """
    s = gram.shape[-1]
    centred = (np.eye(s) - 1 / s) @ gram * width
    square = np.einsum("...ij,...ji->...", centred, centred)
    size = np.einsum("...ii->...", gram) * width
    return (
        scale**2 * size * square / (s * width) ** 2,
        gram.sum(axis=(-2, -1)) * width / s,
    )


def gradients(scale: float, cosines: list[float], draws: int, seed: int) -> Arrays:
    """Both squared norms, and both as the assumption has them, for tokens of each
    cosine.
    """
    made: dict[str, list[Array]] = {
        "query": [],
        "value": [],
        "query_uniform": [],
        "value_uniform": [],
    }
    for cosine in cosines:
        query, value, gram = (
            np.asarray(part)
            for part in layer(cosine, scale).draw(
                n=WIDTH, draws=draws, seed=seed, progress=False
            )
        )
        for name, found in zip(
            made, (query, value, *uniform(gram, WIDTH, scale)), strict=True
        ):
            made[name].append(found)
    return {
        **{name: np.stack(found) for name, found in made.items()},
        "cosine": np.array(cosines),
    }


def depths(scale: float, depths: list[int], draws: int, seed: int) -> Arrays:
    """‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² in the last layer of stacks of these depths, by networks:
    exactly, and by the formula.
    """
    exact, formula = [], []
    for depth in depths:
        found = last_layer(depth, scale).draw(
            n=WIDTH, draws=draws, seed=seed, progress=False
        )
        query, value, gram = (np.asarray(part) for part in found)
        exact.append(query / value)
        formula.append(np.divide(*uniform(gram, WIDTH, scale)))
    return {
        "exact": np.stack(exact),
        "formula": np.stack(formula),
        "depth": np.array(depths),
    }


def parts(quick: bool) -> list[Part]:
    """A scale of scores each."""
    cosines, draws = (
        ([0.0, NEARLY, COLLAPSED], 1000) if quick else (list(COSINES), 5000)
    )
    given = {"cosines": cosines, "draws": draws}
    deep = {
        "depths": [1, 6, 12] if quick else list(DEPTHS),
        "draws": 200 if quick else 2000,
    }
    return [
        *(
            Part(
                f"scale {scale:g}",
                gradients,
                {"scale": scale, **given},
                5.0 if quick else 40.0,
            )
            for scale in SCALES
        ),
        *(
            Part(
                f"depth {scale:g}",
                depths,
                {"scale": scale, **deep},
                3.0 if quick else 25.0,
            )
            for scale in DEEP_SCALES
        ),
    ]


def _over(top: Array, bottom: Array) -> Estimate:
    """The ratio of two means over the same draws."""
    ratio = top.mean() / bottom.mean()
    return Estimate(
        float(ratio), float(mean((top - ratio * bottom) / bottom.mean()).error)
    )


def _median(draws: Array) -> Estimate:
    """The median, with half the distance of the quantiles one standard error of a rank
    to either side.
    """
    step = 0.5 / len(draws) ** 0.5
    low, middle, high = np.quantile(draws, [0.5 - step, 0.5, 0.5 + step])
    return Estimate(float(middle), float(high - low) / 2)


def _place(found: Arrays, cosine: float) -> int:
    return int(np.argmin(np.abs(found["cosine"] - cosine)))


def _exact_over_uniform(found: Arrays, name: str, cosine: float) -> Estimate:
    place = _place(found, cosine)
    return _over(found[name][place], found[f"{name}_uniform"][place])


def _assumed(
    numbers: Numbers,
    name: str,
    words: str,
    cosine: float,
    scales: tuple[float, ...],
    where: str,
) -> Claim:
    """Is the formula within a share of the exact mean, for tokens of one cosine?"""
    ratios = {
        scale: _exact_over_uniform(numbers[f"scale {scale:g}"], name, cosine)
        for scale in scales
    }
    verdict = combine(*(within(1.0, ratio, SHARE) for ratio in ratios.values()))
    told = "; ".join(
        f"σ_Qσ_K = {scale:g}: {ratio.value:.3f} ± {ratio.error:.3f}"
        for scale, ratio in ratios.items()
    )
    return Claim(
        f"{words}, from the assumption of uniform attention, {where}.",
        f"The formula is within {SHARE:.0%} of the exact mean over initialisations, by"
        " four standard errors.",
        f"Exact over formula: {told}.",
        verdict if cosine == COLLAPSED else extrapolate(verdict),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Both formulas when tokens have collapsed and when they have not, and how queries
    vanish.
    """
    query, value = "E‖∂S/∂W^Q‖² ∝ ‖X‖² ‖X^T(1 − 11^T/s)X‖²", "E‖∂S/∂W^V‖² ∝ s |x̄|²"
    claims = []
    for cosine, where in (
        (COLLAPSED, f"for tokens of cosine {COLLAPSED:g}"),
        (0.0, "for independent tokens"),
    ):
        for name, words in (("value", value), ("query", query)):
            claims.append(
                _assumed(
                    numbers, name, words, cosine, SCALES if cosine else (1.0,), where
                )
            )
    found = numbers["scale 1"]
    near = [_place(found, cosine) for cosine in (NEARLY, COLLAPSED)]
    ratios = [_over(found["query"][k], found["value"][k]) for k in near]
    power = slope_of([1 - found["cosine"][k] for k in near], ratios)
    claims.append(
        Claim(
            "As tokens collapse, gradients of queries and keys vanish and those of"
            " values do not.",
            "‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² falls like (1 − cosine)², the power that the"
            " formulas give, to 10 %, by four standard errors.",
            f"Power {power.value:.3f} ± {power.error:.3f}; the ratio is"
            f" {ratios[1].value:.2e} ± {ratios[1].error:.0e} at cosine {COLLAPSED:g},"
            " σ_Qσ_K = 1.",
            within(2.0, power, SHARE),
        )
    )
    return [*claims, _deep(numbers)]


def _deep(numbers: Numbers) -> Claim:
    """At the usual scale of scores, by depth."""
    found = numbers["depth 1"]
    verdicts, told = [], []
    for depth, exact, formula in zip(
        found["depth"], found["exact"], found["formula"], strict=True
    ):
        ours, said = _median(exact), float(np.median(formula))
        up, down = (ours.value + sign * SIGMAS * ours.error for sign in (1, -1))
        outside = said / 2 > up or said * 2 < down
        verdicts.append(
            DISAGREES
            if outside
            else AGREES
            if up < 2 * said and down > said / 2
            else UNDECIDED
        )
        told.append(f"{depth}: {said:.2g}, ours {ours.value:.2g} ± {ours.error:.1g}")
    return Claim(
        "The same formulas, under the same assumption, for every layer of a stack with"
        " residual connections.",
        "In the last layer of a stack without norms, σ_Qσ_K = 1, the formulas give the"
        " median over networks of ‖∂S/∂W^Q‖²/‖∂S/∂W^V‖² to a factor of 2 at every"
        " depth, by four standard errors.",
        f"By depth, {'; '.join(told)}. The stream grows, so scores do, and attention"
        " becomes the opposite of uniform.",
        extrapolate(combine(*verdicts)),
    )


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Every cosine and scale."""
    for scale in SCALES:
        found = numbers[f"scale {scale:g}"]
        for k, cosine in enumerate(found["cosine"]):
            for name in ("query", "value"):
                exact, said = (
                    mean(found[name][k]),
                    float(found[f"{name}_uniform"][k].mean()),
                )
                yield {
                    "quantity": f"{name}, mean",
                    "scale": scale,
                    "cosine": float(cosine),
                    "depth": 1,
                    "exact": exact.value,
                    "error": exact.error,
                    "uniform_attention": said,
                }
    for scale in DEEP_SCALES:
        found = numbers[f"depth {scale:g}"]
        for depth, ratio, formula in zip(
            found["depth"], found["exact"], found["formula"], strict=True
        ):
            ours, said = _median(ratio), float(np.median(formula))
            yield {
                "quantity": "query / value, median",
                "scale": scale,
                "cosine": 0.0,
                "depth": int(depth),
                "exact": ours.value,
                "error": ours.error,
                "uniform_attention": said,
            }


def draw(numbers: Numbers) -> Any:
    """Queries over values against the distance of tokens, exact over formula, and
    queries over values by depth.
    """
    figure = new(4.4)
    places = figure.subplot_mosaic("ab;cc")
    for (scale, colour), mark in zip(COLOURS.items(), MARKS, strict=False):
        found = numbers[f"scale {scale:g}"]
        apart = 1 - found["cosine"]
        sizes = {
            name: found[name].mean(axis=1)
            for name in ("query", "value", "query_uniform", "value_uniform")
        }
        places["a"].plot(
            apart, sizes["query"] / sizes["value"], marker=mark, ms=3, color=colour
        )
        places["a"].plot(
            apart,
            sizes["query_uniform"] / sizes["value_uniform"],
            ":",
            color=colour,
            lw=1.2,
        )
        places["b"].plot(
            apart,
            sizes["query"] / sizes["query_uniform"],
            marker=mark,
            ms=3,
            color=colour,
        )
        places["b"].plot(
            apart,
            sizes["value"] / sizes["value_uniform"],
            "--",
            marker=mark,
            ms=3,
            color=colour,
        )
        places["c"].plot(
            [], [], marker=mark, ms=3, color=colour, label=f"scores × {scale:g}"
        )
    places["a"].set(yscale="log", ylabel="queries / values")
    places["b"].set(yscale="log", ylabel="exact / uniform")
    places["b"].set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    for place in ("a", "b"):
        places[place].set(xscale="log", xlabel="1 − cosine")
        places[place].minorticks_off()
    for scale, colour, mark in zip(
        DEEP_SCALES,
        (PURPLE, COLOURS[1.0]),
        ("D", MARKS[SCALES.index(1.0)]),
        strict=True,
    ):
        found = numbers[f"depth {scale:g}"]
        low, middle, high = np.maximum(
            np.quantile(found["exact"], [0.05, 0.5, 0.95], axis=1), 1e-30
        )
        places["c"].fill_between(
            found["depth"], low, high, color=colour, alpha=0.15, lw=0
        )
        places["c"].plot(found["depth"], middle, marker=mark, ms=3, color=colour)
        places["c"].plot(
            found["depth"],
            np.median(found["formula"], axis=1),
            ":",
            color=colour,
            lw=1.2,
        )
    places["c"].plot(
        [], [], marker="D", ms=3, color=PURPLE, label=f"scores × {DEEP_SCALES[0]:g}"
    )
    places["c"].plot([], [], ":", color=GREY, label="uniform attention")
    places["c"].plot([], [], "--", color=GREY, label="values (top right)")
    places["c"].set(
        yscale="log", ylim=(1e-6, 1e2), xlabel="layers", ylabel="queries / values"
    )
    places["c"].set_xticks(numbers["depth 1"]["depth"])
    figure.legend(
        *places["c"].get_legend_handles_labels(), loc="outside lower center", ncols=2
    )
    return figure


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
            "noci",
            "Top: mean squared gradients of an attention layer against the distance of"
            " its tokens, exact and (dotted) with uniform attention. Bottom: the last"
            " layer of stacks with residual connections, median and 90 % of networks,"
            " and (dotted) with uniform attention.",
            draw,
            rows,
        ),
    ),
)
