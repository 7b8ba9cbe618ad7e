"""Infinite width is arithmetic over dual numbers: what is of order 1, and what is of order ε = n^(−1/2), ε² = 0.

With x0 + ε x1 the coordinates of a vector along directions, ⟨x, y⟩/n = x · (I + ε N) · y, where N is symmetric with one
normal for a pair of directions, N(0,1), or N(0,2) for a direction with itself. A score n^(−1/2) ⟨x, y⟩ is the ε part of
⟨x, y⟩/n; it exists if the part of order 1 is 0 by the structure of the program.

Parts of order 1 are the coordinates and scalars of a lowering. The ε parts are found here, when a score asks for them,
each by the rule of its operation (`_vectors`, `_span`, `_scalars`). Some are not known: a scalar made from scores has
an ε part that depends on terms of order ε². Such parts are marked, marks go through the arithmetic (unknown · 0 = 0),
and a score that would read one is refused (`_read`).
"""

from __future__ import annotations

from ....language._operation import Dot
from ....language._value import Scalar, Vector
from ..._plan import Register
from .._state import State
from . import _read
from ._parts import Dual
from ._scalars import SCALARS
from ._vectors import VECTORS


def dual(s: State) -> Dual:
    """The ε parts of the values of a lowering."""
    return Dual(s, VECTORS, SCALARS)


def score(s: State, value: Scalar, op: Dot) -> Register:
    """n^(−1/2) ⟨x_i, y_j⟩ at infinite width."""
    return _read.score(dual(s), value, op.x, op.y)


def order_epsilon(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """The ε part of products of which the part of order 1 is 0, summed over blocks."""
    return _read.read(dual(s), value, x, y)
