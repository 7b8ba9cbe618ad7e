"""Normals in JAX from explicit counters: Threefry gives pairs of uniforms, and Box and Muller pairs of normals."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def normal_pairs(keys: Array, replica: Array, number: Array, precision: str) -> tuple[Array, Array]:
    """Pairs of normals (replicas, numbers), with a key for each number."""
    import jax.numpy as jnp
    from jax.extend.random import threefry2x32_p

    shape = len(replica), len(number)

    def words(count: Array) -> tuple[Array, Array]:
        return tuple(
            threefry2x32_p.bind(
                *(jnp.broadcast_to(a, shape) for a in (keys[:, 0], keys[:, 1], replica[:, None], count))
            )
        )

    if precision == "float32":
        one, two = (w.astype(jnp.float32) * np.float32(2**-32) for w in words(number))
        one = one + np.float32(2**-33)  # above 0
    else:
        (a, b), (c, d) = words(2 * number), words(2 * number + 1)
        one = (a.astype(jnp.float64) * 2**21 + (b >> 11).astype(jnp.float64) + 0.5) * 2**-53
        two = (c.astype(jnp.float64) * 2**21 + (d >> 11).astype(jnp.float64)) * 2**-53
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(one, 1.0)))
    return radius * jnp.cos(2 * np.pi * two), radius * jnp.sin(2 * np.pi * two)
