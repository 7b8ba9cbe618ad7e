"""Gates: laws against their closed forms, and verdicts from altered numbers."""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES
from tests.internals import _gating as study


def test_cold_limit_is_chi_square():
    """Eight gates and two orthogonal inputs: 16 independent normals."""
    found = study.order("cold", None, 4000, seed=0)["order"]
    assert scipy.stats.kstest(16 * found, scipy.stats.chi2(16).cdf).pvalue > 1e-4
    assert scipy.stats.kstest(15 * found, scipy.stats.chi2(16).cdf).pvalue < 1e-4


def test_law_is_that_of_explicit_gates():
    """Keys and queries drawn in full at N = 20."""
    count, largest, _, _ = study.RUNS["warm"]
    rng, rho = np.random.default_rng(0), np.linspace(-largest, largest, count)[:, None]
    key, other = (
        rng.standard_normal((4000, count, 20)),
        rng.standard_normal((4000, count, 20, 2)),
    )
    query = (
        rho[..., None]
        * key[..., None]
        * np.array(study.COMMON[count])[:, None]
        / math.sqrt(20)
    )
    query = query + np.sqrt(1 - rho[..., None] ** 2) * other
    a = np.einsum("dgn,dgni->dgi", key, query) / math.sqrt(20)
    found = study.order("warm", 20, 4000, seed=0)["order"]
    assert scipy.stats.ks_2samp((a**2).mean(axis=(1, 2)), found).pvalue > 1e-4
    assert scipy.stats.ks_2samp(1.15 * (a**2).mean(axis=(1, 2)), found).pvalue < 1e-4


def test_limit_over_n_is_a_number():
    a = np.linspace(-0.9, 0.9, 6)[:, None] * np.array(study.COMMON[6])
    assert study.order("warm over N", None, 3, seed=0)["order"] == pytest.approx(
        (a**2).mean(), rel=1e-12
    )


def altered(centre=1.0, settled=False):
    """Laws around the printed numbers, each at another place; `settled` if those over
    √N had a limit.
    """
    made = {}
    z = np.random.default_rng(0).standard_normal(2000)
    for name, (_, _, power, printed) in study.RUNS.items():
        for k, width in enumerate((*printed, None)):
            value = printed.get(width, printed[100])
            size = (
                0.2
                * value
                * (1.0 if power == 0.5 and not settled else (width or 1e9) ** -0.5 * 10)
            )
            made[f"{name} {width}"] = {
                "order": centre * (value + size * (z + (k - 3.5) / 4))
            }
    return made


def test_verdicts_can_agree_and_disagree():
    def verdicts(numbers):
        return [claim.verdict for claim in study.judge(numbers)]

    assert verdicts(altered()) == [AGREES] * 7
    assert verdicts(altered(settled=True)) == [
        AGREES,
        AGREES,
        DISAGREES,
        DISAGREES,
        AGREES,
        AGREES,
        AGREES,
    ]
    assert verdicts(altered(centre=6.0)) == [
        DISAGREES,
        DISAGREES,
        AGREES,
        AGREES,
        DISAGREES,
        AGREES,
        DISAGREES,
    ]
    numbers = altered()
    numbers["cold over N None"] = numbers["cold over N 100"]
    assert verdicts(numbers)[5] == DISAGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(altered()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 35
