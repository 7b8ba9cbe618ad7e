"""Scalars to differentiate: every operation of the language, every named function, and
what they make together.
"""

from __future__ import annotations

import numpy as np

import netsor as ns
from tests.internals import scaled_gradient

from .gradients import BENT, NAMED, _bent, _unit, _unit_back

n, d = ns.Width("n"), ns.Width("d")
WIDTHS = {"n": 4, "d": 6}


def _x(count=3):
    return ns.gaussian(n, count)


def read(y):
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
    return ns.nonlin(
        _bent, x, ns.weight(n, n) @ x, ns.mean_dot(x, x).sum(0), derivative=BENT
    )


def plane(x, p):
    return 2.0 * x - 3.0 * p


def products(p, q):
    return np.matmul(p, np.swapaxes(q, -1, -2))


PRODUCTS_BACK = (
    lambda p, q, d: np.matmul(d, q),
    lambda p, q, d: np.matmul(np.swapaxes(d, -1, -2), p),
)


def _multiples(x):
    """Widths that are multiples of a symbol, whose roots stay in the units of
    cotangents.
    """
    w, v = ns.weight(d, 2 * n), ns.weight(2 * n, n)
    h = v @ x
    return (
        read(ns.rms_norm(h, 0.1)) + ns.mean_dot(h, h).sum() + read(w.T @ ns.tanh(w @ h))
    )


def _both_matrices(x):
    p = ns.dot(x, x)
    return ns.apply(products, p, p[:2], axes=2, derivative=PRODUCTS_BACK)[1, 1]


def _in_two_parts(x):
    """2 x, from two copies of x whose factors of the gradient add up to 2.

    So the gradient is the derivative, as long as the rule applies the factors.
    """
    factors = np.linspace(0.0, 1.5, x.size).reshape(x.shape)
    return scaled_gradient(x, factors) + scaled_gradient(x, 2.0 - factors)


def _scaled_gradients(x):
    """Of vectors, of scores and of means, whose cotangents are in another unit."""
    scores = _in_two_parts(ns.dot(x, ns.weight(n, n) @ x))
    mean_squares = _in_two_parts(ns.mean_dot(x, x).sum(0))
    return (
        read(_in_two_parts(ns.tanh(x)))
        + read(ns.softmax(scores) @ x)
        + read(ns.nonlin(plane, x[0], mean_squares[0], derivative=(2.0, -3.0)))
    )


def _normal():
    z = ns.normal((3, 3), std=0.5)
    x = _x()
    return read(ns.softmax(ns.dot(x, x) + z) @ x), z


def _inside():
    """With respect to a vector in the middle of the program; an index stands for its
    entries.
    """
    h = ns.weight(d, n, 2) @ _x()
    return read(ns.tanh(h)[1]) + read(h[0, 2] * h[1, 0]), h


def _score():
    x = _x()
    p = ns.dot(ns.weight(d, n) @ x, ns.weight(d, n) @ x)
    return read(ns.softmax(p, "causal") @ x) + p[0, 1], p


CASES = {
    "MatMul": _case(lambda x: read(ns.weight(d, n) @ x)),
    "MatMul of a batch": _case(lambda x: read(ns.weight(d, n, 2) @ x)),
    "MatMul of each": _case(lambda x: read(ns.weight(d, n, 3).each(x))),
    "MatMul, transposed": _case(
        lambda x: (lambda w: read(w.T @ ns.tanh(w @ x)))(ns.weight(d, n))
    ),
    "MatMul, members": _case(lambda x: read(ns.weight(d, n, 2)[[0, 0, 1]] @ x[1])),
    "gated delta rule": _case(
        lambda x: read(ns.nn.gated_delta(x, heads=1, head_dim=2))
    ),
    "Nonlin": _case(lambda x: sum(read(f(x)) for f in NAMED)),
    "Nonlin, a gate": _case(lambda x: read(_gated(x))),
    "Nonlin, several": _case(lambda x: read(_several(x))),
    "Nonlin, slopes that are numbers": _case(
        lambda x: (
            read(ns.nonlin(plane, x, ns.mean_dot(x, x).sum(0), derivative=(2.0, -3.0)))
            + read(ns.identity(x))
        )
    ),
    "widths with factors": _case(_multiples),
    "Add": _case(lambda x: read(x + ns.tanh(x[0]))),
    "Scale": _case(lambda x: read(ns.mean_dot(x, x)[0] * x)),
    "Mix": _case(lambda x: read(ns.dot(x, x[:2]).transpose() @ x)),
    "Mix, numbers": _case(lambda x: read(np.arange(6.0).reshape(2, 3) @ x)),
    "Concat": _case(lambda x: read(_concatenated(x))),
    "Take": _case(
        lambda x: read(ns.tanh(x[[0, 0, 2]])) + read(x.transpose().broadcast_to((2, 3)))
    ),
    "Join": _case(lambda x: read(ns.tanh(ns.join([x[1:], 2 * x])[[0, 4, 4]]))),
    "Rotate": _case(
        lambda x: ns.dot(
            ns.rotary(ns.weight(d, n) @ x, fraction=1.0), ns.weight(d, n) @ x
        )[1, 0]
    ),
    "ScaledGradient": _case(_scaled_gradients),
    "Dot": _case(lambda x: ns.dot(x, ns.tanh(x)).sum()),
    "Dot, means": _case(
        lambda x: (
            ns.mean_dot(x, x) * ns.mean_dot(ns.weight(d, n) @ x, ns.weight(d, n) @ x)
        ).sum()
    ),
    "Apply, sums": _case(
        lambda x: (ns.dot(x, x).sum(0) - 2.0 * ns.mean_dot(x, x).mean(1)).mean()
    ),
    "Apply, products": _case(
        lambda x: (lambda p: (p @ p.transpose() * p - p).sum())(ns.dot(x, x))
    ),
    "Apply, powers": _case(
        lambda x: (ns.dot(x, x) ** 3).sum() / (1.0 + ns.mean_dot(x, x)[0, 0] ** 0.5)
    ),
    "Apply, the power 0": _case(lambda x: (ns.dot(x, x) ** 0 * ns.dot(x, x)).sum()),
    "Apply, slopes that are numbers": _case(
        lambda x: ns.apply(
            plane, ns.dot(x, x), ns.mean_dot(x, x)[0], derivative=(2.0, -3.0)
        ).sum()
    ),
    "Apply, own of several": _case(_both_matrices),
    "Apply, named": _case(lambda x: sum(f(ns.dot(x, x)).sum() for f in NAMED)),
    "Apply, softmax": _case(
        lambda x: (ns.softmax(ns.dot(x, x)) * np.arange(3.0)).sum()
    ),
    "Apply, masked": _case(
        lambda x: (ns.softmax(ns.dot(x, x), "causal") * np.arange(3.0)).sum()
    ),
    "Apply, own": _case(
        lambda x: ns.apply(_unit, ns.dot(x, x), axes=1, derivative=_unit_back)[1, 2]
    ),
    "Apply, a loss": _case(
        lambda x: -ns.apply(np.log, ns.softmax(ns.dot(x, x))[[0, 1], [1, 2]]).mean()
    ),
    "rms_norm": _case(lambda x: read(ns.rms_norm(x, 0.1))),
    "rms_norm, eps dominates": _case(lambda x: read(ns.rms_norm(x, 1e3))),
    "layer_norm": _case(lambda x: read(ns.layer_norm(x, gain=1.5))),
    "attention": _case(
        lambda x: read(ns.nn.attention(ns.layer_norm(x), 2, d, "causal")[1])
    ),
    "grouped, rotary, QK-norm": _case(
        lambda x: read(
            ns.nn.attention(
                x,
                2,
                d,
                groups=1,
                rotary=ns.nn.Rotary(10.0),
                qk_norm=ns.rms_norm,
                softcap=2.0,
            )
        )
    ),
    "one token": _case(lambda x: read(ns.nn.attention(x[:1], 1, d))),
    "shared": _case(
        lambda x: (lambda act: read(act(act(x))))(
            ns.nn.shared(lambda u: u + ns.nn.mlp(u, d))
        )
    ),
    "a gradient": _case(
        lambda x: read(ns.grad(read(ns.nn.attention(ns.rms_norm(x), 2, d)), x)[0])
    ),
    "a gradient through parts": _case(
        lambda x: read(ns.grad(read(_concatenated(x)), x))
    ),
    "a gradient's square": _case(
        lambda x: (lambda g: ns.mean_dot(g, g)[0, 1])(
            ns.grad(read(ns.nn.mlp(x, d, activation=ns.gelu)), x)
        )
    ),
    "a tangent kernel": _case(
        lambda x: ns.ntk(read(ns.nn.mlp(x[:2], d, activation=ns.tanh)))
    ),
    "random scalars": _normal,
    "inside": _inside,
    "scores": _score,
}
