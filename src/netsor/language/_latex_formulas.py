"""The parts of LaTeX formulas: indices, numbers, spaces, escaped text, and one formula for each operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .._validate import Shape
from . import _operation as ops
from ._array import Operation, Value
from ._graph import LETTERS, take_as_index
from ._operation import MatMul, Take
from ._parameters import Weight
from ._rotary import Rotate
from ._scalar import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._score import Pool
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


OPERATORS = {ADD: "+", SUBTRACT: "-", MULTIPLY: r"\cdot", MATMUL: ""}

Reference = Callable[[Value, Indices], str]  # how a formula writes its inputs: a value, or the limit of one


def formula(value: Value, i: Indices, ref: Reference) -> str:
    """The entry i of a value, by the rule of its operation, or as a function of its inputs."""
    op = value.op
    if type(op) in FORMULAS:
        return FORMULAS[type(op)](op, i, ref)
    inputs = []
    for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
        sizes = zip(x.shape, axes, strict=True)
        inputs.append(ref(x, [r"\cdot" if k is None else "1" if n == 1 else i[k] for n, k in sizes]))
    whole = [i[k] for k in op.whole(value.ndim)]
    entry = f"_{{{','.join(whole)}}}" if whole else ""
    return rf"\operatorname{{{type(op).__name__.lower()}}}({', '.join(inputs)}){entry}"


def factors(op: ops.Dot, i: Indices) -> tuple[list[str], list[str]]:
    """The indices of the two factors of a dot."""
    return [*broadcast_to(op.x.shape[:-1], i[:-2]), i[-2]], [*broadcast_to(op.y.shape[:-1], i[:-2]), i[-1]]


# One rule an operation, `rule(op, i, ref)`


def _nonlin(op: ops.Nonlin, i: Indices, ref: Reference) -> str:
    arguments = [ref(v, broadcast_to(v.shape, i)) for v in op.vectors]
    if op.f in OPERATORS:
        return f" {OPERATORS[op.f]} ".join(arguments)
    arguments += [decimal(p) for p in op.f.parameters]
    given = "; " + ", ".join(ref(p, broadcast_to(p.shape, i)) for p in op.scalars) if op.scalars else ""
    return rf"\operatorname{{{escape(op.f.name)}}}({', '.join(arguments)}{given})"


def _add(op: ops.Add, i: Indices, ref: Reference) -> str:
    return " + ".join(ref(x, broadcast_to(x.shape, i)) for x in (op.x, op.y))


def _scale(op: ops.Scale, i: Indices, ref: Reference) -> str:
    return r" \, ".join(ref(x, broadcast_to(x.shape, i)) for x in (op.c, op.x))


def _mix(op: ops.Mix, i: Indices, ref: Reference) -> str:
    a, x, j = op.a, op.x, LETTERS[len(i)]
    coefficient = ref(a, [*broadcast_to(a.shape[:-2], i[:-1]), "1" if a.shape[-2] == 1 else i[-1], j])
    return rf"\sum_{{{j}}} {coefficient} \, {ref(x, [*broadcast_to(x.shape[:-1], i[:-1]), j])}"


def _concat(op: ops.Concat, i: Indices, ref: Reference) -> str:
    first, last = ([*i[: op.axis], k, *i[op.axis :]] for k in ("1", str(op.x.shape[op.axis])))
    return rf"({ref(op.x, first)}; \dots; {ref(op.x, last)})"


def _split(op: ops.Split, i: Indices, ref: Reference) -> str:
    return rf"({ref(op.x, [*i[: op.axis], *i[op.axis + 1 :]])})_{{\text{{part }} {i[op.axis]}}}"


def _dot(op: ops.Dot, i: Indices, ref: Reference) -> str:
    left, right = factors(op, i)
    scale = rf"{dimension(op.x.width)}^{{{'-1/2' if op.power == 0.5 else '-1'}}}"
    return rf"{scale} \langle {ref(op.x, left)}, {ref(op.y, right)} \rangle"


def _apply(op: ops.Apply, i: Indices, ref: Reference) -> str:
    cut, whole = op.leading, [r"\cdot"] * op.axes
    arguments = [ref(p, broadcast_to(p.shape[: p.ndim - op.axes], i[:cut]) + whole) for p in op.scalars]
    if op.f in OPERATORS and op.axes == 0:
        return f" {OPERATORS[op.f]} ".join(arguments)
    arguments += [decimal(p) for p in op.f.parameters]
    entry = f"_{{{','.join(i[cut:])}}}" if i[cut:] else ""
    return rf"\operatorname{{{escape(op.f.name)}}}({', '.join(arguments)}){entry}"


def _rotate(op: Rotate, i: Indices, ref: Reference) -> str:
    turned = "" if op.fraction == 1 else rf"^{{({decimal(op.fraction)})}}"
    bent = "" if op.stretch is None else rf"{', '.join(map(decimal, op.stretch))}, "
    return rf"R{turned}_{{{decimal(op.base)}, {bent}t({i[-1]})}} \, {ref(op.x, i)}"


def _take(op: ops.Take, i: Indices, ref: Reference) -> str:
    # π: a selection that no formula in the indices gives
    return ref(op.x, taken_indices(op, i) or ([rf"\pi({','.join(i)})"] if op.x.shape else []))


def taken_indices(op: ops.Take, i: Indices) -> list[str] | None:
    """The indices of x that the entry i of a Take reads; None if no formula gives them."""
    found = take_as_index(op.flat, op.x.shape)
    if found is None:
        return None
    # letters are by the axes of the result, in the order of LETTERS
    return [str(int(k) + 1) if k.isdigit() else i[LETTERS.index(k[0])] + k[1:] for k in found]


def _join(op: ops.Join, i: Indices, ref: Reference) -> str:
    inside = [r"\cdot", *i[1:]]
    return rf"({', '.join(ref(part, inside) for part in op.parts)})_{{{i[0]}}}"


def _pool(op: Pool, i: Indices, ref: Reference) -> str:
    every = [r"\cdot"] * op.x.ndim
    return rf"\operatorname{{{escape(op.f.name)}}}({ref(op.x, every)})_{{{i[0]}}}"


FORMULAS: dict[type[Operation], Callable[[Any, Indices, Reference], str]] = {
    ops.Nonlin: _nonlin,
    ops.Add: _add,
    ops.Scale: _scale,
    ops.Mix: _mix,
    ops.Concat: _concat,
    ops.Split: _split,
    ops.Dot: _dot,
    ops.Apply: _apply,
    ops.Take: _take,
    ops.Join: _join,
    Rotate: _rotate,
    Pool: _pool,
}
