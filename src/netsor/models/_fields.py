"""The fields of a description: which values each may have, and how a text gives one."""

from __future__ import annotations

import sys
from typing import Any

from ..language._given import shown
from ..language._stretch import Stretch

CHOICES = {
    "positions": ("learned", "rotary", "alibi", "relative", "none"),
    "norm": ("layer", "rms"),
    "order": ("pre", "post", "parallel", "sandwich", "after"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "tanh"),
    "distribution": ("gaussian", "uniform", "truncated"),
    "inputs": ("tokens", "patches"),
    "readout": ("linear", "transform", "class"),
}
# Numbers of a description are within these, so that their squares, and they times the root of any width, can be drawn.
LEAST, MOST = 1e-40, 1e40


def parsed(kind: str, text: str) -> Any:
    """The value of a field that a text gives, if it is of the kind of the field; else the text."""
    if text.lower() == "none" and "None" in kind:
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
        if kind.startswith("Stretch"):
            return Stretch(*map(float, text.split(",")))
    except (ValueError, TypeError):
        pass  # the check of the field says what is allowed
    return text


def checked(name: str, kind: str, value: Any) -> Any:
    """The value of a field, or an error that says what is allowed."""
    if value is None and "None" in kind:
        return None
    if name in CHOICES:
        if value not in CHOICES[name]:
            refuse(name, value, f"must be one of {', '.join(CHOICES[name])}")
    elif kind == "str":
        if not isinstance(value, str) or not value:
            refuse(name, value, "must be a text")
    elif kind == "bool":
        if not isinstance(value, bool):
            refuse(name, value, "must be True or False")
    elif kind.startswith("int"):
        least = 0 if name in ("decoder_layers", "padding") else 1
        if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value < 2**53:
            huge = isinstance(value, int) and value >= 2**53
            refuse(name, value, f"must be an integer, at least {least}" + ", below 2^53" * huge)
        return int(value)
    elif kind.startswith("Stretch"):
        if not isinstance(value, tuple) or len(value) != 4 or not all(_positive(v) for v in value):
            refuse(name, value, "must be four positive numbers: factor, low, high, original")
        if not value[1] < value[2]:
            refuse(name, value, "must have low below high")
        return Stretch(*map(float, value))
    else:
        zero = name == "eps" or name.startswith(("std", "bias"))
        if not _number(value) or not ((zero and value == 0) or LEAST <= value <= MOST):
            refuse(name, value, f"must be a finite number,{' 0 or' * zero} from {LEAST:g} to {MOST:g}")
        if name == "rotary_fraction" and value > 1:
            refuse(name, value, "must be at most 1")
        return float(value)
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def refuse(name: str, value: Any, allowed: str) -> None:
    """An error about a field."""
    raise ValueError(f"{name}={shown(value)} of a Transformer {allowed}")
