"""Documents as pages or as outputs of notebook cells, and tables and small pictures for
notebooks.

The output of a notebook cell needs no style sheet, script or other file, and takes the
colours of the page around it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED, Document, Figure, Paragraph
from ._mpl_style import BLUE, GREEN, ORANGE, VERMILLION

Floats = npt.NDArray[np.float64]
COLOUR_CLASSES = {FLAG: "bad", OK: "good", UNDECIDED: "open", NOT_APPLICABLE: "absent"}


@cache
def template(path: Path) -> Any:
    """A template of HTML, which escapes its values."""
    from jinja2 import Environment  # slow to import

    return Environment(autoescape=True).from_string(path.read_text(encoding="utf-8"))


def to_page(document: Document) -> str:
    """The whole file, with its figures in it; it follows the colour scheme of the
    browser.
    """
    return _rendered(document, page=True, figures=_svg)


def to_cell(document: Document) -> str:
    """The output of a notebook cell: no figures, and the colours of the notebook's
    theme where that is known.
    """
    return _rendered(document, page=False, figures=None)


def _rendered(document: Document, **given: Any) -> str:
    # the others are for terminals
    sections = [section for section in document.sections if section.show != "text"]
    report = template(Path(__file__).with_name("_report.html"))
    return str(
        report.render(
            document=document._replace(sections=sections),
            classes=COLOUR_CLASSES,
            **given,
        )
    )


def _svg(figure: Figure) -> str:
    """The picture; letters stay readable on a phone, where wide figures scroll."""
    text = figure.svg().decode()

    def sized(found: re.Match[str]) -> str:
        least, most = 1.2 * float(found[1]), 2.2 * float(found[1])
        return f'style="min-width: {least:.0f}px; max-width: {most:.0f}px" {found[0]}'

    return re.sub(r'width="([\d.]+)pt"', sized, text[text.index("<svg") :], count=1)


def provenance(
    manifest: Mapping[str, Any], first: str, files: Mapping[str, str]
) -> Paragraph:
    """The text `first`, then versions, the command and the other files of the
    folder.
    """
    versions = ", ".join(
        f"{name} {version}" for name, version in manifest["versions"].items()
    )
    return Paragraph(
        f"{first} {versions}.", files=tuple(files.items()), code=manifest["command"]
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
        return (
            "<tr>"
            + "".join(
                f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in cells
            )
            + "</tr>"
        )

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    body = "".join(line(row, "td") for row in rows)
    return scrolled(
        f'<table style="margin: 0.3em 0">{top}<tbody>{body}</tbody></table>'
    )


def scrolled(markup: str) -> str:
    """Markup that may be wider than the page, with a scroll bar."""
    return f'<div style="overflow-x: auto; overflow-y: hidden">{markup}</div>'


def title(name: str, *words: str) -> str:
    """The first line: a name and remarks."""
    return (
        f"<div><strong>{html.escape(name)}</strong>"
        + "".join(f" · {html.escape(w)}" for w in words)
        + "</div>"
    )


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
    """Round numbers between two ends, in steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    size = 10.0 ** math.floor(math.log10(span / count))
    step = next(size * k for k in (1, 2, 5, 10) if span / (size * k) <= count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def density(
    x: Floats,
    y: Floats,
    error: Floats,
    atoms: Sequence[tuple[float, float]],
    words: str,
) -> str:
    """A small picture of a density, with its error as a band and a line for each atom
    (place, relative height).

    It is written here and not drawn by matplotlib, as figures of reports are, because a
    notebook shows it with every law: axes and letters take the colour of the page
    (`currentColor`), dark or light, and showing a law does not wait for matplotlib.
    """
    top = float(np.max(y + error)) or 1.0
    floor = HIGH - BELOW

    def across(at: Any) -> Any:
        return (at - x[0]) / (x[-1] - x[0]) * WIDE

    def points(height: Floats) -> list[str]:
        places = zip(
            across(x).tolist(),
            np.clip(floor * (1 - 0.95 * height / top), 0, floor).tolist(),
            strict=True,
        )
        return [f"{a:.1f},{b:.1f}" for a, b in places]

    def path(line: str, stroke: str, width: float) -> str:
        return (
            f'<path d="{line}" fill="none" stroke="{stroke}" stroke-width="{width}"/>'
        )

    band = "L".join(points(y + error) + points(y - error)[::-1])
    parts = (
        [f'<path d="M{band}Z" fill="{BLUE}" fill-opacity="0.25"/>']
        if np.any(error > 0)
        else []
    )
    parts.append(path(f"M{'L'.join(points(y))}", BLUE, 1.6))
    parts += [
        path(f"M{across(at):.1f},{floor}v{-0.95 * floor * share:.1f}", BLUE, 3)
        for at, share in atoms
    ]
    parts.append(path(f"M0,{floor}H{WIDE}", "currentColor", 0.8))
    for value in ticks(float(x[0]), float(x[-1])):
        at, label = f"{across(value):.1f}", f"{value:.4g}".replace("-", "−")
        parts += [
            path(f"M{at},{floor}v3", "currentColor", 0.8),
            f'<text x="{at}" y="{HIGH - 2}">{label}</text>',
        ]
    look = (
        'font-size="10" text-anchor="middle" fill="currentColor" style="max-width:'
        ' 100%; overflow: visible"'
    )
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" {look}'
        f' role="img" aria-label="{html.escape(words)}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
