"""The command `netsor parametrise`: learning rates and initialisation of a module."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import click
from click import UsageError, option

from .._validate import real, shown
from ..runtime._units import in_time
from . import _options as opt
from . import _output as out
from ._options import cli

ENDINGS = {"--out": ".py", "--toml": ".toml"}
# exit code: a rule is undecided, or --check finds a change that follows the width
FAILED = 3
DEPARTED = 1  # exit code with --fail, if something must change
# as in maximal_update/_derive.py, which imports numpy
FEWEST_DRAWS = 3
TOO_FEW = ": two initialisations give intervals that decide no exponent"
# those of `FAMILIES` in torch/maximal_update, which needs PyTorch
OPTIMISERS = ("adamw", "adam", "sgd", "lion", "sign", "muon", "adamh", "muonh")
OPTIMISER = (
    f"What trains the module: {', '.join(OPTIMISERS)} (the last two not for JAX). Or"
    " the name of a function in FILE that makes your own AdamW, Adam or SGD, or a class"
    " that mixes Muon and Adam, or of an optimiser of optax, to find what is not"
    " maximal in it."
)
OUT_FILE = (
    "Write the rule as a file of plain PyTorch or optax.  [default: mup_FUNCTION.py"
    " beside FILE]"
)
TOML_FILE = (
    "Write the rule as TOML too, a --parametrisation of coord-check and transfer."
)
CHECK = (
    "Train real networks with the written file: three steps for the changes of all"
    " outputs, and five steps at many learning rates, beside one rate for all"
    " parameters. Exit with code 3 if a change grows or shrinks with the width, or if"
    " the best rate shifts."
)
FAIL = (
    "For your own optimiser: exit with code 1 if it or the module departs from maximal"
    " updates, and with code 3 if that is undecided."
)
DEPTHS = (
    "Numbers of layers to measure too: FUNCTION then takes the width and the depth."
)
BRANCHES = (
    "With --depths, the exponent of the depth for branches of the residual stream, from"
    " -1 to -0.5.  [default: the one with the largest updates]"
)
BATCH = (
    "The name of (inputs, targets) in FILE: arrays that the module takes, and the"
    " right class of each row of its logits.  [default: random tokens]"
)


@cli.command("parametrise")
@click.argument("model", metavar="FILE:FUNCTION")
@option(
    "--optimiser",
    "--optimizer",
    metavar="NAME",
    default="adamw",
    help=OPTIMISER,
)
@option("--widths", type=opt.SIZES, default="64,128,256", help="Widths to measure.")
@option("--depths", type=opt.SIZES, help=DEPTHS)
@option("--branch-power", type=opt.number(real, least=-1, most=-0.5), help=BRANCHES)
@option("--batch", metavar="NAME", help=BATCH)
@option(
    "--draws",
    type=opt.number(least=FEWEST_DRAWS, why=TOO_FEW),
    default=4,
    help="Initialisations at each width.",
)
@opt.SEED_OPTION
@option("--out", "path", metavar="FILE", help=OUT_FILE)
@option("--toml", metavar="FILE", help=TOML_FILE)
@opt.flag("--overwrite", help="Replace files that exist.")
@opt.flag("--check", help=CHECK)
@opt.flag("--fail", help=FAIL)
@opt.AS_JSON
def parametrise_command(
    model: str,
    path: str | None,
    toml: str | None,
    overwrite: bool,
    check: bool,
    fail: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Derive the learning rates and the initialisation of a module (µP).

    FILE:FUNCTION is a function of the width that returns a PyTorch module with logits,
    or a JAX model: a function of a key, a module of Linen, or a pair (init, apply).
    FILE is executed. netsor measures, at several widths, how every operation responds
    to updates, finds the exponents under which all changes are of order 1, and writes
    them as a file of plain PyTorch with a function param_groups for your optimiser, or
    of plain JAX with a function that makes the optimiser of optax.
    """
    from ._load_program import find, is_target, usage_errors

    if not is_target(model):
        raise UsageError(
            f"MODEL {shown(model)} must be FILE:FUNCTION, such as my_model.py:build"
        )
    file = _file(model, path, overwrite)
    toml_file = None if toml is None else _named_file("--toml", toml, overwrite)
    with out.stdout_to_stderr(as_json), usage_errors():
        build = find(model).value
        _resolve_names(model, options, fail)
        library = _library(build, options)
        rule = library.parametrise(build, progress=out.echo_error, **options)
        _write(file, rule.source())
        if toml_file is not None:
            _write(toml_file, rule.toml())
        training = _checked(rule, file, as_json) if check else None
        if training is not None:
            changes = training.changes, training.changes_in_depth
            _write(file, rule.source(*changes))
    content = _content(rule, file, toml_file, training)
    out.echo_either(as_json, content, _text(rule, file, toml_file, training))
    if fail and rule.departures:
        raise click.exceptions.Exit(DEPARTED)
    if rule.undecided or (training is not None and training.is_wrong):
        raise click.exceptions.Exit(FAILED)


def _resolve_names(model: str, options: dict[str, Any], fail: bool) -> None:
    """Replace the names of an own optimiser and of a batch by what FILE defines."""
    from ._load_program import batch_of

    if options["optimiser"] not in OPTIMISERS:
        options["optimiser"] = _own_optimiser(model, options["optimiser"])
    elif fail:
        raise UsageError(
            "--fail is for your own optimiser: name its function in FILE with"
            f" --optimizer, not {options['optimiser']}"
        )
    batch = options.pop("batch")
    if batch is not None:
        options["batch"] = batch_of(model, batch)


def _content(
    rule: Any, file: Path, toml_file: Path | None, training: Checked | None
) -> dict[str, Any]:
    """The rule, its files and what real training found, for --json."""
    content = {**rule.to_dict(), "file": str(file)}
    if toml_file is not None:
        content["toml"] = str(toml_file)
    if training is None:
        return content
    content["check"] = [change.to_dict() for change in training.changes]
    content["transfer"] = training.transfer.as_dict()
    if rule.depth is not None:
        in_depth = [change.to_dict() for change in training.changes_in_depth]
        content["check_in_depth"] = in_depth
    return content


def _text(
    rule: Any, file: Path, toml_file: Path | None, training: Checked | None
) -> str:
    """The rule, its files and what real training found, in words.

    With training the rule itself was printed before it started.
    """
    files = f"wrote {file}"
    if toml_file is not None:
        files += f" and {toml_file}"
    if training is None:
        return f"{rule}\n\n{files}"
    paragraphs = [files, rule.check_text(training.changes)]
    if rule.depth is not None:
        paragraphs.append(rule.check_text(training.changes_in_depth, "depth"))
    paragraphs.append(str(training.transfer))
    return "\n\n".join(paragraphs)


def _checked(rule: Any, file: Path, as_json: bool) -> Checked:
    """What real training finds; the table of the rule and the cost come first."""
    # it needs PyTorch or JAX
    from ..studies.transfer._modules import study_of_rule

    if not as_json:
        out.echo(f"{rule}\n")
    study = study_of_rule(rule, progress=not as_json)
    seconds = rule.check_seconds() + study.estimate().clock
    sizes = f"widths {', '.join(map(str, rule.widths_of_check))}"
    if rule.depths_of_check:
        sizes += f" and depths {', '.join(map(str, rule.depths_of_check))}"
    out.echo_notice(
        f"wrote {file}. --check trains real networks of {sizes}, for about"
        f" {in_time(seconds)}; Ctrl-C keeps the file."
    )
    in_depth = rule.check(depths=rule.depths_of_check) if rule.depth else []
    return Checked(rule.check(), in_depth, study.run())


def _library(build: Any, options: dict[str, Any]) -> Any:
    """The part of netsor that derives the rule, of PyTorch or of JAX; options that
    belong to the other one are removed.
    """
    from ..studies._training import makes_jax_model_of_width
    from ._load_program import torch_module

    if not makes_jax_model_of_width(build, min(options["widths"])):
        return torch_module()
    from .. import jax

    for name in ("depths", "branch_power"):
        if options.pop(name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for PyTorch modules")
    return jax


class Checked(NamedTuple):
    """What real training with a written file found."""

    changes: Sequence[Any]
    changes_in_depth: Sequence[Any]  # empty without depths
    transfer: Any

    @property
    def is_wrong(self) -> bool:
        """Whether a change grows or shrinks, or the best learning rate shifts."""
        shifts: bool = self.transfer["derived"].verdict.startswith("shifts")
        changes = (*self.changes, *self.changes_in_depth)
        return shifts or any(change.is_wrong for change in changes)


# the American spelling works too, and help lists the command once
parametrize_command = copy(parametrise_command)
parametrize_command.hidden = True
cli.add_command(parametrize_command, "parametrize")


def _file(model: str, path: str | None, overwrite: bool) -> Path:
    """The file to write; an error if it exists."""
    source, _, function = model.rpartition(":")
    if path is None:
        folder = Path(source).parent if source.endswith(".py") else Path()
        path = str(folder / f"mup_{function}.py")
    return _named_file("--out", path, overwrite)


def _named_file(option: str, path: str, overwrite: bool) -> Path:
    """The file of an option, whose ending must be that of its kind."""
    file = Path(path)
    ending = ENDINGS[option]
    out.check_name(option, path)
    if file.suffix != ending:
        raise UsageError(f"{option} {shown(path)} must end in {ending}")
    if file.is_dir():
        raise UsageError(f"{option} {shown(path)} must be a file, not a folder")
    if file.exists() and not overwrite:
        raise UsageError(
            f"{shown(path)} exists: name another file with {option}, or give"
            " --overwrite"
        )
    return file


def _own_optimiser(model: str, name: str) -> Any:
    """The function of this name in the file of the model."""
    from ._load_program import named_in_file_of

    names = ", ".join(OPTIMISERS)
    if not name.isidentifier():
        raise UsageError(
            f"--optimiser {shown(name)} must be one of {names}, or a function in FILE"
        )
    return named_in_file_of(model, name)


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    from ..runtime._files import write

    try:
        write(file, text.encode())
    except OSError as error:
        raise click.ClickException(
            f"{shown(str(file))} cannot be written: {out.reason(error)}"
        ) from None
