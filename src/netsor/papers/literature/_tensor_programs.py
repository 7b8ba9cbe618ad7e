"""Tensor Programs I and II: the kernels of a transformer at infinite width, and how far
finite widths are from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._mpl_style import BLUE, GREY, VERMILLION, new
from ...language import inf
from ...laws import Estimate
from ...studies import Arrays, slope_of
from .._significance import AGREES, DISAGREES
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

DEPTH = 2  # of Tensor Programs I; II has 1
TANGENT_DEPTHS, KERNEL_DEPTHS = [2, 4], [3, 5]  # at which recursions are compared
NETWORKS = 10  # both papers publish the mean
# two ways to compute one number: rounding of some hundred operations, with room
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
    """The tangent kernel at infinite width, by the published recursion and by `ns.ntk`
    of the program.
    """
    first = IMAGES @ IMAGES.T / IMAGES.shape[1]
    ours = [
        np.asarray(tangent_program(d, inf).draw(n=inf, draws=1, progress=False))[0]
        for d in depths
    ]
    return {
        "recursion": np.stack([tangent(first, depth) for depth in depths]),
        "ours": np.stack(ours),
    }


def kernel_limit(depths: list[int], seed: int) -> Arrays:
    """The kernel of the last tokens at infinite width, by the published recursion and
    by the program.
    """
    first = word_kernel()[np.ix_(PLACES, PLACES)]
    ours = [
        np.asarray(kernel_program(1, d).draw(n=inf, draws=1, progress=False))[0, 0]
        for d in depths
    ]
    return {
        "recursion": np.stack([last_kernel(first, depth) for depth in depths]),
        "ours": np.stack(ours),
    }


def tangent_width(width: int, draws: int, seed: int) -> Arrays:
    """‖Θ_n − Θ‖/‖Θ‖ of independent networks of a width."""
    limit = tangent(IMAGES @ IMAGES.T / IMAGES.shape[1], 1)
    found = np.asarray(
        tangent_program(1, width).draw(n=width, draws=draws, seed=seed, progress=False)
    )
    return {"off": np.linalg.norm(found - limit, axis=(1, 2)) / np.linalg.norm(limit)}


def kernel_width(width: int, draws: int, seed: int) -> Arrays:
    """‖K_n − K‖²/‖K‖², the mean over ten networks that share an embedding, as the
    notebook draws them.
    """
    limit = last_kernel(word_kernel()[np.ix_(PLACES, PLACES)], DEPTH)
    found = np.asarray(
        kernel_program(NETWORKS, DEPTH).draw(
            n=width, draws=draws, seed=seed, progress=False
        )
    )
    return {
        "off": np.mean(
            (np.linalg.norm(found - limit, axis=(2, 3)) / np.linalg.norm(limit)) ** 2,
            axis=1,
        )
    }


def parts(quick: bool) -> list[Part]:
    """Both limits, and every width that was published; a quick run has three widths of
    each, with fewer draws.
    """
    depths = TANGENT_DEPTHS[: 1 if quick else 2]
    made = [
        Part("tangent limit", tangent_limit, {"depths": depths}, 3.0 if quick else 6.0),
        Part("kernel limit", kernel_limit, {"depths": KERNEL_DEPTHS}, 1.0),
    ]
    for width in (64, 256, 1024) if quick else TANGENT:
        draws = 200 if quick else min(1000, 2**21 // width)
        made.append(
            Part(
                f"tangent {width}",
                tangent_width,
                {"width": width, "draws": draws},
                2.0 if quick else 9.0,
            )
        )
    for width in (32, 128, 512) if quick else KERNEL:
        draws = 40 if quick else min(200, 2**17 // width)
        made.append(
            Part(
                f"kernel {width}",
                kernel_width,
                {"width": width, "draws": draws},
                2.0 if quick else 7.0,
            )
        )
    return made


def _table(numbers: Numbers, name: str) -> list[tuple[int, float, Estimate, float]]:
    """At each width the published number, our mean, and their distance in standard
    deviations of the first.

    Ten networks of Tensor Programs II are independent. Those of I share an embedding,
    and our draws are of their mean.
    """
    made = []
    for width, published in (TANGENT if name == "tangent" else KERNEL).items():
        if (found := numbers.get(f"{name} {width}")) is None:
            continue
        ours = mean(found["off"])
        std = ours.error * math.sqrt(
            len(found["off"]) / (NETWORKS if name == "tangent" else 1)
        )
        made.append(
            (
                width,
                published,
                ours,
                (published - ours.value) / math.hypot(std, ours.error),
            )
        )
    return made


def _recursion(found: Arrays, what: str, depths: list[int]) -> Claim:
    off = max(
        np.abs(ours / said - 1).max()
        for ours, said in zip(found["ours"], found["recursion"], strict=True)
    )
    return Claim(
        f"{what} is given by a recursion over layers.",
        "The recursion and our program at infinite width, which does not use it, agree"
        f" to {SAME:g} in every entry.",
        f"Largest relative difference {off:.1e}, at depth"
        f" {' and '.join(map(str, depths[: len(found['ours'])]))}.",
        AGREES if off < SAME else DISAGREES,
    )


def _means(rows: list[tuple[int, float, Estimate, float]], what: str) -> Claim:
    far = max(rows, key=lambda row: abs(row[-1]))
    words = "; ".join(
        f"{width}: {said:.3g}, ours {ours.value:.3g} ± {ours.error:.1g}"
        for width, said, ours, _ in rows
    )
    return Claim(
        f"{what}, by width, as the mean of {NETWORKS} networks.",
        f"At every width the published mean is within {MAX_Z:g} standard deviations of"
        " our law of such a mean.",
        f"{words}. Farthest at {far[0]}: {far[-1]:+.1f} standard deviations.",
        AGREES if abs(far[-1]) < MAX_Z else DISAGREES,
    )


def _power(
    rows: list[tuple[int, float, Estimate, float]], power: float, what: str
) -> Claim:
    found = slope_of([row[0] for row in rows], [row[2] for row in rows])
    factor = np.mean([ours.value * width**-power for width, _, ours, _ in rows])
    return Claim(
        f"{what} falls like width^{power:g}.",
        "The slope of our means in logarithms is within 15 % of that power, by four"
        " standard errors.",
        f"Slope {found.value:.3f} ± {found.error:.3f}; about {factor:.2f} ·"
        f" width^{power:g}.",
        within(power, found, 0.15),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Two recursions, two tables, two powers."""
    tangents, kernels = _table(numbers, "tangent"), _table(numbers, "kernel")
    return [
        _recursion(
            numbers["tangent limit"],
            "II: the tangent kernel at infinite width",
            TANGENT_DEPTHS,
        ),
        _means(tangents, "II: ‖Θ_n − Θ‖/‖Θ‖"),
        _power(tangents, -0.5, "II: ‖Θ_n − Θ‖/‖Θ‖"),
        _recursion(
            numbers["kernel limit"],
            "I: the kernel of the last tokens at infinite width",
            KERNEL_DEPTHS,
        ),
        _means(kernels, "I: ‖K_n − K‖²/‖K‖²"),
        _power(kernels, -1.0, "I: ‖K_n − K‖²/‖K‖²"),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Both tables."""
    for name, paper in (("tangent", "II"), ("kernel", "I")):
        for width, published, ours, apart in _table(numbers, name):
            yield {
                "paper": paper,
                "width": width,
                "published": published,
                "ours": ours.value,
                "error": ours.error,
                "standard_deviations": apart,
            }


def draw(numbers: Numbers) -> Any:
    """Published means and ours against the width, with the middle 90 % of what ten
    networks give.
    """
    figure = new(2.3)
    both = figure.subplots(1, 2)
    titles = (
        ("kernel", "I: kernel, squared", -1.0),
        ("tangent", "II: tangent kernel", -0.5),
    )
    for axes, (name, title, power) in zip(both, titles, strict=True):
        found = _table(numbers, name)
        widths = np.array([row[0] for row in found], dtype=float)
        ours = np.array([row[2].value for row in found])
        low, high = np.array(
            [_band(numbers[f"{name} {width:.0f}"]["off"], name) for width in widths]
        ).T
        axes.fill_between(widths, low, high, color=BLUE, alpha=0.2, lw=0)
        axes.plot(widths, ours, color=BLUE, label="our law, and 90 %")
        axes.plot(
            widths, [row[1] for row in found], "o", color=VERMILLION, label="published"
        )
        axes.plot(
            widths,
            ours[-1] * (widths / widths[-1]) ** power,
            ":",
            color=GREY,
            lw=1.0,
            label="the power",
        )
        axes.set(xscale="log", yscale="log", xlabel="width", title=title)
        axes.minorticks_off()
    both[0].set_ylabel("off the limit")
    figure.legend(
        *both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    return figure


def _band(off: Any, name: str) -> tuple[float, float]:
    """5 and 95 % of the mean of ten networks: as drawn, or of draws put together by ten
    in many ways.
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
            "tensor-programs",
            "How far a kernel at finite width is from its limit: published means of ten"
            " networks, and our law of such a mean. Dotted: the power of the width that"
            " was published.",
            draw,
            rows,
        ),
    ),
)
