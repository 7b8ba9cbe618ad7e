"""The fixture `netsor` of the pytest plugin, in a run of pytest of its own."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TESTS = """
import logging

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, std=0.02):
        super().__init__()
        logging.getLogger("transformers").warning("a table is large")
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
    return _run(folder)


def test_failures_show_no_log_of_other_libraries(output):
    assert "failed" in output
    assert "a table is large" not in output


MODEL = """
from dataclasses import dataclass

from torch import nn


@dataclass
class GPTConfig:
    n_layer: int = 2


class Block(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        nn.init.normal_(self.up.weight, std=0.02)
        nn.init.normal_(self.down.weight, std=std)


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        std = 0.02 / (2 * config.n_layer) ** 0.5
        self.h = nn.ModuleList(Block(std) for _ in range(config.n_layer))
"""
PAGE = Path(__file__).parents[2] / "docs" / "test-your-initialisation.md"


def _run(folder):
    words = ["-p", "netsor.pytest_plugin", "-p", "no:cacheprovider", "-q", "."]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "800", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ).stdout


def test_recipe_of_the_page_passes_and_fails_as_the_page_says(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    recipe = re.search(r"```py\n(import math.*?)```", page, re.DOTALL)[1]
    (tmp_path / "test_init.py").write_text(recipe)
    (tmp_path / "my_model.py").write_text(MODEL)
    assert "1 passed" in _run(tmp_path)
    without_depth = MODEL.replace("0.02 / (2 * config.n_layer) ** 0.5", "0.02")
    (tmp_path / "my_model.py").write_text(without_depth)
    failure = re.search(r"FAILED .*::test_init - Failed: (.*)", _run(tmp_path))[1]
    printed = re.search(r"^GPT differs .*$", page, re.MULTILINE)[0]
    assert _without_numbers(failure) == _without_numbers(printed)


def _without_numbers(text):
    return re.sub(r"\d[\d.]*(e-\d+)?", "#", text)


def test_declarations_of_the_page_are_read():
    torch = pytest.importorskip("torch")
    import scipy.stats

    import netsor as ns

    def build():
        net = torch.nn.Module()
        net.mixer = torch.nn.Module()
        net.mixer.in_proj = torch.nn.Linear(32, 64, bias=False)
        torch.nn.init.normal_(net.mixer.in_proj.weight, std=0.02)
        net.mixer.norm = torch.nn.LayerNorm(32, bias=False)
        dt = torch.exp(torch.empty(128).uniform_(math.log(1e-3), math.log(0.1)))
        decay = torch.rand(128) + torch.arange(2).repeat_interleave(64)
        net.mixer.dt = torch.nn.Parameter(dt)
        net.mixer.decay = torch.nn.Parameter(decay)
        return net

    page = PAGE.read_text(encoding="utf-8")
    code = re.search(r"```py\n(check = .*?)```", page, re.DOTALL)[1]
    names = {"ns": ns, "scipy": scipy, "build": build}
    exec(code, names)
    assert names["check"].ok, str(names["check"])
    assert not names["check"].unchecked


def _summary(output, name):
    """The line of a test in the summary."""
    return re.search(rf"FAILED tests/test_init.py::{name} - (.*)", output)[1]


def test_failure_is_one_line_with_the_first_finding_and_the_coverage(output):
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


def test_incomplete_check_fails_and_says_what_accepts_it(output):
    line = _summary(output, "test_incomplete")
    assert line.startswith("Failed: incomplete (forward pass not checked): ")
    assert "Net has no torch.nn.Embedding for token ids" in line
    assert line.endswith("allow_incomplete=True accepts that")


def test_paths_are_found_in_the_folder_of_the_test(output):
    line = _summary(output, "test_file")
    assert "test_init.py" not in line
    assert "config.json' must be a function that makes a module" in line
