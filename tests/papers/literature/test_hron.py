"""Infinitely many heads: kernels against plain Monte Carlo, and verdicts that can come
out otherwise.
"""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE, mean
from tests.internals import _hron as study


def test_kernel_of_a_wide_layer_that_is_drawn():
    """The variance of the first word over matrices of width 100, for which the limit is
    off by less than a percent.
    """
    rng = np.random.default_rng(0)
    width, kernel = 100, study.tokens()
    found = []
    for _ in range(400):
        x = np.linalg.cholesky(kernel) @ rng.standard_normal((len(kernel), width))
        query, key = rng.standard_normal((2, width, width)) / np.sqrt(width)
        weights = np.exp((x[0] @ query) @ (x @ key).T / np.sqrt(width))
        # W^V and W^O keep its mean square on average
        mixed = weights / weights.sum() @ x
        found.append(mixed @ mixed / width)
    exact = study.kernels([1.0], 2**10, seed=0)
    drawn = mean(found)
    assert abs(drawn.value - exact["exact"][0, 0, 0]) < 4 * drawn.error + 0.01
    # the other one is rejected
    assert (
        abs(exact["tied"][0, 0, 0] - exact["exact"][0, 0, 0]) > 4 * drawn.error + 0.01
    )


@pytest.fixture(scope="module")
def numbers():
    """A small run."""
    given = {part.label: part for part in study.parts(quick=True)}
    given["kernels"].arguments["points"] = 2**10
    found = {
        label: part.work(**part.arguments, seed=0)
        for label, part in given.items()
        if label not in ("plain", "softmax")
    }
    found |= {kind: study.tangents(kind, 1000, seed=0) for kind in ("plain", "softmax")}
    closed = 4 * (study.tokens() ** 2).sum()
    # few draws: the noise is not judged
    found["plain"]["tangent"] *= closed / found["plain"]["tangent"].mean() / 1.001
    found["plain"]["tangent"] = closed + 0.3 * (found["plain"]["tangent"] - closed)
    found["kernels"]["plain_error"] = np.array(1e-3)
    return found


def test_verdicts_can_agree_and_disagree(numbers):
    assert [claim.verdict for claim in study.judge(numbers)] == [
        AGREES,
        AGREES,
        AGREES,
        OUTSIDE,
    ]
    kernels = numbers["kernels"]
    changes = (
        (
            0,
            {"heads 1": {**numbers["heads 1"], "kurtosis": np.zeros(len(study.HEADS))}},
            DISAGREES,
        ),
        (
            1,
            {"tied": {**numbers["tied"], "tangent": 1.01 * numbers["tied"]["tangent"]}},
            DISAGREES,
        ),
        (2, {"kernels": {**kernels, "plain": 1.2 * kernels["plain"]}}, DISAGREES),
        (
            2,
            {
                "plain": {
                    **numbers["plain"],
                    "tangent": 0.8 * numbers["plain"]["tangent"],
                }
            },
            DISAGREES,
        ),
        (
            3,
            {
                "kernels": {**kernels, "exact": kernels["tied"]},
                "softmax": {"tangent": np.full(100, 2 * kernels["tied"][2, 0, 0])},
            },
            AGREES,
        ),
    )
    for place, change, verdict in changes:
        assert study.judge({**numbers, **change})[place].verdict == verdict


def test_mean_of_draws_is_the_kernel_of_infinitely_many_heads(numbers):
    ours = mean(numbers["softmax"]["kernel"])
    exact = numbers["kernels"]["exact"][2, 0, 0]
    assert (
        abs(ours.value - exact)
        < 4 * ours.error + 4 * exact * numbers["kernels"]["error"][2]
    )


def test_figure_and_rows(numbers):
    assert len(list(study.rows(numbers))) == 3 * len(study.SCALES) + 2 * len(
        study.HEADS
    )
    assert len(study.draw(numbers).axes) == 2
