"""The literal gradient against PyTorch's autograd on the same arrays, to 1e-10: every operation, every named function.

First derivatives, second ones, and tangent kernels as sums over all entries of all matrices.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import netsor as ns
from netsor import derivatives
from netsor.language import _derivative
from netsor.language._graph import ordered, weights_of

from ..engine.differences import drawn
from ..gradient_cases import CASES, WIDTHS
from ..gradients import NAMED
from .autograd import FUNCTIONS, TORCH, Reading

FIRST = [name for name in CASES if not name.startswith(("a gradient", "a tangent"))]  # the others are derivatives
LINEAR = ("MatMul", "MatMul of a batch", "MatMul of each", "MatMul, members", "Mix, numbers")
REFUSED = dict.fromkeys(LINEAR, "p is not made of wrt") | dict.fromkeys(
    ("Nonlin, several", "Apply, own", "Apply, own of several"), "the derivative of .* is not known"
)


def _slope(reading, p, wrt, **options):
    """What ns.grad gives: √width ∂p/∂x of vectors, ∂p/∂q of scalars; None if p does not depend on it."""
    (found,) = torch.autograd.grad(p, reading.made[wrt], **options)
    return found if found is None or isinstance(wrt, ns.Scalar) else found * found.shape[-1] ** 0.5


def _read(literal, p):
    reading = Reading(literal, [p])
    return reading, reading.made[p]


def assert_near(ours, theirs):
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10 * (np.abs(theirs).max() + 1e-3))


@pytest.mark.parametrize("name", FIRST)
def test_a_gradient_is_that_of_autograd(name):
    p, wrt = CASES[name]()
    g = ns.grad(p, wrt)
    literal = drawn([p, g], WIDTHS)
    assert_near(literal.drawn[g][0], _slope(*_read(literal, p), wrt))


@pytest.mark.parametrize("name", FIRST)
def test_a_second_derivative_is_that_of_autograd(name):
    """Of Σ r·∂p/∂x with random r, by x again."""
    p, wrt = CASES[name]()
    g = ns.grad(p, wrt)
    r = ns.gaussian(wrt.width, wrt.shape) if isinstance(wrt, ns.Vector) else ns.normal(wrt.shape)
    q = _paired(r, g)
    if name in REFUSED:
        with pytest.raises(ns.TraceError, match=REFUSED[name]):
            ns.grad(q, wrt)
        return
    h = ns.grad(q, wrt)
    literal = drawn([p, q, h], WIDTHS)
    reading = Reading(literal, [p, r])
    first = _slope(reading, reading.made[p], wrt, create_graph=True)
    second = (reading.made[r] * first).sum()
    if isinstance(wrt, ns.Vector):
        second = second / first.shape[-1] ** 0.5
    found = _slope(reading, second, wrt, allow_unused=True)
    if found is None:  # p is linear in what it is differentiated by
        assert not literal.drawn[h].any()
    else:
        assert_near(literal.drawn[h][0], found)


def _paired(r, g):
    if isinstance(r, ns.Scalar):
        return (r * g).sum()
    return ns.dot(r.reshape(-1)[:, None], g.reshape(-1)[:, None]).sum()


@pytest.mark.parametrize("kind", ["ntk", "standard"])
@pytest.mark.parametrize("name", FIRST)
def test_a_tangent_kernel_is_that_of_autograd(name, kind):
    p, _ = CASES[name]()
    weights = {w.source: w.drawn for w in weights_of(ordered([p]))}
    if not weights:
        pytest.skip("no matrix")
    kernel = ns.ntk(p, parametrisation=kind)
    literal = drawn([p, kernel], WIDTHS)
    reading = Reading(literal, [p])
    keys = list(reading.normals)
    found = torch.autograd.grad(reading.made[p], [reading.normals[key] for key in keys])
    expected = torch.zeros(())
    for (source, _), slope in zip(keys, found, strict=True):
        weight = weights[source]
        unit = 1.0 if kind == "ntk" else weight.in_width.bind(WIDTHS) / weight.std**2
        expected = expected + unit * (slope**2).sum()
    assert_near(literal.drawn[kernel][0], expected)


NUMPYS = [np.tanh, np.sin, np.cos, np.exp, np.log, np.sqrt, np.square, np.reciprocal, np.absolute]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("which", range(len(NAMED)))
def test_derivatives_of_named_functions(which, order):
    """To 1e-12; far out PyTorch's own of higher orders overflow."""
    at = np.array([-6.3, -2.1, -0.9, -1e-3, 1e-9, 0.4, 0.99, 1.7, 5.2])
    f = NAMED[which](ns.gaussian(3)).op.f
    x = torch.tensor(at, requires_grad=True)
    theirs = FUNCTIONS[derivatives.base(f)](x, *f.parameters)
    for _ in range(order):
        f = derivatives.derivative(f)
        if isinstance(f, float):
            f = ns.Function("constant", lambda u, c=f: c + 0.0 * u, derivative=0.0)
        theirs = torch.autograd.grad(theirs.sum(), x, create_graph=True)[0] if theirs.requires_grad else 0.0 * x
    np.testing.assert_allclose(f(at), theirs.detach().numpy(force=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("f", NUMPYS, ids=lambda f: f.__name__)
def test_derivatives_of_numpys_functions(f):
    z = ns.normal(6)
    p = ns.apply(f, 0.1 + z * z).sum()
    g = ns.grad(p, z)
    literal = drawn([p, g], WIDTHS)
    assert_near(literal.drawn[g][0], _slope(*_read(literal, p), z))


def test_every_rule_is_read_here():
    """Every operation and every function that has a rule is among the cases."""
    found = [value.op for name in FIRST for value in ordered([CASES[name]()[0]])]
    found += [value.op for p, wrt in [CASES["Concat"]()] for value in ordered([ns.grad(p, wrt)])]  # Split
    assert set(_derivative.RULES) <= {type(op) for op in found}
    functions = {derivatives.base(op.f) for op in found if hasattr(op, "f")} | set(NUMPYS)
    keys = {derivatives.base(f) if isinstance(f, ns.Function) else f for f in _derivative.FUNCTIONS}
    assert keys <= functions
    named = {key for key in derivatives.RULES if not getattr(key, "__module__", "").endswith("derivatives")}
    assert named - {derivatives.base(ns.identity(ns.gaussian(3)).op.f)} <= functions
    assert set(TORCH) >= {type(op) for op in found}
