"""What `netsor coord-check` does, once its options are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .._validate import shown
from ..models import Transformer
from ..studies.coord_check import _check
from ..studies.coord_check._config import Request
from ..studies.coord_check._parametrisation import parametrisation
from ._backend_options import BackendChoice
from ._load_program import find, is_target
from ._options import RATE, integers
from ._signals import Watch
from ._study import StudyJob, changed, model_of, run_study


def checked(watch: Watch, out: str | None, where: BackendChoice, options: dict[str, Any]) -> Any:
    """The checks."""

    def asked() -> StudyJob:
        request = _request(out, {**options, "backend": where.backend})
        names = " and ".join(check.name for check in request.checks)
        at = ", ".join(f"{v:,}" for v in request.at)
        what = f"{request.name}, {names}: {request.draws:,} draws at {request.axis}s {at}"
        return StudyJob(request, _check.estimate(request), what, "fewer --draws, tokens or widths take less")

    return run_study(watch, where, asked, _check.prepare, _check.run)


def _request(out: str | None, options: dict[str, Any]) -> Request:
    source, changes, rules = (options.pop(name) for name in ("model", "changes", "rules"))
    lr, tokens = options.pop("lr"), options["tokens"]
    for name in ("widths", "depths", "ids", "targets"):
        options[name] = integers(f"--{name}", options[name], "256,1024,4096", inf=name == "widths")
    words = [source, *(word for text in changes for word in ("--set", text))]
    words += [word for rule in rules for word in ("--parametrisation", rule)]
    words += [] if lr is None else ["--lr", lr]
    for name in ("ids", "targets"):
        words += [] if options[name] is None else [f"--{name}", ",".join(map(str, options[name]))]
    words += ["--tokens", str(tokens)] if tokens is not None else []
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
        float(lr)
        rates: Any = RATE.convert(lr, None, None)
    except click.BadParameter as error:
        raise click.UsageError(f"--lr {error.message}") from None
    except ValueError:
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
