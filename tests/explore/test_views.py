"""Views without a browser: settings in; pictures, numbers and code out."""

import itertools
import sys
import types
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    Draw,
    NamedProgram,
    Panel,
    Slider,
    _law_views,
    _memory,
    as_csv,
    as_file,
    as_svg,
    decades,
    error_text,
    layer_view,
    markup,
    program_view,
    sliders,
    ticks,
)
from tests.internals import ViewCurve as Curve

from ..keep import keep

LAYERS = [
    {},
    {"width": ns.inf},
    {
        "width": 64,
        "head_dim": 16,
        "tokens": 3,
        "heads": 5,
        "mask": "causal",
        "token": 1,
        "sigma_q": 2.0,
        "sigma_w": 0.5,
    },
    {"scaling": "linear", "activation": "relu", "width": 32, "tokens": 2},
    {"tokens": 1, "heads": 1, "clip": 0.5, "draws": 300},
]
FURTHER = [
    {"width": 64, "head_dim": 16, "tokens": 3, "heads": 5},
    {"width": ns.inf, "head_dim": 16},
    {"scaling": "linear"},
    {"activation": "relu", "width": 32, "tokens": 2},
    {"mask": "causal", "token": 2, "sigma_q": 2.0, "sigma_w": 0.5},
]
n, m = ns.Width("n"), ns.Width("m")


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the code writes a picture


def run(code):
    made = {}
    exec(code, made)
    return made


def values(row):
    return [number.value for number in row.values() if isinstance(number, ns.Estimate)]


@pytest.mark.parametrize("layer", keep([*LAYERS, *FURTHER], LAYERS[1]), ids=str)
def test_layer_code_reproduces_numbers(layer, capsys):
    view = layer_view(**layer)
    made = run(view.code)
    laws = [made[name] for name in ("law", "limit", "gaussian") if name in made]
    assert ("law" in made) == (layer != LAYERS[1])
    assert values(view.rows["variance"]) == [law.var() for law in laws]
    assert values(view.rows["excess kurtosis"]) == [law.kurtosis() for law in laws[:-1]]
    far = [number for row in view.more().values() for number in values(row)]
    assert far == [ns.kl(one, other).value for one, other in itertools.pairwise(laws)]
    assert str(view.rows["status"]).count("'") >= 4
    printed = capsys.readouterr().out
    assert str(laws[0].with_error.kurtosis()) in printed


@pytest.mark.parametrize("heads", [3, 2])
@pytest.mark.slow
def test_panel_contains_densities_of_laws(heads):
    """Densities above; below, the difference from the limit; in the file, every
    number.
    """
    view = layer_view(heads=heads)
    net = ns.paper.layer(heads=heads)
    law, limit = net.law(n=256, draws=5_000), net.law(n=ns.inf)
    top, bottom = view.panels
    y = top.curves[0].x
    value, error = law.with_error.pdf(y)
    assert np.array_equal(top.curves[0].y, value)
    assert np.array_equal(top.curves[0].band[1], value + error)
    assert np.array_equal(bottom.curves[0].y, value - limit.pdf(y))
    assert np.array_equal(top.curves[2].y, limit.infinite_heads().pdf(y))
    rows = as_csv(view.panels).decode().splitlines()
    assert len(rows) == 1 + 6 * len(y)
    assert (
        rows[1]
        == f"density,n = 256,{y[0]!r},{value[0]!r},{value[0] - error[0]!r},{value[0] + error[0]!r}".replace(
            "np.float64(", ""
        ).replace(")", "")
    )
    assert as_file(view.panels, "png").startswith(b"\x89PNG")
    assert as_file(view.panels, "pdf").startswith(b"%PDF")


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_layer_view_scales_with_sigma_v(scale):
    """The same picture, whatever the unit."""
    one, other = layer_view(width=64), layer_view(width=64, sigma_v=scale)
    ratio = values(other.rows["variance"])[0] / values(one.rows["variance"])[0]
    assert ratio == pytest.approx(scale**2, rel=1e-9)
    assert values(other.rows["excess kurtosis"])[0] == pytest.approx(
        values(one.rows["excess kurtosis"])[0], rel=1e-9
    )
    for view in (one, other):
        ET.fromstring(f"<div>{as_svg(view.panels)}</div>")


def test_note_names_heads_that_make_law_gaussian():
    """The note says from which number of heads on the kurtosis of the limit is below
    0.01: true, and the least.
    """
    assert "from 25 heads on" in " ".join(layer_view().notes)
    kurtosis = [ns.paper.layer(heads=h).law(n=ns.inf).kurtosis() for h in (24, 25)]
    assert kurtosis[0] >= 0.01 > kurtosis[1]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"head_dim": 512}, "head dimension 512 must be at most the width 256"),
        ({"tokens": 2, "token": 5}, "token=5 must be an integer from -2 to 1"),
        ({"sigma_q": float("nan")}, "sigma_q"),
        ({"activation": "swish"}, "activation"),
        ({"width": 2**40, "activation": "tanh"}, "bytes"),
    ],
)
def test_layer_view_rejects_wrong_values(layer, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        layer_view(**layer)
    assert "\n" not in error_text(caught.value)


def test_afford_chooses_quick_number_of_draws(monkeypatch):
    """As many as the plan says are quick, and a note if they are few; those asked for
    are given.
    """
    plan = ns.paper.layer(activation="relu").plan(n=4096)
    draws, note = _law_views.afford([plan], None)
    assert draws in _law_views.DRAWS[1:]
    assert plan.seconds(draws) <= _law_views.QUICK or draws == _law_views.DRAWS[-1]
    assert f"{draws:,}" in note
    assert _law_views.afford([ns.paper.layer().plan(n=64)], None) == (5_000, "")
    assert _law_views.afford([plan], 77) == (77, "")
    with pytest.raises(ValueError, match="10,000,000 draws would take about"):
        _law_views.afford([plan], 10_000_000)
    monkeypatch.setattr(_law_views, "memory", lambda: 10.0)
    with pytest.raises(ValueError, match="of memory"):
        _law_views.afford([plan], None)
    assert _memory.memory() > 10.0


def test_afford_checks_memory_of_blocks(monkeypatch):
    """All of a block are in memory at once, in each thread: twice one replica was
    counted.
    """
    x = ns.gaussian(64, 8)
    for _ in range(12):
        x = ns.rms_norm(x + ns.tanh(ns.weight(64, 64) @ x))
    plan = ns.Program(x[0]).plan()
    block = _law_views.cores() * Draw.of(plan).block_bytes(200)
    assert block > 4 * _law_views.cores() * plan.bytes
    monkeypatch.setattr(_law_views, "memory", lambda: 2.0 * block)
    assert _law_views.afford([plan], 200) == (200, "")
    monkeypatch.setattr(_law_views, "memory", lambda: 1.9 * block)
    with pytest.raises(ValueError, match=r"200 draws would need \d"):
        _law_views.afford([plan], 200)
    assert _law_views.afford([plan], 2) == (2, "")


@ns.program
def net(tokens=3, heads=2, sigma=1.0, name="W", flag=True):
    x = ns.clip(
        ns.weight(n, n, batch=tokens, std=sigma, name=name) @ ns.gaussian(n), 100
    )
    y = ns.nn.attention(x, heads, head_dim=m)
    return y, ns.mean_dot(x, x)


@ns.program
def tied(tokens=2):
    g = ns.weight(n, n) @ ns.gaussian(n, tokens)
    return ns.dot(g, g)


OWN = NamedProgram("netsor_views", "net", net)


def test_sliders_of_numeric_arguments():
    """A slider for each number, about its value; flags and words have none."""
    assert sliders(OWN) == [
        Slider("tokens", 3, 1, 12, 1),
        Slider("heads", 2, 1, 8, 1),
        Slider("sigma", 1.0, 0.0, 4.0, 0.05),
    ]
    assert sliders(replace(OWN, arguments={"heads": 16}))[1] == Slider(
        "heads", 16, 1, 64, 1
    )
    assert sliders(replace(OWN, value=net())) == []
    assert sliders(replace(OWN, value=dict)) == []  # it has no signature

    @ns.program
    def below(
        unnamed=3,
        /,
        shift=-2,
        none=0,
        slope=-0.5,
        *,
        zero=0.0,
        big=float("inf"),
        **others,
    ):
        return ns.gaussian(n)

    made = sliders(NamedProgram("x", "below", below))
    assert [knob.name for knob in made] == ["shift", "none", "slope", "zero"]
    for knob in made:
        assert knob.low <= knob.start <= knob.high
        assert (knob.start - knob.low) / knob.step == pytest.approx(
            round((knob.start - knob.low) / knob.step)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "part", "key"),
    [(2, None, "[0][2]"), (1, 0, "[0][1]"), (0, None, "[0][0]")],
)
def test_program_view_of_one_output(output, part, key, monkeypatch):
    """The law of one output, its limit and the code, which finds the program again."""
    monkeypatch.setitem(sys.modules, "netsor_views", types.SimpleNamespace(net=net))
    target, arguments = replace(OWN, part=part), {"tokens": 3, "heads": 2, "sigma": 1.5}
    view = program_view(target, arguments, {"n": 32, "m": ns.inf}, output, 400)
    assert f"net(tokens=3, heads=2, sigma=1.5){key}" in view.code
    made = run(view.code)
    laws = [made[name] for name in ("law", "limit", "gaussian")]
    assert values(view.rows["variance"]) == [law.var() for law in laws]
    assert values(view.more()["KL to the limit"]) == [
        ns.kl(made["law"], made["limit"]).value
    ]


def test_program_view_with_constant_limit():
    """The mean product of two tokens at a width, 0 at infinity."""
    view = program_view(OWN, {}, {"n": 32, "m": 4}, 4, 400)
    assert "in the limit it is always 0" in view.notes
    assert "net()[1][0, 1]" in view.code
    assert list(view.rows["variance"]) == [
        "n = 32, m = 4",
        "the Gaussian of its variance",
    ]


def test_program_view_without_limit():
    view = program_view(NamedProgram("x", "tied", tied), {}, {"n": 16}, 0)
    assert "no limit to compare with" in view.notes[0]
    assert "limit" not in view.code
    with pytest.raises(ValueError, match="no limit"):
        program_view(NamedProgram("x", "tied", tied), {}, {"n": ns.inf}, 0)


def test_program_view_rejects_wrong_programs():
    with pytest.raises(
        ValueError, match="output 12 does not exist: the program has 12"
    ):
        program_view(OWN, {}, {"n": 16, "m": 16}, 12)
    with pytest.raises(TypeError, match="must return a program"):
        program_view(NamedProgram("x", "number", lambda: 3), {}, {})
    zero = ns.program(lambda: 0.0 * ns.gaussian(n))
    with pytest.raises(ValueError, match="always 0"):
        program_view(NamedProgram("x", "zero", zero), {}, {"n": 4})


def test_program_view_with_fixed_widths():
    fixed = ns.program(lambda: ns.relu(ns.weight(8, 8) @ ns.gaussian(8)))
    view = program_view(NamedProgram("x", "fixed", fixed), {}, {}, draws=500)
    assert list(view.rows["variance"]) == ["the law", "the Gaussian of its variance"]
    assert any(name.startswith("P(y = 0") for name in view.rows)


def test_svg_and_files_are_well_formed():
    """Also with gaps, one point, nothing but zero, and names that are markup."""
    x = np.linspace(0.0, 1.0, 5)
    hole = np.array([1.0, np.nan, 3.0, np.inf, 2.0])
    panels = [
        Panel(
            "a < b & c",
            "x",
            "y",
            (
                Curve("<script>", "limit", x, hole),
                Curve("b", "band", x, 0 * x, (x, x + 1)),
            ),
        ),
        Panel("flat", "x", "y", (Curve("zero", "law", x, 0 * x),)),
        Panel("point", "x", "y", (Curve("one", "band", x[:1], x[:1] + 7),)),
        Panel(
            "none", "x", "y", (Curve("no number", "gaussian", x, np.full(5, np.nan)),)
        ),
    ]
    drawn = as_svg(panels)
    assert "<script>" not in drawn
    assert "nan" not in drawn
    assert len(ET.fromstring(f"<div>{drawn}</div>")) == 4
    assert as_file(panels, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (-3.3, 2.9), (0, 1e-12), (1e8, 1.001e8), (-5e-5, 7e-5), (0, 0)],
)
def test_ticks_are_round_numbers(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(
        low - 1e-6 * (high - low) <= tick <= high + 1e-6 * (high - low)
        for tick in found
    )


def test_decades_are_ticks_of_logarithmic_axis():
    """Powers of ten, not too many; between two of them 1, 2 and 5."""
    assert decades(-2.5, 1.2) == [-2, -1, 0, 1]
    assert len(decades(-20.0, 3.0)) <= 5
    assert [round(10**x, 6) for x in decades(0.2, 1.05)] == [2, 5, 10]


def test_markup_is_escaped():
    shown = markup().table({"<i>": {"<u>": ns.Estimate(1.0, 0.0), "x": "<s>"}}, "<p>")
    assert not any(tag in shown for tag in ("<i>", "<u>", "<s>", "<p>"))
    assert 'data-value="1.0"' in shown
