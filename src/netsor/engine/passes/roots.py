"""Roots of ratios of widths, √(n/m), are numbers once the widths are bound.

A ratio that vanishes like n^(−1/2) stays what it is: its limit is 0, but a score may see it (see `lower/dual`). One
that vanishes faster, or grows, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...language._array import Value
from ...language._operation import Root
from ...language._scalar import constant
from ...language._width import Width
from .._error import ExactError
from ._rewrite import Context, rewritten


def vanishing(op: Root, bound: Mapping[str, float]) -> tuple[Width, float] | None:
    """If √(n/m) is a multiple of m^(−1/2) for one infinite width m: that width, and the multiple."""
    sizes = {True: list(op.over), False: list(op.under)}
    infinite = {side: [w for w in found if math.isinf(w.bind(bound))] for side, found in sizes.items()}
    if infinite[True] or len(infinite[False]) != 1:
        return None
    rest = Root(op.over, tuple(w for w in op.under if w is not infinite[False][0]))
    return infinite[False][0], rest.of(bound)


def roots(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with numbers in place of ratios of widths."""

    def change(old: Value, new: Value) -> Value:
        if not isinstance(new.op, Root):
            return new
        number = new.op.of(context.bound)
        if vanishing(new.op, context.bound) is not None:
            return new
        if not 0 < number < math.inf:
            found = "is not given" if math.isnan(number) else "vanishes" if number == 0 else "is infinite"
            raise ExactError(
                new,
                f"a gradient in units of {new.op}, which {found} at these widths",
                instead="bind these widths to numbers, write them as multiples of one symbol, or take the gradient of "
                'a score (ns.dot) in place of that of a mean, and the tangent kernel with parametrisation="ntk"',
            )
        return constant(np.asarray(number))

    return rewritten(outputs, context, change)
