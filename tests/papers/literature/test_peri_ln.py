"""Norms after, before and around branches: against backpropagation, and verdicts either
way.
"""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import CLAIM_UNDECIDED as UNDECIDED
from tests.internals import _peri_ln as study

from ...keep import keep

NOISE = np.linspace(-1, 1, 8)


def jacobian_of_norm(x):
    """Of the layer norm of rows, d × n × n."""
    n = x.shape[1]
    centred = x - x.mean(axis=1, keepdims=True)
    std = centred.std(axis=1)[:, None, None]
    made = centred[:, :, None] / std
    return (np.eye(n) - 1 / n - made @ np.swapaxes(made, 1, 2) / n) / std


def norm(x):
    return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)


@pytest.mark.parametrize("order", keep(study.LOOKS, "Peri-LN"))
def test_hidden_states_and_gradients_are_those_of_backpropagation(order, monkeypatch):
    """Two blocks, one token, width 16, drawn in full; attention to one token is W V."""
    n, draws = 16, 2000
    for name, value in (("HEAD_DIM", 8), ("BLOCKS", (1, 2))):
        monkeypatch.setattr(study, name, value)
    rng = np.random.default_rng(0)

    def apply(matrix, x):
        return np.einsum("dij,dj->di", matrix, x)

    x, states, slopes = norm(rng.standard_normal((draws, n))), [], []
    for branch in range(4):
        y, slope = (
            (x, np.eye(n)) if order == "Post-LN" else (norm(x), jacobian_of_norm(x))
        )
        if branch % 2:
            gates, inner = rng.standard_normal((2, draws, 4 * n, n)) / math.sqrt(n)
            outer = rng.standard_normal((draws, n, 4 * n)) / math.sqrt(4 * n)
            g, u = apply(gates, y), apply(inner, y)
            open_ = scipy.special.expit(g)
            by_gate = u * open_ * (1 + g * (1 - open_))
            slope = (
                outer
                @ (by_gate[:, :, None] * gates + (g * open_)[:, :, None] * inner)
                @ slope
            )
            y = apply(outer, g * open_ * u)
        else:
            first, second = rng.standard_normal((2, draws, n, n)) / math.sqrt(n)
            y, slope = apply(second @ first, y), second @ first @ slope
        if order == "Peri-LN":
            y, slope = norm(y), jacobian_of_norm(y) @ slope
        x, slope = x + y, np.eye(n) + slope
        if order == "Post-LN":
            x, slope = norm(x), jacobian_of_norm(x) @ slope
        states.append(x)
        slopes.append(slope)
    back = np.einsum("di,dij->dj", rng.standard_normal((draws, n)), jacobian_of_norm(x))
    for slope in slopes[:1:-1]:
        back = np.einsum("di,dij->dj", back, slope)
    found = study.depth(order, 1, 2, n, draws, seed=0)
    explicit = np.log((back**2).mean(axis=1))
    assert scipy.stats.ks_2samp(explicit, found["log"][:, 0]).pvalue > 1e-4
    assert scipy.stats.ks_2samp(explicit + 0.2, found["log"][:, 0]).pvalue < 1e-4
    if order == "Post-LN":
        np.testing.assert_allclose(found["variance"], 1.0)
    else:
        explicit = (states[1] ** 2).mean(axis=1)
        assert scipy.stats.ks_2samp(explicit, found["variance"][:, 0]).pvalue > 1e-4
        assert (
            scipy.stats.ks_2samp(1.15 * explicit, found["variance"][:, 0]).pvalue < 1e-4
        )


def test_powers_of_large_activations():
    """W₂h with |h| ∝ c has gradient |h| under Pre-LN, |h|/|a| under Peri-LN and |h|/|x
    + a| before a last norm.
    """
    for order, last_norm, expected in (
        ("Pre-LN", False, 1),
        ("Peri-LN", False, 0),
        ("Pre-LN", True, 0),
    ):
        assert study.power(order, last_norm, 512, seed=0)[
            "power"
        ].mean() == pytest.approx(expected, abs=0.02)


def planted(
    pre=None,
    peri=None,
    post=-3.0,
    more=-3.0,
    change=(0.5, 1.0),
    powers=(1.0, 0.0, 1.0),
    noise=1e-3,
):
    """Hidden states and gradients by depth as published, or as given."""
    made = {}
    for part in study.parts(False):
        if part.work is study.power:
            made[part.label] = {
                "power": powers[sum("perceptron" in label for label in made)]
                + noise * NOISE
            }
            continue
        order, _, tokens = part.label.split()
        blocks = np.array([p for p in study.BLOCKS if p <= part.arguments["blocks"]])
        states = {
            "Post-LN": lambda p: p**0,
            "Pre-LN": pre or (lambda p: np.exp(p / 8)),
            "Peri-LN": peri or (lambda p: 2.0 * p),
        }
        backs = {
            "Post-LN": post if int(tokens) == study.TOKENS else more,
            "Pre-LN": change[1],
            "Peri-LN": change[0],
        }
        back, jitter = np.linspace(1, 0, len(blocks)), noise * NOISE[:, None]
        made[part.label] = {
            "variance": states[order](blocks) * (1 + jitter),
            "log": (backs[order] + jitter) * back,
        }
    return made


def verdicts(**given):
    return [claim.verdict for claim in study.judge(planted(**given))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES] * 8
    assert verdicts(peri=lambda blocks: blocks**1.5)[0] == DISAGREES
    assert verdicts(pre=lambda blocks: 2.0 * blocks)[1] == OUTSIDE
    assert verdicts(post=-1.4)[2:4] == [OUTSIDE, AGREES]
    assert verdicts(more=-1.4)[2:4] == [AGREES, OUTSIDE]
    assert verdicts(change=(2.0, 1.0))[4:6] == [OUTSIDE, AGREES]
    assert verdicts(change=(4.0, 5.0))[4:6] == [AGREES, OUTSIDE]
    assert verdicts(powers=(0.5, 0.0, 0.0))[6:] == [DISAGREES, OUTSIDE]
    assert verdicts(powers=(1.0, 0.5, 1.0))[6:] == [DISAGREES, AGREES]
    assert verdicts(noise=0.9)[0] == UNDECIDED


def test_quick_run_has_one_model():
    kept = {part.label for part in study.parts(True)}
    numbers = {label: arrays for label, arrays in planted().items() if label in kept}
    assert [claim.verdict for claim in study.judge(numbers)] == [AGREES] * 8
    assert len(study.draw(numbers).axes) == 2


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 3 * 4 + 3 * 5 + 4
