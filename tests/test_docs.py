"""Every code block of the README and the docs runs, and prints what is printed below
it.

In a quick run long pages are left out, or run with few draws: then what they print is
not looked at.
"""

import contextlib
import inspect
import io
import re
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from tests.internals import AUDIT_RULES as RULES
from tests.internals import INSTRUCTIONS, _bayes, _process_pool, _sampler, cli

from .inline import Inline
from .keep import keep

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if "```python" in path.read_text()
)
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
DRAWS = re.compile(r"draws=([\d_]+)")
FEW = {"scale.md", "signal.md"}  # in a quick run with few draws
LONG = FEW | {
    "architectures.md",
    "bayes.md",
    "howto.md",
    "jax.md",
    "laws.md",
    "muon-scale.md",
    "reproduce.md",
    "step.md",
    "tangent.md",
    "torch.md",
}
LONG |= {"audit.md", "coord-check.md", "models.md", "transfer.md", "wide-enough.md"}
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture
def tables_restored():
    """Instructions and rules that a page adds are gone after it."""
    instructions, rules = dict(INSTRUCTIONS), list(RULES)
    yield
    INSTRUCTIONS.clear()
    INSTRUCTIONS.update(instructions)
    RULES[:] = rules


@pytest.fixture
def apart(monkeypatch, tmp_path, tables_restored):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # the same bits, and no process to begin
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    yield
    if "matplotlib.pyplot" in sys.modules:  # figures that a page leaves open
        sys.modules["matplotlib.pyplot"].close("all")


def needs(page):
    if "from sklearn" in page.read_text():
        pytest.importorskip("sklearn")
    if "import torch" in page.read_text():
        pytest.importorskip("torch")
    if "from flax" in page.read_text():
        pytest.importorskip("flax")


def short(function):
    """A function of `_bayes` with shorter chains and fewer particles."""

    def shorter(*given, **more):
        bound = inspect.signature(function).bind(*given, **more)
        for name, most in (("draws", 64), ("particles", 32), ("runs", 2)):
            if name in bound.arguments:
                bound.arguments[name] = min(most, bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return shorter


@pytest.mark.parametrize(
    "page",
    keep(
        [page for page in PAGES if page.name in FEW],
        *(page for page in PAGES if page.name == "scale.md"),
    ),
    ids=lambda page: page.name,
)
def test_code_blocks_of_long_pages_run(page, apart, monkeypatch):
    needs(page)
    monkeypatch.setattr(
        _sampler, "MAX_STORED_REPLICAS", _sampler.MAX_STORED_REPLICAS // 50
    )
    for name in ("sampled", "evidence"):
        monkeypatch.setattr(_bayes, name, short(getattr(_bayes, name)))
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of errors that so few draws do not tell
        for code, _ in BLOCK.findall(page.read_text()):
            few = DRAWS.sub(
                lambda found: f"draws={max(100, int(found[1]) // 50)}", code
            )
            exec(compile(few, str(page), "exec"), names)
    assert names


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page.name in LONG else page
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_code_blocks_print_what_the_page_says(page, apart):
    needs(page)
    names: dict[str, object] = {}
    for code, printed in BLOCK.findall(page.read_text()):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(page), "exec"), names)
        if printed:
            # the last digits of a sum may depend on the machine
            assert NUMBER.sub("#", output.getvalue()) == NUMBER.sub("#", printed)
            for found, right in zip(
                NUMBER.findall(output.getvalue()), NUMBER.findall(printed), strict=True
            ):
                assert float(found) == pytest.approx(float(right), rel=1e-6)


def test_tests_of_the_page_on_tests_pass(apart):
    """As pytest would call them."""
    names: dict[str, object] = {}
    code, _ = BLOCK.findall(
        (ROOT / "docs" / "test-your-initialisation.md").read_text()
    )[0]
    exec(compile(code, "test_page.py", "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        names[name]()


def test_links_have_targets():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_names_in_navigation_are_headings():
    """All but the home page, and pages that are made when the site is built."""
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)[
        "nav"
    ]
    entries = [
        entry for group in navigation for part in group.values() for entry in part
    ]
    named = 0
    for entry in entries:
        (title, page), *_ = entry.items()
        path = ROOT / "docs" / str(page)
        if page == "index.md" or not path.is_file():
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        (heading, *_) = re.findall(r"^# (.+)$", text, re.MULTILINE)
        assert heading == title, page
        named += 1
    assert named > 30


def test_table_rows_have_equal_columns():
    """One head and its line, and as many cells in each row: a bar within a cell, or an
    empty line, would cut it.
    """
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
            assert re.fullmatch(r"[|:\- ]+", table.splitlines()[1]), (
                f"{page.name}: {table}"
            )
            assert len(set(rows)) == 1, f"{page.name}: {table}"


def test_files_of_the_developer_page_exist():
    """Also the functions, classes and tables that it says are in a file, written as
    `name` in `file`.
    """
    page = re.sub(
        r"```.*?```", "", (ROOT / "docs" / "developer.md").read_text(), flags=re.DOTALL
    )
    page += (ROOT / "CONTRIBUTING.md").read_text()
    files = [
        file
        for folder in ("src", "tests", "bench")
        for file in (ROOT / folder).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert len(named) > 40  # they were found
    assert {
        name
        for name in named
        if not any(str(file).endswith(f"/{name}") for file in files)
    } == set()
    within = re.findall(
        r"((?:`\w+`(?:, | and | or ))*`\w+`)\s+in\s+`([\w/]+\.py)`", page
    )
    assert len(within) > 30
    for names, place in within:
        text = "".join(
            file.read_text() for file in files if str(file).endswith(f"/{place}")
        )
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^ *(?:def |class )?{name}\b", text, re.MULTILINE), (
                f"{name} is not in {place}"
            )


def test_developer_map_names_every_folder():
    page = (ROOT / "docs" / "developer.md").read_text()
    described = page[page.index("## The map") : page.index("### A study")]
    named = set(re.findall(r"`([\w/]+)/`", described))
    package = ROOT / "src" / "netsor"
    folders = {
        str(init.parent.relative_to(package)) for init in package.rglob("__init__.py")
    }
    inside_one = {"studies", "papers"}  # their folders are parts of one idea
    parts = {name for name in folders if name.split("/")[0] in inside_one}
    holding_only_folders = {".", "language", "engine"}
    assert named <= folders
    assert folders - parts - holding_only_folders <= named
    assert inside_one <= named


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", ["theory.md", "literature.md"])
def test_paragraphs_are_short(name):
    """A formula in a line counts by its spaces, so that the count is rather high."""
    text = (ROOT / "docs" / name).read_text()
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    prose = [part for part in paragraphs if not part.lstrip().startswith("|")]
    assert len(prose) > 50
    long = {part[:60]: len(part.split()) for part in prose if len(part.split()) > 120}
    assert long == {}


@pytest.mark.parametrize(
    "name", sorted({command.name for command in cli.commands.values()})
)
def test_cli_reference_lists_every_option(name):
    """In the section of the command, or among the options that several commands
    share.
    """
    page = (ROOT / "docs" / "cli.md").read_text()
    found = re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    sections = dict(found)
    assert len(sections) == len(found)  # none twice
    text = " ".join((sections[name] + sections["Conventions"]).split())
    if "as for `law`" in text or "Options of `law`" in text:
        text += sections["law"]
    for option in cli.commands[name].params:
        for flag in option.opts if option.param_type_name == "option" else ():
            assert re.search(rf"{flag}\b|`{flag[-2:]}`", text), f"{name} {flag}"


def test_pages_contain_both_spellings():
    """The search of the site knows the words of its pages."""
    words = " ".join(path.read_text() for path in (ROOT / "docs").glob("*.md")).lower()
    for word in ("initiali{}ation", "optimi{}er", "parametri{}ation", "normali{}ation"):
        assert {
            word.format(letter) for letter in "sz" if word.format(letter) not in words
        } == set()
