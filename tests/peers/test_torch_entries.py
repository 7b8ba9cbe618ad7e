"""Parameters with i.i.d. entries that are not Gaussian, against real initialisations.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all numbers of a module together; seeds
are fixed. Gaussian entries of the same variance get each module wrong, but for the
relative positions.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import netsor as ns
from tests.internals import Nonlin, Quantile, topological_order

LEVEL = 1e-4
REAL, OURS = 2000, 4000
IDS = torch.tensor([[3, 5, 3, 1]])
FEATURES = torch.tensor([[1.0, -0.5, 0.3], [0.2, 1.5, 0.0]])


class Bias(nn.Module):
    """A uniform bias in a block with a norm."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.norm = nn.Embedding(8, width), nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        nn.init.normal_(self.up.weight, std=0.3 / math.sqrt(width))
        nn.init.uniform_(self.up.bias, -3, 3)

    def forward(self, ids):
        return torch.relu(self.up(self.norm(self.embed(ids))) - 2).mean(-1)


class TiedBias(nn.Module):
    """One truncated normal bias of two layers."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(8, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=0.3 / math.sqrt(width))
        nn.init.trunc_normal_(self.first.bias, std=2.0, a=-1.0, b=3.0)
        self.second.bias = self.first.bias

    def forward(self, ids):
        h = torch.tanh(self.first(self.embed(ids)))
        return torch.relu(self.second(h) - 1).mean(-1)


class Gains(nn.Module):
    """Gains and shifts of a norm: exponential, and log-uniform."""

    def __init__(self, width=24):
        super().__init__()
        self.embed, self.norm = nn.Embedding(8, width), nn.LayerNorm(width)
        nn.init.normal_(self.norm.bias, std=0.1)
        self.norm.weight.data.exponential_(2.0)
        low, high = math.log(0.1), math.log(10)
        self.scale = nn.Parameter(torch.exp(torch.rand(width) * (high - low) + low))

    def forward(self, ids):
        return torch.relu(self.norm(self.embed(ids)) - self.scale).mean(-1)


class Positions(nn.Module):
    """Uniform positions and tokens, coordinate by coordinate."""

    def __init__(self, width=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(8, width), nn.Embedding(4, width)
        nn.init.uniform_(self.embed.weight, -1, 1)
        nn.init.uniform_(self.place.weight, -2, 2)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(4))
        return torch.relu(x - 1.5).mean(-1)


class Few(nn.Module):
    """Three given features, and a matrix and a bias as torch draws them by default."""

    def __init__(self, width=64):
        super().__init__()
        self.up = nn.Linear(3, width)
        self.down = nn.Linear(width, 2, bias=False)
        nn.init.kaiming_uniform_(self.up.weight)
        nn.init.normal_(self.down.weight, std=1 / math.sqrt(width))

    def forward(self, x):
        h = torch.relu(self.up(x) - 1)
        return (h * h).mean(-1)


class Frequencies(nn.Module):
    """A uniform buffer as frequencies, and half-normal decays."""

    def __init__(self, width=8):
        super().__init__()
        self.register_buffer("frequencies", torch.empty(width).uniform_(0, 4))
        self.decay = nn.Parameter(torch.randn(width).abs())

    def forward(self, x):
        return torch.stack([torch.sin(self.frequencies).mean(), self.decay.mean()])


class Erfinv(nn.Module):
    """A truncated normal written by hand, in double precision."""

    def __init__(self, width=40):
        super().__init__()
        self.up = nn.Linear(4, width, dtype=torch.float64)
        nn.init.zeros_(self.up.weight)
        self.w = nn.Parameter(torch.zeros(width, dtype=torch.float64))
        low, high = (1 + math.erf(-1 / 2**0.5)) / 2, (1 + math.erf(2**0.5)) / 2
        with torch.no_grad():
            self.w.uniform_(2 * low - 1, 2 * high - 1)
            self.w.erfinv_().mul_(1.5 * math.sqrt(2)).add_(0.5)
            self.w.clamp_(min=0.5 - 1.5, max=0.5 + 3.0)

    def forward(self, x):
        return torch.relu(self.w - 2).mean()[None]


class Relative(nn.Module):
    """Exponential relative positions, one number for each head."""

    def __init__(self, heads=2, width=16):
        super().__init__()
        self.embed, self.bias = nn.Embedding(8, width), nn.Embedding(4, heads)
        self.bias.weight.data.exponential_(0.2)

    def forward(self, ids):
        x = self.embed(ids)
        x = x.view(1, 4, 2, -1).transpose(1, 2)
        scores = 0.01 * (x @ x.mT) / 4
        distance = (torch.arange(4)[:, None] - torch.arange(4)).abs()
        scores = scores + self.bias(distance).permute(2, 0, 1)
        return scores.softmax(-1)[:, :, 0, :2].reshape(-1)


MODULES = {
    Bias: IDS,
    TiedBias: IDS,
    Gains: IDS,
    Positions: IDS,
    Few: FEATURES,
    Frequencies: FEATURES,
    Erfinv: FEATURES,
    Relative: IDS,
}


@torch.no_grad()
def real_outputs(build, args, count=REAL):
    torch.manual_seed(7)
    return np.array(
        [build().eval()(args).double().numpy().ravel() for _ in range(count)]
    )


def our_outputs(net, count=OURS):
    draws = net.draw(draws=count, progress=False)
    return np.asarray(draws).reshape(count, -1)


def as_gaussian(laws):
    """The same means and variances, and Gaussian entries."""
    for name, law in laws.items():
        if law.random:
            laws[name] = replace(law, law="normal", entries=None)
    return laws


def least_p_value(real, ours):
    """The least of the p-values of all numbers, times their number."""
    found = [stats.ks_2samp(a, b).pvalue for a, b in zip(real.T, ours.T, strict=True)]
    return min(found) * len(found)


@pytest.mark.parametrize("build", MODULES)
def test_entries_that_are_not_gaussian_have_their_law(build):
    args = MODULES[build]
    net = ns.torch.program(build, args)
    law = net.law(draws=10)
    assert law.status == "exact"
    assert not any("Gaussian numbers" in note for note in law.notes)
    real = real_outputs(build, args)
    p = least_p_value(real, our_outputs(net))
    laws = as_gaussian(ns.torch.parameters(build))
    p_gaussian = least_p_value(
        real, our_outputs(ns.torch.program(build, args, laws=laws))
    )
    print(build.__name__, f"{p:.3g}, as Gaussian {p_gaussian:.1g}")
    assert p > LEVEL
    # weights of a softmax hardly show the law of the scores
    assert p_gaussian < LEVEL or build is Relative


@pytest.mark.parametrize(
    ("build", "name"), [(Bias, "up.bias"), (TiedBias, "first.bias")]
)
def test_gradient_of_a_parameter_is_that_of_autograd(build, name):
    net = ns.torch.program(build, IDS)
    loss = (net.output * net.output).sum()
    parameter = next(
        value
        for value in topological_order([loss])
        if isinstance(value.op, Nonlin)
        and isinstance(value.op.f, Quantile)
        and value.op.f.parameter == name
    )
    gradient = ns.grad(loss, parameter).reshape(-1)
    square = ns.mean_dot(gradient[..., None], gradient[..., None]).sum()
    ours = np.stack(ns.Program((square, loss)).draw(draws=OURS, progress=False), axis=1)
    torch.manual_seed(3)
    real = []
    for _ in range(REAL):
        module = build()
        value = (module(IDS) ** 2).sum()
        value.backward()
        p = module.get_parameter(name)
        real.append([float((p.grad**2).sum()), value.item()])
    p = least_p_value(np.array(real), ours)
    print(build.__name__, f"{p:.3g}")
    assert p > LEVEL


class Hat(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.up = nn.Linear(1, width, bias=False)
        self.down = nn.Linear(width, 1, bias=False)
        nn.init.kaiming_uniform_(self.up.weight)

    def forward(self, x):
        return self.down(torch.relu(self.up(x) - 1))


def test_matrix_of_one_given_input_has_the_closed_form_variance():
    law = ns.torch.program(Hat, torch.tensor([[1.5]])).law(draws=4000)
    # E relu(a v − 1)²/3, v uniform between −1 and 1, a = 1.5 √6
    a = 1.5 * math.sqrt(6)
    closed = (a - 1) ** 3 / (6 * a) / 3
    assert closed == pytest.approx(0.2892, abs=1e-4)
    assert law.var() == pytest.approx(closed, abs=0.005)
    assert law.status == "same limit"
    (note,) = law.notes
    assert "uniform entries of down.weight" in note
    assert "2,048" in note


class WideBias(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 1, bias=False)
        nn.init.normal_(self.up.weight, std=0.01)
        nn.init.uniform_(self.up.bias, -3, 3)
        nn.init.normal_(self.down.weight, std=1 / math.sqrt(width))

    def forward(self, x):
        return self.down(torch.relu(self.up(x) - 1))


def test_large_uniform_bias_has_the_closed_form_variance():
    law = ns.torch.program(WideBias, torch.tensor([[1.0, 0, 0, 0]])).law(draws=4000)
    # E relu(3 v − 1)², v uniform between −1 and 1; the weights add 3e-5
    closed = 2**3 / (6 * 3)
    assert law.var() == pytest.approx(closed, abs=0.006)
    assert law.status == "exact"


def test_matrices_of_random_vectors_are_noted():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (
                nn.Linear(100, 16, bias=False),
                nn.Linear(16, 24, bias=False),
                nn.Linear(24, 1, bias=False),
            )

        def forward(self, x):
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))

    law = ns.torch.program(Deep, torch.ones(1, 100)).law(draws=10)
    assert law.status == "same limit"
    (note,) = law.notes
    assert "a.weight, b.weight, c.weight: an output is a sum over 16 to 100" in note


def test_gaussian_modules_have_the_same_random_numbers():
    def build(width=32):
        module = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 1))
        for p in module.parameters():
            nn.init.normal_(p, std=0.3)
        return module

    law = ns.torch.program(build, torch.ones(2, 6)).law(draws=10)
    assert (law.status, law.notes) == ("exact", ())
    declared = ns.torch.parameters(build, declared={"*": 0.3})
    other = ns.torch.program(build, torch.ones(2, 6), laws=declared).law(draws=10)
    assert law.random_numbers == other.random_numbers
