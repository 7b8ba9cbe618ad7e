"""First steps of normalised transformers: the program, and verdicts either way."""

import numpy as np
import pytest

import netsor as ns
from tests.internals import AGREES, DISAGREES
from tests.internals import CLAIM_UNDECIDED as UNDECIDED
from tests.internals import _ngpt as study


def test_first_loss_is_that_of_a_uniform_guess():
    """Logits are cosines of order 1/√d, so that all words are about as likely."""
    drawn = ns.program(study.loss)(256).draw(draws=4, seed=0, progress=False)
    assert np.mean(drawn) == pytest.approx(np.log(study.WORDS), rel=0.05)


def planted(first=1.0, second=1.0, error=0.01):
    """Exponents of the first step and of two."""
    count = len(study.MATRICES)
    made = {}
    for steps, power in zip(study.STEPS, (first, second), strict=True):
        pairs = np.full((count, 2), (power, error))
        changes = np.tile(np.array(study.WIDTHS) ** power, (count, 1))
        made[f"{steps} steps"] = {"exponent": pairs, "change": changes}
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES] * 3
    assert verdicts(first=0.0) == [DISAGREES, AGREES, DISAGREES]
    assert verdicts(second=0.0)[1] == DISAGREES
    assert verdicts(first=0.5)[2] == DISAGREES
    assert verdicts(error=1.0) == [UNDECIDED] * 3


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == len(study.STEPS) * len(study.MATRICES) * len(study.WIDTHS)
