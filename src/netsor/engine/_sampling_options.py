"""How to sample: how many draws, from which seed, by whom and on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from .._array_api import one_blas_thread
from ._parallel import Progress, at_once, run, whole_number
from .backends import Backend, Numpy

T = TypeVar("T")

AHEAD = 2  # chunks at a time where the library has its own threads: one is brought back while the next is made


@dataclass(frozen=True)
class Sampling:
    """Draws and seed, which say what is drawn (with the backend); workers, executor and progress, which do not.

    `workers` are threads, all cores if None; an executor, if given, takes their place. `progress` is True for a bar on
    a terminal, False for none, or a function of (draws done, draws in all).
    """

    draws: int
    seed: int = 0
    workers: int | None = None
    executor: Executor | None = None
    progress: Progress = True
    backend: Backend = field(default_factory=Numpy)
    least: int = 1  # draws

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", whole_number("draws", self.draws, self.least))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0))

    @property
    def threads(self) -> int | None:
        """How many chunks are worked on at a time."""
        return self.workers if self.backend.threads else AHEAD

    @property
    def at_once(self) -> int:
        """How many chunks can be under way, an executor's included."""
        return at_once(self.threads, self.executor)

    def run(
        self, work: Callable[[range, Callable[[int], None]], T], parts: Sequence[range], together: int = 1
    ) -> Iterator[tuple[range, T]]:
        """Every chunk, as it is done; `together` of them make a task that is worth sending.

        Where threads sample, BLAS is found and held to one of them here: if every chunk did, that would cost as much
        as drawing a fifth of its numbers.
        """
        with one_blas_thread() if self.backend.threads else nullcontext():
            yield from run(work, parts, self.threads, self.executor, self.progress, together)
