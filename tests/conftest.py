"""What all tests share: an interrupt is heard, also by the processes that they begin.

A shell that runs the suite in the background lets it ignore interrupts, and processes inherit that.
"""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
