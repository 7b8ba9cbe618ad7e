"""Loss after a few steps against the learning rate, at several widths: does the best learning rate transfer?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._program import Program
from ..._validate import Rng, also_spelled
from ...engine._parallel import Progress
from ...models import Transformer
from ...optim import Optimiser
from .._study import Run
from .._training import TrainingStudy, subject_of
from ._request import DRAWS, STEPS, Request, SweepCase, SweepTask
from ._results import Curve, Optimum, Sweep, Transfer

__all__ = ["Curve", "Optimum", "Sweep", "Transfer", "transfer"]


@also_spelled(optimizer="optimiser", parametrization="parametrisation")
def transfer(
    model: str | Path | Mapping[str, Any] | Transformer | Callable[[Any], Program] | Any,
    *,
    widths: Sequence[float] | None = None,
    steps: int = STEPS,
    lr: Sequence[float] | None = None,
    optimiser: str | Optimiser | Mapping[Any, Optimiser] = "sgd",
    parametrisation: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
    ids: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    tokens: int | None = None,
    weights: Callable[[Program], Any] | None = None,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = None,
    draws: int = DRAWS,
    grow: str = "heads",
    vectors: Sequence[str] = (),
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = "float64",
    executor: Executor | None = None,
    progress: Progress = True,
) -> Transfer:
    """The loss after a few steps of training against the learning rate, at several widths.

    Other parameters are those of `coord_check`.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer, configuration or callable
        What `ns.models.read` takes, or a `Transformer`; or a function of the width that returns a `Program` whose
        output is the loss.
    widths : sequence of float, optional
        Of the stream; 64, 256 and 1024 unless given. Of a function, `inf` may be among them: it is then called with an
        `ns.Width`.
    lr : sequence of float, optional
        The learning rates, three or more. For a model they are those at its own width, which the parametrisation
        scales. For a function they multiply the learning rates of the optimiser. By default each width has its own, a
        factor of 2 apart: seven, and four more at an end as long as the best one is not well inside.
    optimiser : str, Optimiser or mapping
        "sgd", "muon" or "adam", as in `ns.coord_check` over several steps. For a function also what `ns.train` takes; a
        name then has the learning rate 1. You can also write `optimizer` and `parametrization`.
    weights : callable, optional
        Of a function: which parameters of its program move, as `ns.step` takes them; all matrices unless given.
    schedule : callable, optional
        A function of the step 0, 1, … that the learning rates are multiplied by, as in `ns.train`.
    clip_norm : float, optional
        The largest norm of the gradient, as in `ns.train`.
    draws : int
        Initialisations at each width. All learning rates see the same ones.

    Examples
    --------
    >>> inputs, targets = ns.data([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -1.0])
    >>> @ns.program
    ... def standard(n):
    ...     h = ns.relu(ns.weight(n, n) @ ns.relu(ns.weight(n, 2) @ inputs))
    ...     f = (ns.weight(1, n) @ h)[:, None]
    ...     return ((ns.mean_dot(f, ns.data([[1.0]]))[:, 0, 0] - targets) ** 2).mean()
    >>> found = ns.transfer(standard, widths=[32, 128, 512], lr=2.0 ** np.arange(-12, -1))
    >>> found[0].verdict
    'shifts like n^-1.0'
    """
    options = {**locals()}
    del options["executor"], options["model"], options["parametrisation"]
    return TransferStudy(Request.of(*subject_of(model, parametrisation, optimiser), **options)).run(executor)


@dataclass(frozen=True)
class TransferStudy(TrainingStudy[Transfer]):
    """A learning-rate sweep, of one parametrisation or several."""

    request: Request
    task_type = SweepTask

    def tasks_of(self, case: SweepCase, *lr: tuple[float, ...]) -> list[SweepTask]:
        """The draws of one network, at the learning rates of the first round unless others are given."""
        return super().tasks_of(case, *(lr or (self.request.grid,)))

    def result(self, run: Run) -> Transfer:
        """A sweep of each parametrisation; without given learning rates, curves grow until they have their minimum."""
        run.wait()

        def curve(case: SweepCase, lr: tuple[float, ...]) -> Curve:
            losses = [run[task]["losses"] for task in self.tasks_of(case, lr)]
            return Curve(np.array(lr), np.concatenate(losses, axis=1), case.place[0])

        curves = {case: curve(case, self.request.grid) for case in self.cases if not case.empty}
        while self.request.lr is None and (more := {case: lr for case, c in curves.items() if (lr := c.beyond)}):
            tasks = [task for case, lr in more.items() for task in self.tasks_of(case, lr)]
            run.add(tasks)
            run.wait(tasks, f"{self.request.name}: more learning rates")
            curves |= {case: curves[case].joined(curve(case, lr)) for case, lr in more.items()}
        sweeps = []
        for rule in self.request.checks:
            cases = self.request.cases(rule)
            by_width = {case.width: curves[case] for case in cases if case in curves}
            sweeps.append(Sweep(rule.name, by_width, {case.width: case.refused for case in cases if case.refused}))
        return Transfer(self.request, sweeps, *self.spent(run))
