"""An operation is a class that says what all readings share, and a row in their tables;
here is one without any row.
"""

import numpy as np
import pytest

import netsor as ns
from netsor.engine.lower import SCALARS, VECTORS
from netsor.engine.lower._linear import LINEAR
from netsor.engine.reference import LITERAL
from netsor.language.autodiff._derivative import RULES
from netsor.language.operations._operation import SteppedMatMul, SteppedParameter
from netsor.language.operations._rotary import Rotate
from netsor.language.operations._score import Pool
from netsor.language.operations._stop_gradient import ScaledGradient
from netsor.language.theorem._theorem_check import BOUNDED, COVERED
from netsor.language.values._array import Entrywise, Operation, VectorAccess
from netsor.language.values._graph import asked_entries, narrow, topological_order

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


def test_no_row_is_missing():
    """Of the literal interpreter, the exact engine and the checker; the derivative of
    sources and indexing is none.
    """
    every = {operation.__name__: operation for operation in operations(Operation)}
    assert len(every) == 22
    assert set(LITERAL) == set(every.values())
    # which a pass rewrites, so that they are never lowered
    steps = {SteppedMatMul, SteppedParameter}
    assert set(every.values()) - set(BOUNDED) == {Pool, *steps}
    # no theorem speaks of these
    assert set(every.values()) - COVERED == {Pool, Rotate, *steps}
    lowered = {*VECTORS, *SCALARS, *LINEAR}
    # which is removed before
    assert set(every.values()) - lowered == steps | {ScaledGradient}
    without = {
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
    assert {name for name, kind in every.items() if kind not in RULES} == without


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (
            lambda net: net.simulate(n=4, draws=1),
            r"Flip has no row in LITERAL of engine/_reference.py",
        ),
        (
            lambda net: net.law(n=4, draws=2),
            r"Flip has no row in VECTORS of engine/lower/__init__.py",
        ),
    ],
)
def test_a_missing_row_is_named(read, place):
    with pytest.raises(TypeError, match=place):
        read(ns.Program(flipped(ns.gaussian(n))))


def test_a_missing_kind_is_named(monkeypatch):
    monkeypatch.setattr(Flip, "acts", None)
    with pytest.raises(
        TypeError, match="Flip makes vectors: its class must say how it `acts`"
    ):
        ns.Program(flipped(ns.gaussian(n))).law(n=4, draws=2)


def test_a_missing_derivative_is_named():
    x = ns.gaussian(n)
    with pytest.raises(ns.TraceError, match="Flip has no derivative"):
        ns.grad(ns.dot(x, flipped(x)), x)


def test_an_operation_that_the_checker_does_not_know_is_conjectured():
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
        assert "is made by Flip, which no theorem of the checker covers" in reason
        assert "every operation is one that the theorems speak of" in str(report)


class Halved(Entrywise):
    """V: x/2, which is in no table."""

    acts = VectorAccess.ON_COORDINATES
    x: ns.Vector


@pytest.mark.parametrize("bounded", [None, False, True])
def test_no_row_claims_a_theorem(bounded, monkeypatch):
    """A new operation is conjectured, also if its values are declared bounded or it
    derives from a covered one.
    """
    if bounded is not None:
        monkeypatch.setitem(BOUNDED, Halved, lambda op, inputs: bounded)
    x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 3))
    halved = ns.Vector(Halved(x), x.shape, n)
    query, key = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    assert ns.Program(ns.dot(query, key)).check().verdict == "proved"
    scores = ns.dot(ns.weight(n, n) @ halved, key)
    for net in (ns.Program(halved), ns.Program(scores)):
        report = net.check()
        assert report.verdict == "conjectured"
        assert any(
            "is made by Halved, which no theorem of the checker covers" in reason
            for reason in report.reasons
        )

    class Sum(type((x + x).op)):
        pass

    assert ns.Program(ns.Vector(Sum(x, x), x.shape, n)).check().verdict == "conjectured"


def test_nothing_is_said_of_moments_of_an_unknown_operation():
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


def test_it_is_printed_as_a_function():
    net = ns.Program(flipped(ns.gaussian(n, (2, 1))) + ns.gaussian(n, 3))
    assert "u1 = flip(h1) flip 2×1 in R^n" in " ".join(str(net).split())
    assert r"u^{(1)}_{i} = \operatorname{flip}(h^{(1)}_{i})" in net.latex()
    # its coordinates have places
    assert r"Z^{u^{(1)}_{i}} \text{ is not known}" in net.latex()


def test_indexing_goes_through_it():
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


def test_an_operation_that_says_nothing_is_made_whole():
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


def test_the_specification_reads_the_fields():
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
def test_which_entries_are_read(value, reads):
    assert value.op.reads(value.ndim) == reads
