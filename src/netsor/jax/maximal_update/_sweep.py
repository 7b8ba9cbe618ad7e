"""How JAX trains the models of a learning-rate sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import subject_of
from ._optimisers import FAMILIES
from ._real_training import JaxTraining, Written, functions_of_source


class OfJax:
    """JAX, as a sweep uses it."""

    words = "a JAX model"
    own_optimiser = "an optax.GradientTransformation"
    optimisers: Sequence[str] = tuple(FAMILIES)

    @staticmethod
    def is_optimiser(optimiser: Any) -> bool:
        """Whether this is an optimiser of optax."""
        return callable(getattr(optimiser, "update", None))

    @staticmethod
    def functions_of(source: str) -> Written:
        """The functions of an emitted file."""
        return functions_of_source(source)

    @staticmethod
    def training(request: Any, functions: Written | None) -> JaxTraining:
        """How the models of a sweep are trained."""
        subject = subject_of(
            request.model,
            request.optimiser,
            request.batch,
            request.seed,
            base_width=int(request.widths[0]),
        )
        return JaxTraining(
            subject=subject,
            functions=functions,
            seed=request.seed,
            graphs=subject.graphs,
        )
