"""Equal blocks are lowered a few times: the plan is that of all of them, to the last stream and word."""

import numpy as np
import pytest

import netsor as ns
from netsor.engine import _ir, _ir_builder, lower
from netsor.engine.lower import _repeated_blocks, make_plan

n = ns.Width("n")


def decoder(layers, tokens=9, width=288):
    """Blocks of a transformer, with a row of numbers for each, as an audit asks for them."""
    x, rows = ns.gaussian(n, tokens), []
    for _ in range(layers):
        x = x + ns.nn.attention(ns.rms_norm(x, eps=1e-3), 2, 16, "causal")
        x = x + ns.nn.mlp(ns.rms_norm(x, eps=1e-3), n, activation=ns.gelu)
        rows.append(ns.mean_dot(x, x)[0])
    return tuple(rows), {"n": width}


def encoder(layers, last=ns.relu):
    x = ns.gaussian(n, 40)
    for k in range(layers):
        x = ns.layer_norm(x + ns.nn.mlp(x, 2 * n, activation=last if k == layers - 1 else ns.relu), eps=1e-3)
    return (ns.mean_dot(x, x).sum(),)


def residual(layers):
    x = ns.gaussian(n, 8)
    for _ in range(layers):
        x = ns.rms_norm(x + ns.tanh(ns.weight(n, n) @ x))
    return (x,)


def described(plan):
    """All of a plan, with arrays by the steps that make them."""
    made = {step.out: k for k, step in enumerate(plan.steps)}

    def array(register):
        if register not in made:
            made[register] = register.shape, hash(np.asarray(register.value).tobytes())
        return made[register]

    steps = [
        (
            (step.kind, step.out.shape, step.words, step.operations),
            [array(arg) for arg in step.args],
            [(name, _ir.content(value)) for name, value in step.params.items()],
        )
        for step in plan.steps
    ]
    rest = plan.notes, plan.expects, plan.nodes, plan.tried, plan.bytes, plan.held, plan.overwrites, plan.last
    return steps, array(plan.mean), array(plan.columns), rest


@pytest.fixture
def lowered(monkeypatch):
    """How many values were lowered."""
    count, rule = [0], lower._value

    def counted(*arguments):
        count[0] += 1
        return rule(*arguments)

    monkeypatch.setattr(lower, "_value", counted)
    return count


def both(outputs, widths, lowered):
    """The plan, and how many values were lowered for it; checked against the one lowered as a whole."""
    lowered[0] = 0
    plan = make_plan(outputs, widths)
    took = lowered[0]
    whole = make_plan(outputs, widths, without=("repeated",))
    for one, other in zip(described(plan), described(whole), strict=True):
        assert one == other
    return took, lowered[0] - took


CASES = {
    "decoder": lambda: decoder(41),
    "wide": lambda: decoder(44, width=5000),
    "infinite": lambda: decoder(42, width=ns.inf),
    "full frames": lambda: (encoder(43), {"n": 300}),
    "another end": lambda: (encoder(42, last=ns.tanh), {"n": 300}),
    "vectors": lambda: (residual(41), {"n": 64}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_that_of_all_blocks(name, lowered):
    took, whole = both(*CASES[name](), lowered)
    assert took < 0.75 * whole


def test_the_work_does_not_grow_with_depth(lowered):
    """As many blocks are lowered of 48 as of 96."""
    counts = []
    for layers in (48, 96):
        lowered[0] = 0
        outputs, widths = decoder(layers)
        plan = make_plan(outputs, widths)
        assert sum(loop.times * loop.period for loop in plan.loops) > 0.8 * len(plan.steps)
        counts.append(lowered[0])
    assert counts[0] == counts[1]


def alike(layers):
    """One matrix for all blocks: frames have more directions after each."""
    w, x = ns.weight(n, n), ns.gaussian(n, 3)
    for _ in range(layers):
        x = x + ns.weight(n, n) @ ns.tanh(w @ x)
    return (x[0],)


def skipped(layers):
    """All blocks are read at the end."""
    x, seen = ns.gaussian(n, 9), []
    for _ in range(layers):
        x = ns.rms_norm(x + ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ x), eps=1e-3)
        seen.append(ns.mean_dot(x, x))
    return (ns.stack(seen).sum(0),)


def scaled(layers):
    """Each block has a number of its own."""
    x = ns.gaussian(n, 9)
    for k in range(layers):
        x = ns.rms_norm(x + (1 + k) * (ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ x)), eps=1e-3)
    return (x[0],)


def cut_between(layers):
    """Two matrices of one batch a block, and another first function: what repeats begins between the two matrices."""
    x = ns.gaussian(n, 3)
    for k in range(layers):
        w = ns.weight(n, n, batch=2)
        x = ns.rms_norm(x + w[0] @ (ns.tanh if k else ns.sin)(w[1] @ x))
    return (x[0],)


@pytest.mark.parametrize(("program", "width"), [(alike, 300), (skipped, 300), (scaled, 300), (cut_between, 5)])
def test_what_does_not_repeat_is_lowered_as_it_is(program, width, lowered):
    took, whole = both(program(40), {"n": width}, lowered)
    assert took >= whole


def test_an_error_is_that_of_the_whole_program():
    """What a deep network has no room for is refused, though a few blocks of it have."""
    x = ns.gaussian(n, 64)
    for _ in range(60):
        x = ns.tanh(x + ns.weight(n, n) @ x)
    outputs = (ns.mean_dot(x, x).sum(),)
    width = _ir_builder.MAX_ARRAY_BYTES // (
        8 * 64 * 60 * 2
    )  # 60 blocks have three arrays each of so many bytes; 24 have room
    messages = []
    for without in ((), ("repeated",)):
        with pytest.raises(ns.ExactError, match="bytes for its coordinates") as error:
            make_plan(outputs, {"n": width}, without=without)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_numbers_grow_with_one_jump():
    longer = object.__new__(_repeated_blocks.PlanUnroller)
    longer.more = 4
    assert longer._growth([3, 5, 15, 17]) == (3, 2)
    assert longer._growth([7, 7, 7, 7]) == (7, 0)
    for numbers in ([3, 5, 7, 9], [3, 5, 14, 16], [3, 13, 23, 25], [1, 2, 4, 9]):
        with pytest.raises(_repeated_blocks.NotPeriodicError):
            longer._growth(numbers)


def test_few_blocks_are_not_left_out():
    values = lower.topological_order(encoder(20))
    assert _repeated_blocks.shorter(values, values[-1:], {value: k for k, value in enumerate(values)}) is None
