"""The program that is trained: its loss, its derivative, and a step of it against real
matrices.
"""

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, softmax

import netsor as ns
from tests.internals import model_training as training

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 9,
}
IDS, TARGETS = [3, 7, 7], [7, 7, 1]
LEVEL = 1e-4


def small(**changes):
    return ns.models.read(CONFIG).replace(std=0.3, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False},
        {"logit_cap": 2.0, "embedding_scale": 3.0, "logit_scale": 0.5},
    ],
)
def test_loss_and_derivative(changes):
    model = small(**changes)
    made = training(model, IDS, TARGETS)
    net = ns.Program(
        (
            made.logits,
            made.loss,
            made.loss_of(made.logits),
            ns.grad(made.loss, made.logits),
        )
    )
    logits, loss, again, slope = net.simulate(
        draws=20, progress=False, **model.widths()
    )
    assert loss == pytest.approx(
        -log_softmax(logits, -1)[:, np.arange(3), TARGETS].mean(-1), rel=1e-9
    )
    assert again == pytest.approx(loss, rel=1e-9)
    truth = (softmax(logits, -1) - np.eye(9)[TARGETS]) / 3
    assert slope / 9**0.5 == pytest.approx(truth, rel=1e-8, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_training_step_matches_law_of_real_matrices(tied):
    model = small(tied=tied)
    made = training(model, IDS, TARGETS)
    vectors = {"embedding": 0.3, "position": 0.2}
    rates = {
        weight: vectors.get(kind, 0.02 * (1 + k))
        for k, (weight, kind) in enumerate(made.kinds().items())
    }
    values = [made.watched["embedding"][0], made.watched["stream"][1], made.logits]
    after = ns.step(values, made.loss, rates)
    moved = [
        ns.mean_dot(*2 * [(b - a).reshape(-1)[:, None]]).mean()
        for a, b in zip(values, after, strict=True)
    ]
    net = ns.Program((*moved, made.loss_of(after[2]) - made.loss))
    exact = net.draw(draws=1500, seed=1, progress=False, **model.widths())
    real = net.simulate(draws=1500, seed=2, progress=False, **model.widths())
    for one, other in zip(exact, real, strict=True):
        assert stats.ks_2samp(one, other).pvalue > LEVEL
    still = ns.step(values, made.loss, dict.fromkeys(rates, 0.0))[2] - made.logits
    assert ns.Program(ns.mean_dot(still, still)[0, 0]).draw(
        draws=2, progress=False, **model.widths()
    ) == pytest.approx(0)


def test_large_logits_have_finite_loss():
    z = ns.data([[2000.0, 0.0, -3000.0], [0.0, 0.0, 0.0]])
    made = training(small(vocabulary=3), [0, 1], [1, 2])
    value = ns.Program(made.loss_of(z)).simulate(draws=1, progress=False)
    assert value == pytest.approx((2000.0 + np.log(3)) / 2)


def test_training_lists_kinds_of_weights():
    made = training(small(), IDS, TARGETS)
    assert list(made.kinds().values()) == [
        "embedding",
        "position",
        *2 * ["query", "key", "value", "output", "in", "out"],
    ]
    assert [act.kind for act in made.acts][-1] == "head"
    assert {act.block for act in made.acts} == {None, 1, 2}
    untied = training(small(tied=False), IDS, TARGETS)
    assert list(untied.kinds().values())[-1] == "head"


@pytest.mark.parametrize(
    ("name", "words"),
    [("bert-base", "readout"), ("t5-small", "decoder_layers"), ("vit-base", "inputs")],
)
def test_training_rejects_unsupported_models(name, words):
    found = next(
        each for each in ns.models.names() if each.startswith(name.split("-")[0])
    )
    with pytest.raises(ValueError, match=words):
        training(ns.models.read(found), IDS, TARGETS)
