"""How PyTorch trains the modules of a learning-rate sweep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ._measure import TorchSubject
from ._optimisers import FAMILIES
from ._real_training import Functions, Training, functions_of
from ._rule_functions import functions_of_file, functions_of_python


class OfTorch:
    """PyTorch, as a sweep uses it."""

    words = "a PyTorch module"
    own_optimiser = "a function of the module that returns its optimiser"
    optimisers: Sequence[str] = tuple(FAMILIES)

    @staticmethod
    def is_optimiser(optimiser: Any) -> bool:
        """Whether this makes an optimiser of a module."""
        return callable(optimiser)

    @staticmethod
    def functions_of(source: str) -> Functions:
        """The functions of an emitted file."""
        return functions_of(source)

    @staticmethod
    def functions_of_toml(path: Path, optimiser: str) -> Functions:
        """The functions of a rule for an optimiser, from its TOML file."""
        return functions_of_file(path, optimiser)

    @staticmethod
    def functions_of_python(path: Path, optimiser: str) -> Functions:
        """The functions of a Python file of a rule for an optimiser."""
        return functions_of_python(path, optimiser)

    @staticmethod
    def training(request: Any, functions: Functions | None) -> Training:
        """How the modules of a sweep are trained."""
        is_named = isinstance(request.optimiser, str)
        family = FAMILIES[request.optimiser if is_named else "adamw"]
        subject = TorchSubject(
            request.model, family, request.batch, request.seed, 1, None
        )
        matrices = request.matrices or subject.matrices_of_size
        return Training(
            build=request.model,
            family=family,
            batch=request.batch,
            seed=request.seed,
            base=(int(request.widths[0]),),
            functions=functions,
            make=None if is_named else request.optimiser,
            matrices=lru_cache(matrices),
        )
