"""Embeddings, logits, positions: against plain numpy and against large widths."""

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from netsor import nn

from ..engine.compare import exact_draws, smallest_p

n = ns.Width("n")
IDS = np.array([3, 7, 3, 0])
WORDS = 9


def test_repeated_ids_share_their_vector():
    e = nn.Embedding(IDS, n, 0.5)
    x, again, seven = ns.Program((e(), e([[7], [3]]), e(7))).simulate(n=6, draws=2000)
    np.testing.assert_array_equal(x[:, 0], x[:, 2])
    np.testing.assert_array_equal(again[:, :, 0], x[:, [1, 0]])
    np.testing.assert_array_equal(seven, x[:, 1])
    # 12,000 numbers, level 1e-6 each
    gram = np.einsum("rin,rjn->ij", x, x) / x[:, 0].size
    np.testing.assert_allclose(
        gram, 0.25 * np.equal.outer(IDS, IDS), atol=5 * 0.25 * np.sqrt(2 / 12_000)
    )


def test_positions_are_learned():
    x = nn.embedding(IDS, n, std=0.5, position_std=0.3, positions=[1, 1, 2, 0])
    plain = nn.embedding([IDS, IDS], n, position_std=2.0)
    a, b = ns.Program((x, plain)).simulate(n=6, draws=4000)
    at = np.array([1, 1, 2, 0])
    size = a[:, 0].size  # 24,000 numbers, level 1e-6 each
    gram = np.einsum("rin,rjn->ij", a, a) / size
    right = 0.25 * np.equal.outer(IDS, IDS) + 0.09 * np.equal.outer(at, at)
    np.testing.assert_allclose(gram, right, atol=5 * 0.34 * np.sqrt(2 / size))
    np.testing.assert_array_equal(b[:, 0], b[:, 1])
    assert abs((b**2).mean() - 5) < 5 * 5 * np.sqrt(2 / (4 * size))


def test_untied_logits_given_the_vectors():
    """Any combination of rows, over its conditional deviation, is N(0, 1):
    Kolmogorov–Smirnov, level 1e-5.
    """
    y = ns.relu(ns.gaussian(n, (2, 2)))
    a, p = ns.Program((y, nn.logits(y, 5, sigma=0.7))).simulate(n=3, draws=2000)
    assert p.shape == (2000, 2, 2, 5)
    c = np.array([[1.0, -0.5], [0.3, 2.0]])
    spread = 0.7 * np.sqrt((np.einsum("ij,rijn->rn", c, a) ** 2).mean(-1))
    some = spread > 0
    z = np.einsum("ij,rijv->rv", c, p)[some] / spread[some, None]
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-5
    # words are independent
    assert np.abs(np.corrcoef(z.T) - np.eye(5)).max() < 5 / np.sqrt(len(z))


def test_tied_logits_given_the_vectors():
    e = nn.Embedding(IDS, n, 0.5)
    y = ns.tanh(e()[:3] + ns.gaussian(n))
    vectors, a, p = ns.Program((e.vectors, y, e.logits(y, WORDS, fan_in=6))).simulate(
        n=6, draws=1500
    )
    np.testing.assert_allclose(
        p[..., [0, 3, 7]], np.einsum("rin,rkn->rik", a, vectors), rtol=1e-10, atol=1e-12
    )
    others = np.delete(p, [0, 3, 7], axis=-1)
    c = np.array([1.0, -0.5, 2.0])
    z = np.einsum("i,riv->rv", c, others) / (
        0.5 * np.linalg.norm(np.einsum("i,rin->rn", c, a), axis=-1)[:, None]
    )
    assert z.shape[1] == WORDS - 3
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-5
    assert np.abs(np.corrcoef(z.T) - np.eye(WORDS - 3)).max() < 5 / np.sqrt(len(z))


def simulated(draws, tied, rng, width=6, std=0.5):
    """A model with its whole table of words, in numpy: embedding, a residual layer, a
    norm, logits.
    """
    table = std * rng.standard_normal((draws, WORDS, width))
    head = table if tied else std * rng.standard_normal((draws, WORDS, width))
    w = rng.standard_normal((draws, width, width)) / np.sqrt(width)
    x = table[:, IDS]
    x = x + np.maximum(np.einsum("rij,rtj->rti", w, x), 0)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.01)
    return np.einsum("rvj,rtj->rtv", head, y)


@pytest.mark.parametrize("tied", [True, False])
def test_law_of_a_model_is_that_of_its_whole_table(tied):
    """Logits, loss, largest probability: Kolmogorov–Smirnov, 9 tests, level 1e-5
    each.
    """
    e = nn.Embedding(IDS, n, 0.5)
    x = e()
    y = ns.rms_norm(x + ns.relu(ns.weight(n, n) @ x), 0.01)
    p = (
        e.logits(y, WORDS, fan_in=6)
        if tied
        else nn.logits(y, WORDS, sigma=0.5 * 6**0.5)
    )
    loss = ns.apply(_log_sum, p, axes=1) - p[..., 7]
    top = ns.apply(_largest, ns.softmax(p), axes=1)
    net = ns.Program((p[:2, [3, 7, 8]].reshape(-1), loss[[0, 1]], top[:1]))
    found = exact_draws(net, 3000, n=6)
    plain = simulated(3000, tied, np.random.default_rng(8))
    losses = special.logsumexp(plain, -1) - plain[..., 7]
    right = [
        plain[:, :2, [3, 7, 8]].reshape(3000, -1),
        losses[:, :2],
        special.softmax(plain, -1).max(-1)[:, :1],
    ]
    for i, column in enumerate(np.concatenate(right, axis=1).T):
        assert stats.ks_2samp(found[:, i], column, method="asymp").pvalue > 1e-5, i


def _log_sum(p):
    return special.logsumexp(p, axis=-1)


def _largest(p):
    return np.max(p, axis=-1)


@pytest.mark.parametrize("words", [8, 9, 40])
def test_logits_have_the_law_of_literal_draws(words):
    e = nn.Embedding(IDS, n, 0.5)
    y = ns.layer_norm(e() + ns.weight(n, n) @ ns.tanh(e()))
    p, q = e.logits(y, words, fan_in=4), nn.logits(y, words)
    assert p.shape == q.shape == (4, words)
    assert smallest_p(ns.Program((p[:2, [0, 7, 6]], q[:2, :2])), n=4) > 1e-5


def test_tied_logits_when_every_word_occurs():
    e = nn.Embedding([2, 0, 1], 5, 0.5)
    a, p = ns.Program((e(), e.logits(e(), 3))).simulate(draws=3)
    np.testing.assert_allclose(
        p, np.einsum("rin,rjn->rij", a, a[:, [1, 2, 0]]), rtol=1e-12
    )


def test_tied_logits_at_infinite_width():
    """Against the width that is held, 1024: a word of the token, one of another token,
    one that does not occur.

    The last two are N(0, std² N): Kolmogorov–Smirnov, level 1e-5. The first has a mean
    of 6.4 and a deviation of 0.6; what fluctuates with ⟨e, e⟩ is left out, which is
    less than a tenth of it.
    """
    e = nn.Embedding([3, 7], n, 0.02)
    y = ns.rms_norm(e() + 0.06 * (ns.weight(n, n) @ ns.gaussian(n, 2)))
    wide = exact_draws(
        ns.Program(e.logits(y, 9, fan_in=1024)[0, [3, 7, 8]]), 4000, seed=1, n=1024
    )
    limit = exact_draws(
        ns.Program(e.logits(y, 9, fan_in=1024, spread=True)[0, [3, 7, 8]]),
        4000,
        seed=2,
        n=ns.inf,
    )
    plain = exact_draws(
        ns.Program(e.logits(y, 9, fan_in=1024)[0, [3, 7, 8]]), 4000, seed=2, n=ns.inf
    )
    for i in (1, 2):
        assert stats.ks_2samp(wide[:, i], limit[:, i], method="asymp").pvalue > 1e-5
    # without the spread a product of independent vectors is 0
    assert not plain[:, 1].any()
    assert (
        abs(wide[:, 0].mean() - limit[:, 0].mean())
        < 5 * 0.65 * np.sqrt(2 / 4000) + 0.01
    )
    assert abs(limit[:, 0].std() / wide[:, 0].std() - 1) < 0.1


def test_untied_logits_at_infinite_width_match_a_large_width():
    y = ns.rms_norm(ns.relu(ns.gaussian(n, 2)))
    net = ns.Program(nn.logits(y, 2, sigma=0.7))
    limit, wide = (
        exact_draws(net, 3000, seed=k, n=size) for k, size in enumerate((ns.inf, 3000))
    )
    for i in range(4):
        assert stats.ks_2samp(limit[:, i], wide[:, i], method="asymp").pvalue > 1e-5
    # E[relu]² / E[relu²] = 1/π
    covariance = 0.49 * np.array([[1, 2 / np.pi * 0.5], [2 / np.pi * 0.5, 1]])
    np.testing.assert_allclose(
        np.cov(limit[:, [0, 2]].T), covariance, atol=5 * 0.49 * np.sqrt(2 / 3000)
    )


def test_equal_vectors_have_equal_logits():
    """The root of a singular Gram matrix has no roots of rounding errors in it, which
    would be 1e-8.
    """
    y = ns.tanh(ns.gaussian(n, 2))[[0, 1, 0]]
    e = nn.Embedding(IDS, n, 0.5)
    for p in ns.Program((nn.logits(y, 4), e.logits(y, WORDS, fan_in=6))).simulate(
        n=6, draws=200
    ):
        np.testing.assert_allclose(p[:, 0], p[:, 2], rtol=0, atol=1e-13)


# Positions


def test_alibi_has_the_slopes_of_its_paper():
    bias = nn.alibi(8, 4)
    assert bias.shape == (8, 4, 4)
    np.testing.assert_allclose(
        -bias[:, 1, 0], [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    )
    np.testing.assert_allclose(
        bias[2], -0.125 * np.abs(np.subtract.outer(range(4), range(4)))
    )
    # twelve heads: the slopes of 8, then those of 16 in odd places
    np.testing.assert_allclose(
        -nn.alibi(12, 2)[8:, 0, 1], 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5])
    )
    np.testing.assert_allclose(
        -nn.alibi(7, 2)[4:, 0, 1], 2.0 ** -np.array([1.0, 3.0, 5.0])
    )
    np.testing.assert_allclose(-nn.alibi(1, 2)[:, 0, 1], [2.0**-8])


def bucket(apart, bidirectional, buckets, most):
    """The bucket of j − i, in words of its definition."""
    start = 0
    if bidirectional:
        buckets //= 2
        start = buckets if apart > 0 else 0
        apart = abs(apart)
    else:
        apart = max(-apart, 0)
    exact = buckets // 2
    if apart < exact:
        return start + apart
    # bucket exact + k begins at exact · (most/exact)^(k/(buckets − exact))
    for k in range(buckets - exact - 1, 0, -1):
        if (
            apart ** (buckets - exact) * exact**k
            >= exact ** (buckets - exact) * most**k
        ):
            return start + exact + k
    return start + exact


@pytest.mark.parametrize(
    ("bidirectional", "buckets", "most"),
    [
        (True, 32, 128),
        (False, 32, 128),
        (True, 8, 20),
        (False, 9, 128),
        (False, 5, 9),
        (True, 4, 2),
    ],
)
def test_relative_biases_are_shared_by_buckets(bidirectional, buckets, most):
    tokens = 150 if most == 128 else 40
    value = nn.relative_bias(
        2,
        tokens,
        buckets=buckets,
        max_distance=most,
        std=0.5,
        bidirectional=bidirectional,
    )
    drawn = ns.Program(value).simulate(draws=2)
    right = np.array(
        [
            [bucket(j - i, bidirectional, buckets, most) for j in range(tokens)]
            for i in range(tokens)
        ]
    )
    first, place = np.unique(right.ravel(), return_index=True)
    for r in range(2):
        for h in range(2):
            numbers = drawn[r, h].ravel()[place]
            assert len(set(numbers)) == len(first)  # each bucket has its own
            np.testing.assert_array_equal(
                drawn[r, h], numbers[np.searchsorted(first, right)]
            )
    assert not np.array_equal(drawn[0, 0], drawn[0, 1])
    few = ns.Program(nn.relative_bias(3, 2, std=0.5)).simulate(draws=5000)
    # level 1e-6
    assert abs((few[..., 0, 1] ** 2).mean() / 0.25 - 1) < 5 * np.sqrt(2 / 15_000)


def test_causal_masks_with_and_without_a_window():
    np.testing.assert_array_equal(nn.causal(3), np.tri(3, dtype=bool))
    band = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    np.testing.assert_array_equal(nn.causal(4, window=2), np.array(band, dtype=bool))
    np.testing.assert_array_equal(nn.causal(3, window=1), np.eye(3, dtype=bool))
