"""netsor audit: what a transformer does at initialisation, block by block, with findings and a report."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ._group import cli
from ._interrupt import Watch
from ._numbers import FEW, SEED, WORKERS, shown
from ._output import apart, check_name, complain
from ._where import chosen, where_options

FAILED = 3  # exit code, if a rule of --fail-on is found, or a median has left its band of --baseline


@cli.command("audit")
@click.argument("model")
@click.option("--bind", "binds", multiple=True, metavar="NAME=N", help="A width of FILE:PROGRAM.")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of its function.")
@click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of MODEL.")
@click.option("--recipe", metavar="NAME", help="Draw MODEL by a known recipe: gpt2, mup, … (a wrong name lists all).")
@click.option(
    "--compare-recipe",
    "recipes",
    multiple=True,
    metavar="NAME",
    help="Compare MODEL with itself drawn by another recipe; may be repeated.",
)
@click.option("--compare", multiple=True, metavar="OTHER", help="Another model, to compare with; may be repeated.")
@click.option(
    "--compare-set",
    "others",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of OTHER; without --compare, compare MODEL with itself so changed.",
)
@click.option(
    "--sweep",
    metavar="FIELD=A,B,…",
    help="Compare MODEL with each of these numbers in a field, as std=0.005,0.01,0.02.",
)
@click.option(
    "--tokens", metavar="N,…", help="Number of tokens, all different, or several such lengths.  [default: 16,128]"
)
@click.option("--ids", metavar="I,J,…", help="The token ids themselves, such as 3,7,7,1, in place of --tokens.")
@click.option(
    "--draws",
    type=FEW,
    help="Number of random initialisations.  [default: 200 of 16 tokens, fewer of more, 16 at least]",
)
@click.option(
    "--widths",
    type=click.Choice(["actual", "inf", "both"]),
    help="The model's own widths, all of them at infinity, or both.  [default: both]",
)
@click.option("--quick", is_flag=True, help="16 draws of 16 tokens at the model's own widths: seconds, for a test.")
@click.option("--fail-on", metavar="RULE,…", help="Exit with code 3 if one of these rules is found, or undecided.")
@click.option(
    "--baseline",
    metavar="FILE",
    help="Exit with code 3 if a median leaves its 5–95 % band in an earlier audit: its --json, or audit.json of --out.",
)
@click.option(
    "--gradients/--no-gradients",
    default=None,
    help="The backward half too, gradients by block and kind of weight, or not.  [default: of the shortest inputs, if "
    "that at most doubles the time]",
)
@click.option("--ranges", is_flag=True, help="Largest and smallest numbers too, against bf16, fp16 and fp8.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--workers", type=WORKERS, help="Worker processes.  [default: all cores]")
@click.option("--out", metavar="DIR", help="A folder for report.html, audit.csv, manifest.json and finished draws.")
@partial(where_options, auto=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_obj
def audit_command(
    watch: Watch, /, as_json: bool, out: str | None, fail_on: str | None, baseline: str | None, **options: Any
) -> None:
    """A transformer before it is trained: what it does at initialisation, block by block, and findings by stated rules.

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), a path to a config.json, or FILE:PROGRAM, a program
    of your own that names with ns.probe what is to be watched; FILE is run. No weight has to be drawn, so the model may
    be of any size.
    With --out an audit of a model that was interrupted goes on where it stopped; files in the folder that are not of an
    earlier audit are never overwritten.
    """
    from ._audit_run import against, audited, earlier_of, rules_of
    from ._study import printed

    if out is not None:
        check_name("--out", out)
    rules = rules_of(fail_on, options)
    earlier = earlier_of(baseline)
    where = chosen(options, auto=True)
    with apart(as_json):
        found = audited(watch, out, where, options, rules, earlier)
    verdict, left = against(found, earlier)
    try:
        failed = [verdict] * any(each["departures"] for each in left.values()) + found.failed(rules)
    except ValueError as error:  # what only the draws tell, such as that no branch adds anything
        raise click.UsageError(f"--fail-on {shown(fail_on)}: {error}") from None
    printed(found, out, as_json, verdict, left)
    if failed:
        complain("; ".join(failed))
        raise click.exceptions.Exit(FAILED)
