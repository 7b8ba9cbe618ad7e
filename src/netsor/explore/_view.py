"""What is seen: pictures, numbers, the plan, and the few lines of Python that make them.

A view of laws has up to three: the law at the widths that were asked for, its limit, and the Gaussian beside it. The
picture and the moments take some milliseconds; distances take longer, and are asked for afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..engine import Plan
from ..engine._parallel import cores, in_bytes, memory
from ..laws import Estimate, Law, kl
from ..studies._cost import Draw
from ._plots import Curve, Panel

if TYPE_CHECKING:
    from ..studies.audit._results import Audit, Comparison


class Band(NamedTuple):
    """A number that varies from draw to draw: its median, and its 5 % and 95 % quantiles."""

    value: float
    low: float
    high: float


Rows = dict[str, dict[str, Estimate | Band | str]]  # name of a number → which law → the number

DENSITY_POINTS = 241
DENSITY_STDS = 4.5  # standard deviations to each side that a density is drawn over
DRAWS = (5_000, 2_000, 1_000, 500, 200)  # numbers of draws to choose from: the largest that takes less than QUICK
QUICK = 0.2  # seconds on one core that the draws may take while a slider is moved
SLOW = 3.0  # seconds that even the fewest draws may take
MAX_SECONDS = 30.0  # seconds that a number of draws chosen by the user may take


@dataclass(frozen=True)
class View:
    """What the page shows."""

    panels: tuple[Panel, ...]
    rows: Rows
    code: str
    notes: tuple[str, ...] = ()
    plan: str = ""
    more: Callable[[], Rows] | None = None  # numbers that take longer
    columns: int = 1  # of panels, in a file
    result: Audit | Comparison | None = None  # of an audit: what the rules say


@dataclass(frozen=True)
class Named:
    """A law, how it is called on the page, and how its curve looks."""

    label: str
    look: str
    law: Law


def view_laws(laws: list[Named], code: str, plan: str, notes: tuple[str, ...]) -> View:
    """The view of these laws, from the first to the Gaussian."""
    panels = _panels(laws)
    every = dict.fromkeys(note for named in laws for note in named.law.notes)
    rows: Rows = {
        "mean": {named.label: named.law.with_error.mean() for named in laws},
        "variance": {named.label: named.law.with_error.var() for named in laws},
        "excess kurtosis": {
            named.label: "0" if named.look == "gaussian" else named.law.with_error.kurtosis() for named in laws
        },
    }
    if all(value.value == 0 for value in rows["mean"].values() if isinstance(value, Estimate)):
        del rows["mean"]
    for named in laws:
        for at, mass in named.law.atoms[:3]:
            rows.setdefault(f"P(y = {at:.4g})", {})[named.label] = mass
    rows["status"] = {named.label: named.law.status for named in laws}
    _finite(rows)
    return View(panels, rows, code, (*notes, *every), plan, more=lambda: distances(laws))


def distances(laws: list[Named]) -> Rows:
    """KL from each law to the next: how far the width is from its limit, and the limit from a Gaussian."""
    rows: Rows = {}
    for one, other in itertools.pairwise(laws):
        rows[f"KL to {other.label}"] = {one.label: kl(one.law, other.law)}
    return rows


def afford(plans: list[Plan], asked: int | None) -> tuple[int, str]:
    """How many draws these plans are given, and a note if that is fewer than usual; those asked for if they fit."""

    def seconds(draws: int) -> float:
        return sum(plan.seconds(draws) for plan in plans)

    draws = next((draws for draws in DRAWS if seconds(draws) <= QUICK), DRAWS[-1]) if asked is None else asked
    block = cores() * max((Draw.of(plan).room(draws) for plan in plans), default=0.0)
    if block > memory() / 2:
        raise ValueError(
            f"{draws:,} draws would need {in_bytes(block)} of memory: smaller numbers on the sliders need less"
        )
    if asked is not None:
        if seconds(asked) > MAX_SECONDS:
            raise ValueError(f"{asked:,} draws would take about {seconds(asked):.0f} s: choose fewer, or smaller sizes")
        return asked, ""
    if seconds(draws) > SLOW:
        raise ValueError(
            f"even {draws} draws would take about {seconds(draws):.0f} s, too long to drag a slider: "
            "smaller widths, or fewer tokens or heads, need less; the library itself has no such bound"
        )
    return draws, "" if draws == DRAWS[0] else f"{draws:,} draws, to stay quick"


def _panels(laws: list[Named]) -> tuple[Panel, ...]:
    """Densities above; below, what they differ by from the limit, where the eye can see it."""
    centre = laws[0].law.mean()
    reach = DENSITY_STDS * max(named.law.std() for named in laws)
    if not (math.isfinite(centre) and math.isfinite(reach)):
        raise ValueError("the numbers leave double precision: less extreme values are needed")
    if not has_density(laws[0].law):
        points = ", ".join(f"{at:g}" for at, _ in laws[0].law.atoms[:3])
        raise ValueError(f"the output is always {points}: its law has no density to show")
    y = np.linspace(centre - reach, centre + reach, DENSITY_POINTS)
    curves = []
    for named in laws:
        value, error = (np.asarray(part, dtype=np.float64) for part in named.law.with_error.pdf(y))
        if not np.isfinite(value).all():
            raise ValueError("the density leaves double precision: less extreme values are needed")
        band: Any = (value - error, value + error) if error.any() and np.isfinite(error).all() else (None, None)
        curves.append(Curve(named.label, named.look, y, value, *band))
    top = Panel("density", "output coordinate y", "density", tuple(curves), floor=0.0)
    if len(curves) == 1:
        return (top,)
    base = next((c for c in curves if c.look == "limit"), curves[-1])
    below = tuple(c.minus(base) for c in curves)
    label = f"difference from {base.label}"
    return top, Panel(label, "output coordinate y", "difference", below, share=0.5, legend=False)


def has_density(law: Law) -> bool:
    """Whether there is anything but points to its law."""
    return bool(sum(mass.value for _, mass in law.atoms) < 1 - 1e-12)


def _finite(rows: Rows) -> None:
    """A number that is none is no answer."""
    for name, row in rows.items():
        for value in row.values():
            if isinstance(value, Estimate) and not math.isfinite(value.value):
                raise ValueError(f"the {name} is {value.value}: this law has none, or it leaves double precision")


def error_text(error: BaseException) -> str:
    """What an error says, in one line, for the page."""
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        return f"the program ends the process (sys.exit({text}))"
    return text if text and isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {text}"
