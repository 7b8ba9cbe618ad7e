"""Steps of optimisers: the exact engine against the literal interpreter, and that
against matrices that are moved.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import netsor as ns
from tests.internals import (
    Gaussian,
    SteppedMatMul,
    SteppedParameter,
    _Gradient,
    _Literal,
    _PolarFactor,
    _Signs,
    initial_value,
    orthogonalised,
    topological_order,
)

from ..keep import keep
from ..steps import stepped
from .compare import exact_draws, literal_draws, smallest_of
from .differences import drawn, slopes

n = ns.Width("n")
LEVEL = 1e-8  # of the smallest of some 20 p-values
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@seed(31)
@settings(max_examples=8, **QUIET)
@given(built=stepped(grow=4))
def test_one_step_matches_the_reference_interpreter(built):
    b = literal_draws(built.net, 300, **built.widths)
    # the small widths of these programs draw most matrices
    for without in ((), ("drawn",)):
        assert (
            smallest_of(exact_draws(built.net, 300, without=without, **built.widths), b)
            > LEVEL
        )


@seed(32)
@settings(max_examples=4, **QUIET)
@given(built=stepped(grow=2, steps=3))
def test_several_steps_match_the_reference_interpreter(built):
    b = literal_draws(built.net, 300, **built.widths)
    for without in ((), ("drawn",)):
        assert (
            smallest_of(exact_draws(built.net, 300, without=without, **built.widths), b)
            > LEVEL
        )


@pytest.mark.slow
@seed(33)
@settings(max_examples=1000, **QUIET)
@given(built=stepped(grow=7))
def test_many_steps_match_the_reference_interpreter(built):
    a = exact_draws(built.net, 1500, **built.widths)
    assert smallest_of(a, literal_draws(built.net, 1500, **built.widths)) > LEVEL


def test_matrix_that_acts_twice_in_one_product_takes_a_step():
    """Its places after a step: they were lost, and planning failed."""
    n, w = ns.Width("n"), ns.weight(ns.Width("n"), ns.Width("n"), 2)
    x = ns.gaussian(n)
    y = w[[0, 0, 1]] @ x
    after = ns.step(y, ns.mean_dot(y, y).sum(), 0.3)
    net = ns.Program((after, ns.mean_dot(after, after)))
    assert (
        smallest_of(exact_draws(net, 2000, n=3), literal_draws(net, 2000, n=3)) > LEVEL
    )


# The literal interpreter: the network before the step, run again with matrices that are
# moved by a gradient that is found by differences


def after_step(w, g, rule, widths):
    """A parameter after a step, as a textbook has it."""
    optimiser, sizes = (
        rule.optimiser,
        (rule.in_width.bind(widths), rule.out_width.bind(widths)),
    )
    lr = optimiser.lr(*sizes) if callable(optimiser.lr) else optimiser.lr
    if isinstance(optimiser, ns.optim.Adam):
        g = g / (np.abs(g) + optimiser.eps)
    if isinstance(optimiser, ns.optim.Muon):
        x = g / max(np.linalg.norm(g), optimiser.eps, 1e-300)
        for a, b, c in optimiser.iterations:
            x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
        g = optimiser.adjust_lr_fn(*sizes) * x
    return w - lr * (g + optimiser.weight_decay * w)


def moved_by_differences(outputs, after, loss, widths):
    """The outputs after the step, with every parameter moved by its own gradient, entry
    by entry.
    """
    every = [loss, *outputs, *after]  # the order numbers the sources
    sample = drawn(every, widths)
    updated = {}
    rules = {}
    for value in topological_order(after):
        if isinstance(value.op, SteppedMatMul):
            for member in {m for part in value.op.parts for m in part.members}:
                rules[value.op.weight.source, member] = (
                    value.op.weight.drawn,
                    value.op.steps[0],
                )
        if isinstance(value.op, SteppedParameter):
            rules[initial_value(value)[0]] = None, value.op.rule
    for key, (weight, rule) in rules.items():
        array = (sample.matrices if isinstance(key, tuple) else sample.drawn)[key][0]
        directions = np.eye(array.size).reshape(array.size, *array.shape)
        gradient = slopes(every, widths, 1, {key: directions})[0].reshape(array.shape)
        unit = (
            1.0 if weight is None else weight.std / weight.in_width.bind(widths) ** 0.5
        )
        if isinstance(key, ns.Value) and isinstance(key.op, Gaussian):
            rows = np.column_stack(
                [key.op.mean.ravel(), key.op.factor.reshape(key.size, -1)]
            )
            random = rows[:, 1:].any(axis=1)
            same = (rows[:, None] == rows).all(axis=-1) & random | np.eye(
                key.size, dtype=bool
            )
            gradient = (same @ gradient.reshape(key.size, -1)).reshape(array.shape)
        updated[key] = after_step(unit * array, gradient / unit, rule, widths) / unit
    literal = _Literal(sample.sources, widths, 3, 0, replicas=1)
    literal.matrices = dict(sample.matrices)
    for key, array in updated.items():
        if isinstance(key, tuple):
            literal.matrices[key] = array[None]
    for value in topological_order(outputs):
        if value in updated:
            literal.drawn[value] = updated[value][None]
        else:
            literal.evaluate(value)
    return [literal.drawn[value][0] for value in outputs], [
        sample.drawn[value][0] for value in after
    ]


@seed(34)
@settings(max_examples=28, **QUIET)
@given(built=stepped(grow=4, memory=False))
def test_reference_interpreter_matches_updated_matrices(built):
    outputs = built.net.outputs
    before, after = outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]
    expected, simulated = moved_by_differences(before, after, before[1], built.widths)
    for a, b in zip(simulated, expected, strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(b).max())
        )


# A rule broken on purpose is caught


def network(optimiser, **options):
    """Two layers and attention on three tokens, one of them twice; a step of all
    matrices.
    """
    x = ns.data(np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8], [1.0, 0.5, -0.2]]))
    w = ns.weight(2 * n, 3), ns.weight(n, 2 * n)
    y = w[1] @ ns.tanh(w[0] @ x)
    y = y + ns.nn.attention(y, heads=2, mask="causal")
    f = ns.dot(ns.gaussian(n), y)
    loss = ((f - np.array([1.0, -1.0, 0.5])) ** 2).sum()
    lr = 0.2 if optimiser == "sgd" else 0.05
    after = ns.step([f, y], loss, lr, optimiser, **options)
    return ns.Program((f, after[0], ns.mean_dot(after[1] - y, after[1] - y)[0, 0]))


OPTIONS = {"sgd": {}, "muon": {"newton_schulz": 5}, "adam": {}}


@pytest.mark.parametrize("optimiser", keep(OPTIONS, "adam"))
def test_comparison_rejects_a_broken_step_rule(monkeypatch, optimiser):
    net = network(optimiser, **OPTIONS[optimiser])
    literal = literal_draws(net, 1000, n=5)
    assert smallest_of(exact_draws(net, 1000, n=5, without=("drawn",)), literal) > 1e-4
    # a step that is half as long again; plans of one program are kept, so it is made
    # anew
    term = {"sgd": _Gradient, "muon": _PolarFactor, "adam": _Signs}[optimiser]
    act = term.act
    monkeypatch.setattr(
        term,
        "act",
        lambda *arguments: [1.5 * change for change in act(*arguments)],
    )
    net = network(optimiser, **OPTIONS[optimiser])
    assert smallest_of(exact_draws(net, 1000, n=5, without=("drawn",)), literal) < 1e-8


# Muon's matrix


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dependent", [False, True])
def test_polar_factor_from_gram_matrices_equals_the_svd(scale, dependent):
    rng = np.random.default_rng(0)
    left, right, sizes = (
        rng.standard_normal((5, 9)),
        rng.standard_normal((5, 7)),
        np.array([1.0, 0.5, 1, 1, 2]),
    )
    right *= scale
    right[1] *= 1e-3
    # a token that occurs twice, and another one whose gradient is a multiple of
    # another's
    if dependent:
        right[3], left[3], left[4] = right[0], 0.5 * left[2], 2.0 * left[1]
    gradient = (left.T * sizes) @ right
    m = orthogonalised(
        (left @ left.T / 9)[None], (right @ right.T / 7)[None], tuple(sizes), None
    )[0]
    u, s, v = np.linalg.svd(gradient)
    rank = int((s > 1e-5 * s[0]).sum())
    assert rank == (3 if dependent else 5)
    np.testing.assert_allclose(
        left.T @ m @ right / 63**0.5, u[:, :rank] @ v[:rank], atol=1e-6
    )
    for steps in ([(3.4445, -4.7750, 2.0315)] * 5, [(1.5, -0.5, 0.0)]):
        m = orthogonalised(
            (left @ left.T / 9)[None],
            (right @ right.T / 7)[None],
            tuple(sizes),
            tuple(steps),
        )[0]
        x = gradient / np.linalg.norm(gradient)
        for a, b, c in steps:
            x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
        np.testing.assert_allclose(left.T @ m @ right / 63**0.5, x, atol=1e-9)


@pytest.mark.parametrize("part", [1e-3, 1e-4, 1e-5])
def test_newton_schulz_with_cancelling_gradients_equals_the_matrix(part):
    """Two uses of a matrix whose gradients are opposite but for a small part."""
    rng = np.random.default_rng(0)
    (left, more), (right, other) = rng.standard_normal((2, 2, 30))
    left, right = (
        np.stack([left, part * more - left]),
        np.stack([right, right + part * other]),
    )
    steps = ((3.4445, -4.775, 2.0315),) * 5
    x = left.T @ right
    x /= np.linalg.norm(x)
    for first, third, fifth in steps:
        outer = x @ x.T
        x = first * x + (third * outer + fifth * outer @ outer) @ x
    m = orthogonalised(
        (left @ left.T / 30)[None], (right @ right.T / 30)[None], (1.0, 1.0), steps
    )[0]
    np.testing.assert_allclose(left.T @ m @ right / 30, x, atol=1e-3 * np.abs(x).max())
