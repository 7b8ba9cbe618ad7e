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
    """Numbers that see which coordinates and tokens of an output belong together."""
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
    """`_statistics` of an array (draws, …).

    The last axis holds coordinates if their number is given.
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
    statistics = [entry for value in net.outputs for entry in _statistics(value)]
    ours = ns.Program(tuple(statistics)).draw(draws=DRAWS, seed=1, progress=False)
    torch.manual_seed(1)
    with torch.no_grad():
        returned = [ORDERS[name]()(IDS) for _ in range(DRAWS)]
    samples = [x if isinstance(x, tuple) else (x,) for x in returned]
    real = []
    for k, value in enumerate(net.outputs):
        coordinates = value.width.factor if isinstance(value, ns.Vector) else None
        outputs_k = np.stack([sample[k].double().numpy() for sample in samples])
        real += _of_arrays(outputs_k, coordinates)
    level = 1e-4 / (len(ORDERS) * 16)
    assert (
        min(stats.ks_2samp(a, b).pvalue for a, b in zip(ours, real, strict=True))
        > level
    )
