"""The command line: a thin skin over the library.

Bad input ends in one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click

from . import Program, __version__
from .language._check import NO_LIMIT


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """The laws of wide neural networks with attention."""


@cli.command("check")
@click.argument("program", metavar="MODULE:PROGRAM")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(program: str, as_json: bool) -> None:
    """The verdict on Assumption 3.1: is the limit of a program proved?

    MODULE is a module's name or the path of a .py file; PROGRAM a program in it, or a function that returns one and
    needs no arguments. Exit code 1 if the program has no limit.
    """
    report = load(program).check()
    if as_json:
        points = [{"name": p.name, "verdict": p.verdict, "findings": list(p.findings)} for p in report.points]
        click.echo(json.dumps({"program": report.program, "verdict": report.verdict, "points": points}))
    else:
        click.echo(str(report))
    if report.verdict == NO_LIMIT:
        raise SystemExit(1)


def load(target: str) -> Program:
    """The program that MODULE:PROGRAM names."""
    module_name, _, attribute = target.rpartition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"MODULE:PROGRAM {target!r} must be a module (or .py file), a colon and a name")
    try:
        module = _module(module_name)
    except Exception as error:
        raise click.UsageError(f"MODULE {module_name!r} cannot be imported: {error}") from None
    found: Any = getattr(module, attribute, None)
    if found is None:
        raise click.UsageError(f"PROGRAM {attribute!r} is not in {module_name!r}")
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise click.UsageError(f"PROGRAM {target!r} cannot be built: {error}") from None
    if not isinstance(found, Program):
        raise click.UsageError(f"PROGRAM {target!r} must be a program (see ns.program), got {type(found).__name__}")
    return found


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does
        return importlib.import_module(name)
    path = Path(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """The entry point: click's errors in one line, with exit code 2."""
    try:
        code = cli(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        click.echo(f"netsor: {' '.join(error.format_message().split())}", err=True)
        code = 2
    except click.Abort:
        click.echo("netsor: interrupted", err=True)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
