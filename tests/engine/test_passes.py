"""Every pass leaves a graph that satisfies the specification, with a place for every
value that it makes.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import netsor as ns
from tests.internals import (
    PIPELINE,
    Context,
    SteppedMatMul,
    _cost_model,
    narrow,
    rewrite,
    topological_order,
)
from tests.internals import _operation as ops

from ..gradients import gradients
from ..programs import programs
from ..specification import PASSES, SpecificationError, verify
from ..steps import stepped as stepped_programs


def checked(outputs, context):
    """The specification; and seeds are made from the places of values in the program as
    written.
    """
    verify(outputs)
    assert all(value in context.origin for value in topological_order(outputs))


def begun(net, width):
    outputs = narrow(net.outputs)
    context = Context(
        dict.fromkeys(net.widths, width),
        {v: k for k, v in enumerate(topological_order(outputs))},
    )
    checked(outputs, context)
    return outputs, context


def acts(outputs):
    """The members of each source, as often as they act."""
    found = {}
    for value in topological_order(outputs):
        if isinstance(value.op, ops.MatMul):
            found.setdefault(value.op.weight.source, []).extend(
                value.op.weight.members.ravel().tolist()
            )
    return found.values()


def followed(net, width):
    """The operations of the program after each pass, checked."""
    outputs, context = begun(net, width)
    seen = set()
    for step in PIPELINE:
        shapes = [value.shape for value in outputs]
        outputs = step.rewrite(outputs, context)
        checked(outputs, context)
        assert [value.shape for value in outputs] == shapes
        if step.name == "distinct":
            weights = [
                value.op.weight
                for value in topological_order(outputs)
                if isinstance(value.op, ops.MatMul)
            ]
            assert all(
                len(np.unique(weight.members)) == weight.members.size
                for weight in weights
            )
        if step.name == "reuse":
            assert all(len(set(members)) == len(members) for members in acts(outputs))
        seen |= {type(value.op) for value in topological_order(outputs)}
    return seen


@settings(max_examples=15, deadline=None, derandomize=True)
@given(built=programs(steps=10))
@pytest.mark.parametrize("width", [4, ns.inf])
def test_passes_leave_well_formed_graphs(width, built):
    followed(built.net, width)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(built=gradients())
def test_passes_leave_well_formed_gradients(built):
    followed(built.net, 4)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(built=stepped_programs(grow=3))
def test_passes_leave_well_formed_steps(built):
    followed(built.net, 4)


def test_every_operation_that_passes_add_meets_specification(monkeypatch):
    """So that their rows of the specification are read."""
    n = ns.Width("n")
    w, x, b, c = (
        ns.weight(n, n),
        ns.gaussian(n, 2),
        ns.gaussian(n, 2),
        ns.gaussian(n, 2),
    )
    y = w @ ns.tanh(w.T @ (w @ x + b))
    p = ns.softmax(ns.dot(y, ns.weight(n, n) @ x + c))
    after = ns.step(p, p[0, 0], 0.1, "adam")
    seen = followed(ns.Program(p), 4) | followed(ns.Program(after), 4)
    with monkeypatch.context() as patch:
        patch.setattr(_cost_model, "FEWEST", 0)
        patch.setattr(_cost_model, "PREFERENCE", np.inf)
        seen |= followed(ns.Program(p), 4)
    assert set(PASSES) <= seen
    lazy = ns.step(p, p[0, 0], lambda fan_in, fan_out: 0.1 / fan_in)
    outputs, context = begun(ns.Program(lazy), ns.inf)
    left = {type(value.op) for value in topological_order(rewrite(outputs, context))}
    assert not left & {SteppedMatMul, ops.Root}


n, m = ns.Width("n"), ns.Width("m")
X, Y, Z = ns.gaussian(n, 2), ns.gaussian(n, 3), ns.gaussian(m, 2)
W = ns.weight(n, n, batch=2)


def wrong(value, **changed):
    """A value that says something else of itself than its operation does."""
    return replace(value, **changed)


BROKEN = {
    "shape": wrong(X + X, shape=(3,)),
    "width": wrong(X + X, width=m),
    "spaces": wrong(X + X, op=ops.Add(X, Z)),
    "do not broadcast": wrong(X + X, op=ops.Add(X, Y)),
    "vector for a scalar": wrong(2.0 * X, op=ops.Scale(X, X)),
    "scalar for a vector": wrong(X + X, op=ops.Add(X, ns.dot(X, X)[0])),
    "made a vector": ns.Vector(ops.Dot(X, X, 0.5), (2, 2), n),
    "matrix of another space": wrong(W @ X, op=ops.MatMul(W, Z, each=False)),
    "each": wrong(W.each(X), op=ops.MatMul(W, Y, each=True), shape=(3,)),
    "members": wrong(
        W @ X, op=ops.MatMul(replace(W, members=np.array([0, 2])), X, each=False)
    ),
    "combined": wrong(np.ones((4, 2)) @ X, op=ops.Mix(ns.dot(X, X), Y), shape=(2,)),
    "positions": wrong(X[[0, 1, 0]], op=ops.Take(X, np.array([0, 2, 0]))),
    "negative positions": wrong(X[[0, 1, 0]], op=ops.Take(X, np.array([0, -1, 0]))),
    "joined": wrong(ns.join([X, Y]), op=ops.Join((X, Z))),
    "concatenated": wrong(ns.concat(X), width=n),
    "turned": wrong(
        ns.rotary(X), op=replace(ns.rotary(X).op, positions=np.arange(3.0))
    ),
    "data": wrong(ns.data(np.ones((2, 3))), width=ns.Width(4)),
    "initial": wrong(X, op=replace(X.op, factor=np.eye(3))),
}


@pytest.mark.parametrize("case", BROKEN)
def test_specification_refuses_a_broken_graph(case):
    verify(
        [
            X + X,
            2.0 * X,
            W @ X,
            W.each(X),
            ns.concat(X),
            ns.rotary(X),
            ns.join([X, Y]),
            ns.dot(X, X),
        ]
    )
    with pytest.raises(SpecificationError):
        verify([BROKEN[case]])


@pytest.mark.parametrize("width", [5, ns.inf])
def test_equal_products_are_computed_once(width):
    """A difference of the same product is 0 to the last digit, and its matrix draws no
    more than once.
    """
    n = ns.Width("n")
    w = ns.weight(n, n, batch=2)
    x = ns.gaussian(n, 2)
    for y in (
        w[0] @ x - w[0] @ x,
        ns.relu(w @ x) - ns.relu(w @ x),
        w[[1, 1]] @ x - w[[1, 1]] @ x,
        w.T @ x - w.T @ x,
    ):
        law = ns.Program(y[(0,) * y.ndim]).law(n=width, draws=100, progress=False)
        assert law.var() == 0
        assert (law.cdf(-1e-300), law.cdf(0.0)) == (0, 1)
    once, twice = (
        ns.Program(y[0]).plan(n=width).random_numbers
        for y in (w[0] @ x, w[0] @ x + w[0] @ x)
    )
    assert once == twice
