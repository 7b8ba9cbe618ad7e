"""Verdicts as rows of a table in a notebook, each with what it rests on and why it matters."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ..._html import ABSENT, BAD, CELL, GOOD, LONG, OPEN, scrolled, verdict

COLOURS = {"found": BAD, "not found": GOOD, "not measured": ABSENT}


def coloured(word: str) -> str:
    """A verdict, as HTML."""
    return verdict(word, COLOURS.get(word, OPEN))


def explained(rows: Iterable[Sequence[str]]) -> str:
    """Rows of a name, a verdict and what it rests on, the last two as HTML, and an explanation below."""
    made = "".join(
        f'<tr><td style="{CELL}">{html.escape(name)}</td><td style="{CELL}">{word}</td>'
        f'<td style="{LONG}">{rests}<div style="opacity: 0.75">{html.escape(why)}</div></td></tr>'
        for name, word, rests, why in rows
    )
    return scrolled(f'<table style="margin: 0.3em 0"><tbody>{made}</tbody></table>')
