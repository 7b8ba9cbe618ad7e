"""Bounds, masks and small constants in PyTorch modules, where they act and where they
do not.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import netsor as ns

from .literal import outputs

IDS = torch.tensor([[3, 7, 7, 1]])
WIDTH = 8
HIDDEN = torch.ones(4, 4, dtype=torch.bool).triu(1)


class Bounded(nn.Module):
    """A function of embedded tokens of a given size, or of their scores."""

    def __init__(self, act, scale=1.0, scores=False):
        super().__init__()
        self.embed, self.map = (
            nn.Embedding(10, WIDTH),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        nn.init.normal_(self.embed.weight, std=scale)
        nn.init.normal_(self.map.weight, std=WIDTH**-0.5)
        self.act, self.scores = act, scores

    def forward(self, ids):
        x = self.embed(ids)
        return self.act(x @ self.map(x).mT) if self.scores else self.act(x)


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


def by_hand(x):
    """A layer norm."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


NORMS = {
    "clamp": lambda x: x * mean_square(x).clamp(min=1e-6).rsqrt(),
    "clamp_min": lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-7),
    "clamp from both sides": lambda x: x / mean_square(x).clamp(1e-4, 1e4),
    "clamp of a sum": lambda x: (
        x * (x.square().sum(-1, keepdim=True) + 1e-9).clamp(max=100.0)
    ),
    "maximum": lambda x: x * torch.maximum(mean_square(x), torch.tensor(1e-6)).rsqrt(),
    "minimum": lambda x: x * torch.minimum(torch.tensor(2.0), mean_square(x)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "normalize with an eps": lambda x: F.normalize(x, dim=-1, eps=0.1),
    "normalize and clamp": lambda x: F.normalize(x.clamp(min=-0.5), dim=-1, eps=1e-6),
    "norm + eps": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-5),
    "clamp + eps": lambda x: x * (mean_square(x).clamp(min=1e-6) + 1e-5).rsqrt(),
    "rms_norm": lambda x: F.rms_norm(x, (WIDTH,)),
    "rms_norm with an eps": lambda x: F.rms_norm(x, (WIDTH,), eps=1e-5),
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,), eps=1e-12),
    "layer norm by hand": by_hand,
    "offset": lambda x: by_hand(x + 1e7 * x.abs().mean()),
    "std": lambda x: x / (x.std(-1, keepdim=True) + 1e-6),
    "relu6": lambda x: x.clamp(0.0, 6.0) + x.clamp_max(0.1) - x.clamp_min(1e-7),
    "where": lambda x: (
        torch.where(HIDDEN[1][:, None], x, 3.0)
        + x.masked_fill(HIDDEN[2][:, None], -0.5).square()
    ),
    "nan_to_num": lambda x: torch.nan_to_num(x, nan=7.0),
    "rsub": lambda x: torch.rsub(x, 2.0, alpha=3.0),
}
LOW = torch.finfo(torch.float32).min
SCORES = {
    "-inf": lambda p: p.masked_fill(HIDDEN, -math.inf).softmax(-1),
    "finfo.min": lambda p: (p + HIDDEN * LOW).softmax(-1),
    "-1e9": lambda p: p.masked_fill(HIDDEN, -1e9).softmax(-1),
    "-1e9, scaled": lambda p: (p.masked_fill(HIDDEN, -1e9) * 1e-3).softmax(-1),
    "-1e4": lambda p: (p + HIDDEN * -1e4).softmax(-1),
    "-1e4, and more": lambda p: (torch.where(HIDDEN, -1e4, p) + 5.0 * HIDDEN).softmax(
        -1
    ),
    "-100": lambda p: (p + HIDDEN * -100.0).softmax(-1),
    "two masks": lambda p: (
        (p + HIDDEN.roll(1, 0) * -1e4).masked_fill(HIDDEN, -math.inf).softmax(-1)
    ),
    "clamped": lambda p: p.clamp(-5.0, 5.0).masked_fill(HIDDEN, -math.inf).softmax(-1),
    "capped": lambda p: (3.0 * torch.tanh(p / 3.0) + HIDDEN * LOW).softmax(-1),
    "not a number": lambda p: torch.nan_to_num(
        p.masked_fill(HIDDEN, -math.inf).softmax(-1)
    ),
}
CASES = {
    **{name: (act, False) for name, act in NORMS.items()},
    **{name: (act, True) for name, act in SCORES.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_bounds_and_small_constants_at_every_scale(name):
    act, scores = CASES[name]
    for scale in (1e-8, 1e-3, 1.0, 1e3, 1e8):
        for real, ours in outputs(
            lambda scale=scale: Bounded(act, scale, scores).double(), (IDS,)
        ):
            np.testing.assert_allclose(
                ours, real, rtol=0, atol=1e-6 * np.abs(real).max(), err_msg=f"{scale:g}"
            )


class Halfway(nn.Module):
    """Embeddings so small that a bound on their mean square acts on about half of
    them.
    """

    def __init__(self, eps=1e-6):
        super().__init__()
        self.embed, self.eps = nn.Embedding(10, WIDTH), eps
        nn.init.normal_(self.embed.weight, std=1e-3)

    def forward(self, ids):
        x = self.embed(ids)
        y = x * mean_square(x).clamp(min=self.eps).rsqrt()
        return y, F.normalize(x, dim=-1, eps=3e-3)


def _quantities(found):
    """The mean square of one token, and its product with another, of two arrays (draws,
    1, tokens, coordinates).
    """
    return [(x[:, 0, 0] * x[:, 0, k]).mean(-1) for x in found for k in (0, 1)]


def test_active_bound_has_the_law_of_real_initialisations():
    """4 tests of 2000 draws each; without the bounds, mean squares are constants."""
    net = ns.torch.program(Halfway, IDS)
    first, second = net.outputs
    dots = [
        ns.mean_dot(x[0, :2], x[0, :2])[0, k] for x in (first, second) for k in (0, 1)
    ]
    ours = ns.Program(tuple(dots)).draw(draws=2000, seed=1, progress=False)
    torch.manual_seed(1)
    with torch.no_grad():
        found = [Halfway()(IDS) for _ in range(2000)]
    real = _quantities(
        [np.stack([each[k].double().numpy() for each in found]) for k in (0, 1)]
    )
    for a, b in zip(ours, real, strict=True):
        # many are 1 up to rounding
        assert stats.ks_2samp(a.round(5), b.round(5)).pvalue > 1e-4 / 4


class Padded(Halfway):
    """With a row of zeros, whose norm has no finite slope."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH, padding_idx=1)
        nn.init.normal_(self.embed.weight, std=1e-3)
        with torch.no_grad():
            self.embed.weight[1] = 0.0

    def forward(self, ids):
        return sum(super().forward(ids))


def test_gradients_of_an_active_bound_match_autograd():
    """Of Σ_k k y_k/n for the token of zeros and another one, as the mean square; 2
    tests of 1000 draws.
    """
    net = ns.torch.program(Padded, IDS)
    (embedded,) = (probe.value for probe in net.probes if probe.name == "embed")
    loss = ns.mean_dot(net.output[0], ns.data(np.arange(float(WIDTH)))).sum()
    gradient = ns.grad(loss, embedded)[0]
    squares = ns.mean_dot(gradient, gradient)
    ours = ns.Program((squares[3, 3], squares[0, 0])).draw(
        draws=1000, seed=1, progress=False
    )
    torch.manual_seed(1)
    real = []
    for _ in range(1000):
        module = Padded()
        x = module.embed(IDS).detach().requires_grad_()
        module.embed.forward = lambda ids, x=x: x
        (module(IDS) * torch.arange(float(WIDTH))).mean(-1).sum().backward()
        real.append(
            [float(x.grad[0, k].double().square().mean()) * WIDTH for k in (3, 0)]
        )
    np.testing.assert_allclose(ours[0], np.array(real)[:, 0], rtol=1e-6)
    other, right = (
        np.round(each / 1e6, 3) for each in (ours[1], np.array(real)[:, 1])
    )  # many are equal up to rounding
    assert stats.ks_2samp(other, right).pvalue > 1e-4
