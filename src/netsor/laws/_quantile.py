"""Quantiles of a law whose distribution function is known: brackets that reach far enough, then roots by scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
FAR = 1e4  # −FAR stands for log 0: it is below the logarithm of every positive double
ROUNDING = 1e-13  # relative: by so much rounding may move P(Y ≤ y) at an atom away from the level q


def quantiles(
    q: Array, upper: bool, below: Function, above: Function, centre: float, scale: float, atoms: list[float]
) -> Array:
    """Where P(Y ≤ y), given by `below`, is q; or if `upper` where P(Y > y), given by `above`, is."""
    from scipy.optimize import elementwise  # slow to import

    result = np.where((q == 0) != upper, -np.inf, np.inf)
    inner = np.flatnonzero((q > 0) & (q < 1))
    if not len(inner):
        return result
    level = q[inner]

    def excess(y: Array, level: Array) -> Array:
        low = level < 0.5
        value = np.empty(len(y))
        for part, left in ((low, not upper), (~low, upper)):  # from the side where the probability is small
            if part.any():
                small = below(y[part]) if left else above(y[part])
                wanted = level[part] if left != upper else 1 - level[part]
                with np.errstate(divide="ignore"):
                    found = np.maximum(np.log(np.maximum(small, 0.0)), -FAR) - np.log(wanted)
                value[part] = found if left else -found
        return value

    reach = np.full(len(inner), 8.0)
    for _ in range(1100):
        low, high = centre - reach * scale, centre + reach * scale
        outside = (excess(low, level) >= 0) | (excess(high, level) < 0)
        if not outside.any():
            break
        reach = np.where(outside, 2 * reach, reach)
    root = elementwise.find_root(excess, (low, high), args=(level,), tolerances={"xatol": 1e-17 * scale})
    # a root, or where there is none the upper end of the bracket, which has closed around a jump
    low, high = root.bracket[0], np.where(root.f_x == 0, root.x, root.bracket[1])
    for at in atoms:
        near = np.flatnonzero((low - 1e-9 * scale < at) & (at <= high))
        high[near[excess(np.full(len(near), at), level[near]) >= -ROUNDING]] = at
    result[inner] = high
    return result
