"""Options that several commands have: of the built-in layer or a program of one's own, and of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .. import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """The laws of wide neural networks with attention."""


MAX_EXACT_INT = 2**53  # above it not every integer is a double
INFINITE = ("inf", "infinity", "∞")


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number with bounds, whose error says what is allowed."""

    def __init__(self, allowed: str, accept: Callable[[Any], bool], whole: bool = False, inf: bool = False) -> None:
        self.allowed, self.accept, self.whole, self.inf = allowed, accept, whole, inf
        self.name = "integer|inf" if inf else "integer" if whole else "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number, or an error in one line."""
        if self.inf and str(value).lower() in INFINITE:
            return math.inf
        try:
            number = int(str(value)) if self.whole else float(value)
            fine = (self.whole or math.isfinite(number)) and self.accept(number)
        except ValueError:
            fine = False
        if not fine:
            self.fail(f"{shown(value)} must be {self.allowed}", param, ctx)
        return number


def shown(value: object) -> str:
    """A value as it was given, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}"


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


def _between(least: int, most: int) -> Callable[[int], bool]:
    return lambda v: least <= v < most


POSITIVE = Number("a positive integer (below 2^53)", _between(1, MAX_EXACT_INT), whole=True)
WIDTH = Number("a positive integer or inf (below 2^53)", _between(1, MAX_EXACT_INT), whole=True, inf=True)
SEED = Number("an integer, 0 or more (below 2^128)", _between(0, 2**128), whole=True)
DRAWS = Number("an integer, 100 or more (below 2^53)", _between(100, MAX_EXACT_INT), whole=True)
MIN_DRAWS = Number("an integer, 15 or more (below 2^53): fewer decide no rule", _between(15, MAX_EXACT_INT), whole=True)
WORKERS = Number("a positive integer (at most 1024)", _between(1, 1025), whole=True)
TRIALS = Number("a positive integer (at most 10000)", _between(1, 10_001), whole=True)
# a variance has up to six of these as factors and a kurtosis twelve: 1e±96, within double precision
SIGMA = Number("0 or a finite number from 1e-8 to 1e8", lambda v: v == 0 or 1e-8 <= v <= 1e8)
ABOVE = Number("a finite number from 1e-8 to 1e8", lambda v: 1e-8 <= v <= 1e8)
RATE = Number("a number, 0 or more (below 1e12)", lambda v: 0 <= v < 1e12)
PLACE = Number("an integer (below 2^53 in size)", _between(1 - MAX_EXACT_INT, MAX_EXACT_INT), whole=True)
POINT = Number("a finite number", lambda v: True)
PORT = Number("an integer from 1 to 65535, or 0 for a free one", _between(0, 65536), whole=True)


Command = TypeVar("Command", bound=Callable[..., Any])
ACTIVATIONS = ("clip", "erf", "gelu", "identity", "relu", "tanh")  # of ns.paper.layer
SIGMAS = (("q", "W^Q"), ("k", "W^K"), ("v", "W^V"), ("o", "W^O"), ("w", "the tokens' W"))


def subject_options(width: str) -> Callable[[Command], Command]:
    """The options of the built-in layer, and FILE:PROGRAM with --bind and --arg in their place."""
    options = [
        click.argument("program", metavar="[FILE:PROGRAM]", required=False),
        click.option("--bind", "binds", multiple=True, metavar="NAME=N|inf", help="A width of FILE:PROGRAM."),
        click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of its function."),
        click.option(
            "--coordinate", type=PLACE, help="A coordinate of the output, if their laws differ.  [default: 0]"
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


def sampling_options(command: Command) -> Command:
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


def _all(options: list[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
