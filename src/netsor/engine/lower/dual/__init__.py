"""Infinite width is arithmetic over dual numbers: what is of order 1, and what is of order ε = n^(−1/2), ε² = 0.

With x0 + ε x1 the coordinates of a vector along directions, ⟨x, y⟩/n = x · (I + ε N) · y, where N is symmetric with one
normal for a pair of directions, N(0,1), or N(0,2) for a direction with itself. A score n^(−1/2) ⟨x, y⟩ is the ε part of
⟨x, y⟩/n; it exists if the part of order 1 is 0 by the structure of the program.

Parts of order 1 are the coordinates and scalars of a lowering. The ε parts are found here, when a score asks for them,
each by the rule of its operation (`_rules`, `_parts`). Some are not known: a scalar made from scores has
an ε part that depends on terms of order ε². Such parts are marked, marks go through the arithmetic (unknown · 0 = 0),
and a score that would read one is refused (`_read`).
"""

from ._rules import order_epsilon, score

__all__ = ["order_epsilon", "score"]
