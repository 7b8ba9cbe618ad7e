"""The paper's experiments: figures, their data, and a report on its claims."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from ..._validate import Rng

if TYPE_CHECKING:
    from ._reproduce import Finished

__all__ = ["reproduce"]


def reproduce(
    *figures: str,
    out: str | Path = "results",
    samples: int | None = None,
    trials: int | None = None,
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    quick: bool = False,
    estimator: str = "both",
    tokens: int = 16,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
) -> Finished:
    """Recompute the paper's figures and check its claims, as `netsor reproduce` does.

    The result is a folder with the figures, their data and a report. Finished trials
    are kept there, and an interrupted run resumes where it stopped.

    Parameters
    ----------
    *figures : str
        Names such as "1b" or groups such as "exp1"; all, if none is given.
    out : str or pathlib.Path
        The folder. Files in it that no earlier run wrote are never overwritten.
    samples : int, optional
        Draws per trial. The default is the paper's number.
    trials : int, optional
        The default is ten, as in the paper.
    seed : int
        Seed of the random numbers.
    rng : numpy.random.Generator or int, optional
        A generator from which a seed is drawn, or an integer, instead of `seed`.
    workers : int, optional
        Processes; all cores, if None.
    quick : bool
        Few draws and trials: a minute or so.
    estimator : str
        How KL is estimated: "paper", "exact" or "both".
    tokens : int
        The larger number of tokens of figure 4.
    backend : str
        The array library, as in `Program.law`; a device is used by only one process.
    device : str, optional
        The device of the backend, such as "cuda"; a GPU by default, if there is one.
    precision : str
        The precision of numbers, "float64" or "float32".
    executor : concurrent.futures.Executor, optional
        Runs the trials instead of local processes, for example on a cluster.

    Returns
    -------
    Finished
        The result: the report's path, and the claims.

    Examples
    --------
    >>> try:
    ...     ns.paper.reproduce("9z")
    ... except ValueError as error:
    ...     print(str(error).partition(",")[0])
    ...
    names='9z' must be one of 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b heads
    """
    # matplotlib is slow to import, and seldom needed
    from ._reproduce import PaperStudy, Request

    request = Request.of(
        figures,
        samples,
        trials,
        quick,
        estimator,
        tokens,
        out=out,
        seed=seed,
        rng=rng,
        workers=workers,
        backend=backend,
        device=device,
        precision=precision,
    )
    return PaperStudy(request).run(executor)
