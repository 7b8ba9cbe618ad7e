"""Content of the page: panels of curves, numbers, the plan, and Python code.

A panel is drawn as SVG on the page, and as a PNG, PDF or CSV file for download.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._array_api import Floats
from ..laws import Estimate
from ..report._html import template, ticks
from ..report._mpl_style import (
    BLACK,
    BLUE,
    COLUMN,
    DOTTED,
    VERMILLION,
    rendered,
    styled,
)

if TYPE_CHECKING:
    from ..studies.audit._results import Audit, Comparison

MAX_SECONDS = 30.0  # seconds that a number of draws chosen by the user may take
DASHED = (0, (4.0, 2.0))
MARGIN = 0.06  # beside the curves, over the height of the picture
TINY = 1e-300  # the height of a picture of zeros
MOST_DECADES = 8.0  # of a logarithmic axis

# Finite widths dotted, limits solid, the Gaussian black; in an audit a colour for each
# of two models, limits dashed
LOOKS: dict[str, tuple[str, Any, float]] = {
    "law": (VERMILLION, DOTTED, 1.9),
    "limit": (BLUE, "-", 1.4),
    "gaussian": (BLACK, DASHED, 1.1),
    "band": (VERMILLION, "-", 1.4),
    "band-limit": (VERMILLION, DASHED, 1.1),
    "second": (BLUE, "-", 1.4),
    "second-limit": (BLUE, DASHED, 1.1),
}
ENTRY = 0.11  # of a panel's height: room for one entry of the legend in a file


class Curve(NamedTuple):
    """A line, and the lower and upper edge of a band about it, if it has one."""

    label: str
    look: str  # one of LOOKS
    x: Floats
    y: Floats
    band: tuple[Floats, ...] = ()


class Ends(NamedTuple):
    """The ends of both axes; on a logarithmic axis they are logarithms to base 10."""

    left: float
    right: float
    bottom: float
    top: float


class Panel(NamedTuple):
    """Axes with curves; `share` is the panel's height."""

    title: str
    across: str
    unit: str
    curves: tuple[Curve, ...]
    share: float = 1.0
    legend: bool = True
    log: bool = False  # a logarithmic vertical axis, for positive numbers

    def up(self, y: Floats) -> Floats:
        """Where numbers are on the vertical axis, before scaling: their logarithms on a
        logarithmic one.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(y) if self.log else y

    def reach(self) -> Ends:
        """The ends of both axes: all finite numbers, with a margin below and above.

        A linear axis of numbers that are not negative begins at 0. A logarithmic one
        shows at most MOST_DECADES.
        """
        bottom, top = self._vertical_ends()
        x = np.concatenate([curve.x for curve in self.curves])
        left = float(x.min())
        right = float(x.max())
        if left == right:
            left = left - 0.5
            right = right + 0.5
        return Ends(left, right, bottom, top)

    def _vertical_ends(self) -> tuple[float, float]:
        """The ends of the vertical axis, as `up` places numbers."""
        lines = []
        for curve in self.curves:
            lines += [self.up(line) for line in (curve.y, *curve.band)]
        y = np.concatenate(lines)
        y = y[np.isfinite(y)]
        low, high = 0.0, 1.0
        if y.size:
            low = float(y.min())
            high = float(y.max())
        begins_at_zero = low >= 0 and not self.log
        if begins_at_zero:
            low = 0.0
        elif self.log:
            low = max(low, high - MOST_DECADES)
        margin = (high - low) * MARGIN
        if margin == 0:  # all numbers are equal
            margin = max(abs(high) * MARGIN, TINY)
        if begins_at_zero:
            return low, high + margin
        return low - margin, high + margin


Rows = dict[str, dict[str, Estimate | str]]  # name of a number → which law → the number


class View(NamedTuple):
    """The content of the page."""

    panels: tuple[Panel, ...]
    rows: Rows
    code: str
    notes: tuple[str, ...] = ()
    plan: str = ""
    more: Callable[[], Rows] | None = None  # numbers that take longer
    result: Audit | Comparison | None = None  # of an audit, for its findings


def as_csv(panels: Sequence[Panel]) -> bytes:
    """All numbers of the pictures, a row for each point."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["panel", "curve", "x", "y", "low", "high"])
    for panel in panels:
        for curve in panel.curves:
            columns = [line.tolist() for line in (curve.x, curve.y, *curve.band)]
            for point in zip(*columns, strict=True):
                row = [panel.title, curve.label, *map(repr, point)]
                if not curve.band:
                    row += ["", ""]
                rows.writerow(row)
    return text.getvalue().encode()


def as_file(panels: Sequence[Panel], kind: str) -> bytes:
    """The panels as a PNG or PDF file, in the style of all figures; more than two are
    in two columns.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) > 2 else 1
    rows = math.ceil(len(panels) / columns)
    heights = [1.0] * rows
    if columns == 1:
        heights = [panel.share for panel in panels]
    with styled():
        figure = Figure(
            figsize=(COLUMN * columns, 0.5 + 2.1 * sum(heights)), layout="constrained"
        )
        grid = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
        all_axes = grid.ravel()
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw(panel, axes)
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        return rendered(figure, kind)[0]


def _draw(panel: Panel, axes: Any) -> None:
    """Draw a panel on axes of matplotlib."""
    left, right, bottom, top = panel.reach()
    for curve in panel.curves:
        colour, line, thickness = LOOKS[curve.look]
        axes.plot(
            curve.x,
            curve.y,
            linestyle=line,
            color=colour,
            lw=thickness,
            label=curve.label,
            marker="o" if len(curve.x) == 1 else None,
        )
        if curve.band:
            axes.fill_between(curve.x, *curve.band, color=colour, alpha=0.2, lw=0)
    if panel.legend:
        # room for the names, above the curves
        top += ENTRY * (top - bottom) * len(panel.curves)
        axes.legend(loc="upper left")
    if panel.log:
        axes.set(yscale="log", ylim=(10**bottom, 10**top))
    else:
        axes.set(yscale="linear", ylim=(bottom, top))
    axes.set(
        title=panel.title, xlabel=panel.across, ylabel=panel.unit, xlim=(left, right)
    )


WIDE, HIGH = 480.0, 220.0  # size of the axes of a panel with share 1, in SVG units
# margins around the axes, in SVG units
LEFT, RIGHT, ABOVE, BELOW = 58.0, 10.0, 24.0, 34.0
LINE = 15.0  # height of a line of text, in SVG units


def markup() -> Any:
    """The macros of `_page.html`; each returns HTML."""
    return template(Path(__file__).with_name("_page.html")).module


def as_svg(panels: Sequence[Panel]) -> str:
    """An image of each panel; the page arranges them."""
    draw = markup().panel
    return "".join(draw(panel, LOOKS, **_positions(panel)) for panel in panels)


def decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, as logarithms: powers of ten, or 1, 2 and 5 times
    them if fewer than two fit.
    """
    step = math.ceil((high - low) / 4)
    whole = range(math.ceil(low), math.floor(high) + 1)
    powers = [float(exponent) for exponent in whole if exponent % step == 0]
    if len(powers) > 1:
        return powers
    marks = []
    for exponent in range(math.floor(low), math.floor(high) + 1):
        for factor in (1, 2, 5):
            mark = exponent + math.log10(factor)
            if low <= mark <= high:
                marks.append(mark)
    return marks


class _Drawing:
    """Converts the numbers of a panel to SVG units."""

    def __init__(self, panel: Panel) -> None:
        """The axes end at `above` and `floor`; between the top and `above` is the
        legend.
        """
        self.panel = panel
        self.ends = panel.reach()
        legend_lines = len(panel.curves) if panel.legend else 0
        self.above = ABOVE + LINE * legend_lines
        self.floor = round(HIGH * panel.share + self.above, 1)

    def x(self, number: Any) -> Any:
        """Where numbers are on the horizontal axis."""
        share = (number - self.ends.left) / (self.ends.right - self.ends.left)
        return np.round(LEFT + share * (WIDE - LEFT - RIGHT), 1)

    def y(self, number: Any) -> Any:
        """Where numbers, or logarithms, are on the vertical axis, which points down."""
        share = (number - self.ends.bottom) / (self.ends.top - self.ends.bottom)
        return np.round(self.floor - share * (self.floor - self.above), 1)

    def line(self, curve: Curve) -> tuple[Floats, Floats]:
        """The points of a curve; those below the axis are missing."""
        height = self.panel.up(curve.y)
        visible = np.where(height < self.ends.bottom, np.nan, height)
        return self.x(curve.x), self.y(visible)

    def band(self, curve: Curve) -> str:
        """The outline of a curve's band as an SVG path: along its lower edge, and back
        along its upper edge. Numbers below the axis are put on it. "" without a band.
        """
        if not curve.band:
            return ""
        low, high = curve.band
        x = self.x(curve.x)
        bottom = self.ends.bottom
        edges = self.panel.up(np.concatenate([low, high[::-1]]))
        edges = np.maximum(np.nan_to_num(edges, nan=bottom, neginf=bottom), bottom)
        return _path(np.concatenate([x, x[::-1]]), self.y(edges))


class _DrawnCurve(NamedTuple):
    """A curve in SVG units, as `_page.html` takes it."""

    label: str
    look: str
    line: str
    band: str
    point: tuple[float, float] | None  # of a curve with one point


def _positions(panel: Panel) -> dict[str, Any]:
    """The positions of everything in an image, in SVG units."""
    drawing = _Drawing(panel)
    curves = [_drawn(drawing, curve) for curve in panel.curves]
    entries: list[float] = []  # of the legend: the heights of their lines
    if panel.legend:
        first = ABOVE - 0.2 * LINE + 6
        entries = [round(first + LINE * k, 1) for k in range(len(curves))]
    left, right, _, _ = drawing.ends
    return {
        "curves": curves,
        "ticks_x": [(drawing.x(mark), _tick(mark)) for mark in ticks(left, right)],
        "ticks_y": _vertical_ticks(drawing),
        "box": {
            "left": LEFT,
            "right": WIDE - RIGHT,
            "above": drawing.above,
            "floor": drawing.floor,
        },
        "size": (WIDE, round(drawing.floor + BELOW)),
        "entries": entries,
    }


def _drawn(drawing: _Drawing, curve: Curve) -> _DrawnCurve:
    """A curve of a panel, in SVG units."""
    x, y = drawing.line(curve)
    return _DrawnCurve(
        label=curve.label,
        look=curve.look,
        line=_path(x, y),
        band=drawing.band(curve),
        point=(x[0], y[0]) if len(x) == 1 else None,
    )


def _vertical_ticks(drawing: _Drawing) -> list[tuple[float, str]]:
    """The heights of the ticks of a vertical axis, and their labels.

    On a logarithmic axis marks are logarithms to base 10.
    """
    _, _, bottom, top = drawing.ends
    if drawing.panel.log:
        marks = decades(bottom, top)
        return [(drawing.y(mark), _tick(10**mark)) for mark in marks]
    return [(drawing.y(mark), _tick(mark)) for mark in ticks(bottom, top, 4)]


def _tick(number: float) -> str:
    """The label of a tick."""
    return f"{number:.4g}".replace("-", "−")


def _path(x: Floats, y: Floats) -> str:
    """A line through the points, with a gap where y is not finite."""
    path = ""
    pen = "M"  # move to the next point, rather than draw a line (L)
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(up):
            path += f"{pen}{across:.1f},{up:.1f}"
            pen = "L"
        else:
            pen = "M"
    return path


def error_text(error: BaseException) -> str:
    """The message of an error in one line, for the page."""
    message = " ".join(str(error).split())
    if message and isinstance(error, ValueError | TypeError):
        return message
    return f"{type(error).__name__}: {message}"


def view_html(
    view: View, more: Rows | None = None, waiting: str = "", saved: str = ""
) -> str:
    """A view as HTML; `more` rows and `waiting` end the table, and `saved` are links to
    files.
    """
    return str(
        markup().answer(
            view, as_svg(view.panels), view.rows | (more or {}), waiting, saved
        )
    )
