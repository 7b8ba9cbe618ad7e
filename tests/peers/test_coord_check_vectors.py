"""Coordinate checks of modules with trained biases and gains, with factors behind tied
heads, and under files of derived rules.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import netsor as ns
from tests.internals import training_of_rule

WORDS, BASE = 32, 64
IDS = [3, 7, 1, 5]
WIDTHS = [64, 256]
SMALL = {"widths": WIDTHS, "ids": IDS, "draws": 4, "progress": False}


class Net(nn.Module):
    """A residual perceptron with biases, a gain and a tied head."""

    def __init__(self, n: int, head_factor: float = -1.0):
        super().__init__()
        self.embed = nn.Embedding(WORDS, n)
        self.norm = nn.RMSNorm(n)
        self.up, self.down = nn.Linear(n, n), nn.Linear(n, n, bias=False)
        self.last = nn.RMSNorm(n, elementwise_affine=False)
        self.head = nn.Linear(n, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.factor = (n / BASE) ** head_factor
        for matrix in (self.up, self.down):
            nn.init.normal_(matrix.weight, std=n**-0.5)
        nn.init.zeros_(self.up.bias)
        nn.init.normal_(self.embed.weight, std=1.0)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return self.head(self.last(x)) * self.factor


def adamw(power_of_vectors: float = 0.0):
    """AdamW with 1/n for matrices; vectors follow a power of n."""

    def optimiser(module):
        n = module.embed.weight.shape[1] / BASE
        of_vectors = [p for p in module.parameters() if p.ndim == 1]
        matrices = [module.up.weight, module.down.weight]
        return torch.optim.AdamW(
            [
                {"params": of_vectors, "lr": 0.01 * n**power_of_vectors},
                {"params": matrices, "lr": 0.01 / n},
                {"params": [module.embed.weight], "lr": 0.01},
            ],
            weight_decay=0.0,
        )

    return optimiser


def check(build=Net, optimiser=None, **options):
    defaults = {"widths": WIDTHS, "ids": IDS, "draws": 6, "progress": False}
    how = {"optimiser": optimiser or adamw(), **defaults, **options}
    (found,) = ns.coord_check(build, **how)
    return found


def exponents(found):
    """The exponents of updates, by name."""
    return {
        entry.name: fit.exponent.value
        for entry, fit in found.fits.items()
        if entry.what == "update"
    }


def test_updates_of_vectors():
    found = check(vectors=["bias", "gain"])
    of_update = exponents(found)
    assert of_update["up.bias"] == pytest.approx(0.0, abs=0.02)
    assert of_update["norm.weight"] == pytest.approx(0.0, abs=0.02)
    assert found.broken == []


def test_vectors_that_take_no_step_are_named():
    assert check().not_checked == ["norm.weight", "up.bias"]
    assert "Not checked: norm.weight, up.bias. --vectors bias,gain" in " ".join(
        str(ns.coord_check(Net, optimiser=adamw(), **SMALL)).split()
    )
    assert check(vectors=["gain"]).not_checked == ["up.bias"]
    assert check(vectors=["bias", "gain"]).not_checked == []


@pytest.mark.parametrize(
    ("kind", "name"), [("bias", "up.bias"), ("gain", "norm.weight")]
)
def test_one_kind_of_vectors(kind, name):
    of_update = exponents(check(vectors=[kind]))
    assert len([x for x in of_update if x in ("up.bias", "norm.weight")]) == 1
    assert name in of_update


def test_wrong_rate_of_vectors_is_flagged():
    assert check(optimiser=adamw(1.0)).broken == []
    found = check(optimiser=adamw(1.0), vectors=["bias", "gain"])
    assert exponents(found)["up.bias"] == pytest.approx(1.0, abs=0.02)
    assert found.broken


def test_first_step_of_vectors_is_that_of_torch():
    """Adam's first step moves each entry by its rate: that is the update of a bias."""
    found = check(vectors=["bias"])
    (entry,) = [x for x in found.draws if x.name == "up.bias"]
    sizes = found.draws[entry]
    assert sizes[0] == pytest.approx(0.01, rel=1e-6)


def test_factor_behind_a_tied_head_counts():
    """The update of the table acts on the last vectors through the factor 1/n, and the
    logits change by order 1. Without it they grow.
    """
    right = check()
    assert exponents(right)["embed.weight"] == pytest.approx(0.0, abs=0.1)
    assert right.broken == []
    wrong = check(lambda n: Net(n, head_factor=0.0))
    assert exponents(wrong)["embed.weight"] > 0.8
    assert wrong.broken


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="kinds of vectors that Plain has"):
        check(lambda n: Plain(n), optimiser="sgd", lr=0.1, vectors=["bias"])
    with pytest.raises(ValueError, match="muon moves matrices alone"):
        check(optimiser="muon", lr=0.1, vectors=["bias"])
    with pytest.raises(ValueError, match="'bias' and 'gain'"):
        check(vectors=["norm"])


class Plain(Net):
    """Without biases and gains."""

    def __init__(self, n: int):
        super().__init__(n)
        self.up = nn.Linear(n, n, bias=False)
        self.norm = nn.RMSNorm(n, elementwise_affine=False)


class Groups:
    """A rule that changes nothing, with these parameters in its one group."""

    def __init__(self, choose):
        self.choose = choose

    def initialise(self, module):
        pass

    scale_outputs = initialise

    def param_groups(self, module, lr):
        params = [p for name, p in module.named_parameters() if self.choose(name)]
        return [{"params": params, "lr": lr}]


class FrozenTable(Net):
    def __init__(self, n: int):
        super().__init__(n)
        self.embed.weight.requires_grad_(False)


def test_frozen_parameter_in_a_group_of_a_rule_takes_no_step():
    rule = Groups(lambda name: True)
    _, rates = training_of_rule(FrozenTable, rule, lr=0.1, ids=IDS)(16)
    assert rates == {"embed.weight": 0.0, "up.weight": 0.1, "down.weight": 0.1}


def test_rule_that_forgets_a_matrix_is_refused():
    rule = Groups(lambda name: name != "up.weight")
    message = "with up.weight of Net in its param_groups, which leave it out"
    with pytest.raises(ValueError, match=message):
        training_of_rule(Net, rule, lr=0.1, ids=IDS)(16)
