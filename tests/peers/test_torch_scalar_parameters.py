"""Parameters whose entries or rows act one by one: kernels along tokens, and matrices
with entries of mean other than 0.

Programs compute what the modules do on the same weights, and outputs have the law of
real initialisations (two samples, Kolmogorov–Smirnov, level 1e-4 together, fixed seeds).
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import netsor as ns

from .literal import outputs

IDS = torch.tensor([[3, 7, 1, 4, 4]])
REAL, OURS, LEVEL = 2000, 6000, 1e-4


class Tokens(nn.Module):
    """Tokens, and their values in two heads."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.values = nn.Linear(8, 8)

    def heads(self, ids):
        return self.values(self.embed(ids)).view(1, -1, 2, 4)


class Kernel(Tokens):
    """A convolution along tokens, whose channels are heads."""

    def __init__(self, **options):
        super().__init__()
        fields = {
            "kernel_size": (3, 1),
            "padding": (1, 0),
            "out_channels": 2,
            **options,
        }
        self.mix = nn.Conv2d(2, **fields)

    def forward(self, ids):
        return self.mix(self.heads(ids).transpose(1, 2))


class Squares(Kernel):
    """The mean squares of the vectors that the convolution returns."""

    def forward(self, ids):
        return super().forward(ids).square().mean(-1)


class Channels(Tokens):
    """A convolution of which the tokens are the channels, and its bias."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(5, 4, 1)

    def forward(self, ids):
        return self.mix(self.embed(ids))


class Rows(Tokens):
    """Scores of tokens with a matrix of positive entries."""

    def __init__(self):
        super().__init__()
        self.segments = nn.Parameter(torch.rand(3, 2, 4))
        self.bias = nn.Parameter(torch.rand(2, 4))

    def forward(self, ids):
        heads = self.heads(ids) + self.bias
        scores = torch.einsum("bind,snd->bnis", heads, self.segments)
        first, second, _ = scores.split(1, -1)
        is_later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        return torch.where(is_later, first.expand(1, 2, 5, 5), second)


def depthwise():
    return Kernel(groups=2, bias=False)


def strided():
    return Kernel(stride=(2, 1), dilation=(2, 1), out_channels=4, groups=2)


@pytest.mark.parametrize("build", [Kernel, depthwise, strided, Channels, Rows])
def test_program_computes_the_same_numbers(build):
    ((real, ours),) = outputs(build, (IDS,))
    np.testing.assert_allclose(ours, real, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def real_outputs(build):
    """Outputs of real initialisations, (draws, numbers)."""
    rows = []
    for seed in range(REAL):
        torch.manual_seed(seed)
        rows.append(build()(IDS).reshape(-1).double().numpy())
    return np.array(rows)


def statistics(x):
    """Mean squares, a single number, and a product of two, (draws,) each."""
    return (x**2).mean(1), x[:, 0], x[:, 1] * x[:, -1]


def least_p_value(real, ours):
    pairs = zip(statistics(real), statistics(ours), strict=True)
    return min(stats.ks_2samp(a, b).pvalue for a, b in pairs)


def drawn_outputs(build):
    output = ns.torch.program(build, IDS).draw(draws=OURS, rng=1)
    return np.asarray(output).reshape(OURS, -1)


@pytest.mark.parametrize("build", [Squares, Rows])
def test_outputs_have_the_law_of_initialisations(build):
    real = real_outputs(build)
    assert least_p_value(real, drawn_outputs(build)) > LEVEL / 6


def test_another_mean_has_another_law():
    class Centred(Rows):
        def __init__(self):
            super().__init__()
            self.segments.data -= 0.5

    assert least_p_value(real_outputs(Centred), drawn_outputs(Rows)) < 1e-6


def test_coordinates_that_a_kernel_combines_are_refused():
    def build():
        return Kernel(kernel_size=(3, 3), padding=1)

    with pytest.raises(ns.torch.UnsupportedError, match="along the coordinates"):
        ns.torch.program(build, IDS)
