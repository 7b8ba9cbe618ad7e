"""Functions that jump where their argument's limit is one number, at infinite width.

⟨x, y⟩/n of independent vectors vanishes like n^(−1/2), with either sign at every width, so sign(⟨x, y⟩/n) is ±1 at
every width and sign(0) = 0 is not its limit. A continuous function has no such problem. So where the limit of an
argument is a fixed number but the argument is not, the function is tried on both sides of that number, and refused if
it jumps there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...activations import Function
from ...language._array import Value
from ...language._operation import Apply, Nonlin
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._builder import named
from .._error import ExactError
from ._angles import Floats
from ._marks import nonzero
from ._state import Bools, State

TRIALS = 8  # moves of the arguments, in random directions
TINY = 1e-150  # a move away from 0 whose square is not 0
ROUNDED = 1e-14  # relative to 1 + |limit|: how far rounding may have put a limit from where the function jumps
JUMP = 1e-6  # relative to the size of a function at ordinary arguments: a change that is none of rounding


def check_jumps(s: State, value: Vector | Scalar) -> None:
    """Refuse a function of arguments that vanish (or become a number) as n → ∞, if it jumps there."""
    op = value.op
    assert isinstance(op, Apply | Nonlin)
    if op.f.lipschitz or (
        isinstance(op, Apply) and op.axes > 1
    ):  # functions of whole matrices are those of this package, of Gram matrices
        return
    points = [_limits(s, x) for x in op.inputs]
    moves = [np.isfinite(p) for p in points]
    if not any(m.any() for m in moves):
        return
    moves = [m & _varies(s, x) if m.any() else m for m, x in zip(moves, op.inputs, strict=True)]
    if any(m.any() for m in moves) and _jumps(op.f, points, moves):
        raise ExactError(
            value,
            f"{named(op.f)} jumps at the limit of its argument as n → ∞, and at every width the argument is on either "
            "side of that",
        )


def _limits(s: State, x: Value) -> Floats:
    """The limits of arguments that are fixed numbers, of each coordinate of a vector; NaN for all others."""
    if isinstance(x, Scalar):
        known = s.scalars[x].value
        if known is not None:
            return np.broadcast_to(np.asarray(known, dtype=np.float64)[0], x.shape).copy()
        return np.where(nonzero(s, x), np.nan, 0.0)
    assert isinstance(x, Vector)
    lead, support = s.vectors[x].lead, s.support(x)
    found = np.where(support.any(axis=(-2, -1)), np.nan, 0.0)
    if lead.value is not None and all(group.constant for group in s.groups_of(x)):  # direction 0 is (1, …, 1)
        means = np.asarray(lead.value)[0][..., 0]
        equal = ~support[..., 1:].any(axis=(-2, -1)) & (means == means[..., :1]).all(axis=-1)
        found = np.where(equal & support.any(axis=(-2, -1)), means[..., 0], found)
    return found


def _varies(s: State, x: Value) -> Bools:
    """Whether arguments are other than their limits at some widths."""
    if x not in s.random:
        return np.zeros(x.shape, dtype=bool)
    if isinstance(x, Vector):
        from ...language._expand import Expansion  # scipy.sparse is slow to import, and seldom needed

        rows = Expansion(s.facts.values).rows[x]
        others = np.concatenate([[0], np.cumsum(rows.indices != 0)])  # column 0 is (1, …, 1)
        return (np.diff(others[rows.indptr]) > 0).reshape(x.shape)
    return np.ones(x.shape, dtype=bool)


def _jumps(f: Function, points: Sequence[Floats], moves: Sequence[Bools]) -> bool:
    rng = np.random.default_rng(0)
    most = max(p.ndim for p in points)
    points = [p.reshape((1,) * (most - p.ndim) + p.shape) for p in points]
    moves = [m.reshape((1,) * (most - m.ndim) + m.shape) for m in moves]
    base = [np.where(np.isnan(p), rng.standard_normal(p.shape), p) for p in points]
    with np.errstate(all="ignore"):
        here = np.asarray(f(*base))
        ordinary = np.asarray(f(*(rng.standard_normal(p.shape) for p in points)))
        size = np.abs(ordinary[np.isfinite(ordinary)]).max(initial=np.abs(here[np.isfinite(here)]).max(initial=0.0))
        for trial in range(TRIALS):
            least = TINY if trial % 2 else ROUNDED
            moved = [
                np.where(m, b + np.maximum(least, ROUNDED * np.abs(b)) * rng.standard_normal(b.shape), b)
                for b, m in zip(base, moves, strict=True)
            ]
            there = np.asarray(f(*moved))
            if (np.isfinite(here) & ~(np.abs(there - here) <= JUMP * size)).any():
                return True
    return False
