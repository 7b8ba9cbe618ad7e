"""Floating-point flags that some processors set without a cause.

numpy reports overflow, division by zero and invalid operations by the flags of the
processor. The kernels that OpenBLAS uses for float32 matrices on ARM processors with
SME set all of them for every product, so numpy warns of finite results. There, only
the results tell whether a number was too large.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=1)
def float32_flags_are_reliable() -> bool:
    """Whether a product of small float32 matrices sets no flag."""
    matrix = np.linspace(-1.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            np.matmul(matrix, matrix)
    except FloatingPointError:
        return False
    return True


def without_spurious_flags(dtype: np.dtype[Any]) -> np.errstate:
    """A context for products of this dtype that ignores flags where they mean
    nothing.
    """
    if dtype != np.float32 or float32_flags_are_reliable():
        return np.errstate()  # nothing changes
    return np.errstate(over="ignore", divide="ignore", invalid="ignore")


def overflow_raises() -> np.errstate:
    """A context in which numbers beyond the range of float32 raise an error.

    Where flags mean nothing there is no error: check that the results are finite.
    """
    if not float32_flags_are_reliable():
        return without_spurious_flags(np.dtype(np.float32))
    return np.errstate(over="raise", divide="raise", invalid="raise")
