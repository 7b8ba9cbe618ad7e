"""The first correction in 1/n over tokens that are combinations of Gaussian vectors,
against draws in numpy.
"""

import numpy as np
import pytest

import netsor as ns
from netsor import inf

from ..keep import keep
from .test_correction import layer, n

COMBINE = np.array([[1.0, 0.5, 0.0, 0.0], [0.0, 1.0, -0.3, 0.2], [0.5, 0.0, 0.0, 1.0]])
EARLIER = np.array([1.0, 0.0])


def skip(e):
    """x + W x of two vectors x: given x, W x is Gaussian with the covariance of x's
    Gram matrix.
    """
    x, fresh = e[:, :2], e[:, 2:]
    return x + np.linalg.cholesky(x @ x.swapaxes(1, 2) / x.shape[2]) @ fresh


def skipped():
    x = ns.gaussian(n, 2)
    return x + ns.weight(n, n) @ x


# tokens as a program, the same from four standard normal vectors (draws, 4, n), and
# their Gram matrix
COMBINED = {
    "chosen": (
        lambda: ns.gaussian(n, 4)[[2, 0, 3]],
        lambda e: e[:, [2, 0, 3]],
        np.eye(3),
    ),
    "combined": (
        lambda: COMBINE @ ns.gaussian(n, 4),
        lambda e: COMBINE @ e,
        COMBINE @ COMBINE.T,
    ),
    "scaled and repeated": (
        lambda: 0.5 * ns.gaussian(n, 4)[[0, 0, 1]],
        lambda e: 0.5 * e[:, [0, 0, 1]],
        0.25 * np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
    ),
    "joined": (
        lambda: ns.join([ns.gaussian(n, 1), ns.gaussian(n, 1) * 2.0]),
        lambda e: e[:, :2] * [[1.0], [2.0]],
        np.diag([1.0, 4.0]),
    ),
    "a mean": (
        lambda: ns.gaussian(n, 2, mean=EARLIER),
        lambda e: e[:, :2] + EARLIER[:, None],
        np.diag([2.0, 1.0]),
    ),
    "a skip connection": (skipped, skip, 2 * np.eye(2)),
}


def moments_of_head(gram, tau, keys):
    """E[w] and E[w²] given the tokens' Gram matrix (draws, tokens, tokens) and τ
    (draws,), by Hermite's rule.

    Token 0 is the query, w = aᵀ K a over the keys, a slice of the tokens.
    """
    size, gram = np.sqrt(tau * gram[:, 0, 0])[:, None, None], gram[:, keys, keys]
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    z = np.stack(np.meshgrid(*[nodes] * gram.shape[-1])).reshape(gram.shape[-1], -1).T
    weight = np.prod(
        np.meshgrid(*[weights / weights.sum()] * gram.shape[-1]), axis=0
    ).ravel()
    values, vectors = np.linalg.eigh(gram)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None]) @ vectors.swapaxes(
        1, 2
    )
    a = np.exp(size * (z @ root))
    w = ((a @ gram) * a).sum(axis=2) / a.sum(axis=2) ** 2
    return w @ weight, w**2 @ weight


def simulated(tokens, limit, keys=slice(None), width=256, draws=2**11):
    """n times the differences of variance and excess kurtosis from the limit for two
    heads, and errors, in numpy.

    Gram matrices and τ less their limits have mean 0. They are most of the noise, and
    are regressed out.
    """
    rng = np.random.default_rng(0)
    e, tau = (
        rng.standard_normal((draws, 4, width)),
        rng.chisquare(width, (2, draws)) / width,
    )
    x = tokens(e)
    (one, square), (other, square_2) = (
        moments_of_head(x @ x.swapaxes(1, 2) / width, t, keys) for t in tau
    )
    # E[u²] = 1 + 2/n
    v = (one + other) / 2, ((1 + 2 / width) * (square + square_2) + 2 * one * other) / 4
    (a,), (a2,) = moments_of_head(np.array([limit], dtype=float), np.ones(1), keys)
    b = (a2 + a**2) / 2
    moved = width * np.column_stack(
        [v[0] - a, 3 * ((v[1] - b) / a**2 - 2 * b * (v[0] - a) / a**3)]
    )
    small = (e @ e.swapaxes(1, 2) / width - np.eye(4)).reshape(draws, -1)
    table = np.column_stack([np.ones(draws), small, e.mean(axis=2), tau.T - 1])
    rest = moved - table[:, 1:] @ np.linalg.lstsq(table, moved, rcond=None)[0][1:]
    return rest.mean(axis=0), rest.std(axis=0) / np.sqrt(draws)


def agrees(first, value, error):
    for (found, _), right, noise in zip(
        (first.variance, first.kurtosis), value, error, strict=True
    ):
        # level 1e-5; the next order
        assert abs(found - right) < 4.5 * noise + 0.03 * abs(right)
    assert error[1] < 0.03 * abs(value[1])


@pytest.mark.parametrize(
    "name", keep(COMBINED, "chosen", "a mean", "a skip connection", "joined")
)
def test_combinations_of_gaussian_vectors(name):
    program, tokens, limit = COMBINED[name]
    agrees(layer(program()).law(n=inf).correction(), *simulated(tokens, limit))


def test_correction_of_query_that_is_no_key_equals_simulation():
    x = COMBINE @ ns.gaussian(n, 4)
    q, k, v = (ns.weight(n, n, batch=2) for _ in range(3))
    y = ns.weight(n, 2 * n) @ ns.concat(
        ns.softmax(ns.dot(q @ x[:1], k @ x[1:])) @ (v @ x[1:]), axis=0
    )
    first = ns.Program(y[0]).law(n=inf).correction()
    agrees(
        first, *simulated(lambda e: COMBINE @ e, COMBINE @ COMBINE.T, slice(1, None))
    )


def test_too_many_vectors_to_combine():
    with pytest.raises(ns.LawError, match="tokens that are both keys and values"):
        layer(np.ones((2, 40)) @ ns.gaussian(n, 40)).law(n=inf).correction()
