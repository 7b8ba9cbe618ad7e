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

import numpy as np
import numpy.typing as npt

from .._validate import Shape, real
from . import _operation as ops
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
from ._softmax import MASKED_SOFTMAX
from ._vector import Vector
from ._width import Width, bind_widths

Bools = npt.NDArray[np.bool_]


def topological_order(outputs: Iterable[Value], past: bool = True) -> list[Value]:
    """Every value that the outputs depend on, inputs first; without `past`, optimiser
    steps count as given.
    """
    done: dict[Value, None] = {}
    for output in outputs:
        # a stack, not recursion: a deep network would exceed Python's limit
        pending = [output]
        while pending:
            op = pending[-1].op
            waiting = [
                x
                for x in (op.inputs if past else ops.current_inputs(op))
                if x not in done
            ]
            if waiting:
                pending += reversed(waiting)
            else:
                done[pending.pop()] = None
    return list(done)


def source_order(values: Iterable[Value]) -> dict[ops.Source, int]:
    """The random sources in the order of first use, from which their seeds are
    derived.
    """
    sources: dict[ops.Source, int] = {}
    for value in values:
        of = value.op.weight if isinstance(value.op, ops.Acting) else value.op
        if isinstance(of, Weight | ops.Gaussian | ops.Normal):
            sources.setdefault(of.source, len(sources))
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
    values: Sequence[Value], given: Mapping[str, float], allow_inf: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Check the user's values for the widths and hyperparameters of a program, and
    return both.
    """
    names = {
        value.op.name for value in values if isinstance(value.op, ops.Hyperparameter)
    }
    missing = sorted(names - given.keys())
    if missing:
        raise ValueError(
            f"hyperparameter {', '.join(missing)} is not bound: give {missing[0]}=…, a"
            " finite number"
        )
    numbers = {
        name: real(number, name) for name, number in given.items() if name in names
    }
    widths = {name: number for name, number in given.items() if name not in names}
    return bind_widths(widths_of(values), widths, allow_inf), numbers


def transposed(values: Iterable[Value]) -> set[ops.Source]:
    """The sources whose matrices are also applied transposed."""
    return {weight.source for weight in weights_of(values) if weight.transposed}


def weights_of(values: Iterable[Value]) -> list[Weight]:
    """The weights applied in a program, one entry per application."""
    return [value.op.weight for value in values if isinstance(value.op, ops.Acting)]


def names_of(values: Sequence[Value]) -> dict[Value | ops.Source, str]:
    """A name for each value and weight: the user's name, or a letter for its kind and a
    number.
    """
    counts: Counter[str] = Counter()
    names: dict[Value | ops.Source, str] = {}
    sources = dict.fromkeys(w.source for w in weights_of(values))
    given = Counter(source.name for source in sources)
    for source in sources:
        base = source.name or "W"
        counts[base] += 1
        names[source] = (
            base
            if given[source.name] == 1 and source.name
            else f"{base}_{counts[base]}"
        )
    for value in values:
        letter = value.op.letter or ("a" if isinstance(value, Scalar) else "u")
        if isinstance(value.op, ops.Dot):
            letter = "p" if value.op.power == 0.5 else "m"
        counts[letter] += 1
        names[value] = f"{letter}{counts[letter]}"
    return names


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
            made = _index_of(value, inputs[0], value.op.flat)
        else:
            made = value.with_inputs(*inputs)
        if made is not value:
            new[value] = made
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
    """The value among these that x is, or is an index of, and the positions of x in it;
    None if there is none.
    """
    places = np.arange(x.size).reshape(x.shape)
    while x not in values:
        if not isinstance(x.op, ops.Take):
            return None
        places = x.op.flat.ravel()[places]
        x = x.op.x
    return x, places


def narrow(outputs: Sequence[Value]) -> list[Value]:
    """The same outputs, from a program that computes only what they need."""
    composed = compose_indices(outputs)
    with composed_indices():
        return narrow_with_origins(composed, topological_order(composed))[0]


def narrow_with_origins(
    outputs: Sequence[Value], values: Sequence[Value]
) -> tuple[list[Value], dict[Value, Value]]:
    """The same outputs of a program with these values, narrowed, and the original of
    each value they then need.
    """
    keeps = {output: every(output.shape) for output in outputs}
    needs: dict[Value, list[tuple[Value, Keep]]] = {}
    for value in reversed(values):
        if value in keeps:
            keeps[value], needs[value] = demand(value, keeps[value])
            for x, need in needs[value]:
                if keeps.setdefault(x, need) is not need:
                    both = tuple(map(operator.or_, keeps[x], need))
                    keeps[x] = every(x.shape) if is_all(both) else both
    new: dict[Value, Value] = {}
    parts: dict[tuple[Value, bytes], Value] = {}  # so that two uses share a part

    def part(x: Value, keep: Keep) -> Value:
        """The entries of x that one use needs, taken from those that all uses need."""
        if keep is keeps[x]:  # the usual case
            return new[x]
        among = tuple(axis[kept] for axis, kept in zip(keep, keeps[x], strict=True))
        key = x, b"".join(axis.tobytes() for axis in among)
        if key not in parts:
            parts[key] = new[x] if is_all(among) else new[x][box(among)]
        return parts[key]

    made_from: dict[Value, Value] = {}
    for value in (value for value in values if value in keeps):
        keep, op, inputs = (
            keeps[value],
            value.op,
            [part(x, need) for x, need in needs[value]],
        )
        shape = (
            value.shape
            if keep is every(value.shape)
            else tuple(int(axis.sum()) for axis in keep)
        )
        if (
            shape == value.shape
            and len(inputs) == len(op.inputs)
            and all(map(operator.is_, inputs, op.inputs))
        ):
            new[value] = value
        elif isinstance(op, ops.Take):
            places = within(kept(op.flat, keep).ravel(), op.x.shape, needs[value][0][1])
            new[value] = inputs[0].take(places.reshape(shape))
        elif isinstance(op, ops.Join) and len(inputs) == 1:
            new[value] = inputs[0]
        else:
            new[value] = replace(
                value, op=op.at(keep).with_inputs(*inputs), shape=shape
            )
        made_from.setdefault(new[value], value)
    return [new[output] for output in outputs], made_from


def demand(value: Value, keep: Keep) -> tuple[Keep, list[tuple[Value, Keep]]]:
    """The entries to compute if these are needed (some axes cannot be sliced), and what
    they need of each input.
    """
    whole = keep is every(value.shape)  # the usual case
    if not whole:
        computed = value.op.whole(value.ndim)
        keep = tuple(
            np.ones_like(axis) if k in computed else axis for k, axis in enumerate(keep)
        )
    needs: list[tuple[Value, Keep]] = []
    match value.op:
        case ops.Take(x, flat):
            needs.append((x, around(kept(flat, keep).ravel(), x.shape)))
        case ops.Join(parts) if not whole:
            firsts = zip(parts, _split(keep[0], parts), strict=True)
            needs += [
                (part, (first, *keep[1:])) for part, first in firsts if first.any()
            ]
        case op if whole:
            return keep, [(x, every(x.shape)) for x in op.inputs]
        case op:
            for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
                sizes = zip(x.shape, axes, strict=True)
                needs.append(
                    (
                        x,
                        tuple(
                            np.ones(n, bool) if k is None or n == 1 else keep[k]
                            for n, k in sizes
                        ),
                    )
                )
    return keep, [(x, every(x.shape) if is_all(need) else need) for x, need in needs]


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
        own = asked[value]
        match value.op:
            case ops.Take(x, flat):
                asked[x].reshape(-1)[flat[own]] = True
            case ops.Join(parts):
                for part, some in zip(parts, _split(own, parts), strict=True):
                    asked[part] |= some
            case ops.Apply(f, (p, Scalar(op=ops.Constant(allowed))), 1) if (
                f is MASKED_SOFTMAX
            ):
                # a masked entry is 0, the only entry of a row is 1
                live = np.broadcast_to(allowed > 0, value.shape)
                rows = (
                    (own & live).any(axis=-1, keepdims=True)
                    & live
                    & (live.sum(axis=-1, keepdims=True) > 1)
                )
                asked[p] |= _gathered(rows, align_axes(p.ndim, value.ndim), p.shape)
            case op:
                for x, axes in zip(op.inputs, op.reads(value.ndim), strict=True):
                    asked[x] |= _gathered(own, axes, x.shape)
    return asked


def _gathered(asked: Bools, axes: Axes, shape: Shape) -> Bools:
    """Reduce a mask of the result to one of an input with this shape, along the axes
    that the input has.
    """
    needed = np.any(asked, axis=tuple(k for k in range(asked.ndim) if k not in axes))
    needed = np.expand_dims(
        needed, tuple(k for k, axis in enumerate(axes) if axis is None)
    )
    once = tuple(k for k, size in enumerate(shape) if size == 1)
    return np.broadcast_to(np.any(needed, axis=once, keepdims=True), shape)
