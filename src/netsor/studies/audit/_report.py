"""The files of an audit: report.html, audit.csv, and the manifest."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._html_report import to_page
from .._output_dir import environment, to_csv
from ._config import Request
from ._differences import Differences
from ._document import document
from ._measurements import Lengths, merged


def files(
    models: Sequence[Lengths], compared: Differences | None, spent: dict[str, Any], command: str, out: Path
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of an audit by name, and their manifest."""
    manifest = _manifest(models, spent, command, out)
    rows = [row for lengths in models for found in lengths for row in found.rows()]
    return {"report.html": to_page(document(models, compared, manifest)).encode(), "audit.csv": to_csv(rows)}, manifest


def _manifest(models: Sequence[Lengths], spent: dict[str, Any], command: str, out: Path) -> dict[str, Any]:
    """What was audited, with what, and what it took."""
    request = models[0][0].request
    options = {
        "models": [lengths[0].model.fields() for lengths in models],
        "tokens": request.lengths,
        "ids": request.ids,
        "draws": [request.draws_of(tokens) for tokens in request.lengths],
        "widths": request.widths,
        "gradients": [tokens for tokens in request.lengths if request.backward(tokens)],
        "ranges": request.ranges,
        "sweep": request.swept,
    }
    every = [each for lengths in models for found in lengths for each in found.measured]
    parts = [
        {"model": each.subject.model.name, "tokens": each.subject.tokens, "infinite": each.subject.infinite,
         "draws": each.draws, "random_numbers": each.random_numbers, "seconds": round(each.seconds, 3),
         "precision": each.precision}
        for each in every
    ]  # fmt: skip
    return {
        "command": _command(request, command, out),
        "options": json.loads(json.dumps(options)),  # as it will be read again
        "seed": request.seed,
        **environment(),
        "random_numbers": spent["random_numbers"],
        "seconds": {"sampling": spent["seconds"]},
        "parts": parts,
        "findings": [[dataclasses.asdict(f) for f in merged(lengths)] for lengths in models],
    }


def _command(request: Request, command: str, out: Path) -> str:
    """The command that does the same, if the models can be named on a command line."""
    words = [*command.split(), *request.words, "--widths", str(request.widths)]
    words += ["--tokens", ",".join(map(str, request.lengths))] if request.ids is None and not request.own else []
    words += ["--ids", ",".join(map(str, request.ids))] if request.ids is not None else []
    words += ["--draws", str(request.draws)] if request.draws is not None else []
    words += ["--quick"] if request.quick else []
    words += [] if request.gradients is None else ["--gradients" if request.gradients else "--no-gradients"]
    words += ["--ranges"] * request.ranges
    return shlex.join([*words, "--seed", str(request.seed), "--out", str(out)])
