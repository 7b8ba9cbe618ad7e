"""Gradients by position: against explicit networks and the engine, and verdicts either
way.
"""

import math

import numpy as np
import pytest
import scipy

import netsor as ns
from tests.internals import AGREES, DISAGREES, OUTSIDE, _uniform
from tests.internals import _positions as study

from ...keep import keep

SIZE = study.Size(2, 6, 8, heads=2, groups=2, gated=False, scaled=False)


def engine_shares(network, attention, gated):
    """The same network at infinite width as a program, whose attention is a matrix of
    numbers.
    """
    n, d, m = ns.Width("n"), ns.Width("d"), ns.Width("m")
    weights, tokens = attention.matrix(), attention.tokens
    start = x = network.embedding * ns.gaussian(n, tokens)
    activation = ns.silu if gated else ns.gelu

    def normed(u):
        return ns.rms_norm(u, 0)

    for _ in range(network.depth):
        mixed = weights @ (ns.weight(d, n) @ normed(x))
        x = x + ns.weight(n, d, std=network.values) @ mixed
        x = x + ns.nn.mlp(
            normed(x),
            hidden=m,
            activation=activation,
            gate=gated,
            sigma_w=network.perceptron.hidden,
            sigma_out=network.perceptron.out,
        )
    f = ns.dot(ns.gaussian(n).reshape(1), normed(x)[-1:])[0, 0]
    gradient = ns.grad(f, start).reshape((tokens, 1))
    net = ns.Program(ns.mean_dot(gradient, gradient)[:, 0, 0])
    drawn = net.draw(
        n=math.inf, d=math.inf, m=math.inf, draws=1, seed=0, progress=False
    )
    squares = np.asarray(drawn)[0]
    return squares / squares.sum()


@pytest.mark.parametrize(
    ("gated", "window", "sinks"),
    keep(
        [(False, None, 0), (True, 3, 1), (True, None, 0)],
        (True, 3, 1),
    ),
)
def test_limit_is_that_of_the_engine(gated, window, sinks):
    network = _uniform.Network(
        depth=2,
        embedding=0.02,
        values=0.3,
        perceptron=_uniform.Perceptron(
            activation="silu" if gated else "gelu", hidden=1.2, out=0.5, gated=gated
        ),
    )
    attention = _uniform.Uniform(5, window, sinks)
    found = _uniform.shares(network, attention)
    # the engine's quadrature of GELU' is good to 1e-9
    assert found == pytest.approx(engine_shares(network, attention, gated), abs=1e-8)


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (2, 0), (2, 1)])
def test_cumulative_sums_are_products_with_the_matrix(window, sinks):
    attention = _uniform.Uniform(6, window, sinks)
    matrix = attention.matrix()
    assert matrix.sum(axis=1) == pytest.approx(1)
    assert matrix[5, 0] == (1 / 6 if window is None else sinks / 3)
    gram = np.cov(np.random.default_rng(0).standard_normal((6, 9)))
    assert attention.mixed(gram) == pytest.approx(matrix @ gram @ matrix.T)
    assert attention.gathered(gram) == pytest.approx(matrix.T @ gram @ matrix)


def test_paths_are_those_of_explicit_networks():
    """Three residual blocks of uniform attention, five tokens, with real matrices."""
    rng, n, tokens, depth, draws = np.random.default_rng(0), 30, 5, 3, 800
    mixing = _uniform.Uniform(tokens).matrix()
    gradient = np.zeros((draws, tokens, n))
    gradient[:, -1] = rng.standard_normal((draws, n))
    for _ in range(depth):
        matrices = rng.standard_normal((draws, n, n)) / math.sqrt(n)
        through = np.einsum("dti,dij->dtj", gradient, matrices)
        gradient = gradient + np.einsum("ts,dtj->dsj", mixing, through)
    squares = (gradient**2).sum(axis=2)
    total = squares.sum(axis=1, keepdims=True)

    def departures(shares):
        """Of mean squares from these shares of the mean total, in standard errors."""
        difference = squares - shares * total
        error = difference.std(axis=0) / math.sqrt(draws)
        return np.abs(difference.mean(axis=0)) / error

    assert departures(study.path_shares(tokens, depth, 1.0)).max() < 4
    assert departures(study.amplitude_shares(tokens, depth, 1.0)).max() > 10


def attend(x, matrices):
    """Causal attention of two heads of dimension 3, whose outputs are side by side.

    `matrices` are those of queries, keys and values, (draws, 6, heads, 3).
    """
    tokens = x.shape[1]
    seen = np.tril(np.ones((tokens, tokens), dtype=bool))
    heads = []
    for head in range(2):
        q, k, v = (x @ matrix[:, :, head] for matrix in matrices)
        scores = np.where(seen, q @ np.swapaxes(k, 1, 2) / math.sqrt(3), -np.inf)
        heads.append(scipy.special.softmax(scores, axis=2) @ v)
    return np.concatenate(heads, axis=2)


def test_exact_shares_are_those_of_explicit_networks(monkeypatch):
    """GPT-2 with two blocks of width 6, by differences."""
    monkeypatch.setitem(study.MODELS, "gpt2", SIZE)
    monkeypatch.setattr(study, "HEAD_DIM", 3)
    monkeypatch.setattr(study, "STD", 0.5)
    rng, draws, tokens = np.random.default_rng(1), 1500, 3
    shapes = ((6, 2, 3), (6, 2, 3), (6, 2, 3), (6, 6), (6, 8), (8, 6))
    blocks = [
        [0.5 * rng.standard_normal((draws, *shape)) for shape in shapes]
        for _ in range(2)
    ]
    readout = rng.standard_normal((draws, 6))

    def normed(x):
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)

    def function(x):
        for *heads, out, first, last in blocks:
            x = x + attend(normed(x), heads) @ out
            u = normed(x) @ first
            x = x + (u * scipy.special.ndtr(u)) @ last
        return (readout * normed(x)[:, -1]).sum(axis=1)

    x = 0.5 * math.sqrt(2) * rng.standard_normal((draws, tokens, 6))
    gradient = np.zeros_like(x)
    for index in np.ndindex(tokens, 6):
        step = np.zeros((tokens, 6))
        step[index] = 1e-5
        gradient[:, *index] = (function(x + step) - function(x - step)) / 2e-5
    squares = (gradient**2).sum(axis=2)
    explicit = squares / squares.sum(axis=1, keepdims=True)
    found = study.sampled("gpt2", tokens, "learned", 0, 0, draws, seed=0)["shares"]
    for position in range(tokens):
        pair = explicit[:, position], found[:, position]
        assert scipy.stats.ks_2samp(*pair).pvalue > 1e-4
    assert scipy.stats.ks_2samp(explicit[:, 0], found[:, 1]).pvalue < 1e-4


def profile(tokens, anchor=0.6, first=0.08, rise=0.5):
    """Shares with a first and a last token, and a slope between them."""
    share = np.full(tokens, 1e-3)
    share[-max(tokens // 8, 2) :] *= rise
    share[0] = first * (1e-3 * tokens)
    share[-1] = anchor
    return share / share.sum()


def planted(turned=1.0, middle=0.01, density=1.0, paths=0.0, amplitude=9.0, **shape):
    """Numbers as the statements have them: ends, no right side, and closed forms."""
    noise = 1 + 1e-3 * np.array([-1.0, 1.0] * 4)[:, None]
    made = {}
    for part in study.parts(False):
        tokens = part.arguments.get("tokens", study.LINEAR_TOKENS)
        share = profile(tokens, **shape)
        if part.label == "qwen2 rotary":
            share = share * np.where(np.arange(tokens) == 0, turned, 1.0)
        if part.work is study.sampled:
            made[part.label] = {"shares": share * noise}
        elif part.work is study.limits:
            if part.arguments["depth"] >= study.DEPTHS[3]:
                share = share.copy()
                share[tokens // 4 : 3 * tokens // 4] *= middle
            made[part.label] = {"shares": share[None]}
    at = np.array(study.CESARO_AT)
    rows = [density * study.cesaro_density(h, at) for h in study.CESARO_POWERS]
    exact = profile(study.LINEAR_TOKENS)
    made["linear"] = {
        "density": np.array(rows),
        "shares": exact,
        "paths": exact + paths,
        "amplitude": exact / amplitude,
    }
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    usual = [AGREES, OUTSIDE, AGREES, AGREES, AGREES, AGREES, OUTSIDE, AGREES]
    assert verdicts(first=10.0) == usual
    assert verdicts(first=10.0, anchor=1e-3)[0] == DISAGREES
    assert verdicts(first=1e-3)[0] == DISAGREES
    assert verdicts(first=10.0, rise=2.0)[1] == AGREES
    assert verdicts(first=10.0, turned=1.5)[2] == DISAGREES
    assert verdicts(first=10.0, middle=0.5)[3] == OUTSIDE
    assert verdicts(first=10.0, density=1.1)[4] == DISAGREES
    assert verdicts(first=10.0, paths=1e-9)[5] == DISAGREES
    assert verdicts(first=10.0, amplitude=1.1)[6] == AGREES
    assert verdicts(first=10.0, anchor=1e-4)[7] == DISAGREES
    assert verdicts(first=1e-3)[7] == DISAGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) > 4096
