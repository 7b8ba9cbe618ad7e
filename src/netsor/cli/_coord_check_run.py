"""What `netsor coord-check` does, once its options are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ..models import Transformer
from ..studies.audit._request import plainly
from ..studies.coord_check import _check
from ..studies.coord_check._parametrisation import parametrisation
from ..studies.coord_check._request import Request
from ._interrupt import Watch
from ._model import changed, model_of
from ._numbers import ABOVE, integers, shown
from ._output import as_option
from ._study import Asked, studied
from ._target import find, is_target
from ._where import Where

OPTIONS = ("widths", "depths", "targets", "lr", "parametrisation", "optimiser", "grow", "tolerance", "promise")


def checked(watch: Watch, out: str | None, where: Where, options: dict[str, Any]) -> Any:
    """The checks."""

    def asked() -> Asked:
        request = _request(out, {**options, "backend": where.backend})
        names = " and ".join(check.name for check in request.checks)
        at = ", ".join(f"{v:,}" for v in request.at)
        what = f"{request.name}, {names}: {request.draws:,} draws at {request.axis}s {at}"
        return Asked(request, _check.estimate(request), what, "fewer --draws, tokens or widths")

    return studied(watch, where, asked, _check.prepare, _check.run, _said)


def _said(error: ValueError) -> str:
    """The library's message, with its arguments written as options of the command."""
    text = plainly(error)
    return f"--{text}" if text.startswith(tuple(f"{name}=" for name in OPTIONS)) else as_option(text)


def _request(out: str | None, options: dict[str, Any]) -> Request:
    source, changes, rules = (options.pop(name) for name in ("model", "changes", "rules"))
    lr, tokens = options.pop("lr"), options.pop("tokens")
    for name in ("widths", "depths", "ids", "targets"):
        options[name] = integers(f"--{name}", options[name], "256,1024,4096", inf=name == "widths")
    count = None if tokens is None else (integers("--tokens", tokens, "4") or (0,))
    if count is not None and len(count) > 1:
        raise click.UsageError(f"--tokens {shown(tokens)} must be one number")
    options["tokens"] = None if count is None else count[0]
    words = [source, *(word for text in changes for word in ("--set", text))]
    words += [word for rule in rules for word in ("--parametrisation", rule)]
    words += [] if lr is None else ["--lr", lr]
    for name in ("ids", "targets"):
        words += [] if options[name] is None else [f"--{name}", ",".join(map(str, options[name]))]
    words += ["--tokens", tokens] if tokens is not None else []
    model, rates = (
        _own(source, lr, changes)
        if is_target(source)
        else (changed(model_of("MODEL", source), "--set", changes), _rates(lr))
    )
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
