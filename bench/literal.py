"""Networks with every weight drawn, in plain PyTorch: what exact laws are timed against
on an accelerator.

Each function draws a batch of replicas at once, layer by layer, so that no more than a
layer's weights are in memory.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

GPT2 = {
    "width": 768,
    "heads": 12,
    "groups": 12,
    "head_dim": 64,
    "hidden": 3072,
    "layers": 12,
    "vocabulary": 50257,
}
LLAMA = {
    "width": 4096,
    "heads": 32,
    "groups": 8,
    "head_dim": 128,
    "hidden": 14336,
    "layers": 32,
    "vocabulary": 128256,
}


def attention(x, heads, head_dim, causal):
    """Independent queries, keys, values and output of a batch of replicas (replicas,
    tokens, width).
    """
    replicas, tokens, width = x.shape

    def projected():
        """(replicas, heads, tokens, head_dim)"""
        y = x @ weight(x, heads * head_dim, width).mT
        return y.reshape(replicas, tokens, heads, head_dim).transpose(1, 2)

    q, k, v = projected(), projected(), projected()
    scores = q @ k.mT / math.sqrt(head_dim)
    if causal:
        later = torch.ones((tokens, tokens), device=x.device).triu(1).bool()
        scores = scores.masked_fill(later, -math.inf)
    mixed = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)
    mixed = mixed.reshape(replicas, tokens, heads * head_dim)
    return mixed @ weight(x, width, heads * head_dim).mT


def weight(x, rows, columns, std=None):
    """A matrix for each replica; entries N(0, 1/columns), or with this standard
    deviation.
    """
    if std is None:
        std = columns**-0.5
    return torch.randn((x.shape[0], rows, columns), device=x.device).mul_(std)


def rms_norm(x):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True))


def stack(replicas, device, tokens, width, heads, head_dim, hidden, blocks):
    """`gpu.stack`: the last token's first coordinate."""
    x = torch.randn((replicas, tokens, width), device=device)
    for _ in range(blocks):
        x = x + attention(rms_norm(x), heads, head_dim, causal=True)
        h = functional.gelu(rms_norm(x) @ weight(x, hidden, width).mT)
        x = x + h @ weight(x, width, hidden).mT
    return x[:, -1, 0]


def encoder(replicas, device, tokens, width, hidden, layers):
    """`gpu.encoder`: the first token's first coordinate."""
    x = torch.randn((replicas, tokens, width), device=device)
    for _ in range(layers):
        x = functional.layer_norm(x + attention(x, 1, width, causal=False), (width,))
        h = torch.relu(x @ weight(x, hidden, width).mT)
        x = functional.layer_norm(x + h @ weight(x, width, hidden).mT, (width,))
    return x[:, 0, 0]


def module(device, tokens, width, hidden, layers):
    """One encoder of PyTorch's own modules, with the initialisation that they have."""
    x = torch.randn((1, tokens, width), device=device)
    for _ in range(layers):
        x = torch.nn.TransformerEncoderLayer(
            width, 1, hidden, dropout=0.0, batch_first=True, device=device
        )(x)
    return x[:, 0, 0]


def model(
    device, ids, rotary, width, heads, groups, head_dim, hidden, layers, vocabulary
):
    """One initialisation of GPT-2 or Llama with what an audit looks at: stream,
    attention, effective rank; the loss.
    """
    tokens = len(ids)
    std = 0.02
    out = std if rotary else std / math.sqrt(2 * layers)  # of the last matrices
    later = torch.ones((tokens, tokens), device=device).triu(1).bool()
    table = torch.randn((vocabulary, width), device=device).mul_(std)
    x = table[ids][None]
    quantities = []
    if not rotary:
        x = x + torch.randn(x.shape, device=device) * std
    norm = rms_norm if rotary else (lambda x: functional.layer_norm(x, (width,)))
    for _ in range(layers):
        y = norm(x)
        qkv = []
        for count in (heads, groups, groups):
            projected = y @ weight(y, count * head_dim, width, std).mT
            qkv.append(projected.reshape(tokens, count, head_dim).transpose(0, 1))
        q, k, v = qkv
        if rotary:
            q, k = turned(q), turned(k)
        k = k.repeat_interleave(heads // groups, dim=0)
        v = v.repeat_interleave(heads // groups, dim=0)
        scores = (q @ k.mT / math.sqrt(head_dim)).masked_fill(later, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = (weights @ v).transpose(0, 1).reshape(1, tokens, heads * head_dim)
        x = x + mixed @ weight(x, width, heads * head_dim, out).mT
        y = norm(x)
        if rotary:
            gate = functional.silu(y @ weight(y, hidden, width, std).mT)
            h = gate * (y @ weight(y, hidden, width, std).mT)
        else:
            h = functional.gelu(
                y @ weight(y, hidden, width, std).mT, approximate="tanh"
            )
        x = x + h @ weight(x, width, hidden, out).mT
        entropy = -(weights * torch.log(weights.clamp_min(1e-30))).sum(dim=-1).mean()
        spectrum = torch.linalg.eigvalsh(x[0] @ x[0].T / width).clamp_min(1e-30)
        spectrum = spectrum / spectrum.sum()
        rank = torch.exp(-(spectrum * torch.log(spectrum)).sum())
        quantities += [(x * x).mean(), entropy, rank]
    head = torch.randn_like(table).mul_(std) if rotary else table
    logits = norm(x)[0] @ head.T
    loss = functional.cross_entropy(logits[:-1], torch.tensor(ids[1:], device=device))
    return torch.stack([*quantities, logits.std(), loss])


def turned(x, base=500000.0):
    """Rotary positions of (heads, tokens, head_dim)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[1], device=x.device)[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    rotated = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    return torch.cat(rotated, dim=-1)
