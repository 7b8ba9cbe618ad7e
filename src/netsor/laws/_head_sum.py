"""The law of one output of an attention layer at infinite width, from the kernels of its scores and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..activations import row_softmax
from ._estimate import Array
from ._heads import HeadSum
from ._origin import Origin
from ._scores import Scores, head_law


def head_sum(
    scores: Array,
    values: Array,
    heads: int,
    factor: float,
    origin: Origin,
    mixture: Any = None,
    function: Callable[[Array], Array] = row_softmax,
    points: int | None = None,
) -> HeadSum:
    """The law of one output, from the covariance of its row of scores and the kernel of the values."""
    one = Scores(scores.tobytes(), values.tobytes(), len(values), function)
    points = points or 2 ** int(np.clip(np.log2(2**24 / len(values)), 12, 21))
    return HeadSum(partial(head_law, one, points), heads, factor, origin, mixture)
