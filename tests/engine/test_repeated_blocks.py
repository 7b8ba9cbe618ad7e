"""Equal blocks of a deep network are lowered a few times: the plan is that of all
blocks, step by step, with every random stream and label.
"""

import numpy as np
import pytest

import netsor as ns
from netsor.models import read
from tests.internals import (
    ACCELERATOR,
    CPU,
    FIRST_BLOCKS,
    LAST_BLOCKS,
    Streams,
    _check_function,
    block,
    lowering,
    make_plan,
)
from tests.keep import keep

n, m = ns.Width("n"), ns.Width("m")


def decoder(layers, last=ns.gelu, width=32):
    """Blocks of a transformer, with numbers of each, as an audit asks for them."""
    x = ns.gaussian(n, 5)
    rows = []
    for k in range(layers):
        x = x + ns.nn.attention(ns.rms_norm(x, eps=1e-3), 2, 4, "causal")
        activation = last if k == layers - 1 else ns.gelu
        x = x + ns.nn.mlp(ns.rms_norm(x, eps=1e-3), n, activation=activation)
        rows.append(ns.mean_dot(x, x)[0])
    return ns.Program(tuple(rows)), {"n": width}


def encoder(layers, width=40):
    x = ns.gaussian(n, 6)
    for _ in range(layers):
        x = ns.layer_norm(x + ns.nn.mlp(x, 2 * n), eps=1e-3)
    return ns.Program(ns.mean_dot(x, x).sum()), {"n": width}


def residual(layers, width=64):
    x = ns.gaussian(n, 8)
    for _ in range(layers):
        x = ns.rms_norm(x + ns.tanh(ns.weight(n, n, name="W") @ x))
    return ns.Program(x), {"n": width}


def linear(layers, width=200):
    """Without coordinates; vectors of before and after the blocks are outputs."""
    first = ns.gaussian(n, 4)
    x = first
    for _ in range(layers):
        x = ns.rms_norm(x + ns.weight(n, n) @ x, eps=1e-3)
    return ns.Program((x, first, ns.mean_dot(x, first))), {"n": width}


def kept_vectors(layers, width=500):
    """Early vectors are outputs: their coordinates change whenever a frame does."""
    x = ns.gaussian(n, 4)
    early = []
    for k in range(layers):
        x = ns.rms_norm(x + ns.weight(n, n) @ x, eps=1e-3)
        if k < 2:
            early.append(x)
    return ns.Program((x, *early)), {"n": width}


def transformer(layers, width=256):
    """Coordinates of the stream, whose frame is oriented in every block."""
    x = ns.gaussian(n, 8)
    for _ in range(layers):
        x = x + ns.nn.attention(ns.rms_norm(x), heads=4)
        x = x + ns.weight(n, n) @ ns.gelu(ns.weight(n, n) @ ns.rms_norm(x))
    return ns.Program(x[0]), {"n": width}


def head(layers):
    """Coordinates of the stream, and of functions of another width at the end."""
    net, _ = transformer(layers)
    (x,) = net.outputs
    y = ns.tanh(ns.weight(m, n, 2) @ x)
    return ns.Program((x, y, ns.weight(m, m) @ y)), {"n": 256, "m": 512}


def model(name, layers, **fields):
    small = read(name).replace(
        layers=layers, width=32, heads=4, hidden=24, vocabulary=60, **fields
    )
    return small.probes(tokens=5).program, small.widths()


CASES = {
    "decoder": lambda: decoder(32),
    "another function at the end": lambda: decoder(33, last=ns.tanh),
    "wide": lambda: decoder(34, width=5000),
    "one block a loop": lambda: encoder(35),
    "vectors": lambda: residual(36),
    "oriented frames": lambda: transformer(36),
    "oriented frames and a head": lambda: head(36),
    "early vectors": lambda: linear(36),
    "full frames": lambda: linear(36, width=20),
    "GPT-2": lambda: model("gpt2", 34),
    "Llama": lambda: model("llama-3-8b", 33, groups=2),
    "blocks in pairs": lambda: model("gemma-2-9b", 64, groups=2),
    "ViT": lambda: model("vit-base", 38),
}

# cases whose blocks are no chain of equal ones, or whose steps do not repeat


def shared_matrix(layers):
    """Frames have more directions after each block."""
    w, x = ns.weight(n, n), ns.gaussian(n, 3)
    for _ in range(layers):
        x = x + ns.weight(n, n) @ ns.tanh(w @ x)
    return ns.Program(x[0]), {"n": 300}


def read_at_the_end(layers):
    x = ns.gaussian(n, 4)
    squares = []
    for _ in range(layers):
        x = ns.rms_norm(x + ns.weight(n, n) @ ns.tanh(x), eps=1e-3)
        squares.append(ns.mean_dot(x, x))
    return ns.Program(ns.stack(squares).sum(0)), {"n": 30}


def numbered(layers):
    """A number for each block."""
    x = ns.gaussian(n, 4)
    for k in range(layers):
        x = ns.rms_norm(x + (1 + k) * (ns.weight(n, n) @ ns.tanh(x)), eps=1e-3)
    return ns.Program(x[0]), {"n": 30}


def trained(layers):
    """A backward pass reads all blocks."""
    x = ns.gaussian(n, 3)
    for _ in range(layers):
        x = x + ns.tanh(ns.weight(n, n) @ x)
    loss = ns.mean_dot(x, x).sum()
    steps = ns.train(loss, loss, ns.optim.SGD(0.1), 1)
    return ns.Program(steps[-1]), {"n": 20}


IRREGULAR = {
    "two early vectors": lambda: kept_vectors(36),
    "shared matrix": lambda: shared_matrix(36),
    "read at the end": lambda: read_at_the_end(36),
    "numbered": lambda: numbered(36),
    "infinite": lambda: encoder(36, width=ns.inf),
    "few": lambda: encoder(FIRST_BLOCKS + LAST_BLOCKS + 6),
    "trained": lambda: trained(36),
}


def described(plan):
    """All of a plan, with registers by the steps that make them."""
    position = {step.out: k for k, step in enumerate(plan.steps)}

    def name(register):
        if register in position:
            return position[register]
        return register.shape, _check_function.content(register.value)

    steps = []
    for step in plan.steps:
        params = {
            key: _check_function.content(value) for key, value in step.params.items()
        }
        args = [name(arg) for arg in step.args]
        facts = (step.kind, step.out.shape, step.label, step.operations)
        steps.append((facts, args, params))
    live = [(sorted(map(name, dead)), overwritten) for dead, overwritten in plan.live]
    return steps, name(plan.mean), name(plan.columns), plan.notes, plan.bytes, live


@pytest.fixture
def lowered(monkeypatch):
    """The values that were lowered."""
    values = []
    lower_value = lowering._lower_value

    def counted(state, value, index):
        values.append(value)
        lower_value(state, value, index)

    monkeypatch.setattr(lowering, "_lower_value", counted)
    return values


def lowered_values(net, widths, lowered, prices=CPU):
    """How many values were lowered for a plan, and for one of all blocks.

    The two plans are equal.
    """
    lowered.clear()
    plan = make_plan(net.outputs, widths, prices=prices)
    count = len(lowered)
    lowered.clear()
    whole = make_plan(net.outputs, widths, prices=prices, without=("repeated",))
    for part, part_of_whole in zip(described(plan), described(whole), strict=True):
        assert part == part_of_whole
    return count, len(lowered)


@pytest.mark.parametrize(
    ("name", "prices"),
    keep(
        [(name, prices) for name in CASES for prices in (CPU, ACCELERATOR)],
        ("decoder", CPU),
        ("one block a loop", ACCELERATOR),
        ("vectors", CPU),
        ("oriented frames and a head", CPU),
    ),
)
def test_plan_of_equal_blocks_is_that_of_all_blocks(name, prices, lowered):
    net, widths = CASES[name]()
    count, whole = lowered_values(net, widths, lowered, prices)
    assert count < 0.75 * whole


@pytest.mark.parametrize("name", IRREGULAR)
def test_blocks_that_do_not_repeat_are_all_lowered(name, lowered):
    net, widths = IRREGULAR[name]()
    count, whole = lowered_values(net, widths, lowered)
    assert count >= whole


def test_as_many_values_are_lowered_of_any_depth(lowered):
    counts = []
    for layers in (37, 61):
        net, widths = decoder(layers)
        lowered.clear()
        net.plan(**widths)
        counts.append(len(lowered))
    assert counts[0] == counts[1]


def test_draws_of_equal_blocks_are_those_of_all_blocks():
    net, widths = decoder(31)
    draws = []
    for without in ((), ("repeated",)):
        plan = make_plan(net.outputs, widths, without=without)
        mean, _ = block(plan, Streams(3, 0), 4)
        draws.append(mean)
    np.testing.assert_array_equal(*draws)


def test_printed_plan_has_the_number_of_equal_blocks():
    net, widths = decoder(40)
    plan = net.plan(**widths)
    (loop,) = plan.loops
    assert loop.times > 35
    assert f"block × {loop.times}, with new random numbers each time" in str(plan)


def test_error_of_a_program_with_equal_blocks_names_a_value_of_all_blocks():
    net, _ = encoder(40)
    for without in ((), ("repeated",)):
        with pytest.raises(ns.ExactError, match="bytes for one replica") as error:
            make_plan(net.outputs, {"n": 2**29}, without=without)
        assert "test_repeated_blocks.py" in str(error.value)
