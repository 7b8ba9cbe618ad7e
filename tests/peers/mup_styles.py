"""Networks with a right parametrisation in the width (and the depth), each written in
another style, and what makes their optimisers.

`ratio` is the width over BASE. Options of the modules plant an error.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS, CLASSES, BASE = 48, 10, 32


def causal(scores):
    tokens = scores.shape[-1]
    later = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)
    return scores.masked_fill(later, float("-inf"))


def heads(x, d):
    """(batch, tokens, n) as heads of dimension d."""
    batch, tokens, _ = x.shape
    return x.view(batch, tokens, -1, d).transpose(1, 2)


def merged(x):
    """Heads as one vector."""
    batch, count, tokens, d = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, count * d)


def linear(inputs, outputs, bias=True, std=None):
    """A layer of normal numbers of variance 1/fan-in, with biases of 0."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=inputs**-0.5 if std is None else std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def table(n, std=1.0):
    """An embedding of words."""
    embedding = nn.Embedding(WORDS, n)
    nn.init.normal_(embedding.weight, std=std)
    return embedding


class PackageGPT(nn.Module):
    """As with the package mup: positions and biases, scores over d, a readout whose
    input is divided by the ratio of widths; queries, keys and values in one matrix.
    """

    def __init__(self, n, score=-1.0, std_of_keys=0.0):
        super().__init__()
        self.n, self.ratio, self.score = n, n / BASE, score
        self.tokens, self.positions = table(n, 0.5), nn.Embedding(16, n)
        self.norm_1, self.norm_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.o = linear(n, 3 * n), linear(n, n)
        self.up, self.down = linear(n, 4 * n), linear(4 * n, n)
        self.norm, self.out = nn.LayerNorm(n), linear(n, WORDS, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.5)
        with torch.no_grad():
            self.qkv.weight[n : 2 * n] *= self.ratio**std_of_keys

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        d = self.n // 4
        q, k, v = (heads(y, d) for y in self.qkv(self.norm_1(x)).chunk(3, -1))
        weights = causal(8 * q @ k.mT * d**self.score).softmax(-1)
        x = x + self.o(merged(weights @ v))
        x = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return self.out(self.norm(x) / self.ratio)


class GroupedQueries(nn.Module):
    """Norms without gains, grouped queries of a fixed dimension, fused keys and values,
    fused gates, truncated normal numbers.
    """

    def __init__(self, n, std_of_down=0.0):
        super().__init__()
        self.ratio = n / BASE
        self.embed = nn.Embedding(WORDS, n)
        self.q, self.kv = linear(n, n, bias=False), linear(n, n, bias=False)
        self.o, self.gate_up = linear(n, n, bias=False), linear(n, 6 * n, bias=False)
        self.down = linear(3 * n, n, bias=False)
        self.head = linear(n, WORDS, bias=False)
        for name, p in self.named_parameters():
            stds = {"embed.weight": 1.0, "head.weight": 1 / n}
            std = stds.get(name, p.shape[1] ** -0.5)
            nn.init.trunc_normal_(p, std=std, a=-3 * std, b=3 * std)
        with torch.no_grad():
            self.down.weight *= self.ratio**std_of_down

    @staticmethod
    def norm(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm(x)
        q = heads(self.q(y), 8)
        k, v = (heads(z, 8).repeat_interleave(2, 1) for z in self.kv(y).chunk(2, -1))
        weights = causal(q @ k.mT / math.sqrt(8)).softmax(-1)
        x = x + self.o(merged(weights @ v))
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        return self.head(self.norm(x + self.down(F.silu(gate) * up)))


class UnitLinear(nn.Module):
    """Numbers of order 1, and a constant in `forward`."""

    def __init__(self, inputs, outputs, power=-0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.factor = inputs**power

    def forward(self, x):
        return F.linear(x, self.weight) * self.factor


class UnitScaling(nn.Module):
    """All numbers of order 1, as in unit scaling; residual sums over √2."""

    def __init__(self, n):
        super().__init__()
        self.n, self.ratio = n, n / BASE
        self.embed = nn.Parameter(torch.randn(WORDS, n))
        for name in "qkvo":
            setattr(self, name, UnitLinear(n, n))
        self.up, self.gate = UnitLinear(n, 2 * n), UnitLinear(n, 2 * n)
        self.down = UnitLinear(2 * n, n)
        self.head = UnitLinear(n, WORDS, power=-1)

    def forward(self, ids):
        x, d = self.embed[ids], self.n // 2
        y = F.rms_norm(x, x.shape[-1:])
        q, k, v = (heads(f(y), d) for f in (self.q, self.k, self.v))
        weights = causal(2 * q @ k.mT / d).softmax(-1)
        x = (x + self.o(merged(weights @ v))) / math.sqrt(2)
        y = F.rms_norm(x, x.shape[-1:])
        x = (x + self.down(self.up(y) * F.silu(self.gate(y)))) / math.sqrt(2)
        return 2 * self.head(F.rms_norm(x, x.shape[-1:]))


class TiedTable(nn.Module):
    """A table of numbers like 1/√n, times √n where it is read, and over √n as a head."""

    def __init__(self, n, logits=-0.5):
        super().__init__()
        self.n, self.ratio, self.logits = n, n / BASE, logits
        self.embed = table(n, n**-0.5)
        self.norm_1 = nn.LayerNorm(n, bias=False)
        self.norm_2 = nn.LayerNorm(n, bias=False)
        self.up, self.down = linear(n, 4 * n), linear(4 * n, n)

    def forward(self, ids):
        x = self.embed(ids) * math.sqrt(self.n)
        x = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None].sqrt()
        x = x + self.down(F.relu(self.up(self.norm_1(x))))
        return F.linear(self.norm_2(x), self.embed.weight) * self.n**self.logits


class Perceptron(nn.Module):
    """Of vectors, without norms, with random biases."""

    def __init__(self, n):
        super().__init__()
        self.ratio = n / BASE
        self.a, self.b, self.c = nn.Linear(20, n), nn.Linear(n, n), nn.Linear(n, n)
        for layer in (self.a, self.b, self.c):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.normal_(layer.bias, std=0.1)
        self.d = linear(n, CLASSES, std=1 / n)

    def forward(self, x):
        for layer in (self.a, self.b, self.c):
            x = layer(x).relu()
        return self.d(x)


class StackedExperts(nn.Module):
    """Experts in one tensor, which sigmoids of a router weigh; one shared expert."""

    def __init__(self, n, experts=4):
        super().__init__()
        self.ratio, self.experts = n / BASE, experts
        self.embed = table(n)
        self.norm_1, self.norm_2 = nn.RMSNorm(n), nn.RMSNorm(n)
        self.router = linear(n, experts, bias=False, std=1 / n)
        self.up = nn.Parameter(torch.randn(experts, n, 2 * n) / math.sqrt(n))
        self.down = nn.Parameter(torch.randn(experts, 2 * n, n) / math.sqrt(2 * n))
        self.shared = linear(n, n, bias=False)
        self.head = linear(n, WORDS, bias=False, std=0.0)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm_1(x)
        shares = self.router(y).sigmoid() / self.experts
        hidden = F.gelu(torch.einsum("btn,enh->bteh", y, self.up))
        outputs = torch.einsum("bteh,ehn->bten", hidden, self.down)
        x = x + (outputs * shares[..., None]).sum(2) + F.silu(self.shared(y))
        return self.head(self.norm_2(x))


class Convolutions(nn.Module):
    """A residual network with norms of groups, and one number per channel."""

    def __init__(self, n):
        super().__init__()
        self.ratio = n / BASE
        self.stem = nn.Conv2d(3, n, 3, padding=1)
        for k in (1, 2, 3):
            setattr(self, f"norm_{k}", nn.GroupNorm(4, n))
        self.conv_1 = nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.conv_2 = nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(n, n, 3, padding=1, groups=n)
        self.head = linear(n, CLASSES, std=0.5 / n)
        for layer in (self.conv_1, self.conv_2):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x):
        x = self.stem(x)
        y = self.conv_1(self.norm_1(x).relu())
        x = x + self.conv_2(self.norm_2(y).relu())
        x = x + self.depthwise(x)
        return self.head(self.norm_3(x).relu().mean((2, 3)))


class NormedQueries(nn.Module):
    """Norms of queries and keys; all that writes to the stream starts at 0."""

    def __init__(self, n, d=8):
        super().__init__()
        self.ratio, self.d = n / BASE, d
        self.embed = table(n, 0.3)
        for k in (1, 2, 3):
            setattr(self, f"norm_{k}", nn.RMSNorm(n))
        self.q_norm, self.k_norm = nn.RMSNorm(d), nn.RMSNorm(d)
        for name in "qkv":
            setattr(self, name, linear(n, n, bias=False))
        self.o = linear(n, n, bias=False, std=0.0)
        self.up = linear(n, 4 * n, bias=False)
        self.down = linear(4 * n, n, bias=False, std=0.0)
        self.head = linear(n, WORDS, bias=False, std=0.0)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm_1(x)
        q, k, v = (heads(f(y), self.d) for f in (self.q, self.k, self.v))
        q, k = self.q_norm(q), self.k_norm(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(merged(y))
        x = x + self.down(self.up(self.norm_2(x)).relu().square())
        return self.head(self.norm_3(x))


class Recurrence(nn.Module):
    """A gated linear recurrence with one decay per channel."""

    def __init__(self, n):
        super().__init__()
        self.ratio = n / BASE
        self.embed = table(n)
        self.norm_1, self.norm_2 = nn.RMSNorm(n), nn.RMSNorm(n)
        self.input, self.gate = linear(n, 2 * n, bias=False), linear(n, 2 * n)
        self.output = linear(2 * n, n, bias=False)
        self.decay = nn.Parameter(torch.linspace(-2, 2, 2 * n))
        self.head = linear(n, WORDS, std=1 / n)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm_1(x)
        inputs, decay = self.input(y), self.decay.sigmoid()
        state, states = torch.zeros_like(inputs[:, 0]), []
        for t in range(inputs.shape[1]):
            state = decay * state + (1 - decay) * inputs[:, t]
            states.append(state)
        gated = torch.stack(states, 1) * self.gate(y).sigmoid()
        return self.head(self.norm_2(x + self.output(gated)))


class ClassToken(nn.Module):
    """Keys and values behind a latent vector of n/4; a class token reads a sequence of
    vectors. The biases of keys have no gradient.
    """

    def __init__(self, n, d=8):
        super().__init__()
        self.ratio, self.d = n / BASE, d
        self.embed = nn.Linear(20, n)
        self.token = nn.Parameter(torch.randn(n) / 2)
        self.norm_1, self.latent_norm = nn.LayerNorm(n), nn.LayerNorm(n // 4)
        self.norm_2 = nn.LayerNorm(n, elementwise_affine=False)
        self.q, self.latent, self.o = linear(n, n), linear(n, n // 4), linear(n, n)
        self.k, self.v = linear(n // 4, n), linear(n // 4, n)
        self.head = linear(n, CLASSES, std=0.0)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), 1, -1), self.embed(x)], 1)
        y = self.norm_1(x)
        latent = self.latent_norm(self.latent(y))
        inputs = ((self.q, y), (self.k, latent), (self.v, latent))
        q, k, v = (heads(f(z), self.d) for f, z in inputs)
        x = x + self.o(merged(F.scaled_dot_product_attention(q, k, v)))
        return self.head(self.norm_2(x)[:, 0])


class Layers(nn.Module):
    """Residual layers of two branches, with powers of the depth as factors."""

    def __init__(self, n, depth, of_first=-1.0, of_second=-1.0):
        super().__init__()
        self.ratio, self.depth = n / BASE, depth
        self.powers = of_first, of_second
        self.embed = table(n)
        self.layers = nn.ModuleList(nn.Module() for _ in range(depth))
        for layer in self.layers:
            layer.norm_1, layer.norm_2 = nn.RMSNorm(n), nn.RMSNorm(n)
            layer.mix = linear(n, n, bias=False)
            layer.out = linear(n, n, bias=False)
            layer.up = linear(n, 2 * n, bias=False)
            layer.down = linear(2 * n, n, bias=False)
        self.norm, self.head = nn.RMSNorm(n), linear(n, WORDS, bias=False, std=1 / n)

    def forward(self, ids):
        x = self.embed(ids)
        first, second = ((self.depth / 2) ** power for power in self.powers)
        for layer in self.layers:
            mixed = layer.mix(layer.norm_1(x)).cumsum(1)
            x = x + layer.out(F.gelu(mixed)) * first
            x = x + layer.down(F.gelu(layer.up(layer.norm_2(x)))) * second
        return self.head(self.norm(x))


def is_hidden(name, p):
    """Whether a matrix has an axis of inputs that grows, and acts on activations."""
    return p.ndim > 1 and not name.startswith(("embed", "tokens", "positions"))


def by_group(module, **options):
    """Two groups, as with the package mup: the readout has its factor in `forward`."""
    named = [*module.named_parameters()]
    hidden = {name for name, p in named if is_hidden(name, p)} - {"out.weight"}
    groups = [
        {"params": [p for name, p in named if name in hidden], "lr": 0.01},
        {"params": [p for name, p in named if name not in hidden], "lr": 0.01},
    ]
    groups[0]["lr"] /= module.ratio
    return torch.optim.AdamW(groups, **options)


def by_parameter(powers, of_torch=torch.optim.AdamW, **options):
    """A group for each parameter; `powers` has those of the ratio for learning rates,
    and −1 for the hidden matrices that it does not name.
    """

    def make(module):
        groups = []
        for name, p in module.named_parameters():
            default = -1.0 if is_hidden(name, p) else 0.0
            rate = 0.01 * module.ratio ** powers.get(name, default)
            groups.append({"params": [p], "lr": rate})
        return of_torch(groups, **options)

    return make


def with_decay(module, **options):
    """Weight decay whose product with the learning rate stays."""
    groups = []
    for name, p in module.named_parameters():
        factor = module.ratio if is_hidden(name, p) else 1.0
        groups.append({"params": [p], "lr": 0.01 / factor, "weight_decay": factor / 10})
    return torch.optim.AdamW(groups, **options)


def changed(make, setting, powers):
    """An optimiser with a setting of some parameters times powers of the ratio."""

    def make_changed(module):
        optimiser = make(module)
        names = {id(p): name for name, p in module.named_parameters()}
        groups = []
        for group in optimiser.param_groups:
            for p in group["params"]:
                factor = module.ratio ** powers.get(names[id(p)], 0.0)
                value = group[setting] * factor
                groups.append({**group, "params": [p], setting: value})
        return type(optimiser)(groups)

    return make_changed


def tokens():
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, WORDS, (2, 9), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def random_inputs(*shape):
    """Normal numbers, and their classes."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(shape, generator=generator)
    return inputs, torch.randint(0, CLASSES, shape[:1], generator=generator)
