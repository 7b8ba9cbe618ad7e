"""What all commands that run a study say of it: refused or announced, and what is left
when it ends early.
"""

from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import click
import pytest

from netsor import studies
from netsor.studies import Cost
from tests.internals import (
    ArgumentError,
    Command,
    Numpy,
    Place,
    TraceError,
    Watch,
    run_study,
)


class Far(Numpy):
    """A device that is none of the cores."""

    kind = "cuda"


HERE, THERE = Place(Numpy()), Place(Far("cuda:1"))
COST = Cost(seconds=20.0, first=10.0, bytes=2.0**30, random_numbers=123_456, workers=1)


@dataclass(frozen=True)
class Request(studies.Request):
    mine: bool = False

    title: ClassVar[str] = "net: 2 draws"
    smaller: ClassVar[str] = "fewer draws"
    remark: ClassVar[str] = "And more."
    files: ClassVar[tuple[str, ...]] = ()

    @property
    def is_user_program(self):
        return self.mine

    def options(self):
        return {}


def fails(error):
    def run(*_):
        raise error

    return run


def run(
    request,
    run=lambda executor: "found",
    prepare=lambda: None,
    cost=COST,
    watch=None,
    where=HERE,
):
    study = SimpleNamespace(
        request=request,
        least_seconds=lambda: 0.0,
        estimate=lambda: cost,
        cheaper=lambda cost: "",
        saved_memory=lambda: "",
        prepare=prepare,
        run=run,
    )
    return run_study(watch or Watch(), where, lambda: study)


def test_study_is_announced_and_run(capsys):
    seen = []
    assert run(Request(), lambda executor: seen.append(executor) or "found") == "found"
    assert seen == [None]
    text = "netsor: net: 2 draws; about 30 s and 1 GiB on 1 worker. And more.\n"
    assert capsys.readouterr().err == text


def test_reuse_of_finished_parts_is_announced(tmp_path, capsys):
    (tmp_path / "parts").mkdir()
    for out in (tmp_path, None):
        run(Request(out=out))
        assert "are reused" not in capsys.readouterr().err
    (tmp_path / "parts" / "0.npz").write_bytes(b"")
    run(Request(True, out=tmp_path))  # whose parts are never kept
    assert "are reused" not in capsys.readouterr().err
    run(Request(out=tmp_path))
    text = " ".join(capsys.readouterr().err.split())
    assert "on 1 worker. Finished parts in --out are reused. And more." in text


def test_no_time_is_announced_on_device(capsys):
    """Times are those of cores."""
    assert run(Request(), cost=COST._replace(seconds=1e9), where=THERE) == "found"
    text = "netsor: net: 2 draws; on cuda:1. And more.\n"
    assert capsys.readouterr().err == text


def test_long_or_wrong_study_is_rejected_before_writing():
    never = fails(AssertionError("it is begun"))
    with pytest.raises(
        click.UsageError,
        match=r"net: 2 draws would take about 2\.3 days\. Fewer draws take less\.",
    ):
        run(Request(), never, never, COST._replace(seconds=200_000.0))
    with pytest.raises(click.UsageError, match="what is wrong"):
        run_study(Watch(), HERE, fails(ValueError("what is wrong")))


@pytest.mark.parametrize(
    ("request_", "left"),
    [
        (Request(), "nothing was kept; with --out DIR finished draws are"),
        (Request(out=Path("out")), "finished draws are kept; the same command resumes"),
        (
            Request(True, out=Path("out")),
            "nothing was kept: finished draws are kept of models only",
        ),
    ],
)
def test_killed_worker_message_says_what_is_kept(request_, left, capsys):
    """Draws of a custom program are never kept: a folder does not change that."""
    watch = Watch()
    with pytest.raises(click.exceptions.Exit) as stop:
        run(request_, fails(BrokenProcessPool()), watch=watch)
    assert stop.value.exit_code == 1
    assert watch.message == f"interrupted; {left}"
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "netsor: a worker was killed, perhaps because memory ran out: use fewer"
        f" --workers; {left}"
    )


def test_unwritable_out_is_reported():
    full = OSError(28, "No space left on device")
    with pytest.raises(
        click.UsageError,
        match="--out 'out' must be a writable folder: No space left",
    ):
        run(Request(out=Path("out")), prepare=fails(full))
    with pytest.raises(OSError, match="No space"):
        run(Request(), fails(full))  # no --out to blame
    with pytest.raises(click.UsageError, match="what is wrong"):
        run(Request(), fails(ValueError("what is wrong")))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ArgumentError("tokens", 3, "even"), "--tokens 3 must be even"),
        (ArgumentError("model", "gpt3", "known"), "MODEL 'gpt3' must be known"),
        (
            ArgumentError("parametrisation", "odd", "known"),
            "--parametrisation 'odd' must be known",
        ),
        (ArgumentError("ranges", True, "left out"), "--ranges must be left out"),
        (ArgumentError("layers", 3, "even"), "layers=3 must be even"),
        (TraceError("softmax", "tokens", 3, "even"), "--tokens 3 must be even"),
    ],
)
def test_argument_errors_name_options(error, said):
    """The name of an argument finds its option: no message is rewritten."""

    def refuse(**options):
        raise error

    options = ["--tokens"], ["--parametrisation", "rules"], ["--ranges"]
    params = [click.Argument(["model"]), *map(click.Option, options)]
    command = Command("check", callback=refuse, params=params)
    with pytest.raises(click.UsageError) as caught:
        command.main(["gpt2"], standalone_mode=False)
    assert caught.value.message == said


def test_other_errors_are_not_converted():
    with pytest.raises(ValueError, match="an error of ours"):
        Command(
            "check", callback=lambda: fails(ValueError("an error of ours"))(None)
        ).main([], standalone_mode=False)
