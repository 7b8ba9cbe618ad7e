"""Programs of every family: the exact engine against the literal interpreter, and the
limit against large widths.

Kolmogorov–Smirnov, level 1e-5 for each of about 90 quantities; seeds are fixed.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import inf, models

from ..keep import keep
from .small import CONFIGS, IDS, NAMES, inputs, patches, program

LEVEL = 1e-5
ENCODERS = {
    "copies before norms": models.pytorch_encoder(
        16, 2, 24, num_layers=3, norm_first=True
    ),
    "copies after norms": models.pytorch_encoder(
        16, 2, 24, num_layers=2, norm=True, causal=True
    ),
    "alibi": models.pytorch_encoder(16, 2, 24, num_layers=2, activation="gelu").replace(
        positions="alibi", shared=False, vocabulary=31
    ),
}
MODELS = {family: models.read(given) for family, given in CONFIGS.items()} | ENCODERS
DEFAULT = ("t5",)


@pytest.mark.parametrize("family", keep(MODELS, *DEFAULT))
def test_family_law_matches_literal_draws(family):
    model = MODELS[family]
    net, widths = program(model), model.widths()
    ours = net.draw(draws=1000, progress=False, **widths)
    literal = net.simulate(draws=400, seed=1, coordinates=0, progress=False, **widths)
    found = {}
    for name, a, b in zip(NAMES, ours, literal, strict=False):
        # a mean square after a norm, equal weights where there are no positions
        if a.std() < 1e-6:
            np.testing.assert_allclose(b, a[:400], rtol=1e-5, atol=1e-9)
        else:
            found[name] = stats.ks_2samp(a, b, method="asymp").pvalue
    assert len(found) >= 3
    assert min(found.values()) > LEVEL, found


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_limit_matches_large_widths(family):
    """Means of all scalars at ∞ and at widths of 1,600: 5 standard errors, and 5 % for
    what is left of order 1/n.
    """
    model = MODELS[family]
    traced = model.trace(**inputs(model))
    layer = traced.layers[-1]
    gram = ns.mean_dot(layer.stream, layer.stream)
    net = ns.Program((gram, layer.weights))
    # these positions have no law at d = ∞
    own = {"d": model.d} if model.positions == "rotary" else {}
    limit = net.draw(draws=1500, progress=False, **dict.fromkeys("ndm", inf) | own)
    large = net.draw(
        draws=300, seed=1, progress=False, **dict.fromkeys("ndm", 1600) | own
    )
    for a, b in zip(limit, large, strict=True):
        error = np.hypot(a.std(axis=0) / len(a) ** 0.5, b.std(axis=0) / len(b) ** 0.5)
        assert (
            np.abs(a.mean(axis=0) - b.mean(axis=0))
            < 5 * error + 0.05 * np.abs(a.mean(axis=0)) + 1e-12
        ).all()


def test_law_at_model_widths_and_in_limit():
    model = models.read(CONFIGS["llama"])
    net = model.program(tokens=3)
    assert net.shape == (3,)
    assert net.widths == ("n", "d", "m")
    real = net[0].law(draws=800, **model.widths())
    limit = net[0].law(draws=800, n=inf, d=model.d, m=inf)
    for law in (real, limit):
        value, error = law.with_error.var()
        assert abs(value - 1) < 5 * error + 1e-3  # after an RMSNorm
    assert (real.origin.status, limit.origin.status) == ("exact", "conjectured")


def test_limit_keeps_scale_of_model():
    """σ = std √N with N of the real model: 0.02² · 12,288 = 4.9 for scores of unit
    tokens.
    """
    model = models.read("gpt3-175b").replace(layers=1)
    scores = model.trace(tokens=2).layers[0].scores
    found = ns.Program(scores).draw(draws=4000, progress=False, n=inf, d=inf)
    assert found.std() == pytest.approx(0.02**2 * 12288, rel=0.02)


def test_repeated_ids_and_padding():
    # padding is 1, and there are no learned positions
    model = models.read(CONFIGS["gemma2"])
    start = model.trace([1, 5, 5, 1]).embedded
    gram = ns.Program(ns.mean_dot(start, start)).draw(
        draws=50, progress=False, n=model.width
    )
    assert (gram[:, [0, 3]] == 0).all()
    np.testing.assert_allclose(gram[:, 1, 1], gram[:, 1, 2])
    assert 1 not in model.probes(tokens=4).source.inputs.ids


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        ("gpt2", {}, "give either ids or tokens"),
        ("gpt2", {"ids": IDS, "tokens": 3}, "give either ids or tokens"),
        ("gpt2", {"ids": []}, "ids=\\[\\] must be one id or more"),
        ("gpt2", {"ids": [31]}, "ids=31 must be an integer from 0 to 30"),
        ("gpt2", {"ids": [1.5]}, "ids=1.5 must be an integer"),
        ("gpt2", {"ids": [True]}, "ids=True must be an integer"),
        (
            "gpt2",
            {"ids": [1] * 17},
            "must be at most 16 tokens: gpt2 has that many positions",
        ),
        ("gpt2", {"tokens": 17}, "tokens=17 must be an integer from 1 to 16"),
        ("gpt2", {"ids": IDS, "decoder_ids": IDS}, "gpt2 has no decoder"),
        ("gpt2", {"patches": patches()}, "patches are for models of images"),
        ("llama", {"tokens": 32}, "tokens=32 must be at most 31, the number of ids"),
        ("vit", {"ids": IDS}, "vit reads images: give patches, or tokens"),
        ("vit", {"tokens": 6}, "tokens=6 must be an integer from 2 to 5"),
        ("vit", {"patches": np.ones((5, 32))}, "must be \\(patches, 32\\), at most 4"),
        ("vit", {"patches": np.ones((4, 31))}, "patches of shape \\(4, 31\\)"),
    ],
)
def test_program_rejects_bad_inputs(family, given, message):
    with pytest.raises(ValueError, match=message):
        MODELS[family].program(**given)


def test_one_token_and_one_head():
    model = models.read(CONFIGS["llama"]).replace(heads=1, groups=1, layers=1)
    net = model.program(tokens=1)
    value, error = net[0].law(draws=500, n=48, d=16, m=40).with_error.var()
    assert abs(value - 1) < 5 * error
    rows = ns.Program(model.trace([4, 4]).layers[0].weights).draw(
        draws=200, progress=False, n=48, d=16
    )
    np.testing.assert_allclose(rows.sum(axis=-1), 1.0)


def test_decoder_blocks_alternate_window():
    """Blocks 0 and 1 are the encoder's, 2 and 3 the decoder's; every second one has a
    window of two tokens.
    """
    traced = (
        MODELS["t5"]
        .replace(window=2, window_every=2)
        .trace(IDS, decoder_ids=[2, 7, 5, 5])
    )
    assert [mask is None or int(mask.sum()) for mask in traced.masks] == [
        16,
        True,
        7,
        10,
    ]


def test_decoder_without_last_norm_returns_its_stream():
    model = MODELS["t5"].replace(final_norm=False)
    traced = model.trace(IDS)
    both = [ns.mean_dot(y[0], y[0]) for y in (traced.output, traced.layers[-1].stream)]
    found = ns.Program(ns.stack(both)).draw(draws=20, progress=False, **model.widths())
    np.testing.assert_array_equal(found[:, 0], found[:, 1])


@pytest.mark.parametrize("std", [1e-8, 1e8])
def test_extreme_scales_give_finite_numbers(std):
    """Norms take scale away: the output of pre-norm blocks has unit mean square
    whatever the std of the embedding.
    """
    model = models.read(CONFIGS["llama"]).replace(std_embedding=std, eps=0.0)
    y = model.trace(IDS).output
    found = ns.Program(ns.mean_dot(y, y)).draw(
        draws=100, progress=False, **model.widths()
    )
    np.testing.assert_allclose(np.diagonal(found, axis1=1, axis2=2), 1.0, rtol=1e-6)


@pytest.mark.parametrize("distribution", ["uniform", "truncated"])
def test_non_gaussian_weights_are_noted(distribution):
    """Their laws at finite width were called exact; only the limit is the same."""
    model = ns.models.read("gpt2").replace(
        layers=1, width=16, heads=2, hidden=64, vocabulary=30
    )
    widths = model.widths()
    assert model.program(tokens=2).law(**widths, draws=4).status == "exact"
    other = model.replace(distribution=distribution)
    net = other.program(tokens=2)
    assert net.law(**widths, draws=4).status == "same limit"
    assert net[0].law(**widths, draws=4).status == "same limit"
    assert net.law(n=ns.inf, d=8, m=ns.inf, draws=4).status == "conjectured"
    assert not other.probes(tokens=2).program._gaussian
    assert model.probes(tokens=2).program._gaussian
