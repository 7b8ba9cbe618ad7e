"""Modules in the style of public code: vision, graphs, recommendation, diffusion, state
spaces. See `unlisted_modules`.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from .unlisted_modules import (
    BATCH,
    FUTURE,
    HEAD,
    HEADS,
    IDS,
    PIXELS,
    TOKENS,
    WIDTH,
    WORDS,
    Attention,
    Network,
    join_heads,
    linear,
    split_heads,
)

GENERATOR = torch.Generator().manual_seed(1)
FEATURES = torch.randn(4, 5, generator=GENERATOR)
TIMES = torch.tensor([3.0, 250.0])
IMAGES = torch.randn(2, 2, 4, 4, generator=GENERATOR)
POINTS = torch.rand(6, 3, generator=GENERATOR)
EDGES = torch.tensor(
    [
        [1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
    ]
)
CATEGORIES = torch.tensor([[3, 1, 0], [2, 1, 5], [7, 4, 4]])


def gaussian(module):
    """Gaussian weights in layers that torch initialises otherwise."""
    for name, p in module.named_parameters():
        is_gain = name.endswith("weight") and p.ndim == 1
        if p.ndim > 1:
            nn.init.normal_(p, std=p[0].numel() ** -0.5)
        elif not is_gain:
            nn.init.normal_(p, std=0.2)
    return module


# Attention


class PerceiverIO(nn.Module):
    """Latents read the tokens, attend to themselves, and output queries read them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.queries = nn.Parameter(torch.randn(2, WIDTH))
        make = {"embed_dim": WIDTH, "num_heads": HEADS, "batch_first": True}
        self.encode = gaussian(nn.MultiheadAttention(**make))
        self.process = gaussian(nn.MultiheadAttention(**make))
        self.decode = gaussian(nn.MultiheadAttention(**make))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = linear(WIDTH, WORDS, bias=True)

    def forward(self, ids):
        x = self.embed(ids)
        z = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        z = z + self.encode(self.norm(z), x, x)[0]
        h = self.norm(z)
        z = z + self.process(h, h, h)[0]
        queries = self.queries.expand(x.size(0), -1, -1)
        return self.head(self.decode(queries, z, z, need_weights=False)[0])


class MultiQueryAlibi(Attention):
    """One head of keys and values, slopes of ALiBi, and a learnt temperature."""

    def __init__(self):
        super().__init__()
        self.k, self.v = linear(WIDTH, HEAD), linear(WIDTH, HEAD)
        self.temperature = nn.Parameter(1 + 0.3 * torch.randn(HEADS, 1, 1))
        slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
        gap = torch.arange(TOKENS)[None, :] - torch.arange(TOKENS)[:, None]
        self.register_buffer("alibi", slopes[:, None, None] * gap)

    def mix(self, x):
        q = split_heads(self.q(x))
        k, v = self.k(x)[:, None], self.v(x)[:, None]
        q = functional.normalize(q, dim=-1) * self.temperature
        scores = q @ functional.normalize(k, dim=-1).transpose(-2, -1) + self.alibi
        weights = scores.masked_fill(FUTURE, float("-inf")).softmax(-1)
        return self.o(join_heads(weights @ v))


class Forgetting(Attention):
    """Sums of log-sigmoid gates are added to the scores (FoX)."""

    def __init__(self):
        super().__init__()
        self.forget = linear(WIDTH, HEADS, bias=True)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        sums = functional.logsigmoid(self.forget(x)).mT.cumsum(-1)
        bias = (sums[..., :, None] - sums[..., None, :]).masked_fill(FUTURE, -torch.inf)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o(join_heads(y))


class GatedAttentionUnit(Network):
    """FLASH: one small base for queries and keys, squared ReLU, and a gate."""

    def __init__(self):
        super().__init__()
        self.up, self.base = linear(WIDTH, 2 * 24), linear(WIDTH, 6)
        self.gamma = nn.Parameter(1 + 0.3 * torch.randn(2, 6))
        self.beta = nn.Parameter(0.3 * torch.randn(2, 6))
        self.o = linear(24, WIDTH)

    def mix(self, x):
        gate, value = functional.silu(self.up(x)).chunk(2, dim=-1)
        z = functional.silu(self.base(x))
        z = torch.einsum("...d,hd->...hd", z, self.gamma) + self.beta
        q, k = z.unbind(dim=-2)
        scores = torch.einsum("bid,bjd->bij", q, k) / TOKENS
        weights = functional.relu(scores).square().tril()
        return self.o(gate * torch.einsum("bij,bjd->bid", weights, value))


class Linformer(Attention):
    """Keys and values are projected along the tokens."""

    def __init__(self):
        super().__init__()
        self.project = nn.Parameter(torch.randn(TOKENS, 3) / TOKENS**0.5)

    def mix(self, x):
        k = torch.einsum("bnd,nk->bkd", self.k(x), self.project)
        v = torch.einsum("bnd,nk->bkd", self.v(x), self.project)
        q, k, v = (split_heads(y) for y in (self.q(x), k, v))
        return self.o(join_heads((q @ k.mT * HEAD**-0.5).softmax(-1) @ v))


class ChosenKeys(Attention):
    """Each query attends to its two best keys only."""

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        scores = (q @ k.mT) * HEAD**-0.5
        kept = scores.topk(2, dim=-1)[0][..., -1:]
        scores = scores.masked_fill(scores < kept, torch.finfo(scores.dtype).min)
        return self.o(join_heads(scores.softmax(-1) @ v))


class Additive(Attention):
    """Scores of Bahdanau: a vector reads the tanh of sums of queries and keys."""

    def __init__(self):
        super().__init__()
        self.energy = linear(WIDTH, 1)

    def mix(self, x):
        sums = torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])
        scores = self.energy(sums).squeeze(-1).masked_fill(FUTURE, -1e9)
        return self.o(torch.bmm(scores.softmax(-1), self.v(x)))


class ClassAttention(nn.Module):
    """CaiT: LayerScale, and a class token that alone attends at the end."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.gamma = nn.ParameterList(
            nn.Parameter(0.1 * torch.ones(WIDTH)) for _ in range(2)
        )
        self.up, self.down = linear(WIDTH, 24, bias=True), linear(24, WIDTH)
        self.attend = gaussian(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.gamma[0] * self.down(functional.gelu(self.up(self.norm(x))))
        token = self.token.expand(x.shape[0], -1, -1)
        u = self.norm(torch.cat((token, x), dim=1))
        token = token + self.gamma[1] * self.attend(u[:, :1], u, u)[0]
        return self.head(token[:, 0])


# Experts


class GatheredExperts(Network):
    """Experts choose tokens, gather them, and add their results to the places."""

    def __init__(self):
        super().__init__()
        self.router = linear(WIDTH, 3)
        self.up = nn.Parameter(torch.randn(3, WIDTH, 8) / 4)
        self.down = nn.Parameter(torch.randn(3, 8, WIDTH) / 3)

    def mix(self, x):
        scores = self.router(x).softmax(-1).transpose(1, 2)
        share, place = scores.topk(2, dim=-1)
        one_hot = functional.one_hot(place, TOKENS).to(x.dtype)
        taken = torch.einsum("bekt,btd->bekd", one_hot, x)
        y = functional.relu(torch.einsum("bekd,edf->bekf", taken, self.up))
        y = torch.einsum("bekf,efd->bekd", y, self.down)
        return torch.einsum("bekt,bek,bekd->btd", one_hot, share, y)


class SoftSlots(Network):
    """Soft MoE of unit tokens and slots with a scale."""

    def __init__(self):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(2, 3, WIDTH))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.experts = nn.ModuleList(
            nn.Sequential(linear(WIDTH, 20), nn.GELU(), linear(20, WIDTH))
            for _ in range(2)
        )

    def mix(self, x):
        slots = functional.normalize(self.slots, dim=-1) * self.scale
        logits = torch.einsum("bnd,esd->bnes", functional.normalize(x, dim=-1), slots)
        into = torch.einsum("bnd,bnes->ebsd", x, logits.softmax(dim=1))
        y = torch.stack([f(h) for f, h in zip(self.experts, into, strict=True)], dim=1)
        combine = logits.flatten(2).softmax(dim=-1)
        return torch.einsum("bsd,bns->bnd", y.flatten(1, 2), combine)


class MixtureOfHeads(Attention):
    """A router chooses heads, by their rank."""

    def __init__(self):
        super().__init__()
        self.router = linear(WIDTH, HEADS)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = self.router(x)
        rank = logits.argsort(-1, descending=True).argsort(-1)
        gates = torch.where(rank < 1, logits.softmax(-1), 0.0)
        return self.o(join_heads(y * gates.transpose(1, 2)[..., None]))


class ProductKeys(Network):
    """Memories of product keys: the best of all sums of two halves."""

    def __init__(self):
        super().__init__()
        self.query = linear(WIDTH, 8)
        self.keys = nn.Parameter(torch.randn(2, 3, 4) / 2)
        self.values = nn.Parameter(torch.randn(9, WIDTH))

    def mix(self, x):
        q = self.query(x).unflatten(-1, (2, 4))
        halves = torch.einsum("bthd,hkd->bthk", q, self.keys)
        sums = (halves[..., 0, :, None] + halves[..., 1, None, :]).flatten(-2)
        best, place = sums.topk(2, dim=-1)
        weights = torch.zeros_like(sums).scatter_(-1, place, best.softmax(-1))
        return weights @ self.values


# Recurrences


class DiagonalStates(Network):
    """S4D with real poles: the convolution by its kernel."""

    def __init__(self):
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(WIDTH) * math.log(100) - math.log(1000))
        self.log_rate = nn.Parameter(torch.log(0.5 + torch.arange(4)).repeat(WIDTH, 1))
        self.c = nn.Parameter(torch.randn(WIDTH, 4))
        self.skip = nn.Parameter(torch.randn(WIDTH))
        self.out = linear(WIDTH, 2 * WIDTH, bias=True)

    def mix(self, x):
        rate = -torch.exp(self.log_rate)
        step = torch.exp(self.log_step)[:, None]
        powers = (step * rate)[..., None] * torch.arange(TOKENS)
        c = self.c * (torch.exp(step * rate) - 1.0) / rate
        kernel = torch.einsum("hn,hnl->hl", c, torch.exp(powers))
        y = torch.stack(
            [
                sum(kernel[:, t - s] * x[:, s] for s in range(t + 1))
                for t in range(TOKENS)
            ],
            dim=1,
        )
        y = functional.gelu(y + self.skip * x)
        return functional.glu(self.out(y), dim=-1)


class FourierConvolution(DiagonalStates):
    """The same, with a product of Fourier transforms along the tokens."""

    def mix(self, x):
        rate = -torch.exp(self.log_rate)
        step = torch.exp(self.log_step)[:, None]
        powers = (step * rate)[..., None] * torch.arange(TOKENS)
        c = self.c * (torch.exp(step * rate) - 1.0) / rate
        kernel = torch.einsum("hn,hnl->hl", c, torch.exp(powers))
        size = 2 * TOKENS
        product = torch.fft.rfft(x.mT, n=size) * torch.fft.rfft(kernel, n=size)
        y = torch.fft.irfft(product, n=size)[..., :TOKENS].mT
        return functional.glu(self.out(functional.gelu(y + self.skip * x)), dim=-1)


class FourierMixing(Network):
    """FNet: the real part of a transform of tokens and coordinates."""

    def __init__(self):
        super().__init__()
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)

    def mix(self, x):
        x = functional.layer_norm(x + torch.fft.fft2(x).real, (WIDTH,))
        return self.down(functional.gelu(self.up(x)))


class GlobalFilter(nn.Module):
    """GFNet: a random filter of frequencies of positions, one for each channel."""

    def __init__(self):
        super().__init__()
        self.patch = gaussian(nn.Conv2d(2, WIDTH, 1))
        self.filter = nn.Parameter(torch.randn(4, 3, WIDTH, 2))
        self.head = linear(WIDTH, 4)

    def forward(self, pixels):
        x = self.patch(pixels).permute(0, 2, 3, 1)
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        spectrum = spectrum * torch.view_as_complex(self.filter)
        y = torch.fft.irfft2(spectrum, s=(4, 4), dim=(1, 2), norm="ortho")
        return self.head(functional.gelu(x + y).mean((1, 2)))


class RetentionChunks(Attention):
    """RetNet in chunks of two tokens, group norm of heads, and a gate."""

    def __init__(self):
        super().__init__()
        self.gate = linear(WIDTH, WIDTH)
        self.norm = nn.GroupNorm(HEADS, WIDTH, affine=False)
        self.register_buffer("decay", 1 - 2.0 ** (-1 - torch.arange(HEADS)))

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        k = k * HEAD**-0.5
        decay = self.decay[:, None, None]
        state = torch.zeros(x.shape[0], HEADS, HEAD, HEAD, dtype=x.dtype)
        outputs = []
        for start in range(0, TOKENS, 2):
            part = slice(start, min(start + 2, TOKENS))
            a, b, c = q[:, :, part], k[:, :, part], v[:, :, part]
            size = a.shape[2]
            index = torch.arange(size)
            inside = decay ** (index[:, None] - index).clamp(min=0)
            inside = torch.tril(inside.expand(HEADS, size, size))
            within = (a @ b.mT * inside) @ c
            across = (a * decay ** (index[:, None] + 1)) @ state
            outputs.append(within + across)
            kept = b * decay ** (size - 1 - index[:, None])
            state = state * decay**size + kept.mT @ c
        y = torch.cat(outputs, dim=2).transpose(1, 2).reshape(*x.shape)
        y = self.norm(y.view(-1, WIDTH)).view_as(x)
        return self.o(functional.silu(self.gate(x)) * y)


class GatedChunks(Attention):
    """Gated linear attention with decays of each channel, in chunks."""

    def __init__(self):
        super().__init__()
        self.low, self.high = linear(WIDTH, 4), linear(4, WIDTH, bias=True)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        logs = functional.logsigmoid(split_heads(self.high(self.low(x)))) / 16
        state = x.new_zeros(x.shape[0], HEADS, HEAD, HEAD)
        outputs = []
        for a, b, c, g in zip(
            *(y.split(2, dim=2) for y in (q, k, v, logs)), strict=True
        ):
            sums = g.cumsum(2)
            a, b_in = a * sums.exp(), b * (-sums).exp()
            within = (a @ b_in.mT).tril() @ c
            outputs.append(within + a @ state)
            last = sums[:, :, -1:]
            kept = b * (last - sums).exp()
            state = last.exp().mT * state + kept.mT @ c
        return self.o(join_heads(torch.cat(outputs, dim=2)))


class GatedTransformer(nn.Module):
    """GTrXL: GRU gates where residual sums would be."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attend = gaussian(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
        self.norm = nn.LayerNorm(WIDTH)
        self.w = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(3))
        self.u = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(3))
        self.bias = nn.Parameter(torch.full((WIDTH,), 2.0))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        h = self.norm(x)
        mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(1).to(x.dtype)
        y = functional.relu(self.attend(h, h, h, attn_mask=mask)[0])
        r = torch.sigmoid(self.w[0](y) + self.u[0](x))
        z = torch.sigmoid(self.w[1](y) + self.u[1](x) - self.bias)
        h = torch.tanh(self.w[2](y) + self.u[2](r * x))
        return self.head((1 - z) * x + z * h)


class Universal(nn.Module):
    """A block that repeats until the halting probabilities of a token are used up."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.steps = nn.Parameter(torch.randn(3, WIDTH))
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)
        self.halt, self.head = linear(WIDTH, 1, bias=True), linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        left, total = torch.ones(ids.shape, dtype=x.dtype), torch.zeros_like(x)
        for step in range(3):
            x = functional.layer_norm(x + self.steps[step], (WIDTH,))
            x = x + self.down(functional.gelu(self.up(x)))
            p = torch.sigmoid(self.halt(x)).squeeze(-1)
            p = left if step == 2 else torch.minimum(p, left)
            total = total + p.unsqueeze(-1) * x
            left = left - p
        return self.head(total)


class Differential(nn.Module):
    """A neural ODE: four steps of Runge and Kutta with one function."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.net = nn.Sequential(
            linear(WIDTH, 20, bias=True), nn.Tanh(), linear(20, WIDTH)
        )
        self.time, self.head = nn.Parameter(torch.randn(WIDTH)), linear(WIDTH, WORDS)

    def slope(self, t, x):
        return self.net(x + t * self.time)

    def forward(self, ids):
        x, h = self.embed(ids), 0.5
        for i in range(2):
            t = i * h
            k1 = self.slope(t, x)
            k2 = self.slope(t + h / 2, x + h / 2 * k1)
            k3 = self.slope(t + h / 2, x + h / 2 * k2)
            k4 = self.slope(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.head(x)


# Images


class ExcitedNetwork(nn.Module):
    """Convolutions with squeeze and excitation, and a head on means."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, WIDTH, 3, padding=1)
        self.depth = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.squeeze = nn.Conv2d(WIDTH, 4, 1)
        self.excite = nn.Conv2d(4, WIDTH, 1)
        self.project = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
        self.head = nn.Linear(WIDTH, 4)
        gaussian(self)

    def forward(self, pixels):
        x = functional.hardswish(self.stem(pixels))
        h = functional.silu(self.norm(self.depth(x)))
        pooled = functional.adaptive_avg_pool2d(h, 1)
        h = h * self.excite(functional.relu(self.squeeze(pooled))).sigmoid()
        x = x + self.project(h)
        return self.head(torch.flatten(x.mean((2, 3)), 1))


class SmallUNet(nn.Module):
    """Diffusion: embedded times, skips, upsampling, and attention in the middle."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.norm1, self.norm2 = nn.GroupNorm(4, 8), nn.GroupNorm(4, 16)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.qkv, self.out = nn.Conv1d(16, 48, 1), nn.Conv1d(16, 16, 1)
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Conv2d(16, 2, 3, padding=1)
        gaussian(self)

    def forward(self, pixels, times):
        frequencies = torch.exp(-math.log(1000) * torch.arange(4) / 4)
        angles = times[:, None] * frequencies[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x = self.stem(pixels)
        h = self.down(functional.silu(self.norm1(x))) + t[:, :, None, None]
        b, c, height, width = h.shape
        q, k, v = self.qkv(self.norm2(h).view(b, c, -1)).chunk(3, dim=1)
        weights = torch.softmax(q.transpose(1, 2) @ k / c**0.5, dim=-1)
        h = h + self.out(v @ weights.transpose(1, 2)).view(b, c, height, width)
        h = functional.interpolate(h, scale_factor=2, mode="nearest")
        x = torch.cat([x, self.up(h)], dim=1)
        return self.last(functional.silu(x)).flatten(2).transpose(1, 2)


class Decoder(nn.Module):
    """Transposed convolutions make a larger image."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1, stride=2)
        self.up = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1)
        self.last = nn.ConvTranspose2d(6, 2, 3, (1, 2), 1, (0, 1), bias=False)
        gaussian(self)

    def forward(self, pixels):
        x = functional.leaky_relu(self.up(functional.silu(self.stem(pixels))), 0.2)
        return self.last(x).flatten(2).transpose(1, 2)


class Modulated(nn.Module):
    """FiLM: channels of an image are scaled and shifted by a question."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.ask = linear(WIDTH, 2 * 8, bias=True)
        self.one, self.two = (
            nn.Conv2d(2, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.head = nn.Linear(8, 4)
        gaussian(self.one), gaussian(self.two), gaussian(self.head)

    def forward(self, pixels, ids):
        gamma, beta = self.ask(torch.tanh(self.embed(ids).mean(dim=1))).chunk(2, dim=1)
        x = functional.relu(self.one(pixels))
        h = self.norm(self.two(x))
        h = (1 + gamma[..., None, None]) * h + beta[..., None, None]
        return self.head((x + functional.relu(h)).amax(dim=(-2, -1)))


class Mixer(nn.Module):
    """MLP-Mixer: patches, a perceptron of patches, one of channels, and their mean."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(2, WIDTH, kernel_size=2, stride=2)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Conv1d(4, 6, 1), nn.GELU(), nn.Conv1d(6, 4, 1))
        self.channels = nn.Sequential(
            nn.Linear(WIDTH, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, WIDTH)
        )
        self.head = nn.Linear(WIDTH, 4)
        gaussian(self)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).permute(0, 2, 1)
        x = x + self.tokens(self.norm1(x))
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(dim=1))


class Conformer(nn.Module):
    """Half steps of perceptrons around attention and a gated convolution."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Sequential(linear(WIDTH, 24), nn.SiLU(), linear(24, WIDTH))
        self.attend = gaussian(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
        self.gate = gaussian(nn.Conv1d(WIDTH, 2 * WIDTH, 1))
        self.depth = gaussian(nn.Conv1d(WIDTH, WIDTH, 3, padding="same", groups=WIDTH))
        self.batch = nn.BatchNorm1d(WIDTH)
        self.point = gaussian(nn.Conv1d(WIDTH, WIDTH, 1))
        self.second = nn.Sequential(linear(WIDTH, 24), nn.SiLU(), linear(24, WIDTH))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + 0.5 * self.first(self.norm(x))
        h = self.norm(x)
        x = x + self.attend(h, h, h, need_weights=False)[0]
        h = functional.glu(self.gate(self.norm(x).transpose(1, 2)), dim=1)
        h = self.point(functional.silu(self.batch(self.depth(h))))
        x = x + h.transpose(1, 2)
        x = x + 0.5 * self.second(self.norm(x))
        return self.head(self.norm(x))


# Other inputs


class TextConvolutions(nn.Module):
    """Kernels of three sizes, and the largest value of each over time."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        with torch.no_grad():
            self.embed.weight[0].zero_()
        self.convs = nn.ModuleList(
            nn.Conv1d(WIDTH, 8, k, padding=k - 1) for k in (1, 2, 3)
        )
        self.head = nn.Linear(24, 3)
        gaussian(self.convs), gaussian(self.head)

    def forward(self, ids):
        x = self.embed(ids).permute(0, 2, 1)
        h = [functional.relu(conv(x)) for conv in self.convs]
        pooled = [functional.max_pool1d(y, y.size(2)).squeeze(2) for y in h]
        return self.head(torch.cat(pooled, 1))


class GraphAttention(nn.Module):
    """GAT: scores of neighbours by a leaky ReLU of two sums."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.w = linear(WIDTH, WIDTH)
        self.source = nn.Parameter(torch.randn(1, HEADS, HEAD) * HEAD**-0.5)
        self.target = nn.Parameter(torch.randn(1, HEADS, HEAD) * HEAD**-0.5)
        self.head = linear(WIDTH, WORDS)
        self.register_buffer("edges", EDGES.bool())

    def forward(self, ids):
        h = self.w(self.embed(ids[0])).view(-1, HEADS, HEAD)
        a, b = (h * self.source).sum(-1), (h * self.target).sum(-1)
        scores = functional.leaky_relu(a[:, None] + b[None], 0.2)
        scores = scores.masked_fill(~self.edges[..., None], float("-inf"))
        y = torch.einsum("ijh,jhd->ihd", scores.softmax(dim=1), h)
        return self.head(functional.elu(y.flatten(1)))


class Radiance(nn.Module):
    """Points with sines of many frequencies, and a skip to the input."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (
            linear(15, WIDTH, bias=True),
            linear(WIDTH, WIDTH, bias=True),
        )
        self.three = linear(WIDTH + 15, WIDTH, bias=True)
        self.density, self.color = linear(WIDTH, 1), linear(WIDTH, 3)

    def forward(self, points):
        angles = [2.0**k * points for k in range(2)]
        x = torch.cat(
            [points, *(f(a) for a in angles for f in (torch.sin, torch.cos))], -1
        )
        h = functional.relu(self.two(functional.relu(self.one(x))))
        h = functional.relu(self.three(torch.cat([h, x], dim=-1)))
        density = functional.softplus(self.density(h))
        return torch.cat([density, torch.sigmoid(self.color(h)) * density], dim=-1)


class Tabular(nn.Module):
    """FT-Transformer: each number times a vector, and a class token."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, WIDTH))
        self.bias = nn.Parameter(torch.randn(5, WIDTH))
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.attend = gaussian(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
        self.up, self.down = linear(WIDTH, 2 * 20, bias=True), linear(20, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), linear(WIDTH, 3)

    def forward(self, features):
        x = features.unsqueeze(-1) * self.weight + self.bias
        x = torch.cat([self.token.view(1, 1, -1).expand(len(x), 1, -1), x], dim=1)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        a, b = self.up(self.norm(x)).chunk(2, dim=-1)
        x = x + self.down(a * functional.relu(b))
        return self.head(functional.relu(self.norm(x[:, 0])))


class Interactions(nn.Module):
    """DLRM: products of all pairs of embeddings next to numbers, into a perceptron."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(8, WIDTH) for _ in range(3))
        self.bottom = linear(5, WIDTH, bias=True)
        self.one, self.two = linear(WIDTH + 6, 20, bias=True), linear(20, 2)
        self.wide = nn.ModuleList(nn.Embedding(8, 2) for _ in range(3))

    def forward(self, numbers, categories):
        dense = functional.relu(self.bottom(numbers))
        vectors = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        x = torch.stack([dense, *vectors], dim=1)
        products = torch.bmm(x, x.transpose(1, 2)) / WIDTH**0.5
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        pairs = products[:, rows, columns]
        deep = self.two(functional.relu(self.one(torch.cat([dense, pairs], dim=1))))
        return deep + sum(t(categories[:, i]) for i, t in enumerate(self.wide))


class CrossNetwork(nn.Module):
    """DCN v2 and a factorisation machine."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)
        self.cross = nn.ModuleList(
            linear(3 * WIDTH, 3 * WIDTH, bias=True) for _ in range(2)
        )
        self.head = linear(3 * WIDTH, 2)

    def forward(self, categories):
        embedded = self.table(categories)
        x0 = x = embedded.flatten(1)
        for layer in self.cross:
            x = x0 * layer(x) + x
        square = embedded.sum(dim=1).pow(2) - embedded.pow(2).sum(dim=1)
        return self.head(x) + 0.5 * square.mean(dim=1, keepdim=True)


class TwoTokensAhead(nn.Module):
    """Multi-token prediction: a second block joins the states and the next tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)
        self.norm1, self.norm2 = (
            nn.RMSNorm(WIDTH, eps=1e-6),
            nn.RMSNorm(WIDTH, eps=1e-6),
        )
        self.join, self.last = linear(2 * WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.down(functional.silu(self.up(self.norm1(x))))
        next_one = self.embed(torch.roll(ids, -1, dims=1))
        h = self.join(torch.cat([self.norm1(x), self.norm2(next_one)], dim=-1))
        h = h + functional.silu(self.last(h))
        return torch.cat([self.head(x), self.head(h)], dim=1)


class RandomField(nn.Module):
    """A linear-chain CRF: the logarithm of the sum over all paths, after an LSTM."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.rnn = gaussian(nn.LSTM(WIDTH, 8, batch_first=True, bidirectional=True))
        self.emit = linear(WIDTH, 3, bias=True)
        self.transitions = nn.Parameter(torch.randn(3, 3))

    def forward(self, ids):
        emissions = self.emit(self.rnn(self.embed(ids))[0])
        alpha = emissions[:, 0]
        for t in range(1, ids.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, dim=1)
            alpha = alpha + emissions[:, t]
        return alpha - alpha.logsumexp(-1, keepdim=True)


class Pooled(nn.Module):
    """A learnt query reads the tokens of each sequence, next to their mean."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(8, WIDTH)
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.attend = gaussian(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 20, activation="gelu", batch_first=True, norm_first=True
        )
        self.layer = gaussian(layer)
        self.head = linear(2 * WIDTH, 3, bias=True)

    def forward(self, ids):
        mask = ids.eq(0)
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.layer(x, src_key_padding_mask=mask)
        query = self.query.expand(ids.shape[0], -1, -1)
        read = self.attend(query, x, x, key_padding_mask=mask)[0].squeeze(1)
        x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        mean = x.sum(1) / (~mask).sum(1, keepdim=True)
        return self.head(torch.cat([read, mean], dim=-1))


class LeftPadded(nn.Module):
    """Causal attention of sequences that are padded on the left."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (linear(WIDTH, WIDTH) for _ in range(3))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        causal = torch.ones(4, 4, dtype=torch.bool).tril()
        allowed = causal & (ids != 0)[:, None, None, :]
        bias = torch.zeros(allowed.shape, dtype=x.dtype)
        bias = bias.masked_fill(~allowed, torch.finfo(torch.float32).min)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.head((x + join_heads(y))[:, -1])


EVERYDAY_MODULES = {
    "perceiver with output queries": (PerceiverIO, (IDS,)),
    "one head of keys": (MultiQueryAlibi, (IDS,)),
    "forgetting": (Forgetting, (IDS,)),
    "gated attention unit": (GatedAttentionUnit, (IDS,)),
    "projected tokens": (Linformer, (IDS,)),
    "chosen keys": (ChosenKeys, (IDS,)),
    "additive attention": (Additive, (IDS,)),
    "class attention": (ClassAttention, (IDS,)),
    "gathered experts": (GatheredExperts, (IDS,)),
    "soft slots": (SoftSlots, (IDS,)),
    "mixture of heads": (MixtureOfHeads, (IDS,)),
    "product keys": (ProductKeys, (IDS,)),
    "diagonal states": (DiagonalStates, (IDS,)),
    "Fourier convolution": (FourierConvolution, (IDS,)),
    "Fourier mixing": (FourierMixing, (IDS,)),
    "global filter": (GlobalFilter, (PIXELS,)),
    "retention in chunks": (RetentionChunks, (IDS,)),
    "gated chunks": (GatedChunks, (IDS,)),
    "gated transformer": (GatedTransformer, (IDS,)),
    "universal": (Universal, (IDS,)),
    "differential equation": (Differential, (IDS,)),
    "squeeze and excitation": (ExcitedNetwork, (PIXELS,)),
    "U-Net": (SmallUNet, (IMAGES, TIMES)),
    "decoder": (Decoder, (PIXELS,)),
    "FiLM": (Modulated, (PIXELS, IDS)),
    "mixer": (Mixer, (PIXELS,)),
    "conformer": (Conformer, (IDS,)),
    "convolutions of text": (TextConvolutions, (BATCH,)),
    "graph attention": (GraphAttention, (IDS,)),
    "radiance": (Radiance, (POINTS,)),
    "tabular": (Tabular, (FEATURES,)),
    "interactions": (Interactions, (FEATURES[:3], CATEGORIES)),
    "cross network": (CrossNetwork, (CATEGORIES,)),
    "two tokens ahead": (TwoTokensAhead, (IDS,)),
    "random field": (RandomField, (IDS,)),
    "pooled": (Pooled, (BATCH,)),
    "padded on the left": (LeftPadded, (BATCH.flip(1),)),
}
