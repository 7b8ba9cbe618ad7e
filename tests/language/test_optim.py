"""The arguments of optimisers, and which optimiser moves which parameter."""

import re

import numpy as np
import pytest

import netsor as ns
from tests.internals import SteppedMatMul, SteppedParameter, topological_order

n = ns.Width("n")


def network():
    w, v, b = ns.weight(n, 3, name="in"), ns.weight(n, n), ns.gaussian(n, name="bias")
    loss = ns.mean_dot(
        *2 * [ns.tanh(v @ ns.tanh(w @ ns.data(np.eye(3))) + b)[:, None]]
    ).mean()
    return loss, [w, v, b]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ns.optim.SGD("fast"), "SGD: lr='fast' must be a finite number"),
        (lambda: ns.optim.SGD(0.1, momentum=-1), "momentum=-1 must be"),
        (
            lambda: ns.optim.SGD(0.1, nesterov=True),
            "nesterov=True must be False without momentum",
        ),
        (
            lambda: ns.optim.Adam(0.1, betas=(0.9, 1.0)),
            r"betas=\(0.9, 1.0\) must be two numbers",
        ),
        (
            lambda: ns.optim.AdamW(0.1, weight_decay=-1),
            "AdamW: weight_decay=-1 must be",
        ),
        (
            lambda: ns.optim.Lion(betas=0.9),
            "Lion: betas=0.9 must be two numbers from 0 up to",
        ),
        (lambda: ns.optim.Adam(0.1, eps=-1.0), "eps=-1.0 must be"),
        (lambda: ns.optim.Muon(0.1, ns_steps=0), "ns_steps=0 must be"),
        (
            lambda: ns.optim.Muon(0.1, ns_coefficients=(1.0, 2.0)),
            r"ns_coefficients=\(1.0, 2.0\) with ns_steps=5",
        ),
        (
            lambda: ns.optim.Muon(0.1, adjust_lr_fn="spectral"),
            "adjust_lr_fn='spectral' must be 'original'",
        ),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises(ns.TraceError) as caught:
        call()
    assert re.search(words, caught.value.plain)


def test_positions_of_arguments_are_those_of_pytorch():
    sgd, adam, muon = (
        ns.optim.SGD(1, 2, 0.3, 4),
        ns.optim.AdamW(1, (0.1, 0.2), 3, 4),
        ns.optim.Muon(1, 2, 3, False),
    )
    assert (sgd.lr, sgd.momentum, sgd.dampening, sgd.weight_decay) == (1, 2, 0.3, 4)
    assert (adam.lr, adam.betas, adam.eps, adam.weight_decay) == (1, (0.1, 0.2), 3, 4)
    assert (muon.lr, muon.weight_decay, muon.momentum, muon.nesterov) == (
        1,
        2,
        3,
        False,
    )


def moved_by(loss, weights, optimiser):
    """For each parameter by name, the optimiser of its last step."""
    found = {}
    for value in topological_order(
        [ns.step(loss, loss, optimiser=optimiser, weights=weights)]
    ):
        match value.op:
            case SteppedMatMul(steps=(*_, rule)) | SteppedParameter(rule=rule):
                found[rule.name] = rule.optimiser
    return found


def test_parameter_groups_set_their_own_options():
    loss, weights = network()
    muon, adam, sgd = ns.optim.Muon(), ns.optim.AdamW(), ns.optim.SGD()
    nameless = "a parameter without a name"
    assert moved_by(loss, weights, {"matrices": muon, None: adam}) == {
        "in": muon,
        nameless: muon,
        "bias": adam,
    }
    assert moved_by(loss, weights, {"in": sgd, "matrices": muon, "bias": adam}) == {
        "in": sgd,
        nameless: muon,
        "bias": adam,
    }
    assert moved_by(loss, weights, {weights[1]: sgd, None: adam}) == {
        "in": adam,
        nameless: sgd,
        "bias": adam,
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"optimiser": ns.optim.Muon()},
            r"is not a matrix, and Muon updates only matrices: give optimiser=",
        ),
        (
            {"optimiser": {"matrices": ns.optim.Muon()}},
            "optimiser has no entry for bias",
        ),
        (
            {"optimiser": {"bais": ns.optim.SGD(), None: ns.optim.SGD()}},
            "optimiser has the key 'bais'",
        ),
        ({"optimiser": {None: 0.1}}, "optimiser=0.1 must be an object of ns.optim"),
        (
            {"optimiser": ns.optim.SGD(), "lr": 0.1},
            "lr=0.1 is for an optimiser by name",
        ),
        (
            {"optimiser": ns.optim.SGD(), "eps": 0.1},
            "eps=0.1 is for an optimiser by name",
        ),
        ({"lr": 0.1, "clip_norm": 0.0}, "clip_norm=0.0 must be"),
        ({"lr": ns.normal(2)}, "must be a single scalar"),
    ],
)
def test_wrong_groups(options, words):
    loss, weights = network()
    with pytest.raises(ns.TraceError, match=words):
        ns.step(loss, loss, weights=weights, **options)


def test_names_of_hyperparameters():
    with pytest.raises(
        ns.TraceError,
        match="hyperparameter: name='draws' must be a Python identifier other than",
    ):
        ns.hyperparameter("draws")
    with pytest.raises(ns.TraceError, match="name=3 must be a Python identifier"):
        ns.hyperparameter(3)


def test_training_returns_every_step_in_its_structure():
    loss, weights = network()
    made = ns.train((loss, weights[2]), [loss, 2 * loss], ns.optim.SGD(0.1), 3, weights)
    assert [type(each) for each in made] == [tuple] * 4
    assert made[0][0] is loss
    with pytest.raises(ns.TraceError, match="steps=0 must be"):
        ns.train(loss, loss, ns.optim.SGD(), 0)
