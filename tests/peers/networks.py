"""Quantities of networks as samples, one for each number."""

import numpy as np


def columns(found):
    """Every number of quantities (draws, …) as its draws, and which of them do not
    vary.
    """
    every = {
        (name, k): rows[:, k]
        for name, x in found.items()
        for rows in [x.reshape(len(x), -1)]
        for k in range(rows.shape[1])
    }
    return every, {key for key, x in every.items() if x.std() <= 1e-4 * np.abs(x).max()}
