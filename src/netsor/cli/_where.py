"""Where a command samples: the options of backends, devices and clusters, for every command that samples.

@where_options
def command(..., **options):
    with sampling(options) as where:        # takes its own options out of the others
        net.law(..., **where)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from ..engine._montecarlo import cores
from ..engine.backends import NAMES, PRECISIONS, choose
from ._numbers import shown

Command = TypeVar("Command", bound=Callable[..., Any])
OPTIONS = ("backend", "device", "precision")


def where_options(command: Command) -> Command:
    """--backend, --device, --precision and --dask."""
    options = [
        click.option(
            "--backend", type=click.Choice(list(NAMES)), default="numpy", show_default=True, help="The array library."
        ),
        click.option("--device", metavar="cpu|cuda", help="Where it computes.  [default: a GPU if it sees one]"),
        click.option(
            "--precision", type=click.Choice(PRECISIONS), default="float64", show_default=True, help="Of its numbers."
        ),
        click.option(
            "--dask",
            metavar="ADDRESS|local",
            help="A cluster of Dask: the address of its scheduler, or one begun here.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def check_where(options: dict[str, Any]) -> None:
    """Refuse a backend that is not installed, or a device that is not there, before anything else is done."""
    try:
        choose(*(options[name] for name in OPTIONS))
    except ValueError as error:
        raise click.UsageError(f"--{str(error).replace('=', ' ', 1)}") from None


@contextmanager
def sampling(options: dict[str, Any], workers: int | None = None) -> Iterator[dict[str, Any]]:
    """The arguments of `Program.law` for these options, which are taken out; a cluster stays while this is entered."""
    check_where(options)
    address = options.pop("dask")
    where = {name: options.pop(name) for name in OPTIONS}
    if address is None:
        yield where
        return
    with _client(address, workers) as client:
        yield {**where, "executor": client.get_executor()}


@contextmanager
def _client(address: str, workers: int | None) -> Iterator[Any]:
    try:
        import distributed
    except ImportError:
        raise click.UsageError(f"--dask {address} needs Dask: pip install 'netsor[dask]'") from None
    if address == "local":
        made = distributed.LocalCluster(
            n_workers=workers or cores(), threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        )
        with made, distributed.Client(made) as client:
            yield client
        return
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"--dask {shown(address)} must be local or the address of a scheduler, tcp://HOST:PORT: {error}"
        ) from None
    with client:
        yield client
