"""Modules that combine what papers of the last years propose, as users write them.

Each takes given inputs and returns logits or another tensor of scalars. They are small:
a law at finite width is exact, so that a small width shows a wrong one best.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, WORDS = 16, 2, 12
HEAD = WIDTH // HEADS
IDS = torch.tensor([[3, 7, 7, 1, 9]])
TOKENS = IDS.shape[1]
BATCH = torch.tensor([[3, 7, 7, 1], [2, 5, 0, 0], [8, 7, 4, 0]])
GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randn(1, 2, 4, 4, generator=GENERATOR)
CONTEXT = torch.randn(1, 3, 6, generator=GENERATOR)
FUTURE = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


def linear(inputs, outputs, std=None, bias=False):
    """A matrix of Gaussian entries that keeps mean squares, or of this deviation."""
    made = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(made.weight, std=inputs**-0.5 if std is None else std)
    if bias:
        nn.init.normal_(made.bias, std=0.3)
    return made


def split_heads(x):
    """(batch, heads, tokens, size of a head)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def join_heads(x):
    """The inverse."""
    return x.transpose(1, 2).flatten(-2)


class Network(nn.Module):
    """A residual branch between a table and logits."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.mix(functional.rms_norm(x, (WIDTH,), eps=1e-6)))


class Attention(Network):
    """Softmax attention with hooks for what is unusual."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))

    def scores(self, q, k):
        return (q @ k.mT / HEAD**0.5).masked_fill(FUTURE, -torch.inf)

    def weights(self, scores):
        return scores.softmax(-1)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        return self.o(join_heads(self.weights(self.scores(q, k)) @ v))


# Experts and gates


class GatesOfGates(Network):
    """The gate of an expert is a softmax, times a gate that the first gates decide."""

    def __init__(self):
        super().__init__()
        self.router, self.second = linear(WIDTH, 3, bias=True), linear(3, 3, bias=True)
        self.experts = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(3))

    def mix(self, x):
        first = self.router(x).softmax(-1)
        gates = first * torch.sigmoid(self.second(torch.log(first + 1e-3)))
        return sum(
            gates[..., e, None] * torch.tanh(f(x)) for e, f in enumerate(self.experts)
        )


class Capacity(Network):
    """An expert takes at most two tokens; the others pass by."""

    def __init__(self):
        super().__init__()
        self.router = linear(WIDTH, 3)
        self.up = nn.Parameter(torch.randn(3, WIDTH, 8) / 4)
        self.down = nn.Parameter(torch.randn(3, 8, WIDTH) / 3)

    def mix(self, x):
        probabilities = self.router(x).softmax(-1)
        best = functional.one_hot(probabilities.argmax(-1), 3).to(x.dtype)
        place = best.cumsum(1) * best
        gates = probabilities * best * (place <= 2)
        h = functional.silu(torch.einsum("btd,edf->btef", x, self.up))
        return torch.einsum("bte,btef,efd->btd", gates, h, self.down)


class ExpertChoice(Network):
    """Each expert chooses its two tokens."""

    def __init__(self):
        super().__init__()
        self.router = linear(WIDTH, 3)
        self.experts = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(3))

    def mix(self, x):
        scores = self.router(x).softmax(-1).mT  # (1, experts, tokens)
        share, chosen = scores.topk(2, -1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, share)
        return sum(
            gates[:, e, :, None] * functional.gelu(f(x))
            for e, f in enumerate(self.experts)
        )


class Depths(Network):
    """Only the two tokens of the largest score go through the branch."""

    def __init__(self):
        super().__init__()
        self.router, self.up = linear(WIDTH, 1), linear(WIDTH, 24)
        self.down = linear(24, WIDTH)

    def mix(self, x):
        score = self.router(x)[..., 0]
        chosen = score >= score.topk(2, -1).values[..., -1:]
        gate = torch.where(chosen, torch.sigmoid(score), torch.zeros_like(score))
        return gate[..., None] * self.down(functional.gelu(self.up(x)))


class SoftExperts(Network):
    """Slots are softmax means of tokens, and tokens of slots."""

    def __init__(self):
        super().__init__()
        self.slots = linear(WIDTH, 4)
        self.experts = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(2))

    def mix(self, x):
        scores = self.slots(x)
        into = scores.softmax(1).mT @ x
        one, two = into.chunk(2, dim=1)
        y = torch.cat([torch.tanh(self.experts[0](one)), self.experts[1](two)], dim=1)
        return scores.softmax(-1) @ y


class Adapters(Network):
    """Low-rank adapters of a matrix that has no gradient; one starts at 0."""

    def __init__(self):
        super().__init__()
        self.base = linear(WIDTH, WIDTH).requires_grad_(False)
        self.a, self.b = linear(WIDTH, 3), linear(3, WIDTH, std=0.2)
        self.c, self.d = linear(WIDTH, 3), nn.Linear(3, WIDTH, bias=False)
        nn.init.zeros_(self.d.weight)

    def mix(self, x):
        y = self.base(x) + 2.0 * self.b(self.a(x)) + self.d(self.c(x))
        return torch.tanh(y)


class Hypernetwork(Network):
    """A network computes the matrix of another one from the mean of the tokens."""

    def __init__(self):
        super().__init__()
        self.make = linear(WIDTH, 4 * 4, std=0.1)
        self.into, self.out = linear(WIDTH, 4), linear(4, WIDTH)

    def mix(self, x):
        matrix = self.make(torch.tanh(x.mean(1))).unflatten(-1, (4, 4))
        return self.out(torch.relu(self.into(x) @ matrix))


class Maxout(Network):
    def __init__(self):
        super().__init__()
        self.up, self.gate = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH, bias=True)

    def mix(self, x):
        y = self.up(x).unflatten(-1, (3, WIDTH)).amax(-2)
        gate = torch.sigmoid(self.gate(x))
        return gate * y - (1 - gate) * x


# Attention


class WindowWithSinks(Attention):
    """A window of two tokens and the first one; a random sink for each head."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def scores(self, q, k):
        gap = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        allowed = (gap >= 0) & ((gap < 2) | (torch.arange(TOKENS) == 0))
        return (q @ k.mT / HEAD**0.5).masked_fill(~allowed, -torch.inf)

    def weights(self, scores):
        sinks = self.sinks[None, :, None, None].expand(1, -1, TOKENS, 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]


class TalkingHeads(Attention):
    """Heads are mixed before and after the softmax."""

    def __init__(self):
        super().__init__()
        self.before = nn.Parameter(torch.randn(HEADS, HEADS))
        self.after = nn.Parameter(torch.randn(HEADS, HEADS))

    def scores(self, q, k):
        return torch.einsum("gh,bhij->bgij", self.before, q @ k.mT / HEAD**0.5)

    def weights(self, scores):
        weights = scores.masked_fill(FUTURE, -torch.inf).softmax(-1)
        return torch.einsum("gh,bhij->bgij", self.after, weights)


class CosineAttention(Attention):
    """Unit queries and keys with a scale of each head, and a position bias by a net."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(HEADS, 1, 1))
        self.bias = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), linear(8, HEADS))

    def scores(self, q, k):
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        gap = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS))[..., None] / TOKENS
        bias = self.bias(gap.to(q.dtype)).permute(2, 0, 1)
        scale = self.scale.clamp(max=1.0).exp()
        return (scale * (q @ k.mT) + bias).masked_fill(FUTURE, -torch.inf)


class Memories(Attention):
    """Random keys and values next to those of the tokens, and gates of heads."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(1, HEADS, 2, HEAD))
        self.values = nn.Parameter(torch.randn(1, HEADS, 2, HEAD))
        self.gate = linear(WIDTH, HEADS)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        y = (q @ k.mT / HEAD**0.5).softmax(-1) @ v
        gates = torch.sigmoid(self.gate(x)).mT[..., None]
        return self.o(join_heads(gates * y))


class Sparsemax(Attention):
    """The projection on the simplex by sorting."""

    def scores(self, q, k):
        return q @ k.mT / HEAD**0.5

    def weights(self, scores):
        ordered, _ = scores.sort(-1, descending=True)
        sums = ordered.cumsum(-1) - 1
        count = torch.arange(1, TOKENS + 1)
        support = (count * ordered > sums).to(scores.dtype)
        size = support.sum(-1, keepdim=True)
        threshold = (ordered * support).sum(-1, keepdim=True) - 1
        return (scores - threshold / size).clamp(min=0.0)


class Biaffine(Network):
    """Scores of pairs by a matrix, and nn.Bilinear of two reductions."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.one, self.two = linear(WIDTH, 5), linear(WIDTH, 4)
        self.both = nn.Parameter(torch.randn(WIDTH, 5, 4) / 4)

    def mix(self, x):
        weights = (x @ self.pairs @ x.mT).masked_fill(FUTURE, -torch.inf).softmax(-1)
        y = weights @ x
        products = torch.einsum("bti,btj,oij->bto", self.one(y), self.two(x), self.both)
        return y + products


class CrossAttention(nn.Module):
    """Queries of tokens, keys and values of given numbers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (
            linear(WIDTH, WIDTH),
            linear(6, WIDTH),
            linear(6, WIDTH),
        )
        self.o, self.head = linear(WIDTH, WIDTH), linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, context):
        x = self.embed(ids)
        q = split_heads(self.q(self.norm(x)))
        k, v = split_heads(self.k(context)), split_heads(self.v(context))
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.head(x + self.o(join_heads(y)))


class Perceiver(nn.Module):
    """Random latents read the tokens, twice with the same weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.latents = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.head = linear(2 * WIDTH, WORDS)

    def forward(self, ids):
        x, z = self.embed(ids), self.latents
        for _ in range(2):
            q, k, v = (split_heads(y) for y in (self.q(z), self.k(x), self.v(x)))
            y = functional.scaled_dot_product_attention(q, k, v)
            z = functional.layer_norm(z + self.o(join_heads(y)), (WIDTH,), eps=1e-6)
        return self.head(z.flatten(1))


class Padded(nn.Module):
    """Sequences of several lengths, pooled over their tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), linear(WIDTH, 3)
        nn.init.normal_(self.attend.in_proj_weight, std=0.3)
        nn.init.normal_(self.attend.out_proj.weight, std=0.3)
        nn.init.normal_(self.embed.weight)
        with torch.no_grad():
            self.embed.weight[0] = 0

    def forward(self, ids):
        x, padding = self.embed(ids), ids == 0
        y = self.norm(x)
        x = x + self.attend(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        keep = (~padding)[..., None].to(x.dtype)
        return self.head((x * keep).sum(1) / keep.sum(1))


class Vision(nn.Module):
    """Patches, a class token, positions, and two ways to pool."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(2, WIDTH, 2, stride=2)
        nn.init.normal_(self.patch.weight, std=0.4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 5, WIDTH) * 0.5)
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.block = nn.Sequential(
            nn.LayerNorm(WIDTH), linear(WIDTH, 24), nn.GELU(), linear(24, WIDTH)
        )
        self.head = linear(2 * WIDTH, 4, bias=True)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        x = x + self.block(x)
        weights = (self.query @ x.mT / WIDTH**0.5).softmax(-1)
        return self.head(torch.cat([x[:, 0], (weights @ x)[:, 0]], dim=-1))


# Residual streams


class AdaptiveNorm(nn.Module):
    """Shift, scale and gate from a condition, which start at 0 or do not."""

    def __init__(self, std):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.condition = nn.Sequential(linear(6, WIDTH), nn.SiLU())
        self.modulate = linear(WIDTH, 3 * WIDTH, std=std, bias=True)
        nn.init.zeros_(self.modulate.bias)
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids, context):
        x = self.embed(ids)
        shift, scale, gate = self.modulate(self.condition(context[:, :1])).chunk(3, -1)
        h = functional.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale) + shift
        return self.head(x + gate * self.down(functional.gelu(self.up(h))))


class HyperConnections(nn.Module):
    """Three streams, mixed by a doubly stochastic matrix of each token."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mixing = nn.ModuleList(linear(3 * WIDTH, 9) for _ in range(2))
        self.reading = nn.ModuleList(linear(3 * WIDTH, 3) for _ in range(2))
        self.layers = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(2))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        streams = torch.stack([x, 0.5 * x, x.flip(1)], dim=2)
        for mix, read, layer in zip(
            self.mixing, self.reading, self.layers, strict=True
        ):
            flat = functional.rms_norm(streams.flatten(-2), (3 * WIDTH,), eps=1e-6)
            matrix = mix(flat).unflatten(-1, (3, 3)).exp()
            for _ in range(4):
                matrix = matrix / matrix.sum(-1, keepdim=True)
                matrix = matrix / matrix.sum(-2, keepdim=True)
            weights = torch.sigmoid(read(flat))
            y = torch.tanh(layer((weights[..., None] * streams).sum(-2)))
            streams = matrix @ streams + weights[..., None] * y[..., None, :]
        return self.head(streams.mean(-2))


class SharedBlock(nn.Module):
    """One block three times, with a scale and an adapter of each pass."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)
        self.scales = nn.Parameter(torch.randn(3))
        self.a = nn.ModuleList(linear(WIDTH, 2) for _ in range(3))
        self.b = nn.ModuleList(linear(2, WIDTH) for _ in range(3))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        for i in range(3):
            h = functional.rms_norm(x, (WIDTH,), eps=1e-6)
            y = self.down(torch.relu(self.up(h))) + self.b[i](self.a[i](h))
            x = x + self.scales[i] * y
        return self.head(x)


class TiedEverything(nn.Module):
    """One table is the head; one matrix is query, key, perceptron and its transpose."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.one = linear(WIDTH, WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.one(functional.rms_norm(x, (WIDTH,), eps=1e-6))
        weights = (y @ y.mT / WIDTH).masked_fill(FUTURE, -torch.inf).softmax(-1)
        x = x + weights @ y
        x = x + torch.tanh(x @ self.one.weight.T) @ self.one.weight
        return (
            functional.rms_norm(x, (WIDTH,), eps=1e-6)
            @ self.embed.weight.T
            / WIDTH**0.5
        )


class Equilibrium(nn.Module):
    """A fixed-point iteration with one matrix."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.inner, self.inject = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH, bias=True)
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.inject(self.embed(ids))
        z = torch.zeros_like(x)
        for _ in range(4):
            z = 0.5 * z + 0.5 * torch.tanh(self.inner(z) + x)
        return self.head(z)


class Hourglass(Network):
    """Pairs of tokens are averaged, processed, repeated, and joined to the skip."""

    def __init__(self):
        super().__init__()
        self.inner, self.join = linear(WIDTH, WIDTH), linear(2 * WIDTH, WIDTH)

    def mix(self, x):
        even = functional.pad(x, (0, 0, 0, 1))
        short = torch.tanh(self.inner(even.unflatten(1, (-1, 2)).mean(2)))
        long = short.repeat_interleave(2, dim=1)[:, :TOKENS]
        return self.join(torch.cat([x, long], dim=-1))


class TokenMixing(Network):
    """MLP-Mixer and gMLP: matrices act on the tokens of each channel."""

    def __init__(self):
        super().__init__()
        self.into, self.back = linear(TOKENS, 7, bias=True), linear(7, TOKENS)
        self.up, self.gate = linear(WIDTH, 2 * WIDTH), linear(TOKENS, TOKENS, bias=True)

    def mix(self, x):
        x = x + self.back(functional.gelu(self.into(x.mT))).mT
        u, v = self.up(x).chunk(2, dim=-1)
        return u * self.gate(v.mT).mT


class Scales(nn.Module):
    """Deviations from 1e-8 to 1e8, which norms and eps meet."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.embed.weight, std=1e-4)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-8)
        self.up, self.mid = linear(WIDTH, 24, std=1e8), linear(24, WIDTH, std=1e-8)
        self.down, self.head = linear(WIDTH, WIDTH, std=1e-4), linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.mid(torch.relu(self.up(self.norm(x))))
        x = x + self.down(torch.tanh(y))
        return self.head(functional.rms_norm(x, (WIDTH,), eps=1e-8))


class ChannelGroups(Network):
    """GroupNorm over tokens and channels, depthwise convolutions and gates."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(4, WIDTH)
        self.up, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)

    def mix(self, x):
        a, b, c = self.up(self.norm(x.mT).mT).chunk(3, dim=-1)
        y = self.conv((a * b).mT)[..., :TOKENS].mT
        return self.out(c * y)


# Recurrences


class TimeMixing(Network):
    """RWKV: shifted tokens, decays and a bonus of each channel, exponential keys."""

    def __init__(self):
        super().__init__()
        self.r, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.decay = nn.Parameter(torch.randn(WIDTH))
        self.bonus = nn.Parameter(torch.randn(WIDTH))
        self.shift = nn.Parameter(torch.rand(WIDTH))

    def mix(self, x):
        before = functional.pad(x, (0, 0, 1, -1))
        x = x * self.shift + before * (1 - self.shift)
        r, k, v = torch.sigmoid(self.r(x)), self.k(x), self.v(x)
        decay = -torch.exp(self.decay)
        above = below = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(TOKENS):
            own = torch.exp(self.bonus + k[:, t])
            outputs.append((above + own * v[:, t]) / (below + own))
            own = torch.exp(k[:, t])
            above = torch.exp(decay) * above + own * v[:, t]
            below = torch.exp(decay) * below + own
        return self.o(r * torch.stack(outputs, 1))


class ScalarMemory(Network):
    """sLSTM: exponential gates, a normaliser, and a state that keeps them in range."""

    def __init__(self):
        super().__init__()
        self.into = linear(WIDTH, 4 * WIDTH, bias=True)
        self.back = linear(WIDTH, 4 * WIDTH, std=0.1)

    def mix(self, x):
        given = self.into(x)
        h = c = n = torch.zeros_like(x[:, 0])
        m = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(TOKENS):
            z, i, f, o = (given[:, t] + self.back(h)).chunk(4, dim=-1)
            log_f = functional.logsigmoid(f)
            new = torch.maximum(log_f + m, i)
            i, f = torch.exp(i - new), torch.exp(log_f + m - new)
            c, n, m = f * c + i * torch.tanh(z), f * n + i, new
            h = torch.sigmoid(o) * c / n
            outputs.append(h)
        return torch.stack(outputs, 1)


class MatrixMemory(Network):
    """mLSTM in parallel form: decays of each head, and a stabilised normaliser."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.i, self.f = (
            linear(WIDTH, HEADS, bias=True),
            linear(WIDTH, HEADS, bias=True),
        )

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        log_f = functional.logsigmoid(self.f(x)).mT.cumsum(-1)
        log_d = log_f[..., :, None] - log_f[..., None, :] + self.i(x).mT[..., None, :]
        log_d = log_d.masked_fill(FUTURE, -torch.inf)
        top = log_d.amax(-1, keepdim=True)
        c = (q @ k.mT / HEAD**0.5) * torch.exp(log_d - top)
        size = torch.maximum(c.sum(-1, keepdim=True).abs(), torch.exp(-top))
        y = functional.rms_norm((c / size) @ v, (HEAD,), eps=1e-6)
        return self.o(join_heads(y))


class DiagonalComplex(Network):
    """LRU: a complex diagonal recurrence, written in real numbers."""

    def __init__(self):
        super().__init__()
        self.radius = nn.Parameter(torch.rand(WIDTH))
        self.angle = nn.Parameter(torch.randn(WIDTH))
        self.real, self.imaginary = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.out = linear(2 * WIDTH, WIDTH)

    def mix(self, x):
        size = torch.exp(-torch.exp(self.radius))
        cos, sin = size * torch.cos(self.angle), size * torch.sin(self.angle)
        scale = torch.sqrt(1 - size**2)
        u, w = self.real(x) * scale, self.imaginary(x) * scale
        a = b = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(TOKENS):
            a, b = cos * a - sin * b + u[:, t], sin * a + cos * b + w[:, t]
            outputs.append(torch.cat([a, b], -1))
        return self.out(torch.stack(outputs, 1))


class TestTimeLearning(Network):
    """A matrix is trained by gradient steps on the tokens, in the forward pass."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(WIDTH, 4) for _ in range(3))
        self.rate, self.o = linear(WIDTH, 1), linear(4, WIDTH)

    def mix(self, x):
        q, k, v = torch.tanh(self.q(x)), torch.tanh(self.k(x)), self.v(x)
        rate = torch.sigmoid(self.rate(x))
        state = x.new_zeros(len(x), 4, 4)
        outputs = []
        for t in range(TOKENS):
            error = (state @ k[:, t, :, None])[..., 0] - v[:, t]
            step = error[..., :, None] * k[:, t, None, :]
            state = state - rate[:, t, :, None] * step
            outputs.append((state @ q[:, t, :, None])[..., 0])
        return self.o(torch.stack(outputs, 1))


# Outputs and inputs


class MixtureOfSoftmaxes(nn.Module):
    """Logarithms of a mixture of three softmaxes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.share = linear(WIDTH, 3)
        self.parts, self.head = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        share = self.share(x).log_softmax(-1)
        h = torch.tanh(self.parts(x)).unflatten(-1, (3, WIDTH))
        return torch.logsumexp(share[..., None] + self.head(h).log_softmax(-1), dim=-2)


class Contrastive(nn.Module):
    """Scaled cosines of two towers, one of them of given numbers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.text, self.image = linear(WIDTH, 8), linear(6, 8)
        self.scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, ids, context):
        text = functional.normalize(self.text(torch.tanh(self.embed(ids))), dim=-1)
        image = functional.normalize(self.image(context), dim=-1)
        return self.scale.exp() * text @ image.mT


class Codebook(Network):
    """The nearest of six random vectors, with a straight-through gradient."""

    def __init__(self):
        super().__init__()
        self.into, self.out = linear(WIDTH, 4), linear(4, WIDTH)
        self.codes = nn.Parameter(torch.randn(6, 4))

    def mix(self, x):
        z = self.into(x)
        distances = (z[..., None, :] - self.codes).square().sum(-1)
        chosen = functional.one_hot(distances.argmin(-1), 6).to(x.dtype)
        code = chosen @ self.codes
        return self.out(z + (code - z).detach())


class RandomFeatures(Network):
    """Linear attention by positive features of frozen random directions."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("directions", torch.randn(6, WIDTH))

    def features(self, x):
        x = x / WIDTH**0.25
        sizes = x.square().sum(-1, keepdim=True) / 2
        return torch.exp(x @ self.directions.T - sizes) / 6**0.5

    def mix(self, x):
        q, k = self.features(self.q(x)), self.features(self.k(x))
        products = (q @ k.mT).tril()
        return products @ self.v(x) / (products.sum(-1, keepdim=True) + 1e-6)


class CustomInitialisation(Network):
    """Truncated normals, uniform and shifted vectors, and zeros."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.zero = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(24))
        self.cut = nn.Parameter(torch.empty(24))
        nn.init.normal_(self.up.weight, std=0.3)
        nn.init.normal_(self.down.weight, std=0.3)
        nn.init.trunc_normal_(self.cut, std=1.0, a=-1.0, b=0.5)
        nn.init.uniform_(self.up.bias, -1, 2)
        nn.init.zeros_(self.zero.weight)
        nn.init.zeros_(self.zero.bias)

    def mix(self, x):
        h = functional.gelu(self.up(x)) * self.gain + self.cut
        return self.down(h) + self.zero(x)


class Splines(Network):
    """KAN: every input has its own function, a sum of bumps."""

    def __init__(self):
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(WIDTH, WIDTH, 3) / 5)

    def mix(self, x):
        return sum(
            torch.exp(-((x - k + 1) ** 2)) @ self.coefficients[..., k].T
            for k in range(3)
        )


class DropoutOfModules(Network):
    """Dropout that evaluation turns off."""

    def __init__(self):
        super().__init__()
        self.up, self.down = linear(WIDTH, 24), linear(24, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.train()

    def mix(self, x):
        return self.drop(self.down(self.drop(torch.relu(self.up(x)))))


MODULES = {
    "gates of gates": (GatesOfGates, (IDS,)),
    "experts with a capacity": (Capacity, (IDS,)),
    "experts that choose tokens": (ExpertChoice, (IDS,)),
    "mixture of depths": (Depths, (IDS,)),
    "soft experts": (SoftExperts, (IDS,)),
    "adapters": (Adapters, (IDS,)),
    "hypernetwork": (Hypernetwork, (IDS,)),
    "maxout": (Maxout, (IDS,)),
    "window with sinks": (WindowWithSinks, (IDS,)),
    "talking heads": (TalkingHeads, (IDS,)),
    "cosine attention": (CosineAttention, (IDS,)),
    "memories": (Memories, (IDS,)),
    "sparsemax": (Sparsemax, (IDS,)),
    "biaffine": (Biaffine, (IDS,)),
    "cross-attention": (CrossAttention, (IDS, CONTEXT)),
    "perceiver": (Perceiver, (IDS,)),
    "padded": (Padded, (BATCH,)),
    "vision": (Vision, (PIXELS,)),
    "adaptive norm of zeros": (lambda: AdaptiveNorm(0.0), (IDS, CONTEXT)),
    "adaptive norm": (lambda: AdaptiveNorm(0.3), (IDS, CONTEXT)),
    "hyper-connections": (HyperConnections, (IDS,)),
    "shared block": (SharedBlock, (IDS,)),
    "tied everything": (TiedEverything, (IDS,)),
    "equilibrium": (Equilibrium, (IDS,)),
    "hourglass": (Hourglass, (IDS,)),
    "token mixing": (TokenMixing, (IDS,)),
    "scales": (Scales, (IDS,)),
    "channel groups": (ChannelGroups, (IDS,)),
    "time mixing": (TimeMixing, (IDS,)),
    "scalar memory": (ScalarMemory, (IDS,)),
    "matrix memory": (MatrixMemory, (IDS,)),
    "diagonal complex": (DiagonalComplex, (IDS,)),
    "test-time learning": (TestTimeLearning, (IDS,)),
    "mixture of softmaxes": (MixtureOfSoftmaxes, (IDS,)),
    "contrastive": (Contrastive, (IDS, CONTEXT)),
    "codebook": (Codebook, (IDS,)),
    "random features": (RandomFeatures, (IDS,)),
    "custom initialisation": (CustomInitialisation, (IDS,)),
    "splines": (Splines, (IDS,)),
    "dropout": (DropoutOfModules, (IDS,)),
}
