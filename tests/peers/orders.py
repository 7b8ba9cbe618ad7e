"""Modules that order, group and repeat coordinates in unusual ways. All are functions
of tokens (ids).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 16, 4
SIZE = WIDTH // HEADS


def angles(x, base=0.3):
    """Of each token, along the axis before the last, and each pair."""
    return torch.arange(x.shape[-2])[:, None] * base ** torch.arange(x.shape[-1] // 2)


def every_two(x):
    """Rotary positions of the pairs (2f, 2f + 1)."""
    cos, sin, a, b = angles(x).cos(), angles(x).sin(), x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def halves(x):
    """Rotary positions of the pairs (f, f + r/2)."""
    cos, sin = angles(x).cos(), angles(x).sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def some_of_every_two(x):
    """The first half of the coordinates, in pairs (2f, 2f + 1)."""
    return torch.cat(
        (every_two(x[..., : x.shape[-1] // 2]), x[..., x.shape[-1] // 2 :]), -1
    )


def heads(x):
    """(…, tokens, WIDTH) as (…, HEADS, tokens, SIZE)."""
    return x.unflatten(-1, (HEADS, SIZE)).transpose(-3, -2)


def merged(x):
    """The inverse of `heads`."""
    return x.transpose(-3, -2).flatten(-2)


def attended(q, k, v):
    """Causal attention, by its products."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (
        F.softmax(
            (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf), -1
        )
        @ v
    )


class Layer(nn.Module):
    """Embedded tokens, and matrices of Gaussian entries: netsor treats those of
    nn.Linear as Gaussian.
    """

    def __init__(self, **sizes):
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        for name, size in (
            {"q": WIDTH, "k": WIDTH, "v": WIDTH, "o": WIDTH} | sizes
        ).items():
            setattr(self, name, nn.Linear(WIDTH, size, bias=False))
            nn.init.normal_(getattr(self, name).weight, std=WIDTH**-0.5)


class SplitAfterwards(Layer):
    """Turned at full width, and then cut into heads."""

    def __init__(self, turn=every_two):
        super().__init__()
        self.turn = turn

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            heads(self.turn(self.q(x))),
            heads(self.turn(self.k(x))),
            heads(self.v(x)),
        )
        return q @ k.mT, self.o(merged(attended(q, k, v)))


class Gains(Layer):
    """Given numbers that differ by coordinate, after and before the rotation of each
    head.
    """

    def forward(self, ids):
        x = self.embed(ids)
        gains = torch.linspace(0.2, 2.0, SIZE)
        q, k = (
            (every_two(heads(self.q(x))) + gains) * gains,
            every_two(heads(self.k(x)) + gains),
        )
        return q @ k.mT, merged(q), k.mean(-1)


class TwoOrders(Layer):
    """Queries turned in pairs (f, f + r/2), keys in pairs (2f, 2f + 1)."""

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            halves(heads(self.q(x))),
            every_two(heads(self.k(x))),
            heads(self.v(x)),
        )
        return q @ k.mT, self.o(merged(attended(q, k, v)))


class TwoTurns(Layer):
    """Rotations in two orders, one before a nonlinearity and one after it."""

    def forward(self, ids):
        x = self.embed(ids)
        q, k = (halves(every_two(f(x)).tanh()) for f in (self.q, self.k))
        return heads(q) @ heads(k).mT, q


class FusedByHead(Layer):
    """One matrix, with queries, keys and values of each head side by side, as in
    GPT-NeoX.
    """

    def __init__(self):
        super().__init__(qkv=3 * WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            self.qkv(x).view(*x.shape[:2], HEADS, 3 * SIZE).transpose(1, 2).chunk(3, -1)
        )
        return q @ k.mT, self.o(
            merged(attended(some_of_every_two(q), some_of_every_two(k), v))
        )


class FusedByPart(Layer):
    """One matrix, with parts before heads; heads before parts for a second one."""

    def __init__(self):
        super().__init__(one=3 * WIDTH, two=3 * WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            self.one(x).reshape(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        )
        y = self.o(merged(attended(q, k, v)))
        a, b, c = (
            self.two(y)
            .view(*x.shape[:2], HEADS, 3, SIZE)
            .permute(3, 0, 2, 1, 4)
            .unbind(0)
        )
        return y, merged(attended(a, b, c)), a @ b.mT


class Mixed(Layer):
    """Heads and tokens are confused: reshaped without a transpose."""

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            f(x).view(x.shape[0], HEADS, x.shape[1], SIZE)
            for f in (self.q, self.k, self.v)
        )
        y = attended(q, k, v)
        return self.o(y.reshape(x.shape)), self.o(y.transpose(1, 2).reshape(x.shape))


class Grouped(Layer):
    """Keys of two heads for four heads of queries, repeated in both orders."""

    def __init__(self):
        super().__init__(k=WIDTH // 2, v=WIDTH // 2)

    def forward(self, ids):
        x = self.embed(ids)
        q = heads(self.q(x))
        k, v = (f(x).unflatten(-1, (2, SIZE)).transpose(1, 2) for f in (self.k, self.v))
        one = attended(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        two = attended(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
        three = attended(
            q,
            k[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2),
            torch.cat((v, v), 1),
        )
        return self.o(merged(one)), self.o(merged(two)), self.o(merged(three))


class Shuffled(Layer):
    """Heads in another order before the output: groups of heads are interleaved."""

    def forward(self, ids):
        x = self.embed(ids)
        y = attended(*(heads(f(x)) for f in (self.q, self.k, self.v)))
        y = y.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2)
        return merged(y) * torch.linspace(0.5, 1.5, WIDTH), self.o(
            merged(y[:, [3, 2, 1, 0]])
        )


class Windows(Layer):
    """Tokens in windows, which attend in themselves and are then shifted, as in
    Swin.
    """

    def forward(self, ids):
        x = self.embed(ids)
        windows = torch.cat((x[:, 1:], x[:, :1]), 1).unflatten(1, (-1, 2))
        y = attended(*(heads(f(windows)) for f in (self.q, self.k, self.v)))
        return self.o(merged(y)).flatten(1, 2)


class Tied(Layer):
    """Parts of one matrix as queries and keys, and gated halves with given gains."""

    def __init__(self):
        super().__init__(up=2 * WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        gate, value = self.up(x).unflatten(-1, (2, WIDTH)).unbind(-2)
        first, second = self.up(x).unflatten(-1, (HEADS, -1)).split(SIZE, -1)
        ends = torch.cat((gate[..., 4:12], value[..., :8]), -1)
        return (
            F.silu(gate) * value,
            self.o(ends),
            (first * second).flatten(-2),
            second.sum(-1),
        )


class ChannelsFirst(Layer):
    """Coordinates along the second axis, with gains and means over positions and
    coordinates.
    """

    def forward(self, ids):
        y = self.embed(ids).transpose(1, 2) * torch.linspace(1, 2, WIDTH)[:, None]
        pooled = y.mean(-1)
        y = y - y.mean(1, keepdim=True)
        return (
            self.o(pooled),
            self.o(y.transpose(1, 2)),
            y.square().sum((1, 2)),
            y.transpose(1, 2).flatten(1),
        )


class Expanded(Layer):
    """Norms that are repeated along the coordinates, and then summed, added and
    multiplied.
    """

    def forward(self, ids):
        x = self.embed(ids)
        size = x.pow(2).mean(-1, keepdim=True).add(0.1).sqrt().expand_as(x)
        other = self.q(x)
        return (
            size.sum(-1),
            x / size,
            other + size,
            (other * size).sum(-1),
            size[..., 0] * 2.0,
        )


ORDERS = {
    "split after turning": SplitAfterwards,
    "split after turning halves": lambda: SplitAfterwards(halves),
    "split after turning some": lambda: SplitAfterwards(some_of_every_two),
    "gains": Gains,
    "two orders": TwoOrders,
    "two turns": TwoTurns,
    "fused by head": FusedByHead,
    "fused by part": FusedByPart,
    "mixed": Mixed,
    "grouped": Grouped,
    "shuffled": Shuffled,
    "windows": Windows,
    "tied": Tied,
    "channels first": ChannelsFirst,
    "expanded": Expanded,
}
