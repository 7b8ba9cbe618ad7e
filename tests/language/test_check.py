"""The checker: each point of Assumption 3.1, held and broken."""

import numpy as np
import pytest
from examples import attention_layer, causal_attention, cross_attention, perceptron, recurrent, residual_block

import netsor as ns

n, d = ns.Width("n"), ns.Width("d")

FACTORS = "factors of scores are MatMul outputs"
TIED = "the two factors of a score have different matrices"
ELSEWHERE = "matrices of score factors are used for nothing else"
BOUNDED = "inputs of score factors are bounded"
LIPSCHITZ = "functions are pseudo-Lipschitz"
DEEP = "a vector that depends on a score is not multiplied again"
MEANS = "no mean enters a program with scores"
WIDTHS = "every width goes to infinity"


def tokens(s=3):
    return ns.tanh(ns.gaussian(n, s))


def w(batch=()):
    return ns.weight(n, n, batch)


def open_points(value):
    report = ns.Program(value).check()
    return report.verdict, {point.name for point in report.points if point.verdict != "proved"}


def tied():
    x, a = tokens(), w()
    return ns.softmax(ns.dot(a @ x, a @ x)) @ (w() @ x)


def tied_by_members():
    x, a = tokens(), w(2)
    return ns.softmax(ns.dot(a[0] @ x, a[1] @ x)) @ (w() @ x)


def tied_apart():
    x, a = tokens(4), w()
    return ns.dot(a @ x[:2], a @ x[2:])


def used_elsewhere():
    x, a = tokens(), w()
    q = a @ x
    return ns.softmax(ns.dot(q, w() @ x)) @ q


def returned():
    x = tokens()
    q = w() @ x
    return ns.dot(q, w() @ x), q[0]


def biased():
    x = tokens()
    return ns.dot(w() @ x + ns.gaussian(n), w() @ x)


def undeclared():
    x = ns.nonlin(lambda u: np.exp(-u * u), ns.gaussian(n, 2))
    return ns.nn.attention(x, 1)


def declared():
    x = ns.nonlin(lambda u: np.exp(-u * u), ns.gaussian(n, 2), bounded=True, lipschitz=True)
    return ns.nn.attention(x, 1)


def exponential():
    return ns.apply(np.exp, ns.dot(w() @ tokens(), w() @ tokens()), lipschitz=False) @ (w() @ tokens())


def deep():
    return w() @ ns.relu(ns.nn.attention(tokens(), 2))


def two_layers():
    return ns.nn.attention(ns.tanh(ns.nn.attention(tokens(), 2)), 2)


def two_linear_layers():
    return ns.nn.attention(ns.nn.attention(tokens(), 2), 2)


CASES = {
    "the paper's layer": (lambda: attention_layer.net().output, "proved", set()),
    "causal": (lambda: causal_attention.net().output, "proved", set()),
    "cross, low rank": (lambda: cross_attention.net().output, "proved", set()),
    "matrices of one batch": (tied_by_members, "proved", set()),
    "perceptron": (lambda: perceptron.net().output, "proved", set()),
    "recurrent": (lambda: recurrent.net().output, "proved", set()),
    "1/n scaling": (lambda: ns.nn.attention(tokens(), 2, scaling="linear"), "proved", set()),
    "declared": (declared, "proved", set()),
    "bounded by composition": (lambda: ns.nn.attention(ns.relu(tokens()), 2), "proved", set()),
    "a nonlinearity at the end": (lambda: ns.relu(ns.nn.attention(tokens(), 2)), "proved", set()),
    "tied": (tied, "no limit", {TIED}),
    "score of a vector with itself": (lambda: ns.dot(*[w() @ ns.gaussian(n)] * 2), "no limit", {TIED, BOUNDED}),
    "tied on different vectors": (tied_apart, "conjectured", {TIED}),
    "used elsewhere": (used_elsewhere, "conjectured", {ELSEWHERE}),
    "returned": (returned, "conjectured", {ELSEWHERE}),
    "a bias": (biased, "conjectured", {FACTORS}),
    "factors are initial": (lambda: ns.dot(ns.gaussian(n, 2), w() @ tokens()), "conjectured", {FACTORS}),
    "relu": (lambda: ns.nn.attention(ns.relu(ns.gaussian(n, 2)), 1), "conjectured", {BOUNDED}),
    "undeclared": (undeclared, "conjectured", {BOUNDED, LIPSCHITZ}),
    "exponential": (exponential, "conjectured", {LIPSCHITZ}),
    "deep": (deep, "conjectured", {DEEP}),
    "two layers": (two_layers, "conjectured", {DEEP}),
    "two layers without a nonlinearity": (two_linear_layers, "conjectured", {DEEP, BOUNDED}),
    "norm": (lambda: ns.nn.attention(ns.rms_norm(tokens(), 0.1), 1), "conjectured", {MEANS}),
    "norm without scores": (lambda: w() @ ns.rms_norm(tokens(), 0.1), "proved", set()),
    "norm without eps": (lambda: w() @ ns.rms_norm(tokens()), "conjectured", {LIPSCHITZ}),
    "fixed head": (lambda: ns.nn.attention(tokens(), 2, head_dim=8), "conjectured", {WIDTHS}),
    "block": (lambda: residual_block.net().output, "conjectured", {BOUNDED, LIPSCHITZ, DEEP, MEANS}),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name):
    make, verdict, points = CASES[name]
    assert open_points(make()) == (verdict, points)


def test_boundedness_of_norms_follows():
    """A mean of bounded vectors is bounded, and so is what is scaled by it."""
    report = ns.Program(ns.nn.attention(ns.layer_norm(tokens(), 0.1), 1)).check()
    assert [p.verdict for p in report.points if p.name == BOUNDED] == ["proved"]


def test_findings_name_the_value_the_line_and_the_reason():
    report = ns.Program(tied()).check()
    assert any("p1" in f and "test_check.py" in f and "n^(1/2)" in f for f in report.reasons)
    report = ns.Program(undeclared()).check()
    assert any("not known to be bounded (declare bounded=)" in f for f in report.reasons)
    assert any("not known to be (declare lipschitz=)" in f for f in report.reasons)


def test_the_report_reads():
    text = str(attention_layer.net().check())
    assert text.endswith("verdict: proved (Theorem 3.1)")
    assert str(perceptron.net().check()).endswith("verdict: proved (Yang 2019: there are no scores)")
    assert f"verdict: no limit: {TIED}" in str(ns.Program(tied()).check())
    assert f"verdict: conjectured; not shown: {BOUNDED}, {LIPSCHITZ}" in str(ns.Program(undeclared()).check())
