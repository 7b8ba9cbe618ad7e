"""What each ATen operation does to vectors and scalars: one function an operation, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import language as ns
from .._array_api import array_namespace
from ..activations import Function
from ._axes import (
    Coordinates,
    Floats,
    Pairs,
    Refusal,
    Root,
    Scalars,
    Shape,
    Vectors,
    along_last,
    end_to_end,
    joined,
    scores,
)
from ._draws import Draws, Random
from ._rotary import settled

MASKED = -1e4  # what is added to scores to take them out of a softmax: e^(−10⁴) is 0
Tensor = Any  # a torch tensor, Vectors, Scalars, Coordinates or Random
VALUES = (Vectors, Scalars, Coordinates, Pairs, Random)


class Call:
    """One node of the graph: its arguments by name, as the schema of the operation names them, and what it returns."""

    def __init__(
        self, draws: Draws, name: str, arguments: dict[str, Any], made: Any, probe: Callable[..., None]
    ) -> None:
        self.draws, self.name, self.arguments, self.made, self.probe = draws, name, arguments, made, probe

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where it is None or the operation has none of that name."""
        found = self.arguments.get(name)
        return default if found is None else found

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return tuple(self.made.shape)

    def vectors(self, x: Tensor) -> Vectors:
        """The argument as vectors; given numbers have their coordinates along the last axis."""
        x = self.settled(x)
        if isinstance(x, torch.Tensor) and x.ndim and x.is_floating_point():
            return Vectors.of(along_last(numbers(x), -1))
        if not isinstance(x, Vectors):
            raise Refusal(f"needs vectors, got {kind(x)}")
        return x

    def settled(self, x: Tensor) -> Tensor:
        """Vectors, scalars or numbers: nothing that waits to be recognised."""
        if isinstance(x, Random):
            return self.draws.vectors(x)
        if isinstance(x, Pairs):
            raise Refusal("pairs of coordinates that are not set end to end")
        return settled(x) if isinstance(x, Coordinates) else x


def kind(x: Tensor) -> str:
    """What an argument is, for messages."""
    names = {Vectors: "vectors", Scalars: "scalars", Coordinates: "coordinates", Random: "a parameter"}
    return names.get(type(x), "numbers" if isinstance(x, torch.Tensor | float | int | bool) else type(x).__name__)


def numbers(x: Any) -> Floats:
    """Constants as an array."""
    return np.asarray(x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else x, dtype=float)


# Arithmetic


def _aligned(a: Vectors, b: Vectors) -> tuple[ns.Vector, ns.Vector, int]:
    """Both, and where their coordinates are, counted from the last axis."""
    at = a.axis - len(a.axes)
    if b.axis - len(b.axes) != at:
        raise Refusal("vectors whose coordinates are along different axes meet")
    return a.plain(), b.plain(), at


def _uniform(c: Floats, at: int) -> Floats | None:
    """Constants without the axis of the coordinates, if they do not differ along it."""
    if c.ndim < -at:
        return c
    c = np.moveaxis(c, at, -1)
    return c[..., 0] if c.shape[-1] == 1 or np.ptp(c, axis=-1).max() == 0 else None


def _without(s: Scalars, at: int) -> ns.Scalar:
    """Scalars without the axis of the coordinates, which they must have once for all of them."""
    value = s.value
    if value.ndim < -at:
        return value
    if value.shape[at] != 1:
        raise Refusal("scalars that differ along the coordinates of vectors")
    return value[(..., 0, *(slice(None),) * (-at - 1))]


def _made(value: ns.Vector, at: int) -> Vectors:
    return Vectors.of(value, value.ndim + 1 + at)


def add(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The sum of any two tensors."""
    if isinstance(b, VALUES) and not isinstance(a, VALUES):
        a, b = b, a
    pair = [x for x in (a, b) if isinstance(x, Coordinates)]
    if pair and all(isinstance(x, Coordinates) or x is pair[0].x for x in (a, b)):
        left, right = Coordinates.of(a), Coordinates.of(b)
        if left.x is right.x and left.shape[-1] == right.shape[-1]:
            return left.add(right)
    a, b = call.settled(a), call.settled(b)
    if isinstance(a, Scalars) and isinstance(b, Vectors):
        a, b = b, a
    if isinstance(a, Vectors) and isinstance(b, Vectors):
        x, y, at = _aligned(a, b)
        return _made(x + y, at)
    if isinstance(a, Vectors):
        at = a.axis - len(a.axes)
        if isinstance(b, Scalars):
            if len(b.shape) >= -at and b.shape[at] != 1:  # one for each coordinate: relative positions of heads
                return add(call, call.draws.scalars(a), b)
            return _made(a.plain() + _without(b, at), at)
        c = numbers(b)
        if not c.any():
            return a.expand(np.broadcast_shapes(a.shape, c.shape))
        if (c <= MASKED).any():
            return add(call, call.draws.scalars(a), b)
        same = _uniform(c, at)
        return _made(a.plain() + (along_last(c, at) if same is None else same), at)
    if isinstance(b, Scalars):
        shape = np.broadcast_shapes(a.shape, b.shape)
        allowed = [s.allowed for s in (a, b) if s.allowed is not None]
        made = Scalars(Scalars(a.base, a.factor).value + Scalars(b.base, b.factor).value)
        for each in allowed:
            made = made.masked(np.broadcast_to(each, shape))
        return made
    c = numbers(b)
    if not c.any():
        return a if a.shape == np.broadcast_shapes(a.shape, c.shape) else Scalars(a.value + c)
    if (c <= MASKED).any():
        low = c <= MASKED
        return add(call, a, np.where(low, 0.0, c)).masked(np.broadcast_to(~low, np.broadcast_shapes(a.shape, c.shape)))
    plain = Scalars(a.base, a.factor).value + c
    root = a.root
    if root is not None and root.power == 1 and a.factor == 1 and c.size == 1:
        return Scalars(plain, root=Root(root.vectors, root.eps + float(c.ravel()[0])))
    made = Scalars(plain)
    return made if a.allowed is None else made.masked(a.allowed)


def multiply(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The product of any two tensors."""
    if isinstance(b, VALUES) and not isinstance(a, VALUES):
        a, b = b, a
    if not isinstance(a, VALUES):
        return torch.as_tensor(numbers(a) * numbers(b))
    if isinstance(a, Vectors | Coordinates | Random) and not isinstance(b, VALUES):
        return _scaled(call, a, numbers(b))
    a, b = call.settled(a), call.settled(b)
    if isinstance(a, Scalars) and isinstance(b, Vectors):
        a, b = b, a
    if isinstance(a, Vectors) and isinstance(b, Vectors):
        if a is b:
            x, at = a.plain(), a.axis - len(a.axes)
            made = _made(x * x, at)
            call.draws.squares[made.value] = a
            return made
        x, y, at = _aligned(a, b)
        return _made(x * y, at)
    if isinstance(a, Vectors):
        at, root = a.axis - len(a.axes), b.root
        one_each = tuple(1 if i == a.axis else size for i, size in enumerate(a.shape))
        if root is not None and root.power == -0.5 and root.vectors is a and b.shape == one_each:
            return _made(ns.rms_norm(a.plain(), root.eps, gain=b.factor), at)
        return _made(_without(b, at) * a.plain(), at)
    if isinstance(b, Scalars):
        return Scalars(a.value * b.value)
    c = numbers(b)
    if c.size == 1 and c.ndim <= len(a.shape):
        return Scalars(a.base, a.factor * float(c.ravel()[0]), a.allowed)
    return Scalars(a.value * c)


def _scaled(call: Call, a: Tensor, c: Floats) -> Tensor:
    if isinstance(a, Coordinates):
        return a.scale(c)
    if c.size == 1 and float(c.ravel()[0]) == 1.0 and c.ndim <= len(a.shape):
        return a
    a = call.vectors(a)
    at = a.axis - len(a.axes)
    same = _uniform(c, at)
    if same is None and at == -1:
        return Coordinates.of(a).scale(c)
    if same is None:
        return _made(a.plain() * along_last(np.broadcast_to(c, a.shape), at), at)
    return a.expand(np.broadcast_shapes(a.shape, c.shape)) if (same == 1).all() else _made(same * a.plain(), at)


def divide(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The quotient; vectors are divided by numbers and scalars."""
    if not isinstance(b, VALUES):
        return multiply(call, a, 1.0 / numbers(b))
    if not isinstance(b, Scalars):
        raise Refusal(f"divides by {kind(b)}: only numbers and scalars can divide")
    if isinstance(a, VALUES):
        return multiply(call, a, _raised(b, -1.0))
    return Scalars(numbers(a) / b.value)


def power(call: Call, x: Tensor, k: Any) -> Tensor:
    """x^k: of vectors for k = 1, 2, …"""
    x, k = call.settled(x), float(numbers(k))
    if isinstance(x, Scalars):
        return _raised(x, k)
    if not 1 <= k <= 8 or k != int(k):
        raise Refusal(f"the power {k:g} of coordinates: positive integers up to 8 are read")
    made = x
    for _ in range(int(k) - 1):
        made = multiply(call, x, made)
    return made


def rsqrt(call: Call, x: Tensor) -> Scalars:
    """x^(−1/2), of scalars."""
    if not isinstance(x, Scalars):
        raise Refusal(f"of {kind(x)}: only of scalars, such as a mean square")
    return _raised(x, -0.5)


def _raised(x: Scalars, k: float) -> Scalars:
    """x^k; of a mean square it waits to be multiplied by the vectors."""
    if x.root is None:
        return Scalars(1.0 / x.value if k == -1 else x.value**k)
    root = Root(x.root.vectors, x.root.eps, x.root.power * k)
    return Scalars(1.0 / x.base if k == -1 else x.base**k, x.factor**k, root=root)


def entrywise(f: Callable[[Any], Any]) -> Callable[[Call, Tensor], Tensor]:
    """A function of coordinates or of scalars, by a function of the language that takes both."""

    def apply(call: Call, x: Tensor) -> Tensor:
        x = call.settled(x)
        if isinstance(x, Scalars):
            return Scalars(f(x.value))
        return _made(f(x.plain()), x.axis - len(x.axes))

    return apply


def mean(call: Call, x: Tensor, axes: Any, keep: bool, total: bool = False) -> Tensor:
    """Means, or sums, over axes: of coordinates they are scalars."""
    x = call.settled(x)
    axes = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    over = sorted({axis % len(x.shape) for axis in axes})
    count = math.prod(x.shape[axis] for axis in over)
    factor = float(count if total else 1)
    kept = [1 if i in over else size for i, size in enumerate(x.shape)]
    shape = kept if keep else [size for i, size in enumerate(x.shape) if i not in over]
    if isinstance(x, Scalars):
        return Scalars(x.value.mean(axis=tuple(over)).reshape(*shape), factor)
    if x.axis in over:
        square = call.draws.squares.get(x.value)
        if square is None or square.axes != x.axes or over != [x.axis]:
            scalars = ns.mean_dot(x.plain(), ns.ones(x.plain().width))
            rest = tuple(axis - (axis > x.axis) for axis in over if axis != x.axis)
            return Scalars((scalars.mean(axis=rest) if rest else scalars).reshape(*shape), factor)
        one = square.plain()[..., None]
        root = None if total else Root(square)
        return Scalars(ns.mean_dot(one, one)[..., 0, 0].reshape(*shape), factor, root=root)
    made = Vectors.of(
        x.plain().mean(axis=tuple(axis - (axis > x.axis) for axis in over)), x.axis - sum(a < x.axis for a in over)
    )
    return multiply(call, made.view(shape), factor)


def norm(call: Call, x: Tensor, power: Any, axes: Any, keep: bool) -> Scalars:
    """The Euclidean norm of vectors."""
    x = call.vectors(x)
    if float(2 if power is None else power) != 2 or [a % len(x.shape) for a in _list(axes)] != [x.axis] or not keep:
        raise Refusal("norms are read if they are Euclidean, of vectors, and keep the axis of the coordinates")
    one = x.plain()[..., None]
    squares = ns.mean_dot(one, one)[..., 0, 0].reshape(*(1 if i == x.axis else n for i, n in enumerate(x.shape)))
    return Scalars(squares**0.5, math.sqrt(x.shape[x.axis]), root=Root(x, power=0.5))


def clamp(call: Call) -> Tensor:
    """A bound that keeps a norm from being 0, which changes nothing: zero vectors stay zero."""
    x = call["self"]
    if not isinstance(x, Scalars) or x.root is None or float(call["min"]) > 1e-6 or call.get("max") is not None:
        raise Refusal("bounds are read where they keep a norm from being 0")
    return x


def variance(call: Call, x: Tensor, root: bool) -> Scalars:
    """The variance of coordinates, or its root."""
    x = call.vectors(x)
    keep, size = call.get("keepdim", False), x.shape[x.axis]
    if [a % len(x.shape) for a in _list(call.get("dim", []))] != [x.axis]:
        raise Refusal("variances are read over the coordinates of vectors")
    first, square = (mean(call, y, [x.axis], keep).value for y in (x, multiply(call, x, x)))
    free = size - float(call.get("correction", 1 if call.get("unbiased", True) else 0))
    return Scalars(((square - first * first) * (size / free)) ** (0.5 if root else 1.0))


def normalised(call: Call, f: Callable[..., ns.Vector], eps: float) -> Tensor:
    """Layer or root mean square norm over the last axis, with its weight and bias."""
    x = call.vectors(call["input"])
    if len(call["normalized_shape"]) > 1 or not x.last:
        raise Refusal("norms are read over the last axis alone, which must hold the coordinates")
    made: Tensor = Vectors.of(f(x.plain(), eps))
    made = multiply(call, made, call["weight"]) if call.get("weight") is not None else made
    return add(call, made, call["bias"]) if call.get("bias") is not None else made


# Products


def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """x Wᵀ + b."""
    if not isinstance(weight, Random):
        raise Refusal(f"multiplies by {kind(weight)}: a matrix must be a parameter")
    x = call.vectors(x)
    if not x.last:
        raise Refusal("a matrix acts on an axis that does not hold the coordinates of vectors")
    made = call.draws.product(weight, x.plain())
    return made if bias is None else add(call, made, bias)


def matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Of vectors with vectors, scores; of scalars with vectors, combinations; with a parameter, a linear layer."""
    if isinstance(y, Random) and len(y.shape) == 2:
        return linear(call, x, y.transposed())
    x, y = call.settled(x), call.settled(y)
    if isinstance(x, Vectors) and isinstance(y, Vectors):
        order = [*range(len(y.axes) - 2), len(y.axes) - 1, len(y.axes) - 2]
        return scores(x, y.permute(order))
    if not isinstance(y, Vectors):
        return Scalars(_scalar(x) @ _scalar(y))
    if not y.last:
        raise Refusal("scalars multiply the coordinates of vectors, not the vectors")
    return Vectors.of(_scalar(x) @ y.plain())


def _scalar(x: Tensor) -> Any:
    if isinstance(x, Vectors):
        raise Refusal("vectors multiply scalars from the left")
    return x.value if isinstance(x, Scalars) else numbers(x)


def softmax(call: Call, x: Tensor, axis: int) -> Scalars:
    """Over the last axis of scores."""
    if not isinstance(x, Scalars):
        raise Refusal(f"of {kind(x)}: only scores, products of queries and keys, are read")
    if axis % len(x.shape) != len(x.shape) - 1:
        raise Refusal("only over the last axis")
    given = Scalars(x.base, x.factor).value
    made = ns.softmax(given, None if x.allowed is None or x.allowed.all() else x.allowed)
    call.probe("scores", given, x.allowed)
    call.probe("weights", made, x.allowed)
    return Scalars(made)


def attention(call: Call) -> Tensor:
    """`scaled_dot_product_attention`."""
    q, k, v = (call.vectors(call[name]) for name in ("query", "key", "value"))
    if call.get("enable_gqa", False):
        at = len(k.axes) - 3
        index = np.repeat(np.arange(k.shape[at]), q.shape[at] // k.shape[at])
        k, v = k.pick(at, index), v.pick(at, index)
    scale = call.get("scale", 1 / math.sqrt(q.shape[-1]))
    p = multiply(call, scores(q, k), float(scale))
    if call.get("is_causal", False):
        p = p.masked(np.tri(p.shape[-2], p.shape[-1], dtype=bool))
    mask = call.get("attn_mask")
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        p = p.masked(mask.numpy())
    elif mask is not None:
        p = add(call, p, mask)
    return matmul(call, softmax(call, p, -1), v)


def convolution(call: Call) -> Tensor:
    """Patches of given images, embedded by a matrix: a convolution whose steps are as long as its kernel."""
    x, weight = call["input"], call["weight"]
    kernel = tuple(weight.shape[2:])
    plain = not any(_list(call.get("padding", 0))) and set(_list(call.get("dilation", 1))) == {1}
    if isinstance(x, VALUES) or tuple(_list(call["stride"])) != kernel or not plain or call.get("groups", 1) != 1:
        raise Refusal("convolutions are read for given images and patches that neither overlap nor are padded")
    count = math.prod(call.shape[2:])
    patches = torch.nn.functional.unfold(x, kernel, stride=kernel).transpose(1, 2)  # (batch, patches, numbers)
    made = linear(call, patches, weight.view([weight.shape[0], math.prod(weight.shape[1:])]), call.get("bias"))
    assert made.shape[1] == count
    return made.permute([0, 2, 1]).view(call.shape)


def _list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, list | tuple) else [x]


# Rearrangement: of vectors by their axes, of scalars as numpy does it, of parameters by torch itself


def view(call: Call, x: Tensor, shape: Shape) -> Tensor:
    """Another shape."""
    if isinstance(x, Random):
        return x.view(shape)
    if isinstance(x, Pairs) and tuple(shape) == x.flat.shape:
        return x.flat
    x = call.settled(x)
    if isinstance(x, Scalars):
        return _rearranged(x, lambda a: a.reshape(*shape) if not isinstance(a, np.ndarray) else a.reshape(shape))
    return x.view(shape)


def _rearranged(x: Scalars, f: Callable[[Any], Any]) -> Scalars:
    return Scalars(f(x.base), x.factor, None if x.allowed is None else f(x.allowed))


def permute(call: Call, x: Tensor, order: Any) -> Tensor:
    """Axes in another order."""
    x = x if isinstance(x, Random) else call.settled(x)
    order = [axis % len(order) for axis in order]
    if isinstance(x, Scalars):
        return _rearranged(x, lambda a: a.transpose(*order))
    return x.permute(order)


def transpose(call: Call, x: Tensor, i: int, j: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(len(x.shape)))
    order[i], order[j] = order[j], order[i]
    return permute(call, x, order)


def expand(call: Call, x: Tensor) -> Tensor:
    """Repeated along axes of size 1."""
    if isinstance(x, Random):
        return x.expand(call.shape)
    x = call.settled(x)
    if (
        isinstance(x, Scalars)
        and x.root is not None
        and np.broadcast_shapes(x.shape, x.root.vectors.shape) == call.shape
    ):
        return x  # a norm that divides its vectors needs no expansion
    if isinstance(x, Scalars):
        return _rearranged(
            x, lambda a: a.broadcast_to(call.shape) if not isinstance(a, np.ndarray) else np.broadcast_to(a, call.shape)
        )
    return x.expand(call.shape)


def pick(call: Call, x: Tensor, axis: int, index: Any) -> Tensor:
    """Entries along an axis, by an integer, a slice or an array of integers."""
    axis %= len(x.shape)
    if isinstance(x, Random):
        if isinstance(index, np.ndarray):
            raise Refusal("entries of a parameter by an array of indices")
        return x.pick(axis, index)
    if isinstance(x, Coordinates) and axis == len(x.shape) - 1 and isinstance(index, slice):
        return x.pick(index)
    x = call.settled(x)
    key = (slice(None),) * axis + (index,)
    if isinstance(x, Scalars):
        return _rearranged(x, lambda a: a[key])
    if axis != x.axis:
        return x.pick(axis, index)
    if not isinstance(index, slice):
        raise Refusal("single coordinates of a vector")
    if x.last:
        return Coordinates.of(x).pick(index)
    return x.part(*index.indices(x.shape[axis])[:2])


def pieces(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    """One part after the other along an axis: split, chunk."""
    axis, found, start = axis % len(x.shape), [], 0
    for each in call.made:
        found.append(pick(call, x, axis, slice(start, start + each.shape[axis])))
        start += each.shape[axis]
    return found


def sliced(call: Call) -> Tensor:
    """`x[…, start:end:step]`."""
    return pick(call, call["self"], call["dim"], slice(call.get("start"), call.get("end"), call.get("step", 1)))


def indexed(call: Call) -> Tensor:
    """`x[:, ids]`, with one array of integers or booleans."""
    given = [(axis, index) for axis, index in enumerate(call["indices"]) if index is not None]
    if len(given) != 1 or isinstance(given[0][1], VALUES) or given[0][1].ndim > 1:
        raise Refusal("several arrays of indices, or indices that are random or have several axes")
    axis, index = given[0]
    return pick(call, call["self"], axis, index.numpy())


def cat(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    axis %= len(call.shape)
    owners = {id(part.x if isinstance(part, Coordinates) else part) for part in parts}
    if len(owners) == 1 and axis == len(call.shape) - 1 and any(isinstance(part, Coordinates) for part in parts):
        return end_to_end([Coordinates.of(part) for part in parts])
    parts = [call.settled(part) for part in parts if part.shape[axis]]
    if all(isinstance(part, Scalars) for part in parts):
        return Scalars(ns.join([part.value for part in parts], axis))
    if any(isinstance(part, Scalars) for part in parts):
        raise Refusal("scalars and vectors, one after the other")
    at = next(part.axis for part in parts if isinstance(part, Vectors))
    vectors = [p if isinstance(p, Vectors) else Vectors.of(along_last(numbers(p), at), at) for p in parts]
    return joined(vectors, axis)


def stack(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis."""
    axis %= len(call.shape)
    owners = {id(part.x if isinstance(part, Coordinates) else part) for part in parts}
    if len(owners) == 1 and axis == len(call.shape) - 1 and all(isinstance(p, Coordinates) for p in parts):
        return Pairs.of(parts)
    one = [*call.shape[:axis], 1, *call.shape[axis + 1 :]]
    return cat(call, [view(call, part, tuple(one)) for part in parts], axis)


def repeat(call: Call, x: Tensor, counts: list[int]) -> Tensor:
    """`Tensor.repeat`."""
    x = view(call, x, (1,) * (len(counts) - len(x.shape)) + tuple(x.shape))
    for axis, count in enumerate(counts):
        if count > 1:
            x = pick(call, x, axis, np.tile(np.arange(x.shape[axis]), count))
    return x


def where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Scores where a given mask allows them; elsewhere a number so low that a softmax leaves them out."""
    if isinstance(condition, VALUES):
        raise Refusal("a condition that is random")
    if isinstance(x, VALUES) == isinstance(y, VALUES):
        raise Refusal("a choice between two random tensors")
    kept = numbers(condition).astype(bool)
    kept, x, y = (kept, x, y) if isinstance(x, VALUES) else (~kept, y, x)
    low = numbers(y)
    if (low <= MASKED).all():
        x = call.settled(x)
        x = call.draws.scalars(x) if isinstance(x, Vectors) else x
        return Scalars(x.base.broadcast_to(call.shape), x.factor, x.allowed).masked(kept)
    if not low.any():
        return multiply(call, x, kept.astype(float))
    raise Refusal("a mask that replaces numbers by others than 0 or below −10⁴")


def embedding(call: Call) -> Tensor:
    """Rows of a table."""
    if not isinstance(call["weight"], Random):
        raise Refusal("rows of a table that is no parameter")
    return Vectors.of(call.draws.rows(call["weight"], call["indices"].numpy()))


def gelu(call: Call) -> Tensor:
    """Exact, or by tanh."""
    f = ns.gelu_tanh if call.get("approximate", "none") == "tanh" else ns.gelu
    return entrywise(f)(call, call["self"])


def dropout(call: Call) -> Tensor:
    """Nothing, while the module is evaluated."""
    if call.get("train", False) and call.get("p", 0):
        raise Refusal("dropout is on")
    return call["input"]


def same(call: Call) -> Tensor:
    """The argument itself: casts, copies."""
    return next(iter(call.arguments.values()))


def _each(f: Callable[..., Any], *names: str) -> Callable[[Call], Any]:
    return lambda call: f(call, *(call[name] for name in names))


def _sum(call: Call) -> Tensor:
    b = call["other"]
    alpha = call.get("alpha", 1)
    return add(call, call["self"], b if alpha == 1 else multiply(call, b, float(alpha)))


def _difference(call: Call) -> Tensor:
    return (
        add(call, call["self"], multiply(call, call["other"], -float(call.get("alpha", 1))))
        if isinstance(call["other"], VALUES)
        else add(call, call["self"], -numbers(call["other"]) * float(call.get("alpha", 1)))
    )


def _addmm(call: Call) -> Tensor:
    names = ("mat1", "mat2") if "mat1" in call.arguments else ("batch1", "batch2")
    product = multiply(call, matmul(call, call[names[0]], call[names[1]]), float(call.get("alpha", 1)))
    beta = float(call.get("beta", 1))
    return (
        product if beta == 0 else add(call, product, call["self"] if beta == 1 else multiply(call, call["self"], beta))
    )


def _masked_fill(call: Call) -> Tensor:
    mask = call["mask"]
    if isinstance(mask, VALUES):
        raise Refusal("a mask that is random")
    return where(call, ~mask, call["self"], call["value"])


SAME = ("to", "contiguous", "clone", "detach", "alias", "type_as", "lift_fresh_copy", "_to_copy", "nan_to_num")
VIEWS = ["view", "reshape", "_unsafe_view", "unflatten", "flatten", "unsqueeze", "squeeze", "ravel"]


def _exp(x: Any) -> Any:
    return array_namespace(x).exp(x)


EXP = Function("exp", _exp, bounded=False, lipschitz=False, derivative=_exp)


def exp(x: Any) -> Any:
    """e^x, of coordinates or of scalars."""
    return ns.nonlin(EXP, x) if isinstance(x, ns.Vector) else ns.apply(EXP, x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": ns.relu,
    "silu": ns.silu,
    "tanh": ns.tanh,
    "sigmoid": ns.sigmoid,
    "erf": ns.erf,
    "abs": ns.abs,
    "sin": ns.sin,
    "cos": ns.cos,
    "exp": exp,
}


def _function(name: str) -> Callable[[Call], Any]:
    apply = entrywise(FUNCTIONS[name])
    return lambda call: apply(call, call["self"])


OPS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(SAME, same),
    **dict.fromkeys(VIEWS, lambda call: view(call, call["self"], call.shape)),
    **{name: _function(name) for name in FUNCTIONS},
    "_assert_tensor_metadata": lambda call: None,
    "cross_entropy_loss": lambda call: None,  # an audit has its own loss of the same logits
    "getitem": lambda call: call["self"][call["index"]],
    "add": _sum,
    "sub": _difference,
    "rsub": lambda call: add(call, multiply(call, call["self"], -1.0), call["other"]),
    "mul": _each(multiply, "self", "other"),
    "div": _each(divide, "self", "other"),
    "neg": lambda call: multiply(call, call["self"], -1.0),
    "pow": _each(power, "self", "exponent"),
    "square": lambda call: power(call, call["self"], 2),
    "rsqrt": _each(rsqrt, "self"),
    "sqrt": lambda call: power(call, call["self"], 0.5),
    "reciprocal": lambda call: divide(call, 1.0, call["self"]),
    "gelu": gelu,
    "leaky_relu": lambda call: entrywise(lambda x: ns.leaky_relu(x, call.get("negative_slope", 0.01)))(
        call, call["self"]
    ),
    "mean": lambda call: mean(call, call["self"], call.get("dim"), call.get("keepdim", False)),
    "sum": lambda call: mean(call, call["self"], call.get("dim"), call.get("keepdim", False), total=True),
    "linalg_vector_norm": lambda call: norm(call, call["self"], call.get("ord"), call.get("dim"), call.get("keepdim")),
    "norm": lambda call: norm(call, call["self"], call.get("p"), call.get("dim"), call.get("keepdim")),
    "clamp_min": clamp,
    "clamp": clamp,
    "var": lambda call: variance(call, call["self"], root=False),
    "std": lambda call: variance(call, call["self"], root=True),
    "layer_norm": lambda call: normalised(call, ns.layer_norm, call.get("eps", 1e-5)),
    "rms_norm": lambda call: normalised(call, ns.rms_norm, call.get("eps", torch.finfo(torch.float32).eps)),
    "linear": lambda call: linear(call, call["input"], call["weight"], call.get("bias")),
    "matmul": _each(matmul, "self", "other"),
    "mm": _each(matmul, "self", "mat2"),
    "bmm": _each(matmul, "self", "mat2"),
    "addmm": _addmm,
    "baddbmm": _addmm,
    "softmax": _each(softmax, "self", "dim"),
    "_softmax": _each(softmax, "self", "dim"),
    "scaled_dot_product_attention": attention,
    "conv2d": convolution,
    "embedding": embedding,
    "dropout": dropout,
    "transpose": _each(transpose, "self", "dim0", "dim1"),
    "swapaxes": _each(transpose, "self", "axis0", "axis1"),
    "t": lambda call: transpose(call, call["self"], 0, 1),
    "permute": _each(permute, "self", "dims"),
    "expand": lambda call: expand(call, call["self"]),
    "expand_as": lambda call: expand(call, call["self"]),
    "view_as": lambda call: view(call, call["self"], call.shape),
    "slice": sliced,
    "narrow": lambda call: pick(call, call["self"], call["dim"], slice(call["start"], call["start"] + call["length"])),
    "select": lambda call: pick(call, call["self"], call["dim"], call["index"]),
    "index_select": lambda call: pick(call, call["self"], call["dim"], call["index"].numpy()),
    "index": indexed,
    "split": lambda call: pieces(call, call["self"], call.get("dim", 0)),
    "split_with_sizes": lambda call: pieces(call, call["self"], call.get("dim", 0)),
    "chunk": lambda call: pieces(call, call["self"], call.get("dim", 0)),
    "unbind": lambda call: [pick(call, call["self"], call.get("dim", 0), i) for i in range(len(call.made))],
    "cat": lambda call: cat(call, call["tensors"], call.get("dim", 0)),
    "stack": lambda call: stack(call, call["tensors"], call.get("dim", 0)),
    "repeat": _each(repeat, "self", "repeats"),
    "repeat_interleave": lambda call: pick(
        call, call["self"], call["dim"], np.repeat(np.arange(call["self"].shape[call["dim"]]), int(call["repeats"]))
    ),
    "where": lambda call: where(call, call["condition"], call["self"], call["other"]),
    "masked_fill": _masked_fill,
}
