"""Models of Flax, Equinox and Haiku, as users write them, and plain functions."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
from flax import nnx

WIDTH, HEADS, WORDS, LAYERS = 16, 2, 11, 2


# GPT in Flax NNX


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.drop(self.attend(self.norm(x), mask=mask))
        return x + self.drop(self.down(nnx.gelu(self.up(self.norm2(x)))))


class NnxGPT(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(8, WIDTH, rngs=rngs)
        self.layers = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.words(ids) + self.positions(jnp.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def nnx_gpt(key):
    return NnxGPT(nnx.Rngs(key))


# GPT in Flax Linen, with rematerialised blocks and Flax's own attention


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(h, h, mask=mask)
        h = nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH)(jax.nn.silu(h))


class LinenGPT(nn.Module):
    @nn.compact
    def __call__(self, ids):
        table = nn.Embed(WORDS, WIDTH, name="words")
        x = table(ids)
        mask = nn.make_causal_mask(ids)
        for number in range(LAYERS):
            x = nn.remat(LinenBlock)(name=f"layers_{number}")(x, mask)
        return table.attend(nn.LayerNorm(name="last")(x))


# GPT in Equinox, for one sequence


class EquinoxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    norm2: eqx.nn.RMSNorm
    attend: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        first, second, third = jax.random.split(key, 3)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.norm2 = eqx.nn.RMSNorm(WIDTH)
        self.attend = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=second)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=third)

    def __call__(self, x):
        h = jax.vmap(self.norm)(x)
        mask = jnp.tril(jnp.ones((len(x), len(x)), dtype=bool))
        x = x + self.attend(h, h, h, mask=mask)
        h = jax.vmap(self.up)(jax.vmap(self.norm2)(x))
        return x + jax.vmap(self.down)(jax.nn.relu(h))


class EquinoxGPT(eqx.Module):
    words: eqx.nn.Embedding
    layers: list
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, LAYERS + 2)
        self.words = eqx.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.layers = [EquinoxBlock(key) for key in keys[2:]]
        self.head = eqx.nn.Linear(WIDTH, WORDS, use_bias=False, key=keys[1])

    def __call__(self, ids):
        x = jax.vmap(self.words)(ids)
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(x)


# Llama as a plain function, with a scan over layers


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def rotated(x):
    """Rotary positions of (batch, tokens, heads, coordinates)."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )


def llama_block(x, layer):
    h = rms_norm(x, layer["norm"])
    q, k = (rotated(jnp.einsum("btd,dhk->bthk", h, layer[name])) for name in "qk")
    v = jnp.einsum("btd,dhk->bthk", h, layer["v"])
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, layer["o"])
    h = rms_norm(x, layer["norm2"])
    gated = jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])
    return x + gated @ layer["down"], None


def llama(parameters, ids):
    x = parameters["words"][ids]
    x, _ = jax.lax.scan(jax.checkpoint(llama_block), x, parameters["layers"])
    return rms_norm(x, parameters["norm"]) @ parameters["head"]


def llama_layer(key):
    keys = jax.random.split(key, 7)
    size = WIDTH // HEADS

    def normal(number, shape, fan_in):
        return jax.random.normal(keys[number], shape) / fan_in**0.5

    return {
        "norm": jnp.ones(WIDTH),
        "norm2": jnp.ones(WIDTH),
        "q": normal(0, (WIDTH, HEADS, size), WIDTH),
        "k": normal(1, (WIDTH, HEADS, size), WIDTH),
        "v": normal(2, (WIDTH, HEADS, size), WIDTH),
        "o": normal(3, (HEADS, size, WIDTH), WIDTH),
        "gate": normal(4, (WIDTH, 3 * WIDTH), WIDTH),
        "up": normal(5, (WIDTH, 3 * WIDTH), WIDTH),
        "down": normal(6, (3 * WIDTH, WIDTH), 3 * WIDTH),
    }


def llama_parameters(key):
    words, head, layers = jax.random.split(key, 3)
    return {
        "words": jax.random.normal(words, (WORDS, WIDTH)),
        "head": jax.random.normal(head, (WIDTH, WORDS)) / WIDTH**0.5,
        "norm": jnp.ones(WIDTH),
        "layers": jax.vmap(llama_layer)(jax.random.split(layers, LAYERS)),
    }


# A network with batch norm


class BatchNormMLP(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(5, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.second = nnx.Linear(WIDTH, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


def batch_norm_mlp(key):
    return BatchNormMLP(nnx.Rngs(key))


# A vision transformer


class ViT(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(WIDTH, (4, 4), strides=(4, 4), padding="VALID", name="patches")(
            images
        )
        x = x.reshape(x.shape[0], -1, WIDTH)
        start = self.param("class", nn.initializers.zeros, (1, 1, WIDTH))
        x = jnp.concatenate([jnp.tile(start, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param(
            "positions", nn.initializers.normal(0.02), (1, x.shape[1], WIDTH)
        )
        for number in range(LAYERS):
            x = LinenBlock(name=f"layers_{number}")(x, None)
        return nn.Dense(3, name="head")(nn.LayerNorm(name="last")(x)[:, 0])


# A residual network of images: channels are the last axis


class ResidualBlock(nnx.Module):
    def __init__(self, inputs, outputs, stride, rngs):
        kernel = {"kernel_size": (3, 3), "use_bias": False, "rngs": rngs}
        self.conv = nnx.Conv(inputs, outputs, strides=stride, **kernel)
        self.conv2 = nnx.Conv(outputs, outputs, **kernel)
        self.norm = nnx.BatchNorm(outputs, use_running_average=True, rngs=rngs)
        self.norm2 = nnx.BatchNorm(outputs, use_running_average=True, rngs=rngs)
        self.changes_shape = stride > 1
        if self.changes_shape:
            self.shortcut = nnx.Conv(
                inputs, outputs, (1, 1), strides=stride, use_bias=False, rngs=rngs
            )

    def __call__(self, x):
        h = nnx.relu(self.norm(self.conv(x)))
        h = self.norm2(self.conv2(h))
        return (self.shortcut(x) if self.changes_shape else x) + h


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 12, (3, 3), use_bias=False, rngs=rngs)
        sizes = [(12, 12, 1), (12, 24, 2), (24, 24, 1)]
        self.layers = nnx.List([ResidualBlock(*size, rngs=rngs) for size in sizes])
        self.head = nnx.Linear(24, 5, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.stem(images))
        x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(axis=(1, 2)))


def resnet(key):
    return ResNet(nnx.Rngs(key))


# Experts: the best two of four, as a sum over all


class Experts(nnx.Module):
    def __init__(self, rngs):
        normal = nnx.initializers.normal(WIDTH**-0.5)
        self.router = nnx.Linear(WIDTH, 4, use_bias=False, rngs=rngs)
        self.up = nnx.Param(normal(rngs.params(), (4, WIDTH, 2 * WIDTH)))
        self.down = nnx.Param(normal(rngs.params(), (4, 2 * WIDTH, WIDTH)))

    def __call__(self, x):
        gates, chosen = jax.lax.top_k(jax.nn.softmax(self.router(x)), 2)
        weights = (jax.nn.one_hot(chosen, 4) * gates[..., None]).sum(axis=-2)
        h = jax.nn.gelu(jnp.einsum("btd,edf->btef", x, self.up[...]))
        out = jnp.einsum("btef,efd->bted", h, self.down[...])
        return jnp.einsum("bte,bted->btd", weights, out)


class ExpertsModel(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.experts = Experts(rngs)
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.words(ids)
        return self.head(x + self.experts(self.norm(x)))


def experts_model(key):
    return ExpertsModel(nnx.Rngs(key))


# A recurrent mixer as in Mamba-2, whose state is carried by a scan over tokens

STATE = 4


def mamba(parameters, x):
    h = rms_norm(x, jnp.ones(WIDTH))
    inside, gate = h @ parameters["inside"], h @ parameters["gate"]
    b, c = h @ parameters["b"], h @ parameters["c"]
    step = jax.nn.softplus(h @ parameters["step"] + parameters["step_bias"])
    decay = jnp.exp(-step * jnp.exp(parameters["log_a"]))
    heads = inside.reshape(*inside.shape[:-1], HEADS, -1)

    def one_token(state, token):
        inside, b, c, step, decay = token
        state = decay[:, :, None, None] * state + (
            step[:, :, None, None] * inside[..., None] * b[:, None, None, :]
        )
        return state, jnp.einsum("bhps,bs->bhp", state, c)

    along = [jnp.swapaxes(y, 0, 1) for y in (heads, b, c, step, decay)]
    start = jnp.zeros((*heads.shape[:1], *heads.shape[2:], STATE))
    _, out = jax.lax.scan(one_token, start, tuple(along))
    mixed = jnp.swapaxes(out, 0, 1).reshape(inside.shape)
    return x + (mixed * jax.nn.silu(gate)) @ parameters["out"]


def mamba_parameters(key):
    keys = jax.random.split(key, 7)
    normal = jax.random.normal
    return {
        "inside": normal(keys[0], (WIDTH, WIDTH)) / WIDTH**0.5,
        "gate": normal(keys[1], (WIDTH, WIDTH)) / WIDTH**0.5,
        "b": normal(keys[2], (WIDTH, STATE)) / WIDTH**0.5,
        "c": normal(keys[3], (WIDTH, STATE)) / WIDTH**0.5,
        "step": normal(keys[4], (WIDTH, HEADS)) / WIDTH**0.5,
        "step_bias": jnp.zeros(HEADS),
        "log_a": jnp.log(jax.random.uniform(keys[5], (HEADS,), minval=1.0, maxval=2.0)),
        "out": normal(keys[6], (WIDTH, WIDTH)) / WIDTH**0.5,
    }


def mamba_lm(parameters, ids):
    x = parameters["words"][ids]
    for layer in parameters["layers"]:
        x = mamba(layer, x)
    return rms_norm(x, jnp.ones(WIDTH)) @ parameters["head"]


def mamba_lm_parameters(key):
    words, head, *layers = jax.random.split(key, 2 + LAYERS)
    return {
        "words": jax.random.normal(words, (WORDS, WIDTH)),
        "head": jax.random.normal(head, (WIDTH, WORDS)) / WIDTH**0.5,
        "layers": [mamba_parameters(layer) for layer in layers],
    }


# Flax's own attention alone, and a plain function


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(x[..., 0])
        attend = nn.MultiHeadDotProductAttention(
            HEADS, qkv_features=WIDTH, out_features=3
        )
        return attend(x, x, mask=mask)


def plain(parameters, x):
    h = jnp.tanh(x @ parameters["in"] + parameters["bias"])
    h = h * jax.nn.sigmoid(h @ parameters["gate"])
    return jax.nn.log_softmax(h @ parameters["out"])


def plain_parameters(key):
    first, second, third, fourth = jax.random.split(key, 4)
    glorot = jax.nn.initializers.glorot_uniform()
    return {
        "in": glorot(first, (5, WIDTH)),
        "bias": 0.1 * jax.random.truncated_normal(second, -2.0, 2.0, (WIDTH,)),
        "gate": jax.nn.initializers.he_normal()(third, (WIDTH, WIDTH)),
        "out": glorot(fourth, (WIDTH, 3)),
    }


# Keras 3 on JAX: its initialisers draw with seeds, which come from the key here


class SeedsOfKey(keras.random.SeedGenerator):
    def __init__(self, key):
        super().__init__(seed=0)
        self.key, self.count = key, 0

    def next(self, ordered=True):
        self.count += 1
        return jax.random.key_data(jax.random.fold_in(self.key, self.count))


def keras_network(seeds):
    def glorot():
        return keras.initializers.GlorotUniform(seed=seeds)

    dense = keras.layers.Dense
    return keras.Sequential(
        [
            keras.Input((5,)),
            dense(WIDTH, activation="gelu", kernel_initializer=glorot()),
            keras.layers.LayerNormalization(),
            dense(WIDTH, activation="relu", kernel_initializer=glorot()),
            dense(3, kernel_initializer=glorot()),
        ]
    )


def keras_parameters(key):
    with keras.StatelessScope():
        network = keras_network(SeedsOfKey(key))
        return {
            f"{k}.{variable.name}": variable.value
            for k, variable in enumerate(network.trainable_variables)
        }


def keras_apply(parameters, x):
    network = keras_network(SeedsOfKey(jax.random.key(0)))
    values = list(parameters.values())
    return network.stateless_call(values, [], x)[0]


# A network of Haiku


def haiku_mlp():
    def forward(x):
        x = hk.nets.MLP([WIDTH, 2 * WIDTH, 3], activation=jax.nn.elu)(x)
        return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)

    return hk.transform(forward)


IDS = jnp.array([[3, 7, 7, 1]])
X = jax.random.normal(jax.random.key(1), (2, 5))

MODELS = {
    "gpt of NNX": (nnx_gpt, (IDS,)),
    "gpt of Linen": (LinenGPT(), (IDS,)),
    "gpt of Equinox": (EquinoxGPT, (IDS[0],)),
    "llama": (llama, (llama_parameters, IDS)),
    "vit": (ViT(), (jax.random.normal(jax.random.key(2), (1, 8, 8, 3)),)),
    "resnet": (resnet, (jax.random.normal(jax.random.key(5), (1, 8, 8, 3)),)),
    "experts": (experts_model, (IDS,)),
    "mamba": (mamba_lm, (mamba_lm_parameters, IDS)),
    "attention": (Attention(), (jax.random.normal(jax.random.key(4), (1, 4, 5)),)),
    "keras": (keras_apply, (keras_parameters, X)),
    "plain": (plain, (plain_parameters, X)),
    "batch norm": (batch_norm_mlp, (X,)),
    "haiku": (haiku_mlp(), (X,)),
}
