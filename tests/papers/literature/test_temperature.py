"""Critical temperatures: laws against quadrature and a layer; verdicts, from published
and altered numbers.
"""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _temperature as study


def test_entropy_of_two_tokens_equals_quadrature():
    """The weight of one of two normal scores is a logistic function of one normal."""
    z, weight = np.polynomial.hermite_e.hermegauss(200)
    for beta in (0.5, 2.0):
        a = scipy.special.expit(math.sqrt(2) * beta * z)
        exact = (
            weight / weight.sum() @ (scipy.special.entr(a) + scipy.special.entr(1 - a))
        )
        # |q|²/d is not quite 1
        assert study.entropy(2, beta) == pytest.approx(exact, abs=1e-8)


def test_own_share_of_three_tokens_equals_quadrature():
    """Given the first token, the cosines with the others are independent."""
    t, weight = scipy.special.roots_gegenbauer(200, 3.0)  # dimension 8
    others = np.exp(-5.0 * (1 - t))
    exact = (
        np.sum(np.outer(weight, weight) / (1 + others + others[:, None]))
        / weight.sum() ** 2
    )
    found = study.own_share(3, 5.0, 8)
    assert found.value == pytest.approx(exact, abs=1e-9)
    assert found.error < 1e-9


def test_cosine_of_simplex_equals_explicit_layer():
    """Against a layer of 20 tokens."""
    rho, b = 0.3, 2.0
    y = np.hstack([np.full((20, 1), math.sqrt(rho)), math.sqrt(1 - rho) * np.eye(20)])
    out = scipy.special.softmax(b / (1 - rho) * y @ y.T, axis=1) @ y
    expected = out[0] @ out[1] / np.linalg.norm(out[0]) / np.linalg.norm(out[1])
    assert study.cosine(20, b, rho) == pytest.approx(expected, rel=1e-12)


def published():
    """The limits as if they held at every length."""
    made = {}
    for part in study.parts(False):
        logs = np.log(study.LENGTHS)
        scale = 2 * np.sqrt(2 * logs) if part.label.startswith("normal") else logs
        made[part.label] = {"scale": scale, "error": 1e-9 * scale}
    made["entropy"] = {"entropy": np.tile([0.75, 0.0, 0.0], (len(study.LENGTHS), 1))}
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts_can_agree_and_disagree():
    numbers = published()
    assert verdicts(numbers) == [AGREES, AGREES, OUTSIDE, *[AGREES] * 7]
    for label, found in numbers.items():
        if label != "entropy":
            # another power, another level
            found["scale"] = found["scale"] * np.log(study.LENGTHS) ** 0.5
    numbers["entropy"]["entropy"][0, 1] = 0.2
    assert verdicts(numbers) == [DISAGREES, AGREES, OUTSIDE, *[OUTSIDE] * 7]


def test_phases_have_another_side(monkeypatch):
    # the same at every scale
    monkeypatch.setattr(study, "own_share", lambda *_: study.Estimate(0.3, 0.0))
    assert study._phases((0.5, 1.5), True).verdict == DISAGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(published()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 28
