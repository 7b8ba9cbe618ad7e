"""The spectral gap of attention: against explicit layers, and verdicts either way."""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _gap as study


def test_stable_rank_counts_equal_singular_values():
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
    assert (
        scipy.stats.ks_2samp(singular[:, 1] / singular[:, 0], found["gap"]).pvalue
        > 1e-4
    )
    ranks = study.stable_rank(weights, values @ np.swapaxes(values, 1, 2))
    assert scipy.stats.ks_2samp(ranks, found["rank"]).pvalue > 1e-4
    assert scipy.stats.ks_2samp(1 + 1.3 * (ranks - 1), found["rank"]).pvalue < 1e-4


def test_gradients_are_those_of_explicit_layers():
    """The Jacobian of ten layers as a tensor, from unit inputs, and its products as the
    public code has them.
    """
    rng = np.random.default_rng(0)
    weights = scipy.special.softmax(rng.standard_normal((10, 3, 3)), axis=2)
    values, x = (
        rng.standard_normal((10, 3, 3)),
        np.linalg.qr(rng.standard_normal((3, 3)))[0],
    )

    def through(x, first, last):
        for a, w in zip(weights[first:last], values[first:last], strict=True):
            x = a @ x @ w
        return x

    def columns(f):
        """∂f/∂x as (token, feature, token, feature)."""
        return np.stack([f(e.reshape(3, 3)) for e in np.eye(9)], axis=-1).reshape(
            3, 3, 3, 3
        )

    y = weights[1] @ through(x, 0, 1)
    products, norms = [], []
    for last in (2, 10):
        jacobian = columns(lambda x, last=last: through(x, 2, last))
        products.append(np.linalg.norm(jacobian) * np.linalg.norm(jacobian @ y))
        norms.append(
            np.linalg.norm(columns(lambda w, last=last: through(y @ w, 2, last)))
        )
    growths = [(found[1] / found[0]) ** (1 / 8) for found in (products, norms)]
    assert study.gradient_norms(weights, values, x) == pytest.approx(growths, rel=1e-12)
    assert growths[0] != pytest.approx(growths[1], rel=0.1)


def test_gradients_with_and_without_the_outlier():
    """Without it the first factor of the Jacobian shrinks in every layer: attention
    less 11ᵀ/T is nearly 0.
    """
    found = study.gradients(12, 20, seed=0)
    assert set(found) == {"kept", "kept_norm", "removed", "removed_norm"}
    assert np.all(found["removed"] < found["kept"])
    assert np.all(found["removed_norm"] < found["kept_norm"])


def published(power=-0.5, rank=-0.3, removed=0.5, exploding=0.9, rest=-0.1, norm=0.9):
    """Powers of the length, with a little noise."""
    noise, made = np.array([-1e-3, 1e-3] * 5), {}
    for part in study.parts(False):
        tokens = part.arguments["tokens"]
        if part.work is study.gradients:
            powers = {"kept": exploding, "removed": rest, "kept_norm": norm}
            made[part.label] = {
                key: tokens**power * (1 + noise) for key, power in powers.items()
            }
            continue
        made[part.label] = {
            "gap": tokens**power * (1 + noise),
            "rank": 1 + tokens**rank * (1 + noise),
            "removed": 1 + tokens**removed * (1 + noise),
        }
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts_can_agree_and_disagree():
    assert verdicts(published()) == [AGREES] * 11
    assert verdicts(published(power=-0.2))[:8] == [
        DISAGREES,
        OUTSIDE,
        AGREES,
        AGREES,
        OUTSIDE,
        OUTSIDE,
        AGREES,
        AGREES,
    ]
    assert verdicts(published(rank=0.2))[2:7:4] == [DISAGREES, OUTSIDE]
    assert verdicts(published(removed=-0.5))[3] == DISAGREES
    assert verdicts(published(exploding=0.0, norm=0.0))[8:] == [
        DISAGREES,
        AGREES,
        AGREES,
    ]
    assert verdicts(published(rest=0.9))[8:] == [AGREES, DISAGREES, AGREES]
    assert verdicts(published(norm=0.5))[8:] == [AGREES, AGREES, DISAGREES]


def test_table_rows_have_equal_columns():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 14
