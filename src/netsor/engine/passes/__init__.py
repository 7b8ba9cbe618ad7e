"""Passes: rewrites of a program that keep its law. `PIPELINE` lists them in order.

The docstring of each pass, or of its file, states the identity in law that allows it.
Some passes bring a program into the form that lowering needs. The others are shortcuts
that you can switch off: the law stays the same (the tests check it), but sampling it
needs more random numbers or more time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...language.values._array import Value
from ..graph._rewrite import Context
from . import simplify
from .adam_first_step import expand_outer_products
from .batch_weights import stack_weights
from .chosen_experts import compute_chosen_experts
from .fuse_nonlinearities import compose_nonlinearities
from .optimiser_steps import expand_steps
from .rotary_limits import expand_rotary
from .score_pieces import split_scores
from .trained_weights import materialise
from .weight_reuse import eliminate_reuse


@dataclass(frozen=True)
class Pass:
    """A rewrite of the outputs of a program, and of all that they depend on, to others
    with the same law.

    To add a pass, write a function `rewrite(outputs, context)` in a file of this folder
    and give it a line in `PIPELINE`. The graph that it leaves must satisfy
    tests/specification.py; tests/engine/test_passes.py checks this after every pass of
    the pipeline.

    Attributes
    ----------
    name : str
        What it does, for tests and messages.
    rewrite : callable
        The function; it returns as many outputs as it gets, in the same order.
    shortcut : str or None
        The name in `without` that switches it off; None if lowering needs the form that
        the pass makes.
    """

    name: str
    rewrite: Callable[[Sequence[Value], Context], list[Value]]
    shortcut: str | None = None


PIPELINE = (
    Pass("hyperparameters", simplify.bind_hyperparameters),
    Pass("readouts", simplify.products_for_readouts, shortcut="condition"),
    Pass("steps", expand_steps),
    Pass("ratios", simplify.bind_width_ratios),
    Pass("rotary", expand_rotary),
    Pass("distinct", simplify.deduplicate_products),
    Pass("experts", compute_chosen_experts, shortcut="chosen"),
    Pass("stacked", stack_weights, shortcut="stacked"),
    Pass("drawn", materialise, shortcut="drawn"),
    Pass("reuse", eliminate_reuse),
    Pass("outer", expand_outer_products),
    Pass("condition", simplify.condition_scores, shortcut="condition"),
    Pass("linearise", simplify.drop_identities, shortcut="linearise"),
    Pass("commute", simplify.commute_mix, shortcut="commute"),
    Pass("compose", compose_nonlinearities, shortcut="compose"),
    Pass("fuse", simplify.fuse_sources, shortcut="fuse"),
    Pass("pieces", split_scores),
)
# Shortcuts of lowering and of finished plans, and the formula for a sum over heads
OTHER_SHORTCUTS = (
    "repeated",
    "leaves",
    "undrawn",
    "turn",
    "positive",
    "apart",
    "named",
    "recognise",
)
SHORTCUTS = (
    *dict.fromkeys(step.shortcut for step in PIPELINE if step.shortcut is not None),
    *OTHER_SHORTCUTS,
)


def rewrite(
    outputs: Sequence[Value], context: Context, passes: Sequence[Pass] = PIPELINE
) -> list[Value]:
    """Apply the passes in order, except for the shortcuts in `context.without`."""
    rewritten = list(outputs)
    for step in passes:
        if step.shortcut not in context.without:
            rewritten = step.rewrite(rewritten, context)
    return rewritten
