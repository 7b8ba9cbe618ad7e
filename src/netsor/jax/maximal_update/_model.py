"""A JAX model of one width: its functions, its parameters, and its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._validate import ArgumentError, Shape
from ...reader._laws import Parameter, Parameters
from .._capture import Variable, captured
from .._models import Functions, Leaves, batched, functions_of
from .._run_loop import kind_of, parted
from ._batch import MODEL_FUNCTION, Batch, batch_of, logits_in
from ._graph import JaxGraph, logits_node

Arrays = dict[str, Any]  # parameters by name
# compiling takes most of the time, and what is compiled runs a few times
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class Model(NamedTuple):
    """The model of one width, as functions, with its parameters as shapes."""

    functions: Functions
    apply: Callable[[Any, Any], Any]  # the logits, of parameters and the batch
    batch: Batch
    leaves: Leaves  # of all numbers
    trained: tuple[str, ...]  # the names of those that are trained
    kind: str  # "nnx", "linen" or "arrays"

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of the parameters that are trained."""
        pairs = zip(self.leaves.names, self.leaves.arrays, strict=True)
        return {name: tuple(x.shape) for name, x in pairs if name in self.trained}


def model_of(model: Any, batch: Any, seed: int) -> Model:
    """The functions and the parameters of a model."""
    model_batch = batch_of(model, batch, seed)
    functions, _ = functions_of(model, model_batch.inputs)
    if functions.init is None:
        raise ArgumentError("build", functions.name, MODEL_FUNCTION)
    functions = batched(model, functions)

    def logits(tree: Any, inputs: Sequence[Any]) -> Any:
        """The logits of a batch."""
        return logits_in(functions.apply(tree, *inputs))

    tree = jax.eval_shape(functions.init, jax.random.key(0))
    kind = kind_of(tree)
    return Model(
        functions=functions,
        apply=logits,
        batch=model_batch,
        leaves=Leaves.of(tree),
        trained=tuple(Leaves.of(parted(tree, kind).moving).names),
        kind=kind,
    )


def graph_of(model: Model, seed: int) -> JaxGraph:
    """The graph of the logits; all parameters that are trained are open."""
    leaves = model.leaves
    batch = model.batch

    def logits(arrays: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The logits, of the leaves of the parameters."""
        tree = jax.tree_util.tree_unflatten(leaves.structure, arrays)
        return [model.apply(tree, inputs)]

    jaxpr = jax.make_jaxpr(logits)(leaves.arrays, batch.inputs)
    variables = []
    laws = {}
    fixed_numbers = _untrained(model, seed)
    for name, x in zip(leaves.names, leaves.arrays, strict=True):
        is_key = bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
        variables.append(Variable(name, x, is_key=is_key))
        shape = tuple(x.shape)
        if name in model.trained:
            laws[name] = Parameter(name, shape, "unknown")
        elif not is_key:
            laws[name] = Parameter(name, shape, "fixed", value=fixed_numbers[name])
    variables += [Variable("", x) for x in jax.tree.leaves(batch.inputs)]
    with jax.enable_x64(False):  # known numbers have the types of the jaxpr
        graph = captured(
            model.functions.name,
            jaxpr,
            variables=variables,
            laws=Parameters(laws, 0),
            only_known=True,
        )
    return JaxGraph(graph, model.trained, tuple(graph.nodes), logits_node(graph))


def _untrained(model: Model, seed: int) -> Arrays:
    """The numbers that are not trained, such as averages of batch norm."""
    if len(model.trained) == len(model.leaves.names):
        return {}
    assert model.functions.init is not None
    leaves = jax.tree.leaves(model.functions.init(jax.random.key(seed)))
    return dict(zip(model.leaves.names, leaves, strict=True))
