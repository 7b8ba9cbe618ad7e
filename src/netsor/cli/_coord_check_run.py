"""What `netsor coord-check` does, once its options are read."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click

from ..engine._montecarlo import in_bytes
from ..models import Transformer, read, settings
from ..studies.audit._request import plainly
from ..studies.coord_check import _check, _results
from ..studies.coord_check._check import Cost
from ..studies.coord_check._parametrisation import parametrisation
from ..studies.coord_check._request import Request
from . import _cost
from ._interrupt import Watch
from ._numbers import ABOVE, shown
from ._output import as_option, check_name, complain, failing, reason
from ._target import find
from ._where import Where, sampling

KEPT = "finished draws are kept, and the same command goes on from there"
LOST = "nothing was kept; with --out DIR finished draws are"
OPTIONS = ("widths", "depths", "targets", "lr", "parametrisation", "optimiser", "grow", "tolerance", "promise")


def checked(watch: Watch, out: str | None, where: Where, options: dict[str, Any]) -> Any:
    """The checks."""
    kept = LOST if out is None else KEPT
    try:
        request = _request(out, {**options, "backend": where.backend})
        cost = _check.estimate(request)
    except ValueError as error:
        raise click.UsageError(_said(error)) from None
    if cost.clock > _cost.LONGEST:
        raise click.UsageError(
            f"--draws {request.draws} at {len(request.at)} {request.axis}s would take about "
            f"{_cost.in_time(cost.clock)}; fewer draws, tokens or widths take less"
        )
    watch.message = f"interrupted; {kept}"
    with failing(out, kept, _said):
        if request.out is not None:
            _results.folder_of(request.out).prepare(_results.FILES)
        _announce(request, cost)
        with sampling(where, request.workers) as how:
            return _check.run(request, how.get("executor"))


def _said(error: ValueError) -> str:
    """The library's message, with its arguments written as options of the command."""
    text = plainly(error)
    return f"--{text}" if text.startswith(tuple(f"{name}=" for name in OPTIONS)) else as_option(text)


def _request(out: str | None, options: dict[str, Any]) -> Request:
    source, changes, rules = (options.pop(name) for name in ("model", "changes", "rules"))
    lr, tokens = options.pop("lr"), options.pop("tokens")
    for name in ("widths", "depths", "ids", "targets"):
        options[name] = _integers(f"--{name}", options[name], infinite=name == "widths")
    count = None if tokens is None else (_integers("--tokens", tokens) or (0,))
    if count is not None and len(count) > 1:
        raise click.UsageError(f"--tokens {shown(tokens)} must be one number")
    options["tokens"] = None if count is None else count[0]
    words = [source, *(word for text in changes for word in ("--set", text))]
    words += [word for rule in rules for word in ("--parametrisation", rule)]
    words += [] if lr is None else ["--lr", lr]
    for name in ("ids", "targets"):
        words += [] if options[name] is None else [f"--{name}", ",".join(map(str, options[name]))]
    words += ["--tokens", tokens] if tokens is not None else []
    model, rates = _own(source, lr, changes) if _is_function(source) else (_model(source, changes), _rates(lr))
    if isinstance(model, Transformer):
        rules = rules or ("sp", "mup")
        words += ["--grow", options["grow"]]
    return Request(
        model,
        tuple(parametrisation(rule, options["optimiser"]) for rule in rules),
        lr=rates,
        out=None if out is None else Path(out),
        words=tuple(words),
        **options,
    )


def _is_function(source: str) -> bool:
    """FILE:FUNCTION; a path to a file may have a colon in it."""
    return ":" in source and not Path(source).exists()


def _own(source: str, lr: str | None, changes: Any) -> tuple[Any, Any]:
    if changes:
        raise click.UsageError("--set is for models; a function of the width has its fields in it")
    found = find(source)
    if lr is None:
        raise click.UsageError("--lr must be given for FILE:FUNCTION: a number, or the name of rates in FILE")
    try:
        rates: Any = ABOVE.convert(lr, None, None)
    except click.UsageError:
        module = sys.modules.get(getattr(found.value, "__module__", ""))
        rates = getattr(module, lr, None)
        if rates is None:
            raise click.UsageError(f"--lr {shown(lr)} must be a number, or the name of rates in FILE") from None
    return found.value, rates


def _model(source: str, changes: Any) -> Transformer:
    check_name("MODEL", source)
    try:
        model = read(source)
        return model.replace(**settings(changes)) if changes else model
    except (ValueError, OSError) as error:
        said = reason(error) if isinstance(error, OSError) else error
        raise click.UsageError(f"MODEL {shown(source)}: {said}") from None


def _rates(text: str | None) -> Any:
    """A number, or one for each of some kinds."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        return {name.strip(): float(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    except ValueError:
        said = "must be a number, or kind=number,… as query=0.1,head=0.01"
        raise click.UsageError(f"--lr {shown(text)} {said}") from None


def _integers(option: str, text: str | None, infinite: bool = False) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(math.inf if infinite and word.strip() in ("inf", "∞") else int(word) for word in text.split(","))
    except ValueError:
        said = "must be whole numbers with commas between, as 256,1024,4096"
        raise click.UsageError(f"{option} {shown(text)} {said}") from None


def _announce(request: Request, cost: Cost) -> None:
    """Print the cost before the work begins, and before it is planned."""
    names = " and ".join(check.name for check in request.checks)
    at = ", ".join(f"{v:,}" for v in request.at)
    complain(
        f"{request.name}, {names}: {request.draws} draws at {request.axis}s {at}, about "
        f"{_cost.in_time(cost.clock)} and {in_bytes(cost.workers * cost.bytes)} on {cost.workers} "
        f"worker{'s' * (cost.workers > 1)}"
    )
