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
from ...report._mpl_style import MARKS
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
        """The best learning rate."""
        low, high = np.quantile(self.vertices, [LEVEL / 2, 1 - LEVEL / 2])
        step, at = (
            0.5 * float(np.diff(np.log(self.lr)).max()),
            int(np.argmin(self.loss)),
        )
        first = 0.0 if at == 0 else math.exp(min(low, self.vertex - step))
        last = (
            math.inf
            if at == len(self.lr) - 1
            else math.exp(max(high, self.vertex + step))
        )
        return Optimum(math.exp(self.vertex), first, last)

    @property
    def vertex(self) -> float:
        """The logarithm of the best rate."""
        return float(_vertex(np.log(self.lr), self.logs.mean(axis=1)[None])[0])

    @cached_property
    def vertices(self) -> Floats:
        """The same of bootstrap samples."""
        count = self.losses.shape[1]
        return _vertex(
            np.log(self.lr), _bootstrap_counts(count, self.seed) @ self.logs.T / count
        )

    @property
    def beyond(self) -> tuple[float, ...]:
        """Learning rates to add; none if the lowest loss is well inside."""
        at, ratio = int(np.argmin(self.loss)), 2.0 ** np.arange(1, ADDED + 1)
        if len(self.lr) >= MOST_RATES or MARGIN <= at < len(self.lr) - MARGIN:
            return ()
        return tuple(
            (self.lr[-1] * ratio if at >= MARGIN else self.lr[0] / ratio[::-1]).tolist()
        )

    def joined(self, other: Curve) -> Curve:
        """The curve with more learning rates."""
        lr, losses = (
            np.concatenate([self.lr, other.lr]),
            np.concatenate([self.losses, other.losses]),
        )
        order = np.argsort(lr)
        return Curve(lr[order], losses[order], self.seed)


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
    def exponents(self) -> dict[float, tuple[float, float, float]]:
        """The exponent from each width on, except the largest, with its interval."""
        finite = sorted(width for width in self.curves if width < math.inf)
        exponents, level = {}, LEVEL / (len(finite) - 1) / 2
        for k, start in enumerate(finite[:-1]):
            x, curves = np.log(finite[k:]), [self.curves[width] for width in finite[k:]]
            by = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
            value = float(by @ [c.vertex for c in curves])
            low, high = np.quantile(
                by @ np.array([c.vertices for c in curves]), [level, 1 - level]
            )
            exponents[start] = value, min(value, float(low)), max(value, float(high))
        return exponents

    @cached_property
    def _judged(self) -> tuple[str, float]:
        """The verdict, and the smallest width to which it applies."""
        starts = list(self.exponents)
        if any(
            not 0 < best.low <= best.high < math.inf
            for best in map(self.best, self.curves)
        ):
            return OUTSIDE, starts[0]
        ends = [(low, high) for _, low, high in self.exponents.values()]
        outside = [
            1 if low > TOLERANCE else -1 if high < -TOLERANCE else 0
            for low, high in ends
        ]
        for k, start in enumerate(starts):
            if (
                ends[k][0] >= -TOLERANCE
                and ends[k][1] <= TOLERANCE
                and not any(outside[k:])
            ):
                return (
                    TRANSFERS if k == 0 else f"{TRANSFERS} from n = {start:,.0f} on",
                    start,
                )
        if outside[0] and len(set(outside)) == 1:
            return f"shifts like n^{self.exponents[starts[0]][0]:.1f}", starts[0]
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
    def exponent(self) -> tuple[float, float, float]:
        """The exponent from `start` on, and its interval."""
        return self.exponents[self.start]

    def rows(self) -> list[dict[str, Any]]:
        """The loss at every width and learning rate, one row each, with the standard
        error of its logarithm.
        """
        return [
            {
                "parametrisation": self.name,
                "width": _plain(width),
                "lr": lr,
                "loss": loss,
                "log_error": error,
            }
            for width, c in self.curves.items()
            for lr, loss, error in zip(
                c.lr.tolist(), c.loss.tolist(), c.error.tolist(), strict=True
            )
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an interval without an upper end has None,
        infinite width is "inf".
        """
        ends = ("value", "low", "high")
        return {
            "parametrisation": self.name,
            "widths": [
                {
                    "width": _plain(width),
                    "lr": curve.lr.tolist(),
                    "loss": curve.loss.tolist(),
                    "best": {
                        k: v if math.isfinite(v) else None
                        for k, v in curve.best._asdict().items()
                    },
                }
                for width, curve in self.curves.items()
            ],
            "exponents": [
                {"from": _plain(n)} | dict(zip(ends, e, strict=True))
                for n, e in self.exponents.items()
            ],
            "verdict": self.verdict,
            "start": _plain(self.start),
            "refused": {str(_plain(width)): why for width, why in self.refused.items()},
        }


def _plain(width: float) -> int | str:
    return "inf" if width == math.inf else int(width)


@lru_cache(maxsize=4)
def _bootstrap_counts(count: int, seed: int) -> Floats:
    """How often each draw is in each sample; curves share them."""
    return (
        np.random.default_rng([20, seed])
        .multinomial(count, np.full(count, 1 / count), size=SAMPLES)
        .astype(float)
    )


def _vertex(x: Floats, y: Floats) -> Floats:
    """The minima of parabolas through the lowest of the points (x, y[…, i]) and its
    neighbours.
    """
    at = np.clip(np.argmin(y, axis=1), 1, len(x) - 2)
    rows = np.arange(len(y))
    x0, x1, x2 = (x[at + k] for k in (-1, 0, 1))
    y0, y1, y2 = (y[rows, at + k] for k in (-1, 0, 1))
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = np.where(right > left, right - left, 1.0)
    vertex = 0.5 * (x0 + x1) - 0.5 * left * (x2 - x0) / bend
    return np.asarray(np.where(right > left, np.clip(vertex, x0, x2), x1))


def _item(sweep: Sweep) -> Item:
    """The conclusion for one parametrisation, or what to do to reach one."""
    more = [
        f"No law at width {width_text(width)}: {why}."
        for width, why in sweep.refused.items()
    ]
    exponent = f"exponent {_interval(sweep.exponent)}"
    if sweep.verdict == UNKNOWN:
        more.append("More draws, larger widths or a finer grid settle it.")
        text = (
            f"{exponent}, neither within ±{TOLERANCE} nor outside for all larger widths"
        )
        return Item(UNDECIDED, sweep.name, text, more)
    if sweep.verdict != OUTSIDE:
        return Item(_status(sweep), sweep.name, f"{sweep.verdict}; {exponent}", more)
    for end, what in ((0, "smaller"), (-1, "larger")):
        widths = [
            width
            for width, curve in sweep.curves.items()
            if np.argmin(curve.loss) == range(len(curve.lr))[end]
        ]
        if widths:
            noun = "width" if len(widths) == 1 else "widths"
            at = f"{noun} {', '.join(map(width_text, widths))}"
            rate = f"add rates {what} than {sweep.curves[widths[0]].lr[end]:.3g}"
            more.append(f"At {at} the best rate is at the end of the grid: {rate}.")
    return Item(UNDECIDED, sweep.name, sweep.verdict, more)


def _status(sweep: Sweep) -> str:
    return (
        OK
        if sweep.transfers
        else UNDECIDED
        if sweep.verdict in (UNKNOWN, OUTSIDE)
        else FLAG
    )


def _interval(ends: tuple[float, float, float]) -> str:
    return "{:+.2f} ({:+.2f}, {:+.2f})".format(*(round(v, 2) + 0.0 for v in ends))


class Transfer(ByParametrisation[Sweep]):
    """A learning-rate sweep: one `Sweep` for each parametrisation, by its name or its
    place; `ns.transfer` makes it.

    Print it for the table; `save(folder)` writes the report, the figure and the tables.
    The parameters are those of `CoordCheck`; its parts are of type `Sweep`.
    """

    request: Any  # a TrainingRequest with learning rates
    heading, data, key = "Learning-rate transfer", "every loss", "sweeps"

    @property
    def _verdict(self) -> str:
        return "; ".join(f"{sweep.name} {sweep.verdict}" for sweep in self.parts)

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        r, sweeps, steps = self.request, self.parts, steps_text(self.request)
        name = f" of {r.optimiser}" if isinstance(r.optimiser, str) else ""
        done = f"Loss after {steps}{name}{{batch}}" + (
            "" if r.lr is None else f", at {len(r.lr)} learning rates"
        )
        caption = (
            f"Loss after {steps} against the learning"
            f" rate{'' if r.own else ' at the width of the model'}: geometric means"
            " over initialisations with two standard errors. The large marker is the"
            " best rate of its width; the rate transfers if these markers are above"
            " each other."
        )
        best: list[Row] = []
        for width in r.widths:
            cells = [
                (
                    Cell(str(s.best(width)))
                    if width in s.curves
                    else Cell("no law", status="absent")
                )
                for s in sweeps
            ]
            best.append([f"n = {width_text(width)}", *cells])
        for start in r.at[:-1]:
            colours = [
                COLOUR_CLASSES[_status(sweep)] if start == sweep.start else ""
                for sweep in sweeps
            ]
            cells = [
                Cell(_interval(s.exponents[start]), status=c)
                for s, c in zip(sweeps, colours, strict=True)
            ]
            best.append(
                [
                    (
                        f"exponent from {width_text(start)} on"
                        if len(r.at) > 2
                        else "exponent"
                    ),
                    *cells,
                ]
            )
        table = Table(["", *(sweep.name for sweep in sweeps)], best)
        sections = [Section("Best learning rates with 99 % intervals", [table])]
        for sweep in sweeps:
            columns = [
                dict(zip(c.lr.tolist(), c.loss.tolist(), strict=True))
                for c in sweep.curves.values()
            ]
            every = sorted({lr for column in columns for lr in column})
            rows = [
                [
                    f"{lr:.3g}",
                    *(f"{col[lr]:.3g}" if lr in col else "" for col in columns),
                ]
                for lr in every
            ]
            losses = Table(
                [
                    "learning rate",
                    *(f"n = {width_text(width)}" for width in sweep.widths),
                ],
                rows,
            )
            sections.append(
                Section(
                    f"{sweep.name}: loss at each learning rate",
                    [losses],
                    "verbose",
                    folded=True,
                )
            )
        verdict, items = (
            f"{r.name}: {self._verdict}",
            [_item(sweep) for sweep in sweeps],
        )
        return self._assembled(
            manifest,
            items,
            sections,
            verdict=verdict,
            done=done,
            caption=caption,
            rule=RULE,
        )

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each
        parametrisation; a figure.
        """
        widths, every = (
            self.request.widths,
            [curve.loss for sweep in self.parts for curve in sweep.curves.values()],
        )
        top, bottom = (
            SEEN * max(loss[0] for loss in every),
            min(loss.min() for loss in every) / SEEN,
        )

        def panel(axes: Any, sweep: Sweep) -> dict[str, Any]:
            from matplotlib import colormaps  # slow to import

            lines: dict[str, Any] = {}
            for k, (width, curve) in enumerate(sweep.curves.items()):
                colour = colormaps["viridis"](
                    0.9 * widths.index(width) / (len(widths) - 1)
                )
                style = {"color": colour, "marker": MARKS[k % len(MARKS)]}
                # of losses that diverge, the first is drawn
                above = np.flatnonzero(curve.loss > top)
                drawn = slice(
                    next((at + 1 for at in above if at >= np.argmin(curve.loss)), None)
                )
                lr, loss, error = (
                    curve.lr[drawn],
                    np.minimum(curve.loss[drawn], 10 * top),
                    curve.error[drawn],
                )
                (lines[width_text(width)],) = axes.plot(lr, loss, ms=2.5, **style)
                low, high = (
                    loss * np.exp(-2 * error),
                    loss * np.exp(2 * np.minimum(error, 10.0)),
                )
                axes.fill_between(lr, low, high, color=colour, alpha=0.15, lw=0)
                axes.plot(
                    curve.best.lr,
                    loss.min(),
                    ms=7,
                    markeredgecolor="black",
                    ls="",
                    **style,
                )
            verdict = re.sub(r"n\^(-?[0-9.]+)", r"$n^{\1}$", sweep.verdict)
            axes.set(
                xscale="log",
                yscale="log",
                ylim=(bottom, top),
                title=f"{axes.get_title()} {verdict}",
            )
            axes.yaxis.set_major_formatter("{x:g}")
            return lines

        labels = "learning rate", f"loss after {steps_text(self.request)}"
        return panels(
            self.parts, panel, labels, (0.8, 0.7), share_x=False, legend="width"
        )

    _figure = plot

    @property
    def _settings(self) -> dict[str, Any]:
        named = isinstance(self.request.optimiser, str)
        return {
            "optimiser": self.request.optimiser if named else None,
            "eps": self.request.eps if named else None,
        }
