"""Which coordinates of its vectors a law is about: what the user wrote, checked against the widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..language._array import Value
from ..language._given import as_whole, shown
from ..language._vector import Vector


def picked(argument: Any, outputs: Sequence[Value], bound: Mapping[str, float]) -> list[int] | None:
    """The coordinates, in the order that was written; None if none were chosen."""
    if argument is None:
        return None
    several = argument if isinstance(argument, list | tuple | range) else [argument]
    if isinstance(argument, np.ndarray) and argument.ndim == 1:
        several = list(argument)
    places = [as_whole(place) for place in several]
    found = [place for place in places if place is not None]
    if not found or len(found) < len(places):
        raise ValueError(f"coordinates={shown(argument)} must be an integer or a list of integers")
    widths = {value.width.bind(bound) for value in outputs if isinstance(value, Vector)}
    if not widths:
        raise ValueError(f"coordinates={shown(argument)}: a scalar has no coordinates; leave them out")
    for width in widths:
        low = 0 if math.isinf(width) else -int(width)  # there is no last one of infinitely many
        outside = [place for place in found if not low <= place < width]
        if outside:
            allowed = "0 or more at infinite width" if math.isinf(width) else f"from {low} to {width - 1}"
            raise ValueError(f"coordinates={shown(argument)}: {shown(outside[0])} must be {allowed}")
        if len({place if math.isinf(width) else place % int(width) for place in found}) < len(found):
            raise ValueError(f"coordinates={shown(argument)} names a coordinate twice")
    return found
