"""What studies take, told before they begin: workers, and the memory of the draws that each computes together."""

import pytest

import netsor as ns
from netsor.engine.backends import Numpy
from netsor.engine.backends._numpy import block_bytes
from netsor.models import read
from netsor.studies import _cost, _process_pool
from netsor.studies._cost import BASE, Cost, Draw, Planning, overhead_seconds, worker_count
from netsor.studies.audit import _audit_cost
from netsor.studies.coord_check import _check
from netsor.studies.coord_check._config import Request
from netsor.studies.coord_check._parametrisation import parametrisation


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


def test_room_is_for_the_draws_that_are_computed_together():
    one = Draw(seconds=1.0, numbers=1.0, bytes=100.0, beside=80.0, together=5)
    assert [one.room(draws) for draws in (1, 2, 3, 5, 1000)] == [200, 200, 260, 420, 420]
    plan = stack(64).plan()
    assert Draw.of(plan).room(1000) == block_bytes(plan, 1000) > 4 * plan.bytes
    assert one.in_worker(5) == BASE + _cost.MIN_DRAW_BYTES
    assert one.in_worker(5, planning=1e9) == BASE + 1e9


def test_as_many_work_as_there_are_parts_and_room_for(monkeypatch):
    monkeypatch.setattr(_cost, "cores", lambda: 8)
    monkeypatch.setattr(_cost, "memory", lambda: 100.0)
    here = Numpy()
    assert [worker_count(None, 20, one, here) for one in (1.0, 30.0, 300.0)] == [8, 3, 1]
    assert worker_count(None, 20, 30.0, here, kept=50.0) == 1
    assert worker_count(None, 2, 1.0, here) == 2
    assert worker_count(16, 20, 30.0, here) == 16  # as many as were asked for
    assert worker_count(16, 20, 30.0, Device()) == 1
    assert overhead_seconds(9, report=False) == 2 * _cost.START
    assert Cost(80.0, 5.0, 1.0, 1, 4).clock == 25.0
    assert Cost(80.0, 5.0, 1.0, 1, 16).clock == 15.0


def test_a_coordinate_check_counts_the_draws_that_are_computed_together(monkeypatch):
    """Twice one draw was counted: two dozen of a program, or of GPT-2, are in memory at once."""
    monkeypatch.setattr(_cost, "BASE", 0.0)
    monkeypatch.setattr(_cost, "MIN_DRAW_BYTES", 0.0)
    request = Request(stack, widths=[16, 64], lr=0.1, draws=64)
    every = [subject.plan for rule in request.checks for subject in request.subjects(rule)]
    monkeypatch.setattr("netsor.studies.coord_check._cases.CheckCase.ahead", lambda self: Planning(0.0, 0.0))
    assert _check.estimate(request).bytes == max(block_bytes(plan, 64) for plan in every)
    assert all(block_bytes(plan, 64) > 2 * plan.bytes for plan in every)


@pytest.mark.parametrize("optimiser", ["sgd", "muon"])
def test_a_check_of_a_model_has_the_room_that_its_plan_needs(optimiser):
    """Told before there is a plan, within a factor of two."""
    model = read("gpt2").replace(layers=2)
    request = Request(model, (parametrisation("sp", optimiser),), widths=[256, 512], optimiser=optimiser, draws=32)
    subject = request.subjects(request.rules[0])[0]
    said, needed = subject.a_draw().room(32), Draw.of(subject.plan).room(32)
    assert 0.5 < said / needed < 2


@pytest.mark.parametrize(
    ("name", "gradients"), [("gpt2", False), ("gpt2", True), ("bert-base", False), ("llama-3-8b", False)]
)
def test_an_audit_has_the_room_that_its_plan_needs(name, gradients):
    """Logits of tied embeddings are made draw by draw; those of others, and with gradients, are there together."""
    model = read(name).replace(layers=2)
    said = _audit_cost.draw_cost(model, 16, False, gradients).in_worker(32)
    needed = Draw.of(model.probes(tokens=16, gradients=gradients).plan()).in_worker(32)
    assert 0.6 < said / needed < 1.7


@pytest.mark.parametrize(("name", "tokens", "measured"), [("gpt2", 32, 293), ("llama-3-8b", 64, 872)])
def test_ranges_are_announced(name, tokens, measured):
    """Draws with ranges took 4.2 and 3.7 times the announced seconds, and a worker so many MiB."""
    model = read(name).replace(layers=2)
    plain, ranged = (_audit_cost.draw_cost(model, tokens, False, False, ranges) for ranges in (False, True))
    assert 3 < ranged.seconds / plain.seconds < 4
    assert ranged.in_worker(32) >= measured * 2**20


def test_a_log_has_a_line_for_each_part(monkeypatch, capsys):
    """Unless a terminal shows a bar, or lines would follow each other too soon."""
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 0.0)
    assert _process_pool.with_progress(iter("ab"), 2, "audit", "part") == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["audit: 1 of 2 parts", "audit: 2 of 2 parts"]
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 60.0)
    _process_pool.with_progress(iter("ab"), 2, "audit", "part")
    monkeypatch.setattr(_process_pool, "LINE_SECONDS", 0.0)
    _process_pool.with_progress(iter("ab"), 2, "audit", "part", progress=False)
    monkeypatch.setattr(_process_pool, "on_terminal", lambda: True)
    _process_pool.with_progress(iter("ab"), 2, "audit", "part")
    assert " of 2 parts" not in capsys.readouterr().err
