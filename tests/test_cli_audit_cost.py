"""What netsor audit takes: told before, from plans; what takes too much is refused."""

import dataclasses
import json
import re
import tracemalloc
from functools import lru_cache

import pytest

from netsor.models import Probes, read
from tests.internals import (
    CHEAPER,
    SHORT_TOKENS,
    AuditCase,
    AuditStudy,
    NoLimitError,
    Numpy,
    _cost,
    _memory,
    _process_pool,
    _request,
    _run_study,
    recomputing,
)

from .command import netsor
from .inline import Inline
from .keep import keep
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


def test_audit_beyond_memory_is_rejected_before_planning(unplanned, monkeypatch):
    """GPT-2 on 128 tokens: the covariances of its scores at infinite width, 12 blocks
    of 12 · 128² of them.
    """
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**28)
    result = netsor("audit", "gpt2", "--tokens", "128")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(
        "netsor: 128 tokens of gpt2 (width 768, 12 heads, hidden 3,072"
    )
    assert "or the actual widths alone" in result.stderr
    actual = netsor("audit", "gpt2", "--tokens", "128", "--widths", "actual")
    assert actual.stderr.endswith("netsor: a plan is begun\n")


@pytest.mark.parametrize("widths", ["actual", "both"])
def test_gradients_beyond_memory_are_rejected_before_planning(
    unplanned, widths, monkeypatch
):
    """405 billion parameters at 128 tokens: 66 GiB if every block keeps what the
    backward pass reads, and 2.6 GiB if blocks are computed again.
    """
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**31)
    command = (
        "audit",
        "llama-3-405b",
        "--tokens",
        "128",
        "--gradients",
        "--widths",
        widths,
    )
    result = netsor(*command)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "netsor: gradients at 128 tokens of llama-3-405b" in result.stderr
    assert "(available: 2 GiB); take fewer tokens or layers" in result.stderr
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**34)
    assert netsor(*command).stderr.endswith("netsor: a plan is begun\n")


def test_long_inputs_are_planned_or_rejected_before_planning(unplanned, monkeypatch):
    """16,384 tokens: their Gram matrices alone; 4,096 tokens fit in the same memory,
    although their logits, and the scores of a block, would not.
    """
    command = "audit", "llama-3-8b", "--tokens"
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**33)
    result = netsor(*command, "16384")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "16,384 tokens of llama-3-8b" in result.stderr
    assert (
        "of memory (available: 8 GiB); take fewer tokens, or a smaller model (4,096"
        " tokens fit)" in result.stderr
    )
    assert netsor(*command, "4096").stderr.endswith("netsor: a plan is begun\n")


class Small(Numpy):
    """A device of 1 GiB."""

    def memory(self):
        """Its memory."""
        return 2.0**30


def test_audit_beyond_memory_of_device_is_rejected_before_planning(unplanned):
    """With the most tokens, by halving, that fit."""
    with pytest.raises(
        ValueError, match=r"4,096 tokens .* on cuda:0 .*: 1 GiB.*\(2,048 tokens fit\)"
    ):
        _request.Request((read("llama-3-8b"),), tokens=(4096,), backend=Small("cuda:0"))


@pytest.mark.parametrize(
    "name", keep(["gpt2", "llama-3-8b", "t5-base", "vit-base"], "gpt2")
)
def test_memory_bound_is_at_most_memory_of_plan(name):
    """So nothing is refused that would fit. It is half of it or more, so little is
    planned in vain; with and without computing blocks again.
    """
    shallow = {"layers": 4, "decoder_layers": 4} if name == "t5-base" else {"layers": 4}
    model, tokens = read(name).replace(**shallow), 32
    case = AuditCase(model, tokens, None, infinite=False, gradients=True)
    for plan, least in (
        (case.plan, _cost.gradient_bytes),
        (recomputing(case.plan), _cost.recomputed_bytes),
    ):
        planned = _cost.TEMPORARY * plan.bytes + case.draw.planning_bytes
        assert planned / 2 < least(model, tokens) < 1.1 * planned


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_announced_memory_of_planning_is_at_least_half_right(name):
    """Indices that values share were counted for each of them: 3 to 5 times the peak."""
    small = AuditCase(read("gpt2").replace(layers=1), 4, None, False, gradients=True)
    assert small.plan  # what is imported and cached does not count
    model = read(name).replace(layers=2)
    case = AuditCase(model, 128, None, infinite=False, gradients=True)
    tracemalloc.start()
    try:
        assert case.plan
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / 1.3 < case.draw.planning_bytes < 2 * peak


def test_slow_long_inputs_are_rejected_from_plans_of_short_ones(folder, monkeypatch):
    """Their time grows at least as it does up to 256 tokens."""
    (folder / "long.json").write_text(
        json.dumps({**CONFIG, "n_positions": 2048, "vocab_size": 2048})
    )
    model, planned = read(str(folder / "long.json")), []
    made = AuditCase.planned.__wrapped__
    monkeypatch.setattr(
        AuditCase, "planned", lambda case: planned.append(case.tokens) or made(case)
    )
    monkeypatch.setattr(_run_study, "LONGEST", 1e-3)
    result = netsor("audit", "long.json", "--tokens", "2048", "--quick", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "16 draws of 2,048 tokens would take" in result.stderr
    assert (
        "or more. Fewer draws or tokens, or a smaller model, take less."
        in result.stderr
    )
    assert set(planned) == {SHORT_TOKENS // 2, SHORT_TOKENS}
    short = _request.Request((model,), tokens=(SHORT_TOKENS,), quick=True)
    assert AuditStudy(short).least_seconds() == 0.0
    four = _request.Request((model,), tokens=(4 * SHORT_TOKENS,), quick=True, workers=1)
    assert AuditStudy(four).least_seconds() < AuditStudy(four).estimate().seconds


def test_audit_estimate_equals_cost_of_plans(folder):
    """With its random numbers, and those of its limit."""
    request = _request.Request(
        (read(str(folder / "tiny.json")),), tokens=3, draws=600, workers=1
    )
    found, more = (
        AuditStudy(dataclasses.replace(request, draws=draws)).estimate()
        for draws in (600, 1200)
    )
    plans = [subject.plan for subject in request.subjects]
    assert len(plans) == 2
    assert found.random_numbers == 600 * sum(plan.random_numbers for plan in plans)
    assert more.seconds - found.seconds == pytest.approx(
        sum(plan.seconds(600) for plan in plans)
    )
    assert found.first == _cost.START
    reported = AuditStudy(dataclasses.replace(request, out=folder / "out")).estimate()
    assert reported.first == _cost.START + _cost.REPORT


def test_audit_beyond_a_day_is_rejected(folder, monkeypatch):
    monkeypatch.setattr(_run_study, "LONGEST", 1.0)
    result = netsor(*SMALL[:-1], "1000000", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(
        "netsor: tiny: 1,000,000 draws of 3 tokens would take about"
    )


def test_audit_reports_unavailable_limit(folder, monkeypatch):
    """With both widths the model's own go on; asked for alone, it is an error."""
    made = Probes.plan

    def refuses(self, **widths):
        if widths["n"] == float("inf"):
            raise NoLimitError("the scores diverge")
        return made(self, **widths)

    monkeypatch.setattr(Probes, "plan", refuses)
    monkeypatch.setattr(AuditCase, "planned", lru_cache(AuditCase.planned.__wrapped__))
    found = json.loads(netsor(*SMALL, "--json", cwd=folder).stdout)
    assert (found["limit"], found["no_limit"], len(found["layers"])) == (
        None,
        "the scores diverge",
        2,
    )
    assert "no limit (--verbose says why)" in " ".join(
        netsor(*SMALL, cwd=folder).stdout.split()
    )
    assert (
        "No limit: the scores diverge."
        in netsor(*SMALL, "--verbose", cwd=folder).stdout
    )
    gate = netsor(*SMALL, "--fail-on", "limit", cwd=folder)  # before anything is drawn
    assert (gate.returncode, gate.stderr.count("\n")) == (2, 1)
    assert (
        "limit was not measured for tiny: infinite width has no limit: the scores"
        " diverge\n" in gate.stderr
    )
    assert "infinite width has no limit: the scores diverge" in " ".join(
        netsor(*SMALL, cwd=folder).stdout.split()
    )
    alone = netsor(*SMALL, "--widths", "inf", cwd=folder)
    assert (alone.returncode, alone.stderr.splitlines()) == (
        2,
        ["netsor: the scores diverge"],
    )


def test_cheaper_audits_are_named_with_their_cost():
    """From plans: fewer blocks, fewer tokens, finite widths; none of them is planned
    where it does not take long.
    """
    model = read("gpt2").replace(layers=6, width=64, heads=4, hidden=256)
    request = _request.Request((model,), tokens=(32,), draws=16, gradients=False)
    cost = AuditStudy(request).estimate()
    assert AuditStudy(request).cheaper(cost) == ""
    text = AuditStudy(request).cheaper(cost._replace(first=0.0, seconds=1e6))
    announced = dict(re.findall(r"(--[^:]+): about ([\d.e-]+) s", text))
    assert list(announced) == ["--set layers=4", "--tokens 4", "--widths actual"]
    assert text.startswith(f"{CHEAPER}: ")
    assert "GPU" not in text  # its time is not known for limits
    ids = _request.Request(
        (model.replace(layers=2),), ids=(1, 2, 3), widths="actual", gradients=False
    )
    text = AuditStudy(ids).cheaper(cost._replace(seconds=1e6))
    assert text == f"{CHEAPER}: a GPU (--backend torch): less than 111 min on an H200."
