"""Gradients as values of the language: what they are made of, how they print, what is
refused.
"""

import re

import numpy as np
import pytest

import netsor as ns
from tests.internals import MatMul, compose_indices, topological_order

n, d = ns.Width("n"), ns.Width("d")


def _expressions(value):
    return [" ".join(line.split()) for line in str(ns.Program(value)).splitlines()]


def test_gradient_of_a_readout_is_the_readout():
    x, r = ns.gaussian(n), ns.gaussian(n)
    assert compose_indices([ns.grad(ns.dot(r, x), x)]) == [r]


def test_transpose_prints_with_its_units():
    w, x, r = ns.weight(d, n, name="W"), ns.gaussian(n), ns.gaussian(d)
    g = ns.grad(ns.dot(r, ns.tanh(w @ x)), x)
    lines = _expressions(g)
    assert "W matrix d×n, entries N(0, 1/n) " in [line + " " for line in lines]
    assert any("tanh'(g" in line for line in lines)
    assert any("(n/d)^(1/2) W.T x" in line for line in lines)
    text = ns.Program(g).latex()
    assert r"\sqrt{n/d} \, (W)^{\top}" in text
    assert r"\operatorname{tanh'}" in text
    assert text.count("{") == text.count("}")


def test_parts_and_ratios_of_widths_print():
    x = ns.gaussian(n, 2)
    p = ns.dot(ns.gaussian(n), ns.nn.attention(x, 2, d)[0])
    net = ns.Program(
        (
            ns.grad(p, x),
            ns.ntk(p, parametrisation="standard"),
            ns.grad(ns.mean_dot(x, x)[0, 1], x),
        )
    )
    text = str(net)
    for part in ("split(g", "ratio of widths", "(1/n)^(1/2)"):
        assert part in text
    assert r"\text{part }" in net.latex()
    assert r"\sqrt{" in net.latex()


def test_only_what_counts_is_differentiated():
    """One token of the last block asks for one query, and nothing for tokens behind the
    mask.
    """
    x = ns.gaussian(n, 5)
    p = ns.dot(ns.gaussian(n), ns.nn.attention(x, 3, d, mask="causal")[1])
    backward = [
        v.op
        for v in topological_order([ns.grad(p, x)])
        if isinstance(v.op, MatMul) and v.op.weight.transposed
    ]
    # W^O, one query a head, keys and values
    assert sorted(op.x.size for op in backward) == [1, 3, 15, 15]


def test_gradient_by_an_index_is_that_of_its_entries():
    x = ns.gaussian(n, 3)
    p = ns.dot(ns.gaussian(n), ns.tanh(x)).sum()
    whole, part = ns.grad(p, [x, x[[2, 0]]])
    assert part.shape == (2,)
    assert part.op.flat.tolist() == [2, 0]
    assert ns.grad(p, x.broadcast_to((2, 3))).shape == (2, 3)
    assert whole.shape == (3,)


def test_gradient_of_values_that_are_not_reached_is_zero():
    x = ns.gaussian(n, 2)
    y = x + 0.0
    p = ns.dot(ns.gaussian(n), y[0])
    drawn = ns.Program(ns.grad(p, y)).simulate(n=3, draws=2)
    assert not drawn[:, 1].any()
    assert drawn[:, 0].all()


def test_second_derivative_of_relu_is_zero():
    """relu' is constant between its kinks."""
    x, z = ns.gaussian(n, 2), ns.normal(2)
    first = ns.grad(ns.dot(ns.gaussian(n), ns.relu(x)).sum(), x)
    second = ns.grad(ns.dot(ns.gaussian(n), first).sum(), x)
    of_scalars = ns.grad(ns.grad(ns.relu(z).sum() + (z**2).sum(), z).sum(), z)
    vectors, scalars = ns.Program((second, of_scalars)).simulate(n=3, draws=2)
    assert vectors.shape == (2, 2, 3)
    assert not vectors.any()
    np.testing.assert_allclose(scalars, 2.0, rtol=1e-12)


def test_weights_of_a_sum():
    x = ns.gaussian(n, 2)
    p = ns.dot(ns.gaussian(n), ns.tanh(x))
    by = ns.Program(
        (ns.grad(p, x, weights=[2.0, -1.0]), ns.grad(2.0 * p[0] - p[1], x))
    ).simulate(n=3, draws=2)
    np.testing.assert_allclose(*by, rtol=1e-12)


def test_checker_verdicts_on_gradients():
    """Without scores a matrix and its transpose are covered; together with scores they
    are not.
    """
    x, r = ns.gaussian(n, 2), ns.gaussian(n)
    w = ns.weight(n, n)
    p = ns.dot(r, ns.tanh(w @ x))
    kernel = ns.Program(ns.ntk(p)).check()
    assert kernel.verdict == "proved"
    g = ns.grad(p[0], x)
    report = ns.Program(ns.mean_dot(g, g)).check()
    assert (report.verdict, report.theorem) == (
        "proved",
        "Yang 2020, Netsor with transposes: there are no scores",
    )
    both = ns.Program(
        ns.grad(ns.dot(r, ns.nn.attention(ns.tanh(w @ x), 1))[0], x)
    ).check()
    assert both.verdict == "conjectured"
    assert any("transpose of W" in finding for finding in both.reasons)
    kinked = ns.Program(ns.ntk(ns.dot(r, ns.relu(w @ x)))).check()
    assert any("relu' is not pseudo-Lipschitz" in finding for finding in kinked.reasons)


def _own():
    return ns.nonlin(lambda u: u**2, ns.gaussian(n, 2), name="mine")


REFUSED = {
    "a vector": (
        lambda: ns.grad(ns.gaussian(n), ns.gaussian(n)),
        r"p must be a scalar, got .*: use ns.dot",
    ),
    "numbers": (
        lambda: ns.grad(2.0, ns.gaussian(n)),
        r"p=2.0 must be a scalar of the program",
    ),
    "no value": (
        lambda: ns.grad(ns.normal(), 3),
        r"wrt=3 must be a vector or a scalar of the program",
    ),
    "another value": (
        lambda: ns.grad(ns.normal(), ns.gaussian(n)),
        r"p does not depend on wrt=<Vector",
    ),
    "weights": (
        lambda: (lambda z: ns.grad(z, z, np.ones(3)))(ns.normal(2)),
        r"shapes \(3,\) and \(2,\) do not",
    ),
    "an unknown derivative": (
        lambda: (lambda y: ns.grad(ns.dot(y, ns.ones(n)), y.op.vectors[0]))(_own()),
        r"the derivative of mine is unknown: give ns.nonlin\(…, derivative=g\)",
    ),
    "of scalars": (
        lambda: (lambda z: ns.grad(ns.apply(np.sinh, z), z))(ns.normal()),
        r"the derivative of sinh is unknown: give ns.apply",
    ),
    "of whole axes": (
        lambda: (
            lambda z: ns.grad(ns.apply(lambda q: q.max(-1), z, axes=1, name="most"), z)
        )(ns.normal(3)),
        r"the derivative of most is unknown: .* axes=1, derivative=g\)",
    ),
    "of whole axes, not vectorised": (
        lambda: (
            lambda z: ns.grad(
                ns.apply(np.square, z, axes=1, derivative=lambda q, d: d.sum()), z
            )
        )(ns.normal(3)),
        r"square' is not vectorised",
    ),
    "logits": (
        lambda: (lambda x: ns.grad(ns.nn.logits(x, 3), x))(ns.gaussian(n, 2)),
        r"the derivative of root is unknown",
    ),
    "one of two": (
        lambda: ns.nonlin(
            lambda u, v: u + v, ns.gaussian(n), ns.gaussian(n), derivative=np.cos
        ),
        r"derivative=.* must be a tuple of 2 functions, one for each argument",
    ),
    "no function": (
        lambda: ns.apply(np.exp, ns.normal(), derivative="x"),
        r"derivative='x' of exp must be a function",
    ),
    "kernel of a vector": (lambda: ns.ntk(ns.gaussian(n)), r"ntk: p must be a scalar"),
    "parametrisation": (
        lambda: ns.ntk(ns.normal(), parametrisation="mup"),
        r"parametrisation='mup' must be 'ntk' or",
    ),
    "foreign weights": (
        lambda: ns.ntk(ns.normal(), weights=ns.weight(n, n)),
        r"weights=<Weight n×n.* must be weights",
    ),
    "foreign vectors": (
        lambda: ns.ntk(ns.normal(), weights=ns.gaussian(n)),
        r"weights=<Vector.* must be weights, .* of the program",
    ),
    "several": (
        lambda: ns.grad_norm(ns.normal(2), ns.normal()),
        r"p must be one scalar, got shape \(2,\)",
    ),
    "no parameter": (
        lambda: ns.grad_norm(ns.normal(), "W"),
        r"weight='W' must be a weight",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradient_errors(name):
    make, message = REFUSED[name]
    with pytest.raises(ns.TraceError) as caught:
        make()
    assert re.search(message, caught.value.plain)


def test_gradient_that_vanishes_counts_in_scores_and_one_that_grows_is_refused():
    """√n ∂/∂x of |x|²/n is 2 n^(−1/2) x: 0 in the limit, and yet n^(−1/2) ⟨it, x⟩ is 2
    |x|²/n.
    """
    x = ns.gaussian(n)
    gradient = ns.grad(ns.mean_dot(x, x), x)
    assert ns.Program(gradient).law(n=16, draws=100).var() > 0
    assert ns.Program(gradient).law(n=ns.inf).var() == 0
    assert ns.Program(ns.dot(gradient, x)).law(n=ns.inf).mean() == pytest.approx(
        2.0, rel=1e-12
    )
    w = ns.weight(n, n)
    grows = ns.Program(ns.grad_norm(ns.dot(ns.gaussian(n), w @ x), w))
    with pytest.raises(
        ns.ExactError,
        match=r"units of \(n\)\^\(1/2\), which is infinite.*parametrisation=\"ntk\"",
    ):
        grows.law(n=ns.inf)


def test_squared_gradients_of_several_parameters_are_those_of_each():
    w, r = ns.weight(n, n, batch=2, name="W"), ns.gaussian(n)
    x, b = ns.gaussian(n), ns.normal()
    p = ns.dot(r, ns.tanh(w[0] @ (b * (w[1] @ ns.tanh(w[0] @ x)))))
    parameters = [w[1], r, w, b, w[0]]
    each = [ns.grad_norm(p, parameter) for parameter in parameters]
    drawn = ns.Program((*each, *ns.grad_norm(p, parameters))).draw(n=8, draws=5)
    np.testing.assert_allclose(drawn[5:], drawn[:5], rtol=1e-10)
    np.testing.assert_allclose(drawn[2], drawn[0] + drawn[4], rtol=1e-10)


def test_gradients_by_several_parameters_share_a_pass_back():
    calls = []

    def pulled_back(x, d):
        calls.append(len(x))
        return d * np.cos(x)

    v, w = ns.weight(n, n), ns.weight(n, n)
    q = ns.dot(ns.gaussian(n, 3), v @ ns.tanh(w @ ns.gaussian(n)))
    p = ns.apply(np.sin, q, axes=1, derivative=pulled_back).sum()
    net = ns.Program((ns.grad_norm(p, v), ns.grad_norm(p, w)))
    net.draw(n=4, draws=5, progress=False)
    assert sum(count == 5 for count in calls) == 1
