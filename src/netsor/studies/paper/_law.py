"""The limit law of the paper's layer, as the report shows it: formulas as pictures, and the LaTeX that they are of."""

from __future__ import annotations

import html
import re
from functools import cache

from ..._style import rendered, styled
from ._layer import layer

SECTION = """\
<h2>The limit law</h2>
<p>Of one token of the layer of figure 1, as the program that was drawn states it ({verdict}); the other figures change
the numbers of heads and tokens, the activation or the head dimension.</p>
{formulas}
<details><summary>LaTeX, network and law, for a paper</summary>
<pre>{source}</pre></details>"""
SIZE = 14  # points
GATHERED = re.compile(r"\\begin\{gather\*\}\n(.*?)\n\\end\{gather\*\}", re.DOTALL)
BOXED = re.compile(r"\\boxed\{\\begin\{gathered\} (.*) \\end\{gathered\}\}")


@cache
def law() -> str:
    """The section of the report, made once."""
    net = layer()
    source = net.latex(document=False, style="paper")
    *_, lines = GATHERED.findall(source)
    formulas = "\n".join(map(_formula, lines.split(" \\\\\n")))
    return SECTION.format(verdict=net.check().verdict, formulas=formulas, source=html.escape(source))


def _formula(line: str) -> str:
    """A line of the law, or the lines of its box; a statement and its covariance stand below each other."""
    box = BOXED.fullmatch(line)
    parts = re.split(r", \\quad | \\\\ ", box[1] if box else line)
    return f'<div class="formula{" boxed" * bool(box)}">{"".join(map(_picture, parts))}</div>'


def _picture(formula: str) -> str:
    with styled():
        from matplotlib.figure import Figure  # slow to import
        from matplotlib.font_manager import FontProperties
        from matplotlib.mathtext import MathTextParser

        text, font = f"${formula}$", FontProperties(size=SIZE, math_fontfamily="cm")
        width, height, depth, *_ = MathTextParser("path").parse(text, dpi=72, prop=font)
        figure = Figure(figsize=(width / 72, height / 72))
        figure.text(0, depth / height, text, fontproperties=font)
        (svg,) = rendered(figure, "svg")
    drawn = svg.decode()
    return f'<div role="img" aria-label="{html.escape(formula)}">{drawn[drawn.index("<svg") :]}</div>'
