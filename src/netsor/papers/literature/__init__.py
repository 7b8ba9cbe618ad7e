"""Published results on wide networks, each compared with the exact law."""

from __future__ import annotations

from pathlib import Path

from ..._validate import Rng
from ...runtime._parallel import Progress
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
    """Compare published results with the exact law, as `netsor literature` does.

    Each statement agrees, disagrees, is undecided, or is outside the range that its
    authors state.

    Parameters
    ----------
    results
        Their names, such as "unit-scaling"; all if none is given.
    out
        The folder for the report, the figures and their data. Finished parts are kept
        there, and an interrupted run resumes where it stopped. Files that no earlier
        run wrote are never overwritten.
    seed
        Seed of the random numbers, which do not depend on the number of workers. No
        tolerance was chosen on draws of the default seed.
    rng
        A generator from which a seed is drawn, or an integer, instead of `seed`.
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
        Its `report` is the path of the page, `claims` holds the verdicts by result,
        and `summary` is one line.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> result = ns.literature("unit-scaling", out=folder, quick=True, workers=1)
    >>> [claim.verdict for claim in result.claims["unit-scaling"]]
    ['agrees', 'disagrees', 'disagrees', 'agrees']
    """
    request = Request.of(
        results, quick, out=out, seed=seed, rng=rng, workers=workers, progress=progress
    )
    return LiteratureStudy(request).run()
