"""Exponents of SP, NTK and µP by gradient descent, as the Tensor Programs papers have
them; limits where they are.

Intervals have level 1e-4. That they could fail is seen where the same exponents are
held to another promise.
"""

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    CHANGE,
    GROWS,
    KEPT,
    SHRINKS,
    UPDATE,
    CoordCheck,
    Entry,
    _process_pool,
    judged,
    size_table,
)

from ...inline import Inline
from ...keep import keep
from .nets import CONFIG, RATES, THEORY


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)


@cache
def perceptron(name):
    net, lr = RATES[name]
    promise = {"features": THEORY[name][2], "logits": THEORY[name]["head"]}
    return ns.coord_check(
        net,
        widths=[64, 512, ns.inf],
        lr=lr,
        draws=160,
        tolerance=0.15,
        progress=False,
        promise=promise,
    )[0]


@pytest.mark.parametrize("name", keep(["sp", "ntk", "mup"], "mup"))
def test_perceptron_exponents_match_theory(name):
    check = perceptron(name)
    # the first layer of SP shrinks
    assert check["hidden"].verdict in (KEPT, SHRINKS if name == "sp" else KEPT)
    for key, exponent in THEORY[name].items():
        entry = (
            Entry(CHANGE, "hidden", key) if isinstance(key, int) else Entry(UPDATE, key)
        )
        found = check.fits[entry]
        assert judged(found, exponent, 0.15) == KEPT, (entry, found)
        assert judged(found, exponent - 1.0, 0.15) == GROWS
        assert judged(found, exponent + 1.0, 0.15) == SHRINKS
    second = Entry(CHANGE, "hidden", 2)
    assert check.limit is not None
    if name == "mup":  # what finite widths come to
        assert check.limit[second].mean() == pytest.approx(
            check.draws[second][-1].mean(), rel=0.05
        )
        assert not check.refused
    elif name == "ntk":  # features stand still
        assert not check.limit[second].any()
    else:
        assert "n^(0.5), which has no limit" in check.refused[second]
        assert second not in check.limit


def test_check_is_a_mapping_of_activations():
    check = perceptron("mup")
    assert list(check) == [verdict.entry.name for verdict in check.verdicts]
    assert len(check) == len(dict(check)) == len(check.verdicts)
    assert ("hidden" in check, "nothing" in check, 0 in check) == (True, False, False)
    assert check == check
    with pytest.raises(KeyError, match="0 is not measured; "):
        check[0]


def test_advice_of_a_perceptron():
    net, lr = RATES["sp"]
    check = ns.coord_check(net, widths=[64, 1024], lr=lr, draws=120, progress=False)[0]
    said = " ".join(check.advice)
    assert "of matrix by 1/√n" in said
    assert "of head by 1/n" in said
    assert not check.kept
    assert {"update of matrix", "update of head"} < set(check.broken)
    text = CoordCheck(check.request, [check], 0, 0.0).table()
    assert text.splitlines()[0].startswith(
        "sum_head. program: 5 of 5 exponents flagged"
    )
    check = perceptron("mup")
    assert check.kept
    assert check.advice == []
    assert {v.verdict for v in (*check.verdicts, *check.updates)} == {KEPT}
    net, lr = RATES["ntk"]  # held to maximal updates, which it does not promise
    assert (
        ns.coord_check(net, widths=[64, 1024], lr=lr, draws=64, progress=False)[0][
            "hidden"
        ].verdict
        == SHRINKS
    )


@pytest.mark.parametrize(
    ("optimiser", "theory"),
    [
        ("muon", {"in": -0.5, "matrix": 0.0, "head": 0.5}),
        ("adam", {"in": 0.0, "matrix": 1.0, "head": 1.0}),
    ],
)
def test_update_exponents_of_muon_and_adam_match_theory(optimiser, theory):
    """With one learning rate: a polar factor has norm 1, and signs are of size 1 at
    every width.
    """
    net, _ = RATES["sp"]
    check = ns.coord_check(
        net, widths=[32, 256], lr=0.01, optimiser=optimiser, draws=40, progress=False
    )[0]
    for kind, exponent in theory.items():
        assert judged(check.fits[check.update(kind).entry], exponent, 0.15) == KEPT, (
            check.update(kind)
        )


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["muon", "adam"])
def test_transformers_by_other_optimisers(optimiser):
    found = ns.coord_check(
        CONFIG, widths=[64, 512], optimiser=optimiser, draws=16, progress=False
    )
    vectors, matrices, head = {"muon": (-0.5, 0.0, 0.5), "adam": (0.0, 1.0, 1.0)}[
        optimiser
    ]
    theory = {"embedding": vectors, "head": head} | dict.fromkeys(
        ("query", "value", "output", "in", "out"), matrices
    )
    for kind, exponent in theory.items():
        for check, promised in ((found["sp"], exponent), (found["mup"], 0.0)):
            verdict = check.update(kind)
            assert judged(check.fits[verdict.entry], promised, 0.2) == KEPT, verdict
    assert found["mup"].kept
    assert not found["sp"].kept


@pytest.mark.slow
def test_small_transformer_breaks_sp_and_keeps_mup():
    found = ns.coord_check(
        CONFIG, widths=[64, 1024], draws=32, tokens=2, progress=False
    )
    sp, mup = found
    assert [check.name for check in found] == ["sp", "mup"]
    # tied embeddings of fixed size: ∂L/∂y does not shrink with n
    for kind in ("value", "in", "out", "head"):
        assert judged(sp.fits[sp.update(kind).entry], 1.0, 0.15) == KEPT, sp.update(
            kind
        )
        assert judged(mup.fits[mup.update(kind).entry], 0.0, 0.15) == KEPT, mup.update(
            kind
        )
    assert sp["stream"].verdict == sp["logits"].verdict == GROWS
    assert mup["stream"].verdict == mup["logits"].verdict == KEPT
    assert mup.kept
    assert not sp.kept
    assert found["sp"] is sp
    with pytest.raises(KeyError, match="is not measured; embedding, position"):
        sp.update("heads")
    with pytest.raises(KeyError, match="was not requested; sp, mup were"):
        found["ntk"]
    shown = found._repr_html_()
    assert "update of" in shown
    assert "Scale the learning rates of " in shown
    assert (
        json.loads(json.dumps(found.as_dict(), allow_nan=False))["checks"][1]["advice"]
        == []
    )


@pytest.mark.parametrize("optimiser", keep(["adam", "muon"], "adam"))
def test_ntk_exponents_hold_for_every_optimiser(optimiser):
    """Features move like n^(−1/2) and outputs stay of order 1, whatever the
    optimiser.
    """
    how = {
        "widths": [32, 128],
        "optimiser": optimiser,
        "draws": 24,
        "tokens": 2,
        "progress": False,
    }
    check = ns.coord_check(CONFIG, parametrisation="ntk", **how)[0]
    for name, exponent in {"embedding": -0.5, "stream": -0.5, "logits": 0.0}.items():
        assert judged(check.fits[check[name].entry], exponent, 0.2) == KEPT, check[name]
    for name, exponent in {
        "embedding": -0.5,
        "value": -0.5,
        "in": -0.5,
        "head": 0.0,
    }.items():
        assert judged(check.fits[check.update(name).entry], exponent, 0.2) == KEPT, (
            check.update(name)
        )


@pytest.mark.slow
def test_adam_with_one_rate_for_the_tangent_parameters_grows():
    """n^(−1/2) for entries is a constant rate for entries over their standard
    deviation: updates grow like √n.
    """
    one = {"like": "ntk", "matrices": {"lr": {"width": -0.5}}}
    check = ns.coord_check(
        CONFIG,
        widths=[32, 128],
        parametrisation=one,
        optimiser="adam",
        draws=8,
        tokens=2,
        progress=False,
    )[0]
    assert judged(check.fits[check.update("in").entry], 0.5, 0.2) == KEPT
    assert check.update("in").verdict == GROWS


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["sp", "ntk", "mup"])
def test_transformer_update_exponents_match_theory(name, tied):
    """Exponents of updates: matrices have that of ∂L/∂y, n^(−1/2) by an untied head of
    SP, a constant by a tied one.
    """
    config = {**CONFIG, "tie_word_embeddings": tied}
    check = ns.coord_check(
        config, widths=[128, 512, 2048], parametrisation=name, draws=32, progress=False
    )[0]
    vectors, matrices, head = {
        ("sp", True): (0.0, 1.0, 1.0),
        ("sp", False): (-0.5, 0.5, 1.0),
        ("ntk", True): (-0.5, -0.5, 0.0),
        ("ntk", False): (-0.5, -0.5, 0.0),
        ("mup", True): (0.0, 0.0, 0.0),
        ("mup", False): (0.0, 0.0, 0.0),
    }[name, tied]
    theory = {"embedding": vectors, "position": vectors, "head": head}
    theory |= dict.fromkeys(("value", "output", "in", "out"), matrices)
    for kind, exponent in theory.items():
        assert judged(check.fits[check.update(kind).entry], exponent, 0.15) == KEPT, (
            kind,
            check.update(kind),
        )


@pytest.mark.slow
def test_check_against_depth_has_depth_axis():
    found = ns.coord_check(
        CONFIG,
        depths=[1, 2, 3],
        draws=4,
        tokens=1,
        parametrisation="mup",
        progress=False,
    )
    check = found[0]
    assert found.request.axis == "depth"
    assert {entry.block for entry in check.draws if entry.name == "stream"} == {1, 2, 3}
    last = check.draws[Entry(CHANGE, "stream", 3)]
    assert [len(draws) for draws in last] == [4, 4, 4]
    # of one block, the first is the last
    assert np.array_equal(last[0], check.draws[Entry(CHANGE, "stream", 1)][0])
    assert re.search(
        r"^stream, (first|middle|last)", found.table(verbose=True), re.MULTILINE
    )


def test_limit_has_its_quadrature_error():
    """At infinite width √E[tanh(g)²], g ~ N(0, 1/2), is within the quadrature error of
    ours; the first loss is 1.
    """
    check = perceptron("mup")
    points, weights = np.polynomial.hermite_e.hermegauss(120)
    exact = np.sqrt(np.tanh(np.sqrt(0.5) * points) ** 2 @ weights / weights.sum())
    value, low, high = check.limit_size(Entry("size", "hidden", 1))
    assert low < exact < high < low + 1e-3
    assert abs(value - exact) > 1e-6
    # the first output is 0 by structure
    assert check.limit_size(Entry("size", "loss")) == (1, 1, 1)
    rows = {
        (row["what"], row["name"], row["block"]): row
        for row in check.rows()
        if np.isinf(row["width"])
    }
    assert (rows["size", "hidden", 1]["low"], rows["size", "hidden", 1]["high"]) == (
        low,
        high,
    )
    entry = check["hidden"].entry
    written = [
        row
        for row in check.as_dict()["limit"]
        if (row["what"], row["name"], row["block"]) == entry[:3]
    ]
    assert [(row["value"], row["low"], row["high"]) for row in written] == [
        check.limit_size(entry)
    ]
    table = size_table(check, check.verdicts, "change of")
    assert table.head[3] == "∞"
    assert all(" ± 0.0" in row[3] for row in table.rows)
    wide = float(np.mean(check.draws[entry][-1]))
    assert check.limit_size(entry)[1] < wide * 1.01
    assert check.limit_size(entry)[2] > wide * 0.99
    with pytest.raises(KeyError, match="no limit"):
        check.limit_size(Entry("size", "nothing"))


@pytest.mark.slow
def test_limit_that_may_be_0_is_shown_as_a_bound():
    """With scores of 1/n, queries and keys do not move at infinite width; a quadrature
    error makes that a bound.
    """

    @ns.program
    def attention(n):
        x = ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.0], [0.6, 0.8]])
        q, k, v = (ns.weight(n, n, name=name) @ x for name in "qkv")
        scores = ns.probe("scores", ns.mean_dot(q, k))
        h = ns.probe("hidden", ns.tanh(ns.softmax(scores) @ v))
        f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
        return ((f - [1.0, 0.5]) ** 2).mean()

    wide = dict.fromkeys(("in", "head"), lambda fan_in, out: out)
    rates = wide | dict.fromkeys("qkv", 1.0)
    check = ns.coord_check(
        attention, widths=[8, 16, ns.inf], lr=rates, draws=4, progress=False
    )[0]
    q = Entry(UPDATE, "q")
    # the engine knows that the expectation is 0
    assert check.limit_size(q) == (0, 0, 0)

    def shown(check):
        return next(
            row[3]
            for row in size_table(check, check.updates, "update of").rows
            if row[0] == "q"
        )

    assert shown(check) == "0"
    errors = {**check.errors, q: 1e-8}  # of the mean square, which is 1e-10
    check = replace(check, limit={**check.limit, q: np.full(4, 1e-5)}, errors=errors)
    value, low, high = check.limit_size(q)
    assert (value, low, high) == pytest.approx((1e-5, 0, (1e-10 + 1e-8) ** 0.5))
    assert shown(check) == "≤ 0.0001"
    text = CoordCheck(check.request, [check], 0, 0.0).table(verbose=True)
    assert "≤ means that it may be 0" in " ".join(text.split())
    assert "as expected if its interval of level 1e-4 lies within 0.1" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 80
