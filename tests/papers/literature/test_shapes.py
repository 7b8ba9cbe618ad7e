"""Residual networks of all shapes: the limit against a network, and verdicts."""

import numpy as np
import pytest

from tests.internals import AGREES, DISAGREES
from tests.internals import _shapes as study


def test_limit_of_small_displacements_is_that_of_linear_blocks():
    """Where tanh is linear, so is the limit: the same drift for small inputs."""
    assert study.displacement("identity", 7, 0.5) == pytest.approx(study.RATE)
    # E[tanh(z)²] + E[(1 − tanh²)²] for equal inputs and a step of size 0, by hand
    rng = np.random.default_rng(0)
    z, xi = rng.standard_normal((2, 1_000_000))
    slope = 1 - np.tanh(z) ** 2
    p = z + study.RATE * xi * slope
    expected = study.RATE * np.mean(np.tanh(z) * np.tanh(p) + slope / np.cosh(p) ** 2)
    assert study.drift("tanh", 0.0, 1.0) == pytest.approx(expected, rel=4e-3)


def test_errors_fall_with_the_dimension_of_a_drawn_network():
    """The distance from the limit, for tanh against NumPy's own gradients."""
    rng = np.random.default_rng(1)
    depth, dimension, hidden = 2, 40, 4000
    squares = []
    for _ in range(12):
        x, y, w = rng.standard_normal((3, dimension))
        inputs = np.stack([x, 0.5 * x + np.sqrt(0.75) * y])
        u = rng.standard_normal((depth, hidden, dimension)) / np.sqrt(dimension)
        v = rng.standard_normal((depth, dimension, hidden)) / np.sqrt(hidden)
        scale = np.sqrt(dimension / hidden) / depth
        states = [inputs[0]]
        for layer in range(depth):
            states.append(
                states[-1] + scale * v[layer] @ np.tanh(u[layer] @ states[-1])
            )
        delta = (w @ states[-1] / dimension - 1) * w / dimension
        updates = []
        for layer in reversed(range(depth)):
            active = np.tanh(u[layer] @ states[layer])
            inner = scale * (v[layer].T @ delta) * (1 - active**2)
            updates.append(
                (np.outer(inner, states[layer]), scale * np.outer(delta, active))
            )
            delta = delta + u[layer].T @ inner
        for layer, (of_u, of_v) in zip(reversed(range(depth)), updates, strict=True):
            u[layer] -= study.RATE * depth * hidden / dimension * of_u
            v[layer] -= study.RATE * depth * of_v
        for start, cosine in zip(inputs, study.COSINES, strict=True):
            h = start
            for layer in range(depth):
                h = h + scale * v[layer] @ np.tanh(u[layer] @ h)
            limit = start + study.displacement("tanh", depth, cosine) * w
            squares.append(np.mean((h - limit) ** 2))
    ours = study.errors((depth, dimension, hidden), "tanh", draws=100, seed=0)["square"]
    spread = np.std(squares) / np.sqrt(12) + ours.std() / 10
    assert abs(np.mean(squares) - ours.mean()) < 4 * spread


def planted(powers=(), depth=-1.0):
    """Errors that fall like these powers of what varies, by sweep, with noise."""
    noise = 1 + 1e-3 * np.array([-1.0, 1.0] * 5)
    made = {}
    for sweep, (_, shapes) in study.SWEEPS.items():
        power = dict(powers).get(sweep, -0.5)
        for shape, size in zip(shapes, study._sizes(sweep), strict=True):
            made[f"{sweep} {shape}"] = {"square": float(size) ** (2 * power) * noise}
    distances = np.array(study.DEPTHS, dtype=float) ** depth
    made["1/L, tanh"] = {"distance": distances}
    made["1/L, identity"] = {"distance": np.zeros(len(distances))}
    return made


def verdicts(**changed):
    return [claim.verdict for claim in study.judge(planted(**changed))]


def test_verdicts_can_agree_and_disagree():
    assert verdicts() == [AGREES] * 5
    slower = verdicts(powers={"D, tanh": -0.25})
    assert slower == [DISAGREES, DISAGREES, AGREES, AGREES, AGREES]
    faster = verdicts(powers={"L, identity": -1.0})
    assert faster == [AGREES, AGREES, AGREES, DISAGREES, AGREES]
    assert verdicts(depth=-0.5)[4] == DISAGREES


def test_table_rows_have_equal_columns():
    rows = list(study.rows(planted()))
    assert len({tuple(row) for row in rows}) == 1
    shapes = sum(len(shapes) for _, shapes in study.SWEEPS.values())
    assert len(rows) == shapes + len(study.DEPTHS)
