"""The work of one part: draws of all that is measured, kept where they are done."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...engine import Sampling
from .._store import Arrays, Store
from ._subject import Part


def measure(part: Part, folder: Path | None = None) -> Arrays:
    """Do a part, and keep it if there is a folder for it."""
    # others may use the machine too; but programs of one's own share this process with each other
    clock = time.perf_counter if part.subject.model is None else time.process_time
    start = clock()
    with np.errstate(over="ignore", invalid="ignore"):  # what a step blows up is told as that
        how = Sampling(part.draws, part.stream, workers=1, progress=False, backend=part.backend)
        (found,) = part.subject.program._at(part.subject.widths).unchecked(how)  # `Check` has the quadrature errors
    arrays: Arrays = {"numbers": found, "seconds": np.array(clock() - start)}
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays
