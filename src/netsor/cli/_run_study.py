"""Runs studies for commands: options are checked and become a request; the study is
announced with its cost, run, and printed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from click import UsageError

from .._validate import counted, shown
from ..engine.backends import Numpy
from ..models import Transformer, read, recipe, settings
from ..models._description import field_name
from ..models._transformer import UnknownFamilyError
from ..models.measure._metric_program import ProgramModel
from ..optim import NAMED
from ..report._document import FLAG, wrap
from ..runtime._units import in_bytes, in_time
from ..studies import Cost, Study
from ..studies import Request as StudyRequest
from ..studies._parametrisation import GROW_HEADS
from ..studies._training import call_build, is_function, subject_of
from ..studies.audit import AuditStudy, read_from_module
from ..studies.audit._baseline import Baseline, summary
from ..studies.audit._request import Request, Swept, swept_text
from ..studies.audit._request import sweep as sweep_of
from ..studies.audit._results import Audit
from ..studies.audit._rules import rule_name
from ._load_program import (
    batch_of,
    bound_widths,
    find,
    is_target,
    jax_model,
    module_factory,
    program_of,
    torch_module,
    usage_errors,
)
from ._main import Watch
from ._options import Place, pop_place, spelled
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

# those of `FAMILIES` in torch/maximal_update, which needs PyTorch
OF_MODULES = ("adamw", "sign", "adamh", "muonh")
OPTIMISER_NAMES = f"{', '.join(NAMED)}, or the name of one"


def run(
    options: dict[str, Any],
    make: Callable[[dict[str, Any]], Study[Any]],
    as_json: bool = False,
) -> Any:
    """The result of the study that `make` builds from the options of a command; the
    backend and the command line are added to these. With `as_json` nothing but the
    result may be printed to stdout.
    """
    if options["out"] is not None:
        check_name("--out", options["out"])
        options["out"] = Path(options["out"])
    place_of_work = Place(Numpy())
    if "backend" in options:
        place_of_work = pop_place(options)
    options |= {
        "backend": place_of_work.backend,
        "typed": shlex.join(["netsor", *sys.argv[1:]]),
    }
    with stdout_to_stderr(as_json):
        return run_study(
            click.get_current_context().obj, place_of_work, lambda: make(options)
        )


def run_study(watch: Watch, where: Place, make: Callable[[], Study[Any]]) -> Any:
    """The result of the study that `make` returns.

    A study that takes longer than LONGEST is rejected. Otherwise its cost is printed,
    and if it is interrupted or fails, what is left of it on disk.
    """
    from concurrent.futures.process import BrokenProcessPool  # slow to import

    with usage_errors(), slow_notice("reading the model"):
        study = make()
    request = study.request
    plan = _planned(study, where)
    left = _what_is_left(request)
    watch.message = f"interrupted; {left}"
    reuses = request.store is not None and request.store.any()
    try:
        with usage_errors():
            study.prepare()
            sentences = [f"{request.title}; {_announced_cost(plan.cost, where)}."]
            if reuses:
                sentences.append("Finished parts in --out are reused.")
            sentences += [request.remark, study.saved_memory(), plan.cheaper]
            echo_notice(" ".join(filter(None, sentences)))
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
            f"--out {out} must be a writable folder: {reason(error)}"
        ) from None


class _Plan(NamedTuple):
    """What a study costs."""

    cost: Cost
    cheaper: str  # which options make it cheaper; "" if it is cheap


def _planned(study: Study[Any], where: Place) -> _Plan:
    """The cost of a study; an error if it would take longer than LONGEST.

    Times on a device are not estimated.
    """
    request = study.request
    on_cores = where.backend.kind == "cpu"
    with usage_errors(), slow_notice("planning"):
        if on_cores:
            least = study.least_seconds()
            if least > LONGEST:
                shorter = study.shorter_than(LONGEST)
                raise _too_long(request, f"{in_time(least)} or more", shorter)
        cost = study.estimate()
        cheaper = study.cheaper(cost) if on_cores else ""
    if on_cores and cost.clock > LONGEST:
        raise _too_long(request, f"about {in_time(cost.clock)}", cheaper)
    return _Plan(cost, cheaper)


def _too_long(request: StudyRequest, time: str, cheaper: str = "") -> UsageError:
    """The error for a study that takes longer than LONGEST, with what takes less."""
    remedy = cheaper or f"{request.smaller} take less.".capitalize()
    return UsageError(f"{request.title} would take {time}. {remedy}")


def _what_is_left(request: StudyRequest) -> str:
    """What an interrupted study leaves on disk."""
    if request.out is None:
        return f"nothing was kept; with --out DIR finished {request.kept} are"
    if request.is_user_program:
        return f"nothing was kept: finished {request.kept} are kept of models only"
    return f"finished {request.kept} are kept; the same command resumes"


def _announced_cost(cost: Cost, where: Place) -> str:
    """The time, the memory and the workers of a study; of a device, only its name."""
    if where.backend.kind != "cpu":
        return f"on {where.backend.device}"
    resources = in_time(cost.clock)
    if cost.bytes:
        resources += f" and {in_bytes(cost.workers * cost.bytes)}"
    return f"about {resources} on {counted(cost.workers, 'worker')}"


def _print(
    result: Any, as_json: bool, verbose: bool, verdict: str = "", more_json: Any = None
) -> None:
    """Print the verdict, the findings and the path of the report; `more_json` is added
    to the JSON object.
    """
    if as_json:
        echo_json({**result.as_dict(), **(more_json or {})})
        return
    text = result.table(verbose)
    echo(f"{wrap(verdict)}\n\n{text}" if verdict else text)
    out = result.request.out
    if out is not None:
        last_line = f"report: {out / 'report.html'}"
    elif verbose:
        last_line = ""
    else:
        last_line = "more numbers: --verbose, --json or --out DIR"
    echo(f"\n{last_line}")


def model_of(option: str, source: str) -> Transformer:
    """The model that an option names."""
    check_name(option, source)
    if source.endswith(".py"):
        raise UsageError(
            f"{option} {shown(source)} must name a function in the file, such as"
            f" {source}:build"
        )
    with usage_errors(f"{option} {shown(source)}"):
        try:
            return read(source)
        except OSError as error:
            raise ValueError(reason(error)) from None


def unknown_family(source: str) -> UnknownFamilyError | None:
    """A configuration of a type that netsor does not describe; None for all others."""
    try:
        read(source)
    except UnknownFamilyError as unknown:
        return unknown if isinstance(unknown.config.get("model_type"), str) else None
    except (ValueError, OSError):  # `model_of` says what is wrong
        return None
    return None


def _described(source: str, changes: Sequence[str], layers: int | None) -> Transformer:
    """MODEL with the changes of --set and --layers."""
    model = changed(model_of("MODEL", source), "--set", changes)
    if layers is None:
        return model
    for text in changes:
        if _changed_field(text) == "layers":
            raise UsageError(
                f"--layers {layers} and --set {text} cannot be combined: both set the"
                " number of blocks"
            )
    return changed(
        model, option="--layers", texts=[f"layers={layers}"], typed=f"--layers {layers}"
    )


def _changed_field(text: str) -> str:
    """The field that --set field=value changes."""
    return field_name(text.partition("=")[0].strip())


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
        stripped = [text.strip() for text in texts]
        changes.setdefault("name", ", ".join([model.name, *stripped]))
        return model.replace(**changes)


# exit code, if a rule of --fail-on is flagged, a median has left its band, or
# coord-check --fail flags something or decides little
FAILED = 3
ANY_WIDTH = 64  # at which a function is called to see whether it takes a width


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
        names = [] if fail_on is None else fail_on.split(",")
        rules = [rule_name(name.strip()) for name in names]
    if baseline is not None:
        check_name("--baseline", baseline)
    earlier = None if baseline is None else Baseline.of(baseline)
    result = run(options, partial(_audit_study, rules, earlier), as_json)
    verdict = ""
    more_json = {}
    failed: list[str] = []
    if earlier is not None:
        departures = result.departures(earlier)
        compared = earlier.compared(result.request, result.model)
        verdict = summary(earlier, compared, departures)
        more_json["baseline"] = {
            "verdict": verdict,
            "compared": compared,
            "departures": [departure._asdict() for departure in departures],
        }
        if departures:
            failed.append(verdict)
    # known only after the draws: perhaps no branch adds anything
    with usage_errors(f"--fail-on {shown(fail_on)}"):
        failed += result.failed(rules)
    _print(result, as_json, verbose, verdict, more_json)
    if not as_json:
        _point_to_check_init(result.audits)
    _exit_if(failed)


def _audit_study(
    rules: Sequence[str], earlier: Baseline | None, options: dict[str, Any]
) -> AuditStudy:
    """The audit of these options, checked against the rules and the baseline."""
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


def _point_to_check_init(audits: Sequence[Audit]) -> None:
    """Print which command compares parameters, if one module passes all rules."""
    first = audits[0]
    factory = getattr(first.model, "factory", "")
    is_flagged = any(finding.verdict == FLAG for finding in first.findings)
    if len(audits) == 1 and factory and not is_flagged:
        echo(
            "the rules judge the forward and backward pass; to compare each parameter"
            f" with a reference: netsor check-init {factory} --reference config.json"
        )


def _exit_if(failed: Sequence[str]) -> None:
    """Print what failed, if anything did, and end with its exit code."""
    for line in failed:
        echo_notice(line)
    if failed:
        raise click.exceptions.Exit(FAILED)


@dataclass(frozen=True)
class _AuditSubjects:
    """The options of `audit` that say what is audited."""

    model: str  # MODEL, as it was typed
    layers: int | None
    changes: Sequence[str]  # --set
    recipe: str | None
    compare: Sequence[str]
    others: Sequence[str]  # --compare-set
    recipes: Sequence[str]  # --compare-recipe
    swept: Swept | None  # --sweep: a field and its values
    binds: Sequence[str]
    arguments: Sequence[str]  # --arg

    @cached_property
    def unknown(self) -> UnknownFamilyError | None:
        """MODEL, if it is a configuration of a type that netsor does not describe."""
        return None if is_target(self.model) else unknown_family(self.model)

    @property
    def is_program(self) -> bool:
        """Whether MODEL is FILE:PROGRAM, or a configuration read from its module."""
        return is_target(self.model) or self.unknown is not None

    def check(self) -> None:
        """Reject options that are for other kinds of models, or contradict another."""
        of_models = {
            "--set": self.changes,
            "--compare-set": self.others,
            "--recipe": self.recipe,
            "--compare-recipe": self.recipes,
        }
        of_programs = {"--bind": self.binds, "--arg": self.arguments}
        if self.unknown is not None:
            self._check_read_from_module({**of_models, **of_programs})
        elif self.is_program:
            for option, value in of_models.items():
                if value:
                    raise UsageError(
                        f"{option} is for models; FILE:PROGRAM takes --bind and --arg"
                    )
        else:
            for option, values in of_programs.items():
                if values:
                    raise UsageError(f"{option} {values[0]} needs a FILE:PROGRAM")
        if self.swept is not None and (self.compare or self.others or self.recipes):
            raise UsageError(
                "--sweep and --compare cannot be combined: a sweep compares MODEL with"
                " itself"
            )

    def _check_read_from_module(self, others: Mapping[str, Any]) -> None:
        """Reject options that a model read from its module does not take."""
        assert self.unknown is not None
        others = {**others, "--layers": self.layers, "--sweep": self.swept}
        for option, value in others.items():
            if value:
                raise UsageError(
                    f"{option} is for models that netsor describes itself:"
                    f" {self.unknown.config['model_type']} is read from its module;"
                    " change its config.json instead"
                )


def _audit_request(options: dict[str, Any]) -> Request:
    """The request of an audit from all options of the command."""
    names = [field.name for field in fields(_AuditSubjects)]
    subjects = _AuditSubjects(**{name: options.pop(name) for name in names})
    subjects.check()
    if subjects.is_program:
        inputs = {name: options.pop(name) for name in ("ids", "tokens")}
        programs = _audited_programs(subjects, inputs)
        return Request(programs, swept=subjects.swept, **options)
    models, swept = _audited_models(subjects)
    # described models take --ids and --tokens as options of the request
    return Request(models, swept=swept, **options)


def _audited_programs(
    subjects: _AuditSubjects, inputs: Mapping[str, Any]
) -> tuple[ProgramModel, ...]:
    """The programs of a request: FILE:PROGRAM with each value of --sweep, or
    FILE:PROGRAM and those that --compare names.
    """
    _refuse_layers(subjects.layers)
    programs = []
    if subjects.swept is not None:
        field, values = subjects.swept
        for value in values:
            arguments = [*subjects.arguments, f"{field}={value}"]
            program = _program(subjects.model, subjects.binds, arguments, inputs)
            name = f"{program.name}, {field}={swept_text(value)}"
            programs.append(program.replace(name))
    else:
        for target in (subjects.model, *subjects.compare):
            programs.append(
                _program(target, subjects.binds, subjects.arguments, inputs)
            )
    # modules alone have no widths
    if subjects.binds and not any(program.widths() for program in programs):
        raise UsageError(
            f"--bind {subjects.binds[0]} is for programs: {subjects.model} makes a"
            " module, which takes --arg NAME=VALUE"
        )
    return tuple(programs)


def _audited_models(
    subjects: _AuditSubjects,
) -> tuple[tuple[Transformer, ...], Swept | None]:
    """(models, swept): MODEL and those that it is compared with, or with each value of
    --sweep; and the swept field with its values, None without a sweep.
    """
    if subjects.others and len(subjects.compare) > 1:
        raise UsageError(
            "--compare-set is for one --compare: give each of the others its own"
            " config.json"
        )
    described = _described(subjects.model, subjects.changes, subjects.layers)
    model = described
    if subjects.recipe is not None:
        model = _by("--recipe", described, subjects.recipe)
    models = [model]
    for name in subjects.recipes:
        models.append(_by("--compare-recipe", described, name))
    for source in subjects.compare:
        other = model_of("--compare", source)
        models.append(changed(other, "--compare-set", subjects.others))
    if subjects.others and not subjects.compare:
        models.append(changed(model, "--compare-set", subjects.others))
    if subjects.swept is None:
        return tuple(models), None
    field, values = subjects.swept
    _refuse_set_and_swept(field, subjects)
    with usage_errors(f"--sweep {field}"):
        swept_models, swept = sweep_of(model, field, values)
    return tuple(swept_models), swept


def _refuse_set_and_swept(field: str, subjects: _AuditSubjects) -> None:
    """Reject a field that is swept and set by another option too."""
    set_by = []
    name = field_name(field)
    if name == "layers" and subjects.layers is not None:
        set_by.append(f"--layers {subjects.layers}")
    for text in subjects.changes:
        if _changed_field(text) == name:
            set_by.append(f"--set {text}")
    if set_by:
        raise UsageError(
            f"{set_by[0]} and --sweep {field} cannot be combined: both set this field"
        )


def _by(option: str, model: Transformer, name: str) -> Transformer:
    """The model with the recipe that an option names."""
    with usage_errors(f"{option} {shown(name)}"):
        return recipe(model, name)


def _of_jax(target: str, model: Any, inputs: Mapping[str, Any]) -> ProgramModel:
    """The network that a JAX model is, on the token ids or numbers of `inputs`."""
    from ..jax import UnsupportedError
    from ..jax._network import networks
    from ..reader._network import lengths_of

    ids = inputs["ids"]
    lengths = lengths_of(ids, inputs["tokens"])
    try:
        first, *longer = networks(model, ids, lengths)
    except UnsupportedError as error:
        raise UsageError(
            f"FILE:FUNCTION {shown(target)} cannot be read: {error}"
        ) from None
    return ProgramModel(first, widths={}, longer=longer, ids=ids)


def _program(
    target: str,
    binds: Sequence[str],
    arguments: Sequence[str],
    inputs: Mapping[str, Any],
) -> ProgramModel:
    """What FILE:PROGRAM names, for an audit: a program with its widths, or the network
    that a function's PyTorch module becomes with the token ids or numbers of `inputs`.
    """
    if not is_target(target):
        return _from_module(target, inputs)
    loaded = find(target, arguments)
    of_jax = jax_model(loaded)
    if of_jax is not None:
        return _of_jax(target, of_jax, inputs)
    module = module_factory(loaded)
    if module is not None:
        ids = inputs["ids"]
        tokens = inputs["tokens"]
        torch = torch_module()
        try:
            first, *longer = torch._network.networks(module, ids, tokens)
        except torch.UnsupportedError as error:
            raise UsageError(
                f"FILE:FUNCTION {shown(target)} cannot be read: {error}"
            ) from None
        model = ProgramModel(first, widths={}, longer=longer, ids=ids)
        model.factory = target
        return model
    for name, text in inputs.items():
        if text is not None:
            raise UsageError(f"--{name} is for models; FILE:PROGRAM defines its tokens")
    net = program_of(loaded)
    widths = bound_widths(net, binds)
    with usage_errors(f"FILE:PROGRAM {shown(target)}"):
        return ProgramModel(net, widths)


def _from_module(source: str, inputs: Mapping[str, Any]) -> ProgramModel:
    """A configuration of a type that netsor does not describe, read from its module."""
    unknown = unknown_family(source)
    if unknown is None:
        raise UsageError(
            f"--compare {shown(source)} must be a FILE:PROGRAM, as MODEL is: a module"
            " can be compared only with another module. To compare it with a"
            f" configuration, use netsor check-init MODEL --reference {source}"
        )
    with usage_errors(f"MODEL {shown(source)}"):
        return read_from_module(unknown, inputs["ids"], inputs["tokens"])


def coord_check(*, as_json: bool, verbose: bool, fail: bool, **options: Any) -> None:
    """The command `coord-check`."""
    from ..studies.coord_check import CoordCheckStudy, of_module
    from ..studies.coord_check._request import Request

    def make(options: dict[str, Any]) -> Study[Any]:
        """The check of these options."""
        lr = options.pop("lr")
        model, optimiser = _trained(options)
        rates = None
        if lr is not None:
            rates = _rates(lr, model if is_function(model) else None)
        if is_function(model):
            is_of_vectors = bool(options["vectors"])
            trained = of_module(
                model,
                widths=options["widths"],
                optimiser=optimiser,
                lr=rates,
                ids=options["ids"],
                steps=options["steps"],
                parametrisation=options["rules"] or None,
                vectors=options["vectors"],
            )
            model = trained.build
            optimiser = trained.optimiser
            rates = trained.lr
            options["ids"], options["vectors"] = trained.ids, trained.vectors
            options["rules"] = trained.parametrisation
            options["trains_vectors"] = is_of_vectors
            options["trainable"] = trained.trainable
            if rates is None:
                call_build(model, ANY_WIDTH)  # rejects a function of other arguments
                raise UsageError(
                    "--lr must be given for FILE:FUNCTION: a number, or the name of"
                    " rates in FILE"
                )
        subject = subject_of(model, options.pop("rules") or None, optimiser)
        return CoordCheckStudy(
            Request(*subject, optimiser=optimiser, lr=rates, **options)
        )

    result = run(options, make, as_json)
    _print(result, as_json, verbose)
    if fail:
        _exit_if(_failures(result))


def _failures(checks: Iterable[Any]) -> list[str]:
    """Why coordinate checks fail: something is flagged, or most is undecided."""
    broken = []
    undecided = []
    for check in checks:
        if check.broken:
            broken.append(f"{check.name} ({', '.join(check.broken)})")
        if check.is_mostly_undecided:
            undecided.append(f"{check.name} ({', '.join(check.undecided)})")
    failures = []
    if broken:
        failures.append(f"not as expected: {'; '.join(broken)}")
    if undecided:
        failures.append(
            f"mostly undecided: {'; '.join(undecided)}. Use more --draws, or --widths"
            " further apart"
        )
    return failures


def transfer(*, as_json: bool, verbose: bool, **options: Any) -> None:
    """The command `transfer`."""
    from ..studies.transfer import framework_of
    from ..studies.transfer._sweep import Request, TransferStudy

    def make(options: dict[str, Any]) -> Study[Any]:
        """The study with the options of the command line."""
        source = options["model"]
        batch = options.pop("batch")
        model, optimiser = _trained(options)
        framework = framework_of(model, options["widths"])
        if framework:
            options |= {"batch": batch, "framework": framework}
            return _transfer_of_module(source, model, optimiser, options)
        if batch is not None:
            raise UsageError(
                f"--batch {shown(batch)} is for a PyTorch module or a JAX model"
            )
        subject = subject_of(model, options.pop("rules") or None, optimiser)
        return TransferStudy(Request(*subject, optimiser=optimiser, **options))

    _print(run(options, make, as_json), as_json, verbose)


def _transfer_of_module(
    source: str, build: Any, optimiser: Any, options: dict[str, Any]
) -> Study[Any]:
    """The sweep of a function of the width that makes modules or JAX models."""
    from ..studies.transfer._modules import library_of, module_study

    library = library_of(options.pop("framework"))
    batch = options.pop("batch")
    if batch is not None:
        options["batch"] = batch_of(source, batch)
    rules = options.pop("rules") or None
    grow = options.pop("grow")
    vectors = options.pop("vectors")
    if grow != GROW_HEADS:
        raise UsageError(f"--grow {grow} is for models: a module defines what grows")
    if vectors:
        raise UsageError("--vectors is for models: the optimiser names what moves")
    return module_study(build, optimiser, rules, library=library, rng=None, **options)


def _trained(options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, optimiser): the model or the function of the width, and the name of the
    optimiser or the object of this name in FILE.

    The options that say so are taken out of `options`, and the text of --vectors is
    replaced by a list.
    """
    source = options.pop("model")
    changes = options.pop("changes")
    layers = options.pop("layers")
    optimiser = options.pop("optimiser")
    vectors = options["vectors"]
    options["vectors"] = []
    if vectors is not None:
        options["vectors"] = [name.strip() for name in vectors.split(",")]
    if not is_target(source):
        return _described(source, changes, layers), optimiser
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
    if optimiser in NAMED:
        return named.value, optimiser
    # an object of FILE comes before the name of an optimiser of PyTorch, as adamw
    if optimiser in OF_MODULES and _object_in_file(optimiser, named.value) is None:
        return named.value, optimiser
    own = _named_in_file(
        spelled(("--optimiser", "--optimizer")),
        name=optimiser,
        function=named.value,
        allowed=OPTIMISER_NAMES,
    )
    return named.value, own


def _object_in_file(name: str, function: Any) -> Any:
    """The object of this name in the file of a function, or None."""
    return getattr(sys.modules.get(getattr(function, "__module__", "")), name, None)


def _named_in_file(option: str, name: str, function: Any, allowed: str) -> Any:
    """The object of this name in the file of a function."""
    value = _object_in_file(name, function)
    if value is None:
        raise UsageError(f"{option} {shown(name)} must be {allowed} in FILE")
    return value


def _rates(lr: str, function: Any) -> Any:
    """The learning rates that --lr gives: a number, a dict of numbers by kind of weight
    ("query=0.1,head=0.01"), or the object of this name in the file of `function`, which
    is None for a model.
    """
    try:
        if "=" not in lr:
            return float(lr)
        rates = {}
        for text in lr.split(","):
            kind, _, rate = text.partition("=")
            rates[kind.strip()] = float(rate)
        return rates
    except ValueError:
        if function is not None:
            return _named_in_file(
                "--lr",
                name=lr,
                function=function,
                allowed="a number, or the name of rates",
            )
        raise UsageError(
            f"--lr {shown(lr)} must be a number, or kind=number,…, such"
            " as query=0.1,head=0.01"
        ) from None
