"""Values without a backward edge: only derivatives see `ns.stop_gradient`; laws, draws
and counts do not change.
"""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from tests.internals import scaled_gradient, without_stops

n = ns.Width("n")


def network(stop, w, x, r):
    """A layer with stops at a matrix, at vectors, at scalars, before and after
    indices.
    """
    y = w @ x
    mixed = 0.1 * y + 0.9 * stop(y)
    weights = stop(ns.softmax(ns.dot(stop(w) @ mixed, y)))
    z = ns.tanh(weights @ mixed) + stop(x)[[1, 0, 2]]
    return ns.dot(r, stop(z)[0] + z[1])


@pytest.fixture(scope="module")
def pair():
    """The same network with and without stops."""
    w, x, r = ns.weight(n, n), ns.gaussian(n, 3), ns.gaussian(n)
    return [
        ns.Program(network(stop, w, x, r))
        for stop in (ns.stop_gradient, lambda value: value)
    ]


def test_draws_and_counts_are_those_without_stops(pair):
    stopped, plain = pair
    assert stopped.plan(n=32).random_numbers == plain.plan(n=32).random_numbers
    assert np.array_equal(stopped.draw(n=32, draws=8), plain.draw(n=32, draws=8))
    assert np.array_equal(stopped.simulate(n=5, draws=3), plain.simulate(n=5, draws=3))


def test_readings_without_derivatives_are_those_without_stops(pair):
    stopped, plain = pair
    assert stopped.latex() == plain.latex()
    assert stopped.check().verdict == plain.check().verdict
    assert "stop_gradient(" in str(stopped)


def test_layer_with_stops_keeps_its_formula():
    layer = ns.nn.attention(ns.stop_gradient(ns.gaussian(n, 4)), heads=2)
    law = ns.Program(layer)[0].law(n=ns.inf)
    assert (
        law.var()
        == ns.Program(ns.nn.attention(ns.gaussian(n, 4), heads=2))[0]
        .law(n=ns.inf)
        .var()
    )


def test_graph_without_stops_stays_itself():
    x = ns.tanh(ns.gaussian(n))
    assert without_stops([x])[0] is x


def test_gradients_pass_by_the_other_path_alone():
    x, r = ns.gaussian(n), ns.gaussian(n)
    g = ns.grad(ns.dot(r, 0.1 * x + 0.9 * ns.stop_gradient(x)), x)
    both = ns.Program((g, r)).simulate(n=4, draws=2)
    assert np.allclose(both[0], 0.1 * both[1])


def test_gradient_of_stopped_value_is_zero():
    x, r = ns.gaussian(n), ns.gaussian(n)
    p = ns.dot(r, ns.stop_gradient(ns.tanh(x)))
    assert not ns.Program(ns.grad(p, x)).simulate(n=4, draws=2).any()


def test_stopped_value_can_be_differentiated_by():
    x, r = ns.gaussian(n), ns.gaussian(n)
    y = ns.stop_gradient(x)
    g, right = ns.Program((ns.grad(ns.dot(r, y * y), y), 2 * r * x)).simulate(
        n=4, draws=2
    )
    assert np.allclose(g, right)


def test_stopped_scalars_are_constants():
    q = ns.normal()
    g = ns.grad(q * ns.stop_gradient(q), q)
    slope, number = ns.Program((g, q)).simulate(draws=3)
    assert np.allclose(slope, number)


def test_stopped_weight_passes_gradients_to_its_vectors():
    w, x, r = ns.weight(n, n), ns.gaussian(n), ns.gaussian(n)
    frozen, plain = ns.dot(r, ns.stop_gradient(w) @ x), ns.dot(r, w @ x)
    norms = ns.Program((ns.grad_norm(frozen + plain, w), ns.grad_norm(plain, w)))
    one, other = norms.simulate(n=4, draws=3)
    assert np.allclose(one, other)
    through = ns.Program((ns.grad(frozen, x), ns.grad(plain, x))).simulate(n=4, draws=3)
    assert np.allclose(*through)
    kernel, other_kernel = ns.Program((ns.ntk(frozen + plain), ns.ntk(plain))).simulate(
        n=4, draws=3
    )
    assert np.allclose(kernel, other_kernel)


def test_stopped_weight_takes_the_steps_of_its_other_uses():
    w, x, r = ns.weight(n, n), ns.gaussian(n), ns.gaussian(n)
    p, frozen = ns.dot(r, w @ x), ns.dot(r, ns.stop_gradient(w) @ x)
    moved = ns.step([p, frozen], p + frozen, lr=0.5)
    alone = ns.step(p, p, lr=0.5)
    ours, theirs, right = ns.Program((*moved, alone)).simulate(n=4, draws=3)
    assert np.allclose(ours, right)
    assert np.allclose(theirs, right)
    exact = ns.Program(tuple(moved)).draw(n=4, draws=5)
    assert np.allclose(*exact)


def test_training_respects_stops():
    """Two steps with a target that is stopped, against the same target as numbers of a
    fixed matrix.
    """
    x, r = ns.gaussian(n), ns.gaussian(n)
    w = ns.weight(n, n, name="w")
    f = ns.mean_dot(r, w @ x)
    stopped = ns.train(f, (f - ns.stop_gradient(2.0 * f)) ** 2, ns.optim.SGD(0.3), 2, w)
    # d/df (f − 2f')² at f' = f is −2f: the loss grows like −f² does
    plain = ns.train(f, -1.0 * f * f, ns.optim.SGD(0.3), 2, w)
    one, two = ns.Program((stopped[-1], plain[-1])).simulate(n=4, draws=3)
    assert np.allclose(one, two)


def test_scaled_gradient_multiplies_the_cotangent():
    x, r = ns.gaussian(n, 2), ns.gaussian(n)
    p = ns.dot(r, scaled_gradient(x, [0.0, 0.5])).sum()
    g, right = ns.Program((ns.grad(p, x), r)).simulate(n=4, draws=2)
    assert np.allclose(g[:, 0], 0.0)
    assert np.allclose(g[:, 1], 0.5 * right)


def test_stop_gradient_rejects_other_arguments():
    with pytest.raises(
        ns.TraceError,
        match=r"stop_gradient: x=3\.0 must be a vector, a scalar or a weight",
    ):
        ns.stop_gradient(3.0)
