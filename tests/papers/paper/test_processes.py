"""Runs as processes: killed, interrupted, side by side, and in folders full of traps.
No test depends on the clock.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from tests.internals import PaperStudy, Store, _process_pool, _reproduce, figures
from tests.internals import ReproduceRequest as Request

from ...inline import Inline
from ...keep import keep

NETSOR = [sys.executable, "-m", "netsor", "reproduce"]
# the command without pictures, which take most of the time of a small run
UNILLUSTRATED = (
    "from functools import partial\n"
    "from netsor.cli import main\n"
    "from netsor.papers.sakai2025 import _reproduce\n"
    "_reproduce.drawn = partial(dict.fromkeys, ())\n"
    "main()\n"
)
PLAIN = [sys.executable, "-c", UNILLUSTRATED, "reproduce"]
COMMAND = ["2a", "--samples", "3000", "--trials", "8", "--workers", "2"]
TINY = ["2a", "--samples", "600", "--trials", "2", "--workers", "1"]
HANG = 300  # seconds: a deadline that only a hang reaches


def read(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}


def stamps(folder):
    return {
        path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("*.npz")
    }


class Running(subprocess.Popen):
    """A process in a new session; nothing of it is left when the test is over."""

    def __init__(self, command, **how):
        how = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
            "text": True,
            **how,
        }
        super().__init__([str(word) for word in command], start_new_session=True, **how)

    def __exit__(self, *error):
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for number in members(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, sent)
        super().__exit__(*error)

    def until(self, condition):
        """Wait until something holds, or the process is over."""
        deadline = time.monotonic() + HANG
        while not condition() and self.poll() is None:
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(0.01)

    def gone(self):
        """Wait until no process of its session is left."""
        deadline = time.monotonic() + HANG
        while members(self.pid):
            assert time.monotonic() < deadline, "a worker is left"
            time.sleep(0.01)

    def ended(self):
        """What it wrote to stderr, at its end."""
        return self.communicate(timeout=HANG)[1]


def members(session):
    """The processes of a session that still run."""
    alive = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                alive.append(int(name))
    return alive


@pytest.fixture
def inline(monkeypatch):
    """In this process, without pictures: what is asked are the numbers, and what was
    kept.
    """
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    monkeypatch.setattr(_reproduce, "drawn", lambda data: {})


@pytest.mark.slow
@pytest.mark.parametrize("kills", keep([1, 20], 1))
def test_killed_run_resumes_with_same_results(kills, inline, tmp_path):
    """kill −9 when some more parts are there, then once more to the end: the bytes of
    an undisturbed run.
    """
    moment = random.Random(kills)
    kept = {}
    for _ in range(kills):
        with Running(
            [*PLAIN, *COMMAND, "--out", tmp_path], stderr=subprocess.DEVNULL
        ) as run:
            more = len(kept) + moment.randint(1, 8)
            run.until(lambda more=more: len(stamps(tmp_path)) >= more)
            run.kill()
            run.wait(HANG)
        now = stamps(tmp_path)
        # what was finished stays as it was
        assert all(now[name] == kept[name] for name in kept)
        kept = now
    for out in (tmp_path, tmp_path / "undisturbed"):
        PaperStudy(Request(("2a",), out=out, samples=3000, trials=8)).run()
    now = stamps(tmp_path)
    assert all(now[name] == kept[name] for name in kept)
    assert read(tmp_path) == read(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_interrupts_and_kills_leave_no_workers_and_whole_parts(sent, tmp_path):
    """An endless run, so that it is the signal that ends it."""
    command = [
        *NETSOR,
        "5",
        "--samples",
        "20000",
        "--trials",
        "300",
        "--workers",
        "2",
        "--out",
        tmp_path,
    ]
    with Running(command) as run:
        run.until(lambda: len(stamps(tmp_path)) >= 2)
        # a second one changes nothing
        for _ in range(2 if sent == signal.SIGINT else 1):
            run.send_signal(sent)
        # stderr is at its end when the last process that had it is gone
        error = run.ended()
        if sent == signal.SIGINT:
            assert run.returncode == 130, error
            assert (
                error.splitlines()[-1]
                == "netsor: interrupted; finished trials are kept; the same command"
                " resumes"
            )
            assert "Traceback" not in error
        run.gone()
    store = Store(tmp_path / "parts")
    plan = Request(("5",), out=tmp_path, samples=20000, trials=300).plan
    kept = [
        part for part in plan.parts(figures()["5b"]) if store.path(part.key).exists()
    ]
    assert kept
    assert all(store.load(part.key) is not None for part in kept)


@pytest.mark.slow
def test_run_ended_at_once_prints_one_line(tmp_path):
    """Python's tracker of semaphores had the last word, if the main thread was busy and
    the process was ended.
    """
    busy = "from netsor.cli import _main, main\n_main.GRACE = 0.0\nmain()\n"
    more = [
        "reproduce",
        "5",
        "--samples",
        "20000",
        "--trials",
        "300",
        "--workers",
        "2",
        "--out",
        tmp_path,
    ]
    with Running([sys.executable, "-c", busy, *more]) as run:
        run.until(lambda: len(stamps(tmp_path)) >= 1)
        run.send_signal(signal.SIGINT)
        error = run.ended()
        assert run.returncode == 130
    kept = "finished trials are kept; the same command resumes"
    assert error.splitlines()[-1] == f"netsor: interrupted; {kept}"


@pytest.mark.slow
def test_two_runs_in_one_folder_give_whole_results(inline, tmp_path):
    small = [*PLAIN, *TINY, "--out", tmp_path]
    with Running(small) as one, Running([*small, "--seed", "7"]) as two:
        assert [run.wait(HANG) for run in (one, two)] == [0, 0]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    options = Request(("2a",), out=tmp_path / "alone", samples=600, trials=2, workers=1)
    PaperStudy(options).run()
    right = read(tmp_path / "alone")
    assert (read(tmp_path) == right) == (manifest["seed"] == 0)
    before = stamps(tmp_path)
    assert len(before) == 8
    PaperStudy(Request(("2a",), out=tmp_path, samples=600, trials=2, workers=1)).run()
    assert stamps(tmp_path) == before
    assert read(tmp_path) == right


@pytest.mark.slow
def test_waiting_run_prints_notice(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    with (
        FileLock(tmp_path / ".netsor.lock"),
        Running([*PLAIN, *TINY, "--out", tmp_path]) as run,
    ):
        assert run.stderr.readline().startswith(
            "netsor: figure 2a: 2 trials of 600 draws"
        )
        assert (
            run.stderr.readline()
            == f"netsor: waiting for another run to leave {tmp_path}\n"
        )
        assert not (tmp_path / "report.html").exists()
        run.send_signal(signal.SIGINT)
        assert run.ended().startswith("netsor: interrupted")
        assert run.returncode == 130


TRAP = (
    "import os\nos.close(os.open({sprung!r}, os.O_CREAT))\nraise ImportError('a"
    " trap')\n"
)
NAMES = [
    "signal",
    "pickle",
    "numpy",
    "scipy",
    "multiprocessing",
    "threading",
    "struct",
    "matplotlib",
    "tqdm",
    "random",
]


@pytest.mark.slow
def test_nothing_is_imported_from_a_folder_of_data_and_a_script_needs_no_guard(
    tmp_path,
):
    """As the installed command does it: a script in another folder, started where the
    data are.

    Its workers do not import it either, so that it says what it says once.
    """
    script, data = tmp_path / "bin" / "netsor", tmp_path / "data"
    script.parent.mkdir()
    data.mkdir()
    script.write_text(
        "import sys\nfrom netsor.cli import main\nprint('begun',"
        " flush=True)\nsys.exit(main())\n"
    )
    for name in NAMES:
        (data / f"{name}.py").write_text(
            TRAP.format(sprung=str(tmp_path / f"{name}-was-imported"))
        )
    with Running(
        [sys.executable, script, "reproduce", *TINY], cwd=data, stdout=subprocess.PIPE
    ) as run:
        out, error = run.communicate(timeout=HANG)
    assert not list(tmp_path.glob("*-was-imported"))
    assert (run.returncode, error.count("\n")) == (0, 1), error
    assert error.startswith("netsor: figure 2a: 2 trials of 600 draws; about ")
    assert out.count("begun") == 1
    assert (data / "results" / "report.html").exists()
