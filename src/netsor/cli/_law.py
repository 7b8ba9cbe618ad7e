"""netsor law: the law of one output coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._group import cli
from ._numbers import POINT
from ._options import sampling_options, subject_options
from ._output import MANY, apart, check_plot, draw, echo_json, error_of, finite, say
from ._where import chosen, sampling, where_options

if TYPE_CHECKING:
    from ..laws import Estimate


@cli.command("law")
@subject_options(width="inf")
@sampling_options
@where_options
@click.option(
    "--at", type=POINT, multiple=True, help="A point for density and distribution function; may be given again."
)
def law_command(
    draws: int, seed: int, as_json: bool, plot: str | None, at: tuple[float, ...], infinite_heads: bool, **options: Any
) -> None:
    """The law of one output coordinate of the attention layer, or of a program of one's own.

    FILE:PROGRAM is a .py file (which is run) or module, a colon, and the name of a program in it or of a function that
    returns one; PROGRAM[i] is one of several outputs. Bind its widths, --bind n=256 --bind d=inf.
    """
    from ._cost import announce
    from ._subject import subject

    check_plot(plot)
    where = chosen(options)
    with apart(as_json):
        asked = subject({**options, "infinite_heads": infinite_heads}, draws, backend=where.backend)
        with sampling(where) as how:
            announce(asked.seconds)
            law = asked.infinite_heads() if infinite_heads else asked.law(draws, seed, **how)
        known = law.with_error
        moments = {"mean": known.mean(), "variance": known.var(), "excess kurtosis": known.kurtosis()}
        for name, found in moments.items():
            finite(name, found.value)
        points = {"pdf": [], "cdf": []} if not at else _points(law, at)
        if plot:
            draw(plot, {MANY if infinite_heads else asked.label: law})
    if as_json:
        rows = {
            name: [{"y": y, "value": e.value, "error": error_of(e.error)} for y, e in zip(at, found, strict=True)]
            for name, found in points.items()
        }
        echo_json(
            {
                "mean": float(moments["mean"].value),
                "mean_error": error_of(moments["mean"].error),
                "variance": float(moments["variance"].value),
                "variance_error": error_of(moments["variance"].error),
                "excess_kurtosis": float(moments["excess kurtosis"].value),
                "excess_kurtosis_error": error_of(moments["excess kurtosis"].error),
                **rows,
                "method": law.method,
                "status": law.status,
                "random_numbers": law.random_numbers,
                "notes": list(law.notes),
            }
        )
        return
    say(f"{law.method} ({law.status}; {law.random_numbers} random numbers a replica)")
    for note in law.notes:
        say(f"note: {note}")
    for name, found in moments.items():
        say(f"{name:16} {found}")
    for y, pdf, cdf in zip(at, points["pdf"], points["cdf"], strict=True):
        say(f"y = {y:<10g} pdf {pdf}   cdf {cdf}")


def _points(law: Any, at: tuple[float, ...]) -> dict[str, list[Estimate]]:
    """Density and distribution function at the points."""
    from ..laws import Estimate

    found = {}
    for name in ("pdf", "cdf"):
        value, error = getattr(law.with_error, name)(list(at))
        found[name] = [
            Estimate(finite(f"{name} at {y:g}", v), float(e)) for y, v, e in zip(at, value, error, strict=True)
        ]
    return found
