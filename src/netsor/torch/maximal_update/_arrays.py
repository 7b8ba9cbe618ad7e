"""What PyTorch does with the arrays of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...maximal_update._responses import STEP, SUPPORT


@dataclass(frozen=True)
class TorchArrays:
    """Tensors, with a generator of random numbers."""

    generator: torch.Generator

    @staticmethod
    def is_float(x: Any) -> bool:
        """Whether a value is a tensor of real numbers."""
        return isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() > 0

    @staticmethod
    def zeros_like(x: Any) -> Any:
        """Zeros."""
        return torch.zeros_like(x)

    @staticmethod
    def rms(x: Any) -> float:
        """The root mean square of the entries that are not 0, and finite."""
        return rms(x)

    @staticmethod
    def ratio(first: float, second: float) -> float:
        """A quotient; 0 if the second number is 0."""
        return first / second if second else 0.0

    def with_random_signs(self, x: Any) -> Any:
        """The entries with random signs."""
        return x.detach() * self._normal_like(x).sign()

    def aligned_change(
        self, of_input: Callable[[Any], Any], x: Any, *, is_pointwise: bool
    ) -> Any:
        """A small change of an input in the direction of a gradient."""
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            result = of_input(leaf)
            if not result.requires_grad:
                return None
            direction = self._normal_like(result)
            (gradient,) = torch.autograd.grad(
                result, leaf, direction, allow_unused=True
            )
        if gradient is None or not rms(gradient):
            return None
        if is_pointwise:
            gradient = self._normal_like(leaf)
        gradient = torch.nan_to_num(gradient)
        return gradient * (STEP * (rms(x) or 1.0) / rms(gradient))

    def _normal_like(self, x: Any) -> Any:
        """Normal numbers."""
        return torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


def rms(x: Any) -> float:
    """The root mean square of the entries that are not 0, and finite."""
    squares = x.detach().double().square()
    total = float(squares.sum())
    if not math.isfinite(total):
        squares = squares[torch.isfinite(squares)]
        total = float(squares.sum())
    if not total:
        return 0.0
    count = int((squares > SUPPORT**2 * squares.max()).sum())
    return math.sqrt(total / count)
