"""Hron et al. 2020: attention with infinitely many heads, and scores over d instead of
√d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._decorator import program
from ..._mpl_style import BLUE, GREY, VERMILLION, new
from ...language import (
    Width,
    data,
    dot,
    gaussian,
    inf,
    mean_dot,
    ntk,
    softmax,
    stack,
    weight,
)
from ...laws import Estimate
from ...nn import Attention
from ...studies import Arrays
from .._significance import AGREES, DISAGREES, combine, decide_below, extrapolate
from ._result import Array, Claim, Numbers, Part, Picture, Result, mean, within
from ._yang import word_kernel

N = Width("n")
SENTENCE = [0, 1, 2, 3, 4, 5, 6]  # the brown fox jumps over the dog
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # σ_Q σ_K
HEADS = (1, 4, 16, 64, 256)
KURTOSIS_ATOL = 0.01  # of an excess kurtosis that counts as Gaussian
# of a kernel: for a stand-in, and for a formula compared with draws
SHARE, CLOSE = 0.1, 0.05
SAME = 1e-9  # two ways to compute one number


def tokens() -> Array:
    """The kernel of the seven words of the sentence, normed to 1 each, as LayerNorm
    does.
    """
    kernel = word_kernel()[np.ix_(SENTENCE, SENTENCE)]
    factor = np.diag(kernel) ** -0.5
    return np.asarray(factor[:, None] * kernel * factor)


def _unchanged(scores: Array) -> Array:
    return scores


def _layer(scale: float, **others: Any) -> Attention:
    return Attention(tokens(), sigma_q=scale, **others)


def kernels(scales: list[float], points: int, seed: int) -> Arrays:
    """The kernel of outputs with scores over √d and infinitely many heads, over d, and
    over d with tied weights.
    """
    made: dict[str, list[Any]] = {"exact": [], "error": [], "tied": [], "untied": []}
    for scale in scales:
        layer = _layer(scale)
        law = layer.infinite_heads(points)
        made["exact"].append(np.asarray(law.cov()))
        made["error"].append(law.origin.quadrature_error)
        made["tied"].append(np.asarray(layer.linear_scaling(tied=True).cov()))
        made["untied"].append(np.asarray(layer.linear_scaling().cov()))
    plain = _layer(1.0, function=_unchanged).infinite_heads(points)
    return {
        **{name: np.array(found) for name, found in made.items()},
        "scale": np.array(scales),
        "plain": np.asarray(plain.cov()),
        "plain_error": np.array(plain.origin.quadrature_error),
    }


def kurtoses(scale: float, points: int, seed: int) -> Arrays:
    """Excess kurtosis of one output coordinate of the first word at infinite width, by
    the number of heads.
    """
    layer = _layer(scale)
    found = [layer.law(heads, points=points).with_error.kurtosis() for heads in HEADS]
    return {
        "kurtosis": np.array([e.value for e in found]),
        "error": np.array([e.error for e in found]),
    }


@program
def tangent_program(kind: str) -> Any:
    """One head, one output of the first word: its kernel, and its tangent kernel over
    the four matrices.
    """
    kernel = tokens()
    # A given kernel, exactly, at infinite width: fixed vectors behind a random matrix.
    x = weight(N, len(kernel)) @ data(np.linalg.cholesky(kernel) * len(kernel) ** 0.5)
    query, key, value, out = (weight(N, N) for _ in range(4))
    scores = (
        mean_dot(key @ x[:1], key @ x)
        if kind == "tied"
        else dot(query @ x[:1], key @ x)
    )
    y = out @ ((scores if kind == "plain" else softmax(scores)) @ (value @ x))
    f = dot(stack([gaussian(N)]), y)[0, 0]
    return mean_dot(y, y)[0, 0], ntk(
        f, weights=[key, value, out] if kind == "tied" else [query, key, value, out]
    )


def tangents(kind: str, draws: int, seed: int) -> Arrays:
    """Draws at infinite width. With more heads their mean is the same, and infinitely
    many heads are their mean.
    """
    kernel, tangent = tangent_program(kind).draw(
        n=inf, draws=draws, seed=seed, progress=False
    )
    return {"kernel": np.asarray(kernel), "tangent": np.asarray(tangent)}


def parts(quick: bool) -> list[Part]:
    """Kernels, laws over heads, and tangent kernels; a quick run has fewer points."""
    points, draws = (2**12, 4000) if quick else (2**15, 60_000)
    made = [
        Part(
            "kernels",
            kernels,
            {"scales": list(SCALES), "points": points},
            1.5 if quick else 10.0,
        ),
        Part("tied", tangents, {"kind": "tied", "draws": 1}, 1.0),
    ]
    for scale in (1.0, 4.0):
        given = {"scale": scale, "points": 2**15 if quick else 2**19}
        made.append(Part(f"heads {scale:g}", kurtoses, given, 1.0 if quick else 4.0))
    for kind in ("plain", "softmax"):
        made.append(
            Part(kind, tangents, {"kind": kind, "draws": draws}, 2.0 if quick else 15.0)
        )
    return made


def _gaussian(numbers: Numbers) -> Claim:
    found = [
        Estimate(*pair)
        for pair in zip(
            numbers["heads 1"]["kurtosis"], numbers["heads 1"]["error"], strict=True
        )
    ]
    one, many = found[0], found[-1]
    told = ", ".join(
        f"{heads}: {value.value:.2e}" for heads, value in zip(HEADS, found, strict=True)
    )
    return Claim(
        "Single-head attention is not Gaussian in the limit of infinite width; with"
        " infinitely many heads it is.",
        f"The excess kurtosis of an output is above {KURTOSIS_ATOL:g} with one head,"
        f" and below it with {HEADS[-1]}, by four errors.",
        f"By heads, {told}; one head ± {one.error:.0e}. It is 1/H of that of one head:"
        f" infinitely many are a limit, and {math.ceil(one.value / KURTOSIS_ATOL)}"
        f" heads are within {KURTOSIS_ATOL:g} of it.",
        combine(
            decide_below(Estimate(-one.value, one.error), -KURTOSIS_ATOL),
            decide_below(many, KURTOSIS_ATOL),
        ),
    )


def _tied(numbers: Numbers) -> Claim:
    (tied,) = (
        numbers["kernels"]["tied"][k]
        for k in np.flatnonzero(numbers["kernels"]["scale"] == 1)
    )
    found = numbers["tied"]
    off = max(
        abs(found["kernel"][0] / tied[0, 0] - 1),
        abs(found["tangent"][0] / (2 * tied[0, 0]) - 1),
    )
    return Claim(
        "With scores over d and tied queries and keys the kernel is A K A^T, A ="
        " softmax(K), and the tangent kernel twice that.",
        "Our program at infinite width, which does not use it, gives the same to"
        f" {SAME:g}.",
        f"Largest relative difference {off:.1e}.",
        AGREES if off < SAME else DISAGREES,
    )


def _plain(numbers: Numbers) -> Claim:
    kernel = tokens()
    closed = float((kernel**2).sum())
    found = numbers["kernels"]
    ours = Estimate(
        float(np.trace(found["plain"])) / len(kernel),
        float(found["plain_error"]) * closed,
    )
    tangent = mean(numbers["plain"]["tangent"])
    return Claim(
        "With scores over √d, infinitely many heads and no softmax, the kernel is (Σ_jk"
        " K_jk²) K and the tangent kernel 4 times that.",
        f"Both are within {CLOSE:.0%} of ours, by four errors: the mean variance of an"
        " output, and the tangent kernel of the first word.",
        f"{closed:.3f}, ours {ours.value:.3f} ± {ours.error:.2g}; {4 * closed:.2f},"
        f" ours {tangent.value:.2f} ± {tangent.error:.2g}.",
        combine(within(closed, ours, CLOSE), within(4 * closed, tangent, CLOSE)),
    )


def _stand_in(numbers: Numbers) -> Claim:
    found = numbers["kernels"]
    verdicts, told = [], []
    for k, scale in enumerate(found["scale"]):
        exact, tied = float(found["exact"][k, 0, 0]), float(found["tied"][k, 0, 0])
        ours = Estimate(exact, exact * float(found["error"][k]))
        if scale >= 1:
            verdicts.append(within(tied, ours, SHARE))
            told.append(
                f"σ_Qσ_K = {scale:g}: {tied:.4f}, ours {exact:.4f} ± {ours.error:.0e}"
            )
    tangent = mean(numbers["softmax"]["tangent"])
    (one,) = np.flatnonzero(found["scale"] == 1)
    said = 2 * float(found["tied"][one, 0, 0])
    verdicts.append(within(said, tangent, SHARE))
    return Claim(
        "With softmax and scores over √d no closed form is known (the library raises an"
        " error); it offers the kernel with scores over d and tied weights, without a"
        " statement on how near that is.",
        "The variance of the first word, and its tangent kernel, are within"
        f" {SHARE:.0%} of those with scores over √d, by four errors.",
        f"Variance, {'; '.join(told)}. Tangent kernel at 1: {said:.4f}, ours"
        f" {tangent.value:.4f} ± {tangent.error:.0e}.",
        extrapolate(combine(*verdicts)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Heads, both closed forms, and what stands in for the form that is not known."""
    return [_gaussian(numbers), _tied(numbers), _plain(numbers), _stand_in(numbers)]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Variances of the first word by scale, and excess kurtoses by heads."""
    found = numbers["kernels"]
    for k, scale in enumerate(found["scale"]):
        for name in ("exact", "tied", "untied"):
            value = float(found[name][k, 0, 0])
            error = value * float(found["error"][k]) if name == "exact" else 0.0
            yield {
                "quantity": f"variance, {name}",
                "scale": float(scale),
                "heads": "inf",
                "value": value,
                "error": error,
            }
    for scale in (1.0, 4.0):
        some = numbers[f"heads {scale:g}"]
        for heads, value, error in zip(
            HEADS, some["kurtosis"], some["error"], strict=True
        ):
            yield {
                "quantity": "excess kurtosis",
                "scale": scale,
                "heads": heads,
                "value": float(value),
                "error": float(error),
            }


def draw(numbers: Numbers) -> Any:
    """The variance by the scale of scores, and the excess kurtosis by heads."""
    figure = new(2.4)
    left, right = figure.subplots(1, 2)
    found = numbers["kernels"]
    lines = (
        ("exact", BLUE, "-", "over √d"),
        ("tied", VERMILLION, "--", "over d, tied"),
        ("untied", GREY, ":", "over d"),
    )
    for name, colour, style, label in lines:
        left.plot(
            found["scale"], found[name][:, 0, 0], style, color=colour, label=label
        )
    left.set(
        xscale="log",
        xlabel="σ$_Q$σ$_K$",
        ylabel="variance, infinitely many heads",
        ylim=(0, 1),
    )
    left.set_xticks(found["scale"], [f"{scale:g}" for scale in found["scale"]])
    left.minorticks_off()
    left.legend(loc="upper left")
    for scale, colour, style in ((1.0, BLUE, "o-"), (4.0, VERMILLION, "s-")):
        right.plot(
            HEADS,
            numbers[f"heads {scale:g}"]["kurtosis"],
            style,
            ms=3,
            color=colour,
            label=f"σ$_Q$σ$_K$ = {scale:g}",
        )
    right.axhline(KURTOSIS_ATOL, color=GREY, lw=0.6, ls=":")
    right.set(xscale="log", yscale="log", xlabel="heads", ylabel="excess kurtosis")
    right.set_xticks(HEADS, [str(heads) for heads in HEADS])
    right.minorticks_off()
    right.legend(loc="lower left")
    return figure


RESULT = Result(
    name="hron",
    title="Hron et al.: infinitely many heads, and scores over d",
    source=(
        "Hron, Bahri, Sohl-Dickstein and Novak, Infinite attention: NNGP and NTK for"
        " deep attention networks (ICML 2020), and GlobalSelfAttention of the authors'"
        " library neural-tangents."
    ),
    links=(
        "https://arxiv.org/abs/2006.10540",
        "https://github.com/google/neural-tangents",
    ),
    setting=(
        "One attention layer on the seven words of a sentence (the products of their"
        " GloVe vectors, from GP4A, normed to 1), all σ = 1 except σ_Q. Formulas come"
        " from the library's kernel function; the paper's experiments with CIFAR-10 and"
        " IMDb are not run. Ours: nn.Attention for kernels and laws by heads, ns.ntk at"
        " infinite width for tangent kernels, whose mean over draws is the kernel of"
        " infinitely many heads. The transformers of GP4A and NTK4A, with scores over"
        " the width, are under tensor-programs."
    ),
    quick="fewer points and draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "hron",
            "Left: variance of an output with infinitely many heads, by the scale of"
            " scores, for three ways to divide them. Right: excess kurtosis at infinite"
            " width by the number of heads; dotted: 0.01.",
            draw,
            rows,
        ),
    ),
)
