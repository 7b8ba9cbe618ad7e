"""The literal gradient against PyTorch's autograd on the same arrays, to 1e-10: every
operation, every named function.

First derivatives, second ones, and tangent kernels as sums over all entries of all
matrices.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

import netsor as ns
from tests.internals import (
    Gaussian,
    Normal,
    Operation,
    SteppedMatMul,
    SteppedParameter,
    _derivative,
    derivatives,
    topological_order,
    weights_of,
)

from ..engine.differences import drawn
from ..gradient_cases import CASES, WIDTHS
from ..gradients import NAMED, STEPS, GradientBuilder
from ..programs import SEEDS, operations
from ..programs import WIDTHS as PLACES
from .autograd import FUNCTIONS, TORCH, Reading

# the others are derivatives
FIRST = [name for name in CASES if not name.startswith(("a gradient", "a tangent"))]
LINEAR = (
    "MatMul",
    "MatMul of a batch",
    "MatMul of each",
    "MatMul, members",
    "Mix, numbers",
)
REFUSED = dict.fromkeys(LINEAR, "p does not depend on wrt") | dict.fromkeys(
    ("Nonlin, several", "Apply, own", "Apply, own of several"),
    "the derivative of .* is unknown",
)


def _slope(reading, p, wrt, **options):
    """What ns.grad gives: √width ∂p/∂x of vectors, ∂p/∂q of scalars; None if p does not
    depend on it.
    """
    (found,) = torch.autograd.grad(p, reading.made[wrt], **options)
    return (
        found
        if found is None or isinstance(wrt, ns.Scalar)
        else found * found.shape[-1] ** 0.5
    )


def _read(literal, p):
    reading = Reading(literal, [p])
    return reading, reading.made[p]


def assert_near(ours, theirs):
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(
        ours, theirs, rtol=1e-10, atol=1e-10 * (np.abs(theirs).max() + 1e-3)
    )


@pytest.mark.parametrize("name", FIRST)
def test_gradient_of_a_program_matches_autograd(name):
    p, wrt = CASES[name]()
    g = ns.grad(p, wrt)
    literal = drawn([p, g], WIDTHS)
    assert_near(literal.drawn[g][0], _slope(*_read(literal, p), wrt))


@pytest.mark.parametrize("name", FIRST)
def test_second_derivative_of_a_program_matches_autograd(name):
    """Of Σ r·∂p/∂x with random r, by x again."""
    p, wrt = CASES[name]()
    g = ns.grad(p, wrt)
    r = (
        ns.gaussian(wrt.width, wrt.shape)
        if isinstance(wrt, ns.Vector)
        else ns.normal(wrt.shape)
    )
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
def test_tangent_kernel_of_a_program_matches_autograd(name, kind):
    p, _ = CASES[name]()
    weights = {w.source: w.drawn for w in weights_of(topological_order([p]))}
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


def _jacobian(reading, outputs, tensors):
    """∂/∂ of each output by each tensor, 0 where it does not depend on it."""
    rows = [
        torch.autograd.grad(p, tensors, retain_graph=True, allow_unused=True)
        for p in outputs
    ]
    return [
        [
            torch.zeros_like(t) if slope is None else slope
            for slope, t in zip(row, tensors, strict=True)
        ]
        for row in rows
    ]


def _products(rows, others, units):
    """Σ units ⟨∂p_a, ∂q_b⟩."""
    return torch.stack(
        [
            torch.stack(
                [
                    sum(u * (a * b).sum() for u, a, b in zip(units, p, q, strict=True))
                    for q in others
                ]
            )
            for p in rows
        ]
    )


@seed(31)
@settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(number=SEEDS, steps=st.integers(1, 8))
def test_gradients_of_random_programs_match_autograd(number, steps):
    """Gradients by any values of a program, of weighted sums, and tangent kernels of
    chosen parameters.
    """
    builder = GradientBuilder(number, PLACES)
    builder.vectors.append(builder.initial())
    builder.grow(["matmul"])
    for _ in range(steps):
        builder.grow([step for step in STEPS if step not in ("gradient", "kernel")])
    p, rng = builder.loss(), builder.rng
    values = topological_order([p])
    wrt = [v for v in (*builder.vectors, *builder.scalars) if v in values][:3]
    by, flat = rng.choice([1.0, -0.5, 2.0], size=p.shape), p.reshape(-1)[:2]
    found = ns.grad(p, wrt, weights=by)
    weights = weights_of(values)
    assume(weights)
    leaves = [
        v
        for v in values
        if isinstance(v.op, Normal) or (isinstance(v.op, Gaussian) and v.op.factor.size)
    ]
    kernels = [
        ns.ntk(flat),
        ns.ntk(flat, flat[0], weights[:1], "standard"),
        ns.ntk(flat, weights=leaves, parametrisation="standard"),
    ]
    widths = {"n": int(rng.integers(1, 6)), "m": int(rng.integers(1, 6))}
    literal = drawn([p, *found, *kernels], widths)
    reading = Reading(literal, [p])
    total = (reading.made[p] * torch.tensor(by)).sum()
    for x, g in zip(wrt, found, strict=True):
        slope = _slope(reading, total, x, retain_graph=True, allow_unused=True)
        assert_near(
            literal.drawn[g][0],
            torch.zeros_like(reading.made[x]) if slope is None else slope,
        )
    outputs = reading.made[p].reshape(-1)[:2]
    keys = list(reading.normals)
    one = [
        key
        for key in keys
        if key[0] is weights[0].source and key[1] in weights[0].members
    ]
    unit = float(weights[0].drawn.in_width.bind(widths)) / weights[0].std ** 2
    asked = [
        ([reading.normals[key] for key in keys], 1.0),
        ([reading.normals[key] for key in one], unit),
        ([reading.made[v] for v in leaves], 1.0),
    ]
    for k, (kernel, (tensors, scale)) in enumerate(zip(kernels, asked, strict=True)):
        rows = _jacobian(reading, outputs, tensors)
        expected = _products(rows, rows[:1] if k == 1 else rows, [scale] * len(tensors))
        assert_near(literal.drawn[kernel][0], expected.reshape(kernel.shape))


NUMPYS = [
    np.tanh,
    np.sin,
    np.cos,
    np.exp,
    np.log,
    np.sqrt,
    np.square,
    np.reciprocal,
    np.absolute,
]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("which", range(len(NAMED)))
def test_derivatives_of_named_functions_match_autograd(which, order):
    """To 1e-12; far out PyTorch's own of higher orders overflow."""
    at = np.array([-6.3, -2.1, -0.9, -1e-3, 1e-9, 0.4, 0.99, 1.7, 5.2])
    f = NAMED[which](ns.gaussian(3)).op.f
    x = torch.tensor(at, requires_grad=True)
    theirs = FUNCTIONS[derivatives.base(f)](x, *f.parameters)
    for _ in range(order):
        f = derivatives.derivative(f)
        if isinstance(f, float):
            f = ns.Function("constant", lambda u, c=f: c + 0.0 * u, derivative=0.0)
        theirs = (
            torch.autograd.grad(theirs.sum(), x, create_graph=True)[0]
            if theirs.requires_grad
            else 0.0 * x
        )
    np.testing.assert_allclose(
        f(at), theirs.detach().numpy(force=True), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("f", NUMPYS, ids=lambda f: f.__name__)
def test_derivatives_of_numpy_functions_match_autograd(f):
    z = ns.normal(6)
    p = ns.apply(f, 0.1 + z * z).sum()
    g = ns.grad(p, z)
    literal = drawn([p, g], WIDTHS)
    assert_near(literal.drawn[g][0], _slope(*_read(literal, p), z))


def test_every_derivative_rule_occurs_in_a_test():
    """Every operation and every function that has a rule is among the cases, but for
    those of a step (tests/engine).
    """
    found = [
        value.op for name in FIRST for value in topological_order([CASES[name]()[0]])
    ]
    # Split
    found += [
        value.op
        for p, wrt in [CASES["Concat"]()]
        for value in topological_order([ns.grad(p, wrt)])
    ]
    with_rule = set(_derivative.RULES) - {SteppedMatMul, SteppedParameter}
    with_rule |= {
        kind
        for kind in operations(Operation)
        if kind.cotangents is not Operation.cotangents
    }
    assert with_rule <= {type(op) for op in found}
    functions = {derivatives.base(op.f) for op in found if hasattr(op, "f")} | set(
        NUMPYS
    )
    keys = {
        derivatives.base(f) if isinstance(f, ns.Function) else f
        for f in _derivative.FUNCTIONS
    }
    assert keys <= functions
    named = {
        key
        for key in derivatives.RULES
        if not getattr(key, "__module__", "").endswith("derivatives")
    }
    assert named - {derivatives.base(ns.identity(ns.gaussian(3)).op.f)} <= functions
    assert set(TORCH) >= {type(op) for op in found}
