"""What JAX computes from a sampled block on the device: covariances, and sums over cells."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from .. import _instructions
from .._cells import Cells

Array = Any


@lru_cache(maxsize=8)
def summed(cells: Cells) -> Any:
    """A function of means and covariances: the sums over cells (sums, cells), and which replicas are outside."""
    import jax
    import jax.numpy as jnp

    def add(mean: Array, cov: Array) -> tuple[Array, Array]:
        m, v = jnp.broadcast_arrays(mean[:, 0].astype(jnp.float64), cov[:, 0, 0].astype(jnp.float64))
        place, weights, outside = cells.placed(jnp, m, v)
        # integers below 2^53, whose sums are exact: the same bits in any order
        return jnp.stack([jnp.bincount(place, w, length=cells.size) for w in weights]), outside

    return jax.jit(add)


@cache
def gram() -> Any:
    """A function from coefficients to covariances."""
    import jax
    import jax.numpy as jnp

    return jax.jit(lambda a: _instructions.gram(jnp, a, a))
