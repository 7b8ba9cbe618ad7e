"""What is handed on: the archive of the sources, the wheel, and the versions of others
that it asks for.
"""

import tarfile
import zipfile
from pathlib import Path

import pytest

from .lowest import lowest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "src",
    "tests",
    "examples",
    "docs",
    "bench",
    "paper",
    "conda",
    ".github",
)
FILES = (
    *(
        "Makefile",
        "CONTRIBUTING.md",
        "CODE_OF_CONDUCT.md",
        "CHANGELOG.md",
        "README.md",
        "LICENSE",
        "mkdocs.yml",
    ),
    *("CITATION.cff", "codemeta.json", "pyproject.toml"),
)
ADDED = {".gitignore", "PKG-INFO"}  # by the builder


def below(folder):
    """The files of a folder of the sources, without what Python leaves there."""
    return {
        path
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def built(builder, folder):
    """The path of a distribution of this clone."""
    return next(builder(str(ROOT)).build(directory=str(folder), versions=["standard"]))


@pytest.mark.slow
def test_source_archive_has_all_needed_files(tmp_path):
    """All that `make` and the tests need, and nothing else."""
    # slow to import, and every process of the suite reads this file
    from hatchling.builders.sdist import SdistBuilder

    with tarfile.open(built(SdistBuilder, tmp_path)) as archive:
        found = {name.split("/", 1)[1] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in below(folder)
    }
    assert found - ADDED == wanted | set(FILES)


def test_wheel_contains_only_the_package(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    with zipfile.ZipFile(built(WheelBuilder, tmp_path)) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry = next(
            name for name in archive.namelist() if name.endswith("entry_points.txt")
        )
        assert "netsor = netsor.cli:main" in archive.read(entry).decode()
    assert found == {
        str(path.relative_to(ROOT / folder))
        for folder in ("src",)
        for path in below(folder)
    }
    assert {
        "netsor/py.typed",
        "netsor/models/data/gpt2.json",
        "netsor/explore/_page.css",
        "netsor/explore/_page.js",
    } <= found


def test_lowest_versions_are_read_from_pyproject(tmp_path):
    """Of the library and of every extra; what has no lowest version, or is the library
    itself, has no line.
    """
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["numpy>=2.0",'
        ' "any"]\n[project.optional-dependencies]\na = ["mkdocs-material>=9.5,<10",'
        ' "mkdocstrings[python]>=0.26", "torch==2.13.0"]\nb = ["netsor[a]", "jax>=1"]\n'
    )
    assert lowest(file) == [
        "jax==1",
        "mkdocs-material==9.5",
        "mkdocstrings==0.26",
        "numpy==2.0",
    ]


def test_every_dependency_has_a_lowest_version():
    named = {line.split("==")[0] for line in lowest(ROOT / "pyproject.toml")}
    assert {
        "numpy",
        "scipy",
        "matplotlib",
        "click",
        "jax",
        "distributed",
        "pytest",
        "hypothesis",
    } <= named
