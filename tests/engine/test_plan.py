"""The plan: what it says is what is done, and it refuses before anything is drawn."""

import copy
import doctest
import gc
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from examples import attention_layer, recurrent, residual_block
from hypothesis import given, settings
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import netsor as ns
from tests.internals import (
    NUMPY,
    Context,
    FrameBatch,
    LoweredVector,
    Step,
    Streams,
    compute,
    in_numpy,
    least_in_component,
    lower,
    make_plan,
)
from tests.internals import run_plan as run

from ..keep import keep
from ..programs import programs
from .compare import smallest_p

n = ns.Width("n")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(programs(steps=10))
def test_plan_is_a_straight_line(built):
    """Every array is made once, before it is read, with the shape that the plan says,
    and let go after its last use.
    """
    plan = make_plan(built.net.outputs, built.widths)
    streams, made, live, peak = Streams(0, 0), {}, set(), 0
    for step, (dead, _) in zip(plan.steps, plan.live, strict=True):
        assert step.out not in made
        assert all(arg.value is not None or arg in live for arg in step.args)
        if step.kind in ("normals", "chi"):
            made[step.out] = streams.draw(step, 5)
        else:
            given = [made[arg] if arg.value is None else arg.value for arg in step.args]
            made[step.out] = compute(NUMPY, step.kind, given, step.params)
        assert made[step.out].shape == (5, *step.out.shape) or made[step.out].shape == (
            1,
            *step.out.shape,
        )
        live.add(step.out)
        peak = max(peak, sum(register.size for register in live))
        live -= dead
    assert live <= {plan.mean, plan.columns}
    assert plan.bytes == 8 * peak
    # and the runner, which writes over what is not needed any more, finds the same
    streams = Streams(0, 0)
    again = run(
        plan,
        lambda step: streams.draw(step, 5),
        lambda register: register.value,
        in_numpy,
    )
    for register, found in zip((plan.mean, plan.columns), again, strict=True):
        right = made[register] if register.value is None else register.value
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("width", [16, ns.inf])
@pytest.mark.parametrize(
    "net", [attention_layer.net()[0], residual_block.net(), recurrent.net()]
)
def test_random_numbers_are_those_of_the_law(net, width):
    law = net.law(n=width, draws=10)
    law = law.mixture if isinstance(law, ns.HeadSum) else law
    plan = net.plan(n=width)
    assert law.random_numbers == (0 if plan.constant else plan.random_numbers)


def test_printed_plan_lists_steps_random_numbers_and_shapes():
    shown = str(attention_layer.net()[0].plan(n=256))
    assert shown.startswith("plan of net(tokens=4, heads=2)[0] at n = 256\n")
    assert "W^K x: along the frame" in shown
    assert "23 random numbers, " in shown
    assert "note: clip at 100 acts as the identity" in shown
    assert "known without a draw" in str(
        ns.Program(ns.weight(n, n) @ ns.tanh(ns.gaussian(n))).plan(n=ns.inf)
    )


def test_plan_refuses_what_would_not_fit():
    with pytest.raises(ns.ExactError, match="bytes"):
        ns.Program(ns.relu(ns.gaussian(n))).plan(n=10**11)
    x = ns.gaussian(n).broadcast_to((40_000,))
    with pytest.raises(ns.ExactError, match="bytes"):
        ns.Program(ns.mean_dot(x, x)).plan(n=10**6)


def test_coordinates_of_a_wide_vector_that_is_used_too_take_no_square_of_the_width():
    x = ns.tanh(ns.gaussian(n, 2))
    net = ns.Program((x, ns.dot(ns.gaussian(n), x)))
    tracemalloc.start()
    net.plan(n=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**8


def test_estimate_of_time_grows_with_the_work():
    small, large = (ns.paper.layer(heads=h).plan(n=256) for h in (1, 256))
    assert large.seconds(1000) > 20 * small.seconds(1000)
    assert small.seconds(2000) == pytest.approx(2 * small.seconds(1000))


def test_residual_of_many_coordinates_costs_a_factor_of_a_gram_matrix():
    """What a matrix adds to vectors that are drawn, where sources that are never drawn
    are as many as coordinates.
    """
    x = ns.gaussian(n, 2, mean=0.7)
    net = ns.Program(0.5 * x + ns.weight(n, n) @ ns.relu(x))
    plan = net.plan(n=100_000)
    assert plan.bytes < 100 * 100_000
    assert plan.operations < 100 * 100_000
    assert smallest_p(net, draws=800, n=260) > 1e-5


def test_array_for_all_replicas_is_not_overwritten():
    """As a function makes whose result is the same in every replica."""
    made = make_plan(ns.paper.layer().outputs, {"n": 8}).mean
    step = Step("multiply", made, (made, made), {}, "", 0)
    np.testing.assert_array_equal(
        in_numpy(step, [np.full((1, 2), 2.0), np.ones((3, 2))], 0), np.full((3, 2), 2.0)
    )


@pytest.mark.parametrize("edges", ["random", "path", "none"])
def test_connected_components_are_those_of_scipy(edges):
    """With the same numbers, which fix the order of groups and so the seeds."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 50, 300):
        # through all numbers, in any order: the longest way to the least of them
        if edges == "path":
            order = rng.permutation(count)
            first, second = order[:-1], order[1:]
        else:
            first, second = rng.integers(
                0, count, (2, rng.integers(0, count) if edges == "random" else 0)
            )
        graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
        found = np.unique(
            least_in_component(count, first, second), return_inverse=True
        )[1]
        np.testing.assert_array_equal(found, connected_components(graph, False)[1])


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))]
)
def test_copy_of_a_program_is_planned_as_the_program(copied):
    """Its functions are those that the engine knows, also where it was sent to another
    process.
    """
    x = ns.gelu(ns.weight(n, n) @ ns.gaussian(n, 3))
    net = ns.Program(x * x + ns.nn.attention(x, heads=2, mask="causal"))
    for width in (16, ns.inf):
        assert str(copied(net).plan(n=width)) == str(net.plan(n=width))
    layer = ns.paper.layer(tokens=3, heads=2)
    assert copied(layer).law(n=ns.inf).var() == layer.law(n=ns.inf).var()
    own = ns.Function("own", np.tanh)
    assert copied(own).f is np.tanh


@pytest.mark.parametrize("width", keep([16, ns.inf], ns.inf))
def test_planning_leaves_no_garbage(width):
    """It runs without the garbage collector, so everything but the plan must be freed
    without it.
    """
    x = ns.tanh(ns.weight(n, n) @ ns.gaussian(n, 3))
    net = ns.Program(ns.weight(n, n) @ ns.nn.attention(x, heads=2))
    gc.collect()
    gc.disable()
    try:
        plan = make_plan(net.outputs, {"n": width})
        left = [
            x
            for x in gc.get_objects()
            if isinstance(x, LoweredVector | FrameBatch | Context)
        ]
    finally:
        gc.enable()
    assert plan.steps
    assert not left


def test_planning_keeps_no_garbage_of_others():
    """Objects that were called old after every plan were never looked at again: cycles
    were never freed.
    """
    # a set can be referred to weakly, and hold what refers to it
    x, cycle = ns.gaussian(n), {Context}
    kept = weakref.ref(cycle)
    cycle.add(cycle.add)
    del cycle
    make_plan((ns.mean_dot(x, x),), {"n": 16})
    gc.collect(0)
    assert kept() is None


def test_coordinates_that_no_memory_holds_are_refused():
    n = ns.Width("n")
    x = ns.gaussian(n, 64)
    for _ in range(3):
        x = ns.tanh(x + ns.weight(n, n) @ x)
    with pytest.raises(ns.ExactError, match="bytes for one replica"):
        ns.Program(ns.mean_dot(x, x).sum()).plan(n=2**25)


def test_example_of_lowering_runs():
    example, *others = doctest.DocTestFinder().find(lower, "lower")
    assert not others
    output = []
    runner = doctest.DocTestRunner()
    runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)
