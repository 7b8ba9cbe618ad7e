"""Weight decay on a sphere: against the first order by hand, and verdicts either way."""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _hypersphere as study


def test_muon_step_is_orthogonal_and_norms_stay():
    rng = np.random.default_rng(0)
    weights, gradient = rng.standard_normal((2, 5, 5))
    direction = study.polar(gradient)
    assert direction @ direction.T == pytest.approx(np.eye(5), abs=1e-12)
    assert np.trace(direction.T @ gradient) == pytest.approx(
        study.size_of(gradient, "nuclear")
    )
    for norm in study.NORMS:
        moved = study.after(weights, [gradient] * 3, 0.1, 0.5, norm)
        radius = study.size_of(weights, norm)
        assert study.size_of(moved, norm) == pytest.approx(radius)


def test_first_order_is_the_tangent_part_of_the_update():
    rng = np.random.default_rng(1)
    weights, gradient = rng.standard_normal((2, 4, 4))
    weights /= study.size_of(weights, "Frobenius")
    update = study.polar(gradient) / 2  # of norm 1
    tangent = update - (update * weights).sum() * weights
    for decay in (0.0, 3.0):
        moved = study.after(weights, [gradient], 1e-6, decay, "Frobenius")
        assert (moved - weights) / -1e-6 == pytest.approx(tangent, abs=1e-5)


def planted(power=2.0, other=2.0, identity=1e-15, large=0.1):
    """Numbers as the statements have them, with a little noise."""
    noise = 1 + 1e-3 * np.array([-1.0, 1.0] * 5)[:, None]
    rates = np.array(study.RATES)
    made = {}
    for part in study.parts(False):
        changes = dict.fromkeys(study.NORMS, rates**other * noise)
        made[part.label] = {
            **changes,
            "Frobenius": rates**power * noise,
            "identity": np.array([identity]),
            "large": large * noise[:, 0],
        }
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES, AGREES, AGREES, OUTSIDE]
    assert verdicts(power=1.0)[0] == DISAGREES
    assert verdicts(other=1.5)[1] == OUTSIDE
    assert verdicts(identity=1e-6)[2] == DISAGREES
    assert verdicts(large=0.001)[3] == AGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 3 * 2 * len(study.RATES)
