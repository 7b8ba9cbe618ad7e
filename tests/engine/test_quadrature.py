"""Draws at infinite width carry the quadrature error of Gaussian expectations, as laws do."""

import warnings

import numpy as np
import pytest

import netsor as ns
from netsor import inf
from netsor.engine import _sampler

n = ns.Width("n")


def moved(rate=0.5):
    """Output after a step of the hidden matrix; E[r tanh(k + 2·rate·r tanh'(k))] at infinite width, r and k N(0, 1)."""
    f = ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    return ns.step(f, (f - 1) ** 2, rate)


def truth(rate=0.5):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    r, k = np.meshgrid(nodes, nodes, indexing="ij")
    value = r * np.tanh(k + 2 * rate * r / np.cosh(k) ** 2)
    return float(weights @ value @ weights / weights.sum() ** 2)


def test_draws_warn_with_the_error_of_the_law():
    net = ns.Program(moved())
    law = net.law(n=inf)
    with pytest.warns(ns.QuadratureWarning, match="quadrature error of 0.00") as caught:
        found = net.draw(n=inf, draws=3)
    (warning,) = caught
    assert warning.message.error == law.origin.quadrature_error > 1e-3
    assert "\n" not in str(warning.message)
    assert warning.filename == __file__
    assert 1e-6 < abs(found[0] / truth() - 1) < warning.message.error  # there is an error, and it is within the bound


def test_draws_are_refused_where_the_law_is():
    x, r = ns.gaussian(n), ns.gaussian(n)
    net = ns.Program((ns.mean_dot(x, x), ns.mean_dot(ns.tanh(ns.tanh(x) * ns.tanh(r) + x), r)))[1]  # exactly 0
    for reading in (net.law, net.draw):
        with pytest.raises(ValueError, match="Gaussian expectations do not tell this law"):
            reading(n=inf, draws=2)


def test_one_output_that_is_not_known_refuses_all():
    r = ns.gaussian(n)
    h = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    f = ns.mean_dot(r, h)
    f1, h1 = ns.step([f, h], (f - 1) ** 2, 0.5)
    net = ns.Program((f1, ns.mean_dot(h1, r * r)))  # the second is exactly 0, by symmetry
    with pytest.raises(ValueError, match="do not tell"):
        net.law(n=inf, draws=50)
    with pytest.raises(ValueError, match="do not tell"):
        net.draw(n=inf, draws=2)
    assert np.isfinite(net.draw(n=64, draws=2)).all()  # finite widths have no such error


def test_draws_without_an_error_to_speak_of_do_not_warn():
    x = ns.gaussian(n, 3, cov=0.5 + 0.5 * np.eye(3))
    deep = ns.Program(ns.mean_dot(ns.relu(x), ns.tanh(x)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deep.draw(n=inf, draws=2)
        ns.Program(moved()).draw(n=32, draws=2)


def test_covariances_of_many_outputs_are_compared_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(_sampler, "BLOCK", 2 * 8 * 4 * 7)  # two rows of four replicas of seven outputs
    a, b = np.random.default_rng(3).standard_normal((2, 4, 7, 3))
    right = np.abs(a @ np.swapaxes(a, 1, 2) - b @ np.swapaxes(b, 1, 2)).max()
    assert _sampler._moved(a, b) == pytest.approx(right, rel=1e-12)


def test_the_error_of_a_constant_takes_one_replica(monkeypatch):
    """A kernel of 1,000 tokens is not computed sixty times to see how far its Gaussian expectations are off."""
    asked = []
    block = _sampler._block

    def counted(plan, seed, replicas):
        asked.append(replicas)
        return block(plan, seed, replicas)

    monkeypatch.setattr(_sampler, "_block", counted)
    x = ns.gelu(ns.weight(n, n, batch=3) @ ns.gaussian(n))
    ns.Program(ns.weight(1, n) @ x).law(n=ns.inf)
    assert set(asked) == {1}
