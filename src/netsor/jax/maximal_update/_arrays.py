"""What JAX does with the arrays of a measurement, while it traces one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...maximal_update._responses import STEP, SUPPORT


class JaxArrays:
    """Arrays, with normal numbers for random directions.

    To draw them in each operation would take most of the time of compiling.
    """

    def __init__(self, normals: Any) -> None:
        self.normals = normals
        self._used = 0

    @staticmethod
    def is_float(x: Any) -> bool:
        """Whether a value is an array of real numbers."""
        is_array = hasattr(x, "dtype") and x.size > 0
        return bool(is_array and jnp.issubdtype(x.dtype, np.floating))

    @staticmethod
    def zeros_like(x: Any) -> Any:
        """Zeros."""
        return jnp.zeros_like(x)

    @staticmethod
    def rms(x: Any) -> Any:
        """The root mean square of the entries that are not 0, and finite."""
        return rms(x)

    @staticmethod
    def ratio(first: Any, second: Any) -> Any:
        """A quotient; 0 if the second number is 0."""
        return jnp.where(second == 0, 0.0, first / jnp.where(second == 0, 1.0, second))

    def with_random_signs(self, x: Any) -> Any:
        """The entries with random signs."""
        return x * jnp.sign(self._normal_like(x))

    def aligned_change(
        self, of_input: Callable[[Any], Any], x: Any, *, is_pointwise: bool
    ) -> Any:
        """A small change of an input in the direction of a gradient.

        The gradient is that of a random combination of the results. For pointwise
        operations a random direction does as well. Its size is `STEP` times that of x.
        """
        result, pullback = jax.vjp(of_input, x)
        (gradient,) = pullback(self._normal_like(result))
        depends_on_x = rms(gradient) > 0
        direction = self._normal_like(x) if is_pointwise else gradient
        direction = jnp.where(depends_on_x, jnp.nan_to_num(direction), 0.0)
        size = rms(x)
        size = jnp.where(size == 0, 1.0, size)
        return direction * self.ratio(STEP * size, rms(direction))

    def _normal_like(self, x: Any) -> Any:
        """Normal numbers in the shape of x.

        They are the next ones of `normals`, which begin again at their end.
        """
        size = x.size
        available = len(self.normals)
        numbers = jnp.roll(jnp.asarray(self.normals), -self._used)
        self._used = (self._used + size) % available
        repeats = math.ceil(size / available)
        return jnp.tile(numbers, repeats)[:size].reshape(x.shape).astype(x.dtype)


def rms(x: Any) -> Any:
    """The root mean square of the entries that are not 0, and finite.

    Entries below `SUPPORT` times the largest one count as 0.
    """
    entries = jnp.asarray(x).astype(jnp.result_type(float)).reshape(-1)
    squares = jnp.square(entries)
    squares = jnp.where(jnp.isfinite(squares), squares, 0.0)
    count = (squares > SUPPORT**2 * squares.max()).sum()
    return jnp.sqrt(squares.sum() / jnp.maximum(count, 1))
