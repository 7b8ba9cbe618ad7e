"""Nait Saada, Naderi and Tanner: the spectral gap of attention by the length of the context, and rank collapse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from netsor import language as ns
from netsor._mpl_style import BLUE, GREY, MARK_OF, ORANGE, VERMILLION, new
from netsor._program import Program
from netsor.laws import Estimate
from netsor.studies import Arrays, derive_seed

from .._significance import combine, decide_below, decide_decreasing, extrapolate
from ._result import EXPONENT_ATOL, Array, Claim, Numbers, Part, Picture, Result, mean

LENGTHS = (20, 40, 60, 80, 100, 150)  # of the public code
LONGER = (64, 256, 1024)
STD = math.sqrt(math.log(2.0))  # of scores, there
HEAD_DIMS = (32, 128)
LAYERS = 8  # from layer 2 to 10, there
LOOKS = {"model": ("independent scores", BLUE), "head 128": ("head dimension 128", ORANGE),
         "head 32": ("head dimension 32", VERMILLION)}  # fmt: skip


def layer(tokens: int) -> Program:
    """Attention weights of queries and keys in R^n, and products of values in R^m.

    At infinite n scores are independent, as in the paper's model; m is the width, and tokens are orthonormal.
    """
    n, m = ns.Width("n"), ns.Width("m")
    scores = STD * ns.dot(ns.gaussian(n, tokens), ns.gaussian(n, tokens))
    values = ns.gaussian(m, tokens)
    return Program((ns.softmax(scores), ns.mean_dot(values, values)))


def stable_rank(weights: Array, values: Array) -> Array:
    """Σ_i λ_i²/λ_1² for the eigenvalues of the kernel of outputs, as in the public code."""
    eigenvalues = np.linalg.eigvalsh(weights @ values @ np.swapaxes(weights, 1, 2))
    return np.asarray((eigenvalues**2).sum(axis=1) / eigenvalues[:, -1] ** 2)


def spectra(tokens: int, head_dim: int | None, draws: int, seed: int) -> Arrays:
    """s₂/s₁ of attention, and stable ranks with it and without its outlier 11ᵀ/T; `head_dim` None is infinite."""
    n, seed = math.inf if head_dim is None else head_dim, derive_seed(seed, tokens)
    weights, values = map(
        np.asarray, layer(tokens).draw(n=n, m=tokens, draws=draws, seed=seed, workers=1, progress=False)
    )
    singular = np.linalg.svd(weights, compute_uv=False)
    return {
        "gap": singular[:, 1] / singular[:, 0],
        "rank": stable_rank(weights, values),
        "removed": stable_rank(weights - 1 / tokens, values),
    }


def gradient_growth(weights: Array) -> Array:
    """The growth of |∂X_L/∂X_l|² per layer from attention (draw, layer, T, T), for values x W with W_ij ~ N(0, 1).

    The mean over the T × T matrices W multiplies the square of the product of attention by T in each layer.
    """
    product = np.asarray(np.eye(weights.shape[-1]))
    for layer_weights in np.moveaxis(weights, 1, 0):
        product = layer_weights @ product
    tokens = weights.shape[-1]
    return np.asarray(tokens * ((product**2).sum(axis=(1, 2)) / tokens) ** (1 / weights.shape[1]))


def gradients(tokens: int, draws: int, seed: int) -> Arrays:
    """That growth for independent scores, with the outlier and without."""
    program = Program(ns.softmax(STD * ns.normal((LAYERS, tokens, tokens))))
    weights = np.asarray(program.draw(draws=draws, seed=derive_seed(seed, tokens), workers=1, progress=False))
    return {"kept": gradient_growth(weights), "removed": gradient_growth(weights - 1 / tokens)}


def parts(quick: bool) -> list[Part]:
    """The paper's model at its lengths, heads of two dimensions at longer ones too, and gradients in the model."""
    made = []
    for head_dim in (None, *HEAD_DIMS):
        for tokens in (*LENGTHS, *LONGER[1:]) if head_dim is None else LONGER:
            draws = (4 if tokens > 500 else 40) if quick else (16 if tokens > 500 else 200)
            name = "model" if head_dim is None else f"head {head_dim}"
            given = {"tokens": tokens, "head_dim": head_dim, "draws": draws}
            made.append(Part(f"{name} {tokens}", spectra, given, 0.2 + 0.3 * draws * (tokens / 500) ** 2.5))
    given = {"draws": 10 if quick else 40}
    return [*made, *(Part(f"layers {tokens}", gradients, {"tokens": tokens, **given}, 0.3) for tokens in LENGTHS)]


def slope(numbers: Numbers, name: str, first: int, last: int, key: str = "gap") -> Estimate:
    """The exponent of T in the mean, between two lengths."""
    low, high = mean(numbers[f"{name} {first}"][key]), mean(numbers[f"{name} {last}"][key])
    size = math.log(last / first)
    return Estimate(
        math.log(high.value / low.value) / size, math.hypot(low.error / low.value, high.error / high.value) / size
    )


def _gap(numbers: Numbers, name: str, first: int, last: int, words: str, stated: bool) -> Claim:
    found = slope(numbers, name, first, last)
    verdict = decide_below(Estimate(abs(found.value + 0.5), found.error), EXPONENT_ATOL)
    values = ", ".join(
        f"{mean(arrays['gap']).value:.3f} (T = {label.split()[-1]})"
        for label, arrays in numbers.items()
        if label.startswith(name)
    )
    return Claim(
        f"A spectral gap of attention opens as the context grows: s₂/s₁ falls like T^(−1/2), {words}.",
        f"The exponent of T in its mean, from {first:,} to {last:,}, is within {EXPONENT_ATOL:g} of −1/2.",
        f"{found}. Means: {values}.",
        verdict if stated else extrapolate(verdict),
    )


def _collapse(numbers: Numbers, name: str, lengths: tuple[int, ...], words: str, stated: bool) -> Claim:
    found = {tokens: mean(numbers[f"{name} {tokens}"]["rank"]) for tokens in lengths}
    verdict = decide_decreasing(found[lengths[0]], found[lengths[-1]])
    return Claim(
        f"Rank collapses in width: the stable rank of a layer's output falls as the context grows, {words}.",
        f"Its mean at T = {lengths[-1]:,} is below that at {lengths[0]}, by four standard errors.",
        ", ".join(f"{e} (T = {tokens:,})" for tokens, e in found.items()) + ".",
        verdict if stated else extrapolate(verdict),
    )


def _removed(numbers: Numbers) -> Claim:
    found = {tokens: mean(numbers[f"model {tokens}"]["removed"]) for tokens in LENGTHS}
    kept = mean(numbers[f"model {LENGTHS[-1]}"]["rank"])
    return Claim(
        "Without the outlier 11ᵀ/T the rank does not collapse in width.",
        f"The mean stable rank without it grows from T = {LENGTHS[0]} to {LENGTHS[-1]}, and is above that with it.",
        ", ".join(f"{e.value:.2f} (T = {tokens})" for tokens, e in found.items()) + f"; with the outlier {kept}.",
        combine(decide_decreasing(found[LENGTHS[-1]], found[LENGTHS[0]]), decide_decreasing(found[LENGTHS[-1]], kept)),
    )


def _gradients(numbers: Numbers, key: str) -> Claim:
    found = slope(numbers, "layers", LENGTHS[0], LENGTHS[-1], key)
    values = {tokens: mean(numbers[f"layers {tokens}"][key]) for tokens in LENGTHS}
    if key == "kept":
        words = "With the outlier gradients explode, the more the longer the context is."
        rule = f"has an exponent of T above {EXPONENT_ATOL:g}, from T = {LENGTHS[0]} to {LENGTHS[-1]}"
        verdict = decide_below(Estimate(-found.value, found.error), -EXPONENT_ATOL)
    else:
        words = "Without the outlier 11ᵀ/T gradients do not explode."
        rule = "is below 1 at all lengths (a first rule, an exponent of at most 0.1, left it undecided)"
        verdict = combine(*(decide_below(e, 1.0) for e in values.values()))
    return Claim(
        words,
        f"The growth of squared gradients per layer, over {LAYERS} layers, {rule}.",
        ", ".join(f"{e} (T = {tokens})" for tokens, e in values.items()) + f"; exponent {found}.",
        verdict,
    )


def judge(numbers: Numbers) -> list[Claim]:
    """The gap, the collapse and gradients in the paper's model, and the first two for heads of finite dimension."""
    first, *_, last = LONGER
    return [
        _gap(numbers, "model", LONGER[1], last, "for independent scores in long contexts", True),
        _gap(numbers, "model", LENGTHS[0], LENGTHS[-1], "for independent scores at the lengths of the code", False),
        _collapse(numbers, "model", LENGTHS, "for independent scores", True),
        _removed(numbers),
        *(_gap(numbers, f"head {d}", first, last, f"for heads of dimension {d}", False) for d in HEAD_DIMS),
        *(_collapse(numbers, f"head {d}", LONGER, f"for heads of dimension {d}", False) for d in HEAD_DIMS),
        *(_gradients(numbers, key) for key in ("kept", "removed")),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means with standard errors, by scores and length."""
    for label, arrays in numbers.items():
        name, tokens = label.rsplit(" ", 1)
        if name == "layers":
            continue
        made = {key: mean(arrays[key]) for key in ("gap", "rank", "removed")}
        yield {"scores": name, "tokens": int(tokens), **{key: e.value for key, e in made.items()},
               **{f"{key}_error": e.error for key, e in made.items()}}  # fmt: skip


def draw(numbers: Numbers) -> Any:
    """The gap and the stable rank by length."""
    figure = new(2.6)
    both = figure.subplots(1, 2)
    for axes, key, label in zip(both, ("gap", "rank"), ("s₂ / s₁ of attention", "stable rank of outputs"), strict=True):
        for name, (words, colour) in LOOKS.items():
            places = sorted(int(part.rsplit(" ", 1)[1]) for part in numbers if part.startswith(name))
            values = [mean(numbers[f"{name} {tokens}"][key]).value for tokens in places]
            axes.plot(places, values, marker=MARK_OF[colour], ms=3, color=colour, label=words)
        axes.set(xscale="log", yscale="log" if key == "gap" else "linear", xlabel="tokens T", ylabel=label)
    both[0].set_yticks([0.05, 0.1, 0.2, 0.4], ["0.05", "0.1", "0.2", "0.4"])
    both[0].minorticks_off()
    both[1].axhline(1.0, color=GREY, lw=0.6, ls=":")
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


RESULT = Result(
    name="gap",
    title="Mind the Gap: rank collapse in width",
    source="Nait Saada, Naderi and Tanner, Mind the Gap: a spectral analysis of rank collapse and signal propagation "
    "in attention layers (ICML 2025), and their public code.",
    links=(
        "https://arxiv.org/abs/2410.07799",
        "https://github.com/thizirinait/"
        "Mind-the-Gap-a-Spectral-Analysis-of-Rank-Collapse-and-Signal-Propagation-in-Attention-Layers",
    ),
    setting="One layer of attention on orthonormal tokens, T = 20 to 150 as in the public code, width T. The paper's "
    "model of attention is the softmax of independent normal scores of variance log 2: the law of queries and keys at "
    "infinite head dimension. Ours: the same network with heads of dimension 32 and 128 too, where scores ⟨q, k⟩ have "
    "the exact law and at most that rank, up to T = 1024.",
    quick="fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            "gap",
            "Left: the second singular value of attention over the first. Right: the stable rank of a layer's output.",
            draw,
            rows,
        ),
    ),
    unread="the paper beyond its abstract and introduction; the public code has no results to compare with. The "
    "exponent −1/2 is that of large random matrices with independent entries. Gradients are "
    "those of features, in the mean over value matrices; the code has the product of two norms.",
)
