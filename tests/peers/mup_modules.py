"""Networks whose parametrisation is derived: as people write them, each a function of
its width (and depth) in plain PyTorch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 64
HEADS = 4


class Attention(nn.Module):
    """Causal attention with one fused matrix, as in nanoGPT."""

    def __init__(self, n, heads, bias):
        super().__init__()
        self.c_attn = nn.Linear(n, 3 * n, bias=bias)
        self.c_proj = nn.Linear(n, n, bias=bias)
        self.heads, self.n = heads, n

    def forward(self, x):
        batch, tokens, n = x.size()
        q, k, v = self.c_attn(x).split(self.n, dim=2)
        k = k.view(batch, tokens, self.heads, n // self.heads).transpose(1, 2)
        q = q.view(batch, tokens, self.heads, n // self.heads).transpose(1, 2)
        v = v.view(batch, tokens, self.heads, n // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, tokens, n)
        return self.c_proj(y)


class Perceptron(nn.Module):
    def __init__(self, n, bias):
        super().__init__()
        self.c_fc = nn.Linear(n, 4 * n, bias=bias)
        self.c_proj = nn.Linear(4 * n, n, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class NanoBlock(nn.Module):
    def __init__(self, n, heads, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n, bias=bias)
        self.attn = Attention(n, heads, bias)
        self.ln_2 = nn.LayerNorm(n, bias=bias)
        self.mlp = Perceptron(n, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """With nanoGPT's initialisation: 0.02 everywhere, the last matrices over √(2L)."""

    def __init__(self, n, depth=2, heads=HEADS, tied=True, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, n),
                "wpe": nn.Embedding(64, n),
                "h": nn.ModuleList(NanoBlock(n, heads, bias) for _ in range(depth)),
                "ln_f": nn.LayerNorm(n, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n, WORDS, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * depth))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(positions)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, WORDS), targets.view(-1))
        return logits, loss
