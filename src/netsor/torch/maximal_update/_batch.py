"""The batch of a training step, and its loss."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._validate import ArgumentError
from .._network import _table_of_words

SEQUENCES, TOKENS = 2, 8  # of a random batch
IGNORED = -100  # a target that has no loss, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True, eq=False)
class Batch:
    """What a module is called with, and the classes that its logits should name."""

    inputs: tuple[Any, ...]
    targets: Any  # integers, one for each row of the logits

    def loss(self, logits: Any) -> Any:
        """The mean cross-entropy."""
        rows = logits.reshape(-1, logits.shape[-1])
        return torch.nn.functional.cross_entropy(
            rows, self.targets.reshape(-1), ignore_index=IGNORED
        )

    @property
    def words(self) -> tuple[int, ...]:
        """The targets, each once: a step changes their logits by order 1."""
        targets = self.targets.reshape(-1).tolist()
        return tuple(dict.fromkeys(word for word in targets if word != IGNORED))

    def cast(self, dtype: Any) -> Batch:
        """The same with inputs of another floating-point type."""
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.inputs)
        return Batch(inputs, self.targets)


def batch_of(module: Any, batch: Any, seed: int) -> Batch:
    """The batch that a user gives, or random tokens for a module that takes ids.

    The target of each random token is the next one.
    """
    if isinstance(batch, Batch):
        return batch
    if batch is not None:
        return _given_batch(batch)
    table = _table_of_words(module)
    if table is None:
        raise ArgumentError(
            "batch",
            None,
            "(inputs, targets), tensors: this module has no torch.nn.Embedding, so its"
            " inputs are not token ids",
        )
    generator = torch.Generator().manual_seed(seed)
    shape = (SEQUENCES, TOKENS + 1)
    tokens = torch.randint(0, int(table.num_embeddings), shape, generator=generator)
    ids = tokens[:, :-1].contiguous()
    targets = tokens[:, 1:].contiguous()
    names = list(inspect.signature(module.forward).parameters)
    takes_targets = names[1:2] == ["targets"]
    # without targets, some modules return logits of one token
    return Batch((ids, targets) if takes_targets else (ids,), targets)


def _given_batch(batch: Any) -> Batch:
    """The batch of (inputs, targets)."""
    allowed = "(inputs, targets), where inputs are a tensor or a tuple of tensors"
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise ArgumentError("batch", type(batch).__name__, allowed)
    inputs, targets = batch
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if not all(isinstance(x, torch.Tensor) for x in (*inputs, targets)):
        raise ArgumentError("batch", type(batch).__name__, allowed)
    return Batch(inputs, targets)


def logits_in(output: Any) -> Any:
    """The logits that a module returns.

    They are its output, the field `logits`, or the first tensor with axes of a tuple.
    """
    if isinstance(output, torch.Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, Sequence):
        for part in output:
            if isinstance(part, torch.Tensor) and part.ndim > 1:
                return part
    raise ArgumentError(
        "build",
        type(output).__name__,
        "a function that makes a module which returns logits: a tensor, an object with"
        " the field logits, or a tuple",
    )
