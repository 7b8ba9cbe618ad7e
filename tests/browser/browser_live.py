"""Pages that compute, in a real browser: Python is loaded when it is asked for, and has
the numbers of the library.

The site and the explorer are built with Pyodide next to them (`make .pyodide docs
explore-static`).
"""

import functools
import threading
import time
from http.server import ThreadingHTTPServer

import pytest

import netsor as ns
from tests.internals import layer_view

from .browser_docs import SITE, Reader, _Quiet
from .conftest import ROOT

PATIENT = 300_000  # milliseconds, on a busy machine
ANSWERED = """([kind, n]) => document.querySelector(`form[data-kind=${kind}]`).closest('.netsor-two')
    .querySelector('.netsor-view').dataset.answers > n"""
PYODIDE = "/pyodide/"


@pytest.fixture(scope="module")
def served():
    """The folder of the repository: the site and the explorer are in it."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=ROOT)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def reader(browser, served):
    """A tab with an empty cache, with the addresses that it asked for; at its end
    nothing went wrong in it.
    """
    found = Reader(browser, served)
    found.context.set_default_timeout(PATIENT)
    found.asked = []
    found.page.on("request", lambda request: found.asked.append(request.url))
    yield found
    found.context.close()
    assert found.wrong == []


def test_site_is_small():
    sizes = {path: path.stat().st_size for path in SITE.rglob("*") if path.is_file()}
    assert any("pyodide.asm.wasm" in path.name for path in sizes), (
        "run make .pyodide docs first"
    )
    assert sum(sizes.values()) < 60e6
    first = ("pyodide", "python_stdlib", "numpy", "scipy", "netsor.zip")
    loaded = sum(size for path, size in sizes.items() if path.name.startswith(first))
    announced = int(
        (SITE / "index.html").read_text().partition('data-size="')[2].partition('"')[0]
    )
    assert announced == pytest.approx(loaded, rel=0.02)


def test_home_page_block_prints_stored_output(reader):
    """Nothing is loaded until the button is pressed; the block then prints what the
    page has stored.
    """
    page = reader.page
    reader.open("site/index.html")
    block = page.locator(".language-python").first
    stored = page.locator(".language-text").first
    page.wait_for_load_state("networkidle")
    assert [
        name for name in reader.asked if PYODIDE in name or name.endswith(".zip")
    ] == []
    start = time.perf_counter()
    block.locator("xpath=following-sibling::*[1]//button").click()
    page.locator("progress").wait_for()
    output = block.locator("xpath=following-sibling::*[2]")
    output.get_by_text("±").wait_for()
    print(f"\nfirst block from a cold cache: {time.perf_counter() - start:.1f} s")
    page.wait_for_function(
        "document.querySelectorAll('.netsor-run')[1].textContent == 'Run'"
    )
    assert not stored.is_visible()
    for found, right in zip(
        output.inner_text().split(), stored.text_content().split(), strict=True
    ):
        assert found == right or float(found) == pytest.approx(float(right), rel=1e-10)
    assert any(PYODIDE in name for name in reader.asked)
    assert not any("matplotlib" in name for name in reader.asked)

    # an error names its line, and what follows still runs
    code = block.locator("code")
    code.fill("y = 1\nprint(net.law(n=0))")
    code.press("Control+Enter")
    output.locator("[role=alert]").wait_for()
    assert output.inner_text().startswith("line 2: print(net.law(n=0))")
    code.fill("net[0].law(n=ns.inf)")
    code.press("Control+Enter")
    output.locator("svg").wait_for()


def test_later_blocks_run_those_before_them_and_show_figures(reader):
    reader.open("site/tutorial.html")
    page = reader.page
    for code in page.locator(".language-python code").all()[2:4]:
        code.fill("wide = limit = net[0].law(n=4, draws=500)")  # quicker
    last = page.locator(".language-python").last
    last.locator("xpath=following-sibling::*[1]//button").click()
    last.locator("xpath=following-sibling::*[2]//img").wait_for()
    texts = page.locator(".netsor-live").all_inner_texts()
    assert "program layer(tokens=4, heads=2)" in texts[0]
    assert "limit proved" in texts[1]


def test_slider_answers_with_numbers_of_library(reader):
    """It answers in a moment, with the numbers of the library."""
    reader.open("site/try.html")
    page = reader.page
    form = page.locator("form[data-kind=layer]")
    assert form.locator("[name=heads]").is_disabled()
    assert page.locator(".netsor-view svg").count() > 1  # the stored answers
    form.get_by_role("button", name="Start").click()
    page.wait_for_function(ANSWERED, arg=["layer", 0])
    times = []
    for k in range(3):
        start = time.perf_counter()
        form.locator("[name=heads]").press("ArrowRight")
        page.wait_for_function(ANSWERED, arg=["layer", k + 1])
        times.append(time.perf_counter() - start)
    print(f"\na slider: {', '.join(f'{each:.2f}' for each in times)} s")
    view = layer_view(heads=4, width=16)
    for name in ("variance", "excess kurtosis"):
        cells = page.locator(
            f'.netsor-view >> nth=0 >> tr[data-row="{name}"] td[data-value]'
        ).all()
        right = [
            value.value
            for value in view.rows[name].values()
            if not isinstance(value, str)
        ]
        assert [
            float(cell.get_attribute("data-value")) for cell in cells
        ] == pytest.approx(right, rel=1e-9)


def test_pasted_configuration_and_gpt2_are_audited(reader):
    reader.open("site/try.html")
    page = reader.page
    form = page.locator("form[data-kind=model]")
    view = form.locator("xpath=../..").locator(".netsor-view")
    form.locator("[name=config]").fill(
        '{"model_type": "gpt2", "n_layer": 2, "n_head": 5}'
    )
    form.get_by_role("button", name="Audit").click()
    view.get_by_role("alert").wait_for()
    assert "heads" in view.get_by_role("alert").inner_text()
    form.locator("[name=config]").fill("")
    form.get_by_role("button", name="Audit").click()
    page.wait_for_function(ANSWERED, arg=["model", 1])
    audit = ns.audit("gpt2", quick=True, progress=False)
    assert str(audit).splitlines()[0] in view.inner_text()
    assert (
        f"{audit['loss'].median:.4g}"
        in view.locator("tr", has_text="loss of the first step").inner_text()
    )
    assert all(name.startswith(reader.root) for name in reader.asked)


def test_without_pyodide_the_page_says_so(browser, served):
    """The stored output stays."""
    reader = Reader(browser, served)
    reader.page.route(f"**{PYODIDE}**", lambda route: route.abort())
    reader.open("site/index.html")
    reader.page.locator(".netsor-run").last.click()
    alert = reader.page.locator("[role=alert]")
    alert.wait_for()
    assert alert.inner_text().startswith("Python could not be loaded")
    assert reader.page.locator(".language-text").first.is_visible()
    reader.context.close()


def test_from_disk_the_page_says_so(browser):
    reader = Reader(browser, SITE.as_uri())
    reader.open("index.html")
    reader.page.locator(".netsor-run").last.click()
    assert (
        "only on pages from a web server"
        in reader.page.locator("[role=alert]").inner_text()
    )
    assert reader.page.locator(".language-text").first.is_visible()
    assert reader.wrong == []
    reader.context.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_static_explorer_has_stored_answers(browser, served, width, scheme):
    """Both views have stored answers, and nothing is wider than the screen."""
    reader = Reader(browser, served, width, scheme)
    reader.open("explore-static/index.html")
    page = reader.page
    assert page.locator("form[data-kind]").count() == 2
    assert page.locator(".netsor-view .netsor-numbers").count() == 1
    assert page.locator(".netsor-view table").count() > 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("form[data-kind=model]").locator("[name=name]").select_option(
        label="llama-3-8b"
    )
    assert reader.wrong == []
    reader.context.close()
