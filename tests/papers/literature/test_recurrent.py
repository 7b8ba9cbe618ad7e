"""Recurrent mixers: against states that numpy updates, closed forms, and verdicts
either way.
"""

import math
from functools import cache

import numpy as np
import pytest
import scipy

from tests.internals import AGREES, DISAGREES, OUTSIDE
from tests.internals import _recurrent as study

from ...keep import keep

WIDTH, DRAWS = 12, 4000


def normal(rng, *shape):
    """Matrices (…, out, in) with entries N(0, 1/in)."""
    return rng.standard_normal((DRAWS, *shape)) / math.sqrt(shape[-1])


def softplus(u):
    return np.logaddexp(0, u)


def unit(u):
    return u / np.linalg.norm(u, axis=-1, keepdims=True)


def literal(kind, rng):
    """The first coordinate of the last output, one in each draw, with real matrices and
    the recurrences as the models have them.
    """
    n, tokens, heads = WIDTH, study.TOKENS, study.HEADS
    h = rng.standard_normal((DRAWS, n))
    x = np.einsum("dtij,dj->dti", normal(rng, tokens, n, n), h)
    size = study.STATE if kind in ("mamba2", "delta") else n
    shared = None
    outputs = []
    for head in range(heads):
        q, k = (np.einsum("dij,dtj->dti", normal(rng, size, n), x) for _ in range(2))
        if kind == "mamba2":  # one B and C for all heads
            shared = shared or (q, k)
            q, k = shared
        v = np.einsum("dij,dtj->dti", normal(rng, n, n), x)
        step = softplus(np.einsum("dj,dtj->dt", normal(rng, n), x))
        gate = scipy.special.expit(np.einsum("dj,dtj->dt", normal(rng, n), x))
        state = np.zeros((DRAWS, n, size))
        for t in range(tokens):
            write = np.einsum("di,dj->dij", v[:, t], k[:, t])
            if kind == "linear":
                state = state + write
            elif kind == "retention":
                state = study.GAMMAS[head] * state + write
            elif kind == "mamba2":
                decay = np.exp(-study.RATES[head] * step[:, t])[:, None, None]
                state = decay * state + step[:, t, None, None] * write
            else:
                state = np.exp(-step[:, t])[:, None, None] * state
                key = unit(k[:, t])
                missing = v[:, t] - np.einsum("dij,dj->di", state, key)
                missing = gate[:, t, None] * missing
                state = state + np.einsum("di,dj->dij", missing, key)
        query = q[:, -1] if kind != "delta" else unit(q[:, -1])
        scale = 1.0 if kind == "mamba2" else math.sqrt(size)
        outputs.append(np.einsum("dij,dj->di", state, query) / scale)
    out = normal(rng, heads * n)
    return np.einsum("dj,dj->d", out, np.concatenate(outputs, axis=1))


@pytest.mark.parametrize("kind", keep(study.TITLES, "mamba2", "delta"))
def test_laws_are_those_of_recurrences(kind):
    law = study.mixer(kind).law(n=WIDTH, draws=DRAWS, seed=1, progress=False)
    explicit = literal(kind, np.random.default_rng(0))
    found = law.rvs(DRAWS, rng=np.random.default_rng(2))
    assert scipy.stats.ks_2samp(explicit, found).pvalue > 1e-4
    assert scipy.stats.ks_2samp(1.5 * explicit, found).pvalue < 1e-4


def test_linear_attention_is_variance_gamma():
    """A sum of TH/2 differences of exponential numbers, for TH = 8."""
    y = np.linspace(0.01, 6, 50)
    shape = study.TOKENS * study.HEADS / 2
    scale = 1 / math.sqrt(study.HEADS)
    order, u = shape - 0.5, y / scale
    density = u**order * scipy.special.kv(order, u)
    density /= math.sqrt(math.pi) * 2**order * math.gamma(shape) * scale
    assert study.closed_density("linear", y) == pytest.approx(density, abs=1e-9)


@pytest.mark.parametrize("kind", keep(["linear", "retention"], "retention"))
def test_closed_variance_is_that_of_drawn_gram_matrices(kind):
    rng, n, draws = np.random.default_rng(0), 16, 200_000
    h = rng.standard_normal((draws, n, study.TOKENS))
    gram = np.einsum("dit,dis->dts", h, h) / n
    gram *= (rng.chisquare(n, draws) / n)[:, None, None]
    g = study.token_weights(kind)
    squares = np.einsum("d,dst,hs,ht->d", gram[:, -1, -1], gram**2, g, g) / len(g)
    error = squares.std() / math.sqrt(draws)
    exact = study.closed_variance(kind, n)
    assert abs(squares.mean() - exact) < 4 * error < 0.03 * exact


def test_mamba2_variance_is_that_of_drawn_steps():
    rng, draws = np.random.default_rng(0), 400_000
    steps = softplus(rng.standard_normal((draws, study.TOKENS)))
    later = steps[:, ::-1].cumsum(axis=1)[:, ::-1] - steps
    squares = [
        study.STATE * (np.exp(-2 * rate * later) * steps**2).sum(axis=1)
        for rate in study.RATES
    ]
    found = np.mean(squares, axis=0)
    error = found.std() / math.sqrt(draws)
    assert abs(found.mean() - study.mamba2_variance()) < 4 * error < 0.2


Y = np.linspace(0, 6, study.GRID_POINTS)
CLOSED_DENSITY = study.closed_density


@cache
def density_of(kind):
    return CLOSED_DENSITY(kind, Y)


def test_steps_are_those_of_explicit_adam():
    """The exponent of an update of matrices whose rows stay few is that of one layer by
    hand: with Adam every entry moves by the rate, and n entries add up.
    """
    found = study.rule("mamba2", 8, seed=3)["exponent"]
    assert found.shape == (len(study.MATRICES["mamba2"]), 2)
    assert np.all(np.abs(found[:, 0] - 1) < 4 * found[:, 1] + 0.05)


def planted(power=-2.0, last=1e-5, cv=0.5, shift=0.0, scale=1.0, step=1.0):
    """Numbers as the statements have them, with small errors."""
    widths = np.array(study.WIDTHS, dtype=float)
    divergence = last * (widths / widths[-1]) ** power
    made = {}
    for kind in study.TITLES:
        closed = kind if kind in ("linear", "retention") else "linear"
        density = density_of(closed)
        density = np.tile(density + shift * density[0], (len(widths) + 1, 1))
        variance = [study.closed_variance(closed, n) for n in (*widths, math.inf)]
        if kind == "mamba2":
            variance[-1] = study.mamba2_variance()
        variance = scale * np.array(variance)
        made[kind] = {
            "y": Y,
            "density": density,
            "density_error": np.full_like(density, 1e-6),
            "variance": np.stack([variance, 1e-4 * variance], axis=1),
            "kl": np.stack([divergence, 1e-3 * divergence], axis=1),
            "cv": np.array([cv, 1e-3]),
        }
        names = study.MATRICES[kind]
        made[f"rule {kind}"] = {"exponent": np.array([(step, 0.02)] * len(names))}
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree(monkeypatch):
    def known(kind, y):
        """The density on the grid, which takes longer than the verdicts."""
        np.testing.assert_array_equal(y, Y)
        return density_of(kind)

    monkeypatch.setattr(study, "closed_density", known)
    assert verdicts() == [AGREES, OUTSIDE, AGREES, AGREES, AGREES, AGREES]
    assert verdicts(cv=0.05)[0] == DISAGREES
    assert verdicts(last=2e-3)[1] == AGREES  # no limit: the statement extends
    assert verdicts(last=1e-3)[1] == "undecided"
    assert verdicts(power=-1.0)[2] == DISAGREES
    assert verdicts(shift=0.02)[3] == DISAGREES
    assert verdicts(scale=1.1)[4] == DISAGREES
    assert verdicts(step=0.5)[5] == DISAGREES


def test_table_rows_have_equal_columns():
    for picture in study.RESULT.pictures:
        rows = list(picture.rows(planted()))
        assert len({tuple(row) for row in rows}) == 1
        assert len(rows) in (4 * 4, 4 * 5 * study.GRID_POINTS)
