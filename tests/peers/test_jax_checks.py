"""Checks of JAX models, what they share with PyTorch's, and what they refuse."""

import re
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import torch
from flax import nnx

import netsor as ns
from tests.command import netsor
from tests.internals import jax_first_steps, jax_training_by_optax

from .jax_models import (
    IDS,
    LAYERS,
    WIDTH,
    WORDS,
    EquinoxBlock,
    NnxBlock,
    llama,
    llama_parameters,
    nnx_gpt,
)

X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


class TorchNetwork(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32, bias=False)
        self.second = torch.nn.Linear(32, 4, bias=False)
        for layer in (self.first, self.second):
            torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def jax_parameters(key):
    first, second = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (16, 32)) / 16**0.5,
        "second": jax.random.normal(second, (32, 4)) / 32**0.5,
    }


def jax_network(parameters, x):
    h = jax.nn.gelu(x @ parameters["first"], approximate=False)
    return h @ parameters["second"]


def test_the_same_network_in_both_frameworks_has_the_same_draws():
    of_torch = ns.torch.program(TorchNetwork, torch.tensor(X))
    of_jax = ns.jax.program(jax_network, jax_parameters, X)
    options = {"draws": 50, "seed": 4, "progress": False, "workers": 1}
    np.testing.assert_allclose(
        of_torch.draw(**options), of_jax.draw(**options), rtol=0, atol=1e-6
    )


def wrong_gpt(key):
    model = nnx_gpt(key)
    model.layers[1].up.kernel[...] *= 1.3
    return model


def test_check_init_finds_a_matrix_that_is_too_large():
    numbers = wrong_gpt(jax.random.key(1))
    found = ns.jax.check_init(nnx_gpt, numbers=numbers, parameters_only=True)
    assert found.status == "FLAG"
    assert (found.first.where, found.first.what) == ("layers.1.up.kernel", "std")
    against = ns.jax.check_init(wrong_gpt, reference=nnx_gpt, parameters_only=True)
    assert against.first.where == "layers.1.up.kernel"


def test_check_init_of_a_healthy_model_is_ok():
    found = ns.jax.check_init(llama, llama_parameters, IDS, draws=100, seed=2)
    assert found.ok, str(found)
    assert found.checked_pass == "forward and backward pass"
    assert not found.unchecked


def deeper_gpt(key):
    model = nnx_gpt(key)
    model.layers = nnx.List(
        [*model.layers, NnxBlock(nnx.Rngs(jax.random.fold_in(key, 1)))]
    )
    return model


def test_check_init_says_first_that_the_reference_has_another_depth():
    found = ns.jax.check_init(nnx_gpt, IDS, reference=deeper_gpt, draws=100)
    assert (
        f"the reference has {LAYERS + 1} blocks and the module {LAYERS}, so"
        in (found.verdict.partition(";")[0])
    )
    assert found.other_depth.endswith(f": give a reference of {LAYERS} blocks")
    assert not found.checked_pass


def words_model(parameters, ids):
    return jnp.tanh(parameters["words"][ids]) @ parameters["head"]


def words_parameters(key):
    first, second = jax.random.split(key)
    return {
        "words": jax.random.normal(first, (WORDS, WIDTH)),
        "head": jax.random.normal(second, (WIDTH, WORDS)) / WIDTH**0.5,
    }


BATCH = np.random.default_rng(1).integers(0, WORDS, (8, 16))
OPTIMISERS = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw with clipping and a schedule": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(optax.linear_schedule(1e-3, 1e-2, 4), weight_decay=0.1),
    ),
    "lion": optax.lion(1e-3),
    "muon": optax.contrib.muon(1e-2),
    "multi_transform": optax.multi_transform(
        {"words": optax.adam(1e-2), "head": optax.sgd(0.1)},
        {"words": "words", "head": "head"},
    ),
}


def written_out(optimiser, seed, factor=1.0, steps=2):
    """The log of a loop with optax, as users write it."""
    numbers = words_parameters(jax.random.key(seed))
    state, log = optimiser.init(numbers), []

    def loss(numbers):
        logits = words_model(numbers, BATCH)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, BATCH[:, 1:]
        ).mean()

    for step in range(steps + 1):
        value, gradient = jax.value_and_grad(loss)(numbers)
        gradient = jax.tree.map(lambda x: factor * x, gradient)
        norm = float(optax.global_norm(gradient))
        log.append({"step": step, "loss": float(value), "grad_norm": norm})
        updates, state = optimiser.update(gradient, state, numbers)
        numbers = optax.apply_updates(numbers, updates)
    return log


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_run_with_optax_lies_in_its_bands(name):
    law = ns.jax.run_law(
        words_model,
        OPTIMISERS[name],
        BATCH,
        init=words_parameters,
        steps=2,
        progress=False,
    )
    assert law.check(written_out(OPTIMISERS[name], seed=77)).ok
    if name == "sgd":
        found = law.check(written_out(OPTIMISERS[name], seed=77, factor=4.0))
        assert not found.ok
        assert "gradients 4 times too large" in found.verdict


def test_a_loop_with_several_passes_is_that_of_their_mean():
    options = {"init": words_parameters, "steps": 1, "progress": False}
    options["initialisations"] = 24
    whole, parts = (
        ns.jax.run_law(words_model, optax.adam(1e-2), BATCH, accumulation=k, **options)
        for k in (1, 4)
    )
    for name, values in whole.values.items():
        np.testing.assert_allclose(values, parts.values[name], rtol=1e-4)


def test_optimiser_that_needs_a_rate_is_refused():
    with pytest.raises(
        ValueError, match=r"optimiser=.* without arguments \(missing .*learning_rate"
    ):
        ns.jax.run_law(words_model, optax.adamw, BATCH, init=words_parameters)


def coordinate(n):
    return lambda key: TwoLayers(n, nnx.Rngs(key))


class Perceptron(nnx.Module):
    def __init__(self, n, rngs):
        self.up = nnx.Linear(n, n, rngs=rngs)
        self.down = nnx.Linear(n, n, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(x)))


class TwoLayers(nnx.Module):
    def __init__(self, n, rngs):
        self.words = nnx.Embed(10, n, rngs=rngs)
        self.layers = nnx.List([Perceptron(n, rngs) for _ in range(2)])
        self.head = nnx.Linear(n, 10, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_coordinate_checks_take_jax_models():
    found = ns.coord_check(
        coordinate,
        widths=[16, 64],
        optimiser="adam",
        lr=1e-2,
        draws=8,
        workers=1,
        progress=False,
    )
    # under the same rate at all widths, what a hidden matrix adds grows
    assert re.search(r"layers\.0\.up\.kernel\s+update .* FLAG", str(found))


class FewWords(nnx.Module):
    """A model of four words, whose table has a name that says nothing."""

    def __init__(self, n, rngs):
        self.rows = nnx.Embed(4, n, rngs=rngs)
        self.unused = nnx.Linear(n, n, rngs=rngs)
        self.layers = nnx.List([Perceptron(n, rngs)])
        self.head = nnx.Linear(n, 4, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        return self.head(self.layers[0](self.rows(ids)))


class FewNamedWords(FewWords):
    def __init__(self, n, rngs):
        super().__init__(n, rngs)
        self.words = self.rows
        del self.rows

    def __call__(self, ids):
        return self.head(self.layers[0](self.words(ids)))


@pytest.mark.parametrize(
    ("module", "ids"),
    [(FewWords, [1, 2, 3]), (FewNamedWords, [1, 2, 3]), (FewNamedWords, None)],
)
def test_coordinate_checks_take_ids_of_small_and_unnamed_tables(module, ids):
    found = ns.coord_check(
        lambda n: lambda key: module(n, nnx.Rngs(key)),
        widths=[16, 32],
        ids=ids,
        draws=8,
        workers=1,
        progress=False,
    )
    assert "head" in str(found)


def test_kind_of_a_check_is_that_of_matrices_in_the_program():
    """Each width is built once, and a matrix that nothing reads names no kind."""
    widths = []

    def build(n):
        widths.append(n)
        return lambda key: FewNamedWords(n, nnx.Rngs(key))

    def labels(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "unused" if "unused" in str(path) else "rest", params
        )

    optimiser = optax.multi_transform(
        {"unused": optax.adam(1e-2), "rest": optax.sgd(0.1)}, labels
    )
    step_at, kind = jax_training_by_optax(build, 16, optimiser, None)
    assert kind == "sgd"
    step_at(16)
    step_at(32)
    assert widths == [16, 32]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"vectors": ["gain"]}, r"vectors=\['gain'\] must be left out: of JAX models"),
        ({"parametrisation": "sp"}, "parametrisation='sp' must be left out for a JAX"),
    ],
)
def test_coordinate_checks_of_jax_models_reject_settings_that_cannot_act(
    setting, message
):
    with pytest.raises(ValueError, match=message):
        ns.coord_check(coordinate, widths=[16, 64], optimiser="adam", **setting)


FIRST_STEPS = {
    "chain": (
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(optax.linear_schedule(1e-3, 0.0, 10), weight_decay=0.1),
        ),
        {"head.kernel": ("adam", 1e-3), "words.embedding": ("adam", 1e-3)},
    ),
    "nesterov": (
        optax.sgd(0.1, momentum=0.9, nesterov=True),
        {"head.kernel": ("sgd", 0.19), "layers.0.up.kernel": ("sgd", 0.19)},
    ),
    "lion": (optax.lion(1e-4), {"layers.1.down.kernel": ("adam", 1e-4)}),
    "muon": (optax.contrib.muon(1e-2), {"layers.0.up.kernel": ("muon", 1e-2)}),
    "transforms": (
        lambda params: optax.multi_transform(
            {"head": optax.sgd(0.1), "rest": optax.adam(1e-3)},
            jax.tree_util.tree_map_with_path(
                lambda path, x: "head" if "head" in str(path) else "rest", params
            ),
        ),
        {"head.kernel": ("sgd", 0.1), "words.embedding": ("adam", 1e-3)},
    ),
}


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_first_steps_of_optax_are_found_by_running_them(name):
    optimiser, expected = FIRST_STEPS[name]
    state = jax.eval_shape(
        lambda key: nnx.split(coordinate(16)(key))[1], jax.random.key(0)
    )
    steps = jax_first_steps(optimiser, state)
    for path, (kind, rate) in expected.items():
        assert steps[path].kind == kind
        assert steps[path].rate == pytest.approx(rate, rel=1e-4)


NO_FIRST_STEPS = {
    "clipping": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "size of the": optax.lamb(1e-3),
    "decay inside": optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-3)),
}


@pytest.mark.parametrize("reason", NO_FIRST_STEPS)
def test_steps_that_are_no_multiples_are_refused(reason):
    with pytest.raises(ValueError, match=reason):
        ns.coord_check(
            coordinate, widths=[16, 64], optimiser=NO_FIRST_STEPS[reason], draws=8
        )


def test_an_optimiser_of_optax_has_the_law_of_its_name():
    """The first step of Adam is the sign of the gradient."""
    options = {"widths": [16, 32], "draws": 8, "workers": 1, "progress": False}
    of_optax = ns.coord_check(coordinate, optimiser=optax.adamw(1e-2), **options)
    named = ns.coord_check(coordinate, optimiser="adam", lr=1e-2, **options)
    assert str(of_optax[0]) == str(named[0])


def straight_through():
    @jax.custom_vjp
    def rounded(x):
        return jnp.round(x)

    rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    return rounded


REFUSED = {
    "sort": (lambda p, x: jnp.sort(x @ p["first"], axis=-1) @ p["second"], "sort"),
    "while": (
        lambda p, x: jax.lax.while_loop(
            lambda y: y.sum() > 0, lambda y: y - 1, x @ p["first"]
        ),
        "depends on random numbers",
    ),
    "cond": (
        lambda p, x: jax.lax.cond(
            (x @ p["first"])[0, 0] > 0, lambda: x @ p["first"], lambda: x @ p["first"]
        ),
        "use jnp.where",
    ),
    "rule": (
        lambda p, x: straight_through()(x @ p["first"]) @ p["second"],
        "only rules that compute the derivative",
    ),
    "coordinate": (
        lambda p, x: (x @ p["first"]).at[:, 3].set(1.0) @ p["second"],
        "single coordinates",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_primitive_the_path_and_the_line(name):
    apply, reason = REFUSED[name]
    with pytest.raises(ns.jax.UnsupportedError, match=reason) as error:
        ns.jax.program(apply, jax_parameters, X)
    assert re.search(r"after (first|second): ", str(error.value))
    assert re.search(r"\(at .*test_jax_checks\.py:\d+: ", str(error.value))


def test_the_core_does_not_import_jax():
    code = "import sys, netsor; print('jax' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "False"


class TiedEquinox(eqx.Module):
    words: eqx.nn.Embedding
    layers: list
    last: eqx.nn.LayerNorm

    def __init__(self, key):
        *layers, words = jax.random.split(key, LAYERS + 1)
        self.words = eqx.nn.Embedding(WORDS, WIDTH, key=words)
        self.layers = [EquinoxBlock(key) for key in layers]
        self.last = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, ids):
        x = jax.vmap(self.words)(ids)
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.last)(x) @ self.words.weight.T


class BiasedEquinox(TiedEquinox):
    head: eqx.nn.Linear

    def __init__(self, key):
        super().__init__(key)
        self.head = eqx.nn.Linear(WIDTH, WORDS, key=jax.random.fold_in(key, 1))

    def __call__(self, ids):
        x = self.words.weight[ids]
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(jax.vmap(self.last)(x))


@pytest.mark.parametrize("model", [TiedEquinox, BiasedEquinox])
def test_check_init_of_equinox_models_compares_gradients(model):
    """Under vmap tables are looked up in slices, and the head acts from the left."""
    found = ns.jax.check_init(model, IDS[0], draws=100, seed=2)
    assert found.ok, str(found)
    assert found.checked_pass == "forward and backward pass"


RUN_FILE = """
import optax
from tests.peers.test_jax_checks import words_model, words_parameters

def build():
    return (words_parameters, words_model)

def adam(parameters):
    assert "head" in parameters
    return optax.adam(1e-2)
"""


def test_runs_are_checked_by_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(RUN_FILE)
    np.save(tmp_path / "ids.npy", BATCH)
    log = written_out(optax.adam(1e-2), seed=77)
    lines = ["step,loss,grad_norm"]
    for step, row in enumerate(log):
        lines.append(f"{step},{row['loss']},{row['grad_norm']}")
    (tmp_path / "run.csv").write_text("\n".join(lines))
    found = netsor(
        *("check-run", "mine.py:build", "--optimizer", "mine.py:adam"),
        *("--batch", "ids.npy", "--log", "run.csv", "--steps", "1"),
        *("--initialisations", "24"),
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stderr + found.stdout
    assert "numbers as expected" in found.stdout


DISCRETE = {
    "jax.random.bernoulli": lambda key: 2.0 * jax.random.bernoulli(key, 0.5, (16, 32)),
    "jax.random.randint": lambda key: (
        jax.random.randint(key, (16, 32), -128, 129) / 128
    ),
    "a conversion to integers": lambda key: (
        (4 * jax.random.uniform(key, (16, 32))).astype(int) * 1.0
    ),
    "round": lambda key: jnp.round(jax.random.normal(key, (16, 32))),
}


@pytest.mark.parametrize("source", DISCRETE)
def test_discrete_numbers_are_refused_by_name(source):
    """Their quantiles are steps, and a uniform or normal law would be a wrong one."""

    def init(key):
        return {"first": DISCRETE[source](key)}

    message = f"first is unknown \\({source} makes discrete numbers\\), not continuous"
    with pytest.raises(ns.jax.UnsupportedError, match=message):
        ns.jax.program(lambda p, x: x @ p["first"], init, X)


def stacked(layers, width=16):
    """A residual network whose layers are one `scan`, and its parameters."""

    def layer(x, p):
        return x + jnp.tanh(x @ p["up"]) @ p["down"], None

    def apply(p, x):
        x, _ = jax.lax.scan(layer, x @ p["in"], p["layers"])
        return x @ p["out"]

    def init(key):
        keys = jax.random.split(key, 4)
        shape = (layers, width, width)
        return {
            "in": jax.random.normal(keys[0], (width, width)) / 4,
            "layers": {
                "up": jax.random.normal(keys[1], shape) / 4,
                "down": jax.random.normal(keys[2], shape) / 4,
            },
            "out": jax.random.normal(keys[3], (width, 2)) / 4,
        }

    return ns.jax.program(apply, init, X)


def test_blocks_of_a_scan_are_planned_once():
    shallow, deep = (stacked(layers).plan() for layers in (24, 72))
    (loop,) = deep.loops
    assert loop.times == shallow.loops[0].times + 48
    assert f"block × {loop.times}, with new random numbers" in str(deep)
    # what was planned does not grow with the number of layers
    assert len(str(deep).splitlines()) == len(str(shallow).splitlines())
