"""Where a command samples: the options of backends, devices and clusters, for every command that samples.

@where_options
def command(..., **options):
    where = chosen(options)                 # takes its own options out of the others, joins a Dask cluster by address
    ...                                     # check the other options
    with sampling(where) as how:            # starts a Dask cluster, with --dask local
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

from .._validate import shown

if TYPE_CHECKING:
    from ..engine.backends import Backend

Command = TypeVar("Command", bound=Callable[..., Any])
BACKENDS = ("numpy", "jax", "torch")
PRECISIONS = ("float64", "float32")
OPTIONS = ("backend", "device", "precision")
ADDRESS = re.compile(r"(?:(?:tcp|tls|ucx|ws|wss)://)?(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+):(?P<port>[0-9]{1,5})")
NO_SCHEDULER = "must be local or the address of a scheduler that runs, tcp://HOST:PORT"


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
class BackendChoice:
    """An available backend, and a Dask cluster: a client of one that runs, or whether to start one."""

    backend: Backend
    client: Any = None
    local: bool = False


def pop_backend(options: dict[str, Any], auto: bool = False) -> BackendChoice:
    """Take these options out of `options`; refuse before any work what is not installed, or does not answer."""
    from ..engine.backends import choose

    address = options.pop("dask")
    backend, device, precision = (options.pop(name) for name in OPTIONS)
    found = choose(backend, device, precision, _precisions(auto))
    if address is None:
        return BackendChoice(found)
    match = ADDRESS.fullmatch(address)
    if address != "local" and (match is None or not 0 < int(match["port"]) < 2**16):
        raise click.UsageError(f"--dask {shown(address)} {NO_SCHEDULER}")
    if importlib.util.find_spec("distributed") is None:
        raise click.UsageError(f"--dask {shown(address)} needs Dask: pip install distributed")
    return BackendChoice(found, local=True) if address == "local" else BackendChoice(found, _joined(address))


def _joined(address: str) -> Any:
    """A client of the scheduler at this address, until the command ends."""
    import distributed  # seldom needed, and slow to import

    try:
        client = distributed.Client(address, timeout="10s")
    except Exception as error:  # its comms raise errors of their own, and those of the libraries under them
        raise click.UsageError(f"--dask {shown(address)} {NO_SCHEDULER}: {error}") from None
    return click.get_current_context().with_resource(client)


def pop_plan_backend(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `Program.plan`, taken out of `options`: a device that is named need not be here."""
    from ..engine.backends import prices

    place = {name: options.pop(name) for name in ("backend", "device")}
    prices(**place)
    return place


@contextmanager
def executor_context(where: BackendChoice, workers: int | None = None) -> Iterator[dict[str, Any]]:
    """Arguments for `Program.law`; a local cluster runs while the context is open, so open it after all checks."""
    if where.client is not None:
        yield {"backend": where.backend, "executor": where.client.get_executor()}
        return
    if not where.local:
        yield {"backend": where.backend}
        return
    import distributed

    from ..engine._parallel import cores

    made = distributed.LocalCluster(
        n_workers=workers or cores(), threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    )
    with made, distributed.Client(made) as client:
        yield {"backend": where.backend, "executor": client.get_executor()}
