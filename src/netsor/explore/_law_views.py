"""Views of laws: the law at chosen widths, beside its limit and a Gaussian.

The program is one layer of the paper, or the user's own.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from .._array_api import Floats
from ..engine import ExactError, NoLimitError, Plan
from ..engine.plan._draw_cost import Draw
from ..language import inf
from ..laws import HeadSum, Law, kl
from ..models.measure._metric_program import ProgramModel
from ..paper import layer
from ..programs._named_program import NamedProgram
from ..programs._program import Program
from ..runtime._memory import memory
from ..runtime._parallel import cores
from ..runtime._units import in_bytes
from ._audit_view import AuditViewRequest
from ._view import MAX_SECONDS, Curve, Panel, Rows, View

DENSITY_POINTS = 241  # of each curve
# a density is drawn over so many standard deviations to each side of the mean
DENSITY_STDS = 4.5
# numbers of draws; the page takes the largest that needs at most QUICK seconds
DRAWS = (5_000, 2_000, 1_000, 500, 200)
# seconds on one core that draws may take while a slider is moved
QUICK = 0.2
# seconds that even the fewest draws may take
SLOW = 3.0
# values of the sliders of a layer
WIDTHS = (*(2**k for k in range(2, 17)), inf)
HEAD_DIMS = (None, *(2**k for k in range(2, 13)), inf)  # None: the width
CLIPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
# excess kurtosis below which the law is Gaussian for most purposes
GAUSSIAN_KURTOSIS = 0.01
IMPORTS = ["import matplotlib.pyplot as plt", "import netsor as ns", ""]


class Named(NamedTuple):
    """A law that the page shows."""

    name: str  # in the code, and the look of its curve: "law", "limit" or "gaussian"
    label: str
    law: Law
    source: str  # the Python that makes it


@functools.lru_cache(maxsize=64)
def _law(net: Program, draws: int, widths: tuple[tuple[str, float], ...]) -> Law:
    """The law at these widths; a limit is kept while you move the width slider."""
    return cast(Law, net.law(draws=draws, progress=False, **dict(widths)))  # type: ignore[arg-type]


def _widths_of_laws(widths: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """The widths of "law", of its "limit", or of both, if they are different laws."""
    at_infinity = dict.fromkeys(widths, inf)
    if not widths:
        return {"law": widths}
    if widths == at_infinity:
        return {"limit": at_infinity}
    return {"law": widths, "limit": at_infinity}


def law_view(
    net: Program, widths: Mapping[str, float], wanted: int | None, lines: list[str]
) -> View:
    """The law at these widths, its limit and a Gaussian; `lines` of Python make the
    program, and `wanted` is the number of draws if the user chose one.

    A program without widths has no limit beside its law, and at infinite width the law
    is the limit.
    """
    at_infinity = dict.fromkeys(widths, inf)
    widths_of = _widths_of_laws(widths)
    plans = [net.plan(**widths)]  # type: ignore[arg-type]
    notes = []
    if len(widths_of) == 2:
        try:
            plans.append(net.plan(**at_infinity))  # type: ignore[arg-type]
        except (NoLimitError, ExactError) as error:
            del widths_of["limit"]
            notes.append(f"no limit to compare with: {error}")
    draws, note = afford(plans, wanted)
    if note:
        notes.insert(0, note)
    laws: list[Named] = []
    for name, sizes in widths_of.items():
        law = _law(net, draws, tuple(sizes.items()))
        if laws and not law._has_density:
            notes.append(f"in the limit it is always {law.mean():g}")
        else:
            laws.append(_named(name, law, widths=sizes, draws=draws))
    gaussian, gaussian_note = _gaussian(laws[-1])
    laws.append(gaussian)
    if gaussian_note:
        notes.append(gaussian_note)
    for named in laws:
        notes += named.law.notes
    return View(
        panels=_panels(laws),
        rows=_rows(laws),
        code=_code(laws, lines),
        notes=tuple(dict.fromkeys(notes)),  # each once
        plan=str(plans[0]),
        more=functools.partial(_distances, laws),
    )


def _distances(laws: list[Named]) -> Rows:
    """KL from each law to the next: from the width to its limit, and from the limit to
    a Gaussian.
    """
    rows: Rows = {}
    for law, following in itertools.pairwise(laws):
        divergence = kl(law.law, following.law)
        rows[f"KL to {following.label}"] = {law.label: divergence}
    return rows


def _named(name: str, law: Law, widths: Mapping[str, float], draws: int) -> Named:
    """The law at these widths, with its label and its source."""
    label = "the limit"
    if name != "limit":
        sizes = [f"{width} = {text(size)}" for width, size in widths.items()]
        label = ", ".join(sizes) or "the law"
    arguments = [f"{width}={width_code(size)}" for width, size in widths.items()]
    arguments.append(f"draws={draws:_}")
    return Named(name, label, law, source=f"net.law({', '.join(arguments)})")


def _gaussian(last: Named) -> tuple[Named, str]:
    """The Gaussian that the last law is compared with, and a note, "" for none: that of
    infinitely many heads, or for other networks the one of the same variance.
    """
    law = last.law
    if not isinstance(law, HeadSum):
        label = "the Gaussian of its variance"
        source = f"{last.name}.gaussian()"
        return Named(
            name="gaussian", label=label, law=law.gaussian(), source=source
        ), ""
    gaussian = Named(
        name="gaussian",
        label="infinitely many heads",
        law=law.infinite_heads(),
        source="limit.infinite_heads()",
    )
    # the excess kurtosis of the limit with H heads is 1/H of that with one head
    enough = math.floor(law.kurtosis() * law.heads / GAUSSIAN_KURTOSIS) + 1
    return gaussian, (
        "In the limit the excess kurtosis falls like 1/heads: it is below"
        f" {GAUSSIAN_KURTOSIS:g} from {enough:,} heads on."
    )


def _code(laws: list[Named], lines: list[str]) -> str:
    """Python that computes what the page shows; `lines` make the program."""
    code = list(lines)
    for named in laws:
        code.append(f"{named.name} = {named.source}")
    kurtoses = [f"{named.name}.with_error.kurtosis()" for named in laws[:-1]]
    code.append(f"print({', '.join(kurtoses)})")
    distances = []
    for law, following in itertools.pairwise(laws):
        distances.append(f"ns.kl({law.name}, {following.name})")
    code.append(f"print({', '.join(distances)})")
    drawn = [*laws[:-2], laws[-1], laws[-2]]  # the limit on top
    names = ", ".join(named.name for named in drawn)
    labels = [named.label for named in drawn]
    code.append(f"ns.plot({names}, labels={labels})")
    code.append("plt.savefig('laws.png')")
    return "\n".join(code)


def _rows(laws: list[Named]) -> Rows:
    """The numbers of each law, {number: {law: value}}; means only if one is not 0."""
    rows: Rows = {"mean": {}, "variance": {}, "excess kurtosis": {}}
    for name, label, law, _ in laws:
        statistics = law.with_error
        rows["mean"][label] = statistics.mean()
        rows["variance"][label] = statistics.var()
        kurtosis = "0" if name == "gaussian" else statistics.kurtosis()
        rows["excess kurtosis"][label] = kurtosis
        for point, mass in law.atoms[:3]:
            rows.setdefault(f"P(y = {point:.4g})", {})[label] = mass
    if not any(rows["mean"].values()):
        del rows["mean"]
    rows["status"] = {named.label: named.law.status for named in laws}
    return rows


def afford(plans: list[Plan], wanted: int | None) -> tuple[int, str]:
    """How many draws to take for these plans, and a note if that is fewer than usual.

    The number that the user wants is taken if it fits.
    """

    def seconds(draws: int) -> float:
        """The time of this many draws of all plans."""
        return sum(plan.probing_seconds + plan.seconds(draws) for plan in plans)

    if wanted is not None:
        draws = wanted
        limit = MAX_SECONDS
    else:
        quick = [draws for draws in DRAWS if seconds(draws) <= QUICK]
        draws = quick[0] if quick else DRAWS[-1]  # DRAWS falls
        limit = SLOW
    blocks = [Draw.of(plan).block_bytes(draws) for plan in plans]
    most_bytes = cores() * max(blocks, default=0.0)
    if most_bytes > memory() / 2:
        raise ValueError(
            f"{draws:,} draws would need {in_bytes(most_bytes)} of memory: choose"
            " smaller numbers on the sliders"
        )
    if seconds(draws) > limit:
        raise ValueError(
            f"{draws:,} draws would take about {seconds(draws):.0f} s, too long for a"
            " page: choose smaller widths, or fewer tokens, heads or draws; the library"
            " itself has no such limit"
        )
    if wanted is not None or draws == DRAWS[0]:
        return draws, ""
    return draws, f"{draws:,} draws, to stay quick"


def _panels(laws: list[Named]) -> tuple[Panel, ...]:
    """The densities, and their differences from that of the limit, or else of the
    Gaussian.
    """
    y = _density_points(laws)
    curves = [_density(named, y) for named in laws]
    base = curves[-1]
    for curve in curves:
        if curve.look == "limit":
            base = curve
    density = Panel(
        title="density",
        across="output coordinate y",
        unit="density, logarithmic",
        curves=tuple(curves),
        log=True,  # which shows the tails
    )
    difference = Panel(
        title=f"difference from {base.label}",
        across="output coordinate y",
        unit="difference",
        curves=tuple(_minus(curve, base.y) for curve in curves),
        share=0.5,
        legend=False,
    )
    return density, difference


def _density_points(laws: list[Named]) -> Floats:
    """Where densities are drawn, around the mean of the first law."""
    first_law = laws[0].law
    centre = first_law.mean()
    reach = DENSITY_STDS * max(named.law.std() for named in laws)
    if not math.isfinite(centre + reach):
        raise ValueError(
            "the numbers leave double precision: choose less extreme values"
        )
    if not first_law._has_density:
        points = ", ".join(f"{point:g}" for point, _ in first_law.atoms[:3])
        raise ValueError(
            f"the output is always {points}: its law has no density to show"
        )
    return np.linspace(centre - reach, centre + reach, DENSITY_POINTS)


def _density(named: Named, y: Floats) -> Curve:
    """The density of a law at these points, with a band of one standard error."""
    value, error = named.law.with_error.pdf(y)
    value = np.asarray(value, dtype=np.float64)
    error = np.asarray(error, dtype=np.float64)
    band: tuple[Floats, ...] = ()
    if error.any() and np.isfinite(error).all():
        band = (value - error, value + error)
    return Curve(label=named.label, look=named.name, x=y, y=value, band=band)


def _minus(curve: Curve, y: Floats) -> Curve:
    """The difference of a curve from other numbers."""
    band = tuple(edge - y for edge in curve.band)
    return curve._replace(y=curve.y - y, band=band)


def text(width: float) -> str:
    """A width as text on the page."""
    return "∞" if width == inf else f"{width:,}"


def width_code(width: float) -> str:
    """A width as Python."""
    return "ns.inf" if width == inf else f"{width:_}"


# the same program for the same arguments, so its laws are kept
_layer = functools.lru_cache(maxsize=64)(layer)


def layer_view(
    width: float = 256,
    head_dim: float | None = None,
    draws: int | None = None,
    **options: Any,
) -> View:
    """The view of one layer of the paper, with other arguments of `ns.paper.layer`."""
    if head_dim is not None and head_dim > width:
        raise ValueError(
            f"head dimension {text(head_dim)} must be at most the width {text(width)}"
        )
    parameters = inspect.signature(layer).parameters
    arguments: dict[str, Any] = {}
    for name in ("tokens", "heads"):  # they are always in the code
        arguments[name] = options.pop(name, parameters[name].default)
    for name, value in options.items():
        if value != parameters[name].default:
            arguments[name] = value
    widths = {"n": width}
    if head_dim is not None:
        arguments["low_rank"] = True
        widths["d"] = head_dim
    lines = [*IMPORTS, f"net = ns.paper.layer({_call_arguments(arguments)})"]
    return law_view(_layer(**arguments), widths, wanted=draws, lines=lines)


class Slider(NamedTuple):
    """The slider of a numeric argument."""

    name: str
    start: float
    low: float
    high: float
    step: float


def sliders(target: NamedProgram) -> list[Slider]:
    """A slider for each numeric argument of the function, around its value."""
    parameters: Mapping[str, inspect.Parameter] = {}
    if target.is_function:
        try:
            parameters = inspect.signature(target.value).parameters
        except ValueError:  # of a function written in C, for example
            return []
    numeric = []
    for name, parameter in parameters.items():
        value = target.arguments.get(name, parameter.default)
        by_name = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if parameter.kind not in by_name:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            numeric.append(_slider(name, value))
    return numeric


def _slider(name: str, value: float) -> Slider:
    """A slider up to four times the value in size: from 1 or 0 on if it is positive, to
    both sides of 0 if it is negative.
    """
    if isinstance(value, int):
        least = 1 if value > 0 else 4 * value
        most = max(4 * value, 8)
        return Slider(name=name, start=value, low=least, high=most, step=1)
    size = abs(value) if value else 1.0
    low = 0.0 if value >= 0 else -4 * size
    return Slider(name=name, start=value, low=low, high=4 * size, step=size / 20)


def program_view(
    target: NamedProgram,
    arguments: Mapping[str, Any],
    widths: Mapping[str, float],
    output: int = 0,
    draws: int | None = None,
) -> View:
    """The view of one output of a program, or of the part FILE:PROGRAM[i]."""
    net = target.program(**arguments)
    part = net if target.part is None else net[target.part]
    # all entries of all outputs, in order: the number of the output, and the index in
    # it
    entries = []
    for number, value in enumerate(part.outputs):
        entries += [(number, index) for index in np.ndindex(value.shape)]
    if not 0 <= output < len(entries):
        raise ValueError(
            f"output {output} does not exist: the program has {len(entries)} outputs,"
            " counted from 0"
        )
    number, index = entries[output]
    keys: list[Any] = []  # of `net`, one after the other, to that entry
    if target.part is not None:
        keys.append(target.part)
    if isinstance(part.output, tuple):
        keys.append(number)
    if index:
        keys.append(index)
    entry = net
    brackets = ""  # the keys in Python, as "[0][1, 2]"
    for key in keys:
        entry = entry[key]
        brackets += f"[{str(key).strip('(,)')}]"
    return law_view(
        entry, widths, wanted=draws, lines=_lines(target, arguments, brackets)
    )


def program_audit(
    target: NamedProgram,
    arguments: Mapping[str, Any],
    widths: Mapping[str, float],
    sharp: bool = False,
) -> AuditViewRequest:
    """The audit of the probes of a program, block by block."""
    for name, width in widths.items():
        if width == inf:
            raise ValueError(
                f"width {name} is ∞: an audit needs finite widths; move its slider to"
                " the left"
            )
    model = ProgramModel(target.program(**arguments), widths)
    sizes = [f"{name}={width_code(width)}" for name, width in widths.items()]
    lines = _lines(target, arguments)
    return AuditViewRequest(
        models=(model,), lines=tuple(lines), arguments=("net", *sizes), sharp=sharp
    )


def _lines(
    target: NamedProgram, arguments: Mapping[str, Any], brackets: str = ""
) -> list[str]:
    """Python that builds the program, or the part of it that the brackets select."""
    lines = [f"from {target.module} import {target.name}"]
    if target.module.endswith(".py"):
        path = Path(target.module).resolve()
        lines = [
            "import runpy",
            "import sys",
            "",
            f"sys.path.insert(0, {str(path.parent)!r})",
            f"{target.name} = runpy.run_path({str(path)!r})[{target.name!r}]",
        ]
    call = ""
    if target.is_function:
        call = f"({_call_arguments({**target.arguments, **arguments})})"
    return [*lines, *IMPORTS, f"net = {target.name}{call}{brackets}"]


def _call_arguments(values: Mapping[str, Any]) -> str:
    """Keyword arguments as Python."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
