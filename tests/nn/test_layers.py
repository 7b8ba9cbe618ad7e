"""Perceptrons, blocks and shared layers: each draw against plain numpy, laws against
literal draws.
"""

import numpy as np
import pytest
from scipy import special

import netsor as ns
from netsor import nn

from ..engine.compare import smallest_p
from .reference import opened

N, HIDDEN = 5, 7
n, d = ns.Width("n"), ns.Width("d")


def silu(u):
    return u * special.expit(u)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("sigma_b", [0.0, 0.5])
def test_perceptron_matches_numpy(gate, sigma_b):
    x = ns.gaussian(N, 3)
    y = nn.mlp(
        x,
        [HIDDEN, 4],
        2,
        ns.silu,
        gate=gate,
        sigma_w=2.0,
        sigma_gate=0.5,
        sigma_out=3.0,
        sigma_b=sigma_b,
    )
    (h, output), matrices, biases = opened(x, y, draws=200)
    layers = 5 if gate else 3
    assert len(matrices) == layers
    assert len(biases) == (layers if sigma_b else 0)
    b = [v[:, None] for v in biases] or [0.0] * layers

    def affine(k, u):
        return u @ np.swapaxes(matrices[k], -1, -2) + b[k]

    # the gate comes first in a product φ(W' x) ⊙ (W x)
    for k in range(0, layers - 1, 1 + gate):
        h = silu(affine(k, h)) * (affine(k + 1, h) if gate else 1.0)
    np.testing.assert_allclose(output, affine(-1, h), rtol=1e-10, atol=1e-11)
    sigmas = [0.5, 2.0] * 2 + [3.0] if gate else [2.0, 2.0, 3.0]
    # 1,600 entries or more, level 1e-6
    for w, sigma in zip(matrices, sigmas, strict=True):
        assert abs((w**2).mean() * w.shape[-1] / sigma**2 - 1) < 5 * np.sqrt(2 / w.size)


def test_perceptrons_have_the_sigma_of_the_hidden_layer_unless_given():
    _, matrices, _ = opened(
        nn.mlp(ns.gaussian(N), HIDDEN, gate=True, sigma_w=2.0), draws=300
    )
    for w in matrices:
        assert abs((w**2).mean() * w.shape[-1] / 4 - 1) < 5 * np.sqrt(2 / w.size)


@pytest.mark.parametrize("activation", [ns.silu, ns.gelu_tanh, ns.relu])
def test_gated_perceptron_has_the_law_of_literal_draws(activation):
    y = nn.mlp(
        ns.gaussian(n, 2, cov=np.eye(2) + 0.5),
        2 * n,
        activation=activation,
        gate=True,
        sigma_b=0.3,
    )
    assert smallest_p(ns.Program((y, ns.mean_dot(y, y)[0])), n=3) > 1e-5


@pytest.mark.parametrize("activation", [ns.silu, ns.gelu])
def test_gates_factorise(activation):
    """E[φ(g) φ(g') u u'] = E[φ(g) φ(g')] E[u u'], against a product rule of 200 × 200
    nodes.
    """
    cov = np.array([[1.3, 0.6], [0.6, 0.8]])
    x = ns.gaussian(n, 2, cov=cov)
    y = nn.mlp(
        x,
        d,
        activation=activation,
        gate=True,
        sigma_gate=1.5,
        sigma_w=0.7,
        sigma_out=1.0,
    )
    law = ns.Program(y).law(n=ns.inf, d=ns.inf, draws=2)
    z, w = np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()
    root = np.linalg.cholesky(1.5**2 * cov)
    first = root[0, 0] * z[:, None] + 0 * z
    second = root[1, 0] * z[:, None] + root[1, 1] * z
    phi = silu if activation is ns.silu else lambda u: u * special.ndtr(u)
    gates = np.array(
        [
            [np.einsum("i,j,ij", w, w, phi(a) * phi(b)) for b in (first, second)]
            for a in (first, second)
        ]
    )
    np.testing.assert_allclose(law.cov(), gates * 0.7**2 * cov, rtol=1e-9)


def half(u):
    return ns.tanh(0.5 * u)


def shifted(u):
    return ns.sin(u) + 0.3


BLOCKS = {
    "pre": lambda x, f, g, m: (y := x + f(m(x))) + g(m(y)),
    "post": lambda x, f, g, m: m((y := m(x + f(x))) + g(y)),
    "parallel": lambda x, f, g, m: x + f(m(x)) + g(m(x)),
    "sandwich": lambda x, f, g, m: (y := x + m(f(m(x)))) + m(g(m(y))),
}


@pytest.mark.parametrize("order", BLOCKS)
def test_block_applies_norms_in_the_given_order(order):
    def norm(u):
        return ns.layer_norm(u, 0.1, gain=1.5)

    x = ns.gaussian(n, 3)
    made = nn.block(x, half, shifted, norm, order)
    a, output, attended, fed = ns.Program((x, *made)).simulate(n=N, draws=4)

    def m(u):
        return (
            1.5
            * (u - u.mean(-1, keepdims=True))
            / np.sqrt(u.var(-1, keepdims=True) + 0.1)
        )

    expected = BLOCKS[order](
        a, lambda u: np.tanh(0.5 * u), lambda u: np.sin(u) + 0.3, m
    )
    np.testing.assert_allclose(output, expected, rtol=1e-10, atol=1e-12)
    stream = m(a + attended) if order == "post" else a + attended
    stream = m(stream + fed) if order == "post" else stream + fed
    np.testing.assert_allclose(output, stream, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", BLOCKS)
def test_transformer_has_the_law_of_literal_draws(order):
    def norm(u):
        return ns.rms_norm(u, 0.01)

    x = nn.embedding([3, 7, 3], n, std=0.5, position_std=0.3)
    bias = nn.relative_bias(2, 3, std=0.5, buckets=4, max_distance=3)
    for _ in range(2):
        x = nn.block(
            x,
            lambda u: nn.attention(
                u, 2, 2 * d, "causal", groups=1, bias=bias, rotary=nn.Rotary(10.0)
            ),
            lambda u: nn.mlp(u, 2 * n, activation=ns.silu, gate=True),
            norm,
            order,
        ).output
    net = ns.Program((x[[0, 2]], ns.mean_dot(x, x)[0]))
    assert smallest_p(net, n=3, d=2) > 1e-5


# A layer that is used again


def test_shared_layer_has_one_draw_of_its_weights():
    """Tokens that are an index of others must be replaced as a whole, indexed or
    not.
    """
    e = ns.gaussian(N, 2)
    x = e[[1, 0, 1]]
    layer = nn.shared(
        lambda u: nn.Block(
            ns.tanh(nn.mlp(u, HIDDEN, sigma_b=0.5)) + u[[2, 0, 1]], u, ns.rms_norm(u)
        )
    )
    first = layer(x)
    second = layer(first.output)
    assert type(second) is nn.Block
    outputs = (x, *first, *second)
    (tokens, *drawn), (w1, w2), (b1, b2) = opened(*outputs)
    for one in range(2):
        output, given, normed = drawn[3 * one : 3 * one + 3]
        np.testing.assert_allclose(given, tokens)
        np.testing.assert_allclose(
            normed, tokens / np.sqrt((tokens**2).mean(-1, keepdims=True))
        )
        hidden = np.maximum(tokens @ np.swapaxes(w1, -1, -2) + b1[:, None], 0)
        tokens = (
            np.tanh(hidden @ np.swapaxes(w2, -1, -2) + b2[:, None])
            + tokens[:, [2, 0, 1]]
        )
        np.testing.assert_allclose(output, tokens, rtol=1e-10)


def test_shared_layer_has_the_law_of_literal_draws():
    def encoder(u):
        u = ns.layer_norm(u + nn.attention(u, 2, d), 0.01)
        return ns.layer_norm(u + nn.mlp(u, n, sigma_b=0.4), 0.01)

    layer, x = nn.shared(encoder), ns.gaussian(n, 2)
    y = layer(layer(layer(x)))
    together = ns.Program((y, ns.mean_dot(y, y)[0, 1]))
    assert smallest_p(together, n=4, d=2) > 1e-5


def test_copies_differ_from_layers_of_their_own():
    """Of x + W x, thrice: E|y|²/n is 2³ with three matrices, and more with one. 4,000
    draws, level 1e-6.
    """

    def layer(u):
        return u + ns.weight(n, n) @ u

    same, x = nn.shared(layer), ns.gaussian(n)
    squares = [
        ns.Program(ns.mean_dot(y, y)).simulate(n=4, draws=4000)
        for y in (same(same(same(x))), layer(layer(layer(x))))
    ]
    errors = [a.std() / 4000**0.5 for a in squares]
    assert abs(squares[1].mean() - 8) < 5 * errors[1]
    assert squares[0].mean() - 8 > 5 * errors[0]


def test_norms_have_gains():
    x = ns.gaussian(n, 2)
    made = (
        ns.rms_norm(x, 0.1, gain=3.0),
        ns.layer_norm(x, gain=2.0),
        ns.rms_norm(x),
        ns.layer_norm(x),
    )
    a, b, c, e = ns.Program(made).simulate(n=N, draws=3)
    (raw,) = ns.Program((ns.rms_norm(x, 0.1),)).simulate(n=N, draws=3)
    np.testing.assert_allclose(a, 3 * raw)
    np.testing.assert_allclose(b, 2 * e)
    assert not np.allclose(c, raw)


def test_entries_of_a_stated_size():
    w = ns.weight(4, 9, entry_std=0.02)
    assert abs(w.std - 0.06) < 1e-16
    (e,) = ns.Program((w @ ns.data(np.eye(9)),)).simulate(draws=2000)
    # 72,000 entries, level 1e-6
    assert abs((e**2).mean() / 0.0004 - 1) < 5 * np.sqrt(2 / e.size)
