"""Documents as pages or as outputs of notebook cells, and tables and small pictures for
notebooks.

The output of a notebook cell needs no style sheet, script or other file, and takes the
colours of the page around it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED, Document, Figure, Paragraph
from ._mpl_style import BLUE, COLUMN, GREEN, ORANGE, VERMILLION

Floats = npt.NDArray[np.float64]
POWER = re.compile(r"(?<=\w)\^(?:\(([^()<>]+)\)|([-−+]?\w+(?:\.\d+)?))")
POINTS_PER_COLUMN = 72 * COLUMN
COLOUR_CLASSES = {FLAG: "bad", OK: "good", UNDECIDED: "open", NOT_APPLICABLE: "absent"}


@cache
def template(path: Path) -> Any:
    """A template of HTML, which escapes its values."""
    from jinja2 import Environment  # slow to import

    environment = Environment(autoescape=True)
    environment.filters["powers"] = powers
    return environment.from_string(path.read_text(encoding="utf-8"))


def powers(text: str) -> Any:
    """Text as markup, with raised exponents: "n^(−1/2)" and "n^a" as formulas."""
    from markupsafe import Markup  # jinja2 has it

    # the text is escaped before, so it is no markup
    raised = POWER.sub(r"<sup>\1\2</sup>", html.escape(text))
    return Markup(raised)


def to_page(document: Document) -> str:
    """The whole file, with its figures in it; it follows the colour scheme of the
    browser.
    """
    return _rendered(document, page=True, draw_figure=_svg)


def to_cell(document: Document) -> str:
    """The output of a notebook cell: no figures, and the colours of the notebook's
    theme where that is known.
    """
    return _rendered(document, page=False, draw_figure=None)


def _rendered(
    document: Document, page: bool, draw_figure: Callable[[Figure], str] | None
) -> str:
    """The template of reports, filled in: as a whole page, or for a notebook."""
    # sections that show as "text" are for terminals only
    sections = [section for section in document.sections if section.show != "text"]
    report = template(Path(__file__).with_name("_report.html"))
    return str(
        report.render(
            document=document._replace(sections=sections),
            classes=COLOUR_CLASSES,
            page=page,
            figures=draw_figure,
        )
    )


def _svg(figure: Figure) -> str:
    """The picture; letters stay readable on a phone, where wide figures scroll, and a
    figure of two columns is marked as wide.
    """
    text = figure.svg().decode()
    svg = text[text.index("<svg") :]
    width = re.search(r'width="([\d.]+)pt"', svg)
    if width is None:
        return svg
    points = float(width[1])
    style = f'style="min-width: {1.2 * points:.0f}px; max-width: {2.2 * points:.0f}px"'
    if points > 1.5 * POINTS_PER_COLUMN:
        style += ' class="wide"'
    return f"{svg[: width.start()]}{style} {svg[width.start() :]}"


def provenance(
    manifest: Mapping[str, Any], text: str, files: Mapping[str, str]
) -> Paragraph:
    """The text, then versions, the command and the other files of the folder."""
    versions = [f"{name} {version}" for name, version in manifest["versions"].items()]
    return Paragraph(
        f"{text} {', '.join(versions)}.",
        files=tuple(files.items()),
        code=manifest["command"],
    )


# What notebooks show

TEXT_CELL_STYLE = (
    "text-align: left; vertical-align: top; padding: 0.15em 0.8em 0.15em 0"
)
CELL = f"{TEXT_CELL_STYLE}; white-space: nowrap"
# of a small picture, and of the numbers under it, in pixels
WIDE, HIGH, BELOW = 300.0, 110.0, 16.0
GOOD, OPEN, BAD = GREEN, ORANGE, VERMILLION  # of verdicts


def table(
    rows: Sequence[Sequence[str]], head: Sequence[str] = (), *, code: bool = False
) -> str:
    """Rows of text without line breaks; `code` is in a monospaced font."""
    style = CELL + ("; font-family: monospace" if code else "")

    def line(cells: Sequence[str], tag: str) -> str:
        """A row of the table, with cells that are <td> or <th>."""
        markup = ""
        for cell in cells:
            markup += f'<{tag} style="{style}">{html.escape(cell)}</{tag}>'
        return f"<tr>{markup}</tr>"

    content = ""
    if head:
        content = f"<thead>{line(head, 'th')}</thead>"
    body = "".join(line(row, "td") for row in rows)
    content += f"<tbody>{body}</tbody>"
    return scrolled(f'<table style="margin: 0.3em 0">{content}</table>')


def scrolled(markup: str) -> str:
    """Markup that may be wider than the page, with a scroll bar."""
    return f'<div style="overflow-x: auto; overflow-y: hidden">{markup}</div>'


def title(name: str, *remarks: str) -> str:
    """The first line: a name and remarks."""
    markup = f"<strong>{html.escape(name)}</strong>"
    for remark in remarks:
        markup += f" · {html.escape(remark)}"
    return f"<div>{markup}</div>"


def verdict(word: str, colour: str) -> str:
    """A verdict after a coloured mark; the words differ too, for readers who cannot see
    colours.
    """
    return (
        f'<span style="border-left: 0.5em solid {colour}; padding-left:'
        f' 0.4em">{html.escape(word)}</span>'
    )


def note(text: str) -> str:
    """A remark below."""
    return f'<div style="opacity: 0.75">{html.escape(text)}</div>'


def publish_with_formula(markup: str, formula: str, plain: str) -> None:
    """Show HTML in a notebook cell, then the formula separately: VS Code typesets no
    formula within HTML.
    """
    from IPython.display import publish_display_data  # the caller, IPython, has it

    publish_display_data({"text/html": markup, "text/plain": plain})
    publish_display_data({"text/latex": formula})


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """At most `count` + 1 round numbers between two ends, in steps of 1, 2 or 5 times a
    power of ten: 0, 0.2, 0.4, 0.6, 0.8 and 1 between 0 and 1.
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / count))
    step = power
    for factor in (1, 2, 5, 10):
        step = power * factor
        if span / step <= count:
            break
    # 1e-9: an end that is a tick up to rounding counts
    lowest = math.ceil(low / step - 1e-9)
    highest = math.floor(high / step + 1e-9)
    return [k * step for k in range(lowest, highest + 1)]


def density(
    x: Floats,
    y: Floats,
    error: Floats,
    atoms: Sequence[tuple[float, float]],
    words: str,
) -> str:
    """A small picture, as SVG, of a density y at the points x, with its error as a band
    and a line for each atom (position, height relative to the picture's). `words` is
    its text for a screen reader.

    It is written here and not drawn by matplotlib, as figures of reports are, because a
    notebook shows it with every law: axes and letters take the colour of the page
    (`currentColor`), dark or light, and showing a law does not wait for matplotlib.
    """
    top = float(np.max(y + error)) or 1.0
    floor = HIGH - BELOW

    def pixels_across(position: Any) -> Any:
        """The distance of positions x from the left, in pixels."""
        return (position - x[0]) / (x[-1] - x[0]) * WIDE

    def points(density: Floats) -> list[str]:
        """The points of a curve as pairs "across,down" in pixels."""
        across = pixels_across(x).tolist()
        down = np.clip(floor * (1 - 0.95 * density / top), 0, floor).tolist()
        return [f"{a:.1f},{d:.1f}" for a, d in zip(across, down, strict=True)]

    shapes = []
    if np.any(error > 0):
        upper_edge = points(y + error)
        lower_edge = points(y - error)
        band = "L".join([*upper_edge, *reversed(lower_edge)])
        shapes.append(f'<path d="M{band}Z" fill="{BLUE}" fill-opacity="0.25"/>')
    shapes.append(_svg_path(f"M{'L'.join(points(y))}", BLUE, 1.6))
    for position, height in atoms:
        across = f"{pixels_across(position):.1f}"
        line = f"M{across},{floor}v{-0.95 * floor * height:.1f}"
        shapes.append(_svg_path(line, BLUE, 3))
    shapes.append(_svg_path(f"M0,{floor}H{WIDE}", "currentColor", 0.8))
    for tick in ticks(float(x[0]), float(x[-1])):
        across = f"{pixels_across(tick):.1f}"
        label = f"{tick:.4g}".replace("-", "−")
        shapes.append(_svg_path(f"M{across},{floor}v3", "currentColor", 0.8))
        shapes.append(f'<text x="{across}" y="{HIGH - 2}">{label}</text>')
    return _svg_picture(shapes, words)


def _svg_path(line: str, stroke: str, width: float) -> str:
    """An SVG path that is a line."""
    return f'<path d="{line}" fill="none" stroke="{stroke}" stroke-width="{width}"/>'


def _svg_picture(shapes: Sequence[str], words: str) -> str:
    """A small SVG picture of these shapes, with a text for a screen reader."""
    look = (
        'font-size="10" text-anchor="middle" fill="currentColor" style="max-width:'
        ' 100%; overflow: visible"'
    )
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" {look}'
        f' role="img" aria-label="{html.escape(words)}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )
