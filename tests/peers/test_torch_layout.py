"""Layouts of the reader of PyTorch modules against the strides of torch's own views."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import netsor as ns
from tests.internals import (
    Expand,
    Index,
    Layout,
    Linear,
    NotAViewError,
    Permute,
    Reshape,
    Vectors,
)

from .literal import outputs

STEPS = 6  # rearrangements of one tensor, one after the other


def random_shape(rng, size):
    """A shape with so many entries, and some axes of size 1."""
    shape = []
    while size > 1:
        factor = rng.choice([k for k in range(2, size + 1) if size % k == 0])
        shape.append(int(factor))
        size //= factor
    for _ in range(rng.integers(3)):
        shape.insert(rng.integers(len(shape) + 1), 1)
    return tuple(shape)


def random_rearrangement(rng, x):
    """A rearrangement of a tensor, and what torch makes of it."""
    if rng.random() < 0.4 or not x.ndim:
        shape = random_shape(rng, x.numel())
        return Reshape(shape), x.reshape(shape)
    axis = int(rng.integers(x.ndim))
    if rng.random() < 0.5:
        other = int(rng.integers(x.ndim))
        return Permute.swapping(axis, other, ndim=x.ndim), x.transpose(axis, other)
    if rng.random() < 0.5:
        shape = tuple(3 if size == 1 else size for size in x.shape)
        return Expand((2, *shape)), x.expand(2, *shape)
    if rng.random() < 0.5:
        index = int(rng.integers(x.shape[axis]))
        return Index(axis, index), x.select(axis, index)
    start = int(rng.integers(x.shape[axis]))
    key = (slice(None),) * axis + (slice(start, None, 2),)
    return Index(axis, slice(start, None, 2)), x[key]


@pytest.mark.parametrize("seed", range(20))
def test_layout_after_rearrangements_matches_strides_of_torch(seed):
    rng = np.random.default_rng(seed)
    views = copies = 0
    for _ in range(200):
        x = torch.empty(random_shape(rng, int(rng.choice([6, 12, 24]))), device="meta")
        layout = Layout.contiguous(tuple(x.shape))
        for _ in range(STEPS):
            rearrangement, y = random_rearrangement(rng, x)
            if y.untyped_storage()._cdata != x.untyped_storage()._cdata:
                with pytest.raises(NotAViewError):
                    rearrangement.of_layout(layout)
                copies += 1
                break
            layout = rearrangement.of_layout(layout)
            assert layout.shape == tuple(y.shape)
            assert layout.strides == y.stride()
            assert layout.offset == y.storage_offset()
            views += 1
            x = y
            if x.numel() > 500:
                break
    assert views > 300
    assert copies > 10


@pytest.mark.parametrize(
    ("f", "used"),
    [
        (lambda x: Linear.rearranged(lambda image: image[..., 2:4], x), (2, 4)),
        (lambda x: Linear.scaled(x, np.array([0.0, 0, 0, 1, 1, 0])), (3, 5)),
        (lambda x: Linear.scaled(x, np.zeros(6)), (0, 0)),
        (
            lambda x: Linear.sum(
                Linear.rearranged(lambda image: image[..., :2], x),
                Linear.rearranged(lambda image: image[..., 3:5], x),
            ),
            (0, 5),
        ),
    ],
)
def test_linear_function_knows_the_coordinates_it_uses(f, used):
    assert f(Vectors.of(ns.gaussian(6, 4))).used_coordinates == used


READER = Path(ns.torch.__file__).parent.parent / "reader"


@pytest.mark.parametrize(
    "path", sorted(READER.glob("*.py")), ids=lambda path: path.stem
)
def test_reader_imports_no_framework(path):
    source = path.read_text()
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported.isdisjoint({"torch", "jax"})
    assert "from torch" not in source
    assert "from jax" not in source


class StackedWithNumbers(torch.nn.Module):
    """Vectors of tokens beside given ones."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.map = torch.nn.Linear(8, 8)

    def forward(self, ids):
        x = self.embed(ids)
        return self.map(torch.stack([x, torch.ones(x.shape)], dim=1))


class DetachedMeans(torch.nn.Module):
    """Vectors divided by a mean that is repeated and detached."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)

    def forward(self, ids):
        x = self.embed(ids)
        scale = x.square().mean(-1, keepdim=True).expand(-1, -1, 3).detach()
        return x * scale[..., :1], scale


@pytest.mark.parametrize("build", [StackedWithNumbers, DetachedMeans])
def test_program_with_the_weights_of_a_module_matches_it(build):
    for real, ours in outputs(build, (torch.tensor([[3, 7, 1]]),)):
        assert real.shape == ours.shape
        np.testing.assert_allclose(ours, real, rtol=1e-6, atol=1e-6)
