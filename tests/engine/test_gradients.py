"""Gradients: every rule against differences of the literal network, exact against literal, limits."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from scipy import stats

import netsor as ns
from netsor import activations, derivatives
from netsor.engine.lower import make_plan
from netsor.language import _derivative
from netsor.language._graph import ordered, weights_of
from netsor.language._weight import Weight

from ..gradients import BENT, NAMED, _bent, _unit, _unit_back, gradients, limit_gradients
from .compare import exact_draws, smallest_p
from .differences import drawn, evaluated, slopes

n, d = ns.Width("n"), ns.Width("d")
WIDTHS = {"n": 4, "d": 6}
LEVEL = 1e-8  # of the smallest of some 20 p-values


# Derivatives of functions


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["RELU", "ABS", "ERF", "TANH", "SIGMOID", "GELU", "GELU_TANH", "SILU", "SIN", "COS", "clip", "leaky_relu"]
)
def test_derivatives_of_named_functions(name, order):
    f = getattr(activations, name)
    f = f if isinstance(f, ns.Function) else f(0.7)
    x = np.linspace(-3.0, 3.0, 41) + 0.0137
    for _ in range(order - 1):
        f = derivatives.derivative(f)
        if isinstance(f, float):  # between kinks there is nothing more
            return
    made, difference = derivatives.derivative(f), (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
    if isinstance(made, float):
        assert np.abs(difference - made).max() < 1e-8
        return
    np.testing.assert_allclose(made(x), difference, atol=2e-8)
    if made.parity is not None:
        np.testing.assert_allclose(made(-x), made.parity * made(x), atol=1e-13)
    if made.bounded:
        assert np.abs(made(np.array([-30.0, 30.0]))).max() < 1.2
    if made.smoothed is not None:
        m, s, h = np.linspace(-2.0, 2.0, 9), np.full(9, 0.7), 1e-5
        np.testing.assert_allclose(
            made.smoothed(m, s), (f.smoothed(m + h, s) - f.smoothed(m - h, s)) / (2 * h), atol=1e-9
        )


@pytest.mark.parametrize("f", [np.tanh, np.sin, np.cos, np.exp, np.log, np.sqrt, np.square, np.reciprocal, np.abs])
def test_derivatives_of_numpys_functions(f):
    x = np.linspace(0.3, 3.0, 20)
    function = ns.Function(f.__name__, f)
    for _ in range(2):
        made = derivatives.derivative(function)
        if isinstance(made, float):
            break
        np.testing.assert_allclose(made(x), (function(x + 1e-5) - function(x - 1e-5)) / 2e-5, rtol=1e-7, atol=1e-9)
        function = made


# Every rule, against differences of the literal network with the same matrices


def _x(count=3):
    return ns.gaussian(n, count)


def _read(y):
    """Σ of a readout of all vectors."""
    return ns.dot(ns.gaussian(y.width), y).sum()


def _case(make):
    """p, and what it is differentiated by."""

    def made():
        x = _x()
        return make(x), x

    return made


def _gated(x):
    return ns.silu(ns.weight(d, n) @ x) * (ns.weight(d, n) @ x)


def _concatenated(x):
    return ns.tanh(ns.weight(d, 3 * n) @ ns.concat(ns.weight(n, n, 3) @ x, axis=0))


def _several(x):
    return ns.nonlin(_bent, x, ns.weight(n, n) @ x, ns.mean_dot(x, x).sum(0), derivative=BENT)


def _normal():
    z = ns.normal((3, 3), std=0.5)
    x = _x()
    return _read(ns.softmax(ns.dot(x, x) + z) @ x), z


def _inside():
    """With respect to a vector in the midst of the program, of which an index stands for its entries."""
    h = ns.weight(d, n, 2) @ _x()
    return _read(ns.tanh(h)[1]) + _read(h[0, 2] * h[1, 0]), h


def _score():
    x = _x()
    p = ns.dot(ns.weight(d, n) @ x, ns.weight(d, n) @ x)
    return _read(ns.softmax(p, "causal") @ x) + p[0, 1], p


CASES = {
    "MatMul": _case(lambda x: _read(ns.weight(d, n) @ x)),
    "MatMul of a batch": _case(lambda x: _read(ns.weight(d, n, 2) @ x)),
    "MatMul of each": _case(lambda x: _read(ns.weight(d, n, 3).each(x))),
    "MatMul, transposed": _case(lambda x: (lambda w: _read(w.T @ ns.tanh(w @ x)))(ns.weight(d, n))),
    "MatMul, members": _case(lambda x: _read(ns.weight(d, n, 2)[[0, 0, 1]] @ x[1])),
    "Nonlin": _case(lambda x: sum(_read(f(x)) for f in NAMED)),
    "Nonlin, a gate": _case(lambda x: _read(_gated(x))),
    "Nonlin, several": _case(lambda x: _read(_several(x))),
    "Add": _case(lambda x: _read(x + ns.tanh(x[0]) - 0.3)),
    "Scale": _case(lambda x: _read(ns.mean_dot(x, x)[0] * x)),
    "Mix": _case(lambda x: _read(ns.dot(x, x[:2]).transpose() @ x)),
    "Mix, numbers": _case(lambda x: _read(np.arange(6.0).reshape(2, 3) @ x)),
    "Concat": _case(lambda x: _read(_concatenated(x))),
    "Take": _case(lambda x: _read(ns.tanh(x[[0, 0, 2]])) + _read(x.transpose().broadcast_to((2, 3)))),
    "Join": _case(lambda x: _read(ns.tanh(ns.join([x[1:], 2 * x])[[0, 4, 4]]))),
    "Rotate": _case(lambda x: ns.dot(ns.rotary(ns.weight(d, n) @ x, fraction=1.0), ns.weight(d, n) @ x)[1, 0]),
    "Dot": _case(lambda x: ns.dot(x, ns.tanh(x)).sum()),
    "Dot, means": _case(lambda x: (ns.mean_dot(x, x) * ns.mean_dot(ns.weight(d, n) @ x, ns.weight(d, n) @ x)).sum()),
    "Apply, sums": _case(lambda x: (ns.dot(x, x).sum(0) - 2.0 * ns.mean_dot(x, x).mean(1)).mean()),
    "Apply, products": _case(lambda x: (lambda p: (p @ p.transpose() * p - p).sum())(ns.dot(x, x))),
    "Apply, powers": _case(lambda x: (ns.dot(x, x) ** 3).sum() / (1.0 + ns.mean_dot(x, x)[0, 0] ** 0.5)),
    "Apply, named": _case(lambda x: sum(f(ns.dot(x, x)).sum() for f in NAMED)),
    "Apply, softmax": _case(lambda x: (ns.softmax(ns.dot(x, x)) * np.arange(3.0)).sum()),
    "Apply, masked": _case(lambda x: (ns.softmax(ns.dot(x, x), "causal") * np.arange(3.0)).sum()),
    "Apply, own": _case(lambda x: ns.apply(_unit, ns.dot(x, x), axes=1, derivative=_unit_back)[1, 2]),
    "Apply, a loss": _case(lambda x: -ns.apply(np.log, ns.softmax(ns.dot(x, x))[[0, 1], [1, 2]]).mean()),
    "rms_norm": _case(lambda x: _read(ns.rms_norm(x, 0.1))),
    "rms_norm, eps dominates": _case(lambda x: _read(ns.rms_norm(x, 1e3))),
    "layer_norm": _case(lambda x: _read(ns.layer_norm(x, gain=1.5))),
    "attention": _case(lambda x: _read(ns.nn.attention(ns.layer_norm(x), 2, d, "causal")[1])),
    "grouped, rotary, QK-norm": _case(
        lambda x: _read(ns.nn.attention(x, 2, d, groups=1, rotary=ns.nn.Rotary(10.0), qk_norm=ns.rms_norm, softcap=2.0))
    ),
    "one token": _case(lambda x: _read(ns.nn.attention(x[:1], 1, d))),
    "shared": _case(lambda x: (lambda act: _read(act(act(x))))(ns.nn.shared(lambda u: u + ns.nn.mlp(u, d)))),
    "a gradient": _case(lambda x: _read(ns.grad(_read(ns.nn.attention(ns.rms_norm(x), 2, d)), x)[0])),
    "a gradient through parts": _case(lambda x: _read(ns.grad(_read(_concatenated(x)), x))),
    "a gradient's square": _case(
        lambda x: (lambda g: ns.mean_dot(g, g)[0, 1])(ns.grad(_read(ns.nn.mlp(x, d, activation=ns.gelu)), x))
    ),
    "a tangent kernel": _case(lambda x: ns.ntk(_read(ns.nn.mlp(x[:2], d, activation=ns.tanh)))),
    "random scalars": _normal,
    "inside": _inside,
    "scores": _score,
}


def _error(name):
    """How far the gradient is from differences, in random directions."""
    p, wrt = CASES[name]()
    g = ns.grad(p, wrt)
    outputs = [p, g, wrt]
    found = evaluated(outputs, WIDTHS)[1]
    ways = np.random.default_rng(1).standard_normal((3, *found.shape))
    unit = found.shape[-1] ** -0.5 if isinstance(wrt, ns.Vector) else 1.0
    made = unit * np.sum(found * ways, axis=tuple(range(1, ways.ndim)))
    expected = slopes(outputs, WIDTHS, 1, {wrt: ways})[0]
    return np.max(np.abs(made - expected)) / (np.abs(expected).max() + 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_against_differences(name):
    assert _error(name) < 1e-7


def _larger(rule):
    """A rule whose results are a tenth larger."""

    def broken(*arguments):
        for k, made in rule(*arguments):
            yield k, {u: 1.1 * c for u, c in made.items()} if isinstance(made, dict) else 1.1 * made

    return broken


BREAKS = {
    "MatMul": "MatMul",
    "Nonlin": "Nonlin",
    "Add": "Add",
    "Scale": "Scale",
    "Mix": "Mix",
    "Concat": "Concat",
    "Split": "a gradient through parts",
    "Rotate": "Rotate",
    "Dot": "Dot",
    "Apply": "Apply, sums",
}


@pytest.mark.parametrize("rule", _derivative.RULES, ids=lambda kind: kind.__name__)
def test_a_broken_rule_is_caught(rule, monkeypatch):
    monkeypatch.setitem(_derivative.RULES, rule, _larger(_derivative.RULES[rule]))
    assert _error(BREAKS[rule.__name__]) > 1e-4


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
}


@pytest.mark.parametrize("key", _derivative.FUNCTIONS, ids=lambda f: getattr(f, "name", None) or f.__name__)
def test_a_broken_function_is_caught(key, monkeypatch):
    rule = _derivative.FUNCTIONS[key]
    monkeypatch.setitem(_derivative.FUNCTIONS, key, lambda *arguments: 1.1 * rule(*arguments))
    assert _error(BROKEN_FUNCTIONS[getattr(key, "name", None) or key.__name__]) > 1e-4


# Tangent kernels, against all derivatives by differences


def _jacobian(outputs, count, weight):
    """∂/∂N of the first outputs, for the N(0, 1) variables behind all matrices of a weight: (outputs, variables)."""
    literal, columns = drawn(outputs, WIDTHS), []
    for member in range(weight.count):
        shape = literal.matrices[weight.source, member].shape[1:]
        ways = np.eye(np.prod(shape)).reshape(-1, *shape)
        columns.append(slopes(outputs, WIDTHS, count, {(weight.source, member): ways}))
    return np.concatenate(columns, axis=1)


def _tied(x):
    w = ns.weight(d, n, std=1.3)
    return w.T @ ns.tanh(w @ x)


def _batch(x):
    u = ns.weight(n, n, 2, std=0.7)
    return u[1] @ ns.tanh(u[0] @ x) + u.each(x).sum(0) + u[[0, 0, 1]].each(x[[0, 1, 1]])[1]


KERNELS = {
    "attention": lambda x: ns.nn.attention(x, 2, d, groups=1),
    "a matrix and its transpose": _tied,
    "batches and members": _batch,
    "a shared layer": lambda x: (lambda act: act(act(x)))(ns.nn.shared(lambda u: ns.nn.mlp(u, d, activation=ns.erf))),
    "one output": lambda x: ns.rms_norm(ns.weight(n, n, std=0.5) @ x[0]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_tangent_kernels_are_sums_over_all_parameters(name):
    x = ns.gaussian(n, 2)
    p = ns.dot(ns.gaussian(n), KERNELS[name](x))
    kernels = [ns.ntk(p, parametrisation=kind) for kind in ("ntk", "standard")]
    entries = [p.reshape(-1)[k] for k in range(p.size)] if p.shape else [p]
    outputs = [*entries, *kernels]
    expected: list = [0.0, 0.0]
    for weight in {w.source: w.drawn for w in weights_of(ordered([p]))}.values():
        jacobian = _jacobian(outputs, p.size, weight)
        for k, unit in enumerate((1.0, weight.in_width.bind(WIDTHS) / weight.std**2)):
            expected[k] = expected[k] + unit * jacobian @ jacobian.T
    for kernel, value in zip(evaluated(outputs, WIDTHS)[-2:], expected, strict=True):
        assert kernel.shape == p.shape + p.shape
        np.testing.assert_allclose(kernel.reshape(value.shape), value, rtol=1e-7, atol=1e-9)


def test_other_parameters():
    """Biases, random scalars, and an embedding that ids share: with respect to them, or the normals behind them."""
    b, z = ns.gaussian(n, cov=0.25), ns.normal((2, 2), std=0.3)
    e = ns.gaussian(n, 2, cov=np.array([[1.0, 0.4], [0.4, 2.0]]))
    x = e[[0, 1, 1]] + b
    p = ns.dot(ns.gaussian(n), ns.softmax(ns.dot(x[:2], x[:2]) + z) @ ns.tanh(x[1:]))
    asked = {"b": b, "z": z, "e": e}
    outputs = [p[0], p[1], b, z, e]
    for kind in ("ntk", "standard"):
        outputs += [ns.ntk(p, weights=list(asked.values()), parametrisation=kind)]
    expected = {"ntk": np.zeros((2, 2)), "standard": np.zeros((2, 2))}
    factor = e.op.factor
    for name, leaf in asked.items():
        shape = (*leaf.shape, 4) if isinstance(leaf, ns.Vector) else leaf.shape
        ways = np.eye(np.prod(shape)).reshape(-1, *shape)
        jacobian = slopes(outputs, WIDTHS, 2, {leaf: ways})
        expected["standard"] += jacobian @ jacobian.T
        if name == "e":
            jacobian = np.einsum("oia,ik->oka", jacobian.reshape(2, 2, 4), factor).reshape(2, -1)
        scale = {"b": 0.25, "z": 0.09, "e": 1.0}[name]
        expected["ntk"] += scale * jacobian @ jacobian.T
    found = evaluated(outputs, WIDTHS)[-2:]
    for kind, kernel in zip(("ntk", "standard"), found, strict=True):
        np.testing.assert_allclose(kernel, expected[kind], rtol=1e-7)


def test_a_kernel_between_two_outputs_is_a_block_of_the_whole():
    x = ns.gaussian(n, 3)
    p = ns.dot(ns.gaussian(n), ns.nn.attention(x, 2, d))
    whole, part = ns.ntk(p), ns.ntk(p[:2], p[2])
    norm = ns.grad_norm(p[1], weights_of(ordered([p]))[0], "ntk")
    one = ns.ntk(p, weights=weights_of(ordered([p]))[0])
    a, b, c, e = evaluated([whole, part, norm, one], WIDTHS)
    np.testing.assert_allclose(b, a[:2, 2], rtol=1e-12)
    np.testing.assert_allclose(c, e[1, 1], rtol=1e-12)


# The exact engine


@seed(20)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(built=gradients())
def test_exact_against_literal(built):
    assert smallest_p(built.net, draws=600, **built.widths) > LEVEL


@pytest.mark.slow
@seed(21)
@settings(max_examples=3000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(built=gradients(steps=8))
def test_exact_against_literal_at_length(built):
    assert smallest_p(built.net, **built.widths) > LEVEL


def blocks(count=2, heads=1, norm=lambda v: v, tokens=2, mask=None):
    """Attention with residuals: output, tangent kernel, squares of gradients, products of gradients and inputs."""
    x, y = (ns.gaussian(n, tokens),) * 2
    for _ in range(count):
        y = y + ns.nn.attention(norm(y), heads, mask=mask)
    p = ns.dot(ns.gaussian(n), y[-1])
    g = ns.grad(p, x)
    own = [ns.dot(g[i], x[i]) for i in range(tokens)]
    return ns.Program((p, ns.ntk(p), *(ns.mean_dot(g[i], g[i]) for i in range(tokens)), *own))


def _ranks(draws):
    ranks = np.corrcoef(stats.rankdata(draws, axis=0), rowvar=False)
    return np.arctanh(ranks[np.triu_indices(draws.shape[1], 1)] * (1 - 1e-12))


def disagreement(net, draws, width=2000):
    """The smallest p-value, of marginals and of rank correlations, between infinite width and a large one."""
    limit, wide = exact_draws(net, draws, n=np.inf), exact_draws(net, draws, seed=12, n=width)
    random = np.ptp(limit, axis=0) > 1e-9 * np.abs(wide).max()  # behind a norm, ⟨gradient, input⟩ is 0 but for rounding
    for i in np.flatnonzero(~random):  # what is not random in the limit is near it
        assert np.abs(wide[:, i] - limit[0, i]).mean() < 8 * max(1.0, np.abs(limit[0, i])) / width**0.5
    limit, wide = limit[:, random], wide[:, random]
    found = [stats.ks_2samp(limit[:, i], wide[:, i]).pvalue for i in range(limit.shape[1])]
    if limit.shape[1] > 1:
        z = (_ranks(limit) - _ranks(wide)) / np.sqrt(2.0 / (draws - 3))
        found += (2 * stats.norm.sf(np.abs(z))).tolist()
    return min(found)


LIMITS = {
    "heads, masked, with a norm": lambda: blocks(heads=2, norm=ns.rms_norm, mask="causal"),
    "one token": lambda: blocks(norm=lambda v: ns.layer_norm(v, 0.1), tokens=1),
}
MORE_LIMITS = {
    "two blocks": blocks,
    "three blocks": lambda: blocks(3),
    "layer_norm": lambda: blocks(norm=ns.layer_norm),
    "three tokens": lambda: blocks(heads=3, tokens=3, norm=lambda v: ns.rms_norm(v, 0.1)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_gradients_of_attention_at_infinite_width(name):
    assert disagreement(LIMITS[name](), 1000) > 1e-6  # of some 15 tests


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_LIMITS)
def test_more_gradients_at_infinite_width(name):
    assert disagreement(MORE_LIMITS[name](), 4000) > 1e-6


@seed(3)
@settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(net=limit_gradients())
def test_random_gradients_at_infinite_width(net):
    assert disagreement(net, 800) > 1e-7


@pytest.mark.slow
@seed(4)
@settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(net=limit_gradients())
def test_more_random_gradients_at_infinite_width(net):
    assert disagreement(net, 1500, width=4000) > LEVEL


def _correlation(net, **widths):
    draws = exact_draws(net, 3000, **widths)
    return np.corrcoef(draws[:, 0], draws[:, -1])[0, 1]


@pytest.mark.parametrize("width", [pytest.param(2000, marks=pytest.mark.slow), np.inf])
def test_a_transpose_is_no_fresh_matrix(width, monkeypatch):
    """Second moments of gradients cannot tell; the output against ⟨gradient, input⟩ of the token that is read can."""
    assert abs(_correlation(blocks(), n=width) - 0.80) < 0.03
    fresh = {}
    monkeypatch.setattr(
        Weight, "adjoint", property(lambda w: fresh.setdefault((w.source, w.transposed), ns.weight(n, n, w.batch)))
    )
    assert _correlation(blocks(), n=width) < 0.65


# Known recursions


def _relu(a, c, b):
    angle = np.arccos(np.clip(c / np.sqrt(a * b), -1, 1))
    first = np.sqrt(a * b) / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
    return first, (np.pi - angle) / (2 * np.pi)


def _erf(a, c, b):
    whole = (1 + 2 * a) * (1 + 2 * b)
    return 2 / np.pi * np.arcsin(2 * c / np.sqrt(whole)), 4 / np.pi / np.sqrt(whole - 4 * c * c)


def _by_quadrature(name):
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    f = getattr(activations, name)
    pair = f, derivatives.derivative(f)

    def kernels(a, c, b):
        u, v = np.meshgrid(np.sqrt(a) * nodes, nodes, indexing="ij")
        v = c / a * u + np.sqrt(max(b - c * c / a, 0.0)) * v
        measure = np.outer(weights, weights) / (2 * np.pi)
        return tuple(np.sum(measure * g(u) * g(v)) for g in pair)

    return kernels


DATA = np.array([[1.0, 0.3, -0.5], [0.2, -1.0, 0.7]])
KNOWN = {
    "relu": (ns.relu, _relu),
    "erf": (ns.erf, _erf),
    "gelu": (ns.gelu, _by_quadrature("GELU")),
    "tanh": (ns.tanh, _by_quadrature("TANH")),
}


def _recursion(kernels, layers):
    """Θ ← Θ ⊙ E[φ'φ'] + E[φφ], K ← E[φφ] (Jacot, Gabriel and Hongler 2018)."""
    gram = DATA @ DATA.T / 3
    tangent = gram
    for _ in range(layers):
        both = np.array([[kernels(gram[i, i], gram[i, j], gram[j, j]) for j in range(2)] for i in range(2)])
        tangent, gram = tangent * both[..., 1] + both[..., 0], both[..., 0]
    return tangent


def _perceptron(activation, layers):
    h = ns.data(DATA)
    for _ in range(layers):
        h = activation(ns.weight(n, h.width) @ h)
    r = ns.gaussian(n)
    p = ns.dot(r, h)
    return ns.Program(ns.ntk(p, weights=[*weights_of(ordered([p])), r]))


@pytest.mark.parametrize("name", KNOWN)
def test_the_tangent_kernel_of_a_perceptron(name):
    activation, kernels = KNOWN[name]
    law = _perceptron(activation, 1).law(n=np.inf, draws=10)
    np.testing.assert_allclose(law.component_mean[0].reshape(2, 2), _recursion(kernels, 1), rtol=1e-8)


@pytest.mark.parametrize("layers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KNOWN)
def test_the_tangent_kernel_of_a_deep_perceptron(name, layers):
    activation, kernels = KNOWN[name]
    law = _perceptron(activation, layers).law(n=np.inf, draws=10)
    np.testing.assert_allclose(law.component_mean[0].reshape(2, 2), _recursion(kernels, layers), rtol=1e-8)


def _heads(groups):
    """The gradient of an output of grouped attention, and its product with what it is the gradient of."""
    x, r = ns.gaussian(n, 3), ns.gaussian(n, 3)
    y = x + ns.nn.attention(x, heads=4, head_dim=d, groups=groups, sigma_q=2.0)
    p = ns.dot(r[:, None], y[:, None])[:, 0, 0].sum()
    g = ns.grad(p, x)
    return ns.Program((p, ns.mean_dot(g, g), ns.dot(g, x)))


@pytest.mark.parametrize("groups", [4, 2])
def test_heads_whose_transposes_are_summed_are_one_matrix(groups):
    """Fewer numbers, and the same law; levels 1e-4."""
    net, widths = _heads(groups), {"n": 5, "d": 2}
    assert smallest_p(net, 1500, **widths) > 1e-4
    assert smallest_p(net, 1500, without=("stacked",), **widths) > 1e-4
    one, many = (make_plan(net.outputs, {"n": 256, "d": 64}, without=w).random_numbers for w in ((), ("stacked",)))
    assert one < many / 2


def _gated_perceptron():
    """The gradient of an output of a gated perceptron, whose matrices have standard deviations of their own."""
    x, r, m = ns.gaussian(n, 3), ns.gaussian(n, 3), d
    up, gate = ns.weight(m, n, std=0.5), ns.weight(m, n, std=2.0)
    y = x + ns.weight(n, m) @ (ns.silu(gate @ x) * (up @ x))
    p = ns.dot(r[:, None], y[:, None])[:, 0, 0].sum()
    g = ns.grad(p, x)
    return ns.Program((p, ns.mean_dot(g, g), ns.dot(g, x), ns.grad_norm(p, up), ns.grad_norm(p, gate)))


def test_two_matrices_whose_transposes_are_summed_are_one():
    """Level 1e-4. Without the factors of the standard deviations p is 1e-6, with the parts exchanged 8e-6."""
    net, widths = _gated_perceptron(), {"n": 5, "d": 4}
    assert smallest_p(net, 1500, **widths) > 1e-4
    one, many = (make_plan(net.outputs, {"n": 256, "d": 64}, without=w).random_numbers for w in ((), ("stacked",)))
    assert many - one == 3 * 9 + 3 + 3  # three sources of the stream less, in a frame of nine directions


def test_a_function_and_its_derivative_share_their_tanh():
    plan = make_plan(_gated_perceptron().outputs, {"n": 256, "d": 64})
    of_coordinates = [step.params["f"].name for step in plan.steps if step.params.get("coordinates")]
    assert of_coordinates.count("tanh inside") == 1
    assert {"silu", "silu'"} <= set(of_coordinates)
