"""A program as text, one line an operation, in the paper's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _operation as ops
from ._array import Operation, Value
from ._graph import names_of, narrow, take_as_index, topological_order, widths_of
from ._operation import Acting, Constant, Floats, MatMul, Source, SteppedMatMul, steps_of
from ._parameters import Weight
from ._probe import Probe
from ._rotary import Rotate
from ._scalar import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._score import Pool
from ._vector import Vector

INFIX = {ADD: "+", SUBTRACT: "−", MULTIPLY: "·", MATMUL: "@"}  # by identity: a user may name a function so too


def text(name: str, outputs: Sequence[Value], probes: Sequence[Probe] = ()) -> str:
    """The program as it is evaluated: one line an operation, with its kind and what it makes."""
    head, rows, last = parts(name, outputs, probes)
    left, middle = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = [f"  {a:{left}}   {b:{middle}}   {c}".rstrip() for a, b, c in rows]
    return "\n".join([head, *lines, last])


def parts(
    name: str, outputs: Sequence[Value], probes: Sequence[Probe] = ()
) -> tuple[str, list[tuple[str, str, str]], str]:
    """The first line of the text, a row of three cells for each operation and weight, and the last lines.

    These say what is watched, and what is returned.
    """
    count, every = len(outputs), narrow([*outputs, *(watched.value for watched in probes)])
    outputs = every[:count]
    values = topological_order(every)
    names = names_of(values)
    rows: list[tuple[str, str, str]] = []
    introduced: set[Source] = set()
    for value in values:
        if isinstance(value.op, MatMul | SteppedMatMul) and value.op.weight.source not in introduced:
            weight = value.op.weight.drawn
            introduced.add(weight.source)
            rows.append((names[weight.source], _entries(weight), ""))
        if not _inlined(value):
            rows.append(
                (f"{names[value]} = {expression(value, names)}", value.op.kind or _name(value.op), _made(value))
            )
    widths = ", ".join(dict.fromkeys(str(width.name) for width in widths_of(values) if width.name is not None))
    head = f"program {name}" + (f", widths {widths}" if widths else "")
    returned = ", ".join(_reference(output, names) for output in outputs)
    shown = zip(probes, every[count:], strict=True)
    watched = [f"probe {each.name}: {_reference(value, names)}" for each, value in shown]
    return head, rows, "\n".join([*watched, f"return {returned}"])


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


Reference = Callable[[Value], str]  # how the line of a value writes its inputs


def expression(value: Value, names: dict[Value | Source, str]) -> str:
    """The right-hand side of the line of a value: by its rule, or as a function of its inputs."""

    def ref(x: Value) -> str:
        return _reference(x, names)

    op = value.op
    if isinstance(op, MatMul | SteppedMatMul):
        steps = steps_of(op)
        moved = f", moved along {', '.join(map(ref, op.inputs[1:]))}" if steps else ""
        return _matmul(op, names[op.weight.source] + "'" * len(steps), ref) + moved
    if type(op) in EXPRESSIONS:
        return EXPRESSIONS[type(op)](op, ref)
    return f"{_name(op)}({', '.join(map(ref, op.inputs))})"


def _name(op: Operation) -> str:
    return type(op).__name__.lower()


def _matmul(op: Acting, name: str, ref: Reference) -> str:
    weight = op.weight
    matrix = name + (".T" if weight.transposed else "")
    if weight.fan != weight.drawn.fan:  # the adjoint, which a gradient is made by
        matrix = f"({weight.drawn.fan}/{weight.fan})^(1/2) {matrix}"
    return f"{matrix}.each({ref(op.x)})" if op.each else f"{matrix} {ref(op.x)}"


def _nonlin(op: ops.Nonlin, ref: Reference) -> str:
    if op.f in INFIX:
        return f" {INFIX[op.f]} ".join(map(ref, op.vectors))
    arguments = ", ".join([ref(v) for v in op.vectors] + [f"{p:g}" for p in op.f.parameters])
    return f"{op.f.name}({arguments}" + (f"; {', '.join(map(ref, op.scalars))})" if op.scalars else ")")


def _apply(op: ops.Apply, ref: Reference) -> str:
    if op.f in INFIX:
        return f" {INFIX[op.f]} ".join(map(ref, op.scalars))
    return f"{op.f.name}({', '.join([ref(p) for p in op.scalars] + [f'{p:g}' for p in op.f.parameters])})"


def _take(op: ops.Take, ref: Reference) -> str:
    indices = take_as_index(op.flat, op.x.shape)
    if indices is None:
        return f"selected from {ref(op.x)}"
    return f"{ref(op.x)}[{', '.join(indices)}]" if indices else ref(op.x)


def initial_law(mean: Floats, factor: Floats) -> str:
    """N(mean, cov) over the vectors of an initial value, with numbers where one number says it."""
    factor = factor.reshape(mean.size, factor.shape[-1])
    cov = factor @ factor.T
    mean_text = f"{mean.ravel()[0]:g}" if (mean == mean.ravel()[0]).all() else "mean"
    if not cov.any():
        return f"{mean_text}·(1, …, 1)"
    return f"N({mean_text}, {f'{cov[0, 0]:g}' if np.array_equal(cov, cov[0, 0] * np.eye(len(cov))) else 'cov'})"


EXPRESSIONS: dict[type[Operation], Callable[[Any, Reference], str]] = {
    ops.Gaussian: lambda op, ref: initial_law(op.mean, op.factor),
    ops.Normal: lambda op, ref: f"N(0, {op.std**2:g})",
    ops.Data: lambda op, ref: f"given vectors in R^{op.vectors.shape[-1]}",
    ops.Constant: lambda op, ref: f"given numbers of shape {op.numbers.shape}",
    ops.Hyperparameter: lambda op, ref: op.name,
    ops.Root: lambda op, ref: str(op),
    ops.Nonlin: _nonlin,
    ops.Add: lambda op, ref: f"{ref(op.x)} + {ref(op.y)}",
    ops.Scale: lambda op, ref: f"{ref(op.c)} {ref(op.x)}",
    ops.Mix: lambda op, ref: f"{ref(op.a)} @ {ref(op.x)}",
    ops.Concat: lambda op, ref: f"concat({ref(op.x)}, axis={op.axis})",
    ops.Split: lambda op, ref: f"split({ref(op.x)}, {op.count}, axis={op.axis})",
    ops.Dot: lambda op, ref: f"{op.x.width}^(-{'1/2' if op.power == 0.5 else '1'}) <{ref(op.x)}, {ref(op.y)}>",
    ops.Apply: _apply,
    ops.Take: _take,
    Rotate: lambda op, ref: f"rotary({ref(op.x)})",
    Pool: lambda op, ref: f"{op.f.name}({ref(op.x)})",
}


def _made(value: Value) -> str:
    count = "×".join(map(str, value.shape)) or "1"
    return f"{count} in R^{value.width}" if isinstance(value, Vector) else count
