"""What notebooks show: tables and small pictures as HTML that needs no style sheet, no script and no other file.

Colours of text and lines are those of the page around them, so that it is read on light and dark pages alike.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._mpl_style import BLUE, GREEN, GREY, ORANGE, VERMILLION

Array = npt.NDArray[np.float64]

CELL = "text-align: left; vertical-align: top; padding: 0.15em 0.8em 0.15em 0; white-space: nowrap"
TEXT_CELL_STYLE = "text-align: left; vertical-align: top; padding: 0.15em 0.8em 0.15em 0"
WIDE, HIGH, BELOW = 300.0, 110.0, 16.0  # of a small picture, and of the numbers under it, in pixels
GOOD, OPEN, BAD, ABSENT = GREEN, ORANGE, VERMILLION, GREY  # of verdicts


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), *, code: bool = False) -> str:
    """Cells of text in rows, not broken into lines; `code` is set in a font of one width."""
    style = CELL + ("; font-family: monospace" if code else "")

    def line(cells: Sequence[str], tag: str) -> str:
        inside = "".join(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{inside}</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    body = "".join(line(row, "td") for row in rows)
    return scrolled(f'<table style="margin: 0.3em 0">{top}<tbody>{body}</tbody></table>')


def scrolled(markup: str) -> str:
    """What may be wider than the page."""
    return f'<div style="overflow-x: auto; overflow-y: hidden">{markup}</div>'


def title(name: str, *words: str) -> str:
    """The first line: what it is, and what is to be known of it."""
    return f"<div><strong>{html.escape(name)}</strong>" + "".join(f" · {html.escape(w)}" for w in words) + "</div>"


def verdict(word: str, colour: str) -> str:
    """A word with a mark in its colour in front; colour is not the only difference between verdicts."""
    return f'<span style="border-left: 0.5em solid {colour}; padding-left: 0.4em">{html.escape(word)}</span>'


def note(text: str) -> str:
    """A remark below."""
    return f'<div style="opacity: 0.75">{html.escape(text)}</div>'


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two ends: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    size = 10.0 ** math.floor(math.log10(span / count))
    step = next(size * k for k in (1, 2, 5, 10) if span / (size * k) <= count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def density(x: Array, y: Array, error: Array, atoms: Sequence[tuple[float, float]], words: str) -> str:
    """A small picture of a density with its error as a band; atoms, (place, height as a share), are lines."""
    top = float(np.max(y + error)) or 1.0
    floor = HIGH - BELOW

    def across(at: Any) -> Any:
        return (at - x[0]) / (x[-1] - x[0]) * WIDE

    def points(height: Array) -> list[str]:
        places = zip(across(x).tolist(), np.clip(floor * (1 - 0.95 * height / top), 0, floor).tolist(), strict=True)
        return [f"{a:.1f},{b:.1f}" for a, b in places]

    band = "L".join(points(y + error) + points(y - error)[::-1])
    parts = [f'<path d="M{band}Z" fill="{BLUE}" fill-opacity="0.25"/>'] if np.any(error > 0) else []
    parts.append(f'<path d="M{"L".join(points(y))}" fill="none" stroke="{BLUE}" stroke-width="1.6"/>')
    for at, share in atoms:
        parts.append(
            f'<path d="M{across(at):.1f},{floor}v{-0.95 * floor * share:.1f}" stroke="{BLUE}" stroke-width="3"/>'
        )
    parts.append(f'<path d="M0,{floor}H{WIDE}" stroke="currentColor" stroke-width="0.8"/>')
    for value in ticks(float(x[0]), float(x[-1])):
        label = f"{value:.4g}".replace("-", "−")
        parts.append(
            f'<path d="M{across(value):.1f},{floor}v3" stroke="currentColor" stroke-width="0.8"/>'
            f'<text x="{across(value):.1f}" y="{HIGH - 2}" font-size="10" text-anchor="middle" fill="currentColor">'
            f"{label}</text>"
        )
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" style="max-width: 100%; overflow: visible" '
        f'role="img" aria-label="{html.escape(words, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )
