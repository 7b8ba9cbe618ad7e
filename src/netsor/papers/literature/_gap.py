"""Nait Saada, Naderi and Tanner: the spectral gap of attention by the length of the
context, and rank collapse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import language as ns
from ..._mpl_style import BLUE, GREY, MARK_OF, ORANGE, VERMILLION, new
from ..._program import Program
from ...laws import Estimate
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
    near,
)

LENGTHS = (20, 40, 60, 80, 100, 150)  # of the public code
LONGER = (80, 320, 960)
STD = math.sqrt(math.log(2.0))  # of scores, there
HEAD_DIMS = (24, 96)
# layers: the gradient of the last by the values of the first, there
FIRST, LAST = 2, 10
NORM_RTOL = 0.1  # of a growth per layer; fixed before any number was seen
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
    n, m = ns.Width("n"), ns.Width("m")
    scores = STD * ns.dot(ns.gaussian(n, tokens), ns.gaussian(n, tokens))
    values = ns.gaussian(m, tokens)
    return Program((ns.softmax(scores), ns.mean_dot(values, values)))


def stable_rank(weights: Array, values: Array) -> Array:
    """Σ_i λ_i²/λ_1² for the eigenvalues of the kernel of outputs, as in the public
    code.
    """
    eigenvalues = np.linalg.eigvalsh(weights @ values @ np.swapaxes(weights, 1, 2))
    return np.asarray((eigenvalues**2).sum(axis=1) / eigenvalues[:, -1] ** 2)


def spectra(tokens: int, head_dim: int | None, draws: int, seed: int) -> Arrays:
    """s₂/s₁ of attention, and stable ranks with it and without its outlier 11ᵀ/T;
    `head_dim` None is infinite.
    """
    n, seed = math.inf if head_dim is None else head_dim, derive_seed(seed, tokens)
    weights, values = map(
        np.asarray,
        layer(tokens).draw(
            n=n, m=tokens, draws=draws, seed=seed, workers=1, progress=False
        ),
    )
    singular = np.linalg.svd(weights, compute_uv=False)
    return {
        "gap": singular[:, 1] / singular[:, 0],
        "rank": stable_rank(weights, values),
        "removed": stable_rank(weights - 1 / tokens, values),
    }


def gradient_norms(weights: Array, values: Array, tokens: Array) -> tuple[float, float]:
    """How ∂X_L/∂W_l grows per layer from L = l to 10: by the public code's product of
    norms, and by its norm.

    Attention (layer, T, T) of layers 1 to 10, values likewise, and orthonormal tokens;
    X_l = A_l X_(l−1) W_l. The Jacobian of X_L by X_l is P ⊗ M, with P the product of
    attention and M that of values, and ∂X_l/∂W_l is Y ⊗ 1 with Y = A_l X_(l−1). The
    code has ‖J‖ ‖J Y‖, where Y meets the features of J: ‖P‖ ‖M‖ · ‖P‖ ‖M Y‖.
    """
    x = tokens
    for a, w in zip(weights[: FIRST - 1], values[: FIRST - 1], strict=True):
        x = a @ x @ w
    y = weights[FIRST - 1] @ x
    p = m = np.eye(len(tokens))
    for a, w in zip(weights[FIRST:], values[FIRST:], strict=True):
        p, m = a @ p, w.T @ m
    size = np.linalg.norm
    product = size(p) ** 2 * size(m) * size(m @ y) / (len(y) ** 1.5 * size(y))
    own = size(p @ y) * size(m) / (math.sqrt(len(y)) * size(y))
    return float(product) ** (1 / (LAST - FIRST)), float(own) ** (1 / (LAST - FIRST))


def gradients(tokens: int, draws: int, seed: int) -> Arrays:
    """Both growths for independent scores and values, with the outlier (kept) and
    without (removed).
    """
    seed = derive_seed(seed, tokens)
    program = Program(ns.softmax(STD * ns.normal((LAST, tokens, tokens))))
    weights = np.asarray(
        program.draw(draws=draws, seed=seed, workers=1, progress=False)
    )
    rng = np.random.default_rng(seed)
    made: dict[str, list[tuple[float, float]]] = {"kept": [], "removed": []}
    for drawn in weights:
        x = np.linalg.qr(rng.standard_normal((tokens, tokens)))[0]
        values = rng.standard_normal((LAST, tokens, tokens))
        for key, outlier in (("kept", 0.0), ("removed", 1 / tokens)):
            made[key].append(gradient_norms(drawn - outlier, values, x))
    return {
        f"{key}{name}": np.array(found)[:, k]
        for key, found in made.items()
        for k, name in enumerate(("", "_norm"))
    }


def parts(quick: bool) -> list[Part]:
    """The paper's model at its lengths, heads of two dimensions at longer ones too, and
    gradients in the model.
    """
    made = []
    for head_dim in (None, *HEAD_DIMS):
        for tokens in (*LENGTHS, *LONGER[1:]) if head_dim is None else LONGER:
            few = 48 if head_dim is None else 16  # for long contexts
            draws = (
                (4 if tokens > 500 else 40) if quick else (few if tokens > 500 else 200)
            )
            name = "model" if head_dim is None else f"head {head_dim}"
            given = {"tokens": tokens, "head_dim": head_dim, "draws": draws}
            made.append(
                Part(
                    f"{name} {tokens}",
                    spectra,
                    given,
                    0.2 + 0.3 * draws * (tokens / 500) ** 2.5,
                )
            )
    given = {"draws": 10 if quick else 40}
    return [
        *made,
        *(
            Part(f"layers {tokens}", gradients, {"tokens": tokens, **given}, 0.3)
            for tokens in LENGTHS
        ),
    ]


def means(
    numbers: Numbers, name: str, lengths: Sequence[int], key: str
) -> dict[int, Estimate]:
    """Means over networks, by length."""
    return {tokens: mean(numbers[f"{name} {tokens}"][key]) for tokens in lengths}


def slope(
    numbers: Numbers, name: str, first: int, last: int, key: str = "gap"
) -> Estimate:
    """The exponent of T in the mean, between two lengths."""
    return slope_of(
        [first, last], list(means(numbers, name, (first, last), key).values())
    )


def _listed(found: Mapping[int, Estimate]) -> str:
    return ", ".join(f"{e} (T = {tokens:,})" for tokens, e in found.items())


def _gap(
    numbers: Numbers, name: str, first: int, last: int, words: str, stated: bool
) -> Claim:
    found = slope(numbers, name, first, last)
    verdict = near(found, -0.5)
    values = ", ".join(
        f"{mean(arrays['gap']).value:.3f} (T = {label.split()[-1]})"
        for label, arrays in numbers.items()
        if label.startswith(name)
    )
    return Claim(
        "A spectral gap of attention opens as the context grows: s₂/s₁ falls like"
        f" T^(−1/2), {words}.",
        f"The exponent of T in its mean, from {first:,} to {last:,}, is within"
        f" {EXPONENT_ATOL:g} of −1/2.",
        f"{found}. Means: {values}.",
        verdict if stated else extrapolate(verdict),
    )


def _collapse(
    numbers: Numbers, name: str, lengths: tuple[int, ...], words: str, stated: bool
) -> Claim:
    found = means(numbers, name, lengths, "rank")
    verdict = decide_decreasing(found[lengths[0]], found[lengths[-1]])
    return Claim(
        "Rank collapses in width: the stable rank of a layer's output falls as the"
        f" context grows, {words}.",
        f"Its mean at T = {lengths[-1]:,} is below that at {lengths[0]}, by four"
        " standard errors.",
        f"{_listed(found)}.",
        verdict if stated else extrapolate(verdict),
    )


def _removed(numbers: Numbers) -> Claim:
    found = means(numbers, "model", LENGTHS, "removed")
    kept = mean(numbers[f"model {LENGTHS[-1]}"]["rank"])
    return Claim(
        "Without the outlier 11ᵀ/T the rank does not collapse in width.",
        f"The mean stable rank without it grows from T = {LENGTHS[0]} to {LENGTHS[-1]},"
        " and is above that with it.",
        ", ".join(f"{e.value:.2f} (T = {tokens})" for tokens, e in found.items())
        + f"; with the outlier {kept}.",
        combine(
            decide_decreasing(found[LENGTHS[-1]], found[LENGTHS[0]]),
            decide_decreasing(found[LENGTHS[-1]], kept),
        ),
    )


def _gradients(numbers: Numbers, key: str) -> Claim:
    found = slope(numbers, "layers", LENGTHS[0], LENGTHS[-1], key)
    values = means(numbers, "layers", LENGTHS, key)
    if key == "kept":
        words = (
            "With the outlier gradients explode, the more the longer the context is."
        )
        rule = (
            f"has an exponent of T above {EXPONENT_ATOL:g}, from T = {LENGTHS[0]} to"
            f" {LENGTHS[-1]}"
        )
        verdict = decide_below(Estimate(-found.value, found.error), -EXPONENT_ATOL)
    else:
        words = "Without the outlier 11ᵀ/T gradients do not explode."
        rule = "is below 1 at all lengths"
        verdict = combine(*(decide_below(e, 1.0) for e in values.values()))
    return Claim(
        words,
        f"The growth per layer of the code's measure of ∂X_L/∂W_l, from L = {FIRST} to"
        f" {LAST}, {rule}.",
        f"{_listed(values)}; exponent {found}.",
        verdict,
    )


def _product(numbers: Numbers) -> Claim:
    norms, both = (
        means(numbers, "layers", LENGTHS, "kept_norm"),
        {t: numbers[f"layers {t}"] for t in LENGTHS},
    )
    ratios = {
        tokens: mean(found["kept"] / found["kept_norm"])
        for tokens, found in both.items()
    }
    return Claim(
        "The code's product of two norms, ‖J‖ ‖J A X‖, stands for the norm of"
        " ∂X_L/∂W_l, to avoid a Kronecker product.",
        f"Their growths per layer are within {NORM_RTOL:.0%} of each other at all"
        " lengths, with the outlier.",
        f"The product's growth over that of the norm: {_listed(ratios)}. The norm grows"
        f" {_listed(norms)} per layer. The product has the Jacobian twice, the norm"
        " once.",
        combine(*(near(e, 1.0, NORM_RTOL) for e in ratios.values())),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The gap, the collapse and gradients in the paper's model, and the first two for
    heads of finite dimension.
    """
    first, *_, last = LONGER
    return [
        _gap(
            numbers,
            "model",
            LONGER[1],
            last,
            "for independent scores in long contexts",
            True,
        ),
        _gap(
            numbers,
            "model",
            LENGTHS[0],
            LENGTHS[-1],
            "for independent scores at the lengths of the code",
            False,
        ),
        _collapse(numbers, "model", LENGTHS, "for independent scores", True),
        _removed(numbers),
        *(
            _gap(
                numbers, f"head {d}", first, last, f"for heads of dimension {d}", False
            )
            for d in HEAD_DIMS
        ),
        *(
            _collapse(
                numbers, f"head {d}", LONGER, f"for heads of dimension {d}", False
            )
            for d in HEAD_DIMS
        ),
        *(_gradients(numbers, key) for key in ("kept", "removed")),
        _product(numbers),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means with standard errors, by scores and length."""
    for label, arrays in numbers.items():
        name, tokens = label.rsplit(" ", 1)
        if name == "layers":
            continue
        made = {key: mean(arrays[key]) for key in ("gap", "rank", "removed")}
        yield {
            "scores": name,
            "tokens": int(tokens),
            **{key: e.value for key, e in made.items()},
            **{f"{key}_error": e.error for key, e in made.items()},
        }


def draw(numbers: Numbers) -> Any:
    """The gap and the stable rank by length."""
    figure = new(2.6)
    both = figure.subplots(1, 2)
    for axes, key, label in zip(
        both,
        ("gap", "rank"),
        ("s₂ / s₁ of attention", "stable rank of outputs"),
        strict=True,
    ):
        for name, (words, colour) in LOOKS.items():
            places = sorted(
                int(part.rsplit(" ", 1)[1]) for part in numbers if part.startswith(name)
            )
            values = [mean(numbers[f"{name} {tokens}"][key]).value for tokens in places]
            axes.plot(
                places, values, marker=MARK_OF[colour], ms=3, color=colour, label=words
            )
        axes.set(
            xscale="log",
            yscale="log" if key == "gap" else "linear",
            xlabel="tokens T",
            ylabel=label,
        )
    both[0].set_yticks([0.05, 0.1, 0.2, 0.4], ["0.05", "0.1", "0.2", "0.4"])
    both[0].minorticks_off()
    both[1].axhline(1.0, color=GREY, lw=0.6, ls=":")
    figure.legend(
        *both[0].get_legend_handles_labels(), loc="outside lower center", ncols=2
    )
    return figure


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
            "gap",
            "Left: the second singular value of attention over the first. Right: the"
            " stable rank of a layer's output.",
            draw,
            rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract and introduction; the public code has no results"
        " to compare with, and whether the paper shows its product of norms is not"
        " known. The exponent −1/2 belongs to large random matrices with independent"
        " entries."
    ),
)
