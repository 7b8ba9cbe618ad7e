"""A hook of mkdocs: TeX becomes MathML when the docs are built, so that equations need
no script and no network.
"""

import html
import re

from latex2mathml.converter import convert

MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
DOUBLE = re.compile(r'<mi mathvariant="double-struck">([A-Z])</mi>')
LETTERS = {"C": "ℂ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"}
# Fonts without tables for mathematics, which most machines have, leave a prime too
# small and a sum no larger than text x′, whose sign is raised already
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
    r"<mo>(&#x0002F;|&#x0007C;)</mo>": r'<mo lspace="0" rspace="0">\1</mo>',
    r"(<mo[^>]*>(?:&#x0003D;|&#x00028;|&#x0002C;)</mo>)<mo>&#x02212;</mo>": (
        r'\1<mo form="prefix">&#x02212;</mo>'
    ),
    rf"({NAME})(?=<m(?:i|n|sub|sup|subsup|frac|sqrt)>)": rf"\1{THIN}",
    rf"(</m(?:i|n|sub|sup|subsup|frac|sqrt)>)(?={NAME})": rf"\1{THIN}",
}


def _mathml(match: re.Match[str]) -> str:
    made = convert(
        html.unescape(match[2]), display="block" if match[1] == "div" else "inline"
    )
    made = PRIME.sub(r"<mrow>\1<mi>\2</mi></mrow>", made)
    made = PRIMES.sub(r"<msub><mrow>\1<mi>\3</mi></mrow>\2</msub>", made)
    made = SUM.sub(r'<mo class="sum">\1</mo>', made)
    for wrong, right in SPACES.items():
        made = re.sub(wrong, right, made)
    # browsers know the letters, not the variant
    return DOUBLE.sub(
        lambda m: f"<mi>{LETTERS.get(m[1], chr(0x1D538 + ord(m[1]) - ord('A')))}</mi>",
        made,
    )


def on_page_content(content: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return MATH.sub(_mathml, content)
