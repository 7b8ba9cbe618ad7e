"""What costs the same for every block or chunk is paid once: a few replicas take Python
as long as thousands do.
"""

import numpy as np

import netsor as ns
from tests.internals import CHUNK, Numpy, Streams, block_of

from .compare import conditional

n = ns.Width("n")


@ns.program
def layer(tokens=4, heads=2):
    x = ns.clip(ns.weight(n, n, batch=tokens, name="W") @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads)


@ns.program
def transformer(tokens=3, heads=2):
    x = ns.gaussian(n, tokens)
    x = x + ns.nn.attention(ns.rms_norm(x), heads)
    return x + ns.nn.mlp(ns.rms_norm(x), 4 * n, activation=ns.gelu)


def test_no_step_reshapes_what_another_reshaped():
    for net in (layer(), layer()[0], transformer(), transformer()[0]):
        for width in (16, ns.inf):
            steps = net.plan(n=width).steps
            reshaped = {step.out for step in steps if step.kind == "reshape"}
            again = [
                step
                for step in steps
                if step.kind == "reshape" and step.args[0] in reshaped
            ]
            assert not again
            assert all(
                step.out.shape != step.args[0].shape
                for step in steps
                if step.kind == "reshape"
            )


def test_blocks_of_a_chunk_are_as_few_as_fit_and_of_one_size():
    plan = layer()[0].plan(n=256)
    most = block_of(plan)
    assert CHUNK // 2 < most < CHUNK  # else this tests nothing
    for replicas in (1, 7, most, most + 1, CHUNK):
        ticks: list[int] = []
        blocks = list(Numpy().sample(plan, 0, range(replicas), CHUNK, ticks.append))
        assert [len(columns) for _, columns in blocks] == ticks
        assert sum(ticks) == replicas
        assert len(ticks) == -(-replicas // most)
        assert max(ticks) - min(ticks) <= 1


def test_draws_do_not_depend_on_how_a_chunk_is_cut():
    net = layer()
    whole = conditional(net.outputs, {"n": 64.0}, CHUNK, progress=False)
    part = conditional(net.outputs, {"n": 64.0}, CHUNK - 3001, progress=False)
    np.testing.assert_array_equal(part.cov, whole.cov[: CHUNK - 3001])


def test_small_matrices_are_stored_with_the_replicas_innermost_however_many_heads_there_are():
    for heads in (2, 256, 2048):
        plan = layer(heads=heads)[0].plan(n=64)
        drawn = [
            Streams(0, 0).draw(step, 3)
            for step in plan.steps
            if step.kind in ("normals", "chi")
        ]
        assert sum(a[0].size for a in drawn) == plan.random_numbers
        assert all(a.strides[0] == a.itemsize for a in drawn)
