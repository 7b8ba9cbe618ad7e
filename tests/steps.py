"""Random programs with steps of optimisers, for the property tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import netsor as ns
from tests.internals import Gaussian, MatMul, topological_order

from .gradients import GradientBuilder
from .programs import SEEDS, WIDTHS, Built

GROW = (
    ["matmul"] * 4
    + ["nonlin"] * 3
    + ["several", "residual", "residual", "each", "two_each", "add", "scale"]
)
GROW += [
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
GROW += [
    "perceptron",
    "embedding",
    "shared",
    "initial",
    "data",
    "dot",
    "dot",
    "function",
    "transposed",
    "transposed",
]
MUON = ((3.4445, -4.7750, 2.0315), (2.0, -1.5, 0.5))


def _options(builder, optimiser):
    made = {"weight_decay": builder.choose([0.0, 0.0, 0.3])}
    if optimiser == "adam":
        made["eps"] = builder.choose([0.02, 0.3])
    if optimiser == "muon":
        made |= {
            "newton_schulz": builder.choose([2, MUON]),
            "scale": lambda fan_in, fan_out: (fan_out / fan_in) ** 0.5,
        }
    return made


def _rate(builder):
    return builder.choose(
        [
            0.1,
            0.3,
            lambda fan_in, fan_out: 0.4 / fan_in,
            lambda fan_in, fan_out: 0.1 * fan_out**0.5,
        ]
    )


def _objects(builder):
    """Optimisers that remember, one for all parameters or one for a kind of them."""
    momentum, lr = builder.choose([0.5, 0.9]), _rate(builder)
    sgd = ns.optim.SGD(
        lr, momentum, *builder.choose([(0.0, 0.3, True), (0.4, 0.0, False)])
    )
    adam = builder.choose([ns.optim.Adam, ns.optim.AdamW])(
        0.1, (0.8, 0.9), 0.05, builder.choose([0.0, 0.2])
    )
    muon = ns.optim.Muon(
        lr,
        0.1,
        momentum,
        builder.choose([False, True]),
        MUON,
        builder.choose([1e-7, 0.5]),
    )
    return builder.choose(
        [sgd, adam, {"matrices": muon, None: adam}, {"matrices": muon, None: sgd}]
    )


@st.composite
def stepped(
    draw,
    grow=5,
    largest=7,
    most=60,
    optimisers=("sgd", "muon", "adam"),
    steps=1,
    memory=True,
):
    """A program before and after a step, or several: (before, after, loss, weights),
    and numbers for its widths.

    With memory, the optimiser may be an object, with gradients that are clipped.
    """
    builder = GradientBuilder(draw(SEEDS), WIDTHS)
    first = builder.initial()
    builder.vectors += [first, ns.weight(first.width, first.width) @ first]
    for _ in range(draw(st.integers(1, grow))):
        builder.grow(GROW)
    y = builder.latest(
        [
            v
            for v in builder.vectors
            if any(isinstance(u.op, MatMul) for u in topological_order([v]))
        ]
    )
    loss = ns.tanh(ns.dot(ns.gaussian(y.width), y)).sum()
    if builder.scalars and builder.often(0.5):
        loss = loss + ns.tanh(builder.scalars[-1]).sum()
    y = y.reshape(-1)[:2] if y.size > 2 else y
    before = [y, loss, ns.mean_dot(y, y)]
    if len(topological_order(before)) > most:
        before, loss = [y, loss], loss
    values = topological_order([loss])
    optimiser = builder.choose(list(optimisers))
    weights = list(
        {
            v.op.weight.source: _whole(v.op.weight)
            for v in values
            if isinstance(v.op, MatMul)
        }.values()
    )
    if optimiser != "muon" and builder.often(0.5):
        weights += [
            v
            for v in values
            if isinstance(v.op, Gaussian) and v.op.factor.any() and _apart(v)
        ][:2]
    after = before
    if memory and builder.often(0.6):
        by, clip = _objects(builder), builder.choose([None, 0.5])
        for factor in np.linspace(0.5, 1.0, steps):
            after = ns.step(
                after,
                after[1],
                optimiser=by,
                weights=weights,
                clip_norm=clip,
                lr_factor=factor,
            )
        steps = 0
    for _ in range(steps):
        after = ns.step(
            after,
            after[1],
            _rate(builder),
            optimiser,
            weights,
            **_options(builder, optimiser),
        )
    net = ns.Program((*before, *after))
    return Built(
        net, {name: int(builder.rng.integers(2, largest)) for name in net.widths}
    )


def _whole(weight):
    """All matrices of the source of a weight."""
    return replace(weight.drawn, members=np.arange(weight.count))


def _apart(v):
    """Whether initial vectors are parameters of their own: independent, or equal."""
    try:
        ns.step(ns.mean_dot(v, v), ns.mean_dot(v, v), 0.1, weights=v)
    except ns.TraceError:
        return False
    return True
