"""Functions of torch, written as operations that are read."""

from __future__ import annotations

from typing import Any

import torch


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


PLAIN_FUNCTIONS = {
    torch.prelu: prelu,
    torch.Tensor.prelu: prelu,
    torch.bilinear: bilinear,
    torch.cdist: distances,
}
