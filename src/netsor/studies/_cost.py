"""What a study takes, as its plans say: its seconds, its workers, and their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .._validate import ArgumentError
from ..engine import Plan
from ..engine._parallel import check_memory, cores, memory
from ..engine.backends import Backend, Numpy
from ..engine.backends._numpy import replicas_per_block
from ..language import Value, Vector
from ..language._array import Take
from ..models import Transformer

BASE = 3 * 2.0**25  # bytes of a worker before it does anything: about 50 MiB were measured
MIN_DRAW_BYTES = 2.0**26  # bytes that it takes for draws, however small they are
VECTOR_BYTES, TAKE_BYTES, SCALAR_BYTES = 600.0, 34.0, 75.0  # to plan an entry; scalars count at infinite width alone
START = 1.5  # seconds until workers have begun, one on each core
REPORT = 3.0  # seconds for its pictures
BACKWARD = 4  # times as many operations, at most, with gradients
MAX_LAYERS = 2000
SHALLOW = 2, 4  # blocks of the networks from whose plans the cost of a deep network follows


class Draw(NamedTuple):
    """What one draw takes on a backend, and what comes before the first one."""

    seconds: float  # of one worker
    compiling: float  # seconds, once in a process
    planning: float  # seconds, once in a process
    planning_bytes: float
    numbers: float  # random ones
    long_numbers: float  # those in long rows
    bytes: float
    held: float  # bytes of each more that is computed in the same block
    steps: float

    @classmethod
    def of(
        cls, plan: Plan, backend: Backend = Numpy(), planning: float = 0.0, planning_bytes: float = 0.0  # noqa: B008
    ) -> Draw:  # fmt: skip
        """As a plan says it."""
        compiling = backend.seconds(plan, 0)
        return cls(
            backend.seconds(plan, 1) - compiling,
            compiling,
            planning,
            planning_bytes,
            plan.random_numbers,
            plan.long_numbers,
            plan.bytes,
            plan.held,
            len(plan.steps),
        )

    def block_bytes(self, draws: int) -> float:
        """The bytes of the arrays of so many draws, as far as numpy computes them together."""
        block = replicas_per_block(
            self.bytes, self.held, self.seconds, self.steps, 2 * self.long_numbers > self.numbers
        )
        return self.bytes + (min(draws, block) - 1) * self.held

    def in_worker(self, draws: int, backend: Backend = Numpy()) -> float:  # noqa: B008 (it is frozen)
        """The bytes of a process that makes a plan, keeps it, and draws so many by it.

        Steps have temporary arrays of their own, so that a block takes up to twice the bytes of its arrays.
        """
        block = 2 * self.block_bytes(draws) if backend.threads else backend.working_bytes(self.bytes)
        return BASE + max(self.planning_bytes, self.bytes) + max(MIN_DRAW_BYTES, block)


def at_depth(model: Transformer, cost: Callable[[Transformer], Draw]) -> Draw:
    """What a draw of a model takes, from shallow plans if it is deep: every number is affine in the depth.

    A plan of a hundred blocks with gradients takes many seconds to make, and those of a few blocks suffice.
    """
    depth, (few, more) = max(model.layers, model.decoder_layers), SHALLOW
    if depth <= more:
        return cost(model)

    def shallow(blocks: int) -> Draw:
        layers, decoder_layers = min(model.layers, blocks), min(model.decoder_layers, blocks)
        return cost(model.replace(layers=layers, decoder_layers=decoder_layers))

    first, second = shallow(few), shallow(more)
    numbers = (a + (b - a) * (depth - few) / (more - few) for a, b in zip(first, second, strict=True))
    return Draw(*numbers)._replace(
        planning=second.planning * depth / more
    )  # the first plan may have imported libraries


def planning_bytes(values: Iterable[Value], infinite: bool) -> float:
    """About the memory that it takes to plan a program, and to keep it; entries that are taken have their positions."""
    total = 0.0
    for value in values:
        if isinstance(value, Vector):
            each = VECTOR_BYTES
        else:
            each = TAKE_BYTES * isinstance(value.op, Take) + SCALAR_BYTES * infinite
        total += math.prod(value.shape) * each
    return total


def refuse_large(model: Transformer, tokens: int, infinite: bool, gradients: bool) -> None:
    """Refuse what could not even be planned, by its size alone; all else is estimated from the plan."""
    if model.layers + model.decoder_layers > MAX_LAYERS:
        raise ArgumentError("layers", model.layers, f"at most {MAX_LAYERS} for an audit of {model.name}")
    words = "" if model.vocabulary is None else f", vocabulary {model.vocabulary:,}"
    sizes = f"width {model.width:,}, {model.heads:,} heads, hidden {model.hidden:,}{words}"
    what = f"{tokens:,} tokens of {model.name} ({sizes})"
    vectors = 4.0 * tokens * model.heads * (model.layers + 2 * model.decoder_layers) * (BACKWARD if gradients else 1)
    numbers = 3.0 * tokens * (model.heads * tokens + model.hidden + model.width + (model.vocabulary or 0))
    check_memory(max(8 * numbers, VECTOR_BYTES * vectors), what, "take fewer tokens, or a smaller model")
    if infinite:  # every pair of tokens has a score
        size = SCALAR_BYTES * vectors * tokens
        check_memory(size, f"{what} at infinite width", "take fewer tokens, or the actual widths alone")


class Cost(NamedTuple):
    """What a study takes."""

    seconds: float  # of one core, for the draws
    first: float  # seconds before the first draw, and for the report
    bytes: float  # of one worker
    random_numbers: int
    workers: int

    @property
    def clock(self) -> float:
        """Seconds of the clock."""
        return self.first + self.seconds / min(self.workers, cores())


def worker_count(wanted: int | None, parts: int, one: float, backend: Backend, kept: float = 0.0) -> int:
    """How many work on so many parts: unless given, as many as fit besides what is kept, and one on a device."""
    if not backend.threads:
        return min(wanted or 1, parts)
    fit = max(1, int((memory() - kept) // one))
    return min(wanted or min(cores(), fit), parts)


def overhead_seconds(workers: int, report: bool) -> float:
    """Seconds until workers have begun, and for the report."""
    return START * math.ceil(workers / cores()) + (REPORT if report else 0.0)
