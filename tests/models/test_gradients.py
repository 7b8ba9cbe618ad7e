"""The backward half of an audit: its law against plain numpy, and the program against
its own literal reading.
"""

import numpy as np
import pytest
from scipy import stats

from netsor import inf, models

from ..keep import keep
from .backprop import drawn_gradients, passed, read_back
from .small import inputs
from .test_probes import MODELS

TINY = {
    "family": "own",
    "layers": 2,
    "width": 8,
    "heads": 2,
    "hidden": 12,
    "vocabulary": 11,
    "length": 8,
    "eps": 1e-2,
    "std_q": 0.7,
    "std_k": 0.7,
    "std_v": 0.5,
    "std_o": 0.5,
    "std_in": 0.5,
    "std_out": 0.5,
    "std_gate": 0.5,
    "std_embedding": 0.5,
    "std_position": 0.3,
    "std_logits": 0.6,
}
LLAMA = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "heads": 4,
    "groups": 2,
}
OWN = {
    "gpt2": {"activation": "gelu_tanh", "tied": True},
    "llama": {**LLAMA, "head_dim": 4},
    "llama, tied, with caps": {
        **LLAMA,
        "tied": True,
        "logit_cap": 1.0,
        "score_cap": 1.0,
        "embedding_scale": 3.0,
    },
    "post-norm, copies of one block": {
        "order": "post",
        "final_norm": False,
        "shared": True,
        "causal": False,
    },
    "sandwich, query-key norm": {
        **LLAMA,
        "order": "sandwich",
        "qk_norm": True,
        "window": 2,
        "logit_cap": 1.0,
    },
    "parallel, padding": {
        "order": "parallel",
        "tied": True,
        "padding": 7,
        "norm": "rms",
    },
    "transform, padding that does not occur": {
        "order": "post",
        "tied": True,
        "padding": 5,
        "readout": "transform",
        "causal": False,
        "input_norm": True,
        "final_norm": False,
    },
    "biases, more tokens than coordinates": {
        "width": 4,
        "bias_in": 0.5,
        "norm": "rms",
        "logit_scale": 2.0,
    },
}
DEFAULT = ("gpt2", "llama")
IDS = (3, 7, 7, 1, 2, 3)


def own(name):
    return models.Transformer(name=name, **(TINY | OWN[name]))


class Moved:
    """Normals of one seed, each array moved by some of a direction of its own."""

    def __init__(self, by):
        self.rng, self.other, self.by = (
            np.random.default_rng(3),
            np.random.default_rng(7),
            by,
        )
        self.directions = []

    def normal(self, mean, std, size):
        self.directions.append(std * self.other.standard_normal(size))
        return self.rng.normal(mean, std, size) + self.by * self.directions[-1]


@pytest.mark.parametrize("name", [name for name in OWN if "padding" not in name])
def test_numpy_backprop_matches_finite_differences(name):
    """By differences, along a random direction of all that is drawn."""
    model, h = own(name), 1e-5
    before, after = (float(passed(model, IDS, Moved(by))[0].value) for by in (-h, h))
    at = Moved(0.0)
    loss, *_, drawn = passed(model, IDS, at)
    read_back(loss)
    slope = sum(
        np.sum(node.grad * d)
        for nodes, d in zip(drawn, at.directions, strict=True)
        for node in nodes
    )
    assert slope == pytest.approx((after - before) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("name", keep(OWN, "llama"))
def test_gradients_match_law_of_plain_numpy(name):
    """Kolmogorov–Smirnov, level 1e-4 for all quantities of a model together; width
    8.
    """
    model, draws = own(name), 200 if name in DEFAULT else 1000
    probes = model.probes(ids=IDS, gradients=True)
    ours = probes.measure(draws, progress=False, workers=1)
    rng = np.random.default_rng(0)
    plain = [drawn_gradients(model, IDS, rng) for _ in range(draws)]
    asked = {
        name
        for name in (*probes.names, *probes.final)
        if name.startswith("grad") and not name.endswith("ratio")
    }
    assert asked | {"loss"} == set(plain[0])
    pairs = []
    for quantity in plain[0]:
        right = np.array([each[quantity] for each in plain])
        pairs += [
            (quantity, a, b)
            for a, b in zip(
                np.atleast_2d(ours[quantity].T), np.atleast_2d(right.T), strict=True
            )
        ]
    found = {
        quantity: stats.ks_2samp(a, b, method="asymp").pvalue
        for quantity, a, b in pairs
    }
    assert min(found.values()) > 1e-4 / len(pairs), found


@pytest.mark.parametrize(
    "family",
    [  # what a router chooses has no gradient, and such models are refused
        f if f == "encoder" else pytest.param(f, marks=pytest.mark.slow)
        for f in MODELS
        if " " not in f and f != "mixtral"
    ],
)
def test_gradient_program_agrees_with_its_literal_draws(family):
    """The exact engine against the literal interpreter; the level is 1e-4 for all
    quantities of a model together.
    """
    model, draws = MODELS[family], 150
    probes = model.probes(**inputs(model), gradients=True)
    exact = probes.measure(draws, progress=False, workers=1)
    literal = probes.named(
        probes.program.simulate(draws=draws, progress=False, **model.widths())
    )
    names = [name for name in exact if name.startswith("grad")]
    tests = [
        stats.ks_2samp(a, b, method="asymp").pvalue
        for name in names
        for a, b in zip(
            np.atleast_2d(exact[name].T), np.atleast_2d(literal[name].T), strict=True
        )
    ]
    assert min(tests) > 1e-4 / len(tests)


@pytest.mark.slow
def test_gated_model_gradients_at_infinite_width():
    """Against widths of 1,000 and more; level 1e-5 of the smallest of 19 p-values."""
    given = TINY | {"eps": 1e-5, "activation": "silu", "gated": True, "norm": "rms"}
    probes = models.Transformer(name="gated", **given).probes(tokens=3, gradients=True)
    limit = probes.measure(400, progress=False, workers=1, n=inf, d=inf, m=inf)
    wide = probes.measure(
        400, seed=5, progress=False, workers=1, n=2000, d=1000, m=3000
    )
    names = [
        name
        for name in limit
        if name.startswith("grad_") and not name.endswith("_ratio")
    ]
    found = [
        stats.ks_2samp(a, b).pvalue
        for name in names
        for a, b in zip(*_columns(limit[name], wide[name]), strict=True)
    ]
    assert len(found) == 19
    assert min(found) > 1e-5


def _columns(*arrays):
    return [a.reshape(len(a), -1).T for a in arrays]


def _wide(width, tied):
    """The step-0 loss and the gradient of queries of one block of GPT-2 whose widths,
    but for the stream's, stay.
    """
    std = width**-0.5
    model = models.read("gpt2").replace(
        width=width,
        heads=2,
        layers=1,
        vocabulary=20,
        hidden=16,
        length=8,
        tied=tied,
        logit_scale=(768 / width) ** 0.5,
        std_q=2 * std,
        std_k=2 * std,
        std_v=0.3 * std,
        std_o=0.3 * std,
        std_in=0.5 * std,
        std_out=0.01,
    )
    found = model.probes(tokens=3, gradients=True).measure(40, progress=False)
    return np.median(found["loss"]), np.median(found["grad_query_ratio"])


@pytest.mark.slow
def test_tied_logit_gradients_grow_with_width_and_raise_at_infinity():
    """From n = 10⁴ to 10⁶ the loss grows 10 times and squares of gradients of queries
    100 times; untied, none does.

    A median of 40 draws is off by a factor of 2 with a probability below 1e-6.
    """
    for tied, times in ((True, (10, 100)), (False, (1, 1))):
        (loss, query), (wide_loss, wide_query) = (
            _wide(width, tied) for width in (10**4, 10**6)
        )
        assert wide_loss / loss == pytest.approx(times[0], rel=0.1)
        assert times[1] / 2 < wide_query / query < 2 * times[1]
    with pytest.raises(
        ValueError,
        match="the logit of a token's own id grows with the root of the width",
    ):
        models.read("gpt2").replace(layers=1).probes(tokens=3, gradients=True).plan(
            n=inf, d=inf, m=inf
        )
