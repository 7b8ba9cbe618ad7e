"""Comparisons: what differs comes first, each rule says which model it prefers, and the
halves of an audit agree.
"""

import html
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import netsor as ns
from tests.internals import DOCUMENT_UNDECIDED as UNDECIDED
from tests.internals import (
    FLAG,
    OK,
    Audit,
    LengthResult,
    _distance,
    _error,
    _process_pool,
    differences,
    document,
    join_words,
    number,
    strip_common_prefix,
    to_cell,
    to_text,
)
from tests.internals import AuditDraws as Draws
from tests.internals import AuditRequest as Request

from ...inline import Inline
from .test_rules import facts

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 4,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 54,
}
MODEL = ns.models.read(GPT2)  # ln 54 is nearly 4, the uniform loss of the facts


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)


def made(*columns, lengths=(8,)):
    """Models named a, b, … with draws made for them, at some lengths: a dict for each
    model, or one for each length.
    """
    models = tuple(
        MODEL.replace(name=chr(97 + k), eps=1e-5 * (k + 1)) for k in range(len(columns))
    )
    request = Request(
        models, tokens=lengths, draws=200, widths="actual", gradients=True
    )
    found = []
    for model, given in zip(models, columns, strict=True):
        every = given if isinstance(given, list) else [given] * len(lengths)
        found.append(
            Audit(
                [
                    LengthResult(
                        request,
                        model,
                        n,
                        Draws(
                            request.subject(model, n, False), facts(**each).draws, 0.0
                        ),
                        None,
                    )
                    for n, each in zip(lengths, every, strict=True)
                ]
            )
        )
    return found


GROWN = {"mean_square": [1, 4, 8, 2000]}


@pytest.mark.parametrize(
    ("name", "precision", "rounding"),
    [
        # it is compared by its logarithm
        ("mean_square", "float64", 1e-9),
        ("entropy", "float32", 1e-5),
        pytest.param("mean_square", "float32", 1e-5, marks=pytest.mark.slow),
        pytest.param("entropy", "float64", 1e-9, marks=pytest.mark.slow),
    ],
)
def test_rounding_errors_do_not_separate_models(name, precision, rounding):
    parted = []
    for apart in (0.5 * rounding, 5 * rounding):
        found = made({}, {})
        for each, value in zip(found, (1.0, 1.0 + apart), strict=True):
            each.actual.arrays[name][:] = value
            object.__setattr__(each.actual, "precision", precision)
        parted.append([part.quantity for part in differences(found).quantities])
    assert parted == [[], [name]]


def test_rule_with_different_verdicts_decides_the_preference():
    found = differences(made(GROWN, {}))
    (rule,) = found.rules
    assert (rule.rule, rule.preferred, rule.changes) == ("growth", ("b",), True)
    assert [f.verdict for f in rule.findings] == [FLAG, OK]
    assert (found.preferred, found.verdict) == ("b", "prefer “b” (better growth)")
    assert rule.why.startswith("it is flagged in “a” at 8 tokens (20,0")
    assert rule.why.endswith("; flagged if above 10,000)")
    assert found.fields == {"eps": (1e-5, 2e-5)}
    assert differences(made({}, GROWN)).preferred == "a"


def test_rule_flagged_in_all_models_prefers_the_least_flagged():
    """Found in both: the smaller growth, or the larger entropy, is preferred, if draws
    tell the two apart.
    """
    less = {"mean_square": [1, 4, 8, 1100]}
    found = differences(made(GROWN, less))
    assert ([rule.preferred for rule in found.rules], found.preferred) == (
        [("b",)],
        "b",
    )
    assert not found.changed
    # below is found
    assert (
        differences(made({"entropy": [0.3] * 4}, {"entropy": [0.4] * 4})).preferred
        == "b"
    )
    same = differences(made(GROWN, GROWN))
    assert (same.rules, same.preferred, same.verdict) == (
        (),
        None,
        "no rule prefers a model",
    )


def test_rules_may_disagree():
    found = differences(made(GROWN, {"entropy": [0.3] * 4}))
    assert found.preferred is None
    assert (
        found.verdict == "the rules disagree: growth prefers “b”; entropy prefers “a”"
    )
    # a change outweighs a degree
    weak = differences(made({**GROWN, "entropy": [0.4] * 4}, {"entropy": [0.3] * 4}))
    assert (weak.preferred, weak.verdict) == (
        "b",
        "prefer “b” (better growth, although entropy favours the other model)",
    )


def test_undecided_or_equal_rules_prefer_no_model():
    # undecided, and not found
    assert differences(made({"mean_square": [1, 4, 8, 1001]}, {})).preferred is None
    assert differences(made({}, {})).rules == ()


def test_preference_among_three_models():
    found = differences(made(GROWN, {}, {"entropy": [0.3] * 4}))
    assert [rule.preferred for rule in found.rules] == [("b", "c"), ("a", "b")]
    assert (found.preferred, found.verdict) == (
        "b",
        "prefer “b” (better growth and entropy)",
    )
    two = differences(made(GROWN, {}, {}))
    assert (two.preferred, two.verdict) == (None, "prefer “b” or “c” (better growth)")
    text = to_text(document(made(GROWN, {}, {}), two))
    assert text.startswith("Prefer “b” or “c” (better growth).\n\na, b and c. 4 blocks")
    assert re.search(r"^growth +FLAG +ok +ok$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_verdicts_at_the_length_where_they_are_worst():
    models = made([{}, GROWN], {}, lengths=(4, 8))
    (rule,) = differences(models).rules
    assert [f.tokens for f in rule.findings] == [(8,), (8,)]
    assert "at 8 tokens" in rule.why
    merged = models[0].finding("growth")
    assert (merged.verdict, merged.tokens, merged.lengths_text) == (
        FLAG,
        (8,),
        "8 tokens",
    )
    assert models[1].finding("growth").lengths_text == "4 and 8 tokens"
    open_ = made([{"mean_square": [1, 4, 8, 1001]}, {}], lengths=(4, 8))[0]
    assert open_.finding("growth").verdict == UNDECIDED


def test_separated_quantities_are_sorted_by_distance():
    """The farthest first, each where it is farthest; bands that overlap are not
    named.
    """
    found = differences(
        made(
            {},
            {
                "cosine": [0.1, 0.1, 0.2, 0.1],
                "score_std": [0.33] * 4,
                "entropy": [0.951] * 4,
            },
        )
    )
    assert found.quantities[0][:2] == ("cosine", (3, 3))
    assert found.quantities[0].models == ("a", "b")
    assert {p.quantity for p in found.quantities} == {"cosine", "score_std"}
    assert all(p.distance > 1 and 0 < p.error < p.distance for p in found.quantities)
    assert str(found.quantities[0]).startswith(
        "cosine of tokens, block 3: 0.1 and 0.2; medians "
    )
    start = differences(made({}, {"input_mean_square": 0.2}))
    assert [(p.quantity, p.blocks) for p in start.quantities] == [
        ("mean_square", (0, 0))
    ]
    assert "mean square of the stream, embedding: 0.1 and 0.2 (2 times)" in str(
        start.quantities[0]
    )
    last = start.quantities[0]._replace(blocks=(2, 12))
    assert str(last).startswith("mean square of the stream, last block: ")


def test_distance_is_in_widths_of_bands():
    """Uniform laws on [0, 1] and [3, 5]: bands 0.9 and 1.8 wide, medians 3.5 apart;
    seed 1, five standard errors.
    """
    rng = np.random.default_rng(1)
    x, y = rng.random(4000), 3 + 2 * rng.random(4000)
    assert _distance(x, y, False) == pytest.approx(
        3.5 / 1.35, abs=5 * _error(x, y, False)
    )
    assert _distance(np.exp(x), np.exp(y), True) == pytest.approx(
        _distance(x, y, False), rel=1e-9
    )
    assert _distance(x, x, False) == 0.0
    one = np.full(20, 2.0)
    assert _distance(one, one * (1 + 1e-12), False) == 0.0
    assert math.isfinite(_distance(one, 2 * one, False))
    again = [
        _distance(rng.random(200), 3 + 2 * rng.random(200), False) for _ in range(200)
    ]
    assert _error(x[:200], y[:200], False) == pytest.approx(np.std(again), rel=0.5)


def test_notebook_shows_differences_first():
    models = made(GROWN, {})
    card = to_cell(document(models, differences(models)))
    text = html.unescape(re.sub(r"<[^>]*>", " ", card))
    words = (
        "Prefer “b” (better growth).",
        "Rules that separate them",
        "growth prefers “b”",
        "largest differences",
        "Fields that differ",
        "Status of every rule",
    )
    places = [text.index(each) for each in words]
    assert places == sorted(places)
    ElementTree.fromstring(f"<div>{card}</div>")  # it is well formed


def test_names_and_numbers_are_shortened_for_tables():
    assert strip_common_prefix(["a", "a, std=1", "a, std=2"]) == ["a", "std=1", "std=2"]
    assert strip_common_prefix(["a, x=1, y=1", "a, x=1, y=2"]) == ["y=1", "y=2"]
    assert strip_common_prefix(["gpt2", "llama"]) == ["gpt2", "llama"]
    assert len(strip_common_prefix(["x" * 99, "y"])[0]) == 36
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"]) == "a, b and c"
    assert [number(v) for v in (0.01234, 32.27, 1164.4, 56_581.0)] == [
        "0.0123",
        "32.3",
        "1,160",
        "56,600",
    ]


@pytest.mark.slow
def test_two_recipes_and_their_gradients(inline):
    """With and without 1/√(2L): both halves prefer the recipe that scales, by growth
    and by its gradients.

    A small model of the scale of a wide one: std² · width is that of 0.02² · 2,048.
    """
    config = {
        "model_type": "llama",
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "vocab_size": 50,
        "tie_word_embeddings": False,
    }
    plain = ns.models.read(config).replace(std=0.1, std_embedding=0.02)
    scaled = plain.replace(std_o=0.1 / 4, std_out=0.1 / 4)
    found = ns.audit(
        plain, compare=scaled, tokens=4, draws=16, widths="actual", gradients=True
    )
    rules = {rule.rule: rule for rule in found.differences.rules}
    name = found[1].model.name
    assert found.preferred == name
    assert found.differences.fields == {
        "std_o": (0.1, 0.1 / 4),
        "std_out": (0.1, 0.1 / 4),
    }
    assert (rules["growth"].changes, rules["growth"].preferred) == (True, (name,))
    assert rules["exploding"].preferred == (name,)
    text = found.table()
    assert text.startswith(
        "Prefer “std_o=0.025, std_out=0.025” (better growth and exploding).\n"
    )
    assert "std_o, std_out" in text


def test_assert_ok_raises_for_flagged_rules_only(inline):
    sharp = ns.audit(MODEL.replace(std_q=1.0, std_k=1.0), quick=True)
    assert (sharp.finding("entropy").verdict, sharp.finding("entropy").tokens) == (
        FLAG,
        (16,),
    )
    with pytest.raises(
        AssertionError,
        match=r"^gpt2: entropy FLAG at 16 tokens: 0\.\d+ of uniform in block",
    ):
        sharp.assert_ok("growth", "entropy")
    plain = ns.audit(MODEL, quick=True)
    plain.assert_ok("growth", "entropy")
    with pytest.raises(
        ValueError,
        match="limit was not measured for gpt2: infinite width was not requested",
    ):
        plain.assert_ok("limit")
    with pytest.raises(ValueError, match="rule='entrophy' must be one of growth, "):
        plain.assert_ok("entrophy")
    assert plain["entropy"].blocks.tolist() == [1, 2, 3, 4]
    assert plain["mean_square"].blocks.tolist() == [0, 1, 2, 3, 4]
    assert plain["mean_square"].median[0] == np.median(
        plain.actual["input_mean_square"]
    )
    assert plain["loss"].blocks is None
    with pytest.raises(
        KeyError, match="'entrophy' was not measured; measured: mean_square"
    ):
        plain["entrophy"]
    with pytest.raises(
        ValueError, match="tokens=7 was not measured for gpt2; measured: 16"
    ):
        plain.at(7)
