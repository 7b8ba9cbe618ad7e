"""The work of one part: draws of every quantity, kept where they are done."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...engine._montecarlo import Progress
from .._store import Arrays, Store
from ._request import Part, probes_of


def measure(part: Part, folder: Path | None = None, progress: Progress = False) -> Arrays:
    """Do a part, and keep it if there is a folder for it; `progress` is told of its draws."""
    start = time.process_time()  # others may use the machine too
    probes = probes_of(part.subject)
    arrays: Arrays = dict(
        probes.measure(
            draws=part.draws,
            seed=part.stream,
            workers=1,
            progress=progress,
            backend=part.backend,
            **part.subject.widths,  # type: ignore[arg-type]
        )
    )
    arrays["seconds"] = np.array(time.process_time() - start)
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays
