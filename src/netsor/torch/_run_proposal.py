"""The smallest part of a batch on which `check_run` still detects a wrong gradient.

A few runs show the spread of each size. They estimate it with an error of a fifth, so
the first size that is large enough by them would often be one whose spread they
underestimate. It is accepted only with as many runs as the check takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from .._array_api import Floats
from .._validate import also_spelled, counted, real, seed_number
from ..checks._run_bands import POWER, Band, band, enough_runs, half_width
from ..checks._run_check import GRADIENT, TOLERANCE, runs_of, seeds_of, train
from ..report._document import wrap
from ._check_run import loop_of
from ._run_batches import Batch
from ._run_loop import Loop

RUNS = 16  # that show the spread at each size
LEAST_TOKENS = 8
LOGGED = 2  # quantities of the usual log: the loss and the gradient norm


@dataclass(frozen=True)
class BatchSize:
    """A part of a batch, and the factor of the gradient norm that it shows.

    `runs` is how many initialisations show this.
    """

    sequences: int
    tokens: int
    factor: float
    runs: int


@dataclass(frozen=True)
class RunProposal:
    """The result of `ns.torch.propose_batch`.

    Attributes
    ----------
    sizes : list of BatchSize
        The parts that were tried, from the smallest on.
    factor : float
        The factor of the gradient norm to detect.
    runs : int
        How many initialisations the check needs.
    tokens : int
        The tokens of the whole batch of a pass.

    Examples
    --------
    >>> proposal = ns.torch.propose_batch(build, adamw, batch)  # doctest: +SKIP
    >>> proposal.ok  # doctest: +SKIP
    True
    >>> sequences = proposal.sizes[-1].sequences  # doctest: +SKIP
    """

    sizes: list[BatchSize]
    factor: float
    runs: int
    tokens: int

    @property
    def ok(self) -> bool:
        """Whether one of the sizes detects the factor."""
        return self.sizes[-1].factor <= self.factor

    @property
    def verdict(self) -> str:
        """The proposed size, with the factor that it detects and its cost."""
        best = self.sizes[-1]
        size = f"{counted(best.sequences, 'sequence')} of {best.tokens} tokens"
        if not self.ok:
            return (
                f"the whole batch, {size}, detects at step 0 a gradient norm off by a"
                f" factor of {best.factor:.3g}, not {self.factor:.3g}: use a larger"
                " batch, or later steps, which often vary less"
            )
        share = best.sequences * best.tokens / self.tokens
        return (
            f"{size} detect a gradient norm off by a factor of {best.factor:.3g} with"
            f" probability {POWER}: {100 * share:.2g} % of the batch; train on them,"
            f" and check with --sequences {best.sequences} --tokens {best.tokens}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, `ok` and `verdict`, for JSON."""
        return {**asdict(self), "ok": self.ok, "verdict": self.verdict}

    def __str__(self) -> str:
        lines = [wrap(self.verdict), ""]
        lines += [
            f"{each.sequences:6} x {each.tokens:6} tokens: factor {each.factor:.3g}"
            f" ({each.runs} initialisations)"
            for each in self.sizes
        ]
        return "\n".join(lines)


@also_spelled(optimizer="optimiser")
def propose_batch(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    factor: float = 1.1,
    steps: int = 5,
    accumulation: int = 1,
    clip: float | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    tokens: int | None = None,
    sequences: int | None = None,
    initialisations: int | None = None,
    level: float = 1e-3,
    tolerance: float = TOLERANCE,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> RunProposal:
    """The smallest part of your batch that detects a gradient norm off by a factor.

    Sequences are halved first, and then tokens. The parameters, except `factor`, are
    those of `check_run`.

    Parameters
    ----------
    factor : float
        The factor to detect with probability 0.9.

    Returns
    -------
    RunProposal
        The proposed size, and the factors that smaller ones detect.

    Examples
    --------
    >>> print(ns.torch.propose_batch(build, adamw, batch))  # doctest: +SKIP
    """
    factor = real(factor, "factor", above=1)
    level = real(level, "level", above=0, most=0.5)
    loop = loop_of(
        build,
        optimiser,
        batches,
        steps=steps,
        accumulation=accumulation,
        clip=clip,
        loss=loss,
        tokens=tokens,
        sequences=sequences,
        device=device,
    )
    level /= LOGGED * (loop.steps + 1)
    runs = enough_runs(level) if initialisations is None else initialisations
    all_sequences, all_tokens = _size(loop.batches[0])
    seeds = seeds_of(seed_number(seed), max(runs, RUNS))
    sizes = []
    parts = list(_parts(all_sequences, all_tokens))
    for sequences, tokens in parts:
        part = _cut(loop, sequences, tokens)
        title = f"{sequences} x {tokens}"
        values = train(part, seeds[:RUNS], progress, title)
        detected = _detected_by_few(values[GRADIENT][:, 0], runs, level, tolerance)
        if detected <= factor or (sequences, tokens) == parts[-1]:
            values = train(part, seeds, progress, title, first=runs_of(values))
            of_all = band(values[GRADIENT][:, 0], level, tolerance)
            detected = math.exp(of_all.detected)
        sizes.append(BatchSize(sequences, tokens, detected, runs=len(values[GRADIENT])))
        if detected <= factor:
            break
    return RunProposal(sizes, factor, runs, tokens=all_sequences * all_tokens)


def _detected_by_few(norms: Floats, runs: int, level: float, tolerance: float) -> float:
    """The factor that a check of so many `runs` detects if the law is normal, and has
    the spread of these few.
    """
    spread = band(norms, level).spread
    half = spread * half_width(runs, level) + tolerance
    return math.exp(Band(0.0, spread, half, half, is_log=True).detected)


def _size(batch: Batch) -> tuple[int, int]:
    """The sequences and tokens of the batch of one pass."""
    ids = batch.ids
    if ids is None or ids.ndim != 2:
        raise ValueError(
            "a proposal needs a batch of ids (sequences, tokens); the batch has none"
        )
    return ids.shape[0], ids.shape[1]


def _parts(sequences: int, tokens: int) -> Iterator[tuple[int, int]]:
    """Sizes from one sequence of a few tokens to the whole batch."""
    lengths = [tokens]
    while lengths[-1] // 2 >= LEAST_TOKENS:
        lengths.append(lengths[-1] // 2)
    counts = [sequences]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    yield from ((1, length) for length in reversed(lengths))
    yield from ((count, tokens) for count in reversed(counts[:-1]))


def _cut(loop: Loop, sequences: int, tokens: int) -> Loop:
    """The first step of a loop, on a part of its batches."""
    batches = [batch.cut(sequences, tokens) for batch in loop.batches]
    return replace(loop, steps=0, batches=batches)
