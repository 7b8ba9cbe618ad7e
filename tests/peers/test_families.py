"""The law of every family against real initialisations by the code of its authors.

Two samples, Kolmogorov–Smirnov, level 1e-4 for each quantity; seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from netsor import models

from ..models.small import CONFIGS, IDS, NAMES, program
from .real import configuration, draws, loads

LEVEL = 1e-4
REAL = 1000
OURS = 20_000


@pytest.mark.parametrize("family", CONFIGS)
def test_family_has_the_law_of_its_real_initialisation(family):
    model = models.read(CONFIGS[family])
    assert model.status(**model.widths()) == "exact"
    real = draws(CONFIGS[family], model, REAL)
    ours = np.stack(
        program(model).draw(draws=OURS, progress=False, **model.widths()), axis=1
    )
    # a mean square after a norm is 1 up to eps; single precision rounds it
    fixed = ours.std(axis=0) < 1e-4
    np.testing.assert_allclose(real[:, fixed], ours[:REAL, fixed], rtol=1e-4)
    found = {
        name: stats.ks_2samp(real[:, i], ours[:, i]).pvalue
        for i, name in enumerate(NAMES)
        if not fixed[i]
    }
    print(family, {name: round(float(p), 3) for name, p in found.items()})
    assert len(found) >= 5
    assert min(found.values()) > LEVEL, found


@pytest.mark.parametrize("family", CONFIGS)
def test_config_object_is_read_like_its_file(family):
    assert models.read(configuration(CONFIGS[family])).replace(
        name=family
    ) == models.read(CONFIGS[family]).replace(name=family)


def test_loads_of_experts_match_real_routers():
    given = CONFIGS["mixtral"]
    model = models.read(given)
    real = loads(given, REAL)
    found = model.probes(IDS).measure(OURS, progress=False)
    even = len(IDS) * model.experts_per_token / model.experts
    for k, name in enumerate(("largest_load", "least_load")):
        for block in range(model.layers):
            ours = np.round(found[name][:, block] * even)
            values = range(len(IDS) + 1)
            table = [
                [np.sum(each == v) for v in values]
                for each in (real[:, block, k], ours)
            ]
            kept = np.array(table)[:, np.sum(table, axis=0) > 0]
            assert stats.chi2_contingency(kept).pvalue > LEVEL, (name, block)
            assert kept.shape[1] > 1


def test_nanogpt_is_gpt2_with_the_exact_gelu():
    given = {
        **CONFIGS["gpt2"],
        "activation_function": "gelu",
        "initializer_range": 0.02,
    }
    own = {
        "n_layer": 3,
        "n_head": 2,
        "n_embd": 32,
        "block_size": 16,
        "vocab_size": 31,
        "bias": False,
        "dropout": 0.1,
    }
    assert models.nanogpt(own).replace(name="x", family="gpt2") == models.read(
        configuration(given)
    ).replace(name="x")
