"""A coordinate check over several steps, with optimisers that remember."""

import json

import pytest

import netsor as ns
from tests.internals import (
    CHANGE,
    Entry,
    Power,
    Sampling,
    SteppedParameter,
    named_parametrisation,
    parametrisation,
    topological_order,
)
from tests.internals import CoordCheckRequest as Request
from tests.internals import TransferRequest as SweepRequest

from ...keep import keep

INPUTS, TARGETS = ns.data([[1.0, 0.0], [0.6, 0.8]]), [1.0, -1.0]


@ns.program
def perceptron(n):
    h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ INPUTS))
    h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - TARGETS) ** 2).mean()


RATES = {
    "sgd": {
        "in": lambda fan_in, out: 0.2 * out,
        "matrix": 0.2,
        "head": lambda fan_in, out: 0.2 * out,
    },
    "adam": {"in": 0.05, "matrix": lambda fan_in, out: 0.05 / fan_in, "head": 0.05},
}


@pytest.mark.parametrize("optimiser", keep(RATES, "adam"))
def test_maximal_updates_stay_flat(optimiser):
    found = [
        ns.coord_check(
            perceptron,
            widths=[32, 128],
            optimiser=optimiser,
            steps=steps,
            lr=RATES[optimiser],
            draws=24,
            progress=False,
        )[0]
        for steps in (1, 2)
    ]
    for check in found:
        assert abs(check["hidden"].exponent.value) < 0.15
        assert abs(check.update("matrix").exponent.value) < 0.25
    one, two = (check.draws[check["loss"].entry][0].mean() for check in found)
    assert two > 1.4 * one  # the loss falls further


def test_one_step_is_that_without_memory():
    with pytest.raises(ValueError, match="steps=0 must be"):
        ns.coord_check(perceptron, widths=[32, 64], steps=0, lr=0.1)


def test_exponents_after_each_step():
    check = ns.coord_check(
        perceptron,
        widths=[32, 128],
        optimiser="adam",
        steps=3,
        lr=RATES["adam"],
        draws=16,
        progress=False,
    )
    steps = check[0].by_step
    assert [[v.entry.step for v in each] for each in steps] == [
        [1, 1],
        [2, 2],
        [None, None],
    ]
    assert steps[-1] == check[0].verdicts
    falls = [check[0].draws[loss.entry][1].mean() for _, loss in steps]
    assert falls[0] < 0.8 * falls[1] < 0.8 * falls[2]
    text = check.table()
    assert text.index("Exponents of changes after each step") < text.index(
        "program, hidden"
    )
    data = json.loads(json.dumps(check.as_dict()))["checks"][0]["by_step"]
    assert [row["step"] for row in data] == [1, 2, 3]
    assert data[-1]["exponents"]["hidden"]["value"] == steps[-1][0].through.value
    rows = {(row["name"], row["what"], row["step"]) for row in check.rows()}
    assert {
        ("loss", "size", 0),
        ("loss", "change", 1),
        ("loss", "change", 3),
        ("matrix", "update", 3),
    } <= rows


def fixed(fan_in, fan_out):
    return 0.1


def falling(fan_in, fan_out):
    return 0.1 * 32 / max(fan_in, fan_out)


@pytest.mark.parametrize(("eps", "flat"), [(fixed, False), (falling, True)])
def test_eps_follows_the_gradient(eps, flat):
    """Entries of a gradient fall like 1/n: eps that does not makes updates fall like
    1/n.
    """
    check = ns.coord_check(
        perceptron,
        widths=[32, 256],
        optimiser="adam",
        eps=eps,
        lr=RATES["adam"],
        draws=24,
        progress=False,
    )[0]
    for name in ("in", "matrix", "head"):
        assert abs(check.update(name).exponent.value - (0.0 if flat else -1.0)) < 0.2


@pytest.mark.slow
def test_maximal_updates_of_a_model_stay_flat_with_any_eps():
    """eps = 1 is far above all gradients: an update is lr·G/eps, and flat if eps falls
    as G does.
    """
    assert named_parametrisation("mup", "adam").scaling("query").eps == Power(-1.0)
    tiny = ns.models.read("gpt2").replace(
        layers=1, width=32, heads=2, hidden=128, vocabulary=16, tied=False
    )
    how = {
        "widths": [32, 512],
        "optimiser": "adam",
        "eps": 1.0,
        "lr": 1e-3,
        "draws": 24,
        "progress": False,
    }
    for given, slope in (
        ("mup", 0.0),
        ({"like": "mup", "matrices": {"eps": {"width": 0.0}}}, -1.0),
    ):
        check = ns.coord_check(tiny, parametrisation=given, **how)[0]
        for name in ("query", "value", "in", "out"):
            assert abs(check.update(name).exponent.value - slope) < 0.25, name
        for name in ("embedding", "position", "head"):
            assert abs(check.update(name).exponent.value) < 0.25, name


def test_eps_is_for_adam():
    with pytest.raises(ValueError, match=r"eps=0\.1 must be 0 for sgd: it is for Adam"):
        ns.coord_check(perceptron, widths=[32, 64], lr=0.1, eps=0.1)
    with pytest.raises(ValueError, match="eps=-1"):
        ns.coord_check(perceptron, widths=[32, 64], lr=0.1, eps=-1)


def tiny():
    return ns.models.read("gpt2").replace(
        layers=1, width=8, heads=2, hidden=32, vocabulary=5
    )


def moved_vectors(program):
    values = topological_order(program.outputs)
    return {
        value.op.rule.name for value in values if isinstance(value.op, SteppedParameter)
    }


@pytest.mark.parametrize(
    "optimiser", ["sgd", pytest.param("adam", marks=pytest.mark.slow)]
)
def test_biases_and_gains_move_if_asked_for(optimiser):
    rule = parametrisation("mup", optimiser)
    for vectors, moved in (
        ((), set()),
        (("gain",), {"gain"}),
        (["gain", "bias"], {"bias", "gain"}),
    ):
        request = Request(
            tiny(), (rule,), [8, 64], optimiser=optimiser, tokens=2, vectors=vectors
        )
        assert moved_vectors(request.cases(rule)[0].program) == moved
        swept = SweepRequest(
            tiny(), (rule,), [8, 64], 2, optimiser=optimiser, tokens=2, vectors=vectors
        )
        assert moved_vectors(swept.cases(rule)[0].program) == moved
    how = Sampling(64, 0, progress=False)
    changes = []
    for some in ((), ("bias", "gain")):
        case = Request(
            tiny(), (rule,), [8, 64], optimiser=optimiser, tokens=2, vectors=some
        ).cases(rule)[0]
        (drawn,) = case.program._at(case.widths).draw(how)
        changes.append(drawn[:, case.entries.index(Entry(CHANGE, "final"))].mean())
    assert changes[1] > 1.2 * changes[0]


def test_vectors_are_refused_where_nothing_is_known_of_them():
    for given, words in (
        ("bias", "a sequence of 'bias' and 'gain'"),
        (["weight"], "a sequence of"),
    ):
        with pytest.raises(ValueError, match=words):
            ns.coord_check(tiny(), vectors=given)
    with pytest.raises(
        ValueError, match=r"vectors=.*left out: Muon moves matrices alone"
    ):
        ns.transfer(tiny(), optimiser="muon", vectors=["gain"])
    with pytest.raises(ValueError, match=r"optimiser=.*must be 'sgd'"):
        ns.transfer(
            tiny(), parametrisation=[], optimiser=ns.optim.SGD(0.1), vectors=["gain"]
        )
    with pytest.raises(
        ValueError, match=r"vectors=.*left out: a program names what moves"
    ):
        ns.coord_check(perceptron, widths=[32, 64], lr=0.1, vectors=["gain"])
