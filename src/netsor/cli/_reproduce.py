"""netsor reproduce: the paper's figures, their data and a report."""

from __future__ import annotations

from typing import Any

import click

from ._group import cli
from ._interrupt import Watch
from ._numbers import DRAWS, POSITIVE, SEED, TRIALS, WORKERS
from ._output import check_name
from ._where import chosen, where_options


@cli.command("reproduce")
@click.argument("names", metavar="[FIGURE]...", nargs=-1)
@click.option(
    "--out", metavar="DIR", default="results", show_default=True, help="The folder for figures, data and the report."
)
@click.option("--samples", type=DRAWS, help="Draws of a trial.  [default: 50000, and 100000 for ReLU]")
@click.option("--trials", type=TRIALS, help="Trials.  [default: 10]")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--workers", type=WORKERS, help="Worker processes.  [default: all cores]")
@click.option("--quick", is_flag=True, help="A first look: 2 trials of 2500 draws.")
@click.option(
    "--estimator",
    type=click.Choice(["paper", "exact", "both"]),
    default="both",
    show_default=True,
    help="Kernel estimates as in the paper, the exact conditional densities, or both.",
)
@click.option("--tokens", type=POSITIVE, default=16, show_default=True, help="The larger number of tokens of figure 4.")
@where_options
@click.pass_obj
def reproduce_command(watch: Watch, /, names: tuple[str, ...], out: str, **options: Any) -> None:
    """The paper's figures, their data, and a report on its claims.

    FIGURE is any of 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b heads; 1 to 5 for both panels; exp1 to exp4 as the paper's public
    code numbers its experiments; or all, the default. A run that was interrupted goes on where it stopped. Files in
    the folder that are not of an earlier run are never overwritten.
    """
    from ._reproduce_run import reproduced

    check_name("--out", out)
    reproduced(watch, names, out, chosen(options), options)
