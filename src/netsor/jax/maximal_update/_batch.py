"""The batch of a training step, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..._validate import ArgumentError
from .._models import Leaves, functions_of, takes_one_sequence
from .._network import TABLE_NAME
from .._run_loop import cross_entropy

SEQUENCES, TOKENS = 2, 8  # of a random batch
MODEL_FUNCTION = (
    "a function of the width that returns a function of a key that makes a model, a"
    " module of Linen, or a pair (init, apply)"
)
ALLOWED = "(inputs, targets), where inputs are an array or a tuple of arrays"


@dataclass(frozen=True, eq=False)
class Batch:
    """What a model is called with, and the classes that its logits should name."""

    inputs: tuple[Any, ...]
    targets: Any  # integers, one for each row of the logits; negative ones have no loss

    def loss(self, logits: Any) -> Any:
        """The mean cross-entropy."""
        rows = logits.reshape(-1, logits.shape[-1])
        return cross_entropy(rows, self.targets.reshape(-1))

    @property
    def words(self) -> tuple[int, ...]:
        """The targets, each once: a step changes their logits by order 1."""
        targets = self.targets.reshape(-1).tolist()
        return tuple(dict.fromkeys(word for word in targets if word >= 0))


def batch_of(model: Any, batch: Any, seed: int) -> Batch:
    """The batch that a user gives, or random tokens for a model that takes ids.

    The target of each random token is the next one.
    """
    if batch is not None:
        return _given_batch(batch)
    generator = np.random.default_rng(seed)
    shape = (SEQUENCES, TOKENS + 1)
    tokens = generator.integers(0, _words(model), shape).astype(np.int32)
    return Batch((tokens[:, :-1],), tokens[:, 1:])


def _given_batch(batch: Any) -> Batch:
    """The batch of (inputs, targets)."""
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise ArgumentError("batch", type(batch).__name__, ALLOWED)
    inputs, targets = batch
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if not all(hasattr(x, "shape") for x in (*inputs, targets)):
        raise ArgumentError("batch", type(batch).__name__, ALLOWED)
    return Batch(tuple(_canonical(x) for x in inputs), _canonical(targets))


def _canonical(x: Any) -> Any:
    """An array of the type that JAX gives its numbers."""
    x = np.asarray(x)
    return x.astype(jax.dtypes.canonicalize_dtype(x.dtype))


def _words(model: Any) -> int:
    """The number of rows of the model's table of words."""
    example = np.zeros((1, TOKENS), dtype=int)
    if takes_one_sequence(model):
        example = example[0]
    functions, _ = functions_of(model, (example,))
    if functions.init is None:
        raise ArgumentError("build", functions.name, MODEL_FUNCTION)
    leaves = Leaves.of(jax.eval_shape(functions.init, jax.random.key(0)))
    for name, x in zip(leaves.names, leaves.arrays, strict=True):
        if len(x.shape) == 2 and TABLE_NAME.search(name):
            return int(x.shape[0])
    raise ArgumentError(
        "batch",
        None,
        "(inputs, targets), arrays: this model has no table of words, so its inputs are"
        " not token ids",
    )


def logits_in(output: Any) -> Any:
    """The logits that a model returns: its output, the field `logits`, or the first
    array with axes of a tuple.
    """
    if hasattr(output, "ndim"):
        return output
    if hasattr(output, "logits"):
        return output.logits
    for part in jax.tree.leaves(output):
        if part.ndim > 1:
            return part
    raise ArgumentError(
        "build",
        type(output).__name__,
        "a function that makes a model which returns logits: an array, an object with"
        " the field logits, or a tuple",
    )
