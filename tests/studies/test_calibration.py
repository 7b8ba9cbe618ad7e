"""How fast this machine is: measured from a few blocks, with a clock of the test."""

import pytest

import netsor as ns
from tests.internals import PaperStudy, _calibration, _reproduce, calibrated, slowness

SLOW = 3.0  # times as slow as predicted


@pytest.fixture
def plan():
    return ns.paper.layer(tokens=8).plan(n=64)


@pytest.fixture
def drawn(monkeypatch, plan):
    """The replicas that were drawn, by plan, on a machine that is three times as slow
    as plans predict.
    """
    by_plan = {}
    now = [0.0]

    def blocks(plan, streams, replicas, tick):
        by_plan[plan] = by_plan.get(plan, 0) + replicas
        now[0] += SLOW * replicas * plan.seconds(1)
        return iter(())

    monkeypatch.setattr(_calibration, "blocks", blocks)
    monkeypatch.setattr(_calibration.time, "thread_time", lambda: now[0])
    return by_plan


def test_slowness_is_measured_time_over_predicted_time(drawn, plan):
    assert slowness(plan, workers=1) == pytest.approx(SLOW)
    # a block, or as many draws as take a tenth of a second by the prediction
    assert drawn[plan] * plan.seconds(1) > 0.99 * _calibration.SECONDS


def test_only_the_largest_parts_are_measured(drawn, plan):
    """And all are as slow as these."""
    others = [ns.paper.layer(tokens=tokens).plan(n=64) for tokens in (2, 3, 4, 5)]
    parts = [(plan, 10.0), *((other, k) for k, other in enumerate(others, 1))]
    assert calibrated(parts, workers=1) == pytest.approx(SLOW * 20.0)
    assert set(drawn) == {plan, *others[-2:]}
    assert calibrated([(plan, 0.0)], workers=1) == 0.0


def test_blocks_are_drawn_for_real(plan):
    """By every worker."""
    assert slowness(plan, workers=2, seconds=1e-3) > 0


def test_long_runs_of_the_paper_are_calibrated(drawn, monkeypatch, tmp_path):
    """And short ones are not."""
    monkeypatch.setattr(_reproduce, "cores", lambda: 1)
    request = _reproduce.Request(("2a",), out=tmp_path, quick=True, workers=1)
    predicted = PaperStudy(request).estimate().seconds
    assert not drawn
    monkeypatch.setattr(_reproduce, "CALIBRATED", 0.0)
    assert PaperStudy(request).estimate().seconds == pytest.approx(SLOW * predicted)
    assert drawn
