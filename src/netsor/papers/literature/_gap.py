"""Nait Saada, Naderi and Tanner: the spectral gap of attention by the length of the
context, and rank collapse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREY, MARK_OF, ORANGE, VERMILLION, new
from ...studies import Arrays, derive_seed, slope_of
from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._result import (
    EXPONENT_ATOL,
    Array,
    Claim,
    Numbers,
    Part,
    Picture,
    Result,
    mean,
    mean_columns,
    near,
    width_of,
)

LENGTHS = (20, 40, 60, 80, 100, 150)  # of the public code
LONGER = (80, 320, 960)
LONG_CONTEXT = 500  # tokens beyond which fewer networks are drawn
STD = math.sqrt(math.log(2.0))  # of scores, in the public code
HEAD_DIMS = (24, 96)
# Layers in the public code: the gradient of the last by the values of the first.
FIRST, LAST = 2, 10
NORM_RTOL = 0.1  # for growths per layer; it was fixed before any number was seen
# Label and colour of each kind of scores in the figure.
LOOKS = {
    "model": ("independent scores", BLUE),
    f"head {HEAD_DIMS[1]}": (f"head dimension {HEAD_DIMS[1]}", ORANGE),
    f"head {HEAD_DIMS[0]}": (f"head dimension {HEAD_DIMS[0]}", VERMILLION),
}


def layer(tokens: int) -> Program:
    """Attention weights of queries and keys in R^n, and products of values in R^m.

    At infinite n scores are independent, as in the paper's model; m is the width, and
    tokens are orthonormal.
    """
    n = ns.Width("n")
    m = ns.Width("m")
    scores = STD * ns.dot(ns.gaussian(n, tokens), ns.gaussian(n, tokens))
    values = ns.gaussian(m, tokens)
    return Program((ns.softmax(scores), ns.mean_dot(values, values)))


def stable_rank(weights: Array, values: Array) -> Array:
    """Σ_i λ_i²/λ_1² for the eigenvalues of outputs' kernels, as in the public code.

    The kernel of the outputs A V is A K Aᵀ, with attention A = `weights` and the kernel
    of values K = `values`, both (draws, T, T). The result is (draws,).
    """
    kernels = weights @ values @ np.swapaxes(weights, 1, 2)
    eigenvalues = np.linalg.eigvalsh(kernels)  # ascending
    return np.asarray((eigenvalues**2).sum(axis=1) / eigenvalues[:, -1] ** 2)


def spectra(tokens: int, head_dim: int | None, draws: int, seed: int) -> Arrays:
    """s₂/s₁ of attention, and stable ranks with it and without its outlier 11ᵀ/T.

    `head_dim` None is infinite.
    """
    drawn = layer(tokens).draw(
        n=width_of(head_dim),
        m=tokens,
        draws=draws,
        seed=derive_seed(seed, tokens),
        workers=1,
        progress=False,
    )
    weights = np.asarray(drawn[0])
    values = np.asarray(drawn[1])
    singular = np.linalg.svd(weights, compute_uv=False)
    return {
        "gap": singular[:, 1] / singular[:, 0],
        "rank": stable_rank(weights, values),
        "removed": stable_rank(weights - 1 / tokens, values),
    }


class Growth(NamedTuple):
    """How a gradient grows per layer, by two measures."""

    product: float  # the product of norms in the public code
    norm: float  # the norm itself


def gradient_norms(weights: Array, values: Array, tokens: Array) -> Growth:
    """How ∂X_L/∂W_l grows per layer from L = l to 10, with l = FIRST.

    `weights` is attention A (layer, T, T) of layers 1 to 10, `values` W likewise, and
    `tokens` X_0 (T, T) are orthonormal; X_l = A_l X_(l−1) W_l. The Jacobian of X_L by
    X_l is P ⊗ M, with P the product of attention and M that of values, and ∂X_l/∂W_l is
    Y ⊗ 1 with Y = A_l X_(l−1). The code has ‖J‖ ‖J Y‖, where Y meets the features of J:
    ‖P‖ ‖M‖ · ‖P‖ ‖M Y‖.
    """
    x = tokens
    for a, w in zip(weights[: FIRST - 1], values[: FIRST - 1], strict=True):
        x = a @ x @ w
    y = weights[FIRST - 1] @ x

    p = np.eye(len(tokens))
    m = np.eye(len(tokens))
    for a, w in zip(weights[FIRST:], values[FIRST:], strict=True):
        p = a @ p
        m = w.T @ m

    # both relative to their values at L = l, where P = M = 1
    size = np.linalg.norm
    code_at_first_layer = len(y) ** 1.5 * size(y)
    of_code = size(p) ** 2 * size(m) * size(m @ y) / code_at_first_layer
    gradient_at_first_layer = math.sqrt(len(y)) * size(y)
    of_gradient = size(p @ y) * size(m) / gradient_at_first_layer

    per_layer = 1 / (LAST - FIRST)
    return Growth(float(of_code) ** per_layer, float(of_gradient) ** per_layer)


def gradients(tokens: int, draws: int, seed: int) -> Arrays:
    """Both growths of `gradient_norms` for independent scores and values, (draws,)
    each.

    Attention has its outlier 11ᵀ/T (kept) or not (removed).
    """
    seed = derive_seed(seed, tokens)
    program = Program(ns.softmax(STD * ns.normal((LAST, tokens, tokens))))
    networks = program.draw(draws=draws, seed=seed, workers=1, progress=False)
    rng = np.random.default_rng(seed)
    kept = []
    removed = []
    for weights in np.asarray(networks):
        x = np.linalg.qr(rng.standard_normal((tokens, tokens)))[0]
        values = rng.standard_normal((LAST, tokens, tokens))
        kept.append(gradient_norms(weights, values, x))
        removed.append(gradient_norms(weights - 1 / tokens, values, x))
    return {
        "kept": np.array([growth.product for growth in kept]),
        "kept_norm": np.array([growth.norm for growth in kept]),
        "removed": np.array([growth.product for growth in removed]),
        "removed_norm": np.array([growth.norm for growth in removed]),
    }


def parts(quick: bool) -> list[Part]:
    """The model at the lengths of the code, heads at longer ones, and gradients."""
    parts = []
    for tokens in (*LENGTHS, *LONGER[1:]):
        draws = _draws(tokens, quick, in_long_contexts=48)
        parts.append(_spectra_part("model", tokens, head_dim=None, draws=draws))
    for head_dim in HEAD_DIMS:
        for tokens in LONGER:
            draws = _draws(tokens, quick, in_long_contexts=16)
            parts.append(_spectra_part(f"head {head_dim}", tokens, head_dim, draws))
    for tokens in LENGTHS:
        arguments = {"tokens": tokens, "draws": 10 if quick else 40}
        parts.append(
            Part(
                label=f"layers {tokens}",
                work=gradients,
                arguments=arguments,
                seconds=0.3,
            )
        )
    return parts


def _draws(tokens: int, quick: bool, in_long_contexts: int) -> int:
    """How many networks are drawn: fewer in long contexts, which take longer."""
    is_long = tokens > LONG_CONTEXT
    if quick:
        return 4 if is_long else 40
    return in_long_contexts if is_long else 200


def _spectra_part(name: str, tokens: int, head_dim: int | None, draws: int) -> Part:
    """A part with the spectra at one length; its label is the name and the length."""
    arguments = {"tokens": tokens, "head_dim": head_dim, "draws": draws}
    seconds = 0.2 + 0.3 * draws * (tokens / 500) ** 2.5
    return Part(
        label=f"{name} {tokens}", work=spectra, arguments=arguments, seconds=seconds
    )


def _lengths(numbers: Numbers, name: str) -> list[int]:
    """The lengths of the context at which one kind of scores was measured, the shortest
    first.

    They are in the labels of the parts: "head 96 320" is of the kind "head 96".
    """
    lengths = []
    for label in numbers:
        kind, _, tokens = label.rpartition(" ")
        if kind == name:
            lengths.append(int(tokens))
    return sorted(lengths)


def means(
    numbers: Numbers, name: str, lengths: Sequence[int], key: str
) -> dict[int, Estimate]:
    """Means of one array over networks, by length. `name` is the kind of scores, such
    as "head 96": the labels of the parts are this name and the length.
    """
    return {tokens: mean(numbers[f"{name} {tokens}"][key]) for tokens in lengths}


def slope(
    numbers: Numbers, name: str, first: int, last: int, key: str = "gap"
) -> Estimate:
    """The exponent of T in the mean of one array, between two lengths."""
    ends = means(numbers, name, lengths=(first, last), key=key)
    return slope_of([first, last], [ends[first], ends[last]])


def _listed(by_length: Mapping[int, Estimate]) -> str:
    """As "0.41 ± 0.01 (T = 20), 0.30 ± 0.01 (T = 40)"."""
    return ", ".join(f"{e} (T = {tokens:,})" for tokens, e in by_length.items())


def _gap(
    numbers: Numbers, name: str, ends: tuple[int, int], words: str, *, stated: bool
) -> Claim:
    """The claim on the power of the length that s₂/s₁ falls like, between two lengths.

    `stated` says whether the authors state it for these scores and lengths.
    """
    shortest, longest = ends
    exponent = slope(numbers, name, first=shortest, last=longest)
    verdict = near(exponent, -0.5)
    gaps = []
    for tokens, gap in means(
        numbers, name, lengths=_lengths(numbers, name), key="gap"
    ).items():
        gaps.append(f"{gap.value:.3f} (T = {tokens})")
    return Claim(
        published=(
            "A spectral gap of attention opens as the context grows: s₂/s₁ falls like"
            f" T^(−1/2), {words}."
        ),
        rule=(
            f"The exponent of T in its mean, from {shortest:,} to {longest:,}, is"
            f" within {EXPONENT_ATOL:g} of −1/2."
        ),
        ours=f"{exponent}. Means: {', '.join(gaps)}.",
        verdict=extrapolate(verdict, stated=stated),
    )


def _collapse(
    numbers: Numbers, name: str, lengths: tuple[int, ...], words: str, *, stated: bool
) -> Claim:
    """The claim that the stable rank of outputs falls with the length."""
    ranks = means(numbers, name, lengths, key="rank")
    verdict = decide_decreasing(ranks[lengths[0]], ranks[lengths[-1]])
    return Claim(
        published=(
            "Rank collapses in width: the stable rank of a layer's output falls as the"
            f" context grows, {words}."
        ),
        rule=f"Its mean at T = {lengths[-1]:,} is below that at {lengths[0]}, by four"
        " standard errors.",
        ours=f"{_listed(ranks)}.",
        verdict=extrapolate(verdict, stated=stated),
    )


def _removed(numbers: Numbers) -> Claim:
    """The claim that the stable rank without the outlier does not fall."""
    ranks = means(numbers, name="model", lengths=LENGTHS, key="removed")
    shortest = LENGTHS[0]
    longest = LENGTHS[-1]
    with_outlier = mean(numbers[f"model {longest}"]["rank"])
    listed = ", ".join(f"{e.value:.2f} (T = {tokens})" for tokens, e in ranks.items())
    return Claim(
        published="Without the outlier 11ᵀ/T the rank does not collapse in width.",
        rule=f"The mean stable rank without it grows from T = {shortest} to {longest},"
        " and is above that with it.",
        ours=f"{listed}; with the outlier {with_outlier}.",
        verdict=combine(
            decide_decreasing(ranks[longest], ranks[shortest]),
            decide_decreasing(ranks[longest], with_outlier),
        ),
    )


def _explosion(numbers: Numbers) -> Claim:
    """The claim that gradients with the outlier explode."""
    growths = means(numbers, name="layers", lengths=LENGTHS, key="kept")
    exponent = slope(
        numbers, name="layers", first=LENGTHS[0], last=LENGTHS[-1], key="kept"
    )
    return Claim(
        published=(
            "With the outlier gradients explode, the more the longer the context is."
        ),
        rule=(
            f"The growth per layer of the code's measure of ∂X_L/∂W_l, from L = {FIRST}"
            f" to {LAST}, has an exponent of T above {EXPONENT_ATOL:g}, from T ="
            f" {LENGTHS[0]} to {LENGTHS[-1]}."
        ),
        ours=f"{_listed(growths)}; exponent {exponent}.",
        verdict=decide_below(Estimate(-exponent.value, exponent.error), -EXPONENT_ATOL),
    )


def _no_explosion(numbers: Numbers) -> Claim:
    """The claim that gradients without the outlier do not explode."""
    growths = means(numbers, name="layers", lengths=LENGTHS, key="removed")
    exponent = slope(
        numbers, name="layers", first=LENGTHS[0], last=LENGTHS[-1], key="removed"
    )
    return Claim(
        published="Without the outlier 11ᵀ/T gradients do not explode.",
        rule=(
            f"The growth per layer of the code's measure of ∂X_L/∂W_l, from L = {FIRST}"
            f" to {LAST}, is below 1 at all lengths."
        ),
        ours=f"{_listed(growths)}; exponent {exponent}.",
        verdict=combine(*(decide_below(growth, 1.0) for growth in growths.values())),
    )


def _product(numbers: Numbers) -> Claim:
    """The claim that the code's product of norms stands for the norm of the
    gradient.
    """
    norms = means(numbers, name="layers", lengths=LENGTHS, key="kept_norm")
    ratios = {}
    for tokens in LENGTHS:
        arrays = numbers[f"layers {tokens}"]
        ratios[tokens] = mean(arrays["kept"] / arrays["kept_norm"])
    return Claim(
        published="The code's product of two norms, ‖J‖ ‖J A X‖, stands for the norm of"
        " ∂X_L/∂W_l, to avoid a Kronecker product.",
        rule=f"Their growths per layer are within {percent(NORM_RTOL)} of each other at"
        " all lengths, with the outlier.",
        ours=(
            f"The product's growth over that of the norm: {_listed(ratios)}. The norm"
            f" grows {_listed(norms)} per layer. The product has the Jacobian twice,"
            " the norm once."
        ),
        verdict=combine(*(near(ratio, 1.0, NORM_RTOL) for ratio in ratios.values())),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The gap, the collapse and gradients in the paper's model, and the first two for
    heads of finite dimension.
    """
    _, middle, last = LONGER
    ends = (middle, last)
    code_ends = (LENGTHS[0], LENGTHS[-1])
    long_words = "for independent scores in long contexts"
    code_words = "for independent scores at the lengths of the code"
    claims = [
        _gap(numbers, name="model", ends=ends, words=long_words, stated=True),
        _gap(numbers, name="model", ends=code_ends, words=code_words, stated=False),
        _collapse(
            numbers,
            name="model",
            lengths=LENGTHS,
            words="for independent scores",
            stated=True,
        ),
        _removed(numbers),
    ]
    heads = {f"head {d}": f"for heads of dimension {d}" for d in HEAD_DIMS}
    for name, words in heads.items():
        claims.append(
            _gap(numbers, name, ends=(LONGER[0], last), words=words, stated=False)
        )
    for name, words in heads.items():
        claims.append(
            _collapse(numbers, name, lengths=LONGER, words=words, stated=False)
        )
    return [
        *claims,
        _explosion(numbers),
        _no_explosion(numbers),
        _product(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means with standard errors, by scores and length."""
    for label, arrays in numbers.items():
        name, tokens = label.rsplit(" ", 1)
        if name == "layers":
            continue
        means = {key: mean(arrays[key]) for key in ("gap", "rank", "removed")}
        yield {"scores": name, "tokens": int(tokens), **mean_columns(means)}


def draw(numbers: Numbers) -> Any:
    """The gap and the stable rank by length."""
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    _plot_means(left, numbers, "gap")
    left.set(xscale="log", yscale="log")
    left.set(xlabel="tokens T", ylabel="s₂ / s₁ of attention")
    left.set_yticks([0.05, 0.1, 0.2, 0.4], ["0.05", "0.1", "0.2", "0.4"])
    left.minorticks_off()
    _plot_means(right, numbers, "rank")
    right.set(xscale="log", xlabel="tokens T", ylabel="stable rank of outputs")
    right.axhline(1.0, color=GREY, lw=0.6, ls=":")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _plot_means(axes: Any, numbers: Numbers, key: str) -> None:
    """Plot the means of one array over networks by the length of the context, a line
    for each kind of scores.
    """
    for name, (label, colour) in LOOKS.items():
        lengths = _lengths(numbers, name)
        values = [e.value for e in means(numbers, name, lengths, key).values()]
        style = {"marker": MARK_OF[colour], "ms": 3, "color": colour}
        axes.plot(lengths, values, label=label, **style)


RESULT = Result(
    name="gap",
    title="Mind the Gap: rank collapse in width",
    source=(
        "Nait Saada, Naderi and Tanner, Mind the Gap: a spectral analysis of rank"
        " collapse and signal propagation in attention layers (ICML 2025), and their"
        " public code."
    ),
    links=(
        "https://arxiv.org/abs/2410.07799",
        (
            "https://github.com/thizirinait/"
            "Mind-the-Gap-a-Spectral-Analysis-of-Rank-Collapse-and-Signal-Propagation-in-Attention-Layers"
        ),
    ),
    setting=(
        "One layer of attention on orthonormal tokens, T = 20 to 150 as in the public"
        " code, width T. The paper's model of attention is the softmax of independent"
        " normal scores of variance log 2: the law of queries and keys at infinite"
        " head dimension. Gradients use the code's model without norms and residual"
        " connections: ten such layers with values of variance 1, where tokens,"
        " attention and values are drawn anew. Ours: one layer with heads of dimension"
        f" {HEAD_DIMS[0]} and {HEAD_DIMS[1]} too, where scores ⟨q, k⟩ have the exact"
        f" law and at most that rank, up to T = {LONGER[-1]}."
    ),
    quick="fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="gap",
            caption=(
                "Left: the second singular value of attention over the first. Right:"
                " the stable rank of a layer's output."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract and introduction; the public code has no results"
        " to compare with, and whether the paper shows its product of norms is not"
        " known. The exponent −1/2 belongs to large random matrices with independent"
        " entries."
    ),
)
