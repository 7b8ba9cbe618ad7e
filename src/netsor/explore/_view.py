"""Content of the page: panels of curves (as SVG; as PNG, PDF and CSV files), numbers,
the plan, and Python code.
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
        """Where a number is on the vertical axis."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(y) if self.log else y

    def reach(self) -> tuple[float, float, float, float]:
        """The ends of both axes, as `up` places numbers: all finite numbers and a
        little room; 0 is a lower end.
        """
        every = np.concatenate(
            [self.up(line) for curve in self.curves for line in (curve.y, *curve.band)]
        )
        every = every[np.isfinite(every)]
        low, high = (
            (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
        )
        from_zero = low >= 0 and not self.log
        low = 0.0 if from_zero else max(low, high - MOST_DECADES) if self.log else low
        room = (high - low) * 0.06 or max(abs(high) * 0.06, 1e-300)
        x = np.concatenate([curve.x for curve in self.curves])
        aside = 0.5 if x.min() == x.max() else 0.0
        return (
            float(x.min()) - aside,
            float(x.max()) + aside,
            low if from_zero else low - room,
            high + room,
        )


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
            columns = [
                map(repr, line.tolist()) for line in (curve.x, curve.y, *curve.band)
            ]
            rows.writerows(
                [panel.title, curve.label, *point, "", ""][:6]
                for point in zip(*columns, strict=True)
            )
    return text.getvalue().encode()


def as_file(panels: Sequence[Panel], kind: str) -> bytes:
    """The panels as a PNG or PDF file, in the style of all figures; more than two are
    in two columns.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) > 2 else 1
    rows = math.ceil(len(panels) / columns)
    shares = [panel.share for panel in panels] if columns == 1 else [1.0] * rows
    with styled():
        figure = Figure(
            figsize=(COLUMN * columns, 0.5 + 2.1 * sum(shares)), layout="constrained"
        )
        grid = figure.subplots(
            rows, columns, squeeze=False, height_ratios=shares
        ).ravel()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid, panels, strict=False):
            left, right, bottom, top = panel.reach()
            for curve in panel.curves:
                colour, line, thick = LOOKS[curve.look]
                marker = "o" if len(curve.x) == 1 else None
                axes.plot(
                    curve.x,
                    curve.y,
                    linestyle=line,
                    color=colour,
                    lw=thick,
                    label=curve.label,
                    marker=marker,
                )
                if curve.band:
                    axes.fill_between(
                        curve.x, *curve.band, color=colour, alpha=0.2, lw=0
                    )
            if panel.legend:
                # room for the names, above the curves
                top += ENTRY * (top - bottom) * len(panel.curves)
                axes.legend(loc="upper left")
            scale, ends = (
                ("log", (10**bottom, 10**top))
                if panel.log
                else ("linear", (bottom, top))
            )
            axes.set(
                title=panel.title,
                xlabel=panel.across,
                ylabel=panel.unit,
                xlim=(left, right),
                yscale=scale,
                ylim=ends,
            )
        return rendered(figure, kind)[0]


WIDE, HIGH = 480.0, 220.0  # size of the axes of a panel with share 1, in SVG units
# margins around the axes, in SVG units
LEFT, RIGHT, ABOVE, BELOW = 58.0, 10.0, 24.0, 34.0
LINE = 15.0  # height of a line of text, in SVG units


def markup() -> Any:
    """The macros of `_page.html`; each returns HTML."""
    return template(Path(__file__).with_name("_page.html")).module


def as_svg(panels: Sequence[Panel]) -> str:
    """An image of each panel; the page arranges them."""
    return "".join(markup().panel(panel, LOOKS, **_places(panel)) for panel in panels)


def decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, as logarithms: powers of ten, or 1, 2 and 5 times
    them if fewer than two fit.
    """
    step = math.ceil((high - low) / 4)
    powers = [
        float(k) for k in range(math.ceil(low), math.floor(high) + 1) if k % step == 0
    ]
    parts = [
        k + math.log10(m)
        for k in range(math.floor(low), math.floor(high) + 1)
        for m in (1, 2, 5)
    ]
    return (
        powers if len(powers) > 1 else [part for part in parts if low <= part <= high]
    )


def _places(panel: Panel) -> dict[str, Any]:
    """The positions of everything in an image, in SVG units."""
    above = ABOVE + LINE * len(panel.curves) * panel.legend
    floor = round(HIGH * panel.share + above, 1)
    left, right, bottom, top = panel.reach()

    def across(x: Any) -> Any:
        return np.round(LEFT + (x - left) / (right - left) * (WIDE - LEFT - RIGHT), 1)

    def up(y: Any) -> Any:
        return np.round(floor - (y - bottom) / (top - bottom) * (floor - above), 1)

    def number(value: float) -> str:
        return f"{value:.4g}".replace("-", "−")

    curves = []
    for curve in panel.curves:
        at = panel.up(curve.y)
        x, y, band = across(curve.x), up(np.where(at < bottom, np.nan, at)), ""
        if curve.band:  # it ends at the axis
            edges = panel.up(np.concatenate([curve.band[0], curve.band[1][::-1]]))
            edges = np.maximum(np.nan_to_num(edges, nan=bottom, neginf=bottom), bottom)
            band = _path(np.concatenate([x, x[::-1]]), up(edges))
        curves.append(
            (
                curve.label,
                curve.look,
                _path(x, y),
                band,
                (x[0], y[0]) if len(x) == 1 else None,
            )
        )
    marks = decades(bottom, top) if panel.log else ticks(bottom, top, 4)
    return {
        "curves": curves,
        "ticks_x": [(across(value), number(value)) for value in ticks(left, right)],
        "ticks_y": [
            (up(value), number(10**value if panel.log else value)) for value in marks
        ],
        "box": {"left": LEFT, "right": WIDE - RIGHT, "above": above, "floor": floor},
        "size": (WIDE, round(floor + BELOW)),
        "entries": [round(ABOVE + LINE * (k - 0.2) + 6, 1) for k in range(len(curves))]
        if panel.legend
        else [],
    }


def _path(x: Floats, y: Floats) -> str:
    """A line through the points, with a gap where y is not finite."""
    path, pen = "", "M"
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        finite = math.isfinite(up)
        path += f"{pen}{across:.1f},{up:.1f}" if finite else ""
        pen = "L" if finite else "M"
    return path


def error_text(error: BaseException) -> str:
    """The message of an error in one line, for the page."""
    text = " ".join(str(error).split())
    return (
        text
        if text and isinstance(error, ValueError | TypeError)
        else f"{type(error).__name__}: {text}"
    )


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
