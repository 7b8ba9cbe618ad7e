"""Tensor Programs I and II: the kernels of a transformer at infinite width, and how far
finite widths are from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...language import inf
from ...laws import Estimate
from ...report._mpl_style import BLUE, GREY, VERMILLION, new
from ...studies import Arrays, slope_of
from .._significance import decide
from ._result import Claim, Numbers, Part, Picture, Result, mean, within
from ._yang import (
    IMAGES,
    PLACES,
    kernel_program,
    last_kernel,
    tangent,
    tangent_program,
    word_kernel,
)

DEPTH = 2  # blocks in Tensor Programs I; II has one
# Depths at which the recursions are compared with our programs.
TANGENT_DEPTHS, KERNEL_DEPTHS = [2, 4], [3, 5]
NETWORKS = 10  # both papers publish means of that many
# Relative difference of two ways to compute one number: the rounding of some hundred
# operations, with room.
SAME = 1e-9
MAX_Z = 4.0  # standard deviations of the published numbers, by our law

# ‖Θ_n − Θ‖/‖Θ‖ by width, the mean of ten networks: from the file transformer_ntk.frob
# next to the notebook.
TANGENT = {
    64: 0.11761,
    128: 0.12027,
    256: 0.07479,
    512: 0.04158,
    1024: 0.04423,
    2048: 0.02521,
    4096: 0.01253,
    8192: 0.01182,
    16384: 0.00845,
}
# ‖K_n − K‖²/‖K‖² by width, the mean of ten networks: read off the curve in the
# notebook, to about 3 %.
KERNEL = {
    32: 0.0309,
    64: 0.0222,
    128: 0.00847,
    256: 0.00703,
    512: 0.00335,
    1024: 0.00099,
    2048: 0.000516,
    4096: 0.000328,
}


def tangent_limit(depths: list[int], seed: int) -> Arrays:
    """The tangent kernel at infinite width, by the published recursion and `ns.ntk`:
    arrays (depths, sequences, sequences).
    """
    gram_of_inputs = IMAGES @ IMAGES.T / IMAGES.shape[1]
    ours = []
    for depth in depths:
        kernels = tangent_program(depth, inf).draw(n=inf, draws=1, progress=False)
        ours.append(np.asarray(kernels)[0])
    return {
        "recursion": np.stack([tangent(gram_of_inputs, depth) for depth in depths]),
        "ours": np.stack(ours),
    }


def kernel_limit(depths: list[int], seed: int) -> Arrays:
    """The kernel of the last tokens at infinite width, by the published recursion and
    by our program: arrays (depths, tokens, tokens).
    """
    gram_of_words = word_kernel()[np.ix_(PLACES, PLACES)]
    ours = []
    for depth in depths:
        kernels = kernel_program(1, depth).draw(n=inf, draws=1, progress=False)
        ours.append(np.asarray(kernels)[0, 0])
    return {
        "recursion": np.stack([last_kernel(gram_of_words, depth) for depth in depths]),
        "ours": np.stack(ours),
    }


def tangent_width(width: int, draws: int, seed: int) -> Arrays:
    """‖Θ_n − Θ‖/‖Θ‖ of independent networks of a width, with the limit Θ: (draws,)."""
    limit = tangent(IMAGES @ IMAGES.T / IMAGES.shape[1], 1)
    program = tangent_program(1, width)
    kernels = program.draw(n=width, draws=draws, seed=seed, progress=False)
    difference = np.linalg.norm(np.asarray(kernels) - limit, axis=(1, 2))
    return {"off": difference / np.linalg.norm(limit)}


def kernel_width(width: int, draws: int, seed: int) -> Arrays:
    """‖K_n − K‖²/‖K‖², the mean over ten networks that share an embedding: (draws,).

    The notebook draws its networks in this way.
    """
    limit = last_kernel(word_kernel()[np.ix_(PLACES, PLACES)], DEPTH)
    program = kernel_program(NETWORKS, DEPTH)
    kernels = program.draw(n=width, draws=draws, seed=seed, progress=False)
    # kernels (draws, networks, tokens, tokens)
    difference = np.linalg.norm(np.asarray(kernels) - limit, axis=(2, 3))
    squares = (difference / np.linalg.norm(limit)) ** 2
    return {"off": np.mean(squares, axis=1)}


def parts(quick: bool) -> list[Part]:
    """Both limits, and every width that was published.

    A quick run has three widths of each, with fewer draws.
    """
    depths = TANGENT_DEPTHS[:1] if quick else TANGENT_DEPTHS
    seconds = 3.0 if quick else 6.0
    parts = [
        Part(
            label="tangent limit",
            work=tangent_limit,
            arguments={"depths": depths},
            seconds=seconds,
        ),
        Part(
            label="kernel limit",
            work=kernel_limit,
            arguments={"depths": KERNEL_DEPTHS},
            seconds=1.0,
        ),
    ]
    for width in (64, 256, 1024) if quick else TANGENT:
        draws = 200 if quick else min(1000, 2**21 // width)
        arguments = {"width": width, "draws": draws}
        seconds = 2.0 if quick else 9.0
        parts.append(
            Part(
                label=f"tangent {width}",
                work=tangent_width,
                arguments=arguments,
                seconds=seconds,
            )
        )
    for width in (32, 128, 512) if quick else KERNEL:
        draws = 40 if quick else min(200, 2**17 // width)
        arguments = {"width": width, "draws": draws}
        seconds = 2.0 if quick else 7.0
        parts.append(
            Part(
                label=f"kernel {width}",
                work=kernel_width,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


class _Distance(NamedTuple):
    """How far a kernel at one width is from its limit."""

    width: int
    published: float
    ours: Estimate
    deviation: float  # published minus ours, in standard deviations of the published


def _distances(numbers: Numbers, name: str) -> list[_Distance]:
    """The distance of one kernel ("tangent" or "kernel") at each width that was run.

    A published number is a mean over ten networks. Those of Tensor Programs II are
    independent, and each of our draws is one network. Those of I share an embedding, so
    each of our draws is such a mean.
    """
    if name == "tangent":
        published_means = TANGENT
        draws_per_mean = NETWORKS  # how many of our draws a published mean is worth
    else:
        published_means = KERNEL
        draws_per_mean = 1
    distances = []
    for width, published in published_means.items():
        arrays = numbers.get(f"{name} {width}")
        if arrays is None:
            continue
        draws = arrays["off"]
        ours = mean(draws)
        # the standard deviation of a published mean, by our draws
        std = ours.error * math.sqrt(len(draws) / draws_per_mean)
        deviation = (published - ours.value) / math.hypot(std, ours.error)
        distances.append(_Distance(width, published, ours, deviation))
    return distances


def _recursion(arrays: Arrays, subject: str, depths: list[int]) -> Claim:
    """The claim that the published recursion agrees with our program; `subject` is the
    kernel in words.
    """
    largest = float(np.abs(arrays["ours"] / arrays["recursion"] - 1).max())
    compared = " and ".join(str(depth) for depth in depths[: len(arrays["ours"])])
    return Claim(
        published=f"{subject} is given by a recursion over layers.",
        rule=(
            "The recursion and our program at infinite width, which does not use it,"
            f" agree to {SAME:g} in every entry."
        ),
        ours=f"Largest relative difference {largest:.1e}, at depth {compared}.",
        verdict=decide(largest < SAME),
    )


def _means(distances: list[_Distance], subject: str) -> Claim:
    """The claim that the published means are plausible draws of our mean of ten
    networks, by width; `subject` is the distance in words.
    """
    farthest = max(distances, key=lambda distance: abs(distance.deviation))
    lines = []
    for distance in distances:
        ours = distance.ours
        lines.append(
            f"{distance.width}: {distance.published:.3g}, ours {ours.value:.3g} ±"
            f" {ours.error:.1g}"
        )
    return Claim(
        published=f"{subject}, by width, as the mean of {NETWORKS} networks.",
        rule=(
            f"At every width the published mean is within {MAX_Z:g} standard deviations"
            " of our law of such a mean."
        ),
        ours=(
            f"{'; '.join(lines)}. Farthest at {farthest.width}:"
            f" {farthest.deviation:+.1f} standard deviations."
        ),
        verdict=decide(abs(farthest.deviation) < MAX_Z),
    )


def _power(distances: list[_Distance], power: float, subject: str) -> Claim:
    """The claim that our means follow this power of the width; `subject` is the
    distance in words.
    """
    slope = slope_of([d.width for d in distances], [d.ours for d in distances])
    factor = np.mean([d.ours.value * d.width**-power for d in distances])
    return Claim(
        published=f"{subject} falls like width^{power:g}.",
        rule=(
            "The slope of our means in logarithms is within 15 % of that power, by"
            " four standard errors."
        ),
        ours=f"Slope {slope.value:.3f} ± {slope.error:.3f}; about {factor:.2f} ·"
        f" width^{power:g}.",
        verdict=within(power, slope, 0.15),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Two recursions, two tables, two powers."""
    tangent_limits = numbers["tangent limit"]
    kernel_limits = numbers["kernel limit"]
    tangents = _distances(numbers, "tangent")
    kernels = _distances(numbers, "kernel")
    tangent_words = "II: the tangent kernel at infinite width"
    kernel_words = "I: the kernel of the last tokens at infinite width"
    return [
        _recursion(tangent_limits, tangent_words, TANGENT_DEPTHS),
        _means(tangents, "II: ‖Θ_n − Θ‖/‖Θ‖"),
        _power(tangents, -0.5, "II: ‖Θ_n − Θ‖/‖Θ‖"),
        _recursion(kernel_limits, kernel_words, KERNEL_DEPTHS),
        _means(kernels, "I: ‖K_n − K‖²/‖K‖²"),
        _power(kernels, -1.0, "I: ‖K_n − K‖²/‖K‖²"),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows of the figure's table: the published and our distance of each kernel by
    width.
    """
    for name, paper in (("tangent", "II"), ("kernel", "I")):
        for distance in _distances(numbers, name):
            yield {
                "paper": paper,
                "width": distance.width,
                "published": distance.published,
                "ours": distance.ours.value,
                "error": distance.ours.error,
                "standard_deviations": distance.deviation,
            }


def draw(numbers: Numbers) -> Any:
    """Published means and ours against the width.

    The band is the middle 90 % of what ten networks give.
    """
    figure = new(2.3)
    left, right = figure.subplots(1, 2)
    _plot_distances(left, numbers, name="kernel", power=-1.0)
    left.set_title("I: kernel, squared")
    left.set_ylabel("off the limit")
    _plot_distances(right, numbers, name="tangent", power=-0.5)
    right.set_title("II: tangent kernel")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _plot_distances(axes: Any, numbers: Numbers, name: str, power: float) -> None:
    """Plot the published and our distances of one kernel, with a line of this power."""
    distances = _distances(numbers, name)
    widths = np.array([d.width for d in distances], dtype=float)
    published = [d.published for d in distances]
    ours = np.array([d.ours.value for d in distances])
    bands = [_band(numbers[f"{name} {d.width}"]["off"], name) for d in distances]
    low, high = np.array(bands).T
    axes.fill_between(widths, low, high, color=BLUE, alpha=0.2, lw=0)
    axes.plot(widths, ours, color=BLUE, label="our law, and 90 %")
    axes.plot(widths, published, "o", color=VERMILLION, label="published")
    line = ours[-1] * (widths / widths[-1]) ** power
    axes.plot(widths, line, ":", color=GREY, lw=1.0, label="the power")
    axes.set(xscale="log", yscale="log", xlabel="width")
    axes.minorticks_off()


def _band(off: Any, name: str) -> tuple[float, float]:
    """5 and 95 % quantiles of the mean of ten networks, from draws `off` of a distance.

    Draws of Tensor Programs I are such means. Those of II are single networks, of which
    ten at a time are resampled.
    """
    if name == "tangent":
        off = np.random.default_rng(0).choice(off, (4000, NETWORKS)).mean(axis=1)
    low, high = np.quantile(off, [0.05, 0.95])
    return float(low), float(high)


RESULT = Result(
    name="tensor-programs",
    title="Tensor Programs I and II: a transformer's kernels",
    source=(
        "Yang, Tensor Programs I (NeurIPS 2019) and II (2020), and their public"
        " notebooks GP4A and NTK4A, which compute the kernels of a transformer at"
        " infinite width and measure how far networks of finite width are from them."
    ),
    links=(
        "https://arxiv.org/abs/1910.12478",
        "https://arxiv.org/abs/2006.14548",
        "https://github.com/thegregyang/GP4A",
        "https://github.com/thegregyang/NTK4A",
    ),
    setting=(
        "One vector serves as query, key and value, and scores are divided by the width"
        " n. I: two sentences of 7 and 9 words, causal mask, two blocks, variances 2"
        " (U), 3 (W) and 0.1 (biases); the products of its word vectors are taken from"
        " the notebook, and the ten networks of a width share an embedding, as they do"
        " there. II: the first five pixels of two images, one block, variances 1, and"
        " LayerNorm over n − 1; the pixels are those of CIFAR-10. The table of II is in"
        " the repository (widths to 16384, ten networks each, though the notebook now"
        " says 100 up to 8192); that of I is a curve in the notebook, read off to about"
        " 3 %. The published recursions keep correlations below 1 − 1e-5, ours do not."
    ),
    quick="three widths of each, with fewer draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="tensor-programs",
            caption=(
                "How far a kernel at finite width is from its limit: published means"
                " of ten networks, and our law of such a mean. Dotted: the power of"
                " the width that was published."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
)
