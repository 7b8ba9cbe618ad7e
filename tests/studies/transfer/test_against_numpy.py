"""Losses after training at several widths and learning rates against plain numpy, which
shares no code with the library: forward passes, gradients and optimisers are written
out.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns

X = np.array([[1.0, 0.0, 0.3], [0.6, 0.8, -0.5]])  # three inputs
T = np.array([1.0, -1.0, 0.5])
WIDTHS = 6, 24
STEPS = 3
DRAWS = 400
LEVEL = 1e-4
EPS = 1e-3  # of Adam


@ns.program
def perceptron(n):
    h = ns.relu(ns.weight(n, n) @ ns.relu(ns.weight(n, 2) @ ns.data(X.T)))
    f = (ns.weight(1, n) @ h)[:, None]
    return ((ns.mean_dot(f, ns.data([[1.0]]))[:, 0, 0] - T) ** 2).mean()


def perceptron_numpy(n, rng):
    """Its initial matrices."""
    return [
        rng.standard_normal((n, 2)) / np.sqrt(2),
        rng.standard_normal((n, n)) / np.sqrt(n),
        rng.standard_normal((1, n)) / np.sqrt(n),
    ]


def perceptron_loss(weights):
    """Its loss, and the gradient of each matrix."""
    first, second, last = weights
    before = first @ X
    x = np.maximum(before, 0)
    between = second @ x
    h = np.maximum(between, 0)
    error = (last @ h)[0] - T
    g_f = 2 * error[None] / len(T)
    g_between = (last.T @ g_f) * (between > 0)
    g_before = (second.T @ g_between) * (before > 0)
    return np.mean(error**2), [g_before @ X.T, g_between @ x.T, g_f @ h.T]


@ns.program
def attention(n):
    x = ns.tanh(ns.weight(n, 2) @ ns.data(X.T))
    q, k, v = (ns.weight(n, n) @ x for _ in range(3))
    weights = ns.softmax(2.0 * ns.mean_dot(q, k), mask="causal")
    y = x + ns.weight(n, n) @ ns.tanh(weights @ v)
    f = (ns.weight(1, n) @ y)[:, None]
    return ((ns.mean_dot(f, ns.data([[1.0]]))[:, 0, 0] - T) ** 2).mean()


def attention_numpy(n, rng):
    """Its initial matrices: of the input, queries, keys, values, outputs, the head."""
    square = [rng.standard_normal((n, n)) / np.sqrt(n) for _ in range(4)]
    return [
        rng.standard_normal((n, 2)) / np.sqrt(2),
        *square,
        rng.standard_normal((1, n)) / np.sqrt(n),
    ]


def attention_loss(weights):
    """Its loss, and the gradient of each matrix; tokens are columns."""
    w_in, w_q, w_k, w_v, w_o, head = weights
    n = len(w_in)
    x = np.tanh(w_in @ X)
    q, k, v = w_q @ x, w_k @ x, w_v @ x
    scores = 2.0 * q.T @ k / n + np.where(np.tri(len(T)) > 0, 0.0, -np.inf)
    a = np.exp(scores - scores.max(axis=1, keepdims=True))
    a /= a.sum(axis=1, keepdims=True)
    mixed = np.tanh(v @ a.T)
    y = x + w_o @ mixed
    error = (head @ y)[0] - T
    g_f = 2 * error[None] / len(T)
    g_y = head.T @ g_f
    g_sum = (w_o.T @ g_y) * (1 - mixed**2)
    g_a = g_sum.T @ v
    g_scores = 2.0 / n * a * (g_a - np.sum(g_a * a, axis=1, keepdims=True))
    g_q, g_k, g_v = k @ g_scores.T, q @ g_scores, g_sum @ a
    g_x = g_y + w_q.T @ g_q + w_k.T @ g_k + w_v.T @ g_v
    gradients = [
        (g_x * (1 - x**2)) @ X.T,
        g_q @ x.T,
        g_k @ x.T,
        g_v @ x.T,
        g_y @ mixed.T,
        g_f @ y.T,
    ]
    return np.mean(error**2), gradients


def trained(weights, loss, optimiser, lr):
    """The loss after the steps."""
    weights = [w.copy() for w in weights]
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    for step in range(1, STEPS + 1):
        _, gradients = loss(weights)
        for w, g, m, s in zip(weights, gradients, first, second, strict=True):
            if optimiser == "sgd":
                w -= lr * g
                continue
            m += 0.1 * (g - m)
            s += 0.001 * (g**2 - s)
            w -= lr * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + EPS)
    return loss(weights)[0]


NETWORKS = {
    "perceptron": (perceptron, perceptron_numpy, perceptron_loss),
    "attention": (attention, attention_numpy, attention_loss),
}
RATES = {"sgd": (0.05, 0.15, 0.4), "adam": (0.01, 0.03, 0.09)}


@pytest.mark.parametrize("network", NETWORKS)
def test_written_gradients_are_those_of_finite_differences(network):
    """So that the comparison below compares with what it says."""
    _, initial, loss = NETWORKS[network]
    rng = np.random.default_rng(0)
    weights = initial(5, rng)
    _, gradients = loss(weights)
    for place, gradient in enumerate(gradients):
        direction = rng.standard_normal(gradient.shape)
        either_way = []
        for sign in (1, -1):
            moved = [w.copy() for w in weights]
            moved[place] += sign * 1e-6 * direction
            either_way.append(loss(moved)[0])
        slope = (either_way[0] - either_way[1]) / 2e-6
        assert slope == pytest.approx(np.sum(gradient * direction), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", RATES)
@pytest.mark.parametrize("network", NETWORKS)
def test_losses_have_the_law_of_plain_numpy(network, optimiser):
    """At every width and learning rate; a rate half as large is seen."""
    program, initial, loss = NETWORKS[network]
    by = {"sgd": ns.optim.SGD(1.0), "adam": ns.optim.Adam(1.0, eps=EPS)}[optimiser]
    rates = RATES[optimiser]
    found = ns.transfer(
        program,
        widths=WIDTHS,
        steps=STEPS,
        lr=rates,
        optimiser=by,
        draws=DRAWS,
        seed=3,
        workers=1,
        progress=False,
    )[0]
    comparisons = len(WIDTHS) * len(rates)
    for place, width in enumerate(WIDTHS):
        rng = np.random.default_rng([60, place])
        for rate, losses in zip(rates, found.curves[width].losses, strict=True):
            drawn = [
                trained(initial(width, rng), loss, optimiser, rate)
                for _ in range(DRAWS)
            ]
            assert stats.ks_2samp(losses, drawn).pvalue > LEVEL / comparisons
    slower = [
        trained(initial(width, rng), loss, optimiser, rate / 2) for _ in range(DRAWS)
    ]
    assert stats.ks_2samp(losses, slower).pvalue < LEVEL / comparisons
