"""What the numbers of a part depend on: its key on disk, and its seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.backends import Backend, Numpy


def keyed(made: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """A key, with the backend unless it is the default."""
    return made if backend == Numpy() else {**made, "backend": str(backend)}


def seeded(*numbers: int) -> int:
    """One seed from several numbers: parts that differ in one of them are independent."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
