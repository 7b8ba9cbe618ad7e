"""Vectors that are one vector: equal or opposite, up to rounding.

Two tokens with one id have equal vectors at every depth, but sums in another order differ in their last digits. A
function with a jump where its arguments are equal, x ≥ y, must see them equal, as the literal interpreter does.
"""

from __future__ import annotations

from typing import Any

from ._instructions import squares

Array = Any

EQUAL = 1e-12  # of the length of a vector: rounding makes 1e-14 in twelve blocks of a transformer
SINGLE_EQUAL = 1e-5  # the same in single precision


def alike(xp: Any, a: Array, b: Array) -> Array:
    """1 where rows (…, ·) are equal, −1 where they are opposite, else 0; (…, 1)."""
    part = EQUAL if a.dtype == xp.float64 else SINGLE_EQUAL
    least = part**2 * (squares(xp, a) + squares(xp, b))
    one = xp.ones_like(least)
    opposite = xp.where(squares(xp, a + b) <= least, -one, 0.0 * one)
    return xp.where(squares(xp, a - b) <= least, one, opposite)[..., None]


def identified(xp: Any, same: Array, a: Array, b: Array) -> Array:
    """Rows b; where `same` says that they are a, or −a, those numbers themselves."""
    return xp.where(same == 0, b, same * a)
