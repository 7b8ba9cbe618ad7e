"""The checker: the verdict on every case, and how its report reads."""

import pytest
from examples import attention_layer, perceptron

import netsor as ns

from .check_cases import (
    BOUNDED,
    CASES,
    CORRELATED,
    LIPSCHITZ,
    n,
    tied,
    tokens,
    undeclared,
)


def open_points(value):
    report = ns.Program(value).check()
    return report.verdict, {
        point.name for point in report.points if point.verdict != "proved"
    }


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_open_points_of_each_case(name):
    make, verdict, points = CASES[name]
    assert open_points(make()) == (verdict, points)


def test_norms_with_eps_are_known_to_be_bounded():
    """A mean of bounded vectors is bounded, and so is what is scaled by it."""
    report = ns.Program(ns.nn.attention(ns.layer_norm(tokens(), 0.1), 1)).check()
    assert [p.verdict for p in report.points if p.name == BOUNDED] == ["proved"]


def test_printed_report_groups_violations_by_line():
    x = ns.gaussian(ns.Width("n"), 3)
    for _ in range(4):
        x = ns.rms_norm(x + ns.nn.attention(x, heads=1))
    report = ns.Program(x).check()
    lines = str(report).splitlines()
    assert sum(len(point.violations) for point in report.points) > 15
    assert len(lines) < 45
    assert any("and" in line and "more: multiplies" in line for line in lines)


def test_points_about_scores_are_left_out_without_scores():
    n = ns.Width("n")
    report = ns.Program(ns.relu(ns.weight(n, n) @ ns.gaussian(n))).check()
    assert not [point.name for point in report.points if "score" in point.name]
    assert "Assumption 3.1" not in str(report)


def test_findings_name_the_value_the_line_and_the_reason():
    report = ns.Program(tied()).check()
    assert any(
        "p1" in f and "check_cases.py" in f and "n^(1/2)" in f for f in report.reasons
    )
    report = ns.Program(undeclared()).check()
    assert any(
        "not known to be bounded (declare bounded=)" in f for f in report.reasons
    )
    assert any("not known to be (declare lipschitz=)" in f for f in report.reasons)


def test_report_text_and_repr_state_the_verdict():
    """Its verdict first, in lines of 80 columns."""
    first = {
        "limit proved (Theorem 3.1)": attention_layer.net(),
        "limit proved (Yang 2019: there are no scores)": perceptron.net(),
        f"no limit; fails: {CORRELATED}": ns.Program(tied()),
        f"limit conjectured; open: {BOUNDED}, {LIPSCHITZ}": ns.Program(undeclared()),
    }
    for verdict, net in first.items():
        text = str(net.check())
        assert " ".join(text.partition("\n\n")[0].split()) == f"{net.name}: {verdict}"
        assert max(map(len, text.splitlines())) <= 80


def test_masked_entries_ask_for_no_score():
    """A masked weight is 0 and one that is alone in its row is 1, whatever the scores,
    here of a vector with itself.
    """
    h = ns.gaussian(n, 2)
    weights = ns.softmax(ns.dot(h, h), "causal")
    for entry, number in (((0, 1), 0.0), ((0, 0), 1.0)):
        net = ns.Program(weights[entry])
        assert net.check().verdict == "proved"
        assert net.law(n=ns.inf, draws=5).mean() == number
        assert net.law(n=7, draws=5).mean() == number
    assert ns.Program(weights[1, 0]).check().verdict == "no limit"
