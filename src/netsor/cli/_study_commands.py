"""The commands that run studies, and the explorer: their options and help texts.

`_run_study.py` checks the options and runs the studies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import click
from click import Choice, UsageError, argument, get_current_context, option

from .._validate import real
from . import _options as opt
from ._options import Decorated, cli, flag, many
from ._output import echo

COMPARE_SET = "Change a field of OTHER; without --compare, of a copy of MODEL."
SWEEP = (
    "Compare several values of a field, such as std=0.005,0.01,0.02, or of an argument"
    " of FILE:PROGRAM."
)
BASELINE = (
    "Exit with code 3 if a median is outside its 5–95 % band in an earlier audit: FILE"
    " of --json or --out."
)
GRADIENTS = (
    "Measure gradients by block and kind of weight.  [default: at the shortest length,"
    " if that costs little]"
)
# Those of `NAMED` in `optim.py`, which imports numpy: help does not wait for it
OPTIMISERS = "sgd, muon, adam or lion"
LEARNING_RATES = "0.001 for sgd and muon, 0.0001 for adam and lion"
EPS = (
    "Adam's eps at MODEL's own width; the parametrisation rescales it for other widths."
)
TOLERANCE = "Accepted distance from the expected exponent."
FAIL = (
    "Exit with code 3 if something is flagged, or more than half of the exponents are"
    " undecided."
)
OUT = "A folder for the report, figures, tables and finished draws."
ESTIMATOR = "The paper's kernel estimates, exact densities, or both."
LAYERS = option(
    "--layers", type=opt.POSITIVE, help="Number of blocks of MODEL: --set layers=N."
)
SET = many("--set", "changes", metavar="FIELD=VALUE", help="Change a field of MODEL.")


def _list_models(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the names of the built-in models, and stop."""
    if is_set:
        from ..models import names

        echo("\n".join(names()))
        ctx.exit()


def _list_recipes(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print what each recipe sets, in a line each, and stop."""
    if is_set:
        from ..models import RECIPES

        widest = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            echo(f"{name:{widest}}  {recipe.words}")
        ctx.exit()


@cli.command("audit")
@argument("model")
@flag(
    "--models",
    is_eager=True,
    expose_value=False,
    callback=_list_models,
    help="List the built-in models.",
)
@flag(
    "--recipes",
    "list_recipes",
    is_eager=True,
    expose_value=False,
    callback=_list_recipes,
    help="List the recipes: n is the width, L the number of blocks.",
)
@many("--bind", "binds", metavar="NAME=N", help="A width of FILE:PROGRAM.")
@opt.ARGUMENTS
@SET
@LAYERS
@option(
    "--recipe",
    metavar="NAME",
    help="Initialise MODEL with a recipe such as gpt2 or mup: see --recipes.",
)
@many(
    "--compare-recipe",
    "recipes",
    metavar="NAME",
    help="Compare MODEL with itself under another recipe; repeatable.",
)
@many("--compare", metavar="OTHER", help="Another model, to compare with; repeatable.")
@many("--compare-set", "others", metavar="FIELD=VALUE", help=COMPARE_SET)
@option("--sweep", "swept", type=opt.SWEEP, help=SWEEP)
@option(
    "--tokens",
    type=opt.SIZES,
    help="Number of tokens (all different), or several numbers.  [default: 16,128]",
)
@option(
    "--ids",
    type=opt.IDS,
    help="The token ids themselves, such as 3,7,7,1, instead of --tokens.",
)
@option(
    "--draws",
    type=opt.MIN_DRAWS,
    help="Initialisations.  [default: 200 for 16 tokens, 16 or more for others]",
)
@option(
    "--widths",
    type=Choice(["actual", "inf", "both"]),
    help="The model's own widths, ∞, or both.  [default: both]",
)
@flag(
    "--quick",
    help="A first look: 16 draws of 16 tokens at the model's own widths, no gradients.",
)
@option(
    "--fail-on",
    metavar="RULE,…",
    help="Exit with code 3 if one of these rules is flagged or undecided.",
)
@option("--baseline", metavar="FILE", help=BASELINE)
@option("--gradients/--no-gradients", default=None, help=GRADIENTS)
@flag(
    "--ranges",
    help="Measure the largest and smallest activations, for bf16, fp16 and fp8.",
)
@opt.SEED_OPTION
@opt.WORKERS
@option("--out", metavar="DIR", help=OUT)
@opt.where_options("auto", *opt.PRECISIONS)
@flag("--verbose", help="Print bands, gradients and every length too.")
@opt.AS_JSON
def audit_command(**options: Any) -> None:
    """Check a transformer's initialisation, without training it.

    MODEL is a built-in model (gpt2, llama-3-8b, …), the path of a config.json, or
    FILE:PROGRAM: your own function that returns a PyTorch module, or a program whose
    probes (ns.probe) name what to measure. FILE is executed. With --out, an interrupted
    audit of a model resumes where it stopped; netsor overwrites only its own files
    there.
    """
    from ._run_study import audit

    audit(**options)


def training_options(
    widths: str,
    steps: int,
    draws: int,
    optimiser: str,
    lr: str,
    verbose: str,
    rates: Any,
) -> Callable[[Decorated], Decorated]:
    """The options of a study that trains networks for a few steps; the arguments differ
    between studies.
    """
    grow = "Whether the number of heads or their dimension grows with the width."
    rules = (
        "sp, mup, ntk, mean-field, fixed, or a .json or .toml file; repeatable. "
        " [default: sp and mup]"
    )
    return opt.all_of(
        argument("model"),
        SET,
        LAYERS,
        option(
            "--widths",
            type=opt.WIDTHS,
            help=f"Widths of the stream.  [default: {widths}]",
        ),
        option("--steps", type=opt.POSITIVE, default=steps, help="Number of steps."),
        option(
            "--optimiser",
            "--optimizer",
            metavar="NAME",
            default="sgd",
            help=f"{OPTIMISERS}; {optimiser}",
        ),
        option("--lr", type=rates, metavar="X,…", help=lr),
        many(
            "--parametrisation",
            "--parametrization",
            "rules",
            metavar="NAME|FILE",
            help=rules,
        ),
        option("--eps", type=opt.number(real, least=0, most=1), default=0.0, help=EPS),
        option(
            "--grow", type=Choice(["heads", "head-dim"]), default="heads", help=grow
        ),
        option(
            "--vectors",
            metavar="KIND,…",
            help="Train vectors too: bias, gain, or both.",
        ),
        option(
            "--tokens",
            type=opt.POSITIVE,
            help="Tokens of a random batch.  [default: 4]",
        ),
        option(
            "--ids",
            type=opt.IDS,
            help="The ids of the batch; each is the target of the one before it.",
        ),
        option("--targets", type=opt.IDS, help="A target for each of --ids."),
        option(
            "--draws",
            type=opt.number(least=4),
            default=draws,
            help="Initialisations at each width.",
        ),
        opt.SEED_OPTION,
        opt.WORKERS,
        option("--out", metavar="DIR", help=OUT),
        opt.where_options(*opt.PRECISIONS),
        flag("--verbose", help=verbose),
        opt.AS_JSON,
    )


@cli.command("coord-check")
@training_options(
    widths="256,1024,4096",
    steps=1,
    draws=32,
    optimiser=(
        "for modules also the name of a function in FILE that makes the optimiser of a"
        " module."
    ),
    lr=(
        "Learning rate at MODEL's own width, or query=X,head=Y,… by kind of weight; for"
        " FILE:FUNCTION a number, or the name of rates in FILE. "
        f" [default: {LEARNING_RATES}]"
    ),
    verbose="Print the sizes at every width too.",
    rates=str,
)
@option(
    "--depths",
    type=opt.SIZES,
    help="Numbers of blocks, for exponents in the depth at one width.",
)
@option(
    "--tolerance", type=opt.number(real, above=0, most=1), default=0.1, help=TOLERANCE
)
@flag("--fail", help=FAIL)
def coord_check_command(**options: Any) -> None:
    """Check how optimiser steps scale with the width (µP).

    MODEL is a built-in model (gpt2, llama-3-8b, …), the path of a config.json, or
    FILE:FUNCTION, a function of the width that returns a PyTorch module with logits, or
    a program whose output is the loss and whose probes (ns.probe) name what to measure.
    FILE is executed. With --out, an interrupted check of a model resumes where it
    stopped; netsor overwrites only its own files there.
    """
    from ._run_study import coord_check

    coord_check(**options)


@cli.command("transfer")
@training_options(
    widths="64,256,1024",
    steps=4,
    draws=16,
    optimiser=(
        "for FILE:FUNCTION also the name of an optimiser, or of a dictionary of them,"
        " in FILE. For a module adamw, adam, lion or sign, or the name of a function in"
        " FILE that makes its optimiser, with torch or with optax."
    ),
    lr=(
        "Learning rates at MODEL's own width, at most a factor of 4 apart.  [default: a"
        " factor of 2 apart, as many as the best one needs at each width]"
    ),
    verbose="Print the loss at every learning rate too.",
    rates=opt.RATES,
)
@option(
    "--batch",
    metavar="NAME",
    help="For a module, the name of (inputs, targets) in FILE.  [default: random ids]",
)
@option(
    "--clip-norm",
    type=opt.ABOVE,
    metavar="X",
    help="Clip gradients to this global norm.",
)
def transfer_command(**options: Any) -> None:
    """Check whether the best learning rate transfers across widths.

    MODEL is a built-in model (gpt2, llama-3-8b, …), the path of a config.json, or
    FILE:FUNCTION, a function of the width that returns a PyTorch module or a JAX model
    with logits, or a program whose output is the loss. PyTorch and JAX train their
    models themselves; the parametrisations of these are sp and files of netsor
    parametrise. FILE is executed. With --out, an interrupted sweep of a model resumes
    where it stopped; netsor overwrites only its own files there.
    """
    from ._run_study import transfer

    transfer(**options)


@cli.command("reproduce")
@argument("names", metavar="[FIGURE]...", nargs=-1)
@option(
    "--out",
    metavar="DIR",
    default="results",
    help="The folder for figures, data and the report.",
)
@option(
    "--samples",
    type=opt.DRAWS,
    help="Draws per trial.  [default: 50000, and 100000 for ReLU]",
)
@option("--trials", type=opt.TRIALS, help="Trials.  [default: 10]")
@opt.SEED_OPTION
@opt.WORKERS
@flag("--quick", help="A first look: 2 trials of 2500 draws.")
@option(
    "--estimator",
    type=Choice(["paper", "exact", "both"]),
    default="both",
    help=ESTIMATOR,
)
@option(
    "--tokens",
    type=opt.POSITIVE,
    default=16,
    help="The larger number of tokens in figure 4.",
)
@opt.where_options(*opt.PRECISIONS)
def reproduce_command(**options: Any) -> None:
    """Recompute the paper's figures and check its claims.

    FIGURE is any of 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b heads; 1 to 5 for both panels; exp1
    to exp4 as the paper's public code numbers its experiments; or all, the default. An
    interrupted run resumes where it stopped. netsor overwrites only its own files in
    the folder.
    """
    from ..papers.sakai2025._reproduce import PaperStudy, Request
    from ..report._document import wrap
    from ._run_study import run

    result = run(options, lambda fields: PaperStudy(Request(**fields)))
    for paragraph in result.summary:
        echo(wrap(paragraph))
    echo(f"\nreport: {result.report}")


@cli.command("literature")
@argument("names", metavar="[RESULT]...", nargs=-1)
@option(
    "--out",
    metavar="DIR",
    default="literature",
    help="The folder for figures, data and the report.",
)
@option("--seed", type=opt.SEED, default=2, help="Seed of the random numbers.")
@opt.WORKERS
@flag("--quick", help="A first look, in about two minutes.")
@flag("--verbose", help="Print every statement too.")
def literature_command(verbose: bool, **options: Any) -> None:
    """Compare published results with exact laws.

    RESULT is any of giorlandino deepscale unit-scaling tensor-programs noci hron dong
    temperature learning-rate gating finite-width gap completep subcritical
    gated-attention peri-ln words positions recurrent hypersphere shapes streams ngpt;
    the default is all of them. An interrupted run resumes where it stopped. netsor
    overwrites only its own files in the folder.
    """
    from ..papers.literature._study import LiteratureStudy, Request
    from ._run_study import run

    def study_of(fields: dict[str, Any]) -> LiteratureStudy:
        return LiteratureStudy(Request(**fields))

    result = run(options, study_of)
    echo(result.table(verbose))
    echo(f"\nreport: {result.report}")


@cli.command("explore")
@argument("program", metavar="[FILE:PROGRAM]", required=False)
@opt.ARGUMENTS
@option(
    "--port",
    type=opt.PORT,
    default=0,
    show_default=False,
    help="A port of this machine.  [default: a free one]",
)
@flag("--no-browser", help="Print the address without opening a browser.")
def explore_command(
    program: str | None, arguments: tuple[str, ...], port: int, no_browser: bool
) -> None:
    """Open a page with sliders in the browser.

    Only this machine can open the page, and only with the token in its address. Ctrl-C
    stops the server. FILE:PROGRAM adds sliders for the widths of your own program and
    for the numbers that its function takes. FILE is executed.
    """
    if arguments and program is None:
        raise UsageError(f"--arg {arguments[0]} needs a FILE:PROGRAM")
    from ..explore import _server
    from ._load_program import find, program_of

    # functions of a program may divide by zero where it does not matter; views check
    # that their numbers are finite
    warnings.simplefilter("ignore", RuntimeWarning)
    target = None
    if program is not None:
        target = find(program, arguments)
        program_of(target)  # an error in the program is reported here
    get_current_context().obj.message = "stopped"
    try:
        _server.serve(
            target,
            port,
            browser=not no_browser,
            say=lambda address: click.echo(f"open {address} (Ctrl-C stops it)"),
        )
    except BrokenPipeError:  # the reader closed stdout
        raise
    except OSError as error:
        raise UsageError(
            f"--port {port} cannot be used: {error.strerror or error}"
        ) from None
