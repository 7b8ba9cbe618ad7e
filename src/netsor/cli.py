"""The command line: a thin skin over the library.

Bad input ends in one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from . import Program, __version__
from .language._check import NO_LIMIT
from .laws import Estimate, HeadSum, Law, distances
from .paper import ACTIVATIONS, layer


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="netsor")
def cli() -> None:
    """The laws of wide neural networks with attention."""


@cli.command("check")
@click.argument("program", metavar="MODULE:PROGRAM")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(program: str, as_json: bool) -> None:
    """The verdict on Assumption 3.1: is the limit of a program proved?

    MODULE is a module's name or the path of a .py file; PROGRAM a program in it, or a function that returns one and
    needs no arguments. Exit code 1 if the program has no limit.
    """
    report = load(program).check()
    if as_json:
        points = [{"name": p.name, "verdict": p.verdict, "findings": list(p.findings)} for p in report.points]
        click.echo(json.dumps({"program": report.program, "verdict": report.verdict, "points": points}))
    else:
        click.echo(str(report))
    if report.verdict == NO_LIMIT:
        raise SystemExit(1)


Command = TypeVar("Command", bound=Callable[..., Any])


class _Number(click.ParamType):  # type: ignore[type-arg]
    """A number with bounds, whose error says what is allowed."""

    def __init__(self, allowed: str, accept: Callable[[float], bool], whole: bool = False, inf: bool = False) -> None:
        self.name, self.allowed, self.accept, self.whole, self.inf = allowed, allowed, accept, whole, inf

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number, or an error in one line."""
        if self.inf and str(value).lower() in ("inf", "infinity", "∞"):
            return math.inf
        try:
            number = int(str(value)) if self.whole else float(value)
            fine = math.isfinite(number) and self.accept(number)
        except ValueError:
            fine = False
        if not fine:
            self.fail(f"{value!r} must be {self.allowed}", param, ctx)
        return number


POSITIVE = _Number("a positive integer", lambda v: v >= 1, whole=True)
WIDTH = _Number("a positive integer or inf", lambda v: v >= 1, whole=True, inf=True)
SEED = _Number("an integer, 0 or more", lambda v: v >= 0, whole=True)
DRAWS = _Number("an integer, 100 or more", lambda v: v >= 100, whole=True)
SIGMA = _Number("a finite number, 0 or more", lambda v: v >= 0)
ABOVE = _Number("a finite number above 0", lambda v: v > 0)
POINT = _Number("a finite number", lambda v: True)

MANY = "infinitely many heads"


def model_options(command: Command) -> Command:
    """The options of the model, and of how to look at its law."""
    options = [
        click.option("--heads", type=POSITIVE, default=2, show_default=True, help="Attention heads, H."),
        click.option("--tokens", type=POSITIVE, default=4, show_default=True, help="Tokens, s."),
        click.option("--head-dim", type=WIDTH, help="Head dimension, an integer or inf.  [default: the width]"),
        click.option(
            "--activation",
            type=click.Choice(sorted(ACTIVATIONS)),
            default="clip",
            show_default=True,
            help="φ in x = φ(W h).",
        ),
        click.option(
            "--clip", type=ABOVE, default=100.0, show_default=True, help="Where the clip activation cuts off."
        ),
        click.option(
            "--scaling",
            type=click.Choice(["sqrt", "linear"]),
            default="sqrt",
            show_default=True,
            help="Scores over √d or d.",
        ),
        click.option("--infinite-heads", is_flag=True, help="Infinitely many heads (infinite width only)."),
        *(
            click.option(
                f"--sigma-{k}",
                type=SIGMA if k in "qk" else ABOVE,
                default=1.0,
                show_default=True,
                help=f"Standard deviation of {what}.",
            )
            for k, what in (("q", "W^Q"), ("k", "W^K"), ("v", "W^V"), ("o", "W^O"), ("w", "the tokens' W"))
        ),
        click.option("--draws", type=DRAWS, default=100_000, show_default=True, help="Replicas."),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option(
            "--plot", type=click.Path(dir_okay=False), help="Draw the densities into a .png, .pdf or .svg file."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _law(model: dict[str, Any], width: float, head_dim: float | None, heads: bool, draws: int, seed: int) -> Law:
    """The law of the model at these widths; of infinitely many heads if asked for."""
    net = layer(**model, low_rank=head_dim is not None)
    if heads:
        if width < math.inf or (head_dim or math.inf) < math.inf:
            raise click.UsageError(f"--infinite-heads needs --width inf (and --head-dim inf), got --width {width}")
        limit: Law = layer(**model).law(n=math.inf, progress=False)
        return limit.infinite_heads() if isinstance(limit, HeadSum) else limit  # 1/n scaling is Gaussian already
    if head_dim is not None and head_dim > width:
        raise click.UsageError(f"--head-dim {head_dim} must be at most --width {width}")
    widths = {"n": width} if head_dim is None else {"n": width, "d": head_dim}
    law: Law = net.law(draws=draws, seed=seed, **widths)  # type: ignore[arg-type]
    return law


@cli.command("law")
@click.option("--width", type=WIDTH, default="inf", show_default=True, help="Width n, an integer or inf.")
@model_options
@click.option("--at", type=POINT, multiple=True, help="A point for the density; may be given again.")
def law_command(
    width: float, head_dim: float | None, infinite_heads: bool, draws: int, seed: int, as_json: bool, plot: str | None,
    at: tuple[float, ...], **model: Any,
) -> None:  # fmt: skip
    """The law of one output coordinate of the attention layer."""
    _check_plot(plot)
    law = _law(model, width, head_dim, infinite_heads, draws, seed)
    pdf, cdf = law.with_error.pdf(list(at) or [0.0]), law.with_error.cdf(list(at) or [0.0])
    points = {
        name: [{"y": y, "value": float(v), "error": float(e)} for y, v, e in zip(at, *found, strict=False)]
        for name, found in (("pdf", pdf), ("cdf", cdf))
    }
    variance, kurtosis = law.with_error.var(), law.with_error.kurtosis()
    if plot:
        _plot(plot, {MANY if infinite_heads else f"width {width}": law})
    if as_json:
        click.echo(
            json.dumps(
                {
                    "variance": float(variance.value),
                    "variance_error": float(variance.error),
                    "excess_kurtosis": float(kurtosis.value),
                    "excess_kurtosis_error": float(kurtosis.error),
                    **points,
                    "method": law.method,
                    "status": law.status,
                    "random_numbers": law.random_numbers,
                }
            )
        )
        return
    click.echo(f"{law.method} ({law.status}; {law.random_numbers} random numbers a replica)")
    for note in law.notes:
        click.echo(f"note: {note}")
    click.echo(f"variance         {variance}")
    click.echo(f"excess kurtosis  {kurtosis}")
    for i, y in enumerate(at):
        click.echo(f"y = {y:<10g} pdf {Estimate(pdf.value[i], pdf.error[i])}   "
                   f"cdf {Estimate(cdf.value[i], cdf.error[i])}")  # fmt: skip


@cli.command("compare")
@click.option("--width", type=WIDTH, default=256, show_default=True, help="Width n, an integer.")
@model_options
@click.option("--keep-head-dim", is_flag=True, help="Keep the head dimension on the infinite side.")
def compare_command(
    width: float, head_dim: float | None, infinite_heads: bool, draws: int, seed: int, as_json: bool, plot: str | None,
    keep_head_dim: bool, **model: Any,
) -> None:  # fmt: skip
    """Width N against width ∞: KL, total variation, Wasserstein-1, Kolmogorov, each with an error."""
    _check_plot(plot)
    if width == math.inf and not infinite_heads:
        raise click.UsageError("--width inf is what it is compared with; --width must be a positive integer")
    finite = _law(model, width, head_dim, False, draws, seed)
    other = head_dim if keep_head_dim else None if head_dim is None else math.inf
    limit = _law(model, math.inf, other, infinite_heads, draws, seed)
    found = distances(finite, limit)
    if plot:
        _plot(plot, {f"width {width}": finite, MANY if infinite_heads else "width ∞": limit})
    if as_json:
        rows = {name: {"value": e.value, "error": e.error} for name, e in found.items()}
        click.echo(json.dumps({**rows, "method": [finite.method, limit.method], "status": limit.status}))
        return
    click.echo(f"{finite.method} against {limit.method} ({limit.status})")
    for name, estimate in found.items():
        click.echo(f"{name.replace('_', ' '):16} {estimate}")


@cli.command("reproduce")
@click.argument("figures", metavar="[FIGURE]...", nargs=-1)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="results",
    show_default=True,
    help="The folder for figures, data and the report.",
)
@click.option("--samples", type=DRAWS, help="Draws of a trial.  [default: 50000, and 100000 for ReLU]")
@click.option("--trials", type=POSITIVE, help="Trials.  [default: 10]")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--workers", type=POSITIVE, help="Worker processes.  [default: all cores]")
@click.option("--quick", is_flag=True, help="A first look: 2 trials of 2500 draws.")
@click.option(
    "--estimator",
    type=click.Choice(["paper", "exact", "both"]),
    default="both",
    show_default=True,
    help="Kernel estimates as in the paper, the exact conditional densities, or both.",
)
@click.option("--tokens", type=POSITIVE, default=16, show_default=True, help="The larger number of tokens of figure 4.")
def reproduce_command(figures: tuple[str, ...], **options: Any) -> None:
    """The paper's figures, their data, and a report on its claims.

    FIGURE is any of 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b heads; 1 to 5 for both panels; exp1 to exp4 as the paper's public
    code numbers its experiments; or all, the default. A run that was interrupted goes on where it stopped.
    """
    from concurrent.futures.process import BrokenProcessPool

    from .paper._reproduce import Options, reproduce

    try:
        chosen = Options(figures, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out {str(chosen.out)!r} must be a folder that can be written to: {error}") from None
    try:
        done = reproduce(chosen)
    except KeyboardInterrupt:
        click.echo("netsor: interrupted; finished trials are kept, and the same command goes on from there", err=True)
        raise SystemExit(130) from None
    except BrokenProcessPool:
        died = "a worker was killed, for want of memory perhaps: fewer --workers or --samples need less"
        click.echo(f"netsor: {died}; finished trials are kept, and the same command goes on from there", err=True)
        raise SystemExit(1) from None
    except MemoryError:
        raise click.UsageError(f"--samples {chosen.samples} need more memory than there is") from None
    except (OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"report: {done.report}")
    for line in done.summary:
        click.echo(line)


def _check_plot(plot: str | None) -> None:
    """Refuse a bad file before any work is done."""
    if plot is not None:
        path = Path(plot)
        if path.suffix not in (".png", ".pdf", ".svg"):
            raise click.UsageError(f"--plot {plot!r} must end in .png, .pdf or .svg")
        if not path.parent.is_dir():
            raise click.UsageError(f"--plot {plot!r} must be in a folder that exists")


def _plot(plot: str, laws: dict[str, Law]) -> None:
    """The densities, in the style of the paper's figures."""
    import matplotlib as mpl

    from ._style import BLACK, BLUE, DOTTED, STYLE, VERMILLION, new, rendered
    from .paper._store import write

    reach = max(law.std() for law in laws.values()) * 4
    y = np.linspace(-reach, reach, 401)
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = new()
        axes = figure.subplots()
        for name, law in laws.items():
            line, colour, thick = (DOTTED, VERMILLION, 1.8) if name[-1].isdigit() else ("-", BLUE, 1.2)
            axes.plot(y, law.pdf(y), linestyle=line, color=BLACK if name == MANY else colour, lw=thick, label=name)
        axes.set(xlabel="output coordinate y", ylabel="density", xlim=(-reach, reach), ylim=(0, None))
        axes.legend(loc="upper left", bbox_to_anchor=(0.62, 1.0))
        write(Path(plot), rendered(figure, Path(plot).suffix[1:])[0])
    click.echo(f"wrote {plot}", err=True)


def load(target: str) -> Program:
    """The program that MODULE:PROGRAM names."""
    module_name, _, attribute = target.rpartition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"MODULE:PROGRAM {target!r} must be a module (or .py file), a colon and a name")
    try:
        module = _module(module_name)
    except Exception as error:
        raise click.UsageError(f"MODULE {module_name!r} cannot be imported: {error}") from None
    found: Any = getattr(module, attribute, None)
    if found is None:
        raise click.UsageError(f"PROGRAM {attribute!r} is not in {module_name!r}")
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise click.UsageError(f"PROGRAM {target!r} cannot be built: {error}") from None
    if not isinstance(found, Program):
        raise click.UsageError(f"PROGRAM {target!r} must be a program (see ns.program), got {type(found).__name__}")
    return found


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does
        return importlib.import_module(name)
    path = Path(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """The entry point: click's errors in one line, with exit code 2."""
    try:
        code = cli(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        click.echo(f"netsor: {' '.join(error.format_message().split())}", err=True)
        code = 2
    except click.Abort:
        click.echo("netsor: interrupted", err=True)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
