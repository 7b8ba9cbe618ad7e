"""A picture as data: panels of curves. The page draws it as SVG, files by matplotlib, and a CSV holds its numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._style import BLACK, BLUE, DOTTED, VERMILLION, rendered, styled

Array = npt.NDArray[np.float64]

DASHED = (0, (4.0, 2.0))

# What a curve is decides how it looks: finite widths dotted, limits solid, the Gaussian black. Of a model: bands at its
# widths, a colour for each of two, whose limits are dashed
LOOKS: dict[str, tuple[str, Any, float]] = {
    "finite": (VERMILLION, DOTTED, 1.9),
    "limit": (BLUE, "-", 1.4),
    "gaussian": (BLACK, DASHED, 1.1),
    "band": (VERMILLION, "-", 1.4),
    "band-limit": (VERMILLION, DASHED, 1.1),
    "second": (BLUE, "-", 1.4),
    "second-limit": (BLUE, DASHED, 1.1),
}
ENTRY = 0.11  # of a panel's height: room for one entry of the legend in a file


@dataclass(frozen=True)
class Curve:
    """A line, and a band about it where `low` and `high` are given."""

    label: str
    look: str  # one of LOOKS
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None

    def minus(self, other: Curve) -> Curve:
        """What it differs by from another curve over the same points."""
        low, high = (None if edge is None else edge - other.y for edge in (self.low, self.high))
        return replace(self, y=self.y - other.y, low=low, high=high)


@dataclass(frozen=True)
class Panel:
    """Axes with curves. `floor` is a value that the vertical axis reaches down to; a share is the panel's height."""

    title: str
    across: str
    unit: str
    curves: tuple[Curve, ...]
    share: float = 1.0
    floor: float | None = None
    legend: bool = True
    log: bool = False  # a vertical axis of logarithms, for what is above 0

    def up(self, y: Array) -> Array:
        """Where a number is on the vertical axis."""
        if not self.log:
            return y
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log10(y))

    def reach(self) -> tuple[float, float, float, float]:
        """The ends of both axes, as `up` places numbers: all that is finite, and a little room above."""
        xs = np.concatenate([curve.x for curve in self.curves])
        ys = [self.up(edge) for c in self.curves for edge in (c.y, c.low, c.high) if edge is not None]
        every = np.concatenate(ys)
        every = every[np.isfinite(every)]
        low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
        if self.floor is not None:
            low = min(low, self.floor)
        room = (high - low) * 0.06 or max(abs(high) * 0.06, 1e-300)
        left, right = float(xs.min()), float(xs.max())
        if left == right:
            left, right = left - 0.5, right + 0.5
        return left, right, low if low == self.floor else low - room, high + room


def as_csv(panels: Sequence[Panel]) -> bytes:
    """All numbers of the pictures, a row for each point."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["panel", "curve", "x", "y", "low", "high"])
    for panel in panels:
        for curve in panel.curves:
            edges = [[""] * len(curve.x) if e is None else map(repr, e.tolist()) for e in (curve.low, curve.high)]
            for x, y, low, high in zip(curve.x.tolist(), curve.y.tolist(), *edges, strict=True):
                rows.writerow([panel.title, curve.label, repr(x), repr(y), low, high])
    return text.getvalue().encode()


def as_file(panels: Sequence[Panel], kind: str, columns: int = 1) -> bytes:
    """The picture as a PNG or PDF file, in the style of all figures."""
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    shares = [panel.share for panel in panels] if columns == 1 else [1.0] * rows
    with styled():
        figure = Figure(figsize=(3.4 * columns, 0.5 + 2.1 * sum(shares)), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, height_ratios=shares).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        return rendered(figure, kind)[0]


def _draw(axes: Any, panel: Panel) -> None:
    left, right, bottom, top = panel.reach()
    if panel.legend:
        top += ENTRY * (top - bottom) * len(panel.curves)  # room for the names, above the curves
    for curve in panel.curves:
        colour, line, thick = LOOKS[curve.look]
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(curve.x, curve.y, linestyle=line, color=colour, lw=thick, label=curve.label, marker=marker)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, lw=0)
    if panel.log:
        axes.set_yscale("log")
        bottom, top = 10**bottom, 10**top
    axes.set(xlabel=panel.across, ylabel=panel.unit, xlim=(left, right), ylim=(bottom, top), title=panel.title)
    if panel.legend:
        axes.legend(loc="upper left")
