"""Optimisers of a user that mix Muon and Adam, in one class or in two: what is not
maximal in them is named, and what cannot be judged is refused by its name.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import netsor as ns

from .test_parametrise import Net, Style

MATRICES = ("up.weight", "down.weight")


def orthogonal(gradient, steps=5):
    """Newton and Schulz's iteration with the coefficients of Jordan et al. (2024)."""
    x = gradient / gradient.norm()
    x = x.T if len(x) > x.shape[1] else x
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if x.shape == gradient.shape else x.T


class MuonAndAdam(torch.optim.Optimizer):
    """One class, in which `use_muon` of a group says which update it gets."""

    def __init__(
        self, groups, factor=lambda rows, columns: max(1, rows / columns) ** 0.5
    ):
        super().__init__(groups, {"use_muon": False, "eps": 1e-10, "weight_decay": 0.0})
        self.factor = factor

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                if group["use_muon"]:
                    update = orthogonal(p.grad) * self.factor(*p.shape)
                else:
                    update = p.grad / (p.grad.abs() + group["eps"])
                p.sub_(update, alpha=group["lr"])


class Both:
    """Two optimisers of torch, behind one interface."""

    def __init__(self, *optimisers):
        self.optimisers = optimisers
        self.param_groups = [group for x in optimisers for group in x.param_groups]

    def step(self):
        for optimiser in self.optimisers:
            optimiser.step()


def groups(module, matrix_power=0.0, head_power=-1.0, matrices=MATRICES, decay=0.0):
    """A group for each parameter, with powers of the width in its learning rate."""
    n = module.n / 32
    found = []
    for name, p in module.named_parameters():
        is_matrix = name in matrices
        power = matrix_power if is_matrix else head_power * (name == "head.weight")
        group = {"params": [p], "lr": 0.01 * n**power, "use_muon": is_matrix}
        found.append({**group, "weight_decay": decay * is_matrix})
    return found


def departures(optimiser):
    rule = ns.torch.parametrise(
        lambda n: Net(n, Style()), optimiser=optimiser, widths=[32, 64, 128], draws=3
    )
    return {(x.path, x.what, x.power) for x in rule.departures}


def test_correct_mixture():
    assert departures(lambda module: MuonAndAdam(groups(module))) == set()


@pytest.mark.slow
def test_mixture_of_two_optimisers():
    def both(module):
        by_name = dict(module.named_parameters())
        muon = torch.optim.Muon([by_name[name] for name in MATRICES], lr=0.02)
        others = [x for x in groups(module) if not x["use_muon"]]
        return Both(muon, torch.optim.AdamW(others, lr=0.01))

    assert departures(both) == set()


def test_learning_rates_are_named():
    """Those of Adam for a matrix that Muon moves, and none for the head."""

    def wrong(module):
        return MuonAndAdam(groups(module, matrix_power=-1.0, head_power=0.0))

    expected = {(name, "learning rate", 1.0) for name in MATRICES}
    assert departures(wrong) == {*expected, ("head.weight", "learning rate", -1.0)}


def test_factors_of_the_class_count():
    """An update of the size of Adam's, 0.2·√(the larger side), grows with the width.
    The weight decay follows the learning rate of the group.
    """

    def like_adam(power):
        def make(module):
            return MuonAndAdam(
                groups(module, matrix_power=power, decay=0.1),
                lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
            )

        return make

    expected = {(name, "learning rate", -0.5) for name in MATRICES}
    expected |= {(name, "weight decay", 0.5) for name in MATRICES}
    assert departures(like_adam(0.0)) == expected


class Cautious(torch.optim.Optimizer):
    """Neither Muon nor Adam: a step along the gradient."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


class MySigns(Cautious):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


REFUSED = {
    "gradients": (
        lambda module: Cautious(module.parameters()),
        r"optimiser='Cautious' .*its first step of embed\.weight is that of neither",
    ),
    "signs": (
        lambda module: MySigns(module.parameters()),
        "optimiser='MySigns' .*name lion, sign or adamw",
    ),
    "Muon for the head": (
        lambda module: MuonAndAdam(groups(module, matrices=(*MATRICES, "head.weight"))),
        r"optimiser='MuonAndAdam' must be with AdamW for head\.weight",
    ),
    "Adam for a matrix": (
        lambda module: MuonAndAdam(groups(module, matrices=["up.weight"])),
        r"optimiser='MuonAndAdam' must be with Muon for down\.weight too",
    ),
    "no optimiser": (lambda module: nn.Linear(1, 1), "optimiser='Linear' must be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        departures(make)
