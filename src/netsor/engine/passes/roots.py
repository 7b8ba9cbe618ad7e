"""Roots of ratios of widths, √(n/m), are numbers once the widths are bound.

A ratio that vanishes or grows with an infinite width is refused: a gradient that vanishes like n^(−1/2) has limit 0,
but a score of it would still count, and lowering would have to know by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...language._operation import Root
from ...language._value import Value, constant
from .._error import ExactError
from ._rewrite import Context, rewritten


def roots(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with numbers in place of ratios of widths."""

    def change(old: Value, new: Value) -> Value:
        if not isinstance(new.op, Root):
            return new
        number = new.op.of(context.bound)
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
