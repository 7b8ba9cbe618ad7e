"""Adam's first step, a function of the entries of an outer product: from coordinates,
or in closed form.

y_α = (1/in) Σ_β f(g_αβ) x_β, with g_αβ = Σ_k l_kα r_kβ and f(g) = g/(|g| + ε̂)
(docs/theory.md, "Adam's first step"). If `in` is finite, all coordinates of r and x are
numbers of the program, and y is a function of the coordinates of the l_k. If it is
infinite, f = sign and the mean over β is an expectation: in closed form for one use, or
for Gaussian r and x of mean 0, otherwise over quasi-random nodes β. Lowering relies on
this pass, so you cannot switch it off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._array_api import array_namespace
from ...functions import derivatives
from ...functions.activations import Function
from ...language.operations._score import join, mean_dot
from ...language.values._array import Value
from ...language.values._scalar import applied, constant
from ...language.values._vector import Nonlin, Vector, mix
from .._exceptions import ExactError, UnplacedError
from ..graph._operations import Outer, OuterProductSum
from ..graph._orders import Orders, SmallParts
from ..graph._rewrite import Context, rewritten
from .simplify import ROOT
from .trained_weights import coordinates

SIGN = replace(derivatives.SIGN, name="sign")  # sign(0) = 0

# Most entries of all matrices of an outer product; larger ones, over a minute per
# replica, are rejected
ENTRIES = 2**33

# The nodes that replace the coordinates β of an infinitely wide space; a power of 2
MEAN_NODES = 512


def expand_outer_products(outputs: Sequence[Value], context: Context) -> list[Value]:
    """Expand all functions of the entries of outer products."""
    if not any(isinstance(value.op, Outer) for value in context.ordered(outputs)):
        return list(outputs)
    return rewritten(outputs, context, _Expansion(context).change)


class _Expansion:
    """The rewrite of a program without functions of entries of outer products."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.infinite = math.inf in context.bound.values()
        self.orders = Orders(lambda x: math.isinf(context.width(x)))
        self.small = SmallParts(self.orders)

    def change(self, old: Value, new: Value) -> Value:
        """What replaces a value, given its copy on rewritten inputs."""
        result = self._expanded(new, new.op) if isinstance(new.op, Outer) else new
        # in program order, so that recursion stays shallow
        if self.infinite and isinstance(result, Vector):
            self.orders.has_small_part(result)
            self.orders.bits(result)
        return result

    def _expanded(self, value: Value, op: Outer) -> Vector:
        """The vectors y of an `Outer`, by the formula for the widths of x and of l."""
        left = self._of_order_one(op.left)
        right = self._of_order_one(op.right)
        op = replace(op, left=left, right=right)
        in_width = self.context.width(op.x)
        one_use = op.right.shape[1] == 1
        if math.isinf(in_width):
            if one_use:  # E[sign(r) x] sign(l)
                return mix(mean_dot(op.x, _signs(op.right)), _signs(op.left))
            if self.orders.is_gaussian(op.right) and self.orders.is_gaussian(op.x):
                return _of_gaussians(op)
            has_limit = self.orders.bits(op.right).any(axis=(-1, -2))
            if not has_limit.all():  # r = 0 in the limit, for some matrix
                raise ExactError(value, vanishing_signs(op.optimiser))
            return _summed(value, op, self.context)
        l_is_infinite = math.isinf(self.context.width(op.left))
        if l_is_infinite and (one_use or self.orders.is_gaussian(op.left)):
            return _mean_of_signs(op, int(in_width))
        return _summed(value, op, self.context)

    def _of_order_one(self, x: Vector) -> Vector:
        """√n times vectors whose limit is 0; all other vectors as they are.

        The signs do not depend on this factor.
        """
        if not self.infinite or self.orders.bits(x).any():
            return x
        if not self.context.small_parts:
            return x
        small = self.small.small(x)
        return x if small is None else small


def _mean_of_signs(op: Outer, width: int) -> Vector:
    """y = (1/in) Σ_β x_β sign(Σ_k sizes_k r_kβ l_k), with r_kβ and x_β as scalars.

    `width` is that of r and x, while l has infinite width.
    """
    r = coordinates(op.right, width)  # (matrices, K, in)
    x = coordinates(op.x, width)  # (matrices, vectors, in)
    sizes = constant(np.asarray(op.sizes))
    r_by_coordinate = r.transpose(0, 2, 1)
    entries = mix(r_by_coordinate * sizes, op.left)  # (matrices, in)
    return mix(x / width, _signs(entries))


def _signs(x: Vector) -> Vector:
    """The signs of all coordinates, as vectors."""
    return Vector(Nonlin(SIGN, (x,), ()), x.shape, x.width)


def _summed(value: Value, op: Outer, context: Context) -> Vector:
    """y as an `OuterProductSum`, with coordinates of r and x as scalars.

    All coordinates at finite width; at infinite width, their values at MEAN_NODES nodes
    or about as many, equally many in each block of coordinates. Raises an error for
    matrices with too many entries.
    """
    width = context.width(op.x)
    out = context.width(op.left)
    if math.isinf(width):
        blocks = op.x.width.factor
        # divided by the number of blocks, rounded up to a power of 2
        nodes_per_block = max(1, MEAN_NODES >> (blocks - 1).bit_length())
        width = blocks * nodes_per_block
    count = int(width)
    vectors = join([op.right.reshape(-1), op.x.reshape(-1)])
    numbers = coordinates(vectors, count).reshape(-1)
    matrices = value.shape[0]
    entries = matrices * count * out
    if ENTRIES < entries < math.inf:
        raise ExactError(
            value,
            f"{op.optimiser}'s step of {matrices} matrices {out:.0f}×{count} needs"
            f" every entry of the gradient, {entries:.1e} of them per replica",
            instead="take smaller widths; SGD and Muon need only products of vectors",
        )
    shapes = (*op.right.shape, count), (*op.x.shape, count)
    total = OuterProductSum(op.left, numbers, op.sizes, op.eps, op.optimiser, shapes)
    return Vector(total, value.shape, op.left.width)


def _of_gaussians(op: Outer) -> Vector:
    """y = √(2/π) (l · c)/√(l^T B l) for Gaussian r and x of mean 0.

    B = ⟨r, r⟩/in and c = ⟨r, x⟩/in, times the sizes of the outer products. With B = L
    L^T, l^T B l is the squared norm of L^T l. This is E[sign(g) x] for each coordinate
    of the l_k.
    """
    sizes = constant(np.asarray(op.sizes))
    gram = mean_dot(op.right, op.right)
    root = applied(ROOT, (gram,), gram.shape, axes=2)
    transposed_root = root.transpose(0, 2, 1)
    # L^T l, (matrices, K), and l · c, (matrices, vectors)
    l_in_root = mix(sizes * transposed_root, op.left)
    along_c = mix(sizes * mean_dot(op.x, op.right), op.left)
    # the function takes each of the K vectors L^T l as an argument, (matrices, 1)
    count = l_in_root.shape[1]
    arguments = [l_in_root[:, k : k + 1] for k in range(count)]
    f = Function("over_length", _over_length, lipschitz=False)
    nonlinearity = Nonlin(f, (along_c, *arguments), ())
    quotient = Vector(nonlinearity, along_c.shape, along_c.width)
    return math.sqrt(2 / math.pi) * quotient


def _over_length(along: Any, *rows: Any) -> Any:
    """The first number divided by the norm of all others; 0 where that is 0."""
    xp = array_namespace(along, *rows)
    square = sum(row * row for row in rows)
    is_positive = square > 0
    norm = xp.sqrt(xp.where(is_positive, square, 1.0))
    return xp.where(is_positive, along / norm, 0.0 * along)


# The nodes at which entries are checked
CHECKED_NODES = 64

# A sum smaller than this, relative to its terms, is rounding
CANCELLATION = 1e-12


def vanishing_signs(optimiser: str) -> str:
    """The message that signs of a vanishing gradient have no known limit."""
    return (
        f"{optimiser} takes the signs of a gradient whose limit is 0: as n → ∞ these"
        " are the signs of its fluctuations"
    )


def checked_left(
    left: Any,
    right: Any,
    sizes: Sequence[float],
    varies: npt.NDArray[np.bool_],
    optimiser: str,
) -> Any:
    """`left`, unless an entry Σ_k sizes_k l_kα r_kβ is 0 only in the limit: an error.

    `left`: l at nodes, (…, uses, blocks, nodes). `right`: all coordinates of r, (…,
    uses, in). `varies`: which l_k, (uses,), can be other than 0 at finite width.

    An entry is 0 only in the limit if its terms cancel. If all terms are 0, as behind a
    ReLU, it is 0 at every width, unless some l_k vary and are 0 in the limit. A few
    nodes are enough: if entries cancel, they do so with probability of order 1.
    """
    xp = array_namespace(left, right)
    at_nodes = xp.reshape(left, (*left.shape[:-2], -1))[..., :CHECKED_NODES]
    sizes_of_uses = xp.asarray(sizes, dtype=left.dtype)[:, None]
    scaled_left = xp.matrix_transpose(at_nodes * sizes_of_uses)  # (…, nodes, uses)
    entries = scaled_left @ right  # (…, nodes, in)
    sizes_of_terms = xp.abs(scaled_left) @ xp.abs(right)  # Σ_k |sizes_k l_kα r_kβ|
    is_zero = xp.abs(entries) <= CANCELLATION * sizes_of_terms

    # the uses with l = 0 in the limit only, and the r_β that they multiply
    is_zero_in_limit = ~xp.any(left != 0, axis=(-1, -2))
    fluctuates = is_zero_in_limit & xp.asarray(varies)
    meets_fluctuation = xp.any((right != 0) & fluctuates[..., None], axis=-2)
    nonzero_at_some_width = (sizes_of_terms > 0) | meets_fluctuation[..., None, :]
    is_zero_only_in_limit = is_zero & nonzero_at_some_width

    all_l_vanish = ~xp.any(left != 0, axis=(-1, -2, -3))
    if bool(xp.any(is_zero_only_in_limit)) or bool(xp.any(all_l_vanish)):
        raise UnplacedError(
            f"{vanishing_signs(optimiser)}; net.law(…, method='extrapolate')"
            " estimates the limit"
        )
    return left


def eps_error(value: Value, eps: float, optimiser: str, quantity: str) -> ExactError:
    """The error for eps > 0 at infinite width."""
    return ExactError(
        value,
        f"a step of {optimiser} with eps={eps:g} at infinite width, where {quantity}"
        " of a gradient vanish",
        instead="take eps=0, or finite widths, which have an exact law",
    )
