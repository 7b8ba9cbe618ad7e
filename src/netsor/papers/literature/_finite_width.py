"""Guillen, Misof and Gerken: tangent kernels of ReLU networks at finite width, where
they differ from the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import language as ns
from ..._validate import percent
from ...laws import Estimate
from ...programs._program import Program
from ...report._mpl_style import BLUE, GREEN, GREY, MARK_OF, VERMILLION, new
from ...studies import Arrays, derive_seed, slope_of
from .._significance import combine, decide_below, extrapolate
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
    within,
)

DEPTHS = (3, 5)  # hidden layers
DEEP = DEPTHS[-1]
WIDTHS = (10, 20, 48, 96, 192)
# From this width on, the paper says, first-order corrections describe networks.
STATED = 20
# Tolerances for means and for variances; they were chosen on depths 2 and 4.
MEAN_RTOL, VARIANCE_RTOL = 0.02, 0.1
ACTIVATIONS = {"relu": ns.relu, "tanh": ns.tanh}
LOOKS = {f"relu {DEPTHS[0]}": BLUE, f"relu {DEEP}": VERMILLION, f"tanh {DEEP}": GREEN}


def kernel(activation: str, depth: int) -> Program:
    """The tangent kernel (2, 2) of two orthogonal inputs.

    Hidden weights have variance 2/fan-in for ReLU and 1/fan-in for tanh.
    """
    n = ns.Width("n")
    phi = ACTIVATIONS[activation]
    std = math.sqrt(2.0) if activation == "relu" else 1.0
    weights = [ns.weight(n, 2)]
    x = weights[0] @ ns.data(np.array([[1.0, 1.0], [1.0, -1.0]]))
    for _ in range(depth - 1):
        weights.append(ns.weight(n, n, std=std))
        x = weights[-1] @ phi(x)
    readout = ns.gaussian(n, cov=std**2)
    outputs = ns.dot(readout.reshape(1), phi(x))[0]
    return Program(ns.ntk(outputs, weights=[*weights, readout]))


def sampled(activation: str, depth: int, width: int, draws: int, seed: int) -> Arrays:
    """The tangent kernel at finite width over that at infinite width.

    "own" is the mean on the diagonal and "other" off it, (value, standard error) each;
    "variance" that on the diagonal, in 50 blocks of draws.
    """
    net = kernel(activation, depth)
    limit = net.draw(n=math.inf, draws=1, seed=seed, workers=1, progress=False)
    kernels = net.draw(
        n=width, draws=draws, seed=derive_seed(seed, width), workers=1, progress=False
    )
    ratio = np.asarray(kernels, dtype=np.float64) / np.asarray(limit)[0]
    diagonal = (ratio[:, 0, 0] + ratio[:, 1, 1]) / 2
    off_diagonal = ratio[:, 0, 1]
    # a control variate: for ReLU the mean of `diagonal` is exactly 1
    if activation == "relu":
        slope = np.cov(diagonal, off_diagonal)[0, 1] / diagonal.var(ddof=1)
        off_diagonal = off_diagonal - slope * (diagonal - 1)
    blocks = ratio[: draws // 50 * 50, 0, 0].reshape(50, -1)
    return {
        "own": _summary(diagonal),
        "other": _summary(off_diagonal),
        "variance": blocks.var(axis=1, ddof=1),
    }


def _summary(values: Array) -> Array:
    """The mean of draws and its standard error, an array (2,)."""
    estimate = mean(values)
    return np.array([estimate.value, estimate.error])


def parts(quick: bool) -> list[Part]:
    """ReLU at two depths and all widths; tanh for comparison at three."""
    draws = 10_000 if quick else 200_000
    cases = [("relu", depth, width) for depth in DEPTHS for width in WIDTHS]
    cases += [("tanh", DEEP, width) for width in WIDTHS[:3]]
    parts = []
    for activation, depth, width in cases:
        arguments = {
            "activation": activation,
            "depth": depth,
            "width": width,
            "draws": draws,
        }
        seconds = 0.5 + draws * depth * (6e-6 + 1.1e-7 * width)
        parts.append(
            Part(
                label=f"{activation} {depth} {width}",
                work=sampled,
                arguments=arguments,
                seconds=seconds,
            )
        )
    return parts


def _mean(numbers: Numbers, label: str, entry: str) -> Estimate:
    """The mean of an entry over its limit, own (on the diagonal) or other."""
    value, error = numbers[label][entry]
    return Estimate(float(value), float(error))


def _diagonal(numbers: Numbers) -> Claim:
    """The claim that the mean on the diagonal is that of the limit."""
    means: dict[tuple[int, int], Estimate] = {}  # by depth and width
    for depth in DEPTHS:
        for n in WIDTHS:
            means[depth, n] = _mean(numbers, f"relu {depth} {n}", "own")
    worst = max(means, key=lambda case: abs(means[case].value - 1))
    worst_depth, worst_width = worst
    tanh = _mean(numbers, f"tanh {DEEP} {STATED}", "own")
    return Claim(
        published=(
            "For ReLU the mean tangent kernel has no finite-width correction on its"
            " diagonal."
        ),
        rule=(
            f"Its mean is within {percent(MEAN_RTOL)} of the limit at widths from"
            f" {WIDTHS[0]}, with {DEPTHS[0]} and {DEEP} hidden layers."
        ),
        ours=f"Over the limit, farthest off: {means[worst]} (depth {worst_depth}, width"
        f" {worst_width})."
        f" For tanh, which the statement leaves out, {tanh} at width {STATED}.",
        verdict=combine(
            *(within(1.0, estimate, MEAN_RTOL) for estimate in means.values())
        ),
    )


def _off_diagonal(numbers: Numbers) -> Claim:
    """The claim on the first-order correction off the diagonal, 1 + c/n.

    c is fitted from twice the stated width on, and predicts the stated width.
    """
    means = {n: _mean(numbers, f"relu {DEEP} {n}", "other") for n in WIDTHS}
    wide = [n for n in WIDTHS if n >= 2 * STATED]
    # c is the mean of n (m_n − 1), weighted by the inverse of its variance, n² error²
    weight = np.array([1 / means[n].error ** 2 for n in wide]) / np.array(wide) ** 2
    coefficients = [n * (means[n].value - 1) for n in wide]
    total = float(weight.sum())
    coefficient = Estimate(float(weight @ coefficients / weight.sum()), total**-0.5)
    predicted = 1 + coefficient / STATED
    exact = means[STATED]
    distance = Estimate(
        abs(predicted.value - exact.value), math.hypot(predicted.error, exact.error)
    )
    return Claim(
        published=(
            "Off the diagonal the first-order correction in 1/n describes sampled"
            f" networks from n = {STATED} on."
        ),
        rule=f"For orthogonal inputs, depth {DEEP}, the mean at n = {STATED} is within"
        f" {percent(MEAN_RTOL)} of 1 + c/n, c from n = {wide[0]} to {wide[-1]}.",
        ours=(
            f"Over the limit: 1 + c/n is {predicted}, exact {exact}; c = {coefficient}."
        ),
        verdict=decide_below(distance, MEAN_RTOL),
    )


def variance(numbers: Numbers, label: str) -> Estimate:
    """n Var Θ/Θ_∞² on the diagonal, of the part "activation depth n"."""
    _, _, width = label.split()
    return mean(int(width) * numbers[label]["variance"])


def first_order(depth: int) -> float:
    """The limit of n Var Θ/Θ_∞² as n grows.

    The kernel is a sum over depth + 1 matrices, of products of the relative growth of a
    vector in each layer: forward before the matrix and backward after it. Both have
    variance 5/n, and in one layer covariance 1/n.
    """
    total = 0
    for layer in range(1, depth + 1):
        # the number of matrices that the layer is before, and after
        before = depth + 1 - layer
        after = layer
        total += 5 * before**2 + 5 * after**2 + 2 * before * after
    return total / (depth + 1) ** 2


def _variance(numbers: Numbers, depth: int) -> Claim:
    """The claim on the variance on the diagonal, for one depth."""
    limit = first_order(depth)
    variances = {n: variance(numbers, f"relu {depth} {n}") for n in WIDTHS}
    ratio = variances[STATED] / limit
    listed = ", ".join(f"{e.value:.2f} (n = {n})" for n, e in variances.items())
    return Claim(
        published=(
            f"So it does for the variance of the kernel on its diagonal: {depth} hidden"
            " layers."
        ),
        rule=f"n Var Θ/Θ_∞² at n = {STATED} is within {percent(VARIANCE_RTOL)} of its"
        f" limit, {limit:.2f} by our derivation.",
        ours=(
            f"{listed}. At n = {STATED} the first order is"
            f" {percent(1 - 1 / ratio.value)} too small."
        ),
        verdict=extrapolate(near(ratio, 1.0, VARIANCE_RTOL)),
    )


def _order(numbers: Numbers) -> Claim:
    """The claim on the exponent of n in the variance, between the two largest
    widths.
    """
    widths = WIDTHS[-2:]
    variances = [variance(numbers, f"relu {DEEP} {n}") / n for n in widths]
    power = slope_of(widths, variances)
    return Claim(
        published="Fluctuations of the kernel are of order 1/n.",
        rule=(
            f"The exponent of n in its variance from {WIDTHS[-2]} to {WIDTHS[-1]} is"
            f" within {EXPONENT_ATOL:g} of −1."
        ),
        ours=f"{power}.",
        verdict=near(power, -1.0),
    )


def judge(numbers: Numbers) -> list[Claim]:
    """Means on and off the diagonal, and variances."""
    return [
        _diagonal(numbers),
        _off_diagonal(numbers),
        _order(numbers),
        *(_variance(numbers, depth) for depth in DEPTHS),
    ]


def rows(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Means over the limit with errors, and variances, by network and width."""
    for label, arrays in numbers.items():
        activation, depth, width = label.split()
        yield {
            "activation": activation,
            "depth": int(depth),
            "width": int(width),
            "diagonal": arrays["own"][0],
            "diagonal_error": arrays["own"][1],
            "off_diagonal": arrays["other"][0],
            "off_diagonal_error": arrays["other"][1],
            "n_variance": variance(numbers, label).value,
        }


def draw(numbers: Numbers) -> Any:
    """The diagonal by width, and its variance."""
    figure = new(2.6)
    left, right = figure.subplots(1, 2)
    for name, colour in LOOKS.items():
        widths = [n for n in WIDTHS if f"{name} {n}" in numbers]
        means = np.array([numbers[f"{name} {n}"]["own"] for n in widths])
        label = name.replace("relu", "ReLU, depth").replace("tanh", "tanh, depth")
        style = {"fmt": f"{MARK_OF[colour]}-", "ms": 3, "color": colour}
        left.errorbar(widths, means[:, 0], 4 * means[:, 1], label=label, **style)
        if name.startswith("relu"):
            variances = [variance(numbers, f"{name} {n}").value for n in widths]
            right.plot(widths, variances, marker=MARK_OF[colour], ms=3, color=colour)
            limit = first_order(int(name.split()[1]))
            right.axhline(limit, color=colour, lw=0.8, ls=":")
    left.axhline(1.0, color=GREY, lw=0.6, ls=":")
    left.set(xscale="log", xlabel="width n", ylabel="E Θ / Θ$_∞$, diagonal")
    right.set(xscale="log", xlabel="width n", ylabel="n Var Θ / Θ$_∞$²", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(WIDTHS, map(str, WIDTHS))
        axes.minorticks_off()
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


RESULT = Result(
    name="finite-width",
    title="Guillen, Misof and Gerken: tangent kernels at finite width",
    source=(
        "Guillen, Misof and Gerken, Finite-width neural tangent kernels from Feynman"
        " diagrams (ICML 2026)."
    ),
    links=("https://arxiv.org/abs/2508.11522",),
    setting=(
        f"Perceptrons with {DEPTHS[0]} and {DEEP} hidden layers of width n, without"
        " biases, weights of variance 2/fan-in, two orthogonal inputs, one output."
        " Ours: ns.ntk, whose draws have the exact law at every width; means and"
        " variances are over 200,000 of them, relative to the kernel at infinite"
        " width. tanh, with variance 1/fan-in, is for comparison."
    ),
    quick="10,000 draws.",
    parts=parts,
    judge=judge,
    pictures=(
        Picture(
            name="finite-width",
            caption=(
                "Left: the mean tangent kernel of one input over its limit, with four"
                " standard errors. Right: n times its variance over the squared limit;"
                " dotted: the first order in 1/n."
            ),
            draw=draw,
            rows=rows,
        ),
    ),
    unread=(
        "the paper beyond its abstract, and its code; so the depths and inputs of its"
        " own comparison at n ≳ 20 are not known here, and variances are judged as"
        " outside its range."
    ),
)
