"""Only chosen experts are computed: the law is that of all experts, and of the
reference interpreter, with fewer random numbers.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import ChosenExperts, _cost_model, make_plan
from tests.internals import _operation as ops

WIDTH, HIDDEN, TOKENS, EXPERTS, CHOSEN = 12, 8, 4, 6, 2


def top(p, chosen=CHOSEN):
    """The largest weights, divided by their sum, and 0 for the others."""
    smallest = np.sort(p, axis=-1)[..., -chosen, None]
    kept = np.where(p >= smallest, p, 0.0)
    return kept / kept.sum(axis=-1, keepdims=True)


def gates_of(x, choose=top):
    weights = ns.softmax(2.0 * ns.nn.logits(x, EXPERTS))
    return ns.apply(choose, weights, axes=1).transpose()


def mixture(x, gates):
    """A gated mixture whose last matrices are one."""
    up = ns.weight(HIDDEN, WIDTH, EXPERTS)
    gate = ns.weight(HIDDEN, WIDTH, EXPERTS, std=0.7)
    h = ns.silu(gate @ x) * (up @ x)
    return ns.weight(WIDTH, EXPERTS * HIDDEN, std=5.0) @ ns.concat(gates * h, axis=0)


def stream(layers=2, choose=top):
    """A residual stream, two tokens of which begin as the same vector."""
    x = ns.gaussian(WIDTH, TOKENS - 1)[np.array([0, 1, 2, 1])]
    for _ in range(layers):
        u = ns.rms_norm(x)
        x = x + mixture(u, gates_of(u, choose))
    return x


def planned(outputs, *without):
    return make_plan(outputs, {}, prices=_cost_model.NUMPY, without=without)


def is_applied(outputs):
    return "chosen experts" in str(planned(outputs))


@pytest.fixture(scope="module")
def literal():
    """Draws of all mean products of a stream by the reference interpreter."""
    x = stream()
    return ns.Program(ns.mean_dot(x, x)).simulate(draws=4000, rng=2, progress=False)


def test_law_of_chosen_experts_is_the_literal_one(literal):
    x = stream()
    net = ns.Program(ns.mean_dot(x, x))
    assert is_applied(net.outputs)
    law = net.draw(draws=4000, rng=1, progress=False)
    pairs = [(0, 0), (0, 1), (1, 3), (2, 3), (3, 3)]
    p = [stats.ks_2samp(law[:, i, j], literal[:, i, j]).pvalue for i, j in pairs]
    p.append(stats.ks_2samp(law.sum((1, 2)), literal.sum((1, 2))).pvalue)
    products = [draws[:, 0, 1] * draws[:, 1, 2] for draws in (law, literal)]
    p.append(stats.ks_2samp(*products).pvalue)
    assert min(p) > 1e-4 / len(p)


def test_wrong_gain_of_experts_is_found(literal, monkeypatch):
    x = stream()
    net = ns.Program(ns.mean_dot(x, x))
    of_root = ChosenExperts.__call__
    monkeypatch.setattr(ChosenExperts, "__call__", lambda *given: 1.2 * of_root(*given))
    law = net.draw(draws=4000, rng=1, progress=False)
    assert stats.ks_2samp(law[:, 3, 3], literal[:, 3, 3]).pvalue < 1e-6


def test_random_numbers_are_those_of_the_chosen_experts():
    x = ns.gaussian(WIDTH, TOKENS)
    y = mixture(x, gates_of(x))
    outputs = [ns.mean_dot(y, y)]
    chosen, dense = planned(outputs), planned(outputs, "chosen")
    hidden = 2 * HIDDEN * TOKENS  # of one expert for each token: two products
    saved = (EXPERTS - CHOSEN) * hidden
    assert dense.random_numbers - chosen.random_numbers == saved


def test_gates_and_values_of_one_matrix_have_the_literal_law():
    x = ns.gaussian(WIDTH, TOKENS)
    both = ops.split(ns.weight(2 * HIDDEN, WIDTH, EXPERTS) @ x, 2, axis=2)
    h = ns.silu(both[..., 0]) * both[..., 1]
    last = ns.weight(WIDTH, EXPERTS * HIDDEN)
    y = last @ ns.concat((gates_of(x) * h).transpose(), axis=1)
    net = ns.Program(ns.mean_dot(y, y))
    assert is_applied(net.outputs)
    law = net.draw(draws=4000, rng=1, progress=False)
    literal = net.simulate(draws=4000, rng=2, progress=False)
    p = [stats.ks_2samp(law[:, 0, i], literal[:, 0, i]).pvalue for i in range(TOKENS)]
    assert min(p) > 1e-4 / len(p)


def test_gradient_of_experts_needs_all_of_them():
    x = ns.gaussian(WIDTH, TOKENS)
    y = mixture(x, gates_of(ns.gaussian(WIDTH, TOKENS)))
    assert is_applied([ns.mean_dot(y, y)])
    loss = ns.mean_dot(y[0], ns.gaussian(WIDTH)) ** 2
    (gradient,) = ns.grad(loss, [x])
    assert not is_applied(ns.Program(gradient).outputs)


def test_gates_that_may_all_differ_from_zero_need_all_experts():
    def positive(p):
        return np.maximum(p - 1 / EXPERTS, 0.0)

    assert not is_applied(ns.Program(stream(1, positive)).outputs)
    assert not is_applied(ns.Program(stream(1, lambda p: top(p, 4))).outputs)


def test_hidden_vectors_that_are_read_need_all_experts():
    x = ns.gaussian(WIDTH, TOKENS)
    h = ns.relu(ns.weight(HIDDEN, WIDTH, EXPERTS) @ x)
    last = ns.weight(WIDTH, EXPERTS * HIDDEN)
    y = last @ ns.concat(gates_of(x) * h, axis=0)
    assert is_applied([ns.mean_dot(y, y)])
    assert not is_applied([ns.mean_dot(y, y), ns.mean_dot(h, h)])


def test_more_experts_than_counted_raise_an_error():
    root = ChosenExperts(steps=(), widths=(), gains=(), output_gain=1.0)
    with pytest.raises(ValueError, match="choose more experts than others"):
        root(np.eye(2)[None], np.ones((1, 3, 2)), np.zeros((1, 4, 5)))


def test_tokens_that_are_zero_may_choose_all_experts():
    """All outputs of a router are equal for them, and so are their gates."""
    x = np.array([1.0, 0.0, 1.0, 1.0]) * ns.gaussian(WIDTH, TOKENS)
    logits = ns.dot(x, ns.gaussian(WIDTH, EXPERTS))
    gates = ns.apply(top, ns.softmax(logits), axes=1).transpose()
    y = mixture(x, gates)
    assert is_applied([ns.mean_dot(y, y)])
    draws = ns.Program(ns.mean_dot(y, y)).draw(draws=200, rng=1, progress=False)
    assert abs(draws[:, 1]).max() < 1e-12
    assert (draws[:, 0, 0] > 0).all()


def test_draws_do_not_depend_on_their_number():
    net = ns.Program(stream(layers=1))
    few = net.draw(draws=10, rng=1, progress=False)
    assert np.array_equal(few, net.draw(draws=500, rng=1, progress=False)[:10])
