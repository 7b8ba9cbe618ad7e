"""Tangent kernels at finite width: against explicit networks, a closed form, and
verdicts either way.
"""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _finite_width as study


def explicit(n, draws, rng):
    """|∂f/∂θ|² of networks with two hidden layers at the input (1, 1), by
    backpropagation.
    """
    first = rng.standard_normal((draws, n, 2)) / np.sqrt(2)
    second, readout = (
        rng.standard_normal((draws, n, n)) * np.sqrt(2 / n),
        rng.standard_normal((draws, n)) * np.sqrt(2),
    )
    x = np.ones(2)
    h = first @ x
    k = np.einsum("dij,dj->di", second, np.maximum(h, 0))
    back = readout / np.sqrt(n) * (k > 0)
    below = np.einsum("dij,di->dj", second, back) * (h > 0)
    # of entries with their variance taken out
    squares = 2 * (np.maximum(k, 0) ** 2).sum(1) / n
    squares += 2 / n * (back**2).sum(1) * (np.maximum(h, 0) ** 2).sum(1)
    return squares + (below**2).sum(1) * (x @ x) / 2


def test_kernel_is_that_of_explicit_networks():
    made = explicit(8, 20_000, np.random.default_rng(0)) / 3
    found = study.sampled("relu", 2, 8, 20_000, seed=0)
    mean, spread = (
        study.mean(made),
        study.mean(made.reshape(50, -1).var(axis=1, ddof=1)),
    )
    exact = study.mean(found["variance"])
    assert (
        abs(mean.value - found["own"][0])
        < 4 * np.hypot(mean.error, found["own"][1])
        < 0.05
    )
    assert (
        abs(spread.value - exact.value) < 4 * np.hypot(spread.error, exact.error) < 0.3
    )


def test_first_order_of_variance_matches_draws():
    found = study.mean(160 * study.sampled("relu", 2, 160, 4000, seed=0)["variance"])
    assert abs(found.value - study.first_order(2)) < 4 * found.error < 2
    assert study.first_order(2) == pytest.approx(58 / 9)


def published(diagonal=1.0, off=0.3, wide=0.0, power=-1.0, noise=1e-4):
    """`wide` is what is added to the first order of variances at n = 20, `off` the
    coefficient off the diagonal.
    """
    z, made = np.linspace(-1, 1, 50), {}
    for part in study.parts(False):
        depth, n = part.arguments["depth"], part.arguments["width"]
        size = (
            study.first_order(depth)
            * (1 + wide * (n == 20))
            / n
            * (n / study.WIDTHS[-1]) ** (power + 1)
        )
        made[part.label] = {
            "own": np.array([diagonal, noise]),
            "other": np.array([1 + off / n + wide * (n == 20), noise]),
            "variance": size * (1 + noise * z),
        }
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts_can_agree_and_disagree():
    assert verdicts(published()) == [AGREES] * 5
    assert verdicts(published(diagonal=1.05, wide=0.3)) == [
        DISAGREES,
        DISAGREES,
        AGREES,
        OUTSIDE,
        OUTSIDE,
    ]
    assert verdicts(published(power=-1.3))[2] == DISAGREES
    assert verdicts(published(noise=0.1))[0] == "undecided"


def test_table_rows_have_equal_columns():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 13
