"""The explorer in a real browser: every view, its sliders, its files, its messages."""

import csv
import io
import runpy

import numpy as np
import pytest

import netsor as ns
from tests.internals import AUDIT_RULES as RULES

from .conftest import WIDE, Served, Watched


def test_one_layer(tab):
    """A slider moves; the picture changes, and the numbers are those of the library."""
    tab.view("One layer")
    before = tab.picture()
    tab.move("heads", times=2)
    assert tab.picture() != before
    net = ns.paper.layer(heads=3)
    law, limit = net.law(n=16, draws=5_000), net.law(n=ns.inf, draws=5_000)
    found = tab.numbers()
    assert found["variance"] == [law.var(), limit.var(), limit.infinite_heads().var()]
    assert found["excess kurtosis"] == [law.kurtosis(), limit.kurtosis()]
    assert found["KL to the limit"] == [float(ns.kl(law, limit))]
    assert found["KL to infinitely many heads"] == [
        float(ns.kl(limit, limit.infinite_heads()))
    ]


def test_to_infinity(tab):
    """At the right end of its slider the width is ∞, and one law is left next to the
    Gaussian.
    """
    tab.view("One layer")
    tab.move("width", "End")
    limit = ns.paper.layer(heads=1).law(n=ns.inf)
    assert tab.numbers()["variance"] == [limit.var(), limit.infinite_heads().var()]
    assert (
        tab.section.locator("label", has=tab.page.locator("[name=width]"))
        .locator("output")
        .inner_text()
        == "∞"
    )


def test_explorer_answers_how_many_heads_are_gaussian(tab):
    """The question that the page is for: how many heads bring the excess kurtosis below
    0.01?
    """
    tab.view("One layer")
    tab.move("width", "End")
    while tab.numbers()["excess kurtosis"][0] >= 0.01:
        tab.move("heads")
    assert tab.control("heads").input_value() == "24"  # the place of 25
    assert "below 0.01 from 25 heads on" in tab.answer.inner_text()


def test_dragging(tab):
    """What is shown after a drag is the last position, not one that was overtaken."""
    tab.view("One layer")
    slider = tab.control("heads")
    box = slider.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    for step in range(40):
        tab.page.mouse.move(x + 3 * step, y)
        tab.page.wait_for_timeout(10)
    tab.page.mouse.up()
    heads = int(slider.input_value()) + 1
    assert heads > 10
    limit = ns.paper.layer(heads=heads).law(n=ns.inf)
    tab.settled()
    assert limit.kurtosis() in tab.numbers()["excess kurtosis"]
    assert tab.numbers()["KL to infinitely many heads"] == [
        float(ns.kl(limit, limit.infinite_heads()))
    ]


def test_wrong_value_is_a_message(tab):
    tab.view("One layer")
    tab.move("head_dim", "End")  # infinite heads in a finite width
    assert tab.message() == "head dimension ∞ must be at most the width 16"
    tab.move("head_dim", "Home")
    assert tab.numbers()["variance"]


def shown(tab, wanted, row="loss of the first step", digits=4):
    """Whether a median of the output is there, when nothing is to come."""
    tab.settled()
    assert (
        tab.answer.locator("tr", has_text=row)
        .locator("td")
        .nth(1)
        .inner_text()
        .startswith(f"{wanted:.{digits}g}")
    )


def test_one_model(tab):
    """Curves, findings and numbers of a built-in model; of many positions, the
    last.
    """
    tab.view("One model")
    assert tab.answer.locator(".netsor-panel").count() == 9
    found = ns.audit("gpt2", quick=True)
    shown(tab, np.median(found.actual["loss"]))
    for name, verdicts in tab.verdicts().items():
        assert verdicts == [found.finding(name).verdict]
    assert set(tab.verdicts()) == {rule.name for rule in RULES}
    tab.move("std", times=6)
    assert tab.control("std").input_value() == "6"  # 0.02
    model = ns.models.read("gpt2").replace(
        std=0.02, std_o=0.02 / 24**0.5, std_out=0.02 / 24**0.5
    )
    found = ns.audit(model, quick=True)
    shown(tab, np.median(found.actual["logit_std"]), "standard deviation of logits", 3)


def test_config_json_is_read_by_its_path(tab, programs):
    """A config.json by its path; sharper on request; a wrong path is a message."""
    tab.view("One model")
    path = tab.control("path")
    path.fill("nowhere.json")
    path.press("Enter")
    tab.settled()
    assert (
        "must be the path of a file, or the name of a built-in model" in tab.message()
    )
    path.fill(str(programs / "config.json"))
    path.press("Enter")
    model = ns.models.read(programs / "config.json")  # with positions for 8 tokens
    shown(tab, np.median(ns.audit(model, quick=True).actual["loss"]))
    tab.control("sharp").check()
    shown(tab, np.median(ns.audit(model, tokens=8, widths="actual").actual["loss"]))


def test_two_models_and_two_lengths(tab, programs):
    """Both in one picture, what is different first, and verdicts by length."""
    tab.view("One model")
    path = tab.control("path")
    path.fill(str(programs / "config.json"))
    path.press("Enter")
    tab.control("second_name").select_option(label="the same model, changed as below")
    tab.section.locator("summary", has_text="Changes of the second model").click()
    tab.control("second_fields").fill("std=1")
    tab.control("second_fields").press("Enter")
    tokens = tab.control("tokens")
    tokens.fill("3, 8")
    tokens.press("Enter")
    tab.answer.locator(
        ".netsor-note", has_text="of 3 tokens and 16 initialisations of 8 tokens"
    ).wait_for()
    tab.settled()
    model = ns.models.read(programs / "config.json")
    other = model.replace(std=1.0, name=f"{model.name}, std=1")
    found = ns.audit(model, compare=other, tokens=[3, 8], quick=True, gradients=False)
    for name, verdicts in tab.verdicts().items():
        assert verdicts == [audit.finding(name).verdict for audit in found.audits]
    assert (
        found.differences.verdict
        in tab.answer.locator(".netsor strong").first.inner_text().lower()
    )
    # with legend
    assert (
        tab.answer.locator(".netsor-panel")
        .first.locator(".netsor-band, .netsor-second")
        .count()
        == 4
    )
    tokens.fill("a few")
    tokens.press("Enter")
    tab.settled()
    assert "must be a whole number, or several with commas" in tab.message()


def test_program_with_probes_has_findings(browser, programs):
    """A program with probes has findings too."""
    with (
        Served("own.py:watched", folder=programs) as server,
        browser.new_context() as context,
    ):
        context.set_default_timeout(60_000)
        tab = Watched(context, server.address)
        tab.view("Its audit")
        made = runpy.run_path(str(programs / "own.py"))["watched"]
        found = ns.audit(made(), n=256, quick=True)
        assert tab.verdicts()["growth"] == [found.finding("growth").verdict]
        tab.move("argument tokens")
        assert "initialisations of 4 tokens" in tab.answer.inner_text()


def test_own_program(tab):
    """Sliders for its arguments and widths; where it refuses, its own words are on the
    page.
    """
    tab.view("Your program")
    assert {"width n", "argument tokens", "argument heads", "argument sigma"} <= {
        c.get_attribute("name") for c in tab.section.locator("[name]").all()
    }
    tab.move("argument heads")
    assert tab.message() == "three heads are one too many"
    tab.move("argument heads")
    law = ns.paper.layer(heads=4).law(n=256, draws=5_000)  # which it is
    assert tab.numbers()["excess kurtosis"][0] == pytest.approx(
        law.kurtosis(), rel=1e-9
    )


def test_code_makes_the_numbers(tab, tmp_path, monkeypatch):
    """What is shown to be copied, run, gives what is shown."""
    tab.view("Your program")
    tab.move("width n", "ArrowLeft")
    code = tab.answer.locator(".netsor-code").inner_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copied.py").write_text(code)
    made = runpy.run_path("copied.py")
    found = tab.numbers()
    assert found["variance"][:2] == [made["law"].var(), made["limit"].var()]
    assert found["KL to the limit"] == [float(ns.kl(made["law"], made["limit"]))]
    assert (tmp_path / "laws.png").stat().st_size > 1000


def test_files(tab):
    tab.view("One layer")
    contents = {}
    for kind in ("PNG", "PDF", "CSV"):
        with tab.page.expect_download() as waiting:
            tab.answer.get_by_role("link", name=kind).click()
        contents[kind] = waiting.value.path().read_bytes()
        assert waiting.value.suggested_filename == f"layer.{kind.lower()}"
    assert contents["PNG"].startswith(b"\x89PNG")
    assert contents["PDF"].startswith(b"%PDF")
    rows = list(csv.DictReader(io.StringIO(contents["CSV"].decode())))
    limit = ns.paper.layer(heads=1).law(n=ns.inf)
    row = next(r for r in rows if r["panel"] == "density" and r["curve"] == "the limit")
    # one point and many differ in the last bit
    assert float(row["y"]) == pytest.approx(limit.pdf(float(row["x"])), rel=1e-14)


def test_two_tabs(browser, served):
    """Each has its own sliders."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    one, other = Watched(context, served.address), Watched(context, served.address)
    for tab in (one, other):
        tab.view("One layer")
    one.move("heads")
    other.move("heads", times=3)
    for tab, heads in ((one, 2), (other, 4)):
        assert (
            tab.numbers()["excess kurtosis"][1]
            == ns.paper.layer(heads=heads).law(n=ns.inf).kurtosis()
        )
        assert not tab.wrong
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_wider_than_the_screen(browser, served, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme
    )
    context.set_default_timeout(60_000)
    tab = Watched(context, served.address)
    for view in ("One layer", "One model", "Your program"):
        tab.view(view)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        wide = tab.page.evaluate(WIDE, [".netsor-view *, .netsor-controls *", width])
        assert wide == []
    dark = tab.page.evaluate("document.documentElement.className")
    assert ("dark" in dark) == (scheme == "dark")
    context.close()


def test_no_limit(browser, programs):
    """A program without a limit has a law at finite widths, and a reason for the
    rest.
    """
    with (
        Served("own.py:tied", folder=programs) as server,
        browser.new_context() as context,
    ):
        context.set_default_timeout(60_000)
        tab = Watched(context, server.address)
        tab.view("Your program")
        assert "no limit to compare with" in tab.answer.inner_text()
        tab.move("width n", "End")
        assert "has no limit" in tab.message()
        code, said = server.stop()  # with a tab still open
        assert code == 130
        assert said == "netsor: stopped\n"


def test_token_is_needed(browser, served):
    """Without it nothing of the page is shown."""
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(served.address.partition("?")[0])
    assert answer.status == 403
    assert page.locator(".netsor-view").count() == 0
    context.close()


def test_no_other_script_runs(browser, served):
    """A script without the nonce of the page, or in an attribute, is refused."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.address)
    page.evaluate("""() => {
        document.body.append(Object.assign(document.createElement("script"), { textContent: "window.ran = true" }))
        const image = document.createElement("div")
        image.innerHTML = '<img src="data:," onerror="window.ran = true">'
        document.body.append(image)
    }""")
    page.wait_for_function("document.querySelector('img[onerror]').complete")
    assert page.evaluate("window.ran") is None
    context.close()
