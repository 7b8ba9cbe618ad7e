"""What every command that runs a study does: it is refused or announced, run, and what is left of it is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import click

from .._validate import shown
from ..engine._parallel import in_bytes
from ..models import Transformer, read, settings
from ..studies._cache import Store
from ..studies._cost import Cost
from ._backend_options import BackendChoice, executor_context
from ._budget import LONGEST, in_time, slow_notice
from ._load_program import one_line
from ._output import check_name, echo, echo_error, echo_json, reason
from ._signals import Watch

LOST = "nothing was kept; with --out DIR finished draws are"
NOTHING_STORED = "nothing was kept: finished draws are kept of models only"


def resume_message(what: str) -> str:
    """What an interrupted study leaves in its folder."""
    return f"finished {what} are kept, and the same command goes on from there"


class StudyJob(NamedTuple):
    """A study that was asked for, with what is to be told of it."""

    request: Any  # with `out`, `workers` and `own`
    cost: Cost
    what: str  # such as "gpt2: 200 draws of 16 tokens"
    less: str  # how to take less time
    more: str = ""  # said after what it takes


def run_study(
    watch: Watch, where: BackendChoice, asked: Callable[[], StudyJob], prepare: Callable[[Any], object],
    run: Callable[[Any, Executor | None], Any],
) -> Any:  # fmt: skip
    """Run the study that is `asked` for, after its folder is prepared."""
    with usage_errors(), slow_notice("planning"):
        request, cost, what, less, more = asked()
    on_cores = where.backend.kind == "cpu"  # what a device takes is not estimated
    if on_cores and cost.clock > LONGEST:
        raise click.UsageError(f"{what} would take about {in_time(cost.clock)}; {less}")
    if request.out is not None and not request.own and Store(request.out / "parts").any():
        more = f"; what is finished in --out is not drawn again{more}"
    left = LOST if request.out is None else NOTHING_STORED if request.own else resume_message("draws")
    with usage_errors(), report_errors(watch, request.out, left):
        prepare(request)
        taken = f"on {where.backend.device}"
        if on_cores:
            taken = f"about {in_time(cost.clock)} and {in_bytes(cost.workers * cost.bytes)} on {cost.workers} worker"
            taken += "s" * (cost.workers > 1)
        echo_error(f"{what}, from about {_rounded(cost.random_numbers)} random numbers, {taken}{more}")
        with executor_context(where, request.workers) as how:
            return run(request, how.get("executor"))


def printed(
    found: Any,
    out: str | None,
    as_json: bool,
    verbose: bool,
    verdict: str = "",
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Print a verdict, what a study found, and where its report is; `beside` goes into the JSON object."""
    if as_json:
        echo_json({**found.as_dict(), **(beside or {})})
        return
    text = found.table(verbose)
    echo(f"{verdict}\n\n{text}" if verdict else text)
    more = [] if verbose else ["more numbers: --verbose, --json or --out DIR"]
    echo("\n" + (f"report: {Path(out) / 'report.html'}" if out is not None else "".join(more)))


@contextlib.contextmanager
def report_errors(watch: Watch, out: Path | None, left: str) -> Iterator[None]:
    """Report in one line that a worker was killed or a folder cannot be written; `left` says what is kept."""
    from concurrent.futures.process import BrokenProcessPool  # slow to import

    watch.message = f"interrupted; {left}"
    try:
        yield
    except BrokenProcessPool:
        echo_error(f"a worker was killed, perhaps because memory ran out: fewer --workers need less; {left}")
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        if out is None:
            raise
        raise click.UsageError(
            f"--out {shown(str(out))} must be a folder that can be written to: {reason(error)}"
        ) from None


@contextlib.contextmanager
def usage_errors(about: str = "") -> Iterator[None]:
    """Raise errors of the library as usage errors `about` an option; the command itself words those about arguments."""
    try:
        yield
    except ValueError as error:
        if not about and getattr(error, "argument", None) is not None:
            raise
        raise click.UsageError(about + one_line(error)) from None


def _rounded(count: int) -> str:
    """Two digits, since it is an estimate."""
    size = 10 ** max(0, len(str(count)) - 2)
    return f"{round(count / size) * size:,}"


def model_of(option: str, source: str) -> Transformer:
    """The model that an option names."""
    check_name(option, source)
    with usage_errors(f"{option} {shown(source)}: "):
        try:
            return read(source)
        except OSError as error:
            raise ValueError(reason(error)) from None


def changed(model: Transformer, option: str, texts: Sequence[str]) -> Transformer:
    """The model with some fields changed, and what was changed in its name."""
    if not texts:
        return model
    with usage_errors(f"{option} {shown(', '.join(texts))}: "):
        changes = settings(texts)
        changes.setdefault("name", f"{model.name}, {', '.join(text.strip() for text in texts)}")
        return model.replace(**changes)
