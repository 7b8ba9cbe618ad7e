"""Parameters by name, where `torch.nn.utils.parametrize` may have renamed them."""

from __future__ import annotations

from typing import Any


def parameters_of(module: Any) -> dict[str, Any]:
    """The parameters by the names that they have without scales."""
    return {original_name(name): p for name, p in module.named_parameters()}


def original_name(name: str) -> str:
    """The name of a parameter before `parametrize` moved it."""
    if "parametrizations." not in name:
        return name
    return name.replace("parametrizations.", "").removesuffix(".original")
