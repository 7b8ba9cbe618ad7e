"""How fast this machine is: the seconds of a draw, measured before a study that takes
minutes.

The estimates of plans are those of one core of another machine. Here a few blocks are
drawn on all cores at once, as the study will: cores that share a memory bus, or the
units of one core, are slower together than alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..engine.backends._numpy import Streams, block_of, blocks
from ..engine.plan._plan import Plan
from ..runtime._executors import thread_pool

SECONDS = 0.1  # of a measurement of one plan, about
PLANS = 3  # the plans that take the most time in a study are measured


def slowness(plan: Plan, workers: int, seconds: float = SECONDS) -> float:
    """The core-seconds of a draw over those that its plan predicts, measured with all
    workers at work.

    It draws for about so many seconds by the prediction, in whole blocks.
    """
    predicted = plan.seconds(1)
    replicas = max(block_of(plan), int(seconds / predicted))

    def draw(worker: int) -> float:
        """The seconds of processor time of one worker."""
        start = time.thread_time()
        for _ in blocks(plan, Streams(0, worker), replicas, lambda draws: None):
            pass
        return time.thread_time() - start

    with thread_pool(workers) as pool:
        measured = sum(pool.map(draw, range(workers)))
    return measured / (workers * replicas * predicted)


def calibrated(
    predicted: Sequence[tuple[Plan, float]], workers: int, seconds: float = SECONDS
) -> float:
    """The core-seconds of work on this machine.

    `predicted` has a plan and the seconds of all its draws for each part of the work.
    The plans that take the most are measured, and the others are as slow as these
    together.
    """
    by_time = sorted(predicted, key=lambda part: -part[1])
    largest = [part for part in by_time[:PLANS] if part[1] > 0]
    if not largest:
        return 0.0
    on_this_machine = sum(
        whole * slowness(plan, workers, seconds) for plan, whole in largest
    )
    as_predicted = sum(whole for _, whole in largest)
    return on_this_machine / as_predicted * sum(whole for _, whole in predicted)
