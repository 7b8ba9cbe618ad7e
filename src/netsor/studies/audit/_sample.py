"""The work of one part: draws of every quantity, kept where they are done."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...engine import Sampling
from ...engine._montecarlo import Progress
from .._store import Arrays, Store
from ._own import Own
from ._request import Part, probes_of

MOVED = "moved "  # before the name of a quantity: how far its Gaussian expectations move it


def measure(part: Part, folder: Path | None = None, progress: Progress = False) -> Arrays:
    """Do a part, and keep it if there is a folder for it; `progress` is told of its draws.

    The first part of a subject at infinite width has the quadrature error of all parts.
    """
    # others may use the machine too; but programs of one's own share this process with each other
    clock = time.perf_counter if isinstance(part.subject.model, Own) else time.process_time
    start = clock()
    probes, at = probes_of(part.subject), part.subject.at()
    how = Sampling(part.draws, part.stream, workers=1, progress=progress, backend=part.backend)
    arrays: Arrays = dict(probes.named(at.unchecked(how)))
    if part.subject.infinite and part.index == 0:
        moves = at.moves(part.backend)
        signed = np.zeros((1, part.subject.plan.mean.shape[0])) if moves is None else moves.signed
        arrays |= {MOVED + name: moved for name, moved in probes.named(at.split(signed)).items()}
    arrays["seconds"] = np.array(clock() - start)
    if folder is not None:
        Store(folder).save(part.key, arrays)
    return arrays
