"""Models as people publish them: forks of a small GPT, wrappers of functions, a paper
line by line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    block_size: int = 32
    vocab_size: int = 48
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.1
    bias: bool = False
    parallel: bool = False
    std: float = 0.08


class CausalSelfAttention(nn.Module):
    """One matrix for queries, keys and values; the mask is a buffer."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = (
            config.n_head,
            config.n_embd,
            config.dropout,
        )
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer(
            "bias", mask.view(1, 1, config.block_size, config.block_size)
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = (
            0.5
            * x
            * (
                1.0
                + torch.tanh(
                    math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
                )
            )
        )
        return self.dropout(self.c_proj(x))


class GPTBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.attn = (
            nn.LayerNorm(config.n_embd, bias=config.bias),
            CausalSelfAttention(config),
        )
        self.ln_2, self.mlp = nn.LayerNorm(config.n_embd, bias=config.bias), MLP(config)
        self.parallel = config.parallel

    def forward(self, x):
        if self.parallel:
            return x + self.attn(self.ln_1(x)) + self.mlp(self.ln_2(x))
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Tied logits; like the original, it makes logits of the last token alone unless
    there are targets.
    """

    def __init__(self, config=None):
        super().__init__()
        self.config = config = config or GPTConfig()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([GPTBlock(config) for _ in range(config.n_layer)]),
                "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for pn, p in self.named_parameters():
            if pn.endswith("c_proj.weight"):
                torch.nn.init.normal_(
                    p, mean=0.0, std=config.std / math.sqrt(2 * config.n_layer)
                )

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=self.config.std)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=self.config.std)

    def forward(self, idx, targets=None):
        device = idx.device
        _, t = idx.size()
        assert t <= self.config.block_size
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        else:
            logits, loss = self.lm_head(x[:, [-1], :]), None
        return logits, loss


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class RMSNorm(nn.Module):
    """F.normalize times √dim."""

    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class Sandwich(nn.Module):
    """A function between two norms."""

    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn, self.post = RMSNorm(dim), fn, RMSNorm(dim)

    def forward(self, x, **kwargs):
        return self.post(self.fn(self.norm(x), **kwargs))


class GEGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * F.gelu(gate)


def FeedForward(dim, mult=4, dropout=0.0):
    inner_dim = int(dim * mult * 2 / 3) // 2 * 2
    return nn.Sequential(
        nn.Linear(dim, inner_dim * 2),
        GEGLU(),
        nn.Dropout(dropout),
        nn.Linear(inner_dim, dim),
    )


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        self.register_buffer(
            "inv_freq",
            1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim)),
            persistent=False,
        )

    def forward(self, seq_len):
        t = torch.arange(seq_len, device=self.inv_freq.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(pos, t):
    return t * pos.cos() + rotate_half(t) * pos.sin()


class Attention(nn.Module):
    """One key and value for all heads, by einsum."""

    def __init__(self, dim, heads=4, dim_head=16):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim_head, bias=False)
        self.to_out = nn.Sequential(
            nn.Linear(heads * dim_head, dim, bias=False), nn.Dropout(0.0)
        )
        self.rotary = RotaryEmbedding(dim_head)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q = q.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)
        pos = self.rotary(n)
        q, k = apply_rotary_pos_emb(pos, q), apply_rotary_pos_emb(pos, k)
        q = q * self.scale
        sim = torch.einsum("b h i d, b j d -> b h i j", q, k)
        causal = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


class SandwichTransformer(nn.Module):
    """A list of pairs of functions, each between two norms."""

    def __init__(self, num_tokens=48, dim=64, depth=2):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            pair = [Sandwich(dim, Attention(dim)), Sandwich(dim, FeedForward(dim))]
            self.layers.append(nn.ModuleList(pair))
        self.to_logits = nn.Sequential(
            RMSNorm(dim), nn.Linear(dim, num_tokens, bias=False)
        )
        nn.init.normal_(self.token_emb.weight, std=0.5)

    def forward(self, x):
        x = self.token_emb(x)
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.to_logits(x)


class DiffAttention(nn.Module):
    """Two softmaxes and their difference, weighted by learned vectors; a norm of each
    head.
    """

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads // 2
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2)
        )
        self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2)
        )
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(
                self,
                name,
                nn.Parameter(
                    torch.zeros(self.head_dim, dtype=torch.float32).normal_(
                        mean=0, std=0.1
                    )
                ),
            )
        self.subln = nn.RMSNorm(2 * self.head_dim, eps=1e-5, elementwise_affine=True)

    def forward(self, x):
        bsz, tgt_len, _ = x.size()
        q = (
            self.q_proj(x)
            .view(bsz, tgt_len, 2 * self.num_heads, self.head_dim)
            .transpose(1, 2)
        )
        k = (
            self.k_proj(x)
            .view(bsz, tgt_len, 2 * self.num_heads, self.head_dim)
            .transpose(1, 2)
        )
        v = (
            self.v_proj(x)
            .view(bsz, tgt_len, self.num_heads, 2 * self.head_dim)
            .transpose(1, 2)
        )
        q *= self.scaling
        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        attn_mask = torch.triu(
            torch.zeros([tgt_len, tgt_len])
            .float()
            .fill_(float("-inf"))
            .type_as(attn_weights),
            1,
        )
        attn_weights = torch.nan_to_num(attn_weights)
        attn_weights += attn_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).type_as(
            attn_weights
        )
        lambda_1 = torch.exp(
            torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1).float()
        ).type_as(q)
        lambda_2 = torch.exp(
            torch.sum(self.lambda_q2 * self.lambda_k2, dim=-1).float()
        ).type_as(q)
        lambda_full = lambda_1 - lambda_2 + self.lambda_init
        attn_weights = attn_weights.view(bsz, self.num_heads, 2, tgt_len, tgt_len)
        attn_weights = attn_weights[:, :, 0] - lambda_full * attn_weights[:, :, 1]
        attn = self.subln(torch.matmul(attn_weights, v)) * (1 - self.lambda_init)
        return self.out_proj(
            attn.transpose(1, 2).reshape(
                bsz, tgt_len, self.num_heads * 2 * self.head_dim
            )
        )


class DiffTransformer(nn.Module):
    def __init__(self, dim=64, depth=2, vocab=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.RMSNorm(dim),
                    "attn": DiffAttention(dim, 2, i),
                    "norm2": nn.RMSNorm(dim),
                    "w1": nn.Linear(dim, 96, bias=False),
                    "w3": nn.Linear(dim, 96, bias=False),
                    "w2": nn.Linear(96, dim, bias=False),
                }
            )
            for i in range(depth)
        )
        self.norm, self.output = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        h = self.embed(tokens)
        for b in self.blocks:
            h = h + b["attn"](b["norm1"](h))
            y = b["norm2"](h)
            h = h + b["w2"](F.silu(b["w1"](y)) * b["w3"](y))
        return self.output(self.norm(h))


class MoeLayer(nn.Module):
    """As in a well-known inference code: every expert sees the tokens that chose it."""

    def __init__(self, experts, gate, num_experts_per_tok=2):
        super().__init__()
        self.experts, self.gate, self.k = (
            nn.ModuleList(experts),
            gate,
            num_experts_per_tok,
        )

    def forward(self, inputs):
        flat = inputs.view(-1, inputs.shape[-1])
        gate_logits = self.gate(flat)
        weights, selected_experts = torch.topk(gate_logits, self.k)
        weights = F.softmax(weights, dim=1, dtype=torch.float).to(inputs.dtype)
        results = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            batch_idx, nth_expert = torch.where(selected_experts == i)
            results[batch_idx] += weights[batch_idx, nth_expert, None] * expert(
                flat[batch_idx]
            )
        return results.view_as(inputs)


class MoeGPT(GPT):
    def __init__(self):
        super().__init__()
        for block in self.transformer.h:
            experts = [MLP(self.config) for _ in range(4)]
            block.mlp = MoeLayer(experts, nn.Linear(self.config.n_embd, 4, bias=False))


class DenseMoe(nn.Module):
    """Every expert computes, and a softmax of the router weighs them."""

    def __init__(self, dim, num_experts=4):
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(dim, num_experts),
            nn.ModuleList(FeedForward(dim) for _ in range(4)),
        )

    def forward(self, x):
        weights = self.gate(x).softmax(dim=-1)
        out = torch.stack([e(x) for e in self.experts], dim=-2)
        return (weights.unsqueeze(-1) * out).sum(dim=-2)


class DenseMoeGPT(GPT):
    def __init__(self):
        super().__init__()
        for block in self.transformer.h:
            block.mlp = DenseMoe(self.config.n_embd)
