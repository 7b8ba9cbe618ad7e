"""numpy, the default: starts at once, draws fastest on a CPU, and writes over what nothing else reads.

Normals and χ come from a stream of their own for each draw of the plan, keyed by (seed, draw, chunk), so the numbers
depend neither on the order of the steps nor on how a chunk is cut into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from .._montecarlo import generator, memory, one_blas_thread
from .._plan import LONG, Plan, Register, Step
from .._run import in_numpy, run
from ._base import Backend

Array = Any

CHUNK = 8192  # replicas with one seed; no function of the width, so that one seed couples two widths
BLOCK_BYTES = 2**21  # of arrays in one go: so large that Python costs little, and no larger than a cache
LARGE_BYTES = 2**28  # of plans that fit no cache: a few replicas in one go, while Python costs more than their work
FEW = 16
STEP_SECONDS = 1.3e-5  # what Python costs a step
HELD_BYTES = 2**25 - 2**12  # the most that glibc learns to keep


class Streams:
    """The random numbers of one chunk of replicas."""

    def __init__(self, seed: int, chunk: int, precision: str = "float64") -> None:
        self.seed, self.chunk, self.dtype = seed, chunk, np.dtype(precision)
        self._generators: dict[tuple[int, ...], np.random.Generator] = {}

    def draw(self, step: Step, replicas: int) -> Array:
        """The random numbers of a step, (replicas, *shape)."""
        key = step.params["key"]
        if key not in self._generators:
            self._generators[key] = generator(self.seed, *key, self.chunk)
        rng = self._generators[key]
        shape = replicas, *step.out.shape
        if step.kind == "normals":
            return _laid_out(rng.standard_normal(shape, dtype=self.dtype))
        freedom = step.params["freedom"]
        half = freedom / 2 if len(freedom) > 1 else freedom[0] / 2  # numpy is faster with a number than with an array
        halves = _laid_out(rng.standard_gamma(half, shape, dtype=self.dtype))
        halves *= 2
        return np.sqrt(halves, out=halves)


def _laid_out(a: Array) -> Array:
    """The replicas innermost in memory, if a row of a replica is short: see `_instructions`."""
    if a.shape[-1] >= LONG:
        return a
    last = a.ndim - 1
    return np.ascontiguousarray(a.transpose((*range(1, a.ndim), 0))).transpose((last, *range(last)))


def block(plan: Plan, streams: Streams, replicas: int) -> tuple[Array, Array]:
    """Mean and coefficients of one coordinate of the outputs for the next replicas of a chunk."""
    return run(plan, partial(streams.draw, replicas=replicas), partial(_constant, streams.dtype), in_numpy)


def block_of(plan: Plan) -> int:
    """How many replicas are run in one go: a function of the plan alone."""
    # long rows of coordinates stream through memory anyway
    room = BLOCK_BYTES * (8 if 2 * plan.long_numbers > plan.random_numbers else 1)
    worth = math.ceil(64 * STEP_SECONDS * len(plan.steps) / max(plan.seconds(1), 1e-9))
    few = min(FEW, worth, LARGE_BYTES // max(plan.bytes, 1))
    few = 1 << max(few, 1).bit_length() - 1  # a chunk has a power of two of them
    return max(1, few, min(CHUNK, room // max(plan.bytes, 1)))


@cache
def hold_memory() -> None:
    """Once in a process: memory that was freed is kept for the next block.

    glibc gives back to the system what lies above a threshold, and raises that to twice the largest array it has seen
    freed. Without one, every block faults in all of its pages anew: a quarter of the time of small plans.
    """
    np.empty(HELD_BYTES, np.uint8)


def _constant(dtype: Any, register: Register) -> Array:
    assert register.value is not None
    return register.value if dtype == np.float64 else register.value.astype(dtype)


class Numpy(Backend):
    """numpy on the CPU."""

    name: ClassVar[str] = "numpy"
    threads: ClassVar[bool] = True

    def memory(self) -> float:
        """Of the machine."""
        return memory()

    def chunk(self, plan: Plan, draws: int) -> int:
        """The same for every plan."""
        return CHUNK

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """Blocks that fit a cache, one after the other from the same streams."""
        hold_memory()
        most = -(-len(part) // -(-len(part) // block_of(plan)))  # as many blocks, but of one size
        streams = Streams(seed, part.start // size, self.precision)
        with one_blas_thread():
            for start in range(0, len(part), most):
                replicas = min(most, len(part) - start)
                yield block(plan, streams, replicas)
                tick(replicas)

    def cov(self, columns: Array) -> Array:
        """By a matrix product."""
        return columns @ np.swapaxes(columns, -1, -2)

    def numpy(self, array: Array) -> Array:
        """As it is, in double precision."""
        return np.asarray(array, dtype=np.float64)
