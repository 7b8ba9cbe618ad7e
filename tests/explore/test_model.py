"""One model without a browser: what is changed in it, and what is seen."""

import json
import math

import numpy as np
import pytest

import netsor as ns
from netsor.explore._model import AT, LIMIT, Model

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30, "n_positions": 8}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return str(tmp_path / "config.json")


def test_changes():
    """Another std keeps depth scaling, which is switched by itself."""
    own = ns.models.read("gpt2")
    down = 1 / math.sqrt(2 * 12)
    assert Model().changes == {}
    assert Model().model == own
    other = Model(std=0.01).model
    assert (other.std_q, other.std_in, other.std_embedding) == (0.01, 0.01, 0.01)
    assert other.std_o / other.std_v == pytest.approx(own.std_o / own.std_v, rel=1e-12)
    assert other.std_out == pytest.approx(0.01 * down, rel=1e-12)
    assert Model(depth="off").changes == {"std_o": 0.02, "std_out": 0.02}
    assert Model(std=0.01, depth="off").changes == {"std": 0.01}
    assert Model("llama-3-8b").changes == {}
    on = Model("llama-3-8b", depth="on").model
    assert on.std_o == pytest.approx(on.std_v / 8, rel=1e-12)  # 32 blocks
    assert Model("qwen3-8b", qk_norm="off").model.qk_norm is False
    assert Model(qk_norm="on").changes == {"qk_norm": True}


def test_the_code_makes_the_curves(source, capsys):
    view = Model(source, std=0.1, tokens=3, limit=True, draws=20).view()
    made = {}
    exec(view.code, made)
    titles = [panel.title for panel in view.panels]
    assert len(titles) == len(made["probes"].names) == 9
    square = next(panel for panel in view.panels if panel.title == "mean square of the stream")
    at, limit = square.curves
    assert np.array_equal(at.y, np.median(made["found"]["mean_square"], axis=0))
    assert np.array_equal(at.low, np.quantile(made["found"]["mean_square"], 0.05, axis=0))
    assert np.array_equal(limit.y, np.median(made["limit"]["mean_square"], axis=0))
    assert list(at.x) == [1.0, 2.0]
    loss = view.rows["loss of the first step"]
    assert loss[AT].value == np.median(made["found"]["loss"])
    assert loss[LIMIT].high == np.quantile(made["limit"]["loss"], 0.95)
    assert view.rows["status"] == {AT: "exact", LIMIT: "conjectured"}
    assert "mean_square" in capsys.readouterr().out


def test_the_code_makes_the_backward_curves(source, capsys):
    view = Model(source, std=0.1, tokens=3, limit=True, gradients=True, draws=12).view()
    made = {}
    exec(view.code, made)
    assert len(view.panels) == len(made["probes"].names) == 9 + 13
    panel = next(panel for panel in view.panels if panel.title == "gradient², query")
    (at,) = panel.curves
    assert np.array_equal(at.y, np.median(made["found"]["grad_query"], axis=0))
    assert "grad_query" not in made["limit"]
    assert view.rows["gradient², embedding"][AT].value == np.median(made["found"]["grad_embedding"])


def test_progress(source):
    """It is that of both widths together, and what it raises ends the work."""
    calls = []
    Model(source, tokens=2, limit=True, draws=15).view(lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (30, 30)

    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        Model(source, tokens=2, draws=15).view(stop)


@pytest.mark.parametrize(
    ("model", "words"),
    [(Model("gpt5"), "no file, and none of the models that ship"), (Model(std=-1.0), "std=-1.0"),
     (Model(tokens=1), "two tokens or more")],
)  # fmt: skip
def test_a_wrong_value_is_told(model, words):
    with pytest.raises(ValueError, match=words):
        model.view()


def test_what_the_command_refuses_is_refused_here(tmp_path, monkeypatch):
    monkeypatch.setattr(ns.models.Transformer, "probes", lambda *_, **__: pytest.fail("it is begun"))
    for change, said in (
        ({"n_layer": 10**9}, "layers=1000000000 of large must be at most 2000"),
        ({"n_head": 10**9, "n_embd": 10**9}, "would need"),
        ({"n_layer": 1500}, "s to plan, too long for a page"),
    ):
        (tmp_path / "large.json").write_text(json.dumps({**SMALL, **change}))
        with pytest.raises(ValueError, match=said):
            Model(str(tmp_path / "large.json"), limit=True).view()
