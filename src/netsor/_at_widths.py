"""A program at given widths: the plan, the law, and what Markov chains move over."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .engine import Plan, QuadratureWarning, Question, Sampling
from .engine._coordinates import picked
from .engine._latent import Latent
from .engine._prices import Prices
from .engine._recognise import recognise
from .engine._sampler import Moves, conditional, drawn, known_error, moves, moves_of_draws, split
from .engine.backends import Backend, Numpy
from .language._array import Value
from .language._width import inf
from .laws import HeadSum, Joint, Mixture, Origin, head_sum

Numbers = npt.NDArray[np.float64]
Coordinates = int | list[int] | None
NEGLIGIBLE = 1e-3  # quadrature error of draws, relative to the spread of an output


@dataclass(frozen=True)
class AtWidths:
    """Outputs of a program with its widths bound, and what is known of their law there.

    `whole` are all outputs of the program: those of a part have the seeds and the widths of the whole.
    """

    outputs: tuple[Value, ...]
    whole: tuple[Value, ...]
    widths: dict[str, float]
    status: str

    def question(self, places: Sequence[int] | None = None) -> Question:
        """What the engine is asked for: these coordinates of the vectors, or any."""
        chosen = None if places is None else tuple(places)
        return Question(self.outputs, tuple(self.widths.items()), chosen, whole=self.whole)

    def plan(self, name: str, coordinates: Coordinates, prices: Prices) -> Plan:
        """What would be drawn and computed, for a program of this name."""
        places = picked(coordinates, self.outputs, self.widths)
        at = ", ".join(f"{k} = {'∞' if width == inf else f'{width:,}'}" for k, width in self.widths.items())
        title = f"plan of {name}" + (f" at {at}" if at else "")
        if places is not None:
            title += f", coordinate{'s' * (len(places) > 1)} {', '.join(map(str, places))}"
        return replace(replace(self.question(places), prices=prices).plan(), title=title)

    def law(self, coordinates: Coordinates, how: Sampling) -> Mixture | HeadSum | Joint:
        """By its formula, if there is one, and by the engine otherwise."""
        places = picked(coordinates, self.outputs, self.widths)
        layer = recognise(self.outputs, self.widths) if places is None or len(places) == 1 else None
        if layer is None:
            return self._sampled(places, how)
        origin = Origin(self.status, "convolution over heads at infinite width")
        return head_sum(
            layer.scores, layer.values, layer.heads, layer.scale, origin, lambda: self._sampled(places, how)
        )

    def _sampled(self, places: Sequence[int] | None, how: Sampling) -> Mixture | Joint:
        found = conditional(self.question(places), how)
        origin = Origin(
            self.status,
            self._method("exact engine", how.backend),
            found.random_numbers,
            how.seed,
            found.quadrature_error,
            found.notes,
        )
        if found.mean.shape[1] > 1:
            return Joint(found.mean, found.cov, origin)
        mean, var = found.mean[:, 0], found.cov[:, 0, 0]
        return Mixture(mean, var, origin, count=found.count, binning=found.binning)

    def draw(self, how: Sampling) -> list[Numbers]:
        """Draws of the outputs, refused as a law is; with a warning if their quadrature error is not negligible."""
        error = known_error(moves_of_draws(self._priced(how)))
        if error > NEGLIGIBLE:
            warnings.warn(QuadratureWarning(error), stacklevel=3)
        return self.unchecked(how)

    def unchecked(self, how: Sampling) -> list[Numbers]:
        """Draws of the outputs, whatever their quadrature error."""
        return drawn(self._priced(how), how)

    def moves(self, where: Backend) -> Moves | None:
        """What Gaussian expectations do to draws if they move by their errors; None if there are none."""
        return moves_of_draws(replace(self.question(), prices=where.prices))

    def split(self, rows: Numbers) -> list[Numbers]:
        """Numbers of all entries, (…, entries), by output: (…, *shape) each."""
        return split(rows, self.outputs)

    def _priced(self, how: Sampling) -> Question:
        return replace(self.question(), prices=how.backend.prices)

    def latent(self, workers: int | None, where: Backend, seed: int = 0) -> tuple[Latent, Origin]:
        """What chains move over, and what is known of it."""
        question = self.question()
        plan = question.plan()
        error = known_error(moves(question))
        method = self._method("chains over what the exact engine draws", where)
        return Latent(plan, workers, where), Origin(self.status, method, plan.random_numbers, seed, error, plan.notes)

    def shifted(self, workers: int | None) -> list[Latent]:
        """The same with every Gaussian expectation off by its error, either way."""
        return [Latent(self.question().plan(k), workers) for k in (1, 2)]

    def _method(self, what: str, where: Backend) -> str:
        at = ", ".join(f"{k} = {v}" for k, v in self.widths.items()) or "fixed widths"
        return f"{what} at {at}" + (f" ({where})" if where != Numpy() else "")
