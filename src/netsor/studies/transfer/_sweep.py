"""What the losses of a learning-rate sweep say: the best rate at each width, and whether it moves with the width.

The loss at a learning rate is the geometric mean over initialisations. The best rate is the vertex of the parabola
through the lowest point of the grid and its neighbours, in the logarithms of both. Its interval is that of 99 % over
bootstrap samples of initialisations, and half a step of the grid wide at least on either side. The exponent is the
least-squares slope of log best rate against log width, with its own interval from the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TRANSFERS, UNKNOWN, OUTSIDE = "transfers", "undecided", "not within the grid"  # verdicts, besides "shifts like n^a"
SAMPLES = 2000  # bootstrap samples
TOLERANCE = 0.1  # of an exponent, as in a coordinate check
LARGEST = 1e300  # loss; 1/LARGEST is the smallest
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
        return np.asarray(np.exp(self._logs(width).mean(axis=1)))

    def _logs(self, width: float) -> Floats:
        return np.log(np.clip(self.losses[width], 1 / LARGEST, LARGEST))

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
        for place, width in enumerate(self.losses):
            rng, logs = np.random.default_rng([20, place]), self._logs(width)
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
            return OUTSIDE
        value, low, high = self.exponent
        if low >= -TOLERANCE and high <= TOLERANCE:
            return TRANSFERS
        return f"shifts like n^{value:.1f}" if low > TOLERANCE or high < -TOLERANCE else UNKNOWN

    def error(self, width: float) -> Floats:
        """The standard error of the logarithm of the loss at each learning rate."""
        logs = self._logs(width)
        return np.asarray(logs.std(axis=1, ddof=1) / math.sqrt(logs.shape[1]))

    def rows(self) -> list[dict[str, Any]]:
        """The loss at every width and learning rate, one row each, with the standard error of its logarithm."""
        return [
            {"parametrisation": self.name, "width": _plain(width), "lr": float(lr), "loss": loss, "log_error": error}
            for width in self.losses
            for lr, loss, error in zip(self.lr, self.loss(width).tolist(), self.error(width).tolist(), strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an interval without an upper end has None, infinite width is "inf"."""
        return {
            "parametrisation": self.name,
            "lr": self.lr.tolist(),
            "widths": [
                {
                    "width": _plain(width),
                    "loss": self.loss(width).tolist(),
                    "best": {k: v if math.isfinite(v) else None for k, v in self.best(width)._asdict().items()},
                }
                for width in self.losses
            ],
            "exponent": dict(zip(("value", "low", "high"), self.exponent, strict=True)),
            "verdict": self.verdict,
            "refused": {str(_plain(width)): why for width, why in self.refused.items()},
        }


def _plain(width: float) -> int | str:
    return "inf" if width == math.inf else int(width)


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
