"""Derivatives of functions, and every rule of the derivative table, against differences
of the literal network.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    Operation,
    SteppedParameter,
    _derivative,
    activations,
    derivatives,
)

from ..gradient_cases import CASES, WIDTHS, n, read
from ..programs import operations
from .differences import evaluated, slopes

# Derivatives of functions


@pytest.mark.parametrize(
    ("f", "right"),
    [
        (activations.RELU, [0.0, 0.0, 1.0]),
        (activations.leaky_relu(0.1), [0.1, 0.1, 1.0]),
        (activations.ABS, [-1.0, 0.0, 1.0]),
        (activations.clip(0.5), [0.0, 1.0, 0.0]),
    ],
)
def test_derivatives_at_kinks_equal_those_of_pytorch(f, right):
    """An output of relu is 0 with probability ½, so that a kink at 0 counts for what is
    made of it.
    """
    np.testing.assert_array_equal(
        derivatives.derivative(f)(np.array([-0.5, 0.0, 0.5])), right
    )


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "name",
    [
        "RELU",
        "ABS",
        "ERF",
        "TANH",
        "SIGMOID",
        "GELU",
        "GELU_TANH",
        "SILU",
        "SIN",
        "COS",
        "clip",
        "leaky_relu",
    ],
)
def test_derivatives_of_named_functions_equal_differences(name, order):
    f = getattr(activations, name)
    f = f if isinstance(f, ns.Function) else f(0.7)
    x = np.linspace(-3.0, 3.0, 41) + 0.0137
    for _ in range(order - 1):
        f = derivatives.derivative(f)
        if isinstance(f, float):  # between kinks there is nothing more
            return
    slope, difference = derivatives.derivative(f), (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
    if isinstance(slope, float):
        assert np.abs(difference - slope).max() < 1e-8
        return
    np.testing.assert_allclose(slope(x), difference, atol=2e-8)
    assert slope.breaks == f.breaks
    assert f.parity is None or slope.parity == -f.parity
    if slope.parity is not None:
        np.testing.assert_allclose(slope(-x), slope.parity * slope(x), atol=1e-13)
    assert slope.bounded
    assert np.abs(slope(np.array([-1e8, -1e3, -30.0, 30.0, 1e3, 1e8]))).max() < 1.2
    if slope.smoothed is not None:
        np.testing.assert_allclose(
            slope.smoothed(x, np.zeros(41)), slope(x), atol=1e-12
        )
        m, s, h = np.linspace(-2.0, 2.0, 9), np.full(9, 0.7), 1e-5
        np.testing.assert_allclose(
            slope.smoothed(m, s),
            (f.smoothed(m + h, s) - f.smoothed(m - h, s)) / (2 * h),
            atol=1e-9,
        )


@pytest.mark.parametrize(
    "f",
    [
        np.tanh,
        np.sin,
        np.cos,
        np.exp,
        np.log,
        np.sqrt,
        np.square,
        np.reciprocal,
        np.abs,
    ],
)
def test_derivatives_of_numpy_functions_equal_differences(f):
    x = np.linspace(0.3, 3.0, 20)
    function = ns.Function(f.__name__, f)
    for _ in range(2):
        slope = derivatives.derivative(function)
        if isinstance(slope, float):
            break
        np.testing.assert_allclose(
            slope(x),
            (function(x + 1e-5) - function(x - 1e-5)) / 2e-5,
            rtol=1e-7,
            atol=1e-9,
        )
        function = slope


# Every rule, against differences of the literal network with the same matrices


def _after_a_step():
    """A matrix that was moved, on vectors that the step does not know: it is in the
    past of the gradient.
    """
    w, seen, x = ns.weight(n, n), ns.gaussian(n, 2), ns.gaussian(n, 3)
    loss = (ns.dot(ns.gaussian(n), ns.tanh(w @ seen)) ** 2).sum()
    return read(ns.step(ns.tanh(w @ x), loss, 0.3, weights=[w])), x


def _error(name):
    """How far the gradient is from differences, in random directions."""
    p, wrt = {**CASES, "after a step": _after_a_step}[name]()
    g = ns.grad(p, wrt)
    outputs = [p, g, wrt]
    gradient = evaluated(outputs, WIDTHS)[1]
    directions = np.random.default_rng(1).standard_normal((3, *gradient.shape))
    unit = gradient.shape[-1] ** -0.5 if isinstance(wrt, ns.Vector) else 1.0
    slopes_by_rule = unit * np.sum(
        gradient * directions, axis=tuple(range(1, directions.ndim))
    )
    expected = slopes(outputs, WIDTHS, 1, {wrt: directions})[0]
    return np.max(np.abs(slopes_by_rule - expected)) / (np.abs(expected).max() + 1e-3)


@pytest.mark.parametrize("name", [*CASES, "after a step"])
def test_gradient_rule_equals_finite_differences(name):
    assert _error(name) < 1e-7


# a rule that is a tenth too large, of the wrong sign, forgotten
FACTORS = [1.1, -1.0, 0.0]


def _times(factor, rule):
    """A rule whose results are multiplied."""

    def broken(*arguments):
        for k, cotangent in rule(*arguments):
            yield (
                k,
                {u: factor * c for u, c in cotangent.items()}
                if isinstance(cotangent, dict)
                else factor * cotangent,
            )

    return broken


BREAKS = {
    "MatMul": "MatMul",
    "SteppedMatMul": "after a step",
    "Nonlin": "Nonlin",
    "Add": "Add",
    "Scale": "Scale",
    "Mix": "Mix",
    "Concat": "Concat",
    "Split": "a gradient through parts",
    "Rotate": "Rotate",
    "Dot": "Dot",
    "Apply": "Apply, sums",
    "ScaledGradient": "ScaledGradient",
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", BREAKS)
def test_differences_reject_a_broken_gradient_rule(name, factor, monkeypatch):
    kind = {kind.__name__: kind for kind in operations(Operation)}[name]
    if kind in _derivative.RULES:
        broken = _times(factor, _derivative.RULES[kind])
        monkeypatch.setitem(_derivative.RULES, kind, broken)
    else:
        monkeypatch.setattr(kind, "cotangents", _times(factor, kind.cotangents))
    assert _error(BREAKS[name]) > 1e-4


def test_every_rule_is_broken_once():
    own = {
        kind
        for kind in operations(Operation)
        if kind.cotangents is not Operation.cotangents
    }
    # no gradient passes what a step has moved
    kinds = (own | set(_derivative.RULES)) - {SteppedParameter}
    assert {kind.__name__ for kind in kinds} == set(BREAKS)


BROKEN_FUNCTIONS = {
    "add": "Apply, powers",
    "subtract": "Apply, sums",
    "multiply": "Apply, products",
    "matmul": "Apply, products",
    "reciprocal": "Apply, powers",
    "sum": "Apply, sums",
    "mean": "Apply, sums",
    "_power": "Apply, powers",
    "rsqrt": "rms_norm",
    "row_softmax": "Apply, softmax",
    "decays": "gated delta rule",
    "unit_lower_inverse": "gated delta rule",
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    "key", _derivative.FUNCTIONS, ids=lambda f: getattr(f, "name", None) or f.__name__
)
def test_differences_reject_a_broken_derivative(key, factor, monkeypatch):
    rule = _derivative.FUNCTIONS[key]
    monkeypatch.setitem(
        _derivative.FUNCTIONS, key, lambda *arguments: factor * rule(*arguments)
    )
    assert _error(BROKEN_FUNCTIONS[getattr(key, "name", None) or key.__name__]) > 1e-4
