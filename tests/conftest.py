"""What all tests share: an interrupt is heard, and garbage is looked for less often."""

import gc
import signal

# A shell that runs the suite in the background lets it ignore interrupts, and processes that tests begin inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """What collecting made stays. Looking for cycles after every 700 new objects, the default, takes 4 % longer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
