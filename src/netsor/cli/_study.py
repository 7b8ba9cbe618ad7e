"""What every command that runs a study does: reject or announce it, run it, and report what is left of it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from .._validate import shown
from ..engine._parallel import in_bytes
from ..engine._plan import in_time
from ..models import Transformer, read, settings
from ..studies import Cost, Result, Study
from ..studies._document import wrap
from ._backend_options import BackendChoice, executor_context
from ._budget import LONGEST, slow_notice
from ._load_program import one_line
from ._output import check_name, echo, echo_error, echo_json, echo_notice, reason
from ._signals import Watch

Found = TypeVar("Found", bound=Result)


def run_study(watch: Watch, where: BackendChoice, make: Callable[[], Study[Found]]) -> Found:
    """Run the study that `make` returns: refuse it if it is too long, say what it takes, and what is left of it."""
    with usage_errors(), slow_notice("planning"):
        study = make()
        cost, on_cores = study.estimate(), where.backend.kind == "cpu"  # what a device takes is not estimated
        less = study.cheaper(cost) if on_cores else ""
    request = study.request
    if on_cores and cost.clock > LONGEST:
        less = less or f"{request.smaller} take less.".capitalize()
        raise click.UsageError(f"{request.title} would take about {in_time(cost.clock)}. {less}")
    kept = request.store is not None and request.store.any()
    finished = "What is finished in --out is not repeated." if kept else ""
    left = f"finished {request.kept} are kept, and the same command goes on from there"
    if request.out is None:
        left = f"nothing was kept; with --out DIR finished {request.kept} are"
    elif request.own:
        left = f"nothing was kept: finished {request.kept} are kept of models only"
    with usage_errors(), report_errors(watch, request.out, left):
        study.prepare()
        sentences = (f"{request.title}; {_taken(cost, where)}.", finished, request.remark, less)
        echo_notice(" ".join(filter(None, sentences)))
        with executor_context(where, request.workers) as how:
            return study.run(how.get("executor"))


def _taken(cost: Cost, where: BackendChoice) -> str:
    """Time and memory, in words."""
    if where.backend.kind != "cpu":
        return f"on {where.backend.device}"
    needed = f" and {in_bytes(cost.workers * cost.bytes)}" if cost.bytes else ""
    return f"about {in_time(cost.clock)}{needed} on {cost.workers} worker{'s' * (cost.workers > 1)}"


def typed() -> str:
    """The command line, for the manifest."""
    return shlex.join(["netsor", *sys.argv[1:]])


def printed(
    found: Any,
    out: str | None,
    as_json: bool,
    verbose: bool,
    verdict: str = "",
    more_json: Mapping[str, Any] | None = None,
) -> None:
    """Print a verdict, what a study found, and where its report is; `more_json` is added to the JSON object."""
    if as_json:
        echo_json({**found.as_dict(), **(more_json or {})})
        return
    text = found.table(verbose)
    echo(f"{wrap(verdict)}\n\n{text}" if verdict else text)
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
