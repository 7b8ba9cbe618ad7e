"""Maximal updates of JAX models: derived exponents, written files, sweeps."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import netsor as ns
from tests.command import netsor

WIDTHS = [32, 64, 128]
WORDS = 11


class Network(nnx.Module):
    def __init__(self, n, rngs):
        self.words = nnx.Embed(WORDS, n, rngs=rngs)
        self.up = nnx.Linear(n, n, rngs=rngs)
        self.norm = nnx.LayerNorm(n, rngs=rngs)
        self.head = nnx.Linear(n, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.words(ids)
        return self.head(self.norm(x + nnx.gelu(self.up(x))))


def build(n):
    return lambda key: Network(n, nnx.Rngs(key))


def stacked(n):
    """Three layers, as a function with a scan over them."""

    def init(key):
        first, second, third = jax.random.split(key, 3)
        return {
            "embed": jax.random.normal(first, (WORDS, n)),
            "layers": {
                "up": jax.random.normal(second, (3, n, n)) / n**0.5,
                "gain": jnp.ones((3, n)),
            },
            "head": jax.random.normal(third, (n, WORDS)) / n**0.5,
        }

    def apply(parameters, ids):
        def layer(x, each):
            size = jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            return x + jnp.tanh(x / size * each["gain"] @ each["up"]), None

        x, _ = jax.lax.scan(layer, parameters["embed"][ids], parameters["layers"])
        return x @ parameters["head"]

    return init, apply


def exponents(rule):
    return {
        name: (each.std.width, each.lr.width) for name, each in rule.parameters.items()
    }


@pytest.fixture(scope="module")
def rule():
    return ns.jax.parametrise(build, widths=WIDTHS)


def test_exponents_are_those_of_the_literature(rule):
    """NNX draws embeddings with variance 1/n, which must not depend on n."""
    assert exponents(rule) == {
        "words.embedding": (0.5, 0.0),
        "up.kernel": (0.0, -1.0),
        "up.bias": (0.0, 0.0),
        "norm.scale": (0.0, 0.0),
        "norm.bias": (0.0, 0.0),
        "head.kernel": (-0.5, -1.0),
    }
    assert rule.scales == ()
    assert rule.undecided == []


def test_layers_of_a_scan_have_one_rule():
    found = ns.jax.parametrise(stacked, widths=WIDTHS)
    assert exponents(found) == {
        "embed": (0.0, 0.0),
        "layers.up": (0.0, -1.0),
        "layers.gain": (0.0, 0.0),
        "head": (-0.5, -1.0),
    }
    # the axis of layers does not make a matrix of a gain
    assert "STACKED = {'layers.gain': 1, 'layers.up': 1}" in found.source()


def test_the_written_file_is_plain_optax(rule):
    """Its initialisation, learning rates, decays and eps, at twice the base."""
    source = rule.source()
    assert not re.search(r"^\s*(import|from) netsor", source, re.MULTILINE)
    written = {}
    exec(source, written)
    params = nnx.state(build(64)(jax.random.key(0)), nnx.Param)
    new = written["initialise"](params, base_width=32)
    ratio = new["head"]["kernel"][...] / params["head"]["kernel"][...]
    np.testing.assert_allclose(ratio, 2**-0.5, rtol=1e-6)
    same = written["scale_outputs"](new, base_width=32)
    jax.tree.map(np.testing.assert_array_equal, same, new)
    tx = written["optimiser"](new, lr=1e-2, base_width=32, weight_decay=0.1)
    gradients = jax.tree.map(jnp.ones_like, new)
    updates, _ = tx.update(gradients, tx.init(new), new)
    decayed = 1.0 + 2 * 0.1 * new["up"]["kernel"][...]  # inverse of the rate
    np.testing.assert_allclose(
        updates["up"]["kernel"][...], -0.5e-2 * decayed, rtol=1e-4
    )
    np.testing.assert_allclose(updates["up"]["bias"][...], -1e-2, rtol=1e-4)


def test_a_schedule_is_multiplied(rule):
    written = {}
    exec(rule.source(), written)
    params = nnx.state(build(64)(jax.random.key(0)), nnx.Param)
    schedule = optax.linear_schedule(1e-2, 0.0, 10)
    tx = written["optimiser"](params, lr=schedule, base_width=32)
    gradients, state = jax.tree.map(jnp.ones_like, params), tx.init(params)
    for step in range(3):
        updates, state = tx.update(gradients, state, params)
        expected = -0.5 * float(schedule(step))
        found = updates["head"]["kernel"][...]
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_sweeps_train_jax_models(rule):
    options = {"steps": 2, "draws": 4, "lr": [0.003, 0.01, 0.03], "progress": False}
    found = ns.transfer(
        build,
        widths=[32, 64],
        parametrisation=["sp", rule],
        optimiser="adamw",
        **options,
    )
    assert [sweep.name for sweep in found] == ["sp", "derived"]
    # at the base the file changes nothing
    losses = [sweep.curves[32].losses for sweep in found]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    with pytest.raises(ValueError, match="the optimiser names what moves"):
        ns.transfer(build, widths=[32], weights=lambda net: [], optimiser="adamw")


def test_the_command_takes_jax_models(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from tests.peers.test_jax_parametrise import build\n"
    )
    options = ("parametrise", "mine.py:build", "--widths", "32,64", "--draws", "3")
    assert "wrote mup_build.py" in netsor(*options, cwd=tmp_path).stdout
    assert "optax.multi_transform" in (tmp_path / "mup_build.py").read_text()
    refused = netsor(*options, "--overwrite", "--depths", "1,2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--depths is for PyTorch modules" in refused.stderr


OWN_OPTIMISER = """
import optax
from tests.peers.test_jax_parametrise import build

def of_parameters(parameters):
    clip = optax.clip_by_global_norm(1.0)
    labels = {name: "adam" for name in parameters}
    transforms = {"adam": optax.adam(1e-2)}
    return optax.chain(clip, optax.multi_transform(transforms, labels))

def of_nothing():
    return optax.adam(1e-2)
"""


@pytest.mark.parametrize("optimiser", ["of_parameters", "of_nothing"])
def test_sweeps_of_the_command_take_functions_that_make_optimisers(tmp_path, optimiser):
    (tmp_path / "mine.py").write_text(OWN_OPTIMISER)
    options = ("--widths", "32,64", "--steps", "1", "--draws", "4", "--lr", "0.5,1,2")
    found = netsor(
        *("transfer", "mine.py:build", "--optimizer", optimiser, *options),
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stderr
    assert "as written" in found.stdout


def fused_and_tied(n):
    """Attention by one matrix for queries, keys and values, and a tied head."""
    heads = 4

    def init(key):
        words, fused, out = jax.random.split(key, 3)
        return {
            "words": 0.02 * jax.random.normal(words, (23, n)),
            "gain": jnp.ones(n),
            "layers": {
                "0": {
                    "fused": jax.random.normal(fused, (n, 3 * n)) / n**0.5,
                    "out": jax.random.normal(out, (n, n)) / n**0.5,
                }
            },
        }

    def norm(x):
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    def apply(parameters, ids):
        layer = parameters["layers"]["0"]
        x = parameters["words"][ids]
        parts = jnp.split(norm(x) @ layer["fused"], 3, axis=-1)
        query, key, value = (y.reshape(*ids.shape, heads, n // heads) for y in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (n // heads) ** 0.5
        values = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
        x = x + values.reshape(x.shape) @ layer["out"]
        return norm(x) * parameters["gain"] @ parameters["words"].T

    return init, apply


def test_fused_and_tied_models():
    rule = ns.jax.parametrise(fused_and_tied, widths=[32, 64], draws=3)
    found = str(rule)
    assert "gain: times 1/n (logits)" in found
    queries = "fused, from 0 to 0.333 of the last axis: times n^-1/2 (scores)"
    assert queries in found
