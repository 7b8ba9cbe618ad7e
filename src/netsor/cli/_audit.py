"""netsor audit: what a transformer does at initialisation, block by block, with findings and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..engine._montecarlo import cores, in_bytes
from ..models import Transformer, read, settings
from . import _cost
from ._group import cli
from ._interrupt import Watch
from ._numbers import FEW, POSITIVE, SEED, WORKERS, shown
from ._output import apart, as_option, check_name, complain, echo_json, reason, say
from ._where import Where, chosen, sampling, where_options

if TYPE_CHECKING:
    from ..studies.audit._audit import Cost
    from ..studies.audit._request import Request

KEPT = "finished draws are kept, and the same command goes on from there"
LOST = "nothing was kept; with --out DIR finished draws are"


@cli.command("audit")
@click.argument("model")
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of MODEL.")
@click.option("--compare", metavar="OTHER", help="A second model, to compare with the first.")
@click.option(
    "--compare-set",
    "others",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of OTHER; without --compare, compare MODEL with itself so changed.",
)
@click.option("--tokens", type=POSITIVE, help="Number of tokens, all different.  [default: 16]")
@click.option("--ids", metavar="I,J,…", help="The token ids themselves, such as 3,7,7,1, in place of --tokens.")
@click.option("--draws", type=FEW, default=200, show_default=True, help="Number of random initialisations.")
@click.option(
    "--widths",
    type=click.Choice(["actual", "inf", "both"]),
    default="both",
    show_default=True,
    help="The model's own widths, all of them at infinity, or both.",
)
@click.option(
    "--gradients/--no-gradients",
    default=None,
    help="The backward half too: gradients by block and kind of weight.  [default: where it at most doubles the cost]",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--workers", type=WORKERS, help="Worker processes.  [default: all cores]")
@click.option("--out", metavar="DIR", help="A folder for report.html, audit.csv, manifest.json and finished draws.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_obj
def audit_command(watch: Watch, /, as_json: bool, out: str | None, **options: Any) -> None:
    """A transformer before it is trained: what it does at initialisation, block by block, and findings by stated rules.

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), or a path to a config.json. No weight is drawn, so
    the model may be of any size. With --out an audit that was interrupted goes on where it stopped; files in the folder
    that are not of an earlier audit are never overwritten.
    """
    if out is not None:
        check_name("--out", out)
    where = chosen(options)
    with apart(as_json):
        found = _audited(watch, out, where, options)
    if as_json:
        echo_json(found.as_dict())
        return
    say(found.table())
    if out is not None:
        say(f"\nreport: {Path(out) / 'report.html'}")


def _audited(watch: Watch, out: str | None, where: Where, options: dict[str, Any]) -> Any:
    from concurrent.futures.process import BrokenProcessPool

    from ..studies.audit import _audit

    kept = LOST if out is None else KEPT
    try:
        request = _request(out, {**options, "backend": where.backend})
        _cost.announce_plan(" and ".join(model.name for model in request.models), *request.planning)
        cost = _audit.cost(request)
    except ValueError as error:
        raise click.UsageError(_said(error)) from None
    _afford(request, cost)
    watch.message = f"interrupted; {kept}"
    try:
        if request.out is not None:
            _audit.folder_of(request.out).prepare(_audit.FILES)
        with sampling(where, request.workers) as how:
            _announce(request, cost)
            return _audit.run(replace(request, executor=how.get("executor")))
    except BrokenProcessPool:
        complain(f"a worker was killed, perhaps because memory ran out: fewer --workers need less; {kept}")
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        if out is None:
            raise
        raise click.UsageError(f"--out {shown(out)} must be a folder that can be written to: {reason(error)}") from None
    except ValueError as error:
        raise click.UsageError(_said(error)) from None


def _said(error: ValueError) -> str:
    """The library's message, with its arguments written as options of the command."""
    from ..studies.audit._request import plainly

    return as_option(plainly(error).replace("widths='actual'", "--widths actual"))


def _request(out: str | None, options: dict[str, Any]) -> Request:
    from ..studies.audit._request import Request

    source, changes, compare, others = (options.pop(name) for name in ("model", "changes", "compare", "others"))
    model = _changed(_read("MODEL", source), "--set", changes)
    other = None
    if compare is not None:
        other = _changed(_read("--compare", compare), "--compare-set", others)
    elif others:
        other = _changed(model, "--compare-set", others)
    words = [source, *_words("--set", changes), *([] if compare is None else ["--compare", compare])]
    ids, tokens = _ids(options.pop("ids")), options.pop("tokens")
    if ids is not None and tokens is not None:
        raise click.UsageError("--ids and --tokens exclude each other: the ids say how many tokens there are")
    folder = None if out is None else Path(out)
    chosen = (*words, *_words("--compare-set", others))
    return Request(model, other, ids=ids, tokens=16 if tokens is None else tokens, out=folder, words=chosen, **options)


def _words(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _read(option: str, source: str) -> Transformer:
    check_name(option, source)
    try:
        return read(source)
    except (ValueError, OSError) as error:
        said = reason(error) if isinstance(error, OSError) else error
        raise click.UsageError(f"{option} {shown(source)}: {said}") from None


def _changed(model: Transformer, option: str, texts: Sequence[str]) -> Transformer:
    if not texts:
        return model
    try:
        changes = settings(texts)
        changes.setdefault("name", f"{model.name}, {', '.join(text.strip() for text in texts)}")
        return model.replace(**changes)
    except ValueError as error:
        raise click.UsageError(f"{option} {shown(', '.join(texts))}: {error}") from None


def _ids(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise click.UsageError(f"--ids {shown(text)} must be whole numbers with commas between, as 3,7,7,1") from None


def _seconds(cost: Cost) -> float:
    return cost.first + cost.seconds / min(cost.workers, cores())


def _afford(request: Request, cost: Cost) -> None:
    """Refuse what would take longer than a day."""
    if _seconds(cost) > _cost.LONGEST:
        raise click.UsageError(
            f"--draws {request.draws} of {request.tokens} tokens would take about {_cost.in_time(_seconds(cost))}; "
            "fewer draws or tokens, or a smaller model, take less"
        )


def _announce(request: Request, cost: Cost) -> None:
    """Print the cost before the work begins."""
    time = f"about {_cost.in_time(_seconds(cost))}"
    names = " and ".join(dict.fromkeys(subject.model.name for subject in request.subjects))
    complain(
        f"{names}: {request.draws:,} draws from {cost.random_numbers:,} random numbers, {time} and "
        f"{in_bytes(cost.workers * cost.bytes)} on {cost.workers} worker{'s' if cost.workers > 1 else ''}"
        f"{_with_gradients(request)}"
    )


def _with_gradients(request: Request) -> str:
    """What gradients cost, as far as that is known before they are planned."""
    from ..studies.audit._request import in_times

    longest = 0.0 if request.gradients is False else max(request.times.values())
    if request.gradients is False or (request.gradients and longest == float("inf")):
        return ""
    times = in_times(longest)
    if request.gradients:
        return f"; gradients make it {times}"
    if request.backward:
        return f"; gradients make it {times}, --no-gradients leaves them out"
    return f"; without gradients, which would make it {times}: --gradients adds them"
