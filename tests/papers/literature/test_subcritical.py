"""Gradients through deep networks: against backpropagation, laws of growth, and
verdicts either way.
"""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, OUTSIDE, exponent
from tests.internals import _subcritical as study


def test_gradients_are_those_of_backpropagation(monkeypatch):
    """Three blocks of perceptrons with tanh, one token, width 6, drawn in full."""
    sizes = (
        ("WIDTH", 6),
        ("HIDDEN", 6),
        ("TOKENS", 1),
        ("STD", math.sqrt(1 / 6)),
        ("BLOCKS", (1,)),
    )
    for name, value in sizes:
        monkeypatch.setattr(study, name, value)
    rng, draws = np.random.default_rng(0), 3000
    x = rng.standard_normal((draws, 6))
    inner, outer = rng.standard_normal((2, 3, draws, 6, 6)) / math.sqrt(6)
    slopes = []
    for first, second in zip(inner, outer, strict=True):
        hidden = np.einsum("dij,dj->di", first, np.tanh(x))
        slopes.append(
            (second * (hidden > 0)[:, None]) @ (first * (1 / np.cosh(x) ** 2)[:, None])
        )
        x = x + np.einsum("dij,dj->di", second, np.maximum(hidden, 0))
    back = rng.standard_normal((draws, 6))
    for slope in slopes[:0:-1]:
        back = back + np.einsum("dij,di->dj", slope, back)
    found = study.growth("DyT", False, 2, draws, seed=0)["log"][:, 0]
    explicit = np.log((back**2).mean(axis=1))
    assert scipy.stats.ks_2samp(explicit, found).pvalue > 1e-4
    assert scipy.stats.ks_2samp(explicit + 0.15, found).pvalue < 1e-4


def logs(power, noise=1e-3):
    """exp(c l^p) from the last block on, or a power law for p = 0."""
    blocks = np.array(study.BLOCKS)
    line = -np.log(blocks) if power == 0 else -(blocks**power)
    return line + noise * np.linspace(-1, 1, 8)[:, None] * np.log(blocks)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5, 1.0])
def test_fitted_exponent_is_that_of_power_law(power):
    assert exponent(logs(power)).value == pytest.approx(power, abs=1e-9)


def test_verdicts_can_agree_and_disagree():
    def verdicts(pre, other, noise=1e-3):
        numbers = {}
        for part in study.parts(False):
            power = pre if part.arguments["norm"] == "pre-LN" else other
            numbers[part.label] = {"log": logs(power, noise)}
        return [claim.verdict for claim in study.judge(numbers)]

    assert verdicts(0.0, 0.5) == [AGREES] * 6
    assert verdicts(0.5, 0.5) == [OUTSIDE, AGREES, AGREES] * 2
    assert verdicts(0.0, 0.0) == [AGREES, OUTSIDE, OUTSIDE] * 2
    assert verdicts(0.0, 1.0) == [AGREES, OUTSIDE, OUTSIDE] * 2
    assert verdicts(0.0, 0.5, noise=0.5)[0] == "undecided"


def test_table_rows_have_equal_columns():
    rows = list(
        study.rows({part.label: {"log": logs(0.5)} for part in study.parts(False)})
    )
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 36
