"""A traced program as a graph: its values in order, its sources and names, and slicing.

Slicing moves indexing from the outputs towards the inputs: a program then computes only
what its outputs need. Going backwards, `demand` finds the entries of its inputs that an
operation needs; going forwards, `narrow` applies the operations to those entries only.
Demands are boxes, a set of indices along each axis, so tokens and heads stay array
axes.
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
    Box,
    Ints,
    Value,
    align_axes,
    box_index,
    box_shape,
    composed_indices,
    entries_in,
    has_every_position,
    is_whole,
    positions_in_box,
    selects_all,
    smallest_box,
    whole_box,
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
    ordered: dict[Value, None] = {}
    for output in outputs:
        # a stack, not recursion: a deep network would exceed Python's limit
        pending = [output]
        while pending:
            op = pending[-1].op
            inputs = op.inputs if past else ops.current_inputs(op)
            missing = [x for x in inputs if x not in ordered]
            if missing:
                pending += reversed(missing)
            else:
                ordered[pending.pop()] = None
    return list(ordered)


def source_order(values: Iterable[Value]) -> dict[ops.Source, int]:
    """The number of each random source, in the order of first use.

    Seeds are derived from these numbers.
    """
    sources: dict[ops.Source, int] = {}
    for value in values:
        random_object: object = value.op
        if isinstance(value.op, ops.Acting):
            random_object = value.op.weight
        if isinstance(random_object, Weight | ops.Gaussian | ops.Normal):
            sources.setdefault(random_object.source, len(sources))
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
    hyperparameter_names = {
        value.op.name for value in values if isinstance(value.op, ops.Hyperparameter)
    }
    missing = sorted(hyperparameter_names - bindings.keys())
    if missing:
        raise ValueError(
            f"hyperparameter {', '.join(missing)} is not bound: give {missing[0]}=…, a"
            " finite number"
        )
    hyperparameters: dict[str, float] = {}
    widths: dict[str, float] = {}
    for name, number in bindings.items():
        if name in hyperparameter_names:
            hyperparameters[name] = real(number, name)
        else:
            widths[name] = number
    return bind_widths(widths_of(values), widths, allow_inf), hyperparameters


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
    counts: Counter[str] = Counter()  # how often a letter or a name has been used
    names: dict[Value | ops.Source, str] = {}
    sources = dict.fromkeys(weight.source for weight in weights_of(values))
    uses_of_name = Counter(source.name for source in sources)
    for source in sources:
        name = source.name or "W"
        counts[name] += 1
        is_unique = source.name and uses_of_name[source.name] == 1
        names[source] = name if is_unique else f"{name}_{counts[name]}"
    for value in values:
        letter = _letter(value)
        counts[letter] += 1
        names[value] = f"{letter}{counts[letter]}"
    return names


def _letter(value: Value) -> str:
    """The letter that names values of this kind."""
    if isinstance(value.op, ops.Dot):
        is_score = value.op.power == 0.5
        return "p" if is_score else "m"
    if value.op.letter:
        return value.op.letter
    return "a" if isinstance(value, Scalar) else "u"


def compose_indices(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs of a program in which an index of an index is a single index.

    A traced program keeps both, because its user may hold the first index and
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
    """The same index as `value`, but of x."""
    if x is value.op.inputs[0] and not isinstance(x.op, ops.Take):
        return value
    if isinstance(x.op, ops.Take):
        flat = x.op.flat.ravel()[flat]
        x = x.op.x
    if selects_all(x, flat):
        return x
    return replace(value, op=ops.Take(x, flat))


def indexed_value(x: Value, values: Container[Value]) -> tuple[Value, Ints] | None:
    """The value among these that x is, or is an index of, and the positions of x in it.

    For x = y[2:4] and `values` with y, it is (y, [2, 3]). None if there is none.
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

    Returns the new outputs, and the originals: for each restriction of a value of the
    program, that value. Slices that narrowing adds between two restrictions are no key.
    If two values have the same restriction, the original is the first of them: for
    example, a Join of which one part is needed becomes that part.
    """
    demands = _demands(outputs, values)
    narrowing = _Narrowing(demands)
    originals: dict[Value, Value] = {}
    for value in values:
        if value not in demands.boxes:  # no output needs it
            continue
        restriction = narrowing.narrow(value)
        if restriction not in originals:
            originals[restriction] = value
    return [narrowing.new[output] for output in outputs], originals


class _Demands(NamedTuple):
    """The entries of each value to compute, and of its inputs that these need."""

    boxes: dict[Value, Box]
    input_boxes: dict[Value, list[tuple[Value, Box]]]


def _demands(outputs: Sequence[Value], values: Sequence[Value]) -> _Demands:
    """Go backwards through the values: each needs entries of its inputs."""
    boxes = {output: whole_box(output.shape) for output in outputs}
    input_boxes: dict[Value, list[tuple[Value, Box]]] = {}
    for value in reversed(values):
        if value not in boxes:  # no output needs it
            continue
        boxes[value], input_boxes[value] = demand(value, boxes[value])
        for x, box in input_boxes[value]:
            box_so_far = boxes.setdefault(x, box)
            if box_so_far is not box:
                # the smallest box around both: along each axis, the entries of either
                axes = [a | b for a, b in zip(box_so_far, box, strict=True)]
                boxes[x] = _normalised(tuple(axes))
    return _Demands(boxes, input_boxes)


def _normalised(box: Box) -> Box:
    """The same box; if it is the whole array, the shared tuple of `whole_box`."""
    if is_whole(box):
        return whole_box(tuple(len(axis) for axis in box))
    return box


class _Narrowing:
    """Values restricted to the entries that are needed.

    `new` maps each value that is done to its restriction.
    """

    def __init__(self, demands: _Demands) -> None:
        self.boxes, self.input_boxes = demands
        self.new: dict[Value, Value] = {}
        # Slices of new values: two uses that need the same entries share a slice.
        self._slices: dict[tuple[Value, bytes], Value] = {}

    def narrow(self, value: Value) -> Value:
        """Restrict a value whose inputs are done, and record the result in `new`."""
        box = self.boxes[value]
        inputs = [self._slice(x, input_box) for x, input_box in self.input_boxes[value]]
        shape = value.shape
        if box is not whole_box(value.shape):
            shape = box_shape(box)
        same_number = len(inputs) == len(value.op.inputs)
        same_inputs = same_number and all(map(operator.is_, inputs, value.op.inputs))
        result = value
        if shape != value.shape or not same_inputs:
            result = self._restricted(value, inputs, shape)
        self.new[value] = result
        return result

    def _restricted(self, value: Value, inputs: Sequence[Value], shape: Shape) -> Value:
        """The entries of a value that are needed, from restricted inputs."""
        op = value.op
        box = self.boxes[value]
        if isinstance(op, ops.Take):
            ((_, input_box),) = self.input_boxes[value]
            if is_whole(box) and is_whole(input_box):
                return value.with_inputs(inputs[0])
            flat = entries_in(op.flat, box).ravel()
            positions = positions_in_box(flat, op.x.shape, input_box)
            return inputs[0].take(positions.reshape(shape))
        if isinstance(op, ops.Join) and len(inputs) == 1:
            return inputs[0]
        new_op = op.restricted_to(box).with_inputs(*inputs)
        return replace(value, op=new_op, shape=shape)

    def _slice(self, x: Value, needed: Box) -> Value:
        """The entries of x that one use needs, among those that all uses need."""
        computed = self.boxes[x]
        if needed is computed:  # the usual case
            return self.new[x]
        # along each axis, which of the computed indices are needed
        masks = []
        for needed_axis, computed_axis in zip(needed, computed, strict=True):
            masks.append(needed_axis[computed_axis])
        box_in_new = tuple(masks)
        key = x, b"".join(mask.tobytes() for mask in masks)
        if key not in self._slices:
            new = self.new[x]
            if not is_whole(box_in_new):
                new = new[box_index(box_in_new)]
            self._slices[key] = new
        return self._slices[key]


def _reads_all(op: ops.Operation) -> bool:
    """Whether an operation reads all entries of its inputs to compute all its own."""
    if isinstance(op, ops.Take):
        return has_every_position(op.flat, op.x.shape)
    return True


def demand(value: Value, box: Box) -> tuple[Box, list[tuple[Value, Box]]]:
    """The entries of a value to compute if those in a box are needed.

    More are computed than needed if an axis cannot be sliced. The second result are
    pairs of an input and the box of its entries that these need; an input of a Join of
    which nothing is needed is left out.
    """
    op = value.op
    needs_all = box is whole_box(value.shape)  # the usual case
    if needs_all and _reads_all(op):
        return box, [(x, whole_box(x.shape)) for x in op.inputs]

    if not needs_all:
        box = _with_whole_axes(box, op.unsliceable_axes(value.ndim))
    input_boxes: list[tuple[Value, Box]] = []
    if isinstance(op, ops.Take):
        flat = entries_in(op.flat, box).ravel()
        input_boxes.append((op.x, smallest_box(flat, op.x.shape)))
    elif isinstance(op, ops.Join):
        first_axis, *other_axes = box
        for x, along_x in zip(op.parts, _split(first_axis, op.parts), strict=True):
            if along_x.any():
                input_boxes.append((x, (along_x, *other_axes)))
    else:
        axes_of_inputs = op.reads(value.ndim)
        for x, axes in zip(op.inputs, axes_of_inputs, strict=True):
            input_boxes.append((x, _input_box(x.shape, axes, box)))
    return box, [(x, _normalised(input_box)) for x, input_box in input_boxes]


def _with_whole_axes(box: Box, whole_axes: Sequence[int]) -> Box:
    """The box that contains another one and has all indices of some axes."""
    widened = list(box)
    for k in whole_axes:
        widened[k] = np.ones_like(box[k])
    return tuple(widened)


def _input_box(shape: Shape, axes: Axes, box: Box) -> Box:
    """The entries of an input of this shape that a box of the result needs.

    `axes` are those that the operation reads (see `Operation.reads`).
    """
    input_box = []
    for size, axis in zip(shape, axes, strict=True):
        if axis is None or size == 1:
            input_box.append(np.ones(size, dtype=bool))
        else:
            input_box.append(box[axis])
    return tuple(input_box)


def _split(joined: Bools, values: Sequence[Value]) -> list[Bools]:
    """Split an array with the first axis of a Join of these values, by value."""
    ends = np.cumsum([len(value) for value in values])
    return np.split(joined, ends[:-1])


def asked_entries(outputs: Sequence[Value]) -> dict[Value, Bools]:
    """For each value, a mask of the entries that some output depends on."""
    values = topological_order(outputs)
    masks = {value: np.zeros(value.shape, dtype=bool) for value in values}
    for output in outputs:
        masks[output][...] = True
    for value in reversed(values):
        mask = masks[value]
        match value.op:
            case ops.Take(x=x, flat=flat):
                masks[x].reshape(-1)[flat[mask]] = True
            case ops.Join(parts=joined):
                for x, mask_of_x in zip(joined, _split(mask, joined), strict=True):
                    masks[x] |= mask_of_x
            # the softmax along the last axis of scores p, of which a fixed mask allows
            # some: only these are needed
            case ops.Apply(
                f=f, scalars=(p, Scalar(op=ops.Constant(numbers=allowed))), axes=1
            ) if f is MASKED_SOFTMAX:
                scores = _asked_scores(mask, allowed)
                last_axes = align_axes(p.ndim, value.ndim)
                masks[p] |= _mask_of_input(scores, last_axes, p.shape)
            case op:
                for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
                    masks[x] |= _mask_of_input(mask, axes, x.shape)
    return masks


def _asked_scores(mask: Bools, allowed: npt.NDArray[np.float64]) -> Bools:
    """The scores that the marked entries of a masked softmax depend on.

    All have the shape of the softmax; `allowed` is positive at unmasked entries.
    """
    # a masked entry is 0, and the only unmasked entry of a row is 1, whatever the
    # scores; other entries depend on all unmasked scores of their row
    is_unmasked = np.broadcast_to(allowed > 0, mask.shape)
    row_is_asked = (mask & is_unmasked).any(axis=-1, keepdims=True)
    row_has_a_choice = is_unmasked.sum(axis=-1, keepdims=True) > 1
    scores: Bools = is_unmasked & row_is_asked & row_has_a_choice
    return scores


def _mask_of_input(mask: Bools, axes: Axes, shape: Shape) -> Bools:
    """The entries of an input of this shape that marked entries of the result need.

    `axes` has, for each axis of the input, the axis of the result that it becomes, and
    None if it is read whole (see `Operation.reads`). For example, in a product a x of a
    matrix and an array of vectors, y_i = Σ_j a_ij x_j, a has the axes (0, None): if
    only y_1 is needed, so is the row a_1j for all j.
    """
    axes_in_common: list[int] = []  # of the result, in the order of the input's axes
    axes_read_whole: list[int] = []  # of the input
    for k, axis in enumerate(axes):
        if axis is None:
            axes_read_whole.append(k)
        else:
            axes_in_common.append(axis)
    axes_of_result_alone = [k for k in range(mask.ndim) if k not in axes_in_common]

    # an entry is needed if any entry of the result that reads it is
    ordered = np.transpose(mask, (*axes_in_common, *axes_of_result_alone))
    last_axes = tuple(range(len(axes_in_common), mask.ndim))
    is_needed = np.any(ordered, axis=last_axes)
    # axes that are read whole come in with size 1, and broadcast below
    aligned = np.expand_dims(is_needed, tuple(axes_read_whole))
    # an axis of size 1 may be repeated in the result: all repetitions read one entry
    axes_of_size_1 = tuple([k for k, size in enumerate(shape) if size == 1])
    merged = np.any(aligned, axis=axes_of_size_1, keepdims=True)
    return np.broadcast_to(merged, shape)
