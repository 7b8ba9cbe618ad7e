"""Sources that are asked about only through one value (a product and a bias, say) are drawn at that value instead.

Identity: a linear combination of independent Gaussian vectors is Gaussian, given its coefficients. The condition: every
source of the value is a Gaussian or a MatMul, is asked about through this value alone, and there
are more of them than vectors in the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ...language._array import Value
from ...language._operation import Gaussian, MatMul
from ...language._vector import Vector
from ._operations import Fuse
from ._rewrite import Context, asked, linear_sources, rewritten


def fuse(outputs: Sequence[Value], context: Context) -> list[Value]:
    """The program with a Fuse at every value that alone is asked about its sources, if that makes them fewer."""
    values = context.ordered(outputs)
    made = linear_sources(values)
    every = dict.fromkeys(x for value in values for x in asked(value))
    points = Counter(source for x in every | dict.fromkeys(outputs) for source in made.get(x, ()))  # that ask about it

    def private(source: Value) -> bool:
        return isinstance(source.op, Gaussian | MatMul) and points[source] == 1

    def worth(x: Value) -> bool:
        sources = made[x]
        return x not in outputs and x not in sources and _room(x) < sum(_room(s) for s in sources)

    def _room(x: Value) -> int:
        assert isinstance(x, Vector)
        return x.size * x.width.factor  # a concatenation has more room than each of its parts

    chosen = {x for x in every if all(map(private, made[x])) and worth(x)}

    def change(old: Value, new: Value) -> Value:
        return replace(new, op=Fuse(cast(Vector, new))) if old in chosen else new

    return rewritten(outputs, context, change)
