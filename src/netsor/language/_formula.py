"""The right-hand sides of LaTeX formulas: of every operation that reads alike at finite width and in the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _operation as ops
from ._array import Operation, Value
from ._function import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._names import LETTERS, taken_indices
from ._pool import Pool
from ._rotary import Rotate
from ._tex import Indices, broadcast_to, decimal, dimension, escape

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
    indices = taken_indices(op.flat, op.x.shape)
    if indices is None:  # π: a selection that no formula in the indices gives
        return ref(op.x, [rf"\pi({','.join(i)})"])
    # letters are by the axes of the result, in the order of LETTERS
    return ref(op.x, [str(int(k) + 1) if k.isdigit() else i[LETTERS.index(k[0])] + k[1:] for k in indices])


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
