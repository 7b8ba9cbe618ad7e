"""Every operation of the language has the rules that it needs, and what holds of one
without any rule. `test_own_operation.py` has operations with rules.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import DERIVATIVE_RULES as RULES
from tests.internals import LOWERING_VECTORS as VECTORS
from tests.internals import REFERENCE_RULES as SAMPLED
from tests.internals import (
    SCALARS,
    Entrywise,
    Operation,
    Pool,
    Rotate,
    ScaledGradient,
    SteppedMatMul,
    SteppedParameter,
    VectorAccess,
    asked_entries,
    narrow,
    topological_order,
)

from ..programs import operations
from ..specification import SpecificationError, verify

n = ns.Width("n")


class Flip(Entrywise):
    """V: the coordinates of x in the opposite order."""

    acts = VectorAccess.BY_POSITION
    x: ns.Vector


class Sorted(Operation):
    """V: what a class says that says nothing: every entry is made of all."""

    acts = VectorAccess.LINEARLY
    x: ns.Vector


def flipped(x):
    return ns.Vector(Flip(x), x.shape, x.width)


def rules(kinds, method, *tables):
    """The operations that state a method, or have a row in a table; both may be those
    of a base class.
    """

    def has_rule(kind):
        if getattr(kind, method) is not getattr(Operation, method):
            return True
        return any(base in table for table in tables for base in kind.__mro__)

    return {kind for kind in kinds if has_rule(kind)}


def test_no_rule_of_an_operation_is_missing():
    """For the reference interpreter, the exact engine and the checker; the derivative
    of sources and indexing is none.
    """
    kinds = set(operations(Operation))
    assert len(kinds) == 22
    assert rules(kinds, "sample", SAMPLED) == kinds
    # a pass rewrites these, so that they are never lowered
    steps = {SteppedMatMul, SteppedParameter}
    lowered = rules(kinds, "lower", VECTORS, SCALARS) | rules(kinds, "combine")
    # another pass removes scaled gradients
    assert kinds - lowered == steps | {ScaledGradient}
    assert kinds - rules(kinds, "bounded") == {Pool, *steps}
    # no theorem speaks of these
    uncovered = {kind for kind in kinds if not kind.covered}
    assert uncovered == {Pool, Rotate, *steps}
    without = {kind.__name__ for kind in kinds - rules(kinds, "cotangents", RULES)}
    assert without == {
        "Gaussian",
        "Data",
        "Normal",
        "Constant",
        "Hyperparameter",
        "Root",
        "Take",
        "Join",
        "Pool",
    }


def test_operation_without_acts_is_rejected(monkeypatch):
    monkeypatch.setattr(Flip, "acts", None)
    with pytest.raises(
        TypeError, match="Flip makes vectors: its class must say how it `acts`"
    ):
        ns.Program(flipped(ns.gaussian(n))).law(n=4, draws=2)


def test_operation_without_derivative_is_named_by_grad():
    x = ns.gaussian(n)
    with pytest.raises(ns.TraceError, match="Flip has no derivative"):
        ns.grad(ns.dot(x, flipped(x)), x)


def test_uncovered_operation_is_conjectured_wherever_it_stands():
    """Whatever else is proved of the program, and wherever the operation stands."""
    x = ns.weight(n, n) @ ns.gaussian(n)
    assert ns.Program(x).check().verdict == "proved"
    for net in (
        ns.Program(flipped(x)),
        ns.Program(ns.weight(n, n) @ ns.clip(flipped(x), 1)[None]),
    ):
        report = net.check()
        assert report.verdict == "conjectured"
        (reason,) = report.reasons
        assert "made by Flip, which no theorem of the checker covers" in reason
        assert "every operation is one that the theorems speak of" in str(report)


class Halved(Entrywise):
    """V: x/2, which is in no table."""

    acts = VectorAccess.ON_COORDINATES
    x: ns.Vector


@pytest.mark.parametrize("bounded", [None, False, True])
def test_bounds_and_base_classes_claim_no_theorem(bounded, monkeypatch):
    """A new operation is conjectured, also if its values are declared bounded or it
    derives from a covered one.
    """
    if bounded is not None:
        monkeypatch.setattr(Halved, "bounded", lambda op, inputs: bounded)
    x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 3))
    halved = ns.Vector(Halved(x), x.shape, n)
    query, key = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    assert ns.Program(ns.dot(query, key)).check().verdict == "proved"
    scores = ns.dot(ns.weight(n, n) @ halved, key)
    for net in (ns.Program(halved), ns.Program(scores)):
        report = net.check()
        assert report.verdict == "conjectured"
        assert any(
            "made by Halved, which no theorem of the checker covers" in reason
            for reason in report.reasons
        )

    class Sum(type((x + x).op)):
        pass

    assert ns.Program(ns.Vector(Sum(x, x), x.shape, n)).check().verdict == "conjectured"


def test_scores_of_uncovered_operations_are_conjectured():
    """⟨x, Flip x⟩ is no divergence that is known, and no vanishing product either: it
    is a conjecture.
    """
    x = ns.weight(n, n) @ ns.gaussian(n)
    assert ns.Program(ns.dot(x, flipped(x))).check().verdict == "conjectured"
    # a mean that nothing is known of, as a factor of (1, …, 1): the score grows, if
    # that is not 0
    one = ns.ones(n)
    unknown = ns.mean_dot(flipped(ns.tanh(x)), ns.tanh(x)) * one
    assert ns.Program(ns.dot(unknown, one)).check().verdict == "conjectured"


def test_operation_without_notation_is_printed_as_a_function():
    net = ns.Program(flipped(ns.gaussian(n, (2, 1))) + ns.gaussian(n, 3))
    assert "u1 = flip(h1) flip 2×1 in R^n" in " ".join(str(net).split())
    assert r"u^{(1)}_{i} = \operatorname{flip}(h^{(1)}_{i})" in net.latex()
    # its coordinates have places
    assert r"Z^{u^{(1)}_{i}} \text{ is not known}" in net.latex()


def test_index_of_an_entrywise_operation_narrows_its_inputs():
    x = ns.gaussian(n, (3, 4))
    outputs = narrow([flipped(x)[1, 2:]])
    assert {
        value.shape
        for value in topological_order(outputs)
        if isinstance(value.op, Flip)
    } == {(1, 2)}
    verify(outputs)
    asked = asked_entries([flipped(x)[1, 2:]])[x]
    assert asked.sum() == 2
    assert asked[1, 2:].all()


def test_operation_without_reads_is_computed_whole():
    x = ns.gaussian(n, (3, 4))
    y = ns.Vector(Sorted(x), x.shape, n)
    outputs = narrow([y[1, 2:]])
    assert {
        value.shape
        for value in topological_order(outputs)
        if isinstance(value.op, Sorted)
    } == {(3, 4)}
    assert asked_entries([y[1, 2:]])[x].all()
    verify(outputs)


def test_specification_rejects_wrong_shapes_widths_and_kinds():
    x = ns.gaussian(n, 2)
    verify([flipped(x)])
    for broken in (
        ns.Vector(Flip(x), (3,), n),
        ns.Scalar(Flip(x), (2,)),
        ns.Vector(Flip(ns.dot(x, x)), (2, 2), n),
    ):
        with pytest.raises(SpecificationError):
            verify([broken])


@pytest.mark.parametrize(
    ("value", "reads"),
    [
        (ns.gaussian(n, (3, 1)) + ns.gaussian(n, 2), ((0, 1), (1,))),
        (ns.weight(n, n, batch=4) @ ns.gaussian(n, 2), ((1,),)),
        (np.ones((5, 3, 2)) @ ns.gaussian(n, 2), ((0, 1, None), (None,))),
        (ns.dot(ns.gaussian(n, (4, 2)), ns.gaussian(n, 3)), ((0, 1), (2,))),
        (ns.concat(ns.gaussian(n, (4, 2, 3)), axis=1), ((0, None, 1),)),
        (ns.softmax(ns.normal((4, 2))), ((0, None),)),
    ],
)
def test_reads_names_the_axes_of_each_input(value, reads):
    assert value.op.reads(value.ndim) == reads
