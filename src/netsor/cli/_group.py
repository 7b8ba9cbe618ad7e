"""The group of commands; each file of a command adds its own."""

from __future__ import annotations

import click

from .. import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """The laws of wide neural networks with attention."""
