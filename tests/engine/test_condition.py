"""Scores that are outputs are Gaussian given one factor: against the literal
interpreter, and where that is not so.
"""

from functools import cache

import numpy as np
import pytest

import netsor as ns

from .compare import conditional, smallest_of
from .test_coordinates import LEVEL, drawn, literal, smallest_p

n, d = ns.Width("n"), ns.Width("d")
DRAWS = 10_000


def all_scores():
    x = ns.tanh(ns.weight(n, n, batch=2) @ ns.gaussian(n))
    q, k = (ns.weight(d, n, batch=2) @ x for _ in range(2))
    return ns.dot(q, k)


def data_and_query():
    x = ns.gaussian(n, 2)
    q, k = (ns.weight(n, n) @ x for _ in range(2))
    p = ns.dot(q, k)
    return p[0], q[0], p[1, 0]


def each():
    x = ns.gaussian(n, (2, 3))
    return ns.dot(
        ns.weight(n, n, batch=2).each(x), ns.weight(n, n, batch=2).each(2 * x)
    )


def of_data():
    x = ns.data(np.array([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]))
    return ns.dot(x, ns.weight(3, 3) @ x)


def repeated():
    x = ns.gaussian(n, 2)[[0, 1, 0]]
    return ns.dot(ns.weight(n, n, batch=2)[[0, 0]] @ x, ns.weight(n, n, batch=2) @ x)


def means():
    x = ns.gaussian(n, 2)
    return ns.mean_dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)


GAUSSIAN = {
    "all": all_scores,
    "one": lambda: all_scores()[0, 0, 0],
    "row": lambda: all_scores()[1, 0],
    "column": lambda: all_scores()[1, :, 1],
    "each": each,
    "of data": of_data,
    "repeated": repeated,
    "means": means,
}


def shared():
    x, w = ns.gaussian(n, 2), ns.weight(n, n)
    return ns.dot(w @ x, w @ x)


def used_again():
    x = ns.gaussian(n, 2)
    w = ns.weight(n, n)
    k = ns.weight(n, n) @ x
    q = w @ x
    return ns.dot(q, k)[0], k[1], w @ q[0]


def through_softmax():
    p = all_scores()
    return ns.softmax(p), p


DRAWN = {
    "shared matrix": shared,
    "factors used again": used_again,
    "scores used again": through_softmax,
}


@cache
def found(make):
    net = ns.Program(make())
    bound = {name: {"n": 5, "d": 3}[name] for name in net.widths}
    return (
        net,
        bound,
        conditional(net.outputs, bound, DRAWS, 9, progress=False, picked=[0, 2]),
    )


@pytest.mark.parametrize("name", [*GAUSSIAN, *DRAWN, "query"])
def test_scores_have_the_law_of_the_literal_interpreter(name):
    make = {**GAUSSIAN, **DRAWN, "query": data_and_query}[name]
    net, bound, law = found(make)
    assert smallest_p(drawn(law), literal(net, bound, [0, 2])) > LEVEL


def test_law_of_data_that_is_too_wide_is_seen():
    """Its plan is constant: all draws come from the only replica, and a tenth more of
    spread fails.
    """
    net, bound, law = found(of_data)
    assert len(law.cov) == 1
    right, drawn_literally = drawn(law), literal(net, bound, [0, 2])
    assert right.shape == drawn_literally.shape
    assert smallest_p(1.1 * right, drawn_literally) < LEVEL


@pytest.mark.parametrize("compare", [smallest_p, smallest_of])
def test_sample_of_one_draw_is_refused(compare):
    """The standard error of one draw, from that draw alone, would be its size."""
    many = np.random.default_rng(0).standard_normal((DRAWS, 2))
    for samples in ((many[:1], many), (many, many[:1])):
        with pytest.raises(
            AssertionError, match="1 draws are too few for a test of a law"
        ):
            compare(*samples)


def test_draws_of_replicas_do_not_depend_on_signs_of_eigenvectors(monkeypatch):
    _, _, law = found(all_scores)
    before = drawn(law)
    decompose = np.linalg.eigh

    def turned(cov):
        values, vectors = decompose(cov)
        return values, vectors * np.where(np.arange(values.shape[-1]) % 2, -1.0, 1.0)

    monkeypatch.setattr(np.linalg, "eigh", turned)
    np.testing.assert_allclose(drawn(law), before, atol=1e-7 * np.abs(before).max())


@pytest.mark.parametrize("name", GAUSSIAN)
def test_no_kernel_is_needed(name):
    net, bound, law = found(GAUSSIAN[name])
    assert (np.diagonal(law.cov, axis1=1, axis2=2) > 0).all()
    without = conditional(net.outputs, bound, 10, progress=False, without=["condition"])
    assert law.random_numbers < without.random_numbers
    assert not without.cov.any()


@pytest.mark.parametrize("name", DRAWN)
def test_score_factor_used_elsewhere_is_drawn(name):
    _, _, law = found(DRAWN[name])
    assert not law.cov[:, 0, 0].any()


def test_score_at_infinite_width_is_gaussian():
    one = ns.Program(all_scores()[0, 0, 0]).law(n=ns.inf, d=ns.inf)
    assert one.replicas == 1
    several = ns.Program(all_scores()[0]).law(n=ns.inf, d=ns.inf)
    kernel = (
        ns.Program(ns.weight(1, n) @ ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
        .law(n=ns.inf)
        .var()
    )
    np.testing.assert_allclose(several.cov(), kernel**2 * np.eye(4), atol=1e-9)


def test_given_its_query_it_has_chi_squared_variance():
    """At n = ∞ and head dimension d: v = K² χ²_d/d, of excess kurtosis 3 · 2/d."""
    law = ns.Program(all_scores()[0, 0, 0]).law(n=ns.inf, d=16, draws=200_000)
    value, error = law.with_error.kurtosis()
    assert abs(value - 6 / 16) < 4.5 * error
    assert law.random_numbers == 1


def test_score_of_zero_is_an_atom():
    law = ns.Program(ns.dot(0 * ns.gaussian(n), ns.weight(n, n) @ ns.gaussian(n))).law(
        n=4, draws=10
    )
    ((at, mass),) = law.atoms
    assert (at, mass.value) == (0, pytest.approx(1))
