"""The page without a server: what its forms say, their answers, and code on a page; all without a browser."""

import json
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest

import netsor as ns
from netsor import _browser_cells as cells
from netsor.explore import _static
from netsor.explore._audit_view import Model, Variant
from netsor.explore._law_views import Layer

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 30, "n_positions": 8}


class Controls(HTMLParser):
    """The values of a form that nobody has touched, as the script of the page reads them."""

    def __init__(self, text):
        super().__init__()
        self.values = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        name = given.get("name")
        if given.get("type") == "range":
            self.values[name] = json.loads(given["data-choices"])[int(given["value"])][0]
        elif given.get("type") == "checkbox":
            self.values[name] = False
        elif tag == "select":
            self.select = name
        elif tag == "option" and "selected" in given:
            self.values[self.select] = json.loads(given["value"])
        elif name:
            self.values[name] = ""


def asked(module, kind, content):
    found = []
    module.answer(kind, content if isinstance(content, str) else json.dumps(content), lambda *part: found.append(part))
    return found


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    plt.close("all")  # figures that other tests left open would be shown
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cells, "_names", {"__name__": "__main__"})


def test_forms_begin_with_the_defaults():
    assert _static.layer_of(Controls(_static.layer_form()).values) == Layer(heads=1, width=16)
    assert _static.model_of(Controls(_static.model_form()).values) == Model()


def test_forms_with_some_controls():
    assert Controls(_static.layer_form(("heads", "width"))).values == _static.START
    assert set(Controls(_static.model_form(("name", "config"))).values) == {"name", "config"}


def test_what_forms_say(fresh):
    assert _static.layer_of({"width": "inf", "token": 3, "sigma_q": 0.5}) == Layer(width=ns.inf, token=2, sigma_q=0.5)
    said = {"name": "gpt2", "config": json.dumps(SMALL), "tokens": "4, 8", "second": _static.SAME}
    found = _static.model_of({**said, "second_fields": "heads=4", "gradients": True})
    assert found.first.model.width == 16
    assert found.second == Variant("config.json", fields="heads=4")
    assert (found.tokens, found.gradients) == ((4, 8), True)


def test_a_layer():
    ((what, page),) = asked(_static, "layer", {"heads": 3, "width": 16, "draws": 500, "distances": True})
    assert what == "html"
    law = ns.paper.layer(heads=3).law(n=16, draws=500)
    assert f'data-value="{law.var()!r}"' in page
    assert "KL to the limit" in page
    assert "KL" not in re.sub("ns.kl.*", "", asked(_static, "layer", {"heads": 3, "width": 16, "draws": 500})[0][1])


def test_a_wrong_value_is_an_error():
    assert asked(_static, "layer", {"width": 16, "head_dim": 64}) == [
        ("error", "head dimension 64 must be at most the width 16")
    ]


def test_a_model_as_it_goes_on(fresh):
    found = asked(_static, "model", {"name": "gpt2", "config": json.dumps(SMALL), "tokens": "4"})
    assert {what for what, _ in found} == {"progress", "html"}
    audit = ns.audit(SMALL, tokens=4, quick=True, workers=1, progress=False)
    assert f'data-value="{float(audit["loss"].median)!r}"' in found[-1][1]


def test_blocks_share_their_names_and_show_their_last_value(fresh):
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


def test_an_error_names_its_line(fresh):
    assert asked(cells, "python", "x = 1\nx / 0") == [("error", "line 2: x / 0\nZeroDivisionError: division by zero")]
    assert asked(cells, "python", "x =")[0][1].endswith("SyntaxError: invalid syntax")
    assert asked(cells, "python", "raise SystemExit(3)")[0][1].endswith("SystemExit: 3")


def test_figures_are_shown_and_closed(fresh, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = asked(cells, "python", "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])")
    assert [what for what, _ in found] == ["image"]
    assert asked(cells, "python", "plt.get_fignums()") == [("text", "[]\n")]


def test_commands_of_a_shell(fresh, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pytest"])
    found = asked(cells, "sh", "pip install .\nnetsor law --heads 2 --at 0.5   # a remark")
    text = "".join(content for _, content in found)
    assert "excess kurtosis  0.121659" in text
    assert "pip" not in text
