"""The spectral gap of attention: against explicit layers, and verdicts either way."""

import math

import numpy as np
import pytest
import scipy

from netsor_papers._significance import AGREES, DISAGREES, OUTSIDE
from netsor_papers.literature import _gap as study


def test_stable_ranks():
    eye = np.eye(6)[None]
    assert study.stable_rank(eye, eye) == pytest.approx([6.0])
    assert study.stable_rank(np.full((1, 6, 6), 1 / 6), eye) == pytest.approx([1.0])


@pytest.mark.parametrize("head_dim", [4, None])
def test_spectra_are_those_of_explicit_layers(head_dim):
    """Queries, keys and values drawn in full, for 12 tokens."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2000, 12, 12))
    if head_dim is None:
        scores = rng.standard_normal((2000, 12, 12))
    else:
        q, k = rng.standard_normal((2, 2000, 12, head_dim))
        scores = q @ np.swapaxes(k, 1, 2) / math.sqrt(head_dim)
    weights = scipy.special.softmax(study.STD * scores, axis=2)
    singular = np.linalg.svd(weights, compute_uv=False)
    found = study.spectra(12, head_dim, 2000, seed=0)
    assert scipy.stats.ks_2samp(singular[:, 1] / singular[:, 0], found["gap"]).pvalue > 1e-4
    ranks = study.stable_rank(weights, values @ np.swapaxes(values, 1, 2))
    assert scipy.stats.ks_2samp(ranks, found["rank"]).pvalue > 1e-4
    assert scipy.stats.ks_2samp(1 + 1.3 * (ranks - 1), found["rank"]).pvalue < 1e-4


def test_gradients_are_those_of_explicit_layers():
    """The mean square of the Jacobian over value matrices, for three tokens and two layers."""
    rng = np.random.default_rng(0)
    weights = scipy.special.softmax(rng.standard_normal((1, 2, 3, 3)), axis=3)
    values = rng.standard_normal((2, 50_000, 3, 3))
    jacobians = np.einsum("ab,nij->naibj", weights[0, 1] @ weights[0, 0], values[1] @ values[0])
    squares = (jacobians**2).sum(axis=(1, 2, 3, 4)) / 9
    error = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - study.gradient_growth(weights)[0] ** 2) < 4 * error < 0.1


def published(power=-0.5, rank=-0.3, removed=0.5, exploding=0.9, rest=-0.1):
    """Powers of the length, with a little noise."""
    noise, made = np.array([-1e-3, 1e-3] * 5), {}
    for part in study.parts(False):
        tokens = part.given["tokens"]
        if part.work is study.gradients:
            made[part.label] = {"kept": tokens**exploding * (1 + noise), "removed": tokens**rest * (1 + noise)}
            continue
        made[part.label] = {
            "gap": tokens**power * (1 + noise),
            "rank": 1 + tokens**rank * (1 + noise),
            "removed": 1 + tokens**removed * (1 + noise),
        }
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts():
    assert verdicts(published()) == [AGREES] * 10
    assert verdicts(published(power=-0.2))[:8] == [DISAGREES, OUTSIDE, AGREES, AGREES, OUTSIDE, OUTSIDE, AGREES, AGREES]
    assert verdicts(published(rank=0.2))[2:7:4] == [DISAGREES, OUTSIDE]
    assert verdicts(published(removed=-0.5))[3] == DISAGREES
    assert verdicts(published(exploding=0.0))[8:] == [DISAGREES, AGREES]
    assert verdicts(published(rest=0.9))[8:] == [AGREES, DISAGREES]


def test_the_table_has_one_kind_of_row():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 14
