"""Views of laws: the law at chosen widths, its limit and a Gaussian, of one layer of
the paper or of your program.
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

from .._named_program import NamedProgram
from .._program import Program
from ..engine import ExactError, NoLimitError, Plan
from ..engine._draw_cost import Draw
from ..engine._memory import in_bytes, memory
from ..engine._parallel import cores
from ..language import inf
from ..laws import HeadSum, Law, kl
from ..models._metric_program import ProgramModel
from ..paper import layer
from ._audit_view import AuditViewRequest
from ._view import MAX_SECONDS, Curve, Panel, Rows, View

DENSITY_POINTS = 241
DENSITY_STDS = 4.5  # standard deviations to each side that a density is drawn over
# numbers of draws to choose from: the largest that takes less than QUICK
DRAWS = (5_000, 2_000, 1_000, 500, 200)
QUICK = 0.2  # seconds on one core that the draws may take while a slider is moved
SLOW = 3.0  # seconds that even the fewest draws may take
# Values of sliders
WIDTHS = (*(2**k for k in range(2, 17)), inf)
HEAD_DIMS = (None, *(2**k for k in range(2, 13)), inf)  # None: the width
CLIPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
# excess kurtosis below which the law is Gaussian for most purposes
GAUSSIAN_KURTOSIS = 0.01
IMPORTS = ["import matplotlib.pyplot as plt", "import netsor as ns", ""]


class Named(NamedTuple):
    """A law: its name in the code, which is also how its curve looks; its label; and
    the Python that makes it.
    """

    name: str  # "law", "limit" or "gaussian"
    label: str
    law: Law
    source: str


@functools.lru_cache(maxsize=64)
def _law(net: Program, draws: int, widths: tuple[tuple[str, float], ...]) -> Law:
    """The law at these widths; a limit is kept while you move the width slider."""
    return cast(Law, net.law(draws=draws, progress=False, **dict(widths)))  # type: ignore[arg-type]


def law_view(
    net: Program, widths: Mapping[str, float], wanted: int | None, lines: list[str]
) -> View:
    """The law, its limit and a Gaussian; `lines` of Python make the program."""
    end = dict.fromkeys(widths, inf)
    sides: dict[str, Mapping[str, float]] = {"law": widths, "limit": end}
    if not widths or widths == end:
        del sides["law" if widths else "limit"]
    plans, notes = [net.plan(**widths)], []  # type: ignore[arg-type]
    if len(sides) == 2:
        try:
            plans.append(net.plan(**end))  # type: ignore[arg-type]
        except (NoLimitError, ExactError) as error:
            del sides["limit"]
            notes.append(f"no limit to compare with: {error}")
    draws, note = afford(plans, wanted)
    laws: list[Named] = []
    for name, at in sides.items():
        law = _law(net, draws, tuple(at.items()))
        if laws and not law._has_density:
            notes.append(f"in the limit it is always {law.mean():g}")
            continue
        label = (
            ", ".join(f"{k} = {text(width)}" for k, width in at.items()) or "the law"
        )
        sizes = "".join(f"{k}={width_code(width)}, " for k, width in at.items())
        laws.append(
            Named(
                name,
                "the limit" if name == "limit" else label,
                law,
                f"net.law({sizes}draws={draws:_})",
            )
        )
    name, _, law, _ = laws[-1]
    if isinstance(law, HeadSum):
        laws.append(
            Named(
                "gaussian",
                "infinitely many heads",
                law.infinite_heads(),
                "limit.infinite_heads()",
            )
        )
        # the excess kurtosis of the limit with H heads is 1/H of that with one head
        enough = math.floor(law.kurtosis() * law.heads / GAUSSIAN_KURTOSIS) + 1
        below = f"it is below {GAUSSIAN_KURTOSIS:g} from {enough:,} heads on."
        notes.append(f"In the limit the excess kurtosis falls like 1/heads: {below}")
    else:
        laws.append(
            Named(
                "gaussian",
                "the Gaussian of its variance",
                law.gaussian(),
                f"{name}.gaussian()",
            )
        )
    pairs = list(itertools.pairwise(laws))

    def distances() -> Rows:
        """KL from each law to the next: how far the width is from its limit, and the
        limit from a Gaussian.
        """
        return {
            f"KL to {other.label}": {one.label: kl(one.law, other.law)}
            for one, other in pairs
        }

    drawn = [*laws[:-2], laws[-1], laws[-2]]  # the limit on top
    code = [
        *lines,
        *(f"{each.name} = {each.source}" for each in laws),
        (
            f"print({', '.join(f'{each.name}.with_error.kurtosis()' for each in laws[:-1])})"
        ),
        (
            f"print({', '.join(f'ns.kl({one.name}, {other.name})' for one, other in pairs)})"
        ),
        (
            f"ns.plot({', '.join(each.name for each in drawn)},"
            f" labels={[each.label for each in drawn]})"
        ),
        "plt.savefig('laws.png')",
    ]
    shown = dict.fromkeys(
        [
            *filter(None, [note, *notes]),
            *(line for each in laws for line in each.law.notes),
        ]
    )
    return View(
        _panels(laws),
        _rows(laws),
        "\n".join(code),
        tuple(shown),
        str(plans[0]),
        more=distances,
    )


def _rows(laws: list[Named]) -> Rows:
    """The numbers of each law; means only if one is not 0."""
    rows: Rows = {"mean": {}, "variance": {}, "excess kurtosis": {}}
    for name, label, law, _ in laws:
        known = law.with_error
        rows["mean"][label], rows["variance"][label] = known.mean(), known.var()
        rows["excess kurtosis"][label] = "0" if name == "gaussian" else known.kurtosis()
        for at, mass in law.atoms[:3]:
            rows.setdefault(f"P(y = {at:.4g})", {})[label] = mass
    if not any(rows["mean"].values()):
        del rows["mean"]
    return rows | {"status": {label: law.status for _, label, law, _ in laws}}


def afford(plans: list[Plan], wanted: int | None) -> tuple[int, str]:
    """How many draws to take for these plans, and a note if that is fewer than usual;
    those you want if they fit.
    """

    def seconds(draws: int) -> float:
        return sum(plan.probing_seconds + plan.seconds(draws) for plan in plans)

    draws = (
        next((draws for draws in DRAWS if seconds(draws) <= QUICK), DRAWS[-1])
        if wanted is None
        else wanted
    )
    block = cores() * max(
        (Draw.of(plan).block_bytes(draws) for plan in plans), default=0.0
    )
    if block > memory() / 2:
        need = f"{draws:,} draws would need {in_bytes(block)} of memory"
        raise ValueError(f"{need}: choose smaller numbers on the sliders")
    if seconds(draws) > (SLOW if wanted is None else MAX_SECONDS):
        remedy = (
            "choose smaller widths, or fewer tokens, heads or draws; the library itself"
            " has no such limit"
        )
        raise ValueError(
            f"{draws:,} draws would take about {seconds(draws):.0f} s, too long for a"
            f" page: {remedy}"
        )
    return draws, (
        ""
        if wanted is not None or draws == DRAWS[0]
        else f"{draws:,} draws, to stay quick"
    )


def _panels(laws: list[Named]) -> tuple[Panel, ...]:
    """The densities, and their differences from the limit."""
    first = laws[0].law
    centre, reach = first.mean(), DENSITY_STDS * max(each.law.std() for each in laws)
    if not math.isfinite(centre + reach):
        raise ValueError(
            "the numbers leave double precision: choose less extreme values"
        )
    if not first._has_density:
        points = ", ".join(f"{at:g}" for at, _ in first.atoms[:3])
        raise ValueError(
            f"the output is always {points}: its law has no density to show"
        )
    y = np.linspace(centre - reach, centre + reach, DENSITY_POINTS)
    curves = []
    for name, label, law, _ in laws:
        value, error = (
            np.asarray(part, dtype=np.float64) for part in law.with_error.pdf(y)
        )
        band = (
            (value - error, value + error)
            if error.any() and np.isfinite(error).all()
            else ()
        )
        curves.append(Curve(label, name, y, value, band))
    base = next((c for c in curves if c.look == "limit"), curves[-1])
    below = tuple(
        c._replace(y=c.y - base.y, band=tuple(edge - base.y for edge in c.band))
        for c in curves
    )
    return (
        # tails show there
        Panel(
            "density",
            "output coordinate y",
            "density, logarithmic",
            tuple(curves),
            log=True,
        ),
        Panel(
            f"difference from {base.label}",
            "output coordinate y",
            "difference",
            below,
            share=0.5,
            legend=False,
        ),
    )


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
    **given: Any,
) -> View:
    """The view of one layer of the paper; other arguments are those of
    `ns.paper.layer`.
    """
    if head_dim is not None and head_dim > width:
        raise ValueError(
            f"head dimension {text(head_dim)} must be at most the width {text(width)}"
        )
    default = inspect.signature(layer).parameters
    arguments = {
        name: given.pop(name, default[name].default) for name in ("tokens", "heads")
    }
    arguments |= {
        name: value for name, value in given.items() if value != default[name].default
    }
    arguments |= {} if head_dim is None else {"low_rank": True}
    widths = {"n": width} if head_dim is None else {"n": width, "d": head_dim}
    call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return law_view(
        _layer(**arguments), widths, draws, [*IMPORTS, f"net = ns.paper.layer({call})"]
    )


class Slider(NamedTuple):
    """The slider of a numeric argument."""

    name: str
    start: float
    low: float
    high: float
    step: float


def sliders(target: NamedProgram) -> list[Slider]:
    """A slider for each numeric argument of the function, around its value."""
    try:
        parameters = (
            inspect.signature(target.value).parameters if target.is_function else {}
        )
    except ValueError:  # of a function written in C, for example
        return []
    numeric = []
    for name, parameter in parameters.items():
        value = target.arguments.get(name, parameter.default)
        named = parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if (
            not named
            or isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            continue
        size = abs(value) or 1.0
        low, high, step = 0.0 if value >= 0 else -4 * size, 4 * size, size / 20
        if isinstance(value, int):
            low, high, step = 1 if value > 0 else 4 * value, max(4 * value, 8), 1
        numeric.append(Slider(name, value, low, high, step))
    return numeric


def program_view(
    target: NamedProgram,
    arguments: Mapping[str, Any],
    widths: Mapping[str, float],
    output: int = 0,
    draws: int | None = None,
) -> View:
    """The view of one output of a program, or of the part that FILE:PROGRAM[i]
    names.
    """
    net = target.program(**arguments)
    part = net if target.part is None else net[target.part]
    entries = [
        (i, at)
        for i, value in enumerate(part.outputs)
        for at in np.ndindex(value.shape)
    ]
    if not 0 <= output < len(entries):
        raise ValueError(
            f"output {output} does not exist: the program has {len(entries)} outputs,"
            " counted from 0"
        )
    i, at = entries[output]
    keys: list[Any] = [] if target.part is None else [target.part]
    keys += [i] * isinstance(part.output, tuple) + [at] * bool(at)
    lines = _lines(
        target, arguments, "".join(f"[{str(key).strip('(,)')}]" for key in keys)
    )
    return law_view(
        functools.reduce(Program.__getitem__, keys, net), widths, draws, lines
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
    at = (f"{name}={width_code(width)}" for name, width in widths.items())
    return AuditViewRequest(
        (model,), (*_lines(target, arguments),), ("net", *at), sharp=sharp
    )


def _lines(
    target: NamedProgram, arguments: Mapping[str, Any], key: str = ""
) -> list[str]:
    """Python that builds the program, or a part of it."""
    lines = [f"from {target.module} import {target.name}"]
    if target.module.endswith(".py"):
        path = Path(target.module).resolve()
        lines = [
            "import runpy",
            "import sys",
            "",
            f"sys.path.insert(0, {str(path.parent)!r})",
        ]
        lines.append(f"{target.name} = runpy.run_path({str(path)!r})[{target.name!r}]")
    given = ", ".join(
        f"{k}={v!r}" for k, v in {**target.arguments, **arguments}.items()
    )
    call = f"({given})" if target.is_function else ""
    return [*lines, *IMPORTS, f"net = {target.name}{call}{key}"]
