"""What `netsor reproduce` does, once its options are read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from netsor_papers.paper._experiments import Case, Figure, figures
from netsor_papers.paper._reproduce import Options, prepare, reproduce

from .._validate import shown
from ..engine._parallel import cores, in_bytes, memory
from ..engine.backends import Backend
from ..studies._cost import Draw
from ._backend_options import BackendChoice, executor_context
from ._budget import Cost, announce, check_budget, layer_bytes, slow_notice
from ._output import echo
from ._signals import Watch
from ._study import report_errors, resume_message

MODEST = {"samples": 100, "trials": 1, "tokens": 4, "workers": 1}
START, FIGURE, MEASURE = 1.5, 1.0, 1e-6  # seconds: to start the workers, to draw a figure, to measure one draw in it


def reproduced(watch: Watch, names: tuple[str, ...], out: str, where: BackendChoice, options: dict[str, Any]) -> None:
    """Make the figures, and print what is found of the claims."""
    asked = Options(names, Path(out), **options, backend=where.backend)
    given = {name: options[name] for name in ("samples", "trials", "tokens", "workers")}
    modest = {name: small for name, small in MODEST.items() if given[name] is not None}
    with slow_notice("planning"):
        seconds = check_budget(lambda **sizes: _cost(replace(asked, **sizes)), given, modest)
    try:
        with report_errors(watch, asked.out, resume_message("trials")):
            _check_disk(asked)
            prepare(asked)
            with executor_context(where, asked.workers) as how:
                announce(seconds + _rest(asked))
                done = reproduce(replace(asked, executor=how.get("executor")))
    except click.exceptions.Exit:  # a RuntimeError too
        raise
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    echo(f"report: {done.report}")
    for line in done.summary:
        echo(line)


def _cost(chosen: Options) -> Cost:
    """The cost of the trials that are not there yet; the memory includes all draws, which the main process reads."""
    plan = chosen.plan
    parts = {part for figure in _figures(chosen) for part in replace(plan, trials=1).parts(figure)}
    large = max(layer_bytes(part.case.tokens, part.case.heads) for part in parts)
    if large > memory():  # it could not even be planned
        return Cost(large, 0.0)
    left = dict.fromkeys(parts, plan.trials)  # trials of each
    if plan.store.any():
        left = {
            part: sum(not plan.store.has(plan.part(part.case, k).key) for k in range(plan.trials)) for part in parts
        }
    draws = {part: _draw(part.case, chosen.backend) for part in parts}
    workers = min(chosen.workers or cores(), max(1, sum(left.values()))) if chosen.backend.threads else 1
    one = max(draw.in_worker(part.samples, chosen.backend) for part, draw in draws.items())
    seconds = sum(
        draw.compiling * (left[part] > 0) + left[part] * part.samples * draw.seconds for part, draw in draws.items()
    )
    most = max(part.samples for part in parts)
    return Cost(
        large + workers * one + 64.0 * plan.trials * most,
        seconds / min(workers, cores()) if chosen.backend.kind == "cpu" else 0.0,
    )


@lru_cache(maxsize=256)
def _draw(case: Case, backend: Backend) -> Draw:
    return Draw.of(case.program.plan(backend=backend, **case.widths), backend)  # type: ignore[arg-type]


def _rest(chosen: Options) -> float:
    """Seconds besides those of the trials: to start workers, and to measure and draw each figure."""
    plan = chosen.plan
    draws = sum(plan.trials * max(plan.samples or case.samples for case in figure.cases) for figure in _figures(chosen))
    return START + FIGURE * len(_figures(chosen)) + MEASURE * draws


def _check_disk(chosen: Options) -> None:
    """Refuse more draws than the disk has room for."""
    plan, parent = chosen.plan, chosen.out.absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    size = sum(4.0 * part.samples + 2**15 for figure in _figures(chosen) for part in plan.parts(figure))
    disk = shutil.disk_usage(parent)
    if disk.total and size > disk.free:
        samples = "" if plan.samples is None else f" of --samples {plan.samples}"
        raise click.UsageError(
            f"--trials {plan.trials}{samples} would need {in_bytes(size)} in --out {shown(str(chosen.out))}, "
            f"and {in_bytes(disk.free)} are free; smaller numbers need less"
        )


def _figures(chosen: Options) -> list[Figure]:
    return [figure for name, figure in figures(chosen.tokens).items() if name in chosen.chosen]
