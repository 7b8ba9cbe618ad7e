"""Hron et al. 2020: attention with infinitely many heads, and scores over d instead of
√d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._validate import percent
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
from ...programs._decorator import program
from ...report._mpl_style import BLUE, GREY, VERMILLION, new
from ...studies import Arrays
from .._significance import (
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
    as_arrays,
    estimates,
    mean,
    within,
)
from ._yang import word_kernel

N = Width("n")
SENTENCE = [0, 1, 2, 3, 4, 5, 6]  # the brown fox jumps over the dog
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # σ_Q σ_K
HEADS = (1, 4, 16, 64, 256)
KURTOSIS_ATOL = 0.01  # an excess kurtosis below which a law counts as Gaussian
SHARE = 0.1  # relative tolerance for a kernel that stands in for another one
CLOSE = 0.05  # for a formula that is compared with draws
SAME = 1e-9  # for two ways to compute one number


def tokens() -> Array:
    """The kernel of the seven words of the sentence, as after LayerNorm."""
    kernel = word_kernel()[np.ix_(SENTENCE, SENTENCE)]
    factor = np.diag(kernel) ** -0.5
    return np.asarray(factor[:, None] * kernel * factor)


def _unchanged(scores: Array) -> Array:
    """The scores, without a softmax."""
    return scores


def _layer(scale: float, **others: Any) -> Attention:
    """One layer on the sentence, with σ_Q = `scale` and all other σ = 1."""
    return Attention(tokens(), sigma_q=scale, **others)


def kernels(scales: list[float], points: int, seed: int) -> Arrays:
    """The kernel of outputs for each scale σ_Q of scores, arrays (scales, T, T).

    Scores are over √d with infinitely many heads ("exact", with its quadrature
    "error"), over d ("untied"), and over d with tied weights ("tied"). "plain" is the
    kernel without softmax at σ_Q = 1.
    """
    exact = []
    errors = []
    tied = []
    untied = []
    for scale in scales:
        layer = _layer(scale)
        law = layer.infinite_heads(points)
        exact.append(np.asarray(law.cov()))
        errors.append(law.origin.quadrature_error)
        tied.append(np.asarray(layer.linear_scaling(tied=True).cov()))
        untied.append(np.asarray(layer.linear_scaling().cov()))
    plain = _layer(1.0, function=_unchanged).infinite_heads(points)
    return {
        "exact": np.array(exact),
        "error": np.array(errors),
        "tied": np.array(tied),
        "untied": np.array(untied),
        "scale": np.array(scales),
        "plain": np.asarray(plain.cov()),
        "plain_error": np.array(plain.origin.quadrature_error),
    }


def kurtoses(scale: float, points: int, seed: int) -> Arrays:
    """Excess kurtosis of one output coordinate by the number of heads, as in HEADS.

    It is that of the first word at infinite width.
    """
    layer = _layer(scale)
    laws = [layer.law(heads, points=points) for heads in HEADS]
    return as_arrays("kurtosis", [law.with_error.kurtosis() for law in laws])


@program
def tangent_program(kind: str) -> Any:
    """Two scalars, of the output of one head for the first word: its variance, which is
    one entry K_11 of the kernel, and the same entry of the tangent kernel.

    `kind` is "softmax" or "plain" (without softmax) for scores ⟨q, k⟩/√n, and "tied"
    for a softmax of scores ⟨k, k⟩/n, with one matrix for queries and keys. The tangent
    kernel is over the four matrices, or the three of "tied".
    """
    kernel = tokens()
    # A given kernel, exactly, at infinite width: fixed vectors behind a random matrix.
    root = np.linalg.cholesky(kernel)
    x = weight(N, len(kernel)) @ data(root * len(kernel) ** 0.5)
    query = weight(N, N)
    key = weight(N, N)
    value = weight(N, N)
    out = weight(N, N)
    if kind == "tied":
        scores = mean_dot(key @ x[:1], key @ x)
        weights = [key, value, out]
    else:
        scores = dot(query @ x[:1], key @ x)
        weights = [query, key, value, out]
    attention = scores if kind == "plain" else softmax(scores)
    y = out @ (attention @ (value @ x))
    f = dot(stack([gaussian(N)]), y)[0, 0]
    return mean_dot(y, y)[0, 0], ntk(f, weights=weights)


def tangents(kind: str, draws: int, seed: int) -> Arrays:
    """Draws (draws,) of the entries of the kernel and of the tangent kernel at infinite
    width, see `tangent_program`.

    At infinite width both are random, because the scores of one head are. With H heads
    they are averages of H independent such draws, so with infinitely many heads they
    are the mean of the law drawn here.
    """
    program = tangent_program(kind)
    kernel, tangent = program.draw(n=inf, draws=draws, seed=seed, progress=False)
    return {"kernel": np.asarray(kernel), "tangent": np.asarray(tangent)}


def parts(quick: bool) -> list[Part]:
    """Kernels, laws over heads, and tangent kernels; a quick run has fewer points."""
    arguments: dict[str, Any] = {
        "scales": list(SCALES),
        "points": 2**12 if quick else 2**15,
    }
    parts = [
        Part(
            label="kernels",
            work=kernels,
            arguments=arguments,
            seconds=1.5 if quick else 10.0,
        ),
        Part(
            label="tied",
            work=tangents,
            arguments={"kind": "tied", "draws": 1},
            seconds=1.0,
        ),
    ]
    for scale in (1.0, 4.0):
        arguments = {"scale": scale, "points": 2**15 if quick else 2**19}
        seconds = 1.0 if quick else 4.0
        parts.append(
            Part(
                label=f"heads {scale:g}",
                work=kurtoses,
                arguments=arguments,
                seconds=seconds,
            )
        )
    for kind in ("plain", "softmax"):
        arguments = {"kind": kind, "draws": 4000 if quick else 60_000}
        parts.append(
            Part(
                label=kind,
                work=tangents,
                arguments=arguments,
                seconds=2.0 if quick else 15.0,
            )
        )
    return parts


def _gaussian(numbers: Numbers) -> Claim:
    """The claim that one head is not Gaussian, and infinitely many are."""
    arrays = numbers["heads 1"]
    kurtoses = estimates(arrays["kurtosis"], arrays["error"])
    one_head = kurtoses[0]
    many_heads = kurtoses[-1]
    lines = []
    for heads, kurtosis in zip(HEADS, kurtoses, strict=True):
        lines.append(f"{heads}: {kurtosis.value:.2e}")
    return Claim(
        published=(
            "Single-head attention is not Gaussian in the limit of infinite width;"
            " with infinitely many heads it is."
        ),
        rule=(
            f"The excess kurtosis of an output is above {KURTOSIS_ATOL:g} with one"
            f" head, and below it with {HEADS[-1]}, by four errors."
        ),
        ours=(
            f"By heads, {', '.join(lines)}; one head ± {one_head.error:.0e}. It is 1/H"
            " of that of one head: infinitely many are a limit, and"
            f" {math.ceil(one_head.value / KURTOSIS_ATOL)} heads are within"
            f" {KURTOSIS_ATOL:g} of it."
        ),
        verdict=combine(
            decide_below(Estimate(-one_head.value, one_head.error), -KURTOSIS_ATOL),
            decide_below(many_heads, KURTOSIS_ATOL),
        ),
    )


def _tied(numbers: Numbers) -> Claim:
    """The claim on the closed form for scores over d, against our program."""
    kernel = _at_scale_1(numbers, "tied")
    arrays = numbers["tied"]
    kernel_difference = abs(arrays["kernel"][0] / kernel - 1)
    tangent_difference = abs(arrays["tangent"][0] / (2 * kernel) - 1)
    largest = max(kernel_difference, tangent_difference)
    return Claim(
        published=(
            "With scores over d and tied queries and keys the kernel is A K A^T, A ="
            " softmax(K), and the tangent kernel twice that."
        ),
        rule="Our program at infinite width, which does not use it, gives the same to"
        f" {SAME:g}.",
        ours=f"Largest relative difference {largest:.1e}.",
        verdict=decide(largest < SAME),
    )


def _at_scale_1(numbers: Numbers, name: str) -> Any:
    """The variance of the first word for σ_Q σ_K = 1."""
    arrays = numbers["kernels"]
    (index,) = np.flatnonzero(arrays["scale"] == 1)
    return arrays[name][index][0, 0]


def _plain(numbers: Numbers) -> Claim:
    """The claim on the closed form for scores over √d without softmax."""
    kernel = tokens()
    arrays = numbers["kernels"]
    closed = float((kernel**2).sum())
    mean_variance = float(np.trace(arrays["plain"])) / len(kernel)
    ours = Estimate(mean_variance, float(arrays["plain_error"]) * closed)
    tangent = mean(numbers["plain"]["tangent"])
    return Claim(
        published=(
            "With scores over √d, infinitely many heads and no softmax, the kernel is"
            " (Σ_jk K_jk²) K and the tangent kernel 4 times that."
        ),
        rule=(
            f"Both are within {percent(CLOSE)} of ours, by four errors: the mean"
            " variance of an output, and the tangent kernel of the first word."
        ),
        ours=(
            f"{closed:.3f}, ours {ours.value:.3f} ± {ours.error:.2g}; {4 * closed:.2f},"
            f" ours {tangent.value:.2f} ± {tangent.error:.2g}."
        ),
        verdict=combine(
            within(closed, ours, CLOSE), within(4 * closed, tangent, CLOSE)
        ),
    )


def _stand_in(numbers: Numbers) -> Claim:
    """The claim on what stands in for the closed form that is not known: that the
    kernel with scores over d and tied weights is near that with scores over √d.
    """
    arrays = numbers["kernels"]
    verdicts = []
    listed = []
    for k, scale in enumerate(arrays["scale"]):
        if scale >= 1:
            exact = float(arrays["exact"][k, 0, 0])
            tied = float(arrays["tied"][k, 0, 0])
            ours = Estimate(exact, exact * float(arrays["error"][k]))
            verdicts.append(within(tied, ours, SHARE))
            listed.append(
                f"σ_Qσ_K = {scale:g}: {tied:.4f}, ours {exact:.4f} ± {ours.error:.0e}"
            )
    tangent = mean(numbers["softmax"]["tangent"])
    tied_tangent = 2 * float(_at_scale_1(numbers, "tied"))
    verdicts.append(within(tied_tangent, tangent, SHARE))
    return Claim(
        published=(
            "With softmax and scores over √d no closed form is known (the library"
            " raises an error); it offers the kernel with scores over d and tied"
            " weights, without a statement on how near that is."
        ),
        rule="The variance of the first word, and its tangent kernel, are within"
        f" {percent(SHARE)} of those with scores over √d, by four errors.",
        ours=(
            f"Variance, {'; '.join(listed)}. Tangent kernel at 1: {tied_tangent:.4f},"
            f" ours {tangent.value:.4f} ± {tangent.error:.0e}."
        ),
        verdict=extrapolate(combine(*verdicts)),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Heads, both closed forms, and what stands in for the form that is not known."""
    return [_gaussian(numbers), _tied(numbers), _plain(numbers), _stand_in(numbers)]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Variances of the first word by scale, and excess kurtoses by heads."""
    arrays = numbers["kernels"]
    for k, scale in enumerate(arrays["scale"]):
        for name in ("exact", "tied", "untied"):
            value = float(arrays[name][k, 0, 0])
            error = value * float(arrays["error"][k]) if name == "exact" else 0.0
            variance = Estimate(value, error)
            yield _row(
                f"variance, {name}", scale=float(scale), heads="inf", number=variance
            )
    for scale in (1.0, 4.0):
        arrays = numbers[f"heads {scale:g}"]
        kurtoses = estimates(arrays["kurtosis"], arrays["error"])
        for heads, kurtosis in zip(HEADS, kurtoses, strict=True):
            yield _row("excess kurtosis", scale, heads, number=kurtosis)


def _row(
    quantity: str, scale: float, heads: int | str, number: Estimate
) -> dict[str, Any]:
    """One row of the table."""
    return {
        "quantity": quantity,
        "scale": scale,
        "heads": heads,
        "value": number.value,
        "error": number.error,
    }


def draw(numbers: Numbers) -> Any:
    """The variance by the scale of scores, and the excess kurtosis by heads."""
    figure = new(2.4)
    left, right = figure.subplots(1, 2)
    _plot_variances(left, numbers["kernels"])
    for scale, colour, line in ((1.0, BLUE, "o-"), (4.0, VERMILLION, "s-")):
        kurtosis = numbers[f"heads {scale:g}"]["kurtosis"]
        label = f"σ$_Q$σ$_K$ = {scale:g}"
        right.plot(HEADS, kurtosis, line, ms=3, color=colour, label=label)
    right.axhline(KURTOSIS_ATOL, color=GREY, lw=0.6, ls=":")
    right.set(xscale="log", yscale="log", xlabel="heads", ylabel="excess kurtosis")
    right.set_xticks(HEADS, [str(heads) for heads in HEADS])
    right.minorticks_off()
    right.legend(loc="lower left")
    return figure


def _plot_variances(axes: Any, arrays: Arrays) -> None:
    """The variance of the first word by the scale of scores."""
    lines = (
        ("exact", BLUE, "-", "over √d"),
        ("tied", VERMILLION, "--", "over d, tied"),
        ("untied", GREY, ":", "over d"),
    )
    scales = arrays["scale"]
    for name, colour, line, label in lines:
        axes.plot(scales, arrays[name][:, 0, 0], line, color=colour, label=label)
    axes.set(xscale="log", xlabel="σ$_Q$σ$_K$")
    axes.set(ylabel="variance, infinitely many heads", ylim=(0, 1))
    axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
    axes.minorticks_off()
    axes.legend(loc="upper left")


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
            name="hron",
            caption=(
                "Left: variance of an output with infinitely many heads, by the scale"
                " of scores, for three ways to divide them. Right: excess kurtosis at"
                " infinite width by the number of heads; dotted: 0.01."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
)
