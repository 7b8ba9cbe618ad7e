"""Steps of optimisers against the width: exponents, and infinite width where there is a limit."""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import inf

from ..keep import keep

n = ns.Width("n")
X = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8]])
T = np.array([1.0, -1.0])
RATE = 0.5


def constant(fan_in, fan_out):
    return RATE


def over_fan_in(fan_in, fan_out):
    return RATE / fan_in


def times_fan_out(fan_in, fan_out):
    return RATE * fan_out


# In the language's terms: a readout r of N(0, 1) coordinates with 1/√n (SP, NTK) or 1/n (µP) before it
PARAMETRISATIONS = {
    "sp": (ns.dot, {"in": constant, "hidden": constant, "out": constant}),
    "ntk": (ns.dot, {"in": constant, "hidden": over_fan_in, "out": constant}),
    "mup": (ns.mean_dot, {"in": times_fan_out, "hidden": constant, "out": times_fan_out}),
}


def perceptron(kind, optimiser="sgd", lr=None, hidden=ns.tanh, weights=None, **options):
    """Before and after a step: outputs, and pre-activations of two hidden layers; with the loss and the weights."""
    read, rates = PARAMETRISATIONS[kind]
    w = ns.weight(n, 3, name="in"), ns.weight(n, n, name="hidden")
    r = ns.gaussian(n, name="out")
    g = w[0] @ ns.data(X)
    k = w[1] @ hidden(g)
    f = read(r, ns.tanh(k))
    loss = 0.5 * ((f - T) ** 2).sum()
    moved = [*w, r] if weights is None else [{"in": w[0], "hidden": w[1], "out": r}[name] for name in weights]
    after = ns.step([f, g, k], loss, lr or rates, optimiser, moved, **options)
    return (f, g, k), after


def size(v):
    return ns.mean_dot(v[0], v[0])


# Yang and Hu (2021), table 1: how the features of the first and of the second layer move with the width
EXPONENTS = {"sp": (-0.5, 0.5), "ntk": (-0.5, -0.5), "mup": (0.0, 0.0)}


@pytest.mark.parametrize("kind", keep(EXPONENTS, "mup"))
def test_exponents(kind):
    (_, g, k), (_, g1, k1) = perceptron(kind)
    net = ns.Program((size(g1 - g), size(k1 - k)))
    found = [np.sqrt([u.mean() for u in net.draw(n=width, draws=200, seed=1)]) for width in (128, 2048)]
    slopes = np.diff(np.log(found), axis=0)[0] / np.log(16.0)
    np.testing.assert_allclose(slopes, EXPONENTS[kind], atol=0.06)


def test_no_limit_is_refused_by_name():
    (f, *_), (f1, *_) = perceptron("sp")
    with pytest.raises(
        ns.ExactError, match=r"a step of hidden changes what it makes by an amount of order n\^\(0\.5\)"
    ):
        ns.Program((f, f1)).draw(n=inf, draws=2)
    (f, *_), (f1, *_) = perceptron("ntk", lr=lambda fan_in, fan_out: 0.1 / np.log(1 + fan_in), weights=["hidden"])
    with pytest.raises(ns.ExactError, match="no power of n at large widths"):
        ns.Program((f, f1)).draw(n=inf, draws=2)


def test_a_small_rate_trains_by_the_tangent_kernel():
    """At infinite width f' = f − η Θ (f − t), in every replica; features do not move."""
    (f, g, k), (f1, g1, k1) = perceptron("ntk", lr=over_fan_in, weights=["in", "hidden"])
    theta = ns.ntk(f)
    before, after, kernel, *moved = ns.Program((f, f1, theta, size(g1 - g), size(k1 - k))).draw(n=inf, draws=50)
    right = before - RATE * (kernel @ (before - T)[..., None])[..., 0]
    np.testing.assert_allclose(after, right, rtol=1e-6, atol=1e-8)
    assert all((m == 0).all() for m in moved)


@pytest.mark.parametrize("steps", keep([1, 2], 1))
def test_a_matrix_to_a_finite_space_sees_small_changes(steps):
    """As a score does: a readout W h in R^d trains by the tangent kernel too, through all layers."""
    d = ns.Width("d")
    w, v, o = ns.weight(n, 3), ns.weight(n, n), ns.weight(d, n)
    f = ns.dot(ns.gaussian(d), o @ ns.tanh(v @ ns.tanh(w @ ns.data(X))))
    loss = 0.5 * ((f - T) ** 2).sum()
    after = [f, loss]
    for _ in range(steps):
        after = ns.step(after, after[1], over_fan_in)
    right, found, kernel = ns.Program((f, after[0], ns.ntk(f))).draw(n=inf, d=2, draws=30)
    for _ in range(steps):
        right = right - RATE * (kernel @ (right - T)[..., None])[..., 0]
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-8)


def test_adam_moves_vectors_at_infinite_width():
    """A sign forgets the size of a gradient, which vanishes there."""
    r, b = ns.gaussian(n, name="out"), ns.gaussian(n, cov=0.0, name="bias")
    f = ns.mean_dot(r, ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 2) + b))
    loss = ((f - T) ** 2).sum()
    net = ns.Program((ns.step(f, loss, 0.3, "adam", weights=r), ns.step(f, loss, 0.3, "adam", weights=b)))
    limit, wide = (np.array([u.mean(axis=0) for u in net.draw(n=w, draws=60, seed=1)]) for w in (inf, 4000))
    assert np.abs(limit).min() > 0.03
    np.testing.assert_allclose(limit, wide, atol=0.006)


def near(net, width=2048, draws=400):
    """The smallest p-value between infinite width and a large one, of what is random in the limit."""
    a, b = ([u.reshape(draws, -1) for u in net.draw(n=w, draws=draws, seed=2)] for w in (inf, width))
    a, b = np.concatenate(a, axis=1), np.concatenate(b, axis=1)
    found = []
    for x, y in zip(a.T, b.T, strict=True):
        if np.ptp(x) > 1e-9:
            found.append(stats.ks_2samp(x, y).pvalue)
        else:
            assert abs(y.mean() - x[0]) < 0.05 * max(1.0, abs(x[0])), (x[0], y.mean())
    return min(found, default=1.0)


def test_the_lazy_limit_is_that_of_large_widths():
    (f, *_), (f1, *_) = perceptron("ntk")
    assert near(ns.Program((f, f1)), width=1024) > 1e-4


@pytest.mark.parametrize(
    ("optimiser", "lr", "options"),
    [
        ("sgd", None, {}),
        ("muon", lambda i, o: 0.2 * (o / i) ** 0.5, {"weights": ["in", "hidden"]}),
        ("adam", lambda i, o: 0.3 / i, {"weights": ["hidden"], "hidden": lambda v: v}),
        ("adam", constant, {"weights": ["in"]}),
    ],
)
def test_features_move_at_infinite_width(optimiser, lr, options):
    """In µP, and as much as at large widths."""
    (_, _, k), (f1, _, k1) = perceptron("mup", optimiser, lr, **options)
    net = ns.Program((f1, size(k1 - k), size(k1)))
    limit, wide = ([u.reshape(len(u), -1).mean(axis=0) for u in net.draw(n=w, draws=40, seed=2)] for w in (inf, 600))
    for a, b in zip(limit[1:], wide[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=0.08)
    assert limit[1] > 1e-4


def test_attention_at_infinite_width():
    """Scores and their change are random there."""
    x = ns.gaussian(n, 2)
    y = x + ns.nn.attention(x, heads=1)
    f = ns.dot(ns.gaussian(n), y)
    f1 = ns.step(f, 0.5 * ((f - T) ** 2).sum(), lambda fan_in, fan_out: 0.3 / fan_in)
    assert near(ns.Program((f, f1)), width=1024) > 1e-4


def test_adam_is_refused_where_no_form_is_known():
    _, (f1, *_) = perceptron("mup", "adam", over_fan_in, weights=["hidden"])
    with pytest.raises(ns.ExactError, match=r"not Gaussian of mean 0, at width inf \(Nonlin"):
        ns.Program(f1).draw(n=inf, draws=2)
    _, (f1, *_) = perceptron("mup", "adam", over_fan_in, weights=["hidden"], hidden=lambda v: v, eps=0.1)
    with pytest.raises(ns.ExactError, match=r"eps=0\.1 at infinite width, .*; take eps=0, or finite widths"):
        ns.Program(f1).draw(n=inf, draws=2)
    _, (f1, *_) = perceptron("mup", "adam", constant, weights=["in"], eps=0.1)
    with pytest.raises(ns.ExactError, match=r"eps=0\.1 at infinite width"):
        ns.Program(f1).draw(n=inf, draws=2)


def test_adam_is_refused_where_it_costs_too_much():
    _, (f1, *_) = perceptron("mup", "adam", over_fan_in, weights=["hidden"])
    with pytest.raises(ns.ExactError, match=r"every entry of the gradient, 1\.0e\+10 of them a replica"):
        ns.Program(f1).draw(n=100_000, draws=2)
    assert ns.Program(f1).plan(n=1000).operations > 2 * 1000**2
