"""Many inputs on a curve at infinite width: their outputs depend on each other but for
parts near rounding.
"""

import numpy as np
import pytest

import netsor as ns

n = ns.Width("n")


def circle(count):
    angle = np.linspace(0, 2 * np.pi, count)
    return np.stack([np.cos(angle), np.sin(angle), 0 * angle + 0.3], axis=1)


def arcsine(gram):
    """E[erf(u) erf(v)], Williams (1997)."""
    size = 1 + 2 * np.diag(gram)
    return 2 / np.pi * np.arcsin(2 * gram / np.sqrt(np.outer(size, size)))


@pytest.mark.parametrize("count", [50, 100, 300])
def test_inputs_on_a_circle_have_the_kernel_of_erf(count):
    x = circle(count)
    law = ns.Program(ns.weight(1, n) @ ns.erf(ns.weight(n, 3) @ ns.data(x))).law(
        n=ns.inf
    )
    np.testing.assert_allclose(law.cov(), arcsine(x @ x.T / 3), atol=1e-11)


def test_other_functions_of_them_too():
    x = circle(60)
    u = ns.weight(n, 3) @ ns.data(x)
    law = ns.Program(ns.weight(1, n) @ (ns.erf(u) + ns.sin(u))).law(n=ns.inf)
    cov = law.cov()
    # the kernel is a function of the angle between two inputs
    np.testing.assert_allclose(np.diag(cov), cov[0, 0], rtol=1e-9)
    np.testing.assert_allclose(np.diag(cov, 7), cov[0, 7], atol=1e-9)


def assert_circles_of_random_size_have_the_kernel_of_erf(count, **where):
    x = circle(count)
    size = ns.apply(lambda t: 1 + 1e-12 * t, ns.normal((), 1.0))
    y = ns.weight(1, n) @ ns.erf(size * (ns.weight(n, 3) @ ns.data(x)))
    law = ns.Program(y).law(n=ns.inf, draws=20, **where)
    np.testing.assert_allclose(law.cov(), arcsine(x @ x.T / 3), atol=1e-8)


@pytest.mark.parametrize("count", [50, 100])
def test_inputs_on_a_circle_of_random_size(count):
    assert_circles_of_random_size_have_the_kernel_of_erf(count)


@pytest.mark.parametrize("f", [ns.erf, ns.relu])
def test_difference_that_counts_as_zero_is_refused_where_it_is_amplified(f):
    (x, v), d = np.random.default_rng(12).standard_normal((2, 3)), 1e-7
    y = ns.weight(1, n) @ f(ns.weight(n, 3) @ ns.data(np.stack([x + d * v, x])))
    with pytest.raises(ValueError, match="too inexact"):
        ns.Program((y[0] - y[1]) * (1 / d)).law(n=ns.inf)


@pytest.mark.parametrize("second", ["v", "u"])
def test_equal_tokens_of_two_nonlinearities_have_no_large_errors(second):
    """What is left out must not turn the directions of tokens that depend on each other
    in the plan with a shift.
    """
    x, y = np.random.default_rng(71).standard_normal((2, 2, 4))
    u, v = (ns.weight(n, 4) @ ns.data(a[[0, 0, 1]]) for a in (x, y))
    tokens = ns.relu(u) + ns.tanh(v if second == "v" else u)
    law = ns.Program(ns.nn.attention(tokens, heads=2)).law(n=ns.inf, draws=500)
    assert law.origin.quadrature_error < 1e-4
