"""Published results on wide networks, each compared with the exact law."""

from __future__ import annotations

from pathlib import Path

from ..._validate import Rng
from ...engine._parallel import Progress
from ._study import Finished, LiteratureStudy, Request

__all__ = ["literature"]


def literature(
    *results: str,
    out: str | Path = "literature",
    seed: int = 2,
    rng: Rng = None,
    workers: int | None = None,
    quick: bool = False,
    progress: Progress = True,
) -> Finished:
    """Compare published results with the exact law, as the command `netsor literature`
    does.

    Each statement agrees, disagrees, is undecided, or is outside the range that its
    authors state.

    Parameters
    ----------
    results
        Their names, such as "unit-scaling"; all if none is given.
    out
        The folder for the report, the figures and their data. Finished parts are kept
        there, and a run that was interrupted goes on where it stopped. Files that are
        not of an earlier run are never overwritten.
    seed
        Every number depends on it alone, not on the number of workers. No tolerance was
        chosen on draws of the default.
    rng
        A generator, from which a seed is drawn, or an integer, instead of `seed`.
    workers
        Worker processes; all cores, if None.
    quick
        A first look in about two minutes: smaller networks, fewer draws; the report
        says which.
    progress
        True for a bar on a terminal, False for none, or a function of (parts done,
        parts in all).

    Returns
    -------
    Finished
        With `report`, the path of the page; `claims`, the verdicts by result;
        `summary`, a line.

    Examples
    --------
    >>> import tempfile
    >>> found = ns.literature("unit-scaling", out=tempfile.mkdtemp(), quick=True, workers=1)
    >>> {claim.verdict for claim in found.claims["unit-scaling"]} <= {"agrees", "disagrees"}
    True
    """
    request = Request.of(
        results, quick, out=out, seed=seed, rng=rng, workers=workers, progress=progress
    )
    return LiteratureStudy(request).run()
