"""The rule "llama3" for rotary frequencies: those too low for the context that a model was made for are lowered."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Stretch(NamedTuple):
    """Low frequencies are divided by `factor`, high ones stay.

    A frequency θ makes c = θ · original / 2π turns in the original context. It stays if c > high, becomes θ/factor if
    c < low, and goes linearly in c from one to the other between.
    """

    factor: float
    low: float
    high: float
    original: float

    def of(self, theta: Any) -> Any:
        """The frequencies that take the place of θ, an array."""
        turns = theta * self.original / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clip(0.0, 1.0)
        return theta * (kept + (1.0 - kept) / self.factor)
