"""How every study runs, with a small one: tasks, resuming, the folder, and other work
meanwhile.
"""

import doctest
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from netsor.studies import Cost, Document, Request, Result, Study
from tests.internals import Numpy, _process_pool
from tests.internals import studies_study as _study

from ..inline import Inline

DONE = []


@dataclass(frozen=True)
class Square:
    of: int

    @property
    def key(self):
        return {"square": self.of}

    def run(self):
        DONE.append(self.of)
        return {"value": np.array(self.of**2)}


@dataclass(frozen=True)
class Squares(Request):
    numbers: tuple[int, ...] = (1, 2, 3)
    mine: bool = False

    command: ClassVar[str] = "netsor squares"
    smaller: ClassVar[str] = "fewer numbers"
    files: ClassVar[tuple[str, ...]] = ("report.html", "squares.csv")
    title: ClassVar[str] = "squares: of numbers"

    @property
    def is_user_program(self):
        return self.mine

    def options(self):
        return {"numbers": self.numbers}


class Sum(Result):
    def __init__(self, request, total):
        self.request, self.total = request, total

    def _document(self, manifest=None):
        return Document("Squares", f"They add up to {self.total}.", "", [])

    def _files(self):
        return {"squares.csv": b"total\n%d\n" % self.total}

    def _spent(self):
        return {"seconds": 0}


@dataclass(frozen=True)
class SquareStudy(Study):
    request: Squares

    def tasks(self):
        return [Square(number) for number in self.request.numbers]

    def estimate(self):
        return Cost(1.0, 1.0, 1.0, 0, 1)

    def result(self, run):
        run.wait()
        return Sum(self.request, sum(int(run[task]["value"]) for task in run.tasks))


@pytest.fixture(autouse=True)
def inline(monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    DONE.clear()


def test_study_resumes_and_writes_its_files(tmp_path):
    found = SquareStudy(Squares((1, 2), out=tmp_path)).run()
    assert (found.total, DONE, str(found)) == (5, [1, 2], "They add up to 5.")
    assert (
        SquareStudy(Squares((1, 2, 3), out=tmp_path, typed="netsor squares 1,2,3"))
        .run()
        .total
        == 14
    )
    assert DONE == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("report.html", "squares.csv", "manifest.json", "parts", ".netsor.lock"),
    }
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["command"] == "netsor squares 1,2,3"
    assert manifest["options"] == {"numbers": [1, 2, 3]}
    assert "They add up to 14." in (tmp_path / "report.html").read_text()


def test_without_a_folder_and_for_programs_nothing_is_kept(tmp_path):
    assert (
        SquareStudy(Squares()).run().total == SquareStudy(Squares()).run().total == 14
    )
    assert DONE == [1, 2, 3] * 2
    for _ in range(2):
        SquareStudy(Squares(mine=True, out=tmp_path)).run()
    assert sorted(DONE) == sorted([1, 2, 3] * 4)
    assert list((tmp_path / "parts").iterdir()) == []


class Device(Numpy):
    """One that is parallel itself."""

    threads = False


def test_device_and_other_machines_do_the_same(tmp_path, monkeypatch):
    """Their numbers are kept here; a device needs no process."""
    monkeypatch.setattr(_process_pool, "Workers", None)
    assert (
        SquareStudy(Squares(backend=Device(), out=tmp_path / "device")).run().total
        == 14
    )
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    with ThreadPoolExecutor(2) as executor:
        assert SquareStudy(Squares(out=tmp_path / "other")).run(executor).total == 14
    for folder in ("device", "other"):
        assert len(list((tmp_path / folder / "parts").glob("*.npz"))) == 3
    with pytest.raises(ValueError, match="executor='dask' must be a concurrent"):
        SquareStudy(Squares()).run("dask")


def test_parts_removed_during_a_run_raise(tmp_path):
    class Removed(SquareStudy):
        def result(self, run):
            run.wait()
            for path in (tmp_path / "parts").glob("*.npz"):
                path.unlink()
            return super().result(run)

    with pytest.raises(
        ValueError,
        match=r"out='.*' must be left alone by others: finished draws were removed",
    ):
        Removed(Squares(out=tmp_path)).run()


def test_while_tasks_are_done_there_is_time_for_other_work():
    """First progress is reported, then a piece of the other work is done; finished
    tasks are not waited for again.
    """
    done, reported = [], []
    pieces = (done.append(piece) for piece in range(5))

    class Batches(SquareStudy):
        def result(self, run):
            for batch in (run.tasks[:2], run.tasks[:2], run.tasks):
                run.wait(batch, "batch", pieces)
            return super().result(run)

    Batches(
        Squares(
            tuple(range(6)), progress=lambda *now: reported.append((*now, len(done)))
        )
    ).run()
    assert done == list(range(5))
    assert reported == [
        (1, 2, 0),
        (2, 2, 1),
        (1, 4, 2),
        (2, 4, 3),
        (3, 4, 4),
        (4, 4, 5),
    ]


def test_examples_of_studies_run():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testmod(_study, optionflags=flags)
    assert results.attempted > 10
    assert results.failed == 0
