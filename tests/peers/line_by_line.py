"""The transformer of "Attention is all you need", as a paper explained line by line has
it.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class LayerNorm(nn.Module):
    """With the standard deviation of a sample."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2, self.eps = (
            nn.Parameter(torch.ones(features)),
            nn.Parameter(torch.zeros(features)),
            eps,
        )

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = LayerNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.softmax(scores, dim=-1)
    p_attn = p_attn if dropout is None else dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h, self.attn = d_model // h, h, None
        self.linears, self.dropout = (
            clones(nn.Linear(d_model, d_model), 4),
            nn.Dropout(p=dropout),
        )

    def forward(self, query, key, value, mask=None):
        mask = mask if mask is None else mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = (
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2, self.dropout = (
            nn.Linear(d_model, d_ff),
            nn.Linear(d_ff, d_model),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.sublayer, self.size = clones(SublayerConnection(size, dropout), 2), size

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.size, self.self_attn, self.src_attn, self.feed_forward = (
            size,
            self_attn,
            src_attn,
            feed_forward,
        )
        self.sublayer = clones(SublayerConnection(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab, max_len=64):
        super().__init__()
        self.lut, self.d_model = nn.Embedding(vocab, d_model), d_model
        pe, position = (
            torch.zeros(max_len, d_model),
            torch.arange(0, max_len).unsqueeze(1),
        )
        div_term = torch.exp(
            torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model)
        )
        pe[:, 0::2], pe[:, 1::2] = (
            torch.sin(position * div_term),
            torch.cos(position * div_term),
        )
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model) + self.pe[
            :, : x.size(1)
        ].requires_grad_(False)


class EncoderDecoder(nn.Module):
    """Line by line: deep copies of one layer, and Glorot's uniform law for every matrix
    afterwards.
    """

    def __init__(
        self, src_vocab=48, tgt_vocab=48, N=2, d_model=64, d_ff=96, h=4, dropout=0.1
    ):
        super().__init__()
        attn, ff = (
            MultiHeadedAttention(h, d_model),
            PositionwiseFeedForward(d_model, d_ff, dropout),
        )
        c = copy.deepcopy
        self.encoder = clones(EncoderLayer(d_model, c(attn), c(ff), dropout), N)
        self.decoder = clones(
            DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout), N
        )
        self.enc_norm, self.dec_norm = LayerNorm(d_model), LayerNorm(d_model)
        self.src_embed, self.tgt_embed = (
            Embeddings(d_model, src_vocab),
            Embeddings(d_model, tgt_vocab),
        )
        self.generator = nn.Linear(d_model, tgt_vocab)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt):
        src_mask = torch.ones(1, 1, src.size(-1))
        tgt_mask = (
            torch.triu(torch.ones((1, tgt.size(-1), tgt.size(-1))), diagonal=1).type(
                torch.uint8
            )
            == 0
        )
        memory = self.src_embed(src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory, x = self.enc_norm(memory), self.tgt_embed(tgt)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.generator(self.dec_norm(x))
