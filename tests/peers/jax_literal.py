"""Programs of JAX models with the numbers of one initialisation."""

from unittest import mock

import jax
import numpy as np

import netsor as ns
from tests.internals import ParameterDraws as Draws
from tests.internals import _reader, jax_drawn

from ..engine.differences import drawn
from .given_numbers import numbers_for


class ByPath(dict):
    """Parameters by path; those of a layer are a part of those of all layers."""

    def __missing__(self, name):
        parts = name.split(".")
        for place, part in enumerate(parts):
            whole = ".".join([*parts[:place], *parts[place + 1 :]])
            if part.isdigit() and whole in self:
                return self[whole][int(part)]
        raise KeyError(name)


def outputs(model, *inputs, seed=5, **options):
    """Pairs of outputs: of a model in double precision, and of its program."""
    created = []

    def record(*arguments, **keywords):
        created.append(Draws(*arguments, **keywords))
        return created[-1]

    with mock.patch.object(_reader, "Draws", record):
        net = ns.jax.program(model, *inputs, **options)
    real, named = initialised(model, inputs, seed, options)
    literal = drawn(list(net.outputs), {}, numbers_for(created[0], named))
    return [
        (x, literal.drawn[value][0]) for x, value in zip(real, net.outputs, strict=True)
    ]


def initialised(model, inputs, seed, options):
    """The outputs of an initialisation, and its parameters by path."""
    parts = jax_drawn(model, inputs)
    tree = parts.functions.init(jax.random.key(seed))
    leaves = jax.tree.leaves(tree)
    named = ByPath(zip(parts.leaves.names, map(as_double, leaves), strict=True))
    with jax.enable_x64(True):
        double = jax.tree.map(jax.numpy.asarray, jax.tree.map(as_double, tree))
        given = [jax.numpy.asarray(as_double(x)) for x in parts.inputs]
        result = parts.functions.apply(double, *given, **options)
    return [np.asarray(x, dtype=float) for x in jax.tree.leaves(result)], named


def as_double(x):
    """Floating point in double precision; other arrays as they are."""
    if jax.numpy.issubdtype(x.dtype, np.floating):
        return np.asarray(x, dtype=float)
    return x
