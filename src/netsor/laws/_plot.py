"""Pictures of laws, in the user's matplotlib style: densities with their errors,
contours of two entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._validate import percent, shown
from ..report._html import density, note, table, title
from ..report._mpl_style import (
    BLACK,
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    LIMIT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    width_colours,
)
from ._law_base import LawError

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK)
DENSITY_POINTS = 401  # points of a density
# probability of the interval that a plot shows, also on a log scale
CONFIDENCE, LOG_CONFIDENCE = 0.9998, 1 - 1e-6
LOG_FLOOR = 1e-9  # lowest density on a log scale, relative to the largest
MOST_ARROWS = 10  # atoms that a picture shows
GRID = 61  # points along each side of the grid of a joint density
GRID_STDS = 3.5  # standard deviations that the grid extends to each side
# least standard deviation, in cells: narrower ridges would look like rows of dots
MIN_RIDGE_CELLS = 0.7
SHARES = (0.25, 0.5, 0.75, 0.9, 0.97)


def _current_axes() -> Any:
    """pyplot's current axes."""
    import matplotlib.pyplot as plt  # slow to import

    return plt.gca()


def _two_new_axes() -> list[Any]:
    """Axes for densities, and below them axes for differences, in a new figure."""
    import matplotlib.pyplot as plt  # slow to import

    figure = plt.figure(layout="constrained")
    return list(figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0)))


def _are_axes(argument: Any) -> bool:
    """Whether an argument has the methods of matplotlib's axes that we use."""
    methods = ("plot", "fill_between", "contour", "figure")
    return all(hasattr(argument, name) for name in methods)


def _one_axes(ax: Any) -> Any:
    """The user's axes, or pyplot's current ones if None."""
    if ax is None:
        return _current_axes()
    if not _are_axes(ax):
        raise LawError(
            "plot", "ax", ax, "one of matplotlib's axes, or None for the current ones"
        )
    return ax


def _one_or_two_axes(ax: Any) -> list[Any]:
    """The user's axes, one or two of them, or two in a new figure if None."""
    if ax is None:
        return _two_new_axes()
    axes = [ax]
    if isinstance(ax, list | tuple | np.ndarray) and len(ax) == 2:
        axes = list(ax)
    if not all(_are_axes(argument) for argument in axes):
        raise LawError("plot", "ax", ax, "one of matplotlib's axes, or two of them")
    return axes


def plot_law(law: Any, ax: Any, label: str | None, gaussian: bool, log: bool) -> Any:
    """The density of one law, its error, an arrow for each atom, and a Gaussian for
    comparison. Returns the axes.
    """
    axes = _one_axes(ax)
    low, high = _range(law, LOG_CONFIDENCE if log else CONFIDENCE)
    y = np.linspace(low, high, DENSITY_POINTS)
    value, error = _curve(law, y)
    top = float(value.max()) or 1.0
    bottom = 0.0
    if log:
        floor = LOG_FLOOR * top
        bottom = float(min(value[value > floor], default=floor)) / 2
    # the next colour after those of the laws in these axes, which have solid lines
    laws_in_axes = sum(line.get_linestyle() == "-" for line in axes.lines)
    colour = COLOURS[laws_in_axes % len(COLOURS)]
    name = label
    if not label:
        name = "law" if gaussian else None
    _add_line(axes, y, value, error, colour, line="-", label=name)
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
    axes.set(xlabel="y", ylabel="density", xlim=(y[0], y[-1]))
    if log:
        axes.set(yscale="log", ylim=(bottom, 2 * top))
    else:
        axes.set(ylim=(0, None))
    if gaussian or label is not None:
        axes.legend(loc="best")
    return axes


def plot_laws(laws: Sequence[Any], names: Sequence[str], ax: Any) -> Any:
    """The densities of several laws, and below them the difference of each from the
    last. Returns the axes.
    """
    all_axes = _one_or_two_axes(ax)
    densities = all_axes[0]
    ranges = [_range(law) for law in laws]
    lowest = min(low for low, _ in ranges)
    highest = max(high for _, high in ranges)
    y = np.linspace(lowest, highest, DENSITY_POINTS)
    curves = [_curve(law, y) for law in laws]
    top = max(float(value.max()) for value, _ in curves)
    colours = [*width_colours(len(laws) - 1), LIMIT]
    lines = [*[DOTTED] * (len(laws) - 1), "-"]
    for law, name, curve, colour, line in zip(
        laws, names, curves, colours, lines, strict=True
    ):
        value, error = curve
        _add_line(densities, y, value, error, colour, line, label=name)
        _add_arrows(densities, law, top, colour)
    densities.set(ylabel="density", ylim=(0, None))
    if len(all_axes) == 2:
        _plot_differences(all_axes[1], y, curves, colours)
    all_axes[-1].set(xlabel="y", xlim=(y[0], y[-1]))
    densities.legend(loc="best")
    return densities if len(all_axes) == 1 else np.array(all_axes)


def _plot_differences(
    axes: Any, y: Any, curves: Sequence[tuple[Any, Any]], colours: Sequence[str]
) -> None:
    """The difference of each density from the last.

    `curves` are the values (points,) and errors of the densities at y.
    """
    last, last_error = curves[-1]
    for (value, error), colour in zip(curves[:-1], colours, strict=False):
        _add_line(
            axes,
            y,
            value=value - last,
            error=np.hypot(error, last_error),
            colour=colour,
            line=DOTTED,
            label=None,
        )
    axes.axhline(0.0, color=GREY, lw=0.5, zorder=0)
    axes.set(ylabel="difference")


def plot_joint(law: Any, ax: Any, entries: tuple[int, int]) -> Any:
    """Contours of the joint density of two entries, each around a share of the
    probability. Returns the axes.
    """
    pair = law.marginal(entries)
    if pair.dim != 2:
        raise LawError("plot", "entries", entries, "two entries")
    mean = pair.mean()
    scale = pair.std()
    if not (scale > 0).all():
        raise LawError(
            "plot",
            f"entries={shown(entries)}: entry {entries[int(np.argmin(scale))]} is not"
            " random",
        )
    # the two sides of the grid, (GRID,) each
    low = mean - GRID_STDS * scale
    high = mean + GRID_STDS * scale
    x_axis = np.linspace(low[0], high[0], GRID)
    y_axis = np.linspace(low[1], high[1], GRID)
    cell = 2 * GRID_STDS * scale / (GRID - 1)
    # wider by less than a cell, to show thin ridges (two tokens that attend to the same
    # one) as ridges
    wider = pair.component_cov + np.diag((MIN_RIDGE_CELLS * cell) ** 2)
    smoothed = type(law)(pair.component_mean, wider, law.origin, law.weight)
    grid = np.stack(np.meshgrid(x_axis, y_axis, indexing="ij"), axis=-1)
    density = smoothed.pdf(grid)
    label_of_level = _levels(density, float(np.prod(cell)))
    axes = _one_axes(ax)
    lines = axes.contour(
        x_axis,
        y_axis,
        density.T,
        levels=sorted(label_of_level),
        colors=BLUE,
        linewidths=1.0,
    )
    axes.clabel(lines, fmt=label_of_level, fontsize=6)
    axes.set(xlabel=f"entry {entries[0]}", ylabel=f"entry {entries[1]}")
    return axes


def _levels(density: Any, cell_area: float) -> dict[float, str]:
    """The densities whose contours contain the SHARES of probability, with labels.

    density: (GRID, GRID), on cells of this area.
    """
    falling = np.sort(density.ravel())[::-1]
    mass = np.cumsum(falling) * cell_area
    label_of_level = {}
    for share in SHARES[::-1]:
        position = min(int(np.searchsorted(mass, share)), len(falling) - 1)
        label_of_level[float(falling[position])] = percent(share)
    return label_of_level


def _range(law: Any, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of y that a plot shows; around the mean if quantiles coincide."""
    low, high = law.interval(confidence)
    if high > low:
        return low, high
    mean = law.mean()
    scale = law.std() or max(abs(mean), 1.0)
    return mean - 4 * scale, mean + 4 * scale


def _curve(law: Any, y: Any) -> tuple[Any, Any]:
    """The density and its error at y, (points,) each; 0 for a law of atoms only."""
    if not law._has_density:
        return np.zeros_like(y), np.zeros_like(y)
    value, error = law._density_with_error(y)
    return value, np.broadcast_to(error, y.shape)


def _add_arrows(
    axes: Any, law: Any, top: float, colour: str, bottom: float = 0.0
) -> None:
    """An arrow from `bottom` for each atom; one with probability 1 is as high as the
    highest density `top`, or 1 without a density.
    """
    for point, mass in law.atoms[:MOST_ARROWS]:
        height = (top or 1.0) * min(mass.value, 1.0)
        axes.annotate(
            "",
            (point, height),
            (point, bottom),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2},
        )
        # an arrow by itself does not move the limits of the axes
        axes.plot([point], [height], alpha=0.0)


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
    """A law in a notebook, as HTML: its density and numbers, or for a joint law a row
    for each entry with its correlations.
    """
    is_joint = hasattr(law, "dim")
    if is_joint:
        heading = title(f"Joint law of {law.dim} entries", *law._labels)
        content = _table_of_entries(law)
    else:
        heading = title(type(law).__name__, *law._labels)
        content = _picture(law)
    notes = "".join(note(text) for text in law.notes)
    return heading + content + notes


def _picture(law: Any) -> str:
    """The density of a law of one variable as a picture, and its numbers as a table."""
    low, high = _range(law)
    y = np.linspace(low, high, THUMBNAIL_POINTS)
    value, error = _curve(law, y)
    error = np.nan_to_num(error, nan=0.0, posinf=0.0)  # an infinite band is not drawn
    # the arrows of atoms, relative to the highest
    largest = max((mass.value for _, mass in law.atoms), default=1.0)
    arrows = []
    for point, mass in law.atoms[:MOST_ARROWS]:
        if low <= point <= high:
            arrows.append((point, min(mass.value, 1.0) / largest))
    picture = density(y, value, error, atoms=arrows, words=f"density of {law.method}")
    numbers = law.with_error
    quantiles = [f"{y:.4g}" for y in law.ppf([0.05, 0.5, 0.95])]
    rows = [
        ["mean", numbers.mean().brief()],
        ["standard deviation", numbers.std().brief()],
        ["excess kurtosis", numbers.kurtosis().brief()],
        ["5 %, 50 %, 95 %", ", ".join(quantiles)],
    ]
    for point, mass in law.atoms[:3]:
        rows.append([f"P(Y = {point:g})", mass.brief()])
    return picture + table(rows)


def _table_of_entries(law: Any) -> str:
    """Mean, standard deviation and correlations of the first entries of a joint law."""
    entries = range(min(law.dim, SHOWN))
    mean = law.mean()
    std = law.std()
    corr = law.marginal(list(entries)).corr()
    rows = []
    for i in entries:
        row = [str(i), f"{mean[i]:.4g}", f"{std[i]:.4g}"]
        for r in corr[i]:
            row.append("–" if math.isnan(r) else f"{r:.3f}")
        rows.append(row)
    head = ["entry", "mean", "standard deviation"]
    head += [f"corr. with {i}" for i in entries]
    html = table(rows, head)
    if law.dim > SHOWN:
        html += note(f"and {law.dim - SHOWN} more entries")
    return html
