"""Optimisers that remember: textbook training in numpy, which matrices are drawn,
hyperparameters, infinite width.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    Context,
    MaterialisedMatMul,
    _plan_query,
    expand_steps,
    topological_order,
)

from ..keep import keep

n = ns.Width("n")
X = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8]])
T = np.array([1.0, -1.0])
STEPS, CLIP = 3, 0.8


def network(read=ns.dot):
    w, v, r = (
        ns.weight(n, 3, name="in"),
        ns.weight(n, n, name="hidden"),
        ns.gaussian(n, name="out"),
    )
    h = ns.tanh(w @ ns.data(X))
    f = read(r, ns.tanh(v @ h))
    return ((f - T) ** 2).mean(), [w, v, r]


def newton_schulz(g):
    x = g / np.linalg.norm(g)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
    return x


class Textbook:
    """Optimisers as their papers have them, for one parameter."""

    def __init__(self, kind):
        self.kind, self.m, self.v, self.t = kind, 0.0, 0.0, 0

    def step(self, w, g, factor):
        self.t += 1
        if self.kind == "nesterov":
            self.m = 0.9 * self.m + g
            return w - factor * 0.1 * (g + 0.9 * self.m)
        if self.kind == "muon" and w.ndim == 2:
            self.m = 0.95 * self.m + 0.05 * g
            lr = factor * 0.1
            tall = max(1.0, w.shape[0] / w.shape[1]) ** 0.5
            return (1 - 0.1 * lr) * w - lr * tall * newton_schulz(
                0.05 * g + 0.95 * self.m
            )
        lr = factor * 0.05
        if self.kind == "lion":
            direction = np.sign(0.9 * self.m + 0.1 * g)
            self.m = 0.99 * self.m + 0.01 * g
            return (1 - 0.2 * lr) * w - lr * direction
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        size = np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8
        return (1 - 0.01 * lr) * w - lr * self.m / (1 - 0.9**self.t) / size


@cache
def trained(kind, width, count, seed):
    """Losses after each step of real networks."""
    rng = np.random.default_rng(seed)
    losses = np.empty((count, STEPS + 1))
    for k in range(count):
        w = [
            rng.standard_normal((width, 3)) / 3**0.5,
            rng.standard_normal((width, width)) / width**0.5,
        ]
        w.append(rng.standard_normal(width))
        by = [Textbook(kind) for _ in w]
        for t in range(STEPS + 1):
            h = np.tanh(X @ w[0].T)
            y = np.tanh(h @ w[1].T)
            away = y @ w[2] / width**0.5 - T
            losses[k, t] = (away**2).mean()
            dy = away[:, None] * w[2] / width**0.5 * (1 - y * y)
            g = [((dy @ w[1]) * (1 - h * h)).T @ X, dy.T @ h, away @ y / width**0.5]
            norm = np.sqrt(sum((each**2).sum() for each in g))
            g = [each * min(1.0, CLIP / (norm + 1e-6)) for each in g]
            w = [
                o.step(a, b, min(1.0, (t + 1) / 3))
                for o, a, b in zip(by, w, g, strict=True)
            ]
    return losses


OURS = {
    "nesterov": lambda: ns.optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: ns.optim.AdamW(0.05),
    "muon": lambda: {"matrices": ns.optim.Muon(0.1), None: ns.optim.AdamW(0.05)},
    "lion": lambda: ns.optim.Lion(0.05, weight_decay=0.2),
}


def losses_of(kind):
    loss, weights = network()
    after = ns.train(
        loss,
        loss,
        OURS[kind](),
        STEPS,
        weights,
        schedule=lambda t: min(1.0, (t + 1) / 3),
        clip_norm=CLIP,
    )
    return ns.Program(tuple(after))


def smallest(ours, real):
    return min(
        stats.ks_2samp(a, b, method="asymp").pvalue
        for a, b in zip(ours.T, real.T, strict=True)
    )


@pytest.mark.parametrize("kind", OURS)
def test_steps_have_the_law_of_training(kind):
    real = trained(kind, 12, 300, 1)
    ours = np.stack(losses_of(kind).draw(n=12, draws=1000, seed=2), axis=1)
    assert smallest(ours, real) > 1e-4 / (STEPS + 1)


def test_another_momentum_is_seen(monkeypatch):
    real = trained("nesterov", 12, 300, 1)
    monkeypatch.setitem(
        OURS, "nesterov", lambda: ns.optim.SGD(0.1, momentum=0.2, nesterov=True)
    )
    ours = np.stack(losses_of("nesterov").draw(n=12, draws=1000, seed=2), axis=1)
    assert smallest(ours, real) < 1e-6


# Which matrices are drawn


def drawn(optimiser, width, steps):
    """The names of the matrices whose entries are numbers of the plan."""
    loss, weights = network()
    outputs = [ns.train(loss, loss, optimiser, steps, weights)[-1]]
    context = Context(
        {"n": width}, {value: k for k, value in enumerate(topological_order(outputs))}
    )
    values = topological_order(expand_steps(outputs, context))
    return {
        value.op.weight.source.name
        for value in values
        if isinstance(value.op, MaterialisedMatMul)
    }


def test_matrix_is_drawn_if_it_acts_on_more_vectors_than_it_has_columns():
    sgd = ns.optim.SGD(0.1, momentum=0.9)
    # 2 inputs forward and back, before each of 3 steps, and forward: 14
    assert "hidden" not in drawn(sgd, 64, 3)
    assert "hidden" in drawn(sgd, 13, 3)
    assert "hidden" in drawn(sgd, 64, 16)


def test_moments_of_adam_need_the_entries():
    adam = ns.optim.AdamW(0.01)
    assert drawn(adam, 4096, 1) == set()
    assert drawn(adam, 4096, 2) == {"in", "hidden"}
    # it adds W to the gradient
    assert drawn(ns.optim.Adam(0.01, weight_decay=0.1), 4096, 1) == {"in", "hidden"}


def test_signs_of_momentum_need_the_entries():
    lion = ns.optim.Lion(0.01, weight_decay=0.1)
    assert drawn(lion, 4096, 1) == set()
    assert drawn(lion, 4096, 2) == {"in", "hidden"}


@pytest.mark.slow
def test_steps_of_lion_have_the_limit_of_large_widths():
    """Its buffer is a sum of gradients, so that every step has a limit."""
    h = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    loss = (ns.mean_dot(ns.gaussian(n), h) - 1.0) ** 2
    lion = ns.optim.Lion(lambda fan_in, fan_out: 0.3 / fan_in, weight_decay=0.1)
    net = ns.Program(ns.train(loss, loss, lion, steps=3))
    limit = net.law(n=ns.inf).mean()
    assert limit[0] == 1.0
    wide = np.array(net.draw(n=512, draws=60, seed=1))
    error = wide.std(axis=1) / 60**0.5
    assert (np.abs(wide.mean(axis=1) - limit) < 4 * error + 0.005).all()
    assert limit[1] - limit[3] > 0.3


# Hyperparameters


def test_grid_of_learning_rates_is_planned_once(monkeypatch):
    plans = []
    made = _plan_query.PlanQuery.made
    monkeypatch.setattr(
        _plan_query.PlanQuery,
        "made",
        lambda self, shift: plans.append(1) or made(self, shift),
    )
    _plan_query._kept.cache_clear()
    loss, weights = network()
    rate, decay = ns.hyperparameter("lr"), ns.hyperparameter("decay")
    by = {
        "matrices": ns.optim.SGD(rate, momentum=0.5, weight_decay=decay),
        None: ns.optim.AdamW(0.3 * rate),
    }
    net = ns.Program(ns.train(loss, loss, by, 2, weights)[-1])
    found = [net.draw(n=16, draws=400, lr=lr, decay=0.1) for lr in (0.0, 0.1, 0.2)]
    assert len(plans) == 1
    assert found[0].mean() > found[1].mean()
    real = net.simulate(n=16, draws=400, seed=3, lr=0.2, decay=0.1)
    assert stats.ks_2samp(found[2], real).pvalue > 1e-4
    _plan_query._kept.cache_clear()
    np.testing.assert_array_equal(
        net.draw(n=16, draws=400, lr=0.2, decay=0.1), found[2]
    )


def _attention(std):
    n = ns.Width("n")
    x, a = ns.gaussian(n, 3), ns.weight(n, n, std=std, name="a")
    h = x + a.T @ ns.tanh(a @ x)
    q, k, v = (ns.weight(n, n, std=std, name=name) @ h for name in "qkv")
    y = ns.softmax(ns.dot(q, k)) @ v
    return ns.Program(
        (ns.mean_dot(y[:, None], y[:, None])[0, 0, 0], ns.dot(ns.gaussian(n), y)[0])
    )


def test_std_of_a_weight_is_a_hyperparameter(monkeypatch):
    """The law is that of a program with the number, and a grid is planned once."""
    plans, made = [], _plan_query.PlanQuery.made
    monkeypatch.setattr(
        _plan_query.PlanQuery,
        "made",
        lambda self, shift: plans.append(1) or made(self, shift),
    )
    _plan_query._kept.cache_clear()
    net = _attention(ns.hyperparameter("std"))
    grid = [net.draw(n=24, draws=1000, seed=2, std=std) for std in (0.5, 0.7, 1.3)]
    assert len(plans) == 1
    for std, found in ((0.5, grid[0]), (1.3, grid[2])):
        for a, b in zip(
            found, _attention(std).draw(n=24, draws=1000, seed=1), strict=True
        ):
            assert stats.ks_2samp(a, b).pvalue > 1e-4 / 4
    assert stats.ks_2samp(grid[1][0], grid[2][0]).pvalue < 1e-20
    loss = ns.mean_dot(
        ns.gaussian(4), ns.weight(4, 4, std=ns.hyperparameter("std")) @ ns.gaussian(4)
    )
    with pytest.raises(ns.TraceError, match="has a scalar as std: give it a number"):
        ns.step(loss, loss, 0.1)


def test_hyperparameter_alone_is_the_same_in_every_draw():
    net = ns.Program(2.0 * ns.hyperparameter("a"))
    np.testing.assert_array_equal(net.draw(draws=5, a=3.0), np.full(5, 6.0))
    assert net.law(draws=5, a=3.0).mean() == 6.0
    assert net.simulate(draws=2, a=1.0).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 4}, "hyperparameter lr is not bound: give lr=…, a finite number"),
        ({"n": 4, "lr": "x"}, "lr='x' must be a finite number"),
        ({"n": 4, "lr": 0.1, "wd": 1.0}, "width wd=1.0 is not used"),
    ],
)
def test_hyperparameter_has_to_be_given(given, words):
    net = ns.Program(ns.hyperparameter("lr") * ns.dot(ns.gaussian(n), ns.gaussian(n)))
    with pytest.raises(ValueError, match=words):
        net.draw(draws=2, **given)


# Infinite width


def mup(optimiser):
    loss, weights = network(ns.mean_dot)
    times = {"hidden": 0.5, None: lambda fan_in, fan_out: 0.5 * fan_out}
    by = {key: optimiser(rate) for key, rate in times.items()}
    return ns.Program(ns.train(loss, loss, by, 2, weights)[-1])


@pytest.mark.slow
def test_momentum_at_infinite_width():
    net = mup(lambda rate: ns.optim.SGD(rate, momentum=0.8, nesterov=True))
    limit = net.law(n=ns.inf).with_error.mean()
    wide = net.draw(n=512, draws=16)
    assert abs(float(limit) - wide.mean()) < 4 * wide.std() / 4 + 0.01 * wide.mean()
    plain = mup(ns.optim.SGD).law(n=ns.inf).mean()
    assert abs(float(limit) - plain) > 0.1 * plain


@pytest.mark.slow
def test_muon_with_momentum_at_infinite_width():
    loss, weights = network(ns.mean_dot)
    rates = {"in": lambda fan_in, fan_out: 0.2 * fan_out**0.5, "hidden": 0.2}
    by = {
        **{
            k: ns.optim.Muon(rate, 0.0, eps=0.0, adjust_lr_fn=lambda a, b: 1.0)
            for k, rate in rates.items()
        },
        None: ns.optim.SGD(lambda fan_in, fan_out: 0.5 * fan_out),
    }
    net = ns.Program(ns.train(loss, loss, by, 2, weights)[-1])
    wide = net.draw(n=512, draws=16)
    assert (
        abs(net.law(n=ns.inf).mean() - wide.mean())
        < 4 * wide.std() / 4 + 0.01 * wide.mean()
    )


def test_moments_of_adam_are_refused_at_infinite_width():
    loss, weights = network(ns.mean_dot)
    adam = ns.optim.Adam(lambda fan_in, fan_out: 0.1 / fan_in, eps=0.0)
    with pytest.raises(
        ns.ExactError, match=r"moments of Adam.*finite widths have an exact law"
    ):
        ns.Program(ns.train(loss, loss, adam, 2, weights[1])[-1]).law(n=ns.inf)


def test_eps_of_muon_is_refused_where_the_gradient_vanishes():
    loss, weights = network(ns.mean_dot)
    with pytest.raises(
        ns.ExactError,
        match=r"a step of Muon with eps=1e-07 at infinite width.*take eps=0",
    ):
        ns.Program(
            ns.step(loss, loss, optimiser=ns.optim.Muon(0.1), weights=weights[0])
        ).law(n=ns.inf)


def test_clipping_is_refused_at_infinite_width():
    loss, weights = network()
    net = ns.Program(ns.step(loss, loss, 0.1, weights=weights, clip_norm=1.0))
    with pytest.raises(ns.ExactError):
        net.law(n=ns.inf)


@dataclass(frozen=True, eq=False)
class SignDescent(ns.optim.Optimiser):
    """What a user writes, in eight lines."""

    lr: Any = 1e-3
    weight_decay: Any = 0.0

    def _update(self, on, w, g, state, rates):
        return w - rates.lr * on.elementwise(ns.optim.sign, g), state


@dataclass(frozen=True, eq=False)
class NumpySignDescent(SignDescent):
    def _update(self, on, w, g, state, rates):
        return w - rates.lr * on.elementwise(np.sign, g), state


@dataclass(frozen=True, eq=False)
class SquashedDescent(SignDescent):
    """A function of entries without a known limit."""

    def _update(self, on, w, g, state, rates):
        return w - rates.lr * on.elementwise(np.tanh, g), state


@dataclass(frozen=True, eq=False)
class OrthogonalDescent(SignDescent):
    entrywise: ClassVar[bool] = False
    matrices_only: ClassVar[bool] = True

    def _update(self, on, w, g, state, rates):
        return w - rates.lr * on.orthogonalised(g, None, 0.0), state


def rate(fan_in, fan_out):
    return 0.3 / fan_in


@pytest.mark.parametrize(
    "optimiser", keep([SignDescent, NumpySignDescent], NumpySignDescent)
)
@pytest.mark.parametrize(
    "moved",
    [
        pytest.param(slice(1, 2), id="matrix", marks=pytest.mark.slow),
        pytest.param(slice(2, 3), id="vector"),
    ],
)
def test_own_sign_descent_at_infinite_width_equals_first_step_of_adam(optimiser, moved):
    loss, weights = network(ns.mean_dot)
    own, adam = (
        ns.Program(ns.step(loss, loss, optimiser=by, weights=weights[moved]))
        for by in (optimiser(rate), ns.optim.Adam(rate, eps=0.0))
    )
    np.testing.assert_allclose(own.law(n=ns.inf).mean(), adam.law(n=ns.inf).mean())


@pytest.mark.parametrize("optimiser", [SignDescent, SquashedDescent])
def test_own_optimiser_at_finite_width_agrees_with_reference(optimiser):
    loss, weights = network()
    net = ns.Program(ns.train(loss, loss, optimiser(rate), 2, weights)[-1])
    engine = net.draw(n=8, draws=2_000)
    reference = net.simulate(n=8, draws=2_000, seed=1)
    assert stats.ks_2samp(engine, reference).pvalue > 1e-3


@pytest.mark.parametrize("moved", [slice(1, 2), slice(2, 3)], ids=["matrix", "vector"])
def test_own_optimiser_is_refused_at_infinite_width_by_its_own_name(moved):
    loss, weights = network(ns.mean_dot)
    net = ns.Program(
        ns.step(loss, loss, optimiser=SquashedDescent(rate), weights=weights[moved])
    )
    with pytest.raises(
        ns.ExactError,
        match=r"functions of entries in SquashedDescent's update for .* at width inf",
    ):
        net.law(n=ns.inf)


def test_optimiser_that_hides_its_functions_of_entries_is_refused_by_its_own_name():
    class Hidden(SquashedDescent):
        entrywise = False

    loss, weights = network()
    net = ns.Program(ns.step(loss, loss, optimiser=Hidden(rate), weights=weights[1]))
    with pytest.raises(
        ns.ExactError,
        match=r"functions of entries in Hidden's update of hidden.*`entrywise`",
    ):
        net.draw(n=8, draws=2)


def test_own_optimiser_of_matrices_only_rejects_vectors_by_its_own_name():
    loss, weights = network()
    with pytest.raises(ns.TraceError, match="OrthogonalDescent updates only matrices"):
        ns.step(loss, loss, optimiser=OrthogonalDescent(rate), weights=weights)


def test_entrywise_defaults_to_true_so_that_forgotten_declarations_are_safe():
    assert ns.optim.Optimiser.entrywise
    assert not ns.optim.SGD.entrywise
    assert not ns.optim.Muon.entrywise
    assert not ns.optim.Adam(0.1).needs_entries(step=1)
    assert ns.optim.Adam(0.1).needs_entries(step=2)
