"""What an audit asks of the arrays of one network: functions over last axes, in any array namespace.

They are asked once while a program is traced, of arbitrary numbers, so that none may fail on a matrix that is no Gram
matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from array_api_compat import array_namespace

Array = Any


def of_gram(gram: Array) -> Array:
    """(…, s, s) → (…, 3): mean square over the tokens, mean cosine of two tokens, effective rank.

    The effective rank is e^H, H the entropy of the eigenvalues divided by their sum (Roy and Vetterli 2007): 1 if all
    tokens are one direction, s if they are orthogonal and of one size.
    """
    xp = array_namespace(gram)
    s = gram.shape[-1]
    diagonal = xp.linalg.diagonal(gram)
    scale = xp.sqrt(xp.clip(diagonal, 0.0, None))
    sizes = scale[..., :, None] * scale[..., None, :]
    cosines = xp.where(sizes > 0, gram / xp.where(sizes > 0, sizes, 1.0), 0.0)
    pairs = xp.asarray(np.triu(np.ones((s, s)), 1))
    cosine = xp.sum(cosines * pairs, axis=(-2, -1)) / (0.5 * s * (s - 1))
    spectrum = xp.clip(xp.linalg.eigvalsh(0.5 * (gram + xp.matrix_transpose(gram))), 0.0, None)
    whole = xp.sum(spectrum, axis=-1, keepdims=True)
    rank = xp.exp(_entropy(spectrum / xp.where(whole > 0, whole, 1.0)))
    return xp.stack([xp.mean(diagonal, axis=-1), cosine, rank], axis=-1)


def of_attention(scores: Array, weights: Array, allowed: Array) -> Array:
    """(…, heads, s, t) → (…, 4): standard deviation and largest of the scores, entropy, largest weight.

    Over heads and allowed pairs. The entropy of a row is divided by that of the uniform row over its allowed entries,
    and averaged; rows with one allowed entry have nothing to choose and are left out, of the largest weight too. If
    all rows are such (a window of one token), both are 1.
    """
    xp = array_namespace(scores, weights)
    axes = (-3, -2, -1)
    some, heads = allowed > 0, scores.shape[-3]
    count = heads * xp.sum(allowed, axis=axes)
    mean = xp.sum(xp.where(some, scores, 0.0), axis=axes) / count
    spread = xp.where(some, scores - mean[..., None, None, None], 0.0)
    std = xp.sqrt(xp.sum(spread * spread, axis=axes) / count)
    top = xp.max(xp.where(some, scores, -xp.inf), axis=axes)
    entries = xp.sum(allowed, axis=-1)  # (…, 1, s)
    free = entries > 1
    relative = xp.where(free, _entropy(weights) / xp.log(xp.where(free, entries, 2.0)), 0.0)
    rows = heads * xp.sum(xp.where(free, 1.0, 0.0), axis=(-2, -1))
    entropy = xp.where(rows > 0, xp.sum(relative, axis=(-2, -1)) / xp.where(rows > 0, rows, 1.0), 1.0)
    largest = xp.max(xp.where(free | (rows[..., None, None] == 0), xp.max(weights, axis=-1), 0.0), axis=(-2, -1))
    return xp.stack(list(xp.broadcast_arrays(std, top, entropy, largest)), axis=-1)


def of_logits(*parts: Array) -> Array:
    """Parts (…, t, words) of a vocabulary → (…, 3): standard deviation, mean of log Σ e^logit, largest probability."""
    xp = array_namespace(*parts)
    if all(type(part) is np.ndarray for part in parts):
        return _by_rows(parts)
    top = reduce(xp.maximum, (xp.max(part, axis=-1, keepdims=True) for part in parts))
    mass = reduce(xp.add, (xp.sum(xp.exp(part - top), axis=-1) for part in parts))
    normaliser = xp.mean(top[..., 0] + xp.log(mass), axis=-1)
    count = sum(part.shape[-2] * part.shape[-1] for part in parts)
    mean = reduce(xp.add, (xp.sum(part, axis=(-2, -1)) for part in parts)) / count
    away = (part - mean[..., None, None] for part in parts)
    std = xp.sqrt(reduce(xp.add, (xp.sum(part * part, axis=(-2, -1)) for part in away)) / count)
    return xp.stack([std, normaliser, 1.0 / xp.min(mass, axis=-1)], axis=-1)


def _by_rows(parts: Sequence[Array]) -> Array:
    """The same in numpy, a row at a time, for a vocabulary of one row stays in the cache and all of them do not."""
    words = sum(part.shape[-1] for part in parts)
    leading = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    precision = np.result_type(*parts)
    top, mass, mean, square = (np.empty(leading, precision) for _ in range(4))
    made = np.empty(words, precision)
    spread = [np.broadcast_to(part, (*leading, part.shape[-1])) for part in parts]
    for row in np.ndindex(leading):
        logits = np.concatenate([part[row] for part in spread], out=made)
        top[row], mean[row] = logits.max(), logits.mean()
        logits -= mean[row]
        square[row] = logits @ logits
        logits -= top[row] - mean[row]
        mass[row] = np.exp(logits, out=logits).sum()
    whole = mean.mean(axis=-1, keepdims=True)
    std = np.sqrt((square / words + (mean - whole) ** 2).mean(axis=-1))  # within rows, and between them
    return np.stack([std, (top + np.log(mass)).mean(axis=-1), 1.0 / mass.min(axis=-1)], axis=-1)


def of_shares(squares: Array, post: Array) -> Array:
    """(…, 1 + branches) mean squares of the stream and of what was added → (…, branches): the share of each in the sum.

    With a norm after each sum (post = 1) everything before the last branch has mean square 1 when that is added.
    """
    xp = array_namespace(squares)
    before = xp.sum(squares[..., :-1], axis=-1, keepdims=True)
    middle = xp.where(post > 0, 1.0, before)
    total = middle + squares[..., -1:]
    earlier = _ratio(squares[..., 1:-1], before) * _ratio(middle, total)
    return xp.concat([earlier, _ratio(squares[..., -1:], total)], axis=-1)


def _ratio(a: Array, b: Array) -> Array:
    xp = array_namespace(a, b)
    return xp.where(b == 0, 0.0, a / xp.where(b == 0, 1.0, b))


def _entropy(p: Array) -> Array:
    xp = array_namespace(p)
    return -xp.sum(xp.where(p > 0, p * xp.log(xp.where(p > 0, p, 1.0)), 0.0), axis=-1)
