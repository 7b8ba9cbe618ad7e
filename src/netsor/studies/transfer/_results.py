"""Results of a sweep: the best rate at each width, whether it moves with the width, and
the report.

`RULE` states how. A curve gets more rates while fewer than two lie beyond its lowest
point on one side: the best rate and those of most bootstrap samples are then inside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...report._document import (
    FLAG,
    OK,
    UNDECIDED,
    Cell,
    Document,
    Item,
    Row,
    Section,
    Table,
)
from ...report._html import COLOUR_CLASSES
from ...report._mpl_style import LIMIT, MARKS, width_colours
from .._training import width_text
from .._training_report import ByParametrisation, panels, steps_text

# verdicts, besides "shifts like n^a"
TRANSFERS, UNKNOWN, OUTSIDE = "transfers", "undecided", "not within the grid"
ADDED = 4  # learning rates of a later round, a factor of 2 apart
# learning rates beyond the best one, for bootstrap samples that move it and for the
# parabola
MARGIN = 2
# at a width: beyond a factor of 2^24 the loss does not depend on the learning rate as
# training does
MOST_RATES = 31
SAMPLES = 10_000  # bootstrap samples
TOLERANCE = 0.1  # of an exponent, as in a coordinate check
LARGEST = 1e300  # loss; 1/LARGEST is the smallest
LEVEL = 1e-2  # of intervals; smaller ones would need more samples
# times the largest loss at the smallest learning rate: a diverging loss would flatten
# all others
SEEN = 1.2
RULE = (
    "The loss at a learning rate is the geometric mean over initialisations, the same"
    " ones at every rate. The best rate is the vertex of the parabola through the"
    " lowest point of the curve and its neighbours, in the logarithms of both. Its 99"
    " % interval is over bootstrap samples of initialisations, and reaches at least"
    " half a step of the grid to either side. Unless you give learning rates, a width"
    " begins with seven, and gets four more at an end while fewer than two lie beyond"
    " the lowest point. The exponent from n on is the least-squares slope of the log"
    " best rate against the log width, over the finite widths n and above; together"
    " these intervals have 99 %. The rate transfers from the smallest n on for which"
    f" the interval lies within ±{TOLERANCE} and no interval from a larger width on"
    " lies outside. It shifts like n^a if every interval lies outside on the same"
    " side; a is the exponent over all widths. Otherwise the sweep is undecided. There"
    " is no verdict if the lowest loss is at an end of the grid."
)


class Optimum(NamedTuple):
    """The best learning rate at one width, and the ends of an interval for it.

    Parameters
    ----------
    lr : float
        The best learning rate.
    low, high : float
        The ends of its interval: 0 or infinity if the lowest loss is at an end of the
        grid.
    """

    lr: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.lr:.3g} ({self.low:.2g}, {self.high:.2g})"


@dataclass(frozen=True, eq=False)
class Curve:
    """The losses at one width.

    Parameters
    ----------
    lr : numpy.ndarray
        The learning rates, ascending.
    losses : numpy.ndarray
        The losses (rates, draws); every rate has the same initialisations.
    seed : int
        Of the bootstrap samples; another one for each width.
    """

    lr: Floats
    losses: Floats
    seed: int = 0

    @property
    def logs(self) -> Floats:
        """The logarithms of the losses."""
        return np.asarray(np.log(np.clip(self.losses, 1 / LARGEST, LARGEST)))

    @property
    def loss(self) -> Floats:
        """The geometric mean of the losses at each learning rate."""
        return np.asarray(np.exp(self.logs.mean(axis=1)))

    @property
    def error(self) -> Floats:
        """The standard error of the logarithm of the loss at each learning rate."""
        return np.asarray(
            self.logs.std(axis=1, ddof=1) / math.sqrt(self.losses.shape[1])
        )

    @property
    def best(self) -> Optimum:
        """The best learning rate with its interval: that of the bootstrap, at least
        half a step of the grid to either side, and open where the lowest loss is at an
        end of the grid.
        """
        low, high = np.quantile(self.vertices, [LEVEL / 2, 1 - LEVEL / 2])
        half_step = 0.5 * float(np.diff(np.log(self.lr)).max())
        low = math.exp(min(low, self.vertex - half_step))
        high = math.exp(max(high, self.vertex + half_step))
        lowest = int(np.argmin(self.loss))
        if lowest == 0:
            low = 0.0
        if lowest == len(self.lr) - 1:
            high = math.inf
        return Optimum(math.exp(self.vertex), low, high)

    @property
    def vertex(self) -> float:
        """The logarithm of the best rate: where the parabola through the lowest point
        has its minimum.
        """
        return float(_vertex(np.log(self.lr), self.logs.mean(axis=1)[None])[0])

    @cached_property
    def vertices(self) -> Floats:
        """The logarithm of the best rate in each bootstrap sample of initialisations,
        (samples,).
        """
        count = self.losses.shape[1]
        # the mean log loss of each sample at each rate, (samples, rates)
        means = _bootstrap_counts(count, self.seed) @ self.logs.T / count
        return _vertex(np.log(self.lr), means)

    @property
    def beyond(self) -> tuple[float, ...]:
        """Learning rates to add at the end where the lowest loss is; none if it is well
        inside, with MARGIN rates on both sides, or if there are MOST_RATES already.
        """
        lowest = int(np.argmin(self.loss))
        is_inside = MARGIN <= lowest < len(self.lr) - MARGIN
        if is_inside or len(self.lr) >= MOST_RATES:
            return ()
        ratios = 2.0 ** np.arange(1, ADDED + 1)
        if lowest >= MARGIN:
            added = self.lr[-1] * ratios
        else:
            added = self.lr[0] / ratios[::-1]
        return tuple(added.tolist())

    def joined(self, other: Curve) -> Curve:
        """The curve with more learning rates."""
        lr = np.concatenate([self.lr, other.lr])
        losses = np.concatenate([self.losses, other.losses])
        order = np.argsort(lr)
        return Curve(lr[order], losses[order], self.seed)


class ExponentInterval(NamedTuple):
    """The power of the width that the best rate follows, and its interval."""

    value: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """1 if the interval lies above ±TOLERANCE, −1 if below, 0 otherwise."""
        if self.low > TOLERANCE:
            return 1
        return -1 if self.high < -TOLERANCE else 0

    @property
    def is_small(self) -> bool:
        """Whether the interval lies within ±TOLERANCE."""
        return self.low >= -TOLERANCE and self.high <= TOLERANCE


@dataclass(frozen=True, eq=False)
class Sweep:
    """The curves of one parametrisation, and their verdict.

    Parameters
    ----------
    name : str
        Of the parametrisation.
    curves : mapping of float to Curve
        The losses at each width.
    refused : mapping of float to str
        The widths without a law, and why.
    """

    name: str
    curves: Mapping[float, Curve]
    refused: Mapping[float, str]

    @property
    def widths(self) -> tuple[float, ...]:
        """The widths that have losses."""
        return tuple(self.curves)

    def best(self, width: float) -> Optimum:
        """The best learning rate at a width."""
        return self.curves[width].best

    @cached_property
    def exponents(self) -> dict[float, ExponentInterval]:
        """The exponent of the best rate from each finite width on, except the largest,
        with its interval: the slope of log rate against log width, by least squares.
        """
        finite = sorted(width for width in self.curves if width < math.inf)
        # on either side of each interval: together the intervals have the level
        tail = LEVEL / (len(finite) - 1) / 2
        exponents = {}
        for k, start in enumerate(finite[:-1]):
            curves = [self.curves[width] for width in finite[k:]]
            log_widths = np.log(finite[k:])
            deviations = log_widths - log_widths.mean()
            coefficients = deviations / (deviations**2).sum()  # of least squares
            value = float(coefficients @ [curve.vertex for curve in curves])
            vertices = np.array([curve.vertices for curve in curves])
            resampled = coefficients @ vertices  # (samples,)
            low, high = map(float, np.quantile(resampled, [tail, 1 - tail]))
            exponents[start] = ExponentInterval(
                value, low=min(value, low), high=max(value, high)
            )
        return exponents

    @cached_property
    def _judged(self) -> tuple[str, float]:
        """The verdict, and the smallest width to which it applies; see RULE."""
        starts = list(self.exponents)  # ascending widths
        exponents = list(self.exponents.values())
        for curve in self.curves.values():
            if not 0 < curve.best.low <= curve.best.high < math.inf:
                return OUTSIDE, starts[0]
        sides = [exponent.side for exponent in exponents]
        for k, start in enumerate(starts):
            later_is_outside = any(sides[k:])
            if exponents[k].is_small and not later_is_outside:
                since = "" if k == 0 else f" from n = {start:,.0f} on"
                return f"{TRANSFERS}{since}", start
        if sides[0] and len(set(sides)) == 1:
            return f"shifts like n^{exponents[0].value:.1f}", starts[0]
        return UNKNOWN, starts[0]

    @property
    def verdict(self) -> str:
        """One of "transfers", "transfers from n = … on", "shifts like n^a", "not within
        the grid" and "undecided".

        `table(verbose=True)` of the `Transfer` explains the rule.
        """
        return self._judged[0]

    @property
    def transfers(self) -> bool:
        """Whether the learning rate transfers, from some width on."""
        return self.verdict.startswith(TRANSFERS)

    @property
    def start(self) -> float:
        """The smallest width to which the verdict applies."""
        return self._judged[1]

    @property
    def exponent(self) -> ExponentInterval:
        """The exponent from `start` on, and its interval."""
        return self.exponents[self.start]

    def rows(self) -> list[dict[str, Any]]:
        """The loss at every width and learning rate, one row each, with the standard
        error of its logarithm.
        """
        rows = []
        for width, curve in self.curves.items():
            losses = curve.loss.tolist()
            errors = curve.error.tolist()
            for lr, loss, error in zip(curve.lr.tolist(), losses, errors, strict=True):
                row = {
                    "parametrisation": self.name,
                    "width": _plain(width),
                    "lr": lr,
                    "loss": loss,
                    "log_error": error,
                }
                rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an interval without an upper end has None,
        infinite width is "inf".
        """
        widths = []
        for width, curve in self.curves.items():
            best: dict[str, float | None] = {}
            for name, lr in curve.best._asdict().items():
                best[name] = lr if math.isfinite(lr) else None
            widths.append(
                {
                    "width": _plain(width),
                    "lr": curve.lr.tolist(),
                    "loss": curve.loss.tolist(),
                    "best": best,
                }
            )
        return {
            "parametrisation": self.name,
            "widths": widths,
            "exponents": [
                {"from": _plain(start), **exponent._asdict()}
                for start, exponent in self.exponents.items()
            ],
            "verdict": self.verdict,
            "start": _plain(self.start),
            "refused": {str(_plain(width)): why for width, why in self.refused.items()},
        }


def _plain(width: float) -> int | str:
    """A width for JSON and CSV."""
    return "inf" if width == math.inf else int(width)


@lru_cache(maxsize=4)
def _bootstrap_counts(count: int, seed: int) -> Floats:
    """How often each of `count` draws is in each bootstrap sample, (SAMPLES, count);
    curves of the same width share them.
    """
    rng = np.random.default_rng([20, seed])
    counts = rng.multinomial(count, np.full(count, 1 / count), size=SAMPLES)
    return counts.astype(float)


def _vertex(x: Floats, y: Floats) -> Floats:
    """The minima of parabolas through the lowest point of each row and its neighbours.

    x (points,) is ascending, and each row of y (rows, points) has the heights of one
    curve; the result is (rows,). A minimum is at most at the neighbours; without one,
    it is the lowest point, or the last but one if that is at an end.
    """
    # the indices of three points of each row, with the lowest in the middle if possible
    middle = np.clip(np.argmin(y, axis=1), 1, len(x) - 2)
    left = middle - 1
    right = middle + 1

    # the slopes between them
    rows = np.arange(len(y))
    y_middle = y[rows, middle]
    left_slope = (y_middle - y[rows, left]) / (x[middle] - x[left])
    right_slope = (y[rows, right] - y_middle) / (x[right] - x[middle])
    is_convex = right_slope > left_slope
    bend = np.where(is_convex, right_slope - left_slope, 1.0)

    # where the slope of the parabola is 0: it is `left_slope` between the left two
    # points, and grows by `bend` over half the distance of the outer ones
    between_left_two = 0.5 * (x[left] + x[middle])
    distance = 0.5 * left_slope * (x[right] - x[left]) / bend
    vertex = np.clip(between_left_two - distance, x[left], x[right])
    return np.asarray(np.where(is_convex, vertex, x[middle]))


# a loss above the axis is drawn at this factor above its end, and errors of log losses
# up to this size: beyond, a line cannot be told from a vertical one
ABOVE_TOP, LARGEST_ERROR = 10, 10.0


def _label_of_minor_tick(x: float, position: int) -> str:
    """2, 5, 20, 0.05, … between the powers of ten; no label for the other ticks."""
    leading_digit = f"{x:e}"[0]
    return f"{x:g}" if leading_digit in "25" else ""


def _draw_curve(axes: Any, curve: Curve, top: float, style: dict[str, Any]) -> Any:
    """Draw the losses with their errors, and the best rate; return the line.

    `top` is the upper end of the axis. Rates above that of the lowest loss are drawn up
    to the first whose loss is above the axis.
    """
    lowest = int(np.argmin(curve.loss))
    above_axis = np.flatnonzero(curve.loss[lowest:] > top)
    shown = slice(len(curve.loss))
    if len(above_axis):
        shown = slice(lowest + above_axis[0] + 1)
    lr = curve.lr[shown]
    loss = np.minimum(curve.loss[shown], ABOVE_TOP * top)
    (line,) = axes.plot(lr, loss, ms=2.5, **style)

    # two errors of the log loss to each side
    error = curve.error[shown]
    low = loss * np.exp(-2 * error)
    high = loss * np.exp(2 * np.minimum(error, LARGEST_ERROR))
    axes.fill_between(lr, low, high, color=style["color"], alpha=0.15, lw=0)

    # the best rate, which may lie between two points, at the height of the lowest
    best_lr = curve.best.lr
    axes.plot(best_lr, loss.min(), ms=7, markeredgecolor="black", ls="", **style)
    return line


def _best_cell(sweep: Sweep, width: float) -> Cell:
    """The best rate at a width, with its interval."""
    if width not in sweep.curves:
        return Cell("no law", status="absent")
    return Cell(str(sweep.best(width)))


def _exponent_cell(sweep: Sweep, start: float) -> Cell:
    """The exponent from a width on, coloured if the verdict is about it."""
    colour = COLOUR_CLASSES[_status(sweep)] if start == sweep.start else ""
    return Cell(_exponent_text(sweep.exponents[start]), status=colour)


def _loss_table(sweep: Sweep) -> Table:
    """A row for each learning rate, a column for each width."""
    head = ["learning rate", *(f"n = {width_text(width)}" for width in sweep.widths)]
    columns: list[dict[float, float]] = []
    for curve in sweep.curves.values():
        pairs = zip(curve.lr.tolist(), curve.loss.tolist(), strict=True)
        columns.append(dict(pairs))
    rates = sorted({lr for column in columns for lr in column})
    rows: list[Row] = []
    for lr in rates:
        losses = [f"{column[lr]:.3g}" if lr in column else "" for column in columns]
        rows.append([f"{lr:.3g}", *losses])
    return Table(head, rows)


def _conclusion(sweep: Sweep) -> Item:
    """The conclusion for one parametrisation, or what to do to reach one."""
    details = []
    for width, reason in sweep.refused.items():
        details.append(f"No law at width {width_text(width)}: {reason}.")
    if sweep.verdict == OUTSIDE:
        return Item(
            status=UNDECIDED,
            name=sweep.name,
            text=OUTSIDE,
            more=details + _missing_rates(sweep),
        )
    exponent = f"exponent {_exponent_text(sweep.exponent)}"
    if sweep.verdict == UNKNOWN:
        details.append("More draws, larger widths or a finer grid settle it.")
        text = (
            f"{exponent}, neither within ±{TOLERANCE} nor outside for all larger widths"
        )
        return Item(status=UNDECIDED, name=sweep.name, text=text, more=details)
    return Item(
        status=_status(sweep),
        name=sweep.name,
        text=f"{sweep.verdict}; {exponent}",
        more=details,
    )


def _missing_rates(sweep: Sweep) -> list[str]:
    """The widths whose best rate is at an end of the grid, and which rates to add."""
    sentences = []
    # the index of the first and of the last rate
    for end, larger in ((0, "smaller"), (-1, "larger")):
        widths = []
        for width, curve in sweep.curves.items():
            index = range(len(curve.lr))[end]
            if np.argmin(curve.loss) == index:
                widths.append(width)
        if not widths:
            continue
        noun = "width" if len(widths) == 1 else "widths"
        listed = ", ".join(width_text(width) for width in widths)
        rate = f"{sweep.curves[widths[0]].lr[end]:.3g}"
        sentences.append(
            f"At {noun} {listed} the best rate is at the end of the grid: add rates"
            f" {larger} than {rate}."
        )
    return sentences


def _status(sweep: Sweep) -> str:
    """OK if the rate transfers, FLAG if not; undecided if draws leave it open."""
    if sweep.transfers:
        return OK
    return UNDECIDED if sweep.verdict in (UNKNOWN, OUTSIDE) else FLAG


def _exponent_text(exponent: ExponentInterval) -> str:
    """An exponent with its interval, as "-1.02 (-1.08, -0.95)"."""
    value, low, high = (round(number, 2) + 0.0 for number in exponent)  # no −0
    return f"{value:+.2f} ({low:+.2f}, {high:+.2f})"


class Transfer(ByParametrisation[Sweep]):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its
    place; `ns.transfer` returns it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.
    The parameters are those of `CoordCheck`; its parts are of type `Sweep`.
    """

    request: Any  # a TrainingRequest with learning rates
    heading, data, key = "Learning-rate transfer", "every loss", "sweeps"

    @property
    def _verdict(self) -> str:
        """The verdicts of all sweeps, as a line of text."""
        return "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        """The report; with the manifest, for a folder."""
        return self._assembled(
            manifest,
            items=[_conclusion(sweep) for sweep in self.parts],
            own_sections=[self._best_rates_section(), *self._loss_sections()],
            verdict=f"{self.request.name}: {self._verdict}",
            done=self._done_text(),
            caption=self._caption(),
            rule=RULE,
        )

    def _done_text(self) -> str:
        """What was done, with {batch}."""
        request = self.request
        text = f"Loss after {steps_text(request)}"
        if isinstance(request.optimiser, str):
            text += f" of {request.optimiser}"
        text += "{batch}"
        if request.lr is not None:
            text += f", at {len(request.lr)} learning rates"
        return text

    def _caption(self) -> str:
        """The caption of the figure."""
        rate = "learning rate"
        if not self.request.is_user_program:
            rate += " at the width of the model"
        return (
            f"Loss after {steps_text(self.request)} against the {rate}: geometric means"
            " over initialisations with two standard errors. The large marker is the"
            " best rate of its width; the rate transfers if these markers are above"
            " each other."
        )

    def _best_rates_section(self) -> Section:
        """The best rate at each width, then the exponents, for all parametrisations."""
        request = self.request
        sweeps = self.parts
        rows: list[Row] = []
        for width in request.widths:
            cells = [_best_cell(sweep, width) for sweep in sweeps]
            rows.append([f"n = {width_text(width)}", *cells])
        for start in request.at[:-1]:
            title = "exponent"
            if len(request.at) > 2:
                title += f" from {width_text(start)} on"
            rows.append([title, *(_exponent_cell(sweep, start) for sweep in sweeps)])
        table = Table(["", *(sweep.name for sweep in sweeps)], rows)
        return Section("Best learning rates with 99 % intervals", [table])

    def _loss_sections(self) -> list[Section]:
        """The loss at each learning rate, a table for each parametrisation."""
        sections = []
        for sweep in self.parts:
            title = f"{sweep.name}: loss at each learning rate"
            table = _loss_table(sweep)
            sections.append(
                Section(title=title, blocks=[table], show="verbose", folded=True)
            )
        return sections

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each
        parametrisation; a figure.
        """
        widths = self.request.widths
        losses: list[Floats] = []
        for sweep in self.parts:
            losses += [curve.loss for curve in sweep.curves.values()]
        top = SEEN * max(loss[0] for loss in losses)
        bottom = min(loss.min() for loss in losses) / SEEN
        finite = [width for width in widths if math.isfinite(width)]
        colours = dict(zip(finite, width_colours(len(finite)), strict=True))

        def panel(axes: Any, sweep: Sweep) -> dict[str, Any]:
            """Draw the curves of a sweep, and return the lines by width."""
            lines: dict[str, Any] = {}
            for k, (width, curve) in enumerate(sweep.curves.items()):
                style = {
                    "color": colours.get(width, LIMIT),
                    "marker": MARKS[k % len(MARKS)],
                }
                lines[width_text(width)] = _draw_curve(axes, curve, top, style)
            verdict = re.sub(r"n\^(-?[0-9.]+)", r"$n^{\1}$", sweep.verdict)
            axes.set(
                xscale="log",
                yscale="log",
                ylim=(bottom, top),
                title=f"{axes.get_title()} {verdict}",
            )
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(_label_of_minor_tick)
            return lines

        labels = "learning rate", f"loss after {steps_text(self.request)}"
        return panels(
            self.parts,
            draw=panel,
            labels=labels,
            panel_width=0.8,
            legend_width=0.7,
            share_x=False,
            legend="width",
        )

    _figure = plot

    @property
    def _settings(self) -> dict[str, Any]:
        """The options that the files of a saved sweep state; None for those of an
        optimiser object.
        """
        if not isinstance(self.request.optimiser, str):
            return {"optimiser": None, "eps": None}
        return {"optimiser": self.request.optimiser, "eps": self.request.eps}
