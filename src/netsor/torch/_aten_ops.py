"""The table of ATen operations: how the reader computes each one.

`OPS` maps the name of an operation to a function of a `Call`, of its first argument,
and of those of its other arguments that the function names; they have the names of
torch's own schema. What an operation does to vectors and scalars is in `_arithmetic`
and `_rearrangement`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import language as ns
from ..functions.recurrence import SOFTPLUS
from ..reader import _arithmetic as arithmetic
from ..reader import _convolution as convolution
from ..reader import _rearrangement as rearrangement
from ..reader._arithmetic import (
    EXP,
    Call,
    Tensor,
    apply_function,
    entrywise,
    normalised,
)
from ..reader._axes import Refusal, Scalars, Vectors, refuse_if
from ..reader._einsum import einsum
from ..reader._losses import MEAN, cross_entropy
from ..reader._operations import (
    CONVOLUTIONS,
    MAPS_OF_POSITIONS,
    SOFTMAX,
    UNCHANGED,
    VIEWS,
)

Operation = Callable[..., Any]
OPS: dict[str, Operation] = {}


def reads(*names: str) -> Callable[[Operation], Operation]:
    """Enter a function in `OPS`, for the operations of these names."""

    def enter(function: Operation) -> Operation:
        OPS.update(dict.fromkeys(names, function))
        return function

    return enter


def apply_op(name: str, call: Call, arguments: Mapping[str, Any]) -> Any:
    """The result of an operation of this name.

    Arguments that are None, or that its function does not name, are left out.
    """
    refuse_if(
        name.startswith("fft_"),
        "complex numbers are read in products, sums and parts: use their real and"
        " imaginary parts for other functions",
    )
    refuse_if(
        name not in OPS,
        "this operation is not supported; docs/torch.md lists those that are",
    )
    function = OPS[name]
    parameters = inspect.signature(function).parameters
    (_, x), *others = arguments.items()
    options = {
        key: value for key, value in others if key in parameters and value is not None
    }
    return function(call, x, **options)


# Operations that return their first argument


@reads(*UNCHANGED)
def _unchanged(call: Call, x: Tensor) -> Tensor:
    return x


@reads("dropout")
def _dropout(call: Call, x: Tensor, p: float = 0.0, train: bool = False) -> Tensor:
    refuse_if(train and p, "dropout is on")
    return x


@reads("getitem")
def _getitem(call: Call, x: Tensor, index: int) -> Tensor:
    return x[index]


@reads("_assert_tensor_metadata")
def _ignored(call: Call, x: Tensor) -> None:
    """It computes nothing."""


@reads("cross_entropy_loss")
def _cross_entropy_loss(
    call: Call,
    x: Tensor,
    target: Any,
    weight: Any = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """The loss of logits, for given targets: see `cross_entropy`."""
    return cross_entropy(
        x,
        target,
        reduction=reduction,
        ignore_index=ignore_index,
        weight=weight,
        label_smoothing=label_smoothing,
    )


OPS["detach"] = arithmetic.detach

# Arithmetic

FUNCTIONS = (ns.relu, ns.silu, ns.tanh, ns.sigmoid, ns.erf, ns.abs, ns.sin, ns.cos)
OPS |= {f.__name__: entrywise(f) for f in FUNCTIONS}
OPS |= {
    "exp": partial(apply_function, EXP),
    "add": arithmetic.add,
    "sub": arithmetic.subtract,
    "mul": arithmetic.multiply,
    "pow": arithmetic.power,
    "maximum": arithmetic.maximum,
    "minimum": arithmetic.minimum,
    "layer_norm": partial(normalised, ns.layer_norm),
    "rms_norm": partial(normalised, ns.rms_norm),
}


@reads("softplus")
def _softplus(
    call: Call, x: Tensor, beta: float = 1.0, threshold: float = 20.0
) -> Tensor:
    # torch replaces larger arguments by themselves, which changes nothing beyond 20
    refuse_if(beta != 1.0 or threshold < 20.0, "softplus with other parameters")
    return apply_function(SOFTPLUS, call, x)


@reads("pad", "constant_pad_nd")
def _pad(
    call: Call, x: Tensor, pad: list[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    refuse_if(mode != "constant", f"mode={mode!r}: only constant padding is read")
    return rearrangement.pad(call, x, pad, float(value or 0.0))


@reads("cumsum")
def _cumsum(call: Call, x: Tensor, dim: int) -> Tensor:
    return rearrangement.sums_up_to(call, x, dim)


@reads("logcumsumexp")
def _logcumsumexp(call: Call, x: Tensor, dim: int) -> Tensor:
    return rearrangement.running(call, x, dim, arithmetic.log_of_sum)


@reads("cumprod")
def _cumprod(call: Call, x: Tensor, dim: int) -> Tensor:
    return rearrangement.running(call, x, dim, arithmetic.multiply)


@reads("flip")
def _flip(call: Call, x: Tensor, dims: list[int]) -> Tensor:
    for axis in dims:
        order = np.arange(x.shape[axis])[::-1]
        x = rearrangement.pick(call, x, axis, order)
    return x


@reads("tril")
def _tril(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    return arithmetic.multiply(call, x, np.tril(np.ones(x.shape[-2:]), diagonal))


@reads("triu")
def _triu(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    return arithmetic.multiply(call, x, np.triu(np.ones(x.shape[-2:]), diagonal))


@reads("rsub")
def _rsub(call: Call, x: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
    return arithmetic.add(call, arithmetic.multiply(call, x, -float(alpha)), other)


@reads("neg")
def _neg(call: Call, x: Tensor) -> Tensor:
    return arithmetic.multiply(call, x, -1.0)


@reads("div")
def _div(
    call: Call, x: Tensor, other: Tensor, rounding_mode: str | None = None
) -> Tensor:
    """A quotient that is not rounded to an integer."""
    refuse_if(
        rounding_mode is not None,
        f"rounding_mode={rounding_mode!r}: rounding is not read",
    )
    return arithmetic.divide(call, x, other)


@reads("reciprocal")
def _reciprocal(call: Call, x: Tensor) -> Tensor:
    return arithmetic.divide(call, 1.0, x)


@reads("square")
def _square(call: Call, x: Tensor) -> Tensor:
    return arithmetic.power(call, x, 2)


@reads("sqrt")
def _sqrt(call: Call, x: Tensor) -> Tensor:
    return arithmetic.power(call, x, 0.5)


@reads("rsqrt")
def _rsqrt(call: Call, x: Tensor) -> Tensor:
    return arithmetic.power(call, x, -0.5)


@reads("gelu")
def _gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    f = ns.gelu_tanh if approximate == "tanh" else ns.gelu
    return entrywise(f)(call, x)


@reads("leaky_relu")
def _leaky_relu(call: Call, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return entrywise(partial(ns.leaky_relu, slope=negative_slope))(call, x)


@reads("hardtanh")
def _hardtanh(
    call: Call, x: Tensor, min_val: float = -1.0, max_val: float = 1.0
) -> Tensor:
    return arithmetic.clamp(call, x, least=min_val, most=max_val)


@reads("hardsigmoid")
def _hardsigmoid(call: Call, x: Tensor) -> Tensor:
    shifted = arithmetic.add(call, arithmetic.multiply(call, x, 1 / 6), 0.5)
    return arithmetic.clamp(call, shifted, least=0.0, most=1.0)


@reads("hardswish")
def _hardswish(call: Call, x: Tensor) -> Tensor:
    return arithmetic.multiply(call, x, _hardsigmoid(call, x))


@reads("clamp", "clamp_min", "clamp_max")
def _clamp(call: Call, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return arithmetic.clamp(call, x, least=min, most=max)


@reads("mean")
def _mean(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return arithmetic.mean(call, x, dim, keepdim)


@reads("sum")
def _sum(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return arithmetic.total(call, x, dim, keepdim)


@reads("linalg_vector_norm")
def _vector_norm(
    call: Call, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False
) -> Tensor:
    return arithmetic.norm(call, x, ord, dim, keepdim)


@reads("norm")
def _norm(
    call: Call, x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False
) -> Tensor:
    return arithmetic.norm(call, x, p, dim, keepdim)


@reads("var")
def _var(
    call: Call,
    x: Tensor,
    dim: Any = (),
    keepdim: bool = False,
    unbiased: bool = True,
    correction: Any = None,
) -> Scalars:
    """The variance along axes; `correction` is taken from the count of entries."""
    removed = float(unbiased if correction is None else correction)
    return arithmetic.variance(call, x, dim, keepdim, correction=removed)


@reads("std")
def _std(
    call: Call,
    x: Tensor,
    dim: Any = (),
    keepdim: bool = False,
    unbiased: bool = True,
    correction: Any = None,
) -> Tensor:
    """The standard deviation along axes, as the root of `_var`."""
    variance = _var(call, x, dim, keepdim, unbiased, correction)
    return arithmetic.raised(variance, 0.5)


@reads("var_mean")
def _var_mean(
    call: Call,
    x: Tensor,
    dim: Any = (),
    keepdim: bool = False,
    correction: Any = None,
) -> list[Tensor]:
    """The variance and the mean along axes."""
    variance = _var(call, x, dim, keepdim, correction=correction)
    return [variance, _mean(call, x, dim, keepdim)]


@reads("std_mean")
def _std_mean(
    call: Call,
    x: Tensor,
    dim: Any = (),
    keepdim: bool = False,
    correction: Any = None,
) -> list[Tensor]:
    """The standard deviation and the mean along axes."""
    std = _std(call, x, dim, keepdim, correction=correction)
    return [std, _mean(call, x, dim, keepdim)]


@reads("where")
def _where(call: Call, condition: Tensor, self: Tensor, other: Tensor) -> Tensor:
    return arithmetic.where(call, condition, self, other)


@reads("index_put")
def _index_put(
    call: Call, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False
) -> Tensor:
    """`x[mask] = values`, at given places of the first axes."""
    refuse_if(accumulate, "values that are added at indices")
    refuse_if(
        len(indices) > 1 or indices[0] is None,
        "entries are replaced at one given mask, or at given indices of the first axis",
    )
    mask = indices[0]
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == bool
    if is_mask and len(values.shape) <= len(x.shape) - mask.ndim:  # the same for all
        new_axes = (1,) * (len(x.shape) - mask.ndim)
        return arithmetic.where(call, mask.reshape(*mask.shape, *new_axes), values, x)
    return rearrangement.replaced_at(call, x, indices, values)


@reads("index_add")
def _index_add(
    call: Call, x: Tensor, dim: int, index: Any, source: Tensor, alpha: float = 1.0
) -> Tensor:
    values = arithmetic.multiply(call, source, float(alpha))
    return rearrangement.added_at(call, x, dim, index, values)


@reads("masked_fill")
def _masked_fill(call: Call, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    if arithmetic.is_random(mask):
        return arithmetic.where(call, mask, value, x)
    return arithmetic.where(call, ~mask, x, value)


# Matrix products and attention

OPS |= {"linear": arithmetic.linear, "matmul": arithmetic.matmul}


@reads("mm", "bmm")
def _mm(call: Call, x: Tensor, mat2: Tensor) -> Tensor:
    return arithmetic.matmul(call, x, mat2)


@reads("addmm")
def _addmm(
    call: Call, x: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return arithmetic.add_matmul(call, x, mat1, mat2, beta=beta, alpha=alpha)


@reads("baddbmm")
def _baddbmm(
    call: Call,
    x: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """beta · x + alpha · batch1 @ batch2."""
    return arithmetic.add_matmul(call, x, batch1, batch2, beta=beta, alpha=alpha)


@reads("linalg_solve_triangular")
def _solve_triangular(
    call: Call,
    x: Tensor,
    B: Tensor,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """The solution Y of X Y = B for lower triangular X with ones on the diagonal."""
    is_read = left and unitriangular and not upper
    refuse_if(not is_read, "only lower systems with ones on the diagonal")
    return arithmetic.solve_unit_lower(call, x, B)


@reads("einsum")
def _einsum(call: Call, equation: str, tensors: list[Tensor]) -> Tensor:
    return einsum(call, equation, tensors)


@reads(*SOFTMAX)
def _softmax(call: Call, x: Tensor, dim: int) -> Tensor:
    if isinstance(x, Vectors) and dim % len(x.shape) != x.axis:
        running_logs = rearrangement.running(call, x, dim, arithmetic.log_of_sum)
        log_of_total = rearrangement.pick(call, running_logs, dim, slice(-1, None))
        return arithmetic.shares(call, x, log_of_total)
    return arithmetic.softmax(call, x, dim)


# Convolutions, pooling, norms of channels

# what only moves entries, leaves some out, or adds zeros
MOVES = ("roll", "rot90", "unfold", "movedim", "moveaxis", "im2col", "col2im")
OPS |= dict.fromkeys(CONVOLUTIONS, convolution.convolution)
OPS |= dict.fromkeys(MAPS_OF_POSITIONS, convolution.map_of_positions)
OPS |= dict.fromkeys(MOVES, convolution.rearranged)
OPS |= {
    "batch_norm": convolution.batch_norm,
    "instance_norm": convolution.instance_norm,
    "group_norm": convolution.group_norm,
}
OPS |= {f"max_pool{n}d": convolution.max_pool for n in (1, 2, 3)}


@reads("_native_batch_norm_legit_no_training")
def _batch_norm_by_running_statistics(
    call: Call,
    x: Tensor,
    weight: Tensor = None,
    bias: Tensor = None,
    running_mean: Tensor = None,
    running_var: Tensor = None,
    eps: float = 1e-5,
) -> list[Tensor]:
    """The normalised tensor; the other results are not read."""
    normalised = convolution.batch_norm(
        call, x, weight, bias, running_mean, running_var, eps=eps
    )
    return [normalised]


@reads("_native_batch_norm_legit", "_batch_norm_with_update")
def _batch_norm_by_batch(
    call: Call, x: Tensor, weight: Tensor = None, bias: Tensor = None, eps: float = 1e-5
) -> list[Tensor]:
    """The normalised tensor; the other results are not read."""
    return [convolution.batch_norm(call, x, weight, bias, training=True, eps=eps)]


@reads("native_group_norm")
def _native_group_norm(
    call: Call,
    x: Tensor,
    weight: Tensor = None,
    bias: Tensor = None,
    group: int = 1,
    eps: float = 1e-5,
) -> list[Tensor]:
    """The normalised tensor; the other results are not read."""
    return [convolution.group_norm(call, x, group, weight, bias, eps)]


@reads(*(f"max_pool{n}d_with_indices" for n in (2, 3)))
def _max_pool_with_indices(
    call: Call,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> list[Tensor]:
    """The pooled tensor; the indices are not read."""
    return [convolution.max_pool(call, x, kernel_size, stride, padding, dilation)]


@reads("amax")
def _amax(call: Call, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return convolution.maximum_over(call, x, dim, keepdim)


@reads("max")
def _max(
    call: Call, x: Tensor, other: Tensor = None, dim: Any = None, keepdim: bool = False
) -> Any:
    """The larger of two tensors, or the largest numbers; their indices are not read."""
    if other is not None:
        return arithmetic.maximum(call, x, other)
    refuse_if(dim is None, "the largest of all entries")
    return [convolution.maximum_over(call, x, dim, keepdim)]


@reads("min")
def _min(call: Call, x: Tensor, other: Tensor = None) -> Tensor:
    """The smaller of two tensors."""
    refuse_if(other is None, "the smallest number along an axis of coordinates")
    return arithmetic.minimum(call, x, other)


@reads(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3)))
def _adaptive_max_pool(call: Call, x: Tensor) -> list[Tensor]:
    """The pooled tensor; the indices are not read."""
    return [convolution.adaptive_max_pool(call, x)]


# Rearrangements


@reads(*VIEWS)
def _view(call: Call, x: Tensor) -> Tensor:
    return rearrangement.reshape(call, x, call.shape)


@reads("expand", "expand_as")
def _expand(call: Call, x: Tensor) -> Tensor:
    return rearrangement.expand(call, x, call.shape)


@reads("transpose")
def _transpose(call: Call, x: Tensor, dim0: int, dim1: int) -> Tensor:
    return rearrangement.transpose(call, x, dim0, dim1)


@reads("swapaxes")
def _swapaxes(call: Call, x: Tensor, axis0: int, axis1: int) -> Tensor:
    return rearrangement.transpose(call, x, axis0, axis1)


@reads("t", "mT")
def _t(call: Call, x: Tensor) -> Tensor:
    if len(x.shape) < 2:  # `t` of a vector is the vector
        return x
    return rearrangement.transpose(call, x, -2, -1)


@reads("permute")
def _permute(call: Call, x: Tensor, dims: list[int]) -> Tensor:
    return rearrangement.permute(call, x, dims)


@reads("slice")
def _slice(
    call: Call,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """The entries `start:end:step` along an axis."""
    return rearrangement.pick(call, x, dim, slice(start, end, step))


@reads("narrow")
def _narrow(call: Call, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    if start < 0:  # counted from the end; −2 + 2 would be the beginning
        start += x.shape[dim]
    return rearrangement.pick(call, x, dim, slice(start, start + length))


@reads("select", "index_select")
def _select(call: Call, x: Tensor, dim: int, index: Any) -> Tensor:
    return rearrangement.pick(call, x, dim, index)


@reads("gather")
def _gather(call: Call, x: Tensor, dim: int, index: Any) -> Tensor:
    return rearrangement.gather(call, x, dim, index)


@reads("index")
def _index(call: Call, x: Tensor, indices: Any) -> Tensor:
    is_chosen_by_draw = any(arithmetic.is_random(index) for index in indices)
    refuse_if(is_chosen_by_draw, rearrangement.RANDOM_INDICES)
    try:
        return rearrangement.indexed(call, x, indices)
    except Refusal:
        return convolution.rearranged(call, x)


@reads("split", "split_with_sizes", "chunk")
def _pieces(call: Call, x: Tensor, dim: int = 0) -> list[Tensor]:
    return rearrangement.pieces(call, x, dim)


@reads("unbind")
def _unbind(call: Call, x: Tensor, dim: int = 0) -> list[Tensor]:
    return rearrangement.entries_along(call, x, dim)


@reads("cat", "concat", "concatenate")
def _cat(call: Call, parts: list[Tensor], dim: int = 0) -> Tensor:
    return rearrangement.concatenate(call, parts, dim)


@reads("slice_scatter")
def _slice_scatter(
    call: Call,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor with `src` as its entries `start:end:step` along an axis."""
    positions = range(call.shape[dim])[slice(start, end, step)]
    return rearrangement.slice_scatter(call, x, src, dim, positions)


@reads("select_scatter")
def _select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """The tensor with `src`, which lacks the axis, as its entry `index` along it."""
    position = index % call.shape[dim]
    shape = list(call.shape)
    shape[dim] = 1
    patch = rearrangement.reshape(call, src, tuple(shape))
    positions = range(position, position + 1)
    return rearrangement.slice_scatter(call, x, patch, dim, positions)


@reads("copy")
def _copy(call: Call, x: Tensor, src: Tensor) -> Tensor:
    return rearrangement.expand(call, src, call.shape)


@reads("stack")
def _stack(call: Call, parts: list[Tensor], dim: int = 0) -> Tensor:
    return rearrangement.stack(call, parts, dim)


@reads("repeat")
def _repeat(call: Call, x: Tensor, repeats: list[int]) -> Tensor:
    return rearrangement.tile(call, x, repeats)


@reads("repeat_interleave")
def _repeat_interleave(call: Call, x: Tensor, repeats: Any, dim: int) -> Tensor:
    return rearrangement.repeat_entries(call, x, repeats, dim)


@reads("embedding")
def _embedding(
    call: Call,
    table: Tensor,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """The rows of a table at the indices."""
    return rearrangement.embedding(
        call,
        table,
        indices,
        padding=padding_idx,
        divides_gradients=scale_grad_by_freq,
    )


@reads("embedding_renorm")
def _embedding_renorm(call: Call, x: Tensor) -> None:
    refuse_if(True, "max_norm rescales the rows of a table: set max_norm=None")
