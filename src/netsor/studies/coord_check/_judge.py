"""Verdicts: is an exponent what the parametrisation promises, and if not, which learning rate is to be changed?

The rule. An exponent is *as promised* if its interval of level 1e-4 lies within the tolerance of the promise, it
*grows* or *shrinks* if the interval lies beyond it, and is undecided if neither: more draws, or widths further apart,
would settle it. The tolerance is for the terms that vanish as widths grow, which no number of draws takes away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ._fit import Exponent, Fit
from ._network import CHANGE, SIZE, UPDATE, Entry

KEPT, GROWS, SHRINKS, UNDECIDED, STILL = "as promised", "grows", "shrinks", "undecided", "does not move"
ORDER = (KEPT, STILL, UNDECIDED, SHRINKS, GROWS)  # the worst last
WHOLE = 0.1  # how near an exponent must be to a half or a whole number to be called that


class Verdict(NamedTuple):
    """What is said of an activation, or of a kind of weight: that of its worst block."""

    entry: Entry
    promised: float
    fit: Fit | None
    verdict: str

    @property
    def exponent(self) -> Exponent | None:
        """The exponent of the worst block."""
        return None if self.fit is None else self.fit.exponent


def judged(fit: Fit | None, promised: float, tolerance: float) -> str:
    """The verdict on one exponent."""
    if fit is None:
        return STILL
    low, high = fit.exponent.low, fit.exponent.high
    if low > promised + tolerance:
        return GROWS
    if high < promised - tolerance:
        return SHRINKS
    return KEPT if promised - tolerance <= low and high <= promised + tolerance else UNDECIDED


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of several blocks; among equals the one furthest from the promise."""
    return max(
        verdicts,
        key=lambda v: (ORDER.index(v.verdict), 0.0 if v.exponent is None else abs(v.exponent.value - v.promised)),
    )


def advice(updates: Sequence[Verdict], changes: Sequence[Verdict], sizes: Sequence[Verdict], axis: str) -> list[str]:
    """What to change, a sentence each; none if all is as promised.

    What a weight's update does to its inputs is proportional to its learning rate, so that the exponent beyond the
    promise is the power by which that must fall. Where an activation moves otherwise than promised and no update
    does, the cause is at initialisation.
    """
    letter = "L" if axis == "depth" else "n"
    lines = []
    for u in updates:
        if u.verdict in (GROWS, SHRINKS) and u.exponent is not None:
            away = u.exponent.value - u.promised
            lines.append(
                f"the learning rate of {_the(u.entry.name)} should {towards(-away, letter)}: its update moves what it "
                f"makes like {power(u.exponent.value, letter)} (exponent {u.exponent}; promised {u.promised:g})"
            )
    bad = [c for c in changes if c.verdict in (GROWS, SHRINKS)]
    if bad and not lines:
        before = {s.entry.name: s.exponent for s in sizes}
        for c in bad:
            own = before.get(c.entry.name)
            said = "" if own is None else f"; before the step its size goes like {power(own.value, letter)}"
            lines.append(
                f"{_the(c.entry.name)} {c.verdict} (exponent {c.exponent}; promised {c.promised:g}) though every update "
                f"is as promised: no learning rate is the cause, look at the standard deviations{said}"
            )
    return lines


def power(exponent: float, letter: str = "n") -> str:
    """n^a in words that a reader knows."""
    near = round(2 * exponent) / 2
    if abs(exponent - near) > WHOLE:
        return f"{letter}^({exponent:+.2f})".replace("-", "−")
    whole = {0.0: "a constant", 1.0: letter, -1.0: f"1/{letter}", 0.5: f"√{letter}", -0.5: f"1/√{letter}"}
    return whole.get(near, f"{letter}^({near:g})".replace("-", "−"))


def towards(exponent: float, letter: str) -> str:
    """Rise or fall like a power."""
    return f"{'rise' if exponent > 0 else 'fall'} like {power(exponent, letter)}"


def _the(name: str) -> str:
    return name if name.startswith("weight ") or name.startswith("W") else f"the {name}"


def rule_words(what: str, tolerance: float) -> str:
    """The rule, for a report."""
    subjects = {CHANGE: "what the step changes", UPDATE: "what the update of a weight does", SIZE: "sizes"}
    return (
        f"The exponent of {subjects[what]} is as promised if its interval of level 1e-4 lies within {tolerance:g} of "
        "the promise; it grows or shrinks if the interval lies beyond that; otherwise it is undecided."
    )


def finite(value: float) -> float | None:
    """A number for JSON."""
    return value if math.isfinite(value) else None
