"""A picture for the page: SVG written here, because it takes a millisecond where matplotlib takes a hundred.

What is black in a figure has the colour of the page's text, so that it is seen on a dark page too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .._html import ticks
from .._style import BLACK
from ._picture import LOOKS, Array, Curve, Panel

WIDE, HIGH = 480.0, 220.0  # size of the axes of a panel with share 1, in SVG units
LEFT, RIGHT, ABOVE, BELOW = 58.0, 10.0, 24.0, 34.0  # margins around the axes, in SVG units
LINE = 15.0  # height of a line of text, in SVG units


def as_svg(panels: Sequence[Panel]) -> str:
    """Every panel as an image of its own, which the page arranges."""
    return "".join(_panel(panel) for panel in panels)


def decades(low: float, high: float) -> list[float]:
    """Logarithms to mark between two ends: of powers of ten; of 1, 2 and 5 times them, if there are fewer than two."""
    step = math.ceil((high - low) / 4)
    powers = [float(k) for k in range(math.ceil(low), math.floor(high) + 1) if k % step == 0]
    if len(powers) > 1:
        return powers
    parts = [k + math.log10(m) for k in range(math.floor(low), math.floor(high) + 1) for m in (1, 2, 5)]
    return [part for part in parts if low <= part <= high]


def _panel(panel: Panel) -> str:
    entries = [c for c in panel.curves if c.label] if panel.legend else []
    above = ABOVE + LINE * len(entries)
    high = HIGH * panel.share + above + BELOW
    left, right, bottom, top = panel.reach()

    def across(x: Array) -> Array:
        return LEFT + (x - left) / (right - left) * (WIDE - LEFT - RIGHT)

    def up(y: Array) -> Array:
        return high - BELOW - (panel.up(y) - bottom) / (top - bottom) * (high - above - BELOW)

    parts = list(_axes(panel, (left, right, bottom, top), above, high))
    for curve in panel.curves:
        parts.append(f'<g class="netsor-{curve.look}">{"".join(_curve(curve, across(curve.x), up))}</g>')
    for k, curve in enumerate(entries):
        parts.append(f'<g class="netsor-{curve.look}">{"".join(_entry(curve, ABOVE + LINE * (k - 0.2)))}</g>')
    name = html.escape(f"{panel.title}: {', '.join(curve.label for curve in panel.curves)}", quote=True)
    return (
        f'<svg class="netsor-panel" viewBox="0 0 {WIDE:g} {high:.0f}" role="img" aria-label="{name}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _axes(panel: Panel, ends: tuple[float, float, float, float], above: float, high: float) -> Iterator[str]:
    left, right, bottom, top = ends
    floor = high - BELOW
    yield f'<text x="{WIDE / 2:g}" y="13" text-anchor="middle" class="netsor-title">{html.escape(panel.title)}</text>'
    yield f'<path d="M{LEFT},{above}V{floor:.1f}H{WIDE - RIGHT}" class="netsor-axis"/>'
    for value in ticks(left, right):
        x = LEFT + (value - left) / (right - left) * (WIDE - LEFT - RIGHT)
        yield f'<path d="M{x:.1f},{floor:.1f}v4" class="netsor-axis"/>'
        yield f'<text x="{x:.1f}" y="{floor + 15:.1f}" text-anchor="middle">{_number(value)}</text>'
    for value in decades(bottom, top) if panel.log else ticks(bottom, top, 4):
        y = floor - (value - bottom) / (top - bottom) * (floor - above)
        value = 10**value if panel.log else value
        yield f'<path d="M{LEFT},{y:.1f}h-4" class="netsor-axis"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    centre, middle = (LEFT + WIDE) / 2, (above + floor) / 2
    yield f'<text x="{centre:.0f}" y="{high - 4:.1f}" text-anchor="middle">{html.escape(panel.across)}</text>'
    turned = f'transform="translate(11 {middle:.1f}) rotate(-90)" text-anchor="middle"'
    yield f"<text {turned}>{html.escape(panel.unit)}</text>"


def _curve(curve: Curve, x: Array, up: Callable[[Array], Array]) -> Iterator[str]:
    colour, dashes, thick = _look(curve)
    if curve.low is not None and curve.high is not None:
        edge = np.concatenate([np.stack([x, up(curve.low)], 1), np.stack([x, up(curve.high)], 1)[::-1]])
        yield f'<path d="{_path(edge)}Z" fill="{colour}" fill-opacity="0.2" stroke="none"/>'
    points = np.stack([x, up(curve.y)], 1)
    if len(points) == 1:
        yield f'<circle cx="{points[0, 0]:.1f}" cy="{points[0, 1]:.1f}" r="3" fill="{colour}"/>'
        return
    yield f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="{thick:g}"{dashes}/>'


def _entry(curve: Curve, y: float) -> Iterator[str]:
    colour, dashes, thick = _look(curve)
    yield f'<path d="M{LEFT + 8},{y + 6:.1f}h26" stroke="{colour}" stroke-width="{thick:g}"{dashes}/>'
    yield f'<text x="{LEFT + 40}" y="{y + 10:.1f}">{html.escape(curve.label)}</text>'


def _look(curve: Curve) -> tuple[str, str, float]:
    colour, line, thick = LOOKS[curve.look]
    scaled = 1.4 * thick
    dashes = "" if line == "-" else f' stroke-dasharray="{" ".join(f"{scaled * part:g}" for part in line[1])}"'
    return ("currentColor" if colour == BLACK else colour), dashes, scaled


def _path(points: Array) -> str:
    """A line through the points; it is broken where there is no number."""
    parts, pen = [], "M"
    for x, y in points.tolist():
        if math.isfinite(x) and math.isfinite(y):
            parts.append(f"{pen}{x:.1f},{y:.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
