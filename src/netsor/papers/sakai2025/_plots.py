"""The figures: finite widths dotted, limits solid, the Gaussian of infinitely many
heads black.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._mpl_style import (
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
from ...laws import Estimate
from .. import _figures
from ._estimators import HEADS, Curve, Densities, Divergences, Heads, Scores
from ._experiments import Case

WIDTH_COLOURS = {16: ORANGE, 64: SKY, 256: GREEN, 1024: VERMILLION, math.inf: BLUE}
HEAD_COLOURS = {1: BLUE, 4: GREEN, 16: VERMILLION, 256: VERMILLION}


def drawn(data: Densities | Divergences | Scores | Heads) -> dict[str, bytes]:
    """A figure of the data, as pdf, png and svg."""
    draw: Any = {
        Densities: _densities,
        Divergences: _divergences,
        Scores: _scores,
        Heads: _heads,
    }[type(data)]
    return _figures.drawn(draw, data)


def _colour(parameter: str, case: Case) -> str:
    return WIDTH_COLOURS[case.width] if parameter == "n" else HEAD_COLOURS[case.heads]


def _label(parameter: str, curve: Curve) -> str:
    if curve.role == "infinitely many heads":
        return "H = ∞"
    if parameter == "n":
        return "limit" if curve.role == "limit" else f"n = {curve.case.width:.0f}"
    at = "limit" if curve.role == "limit" else f"n = {curve.case.width:.0f}"
    return f"H = {curve.case.heads}, {at}"


def _densities(data: Densities) -> Any:
    """Densities above; below, their differences from the limits on a larger scale."""
    parameter = data.figure.parameter
    chosen = (
        "exact"
        if any(c.estimator == "exact" and c.role == "width n" for c in data.curves)
        else "paper"
    )
    figure = new(3.3)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
    limits = {(c.case, c.estimator): c for c in data.curves if c.role == "limit"}
    for order, role in enumerate(("limit", "infinitely many heads", "width n")):
        for c in data.curves:
            if c.role != role or (
                c.estimator != chosen and role != "infinitely many heads"
            ):
                continue
            colour = (
                BLACK if role == "infinitely many heads" else _colour(parameter, c.case)
            )
            line = DOTTED if role == "width n" else "-"
            top.plot(
                c.y,
                c.density,
                linestyle=line,
                color=colour,
                label=_label(parameter, c),
                zorder=2 + order,
                lw=1.8 if role == "width n" else 1.0,
            )
    # minus the exact limit if it is known, else minus the paper's estimate of it
    for c in data.curves:
        reference = limits[
            c.case.limit, "exact" if (c.case.limit, "exact") in limits else "paper"
        ]
        difference = c.density - reference.density
        if c.role == "width n" and c.estimator == chosen:
            bottom.plot(
                c.y,
                difference,
                linestyle=DOTTED,
                color=_colour(parameter, c.case),
                lw=1.8,
                zorder=3,
            )
        elif c.role == "width n":
            bottom.plot(
                c.y,
                difference,
                color=_colour(parameter, c.case),
                lw=0.5,
                alpha=0.55,
                zorder=2,
            )
        elif c.role == "infinitely many heads":
            for limit in limits.values():
                if limit.estimator == reference.estimator:
                    bottom.plot(
                        c.y, c.density - limit.density, color=BLACK, lw=1.0, zorder=1
                    )
    bottom.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    top.set(ylabel="density", ylim=(0, None))
    span = max(abs(v) for v in bottom.get_ylim())
    bottom.set(
        xlabel="output coordinate y",
        ylabel="minus limit",
        ylim=(-span, span),
        xlim=(-2.4, 2.4),
    )
    top.legend(loc="upper left", bbox_to_anchor=(0.66, 1.02), borderaxespad=0.0)
    both = {c.estimator for c in data.curves if c.role == "width n"} == {
        "paper",
        "exact",
    }
    top.set_title(
        data.figure.title
        + ("\nbelow, thin: kernel estimates of the first trial" if both else "")
    )
    return figure


def _spread(
    axes: Any,
    x: list[float],
    trials: list[list[float]],
    colour: str,
    label: str,
    marker: str = "s",
) -> None:
    """The paper's estimator: a faint point for each trial, their mean and standard
    deviation.
    """
    for at, values in zip(x, trials, strict=True):
        axes.plot(
            [at] * len(values), values, ".", color=colour, ms=2.0, alpha=0.4, zorder=1
        )
    mean = np.array([np.mean(values) for values in trials])
    spread = np.array(
        [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in trials]
    )
    axes.errorbar(
        x,
        mean,
        yerr=np.minimum(spread, 0.9 * mean),
        fmt=marker,
        mfc="white",
        color=colour,
        capsize=2,
        lw=0.8,
        label=label,
        zorder=2,
    )
    axes.plot(x, mean, linestyle=(0, (4, 2)), color=colour, lw=0.8, zorder=1)


def _errors(
    axes: Any,
    x: list[float],
    values: list[Estimate],
    colour: str,
    label: str,
    marker: str = "o",
) -> None:
    """Ours: a point with its standard error, where it is above 0."""
    kept = [
        (at, e.value, e.error) for at, e in zip(x, values, strict=True) if e.value > 0
    ]
    if kept:
        at, value, error = (np.array(column) for column in zip(*kept, strict=True))
        axes.errorbar(
            at,
            value,
            yerr=np.minimum(error, 0.9 * value),
            fmt=marker,
            color=colour,
            capsize=2,
            lw=0.8,
            label=label,
            zorder=3,
        )


def _axis(axes: Any, parameter: str, values: list[float]) -> None:
    axes.set(xscale="log", yscale="log", ylabel="KL divergence (nats)")
    axes.set_xlabel("width n" if parameter == "n" else "heads H")
    axes.set_xticks(values, [f"{v:.0f}" for v in values])
    axes.minorticks_off()


def _divergences(data: Divergences) -> Any:
    figure = new(3.0)
    axes = figure.subplots()
    x = data.parameters
    if data.floor:
        floor = float(np.mean([np.mean(trials) for trials in data.floor]))
        axes.axhline(
            floor,
            color=GREY,
            lw=0.8,
            ls=(0, (2, 2)),
            zorder=0,
            label="paper's, limit against itself",
        )
    if data.paper:
        _spread(axes, x, data.paper, VERMILLION, "paper's estimator (kernels)")
    if data.exact:
        label = "ours (exact, coupled)"
        slope = data.slope
        if data.figure.parameter == "n" and slope is not None:
            label = f"ours (coupled), slope {slope.value:.2f}"
            if data.last_slope is not None:
                label += f", {data.last_slope.value:.2f} at the end"
            label = label.replace("-", "−")
            mid = np.exp(np.mean(np.log(x)))
            known = [
                (n, e.value)
                for n, e in zip(x, data.exact, strict=True)
                if e.value > 4 * e.error
            ]
            height = np.exp(
                np.mean([np.log(v) - slope.value * np.log(n / mid) for n, v in known])
            )
            axes.plot(
                x,
                height * (np.array(x) / mid) ** slope.value,
                color=BLUE,
                lw=0.8,
                zorder=1,
            )
        _errors(axes, x, data.exact, BLUE, label)
    _axis(axes, data.figure.parameter, x)
    figure.legend(loc="outside lower center", ncols=1)
    axes.set_title(data.figure.title)
    return figure


def _scores(data: Scores) -> Any:
    figure = new(2.9)
    axes = figure.subplots()
    y = np.linspace(-4.5, 4.5, 401)
    axes.plot(
        y,
        np.exp(-(y**2) / 2) / math.sqrt(2 * np.pi),
        color=BLUE,
        label="N(0, 1), the limit of 1/√n",
    )
    for h, colour, name in zip(
        data.histograms, (SKY, ORANGE), ("1/√n", "1/n"), strict=True
    ):
        density = h.counts / (h.counts.sum() * np.diff(h.edges))
        axes.stairs(density, h.edges, color=colour, fill=True, alpha=0.35, lw=0)
        axes.stairs(
            density,
            h.edges,
            color=colour,
            lw=0.8,
            label=f"n = {h.case.width:.0f}, scaled by {name}",
        )
    axes.annotate(
        "",
        (0.0, 30.0),
        (0.0, 9.0),
        arrowprops={"arrowstyle": "-|>", "color": BLACK, "lw": 1.2},
    )
    axes.plot(
        [],
        [],
        color=BLACK,
        lw=1.2,
        marker="^",
        ms=3,
        label="point mass at 0, the limit of 1/n",
    )
    axes.set(
        xlabel="similarity score $p_{11}$",
        ylabel="density",
        yscale="log",
        ylim=(1e-4, 40),
        xlim=(-4.5, 4.5),
    )
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.0)
    axes.set_title(data.figure.title)
    return figure


def _heads(data: Heads) -> Any:
    figure = new(3.3)
    axes = figure.subplots()
    x = data.finite.parameters
    if data.finite.paper:
        _spread(
            axes,
            x,
            data.finite.paper,
            VERMILLION,
            "n = 256 and limit, paper's estimator",
        )
        _spread(
            axes,
            x,
            data.gaussian.paper,
            PURPLE,
            "limit and H = ∞, paper's estimator",
            "D",
        )
    if data.finite.exact:
        _errors(axes, x, data.finite.exact, BLUE, "n = 256 and limit, ours")
        axes.plot(
            HEADS,
            [e.value for e in data.many],
            color=BLACK,
            lw=1.0,
            marker=".",
            ms=4,
            label="limit and H = ∞, ours",
        )
    _axis(axes, "H", [1, 4, 16, 64, 256])
    figure.legend(loc="outside lower center", ncols=1)
    axes.set_title(data.figure.title)
    return figure
