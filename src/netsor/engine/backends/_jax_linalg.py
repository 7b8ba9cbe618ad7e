"""Factors of many matrices by JAX: its own factors and solutions, and compiled loops where these fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import _gram_schmidt
from .._ops import squares
from ._batched_linalg import Library

Array = Any

MAX_LOOPED_ROWS = 32  # rows of a matrix up to which a loop runs fast, and compiles faster than what avoids it


def _triangular(lower: Array, b: Array) -> Array:

    batch = jnp.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
    lower = jnp.broadcast_to(lower, (*batch, *lower.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    return jax.lax.linalg.triangular_solve(lower, b, left_side=False, lower=True, transpose_a=True)


def _columns(gram: Array, floor: Array) -> Array:
    """As `_psd_cholesky.by_columns`."""
    size = gram.shape[-1]

    def column(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, made = state
        pivot = jax.lax.dynamic_index_in_dim(jnp.diagonal(rest, axis1=-2, axis2=-1), j, -1, keepdims=False)
        fresh = pivot > jax.lax.dynamic_index_in_dim(floor, j, -1, keepdims=False)
        inverse = jnp.where(fresh, 1.0 / jnp.sqrt(jnp.where(fresh, pivot, 1.0)), 0.0)
        below = jax.lax.dynamic_index_in_dim(rest, j, -1, keepdims=False) * inverse[..., None]
        below = jnp.where(jnp.arange(size) >= j, below, 0.0)
        made = jax.lax.dynamic_update_index_in_dim(made, below, j, -1)
        return rest - below[..., :, None] * below[..., None, :], made

    return jax.lax.fori_loop(0, size, column, (gram, jnp.zeros_like(gram)))[1]


def _singly(rows: Array, *known: Array) -> Array:
    """As `_gram_schmidt.modified_gram_schmidt`: rows of `made` not yet computed are 0, and subtract nothing."""
    batch = jnp.broadcast_shapes(*(a.shape[:-2] for a in (rows, *known)))
    floor = _gram_schmidt.zero_threshold(jnp, rows)

    def one(j: Any, made: Array) -> Array:
        x = jax.lax.dynamic_slice_in_dim(rows, j, 1, -2)
        once = _gram_schmidt.project_out(jnp, x, (*known, made))
        rest = _gram_schmidt.project_out(jnp, once, (*known, made))
        least = jax.lax.dynamic_slice_in_dim(floor, j, 1, -1)
        found = _gram_schmidt.unit(jnp, rest, squares(jnp, once), least)
        return jax.lax.dynamic_update_slice_in_dim(made, found, j, -2)

    return jax.lax.fori_loop(0, rows.shape[-2], one, jnp.zeros((*batch, *rows.shape[-2:]), dtype=rows.dtype))


def _mended(made: Array, again: Array, remake: Callable[..., Array], *arrays: Array) -> Array:
    """`made`, with the matrices marked in `again` recomputed: if any is marked, all are, and only those used."""

    def both(inputs: tuple[Array, ...]) -> Array:
        return jnp.where(again[..., None, None], remake(*inputs), made)

    return jax.lax.cond(jnp.any(again), both, lambda _: made, arrays)


LIBRARY = Library(
    jnp,
    lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False),
    _triangular,
    _columns,
    _singly,
    _mended,
    MAX_LOOPED_ROWS,
)
