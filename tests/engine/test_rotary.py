"""Rotary positions where the stream is infinitely wide, and where heads are too."""

from dataclasses import replace

import numpy as np
import pytest

import netsor as ns
from tests.internals import Angles, split

from ..keep import keep
from .compare import d, n, smallest_ks, smallest_p

# so alike that positions matter
KERNEL = np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 2.0]])


def tokens():
    return ns.gaussian(n, 3, cov=KERNEL)


def turned(x, **options):
    return ns.rotary(x, base=3.0, **options)


def pair(heads=2, then=lambda v: v, **options):
    """Queries and keys of each head, turned."""
    x = tokens()
    return [turned(then(ns.weight(d, n, heads) @ x), **options) for _ in range(2)]


def grouped(then=lambda v: v, **options):
    """Four heads of queries, two of keys."""
    x = tokens()
    q, k = (turned(then(ns.weight(d, n, heads) @ x), **options) for heads in (4, 2))
    return q.reshape(2, 2, 3), k[:, None]


def biased(v):
    return v + ns.gaussian(d, (v.shape[0], 1), cov=0.5)


def rms(v):
    return ns.rms_norm(v, eps=0.1)


def output():
    q, k = grouped()
    v = (ns.weight(d, n, 2) @ tokens())[:, None]
    return ns.weight(n, 4 * d) @ ns.concat(
        (ns.softmax(ns.dot(q, k), "causal") @ v).reshape(4, 3), axis=0
    )


def cached():
    """A query at a time."""
    q, k = pair(1)
    return tuple(ns.dot(q[:, i : i + 1], k[:, : i + 1]) for i in range(3))


def both():
    """The same queries and keys with positions and without, in both orders."""
    x = tokens()
    q, k = (ns.weight(d, n) @ x for _ in range(2))
    return (
        ns.dot(q, k),
        ns.dot(turned(k), turned(q)),
        ns.dot(turned(q, positions=[4.0, 0.5, 1.0]), k),
    )


CASES = {
    "plain": lambda: ns.dot(*pair()),
    "partial": lambda: ns.dot(*pair(fraction=0.5)),
    "layer norm of queries and keys": lambda: ns.dot(
        *pair(then=lambda v: ns.layer_norm(v, eps=0.1))
    ),
    "norm afterwards": lambda: ns.dot(*(rms(v) for v in pair())),
    "grouped, with all of it": lambda: ns.dot(
        *grouped(then=lambda v: rms(biased(v)), fraction=0.5)
    ),
    "one key for all": lambda: ns.dot(
        pair(3)[0], turned(ns.weight(d, n) @ tokens())[None]
    ),
    "other positions": lambda: ns.dot(
        pair(positions=[0, 5, 5])[0], pair(positions=[7, -2.5, 0])[1]
    ),
    "one side": lambda: ns.dot(pair()[0], ns.weight(d, n, 2) @ tokens()),
    "a query at a time": cached,
    "with positions and without": both,
    "an output": output,
}


def drawn(net, draws, seed, **widths):
    found = net.draw(draws=draws, seed=seed, progress=False, **widths)
    return np.concatenate(
        [
            a.reshape(draws, -1)
            for a in (found if isinstance(found, tuple) else (found,))
        ],
        axis=1,
    )


# 11 cases with at most 36 entries and 666 products each: a false alarm with probability
# 5e-5
@pytest.mark.parametrize("name", keep(CASES, "grouped, with all of it", "an output"))
def test_heads_of_finite_dimension_in_an_infinitely_wide_stream(name):
    """Against a wide stream: the smallest p-value over entries, and second moments
    within 6.5 standard errors.
    """
    net, draws = ns.Program(CASES[name]()), 3000
    limit, wide = drawn(net, draws, 1, n=ns.inf, d=8), drawn(net, draws, 2, n=512, d=8)
    assert smallest_ks(zip(limit.T, wide.T, strict=True)) > 1e-7
    products = [x[:, :, None] * x[:, None, :] for x in (limit, wide)]
    errors = np.sqrt(sum(p.var(axis=0) for p in products) / draws)
    assert (
        np.max(np.abs(products[0].mean(axis=0) - products[1].mean(axis=0)) / errors)
        < 6.5
    )


def compared_with_wide_heads(name, draws=3000):
    """The smallest p-value over entries, and the largest gap of second moments in
    standard errors, of infinitely wide heads against heads of dimension 256.
    """
    net = ns.Program(CASES[name]())
    limit = drawn(net, draws, 1, n=ns.inf, d=ns.inf)
    wide = drawn(net, draws, 2, n=ns.inf, d=256)
    products = [x[:, :, None] * x[:, None, :] for x in (limit, wide)]
    errors = np.sqrt(sum(p.var(axis=0) for p in products) / draws)
    gaps = np.abs(products[0].mean(axis=0) - products[1].mean(axis=0)) / errors
    return smallest_ks(zip(limit.T, wide.T, strict=True)), np.max(gaps)


# 11 cases with at most 36 entries and 666 products each: a false alarm with probability
# 5e-5
@pytest.mark.parametrize("name", keep(CASES, "one key for all"))
def test_infinite_heads_have_the_law_of_wide_heads(name):
    smallest, gap = compared_with_wide_heads(name)
    assert smallest > 1e-7
    assert gap < 6.5


@pytest.mark.parametrize(
    "name", keep(["plain", "partial", "a query at a time"], "plain")
)
def test_infinite_heads_without_kappa_differ_from_wide_heads(name, monkeypatch):
    """Positions that make no difference, instead of κ."""
    monkeypatch.setattr(Angles, "kappa", lambda by, r: np.ones(np.shape(r)))
    assert compared_with_wide_heads(name)[1] > 6.5


STRETCH = ns.models.Stretch(8.0, 1.0, 4.0, 64.0)


def score_covariance(at, base, fraction=1.0, stretch=None):
    """K_ii' K_jj' κ((t_j − t_i) − (t_j' − t_i')) for all pairs (i, j), κ by a fine sum
    over frequencies base^(−u).
    """
    gaps = np.subtract.outer(at, at).T.ravel()
    theta = base ** -((np.arange(20_000) + 0.5) / 20_000)
    theta = theta if stretch is None else stretch.of(theta)
    cosines = np.cos(np.subtract.outer(gaps, gaps)[..., None] * theta).mean(axis=-1)
    return np.kron(KERNEL, KERNEL) * (1 - fraction + fraction * cosines)


@pytest.mark.parametrize("options", [{}, {"fraction": 0.75}, {"stretch": STRETCH}])
def test_scores_of_infinite_heads_have_the_covariance_of_the_formula(options):
    """45 covariances at five standard errors, level 3e-5; without κ they differ."""
    at, base, draws = [0.0, 2.0, 7.0], 100.0, 50_000
    x = tokens()
    q, k = (ns.rotary(ns.weight(d, n) @ x, at, base, **options) for _ in range(2))
    scores = drawn(ns.Program(ns.dot(q, k)), draws, 3, n=ns.inf, d=ns.inf)
    covariance = np.cov(scores.T)
    right = score_covariance(at, base, **options)
    std = np.sqrt(np.diag(right))
    limit = 5 * np.sqrt(2 / draws) * np.outer(std, std)
    assert (np.abs(covariance - right) < limit).all()
    assert (np.abs(covariance - np.kron(KERNEL, KERNEL)) > limit).any()


def test_scores_asked_for_in_parts_have_the_covariance_of_the_formula():
    """A query at a time."""
    draws = 50_000
    scores = drawn(ns.Program(cached()), draws, 3, n=ns.inf, d=ns.inf)
    whole = score_covariance(np.arange(3.0), 3.0)
    causal = np.flatnonzero(np.tri(3))
    right = whole[np.ix_(causal, causal)]
    std = np.sqrt(np.diag(right))
    limit = 5 * np.sqrt(2 / draws) * np.outer(std, std)
    assert (np.abs(np.cov(scores.T) - right) < limit).all()


def test_score_of_rotated_vectors_takes_one_number_for_each_pair_and_gap():
    x = tokens()
    q, k = (turned(ns.weight(d, n) @ x) for _ in range(2))
    plan = ns.Program(ns.dot(q, k)).plan(n=ns.inf, d=ns.inf)
    assert plan.random_numbers == 9 * 5  # the gaps −2 … 2


def test_means_of_rotated_vectors_are_those_before_times_kappa():
    """⟨R_s x_i, R_t x_j⟩/n = κ(t − s) K_ij, and 1/n |R_t x_i|² as before."""
    x = tokens()
    rotated = turned(x)
    net = ns.Program((ns.mean_dot(rotated, rotated), ns.mean_dot(rotated, x)))
    means, half = net.draw(n=ns.inf, draws=2, progress=False)
    at = np.arange(3.0)
    kappa = Angles(base=3.0, fraction=1.0, stretch=None, interleaved=False).kappa
    np.testing.assert_allclose(means[0], KERNEL * kappa(at[:, None] - at), rtol=1e-12)
    np.testing.assert_allclose(half[0], KERNEL * kappa(at)[:, None], rtol=1e-12)


@pytest.mark.slow
def test_layer_of_infinite_heads_has_the_law_of_gaussian_scores():
    """Variance and kurtosis of an output, Gaussian given the scores: against draws of
    these from their law.
    """
    x = tokens()
    q, k, v = (ns.weight(n, n) @ x for _ in range(3))
    y = (ns.softmax(ns.dot(turned(q), turned(k)), "causal") @ v)[2]
    limit = ns.Program(y).law(n=ns.inf, draws=100_000).with_error
    scores = np.random.default_rng(0).multivariate_normal(
        np.zeros(3), score_covariance(np.arange(3.0), 3.0)[6:, 6:], 200_000
    )
    a = np.exp(scores - scores.max(axis=1, keepdims=True))
    a /= a.sum(axis=1, keepdims=True)
    var = np.einsum("ri,ij,rj->r", a, KERNEL, a)
    for found, right in (
        (limit.var(), var.mean()),
        (limit.kurtosis(), 3 * (var**2).mean() / var.mean() ** 2 - 3),
    ):
        assert abs(found.value - right) < 4.5 * found.error
        assert found.error < 0.1 * right


PLACES = np.array([0.0, 3.0, 6.0])


def interleaved(x, fraction=1.0):
    """Rotary positions of the pairs (2f, 2f + 1)."""
    op = ns.rotary(x, PLACES, base=100.0, fraction=fraction).op
    return ns.Vector(replace(op, interleaved=True), x.shape, x.width)


def grouped_afterwards():
    """Scores of two heads that are cut out of turned vectors, of equal tokens and of
    tokens with given gains.
    """
    x = ns.gaussian(8) * np.ones(3)
    q, k = (split(interleaved(ns.weight(8, 8) @ x), 2, axis=0) for _ in range(2))
    gains = ns.data(np.arange(1.0, 9.0))
    y = ns.dot(
        gains * interleaved(ns.weight(8, 8) @ x, fraction=0.5),
        turned(ns.weight(8, 8) @ x),
    )
    p = ns.dot(q, k)[:, 0]
    return p.reshape(-1), p.sum(axis=-1), y.sum(axis=0)


def test_interleaved_pairs_keep_their_order():
    """Exact draws against the literal network; the sums of a head's scores see its
    frequencies.
    """
    net = ns.Program(grouped_afterwards())
    assert smallest_p(net) > 1e-5


def test_interleaved_pairs_of_equal_tokens_have_the_correlations_of_the_formula():
    """⟨q_0, k_s⟩ and ⟨q_0, k_0⟩ of a head have correlation Σ_f cos(s θ_f) / F, for its
    own pairs f.
    """
    scores = ns.Program(grouped_afterwards()[0]).draw(
        draws=20_000, seed=1, progress=False
    )
    theta = 100.0 ** (-np.arange(4) / 4)
    for head in range(2):
        found = np.corrcoef(scores[:, 3 * head : 3 * head + 3].T)[0]
        right = np.cos(np.outer(PLACES, theta[2 * head : 2 * head + 2])).mean(axis=1)
        np.testing.assert_allclose(found, right, atol=0.05)


def test_rotated_vectors_of_infinite_heads_have_no_law_outside_products():
    turn = turned(ns.weight(d, n) @ tokens())
    for output in (turn[0], turn + ns.gaussian(d), ns.tanh(turn)):
        with pytest.raises(
            ns.ExactError,
            match=r"rotary positions .* at width inf .*d=64 say.*method='extrapolate'",
        ):
            ns.Program(output).draw(draws=3, n=ns.inf, d=ns.inf, progress=False)


def test_scores_with_two_bases_are_rejected_at_infinite_width():
    """The joint law of the same queries and keys rotated by two bases is not
    implemented.
    """
    x = tokens()
    q, k = (ns.weight(d, n) @ x for _ in range(2))
    net = ns.Program((ns.dot(turned(q), turned(k)), ns.dot(ns.rotary(q), ns.rotary(k))))
    for program in (net, ns.Program(ns.dot(turned(q), ns.rotary(k)))):
        with pytest.raises(ns.ExactError, match="rotary positions of vectors"):
            program.draw(draws=3, n=ns.inf, d=ns.inf, progress=False)


def test_scores_of_rotated_vectors_with_themselves_have_no_limit():
    turn = turned(ns.weight(d, n) @ tokens())
    with pytest.raises(ns.NoLimitError):
        ns.Program(ns.dot(turn, turn)).law(n=ns.inf, d=ns.inf)
