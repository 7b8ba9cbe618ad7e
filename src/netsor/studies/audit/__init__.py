"""An audit of a transformer before it is trained: what it does at initialisation, block by block, as laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine._montecarlo import Progress
from ...engine.backends import choose
from ...models import Transformer, read

if TYPE_CHECKING:
    from ._audit import Audit

__all__ = ["audit"]


def audit(
    model: str | Path | Mapping[str, Any] | Transformer | Any,
    *,
    compare: str | Path | Mapping[str, Any] | Transformer | Any = None,
    tokens: int = 16,
    ids: Sequence[int] | None = None,
    draws: int = 200,
    widths: str = "both",
    seed: int = 0,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
    progress: Progress = True,
    gradients: bool | None = None,
) -> Audit:
    """What a transformer does at initialisation, block by block, over `draws` initialisations: no weight is drawn.

    `model` and `compare`, a second model to compare it with, are what `ns.models.read` takes, or a `Transformer`:
    `ns.audit("gpt2", compare=ns.models.read("gpt2").replace(std=0.01))`. The input is `tokens` different ids, or the
    given `ids`. `widths` are the model's own ("actual"), "inf", or "both". The draws depend on the seed alone, not on
    the number of worker processes (all cores, if None). With `out`, a folder, finished parts are kept there as they are
    done, an interrupted audit goes on where it stopped, and the report is written at the end.

    With `gradients` the backward half is measured too, of the loss of the first step (of a random readout, if there are
    no logits): the stream's gradient after each block, and the squared gradient of each kind of weight. None: where the
    plan says that this costs at most twice as much, for every model.

    `backend`, `device` and `precision` are as in `Program.law`. An `executor`, such as Dask's, does the parts in place
    of processes here. `progress` is True for a bar on a terminal, False for none, or a function of (parts done, parts
    in all).
    """
    if out is not None and not str(out):
        raise ValueError("out='' must name a folder; for the current one give '.'")
    first, second = (None if m is None else m if isinstance(m, Transformer) else read(m) for m in (model, compare))
    if first is None:
        raise ValueError("model=None must be a model: a name, a path, a configuration or a Transformer")
    from . import _audit, _request  # seldom needed, and not at once

    folder, where = None if out is None else Path(out), choose(backend, device, precision)
    request = _request.Request(
        first,
        second,
        tokens,
        ids,
        draws,
        widths,
        seed,
        workers,
        folder,
        (first.name,),
        where,
        executor,
        progress,
        gradients,
    )
    return _audit.run(request)
