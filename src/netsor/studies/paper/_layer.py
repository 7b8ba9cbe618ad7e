"""The attention layer of the paper's experiments (its Example 3.1)."""

from __future__ import annotations

import html
import re
from functools import cache

from ... import language as ns
from ..._decorator import program
from ..._mpl_style import rendered, styled
from ..._validate import SCALE, one_of, real, scale, whole
from ...nn import attention

ACTIVATIONS = {
    "clip": ns.clip,
    "relu": ns.relu,
    "erf": ns.erf,
    "tanh": ns.tanh,
    "gelu": ns.gelu,
    "identity": ns.identity,
}


@program
def layer(
    tokens: int = 4,
    heads: int = 2,
    activation: str = "clip",
    clip: float = 100.0,
    low_rank: bool = False,
    scaling: str = "sqrt",
    sigma_q: float = 1.0,
    sigma_k: float = 1.0,
    sigma_v: float = 1.0,
    sigma_o: float = 1.0,
    sigma_w: float = 1.0,
    token: int = 0,
    mask: str | None = None,
) -> ns.Vector:
    """One token of an attention layer over tokens x^i = φ(W^i h), h ~ N(0, I): width n, head dimension d or n.

    Parameters
    ----------
    tokens : int
        How many.
    heads : int
        How many.
    activation : str
        φ: clip (at `clip`), relu, erf, tanh, gelu or identity.
    clip : float
        Where clip cuts off.
    low_rank : bool
        Whether the head dimension is a width of its own, `law(n=…, d=…)`.
    scaling : str
        "sqrt" or "linear": scores over √d or d.
    sigma_q, sigma_k, sigma_v, sigma_o, sigma_w : float
        Standard deviations of the matrices.
    token : int
        Whose output it is, the first unless given.
    mask : str, optional
        As in `ns.softmax`.

    Returns
    -------
    Program
        With one output vector.

    Examples
    --------
    >>> net = ns.paper.layer(heads=2)
    >>> print(f"{net.law(n=ns.inf).pdf(0.0):.6f}")
    0.646080
    """
    one_of(activation, "activation", "layer", tuple(ACTIVATIONS))
    one_of(low_rank, "low_rank", "layer", (True, False))
    tokens = whole(tokens, "tokens", "layer")
    token = whole(token, "token", "layer", least=-tokens)
    if token >= tokens:
        raise ns.TraceError("layer", f"token={token} must be below tokens={tokens}: the first is 0")
    bound = real(clip, "clip", "layer", least=1 / SCALE, most=SCALE)
    sigma = scale(sigma_w, "sigma_w", "layer")
    n = ns.Width("n")
    g = ns.weight(n, n, batch=tokens, std=sigma) @ ns.gaussian(n)  # independent W^i, one for each token
    x = ns.clip(g, bound) if activation == "clip" else ACTIVATIONS[activation](g)  # type: ignore[operator]
    y = attention(
        x,
        heads,
        head_dim=ns.Width("d") if low_rank else None,
        mask=mask,
        scaling=scaling,
        sigma_q=sigma_q,
        sigma_k=sigma_k,
        sigma_v=sigma_v,
        sigma_o=sigma_o,
    )
    return y[token]


SECTION = """\
<h2>The limit law</h2>
<p>Of one token of the layer of figure 1, as the program that was drawn states it ({verdict}); the other figures change
the numbers of heads and tokens, the activation or the head dimension.</p>
{formulas}
<details><summary>LaTeX, network and law, for a paper</summary>
<pre>{source}</pre></details>"""
FONT_POINTS = 14  # points
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

        text, font = f"${formula}$", FontProperties(size=FONT_POINTS, math_fontfamily="cm")
        width, height, depth, *_ = MathTextParser("path").parse(text, dpi=72, prop=font)
        figure = Figure(figsize=(width / 72, height / 72))
        figure.text(0, depth / height, text, fontproperties=font)
        (svg,) = rendered(figure, "svg")
    drawn = svg.decode()
    return f'<div role="img" aria-label="{html.escape(formula)}">{drawn[drawn.index("<svg") :]}</div>'
