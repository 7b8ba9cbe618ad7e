"""The quantities of an audit: each against plain numpy on the same literal draws, and
the facts they should tell.
"""

import math

import numpy as np
import pytest

import netsor as ns
from netsor import inf, models
from tests.internals import STREAM, words

from .small import CONFIGS, DECODER_IDS, IDS, inputs

MODELS = {family: models.read(given) for family, given in CONFIGS.items()}
MODELS["encoder"] = models.pytorch_encoder(16, 2, 24, num_layers=2)
# embeddings so small that eps matters in norms: their mean square after it is far from
# 1
MODELS["encoder of small inputs"] = MODELS["encoder"].replace(
    std_embedding=1e-3, shared=False
)
MODELS["bert of small inputs"] = MODELS["bert"].replace(
    std_embedding=1e-3, std_position=1e-3, input_norm=False, eps=1e-4
)
MODELS["gpt2 of small inputs"] = MODELS["gpt2"].replace(
    std_embedding=1e-3, std_position=1e-3, eps=1.0
)


def by_hand(
    family: str, draws: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the probes give for literal draws, and the same from the vectors, scores and
    logits of these draws.
    """
    model = MODELS[family]
    probes = model.probes(**inputs(model))
    traced = probes.source.traced
    raw = [traced.embedded, *([traced.decoded] if traced.decoded is not None else [])]
    count = len(raw)
    for layer in traced.layers:
        raw += [layer.stream, layer.attended, layer.fed, layer.scores, layer.weights]
        raw += [each for each in (layer.crossed, layer.experts) if each is not None]
    end = probes.source.logits(limit=False) if model.vocabulary else None
    probes.source.logits = lambda limit: end  # the program has these
    raw += end.parts() if end is not None else ()
    asked = probes.program.outputs
    found = ns.Program((*asked, *raw)).simulate(
        draws=draws, progress=False, **model.widths()
    )
    column = end.column if end is not None else None
    return probes.named(found[: len(asked)]), _numpy(
        model, probes, traced, found[len(asked) :], count, column
    )


def _numpy(model, probes, traced, found, count, column):
    found = iter(found)
    starts = [next(found) for _ in range(count)]
    made = {name: [] for name in probes.names}
    before = starts[0]
    for i, layer in enumerate(traced.layers):
        if i == model.layers:
            before = starts[1]
        stream, attended, fed, scores, weights = (next(found) for _ in range(5))
        crossed = next(found) if layer.crossed is not None else None
        if layer.experts is not None:
            loads = (next(found) > 0).sum(axis=1)
            assert (loads.sum(axis=1) == model.experts_per_token * len(IDS)).all()
            made["largest_load"].append(loads.max(axis=1) / loads.mean(axis=1))
            made["least_load"].append(loads.min(axis=1) / loads.mean(axis=1))
        s = stream.shape[1]
        for name, numbers in _gram(stream).items():
            made[name].append(numbers)
        allowed = (
            np.ones(scores.shape[-2:], bool)
            if traced.masks[i] is None
            else traced.masks[i]
        )
        made["score_std"].append(scores[..., allowed].std(axis=(1, 2)))
        made["score_max"].append(scores[..., allowed].max(axis=(1, 2)))
        entropies, tops = [], []
        for row in range(s):
            w = weights[:, :, row][:, :, allowed[row]]
            np.testing.assert_allclose(w.sum(axis=-1), 1.0)
            if w.shape[-1] > 1:
                entropies.append(-(w * np.log(w)).sum(axis=-1) / math.log(w.shape[-1]))
                tops.append(w.max(axis=-1))
        made["entropy"].append(np.mean(entropies, axis=(0, 2)))
        made["largest_weight"].append(np.max(tops, axis=(0, 2)))
        x, a, m = ((u**2).mean(axis=(1, 2)) for u in (before, attended, fed))
        c = 0.0 if crossed is None else (crossed**2).mean(axis=(1, 2))
        middle = x + a + c
        if model.order == "post":
            both = (
                before
                + attended
                - (before + attended).mean(axis=-1, keepdims=True)
                * (model.norm == "layer")
            )
            middle = (
                both**2 / ((both**2).mean(axis=-1, keepdims=True) + model.eps)
            ).mean(axis=(1, 2))
        made["attention_share"].append(a / (x + a + c) * middle / (middle + m))
        made["mlp_share"].append(m / (middle + m))
        if model.decoder_layers:
            made["cross_share"].append(c / (x + a + c) * middle / (middle + m))
        before = stream
    right = {name: np.stack(rows, axis=1) for name, rows in made.items()}
    for prefix, start in zip(("input_", "decoder_input_"), starts, strict=False):
        right |= {prefix + name: numbers for name, numbers in _gram(start).items()}
    if probes.final:
        p = np.concatenate(list(found), axis=-1)
        z = np.exp(p - p.max(axis=-1, keepdims=True))
        z /= z.sum(axis=-1, keepdims=True)
        if model.readout == "class":
            targets = (0,)
        elif model.decoder_layers:
            targets = DECODER_IDS[1:]
        else:
            targets = IDS[1:] if model.causal else IDS
        targets = targets if column is None else [column[i] for i in targets]
        right["logit_std"] = p.std(axis=(1, 2))
        right["max_probability"] = z.max(axis=(1, 2))
        right["loss"] = -np.mean(
            [np.log(z[:, i, t]) for i, t in enumerate(targets)], axis=0
        )
        assert p.shape[-1] == model.vocabulary
    return right


def _gram(stream):
    s = stream.shape[1]
    gram = np.einsum("rin,rjn->rij", stream, stream) / stream.shape[2]
    size = np.sqrt(np.einsum("rii->ri", gram))
    size = np.where(size > 0, size, np.inf)  # padding has cosine 0
    cosines = [
        gram[:, a, b] / size[:, a] / size[:, b] for a in range(s) for b in range(a)
    ]
    values = np.linalg.svd(stream, compute_uv=False) ** 2
    p = values / values.sum(axis=1, keepdims=True)
    return {
        "mean_square": (stream**2).mean(axis=(1, 2)),
        "cosine": np.mean(cosines, axis=0),
        "effective_rank": np.exp(
            -np.sum(np.where(p > 1e-14, p * np.log(np.maximum(p, 1e-300)), 0), axis=1)
        ),
    }


@pytest.mark.parametrize("family", MODELS)
def test_quantities_equal_numpy_on_same_draws(family):
    found, right = by_hand(family, draws=20)
    assert set(found) == set(right)
    for name, numbers in right.items():
        np.testing.assert_allclose(
            found[name], numbers, rtol=1e-7, atol=1e-9, err_msg=name
        )


def test_measure_at_model_width_and_at_infinity():
    model = MODELS["llama"]
    probes = model.probes(IDS)
    real = probes.measure(100, progress=False)
    limit = probes.measure(100, progress=False, n=inf, m=inf)
    for found in (real, limit):
        assert set(found) == {
            *probes.names,
            *probes.final,
            *(f"input_{name}" for name in STREAM),
        }
        assert all(found[name].shape == (100, 3) for name in probes.names)
        assert all(found[name].shape == (100,) for name in probes.final)
    again = probes.measure(100, progress=False, workers=1)
    assert all(np.array_equal(again[name], real[name]) for name in real)
    assert probes.plan().random_numbers > probes.plan(n=inf, m=inf).random_numbers > 0
    assert probes.uniform_loss == pytest.approx(math.log(31))
    assert np.median(real["entropy"]) < 0.95  # these small models were made so


def test_gpt2_is_mostly_perceptron_after_its_first_block():
    found = (
        models.read("gpt2")
        .replace(layers=2, std_o=0.02 / 24**0.5, std_out=0.02 / 24**0.5)
        .probes(tokens=16)
    )
    measured = found.measure(20, progress=False)
    shares = measured["mlp_share"]
    assert np.median(measured["attention_share"][:, 0]) < 0.15
    assert shares[:, 0].min() > 0.65
    assert shares[:, 0].max() < 0.85
    assert (shares[:, 1] < shares[:, 0]).all()


def test_wide_model_with_std_002_has_scores_near_5():
    """0.02² · 12,288 = 4.92 for tokens of unit mean square."""
    model = models.read("gpt3-175b").replace(layers=1, vocabulary=64)
    found = model.probes(tokens=6).measure(10, progress=False)["score_std"]
    assert abs(np.median(found) - 4.9) < 0.2
    normed = (
        model.replace(qk_norm=True)
        .probes(tokens=6)
        .measure(10, progress=False)["score_std"]
    )
    assert abs(np.median(normed) - 1.0) < 0.1


@pytest.mark.slow
def test_initial_loss_of_untied_logits():
    """ln V + v/2 for logits N(0, v), by independent draws of logits: V is large, so
    that nothing else is left.
    """
    v = 0.02**2 * 768
    rng = np.random.default_rng(0)
    logits = math.sqrt(v) * rng.standard_normal((100, 50257))
    direct = np.mean(np.log(np.exp(logits).sum(axis=1)))
    assert direct == pytest.approx(math.log(50257) + v / 2, abs=2e-3)
    model = models.read("gpt2").replace(layers=1, tied=False)
    loss = model.probes(tokens=16).measure(100, workers=1, progress=False)["loss"]
    # of the mean over draws, each the mean over 15 targets
    error = math.sqrt(v / 15 / 100)
    assert np.mean(loss) == pytest.approx(direct, abs=4 * error)  # level 6e-5


def test_large_logits_raise_initial_loss_above_uniform():
    model = MODELS["llama"].replace(vocabulary=500)
    small = (
        model.replace(std_logits=0.01).probes(IDS).measure(50, progress=False)["loss"]
    )
    large = (
        model.replace(std_logits=0.5).probes(IDS).measure(50, progress=False)["loss"]
    )
    assert abs(np.median(small) - math.log(500)) < 0.02
    assert np.median(large) > math.log(500) + 1


@pytest.mark.slow
def test_tied_logits_stay_random_in_limit():
    """Of an id that occurs: the law at the model's widths and in the limit have
    variances within 15 %.
    """
    model = models.read(CONFIGS["gpt2"]).replace(
        layers=1, width=256, head_dim=128, hidden=1024, std=0.05
    )
    variances = []
    for limit, widths in ((False, model.widths()), (True, dict.fromkeys("ndm", inf))):
        traced = model.trace(IDS)
        logits = words(model, traced, traced.output, limit)
        known, others = logits.parts()
        made = ns.stack([known[2, logits.column[9]], others[2, 0]])
        variances.append(
            ns.Program(made).draw(draws=4000, progress=False, **widths).var(axis=0)
        )
    np.testing.assert_allclose(variances[0], variances[1], rtol=0.15)


def test_window_of_one_token_has_entropy_1():
    found = MODELS["mistral"].replace(window=1).probes(IDS).measure(5, progress=False)
    assert (found["entropy"] == 1).all()
    assert (found["largest_weight"] == 1).all()


def test_model_without_vocabulary_has_no_end():
    probes = MODELS["encoder"].probes(tokens=3)
    assert probes.final == ()
    assert probes.uniform_loss is None
    assert "loss" not in probes.measure(5, progress=False)


def test_probes_reject_one_token():
    with pytest.raises(
        ValueError, match="tokens=1 must be 2 or more: an audit compares tokens"
    ):
        MODELS["gpt2"].probes(tokens=1)


def test_zero_vectors_raise_error():
    """They have no cosine and no rank; where positions, or a branch alone, are not 0,
    nothing is undefined.
    """
    gpt2 = models.read(CONFIGS["gpt2"])
    with pytest.raises(
        ValueError,
        match=r"std_embedding=0 of gpt2 .* makes all vectors 0: an audit needs",
    ):
        gpt2.replace(std=0.0).probes(tokens=3)
    assert np.isfinite(
        gpt2.replace(std_embedding=0.0).probes(tokens=3).measure(2, workers=1)["cosine"]
    ).all()
    gemma = models.read(CONFIGS["gemma2"])
    with pytest.raises(ValueError, match="or ids other than padding"):
        gemma.probes(ids=[gemma.padding] * 2)
