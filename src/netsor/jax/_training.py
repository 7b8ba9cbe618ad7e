"""The training step of a JAX model at each width, for coordinate checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..language.operations._operation import MatMul
from ..language.values._graph import topological_order
from ..programs._program import Program
from ..reader._network import loss_of, sequence_of
from ._models import functions_of
from ._network import as_inputs, read_network, token_ids
from ._optax import Step, first_steps, optimisers_of
from ._run_loop import kind_of, parted

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


def training_by_optax(
    build: Callable[[int], Any], width: int, optimiser: Any, ids: Sequence[int] | None
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """The training step of a model with an optimiser of optax, and a name of its kind.

    The step is a function of the width that returns the program of the loss, and the
    optimiser of each of its matrices.
    """
    program_at = training(build, ids)
    kinds = {step.kind for step in _first_steps(build(width), optimiser).values()}

    def step_at(width: int) -> tuple[Program, Any]:
        net = program_at(width)
        names = {
            value.op.weight.source.name
            for value in topological_order(net.outputs)
            if isinstance(value.op, MatMul)
        }
        return net, optimisers_of(_first_steps(build(width), optimiser), names)

    step_at.__name__ = program_at.__name__
    # a kind whose steps are no multiples of gradients, if there is one
    return step_at, min(kinds, default="sgd")


def _first_steps(model: Any, optimiser: Any) -> dict[str, Step]:
    """The first steps of the parameters that an optimiser moves."""
    functions, _ = functions_of(model, (token_ids(model, TOKENS),))
    assert functions.init is not None
    tree = jax.eval_shape(functions.init, jax.random.key(0))
    return first_steps(optimiser, parted(tree, kind_of(tree)).moving)
