"""The skewness of a mixture of Gaussians, with its error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._estimate import Array, Estimate, combined


def skewness(mean: Array, var: Array, average: Callable[[Array], Estimate], doubt: float) -> Estimate:
    """m₃/m₂^(3/2) of components whose means have mean 0; `doubt` is what each variance may be off by, of itself."""
    second, third = var + mean**2, 3 * mean * var + mean**3
    m2, m3 = (float(average(x).value) for x in (second, third))
    # delta method, the mean being estimated as well
    influence = (third - 3 * m2 * mean) / m2**1.5 - 1.5 * m3 * second / m2**2.5
    worst = np.abs(3 * mean * var / m2**1.5 - 1.5 * m3 * var / m2**2.5)
    return Estimate(m3 / m2**1.5, combined(average(influence).error, doubt * float(average(worst).value)))
