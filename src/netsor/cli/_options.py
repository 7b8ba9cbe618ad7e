"""Options that several commands have: of the built-in layer or your own program, and of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .. import __version__
from .._validate import ArgumentError, real, shown, whole


class Command(click.Command):
    """A command that words errors about arguments of the library as errors about its own options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            argument = getattr(error, "argument", None)
            if argument is None:
                raise
            raise click.UsageError(f"{self._written(argument)} must be {argument.allowed}") from None

    def _written(self, argument: ArgumentError) -> str:
        """The argument as this command takes it: "--tokens 3", or "MODEL 'gpt3'"."""
        for param in self.params:
            if argument.name == param.name or f"--{argument.name}" in param.opts:
                if isinstance(param, click.Argument):
                    return f"{(param.metavar or argument.name.upper()).strip('[].')} {shown(argument.value)}"
                return param.opts[0] if argument.value is True else f"{param.opts[0]} {shown(argument.value)}"
        return f"{argument.name}={shown(argument.value)}"


class Group(click.Group):
    """All commands."""

    command_class = Command


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """Audit transformers at initialisation, and compute exact laws of networks.

    \b
    Start with:  netsor audit gpt2 --quick
    """


MAX_EXACT_INT = 2**53  # above it not every integer is a double
INFINITE = ("inf", "infinity", "∞")


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number of the command line: read from text, and checked as the library checks it."""

    def __init__(self, check: Callable[..., float] = whole, inf: bool = False, **bounds: Any) -> None:
        self.check, self.inf, self.bounds = check, inf, bounds
        self.name = "integer|inf" if inf else "integer" if check is whole else "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number, or an error in one line."""
        if self.inf and str(value).lower() in INFINITE:
            return math.inf
        try:
            number: Any = int(str(value)) if self.check is whole else float(value)
        except ValueError:
            number = value
        try:
            return self.check(number, self.name, **self.bounds)
        except ArgumentError as error:
            self.fail(f"{shown(value)} must be {error.allowed}{' or inf' * self.inf}", param, ctx)


def integers(option: str, text: str | None, example: str, inf: bool = False) -> tuple[Any, ...] | None:
    """Whole numbers with commas between, or infinity where that is allowed."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    try:
        return tuple(math.inf if inf and word.lower() in INFINITE else int(word) for word in words)
    except ValueError:
        said = f"must be whole numbers with commas between, as {example}"
        raise click.UsageError(f"{option} {shown(text)} {said}") from None


POSITIVE = Number()
WIDTH = Number(inf=True)
SEED = Number(least=0, most=2**128 - 1)
DRAWS = Number(least=100)
MIN_DRAWS = Number(least=15, why=": fewer decide no rule")
WORKERS = Number(most=1024)
TRIALS = Number(most=10_000)
# a variance has up to six of these as factors and a kurtosis twelve: 1e±96, within double precision
SIGMA = Number(real, least=1e-8, most=1e8, zero=True)
ABOVE = Number(real, least=1e-8, most=1e8)
RATE = Number(real, least=0, most=1e12)
PLACE = Number(least=1 - MAX_EXACT_INT)
POINT = Number(real)
PORT = Number(least=0, most=65535, why=", with 0 for a free one")


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
ACTIVATIONS = ("clip", "erf", "gelu", "identity", "relu", "tanh")  # of ns.paper.layer
SIGMAS = (("q", "W^Q"), ("k", "W^K"), ("v", "W^V"), ("o", "W^O"), ("w", "the tokens' W"))


def subject_options(width: str) -> Callable[[Decorated], Decorated]:
    """The options of the built-in layer, and FILE:PROGRAM with --bind and --arg in their place."""
    options = [
        click.argument("program", metavar="[FILE:PROGRAM]", required=False),
        click.option("--bind", "binds", multiple=True, metavar="NAME=N|inf", help="A width of FILE:PROGRAM."),
        click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of its function."),
        click.option(
            "--coordinate",
            "coordinates",
            type=PLACE,
            help="A coordinate of the output, if their laws differ.  [default: 0]",
        ),
        click.option("--width", type=WIDTH, default=width, show_default=True, help="Width n, an integer or inf."),
        click.option("--heads", type=POSITIVE, default=2, show_default=True, help="Attention heads, H."),
        click.option("--tokens", type=POSITIVE, default=4, show_default=True, help="Tokens, s."),
        click.option(
            "--token", type=POSITIVE, default=1, show_default=True, help="The token whose output it is; 1 is the first."
        ),
        click.option("--head-dim", type=WIDTH, help="Head dimension, an integer or inf.  [default: the width]"),
        click.option(
            "--activation",
            type=click.Choice(ACTIVATIONS),
            default="clip",
            show_default=True,
            help="φ in x = φ(W h).",
        ),
        click.option("--clip", type=ABOVE, default=100.0, show_default=True, help="Where the clip activation cuts."),
        click.option(
            "--scaling",
            type=click.Choice(["sqrt", "linear"]),
            default="sqrt",
            show_default=True,
            help="Scores over √d or d.",
        ),
        click.option("--mask", type=click.Choice(["causal"]), help="A causal mask: tokens see themselves and earlier."),
        click.option("--infinite-heads", is_flag=True, help="Infinitely many heads, in the limit of infinite width."),
        *(
            click.option(
                f"--sigma-{k}",
                type=SIGMA if k in "qk" else ABOVE,
                default=1.0,
                show_default=True,
                help=f"Standard deviation of {what}.",
            )
            for k, what in SIGMAS
        ),
    ]
    return _all(options)


def sampling_options(command: Decorated) -> Decorated:
    """The options of sampling and of output."""
    options = [
        click.option(
            "--draws", type=DRAWS, default=100_000, show_default=True, help="Independent draws of the network."
        ),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option("--plot", metavar="FILE", help="Draw the densities into a .png, .pdf or .svg file."),
    ]
    return _all(options)(command)


def _all(options: list[Callable[[Any], Any]]) -> Callable[[Decorated], Decorated]:
    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
