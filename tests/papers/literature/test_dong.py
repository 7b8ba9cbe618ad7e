"""Rank collapse: the program without cancellation against literal layers, norms of
BERT's tokens, and verdicts.
"""

import numpy as np
import pytest
from scipy import stats

from tests.internals import ABSENT, AGREES, DISAGREES, OUTSIDE
from tests.internals import _dong as study

WIDTH, TOKENS, DRAWS = 8, 4, 1000


def literal(layers, rng):
    """log10 of |residual|/|mean| after each layer, every matrix drawn, as anyone would
    write it.
    """
    x = rng.standard_normal((DRAWS, TOKENS, WIDTH))
    found = []
    for layer in range(layers + 1):
        if layer:
            query, key, value = rng.standard_normal((3, DRAWS, WIDTH, WIDTH)) / np.sqrt(
                WIDTH
            )
            scores = np.exp((x @ query) @ np.swapaxes(x @ key, 1, 2) / np.sqrt(WIDTH))
            x = scores / scores.sum(axis=2, keepdims=True) @ x @ value
        centre = x.mean(axis=1, keepdims=True)
        sizes = [
            np.sqrt(np.mean(part**2, axis=(1, 2))) for part in (x - centre, centre)
        ]
        found.append(np.log10(sizes[0] / sizes[1]))
    return np.stack(found)


def test_no_cancellation_changes_nothing():
    """Literal layers and the program: Kolmogorov–Smirnov at level 1e-4 each."""
    drawn = literal(2, np.random.default_rng(0))
    exact = study.pure(WIDTH, TOKENS, 2, DRAWS, seed=0)["log"]
    for layer in range(3):
        assert stats.ks_2samp(drawn[layer], exact[layer]).pvalue > 1e-4
    # a factor of 2 is rejected
    assert stats.ks_2samp(drawn[2] + 0.3, exact[2]).pvalue < 1e-4


def test_collapse_is_cubic_far_below_rounding():
    log = study.pure(None, TOKENS, 6, 50, seed=0)["log"]
    steps = np.diff(log, axis=0)
    assert log[-1].mean() < -100
    assert abs(np.mean(steps[-1] / steps[-2]) - 3) < 0.05


def test_coordinates_have_the_given_products():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, study.WIDTH)) + rng.standard_normal(study.WIDTH)
    x -= x.mean(axis=1, keepdims=True)
    centre, residual = x.mean(axis=0), x - x.mean(axis=0)
    made, middle = study.coordinates(
        centre @ centre / study.WIDTH,
        residual @ residual.T / study.WIDTH,
        residual @ centre / study.WIDTH,
        rng,
    )
    assert np.allclose(made @ made.T, residual @ residual.T)
    assert np.allclose(made @ middle, residual @ centre)
    assert np.isclose(middle @ middle, centre @ centre)
    assert np.allclose(made.sum(axis=1), 0)


def test_composite_norm():
    assert study.composite(np.array([[1.0, -2.0], [3.0, 0.0]])) == pytest.approx(
        np.sqrt(4 * 3)
    )


@pytest.fixture(scope="module")
def numbers():
    """What a run would give that is as published, next to a small run of the theorem's
    layers.
    """
    rng = np.random.default_rng(0)
    made = {
        name: {
            "ratio": np.array(said)[:, None]
            * np.exp(0.05 * rng.standard_normal((len(said), 20)))
        }
        for name, said in study.PUBLISHED.items()
    }
    made["attention"]["ratio"] = made["attention"]["ratio"][:3]
    given = {"tokens": 4, "layers": 6, "draws": 40}
    return {
        **made,
        study.PURE_LABELS[0]: study.pure(64, **given, seed=0),
        "width ∞": study.pure(None, **given, seed=0),
        "bound": study.bound(64, **given, seed=0),
    }


def test_verdicts_can_agree_and_disagree(numbers):
    assert [claim.verdict for claim in study.judge(numbers)] == [AGREES] * 4 + [OUTSIDE]
    slow = {"log": -np.arange(7.0)[:, None] * np.ones((1, 40))}  # simply exponential
    small = {"log": -numbers["bound"]["log"], "scale": numbers["bound"]["scale"]}
    for place, change, verdict in (
        (0, {"attention": {"ratio": 2.5 * numbers["attention"]["ratio"]}}, DISAGREES),
        (1, {"with skip": {"ratio": 0.5 * numbers["with skip"]["ratio"]}}, DISAGREES),
        (3, {"width ∞": slow}, DISAGREES),
        (4, {"bound": small}, AGREES),
    ):
        assert study.judge({**numbers, **change})[place].verdict == verdict


def test_quick_run_says_what_it_leaves_out(numbers):
    quick = {
        name: found
        for name, found in numbers.items()
        if name not in ("with skip", "transformer")
    }
    assert [claim.verdict for claim in study.judge(quick)][1:3] == [ABSENT, ABSENT]
    assert len(study.draw(quick).axes) == 2
    assert len(study.draw(numbers).axes) == 3
    assert len(list(study.rows(numbers))) == 3 + 13 + 13 + 3 * 7
