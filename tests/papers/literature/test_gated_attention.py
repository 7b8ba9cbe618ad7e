"""Gates after attention: against explicit networks, and verdicts either way."""

import math

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _gated_attention as study

from ...keep import keep

SMALL = {
    "HEADS": 2,
    "GROUPS": 1,
    "HEAD_DIM": 3,
    "STD": 0.6,
    "TOKENS": 4,
    "DIRECTIONS": 2,
    "DEEP_TOKENS": 2,
}


@pytest.fixture
def small(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(study, name, value)
    return np.random.default_rng(0)


def unit(x):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True))


def attend(x, queries, keys, values):
    """Causal attention of tokens (draw, token, coordinate), by matrices of each
    draw.
    """
    q, k = unit(x @ queries), unit(x @ keys)
    scores = q @ np.swapaxes(k, 1, 2) / math.sqrt(q.shape[2])
    seen = np.tril(np.ones(scores.shape[1:], dtype=bool))
    return scipy.special.softmax(np.where(seen, scores, -np.inf), axis=2) @ (x @ values)


def same_law(explicit, found, shift):
    assert scipy.stats.ks_2samp(explicit, found).pvalue > 1e-4
    assert scipy.stats.ks_2samp(explicit + shift, found).pvalue < 1e-4


@pytest.mark.parametrize("kind", keep(["elementwise", "headwise"], "headwise"))
def test_heads_are_explicit_ones(kind, small):
    rng, draws = small, 3000
    x = unit(rng.standard_normal((draws, 4, 2)) @ rng.standard_normal((draws, 2, 5)))
    queries, keys, values, gates = 0.6 * rng.standard_normal((4, draws, 5, 3))
    out = 0.6 * rng.standard_normal((draws, 3, 5))
    gates = gates if kind == "elementwise" else gates[:, :, :1]
    ahead, back = (
        (scipy.special.expit(s * x @ gates) * attend(s * x, queries, keys, values))
        @ out
        for s in (1.0, -1.0)
    )
    squares = [((ahead + sign * back) ** 2).sum(axis=(1, 2)) for sign in (1, -1)]
    singular = np.linalg.svd(ahead, compute_uv=False) ** 2
    found = study.heads(kind, 5, draws, seed=0)
    same_law(squares[0] / (squares[0] + squares[1]), found["even"], 0.05)
    same_law(singular[:, 0] / singular.sum(axis=1), found["spectrum"][:, 0], 0.05)


@pytest.mark.parametrize("kind", keep(study.STACKS, "elementwise"))
def test_gradients_are_those_of_explicit_stacks(kind, small):
    """Two blocks of width 5, two heads that share keys and values; the gradient after
    the first by differences.
    """
    rng, draws = small, 2000
    # with gates two less, for six entries of the heads
    hidden = 4 if kind == "elementwise" else 6
    shapes = (
        (2, 5, 3),
        (2, 5, 3),
        (5, 3),
        (5, 3),
        (6, 5),
        (5, hidden),
        (5, hidden),
        (hidden, 5),
    )
    blocks = [
        [0.6 * rng.standard_normal((draws, *shape)) for shape in shapes]
        for _ in range(2)
    ]
    readout = rng.standard_normal((draws, 5))

    def block(x, weights):
        queries, gates, keys, values, out, first, second, last = weights
        y, heads = unit(x), []
        for head in range(2):
            gate = {"none": 1.0, "constant": math.sqrt(study.gate_square(5))}.get(kind)
            gate = scipy.special.expit(y @ gates[:, head]) if gate is None else gate
            heads.append(gate * attend(y, queries[:, head], keys, values))
        x = x + np.concatenate(heads, axis=2) @ out
        inner = unit(x) @ first
        return x + (inner * scipy.special.expit(inner) * (unit(x) @ second)) @ last

    def gradient(function, x, h=1e-5):
        found = np.zeros_like(x)
        for index in np.ndindex(x.shape[1:]):
            step = np.zeros(x.shape[1:])
            step[index] = h
            found[:, *index] = (function(x + step) - function(x - step)) / (2 * h)
        return (found**2).sum(axis=(1, 2))

    def end(x):
        return (readout * unit(x)[:, -1]).sum(axis=1)

    x = block(0.6 * rng.standard_normal((draws, 2, 5)), blocks[0])
    growth = np.log(
        gradient(lambda x: end(block(x, blocks[1])), x)
        / gradient(end, block(x, blocks[1]))
    )
    same_law(growth, study.stacks(kind, 2, 5, 6, draws, seed=0)["growth"][:, 0], 0.4)


def test_mean_square_of_gates_equals_quadrature():
    z = scipy.stats.norm(scale=0.02 * math.sqrt(2048))
    assert study.gate_square(2048) == pytest.approx(
        z.expect(lambda s: scipy.special.expit(s) ** 2), abs=1e-9
    )


def planted(even=(0.0, 0.2, 0.2), rank=(6, 48, 48), closed=0.6, growth=(6.0, 5.0, 5.0)):
    """Numbers as the statements have them, with a little noise."""
    noise, made = 1e-3 * np.array([-1.0, 1.0] * 5), {}
    for kind, share, size in zip(study.ALONE, even, rank, strict=True):
        spectrum = np.where(np.arange(study.TOKENS) < size, 1.0 / size, 1e-17)
        made[f"head {kind}"] = {
            "even": share * (1 + noise),
            "spectrum": np.tile(spectrum, (10, 1)),
            "closed": closed + noise,
        }
    for depth in study.MODELS:
        for kind, value in zip(study.STACKS, growth, strict=True):
            line = np.linspace(value, 0, len(study.measured_blocks(depth)))
            made[f"stack {kind} {depth}"] = {"growth": line + noise[:, None]}
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES] * 5
    assert verdicts(even=(0.0, 0.2, 0.05))[0] == DISAGREES  # one gate is nearly linear
    # attention without a gate is not linear
    assert verdicts(even=(0.1, 0.2, 0.2))[0] == DISAGREES
    assert verdicts(rank=(6, 6, 48))[1:3] == [OUTSIDE, AGREES]
    assert verdicts(rank=(6, 48, 6))[1:3] == [AGREES, OUTSIDE]
    assert verdicts(closed=0.05)[3] == OUTSIDE
    assert verdicts(growth=(6.0, 6.5, 6.0))[4] == OUTSIDE
    assert verdicts(growth=(6.0, 6.0, 6.0))[4] == "undecided"


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 3 * 48 + 3 * 2 * 6
