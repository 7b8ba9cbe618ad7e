"""Tangent kernels: against all derivatives by differences, and in the limit against
known recursions.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import activations, derivatives, topological_order, weights_of

from ..gradient_cases import WIDTHS, d, n
from .compare import exact_draws
from .differences import drawn, evaluated, slopes


def _jacobian(outputs, count, weight):
    """∂/∂N of the first outputs, for the N(0, 1) variables behind all matrices of a
    weight: (outputs, variables).
    """
    literal, columns = drawn(outputs, WIDTHS), []
    for member in range(weight.count):
        shape = literal.matrices[weight.source, member].shape[1:]
        directions = np.eye(np.prod(shape)).reshape(-1, *shape)
        columns.append(
            slopes(outputs, WIDTHS, count, {(weight.source, member): directions})
        )
    return np.concatenate(columns, axis=1)


def _tied(x):
    w = ns.weight(d, n, std=1.3)
    return w.T @ ns.tanh(w @ x)


def _batch(x):
    u = ns.weight(n, n, 2, std=0.7)
    return (
        u[1] @ ns.tanh(u[0] @ x) + u.each(x).sum(0) + u[[0, 0, 1]].each(x[[0, 1, 1]])[1]
    )


def _repeated(x):
    """Members that act several times in one product, and on vectors of their own."""
    u = ns.weight(n, n, 2, std=0.7)
    return u[[0, 0, 1]].each(x[[0, 1, 1]]).sum(0) + ns.tanh(u[[1, 0, 1]] @ x).sum(0)


def _whole_batches(x):
    """All members of a batch, on vectors of their own and on the same."""
    u = ns.weight(n, n, 2, std=0.7)
    return u.each(ns.tanh(u @ x)).sum(0) + u.each(x).sum(0)


KERNELS = {
    "members that act again": _repeated,
    "whole batches": _whole_batches,
    "attention": lambda x: ns.nn.attention(x, 2, d, groups=1),
    "a matrix and its transpose": _tied,
    "batches and members": _batch,
    "a shared layer": lambda x: (lambda act: act(act(x)))(
        ns.nn.shared(lambda u: ns.nn.mlp(u, d, activation=ns.erf))
    ),
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
    for weight in {
        w.source: w.drawn for w in weights_of(topological_order([p]))
    }.values():
        jacobian = _jacobian(outputs, p.size, weight)
        for k, unit in enumerate((1.0, weight.in_width.bind(WIDTHS) / weight.std**2)):
            expected[k] = expected[k] + unit * jacobian @ jacobian.T
    for kernel, value in zip(evaluated(outputs, WIDTHS)[-2:], expected, strict=True):
        assert kernel.shape == p.shape + p.shape
        np.testing.assert_allclose(
            kernel.reshape(value.shape), value, rtol=1e-7, atol=1e-9
        )


def test_tangent_kernel_by_biases_scalars_and_embeddings():
    """Biases, random scalars, and an embedding that ids share: with respect to them, or
    the normals behind them.
    """
    b, z = ns.gaussian(n, cov=0.25), ns.normal((2, 2), std=0.3)
    e = ns.gaussian(n, 2, cov=np.array([[1.0, 0.4], [0.4, 2.0]]))
    x = e[[0, 1, 1]] + b
    p = ns.dot(
        ns.gaussian(n), ns.softmax(ns.mean_dot(x[:2], x[:2]) + z) @ ns.tanh(x[:2])
    ) + ns.dot(ns.gaussian(n), x[2])
    leaves = {"b": b, "z": z, "e": e}
    outputs = [p[0], p[1], b, z, e]
    for kind in ("ntk", "standard"):
        outputs += [ns.ntk(p, weights=list(leaves.values()), parametrisation=kind)]
    expected = {"ntk": np.zeros((2, 2)), "standard": np.zeros((2, 2))}
    factor = e.op.factor
    for name, leaf in leaves.items():
        shape = (*leaf.shape, 4) if isinstance(leaf, ns.Vector) else leaf.shape
        directions = np.eye(np.prod(shape)).reshape(-1, *shape)
        jacobian = slopes(outputs, WIDTHS, 2, {leaf: directions})
        expected["standard"] += jacobian @ jacobian.T
        if name == "e":
            jacobian = np.einsum(
                "oia,ik->oka", jacobian.reshape(2, 2, 4), factor
            ).reshape(2, -1)
        scale = {"b": 0.25, "z": 0.09, "e": 1.0}[name]
        expected["ntk"] += scale * jacobian @ jacobian.T
    kernels = evaluated(outputs, WIDTHS)[-2:]
    for kind, kernel in zip(("ntk", "standard"), kernels, strict=True):
        np.testing.assert_allclose(kernel, expected[kind], rtol=1e-7)


def test_tangent_kernel_of_two_outputs_is_a_block_of_the_whole():
    x = ns.gaussian(n, 3)
    p = ns.dot(ns.gaussian(n), ns.nn.attention(x, 2, d))
    whole, part = ns.ntk(p), ns.ntk(p[:2], p[2])
    norm = ns.grad_norm(p[1], weights_of(topological_order([p]))[0], "ntk")
    of_first_matrix = ns.ntk(p, weights=weights_of(topological_order([p]))[0])
    a, b, c, e = evaluated([whole, part, norm, of_first_matrix], WIDTHS)
    np.testing.assert_allclose(b, a[:2, 2], rtol=1e-12)
    np.testing.assert_allclose(c, e[1, 1], rtol=1e-12)


# Known recursions


def _relu(a, c, b):
    angle = np.arccos(np.clip(c / np.sqrt(a * b), -1, 1))
    first = (
        np.sqrt(a * b) / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
    )
    return first, (np.pi - angle) / (2 * np.pi)


def _erf(a, c, b):
    whole = (1 + 2 * a) * (1 + 2 * b)
    return 2 / np.pi * np.arcsin(2 * c / np.sqrt(whole)), 4 / np.pi / np.sqrt(
        whole - 4 * c * c
    )


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
        expectations = np.array(
            [
                [kernels(gram[i, i], gram[i, j], gram[j, j]) for j in range(2)]
                for i in range(2)
            ]
        )
        tangent, gram = (
            tangent * expectations[..., 1] + expectations[..., 0],
            expectations[..., 0],
        )
    return tangent


def _perceptron(activation, layers):
    h = ns.data(DATA)
    for _ in range(layers):
        h = activation(ns.weight(n, h.width) @ h)
    r = ns.gaussian(n)
    p = ns.dot(r, h)
    return ns.Program(ns.ntk(p, weights=[*weights_of(topological_order([p])), r]))


@pytest.mark.usefixtures("unshifted")
@pytest.mark.parametrize("name", KNOWN)
def test_tangent_kernel_of_a_perceptron_equals_the_recursion(name):
    activation, kernels = KNOWN[name]
    law = _perceptron(activation, 1).law(n=np.inf, draws=10)
    np.testing.assert_allclose(
        law.component_mean[0].reshape(2, 2), _recursion(kernels, 1), rtol=1e-8
    )


@pytest.mark.usefixtures("unshifted")
@pytest.mark.parametrize("layers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KNOWN)
def test_tangent_kernel_of_a_deep_perceptron_equals_the_recursion(name, layers):
    activation, kernels = KNOWN[name]
    law = _perceptron(activation, layers).law(n=np.inf, draws=10)
    np.testing.assert_allclose(
        law.component_mean[0].reshape(2, 2), _recursion(kernels, layers), rtol=1e-8
    )


# Attention: the kernel is a sum over heads, each with a random part of its own, so its
# mean is its limit for many heads

RHO = 0.4


def _expected():
    """By quadrature over the differences d_i of the two scores of each row, Cov(d_i,
    d_j) = 2 (1 − ρ) K_ij.

    With a_i the softmax and J_i its Jacobian, output and value matrices give a_i K a_j
    each, and query and key matrices K_ij tr(J_i K J_j K), which is K_ij w_i w_j 4 (1 −
    ρ)² with w = a (1 − a).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    gram = np.array([[1.0, RHO], [RHO, 1.0]])
    u, v = np.meshgrid(nodes, nodes, indexing="ij")
    measure, size = np.outer(weights, weights) / (2 * np.pi), np.sqrt(2 * (1 - RHO))
    kernel = np.empty((2, 2))
    for i in range(2):
        for j in range(2):
            other = u if i == j else RHO * u + np.sqrt(1 - RHO**2) * v
            first, second = (1 / (1 + np.exp(-size * t)) for t in (u, other))
            rows = [np.stack([a, 1 - a]) for a in (first, second)]
            averaged = np.einsum("kuv,kl,luv->uv", rows[0], gram, rows[1])
            slopes_of = first * (1 - first) * second * (1 - second) * size**4
            kernel[i, j] = np.sum(measure * (2 * averaged + 2 * gram[i, j] * slopes_of))
    return kernel


def _kernels_of_heads(heads, draws):
    x = ns.gaussian(n, 2, cov=np.array([[1.0, RHO], [RHO, 1.0]]))
    p = ns.dot(ns.gaussian(n), ns.nn.attention(x, heads))
    return exact_draws(ns.Program(ns.ntk(p)), draws, n=np.inf)


def test_tangent_kernel_of_attention_has_the_mean_of_the_recursion():
    """Its mean is that of the recursion for every number of heads, and it varies like
    1/heads.

    Level 1e-5 for each of 8 means: 4.4 standard errors.
    """
    expected = _expected().ravel()
    one_head, many_heads = _kernels_of_heads(1, 3000), _kernels_of_heads(16, 1500)
    for kernels in (one_head, many_heads):
        error = kernels.std(axis=0) / np.sqrt(len(kernels))
        assert (np.abs(kernels.mean(axis=0) - expected) < 4.4 * error).all()
    np.testing.assert_allclose(
        one_head.var(axis=0) / many_heads.var(axis=0), 16.0, rtol=0.4
    )
    assert one_head.std(axis=0).min() > 0.1  # with one head it is random
