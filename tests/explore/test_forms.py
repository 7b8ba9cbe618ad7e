"""The page: what its forms say, the answers to them, and code on a page; all without a
browser.
"""

import inspect
import json
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest

import netsor as ns
from tests.internals import NamedProgram, Variant, _forms, model_request
from tests.internals import _browser_cells as cells

SMALL = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 8,
}


class Controls(HTMLParser):
    """The values of a form that nobody has touched, as the script of the page reads
    them.
    """

    def __init__(self, text):
        super().__init__()
        self.values = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        name = given.get("name")
        if given.get("type") == "range":
            number = json.loads(given["value"])
            self.values[name] = (
                json.loads(given["data-choices"])[number][0]
                if "data-choices" in given
                else number
            )
        elif given.get("type") == "checkbox":
            self.values[name] = "checked" in given
        elif given.get("type") == "radio":
            pass
        elif tag == "select":
            self.select = name
        elif tag == "option" and "selected" in given:
            self.values[self.select] = json.loads(given["value"])
        elif name:
            self.values[name] = ""


def asked(module, kind, content):
    found = []
    module.answer(
        kind,
        content if isinstance(content, str) else json.dumps(content),
        lambda *part: found.append(part),
    )
    return found


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    plt.close("all")  # figures that other tests left open would be shown
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cells, "_names", {"__name__": "__main__"})


def test_forms_start_with_defaults():
    said = _forms.layer_of(Controls(_forms.form("layer")).values)
    layer = inspect.signature(ns.paper.layer).parameters
    assert said.pop("head_dim") is None
    assert said.pop("draws") is None
    assert {
        **said,
        **{name: layer[name].default for name in said if name in layer},
    } == {**said, "heads": 2}
    assert {name: said[name] for name in _forms.START} == _forms.START
    assert _forms.model_of(Controls(_forms.form("model")).values) == model_request(
        Variant()
    )


def test_form_with_selected_controls():
    assert Controls(_forms.form("layer", ("heads", "width"))).values == _forms.START
    assert set(Controls(_forms.form("model", ("name", "config"))).values) == {
        "name",
        "config",
    }


@ns.program
def watched(tokens=3, sigma=1.0):
    x = ns.probe("embedding", ns.gaussian(ns.Width("n"), tokens))
    return ns.probe("stream", x + ns.nn.attention(x, heads=2, sigma_o=sigma))


def test_forms_of_program():
    """They begin with its defaults, and its law and its audit answer them."""
    calls = []
    target = NamedProgram(
        "x",
        "watched",
        lambda tokens=3, sigma=1.0: calls.append(tokens) or watched(tokens, sigma),
    )
    said = Controls(_forms.form("program", target=target)).values
    assert said.pop("distances")
    assert said == {
        "argument tokens": 3,
        "argument sigma": 1.0,
        "width n": 256,
        "output": "",
        "draws": None,
    }
    said |= {"distances": True, "width n": 16, "draws": 200}
    found = []
    calls.clear()
    _forms.answer(
        "program",
        json.dumps(said),
        lambda *part: found.append(part),
        target,
        lambda _, name: f"<i>{name}</i>",
    )
    assert calls == [3]  # the function runs once for each answer
    assert [what for what, _ in found] == ["html", "html"]
    assert "<i>program</i>" in found[1][1]
    assert "KL to the limit" in found[1][1]
    said = Controls(_forms.form("audit", target=target)).values
    found = []
    _forms.answer(
        "audit",
        json.dumps({**said, "width n": 16}),
        lambda *part: found.append(part),
        target,
    )
    assert "mean square of the stream" in found[-1][1]
    said["argument tokens"] = -1
    found = []
    _forms.answer("audit", json.dumps(said), lambda *part: found.append(part), target)
    assert [what for what, _ in found] == ["error"]


def test_local_page_has_one_form_per_view(fresh, tmp_path):
    """A view for each form; a program without probes has no audit."""
    assert re.findall('data-view="(.*?)"', _forms.local_page(None)) == [
        "One layer",
        "One model",
    ]
    bare = NamedProgram("x", "bare", ns.program(lambda: ns.gaussian(ns.Width("n"))))
    assert re.findall('data-view="(.*?)"', _forms.local_page(bare))[2:] == [
        "Your program"
    ]
    page = _forms.local_page(NamedProgram("x", "watched", watched))
    assert re.findall('data-view="(.*?)"', page)[2:] == ["Your program", "Its audit"]
    values = Controls(_forms.form("model", local=True)).values
    assert _forms.model_of(values) == model_request(Variant())
    (tmp_path / "mine.json").write_text(json.dumps(SMALL))
    assert _forms.model_of({**values, "path": " mine.json "}) == model_request(
        Variant("mine.json")
    )
    found = _forms.model_of(
        {**values, "second_path": "mine.json", "sharp": True, "second_std": 0.1}
    )
    assert found == model_request(Variant(), Variant("mine.json", std=0.1), sharp=True)


def test_form_values_become_arguments(fresh):
    said = {"width": "inf", "token": 3, "sigma_q": 0.5, "distances": True}
    assert _forms.layer_of(said) == {"width": ns.inf, "token": 2, "sigma_q": 0.5}
    said = {
        "name": "gpt2",
        "config": json.dumps(SMALL),
        "tokens": "4, 8",
        "second_name": _forms.SAME,
    }
    found = _forms.model_of({**said, "second_fields": "heads=4", "gradients": True})
    assert found.models == (
        Variant("config.json").model,
        Variant("config.json", fields="heads=4").model,
    )
    assert found.models[0].width == 16
    assert (found.tokens, found.gradients) == ((4, 8), True)


def test_answer_of_layer_form():
    (_, first), (what, page) = asked(
        _forms, "layer", {"heads": 2, "width": 16, "draws": 200, "distances": True}
    )
    assert what == "html"
    assert "KL …" in first
    law = ns.paper.layer(heads=2).law(n=16, draws=200)
    assert f'data-value="{law.var()!r}"' in page
    assert "KL to the limit" in page
    assert "KL" not in re.sub(
        "ns.kl.*",
        "",
        asked(_forms, "layer", {"heads": 2, "width": 16, "draws": 200})[0][1],
    )


def test_answer_of_wrong_value_is_error():
    assert asked(_forms, "layer", {"width": 16, "head_dim": 64}) == [
        ("error", "head dimension 64 must be at most the width 16")
    ]


def test_answer_of_model_form_has_progress(fresh):
    found = asked(
        _forms, "model", {"name": "gpt2", "config": json.dumps(SMALL), "tokens": "4"}
    )
    assert {what for what, _ in found} == {"progress", "html"}
    audit = ns.audit(SMALL, tokens=4, quick=True, workers=1, progress=False)
    assert re.search(
        rf"loss of the first step.*?<td[^>]*>{audit['loss'].median:.4g} \(",
        found[-1][1],
        re.DOTALL,
    )


def test_cells_share_names_and_show_last_value(fresh):
    assert asked(cells, "python", "x = 2\nprint('a', x)") == [
        ("text", "a"),
        ("text", " "),
        ("text", "2"),
        ("text", "\n"),
    ]
    assert asked(cells, "python", "x + 1") == [("text", "3\n")]
    ((what, page),) = asked(cells, "python", "import netsor as ns\nns.paper.layer()")
    assert what == "html"
    assert "layer" in page


def test_cell_error_names_its_line(fresh):
    assert asked(cells, "python", "x = 1\nx / 0") == [
        ("error", "line 2: x / 0\nZeroDivisionError: division by zero")
    ]
    assert asked(cells, "python", "x =")[0][1].endswith("SyntaxError: invalid syntax")
    assert asked(cells, "python", "raise SystemExit(3)")[0][1].endswith("SystemExit: 3")


def test_cell_figures_are_shown_and_closed(fresh, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = asked(
        cells, "python", "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])"
    )
    assert [what for what, _ in found] == ["image"]
    assert asked(cells, "python", "plt.get_fignums()") == [("text", "[]\n")]


def test_cell_runs_shell_commands(fresh, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pytest"])
    found = asked(
        cells, "sh", "pip install .\nnetsor law --heads 2 --at 0.5   # a remark"
    )
    text = "".join(content for _, content in found)
    assert "excess kurtosis  0.121659" in text
    assert "pip" not in text


def test_error_in_a_function_of_an_earlier_block_shows_its_line(fresh):
    assert asked(cells, "python", "def inverse(x):\n    return 1 / x") == []
    ((kind, content),) = asked(cells, "python", "y = 2\ninverse(0)")
    assert kind == "error"
    assert content.startswith("earlier block, line 2: return 1 / x\n")
