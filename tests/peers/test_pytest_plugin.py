"""The fixture `netsor` of the pytest plugin, in a run of pytest of its own."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

TESTS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, std=0.02):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        nn.init.normal_(self.down.weight, std=std)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def test_right(netsor):
    assert netsor.check_init(Net, parameters_only=True).ok


def test_wrong(netsor):
    netsor.check_init(lambda: Net(0.04), parameters_only=True, reference=Net)


def test_incomplete(netsor):
    netsor.check_init(Net)


def test_allowed(netsor):
    netsor.check_init(Net, allow_incomplete=True)


def test_file(netsor):
    netsor.check_init(Net, reference="config.json", parameters_only=True)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_init.py").write_text(TESTS)
    (folder / "tests" / "config.json").write_text("{}")
    words = ["-p", "netsor.pytest_plugin", "-p", "no:cacheprovider", "-q", "tests"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "800", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done.stdout


def _summary(output, name):
    """The line of a test in the summary."""
    return re.search(rf"FAILED tests/test_init.py::{name} - (.*)", output)[1]


def test_a_failure_is_one_line_with_the_first_finding_and_the_coverage(output):
    assert "3 failed, 2 passed" in output
    line = _summary(output, "test_wrong")
    assert line.startswith(
        "Failed: Net differs from Net in down.weight: std: expected 0.02, found 0.0"
    )
    assert "times as large; " in line or "times as large and " in line
    assert line.endswith(
        " tests; all 4 parameters checked; forward and backward pass not checked"
    )
    assert "Parameters that differ" in output  # the whole report


def test_an_incomplete_check_fails_and_says_what_accepts_it(output):
    line = _summary(output, "test_incomplete")
    assert line.startswith("Failed: incomplete (forward pass not checked): ")
    assert "Net has no torch.nn.Embedding for token ids" in line
    assert line.endswith("allow_incomplete=True accepts that")


def test_paths_are_found_in_the_folder_of_the_test(output):
    line = _summary(output, "test_file")
    assert "test_init.py" not in line
    assert "config.json' must be a function that makes a module" in line
