"""Output of commands: one JSON object, or lines; and checks of plot files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import ClickException, UsageError

from .._validate import shown

if TYPE_CHECKING:
    from ..laws import Estimate, Law

LONGEST = 2000  # characters of a message: longer ones are cut in the middle
LONGEST_END = 200  # characters of their end that are kept


def strip_control_chars(text: str) -> str:
    """Text that is safe on a terminal: control characters, such as escapes in a file's
    name, are written as codes.
    """

    def safe(character: str) -> str:
        """The character, or its code, as \\x1b."""
        if character.isprintable() or character == "\n":
            return character
        is_space = unicodedata.category(character) == "Zs"
        return character if is_space else ascii(character)[1:-1]

    return "".join(map(safe, text))


def echo(text: str) -> None:
    """Lines on stdout."""
    click.echo(strip_control_chars(text))


def echo_error(text: str) -> None:
    """A message on stderr, if that is open; shortened if it is very long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - LONGEST_END]} … {text[-LONGEST_END:]}"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"netsor: {strip_control_chars(text)}", file=sys.stderr, flush=True)


def echo_notice(text: str) -> None:
    """Sentences on stderr, in lines of at most 80 columns."""
    lines = textwrap.wrap(text, 72, break_long_words=False, break_on_hyphens=False)
    indent = " " * len("netsor: ")
    echo_error(f"\n{indent}".join(lines))


def reason(error: OSError) -> str:
    """The system's reason, without the path: messages name the path as given."""
    return error.strerror or str(error) or type(error).__name__


@contextlib.contextmanager
def stdout_to_stderr(as_json: bool) -> Iterator[None]:
    """A context in which, with --json, prints go to stderr: stdout is for the JSON
    object.
    """
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = None  # a copy of the descriptor of stdout
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stdout.fileno() == 1:  # also for what compiled libraries print
            kept = os.dup(1)
            os.dup2(sys.stderr.fileno(), 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def echo_json(content: Mapping[str, Any]) -> None:
    """One JSON object; NaN and Infinity, which JSON lacks, raise an error."""
    click.echo(json.dumps(content, allow_nan=False))


def echo_either(as_json: bool, content: Mapping[str, Any], text: str) -> None:
    """The JSON object with --json, and the text without."""
    if as_json:
        echo_json(content)
    else:
        echo(text)


def echo_rows(notes: Iterable[str], estimates: Mapping[str, Estimate]) -> None:
    """Notes, and numbers by name."""
    for note in notes:
        echo(f"note: {note}")
    for name, estimate in estimates.items():
        echo(f"{name.replace('_', ' '):16} {estimate}")


def check_finite(estimates: Mapping[str, Estimate]) -> None:
    """Reject a number that is infinite or NaN, which JSON cannot hold."""
    for name, (value, _) in estimates.items():
        if not math.isfinite(value):
            raise ClickException(
                f"the {name.replace('_', ' ')} is {float(value)}: it does not exist, or"
                " is outside double precision"
            )


def finite_or_none(number: Any) -> float | None:
    """A number for JSON: None if it is infinite, or not known."""
    return float(number) if math.isfinite(number) else None


def value_and_error(estimate: Estimate) -> dict[str, float | None]:
    """An estimate for JSON."""
    return {"value": float(estimate.value), "error": finite_or_none(estimate.error)}


def check_name(option: str, path: str) -> None:
    """Reject a path that is not UTF-8: it could not be written into a report, or on a
    terminal.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} {shown(path)} must be a name in UTF-8") from None
    if not path or "\0" in path:
        required = "name a file"
        if option == "--out":
            required = "name a folder; for this one give '.'"
        elif option == "MODEL":
            required = "be the name of a model, or a file"
        raise UsageError(f"{option} {shown(path)} must {required}")


def check_plot(plot: str | None) -> None:
    """Reject a file that cannot be written before any work is done."""
    if plot is None:
        return
    check_name("--plot", plot)
    path = Path(plot)
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--plot {shown(plot)} must end in .png, .pdf or .svg")
    if path.is_dir():
        raise UsageError(f"--plot {shown(plot)} must be a file, not a folder")
    import tempfile  # slow to import

    try:
        # permissions alone do not show whether it works
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(
            f"--plot {shown(plot)} must be in a writable folder: {reason(error)}"
        ) from None


def draw(plot: str, laws: dict[str, Law]) -> None:
    """Draw the densities in the style of the paper's figures, and below those of two
    laws their difference.
    """
    from ..laws import plot as plot_laws
    from ..report._mpl_style import new, rendered, styled
    from ..runtime._files import write

    with styled():
        if len(laws) > 1:
            figure = new(3.3)
            axes = figure.subplots(2, sharex=True, height_ratios=(2.2, 1.0))
            plot_laws(*laws.values(), labels=list(laws), ax=axes)
        else:
            figure = new(2.5)
            ((label, law),) = laws.items()
            law.plot(figure.subplots(), label=label)
        content = rendered(figure, Path(plot).suffix[1:])[0]
    try:
        write(Path(plot), content)
    except OSError as error:
        raise ClickException(
            f"--plot {shown(plot)} cannot be written: {reason(error)}"
        ) from None
    with contextlib.suppress(OSError):  # nobody may read it
        click.echo(strip_control_chars(f"wrote {plot}"), err=True)
