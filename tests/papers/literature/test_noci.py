"""Gradients of queries and values: the program against differences, the formula where
it is exact, verdicts.
"""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE, mean
from tests.internals import _noci as study

WIDTH, DRAWS = 4, 1000


def output(x, query, key, value):
    """S of many layers at once."""
    scores = np.exp((x @ query) @ np.swapaxes(x @ key, 1, 2) / np.sqrt(WIDTH))
    return scores / scores.sum(axis=2, keepdims=True) @ x @ value


def numerical(place, rng, step=1e-4):
    """‖∂S/∂W‖² by differences, with matrices that are drawn; `place` is 0 for queries
    and 2 for values.
    """
    x = rng.standard_normal((DRAWS, study.TOKENS, WIDTH))
    weights = list(rng.standard_normal((3, DRAWS, WIDTH, WIDTH)) / np.sqrt(WIDTH))
    total = np.zeros(DRAWS)
    for entry in np.ndindex(WIDTH, WIDTH):
        sides = []
        for sign in (1, -1):
            moved = [w.copy() for w in weights]
            moved[place][(slice(None), *entry)] += sign * step
            sides.append(output(x, *moved))
        total += np.sum(((sides[0] - sides[1]) / (2 * step)) ** 2, axis=(1, 2))
    return total


def test_gradients_are_those_of_differences():
    """Means over initialisations, within four standard errors."""
    rng = np.random.default_rng(0)
    query, value, _ = study.layer(0.0, 1.0).draw(n=WIDTH, draws=DRAWS, progress=False)
    for place, found in ((0, query), (2, value)):
        drawn, exact = mean(numerical(place, rng)), mean(WIDTH * np.asarray(found))
        assert abs(drawn.value - exact.value) < 4 * np.hypot(drawn.error, exact.error)
        assert drawn.error < 0.1 * drawn.value  # so that half the number would be seen


def test_formula_is_exact_for_flat_attention():
    """Where scores are nearly 0 attention is uniform, and the means agree within four
    standard errors.
    """
    found = study.gradients(1e-3, [0.0, 0.5], 1000, seed=0)
    for name in ("query", "value"):
        for cosine in (0.0, 0.5):
            ratio = study._exact_over_uniform(found, name, cosine)
            assert abs(ratio.value - 1) < 4 * ratio.error < 0.2


@pytest.fixture(scope="module")
def numbers():
    """As a run gives them: the formula is right for collapsed tokens, and not for
    independent ones.
    """
    rng = np.random.default_rng(0)
    cosines = np.array(study.COSINES)
    apart = 1 - cosines
    made = {}
    for scale in study.SCALES:
        noise = 1 + 0.2 * rng.standard_normal((2, len(cosines), 1000))
        query, value = (
            (apart**2)[:, None] * np.ones((1, 1000)),
            np.ones((len(cosines), 1000)),
        )
        wrong = 1 + apart[:, None]
        made[f"scale {scale:g}"] = {
            "query": query * wrong * noise[0],
            "value": value * wrong * noise[1],
            "query_uniform": query,
            "value_uniform": value,
            "cosine": cosines,
        }
    for scale in study.DEEP_SCALES:
        ratio = np.exp(0.1 * rng.standard_normal((len(study.DEPTHS), 500)))
        made[f"depth {scale:g}"] = {
            "exact": ratio,
            "formula": ratio,
            "depth": np.array(study.DEPTHS),
        }
    return made


def test_verdicts_can_agree_and_disagree(numbers):
    assert [claim.verdict for claim in study.judge(numbers)] == [
        AGREES,
        AGREES,
        OUTSIDE,
        OUTSIDE,
        AGREES,
        AGREES,
    ]
    other = {
        label: {
            **found,
            "query": found["query"] ** 0.5,
            "value": 1.5 * found["value"] / (2 - found["cosine"][:, None]),
        }
        for label, found in numbers.items()
        if "query" in found
    } | {
        "depth 1": {**numbers["depth 1"], "formula": 3 * numbers["depth 1"]["formula"]}
    }
    first, *_, power, last = (claim.verdict for claim in study.judge(other))
    # collapsed values; another power; stacks
    assert (first, power, last) == (DISAGREES, DISAGREES, OUTSIDE)
    right = {
        label: {
            **found,
            **{
                name: found[f"{name}_uniform"]
                for name in ("query", "value")
                if name in found
            },
        }
        for label, found in numbers.items()
    }
    assert [claim.verdict for claim in study.judge(right)] == [AGREES] * 6


def test_figure_and_rows(numbers):
    assert len(list(study.rows(numbers))) == 2 * len(study.SCALES) * len(
        study.COSINES
    ) + 2 * len(study.DEPTHS)
    assert len(study.draw(numbers).axes) == 3
