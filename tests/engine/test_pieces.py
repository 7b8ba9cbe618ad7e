"""Scores of many tokens: computed in pieces of some heads, with the same numbers, and
never in memory together.
"""

import math

import numpy as np
import pytest
from scipy.stats import ks_2samp

import netsor as ns
from tests.internals import (
    Context,
    is_large,
    score_pieces,
    split_scores,
    topological_order,
)

TOKENS = 6
MOST = 2 * TOKENS**2  # scalars of two heads


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of two heads."""
    monkeypatch.setattr(score_pieces, "MOST_SCORES", MOST)


def attended(**options):
    """The output, scores and weights of attention of four heads."""
    n, d = ns.Width("n"), ns.Width("d")
    x = ns.weight(n, n) @ ns.gaussian(n, TOKENS)
    return ns.nn.attend(x, 4, d, **options)


LAYERS = {
    "causal": {"mask": "causal"},
    "groups": {"groups": 2, "softcap": 3.0},
    "one group": {"groups": 1, "scaling": "linear"},
    "rotary": {"rotary": ns.nn.Rotary(), "mask": "causal"},
    "window": {"window": 3, "qk_norm": ns.rms_norm},
    "alibi": {"bias": ns.nn.alibi(4, TOKENS)},
    "relative": {"bias": ns.nn.relative_bias(4, TOKENS, buckets=4)},
}


def in_pieces(outputs):
    """The outputs of the rewritten program."""
    bound = dict.fromkeys(ns.Program(outputs).widths, 4)
    origin = {value: k for k, value in enumerate(topological_order(outputs))}
    context = Context(bound, origin)
    rewritten = split_scores(outputs, context)
    assert all(value in context.origin for value in topological_order(rewritten))
    return rewritten


def largest_scalars(outputs):
    """The largest number of scalars in an array of several heads."""
    sizes = [x.size for x in topological_order(outputs) if len(x.shape) == 3]
    return max(size for size in sizes)


@pytest.mark.parametrize("name", LAYERS)
def test_pieces_have_the_same_numbers(name, small_pieces):
    """The reference interpreter draws the same matrices for both programs."""
    layer = attended(**LAYERS[name])
    row_maxima = ns.apply(lambda a: a.max(-1), layer.weights, axes=1)
    outputs = (layer.output, row_maxima)
    rewritten = in_pieces(outputs)
    assert largest_scalars(outputs) == 2 * MOST
    assert largest_scalars(rewritten) == MOST
    expected = ns.Program(outputs).simulate(n=4, d=4, draws=3, seed=1)
    found = ns.Program(tuple(rewritten)).simulate(n=4, d=4, draws=3, seed=1)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_scores_of_different_sizes_share_keys_and_values(small_pieces):
    """The queries of one sequence and of another, in pieces of two heads and of one."""
    n = ns.Width("n")
    x = ns.weight(n, n) @ ns.gaussian(n, TOKENS)
    longer = ns.weight(n, n) @ ns.gaussian(n, 2 * TOKENS)
    query, key, value = (ns.weight(n, n, batch=4) for _ in range(3))
    keys = key @ x
    values = value @ x
    outputs = []
    for tokens in (x, longer):
        weights = ns.softmax(ns.dot(query @ tokens, keys))
        outputs.append(weights @ values)
    rewritten = in_pieces(tuple(outputs))
    assert largest_scalars(rewritten) == MOST
    expected = ns.Program(tuple(outputs)).simulate(n=4, draws=3, seed=1)
    found = ns.Program(tuple(rewritten)).simulate(n=4, draws=3, seed=1)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_operation_that_mixes_heads_stays_whole(small_pieces):
    """A function of all heads, scores that are an output, and scores at width inf."""
    layer = attended()
    of_all = ns.apply(lambda a: a.max((-3, -2, -1)), layer.weights, axes=3)
    assert largest_scalars(in_pieces((layer.output, of_all))) == 2 * MOST
    outputs = (layer.output, layer.weights)
    assert in_pieces(outputs)[1] is layer.weights
    context = Context({"n": math.inf, "d": math.inf}, {})
    assert split_scores([layer.output], context) == [layer.output]


@pytest.mark.parametrize("name", ["causal", "groups"])
def test_law_in_pieces_is_the_literal_one(name, monkeypatch):
    """With as many random numbers as in one piece, and smaller arrays."""
    net = ns.Program(attended(**LAYERS[name]).output)
    whole = net.plan(n=8, d=4)
    monkeypatch.setattr(score_pieces, "MOST_SCORES", MOST)
    net = ns.Program(attended(**LAYERS[name]).output)
    pieces = net.plan(n=8, d=4)
    assert pieces.random_numbers == whole.random_numbers
    for plan, most in ((whole, 2 * MOST), (pieces, MOST)):
        softmax = [step.out.size for step in plan.steps if "softmax" in step.label]
        assert max(softmax) == most
    drawn = net.draw(n=8, d=4, draws=4000, seed=2)
    literal = net.simulate(n=8, d=4, draws=4000, seed=3)[..., 0]
    for statistic in (lambda y: (y**2).mean(-1), lambda y: y[:, -1] * y[:, -2]):
        assert ks_2samp(statistic(drawn), statistic(literal)).pvalue > 1e-4


def test_few_scores_are_one_piece():
    """A thousand tokens of 32 heads."""
    assert not any(map(is_large, topological_order([attended().output])))
    assert score_pieces.heads_at_once((32, 1024, 1024)) == 32
    assert score_pieces.heads_at_once((32, 4096, 4096)) == 2
    assert score_pieces.heads_at_once((12, 4096, 4096)) == 2
    assert score_pieces.heads_at_once((32, 8192, 8192)) == 1
