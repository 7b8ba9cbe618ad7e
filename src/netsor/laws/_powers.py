"""The law of a sum of many independent variables: powers of rules, of several sets at once.

Nodes and weights are (sets, nodes); a set that has fewer nodes than another has weights of 0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ._gaussians import CELL, Gaussians, cells, compress, two_points

Array = npt.NDArray[np.float64]
Rules = tuple[Array, Array]

WIDEST = 0.1  # widest cell in log w
NOTHING = 1e-26  # of the largest weight in a sum: what is below is seen by no digit of any result


def power_rules(nodes: Array, weights: Array, count: int, cell: float = CELL) -> Rules:
    """The law of a sum of so many independent variables: by repeated squaring, each time with fewer nodes.

    A part of m of them moves the sum by m/count of what it moves itself, so its cells may be wider: by √(count/m), with
    which the errors of all parts (a fourth power each) still fall with m.
    """
    total, size = count, 1
    result: Rules | None = None
    done = 0
    base = _fewer(nodes, weights, _width(cell, total, 1), least=0.0)
    while True:
        if count & 1:
            done += size
            result = base if result is None else _sum(result, base, _width(cell, total, done))
        count >>= 1
        size *= 2
        if not count:
            assert result is not None
            return result
        base = _twice(base, _width(cell, total, size))


def _width(cell: float, total: int, part: int) -> float:
    return min(max(WIDEST, cell), cell * math.sqrt(total / part))


def _sum(a: Rules, b: Rules, cell: float) -> Rules:
    sets = len(a[0])
    nodes, weights = a[0][:, :, None] + b[0][:, None], a[1][:, :, None] * b[1][:, None]
    return _normed(_fewer(nodes.reshape(sets, -1), weights.reshape(sets, -1), cell))


def _twice(a: Rules, cell: float) -> Rules:
    """The sum of two of one law: a pair and its mirror image are one node."""
    i, j = np.triu_indices(a[0].shape[1])
    return _normed(_fewer(a[0][:, i] + a[0][:, j], np.where(i == j, 1.0, 2.0) * a[1][:, i] * a[1][:, j], cell))


def _fewer(nodes: Array, weights: Array, cell: float, least: float = NOTHING) -> Rules:
    """Two nodes a cell in place of many (see `compress`)."""
    count = len(nodes)
    keep = weights > least * weights.max(axis=1, keepdims=True)
    var = nodes[keep]
    index, unit = cells(var, keep.sum(axis=1), cell)
    found = two_points(var, weights[keep], index, unit)
    mass = found.mass.reshape(count, -1)
    some = mass.any(axis=0)  # where any set has a node
    upper = mass * found.share.reshape(count, -1)
    pairs = ((found.high, found.low), (upper, mass - upper))
    made = [np.concatenate([a.reshape(count, -1)[:, some] for a in pair], axis=1) for pair in pairs]
    return made[0], made[1]


def _normed(rules: Rules) -> Rules:
    """With weights of sum 1: else rounding errors would grow with every squaring."""
    return rules[0], rules[1] / rules[1].sum(axis=1, keepdims=True)


def joined(nodes: Array, weights: Array, scale: float) -> Gaussians:
    """The rules of all sets, (sets, nodes), as one with weights (nodes, sets) of sum 1 in all."""
    some = weights > 0
    labels = np.repeat(np.arange(len(nodes)), some.sum(axis=1))
    var, weight = compress(scale * nodes[some], weights[some] / len(nodes), labels)
    return Gaussians(np.zeros_like(var), var, weight)
