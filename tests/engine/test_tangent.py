"""The tangent kernel of one attention layer at infinite width: the engine against the
formula of docs/tangent.md.

The formula is written in numpy, from scores and what they are worth to the outputs,
with no gradient taken.
"""

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns

n = ns.Width("n")
K = np.array([[1.0, 0.5, -0.2], [0.5, 0.8, 0.1], [-0.2, 0.1, 1.5]])
SIGMA = {"q": 1.3, "k": 0.8, "v": 0.7, "o": 1.6}
LEVEL = 1e-4
DRAWS = 5000


def program(heads):
    """Two outputs at two of three correlated tokens, and the kernel between all
    four.
    """
    x, r = ns.gaussian(n, 3, cov=K), ns.gaussian(n, 2)
    q, k, v = (ns.weight(n, n, batch=heads, std=SIGMA[name]) @ x for name in "qkv")
    u = ns.concat(ns.softmax(ns.dot(q[:, :2], k)) @ v, axis=0)
    f = ns.dot(r, ns.weight(n, heads * n, std=SIGMA["o"]) @ u)
    return ns.Program((f, ns.ntk(f)))


def formula(heads, draws, broken=""):
    """f of shape (draws, outputs, tokens), and Θ with two such pairs of axes."""
    rng = np.random.default_rng(5)
    root = np.linalg.cholesky(K)
    scale = SIGMA["o"] * SIGMA["v"]
    scores = (
        SIGMA["q"]
        * SIGMA["k"]
        * root[:2]
        @ rng.standard_normal((draws, heads, 3, 3))
        @ root.T
    )
    a = special.softmax(scores, axis=-1)
    c = scale / heads**0.5 * rng.standard_normal((draws, heads, 2, 3)) @ root.T
    # (draws, heads, outputs, tokens, tokens)
    d = a[:, :, None] * (c[:, :, :, None] - (a[:, :, None] @ c[..., None]))
    by_scores = (
        2
        * (SIGMA["q"] * SIGMA["k"]) ** 2
        * np.einsum("ij,dhbik,kl,dhcjl->dbicj", K[:2, :2], d, K, d, optimize=True)
    )
    by_values = (
        2
        * scale**2
        / heads
        * np.einsum("bc,dhik,kl,dhjl->dbicj", np.eye(2), a, K, a, optimize=True)
    )
    if broken == "independent of f":
        c = rng.permutation(c)
    if broken == "half between outputs":
        by_scores *= np.array([[1.0, 0.5], [0.5, 1.0]])[:, None, :, None]
    if broken == "keys alone":
        by_scores /= 2
    return np.einsum("dhik,dhbk->dbi", a, c), by_scores + by_values


def statistics(f, kernel):
    """Products of outputs, which the kernel is correlated with, and all its entries but
    the mirrored.
    """
    draws = len(f)
    i, j = np.triu_indices(4)
    flat, square = f.reshape(draws, 4), kernel.reshape(draws, 4, 4)
    return np.concatenate([flat, flat[:, i] * flat[:, j], square[:, i, j]], axis=1)


def smallest_p(x, y):
    """Of all marginals, and of products of ranks for all pairs (Welch's test), times
    their number.
    """
    marginal = np.array(
        [stats.ks_2samp(x[:, k], y[:, k]).pvalue for k in range(x.shape[1])]
    )
    ranks = stats.rankdata(np.concatenate([x, y]), axis=0) / (len(x) + len(y)) - 0.5
    i, j = np.triu_indices(x.shape[1], 1)
    products = ranks[:, i] * ranks[:, j]
    pairs = stats.ttest_ind(
        products[: len(x)], products[len(x) :], equal_var=False
    ).pvalue
    return min(1.0, marginal.size * marginal.min(), pairs.size * pairs.min())


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.slow
def test_tangent_kernel_limit_equals_the_formula(heads):
    limit = statistics(*program(heads).draw(n=ns.inf, draws=DRAWS))
    assert smallest_p(limit, statistics(*formula(heads, DRAWS))) > LEVEL
    for broken in ("independent of f", "half between outputs", "keys alone"):
        assert smallest_p(limit, statistics(*formula(heads, DRAWS, broken))) < LEVEL, (
            broken
        )


def test_tangent_kernel_of_many_heads_equals_the_mean_over_one_head():
    """Many heads, and the expectation over one: four independent tokens, by quadrature
    (docs/tangent.md).
    """
    x, r = ns.gaussian(n, 4), ns.gaussian(n)
    f = ns.dot(r, ns.nn.attention(x, 256)[0])
    kernel = ns.Program(ns.ntk(f)).draw(n=ns.inf, draws=400)
    z, weight = np.polynomial.hermite_e.hermegauss(12)
    a = special.softmax(
        np.stack(np.meshgrid(z, z, z, z), axis=-1).reshape(-1, 4), axis=1
    )
    weight = np.prod(np.meshgrid(*[weight / weight.sum()] * 4), axis=0).ravel()
    second, third = (a**2).sum(axis=1), (a**3).sum(axis=1)
    # 2|a|² + 2 Σ a_j² (1 − 2a_j + |a|²)
    right = weight @ (4 * second - 4 * third + 2 * second**2)
    error = kernel.std() / len(kernel) ** 0.5
    assert abs(kernel.mean() - right) < stats.norm.isf(LEVEL / 2) * error
    assert error < 0.002
