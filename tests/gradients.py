"""Random programs with transposes and gradients, for the property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import netsor as ns
from tests.internals import MatMul, scaled_gradient, topological_order

from .builder import Builder
from .programs import MAX_SEED, SEEDS, WIDTHS, Built, integers_of

NAMED = [
    ns.relu,
    lambda x: ns.leaky_relu(x, 0.2),
    ns.abs,
    lambda x: ns.clip(x, 1.0),
    ns.erf,
    ns.tanh,
    ns.sigmoid,
    ns.gelu,
    ns.gelu_tanh,
    ns.silu,
    ns.sin,
    ns.cos,
]


def _bent(x, y, p):
    return np.sin(x) * y + x * np.tanh(p)


BENT = (
    lambda x, y, p: np.cos(x) * y + np.tanh(p),
    lambda x, y, p: np.sin(x) + 0.0 * y,
    lambda x, y, p: x * (1 - np.tanh(p) ** 2),
)


def _unit(p):
    return p / np.sqrt(1.0 + np.sum(p * p, axis=-1, keepdims=True))


def _unit_back(p, d):
    root = np.sqrt(1.0 + np.sum(p * p, axis=-1, keepdims=True))
    return d / root - p * np.sum(p * d, axis=-1, keepdims=True) / root**3


class GradientBuilder(Builder):
    """Every function has a derivative here; no factor is very large, for gradients
    multiply them.
    """

    def __init__(self, seed, widths):
        super().__init__(seed, widths)
        self.extreme = True
        # what the last gradient or kernel is looked at with
        self.companions: list[ns.Value] = []

    def nonlin(self):
        return self.choose(NAMED)(self.vector())

    def several(self):
        x = self.vector()
        y = self.vector(width=x.width)
        if self.often(0.5):
            return self.choose(NAMED)(x) * y
        return ns.nonlin(
            _bent, x, y, self.latest([0.5, *self.scalars]), derivative=BENT
        )

    def weights_of(self, p):
        kind = self.choose(["plain", "causal", "padding", "capped"])
        if kind == "causal" and p.shape[-1] == p.shape[-2]:
            return ns.softmax(p, "causal")
        if kind == "padding":
            return ns.softmax(p, np.arange(p.shape[-1]) < 2)
        return ns.softmax(ns.tanh(p / 2.0) * 2.0 if kind == "capped" else p)

    def function(self):
        p = self.scalar()
        kind = self.choose(
            [
                "weights",
                "root",
                "unit",
                "product",
                "sum",
                "mean",
                "index",
                "named",
                "ratio",
                "matmul",
            ]
        )
        if kind == "weights":
            return self.weights_of(
                p if p.ndim > 1 else p[None] if p.ndim else p[None, None]
            )
        if kind == "root":
            return ns.apply(np.sqrt, 1.0 + p * p)
        if kind == "unit":
            return ns.apply(_unit, p, axes=1, derivative=_unit_back)
        if kind == "product":
            return p * self.scalar() + 0.5
        if kind == "named":
            return self.choose([ns.relu, ns.sigmoid, ns.abs])(p)
        if kind == "ratio":
            return p**2 / (1.0 + p**2)
        if kind == "matmul":
            return p @ p.transpose()
        return p.sum(axis=-1) if kind == "sum" else p.mean() if kind == "mean" else p[0]

    def transposed(self):
        """W^T, of a matrix that acted: its own output as often as another vector."""
        x = self.vector()
        fits = [w for w in self.weights if w.out_width == x.width]
        if not fits:
            raise ns.TraceError("transposed", "no matrix fits")
        w = self.latest(fits)
        if w.batch and x.shape[: len(w.batch)] == w.batch:
            return w.T.each(x)
        return w.T @ x

    def scaled_gradient(self):
        """A vector or scalar whose cotangents are multiplied, and half the time stop at
        some entries.
        """
        value = self.scalar() if self.scalars and self.often(0.3) else self.vector()
        factors = self.rng.uniform(-1.0, 1.5, value.shape)
        if self.often(0.5):
            factors = np.where(self.rng.random(value.shape) < 0.5, 0.0, factors)
        return scaled_gradient(value, factors)

    def loss(self):
        """A scalar: one that is there, or a readout of what matrices made."""
        if self.scalars and self.often(0.3):
            return self.latest(self.scalars)
        y = self.latest(
            [
                v
                for v in self.vectors
                if any(isinstance(u.op, MatMul) for u in topological_order([v]))
            ]
            or self.vectors
        )
        return ns.dot(ns.gaussian(y.width), y)

    def gradient(self):
        """√width ∂p/∂x, with p and its product with x: these know a transpose from
        another matrix.
        """
        p = self.loss()
        made = set(topological_order([p]))
        options = [
            v
            for v in (
                [*self.vectors, *self.scalars] if self.often(0.3) else self.vectors
            )
            if v in made
        ]
        if not options:
            raise ns.TraceError("gradient", "p is made of none of them")
        # rather an early one: matrices lie between
        x = options[min(self.rng.geometric(0.4), len(options)) - 1]
        g = ns.grad(p, x)
        self.companions = [p, ns.dot(g, x)] if isinstance(g, ns.Vector) else [p]
        return g

    def kernel(self):
        p = self.loss().reshape(-1)[:2]
        self.companions = [p]
        return ns.ntk(p)

    def norm_of_gradient(self):
        w, p = self.latest(self.weights), self.loss().sum()
        self.companions = [p]
        return ns.grad_norm(p, w, self.choose(["ntk", "standard"]))


STEPS = (
    ["matmul"] * 4
    + ["nonlin"] * 3
    + ["several", "residual", "residual", "each", "two_each", "add", "scale"]
)
STEPS += [
    "mix",
    "reduce",
    "rearrange",
    "concat",
    "norm",
    "attention",
    "attention",
    "normal",
    "rotary",
    "layer",
]
STEPS += [
    "perceptron",
    "embedding",
    "shared",
    "initial",
    "data",
    "dot",
    "dot",
    "function",
    "function",
]
STEPS += ["transposed"] * 3 + ["gradient", "kernel", "scaled_gradient"]
LAST = ["gradient"] * 3 + ["kernel", "norm_of_gradient"]


@st.composite
def gradients(draw, steps=6, largest=8, most=10_000):
    """A program that returns a gradient or a tangent kernel with what it is made from,
    and numbers for its widths.

    A kernel of many values in all is not taken, but another tried: planning is what
    takes time.
    """
    builder = GradientBuilder(draw(SEEDS), WIDTHS)
    builder.vectors.append(builder.initial())
    builder.grow(["matmul"])
    for _ in range(draw(st.integers(1, steps))):
        builder.grow(STEPS)
    outputs = [builder.vectors[-1]]
    for _ in range(6):
        before = [*builder.vectors, *builder.scalars]
        builder.grow(LAST)
        made = [
            value
            for value in (*builder.vectors, *builder.scalars)
            if value not in before
        ]
        if (
            made
            and len(topological_order([*outputs, *builder.companions, *made])) <= most
        ):
            outputs += [*builder.companions, *made]
            break
    outputs = [value if value.size <= 2 else value.reshape(-1)[:2] for value in outputs]
    net = ns.Program(tuple(outputs))
    return Built(
        net, {name: int(builder.rng.integers(2, largest)) for name in net.widths}
    )


# Programs whose gradients have a limit that is known


def _branch(builder, y, width):
    """What is added to a stream: attention of some kind, or a matrix and its transpose,
    or a matrix again.
    """
    norm = builder.choose([ns.rms_norm, ns.layer_norm, lambda v: v])
    kind = builder.choose(
        ["attention", "attention", "attention", "both", "again", "transposed"]
    )
    if kind == "attention":
        mask = "causal" if builder.often(0.3) else None
        return ns.nn.attention(
            norm(y), builder.choose([1, 2]), builder.choose([width, 2 * width]), mask
        )
    if kind == "both":
        w = builder.weight(width, ())
        return 0.5 * (w.T @ (w @ norm(y)))
    w = builder.weight(width, (), again=0.7)
    return w.T @ norm(y) if kind == "transposed" else w @ norm(y)


@st.composite
def limit_gradients(draw, **options):
    """Those of `random_limit_gradient`, chosen by hypothesis."""
    return random_limit_gradient(integers_of(draw), **options)


def random_limit_gradient(integer, blocks=2):
    """Forward and backward quantities of a stream with attention, transposes and
    matrices that act again.
    """
    width = ns.Width("n")
    builder = GradientBuilder(integer(0, MAX_SEED), (width,))
    tokens = builder.choose([1, 2, 2, 3])
    x = y = ns.gaussian(width, tokens, cov=builder.choose([1.0, np.eye(tokens) + 0.5]))
    for _ in range(integer(1, blocks)):
        y = y + _branch(builder, y, width)
    p = ns.dot(ns.gaussian(width), y[-1])
    g = ns.grad(p, x)
    i, j = builder.rng.integers(tokens, size=2)
    return ns.Program(
        (p, ns.ntk(p), ns.mean_dot(g[i], g[i]), ns.dot(g[i], x[i]), ns.dot(g[j], y[i]))
    )
