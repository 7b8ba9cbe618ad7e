"""A coordinate check without training: the law of the changes after an optimiser step,
at every width.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._array_api import Floats
from ..._validate import ArgumentError, Rng, also_spelled
from ...models import Transformer
from ...optim import NAMED
from ...programs._program import Program
from ...runtime._parallel import Progress
from .._study import Run
from .._training import TrainingStudy, is_function, subject_of
from ._request import CHANGE, DRAWS, SIZE, CheckCase, CheckTask, Entry, Request
from ._results import Check, CoordCheck

__all__ = ["coord_check"]

SIZE_RTOL = 1e-5  # of a size: square roots of rounding errors of squares are below it


@also_spelled(optimizer="optimiser", parametrization="parametrisation")
def coord_check(
    model: (
        str | Path | Mapping[str, Any] | Transformer | Callable[[Any], Program] | Any
    ),
    *,
    widths: Sequence[float] | None = None,
    depths: Sequence[int] | None = None,
    optimiser: str | Callable[[Any], Any] = "sgd",
    steps: int = 1,
    lr: Any = None,
    eps: float | Callable[[float, float], float] = 0.0,
    parametrisation: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
    ids: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    tokens: int | None = None,
    draws: int | None = None,
    grow: str = "heads",
    vectors: Sequence[str] = (),
    promise: Mapping[str, float] | None = None,
    tolerance: float = 0.1,
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
    progress: Progress = True,
) -> CoordCheck:
    """How much one step of training changes each activation, against the width; nothing
    is trained.

    Other parameters are those of `audit`.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer, configuration or callable
        What `ns.models.read` takes, or a `Transformer`; or a function of the width that
        returns a PyTorch module with logits, or a `Program` whose output is the loss
        and which names what to measure with `ns.probe`.
    widths : sequence of float, optional
        Of the stream; 256, 1024 and 4096 by default. A function may have `inf` too, and
        then gets an `ns.Width`.
    depths : sequence of int, optional
        Numbers of blocks, for exponents of the depth; with one width, by default the
        model's.
    optimiser : str or callable
        "sgd", "muon" or "adam". For a PyTorch module also a function of it that returns
        its optimiser (SGD, Adam, AdamW or Muon of `torch.optim`) with the learning
        rates. You can also write `optimizer` and `parametrization`.
    steps : int
        The number of steps; changes are those over all of them, and a table has the
        exponents after each. From the second on, Muon has momentum and Adam both
        moments, with PyTorch's defaults.
    lr : float, mapping or callable, optional
        The learning rate at the width and depth of the model, or a dict of them by kind
        of weight. For a function, what `ns.step` takes: a number, a function of (in,
        out), or a dict by weights or names.
    eps : float or callable
        ε of Adam at the width and depth of the model. For a function, a number or a
        function of (in, out).
    parametrisation : str, pathlib.Path, mapping or sequence of these, optional
        How standard deviations and learning rates follow width and depth: "sp", "mup",
        "ntk", "mean-field", "fixed", a JSON or TOML file, its content, or a list of
        these. SP and µP by default.
    ids : sequence of int, optional
        The tokens of the batch, by default random ones. Unless you give `targets`, the
        target of each is the next.
    targets : sequence of int, optional
        An id for each of `ids`.
    tokens : int, optional
        The number of tokens of a random batch, by default 4. The cost of a draw grows
        with its square.
    draws : int, optional
        Initialisations at each width, by default 32.
    grow : str
        What grows with the width: the number of "heads", which keep their dimension, or
        "head-dim".
    vectors : sequence of str
        Vectors of a model to train too: "bias" (every matrix of a block and every layer
        norm then has one, from 0), "gain" (of norms), or both. They have the learning
        rate of embeddings.
    promise : mapping of str to float, optional
        The exponents to hold a function to, by default {"features": 0, "logits": 0}.
    tolerance : float
        How far an exponent may be from the promise.
    precision : str
        "float64" or "float32".

    Returns
    -------
    check : CoordCheck
        One `Check` for each parametrisation, by position or name.
        `check[0][size].exponent` is the power of the width that this size grows like,
        an `Estimate`; `verdicts` compare it with what the parametrisation promises.
        Print it for the table; `save(folder)` writes the report.

    Examples
    --------
    >>> @ns.program
    ... def perceptron(n):
    ...     x = ns.data([[1.0, 0.0], [0.6, 0.8]])
    ...     h = ns.probe("hidden", ns.tanh(ns.weight(n, 2, name="in") @ x))
    ...     h = ns.probe("hidden", ns.tanh(ns.weight(n, n, name="matrix") @ h))
    ...     head = ns.weight(n, 1, name="head") @ ns.data([1.0])
    ...     f = ns.mean_dot(h, head)  # 1/n, as maximal updates have it
    ...     return ((f - [1.0, -1.0]) ** 2).mean()
    >>> fan_out = lambda fan_in, fan_out: fan_out
    >>> rates = {"in": fan_out, "matrix": 1.0, "head": fan_out}
    >>> found = ns.coord_check(perceptron, widths=[64, 256], lr=rates, draws=8)
    >>> print(f"{abs(found[0]['hidden'].exponent.value):.0f}")
    0
    """
    options, step = {**locals()}, optimiser
    del options["executor"], options["model"], options["parametrisation"]
    if is_function(model):
        model, step, options["lr"], options["ids"] = of_module(
            model, widths, optimiser, lr, ids, steps
        )
    options |= {"optimiser": step, "draws": DRAWS if draws is None else draws}
    return CoordCheckStudy(
        Request.of(*subject_of(model, parametrisation, step), **options)
    ).run(executor)


def of_module(
    build: Any,
    widths: Sequence[float] | None,
    optimiser: Any,
    lr: Any,
    ids: Sequence[int] | None,
    steps: int,
) -> tuple[Any, Any, Any, Sequence[int] | None]:
    """A function of the width, its step, learning rates and ids; of one that makes
    modules, as one of programs.
    """
    if "torch" not in sys.modules:  # no module without torch
        return build, optimiser, lr, ids
    from ...torch._network import makes_module, training

    first = next((n for n in widths or Request.default_widths if isinstance(n, int)), 0)
    if not makes_module(build, first):
        return build, optimiser, lr, ids
    if lr is not None and not isinstance(optimiser, str):
        raise ArgumentError(
            "lr", lr, "left out: the optimiser of a module has the learning rates"
        )
    if steps != 1 and not isinstance(optimiser, str):
        raise ArgumentError(
            "steps",
            steps,
            "1 with a PyTorch optimiser; name one for more: optimiser='adam'",
        )
    lr = NAMED[optimiser].lr if lr is None and optimiser in NAMED else lr
    return *training(build, first, optimiser, lr, ids), 0.0 if lr is None else lr, None


@dataclass(frozen=True)
class CoordCheckStudy(TrainingStudy[CoordCheck]):
    """A coordinate check, of one parametrisation or several."""

    request: Request
    task_type = CheckTask

    def result(self, run: Run) -> CoordCheck:
        """A check of each parametrisation."""
        run.wait()
        # √(mean square) of everything, and |loss|
        sizes: dict[CheckCase, dict[Entry, Floats]] = {}
        for case in self.cases:
            if not case.empty:
                numbers = np.concatenate(
                    [run[task]["numbers"] for task in self.tasks_of(case)]
                )
                columns = zip(case.entries, numbers.T, strict=True)
                sizes[case] = {
                    e: np.abs(x) if e.name == "loss" else np.sqrt(np.maximum(x, 0.0))
                    for e, x in columns
                }
        checks = []
        for rule in self.request.checks:
            *_, last = cases = self.request.cases(rule)
            deep, finite = (
                self.request.axis == "depth",
                [case for case in cases if math.isfinite(case.width)],
            )
            every = [
                _select_depths(sizes[case], case.model.layers) if deep else sizes[case]
                for case in finite
            ]
            draws = {entry: [some[entry] for some in every] for entry in every[0]}
            limit = None if last in finite else sizes.get(last, {})
            # changes that are 0 up to rounding are 0
            for entry, size in (limit or {}).items():
                before = sizes[last].get(entry._replace(what=SIZE, step=None))
                if entry.what == CHANGE and before is not None:
                    sizes[last][entry] = np.where(size > SIZE_RTOL * before, size, 0.0)
            checks.append(
                Check(
                    self.request,
                    rule,
                    draws,
                    limit,
                    last.refused,
                    last.errors if limit else {},
                )
            )
        return CoordCheck(self.request, checks, *self.spent(run))


def _select_depths(sizes: dict[Entry, Floats], depth: int) -> dict[Entry, Floats]:
    """The first, middle and last block of a network as blocks 1, 2 and 3, to compare
    networks of several depths.
    """
    places = {1: 1, 2: (depth + 1) // 2, 3: depth}
    selected: dict[Entry, Floats] = {}
    for entry in sizes:
        if entry.block is None:
            selected[entry] = sizes[entry]
        elif entry.block == 1:
            selected |= {
                entry._replace(block=k): sizes[entry._replace(block=at)]
                for k, at in places.items()
            }
    return selected
