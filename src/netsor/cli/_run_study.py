"""Runs studies for commands: options become a request; the study is announced, run and
printed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click import UsageError

from .._document import wrap
from .._validate import counted, shown
from ..engine._memory import in_bytes
from ..engine._plan import in_time
from ..engine.backends import Numpy
from ..models import Transformer, read, recipe, settings
from ..models._metric_program import ProgramModel
from ..optim import NAMED
from ..studies import Study
from ..studies._training import call_build, is_function, subject_of
from ..studies.audit import AuditStudy
from ..studies.audit._baseline import Baseline, summary
from ..studies.audit._request import Request
from ..studies.audit._request import sweep as sweep_of
from ..studies.audit._rules import rule_name
from ._load_program import (
    bound,
    find,
    is_target,
    module_factory,
    program_of,
    torch_module,
    usage_errors,
)
from ._main import Watch
from ._options import Place, pop_backend, spelled
from ._output import (
    check_name,
    echo,
    echo_error,
    echo_json,
    echo_notice,
    reason,
    stdout_to_stderr,
)
from ._subject import LONGEST, slow_notice

OPTIMISER_NAMES = f"{', '.join(NAMED)}, or the name of one"


def run(
    options: dict[str, Any],
    make: Callable[[dict[str, Any]], Study[Any]],
    as_json: bool = False,
) -> Any:
    """Run the study that `make` builds from the options, to which the backend and the
    command line are added.
    """
    if options["out"] is not None:
        check_name("--out", options["out"])
        options["out"] = Path(options["out"])
    where = pop_backend(options) if "backend" in options else Place(Numpy())
    options |= {
        "backend": where.backend,
        "typed": shlex.join(["netsor", *sys.argv[1:]]),
    }
    with stdout_to_stderr(as_json):
        return run_study(click.get_current_context().obj, where, lambda: make(options))


def run_study(watch: Watch, where: Place, make: Callable[[], Study[Any]]) -> Any:
    """Run the study that `make` returns: reject it if it is too long; print its cost
    and what is left of it.
    """
    from concurrent.futures.process import BrokenProcessPool  # slow to import

    with usage_errors(), slow_notice("planning"):
        study = make()
        on_cores = where.backend.kind == "cpu"  # times on a device are not estimated
        least = study.least_seconds() if on_cores else 0.0
        if least > LONGEST:
            less = f"{study.request.smaller} take less.".capitalize()
            raise UsageError(
                f"{study.request.title} would take {in_time(least)} or more. {less}"
            )
        cost = study.estimate()
        less = study.cheaper(cost) if on_cores else ""
    request = study.request
    if on_cores and cost.clock > LONGEST:
        less = less or f"{request.smaller} take less.".capitalize()
        raise UsageError(
            f"{request.title} would take about {in_time(cost.clock)}. {less}"
        )
    kept = request.store is not None and request.store.any()
    finished = "Finished parts in --out are reused." if kept else ""
    left = f"finished {request.kept} are kept; the same command resumes"
    if request.out is None:
        left = f"nothing was kept; with --out DIR finished {request.kept} are"
    elif request.own:
        left = f"nothing was kept: finished {request.kept} are kept of models only"
    watch.message = f"interrupted; {left}"
    try:
        with usage_errors():
            study.prepare()
            needed = f" and {in_bytes(cost.workers * cost.bytes)}" if cost.bytes else ""
            workers = f"on {counted(cost.workers, 'worker')}"
            taken = (
                f"about {in_time(cost.clock)}{needed} {workers}"
                if on_cores
                else f"on {where.backend.device}"
            )
            echo_notice(
                " ".join(
                    filter(
                        None,
                        (f"{request.title}; {taken}.", finished, request.remark, less),
                    )
                )
            )
            return study.run(where.executor)
    except BrokenProcessPool:
        echo_error(
            "a worker was killed, perhaps because memory ran out: use fewer --workers;"
            f" {left}"
        )
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        if request.out is None:
            raise
        out = shown(str(request.out))
        raise UsageError(
            f"--out {out} must be a folder that can be written to: {reason(error)}"
        ) from None


def _print(
    result: Any, as_json: bool, verbose: bool, verdict: str = "", more_json: Any = None
) -> None:
    """Print the verdict, the findings and the path of the report; `more_json` is added
    to the JSON object.
    """
    if as_json:
        echo_json({**result.as_dict(), **(more_json or {})})
        return
    text, out = result.table(verbose), result.request.out
    echo(f"{wrap(verdict)}\n\n{text}" if verdict else text)
    more = "" if verbose else "more numbers: --verbose, --json or --out DIR"
    echo("\n" + (more if out is None else f"report: {out / 'report.html'}"))


def model_of(option: str, source: str) -> Transformer:
    """The model that an option names."""
    check_name(option, source)
    if source.endswith(".py"):
        raise UsageError(
            f"{option} {shown(source)} must name a function in the file, as"
            f" {source}:build"
        )
    with usage_errors(f"{option} {shown(source)}"):
        try:
            return read(source)
        except OSError as error:
            raise ValueError(reason(error)) from None


def _described(source: str, changes: Sequence[str], layers: int | None) -> Transformer:
    """MODEL with the changes of --set and --layers."""
    model = changed(model_of("MODEL", source), "--set", changes)
    if layers is None:
        return model
    for text in changes:
        if text.partition("=")[0].strip() == "layers":
            raise UsageError(
                f"--layers {layers} and --set {text} cannot be combined: both set the"
                " number of blocks"
            )
    return changed(model, "--layers", [f"layers={layers}"], f"--layers {layers}")


def _refuse_layers(layers: int | None) -> None:
    """Reject --layers for what is not described by a configuration."""
    if layers is not None:
        raise UsageError(
            f"--layers {layers} is for models: FILE:PROGRAM and FILE:FUNCTION define"
            " their own blocks"
        )


def changed(
    model: Transformer, option: str, texts: Sequence[str], typed: str = ""
) -> Transformer:
    """The model with some fields changed; its name lists the changes. `typed` is the
    option with its value.
    """
    if not texts:
        return model
    with usage_errors(typed or f"{option} {shown(', '.join(texts))}"):
        changes = settings(texts)
        changes.setdefault(
            "name", f"{model.name}, {', '.join(text.strip() for text in texts)}"
        )
        return model.replace(**changes)


# exit code, if a rule of --fail-on is flagged, a median has left its band, or
# coord-check --fail flags
FAILED = 3


def audit(
    *,
    as_json: bool,
    verbose: bool,
    fail_on: str | None,
    baseline: str | None,
    **options: Any,
) -> None:
    """The command `audit`: rules and an earlier audit are checked before anything is
    measured.
    """
    with usage_errors(f"--fail-on {shown(fail_on)}"):
        rules = (
            []
            if fail_on is None
            else [rule_name(name.strip()) for name in fail_on.split(",")]
        )
    if baseline is not None:
        check_name("--baseline", baseline)
    earlier = None if baseline is None else Baseline.of(baseline)

    def make(options: dict[str, Any]) -> AuditStudy:
        study = AuditStudy(_audit_request(options))
        if earlier is not None:
            if len(study.request.models) > 1:
                raise UsageError(
                    "--baseline is for one model: leave out --compare, --compare-… and"
                    " --sweep"
                )
            earlier.check(study.request, study.request.models[0])
        with usage_errors(f"--fail-on {shown(','.join(rules))}"):
            if rules:
                study.refuse_unmeasured(rules)
        return study

    result = run(options, make, as_json)
    verdict, more_json, failed = "", {}, []
    if earlier is not None:
        left, compared = (
            result.departures(earlier),
            earlier.compared(result.request, result.model),
        )
        verdict = summary(earlier, compared, left)
        departures = [each._asdict() for each in left]
        more_json = {
            "baseline": {
                "verdict": verdict,
                "compared": compared,
                "departures": departures,
            }
        }
        failed = [verdict] if left else []
    # known only after the draws: perhaps no branch adds anything
    with usage_errors(f"--fail-on {shown(fail_on)}"):
        failed += result.failed(rules)
    _print(result, as_json, verbose, verdict, more_json)
    _exit_if(failed)


def _exit_if(failed: Sequence[str]) -> None:
    """Say what failed, and end with its exit code."""
    for each in failed:
        echo_notice(each)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _audit_request(options: dict[str, Any]) -> Request:
    names = (
        "model",
        "changes",
        "compare",
        "others",
        "swept",
        "binds",
        "arguments",
        "recipe",
        "recipes",
    )
    source, changes, compare, others, swept, binds, arguments, drawn, recipes = (
        options.pop(name) for name in names
    )
    layers = options.pop("layers")
    own = is_target(source)
    of_models = {
        "--set": changes,
        "--compare-set": others,
        "--recipe": drawn,
        "--compare-recipe": recipes,
    }
    for option, given in (
        of_models if own else {"--bind": binds, "--arg": arguments}
    ).items():
        if given:
            needed = (
                "is for models; FILE:PROGRAM takes --bind and --arg"
                if own
                else f"{given[0]} needs a FILE:PROGRAM"
            )
            raise UsageError(f"{option} {needed}")
    if swept is not None and (compare or others or recipes):
        raise UsageError(
            "--sweep and --compare cannot be combined: a sweep compares MODEL with"
            " itself"
        )
    if own:
        _refuse_layers(layers)
        inputs = {name: options.pop(name) for name in ("ids", "tokens")}
        if swept is not None:
            field, values = swept
            built = (
                _program(source, binds, [*arguments, f"{field}={value}"], inputs)
                for value in values
            )
            programs = tuple(
                p.replace(f"{p.name}, {field}={v:g}")
                for p, v in zip(built, values, strict=True)
            )
        else:
            programs = tuple(
                _program(target, binds, arguments, inputs)
                for target in (source, *compare)
            )
        if binds and not any(model.widths() for model in programs):
            raise UsageError(
                f"--bind {binds[0]} is for programs: {source} makes a module, which"
                " takes --arg NAME=VALUE"
            )
        return Request(programs, swept=swept, **options)
    if others and len(compare) > 1:
        raise UsageError(
            "--compare-set is for one --compare: give each of the others its own"
            " config.json"
        )
    plain = _described(source, changes, layers)
    model = plain if drawn is None else _by("--recipe", plain, drawn)
    models = [model, *(_by("--compare-recipe", plain, name) for name in recipes)]
    models += [
        changed(model_of("--compare", other), "--compare-set", others)
        for other in compare
    ]
    models += (
        [changed(model, "--compare-set", others)] if others and not compare else []
    )
    if swept is not None:
        set_twice = (
            [f"--layers {layers}"]
            if swept[0] == "layers" and layers is not None
            else []
        )
        set_twice += [
            f"--set {text}"
            for text in changes
            if text.partition("=")[0].strip() == swept[0]
        ]
        if set_twice:
            raise UsageError(
                f"{set_twice[0]} and --sweep {swept[0]} cannot be combined: both set"
                " this field"
            )
        with usage_errors(f"--sweep {swept[0]}"):
            every, swept = sweep_of(model, *swept)
        models = list(every)
    return Request(tuple(models), swept=swept, **options)


def _by(option: str, model: Transformer, name: str) -> Transformer:
    with usage_errors(f"{option} {shown(name)}"):
        return recipe(model, name)


def _program(
    target: str,
    binds: Sequence[str],
    arguments: Sequence[str],
    inputs: Mapping[str, Any],
) -> ProgramModel:
    if not is_target(target):
        raise UsageError(
            f"--compare {shown(target)} must be a FILE:PROGRAM, as MODEL is"
        )
    loaded = find(target, arguments)
    module = module_factory(loaded)
    if module is not None:
        ids, tokens = inputs["ids"], inputs["tokens"]
        torch = torch_module()
        try:
            first, *longer = torch._network.networks(module, ids, tokens)
        except torch.UnsupportedError as error:
            raise UsageError(
                f"FILE:FUNCTION {shown(target)} cannot be read: {error}"
            ) from None
        return ProgramModel(first, {}, longer, ids)
    for name, text in inputs.items():
        if text is not None:
            raise UsageError(f"--{name} is for models; FILE:PROGRAM defines its tokens")
    net = program_of(loaded)
    widths = bound(net, binds)
    with usage_errors(f"FILE:PROGRAM {shown(target)}"):
        return ProgramModel(net, widths)


def coord_check(*, as_json: bool, verbose: bool, fail: bool, **options: Any) -> None:
    """The command `coord-check`."""
    from ..studies.coord_check import CoordCheckStudy, of_module
    from ..studies.coord_check._request import Request

    def make(options: dict[str, Any]) -> Study[Any]:
        lr, (model, by) = options.pop("lr"), _trained(options)
        own = is_function(model)
        rates = None if lr is None else _rates(lr, model if own else None)
        if own:
            given = options["widths"], by, rates, options["ids"], options["steps"]
            model, by, rates, options["ids"] = of_module(model, *given)
            if rates is None:
                call_build(model, 64)  # rejects a function of other arguments
                raise UsageError(
                    "--lr must be given for FILE:FUNCTION: a number, or the name of"
                    " rates in FILE"
                )
        subject = subject_of(model, options.pop("rules") or None, by)
        return CoordCheckStudy(Request(*subject, optimiser=by, lr=rates, **options))

    result = run(options, make, as_json)
    _print(result, as_json, verbose)
    bad = "; ".join(
        f"{check.name} ({', '.join(check.broken)})"
        for check in result
        if not check.kept
    )
    _exit_if([f"not as expected: {bad}"] if fail and bad else [])


def transfer(*, as_json: bool, verbose: bool, **options: Any) -> None:
    """The command `transfer`."""
    from ..studies.transfer import Request, TransferStudy

    def make(options: dict[str, Any]) -> Study[Any]:
        model, by = _trained(options)
        subject = subject_of(model, options.pop("rules") or None, by)
        return TransferStudy(Request(*subject, optimiser=by, **options))

    _print(run(options, make, as_json), as_json, verbose)


def _trained(options: dict[str, Any]) -> tuple[Any, Any]:
    """The model or the function of the width, and the optimiser; other options are read
    in their place.
    """
    source, changes, layers = (
        options.pop(name) for name in ("model", "changes", "layers")
    )
    by, vectors = options.pop("optimiser"), options["vectors"]
    options["vectors"] = (
        [] if vectors is None else [word.strip() for word in vectors.split(",")]
    )
    if not is_target(source):
        return _described(source, changes, layers), by
    _refuse_layers(layers)
    if changes:
        raise UsageError(
            "--set is for models; a function of the width defines its own fields"
        )
    named = find(source)
    if named.part is not None:
        raise UsageError(
            f"FILE:FUNCTION {shown(str(named))} names a function of the width: leave"
            " out the index"
        )
    option = spelled(("--optimiser", "--optimizer"))
    return named.value, (
        by if by in NAMED else _named_in_file(option, by, named.value, OPTIMISER_NAMES)
    )


def _named_in_file(option: str, name: str, function: Any, allowed: str) -> Any:
    """The object of this name in the file of a function."""
    value = getattr(sys.modules.get(getattr(function, "__module__", "")), name, None)
    if value is None:
        raise UsageError(f"{option} {shown(name)} must be {allowed} in FILE")
    return value


def _rates(lr: str, function: Any) -> Any:
    """A number, numbers by kind of weight, or the object of this name in the file of a
    function.
    """
    try:
        if "=" not in lr:
            return float(lr)
        return {
            name.strip(): float(value)
            for name, _, value in (part.partition("=") for part in lr.split(","))
        }
    except ValueError:
        if function is not None:
            return _named_in_file(
                "--lr", lr, function, "a number, or the name of rates"
            )
        raise UsageError(
            f"--lr {shown(lr)} must be a number, or kind=number,… as"
            " query=0.1,head=0.01"
        ) from None
