"""Running a plan: a loop over its steps for a block of replicas, and nothing else.

Normals and χ come from a stream of their own for each draw of the plan, keyed by (seed, draw, chunk), so the numbers
depend neither on the order of the steps nor on how a chunk is cut into blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._instructions import apply_over
from ._montecarlo import generator
from ._plan import LONG, RULES, Plan, Step

Array = Any

IN_PLACE: dict[str, Any] = {"add": np.add, "multiply": np.multiply, "scale": np.multiply, "apply": apply_over}


class Streams:
    """The random numbers of one chunk of replicas."""

    def __init__(self, seed: int, chunk: int) -> None:
        self.seed, self.chunk = seed, chunk
        self._generators: dict[tuple[int, ...], np.random.Generator] = {}

    def draw(self, step: Step, replicas: int) -> Array:
        """The random numbers of a step, (replicas, *shape)."""
        key = step.params["key"]
        if key not in self._generators:
            self._generators[key] = generator(self.seed, *key, self.chunk)
        rng = self._generators[key]
        shape = replicas, *step.out.shape
        if step.kind == "normals":
            return _laid_out(rng.standard_normal(shape))
        freedom = step.params["freedom"]
        half = freedom / 2 if len(freedom) > 1 else freedom[0] / 2  # numpy is faster with a number than with an array
        halves = _laid_out(rng.standard_gamma(half, shape))
        halves *= 2
        return np.sqrt(halves, out=halves)


def _laid_out(a: Array) -> Array:
    """The replicas innermost in memory, if a row of a replica is short: see `_instructions`."""
    if a.shape[-1] >= LONG:
        return a
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0)


def run(plan: Plan, streams: Streams, replicas: int, xp: Any = np) -> tuple[Array, Array]:
    """Mean and coefficients of one coordinate of the outputs, (replicas or 1, entries) and (replicas or 1, entries, ·).

    A coordinate is mean + coefficients · N(0, I), given all that was drawn.
    """
    arrays: dict[Any, Array] = {}
    for step, dead, place in zip(plan.steps, plan.last, plan.overwrites, strict=True):
        if step.kind in ("normals", "chi"):
            arrays[step.out] = xp.asarray(streams.draw(step, replicas))
        else:
            given = [arrays[arg] if arg.value is None else xp.asarray(arg.value) for arg in step.args]
            if place is not None and xp is np and given[place].flags.writeable:
                arrays[step.out] = IN_PLACE[step.kind](*given, *step.params.values(), out=given[place])
            else:
                arrays[step.out] = RULES[step.kind](xp, *given, **step.params)
        for number in dead:
            del arrays[plan.steps[number].out]
    mean, columns = (np.asarray(arrays[r] if r.value is None else r.value) for r in (plan.mean, plan.columns))
    return mean, columns
