"""Verdicts on parametrisations that people write: ten right ones in different styles
raise no flag, and of twelve planted errors each is named with what must change.
"""

from __future__ import annotations

import pytest
import torch

import netsor as ns

from . import mup_styles as of
from .mup_styles import by_group, by_parameter, changed, with_decay

MATRICES, TABLE = by_parameter({}), by_parameter({"embed.weight": -0.5})
UNIT = dict.fromkeys(("up.weight", "gate.weight", "down.weight"), -0.5)
UNIT |= {f"{name}.weight": -0.5 for name in "qkvo"}
UNIT |= {"embed": 0.0, "head.weight": 0.0}
PERCEPTRON = {"a.weight": 1.0, "a.bias": 1.0, "b.bias": 1.0, "c.bias": 1.0}
PERCEPTRON |= {"b.weight": 0.0, "c.weight": 0.0, "d.weight": -1.0}
SGD = by_parameter(PERCEPTRON, torch.optim.SGD, momentum=0.9)

RIGHT = {
    "package": (of.PackageGPT, by_group, None),
    "grouped queries": (of.GroupedQueries, with_decay, None),
    "unit scaling": (
        of.UnitScaling,
        by_parameter(UNIT, torch.optim.Adam),
        of.tokens(),
    ),
    "tied table": (of.TiedTable, TABLE, None),
    "perceptron": (of.Perceptron, SGD, of.random_inputs(12, 20)),
    "stacked experts": (of.StackedExperts, MATRICES, None),
    "convolutions": (
        of.Convolutions,
        by_parameter({"stem.weight": 0.0, "depthwise.weight": 0.0}),
        of.random_inputs(8, 3, 6, 6),
    ),
    "normed queries": (of.NormedQueries, MATRICES, None),
    "recurrence": (of.Recurrence, MATRICES, None),
    "class token": (of.ClassToken, MATRICES, of.random_inputs(6, 5, 20)),
}


def derive(build, optimiser, batch, **options):
    sizes = {"widths": [32, 64, 128], **options}
    return ns.torch.parametrise(build, optimiser=optimiser, batch=batch, **sizes)


@pytest.mark.parametrize("name", RIGHT)
def test_right_module_raises_no_flag(name):
    rule = derive(*RIGHT[name])
    assert rule.departures == ()
    assert rule.growing == ()
    assert "departs" not in rule.verdict


STD, RATE, DECAY = "standard deviation", "learning rate", "weight decay"
PACKAGE_MATRICES = ("qkv", "o", "up", "down")
QUERIES = ("embed", "q", "kv", "o", "gate_up", "down")  # all but the head
PLANTED = {
    "standard deviation of a matrix": (
        lambda n: of.GroupedQueries(n, std_of_down=0.5),
        with_decay,
        None,
        {("down.weight", STD, -0.5)},
    ),
    "part of a fused matrix": (
        lambda n: of.PackageGPT(n, std_of_keys=0.5),
        by_group,
        None,
        {("qkv.weight, rows from 1/3 to 2/3 of them", STD, -0.5)},
    ),
    "learning rate of a group": (
        of.PackageGPT,
        lambda module: torch.optim.AdamW(module.parameters(), lr=0.01),
        None,
        {(f"{name}.weight", RATE, -1.0) for name in PACKAGE_MATRICES},
    ),
    "scale of scores": (
        lambda n: of.PackageGPT(n, score=-0.5),
        by_group,
        None,
        {("qkv", "scores", -0.5)},
    ),
    "factor of the logits": (
        lambda n: of.TiedTable(n, logits=0.0),
        TABLE,
        None,
        {("norm_2", "logits", -0.5)},
    ),
    "learning rate of an embedding": (
        of.StackedExperts,
        by_parameter({"embed.weight": -1.0}),
        None,
        {("embed.weight", RATE, 1.0)},
    ),
    "eps": (  # the gradient of the head is of order 1, the others fall
        of.GroupedQueries,
        lambda module: with_decay(module, eps=1e-4),
        None,
        {(f"{name}.weight", "eps", -1.0) for name in QUERIES},
    ),
    "weight decay": (
        of.GroupedQueries,
        changed(with_decay, "weight_decay", {"down.weight": -1.0}),
        None,
        {("down.weight", DECAY, 1.0)},
    ),
    "router": (
        of.StackedExperts,
        by_parameter({"router.weight": 0.0}),
        None,
        {("router.weight", RATE, -1.0)},
    ),
    "gain": (
        of.Convolutions,
        changed(RIGHT["convolutions"][1], "lr", {"norm_2.weight": 1.0}),
        of.random_inputs(8, 3, 6, 6),
        {("norm_2.weight", RATE, -1.0)},
    ),
    "bias": (
        of.ClassToken,
        by_parameter({"v.bias": -1.0}),
        of.random_inputs(6, 5, 20),
        {("v.bias", RATE, 1.0)},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_error_is_named(name):
    *arguments, expected = PLANTED[name]
    rule = derive(*arguments)
    assert {(x.path, x.what, x.power) for x in rule.departures} == expected


def test_planted_factor_of_a_branch_is_named():
    """The second branch of each layer lacks its 1/L."""
    rule = derive(
        lambda n, depth: of.Layers(n, depth, of_second=0.0),
        MATRICES,
        None,
        depths=[2, 4, 8],
    )
    assert {tuple(x) for x in rule.departures} == {
        (f"layers.{k}.down", "branch", -1.0, "depth") for k in range(2)
    }


def test_right_factors_of_branches_raise_no_flag():
    assert derive(of.Layers, MATRICES, None, depths=[2, 4, 8]).departures == ()


def test_unlike_rows_have_no_file():
    """A rule has one exponent for each parameter."""

    def build(n):
        return of.PackageGPT(n, std_of_keys=0.5)

    with pytest.raises(ns.torch.UnsupportedError, match=r"qkv.weight, rows from 1/3"):
        derive(build, "adamw", None)
