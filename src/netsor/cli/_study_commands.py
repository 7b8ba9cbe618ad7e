"""The commands that run studies, and the explorer."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from click import Choice, UsageError, argument, option, pass_obj

from .._validate import real, shown
from . import _options as opt
from ._main import Watch
from ._options import cli
from ._output import check_name, echo, echo_notice, stdout_to_stderr


def run(
    watch: Watch, options: dict[str, Any], make: Callable[[dict[str, Any]], Any], out: str | None, as_json: bool = False
) -> Any:
    """Run the study that `make` makes of the options, with the backend, the folder and the command line among them."""
    from ..engine.backends import Numpy
    from ._run_study import run_study

    if out is not None:
        check_name("--out", out)
    where = opt.pop_backend(options) if "backend" in options else opt.Place(Numpy())
    typed = shlex.join(["netsor", *sys.argv[1:]])
    options |= {"backend": where.backend, "out": None if out is None else Path(out), "typed": typed}
    with stdout_to_stderr(as_json):
        return run_study(watch, where, lambda: make(options))


def _list_models(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the names of the models that ship, and stop."""
    if wanted:
        from ..models import names

        echo("\n".join(names()))
        ctx.exit()


FAILED = 3  # exit code, if a rule of --fail-on is flagged, or a median has left its band of --baseline


@cli.command("audit")
@argument("model")
@option(
    "--models",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_models,
    help="List the models that ship.",
)
@option("--bind", "binds", multiple=True, metavar="NAME=N", help="A width of FILE:PROGRAM.")
@opt.ARGUMENTS
@option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of MODEL.")
@option("--recipe", metavar="NAME", help="Initialise MODEL by a recipe: gpt2, mup, … (a wrong name lists all).")
@option(
    "--compare-recipe",
    "recipes",
    multiple=True,
    metavar="NAME",
    help="Compare MODEL with itself under another recipe; may be repeated.",
)
@option("--compare", multiple=True, metavar="OTHER", help="Another model, to compare with; may be repeated.")
@option(
    "--compare-set",
    "others",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of OTHER; without --compare, compare MODEL with itself so changed.",
)
@option(
    "--sweep",
    "swept",
    type=opt.SWEEP,
    help="Compare several values of a field, such as std=0.005,0.01,0.02; of FILE:PROGRAM, of an argument.",
)
@option("--tokens", type=opt.SIZES, help="Number of tokens, all different, or several such lengths.  [default: 16,128]")
@option("--ids", type=opt.IDS, help="The token ids themselves, such as 3,7,7,1, instead of --tokens.")
@option(
    "--draws",
    type=opt.MIN_DRAWS,
    help="Number of random initialisations.  [default: 200 of 16 tokens, fewer of more, 16 at least]",
)
@option(
    "--widths",
    type=Choice(["actual", "inf", "both"]),
    help="The model's own widths, infinite widths, or both.  [default: both]",
)
@option("--quick", is_flag=True, help="16 draws of 16 tokens at own widths, no gradients: seconds, for a test.")
@option("--fail-on", metavar="RULE,…", help="Exit with code 3 if one of these rules is flagged or undecided.")
@option(
    "--baseline",
    metavar="FILE",
    help="Exit with code 3 if a median leaves its 5–95 % band in an earlier audit: its --json, or audit.json of --out.",
)
@option(
    "--gradients/--no-gradients",
    default=None,
    help="Measure gradients by block and kind of weight.  [default: at the shortest length, if that costs little]",
)
@option("--ranges", is_flag=True, help="Measure the largest and smallest activations, for bf16, fp16 and fp8.")
@option("--seed", type=opt.SEED, default=0, help="Seed of the random numbers.")
@opt.WORKERS
@option("--out", metavar="DIR", help="A folder for report.html, audit.csv, manifest.json and finished draws.")
@partial(opt.where_options, auto=True)
@option("--verbose", is_flag=True, help="Print bands, gradients and every length too.")
@opt.AS_JSON
@pass_obj
def audit_command(
    watch: Watch,
    /,
    as_json: bool,
    verbose: bool,
    out: str | None,
    fail_on: str | None,
    baseline: str | None,
    **options: Any,
) -> None:
    """Check a transformer's initialisation, without training it.

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), the path of a config.json, or FILE:PROGRAM: your own
    function that returns a PyTorch module, or a program that names with ns.probe what to measure; FILE is run. With
    --out an interrupted audit of a model resumes where it stopped. Files in the folder that no earlier audit wrote are
    never overwritten.
    """
    from ..studies.audit._baseline import Baseline
    from ._load_program import usage_errors
    from ._run_study import against, audit_study, printed, rules_of

    rules = rules_of(fail_on)
    if baseline is not None:
        check_name("--baseline", baseline)
    earlier = None if baseline is None else Baseline.of(baseline)
    result = run(watch, options, partial(audit_study, rules=rules, earlier=earlier), out, as_json)
    verdict, left = against(result, earlier)
    with usage_errors(
        f"--fail-on {shown(fail_on)}"
    ):  # known after the draws only, such as that no branch adds anything
        failed = [verdict] * any(each["departures"] for each in left.values()) + result.failed(rules)
    printed(result, out, as_json, verbose, verdict, left)
    for each in failed:
        echo_notice(each)
    if failed:
        raise click.exceptions.Exit(FAILED)


MIN_FOUR = opt.Number(least=4)
TOLERANCE = opt.Number(real, above=0, most=1)


def training_options(
    command: Any, widths: str, steps: int, draws: int, optimiser: str, lr: str, verbose: str, rates: Any
) -> Any:
    """The options of a study of networks that are trained for a few steps; texts are those that differ."""
    options: list[Any] = [
        argument("model"),
        option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of MODEL."),
        option("--layers", type=opt.POSITIVE, help="Number of blocks of MODEL: --set layers=N."),
        option("--widths", type=opt.WIDTHS, help=f"Widths of the stream.  [default: {widths}]"),
        option("--steps", type=opt.POSITIVE, default=steps, help="Number of steps."),
        option("--optimiser", "--optimizer", metavar="NAME", default="sgd", help=f"sgd, muon or adam; {optimiser}"),
        option("--lr", type=rates, metavar="X,…", help=lr),
        option(
            "--parametrisation",
            "--parametrization",
            "rules",
            multiple=True,
            metavar="NAME|FILE",
            help="sp, mup, ntk, mean-field, fixed, or a .json or .toml file; may be repeated.  [default: sp and mup]",
        ),
        option(
            "--grow",
            type=Choice(["heads", "head-dim"]),
            default="heads",
            help="What grows with the width: the number of heads, or their dimension.",
        ),
        option("--vectors", metavar="KIND,…", help="Train vectors too: bias, gain, or both."),
        option("--tokens", type=opt.POSITIVE, help="Tokens of a random batch.  [default: 4]"),
        option("--ids", type=opt.IDS, help="The ids of the batch; each is the target of the one before it."),
        option("--targets", type=opt.IDS, help="A target for each of --ids."),
        option("--draws", type=MIN_FOUR, default=draws, help="Initialisations at each width."),
        option("--seed", type=opt.SEED, default=0, help="Seed of the batch and of the draws."),
        opt.WORKERS,
        option("--out", metavar="DIR", help="A folder for the report, figures, tables and finished draws."),
        opt.where_options,
        option("--verbose", is_flag=True, help=verbose),
        opt.AS_JSON,
        pass_obj,
    ]
    return opt.all_of(options)(command)


@cli.command("coord-check")
@partial(
    training_options,
    widths="256,1024,4096",
    steps=1,
    draws=32,
    optimiser="for modules also the name of a function in FILE that makes the optimiser of a module.",
    lr="Learning rate at MODEL's own width, or query=X,head=Y,… by kind of weight; for FILE:FUNCTION a number, or the "
    "name of rates in FILE.  [default: 0.001 for SGD and Muon, 0.0001 for Adam]",
    verbose="Print the sizes at every width too.",
    rates=str,
)
@option("--depths", type=opt.SIZES, help="Numbers of blocks, at one width: exponents of the depth.")
@option(
    "--eps",
    type=opt.Number(real, least=0, most=1),
    default=0.0,
    help="eps of Adam at MODEL's own width, which the parametrisation scales.",
)
@option("--tolerance", type=TOLERANCE, default=0.1, help="Accepted distance from the expected exponent.")
@option("--fail", is_flag=True, help="Exit with code 3 if something is flagged.")
def coord_check_command(
    watch: Watch, /, as_json: bool, verbose: bool, out: str | None, fail: bool, **options: Any
) -> None:
    """Check how optimiser steps scale with the width (µP).

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), the path of a config.json, or FILE:FUNCTION, a
    function of the width that returns a PyTorch module with logits, or a program whose output is the loss and that
    names with ns.probe what to measure; FILE is run. With --out an interrupted check of a model resumes where it
    stopped. Files in the folder that no earlier check wrote are never overwritten.
    """
    from ._run_study import coord_check_study, printed

    result = run(watch, options, coord_check_study, out, as_json)
    printed(result, out, as_json, verbose)
    bad = [check for check in result if not check.kept]
    if fail and bad:
        failed = "; ".join(f"{check.name} ({', '.join(check.broken)})" for check in bad)
        echo_notice(f"not as expected: {failed}")
        raise click.exceptions.Exit(FAILED)


@cli.command("transfer")
@partial(
    training_options,
    widths="64,256,1024",
    steps=4,
    draws=16,
    optimiser="for FILE:FUNCTION also the name of an optimiser, or of a dictionary of them, in FILE.",
    lr="Learning rates at MODEL's own width, at most a factor of 4 apart.  [default: a factor of 2 apart, as many as "
    "the best one needs at each width]",
    verbose="Print the loss at every learning rate too.",
    rates=opt.RATES,
)
@option("--clip-norm", type=opt.ABOVE, metavar="X", help="Clip gradients to this global norm.")
def transfer_command(watch: Watch, /, as_json: bool, verbose: bool, out: str | None, **options: Any) -> None:
    """Check whether the best learning rate transfers across widths.

    MODEL is the name of a model that ships (gpt2, llama-3-8b, …), the path of a config.json, or FILE:FUNCTION, a
    function of the width that returns a program whose output is the loss; FILE is run. With --out an interrupted sweep
    of a model resumes where it stopped. Files in the folder that no earlier sweep wrote are never overwritten.
    """
    from ._run_study import printed, transfer_study

    result = run(watch, options, transfer_study, out, as_json)
    printed(result, out, as_json, verbose)


@cli.command("reproduce")
@argument("names", metavar="[FIGURE]...", nargs=-1)
@option("--out", metavar="DIR", default="results", help="The folder for figures, data and the report.")
@option("--samples", type=opt.DRAWS, help="Draws of a trial.  [default: 50000, and 100000 for ReLU]")
@option("--trials", type=opt.TRIALS, help="Trials.  [default: 10]")
@option("--seed", type=opt.SEED, default=0, help="Seed of the random numbers.")
@opt.WORKERS
@option("--quick", is_flag=True, help="A first look: 2 trials of 2500 draws.")
@option(
    "--estimator",
    type=Choice(["paper", "exact", "both"]),
    default="both",
    help="Kernel estimates as in the paper, the exact conditional densities, or both.",
)
@option("--tokens", type=opt.POSITIVE, default=16, help="The larger number of tokens of figure 4.")
@opt.where_options
@pass_obj
def reproduce_command(watch: Watch, /, names: tuple[str, ...], out: str, **options: Any) -> None:
    """Recompute the paper's figures and check its claims.

    FIGURE is any of 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b heads; 1 to 5 for both panels; exp1 to exp4 as the paper's public
    code numbers its experiments; or all, the default. An interrupted run resumes where it stopped. Files in the folder
    that no earlier run wrote are never overwritten.
    """
    from netsor_papers.paper._reproduce import PaperStudy, Request

    from .._document import wrap

    done = run(watch, options, lambda options: PaperStudy(Request(names, **options)), out)
    echo("\n".join([*map(wrap, done.summary), "", f"report: {done.report}"]))


@cli.command("literature")
@argument("names", metavar="[RESULT]...", nargs=-1)
@option("--out", metavar="DIR", default="literature", help="The folder for figures, data and the report.")
@option("--seed", type=opt.SEED, default=2, help="Seed of the random numbers.")
@opt.WORKERS
@option("--quick", is_flag=True, help="A first look, in about two minutes.")
@option("--verbose", is_flag=True, help="Print every statement too.")
@pass_obj
def literature_command(watch: Watch, /, names: tuple[str, ...], out: str, verbose: bool, **options: Any) -> None:
    """Compare published results with exact laws.

    RESULT is any of giorlandino deepscale unit-scaling tensor-programs noci hron dong temperature learning-rate gating
    finite-width gap completep subcritical gated-attention peri-ln; the default is all of them. An interrupted run
    resumes where it stopped. Files in the folder that no earlier run wrote are never overwritten.
    """
    from netsor_papers.literature._study import LiteratureStudy, Request

    done = run(watch, options, lambda options: LiteratureStudy(Request(names, **options)), out)
    echo(f"{done.table(verbose)}\n\nreport: {done.report}")


@cli.command("explore")
@argument("program", metavar="[FILE:PROGRAM]", required=False)
@opt.ARGUMENTS
@option("--port", type=opt.PORT, default=0, show_default=False, help="A port of this machine.  [default: a free one]")
@option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@pass_obj
def explore_command(watch: Watch, program: str | None, arguments: tuple[str, ...], port: int, no_browser: bool) -> None:
    """Open a page with sliders in the browser.

    Only this machine can open it, by an address with a token; Ctrl-C ends it. With FILE:PROGRAM there are sliders for
    the widths of your own program and for the numbers that its function takes; FILE is run.
    """
    if arguments and program is None:
        raise UsageError(f"--arg {arguments[0]} needs a FILE:PROGRAM")
    from ..explore import Target, _server
    from ._load_program import find

    # functions of a program may divide by zero where it does not matter; views check that their numbers are finite
    warnings.simplefilter("ignore", RuntimeWarning)
    target = None
    if program is not None:
        loaded = find(program, arguments)
        loaded.build()  # an error in the program is reported here
        target = Target(loaded.module, loaded.name, loaded.value, loaded.part, loaded.arguments)
    watch.message = "stopped"
    try:
        _server.serve(target, port, not no_browser, lambda address: click.echo(f"open {address} (Ctrl-C ends it)"))
    except KeyboardInterrupt:
        watch.say()
        os._exit(130)  # answers may be on their way in threads; there is nothing to save
    except BrokenPipeError:  # nobody reads the address
        raise
    except OSError as error:
        raise UsageError(f"--port {port} cannot be used: {error.strerror or error}") from None
