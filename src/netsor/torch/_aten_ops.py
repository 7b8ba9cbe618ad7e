"""The table of ATen operations: what products and rearrangements do; `_aten_arithmetic`
has operations on entries.
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
    """Of vectors with vectors, scores; of scalars with vectors, combinations; with a
    parameter, a linear layer.
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
    if not isinstance(y, Vectors):
        return Scalars(scalars @ (y.value if isinstance(y, Scalars) else numbers(y)))
    refuse_if(
        not y.last, "scalars multiply the coordinates of vectors, not the vectors"
    )
    return Vectors.of(scalars @ y.plain)


def add_matmul(
    call: Call, bias: Tensor, first: Tensor, second: Tensor, beta: float, alpha: float
) -> Tensor:
    """beta · bias + alpha · first @ second."""
    product = multiply(call, matmul(call, first, second), float(alpha))
    return (
        product if beta == 0 else add(call, product, multiply(call, bias, float(beta)))
    )


def softmax(call: Call, x: Tensor, dim: int) -> Scalars:
    """Over the last axis of scores."""
    refuse_if(
        not isinstance(x, Scalars),
        f"of {kind(x)}: only scores, products of queries and keys, are read",
    )
    refuse_if(dim % len(x.shape) != len(x.shape) - 1, "only over the last axis")
    empty = x.shown is not None and not x.shown.any(axis=-1).all()
    refuse_if(empty, "a mask leaves a row of scores without any entry")
    return Scalars(
        ns.softmax(
            x.unmasked, None if x.allowed is None or x.allowed.all() else x.allowed
        )
    )


# Rearrangement


def viewed(call: Call, x: Tensor, f: Callable[[Any], Any]) -> Tensor:
    """The same entries in another shape, or with the axes in another order."""
    return (x if isinstance(x, Random) else call.settled(x)).viewed(f)


def view(call: Call, x: Tensor, shape: Shape | None = None) -> Tensor:
    """Another shape: that of the result, if none is given."""
    shape = call.shape if shape is None else shape
    if isinstance(x, Linear) and tuple(shape) == (
        *x.x.shape[:-1],
        math.prod(x.shape[len(x.x.shape) - 1 :]),
    ):
        return Linear.of(lambda image: image.flatten(len(shape)), x)  # of pairs
    return viewed(call, x, lambda entries: entries.reshape(shape))


def expand(call: Call, x: Tensor) -> Tensor:
    """Repeated along axes of size 1; scalars are repeated when they are used."""
    if isinstance(x, Scalars) and x.allowed is None and x.visible is None:
        return replace(x, expanded=call.shape)
    return viewed(call, x, lambda entries: entries.expand(call.shape))


def pick(call: Call, x: Tensor, dim: int, index: Any) -> Tensor:
    """Entries along an axis, by an integer, a slice, or integers in an array or a
    tensor.
    """
    axis = dim % len(x.shape)
    index = index.numpy() if isinstance(index, torch.Tensor) else index
    if isinstance(x, Random | Scalars):
        return x.viewed(lambda entries: entries[(slice(None),) * axis + (index,)])
    x = x if isinstance(x, Linear) and axis == len(x.shape) - 1 else call.settled(x)
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
    ends = np.cumsum([0, *(each.shape[axis] for each in call.result)]).tolist()
    return [pick(call, x, axis, slice(*pair)) for pair in pairwise(ends)]


def indexed(call: Call, x: Tensor, indices: Any) -> Tensor:
    """`x[:, ids]`, with one array of integers or booleans."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or isinstance(given[0][1], VALUES) or given[0][1].ndim > 1:
        raise Refusal(
            "several arrays of indices, or indices that are random or have several axes"
        )
    return pick(call, x, *given[0])


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
    at = next(part.axis for part in parts if isinstance(part, Vectors))
    given = [
        p
        if isinstance(p, Vectors)
        else Vectors.of(ns.data(np.moveaxis(numbers(p), at, -1)), at)
        for p in parts
    ]
    refuse_if(
        any(part.axis != at for part in given),
        "torch.cat of vectors along different axes",
    )
    if axis != at:
        return Vectors.of(
            ns.join([part.plain for part in given], axis - (axis > at)), at
        )
    # end to end along their coordinates
    step = math.gcd(*(part.shape[at] for part in given))
    pieces = [
        part.viewed(
            lambda entries: entries.movedim(at, -1).unflatten(-1, (-1, step))
        ).plain
        for part in given
    ]
    return Vectors.of(ns.concat(ns.join(pieces, axis=-1), axis=-1), at)


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
    """Scores where a given mask allows them; elsewhere a number so low that a softmax
    leaves them out.
    """
    if isinstance(condition, VALUES) or isinstance(self, VALUES) == isinstance(
        other, VALUES
    ):
        raise Refusal(
            "a condition that is random, or a choice between two random tensors"
        )
    kept = numbers(condition).astype(bool)
    kept, x, fill = (
        (kept, self, numbers(other))
        if isinstance(self, VALUES)
        else (~kept, other, numbers(self))
    )
    if not (fill <= MASKED).all():
        kept_part = multiply(call, x, kept.astype(float))
        return (
            add(call, kept_part, np.where(kept, 0.0, fill)) if fill.any() else kept_part
        )
    x = call.settled(x)
    x = call.draws.scalars(x) if isinstance(x, Vectors) else x
    kept = np.broadcast_to(kept, call.shape)
    whole = (
        Scalars(x.unmasked.broadcast_to(call.shape)).masked(x.allowed).seen(x.visible)
    )
    if (fill <= NEVER).all():
        return whole.masked(kept)
    never = ~kept & (fill <= NEVER)
    filled = Scalars(
        whole.unmasked * kept.astype(float) + np.where(kept | never, 0.0, fill)
    )
    allowed = ~never if whole.allowed is None else np.where(kept, whole.allowed, ~never)
    return filled.masked(allowed).seen(whole.visible).seen(kept)


def embedding(
    call: Call,
    table: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Rows of a table. The row of the padding receives no gradient; by frequency,
    others share it among their uses.
    """
    refuse_if(not isinstance(table, Random), "rows of a table that is not a parameter")
    ids = indices.numpy()
    factors = np.ones(ids.shape)
    if scale_grad_by_freq:
        _, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
        factors = 1.0 / counts[which].reshape(ids.shape)
    if padding_idx >= 0:
        factors = np.where(ids == padding_idx, 0.0, factors)
    return Vectors.of(call.draws.rows(table, ids, factors))


def detach(call: Call, x: Tensor) -> Tensor:
    """The same tensor, which derivatives take as given."""
    if isinstance(x, Random):
        return replace(x, frozen=True)
    if not isinstance(x, VALUES):
        return x
    x = call.settled(x)
    if isinstance(x, Scalars):
        return Scalars(ns.stop_gradient(x.base), x.factor, x.allowed)
    return replace(x, value=ns.stop_gradient(x.value))


def dropout(call: Call, x: Tensor, p: float = 0.0, train: bool = False) -> Tensor:
    """Nothing, while the module is evaluated."""
    refuse_if(train and p, "dropout is on")
    return x


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

# Each takes the call, the first argument of the operation, and those of the others that
# it names.
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
    "transpose": lambda call, x, dim0, dim1: viewed(
        call, x, lambda entries: entries.transpose(dim0, dim1)
    ),
    "swapaxes": lambda call, x, axis0, axis1: viewed(
        call, x, lambda entries: entries.transpose(axis0, axis1)
    ),
    "t": lambda call, x: viewed(call, x, lambda entries: entries.t()),
    "mT": lambda call, x: viewed(call, x, lambda entries: entries.mT),
    "permute": lambda call, x, dims: viewed(
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
    """The result of an operation; arguments that are None count as omitted."""
    refuse_if(
        name not in OPS,
        "this operation is not supported; docs/torch.md lists those that are",
    )
    (_, x), *rest = arguments.items()
    takes = inspect.signature(OPS[name]).parameters
    return OPS[name](
        call, x, **{k: value for k, value in rest if k in takes and value is not None}
    )
