"""The cost of a study, from its plans: seconds, workers, and their memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .._validate import ArgumentError
from ..engine.backends import Backend
from ..engine.plan._draw_cost import (
    PAIR_BYTES,
    SCALAR_BYTES,
    TEMPORARY,
    VECTOR_BYTES,
    Draw,
)
from ..models import Transformer
from ..models.measure._loss_gradient import PIECE_NUMBERS
from ..runtime._memory import check_memory, memory
from ..runtime._parallel import cores

START = 1.5  # seconds until workers run, one on each core
REPORT = 3.0  # seconds for the figures of a report
BACKWARD = 4  # times as many operations, at most, with gradients
MAX_LAYERS = 2000
# Of a draw: the numbers held at a time for each pair of tokens of a head, at 1,024
# tokens or more, and for each logit of a piece; 1.3 times as many for some models.
HELD_PER_PAIR, HELD_PER_LOGIT = 2.5, 2.0
# Of gradients, in each block, measured on plans of Llama and GPT-2 with 48 and 96
# tokens: the numbers of a draw for each pair of tokens of a head, and for each token
# and hidden unit (of a gated perceptron, and of others); the bytes of planning for each
# pair of tokens of a head, and for each token of a head. Larger plans take up to 1.4
# times that.
KEPT_PER_PAIR, KEPT_PER_HIDDEN_GATED, KEPT_PER_HIDDEN = 2.5, 7.5, 5.0
PLANNED_PER_PAIR, PLANNED_PER_TOKEN = 68.0, 6000.0
SHALLOW = 2  # blocks of the first plan from which the cost of a deep network follows


def at_depth(model: Transformer, cost: Callable[[Transformer], Draw]) -> Draw:
    """The cost of a draw of a model, which `cost` computes from a plan; for a deep
    model, extrapolated from plans of a few blocks, which take less time.

    Costs are affine in the depth, unless frames still grow in the plans (more than
    twice the seconds for twice the blocks) or become matrices of full width between
    them (fewer seconds). Twice as many blocks are planned then.
    """

    def cost_of_blocks(blocks: int) -> Draw:
        """The cost of a draw of the model with so many blocks."""
        return cost(
            model.replace(
                layers=min(model.layers, blocks),
                decoder_layers=min(model.decoder_layers, blocks),
            )
        )

    depth = max(model.layers, model.decoder_layers)
    blocks = SHALLOW
    while 2 * blocks < depth:
        shallow = cost_of_blocks(blocks)
        twice_as_deep = cost_of_blocks(2 * blocks)
        if shallow.seconds <= twice_as_deep.seconds <= 2 * shallow.seconds:
            extrapolated = []  # each field of a `Draw`, as a line through both depths
            for cost_1, cost_2 in zip(shallow, twice_as_deep, strict=True):
                slope = (cost_2 - cost_1) / blocks
                extrapolated.append(cost_1 + slope * (depth - blocks))
            # not a line: the time of the first plan may include imports of libraries
            planning = twice_as_deep.planning * depth / (2 * blocks)
            return Draw._make(extrapolated)._replace(planning=planning)
        blocks *= 2
    return cost(model)


def reject_large(
    model: Transformer, tokens: int, infinite: bool, gradients: bool
) -> None:
    """Reject models that are too large to plan."""
    if model.layers + model.decoder_layers > MAX_LAYERS:
        raise ArgumentError(
            "layers", model.layers, f"at most {MAX_LAYERS} for an audit of {model.name}"
        )
    sizes = f"width {model.width:,}, {model.heads:,} heads, hidden {model.hidden:,}"
    if model.vocabulary is not None:
        sizes += f", vocabulary {model.vocabulary:,}"
    inputs = f"{tokens:,} tokens of {model.name} ({sizes})"
    if gradients:
        depth = f"{model.layers + model.decoder_layers:,} layers"
        check_memory(
            gradient_bytes(model, tokens),
            f"gradients at {inputs} and {depth}",
            "take fewer tokens or layers, or no gradients",
        )
    remedy = "take fewer tokens, or a smaller model"
    check_memory(forward_bytes(model, tokens), inputs, remedy)
    # of heads: queries, keys, values and outputs; a decoder block attends twice
    attentions = model.layers + 2 * model.decoder_layers
    vectors = 4.0 * tokens * model.heads * attentions
    if gradients:
        vectors *= BACKWARD
    check_memory(VECTOR_BYTES * vectors, inputs, remedy)
    if infinite:  # every pair of tokens has a score
        check_memory(
            SCALAR_BYTES * vectors * tokens,
            f"{inputs} at infinite width",
            "take fewer tokens, or the actual widths alone",
        )


def forward_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of a draw, in bytes: the largest of what it holds at a
    time (the scores of a block, a piece of the logits, the hidden units), and the
    tables of the plan.
    """
    scores = HELD_PER_PAIR * model.heads * tokens**2
    logits = HELD_PER_LOGIT * min(
        tokens * (model.vocabulary or 0), max(PIECE_NUMBERS, tokens**2)
    )
    hidden = tokens * model.hidden
    return TEMPORARY * 8 * max(scores, logits, hidden) + PAIR_BYTES * tokens**2


def gradient_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of gradients, in bytes: what every block keeps for the
    backward pass, and its part of the plan.
    """
    attentions = model.layers + 2 * model.decoder_layers
    blocks = model.layers + model.decoder_layers
    per_hidden = KEPT_PER_HIDDEN_GATED if model.gated else KEPT_PER_HIDDEN
    pairs = attentions * model.heads * tokens**2
    kept = KEPT_PER_PAIR * pairs + per_hidden * blocks * tokens * model.hidden
    planned = (
        PLANNED_PER_PAIR * pairs + PLANNED_PER_TOKEN * attentions * model.heads * tokens
    )
    return TEMPORARY * 8 * kept + planned


class Cost(NamedTuple):
    """The cost of a study."""

    seconds: float  # of one core, for the draws
    first: float  # seconds before the first draw and for the report
    bytes: float  # of one worker
    random_numbers: int
    workers: int

    @property
    def clock(self) -> float:
        """Seconds of the clock."""
        return self.first + self.seconds / min(self.workers, cores())


def worker_count(
    requested: int | None,
    tasks: int,
    worker_bytes: float,
    backend: Backend,
    result_bytes: float = 0.0,
) -> int:
    """How many workers share the tasks: `requested`, or by default one for each core,
    as far as their memory fits beside the results; one on a device. Never more than
    tasks.
    """
    if not backend.threads:
        return min(requested or 1, tasks)
    fit = max(1, int((memory() - result_bytes) // worker_bytes))
    return min(requested or min(cores(), fit), tasks)


def overhead_seconds(workers: int, report: bool) -> float:
    """Seconds until workers run, and for the report."""
    return START * math.ceil(workers / cores()) + (REPORT if report else 0.0)
