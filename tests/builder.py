"""How random programs grow, step by step."""

from __future__ import annotations

import numpy as np
from scipy import special

import netsor as ns
from tests.internals import pooled

from .layers import Layers

MOST_VECTORS = 9  # in one array, to keep the programs small


# Functions of the user's. Some have the name of one of the library's, and are others.


def _gate(x, y):
    return np.tanh(x + 0.5 * y) * 0.8


def _three(x, y, z):
    return np.sin(x) * y - 0.5 * np.maximum(z, 0.0)


def _turned(x, p):
    return x * np.cos(p)


def _two_and_one(x, y, p):
    return np.where(y > 0.1, x, np.tanh(p) * y)


def _square_root(p):
    return np.sqrt(1 + p**2)


def _ends(u):
    return np.stack([np.abs(u).max(axis=-1), u.mean(axis=-1)], axis=-1)


def _unit(p):
    return p / (1 + np.sum(np.abs(p), axis=-1, keepdims=True))


OWN = {
    "relu": lambda u: np.maximum(u, -0.5),
    "erf": lambda u: np.tanh(2.0 * u),
    "identity": lambda u: u / (1.0 + u * u),
    "clip": lambda u: np.minimum(u, 0.3),
    "step": lambda u: u > 0.2,
}
OWN_OF_SCALARS = {
    "softmax": lambda p: special.softmax(p / 3.0, axis=-1),
    "masked_softmax": lambda p: np.sort(np.tanh(p), axis=-1),
    "sum": lambda p: np.max(p, axis=-1),
}

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
    ns.gelu_tanh,
    ns.silu,
    ns.sin,
    ns.cos,
    *(lambda x, name=name, f=f: ns.nonlin(f, x, name=name) for name, f in OWN.items()),
]


class Builder(Layers):
    """Values made so far. Each step makes one from earlier ones, or raises TraceError
    if these do not fit.
    """

    def __init__(self, seed, widths):
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.widths = widths
        self.vectors: list[ns.Vector] = []
        self.scalars: list[ns.Scalar] = []
        self.weights: list[ns.Weight] = []
        self.extreme = False  # one very large or small factor in a program is enough

    def choose(self, options):
        return options[self.rng.integers(len(options))]

    def turned(self, d):
        """The width of vectors with rotary positions: a number in programs for limits,
        where ∞ is refused.
        """
        return d if ns.Width(3) in self.widths else ns.Width(12)

    def latest(self, options):
        """One of the options, rather a late one: so programs get deep."""
        return options[-min(self.rng.geometric(0.4), len(options))]

    def often(self, probability):
        return self.rng.random() < probability

    def number(self):
        if not self.extreme and self.often(0.03):
            self.extreme = True
            return self.choose([1e-8, 1e-5, -1e4, 1e8])
        return self.choose([-1.0, 0.5, 1.0, 1.5])

    def vector(self, **where):
        found = [
            v
            for v in self.vectors
            if all(getattr(v, key) == value for key, value in where.items())
        ]
        return self.latest(found or self.vectors)

    def scalar(self):
        if not self.scalars:
            raise ns.TraceError("scalar", "there is none yet")
        return self.latest(self.scalars)

    # Beginnings

    def initial(self):
        shape = self.choose([(), (1,), (2,), (3,), (2, 2), (2, 3)])
        size = int(np.prod(shape, dtype=int))
        factor = self.rng.choice([-1.0, 0.5, 1.0, 1.5], (size, size))
        cov = self.choose([1.0, 0.5, factor @ factor.T / size, np.ones((size, size))])
        return ns.gaussian(
            self.choose(self.widths), shape, mean=self.choose([0.0, 0.0, 0.7]), cov=cov
        )

    def data(self):
        rows = self.choose([(), (2,), (3,)])
        return ns.data(
            np.cos(
                np.arange(3 * int(np.prod(rows, dtype=int))) * self.number()
            ).reshape(*rows, 3)
        )

    # Matrices

    def weight(self, in_width, batch=None, again=0.5):
        known = [
            w
            for w in self.weights
            if w.in_width == in_width and batch in (None, w.batch)
        ]
        if known and self.often(again):
            return self.latest(known)  # a matrix used again
        out, batch = (
            self.choose(self.widths),
            self.choose([(), (), (1,), (2,), (3,)]) if batch is None else batch,
        )
        new = ns.weight(out, in_width, batch, std=abs(self.number()))
        self.weights.append(new)
        return new

    def matmul(self):
        x = self.vector()
        w = self.weight(x.width)
        if w.batch and self.often(0.4):
            last = w.batch[0] - 1
            w = w[
                self.choose(
                    [
                        0,
                        last,
                        [0, 0, last],
                        [last, 0],
                        slice(None, None, -1),
                        [0],
                        [[0], [last]],
                    ]
                )
            ]
        return w @ x

    def each(self):
        x = self.vector()
        if not x.shape:
            return self.weight(x.width).each(x)
        w = self.weight(x.width, self.choose([x.shape[:1], x.shape]))
        if self.often(0.3):
            w = w[self.rng.integers(0, w.batch[0], w.batch[0])]  # with repeats
        return w.each(x)

    def two_each(self):
        """Two weights of different batches, each on its own part of one array."""
        x = self.vector(ndim=2)
        out = self.choose(self.widths)
        first, second = (
            ns.weight(out, x.width, batch) for batch in (x.shape[:1], x.shape)
        )
        return first.each(x) + second.each(x)

    # Coordinates

    def nonlin(self):
        return self.choose(ACTIVATIONS)(self.vector())

    def several(self):
        x = self.vector()
        y, z = self.vector(width=x.width), self.vector(width=x.width)
        kind = self.choose(["gate", "two", "three", "scalar", "both"])
        if kind == "gate":
            return self.choose(ACTIVATIONS)(x) * y
        if kind == "two":
            return ns.nonlin(_gate, x, y)
        if kind == "three":
            return ns.nonlin(_three, x, y, z)
        if kind == "scalar":
            return ns.nonlin(_turned, x, self.latest([1.0, *self.scalars]))
        return ns.nonlin(_two_and_one, x, y, self.scalar())

    def residual(self):
        """W x + φ(x), in both orders, with fixed factors now and then."""
        x = self.vector()
        branch = ns.weight(x.width, x.width, std=abs(self.number())) @ self.choose(
            [ns.identity, ns.relu, ns.tanh]
        )(x)
        stream = self.choose([ns.tanh, ns.identity, lambda v: self.number() * v])(x)
        return branch + stream if self.often(0.5) else stream + branch

    # Combinations

    def add(self):
        x = self.vector()
        return self.choose(
            [
                x + self.vector(width=x.width),
                x - self.vector(width=x.width),
                x + 0.3,
                0.3 - x,
            ]
        )

    def scale(self):
        return self.latest([self.number(), *self.scalars]) * self.vector()

    def mix(self):
        x = self.vector()
        if not x.shape:
            raise ns.TraceError("mix", "one vector")
        fits = [a for a in self.scalars if a.ndim >= 2 and a.shape[-1] == x.shape[-1]]
        given = np.sin(np.arange(2 * x.shape[-1]) + self.number()).reshape(2, -1)
        return self.latest([given, *fits]) @ x

    def reduce(self):
        x = self.vector()
        return self.choose([x.sum, x.mean])(axis=self.choose([None, 0, -1]))

    def rearrange(self):
        x = self.vector()
        kind = self.choose(
            ["index", "slice", "turn", "repeat", "stack", "join", "reshape", "again"]
        )
        if kind == "index":
            return x[self.choose([0, -1])]
        if kind == "slice":
            return x[..., 1:]
        if kind == "turn":
            return x.transpose()
        if kind == "repeat":
            return x.broadcast_to((2, *x.shape))
        if kind == "reshape":
            return x.reshape((-1, 1)) if self.often(0.5) else x.reshape(-1)
        if kind == "again":
            return x[self.rng.integers(0, len(x), 3)] if x.shape else x[None]
        y = self.vector(width=x.width, shape=x.shape)
        return (
            ns.stack([x, y], axis=self.choose([0, -1]))
            if kind == "stack"
            else ns.join([x, y])
        )

    def concat(self):
        return ns.concat(self.vector(), axis=self.choose([0, -1]))

    def norm(self):
        return self.choose([ns.rms_norm, ns.layer_norm])(self.vector(), eps=0.1)

    # Attention, in its many forms

    def attention(self):
        x = self.vector()
        if not x.shape:
            x = x[None]
        heads, d = self.choose([1, 2, 2]), self.choose(self.widths)
        groups = self.choose([heads, heads, 1])  # of keys and values
        c = self.choose([x, x, self.vector(width=x.width)])
        c = c if c.ndim == x.ndim else x
        q, k, v = (
            ns.weight(d, x.width, b) @ t
            for b, t in ((heads, x), (groups, c), (groups, c))
        )
        if self.often(0.2):  # scaled, biased or scored once more
            q = self.choose(
                [2.0 * q, q + ns.gaussian(d), ns.tanh(q), ns.rms_norm(q, 0.1)]
            )
        p = self.choose([ns.dot, ns.dot, ns.dot, ns.mean_dot])(q, k)
        self.scalars.append(p)
        a = self.weights_of(p)
        y = a @ v
        if self.often(0.2):
            return y
        return ns.weight(self.choose([x.width, *self.widths]), heads * d) @ ns.concat(
            y, axis=0
        )

    def weights_of(self, p):
        kind = self.choose(
            ["plain", "plain", "causal", "padding", "per head", "temperature", "capped"]
        )
        if kind == "causal" and p.shape[-1] == p.shape[-2]:
            return ns.softmax(p, "causal")
        if kind == "padding":
            return ns.softmax(p, np.arange(p.shape[-1]) < 2)
        if kind == "per head":
            mask = self.rng.random(p.shape) < 0.6
            mask[..., 0] = True
            return ns.softmax(p, mask)
        if kind == "temperature":
            return ns.apply(OWN_OF_SCALARS["softmax"], p, axes=1, name="softmax")
        return ns.softmax(ns.tanh(p / 2.0) * 2.0 if kind == "capped" else p)

    def rotary(self):
        """Queries and keys at positions, in a space where half of the coordinates are
        an even number.
        """
        x = self.vector()
        x = x if x.shape else x[None]
        d, at = (
            self.turned(4 * self.choose(self.widths)),
            self.rng.integers(0, 9, x.shape[-1]),
        )
        base, fraction = self.choose([10000.0, 10.0]), self.choose([1.0, 0.5])
        q, k = (
            ns.rotary(ns.weight(d, x.width) @ x, at, base, fraction) for _ in range(2)
        )
        self.scalars.append(ns.dot(q, k))
        return self.choose([q, ns.softmax(self.scalars[-1]) @ k])

    # Scalars

    def dot(self):
        x = self.vector()
        return self.choose([ns.dot, ns.dot, ns.mean_dot])(x, self.vector(width=x.width))

    def pool(self):
        return pooled(_ends, self.vector(), 2)

    def normal(self):
        return ns.normal(
            self.choose([(), (2,), (3,), (2, 2), (3, 3)]), std=abs(self.number())
        )

    def function(self):
        p = self.scalar()
        kind = self.choose(
            [
                "weights",
                "weights",
                "root",
                "unit",
                "product",
                "sum",
                "index",
                "own",
                "named",
                "join",
            ]
        )
        if kind == "weights":
            return self.weights_of(
                p if p.ndim > 1 else p[None] if p.ndim else p[None, None]
            )
        if kind == "root":
            return ns.apply(_square_root, p)
        if kind == "unit":
            return ns.apply(_unit, p, axes=1)
        if kind == "product":
            return p * self.scalar() + 0.5
        if kind == "own":
            name = self.choose(list(OWN_OF_SCALARS))
            return ns.apply(OWN_OF_SCALARS[name], p, axes=1, name=name)
        if kind == "named":
            return self.choose([ns.relu, ns.sigmoid, ns.abs])(p)
        if kind == "join":
            return ns.stack([p, 0.5 * p])
        return p.sum(axis=-1) if kind == "sum" else p[0]

    def grow(self, steps):
        """One step more: one of these, or another if the values chosen for it do not
        fit.
        """
        for _ in range(4):
            try:
                made = getattr(self, self.choose(steps))()
            except ns.TraceError:
                continue
            if made.size <= MOST_VECTORS and made.ndim <= 3:
                (self.vectors if isinstance(made, ns.Vector) else self.scalars).append(
                    made
                )
                return
