"""TeX formulas as MathML, which browsers typeset without a script or a network.

latex2mathml converts them. The rest of this file is typography: spaces as TeX sets
them, and what fonts without tables for mathematics, which most machines have, show too
small.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# Browsers know the letters ℝ and 𝒩, not the variants of a font
VARIANT = re.compile(r'<mi mathvariant="(double-struck|script)">([A-Z])</mi>')
FIRST_LETTER = {"double-struck": 0x1D538, "script": 0x1D49C}
OTHER_LETTERS = {  # those that Unicode had before it got the alphabets
    "double-struck": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True)),
    "script": dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True)),
}
# x′: the sign of the prime is raised already
PRIME = re.compile(r"<msup>(<m[ino]>[^<]*</m[ino]>)<mi>(&#x0203[23];)</mi></msup>")
# x′_i
PRIMES = re.compile(
    r"<msubsup>(<mi>[^<]*</mi>)((?:(?!</?msubsup>).)*?)<mi>(&#x0203[23];)</mi></msubsup>"
)
SUM = re.compile(r"<mo>(&#x02211;|&#x0222B;|&#x0220F;)</mo>")
# Spaces as TeX sets them: none around letters and a slash, none after a sign, thin ones
# around a name.
NAME = "<mi>[A-Za-z]{2,}</mi>"
THIN = '<mspace width="0.1667em"/>'
SPACES = {
    r"<mo>(&#x0221E;|&#x02202;|[A-Za-z]{2,})</mo>": r"<mi>\1</mi>",
    r"<mi>;</mi>": "<mo>;</mo>",
    r"<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    r"<mo>(&#x0002F;|&#x0007C;)</mo>": r'<mo lspace="0" rspace="0">\1</mo>',
    r"(<mo[^>]*>(?:&#x0003D;|&#x00028;|&#x0002C;)</mo>)<mo>&#x02212;</mo>": (
        r'\1<mo form="prefix">&#x02212;</mo>'
    ),
    rf"({NAME})(?=<m(?:i|n|sub|sup|subsup|frac|sqrt)>)": rf"\1{THIN}",
    rf"(</m(?:i|n|sub|sup|subsup|frac|sqrt)>)(?={NAME})": rf"\1{THIN}",
}


def mathml(tex: str, block: bool = False) -> str:
    """A formula as an element `math`, with its TeX as the text for a screen reader."""
    element = convert(tex, display="block" if block else "inline")
    element = PRIME.sub(r"<mrow>\1<mi>\2</mi></mrow>", element)
    element = PRIMES.sub(r"<msub><mrow>\1<mi>\3</mi></mrow>\2</msub>", element)
    element = SUM.sub(r'<mo class="sum">\1</mo>', element)
    for wrong, right in SPACES.items():
        element = re.sub(wrong, right, element)
    element = VARIANT.sub(_letter, element)
    return element.replace("<math ", f'<math aria-label="{html.escape(tex)}" ', 1)


def _letter(match: re.Match[str]) -> str:
    """The character that shows a letter in a variant, such as bold."""
    variant, letter = match.groups()
    regular = chr(FIRST_LETTER[variant] + ord(letter) - ord("A"))
    return f"<mi>{OTHER_LETTERS[variant].get(letter, regular)}</mi>"
