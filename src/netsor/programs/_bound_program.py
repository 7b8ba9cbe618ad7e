"""A program at given widths: its plan, its law, and what Markov chains move over."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._array_api import Floats
from .._validate import ArgumentError, as_whole
from ..engine import Plan, PlanQuery, Sampling
from ..engine.backends import Backend, Numpy
from ..engine.closed_form._match_attention import recognise
from ..engine.plan._cost_model import Prices
from ..engine.run import _quadrature_error as quadrature
from ..engine.run import _sampler as sampler
from ..language.values._array import Value
from ..language.values._vector import Vector
from ..language.values._width import inf
from ..laws import HeadSum, Joint, Mixture, Provenance
from ..laws.attention._attention_head import lazy_head
from ..posterior._latent import Latent

Coordinates = int | list[int] | None
# A smaller quadrature error of draws, relative to the spread of an output, is ignored.
NEGLIGIBLE = 1e-3


def picked(
    argument: Any, outputs: Sequence[Value], bound: Mapping[str, float]
) -> tuple[int, ...] | None:
    """The checked coordinates of the argument `coordinates`, in its order.

    They are valid for all vectors among the outputs; negative ones count from the end.
    None if the user chose none.
    """
    if argument is None:
        return None
    chosen = _as_coordinates(argument)
    widths = {value.width.bind(bound) for value in outputs if isinstance(value, Vector)}
    if not widths:
        raise ArgumentError(
            "coordinates", argument, "left out: a scalar has no coordinates"
        )
    for width in widths:
        if math.isinf(width):
            least = 0  # infinitely many have no last one
            allowed = "0 or more at infinite width"
        else:
            least = -int(width)
            allowed = f"from {least} to {width - 1}"
        if not all(least <= coordinate < width for coordinate in chosen):
            raise ArgumentError("coordinates", argument, allowed)
        if len({coordinate % width for coordinate in chosen}) < len(chosen):
            raise ArgumentError(
                "coordinates", argument, "integers that name each coordinate once"
            )
    return chosen


def _as_coordinates(argument: Any) -> tuple[int, ...]:
    """An integer or a list of integers, as a tuple that is not empty."""
    is_list = isinstance(argument, list | tuple | range)
    is_vector = isinstance(argument, np.ndarray) and argument.ndim == 1
    entries = argument if is_list or is_vector else [argument]
    coordinates = []
    for entry in entries:
        coordinate = as_whole(entry)
        if coordinate is not None:
            coordinates.append(coordinate)
    if not coordinates or len(coordinates) < len(entries):
        raise ArgumentError("coordinates", argument, "an integer or a list of integers")
    return tuple(coordinates)


@dataclass(frozen=True)
class AtWidths(PlanQuery):
    """A program with its widths bound, which calls the engine.

    `status` says how far its law is proved: "exact" at finite widths, or the verdict of
    the checker.
    """

    status: str = field(default="exact", compare=False)
    # of the program
    notes: tuple[str, ...] = field(default=(), compare=False)

    def titled_plan(self, name: str, coordinates: Coordinates, prices: Prices) -> Plan:
        """The plan, titled with this name of the program."""
        positions = picked(coordinates, self.outputs, self.bound)
        title = f"plan of {name}"
        sizes = []
        for width_name, width in self.widths:
            size = "∞" if width == inf else f"{width:,}"
            sizes.append(f"{width_name} = {size}")
        if sizes:
            title += f" at {', '.join(sizes)}"
        if positions is not None:
            noun = "coordinates" if len(positions) > 1 else "coordinate"
            title += f", {noun} {', '.join(map(str, positions))}"
        # `dataclasses.replace` of the plan would plan its memory again
        plan = copy.copy(replace(self, picked=positions, prices=prices).plan())
        plan.title = title
        return plan

    def law(
        self, coordinates: Coordinates, sampling: Sampling
    ) -> Mixture | HeadSum | Joint:
        """The law by its formula, if there is one, and by the engine otherwise."""
        positions = picked(coordinates, self.outputs, self.bound)
        at_positions = replace(self, picked=positions)
        layer = None
        if positions is None or len(positions) == 1:
            layer = recognise(self.outputs, dict(self.widths))
        if layer is None:
            return at_positions._sampled(sampling)
        origin = Provenance(
            self.status, "convolution over heads at infinite width", notes=self.notes
        )
        head = lazy_head(layer.scores, layer.values)
        law = HeadSum(
            head,
            layer.heads,
            layer.scale,
            origin,
            mixture=lambda: at_positions._sampled(sampling),
        )
        law._fluctuations = layer.fluctuations
        return law

    def _sampled(self, sampling: Sampling) -> Mixture | Joint:
        """The law as a mixture over replicas."""
        sampled = sampler.sample_conditional_law(self, sampling)
        origin = self._provenance(
            "exact engine",
            backend=sampled.backend,
            seed=sampling.seed,
            drawn=sampled,
            quadrature_error=sampled.quadrature_error,
        )
        if sampled.mean.shape[1] > 1 or sampled.mean_error is not None:
            joint = Joint(
                sampled.mean, sampled.cov, origin, mean_error=sampled.mean_error
            )
            return joint if joint.dim > 1 else joint[0]
        mean = sampled.mean[:, 0]
        var = sampled.cov[:, 0, 0]
        return Mixture(mean, var, origin, count=sampled.count, binning=sampled.binning)

    def draw(self, sampling: Sampling) -> list[Floats]:
        """Draws of the outputs, if Gaussian expectations are accurate enough.

        It raises an error otherwise.
        """
        prices = sampling.backend.prices
        replace(self, prices=prices).plan().check_integration(sampling.draws)
        quadrature.checked_quadrature_error(self.moves(sampling.backend))
        return self.unchecked(sampling)

    def unchecked(self, sampling: Sampling) -> list[Floats]:
        """Draws of the outputs, whatever their quadrature error."""
        return sampler.sample_outputs(self, sampling)

    def moves(self, backend: Backend) -> quadrature.Moves | None:
        """How draws change if Gaussian expectations move by their errors.

        None if there are no expectations with errors.
        """
        at_prices = replace(self, prices=backend.prices)
        return quadrature.moves_of_draws(at_prices, backend)

    def latent(
        self, workers: int | None, backend: Backend, seed: int = 0
    ) -> tuple[Latent, Provenance]:
        """The random numbers that chains move over, and the provenance of their law."""
        plan = self.plan()
        plan.check_integration(1)
        error = quadrature.checked_quadrature_error(quadrature.moves(self))
        origin = self._provenance(
            "chains over what the exact engine draws",
            backend=backend,
            seed=seed,
            drawn=plan,
            quadrature_error=error,
        )
        return Latent(plan, workers, backend), origin

    def shifted(self, workers: int | None) -> list[Latent]:
        """`latent` with every Gaussian expectation off by its error, up and down."""
        return [Latent(self.plan(shift), workers) for shift in (1, 2)]

    def _provenance(
        self,
        method: str,
        *,
        backend: Backend,
        seed: int,
        drawn: Any,
        quadrature_error: float,
    ) -> Provenance:
        """The provenance of a law; `drawn` has its random numbers and notes."""
        widths = ", ".join(f"{name} = {width}" for name, width in self.widths)
        method = f"{method} at {widths or 'fixed widths'}"
        if backend != Numpy():
            method += f" ({backend})"
        return Provenance(
            status=self.status,
            method=method,
            random_numbers=drawn.random_numbers,
            seed=seed,
            quadrature_error=quadrature_error,
            notes=(*self.notes, *drawn.notes),
        )
