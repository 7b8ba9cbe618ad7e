"""The derivative of the first loss by the logits, summed over the vocabulary as a gradient needs it.

L is the mean over t vectors of log Σ_w e^(l_iw) − l_i,target, so c_iw = ∂L/∂(logit) = (p_iw − 1[w is the target])/t,
times the slope of a softcap. The gradient by vector i is Σ_w c_iw W_w. Of words whose logits are root · noise that
takes no more than the t × t sums Σ_w c_iw noise_jw and Σ_w c_iw c_jw (see `_loss`), and no array of all logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from .._arrays import array_namespace
from ._reduce import PIECE, Rows, capped, of_logits

Array = Any


def of_head(
    *arrays: Array, targets: Sequence[int], cap: float | None = None, known: bool = False, others: bool = True
) -> Array:
    """Known logits (…, t, k), root (…, t, t) and noise (…, t, words) → (…, 3 + 2 t² + t k), the last axis as `parts`.

    The known logits are there if `known` says so, and then the targets, one a vector, are columns of them; root and
    noise are there if `others` does, and without known logits the targets are columns of the noise. The first numbers
    are those of `of_logits`.
    """
    given = list(arrays)
    first = given.pop(0) if known else None
    root, noise = given if others else (None, None)
    if all(type(array) is np.ndarray for array in arrays):
        return _by_pieces(first, root, noise, list(targets), cap)
    return _at_once(first, root, noise, list(targets), cap)


def parts(t: int, known: int) -> tuple[slice, slice, slice, slice]:
    """Where what `of_head` makes lies: `of_logits`, Σ_w c_iw noise_jw, Σ_w c_iw c_jw, and c of the known words."""
    ends = np.cumsum([0, 3, t * t, t * t, t * known]).tolist()
    return slice(ends[0], ends[1]), slice(ends[1], ends[2]), slice(ends[2], ends[3]), slice(ends[3], ends[4])


def _at_once(first: Array, root: Array, noise: Array, targets: list[int], cap: float | None) -> Array:
    arrays = [a for a in (first, root, noise) if a is not None]
    xp = array_namespace(*arrays)
    t, own = arrays[0].shape[-2], first is not None
    logits = [first] if own else []
    logits += [root @ noise] if root is not None else []
    logits = [capped(part, cap) for part in logits]
    top = reduce(xp.maximum, (xp.max(part, axis=-1, keepdims=True) for part in logits))
    mass = reduce(xp.add, (xp.sum(xp.exp(part - top), axis=-1, keepdims=True) for part in logits))
    found = []
    for k, part in enumerate(logits):
        share = xp.exp(part - top) / mass
        if k == 0:
            hot = np.zeros(part.shape[-2:])
            hot[np.arange(t), targets] = 1.0
            share = share - xp.asarray(hot, dtype=part.dtype)
        found.append(share * _slope(part, cap) / t)
    flat = [of_logits(*logits)]
    if root is None:
        flat += [xp.zeros((*flat[0].shape[:-1], 2 * t * t), dtype=flat[0].dtype)]
    else:
        flat += [_flat(found[-1] @ xp.matrix_transpose(other)) for other in (noise, found[-1])]
    flat += [_flat(found[0])] if own else []
    leading = np.broadcast_shapes(*(a.shape[:-1] for a in flat))
    return xp.concat([xp.broadcast_to(a, (*leading, a.shape[-1])) for a in flat], axis=-1)


def _flat(a: Array) -> Array:
    return array_namespace(a).reshape(a, (*a.shape[:-2], a.shape[-2] * a.shape[-1]))


def _slope(logits: Array, cap: float | None) -> Array:
    """The slope of a softcap, from its result."""
    return 1.0 if cap is None else 1.0 - (logits / cap) ** 2


def _by_pieces(first: Array, root: Array, noise: Array, targets: list[int], cap: float | None) -> Array:
    """In numpy: a piece of the logits stays in the cache, and all of them are never made."""
    arrays = [a for a in (first, root, noise) if a is not None]
    leading = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    t, count = arrays[0].shape[-2], 0 if first is None else first.shape[-1]
    first, root, noise = (
        None if a is None else np.broadcast_to(a, (*leading, *a.shape[-2:])) for a in (first, root, noise)
    )
    where = parts(t, count)
    made = np.zeros((*leading, where[-1].stop), np.result_type(*arrays))
    for at in np.ndindex(leading):
        known = None if first is None else capped(first[at], cap)
        seen = Rows(t, made.dtype)
        if known is not None:
            seen.add(known.copy())
        sums = np.zeros((2, t, t), made.dtype)
        if root is not None and noise is not None:
            _added(seen, sums, root[at], noise[at], cap)
        sums[0] /= seen.mass
        sums[1] /= seen.mass * seen.mass.T
        if known is not None:
            c = np.exp(known - seen.top) / seen.mass
            c[np.arange(t), targets] -= 1.0
            made[at][where[3]] = (c * _slope(known, cap) / t).ravel()
        elif root is not None and noise is not None:
            _less_targets(seen, sums, root[at], noise[at][:, targets], targets, cap)
        made[at][where[0]] = seen.ends()
        made[at][where[1]], made[at][where[2]] = sums[0].ravel() / t, sums[1].ravel() / t**2
    return made


def _added(seen: Rows, sums: Array, root: Array, noise: Array, cap: float | None) -> None:
    """The sums of e^logit · noise and of products of two e^logit, each over e^top of its row, piece by piece."""
    t = root.shape[-1]
    size = max(1, PIECE // t)
    room = np.empty((t, size), sums.dtype)
    for start in range(0, noise.shape[-1], size):
        some = noise[:, start : start + size]
        x = capped(np.matmul(root, some, out=room[:, : some.shape[-1]]), cap)
        slope, before = _slope(x, cap), seen.top
        seen.add(x)  # which makes e^(x − top) of it
        if cap is not None:
            x *= slope
        less = np.exp(before - seen.top)
        sums *= np.stack([np.broadcast_to(less, (t, t)), less * less.T])
        sums[0] += x @ some.T
        sums[1] += x @ x.T


def _less_targets(seen: Rows, sums: Array, root: Array, noise: Array, targets: list[int], cap: float | None) -> None:
    """The sums with p − 1[w is the target] in place of p; noise is that of the targets, a column a vector."""
    logits = capped(root @ noise, cap)  # (vectors, targets of vectors)
    slope = np.broadcast_to(_slope(logits, cap), logits.shape)
    own = np.diagonal(slope)
    across = np.exp(logits - seen.top) / seen.mass * slope * own
    sums[0] -= own[:, None] * noise.T
    sums[1] += np.equal.outer(targets, targets) * np.outer(own, own) - across - across.T
