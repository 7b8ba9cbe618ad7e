"""Functions of torch, written as operations that are read."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch.nn import functional

from ..reader._graph import UnsupportedError


def prelu(x: Any, weight: Any) -> Any:
    """`torch.prelu`: a slope for negative numbers, the same or one for each channel."""
    slope = weight
    if weight.numel() > 1 and x.ndim > 2:  # channels are the second axis
        slope = weight.reshape(-1, *[1] * (x.ndim - 2))
    return torch.relu(x) - slope * torch.relu(-x)


def bilinear(first: Any, second: Any, weight: Any, bias: Any = None) -> Any:
    """`torch.bilinear`: a bilinear form for each output."""
    result = torch.einsum("...i,...j,oij->...o", first, second, weight)
    return result if bias is None else result + bias


def distances(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    """`torch.cdist` of Euclidean distances; torch computes others."""
    if p != 2:
        return torch.cdist(x1, x2, p)
    differences = x1[..., :, None, :] - x2[..., None, :, :]
    return torch.linalg.vector_norm(differences, dim=-1)


def transposed_convolution(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """`torch.conv_transpose1d` and its relatives, x (batch, channels, *positions).

    Each entry of the kernel is a matrix. Its products are moved to their positions in
    the result, and summed.
    """
    if groups > 1:
        raise UnsupportedError(
            f"a transposed convolution with groups={groups}: use one group, or nearest"
            " upsampling and a convolution"
        )
    kernel = weight.shape[2:]
    axes = len(kernel)
    strides, paddings = _for_each_axis(stride, axes), _for_each_axis(padding, axes)
    dilations = _for_each_axis(dilation, axes)
    extra = _for_each_axis(output_padding, axes)
    x = x.movedim(1, -1)
    total: Any = 0.0
    for place in product(*map(range, kernel)):
        y = x @ weight[(slice(None), slice(None), *place)]
        for axis in range(axes):
            reach = dilations[axis] * (kernel[axis] - 1)
            spread = strides[axis] * (x.shape[axis + 1] - 1) + 1
            y = _moved(
                y,
                axis + 1,
                stride=strides[axis],
                before=dilations[axis] * place[axis] - paddings[axis],
                size=spread + reach + extra[axis] - 2 * paddings[axis],
            )
        total = total + y
    if bias is not None:
        total = total + bias
    return total.movedim(-1, 1)


def _for_each_axis(number: Any, axes: int) -> tuple[int, ...]:
    """A number for each axis."""
    return (number,) * axes if isinstance(number, int) else tuple(number)


def _moved(x: Any, axis: int, *, stride: int, before: int, size: int) -> Any:
    """The entries of x at `before`, `before + stride`, … of an axis, and zeros."""
    # torch pads from the last axis on: none of those after `axis`
    no_padding_behind = (0, 0) * (x.ndim - axis - 1)
    if stride > 1:
        column = x.unsqueeze(axis + 1)
        with_zeros = functional.pad(column, (*no_padding_behind, 0, stride - 1))
        x = with_zeros.flatten(axis, axis + 1)
    after = size - before - x.shape[axis]
    return functional.pad(x, (*no_padding_behind, before, after))


PLAIN_FUNCTIONS = {
    torch.conv_transpose1d: transposed_convolution,
    torch.conv_transpose2d: transposed_convolution,
    torch.conv_transpose3d: transposed_convolution,
    torch.prelu: prelu,
    torch.Tensor.prelu: prelu,
    torch.bilinear: bilinear,
    torch.cdist: distances,
}
