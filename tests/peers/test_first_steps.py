"""The script that compares real runs with their bands goes through its motions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "first_steps.py"
SMALL = [
    *("--device", "cpu", "--layers", "1", "--width", "16", "--vocabulary", "11100"),
    *("--sequences", "1", "--tokens", "8", "--initialisations", "24"),
]

pytestmark = pytest.mark.peers


def called(action, out, *more):
    """The output of the script."""
    command = [sys.executable, str(SCRIPT), action, "--out", str(out), *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_runs_resume_and_are_checked_again(tmp_path):
    called("run", tmp_path, *SMALL, "--seeds", "2")
    first = (tmp_path / "first_steps.csv").read_text().splitlines()
    document = json.loads((tmp_path / "first_steps.json").read_text())
    assert document["runs"] == 2
    assert document["criterion met"]
    assert document["alarms"]["all columns"] == []
    assert all(
        verdict.startswith("FLAG") for verdict in document["mistakes"].values()
    ), document["mistakes"]
    output = called("run", tmp_path, *SMALL, "--seeds", "3")
    assert "from 3 seeds for steps 0 to 5" in " ".join(output.split())
    logs = (tmp_path / "first_steps.csv").read_text().splitlines()
    assert logs[: len(first)] == first
    assert len(logs) == len(first) + 6
    assert called("check", tmp_path) in output


def test_other_settings_are_not_mixed(tmp_path):
    settings = {"settings": {"layers": 12}}
    (tmp_path / "first_steps.json").write_text(json.dumps(settings))
    with pytest.raises(subprocess.CalledProcessError) as error:
        called("run", tmp_path, *SMALL)
    assert "has other settings: choose another --out" in error.value.stderr


def test_page_has_what_the_stored_logs_show(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import first_steps

    document = json.loads((first_steps.RESULTS / "first_steps.json").read_text())
    logs = first_steps.Logs(first_steps.RESULTS / "first_steps.csv")
    settings = first_steps.Settings(**document["settings"])
    again = first_steps.summary(logs, first_steps.stored_law(logs, settings))
    assert again["alarms"] == document["alarms"]
    page = first_steps.PAGE.read_text()
    for part in (first_steps.sentences, first_steps.table, first_steps.mistakes):
        assert part(document) in page
