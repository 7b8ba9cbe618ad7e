"""Convolutions of sequences as sums over the taps of their kernel.

While a module is captured, `conv1d` is computed by slices of the sequence: tap k of the
kernel acts on the sequence moved by k. A tap is a vector that multiplies the channels
(a depthwise convolution, one group for each channel), or a matrix that acts on those of
its group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear, pad
from torch.nn.modules.utils import _single

CONVOLUTION = torch.nn.functional.conv1d


def convolution_by_taps(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`conv1d`: Σ_k weight[:, :, k] · x[:, :, stride · t + dilation · k − padding].

    x is (batch, channels, tokens) or (channels, tokens), and `weight` is (outputs,
    channels / groups, taps).
    """
    (step,), (spread,) = _single(stride), _single(dilation)
    outputs, inputs_of_group, taps = weight.shape
    before, after = _padding(padding, reach=spread * (taps - 1))
    if before or after:
        x = pad(x, (before, after))
    tokens = (x.shape[-1] - spread * (taps - 1) - 1) // step + 1
    total: Any = 0.0
    for tap in range(taps):
        start = spread * tap
        moved = x[..., start : start + step * (tokens - 1) + 1 : step]
        if inputs_of_group == 1 and outputs == groups:
            product = moved * weight[:, 0, tap, None]
        else:
            product = _products_of_groups(moved, weight[:, :, tap], groups)
        total = total + product
    return total if bias is None else total + bias[:, None]


def _padding(padding: Any, reach: int) -> tuple[int, int]:
    """The number of zeros before and after a sequence."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        return reach // 2, reach - reach // 2
    (size,) = _single(padding)
    return size, size


def _products_of_groups(x: Any, matrices: Any, groups: int) -> Any:
    """The matrix of each group times its channels, (…, channels, tokens)."""
    outputs, inputs = matrices.shape[0] // groups, matrices.shape[1]
    products = []
    for group in range(groups):
        channels = x[..., group * inputs : (group + 1) * inputs, :]
        matrix = matrices[group * outputs : (group + 1) * outputs]
        products.append(linear(channels.transpose(-1, -2), matrix).transpose(-1, -2))
    return products[0] if groups == 1 else torch.cat(products, dim=-2)
