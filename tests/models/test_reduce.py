"""What an audit asks of logits, by pieces of the vocabulary: the same numbers as from
whole arrays.
"""

from functools import partial

import numpy as np
import pytest
from scipy.special import logsumexp

import netsor as ns
from tests.internals import _metrics, of_attention, of_logits


def right(every):
    mass = logsumexp(every, axis=-1)
    largest = (1 / np.exp(every - every.max(axis=-1, keepdims=True)).sum(axis=-1)).max(
        axis=-1
    )
    return np.stack([every.std(axis=(-2, -1)), mass.mean(axis=-1), largest], axis=-1)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("far", [0.0, 1e4])
@pytest.mark.parametrize("piece", [5, 37 * 5, 10**6])
def test_of_logits_is_independent_of_batches(scale, far, piece, monkeypatch):
    monkeypatch.setattr(_metrics, "LOGITS_PER_BATCH", piece)
    rng = np.random.default_rng(0)
    known = scale * (far + rng.standard_normal((3, 5, 4)))
    root, noise = (
        scale * rng.standard_normal((3, 5, 5)),
        far + rng.standard_normal((3, 5, 150)),
    )
    before = [array.copy() for array in (root, noise, known)]
    every = np.concatenate([known, root @ noise], axis=-1)
    np.testing.assert_allclose(of_logits(root, noise, known), right(every), rtol=1e-10)
    np.testing.assert_allclose(of_logits(root, noise), right(root @ noise), rtol=1e-10)
    np.testing.assert_allclose(of_logits(known), right(known), rtol=1e-10)
    cap = 2 * scale
    np.testing.assert_allclose(
        of_logits(root, noise, known, cap=cap),
        right(cap * np.tanh(every / cap)),
        rtol=1e-10,
    )
    for array, same in zip((root, noise, known), before, strict=True):
        np.testing.assert_array_equal(array, same)


def test_of_logits_broadcasts_replicas():
    assert of_logits(
        np.zeros((0, 5, 5)), np.zeros((0, 5, 9)), np.zeros((0, 5, 4))
    ).shape == (0, 3)
    assert of_logits(
        np.ones((1, 5, 5)), np.zeros((3, 5, 9)), np.ones((1, 5, 4))
    ).shape == (3, 3)


def test_metrics_keep_single_precision():
    root, noise = np.eye(2, dtype=np.float32), np.ones((2, 9), np.float32)
    assert of_logits(root, noise).dtype == np.float32


def test_of_attention_one_hot_weights_have_zero_entropy():
    weights = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    found = of_attention(np.zeros((1, 2, 2)), weights, allowed=np.ones((2, 2), bool))
    np.testing.assert_array_equal(found, [0, 0, 0, 1])


def test_metrics_have_declared_number_of_outputs():
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=(2, 3, 5, 5))
    made = {
        _metrics.of_gram: (weights @ np.swapaxes(weights, -1, -2),),
        _metrics.effective_rank: (weights @ np.swapaxes(weights, -1, -2),),
        partial(of_attention, allowed=np.tri(5, dtype=bool)): (weights, weights),
        of_logits: (weights,),
    }
    for f, arrays in made.items():
        plain = f.func if isinstance(f, partial) else f
        rows = arrays[0].shape[: -3 if plain is of_attention else -2]
        assert f(*arrays).shape == (*rows, plain.numbers)


def test_metrics_shapes_are_known_without_a_call(monkeypatch):
    """On thousands of tokens a call takes minutes, and gigabytes."""
    monkeypatch.setattr(
        _metrics,
        "eigenvalues",
        lambda gram: pytest.fail("called while the program was traced"),
    )
    many = ns.mean_dot(*[ns.gaussian(ns.Width("n"), 999)] * 2)
    assert ns.apply(_metrics.effective_rank, many, axes=2).shape == (1,)


@pytest.mark.parametrize(
    ("tokens", "width", "rows"), [(9, 4, 4), (9, 20, 9), (1, 4, 1)]
)
def test_effective_rank_with_more_tokens_than_coordinates(tokens, width, rows):
    """X X^T and X^T X have the same eigenvalues other than 0, and a plan takes the
    smaller of both.
    """

    def ranked(f):
        @ns.program
        def net():
            x = ns.weight(width, 30) @ ns.gaussian(30, tokens)
            y = x + ns.weight(width, width) @ ns.relu(x)
            return ns.apply(f, ns.mean_dot(y, y), axes=2)

        return net()

    net, plain = (
        ranked(_metrics.effective_rank),
        ranked(lambda gram: _metrics.effective_rank(gram)),
    )
    (step,) = [step for step in net.plan().steps if "effective_rank" in step.label]
    assert step.args[0].shape[-2:] == (rows, rows)
    found, expected = (
        each.draw(draws=50, seed=3, progress=False) for each in (net, plain)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert expected.std() > 0 or tokens == 1
