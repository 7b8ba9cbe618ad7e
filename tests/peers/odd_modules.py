"""More modules that combine what nobody listed: see `unlisted_modules`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .unlisted_modules import (
    BATCH,
    FUTURE,
    HEAD,
    IDS,
    TOKENS,
    WIDTH,
    WORDS,
    Attention,
    Network,
    join_heads,
    linear,
    split_heads,
)

# Softmaxes and pooling of coordinates


class AttentionFree(Network):
    """A softmax over tokens in each coordinate (AFT)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (linear(WIDTH, WIDTH) for _ in range(3))

    def mix(self, x):
        pooled = (self.k(x).softmax(-2) * self.v(x)).sum(-2, keepdim=True)
        return torch.sigmoid(self.q(x)) * pooled


class Compressed(Network):
    """Windows of two tokens are pooled by a softmax in each coordinate, then read."""

    def __init__(self):
        super().__init__()
        self.q, self.value, self.gate = (linear(WIDTH, WIDTH) for _ in range(3))
        self.place = nn.Parameter(torch.randn(2, WIDTH))

    def mix(self, x):
        windows = x[:, : TOKENS - 1].unflatten(1, (2, 2))
        shares = (self.gate(windows) + self.place).softmax(dim=2)
        pooled = (self.value(windows) * shares).sum(dim=2)
        weights = (self.q(x) @ pooled.mT / WIDTH**0.5).softmax(-1)
        return weights @ pooled


class LargestOfTokens(Network):
    """The largest and the mean of all tokens in each coordinate, with a bottleneck."""

    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = linear(WIDTH, 4, bias=True), linear(4, WIDTH)

    def mix(self, x):
        pooled = functional.adaptive_avg_pool1d(x.mT, 1).mT
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        return gate * torch.maximum(x, pooled)


class DepthAverage(nn.Module):
    """A softmax of scalars weighs the streams of all layers (ELMo)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(2))
        self.shares = nn.Parameter(torch.randn(3))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        streams = [self.embed(ids)]
        for layer in self.layers:
            streams.append(streams[-1] + torch.tanh(layer(streams[-1])))
        weights = self.shares.softmax(0)
        return self.head(torch.einsum("l,lbtd->btd", weights, torch.stack(streams)))


# Experts


class SinkhornChoice(Network):
    """Doubly normalised scores choose, and a sigmoid of the logits weighs."""

    def __init__(self):
        super().__init__()
        self.router = linear(WIDTH, 3)
        self.up = nn.Parameter(torch.randn(3, WIDTH, 8) / 4)
        self.down = nn.Parameter(torch.randn(3, 8, WIDTH) / 3)

    def mix(self, x):
        logits = self.router(x)
        shares = logits.exp()
        for _ in range(3):
            shares = shares / shares.sum(-1, keepdim=True)
            shares = shares / shares.sum(-2, keepdim=True)
        chosen = shares.detach().argmax(-1, keepdim=True)
        gates = torch.zeros_like(logits).scatter(
            -1, chosen, torch.sigmoid(logits).gather(-1, chosen)
        )
        h = functional.relu(torch.einsum("btd,edf->btef", x, self.up)) ** 2
        return torch.einsum("bte,btef,efd->btd", gates, h, self.down)


class MixedExperts(Network):
    """Routed, shared and identity experts of several sizes, with a second router."""

    def __init__(self):
        super().__init__()
        self.router, self.blend = linear(WIDTH, 4), linear(WIDTH, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(linear(WIDTH, size), nn.GELU(), linear(size, WIDTH))
            for size in (4, 8, 12)
        )
        self.shared = linear(WIDTH, WIDTH)

    def mix(self, x):
        top, chosen = self.router(x).topk(2, -1)
        shares = torch.zeros(*x.shape[:-1], 4, dtype=x.dtype)
        shares = shares.scatter(-1, chosen, top.softmax(-1))
        routed = shares[..., 3:] * x
        for e, expert in enumerate(self.experts):
            routed = routed + shares[..., e : e + 1] * expert(x)
        blend = self.blend(x).softmax(-1)
        return blend[..., :1] * routed + blend[..., 1:] * self.shared(x)


class PaddedExperts(nn.Module):
    """Experts and attention on sequences of several lengths, with padding masks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (linear(WIDTH, WIDTH) for _ in range(3))
        self.router = linear(WIDTH, 2)
        self.experts = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(2))
        self.head = linear(WIDTH, WORDS)

    def forward(self, ids):
        real = ids != 0
        places = real.long().cumsum(-1) - 1
        x = self.embed(ids) + 0.1 * places.clamp(min=0)[..., None]
        allowed = real[:, None, :] & ~FUTURE[:4, :4]
        scores = (self.q(x) @ self.k(x).mT) / WIDTH
        x = x + scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ self.v(x)
        gates = self.router(x).softmax(-1) * real[..., None]
        x = x + sum(
            gates[..., e, None] * torch.tanh(f(x)) for e, f in enumerate(self.experts)
        )
        count = real.sum(-1, keepdim=True)
        return self.head((x * real[..., None]).sum(1) / count)


# Scans and recurrences


class RunningGates(Network):
    """Means over earlier tokens, weighted by gates of one number for each token."""

    def __init__(self):
        super().__init__()
        self.gate, self.v = linear(WIDTH, 1, bias=True), linear(WIDTH, WIDTH)

    def mix(self, x):
        gates = torch.sigmoid(self.gate(x))
        return (gates * self.v(x)).cumsum(1) / gates.cumsum(1)


class Highway(Network):
    """A gated cell along the tokens, and a gate that carries its input."""

    def __init__(self):
        super().__init__()
        self.inside, self.state = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.carry = linear(WIDTH, WIDTH, bias=True)

    def mix(self, x):
        state = torch.zeros_like(x[:, 0])
        states = []
        for token in x.unbind(1):
            new = torch.tanh(self.inside(token) + self.state(state))
            gate = torch.sigmoid(self.carry(token) - 1.0)
            state = gate * new + (1 - gate) * state
            states.append(state)
        return torch.stack(states, 1)


class ChunkedLinear(Network):
    """Linear attention in chunks of two tokens, whose states are carried on."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        outputs = []
        for end in range(0, TOKENS, 2):
            here = slice(end, end + 2)
            outputs.append(
                (q[..., here, :] @ k[..., here, :].mT).tril() @ v[..., here, :]
            )
            if end:
                past = q[..., here, :] @ k[..., :end, :].mT
                outputs[-1] = outputs[-1] + 0.9**end * (past @ v[..., :end, :])
        return self.o(join_heads(torch.cat(outputs, -2)))


class TurnedByData(Attention):
    """Rotations of queries and keys by running sums of learned angles."""

    def __init__(self):
        super().__init__()
        self.angle = linear(WIDTH, 1)

    def mix(self, x):
        angles = self.angle(x).cumsum(1)[:, None]
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))

        def turned(y):
            first, second = y.chunk(2, -1)
            return torch.cat(
                [
                    first * angles.cos() - second * angles.sin(),
                    second * angles.cos() + first * angles.sin(),
                ],
                -1,
            )

        weights = self.weights(self.scores(turned(q), turned(k)))
        return self.o(join_heads(weights @ v))


# Convolutions


class Dilated(Network):
    """A convolution of groups with gaps, and a transposed depthwise one."""

    def __init__(self):
        super().__init__()
        self.gaps = nn.Conv1d(WIDTH, WIDTH, 2, groups=4, dilation=2, bias=False)
        self.each = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=1)
        nn.init.normal_(self.gaps.weight, std=0.4)
        nn.init.normal_(self.each.weight, std=0.6)
        nn.init.normal_(self.each.bias, std=0.3)

    def mix(self, x):
        before = functional.pad(x.mT, (2, 0))
        return self.each(functional.silu(self.gaps(before))).mT


class PooledKeys(Attention):
    """Keys and values are means of neighbouring tokens, at a stride."""

    def mix(self, x):
        pooled = functional.avg_pool1d(x.mT, 3, stride=2).mT
        q = split_heads(self.q(x))
        k, v = (split_heads(f(pooled)) for f in (self.k, self.v))
        weights = (q @ k.mT / HEAD**0.5).softmax(-1)
        return self.o(join_heads(weights @ v))


# Shared things


class ValueResiduals(nn.Module):
    """The second layer mixes its values with those of the first."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.share = nn.Parameter(torch.randn(2))
        self.head = linear(WIDTH, WORDS)
        for layer in self.layers:
            del layer.embed, layer.head

    def forward(self, ids):
        x = self.embed(ids)
        first = None
        for layer in self.layers:
            h = functional.rms_norm(x, (WIDTH,), eps=1e-6)
            q, k, v = (split_heads(f(h)) for f in (layer.q, layer.k, layer.v))
            first = v if first is None else first
            v = self.share[0] * v + torch.sigmoid(self.share[1]) * first
            weights = layer.weights(layer.scores(q, k))
            x = x + layer.o(join_heads(weights @ v))
        return self.head(x)


class TiedPerceptron(Network):
    """A perceptron whose second matrix is the transpose of its gate."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = linear(WIDTH, 8), linear(WIDTH, 8)

    def mix(self, x):
        return (functional.silu(self.gate(x)) * self.up(x)) @ self.gate.weight


class RandomBuffers(Network):
    """A frozen projection that is drawn anew in each module, and decays in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frozen", torch.randn(WIDTH, WIDTH) / 4)
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        self.register_buffer("decay", (0.5 ** distance.clamp(min=0)).tril())
        self.out = linear(WIDTH, WIDTH)

    def mix(self, x):
        return self.out(torch.tanh(self.decay @ (x @ self.frozen)))


class SortedTokens(Network):
    """Tokens in the order of a score; a matrix reads each with its neighbour."""

    def __init__(self):
        super().__init__()
        self.score, self.out = linear(WIDTH, 1), linear(2 * WIDTH, WIDTH)

    def mix(self, x):
        order = self.score(x)[..., 0].argsort(dim=1)
        sorting = functional.one_hot(order, TOKENS).to(x.dtype)
        ranked = sorting @ x
        pairs = torch.cat([ranked, ranked.roll(1, 1)], -1)
        return sorting.mT @ torch.tanh(self.out(pairs))


class NormOfHeads(Attention):
    """Retention: decays of each head, a norm of each head, and a gate."""

    def __init__(self):
        super().__init__()
        self.gate = linear(WIDTH, WIDTH)

    def mix(self, x):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        decay = torch.tensor([0.9, 0.6])[:, None, None] ** distance.clamp(min=0)
        heads = (q @ k.mT * decay.tril().to(x.dtype)) @ v
        heads = functional.layer_norm(heads, (HEAD,), eps=1e-6)
        return self.o(functional.silu(self.gate(x)) * join_heads(heads))


ODD_MODULES = {
    "attention-free": (AttentionFree, (IDS,)),
    "compressed windows": (Compressed, (IDS,)),
    "largest of tokens": (LargestOfTokens, (IDS,)),
    "depth average": (DepthAverage, (IDS,)),
    "Sinkhorn choice": (SinkhornChoice, (IDS,)),
    "mixed experts": (MixedExperts, (IDS,)),
    "padded experts": (PaddedExperts, (BATCH,)),
    "running gates": (RunningGates, (IDS,)),
    "highway": (Highway, (IDS,)),
    "chunked linear attention": (ChunkedLinear, (IDS,)),
    "turned by data": (TurnedByData, (IDS,)),
    "dilated": (Dilated, (IDS,)),
    "pooled keys": (PooledKeys, (IDS,)),
    "value residuals": (ValueResiduals, (IDS,)),
    "tied perceptron": (TiedPerceptron, (IDS,)),
    "random buffers": (RandomBuffers, (IDS,)),
    "sorted tokens": (SortedTokens, (IDS,)),
    "norm of heads": (NormOfHeads, (IDS,)),
}
