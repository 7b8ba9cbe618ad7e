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


def rotated(x, base=10000.0):
    """Rotary positions of (batch, heads, tokens, d), by halves."""
    d, tokens = x.shape[-1], x.shape[-2]
    like_x = {"dtype": x.dtype, "device": x.device}
    frequencies = base ** (-torch.arange(0, d, 2, **like_x) / d)
    angles = torch.outer(torch.arange(tokens, **like_x), frequencies)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def causal(scores):
    """Scores with later tokens masked."""
    tokens = scores.shape[-1]
    return scores.masked_fill(later(tokens, scores.device), float("-inf"))


def later(tokens, device):
    """Which tokens come after each token."""
    ones = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
    return torch.triu(ones, 1)


class RotaryAttention(nn.Module):
    """Grouped queries with heads of a fixed dimension, as in Llama; norms of queries
    and keys as in Qwen 3.
    """

    def __init__(self, n, head_dim=16, group=2, normed=False):
        super().__init__()
        self.d = head_dim
        self.q_proj = nn.Linear(n, n, bias=False)
        self.k_proj = nn.Linear(n, n // group, bias=False)
        self.v_proj = nn.Linear(n, n // group, bias=False)
        self.o_proj = nn.Linear(n, n, bias=False)
        self.q_norm = nn.RMSNorm(head_dim) if normed else nn.Identity()
        self.k_norm = nn.RMSNorm(head_dim) if normed else nn.Identity()
        self.group = group

    def forward(self, x):
        batch, tokens, n = x.shape
        q, k, v = (
            f(x).view(batch, tokens, -1, self.d).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(self.q_norm(q)), rotated(self.k_norm(k))
        k, v = (y.repeat_interleave(self.group, dim=1) for y in (k, v))
        weights = causal(q @ k.transpose(-1, -2) * self.d**-0.5).softmax(dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, n))


class GatedPerceptron(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(n, hidden, bias=False)
        self.up_proj = nn.Linear(n, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, n, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A router that chooses two of four experts and weighs them, as in Qwen 3."""

    def __init__(self, n, experts=4, chosen=2):
        super().__init__()
        self.gate = nn.Linear(n, experts, bias=False)
        self.experts = nn.ModuleList(GatedPerceptron(n, n) for _ in range(experts))
        self.chosen = chosen

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        shares, choice = self.gate(x).softmax(dim=-1).topk(self.chosen, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows, slots = torch.where(choice == k)
            weighed = expert(x[rows]) * shares[rows, slots, None]
            result.index_add_(0, rows, weighed)
        return result.view(shape)


class PreNormBlock(nn.Module):
    def __init__(self, n, mixer, perceptron=None):
        super().__init__()
        self.input_norm, self.mixer = nn.RMSNorm(n), mixer
        if perceptron is not None:
            self.post_norm, self.mlp = nn.RMSNorm(n), perceptron

    def forward(self, x):
        x = x + self.mixer(self.input_norm(x))
        return x + self.mlp(self.post_norm(x)) if hasattr(self, "mlp") else x


class Decoder(nn.Module):
    """An embedding, blocks, a norm and a head, initialised by std=0.02 as in Hugging
    Face's classes.
    """

    def __init__(self, n, blocks, std=0.02):
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, n)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(n)
        self.lm_head = nn.Linear(n, WORDS, bias=False)
        if std is not None:
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=std)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def llama(n, depth=2):
    return Decoder(
        n,
        [
            PreNormBlock(n, RotaryAttention(n), GatedPerceptron(n, 2 * n))
            for _ in range(depth)
        ],
    )


def experts(n, depth=1):
    return Decoder(
        n,
        [
            PreNormBlock(n, RotaryAttention(n, normed=True), Experts(n))
            for _ in range(depth)
        ],
    )


class LatentAttention(nn.Module):
    """Keys and values from a shared latent vector, with rotary parts of their own, as
    in DeepSeek-V2. The dimension of the latent vector is n/2, or fixed.
    """

    def __init__(self, n, head_dim=16, rotary=8, latent=None):
        super().__init__()
        self.heads, self.d, self.r = n // head_dim, head_dim, rotary
        latent = latent or n // 2
        self.latent = latent
        self.q_proj = nn.Linear(n, self.heads * (head_dim + rotary), bias=False)
        self.kv_a_proj = nn.Linear(n, latent + rotary, bias=False)
        self.kv_a_norm = nn.RMSNorm(latent)
        self.kv_b_proj = nn.Linear(latent, self.heads * 2 * head_dim, bias=False)
        self.o_proj = nn.Linear(n, n, bias=False)

    def forward(self, x):
        batch, tokens, n = x.shape
        q = self.q_proj(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
        q, q_rotary = q.split([self.d, self.r], dim=-1)
        latent, k_rotary = self.kv_a_proj(x).split([self.latent, self.r], dim=-1)
        kv = self.kv_b_proj(self.kv_a_norm(latent))
        kv = kv.view(batch, tokens, self.heads, -1).transpose(1, 2)
        k, v = kv.split([self.d, self.d], dim=-1)
        k_rotary = rotated(k_rotary[:, None]).expand(-1, self.heads, -1, -1)
        q = torch.cat([q, rotated(q_rotary)], dim=-1)
        k = torch.cat([k, k_rotary], dim=-1)
        scores = q @ k.transpose(-1, -2) * (self.d + self.r) ** -0.5
        y = causal(scores).softmax(dim=-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, n))


def latent_attention(n, depth=1):
    return Decoder(
        n,
        [
            PreNormBlock(n, LatentAttention(n), GatedPerceptron(n, 2 * n))
            for _ in range(depth)
        ],
    )


class Mamba2(nn.Module):
    """The mixer of Mamba-2 with a state of 16 and heads of 16, computed as the masked
    product that it is equal to (Dao and Gu 2024).
    """

    def __init__(self, n, state=16, head_dim=16):
        super().__init__()
        inner = 2 * n
        self.inner, self.state, self.p = inner, state, head_dim
        self.heads = inner // head_dim
        self.in_proj = nn.Linear(n, 2 * inner + 2 * state + self.heads, bias=False)
        mixed = inner + 2 * state
        self.conv1d = nn.Conv1d(mixed, mixed, 4, groups=mixed, padding=3)
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        steps = torch.exp(torch.empty(self.heads).uniform_(math.log(1e-3), -2.3))
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.norm = nn.RMSNorm(inner)
        self.out_proj = nn.Linear(inner, n, bias=False)

    def forward(self, u):
        batch, tokens, _ = u.shape
        sizes = [self.inner, self.inner + 2 * self.state, self.heads]
        z, mixed, dt = self.in_proj(u).split(sizes, dim=-1)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        x, b, c = mixed.split([self.inner, self.state, self.state], dim=-1)
        x = x.view(batch, tokens, self.heads, self.p)
        dt = F.softplus(dt + self.dt_bias)
        decay = (dt * -self.A_log.exp()).cumsum(dim=1).transpose(1, 2)
        between = decay[..., :, None] - decay[..., None, :]
        between = between.masked_fill(later(tokens, u.device), float("-inf"))
        weights = (c @ b.transpose(1, 2))[:, None] * between.exp()
        y = torch.einsum("bhts,bshp->bthp", weights, x * dt[..., None])
        y = (y + self.D[:, None] * x).reshape(batch, tokens, self.inner)
        return self.out_proj(self.norm(y * F.silu(z)))


def mamba2(n, depth=1):
    return Decoder(n, [PreNormBlock(n, Mamba2(n)) for _ in range(depth)], std=None)


class ViT(nn.Module):
    """Patches by a convolution, a class token, learned positions, PyTorch's layers."""

    def __init__(self, n, depth=1, heads=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, n, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, n) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 5, n) * 0.02)
        layers = [
            nn.TransformerEncoderLayer(
                n,
                heads,
                2 * n,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth)
        ]
        self.blocks, self.norm = nn.ModuleList(layers), nn.LayerNorm(n)
        self.head = nn.Linear(n, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def images(count=8, classes=10):
    """Random images and their classes."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, 3, 8, 8, generator=generator)
    return pixels, torch.randint(0, classes, (count,), generator=generator)
