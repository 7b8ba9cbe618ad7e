"""Where a command samples: the options of backends, devices and clusters, for every command that samples.

@where_options
def command(..., **options):
    where = chosen(options)                 # takes its own options out of the others, and refuses wrong ones
    ...                                     # check the other options
    with sampling(where) as how:            # starts or joins a Dask cluster, with --dask
        net.law(..., **how)
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ._numbers import shown

if TYPE_CHECKING:
    from ..engine.backends import Backend

Command = TypeVar("Command", bound=Callable[..., Any])
BACKENDS = ("numpy", "jax", "torch")
PRECISIONS = ("float64", "float32")
OPTIONS = ("backend", "device", "precision")


def place_options(command: Command) -> Command:
    """--backend and --device."""
    device = click.option(
        "--device", metavar="cpu|cuda[:N]", help="Where it computes.  [default: a GPU if it sees one]"
    )
    backend = click.option(
        "--backend", type=click.Choice(BACKENDS), default="numpy", show_default=True, help="The array library."
    )
    return backend(device(command))


def where_options(command: Command, auto: bool = False) -> Command:
    """--backend, --device, --precision and --dask; with `auto` the precision is chosen, if it is not given."""
    options = [
        place_options,
        click.option(
            "--precision",
            type=click.Choice(_precisions(auto)),
            default=_precisions(auto)[0],
            show_default=True,
            help="Precision of numbers; auto is float32 where that is enough." if auto else "Precision of numbers.",
        ),
        click.option(
            "--dask",
            metavar="ADDRESS|local",
            help="A Dask cluster: the address of its scheduler, or local to start one on this machine.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _precisions(auto: bool) -> tuple[str, ...]:
    return ("auto", *PRECISIONS) if auto else PRECISIONS


@dataclass(frozen=True)
class Where:
    """An available backend, and the address of a Dask cluster, or None."""

    backend: Backend
    address: str | None


def chosen(options: dict[str, Any], auto: bool = False) -> Where:
    """Take these options out of `options`; refuse what is not installed, or a device that does not exist."""
    from ..engine.backends import choose

    address = options.pop("dask")
    backend, device, precision = (options.pop(name) for name in OPTIONS)
    with _refused():
        found = choose(backend, device, precision, _precisions(auto))
    if address is not None and importlib.util.find_spec("distributed") is None:
        raise click.UsageError(f"--dask {shown(address)} needs Dask: pip install 'netsor[dask]'")
    return Where(found, address)


def planned_for(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `Program.plan`, taken out of `options`: a device that is named need not be here."""
    from ..engine.backends import prices

    place = {name: options.pop(name) for name in ("backend", "device")}
    with _refused():
        prices(**place)
    return place


@contextmanager
def _refused() -> Iterator[None]:
    """An error of the library, with its argument as an option."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(re.sub(r"\b(backend|device|precision)=", r"--\1 ", str(error))) from None


@contextmanager
def sampling(where: Where, workers: int | None = None) -> Iterator[dict[str, Any]]:
    """Arguments for `Program.law`; a cluster runs while the context is open, so open it after all other checks."""
    if where.address is None:
        yield {"backend": where.backend}
        return
    with _client(where.address, workers) as client:
        yield {"backend": where.backend, "executor": client.get_executor()}


@contextmanager
def _client(address: str, workers: int | None) -> Iterator[Any]:
    import distributed  # seldom needed, and slow to import

    from ..engine._montecarlo import cores

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
