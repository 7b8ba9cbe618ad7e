"""netsor explore: the page in a browser."""

from __future__ import annotations

import ast
import importlib.util
import os
import warnings

import click

from ._group import cli
from ._interrupt import Watch
from ._numbers import PORT


@cli.command("explore")
@click.argument("program", metavar="[FILE:PROGRAM]", required=False)
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of its function.")
@click.option("--port", type=PORT, default=0, help="A port of this machine.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.pass_obj
def explore_command(watch: Watch, program: str | None, arguments: tuple[str, ...], port: int, no_browser: bool) -> None:
    """A page in the browser: move a slider, see the law. Ctrl-C ends it.

    It is shown to this machine alone, by an address with a token. With FILE:PROGRAM there are sliders for a program of
    one's own too, for its widths and the numbers that its function takes; FILE is run.
    """
    if arguments and program is None:
        raise click.UsageError(f"--arg {arguments[0]} needs a FILE:PROGRAM that it is about")
    for package in ("marimo", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise click.UsageError(f"explore needs {package}, which is not installed: pip install 'netsor[explore]'")
    from ..explore import Target, serve
    from ._target import find

    # functions of a program may divide by zero where it does not matter; views check that their numbers are finite
    warnings.simplefilter("ignore", RuntimeWarning)
    target = None
    if program is not None:
        found = find(program, arguments)
        found.build()  # an error in the program is reported here
        part = None if found.index is None else ast.literal_eval(found.index.strip())
        target = Target(found.module, found.name, found.value, part, found.arguments)
    watch.message = "stopped"
    try:
        serve(target, port, not no_browser, lambda address: click.echo(f"open {address} (Ctrl-C ends it)"))
    except KeyboardInterrupt:
        watch.say()
        os._exit(130)  # open tabs have threads that would keep the process; there is nothing to save
    except BrokenPipeError:  # nobody reads the address
        raise
    except OSError as error:
        raise click.UsageError(f"--port {port} cannot be used: {error.strerror or error}") from None
