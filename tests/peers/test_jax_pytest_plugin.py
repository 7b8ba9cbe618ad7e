"""The fixture `netsor` with JAX models, in a run of pytest of its own."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("flax")

TESTS = """
import jax
import jax.numpy as jnp
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs, factor=1.0):
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)
        self.up.kernel[...] *= factor

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


def build(key):
    return Net(nnx.Rngs(key))


def wrong(key):
    return Net(nnx.Rngs(key), 1.5)


def apply(parameters, x):
    return x @ parameters["head"]


def init(key):
    return {"head": jax.random.normal(key, (16, 8)) / 4}


def test_right(netsor):
    assert netsor.check_init(build, jnp.ones((2, 16)), parameters_only=True).ok


def test_function(netsor):
    assert netsor.check_init(apply, init, jnp.ones((2, 16)), parameters_only=True).ok


def test_wrong(netsor):
    netsor.check_init(wrong, reference=build, parameters_only=True)
"""


def test_jax_models_are_checked_too(tmp_path):
    (tmp_path / "test_init.py").write_text(TESTS)
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "netsor.pytest_plugin", "-rf", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "800", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert "1 failed, 2 passed" in shown.stdout, shown.stdout
    assert "differs from Net in up.kernel: std" in shown.stdout
