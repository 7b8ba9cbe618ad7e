"""Options that several commands share, and their types: the built-in layer or a user's
program, sampling, and where it runs.

`Command` words errors about arguments of the library as errors about options.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click import Choice, UsageError, argument, get_current_context, option

from .. import __version__
from .._validate import LARGEST, ArgumentError, real, shown, whole

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..engine.backends import Backend

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
many = partial(option, multiple=True)
flag = partial(option, is_flag=True)
INFINITE = ("inf", "infinity", "∞")
MAX_SHOWN_NUMBERS = 6  # of a list, in messages


def spelled(options: Sequence[str], words: Sequence[str] | None = None) -> str:
    """The spelling of an option that was typed, such as --optimizer; the first one, if
    none was.
    """
    words = sys.argv if words is None else words
    typed = {word.partition("=")[0] for word in words}
    for spelling in options:
        if spelling in typed:
            return spelling
    return options[0]


def _takes_one_value(param: click.Parameter) -> bool:
    """Whether the last value of an option would replace those before it: not for
    repeatable options, and for flags only if they have an opposite, as --no-gradients.
    """
    if not isinstance(param, click.Option) or param.multiple:
        return False
    has_opposite = bool(param.secondary_opts)
    return not param.is_flag or has_opposite


def _typed(value: Any) -> str:
    """A value as it is typed on the command line; of long lists, the first numbers."""
    if not isinstance(value, list | tuple) or not value:
        return shown(value)
    if not all(isinstance(entry, int | float) for entry in value):
        return shown(value)
    texts = [f"{entry:.12g}" for entry in value[:MAX_SHOWN_NUMBERS]]
    if len(value) > MAX_SHOWN_NUMBERS:
        texts.append("…")
    return ",".join(texts)


class Command(click.Command):
    """A command that words errors about arguments of the library as errors about its
    own options.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            argument = getattr(error, "argument", None)
            if argument is None:
                raise
            raise UsageError(
                f"{self._written(argument)} must be {argument.allowed}"
            ) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reject an option that is given twice with one value each: only the last would
        act.
        """
        typed: list[click.Parameter] = []  # in order, with repetitions
        with suppress(UsageError):  # which the parser of click reports below
            _, _, typed = self.make_parser(ctx).parse_args(list(args))
        for param in typed:
            if typed.count(param) > 1 and _takes_one_value(param):
                raise UsageError(
                    f"{spelled(param.opts, args)} is given twice: give it once"
                )
        return super().parse_args(ctx, args)

    def _written(self, argument: ArgumentError) -> str:
        """The argument with its value as this command takes it: "--tokens 3", "MODEL
        'gpt3'", "--set width=7", or "width=7" if it is not an option.
        """
        value = argument.value
        typed = _typed(argument.value)
        changes = get_current_context().params.get("changes") or ()
        if argument.name in {text.partition("=")[0].strip() for text in changes}:
            return f"--set {argument.name}={typed}"
        for param in self.params:
            if argument.name == param.name or f"--{argument.name}" in param.opts:
                if isinstance(param, click.Argument):
                    metavar = param.metavar or argument.name.upper()
                    return f"{metavar.strip('[].')} {typed}"
                name = spelled(param.opts)
                return name if value is True else f"{name} {typed}"
        return f"{argument.name}={typed}"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """Audit transformers at initialisation, and compute exact laws of networks.

    \b
    Start with:          netsor audit gpt2 --quick
    Check your module:   netsor check-init FILE.py:build --reference config.json
    Check your run:      netsor check-run --help
    """


cli.command_class = Command


class Text(click.ParamType):  # type: ignore[type-arg]
    """A text that `read` parses; help texts show `name`, and `allowed` says how it must
    be written, or the error.
    """

    def __init__(
        self, name: str, read: Callable[[Any], Any], allowed: str = ""
    ) -> None:
        self.name = name
        self.read = read
        self.allowed = allowed

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The parsed value, or an error in one line."""
        try:
            return self.read(value)
        except (ValueError, TypeError) as error:
            allowed = self.allowed or getattr(error, "allowed", str(error))
            self.fail(f"{shown(value)} must be {allowed}", param, ctx)


def number(
    check: Callable[..., float] = whole, inf: bool = False, **bounds: Any
) -> Text:
    """A number of the command line: read from text, and checked as the library checks
    it.
    """

    def read(text: Any) -> float:
        """The number, or an error of `check`."""
        if inf and str(text).lower() in INFINITE:
            return math.inf
        value = text
        with suppress(ValueError):  # the check rejects what is not a number
            value = int(str(text)) if check is whole else float(text)
        return check(value, "", **bounds)

    name = "integer" if check is whole else "number"
    if inf:
        name = "integer|inf"
    return Text(name, read)


def _width(word: str) -> float:
    """A width, which may be "inf"."""
    return math.inf if word.strip().lower() in INFINITE else int(word)


def _swept(text: str) -> tuple[str, tuple[float | str, ...]]:
    """A field and its values: integers if the field takes integers, numbers or words.

    A value with a call in it keeps its text, which FILE:PROGRAM evaluates.
    """
    from ..models import settings
    from ._argument_values import literal, parts_of

    field, _, texts = text.partition("=")
    values: list[float | str] = []
    for word in parts_of(texts):
        setting = settings([f"{field}={word}"])[field.strip()]
        number = literal(word)
        if isinstance(setting, str) and isinstance(number, int | float):
            setting = number
        values.append(setting)
    if "" in values:
        raise ValueError
    return field.strip(), tuple(values)


def _several(name: str, parse: Callable[[str], float], allowed: str) -> Text:
    """Numbers with commas between, as a tuple."""

    def read(text: str) -> tuple[float, ...]:
        """The numbers of a text, separated by commas."""
        return tuple(parse(word) for word in text.split(","))

    return Text(name, read, allowed)


IDS = _several("I,J,…", int, "whole numbers with commas between, as 3,7,7,1")
SIZES = _several("N,…", int, "whole numbers with commas between, as 16,128")
WIDTHS = _several(
    "N,…", _width, "whole numbers or inf with commas between, as 256,1024,inf"
)
RATES = _several("X,…", float, "numbers with commas between, as 0.01,0.02,0.04")
SWEEP = Text(
    "FIELD=A,B,…", _swept, "written field=value,value,…, as std=0.005,0.01,0.02"
)
POSITIVE = number()
WIDTH = number(inf=True, why=" or inf")
SEED = number(least=0, most=2**128 - 1)
DRAWS = number(least=100)
MIN_DRAWS = number(least=15, why=": fewer decide no rule")
TRIALS = number(most=10_000)
# a variance has up to six of these as factors and a kurtosis twelve: 1e±96, within
# double precision
SIGMA = number(real, least=1e-8, most=1e8, zero=True)
ABOVE = number(real, least=1e-8, most=1e8)
PLACE = number(least=1 - LARGEST)
PORT = number(least=0, most=65535, why=", with 0 for a free one")

WORKERS = option(
    "--workers",
    type=number(most=1024),
    help="Processes.  [default: all cores, or one with a device]",
)
SEED_OPTION = option("--seed", type=SEED, default=0, help="Seed of the random numbers.")
ARGUMENTS = many(
    "--arg", "arguments", metavar="NAME=VALUE", help="An argument of its function."
)
AS_JSON = flag("--json", "as_json", help="Print one JSON object and nothing else.")
ACTIVATIONS = ("clip", "erf", "gelu", "identity", "relu", "tanh")  # of ns.paper.layer


def all_of(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """A decorator that adds these options, in this order."""

    def decorate(command: Decorated) -> Decorated:
        """Add the options to a command."""
        for add_option in reversed(options):  # as stacked decorators are applied
            command = add_option(command)
        return command

    return decorate


def subject_options(width: str) -> Callable[[Decorated], Decorated]:
    """The options of the built-in layer, and FILE:PROGRAM with --bind and --arg in
    their place.
    """
    return all_of(
        argument("program", metavar="[FILE:PROGRAM]", required=False),
        many("--bind", "binds", metavar="NAME=N|inf", help="A width of FILE:PROGRAM."),
        ARGUMENTS,
        option(
            "--coordinate",
            "coordinates",
            type=PLACE,
            help="Output coordinate, if laws differ.  [default: 0]",
        ),
        option(
            "--width", type=WIDTH, default=width, help="Width n, an integer or inf."
        ),
        option("--heads", type=POSITIVE, default=2, help="Attention heads, H."),
        option("--tokens", type=POSITIVE, default=4, help="Tokens, s."),
        option(
            "--token",
            type=POSITIVE,
            default=1,
            help="The token to look at, counted from 1.",
        ),
        option(
            "--head-dim",
            type=WIDTH,
            help="Head dimension, an integer or inf.  [default: the width]",
        ),
        option(
            "--activation",
            type=Choice(ACTIVATIONS),
            default="clip",
            help="φ in x = φ(W h).",
        ),
        option(
            "--clip",
            type=ABOVE,
            default=100.0,
            help="Threshold of the clip activation.",
        ),
        option(
            "--scaling",
            type=Choice(["sqrt", "linear"]),
            default="sqrt",
            help="Scores over √d or d.",
        ),
        option(
            "--mask",
            type=Choice(["causal"]),
            help="Causal mask: a token sees itself and earlier tokens.",
        ),
        flag(
            "--infinite-heads",
            help="Infinitely many heads, in the limit of infinite width.",
        ),
        *(
            option(
                f"--sigma-{k}",
                type=SIGMA,
                default=1.0,
                help=f"Standard deviation of W^{k.upper()}.",
            )
            for k in "qk"
        ),
        *(
            option(
                f"--sigma-{k}",
                type=ABOVE,
                default=1.0,
                help=f"Standard deviation of W^{k.upper()}.",
            )
            for k in "vo"
        ),
        option(
            "--sigma-w",
            type=ABOVE,
            default=1.0,
            help="Standard deviation of the tokens' W.",
        ),
    )


sampling_options = all_of(
    option(
        "--draws", type=DRAWS, default=100_000, help="Independent draws of the network."
    ),
    SEED_OPTION,
    AS_JSON,
    option(
        "--plot",
        metavar="FILE",
        help="Plot the densities to a .png, .pdf or .svg file.",
    ),
)

BACKENDS = ("numpy", "jax", "torch")
PRECISIONS = ("float64", "float32")
ADDRESS = re.compile(
    r"(?:(?:tcp|tls|ucx|ws|wss)://)?(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+):(?P<port>[0-9]{1,5})"
)
NO_SCHEDULER = "must be local or the address of a scheduler that runs, tcp://HOST:PORT"

place_options = all_of(
    option(
        "--backend", type=Choice(BACKENDS), default="numpy", help="The array library."
    ),
    option(
        "--device",
        metavar="cpu|cuda[:N]",
        help=("Device, or several: cuda:0,cuda:1.  [default: a GPU, if there is one]"),
    ),
)


def where_options(*precisions: str) -> Callable[[Decorated], Decorated]:
    """--backend, --device, --precision, by default the first of these, and --dask."""
    precision = "Precision of numbers."
    if "auto" in precisions:
        precision = "Precision of numbers; auto is float32 where that is enough."
    dask = (
        "A Dask cluster: the address of its scheduler, or local to start one on this"
        " machine."
    )
    return all_of(
        place_options,
        option(
            "--precision",
            type=Choice(precisions),
            default=precisions[0],
            help=precision,
        ),
        option("--dask", metavar="ADDRESS|local", help=dask),
    )


class Place(NamedTuple):
    """Where to compute, as arguments of `Program.law`."""

    backend: Backend
    # of a Dask cluster, or of several devices; None for the workers of this machine
    executor: Executor | None = None


def pop_place(options: dict[str, Any]) -> Place:
    """Take backend, device, precision and dask out of `options`.

    A Dask cluster is joined, or started, until the command ends.
    """
    from ..engine.backends import choose_several

    backend, executor_of_devices = choose_several(
        options.pop("backend"),
        device=options.pop("device"),
        precision=options.pop("precision"),
        precisions=("auto", *PRECISIONS),  # --precision lists what a command allows
    )
    address = options.pop("dask")
    if address is None:
        return Place(backend, executor_of_devices)
    if executor_of_devices is not None:
        raise UsageError("--dask has its own workers: leave out all but one --device")
    executor = _dask_executor(address, options.get("workers"))
    return Place(backend, executor)


def _dask_executor(address: str, workers: int | None) -> Executor:
    """An executor of the cluster at this address, or of a local one; it ends with the
    command.
    """
    match = ADDRESS.fullmatch(address)
    if address != "local" and (match is None or not 0 < int(match["port"]) < 2**16):
        raise UsageError(f"--dask {shown(address)} {NO_SCHEDULER}")
    if importlib.util.find_spec("distributed") is None:
        raise UsageError(f"--dask {shown(address)} needs Dask: pip install distributed")
    import distributed  # seldom needed, and slow to import

    from ..runtime._parallel import cores

    until_exit = get_current_context().with_resource
    cluster: Any = address
    try:
        if address == "local":
            local = distributed.LocalCluster(
                n_workers=workers or cores(),
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",  # any free port: 8787 may be taken
                host="127.0.0.1",
            )
            cluster = until_exit(local)
        client = until_exit(distributed.Client(cluster, timeout="10s"))
        return cast("Executor", client.get_executor())
    except Exception as error:  # Dask and its libraries raise many kinds of errors
        raise UsageError(f"--dask {shown(address)} {NO_SCHEDULER}: {error}") from None
