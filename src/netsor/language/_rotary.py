"""Rotary positions: what a transformer does to queries and keys so that scores know how far tokens are apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._apply import as_vector
from ._given import LARGEST, numbers, real, shown
from ._operation import Rotate
from ._stretch import Stretch
from ._value import Vector
from ._where import TraceError


def rotary(
    x: Vector,
    positions: npt.ArrayLike | None = None,
    base: float = 10000.0,
    fraction: float = 1.0,
    stretch: Stretch | None = None,
) -> Vector:
    """The vectors, turned by their positions: tokens along the last axis of x, at positions 0, 1, … unless given.

    The token at position t has its pair of coordinates (f, f + r/2) turned by the angle t θ_f, θ_f = base^(−2f/r).
    r = fraction · width counts the coordinates that are turned, the first ones; at every width bound it must be even.
    `stretch` lowers low frequencies, as Llama 3.1 does, for a base above 1.
    """
    as_vector(x, "rotary")
    if not x.shape:
        raise TraceError("rotary", "needs an axis of tokens, got one vector: x[None] has one token")
    at = numbers(np.arange(x.shape[-1]) if positions is None else positions, "rotary", "positions")
    if at.shape != x.shape[-1:]:
        raise TraceError("rotary", f"positions of shape {at.shape} must be one for each of {x.shape[-1]} tokens")
    base = real(base, "base", "rotary", above=0)
    op = Rotate(x, at, base, real(fraction, "fraction", "rotary", above=0, most=1), _stretched(stretch, base))
    if np.abs(at).max() > LARGEST * min(1.0, base):  # θ_f lies between 1 and 1/base
        raise TraceError(
            "rotary",
            f"positions={shown(positions)} with base={base:g} turn by angles above 2^53, which no double resolves",
        )
    if x.width.name is None:
        try:
            op.angles(x.width.factor)
        except ValueError as error:
            raise TraceError("rotary", str(error)) from None
    return Vector(op, x.shape, x.width)


def _stretched(stretch: Stretch | None, base: float) -> Stretch | None:
    if stretch is None:
        return None
    if not isinstance(stretch, tuple) or len(stretch) != 4:
        raise TraceError("rotary", f"stretch={shown(stretch)} must be (factor, low, high, original)")
    names = Stretch._fields
    made = Stretch(*(real(v, f"stretch.{k}", "rotary", above=0) for k, v in zip(names, stretch, strict=True)))
    if made.low >= made.high or base <= 1:
        raise TraceError("rotary", f"stretch={shown(stretch)} must have low below high, and base={base:g} be above 1")
    return made
