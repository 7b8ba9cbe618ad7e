"""Gradients where they are easy to get wrong, with vectors of sizes 1e-8, 1 and 1e8:
the engine against the literal.
"""

import numpy as np
import pytest

import netsor as ns

from .compare import smallest_p

n, d = ns.Width("n"), ns.Width("d")
WIDTHS = {"n": 5, "d": 3}


def _found(p, x, *weights):
    """A scalar, and its gradient: its square, its product with x, squares of gradients
    of weights.
    """
    g = ns.grad(p, x)
    return ns.Program(
        (p, ns.mean_dot(g, g), ns.dot(g, x), *(ns.grad_norm(p, w) for w in weights))
    )


def _read(y, size):
    return ns.dot(ns.gaussian(n), y) / size


def _one_matrix(size):
    """One matrix as queries and values, twice in a perceptron, and transposed."""
    x, w = ns.gaussian(n, 2, cov=size**2), ns.weight(n, n)
    u = ns.rms_norm(x)
    a = ns.softmax(ns.dot(w @ u, ns.weight(n, n) @ u))
    y = x + size * (w @ ns.tanh(w @ u) + w.T @ u + a @ (w @ u))
    return _found(_read(y[0], size), x, w)


def _tied(size, eps=0.0):
    """Embeddings that are inputs, one of them twice, and the matrix of the logits."""
    e = ns.gaussian(n, 2, cov=size**2)
    x = e[[0, 1, 1]]
    y = x + size * ns.nn.attention(ns.rms_norm(x, eps), 2, d, mask="causal")
    share = ns.softmax(ns.dot(ns.rms_norm(y, eps), e) / size)
    return _found(share[0, 1] + share[2, 0], e)


def _shared(size):
    def layer(u):
        u = u + size * ns.nn.attention(ns.rms_norm(u), 1, d)
        return u + size * ns.nn.mlp(ns.rms_norm(u), d, activation=ns.gelu)

    x, act = ns.gaussian(n, 2, cov=size**2), ns.nn.shared(layer)
    return _found(_read(act(act(x))[1], size), x)


def _masks(size):
    x = y = ns.gaussian(n, 3, cov=size**2)
    for mask in (np.array([[1, 0, 0], [0, 1, 1], [1, 0, 1]]) > 0, np.arange(3) < 2):
        y = y + size * ns.nn.attention(ns.layer_norm(y), 2, d, mask=mask)
    return _found(_read(y[2], size), x)


def _one_token(size):
    x = ns.gaussian(n, 1, cov=size**2)
    y = x + size * ns.nn.attention(ns.rms_norm(x), 2, d, mask="causal")
    y = y + size * ns.nn.mlp(ns.layer_norm(y), d, activation=ns.silu)
    return _found(_read(y[0], size), x)


def _large_eps(size):
    x = ns.gaussian(n, 2, cov=size**2)
    y = x + size * ns.nn.attention(ns.rms_norm(x, 1e4 * size**2), 2, d)
    return _found(_read(ns.layer_norm(y, 1e3 * size**2)[0], 1.0), x)


def _rotary(size):
    x = ns.gaussian(n, 3, cov=size**2)
    q, k, v = (ns.weight(4, n, 2) @ ns.rms_norm(x) for _ in range(3))
    a = ns.softmax(ns.dot(ns.rotary(q), ns.rotary(k)), "causal")
    return _found(
        _read((x + size * (ns.weight(n, 8) @ ns.concat(a @ v, 0)))[2], size), x
    )


def _gates(size):
    """Two gated perceptrons with the same matrices; in the second both factors are of
    one of them.
    """
    x, a, b, c = (
        ns.gaussian(n, 2, cov=size**2),
        ns.weight(d, n),
        ns.weight(d, n),
        ns.weight(n, d),
    )
    u = ns.rms_norm(x)
    y = x + size * (c @ (ns.silu(a @ u) * (b @ u)))
    u = ns.rms_norm(y)
    return _found(
        _read((y + size * (c @ (ns.gelu(a @ u) * (a @ u))))[0], size), x, a, c
    )


CASES = {
    "one matrix in one block": _one_matrix,
    "tied embeddings, a repeated id": _tied,
    "tied embeddings, eps that dominates": lambda size: _tied(size, 1e3 * size**2),
    "a shared layer": _shared,
    "masks": _masks,
    "one token": _one_token,
    "eps that dominates": _large_eps,
    "rotary positions": _rotary,
    "gates": _gates,
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("name", CASES)
def test_engine_matches_the_reference_interpreter(name, size):
    """Level 1e-5 of the smallest of some 15 p-values."""
    net = CASES[name](size)
    assert (
        smallest_p(net, 1000, **{width: WIDTHS[width] for width in net.widths}) > 1e-5
    )
