"""Passes: functions from graph to graph. The docstring of each pass, or of its file, states the identity in law.

Some bring a program into the form that lowering needs. The others are shortcuts that you can switch off: the law stays
the same (the tests check it) but needs more random numbers or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...language._array import Value
from . import simplify
from ._rewrite import Context
from .adam_first_step import expand_outer_products
from .batch_weights import stack_weights
from .fuse_nonlinearities import compose_nonlinearities
from .optimiser_steps import expand_steps
from .trained_weights import materialise
from .weight_reuse import eliminate_reuse

Pass = Callable[[Sequence[Value], Context], list[Value]]

GRAPH: dict[str, Pass] = {
    "condition": simplify.condition_scores,
    "linearise": simplify.drop_identities,
    "commute": simplify.commute_mix,
    "compose": compose_nonlinearities,
    "fuse": simplify.fuse_sources,
}
# All shortcuts: those of the graph, those of lowering, and the formula for a sum over heads.
SHORTCUTS = ("stacked", "drawn", *GRAPH, "leaves", "undrawn", "turn", "positive", "apart", "named", "recognise")


def rewrite(outputs: Sequence[Value], context: Context, without: Collection[str] = ()) -> list[Value]:
    """Apply all passes except those in `without`."""
    known = simplify.bind_hyperparameters(outputs, context) if context.numbers else outputs
    if "condition" not in without:
        known = simplify.products_for_readouts(known, context)
    expanded = expand_steps(known, context, draw_often_used="drawn" not in without)
    made = simplify.deduplicate_products(simplify.bind_width_ratios(expanded, context), context)
    if "stacked" not in without:
        made = stack_weights(made, context)
    if "drawn" not in without:
        made = materialise(made, context)
    made = expand_outer_products(eliminate_reuse(made, context), context)
    for name, change in GRAPH.items():
        if name not in without:
            made = change(made, context)
    return made
