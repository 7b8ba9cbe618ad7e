"""How operations are written: a program as text, and formulas in LaTeX.

Text has one line per operation, in the terms of the paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..._validate import Shape
from ..operations import _operation as ops
from ..operations._operation import (
    Acting,
    Constant,
    Floats,
    MatMul,
    Source,
    SteppedMatMul,
    Take,
    steps_of,
)
from ..values._array import INDEX_LETTERS, Ints, Value, taken_indices
from ..values._graph import names_of, narrow, topological_order, widths_of
from ..values._parameters import Weight
from ..values._probe import Probe
from ..values._vector import Vector
from ..values._width import Width

LETTERS = INDEX_LETTERS
MAX_MATRIX_ROWS = 4  # more rows of a covariance do not fit on a line of LaTeX
MAX_LISTED_NUMBERS = 4  # a longer list of means does not fit beside such a covariance
MAX_LISTED_POSITIONS = 24  # more positions do not fit on a line of LaTeX


class ProgramText(NamedTuple):
    """The text of a program, before it is laid out."""

    head: str  # its name and widths
    # for each operation and weight: its equation, its kind and its shape
    rows: list[tuple[str, str, str]]
    last: str  # the lines of the probes and of the outputs


def text(name: str, outputs: Sequence[Value], probes: Sequence[Probe]) -> str:
    """The program as it is evaluated: one line per operation, with kind and shape."""
    head, rows, last = parts(name, outputs, probes)
    equation_width = 0
    kind_width = 0
    for equation, kind, _ in rows:
        equation_width = max(equation_width, len(equation))
        kind_width = max(kind_width, len(kind))
    lines = [head]
    for equation, kind, shape in rows:
        line = f"  {equation:{equation_width}}   {kind:{kind_width}}   {shape}"
        lines.append(line.rstrip())
    return "\n".join([*lines, last])


def parts(name: str, outputs: Sequence[Value], probes: Sequence[Probe]) -> ProgramText:
    """The parts of the text of a program."""
    probed = [probe.value for probe in probes]
    results = narrow([*outputs, *probed])  # the outputs, then the probes
    values = topological_order(results)
    names = names_of(values)
    rows: list[tuple[str, str, str]] = []
    introduced: set[Source] = set()
    for value in values:
        if isinstance(value.op, Acting) and value.op.weight.source not in introduced:
            weight = value.op.weight.drawn
            introduced.add(weight.source)
            rows.append((names[weight.source], _weight_law(weight), ""))
        if not _is_single_number(value):
            equation = f"{names[value]} = {expression(value, names)}"
            kind = value.op.kind or type(value.op).__name__.lower()
            rows.append((equation, kind, _shape_text(value)))

    references = [_reference(value, names) for value in results]
    returned = references[: len(outputs)]
    probed_references = references[len(outputs) :]
    last_lines = []
    for probe, reference in zip(probes, probed_references, strict=True):
        last_lines.append(f"probe {probe.name}: {reference}")
    last_lines.append(f"return {', '.join(returned)}")
    return ProgramText(_head(name, values), rows, "\n".join(last_lines))


def _head(name: str, values: Sequence[Value]) -> str:
    """The first line of the text of a program: its name and its symbols of widths."""
    widths = [width for width in widths_of(values) if width.name is not None]
    symbols = dict.fromkeys(str(width.name) for width in widths)
    if not symbols:
        return f"program {name}"
    return f"program {name}, widths {', '.join(symbols)}"


def _weight_law(weight: Weight) -> str:
    """The shape of a matrix, or of several, and the law of its entries."""
    count = weight.members.size
    matrices = "matrix" if count == 1 else f"{count} matrices"
    size = f"{weight.out_width}×{weight.in_width}"
    law = f"N(0, {weight.std**2:g}/{weight.fan.grouped})"
    return f"{matrices} {size}, entries {law}"


def _shape_text(value: Value) -> str:
    """The shape of an array, and for vectors the space they lie in."""
    shape = "×".join(map(str, value.shape)) or "1"
    if isinstance(value, Vector):
        return f"{shape} in R^{value.width}"
    return shape


def _is_single_number(value: Value) -> bool:
    """Whether a value is a constant that is written where it is used."""
    return isinstance(value.op, Constant) and value.size == 1


def _reference(value: Value, names: dict[Value | Source, str]) -> str:
    """The name of a value; single numbers are written out."""
    if _is_single_number(value):
        number: float = value.op.numbers.item()  # type: ignore[attr-defined]
        return f"{number:g}"
    return names[value]


def expression(value: Value, names: dict[Value | Source, str]) -> str:
    """The right-hand side of the line of a value."""
    op = value.op
    inputs = [_reference(x, names) for x in op.inputs]
    if isinstance(op, MatMul | SteppedMatMul):
        return _product_text(op, inputs, names[op.weight.source])
    return op.text(value, inputs)


def _product_text(op: MatMul | SteppedMatMul, inputs: list[str], matrix: str) -> str:
    """A matrix times vectors; the inputs after the first are those of its steps."""
    weight = op.weight
    steps = steps_of(op)
    matrix += "'" * len(steps)
    if weight.transposed:
        matrix += ".T"
    if weight.fan != weight.drawn.fan:  # the adjoint, used by gradients
        matrix = f"({weight.drawn.fan}/{weight.fan.grouped})^(1/2) {matrix}"
    if weight.frozen:
        matrix = f"stop_gradient({matrix})"
    if op.each:
        product = f"{matrix}.each({inputs[0]})"
    else:
        product = f"{matrix} {inputs[0]}"
    if steps:
        product += f", moved along {', '.join(inputs[1:])}"
    return product


# LaTeX

Indices = Sequence[str]

# The preamble of a document. What stands between $$ is also shown by MathJax and KaTeX,
# and so uses only those commands of amsmath that both support.
DOCUMENT = r"""\documentclass{article}
\usepackage{amsmath,amssymb}
\allowdisplaybreaks
\sloppy
\begin{document}
%s
\end{document}
"""


def gathered(lines: list[str]) -> str:
    """Stack formulas vertically."""
    return "\\begin{gather*}\n" + " \\\\\n".join(lines) + "\n\\end{gather*}"


def letters(shape: Shape) -> list[str]:
    """An index letter per axis; 1 for an axis of length 1. (3, 1, 2): i, 1, j."""
    unused = iter(LETTERS)
    return ["1" if size == 1 else next(unused) for size in shape]


def primed(indices: Indices) -> list[str]:
    """The indices of another entry of the same array: i', 1, j' for i, 1, j."""
    return [i if i == "1" else f"{i}'" for i in indices]


def below(indices: Indices, shape: Shape) -> str:
    """Indices as a subscript; axes of length 1 have none."""
    if len(indices) == len(shape):  # otherwise one formula stands for all axes
        indices = [i for i, size in zip(indices, shape, strict=True) if size != 1]
    if not indices:
        return ""
    return f"_{{{','.join(indices)}}}"


def read_indices(value: Value, i: Indices, whole: str = r"\cdot") -> list[list[str]]:
    """The indices that entry i of a value reads from each input.

    `whole` stands for an axis that is read whole.
    """

    def index_of(size: int, result_axis: int | None) -> str:
        """The index along an axis of an input, which is `result_axis` of the value."""
        if result_axis is None:
            return whole
        if size == 1:
            return "1"
        return i[result_axis]

    indices = []
    axes_of_inputs = value.op.reads(value.ndim)
    for x, axes in zip(value.op.inputs, axes_of_inputs, strict=True):
        sizes_and_axes = zip(x.shape, axes, strict=True)
        indices.append([index_of(size, axis) for size, axis in sizes_and_axes])
    return indices


def escape(text: str) -> str:
    """Escape text for LaTeX, in ASCII."""
    replacements = {"−": "-", "·": " ", "…": "...", "\\": r"\textbackslash "}
    for character, replacement in replacements.items():
        text = text.replace(character, replacement)
    text = re.sub(r"([_&%$#{}])", r"\\\1", text)
    text = re.sub(r"[\^~]", r"\\\g<0>{}", text)
    text = re.sub(r"[<>]", r"$\g<0>$", text)
    return text.encode("ascii", "replace").decode()


def decimal(number: float) -> str:
    """A number, with an exponent written as a power of ten."""
    mantissa, _, exponent = f"{number:g}".partition("e")
    if not exponent:
        return mantissa
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def gaussian_law(mean: Floats, factor: Floats) -> str:
    """The law of the coordinates of initial vectors with mean and covariance F F^T.

    F is `factor`, (*shape of mean, k). The covariance of a few vectors is written out.
    """
    rows = factor.reshape(mean.size, factor.shape[-1])
    cov = rows @ rows.T
    variance = cov[0, 0]
    centre = numbers(mean.ravel(), r"\mu")
    is_multiple_of_identity = np.array_equal(cov, variance * np.eye(mean.size))
    if is_multiple_of_identity:
        return rf"\mathcal N({centre}, {decimal(variance)})"
    if mean.size > MAX_MATRIX_ROWS:
        return rf"\mathcal N({centre}, \Sigma) \text{{ with a given }} \Sigma"
    lines = [" & ".join(map(decimal, row)) for row in cov]
    entries = r" \\ ".join(lines)
    return rf"\mathcal N({centre}, \begin{{pmatrix}} {entries} \end{{pmatrix}})"


def numbers(array: Floats, symbol: str) -> str:
    """Numbers (count,) in LaTeX: one if all are equal, a list of a few, else `symbol`.

    For example, 2, 2, 2 are "2", and 1, 2 are "(1, 2)".
    """
    if (array == array[0]).all():
        return decimal(array[0])
    if len(array) <= MAX_LISTED_NUMBERS:
        return f"({', '.join(map(decimal, array))})"
    return symbol


def constant_vectors(mean: Floats, i: Indices) -> tuple[str, str]:
    """The factor of (1, …, 1) in initial vectors that are not random.

    With it comes the text that defines it, "" for a number.
    """
    first = mean.ravel()[0]
    if (mean == first).all():
        return decimal(first), ""
    name = r"\mu" + below(i, mean.shape)
    listed = numbers(mean.ravel(), "")
    if not listed:
        return name, r", \quad \mu \text{ given}"
    return name, rf", \quad \mu = {listed}"


def normal(std: float) -> str:
    """The law of random scalars."""
    return rf"\sim \mathcal N(0, {decimal(std**2)}) \text{{ independent}}"


def dimension(width: Width) -> str:
    """A width in a formula."""
    if width.name is None:
        return str(width.factor)
    name = width.name
    if len(name) > 1:
        name = rf"\mathit{{{escape(name)}}}"
    if width.factor == 1:
        return name
    return f"{width.factor}{name}"


def grouped(width: Width) -> str:
    """A width that is divided by, or has an exponent: (2n), n, 64."""
    if width.is_product:
        return f"({dimension(width)})"
    return dimension(width)


def entry_law(weight: Weight) -> str:
    """The law of the entries of a matrix, N(0, σ²/fan)."""
    variance_text = f"{decimal(weight.std**2)}/{grouped(weight.fan)}"
    return rf"\mathcal N(0, {variance_text})"


def variance(weight: Weight) -> str:
    """σ² in/fan, the factor from E[Z^x Z^x'] to the covariance of W x; "" for 1."""
    factors = ""
    if weight.std != 1:
        factors += rf"{decimal(weight.std**2)} \,"
    in_width = dimension(weight.in_width)
    fan = dimension(weight.fan)
    if in_width != fan:
        factors += rf"\frac{{{in_width}}}{{{fan}}} \,"
    return factors


def matrix_source(x: Value) -> Source | None:
    """The source of the matrices that made x, or the array that x indexes.

    None if it is not a MatMul output.
    """
    op = x.op
    if isinstance(op, Take):
        op = op.x.op
    if isinstance(op, MatMul):
        return op.weight.source
    return None


# How a formula writes an entry of an input: as a value, or as its limit.
Reference = Callable[[Value, Indices], str]


def selection(flat: Ints, shape: Shape, name: str) -> str:
    """The definition of π, the positions in an array of this shape that an index
    selects.

    They are in numpy's order and count from 1.
    """
    subscript = _varying(letters(flat.shape))
    if flat.size > MAX_LISTED_POSITIONS:
        return rf"{name} \text{{ given}}"
    indices = np.array(np.unravel_index(flat.ravel(), shape))
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    positions = 1 + indices[axes].T  # (selected entries, axes)
    entries = [",".join(map(str, position)) for position in positions]
    if len(axes) != 1:
        entries = [f"({entry})" for entry in entries]
    listed = ", ".join(entries)
    if not subscript:
        return rf"{name} = {listed}"
    return rf"({name}({subscript}))_{{{subscript}}} = ({listed})"


def _varying(indices: Indices) -> str:
    """The indices of axes that are longer than 1."""
    return ",".join(index for index in indices if index != "1")


def selected(positions: str, i: Indices) -> str:
    """Entry i of a named selection of positions: π(i)."""
    subscript = _varying(i)
    if not subscript:
        return positions
    return f"{positions}({subscript})"


class Notation:
    """LaTeX of the inputs of one operation: see `Notation` in the language's values."""

    def __init__(
        self,
        ref: Reference,
        positions: Callable[[Ints, Shape], str] = lambda flat, shape: r"\pi",
    ) -> None:
        self.entry = ref
        self.positions = positions

    def inputs(self, value: Value, i: Indices, whole: str = r"\cdot") -> list[str]:
        """The entries of all inputs that entry i of a value reads."""
        entries = []
        indices = read_indices(value, i, whole)
        for x, index in zip(value.op.inputs, indices, strict=True):
            entries.append(self.entry(x, index))
        return entries

    def taken(self, op: ops.Take, i: Indices) -> str:
        """Entry i of an index, by a named selection if no formula describes it."""
        indices = taken_indices(op, i, first=1)
        if indices is None:
            indices = [selected(self.positions(op.flat, op.x.shape), i)]
        return self.entry(op.x, indices)

    def summation_index(self, i: Indices) -> str:
        """The first letter that an index of this length does not use."""
        return LETTERS[len(i)]

    def width(self, width: Width) -> str:
        """A width that is divided by, or has an exponent: (2n), n, 64."""
        return grouped(width)

    def number(self, number: float) -> str:
        """A number in a formula."""
        return decimal(number)

    def function(self, name: str, arguments: Sequence[str]) -> str:
        """A function with this name, of these arguments."""
        return rf"\operatorname{{{escape(name)}}}({', '.join(arguments)})"
