"""Random-number keys: which generator makes which number, so that a law depends on its seed and on nothing else.

Each array that a plan draws has a stream with the key (place of the value in the program as written, a count, which of
its groups, purpose, a count). numpy's generator is keyed by (seed, *key, chunk); chunks depend on neither the workers
nor the number of draws. JAX and PyTorch hash the same keys. χ have streams of their own, because they consume random
bits that depend on the width: laws at two widths share their normals, which leaves little noise in their difference
(docs/theory.md, equation 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CROSS = 0  # of new sources with the directions that are there: coordinates, or at infinite width normals of pairs
OWN = 1  # of new sources with each other
CHI = 2  # their norms outside the frame
COORDINATES = 3  # all coordinates of new sources
ORIENTATION = 4  # the coordinates of a frame's directions that outputs ask for
ORIENTATION_CHI = 5  # norms outside that frame
SAMPLE = 6  # outside of frames: one coordinate of a source, random scalars, the normals of draws of a conditional law
NODE_SHIFTS = 7  # of quasi-random nodes at infinite width

CHUNK = 8192  # replicas with one key of the generators; independent of the width, so that one seed couples two widths
FIRST = 8  # draws of a first chunk: a large plan has thousands of steps, and Python costs as much for one as for all


def generator(seed: int, *key: int) -> np.random.Generator:
    """The generator of one stream: SFC64, numpy's fastest, keyed by a SeedSequence."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key)))


def key_words(seed: int, *key: int, count: int, dtype: type = np.uint32) -> npt.NDArray[Any]:
    """The state of one stream as integers, for the generators of other libraries."""
    return np.random.SeedSequence(seed, spawn_key=key).generate_state(count, dtype)


def chunks(draws: int, size: int) -> list[range]:
    """The draws 0 … draws − 1, in chunks of one size (the last may be shorter)."""
    return [range(start, min(start + size, draws)) for start in range(0, draws, size)]


def growing_chunks(draws: int) -> list[range]:
    """Chunks whose sizes grow geometrically, so that even a few draws are spread over all workers."""
    # Where a chunk begins depends on nothing else: it is part of the key.
    found, start = [], 0
    while start < draws:
        size = min(CHUNK, max(FIRST, 2 ** start.bit_length() // 8))
        found.append(range(start, min(start + size, draws)))
        start += size
    return found


def merge_chunks(parts: Sequence[range], most: int, workers: int) -> list[range]:
    """Join consecutive chunks into parts of up to `most` draws, with at least one part for each worker."""
    # Python's overhead for a step of a plan is the same for one chunk and for several. A draw that would be alone joins
    # those before it: numpy adds in another order where a replica is alone.
    alone = most > 1
    most = min(most, -(-parts[-1].stop // workers))
    found = [parts[0]]
    for part in parts[1:]:
        if part.stop - found[-1].start <= most or (alone and len(part) == 1):
            found[-1] = range(found[-1].start, part.stop)
        else:
            found.append(part)
    return found
