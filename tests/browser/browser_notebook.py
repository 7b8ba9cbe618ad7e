"""A real notebook, run by Jupyter's kernel and exported by nbconvert, in a real
browser: what a new user sees.

MathJax comes from the package jupyter-server-mathjax, so that nothing is fetched.
"""

from pathlib import Path

import jupyter_server_mathjax
import nbformat
import pytest
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor

from .conftest import SMALL

MATHJAX = Path(jupyter_server_mathjax.__file__).parent / "static" / "MathJax.js"
FONTS = (
    'window.MathJax = {"HTML-CSS": {availableFonts: [], preferredFont: null, imageFont:'
    ' null, webFont: "STIX-Web"}}'
)
CELLS = {
    "start": (
        """import matplotlib.pyplot as plt
import netsor as ns

n = ns.Width("n")


@ns.program
def layer(tokens=4, heads=2):
    h = ns.gaussian(n)
    x = ns.clip(ns.weight(n, n, batch=tokens) @ h, 100)
    return ns.nn.attention(x, heads=heads)


net = layer()"""
    ),
    "program": "net",
    "check": "net.check()",
    "open": "ns.Program(ns.dot(*[ns.weight(n, n) @ ns.gaussian(n)] * 2)).check()",
    "limit": "limit = net[0].law(n=ns.inf)\nlimit",
    "wide": "wide = net[0].law(n=64, draws=5_000)\nwide",
    "joint": "net.law(n=64, draws=1_000)",
    "plan": "net[0].plan(n=64)",
    "kl": "ns.kl(wide, limit)",
    "densities": "wide.with_error.pdf([0.0, 1.0, 2.0])",
    "picture": "limit.plot(label='limit')\nwide.plot(label='width 64');",
    "pictures": "ns.plot(wide, limit, labels=['width 64', 'limit']);",
    "audit": (
        f"audit = ns.audit({SMALL!r}, tokens=4, draws=50, workers=1,"
        " progress=False)\naudit"
    ),
    "finding": "audit.findings[0]",
}


@pytest.fixture(scope="session")
def notebook(tmp_path_factory):
    """The page, and the outputs of each cell by its name."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    made = nbformat.v4.new_notebook(
        cells=cells,
        metadata={"kernelspec": {"name": "python3", "display_name": "python"}},
    )
    ExecutePreprocessor(timeout=600).preprocess(
        made, {"metadata": {"path": str(folder)}}
    )
    exporter = HTMLExporter(
        mathjax_url=f"{MATHJAX.as_uri()}?config=TeX-AMS-MML_HTMLorMML-full,Safe",
        require_js_url="",
    )
    page, _ = exporter.from_notebook_node(made)
    path = folder / "notebook.html"
    path.write_text(page)
    return path, dict(zip(CELLS, (cell.outputs for cell in made.cells), strict=True))


def test_every_output_has_a_form_for_notebooks(notebook):
    """Pictures once, everything else as HTML; a program's formula by itself, as LaTeX,
    which VS Code sets only then.
    """
    _, outputs = notebook
    for name, found in outputs.items():
        kinds = [set(output.get("data", {})) for output in found]
        if name == "start":
            assert kinds == []
        elif name.startswith("picture"):
            assert ["image/png" in kind for kind in kinds] == [True]
        else:
            first, *rest = kinds
            assert first == {"text/html", "text/plain"}
            assert rest == [{"text/latex"}] * (name == "program")
            assert "$$" not in found[0]["data"]["text/html"]
    assert "Assumption 3.1" in outputs["check"][0]["data"]["text/html"]
    assert "fails" in outputs["open"][0]["data"]["text/html"]


@pytest.mark.parametrize("width", [390, 1280])
def test_notebook_page_shows_equations_and_pictures(browser, notebook, width):
    """Equations are set without an error, densities and pictures are there, and nothing
    is wider than the screen.
    """
    path, _ = notebook
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(60_000)
    context.add_init_script(FONTS)  # the fonts that come with the package
    page = context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelectorAll('.MathJax').length > 0")
    page.wait_for_function("!MathJax.Hub.queue.running && !MathJax.Hub.queue.pending")
    assert page.locator(".MathJax_Error, .merror, mjx-merror").count() == 0
    assert page.locator(".MathJax .menclose").count() == 1  # the box
    assert page.locator("svg[role=img]").count() == 2  # a density for each law
    assert page.locator("img").count() == 2
    assert page.evaluate(
        "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.locator("body").inner_text()
    for words in (
        "excess kurtosis",
        "limit proved (Theorem 3.1)",
        "random numbers per replica",
        "median and 5–95 % band",
    ):
        assert words in text
    assert r"\operatorname" not in text  # it was set, not shown as it is written
    assert wrong == []
    context.close()
