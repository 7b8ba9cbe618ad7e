"""Normals in JAX from explicit counters: Threefry gives pairs of uniforms, and Box and Muller pairs of normals."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of four rounds, in turn
PARITY = np.uint32(0x1BD11BDA)  # Threefry's third word of the key is the parity of the other two with it


def normal_pairs(keys: Array, replica: Array, number: Array, precision: str) -> tuple[Array, Array]:
    """Pairs of normals (replicas, numbers), with a key for each number."""
    import jax.numpy as jnp

    def words(count: Array) -> tuple[Array, ...]:
        return (_of_jax if on_gpu() else threefry)(keys[:, 0], keys[:, 1], replica[:, None], count)

    if precision == "float32":
        one, two = (w.astype(jnp.float32) * np.float32(2**-32) for w in words(number))
        one = one + np.float32(2**-33)  # above 0
    else:
        (a, b), (c, d) = words(2 * number), words(2 * number + 1)
        one = (a.astype(jnp.float64) * 2**21 + (b >> 11).astype(jnp.float64) + 0.5) * 2**-53
        two = (c.astype(jnp.float64) * 2**21 + (d >> 11).astype(jnp.float64)) * 2**-53
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(one, 1.0)))
    return radius * jnp.cos(2 * np.pi * two), radius * jnp.sin(2 * np.pi * two)


def threefry(first_key: Array, second_key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), of words of 32 bits.

    JAX has the same, on a CPU as a loop: that is compiled into many functions, and takes twice as long to compile.
    """
    keys = first_key, second_key, first_key ^ second_key ^ PARITY
    x, y = first + keys[0], second + keys[1]
    for four in range(5):
        for bits in ROTATIONS[four % 2]:
            x = x + y
            y = ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits))) ^ x
        x, y = x + keys[(four + 1) % 3], y + (keys[(four + 2) % 3] + np.uint32(four + 1))
    return x, y


def _of_jax(*words: Array) -> tuple[Array, ...]:
    """The same by JAX, which has one kernel for it on a GPU."""
    import jax.numpy as jnp
    from jax.extend.random import threefry2x32_p

    shape = jnp.broadcast_shapes(*(word.shape for word in words))
    return tuple(threefry2x32_p.bind(*(jnp.broadcast_to(word, shape) for word in words)))


def on_gpu() -> bool:
    """Whether JAX compiles for a GPU, here and now."""
    import jax

    return bool((jax.config.jax_default_device or jax.devices()[0]).platform == "gpu")
