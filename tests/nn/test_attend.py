"""Attention with every option: each draw against plain numpy, and its law in the engine
against literal draws.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import nn

from ..engine.compare import exact_draws, smallest_p
from ..keep import keep
from . import reference

N, D, TOKENS, HEADS = 6, 4, 3, 4
BIAS = np.sin(np.arange(HEADS * TOKENS * TOKENS)).reshape(HEADS, TOKENS, TOKENS)
FULL, CAUSAL = np.ones((TOKENS, TOKENS), dtype=bool), np.tri(TOKENS, dtype=bool)
BAND = np.abs(np.subtract.outer(range(TOKENS), range(TOKENS))) < 2


def rms(u):
    return u / np.sqrt((u**2).mean() + 0.1)


def centred(u):
    return (u - u.mean()) / np.sqrt(u.var() + 0.1)


# options of the layer, and of the reference
CASES = {
    "plain": ({}, {}),
    "causal": ({"mask": "causal"}, {"allowed": CAUSAL}),
    "padding": (
        {"mask": [True, False, True]},
        {"allowed": np.array([[True, False, True]] * 3)},
    ),
    "two groups": ({"groups": 2, "mask": "causal"}, {"groups": 2, "allowed": CAUSAL}),
    "one group": ({"groups": 1}, {"groups": 1}),
    "rotary": ({"rotary": nn.Rotary()}, {"rotary": (1e4, 1.0, range(3))}),
    "part of it": (
        {"rotary": nn.Rotary(7.0, 0.5, [4, 0, 9])},
        {"rotary": (7.0, 0.5, [4, 0, 9])},
    ),
    "norm": ({"qk_norm": lambda u: ns.rms_norm(u, 0.1)}, {"norm": rms}),
    "norm, then rotary": (
        {"qk_norm": lambda u: ns.layer_norm(u, 0.1), "rotary": nn.Rotary(3.0)},
        {"norm": centred, "rotary": (3.0, 1.0, range(3))},
    ),
    "softcap": ({"softcap": 0.7, "sigma_q": 2.0}, {"cap": 0.7}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "softcap, then bias": (
        {"softcap": 0.5, "bias": BIAS[:, :1]},
        {"cap": 0.5, "bias": BIAS[:, [0, 0, 0]]},
    ),
    "alibi": (
        {"bias": nn.alibi(HEADS, TOKENS), "mask": "causal"},
        {"bias": nn.alibi(4, 3), "allowed": CAUSAL},
    ),
    "window": ({"window": 2}, {"allowed": BAND}),
    "causal window": ({"window": 2, "mask": "causal"}, {"allowed": BAND & CAUSAL}),
    "linear": ({"scaling": "linear"}, {"factor": 1 / D}),
    "multiplied": ({"scaling": 3.0}, {"factor": 3.0 * D**-0.5}),
    "biases": ({"sigma_b": 0.5, "groups": 2}, {"groups": 2}),
    "sigmas": ({"sigma_q": 2.0, "sigma_k": 0.5, "sigma_v": 3.0, "sigma_o": 0.1}, {}),
    "all": (
        {
            "mask": "causal",
            "groups": 2,
            "window": 2,
            "rotary": nn.Rotary(10.0, 0.5),
            "bias": BIAS,
            "softcap": 2.0,
            "qk_norm": lambda u: ns.rms_norm(u, 0.1),
            "sigma_b": 0.3,
            "scaling": 2.0,
        },
        {
            "groups": 2,
            "rotary": (10.0, 0.5, range(3)),
            "bias": BIAS,
            "cap": 2.0,
            "norm": rms,
            "allowed": BAND & CAUSAL,
            "factor": 2.0 * D**-0.5,
        },
    ),
}
SIGMAS = {"sigma_q": 1.0, "sigma_k": 1.0, "sigma_v": 1.0, "sigma_o": 1.0}


@pytest.mark.parametrize("name", CASES)
def test_each_draw_matches_numpy_with_the_same_matrices(name):
    options, plain = CASES[name]
    x = ns.gaussian(N, TOKENS)
    made = nn.attend(x, HEADS, D, **options)
    (tokens, output, scores, weights), matrices, biases = reference.opened(x, *made)
    groups = plain.get("groups", HEADS)
    zero = (
        [np.zeros((3, HEADS, D))] + 2 * [np.zeros((3, groups, D))] + [np.zeros((3, N))]
    )
    for r in range(3):
        expected = reference.attention(
            tokens[r],
            tokens[r],
            [m[r] for m in matrices],
            [b[r] for b in biases or zero],
            **{"heads": HEADS, "groups": HEADS, "allowed": FULL} | plain,
        )
        for found, right in zip((output, scores, weights), expected, strict=True):
            np.testing.assert_allclose(found[r], right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_matrices_have_the_stated_size(name):
    """Entries N(0, σ²/fan-in); mean squares of some 1,000 to 4,000 entries, level 1e-6
    each.
    """
    options, _ = CASES[name]
    made = nn.attend(ns.gaussian(N, TOKENS), HEADS, D, **options)
    _, matrices, biases = reference.opened(made.output, draws=40)
    for w, (key, sigma) in zip(matrices, SIGMAS.items(), strict=True):
        mean, fan_in = (w**2).mean(), w.shape[-1]
        right = options.get(key, sigma) ** 2 / fan_in
        assert abs(mean / right - 1) < 5 * np.sqrt(2 / w.size), key
    assert len(biases) == (4 if "sigma_b" in options else 0)
    for b in biases:
        assert abs((b**2).mean() / options["sigma_b"] ** 2 - 1) < 5 * np.sqrt(
            2 / b.size
        )


def test_context_with_leading_axes_attends_row_by_row():
    """Cross-attention of (2, 3) queries with (2, 5) others in another space, each row
    as if it were alone.
    """
    x, c = ns.gaussian(N, (2, 3)), ns.gaussian(7, (2, 5))
    made = nn.attend(x, 2, D, context=c, groups=1, sigma_b=0.5, softcap=1.0)
    (tokens, others, output, scores, weights), matrices, biases = reference.opened(
        x, c, *made
    )
    assert scores.shape == weights.shape == (3, 2, 2, 3, 5)
    for r in range(3):
        for row in range(2):
            expected = reference.attention(
                tokens[r, row],
                others[r, row],
                [m[r] for m in matrices],
                [b[r] for b in biases],
                heads=2,
                groups=1,
                allowed=np.ones((3, 5), dtype=bool),
                cap=1.0,
            )
            for found, right in zip(
                (output[r, row], scores[r, :, row], weights[r, :, row]),
                expected,
                strict=True,
            ):
                np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_attend_law_matches_literal_draws(name):
    """Kolmogorov–Smirnov, 15 tests or so a case: level 1e-5 each."""
    n, d = ns.Width("n"), ns.Width("d")
    options, _ = CASES[name]
    made = nn.attend(
        ns.gaussian(n, TOKENS, cov=np.eye(3) + 0.5), HEADS, 2 * d, **options
    )
    net = ns.Program((made.output[1:], made.scores[0, 1], made.weights[-1, 2]))
    assert smallest_p(net, n=3, d=D // 2) > 1e-5


@pytest.mark.parametrize(
    "name",
    keep(sorted(set(CASES) - {"norm, then rotary", "linear"}), "two groups"),
)
def test_infinite_width_matches_a_large_width(name):
    """Kolmogorov–Smirnov against widths of 1,000, level 1e-5 each; a shift of O(1/1000)
    cannot be seen.
    """
    n, d = ns.Width("n"), ns.Width("d")
    options, _ = CASES[name]
    x = ns.tanh(ns.gaussian(n, TOKENS, cov=np.eye(3) + 0.5))
    made = nn.attend(x, HEADS, 2 * d, **options)
    net = ns.Program((made.output[1:], made.scores[0, 1], made.weights[-1, 2]))
    limit = exact_draws(
        net, 800, seed=1, n=ns.inf, d=500 if "rotary" in options else ns.inf
    )
    wide = exact_draws(net, 800, seed=2, n=1000, d=500)
    for i in range(limit.shape[1]):
        size = np.abs(wide[:, i]).max()  # what is masked is 0 in both
        assert (
            size == np.abs(limit[:, i]).max() == 0
            or stats.ks_2samp(limit[:, i], wide[:, i], method="asymp").pvalue > 1e-5
        ), i


# Excess kurtosis of one output coordinate at n = ∞, 4 heads, 4 tokens, d = 16: a
# million draws of queries, keys and values in plain numpy, errors 0.0003 to 0.0005. At
# d = ∞ it is 0.06083 for all, by the integrals for ordinary heads.
KURTOSIS = {4: 0.1689, 2: 0.2156, 1: 0.3066}


@pytest.mark.parametrize("groups", keep([4, 2, 1], 4))
def test_groups_matter_only_at_finite_head_dimensions(groups):
    """Five times the spread over seeds: 0.0009 with the error of the numbers,
    0.00035.
    """
    n, d = ns.Width("n"), ns.Width("d")
    x = ns.clip(ns.weight(n, n, batch=4) @ ns.gaussian(n), 100)
    net = ns.Program(nn.attention(x, 4, d, groups=groups)[0])
    assert (
        abs(net.law(n=ns.inf, d=ns.inf, draws=100_000).kurtosis() - 0.06083) < 0.00175
    )
    assert (
        abs(net.law(n=ns.inf, d=16, draws=200_000).kurtosis() - KURTOSIS[groups])
        < 0.0045
    )
