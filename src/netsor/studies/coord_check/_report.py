"""The files of a coordinate check: the report, the tables, the figure, and the manifest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._html_report import to_page
from .._output_dir import environment, to_csv
from ._config import COMMAND, Request
from ._document import document
from ._measurements import Check
from ._network import CHANGE
from ._plots import figure_files


def files(checks: Sequence[Check], found: dict[str, Any], out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a check by name, and their manifest; `found` is the check for JSON."""
    manifest = _manifest(checks, found, out)
    pdf, png = figure_files(checks, CHANGE, "pdf", "png")
    return {
        "report.html": to_page(document(checks, manifest)).encode(),
        "coord-check.csv": to_csv([row for check in checks for row in check.rows()]),
        "coord-check.json": json.dumps(found, indent=1, allow_nan=False).encode(),
        "coord-check.pdf": pdf,
        "coord-check.png": png,
    }, manifest


def _manifest(checks: Sequence[Check], found: dict[str, Any], out: Path) -> dict[str, Any]:
    r = checks[0].request
    options = {
        "model": r.name,
        "parametrisations": [check.rule.fields() for check in checks],
        "widths": list(r.widths or ()),
        "depths": list(r.depths or ()),
        "optimiser": r.optimiser,
        "lr": str(r.lr),
        "ids": r.ids,
        "targets": r.targets,
        "draws": r.draws,
        "grow": r.grow,
        "tolerance": r.tolerance,
    }
    return {
        "command": _command(r, out),
        "options": json.loads(json.dumps(options)),  # as it will be read again
        "seed": r.seed,
        **environment(),
        "random_numbers": found["random_numbers"],
        "seconds": {"sampling": found["seconds"]},
    }


def _command(r: Request, out: Path) -> str:
    """The command that does the same, if the model can be named on a command line."""
    words = [*COMMAND.split(), *r.words, "--optimiser", r.optimiser, "--draws", str(r.draws)]
    words += ["--widths", ",".join(map(str, r.widths or ()))]
    words += ["--depths", ",".join(map(str, r.depths or ()))] if r.axis == "depth" else []
    words += ["--tolerance", f"{r.tolerance:g}"]
    return shlex.join([*words, "--seed", str(r.seed), "--out", str(out)])
