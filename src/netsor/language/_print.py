"""A program as text, one line an operation, in the paper's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._function import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._graph import ordered, widths_of
from ._names import names_of, taken_indices
from ._narrow import narrow
from ._operation import (
    Add,
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Floats,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Normal,
    Root,
    Rotate,
    Scale,
    Source,
    Split,
    Take,
)
from ._value import Value, Vector
from ._weight import Weight

INFIX = {ADD: "+", SUBTRACT: "−", MULTIPLY: "·", MATMUL: "@"}  # by identity: a user may name a function so too


def text(name: str, outputs: Sequence[Value]) -> str:
    """The program as it is evaluated: one line an operation, with its kind and what it makes."""
    outputs = narrow(outputs)
    values = ordered(outputs)
    names = names_of(values)
    rows: list[tuple[str, str, str]] = []
    introduced: set[Source] = set()
    for value in values:
        if isinstance(value.op, MatMul) and value.op.weight.source not in introduced:
            weight = value.op.weight.drawn
            introduced.add(weight.source)
            rows.append((names[weight.source], _entries(weight), ""))
        if not _inlined(value):
            rows.append((f"{names[value]} = {expression(value, names)}", _kind(value), _made(value)))
    left, middle = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    widths = ", ".join(dict.fromkeys(str(width.name) for width in widths_of(values) if width.name is not None))
    head = f"program {name}" + (f", widths {widths}" if widths else "")
    lines = [f"  {a:{left}}   {b:{middle}}   {c}".rstrip() for a, b, c in rows]
    returned = ", ".join(_reference(output, names) for output in outputs)
    return "\n".join([head, *lines, f"return {returned}"])


def _entries(weight: Weight) -> str:
    size = weight.members.size
    many = "matrix" if size == 1 else f"{size} matrices"
    return f"{many} {weight.out_width}×{weight.in_width}, entries N(0, {weight.std**2:g}/{weight.fan})"


def _inlined(value: Value) -> bool:
    """Single numbers are written where they are used."""
    return isinstance(value.op, Constant) and value.op.numbers.size == 1


def _reference(value: Value, names: dict[Value | Source, str]) -> str:
    if isinstance(value.op, Constant) and _inlined(value):
        return f"{value.op.numbers.ravel()[0]:g}"
    return names[value]


def expression(value: Value, names: dict[Value | Source, str]) -> str:
    """The right-hand side of the line of a value."""

    def ref(x: Value) -> str:
        return _reference(x, names)

    match value.op:
        case Gaussian(_, mean, factor):
            return initial_law(mean, factor)
        case Normal(_, std, _):
            return f"N(0, {std**2:g})"
        case Rotate(x):
            return f"rotary({ref(x)})"
        case Data(vectors):
            return f"given vectors in R^{vectors.shape[-1]}"
        case MatMul(weight, x, each):
            matrix = names[weight.source] + (".T" if weight.transposed else "")
            if weight.fan != weight.drawn.fan:  # the adjoint, which a gradient is made by
                matrix = f"({weight.drawn.fan}/{weight.fan})^(1/2) {matrix}"
            return f"{matrix}.each({ref(x)})" if each else f"{matrix} {ref(x)}"
        case Nonlin(f, vectors, scalars):
            if f in INFIX:
                return f" {INFIX[f]} ".join(map(ref, vectors))
            arguments = ", ".join([ref(v) for v in vectors] + [f"{p:g}" for p in f.parameters])
            return f"{f.name}({arguments}" + (f"; {', '.join(map(ref, scalars))})" if scalars else ")")
        case Add(x, y):
            return f"{ref(x)} + {ref(y)}"
        case Scale(c, x):
            return f"{ref(c)} {ref(x)}"
        case Mix(a, x):
            return f"{ref(a)} @ {ref(x)}"
        case Concat(x, axis):
            return f"concat({ref(x)}, axis={axis})"
        case Split(x, axis, count):
            return f"split({ref(x)}, {count}, axis={axis})"
        case Root():
            return str(value.op)
        case Dot(x, y, power):
            return f"{x.width}^(-{'1/2' if power == 0.5 else '1'}) <{ref(x)}, {ref(y)}>"
        case Constant(numbers):
            return f"given numbers of shape {numbers.shape}"
        case Apply(f, scalars, _):
            if f in INFIX:
                return f" {INFIX[f]} ".join(map(ref, scalars))
            return f"{f.name}({', '.join([ref(p) for p in scalars] + [f'{p:g}' for p in f.parameters])})"
        case Take(x, flat):
            indices = taken_indices(flat, x.shape)
            if indices is None:
                return f"selected from {ref(x)}"
            return f"{ref(x)}[{', '.join(indices)}]" if indices else ref(x)
        case Join(parts):
            return f"join({', '.join(map(ref, parts))})"
    raise TypeError(f"unknown operation {value.op!r}")


def initial_law(mean: Floats, factor: Floats) -> str:
    """N(mean, cov) over the vectors of an initial value, with numbers where one number says it."""
    factor = factor.reshape(mean.size, factor.shape[-1])
    cov = factor @ factor.T
    mean_text = f"{mean.ravel()[0]:g}" if (mean == mean.ravel()[0]).all() else "mean"
    if not cov.any():
        return f"{mean_text}·(1, …, 1)"
    return f"N({mean_text}, {f'{cov[0, 0]:g}' if np.array_equal(cov, cov[0, 0] * np.eye(len(cov))) else 'cov'})"


KINDS = {
    Gaussian: "initial",
    Data: "data",
    MatMul: "MatMul",
    Nonlin: "Nonlin",
    Add: "sum",
    Scale: "scaling",
    Mix: "combination",
    Concat: "concatenation",
    Split: "parts",
    Root: "ratio of widths",
    Dot: "dot",
    Constant: "given",
    Normal: "random scalars",
    Rotate: "rotation",
    Apply: "function of scalars",
    Take: "index",
    Join: "join",
}


def _kind(value: Value) -> str:
    return KINDS[type(value.op)]


def _made(value: Value) -> str:
    count = "×".join(map(str, value.shape)) or "1"
    return f"{count} in R^{value.width}" if isinstance(value, Vector) else count
