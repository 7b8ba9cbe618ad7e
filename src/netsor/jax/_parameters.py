"""The laws of the parameters of a JAX model at initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from .._validate import Shape
from ..reader._declared_laws import Declaration, with_declared
from ..reader._laws import Parameter, Parameters, law_of_entries
from ._initialisers import laws_of
from ._models import Functions, Leaves, arrays_of, functions_of


class Drawn(NamedTuple):
    """The parameters of a model, their laws, and the functions that use them."""

    functions: Functions
    inputs: tuple[Any, ...]
    # The arrays are abstract, unless the user passed the parameters themselves: then
    # they are these numbers.
    leaves: Leaves
    laws: Parameters


def parameters(
    model: Any, *inputs: Any, declared: Mapping[str, Declaration] | None = None
) -> Parameters:
    """The laws of all parameters of a JAX model, by their paths.

    They are read from the `jax.random` calls of its initialisation, and measured where
    these calls do not reveal them.

    Parameters
    ----------
    model : callable, flax.linen.Module or tuple
        As in `ns.jax.program`.
    *inputs : array
        As in `ns.jax.program`. Flax NNX and Equinox need none.
    declared : mapping, optional
        Laws that replace those of the model, by name or pattern: a standard deviation
        of Gaussian entries, or a `Parameter`.

    Returns
    -------
    Parameters
        A mapping of paths to laws; `print` shows it as a table.

    Examples
    --------
    >>> def build(key):
    ...     return nnx.Linear(64, 32, rngs=nnx.Rngs(key))
    >>> ns.jax.parameters(build)["kernel"].law  # doctest: +SKIP
    'truncated normal'
    """
    return drawn(model, inputs, declared).laws


def drawn(
    model: Any,
    inputs: tuple[Any, ...],
    declared: Mapping[str, Declaration] | None = None,
) -> Drawn:
    """The parameters of a model, and how it uses them."""
    functions, inputs = functions_of(model, arrays_of(inputs))
    if functions.init is None:
        leaves = Leaves.of(functions.parameters)
        laws_by_leaf: list[Parameter | None] = [
            law_of_sample(name, np.asarray(x))
            for name, x in zip(leaves.names, leaves.arrays, strict=True)
        ]
    else:
        jaxpr, leaves = _initialisation(functions.init)
        laws_by_leaf = laws_of(jaxpr, leaves.names, key=jax.random.key(0))
    laws = {}
    for name, law in zip(leaves.names, laws_by_leaf, strict=True):
        if law is not None:
            fan_in = _fan_in(law.name, law.shape, functions.weight_first)
            laws[name] = replace(law, fan_in=fan_in, framework="jax")
    table = Parameters(with_declared(laws, declared or {}), samples=0)
    return Drawn(functions=functions, inputs=inputs, leaves=leaves, laws=table)


def _initialisation(init: Callable[[Any], Any]) -> tuple[Any, Leaves]:
    """The jaxpr of an initialisation, and the tree of its results."""
    jaxpr, shapes = jax.make_jaxpr(init, return_shape=True)(jax.random.key(0))
    return jaxpr, Leaves.of(shapes)


def law_of_sample(name: str, x: Any) -> Parameter:
    """The law of a parameter of which one sample x is given.

    Rows of a sample are i.i.d., so that two halves of them are two samples.
    """
    shape = tuple(x.shape)
    entries = np.asarray(x, dtype=float)
    is_floating = np.issubdtype(x.dtype, np.floating)
    is_random = is_floating and x.size > 0 and np.ptp(x) != 0
    count = math.prod(shape[:-1]) if shape else 0  # of rows
    if not is_random or count < 2:
        return law_of_entries(name, shape, [entries])
    rows = entries.reshape(count, shape[-1])
    half = count // 2
    halves = [rows[:half].ravel(), rows[half : 2 * half].ravel()]
    return replace(law_of_entries(name, shape, halves), shape=shape)


def _fan_in(name: str, shape: Shape, weight_first: bool) -> int | None:
    """The entries of the input that an entry of the output sums over.

    None of vectors and of tables of words, which sum over nothing.
    """
    is_table = "embed" in name.rpartition(".")[2]
    if len(shape) < 2 or is_table:
        return None
    return math.prod(shape[1:]) if weight_first else math.prod(shape[:-1])
