"""netsor check: the verdict on Assumption 3.1."""

from __future__ import annotations

import click

from ._group import cli
from ._output import apart, echo_json, say


@cli.command("check")
@click.argument("program", metavar="FILE:PROGRAM")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of the program's function.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check_command(program: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """The verdict on Assumption 3.1: is the limit of a program proved?

    FILE is the path of a .py file, or a module's name. It is run, as Python runs it: check no file that you do not
    trust. PROGRAM is a program in it, or a function that returns one. Exit code 1 if the program has no limit.
    """
    from ..language._report import NO_LIMIT
    from ._target import load

    with apart(as_json):
        report = load(program, arguments).check()
    if as_json:
        points = [{"name": p.name, "verdict": p.verdict, "findings": list(p.findings)} for p in report.points]
        echo_json({"program": report.program, "verdict": report.verdict, "points": points})
    else:
        say(str(report))
    if report.verdict == NO_LIMIT:
        raise click.exceptions.Exit(1)
