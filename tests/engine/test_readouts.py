"""Readouts by initial vectors: the law of a matrix with one row, and where an initial
vector is used for more.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import make_plan, simplify

from .compare import smallest_p

n = ns.Width("n")
LEVEL = 1e-6  # of the smallest of some 20 p-values


def hidden(count=3):
    x = ns.gaussian(n, count)
    return ns.tanh(ns.weight(n, n) @ x), x


def correlated():
    r = ns.gaussian(n, 2, cov=[[1.0, 0.5], [0.5, 2.0]])
    return ns.dot(r, hidden()[0])


def paired():
    r, y = ns.gaussian(n, 3), hidden()[0]
    return ns.dot(r[:, None], y[:, None])[:, 0, 0], y[0]


def of_two():
    (y, x), r = hidden(), ns.gaussian(n, 4)
    return ns.dot(r[:2], y), ns.dot(x, r[1:3])


def again():
    (y, x), r = hidden(), ns.gaussian(n)
    return ns.dot(r, y), 2.0 * ns.dot(r, x)[0], ns.mean_dot(y, y)[0, 1], ns.dot(y, r)[1]


def in_a_batch():
    return ns.dot(ns.gaussian(n, (2, 2)), hidden()[0])


def of_attention():
    x = ns.gaussian(n, 3)
    y = ns.nn.attention(ns.rms_norm(x), heads=2)
    return ns.dot(ns.gaussian(n), y), y[0]


def returned_too():
    y, r = hidden()[0], ns.gaussian(n)
    return ns.dot(r, y), ns.tanh(r)


def of_each_other():
    y, r, h = hidden()[0], ns.gaussian(n, 2), ns.gaussian(n, 2)
    return ns.dot(r, h), ns.dot(h, y)


CASES = {
    "correlated": correlated,
    "paired": paired,
    "of two": of_two,
    "again": again,
    "in a batch": in_a_batch,
    "of attention": of_attention,
    "returned too": returned_too,
    "of each other": of_each_other,
}


@pytest.mark.parametrize("name", CASES)
def test_readouts_against_the_literal_interpreter(name):
    assert smallest_p(ns.Program(CASES[name]()), draws=4000, n=3) > LEVEL


@pytest.mark.parametrize("name", ["correlated", "paired", "of two", "in a batch"])
def test_readout_with_a_wrong_factor_is_noticed(name, monkeypatch):
    right = simplify._read_out
    monkeypatch.setattr(
        simplify, "_read_out", lambda y, factor, source: right(y, 1.2 * factor, source)
    )
    assert smallest_p(ns.Program(CASES[name]()), draws=4000, n=3) < LEVEL


def test_both_readouts_have_one_law():
    """At infinite width the covariance is known, and nothing is drawn."""
    by_vector = ns.Program(ns.dot(ns.gaussian(n), hidden()[0]))
    by_matrix = ns.Program(ns.weight(1, n) @ hidden()[0])
    for net in (by_vector, by_matrix):
        assert net.check().verdict == "proved"
    limits = [net.law(n=ns.inf) for net in (by_vector, by_matrix)]
    assert [law.origin.random_numbers for law in limits] == [0, 0]
    np.testing.assert_allclose(limits[0].cov(), limits[1].cov(), rtol=1e-12)
    assert {law.origin.status for law in limits} == {"proved"}
    counts = [net.plan(n=256).random_numbers for net in (by_vector, by_matrix)]
    assert counts[0] == counts[1]


ELSEWHERE = {
    "a function of it": lambda r, y: (ns.dot(r, y), ns.tanh(r)),
    "itself": lambda r, y: (ns.dot(r, y), r),
    "its square": lambda r, y: (ns.dot(r, y), ns.mean_dot(r, r)),
    "a function of the readout": lambda r, y: (ns.dot(r, y) ** 2,),
    "a matrix": lambda r, y: (ns.dot(r, y), ns.weight(n, n) @ r),
    "a sum": lambda r, y: (ns.dot(r, y), ns.dot(ns.gaussian(n), r + y)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_initial_vector_with_another_use_stays(name):
    y = hidden()[0]
    outputs = ELSEWHERE[name](ns.gaussian(n), y)
    found, without = (
        make_plan(outputs, {"n": 16}, without=names) for names in ((), ("condition",))
    )
    assert found.random_numbers <= without.random_numbers
    assert smallest_p(ns.Program(outputs), draws=2000, n=3) > LEVEL


def test_functions_of_readouts_are_proved_too():
    y, r = hidden()[0], ns.gaussian(n)
    assert ns.Program((ns.dot(r, y) ** 2).mean()).check().verdict == "proved"
    multiplied = ns.Program(ns.dot(r, y)[0] * y[1]).check()
    assert multiplied.verdict == "conjectured"


def test_checker_names_an_initial_vector():
    y, r = hidden()[0], ns.gaussian(n)
    report = ns.Program((ns.dot(r, y), ns.tanh(r), r)).check()
    findings = " ".join(report.reasons)
    assert "an initial vector that scores use" in findings
    assert "made by a matrix" not in findings


def test_readout_by_a_matrix_has_gradients():
    x, w = ns.gaussian(n, 2), ns.weight(n, n)
    y = ns.tanh(w @ x)
    out, r = ns.weight(1, n), ns.gaussian(n)
    by_matrix = ns.ntk(out @ y)
    by_vector = ns.ntk(ns.dot(r, y), weights=[w, r])
    assert by_matrix.shape == by_vector.shape == (2, 2)
    means = [
        ns.Program(kernel).law(n=ns.inf, draws=2).mean()
        for kernel in (by_matrix, by_vector)
    ]
    np.testing.assert_allclose(means[0], means[1], rtol=1e-9)
    assert ns.grad(out @ y, x).shape == (2,)
    norm = ns.grad_norm((out @ y)[0], out)
    square = ns.mean_dot(y[0], y[0])  # |∂(W y)/∂W|² = |y|²
    made, expected = ns.Program((norm, square)).simulate(n=4, draws=3)
    np.testing.assert_allclose(made, 4 * expected, rtol=1e-12)
