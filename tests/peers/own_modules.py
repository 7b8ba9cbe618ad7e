"""Modules written as users write them: what they have in common with those of
transformers is the mathematics.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 64, 4


class Attention(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(WIDTH, WIDTH, bias=k > 0) for k in range(4)
        )
        self.turn = turn

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            f(x).view(batch, tokens, HEADS, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(
            self.turn(q), self.turn(k), v, is_causal=True
        )
        return self.o(y.transpose(1, 2).reshape(batch, tokens, WIDTH))


def _angles(x):
    size = x.shape[-1]
    return torch.arange(x.shape[-2])[:, None] * 100.0 ** (
        -torch.arange(0, size, 2) / size
    )


def halves(x):
    """Pairs (f, f + d/2)."""
    angles = _angles(x).repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


def neighbours(x):
    """Pairs (2f, 2f + 1), as GPT-J turns them."""
    angles = _angles(x).repeat_interleave(2, -1)
    return (
        x * angles.cos()
        + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * angles.sin()
    )


def pairs(x):
    """The same, by the formula."""
    cos, sin, a, b = _angles(x).cos(), _angles(x).sin(), x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def some(x):
    """Only the first half of the coordinates."""
    return torch.cat((halves(x[..., :8]), x[..., 8:]), dim=-1)


def complex_numbers(x):
    """The same again, as Meta's code writes it."""
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * torch.polar(torch.ones(1), _angles(x))).flatten(-2)


class Parallel(nn.Module):
    """Attention and perceptron of one norm, with a fixed gain for each coordinate of
    the latter.
    """

    def __init__(self, turn=halves):
        super().__init__()
        self.embed, self.norm, self.attention = (
            nn.Embedding(10, WIDTH),
            nn.LayerNorm(WIDTH),
            Attention(turn),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH)
        )
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, ids):
        x = self.embed(ids)
        h = self.norm(x)
        return x + self.attention(h) + self.mlp(h) * self.gain


class Sandwich(nn.Module):
    """Norms before and after each branch, and a fused gate."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention = (
            nn.Embedding(10, WIDTH, padding_idx=7),
            Attention(some),
        )
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 256), nn.Linear(128, WIDTH)

    def forward(self, ids):
        x = self.embed(ids) * math.sqrt(WIDTH)
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        gate, up = self.up(self.norms[2](x)).chunk(2, -1)
        return x + self.norms[3](self.down(F.silu(gate) * up))


class Differential(nn.Module):
    """The difference of two softmaxes (Ye et al. 2024)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        self.q, self.k = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.one, self.two = (nn.Parameter(0.3 * torch.randn(16)) for _ in range(2))
        self.norm = nn.RMSNorm(16, elementwise_affine=False)

    def forward(self, ids):
        x = self.embed(ids)
        batch, tokens, _ = x.shape
        q, k = (
            f(x).view(batch, tokens, 2 * HEADS, 16).transpose(1, 2)
            for f in (self.q, self.k)
        )
        v = self.v(x).view(batch, tokens, HEADS, 16).transpose(1, 2)
        mask = torch.triu(torch.full((tokens, tokens), float("-inf")), 1)
        a = torch.softmax(q @ k.transpose(-1, -2) / 4 + mask, dim=-1).view(
            batch, HEADS, 2, tokens, tokens
        )
        share = (
            torch.exp((self.one * self.two).sum())
            - torch.exp(torch.sum(self.one * self.one))
            + 0.8
        )
        y = self.norm((a[:, :, 0] - share * a[:, :, 1]) @ v) * 0.2
        return x + self.o(y.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.router = nn.Embedding(10, WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        share, chosen = self.router(x).softmax(-1).topk(2, -1)
        return sum(
            f(x) * (share * (chosen == k)).sum(-1, keepdim=True)
            for k, f in enumerate(self.experts)
        )


class Both(nn.Module):
    """An encoder and a decoder of PyTorch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        self.inner = nn.Transformer(
            WIDTH, HEADS, 1, 1, 96, batch_first=True, dropout=0.0
        )

    def forward(self, ids):
        x = self.embed(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        return self.inner(x, x[:, :3], tgt_mask=mask, tgt_is_causal=True)


class Scaled(nn.Module):
    """As nanoGPT: `_init_weights`, and then smaller output matrices, in the constructor
    alone.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Embedding(10, WIDTH), Attention(halves)
        self.apply(self._init_weights)
        nn.init.normal_(self.attention.o.weight, std=0.02 / math.sqrt(8))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.embed(ids)
        return x + self.attention(x)


class Initialised(nn.Module):
    """One parameter of each law."""

    def __init__(self):
        super().__init__()
        names = ("normal", "uniform", "truncated", "orthogonal", "copy", "rows", "zero")
        for name in names:
            setattr(self, name, nn.Linear(64, 96, bias=False))
        nn.init.normal_(self.normal.weight, std=0.02)
        nn.init.trunc_normal_(self.truncated.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.copy.load_state_dict(self.normal.state_dict())
        nn.init.normal_(self.rows.weight[:32], std=0.5)
        nn.init.zeros_(self.zero.weight)
        self.table = nn.Embedding(50, 64, padding_idx=3)
        self.shifted = nn.Parameter(1 + 0.3 * torch.randn(40, 64))
        self.fixed = nn.Parameter(torch.arange(64.0))


class Views(nn.Module):
    """Vectors in parts of several sizes, end to end along the last axis and along
    another one, and one coordinate.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.fused = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 80)
        self.part, self.middle, self.one = (
            nn.Linear(32, WIDTH),
            nn.Linear(64, WIDTH),
            nn.Linear(64, 1),
        )

    def forward(self, ids):
        wide, narrow = self.fused(self.embed(ids)).split([48, 32], dim=-1)
        a, b, c = wide.unflatten(-1, (3, 16)).unbind(-2)
        ends = torch.cat([c, a + b], dim=-1)
        middle = torch.cat(
            [ends.transpose(1, 2), narrow.transpose(1, 2)], dim=1
        ).transpose(1, 2)
        return self.part(ends) + self.middle(middle), self.one(middle).squeeze(-1)
