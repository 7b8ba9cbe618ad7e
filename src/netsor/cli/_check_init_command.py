"""netsor check-init: real weights before training, against the initialisation that is declared for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .._validate import real, shown
from ._options import POSITIVE, SEED, Number, cli, integers
from ._output import check_name, echo, echo_json, stdout_to_stderr

if TYPE_CHECKING:
    from .._program import Program

FAILED = 3  # exit code, if the weights depart from what is declared
LEVEL = Number(real, above=0, most=0.5)


@cli.command("check-init")
@click.argument("model")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of its function.")
@click.option(
    "--reference",
    metavar="MODEL",
    help="What is declared: a config.json, the name of a model that ships, or FILE:FUNCTION that makes a module.  "
    "[default: the module's own config, or its own initialisation]",
)
@click.option("--weights", metavar="FILE", help="Test the weights in a .safetensors file of step 0 instead.")
@click.option(
    "--ids", metavar="I,J,…", help="The token ids of the pass, such as 3,7,7,1.  [default: 16 different ones]"
)
@click.option("--draws", type=POSITIVE, default=300, show_default=True, help="Draws of the declared law of a pass.")
@click.option("--level", type=LEVEL, default=0.001, show_default=True, help="Probability of a false alarm.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the draws, and of the module.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check_init_command(
    model: str, arguments: tuple[str, ...], reference: str | None, weights: str | None, ids: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Check the real weights of a PyTorch module before training.

    MODEL is FILE:FUNCTION, a function that returns a PyTorch module, or a class; FILE is run. Every parameter is
    tested against the declared initialisation, and one forward and backward pass against its exact law. Exit code 3 if
    they depart from it.
    """
    from ._load_program import is_target
    from ._study import usage_errors

    with stdout_to_stderr(as_json), usage_errors():
        build = _module(model, arguments)
        check_init = _torch().check_init
        declared = _module(reference, ()) if reference is not None and is_target(reference) else reference
        if weights is not None:
            check_name("--weights", weights)
        given = integers("--ids", ids, "3,7,7,1")
        found = check_init(
            build, None if given is None else list(given), reference=declared, weights=weights, **options
        )
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(str(found))
    if not found.ok:
        raise click.exceptions.Exit(FAILED)


def _module(target: str, arguments: tuple[str, ...]) -> Callable[[], Any]:
    """The function that makes a module."""
    from ._load_program import find

    build = find(target, arguments).module_factory()
    if build is None:
        raise click.UsageError(f"FILE:FUNCTION {shown(target)} must return a PyTorch module")
    return build


def network_of(target: str, module: Callable[[], Any], inputs: Mapping[str, str | None]) -> Program:
    """The program of a module, with the probes of an audit, on the ids of --ids or --tokens."""
    torch = _torch()
    ids = integers("--ids", inputs["ids"], "3,7,7,1")
    tokens = integers("--tokens", inputs["tokens"], "16") or (None,)
    if len(tokens) > 1:
        raise click.UsageError(f"--tokens {inputs['tokens']} must be one number: a module is read at one length")
    try:
        given = torch._network.inputs_of(module, None if ids is None else list(ids), tokens[0])
        return torch.network(module, given)  # type: ignore[no-any-return]
    except torch.UnsupportedError as error:
        raise click.UsageError(f"FILE:FUNCTION {shown(target)} cannot be read: {error}") from None


def _torch() -> Any:
    try:
        from .. import torch
    except ImportError as error:
        raise click.UsageError(str(error)) from None
    return torch
