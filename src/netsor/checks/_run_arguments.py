"""Arguments of `run_law` that every front end checks in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from .._validate import ArgumentError, real, seed_number, shown, whole
from ..runtime._files import named

MOST_STEPS = 1000  # the largest last step that a check trains to


class LawOptions(NamedTuple):
    """How the law of a log is computed: its error probability, and its seed."""

    level: float
    tolerance: float
    seed: int


def law_options(level: float, tolerance: float, seed: int) -> LawOptions:
    """The checked options of the law of a log."""
    return LawOptions(
        level=real(level, "level", above=0, most=0.5),
        tolerance=real(tolerance, "tolerance", least=0, most=1),
        seed=seed_number(seed),
    )


class LoopSizes(NamedTuple):
    """The sizes of a training loop: its last step, and what a step consists of."""

    steps: int
    accumulation: int
    clip: float | None

    @property
    def passes(self) -> int:
        """The number of passes of all steps: step 0 to the last one."""
        return (self.steps + 1) * self.accumulation

    def check_batch_count(self, count: int, batches: Any) -> None:
        """Reject an argument `batches` that holds too few batches for the passes.

        One batch, or the batches of one step, are used again at every step.
        """
        is_repeated = count in (1, self.accumulation)
        if is_repeated or count >= self.passes:
            return
        raise ArgumentError(
            "batches",
            batches,
            f"one batch, or {self.passes} of them: {self.accumulation} for each of the"
            f" {self.steps + 1} steps 0 to {self.steps}, not {count}",
        )


def loop_sizes(steps: int, accumulation: int, clip: float | None) -> LoopSizes:
    """The checked sizes of a training loop."""
    steps = whole(steps, "steps", least=0, most=MOST_STEPS)
    accumulation = whole(accumulation, "accumulation")
    if clip is not None:
        clip = real(clip, "clip", above=0)
    return LoopSizes(steps, accumulation, clip)


def rows_of_each_pass(rows: int, accumulation: int) -> list[slice]:
    """The rows of one batch that each of `accumulation` passes takes."""
    if rows == 0:
        raise ValueError(
            f"accumulation={accumulation} divides the sequences of a batch, and the"
            " batch has none: pass a batch with sequences"
        )
    if rows % accumulation:
        raise ArgumentError(
            "accumulation",
            accumulation,
            f"a divisor of the {rows} sequences of the batch; or pass a list of the"
            " batches of each pass",
        )
    size = rows // accumulation
    return [slice(start, start + size) for start in range(0, rows, size)]


def unreadable_file(path: Path, error: OSError) -> ArgumentError:
    """The error for a batch whose file the system cannot read."""
    reason = error.strerror or shown(error)
    return ArgumentError("batch", str(path), f"a readable file: {reason}")


def malformed_file(path: Path, kind: str, error: Exception) -> ValueError:
    """The error for a file that does not hold a batch of this kind, such as arrays."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return ValueError(
        f"{named(path)} cannot be read as a batch ({reason}): save {kind}, or a tuple,"
        " mapping or list of them"
    )
