"""A model whose `_init_weights` has two mistakes, and the check of step 0 that finds
them.

Run it with `python examples/check_init.py`, or `netsor check-init
examples/check_init.py:broken --reference examples/check_init.py:intended`. It needs
PyTorch.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

import netsor as ns

WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 100


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """The stream after the block."""
        heads = (*x.shape[:2], HEADS, -1)
        q, k, v = (
            y.reshape(heads).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small decoder."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        for name, module in self.named_modules():
            self._init_weights(name, module)

    def _init_weights(self, name, module):
        """N(0, 0.02²), and 0.02/√(2L) for what is added to the stream."""
        if isinstance(module, nn.Linear | nn.Embedding):
            std = (
                0.02 / math.sqrt(2 * LAYERS)
                if name.endswith(("proj", "down"))
                else 0.02
            )
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids):
        """The logits."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Broken(Model):
    """The same, initialised wrongly."""

    def _init_weights(self, name, module):
        """The same with two mistakes: `mlp.down` is not a name here, and biases keep
        their constructor's numbers.
        """
        if isinstance(module, nn.Linear | nn.Embedding):
            std = (
                0.02 / math.sqrt(2 * LAYERS)
                if name.endswith(("proj", "mlp.down"))
                else 0.02
            )
            nn.init.normal_(module.weight, std=std)


def intended():
    """The declared initialisation."""
    return Model()


def broken():
    """The actual initialisation."""
    return Broken()


if __name__ == "__main__":
    print(
        ns.torch.check_init(
            broken, torch.tensor([[3, 7, 7, 1, 9, 4]]), reference=intended
        )
    )
