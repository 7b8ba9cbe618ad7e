"""Gaussian expectations of functions of several arguments, against theorems."""

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    BatchedFunction,
    Function,
    activations,
    kernel,
    kernel_of_several,
    moments_of_several,
)

from . import quadrature

GATE = Function("gate", lambda g, u: g / (1 + np.exp(-g)) * u)
PRODUCT = Function("product", lambda u, v: u * v)
RELUS = Function("relus", lambda u, v: np.maximum(u, 0.0) * np.maximum(v, 0.0))


def two_arguments(rng, count, independent):
    """Joint covariances of two pairs (u, u'), (v, v'); if independent, u of u'."""
    first, second = (rng.normal(size=(count, 2, 3)) for _ in range(2))
    joint = np.zeros((count, 2, 2, 2, 2))  # row, row, argument, argument
    if independent:
        joint[..., 0, 0] = first @ np.swapaxes(first, -1, -2) / 3
        joint[..., 1, 1] = second @ np.swapaxes(second, -1, -2) / 3
    else:
        factor = rng.normal(size=(count, 2, 2, 5))
        joint = np.einsum("nirk,njsk->nijrs", factor, factor) / 5
    return joint, np.einsum("niirs->nirs", joint)


def coordinates(covariance):
    """Rows (…, r, r) with this covariance (…, r, r)."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[..., None, :]


def rows_of(joint):
    """Coordinates (…, 2, 2, 4) of two rows with two arguments each, from joint[…, row,
    row, argument, argument].
    """
    whole = np.swapaxes(joint, -3, -2).reshape(*joint.shape[:-4], 4, 4)
    return coordinates(whole).reshape(*joint.shape[:-4], 2, 2, 4)


def test_gate_is_the_product_of_its_factors():
    joint, own = two_arguments(np.random.default_rng(10), 2, independent=True)
    x = BatchedFunction(GATE, np.zeros((1, 2, 2)))
    value, error = kernel_of_several(x, x, rows_of(joint), rows_of(joint))
    silu = BatchedFunction(activations.SILU, np.zeros((1, 2, 1)))
    factor, _ = kernel(
        silu, silu, own[..., :1, :1], joint[..., :1, :1], own[..., :1, :1]
    )
    assert np.all(np.abs(value - factor * joint[..., 1, 1]) <= error)
    assert np.all(error < 1e-3 * np.abs(value).max())


def test_equal_rows_are_evaluated_once(monkeypatch):
    """Of a symmetric kernel half the pairs, and f(u)² by one value of f."""
    monkeypatch.setattr("netsor.engine.plan._expectation_cost.MOST", 9)
    nodes = []

    def counted(u, v):
        nodes.append(u.size)
        return np.tanh(u) * np.maximum(v, -0.3)

    f = Function("counted", counted)
    rows = np.random.default_rng(4).normal(size=(2, 3, 2, 4))
    x, y = (BatchedFunction(f, np.zeros((1, 3, 2))) for _ in range(2))
    value, error = kernel_of_several(x, x, rows, rows)
    asked = sum(nodes)
    nodes.clear()
    apart, error_apart = kernel_of_several(x, y, rows, rows.copy())
    assert asked < 0.7 * sum(nodes)
    np.testing.assert_array_equal(value, np.swapaxes(value, -1, -2))
    assert np.all(np.abs(value - apart) <= error + error_apart)


def test_heavy_tails_by_wick():
    joint, own = two_arguments(np.random.default_rng(11), 2, independent=False)
    x = BatchedFunction(PRODUCT, np.zeros((1, 2, 2)))
    value, error = kernel_of_several(x, x, rows_of(joint), rows_of(joint))
    own_part = own[:, :, 0, 1]
    true = own_part[:, :, None] * own_part[:, None, :]
    true = (
        true + joint[..., 0, 0] * joint[..., 1, 1] + joint[..., 0, 1] * joint[..., 1, 0]
    )
    assert np.all(np.abs(value - true) <= error)
    assert np.all(error < 1e-9)


@pytest.mark.parametrize("log_points", [9, pytest.param(11, marks=pytest.mark.slow)])
def test_errors_of_several_arguments_cover(log_points, monkeypatch):
    """Kinked, with a known answer: at 5 standard errors (t, 15 degrees) three of 128
    miss with probability 2e-6.
    """
    monkeypatch.setattr("netsor.engine.plan._expectation_cost.FEWEST", log_points)
    monkeypatch.setattr("netsor.engine.plan._expectation_cost.MOST", log_points)
    joint, own = two_arguments(np.random.default_rng(12), 64, independent=True)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])  # so that no kink lies along an axis
    turned = Function(
        "turned", lambda u, v: RELUS(0.8 * u - 0.6 * v, 0.6 * u + 0.8 * v)
    )
    x = BatchedFunction(turned, np.zeros((1, 2, 2)))
    turned_rows = turn @ rows_of(joint)
    value, error = kernel_of_several(x, x, turned_rows, turned_rows)
    relu = BatchedFunction(activations.RELU, np.zeros((1, 2, 1)))
    true = 1.0
    for k in (0, 1):
        part = own[..., k : k + 1, k : k + 1]
        true = (
            true * kernel(relu, relu, part, joint[..., k : k + 1, k : k + 1], part)[0]
        )
    missed = np.abs(value - true) > error
    assert missed[:, 0, 1].sum() + missed[:, 0, 0].sum() <= 2
    assert np.median(error / true) < (0.2 if log_points == 9 else 0.1)


def test_moments_of_several_arguments():
    covariance = np.array([[[1.0, 0.4], [0.4, 0.5]], [[1.0, 1.0], [1.0, 1.0]]])
    mean, slope, error = moments_of_several(
        BatchedFunction(PRODUCT, np.array([[0.3, -0.2]])), coordinates(covariance)
    )
    np.testing.assert_allclose(mean, covariance[:, 0, 1] + 0.3 * -0.2, atol=1e-10)
    np.testing.assert_allclose(slope[0], [-0.2, 0.3], atol=1e-9)
    # of rank one, the coefficients are those of least norm
    np.testing.assert_allclose(slope[1], [0.05, 0.05], atol=1e-9)
    assert error.max() < 1e-9
    third = Function("third", lambda u, v, w: np.tanh(u) + v * w**2)
    mean, slope, error = moments_of_several(
        BatchedFunction(third, np.zeros((1, 3))), np.eye(3)[None]
    )
    assert abs(mean[0]) <= error[0]
    np.testing.assert_allclose(
        slope[0],
        [quadrature.mean(lambda u: 1 - np.tanh(u) ** 2, 0, 1), 1.0, 0.0],
        atol=1e-5,
    )


@pytest.mark.parametrize("arguments", [4, 5, 8])
def test_moments_of_many_arguments(arguments):
    """One expectation of four arguments or more was 0 ± 0: a batch of its values had no
    rows.
    """
    several = Function("several", lambda *u: 1.5 + sum(u) + np.tanh(u[0]) * u[1])
    mean, slope, error = moments_of_several(
        BatchedFunction(several, np.zeros((1, arguments))), np.eye(arguments)[None]
    )
    assert abs(mean[0] - 1.5) <= error[0]
    np.testing.assert_allclose(slope[0], 1.0, atol=error[0])
    assert error[0] < 1e-2


def test_gradient_through_centred_residual_equals_quadrature():
    """d/dx of tanh(x + relu(x) − mean) along r: E[tanh'(u) (1 + 1(x > 0))]."""
    n = ns.Width("n")
    x, r, one = ns.gaussian(n), ns.gaussian(n), ns.ones(n)
    c = ns.relu(x)
    g = ns.grad(ns.dot(r, ns.tanh(x + c - ns.mean_dot(c, one) * one)), x)
    value, error = ns.Program(ns.mean_dot(g, r)).law(n=ns.inf).with_error.mean()
    mean = (2 * np.pi) ** -0.5
    below = quadrature.mean(
        lambda z: (z <= 0) / np.cosh(z - mean) ** 2, 0, 1, breaks=[0.0]
    )
    above = quadrature.mean(
        lambda z: (z > 0) / np.cosh(2 * z - mean) ** 2, 0, 1, breaks=[0.0]
    )
    assert abs(value - below - 2 * above) <= error
    assert error < 1e-3


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_errors_do_not_depend_on_the_scale_of_arguments(scale):
    """E[(u + 1(u > v))²] = 3/2 + 1/√π, of arguments so large or small: its error was
    2.8e9, or too small.
    """
    n = ns.Width("n")
    u = scale * ns.gaussian(n, 2)
    law = ns.Program(
        ns.weight(n, n)
        @ (ns.nonlin(lambda x, y: (x > y) * 1.0, u[0], u[1]) + u[0] / scale)
    ).law(n=ns.inf)
    value, error = law.with_error.var()
    assert abs(value - 1.5 - np.pi**-0.5) <= error
    assert 1e-5 < error < 2e-3
