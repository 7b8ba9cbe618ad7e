"""Parts of tensors that given masks or indices choose: adapters of languages, parts of
images among words. The program computes what the module does on the same weights.
"""

import numpy as np
import pytest
import torch
from torch import nn

import netsor as ns

from .literal import outputs

IDS = torch.tensor([[3, 7, 1, 4, 2]])


class Adapters(nn.Module):
    """Tokens, and two matrices that act on some of them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.adapters = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, ids):
        return self.adapted(ids, self.embed(ids))


class ByMask(Adapters):
    def adapted(self, ids, x):
        y = torch.zeros_like(x)
        for number, adapter in enumerate(self.adapters):
            mask = ids % 2 == number
            y[mask] = adapter(x[mask]).relu()
        return y + x


class BySequence(Adapters):
    """All sequences have the first language."""

    def adapted(self, ids, x):
        y = torch.zeros_like(x)
        mask = torch.zeros(len(ids)) == 0
        y[mask] = self.adapters[0](x[mask])
        return self.adapters[1](y)


class ByRows(Adapters):
    def adapted(self, ids, x):
        x, y = x[0], torch.zeros_like(x[0])
        for number, adapter in enumerate(self.adapters):
            (rows,) = torch.where(ids[0] % 2 == number)
            y[rows] = adapter(x[rows]).relu()
        return y


class Added(Adapters):
    def adapted(self, ids, x):
        x, y = x[0], x[0] * 0.5
        for number, adapter in enumerate(self.adapters):
            rows = torch.nonzero(ids[0] % 2 == number).flatten()
            y = y.index_add(0, rows, adapter(x[rows]), alpha=2)
        return y.index_add(0, torch.tensor([1, 1, 4]), x[:3])


class Replaced(Adapters):
    """Some tokens, which are changed, in place of others."""

    def adapted(self, ids, x):
        x = x * 1.0
        x[ids == 7] = self.adapters[0](x)[ids == 3]
        x[0, torch.tensor([4, 0])] = self.adapters[1](x)[0, :2]
        return x


class Heads(Adapters):
    """Chosen tokens, cut into heads."""

    def adapted(self, ids, x):
        chosen = self.adapters[0](x[ids > 2])
        return chosen.view(-1, 2, 4).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("build", [ByMask, BySequence, ByRows, Added, Replaced, Heads])
def test_given_parts_keep_their_numbers(build):
    ((real, ours),) = outputs(build, (IDS,))
    np.testing.assert_allclose(ours, real, rtol=1e-9, atol=1e-12)


class Random(Adapters):
    """The mask depends on random numbers."""

    def adapted(self, ids, x):
        mask = x.mean(-1) > 0
        return self.adapters[0](x[mask]).sum(0)


def test_parts_that_random_numbers_choose_are_refused():
    with pytest.raises(ns.torch.UnsupportedError, match=r"index|shape"):
        ns.torch.program(Random, IDS)


class Counted(Adapters):
    """Tokens in parts, whose sizes are counts of random choices."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 2)

    def adapted(self, ids, x):
        chosen = self.router(x[0]).argmax(-1)
        sizes = nn.functional.one_hot(chosen, 2).sum(0).tolist()
        parts = x[0].split(sizes)
        pairs = zip(self.adapters, parts, strict=True)
        return torch.cat([adapter(part) for adapter, part in pairs])


def test_sizes_that_random_numbers_decide_are_refused_with_a_remedy():
    with pytest.raises(ns.torch.UnsupportedError, match="compute all experts"):
        ns.torch.program(Counted, IDS)
