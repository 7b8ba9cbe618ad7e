"""Networks in stages, whose streams change their width and their number of tokens: the
law of every quantity of an audit is that of real initialisations.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a network together; the
seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import netsor as ns
from tests.internals import (
    Parameters,
    ProgramModel,
    captured,
    forward_backward,
    read_network,
    structure,
)

from .networks import columns

REAL, OURS, LEVEL = 300, 600, 1e-4
PIXELS = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def normal(module, gain=1.0):
    """Draw all matrices of a module from N(0, gain/fan-in)."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=(gain / parameter[0].numel()) ** 0.5)
        else:
            nn.init.zeros_(parameter)
    return module


class Residual(nn.Module):
    """Two convolutions beside the stream, or beside a convolution of it."""

    def __init__(self, width, new_width, stride, gain=1.0):
        super().__init__()
        self.first = nn.Conv2d(width, new_width, 3, stride, padding=1)
        self.second = nn.Conv2d(new_width, new_width, 3, padding=1)
        self.shortcut = nn.Identity()
        if stride > 1 or width != new_width:
            self.shortcut = normal(nn.Conv2d(width, new_width, 1, stride), gain)

    def forward(self, x):
        return self.second(self.first(x).relu()) + self.shortcut(x)


class Convolutional(nn.Module):
    """Two stages of residual blocks; the activation acts on the stream."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(8, width, stride, gain), Residual(width, width, 1))
            for width, stride in ((8, 1), (12, 2))
        )
        self.stages[1][0] = Residual(8, 12, 2)
        self.stages[1][1] = Residual(12, 12, 1)
        normal(self)
        normal(self.stages[1][0].shortcut, gain)
        self.head = normal(nn.Linear(12, 5, bias=False))

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((-2, -1)))


class Layer(nn.Module):
    """Attention and a perceptron, both before a norm."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        scores = self.q(h) @ self.k(h).mT / h.shape[-1] ** 0.5
        x = x + self.o(scores.softmax(-1) @ self.v(h))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    """Blocks, and then four neighbours are merged into one token of another width."""

    def __init__(self, width, new_width):
        super().__init__()
        self.blocks = nn.ModuleList(Layer(width) for _ in range(2))
        self.merge = nn.Linear(4 * width, new_width, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.merge(x.reshape(1, -1, 4 * x.shape[-1]))


class Hierarchical(nn.Module):
    """Stages of attention blocks on fewer and fewer tokens."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.stages = nn.ModuleList([Stage(8, 16), Stage(16, 12)])
        self.head = nn.Linear(12, 5, bias=False)
        normal(self)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(1))


def law_of(build):
    net = read_network(build, (PIXELS,), {})
    probes = ProgramModel(net.program, {}).probes(gradients=True)
    return net, columns(probes.measure(OURS, workers=1, seed=1, progress=False))


def real(build, net):
    """Each quantity of real initialisations, (draws,), by name and block."""
    rows, parts = [], None
    for seed in range(REAL):
        torch.manual_seed(seed)
        module = build().eval()
        parts = parts or structure(
            captured(module, (PIXELS,), {}, Parameters({}, samples=0))
        )
        numbers = dict(module.named_parameters())
        rows.append(forward_backward(parts, numbers, net.targets, net.masks)[0])
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def p_values(numbers, ours, fixed):
    return {
        key: float(stats.ks_2samp(numbers[key], ours[key]).pvalue)
        for key in numbers
        if key in ours and key not in fixed
    }


@pytest.mark.parametrize(("build", "least"), [(Convolutional, 35), (Hierarchical, 60)])
def test_quantities_have_the_law_of_real_initialisations(build, least):
    net, (ours, fixed) = law_of(build)
    found = p_values(real(build, net), ours, fixed)
    assert len(found) >= least
    assert min(found.values()) > LEVEL / len(found), {
        key: p for key, p in found.items() if p < 1e-3
    }


def test_another_shortcut_has_another_law():
    net, (ours, fixed) = law_of(Convolutional)
    found = p_values(real(lambda: Convolutional(gain=2.0), net), ours, fixed)
    assert min(found.values()) < 1e-6


def test_blocks_begin_where_their_stage_begins():
    net = read_network(Convolutional, (PIXELS,), {})
    assert [block.path for block in net.structure.blocks] == [
        "stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"
    ]  # fmt: skip
    before = [probe.value for probe in net.program.probes if probe.name == "before"]
    assert [(x.shape, x.width.factor) for x in before] == [((16,), 12)]
    sizes = ProgramModel(net.program, {}).net.sizes({})
    assert sizes.tokens == (64, 64, 16, 16)
    assert sizes.numbers == (64 * 8, 64 * 8, 16 * 12, 16 * 12)


def test_audit_compares_whole_gradients_between_stages():
    found = ns.audit(
        ns.torch.network(Convolutional, (PIXELS,)),
        gradients=True, quick=True, progress=False,
    )  # fmt: skip
    assert "squared gradient of the stream" in found.finding("vanishing").measured
    assert "of 16 tokens" in found.finding("rank").measured


class Forgetful(Residual):
    """A block of a stage whose sum is missing."""

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_block_of_a_stage_without_a_sum_is_named():
    def build():
        network = Convolutional()
        network.stages[1][1] = normal(Forgetful(12, 12, 1))
        return network

    with pytest.raises(
        ns.torch.UnsupportedError, match=r"stages\.1\.1 adds nothing to its input"
    ):
        ns.torch.network(build, (PIXELS,))


class Flattened(Convolutional):
    """Logits of all positions one after the other, with a random bias."""

    def __init__(self):
        super().__init__()
        self.head = normal(nn.Linear(12 * 16, 5))
        nn.init.normal_(self.head.bias)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.flatten(1))


def test_logits_of_flattened_images_with_a_random_bias():
    net, (ours, fixed) = law_of(Flattened)
    numbers = real(Flattened, net)
    found = p_values(numbers, ours, fixed)
    assert {"loss", "logit_std", "grad_head"} <= {name for name, _ in found}
    assert min(found.values()) > LEVEL / len(found)
