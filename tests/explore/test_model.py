"""One model without a browser: what is changed in it, what is seen, a second model, and
several lengths.
"""

import json
import math
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    AT,
    LIMIT,
    AuditTask,
    AuditViewRequest,
    NamedProgram,
    Variant,
    _audit_view,
    _process_pool,
    lengths,
    model_request,
    program_audit,
)
from tests.internals import AuditDraws as Draws

SMALL = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 16,
}
n = ns.Width("n")


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_audit_view, "_kept", {})
    # the same numbers, sooner
    monkeypatch.setattr(_process_pool, "Workers", ThreadPoolExecutor)


@pytest.fixture
def small(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return Variant("config.json")


def last(request, *tell):
    return [*request.views(*tell)][-1]


def changes(variant):
    return {name: value for name, value in variant.changes.items() if name != "name"}


def test_variant_changes_keep_depth_scaling():
    """Another std keeps depth scaling, which is switched by itself; a recipe comes
    before what is changed in it.
    """
    own = ns.models.read("gpt2")
    down = 1 / math.sqrt(2 * 12)
    assert changes(Variant()) == {}
    assert Variant().model == own
    other = Variant(std=0.01).model
    assert (other.name, other.std_q, other.std_in, other.std_embedding) == (
        "gpt2, std=0.01",
        0.01,
        0.01,
        0.01,
    )
    assert other.std_o / other.std_v == pytest.approx(own.std_o / own.std_v, rel=1e-12)
    assert other.std_out == pytest.approx(0.01 * down, rel=1e-12)
    assert changes(Variant(depth="off")) == {"std_o": 0.02, "std_out": 0.02}
    assert changes(Variant(std=0.01, depth="off")) == {"std": 0.01}
    assert changes(Variant("llama-3-8b")) == {}
    on = Variant("llama-3-8b", depth="on").model
    assert on.std_o == pytest.approx(on.std_v / 8, rel=1e-12)  # 32 blocks
    assert Variant("qwen3-8b", qk_norm="off").model.qk_norm is False
    assert changes(Variant(qk_norm="on")) == {"qk_norm": True}
    drawn = Variant(recipe="ntk", fields="layers=3, gated=true")
    assert changes(drawn) == {"layers": 3, "gated": True}
    assert drawn.model.name == "gpt2, recipe=ntk, layers=3, gated=true"
    assert drawn.model.std_q == ns.models.recipe(own, "ntk").std_q
    assert eval(drawn.code) == drawn.model


def test_lengths_are_parsed_from_text():
    assert lengths("") is None
    assert lengths(" 16, 128,") == (16, 128)
    with pytest.raises(
        ValueError, match="tokens '16;2' must be a whole number, or several with commas"
    ):
        lengths("16;2")


def test_audit_code_reproduces_curves(small, capsys):
    """One model with its limit: every curve and number is that of the audit, from the
    embedding on.
    """
    view = last(model_request(small, tokens=(3,), limit=True))
    made = {}
    exec(view.code, made)
    found = made["found"]
    assert len(view.panels) == 9
    square = next(
        panel for panel in view.panels if panel.title == "mean square of the stream"
    )
    at, limit = square.curves
    assert np.array_equal(at.y, found["mean_square"].median)
    assert np.array_equal(at.band[0], found["mean_square"].low)
    assert np.array_equal(limit.y[1:], np.median(found.limit["mean_square"], axis=0))
    assert list(at.x) == [0.0, 1.0, 2.0]
    assert np.array_equal(view.result.actual["loss"], found.actual["loss"])
    assert np.array_equal(view.result.limit["loss"], found.limit["loss"])
    assert [at.label, limit.label] == [AT, LIMIT]
    assert view.result.findings == found.findings
    assert "mean square of the stream" in capsys.readouterr().out


@pytest.mark.slow
def test_audit_code_reproduces_gradient_curves(small):
    view = last(
        model_request(replace(small, std=0.1), tokens=(3,), limit=True, gradients=True)
    )
    made = {}
    exec(view.code, made)
    assert len(view.panels) == 9 + 13
    panel = next(panel for panel in view.panels if panel.title == "gradient², query")
    (at,) = panel.curves
    assert np.array_equal(at.y, np.median(made["found"].actual["grad_query"], axis=0))
    assert "grad_query" not in made["found"].limit
    assert np.array_equal(
        view.result.actual["grad_embedding"], made["found"].actual["grad_embedding"]
    )


@pytest.mark.slow
def test_audit_view_of_two_models_and_two_lengths(small):
    """First the one at the first length, then both, then all lengths; the text is that
    of the comparison.
    """
    model = model_request(small, replace(small, std=1.0, depth="off"), tokens=(3, 6))
    views = [*model.views()]
    shapes = [
        [(a.model.name, [f.tokens for f in a.lengths]) for a in v.result.audits]
        for v in views
    ]
    own, other = (model.name for model in model.models)
    assert shapes == [
        [(own, [3])],
        [(own, [3]), (other, [3])],
        [(own, [3, 6]), (other, [3, 6])],
    ]
    made = {}
    exec(views[-1].code, made)
    found = made["found"]
    assert [audit.findings for audit in views[-1].result.audits] == [
        audit.findings for audit in found.audits
    ]
    assert found.preferred == own
    assert [(c.label, c.look) for c in views[-1].panels[0].curves] == [
        (own, "band"),
        ("std=1, depth scaling off", "second"),
    ]
    page = ET.fromstring(views[-1].result._repr_html_())
    text = "".join(page.itertext())
    assert (
        text.index("Prefer “")
        < text.index("Rules that separate them")
        < text.index("Fields that differ")
    )
    status = [
        row
        for row in page.iter("tr")
        if row.find("td") is not None and row.find("td").text == "entropy"
    ]
    assert [cell.findtext("span") for cell in status[-1].findall("td")][1:] == [
        audit.finding("entropy").verdict for audit in found.audits
    ]
    assert found.audits[1].finding("entropy").reason in text


def test_kept_draws_are_not_repeated(small, monkeypatch):
    """A second model leaves the draws of the first as they are."""
    done = []
    run = AuditTask.run
    monkeypatch.setattr(
        AuditTask,
        "run",
        lambda task, progress: done.append(task) or run(task, progress),
    )
    last(model_request(small, tokens=(3,)))
    last(model_request(small, replace(small, std=0.1), tokens=(3,)))
    assert [part.case.model.name for part in done] == [
        small.model.name,
        replace(small, std=0.1).model.name,
    ]


def test_progress_is_reported_for_each_step(small):
    """In seconds, of each step; what it raises ends the work."""
    calls = []
    last(
        model_request(small, tokens=(2,), limit=True),
        lambda done, total: calls.append((done, total)),
    )
    ends = [(done, total) for done, total in calls if done == total]
    assert len(ends) == 2
    assert all(0 <= done <= total * (1 + 1e-12) for done, total in calls)

    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        last(model_request(small, tokens=(2,)), stop)


def test_default_length_is_the_longest_quick_one(small):
    """16, or as many as there are positions for; fewer of a large model. What is given
    is taken.
    """
    gpt3 = ns.models.read("gpt3-175b")
    assert AuditViewRequest((small.model,)).lengths == (16,)
    assert AuditViewRequest((small.model.replace(length=9),)).lengths == (8,)
    assert AuditViewRequest((gpt3,)).lengths[0] < 8
    assert AuditViewRequest((gpt3,), tokens=(5,)).lengths == (5,)


def test_slow_steps_are_left_out_with_a_note(small, monkeypatch):
    """More lengths come when they are affordable; else the page says what they would
    take.
    """
    monkeypatch.setattr(_audit_view, "LATER", 0.0)
    (view, again) = model_request(small, tokens=(3, 6)).views()
    assert again.result is view.result
    assert f"{small.model.name} at 3 and 6 tokens would take about" in again.notes[-1]
    assert "tokens=[3, 6]" in again.code
    with pytest.raises(
        ValueError, match=r"about \d+ \w+, too long for a page: choose fewer tokens"
    ):
        last(model_request(Variant("llama-3-405b"), tokens=(128,)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "gpt5"}, "the name of a built-in model"),
        ({"std": -1.0}, "std=-1.0"),
        ({"tokens": (1,)}, "must be 2 or more"),
        ({"recipe": "none"}, "recipe='none' must be one of"),
        ({"fields": "colour=red"}, "colour"),
        ({"tokens": (4, 4)}, "each once"),
    ],
)
def test_audit_view_rejects_wrong_values(given, words):
    tokens = given.pop("tokens", None)
    with pytest.raises(ValueError, match=words):
        last(model_request(Variant(**given), tokens=tokens))


def test_audit_view_rejects_what_the_command_rejects(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ns.models.Probes, "_build", lambda *_, **__: pytest.fail("it is begun")
    )
    for change, said in (
        (
            {"n_layer": 10**9},
            "layers=1000000000 must be at most 2000 for an audit of large",
        ),
        ({"n_head": 10**9, "n_embd": 10**9}, "would need"),
    ):
        (tmp_path / "large.json").write_text(json.dumps({**SMALL, **change}))
        with pytest.raises(ValueError, match=said):
            last(model_request(Variant("large.json"), tokens=(4,), limit=True))


@ns.program
def net(tokens=3, sigma=1.0):
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    for _ in range(2):
        x = ns.probe("stream", x + ns.nn.attention(x, heads=2, sigma_o=sigma))
    return x


def test_missing_medians_are_named(monkeypatch):
    """They are gaps in a curve, and change no axis."""
    band = Draws.band

    def gap(self, name):
        found = band(self, name)
        found.median[1] = np.nan if name == "mean_square" else found.median[1]
        return found

    monkeypatch.setattr(Draws, "band", gap)
    (view,) = program_audit(NamedProgram("x", "net", net), {}, {"n": 16}).views()
    assert [note for note in view.notes if "no number" in note] == [
        "mean square of the stream, at its widths: no number in block 1"
    ]
    assert not view.panels[0].log
    assert np.isfinite(view.panels[0].reach()).all()


def test_audit_view_of_program_with_probes():
    """Its audit, at finite widths."""
    target = NamedProgram("x", "net", net)
    (view,) = program_audit(target, {"sigma": 2.0}, {"n": 16}).views()
    found = ns.audit(net(sigma=2.0), n=16, quick=True)
    assert view.result.findings == found.findings
    assert np.array_equal(view.panels[0].curves[0].y, found["mean_square"].median)
    assert "net = net(sigma=2.0)\nfound = ns.audit(net, n=16, quick=True)" in view.code
    with pytest.raises(ValueError, match="width n is ∞: an audit needs finite widths"):
        program_audit(target, {}, {"n": ns.inf})
