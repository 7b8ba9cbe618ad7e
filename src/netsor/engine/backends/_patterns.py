"""Products of the positive parts of independent normal vectors, from how many coordinates have which signs.

See `lower._positive`. A replica takes its numbers one after the other from streams of its own kind: of the counts, and
of the sizes of each vector in each pattern. So they do not depend on how replicas are cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np

from .._steps import PIECE

Array = Any
Next = Callable[[tuple[int, ...], Array], Iterator[tuple[np.random.Generator, Array]]]


def positive_products(
    key: tuple[int, ...], width: int, vectors: int, replicas: int, dtype: np.dtype[Any], following: Next
) -> Array:
    """Σ_α max(g_iα, 0) max(g_jα, 0), (replicas, 1, vectors, vectors), the replicas innermost in memory.

    `following(key, array)` are the generators of a stream for the next replicas, and these replicas of an array.
    """
    made = np.zeros((vectors, vectors, replicas), dtype)
    most = max(1, PIECE * 2**vectors // width)
    for start in range(0, replicas, most):
        _add(made[..., start : start + most], key, width, following)
    return made.transpose(2, 0, 1)[:, None]


def _add(made: Array, key: tuple[int, ...], width: int, following: Next) -> None:
    """The products of some replicas, added to zeros."""
    vectors, replicas = made.shape[1:]
    several = [p for size in range(2, vectors + 1) for p in combinations(range(vectors), size)]
    counts = np.empty((replicas, 2**vectors), dtype=np.int64)  # of those patterns, of each vector alone, of none
    for rng, some in following((*key, 0), counts):
        some[:] = rng.multinomial(width, np.full(2**vectors, 0.5**vectors), size=len(some))
    stream = 0
    for pattern, count in zip(several, counts.T, strict=False):
        edges = np.concatenate([[0], np.cumsum(count)])
        sizes = np.empty((len(pattern), edges[-1] + 1), made.dtype)
        sizes[:, -1] = 0.0  # so that the last sum has an end
        for row in sizes:
            stream, stop = stream + 1, 0
            for rng, some in following((*key, stream), count):
                start, stop = stop, stop + int(some.sum())
                rng.standard_normal(dtype=made.dtype, out=row[start:stop])
        np.abs(sizes, out=sizes)
        products, there = np.empty_like(sizes[0]), count > 0  # reduceat adds one term at least
        for i, j in combinations_with_replacement(range(len(pattern)), 2):
            np.multiply(sizes[i], sizes[j], out=products)
            made[pattern[i], pattern[j]] += np.add.reduceat(products, edges)[:-1] * there
        del sizes, row, products  # before those of the next pattern are made
    for i in range(vectors):  # half of a χ² each
        alone = (counts[:, len(several) + i] / 2).astype(made.dtype)
        for rng, some in following((*key, stream + 1 + i), alone):
            some[:] = rng.standard_gamma(some, dtype=made.dtype)
        made[i, i] += 2 * alone
        made[i + 1 :, i] = made[i, i + 1 :]
