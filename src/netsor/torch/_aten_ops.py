"""The table of ATen operations: how the reader computes each one.

`OPS` maps the name of an operation to a function of a `Call`, of its first argument,
and of those of its other arguments that the function names; they have the names of
torch's own schema. The functions here are products and rearrangements;
`_aten_arithmetic` has those that act on entries.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from .. import language as ns
from .._array_api import Floats
from .._validate import Shape
from ._aten_arithmetic import (
    ARITHMETIC,
    MASKED,
    NEVER,
    VALUES,
    Call,
    Tensor,
    add,
    kind,
    multiply,
    numbers,
)
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, same_vectors
from ._random_parameters import Random

# Products


def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """x Wᵀ + b."""
    refuse_if(
        not isinstance(weight, Random),
        f"multiplies by {kind(weight)}: a matrix must be a parameter",
    )
    x = call.vectors(x)
    refuse_if(
        not x.last,
        "a matrix acts on an axis that does not hold the coordinates of vectors",
    )
    product = call.draws.product(weight, x.plain)
    return product if bias is None else add(call, product, bias)


def matmul(call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The product of two tensors.

    Vectors with vectors give scores, scalars with vectors combinations, and a parameter
    is a linear layer.
    """
    if isinstance(other, Random) and len(other.shape) == 2:
        return linear(call, x, other.viewed(lambda matrix: matrix.t()))
    x, y = call.settled(x), call.settled(other)
    if isinstance(x, Vectors):
        refuse_if(not isinstance(y, Vectors), "vectors multiply scalars from the left")
        y = y.viewed(lambda entries: entries.mT)
        refuse_if(
            not (x.last and y.last),
            "a product of vectors that does not sum over their coordinates",
        )
        return Scalars(ns.dot(x.plain, y.plain), math.sqrt(x.shape[-1]))
    scalars: Any = x.value if isinstance(x, Scalars) else numbers(x)
    if isinstance(y, Scalars):
        return Scalars(scalars @ y.value)
    if not isinstance(y, Vectors):
        return Scalars(scalars @ numbers(y))
    refuse_if(
        not y.last, "scalars multiply the coordinates of vectors, not the vectors"
    )
    return Vectors.of(scalars @ y.plain)


def add_matmul(
    call: Call, bias: Tensor, first: Tensor, second: Tensor, beta: float, alpha: float
) -> Tensor:
    """beta · bias + alpha · first @ second."""
    product = multiply(call, matmul(call, first, second), float(alpha))
    if beta == 0:
        return product
    return add(call, product, multiply(call, bias, float(beta)))


def softmax(call: Call, x: Tensor, dim: int) -> Scalars:
    """Over the last axis of scores."""
    refuse_if(
        not isinstance(x, Scalars),
        f"of {kind(x)}: only scores, products of queries and keys, are read",
    )
    refuse_if(dim % len(x.shape) != len(x.shape) - 1, "only over the last axis")
    empty = x.shown is not None and not x.shown.any(axis=-1).all()
    refuse_if(empty, "a mask leaves a row of scores without any entry")
    mask = x.allowed
    if mask is not None and mask.all():
        mask = None
    return Scalars(ns.softmax(x.unmasked, mask))


# Rearrangement


def rearranged(call: Call, x: Tensor, f: Callable[[Any], Any]) -> Tensor:
    """The same entries in another shape, or with the axes in another order."""
    if not isinstance(x, Random):
        x = call.settled(x)
    return x.viewed(f)


def view(call: Call, x: Tensor, shape: Shape | None = None) -> Tensor:
    """Another shape: that of the result, if none is given."""
    shape = call.shape if shape is None else shape
    if isinstance(x, Linear):
        # pairs of coordinates that are set end to end again
        pairs = math.prod(x.shape[len(x.x.shape) - 1 :])
        if tuple(shape) == (*x.x.shape[:-1], pairs):
            return Linear.of(lambda image: image.flatten(len(shape)), x)
    return rearranged(call, x, lambda entries: entries.reshape(shape))


def expand(call: Call, x: Tensor) -> Tensor:
    """Repeated along axes of size 1; scalars are repeated when they are used."""
    if isinstance(x, Scalars) and x.allowed is None and x.visible is None:
        return replace(x, expanded=call.shape)
    return rearranged(call, x, lambda entries: entries.expand(call.shape))


def pick(call: Call, x: Tensor, dim: int, index: Any) -> Tensor:
    """Entries along an axis: by an integer, a slice, or an array of integers."""
    axis = dim % len(x.shape)
    if isinstance(index, torch.Tensor):
        index = index.numpy()
    if isinstance(x, Random | Scalars):
        return x.viewed(lambda entries: entries[(slice(None),) * axis + (index,)])
    if not isinstance(x, Linear) or axis != len(x.shape) - 1:
        x = call.settled(x)
    if isinstance(x, Vectors) and axis != x.axis:
        return x.pick(axis, index)
    refuse_if(not isinstance(index, slice), "single coordinates of a vector")
    if isinstance(x, Linear) or x.last:
        return Linear.of(lambda image: image[..., index], x)
    start, stop, step = index.indices(x.shape[axis])
    refuse_if(step != 1, f"a slice of the coordinates of vectors, with step {step}")
    return x.part(start, stop)


def pieces(call: Call, x: Tensor, dim: int = 0) -> list[Tensor]:
    """One part after the other along an axis: split, chunk."""
    axis = dim % len(x.shape)
    sizes = [part.shape[axis] for part in call.result]
    bounds = np.cumsum([0, *sizes]).tolist()
    return [pick(call, x, axis, slice(*ends)) for ends in pairwise(bounds)]


def indexed(call: Call, x: Tensor, indices: Any) -> Tensor:
    """`x[:, ids]`, with one array of integers or booleans."""
    by_axis = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(by_axis) == 1:
        ((axis, index),) = by_axis
        if not isinstance(index, VALUES) and index.ndim <= 1:
            return pick(call, x, axis, index)
    raise Refusal(
        "several arrays of indices, or indices that are random or have several axes"
    )


def cat(call: Call, parts: list[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    axis = dim % len(call.shape)
    if axis == len(call.shape) - 1 and same_vectors(*parts):
        return Linear.of(lambda *images: torch.cat(images, -1), *parts)
    parts = [call.settled(part) for part in parts if part.shape[axis]]
    if all(isinstance(part, Scalars) for part in parts):
        return Scalars(ns.join([part.value for part in parts], axis))
    refuse_if(
        any(isinstance(part, Scalars) for part in parts),
        "scalars and vectors, one after the other",
    )
    coordinates = next(part.axis for part in parts if isinstance(part, Vectors))
    vectors = [
        part if isinstance(part, Vectors) else _given_vectors(part, coordinates)
        for part in parts
    ]
    refuse_if(
        any(part.axis != coordinates for part in vectors),
        "torch.cat of vectors along different axes",
    )
    if axis != coordinates:
        plain_axis = axis - 1 if axis > coordinates else axis
        joined = ns.join([part.plain for part in vectors], plain_axis)
        return Vectors.of(joined, coordinates)
    # end to end along their coordinates
    step = math.gcd(*(part.shape[coordinates] for part in vectors))

    def in_steps(entries: Any) -> Any:
        return entries.movedim(coordinates, -1).unflatten(-1, (-1, step))

    steps = [part.viewed(in_steps).plain for part in vectors]
    return Vectors.of(ns.concat(ns.join(steps, axis=-1), axis=-1), coordinates)


def _given_vectors(x: Tensor, axis: int) -> Vectors:
    """Numbers as vectors, with their coordinates along the given axis."""
    return Vectors.of(ns.data(np.moveaxis(numbers(x), axis, -1)), axis)


def stack(call: Call, parts: list[Tensor], dim: int = 0) -> Tensor:
    """Tensors along a new axis."""
    axis = dim % len(call.shape)
    if axis == len(call.shape) - 1 and same_vectors(*parts):
        return Linear.of(lambda *images: torch.stack(images, -1), *parts)
    one = (*call.shape[:axis], 1, *call.shape[axis + 1 :])
    return cat(call, [view(call, part, one) for part in parts], axis)


def repeat(call: Call, x: Tensor, repeats: list[int]) -> Tensor:
    """`Tensor.repeat`."""
    x = view(call, x, (1,) * (len(repeats) - len(x.shape)) + tuple(x.shape))
    for axis, count in enumerate(repeats):
        if count > 1:
            x = pick(call, x, axis, np.tile(np.arange(x.shape[axis]), count))
    return x


def where(call: Call, condition: Tensor, self: Tensor, other: Tensor) -> Tensor:
    """Random numbers where a given condition is true, elsewhere given ones, or reverse.

    Scores that become very low numbers are masked: a softmax leaves them out.
    """
    if isinstance(condition, VALUES) or isinstance(self, VALUES) == isinstance(
        other, VALUES
    ):
        raise Refusal(
            "a condition that is random, or a choice between two random tensors"
        )
    kept = numbers(condition).astype(bool)
    if isinstance(self, VALUES):
        x, fill = self, numbers(other)
    else:
        kept, x, fill = ~kept, other, numbers(self)
    if (fill <= MASKED).all():
        return _with_mask(call, x, kept, fill)
    kept_part = multiply(call, x, kept.astype(float))
    if not fill.any():
        return kept_part
    return add(call, kept_part, np.where(kept, 0.0, fill))


def _with_mask(call: Call, x: Tensor, kept: Any, fill: Floats) -> Scalars:
    """Scores where they are kept, elsewhere the low numbers `fill`."""
    x = call.settled(x)
    x = call.draws.scalars(x) if isinstance(x, Vectors) else x
    kept = np.broadcast_to(kept, call.shape)
    scores = Scalars(x.unmasked.broadcast_to(call.shape))
    scores = scores.masked(x.allowed).seen(x.visible)
    if (fill <= NEVER).all():
        return scores.masked(kept)
    # low numbers are scores that reports do not show; lower ones take scores out
    never = ~kept & (fill <= NEVER)
    filled = Scalars(
        scores.unmasked * kept.astype(float) + np.where(kept | never, 0.0, fill)
    )
    allowed = ~never
    if scores.allowed is not None:
        allowed = np.where(kept, scores.allowed, ~never)
    return filled.masked(allowed).seen(scores.visible).seen(kept)


def embedding(
    call: Call,
    table: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Rows of a table.

    The row of the padding receives no gradient. With `scale_grad_by_freq` the gradient
    of a row is divided by the number of its uses.
    """
    refuse_if(not isinstance(table, Random), "rows of a table that is not a parameter")
    ids = indices.numpy()
    factors = np.ones(ids.shape)
    if scale_grad_by_freq:
        _, rows, uses = np.unique(ids, return_inverse=True, return_counts=True)
        factors = 1.0 / uses[rows].reshape(ids.shape)
    if padding_idx >= 0:
        factors = np.where(ids == padding_idx, 0.0, factors)
    return Vectors.of(call.draws.rows(table, ids, factors))


def detach(call: Call, x: Tensor) -> Tensor:
    """The same tensor, without a gradient."""
    if isinstance(x, Random):
        return replace(x, frozen=True)
    if not isinstance(x, VALUES):
        return x
    x = call.settled(x)
    if isinstance(x, Scalars):
        return Scalars(ns.stop_gradient(x.base), x.factor, x.allowed)
    return replace(x, value=ns.stop_gradient(x.value))


def dropout(call: Call, x: Tensor, p: float = 0.0, train: bool = False) -> Tensor:
    """The same tensor, because the module is in evaluation mode."""
    refuse_if(train and p, "dropout is on")
    return x


# operations that return their first argument
SAME = (
    "to",
    "contiguous",
    "clone",
    "alias",
    "type_as",
    "lift_fresh_copy",
    "_to_copy",
    "nan_to_num",
)
SOFTMAX = ("softmax", "_softmax")
# other shapes, other orders of the axes, and parts
VIEWS = (
    "view",
    "reshape",
    "_unsafe_view",
    "unflatten",
    "flatten",
    "unsqueeze",
    "squeeze",
    "ravel",
    "view_as",
)
TURNS = ("t", "mT", "transpose", "swapaxes", "permute")
PARTS = ("slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind")

# Each function takes the call, the first argument of the operation, and those of its
# other arguments that it names.
OPS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(SAME, lambda call, x: x),
    **dict.fromkeys(VIEWS, lambda call, x: view(call, x)),
    **ARITHMETIC,
    "_assert_tensor_metadata": lambda call, x: None,
    # an audit has its own loss of the same logits
    "cross_entropy_loss": lambda call, x: None,
    "getitem": lambda call, x, index: x[index],
    "linear": linear,
    "matmul": matmul,
    "mm": lambda call, x, mat2: matmul(call, x, mat2),
    "bmm": lambda call, x, mat2: matmul(call, x, mat2),
    "addmm": lambda call, x, mat1, mat2, beta=1, alpha=1: add_matmul(
        call, x, mat1, mat2, beta, alpha
    ),
    "baddbmm": lambda call, x, batch1, batch2, beta=1, alpha=1: add_matmul(
        call, x, batch1, batch2, beta, alpha
    ),
    **dict.fromkeys(SOFTMAX, softmax),
    "embedding": embedding,
    "embedding_renorm": lambda call, x: refuse_if(
        True, "max_norm rescales the rows of a table: set max_norm=None"
    ),
    "detach": detach,
    "dropout": dropout,
    "transpose": lambda call, x, dim0, dim1: rearranged(
        call, x, lambda entries: entries.transpose(dim0, dim1)
    ),
    "swapaxes": lambda call, x, axis0, axis1: rearranged(
        call, x, lambda entries: entries.transpose(axis0, axis1)
    ),
    "t": lambda call, x: rearranged(call, x, lambda entries: entries.t()),
    "mT": lambda call, x: rearranged(call, x, lambda entries: entries.mT),
    "permute": lambda call, x, dims: rearranged(
        call, x, lambda entries: entries.permute(dims)
    ),
    "expand": expand,
    "expand_as": expand,
    "slice": lambda call, x, dim=0, start=None, end=None, step=1: pick(
        call, x, dim, slice(start, end, step)
    ),
    "narrow": lambda call, x, dim, start, length: pick(
        call, x, dim, slice(start, start + length)
    ),
    "select": pick,
    "index_select": pick,
    "index": indexed,
    "split": pieces,
    "split_with_sizes": pieces,
    "chunk": pieces,
    "unbind": lambda call, x, dim=0: [
        pick(call, x, dim, i) for i in range(len(call.result))
    ],
    "cat": cat,
    "stack": stack,
    "repeat": repeat,
    "repeat_interleave": lambda call, x, repeats, dim: pick(
        call, x, dim, np.repeat(np.arange(x.shape[dim]), repeats)
    ),
    "where": where,
    "masked_fill": lambda call, x, mask, value: where(
        call, mask if isinstance(mask, VALUES) else ~mask, x, value
    ),
}


def apply_op(name: str, call: Call, arguments: Mapping[str, Any]) -> Any:
    """The result of an operation of this name.

    Arguments that are None, or that its function does not name, are left out.
    """
    refuse_if(
        name not in OPS,
        "this operation is not supported; docs/torch.md lists those that are",
    )
    function = OPS[name]
    named = inspect.signature(function).parameters
    (_, x), *others = arguments.items()
    options = {
        key: value for key, value in others if key in named and value is not None
    }
    return function(call, x, **options)
