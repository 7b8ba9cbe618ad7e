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
    return torch.linalg.vector_norm(x1[..., :, None, :] - x2[..., None, :, :], dim=-1)


def variance_and_mean(x: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.var_mean`, with the same arguments as `torch.var`."""
    return torch.var(x, *args, **kwargs), _mean_beside(x, args, kwargs)


def deviation_and_mean(x: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.std_mean`, with the same arguments as `torch.std`."""
    return torch.std(x, *args, **kwargs), _mean_beside(x, args, kwargs)


def _mean_beside(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mean over the axes of a variance."""
    by_position = dict(zip(("dim", "unbiased", "keepdim"), args, strict=False))
    options = {**by_position, **kwargs}
    axes = options.get("dim")
    if axes is None or isinstance(axes, bool):  # `unbiased` alone
        return x.mean()
    return x.mean(axes, keepdim=options.get("keepdim", False))


PLAIN_FUNCTIONS = {
    torch.prelu: prelu,
    torch.Tensor.prelu: prelu,
    torch.bilinear: bilinear,
    torch.cdist: distances,
    torch.var_mean: variance_and_mean,
    torch.std_mean: deviation_and_mean,
}
