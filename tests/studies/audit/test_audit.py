"""An audit: the same bits however it is cut up, nothing lost, nothing of somebody else's touched."""

import csv
import html
import io
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import netsor as ns
from netsor._document import NOT_APPLICABLE, OK
from netsor.engine import _sampler
from netsor.engine.backends import choose
from netsor.engine.backends._numpy import block_of
from netsor.studies import _process_pool, _study
from netsor.studies._output_dir import Store
from netsor.studies.audit import AuditStudy, _cases, _plots, _request
from netsor.studies.audit._cases import AuditCase
from netsor.studies.audit._measurements import LengthResult
from netsor.studies.audit._quantities import BACKWARD, BLOCKS, EVERY, FORWARD, ROUTING, TOGETHER
from netsor.studies.audit._request import Request
from netsor.studies.audit._results import Audit, Comparison

from ...inline import Inline
from ...keep import keep

GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 30}
TINY = ns.models.read(GPT2)
SMALL = {"tokens": 3, "draws": 40}


@pytest.fixture
def inline(monkeypatch):
    """In this process, and in parts of 16 draws."""
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    monkeypatch.setattr(_cases, "PART_DRAWS", 16)


def bits(audit):
    return {
        (each.model.name, at.tokens, found.subject.infinite, name): array.tobytes()
        for each in audit.audits
        for at in each.lengths
        for found in at.measured
        for name, array in found.arrays.items()
    }


@pytest.mark.slow
def test_the_same_bits_for_any_number_of_worker_processes(monkeypatch):
    monkeypatch.setattr(_cases, "PART_DRAWS", 16)  # it is the parent that makes the parts
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
    assert bits(ns.audit(TINY, widths="actual", seed=1, **SMALL)).values() != plain.values()


def test_parts_are_draws_of_the_model(inline):
    """Part by part what the model's own probes say, and no draw twice."""
    audit = ns.audit(TINY, widths="actual", **SMALL)
    parts = audit.request.tasks(audit.actual.subject)
    assert [part.draws for part in parts] == [16, 16, 8]
    own = [TINY.probes(tokens=3).measure(p.draws, seed=p.sampling().seed, workers=1)["entropy"] for p in parts]
    np.testing.assert_array_equal(audit.actual["entropy"], np.concatenate(own))
    assert len(np.unique(audit.actual["entropy"][:, 0])) == 40


def test_what_an_audit_looks_like_and_whom_it_tells(inline):
    reported = []
    audit = ns.audit(TINY, widths="actual", progress=lambda *done: reported.append(done), **SMALL)
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert len(repr(audit)) < 120
    assert repr(audit).startswith("<Audit of gpt2: 40 draws; flagged: ")
    assert str(audit) == audit.table()
    shown = html.unescape(audit._repr_html_())
    for finding in audit.findings:
        assert (finding.brief if finding.verdict == OK else finding.measured) in shown
    assert repr(audit.actual).startswith("<40 draws of gpt2 at its own widths: mean_square, ")
    with pytest.raises(ValueError, match="progress=3 must be True, False or a function of"):
        ns.audit(TINY, progress=3)


def test_results_are_mappings(inline):
    audit = ns.audit(TINY, widths="actual", compare=TINY.replace(std=0.3, name="wide"), **SMALL)
    first, second = audit
    assert (len(audit), second.model.name) == (2, "wide")
    for mapping in (first, first.at(3), first.actual):
        assert {"entropy", "loss", "input_cosine"} <= set(mapping)
        assert len(mapping) == len(list(mapping)) == len(dict(mapping))
        assert ("entropy" in mapping, "nothing" in mapping, 0 in mapping) == (True, False, False)
        assert mapping == mapping
        assert {mapping: 1}[mapping] == 1
    assert dict(first.actual)["entropy"] is first.actual["entropy"]
    with pytest.raises(KeyError, match="0 was not measured; what was: mean_square, "):
        first[0]


def test_a_limit_is_coupled_to_its_model(inline):
    """Common random numbers: the largest scores of the first block, which vary in the limit too, go together."""
    audit = ns.audit(TINY.replace(width=400, head_dim=200, hidden=50), tokens=3, draws=100)
    pairs = audit.actual["score_max"][:, 0], audit.limit["score_max"][:, 0]
    assert np.corrcoef(*pairs)[0, 1] > 0.5  # 0 ± 0.1 if they were independent


WIDE = ns.models.read({**GPT2, "vocab_size": 6000})  # many logits: single precision pays


def test_single_precision_where_it_is_enough(inline, unillustrated, monkeypatch, tmp_path):
    """The same draws, to five digits, and no part is checked again."""
    monkeypatch.setattr(_sampler, "resolve_precision", check := Checked())
    asked = {"tokens": 13, "draws": 32, "widths": "both"}
    auto = ns.audit(WIDE, **asked, out=tmp_path)
    exact = ns.audit(WIDE, **asked, precision="float64")
    assert (auto.actual.precision, auto.limit.precision) == ("float32", "float64")
    assert {backend.precision for backend in check.seen} == {"float32", "float64"}
    assert all(backend.chosen for backend in check.seen if backend.precision == "float32")
    for name, drawn in exact.actual.arrays.items():
        np.testing.assert_allclose(auto.actual[name], drawn, rtol=2e-5, atol=2e-5 * np.abs(drawn).max())
    assert auto.actual["loss"].tobytes() != exact.actual["loss"].tobytes()
    assert auto.limit["loss"].tobytes() == exact.limit["loss"].tobytes()
    assert [part["precision"] for part in json.loads((tmp_path / "manifest.json").read_text())["parts"]] == [
        "float32",
        "float64",
    ]
    assert "single precision at finite widths where that is enough" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "t5-base", "vit-base"])
def test_gradients_in_single_precision(inline, name):
    """Of models of their own widths, two blocks: nothing is off by more than audits show."""
    model = ns.models.read(name).replace(layers=2, **({"decoder_layers": 2} if name == "t5-base" else {}))
    asked = {"tokens": 12, "draws": 16, "gradients": True, "widths": "actual"}
    auto, exact = (ns.audit(model, **asked, precision=precision) for precision in ("auto", "float64"))
    assert auto.actual.precision == "float32"
    for quantity, drawn in exact.actual.arrays.items():
        np.testing.assert_allclose(auto.actual[quantity], drawn, rtol=2e-5, atol=2e-5 * np.abs(drawn).max())


class Checked:
    """A check that knows what it was asked about, and refuses nothing."""

    def __init__(self):
        self.seen = []

    def __call__(self, plan, backend, draws):
        self.seen.append(backend)
        return backend, 0.0


@pytest.mark.parametrize("std", keep([1e-26, 1e26], 1e-26))
def test_double_precision_where_single_is_not_enough(inline, std):
    model = WIDE.replace(std_embedding=std, std_position=std, eps=0.0)
    auto, exact = (
        ns.audit(model, tokens=13, draws=32, widths="actual", precision=precision) for precision in ("auto", "float64")
    )
    assert auto.actual.precision == "float64"
    assert bits(auto) == bits(exact)
    assert np.isfinite(auto.actual["mean_square"]).all()
    with pytest.raises(ValueError, match="precision='float32' must be 'float64'"):
        ns.audit(model, tokens=13, draws=32, widths="actual", precision="float32")


def test_finished_parts_are_kept_and_not_done_again(inline, unillustrated, tmp_path, monkeypatch):
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
    monkeypatch.setattr(_study, "compute", lambda part, folder: done.append(part) or work(part, folder))
    again = ns.audit(TINY, out=tmp_path / "cut", **SMALL)
    assert bits(again) == bits(whole)
    assert len(done) == 4  # of three for each of two widths
    assert (tmp_path / "cut" / "audit.csv").read_bytes() == (tmp_path / "whole" / "audit.csv").read_bytes()
    parts[0].write_bytes(b"damaged")
    done.clear()
    assert bits(ns.audit(TINY, out=tmp_path / "cut", **SMALL)) == bits(whole)
    assert len(done) == 1


def test_a_part_is_named_by_all_that_its_draws_depend_on():
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
        *(replace(part, case=replace(part.case, model=TINY.replace(**change)))
          for change in ({"std_q": 0.03}, {"eps": 1e-4}, {"tied": False}, {"score_cap": 30.0})),
    ]  # fmt: skip
    names = {Store(Path("parts")).path(p.key).name for p in (part, *others)}
    assert len(names) == 1 + len(others)
    renamed = replace(part, case=replace(part.case, model=TINY.replace(name="mine")))
    assert renamed.key == part.key
    assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.slow
def test_every_figure_is_drawn(inline, tmp_path):
    ns.audit(TINY, compare=TINY.replace(std=0.3), out=tmp_path, **SMALL)
    assert (tmp_path / "report.html").read_text().count('<svg xmlns:xlink="') == len(
        FORWARD
    )  # without the share of cross-attention, the first one twice


def test_the_files_of_an_audit(inline, tmp_path, monkeypatch):
    """With a figure of each kind: a logarithmic axis, a line at 0, and a threshold."""
    real, kinds = _plots.svg_figure, ("mean_square", "cosine", "entropy")

    def drawn(name, *how):
        figure = real(name, *how)
        return figure if name in kinds else figure._replace(svg=lambda: b"<svg/>")

    monkeypatch.setattr(_plots, "svg_figure", drawn)
    audit = ns.audit(TINY, compare=TINY.replace(std=0.3), out=tmp_path, **SMALL)[0]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == len(FORWARD)  # all but cross-attention's share, and the first one of the summary
    assert "http-equiv" not in page
    assert not any(word in page for word in ("<script", 'src="', "<link", "@import"))  # nothing is fetched
    rows = list(csv.DictReader(io.StringIO((tmp_path / "audit.csv").read_text())))
    assert len(rows) == 2 * 2 * (2 * (len(FORWARD) - 1) + 3 + 3)
    start = next(r for r in rows if r["quantity"] == "mean_square" and r["block"] == "0" and r["widths"] == "actual")
    assert float(start["median"]) == pytest.approx(np.median(audit.actual["input_mean_square"]), rel=1e-9)
    row = next(r for r in rows if r["quantity"] == "entropy" and r["block"] == "2" and r["widths"] == "actual")
    assert float(row["median"]) == pytest.approx(np.median(audit.actual["entropy"][:, 1]), rel=1e-9)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["random_numbers"] > audit.random_numbers > 0
    assert manifest["options"]["models"][1]["std_q"] == 0.3
    assert set(manifest["files"]) == {"report.html", "audit.csv", "audit.json"}


@pytest.mark.slow
def test_the_backward_half(inline, tmp_path, monkeypatch):
    """In the table, the object, the file and the report; at infinite width, where the engine cannot, why not."""
    monkeypatch.setattr(_plots, "BLOCKS", [BLOCKS[0], *BACKWARD])  # the other half is in the test above
    both = ns.audit(TINY, compare=TINY.replace(tied=False), out=tmp_path, gradients=True, **SMALL)
    audit = both[0]
    names = [q.name for q in BACKWARD if q.kind not in ("gate", "qkv")]
    layer, final = audit.as_dict()["layers"][1], audit.as_dict()["final"]
    assert [name for name in layer if name.startswith("grad")] == names
    assert layer["grad_query"] == dict(
        zip(("median", "low", "high"), np.quantile(audit.actual["grad_query"][:, 1], [0.5, 0.05, 0.95]), strict=True)
    )
    ends = ["grad_input", "grad_embedding", "grad_embedding_ratio"]
    assert [name for name in final if name.startswith("grad")] == ends
    other = both[1].as_dict()
    assert audit.as_dict()["embedding"]["grad_mean_square"] == audit.as_dict()["final"]["grad_input"]
    assert [name for name in other["final"] if name.startswith("grad")] == [*ends, "grad_head", "grad_head_ratio"]
    assert audit.as_dict()["no_gradients"].startswith("the logit of a token's own id grows with the root of the width")
    assert "grad_query" not in audit.as_dict()["limit"]["layers"][0]
    assert "No gradients at n = ∞: the logit of a token's own id" in " ".join(audit.table(verbose=True).split())
    assert "gradient², query" in both.table(verbose=True)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "audit.csv").read_text())))
    assert {row["quantity"] for row in rows} >= {*names, *ends, "grad_head"}
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5  # the first one; the stream, its gradient, the kinds of weights, and their ratios
    assert "No gradients at n = ∞: the logit of a token" in page
    assert json.loads((tmp_path / "manifest.json").read_text())["options"]["gradients"] == [3]
    again = ns.audit(TINY, widths="actual", gradients=True, **SMALL)  # whatever else is asked
    assert again.actual["grad_in"].tobytes() == audit.actual["grad_in"].tobytes()
    with pytest.raises(ValueError, match="gradients='yes' must be True or False"):
        ns.audit(TINY, gradients="yes", **SMALL)


def test_figures_have_the_thresholds_of_rules(inline):
    """Of branches a ninth of the other's share; of gradients relative to the last block."""
    audit = ns.audit(TINY, gradients=True, widths="actual", **SMALL)
    lines = {}
    for name in ("attention_share", "mlp_share", "grad_mean_square", "entropy"):
        axes = audit.plot(name, Figure().subplots())
        lines[name] = [np.array(line.get_ydata()) for line in axes.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(lines["attention_share"], [audit["mlp_share"].median / 9])
    np.testing.assert_allclose(lines["mlp_share"], [audit["attention_share"].median / 9])
    last = audit["grad_mean_square"].median[-1]
    np.testing.assert_allclose([line[0] for line in lines["grad_mean_square"]], [0.01 * last, 1e4 * last])
    assert [line[0] for line in lines["entropy"]] == [0.5]


def test_gradients_are_measured_where_they_cost_little():
    """Of the shortest of several inputs, whose draws are a part of the whole; by counts, and not by the clock."""
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


def test_what_was_in_the_folder_stays(inline, unillustrated, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"out=.* holds a report\.html that is not of an earlier run"):
        ns.audit(TINY, out=tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    found = ns.audit(TINY, **SMALL)
    with pytest.raises(ValueError, match=r"holds a report\.html"):
        found.save(tmp_path)
    assert found.save(tmp_path / "other").read_text().startswith("<!DOCTYPE html>")
    ns.audit(TINY, out=tmp_path / "other", seed=5, **SMALL)  # an earlier audit's files are ours


def test_markup_in_names_is_text(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(_plots, "BLOCKS", BLOCKS[:1])
    page = ns.audit(TINY.replace(name="<b>&"), **SMALL).save(tmp_path).read_text()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page.replace("<b>&amp;", "")


def test_any_name_can_be_drawn(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(_plots, "BLOCKS", BLOCKS[:1])
    names = ("$\\frac{1}$ _", "_hidden", "模型", "x" * 500, "a, b=1", "_")
    request = Request(tuple(TINY.replace(name=name) for name in names), widths="actual", gradients=False, **SMALL)
    drawn = ns.audit(TINY, widths="actual", gradients=False, **SMALL).actual  # a name is nothing to its draws
    audits = [Audit([LengthResult(request, model, 3, drawn, None)]) for model in request.models]
    page = Comparison(audits).save(tmp_path).read_text()
    assert all(name in page for name in names)
    assert page.count("<svg") == 2  # in the summary and in its section


def test_the_quantities_are_those_of_the_models():
    """Every name of the probes has its words, and no words are left over."""
    model = ns.models.read("t5-base").replace(layers=1, decoder_layers=1, gated=True)
    names = set(model.probes(tokens=2, gradients=True).names)
    final = set(TINY.replace(tied=False).probes(tokens=2, gradients=True).final)
    fused = {"grad_qkv", "grad_qkv_ratio"}  # of PyTorch modules alone
    assert names | final == set(EVERY) - {group.name for group in (*TOGETHER, *ROUTING)} - fused


def test_models_without_logits_have_no_loss(inline, unillustrated, tmp_path):
    audit = ns.audit(TINY.replace(vocabulary=None), out=tmp_path, **SMALL)
    assert audit.as_dict()["final"] == {"logit_std": None, "loss": None, "max_probability": None}
    assert "the model has no logits" in audit.table()
    assert {f.name: f.verdict for f in audit.findings}["loss"] == NOT_APPLICABLE


def test_only_the_limit(inline):
    audit = ns.audit(TINY, widths="inf", **SMALL)
    assert audit.actual is None
    assert audit.as_dict()["widths"] == "inf"
    assert audit.as_dict()["status"] == "conjectured"
    assert "limit" not in audit.as_dict()


def test_two_models_of_one_name_are_told_apart():
    for others, reported in (
        ([TINY.replace(std_q=0.5, tied=False)], [", tied=False, std_q=0.5"]),
        ([TINY, TINY], [", again", ", again, again"]),
    ):
        request = Request((TINY, *others), widths="actual", **SMALL)
        assert [model.name for model in request.models] == [TINY.name, *(f"{TINY.name}{words}" for words in reported)]


WRONG = [
    ({"tokens": 0}, "tokens=0 must be"), ({"tokens": 1}, "tokens=1 must be 2 or more"), ({"tokens": 17}, "tokens=17"),
    ({"draws": 14}, "draws=14 must be an integer, 15 or more: fewer"),
    ({"widths": "real"}, "widths='real' must be 'actual', 'inf'"),
    ({"ids": [1, 40]}, "ids=40"), ({"ids": []}, "two or more: an audit"), ({"ids": [1, -1]}, "ids=-1 must be"),
    ({"out": ""}, "out=''"),
    ({"workers": 0}, "workers=0 must be"), ({"seed": -1}, "seed=-1 must be"),
    ({"compare": "nothing"}, "must be the path of a file"),
    ({"tokens": 10**9}, "tokens=1000000000"), ({"ids": [1, 2.5]}, "ids=2.5 must be"),
    ({"ids": 5}, "ids=5 must be a sequence"), ({"tokens": [3, 3]}, "tokens=[3, 3] must be one length or more"),
    ({"tokens": []}, "tokens=[] must be one length or more"), ({"quick": 1}, "quick=1 must be True or False"),
    ({"ids": [1, 2], "tokens": 3}, "ids and tokens cannot be combined"),
    ({"sweep": {"std": [0.1]}}, "sweep={'std': [0.1]} must be over two numbers or more"),
    ({"sweep": {"std": "ab"}}, "sweep={'std': 'ab'} must be over two numbers or more"),
    ({"sweep": {"std": [0.1, 0.2], "eps": [1, 2]}}, "must be one field and its values"),
    ({"sweep": {"std": [0.1, 0.2]}, "compare": TINY}, "sweep and compare cannot be combined"),
    ({"sweep": {"stdd": [0.1, 0.2]}}, "stdd is not a field"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_wrong_arguments_are_named(given, said, inline):
    with pytest.raises(ValueError, match=r".") as error:
        ns.audit(TINY, **{**({"draws": 40} if "ids" in given else SMALL), **given})
    assert said in str(error.value)
    assert "functools" not in str(error.value)


def test_what_does_not_fit_is_refused(inline, monkeypatch):
    monkeypatch.setattr("netsor.engine._memory.memory", lambda: 2.0**27)
    with pytest.raises(ValueError, match=r"3 tokens on 1 worker would need 16\d MiB of memory, and there are 128 MiB"):
        ns.audit(TINY, workers=1, **SMALL)
    with pytest.raises(ValueError, match=r"layers=5000 must be at most 2000 for an audit of gpt2"):
        ns.audit(TINY.replace(layers=5000), **SMALL)


def test_workers_have_room_for_the_draws_that_are_computed_together(monkeypatch):
    """Two dozen of GPT-2 with gradients take 0.5 GiB, which was not counted: twice what one takes is less."""
    request = Request((TINY,), tokens=16, draws=64, workers=1, widths="actual")
    (subject,) = request.subjects
    for name in ("engine._draw_cost.BASE", "engine._draw_cost.MIN_DRAW_BYTES", "studies.audit.COPIES"):
        monkeypatch.setattr(f"netsor.{name}", 0.0)
    together = min(block_of(subject.plan), 64)
    assert together > 2
    plan, planning = subject.plan, subject.draw.planning_bytes
    found = AuditStudy(request).estimate()
    assert found.workers == 1
    assert found.bytes == planning + 1.25 * together * plan.bytes


def test_heads_with_rotary_positions_keep_their_dimension_at_infinite_width():
    """The limit costs no more than the model itself, and has gradients unless the input is long."""
    model = ns.models.read("llama-3-8b").replace(layers=1)
    own, limit = (AuditCase(model, 64, None, infinite) for infinite in (False, True))
    assert limit.widths == {"n": math.inf, "d": 128, "m": math.inf}
    assert limit.plan.seconds(100) < own.plan.seconds(100)
    assert AuditCase(model, 2, None, True, gradients=True).plan.steps
    assert set(AuditCase(TINY, 3, None, True).widths.values()) == {math.inf}
    long = Request((model,), tokens=64, gradients=True)
    assert "take at most 32 tokens" in long.no_gradients[model]
    assert [case.gradients for case in long.subjects] == [True, False]


@pytest.mark.parametrize(("tokens", "head_dim"), [(128, math.inf), (192, 64)])
def test_a_limit_of_a_long_input_costs_no_more_than_the_model(tokens, head_dim):
    model = ns.models.read("gpt2").replace(layers=2)
    own, limit = (AuditCase(model, tokens, None, infinite) for infinite in (False, True))
    assert limit.widths == {"n": math.inf, "d": head_dim, "m": math.inf}
    assert limit.plan.seconds(100) < own.plan.seconds(100)
