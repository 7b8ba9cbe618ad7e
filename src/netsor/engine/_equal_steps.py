"""When two steps compute the same: then one is made, or the steps of a block repeat those of another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..activations import Function
from ..language._content import content_of
from ._loops import NEAR
from ._steps import Register, Step


def key_of(kind: str, args: tuple[Hashable, ...], params: dict[str, Any]) -> Any:
    """A key that is equal for two steps that compute the same; None if a parameter cannot be hashed."""
    key = kind, args, tuple((name, content(value)) for name, value in params.items())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def kind_of(step: Step, place: int, made: Mapping[Register, int]) -> Any:
    """Equal for steps that do the same, with the same steps before them: all but streams and numbers of constants."""
    back = [place - made[arg] if arg in made else 0 for arg in step.args]
    args = tuple(
        (distance if distance <= NEAR else -1, arg.shape) for distance, arg in zip(back, step.args, strict=True)
    )
    params = {name: value for name, value in step.params.items() if name not in ("key", "by")}
    return key_of(step.kind, args, params) or id(step), step.out.shape


def content(value: Any) -> Any:
    """What two parameters of steps are compared by: arrays by their numbers, functions by what they compute."""
    match value:
        case np.ndarray():
            return content_of(value)
        case Function():
            return content(value.f), value.breaks, content(value.smoothed), value.parity
        case partial():
            return value.func, value.args, tuple((name, content(given)) for name, given in value.keywords.items())
    return value
