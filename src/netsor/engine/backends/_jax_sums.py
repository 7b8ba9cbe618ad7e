"""What JAX does to a block once it is drawn, on the device: covariances, and sums over cells."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from .. import _instructions
from .._cells import Cells

Array = Any


@lru_cache(maxsize=8)
def summed(cells: Cells) -> Any:
    """Sums over the cells (sums, cells), and who is outside of them, as a function of means and covariances."""
    import jax
    import jax.numpy as jnp

    def add(mean: Array, cov: Array) -> tuple[Array, Array]:
        m, v = jnp.broadcast_arrays(mean[:, 0].astype(jnp.float64), cov[:, 0, 0].astype(jnp.float64))
        place, weights, outside = cells.placed(jnp, m, v)
        # integers below 2^53: their sums are exact in any order, so the same bits
        return jnp.stack([jnp.bincount(place, w, length=cells.size) for w in weights]), outside

    return jax.jit(add)


@cache
def gram() -> Any:
    """Covariances, as a function of coefficients."""
    import jax
    import jax.numpy as jnp

    return jax.jit(lambda a: _instructions.gram(jnp, a, a))
