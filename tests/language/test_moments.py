"""The signs of moments that the checker tells, against a sample."""

import numpy as np
import pytest

import netsor as ns
from netsor.language._check import _Facts
from netsor.language._moment import sign as moment_sign

n = ns.Width("n")

PHI = {
    "identity": ns.identity,
    "relu": ns.relu,
    "leaky": lambda u: ns.leaky_relu(u, 0.3),
    "steep": lambda u: ns.leaky_relu(u, 2.0),
    "abs": ns.abs,
    "clip": lambda u: ns.clip(u, 0.7),
    "tanh": ns.tanh,
    "sigmoid": ns.sigmoid,
    "gelu": ns.gelu,
    "silu": ns.silu,
    "sin": ns.sin,
    "cos": ns.cos,
    "product": lambda u: u * ns.tanh(u),
    "shifted": lambda u: u - 0.5,
    "twice": lambda u: ns.relu(ns.tanh(u)),
    "user": lambda u: ns.nonlin(lambda a: np.exp(-a * a), u),
}


@pytest.mark.parametrize("correlation", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_signs_of_moments(correlation):
    """Each sign that is told, against the mean over 200,000 coordinates."""
    h = ns.gaussian(n, 2, cov=[[1, correlation], [correlation, 1]])
    made = [phi(h[k]) for k in range(2) for phi in PHI.values()]
    facts = _Facts(made)
    values = np.stack(ns.Program(tuple(made)).simulate(n=200_000, draws=1, seed=1))
    values = values.reshape(len(made), -1)
    count = values.shape[1]
    means, squares = (v @ v.T / count for v in (values, values**2))
    errors = 5.5 * np.sqrt(np.maximum(squares - means**2, 0.0) / count) + 1e-12  # level 4e-8 each, 1,024 of them
    told = 0
    for i, x in enumerate(made):
        for j, y in enumerate(made):
            sign = moment_sign(facts.moments.of((x, 0), (y, 0)))
            if sign == "0":
                assert abs(means[i, j]) < errors[i, j]
            elif sign != "?":
                assert means[i, j] * (1 if sign == "+" else -1) > -errors[i, j]
            told += sign != "?"
    assert told > 200  # of 1,024: else nothing was tested
