"""At infinite width, every replica has quadrature nodes of its own: their error is a
standard error.
"""

import numpy as np
import pytest

import netsor as ns
from netsor import inf
from tests.internals import NODES, _quadrature_error, nodes

n = ns.Width("n")
X, T = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8]]), np.array([1.0, -1.0])


def moved(rate=0.5):
    """Output after a step of the hidden matrix; E[r tanh(k + 2·rate·r tanh'(k))] at
    infinite width, r and k N(0, 1).
    """
    f = ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    return ns.step(f, (f - 1) ** 2, rate)


def truth(rate=0.5):
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    r, k = np.meshgrid(points, points, indexing="ij")
    value = r * np.tanh(k + 2 * rate * r / np.cosh(k) ** 2)
    return float(weights @ value @ weights / weights.sum() ** 2)


def trained(layers, steps, rate=0.3):
    """A µP network of so many layers with tanh, after full steps of SGD on two
    inputs.
    """
    w = [
        ns.weight(n, 3, name="in"),
        *(ns.weight(n, n, name=f"hidden{k}") for k in range(layers - 2)),
    ]
    r = ns.gaussian(n, name="out")
    g = w[0] @ ns.data(X)
    for hidden in w[1:]:
        g = hidden @ ns.tanh(g)
    f = ns.mean_dot(r, ns.tanh(g))
    found = f, 0.5 * ((f - T) ** 2).sum()
    rates = {name: lambda fan_in, fan_out: rate * fan_out for name in ("in", "out")} | {
        None: rate
    }
    for _ in range(steps):
        found = ns.step(found, found[1], rates, weights=[*w, r])
    return found[0]


def after_five_steps():
    """The outputs of two layers after five steps, by product quadrature over the
    Gaussians of a neuron.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(40)
    *inputs, r = (u.ravel() for u in np.meshgrid(z, z, z))
    weights = (
        np.prod(np.meshgrid(weight, weight, weight), axis=0).ravel() / weight.sum() ** 3
    )
    g = np.linalg.cholesky(X @ X.T / 3) @ inputs
    for _ in range(5):
        h = np.tanh(g)
        e = h @ (weights * r) - T
        g, r = g - 0.3 * X @ X.T @ (e[:, None] * r * (1 - h**2)), r - 0.3 * e @ h
    return np.tanh(g) @ (weights * r)


def test_nodes_are_orthonormal_and_mirrored():
    shifts = np.random.default_rng(0).standard_normal((2, 1, 20))
    first = nodes(np, shifts, first=0)
    rows = np.concatenate([first, nodes(np, shifts[..., :3], first, first=20)], axis=-2)
    assert np.allclose(rows @ np.swapaxes(rows, -1, -2), np.eye(23), atol=1e-12)
    assert np.allclose(rows[..., : NODES // 2], -rows[..., NODES // 2 :])
    assert not np.allclose(rows[0], rows[1])


def test_draws_differ_by_their_nodes_and_their_mean_is_the_truth():
    net = ns.Program(moved())
    found = net.draw(n=inf, draws=64)
    error = found.std(ddof=1) / 8
    assert 1e-7 < error < 1e-3
    assert abs(found.mean() - truth()) < 4.5 * error
    # another rate would be noticed
    assert abs(net.draw(n=inf, draws=64).mean() - truth(0.55)) > 100 * error
    assert np.array_equal(net.draw(n=inf, draws=5), found[:5])


def test_error_of_a_law_covers_and_falls_with_draws():
    net = ns.Program(moved())
    few, many = (net.law(n=inf, draws=256 * sets) for sets in (16, 256))
    assert few.std() == many.std() == 0  # not random: noise of quadrature is no spread
    for law in (few, many):
        value, error = law.with_error.mean()
        assert abs(value - truth()) < 5 * error
    assert 2.5 < few.origin.quadrature_error / many.origin.quadrature_error < 6


def test_errors_cover_as_often_as_standard_errors_do():
    net = ns.Program(moved())
    found = [
        net.law(n=inf, draws=16, seed=seed).with_error.mean() for seed in range(40)
    ]
    z = np.array([(value - truth()) / error for value, error in found])
    # χ² with 40 degrees of freedom leaves this once in 10,000 times
    assert 0.6 < np.sqrt(np.mean(z**2)) < 1.6
    assert abs(z.mean()) < 4 / np.sqrt(40)


def test_two_layers_after_five_steps():
    truth = after_five_steps()
    assert truth == pytest.approx([0.871423, -0.915711], abs=2e-6)
    law = ns.Program(trained(2, 5)).law(n=inf, draws=256 * 64)
    value, error = law.with_error.mean()
    assert (np.abs(value - truth) < 4.5 * error).all()
    assert error.max() < 3e-4


@pytest.mark.slow
def test_three_layers_after_five_steps():
    value, error = (
        ns.Program(trained(3, 5)).law(n=inf, draws=256 * 400).with_error.mean()
    )
    # by populations of nodes, in a program of its own
    other = np.array([0.00008, 0.00009])
    assert (np.abs(value - [0.84104, -0.86442]) < 4.5 * np.hypot(error, other)).all()
    assert error.max() < 1.5e-4


def test_zero_by_symmetry_is_zero_within_its_error():
    r = ns.gaussian(n)
    h = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    f = ns.mean_dot(r, h)
    net = ns.Program(ns.mean_dot(ns.step(h, (f - 1) ** 2, 0.5), r * r))
    found = net.draw(n=inf, draws=64)
    assert abs(found.mean()) < 4.5 * found.std(ddof=1) / 8 + 1e-15
    assert found.std() < 0.01


def test_zero_that_kernels_cannot_resolve_is_rejected():
    x, r = ns.gaussian(n), ns.gaussian(n)
    # exactly 0
    net = ns.Program(
        (ns.mean_dot(x, x), ns.mean_dot(ns.tanh(ns.tanh(x) * ns.tanh(r) + x), r))
    )[1]
    for reading in (net.law, net.draw):
        with pytest.raises(
            ValueError, match="Gaussian expectations are too inexact for this law"
        ):
            reading(n=inf, draws=2)


def test_replicas_with_other_random_numbers_have_nodes_of_their_own():
    x, f = ns.gaussian(n, 2), moved()
    weight = ns.softmax(ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x))[0, 0]
    both = ns.Program((f, weight * f))
    assert ns.Program(f).plan(n=inf).averaged
    assert not both.plan(n=inf).averaged
    found = both.draw(n=inf, draws=200)
    error = found[1].std() / 200**0.5
    assert abs(found[1].mean() - truth() / 2) < 4.5 * error
    assert len(np.unique(found[0])) == 200


def test_covariances_of_many_outputs_are_compared_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(
        _quadrature_error, "COVARIANCE_BYTES", 2 * 8 * 4 * 7
    )  # two rows of four replicas of seven outputs
    a, b = np.random.default_rng(3).standard_normal((2, 4, 7, 3))
    right = np.abs(a @ np.swapaxes(a, 1, 2) - b @ np.swapaxes(b, 1, 2)).max()
    assert _quadrature_error._largest_change(a, b) == pytest.approx(right, rel=1e-12)


def test_error_of_a_constant_takes_one_replica(monkeypatch):
    """A kernel of 1,000 tokens is not computed sixty times to see how far its Gaussian
    expectations are off.
    """
    asked = []
    block = _quadrature_error.sample_block

    def counted(plan, seed, replicas, **backend):
        asked.append(replicas)
        return block(plan, seed, replicas, **backend)

    monkeypatch.setattr(_quadrature_error, "sample_block", counted)
    x = ns.gelu(ns.weight(n, n, batch=3) @ ns.gaussian(n))
    ns.Program(ns.weight(1, n) @ x).law(n=ns.inf)
    assert set(asked) == {1}


def test_square_of_a_zero_is_covered(tmp_path):
    """Errors of nodes make a square positive: 3.7e-6 ± 2.6e-7 alone, and ± 2.8e-9
    beside another output, for 0.
    """
    f = moved()
    square = (f - moved()) ** 2  # of two outputs with one limit
    alone = ns.Program(square).law(n=inf, draws=256 * 64)
    both = ns.Program((f, square)).law(n=inf, draws=256 * 64)
    both.save(tmp_path / "law.npz")
    kept = ns.load(tmp_path / "law.npz")
    found = [
        alone,
        both[1],
        both.marginal([1])[0],
        both.combination([0, 1]),
        both.combination([[0, 1]])[0],
        kept[1],
    ]
    for law in found:
        value, error = law.with_error.mean()
        assert 0 < value < 2 * error < 1e-4
    values, errors = both.with_error.mean()
    assert values[1] < 2 * errors[1]
    only = ns.Program(f).law(n=inf, draws=256 * 64).with_error.mean()
    # the other output does not make it larger
    assert errors[0] == pytest.approx(only.error, rel=0.05)


def test_square_of_a_zero_that_meets_random_scores_is_covered():
    x = ns.gaussian(n, 2)
    weight = ns.softmax(ns.dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x))[0, 0]
    law = ns.Program(weight * (moved() - moved()) ** 2).law(n=inf, draws=200)
    value, error = law.with_error.mean()
    assert 0 < value < 2 * error < 1e-4


def test_bias_that_does_not_show_adds_no_error():
    law = ns.Program(moved()).law(n=inf, draws=256 * 64)
    found = ns.Program(moved()).draw(n=inf, draws=64)
    assert law.with_error.mean().error == pytest.approx(found.std(ddof=1) / 8, rel=0.5)
