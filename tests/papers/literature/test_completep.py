"""The distance from linearisation: both sums, and verdicts either way."""

import numpy as np

from tests.internals import AGREES, DISAGREES
from tests.internals import _completep as study


def test_branch_is_its_linearisation_and_the_first_row_alone_is_not():
    found = study.distances(2, 1.0, 8, seed=0)["distance"]
    assert np.median(found[:, 0]) < 1e-13
    assert 1e-6 < np.median(found[:, 1]) < 1e-3


def test_larger_step_crosses_kinks(monkeypatch):
    """So the small distance is a property of small steps, not of the code."""
    monkeypatch.setattr(study, "RATE", 0.3)
    assert np.median(study.distances(2, 1.0, 8, seed=0)["distance"][:, 0]) > 1e-3


def published(scale=1.0, defined=1e-5):
    made = {}
    for part in study.parts(False):
        told = study.STORED[part.arguments["alpha"]][
            study.DEPTHS.index(part.arguments["depth"])
        ]
        made[part.label] = {"distance": np.array([[defined, scale * told]] * 3)}
    return made


def test_verdicts_can_agree_and_disagree():
    def verdicts(numbers):
        return [claim.verdict for claim in study.judge(numbers)]

    assert verdicts(published()) == [AGREES] * 4
    assert verdicts(published(scale=5.0)) == [DISAGREES, DISAGREES, AGREES, AGREES]
    assert verdicts(published(defined=1e-15)) == [AGREES, AGREES, DISAGREES, DISAGREES]


def test_table_rows_have_equal_columns():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 24
