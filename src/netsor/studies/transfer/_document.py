"""The result of a learning-rate sweep, its document and its figure: see `netsor._document`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _document as doc
from ..._document import FLAG, OK, UNDECIDED, Cell, Section, Table
from ..._html import COLOUR_CLASSES
from ..._mpl_style import MARKS
from .._training import width_text
from .._training_report import ByParametrisation, panels, steps_text
from ._optimum import OUTSIDE, TOLERANCE, UNKNOWN, Curve, Sweep
from ._request import Request

SEEN = 1.2  # times the largest loss at the smallest learning rate: a diverging loss would flatten all others
RULE = (
    "The loss at a learning rate is the geometric mean over initialisations, the same ones at every rate. The best "
    "rate is the vertex of the parabola through the lowest point of the curve and its neighbours, in the logarithms of "
    "both. Its 99 % interval is over bootstrap samples of initialisations, and reaches at least half a step of the "
    "grid to either side. Unless you give learning rates, a width begins with seven, and gets four more at an end "
    "while fewer than two lie beyond the lowest point. The exponent from n on is the least-squares slope of the log "
    "best rate against the log width, over the finite widths n and above; together these intervals have 99 %. The rate "
    f"transfers from the smallest n on for which the interval lies within ±{TOLERANCE} and no interval from a larger "
    "width on lies outside. It shifts like n^a if every interval lies outside on the same side; a is the exponent over "
    "all widths. Otherwise the sweep is undecided. There is no verdict if the lowest loss is at an end of the grid."
)


def status(sweep: Sweep) -> str:
    """The status of a verdict."""
    return OK if sweep.transfers else UNDECIDED if sweep.verdict in (UNKNOWN, OUTSIDE) else FLAG


def _item(sweep: Sweep) -> doc.Item:
    """The conclusion for one parametrisation, and what to do if there is none."""
    more = [f"No law at width {width_text(width)}: {why}." for width, why in sweep.refused.items()]
    text = f"{sweep.verdict}; exponent {_exponent(sweep)}"
    if sweep.verdict == UNKNOWN:
        more.append("More draws, larger widths or a finer grid settle it.")
        text = f"exponent {_exponent(sweep)}, neither within ±{TOLERANCE} nor outside for all larger widths"
    elif sweep.verdict == OUTSIDE:
        text = sweep.verdict
        for end, what in ((0, "smaller"), (-1, "larger")):
            some = [n for n, c in sweep.curves.items() if np.argmin(c.loss) == range(len(c.lr))[end]]
            if some:
                at = f"width{'s' * (len(some) > 1)} {', '.join(map(width_text, some))}"
                rate = f"add rates {what} than {sweep.curves[some[0]].lr[end]:.3g}"
                more.append(f"At {at} the best rate is at the end of the grid: {rate}.")
    return doc.Item(status(sweep), sweep.name, text, more)


def _exponent(sweep: Sweep, start: float | None = None) -> str:
    interval = sweep.exponents[sweep.start if start is None else start]
    return "{:+.2f} ({:+.2f}, {:+.2f})".format(*(round(v, 2) + 0.0 for v in interval))


def _best(request: Request, sweeps: Sequence[Sweep]) -> Table:
    """The best rate at each width, a column for each parametrisation."""
    rows: list[list[str | Cell]] = []
    absent = Cell("no law", status="absent")
    for width in request.widths:
        best = [Cell(str(sweep.best(width))) if width in sweep.curves else absent for sweep in sweeps]
        rows.append([f"n = {width_text(width)}", *best])
    for start in request.at[:-1]:
        colours = [COLOUR_CLASSES[status(sweep)] if start == sweep.start else "" for sweep in sweeps]
        cells = [Cell(_exponent(sweep, start), status=c) for sweep, c in zip(sweeps, colours, strict=True)]
        rows.append([f"exponent from {width_text(start)} on" if len(request.at) > 2 else "exponent", *cells])
    return Table(["", *(sweep.name for sweep in sweeps)], rows)


def figure(request: Request, sweeps: Sequence[Sweep]) -> Any:
    """Loss against learning rate: a panel for each parametrisation, a line for each width."""
    top = SEEN * max(curve.loss[0] for sweep in sweeps for curve in sweep.curves.values())
    bottom = min(curve.loss.min() for sweep in sweeps for curve in sweep.curves.values()) / SEEN

    def panel(axes: Any, sweep: Sweep) -> dict[str, Any]:
        from matplotlib import colormaps  # slow to import

        lines: dict[str, Any] = {}
        for k, width in enumerate(sweep.widths):
            colour = colormaps["viridis"](0.9 * request.widths.index(width) / (len(request.widths) - 1))
            style = {"color": colour, "marker": MARKS[k % len(MARKS)]}
            lines[width_text(width)] = _line(axes, sweep.curves[width], style, top)
        axes.set(xscale="log", yscale="log", ylim=(bottom, top))
        axes.yaxis.set_major_formatter("{x:g}")
        verdict = re.sub(r"n\^(-?[0-9.]+)", r"$n^{\1}$", sweep.verdict)
        axes.set_title(f"{axes.get_title()} {verdict}")
        return lines

    labels = "learning rate", f"loss after {steps_text(request)}"
    return panels(sweeps, panel, labels, (0.8, 0.7), share_x=False, legend="width")


def _line(axes: Any, curve: Curve, style: dict[str, Any], top: float) -> Any:
    """The losses of one width, with the best rate; of those that diverge, the first is drawn."""
    above = np.flatnonzero(curve.loss > top)
    shown = slice(next((k + 1 for k in above if k >= np.argmin(curve.loss)), None))
    lr, loss, error = curve.lr[shown], np.minimum(curve.loss[shown], 10 * top), curve.error[shown]
    (line,) = axes.plot(lr, loss, ms=2.5, **style)
    low, high = loss * np.exp(-2 * error), loss * np.exp(2 * np.minimum(error, 10.0))
    axes.fill_between(lr, low, high, color=style["color"], alpha=0.15, lw=0)
    axes.plot(curve.best.lr, loss.min(), ms=7, markeredgecolor="black", ls="", **style)
    return line


class Transfer(ByParametrisation[Sweep]):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its place; `ns.transfer` makes it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.

    Parameters
    ----------
    request : Request
        The arguments of the sweep.
    parts : sequence of Sweep
        The curves of each parametrisation.
    random_numbers, seconds : float
        About how many random numbers were drawn, and the core-seconds that this took, in earlier runs too.
    """

    request: Request
    heading, data, key = "Learning-rate transfer", "every loss", "sweeps"

    @property
    def _verdict(self) -> str:
        return "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> doc.Document:
        r, sweeps, steps = self.request, self.parts, steps_text(self.request)
        name = f" of {r.optimiser}" if isinstance(r.optimiser, str) else ""
        done = f"Loss after {steps}{name}{{batch}}" + ("" if r.lr is None else f", at {len(r.lr)} learning rates")
        caption = (
            f"Loss after {steps} against the learning rate{'' if r.own else ' at the width of the model'}: geometric "
            "means over initialisations with two standard errors. The large marker is the best rate of its width; the "
            "rate transfers if these markers are above each other."
        )
        sections = [Section("Best learning rates with 99 % intervals", [_best(r, sweeps)])]
        for sweep in sweeps:
            columns = [dict(zip(c.lr.tolist(), c.loss.tolist(), strict=True)) for c in sweep.curves.values()]
            every = sorted({lr for column in columns for lr in column})
            rows = [[f"{lr:.3g}", *(f"{col[lr]:.3g}" if lr in col else "" for col in columns)] for lr in every]
            losses = Table(["learning rate", *(f"n = {width_text(width)}" for width in sweep.widths)], rows)
            sections.append(Section(f"{sweep.name}: loss at each learning rate", [losses], "verbose", folded=True))
        verdict, items = f"{r.name}: {self._verdict}", [_item(sweep) for sweep in sweeps]
        return self._assembled(manifest, items, sections, verdict=verdict, done=done, caption=caption, rule=RULE)

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each parametrisation; a figure."""
        return figure(self.request, self.parts)

    _figure = plot

    @property
    def _settings(self) -> dict[str, Any]:
        return {"optimiser": self.request.optimiser if isinstance(self.request.optimiser, str) else None}
