"""Pictures of laws, in the user's matplotlib style: densities with their errors,
contours of two entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._validate import shown
from ..report._html import density, note, table, title
from ..report._mpl_style import (
    BLACK,
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
)
from ._law_base import LawError

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK)
DENSITY_POINTS = 401  # points of a density
# probability of the interval that a plot shows, also on a log scale
CONFIDENCE, LOG_CONFIDENCE = 0.9998, 1 - 1e-6
LOG_FLOOR = 1e-9  # lowest density on a log scale, relative to the largest
GRID = 61  # points along each side of the grid of a joint density
GRID_STDS = 3.5  # standard deviations that the grid extends to each side
# least standard deviation, in cells: narrower ridges would look like rows of dots
MIN_RIDGE_CELLS = 0.7
SHARES = (0.25, 0.5, 0.75, 0.9, 0.97)


def _axes(ax: Any, two: bool = False) -> list[Any]:
    """The given axes, one or (with `two`) also two; if None, pyplot's current ones, or
    two in a new figure.
    """
    if ax is None:
        import matplotlib.pyplot as plt  # slow to import

        if not two:
            return [plt.gca()]
        return list(
            plt.figure(layout="constrained").subplots(
                2, 1, sharex=True, height_ratios=(2.2, 1.0)
            )
        )
    given = (
        list(ax)
        if two and isinstance(ax, list | tuple | np.ndarray) and len(ax) == 2
        else [ax]
    )
    if not all(
        hasattr(one, name)
        for one in given
        for name in ("plot", "fill_between", "contour", "figure")
    ):
        other = "two of them" if two else "None for the current ones"
        raise LawError("plot", "ax", ax, f"one of matplotlib's axes, or {other}")
    return given


def plot_law(law: Any, ax: Any, label: str | None, gaussian: bool, log: bool) -> Any:
    """The density of one law, its error, an arrow for each atom, and a Gaussian for
    comparison. Returns the axes.
    """
    (axes,), y = (
        _axes(ax),
        np.linspace(
            *_range(law, LOG_CONFIDENCE if log else CONFIDENCE), DENSITY_POINTS
        ),
    )
    value, error = _curve(law, y)
    top = float(value.max()) or 1.0
    colour = COLOURS[
        sum(line.get_linestyle() == "-" for line in axes.lines) % len(COLOURS)
    ]
    _add_line(
        axes, y, value, error, colour, "-", label or ("law" if gaussian else None)
    )
    bottom = (
        float(min(value[value > LOG_FLOOR * top], default=LOG_FLOOR * top)) / 2
        if log
        else 0.0
    )
    _add_arrows(axes, law, top, colour, bottom)
    if gaussian and law.std() > 0:
        axes.plot(
            y,
            law.gaussian().pdf(y),
            "--",
            color=GREY,
            lw=1.0,
            label="Gaussian, equal variance",
        )
    scale: dict[str, Any] = (
        {"yscale": "log", "ylim": (bottom, 2 * top)} if log else {"ylim": (0, None)}
    )
    axes.set(xlabel="y", ylabel="density", xlim=(y[0], y[-1]), **scale)
    if gaussian or label is not None:
        axes.legend(loc="best")
    return axes


def plot_laws(laws: Sequence[Any], names: Sequence[str], ax: Any) -> Any:
    """The densities of several laws, and below them the difference of each from the
    last. Returns the axes.
    """
    top, *below = _axes(ax, two=True)
    low, high = zip(*(_range(law) for law in laws), strict=True)
    y = np.linspace(min(low), max(high), DENSITY_POINTS)
    curves = [_curve(law, y) for law in laws]
    last, last_error = curves[-1]
    highest = max(float(curve.max()) for curve, _ in curves)
    for k, (law, name, (curve, error)) in enumerate(
        zip(laws, names, curves, strict=True)
    ):
        colour = COLOURS[k % len(COLOURS)]
        line = "-" if k == len(laws) - 1 else DOTTED
        _add_line(top, y, curve, error, colour, line, name)
        _add_arrows(top, law, highest, colour)
        for axes in below if k < len(laws) - 1 else ():
            _add_line(
                axes, y, curve - last, np.hypot(error, last_error), colour, line, None
            )
    top.set(ylabel="density", ylim=(0, None))
    for axes in below:
        axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
        axes.set(ylabel="difference")
    [top, *below][-1].set(xlabel="y", xlim=(y[0], y[-1]))
    top.legend(loc="best")
    return np.array([top, *below]) if below else top


def plot_joint(law: Any, ax: Any, entries: tuple[int, int]) -> Any:
    """Contours of the joint density of two entries, each around a share of the
    probability. Returns the axes.
    """
    two = law.marginal(entries)
    if two.dim != 2:
        raise LawError("plot", "entries", entries, "two entries")
    centre, scale = two.mean(), two.std()
    if not (scale > 0).all():
        raise LawError(
            "plot",
            f"entries={shown(entries)}: entry {entries[int(np.argmin(scale))]} is not"
            " random",
        )
    sides = [
        np.linspace(c - GRID_STDS * s, c + GRID_STDS * s, GRID)
        for c, s in zip(centre, scale, strict=True)
    ]
    cell = 2 * GRID_STDS * scale / (GRID - 1)
    # wider by less than a cell, to show thin ridges (two tokens that attend to the same
    # one) as ridges
    wider = two.component_cov + np.diag((MIN_RIDGE_CELLS * cell) ** 2)
    seen = type(law)(two.component_mean, wider, law.origin, law.weight)
    density = seen.pdf(np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1))
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered) * np.prod(cell)
    levels = {
        float(ordered[min(int(np.searchsorted(mass, q)), GRID**2 - 1)]): f"{q:.0%}"
        for q in SHARES[::-1]
    }
    (axes,) = _axes(ax)
    lines = axes.contour(
        *sides, density.T, levels=sorted(levels), colors=BLUE, linewidths=1.0
    )
    axes.clabel(lines, fmt=levels, fontsize=6)
    axes.set(xlabel=f"entry {entries[0]}", ylabel=f"entry {entries[1]}")
    return axes


def _range(law: Any, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval that a plot shows."""
    low, high = law.interval(confidence)
    if high > low:
        return low, high
    scale = law.std() or max(abs(law.mean()), 1.0)
    return law.mean() - 4 * scale, law.mean() + 4 * scale


def _curve(law: Any, y: Any) -> tuple[Any, Any]:
    """The density and its error; 0 for a law of atoms alone."""
    if not law._has_density:
        return np.zeros_like(y), np.zeros_like(y)
    value, error = law._density_with_error(y)
    return value, np.broadcast_to(error, y.shape)


def _add_arrows(
    axes: Any, law: Any, top: float, colour: str, bottom: float = 0.0
) -> None:
    """An arrow for each atom; one with probability 1 is as high as the highest density,
    or 1 without a density.
    """
    for at, mass in law.atoms[:10]:
        height = (top or 1.0) * min(mass.value, 1.0)
        axes.annotate(
            "",
            (at, height),
            (at, bottom),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2},
        )
        # an arrow alone does not move the limits of the axes
        axes.plot([at], [height], alpha=0.0)


def _add_line(
    axes: Any, y: Any, value: Any, error: Any, colour: str, line: Any, label: str | None
) -> None:
    """A density, with its error as a band."""
    axes.plot(y, value, linestyle=line, color=colour, lw=1.4, label=label, zorder=3)
    if np.any(error > 0):
        axes.fill_between(
            y, value - error, value + error, color=colour, alpha=0.2, lw=0, zorder=2
        )


# points of the density: the picture takes a third of a second for 50,000 replicas
THUMBNAIL_POINTS = 121
SHOWN = 8  # most entries of a joint law


def card(law: Any) -> str:
    """A law in a notebook: its density and numbers, or a row for each entry with its
    correlations.
    """
    joint = hasattr(law, "dim")
    name = f"Joint law of {law.dim} entries" if joint else type(law).__name__
    return (
        title(name, *law._labels)
        + (_entries if joint else _picture)(law)
        + "".join(map(note, law.notes))
    )


def _picture(law: Any) -> str:
    y = np.linspace(*_range(law), THUMBNAIL_POINTS)
    value, error = _curve(law, y)
    largest = max((mass.value for _, mass in law.atoms), default=1.0)
    atoms = [
        (at, min(mass.value, 1.0) / largest)
        for at, mass in law.atoms[:10]
        if y[0] <= at <= y[-1]
    ]
    finite = np.nan_to_num(error, nan=0.0, posinf=0.0)  # an infinite band is not drawn
    number = law.with_error
    rows = [
        ["mean", number.mean().brief()],
        ["standard deviation", number.std().brief()],
        ["excess kurtosis", number.kurtosis().brief()],
        ["5 %, 50 %, 95 %", ", ".join(f"{q:.4g}" for q in law.ppf([0.05, 0.5, 0.95]))],
        *([f"P(Y = {at:g})", mass.brief()] for at, mass in law.atoms[:3]),
    ]
    return density(y, value, finite, atoms, f"density of {law.method}") + table(rows)


def _entries(law: Any) -> str:
    some = range(min(law.dim, SHOWN))
    mean, std, corr = law.mean(), law.std(), law.marginal(list(some)).corr()
    rows = [
        [
            str(i),
            f"{mean[i]:.4g}",
            f"{std[i]:.4g}",
            *("–" if math.isnan(r) else f"{r:.3f}" for r in corr[i]),
        ]
        for i in some
    ]
    head = ["entry", "mean", "standard deviation", *(f"corr. with {i}" for i in some)]
    return table(rows, head) + (
        note(f"and {law.dim - SHOWN} more entries") if law.dim > SHOWN else ""
    )
