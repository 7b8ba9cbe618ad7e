"""Every code block of the README and the docs runs, and prints what is printed below it."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(path for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if "```python" in path.read_text())
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks(page, monkeypatch, tmp_path):
    if "from sklearn" in page.read_text():
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {}
    for code, printed in BLOCK.findall(page.read_text()):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(page), "exec"), names)
        if printed:
            # the last digits of a sum may depend on the machine
            assert NUMBER.sub("#", output.getvalue()) == NUMBER.sub("#", printed)
            for found, right in zip(NUMBER.findall(output.getvalue()), NUMBER.findall(printed), strict=True):
                assert float(found) == pytest.approx(float(right), rel=1e-6)


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
