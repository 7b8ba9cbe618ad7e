"""The notation of values: a program as text, one line per operation in the terms of the
paper, and LaTeX fragments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._validate import Shape
from . import _operation as ops
from ._array import Value
from ._graph import names_of, narrow, topological_order, widths_of
from ._operation import (
    Acting,
    Constant,
    Floats,
    MatMul,
    Source,
    SteppedMatMul,
    Take,
    steps_of,
)
from ._parameters import Weight
from ._probe import Probe
from ._rotary import Rotate
from ._scalar import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._score import Pool
from ._stop_gradient import ScaledGradient
from ._vector import Vector
from ._width import Width

LETTERS = "ijklmabcdefgh"  # index letters
MAX_MATRIX_ROWS = 4  # a larger covariance matrix does not fit on a line of LaTeX
MAX_LISTED_POSITIONS = 24  # nor does a longer list of positions
# In text and in LaTeX. Matched by identity, since users may have functions with these
# names
INFIX = {
    ADD: ("+", "+"),
    SUBTRACT: ("−", "-"),
    MULTIPLY: ("·", r"\cdot"),
    MATMUL: ("@", ""),
}
# Operations as text, from the names of their inputs and from their fields
TEMPLATES: dict[type[ops.Operation], str] = {
    ops.Data: "given vectors in R^{value.width}",
    ops.Constant: "given numbers of shape {value.shape}",
    ops.Hyperparameter: "{op.name}",
    ops.Root: "{op}",
    ops.Add: "{0} + {1}",
    ops.Scale: "{0} {1}",
    ops.Mix: "{0} @ {1}",
    ops.Concat: "concat({0}, axis={op.axis})",
    ops.Split: "split({0}, {op.count}, axis={op.axis})",
    Rotate: "rotary({0})",
    Pool: "{op.f.name}({0})",
}


def text(name: str, outputs: Sequence[Value], probes: Sequence[Probe]) -> str:
    """The program as it is evaluated: one line per operation, with its kind and its
    result.
    """
    head, rows, last = parts(name, outputs, probes)
    left, middle = (
        max((len(row[column]) for row in rows), default=0) for column in (0, 1)
    )
    lines = [f"  {a:{left}}   {b:{middle}}   {c}".rstrip() for a, b, c in rows]
    return "\n".join([head, *lines, last])


def parts(
    name: str, outputs: Sequence[Value], probes: Sequence[Probe]
) -> tuple[str, list[tuple[str, str, str]], str]:
    """The first line of the text, a row of three cells per operation and weight, and
    the probes and outputs.
    """
    every = narrow([*outputs, *(probe.value for probe in probes)])
    values = topological_order(every)
    names = names_of(values)
    rows: list[tuple[str, str, str]] = []
    introduced: set[Source] = set()
    for value in values:
        if isinstance(value.op, Acting) and value.op.weight.source not in introduced:
            weight = value.op.weight.drawn
            introduced.add(weight.source)
            many = (
                "matrix"
                if weight.members.size == 1
                else f"{weight.members.size} matrices"
            )
            entries = f"entries N(0, {weight.std**2:g}/{weight.fan})"
            rows.append(
                (
                    names[weight.source],
                    f"{many} {weight.out_width}×{weight.in_width}, {entries}",
                    "",
                )
            )
        if not isinstance(value.op, Constant) or value.size > 1:
            shape = "×".join(map(str, value.shape)) or "1"
            shape += f" in R^{value.width}" if isinstance(value, Vector) else ""
            kind = value.op.kind or type(value.op).__name__.lower()
            rows.append((f"{names[value]} = {expression(value, names)}", kind, shape))
    widths = ", ".join(
        dict.fromkeys(
            str(width.name) for width in widths_of(values) if width.name is not None
        )
    )
    head = f"program {name}" + (f", widths {widths}" if widths else "")
    written = [_reference(value, names) for value in every]
    watched = zip(probes, written[len(outputs) :], strict=True)
    last = [f"probe {probe.name}: {shown}" for probe, shown in watched]
    return (
        head,
        rows,
        "\n".join([*last, f"return {', '.join(written[: len(outputs)])}"]),
    )


def _reference(value: Value, names: dict[Value | Source, str]) -> str:
    """The name of a value; single numbers are written out."""
    return (
        f"{value.op.numbers.ravel()[0]:g}"
        if isinstance(value.op, Constant) and value.size == 1
        else names[value]
    )


def expression(value: Value, names: dict[Value | Source, str]) -> str:
    """The right-hand side of the line of a value; an operation without a case is a
    function of its inputs.
    """
    op, inputs = value.op, [_reference(x, names) for x in value.op.inputs]
    match op:
        case MatMul(weight, _, each) | SteppedMatMul(weight, _, each):
            steps = steps_of(op)
            matrix = (
                names[weight.source]
                + "'" * len(steps)
                + (".T" if weight.transposed else "")
            )
            if weight.fan != weight.drawn.fan:  # the adjoint, used by gradients
                matrix = f"({weight.drawn.fan}/{weight.fan})^(1/2) {matrix}"
            if weight.frozen:
                matrix = f"stop_gradient({matrix})"
            moved = f", moved along {', '.join(inputs[1:])}" if steps else ""
            return (
                f"{matrix}.each({inputs[0]})" if each else f"{matrix} {inputs[0]}"
            ) + moved
        case ops.Nonlin(f) | ops.Apply(f) if f in INFIX:
            return f" {INFIX[f][0]} ".join(inputs)
        # the vectors of a Nonlin come first
        case ops.Nonlin(f, first) | ops.Apply(f, first):
            arguments = ", ".join(
                inputs[: len(first)] + [f"{p:g}" for p in f.parameters]
            )
            given = ", ".join(inputs[len(first) :])
            return f"{f.name}({arguments}{'; ' * bool(given)}{given})"
        case ops.Gaussian(_, mean, factor):
            return initial_law(mean, factor)
        case ops.Normal(std=std):
            return f"N(0, {std**2:g})"
        case ops.Dot(x, _, power):
            return (
                f"{x.width}^(-{'1/2' if power == 0.5 else '1'}) <{', '.join(inputs)}>"
            )
        case ScaledGradient():
            return (
                f"stop_gradient({inputs[0]})"
                if op.stops
                else f"{inputs[0]}, its gradient times given numbers"
            )
        case ops.Take():
            indices = taken_indices(op, LETTERS, 0)
            at = f"[{', '.join(indices)}]" if indices else ""
            return f"selected from {inputs[0]}" if indices is None else inputs[0] + at
    template = TEMPLATES.get(
        type(op), f"{type(op).__name__.lower()}({', '.join(inputs)})"
    )
    return template.format(*inputs, op=op, value=value)


def taken_indices(op: ops.Take, i: Sequence[str], first: int) -> list[str] | None:
    """The indices that a Take reads, ["j", "3"] for `u[i, j] = x[j, 3]` if `first` is
    0; None if no formula fits.
    """
    indices: list[str] = []
    ramps = np.ogrid[tuple(map(slice, op.flat.shape))] if op.flat.ndim else ()
    for coordinate in np.unravel_index(op.flat, op.x.shape) if op.x.shape else ():
        start = int(np.ravel(coordinate)[0])
        ways: list[tuple[str, Any]] = [("", 0), *zip(i, ramps, strict=False)]
        letter = next(
            (letter for letter, ramp in ways if (coordinate == start + ramp).all()),
            None,
        )
        if letter is None:
            return None
        indices.append(
            letter + f"+{start}" * (start > 0) if letter else str(start + first)
        )
    return indices


def initial_law(mean: Floats, factor: Floats) -> str:
    """N(mean, cov) over the vectors of an initial value; numbers stand for constant
    means and covariances.
    """
    factor = factor.reshape(mean.size, factor.shape[-1])
    cov = factor @ factor.T
    mean_text = f"{mean.ravel()[0]:g}" if (mean == mean.ravel()[0]).all() else "mean"
    if not cov.any():
        return f"{mean_text}·(1, …, 1)"
    return (
        f"N({mean_text},"
        f" {f'{cov[0, 0]:g}' if np.array_equal(cov, cov[0, 0] * np.eye(len(cov))) else 'cov'})"
    )


# LaTeX

Indices = Sequence[str]

# Also for MathJax and KaTeX: text within $$ uses only amsmath commands that both
# support.
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
    """An index letter per axis; 1 for an axis of length 1."""
    names = iter(LETTERS)
    return ["1" if size == 1 else next(names) for size in shape]


def primed(indices: Indices) -> list[str]:
    """The indices of another entry of the same array."""
    return [i if i == "1" else f"{i}'" for i in indices]


def below(indices: Indices, shape: Shape) -> str:
    """Indices as a subscript; axes of length 1 have none."""
    if len(indices) == len(shape):  # otherwise one formula stands for all axes
        indices = [i for i, size in zip(indices, shape, strict=True) if size != 1]
    return f"_{{{','.join(indices)}}}" if indices else ""


def read_indices(value: Value, i: Indices, whole: str = r"\cdot") -> list[list[str]]:
    """The indices that entry i of a value reads from each input; `whole` for an axis
    that is read whole.
    """
    reads = zip(value.op.inputs, value.op.reads(value.ndim), strict=True)
    sizes = [zip(x.shape, axes, strict=True) for x, axes in reads]
    return [
        [whole if k is None else "1" if n == 1 else i[k] for n, k in axes]
        for axes in sizes
    ]


def escape(text: str) -> str:
    """Escape text for LaTeX, in ASCII."""
    for special, written in (
        ("−", "-"),
        ("·", " "),
        ("…", "..."),
        ("\\", r"\textbackslash "),
    ):
        text = text.replace(special, written)
    text = re.sub(r"([_&%$#{}])", r"\\\1", text)
    text = re.sub(r"[\^~]", r"\\\g<0>{}", text)
    return re.sub(r"[<>]", r"$\g<0>$", text).encode("ascii", "replace").decode()


def decimal(number: float) -> str:
    """A number, with an exponent written as a power of ten."""
    mantissa, _, exponent = f"{number:g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def gaussian_law(mean: Floats, factor: Floats) -> str:
    """The law of the coordinates of initial vectors; a covariance matrix of a few
    vectors is written out.
    """
    rows = factor.reshape(mean.size, factor.shape[-1])
    cov = rows @ rows.T
    centre = numbers(mean.ravel(), r"\mu")
    if np.array_equal(cov, cov[0, 0] * np.eye(mean.size)):
        return rf"\mathcal N({centre}, {decimal(cov[0, 0])})"
    if mean.size > MAX_MATRIX_ROWS:
        return rf"\mathcal N({centre}, \Sigma) \text{{ with a given }} \Sigma"
    entries = r" \\ ".join(" & ".join(map(decimal, row)) for row in cov)
    return rf"\mathcal N({centre}, \begin{{pmatrix}} {entries} \end{{pmatrix}})"


def numbers(given: Floats, symbol: str) -> str:
    """One number if all are equal, a few numbers as a list, and a symbol for more."""
    if (given == given[0]).all():
        return decimal(given[0])
    if len(given) <= MAX_MATRIX_ROWS:
        return f"({', '.join(map(decimal, given))})"
    return symbol


def constant_vectors(mean: Floats, i: Indices) -> tuple[str, str]:
    """The factor of (1, …, 1) in initial vectors that are not random, and what defines
    it.
    """
    if (mean == mean.ravel()[0]).all():
        return decimal(mean.ravel()[0]), ""
    listed = numbers(mean.ravel(), "")
    name = r"\mu" + below(i, mean.shape)
    return name, rf", \quad \mu = {listed}" if listed else r", \quad \mu \text{ given}"


def normal(std: float) -> str:
    """The law of random scalars."""
    return rf"\sim \mathcal N(0, {decimal(std**2)}) \text{{ independent}}"


def dimension(width: Width) -> str:
    """A width in a formula."""
    if width.name is None:
        return str(width.factor)
    name = width.name if len(width.name) == 1 else rf"\mathit{{{escape(width.name)}}}"
    return name if width.factor == 1 else f"{width.factor}{name}"


def variance(weight: Weight) -> str:
    """σ² in/fan, the factor from E[Z^x Z^x'] to the covariance of W x; empty if it is
    1.
    """
    number = "" if weight.std == 1 else rf"{decimal(weight.std**2)} \,"
    many, few = dimension(weight.in_width), dimension(weight.fan)
    return number + ("" if many == few else rf"\frac{{{many}}}{{{few}}} \,")


def matrix_source(x: Value) -> Source | None:
    """The source of the matrices that made x (or the array that x indexes); None if x
    is not a MatMul output.
    """
    op = x.op.x.op if isinstance(x.op, Take) else x.op
    return op.weight.source if isinstance(op, MatMul) else None


# how a formula writes an input: as a value or as its limit
Reference = Callable[[Value, Indices], str]
LATEX = {
    ops.Add: "{0} + {1}",
    ops.Scale: r"{0} \, {1}",
    ops.Mix: r"\sum_{{{k}}} {0} \, {1}",
}


def selection(op: ops.Take, name: str) -> str:
    """The definition of π, the positions that an index selects, in numpy's order and
    counted from 1.
    """
    indices = letters(op.flat.shape)
    at = ",".join(index for index in indices if index != "1")
    if op.flat.size > MAX_LISTED_POSITIONS:
        return rf"{name} \text{{ given}}"
    axes = [axis for axis, size in enumerate(op.x.shape) if size > 1]
    places = np.array(np.unravel_index(op.flat.ravel(), op.x.shape))[axes].T + 1
    rows = [",".join(map(str, place)) for place in places]
    listed = ", ".join(row if len(axes) == 1 else f"({row})" for row in rows)
    return rf"({name}({at}))_{{{at}}} = ({listed})" if at else rf"{name} = {listed}"


def formula(
    value: Value,
    i: Indices,
    ref: Reference,
    positions: Callable[[ops.Take], str] = lambda op: r"\pi",
) -> str:
    """Entry i of a value; an operation without a case is a function of its inputs.

    `positions` names the selection of an index that no formula describes.
    """
    op = value.op
    match op:
        case ops.Take(x):
            known = taken_indices(op, i, 1)
            if known is not None:
                return ref(x, known)
            at = ",".join(index for index in i if index != "1")
            name = positions(op)
            return ref(x, [f"{name}({at})" if at else name])
        case ops.Join(parts):
            every = ", ".join(ref(part, [r"\cdot", *i[1:]]) for part in parts)
            return f"({every})_{{{i[0]}}}"
        case ops.Concat(x, axis):
            first, last = (
                ref(x, read_indices(value, i, k)[0]) for k in ("1", str(x.shape[axis]))
            )
            return rf"({first}; \dots; {last})"
    summed = LETTERS[len(i)]  # the summation index
    read = list(
        map(
            ref,
            op.inputs,
            read_indices(value, i, summed if isinstance(op, ops.Mix) else r"\cdot"),
        )
    )
    match op:
        case ops.Nonlin(f) | ops.Apply(f, _, 0) if f in INFIX:
            return f" {INFIX[f][1]} ".join(read)
        case ops.Add() | ops.Scale() | ops.Mix():
            return LATEX[type(op)].format(*read, k=summed)
        case ops.Split(_, axis):
            return rf"({read[0]})_{{\text{{part }} {i[axis]}}}"
        case ops.Dot(x, _, power):
            scale = rf"{dimension(x.width)}^{{{'-1/2' if power == 0.5 else '-1'}}}"
            return rf"{scale} \langle {read[0]}, {read[1]} \rangle"
        case Rotate(_, _, base, fraction, stretch, interleaved):
            turned = "" if fraction == 1 else rf"^{{({decimal(fraction)})}}"
            turned += "'" * interleaved
            bent = "" if stretch is None else rf"{', '.join(map(decimal, stretch))}, "
            return rf"R{turned}_{{{decimal(base)}, {bent}t({i[-1]})}} \, {read[0]}"
    known = getattr(op, "f", None)
    name, parameters = (
        (known.name, known.parameters) if known else (type(op).__name__.lower(), ())
    )
    vectors = len(op.vectors) if isinstance(op, ops.Nonlin) else len(read)
    arguments = ", ".join([*read[:vectors], *map(decimal, parameters)]) + "; " * (
        vectors < len(read)
    )
    entry = [i[k] for k in op.whole(value.ndim)]
    called = rf"\operatorname{{{escape(name)}}}({arguments}{', '.join(read[vectors:])})"
    return called + (f"_{{{','.join(entry)}}}" if entry else "")
