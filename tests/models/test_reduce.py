"""What an audit asks of logits, in numpy row by row: the same numbers as from whole arrays."""

import numpy as np
import pytest
from scipy.special import logsumexp

from netsor.models._reduce import of_logits


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_logits_row_by_row(scale, far):
    rng = np.random.default_rng(0)
    parts = [scale * (far + rng.standard_normal((3, 5, words))) for words in (4, 700)]
    every = np.concatenate(parts, axis=-1)
    mass = logsumexp(every, axis=-1)
    largest = np.exp(every.max(axis=-1) - mass).max(axis=-1)
    right = np.stack([every.std(axis=(-2, -1)), mass.mean(axis=-1), largest], axis=-1)
    np.testing.assert_allclose(of_logits(*parts), right, rtol=1e-11)
    np.testing.assert_allclose(of_logits(every), right, rtol=1e-11)


def test_no_replicas_and_one_for_all():
    assert of_logits(np.zeros((0, 5, 4)), np.zeros((0, 5, 9))).shape == (0, 3)
    assert of_logits(np.ones((1, 5, 4)), np.zeros((3, 5, 9))).shape == (3, 3)
