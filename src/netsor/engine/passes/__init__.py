"""Passes: graph to graph, one idea a file, each an identity in law stated at its top.

`stepped`, `roots`, `distinct`, `reuse` and `outer` bring a program to the form that lowering reads. Every other one is
a shortcut, and can be left out: the law stays the same (the tests try it), and takes more random numbers or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...language._array import Value
from ._rewrite import Context
from .batch_weights import stacked
from .fuse_nonlinearities import compose
from .optimiser_steps import stepped
from .outer_products import outer
from .simplify import commute, condition, distinct, fuse, linearise, roots
from .weight_reuse import drawn, reuse

Pass = Callable[[Sequence[Value], Context], list[Value]]

GRAPH: dict[str, Pass] = {
    "condition": condition,
    "linearise": linearise,
    "commute": commute,
    "compose": compose,
    "fuse": fuse,
}
# All that can be switched off: those of the graph, those of lowering, and the formula for a sum over heads.
SHORTCUTS = (
    "stacked",
    "drawn",
    *GRAPH,
    "leaves",
    "undrawn",
    "turn",
    "positive",
    "apart",
    "named",
    "recognise",
)


def rewrite(outputs: Sequence[Value], context: Context, without: Collection[str] = ()) -> list[Value]:
    """The program after all passes but those left out."""
    made = distinct(roots(stepped(outputs, context), context), context)
    if "stacked" not in without:
        made = stacked(made, context)
    if "drawn" not in without:
        made = drawn(made, context)
    made = outer(reuse(made, context), context)
    for name, change in GRAPH.items():
        if name not in without:
            made = change(made, context)
    return made
