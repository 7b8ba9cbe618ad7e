"""Random programs over the whole language, for the property tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import netsor as ns

WIDTHS = (ns.Width("n"), ns.Width("m"), ns.Width(3))
MOST_VECTORS = 12  # in one array, to keep the programs small


def _two_vectors(x, y):
    return np.tanh(x + 0.5 * y) * 0.8


def _vector_and_scalar(x, p):
    return x * np.cos(p)


def _square_root(p):
    return np.sqrt(1 + p**2)


def _unit(p):
    return p / (1 + np.sum(np.abs(p), axis=-1, keepdims=True))


ACTIVATIONS = [
    ns.identity,
    ns.relu,
    lambda x: ns.leaky_relu(x, 0.2),
    ns.abs,
    lambda x: ns.clip(x, 1.0),
    lambda x: ns.clip(x, 100.0),
    ns.erf,
    ns.tanh,
    ns.sigmoid,
    ns.gelu,
    ns.silu,
    ns.sin,
    ns.cos,
]


@dataclass(repr=False)
class Built:
    """A random program, with numbers for its widths."""

    net: ns.Program
    widths: dict[str, int]

    def __repr__(self):
        return f"{self.widths}\n{self.net}"


class _Builder:
    def __init__(self, draw, widths):
        self.draw = draw
        self.widths = widths
        self.vectors: list[ns.Vector] = []
        self.scalars: list[ns.Scalar] = []
        self.weights: list[ns.Weight] = []

    def choose(self, options):
        return options[self.draw(st.integers(0, len(options) - 1))]

    def number(self):
        return self.choose([-1.0, 0.5, 1.0, 1.5])

    def vector(self, **where):
        found = [v for v in self.vectors if all(getattr(v, key) == value for key, value in where.items())]
        return self.choose(found or self.vectors)

    # Each step makes a value from earlier ones, or raises TraceError if these do not fit.

    def initial(self):
        shape = self.choose([(), (2,), (3,), (2, 2)])
        size = int(np.prod(shape, dtype=int))
        factor = np.array([[self.number() for _ in range(size)] for _ in range(size)])
        cov = self.choose([1.0, 0.5, factor @ factor.T / size])
        return ns.gaussian(self.choose(self.widths), shape, mean=self.choose([0.0, 0.0, 0.7]), cov=cov)

    def data(self):
        rows = self.choose([(), (2,), (3,)])
        return ns.data(np.cos(np.arange(3 * int(np.prod(rows, dtype=int))) * self.number()).reshape(*rows, 3))

    def weight(self, in_width):
        known = [w for w in self.weights if w.in_width == in_width]
        if known and self.choose([True, True, False]):
            return self.choose(known)  # a matrix used again
        out, batch = self.choose(self.widths), self.choose([(), (), (2,), (3,)])
        new = ns.weight(out, in_width, batch, std=self.choose([0.5, 1.0, 1.5]))
        self.weights.append(new)
        return new

    def matmul(self):
        x = self.vector()
        w = self.weight(x.width)
        if w.batch == (2,) and self.choose([True, False, False]):
            w = w[self.choose([0, 1])]
        return w @ x

    def each(self):
        x = self.vector()
        return self.weight(x.width).each(x)

    def nonlin(self):
        kind = self.choose(["named", "named", "named", "two", "scalar"])
        x = self.vector()
        if kind == "two":
            return ns.nonlin(_two_vectors, x, self.vector(width=x.width))
        if kind == "scalar":
            return ns.nonlin(_vector_and_scalar, x, self.choose(self.scalars or [1.0]))
        return self.choose(ACTIVATIONS)(x)

    def add(self):
        x = self.vector()
        return x + self.choose([self.vector(width=x.width), self.vector(width=x.width), 0.3])

    def scale(self):
        return self.choose([*self.scalars, self.number()]) * self.vector()

    def mix(self):
        x = self.vector()
        if not x.shape:
            raise ns.TraceError("mix", "one vector")
        fits = [a for a in self.scalars if a.ndim >= 2 and a.shape[-1] == x.shape[-1]]
        given = np.sin(np.arange(2 * x.shape[-1]) + self.number()).reshape(2, -1)
        return self.choose([*fits, given]) @ x

    def reduce(self):
        x = self.vector()
        return self.choose([x.sum, x.mean])(axis=self.choose([None, 0, -1]))

    def rearrange(self):
        x = self.vector()
        kind = self.choose(["index", "slice", "turn", "repeat", "stack", "join"])
        if kind == "index":
            return x[self.choose([0, -1])]
        if kind == "slice":
            return x[..., 1:]
        if kind == "turn":
            return x.transpose()
        if kind == "repeat":
            return x.broadcast_to((2, *x.shape))
        y = self.vector(width=x.width, shape=x.shape)
        return ns.stack([x, y], axis=self.choose([0, -1])) if kind == "stack" else ns.join([x, y])

    def concat(self):
        return ns.concat(self.vector(), axis=self.choose([0, -1]))

    def norm(self):
        return self.choose([ns.rms_norm, ns.layer_norm])(self.vector(), eps=0.1)

    def dot(self):
        x = self.vector()
        return self.choose([ns.dot, ns.dot, ns.mean_dot])(x, self.vector(width=x.width))

    def function(self):
        if not self.scalars:
            raise ns.TraceError("apply", "no scalars")
        p = self.choose(self.scalars)
        kind = self.choose(["softmax", "softmax", "causal", "padding", "root", "unit", "product", "sum", "index"])
        if kind == "softmax":
            return ns.softmax(p)
        if kind == "causal":
            return ns.softmax(p, "causal")
        if kind == "padding":
            return ns.softmax(p, np.arange(p.shape[-1]) < 2 if p.shape else [True])
        if kind == "root":
            return ns.apply(_square_root, p)
        if kind == "unit":
            return ns.apply(_unit, p, axes=1)
        if kind == "product":
            return p * self.choose(self.scalars) + 0.5
        return p.sum(axis=-1) if kind == "sum" else p[0]


VECTOR_STEPS = ["matmul", "matmul", "each", "nonlin", "nonlin", "add", "scale", "mix", "reduce", "rearrange"]
VECTOR_STEPS += ["concat", "norm", "initial", "data"]


@st.composite
def programs(draw, steps=8, largest=12, fixed_widths=True):
    """A program that returns a vector and, if it has any, a scalar; and integers for its widths."""
    builder = _Builder(draw, WIDTHS if fixed_widths else WIDTHS[:2])
    builder.vectors.append(builder.initial())
    for _ in range(draw(st.integers(2, steps))):
        try:
            if draw(st.integers(0, 2)) == 0:
                made = builder.choose([builder.dot, builder.dot, builder.function])()
            else:
                made = getattr(builder, builder.choose(VECTOR_STEPS))()
        except ns.TraceError:  # the chosen values do not fit this operation
            continue
        if made.size <= MOST_VECTORS and made.ndim <= 3:
            (builder.vectors if isinstance(made, ns.Vector) else builder.scalars).append(made)
    outputs = (builder.vectors[-1], *builder.scalars[-1:])
    net = ns.Program(outputs)
    return Built(net, {name: draw(st.integers(1, largest)) for name in net.widths})
