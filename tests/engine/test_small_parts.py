"""What is small relative to its vectors counts: differences of vectors that a matrix
acts on, down to 1e-12 of them.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import NUMPY, _ops

from .compare import n, smallest_ks

DELTAS = [1e-3, 1e-6, 1e-9, 1e-11]


def squares_of(net, draws, seed=1, **widths):
    """Draws of a squared distance: by the engine, and literally."""
    return (
        net.draw(draws=draws, seed=seed, progress=False, **widths),
        net.simulate(draws=draws, seed=seed + 1, progress=False, **widths),
    )


def distance(x, y):
    d = (x - y)[None]
    return ns.Program(ns.mean_dot(d, d)[0, 0])


def test_matrix_keeps_small_differences_of_large_data():
    """Variance 0.05 for 1.01: the difference is 1e-7 of the data."""
    data = 1e7 + np.random.default_rng(0).standard_normal((2, 16))
    w = ns.weight(8, 16)
    apart = ns.Program(w @ ns.data(data[0]) - w @ ns.data(data[1]))
    expected = np.sum((data[0] - data[1]) ** 2) / 16
    assert apart.law(draws=20, progress=False).var() == pytest.approx(
        expected, rel=1e-6
    )
    together = w @ ns.data(data)
    assert ns.Program(together[0] - together[1]).law(
        draws=20, progress=False
    ).var() == pytest.approx(expected, rel=1e-6)


def test_collapsing_tokens_match_the_reference_interpreter():
    """Attention without residuals: a tenth of the distances was 10 to 40 times too
    small. One comparison, at 1e-4.
    """
    x = ns.gaussian(n, 4)
    for _ in range(3):
        x = ns.nn.attention(x, 1)
    exact, literal = squares_of(distance(x[0], x[1]), 2500, n=32)
    assert np.quantile(exact, 0.1) == pytest.approx(np.quantile(literal, 0.1), rel=0.8)
    assert stats.ks_2samp(exact, literal).pvalue > 1e-4


def test_recurrent_net_near_its_fixed_point_matches_the_reference_interpreter():
    """5e-19 for 2e-16. One comparison, at 1e-4."""
    w, b = ns.weight(n, n, std=0.5), ns.gaussian(n)
    before = after = ns.tanh(b)
    for _ in range(16):
        before, after = after, ns.tanh(w @ after + b)
    exact, literal = squares_of(distance(after, before), 300, n=64)
    assert stats.ks_2samp(exact, literal).pvalue > 1e-4


@pytest.mark.parametrize("delta", [*DELTAS, 1e-7])
def test_difference_quotient_through_one_matrix_has_the_variance_of_the_derivative(
    delta,
):
    """0.003 for E[tanh'²] = 0.4644 at 1e-7 and below; 2,000 conditional variances have
    a mean good to 0.005.
    """
    x, z, w = ns.gaussian(n), ns.gaussian(n), ns.weight(n, n)
    net = ns.Program((1 / delta) * (w @ ns.tanh(x + delta * z) - w @ ns.tanh(x)))
    assert net.law(n=64, draws=2000, progress=False).var() == pytest.approx(
        0.4644, abs=0.02
    )


# Random programs: tokens that are nearly equal, through layers, and their differences
# on their own scale


def _attention(x, rng):
    return ns.nn.attention(x, int(rng.integers(1, 3)))


def _one_by_one(x, rng):
    w = ns.weight(n, n)
    return ns.join([(w @ x[i])[None] for i in range(x.shape[0])])


def layers(rng):
    """Layers to choose from; a matrix is the same wherever it acts again."""
    tied, heads, bias = ns.weight(n, n, std=0.8), ns.weight(n, n, 2), ns.gaussian(n)
    return [
        _attention,
        _one_by_one,
        lambda x, rng: ns.weight(n, n) @ x,
        lambda x, rng: x + ns.nn.attention(ns.rms_norm(x, eps=1e-3), 1, mask="causal"),
        lambda x, rng: ns.rms_norm(x, eps=1e-5),
        lambda x, rng: ns.layer_norm(x, eps=1e-5),
        lambda x, rng: ns.nn.mlp(x, 2 * n, activation=ns.gelu),
        lambda x, rng: x + ns.nn.mlp(ns.rms_norm(x, eps=1e-3), 2 * n),
        lambda x, rng: tied @ x,
        lambda x, rng: ns.tanh(tied @ x + bias),
        lambda x, rng: ns.weight(n, 2 * n) @ ns.concat(heads @ x, axis=0),
        lambda x, rng: 0.5 * (x + x[::-1]) + 0.3 * x,
    ]


def differences(seed):
    """A program, the size of its differences, and a width."""
    rng = np.random.default_rng(seed)
    tokens, delta = int(rng.integers(2, 5)), 10.0 ** -rng.uniform(3, 11)
    x = ns.gaussian(n) + delta * ns.gaussian(n, tokens)
    known = layers(rng)
    for _ in range(int(rng.integers(1, 6))):
        x = known[rng.integers(len(known))](x, rng)
    x = [x, ns.weight(n, n) @ x, _one_by_one(x, rng)][rng.integers(3)]
    d = (1 / delta) * (x[:-1] - x[1:])
    return (
        ns.Program((ns.mean_dot(d, d), d)),
        delta,
        int(rng.choice([3, 4, 5, 8, 16, 32, 64])),
    )


def smallest_p(seed, draws=500):
    """Lengths of differences and a coordinate of each; what is below 3e-12 of the
    vectors is rounding to both.
    """
    net, delta, width = differences(seed)
    pairs = []
    exact, literal = (
        net.draw(draws=draws, n=width, seed=seed, progress=False),
        net.simulate(
            draws=draws, n=width, seed=seed + 1, coordinates=0, progress=False
        ),
    )
    for i in range(exact[1].shape[1]):
        lengths = [
            np.sqrt(np.maximum(moments[0][:, i, i], 0.0))
            for moments in (exact, literal)
        ]
        pairs.append([np.maximum(length, 3e-12 / delta) for length in lengths])
        pairs.append(
            [
                np.where(
                    np.abs(moments[1][:, i]) < 3e-12 / delta, 0.0, moments[1][:, i]
                )
                for moments in (exact, literal)
            ]
        )
    return smallest_ks(pairs)


# 66 programs with at most 6 comparisons each, at 1e-7: a false alarm with probability
# 4e-5
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 66), marks=pytest.mark.slow)]
)
def test_small_differences_in_random_programs_match_the_reference_interpreter(seeds):
    for seed in seeds:
        assert smallest_p(seed) > 1e-7, seed


# The steps


def nearly_equal(count, directions, delta, replicas=20):
    rng = np.random.default_rng(count)
    return rng.standard_normal(
        (replicas, 1, 1, directions)
    ) + delta * rng.standard_normal((replicas, 1, count, directions))


@pytest.mark.parametrize("count", [2, 5, 12])
@pytest.mark.parametrize("delta", DELTAS)
def test_differences_of_coefficients_are_those_of_the_rows(count, delta):
    rows = nearly_equal(count, 40, delta)
    c = NUMPY.reduced(_ops.gram(np, rows, rows), rows)
    assert not np.triu(c, 1).any()
    d, e = (np.diff(a, axis=-2) / delta for a in (rows, c))
    # rows of length 6 are known to some 2e-15, differences of length 8 δ so to that,
    # and their products to 3e-14 of δ
    np.testing.assert_allclose(
        e @ np.swapaxes(e, -1, -2),
        d @ np.swapaxes(d, -1, -2),
        atol=3e-14 / delta + 1e-7,
    )


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-6, 6e-7])
def test_reduced_factor_keeps_small_differences_in_single_precision(delta):
    """In lengths, to a few percent, and along other vectors, to its rounding."""
    rows = nearly_equal(12, 300, delta).astype(np.float32)
    others = (
        np.random.default_rng(0).standard_normal((20, 1, 4, 300)).astype(np.float32)
    )
    c = NUMPY.reduced(_ops.gram(np, rows, rows), rows)
    along = NUMPY.oriented(c, rows, others)
    rows, others, c, along = (a.astype(np.float64) for a in (rows, others, c, along))
    d, e = (np.diff(a, axis=-2) for a in (rows, c))
    np.testing.assert_allclose((e**2).sum(axis=-1), (d**2).sum(axis=-1), rtol=0.1)
    products, expected = (
        along @ np.swapaxes(c, -1, -2),
        others @ np.swapaxes(rows, -1, -2),
    )
    assert np.sqrt(np.mean(np.diff(products - expected) ** 2)) < 2e-7 * np.sqrt(
        np.mean(expected**2)
    )


@pytest.mark.parametrize("delta", DELTAS)
def test_directions_of_nearly_equal_rows_are_orthonormal(delta):
    rows = nearly_equal(4, 9, delta)
    first = NUMPY.span(rows[..., :2, :])
    q = np.concatenate([first, NUMPY.span(rows[..., 2:, :], first)], axis=-2)
    np.testing.assert_allclose(
        q @ np.swapaxes(q, -1, -2),
        np.broadcast_to(np.eye(4), (20, 1, 4, 4)),
        atol=1e-14,
    )


@pytest.mark.parametrize("count", [3, 12])
def test_factor_of_a_matrix_does_not_depend_on_its_batch(count):
    rows = np.concatenate(
        [nearly_equal(count, 20, delta) for delta in (1.0, 1e-5, 1e-9, 0.0)]
    )
    whole = NUMPY.reduced(_ops.gram(np, rows, rows), rows)
    for k, matrix in enumerate(rows[:, None]):
        np.testing.assert_array_equal(
            NUMPY.reduced(_ops.gram(np, matrix, matrix), matrix)[0], whole[k]
        )


def test_small_differences_do_not_depend_on_the_workers():
    x = ns.gaussian(n, 4)
    for _ in range(3):
        x = ns.nn.attention(x, 1)
    net = ns.Program(x[0] - x[1])
    one_worker, two_workers = (
        net.law(n=8, draws=9000, workers=k, progress=False) for k in (1, 2)
    )
    assert np.array_equal(one_worker.component_var, two_workers.component_var)


# At infinite width functions have no coordinates


def quotient(f, delta):
    x, z, w = ns.gaussian(n), ns.gaussian(n), ns.weight(n, n)
    return ns.Program((1 / delta) * (w @ f(x + delta * z) - w @ f(x)))


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_quadrature_error_covers_small_differences_at_infinite_width(delta):
    """E[relu'²] = 1/2; at 1e-6 it was 0.50016 ± 0."""
    variance = (
        quotient(ns.relu, delta)
        .law(n=ns.inf, draws=20, progress=False)
        .with_error.var()
    )
    assert abs(variance.value - 0.5) < variance.error < 0.01


@pytest.mark.parametrize("f", [ns.relu, ns.tanh])
@pytest.mark.parametrize("delta", [1e-7, 1e-9])
def test_too_small_differences_raise_at_infinite_width(f, delta):
    """Each was a variance of 0, without a word."""
    with pytest.raises(
        ValueError,
        match=r"too inexact for this law at width inf: .*; take a finite width",
    ):
        quotient(f, delta).law(n=ns.inf, draws=20, progress=False)
