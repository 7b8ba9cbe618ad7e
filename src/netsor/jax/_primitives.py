"""The table of primitives: how the reader computes each one.

`RULES` maps the name of a primitive, or of a pattern of several, to a function of a
`Call`, of its operands, and of those of its parameters that the function names. What an
operation does to vectors and scalars is in `reader/_arithmetic.py` and
`reader/_rearrangement.py`. `OPERATIONS` are the names by which `reader/_structure.py`
recognises the parts of a network.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import language as ns
from .._array_api import Ints
from .._validate import Shape
from ..reader import _arithmetic as arithmetic
from ..reader import _convolution as convolution
from ..reader import _rearrangement as rearrangement
from ..reader._arithmetic import EXP, Call, Tensor, apply_function, entrywise
from ..reader._axes import Refusal, Scalars, refuse_if
from ..reader._graph import shape_of
from ..reader._operations import REARRANGEMENTS
from ..reader._random_parameters import Random
from ._nodes import Node
from ._products import product
from ._scatter import scatter

Operation = Callable[..., Any]
RULES: dict[str, Operation] = {}

# names in `reader/_operations.py`; other primitives keep their own
OPERATIONS = {
    "broadcast_in_dim": "expand",
    "concatenate": "cat",
    "conv_general_dilated": "conv2d",
    "convert_element_type": "to",
    "logistic": "sigmoid",
    "rev": "flip",
    "stop_gradient": "detach",
    "top_k": "topk",
    "transpose": "permute",
}


def reads(*names: str) -> Callable[[Operation], Operation]:
    """Enter a function in `RULES`, for the primitives of these names."""

    def enter(function: Operation) -> Operation:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def apply_rule(
    node: Node, call: Call, args: Sequence[Any], names: tuple[str, ...]
) -> Any:
    """The result of an operation, by the rule of the first of these names.

    A rule gets those options of the node that its signature names.
    """
    if "getitem" in names:  # one of several results, whatever computes them
        names = ("getitem",)
    names_of_rules = [name for name in names if name in RULES]
    if not names_of_rules:
        raise Refusal(
            "this primitive is not supported; docs/jax.md lists those that are"
        )
    rule = RULES[names_of_rules[0]]
    rule_arguments = inspect.signature(rule).parameters
    options = {**node.kwargs, "compute": node.compute, "primitive": node.target}
    options = {key: value for key, value in options.items() if key in rule_arguments}
    return rule(call, *args, **options)


# What a node is


def operands_of(
    name: str, inputs: list[Any], equation: Any, compute: Any
) -> tuple[str, list[Any], Any]:
    """The operation that a primitive is here, its operands, and what computes it."""
    if name == "dot_general":
        return _operands_of_product(inputs, equation, compute)
    if name == "gather" and _is_lookup(equation, inputs):
        return "embedding", inputs, compute
    return name, inputs, compute


def _operands_of_product(
    inputs: list[Any], equation: Any, compute: Any
) -> tuple[str, list[Any], Any]:
    """A product with a parameter is "linear", with the parameter as second operand."""
    is_parameter = [_is_view_of_parameter(x) for x in inputs]
    if is_parameter[1]:
        return "linear", inputs, compute
    if is_parameter[0]:
        return "linear_from_left", inputs, compute
    return "matmul", inputs, compute


def _is_view_of_parameter(x: Any) -> bool:
    """Whether an operand is a random parameter, rearranged."""
    while isinstance(x, Node) and x.operation in REARRANGEMENTS:
        x = x.args[0]
    return isinstance(x, Node) and x.operation == "parameter"


def _is_lookup(equation: Any, inputs: list[Any]) -> bool:
    """Whether `gather` takes whole rows of a table, at known indices."""
    table, ids = inputs
    if not _is_table(table) or _is_random(ids):
        return False
    numbers = equation.params["dimension_numbers"]
    one_row = (1, shape_of(table)[1])
    return (
        tuple(equation.params["slice_sizes"]) == one_row
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
    )


def _is_table(x: Any) -> bool:
    """Whether an operand is a random parameter with two axes."""
    is_parameter = isinstance(x, Node) and x.operation == "parameter"
    return is_parameter and len(shape_of(x)) == 2


def _is_random(x: Any) -> bool:
    """Whether an operand depends on random parameters."""
    return isinstance(x, Node) and x.is_random


def slices_rows(equation: Any, inputs: list[Any]) -> bool:
    """Whether `gather` takes slices that are rows of a table, as `vmap` of `table[k]`.

    Each index is then a row and a column, and each slice has an axis of one row.
    """
    table, ids = inputs
    if not _is_table(table) or _is_random(ids):
        return False
    fills_outside = jax.lax.GatherScatterMode.FILL_OR_DROP
    if equation.params["mode"] == fills_outside:
        return False
    numbers = equation.params["dimension_numbers"]
    one_row = (1, shape_of(table)[1])
    ndim = len(equation.outvars[0].aval.shape)
    last_two_axes = (ndim - 2, ndim - 1)
    return (
        tuple(equation.params["slice_sizes"]) == one_row
        and tuple(numbers.start_index_map) == (0, 1)
        and tuple(numbers.offset_dims) == last_two_axes
    )


# Operations that return their first argument


@reads("convert_element_type", "copy", "reduce_precision")
def _unchanged(call: Call, x: Tensor) -> Tensor:
    return x


@reads("getitem")
def _getitem(call: Call, x: Tensor, index: int) -> Tensor:
    return x[index]


RULES["stop_gradient"] = arithmetic.detach

# Functions of entries

FUNCTIONS = (ns.tanh, ns.erf, ns.abs, ns.sin, ns.cos)
RULES |= {f.__name__: entrywise(f) for f in FUNCTIONS}
RULES |= {
    "logistic": entrywise(ns.sigmoid),
    "exp": lambda call, x: apply_function(EXP, call, x),
    "sub": arithmetic.subtract,
    "mul": arithmetic.multiply,
    "div": arithmetic.divide,
    "max": arithmetic.maximum,
    "min": arithmetic.minimum,
}


@reads("function")
def _function(call: Call, x: Tensor, function: Any) -> Tensor:
    """A function that several primitives compute together."""
    return apply_function(function, call, x)


@reads("neg")
def _neg(call: Call, x: Tensor) -> Tensor:
    return arithmetic.multiply(call, x, -1.0)


@reads("square")
def _square(call: Call, x: Tensor) -> Tensor:
    return arithmetic.multiply(call, x, x)


@reads("one_minus_square")
def _one_minus_square(call: Call, x: Tensor) -> Tensor:
    return arithmetic.subtract(call, np.ones(()), arithmetic.multiply(call, x, x))


@reads("integer_pow")
def _integer_pow(call: Call, x: Tensor, y: int) -> Tensor:
    return arithmetic.power(call, x, y)


@reads("pow")
def _pow(call: Call, x: Tensor, exponent: Tensor) -> Tensor:
    refuse_if(
        arithmetic.is_random(exponent) or np.size(exponent) > 1,
        "powers are read if the exponent is one number",
    )
    return arithmetic.power(call, x, np.ravel(exponent)[0])


@reads("sqrt")
def _sqrt(call: Call, x: Tensor) -> Tensor:
    return arithmetic.power(call, x, 0.5)


@reads("rsqrt")
def _rsqrt(call: Call, x: Tensor) -> Tensor:
    return arithmetic.power(call, x, -0.5)


@reads("clamp")
def _clamp(call: Call, least: Any, x: Tensor, most: Any) -> Tensor:
    return arithmetic.clamp(call, x, least=least, most=most)


@reads("add", "add_any")
def _add(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if isinstance(a, Random):
        a, b = b, a
    if isinstance(a, Scalars) and isinstance(b, Random) and _is_bias_of_logits(call, b):
        b = call.draws.scalars(call.draws.vectors(b))
    return arithmetic.add(call, a, b)


def _is_bias_of_logits(call: Call, bias: Random) -> bool:
    """Whether a parameter has one number for each output of the head."""
    head = call.draws.head
    if head is None:
        return False
    words = call.shape[-1]
    has_one_for_each_word = bias.shape[-1] == math.prod(bias.shape) == words
    return has_one_for_each_word and words in call.draws.laws[head].shape


@reads("select_n")
def _select_n(call: Call, which: Tensor, *cases: Tensor) -> Tensor:
    refuse_if(len(cases) != 2, "a choice among more than two cases")
    return arithmetic.where(call, condition=which, chosen=cases[1], other=cases[0])


# Sums and norms


@reads("reduce_sum")
def _reduce_sum(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    return arithmetic.total(call, x, list(axes))


@reads("mean")
def _mean(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    means = arithmetic.mean(call, x, list(axes))
    return rearrangement.reshape(call, means, call.shape)


@reads("reduce_max")
def _reduce_max(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    return convolution.maximum_over(call, x, axes=list(axes), keepdims=False)


@reads("layer_norm")
def _layer_norm(call: Call, x: Tensor, eps: float) -> Tensor:
    return arithmetic.normalised(ns.layer_norm, call, x, normalized_shape=(1,), eps=eps)


@reads("reduce_prod")
def _reduce_prod(call: Call, x: Tensor, axes: Sequence[int]) -> Tensor:
    # the last running product along an axis is the product of all its entries
    last_first = sorted((axis % len(x.shape) for axis in axes), reverse=True)
    for axis in last_first:
        last = x.shape[axis] - 1
        products = rearrangement.running(call, x, axis, combine=arithmetic.multiply)
        x = rearrangement.pick(call, x=products, axis=axis, index=last)
    return x


@reads("softmax")
def _softmax(call: Call, x: Tensor, axis: int) -> Scalars:
    return arithmetic.softmax(call, x, axis)


@reads("cumsum")
def _cumsum(call: Call, x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    if not reverse:
        return rearrangement.sums_up_to(call, x, axis)
    backwards = np.arange(x.shape[axis])[::-1]
    reversed_x = rearrangement.pick(call, x, axis, index=backwards)
    sums = rearrangement.sums_up_to(call, reversed_x, axis)
    return rearrangement.pick(call, x=sums, axis=axis, index=backwards)


@reads("cumprod")
def _cumprod(call: Call, x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    refuse_if(reverse, "cumulative products from the end")
    return rearrangement.running(call, x, axis, combine=arithmetic.multiply)


@reads("cumlogsumexp")
def _cumlogsumexp(call: Call, x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    refuse_if(reverse, "cumulative sums from the end")
    return rearrangement.running(call, x, axis, combine=arithmetic.log_of_sum)


# Matrix products


@reads("dot_general")
def _dot_general(call: Call, x: Tensor, y: Tensor, dimension_numbers: Any) -> Tensor:
    return product(call, x, y, dimension_numbers)


@reads("conv_general_dilated")
def _convolution(
    call: Call,
    x: Tensor,
    kernel: Tensor,
    dimension_numbers: Any,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int],
    lhs_dilation: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
) -> Tensor:
    """A convolution in the layout of the reader: (batch, channels, pixels…).

    `dimension_numbers` says which axes of images (lhs), kernel (rhs) and result (out)
    are these.
    """
    refuse_if(batch_group_count > 1, "groups of the batch")
    layout = dimension_numbers
    x = rearrangement.permute(call, x, layout.lhs_spec)
    if any(step > 1 for step in lhs_dilation):
        x = _with_gaps(call, x, lhs_dilation)
    kernel = rearrangement.permute(call, kernel, layout.rhs_spec)
    x, same_on_both_sides = _with_uneven_padding(call, x, padding)
    shape = tuple(call.shape[axis] for axis in layout.out_spec)
    result = convolution.convolution(
        call.returning(shape),
        x,
        weight=kernel,
        stride=tuple(window_strides),
        padding=same_on_both_sides,
        dilation=tuple(rhs_dilation),
        groups=feature_group_count,
    )
    axes_of_jax = tuple(np.argsort(layout.out_spec).tolist())
    return rearrangement.permute(call, result, axes_of_jax)


@reads("reduce_window_sum")
def _reduce_window_sum(call: Call, x: Tensor) -> Tensor:
    return convolution.map_of_positions(call, x)


@reads("reduce_window_max")
def _reduce_window_max(
    call: Call,
    x: Tensor,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Tensor:
    refuse_if(any(step > 1 for step in base_dilation), "windows of images with gaps")
    windows = convolution.Windows(
        kernel=tuple(window_dimensions),
        stride=tuple(window_strides),
        padding=tuple(before for before, _ in padding),
        dilation=tuple(window_dilation),
    )
    return convolution.max_of_windows(call, x, windows)


def _with_uneven_padding(
    call: Call, x: Tensor, padding: Sequence[tuple[int, int]]
) -> tuple[Tensor, tuple[int, ...]]:
    """Images with the zeros of axes that are padded unevenly, as by a causal
    convolution, and the padding on both sides that remains for the others.
    """
    remaining = []
    for number, (before, after) in enumerate(padding):
        if before == after:
            remaining.append(before)
            continue
        remaining.append(0)
        axis = 2 + number  # after batch and channels
        axes_after = len(padding) - 1 - number
        sizes = [0, 0] * axes_after + [before, after]  # from the last axis on
        shape = [*x.shape]
        shape[axis] += before + after
        x = _padded(call.returning(shape), x, sizes)
    return x, tuple(remaining)


def _with_gaps(call: Call, x: Tensor, steps: Sequence[int]) -> Tensor:
    """Images (batch, channels, pixels…) with zeros between their pixels."""
    sizes = [
        (size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)
    ]

    def of_array(array: Any) -> Any:
        """The same for an array."""
        with_gaps = np.zeros((*array.shape[:2], *sizes))
        pixels = tuple(slice(None, None, step) for step in steps)
        with_gaps[:, :, *pixels] = array
        return with_gaps

    if not arithmetic.is_random(x):
        return of_array(np.asarray(x))
    shape = (*x.shape[:2], *sizes)
    return convolution.rearranged(call._replace(shapes=[shape], of_array=of_array), x)


def _padded(call: Call, x: Tensor, sizes: list[int]) -> Tensor:
    """A tensor, random or given, with zeros beside it along its last axes.

    `sizes` are the zeros before and after, from the last axis on, as in PyTorch.
    """
    if arithmetic.is_random(x):
        return rearrangement.pad(call, x, sizes, value=0.0)
    befores = sizes[0::2]
    afters = sizes[1::2]
    of_last_axes = [*zip(befores, afters, strict=True)][::-1]
    of_first_axes = [(0, 0)] * (len(x.shape) - len(of_last_axes))
    return np.pad(np.asarray(x), of_first_axes + of_last_axes)


# Rearrangements


@reads("reshape", "squeeze", "expand_dims")
def _reshape(call: Call, x: Tensor) -> Tensor:
    return rearrangement.reshape(call, x, call.shape)


@reads("broadcast_in_dim")
def _broadcast_in_dim(
    call: Call, x: Tensor, shape: Shape, broadcast_dimensions: Sequence[int]
) -> Tensor:
    """x with new axes, expanded; its axis k becomes `broadcast_dimensions[k]`."""
    shape_with_new_axes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        shape_with_new_axes[axis] = size
    x = rearrangement.reshape(call, x, tuple(shape_with_new_axes))
    if tuple(shape_with_new_axes) == tuple(shape):
        return x
    return rearrangement.expand(call, x, tuple(shape))


@reads("transpose")
def _transpose(call: Call, x: Tensor, permutation: Sequence[int]) -> Tensor:
    return rearrangement.permute(call, x, permutation)


@reads("slice")
def _slice(
    call: Call,
    x: Tensor,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
) -> Tensor:
    steps = strides or [1] * len(start_indices)
    slices = map(slice, start_indices, limit_indices, steps)
    for axis, indices in enumerate(slices):
        if indices != slice(0, x.shape[axis], 1):
            x = rearrangement.pick(call, x, axis, index=indices)
    return x


@reads("dynamic_slice")
def _dynamic_slice(
    call: Call, x: Tensor, *starts: Any, slice_sizes: Sequence[int]
) -> Tensor:
    refuse_if(
        any(arithmetic.is_random(start) for start in starts),
        "a slice whose place depends on random numbers",
    )
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size == x.shape[axis]:
            continue
        first = _start_in_range(start, size, x.shape[axis])
        x = rearrangement.pick(call, x, axis, index=slice(first, first + size))
    return x


def _start_in_range(start: Any, size: int, length: int) -> int:
    """Where a slice of an axis begins: JAX moves it so that all of it is inside."""
    return min(max(int(start), 0), length - size)


@reads("dynamic_update_slice")
def _dynamic_update_slice(call: Call, x: Tensor, patch: Tensor, *starts: Any) -> Tensor:
    """x, of which `patch` replaces a slice along one axis, at a known start."""
    refuse_if(
        any(arithmetic.is_random(start) for start in starts),
        "a slice whose place depends on random numbers",
    )
    axes = [axis for axis, size in enumerate(patch.shape) if size != call.shape[axis]]
    if not axes:
        return patch
    refuse_if(len(axes) > 1, "an update of a part along several axes")
    (axis,) = axes
    size = patch.shape[axis]
    first = _start_in_range(starts[axis], size, call.shape[axis])
    positions = range(first, first + size)
    result = rearrangement.slice_scatter(call, x, patch, axis, positions)
    if isinstance(result, rearrangement.Patchwork):
        # given numbers with random slices, which are kept apart in case that further
        # slices follow; JAX's updates are values of their own, so they are joined now
        return result.joined(call)
    return result


@reads("tile")
def _tile(call: Call, x: Tensor, reps: Sequence[int]) -> Tensor:
    return rearrangement.tile(call, x, list(reps))


@reads("select")
def _select(call: Call, x: Tensor, index: int) -> Tensor:
    return rearrangement.pick(call, x, axis=0, index=index)


@reads("stack")
def _stack(call: Call, *parts: Tensor, axis: int = 0) -> Tensor:
    # the results of a loop have no axis among their options: they are stacked along 0
    return rearrangement.stack(call, list(parts), axis)


@reads("concatenate")
def _concatenate(call: Call, *parts: Tensor, dimension: int) -> Tensor:
    parts_with_entries = [part for part in parts if 0 not in part.shape]
    return rearrangement.concatenate(call, parts_with_entries, dimension)


@reads("split")
def _split(call: Call, x: Tensor, axis: int) -> list[Tensor]:
    return rearrangement.pieces(call, x, axis)


@reads("rev")
def _rev(call: Call, x: Tensor, dimensions: Sequence[int]) -> Tensor:
    for axis in dimensions:
        order = np.arange(x.shape[axis])[::-1]
        x = rearrangement.pick(call, x, axis, index=order)
    return x


@reads("pad")
def _pad(call: Call, x: Tensor, value: Any, padding_config: Any) -> Tensor:
    """x with `value` around it; a configuration is (before, after, between entries)."""
    refuse_if(arithmetic.is_random(value), "padding with random numbers")
    if any(between for _, _, between in padding_config):
        refuse_if(value != 0, "padding between the entries with other numbers than 0")
        return convolution.rearranged(call, x)
    sizes: list[int] = []
    for before, after, _ in reversed(padding_config):  # from the last axis on
        sizes += [before, after]
    return rearrangement.pad(call, x, sizes, value=float(value))


@reads("gather")
def _gather(call: Call, x: Tensor, ids: Any) -> Tensor:
    refuse_if(arithmetic.is_random(ids), "indices that are random")
    return convolution.rearranged(call, x)


@reads("scatter", "scatter-add")
def _scatter(
    call: Call,
    x: Tensor,
    ids: Any,
    updates: Tensor,
    dimension_numbers: Any,
    compute: Callable[..., Any],
    primitive: str,
) -> Tensor:
    refuse_if(arithmetic.is_random(ids), "indices that are random")

    def scatter_arrays(operand: Any, array: Any) -> Any:
        """The result of JAX for arrays that stand for the operand and the updates."""
        return compute(np.float32(operand), ids, np.float32(array))

    return scatter(
        call,
        x,
        updates,
        dimension_numbers,
        compute=scatter_arrays,
        adds=primitive == "scatter-add",
    )


@reads("embedding")
def _embedding(call: Call, table: Tensor, ids: Ints) -> Tensor:
    """Rows of a table; ids may have a last axis of one entry."""
    ids = np.asarray(ids)
    if ids.ndim == len(call.shape) and ids.shape[-1] == 1:
        ids = ids[..., 0]
    rows = table.shape[0]
    refuse_if(
        ids.size and not 0 <= ids.min() <= ids.max() < rows,
        f"ids up to {ids.max()} of a table with {rows} rows",
    )
    return rearrangement.embedding(call, table, ids)


# operations that act on each entry in the same way, and have no rule for vectors
POINTWISE = (
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clamp",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "integer_pow",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "neg",
    "nextafter",
    "not",
    "or",
    "and",
    "pow",
    "rem",
    "round",
    "rsqrt",
    "select_n",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "add",
    "xor",
)
# of them, those that return truth values
COMPARISONS = (
    "and",
    "eq",
    "ge",
    "gt",
    "is_finite",
    "le",
    "lt",
    "ne",
    "not",
    "or",
    "xor",
)
