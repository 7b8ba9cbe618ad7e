"""The best rate of one step: a closed form of its variance, where polynomials cross,
and verdicts either way.
"""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _learning_rate as study


def test_best_rate_is_where_the_output_first_meets_the_target():
    nodes = np.linspace(0.0, 1.5, 4)
    outputs = np.array(
        [nodes, 0.5 * nodes, 2 * nodes - 0.4 * nodes**2, 0.1 * nodes, -nodes]
    )
    crossing = (2 - np.sqrt(4 - 1.6)) / 0.8
    assert study.best(nodes, outputs) == pytest.approx(
        [1.0, 2.0, crossing, study.MOST, 0.0], abs=1e-4
    )


def test_variance_has_the_closed_form_of_wide_networks(monkeypatch):
    """n E(η/η_∞ − 1)² → 2(2 + 2(1 + 4)/9) + 17/81 at depth 3: squared lengths, and
    products of two updates.
    """
    monkeypatch.setattr(study, "LAYERS", 3)
    rate = study.optima("linear", 10**6, 8000, seed=0)["rate"]
    square = study.mean(1e6 * (rate - 1) ** 2)
    assert abs(square.value - (2 * (2 + 10 / 9) + 17 / 81)) < 4 * square.error < 0.6


@pytest.mark.slow
def test_limits():
    assert study.optima("linear", None, 2, seed=0)["rate"] == pytest.approx(
        1.0, abs=1e-12
    )
    assert study.optima("over n", None, 2, seed=0)["rate"] == pytest.approx(
        1.0, abs=1e-9
    )
    tokens = study.TOKENS
    scores = np.exp(np.random.default_rng(0).standard_normal((4000, tokens, tokens)))
    weights = (scores / scores.sum(axis=2, keepdims=True)).mean(axis=1)
    simulated, exact = (
        1 / (tokens * (weights**2).sum(axis=1)),
        study.optima("over root n", None, 4000, seed=0)["rate"],
    )
    a, b = study.mean(simulated), study.mean(exact)
    assert abs(a.value - b.value) < 4 * np.hypot(a.error, b.error) < 0.01


def published(power=0.5, late=1.0, spread=1e-4, centre=1.0):
    """Normal rates around the limit; `late` is the power beyond 1024."""
    z, made = np.random.default_rng(0).standard_normal(3000), {}
    for part in study.parts(True):
        width, network = part.arguments["width"], part.arguments["network"]
        size = spread if width is None else 2 * width**-power
        if width and width > study.CHANGE and network == "linear":
            size = 2 * study.CHANGE**-power * (width / study.CHANGE) ** -late
        made[part.label] = {"rate": centre + size * z}
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts_can_agree_and_disagree():
    assert verdicts(published()) == [AGREES] * 6
    assert verdicts(published(late=0.5)) == [
        AGREES,
        AGREES,
        DISAGREES,
        AGREES,
        AGREES,
        AGREES,
    ]
    assert verdicts(published(power=0.8, spread=0.1)) == [
        AGREES,
        DISAGREES,
        AGREES,
        AGREES,
        OUTSIDE,
        OUTSIDE,
    ]
    assert verdicts(published(centre=1.1))[0] == DISAGREES
    assert verdicts(published(centre=1.1))[3] == OUTSIDE


def test_table_rows_have_equal_columns():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 21
