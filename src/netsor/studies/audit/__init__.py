"""An audit of a transformer before it is trained: what it does at initialisation, block by block, as laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._program import Program
from ...engine._montecarlo import Progress
from ...engine.backends import choose
from ...models import Transformer, read

if TYPE_CHECKING:
    from ._audit import Audit

__all__ = ["audit"]


def audit(
    model: str | Path | Mapping[str, Any] | Transformer | Program | Any,
    *,
    compare: str | Path | Mapping[str, Any] | Transformer | Program | Any = None,
    tokens: int | None = None,
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
    gradients: bool = False,
    ranges: bool = False,
    **sizes: int,
) -> Audit:
    """What a transformer does at initialisation, block by block, over `draws` initialisations: no weight is drawn.

    `model` and `compare`, a second model to compare it with, are what `ns.models.read` takes, or a `Transformer`:
    `ns.audit("gpt2", compare=ns.models.read("gpt2").replace(std=0.01))`. The input is `tokens` different ids, 16 unless
    given, or the `ids` themselves. `widths` are the model's own ("actual"), "inf", or "both". The draws depend on the
    seed alone, not on the number of worker processes (all cores, if None). With `out`, a folder, finished parts are
    kept there as they are done, an interrupted audit goes on where it stopped, and the report is written at the end.

    A `Program` of one's own is audited by what it names with `ns.probe`, at the widths that are given by their names:
    `ns.audit(net(), n=256)`. Its tokens are its own.

    With `gradients` the backward half is measured too, of the loss of the first step (of a random readout, if there are
    no logits): the stream's gradient after each block, and the squared gradient of each kind of weight.

    With `ranges` the numbers of each activation are looked at too, at the model's own widths: the largest of them, and
    the share below the smallest of bf16, fp16 and both formats of fp8, with the scale that would fit.

    `backend`, `device` and `precision` are as in `Program.law`. An `executor`, such as Dask's, does the parts in place
    of processes here. `progress` is True for a bar on a terminal, False for none, or a function of (parts done, parts
    in all).
    """
    if out is not None and not str(out):
        raise ValueError("out='' must name a folder; for the current one give '.'")
    if model is None:
        raise ValueError("model=None must be a model: a name, a path, a configuration, a Transformer or a Program")
    from . import _audit, _own, _request  # seldom needed, and not at once

    if isinstance(model, Program) and tokens is not None:
        raise ValueError(f"tokens={tokens!r} is for models: {model.name} is a program, with tokens of its own")
    if sizes and not isinstance(model, Program):
        raise ValueError(f"{next(iter(sizes))}={next(iter(sizes.values()))!r} is no argument of an audit of a model")

    def audited(given: Any) -> Any:
        if isinstance(given, Program):
            return _own.Own(
                given, {name: size for name, size in sizes.items() if given is model or name in given.widths}
            )
        return given if given is None or isinstance(given, Transformer) else read(given)

    first, second = audited(model), audited(compare)

    folder, where = None if out is None else Path(out), choose(backend, device, precision)
    request = _request.Request(
        first,
        second,
        16 if tokens is None else tokens,
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
        ranges,
    )
    return _audit.run(request)
