"""The loss of logits that a module computes, and its gradients, as values of the
program of the module.
"""

from __future__ import annotations

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
    squares = {}
    for name, parts in draws._matrices.items():
        norms = [ns.grad_norm(loss, drawn.weight) for drawn in parts.values()]
        squares[name] = sum(norms[1:], norms[0])
    for name, table in draws._embeddings.items():
        squares[name] = _squared_gradient(loss, table.vectors)
    for name, known in draws._rows.items():
        squares[name] = sum(
            _squared_gradient(loss, draws.twins.get(x, x)) for x in known.drawn
        )
    return squares


def _squared_gradient(loss: Any, value: Any) -> Any:
    """The squared norm of the gradient of a loss by vectors, or by scalars."""
    if isinstance(value, ns.Scalar):
        return (ns.grad(loss, value) ** 2).sum()
    gradient = ns.grad(loss, value).reshape(-1, 1)
    return ns.mean_dot(gradient, gradient).sum()
