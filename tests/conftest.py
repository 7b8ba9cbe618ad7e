"""What all tests share: an interrupt is heard, garbage is looked for less often, and the
clock fails no test; audits without pictures.
"""

import gc
import signal

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


def pytest_collection_finish():
    """Looking for cycles after every 700 new objects, the default, takes 4 % longer."""
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def unillustrated(monkeypatch):
    """Reports of audits without pictures, which take most of their time."""
    from tests.internals import Figure
    from tests.internals import audit_plots as _plots

    monkeypatch.setattr(
        _plots, "svg_figure", lambda name, *_: Figure(name, "", lambda: b"<svg/>")
    )
