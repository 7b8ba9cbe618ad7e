"""The same network written in PyTorch and in JAX has the same draws.

So it has however a norm, a softmax or attention is written: seeds count the random
objects of a network in the order of their first use, and not its operations.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import netsor as ns

WORDS, WIDTH, HEADS, TOKENS, LAYERS = 11, 32, 4, 6, 2
HEAD_SIZE = WIDTH // HEADS
KEY_HEADS = 2  # of grouped queries
STD = 0.05
EPS = 1e-5
IDS = np.array([[1, 4, 4, 9, 10, 3]])
OPTIONS = {"draws": 20, "seed": 4, "progress": False, "workers": 1}


def draws(program):
    return np.asarray(program.draw(**OPTIONS)).reshape(OPTIONS["draws"], -1)


# A GPT in PyTorch, by PyTorch's own operations or written out


class WrittenOutNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + EPS) * self.weight + self.bias


class NormByVariance(WrittenOutNorm):
    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(variance + EPS) * self.weight + self.bias


class NormBySquares(WrittenOutNorm):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - mean.square()
        return (x - mean) * (variance + EPS) ** -0.5 * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, is_written_out):
        super().__init__()
        self.is_written_out = is_written_out
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x):
        heads = [
            matrix(x).view(1, TOKENS, HEADS, HEAD_SIZE).transpose(1, 2)
            for matrix in (self.query, self.key, self.value)
        ]
        if not self.is_written_out:
            values = functional.scaled_dot_product_attention(*heads, is_causal=True)
        else:
            query, key, value = heads
            scores = query @ key.transpose(-1, -2) / math.sqrt(HEAD_SIZE)
            past = torch.tril(torch.ones(TOKENS, TOKENS, dtype=torch.bool))
            scores = scores.masked_fill(~past, -math.inf)
            exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
            values = (exponentials / exponentials.sum(-1, keepdim=True)) @ value
        return self.out(values.transpose(1, 2).reshape(1, TOKENS, WIDTH))


class TorchBlock(nn.Module):
    def __init__(self, norm, is_written_out):
        super().__init__()
        self.norm, self.norm2 = norm(), norm()
        self.attend = Attention(is_written_out)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TorchGPT(nn.Module):
    def __init__(self, norm, is_written_out):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(
            TorchBlock(norm, is_written_out) for _ in range(LAYERS)
        )
        self.last_norm = norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        draw_matrices(self)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(TOKENS))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last_norm(x))


def draw_matrices(module):
    """Gaussian matrices of one standard deviation."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=STD)


def torch_draws(norm=lambda: nn.LayerNorm(WIDTH), is_written_out=False):
    def build():
        return TorchGPT(norm, is_written_out)

    return draws(ns.torch.program(build, torch.tensor(IDS)))


@pytest.fixture(scope="module")
def expected():
    """The draws of a GPT by the operations of PyTorch."""
    return torch_draws()


@pytest.mark.parametrize("norm", [WrittenOutNorm, NormByVariance, NormBySquares])
def test_written_out_operations_of_torch(expected, norm):
    np.testing.assert_allclose(torch_draws(norm, True), expected, rtol=0, atol=1e-6)


# The same GPT in JAX, with other names and another order of its parameters


def matrices(key, shapes):
    """Gaussian matrices of these shapes, by name."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: STD * jax.random.normal(one, shape)
        for one, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def gpt_parameters(key):
    ends, *blocks = jax.random.split(key, 1 + LAYERS)
    square = (WIDTH, WIDTH)
    shapes = dict.fromkeys(("zq", "yk", "xv", "wo"), square)
    shapes |= {"b_up": (WIDTH, 4 * WIDTH), "a_down": (4 * WIDTH, WIDTH)}
    norm = {"scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH)}
    return {
        "blocks": [
            {**matrices(one, shapes), "norm": norm, "norm2": norm} for one in blocks
        ],
        "end": norm,
        **matrices(
            ends,
            {
                "a_head": (WIDTH, WORDS),
                "positions": (TOKENS, WIDTH),
                "words": (WORDS, WIDTH),
            },
        ),
    }


def deviation_by_mean_of_squares(x):
    mean = x.mean(-1, keepdims=True)
    return x - mean, ((x - mean) ** 2).mean(-1, keepdims=True)


def deviation_by_var(x):
    return x - x.mean(-1, keepdims=True), x.var(-1, keepdims=True)


def deviation_by_sums(x):
    mean = jnp.sum(x, axis=-1, keepdims=True) / WIDTH
    squares = jnp.einsum("bti,bti->bt", x - mean, x - mean)[..., None]
    return x - mean, squares / WIDTH


def softmax_by_sums(scores):
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def jax_gpt(deviation, softmax):
    def norm(parameters, x):
        centred, variance = deviation(x)
        normed = centred * jax.lax.rsqrt(variance + EPS)
        return normed * parameters["scale"] + parameters["shift"]

    def attend(block, x):
        query, key, value = (
            (x @ block[name]).reshape(1, TOKENS, HEADS, HEAD_SIZE).swapaxes(1, 2)
            for name in ("zq", "yk", "xv")
        )
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(HEAD_SIZE)
        past = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
        values = softmax(jnp.where(past, scores, -jnp.inf)) @ value
        return values.swapaxes(1, 2).reshape(1, TOKENS, WIDTH) @ block["wo"]

    def apply(parameters, ids):
        x = parameters["words"][ids] + parameters["positions"][jnp.arange(TOKENS)]
        for block in parameters["blocks"]:
            x = x + attend(block, norm(block["norm"], x))
            inner = norm(block["norm2"], x) @ block["b_up"]
            x = x + jax.nn.gelu(inner, approximate=False) @ block["a_down"]
        return norm(parameters["end"], x) @ parameters["a_head"]

    return apply


@pytest.mark.parametrize(
    "deviation", [deviation_by_mean_of_squares, deviation_by_var, deviation_by_sums]
)
@pytest.mark.parametrize("softmax", [jax.nn.softmax, softmax_by_sums])
def test_a_gpt_in_both_frameworks(expected, deviation, softmax):
    program = ns.jax.program(jax_gpt(deviation, softmax), gpt_parameters, IDS)
    np.testing.assert_allclose(draws(program), expected, rtol=0, atol=1e-6)


def flax_gpt():
    """A function of a key that makes the same GPT of layers of Flax."""
    nnx = pytest.importorskip("flax.nnx")

    class FlaxBlock(nnx.Module):
        def __init__(self, rngs):
            init = nnx.initializers.normal(STD)
            self.norm = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
            self.norm2 = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(
                HEADS, WIDTH, decode=False, kernel_init=init, use_bias=False, rngs=rngs
            )
            self.up = nnx.Linear(
                WIDTH, 4 * WIDTH, kernel_init=init, use_bias=False, rngs=rngs
            )
            self.down = nnx.Linear(
                4 * WIDTH, WIDTH, kernel_init=init, use_bias=False, rngs=rngs
            )

        def __call__(self, x):
            mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + self.attend(self.norm(x), mask=mask)
            return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))

    class FlaxGPT(nnx.Module):
        def __init__(self, rngs):
            init = nnx.initializers.normal(STD)
            self.words = nnx.Embed(WORDS, WIDTH, embedding_init=init, rngs=rngs)
            self.positions = nnx.Embed(TOKENS, WIDTH, embedding_init=init, rngs=rngs)
            self.layers = nnx.List([FlaxBlock(rngs) for _ in range(LAYERS)])
            self.last_norm = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
            self.head = nnx.Linear(
                WIDTH, WORDS, kernel_init=init, use_bias=False, rngs=rngs
            )

        def __call__(self, ids):
            x = self.words(ids) + self.positions(jnp.arange(TOKENS))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.last_norm(x))

    return lambda key: FlaxGPT(nnx.Rngs(key))


def test_layers_of_flax(expected):
    program = ns.jax.program(flax_gpt(), IDS)
    np.testing.assert_allclose(draws(program), expected, rtol=0, atol=1e-6)


# A block of Llama: root mean square norm, rotary positions, grouped queries, SwiGLU


def angles():
    frequencies = 100.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    half = np.arange(TOKENS)[:, None] * frequencies
    return np.concatenate([half, half], axis=-1).astype(np.float32)


class TorchLlama(nn.Module):
    def __init__(self):
        super().__init__()
        inputs_and_outputs = {
            "query": (WIDTH, WIDTH),
            "key": (WIDTH, KEY_HEADS * HEAD_SIZE),
            "value": (WIDTH, KEY_HEADS * HEAD_SIZE),
            "out": (WIDTH, WIDTH),
            "gate": (WIDTH, 3 * WIDTH),
            "up": (WIDTH, 3 * WIDTH),
            "down": (3 * WIDTH, WIDTH),
            "head": (WIDTH, WORDS),
        }
        self.words = nn.Embedding(WORDS, WIDTH)
        for name, sizes in inputs_and_outputs.items():
            setattr(self, name, nn.Linear(*sizes, bias=False))
        self.norm, self.norm2, self.norm3 = (
            nn.RMSNorm(WIDTH, eps=EPS) for _ in range(3)
        )
        draw_matrices(self)

    def attend(self, x):
        query = self.query(x).view(1, TOKENS, HEADS, HEAD_SIZE).transpose(1, 2)
        key = self.key(x).view(1, TOKENS, KEY_HEADS, HEAD_SIZE).transpose(1, 2)
        value = self.value(x).view(1, TOKENS, KEY_HEADS, HEAD_SIZE).transpose(1, 2)
        cos, sin = torch.tensor(np.cos(angles())), torch.tensor(np.sin(angles()))

        def turned(y):
            first, second = y.chunk(2, dim=-1)
            return y * cos + torch.cat([-second, first], dim=-1) * sin

        copies = HEADS // KEY_HEADS
        values = functional.scaled_dot_product_attention(
            turned(query),
            turned(key).repeat_interleave(copies, dim=1),
            value.repeat_interleave(copies, dim=1),
            is_causal=True,
        )
        return self.out(values.transpose(1, 2).reshape(1, TOKENS, WIDTH))

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.attend(self.norm(x))
        h = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return self.head(self.norm3(x))


def llama_parameters(key):
    small = KEY_HEADS * HEAD_SIZE
    return matrices(
        key,
        {
            "down": (3 * WIDTH, WIDTH),
            "gate": (WIDTH, 3 * WIDTH),
            "up": (WIDTH, 3 * WIDTH),
            "head": (WIDTH, WORDS),
            "k": (WIDTH, KEY_HEADS, HEAD_SIZE),
            "o": (HEADS, HEAD_SIZE, WIDTH),
            "q": (WIDTH, HEADS, HEAD_SIZE),
            "v": (WIDTH, small),
            "words": (WORDS, WIDTH),
        },
    )


def jax_llama(parameters, ids):
    def norm(x):
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + EPS)

    def turned(y):
        cos, sin = np.cos(angles())[:, None], np.sin(angles())[:, None]
        first, second = jnp.split(y, 2, axis=-1)
        return y * cos + jnp.concatenate([-second, first], axis=-1) * sin

    def attend(x):
        query = turned(jnp.einsum("bti,ihd->bthd", x, parameters["q"]))
        key = turned(jnp.einsum("bti,ihd->bthd", x, parameters["k"]))
        value = (x @ parameters["v"]).reshape(1, TOKENS, KEY_HEADS, HEAD_SIZE)
        copies = HEADS // KEY_HEADS
        key, value = (jnp.repeat(y, copies, axis=2) for y in (key, value))
        values = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return jnp.einsum("bthd,hdi->bti", values, parameters["o"])

    x = parameters["words"][ids]
    x = x + attend(norm(x))
    h = norm(x)
    gated = jax.nn.silu(h @ parameters["gate"]) * (h @ parameters["up"])
    return norm(x + gated @ parameters["down"]) @ parameters["head"]


def test_a_llama_in_both_frameworks():
    of_torch = ns.torch.program(TorchLlama, torch.tensor(IDS))
    of_jax = ns.jax.program(jax_llama, llama_parameters, IDS)
    np.testing.assert_allclose(draws(of_jax), draws(of_torch), rtol=0, atol=1e-6)
