"""Facts about real models that an audit must say."""

import math

import numpy as np
import pytest

import netsor as ns


def test_gpt2_is_mostly_mlp_output_after_its_first_block():
    """24 draws of the whole model would do; one block is the same first block, up to its depth-scaled projections."""
    model = ns.models.read("gpt2").replace(layers=1)
    found = model.probes(tokens=16).measure(24, workers=1, progress=False)
    assert np.median(found["mlp_share"]) > 0.7  # 0.77
    assert np.median(found["attention_share"]) < 0.15


def test_scores_of_a_very_wide_model_are_large():
    """Entries N(0, 0.02²), a normed input: a score has variance (0.02² n)², whatever the head dimension."""
    model = ns.models.read("gpt3-175b").replace(layers=1)
    found = model.probes(tokens=8).measure(24, workers=1, progress=False)
    assert pytest.approx(4.9152) == 0.02**2 * 12288
    assert np.median(found["score_std"]) == pytest.approx(4.9, abs=0.15)


@pytest.mark.slow
def test_the_first_loss_of_untied_logits():
    """ln V + v/2 for logits N(0, v), by independent draws of logits: V is large, so that nothing else is left."""
    v = 0.02**2 * 768
    rng = np.random.default_rng(0)
    logits = math.sqrt(v) * rng.standard_normal((100, 50257))
    direct = np.mean(np.log(np.exp(logits).sum(axis=1)))
    assert direct == pytest.approx(math.log(50257) + v / 2, abs=2e-3)
    model = ns.models.read("gpt2").replace(layers=1, tied=False)
    loss = model.probes(tokens=16).measure(100, workers=1, progress=False)["loss"]
    error = math.sqrt(v / 15 / 100)  # of the mean over draws, each the mean over 15 targets
    assert np.mean(loss) == pytest.approx(direct, abs=4 * error)  # level 6e-5
