"""Favourite words: vocabularies by counting, stacks against explicit ones, and verdicts
either way.
"""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _words as study

from ...keep import keep


@pytest.mark.parametrize(("rho", "words"), [(0.5, 50), (0.9, 20), (-0.2, 30)])
def test_agreement_is_that_of_counted_words(rho, words):
    rng, draws = np.random.default_rng(0), 40_000
    first, noise = rng.standard_normal((2, draws, words))
    second = rho * first + math.sqrt(1 - rho**2) * noise
    agree = first.argmax(axis=1) == second.argmax(axis=1)
    error = agree.std() / math.sqrt(draws)
    exact = study.agreement(rho, words)
    assert abs(agree.mean() - exact) < 4 * error < 0.4 * exact


def test_mean_of_the_largest_normal_is_exact_for_few_words():
    exact = {1: 0.0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi)}
    for words, mean in exact.items():
        assert study.largest_of(words) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("words", [50, 32_000, 151_936])
def test_agreement_of_independent_contexts_is_chance(words):
    assert study.agreement(0.0, words) * words == pytest.approx(1, abs=1e-6)
    assert study.agreement(1.0, words) == 1


def test_agreement_of_directions_is_that_of_counted_words():
    """40 rows in R^8, and many contexts for each draw of the rows."""
    rng, words, width, contexts = np.random.default_rng(0), 40, 8, 200
    found = []
    for _ in range(400):
        logits = rng.standard_normal((words, width)) @ rng.standard_normal(
            (width, contexts)
        )
        counts = np.bincount(logits.argmax(axis=0), minlength=words)
        pairs = (counts * (counts - 1)).sum()
        found.append(pairs / (contexts * (contexts - 1)))
    error = np.std(found) / math.sqrt(len(found))
    exact = study.direction_agreement(width, words)
    assert abs(np.mean(found) - exact) < 4 * error < 0.1 * exact
    assert exact > 1.5 / words  # far from what independent logits have


def test_largest_of_many_words():
    exact = scipy.stats.norm.expect(
        lambda z: z * 1000 * scipy.stats.norm.cdf(z) ** 999, lb=-8, ub=12, limit=400
    )
    assert study.largest_of(1000) == pytest.approx(exact, abs=1e-6)
    assert study.preference(0.25, 1000, 2.0) == pytest.approx(math.exp(exact))


def explicit(activation, length, draws, rng):
    """The mean cosine of the last states after two blocks, with real matrices."""
    gated = activation in ("SwiGLU", "GeGLU")
    n, hidden = study.WIDTH, study.HIDDEN[gated]
    contexts, tokens = study.CONTEXTS[length], max(length, 1)

    def matrix(rows, columns):
        return study.STD * rng.standard_normal((draws, 1, rows, columns))

    def normed(x):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True))

    def phi(u):
        if activation == "ReLU":
            return np.maximum(u, 0)
        if activation == "SwiGLU":
            return u * scipy.special.expit(u)
        return u * scipy.special.ndtr(u)

    x = study.STD * rng.standard_normal((draws, contexts, tokens, n))
    seen = np.tril(np.ones((tokens, tokens), dtype=bool))
    for _ in range(study.DEPTH):
        if length:
            heads = []
            for _ in range(study.HEADS):
                q, k, v = (normed(x) @ matrix(n, n // study.HEADS) for _ in range(3))
                scores = q @ np.swapaxes(k, 2, 3) / math.sqrt(n // study.HEADS)
                weights = np.where(seen, scores, -np.inf)
                heads.append(scipy.special.softmax(weights, axis=3) @ v)
            x = x + np.concatenate(heads, axis=3) @ matrix(n, n)
        h = phi(normed(x) @ matrix(n, hidden))
        if gated:
            h = h * (normed(x) @ matrix(n, hidden))
        x = x + h @ matrix(hidden, n)
    last = x[:, :, -1]
    return study.mean_cosine(last @ np.swapaxes(last, 1, 2))


@pytest.mark.parametrize(
    ("activation", "length"),
    keep([("ReLU", 0), ("GELU", 4), ("SwiGLU", 4)], ("ReLU", 0), ("SwiGLU", 4)),
)
def test_cosines_are_those_of_explicit_stacks(activation, length, monkeypatch):
    small = {"DEPTH": 2, "WIDTH": 8, "HEADS": 2, "STD": 0.5, "SEEN_BLOCKS": (1, 2)}
    for name, value in {**small, "HIDDEN": {False: 16, True: 12}}.items():
        monkeypatch.setattr(study, name, value)
    made = explicit(activation, length, 3000, np.random.default_rng(0))
    found = study.stacks(activation, length, 8, 3000, seed=0)["cosine"][:, -1]
    assert scipy.stats.ks_2samp(made, found).pvalue > 1e-4
    assert scipy.stats.ks_2samp(made + 0.1, found).pvalue < 1e-4


def test_words_that_contexts_share():
    """In the limit of SwiGLU nothing but shared words makes contexts alike."""
    found = study.shared_words(8, seed=0)
    assert found["overlap"][0] == pytest.approx(8 / 32_007)
    assert 0 <= found["cosine"][0] < 0.01


def planted(alone=0.5, attended=0.6, gated=0.0, shared=0.0):
    """Numbers as the statements have them, with a little noise."""
    noise = 1e-3 * np.array([-1.0, 1.0] * 5)[:, None]
    made = {}
    for activation, (_, gate) in study.ACTIVATIONS.items():
        for length in study.CONTEXTS:
            cosine = attended if length == study.LONG else alone
            line = np.full((1, len(study.SEEN_BLOCKS)), gated if gate else cosine)
            made[f"{activation} {length}"] = {"cosine": line + noise}
    made["narrow"] = {"cosine": 0.02 + np.tile(noise, len(study.SEEN_BLOCKS))}
    for tokens in study.SHARED_LENGTHS:
        made[f"shared {tokens}"] = {"cosine": np.array([shared])}
    for name in study.ATLAS:
        square = np.ones(len(noise))
        made[f"atlas {name}"] = {
            "cosine": 0.4 + noise[:, 0],
            "cosine square": square,
        }
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES, AGREES, OUTSIDE, AGREES, AGREES]
    assert verdicts(alone=0.05)[0] == DISAGREES
    assert verdicts(attended=0.4)[1] == DISAGREES
    assert verdicts(gated=0.3)[2] == AGREES
    assert verdicts(attended=0.01)[3] == DISAGREES
    assert verdicts(shared=0.5)[4] == DISAGREES  # such a bias is not weak


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 4 * 3 * len(study.SEEN_BLOCKS)
    models = list(study.atlas_rows(planted()))
    assert len({tuple(row) for row in models}) == 1
    assert [row["model"] for row in models] == list(study.ATLAS)
