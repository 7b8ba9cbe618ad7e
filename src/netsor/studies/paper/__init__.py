"""The paper's model and experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ._layer import ACTIVATIONS, layer

if TYPE_CHECKING:
    from ._reproduce import Finished

__all__ = ["ACTIVATIONS", "layer", "reproduce"]


def reproduce(
    *figures: str,
    out: str | Path = "results",
    samples: int | None = None,
    trials: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    quick: bool = False,
    estimator: str = "both",
    tokens: int = 16,
) -> Finished:
    """The paper's figures, their data, and a report on its claims, as the command `netsor reproduce` does it.

    `figures` are names such as "1b" or groups such as "exp1", all of them if none is given. `samples` and `trials` are
    the paper's unless given, `tokens` the larger number of tokens of figure 4. Trials are done by `workers` processes
    (all cores, if None) and kept in `out` as they finish; a run that was interrupted goes on where it stopped. Files in
    `out` that are not of an earlier run are never overwritten.
    """
    if not str(out):
        raise ValueError("out='' must name a folder; for the current one give '.'")
    from . import _reproduce  # matplotlib is slow to import, and seldom needed

    options = _reproduce.Options(figures, Path(out), samples, trials, seed, workers, quick, estimator, tokens)
    return _reproduce.reproduce(options)
