"""What all tests share: an interrupt is heard, garbage is looked for less often, and the
clock fails no test; audits without pictures.
"""

import contextlib
import gc
import importlib
import signal
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass  # tests in a browser and in Pyodide do without it
else:
    # How long an example takes says nothing about it where the machine is busy.
    settings.register_profile(
        "any clock", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any clock")

# A shell that runs the suite in the background lets it ignore interrupts, and processes
# that tests begin inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Looking for cycles after every 700 new objects, the default, takes 4 % longer.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish():
    """What was imported and collected stays until the end: no look for cycles visits it
    again.
    """
    gc.freeze()


def pytest_collection(session):
    """Worker processes begin to import at different files, so that one process and not
    each of them compiles a file. Collection follows, in the same order in all.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    modules = modules_to_collect(session.config)
    first = len(modules) * int(worker["workerid"][2:]) // worker["workercount"]
    for module in modules[first:] + modules[:first]:
        # collection imports it again, and reports what is wrong
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(module)


def modules_to_collect(config):
    """The names of the modules in the folders and files that pytest was given."""
    ignored = [Path(path).absolute() for path in config.getoption("ignore") or []]
    files = []
    for argument in config.args:
        path = Path(argument.split("::")[0]).absolute()
        files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [
        ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        for file in files
        if not any(file.is_relative_to(folder) for folder in ignored)
    ]


@pytest.fixture
def unillustrated(monkeypatch):
    """Reports of audits without pictures, which take most of their time."""
    from tests.internals import Figure
    from tests.internals import audit_plots as _plots

    monkeypatch.setattr(
        _plots, "svg_figure", lambda name, *_: Figure(name, "", lambda: b"<svg/>")
    )
