"""A small decoder as users write it, and the same with one mistake: what a check of
step 0 must find.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, STD = 64, 4, 3, 50, 0.08
IDS = [3, 7, 7, 1, 9, 4, 12, 30]


class Layer(nn.Module):
    def __init__(self, qk_norm=True, causal=True):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.q_norm, self.k_norm = (
            nn.RMSNorm(WIDTH // HEADS),
            nn.RMSNorm(WIDTH // HEADS),
        )
        self.up, self.gate = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
        )
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.qk_norm, self.causal = qk_norm, causal

    def forward(self, x):
        batch, tokens, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            f(h).view(batch, tokens, HEADS, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """`mistake` names what is wrong with it."""

    def __init__(self, mistake=None):
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WORDS, bias=False),
        )
        off = {"QK-norm off": {"qk_norm": False}, "wrong mask": {"causal": False}}.get(
            mistake, {}
        )
        self.layers = nn.ModuleList(
            Layer(**(off if k == 1 else {})) for k in range(LAYERS)
        )
        self.norm = nn.RMSNorm(WIDTH)
        for name, p in self.named_parameters():
            if p.ndim == 2 and not (
                mistake == "init skipped" and name.startswith("layers.1.")
            ):
                deep = (
                    name.endswith(("o.weight", "down.weight"))
                    and mistake != "depth factor missing"
                )
                nn.init.normal_(p, std=STD / math.sqrt(2 * LAYERS) if deep else STD)
        if mistake == "std":
            self.layers[1].v.weight.data *= math.sqrt(2)
        if mistake == "tied":
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


WHERE = {  # mistakes, and where a check must find each of them first
    "std": "layers.1.v.weight",
    "depth factor missing": "layers.0.o.weight",
    "init skipped": "layers.1.q.weight",
    "tied": "head.weight",
    "QK-norm off": "layers.1",
    "wrong mask": "layers.1",
}
