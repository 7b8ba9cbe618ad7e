"""Public bugs of initialisations: each is found where it is planted, and its healthy
twin raises no flag.
"""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

import netsor as ns  # noqa: E402

from .gallery import BUGS  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "init-gallery.md"


def _checked(bug, wrong, folder):
    def build():
        return bug.build(wrong)

    def reference():
        return bug.build(False)

    options = bug.options(wrong, folder)
    return ns.torch.check_init(
        build, parameters_only=True, reference=reference, seed=3, **options
    )


def _printed(check):
    """The line of the first finding, as the report shows it, with # for numbers."""
    text = next(line for line in _lines(check) if line.startswith("FLAG  "))
    return _without_numbers(text)


def _lines(check):
    """The report, with lines that continue joined."""
    return re.sub(r"\n {10}", " ", str(check).partition("\n\n")[2]).splitlines()


def _without_numbers(text):
    return re.sub(r"[-−]?\d[\d.,]*(e[-+]?\d+)?", "#", " ".join(text.split()))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.thread)
def test_bug_is_found_where_it_is_planted_and_its_twin_is_healthy(bug, tmp_path):
    found = _checked(bug, True, tmp_path)
    assert found.status == "FLAG"
    assert found.first.where == bug.where, str(found)
    kinds = {finding.what for finding in found.findings if finding.where == bug.where}
    assert kinds & {*bug.what}, str(found)
    page = _without_numbers(PAGE.read_text(encoding="utf-8"))
    assert bug.address in PAGE.read_text(encoding="utf-8")
    assert _printed(found).removeprefix("FLAG ") in page
    healthy = _checked(bug, False, tmp_path)
    assert healthy.ok, str(healthy)
    assert not healthy.unchecked, healthy.unchecked
