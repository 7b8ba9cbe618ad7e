"""Errors and biases of functions of what is known by blocks: the jackknife, and the bootstrap where there are kinks.

A function of several independent groups is read again with other weights of the blocks of each. For a smooth function
(KL, entropy) each block is left out in turn. For one with kinks (total variation, W1, Kolmogorov), which noise makes
larger where the truth is small, the blocks get random weights (Rubin's Bayesian bootstrap), which shows that too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._estimate import Array, Estimate, combined, student
from ._replicas import Replicated

AGAIN = 100  # bootstrap repetitions
FEW = 10  # with fewer blocks a bias is too uncertain to be subtracted


class Jackknife(NamedTuple):
    """A value, what noise adds to it on average, and its standard error."""

    value: float
    bias: float
    error: float
    blocks: int  # the least number of them in a group; 0 if all is exact

    def corrected(self) -> Estimate:
        """The value without its bias, which counts as an error; if there are too few blocks to know it, with the bias.

        Near a minimum (KL of nearly equal laws) the gradient that the error rests on vanishes; the bias is what varies.
        """
        off = self.bias if self.blocks >= FEW else 0.0
        return Estimate(self.value - off, combined(self.error, self.bias))


def jackknife(functional: Callable[..., Array], groups: Sequence[Replicated]) -> Jackknife:
    """A smooth function of the means of the groups, (…, points) each."""
    means = [group.mean for group in groups]
    value = float(functional(*means))
    bias, errors = 0.0, []
    for k, group in enumerate(groups):
        count = len(group.rows)
        if count < 2 or not np.isfinite(value):
            continue
        rest = (means[k] - group.weight[:, None] * group.rows) / (1 - group.weight[:, None])
        without = np.asarray(functional(*(rest if i == k else mean for i, mean in enumerate(means))))
        bias += float(np.sum((1 - group.weight) * (without - value)))
        errors.append(student(count) * float(np.sqrt(np.sum((1 - group.weight) * (without - without.mean()) ** 2))))
    counts = [len(group.rows) for group in groups if len(group.rows) > 1]
    return Jackknife(value, bias, combined(*errors), min(counts, default=0))


def bootstrap(functional: Callable[..., Array], groups: Sequence[Replicated], seed: int = 2025) -> Estimate:
    """A function with kinks of the means of the groups, less what noise adds to it, with its error.

    What noise adds is read from noise added once more; where the truth is 0 that finds the smaller half of it, so the
    error counts one and a half times what was found.
    """
    value = float(functional(*(group.mean for group in groups)))
    if all(len(group.rows) < 2 for group in groups):
        return Estimate(value, 0.0)
    rng = np.random.default_rng(seed)
    weights, least = [], min(len(group.rows) for group in groups if len(group.rows) > 1)
    for group in groups:
        count = len(group.rows)
        drawn = rng.dirichlet(np.ones(count), AGAIN) * group.weight * count
        drawn = drawn / drawn.sum(axis=1, keepdims=True)
        if count > 1:  # the weights vary by 1/(count + 1) where a fresh set of blocks would by 1/(count − 1)
            drawn = group.weight + (drawn - group.weight) * np.sqrt((count + 1) / (count - 1))
        weights.append(drawn)
    again = np.array(
        [
            float(functional(*(w[k] @ group.rows for w, group in zip(weights, groups, strict=True))))
            for k in range(AGAIN)
        ]
    )
    bias = float(again.mean()) - value
    off = bias if least >= FEW else 0.0
    return Estimate(value - off, combined(student(least) * float(again.std(ddof=1)), 1.5 * max(bias, 0.0)))


def spread(each: Array) -> Any:
    """The standard error of a mean over independent sets."""
    if len(each) < 2:
        return np.zeros(each.shape[1:])[()]
    size = np.abs(each).max(axis=0)
    unit = each / np.where(size > 0, size, 1.0)  # a square may be no double
    return student(len(each)) * size * unit.std(axis=0, ddof=1) / np.sqrt(len(each))
