"""Mistakes of training code that every front end knows, each as a loop that makes it.

A hypothesis is a healthy loop with a field changed, so its law is computed as the
healthy one. A front end lists those that apply to its loop, with its own between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ._run_check import Hypothesis, TrainingLoop

LARGEST_FACTOR = 2**24  # by which gradients may be wrong
LEAST_SCALE = 2**8  # larger factors are scales of the loss, which are powers of 2
USUAL_CLIP = 1.0  # the norm that is tried where nothing is clipped
CLIP_FACTORS = (0.1, 10.0)  # other norms that are tried, as multiples of the clip


def summed_gradients(loop: TrainingLoop) -> Hypothesis:
    """Gradients are the sum over the passes of a step, not the mean."""
    count = loop.accumulation
    return Hypothesis(
        "summed gradients",
        f"are gradients summed over {count} accumulation steps, not averaged?",
        replace(loop, gradient_factor=float(count)),
    )


def summed_loss(loop: TrainingLoop) -> Hypothesis:
    """Losses, and so gradients, are the sum over the passes of a step."""
    count = loop.accumulation
    return Hypothesis(
        "summed loss",
        f"are loss and gradients summed over {count} accumulation steps, not averaged?",
        replace(loop, gradient_factor=float(count), logged_factor=float(count)),
    )


def divided_twice(loop: TrainingLoop) -> Hypothesis:
    """The mean over the passes of a step is divided by their number again."""
    count = loop.accumulation
    return Hypothesis(
        "divided twice",
        f"are gradients divided by {count} accumulation steps twice?",
        replace(loop, gradient_factor=1 / count),
    )


def last_pass_only(loop: TrainingLoop) -> Hypothesis:
    """Each step is one pass: what was accumulated before is lost."""
    return Hypothesis(
        "last pass only",
        "does each step use one batch only, without accumulation?",
        replace(loop, accumulation=1, batches=loop.batches[:: loop.accumulation]),
    )


def summed_over_tokens(loop: TrainingLoop, tokens: int) -> Hypothesis:
    """The loss of a batch is the sum over its labels, not the mean."""
    return Hypothesis(
        "sum over tokens",
        f"is the loss summed over the {tokens} tokens of a batch, not averaged?",
        replace(loop, gradient_factor=float(tokens), logged_factor=float(tokens)),
    )


def logged_late(loop: TrainingLoop) -> Hypothesis:
    """The first row of the log is that of step 1."""
    return Hypothesis(
        "logged late",
        "does the log begin one step late, after the first update?",
        replace(loop, logged_first=1),
    )


def two_updates(loop: TrainingLoop) -> Hypothesis:
    """Each step updates the parameters twice."""
    return Hypothesis(
        "two updates",
        "does the optimiser step twice at each step?",
        replace(loop, updates=2),
    )


def one_batch(wrong_loop: TrainingLoop) -> Hypothesis:
    """Every step trains on the first batch, as `wrong_loop` does."""
    return Hypothesis("one batch", "is the first batch used at every step?", wrong_loop)


def labels_not_shifted(wrong_loop: TrainingLoop) -> Hypothesis:
    """Each token predicts itself, as in `wrong_loop`."""
    return Hypothesis(
        "labels not shifted",
        "are labels not shifted: does each predict itself?",
        wrong_loop,
    )


def labels_shifted_twice(wrong_loop: TrainingLoop) -> Hypothesis:
    """Each token predicts the one after the next, as in `wrong_loop`."""
    return Hypothesis("labels shifted twice", "are labels shifted twice?", wrong_loop)


def mistakes_of_clipping(loop: TrainingLoop) -> Iterator[Hypothesis]:
    """Clipping that is missing, or clips to another norm."""
    if loop.clip is None:
        yield Hypothesis(
            "clipped",
            f"are gradients clipped to {USUAL_CLIP:g}? Then pass clip={USUAL_CLIP:g}",
            replace(loop, clip=USUAL_CLIP),
        )
        return
    yield Hypothesis(
        "not clipped",
        "is clipping missing?",
        replace(loop, clip=None),
    )
    for factor in CLIP_FACTORS:
        other_clip = factor * loop.clip
        yield Hypothesis(
            "other clip",
            f"are gradients clipped to {other_clip:g}, not {loop.clip:g}?",
            replace(loop, clip=other_clip),
        )


def mistakes_of_factor(loop: TrainingLoop, factor: float) -> Iterator[Hypothesis]:
    """Gradients that are multiplied or divided by a whole number.

    `factor` is that of the first gradient norm, logged over expected. Hypotheses about
    accumulation explain a factor that is the number of passes.
    """
    largest = LARGEST_FACTOR + 0.5  # which rounds to the largest whole number
    if not 1 / largest < factor < largest:
        return
    count = round(max(factor, 1 / factor))
    if count in (1, loop.accumulation):
        return
    if factor > LEAST_SCALE:
        scale = 2 ** round(math.log2(factor))
        yield Hypothesis(
            "loss scale",
            f"are gradients {scale} times too large: is a loss scale not removed"
            " (GradScaler.unscale_)?",
            replace(loop, gradient_factor=float(scale)),
        )
    elif factor > 1:
        yield Hypothesis(
            "factor",
            f"are gradients {count} times too large: summed over {count} devices?",
            replace(loop, gradient_factor=float(count)),
        )
    else:
        yield Hypothesis(
            "factor",
            f"are gradients {count} times too small: averaged once too often?",
            replace(loop, gradient_factor=1 / count),
        )
