"""The pytest plugin is cheap to import, and is entered where pytest looks for it."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = ("numpy", "scipy", "torch", "matplotlib", "jax", "click")


def test_plugin_imports_nothing_slow():
    code = f"import sys, netsor.pytest_plugin; print({SLOW} & sys.modules.keys())"
    code = code.replace(str(SLOW), f"set({SLOW})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done


def test_plugin_is_an_entry_point_of_pytest():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"netsor": "netsor.pytest_plugin"}
