"""Single coordinates of vectors, without their axis, repeated, and beside numbers: the
program computes what the module does on the same weights.
"""

import numpy as np
import pytest
import torch
from torch import nn

import netsor as ns

from .literal import outputs

IDS = torch.tensor([[3, 7, 1]])
EYE = torch.eye(3)
DISTANCES = torch.tensor([0.0, 1.0, 2.0])

CASES = {
    "a squeezed coordinate of the stream": lambda m, x: m.tokens(x[..., 3:4].squeeze(-1)),
    "a squeezed output": lambda m, x: m.tokens(m.few(x)[..., 3:4].squeeze(-1)),
    "the same with an axis again": lambda m, x: m.few(x)[..., 1:2].squeeze(-1)[..., None] * x,
    "a repeated coordinate": lambda m, x: x[..., 3:4].expand(-1, -1, 8) * x,
    "a repeated output": lambda m, x: m.few(x)[..., 3:4].expand(-1, -1, 8) * x,
    "repeated and turned": lambda m, x: (
        m.few(x)[..., 1:2].expand(-1, -1, 3)
        + m.few(x)[..., 1:2].expand(-1, -1, 3).transpose(1, 2)
    ),
    "a part of scores": lambda m, x: m.few(x)[..., 1:2].expand(-1, -1, 3).exp(),
    "times distances": lambda m, x: m.gate(x) * DISTANCES,
    "plus distances": lambda m, x: x[..., 2:3] + DISTANCES,
    "times a part": lambda m, x: x[..., 2:3] * DISTANCES,
    "one of two": lambda m, x: torch.where(EYE > 0, m.gate(x), x[..., 1:2]),
    "a mask": lambda m, x: (m.gate(x) + EYE * -1e9).softmax(-1),
    "differences of sums": lambda m, x: (
        m.gate(x).cumsum(1) - m.gate(x).squeeze(-1).cumsum(-1)[:, None]
    ),
    "the output itself": lambda m, x: x[..., 3:4].squeeze(-1),
}  # fmt: skip


def replaced(module, x):
    """Tokens, the last ones of which are replaced."""
    y = x * 1.0
    y[:, 1:] += module.few(x)[:, :1, :1]
    return y


def turned_without_gradient(module, x):
    """Rotary positions whose two terms are detached, as the code of indexers does."""
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)
    angles = torch.arange(3.0)[:, None] * frequencies
    cosines, sines = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    half = torch.cat([-x[..., 4:], x[..., :4]], -1)
    return (x * cosines).detach() + (half * sines).detach()


CASES["replaced tokens"] = replaced
CASES["detached rotary positions"] = turned_without_gradient


def module_of(compute):
    class Module(nn.Module):
        """Tokens, and matrices with one output, few outputs, or tokens as inputs."""

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.few, self.gate = nn.Linear(8, 4), nn.Linear(8, 1)
            self.tokens = nn.Linear(3, 5)

        def forward(self, ids):
            return compute(self, self.embed(ids))

    return Module


@pytest.mark.parametrize("compute", CASES.values(), ids=[*CASES])
def test_single_coordinates_keep_their_numbers(compute):
    ((real, ours),) = outputs(module_of(compute), (IDS,))
    np.testing.assert_allclose(ours.reshape(real.shape), real, rtol=1e-9, atol=1e-12)


def test_flattened_image_is_an_output():
    class Flattened(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 4, 3)

        def forward(self, image):
            return self.first(image).relu().flatten(1)

    image = torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    ((real, ours),) = outputs(Flattened, (image,))
    np.testing.assert_allclose(ours, real, rtol=1e-9, atol=1e-12)


def test_outputs_that_are_no_vectors_are_refused():
    swapped = module_of(lambda m, x: torch.stack((x[..., 4:], -x[..., :4]), -1))
    with pytest.raises(ns.torch.UnsupportedError, match="pairs of coordinates"):
        ns.torch.program(swapped, IDS)
