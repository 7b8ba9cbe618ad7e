"""What `netsor audit` does, once its options are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .._validate import shown
from ..models import Transformer, recipe, settings
from ..models._metric_program import ProgramModel
from ..studies.audit import _audit
from ..studies.audit._baseline import Baseline, summary
from ..studies.audit._config import Request
from ..studies.audit._config import sweep as sweep_of
from ..studies.audit._measurements import rule_name
from ..studies.audit._rules import BACKWARD_RULES
from ._backend_options import BackendChoice
from ._check_init_command import network_of
from ._load_program import bound, find, is_target
from ._options import integers
from ._output import check_name
from ._signals import Watch
from ._study import StudyJob, changed, model_of, run_study, usage_errors


def rules_of(text: str | None, options: dict[str, Any]) -> list[str]:
    """The names of rules, checked before anything is measured."""
    with usage_errors(f"--fail-on {shown(text)}: "):
        names = [] if text is None else [rule_name(name.strip()) for name in text.split(",")]
    backward = [rule.name for rule in BACKWARD_RULES if rule.name in names]
    if backward and not options["gradients"]:
        raise click.UsageError(f"--fail-on {shown(text)}: {backward[0]} needs --gradients")
    if "limit" in names and (options["widths"] or ("actual" if options["quick"] else "both")) != "both":
        raise click.UsageError(f"--fail-on {shown(text)}: limit needs --widths both")
    return names


def earlier_of(path: str | None) -> Baseline | None:
    """The audit that --baseline names, read before anything is measured."""
    if path is None:
        return None
    check_name("--baseline", path)
    return Baseline.of(path)


def against(found: Any, earlier: Baseline | None) -> tuple[str, dict[str, Any]]:
    """What a comparison with an earlier audit says, in a line and for JSON."""
    if earlier is None:
        return "", {}
    left, compared = found.departures(earlier), earlier.compared(found.request, found.model)
    verdict = summary(earlier, compared, left)
    listed = [each._asdict() for each in left]
    return verdict, {"baseline": {"verdict": verdict, "compared": compared, "departures": listed}}


def audited(
    watch: Watch,
    out: str | None,
    where: BackendChoice,
    options: dict[str, Any],
    rules: Sequence[str],
    earlier: Baseline | None,
) -> Any:
    """The audit, or the comparison."""

    def asked() -> StudyJob:
        request = _request(out, {**options, "backend": where.backend})
        if earlier is not None and len(request.models) > 1:
            raise click.UsageError("--baseline is for one model: leave out --compare, --compare-… and --sweep")
        if earlier is not None:
            earlier.check(request, request.models[0])
        with usage_errors(f"--fail-on {shown(','.join(rules))}: "):
            if rules:
                _audit.refuse_unmeasured(request, rules)
        what, less = f"{_names(request)}: {_drawn(request)}", "fewer --draws or --tokens, or a smaller model,"
        return StudyJob(request, _audit.estimate(request), what, less, _with_gradients(request))

    return run_study(watch, where, asked, _audit.prepare, _audit.run)


def _request(out: str | None, options: dict[str, Any]) -> Request:
    names = ("model", "changes", "compare", "others", "sweep")
    source, changes, compare, others, sweep = (options.pop(name) for name in names)
    binds, arguments = options.pop("binds"), options.pop("arguments")
    drawn, recipes = options.pop("recipe"), options.pop("recipes")
    folder = None if out is None else Path(out)
    if is_target(source):
        for option, given in (
            ("--set", changes), ("--compare-set", others), ("--sweep", sweep),
            ("--recipe", drawn), ("--compare-recipe", recipes),
        ):  # fmt: skip
            if given:
                raise click.UsageError(f"{option} is for models; FILE:PROGRAM takes --bind and --arg")
        inputs = {name: options.pop(name) for name in ("ids", "tokens")}
        programs = tuple(_own(target, binds, arguments, inputs) for target in (source, *compare))
        if not any(model.widths() for model in programs):  # of modules, or of programs whose widths are numbers
            options["widths"] = options["widths"] or "actual"
        own = (source, *_words("--arg", arguments), *_words("--bind", binds), *_words("--compare", compare))
        return Request(programs, out=folder, words=own, **options)
    for option, values in (("--bind", binds), ("--arg", arguments)):
        if values:
            raise click.UsageError(f"{option} {values[0]} needs a FILE:PROGRAM that it is about")
    plain = changed(model_of("MODEL", source), "--set", changes)
    model = plain if drawn is None else _by("--recipe", plain, drawn)
    models, swept = [model], None
    if others and len(compare) > 1:
        raise click.UsageError("--compare-set is for one --compare: give others a config.json of their own")
    models += [_by("--compare-recipe", plain, name) for name in recipes]
    if sweep is not None and (compare or others or recipes):
        raise click.UsageError("--sweep and --compare exclude each other: a sweep compares MODEL with itself")
    models += [changed(model_of("--compare", other), "--compare-set", others) for other in compare]
    if others and not compare:
        models.append(changed(model, "--compare-set", others))
    if sweep is not None:
        field, values = _swept(sweep)
        with usage_errors(f"--sweep {shown(sweep)}: "):
            every, swept = sweep_of(model, field, values)
        models = list(every)
    words = [source, *_words("--set", changes), *_words("--compare", compare), *_words("--compare-set", others)]
    words += [] if sweep is None else ["--sweep", sweep]
    words += [*([] if drawn is None else ["--recipe", drawn]), *_words("--compare-recipe", recipes)]
    ids, tokens = integers("--ids", options.pop("ids"), "3,7,7,1"), options.pop("tokens")
    if ids is not None and tokens is not None:
        raise click.UsageError("--ids and --tokens exclude each other: the ids say how many tokens there are")
    lengths = integers("--tokens", tokens, "16,128")
    return Request(tuple(models), ids=ids, tokens=lengths, out=folder, words=tuple(words), swept=swept, **options)


def _swept(text: str) -> tuple[str, tuple[float, ...]]:
    """A field, and numbers: whole ones where the field is one of whole numbers."""
    field, equals, values = text.partition("=")
    try:
        if not equals:
            raise ValueError
        found = [settings([f"{field}={value}"])[field.strip()] for value in values.split(",")]
        return field.strip(), tuple(number if isinstance(number, int) else float(number) for number in found)
    except (ValueError, TypeError):
        said = "must be written field=number,number,…, as std=0.005,0.01,0.02"
        raise click.UsageError(f"--sweep {shown(text)} {said}") from None


def _by(option: str, model: Transformer, name: str) -> Transformer:
    with usage_errors(f"{option} {shown(name)}: "):
        return recipe(model, name)


def _own(target: str, binds: Sequence[str], arguments: Sequence[str], inputs: Mapping[str, str | None]) -> ProgramModel:
    if not is_target(target):
        raise click.UsageError(f"--compare {shown(target)} must be a FILE:PROGRAM, as MODEL is")
    found = find(target, arguments)
    module = found.module_factory()
    if module is not None:
        return ProgramModel(network_of(target, module, inputs), {})
    for name, text in inputs.items():
        if text is not None:
            raise click.UsageError(f"--{name} is for models; the tokens of FILE:PROGRAM are in it")
    net = found.build()
    widths = bound(net, binds)
    infinite = next((name for name, size in widths.items() if size == math.inf), None)
    if infinite is not None:
        raise click.UsageError(f"--bind {infinite}=inf must be a positive integer: --widths inf is the limit")
    with usage_errors(f"FILE:PROGRAM {shown(target)}: "):
        return ProgramModel(net, widths)


def _words(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _drawn(request: Request) -> str:
    every = [f"{request.draws_of(tokens):,} draws of {tokens:,} tokens" for tokens in request.lengths]
    return " and ".join(every)


def _names(request: Request) -> str:
    names = [model.name for model in request.models]
    return " and ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def _with_gradients(request: Request) -> str:
    """What gradients add where nobody said whether they are wanted."""
    if request.gradients is not None or math.isinf(request.times):
        return ""
    more = f"{request.times:.2g} times as long"
    if request.backward(request.lengths[0]):
        return f"; gradients at {request.lengths[0]} tokens make it {more}, and --no-gradients leaves them out"
    return f"; without gradients, which make it {more} (--gradients)"
