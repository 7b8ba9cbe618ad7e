"""Properties of random programs, read literally."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netsor as ns
from tests.internals import (
    Hyperparameter,
    Operation,
    Root,
    ScaledGradient,
    Split,
    SteppedMatMul,
    SteppedParameter,
    topological_order,
)

from .builder import Builder
from .programs import (
    LIMIT_STEPS,
    STEPS,
    WIDTHS,
    LimitBuilder,
    grown,
    limit_programs,
    operations,
    programs,
)

few = settings(max_examples=15, deadline=None, derandomize=True)


@few
@given(programs())
def test_shapes_are_those_traced(built):
    drawn = built.net.simulate(draws=3, **built.widths)
    for value, array in zip(built.net.outputs, drawn, strict=True):
        last = (value.width.bind(built.widths),) if isinstance(value, ns.Vector) else ()
        assert array.shape == (3, *value.shape, *last)
        assert np.isfinite(array).all()


@few
@given(programs(), st.integers(0, 3))
def test_draws_depend_only_on_the_seed(built, seed):
    one = built.net.simulate(draws=5, seed=seed, workers=1, **built.widths)
    again = built.net.simulate(draws=5, seed=seed, workers=3, **built.widths)
    first = built.net.simulate(draws=2, seed=seed, **built.widths)
    for a, b, c in zip(one, again, first, strict=True):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a[:2], c, rtol=1e-9, atol=1e-12)


@few
@given(programs(), st.data())
def test_indexing_early_or_late_is_the_same(built, data):
    """Streams belong to matrices, so the draws agree, not just their law."""
    whole = built.net.simulate(draws=4, **built.widths)
    for k, value in enumerate(built.net.outputs):
        if value.shape:
            key = tuple(data.draw(st.integers(0, size - 1)) for size in value.shape)
            part = built.net[k][key].simulate(draws=4, **built.widths)
            np.testing.assert_allclose(
                part, whole[k][(slice(None), *key)], rtol=1e-7, atol=1e-9
            )


@few
@given(programs())
def test_every_interpreter_terminates(built):
    assert str(built.net).startswith("program")
    assert built.net.check().verdict in ("proved", "conjectured", "no limit")
    for style in ("full", "paper"):
        text = built.net.latex(style=style)
        assert text.count("{") == text.count("}")
    assert built.net._repr_html_().count("$$") == 2


@few
@given(limit_programs())
def test_limit_programs_have_symbols_for_widths(built):
    values = topological_order(built.net.outputs)
    widths = {value.width for value in values if isinstance(value, ns.Vector)}
    # only vectors with rotary positions, and those made of them, have a number
    assert all(width.name or width.factor % 12 == 0 for width in widths)
    assert set(built.widths) == set(built.net.widths)
    assert np.isfinite(
        np.concatenate([a.ravel() for a in built.net.simulate(draws=2, **built.widths)])
    ).all()


@pytest.mark.slow
def test_generated_programs_have_every_kind_of_operation():
    """Every operation, and every verdict, in one of 100; and what is made for the limit
    mostly has one.
    """
    nets = [grown(Builder(seed, WIDTHS), STEPS, 8, 6).net for seed in range(100)]
    limits = [
        grown(LimitBuilder(seed, WIDTHS[:2]), LIMIT_STEPS, 6, 6).net
        for seed in range(100)
    ]
    kinds = [
        {type(value.op) for value in topological_order(net.outputs)} for net in nets
    ]
    by_gradients = {
        Root,
        Split,
        SteppedMatMul,
        SteppedParameter,
        Hyperparameter,
        ScaledGradient,
    }  # these have random programs of their own
    assert set().union(*kinds) == set(operations(Operation)) - by_gradients
    assert {net.check().verdict for net in nets} == {
        "proved",
        "conjectured",
        "no limit",
    }
    verdicts = [net.check().verdict for net in limits]
    assert verdicts.count("no limit") <= 2
    assert verdicts.count("proved") >= 10
    scores = [
        any(getattr(v.op, "power", 0) == 0.5 for v in topological_order(net.outputs))
        for net in limits
    ]
    assert sum(scores) >= 40


def test_shorter_program_is_the_beginning_of_a_longer_one():
    """So that a failing example shrinks by losing its last steps."""
    short, long = (Builder(5, WIDTHS) for _ in range(2))
    grown(short, STEPS, 4, 6)
    grown(long, STEPS, 8, 6)
    shapes = [
        [(type(v.op), v.shape) for v in builder.vectors] for builder in (short, long)
    ]
    assert shapes[1][: len(shapes[0])] == shapes[0]
    assert len(shapes[1]) > len(shapes[0])


def test_wrong_index_mutation_is_detected():
    """The test above would fail if narrowing took the wrong token."""
    net = ns.Program(ns.weight(ns.Width("n"), 3) @ ns.data(np.eye(3)))
    whole = net.simulate(n=4, draws=2)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(net[0].simulate(n=4, draws=2), whole[:, 1])
