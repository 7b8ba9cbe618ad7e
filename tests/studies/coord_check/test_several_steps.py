"""A coordinate check over several steps, with optimisers that remember."""

import pytest

import netsor as ns

INPUTS, TARGETS = ns.data([[1.0, 0.0], [0.6, 0.8]]), [1.0, -1.0]


@ns.program
def perceptron(n):
    h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ INPUTS))
    h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - TARGETS) ** 2).mean()


RATES = {
    "sgd": {"in": lambda fan_in, out: 0.2 * out, "matrix": 0.2, "head": lambda fan_in, out: 0.2 * out},
    "adam": {"in": 0.05, "matrix": lambda fan_in, out: 0.05 / fan_in, "head": 0.05},
}


@pytest.mark.parametrize("optimiser", RATES)
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
