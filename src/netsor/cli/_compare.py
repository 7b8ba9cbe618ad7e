"""netsor compare: a finite width against the limit."""

from __future__ import annotations

from typing import Any

import click

from ._group import cli
from ._options import sampling_options, subject_options
from ._output import MANY, apart, check_plot, draw, echo_json, error_of, finite, say
from ._where import chosen, sampling, where_options


@cli.command("compare")
@subject_options(width="256")
@sampling_options
@where_options
@click.option("--keep-head-dim", is_flag=True, help="Keep the head dimension on the infinite side.")
def compare_command(
    draws: int,
    seed: int,
    as_json: bool,
    plot: str | None,
    keep_head_dim: bool,
    infinite_heads: bool,
    **options: Any,
) -> None:
    """Width N against width ∞: KL, total variation, Wasserstein-1, Kolmogorov, each with an error.

    Of a program of one's own, FILE:PROGRAM, the widths that --bind gives against all widths at ∞. FILE is run.
    """
    from ..laws import distances
    from ._cost import announce
    from ._subject import subject

    check_plot(plot)
    where = chosen(options)
    if keep_head_dim and options["head_dim"] is None:
        raise click.UsageError("--keep-head-dim needs --head-dim D, the head dimension of the built-in layer to keep")
    if keep_head_dim and infinite_heads:
        raise click.UsageError(
            "--keep-head-dim and --infinite-heads exclude each other: the latter takes d to infinity"
        )
    with apart(as_json):
        asked = subject({**options, "infinite_heads": infinite_heads}, draws, both=True, backend=where.backend)
        limit = asked.limit(keep=("d",) if keep_head_dim else ())
        with sampling(where) as how:
            announce(asked.seconds)
            laws = (
                asked.law(draws, seed, **how),
                limit.infinite_heads() if infinite_heads else limit.law(draws, seed, **how),
            )
        found = distances(*laws)
        notes = list(dict.fromkeys(note for law in laws for note in law.notes))
        for name, distance in found.items():
            finite(name.replace("_", " "), distance.value)
        if plot:
            names = asked.label, MANY if infinite_heads else limit.label
            draw(plot, dict(zip(names, laws, strict=True)))
    if as_json:
        rows = {name: {"value": e.value, "error": error_of(e.error)} for name, e in found.items()}
        echo_json({**rows, "method": [law.method for law in laws], "status": laws[1].status, "notes": notes})
        return
    say(f"{laws[0].method} against {laws[1].method} ({laws[1].status})")
    for note in notes:
        say(f"note: {note}")
    for name, estimate in found.items():
        say(f"{name.replace('_', ' '):16} {estimate}")
