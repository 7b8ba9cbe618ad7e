"""The specification of a graph: what holds of every value of a program, as it is traced
and after every pass.

Tests verify programs with it; nothing in the package does.

The inputs of an operation are of the kinds that its fields name; the sizes of arrays
are those that `reads` says; and the vectors that an operation reads and makes live in
one space. Where more is to be said of an operation, or something else, it has a row
here: `rule(op, value)`, the shape and the width of what it makes (None for scalars).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from tests.internals import (
    AdjointCorrection,
    Append,
    Coefficients,
    Fuse,
    MaterialisedMatMul,
    Operation,
    Outer,
    OuterProductSum,
    Pool,
    Rotate,
    Scalar,
    Shape,
    Span,
    SteppedMatMul,
    SteppedParameter,
    Value,
    Vector,
    Width,
    topological_order,
)
from tests.internals import _operation as ops

Made = tuple[Shape, Width | None]
Rules = Mapping[type[Operation], Callable[[Any, Any], Made]]
KINDS = {"Vector": Vector, "Scalar": Scalar}  # as the annotations of fields name them


class SpecificationError(Exception):
    """A graph that no program makes: an error of a pass, or of the rules of an
    operation.
    """


def verify(outputs: Iterable[Value]) -> None:
    """Check every value that the outputs depend on."""
    rules = {**RULES, **PASSES}
    for value in topological_order(outputs):
        op, width = value.op, value.width if isinstance(value, Vector) else None
        try:
            for field in fields(op):
                found = getattr(op, field.name)
                kind = next(
                    (kind for name, kind in KINDS.items() if name in str(field.type)),
                    Value,
                )
                for x in found if isinstance(found, tuple) else (found,):
                    need(
                        not isinstance(x, Value) or isinstance(x, kind),
                        f"{field.name} is a {type(x).__name__}",
                    )
            made = rules.get(type(op), alike)(op, value)
            need(
                made == (value.shape, width),
                f"must have shape {made[0]} and width {made[1]}",
            )
        except (ValueError, IndexError) as error:
            # of `need`, or of numpy for shapes that do not broadcast
            raise SpecificationError(f"{value!r} of {op!r}: {error}") from None


def need(holds: bool, words: str) -> None:
    """Refuse a value of which something does not hold; `verify` says which value, for
    printing arrays takes long.
    """
    if not holds:
        raise ValueError(words)


def alike(op: Operation, value: Value) -> Made:
    """The rule of an operation without a row: vectors of one space make vectors of it,
    scalars make scalars.
    """
    return sizes(op, value), space(op)


def sizes(op: Operation, value: Value) -> Shape:
    """The shape that an operation makes, axis by axis; the size of an axis that no
    input goes along is its own.
    """
    shape = []
    for axis, own in enumerate(value.shape):
        read = zip(op.inputs, op.reads(value.ndim), strict=True)
        along = [
            (n,)
            for x, axes in read
            for n, k in zip(x.shape, axes, strict=True)
            if k == axis
        ]
        shape.append(np.broadcast_shapes(*along)[0] if along else own)
    return tuple(shape)


def space(op: Operation) -> Width | None:
    """The one width of all vectors that an operation reads; None if it reads scalars
    alone.
    """
    widths = {x.width: None for x in op.inputs if isinstance(x, Vector)}
    need(len(widths) < 2, "reads vectors of different spaces")
    return next(iter(widths), None)


def products(op: Operation, value: Value) -> Made:
    """The rule of products of vectors of one space, which are scalars."""
    space(op)
    return sizes(op, value), None


def _gaussian(op: ops.Gaussian, value: Vector) -> Made:
    need(
        op.factor.shape[:-1] == op.mean.shape,
        f"{value!r} has means {op.mean.shape} and a factor {op.factor.shape}",
    )
    return op.mean.shape, value.width


def _matmul(op: ops.MatMul | SteppedMatMul, value: Vector) -> Made:
    weight, members = op.weight, op.weight.members
    need(op.x.width == weight.in_width, f"{op.x!r} is multiplied by {weight!r}")
    need(
        not op.each or op.x.shape[: members.ndim] == weight.batch,
        f"each of {weight!r} acts on {op.x!r}",
    )
    need(
        0 <= members.min() <= members.max() < weight.count,
        f"members {members} of {weight.count} matrices",
    )
    return (op.x.shape if op.each else weight.batch + op.x.shape), weight.out_width


def _stepped(op: SteppedMatMul, value: Vector) -> Made:
    drawn = op.weight.drawn
    for left, right, part in zip(op.left, op.right, op.parts, strict=True):
        need(
            (left.width, right.width) == (drawn.out_width, drawn.in_width),
            f"{left!r} {right!r}^T moves {drawn!r}",
        )
        need(left.shape[-1] == right.shape[-1], f"{left!r} with {right!r}")
        need(
            {left.shape[0], right.shape[0]} <= {1, len(part.members)},
            f"{left!r}, {right!r} for {part.members}",
        )
        need(part.step < len(op.steps), f"step {part.step} of {len(op.steps)}")
    return _matmul(op, value)


def _mix(op: ops.Mix, value: Vector) -> Made:
    need(
        op.a.shape[-1] == op.x.shape[-1],
        f"scalars of shape {op.a.shape} combine vectors of shape {op.x.shape}",
    )
    return alike(op, value)


def _split(op: ops.Split, value: Vector) -> Made:
    need(
        op.count * value.width == op.x.width, f"{op.count} parts {value!r} of {op.x!r}"
    )
    return (*op.x.shape[: op.axis], op.count, *op.x.shape[op.axis :]), value.width


def _take(op: ops.Take, value: Value) -> Made:
    need(
        0 <= op.flat.min() <= op.flat.max() < op.x.size,
        f"positions of {op.x!r} are out of its bounds",
    )
    return op.flat.shape, space(op)


def _join(op: ops.Join, value: Value) -> Made:
    need(
        len({part.shape[1:] for part in op.parts}) == 1,
        f"{op.parts} are joined along their first axes",
    )
    return (sum(part.shape[0] for part in op.parts), *op.parts[0].shape[1:]), space(op)


def _rotate(op: Rotate, value: Vector) -> Made:
    need(
        op.positions.shape == value.shape[-1:],
        f"positions of shape {op.positions.shape} for {value!r}",
    )
    return alike(op, value)


RULES: Rules = {
    ops.Gaussian: _gaussian,
    ops.Data: lambda op, value: (op.vectors.shape[:-1], Width(op.vectors.shape[-1])),
    ops.Normal: lambda op, value: (op.shape, None),
    ops.Constant: lambda op, value: (op.numbers.shape, None),
    ops.Root: lambda op, value: ((), None),
    ops.MatMul: _matmul,
    SteppedMatMul: _stepped,
    SteppedParameter: lambda op, value: (sizes(op, value), space(op)),
    ops.Mix: _mix,
    ops.Concat: lambda op, value: (sizes(op, value), op.x.shape[op.axis] * op.x.width),
    ops.Split: _split,
    ops.Dot: products,
    ops.Take: _take,
    ops.Join: _join,
    Rotate: _rotate,
    Pool: lambda op, value: ((op.count,), None),
}


# The operations that passes add


def _span(op: Span, value: Vector) -> Made:
    need(
        all(known.shape[:-1] == op.x.shape[:-1] for known in op.known),
        f"{op.x!r} with {op.known}",
    )
    return op.x.shape, space(op)


def _along(op: Coefficients, value: Scalar) -> Made:
    space(op)
    return (*op.x.shape, op.y.shape[-1]), None


def _extend(op: Append, value: Vector) -> Made:
    need(
        len({part.shape[:-1] for part in op.parts}) == 1,
        f"{op.parts} are set end to end along their last axes",
    )
    return (*op.parts[0].shape[:-1], sum(part.shape[-1] for part in op.parts)), space(
        op
    )


def _adjoint(op: AdjointCorrection, value: Scalar) -> Made:
    need(op.d.width == op.u.width, f"{op.d!r} with {op.u!r}")
    need(op.g.width == op.b.width, f"{op.g!r} with {op.b!r}")
    need(op.u.shape[-1] == op.b.shape[-1], f"{op.u!r} is made of {op.b!r}")
    return (*np.broadcast_shapes(op.d.shape, op.g.shape), op.b.shape[-1]), None


def _outer(op: Outer, value: Vector) -> Made:
    need(op.right.width == op.x.width, f"{op.right!r} with {op.x!r}")
    need(
        op.left.shape[-1] == op.right.shape[-1] == len(op.sizes),
        f"{op.left!r} with {op.right!r}",
    )
    return (
        max(len(v) for v in (op.left, op.right, op.x)),
        op.x.shape[-1],
    ), op.left.width


PASSES: Rules = {
    MaterialisedMatMul: lambda op, value: (
        (len(op.members), op.x.shape[-1]),
        op.weight.out_width,
    ),
    Outer: _outer,
    OuterProductSum: lambda op, value: (
        (max(len(op.left), *(s[0] for s in op.shapes)), op.shapes[1][1]),
        op.left.width,
    ),
    Fuse: lambda op, value: (op.x.shape, op.x.width),
    Span: _span,
    Coefficients: _along,
    Append: _extend,
    AdjointCorrection: _adjoint,
}
