"""Formulas of a limit law as MathML, which browsers typeset without a script; of LaTeX,
what `Program.latex` writes.
"""

from __future__ import annotations

import html
import re

TOKEN = re.compile(
    r"\\(text|operatorname)\{([^}]*)\}|(\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\S)"
)
SYMBOLS = {
    r"\delta": "<mi>δ</mi>",
    r"\cdot": "<mo>⋅</mo>",
    r"\mid": '<mo lspace="0.28em" rspace="0.28em">|</mo>',
    # many fonts have no larger one
    r"\sum": '<mo movablelimits="false" style="font-size: 1.4em">∑</mo>',
    r"\,": '<mspace width="0.17em"/>',
    r"\quad": '<mspace width="1em"/>',
}
NO_BREAK = "\N{NO-BREAK SPACE}"  # spaces at the ends of a text are lost otherwise
DOUBLE_STRUCK = {"E": "𝔼", "R": "ℝ"}


def mathml(tex: str) -> str:
    """A formula as an element `math`, with its LaTeX as the text for a screen
    reader.
    """
    tokens = list(TOKEN.finditer(tex))[::-1]
    body = _row(tokens)
    return f'<math displaystyle="true" aria-label="{html.escape(tex)}">{body}</math>'


def _row(tokens: list[re.Match[str]]) -> str:
    """Everything up to the closing brace, or the end."""
    parts = []
    while tokens and tokens[-1][0] != "}":
        parts.append(_scripted(tokens))
    if tokens:
        tokens.pop()
    return f"<mrow>{''.join(parts)}</mrow>"


def _scripted(tokens: list[re.Match[str]]) -> str:
    """An atom with its prime, its subscript and its superscript."""
    is_sum = tokens[-1][0] == r"\sum"
    base = _atom(tokens)
    scripts: dict[str, str] = {}
    while tokens and tokens[-1][0] in ("_", "^", "'"):
        mark = tokens.pop()[0]
        if mark == "'":  # fonts without tables for mathematics raise it already
            base = f"<mrow>{base}<mo>′</mo></mrow>"
        else:
            scripts[mark] = _atom(tokens)
    match scripts:
        case {"_": low, "^": high}:
            return f"<msubsup>{base}{low}{high}</msubsup>"
        case {"_": low}:
            return (
                f"<munder>{base}{low}</munder>"
                if is_sum
                else f"<msub>{base}{low}</msub>"
            )
        case {"^": high}:
            return f"<msup>{base}{high}</msup>"
    return base


def _atom(tokens: list[re.Match[str]]) -> str:
    """A letter, a number, a sign, a group, or a command with its arguments."""
    command, words, token = tokens.pop().groups()
    if command == "text":
        return f"<mtext>{html.escape(words).replace(' ', NO_BREAK)}</mtext>"
    if command == "operatorname":
        return f"<mi>{html.escape(words)}</mi>"
    if token in SYMBOLS:
        return SYMBOLS[token]
    if token == "{":
        return _row(tokens)
    if token == r"\frac":
        return f"<mfrac>{_atom(tokens)}{_atom(tokens)}</mfrac>"
    if token == r"\mathring":
        return f'<mover accent="true">{_atom(tokens)}<mo>˚</mo></mover>'
    if token == r"\mathbb":
        return f"<mi>{DOUBLE_STRUCK[re.sub('<[^>]*>', '', _atom(tokens))]}</mi>"
    if token.startswith("\\"):
        raise ValueError(f"{token} is not a command of a limit law")
    kind = "mn" if token[0].isdigit() else "mi" if token.isalpha() else "mo"
    return f"<{kind}>{html.escape(token)}</{kind}>"
