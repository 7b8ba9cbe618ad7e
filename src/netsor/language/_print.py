"""A program as text, one line an operation, in the paper's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import _operation as ops
from ._array import Operation, Value
from ._graph import names_of, narrow, take_as_index, topological_order, widths_of
from ._operation import Constant, Floats, MatMul, Source, SteppedMatMul, steps_of
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

    These say what is probed, and what is returned.
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
            many = "matrix" if weight.members.size == 1 else f"{weight.members.size} matrices"
            entries = f"entries N(0, {weight.std**2:g}/{weight.fan})"
            rows.append((names[weight.source], f"{many} {weight.out_width}×{weight.in_width}, {entries}", ""))
        if not _inlined(value):
            made = "×".join(map(str, value.shape)) or "1"
            made += f" in R^{value.width}" if isinstance(value, Vector) else ""
            rows.append((f"{names[value]} = {expression(value, names)}", value.op.kind or _name(value.op), made))
    widths = ", ".join(dict.fromkeys(str(width.name) for width in widths_of(values) if width.name is not None))
    head = f"program {name}" + (f", widths {widths}" if widths else "")
    returned = ", ".join(_reference(output, names) for output in outputs)
    shown = zip(probes, every[count:], strict=True)
    watched = [f"probe {each.name}: {_reference(value, names)}" for each, value in shown]
    return head, rows, "\n".join([*watched, f"return {returned}"])


def _inlined(value: Value) -> bool:
    """Single numbers are written where they are used."""
    return isinstance(value.op, Constant) and value.op.numbers.size == 1


def _reference(value: Value, names: dict[Value | Source, str]) -> str:
    if isinstance(value.op, Constant) and _inlined(value):
        return f"{value.op.numbers.ravel()[0]:g}"
    return names[value]


def expression(value: Value, names: dict[Value | Source, str]) -> str:
    """The right-hand side of the line of a value, by its operation; as a function of its inputs if that has no case."""
    op = value.op

    def ref(*values: Value) -> str:
        return ", ".join(_reference(x, names) for x in values)

    match op:
        case MatMul(weight, x, each) | SteppedMatMul(weight, x, each):
            steps = steps_of(op)
            matrix = names[weight.source] + "'" * len(steps) + (".T" if weight.transposed else "")
            if weight.fan != weight.drawn.fan:  # the adjoint, which a gradient is made by
                matrix = f"({weight.drawn.fan}/{weight.fan})^(1/2) {matrix}"
            moved = f", moved along {ref(*op.inputs[1:])}" if steps else ""
            return (f"{matrix}.each({ref(x)})" if each else f"{matrix} {ref(x)}") + moved
        case ops.Nonlin(f, read, scalars) | ops.Apply(f, read, scalars):
            if f in INFIX:
                return f" {INFIX[f]} ".join(map(ref, read))
            arguments = ", ".join([ref(x) for x in read] + [f"{p:g}" for p in f.parameters])
            return (
                f"{f.name}({arguments}; {ref(*scalars)})"
                if isinstance(scalars, tuple) and scalars
                else f"{f.name}({arguments})"
            )
        case ops.Gaussian(_, mean, factor):
            return initial_law(mean, factor)
        case ops.Normal(std=std):
            return f"N(0, {std**2:g})"
        case ops.Data(vectors):
            return f"given vectors in R^{vectors.shape[-1]}"
        case ops.Constant(numbers):
            return f"given numbers of shape {numbers.shape}"
        case ops.Hyperparameter(name):
            return name
        case ops.Root():
            return str(op)
        case ops.Add(x, y):
            return f"{ref(x)} + {ref(y)}"
        case ops.Scale(c, x):
            return f"{ref(c)} {ref(x)}"
        case ops.Mix(a, x):
            return f"{ref(a)} @ {ref(x)}"
        case ops.Concat(x, axis):
            return f"concat({ref(x)}, axis={axis})"
        case ops.Split(x, axis, count):
            return f"split({ref(x)}, {count}, axis={axis})"
        case ops.Dot(x, y, power):
            return f"{x.width}^(-{'1/2' if power == 0.5 else '1'}) <{ref(x, y)}>"
        case ops.Take(x, flat):
            indices = take_as_index(flat, x.shape)
            return f"selected from {ref(x)}" if indices is None else ref(x) + f"[{', '.join(indices)}]" * bool(indices)
        case Rotate(x):
            return f"rotary({ref(x)})"
        case Pool(f, x):
            return f"{f.name}({ref(x)})"
    return f"{_name(op)}({ref(*op.inputs)})"


def _name(op: Operation) -> str:
    return type(op).__name__.lower()


def initial_law(mean: Floats, factor: Floats) -> str:
    """N(mean, cov) over the vectors of an initial value, with numbers where one number says it."""
    factor = factor.reshape(mean.size, factor.shape[-1])
    cov = factor @ factor.T
    mean_text = f"{mean.ravel()[0]:g}" if (mean == mean.ravel()[0]).all() else "mean"
    if not cov.any():
        return f"{mean_text}·(1, …, 1)"
    return f"N({mean_text}, {f'{cov[0, 0]:g}' if np.array_equal(cov, cov[0, 0] * np.eye(len(cov))) else 'cov'})"
