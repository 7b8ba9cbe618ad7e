"""The cost of a study, from its plans: seconds, workers, and their memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .._validate import ArgumentError
from ..engine.backends import AUTO, Backend, Numpy
from ..engine.passes.score_pieces import MOST_SCORES
from ..engine.plan._draw_cost import (
    FINITE_VECTOR_BYTES,
    PAIR_BYTES,
    SCALAR_BYTES,
    TEMPORARY,
    VECTOR_BYTES,
    Draw,
)
from ..models import Transformer
from ..models.measure._loss_gradient import PIECE_NUMBERS
from ..runtime._memory import check_memory, memory, most_fitting
from ..runtime._parallel import cores

START = 1.5  # seconds until workers run, one on each core
REPORT = 3.0  # seconds for the figures of a report
DOUBLE_BYTES = 8  # of a number
BACKWARD = 4  # times as many operations, at most, with gradients
MAX_LAYERS = 2000
# Of a draw: the numbers held at a time for each score of a piece (scores and weights),
# for each logit of a piece (its noise), and for each token and hidden unit (of a gated
# perceptron, and of others); 1.3 times as many for some models.
HELD_PER_SCORE, HELD_PER_LOGIT = 2.0, 1.0
HELD_PER_HIDDEN_GATED, HELD_PER_HIDDEN = 3.0, 2.0
# Of gradients, in each block, measured on plans of Llama and GPT-2 with 48 and 96
# tokens: the numbers of a draw for each pair of tokens of a head, and for each token
# and hidden unit (of a gated perceptron, and of others). Larger plans take up to 1.4
# times that.
KEPT_PER_PAIR, KEPT_PER_HIDDEN_GATED, KEPT_PER_HIDDEN = 2.5, 7.5, 5.0
# the numbers for each logit, at the end of the forward pass: 0.8 to 1.7 measured
KEPT_PER_LOGIT = 0.75
# The bytes of planning for each attention, for each token of its heads, and for each
# pair of tokens of its heads (an index of a mask takes more).
PLANNED_PER_ATTENTION, PLANNED_PER_TOKEN, PLANNED_PER_PAIR = 5e5, 600.0, 9.0
# what a plan takes, at most, over the estimates of the least that it takes
MOST_OVER_LEAST = 1.4
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
    model: Transformer,
    tokens: int,
    infinite: bool,
    gradients: bool,
    backend: Backend = Numpy(),  # noqa: B008 (it is frozen)
) -> None:
    """Reject models that are too large to plan, or to draw on a device.

    The error names the most tokens that fit: the law of these positions is exact.
    """
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
        _check(
            lambda length: least_gradient_bytes(model, length),
            tokens,
            subject=f"gradients at {inputs} and {depth}",
            remedy="take fewer tokens or layers, or no gradients",
        )
    remedy = "take fewer tokens, or a smaller model"
    _check(
        lambda length: forward_bytes(model, length),
        tokens,
        subject=inputs,
        remedy=remedy,
    )
    if backend.kind != "cpu":
        _check_device(model, tokens, inputs, remedy, backend)
    # of heads: queries, keys, values and outputs; a decoder block attends twice
    attentions = model.layers + 2 * model.decoder_layers
    vectors = 4.0 * model.heads * attentions  # of each token
    if gradients:
        vectors *= BACKWARD
    vector_bytes = VECTOR_BYTES if infinite else FINITE_VECTOR_BYTES
    _check(
        lambda length: vector_bytes * vectors * length,
        tokens,
        subject=inputs,
        remedy=remedy,
    )
    if infinite:  # every pair of tokens has a score
        _check(
            lambda length: SCALAR_BYTES * vectors * length**2,
            tokens,
            subject=f"{inputs} at infinite width",
            remedy="take fewer tokens, or the actual widths alone",
        )


def _check(
    size: Callable[[int], float],
    tokens: int,
    subject: str,
    remedy: str,
    room: float | None = None,
) -> None:
    """Raise an error if `size(tokens)` bytes do not fit, with the tokens that do.

    `room` is the memory of a device; by default it is that of this process.
    """
    fitting = most_fitting(lambda length: MOST_OVER_LEAST * size(length), tokens, room)
    if 2 <= fitting < tokens:
        remedy += f" ({fitting:,} tokens fit)"
    check_memory(size(tokens), subject, remedy, room)


def _check_device(
    model: Transformer, tokens: int, inputs: str, remedy: str, backend: Backend
) -> None:
    """Raise an error if a draw does not fit on a device."""
    # the precision may still be chosen: then single counts
    share = 0.5 if backend.precision == AUTO else backend.itemsize / DOUBLE_BYTES
    _check(
        lambda length: share * drawn_bytes(model, length),
        tokens,
        subject=f"{inputs} on {backend.device}",
        remedy=remedy,
        room=backend.memory(),
    )


def forward_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of a draw and of its plan, in bytes."""
    return TEMPORARY * drawn_bytes(model, tokens) + PAIR_BYTES * tokens**2


def drawn_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of the arrays of a draw in double precision, in bytes: the
    largest of what it holds at a time (a piece of the scores of a block, a piece of the
    logits, the hidden units).
    """
    scores = min(model.heads * tokens**2, max(MOST_SCORES, tokens**2))
    logits = min(tokens * (model.vocabulary or 0), max(PIECE_NUMBERS, tokens**2))
    per_hidden = HELD_PER_HIDDEN_GATED if model.gated else HELD_PER_HIDDEN
    held = (
        HELD_PER_SCORE * scores,
        HELD_PER_LOGIT * logits,
        per_hidden * tokens * model.hidden,
    )
    return DOUBLE_BYTES * max(held)


def least_gradient_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of gradients and of their plan, in bytes."""
    return min(gradient_bytes(model, tokens), recomputed_bytes(model, tokens))


def gradient_bytes(model: Transformer, tokens: int) -> float:
    """About the least memory of gradients and of their plan, in bytes, if every block
    keeps what the backward pass reads.
    """
    kept = (model.layers + model.decoder_layers) * _kept_in_block(model, tokens)
    kept += _kept_logits(model, tokens)
    return TEMPORARY * kept + _planned_gradient_bytes(model, tokens)


def recomputed_bytes(model: Transformer, tokens: int) -> float:
    """The same if blocks are computed again in the backward pass (see
    `engine.plan._recompute`): the streams that are kept, one block, and the logits.

    With the stream kept after each of K segments, and one segment computed again, the
    sum is least where both take the same: the root of their product.
    """
    blocks = model.layers + model.decoder_layers
    block = _kept_in_block(model, tokens)
    every_stream = DOUBLE_BYTES * blocks * tokens * model.width
    streams = min(every_stream, math.sqrt(every_stream * block))
    kept = streams + block + _kept_logits(model, tokens)
    return TEMPORARY * kept + _planned_gradient_bytes(model, tokens)


def _kept_in_block(model: Transformer, tokens: int) -> float:
    """The bytes that a block keeps for the backward pass; of all blocks, the mean."""
    attentions = model.layers + 2 * model.decoder_layers
    blocks = model.layers + model.decoder_layers
    per_hidden = KEPT_PER_HIDDEN_GATED if model.gated else KEPT_PER_HIDDEN
    pairs = attentions / blocks * model.heads * tokens**2
    kept = KEPT_PER_PAIR * pairs + per_hidden * tokens * model.hidden
    return DOUBLE_BYTES * kept


def _kept_logits(model: Transformer, tokens: int) -> float:
    """The bytes of a piece of the logits, when their gradient is computed."""
    logits = min(tokens * (model.vocabulary or 0), PIECE_NUMBERS)
    return DOUBLE_BYTES * KEPT_PER_LOGIT * logits


def _planned_gradient_bytes(model: Transformer, tokens: int) -> float:
    """The bytes that a plan with gradients takes."""
    attentions = model.layers + 2 * model.decoder_layers
    in_heads = PLANNED_PER_TOKEN * tokens + PLANNED_PER_PAIR * tokens**2
    return attentions * (PLANNED_PER_ATTENTION + model.heads * in_heads)


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
