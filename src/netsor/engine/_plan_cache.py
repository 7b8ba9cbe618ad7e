"""Plans that are asked for again: a study draws in parts, and lowering a hundred blocks takes longer than a draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ..language._array import Value
from ._cost_model import CPU, Prices
from ._plan import Plan
from .lower import make_plan


@dataclass(frozen=True)
class PlanQuery:
    """What is asked of a program: coordinates of its outputs, at given widths.

    `picked` are the coordinates, None for any one; `without` names shortcuts to leave out; `whole` are the outputs of
    the program that these are a part of, whose seeds they have; `prices` are those where the answer is computed.
    """

    outputs: tuple[Value, ...]
    widths: tuple[tuple[str, float], ...]
    picked: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()
    whole: tuple[Value, ...] = field(default=())
    prices: Prices = CPU

    @property
    def bound(self) -> Mapping[str, float]:
        """The widths by name."""
        return dict(self.widths)

    def plan(self, shift: int = 0) -> Plan:
        """The plan that answers it; the last ones are not made again. For `shift` see `_expectation_ops`."""
        return _kept(self) if shift == 0 else _made(self, shift)


def _made(question: PlanQuery, shift: int) -> Plan:
    return make_plan(
        question.outputs,
        question.bound,
        without=question.without,
        shift=shift,
        picked=question.picked,
        whole=question.whole,
        prices=question.prices,
    )


@lru_cache(maxsize=4)
def _kept(question: PlanQuery) -> Plan:
    return _made(question, 0)
