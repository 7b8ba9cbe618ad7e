"""The command check-run: its options, and how its result is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click import UsageError, argument, option

from .._validate import ArgumentError, real, shown
from . import _options as opt
from . import _output as out
from ._options import cli

FLAGGED = 3  # exit code, if a logged number is outside its band
LEVEL = opt.number(real, above=0, most=0.5)
POSITIVE_REAL = opt.number(real, above=0)


@cli.command("check-run")
@argument("model")
@opt.ARGUMENTS
@option(
    "--optimiser",
    "--optimizer",
    metavar="FILE:FUNCTION",
    required=True,
    help="A function of the module that returns its torch optimiser, several, or"
    " optimisers and schedules. For JAX an optimiser of optax, or a function that makes"
    " it, of nothing or of the parameters.",
)
@opt.many(
    "--batch",
    "batches",
    metavar="FILE",
    required=True,
    help="A .pt, .npy or .safetensors file of a batch (.npy or .npz for JAX);"
    " repeatable, one for each pass.",
)
@option("--log", metavar="FILE", help="The log of the run.")
@opt.many(
    "--column",
    "columns",
    metavar="NAME=COLUMN",
    help="The column of a quantity, as grad_norm=gnorm.",
)
@option(
    "--first-step",
    type=opt.number(least=0),
    help="The number that the log gives the first step.  [default: its lowest, 0 or 1]",
)
@option(
    "--steps",
    type=opt.number(least=0),
    default=5,
    help="The last step that is trained and compared; the first is step 0.",
)
@option(
    "--accumulation",
    type=opt.POSITIVE,
    default=1,
    help="Passes whose mean gradient is one step.",
)
@option(
    "--clip",
    type=POSITIVE_REAL,
    metavar="X",
    help="Gradients are clipped to this norm.",
)
@option(
    "--loss",
    metavar="FILE:FUNCTION",
    help="A function of the module's output and the batch.  [default: read the output]",
)
@option("--tokens", type=opt.number(least=2), help="Only so many tokens of a batch.")
@option("--sequences", type=opt.POSITIVE, help="Only so many sequences of a batch.")
@opt.flag(
    "--propose",
    help="Print the smallest batch that still detects a gradient norm off by 1.1.",
)
@option(
    "--initialisations",
    "--initializations",
    type=opt.POSITIVE,
    help="Healthy runs.  [default: enough for bands of nearly the least width]",
)
@option("--level", type=LEVEL, default=0.001, help="Probability of a false alarm.")
@option(
    "--tolerance",
    type=opt.number(real, least=0, most=1),
    default=1e-4,
    help="Relative difference that is also allowed; 0.01 for bfloat16.",
)
@option("--device", metavar="cpu|cuda[:N]", help="Device.  [default: a GPU, if any]")
@option("--seed", type=opt.SEED, default=0, help="Seed of the healthy runs.")
@opt.flag("--no-hypotheses", help="Do not look for the cause of a departure.")
@opt.flag("--verbose", help="Print the bands of every step too.")
@opt.AS_JSON
def check_run_command(
    model: str,
    arguments: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    propose: bool,
    log: str | None,
    columns: tuple[str, ...],
    first_step: int | None,
    no_hypotheses: bool,
    **options: Any,
) -> None:
    """Check the first steps of a training run against the law of its log.

    MODEL is FILE:FUNCTION, a function that returns a new PyTorch module, or a function
    of a key that makes a model of Flax or Equinox. FILE is executed. The model is
    trained many times for the same steps, and the logged loss, gradient and update
    norms are ranked among those of these runs. The exit code is 3 if a number is
    outside its band; the first line says which, and the mistake that explains it.

    \b
    First, in your loop:  recorder = ns.torch.Recorder(model, optimizer)
                          recorder.record(loss, (ids, targets))  # after backward()
                          recorder.save("run")  # after the first steps
    Then:  netsor check-run train.py:Model --optimizer train.py:adamw
               --batch run/batch.pt --log run/run.csv
    """
    from ..checks._run_logs import rows_of
    from ._load_program import jax_or_torch_model, named_values, usage_errors

    _check_files(log, options["batches"], propose)
    named_columns = named_values("--column", columns)
    with out.stdout_to_stderr(as_json), usage_errors():
        build, library = of_file = jax_or_torch_model(model, arguments)
        make = _function("--optimizer", options.pop("optimiser"))
        loss = options.pop("loss")
        options["loss"] = None if loss is None else _function("--loss", loss)
        batches = library.read_batches(options.pop("batches"))
        if of_file.is_of_jax:
            batches = _batches_of_jax(batches, propose, options)
        if log is not None:
            rows_of(log)  # its errors come before the training
        with _training(model):
            if propose:
                result = library.propose_batch(build, make, batches, **options)
            else:
                law = library.run_law(build, make, batches, **options)
        if not propose:
            result = law.check(
                log,
                columns=named_columns,
                first_step=first_step,
                hypotheses=not no_hypotheses,
            )
    text = str(result) if propose else result.table(verbose)
    out.echo_either(as_json, result.to_dict(), text)
    if not result.ok:
        raise click.exceptions.Exit(FLAGGED)


def _check_files(log: str | None, batches: Sequence[str], propose: bool) -> None:
    """Require a log or --propose, and names of files that can be opened."""
    if propose == (log is not None):
        raise UsageError(
            "--log FILE or --propose must be given, but not both:"
            " ns.torch.Recorder(model, optimizer) records FILE in your loop, and"
            " --propose says which part of the batch is enough"
        )
    for path in batches:
        out.check_name("--batch", path)
    if log is not None:
        out.check_name("--log", log)


def _batches_of_jax(
    batches: list[Any], propose: bool, options: dict[str, Any]
) -> list[Any]:
    """The batches of a JAX model, whose checks have fewer options."""
    from ..jax._check_run import cut

    if propose:
        raise UsageError("--propose is for PyTorch modules")
    device = options.pop("device")
    if device is not None:
        raise UsageError(
            f"--device {shown(device)} is for PyTorch modules: JAX_PLATFORMS chooses"
            " the device of JAX"
        )
    sequences = options.pop("sequences")
    tokens = options.pop("tokens")
    return [cut(batch, sequences, tokens) for batch in batches]


@contextmanager
def _training(model: str) -> Iterator[None]:
    """A context in which the user's code trains: its errors are one line each."""
    from ._load_program import one_line

    try:
        yield
    except ArgumentError:  # of an option, which the command words
        raise
    except Exception as error:
        raise UsageError(
            f"MODEL {shown(model)} cannot be trained: {one_line(error)}"
        ) from None


def _function(option: str, target: str) -> Callable[..., Any]:
    """The function that an option names."""
    from ._load_program import find

    if ":" not in target:
        raise UsageError(
            f"{option} {shown(target)} must be FILE:FUNCTION, such as train.py:adamw"
        )
    try:
        value = find(target).value
    except UsageError as error:
        raise UsageError(f"{option} {shown(target)}: {error.message}") from None
    if not callable(value) and not hasattr(value, "update"):  # of optax
        raise UsageError(f"{option} {shown(target)} must name a function")
    return value  # type: ignore[no-any-return]
