"""HTML: a document as a page or as the output of a notebook cell; and tables and small pictures for notebooks.

What notebooks show needs no style sheet, script or other file, and takes the colours of the page around it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED, Document, Figure, Paragraph
from ._mpl_style import BLUE, GREEN, GREY, ORANGE, VERMILLION

Array = npt.NDArray[np.float64]

COLOUR_CLASSES = {FLAG: "bad", OK: "good", UNDECIDED: "open", NOT_APPLICABLE: "absent"}

STYLE = """
.netsor { --text: #222; --soft: #666; --line: #ddd; --code: #f3f3f3; --good: #00694d; --bad: #b33; --open: #8a5a00;
  --note: #eef5fb; --warn: #fff3d6; color: var(--text); }
.netsor table { border-collapse: collapse; font-size: 0.9rem; }
.netsor th, .netsor td { text-align: left; vertical-align: top; padding: 0.4rem 0.7rem 0.4rem 0;
  border-bottom: 1px solid var(--line); }
.netsor small, .netsor .note, .netsor figcaption, .netsor .absent { color: var(--soft); }
.netsor .good { color: var(--good); font-weight: 600; }
.netsor .bad { color: var(--bad); font-weight: 600; }
.netsor .open { color: var(--open); font-weight: 600; }
.netsor .warning { background: var(--warn); padding: 0.6rem 0.9rem; border-left: 4px solid #e69f00; }
.netsor .verdict { background: var(--note); padding: 0.6rem 0.9rem; border-left: 4px solid #0072b2; font-weight: 600; }
.netsor .wide { overflow-x: auto; }
.netsor .wide td + td, .netsor .wide th { white-space: nowrap; }
.netsor .wide td:first-child { min-width: 8rem; }
.netsor .items { display: grid; grid-template-columns: max-content minmax(0, max-content) 1fr; gap: 0.35rem 1rem; }
.netsor .items > div { min-width: 0; overflow-wrap: anywhere; }
.netsor .items p { margin: 0; }
.netsor code { background: var(--code); padding: 0 0.2rem; overflow-wrap: anywhere; }
@media (max-width: 45rem) {
.netsor .stack thead { display: none; }
.netsor .stack tr { display: block; border-bottom: 1px solid var(--line); padding: 0.5rem 0; }
.netsor .stack td { display: block; border: 0; padding: 0.2rem 0; }
.netsor .stack td + td::before { content: attr(data-head) ": "; font-weight: 600; }
.netsor .items { grid-template-columns: max-content 1fr; }
.netsor .items > :nth-child(3n) { grid-column: 1 / -1; }
}
"""
DARK = """
.netsor { --text: #ddd; --soft: #a0a0a0; --line: #444; --code: #2a2a2a; --good: #4fc79c; --bad: #ff7b72;
  --open: #e3b341; --note: #14283a; --warn: #3a2e10; }
"""
PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.netsor table { width: 100%; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); gap: 1.5rem; }
.figures { margin: 1.5rem 0; }
.figures:has(> :only-child) { display: block; }
figure { margin: 0; overflow-x: auto; }
figure svg { width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption { font-size: 0.85rem; }
a { overflow-wrap: anywhere; }
.formula { overflow-x: auto; margin: 0.4rem 0; }
.formula p { margin: 0.3rem 0; }
.formula math { font-size: 1.15rem; }
.boxed { border: 1px solid currentColor; padding: 0.3rem 0.7rem; width: fit-content; max-width: calc(100% - 1.5rem); }
pre { overflow-x: auto; font-size: 0.8rem; background: var(--code); padding: 0.6rem; }
"""
TEMPLATE = """
{%- macro cell(c) %}{% if c is string %}{{ c }}{% else -%}
{%- for text, link in c.links.items() %}{{ ", " if not loop.first }}<a href="{{ link }}">{{ text }}</a>{% endfor -%}
{%- if c.status %}<span class="{{ c.status }}">{{ c.text }}</span>{% else %}{{ c.text }}{% endif -%}
{%- if c.note %}<br/><small>{{ c.note }}</small>{% endif -%}
{%- endif %}{% endmacro -%}
{%- macro show(block) %}{% set kind = block.__class__.__name__ -%}
{%- if kind == "Paragraph" %}
<p{% if block.kind %} class="{{ block.kind }}"{% endif %}>{{ block.text }}
{%- for link in block.links %} <a href="{{ link }}">{{ link }}</a>{% endfor %}
{%- if block.code %} <code>{{ block.code }}</code>{% endif %}
{%- for name, what in block.files %}{{ "; " if not loop.first }} <code>{{ name }}</code>{{ ": " ~ what if what }}
{%- endfor %}</p>
{%- elif kind == "Items" %}
<div class="items">
{%- for item in block["items"] %}
<span class="{{ classes.get(item.status, 'open') }}">{{ item.status }}</span><strong>{{ item.name }}</strong>
<div data-item="{{ item.name }}" data-status="{{ item.status }}"><p>{{ item.text }}</p>
{%- for more in item.more %}<p class="note">{{ more }}</p>{% endfor %}</div>
{%- endfor %}
</div>
{%- elif kind == "Table" %}
<div class="{{ 'stack' if block.prose else 'wide' }}"><table>
<thead><tr>{% for h in block.head %}<th>{{ h }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in block.rows %}
<tr>{% for c in row %}<td data-head="{{ block.head[loop.index0] }}">{{ cell(c) }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- elif kind == "Figures" and figures %}
<div class="figures">
{%- for f in block.figures %}
<figure id="figure-{{ f.name }}">{{ figures(f) | safe }}<figcaption>{{ f.caption }}</figcaption></figure>
{%- endfor %}
</div>
{%- elif kind == "Raw" and figures %}
{{ block.html | safe }}
{%- endif %}{% endmacro -%}
{%- macro section(s) %}
{%- if s.folded %}<details{% if s.anchor %} id="{{ s.anchor }}"{% endif %}><summary>{{ s.title }}</summary>
{%- elif s.title %}<h2{% if s.anchor %} id="{{ s.anchor }}"{% endif %}>{{ s.title }}</h2>{% endif %}
{%- for block in s.blocks %}{{ show(block) }}{% endfor %}
{%- if s.folded %}</details>{% endif %}
{% endmacro -%}
{%- if page %}<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ document.title }}</title>
<style>{{ style | safe }}</style>
</head>
<body class="netsor">
<h1>{{ document.title }}</h1>
<p class="verdict">{{ document.verdict }}</p>
<p class="note">{{ document.subject }}</p>
{% for s in document.sections %}{{ section(s) }}{% endfor %}
</body>
</html>
{% else %}<div class="netsor"><style>{{ style | safe }}</style>
<p><strong>{{ document.verdict }}</strong><br/><small>{{ document.subject }}</small></p>
{% for s in document.sections if not s.folded %}{{ section(s) }}{% endfor %}</div>
{% endif %}"""


@cache
def _template() -> Any:
    from jinja2 import Environment  # only HTML needs it

    return Environment(autoescape=True).from_string(TEMPLATE)


def to_page(document: Document) -> str:
    """The whole file, with its figures in it; it follows the colour scheme of the browser."""
    dark = f"@media (prefers-color-scheme: dark) {{ {DARK} body {{ background: #121212; }} }}"
    return _rendered(document, page=True, style=STYLE + PAGE_STYLE + dark, figures=_svg)


def to_cell(document: Document) -> str:
    """The output of a notebook cell: no figures, and the colours of the notebook's theme where it says which it has."""
    # of Jupyter, VS Code, marimo, and pages of Material for MkDocs
    pages = (
        "body[data-jp-theme-light='false'], html[theme='dark'], body.vscode-dark, .dark, [data-md-color-scheme='slate']"
    )
    dark = DARK.replace(".netsor", f":is({pages}) .netsor")
    return _rendered(document, page=False, style=STYLE + dark, figures=None)


def _rendered(document: Document, **given: Any) -> str:
    sections = [section for section in document.sections if section.show != "text"]  # the others are for terminals
    return str(_template().render(document=document._replace(sections=sections), classes=COLOUR_CLASSES, **given))


def _svg(figure: Figure) -> str:
    """The picture; letters stay readable on a phone, where wide figures scroll."""
    text = figure.svg().decode()

    def sized(found: re.Match[str]) -> str:
        least, most = 1.2 * float(found[1]), 2.2 * float(found[1])
        return f'style="min-width: {least:.0f}px; max-width: {most:.0f}px" {found[0]}'

    return re.sub(r'width="([\d.]+)pt"', sized, text[text.index("<svg") :], count=1)


def provenance(manifest: Mapping[str, Any], first: str, files: Mapping[str, str]) -> Paragraph:
    """Versions, the command and the other files of the folder, after `first`."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    return Paragraph(f"{first} {versions}.", files=tuple(files.items()), code=manifest["command"])


# What notebooks show

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
