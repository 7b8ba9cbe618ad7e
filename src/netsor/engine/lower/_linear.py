"""Linear operations: they act on coordinates, samples and supports alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...language._operation import Apply, Constant, Join, Mix, Scale, Take
from ...language._score import MASKED_SOFTMAX
from ...language._value import Scalar, Value, Vector
from .._error import ExactError
from .._plan import Register
from ._state import Bools, Ints, Lowered, State, Turned


def linear(
    s: State,
    value: Value,
    inputs: Sequence[Value],
    act: Callable[..., Register],
    lined: bool = False,
    by: Scalar | None = None,
) -> Lowered:
    """A linear operation acts on coordinates, samples and supports alike; `by` are its coefficients."""
    build = s.build
    given = [s.vectors[x] for x in inputs]

    def acted(arrays: Sequence[Register]) -> Register:
        width = max(a.shape[-1] for a in arrays)
        fitted = [build.fitted(a, width) for a in arrays]
        if lined:
            fitted = [s.lined(a, x.ndim, value.ndim) for a, x in zip(fitted, inputs, strict=True)]
        return act(*fitted)

    turned = _turned(value, given)
    lead = acted([x.lead for x in given])
    sample = None
    if any(x.sample is not None for x in given):
        sample = acted([x.sample or build.constant(np.zeros((*x.lead.shape[:-1], 1))) for x in given])
    if all(x.support is None for x in given):
        return Lowered(lead, sample)
    support = _marked(s, value, inputs, [x.support for x in given], lead, acted, by, weak=True)
    strong = _marked(s, value, inputs, [x.strong for x in given], lead, acted, by, weak=False)
    return Lowered(lead, sample, support, strong, turned, min(x.start for x in given))


def corrected(s: State, value: Vector, a: Scalar, x: Vector) -> Lowered:
    """n^(−1/2) Σ_j a_ij x_j; at infinite width it is 0, but for what a score would see of it."""
    weights = s.lined(s.scalars[a], a.ndim, value.ndim + 1)
    width = s.blocks[value] * s.widths[value]
    by = 0.0 if math.isinf(width) else width**-0.5
    made = linear(s, value, [x], lambda v: s.build.step("scale", mixed(s, weights, v), by=by), lined=True)
    return made if made.strong is None else replace(made, strong=np.zeros_like(made.strong))


def _marked(
    s: State,
    value: Value,
    inputs: Sequence[Value],
    given: Sequence[Bools | None],
    lead: Register,
    acted: Callable[[Sequence[Register]], Register],
    by: Scalar | None,
    weak: bool,
) -> Bools:
    """Along which directions there can be coordinates, from where those of the inputs are."""
    build, front = s.build, lead.shape[:-1]
    marks = [
        build.constant(mark if mark is not None else np.zeros((*s.vectors[x].lead.shape[:-1], 0)))
        for x, mark in zip(inputs, given, strict=True)
    ]
    if by is None:
        found = acted(marks)
    else:
        mark, zero = s.lined(marks[0], inputs[0].ndim, value.ndim), zeros_of(by)
        limit = s.scalars[by].value
        if not weak and limit is not None:  # coefficients that tend to 0
            zero = zero | (np.asarray(limit)[0] == 0)
        some = build.constant(~zero)
        if isinstance(value.op, Mix):
            found = mixed(s, s.lined(some, by.ndim, value.ndim + 1), mark)
        else:
            some = s.lined(some, by.ndim, value.ndim)
            found = build.step("multiply", mark, build.reshape(some, *some.shape, 1, 1))
    marked = np.asarray(found.value)[0] > 0
    return np.broadcast_to(marked, (*front, marked.shape[-1]))


def _turned(value: Value, given: Sequence[Lowered]) -> Turned | None:
    """The positions of vectors that were turned, which indexing and scaling keep; there is none of a sum of them."""
    found = [x.turned for x in given if x.turned is not None]
    if not found:
        return None
    first, parts = found[0], [t.positions for t in found]
    same = len({t.rule for t in found}) == 1 and len(found) == len(given)
    match value.op:
        case Take(_, flat):
            return replace(first, positions=parts[0].ravel()[flat])
        case Join() if same:
            return replace(first, positions=np.concatenate(parts))
        case Scale():
            return replace(first, positions=np.broadcast_to(parts[0], value.shape))
    raise ExactError(value, "a combination of vectors turned by rotary positions, at width inf")


def mixed(s: State, weights: Register, v: Register) -> Register:
    """Σ_j a[…, i, j] v[…, j, block, direction]."""
    *front, blocks, directions = v.shape
    made = s.build.step("product", weights, s.build.reshape(v, *front, blocks * directions))
    return s.build.reshape(made, *made.shape[:-1], blocks, directions)


def concatenated(s: State, a: Register, axis: int) -> Register:
    """The values along an axis become blocks of one."""
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(len(order) - 2, axis)
    made = s.build.step("permute", a, axes=tuple(order)) if order != sorted(order) else a
    *front, count, blocks, directions = made.shape
    return s.build.reshape(made, *front, count * blocks, directions)


def taken(s: State, a: Register, ndim: int, flat: Ints) -> Register:
    """The entries at flat positions among the first `ndim` axes."""
    rest = a.shape[ndim:]
    entries = s.build.reshape(a, math.prod(a.shape[:ndim]), *rest)
    return s.build.reshape(s.build.taken(entries, flat.ravel(), axis=0), *flat.shape, *rest)


def zeros_of(value: Scalar) -> Bools:
    """The scalars that are 0 by the program, at every width: a number that only tends to 0 counts in a score."""
    match value.op:
        case Constant(numbers):
            return np.asarray(numbers == 0)
        case Take(Scalar() as x, flat):
            return zeros_of(x).ravel()[flat]
        case Join(parts):
            return np.concatenate([zeros_of(part) for part in parts if isinstance(part, Scalar)])
        case Apply(f, (_, Scalar(op=Constant(allowed))), 1) if f is MASKED_SOFTMAX:
            return np.broadcast_to(allowed == 0, value.shape)
    return np.zeros(value.shape, dtype=bool)
