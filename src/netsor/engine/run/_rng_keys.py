"""Keys of random streams. They determine every random number: a law depends only on its
seed.

Each random array of a plan has a stream with the key (position of the value in the
original program, a count, its group, purpose, a count). numpy's generator is keyed by
(seed, *key, chunk). In a program that is read from a module, positions count only the
values that can draw (`PlanQuery.counts_draws`). Chunks depend neither on the workers
nor on the number of draws. JAX and PyTorch hash the same keys. χ have separate streams,
because the random bits they consume depend on the width. So laws at two widths share
their normals, and their difference has little noise (docs/theory.md, equation 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# new sources along existing directions: coordinates, or at infinite width normals of
# pairs
CROSS = 0
OWN = 1  # new sources among themselves
CHI = 2  # their norms outside the frame
COORDINATES = 3  # all coordinates of new sources
ORIENTATION = 4  # the coordinates of a frame's directions that outputs need
ORIENTATION_CHI = 5  # norms outside that frame
# outside frames: one coordinate of a source, random scalars, the normals that turn a
# law into draws
SAMPLE = 6
NODE_SHIFTS = 7  # shifts of quasi-random nodes at infinite width

# stands for the position of streams that belong to a frame, not to a value: (FRAME, a
# count, group, …)
FRAME = 2**20

# replicas per generator key; independent of the width: one seed couples two widths
CHUNK = 8192
# draws of the first chunk: with thousands of steps, Python's overhead is the same for
# one draw as for eight
FIRST = 8


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator of one stream: SFC64, numpy's fastest, keyed by a SeedSequence."""
    return np.random.Generator(
        np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key))
    )


def key_words(
    seed: int, *key: int, count: int, dtype: type = np.uint32
) -> npt.NDArray[Any]:
    """The state of one stream as integers, for the generators of other libraries."""
    return np.random.SeedSequence(seed, spawn_key=key).generate_state(count, dtype)


def chunks(draws: int, size: int) -> list[range]:
    """The draws 0 … draws − 1, in chunks of one size (the last may be shorter)."""
    return [range(start, min(start + size, draws)) for start in range(0, draws, size)]


def growing_chunks(draws: int) -> list[range]:
    """The draws 0 … draws − 1 in chunks of growing sizes, at most CHUNK.

    Even a few draws are then spread over all workers. For example, 20 draws are in the
    chunks 0–7, 8–15 and 16–19. The start of a chunk is part of its generator's key, so
    it depends only on the chunks before.
    """
    result: list[range] = []
    start = 0
    while start < draws:
        size = min(CHUNK, max(FIRST, 2 ** start.bit_length() // 8))
        result.append(range(start, min(start + size, draws)))
        start += size
    return result


def merge_chunks(chunks: Sequence[range], most: int, workers: int) -> list[range]:
    """Join consecutive chunks into tasks, at least one for each worker.

    A task has up to `most` draws, or one chunk.
    """
    # Python's overhead per step of a plan is the same for one chunk and for several. A
    # single draw joins the previous task, because numpy sums a single replica in
    # another order.
    joins_single_draws = most > 1
    all_draws = chunks[-1].stop
    draws_per_worker = math.ceil(all_draws / workers)
    most = min(most, draws_per_worker)
    tasks = [chunks[0]]
    for chunk in chunks[1:]:
        task = tasks[-1]
        fits = chunk.stop - task.start <= most
        if fits or (joins_single_draws and len(chunk) == 1):
            tasks[-1] = range(task.start, chunk.stop)
        else:
            tasks.append(chunk)
    return tasks
