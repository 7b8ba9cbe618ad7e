"""netsor explore on the command line, as far as no page is needed."""

import pytest

from tests.internals import _server

from ..command import netsor

GOOD = (
    "import netsor as ns\nn = ns.Width('n')\n@ns.program\ndef net(heads=2):\n    return"
    " ns.gaussian(n, heads)\n"
)


@pytest.fixture
def served(monkeypatch):
    """What the server was asked for; it shows nothing."""
    asked = []

    def serve(target, port, browser, say):
        say("http://127.0.0.1:1/?access_token=x")
        asked.append((target, port, browser))

    monkeypatch.setattr(_server, "serve", serve)
    return asked


def test_explore_serves_program_at_port(served, tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    result = netsor(
        "explore",
        "mine.py:net[1]",
        "--arg",
        "heads=3",
        "--port",
        "8123",
        "--no-browser",
        cwd=tmp_path,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        result.stdout == "open http://127.0.0.1:1/?access_token=x (Ctrl-C stops it)\n"
    )
    ((target, port, browser),) = served
    assert (port, browser) == (8123, False)
    assert (target.name, target.part, target.arguments) == ("net", 1, {"heads": 3})
    assert target.program().widths == ("n",)
    assert netsor("explore").returncode == 0
    assert served[1] == (None, 0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.py:nothing"], "PROGRAM 'nothing' is not in 'mine.py'"),
        (["mine.py:net", "--arg", "heads=-1"], "cannot be built"),
        (["mine.py:net", "--arg", "tails=1"], "cannot be built"),
        (["mine.py:net[7]"], "has no such part: its shape is (2,)"),
        (["--arg", "heads=2"], "--arg heads=2 needs a FILE:PROGRAM"),
        (["--port", "70000"], "'--port': '70000' must be an integer from 0 to 65,535"),
    ],
)
def test_explore_bad_input_ends_in_one_line(served, tmp_path, arguments, words):
    (tmp_path / "mine.py").write_text(GOOD)
    result = netsor("explore", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not served


def test_explore_reports_taken_port(served, monkeypatch):
    def serve(*_, **__):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(_server, "serve", serve)
    result = netsor("explore", "--port", "8123")
    assert result.returncode == 2
    assert (
        result.stderr == "netsor: --port 8123 cannot be used: Address already in use\n"
    )
