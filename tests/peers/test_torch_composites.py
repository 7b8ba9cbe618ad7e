"""Operations of PyTorch that are short for others: read as what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .literal import outputs

WIDTH = 8
IDS = torch.tensor([[3, 5, 1]])


class Layer(nn.Module):
    """Tokens and a matrix."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, WIDTH)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, ids):
        x = self.embed(ids)
        return self.of(x, x @ self.matrix)


class Transposes(Layer):
    """Tied logits of the tokens by `.T`, and other names of a transpose."""

    def of(self, x, y):
        return (
            (y @ self.embed.weight.T)[..., IDS[0]],
            F.relu(y) @ self.matrix.T,
            x[0] @ y[0].T,
            x @ y.mH,
            x @ y.adjoint(),
            x[0] @ y[0].H,
            x @ y.swapdims(1, 2),
        )


class Joins(Layer):
    """Tokens side by side."""

    def of(self, x, y):
        return (
            torch.hstack([x, y]),
            torch.vstack([x[0], y[0]]),
            torch.tensor_split(y, 2, dim=1)[1],
            x[:, :1].tile(1, 3, 1),
            y[:, :1].broadcast_to(1, 3, WIDTH),
            torch.atleast_2d(y[0, 0]),
        )


class Products(Layer):
    """Matrices and tokens."""

    def of(self, x, y):
        return (
            torch.inner(x[0], y[0]),
            torch.tensordot(x[0], self.matrix, dims=1),
            torch.linalg.multi_dot([x[0], self.matrix, self.matrix]),
            torch.mv(self.matrix, x[0, 0]),
            torch.dot(x[0, 0], y[0, 1])[None],
            torch.vdot(x[0, 0], y[0, 1])[None],
        )


class Sizes(Layer):
    """Lengths, angles and moments of tokens, and gates of half of the coordinates."""

    def of(self, x, y):
        return (
            torch.linalg.norm(y, dim=-1),
            F.cosine_similarity(x, y, dim=-1),
            torch.var_mean(y, -1)[0],
            torch.std_mean(y, -1)[0],
            F.glu(y, -1),
        )


@pytest.mark.parametrize("build", [Transposes, Joins, Products, Sizes])
def test_composite_operations_match_the_module(build):
    """`.T` of a matrix was refused."""
    for real, ours in outputs(build, (IDS,)):
        assert real.shape == ours.shape
        np.testing.assert_allclose(ours, real, rtol=0, atol=1e-6 * np.abs(real).max())
