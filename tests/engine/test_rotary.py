"""Rotary positions at infinite head dimension, in the forms that real models have: against a large dimension."""

import numpy as np
import pytest

import netsor as ns
from netsor.engine.lower._rotary_angles import Angles

from ..keep import keep
from .compare import d, n, smallest_ks

inf = ns.inf


KERNEL = np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 2.0]])  # so alike that positions matter


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
    return ns.weight(n, 4 * d) @ ns.concat((ns.softmax(ns.dot(q, k), "causal") @ v).reshape(4, 3), axis=0)


def cached():
    """A query at a time."""
    q, k = pair(1)
    return tuple(ns.dot(q[:, i : i + 1], k[:, : i + 1]) for i in range(3))


def both():
    """The same queries and keys with positions and without, in both orders."""
    x = tokens()
    q, k = (ns.weight(d, n) @ x for _ in range(2))
    return ns.dot(q, k), ns.dot(turned(k), turned(q)), ns.dot(turned(q, positions=[4.0, 0.5, 1.0]), k)


CASES = {
    "plain": lambda: ns.dot(*pair()),
    "partial": lambda: ns.dot(*pair(fraction=0.5)),
    "norm of queries and keys": lambda: ns.dot(*pair(then=rms)),
    "layer norm of queries and keys": lambda: ns.dot(*pair(then=lambda v: ns.layer_norm(v, eps=0.1))),
    "norm afterwards": lambda: ns.dot(*(rms(v) for v in pair())),
    "biases": lambda: ns.dot(*pair(then=biased)),
    "biases, then norms": lambda: ns.dot(*pair(then=lambda v: rms(biased(v)))),
    "grouped queries": lambda: ns.dot(*grouped()),
    "grouped, with all of it": lambda: ns.dot(*grouped(then=lambda v: rms(biased(v)), fraction=0.5)),
    "one key for all": lambda: ns.dot(pair(3)[0], turned(ns.weight(d, n) @ tokens())[None]),
    "other positions": lambda: ns.dot(pair(positions=[0, 5, 5])[0], pair(positions=[7, -2.5, 0])[1]),
    "one side": lambda: ns.dot(pair()[0], ns.weight(d, n, 2) @ tokens()),
    "a query at a time": cached,
    "with positions and without": both,
    "an output": output,
}


def drawn(net, draws, seed, **widths):
    found = net.draw(draws=draws, seed=seed, progress=False, **widths)
    return np.concatenate([a.reshape(draws, -1) for a in (found if isinstance(found, tuple) else (found,))], axis=1)


def compared(name, draws=3000):
    """The smallest p-value over entries, and the largest gap of second moments in standard errors."""
    net = ns.Program(CASES[name]())
    limit, wide = drawn(net, draws, 1, n=inf, d=inf), drawn(net, draws, 2, n=inf, d=256)
    smallest = smallest_ks(zip(limit.T, wide.T, strict=True))
    products = [x[:, :, None] * x[:, None, :] for x in (limit, wide)]
    errors = np.sqrt(sum(p.var(axis=0) for p in products) / draws)
    return smallest, np.max(np.abs(products[0].mean(axis=0) - products[1].mean(axis=0)) / errors)


# 15 cases with at most 36 entries and 666 products each: a false alarm with probability 6e-5
@pytest.mark.parametrize("name", keep(CASES, "plain", "grouped, with all of it", "one key for all", "an output"))
def test_the_limit_is_that_of_a_large_dimension(name):
    smallest, gap = compared(name)
    assert smallest > 1e-7
    assert gap < 6.5


@pytest.mark.parametrize("name", keep(["plain", "partial", "grouped queries", "a query at a time"], "plain"))
def test_a_wrong_correlation_is_seen(name, monkeypatch):
    """Positions that make no difference, instead of κ."""
    monkeypatch.setattr(Angles, "kappa", lambda by, r: np.ones(np.shape(r)))
    assert compared(name)[1] > 6.5


def test_scores_asked_for_in_parts_are_those_asked_for_at_once():
    """The correlations between what is drawn first and what later: covariances by the formula."""
    found = drawn(ns.Program(cached()), 100_000, 3, n=inf, d=inf)
    at = [(i, j) for i in range(3) for j in range(i + 1)]
    by = Angles(3.0, 1.0, None)
    right = np.array(
        [[KERNEL[i, k] * KERNEL[j, m] * by.kappa(np.array(float((j - i) - (m - k)))) for k, m in at] for i, j in at]
    )
    size = np.sqrt(np.diag(right))
    # 21 correlations at five standard errors: a false alarm with probability 1e-5
    assert np.abs((np.cov(found.T) - right) / size[:, None] / size).max() < 5 * np.sqrt(2 / 100_000)


def test_one_product_by_two_bases_is_refused():
    x = tokens()
    q, k = (ns.weight(d, n) @ x for _ in range(2))
    net = ns.Program((ns.dot(turned(q), turned(k)), ns.dot(ns.rotary(q), ns.rotary(k))))
    with pytest.raises(ns.ExactError, match="different bases"):
        net.draw(draws=3, n=inf, d=inf, progress=False)


def test_a_coordinate_of_turned_vectors_is_refused():
    """Coordinates at one place turn by cos of the gap at finite width, at others hardly: there is no one limit."""
    turn = turned(ns.weight(d, n) @ tokens())
    for output in (turn, turn[0], turn[1:]):
        with pytest.raises(ns.ExactError, match="a coordinate of vectors turned"):
            ns.Program(output).draw(draws=3, n=inf, d=inf, progress=False)
