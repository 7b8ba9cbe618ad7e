"""Scores at infinite width: the ε parts of products whose parts of order 1 are 0, or a refusal."""

from __future__ import annotations

import numpy as np

from ....language._operation import Dot
from ....language._scalar import Scalar
from ....language._vector import Vector
from ..._error import ExactError
from ..._steps import Register
from .._clashes import unknown_pairs
from .._marks import meeting, overlap
from .._products import paired_products, products, turned_scores
from .._state import Bools, State
from ._parts import Dual
from ._scalars import SCALARS
from ._vectors import VECTORS

ROUNDING = 1e-12  # relative to the size of its terms: a sum of known numbers that is smaller is 0


def score(s: State, value: Scalar, op: Dot) -> Register:
    """n^(−1/2) ⟨x_i, y_j⟩ at infinite width."""
    x, y = op.x, op.y
    _check_order(s, value, x, y)
    turned = turned_scores(s, value, x, y)
    if turned is None:
        return s.build.step("scale", order_epsilon(s, value, x, y), by=1 / s.norm(x))
    dual = Dual(s, VECTORS, SCALARS)
    first, second = (found.support | found.unknown for found in (dual[x], dual[y]))
    seen = meeting(x, first, y, s.support(y), value.ndim) | meeting(x, s.support(x), y, second, value.ndim)
    _refuse(s, value, x, y, seen | unknown_pairs(s, x, y, value.ndim, dual.__getitem__))
    return turned


def order_epsilon(s: State, value: Scalar, x: Vector, y: Vector) -> Register:
    """The ε part of products of which the part of order 1 is 0, summed over blocks."""
    _check_order(s, value, x, y)
    found = Dual(s, VECTORS, SCALARS).product(x, y, value.ndim)
    _refuse(s, value, x, y, found.unknown)
    made = s.build.constant(np.zeros(value.shape)) if found.part is None else found.part
    return s.build.fold("add", [made, *(s.lined(guard, 0, value.ndim) for guard in found.guards)])


def _check_order(s: State, value: Scalar, x: Vector, y: Vector) -> None:
    """A product of order 1 is no score: it must be 0 for each term by itself, or for known numbers as a sum."""
    if not all(s.frames[group].scores for v in (x, y) for group in s.groups_of(v)):
        raise ExactError(
            value, "a score in a space where a nonlinearity acts on a mixture of another's outputs, at width inf"
        )
    if not (overlap(s, x, y, value.ndim) & s.facts.asked[value]).any():
        return
    numbers = [s.vectors[v].lead.value for v in (x, y)]
    if all(known is not None for known in numbers):
        first, second = (s.build.constant(np.abs(np.asarray(known))[0]) for known in numbers)
        size = np.asarray(paired_products(s, first, second, x, y, value.ndim).value)
        made = np.abs(np.asarray(products(s, x, y, value.ndim, "").value))
        if ((made <= ROUNDING * size) | ~s.facts.asked[value]).all():
            return
    raise ExactError(value, "a score of factors that share a source, or a mean, diverges or has no known law as n → ∞")


def _refuse(s: State, value: Scalar, x: Vector, y: Vector, unknown: Bools) -> None:
    wrong = unknown & s.facts.asked[value]
    if wrong.any():  # of factors that are not 0 at every width
        from ....language._expand import Expansion  # scipy.sparse is slow to import, and seldom needed

        rows = Expansion(s.facts.values).rows
        for v, places in ((x, np.s_[..., :, None]), (y, np.s_[..., None, :])):
            wrong = wrong & (np.diff(rows[v].indptr) > 0).reshape(v.shape)[places]
    if wrong.any():
        raise ExactError(
            value,
            "a score of two vectors that met nonlinearities or have means, of one with what it is a function of, or of "
            "one with what other scores say of it, has no known law as n → ∞",
        )
