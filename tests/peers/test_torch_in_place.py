"""Operations in place: exported graphs with new tensors compute the same numbers."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.internals import is_in_place, replace_in_place

from .literal import outputs

VIEWS = (
    lambda x: x.unflatten(0, (-1, 1)),
    lambda x: x.reshape(-1),
    lambda x: x.transpose(0, -1),
    lambda x: x.permute(*range(1, x.ndim), 0),
    lambda x: x[..., None],
    lambda x: x[1:],
    lambda x: x[..., :-1],
    lambda x: x[0],
    lambda x: x.contiguous(),
    lambda x: x.narrow(-1, 0, x.shape[-1] // 2 + 1),
)
CHANGES = (
    lambda x, number: x.add_(number),
    lambda x, number: x.mul_(number).sub_(1.0),
    lambda x, number: x.copy_(x.flip(0) * number),
    lambda x, number: x.zero_(),
    lambda x, number: x.fill_(number),
    lambda x, number: x.clamp_(min=number),
)


class Changing(nn.Module):
    """Views of views of a product, some of which are changed in place."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def forward(self, x):
        rng = np.random.default_rng(self.seed)
        tensors, returned = [x @ x], []
        for _ in range(12):
            tensor = tensors[rng.integers(len(tensors))]
            if rng.random() < 0.5 and tensor.ndim > 1:
                tensor = VIEWS[rng.integers(len(VIEWS))](tensor)
                if tensor.numel() > 1:
                    tensors.append(tensor)
            else:
                change = CHANGES[rng.integers(len(CHANGES))]
                tensors.append(change(tensor, float(rng.integers(1, 4)) / 2))
            returned.append(tensors[rng.integers(len(tensors))] * 1.0)
        return (*tensors, *returned)


@pytest.mark.parametrize("seed", range(30))
def test_new_tensors_have_the_numbers_of_operations_in_place(seed):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
    exported = torch.export.export(Changing(seed), (x,), strict=False)
    replace_in_place(exported.graph)
    exported.graph.lint()
    assert not any(is_in_place(node) for node in exported.graph.nodes)
    plain = torch.fx.GraphModule(exported.graph_module, exported.graph)
    specs = exported.graph_signature.input_specs[:-1]
    constants = [exported.constants[spec.target].clone() for spec in specs]
    for ours, real in zip(plain(*constants, x), Changing(seed)(x), strict=True):
        assert torch.equal(ours, real)


class Filled(nn.Module):
    """Tokens, parts of which are replaced and scaled in place."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.first, self.second = (nn.Linear(6, 6) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        y = torch.zeros_like(x)
        y[:, 1:] = self.first(x[:, :-1])
        y[:, 0] = self.second(x[:, -1])
        y[:, 2:] *= 2.0
        heads = y.view(*y.shape[:-1], 2, 3)
        heads[..., 1, :] += heads[..., 0, :]
        y[..., 1:][0, 0].mul_(0.5)
        return self.second(y) + x


class CountedFromTheEnd(nn.Module):
    """Parts by `narrow` whose start is negative, one of them changed in place."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.first = nn.Linear(6, 6)

    def forward(self, ids):
        x = self.first(self.embed(ids)) * 1.0
        x.narrow(1, -2, 2).mul_(2.0)
        return x.narrow(1, -3, 3)


@pytest.mark.parametrize("network", [Filled, CountedFromTheEnd])
def test_parts_that_change_in_place_are_read(network):
    ids = torch.tensor([[3, 7, 1, 4]])
    ((real, ours),) = outputs(network, (ids,))
    np.testing.assert_allclose(ours, real, rtol=1e-9, atol=1e-12)


class Contracted(nn.Module):
    """Heads by `einsum` with parameters of three axes, and parts changed in place."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.into = nn.Parameter(torch.randn(8, 3, 5) / 8**0.5)
        self.out = nn.Parameter(torch.randn(3, 5, 8) / 15**0.5)

    def forward(self, ids):
        x = self.embed(ids)
        heads = torch.einsum("btd,dnh->btnh", x, self.into)
        scores = torch.einsum("btnh,bsnh->bnts", heads, heads)
        scores[..., 0] *= 0.5
        mixed = torch.einsum("bnts,bsnh->btnh", scores.softmax(-1), heads)
        return torch.einsum("btnh,nhd->btd", mixed, self.out)


def test_einsum_is_written_out():
    ids = torch.tensor([[3, 7, 1, 4]])
    ((real, ours),) = outputs(Contracted, (ids,))
    np.testing.assert_allclose(ours, real, rtol=1e-9, atol=1e-12)
