"""An audit: the same bits however it is cut up, nothing lost, nothing of somebody
else's touched.
"""

import html
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    EVERY,
    NOT_APPLICABLE,
    OK,
    ROUTING,
    TOGETHER,
    AuditCase,
    AuditStudy,
    Store,
    _cases,
    _cost,
    _memory,
    _process_pool,
    _request,
    block_of,
    choose,
)
from tests.internals import AuditRequest as Request
from tests.internals import studies_study as _study

from ...inline import Inline
from ...keep import keep

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 30,
}
TINY = ns.models.read(GPT2)
SMALL = {"tokens": 3, "draws": 40}


def bits(audit):
    return {
        (each.model.name, at.tokens, found.subject.infinite, name): array.tobytes()
        for each in audit.audits
        for at in each.lengths
        for found in at.measured
        for name, array in found.arrays.items()
    }


@pytest.mark.slow
def test_same_bits_for_any_number_of_worker_processes(monkeypatch):
    # it is the parent that makes the parts
    monkeypatch.setattr(_cases, "PART_DRAWS", 16)
    two = bits(ns.audit(TINY, workers=2, **SMALL))
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    one = bits(ns.audit(TINY, workers=1, **SMALL))
    assert one == two
    assert len(one) > 20


def test_draws_do_not_depend_on_what_else_is_asked(inline):
    plain = bits(ns.audit(TINY, widths="actual", **SMALL))
    both = bits(ns.audit(TINY, compare=TINY.replace(std=0.3), **SMALL))
    assert {key: both[key] for key in plain} == plain
    more = ns.audit(TINY, widths="actual", tokens=3, draws=50).actual["cosine"]
    assert more[:40].tobytes() == plain[TINY.name, 3, False, "cosine"]
    assert (
        bits(ns.audit(TINY, widths="actual", seed=1, **SMALL)).values()
        != plain.values()
    )


def test_parts_are_draws_of_the_model(inline):
    """Part by part what the model's own probes say, and no draw twice."""
    audit = ns.audit(TINY, widths="actual", **SMALL)
    parts = audit.request.tasks(audit.actual.subject)
    assert [part.draws for part in parts] == [16, 16, 8]
    own = [
        TINY.probes(tokens=3).measure(p.draws, seed=p.sampling().seed, workers=1)[
            "entropy"
        ]
        for p in parts
    ]
    np.testing.assert_array_equal(audit.actual["entropy"], np.concatenate(own))
    assert len(np.unique(audit.actual["entropy"][:, 0])) == 40


def test_audit_prints_verdicts_and_reports_progress(inline):
    reported = []
    audit = ns.audit(
        TINY, widths="actual", progress=lambda *done: reported.append(done), **SMALL
    )
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert len(repr(audit)) < 120
    assert repr(audit).startswith("<Audit of gpt2: 40 draws; flagged: ")
    assert str(audit) == audit.table()
    shown = html.unescape(audit._repr_html_())
    for finding in audit.findings:
        assert (finding.brief if finding.verdict == OK else finding.measured) in shown
    assert repr(audit.actual).startswith(
        "<40 draws of gpt2 at its own widths: mean_square, "
    )
    with pytest.raises(
        ValueError, match="progress=3 must be True, False or a function of"
    ):
        ns.audit(TINY, progress=3)


def test_results_are_mappings(inline):
    audit = ns.audit(
        TINY,
        widths="actual",
        compare=TINY.replace(std=0.3, name="wide"),
        gradients=False,
        **SMALL,
    )
    first, second = audit
    assert (len(audit), second.model.name) == (2, "wide")
    for mapping in (first, first.at(3), first.actual):
        assert {"entropy", "loss", "input_cosine"} <= set(mapping)
        assert len(mapping) == len(list(mapping)) == len(dict(mapping))
        assert ("entropy" in mapping, "nothing" in mapping, 0 in mapping) == (
            True,
            False,
            False,
        )
        assert mapping == mapping
        assert {mapping: 1}[mapping] == 1
    assert dict(first.actual)["entropy"] is first.actual["entropy"]
    with pytest.raises(KeyError, match="0 was not measured; measured: mean_square, "):
        first[0]


def test_limit_is_coupled_to_its_model(inline):
    """Common random numbers: the largest scores of the first block, which vary in the
    limit too, go together.
    """
    audit = ns.audit(
        TINY.replace(width=400, head_dim=200, hidden=50),
        tokens=3,
        draws=100,
        gradients=False,
    )
    pairs = audit.actual["score_max"][:, 0], audit.limit["score_max"][:, 0]
    assert np.corrcoef(*pairs)[0, 1] > 0.5  # 0 ± 0.1 if they were independent


def test_finished_parts_are_kept_and_not_done_again(
    inline, unillustrated, tmp_path, monkeypatch
):
    whole = ns.audit(TINY, out=tmp_path / "whole", **SMALL)
    work = _study.compute
    left = iter(range(2))

    def interrupted(part, folder):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return work(part, folder)

    monkeypatch.setattr(_study, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ns.audit(TINY, out=tmp_path / "cut", **SMALL)
    parts = list((tmp_path / "cut" / "parts").glob("*.npz"))
    assert len(parts) == 2
    assert not (tmp_path / "cut" / "report.html").exists()
    done = []
    monkeypatch.setattr(
        _study, "compute", lambda part, folder: done.append(part) or work(part, folder)
    )
    again = ns.audit(TINY, out=tmp_path / "cut", **SMALL)
    assert bits(again) == bits(whole)
    assert len(done) == 4  # of three for each of two widths
    assert (tmp_path / "cut" / "audit.csv").read_bytes() == (
        tmp_path / "whole" / "audit.csv"
    ).read_bytes()
    parts[0].write_bytes(b"damaged")
    done.clear()
    assert bits(ns.audit(TINY, out=tmp_path / "cut", **SMALL)) == bits(whole)
    assert len(done) == 1


def test_part_is_named_by_all_that_its_draws_depend_on():
    part = Request((TINY,), **SMALL).tasks(AuditCase(TINY, 3, None, False))[0]
    others = [
        replace(part, seed=1),
        replace(part, index=1),
        replace(part, draws=7),
        replace(part, backend=choose("numpy", precision="float32")),
        replace(part, case=replace(part.case, infinite=True)),
        replace(part, case=replace(part.case, tokens=4)),
        replace(part, case=replace(part.case, gradients=True)),
        replace(part, case=replace(part.case, ids=(0, 1, 2))),
        *(
            replace(part, case=replace(part.case, model=TINY.replace(**change)))
            for change in (
                {"std_q": 0.03},
                {"eps": 1e-4},
                {"tied": False},
                {"score_cap": 30.0},
            )
        ),
    ]
    names = {Store(Path("parts")).path(p.key).name for p in (part, *others)}
    assert len(names) == 1 + len(others)
    renamed = replace(part, case=replace(part.case, model=TINY.replace(name="mine")))
    assert renamed.key == part.key
    assert pickle.loads(pickle.dumps(part)) == part


def test_gradients_at_infinite_width_alone_are_not_planned(monkeypatch):
    """By default they are measured at the model's own widths, which are not drawn."""
    request = _request.Request((TINY,), tokens=4, draws=40, widths="inf")
    monkeypatch.setattr(_request.Request, "_seconds", None)  # plans with gradients
    assert request.remark == ""
    assert request.options()["gradients"] == []
    assert not any(case.gradients for case in request.asked)


def test_gradients_are_measured_where_they_cost_little():
    """Of the shortest of several inputs, whose draws are a part of the whole; by
    counts, and not by the clock.
    """
    model = TINY.replace(length=96, vocabulary=100)
    several = _request.Request((model,), tokens=(4, 96), draws=40, widths="both")
    assert 1.0 < several.times <= 2.0
    assert [(each.tokens, each.infinite, each.gradients) for each in several.asked] == [
        (4, False, True),
        (4, True, False),
        (96, False, False),
    ]
    alone = _request.Request((model,), tokens=4, draws=40, widths="actual")
    assert alone.times > 2.0
    assert not alone.asked[0].gradients
    asked = _request.Request((model,), tokens=(4, 96), draws=40, gradients=True)
    assert all(each.gradients for each in asked.asked)


def test_audit_keeps_foreign_files_in_its_folder(inline, unillustrated, tmp_path):
    small = {**SMALL, "widths": "actual", "gradients": False}
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(
        ValueError, match=r"out=.* holds a report\.html that is not of an earlier run"
    ):
        ns.audit(TINY, out=tmp_path, **small)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    found = ns.audit(TINY, **small)
    with pytest.raises(ValueError, match=r"holds a report\.html"):
        found.save(tmp_path)
    assert found.save(tmp_path / "other").read_text().startswith("<!DOCTYPE html>")
    # an earlier audit's files are ours
    ns.audit(TINY, out=tmp_path / "other", seed=5, **small)


def test_quantities_are_those_of_the_models():
    """Every name of the probes has its words, and no words are left over."""
    model = ns.models.read("t5-base").replace(layers=1, decoder_layers=1, gated=True)
    names = set(model.probes(tokens=2, gradients=True).names)
    final = set(TINY.replace(tied=False).probes(tokens=2, gradients=True).final)
    of_modules = {"grad_qkv", "grad_qkv_ratio", "grad_router", "grad_router_ratio"}
    groups = {group.name for group in (*TOGETHER, *ROUTING)}
    assert names | final == set(EVERY) - groups - of_modules


def test_models_without_logits_have_no_loss(inline, unillustrated, tmp_path):
    audit = ns.audit(
        TINY.replace(vocabulary=None), out=tmp_path, gradients=False, **SMALL
    )
    assert audit.as_dict()["final"] == {
        "logit_std": None,
        "loss": None,
        "max_probability": None,
    }
    assert "the model has no logits" in audit.table()
    assert {f.name: f.verdict for f in audit.findings}["loss"] == NOT_APPLICABLE


def test_audit_at_infinite_width_only_has_no_actual_draws(inline):
    audit = ns.audit(TINY, widths="inf", **SMALL)
    assert audit.actual is None
    assert audit.as_dict()["widths"] == "inf"
    assert audit.as_dict()["status"] == "conjectured"
    assert "limit" not in audit.as_dict()


def test_two_models_of_one_name_get_different_names():
    for others, reported in (
        ([TINY.replace(std_q=0.5, tied=False)], [", tied=False, std_q=0.5"]),
        ([TINY, TINY], [", again", ", again, again"]),
    ):
        request = Request((TINY, *others), widths="actual", **SMALL)
        assert [model.name for model in request.models] == [
            TINY.name,
            *(f"{TINY.name}{words}" for words in reported),
        ]


WRONG = [
    ({"tokens": 0}, "tokens=0 must be"),
    ({"tokens": 1}, "tokens=1 must be 2 or more"),
    ({"tokens": 17}, "tokens=17"),
    ({"draws": 14}, "draws=14 must be an integer, 15 or more: fewer"),
    ({"widths": "real"}, "widths='real' must be 'actual', 'inf'"),
    ({"ids": [1, 40]}, "ids=40"),
    ({"ids": []}, "two or more: an audit"),
    ({"ids": [1, -1]}, "ids=-1 must be"),
    ({"out": ""}, "out=''"),
    ({"workers": 0}, "workers=0 must be"),
    ({"seed": -1}, "seed=-1 must be"),
    ({"compare": "nothing"}, "must be the path of a file"),
    ({"tokens": 10**9}, "tokens=1000000000"),
    ({"ids": [1, 2.5]}, "ids=2.5 must be"),
    ({"ids": 5}, "ids=5 must be a sequence"),
    ({"tokens": [3, 3]}, "tokens=[3, 3] must be one length or more"),
    ({"tokens": []}, "tokens=[] must be one length or more"),
    ({"quick": 1}, "quick=1 must be True or False"),
    (
        {"ids": [1, 2], "tokens": 3},
        "must be left out: the ids say how many tokens there are",
    ),
    (
        {"sweep": {"std": [0.1]}},
        "sweep={'std': [0.1]} must be over two or more numbers or words",
    ),
    (
        {"sweep": {"std": "ab"}},
        "sweep={'std': 'ab'} must be over two or more numbers or words",
    ),
    ({"sweep": {"std": [0.1, 0.2], "eps": [1, 2]}}, "must be one field and its values"),
    (
        {"sweep": {"std": [0.1, 0.2]}, "compare": TINY},
        "sweep and compare cannot be combined",
    ),
    ({"sweep": {"stdd": [0.1, 0.2]}}, "stdd is not a field"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_wrong_arguments_are_named(given, said, inline):
    with pytest.raises(ValueError, match=r".") as error:
        ns.audit(TINY, **{**({"draws": 40} if "ids" in given else SMALL), **given})
    assert said in str(error.value)
    assert "functools" not in str(error.value)


def test_audit_beyond_memory_or_layers_raises(inline, monkeypatch):
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**27)
    with pytest.raises(
        ValueError,
        match=(
            r"3 tokens on 1 worker would need 16\d MiB of memory \(available: 128 MiB"
        ),
    ):
        ns.audit(TINY, workers=1, **SMALL)
    with pytest.raises(
        ValueError, match=r"layers=5000 must be at most 2000 for an audit of gpt2"
    ):
        ns.audit(TINY.replace(layers=5000), **SMALL)


def test_workers_have_room_for_the_draws_that_are_computed_together(monkeypatch):
    """Two dozen of GPT-2 with gradients take 0.5 GiB, which was not counted: twice what
    one takes is less.
    """
    request = Request((TINY,), tokens=16, draws=64, workers=1, widths="actual")
    (subject,) = request.subjects
    for name in (
        "engine.plan._draw_cost.BASE",
        "engine.plan._draw_cost.MIN_DRAW_BYTES",
        "studies.audit.COPIES",
    ):
        monkeypatch.setattr(f"netsor.{name}", 0.0)
    together = min(block_of(subject.plan), 64)
    assert together > 2
    plan, planning = subject.plan, subject.draw.planning_bytes
    found = AuditStudy(request).estimate()
    assert found.workers == 1
    assert found.bytes == planning + _cost.TEMPORARY * together * plan.bytes


def test_heads_with_rotary_positions_keep_their_dimension_at_infinite_width():
    """The limit costs no more than the model itself, and has gradients unless the input
    is long.
    """
    model = ns.models.read("llama-3-8b").replace(layers=1)
    own, limit = (AuditCase(model, 64, None, infinite) for infinite in (False, True))
    assert limit.widths == {"n": math.inf, "d": 128, "m": math.inf}
    assert limit.plan.seconds(100) < own.plan.seconds(100)
    assert AuditCase(model, 2, None, True, gradients=True).plan.steps
    assert set(AuditCase(TINY, 3, None, True).widths.values()) == {math.inf}
    long = Request((model,), tokens=64, gradients=True)
    assert "take at most 32 tokens" in long.no_gradients(model, 64)
    assert [case.gradients for case in long.subjects] == [True, False]


def test_gradients_at_infinite_width_are_left_out_for_each_long_input():
    model = ns.models.read("llama-3-8b").replace(layers=1)
    request = Request((model,), tokens=(2, 33), widths="inf", gradients=True)
    assert not request.no_gradients(model, 2)
    assert "take at most 32 tokens" in request.no_gradients(model, 33)
    assert [case.gradients for case in request.subjects] == [True, False]


@pytest.mark.parametrize(
    ("tokens", "head_dim"), keep([(128, math.inf), (192, 64)], (128, math.inf))
)
def test_limit_of_a_long_input_costs_no_more_than_the_model(tokens, head_dim):
    model = ns.models.read("gpt2").replace(layers=2)
    own, limit = (
        AuditCase(model, tokens, None, infinite) for infinite in (False, True)
    )
    assert limit.widths == {"n": math.inf, "d": head_dim, "m": math.inf}
    assert limit.plan.seconds(100) < own.plan.seconds(100)
