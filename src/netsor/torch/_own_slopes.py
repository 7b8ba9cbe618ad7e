"""Functions of entries whose backward pass multiplies by a slope of their own.

A `torch.autograd.Function` may have any backward pass. One of a single tensor, that
multiplies the gradient of each entry by a slope s(x), is y(x̄) + s(x̄) · (x − x̄), where
x̄ is x without a gradient: the second term is 0, and its derivative is s.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

# numbers on which the slope is tested; gradients that the backward pass is given
POINTS = (0.11, 0.35, 0.62, 0.93)
GRADIENTS = (1.7, -0.4, 0.0, 2.6)


class Context:
    """What the forward pass leaves for the backward pass."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = (True,)

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors


def with_own_slope(function: Any, args: tuple[Any, ...]) -> Any:
    """The result of a function of entries with its own slope; None if it is no such."""
    if len(args) != 1 or not isinstance(args[0], torch.Tensor):
        return None
    (x,) = args
    if not x.is_floating_point() or not _has_slopes(function, x.dtype):
        return None
    fixed = x.detach()
    context = Context()
    y = function.forward(context, fixed)
    slope = function.backward(context, torch.ones_like(y))
    return y.detach() + slope.detach() * (x - fixed)


def _has_slopes(function: Any, dtype: Any) -> bool:
    """Whether the backward pass multiplies the gradient of each entry by a slope.

    It is tested on numbers: each entry alone must give the same, and gradients must
    scale it.
    """
    with _disable_current_modes(), torch.no_grad():
        points = torch.tensor(POINTS, dtype=dtype)
        gradients = torch.tensor(GRADIENTS, dtype=dtype)
        try:
            _, slopes = _both_passes(function, points, torch.ones_like(points))
            _, scaled = _both_passes(function, points, gradients)
            pairs = [
                _both_passes(function, points[k : k + 1], gradients[k : k + 1])[1]
                for k in range(len(points))
            ]
            is_slope = slopes.shape == scaled.shape == points.shape
            return bool(
                is_slope
                and torch.allclose(scaled, gradients * slopes)
                and torch.allclose(torch.cat(pairs), scaled)
            )
        except Exception:  # of code that takes other arguments
            return False


def _both_passes(function: Any, x: Any, gradient: Any) -> tuple[Any, Any]:
    """The result of the forward pass, and that of the backward pass."""
    context = Context()
    y = function.forward(context, x)
    return y, function.backward(context, gradient)
