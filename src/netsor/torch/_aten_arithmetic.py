"""ATen operations on entries: sums, products, powers, functions, means and norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import language as ns
from .._array_api import Floats, array_namespace
from .._validate import Shape
from ..functions.activations import Function
from ..models._training import exponential
from ._axes import (
    Linear,
    Refusal,
    Root,
    Scalars,
    Vectors,
    refuse_if,
    same_vectors,
    settled,
)
from ._random_parameters import Draws, Random

# numbers up to this one that meet scores are masks: for scores of usual size, e^(−10⁴)
# is 0
MASKED = -1e4
# masks up to this one take scores out of a softmax whatever their size; −∞ and
# torch.finfo.min do
NEVER = -1e30
Tensor = Any  # a torch tensor, Vectors, Scalars, Linear or Random
VALUES = (Vectors, Scalars, Linear, Random)


class Call(NamedTuple):
    """A node of the graph: the random objects of the program, and the shapes that the
    node returns.
    """

    draws: Draws
    result: Any

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return tuple(self.result.shape)

    def vectors(self, x: Tensor) -> Vectors:
        """The argument as vectors; given numbers have their coordinates along the last
        axis.
        """
        x = self.settled(x)
        if isinstance(x, torch.Tensor) and x.ndim and x.is_floating_point():
            return Vectors.of(ns.data(numbers(x)))
        if not isinstance(x, Vectors):
            raise Refusal(f"needs vectors, got {kind(x)}")
        return x

    def settled(self, x: Tensor) -> Tensor:
        """Vectors, scalars or numbers: nothing that waits to be recognised."""
        if isinstance(x, Random):
            return self.draws.vectors(x)
        if isinstance(x, Linear):
            return settled(x)
        return x

    def ranked(self, *pair: Tensor) -> list[Tensor]:
        """Both settled: vectors before scalars, and scalars before numbers."""
        rank = {Vectors: 0, Scalars: 1}
        return sorted(map(self.settled, pair), key=lambda x: rank.get(type(x), 2))


def kind(x: Tensor) -> str:
    """The kind of an argument, for messages."""
    names = {
        Vectors: "vectors",
        Scalars: "scalars",
        Linear: "coordinates",
        Random: "a parameter",
    }
    return names.get(type(x), "numbers")


def numbers(x: Any) -> Floats:
    """Constants as an array."""
    return np.asarray(
        x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else x,
        dtype=float,
    )


def _beside(a: Vectors, b: Tensor) -> Any:
    """The tensor b as an operand of `a.plain`.

    The result has vectors, or a scalar or a number for each vector.
    """
    axis = a.from_end
    if isinstance(b, Vectors):
        refuse_if(
            b.from_end != axis,
            "vectors whose coordinates are along different axes meet",
        )
        return b.plain
    if isinstance(b, Scalars):
        b = b.before(a.shape)
        refuse_if(
            len(b.shape) >= -axis and b.shape[axis] != 1,
            "scalars that differ along the coordinates of vectors",
        )
        if len(b.shape) < -axis:
            return b.value
        later_axes = (slice(None),) * (-axis - 1)
        return b.value[(..., 0, *later_axes)]
    numbers = np.moveaxis(b, axis, -1) if b.ndim >= -axis else b[..., None]
    if numbers.shape[-1] == 1 or np.ptp(numbers, axis=-1).max() == 0:
        return numbers[..., 0]  # the same for all coordinates
    return ns.data(numbers)


def _expanded(a: Vectors, shape: Shape) -> Vectors:
    return a.viewed(lambda entries: entries.expand(np.broadcast_shapes(a.shape, shape)))


def add(call: Call, a: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """a + alpha · other."""
    b: Any = other if alpha == 1 else multiply(call, other, float(alpha))
    if same_vectors(a, b) and a.shape == b.shape:
        return Linear.of(torch.add, a, b)
    a, b = call.ranked(a, b)
    b = b if isinstance(b, VALUES) else numbers(b)
    if isinstance(a, Scalars):
        return _add_to_scalars(a, b)
    b = b.before(a.shape) if isinstance(b, Scalars) else b
    at, mask = a.from_end, not isinstance(b, VALUES) and (b <= MASKED).any()
    if mask or (isinstance(b, Scalars) and len(b.shape) >= -at and b.shape[at] != 1):
        # one for each coordinate: relative positions of heads
        return add(call, call.draws.scalars(a), b)
    if not isinstance(b, VALUES) and not b.any():
        return _expanded(a, b.shape)
    return Vectors.of(a.plain + _beside(a, b), at)


def _add_to_scalars(a: Scalars, b: Scalars | Floats) -> Scalars:
    """The sum has the masks of both."""
    if isinstance(b, Scalars):
        whole = Scalars(a.unmasked + b.unmasked)
        return whole.masked(a.allowed).masked(b.allowed).seen(a.visible).seen(b.visible)
    if not b.any() and a.shape == np.broadcast_shapes(a.shape, b.shape):
        return a
    root = a.root
    if (
        root is not None
        and root.power == 1
        and a.factor == 1
        and b.size == 1
        and b.ndim <= len(a.shape)
    ):
        eps = float(b.ravel()[0])
        radicand = a.base + eps
        return replace(
            a, base=radicand, root=Root(root.vectors, radicand, root.eps + eps)
        )
    low, never = b <= MASKED, b <= NEVER
    whole = Scalars(a.unmasked + np.where(never, 0.0, b))
    whole = whole.masked(a.allowed).masked(~never if never.any() else None)
    return whole.seen(a.visible).seen(~low if low.any() else None)


def multiply(call: Call, a: Tensor, other: Tensor) -> Tensor:
    """The product of any two tensors."""
    a, b = (
        (other, a)
        if isinstance(other, VALUES) and not isinstance(a, VALUES)
        else (a, other)
    )
    if not isinstance(a, VALUES):
        return torch.as_tensor(numbers(a) * numbers(b))
    c = None if isinstance(b, VALUES) else numbers(b)
    if c is not None and not isinstance(a, Scalars):
        return _scaled(call, a, c)
    a, b = call.ranked(a, b)
    if isinstance(a, Scalars):
        if c is not None and c.size == 1 and c.ndim <= len(a.shape):
            return _times(a, float(c.ravel()[0]))
        return Scalars(a.value * (b.value if c is None else c))
    if a is b:
        square = Vectors.of(a.plain * a.plain, a.from_end)
        call.draws.squares[square.value] = a
        return square
    if isinstance(b, Vectors):
        return Vectors.of(a.plain * _beside(a, b), a.from_end)
    b = b.before(a.shape)
    root, one_each = (
        b.root,
        tuple(1 if i == a.axis else size for i, size in enumerate(a.shape)),
    )
    if (
        root is not None
        and root.power == -0.5
        and root.vectors is a
        and b.shape == one_each
    ):
        return Vectors.of(ns.rms_norm(a.plain, root.eps, gain=b.factor), a.from_end)
    return Vectors.of(_beside(a, b) * a.plain, a.from_end)


def _times(a: Scalars, c: float) -> Scalars:
    """Scalars times one number; masks stay if it is positive."""
    refuse_if(
        a.allowed is not None and c <= 0,
        f"masked scores times {c:g}: masks are read for positive factors",
    )
    return replace(
        a, factor=a.factor * c, root=None, visible=a.visible if c > 0 else None
    )


def _scaled(call: Call, a: Tensor, c: Floats) -> Tensor:
    """Each coordinate of vectors times a number."""
    if not isinstance(a, Linear) or c.ndim > len(a.shape):
        if c.size == 1 and float(c.ravel()[0]) == 1.0 and c.ndim <= len(a.shape):
            return a
        a = call.vectors(a)
        same = _beside(a, c)
        if not isinstance(same, ns.Vector):
            return (
                _expanded(a, c.shape)
                if (same == 1).all()
                else Vectors.of(same * a.plain, a.from_end)
            )
        if not a.last:
            return Vectors.of(same * a.plain, a.from_end)
    return Linear.of(lambda image: image * torch.from_numpy(c), a)


def divide(
    call: Call, a: Tensor, other: Tensor, rounding_mode: str | None = None
) -> Tensor:
    """The quotient; vectors are divided by numbers and scalars."""
    refuse_if(
        rounding_mode is not None,
        f"rounding_mode={rounding_mode!r}: rounding is not read",
    )
    if not isinstance(other, VALUES):
        return multiply(call, a, 1.0 / numbers(other))
    if not isinstance(other, Scalars):
        raise Refusal(f"divides by {kind(other)}: only numbers and scalars can divide")
    if isinstance(a, VALUES):
        return multiply(call, a, _raised(other, -1.0))
    return Scalars(numbers(a) / other.value)


def power(call: Call, x: Tensor, exponent: Any) -> Tensor:
    """x^k: of vectors for k = 1, 2, …"""
    x, k = call.settled(x), float(numbers(exponent))
    if isinstance(x, Scalars):
        return _raised(x, k)
    refuse_if(
        k not in range(1, 9),
        f"the power {k:g} of coordinates: positive integers up to 8 are read",
    )
    return reduce(lambda product, each: multiply(call, each, product), [x] * int(k))


def _raised(x: Scalars, k: float) -> Scalars:
    """x^k; of a mean square it waits to be multiplied by the vectors."""
    if x.root is None:
        one_each = replace(x, expanded=None).value
        return Scalars(1.0 / one_each if k == -1 else one_each**k, expanded=x.expanded)
    root = replace(x.root, power=x.root.power * k)
    return Scalars(
        1.0 / x.base if k == -1 else x.base**k,
        x.factor**k,
        root=root,
        expanded=x.expanded,
    )


def entrywise(f: Callable[[Any], Any]) -> Callable[[Call, Tensor], Tensor]:
    """A function of coordinates or of scalars, by a function of the language that takes
    both.
    """

    def apply(call: Call, x: Tensor) -> Tensor:
        x = call.settled(x)
        if isinstance(x, Scalars):
            return Scalars(f(replace(x, expanded=None).value), expanded=x.expanded)
        return Vectors.of(f(x.plain), x.from_end)

    return apply


def mean(
    call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, total: bool = False
) -> Tensor:
    """Means, or sums, over axes: of coordinates they are scalars."""
    x = call.settled(x)
    axes = range(len(x.shape)) if dim is None else np.ravel(dim).tolist()
    over = sorted({axis % len(x.shape) for axis in axes})
    factor = 1.0  # of the mean
    if total:
        factor = float(math.prod(x.shape[axis] for axis in over))
    shape = [
        1 if i in over else size
        for i, size in enumerate(x.shape)
        if keepdim or i not in over
    ]
    if isinstance(x, Scalars):
        return Scalars(x.value.mean(axis=tuple(over)).reshape(*shape), factor)
    # the other axes, as axes of `x.plain`
    rest = tuple(axis - (axis > x.axis) for axis in over if axis != x.axis)
    if x.axis not in over:
        averages = Vectors.of(
            x.plain.mean(axis=rest), x.axis - sum(a < x.axis for a in over)
        )
        return multiply(
            call, averages.viewed(lambda entries: entries.reshape(shape)), factor
        )
    square = call.draws.squares.get(x.plain)
    if square is None or (square.shape, square.axis) != (x.shape, x.axis) or rest:
        scalars = ns.mean_dot(x.plain, ns.ones(x.plain.width))
        return Scalars(
            (scalars.mean(axis=rest) if rest else scalars).reshape(*shape), factor
        )
    one = square.plain[..., None]
    mean_square = ns.mean_dot(one, one)[..., 0, 0].reshape(*shape)
    return Scalars(mean_square, factor, root=Root(square, mean_square))


def norm(
    call: Call, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False
) -> Scalars:
    """The Euclidean norm of vectors."""
    x = call.vectors(x)
    if (
        float(ord) != 2
        or dim is None
        or [a % len(x.shape) for a in np.ravel(dim)] != [x.axis]
    ):
        raise Refusal("norms are read if they are Euclidean, and of vectors")
    return _raised(mean(call, multiply(call, x, x), dim, keepdim, total=True), 0.5)


class Bounds(NamedTuple):
    """x ↦ factor · x^power, between two bounds."""

    least: float
    most: float
    factor: float = 1.0
    power: float = 1.0

    def value(self, x: Any) -> Any:
        """The bounded number."""
        return array_namespace(x).clip(self._unbounded(x), self.least, self.most)

    def _unbounded(self, x: Any) -> Any:
        return self.factor * x**self.power

    def slope(self, x: Any) -> Any:
        """The derivative: 0 beyond the bounds, also where that of the power is
        infinite.
        """
        xp = array_namespace(x)
        value = self._unbounded(x)
        inside = (value >= self.least) & (value <= self.most)
        where_inside = xp.where(inside, x, 1.0)
        return xp.where(
            inside, self.factor * self.power * where_inside ** (self.power - 1.0), 0.0
        )

    @property
    def function(self) -> Function:
        """With its properties."""
        finite = tuple(
            bound for bound in (self.least, self.most) if math.isfinite(bound)
        )
        plain = self.factor == self.power == 1.0
        name = "clamp_max"
        if len(finite) == 2:
            name = "clamp"
        elif math.isfinite(self.least):
            name = "clamp_min"
        return Function(
            name,
            self.value,
            bounded=len(finite) == 2,
            lipschitz=True if plain else None,
            parameters=finite if plain else (*finite, self.factor, self.power),
            breaks=finite if plain else None,
            derivative=self.slope,
        )


def clamp(call: Call, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Scalars, or coordinates, between two numbers."""
    random = isinstance(min, VALUES) or isinstance(max, VALUES)
    given = (
        [] if random else [numbers(bound) for bound in (min, max) if bound is not None]
    )
    refuse_if(
        random or any(bound.size > 1 for bound in given),
        "bounds are read if they are numbers",
    )
    least = -math.inf if min is None else float(numbers(min).ravel()[0])
    most = math.inf if max is None else float(numbers(max).ravel()[0])
    refuse_if(
        least > most, f"bounds {least:g} and {most:g}, of which the first is larger"
    )
    # one function of the mean square, whose slope at 0 is finite
    if isinstance(x, Scalars) and x.root is not None:
        f = Bounds(least, most, x.factor, x.root.power).function
        return Scalars(ns.apply(f, x.root.radicand), expanded=x.expanded)
    f = Bounds(least, most).function
    return entrywise(
        lambda each: (ns.nonlin if isinstance(each, ns.Vector) else ns.apply)(f, each)
    )(call, x)


def extreme(side: str, call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The larger, or the smaller, of random numbers and a given one."""
    x, bound = (x, other) if isinstance(x, VALUES) else (other, x)
    return clamp(call, x, **{side: bound})


def variance(
    call: Call,
    x: Tensor,
    dim: Any = (),
    keepdim: bool = False,
    unbiased: bool = True,
    correction: Any = None,
) -> Scalars:
    """The variance of coordinates."""
    x = call.vectors(x)
    refuse_if(
        [a % len(x.shape) for a in np.ravel(dim)] != [x.axis],
        "variances are read over coordinates of vectors",
    )
    average = mean(call, x, x.axis, keepdim=True)
    # the difference of two means would lose digits
    centred = add(call, x, multiply(call, average, -1.0))
    square = mean(call, multiply(call, centred, centred), x.axis, keepdim).value
    size = x.shape[x.axis]
    free = size - float(unbiased if correction is None else correction)
    return Scalars(square * (size / free))


def normalised(
    f: Callable[..., ns.Vector],
    call: Call,
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor = None,
    bias: Tensor = None,
    eps: float | None = None,
) -> Tensor:
    """Layer or root mean square norm over the last axis, with its weight and bias."""
    x = call.vectors(x)
    eps = torch.finfo(call.result.dtype).eps if eps is None else eps
    refuse_if(
        len(normalized_shape) > 1 or not x.last,
        "norms are read over the last axis, if it holds the coordinates",
    )
    y: Tensor = Vectors.of(f(x.plain, eps))
    y = y if weight is None else multiply(call, y, weight)
    return y if bias is None else add(call, y, bias)


EXP = Function(
    "exp", exponential, bounded=False, lipschitz=False, derivative=exponential
)


FUNCTIONS = (ns.relu, ns.silu, ns.tanh, ns.sigmoid, ns.erf, ns.abs, ns.sin, ns.cos)
ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f.__name__: entrywise(f) for f in FUNCTIONS},
    "exp": entrywise(
        lambda x: (ns.nonlin if isinstance(x, ns.Vector) else ns.apply)(EXP, x)
    ),
    "add": add,
    "sub": lambda call, x, other, alpha=1: add(call, x, other, -float(alpha)),
    "rsub": lambda call, x, other, alpha=1: add(
        call, multiply(call, x, -float(alpha)), other
    ),
    "mul": multiply,
    "div": divide,
    "neg": lambda call, x: multiply(call, x, -1.0),
    "pow": power,
    "square": lambda call, x: power(call, x, 2),
    "rsqrt": lambda call, x: power(call, x, -0.5),
    "sqrt": lambda call, x: power(call, x, 0.5),
    "reciprocal": lambda call, x: divide(call, 1.0, x),
    "gelu": lambda call, x, approximate="none": entrywise(
        ns.gelu_tanh if approximate == "tanh" else ns.gelu
    )(call, x),
    "leaky_relu": lambda call, x, negative_slope=0.01: entrywise(
        partial(ns.leaky_relu, slope=negative_slope)
    )(call, x),
    "mean": mean,
    "sum": partial(mean, total=True),
    "linalg_vector_norm": norm,
    "norm": lambda call, x, p=2, dim=None, keepdim=False: norm(
        call, x, p, dim, keepdim
    ),
    "clamp_min": clamp,
    "clamp_max": clamp,
    "clamp": clamp,
    "maximum": partial(extreme, "min"),
    "minimum": partial(extreme, "max"),
    "var": variance,
    "std": lambda call, x, dim=(), keepdim=False, unbiased=True, correction=None: (
        _raised(variance(call, x, dim, keepdim, unbiased, correction), 0.5)
    ),
    "layer_norm": partial(normalised, ns.layer_norm),
    "rms_norm": partial(normalised, ns.rms_norm),
}  # each as in `OPS` of `_aten_ops`
