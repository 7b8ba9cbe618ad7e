"""The training step of a JAX model at each width, for coordinate checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ..language.operations._operation import MatMul
from ..language.values._graph import topological_order
from ..optim import NAMED, Optimiser
from ..programs._program import Program
from ..reader._network import loss_of, sequence_of
from ._models import functions_of
from ._network import as_inputs, read_network, token_ids
from ._optax import Step, first_steps, optimisers_of
from ._run_loop import kind_of, parted

# of the batch, if no ids are given; the cost of a draw grows with their square
TRAINING_TOKENS = 4
# Of several kinds of steps, the first of these names the check. Steps of Adam and Muon
# are no multiples of gradients, so what a check concludes for SGD does not hold; Adam
# moves what Muon leaves, such as tables.
PRECEDENCE = ("adam", "muon", "sgd")


def training(
    build: Callable[[int], Any], ids: Sequence[int] | None
) -> Callable[[int], Program]:
    """A function of the width that returns the program of the loss."""

    def step_at(width: int) -> Program:
        model = build(width)
        return _loss_program(model, _inputs_of(model, ids))

    step_at.__name__ = getattr(build, "__name__", "model")
    return step_at


def training_by_optax(
    build: Callable[[int], Any], width: int, optimiser: Any, ids: Sequence[int] | None
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """The training step of a model with an optimiser of optax, and a name of its kind.

    The step is a function of the width that returns the program of the loss, and the
    optimiser of each of its matrices. `width` is that of the model itself.
    """

    def program_and_optimisers(width: int) -> tuple[Program, dict[Any, Optimiser]]:
        """The program of the loss, and the optimiser of each of its matrices."""
        model = build(width)
        inputs = _inputs_of(model, ids)
        net = _loss_program(model, inputs)
        names = {
            value.op.weight.source.name
            for value in topological_order(net.outputs)
            if isinstance(value.op, MatMul)
        }
        return net, optimisers_of(_first_steps(model, inputs, optimiser), names)

    at_own_width = program_and_optimisers(width)
    _, own_optimisers = at_own_width

    def step_at(requested_width: int) -> tuple[Program, Any]:
        if requested_width == width:
            return at_own_width
        return program_and_optimisers(requested_width)

    step_at.__name__ = getattr(build, "__name__", "model")
    return step_at, _kind_of_all(own_optimisers.values())


def _kind_of_all(optimisers: Iterable[Optimiser]) -> str:
    """The name of the kind of step that stands for those of all matrices."""
    classes = {type(optimiser) for optimiser in optimisers}
    for kind in PRECEDENCE:
        if NAMED[kind].kind in classes:
            return kind
    return "sgd"


def _inputs_of(model: Any, ids: Sequence[int] | None) -> Any:
    """The ids that a user gave, or a few different ones, as the model takes them."""
    if ids is None:
        return token_ids(model, tokens=None, most_by_default=TRAINING_TOKENS)
    return as_inputs(model, np.array(sequence_of(ids)))


def _loss_program(model: Any, inputs: Any) -> Program:
    """The program of the loss of a model, with every matrix as a weight."""
    return loss_of(read_network(model, [inputs], trained=True))


def _first_steps(model: Any, inputs: Any, optimiser: Any) -> dict[str, Step]:
    """The first steps of the parameters that an optimiser moves."""
    functions, _ = functions_of(model, (inputs,))
    assert functions.init is not None
    tree = jax.eval_shape(functions.init, jax.random.key(0))
    return first_steps(optimiser, parted(tree, kind_of(tree)).moving)
