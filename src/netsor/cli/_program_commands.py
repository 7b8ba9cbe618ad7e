"""The commands about one program or module: law, compare, plan, check and
check-init.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import click
from click import UsageError, argument, option

from .._validate import real
from . import _options as opt
from . import _output as out
from ._options import cli


@cli.command("law")
@opt.subject_options(width="inf")
@opt.sampling_options
@opt.where_options(*opt.PRECISIONS)
@opt.many(
    "--at",
    type=opt.number(real),
    help="A point for the density and the distribution function; repeatable.",
)
def law_command(
    draws: int,
    seed: int,
    as_json: bool,
    plot: str | None,
    at: tuple[float, ...],
    **options: Any,
) -> None:
    """Compute the law of one output coordinate.

    The network is the paper's attention layer, or your own program. FILE:PROGRAM is a
    .py file (which is executed) or a module, a colon, and the name of a program in it
    or of a function that returns one; PROGRAM[i] is one of several outputs. Bind its
    widths with --bind n=256 --bind d=inf.
    """
    from ..laws import Estimate
    from ..report._document import wrap
    from ._subject import announce, subject

    out.check_plot(plot)
    where = opt.pop_backend(options)
    with out.stdout_to_stderr(as_json):
        target = subject(options, draws, backend=where.backend)
        announce(target.seconds)
        law = target.law(draws, seed, where)
        known = law.with_error
        moments = {
            "mean": known.mean(),
            "variance": known.var(),
            "excess_kurtosis": known.kurtosis(),
        }
        points: dict[str, list[Estimate]] = {"pdf": [], "cdf": []}
        for name in points if at else ():
            points[name] = [
                Estimate(*pair)
                for pair in zip(*getattr(known, name)(list(at)), strict=True)
            ]
        values = {
            f"{name} at {y:g}": e
            for name, some in points.items()
            for y, e in zip(at, some, strict=True)
        }
        out.check_finite(moments | values)
        if plot:
            out.draw(plot, {target.label: law})
    if as_json:
        content: dict[str, Any] = {}
        for name, moment in moments.items():
            content |= {
                name: float(moment.value),
                f"{name}_error": out.finite_or_none(moment.error),
            }
        for name, some in points.items():
            content[name] = [
                {"y": y, **out.value_and_error(e)}
                for y, e in zip(at, some, strict=True)
            ]
        facts = {
            "method": law.method,
            "status": law.status,
            "random_numbers": law.random_numbers,
        }
        out.echo_json({**content, **facts, "notes": list(law.notes)})
        return
    sampled = (
        f", {draws:,} draws of {law.random_numbers:,} random numbers"
        if law.random_numbers
        else ""
    )
    out.echo(wrap(f"{target.network}, {target.label}: {law.status}{sampled}"))
    out.echo_rows(law.notes, moments)
    for y, pdf, cdf in zip(at, points["pdf"], points["cdf"], strict=True):
        out.echo(f"y = {y:<10g} pdf {pdf}   cdf {cdf}")


OF = (
    "What --tolerance is about: kl, tv, variance, kurtosis, or a quantile such as"
    " 0.999."
)
# about as many laws --tolerance takes: 7 to 16 for KL, total variation, variance and
# quantiles
WIDTHS_TRIED = 12


@cli.command("compare")
@opt.subject_options(width="256")
@opt.sampling_options
@opt.where_options(*opt.PRECISIONS)
@opt.flag("--keep-head-dim", help="Keep the head dimension finite in the limit.")
@option(
    "--tolerance",
    type=float,
    help="Also find the smallest width with at most this difference from the limit.",
)
@option("--of", default="kl", metavar="WHAT", help=OF)
def compare_command(
    draws: int, seed: int, as_json: bool, plot: str | None, **options: Any
) -> None:
    """Measure the distance between finite and infinite width.

    Prints KL, total variation, Wasserstein-1 and Kolmogorov distances, each with an
    error. For your own program, FILE:PROGRAM, the widths of --bind are compared with
    infinite widths. FILE is executed.
    """
    from ..laws import distances
    from ..report._document import wrap
    from ..studies._convergence import checked, width_needed
    from ._subject import announce, subject

    out.check_plot(plot)
    where, infinite_heads = opt.pop_backend(options), options["infinite_heads"]
    keep_head_dim, tolerance, of = (
        options.pop(name) for name in ("keep_head_dim", "tolerance", "of")
    )
    if keep_head_dim and options["head_dim"] is None:
        raise UsageError(
            "--keep-head-dim needs --head-dim D, the head dimension of the built-in"
            " layer to keep"
        )
    if keep_head_dim and infinite_heads:
        raise UsageError(
            "--keep-head-dim and --infinite-heads cannot be combined: the second takes"
            " d to infinity"
        )
    if tolerance is not None and infinite_heads:
        raise UsageError(
            "--tolerance and --infinite-heads cannot be combined: heads are not a width"
        )
    with out.stdout_to_stderr(as_json):
        target = subject(options, draws, both=True, backend=where.backend)
        kept: dict[str, Any] = {"d": target.widths["d"]} if keep_head_dim else {}
        enough = None
        if tolerance is not None:
            free = [k for k in target.widths if k not in kept]
            if len(free) != 1:
                raise UsageError(
                    f"--tolerance is about one width, not {', '.join(free)};"
                    " --keep-head-dim keeps d"
                )
            with suppress(ValueError):  # it need not be a number
                of = float(of)
            tolerance, of = checked(tolerance, of)
            announce(WIDTHS_TRIED * target.seconds)
            enough = width_needed(
                target.net, tolerance, of, draws=draws, seed=seed, **kept
            )
        announce(target.seconds)
        sides = target, target.limit(kept, infinite_heads)
        laws = {side.label: side.law(draws, seed, where) for side in sides}
        finite, limit = laws.values()
        measured, notes = (
            distances(finite, limit),
            list(dict.fromkeys([*finite.notes, *limit.notes])),
        )
        out.check_finite(measured)
        if plot:
            out.draw(plot, laws)
    if as_json:
        rows: dict[str, Any] = {
            name: out.value_and_error(e) for name, e in measured.items()
        }
        if enough is not None:
            ends = {"low": enough.low, "high": out.finite_or_none(enough.high)}
            rows["width_needed"] = {
                **ends,
                "of": enough.of,
                "tolerance": enough.tolerance,
            }
        out.echo_json(
            {
                **rows,
                "method": [finite.method, limit.method],
                "status": limit.status,
                "notes": notes,
            }
        )
        return
    if enough is not None:
        out.echo(wrap(enough.summary))
    compared = " against ".join(f"{name} ({law.status})" for name, law in laws.items())
    out.echo(wrap(f"{target.network}: {compared}; {draws:,} draws"))
    out.echo_rows(notes, measured)


NOTICED = 0.1  # seconds: if making the plan takes longer, that is printed


@cli.command("plan")
@opt.subject_options(width="256")
@opt.place_options
@opt.AS_JSON
def plan_command(as_json: bool, **options: Any) -> None:
    """Show what one draw would sample and compute, and its cost.

    The network is the paper's attention layer, or your own program, FILE:PROGRAM with
    --bind. FILE is executed. With --backend and --device you get the plan for that
    device, even if this machine does not have it. The plan is the same in both
    precisions; the bytes are for double precision.
    """
    from ._subject import PLANS, subject

    if options["infinite_heads"]:
        raise UsageError("--infinite-heads has no plan: the law is a formula")
    backend, device = options.pop("backend"), options.pop("device")
    with out.stdout_to_stderr(as_json):
        target = subject(options)
        start = time.perf_counter()
        plan = target.net.plan(
            coordinates=target.coordinate,
            backend=backend,
            device=device,
            **target.widths,
        )
        seconds = time.perf_counter() - start
        text = str(plan)
    costs = {
        name: int(getattr(plan, name))
        for name in ("bytes", "operations", "random_numbers")
    }
    content = {
        "program": target.net.name,
        **costs,
        "planning_seconds": seconds,
        "place": plan.place,
        "plan": text,
    }
    if seconds > NOTICED:
        count = PLANS[math.inf in target.widths.values()]
        text += (
            f"\n  the plan itself took {seconds:.2g} s; a law makes {count} plans,"
            " which adds to its time"
        )
    out.echo_either(as_json, content, text)


@cli.command("check")
@argument("program", metavar="FILE:PROGRAM")
@opt.ARGUMENTS
@opt.AS_JSON
def check_command(program: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Check whether a program's limit is proved.

    Prints each condition of the theorem (Assumption 3.1 of the paper). FILE is the path
    of a .py file, or the name of a module. It is executed: do not check files that you
    do not trust. PROGRAM is a program in it, or a function that returns one. The exit
    code is 1 if the program has no limit.
    """
    from ..language.theorem._theorem_check import NO_LIMIT
    from ._load_program import find, program_of

    with out.stdout_to_stderr(as_json):
        report = program_of(find(program, arguments)).check()
    points = [
        {"name": p.name, "verdict": p.verdict, "findings": list(p.findings)}
        for p in report.points
    ]
    content = {"program": report.program, "verdict": report.verdict, "points": points}
    out.echo_either(as_json, content, str(report))
    if report.verdict == NO_LIMIT:
        raise click.exceptions.Exit(1)


# exit code, if the weights depart from what is declared, or the check is incomplete
DEPARTED = 3
INCOMPLETE = (
    "Exit with code 0 also if parameters or the pass could not be checked and nothing"
    " else departs."
)
LEVEL = opt.number(real, above=0, most=0.5)
REFERENCE = (
    "The declared initialisation: a config.json, the name of a model that ships, or a"
    " FILE:FUNCTION.\n[default: the module's own config, or its own initialisation]"
)


@cli.command("check-init")
@argument("model")
@opt.ARGUMENTS
@option("--reference", metavar="MODEL", help=REFERENCE)
@option(
    "--weights",
    metavar="FILE",
    help="Test the weights in a .safetensors file of step 0 instead.",
)
@option(
    "--ids",
    type=opt.IDS,
    help="The token ids of the pass, such as 3,7,7,1.  [default: 16 different ones]",
)
@option(
    "--draws", type=opt.DRAWS, default=300, help="Draws of the declared law of a pass."
)
@option("--level", type=LEVEL, default=0.001, help="Probability of a false alarm.")
@option(
    "--seed", type=opt.SEED, default=0, help="Seed of the draws, and of the module."
)
@opt.flag("--allow-incomplete", help=INCOMPLETE)
@opt.AS_JSON
def check_init_command(
    model: str,
    arguments: tuple[str, ...],
    as_json: bool,
    allow_incomplete: bool,
    **options: Any,
) -> None:
    """Check the real weights of a PyTorch module before training.

    MODEL is FILE:FUNCTION, a function that returns a PyTorch module, or a class. FILE
    is executed. Every parameter is tested against the declared initialisation, and one
    forward and backward pass against its exact law. The exit code is 3 if they differ,
    or if no parameter or no pass could be checked.
    """
    from ._load_program import is_target, module_of, torch_module, usage_errors

    with out.stdout_to_stderr(as_json), usage_errors():
        build = module_of(model, arguments)
        check_init = torch_module().check_init
        reference, weights, ids = (
            options["reference"],
            options["weights"],
            options.pop("ids"),
        )
        if reference is not None and is_target(reference):
            options["reference"] = module_of(reference, ())
        if weights is not None:
            out.check_name("--weights", weights)
        check = check_init(build, ids and list(ids), **options)
    out.echo_either(as_json, check.to_dict(), str(check))
    incomplete = not check.ok and not check.findings
    if incomplete and allow_incomplete:
        return
    if incomplete:
        out.echo_notice(
            "the check is incomplete, so the exit code is 3; --allow-incomplete makes"
            " it 0"
        )
    if not check.ok:
        raise click.exceptions.Exit(DEPARTED)
