"""JAX models: the law of every quantity is that of real initialisations."""

import jax
import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    ProgramModel,
    as_pass,
    jax_drawn,
    jax_network,
    pass_function,
    quantities_of,
    real_structure,
)

from .jax_models import IDS, LAYERS, MODELS
from .networks import columns

# those with blocks; of the others the outputs are compared
NETWORKS = [
    "gpt of NNX",
    "gpt of Linen",
    "gpt of Equinox",
    "llama",
    "vit",
    "resnet",
    "experts",
    "mamba",
]
REAL, OURS = 1000, 2000
LEVEL = 1e-4 / (len(MODELS) * 80)


def real_quantities(model, inputs, net, count):
    """The quantities of so many initialisations, by name and block."""
    parts = jax_drawn(model, inputs)
    parts_of_real = real_structure(model, inputs, parts.laws)
    run = pass_function(parts_of_real, net.targets)

    def one_pass(key):
        leaves = jax.tree.leaves(parts.functions.init(key))
        return run(dict(zip(parts.leaves.names, leaves, strict=True)))

    keys = jax.random.split(jax.random.key(3), count)
    # one after the other: convolutions with a kernel for each draw are slow
    results = jax.device_get(jax.jit(lambda keys: jax.lax.map(one_pass, keys))(keys))
    rows = []
    for k in range(count):
        one = jax.tree.map(lambda x, k=k: x[k], results)
        done = as_pass(parts_of_real, *one)
        rows.append(quantities_of(parts_of_real, done, net.targets, net.masks)[0])
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


@pytest.mark.parametrize("name", NETWORKS)
def test_quantities_have_the_law_of_real_initialisations(name):
    model, inputs = MODELS[name]
    net = jax_network(model, inputs)
    probes = ProgramModel(net.program, {}).probes(gradients=True)
    ours, fixed = columns(probes.measure(OURS, progress=False, workers=1))
    real = real_quantities(model, inputs, net, REAL)
    shared = {key for key in real if key in ours}
    names = {key for key, _ in shared}
    assert {"mean_square", "loss", "logit_std", "grad_mean_square"} <= names
    assert ("mean_square", LAYERS - 1) in shared or name == "experts"
    if name not in ("mamba", "resnet", "experts"):
        assert "entropy" in names
    for key in fixed & shared:
        np.testing.assert_allclose(real[key], ours[key][0], rtol=1e-3, atol=1e-6)
    found = {
        key: float(stats.ks_2samp(real[key], ours[key]).pvalue)
        for key in shared - fixed
    }
    print(name, len(found), min(found.values()))
    assert min(found.values()) > LEVEL, {k: p for k, p in found.items() if p < LEVEL}


def statistics(x):
    """Entries, squares and products of neighbours of (draws, entries)."""
    return np.concatenate([x, x**2, x * np.roll(x, 1, axis=1)], axis=1).T


def real_outputs(model, inputs, count):
    """The outputs of so many initialisations, (draws, entries)."""
    parts = jax_drawn(model, inputs)

    def outputs(key):
        return parts.functions.apply(parts.functions.init(key), *parts.inputs).ravel()

    keys = jax.random.split(jax.random.key(3), count)
    return np.asarray(jax.jit(jax.vmap(outputs))(keys), dtype=float)


def our_outputs(model, inputs, count):
    """Draws of the program, (draws, entries)."""
    net = ns.jax.program(as_scalars(model, inputs), *inputs)
    return net.draw(draws=count, progress=False, workers=1).reshape(count, -1)


def as_scalars(model, inputs):
    """The function of a model, whose outputs are no vectors."""
    functions = jax_drawn(model, inputs).functions

    def apply(*args):
        outputs = functions.apply(*args)
        identity = np.eye(outputs.shape[-1], dtype=np.float32)
        return outputs @ identity

    if callable(inputs[0]):
        return apply
    return (functions.init, apply)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NETWORKS])
def test_outputs_have_the_law_of_real_initialisations(name):
    model, inputs = MODELS[name]
    real = statistics(real_outputs(model, inputs, REAL))
    ours = statistics(our_outputs(model, inputs, OURS))
    found = [stats.ks_2samp(x, y).pvalue for x, y in zip(real, ours, strict=True)]
    print(name, len(found), min(found))
    assert min(found) > LEVEL


def test_comparison_notices_a_wrong_law():
    """The statistics can fail: matrices of the perceptrons 1.2 times as large."""
    model, inputs = MODELS["llama"]
    init, ids = inputs

    def wrong(key):
        tree = init(key)
        layers = {**tree["layers"], "up": 1.2 * tree["layers"]["up"]}
        return {**tree, "layers": layers}

    net = jax_network(model, (wrong, ids))
    probes = ProgramModel(net.program, {}).probes(gradients=True)
    ours, _ = columns(probes.measure(500, progress=False, workers=1))
    real = real_quantities(model, inputs, net, 500)
    key = ("mlp_share", 0)
    assert stats.ks_2samp(real[key], ours[key]).pvalue < LEVEL


def test_ids_are_those_of_the_batch():
    model, inputs = MODELS["llama"]
    net = jax_network(model, inputs)
    assert net.targets.words == tuple(IDS[0, 1:].tolist())
