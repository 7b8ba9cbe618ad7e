"""Plans that drop results and compute them again: the same numbers in less memory."""

import numpy as np
import pytest
from hypothesis import given, settings

import netsor as ns
from netsor.models import read
from tests.internals import Numpy, Segmented, Streams, block, recomputing

from ..gradients import gradients
from ..keep import keep

BLOCKS = 8


@pytest.fixture(scope="module")
def plan():
    """That of the gradients of a small Llama of eight blocks."""
    model = read("llama-3-8b").replace(
        layers=BLOCKS, width=32, heads=4, groups=2, hidden=64, vocabulary=50
    )
    return model.probes(tokens=8, gradients=True).plan()


def same(one, other, replicas):
    """Whether two plans give the same numbers, also for the replicas after these."""
    streams = Streams(3, [range(3), range(3, 6)]), Streams(3, [range(3), range(3, 6)])
    for _ in range(2):
        first, second = (
            block(plan, stream, replicas)
            for plan, stream in zip((one, other), streams, strict=True)
        )
        for a, b in zip(first, second, strict=True):
            if not np.allclose(a, b, rtol=1e-10, atol=1e-14, equal_nan=True):
                return False
    return True


@pytest.mark.parametrize("replicas", keep([1, 2, 3], 2))
def test_recomputing_changes_no_number(plan, replicas):
    """Blocks of replicas that end within a chunk, and between two."""
    assert same(plan, recomputing(plan), replicas)


def test_recomputing_draws_nothing_new_and_saves_memory(plan):
    """The forward part is done once more at most: a third of all steps."""
    shorter = recomputing(plan)
    assert shorter.random_numbers == plan.random_numbers
    assert shorter.bytes < plan.bytes / 3
    assert shorter.bytes_kept == plan.bytes
    assert plan.operations < shorter.operations < 1.5 * plan.operations
    assert f"without that, {plan.bytes:,} bytes per replica" in " ".join(
        str(shorter).split()
    )


def test_forward_pass_is_not_recomputed():
    """Nothing waits for a later part."""
    plan = read("gpt2").replace(layers=6, vocabulary=50).probes(tokens=4).plan()
    assert recomputing(plan) is plan


@settings(max_examples=5, deadline=None, derandomize=True)
@given(built=gradients())
def test_any_program_in_any_segments(built):
    """Random programs with gradients, cut at random places."""
    plan = built.net.plan(**dict.fromkeys(built.net.widths, 4))
    for segments in (2, 3, 8):
        shorter = Segmented(plan, segments).plan()
        if shorter is not None:
            assert same(plan, shorter, 2)


def test_draws_recompute_if_memory_is_short(plan, monkeypatch):
    """With the same numbers."""
    n = ns.Width("n")
    x = stream = ns.gaussian(n, 3)
    for _ in range(BLOCKS):
        stream = stream + ns.tanh(ns.weight(n, n) @ ns.rms_norm(stream))
    gradient = ns.grad(ns.mean_dot(stream, stream).sum(), x)
    net = ns.Program(ns.mean_dot(gradient, gradient).sum())
    expected = net.draw(n=16, draws=5, seed=1)
    made = []
    monkeypatch.setattr(Numpy, "memory", lambda backend: 1.0)
    monkeypatch.setattr(
        "netsor.engine.backends._base.recomputing",
        lambda plan: made.append(recomputing(plan)) or made[-1],
    )
    found = net.draw(n=16, draws=5, seed=1)  # in blocks of other sizes
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert made[0].bytes_kept
