"""The order of coordinates in PyTorch modules: which are turned in pairs, grouped,
repeated, and given numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import netsor as ns

from .literal import outputs
from .orders import ORDERS

IDS = torch.tensor([[3, 7, 7, 1]])


@pytest.mark.parametrize("name", ORDERS)
def test_program_with_the_weights_of_a_module_matches_it(name):
    for real, ours in outputs(ORDERS[name], (IDS,)):
        assert real.shape == ours.shape
        np.testing.assert_allclose(ours, real, rtol=0, atol=1e-6 * np.abs(real).max())


DRAWS = 2000


def _statistics(value):
    """Of an output of a program: numbers that see which coordinates and tokens belong
    together.
    """
    flat = value.reshape(-1)
    if isinstance(value, ns.Vector):
        gains = ns.data(np.linspace(-1.0, 2.0, value.width.factor))
        return [
            *(ns.mean_dot(flat, flat)[k, -1] for k in (0, -1)),
            ns.mean_dot(flat, gains)[0],
        ]
    places = np.linspace(-1.0, 2.0, flat.size)
    return [flat[0], flat[-1], (flat * flat).mean(), (places * flat).mean()]


def _of_arrays(x, coordinates):
    """The same of an array (draws, …); the last axis holds coordinates if their number
    is given.
    """
    if coordinates is None:
        flat = x.reshape(len(x), -1)
        places = np.linspace(-1.0, 2.0, flat.shape[1])
        return [
            flat[:, 0],
            flat[:, -1],
            (flat * flat).mean(-1),
            (places * flat).mean(-1),
        ]
    flat = x.reshape(len(x), -1, coordinates)
    gains = np.linspace(-1.0, 2.0, coordinates)
    return [
        *((flat[:, k] * flat[:, -1]).mean(-1) for k in (0, -1)),
        (flat[:, 0] * gains).mean(-1),
    ]


@pytest.mark.parametrize("name", ORDERS)
def test_module_has_the_law_of_its_own_initialisations(name):
    """All statistics of all modules together have the level 1e-4."""
    net = ns.torch.program(ORDERS[name], IDS)
    ours = ns.Program(
        tuple(each for value in net.outputs for each in _statistics(value))
    )
    ours = ours.draw(draws=DRAWS, seed=1, progress=False)
    torch.manual_seed(1)
    with torch.no_grad():
        found = [ORDERS[name]()(IDS) for _ in range(DRAWS)]
    found = [each if isinstance(each, tuple) else (each,) for each in found]
    real = []
    for k, value in enumerate(net.outputs):
        coordinates = value.width.factor if isinstance(value, ns.Vector) else None
        real += _of_arrays(
            np.stack([each[k].double().numpy() for each in found]), coordinates
        )
    level = 1e-4 / (len(ORDERS) * 16)
    assert (
        min(stats.ks_2samp(a, b).pvalue for a, b in zip(ours, real, strict=True))
        > level
    )
