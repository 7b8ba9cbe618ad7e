"""The work of one part: draws of all that is measured, kept where they are done."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from .._store import Arrays, Store
from ._subject import Part


def measure(part: Part, folder: Path | None = None) -> Arrays:
    """Do a part, and keep it if there is a folder for it."""
    start = time.process_time()  # others may use the machine too
    with np.errstate(over="ignore", invalid="ignore"):  # what a step blows up is told as that
        found = part.subject.program.draw(
            draws=part.draws,
            seed=part.stream,
            workers=1,
            progress=False,
            backend=part.backend,
            **part.subject.widths,  # type: ignore[arg-type]
        )
    assert isinstance(found, np.ndarray)  # there is one output
    arrays: Arrays = {"numbers": found, "seconds": np.array(time.process_time() - start)}
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays
