"""PyTorch's encoder, whose weights are uniform: the same limit, and at small width
another law.

Two samples, Kolmogorov–Smirnov, level 1e-4 for each quantity; seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from torch import nn

import netsor as ns
from netsor import models

from ..models.small import IDS
from .real import encoder

LEVEL = 1e-4


def added(model: models.Transformer, draws: int) -> np.ndarray:
    traced = model.trace(IDS)
    y = traced.output - traced.embedded
    gram = ns.mean_dot(y, y)
    net = ns.Program((y[4], gram[4, 4], gram[4, 1]))
    return np.stack(net.draw(draws=draws, progress=False, **model.widths()), axis=1)


def layer(width: int, heads: int, norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, heads, width, batch_first=True, norm_first=norm_first
    )


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layers_that_are_copies_share_their_draw(norm_first):
    width, heads, count = 48, 4, 3
    model = models.pytorch_encoder(
        width, heads, width, num_layers=count, norm_first=norm_first
    )
    assert model.status(**model.widths()) == "same limit"
    real = encoder(
        lambda: nn.TransformerEncoder(
            layer(width, heads, norm_first), count, enable_nested_tensor=False
        ),
        width,
        1000,
    )
    ours, apart = (added(m, 10_000) for m in (model, model.replace(shared=False)))
    found = [stats.ks_2samp(real[:, i], ours[:, i]).pvalue for i in range(3)]
    print("copies", norm_first, [round(float(p), 3) for p in found])
    assert min(found) > LEVEL
    # blocks of their own differ
    assert min(stats.ks_2samp(real[:, i], apart[:, i]).pvalue for i in range(3)) < 1e-6


def test_uniform_weights_approach_gaussian_weights_with_width():
    found = {}
    for width, heads in ((2, 1), (8, 1), (32, 2)):
        model = models.pytorch_encoder(width, heads, width, norm_first=True)
        real = encoder(
            lambda width=width, heads=heads: layer(width, heads, True), width, 8000
        )
        ours = added(model, 80_000)
        found[width] = stats.ks_2samp(real[:, 1], ours[:, 1])
        print(
            f"width {width}: Kolmogorov distance {found[width].statistic:.4f}, p ="
            f" {found[width].pvalue:.2g}"
        )
    assert found[2].pvalue < 1e-6  # the difference is there
    assert found[2].statistic > 1.5 * found[8].statistic > 1.5**2 * found[32].statistic
    assert found[32].pvalue > LEVEL  # and 8,000 draws do not see it any more
