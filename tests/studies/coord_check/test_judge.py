"""Verdicts come out either way, and name the learning rate that is to be changed."""

import pytest

from tests.internals import (
    CHANGE,
    GROWS,
    KEPT,
    SHRINKS,
    STILL,
    UPDATE,
    Entry,
    Exponent,
    Fit,
    Verdict,
    advice,
    judged,
    power,
    worst,
)
from tests.internals import DOCUMENT_UNDECIDED as UNDECIDED


def fitted(value, away=0.05):
    return Fit(Exponent(value, away / 4, value - away, value + away), (), None)


@pytest.mark.parametrize(
    ("value", "promised", "verdict"),
    [
        (0.0, 0.0, KEPT),
        (0.04, 0.0, KEPT),
        (0.08, 0.0, UNDECIDED),
        (0.16, 0.0, GROWS),
        (-0.16, 0.0, SHRINKS),
        (-0.5, -0.5, KEPT),
        (0.0, -0.5, GROWS),
        (-0.5, 0.0, SHRINKS),
        (1.0, 1.0, KEPT),
        (0.5, 1.0, SHRINKS),
    ],
)
def test_judged_compares_the_interval_with_the_promise(value, promised, verdict):
    assert judged(fitted(value), promised, 0.1) == verdict


def test_judged_with_wide_intervals_or_no_promise():
    assert judged(fitted(0.0, away=0.3), 0.0, 0.1) == UNDECIDED
    assert judged(fitted(0.3, away=0.3), 0.0, 0.5) == UNDECIDED
    assert judged(fitted(0.3, away=0.1), 0.0, 0.5) == KEPT
    assert judged(None, 0.0, 0.1) == STILL
    assert judged(fitted(2.0), None, 0.1) == "not judged"


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (0.0, KEPT),
        (-0.3, KEPT),
        (-0.5, KEPT),
        (0.16, GROWS),
        (-0.58, UNDECIDED),
        (-0.7, SHRINKS),
    ],
)
def test_judged_with_slack_accepts_exponents_below_the_promise(value, verdict):
    assert judged(fitted(value), 0.0, 0.1, slack=0.5) == verdict


def test_advice_with_slack_counts_from_the_nearer_end():
    def query_update(value):
        exponent = fitted(value)
        word = judged(exponent, 0.0, 0.1, slack=0.5)
        return Verdict(Entry(UPDATE, "query"), 0.0, exponent, word, slack=0.5)

    assert advice([query_update(-0.5)], [], [], "n") == []
    (line,) = advice([query_update(-1.5)], [], [], "n")
    assert line.startswith("scale the learning rate of query by n: ")
    assert line.endswith("should be −0.5 to 0")
    (line,) = advice([query_update(0.5)], [], [], "n")
    assert "by 1/√n: " in line


def test_bend_is_judged_at_the_largest_widths():
    ends = fitted(0.3).exponent, fitted(0.01).exponent
    bent = Fit(fitted(0.15).exponent, ends, fitted(-0.29).exponent)
    assert bent.bends
    assert judged(bent, 0.0, 0.1) == KEPT
    straight = Fit(fitted(0.2).exponent, ends, fitted(-0.29, away=0.5).exponent)
    assert judged(straight, 0.0, 0.1) == GROWS


def test_worst_is_the_block_furthest_from_the_promise():
    blocks = [
        Verdict(Entry(CHANGE, "mlp", k), 0.0, fitted(v), judged(fitted(v), 0.0, 0.1))
        for k, v in enumerate((0.0, 0.9, 0.5, -0.7), 1)
    ]
    assert worst(blocks).entry.block == 2
    assert worst(blocks[:1]).verdict == KEPT


def update(name, value, promised=0.0):
    return Verdict(
        Entry(UPDATE, name),
        promised,
        fitted(value),
        judged(fitted(value), promised, 0.1),
    )


def change(name, value):
    return Verdict(
        Entry(CHANGE, name), 0.0, fitted(value), judged(fitted(value), 0.0, 0.1)
    )


def test_advice_names_what_to_change():
    (line,) = advice(
        [update("head", 1.02), update("query", 0.0)], [change("logits", 1.0)], [], "n"
    )
    assert line.startswith("scale the learning rate of head by 1/n: ")
    (line,) = advice([update("query", -0.5), update("key", -0.52)], [], [], "n")
    assert line.startswith("scale the learning rates of query and key by √n: ")
    (line,) = advice([update("in", 0.72)], [], [], "L")
    assert "by L^(−0.72)" in line
    (line,) = advice([update("head", 0.5, promised=-0.5)], [], [], "n")
    assert "by 1/n: " in line


def test_advice_is_silent_where_all_is_as_promised():
    assert advice([update("head", 0.0)], [change("logits", 0.0)], [], "n") == []


def test_where_no_update_is_the_cause_initialisation_is():
    (line,) = advice(
        [update("head", 0.0)], [change("logits", 0.6)], [change("logits", 0.5)], "n"
    )
    assert "no learning rate is the cause" in line
    assert "+0.50" in line


def test_powers_in_words():
    assert [power(v) for v in (1.0, -1.05, 0.5, -0.45, 1.5, -2.0, 0.25)] == [
        "n",
        "1/n",
        "√n",
        "1/√n",
        "n^(1.5)",
        "n^(−2)",
        "n^(0.25)",
    ]
