"""Steps of optimisers against the width: exponents, and infinite width where there is a
limit.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import inf

from ..keep import keep

pytestmark = pytest.mark.usefixtures("unshifted")  # laws are compared, not their errors

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


# In the language's terms: a readout r of N(0, 1) coordinates with 1/√n (SP, NTK) or 1/n
# (µP) before it
PARAMETRISATIONS = {
    "sp": (ns.dot, {"in": constant, "hidden": constant, "out": constant}),
    "ntk": (ns.dot, {"in": constant, "hidden": over_fan_in, "out": constant}),
    "mup": (
        ns.mean_dot,
        {"in": times_fan_out, "hidden": constant, "out": times_fan_out},
    ),
}


def perceptron(kind, optimiser="sgd", lr=None, hidden=ns.tanh, weights=None, **options):
    """Before and after a step: outputs, and pre-activations of two hidden layers; with
    the loss and the weights.
    """
    read, rates = PARAMETRISATIONS[kind]
    w = ns.weight(n, 3, name="in"), ns.weight(n, n, name="hidden")
    r = ns.gaussian(n, name="out")
    g = w[0] @ ns.data(X)
    k = w[1] @ hidden(g)
    f = read(r, ns.tanh(k))
    loss = 0.5 * ((f - T) ** 2).sum()
    moved = (
        [*w, r]
        if weights is None
        else [{"in": w[0], "hidden": w[1], "out": r}[name] for name in weights]
    )
    after = ns.step([f, g, k], loss, lr or rates, optimiser, moved, **options)
    return (f, g, k), after


def size(v):
    return ns.mean_dot(v[0], v[0])


# Yang and Hu (2021), table 1: how the features of the first and of the second layer
# move with the width
EXPONENTS = {"sp": (-0.5, 0.5), "ntk": (-0.5, -0.5), "mup": (0.0, 0.0)}


@pytest.mark.parametrize("kind", keep(EXPONENTS, "mup"))
def test_changes_scale_with_the_width_by_known_exponents(kind):
    (_, g, k), (_, g1, k1) = perceptron(kind)
    net = ns.Program((size(g1 - g), size(k1 - k)))
    changes = [
        np.sqrt([u.mean() for u in net.draw(n=width, draws=200, seed=1)])
        for width in (128, 2048)
    ]
    slopes = np.diff(np.log(changes), axis=0)[0] / np.log(16.0)
    np.testing.assert_allclose(slopes, EXPONENTS[kind], atol=0.06)


def test_steps_without_a_limit_raise_an_error():
    (f, *_), (f1, *_) = perceptron("sp")
    with pytest.raises(
        ns.ExactError, match=r"a step of hidden changes its output by order n\^\(0\.5\)"
    ):
        ns.Program((f, f1)).draw(n=inf, draws=2)
    (f, *_), (f1, *_) = perceptron(
        "ntk", lr=lambda fan_in, fan_out: 0.1 / np.log(1 + fan_in), weights=["hidden"]
    )
    with pytest.raises(ns.ExactError, match="not a power of n at large widths"):
        ns.Program((f, f1)).draw(n=inf, draws=2)


def test_lazy_step_moves_outputs_by_the_tangent_kernel():
    """At infinite width f' = f − η Θ (f − t), in every replica; features do not
    move.
    """
    (f, g, k), (f1, g1, k1) = perceptron(
        "ntk", lr=over_fan_in, weights=["in", "hidden"]
    )
    theta = ns.ntk(f)
    before, after, kernel, *moved = ns.Program(
        (f, f1, theta, size(g1 - g), size(k1 - k))
    ).draw(n=inf, draws=50)
    right = before - RATE * (kernel @ (before - T)[..., None])[..., 0]
    np.testing.assert_allclose(after, right, rtol=1e-6, atol=1e-8)
    assert all((m == 0).all() for m in moved)


@pytest.mark.parametrize("steps", keep([1, 2], 1))
def test_readout_to_a_finite_space_moves_by_the_tangent_kernel(steps):
    """As a score does: a readout W h in R^d trains by the tangent kernel too, through
    all layers.
    """
    d = ns.Width("d")
    w, v, o = ns.weight(n, 3), ns.weight(n, n), ns.weight(d, n)
    f = ns.dot(ns.gaussian(d), o @ ns.tanh(v @ ns.tanh(w @ ns.data(X))))
    loss = 0.5 * ((f - T) ** 2).sum()
    after = [f, loss]
    for _ in range(steps):
        after = ns.step(after, after[1], over_fan_in)
    expected, stepped, kernel = ns.Program((f, after[0], ns.ntk(f))).draw(
        n=inf, d=2, draws=30
    )
    for _ in range(steps):
        expected = expected - RATE * (kernel @ (expected - T)[..., None])[..., 0]
    np.testing.assert_allclose(stepped, expected, rtol=1e-6, atol=1e-8)


def test_adam_step_of_vectors_at_infinite_width_matches_a_large_width():
    """A sign forgets the size of a gradient, which vanishes there."""
    r, b = ns.gaussian(n, name="out"), ns.gaussian(n, cov=0.0, name="bias")
    f = ns.mean_dot(r, ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 2) + b))
    loss = ((f - T) ** 2).sum()
    net = ns.Program(
        (
            ns.step(f, loss, 0.3, "adam", weights=r),
            ns.step(f, loss, 0.3, "adam", weights=b),
        )
    )
    limit, wide = (
        np.array([u.mean(axis=0) for u in net.draw(n=w, draws=60, seed=1)])
        for w in (inf, 4000)
    )
    assert np.abs(limit).min() > 0.03
    np.testing.assert_allclose(limit, wide, atol=0.006)


def near(net, width=2048, draws=400):
    """The smallest p-value between infinite width and a large one, of what is random in
    the limit.
    """
    a, b = (
        [u.reshape(draws, -1) for u in net.draw(n=w, draws=draws, seed=2)]
        for w in (inf, width)
    )
    a, b = np.concatenate(a, axis=1), np.concatenate(b, axis=1)
    p_values = []
    for x, y in zip(a.T, b.T, strict=True):
        if np.ptp(x) > 1e-9:
            p_values.append(stats.ks_2samp(x, y).pvalue)
        else:
            assert abs(y.mean() - x[0]) < 0.05 * max(1.0, abs(x[0])), (x[0], y.mean())
    return min(p_values, default=1.0)


def test_lazy_limit_matches_large_widths():
    (f, *_), (f1, *_) = perceptron("ntk")
    assert near(ns.Program((f, f1)), width=1024) > 1e-4


@pytest.mark.parametrize(
    ("optimiser", "lr", "options"),
    [
        pytest.param("sgd", None, {}, marks=pytest.mark.slow),
        ("muon", lambda i, o: 0.2 * (o / i) ** 0.5, {"weights": ["in", "hidden"]}),
        ("adam", lambda i, o: 0.3 / i, {"weights": ["hidden"], "hidden": lambda v: v}),
        pytest.param("adam", constant, {"weights": ["in"]}, marks=pytest.mark.slow),
    ],
)
def test_features_move_in_mup_at_infinite_width(optimiser, lr, options):
    """In µP, and as much as at large widths."""
    (_, _, k), (f1, _, k1) = perceptron("mup", optimiser, lr, **options)
    net = ns.Program((f1, size(k1 - k), size(k1)))
    limit, wide = (
        [u.reshape(len(u), -1).mean(axis=0) for u in net.draw(n=w, draws=40, seed=2)]
        for w in (inf, 600)
    )
    for a, b in zip(limit[1:], wide[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=0.08)
    assert limit[1] > 1e-4


def test_steps_of_attention_at_infinite_width_match_a_large_width():
    """Scores and their change are random there."""
    x = ns.gaussian(n, 2)
    y = x + ns.nn.attention(x, heads=1)
    f = ns.dot(ns.gaussian(n), y)
    f1 = ns.step(f, 0.5 * ((f - T) ** 2).sum(), lambda fan_in, fan_out: 0.3 / fan_in)
    assert near(ns.Program((f, f1)), width=1024) > 1e-4


def nodes(points, cov):
    """Points (points^k, k) of a product of midpoint rules for N(0, cov), of equal
    weight.
    """
    z = stats.norm.ppf((np.arange(points) + 0.5) / points)
    z = np.stack(np.meshgrid(*[z] * len(cov), indexing="ij"), axis=-1).reshape(
        -1, len(cov)
    )
    return z @ np.linalg.cholesky(cov).T


def moved_by_adam(tokens, phi):
    """How far µP's hidden layer moves: E_α[(η E_β[phi(Σ_t l_tα h_tβ) h_0β])²], h =
    tanh(g), l_t = −target_t φ'(k_t) r.

    The sign of r does not matter, and f = 0 before the step.
    """
    h = np.tanh(nodes(90_000 if tokens == 1 else 150, X[:tokens] @ X[:tokens].T / 3))
    k = nodes(24, h.T @ h / len(h))
    left = -T[:tokens] * (1 - np.tanh(k) ** 2)
    return RATE**2 * np.mean([(phi(row @ h.T) @ h[:, 0] / len(h)) ** 2 for row in left])


@pytest.mark.parametrize(
    ("tokens", "accuracy"), keep([(1, 1e-5), (2, 5e-3)], (1, 1e-5))
)
def test_adam_step_after_a_nonlinearity_equals_a_product_rule(tokens, accuracy):
    """Of one token, a product of signs; of two, a mean over nodes. The other side is a
    product rule.
    """
    w, r = ns.weight(n, n), ns.gaussian(n)
    k = w @ ns.tanh(ns.weight(n, 3) @ ns.data(X[:tokens]))
    loss = 0.5 * ((ns.mean_dot(r, ns.tanh(k)) - T[:tokens]) ** 2).sum()
    net = ns.Program(size(ns.step(k, loss, over_fan_in, "adam", weights=w) - k))
    estimate = net.law(n=inf, draws=60).with_error.mean()
    expected = moved_by_adam(tokens, np.sign)
    assert abs(estimate.value - expected) < 4 * estimate.error + 1e-5 * expected
    assert estimate.error < accuracy * expected
    # of another function of the entries
    assert abs(moved_by_adam(tokens, np.tanh) / expected - 1) > 0.1


def deep(tokens=2):
    """Hidden layers after ReLU and layer norms, a matrix used twice, and a first layer
    with data: before and after.
    """
    w = [ns.weight(n, 3), ns.weight(n, n), ns.weight(n, n)]
    x = ns.relu(w[0] @ ns.data(X[:tokens]))
    y = ns.layer_norm(x + w[1] @ ns.tanh(w[1] @ x), eps=1e-6)
    h = w[2] @ y
    f = ns.mean_dot(ns.gaussian(n), ns.tanh(h))
    rates = {w[0]: 0.3, w[1]: over_fan_in, w[2]: over_fan_in}
    after = ns.step([f, h], 0.5 * ((f - T[:tokens]) ** 2).sum(), rates, "adam", w)
    return ns.Program((after[0], size(after[1]), size(after[1] - h)))


def attention_by_adam(phi=lambda q: q):
    """µP: the gradient of queries and keys vanishes up to its fluctuations, and Adam
    moves by their signs.
    """
    x = ns.tanh(ns.gaussian(n, 2))
    q, k, v = (ns.weight(n, n) for _ in range(3))
    scores = ns.mean_dot(phi(q @ x), k @ x)
    y = ns.softmax(scores) @ (v @ x)
    f = ns.mean_dot(ns.gaussian(n), y)
    after = ns.step([scores], ((f - T) ** 2).sum(), over_fan_in, "adam", [q, k])
    return ns.Program((after[0][0, 0], after[0][0, 1]))


@pytest.mark.slow
def test_adam_step_of_several_layers_matches_large_widths():
    limit, wide = (
        np.concatenate(
            [u.reshape(draws, -1) for u in deep().draw(n=width, draws=draws)], axis=1
        ).T
        for width, draws in ((inf, 6), (400, 16))
    )
    for a, b in zip(limit, wide, strict=True):
        assert abs(a.mean() - b.mean()) < 5 * np.hypot(
            a.std() / 6**0.5, b.std() / 16**0.5
        ) + 0.02 * abs(b.mean())
        assert a.std() < 0.5 * b.std()  # it is a number in the limit


@pytest.mark.slow
def test_adam_step_takes_the_signs_of_fluctuations():
    """Scores after the step are ± one number, as nearly at large widths; their signs
    depend on each other.
    """
    limit, wide = (
        np.array(attention_by_adam().draw(n=w, draws=100)) for w in (inf, 800)
    )
    np.testing.assert_allclose(
        np.abs(limit).mean(axis=1), np.abs(wide).mean(axis=1), rtol=0.03
    )
    assert (np.abs(limit).std(axis=1) < 0.5 * np.abs(wide).std(axis=1)).all()
    for f in (
        lambda u: np.sign(u[0]),
        lambda u: np.sign(u[1]),
        lambda u: np.sign(u[0] * u[1]),
    ):
        assert abs(f(limit).mean() - f(wide).mean()) < 4 * (2 / 100) ** 0.5


def test_adam_step_without_a_known_form_raises_an_error():
    _, (f1, *_) = perceptron(
        "mup", "adam", over_fan_in, weights=["hidden"], hidden=lambda v: v, eps=0.1
    )
    with pytest.raises(
        ns.ExactError,
        match=r"eps=0\.1 at infinite width, .*; take eps=0, or finite widths",
    ):
        ns.Program(f1).draw(n=inf, draws=2)
    _, (f1, *_) = perceptron("mup", "adam", constant, weights=["in"], eps=0.1)
    with pytest.raises(ns.ExactError, match=r"eps=0\.1 at infinite width"):
        ns.Program(f1).draw(n=inf, draws=2)


def test_adam_step_along_unknown_fluctuations_raises_an_error():
    with pytest.raises(
        ns.ExactError,
        match=r"signs of a gradient whose limit is 0.*method='extrapolate'",
    ):
        attention_by_adam(ns.erf).draw(n=inf, draws=2)


def test_adam_step_that_costs_too_much_raises_an_error():
    _, (f1, *_) = perceptron("mup", "adam", over_fan_in, weights=["hidden"])
    with pytest.raises(
        ns.ExactError,
        match=r"every entry of the gradient, 1\.0e\+10 of them per replica",
    ):
        ns.Program(f1).draw(n=100_000, draws=2)
    assert ns.Program(f1).plan(n=1000).operations > 2 * 1000**2


def adam_step(act, targets, scale=1.0):
    """The outputs after Adam's first step of a hidden matrix."""
    data = scale * np.random.default_rng(0).standard_normal((len(targets), 4))
    w, v = ns.weight(n, n), ns.gaussian(n)
    f = ns.mean_dot(v, act(w @ ns.tanh(ns.weight(n, 4) @ ns.data(data))))
    loss = 0.5 * ((f - np.array(targets)) ** 2).sum()
    return ns.Program(
        ns.step(f, loss, lambda fan_in, fan_out: 0.3 / fan_in, "adam", weights=[w])
    )


def test_adam_step_along_cancelling_entries_raises_an_error():
    """Entries that cancel (saturated inputs, targets that add up to 0), and those of a
    token whose loss begins at 0.
    """
    for refused in (
        adam_step(ns.relu, [0.7, -1.1, 0.4], scale=1e3),
        adam_step(ns.relu, [0.0, 1.0]),
    ):
        with pytest.raises(
            ns.ExactError,
            match=r"signs of a gradient whose limit is 0.*method='extrapolate'",
        ):
            refused.law(n=ns.inf, draws=20)
    for computed in (
        adam_step(ns.relu, [0.7, -1.1, 0.5], scale=1e3),
        adam_step(ns.gelu, [0.0, 1.0]),
    ):
        assert np.isfinite(computed.law(n=ns.inf, draws=20).mean()).all()


def adam_step_of_inputs(act, data, targets):
    """The outputs after Adam's first step of a first layer, whose fan-in is finite."""
    w = ns.weight(n, len(data[0]))
    f = ns.mean_dot(ns.gaussian(n), act(w @ ns.data(data)))
    return ns.Program(
        ns.step(f, 0.5 * ((f - np.array(targets)) ** 2).sum(), 0.3, "adam", weights=[w])
    )


def test_adam_step_of_a_first_layer_along_cancelling_entries_raises_an_error():
    """Entries that cancel where both tokens pass the ReLU; a token whose loss begins at
    0; a token with two targets.
    """
    opposite, usual = [[1.0, 1.0], [1.0, -1.0]], [[1.0, 0.5], [0.3, -1.0]]
    for act, data, targets in (
        (ns.relu, opposite, [1.0, -1.0]),
        (ns.relu, usual, [0.0, 1.0]),
        (ns.tanh, usual[:1] * 2, [1.0, -1.0]),
    ):
        with pytest.raises(
            ns.ExactError,
            match=r"signs of a gradient whose limit is 0.*method='extrapolate'",
        ):
            adam_step_of_inputs(act, data, targets).law(n=ns.inf, draws=20)
    for act, data, targets in (
        (ns.relu, usual, [0.7, -1.0]),
        (ns.tanh, opposite, [1.0, -1.0]),
    ):
        net = adam_step_of_inputs(act, data, targets)
        limit, wide = (net.draw(n=width, draws=100, seed=1) for width in (ns.inf, 1000))
        error = np.hypot(limit.std(axis=0), wide.std(axis=0)) / 10
        np.testing.assert_array_less(
            np.abs(limit.mean(axis=0) - wide.mean(axis=0)), 4 * error
        )


def test_adam_step_with_a_zero_token_before_relu_matches_a_large_width():
    """Its preactivation is 0 at every width, where the derivative of ReLU jumps: no
    fluctuation decides the side.
    """
    net = adam_step_of_inputs(
        ns.relu, [[1.0, 0.5], [0.3, -1.0], [0.0, 0.0]], [1.0, -0.5, 0.4]
    )
    limit, wide = (net.draw(n=width, draws=100, seed=1) for width in (ns.inf, 1000))
    error = np.hypot(limit.std(axis=0), wide.std(axis=0)) / 10
    assert (limit[:, 2] == 0).all()
    assert (np.abs(limit.mean(axis=0) - wide.mean(axis=0)) <= 4 * error).all()


def muon_step(act):
    """The loss after a step of Muon along a gradient of order n^(−1/2): its size does
    not count, its sign does.
    """
    x, a, b, r = ns.gaussian(n, 1), ns.weight(n, n), ns.weight(n, n), ns.gaussian(n)
    loss = (ns.mean_dot(r, b @ act(a @ x)) ** 2).mean()
    muon = ns.optim.Muon(0.5, ns_steps=None, momentum=0.0, weight_decay=0.0)
    return ns.Program(ns.train(loss, loss, muon, 1)[-1])


def test_muon_step_along_a_vanishing_gradient_raises_an_error():
    """It was no step at all: the loss was 0."""
    limit, wide = (
        muon_step(lambda u: u).draw(n=width, draws=200, seed=1).mean()
        for width in (ns.inf, 2**20)
    )
    assert limit == pytest.approx(wide, rel=0.01)
    assert limit > 0.9
    with pytest.raises(
        ns.ExactError,
        match=r"Muon orthogonalises a gradient whose limit is 0.*method='extrapolate'",
    ):
        muon_step(ns.tanh).law(n=ns.inf)


@dataclass(frozen=True, eq=False)
class Orthogonal(ns.optim.Optimiser):
    """Steps along the polar factor of the gradient."""

    entrywise: ClassVar[bool] = False
    matrices_only: ClassVar[bool] = True
    lr: float = 0.5
    weight_decay: float = 0.0

    def _update(self, on, w, g, state, rates):
        return w - rates.lr * on.orthogonalised(g, None, 0.0), state


def test_error_of_a_vanishing_gradient_names_the_users_optimiser():
    x, a, b, r = ns.gaussian(n, 1), ns.weight(n, n), ns.weight(n, n), ns.gaussian(n)
    loss = (ns.mean_dot(r, b @ ns.tanh(a @ x)) ** 2).mean()
    with pytest.raises(ns.ExactError, match="Orthogonal orthogonalises a gradient"):
        ns.Program(ns.train(loss, loss, Orthogonal(), 1)[-1]).law(n=ns.inf)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("width", [64, ns.inf])
def test_muon_step_along_overflowing_gradients_raises_an_error(width):
    """numpy raised its own error: "SVD did not converge"."""
    x = 1e50 * (1e50 * (1e50 * (1e50 * ns.gaussian(n, 2))))
    loss = (
        (ns.mean_dot(ns.gaussian(n), ns.weight(n, n) @ (ns.weight(n, n) @ x)) - T) ** 2
    ).mean()
    with pytest.raises(ValueError, match="the law is not finite"):
        ns.Program(ns.step(loss, loss, 0.5, "muon")).draw(n=width, draws=3)
