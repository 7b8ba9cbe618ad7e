"""The loss of logits that a module computes, and its gradients, as values of the
program of the module.
"""

from __future__ import annotations

from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np

import netsor as ns


def cross_entropy(logits: Any, words: list[int]) -> Any:
    """The mean cross-entropy of logits that are scalars (rows, words)."""
    is_target = np.equal.outer(words, np.arange(logits.shape[-1])).astype(float)
    log_sum = ns.apply(np.log, ns.apply(np.exp, logits).sum(-1))
    return (log_sum - (logits * is_target).sum(-1)).mean()


def squared_gradients(loss: Any, draws: Any) -> dict[str, Any]:
    """The squared gradients of all parameters that are random, by name."""
    matrices = {
        name: [drawn.weight for drawn in parts.values()]
        for name, parts in draws._matrices.items()
    }
    norms = iter(ns.grad_norm(loss, [*chain.from_iterable(matrices.values())]))
    squares = {
        name: reduce(add, [next(norms) for _ in parts])
        for name, parts in matrices.items()
    }
    others = {name: [table.vectors] for name, table in draws._embeddings.items()}
    for name, known in draws._rows.items():
        others[name] = [draws.twins.get(x, x) for x in known.drawn]
    gradients = iter(ns.grad(loss, [*chain.from_iterable(others.values())]))
    for name, parts in others.items():
        squares[name] = sum(_squared_norm(next(gradients)) for _ in parts)
    return squares


def _squared_norm(gradient: Any) -> Any:
    """The squared norm of a gradient, as vectors or as scalars."""
    if isinstance(gradient, ns.Scalar):
        return (gradient**2).sum()
    vectors = gradient.reshape(-1, 1)
    return ns.mean_dot(vectors, vectors).sum()
