"""A real browser, headless, and the server that it looks at."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent.parent
WIDE = """([within, width]) => [...document.querySelectorAll(within)].filter(e => {
    const box = e.getBoundingClientRect();
    if (box.width == 0 || box.right <= width + 1) return false;
    for (let up = e.parentElement; up; up = up.parentElement)
        if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return false;
    return true; }).map(e => e.outerHTML.slice(0, 100))"""  # what leaves the screen, and no ancestor scrolls or cuts
FLAGS = """--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update
           --disable-sync"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SMALL = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 8,
}
PROGRAMS = """
import netsor as ns

n = ns.Width("n")


@ns.program
def layer(tokens=4, heads=2, sigma=1.0):
    if heads == 3:
        raise ValueError("three heads are one too many")
    x = ns.clip(ns.weight(n, n, batch=tokens, std=sigma) @ ns.gaussian(n), 100)
    return ns.nn.attention(x, heads)


@ns.program
def watched(tokens=3, sigma=1.0):
    x = ns.probe("embedding", ns.gaussian(n, tokens))
    for _ in range(2):
        x = ns.probe("stream", x + ns.nn.attention(x, heads=2, sigma_o=sigma))
    return x


@ns.program
def tied(tokens=2):
    g = ns.weight(n, n) @ ns.gaussian(n, tokens)
    return ns.dot(g, g)
"""


@pytest.fixture(scope="session")
def browser():
    path = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    assert path, (
        "no Chromium is found: install Debian's chromium, or name one by CHROMIUM=PATH"
    )
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=path, args=FLAGS.split())
        yield found
        found.close()


class Served:
    """`netsor explore` in its own process; an interrupt ends it, and so does the end of
    a `with` block.
    """

    def __init__(self, *arguments, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "netsor", "explore", "--no-browser", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.address = self.process.stdout.readline().split()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()

    def stop(self):
        """The exit code, and what it said meanwhile."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    (folder / "own.py").write_text(PROGRAMS)
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder


@pytest.fixture(scope="session")
def served(programs):
    with Served("own.py:layer", folder=programs) as server:
        yield server


class Watched:
    """A tab, with what it complained of and what it asked of other machines."""

    def __init__(self, context, address):
        self.page = context.new_page()
        self.wrong = []
        self.page.on(
            "console",
            lambda m: self.wrong.append(m.text) if m.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(address)

    def _request(self, request):
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.wrong.append(f"asked for {request.url}")

    def view(self, name):
        """Go to a view, and wait until all its numbers are there."""
        self.page.get_by_label(name, exact=True).check()
        self.section = self.page.locator(f'section[data-view="{name}"]')
        self.answer = self.section.locator(".netsor-view")
        self.settled()

    def settled(self):
        self.section.locator(".netsor-view.netsor-done").wait_for()

    def control(self, name):
        return self.section.locator(f'[name="{name}"]')

    def move(self, name, key="ArrowRight", times=1):
        """Move a slider by keys, and wait for what comes of the last."""
        if not self.control(name).is_visible():
            self.section.locator("summary", has_text="hange").first.click()
        for _ in range(times):
            self.control(name).press(key)
        self.settled()

    def numbers(self):
        """The table: row → values, in the order of its columns."""
        rows = self.answer.locator(".netsor-numbers tr[data-row]").all()
        return {
            row.get_attribute("data-row"): [
                float(cell.get_attribute("data-value"))
                for cell in row.locator("td[data-value]").all()
            ]
            for row in rows
        }

    def verdicts(self):
        """The findings: rule → verdicts, in the order of the models."""
        found = {}
        for item in self.answer.locator("[data-item]").all():
            for name in item.get_attribute("data-item").split(", "):
                found.setdefault(name, []).append(item.get_attribute("data-status"))
        return found

    def picture(self):
        return self.answer.locator(".netsor-panel").first.inner_html()

    def message(self):
        return self.answer.locator("[role=alert]").inner_text()


@pytest.fixture
def tab(browser, served):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    found = Watched(context, served.address)
    yield found
    context.close()
    assert not found.wrong
