"""Random programs over the whole language, for the property tests.

A program is grown from a seed, step by step, so that fewer steps with one seed make the
beginning of the same program: a failing example shrinks by losing its last steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import netsor as ns
from tests.internals import Acting, Entrywise

from .builder import Builder

WIDTHS = (ns.Width("n"), ns.Width("m"), ns.Width(3))


@dataclass(repr=False)
class Built:
    """A random program, with numbers for its widths."""

    net: ns.Program
    widths: dict[str, int]

    def __repr__(self):
        return f"{self.widths}\n{self.net}"


STEPS = (
    ["matmul"] * 4
    + ["nonlin"] * 3
    + ["several"] * 2
    + ["residual"] * 2
    + ["each", "two_each"]
)
STEPS += [
    "add",
    "scale",
    "mix",
    "mix",
    "reduce",
    "rearrange",
    "concat",
    "norm",
    "attention",
    "attention",
]
STEPS += [
    "normal",
    "rotary",
    "layer",
    "layer",
    "perceptron",
    "embedding",
    "shared",
    "words",
]
STEPS += ["initial", "data", "pool"] + ["dot"] * 6 + ["function"] * 4


def operations(kind):
    """The operations of the language: the classes below one, but for those that only
    others are derived from.
    """
    for found in kind.__subclasses__():
        yield from operations(found)
        if found.__module__.startswith("netsor.language") and found not in (
            Entrywise,
            Acting,
        ):
            yield found


def grown(builder, kinds, steps, largest):
    """The program of so many steps."""
    builder.vectors.append(builder.initial())
    for _ in range(steps):
        builder.grow(kinds)
    return built(builder, largest)


def built(builder, largest):
    # its own, so that steps can be lost
    last = np.random.default_rng([builder.seed, 1])
    outputs = [builder.vectors[-1], *builder.scalars[-1:]]
    if last.random() < 0.2:
        outputs.append(builder.vectors[-min(len(builder.vectors), 3)])
    # comparing the law of many entries takes longer than drawing them
    if last.random() < 0.8:
        outputs = [
            value if value.size <= 3 else value.reshape(-1)[:3] for value in outputs
        ]
    net = ns.Program(tuple(outputs))
    small = {
        name: int(last.integers(1, largest, 2, endpoint=True).min())
        for name in net.widths
    }
    return Built(net, small)


MAX_SEED = 2**32 - 1
SEEDS = st.integers(0, MAX_SEED)


def random_program(integer, steps=8, largest=12, fixed_widths=True):
    """A program that returns a vector, mostly a scalar, now and then a second vector;
    and integers for its widths.

    `integer(low, high)` chooses.
    """
    builder = Builder(integer(0, MAX_SEED), WIDTHS if fixed_widths else WIDTHS[:2])
    return grown(builder, STEPS, integer(2, steps), largest)


@st.composite
def programs(draw, **options):
    """Those of `random_program`, chosen by hypothesis."""
    return random_program(integers_of(draw), **options)


def integers_of(draw):
    """The choice of integers by hypothesis."""
    return lambda low, high: draw(st.integers(low, high))


def example(make, number, seed, **options):
    """A random program that is always the same, where versions of hypothesis choose
    others.

    For tests at one width: a program may converge slowly, or be refused, and no level
    of a test allows for that.
    """
    rng = np.random.default_rng([seed, number])
    return make(
        lambda low, high: int(rng.integers(low, high, endpoint=True)), **options
    )


# Programs that have a limit, nearly always


class LimitBuilder(Builder):
    """Scores here are of a fresh matrix, so that they do not grow with the width.

    No factor is very large: 1e8 times what vanishes like n^(−1/2) is far from its limit
    at every width of a test.
    """

    def __init__(self, seed, widths):
        super().__init__(seed, widths)
        self.extreme = True

    def score(self):
        x = self.vector()
        y = self.vector(width=x.width)
        d = self.choose(self.widths)
        q = self.choose([0.7, 1.0, 1.3]) * (ns.weight(d, x.width) @ x)
        k = ns.weight(d, x.width) @ y
        q = self.choose([q, q, q + ns.gaussian(d), ns.tanh(q)])
        return ns.dot(q, k)

    def token_mixing(self):
        """A block of a transformer: norm, attention, norm, a perceptron with a gate or
        without.
        """
        x = self.vector()
        if not x.shape:
            x = x[None]
        norm = self.choose([ns.rms_norm, ns.layer_norm, lambda v, eps: v])
        mask = "causal" if self.often(0.3) else None
        y = x + ns.nn.attention(
            norm(x, eps=0.01), self.choose([1, 2]), self.choose(self.widths), mask
        )
        if self.often(0.5):
            return y
        z, hidden = norm(y, eps=0.01), self.choose(self.widths)
        u, g = (ns.weight(hidden, z.width) @ z for _ in range(2))
        h = self.choose([ns.relu(u), ns.gelu(u), ns.silu(g) * u, ns.tanh(u) * g])
        return y + ns.weight(z.width, hidden) @ h

    def mean(self):
        x = self.vector()
        return ns.mean_dot(x, self.vector(width=x.width))


LIMIT_STEPS = ["matmul"] * 3 + [
    "each",
    "nonlin",
    "nonlin",
    "nonlin",
    "several",
    "residual",
    "residual",
    "add",
]
LIMIT_STEPS += [
    "normal",
    "rotary",
    "layer",
    "layer",
    "perceptron",
    "embedding",
    "shared",
    "words",
]
LIMIT_STEPS += [
    "scale",
    "mix",
    "reduce",
    "rearrange",
    "concat",
    "norm",
    "norm",
    "attention",
    "attention",
]
LIMIT_STEPS += [
    "token_mixing",
    "token_mixing",
    "score",
    "score",
    "score",
    "mean",
    "function",
    "function",
    "initial",
]


def random_limit_program(integer, steps=6, largest=12):
    """A program whose widths are all symbols and which mostly has a limit; integers for
    the widths as in `programs`.
    """
    return grown(
        LimitBuilder(integer(0, MAX_SEED), WIDTHS[:2]),
        LIMIT_STEPS,
        integer(2, steps),
        largest,
    )


@st.composite
def limit_programs(draw, **options):
    """Those of `random_limit_program`, chosen by hypothesis."""
    return random_limit_program(integers_of(draw), **options)
