"""A program at given widths: its plan, its law, and what Markov chains move over."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._array_api import Floats
from ._validate import ArgumentError, as_whole
from .engine import Plan, PlanQuery, Sampling
from .engine import _quadrature_error as quadrature
from .engine import _sampler as sampler
from .engine._cost_model import Prices
from .engine._latent import Latent
from .engine._match_attention import recognise
from .engine.backends import Backend, Numpy
from .language._array import Value
from .language._vector import Vector
from .language._width import inf
from .laws import HeadSum, Joint, Mixture, Provenance
from .laws._attention_head import lazy_head

Coordinates = int | list[int] | None
NEGLIGIBLE = 1e-3  # quadrature error of draws, relative to the spread of an output


def picked(
    argument: Any, outputs: Sequence[Value], bound: Mapping[str, float]
) -> tuple[int, ...] | None:
    """The coordinates in the given order; None if none were chosen."""
    if argument is None:
        return None
    several = isinstance(argument, list | tuple | range) or (
        isinstance(argument, np.ndarray) and argument.ndim == 1
    )
    places = [as_whole(place) for place in (argument if several else [argument])]
    chosen = tuple(place for place in places if place is not None)
    if not chosen or len(chosen) < len(places):
        raise ArgumentError("coordinates", argument, "an integer or a list of integers")
    widths = {value.width.bind(bound) for value in outputs if isinstance(value, Vector)}
    if not widths:
        raise ArgumentError(
            "coordinates", argument, "left out: a scalar has no coordinates"
        )
    for width in widths:
        # infinitely many coordinates have no last one
        low = 0 if math.isinf(width) else -int(width)
        if not all(low <= place < width for place in chosen):
            allowed = (
                "0 or more at infinite width"
                if math.isinf(width)
                else f"from {low} to {width - 1}"
            )
            raise ArgumentError("coordinates", argument, allowed)
        if len({place % width for place in chosen}) < len(chosen):
            raise ArgumentError(
                "coordinates", argument, "integers that name each coordinate once"
            )
    return chosen


@dataclass(frozen=True)
class AtWidths(PlanQuery):
    """A program with its widths bound: calls the engine, and knows the status of the
    law.
    """

    status: str = field(default="exact", compare=False)

    def titled_plan(self, name: str, coordinates: Coordinates, prices: Prices) -> Plan:
        """The plan, titled with this name of the program."""
        places = picked(coordinates, self.outputs, self.bound)
        at = ", ".join(
            f"{k} = {'∞' if width == inf else f'{width:,}'}" for k, width in self.widths
        )
        title = f"plan of {name}" + (f" at {at}" if at else "")
        if places is not None:
            title += (
                f", coordinate{'s' * (len(places) > 1)} {', '.join(map(str, places))}"
            )
        # `replace` would plan its memory again
        plan = copy.copy(replace(self, picked=places, prices=prices).plan())
        plan.title = title
        return plan

    def law(self, coordinates: Coordinates, how: Sampling) -> Mixture | HeadSum | Joint:
        """By its formula, if there is one, and by the engine otherwise."""
        places = picked(coordinates, self.outputs, self.bound)
        sampled = replace(self, picked=places)._sampled
        layer = (
            recognise(self.outputs, dict(self.widths))
            if places is None or len(places) == 1
            else None
        )
        if layer is None:
            return sampled(how)
        origin = Provenance(self.status, "convolution over heads at infinite width")
        head = lazy_head(layer.scores, layer.values)
        law = HeadSum(head, layer.heads, layer.scale, origin, lambda: sampled(how))
        law._fluctuations = layer.fluctuations
        return law

    def _sampled(self, how: Sampling) -> Mixture | Joint:
        sampled = sampler.sample_conditional_law(self, how)
        origin = self._provenance(
            "exact engine", sampled.backend, how.seed, sampled, sampled.quadrature_error
        )
        if sampled.mean.shape[1] > 1 or sampled.mean_error is not None:
            joint = Joint(
                sampled.mean, sampled.cov, origin, mean_error=sampled.mean_error
            )
            return joint if joint.dim > 1 else joint[0]
        mean, var = sampled.mean[:, 0], sampled.cov[:, 0, 0]
        return Mixture(mean, var, origin, count=sampled.count, binning=sampled.binning)

    def draw(self, how: Sampling) -> list[Floats]:
        """Draws of the outputs; an error where Gaussian expectations are not accurate
        enough.
        """
        replace(self, prices=how.backend.prices).plan().check_integration(how.draws)
        quadrature.checked_quadrature_error(self.moves(how.backend))
        return self.unchecked(how)

    def unchecked(self, how: Sampling) -> list[Floats]:
        """Draws of the outputs, whatever their quadrature error."""
        return sampler.sample_outputs(self, how)

    def moves(self, where: Backend) -> quadrature.Moves | None:
        """How draws change if Gaussian expectations move by their errors; None if there
        are none.
        """
        return quadrature.moves_of_draws(replace(self, prices=where.prices), where)

    def latent(
        self, workers: int | None, where: Backend, seed: int = 0
    ) -> tuple[Latent, Provenance]:
        """The random numbers that chains move over, and the provenance of their law."""
        plan = self.plan()
        plan.check_integration(1)
        error = quadrature.checked_quadrature_error(quadrature.moves(self))
        origin = self._provenance(
            "chains over what the exact engine draws", where, seed, plan, error
        )
        return Latent(plan, workers, where), origin

    def shifted(self, workers: int | None) -> list[Latent]:
        """The same with every Gaussian expectation off by its error, either way."""
        return [Latent(self.plan(k), workers) for k in (1, 2)]

    def _provenance(
        self, what: str, where: Backend, seed: int, drawn: Any, error: float
    ) -> Provenance:
        at = ", ".join(f"{k} = {v}" for k, v in self.widths) or "fixed widths"
        method = f"{what} at {at}" + (f" ({where})" if where != Numpy() else "")
        return Provenance(
            self.status, method, drawn.random_numbers, seed, error, drawn.notes
        )
