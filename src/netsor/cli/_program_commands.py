"""The commands about one program or module: law, compare, plan, check and check-init."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import click
from click import UsageError, argument, option

from .._validate import real
from . import _options as opt
from ._options import cli
from ._output import INFINITE_HEADS, check_name, check_plot, draw, echo, echo_json, error_of, finite, stdout_to_stderr


@cli.command("law")
@opt.subject_options(width="inf")
@opt.sampling_options
@opt.where_options
@option(
    "--at", type=opt.POINT, multiple=True, help="A point for density and distribution function; may be given again."
)
def law_command(
    draws: int, seed: int, as_json: bool, plot: str | None, at: tuple[float, ...], infinite_heads: bool, **options: Any
) -> None:
    """Compute the law of one output coordinate.

    It is that of the paper's attention layer, or of your own program. FILE:PROGRAM is a .py file (which is run) or
    module, a colon, and the name of a program in it or of a function that returns one; PROGRAM[i] is one of several
    outputs. Bind its widths, --bind n=256 --bind d=inf.
    """
    from ..laws import Estimate
    from ._subject import announce, subject

    check_plot(plot)
    where = opt.pop_backend(options)
    with stdout_to_stderr(as_json):
        target = subject({**options, "infinite_heads": infinite_heads}, draws, backend=where.backend)
        announce(target.seconds)
        law = target.infinite_heads() if infinite_heads else target.law(draws, seed, where)
        label = INFINITE_HEADS if infinite_heads else target.label
        known = law.with_error
        moments = {"mean": known.mean(), "variance": known.var(), "excess kurtosis": known.kurtosis()}
        for name, moment in moments.items():
            finite(name, moment.value)
        points: dict[str, list[Estimate]] = {"pdf": [], "cdf": []}
        for name, estimates in points.items() if at else ():
            for y, value, error in zip(at, *getattr(known, name)(list(at)), strict=True):
                estimates.append(Estimate(finite(f"{name} at {y:g}", value), float(error)))
        if plot:
            draw(plot, {label: law})
    if as_json:
        content: dict[str, Any] = {}
        for name, moment in moments.items():
            key = name.replace(" ", "_")
            content |= {key: float(moment.value), f"{key}_error": error_of(moment.error)}
        for name, values in points.items():
            pairs = zip(at, values, strict=True)
            content[name] = [{"y": y, "value": e.value, "error": error_of(e.error)} for y, e in pairs]
        facts = {"method": law.method, "status": law.status, "random_numbers": law.random_numbers}
        echo_json({**content, **facts, "notes": list(law.notes)})
        return
    sampled = f", from {law.random_numbers:,} random numbers a replica" if law.random_numbers else ""
    echo(f"{label}: {law.status}{sampled}")
    for note in law.notes:
        echo(f"note: {note}")
    for name, moment in moments.items():
        echo(f"{name:16} {moment}")
    for y, pdf, cdf in zip(at, points["pdf"], points["cdf"], strict=True):
        echo(f"y = {y:<10g} pdf {pdf}   cdf {cdf}")


WIDTHS_TRIED = 12  # about as many laws --tolerance takes: 7 to 16 for KL, total variation, variance and quantiles


@cli.command("compare")
@opt.subject_options(width="256")
@opt.sampling_options
@opt.where_options
@option("--keep-head-dim", is_flag=True, help="Keep the head dimension on the infinite side.")
@option("--tolerance", type=float, help="Also find the width beyond which the difference is at most this.")
@option(
    "--of",
    default="kl",
    metavar="WHAT",
    help="What --tolerance is about: kl, tv, variance, kurtosis, or a quantile such as 0.999.",
)
def compare_command(
    draws: int,
    seed: int,
    as_json: bool,
    plot: str | None,
    keep_head_dim: bool,
    infinite_heads: bool,
    tolerance: float | None,
    of: str,
    **options: Any,
) -> None:
    """Measure the distance between finite and infinite width.

    Prints KL, total variation, Wasserstein-1 and Kolmogorov distances, each with an error. For your own program,
    FILE:PROGRAM, the widths of --bind are compared with all widths at ∞. FILE is run.
    """
    from .._document import wrap
    from ..laws import distances
    from ..studies._convergence import checked, width_needed
    from ._subject import announce, subject

    check_plot(plot)
    where = opt.pop_backend(options)
    if keep_head_dim and options["head_dim"] is None:
        raise UsageError("--keep-head-dim needs --head-dim D, the head dimension of the built-in layer to keep")
    if keep_head_dim and infinite_heads:
        raise UsageError("--keep-head-dim and --infinite-heads cannot be combined: the latter takes d to infinity")
    if tolerance is not None and infinite_heads:
        raise UsageError("--tolerance and --infinite-heads cannot be combined: heads are not a width")
    with stdout_to_stderr(as_json):
        target = subject({**options, "infinite_heads": infinite_heads}, draws, both=True, backend=where.backend)
        limit = target.limit(keep=("d",) if keep_head_dim else ())
        enough = None
        if tolerance is not None:
            free = [k for k in target.widths if not (keep_head_dim and k == "d")]
            if len(free) != 1:
                raise UsageError(f"--tolerance is about one width, not {', '.join(free)}; --keep-head-dim keeps d")
            kept: dict[str, Any] = {k: v for k, v in target.widths.items() if k not in free}
            level: str | float = of
            with suppress(ValueError):  # it need not be a number
                level = float(of)
            tolerance, level = checked(tolerance, level)
            announce(WIDTHS_TRIED * target.seconds)
            enough = width_needed(target.net, tolerance, level, draws=draws, seed=seed, **kept)
        announce(target.seconds)
        infinite = limit.infinite_heads() if infinite_heads else limit.law(draws, seed, where)
        laws = target.law(draws, seed, where), infinite
        measured = distances(*laws)
        notes = list(dict.fromkeys(note for law in laws for note in law.notes))
        for name, distance in measured.items():
            finite(name.replace("_", " "), distance.value)
        names = target.label, INFINITE_HEADS if infinite_heads else limit.label
        if plot:
            draw(plot, dict(zip(names, laws, strict=True)))
    if as_json:
        rows = {name: {"value": e.value, "error": error_of(e.error)} for name, e in measured.items()}
        if enough is not None:
            ends = {"low": enough.low, "high": error_of(enough.high)}
            rows["width_needed"] = {**ends, "of": enough.of, "tolerance": enough.tolerance}
        echo_json({**rows, "method": [law.method for law in laws], "status": laws[1].status, "notes": notes})
        return
    if enough is not None:
        echo(wrap(enough.summary))
    echo(" against ".join(f"{name} ({law.status})" for name, law in zip(names, laws, strict=True)))
    for note in notes:
        echo(f"note: {note}")
    for name, estimate in measured.items():
        echo(f"{name.replace('_', ' '):16} {estimate}")


NOTICED = 0.1  # seconds: if making the plan takes longer, that is printed


@cli.command("plan")
@opt.subject_options(width="256")
@opt.place_options
@opt.AS_JSON
def plan_command(as_json: bool, **options: Any) -> None:
    """Show what one draw would sample and compute, and its cost.

    The plan is that of the paper's attention layer, or of your own program, FILE:PROGRAM with --bind; FILE is run. With
    --backend and --device you get the plan for that device, which need not be on this machine. The plan is the same in
    both precisions; bytes are those of double precision.
    """
    from ._subject import PLANS, subject

    if options["infinite_heads"]:
        raise UsageError("--infinite-heads is a formula, and has no plan")
    backend, device = options.pop("backend"), options.pop("device")
    with stdout_to_stderr(as_json):
        target = subject(options)
        start = time.perf_counter()
        plan = target.plan(backend=backend, device=device)
        seconds = time.perf_counter() - start
        text = str(plan)
    if as_json:
        costs = {name: int(getattr(plan, name)) for name in ("bytes", "operations", "random_numbers")}
        echo_json({"program": target.net.name, **costs, "planning_seconds": seconds, "place": plan.place, "plan": text})
        return
    echo(text)
    if seconds > NOTICED:
        count = PLANS[math.inf in target.widths.values()]
        echo(f"  the plan itself took {seconds:.2g} s; a law makes {count} of them, so it takes that much longer")


@cli.command("check")
@argument("program", metavar="FILE:PROGRAM")
@opt.ARGUMENTS
@opt.AS_JSON
def check_command(program: str, arguments: tuple[str, ...], as_json: bool) -> None:
    """Check whether a program's limit is proved.

    It goes through the conditions of the theorem, Assumption 3.1 of the paper. FILE is the path of a .py file, or a
    module's name. It is run, as Python runs it: check no file that you do not trust. PROGRAM is a program in it, or a
    function that returns one. Exit code 1 if the program has no limit.
    """
    from ..language._theorem_check import NO_LIMIT
    from ._load_program import find

    with stdout_to_stderr(as_json):
        report = find(program, arguments).build().check()
    if as_json:
        points = [{"name": p.name, "verdict": p.verdict, "findings": list(p.findings)} for p in report.points]
        echo_json({"program": report.program, "verdict": report.verdict, "points": points})
    else:
        echo(str(report))
    if report.verdict == NO_LIMIT:
        raise click.exceptions.Exit(1)


DEPARTED = 3  # exit code, if the weights depart from what is declared
LEVEL = opt.Number(real, above=0, most=0.5)


@cli.command("check-init")
@argument("model")
@opt.ARGUMENTS
@option(
    "--reference",
    metavar="MODEL",
    help="What is declared: a config.json, the name of a model that ships, or FILE:FUNCTION that makes a module.  "
    "[default: the module's own config, or its own initialisation]",
)
@option("--weights", metavar="FILE", help="Test the weights in a .safetensors file of step 0 instead.")
@option("--ids", type=opt.IDS, help="The token ids of the pass, such as 3,7,7,1.  [default: 16 different ones]")
@option("--draws", type=opt.POSITIVE, default=300, help="Draws of the declared law of a pass.")
@option("--level", type=LEVEL, default=0.001, help="Probability of a false alarm.")
@option("--seed", type=opt.SEED, default=0, help="Seed of the draws, and of the module.")
@opt.AS_JSON
def check_init_command(
    model: str, arguments: tuple[str, ...], reference: str | None, weights: str | None, ids: Any, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Check the real weights of a PyTorch module before training.

    MODEL is FILE:FUNCTION, a function that returns a PyTorch module, or a class; FILE is run. Every parameter is
    tested against the declared initialisation, and one forward and backward pass against its exact law. Exit code 3 if
    they depart from it.
    """
    from ._load_program import is_target, module_of, torch_module, usage_errors

    with stdout_to_stderr(as_json), usage_errors():
        build = module_of(model, arguments)
        check_init = torch_module().check_init
        declared = module_of(reference, ()) if reference is not None and is_target(reference) else reference
        if weights is not None:
            check_name("--weights", weights)
        check = check_init(build, ids and list(ids), reference=declared, weights=weights, **options)
    if as_json:
        echo_json(check.to_dict())
    else:
        echo(str(check))
    if not check.ok:
        raise click.exceptions.Exit(DEPARTED)
