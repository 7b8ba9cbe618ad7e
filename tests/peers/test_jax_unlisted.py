"""Functions of JAX that no list of the reader names: their laws, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import netsor as ns

WIDTH = 16
X = np.random.default_rng(0).normal(size=(4, WIDTH)).astype(np.float32)


def init(key):
    first, second, third = jax.random.split(key, 3)
    return {
        "a": jax.random.normal(first, (WIDTH, WIDTH)) / 4,
        "b": jax.random.normal(second, (WIDTH, 3)) / 4,
        "k": jax.random.normal(third, (3, WIDTH, WIDTH)) / 7,
    }


def turned(x):
    """Rotary positions of pairs of coordinates that are next to each other."""
    angles = jnp.arange(len(x))[:, None] * 100.0 ** (-jnp.arange(0, WIDTH, 2) / WIDTH)
    even, odd = x[:, ::2], x[:, 1::2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return pairs.reshape(x.shape)


FUNCTIONS = {
    "scan mixed": lambda p, x: (
        jax.lax.scan(
            lambda c, t: (
                (jnp.tanh(c[0] @ p["a"]), c[1] + 1, c[2] + (c[0] ** 2).mean()),
                None,
            ),
            (x, 0, 0.0),
            jnp.arange(2),
        )[0][0]
        @ p["b"]
    ),
    "vmap axes": lambda p, x: (
        jax.vmap(lambda w, y: jnp.tanh(y @ w), in_axes=(0, None), out_axes=1)(
            p["k"], x
        ).sum(1)
        @ p["b"]
    ),
    "while": lambda p, x: (
        jax.lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.tanh(c[1] @ p["a"])), (0, x)
        )[1]
        @ p["b"]
    ),
    "cond": lambda p, x: (
        jax.lax.cond(True, lambda h: jnp.sin(h @ p["a"]), lambda h: h, x) @ p["b"]
    ),
    "segment": lambda p, x: (
        jax.ops.segment_sum(jnp.tanh(x @ p["a"]), jnp.array([0, 0, 1, 1]), 2) @ p["b"]
    ),
    "topk": lambda p, x: jax.lax.top_k(jnp.tanh(x @ p["a"]) @ p["b"], 2)[0],
    "sort": lambda p, x: jnp.sort(jnp.tanh(x @ p["a"]) @ p["b"], axis=-1),
    "conv": lambda p, x: (
        jax.lax.conv_general_dilated(
            x.T[None].transpose(0, 2, 1),
            p["k"],
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
        )[0]
        @ p["b"]
    ),
    "einsum": lambda p, x: (
        jnp.einsum("bti,hij->bthj", x[None], p["k"]).mean(2)[0] @ p["b"]
    ),
    "pref": lambda p, x: jax.lax.dot_general(
        jnp.tanh(x @ p["a"]).astype(jnp.bfloat16),
        p["b"].astype(jnp.bfloat16),
        (((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    ),
    "nested": jax.jit(
        lambda p, x: jax.jit(lambda q, y: jnp.tanh(y @ q))(p["a"], x) @ p["b"],
        donate_argnums=1,
    ),
    "remat": lambda p, x: (
        jax.checkpoint(
            lambda q, y: jnp.tanh(y @ q), policy=jax.checkpoint_policies.dots_saveable
        )(p["a"], x)
        @ p["b"]
    ),
    "dropout": lambda p, x: (
        jnp.where(
            jax.random.bernoulli(jax.random.key(1), 0.5, (4, WIDTH)),
            jnp.tanh(x @ p["a"]) * 2,
            0,
        )
        @ p["b"]
    ),
    "cumsum": lambda p, x: jnp.cumsum(jnp.tanh(x @ p["a"]), 0) @ p["b"],
    "lax.map": lambda p, x: jax.lax.map(lambda y: jnp.tanh(y @ p["a"]) @ p["b"], x),
    "roll": lambda p, x: jnp.roll(jnp.tanh(x @ p["a"]), 1, axis=0) @ p["b"],
    "onehot": lambda p, x: jax.nn.one_hot(
        jnp.argmax(jnp.tanh(x @ p["a"]) @ p["b"], -1), 3
    ),
    "linalg": lambda p, x: (
        jnp.linalg.norm(x @ p["a"], axis=-1, keepdims=True) * jnp.ones(3)
    ),
    "logsumexp": lambda p, x: jax.nn.logsumexp(
        jnp.tanh(x @ p["a"]) @ p["b"], axis=-1, keepdims=True
    ),
    "grad": lambda p, x: (
        jax.grad(lambda y: (jnp.tanh(y @ p["a"]) @ p["b"]).sum())(x) @ p["b"]
    ),
    "glu": lambda p, x: (jax.nn.silu(x @ p["a"]) * (x @ p["k"][0])) @ p["b"],
    "swap": lambda p, x: (
        jnp.swapaxes(jnp.tanh(x @ p["a"]).reshape(2, 2, WIDTH), 0, 1) @ p["b"]
    ),
}

# pooling, with windows of tokens, and pairs of coordinates that turn
FUNCTIONS |= {
    "average pool": lambda p, x: (
        jax.lax.reduce_window(
            jnp.tanh(x @ p["a"]), 0.0, jax.lax.add, (2, 1), (2, 1), "VALID"
        )
        @ p["b"]
    ),
    "max pool": lambda p, x: (
        jax.lax.reduce_window(
            jnp.tanh(x @ p["a"]) @ p["k"][0],
            -jnp.inf,
            jax.lax.max,
            (3, 1),
            (2, 1),
            ((1, 2), (0, 0)),
        )
        @ p["b"]
    ),
    "associative scan": lambda p, x: (
        jax.lax.associative_scan(
            lambda first, second: (
                first[0] * second[0],
                first[1] * second[0] + second[1],
            ),
            (jax.nn.sigmoid(x @ p["a"]), x @ p["k"][0]),
        )[1]
        @ p["b"]
    ),
    "stack along the second axis": lambda p, x: (
        jnp.stack([x[:2] @ p["a"], 4 * jnp.sin(x[:2] @ p["a"])], axis=1) @ p["b"]
    ),
    "pairs of coordinates": lambda p, x: (
        turned(x @ p["a"]) @ turned(x @ p["k"][0]).T @ jnp.ones((4, 3))
    ),
}
REFUSED = {
    "complex": lambda p, x: ((x @ p["a"]) * jnp.exp(1j)).real @ p["b"],
    "fft": lambda p, x: jnp.abs(jnp.fft.fft(jnp.tanh(x @ p["a"]), axis=-1)) @ p["b"],
}
LEVEL = 1e-4 / (36 * len(FUNCTIONS))


def statistics(x):
    """Entries, squares and products of neighbours of (draws, entries)."""
    return np.concatenate([x, x**2, x * np.roll(x, 1, axis=1)], axis=1).T


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_have_the_law_of_real_initialisations(name):
    apply = FUNCTIONS[name]

    def as_scalars(p, x):
        outputs = apply(p, x)
        return outputs @ np.eye(outputs.shape[-1], dtype=np.float32)

    net = ns.jax.program(as_scalars, init, X)
    draws = net.draw(draws=400, progress=False, workers=1).reshape(400, -1)
    keys = jax.random.split(jax.random.key(3), 300)
    real = jax.jit(jax.vmap(lambda key: apply(init(key), X).ravel()))(keys)
    pairs = zip(statistics(np.asarray(real, float)), statistics(draws), strict=True)
    assert min(stats.ks_2samp(a, b).pvalue for a, b in pairs) > LEVEL


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_parameter_and_the_line(name):
    with pytest.raises(ns.jax.UnsupportedError, match=r"after a: .*\(at .*\.py:\d+: "):
        ns.jax.program(REFUSED[name], init, X)


def halves(key):
    whole = jax.random.normal(key, (8, 8))
    return {"a": whole, "b": whole[:4]}


def opposites(key):
    whole = jax.random.normal(key, (8, 8))
    return {"a": whole, "b": -whole}


def split_twice(key):
    (first, _), (again, _, _) = jax.random.split(key), jax.random.split(key, 3)
    return {
        "a": jax.random.normal(first, (8, 8)),
        "b": jax.random.normal(again, (8, 8)),
    }


DEPENDENT = {"halves": halves, "opposites": opposites, "split twice": split_twice}


@pytest.mark.parametrize("name", DEPENDENT)
def test_parameters_of_one_draw_are_not_independent(name):
    laws = ns.jax.parameters(lambda p, x: x, DEPENDENT[name], X)
    expected = "copy" if name == "split twice" else "unknown"
    assert (laws["a"].law, laws["b"].law) == ("normal", expected)


def one_column(key):
    return jnp.broadcast_to(jax.random.normal(key, (16, 1)), (16, 24))


def one_key(key):
    keys = jnp.broadcast_to(key, (16,))
    return jax.vmap(lambda each: jax.random.normal(each, (24,)))(keys)


def polynomial(key):
    z = jax.random.normal(key, (16, 24))
    return z**3 - z


def unit_columns(key):
    w = jax.random.normal(key, (16, 24))
    return w / jnp.linalg.norm(w, axis=0)


def signs(key):
    return jax.random.rademacher(key, (16, 24)).astype(jnp.float32)


@pytest.mark.parametrize("draw", [one_column, one_key, polynomial, unit_columns, signs])
def test_entries_of_other_laws_are_not_taken_for_basic_ones(draw):
    law = ns.jax.parameters(lambda p, x: x, lambda key: {"w": draw(key)}, X)["w"]
    assert law.law == "unknown"
    assert "ns.jax.parameters(model, declared=" in law.remedy
