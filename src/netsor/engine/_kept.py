"""Plans that are asked for again: a study draws in parts, and lowering a hundred blocks takes longer than a draw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from ..language._value import Value
from ._plan import Plan
from .lower import make_plan


def kept_plan(outputs: Sequence[Value], widths: Mapping[str, float], without: Collection[str] = ()) -> Plan:
    """The plan of these very values at these widths, the last ones not made again."""
    return _kept(tuple(outputs), tuple(widths.items()), tuple(without))


@lru_cache(maxsize=4)
def _kept(outputs: tuple[Value, ...], widths: tuple[tuple[str, float], ...], without: tuple[str, ...]) -> Plan:
    return make_plan(outputs, dict(widths), without=without)
