"""Expectations of functions of several vectors at infinite width: their cost is
announced, bounded and cancellable.
"""

import threading

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    SECONDS_PER_ARGUMENT,
    SETS,
    Cancelled,
    PlanQuery,
    _ir_builder,
    _multivariate,
    _plan,
    cancelled_by,
    log_points,
    moves,
    sample_block,
)
from tests.internals import run_parallel as run

from ..command import netsor

n = ns.Width("n")


def first_state(x, delta, b):
    return b * np.logaddexp(0.0, delta) * x


def next_state(h, x, delta, a, b):
    step = np.logaddexp(0.0, delta)
    return np.exp(-step * np.exp(a)) * h + b * step * x


@ns.program
def selective(tokens=3):
    """A selective state-space layer: its state is a function of up to 2 · tokens + 1
    vectors and random scalars.
    """
    x = ns.weight(n, n, name="W") @ ns.gaussian(n, tokens)
    delta = ns.weight(n, n, name="D") @ x
    decay = ns.gaussian(n)
    b, c = (ns.dot(ns.gaussian(n), x) for _ in range(2))
    state = ns.nonlin(first_state, x[0], delta[0], b[0])
    outputs = [c[0] * state]
    for t in range(1, tokens):
        state = ns.nonlin(next_state, state, x[t], delta[t], decay, b[t])
        outputs.append(c[t] * state)
    return ns.weight(n, n, name="O") @ ns.stack(outputs)


@pytest.fixture
def points(monkeypatch):
    """A list of the points of each call of an integrand; the integrals are not
    computed.
    """
    found = []

    def counted(integrand, rank, outputs):
        found.append(len(rank) * (SETS << log_points(len(rank))))
        return np.zeros((len(rank), outputs)), np.zeros((len(rank), outputs))

    monkeypatch.setattr(_multivariate, "expected", counted)
    return found


@pytest.mark.parametrize("replicas", [2, 500])
def test_estimate_counts_the_points(replicas, points):
    plan = selective()[2].plan(n=ns.inf)
    sample_block(plan, 0, replicas)
    (integral,) = (step.integral for step in plan.steps if step.integral is not None)
    assert integral.arguments == 7 + 3  # vectors and scalars: a square reads them once
    expected = SECONDS_PER_ARGUMENT * integral.arguments * sum(points)
    assert plan.integration_seconds(replicas) == pytest.approx(expected)


def test_shifted_plans_do_not_integrate_the_first_layer_again(points):
    """The error of a law comes from three plans, whose first integrals are equal."""
    net = selective()[2]
    widths = (("n", np.inf),)
    moves(PlanQuery(net.outputs, widths), replicas=2)
    once = len(points)
    points.clear()
    plan = net.plan(n=ns.inf)
    sample_block(plan, 0, 2)
    assert once == len(points) == 1
    replicas = _plan.QUADRATURE_PROBE_REPLICAS
    assert plan.probing_seconds == plan.integration_seconds(replicas)


def gates_of_gates(tokens=2):
    """Two layers of gates, so that expectations of the second depend on the first."""

    def gate(u, v, s):
        return np.tanh(s * u) * v

    x = ns.gaussian(n, tokens)
    scale = ns.dot(ns.gaussian(n), x)
    for _ in range(2):
        left, right = (ns.weight(n, n) @ x for _ in range(2))
        x = ns.nonlin(gate, left, right, scale)
    return ns.Program(ns.weight(n, n) @ x)


def test_shifted_plans_integrate_the_second_layer_again(points):
    """It is announced three times: its arguments move with the first expectations."""
    plan = gates_of_gates().plan(n=ns.inf)
    replicas = _plan.QUADRATURE_PROBE_REPLICAS
    sampling = plan.integration_seconds(replicas)
    assert sampling < plan.probing_seconds < 3 * sampling


def test_symmetric_kernel_counts_half_of_the_pairs():
    """Of 2 × 2 pairs three are computed: two squares, which evaluate the function once,
    and one product, which evaluates it twice.
    """
    plan = gates_of_gates().plan(n=ns.inf)
    integrals = [step.integral for step in plan.steps if step.kind == "kernel"]
    assert all(integral.expectations == 3 for integral in integrals)
    assert all(3 * integral.arguments == 2 * 3 + 2 * 3 for integral in integrals)


def test_plans_announce_expectations():
    plan = selective().plan(n=ns.inf)
    assert plan.seconds(50_000) > 300  # it took minutes
    assert "min for expectations of functions of several vectors" in " ".join(
        str(plan).split()
    )
    assert selective().plan(n=16).integration_seconds(50_000) == 0
    assert ns.paper.layer().plan(n=ns.inf).integration_seconds(50_000) == 0


def test_moments_are_counted(points):
    @ns.program
    def gated(tokens=2):
        x = ns.gaussian(n, tokens)
        scale = ns.dot(ns.gaussian(n), x[0])
        mixed = ns.nonlin(lambda u, v, s: np.tanh(s * u * v), x[0], x[1], scale)
        return ns.dot(mixed, ns.gaussian(n)), ns.mean_dot(mixed, x[0])

    plan = gated().plan(n=ns.inf)
    kinds = {step.kind for step in plan.steps if step.integral is not None}
    assert kinds == {"kernel", "moments"}


ASKED = [
    lambda net: net[2].law(n=ns.inf, draws=1000),
    lambda net: net.law(n=ns.inf, draws=1000),
    lambda net: net.draw(n=ns.inf, draws=1000),
]


@pytest.mark.parametrize("ask", ASKED)
def test_draws_beyond_the_bound_are_refused_before_any_integral(
    ask, points, monkeypatch
):
    net = selective()
    net.plan(n=ns.inf)
    monkeypatch.setattr(_plan, "MAX_SECONDS", 1.0)
    with pytest.raises(
        ns.ExactError, match=r"1,000 draws at width inf would take about .* of one core"
    ) as found:
        ask(net)
    for remedy in ("finite widths", "method='extrapolate'"):
        assert remedy in str(found.value)
    assert not points


def test_fewer_draws_are_a_remedy_that_works(monkeypatch):
    plan = selective()[2].plan(n=ns.inf)
    with pytest.raises(ns.ExactError, match=r"take at most (\d|,)+ draws") as found:
        plan.check_integration(10**8)
    fewer = str(found.value).split("at most ")[1].split(" draws")[0]
    plan.check_integration(int(fewer.replace(",", "")))
    # too long for any number of draws
    monkeypatch.setattr(_plan, "MAX_SECONDS", plan.probing_seconds / 2)
    with pytest.raises(ns.ExactError) as found:
        plan.check_integration(1)
    assert "at most" not in str(found.value)


def test_planning_beyond_the_bound_is_refused(points, monkeypatch):
    """Without random scalars the expectations are computed while the plan is made."""
    x = ns.gaussian(n, 3)
    mixed = ns.nonlin(lambda u, v: np.tanh(u * v), x[:2], x[1:])
    net = ns.Program(ns.mean_dot(mixed, mixed))
    monkeypatch.setattr(_ir_builder, "MAX_SECONDS", 1e-3)
    with pytest.raises(ns.ExactError, match="planning at width inf would take about"):
        net.plan(n=ns.inf)
    assert not points


def test_command_announces_or_refuses(tmp_path, monkeypatch):
    file = tmp_path / "net.py"
    file.write_text(f"from {__name__} import selective\n\nlayer = selective()\n")
    monkeypatch.setattr(_plan, "MAX_SECONDS", 1.0)
    result = netsor("law", f"{file}:layer[2]", "--bind", "n=inf")
    assert result.returncode == 2
    assert "draws at width inf would take about" in result.stderr
    assert result.stderr.count("\n") == 1


def test_cancelled_thread_stops_within_an_expectation():
    event, calls = threading.Event(), []

    def integrand(some, z):
        calls.append(len(some))
        event.set()
        return np.ones((len(some), 1, z.shape[1]))

    with cancelled_by(event), pytest.raises(Cancelled):
        _multivariate.expected(integrand, np.full(5000, 8), 1)
    assert len(calls) == 1


def test_workers_stop_once_the_run_is_closed():
    """As after an interrupt of the main thread: no worker goes on integrating."""
    inside, ended = threading.Event(), threading.Event()

    def integrand(some, z):
        inside.set()
        return np.ones((len(some), 1, z.shape[1]))

    def work(part, tick):
        if part.start == 0:
            inside.wait(60)
            return
        try:
            while True:
                _multivariate.expected(integrand, np.full(64, 8), 1)
        except Cancelled:
            ended.set()
            raise

    running = run(work, [range(1), range(1, 2)], workers=2, progress=False)
    next(running)
    running.close()
    assert ended.wait(60)
