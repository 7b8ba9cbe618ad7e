"""A hook of mkdocs: TeX becomes MathML when the docs are built, so that equations need
no script and no network.
"""

import html
import re

from netsor.report._mathml import mathml

MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def _mathml(match: re.Match[str]) -> str:
    return mathml(html.unescape(match[2]), block=match[1] == "div")


def on_page_content(content: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return MATH.sub(_mathml, content)
