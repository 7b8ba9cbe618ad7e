"""The site that `make docs` built, in a real browser: from disk, and over a server."""

import functools
import http.server
import threading

import pytest

from .conftest import ROOT, WIDE

SITE = ROOT / "site"
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in SITE.rglob("*.html")
    if path.name != "404.html"
)


def test_site_is_built():
    assert "index.html" in PAGES, "run make docs first"
    assert "notebooks/why_heads_matter.html" in PAGES
    # where upper and lower case are one
    assert len({page.lower() for page in PAGES}) == len(PAGES)


class Reader:
    """A tab, and what it complains of."""

    def __init__(self, browser, root, width=1280, scheme="light"):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.root, self.wrong = root, []
        self.page.on(
            "console",
            lambda m: self.wrong.append(m.text) if m.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._request)
        self.page.on("requestfailed", self._failed)

    def _request(self, request):
        if not request.url.startswith((self.root, "data:", "blob:", "about:")):
            self.wrong.append(f"asked for {request.url}")

    def _failed(self, request):
        if "ERR_ABORTED" not in (
            request.failure or ""
        ):  # the next page was opened before the icon of the last was read
            self.wrong.append(f"failed: {request.url}: {request.failure}")

    def open(self, name):
        self.page.goto(f"{self.root}/{name}")


@pytest.fixture(scope="session")
def over_http():
    handler = functools.partial(_Quiet, directory=SITE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing."""


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_from_disk(browser, width):
    """Every page: nothing wrong, nothing fetched, pictures there, links to files, no
    wider than the screen.
    """
    reader = Reader(browser, SITE.as_uri(), width)
    for name in PAGES:
        reader.open(name)
        page = reader.page
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(WIDE, [".md-content *, .md-header *", width]) == [], name
        assert page.evaluate(
            "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
        ), name
        for link in page.evaluate(
            "[...document.querySelectorAll('a[href]')].map(a => a.href)"
        ):
            if link.startswith("file:"):
                path = link.removeprefix(SITE.as_uri()).partition("#")[0].lstrip("/")
                assert (SITE / path).is_file(), f"{name}: {link}"
    assert reader.wrong == []
    reader.context.close()


@pytest.mark.parametrize("where", ["disk", "server"])
def test_search(browser, over_http, where):
    """Words of a page lead to it, from disk too."""
    reader = Reader(browser, SITE.as_uri() if where == "disk" else over_http)
    reader.open("theory.html")
    reader.page.locator("input.md-search__input").click()
    reader.page.keyboard.type("recurrent", delay=20)
    found = reader.page.locator(".md-search-result__link")
    found.first.wait_for()
    found.first.click()
    reader.page.wait_for_url("**/*recurrent*")
    assert reader.wrong == []
    reader.context.close()


@pytest.mark.parametrize(
    "word",
    ["initialisation", "initialization", "optimiser", "optimizer", "parametrization"],
)
def test_search_finds_both_spellings(browser, word):
    reader = Reader(browser, SITE.as_uri())
    reader.open("index.html")
    reader.page.locator("input.md-search__input").click()
    reader.page.keyboard.type(word, delay=20)
    reader.page.locator(".md-search-result__link").first.wait_for()
    assert reader.wrong == []
    reader.context.close()


def test_equations_are_readable(browser):
    """No letter of an equation is smaller than nine pixels, primes and bounds of sums
    included.
    """
    reader = Reader(browser, SITE.as_uri())
    seen = 0
    for name in (name for name in PAGES if "<math" in (SITE / name).read_text()):
        reader.open(name)
        sizes = reader.page.evaluate(
            """[...document.querySelectorAll('math mi, math mn, math mo')].map(
                e => [parseFloat(getComputedStyle(e).fontSize), e.textContent])"""
        )
        seen += len(sizes)
        assert [size for size in sizes if size[0] < 9] == [], name
    assert seen > 100
    reader.context.close()
