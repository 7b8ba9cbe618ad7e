"""Pictures of laws: densities with their errors, differences below, contours of two entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._style import BLACK, BLUE, DOTTED, GREEN, GREY, ORANGE, PURPLE, SKY, STYLE, VERMILLION, new
from ..language._given import shown
from ..language._where import TraceError
from ._normals import Normals

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK)
POINTS = 401
GRID = 61  # points to a side, over so many standard deviations to each side
REACH = 3.5
WIDER = 0.7  # of a cell: a Gaussian as narrow as that shows no beads on a grid
SHARES = (0.25, 0.5, 0.75, 0.9, 0.97)


def plot(*laws: Any, labels: Any = None, axes: Any = None) -> Any:
    """Densities above; below, what each differs by from the last, where the eye can see it.

    `axes` is a pair of matplotlib axes, new ones unless given; `labels` are names for the laws. Returns the figure.
    """
    import matplotlib as mpl

    if not laws or not all(hasattr(law, "with_error") and hasattr(law, "_slope") for law in laws):
        raise TypeError("plot: needs one law of one variable or more; a joint law has joint.plot()")
    names = [law.method for law in laws] if labels is None else labels
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not listed or len(names) != len(laws):
        raise TraceError("plot", f"labels={shown(labels)} must be {len(laws)} names, one for each law")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        if axes is None:
            figure = new(3.3)
            top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
        else:
            top, bottom = axes
            figure = top.figure
        low, high = zip(*(_range(law) for law in laws), strict=True)
        y = np.linspace(min(low), max(high), POINTS)
        curves = [_curve(law, y) for law in laws]
        last, last_error = curves[-1]
        for k, (name, (density, error)) in enumerate(zip(names, curves, strict=True)):
            colour = COLOURS[k % len(COLOURS)]
            line = "-" if k == len(laws) - 1 else DOTTED
            _line(top, y, density, error, colour, line, name)
            if k < len(laws) - 1:
                _line(bottom, y, density - last, np.hypot(error, last_error), colour, line, None)
        bottom.axhline(0.0, color=GREY, lw=0.5, zorder=0)
        top.set(ylabel="density", ylim=(0, None))
        bottom.set(xlabel="y", ylabel="difference", xlim=(y[0], y[-1]))
        top.legend(loc="best")
    return figure


def plot_law(law: Any, ax: Any, label: str | None) -> Any:
    """The density of one law, with its error as a band, and an arrow for each atom. Returns the axes."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = new().subplots() if ax is None else ax
        y = np.linspace(*_range(law), POINTS)
        density, error = _curve(law, y)
        colour = COLOURS[len(axes.lines) % len(COLOURS)]
        _line(axes, y, density, error, colour, "-", label)
        for at, mass in law.atoms[:10]:
            height = max(float(density.max()), 1e-300) * min(mass.value, 1.0)
            axes.annotate("", (at, height), (at, 0.0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2})
        axes.set(xlabel="y", ylabel="density", xlim=(y[0], y[-1]), ylim=(0, None))
        if label is not None:
            axes.legend(loc="best")
    return axes


def plot_joint(law: Any, ax: Any, entries: tuple[int, int]) -> Any:
    """Contours of the joint density of two entries, each around a share of the probability. Returns the axes.

    The density is shown as finely as the grid is: each Gaussian is widened by less than a cell, so that ridges which
    are thinner (two tokens that attend to the same one) are seen as ridges.
    """
    import matplotlib as mpl

    two = law.marginal(entries)
    if two.dim != 2:
        raise TraceError("plot", f"entries={shown(entries)} must be two entries")
    centre, scale = two.mean(), two.std()
    if not (scale > 0).all():
        raise TraceError("plot", f"entries={shown(entries)}: entry {entries[int(np.argmin(scale))]} is not random")
    sides = [np.linspace(c - REACH * s, c + REACH * s, GRID) for c, s in zip(centre, scale, strict=True)]
    cell = 2 * REACH * scale / (GRID - 1)
    seen = Normals(two.component_mean, two.component_cov + np.diag((WIDER * cell) ** 2), two.weight)
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
    density = seen.pdf(points.reshape(-1, 2)).reshape(GRID, GRID)
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered) * np.prod(cell)
    levels = {float(ordered[min(int(np.searchsorted(mass, q)), GRID**2 - 1)]): f"{q:.0%}" for q in SHARES[::-1]}
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = new().subplots() if ax is None else ax
        lines = axes.contour(*sides, density.T, levels=sorted(levels), colors=BLUE, linewidths=1.0)
        axes.clabel(lines, fmt=levels, fontsize=6)
        axes.set(xlabel=f"entry {entries[0]}", ylabel=f"entry {entries[1]}")
    return axes


def _range(law: Any) -> tuple[float, float]:
    low, high = law.interval(0.9998)
    if high > low:
        return low, high
    scale = law.std() or max(abs(law.mean()), 1.0)
    return law.mean() - 4 * scale, law.mean() + 4 * scale


def _curve(law: Any, y: Any) -> tuple[Any, Any]:
    """The density and its error; 0 for a law that is made of atoms."""
    if law.atoms and not len(law._pieces()[0]) and not law._points.draws.size:
        return np.zeros_like(y), np.zeros_like(y)
    value, error = law.with_error.pdf(y)
    return value, error


def _line(axes: Any, y: Any, value: Any, error: Any, colour: str, line: Any, label: str | None) -> None:
    axes.plot(y, value, linestyle=line, color=colour, lw=1.4, label=label, zorder=3)
    if np.any(error > 0):
        axes.fill_between(y, value - error, value + error, color=colour, alpha=0.2, lw=0, zorder=2)
