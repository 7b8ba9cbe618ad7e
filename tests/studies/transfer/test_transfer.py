"""The best learning rate at each width: found in the right place, with an interval, and judged by the stated rule."""

import math

import numpy as np
import pytest

import netsor as ns
from netsor.studies.transfer import Sweep

X, T = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -1.0])
LR = 2.0 ** np.arange(-4, 5)


def sweep(power, noise=0.01, draws=16):
    """Losses whose best learning rate is n^power."""
    rng = np.random.default_rng(0)
    return Sweep(
        "mine",
        LR,
        {
            n: np.exp(np.log(LR / n**power)[:, None] ** 2 + noise * rng.standard_normal((len(LR), draws)))
            for n in (1, 2, 8)
        },
        {},
    )


@pytest.mark.parametrize("power", [0.0, -1.0, 0.5])
def test_the_best_rate_and_its_exponent(power):
    found = sweep(power)
    for n in found.widths:
        best = found.best(n)
        assert best.low < n**power < best.high
        assert best.lr == pytest.approx(n**power, rel=0.03)
    value, low, high = found.exponent
    assert low < power < high
    assert value == pytest.approx(power, abs=0.02)
    assert found.verdict == ("transfers" if power == 0 else f"shifts like n^{power:.1f}")


def test_noise_leaves_it_undecided_and_an_edge_is_told():
    assert sweep(0.0, noise=8.0, draws=4).verdict == "undecided"
    edge = Sweep("mine", LR, {1: np.linspace(1, 2, 9)[:, None] + np.zeros(8), 2: sweep(0).losses[1]}, {})
    assert edge.best(1).low == 0.0
    assert edge.verdict == "not within the grid"


def mlp(read):
    @ns.program
    def network(n):
        r = ns.gaussian(n, name="out")
        h = ns.relu(ns.weight(n, n, name="hidden") @ ns.relu(ns.weight(n, 2, name="in") @ ns.data(X)))
        return ((read(r, h) - T) ** 2).mean()

    return network


def test_a_perceptron_in_the_standard_parametrisation_shifts():
    found = ns.transfer(
        mlp(ns.dot), widths=[32, 128, 512], steps=2, lr=2.0 ** np.arange(-10, 2), optimiser=ns.optim.SGD(1.0), draws=12
    )
    value, low, high = found[0].exponent
    assert found[0].verdict.startswith("shifts like n^-")
    assert low < value < high < -0.5
    assert len(found.plot().axes) == 1
    assert found.as_dict()["sweeps"][0]["widths"][0]["width"] == 32
    assert "shifts" in str(found)


def test_a_diverging_loss_is_no_error():
    found = ns.transfer(
        mlp(ns.dot), widths=[8, 16], steps=3, lr=[1e-3, 0.1, 1e120], optimiser=ns.optim.SGD(1.0), draws=4
    )
    assert found[0].loss(8)[-1] > 1e200


@pytest.mark.slow
def test_maximal_updates_transfer_to_infinite_width():
    by = {"hidden": ns.optim.SGD(1.0), "in": ns.optim.SGD(lambda fan_in, fan_out: fan_out)}
    found = ns.transfer(
        mlp(ns.mean_dot), widths=[256, 1024, math.inf], steps=2, lr=2.0 ** np.arange(-3, 5), optimiser=by, draws=16
    )
    assert not found[0].refused
    assert found[0].best(256).low < found[0].best(math.inf).lr < found[0].best(256).high


@pytest.mark.slow
def test_a_model():
    tiny = ns.models.read("gpt2").replace(layers=1, width=16, heads=2, hidden=32, vocabulary=7)
    found = ns.transfer(tiny, widths=[16, 32], steps=2, optimiser="adam", draws=4)
    assert [each.name for each in found] == ["sp", "mup"]
    assert found["mup"].losses[32].shape == (13, 4)
    assert (found["mup"].loss(32) > 0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": [64]}, "widths=.64. must be two or more that are finite"),
        ({"widths": [8, 16], "lr": [0.1]}, "three or more positive numbers"),
        ({"widths": [8, 16], "optimiser": "lion"}, "optimiser='lion' must be one of"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        ns.transfer(mlp(ns.dot), **{"optimiser": ns.optim.SGD(), **options})
