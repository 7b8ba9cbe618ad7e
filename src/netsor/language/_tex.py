"""The pieces that formulas are written with: indices, numbers, spaces, and text made safe for LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._array import Value
from ._given import Shape
from ._names import LETTERS
from ._operation import MatMul, Take
from ._weight import Weight
from ._width import Width

Indices = Sequence[str]

# Of MathJax and KaTeX too: what is within $$ uses nothing but the commands of amsmath that both have.
DOCUMENT = r"""\documentclass{article}
\usepackage{amsmath,amssymb}
\allowdisplaybreaks
\sloppy
\begin{document}
%s
\end{document}
"""


def gathered(lines: list[str]) -> str:
    """Formulas below each other."""
    return "\\begin{gather*}\n" + " \\\\\n".join(lines) + "\n\\end{gather*}"


def letters(shape: Shape) -> list[str]:
    """An index for each axis; 1 for an axis of one entry."""
    names = iter(LETTERS)
    return ["1" if size == 1 else next(names) for size in shape]


def primed(indices: Indices) -> list[str]:
    """The indices of another entry of the same array."""
    return [i if i == "1" else f"{i}'" for i in indices]


def below(indices: Indices, shape: Shape) -> str:
    """Indices as they are written; axes of one entry have none."""
    if len(indices) == len(shape):  # or they are one formula for all axes
        indices = [i for i, size in zip(indices, shape, strict=True) if size != 1]
    return f"_{{{','.join(indices)}}}" if indices else ""


def broadcast_to(shape: Shape, indices: Indices) -> list[str]:
    """The indices of an argument of this shape that is broadcast to the axes of `indices`."""
    axes = indices[len(indices) - len(shape) :]
    return ["1" if size == 1 else index for size, index in zip(shape, axes, strict=True)]


def escape(text: str) -> str:
    """Text as LaTeX sets it, in ASCII."""
    for special, written in (("−", "-"), ("·", " "), ("\\", r"\textbackslash ")):
        text = text.replace(special, written)
    text = re.sub(r"([_&%$#{}])", r"\\\1", text)
    text = re.sub(r"[\^~]", lambda match: rf"\{match[0]}{{}}", text)
    return re.sub(r"[<>]", lambda match: f"${match[0]}$", text).encode("ascii", "replace").decode()


def decimal(number: float) -> str:
    """A number, with its exponent as a power of ten."""
    mantissa, _, exponent = f"{number:g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def space(width: Width) -> str:
    """The space R^n."""
    return rf"\mathbb{{R}}^{{{dimension(width)}}}"


def dimension(width: Width) -> str:
    """A width in a formula."""
    if width.name is None:
        return str(width.factor)
    name = width.name if len(width.name) == 1 else rf"\mathit{{{escape(width.name)}}}"
    return name if width.factor == 1 else f"{width.factor}{name}"


def kappa(base: float, fraction: float, stretch: tuple[float, ...] | None) -> str:
    """The mean of cos(r θ) over the frequencies θ of a rotation; coordinates that are not turned count 1."""
    theta = rf"{decimal(base)}^{{-u}}"
    if stretch is not None:
        theta = rf"\sigma_{{{', '.join(map(decimal, stretch))}}}({theta})"
    turned = rf"\int_0^1 \cos(r \, {theta}) \, du"
    if fraction == 1:
        return rf"\kappa(r) = {turned}"
    return rf"\kappa(r) = {decimal(fraction)} {turned} + {decimal(1 - fraction)}"


def transposes(value: Value) -> bool:
    """Whether a value is made by a transposed matrix."""
    return isinstance(value.op, MatMul) and value.op.weight.transposed


def variance(weight: Weight) -> str:
    """σ² in/fan, by which E[Z^x Z^x'] becomes a covariance of W x; nothing for 1."""
    number = "" if weight.std == 1 else rf"{decimal(weight.std**2)} \,"
    many, few = dimension(weight.in_width), dimension(weight.fan)
    return number + ("" if many == few else rf"\frac{{{many}}}{{{few}}} \,")


def different_matrices(x: Value, y: Value) -> bool:
    """Whether both are MatMul outputs (or indexed ones), of independent matrices: then E[Z^x Z^y] = 0."""
    while isinstance(x.op, Take):
        x = x.op.x
    while isinstance(y.op, Take):
        y = y.op.x
    return isinstance(x.op, MatMul) and isinstance(y.op, MatMul) and x.op.weight.source is not y.op.weight.source
