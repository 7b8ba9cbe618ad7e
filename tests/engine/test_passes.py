"""Every pass leaves a graph that is well formed: operands defined, shapes and widths as the operations say."""

import numpy as np
import pytest
from hypothesis import given, settings

import netsor as ns
from netsor.engine.passes import GRAPH, distinct
from netsor.engine.passes._rewrite import Context, Fuse
from netsor.language import _operation as ops
from netsor.language._graph import ordered
from netsor.language._narrow import narrow
from netsor.language._value import Scalar, Vector

from ..programs import programs


def checked(outputs, context):
    """What each operation asks of its operands and says of its result."""
    seen = set()
    for value in ordered(outputs):
        assert value in context.origin, "a value without a place, so without a seed"
        assert all(x in seen for x in value.op.inputs), "an operand that is not defined before its use"
        seen.add(value)
        match value.op:
            case ops.MatMul(weight, x, each):
                assert (weight.in_width, weight.out_width) == (x.width, value.width)
                assert value.shape == (x.shape if each else weight.batch + x.shape)
                assert not each or x.shape[: len(weight.batch)] == weight.batch
            case ops.Add(x, y):
                assert x.width == y.width == value.width
                assert value.shape == np.broadcast_shapes(x.shape, y.shape)
            case ops.Scale(c, x):
                assert isinstance(c, Scalar)
                assert x.width == value.width
                assert value.shape == np.broadcast_shapes(c.shape, x.shape)
            case ops.Mix(a, x):
                assert x.width == value.width
                assert a.shape[-1] == x.shape[-1]
                assert value.shape == (*np.broadcast_shapes(a.shape[:-2], x.shape[:-1]), a.shape[-2])
            case ops.Nonlin(_, vectors, scalars):
                assert all(isinstance(p, Scalar) for p in scalars)
                assert all(x.width == value.width for x in vectors)
                assert value.shape == np.broadcast_shapes(*(x.shape for x in value.op.inputs))
            case ops.Dot(x, y):
                assert x.width == y.width
                assert value.shape[-2:] == (x.shape[-1], y.shape[-1])
            case ops.Take(x, flat):
                assert value.shape == flat.shape
                assert flat.max() < x.size
                assert not isinstance(value, Vector) or value.width == x.width
            case ops.Join(parts):
                assert value.shape == (sum(p.shape[0] for p in parts), *parts[0].shape[1:])
            case ops.Concat(x, axis):
                assert value.width == x.shape[axis] * x.width
            case Fuse(x):
                assert (value.shape, value.width) == (x.shape, x.width)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(built=programs(steps=10))
@pytest.mark.parametrize("width", [4, ns.inf])
def test_passes_leave_well_formed_graphs(width, built):
    outputs = narrow(built.net.outputs)
    context = Context(dict.fromkeys(built.widths, width), {v: k for k, v in enumerate(ordered(outputs))})
    checked(outputs, context)
    outputs = distinct(outputs, context)
    for value in ordered(outputs):
        if isinstance(value.op, ops.MatMul):
            members = value.op.weight.members
            assert len(np.unique(members)) == members.size
    for change in GRAPH.values():
        shapes = [value.shape for value in outputs]
        outputs = change(outputs, context)
        checked(outputs, context)
        assert [value.shape for value in outputs] == shapes


def test_the_check_sees_a_broken_graph():
    n = ns.Width("n")
    x = ns.gaussian(n, 2)
    y = x + ns.gaussian(n, 2)
    object.__setattr__(y, "shape", (3,))
    with pytest.raises(AssertionError):
        checked([y], Context({}, {v: k for k, v in enumerate(ordered([y]))}))
