"""What netsor audit takes: told before, from plans; what takes too much is refused."""

import dataclasses
import json
import re
from functools import lru_cache

import pytest

from netsor.cli import _run_study
from netsor.engine import NoLimitError, _memory
from netsor.models import Probes, read
from netsor.studies import _cost, _process_pool
from netsor.studies.audit import CHEAPER, AuditStudy, _request
from netsor.studies.audit._cases import AuditCase

from .command import netsor
from .inline import Inline
from .test_cli_audit import CONFIG, SMALL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    return tmp_path


@pytest.fixture
def unplanned(monkeypatch):
    """A plan is begun, and a line says so."""

    def begins(*_, **__):
        raise ValueError("a plan is begun")

    monkeypatch.setattr(Probes, "plan", begins)
    monkeypatch.setattr(AuditCase, "planned", lru_cache(AuditCase.planned.__wrapped__))


def test_what_cannot_be_planned_is_refused_before_it_is_tried(unplanned, monkeypatch):
    """GPT-2 on 128 tokens: the covariances of its scores at infinite width, 12 blocks of 12 · 128² of them."""
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**28)
    result = netsor("audit", "gpt2", "--tokens", "128")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("netsor: 128 tokens of gpt2 (width 768, 12 heads, hidden 3,072")
    assert "or the actual widths alone" in result.stderr
    actual = netsor("audit", "gpt2", "--tokens", "128", "--widths", "actual")
    assert actual.stderr.endswith("netsor: a plan is begun\n")


def test_the_estimate_is_that_of_the_plans(folder):
    """With its random numbers, and those of its limit."""
    request = _request.Request((read(str(folder / "tiny.json")),), tokens=3, draws=600, workers=1)
    found, more = (AuditStudy(dataclasses.replace(request, draws=draws)).estimate() for draws in (600, 1200))
    plans = [subject.plan for subject in request.subjects]
    assert len(plans) == 2
    assert found.random_numbers == 600 * sum(plan.random_numbers for plan in plans)
    assert more.seconds - found.seconds == pytest.approx(sum(plan.seconds(600) for plan in plans))
    assert found.first == _cost.START
    reported = AuditStudy(dataclasses.replace(request, out=folder / "out")).estimate()
    assert reported.first == _cost.START + _cost.REPORT


def test_what_would_take_too_long_is_refused(folder, monkeypatch):
    monkeypatch.setattr(_run_study, "LONGEST", 1.0)
    result = netsor(*SMALL[:-1], "1000000", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("netsor: tiny: 1,000,000 draws of 3 tokens would take about")


def test_a_limit_that_cannot_be_done_is_told(folder, monkeypatch):
    """With both widths the model's own go on; asked for alone, it is an error."""
    made = Probes.plan

    def refuses(self, **widths):
        if widths["n"] == float("inf"):
            raise NoLimitError("the scores diverge")
        return made(self, **widths)

    monkeypatch.setattr(Probes, "plan", refuses)
    monkeypatch.setattr(AuditCase, "planned", lru_cache(AuditCase.planned.__wrapped__))
    found = json.loads(netsor(*SMALL, "--json", cwd=folder).stdout)
    assert (found["limit"], found["no_limit"], len(found["layers"])) == (None, "the scores diverge", 2)
    assert "no limit (--verbose says why)" in " ".join(netsor(*SMALL, cwd=folder).stdout.split())
    assert "No limit: the scores diverge." in netsor(*SMALL, "--verbose", cwd=folder).stdout
    gate = netsor(*SMALL, "--fail-on", "limit", cwd=folder)  # before anything is drawn
    assert (gate.returncode, gate.stderr.count("\n")) == (2, 1)
    assert "limit is not measured of tiny: infinite width has no limit: the scores diverge\n" in gate.stderr
    assert "infinite width has no limit: the scores diverge" in " ".join(netsor(*SMALL, cwd=folder).stdout.split())
    alone = netsor(*SMALL, "--widths", "inf", cwd=folder)
    assert (alone.returncode, alone.stderr.splitlines()) == (2, ["netsor: the scores diverge"])


def test_cheaper_ways_are_named_with_what_they_take():
    """From plans: fewer blocks, fewer tokens, finite widths; none of them is planned where it does not take long."""
    model = read("gpt2").replace(layers=6, width=64, heads=4, hidden=256)
    request = _request.Request((model,), tokens=(32,), draws=16, gradients=False)
    cost = AuditStudy(request).estimate()
    assert AuditStudy(request).cheaper(cost) == ""
    text = AuditStudy(request).cheaper(cost._replace(first=0.0, seconds=1e6))
    announced = dict(re.findall(r"(--[^:]+): about ([\d.e-]+) s", text))
    assert list(announced) == ["--set layers=4", "--tokens 4", "--widths actual"]
    assert text.startswith(f"{CHEAPER}: ")
    assert "GPU" not in text  # its time is not known for limits
    ids = _request.Request((model.replace(layers=2),), ids=(1, 2, 3), widths="actual", gradients=False)
    text = AuditStudy(ids).cheaper(cost._replace(seconds=1e6))
    assert text == f"{CHEAPER}: a GPU (--backend torch): less than 111 min on an H200."
