"""What studies announce before they begin: workers, and the memory of the draws that
each computes together.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import netsor as ns
from netsor.models import read
from tests.internals import (
    BASE,
    AuditRequest,
    AuditStudy,
    CoordCheckStudy,
    Cost,
    Draw,
    Numpy,
    _cost,
    _draw_cost,
    _memory,
    _process_pool,
    block_of,
    choose,
    overhead_seconds,
    parametrisation,
    worker_count,
)
from tests.internals import CoordCheckRequest as Request


class Device(Numpy):
    """One that is parallel itself."""

    threads = False


@ns.program
def stack(width):
    """A perceptron, whose output is the loss."""
    x = ns.weight(width, 2, name="in") @ ns.data([[1.0, 0.5], [0.3, 2.0]])
    for _ in range(3):
        x = ns.probe("hidden", ns.rms_norm(x + ns.tanh(ns.weight(width, width) @ x)))
    f = ns.mean_dot(x, ns.weight(width, 1, name="head") @ ns.data([1.0]))
    return ((f - 1.0) ** 2).mean()


def test_worker_has_room_for_a_plan_and_for_the_draws_that_are_computed_together():
    plan = stack(64).plan()
    one = Draw.of(plan, planning_bytes=1e9)
    expected = [plan.bytes * min(draws, block_of(plan)) for draws in (1, 10, 1000)]
    assert [one.block_bytes(draws) for draws in (1, 10, 1000)] == expected
    assert one.block_bytes(1000) > 4 * plan.bytes
    fixed = BASE + 1e9 + _draw_cost.MIN_DRAW_BYTES
    assert one.in_worker(1) == fixed + _draw_cost.TEMPORARY * plan.bytes
    assert one._replace(bytes=2e9).in_worker(1) == fixed + _draw_cost.TEMPORARY * 2e9


@ns.program
def deep_stack(layers):
    """Equal blocks."""
    x = ns.gaussian(64, 4)
    for _ in range(layers):
        x = ns.rms_norm(x + ns.tanh(ns.weight(64, 64) @ x))
    return x


def test_worker_count_is_limited_by_tasks_cores_and_memory(monkeypatch):
    monkeypatch.setattr(_cost, "cores", lambda: 8)
    monkeypatch.setattr(_cost, "memory", lambda: 100.0)
    here = Numpy()
    assert [worker_count(None, 20, one, here) for one in (1.0, 30.0, 300.0)] == [
        8,
        3,
        1,
    ]
    assert worker_count(None, 20, 30.0, here, result_bytes=50.0) == 1
    assert worker_count(None, 2, 1.0, here) == 2
    assert worker_count(16, 20, 30.0, here) == 16  # as many as were asked for
    assert [worker_count(wanted, 20, 30.0, Device()) for wanted in (None, 16)] == [
        1,
        16,
    ]
    assert overhead_seconds(9, report=False) == 2 * _cost.START
    assert Cost(80.0, 5.0, 1.0, 1, 4).clock == 25.0
    assert Cost(80.0, 5.0, 1.0, 1, 16).clock == 15.0


def test_coordinate_check_counts_the_draws_that_are_computed_together(monkeypatch):
    monkeypatch.setattr(_draw_cost, "BASE", 0.0)
    monkeypatch.setattr(_draw_cost, "MIN_DRAW_BYTES", 0.0)
    request = Request(stack, widths=[16, 64], lr=0.1, draws=64)
    every = [subject for rule in request.checks for subject in request.cases(rule)]
    sizes = [
        _draw_cost.TEMPORARY * Draw.of(c.plan).block_bytes(64)
        + c.draw(Numpy()).planning_bytes
        for c in every
    ]
    found = CoordCheckStudy(request).estimate()
    assert found.bytes == max(sizes)
    assert found.random_numbers == 64 * sum(c.plan.random_numbers for c in every)


def test_memory_error_names_the_network_that_needs_most(monkeypatch):
    """Here the one of infinite width, which holds many directions."""
    monkeypatch.setattr(_memory, "memory", lambda: 1.0)
    request = Request(stack, widths=[4, 8, ns.inf], lr=0.1, draws=8)
    costs = [
        case.draw(Numpy()).in_worker(8) for case in request.cases(request.checks[0])
    ]
    assert costs.index(max(costs)) == 2
    with pytest.raises(ValueError, match="a draw at width ∞ would need"):
        CoordCheckStudy(request).estimate()


def test_plan_of_fewer_blocks_costs_less():
    """A plan of three blocks with norms after them factored the products of 696
    vectors: it took 5 times as long.
    """
    few, more = (
        read("bert-base")
        .replace(layers=layers)
        .probes(tokens=16, gradients=True)
        .plan()
        for layers in (3, 4)
    )
    assert few.seconds(1) < more.seconds(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gradients"), [("gpt2", True), ("bert-base", True), ("llama-3-8b", False)]
)
def test_shallow_plans_tell_what_a_deep_one_takes(name, gradients):
    """Within a sixth; the plan of three times as many blocks has what theirs have, and
    no more.
    """
    case = AuditRequest(
        (read(name),), tokens=16, gradients=gradients, widths="actual"
    ).subjects[0]
    for about, found in zip(
        case.draw_at_depth,
        case.draw._replace(planning=case.draw_at_depth.planning),
        strict=True,
    ):
        assert about == pytest.approx(found, rel=1 / 6)


PEAK = """
import json, sys
from netsor.models import read
from netsor.studies.audit import _request
from netsor.studies.coord_check import _request as _coord
from netsor.studies.coord_check import CoordCheckStudy
from netsor.studies._parametrisation import parametrisation
name, options, rule = json.loads(sys.argv[1])
model = read(name).replace(layers=2)
if rule is None:
    request = _request.Request((model,), **options)
    task = request.tasks(request.subjects[0])[0]
else:
    request = _coord.Request(model, (parametrisation("sp", rule),), optimiser=rule, **options)
    task = CoordCheckStudy(request).tasks_of(request.cases(request.rules[0])[-1])[-1]
task.run()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        (
            "gpt2",
            {"tokens": 16, "draws": 16, "widths": "actual", "gradients": True},
            None,
        ),
        (
            "gpt2",
            {
                "tokens": 32,
                "draws": 16,
                "widths": "actual",
                "gradients": False,
                "ranges": True,
            },
            None,
        ),
        (
            "llama-3-8b",
            {
                "tokens": 32,
                "draws": 16,
                "widths": "actual",
                "gradients": False,
                "ranges": True,
            },
            None,
        ),
        ("gpt2", {"tokens": 16, "draws": 16, "widths": "inf"}, None),
        ("gpt2", {"widths": [256, 512], "draws": 16}, "adam"),
        ("gpt2", {"widths": [256, 512], "draws": 16}, "muon"),
    ],
    ids=str,
)
def test_worker_takes_no_more_memory_than_is_announced(name, options, rule):
    """The memory of a worker was understated with ranges, and by a factor of three for
    Adam.
    """
    model = read(name).replace(layers=2)
    if rule is None:
        said = AuditStudy(AuditRequest((model,), **options)).estimate().bytes
    else:
        request = Request(
            model, (parametrisation("sp", rule),), optimiser=rule, **options
        )
        said = CoordCheckStudy(request).estimate().bytes
    command = [sys.executable, "-c", PEAK, json.dumps([name, options, rule])]
    environment = {**os.environ, **_process_pool.ENVIRONMENT}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    assert said / 4 < 1024 * int(done.stdout) < said


def test_backend_says_what_it_takes():
    """JAX compiles first, steps of equal blocks once, and a check that runs on it says
    so.
    """
    plan, deep = (deep_stack(layers).plan() for layers in (6, 60))
    assert Numpy().seconds(plan, 10) == plan.seconds(10)
    pytest.importorskip("jax")
    from tests.internals import _jax

    seconds = _jax.COMPILE_SECONDS
    jax = choose("jax")
    compiling = jax.seconds(plan, 0)
    assert jax.seconds(plan, 10) - compiling > plan.seconds(10)
    assert compiling > 10 * seconds / _cost.cores()
    assert compiling == pytest.approx(jax.seconds(deep, 0))
    assert Draw.of(plan, jax).compiling == compiling > Draw.of(plan).compiling == 0
    requests = (
        Request(stack, widths=[16, 64], lr=0.1, draws=8, backend=backend)
        for backend in (Numpy(), jax)
    )
    here, there = (CoordCheckStudy(request).estimate() for request in requests)
    assert there.seconds - here.seconds > 10 * seconds / _cost.cores()
    assert there.bytes > here.bytes


class Kept(logging.Handler):
    """A handler that keeps the messages."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def messages():
    """What netsor logs; pytest's own plugin, which takes a hundredth of the suite's
    time, is switched off.
    """
    logger, handler = logging.getLogger("netsor"), Kept()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_log_has_a_line_for_each_part(monkeypatch, messages):
    """Unless a terminal shows a bar, or lines would follow each other too soon."""
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 0.0)
    _process_pool.with_progress(iter("ab"), 2, "audit")
    assert [line.split(",")[0] for line in messages] == [
        "audit: 1 of 2 parts",
        "audit: 2 of 2 parts",
    ]
    messages.clear()
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 60.0)
    _process_pool.with_progress(iter("ab"), 2, "audit")
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 0.0)
    _process_pool.with_progress(iter("ab"), 2, "audit", progress=False)
    # for all calls
    monkeypatch.setattr(logging.getLogger("netsor"), "level", logging.WARNING)
    _process_pool.with_progress(iter("ab"), 2, "audit")
    monkeypatch.undo()
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(_process_pool, "on_terminal", lambda: True)
    _process_pool.with_progress(iter("ab"), 2, "audit")
    assert messages == []
