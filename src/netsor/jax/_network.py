"""A JAX model as the network of a study: a program with the probes of an audit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._validate import ArgumentError
from ..programs._program import Program
from ..reader._graph import Graph
from ..reader._laws import Parameter, Parameters
from ..reader._network import Network, network_of, sequence_of
from ._models import is_constructor, is_pair, reject_instance, takes_one_sequence
from ._parameters import drawn, parameters
from ._program import JaxReader, graph_of, is_one_sequence

TOKENS = 16  # of different ids, if none are given
# names of tables of words
TABLE_NAME = re.compile(r"embed|words?\b|wte|tok|vocab", re.IGNORECASE)


def network(
    model: Any, *inputs: Any, laws: Parameters | None = None, **options: Any
) -> Program:
    """The program of a model with the probes of an audit, which `ns.audit` takes.

    Blocks are recognised by numbers in the paths of parameters, such as `layers.0` or
    `layers_0`, and branches as terms of a stream (batch, tokens, width). If the model
    returns logits, the loss predicts the next token (the token itself if later tokens
    have an effect). The parameters are those of `program`.

    Examples
    --------
    >>> ns.audit(ns.jax.network(build, ids), gradients=True)  # doctest: +SKIP
    """
    return read_network(model, inputs, laws, **options).program


def read_network(
    model: Any,
    inputs: Sequence[Any],
    laws: Parameters | None = None,
    *,
    trained: bool = False,
    **options: Any,
) -> Network:
    """`network` and its structure."""
    graph = network_graph(model, inputs, laws, options)
    return network_of(graph, JaxReader, trained=trained)


def network_graph(
    model: Any,
    inputs: Sequence[Any],
    laws: Parameters | None = None,
    options: Mapping[str, Any] | None = None,
) -> Graph:
    """The graph of a network; one sequence, as models of Equinox take it, is a batch.

    The first inputs of a function of parameters and inputs are the parameters.
    """
    model_inputs = drawn(model, tuple(inputs)).inputs
    as_batch = is_one_sequence(model_inputs)
    return graph_of(model, inputs, laws, options, as_batch=as_batch)


def networks(model: Any, ids: Any, lengths: Sequence[int | None]) -> list[Program]:
    """`network` on ids, or at one or several numbers of tokens."""
    if ids is not None:
        return [network(model, as_inputs(model, np.array(sequence_of(ids))))]
    return [network(model, token_ids(model, length)) for length in lengths]


def as_inputs(model: Any, ids: Any) -> Any:
    """Ids of one sequence; models of Equinox take it without an axis of a batch."""
    return ids if takes_one_sequence(model) else ids[None]


def token_ids(model: Any, tokens: int | None, most_by_default: int = TOKENS) -> Any:
    """Ids 1, 2, … of rows of the model's table of words: (1, tokens), or (tokens,).

    Without a number of tokens these are `most_by_default`, or all that a small table
    has.
    """
    reject_instance(model)
    name = getattr(model, "__name__", type(model).__name__)
    if not is_constructor(model) and not is_pair(model):
        raise ArgumentError(
            "model",
            name,
            "a function of a key that makes a model of Flax NNX or Equinox, a module of"
            " Linen, or a pair (init, apply); for others give the inputs,"
            " ns.audit(ns.jax.network(model, …))",
        )
    table = _table_of_words(model)
    if table is None:
        raise ArgumentError(
            "model",
            name,
            "a model with a table of words; for others give the inputs,"
            " ns.audit(ns.jax.network(model, ids))",
        )
    rows = table.shape[0]
    largest_id = rows - 1
    if tokens is not None and tokens > largest_id:  # 0 is left out: often the padding
        raise ArgumentError(
            "tokens", tokens, f"at most {largest_id}: {table.name} has {rows} rows"
        )
    count = min(tokens or most_by_default, largest_id)
    return as_inputs(model, np.arange(1, count + 1))


def _table_of_words(model: Any) -> Parameter | None:
    """The first matrix whose name is that of a table of words."""
    # modules of Linen draw their parameters with inputs
    example = () if is_constructor(model) else (np.ones((1, TOKENS), dtype=int),)
    for path, law in parameters(model, *example).items():
        if len(law.shape) == 2 and TABLE_NAME.search(path):
            return law
    return None
