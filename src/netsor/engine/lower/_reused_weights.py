"""Lowering of a matrix that acts more than once: orthonormal directions of its inputs, and coefficients along them.

The directions come from the coordinates of the vectors, not from their products (see `_gram_schmidt`): an input that
earlier ones span gets nothing fresh, however nearly dependent they are (docs/theory.md, equations 6 and 6').
"""

from __future__ import annotations

import math

import numpy as np

from ...language._array import Value
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._exceptions import ExactError
from .._ir import Register
from ..passes._operations import AdjointCorrection
from ._dual_rules import score
from ._inner_products import mean, paired_products, products
from ._state import LoweredVector, State


def span(s: State, value: Vector, x: Vector, known: tuple[Vector, ...]) -> LoweredVector:
    """Orthonormal directions for what vectors add to the known ones, of mean square 1."""
    build = s.build
    directions = max(s.vectors[v].lead.shape[-1] for v in (x, *known))
    rows, words = _rows(s, x, directions), "what is new of the inputs of a matrix that acts again"
    if known:
        old = [build.step("scale", _rows(s, v, directions), by=1 / s.norm(v)) for v in known]
        made = build.step("scale", build.step("span", rows, *old, words=words), by=s.norm(x))
    else:
        factor = build.step("factor", build.step("gram", rows, rows))
        made = build.step("spanned", factor, rows, words=words, by=s.norm(x))
    lead = build.reshape(made, *value.shape, s.facts.blocks[value], directions)
    if value not in s.facts.limits:
        return LoweredVector(lead)
    return LoweredVector(lead, _sample(s, value, x, known, lead), s.orders.directions(x, known))


def _sample(s: State, value: Vector, x: Vector, known: tuple[Vector, ...], lead: Register) -> Register | None:
    """What an output needs to know of coordinates: the combinations of vectors that the directions are."""
    build, every = s.build, (x, *known)
    if all(s.vectors[v].sample is None for v in every):
        return None
    width = max(s.sample(v).shape[-1] for v in every)
    rows = [s.rows(s.sample(v), width) for v in every]
    left = rows[0]
    for v, old in zip(known, rows[1:], strict=True):
        by = build.step("scale", products(s, x, v, value.ndim + 1, ""), by=-1 / s.norm(x) ** 2)
        left = build.step("add", left, build.step("product", by, old))
    own = build.step("scale", paired_products(s, s.vectors[x].lead, lead, x, x, value.ndim + 1), by=1 / s.norm(x) ** 2)
    made = build.step("transposed", build.step("solve", own, build.step("transposed", left)))
    return build.reshape(made, *lead.shape[:-1], width)


def along(s: State, x: Vector, y: Vector) -> Register:
    """⟨x_i, y_j⟩/n for directions y that span x."""
    directions = max(s.vectors[v].lead.shape[-1] for v in (x, y))
    to = _rows(s, y, directions)
    words = "⟨x, direction⟩ for a matrix that acts again"
    rows = _rows(s, x, directions)
    own = x.shape[-1] == y.shape[-1]  # y are the directions of x alone
    factor = [s.build.step("factor", s.build.step("gram", rows, rows))] if own else []
    made = s.build.step("along", rows, to, *factor, words=words, by=1 / s.norm(y), own=True)
    return s.build.reshape(s.build.step("scale", made, by=1 / s.norm(x)), *x.shape, y.shape[-1])


def _rows(s: State, x: Value, directions: int) -> Register:
    """Vectors as rows (copies, vectors, ·), whose products are those of the vectors."""
    rows = s.rows(s.vectors[x].lead, directions)
    return s.build.reshape(rows, math.prod(x.shape[:-1]), *rows.shape[-2:])


def adjoint(s: State, value: Scalar, op: AdjointCorrection) -> Register:
    """m^(−1/2) (γ n^(−1/2) ⟨d_i, u_k⟩ − m^(−1/2) ⟨g_i, b_k⟩), of order 1."""
    build, (d, u, g, b) = s.build, (op.d, op.u, op.g, op.b)
    wide_in, wide_out = d in s.facts.limits, g in s.facts.limits
    if wide_out:  # g is fresh: its mean product with b is 0
        none = build.constant(np.zeros(value.shape))
        if not wide_in or not s.meets(d, u, value.ndim).any():
            return none
        if d.width.name != g.width.name:
            raise ExactError(
                value,
                f"W together with W.T, with widths {d.width} and {g.width} of W that go to infinity at different rates",
                instead="write both widths as multiples of one symbol, or bind one of them to a number",
            )
        return build.step("scale", mean(s, value, d, u), by=op.gain * math.sqrt(d.width.factor / g.width.factor))
    size = s.facts.blocks[g] * s.facts.widths[g]
    if wide_in:
        wanted = score(s, value, d, u)
    else:
        wanted = build.step("scale", products(s, d, u, value.ndim, "⟨W^T b, d⟩"), by=1 / s.norm(d))
    wanted = build.step("scale", wanted, by=op.gain * size**-0.5)
    given = build.step("scale", products(s, g, b, value.ndim, "⟨b, g⟩"), by=-1 / size)
    return build.step("add", wanted, given)
