"""What all tests share: an interrupt is heard, and garbage is looked for less often;
audits without pictures.
"""

import gc
import signal

import pytest

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
