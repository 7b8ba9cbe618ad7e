"""The figures: finite widths dotted, limits solid, the Gaussian of infinitely many
heads black.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...laws import Estimate
from ...report._mpl_style import (
    BLACK,
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    new,
)
from .. import _figures
from ._densities import Array
from ._estimators import (
    HEADS,
    WELL_ABOVE,
    Curve,
    Densities,
    Divergences,
    Heads,
    Scores,
)
from ._experiments import Case

WIDTH_COLOURS = {16: ORANGE, 64: SKY, 256: GREEN, 1024: VERMILLION, math.inf: BLUE}
HEAD_COLOURS = {1: BLUE, 4: GREEN, 16: VERMILLION, 256: VERMILLION}

FINITE, LIMIT, GAUSSIAN = "width n", "limit", "infinitely many heads"
DRAWING_ORDER = (LIMIT, GAUSSIAN, FINITE)  # of densities; later ones are on top
DASHED = (0, (4, 2))
SHORT_DASHES = (0, (2, 2))


def drawn(data: Densities | Divergences | Scores | Heads) -> dict[str, bytes]:
    """A figure of the data, as pdf, png and svg."""
    match data:
        case Densities():
            return _figures.drawn(_densities, data)
        case Divergences():
            return _figures.drawn(_divergences, data)
        case Scores():
            return _figures.drawn(_scores, data)
        case Heads():
            return _figures.drawn(_heads, data)


def _colour(parameter: str, case: Case) -> str:
    """The colour of a case: by its width if that varies, else by its heads."""
    return WIDTH_COLOURS[case.width] if parameter == "n" else HEAD_COLOURS[case.heads]


def _label(parameter: str, curve: Curve) -> str:
    """The label of a density in the legend, as "n = 256" or "H = 4, limit"."""
    if curve.role == GAUSSIAN:
        return "H = ∞"
    width = "limit" if curve.role == LIMIT else f"n = {curve.case.width:.0f}"
    if parameter == "n":
        return width
    return f"H = {curve.case.heads}, {width}"


def _densities(data: Densities) -> Any:
    """Densities above; below, their differences from the limits on a larger scale."""
    estimators = {curve.estimator for curve in data.curves if curve.role == FINITE}
    main_estimator = "exact" if "exact" in estimators else "paper"

    figure = new(3.3)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
    _plot_densities(top, data, main_estimator)
    _plot_differences(bottom, data, main_estimator)

    top.set(ylabel="density", ylim=(0, None))
    span = max(abs(v) for v in bottom.get_ylim())
    bottom.set(xlabel="output coordinate y", ylabel="minus limit")
    bottom.set(xlim=(-2.4, 2.4), ylim=(-span, span))
    top.legend(loc="upper left", bbox_to_anchor=(0.66, 1.02), borderaxespad=0.0)
    title = data.figure.title
    if estimators == {"paper", "exact"}:
        title += "\nbelow, thin: kernel estimates of the first trial"
    top.set_title(title)
    return figure


def _plot_densities(axes: Any, data: Densities, main_estimator: str) -> None:
    """Plot the densities of the main estimator, and the Gaussian."""
    parameter = data.figure.parameter
    for order, role in enumerate(DRAWING_ORDER):
        for curve in data.curves:
            if curve.role != role:
                continue
            if curve.estimator != main_estimator and role != GAUSSIAN:
                continue
            style: dict[str, Any] = {"linestyle": "-", "lw": 1.0}
            if role == FINITE:
                style = {"linestyle": DOTTED, "lw": 1.8}
            colour = BLACK
            if role != GAUSSIAN:
                colour = _colour(parameter, curve.case)
            label = _label(parameter, curve)
            axes.plot(
                curve.y,
                curve.density,
                color=colour,
                label=label,
                zorder=2 + order,
                **style,
            )


def _plot_differences(axes: Any, data: Densities, main_estimator: str) -> None:
    """Plot differences from the exact limit, or from the paper's estimate without it.

    Estimates at finite width that are not by the main estimator are thin. The Gaussian
    is compared with the limit of every case.
    """
    limits: dict[tuple[Case, str], Curve] = {}  # by case and estimator
    for curve in data.curves:
        if curve.role == LIMIT:
            limits[curve.case, curve.estimator] = curve
    for curve in data.curves:
        limit_case = curve.case.limit
        estimator = "exact" if (limit_case, "exact") in limits else "paper"
        reference = limits[limit_case, estimator]
        difference = curve.density - reference.density
        colour = _colour(data.figure.parameter, curve.case)
        if curve.role == FINITE and curve.estimator == main_estimator:
            style = {"linestyle": DOTTED, "lw": 1.8, "zorder": 3}
            axes.plot(curve.y, difference, color=colour, **style)
        elif curve.role == FINITE:
            style = {"lw": 0.5, "alpha": 0.55, "zorder": 2}
            axes.plot(curve.y, difference, color=colour, **style)
        elif curve.role == GAUSSIAN:
            for limit in limits.values():
                if limit.estimator == reference.estimator:
                    difference = curve.density - limit.density
                    axes.plot(curve.y, difference, color=BLACK, lw=1.0, zorder=1)
    axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)


def _plot_trials(
    axes: Any,
    x: list[float],
    trials: list[list[float]],
    *,
    colour: str,
    label: str,
    marker: str = "s",
) -> None:
    """Plot the paper's estimator: `trials` has the values of each trial, for each x.

    A faint point for each trial, and their mean with the standard deviation.
    """
    for position, values in zip(x, trials, strict=True):
        positions = [position] * len(values)
        axes.plot(positions, values, ".", color=colour, ms=2.0, alpha=0.4, zorder=1)
    mean = np.array([np.mean(values) for values in trials])
    spread = np.zeros(len(trials))
    for position, values in enumerate(trials):
        if len(values) > 1:
            spread[position] = np.std(values, ddof=1)
    _plot_error_bars(
        axes,
        x,
        value=mean,
        error=spread,
        fmt=marker,
        mfc="white",
        color=colour,
        label=label,
        zorder=2,
    )
    axes.plot(x, mean, linestyle=DASHED, color=colour, lw=0.8, zorder=1)


def _plot_estimates(
    axes: Any, x: list[float], estimates: list[Estimate], label: str
) -> None:
    """Plot our estimator: a point with its standard error, where it is above 0."""
    positions = np.array(x)
    value = np.array([estimate.value for estimate in estimates])
    error = np.array([estimate.error for estimate in estimates])
    positive = value > 0
    if not positive.any():
        return
    _plot_error_bars(
        axes,
        x=positions[positive],
        value=value[positive],
        error=error[positive],
        fmt="o",
        color=BLUE,
        label=label,
        zorder=3,
    )


def _plot_error_bars(
    axes: Any, x: Any, value: Array, error: Array, **style: Any
) -> None:
    """Points with error bars, which on a logarithmic axis must end above 0."""
    bars = np.minimum(error, 0.9 * value)
    axes.errorbar(x, value, yerr=bars, capsize=2, lw=0.8, **style)


def _set_kl_axes(axes: Any, parameter: str, ticks: list[float]) -> None:
    """Logarithmic axes for KL against the width or the number of heads."""
    axes.set(xscale="log", yscale="log", ylabel="KL divergence (nats)")
    axes.set_xlabel("width n" if parameter == "n" else "heads H")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()


def _divergences(data: Divergences) -> Any:
    """KL of each width from the limit, by both estimators."""
    figure = new(3.0)
    axes = figure.subplots()
    x = data.parameters
    if data.floor:
        floor = float(np.mean([np.mean(trials) for trials in data.floor]))
        style = {"color": GREY, "lw": 0.8, "ls": SHORT_DASHES, "zorder": 0}
        axes.axhline(floor, label="paper's, limit against itself", **style)
    if data.paper:
        label = "paper's estimator (kernels)"
        _plot_trials(axes, x, trials=data.paper, colour=VERMILLION, label=label)
    if data.exact:
        label = "ours (exact, coupled)"
        if data.figure.parameter == "n" and data.slope is not None:
            label = _slope_label(data.slope, data.last_slope)
            _plot_power_law(axes, data, data.slope.value)
        _plot_estimates(axes, x, estimates=data.exact, label=label)
    _set_kl_axes(axes, data.figure.parameter, x)
    figure.legend(loc="outside lower center", ncols=1)
    axes.set_title(data.figure.title)
    return figure


def _slope_label(slope: Estimate, last_slope: Estimate | None) -> str:
    """The label of our line in a legend, with its slope over all widths, and between
    the last ones if that is another.
    """
    label = f"ours (coupled), slope {slope.value:.2f}"
    if last_slope is not None:
        label += f", {last_slope.value:.2f} at the end"
    return label.replace("-", "−")


def _plot_power_law(axes: Any, data: Divergences, slope: float) -> None:
    """Plot the line of this slope through the points that are well above their errors:
    its height is their geometric mean.
    """
    x = data.parameters
    middle = np.exp(np.mean(np.log(x)))
    log_heights = []
    for n, estimate in zip(x, data.exact, strict=True):
        if estimate.value > WELL_ABOVE * estimate.error:
            log_height = np.log(estimate.value) - slope * np.log(n / middle)
            log_heights.append(log_height)
    height = np.exp(np.mean(log_heights))
    line = height * (np.array(x) / middle) ** slope
    axes.plot(x, line, color=BLUE, lw=0.8, zorder=1)


def _scores(data: Scores) -> Any:
    """Histograms of one score under both scalings, with their limits."""
    figure = new(2.9)
    axes = figure.subplots()
    y = np.linspace(-4.5, 4.5, 401)
    normal = np.exp(-(y**2) / 2) / math.sqrt(2 * np.pi)
    axes.plot(y, normal, color=BLUE, label="N(0, 1), the limit of 1/√n")

    colours = (SKY, ORANGE)
    scalings = ("1/√n", "1/n")
    for h, colour, scaling in zip(data.histograms, colours, scalings, strict=True):
        density = h.counts / (h.counts.sum() * np.diff(h.edges))
        label = f"n = {h.case.width:.0f}, scaled by {scaling}"
        axes.stairs(density, h.edges, color=colour, fill=True, alpha=0.35, lw=0)
        axes.stairs(density, h.edges, color=colour, lw=0.8, label=label)

    arrow = {"arrowstyle": "-|>", "color": BLACK, "lw": 1.2}
    axes.annotate("", xy=(0.0, 30.0), xytext=(0.0, 9.0), arrowprops=arrow)
    arrow_in_legend = {"color": BLACK, "lw": 1.2, "marker": "^", "ms": 3}
    axes.plot([], [], label="point mass at 0, the limit of 1/n", **arrow_in_legend)

    axes.set(xlabel="similarity score $p_{11}$", xlim=(-4.5, 4.5))
    axes.set(ylabel="density", yscale="log", ylim=(1e-4, 40))
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.0)
    axes.set_title(data.figure.title)
    return figure


def _heads(data: Heads) -> Any:
    """KL against the number of heads, to the limit and to the Gaussian."""
    figure = new(3.3)
    axes = figure.subplots()
    x = data.finite.parameters
    if data.finite.paper:
        label = "n = 256 and limit, paper's estimator"
        _plot_trials(axes, x, trials=data.finite.paper, colour=VERMILLION, label=label)
        label = "limit and H = ∞, paper's estimator"
        _plot_trials(
            axes, x, trials=data.gaussian.paper, colour=PURPLE, label=label, marker="D"
        )
    if data.finite.exact:
        _plot_estimates(
            axes, x, estimates=data.finite.exact, label="n = 256 and limit, ours"
        )
        values = [estimate.value for estimate in data.many]
        style = {"color": BLACK, "lw": 1.0, "marker": ".", "ms": 4}
        axes.plot(HEADS, values, label="limit and H = ∞, ours", **style)
    _set_kl_axes(axes, "H", [1, 4, 16, 64, 256])
    figure.legend(loc="outside lower center", ncols=1)
    axes.set_title(data.figure.title)
    return figure
