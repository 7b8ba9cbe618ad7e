"""A matrix and its transpose: at finite width against the literal interpreter, at
infinite width against wide ones.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

import netsor as ns

from ..keep import keep
from .compare import exact_draws, n, smallest_p

LEVEL = 1e-6  # of one comparison; some thirty in this file


def attention_backwards(tokens=2):
    """One attention block with a residual connection, and its backward pass from a
    random readout, by hand.
    """
    x, r = ns.gaussian(n, tokens), ns.gaussian(n)
    wq, wk, wv, wo = (ns.weight(n, n) for _ in range(4))
    q, k, v = wq @ x, wk @ x, wv @ x
    a = ns.softmax(ns.dot(q, k))
    y = x + wo @ (a @ v)
    # √n ∂⟨r, y_0⟩/√n
    delta = ns.join([r[None], 0.0 * r[None].broadcast_to((tokens - 1,))])
    back = wo.T @ delta
    da = ns.dot(back, v)
    dp = a * (da - (a * da).sum(-1)[:, None])
    grad = delta + wq.T @ (dp @ k) + wk.T @ (dp.T @ q) + wv.T @ (a.T @ back)
    return ns.Program(
        (ns.dot(r, y[0]), dp[0, 0], ns.mean_dot(grad, grad)[0, 0], ns.dot(grad, x)[0])
    )


def batches():
    """Members of a batch that act alone and together, forwards and back, and twice."""
    w, x = ns.weight(n, 3, 3), ns.gaussian(3, 2)
    y = w @ x
    z = w.T.each(ns.tanh(y))
    return ns.Program((z.sum(0), ns.dot(w[1].T @ y[0], z[1]), w[[2, 0]].each(z[1:])[0]))


def recurrent():
    w, x = ns.weight(n, n, std=1.2), ns.gaussian(n)
    y = w @ ns.tanh(w @ x)
    return ns.Program((y, ns.dot(w.T @ y, x), ns.dot(y, w @ x), w.T @ ns.tanh(w.T @ y)))


@pytest.mark.parametrize("make", [attention_backwards, batches, recurrent])
@pytest.mark.parametrize("width", [3, 8])
def test_transposes_have_the_literal_law(make, width):
    assert smallest_p(make(), draws=1200, n=width) > LEVEL


def test_attentions_backward_pass_at_infinite_width():
    """Marginals, and rank correlations of all pairs: these tell a transpose from a
    fresh matrix.
    """
    net, draws = attention_backwards(), 1500
    limit, wide = (
        exact_draws(net, draws, n=ns.inf),
        exact_draws(net, draws, seed=4, n=1500),
    )
    for a, b in zip(limit.T, wide.T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > LEVEL
    one, two = (
        np.arctanh(stats.spearmanr(z).statistic[np.triu_indices(z.shape[1], 1)])
        for z in (limit, wide)
    )
    # standard errors; some ten pairs
    assert np.abs(one - two).max() < 5.5 * np.sqrt(2 / draws)
    assert np.abs(one).max() > 0.5


def test_adjoint_identity_holds_at_order_one_over_root_n():
    w, x, y = ns.weight(n, n), ns.gaussian(n), ns.gaussian(n)
    drawn = exact_draws(
        ns.Program((ns.dot(w.T @ y, x), ns.dot(y, w @ x))), 500, n=ns.inf
    )
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 1], atol=1e-12)
    assert drawn[:, 0].std() == pytest.approx(1.0, abs=0.15)


def test_product_with_transpose_contains_its_input():
    """W^T W x = x + fresh, so a coordinate has variance 2, and correlation 1/√2 with
    that of x (Stein's lemma).
    """
    w, x = ns.weight(n, n), ns.gaussian(n)
    cov = ns.Program((w.T @ (w @ x), x)).law(n=ns.inf).cov()
    np.testing.assert_allclose(cov, [[2.0, 1.0], [1.0, 1.0]], atol=1e-12)


def test_parts_of_order_one_over_root_n_count():
    """⟨W (x + 3 s y), W y⟩ with s = ⟨x, y⟩/n: 3 √n s more than ⟨W x, W y⟩."""
    w, x, y = ns.weight(n, n), ns.gaussian(n), ns.gaussian(n)
    s = ns.mean_dot(x, y)
    net = ns.Program(ns.dot(w @ (x + 3 * s * y), w @ y))
    # 4 √n s, and a fresh normal
    assert net.law(n=ns.inf, draws=20_000).var() == pytest.approx(17.0, rel=0.04)


@pytest.mark.parametrize(
    ("case", "scale"),
    keep(
        itertools.product(["together", "one by one", "vanishing"], [1e-8, 1.0, 1e8]),
        *zip(["together", "one by one", "vanishing"], [1e-8, 1.0, 1e8], strict=True),
    ),
)
def test_small_part_of_vector_counts_alone(case, scale):
    """x + s y adds nothing to x at order 1, and yet W of it has a part along W y, on
    which W acts after it.
    """
    w, (x, y, z) = ns.weight(n, n), scale * ns.gaussian(n, 3)
    s = 3 * ns.mean_dot(x, z) / scale**2
    if case == "together":
        h = w @ ns.stack([x, x + s * y, y])
        score = ns.dot(h[1] - h[0], h[2])
    elif case == "one by one":
        first, second = w @ x, w @ (x + s * y)
        score = ns.dot(second - first, w @ y)
    else:
        score = ns.dot(w @ (s * y), w @ y)
    net = ns.Program(score / scale**2)
    # 3 √n s |y|²/n, and no 0
    assert net.law(n=ns.inf, draws=20_000).var() == pytest.approx(9.0, rel=0.06)


def chain(h, *widths):
    """A score of two vectors that met so many matrices."""
    for width in widths:
        h = ns.weight(width, h.width) @ h
    return ns.dot(h[0], h[1])


def vanishing(h, u):
    """A mean that vanishes like n^(−1/2), of two outputs of one matrix, times a vector,
    in a score.
    """
    x = ns.weight(n, n) @ h
    return ns.dot(ns.mean_dot(x[0], x[1]) * u, u)


def one_member(h):
    """A member of a batch that acts once, and one that acts twice."""
    w, x = ns.weight(n, n, 2), ns.weight(n, n) @ h
    y = w[1] @ x
    return ns.dot(y[0], y[1]) + 0.0 * ns.dot(w[0] @ (w[0] @ h[0]), h[1])


GIVEN = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
# each matrix adds the normal of two of its outputs; in a space of width 2n that has
# variance 1/2
CHAINS = {
    "one matrix": (lambda: chain(ns.gaussian(n, 2), n), 2.0),
    "two matrices": (lambda: chain(ns.gaussian(n, 2), n, n), 3.0),
    "three matrices": (lambda: chain(ns.gaussian(n, 2), n, n, n), 4.0),
    "two widths": (lambda: chain(ns.gaussian(n, 2), 2 * n, n), 2.5),
    "heads": (
        lambda: chain(ns.concat(ns.weight(n, n, 2) @ ns.gaussian(n, 2), axis=0), n),
        2.5,
    ),
    "norms": (lambda: chain(ns.rms_norm(ns.weight(n, n) @ ns.gaussian(n, 2)), n), 3.0),
    "data": (lambda: chain(3**0.5 * ns.data(GIVEN), n, n), 2.0),
    "a mean that vanishes": (lambda: vanishing(ns.gaussian(n, 2), ns.gaussian(n)), 2.0),
    "a member of a batch": (lambda: one_member(ns.gaussian(n, 2)), 3.0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_all_matrices_before_a_score_of_one_matrix_count(name):
    """Two matrices gave 2 for 3: of the inputs of the last, ⟨x, x'⟩ was taken for that
    of fresh normals.
    """
    make, variance = CHAINS[name]
    found = ns.Program(make()).law(n=ns.inf, draws=20_000).var()
    assert found == pytest.approx(variance, rel=0.05)  # 5 standard errors


def test_residual_before_score_of_one_matrix_has_right_variance():
    """x = h + A h: ⟨x, x'⟩ is 2 N[h, h'] + three normals more, and B adds one of
    variance |x|² |x'|² = 4.
    """
    h = ns.gaussian(n, 2)
    net = ns.Program(chain(h + ns.weight(n, n) @ h, n))
    assert net.law(n=ns.inf, draws=20_000).var() == pytest.approx(11.0, rel=0.05)


VANISHING = {  # with s = ⟨u, v⟩/n: √n s |W x|²/n, standard normal
    "after the vector": lambda w, x, s: ns.dot(w @ x, w @ (s * x)),
    "and once more": lambda w, x, s: chain(ns.stack([w @ x, w @ (s * x)]), n),
}


@pytest.mark.parametrize("name", VANISHING)
def test_vector_that_vanishes_counts_in_a_score_of_one_matrix(name):
    """Each was a score of 0: a vector without a part of order 1 was taken to have no
    coefficients at all.
    """
    u, v = ns.gaussian(n, 2)
    score = VANISHING[name](ns.weight(n, n), ns.gaussian(n), ns.mean_dot(u, v))
    # 5 standard errors
    assert ns.Program(score).law(n=ns.inf, draws=20_000).var() == pytest.approx(
        1.0, rel=0.05
    )


def test_transpose_acts_on_vanishing_vectors():
    """⟨x, W^T W s x⟩ is √n s |W x|²/n: W^T acts on W of a vector that vanishes."""
    w, (x, u, v) = ns.weight(n, n), ns.gaussian(n, 3)
    net = ns.Program(ns.dot(x, w.T @ (w @ (ns.mean_dot(u, v) * x))))
    # 6 standard errors
    assert net.law(n=ns.inf, draws=20_000).var() == pytest.approx(1.0, rel=0.06)


def test_widths_at_rates_of_their_own_are_refused():
    m, x = ns.Width("m"), ns.gaussian(n)
    w = ns.weight(m, n)
    with pytest.raises(ns.ExactError, match="ratio of widths m/n of W"):
        ns.Program(w.T @ ns.tanh(w @ x)).law(n=ns.inf, m=ns.inf)
    assert ns.Program(w.T @ ns.tanh(w @ x)).law(n=8, m=5, draws=100).var() > 0
