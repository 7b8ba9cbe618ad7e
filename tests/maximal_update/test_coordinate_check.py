"""Coordinate checks of real training: the verdict on what networks return."""

import numpy as np
import pytest

from tests.internals import maximal_update_check


class Training:
    """Networks whose outputs change by these factors of √n."""

    def __init__(self, factors):
        self.factors = factors

    def changes(self, size, lr, draw, steps):
        noise = 1 + 0.01 * np.random.default_rng((*size, draw)).random()
        return {"head": self.factors[size[0]] * noise}


@pytest.mark.parametrize(
    ("factors", "verdict", "is_wrong"),
    [
        ({16: 1.0, 64: 1.0}, "ok", False),
        ({16: 1.0, 64: 2.0}, "grows", True),
        ({16: 0.0, 64: 0.0}, "does not move", False),
        ({16: 1.0, 64: np.inf}, "is not finite", True),
        ({16: np.nan, 64: np.nan}, "is not finite", True),
    ],
)
def test_verdict_on_an_output_that_changes_by_known_factors(factors, verdict, is_wrong):
    (change,) = maximal_update_check(
        Training(factors),
        sizes=[(16,), (64,)],
        at=[16, 64],
        expected={},
        lr=0.1,
        steps=1,
        draws=4,
    )
    assert (change.verdict, change.is_wrong) == (verdict, is_wrong)
