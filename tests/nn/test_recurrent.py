"""Recurrent layers: each draw against states that are updated token by token, and their
laws against literal networks, large widths and closed forms.
"""

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from netsor import nn
from tests.internals import (
    DECAYS,
    SOFTPLUS,
    UNIT_LOWER_INVERSE,
    Gaussian,
    decays,
    topological_order,
    unit_lower_inverse,
    weights_of,
)

from ..engine.compare import exact_draws, smallest_of, smallest_p
from ..keep import keep
from . import recurrent_networks as networks

N, TOKENS, HEADS, D, P = 6, 4, 4, 3, 5
n, d = ns.Width("n"), ns.Width("d")


def decaying_sum(u):
    """A convolution of three fixed taps, for layers with a user's convolution."""
    tokens = u.shape[-1]
    kernel = sum(0.5**lag * np.eye(tokens, k=-lag) for lag in range(3))
    return ns.tanh(kernel @ u)


def parameters(outputs, draws=3, forward=None):
    """Literal draws of outputs, and of the matrices and vectors by name.

    These are all that `forward` depends on, by default `outputs`.
    """
    values = topological_order(outputs if forward is None else forward)
    weights = {w.source.name: w for w in weights_of(values)}
    sources = [w @ ns.data(np.eye(w.in_width.factor)) for w in weights.values()]
    vectors = [v for v in values if isinstance(v.op, Gaussian) and v.op.source.name]
    drawn = ns.Program((*outputs, *sources, *vectors)).simulate(draws=draws, seed=2)
    named = {}
    matrices = drawn[len(outputs) : len(outputs) + len(sources)]
    for name, matrix in zip(weights, matrices, strict=True):
        named[name] = np.swapaxes(matrix, -1, -2)
    for v, vector in zip(vectors, drawn[len(outputs) + len(sources) :], strict=True):
        named[v.op.source.name] = vector
    return drawn[: len(outputs)], named


RATES = np.array([0.3, 1.0, 2.0, 5.0])
BIASES = np.array([0.0, 1.0, -1.0, -3.0])

# a layer of (tokens, widths of heads), and the same in numpy
CASES = {
    "linear attention": (
        lambda x, k, v: nn.linear_attention(x, HEADS, k, value_dim=v),
        lambda x, w: networks.linear_attention(x, w),
    ),
    "linear attention, normalised": (
        lambda x, k, v: nn.linear_attention(
            x,
            HEADS,
            k,
            value_dim=v,
            groups=2,
            feature_map=ns.sigmoid,
            normalize=True,
            eps=0.0,
            scaling="linear",
            gate=ns.silu,
            norm=lambda u: ns.rms_norm(u, 0.1),
        ),
        lambda x, w: networks.linear_attention(
            x,
            w,
            feature_map=networks.sigmoid,
            normalize=True,
            gate=networks.silu,
            norm=lambda u: networks.rms(u, 0.1),
        ),
    ),
    "retention": (
        lambda x, k, v: nn.retention(x, HEADS, k, value_dim=v),
        lambda x, w: networks.retention(x, w, gamma=1 - 0.5 ** np.arange(5, 9)),
    ),
    "retention, gated": (
        lambda x, k, v: nn.retention(
            x,
            HEADS,
            k,
            value_dim=v,
            decay=[0.0, 0.5, 0.9, 1.0],
            gate=ns.silu,
            norm=lambda u: ns.rms_norm(u, 0.1),
        ),
        lambda x, w: networks.retention(
            x,
            w,
            gamma=[0.0, 0.5, 0.9, 1.0],
            gate=networks.silu,
            norm=lambda u: networks.rms(u, 0.1),
        ),
    ),
    "mamba2": (
        lambda x, k, v: nn.mamba2(x, HEADS, v, 3),
        lambda x, w: networks.mamba2(x, w, rates=[1.0, 2.0, 3.0, 4.0]),
    ),
    "mamba2, all": (
        lambda x, k, v: nn.mamba2(
            x,
            HEADS,
            v,
            3,
            groups=2,
            rates=RATES,
            dt_bias=BIASES,
            dt_limits=(0.1, 1.5),
            skip=[1.0, 0.5, 0.0, -1.0],
            gate=ns.silu,
            norm=lambda u: ns.rms_norm(u, 0.1),
        ),
        lambda x, w: networks.mamba2(
            x,
            w,
            rates=RATES,
            dt_bias=BIASES,
            limits=(0.1, 1.5),
            skip=[1.0, 0.5, 0.0, -1.0],
            gate=networks.silu,
            norm=lambda u: networks.rms(u, 0.1),
        ),
    ),
    "gated delta": (
        lambda x, k, v: nn.gated_delta(x, HEADS, 3, value_dim=v),
        lambda x, w: networks.gated_delta(x, w, rates=1.0),
    ),
    "gated delta, all": (
        lambda x, k, v: nn.gated_delta(
            x,
            HEADS,
            3,
            value_dim=v,
            groups=2,
            rates=RATES,
            dt_bias=BIASES,
            beta_max=2.0,
            gate=ns.silu,
            norm=lambda u: ns.rms_norm(u, 0.1),
        ),
        lambda x, w: networks.gated_delta(
            x,
            w,
            rates=RATES,
            dt_bias=BIASES,
            beta_max=2.0,
            gate=networks.silu,
            norm=lambda u: networks.rms(u, 0.1),
        ),
    ),
    "delta, no decay and free keys": (
        lambda x, k, v: nn.gated_delta(x, HEADS, 3, value_dim=v, rates=0, qk_norm=None),
        lambda x, w: networks.gated_delta(
            x, w, rates=0.0, key_norm=lambda u: u / u.shape[-1] ** 0.5
        ),
    ),
}


# Each draw


@pytest.mark.parametrize("name", CASES)
def test_draws_equal_recurrence_of_states_with_same_parameters(name):
    layer, network = CASES[name]
    x = ns.gaussian(N, TOKENS)
    (tokens, outputs), w = parameters((x, layer(x, D, P)))
    for draw in range(3):
        expected = network(tokens[draw], {key: w[key][draw] for key in w})
        np.testing.assert_allclose(outputs[draw], expected, rtol=1e-10, atol=1e-11)


def test_leading_axes_are_sequences_with_shared_parameters():
    x = ns.gaussian(N, (2, TOKENS))
    for name in ("linear attention, normalised", "mamba2, all", "gated delta, all"):
        layer, network = CASES[name]
        (tokens, outputs), w = parameters((x, layer(x, D, P)))
        for row in range(2):
            expected = network(tokens[1, row], {key: w[key][1] for key in w})
            np.testing.assert_allclose(outputs[1, row], expected, rtol=1e-10)


def test_convolution_precedes_the_recurrence():
    x = ns.gaussian(N, TOKENS)
    y = nn.mamba2(x, HEADS, P, 3, groups=2, conv=decaying_sum)
    (tokens, outputs), w = parameters((x, y))
    taps = 0.5 ** np.arange(3)[:, None] * np.ones((3, 1))

    def convolved(matrices):
        return [np.tanh(networks.convolved(tokens[0] @ m.T, taps)) for m in matrices]

    v, b, c = (convolved(w[key][0]) for key in ("W^V", "W^B", "W^C"))
    heads = []
    for head in range(HEADS):
        steps = networks.softplus(tokens[0] @ w["w^Δ"][0, head, 0])
        state = np.zeros((P, 3))
        rows = []
        for t in range(TOKENS):
            state = np.exp(-(head + 1) * steps[t]) * state
            state += steps[t] * np.outer(v[head][t], b[head // 2][t])
            rows.append(state @ c[head // 2][t])
        heads.append(np.array(rows))
    expected = np.concatenate(heads, axis=-1) @ w["W^O"][0].T
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("entries", ["normal", "uniform"])
def test_depthwise_convolution_multiplies_coordinates_by_taps(entries):
    x = ns.gaussian(N, (2, TOKENS))
    y = nn.depthwise_conv(x, 3, sigma_b=0.5, entries=entries, head_axes=1)
    (tokens, outputs), w = parameters((x, y))
    taps, bias = w["tap"], w["b"]
    if entries == "uniform":
        taps, bias = special.erf(taps), 3**0.5 * 0.5 * special.erf(bias)
    for row in range(2):
        expected = networks.convolved(tokens[0, row], taps[0, row], bias[0, row])
        np.testing.assert_allclose(outputs[0, row], expected, rtol=1e-10)


def test_convolution_parameters_have_the_stated_distribution():
    """One token shows the first tap: 8,000 entries, level 1e-6."""
    ones = ns.data(np.ones((1, 4)))
    bound = 4**-0.5
    laws = {
        "normal": stats.norm(scale=0.5),
        "uniform": stats.uniform(-bound, 2 * bound),
    }
    for entries, sigma in (("normal", 1.0), ("uniform", 3**-0.5)):
        y = nn.depthwise_conv(ones, 4, sigma=sigma, entries=entries)
        drawn = ns.Program(y).simulate(draws=2000)
        assert stats.kstest(drawn.ravel(), laws[entries].cdf).pvalue > 1e-6


# Laws


# the matrices that heads share, and for how many groups
GROUPS = {
    "linear attention, normalised": {"W^K": 2, "W^V": 2},
    "mamba2": {"W^B": 1, "W^C": 1},
    "mamba2, all": {"W^B": 2, "W^C": 2},
    "gated delta, all": {"W^Q": 2, "W^K": 2},
}


def own_draws(name, width, draws, seed=1):
    """Draws of numpy networks: a coordinate of each token, and mean squares.

    The tokens are tanh of Gaussian vectors with covariance I + 1/2.
    """
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.eye(TOKENS) + 0.5)
    shapes = {
        "W^Q": (HEADS, D, width),
        "W^K": (HEADS, D, width),
        "W^V": (HEADS, P, width),
        "W^B": (HEADS, 3, width),
        "W^C": (HEADS, 3, width),
        "W^G": (HEADS, P, width),
        "W^O": (width, HEADS * P),
        "w^Δ": (HEADS, 1, width),
        "w^β": (HEADS, 1, width),
    }
    for key, groups in GROUPS.get(name, {}).items():
        shapes[key] = (groups, *shapes[key][1:])
    rows = []
    for _ in range(draws):
        x = np.tanh(root @ rng.standard_normal((TOKENS, width)))
        w = {
            key: rng.standard_normal(shape) / shape[-1] ** 0.5
            for key, shape in shapes.items()
        }
        y = CASES[name][1](x, w)
        rows.append([*y[:, 0], *(y**2).mean(-1), (y[0] * y[-1]).mean()])
    return np.array(rows)


def program(name, key_dim=D, value_dim=P):
    x = ns.tanh(ns.gaussian(n, TOKENS, cov=np.eye(TOKENS) + 0.5))
    y = CASES[name][0](x, key_dim, value_dim)
    squares = tuple(ns.mean_dot(y[t], y[t]) for t in range(TOKENS))
    return ns.Program((y, *squares, ns.mean_dot(y[0], y[-1])))


PLAIN = ["linear attention", "retention", "mamba2", "gated delta"]


@pytest.mark.parametrize("name", keep(CASES, "mamba2", "gated delta"))
def test_law_at_width_32_is_that_of_numpy_networks(name):
    """Kolmogorov–Smirnov, 15 tests a case, level 1e-4 in all."""
    exact = exact_draws(program(name), 1000, n=32)
    assert smallest_of(exact, own_draws(name, 32, 600)) > 1e-4 / 15


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_law_at_width_32_is_that_of_3000_numpy_networks(name):
    exact = exact_draws(program(name), 4000, n=32)
    assert smallest_of(exact, own_draws(name, 32, 3000, seed=7)) > 1e-4 / 15


BROKEN = {
    "a decay too many": lambda u: decays(u) * np.exp(-np.maximum(u, 0.0))[..., None, :],
    "no decay": lambda u: np.tri(u.shape[-1]) + 0.0 * u[..., None],
}


@pytest.mark.parametrize("fault", keep(BROKEN, "a decay too many"))
def test_wrong_decays_are_noticed(monkeypatch, fault):
    broken = ns.Function("decays", BROKEN[fault])
    monkeypatch.setattr("netsor.nn._recurrent.DECAYS", broken)
    exact = exact_draws(program("mamba2"), 1000, n=32)
    assert smallest_of(exact, own_draws("mamba2", 32, 600)) < 1e-4 / 15


def test_delta_rule_without_its_correction_is_noticed(monkeypatch):
    broken = ns.Function("inverse", lambda a: np.eye(a.shape[-1]) + 0.0 * a)
    monkeypatch.setattr("netsor.nn._recurrent.UNIT_LOWER_INVERSE", broken)
    exact = exact_draws(program("gated delta"), 1000, n=32)
    assert smallest_of(exact, own_draws("gated delta", 32, 600)) < 1e-4 / 15


@pytest.mark.parametrize("name", keep(CASES, *PLAIN))
def test_law_is_that_of_literal_draws(name):
    assert smallest_p(program(name), draws=1000, n=4) > 1e-5


@pytest.mark.slow
def test_mamba_with_its_convolution_has_the_law_of_literal_draws():
    x = ns.tanh(ns.gaussian(n, TOKENS))
    options = {"conv": 3, "gate": ns.silu, "norm": ns.rms_norm, "skip": 1.0}
    y = nn.mamba2(x, 2, 4, 3, groups=1, dt_bias=ns.normal(2), **options)
    assert smallest_p(ns.Program((y, ns.mean_dot(y, y)[0])), n=5) > 1e-5


@pytest.mark.parametrize("name", keep(CASES, "gated delta"))
def test_infinite_width_is_that_of_4096(name):
    """The same layer with heads of finite dimensions, 8 tests, level 1e-4 in all."""
    limit = exact_draws(program(name), 800, seed=1, n=ns.inf)
    wide = exact_draws(program(name), 800, seed=2, n=4096)
    assert smallest_of(limit, wide) > 1e-4 / 15


@pytest.mark.parametrize(
    "name", keep(["linear attention", "retention, gated"], "linear attention")
)
def test_heads_of_infinite_dimension_are_those_of_1000(name):
    net = program(name, d, 2 * d)
    limit = exact_draws(net, 800, seed=1, n=ns.inf, d=ns.inf)
    wide = exact_draws(net, 800, seed=2, n=1000, d=1000)
    assert smallest_of(limit, wide) > 1e-4 / 15


# Closed forms


def test_one_token_of_linear_attention_has_a_product_law_at_infinite_width():
    """y = p v with p ~ N(0, K²) and v ~ N(0, K), independent: K = E[tanh²]. 40,000
    draws against the law of a product of two normals, a Bessel function: level 1e-6.
    """
    x = ns.tanh(ns.gaussian(n, 1))
    y = ns.Program(nn.linear_attention(x, 1)[0])
    law = y.law(n=ns.inf, draws=20_000)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    k = weights @ np.tanh(nodes) ** 2 / weights.sum()
    assert law.var() == pytest.approx(k**3, rel=5 * (8 / 20_000) ** 0.5)
    # E[y⁴] = 9 (k³)²
    assert law.kurtosis() == pytest.approx(6.0, abs=0.9)
    for u in (0.5, 2.0):
        z = np.linspace(-u, u, 20_001)[1::2]
        density = special.k0(np.abs(z)) / np.pi  # of a product of two N(0, 1)
        exact = density.sum() * (z[1] - z[0])
        probability = law.cdf(u * k**1.5) - law.cdf(-u * k**1.5)
        # of a mean over draws, each between 0 and 1
        assert probability == pytest.approx(exact, abs=5 * 0.5 / 20_000**0.5)


def test_outputs_given_scalars_are_gaussian_with_the_stated_covariance():
    """The mean square of the last token at infinite width is E[c K c^T] in closed form
    for linear attention: p_ts are Gaussian with covariance K_tt K_ss'.
    """
    cov = np.eye(3) + 0.5
    x = ns.gaussian(n, 3, cov=cov)
    y = nn.linear_attention(x, 2, sigma_v=1.5, sigma_q=0.7)
    variance = 0.49 * 2.25 * cov[2, 2] * (cov**2).sum()
    draws = 40_000
    law = ns.Program(y[2]).law(n=ns.inf, draws=draws)
    assert law.var() == pytest.approx(variance, rel=5 * (4 / draws) ** 0.5)


def test_one_token_of_delta_rule_is_beta_times_a_cosine():
    """y_1 = d^(−1/2) β ⟨q, k⟩ v with unit vectors: E[y²] = E[β²] σ² / d². Level 1e-6."""
    x, draws = ns.gaussian(n, 1), 40_000
    y = nn.gated_delta(x, 1, 4, value_dim=n)
    law = ns.Program(y[0]).law(n=ns.inf, draws=draws)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    beta_square = weights @ special.expit(nodes) ** 2 / weights.sum()
    assert law.var() == pytest.approx(beta_square / 16, rel=5 * (4 / draws) ** 0.5)


def test_infinite_rates_leave_the_present_token():
    x = ns.gaussian(N, TOKENS)
    y = nn.mamba2(x, 1, P, 3, rates=1e6)
    (tokens, outputs), w = parameters((x, y))
    v, b, c = (tokens[0] @ w[key][0, 0].T for key in ("W^V", "W^B", "W^C"))
    steps = networks.softplus(tokens[0] @ w["w^Δ"][0, 0, 0])
    factors = (b * c).sum(-1) * steps
    expected = (factors[:, None] * v) @ w["W^O"][0].T
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-12)


def test_retention_without_decay_is_linear_attention():
    x = ns.tanh(ns.gaussian(n, TOKENS))
    retained = ns.Program(nn.retention(x, 2, 8, decay=1.0))
    summed = ns.Program(nn.linear_attention(x, 2, 8))
    first = retained.draw(n=32, draws=50, progress=False)
    second = summed.draw(n=32, draws=50, progress=False)
    np.testing.assert_allclose(first, second, rtol=1e-12)


def test_mamba_without_decay_is_linear_attention_with_steps():
    x = ns.gaussian(N, TOKENS)
    y = nn.mamba2(x, 2, P, 3, rates=0)
    (tokens, outputs), w = parameters((x, y))
    expected = networks.mamba2(tokens[0], {k: w[k][0] for k in w}, rates=[0.0, 0.0])
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-11)


@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize("name", PLAIN)
def test_outputs_are_proportional_to_values_at_any_scale(name, size):
    layers = {
        "linear attention": lambda **s: nn.linear_attention(x, 2, 3, **s),
        "retention": lambda **s: nn.retention(x, 2, 3, **s),
        "mamba2": lambda **s: nn.mamba2(x, 2, 4, 3, **s),
        "gated delta": lambda **s: nn.gated_delta(x, 2, 3, **s),
    }
    x = ns.gaussian(n, TOKENS)
    small, one = (
        ns.Program(layers[name](sigma_v=sigma)).draw(n=16, draws=20, progress=False)
        for sigma in (size, 1.0)
    )
    np.testing.assert_allclose(small, size * one, rtol=1e-9, atol=1e-9 * size)


@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_scores_of_any_scale_stay_finite(size):
    x = size * ns.gaussian(n, TOKENS)
    for y in (nn.mamba2(x, 2, 4, 3), nn.gated_delta(x, 2, 3)):
        drawn = ns.Program(y).draw(n=16, draws=20, progress=False)
        assert np.isfinite(drawn).all()
        assert drawn.any()


def test_random_parameters_of_heads_are_drawn_once_for_all_tokens():
    """A rate that is uniform from 0 to 16: the decay of the first head, seen by a
    layer whose steps are constant.
    """
    rates = 16 * ns.apply(special.ndtr, ns.normal(2), name="ndtr")
    x = ns.gaussian(N, 3)
    y = nn.mamba2(x, 2, P, 3, rates=rates, sigma_dt=0.0, dt_bias=-2.0)
    (tokens, outputs, a), w = parameters((x, y, rates))
    for draw in range(3):
        expected = networks.mamba2(
            tokens[draw], {k: w[k][draw] for k in w}, rates=a[draw], dt_bias=-2.0
        )
        np.testing.assert_allclose(outputs[draw], expected, rtol=1e-10)


# Costs


def test_one_output_takes_a_few_random_numbers_at_any_width():
    """The last output of T tokens. Linear attention: one norm of a query, one of a
    combination of values, and T coordinates of keys. Mamba-2 has T steps too. The delta
    rule has inner products of T queries and T keys in R^d, d ≥ 2T.
    """
    t = TOKENS
    expected = {
        "linear attention": 2 + t,
        "retention": 2 + t,
        "mamba2": 2 + 2 * t,
        "gated delta": 1 + 2 * t + t * (t + 1) + t * t,
    }
    for width in (64, 1024):
        x = ns.data(np.eye(width)[:t])
        layers = {
            "linear attention": nn.linear_attention(x, 1, width),
            "retention": nn.retention(x, 1, width),
            "mamba2": nn.mamba2(x, 1, width, 8),
            "gated delta": nn.gated_delta(x, 1, 2 * t, value_dim=width),
        }
        for name, y in layers.items():
            assert ns.Program(y[-1]).plan().random_numbers == expected[name]


# Gradients


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_of_numpy_networks(name):
    layer, network = CASES[name]
    x, r = ns.gaussian(N, TOKENS), ns.gaussian(N, name="readout")
    y = layer(x, D, P)
    p = ns.dot(r, y[-1]) + ns.dot(r, ns.tanh(y[1]))
    (tokens, gradient), w = parameters((x, ns.grad(p, x)), draws=1, forward=[p])
    w = {key: w[key][0] for key in w}

    def loss(inputs):
        outputs = network(inputs, w)
        return w["readout"] @ (outputs[-1] + np.tanh(outputs[1])) / N**0.5

    step, slopes = 1e-5, np.zeros((TOKENS, N))
    for t, i in np.ndindex(slopes.shape):
        move = np.zeros((TOKENS, N))
        move[t, i] = step
        slopes[t, i] = (loss(tokens[0] + move) - loss(tokens[0] - move)) / (2 * step)
    expected = N**0.5 * slopes
    np.testing.assert_allclose(
        gradient[0], expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max()
    )


def gradient_program(name, key_dim=D, value_dim=P):
    x = ns.gaussian(n, 3, cov=np.eye(3) + 0.5)
    y = CASES[name][0](x, key_dim, value_dim)
    p = ns.dot(ns.gaussian(n), y[-1])
    g = ns.grad(p, x)
    return ns.Program((p, ns.mean_dot(g[0], g[0]), ns.dot(g[1], x[1])))


@pytest.mark.parametrize("name", keep(CASES, *PLAIN))
def test_gradients_have_the_law_of_literal_draws(name):
    assert smallest_p(gradient_program(name), draws=1000, n=4) > 1e-5


@pytest.mark.parametrize("name", keep(CASES, "mamba2"))
def test_gradients_at_infinite_width_are_those_of_4096(name):
    net = gradient_program(name)
    limit = exact_draws(net, 400, seed=1, n=ns.inf)
    wide = exact_draws(net, 400, seed=2, n=4096)
    assert smallest_of(limit, wide) > 1e-5


def test_gradients_of_gradients_exist():
    x = ns.gaussian(N, 3)
    y = nn.gated_delta(x, 1, 3)
    p = ns.dot(ns.gaussian(N, name="readout"), y[-1])
    g = ns.grad(p, x)
    second = ns.grad(ns.mean_dot(g, g).sum(), x)
    assert np.isfinite(ns.Program(second).simulate(draws=3)).all()


# The functions of scalars


def slow_decays(u):
    tokens = len(u)
    result = np.zeros((tokens, tokens))
    for s in range(tokens):
        result[s, s] = 1.0
        for t in range(s + 1, tokens):
            result[t, s] = result[t - 1, s] * np.exp(-u[t])
    return result


def test_decays_are_products_over_tokens():
    u = np.random.default_rng(1).exponential(size=(2, 3, 7))
    for index in np.ndindex(2, 3):
        expected = slow_decays(u[index])
        np.testing.assert_allclose(decays(u)[index], expected, rtol=1e-13)


@pytest.mark.parametrize("size", keep([0.0, 1e-12, 1.0, 1e8, 1e300], 1e-12, 1.0, 1e300))
def test_decays_of_512_tokens_do_not_overflow(size):
    u = size * np.random.default_rng(1).exponential(size=512)
    with np.errstate(over="raise", invalid="raise"):
        d = decays(u)
    assert d.nbytes == 512**2 * 8
    np.testing.assert_allclose(d, slow_decays(u), rtol=1e-10, atol=1e-300)


def test_small_decays_after_large_ones_keep_their_digits():
    u = np.array([1e20, 1e20, 1e-3, 1e-3])
    d = decays(u)
    np.testing.assert_allclose(d[3, 1], np.exp(-2e-3), rtol=1e-14)


def test_decays_are_bounded_for_all_arguments():
    u = np.random.default_rng(1).standard_normal((5, 6)) * 100
    assert decays(u).max() <= 1
    assert decays(u).min() >= 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 512])
def test_unit_lower_inverse_is_the_inverse(size):
    a = np.random.default_rng(1).standard_normal((2, size, size)) / size**0.5
    system = np.eye(size) + np.tril(a, -1)
    inverse = unit_lower_inverse(a)
    expected = np.broadcast_to(np.eye(size), a.shape)
    np.testing.assert_allclose(system @ inverse, expected, atol=1e-12)
    assert (np.triu(inverse, 1) == 0).all()


@pytest.mark.parametrize(
    "name", keep(["decays", "unit_lower_inverse", "softplus"], "softplus")
)
def test_functions_agree_in_every_array_library(name):
    jnp = pytest.importorskip("jax.numpy")
    f = {
        "decays": decays,
        "unit_lower_inverse": unit_lower_inverse,
        "softplus": SOFTPLUS.f,
    }[name]
    a = np.random.default_rng(1).standard_normal((2, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(f(jnp.asarray(a)), f(a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("u", [-1e308, -800.0, -1.0, 0.0, 1e-9, 1.0, 800.0, 1e308])
def test_softplus_is_accurate_everywhere(u):
    with np.errstate(over="raise"):
        assert SOFTPLUS.f(np.array(u)) == pytest.approx(np.logaddexp(0.0, u), rel=1e-15)


def test_derivatives_of_scalars_are_differences():
    z = ns.normal(5)
    u = ns.apply(SOFTPLUS, z)
    p = ns.apply(DECAYS, u, axes=1)
    q = ns.apply(UNIT_LOWER_INVERSE, p * ns.sin(p + 2.0), axes=2)
    weights = np.sin(np.arange(25.0)).reshape(5, 5)
    at, slope = ns.Program((z, ns.grad((q * weights).sum((0, 1)), z))).simulate(draws=1)

    def f(z):
        p = decays(SOFTPLUS.f(z))
        return (weights * unit_lower_inverse(p * np.sin(p + 2.0))).sum()

    step = 1e-5 * np.eye(5)
    expected = [(f(at[0] + move) - f(at[0] - move)) / 2e-5 for move in step]
    np.testing.assert_allclose(slope[0], expected, rtol=1e-7, atol=1e-9)


# What the checker and the errors say


VERDICTS = {
    "linear attention": (lambda x: nn.linear_attention(x, 2), "proved", ""),
    "retention": (lambda x: nn.retention(x, 2, d), "proved", ""),
    "normalised": (
        lambda x: nn.linear_attention(x, 2, normalize=True),
        "conjectured",
        "reciprocal is not pseudo-Lipschitz",
    ),
    "positive features over the root": (
        lambda x: nn.linear_attention(x, 2, feature_map=ns.sigmoid),
        "no limit",
        "factors are correlated",
    ),
    "mamba2": (
        lambda x: nn.mamba2(x, 2, n, 8),
        "conjectured",
        "which is finite",
    ),
    "gated delta": (
        lambda x: nn.gated_delta(x, 2, 8, value_dim=n),
        "conjectured",
        "a mean used",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    make, verdict, reason = VERDICTS[name]
    report = ns.Program(make(ns.tanh(ns.gaussian(n, 3)))).check()
    assert report.verdict == verdict
    assert reason in str(report)


def test_recurrent_layers_are_printed_and_fit_into_blocks():
    x = ns.gaussian(n, 3)
    for name, (layer, _) in CASES.items():
        block = nn.block(
            x, lambda u, layer=layer: layer(u, 4, 4), lambda u: nn.mlp(u, 2 * n)
        )
        net = ns.Program(block.output)
        assert str(net).startswith("program"), name
        body = net.latex()
        assert body.count("{") == body.count("}")


ERRORS = {
    "tokens": (lambda x: nn.mamba2(x[0], 2, 4, 4), "x=.* must be vectors with an axis"),
    "heads": (lambda x: nn.retention(x, 0), "retention: heads=0 must be a positive"),
    "groups": (
        lambda x: nn.mamba2(x, 4, 4, 4, groups=3),
        "mamba2: groups=3 must divide heads=4",
    ),
    "decay": (
        lambda x: nn.retention(x, 2, decay=1.5),
        r"retention: decay=1.5 must be numbers from 0 to 1",
    ),
    "decays of other heads": (
        lambda x: nn.retention(x, 2, decay=[0.5, 0.5, 0.5]),
        r"decay=\[0.5, 0.5, 0.5\] must be one number, or one for each of 2 heads",
    ),
    "rates": (
        lambda x: nn.mamba2(x, 2, 4, 4, rates=-1.0),
        r"mamba2: rates=-1.0 must be numbers that are not negative",
    ),
    "random rates": (
        lambda x: nn.gated_delta(x, 2, 4, rates=ns.normal(3)),
        r"gated_delta: rates=<Scalar .*> must be a Scalar of shape \(\) or \(2,\)",
    ),
    "bias": (
        lambda x: nn.mamba2(x, 2, 4, 4, dt_bias="no"),
        "mamba2: dt_bias='no' must be a real number",
    ),
    "limits": (
        lambda x: nn.mamba2(x, 2, 4, 4, dt_limits=(2.0, 1.0)),
        r"mamba2: dt_limits=\(2.0, 1.0\) must be two numbers",
    ),
    "limits of text": (
        lambda x: nn.mamba2(x, 2, 4, 4, dt_limits=("a", 1.0)),
        r"dt_limits=\('a', 1.0\) must be two numbers",
    ),
    "state": (
        lambda x: nn.mamba2(x, 2, 4, d),
        "mamba2: state_dim=d must be an integer with this scaling",
    ),
    "scaling": (
        lambda x: nn.linear_attention(x, 2, scaling="root"),
        "scaling='root' must be 'sqrt', 'linear', 'none' or a number",
    ),
    "scaling of the delta rule": (
        lambda x: nn.gated_delta(x, 2, d),
        "gated_delta: head_dim=d must be an integer with this scaling",
    ),
    "factor of the delta rule": (
        lambda x: nn.gated_delta(x, 2, 4, scaling="linear"),
        "gated_delta: scaling='linear' must be 'sqrt' or a number",
    ),
    "scaling of the delta rule, an array": (
        lambda x: nn.gated_delta(x, 2, 4, scaling=np.array([1.0, 2.0])),
        r"gated_delta: scaling=array\(\[1., 2.\]\) must be 'sqrt' or a number",
    ),
    "beta": (
        lambda x: nn.gated_delta(x, 2, 4, beta_max=0.0),
        "gated_delta: beta_max=0.0 must be a positive number",
    ),
    "norm": (lambda x: nn.retention(x, 2, norm=1.0), "norm=1.0 must be a function of"),
    "gate": (lambda x: nn.mamba2(x, 2, 4, 4, gate="silu"), "gate='silu' must be a fun"),
    "rotary": (
        lambda x: nn.retention(x, 2, rotary=1e4),
        r"retention: rotary=10000.0 must be an ns\.nn\.Rotary",
    ),
    "conv": (lambda x: nn.mamba2(x, 2, 4, 4, conv=0), "mamba2: conv=0 must be"),
    "kernel": (lambda x: nn.depthwise_conv(x, 0), "depthwise_conv: kernel=0 must be"),
    "entries": (
        lambda x: nn.depthwise_conv(x, 2, entries="cauchy"),
        "entries='cauchy' must be 'normal' or 'uniform'",
    ),
    "head axes": (
        lambda x: nn.depthwise_conv(x, 2, head_axes=1),
        "head_axes=1 must be",
    ),
    "normalize": (
        lambda x: nn.linear_attention(x, 2, normalize=1),
        "normalize=1 must be True or False",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument(name):
    make, message = ERRORS[name]
    with pytest.raises(ns.TraceError, match=message):
        make(ns.gaussian(n, 3))
