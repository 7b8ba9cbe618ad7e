"""Quantiles of a law whose distribution function is known: brackets that reach far enough, then roots in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ._root import increasing_root

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]


def quantiles(
    q: Array, upper: bool, below: Function, above: Function, centre: float, scale: float, atoms: list[float]
) -> Array:
    """Where P(Y ≤ y), given by `below`, is q; or if `upper` where P(Y > y), given by `above`, is."""
    result = np.where((q == 0) != upper, -np.inf, np.inf)
    inner = np.flatnonzero((q > 0) & (q < 1))
    if not len(inner):
        return result
    level = q[inner]

    def excess(y: Array, which: npt.NDArray[np.intp]) -> Array:
        low = level[which] < 0.5
        value = np.empty(len(y))
        for part, left in ((low, not upper), (~low, upper)):  # from the side where the probability is small
            if part.any():
                small = below(y[part]) if left else above(y[part])
                wanted = level[which][part] if left != upper else 1 - level[which][part]
                with np.errstate(divide="ignore"):
                    found = np.log(small) - np.log(wanted)
                value[part] = found if left else -found
        return value

    reach = np.full(len(inner), 8.0)
    every = np.arange(len(inner))
    for _ in range(1100):
        low, high = centre - reach * scale, centre + reach * scale
        outside = (excess(low, every) >= 0) | (excess(high, every) < 0)
        if not outside.any():
            break
        reach = np.where(outside, 2 * reach, reach)
    low, high = increasing_root(excess, low, high, scale)
    for at in atoms:
        high = np.where((low < at) & (at <= high), at, high)
    result[inner] = high
    return result
