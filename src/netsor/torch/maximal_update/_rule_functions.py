"""The functions of a derived rule, of its object or its TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._validate import ArgumentError, shown
from ...maximal_update._file_content import FileContent
from ...maximal_update._results import DerivedRule
from ...maximal_update._toml_file import (
    check_optimiser,
    content_of_file,
    unreadable_file,
)
from ._emitted_file import source_of
from ._real_training import Functions, executed, functions_in, functions_of


def functions_of_file(path: Path, optimiser: str) -> Functions:
    """The functions of the rule in a TOML file, which must be one for an optimiser.

    They use the base of the file.
    """
    content = content_of_file(path)
    check_optimiser(content.optimiser, optimiser, str(path))
    return functions_of_content(content)


def functions_of_python(
    path: Path, optimiser: str, width: int | None = None
) -> Functions:
    """The functions of a Python file of a rule, which is executed, and which must be
    for an optimiser.

    They use the base of the file. If an older file does not state it, it is `width`, or
    that with which they are called.
    """
    try:
        module = executed(path.read_text(encoding="utf-8"))
        functions = functions_in(module)
    except Exception as error:  # of any kind: the file is the user's
        raise unreadable_file(path, error) from None
    of_rule = module.__dict__.get("OPTIMISER", optimiser)
    check_optimiser(of_rule, optimiser, str(path))
    base = module.__dict__.get("BASE_WIDTH", width)
    return functions if base is None else _with_base(functions, base, str(path))


def rule_functions(rule: Any, optimiser: str, width: int) -> Functions:
    """The functions of one rule: what `parametrise` returns, or one of its files.

    `width` is the base of a file that does not state its own.
    """
    if isinstance(rule, list | tuple) and len(rule) == 1:
        (rule,) = rule
    if isinstance(rule, DerivedRule):
        content = rule.content()
        check_optimiser(content.optimiser, optimiser, "the rule")
        return functions_of_content(content)
    if isinstance(rule, str | Path) and str(rule).endswith(".toml"):
        return functions_of_file(Path(rule), optimiser)
    if isinstance(rule, str | Path) and str(rule).endswith(".py"):
        return functions_of_python(Path(rule), optimiser, width)
    raise ArgumentError(
        "parametrisation",
        shown(str(rule)),
        "one rule of ns.torch.parametrise, or its .py or .toml file, for a PyTorch"
        " module",
    )


def functions_of_content(content: FileContent) -> Functions:
    """The functions of a rule, with its own base for every other one."""
    functions = functions_of(source_of(content))
    return _with_base(functions, content.base_width, content.module)


def _with_base(functions: Functions, base: int, source: str) -> Functions:
    """The functions of a rule at its own base, whatever base they are called with."""

    def applied(function: Callable[..., Any], module: Any, *numbers: float) -> Any:
        """What a function of the rule returns for a module."""
        try:
            return function(module, *numbers, base)
        except (AttributeError, IndexError, KeyError) as error:
            name = type(module).__name__
            raise ArgumentError(
                "parametrisation",
                source,
                f"a rule for {name}: {' '.join(map(str, error.args))}",
            ) from None

    return Functions(
        initialise=lambda module, *_: applied(functions.initialise, module),
        scale_outputs=lambda module, *_: applied(functions.scale_outputs, module),
        param_groups=lambda module, lr, *_: applied(functions.param_groups, module, lr),
    )
