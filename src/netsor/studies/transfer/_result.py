"""The result of a learning-rate sweep: the best learning rate at each width, and whether it moves with the width.

The loss at a learning rate is the geometric mean over initialisations. The best rate is the vertex of the parabola
through the lowest point of the grid and its neighbours, in the logarithms of both. Its interval is that of 99 % over
bootstrap samples of initialisations, and half a step of the grid wide at least on either side. The exponent is the
least-squares slope of log best rate against log width, with its own interval from the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._mpl_style import styled

Floats = npt.NDArray[np.float64]

SAMPLES = 2000  # bootstrap samples
TOLERANCE = 0.1  # of an exponent, as in a coordinate check
LEVEL = 1e-2  # of intervals; smaller ones would need more samples


class Optimum(NamedTuple):
    """The best learning rate at one width, and the ends of an interval for it.

    Parameters
    ----------
    lr : float
        The best learning rate.
    low, high : float
        The ends of its interval: 0 or infinity if the lowest loss is at an end of the grid.

    Examples
    --------
    >>> from netsor.studies.transfer import Optimum
    >>> Optimum(0.1, 0.05, 0.2).lr
    0.1
    """

    lr: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.lr:.3g} ({self.low:.2g}, {self.high:.2g})"


@dataclass(frozen=True, eq=False)
class Sweep:
    """The losses of one parametrisation.

    Parameters
    ----------
    name : str
        Of the parametrisation.
    lr : numpy.ndarray
        The learning rates.
    losses : mapping of float to numpy.ndarray
        The losses (rates, draws) at each width.
    refused : mapping of float to str
        The widths without a law, and why.

    Examples
    --------
    >>> from netsor.studies.transfer import Sweep
    >>> lr = 2.0 ** np.arange(-4, 5)
    >>> losses = {n: 1.0 + np.log(lr * n)[:, None] ** 2 + 0.01 * np.arange(8) for n in (1.0, 2.0, 4.0)}
    >>> sweep = Sweep("mine", lr, losses, {})
    >>> print(sweep.best(2.0), sweep.verdict)
    0.5 (0.35, 0.71) shifts like n^-1.0
    """

    name: str
    lr: Floats
    losses: Mapping[float, Floats]
    refused: Mapping[float, str]

    @property
    def widths(self) -> tuple[float, ...]:
        """The widths that have losses."""
        return tuple(self.losses)

    def loss(self, width: float) -> Floats:
        """The geometric mean of the losses at each learning rate."""
        with np.errstate(all="ignore"):
            return np.asarray(np.exp(np.log(self.losses[width]).mean(axis=1)))

    def best(self, width: float) -> Optimum:
        """The best learning rate at a width."""
        vertex, low, high = _ends(*self._vertices[width])
        step = 0.5 * float(np.diff(np.log(self.lr)).max())
        low, high = min(low, vertex - step), max(high, vertex + step)
        at = int(np.argmin(self.loss(width)))
        ends = (0.0 if at == 0 else math.exp(low)), (math.inf if at == len(self.lr) - 1 else math.exp(high))
        return Optimum(math.exp(vertex), *ends)

    @cached_property
    def _vertices(self) -> dict[float, tuple[float, Floats]]:
        """Log best rates: of all draws, and of bootstrap samples."""
        found = {}
        for place, (width, losses) in enumerate(self.losses.items()):
            rng = np.random.default_rng([20, place])
            with np.errstate(all="ignore"):
                logs = np.minimum(np.log(losses), 690.0)  # below that of the largest double
            share = rng.multinomial(logs.shape[1], np.full(logs.shape[1], 1 / logs.shape[1]), size=SAMPLES)
            means = share @ logs.T / logs.shape[1]
            found[width] = float(_vertex(np.log(self.lr), logs.mean(axis=1)[None])[0]), _vertex(np.log(self.lr), means)
        return found

    @property
    def exponent(self) -> tuple[float, float, float]:
        """The power of the width that the best learning rate goes like, and the ends of its interval."""
        finite = [width for width in self.losses if width < math.inf]
        x = np.log(finite)
        by = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        vertices = [self._vertices[width] for width in finite]
        return _ends(float(by @ [v for v, _ in vertices]), by @ np.array([some for _, some in vertices]))

    @property
    def verdict(self) -> str:
        """Whether the exponent is within 0.1 of 0 ("transfers"), beyond it ("shifts like n^a"), or neither is known.

        "not within the grid": at some width the lowest loss is at an end of the grid.
        """
        if any(not 0 < self.best(width).low <= self.best(width).high < math.inf for width in self.losses):
            return "not within the grid"
        value, low, high = self.exponent
        if low >= -TOLERANCE and high <= TOLERANCE:
            return "transfers"
        return f"shifts like n^{value:.1f}" if low > TOLERANCE or high < -TOLERANCE else "undecided"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "parametrisation": self.name,
            "lr": self.lr.tolist(),
            "widths": [
                {"width": n, "loss": self.loss(n).tolist(), "best": self.best(n)._asdict()} for n in self.losses
            ],
            "exponent": dict(zip(("value", "low", "high"), self.exponent, strict=True)),
            "verdict": self.verdict,
            "refused": dict(self.refused),
        }


def _vertex(x: Floats, y: Floats) -> Floats:
    """Where parabolas through the lowest of the points (x, y[…, i]) and its neighbours are lowest."""
    at = np.clip(np.argmin(y, axis=1), 1, len(x) - 2)
    rows = np.arange(len(y))
    x0, x1, x2 = (x[at + k] for k in (-1, 0, 1))
    y0, y1, y2 = (y[rows, at + k] for k in (-1, 0, 1))
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = np.where(right > left, right - left, 1.0)
    vertex = 0.5 * (x0 + x1) - 0.5 * left * (x2 - x0) / bend
    return np.asarray(np.where(right > left, np.clip(vertex, x0, x2), x1))


def _ends(value: float, samples: Floats) -> tuple[float, float, float]:
    low, high = np.quantile(samples, [LEVEL / 2, 1 - LEVEL / 2])
    return value, min(value, float(low)), max(value, float(high))


class Transfer(Sequence[Sweep]):
    """A sweep for each parametrisation; `ns.transfer` makes it.

    Parameters
    ----------
    name : str
        Of the model.
    steps : int
        How many there were.
    sweeps : sequence of Sweep
        One for each parametrisation.

    Examples
    --------
    >>> from netsor.studies.transfer import Sweep, Transfer
    >>> lr = 2.0 ** np.arange(-4, 5)
    >>> losses = {n: 1.0 + np.log(lr)[:, None] ** 2 + 0.01 * np.arange(8) for n in (64.0, 256.0)}
    >>> print(Transfer("mine", 4, [Sweep("mup", lr, losses, {})]))
    mine, 4 steps: best learning rates with intervals
    width      mup
    64         1 (0.71, 1.4)
    256        1 (0.71, 1.4)
    exponent   +0.00 (+0.00, +0.00)
    verdict    transfers
    """

    def __init__(self, name: str, steps: int, sweeps: Sequence[Sweep]) -> None:
        self.name, self.steps, self.sweeps = name, steps, list(sweeps)

    def __len__(self) -> int:
        return len(self.sweeps)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return next(sweep for sweep in self.sweeps if sweep.name == key)
        return self.sweeps[key]

    def __str__(self) -> str:
        rows = [("width", *(sweep.name for sweep in self.sweeps))]
        for width in dict.fromkeys(n for sweep in self.sweeps for n in (*sweep.losses, *sweep.refused)):
            cells = [str(sweep.best(width)) if width in sweep.losses else "no law" for sweep in self.sweeps]
            rows.append(("∞" if width == math.inf else f"{width:,.0f}", *cells))
        powers = ["{:+.2f} ({:+.2f}, {:+.2f})".format(*(v + 0.0 for v in sweep.exponent)) for sweep in self.sweeps]
        rows += [("exponent", *powers), ("verdict", *(sweep.verdict for sweep in self.sweeps))]
        lines = ["".join(f"{cell:<{11 if k == 0 else 28}}" for k, cell in enumerate(row)).rstrip() for row in rows]
        return "\n".join([f"{self.name}, {self.steps} steps: best learning rates with intervals", *lines])

    __repr__ = __str__

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"model": self.name, "steps": self.steps, "sweeps": [sweep.as_dict() for sweep in self.sweeps]}

    def plot(self) -> Any:
        """Loss against learning rate, a line for each width and a panel for each parametrisation; a figure."""
        with styled():
            from matplotlib import colormaps
            from matplotlib.figure import Figure

            figure = Figure(figsize=(3.4 * len(self.sweeps), 2.6), layout="constrained")
            panels = figure.subplots(1, len(self.sweeps), sharey=True, squeeze=False)[0]
            for axes, sweep in zip(panels, self.sweeps, strict=True):
                for k, width in enumerate(sweep.losses):
                    colour = colormaps["viridis"](0.9 * k / max(1, len(sweep.losses) - 1))
                    loss = sweep.loss(width)
                    seen = loss < 10 * np.nanmedian(loss[:1])  # a diverging loss would flatten all others
                    label = "∞" if width == math.inf else f"{width:,.0f}"
                    axes.plot(sweep.lr[seen], loss[seen], color=colour, label=label)
                    at = int(np.argmin(loss))
                    axes.plot(sweep.lr[at], loss[at], "o", color=colour)
                axes.set_xscale("log", base=2)
                axes.set(xlabel="learning rate", title=f"{sweep.name}: {sweep.verdict}")
            panels[0].set(ylabel=f"loss after {self.steps} steps")
            panels[-1].legend(title="width")
        return figure
