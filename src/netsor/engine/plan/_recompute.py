"""Plans that fit in less memory: results that only a backward pass needs are dropped,
and computed again when it comes to them.

A forward pass makes the numbers of each block, and the backward pass reads them in the
opposite order, so a plan for gradients holds all blocks at its peak. As in training
with checkpoints (Chen et al. 2016), the forward part is cut into segments. Between two
segments only what the next ones read is kept, mostly the stream. Before the backward
pass reads other results of a segment, the steps that make them are repeated. Steps that
draw repeat their numbers too, from the same stream, so every number of a law stays the
same, and at most the forward part is done twice.

The steps alone are looked at, so this works for every program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..._array_api import Ints
from ._instructions import DRAWS
from ._ir import AGAIN, REPEATED, Register, Step
from ._plan import Plan

# the numbers of segments that are tried: the memory is least near the root of twice the
# number of blocks, and segments are at least one block
SEGMENTS = (2, 4, 8, 16, 32, 64, 128)
# a cut is moved by up to this share of a segment to where the least must be kept
CUT_WINDOW = 0.5
# of a plan's bytes: less is not worth the repeated steps
LEAST_SAVED = 0.1


@lru_cache(maxsize=2)
def recomputing(plan: Plan) -> Plan:
    """The same plan in the least memory that recomputing segments can reach.

    It is the plan itself if that saves little: if no results wait for a later part.
    `bytes_kept` of the new plan is the memory without it.
    """
    best = plan
    for segments in SEGMENTS:
        shorter = _Segmented(plan, segments).plan()
        if shorter is None:
            continue
        if shorter.bytes >= best.bytes:
            break
        best = shorter
    if best.bytes > (1 - LEAST_SAVED) * plan.bytes:
        return plan
    best.bytes_kept = plan.bytes
    return best


class _Lifetimes(NamedTuple):
    """When the results of the steps are made, read and forgotten."""

    position: dict[Register, int]  # of the step that makes it
    readers: dict[Register, list[int]]  # the positions of the steps that read it
    peak: int  # the step at which the most numbers are held


def _lifetimes(plan: Plan) -> _Lifetimes:
    """When the results of a plan live."""
    position: dict[Register, int] = {}
    readers: dict[Register, list[int]] = {}
    stored = 0  # numbers of a replica that a later step reads
    most_stored = 0
    peak = 0
    for k, (step, live) in enumerate(zip(plan.steps, plan.live, strict=True)):
        position[step.out] = k
        for arg in dict.fromkeys(step.args):
            readers.setdefault(arg, []).append(k)
        stored += step.out.size
        if stored > most_stored:
            most_stored = stored
            peak = k
        stored -= sum(register.size for register in live.dead)
    end = len(plan.steps)  # the outputs are read after all steps
    for output in (plan.mean, plan.columns):
        readers.setdefault(output, []).append(end)
    return _Lifetimes(position, readers, peak)


class _Segmented:
    """The steps before the peak of a plan, in segments of about equal memory."""

    def __init__(self, plan: Plan, segments: int) -> None:
        self.original = plan
        self.position, self.readers, self.peak = _lifetimes(plan)
        self.cuts = self._cuts(segments)

    def _waits(self, register: Register) -> bool:
        """Whether a result of the first part is read after the peak."""
        return self.readers[register][-1] > self.peak

    def _cuts(self, segments: int) -> list[int]:
        """The first steps of the segments, and the end of the last one.

        Segments have equal sizes of results that wait for the backward pass, but for a
        shift to a place where fewer results are read by later segments.
        """
        steps = self.original.steps[: self.peak + 1]
        waiting = [step.out.size if self._waits(step.out) else 0 for step in steps]
        waiting_up_to = np.cumsum(waiting)
        total = waiting_up_to[-1]
        crossing = self._crossing(steps)
        cuts = [0]
        for k in range(1, segments):
            # a cut after the k-th equal share, or within half a window of it
            least_size = (k - CUT_WINDOW / 2) / segments * total
            largest_size = (k + CUT_WINDOW / 2) / segments * total
            earliest = int(np.searchsorted(waiting_up_to, least_size))
            latest = int(np.searchsorted(waiting_up_to, largest_size))
            earliest = max(earliest, cuts[-1] + 1)
            if earliest <= latest < len(steps):
                best = np.argmin(crossing[earliest : latest + 1])
                cuts.append(int(earliest + best))
        return [*cuts, len(steps)]

    def _crossing(self, steps: Sequence[Step]) -> Ints:
        """For each step, the size of the results before it that it, or a later step up
        to the peak, reads.
        """
        # a result counts from the step after its own up to its last reader
        change = np.zeros(len(steps) + 1, dtype=np.int64)
        for k, step in enumerate(steps):
            readers = self.readers[step.out]
            before_peak = [reader for reader in readers if reader <= self.peak]
            if before_peak:
                last_reader = before_peak[-1]
                change[k + 1] += step.out.size
                change[last_reader + 1] -= step.out.size
        return np.cumsum(change)[:-1]

    def plan(self) -> Plan | None:
        """The plan that recomputes the segments, except the last; None if there is
        only one.
        """
        if len(self.cuts) < 3:
            return None
        repeated: dict[int, list[Step]] = {}  # by the step that they precede
        drawn: set[Register] = set()  # what is drawn again
        replacement: dict[Register, Register] = {}  # by the register that is dropped
        segments = list(pairwise(self.cuts))
        for start, stop in segments[:-1]:
            dropped = list(self._dropped(start, stop))
            if not dropped:
                continue
            steps = self._steps_for(dropped, start)
            # of this segment alone: earlier ones are repeated later
            new = {step.out: Register(step.out.shape) for step in steps}
            first_reader = min(self._first_late_reader(out) for out in dropped)
            before = repeated.setdefault(first_reader, [])
            before += [_again(step, new) for step in steps]
            drawn.update(step.out for step in steps if step.kind in DRAWS)
            replacement |= {register: new[register] for register in dropped}
        shorter = replace(
            self.original, steps=self._with_repeats(repeated, drawn, replacement)
        )
        _mark_first_draws(shorter)
        return shorter

    def _with_repeats(
        self,
        repeated: dict[int, list[Step]],
        drawn: set[Register],
        replacement: dict[Register, Register],
    ) -> list[Step]:
        """All steps of the plan, with repeated ones before the steps that read them.

        `repeated` has these by the position of the step that they precede. Steps up to
        the peak whose results are in `drawn` are marked, since their numbers are drawn
        again. Later steps read the `replacement` of a dropped register.
        """
        all_steps = self.original.steps
        steps: list[Step] = []
        for step in all_steps[: self.peak + 1]:
            if step.out in drawn:
                step = replace(step, params={**step.params, REPEATED: True})
            steps.append(step)
        for k in range(self.peak + 1, len(all_steps)):
            steps += repeated.get(k, [])
            steps.append(_renamed(all_steps[k], replacement))
        return steps

    def _dropped(self, start: int, stop: int) -> Iterator[Register]:
        """The results of a segment that no later one, but the backward pass, reads."""
        end = len(self.original.steps)  # where the outputs of the plan are read
        for step in self.original.steps[start:stop]:
            readers = self.readers[step.out]
            later_segments = range(stop, self.peak + 1)
            reads_later = any(reader in later_segments for reader in readers)
            is_output = readers[-1] == end
            if self._waits(step.out) and not reads_later and not is_output:
                yield step.out

    def _is_kept(self, register: Register) -> bool:
        """Whether a register that is not dropped is there after the peak."""
        return register.value is not None or self._waits(register)

    def _first_late_reader(self, register: Register) -> int:
        """The first step after the peak that reads a register."""
        return next(r for r in self.readers[register] if r > self.peak)

    def _steps_for(self, results: Sequence[Register], start: int) -> list[Step]:
        """The steps from `start` on that make these results, in order.

        They read results of earlier segments, and results of this one that are kept
        for a later segment and the backward pass.
        """
        made_again = set(results)
        to_compute = set(results)
        steps = []
        last = max(self.position[result] for result in results)
        for k in range(last, start - 1, -1):
            step = self.original.steps[k]
            if step.out in to_compute:
                steps.append(step)
                for arg in step.args:
                    if arg in made_again or not self._is_kept(arg):
                        to_compute.add(arg)
        return steps[::-1]


def _again(step: Step, new: dict[Register, Register]) -> Step:
    """A step that is repeated; if it draws, with the same numbers."""
    repeated = replace(_renamed(step, new), out=new[step.out])
    if step.kind in DRAWS:
        repeated.params = {**step.params, AGAIN: True}
    return repeated


def _mark_first_draws(plan: Plan) -> None:
    """Correct the steps that draw again, but whose first draw nothing reads any more:
    plans leave such steps out.
    """
    repeated_keys = {
        step.params["key"] for step in plan.steps if REPEATED in step.params
    }
    for step in plan.steps:
        if AGAIN in step.params and step.params["key"] not in repeated_keys:
            params = dict(step.params)
            del params[AGAIN]
            step.params = params


def _renamed(step: Step, new: dict[Register, Register]) -> Step:
    """A step that reads results that were made again."""
    if new.keys().isdisjoint(step.args):
        return step
    return replace(step, args=tuple(new.get(arg, arg) for arg in step.args))
