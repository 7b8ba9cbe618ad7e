"""Properties of random programs, read literally."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netsor as ns

from .programs import programs

few = settings(max_examples=150, deadline=None, derandomize=True)


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
def test_draws_depend_on_the_seed_alone(built, seed):
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
            np.testing.assert_allclose(part, whole[k][(slice(None), *key)], rtol=1e-7, atol=1e-9)


@few
@given(programs())
def test_every_reading_ends(built):
    assert str(built.net).startswith("program")
    assert built.net.check().verdict in ("proved", "conjectured", "no limit")
    body = built.net.latex()
    assert body.count("{") == body.count("}")


def test_a_wrong_index_is_caught():
    """The test above would fail if narrowing took the wrong token."""
    net = ns.Program(ns.weight(ns.Width("n"), 3) @ ns.data(np.eye(3)))
    whole = net.simulate(n=4, draws=2)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(net[0].simulate(n=4, draws=2), whole[:, 1])
