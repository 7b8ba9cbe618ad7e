"""Gradients with respect to every value that a user holds, against differences of
programs that are traced again.

The oracle knows nothing of graphs. It traces a random program once more, adds t times a
direction to one of its values where the program makes it, and differentiates the
literal network by t.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import source_order, topological_order

from ..gradients import GradientBuilder
from .differences import STEP, drawn, evaluated

WIDTHS = (ns.Width(4), ns.Width(6), ns.Width(3))
STEPS = ["rearrange"] * 6 + [
    "norm",
    "norm",
    "attention",
    "mix",
    "reduce",
    "several",
    "residual",
    "add",
    "scale",
]
STEPS += [
    "concat",
    "dot",
    "dot",
    "function",
    "function",
    "function",
    "embedding",
    "matmul",
    "shared",
    "transposed",
]


def read(y):
    """Σ of a readout of a function of all vectors, or a function of all scalars."""
    if isinstance(y, ns.Scalar):
        return ns.tanh(y).sum()
    return ns.dot(ns.gaussian(y.width), ns.tanh(y)).sum()


class Held(list):
    """The values that a user holds; t times a direction is added to one of them, chosen
    by its number.
    """

    def __init__(self, moved=None, direction=None):
        super().__init__()
        self.moved, self.direction = moved, direction

    def hold(self, value):
        if any(value is known for known in self):  # an array in its own shape is itself
            return value
        if len(self) == self.moved:
            step = (
                ns.data(self.direction)
                if isinstance(value, ns.Vector)
                else self.direction
            )
            value = value + ns.hyperparameter("t") * step
        self.append(value)
        return value


def random_program(seed, held, steps=7):
    """A scalar that uses every value of a random program."""
    builder = GradientBuilder(seed, WIDTHS)
    builder.vectors.append(held.hold(ns.gaussian(4, (2, 3))))
    for _ in range(steps):
        vectors, scalars = len(builder.vectors), len(builder.scalars)
        builder.grow(STEPS)
        # scores that attention made on the way are used already
        if len(builder.vectors) > vectors:
            builder.vectors[-1] = held.hold(builder.vectors[-1])
        elif len(builder.scalars) > scalars:
            builder.scalars[-1] = held.hold(builder.scalars[-1])
    terms = [read(value) for value in held]
    return sum(terms[1:], terms[0])


def embedded(held):
    """Vectors selected from a table, used through further indices, and the table used
    beside them.
    """
    table = held.hold(ns.gaussian(4, 2))
    x = held.hold(table[[0, 1, 0]])
    turned = held.hold(x[::-1])
    twice = held.hold(turned[::-1])
    normed = held.hold(ns.rms_norm(x))
    return (
        read(normed) + read(twice) + read(turned[1]) + read(x[:2] * x[1:]) + read(table)
    )


def regrouped(held):
    """Transposes, reshapes and joins of slices that undo each other."""
    x = held.hold(ns.gaussian(4, (2, 3)))
    turned = held.hold(x.T)
    back = held.hold(turned.T)
    flat = held.hold(back.reshape(6))
    whole = held.hold(ns.join([flat[:2], flat[2:]]))
    again = held.hold(whole.reshape(2, 3))
    return sum(map(read, (turned, back, flat, whole, again, x)), 0.0 * read(x))


def trivial(held):
    """Operations that change nothing: factors 1, terms 0, sums of one, the identity."""
    x = held.hold(ns.gaussian(4, 3))
    values = [
        1.0 * x,
        x + 0.0,
        np.eye(3) @ x,
        x[None].sum(0),
        x[None].mean(0),
        ns.identity(x),
        x / 1.0,
        ns.join([x]),
    ]
    values += [ns.concat(x[None]), ns.stack([x])[0], x.broadcast_to((1, 3))[0]]
    p = held.hold(ns.dot(x, x[0]))
    scalars = [
        1.0 * p,
        p + 0.0,
        p**1,
        ns.identity(p),
        p[None].sum(0),
        p.reshape(3, 1)[:, 0],
    ]
    return sum(read(held.hold(value)) for value in values + scalars) + read(x) + read(p)


def scores(held):
    """Indices of scalars: of scores, of weights, of means."""
    x = held.hold(ns.gaussian(4, 3))
    p = held.hold(ns.dot(x, x))
    causal = held.hold(p[1:])
    last = held.hold(causal[-1])
    weights = held.hold(ns.softmax(causal[:, ::-1]))
    mean = held.hold(ns.mean_dot(x, x)[0])
    return (
        read(weights @ x)
        + read(last[::2])
        + read(causal.T)
        + read(mean[1:] * mean[:2])
        + read(p)
    )


WRITTEN = {
    "embedded": embedded,
    "regrouped": regrouped,
    "trivial": trivial,
    "scores": scores,
}
RANDOM = [
    pytest.param(seed, marks=[pytest.mark.slow] if seed >= 4 else [])
    for seed in range(60)
]


def differences(trace, count):
    """d/dt when each value in turn moves in a random direction, and these
    directions.
    """
    plain = Held()
    p = trace(plain)
    shapes = [
        (*v.shape, v.width.factor) if isinstance(v, ns.Vector) else v.shape
        for v in plain
    ]
    rng = np.random.default_rng(5)
    directions = [rng.standard_normal(shape) for shape in shapes]
    order = source_order(topological_order([p])).values()
    slopes = []
    for number, direction in enumerate(directions):
        moved = trace(Held(number, direction))
        assert len(order) == len(source_order(topological_order([moved])))
        ends = [evaluated([moved], {"t": step})[0] for step in (STEP, -STEP)]
        slopes.append((ends[0] - ends[1]) / (2 * STEP))
    return np.array(slopes), directions


def errors(trace):
    """How far each gradient is from the difference, alone and with all others."""
    held = Held()
    p = trace(held)
    together = ns.grad(p, list(held))
    alone = [ns.grad(p, value) for value in held]
    slopes, directions = differences(trace, len(held))
    sample = drawn([p, *together, *alone], {})
    size = np.abs(slopes).max() + 1e-3
    worst = []
    for gradients in (together, alone):
        for value, gradient, direction, slope in zip(
            held, gradients, directions, slopes, strict=True
        ):
            unit = value.width.factor**-0.5 if isinstance(value, ns.Vector) else 1.0
            slope_by_gradient = unit * np.sum(sample.drawn[gradient][0] * direction)
            worst.append(abs(slope_by_gradient - slope) / size)
    return np.array(worst)


@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_by_every_value_equal_finite_differences(name):
    assert errors(WRITTEN[name]).max() < 1e-7


@pytest.mark.parametrize("seed", RANDOM)
def test_gradients_by_every_value_of_random_programs_equal_finite_differences(seed):
    assert errors(lambda held: random_program(seed, held)).max() < 1e-6


def test_gradient_before_rms_norm_is_orthogonal_to_its_value():
    """rms_norm does not see the scale of its argument."""
    n = ns.Width("n")
    table = ns.gaussian(n, 2)
    x = table[[0, 1, 0]]
    g = ns.grad(ns.dot(ns.gaussian(n), ns.rms_norm(x)).sum(), x)
    net = ns.Program(ns.dot(g[0], x[0]))
    assert np.abs(net.draw(n=16, draws=100)).max() < 1e-12
    assert np.abs(net.simulate(n=16, draws=100)).max() < 1e-12


# Steps and tangent kernels with inputs that are indices


def selected(table, ids):
    """Rows of a table, as an index that is used through further indices."""
    return table[ids]


def mixed(table, ids):
    """The same, as a combination by numbers."""
    return np.eye(2)[ids] @ table


def trained(rows, quantity):
    """A quantity of a network whose input, and parameter, is made of rows of a
    table.
    """
    n = ns.Width("n")
    table, w, r = (
        ns.gaussian(n, 2, name="table"),
        ns.weight(n, n, name="w"),
        ns.gaussian(n, name="r"),
    )
    x = rows(table, [0, 1, 0])
    y = x + ns.tanh(w @ ns.rms_norm(x, 0.1))
    p = ns.dot(r, y)
    loss = ((p - 1.0) ** 2).sum()
    # p comes first, so that both programs draw the same numbers
    return p, quantity(p, loss, [w, table, r])


ADAM = ns.optim.AdamW(0.1, weight_decay=0.1)
QUANTITIES = {
    "ntk": lambda p, loss, given: ns.ntk(p, weights=given),
    "ntk, standard": lambda p, loss, given: ns.ntk(
        p[1:], p, given, parametrisation="standard"
    ),
    "grad_norm": lambda p, loss, given: ns.grad_norm(loss, given[1]),
    "sgd": lambda p, loss, given: ns.step(p, loss, 0.1, weights=given, clip_norm=1.0),
    "adam": lambda p, loss, given: ns.step(p, loss, 0.1, "adam", weights=given),
    "muon": lambda p, loss, given: ns.step(p, loss, 0.1, "muon", weights=given[:1]),
    "AdamW": lambda p, loss, given: ns.train(p, loss, ADAM, 2, given)[-1],
}


@pytest.mark.parametrize("name", QUANTITIES)
def test_steps_and_kernels_do_not_depend_on_how_rows_are_selected(name):
    index, combination = (
        ns.Program(trained(rows, QUANTITIES[name])) for rows in (selected, mixed)
    )
    (p, kernel), (same_p, expected) = (
        net.simulate(n=4, draws=3) for net in (index, combination)
    )
    np.testing.assert_allclose(p, same_p, rtol=1e-12)
    np.testing.assert_allclose(kernel, expected, rtol=1e-8, atol=1e-12)


def test_gradient_by_a_value_after_a_step():
    """The new value of an index is a value of the new program."""
    n = ns.Width("n")
    table, w = ns.gaussian(n, 2), ns.weight(n, n)
    x = (w @ table)[[0, 1, 0]]
    f = ns.dot(ns.gaussian(n), ns.rms_norm(x)).sum()
    moved, after = ns.step([x, f], f**2, 0.1)
    g = ns.grad(after, moved)
    assert (
        np.abs(ns.Program(ns.dot(g[0], moved[0])).simulate(n=5, draws=20)).max() < 1e-12
    )
