"""`netsor coord-check`: what one step of training changes, against the width, without training."""

from __future__ import annotations

from typing import Any

import click

from ._group import cli
from ._interrupt import Watch
from ._numbers import POSITIVE, SEED, WORKERS, Number
from ._output import apart, check_name, complain
from ._where import chosen, where_options

FAILED = 3  # exit code of --fail, if there is something to change
FEW = Number("an integer, 4 or more (below 2^53)", lambda v: 4 <= v < 2**53, whole=True)
TOLERANCE = Number("a number above 0, at most 1", lambda v: 0 < v <= 1)


@cli.command("coord-check")
@click.argument("model")
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of MODEL.")
@click.option("--widths", metavar="N,…", help="Widths of the stream.  [default: 256,1024,4096]")
@click.option("--depths", metavar="L,…", help="Numbers of blocks, at one width: exponents of the depth.")
@click.option(
    "--optimiser", type=click.Choice(["sgd", "muon", "adam"]), default="sgd", show_default=True, help="What steps."
)
@click.option(
    "--lr",
    metavar="X",
    help="Learning rate at MODEL's own width, or query=X,head=Y,… by kinds of weights; of FILE:FUNCTION a number, or "
    "the name of rates in FILE.  [default: 0.001 of SGD and Muon, 0.0001 of Adam]",
)
@click.option(
    "--parametrisation",
    "rules",
    multiple=True,
    metavar="NAME|FILE",
    help="sp, mup, ntk, mean-field, fixed, or a .json or .toml file; may be repeated.  [default: sp and mup]",
)
@click.option(
    "--grow",
    type=click.Choice(["heads", "head-dim"]),
    default="heads",
    show_default=True,
    help="What grows with the width: the number of heads, or their dimension.",
)
@click.option("--tokens", type=POSITIVE, help="Tokens of a random batch.  [default: 4]")
@click.option("--ids", metavar="I,J,…", help="The ids of the batch; each is the target of the one before it.")
@click.option("--targets", metavar="I,J,…", help="A target for each of --ids.")
@click.option("--draws", type=FEW, default=32, show_default=True, help="Initialisations at each width.")
@click.option(
    "--tolerance", type=TOLERANCE, default=0.1, show_default=True, help="How far an exponent may be from its promise."
)
@click.option("--fail", is_flag=True, help="Exit with code 3 if there is something to change.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the batch and of the draws.")
@click.option("--workers", type=WORKERS, help="Worker processes.  [default: all cores]")
@click.option("--out", metavar="DIR", help="A folder for the report, figures, tables and finished draws.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_obj
def coord_check_command(watch: Watch, /, as_json: bool, out: str | None, fail: bool, **options: Any) -> None:
    """A coordinate check without training: how much one step changes each activation, against the width.

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), a path to a config.json, or FILE:FUNCTION, a function
    of the width that returns a program whose output is the loss and that names with ns.probe what is to be watched;
    FILE is run. No weight is drawn and nothing is trained. With --out a check of a model that was interrupted goes on
    where it stopped; files in the folder that are not of an earlier check are never overwritten.
    """
    from ._coord_check_run import checked
    from ._study import printed

    if out is not None:
        check_name("--out", out)
    where = chosen(options)
    with apart(as_json):
        found = checked(watch, out, where, options)
    printed(found, out, as_json)
    bad = [check for check in found if not check.kept]
    if fail and bad:
        told = "; ".join(f"{check.name} ({', '.join(check.broken)})" for check in bad)
        complain(f"not as promised: {told}")
        raise click.exceptions.Exit(FAILED)
