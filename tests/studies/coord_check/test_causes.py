"""A wrong scale at initialisation is named, and following the advice turns the flag
off.
"""

import re

import pytest

import netsor as ns
from tests.internals import (
    CHANGE,
    GROWS,
    KEPT,
    Entry,
    Exponent,
    Fit,
    Scale,
    Verdict,
    advice,
    named_parametrisation,
    slack_of,
    wrong_scales,
)
from tests.internals import CoordCheckRequest as Request

from ...keep import keep
from .nets import CONFIG

SMALL = {**CONFIG, "n_layer": 1}
UNTIED = {**SMALL, "tie_word_embeddings": False}
# the model, what is broken, what grows, what the advice scales, and its power
BROKEN = {
    "scores over √d": (
        SMALL,
        {"scores": {"head_dim": -0.5}},
        "scores",
        "the scores (with 1/d, not 1/√d)",
        "1/√n",
    ),
    "std of the head": (
        UNTIED,
        {"head": {"std": {"width": -0.5}}},
        "logits",
        "the standard deviation of head",
        "1/√n",
    ),
    "tied logits": (
        SMALL,
        {"logits": {"width": 0.0}},
        "logits",
        "the tied logits, by a factor behind them,",
        "1/n",
    ),
}
# in one step of SGD the scores of wide heads may move as little as n^(−1/2), so that it
# does not show a scale that is too large by √n
CASES = [
    (name, by)
    for by in ("muon", "sgd")
    for name in BROKEN
    if (name, by) != ("scores over √d", "sgd")
]
WIDTHS = {"muon": [64, 1024], "sgd": [256, 4096]}


def check_of(config, file, optimiser):
    grow = "head-dim" if "scores" in file else "heads"
    how = {
        "grow": grow,
        "widths": WIDTHS[optimiser],
        "draws": 8,
        "tokens": 3,
        "progress": False,
        "workers": 1,
    }
    return ns.coord_check(
        config, parametrisation={"like": "mup", **file}, optimiser=optimiser, **how
    )[0]


@pytest.mark.parametrize(
    ("name", "optimiser"),
    keep(CASES, ("scores over √d", "muon")),
)
def test_wrong_scale_is_named(name, optimiser):
    config, file, flagged, what, power = BROKEN[name]
    check = check_of(config, file, optimiser)
    assert flagged in check.broken
    (line, *others) = check.advice
    assert line.startswith(f"scale {what} by {power}: before the step ")
    assert not others  # also with SGD, whose updates grow by the scale


@pytest.mark.parametrize("steps", keep([1, 2], 1))
def test_wider_heads_in_maximal_updates_are_not_flagged_with_sgd(steps):
    """Before values are aligned with gradients, scores move less by up to √n."""
    how = {"draws": 8, "tokens": 3, "progress": False, "workers": 1}
    (check,) = ns.coord_check(
        SMALL,
        widths=[64, 1024] if steps == 1 else [64, 256],
        grow="head-dim",
        parametrisation="mup",
        optimiser="sgd",
        steps=steps,
        **how,
    )
    assert check.broken == check.advice == []
    verdicts = [check["scores"], check.update("query"), check.update("key")]
    assert {verdict.slack for verdict in verdicts} == {0.5}
    assert max(verdict.through.value for verdict in verdicts) < -0.2
    assert {check[name].slack for name in check if name != "scores"} == {0.0}


@pytest.mark.parametrize(
    ("optimiser", "grow", "parametrisation"),
    [("sgd", "heads", "mup"), ("adam", "head-dim", "mup"), ("sgd", "head-dim", "ntk")],
)
def test_slack_is_for_gradient_descent_wider_heads_and_maximal_updates(
    optimiser, grow, parametrisation
):
    request = Request(
        ns.models.read(SMALL),
        (named_parametrisation(parametrisation, optimiser),),
        widths=(64, 128),
        optimiser=optimiser,
        grow=grow,
    )
    assert slack_of(Entry(CHANGE, "scores"), request.rules[0], request) == 0.0


def made(what, name, exponent, promised=0.0, verdict=KEPT):
    e = Exponent(exponent, 0.01, exponent - 0.04, exponent + 0.04)
    return Verdict(Entry(what, name), promised, Fit(e, (e,), None), verdict)


SCALE = Scale("scores", "scores", -0.5, "the scores", frozenset({"query", "key"}))


def test_scale_is_the_cause_only_if_the_size_before_the_step_shows_it():
    grown = [made("change", "scores", 0.5, verdict=GROWS)]
    assert wrong_scales([SCALE], grown, [made("size", "scores", -0.5)], 0.1) == []
    assert (
        wrong_scales(
            [SCALE], [made("change", "scores", 0.0)], [made("size", "scores", 0.0)], 0.1
        )
        == []
    )
    (found,) = wrong_scales([SCALE], grown, [made("size", "scores", 0.0)], 0.1)
    assert (found.excess, found.slowed) == (0.5, {"query", "key"})


def test_learning_rates_are_those_behind_the_right_scale():
    """Updates that are proportional to the scale shrink with it; others do not."""
    grown = [made("change", "scores", 1.0, verdict=GROWS)]
    scales = wrong_scales([SCALE], grown, [made("size", "scores", 0.0)], 0.1)
    query, key, value = (
        made("update", name, power, verdict=GROWS)
        for name, power in (("query", 0.5), ("key", 1.5), ("value", 0.5))
    )
    lines = advice([query, key, value], grown, [], "n", scales)
    said = [re.match(r"scale (.*?) by (\S+):", line).groups() for line in lines]
    assert said == [
        ("the scores", "1/√n"),
        ("the learning rate of key", "1/n"),
        ("the learning rate of value", "1/√n"),
    ]
    still = made("update", "query", 0.0)
    assert "learning rate of query by √n" in advice([still], grown, [], "n", scales)[1]
