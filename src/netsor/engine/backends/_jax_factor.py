"""Triangular factors in JAX, with compiled loops: unrolled, programs of many tokens would take minutes to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _instructions, _orthogonal

Array = Any

LEAF = 4  # rows of a matrix above which a compiled loop factors it, in place of unrolled steps


def _factor(gram: Array, whole: Array | None = None) -> Array:
    import jax.numpy as jnp

    diagonal = jnp.diagonal(gram if whole is None else whole, axis1=-2, axis2=-1)
    return _factored(gram, _instructions.tolerance(jnp, gram.dtype) * diagonal)


def _factored(gram: Array, floor: Array) -> Array:
    import jax.numpy as jnp

    size = gram.shape[-1]
    if size <= LEAF:
        return _instructions._factor(jnp, gram, floor)
    if size > 8 * LEAF:
        half = size // 2
        first = _factored(gram[..., :half, :half], floor[..., :half])
        below = _solve(first, gram[..., half:, :half])
        second = _factored(gram[..., half:, half:] - below @ jnp.matrix_transpose(below), floor[..., half:])
        above = jnp.zeros((*first.shape[:-1], size - half), dtype=gram.dtype)
        return jnp.concat([jnp.concat([first, above], axis=-1), jnp.concat([below, second], axis=-1)], axis=-2)
    return _columns(gram, floor)


def _columns(gram: Array, floor: Array) -> Array:
    """Column by column, as `_instructions._factor`."""
    import jax
    import jax.numpy as jnp

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


def _solve(lower: Array, b: Array) -> Array:
    """As `_instructions.solve`: a pivot that is 0 is set to 1 for the solution, and its coordinate to 0 after it."""
    import jax
    import jax.numpy as jnp

    if lower.shape[-1] <= LEAF:
        return _instructions.solve(jnp, lower, b)
    batch = jnp.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
    lower = jnp.broadcast_to(lower, (*batch, *lower.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    missing = jnp.diagonal(lower, axis1=-2, axis2=-1) <= 0
    whole = lower + jnp.where(missing[..., None], jnp.eye(lower.shape[-1], dtype=lower.dtype), 0.0)
    found = jax.lax.linalg.triangular_solve(whole, b, left_side=False, lower=True, transpose_a=True)
    return jnp.where(missing[..., None, :], 0.0, found)


def _basis(rows: Array) -> Array:
    """As `_instructions.basis`, by Householder reflections: libraries are slow at many small matrices."""
    import jax
    import jax.numpy as jnp

    size, directions = rows.shape[-2:]
    if size > 8 * LEAF:
        return _instructions.basis(jnp, rows)
    place = jnp.arange(directions)

    def reflected(a: Array, v: Array) -> Array:  # rows of a reflected by v, whose square is 2
        return a - jnp.sum(a * v[..., None, :], axis=-1, keepdims=True) * v[..., None, :]

    def reflect(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, made = state
        x = jnp.where(place >= j, jax.lax.dynamic_index_in_dim(rest, j, -2, keepdims=False), 0.0)
        pivot = jax.lax.dynamic_index_in_dim(x, j, -1, keepdims=False)
        length = jnp.sqrt(jnp.sum(x * x, axis=-1))
        v = x + jnp.where(place == j, jnp.where(pivot < 0, -length, length)[..., None], 0.0)
        square = jnp.sum(v * v, axis=-1, keepdims=True)
        v = jnp.where(square > 0, v * jnp.sqrt(2.0 / jnp.where(square > 0, square, 1.0)), 0.0)
        return reflected(rest, v), jax.lax.dynamic_update_index_in_dim(made, v, j, -2)

    rest, made = jax.lax.fori_loop(0, size, reflect, (rows, jnp.zeros_like(rows)))

    def back(k: Any, q: Array) -> Array:
        return reflected(q, jax.lax.dynamic_index_in_dim(made, size - 1 - k, -2, keepdims=False))

    one = jnp.broadcast_to(jnp.eye(size, directions, dtype=rows.dtype), rows.shape)
    q = jax.lax.fori_loop(0, size, back, one)
    return jnp.where(jnp.diagonal(rest, axis1=-2, axis2=-1)[..., None] < 0, -q, q)


def _singly(rows: Array, *known: Array) -> Array:
    """As `_orthogonal.singly`: rows of `made` that are not yet computed are 0, and nothing is subtracted for them."""
    import jax
    import jax.numpy as jnp

    batch = jnp.broadcast_shapes(*(a.shape[:-2] for a in (rows, *known)))
    floor = _orthogonal.least(jnp, rows)

    def one(j: Any, made: Array) -> Array:
        x = jax.lax.dynamic_slice_in_dim(rows, j, 1, -2)
        once = _orthogonal.less(jnp, x, (*known, made))
        rest = _orthogonal.less(jnp, once, (*known, made))
        least = jax.lax.dynamic_slice_in_dim(floor, j, 1, -1)
        found = _orthogonal.unit(jnp, rest, _instructions.squares(jnp, once), least)
        return jax.lax.dynamic_update_slice_in_dim(made, found, j, -2)

    return jax.lax.fori_loop(0, rows.shape[-2], one, jnp.zeros((*batch, *rows.shape[-2:]), dtype=rows.dtype))


def _mended(made: Array, again: Array, remake: Callable[..., Array], *arrays: Array) -> Array:
    """`made`, with the matrices marked in `again` recomputed: if any is marked, all are, and only those used."""
    import jax
    import jax.numpy as jnp

    def both(inputs: tuple[Array, ...]) -> Array:
        return jnp.where(again[..., None, None], remake(*inputs), made)

    return jax.lax.cond(jnp.any(again), both, lambda _: made, arrays)


def _lowered(lower: Array, rows: Array) -> Array:
    """As `_orthogonal.lowered`."""
    import jax.numpy as jnp

    return jnp.matrix_transpose(_solve(lower, jnp.matrix_transpose(rows)))


def _unsure(again: Array, *_: Array) -> Array:
    """All that are weak: to tell which of them are settled costs as much as to make them again."""
    return again


WAYS = _orthogonal.Ways(_factored, _solve, _lowered, _unsure, _singly, _mended)


def _by(rule: Callable[..., Array]) -> Callable[..., Array]:
    """An instruction of `_orthogonal` that uses the functions of this file."""

    def made(*arrays: Array) -> Array:
        import jax.numpy as jnp

        return rule(jnp, *arrays, ways=WAYS)

    return made


OWN: dict[str, Callable[..., Array]] = {
    "factor": _factor,
    "residual": _factor,
    "solve": _solve,
    "basis": _basis,
    "span": _by(_orthogonal.span),
    "spanned": _by(_orthogonal.spanned),
    "reduced": _by(_orthogonal.reduced),
    "oriented": _by(_orthogonal.oriented),
}
