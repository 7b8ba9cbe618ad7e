"""Streams of hyper-connections: the program against NumPy, and verdicts either way."""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _streams as study


def test_mean_cosine_is_over_all_pairs():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((study.STREAMS, 9))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(study.STREAMS) for j in range(i)]
    assert study.cosines((x @ x.T)[None, None]) == pytest.approx(np.mean(pairs))


def test_streams_of_two_writes_at_infinite_width(monkeypatch):
    """One block: attention over one token and a perceptron both add variance 1.

    That of attention is a mean over heads of a finite dimension, with a standard
    deviation of 0.06.
    """
    monkeypatch.setattr(study, "BLOCKS", 1)
    monkeypatch.setattr(study, "MEASURED", (0, 1))
    monkeypatch.setattr(study, "TOKENS", 1)
    arrays = study.limit("different, no mixing", draws=2, seed=0)
    assert arrays["states"][:, 0] == pytest.approx(0)
    assert arrays["states"][:, 1] == pytest.approx(2 / 3, abs=0.03)


def planted(off=0.0, turned=0.2, apart=0.5, gradient=1.0, share=0.26):
    """Numbers of all cases, with a little noise."""
    noise = 1e-4 * np.array([-1.0, 1.0] * 4)[:, None]
    shape = np.ones((8, len(study.MEASURED)))
    equal = {
        "states": shape - off,
        "gradients": shape - off,
        "share": share + noise[:, 0],
    }
    different = {
        "states": apart * shape + noise,
        "gradients": gradient * shape + noise,
        "share": share + noise[:, 0],
    }
    made = {}
    for case, options in study.CASES.items():
        made[case] = dict(equal if options["equal"] else different)
    made["equal, read in turn"]["gradients"] = turned * shape + noise
    for case in study.LIMITS:
        made[f"{case}, n = ∞"] = {"states": apart * shape + noise}
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES, AGREES, AGREES, AGREES, OUTSIDE, OUTSIDE]
    assert verdicts(off=1e-6)[:2] == [DISAGREES, DISAGREES]
    assert verdicts(turned=1.0)[1] == DISAGREES
    assert verdicts(apart=0.999)[2:4] == [OUTSIDE, OUTSIDE]
    assert verdicts(gradient=0.5)[4] == AGREES
    assert verdicts(share=0.8)[5] == AGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    cases = len(study.CASES) + len(study.LIMITS)
    assert len(rows) == cases * len(study.MEASURED)
