"""A traced program as a graph: its values in order, its sources and names, and slicing.

Slicing moves indexing from the outputs towards the inputs: a program then computes only
what its outputs need. Going backwards, `demand` finds the entries of its inputs that an
operation needs; going forwards, `narrow` applies the operations to those entries only.
Demands are boxes, one set of positions per axis, so tokens and heads stay array axes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..._validate import Shape, real
from ..operations import _operation as ops
from ..operations._softmax import MASKED_SOFTMAX
from ._array import (
    Axes,
    Ints,
    Keep,
    Value,
    align_axes,
    around,
    box,
    composed_indices,
    every,
    is_all,
    kept,
    selects_all,
    within,
)
from ._parameters import Weight
from ._scalar import Scalar
from ._vector import Vector
from ._width import Width, bind_widths

Bools = npt.NDArray[np.bool_]


def topological_order(outputs: Iterable[Value], past: bool = True) -> list[Value]:
    """Every value that the outputs depend on, inputs first.

    Without `past`, the gradients that earlier optimiser steps used are left out.
    """
    done: dict[Value, None] = {}
    for output in outputs:
        # a stack, not recursion: a deep network would exceed Python's limit
        pending = [output]
        while pending:
            op = pending[-1].op
            inputs = op.inputs if past else ops.current_inputs(op)
            waiting = [x for x in inputs if x not in done]
            if waiting:
                pending += reversed(waiting)
            else:
                done[pending.pop()] = None
    return list(done)


def source_order(values: Iterable[Value]) -> dict[ops.Source, int]:
    """The number of each random source, in the order of first use.

    Seeds are derived from these numbers.
    """
    sources: dict[ops.Source, int] = {}
    for value in values:
        drawn = value.op.weight if isinstance(value.op, ops.Acting) else value.op
        if isinstance(drawn, Weight | ops.Gaussian | ops.Normal):
            sources.setdefault(drawn.source, len(sources))
    return sources


def widths_of(values: Iterable[Value]) -> list[Width]:
    """The widths that a program mentions, in order of first use."""
    widths: dict[Width, None] = {}
    for value in values:
        if isinstance(value.op, ops.Root):
            widths |= dict.fromkeys((*value.op.over, *value.op.under))
        if isinstance(value, Vector):
            widths[value.width] = None
    return list(widths)


def bind_names(
    values: Sequence[Value], bindings: Mapping[str, float], allow_inf: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Check the user's numbers for a program: its widths, then its hyperparameters."""
    names = {
        value.op.name for value in values if isinstance(value.op, ops.Hyperparameter)
    }
    missing = sorted(names - bindings.keys())
    if missing:
        raise ValueError(
            f"hyperparameter {', '.join(missing)} is not bound: give {missing[0]}=…, a"
            " finite number"
        )
    numbers = {
        name: real(number, name) for name, number in bindings.items() if name in names
    }
    widths = {name: number for name, number in bindings.items() if name not in names}
    return bind_widths(widths_of(values), widths, allow_inf), numbers


def transposed(values: Iterable[Value]) -> set[ops.Source]:
    """The sources whose matrices are also applied transposed."""
    return {weight.source for weight in weights_of(values) if weight.transposed}


def weights_of(values: Iterable[Value]) -> list[Weight]:
    """The weights applied in a program, one entry per application."""
    return [value.op.weight for value in values if isinstance(value.op, ops.Acting)]


def names_of(values: Sequence[Value]) -> dict[Value | ops.Source, str]:
    """A name for each value and weight.

    It is the user's name for a weight, or a letter for the kind and a number.
    """
    counts: Counter[str] = Counter()
    names: dict[Value | ops.Source, str] = {}
    sources = dict.fromkeys(w.source for w in weights_of(values))
    uses_of_name = Counter(source.name for source in sources)
    for source in sources:
        base = source.name or "W"
        counts[base] += 1
        if source.name and uses_of_name[source.name] == 1:
            names[source] = base
        else:
            names[source] = f"{base}_{counts[base]}"
    for value in values:
        letter = _letter(value)
        counts[letter] += 1
        names[value] = f"{letter}{counts[letter]}"
    return names


def _letter(value: Value) -> str:
    """The letter that names values of this kind."""
    if isinstance(value.op, ops.Dot):
        return "p" if value.op.power == 0.5 else "m"
    if value.op.letter:
        return value.op.letter
    return "a" if isinstance(value, Scalar) else "u"


def compose_indices(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs of a program in which an index of an index is a single index.

    A traced program keeps both, because its user may hold the inner one and
    differentiate with respect to it. Every other reading of the program begins with
    this rewrite.
    """
    new: dict[Value, Value] = {}  # only values that change
    for value in topological_order(outputs):
        inputs = [new.get(x, x) for x in value.op.inputs]
        if isinstance(value.op, ops.Take):
            rewritten = _index_of(value, inputs[0], value.op.flat)
        else:
            rewritten = value.with_inputs(*inputs)
        if rewritten is not value:
            new[value] = rewritten
    return [new.get(output, output) for output in outputs]


def _index_of(value: Value, x: Value, flat: Ints) -> Value:
    """An index, with x in place of what it indexes."""
    if x is value.op.inputs[0] and not isinstance(x.op, ops.Take):
        return value
    inner = x.op
    if isinstance(inner, ops.Take):
        x, flat = inner.x, inner.flat.ravel()[flat]
    return x if selects_all(x, flat) else replace(value, op=ops.Take(x, flat))


def indexed_value(x: Value, values: Container[Value]) -> tuple[Value, Ints] | None:
    """The value among these that x is, or is an index of, and the positions of x in it.

    None if there is none.
    """
    positions = np.arange(x.size).reshape(x.shape)
    while x not in values:
        if not isinstance(x.op, ops.Take):
            return None
        positions = x.op.flat.ravel()[positions]
        x = x.op.x
    return x, positions


def narrow(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs, from a program that computes only what they need."""
    composed = compose_indices(outputs)
    with composed_indices():
        return narrow_with_origins(composed, topological_order(composed))[0]


def narrow_with_origins(
    outputs: Sequence[Value], values: Sequence[Value]
) -> tuple[list[Value], dict[Value, Value]]:
    """Narrow a program with these values, in topological order.

    Returns the new outputs, and the original of each value that they depend on.
    """
    demands = _demands(outputs, values)
    narrowing = _Narrowing(demands)
    origins: dict[Value, Value] = {}
    for value in values:
        if value in demands.keeps:
            origins.setdefault(narrowing.narrow(value), value)
    return [narrowing.new[output] for output in outputs], origins


class _Demands(NamedTuple):
    """The entries of each value to compute, and of its inputs that these need."""

    keeps: dict[Value, Keep]
    needs: dict[Value, list[tuple[Value, Keep]]]


def _demands(outputs: Sequence[Value], values: Sequence[Value]) -> _Demands:
    keeps = {output: every(output.shape) for output in outputs}
    needs: dict[Value, list[tuple[Value, Keep]]] = {}
    for value in reversed(values):
        if value not in keeps:
            continue
        keeps[value], needs[value] = demand(value, keeps[value])
        for x, need in needs[value]:
            if keeps.setdefault(x, need) is not need:
                union = tuple(map(operator.or_, keeps[x], need))
                keeps[x] = every(x.shape) if is_all(union) else union
    return _Demands(keeps, needs)


class _Narrowing:
    """Values restricted to the entries that are needed; `new` has those done so far."""

    def __init__(self, demands: _Demands) -> None:
        self.keeps, self.needs = demands
        self.new: dict[Value, Value] = {}
        # Parts of new values, so that two uses that need the same entries share a part.
        self.parts: dict[tuple[Value, bytes], Value] = {}

    def narrow(self, value: Value) -> Value:
        """Restrict a value whose inputs are done."""
        op, keep = value.op, self.keeps[value]
        inputs = [self._part(x, need) for x, need in self.needs[value]]
        shape = value.shape
        if keep is not every(value.shape):
            shape = tuple(int(axis.sum()) for axis in keep)
        same_inputs = len(inputs) == len(op.inputs) and all(
            map(operator.is_, inputs, op.inputs)
        )
        if shape == value.shape and same_inputs:
            result = value
        elif isinstance(op, ops.Take):
            _, input_box = self.needs[value][0]
            positions = within(kept(op.flat, keep).ravel(), op.x.shape, input_box)
            result = inputs[0].take(positions.reshape(shape))
        elif isinstance(op, ops.Join) and len(inputs) == 1:
            result = inputs[0]
        else:
            new_op = op.at(keep).with_inputs(*inputs)
            result = replace(value, op=new_op, shape=shape)
        self.new[value] = result
        return result

    def _part(self, x: Value, need: Keep) -> Value:
        """The entries of x that one use needs, among those that all uses need."""
        if need is self.keeps[x]:  # the usual case
            return self.new[x]
        box_in_new = tuple(
            needed[computed]
            for needed, computed in zip(need, self.keeps[x], strict=True)
        )
        key = x, b"".join(axis.tobytes() for axis in box_in_new)
        if key not in self.parts:
            new = self.new[x]
            self.parts[key] = new if is_all(box_in_new) else new[box(box_in_new)]
        return self.parts[key]


def demand(value: Value, keep: Keep) -> tuple[Keep, list[tuple[Value, Keep]]]:
    """The entries to compute if these are needed, and what they need of each input.

    More are computed than needed if an axis cannot be sliced.
    """
    whole = keep is every(value.shape)  # the usual case
    if not whole:
        unsliced = value.op.whole(value.ndim)
        keep = tuple(
            np.ones_like(axis) if k in unsliced else axis for k, axis in enumerate(keep)
        )
    needs: list[tuple[Value, Keep]] = []
    match value.op:
        case ops.Take(x, flat):
            needs.append((x, around(kept(flat, keep).ravel(), x.shape)))
        case ops.Join(parts) if not whole:
            for part, first in zip(parts, _split(keep[0], parts), strict=True):
                if first.any():
                    needs.append((part, (first, *keep[1:])))
        case op if whole:
            return keep, [(x, every(x.shape)) for x in op.inputs]
        case op:
            for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
                needs.append((x, _needed_box(x.shape, axes, keep)))
    return keep, [(x, every(x.shape) if is_all(need) else need) for x, need in needs]


def _needed_box(shape: Shape, axes: Axes, keep: Keep) -> Keep:
    """The entries of an input of this shape that a box of the result needs."""
    return tuple(
        np.ones(size, bool) if axis is None or size == 1 else keep[axis]
        for size, axis in zip(shape, axes, strict=True)
    )


def _split(joined: Bools, parts: Sequence[Value]) -> list[Bools]:
    """Split an array along the parts of a Join."""
    return np.split(joined, np.cumsum([len(part) for part in parts])[:-1])


def asked_entries(outputs: Sequence[Value]) -> dict[Value, Bools]:
    """For each value, a mask of the entries that some output depends on."""
    values = topological_order(outputs)
    asked = {value: np.zeros(value.shape, dtype=bool) for value in values}
    for output in outputs:
        asked[output][...] = True
    for value in reversed(values):
        mask = asked[value]
        match value.op:
            case ops.Take(x, flat):
                asked[x].reshape(-1)[flat[mask]] = True
            case ops.Join(parts):
                for part, part_mask in zip(parts, _split(mask, parts), strict=True):
                    asked[part] |= part_mask
            case ops.Apply(f, (p, Scalar(op=ops.Constant(allowed))), 1) if (
                f is MASKED_SOFTMAX
            ):
                scores = _asked_scores(mask, allowed)
                asked[p] |= _gathered(scores, align_axes(p.ndim, value.ndim), p.shape)
            case op:
                for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
                    asked[x] |= _gathered(mask, axes, x.shape)
    return asked


def _asked_scores(mask: Bools, allowed: npt.NDArray[np.float64]) -> Bools:
    """The scores that these entries of a masked softmax depend on."""
    live = np.broadcast_to(allowed > 0, mask.shape)  # a masked entry is 0
    row_is_asked = (mask & live).any(axis=-1, keepdims=True)
    has_a_choice = live.sum(axis=-1, keepdims=True) > 1  # the only entry of a row is 1
    scores: Bools = row_is_asked & live & has_a_choice
    return scores


def _gathered(asked: Bools, axes: Axes, shape: Shape) -> Bools:
    """Reduce a mask of the result to one of an input with this shape."""
    missing = tuple(k for k in range(asked.ndim) if k not in axes)
    read_whole = tuple(k for k, axis in enumerate(axes) if axis is None)
    singleton = tuple(k for k, size in enumerate(shape) if size == 1)
    needed = np.expand_dims(np.any(asked, axis=missing), read_whole)
    return np.broadcast_to(np.any(needed, axis=singleton, keepdims=True), shape)
