"""netsor literature: published results beside the exact law, with figures, data and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ._group import cli
from ._interrupt import Watch
from ._numbers import SEED, WORKERS
from ._output import check_name, say


@cli.command("literature")
@click.argument("names", metavar="[RESULT]...", nargs=-1)
@click.option(
    "--out", metavar="DIR", default="literature", show_default=True, help="The folder for figures, data and the report."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--workers", type=WORKERS, help="Worker processes.  [default: all cores]")
@click.option("--quick", is_flag=True, help="A first look, in about a minute.")
@click.pass_obj
def literature_command(watch: Watch, /, names: tuple[str, ...], out: str, **options: Any) -> None:
    """Published results on transformers at initialisation, each beside the exact law, with a verdict.

    RESULT is any of giorlandino deepscale unit-scaling tensor-programs noci hron dong, all of them unless given. A run
    that was interrupted goes on where it stopped. Files in the folder that are not of an earlier run are never
    overwritten.
    """
    from ..studies.literature._study import Options, prepare, run
    from ._cost import announce
    from ._study import failing, kept, of_out

    check_name("--out", out)
    try:
        asked = Options(names, Path(out), **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with failing(watch, asked.out, kept("parts"), of_out):
        prepare(asked)
        announce(asked.seconds)
        done = run(asked)
    for name, claims in done.claims.items():
        for claim in claims:
            say(f"{name}: {claim.verdict}: {claim.published}")
    say(done.summary)
    say(f"report: {done.report}")
