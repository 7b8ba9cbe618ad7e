"""The command as a process: its streams, its signals, its surroundings. No test depends
on the clock.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import netsor
from tests.internals import _main

NETSOR = [sys.executable, "-m", "netsor"]
QUICK = ["law", "--width", "8", "--draws", "100"]
HANG = 300  # seconds: a deadline that only a hang reaches
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


def run(*words, **how):
    how = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "timeout": HANG,
        **how,
    }
    return subprocess.run([*NETSOR, *words], check=False, **how)


def shell(command, **how):
    """Through a shell, which can close streams."""
    words = f"{sys.executable} -m netsor {command}"
    return subprocess.run(
        ["sh", "-c", words],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **how,
    )


@POSIX
def test_second_interrupt_is_ignored():
    """With SIG_IGN Python prints "Signal 2 ignored due to race condition" and a
    traceback if both come at once.
    """
    before = signal.signal(signal.SIGINT, _main._once)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert callable(signal.getsignal(signal.SIGINT))
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@POSIX
def test_watch_restores_wakeup_descriptor():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with _main.Watch():
            pass
        assert signal.set_wakeup_fd(before) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


@pytest.mark.slow
@POSIX
def test_closed_stderr_is_no_error():
    result = shell(" ".join([*QUICK, "--json", "2>&-"]))
    assert result.returncode == 0
    assert json.loads(result.stdout)["variance"] > 0
    assert shell("law --heads 0 2>&-").returncode == 2


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced(closed, tmp_path):
    """A picture must not get the number of a closed stream, and with it what others
    print.
    """
    environment = {**os.environ, "MPLBACKEND": "nonsense"}  # is of no concern
    result = shell(
        " ".join([*QUICK, "--plot", "p.svg", closed]), cwd=tmp_path, env=environment
    )
    assert result.returncode == 0
    assert (tmp_path / "p.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
@POSIX
def test_unwritable_stdout_is_reported():
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    result = shell(" ".join([*QUICK, "> /dev/full"]))
    assert result.returncode == 2
    assert result.stderr.startswith("netsor: a file cannot be read or written: ")
    assert result.stderr.count("\n") == 1


NETWORKS = """
import netsor as ns

n = ns.Width("n")
w, x = ns.weight(n, n), ns.gaussian(n)
net = ns.Program(w @ x)
none = ns.Program(ns.dot(w @ x, w @ x))
"""


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(
    "words",
    [
        ["check", "mine.py:net"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["check", "mine.py:none"],
                ["check", "mine.py:net", "--json"],
                QUICK,
                ["plan"],
                ["--help"],
                [],
            )
        ),
    ],
)
def test_closed_pipe_exits_with_141(words, tmp_path):
    """141, as a shell has it for SIGPIPE, from every command: 1 is the verdict of a
    check.
    """
    (tmp_path / "mine.py").write_text(NETWORKS)
    end, pipe = os.pipe()
    os.close(end)
    try:
        result = run(*words, cwd=tmp_path, stdout=pipe)
    finally:
        os.close(pipe)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
def test_output_in_ascii_terminal():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = run(*QUICK, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "variance" in result.stdout
    assert run("law", "--help", env=environment).returncode == 0
    result = run("law", "--heads", "∞", env=environment)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
@POSIX
def test_path_not_in_utf8_is_rejected(tmp_path):
    for option in (["reproduce", "--out"], ["law", "--plot"]):
        words = [os.fsencode(word) for word in [*NETSOR, *option]]
        result = subprocess.run(
            [*words, b"\xff.png"],
            cwd=tmp_path,
            capture_output=True,
            timeout=HANG,
            check=False,
        )
        assert result.returncode == 2
        assert result.stderr.endswith(b"must be a name in UTF-8\n")
        assert not list(tmp_path.iterdir())


REPRODUCE = ["reproduce", "2a", "--samples", "100", "--trials", "1", "--workers", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*QUICK, "--plot", "p.png"], "wrote p.png\n"),
        (REPRODUCE, "netsor: figure 2a: "),
    ],
)
def test_bad_mplbackend_is_ignored(words, said, tmp_path):
    result = run(*words, cwd=tmp_path, env={**os.environ, "MPLBACKEND": "nonsense"})
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith(said)


@pytest.mark.slow
def test_json_redirects_prints_of_file_to_stderr(tmp_path):
    """Below Python too."""
    (tmp_path / "mine.py").write_text(
        "import os, subprocess, sys\n"
        "import netsor as ns\n"
        "print('printed')\n"
        "sys.__stdout__.write('written')\n"
        "sys.__stdout__.flush()\n"
        "os.write(1, b'below')\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "net = ns.Program(ns.weight(3, 4) @ ns.gaussian(4))\n"
    )
    result = run("law", "mine.py:net", "--draws", "100", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["variance"] > 0
    assert "printed" in result.stderr
    assert "below" in result.stderr


@POSIX
@pytest.mark.parametrize("entry", ["-m", "script"])
def test_interrupt_while_libraries_load_ends_in_one_line(entry, tmp_path):
    """numpy is one that waits for the signal, so that it comes while the libraries are
    loaded.
    """
    (tmp_path / "numpy.py").write_text(
        "print('loading', flush=True)\nimport time\ntime.sleep(600)\n"
    )
    script = tmp_path / "netsor"
    script.write_text("from netsor.cli import main\nmain()\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(tmp_path), os.environ.get("PYTHONPATH", "")]
        ),
    }
    words = [
        sys.executable,
        *(["-m", "netsor"] if entry == "-m" else [str(script)]),
        "law",
    ]
    out, error, code = interrupted(words, env=environment)
    assert (out, error, code) == ("", "netsor: interrupted\n", 130)


SLOW = """
import sys, threading, time
import netsor as ns
n = ns.Width("n")

@ns.program
def {name}():
    return ns.weight(n, n) @ ns.nonlin(f, ns.gaussian(n))

calls = []
def f(x):
    if x.size > 400:  # a chunk, not a probe
        print("begun", flush=True)
        {wait}
    return x
"""


@POSIX
@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(600)",  # a block that cannot be stopped, in a thread
        pytest.param("time.sleep(0.01)", marks=pytest.mark.slow),  # blocks without end
    ],
)
def test_interrupt_during_the_work_ends_in_one_line(wait, tmp_path):
    (tmp_path / "mine.py").write_text(SLOW.format(name="net", wait=wait))
    words = [*NETSOR, "law", "mine.py:net", "--bind", "n=100000", "--draws", "1000000"]
    _, error, code = interrupted(words, cwd=tmp_path)
    announced, said = error.splitlines()
    assert announced.startswith("netsor: this will take about")
    assert (said, code) == ("netsor: interrupted", 130)


@pytest.mark.slow
@POSIX
def test_interrupt_of_a_busy_main_thread_ends_in_one_line(tmp_path):
    """A step of the main thread that Python cannot interrupt: a key derivation of
    hours.
    """
    (tmp_path / "mine.py").write_text(
        "import hashlib\nprint('begun', flush=True)\nhashlib.pbkdf2_hmac('sha256',"
        " b'x', b'y', 2**31 - 1)\n"
    )
    _, error, code = interrupted([*NETSOR, "law", "mine.py:net"], cwd=tmp_path)
    assert (error, code) == ("netsor: interrupted\n", 130)


def interrupted(words, **how):
    """Start it, wait until it says something, interrupt it twice."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how
    ) as process:
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=HANG)
        finally:
            process.kill()
    return out, error, process.returncode


@pytest.mark.slow
@POSIX
def test_removed_working_folder_ends_in_one_line(tmp_path):
    """What needs no folder is done; what does names the option."""
    config = {
        "model_type": "gpt2",
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 16,
        "vocab_size": 20,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    gone = tmp_path / "gone"
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(netsor.__file__).parents[1]),
    }  # not found through the folder that is gone
    for words, code, said in (
        (
            [
                "audit",
                str(tmp_path / "tiny.json"),
                "--tokens",
                "2",
                "--draws",
                "15",
                "--workers",
                "1",
            ],
            0,
            "tiny: no problem found",
        ),
        (
            ["reproduce", "1b", "--quick"],
            2,
            "--out 'results' must be a writable folder",
        ),
    ):
        gone.mkdir()
        command = (
            f"cd {gone} && rmdir {gone} && exec {sys.executable} -m netsor"
            f" {' '.join(words)}"
        )
        result = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
            env=env,
        )
        assert result.returncode == code, result.stderr
        assert said in (result.stderr if code else result.stdout)
        assert "Traceback" not in result.stderr


@POSIX
def test_interrupt_while_watch_is_set_up():
    """It was a traceback: the thread that watches has not begun, and Python's handler
    has been replaced.
    """
    early = (
        "import threading\nfrom netsor.cli import main\ndef start(self): raise"
        " KeyboardInterrupt\nthreading.Thread.start = start\nmain()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", early, "law"],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert (result.returncode, result.stderr) == (130, "netsor: interrupted\n")
