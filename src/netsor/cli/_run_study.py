"""The commands that run studies: their requests from options, the announcement, the run, and what is printed."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from .._document import wrap
from .._validate import shown
from ..engine._parallel import in_bytes
from ..engine._plan import in_time
from ..models import Transformer, read, recipe, settings
from ..models._metric_program import ProgramModel
from ..optim import NAMED
from ..studies import Result, Study
from ..studies._training import subject_of
from ..studies.audit import AuditStudy
from ..studies.audit import _request as _audit_config
from ..studies.audit._baseline import Baseline, summary
from ..studies.audit._measurements import rule_name
from ..studies.audit._rules import BACKWARD_RULES
from ..studies.coord_check import CoordCheckStudy, of_module
from ..studies.coord_check import _request as _check_config
from ..studies.transfer import TransferStudy
from ..studies.transfer import _request as _transfer_config
from ._load_program import bound, find, is_target, networks_of, usage_errors
from ._main import Watch
from ._options import RATE, BackendChoice, executor_context, integers, parsed
from ._output import check_name, echo, echo_error, echo_json, echo_notice, reason
from ._subject import LONGEST, slow_notice

Found = TypeVar("Found", bound=Result)
OPTIMISER_NAMES = f"{', '.join(NAMED)}, or the name of one"


def run_study(watch: Watch, where: BackendChoice, make: Callable[[], Study[Found]]) -> Found:
    """Run the study that `make` returns: refuse it if it is too long, say what it takes, and what is left of it."""
    with usage_errors(), slow_notice("planning"):
        study = make()
        cost, on_cores = study.estimate(), where.backend.kind == "cpu"  # what a device takes is not estimated
        less = study.cheaper(cost) if on_cores else ""
    request = study.request
    if on_cores and cost.clock > LONGEST:
        less = less or f"{request.smaller} take less.".capitalize()
        raise click.UsageError(f"{request.title} would take about {in_time(cost.clock)}. {less}")
    kept = request.store is not None and request.store.any()
    finished = "What is finished in --out is not repeated." if kept else ""
    left = f"finished {request.kept} are kept, and the same command goes on from there"
    if request.out is None:
        left = f"nothing was kept; with --out DIR finished {request.kept} are"
    elif request.own:
        left = f"nothing was kept: finished {request.kept} are kept of models only"
    with usage_errors(), report_errors(watch, request.out, left):
        study.prepare()
        needed = f" and {in_bytes(cost.workers * cost.bytes)}" if cost.bytes else ""
        workers = f"on {cost.workers} worker{'s' * (cost.workers > 1)}"
        taken = f"about {in_time(cost.clock)}{needed} {workers}" if on_cores else f"on {where.backend.device}"
        sentences = (f"{request.title}; {taken}.", finished, request.remark, less)
        echo_notice(" ".join(filter(None, sentences)))
        with executor_context(where, request.workers) as how:
            return study.run(how.get("executor"))


def printed(
    result: Any,
    out: str | None,
    as_json: bool,
    verbose: bool,
    verdict: str = "",
    more_json: Mapping[str, Any] | None = None,
) -> None:
    """Print a verdict, what a study found, and where its report is; `more_json` is added to the JSON object."""
    if as_json:
        echo_json({**result.as_dict(), **(more_json or {})})
        return
    text = result.table(verbose)
    echo(f"{wrap(verdict)}\n\n{text}" if verdict else text)
    more = [] if verbose else ["more numbers: --verbose, --json or --out DIR"]
    echo("\n" + (f"report: {Path(out) / 'report.html'}" if out is not None else "".join(more)))


@contextlib.contextmanager
def report_errors(watch: Watch, out: Path | None, left: str) -> Iterator[None]:
    """Report in one line that a worker was killed or a folder cannot be written; `left` says what is kept."""
    from concurrent.futures.process import BrokenProcessPool  # slow to import

    watch.message = f"interrupted; {left}"
    try:
        yield
    except BrokenProcessPool:
        echo_error(f"a worker was killed, perhaps because memory ran out: fewer --workers need less; {left}")
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        if out is None:
            raise
        raise click.UsageError(
            f"--out {shown(str(out))} must be a folder that can be written to: {reason(error)}"
        ) from None


def model_of(option: str, source: str) -> Transformer:
    """The model that an option names."""
    check_name(option, source)
    with usage_errors(f"{option} {shown(source)}"):
        try:
            return read(source)
        except OSError as error:
            raise ValueError(reason(error)) from None


def changed(model: Transformer, option: str, texts: Sequence[str]) -> Transformer:
    """The model with some fields changed, and what was changed in its name."""
    if not texts:
        return model
    with usage_errors(f"{option} {shown(', '.join(texts))}"):
        changes = settings(texts)
        changes.setdefault("name", f"{model.name}, {', '.join(text.strip() for text in texts)}")
        return model.replace(**changes)


def rules_of(text: str | None, options: dict[str, Any]) -> list[str]:
    """The names of rules, checked before anything is measured."""
    with usage_errors(f"--fail-on {shown(text)}"):
        names = [] if text is None else [rule_name(name.strip()) for name in text.split(",")]
    backward = [name for name in BACKWARD_RULES if name in names]
    if backward and not options["gradients"]:
        raise click.UsageError(f"--fail-on {shown(text)}: {backward[0]} needs --gradients")
    if "limit" in names and (options["widths"] or ("actual" if options["quick"] else "both")) != "both":
        raise click.UsageError(f"--fail-on {shown(text)}: limit needs --widths both")
    return names


def against(audit: Any, earlier: Baseline | None) -> tuple[str, dict[str, Any]]:
    """What a comparison with an earlier audit says, in a line and for JSON."""
    if earlier is None:
        return "", {}
    left, compared = audit.departures(earlier), earlier.compared(audit.request, audit.model)
    verdict = summary(earlier, compared, left)
    listed = [each._asdict() for each in left]
    return verdict, {"baseline": {"verdict": verdict, "compared": compared, "departures": listed}}


def audit_study(options: dict[str, Any], rules: Sequence[str], earlier: Baseline | None) -> AuditStudy:
    """The audit that is asked for; refused if `rules` or `earlier` ask for what it does not measure."""
    study = AuditStudy(_audit_request(options))
    if earlier is not None:
        if len(study.request.models) > 1:
            raise click.UsageError("--baseline is for one model: leave out --compare, --compare-… and --sweep")
        earlier.check(study.request, study.request.models[0])
    with usage_errors(f"--fail-on {shown(','.join(rules))}"):
        if rules:
            study.refuse_unmeasured(rules)
    return study


def _audit_request(options: dict[str, Any]) -> _audit_config.Request:
    names = ("model", "changes", "compare", "others", "sweep", "binds", "arguments", "recipe", "recipes")
    source, changes, compare, others, sweep, binds, arguments, drawn, recipes = (options.pop(name) for name in names)
    of_models = {"--set": changes, "--compare-set": others, "--recipe": drawn, "--compare-recipe": recipes}
    of_programs = {"--bind": binds, "--arg": arguments}
    for option, given in (of_models if is_target(source) else of_programs).items():
        if given:
            needed = "is for models; FILE:PROGRAM takes --bind and --arg"
            raise click.UsageError(f"{option} {needed if option in of_models else f'{given[0]} needs a FILE:PROGRAM'}")
    swept = _swept(sweep)
    if swept is not None and (compare or others or recipes):
        raise click.UsageError("--sweep and --compare cannot be combined: a sweep compares MODEL with itself")
    if is_target(source):
        inputs = {name: options.pop(name) for name in ("ids", "tokens")}
        if swept is not None:
            field, values = swept
            built = (_program(source, binds, [*arguments, f"{field}={value}"], inputs) for value in values)
            programs = tuple(p.replace(f"{p.name}, {field}={v:g}") for p, v in zip(built, values, strict=True))
        else:
            programs = tuple(_program(target, binds, arguments, inputs) for target in (source, *compare))
        if not any(model.widths() for model in programs):  # of modules, or of programs whose widths are numbers
            options["widths"] = options["widths"] or "actual"
        return _audit_config.Request(programs, swept=swept, **options)
    if others and len(compare) > 1:
        raise click.UsageError("--compare-set is for one --compare: give each of the others its own config.json")
    plain = changed(model_of("MODEL", source), "--set", changes)
    model = plain if drawn is None else _by("--recipe", plain, drawn)
    models = [model, *(_by("--compare-recipe", plain, name) for name in recipes)]
    models += [changed(model_of("--compare", other), "--compare-set", others) for other in compare]
    models += [changed(model, "--compare-set", others)] if others and not compare else []
    if swept is not None:
        with usage_errors(f"--sweep {shown(sweep)}"):
            every, swept = _audit_config.sweep(model, *swept)
        models = list(every)
    ids, tokens = integers("--ids", options.pop("ids"), "3,7,7,1"), options.pop("tokens")
    if ids is not None and tokens is not None:
        raise click.UsageError("--ids and --tokens cannot be combined: the ids say how many tokens there are")
    lengths = integers("--tokens", tokens, "16,128")
    return _audit_config.Request(tuple(models), ids=ids, tokens=lengths, swept=swept, **options)


def _swept(text: str | None) -> tuple[str, tuple[float, ...]] | None:
    """A field, and numbers: whole ones where the field is one of whole numbers."""

    def read(text: str) -> tuple[str, tuple[float, ...]]:
        field, values = text.split("=")
        numbers = [settings([f"{field}={value}"])[field.strip()] for value in values.split(",")]
        return field.strip(), tuple(number if isinstance(number, int) else float(number) for number in numbers)

    return parsed("--sweep", text, read, "written field=number,number,…, as std=0.005,0.01,0.02")


def _by(option: str, model: Transformer, name: str) -> Transformer:
    with usage_errors(f"{option} {shown(name)}"):
        return recipe(model, name)


def _program(
    target: str, binds: Sequence[str], arguments: Sequence[str], inputs: Mapping[str, str | None]
) -> ProgramModel:
    if not is_target(target):
        raise click.UsageError(f"--compare {shown(target)} must be a FILE:PROGRAM, as MODEL is")
    loaded = find(target, arguments)
    module = loaded.module_factory()
    if module is not None:
        first, *longer = networks_of(target, module, inputs)
        return ProgramModel(first, {}, longer)
    for name, text in inputs.items():
        if text is not None:
            raise click.UsageError(f"--{name} is for models; FILE:PROGRAM defines its tokens")
    net = loaded.build()
    widths = bound(net, binds)
    infinite = next((name for name, size in widths.items() if size == math.inf), None)
    if infinite is not None:
        raise click.UsageError(f"--bind {infinite}=inf must be a positive integer: --widths inf is the limit")
    with usage_errors(f"FILE:PROGRAM {shown(target)}"):
        return ProgramModel(net, widths)


def coord_check_study(options: dict[str, Any]) -> CoordCheckStudy:
    """The coordinate check that is asked for."""
    options["depths"] = integers("--depths", options["depths"], "2,4,8")
    lr = options.pop("lr")
    model, by = _trained(options)
    if callable(model) and not isinstance(model, Transformer):
        given = None if lr is None else _rates_of_function(lr, model)
        model, by, rates, options["ids"] = of_module(model, options["widths"], by, given, options["ids"])
        if rates is None:
            raise click.UsageError("--lr must be given for FILE:FUNCTION: a number, or the name of rates in FILE")
    else:
        rates = parsed("--lr", lr, _rates, "a number, or kind=number,… as query=0.1,head=0.01")
    model, rules = subject_of(model, options.pop("rules") or None, by)
    return CoordCheckStudy(_check_config.Request(model, rules, optimiser=by, lr=rates, **options))


def transfer_study(options: dict[str, Any]) -> TransferStudy:
    """The learning-rate sweep that is asked for."""
    grid = "numbers with commas between, as 0.01,0.02,0.04"
    options["lr"] = parsed("--lr", options["lr"], lambda text: [float(word) for word in text.split(",")], grid)
    model, by = _trained(options)
    model, rules = subject_of(model, options.pop("rules") or None, by)
    return TransferStudy(_transfer_config.Request(model, rules, optimiser=by, **options))


def _trained(options: dict[str, Any]) -> tuple[Any, Any]:
    """The model or the function of the width, and the optimiser; other options are read in their place."""
    source, changes, layers = (options.pop(name) for name in ("model", "changes", "layers"))
    by, vectors = options.pop("optimiser"), options["vectors"]
    options["vectors"] = [] if vectors is None else [word.strip() for word in vectors.split(",")]
    for name in ("widths", "ids", "targets"):
        options[name] = integers(f"--{name}", options[name], "256,1024,4096", inf=name == "widths")
    changes = changes if layers is None else (*changes, f"layers={layers}")
    if is_target(source):
        if changes:
            raise click.UsageError("--set is for models; a function of the width has its fields in it")
        model = find(source).value
        return model, by if by in NAMED else _named_in_file("--optimiser", by, model, OPTIMISER_NAMES)
    return changed(model_of("MODEL", source), "--set", changes), by


def _named_in_file(option: str, name: str, function: Any, allowed: str) -> Any:
    """What has a name in the file of a function."""
    value = getattr(sys.modules.get(getattr(function, "__module__", "")), name, None)
    if value is None:
        raise click.UsageError(f"{option} {shown(name)} must be {allowed} in FILE")
    return value


def _rates_of_function(lr: str, function: Any) -> Any:
    try:
        float(lr)
        return RATE.convert(lr, None, None)
    except click.BadParameter as error:
        raise click.UsageError(f"--lr {error.message}") from None
    except ValueError:
        return _named_in_file("--lr", lr, function, "a number, or the name of rates")


def _rates(text: str) -> float | dict[str, float]:
    """A number, or one for each of some kinds."""
    if "=" not in text:
        return float(text)
    return {name.strip(): float(value) for name, _, value in (part.partition("=") for part in text.split(","))}
