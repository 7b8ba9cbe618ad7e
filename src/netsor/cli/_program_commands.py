"""The commands about one program or module: law, compare, plan, check and
check-init.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click import UsageError, argument, option

from .._validate import real, shown
from . import _options as opt
from . import _output as out
from ._options import cli

if TYPE_CHECKING:
    from ..laws import Estimate, Law
    from ..studies._convergence import WidthNeeded
    from ._subject import Target


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
    from ._subject import announce, subject

    out.check_plot(plot)
    place = opt.pop_place(options)
    with out.stdout_to_stderr(as_json):
        target = subject(options, draws, backend=place.backend)
        announce(target.seconds)
        law = target.law(draws, seed, place)
        moments = _moments(law)
        points = _values_at(law, at)
        densities = {f"pdf at {point.y:g}": point.pdf for point in points}
        probabilities = {f"cdf at {point.y:g}": point.cdf for point in points}
        out.check_finite(moments | densities | probabilities)
        if plot:
            out.draw(plot, {target.label: law})
    if as_json:
        out.echo_json(_law_as_dict(law, moments, points))
    else:
        _print_law(target, law, draws, moments, points)


class PointValues(NamedTuple):
    """The density and the distribution function of a law at one point."""

    y: float
    pdf: Estimate
    cdf: Estimate


def _moments(law: Law) -> dict[str, Estimate]:
    """Mean, variance and excess kurtosis, with their errors."""
    statistics = law.with_error
    return {
        "mean": statistics.mean(),
        "variance": statistics.var(),
        "excess_kurtosis": statistics.kurtosis(),
    }


def _values_at(law: Law, at: tuple[float, ...]) -> list[PointValues]:
    """The density and the distribution function at each point of --at."""
    from ..laws import Estimate

    if not at:
        return []
    statistics = law.with_error
    densities = zip(*statistics.pdf(list(at)), strict=True)
    probabilities = zip(*statistics.cdf(list(at)), strict=True)
    points = []
    for y, pdf, cdf in zip(at, densities, probabilities, strict=True):
        points.append(PointValues(y, pdf=Estimate(*pdf), cdf=Estimate(*cdf)))
    return points


def _law_as_dict(
    law: Law, moments: dict[str, Estimate], points: list[PointValues]
) -> dict[str, Any]:
    """A law for JSON."""
    content: dict[str, Any] = {}
    for name, moment in moments.items():
        content[name] = float(moment.value)
        content[f"{name}_error"] = out.finite_or_none(moment.error)
    content["pdf"] = [{"y": y, **out.value_and_error(pdf)} for y, pdf, _ in points]
    content["cdf"] = [{"y": y, **out.value_and_error(cdf)} for y, _, cdf in points]
    content["method"] = law.method
    content["status"] = law.status
    content["random_numbers"] = law.random_numbers
    content["notes"] = list(law.notes)
    return content


def _print_law(
    target: Target,
    law: Law,
    draws: int,
    moments: dict[str, Estimate],
    points: list[PointValues],
) -> None:
    """Print what the network is, how its law was obtained, and its numbers."""
    from ..report._document import wrap

    heading = f"{target.network}, {target.label}: {law.status}"
    if law.random_numbers:
        heading += f", {draws:,} draws of {law.random_numbers:,} random numbers"
    out.echo(wrap(heading))
    out.echo_rows(law.notes, moments)
    for y, pdf, cdf in points:
        out.echo(f"y = {y:<10g} pdf {pdf}   cdf {cdf}")


OF = (
    "The quantity that --tolerance limits: kl, tv, variance, kurtosis, or a quantile"
    " such as 0.999."
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
    draws: int,
    seed: int,
    as_json: bool,
    plot: str | None,
    keep_head_dim: bool,
    tolerance: float | None,
    of: str,
    **options: Any,
) -> None:
    """Measure the distance between finite and infinite width.

    Prints KL, total variation, Wasserstein-1 and Kolmogorov distances, each with an
    error. For your own program, FILE:PROGRAM, the widths of --bind are compared with
    infinite widths. FILE is executed.
    """
    from ..laws import distances
    from ._subject import announce, subject

    out.check_plot(plot)
    place = opt.pop_place(options)
    infinite_heads = options["infinite_heads"]
    _check_limit_options(
        keep_head_dim=keep_head_dim,
        head_dim=options["head_dim"],
        infinite_heads=infinite_heads,
        tolerance=tolerance,
    )
    with out.stdout_to_stderr(as_json):
        target = subject(options, draws, with_limit=True, backend=place.backend)
        kept_widths = {"d": target.widths["d"]} if keep_head_dim else {}
        wide_enough = None
        if tolerance is not None:
            wide_enough = _find_width(target, kept_widths, tolerance, of, draws, seed)
        announce(target.seconds)
        sides = target, target.limit(kept_widths, infinite_heads)
        laws = {side.label: side.law(draws, seed, place) for side in sides}
        finite, limit = laws.values()
        measured = distances(finite, limit)
        out.check_finite(measured)
        if plot:
            out.draw(plot, laws)
    notes = list(dict.fromkeys([*finite.notes, *limit.notes]))  # each once
    if as_json:
        content = _distances_as_dict(measured, wide_enough)
        content["method"] = [finite.method, limit.method]
        content["status"] = limit.status
        content["notes"] = notes
        out.echo_json(content)
    else:
        _print_distances(target, laws, draws, wide_enough)
        out.echo_rows(notes, measured)


def _check_limit_options(
    *,
    keep_head_dim: bool,
    head_dim: float | None,
    infinite_heads: bool,
    tolerance: float | None,
) -> None:
    """Reject options of `compare` that contradict each other."""
    if keep_head_dim and head_dim is None:
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


def _find_width(
    target: Target,
    kept_widths: dict[str, Any],
    tolerance: float,
    of: str,
    draws: int,
    seed: int,
) -> WidthNeeded:
    """The smallest width with at most this difference from the limit."""
    from ..studies._convergence import checked, width_needed
    from ._subject import announce

    free_widths = [name for name in target.widths if name not in kept_widths]
    if len(free_widths) != 1:
        raise UsageError(
            f"--tolerance is about one width, not {', '.join(free_widths)};"
            " --keep-head-dim keeps d"
        )
    quantity: str | float = of
    with suppress(ValueError):  # a quantile is a number, other quantities have names
        quantity = float(of)
    tolerance, quantity = checked(tolerance, quantity)
    announce(WIDTHS_TRIED * target.seconds)
    return width_needed(
        target.net, tolerance, of=quantity, draws=draws, seed=seed, **kept_widths
    )


def _distances_as_dict(
    measured: dict[str, Estimate], needed: WidthNeeded | None
) -> dict[str, Any]:
    """The distances for JSON, and the width that a tolerance needs."""
    content: dict[str, Any] = {}
    for name, distance in measured.items():
        content[name] = out.value_and_error(distance)
    if needed is not None:
        content["width_needed"] = {
            "low": needed.low,
            "high": out.finite_or_none(needed.high),
            "of": needed.of,
            "tolerance": needed.tolerance,
        }
    return content


def _print_distances(
    target: Target, laws: dict[str, Law], draws: int, needed: WidthNeeded | None
) -> None:
    """Print the width that a tolerance needs, and which laws are compared."""
    from ..report._document import wrap

    if needed is not None:
        out.echo(wrap(needed.summary))
    compared = " against ".join(f"{name} ({law.status})" for name, law in laws.items())
    out.echo(wrap(f"{target.network}: {compared}; {draws:,} draws"))


NOTICED = 0.1  # seconds: if making the plan takes longer, that is printed


@cli.command("plan")
@opt.subject_options(width="256")
@opt.place_options
@opt.AS_JSON
def plan_command(
    as_json: bool, backend: str, device: str | None, **options: Any
) -> None:
    """Show what one draw would sample and compute, and its cost.

    The network is the paper's attention layer, or your own program, FILE:PROGRAM with
    --bind. FILE is executed. With --backend and --device you get the plan for that
    device, even if this machine does not have it. The plan is the same in both
    precisions; the bytes are for double precision.
    """
    from ._subject import plans_of_law, subject

    if options["infinite_heads"]:
        raise UsageError("--infinite-heads has no plan: the law is a formula")
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
    content = {
        "program": target.net.name,
        "bytes": int(plan.bytes),
        "operations": int(plan.operations),
        "random_numbers": int(plan.random_numbers),
        "planning_seconds": seconds,
        "place": plan.place,
        "plan": text,
    }
    if seconds > NOTICED:
        count = plans_of_law(target.widths)
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
    of a .py file, or the name of a module; it is executed, so use only files you trust.
    PROGRAM is a program in it, or a function that returns one. The exit code is 1 if
    the program has no limit.
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
WEIGHTS = (
    "Test the weights of step 0 in files instead: a .safetensors file, a folder of"
    " them, or a folder of torch.distributed.checkpoint; repeatable, for the files of"
    " ranks."
)
LAWS_OF_SCIPY = ("norm", "uniform", "truncnorm", "expon", "loguniform")
DECLARED = (
    "The law of a parameter, or of those that a pattern names: a standard deviation,"
    " constant(X), or norm, uniform, truncnorm, expon or loguniform of scipy.stats, as"
    " '*.bias=constant(0)'; repeatable."
)
PARAMETERS_ONLY = (
    "Leave out the forward and backward pass; parameters are matched by name."
)
LEVEL = opt.number(real, above=0, most=0.5)
REFERENCE = (
    "The declared initialisation: a config.json, a built-in model, or a FILE:FUNCTION."
    "\n[default: the module's own config, or its own initialisation]"
)


@cli.command("check-init")
@argument("model")
@opt.ARGUMENTS
@option("--reference", metavar="MODEL", help=REFERENCE)
@opt.many("--declared", metavar="NAME=LAW", help=DECLARED)
@opt.many("--weights", metavar="PATH", help=WEIGHTS)
@opt.flag("--parameters-only", help=PARAMETERS_ONLY)
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
    reference: str | None,
    declared: tuple[str, ...],
    weights: tuple[str, ...],
    ids: tuple[int, ...] | None,
    **options: Any,
) -> None:
    """Check the real weights of a PyTorch module or JAX model before training.

    MODEL is FILE:FUNCTION, a function that returns a PyTorch module, or a class; or a
    function of a key that makes a model of Flax or Equinox. FILE is executed. Every
    parameter is tested against the declared initialisation, and one forward and
    backward pass against its exact law. The exit code is 3 if they differ, or if no
    parameter or no pass could be checked. With --parameters-only no pass is needed.
    """
    from ._load_program import is_target, jax_or_torch_model, usage_errors

    options["declared"] = _declared_laws(declared)
    with out.stdout_to_stderr(as_json), usage_errors():
        build, library = of_file = jax_or_torch_model(model, arguments)
        known: Any = reference
        if reference is not None and is_target(reference):
            known = jax_or_torch_model(reference, ()).model
        for path in weights:
            out.check_name("--weights", path)
        if of_file.is_of_jax:
            check = _check_of_jax(build, ids, known, weights, options)
        else:
            check = library.check_init(
                build,
                None if ids is None else list(ids),
                reference=known,
                weights=_paths(weights),
                **options,
            )
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


def _declared_laws(texts: tuple[str, ...]) -> dict[str, Any] | None:
    """The laws of --declared NAME=LAW, by name or pattern; None without any."""
    laws: dict[str, Any] = {}
    for text in texts:
        name, equals, text_of_law = text.partition("=")
        pattern = name.strip()
        law = text_of_law.strip()
        if not equals or not pattern or not law:
            raise UsageError(
                f"--declared {shown(text)} must be NAME=LAW, such as"
                " '*.bias=constant(0)'"
            )
        if pattern in laws:
            raise UsageError(f"--declared {pattern} is given twice")
        laws[pattern] = _law(law, text)
    return laws or None


def _law(law: str, text: str) -> Any:
    """The law that --declared names; `text` is the whole option."""
    from scipy import stats

    from ..reader._declared_laws import constant, law_of_declaration
    from ._argument_values import value_of

    known = {name: getattr(stats, name) for name in LAWS_OF_SCIPY}
    try:
        declaration = value_of(law, SimpleNamespace(constant=constant, **known))
        law_of_declaration(declaration, "declared")
    except (ValueError, TypeError):
        listed = ", ".join(f"{name}(…)" for name in LAWS_OF_SCIPY)
        raise UsageError(
            f"--declared {shown(text)} must be NAME=LAW, where LAW is a standard"
            f" deviation, constant(X), or {listed} with the arguments of scipy.stats"
        ) from None
    return declaration


def _check_of_jax(
    model: Any,
    ids: tuple[int, ...] | None,
    reference: Any,
    weights: tuple[str, ...],
    options: dict[str, Any],
) -> Any:
    """The check of a JAX model."""
    import numpy as np

    from ..jax import check_init
    from ..jax._network import as_inputs, token_ids

    if weights:
        raise UsageError(
            f"--weights {weights[0]} is for PyTorch modules; in Python,"
            " ns.jax.check_init(model, ids, numbers=…) takes the numbers of a JAX model"
        )
    if isinstance(reference, str):
        raise UsageError(
            f"--reference {shown(reference)} must be FILE:FUNCTION of a JAX model,"
            " because MODEL is one"
        )
    inputs: list[Any] = []
    if ids is not None:
        inputs = [as_inputs(model, np.array(ids))]
    elif not options["parameters_only"]:
        inputs = [token_ids(model, None)]
    return check_init(model, *inputs, reference=reference, **options)


def _paths(weights: tuple[str, ...]) -> Any:
    """None, one path, or a list with a path for each rank."""
    if len(weights) > 1:
        return list(weights)
    return weights[0] if weights else None
