"""Options that several commands have: of the built-in layer or a program of one's own, and of sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ._numbers import ABOVE, DRAWS, PLACE, POSITIVE, SEED, SIGMA, WIDTH

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
