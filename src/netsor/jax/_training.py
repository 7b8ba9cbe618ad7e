"""The training step of a JAX model at each width, for coordinate checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..programs._program import Program
from ..reader._network import loss_of, sequence_of
from ._network import as_inputs, read_network, token_ids

# of the batch, if no ids are given; the cost of a draw grows with their square
TOKENS = 4


def training(
    build: Callable[[int], Any], ids: Sequence[int] | None
) -> Callable[[int], Program]:
    """A function of the width that returns the program of the loss."""

    def step_at(width: int) -> Program:
        model = build(width)
        inputs = token_ids(model, TOKENS)
        if ids is not None:
            inputs = as_inputs(model, np.array(sequence_of(ids)))
        return loss_of(read_network(model, [inputs], trained=True))

    step_at.__name__ = getattr(build, "__name__", "model")
    return step_at
