"""Mistakes of training code that every front end knows, each as a loop that makes it.

A hypothesis is a healthy loop with a field changed, so its law is computed as the
healthy one. A front end lists those that apply to its loop, with its own between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from .._array_api import Floats
from ._run_check import (
    CLIPPED,
    FITTED,
    GRADIENT,
    LOSS,
    RARE,
    Departures,
    Hypothesis,
    TrainingLoop,
)

LARGEST_FACTOR = 2**24  # by which gradients may be wrong
LEAST_SCALE = 2**8  # larger factors are scales of the loss, which are powers of 2
USUAL_CLIP = 1.0  # the norm that is tried where nothing is clipped
CLIP_FACTORS = (0.1, 10.0)  # other norms that are tried, as multiples of the clip
LARGEST_LOGARITHM = 700.0  # of a perplexity
Numbers = Callable[[dict[str, Floats]], Floats]


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


def mistakes_of_clipping(
    loop: TrainingLoop, clipped: float | None = None
) -> Iterator[Hypothesis]:
    """Clipping that is missing, or clips to another norm.

    `clipped` is the first logged norm after clipping over the expected one.
    """
    if loop.clip is None:
        yield Hypothesis(
            "clipped",
            f"are gradients clipped to {USUAL_CLIP:g}? Then pass clip={USUAL_CLIP:g}"
            f" (--clip {USUAL_CLIP:g})",
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
    if clipped is not None and clipped > 0 and clipped not in (1, *CLIP_FACTORS):
        other_clip = clipped * loop.clip
        yield Hypothesis(
            "other clip",
            f"are gradients clipped to {other_clip:.3g}, not {loop.clip:g}?",
            replace(loop, clip=other_clip),
            cost=FITTED,
        )


def mistakes_of_logging(
    loop: TrainingLoop, departures: Departures
) -> Iterator[Hypothesis]:
    """Numbers that are logged as something else, of a run that is right."""
    yield _logged_as(
        loop,
        "loss in bits",
        "is the logged loss in bits, not in nats?",
        LOSS,
        lambda numbers: numbers[LOSS] / math.log(2),
    )
    yield _logged_as(
        loop,
        "perplexity",
        "is the logged loss a perplexity, exp(loss)?",
        LOSS,
        lambda numbers: np.exp(np.minimum(numbers[LOSS], LARGEST_LOGARITHM)),
    )
    yield _logged_as(
        loop,
        "running mean",
        "is the logged loss the mean over all steps up to now?",
        LOSS,
        lambda numbers: np.cumsum(numbers[LOSS]) / np.arange(1, len(numbers[LOSS]) + 1),
    )
    yield _logged_as(
        loop,
        "loss of the step before",
        "is the logged loss that of the step before?",
        LOSS,
        lambda numbers: np.r_[numbers[LOSS][:1], numbers[LOSS][:-1]],
    )
    if loop.clip is not None:
        yield _logged_as(
            loop,
            "norm after clipping",
            "is the logged gradient norm that after clipping?",
            GRADIENT,
            lambda numbers: numbers[CLIPPED],
        )
    yield _logged_as(
        loop,
        "squared norm",
        "is the logged gradient norm squared: is a root missing?",
        GRADIENT,
        lambda numbers: numbers[GRADIENT] ** 2,
    )
    yield from _of_fitted_logs(loop, departures)


def _of_fitted_logs(loop: TrainingLoop, departures: Departures) -> Iterator[Hypothesis]:
    """A logged number that is off by a factor, or a loss by a term."""
    for quantity, title in ((LOSS, "loss"), (GRADIENT, "gradient norm")):
        factor = departures.first(quantity)
        if factor is not None and factor > 0:
            yield _logged_as(
                loop,
                "logged factor",
                f"is the logged {title} {factor:.3g} times the true one?",
                quantity,
                _times(quantity, factor),
                cost=FITTED + RARE,
            )
    term = departures.first_difference(LOSS)
    if term is not None:
        yield _logged_as(
            loop,
            "logged term",
            f"has the logged loss another term of {term:.3g}, such as an auxiliary"
            " loss?",
            LOSS,
            lambda numbers: numbers[LOSS] + term,
            cost=FITTED + RARE,
        )


def _times(quantity: str, factor: float) -> Numbers:
    """A function that multiplies a quantity."""
    return lambda numbers: factor * numbers[quantity]


def _logged_as(
    loop: TrainingLoop,
    name: str,
    question: str,
    quantity: str,
    logged: Numbers,
    cost: float = 0.0,
) -> Hypothesis:
    """A quantity that is logged as a function of the numbers of a run."""

    def of_log(numbers: dict[str, Floats]) -> dict[str, Floats]:
        return {**numbers, quantity: logged(numbers)}

    return Hypothesis(name, question, replace(loop, of_log=of_log), cost)


def mistakes_of_factor(loop: TrainingLoop, factor: float) -> Iterator[Hypothesis]:
    """Gradients that are multiplied or divided by a whole number.

    `factor` is that of the first gradient norm, logged over expected. Hypotheses about
    accumulation explain a factor that is the number of passes.
    """
    largest = LARGEST_FACTOR + 0.5  # which rounds to the largest whole number
    if not 1 / largest < factor < largest:
        return
    yield Hypothesis(
        "factor",
        f"are gradients {factor:.3g} times what they should be?",
        replace(loop, gradient_factor=factor),
        cost=FITTED + RARE,
    )
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
            f"are gradients {count} times too large: summed over {count} devices, or"
            " over backward passes?",
            replace(loop, gradient_factor=float(count)),
        )
    else:
        yield Hypothesis(
            "factor",
            f"are gradients {count} times too small: averaged once too often?",
            replace(loop, gradient_factor=1 / count),
        )
