"""A hook of mkdocs: TeX becomes MathML when the docs are built, so that equations need no script and no network."""

import html
import re

from latex2mathml.converter import convert

MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
DOUBLE = re.compile(r'<mi mathvariant="double-struck">([A-Z])</mi>')
LETTERS = {"C": "ℂ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"}


def _mathml(match: re.Match[str]) -> str:
    made = convert(html.unescape(match[2]), display="block" if match[1] == "div" else "inline")
    # browsers know the letters, not the variant
    return DOUBLE.sub(lambda m: f"<mi>{LETTERS.get(m[1], chr(0x1D538 + ord(m[1]) - ord('A')))}</mi>", made)


def on_page_content(content: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return MATH.sub(_mathml, content)
