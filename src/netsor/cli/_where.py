"""Where a command samples: the options of backends, devices and clusters, for every command that samples.

@where_options
def command(..., **options):
    where = chosen(options)                 # takes its own options out of the others, and refuses wrong ones
    ...                                     # what else may be refused
    with sampling(where) as how:            # begins a cluster, if there is to be one
        net.law(..., **how)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from ..engine._montecarlo import cores
from ..engine.backends import NAMES, PRECISIONS, Backend, choose
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


@dataclass(frozen=True)
class Where:
    """A backend that is there, and the address of a cluster, if it is to be one."""

    backend: Backend
    address: str | None


def chosen(options: dict[str, Any]) -> Where:
    """What these options say, which are taken out; refuse what is not installed, or a device that is not there."""
    address = options.pop("dask")
    try:
        backend = choose(*(options.pop(name) for name in OPTIONS))
    except ValueError as error:
        raise click.UsageError(f"--{str(error).replace('=', ' ', 1)}") from None
    if address is not None and importlib.util.find_spec("distributed") is None:
        raise click.UsageError(f"--dask {shown(address)} needs Dask: pip install 'netsor[dask]'")
    return Where(backend, address)


@contextmanager
def sampling(where: Where, workers: int | None = None) -> Iterator[dict[str, Any]]:
    """The arguments of `Program.law`; a cluster stays while this is entered, so enter it when all else is checked."""
    if where.address is None:
        yield {"backend": where.backend}
        return
    with _client(where.address, workers) as client:
        yield {"backend": where.backend, "executor": client.get_executor()}


@contextmanager
def _client(address: str, workers: int | None) -> Iterator[Any]:
    import distributed  # seldom needed, and slow to import

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
