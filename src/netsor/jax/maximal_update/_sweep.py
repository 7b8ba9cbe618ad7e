"""How JAX trains the models of a learning-rate sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...maximal_update._toml_file import (
    check_optimiser,
    content_of_file,
    unreadable_file,
)
from .._optax import EXPECTED, is_transformation
from ._emitted_file import source_of
from ._measure import subject_of
from ._optimisers import FAMILIES
from ._real_training import JaxTraining, Written, functions_of_source


class OfJax:
    """JAX, as a sweep uses it."""

    words = "a JAX model"
    own_optimiser = EXPECTED
    optimisers: Sequence[str] = tuple(FAMILIES)

    @staticmethod
    def is_optimiser(optimiser: Any) -> bool:
        """Whether this is an optimiser of optax, or a function that may make one."""
        return is_transformation(optimiser) or callable(optimiser)

    @staticmethod
    def functions_of(source: str) -> Written:
        """The functions of an emitted file."""
        return functions_of_source(source)

    @staticmethod
    def functions_of_toml(path: Path, optimiser: str) -> Written:
        """The functions of a rule for an optimiser, from its TOML file, whose base they
        use.
        """
        content = content_of_file(path)
        check_optimiser(content.optimiser, optimiser, str(path))
        family = FAMILIES[content.optimiser]
        written = functions_of_source(source_of(content, family, "arrays", {}))
        base = content.base_width
        return Written(
            initialise=lambda params, _: written.initialise(params, base),
            scale_outputs=lambda params, _: written.scale_outputs(params, base),
            optimiser=lambda params, lr, _: written.optimiser(params, lr, base),
        )

    @staticmethod
    def functions_of_python(path: Path, optimiser: str) -> Written:
        """The functions of a Python file of a rule, which has its own optimiser."""
        try:
            return functions_of_source(path.read_text(encoding="utf-8"))
        except Exception as error:  # of any kind: the file is the user's
            raise unreadable_file(path, error) from None

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
