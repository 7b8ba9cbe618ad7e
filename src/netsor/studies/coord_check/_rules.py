"""Verdicts: does an exponent agree with the parametrisation, and if not, which learning
rate should change?

The size of a change at width n is the geometric mean over R replicas: its logarithm is
the mean m_n of the logarithms, with variance v_n/R. The exponent is Σ c_n m_n, the
least-squares slope of m against log n, with variance Σ c_n² v_n/R; Student's t with the
degrees of freedom of Welch and Satterthwaite gives an interval. `RULE` states the rule.
Its tolerance allows for terms that vanish as widths grow, which more draws do not
remove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from ..._array_api import Floats
from ...report._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED
from ._causes import Scale
from ._request import Entry

LEVEL = 1e-4  # of the intervals that decide verdicts
KEPT, GROWS, SHRINKS, STILL, ABSENT = (
    "as expected",
    "grows",
    "shrinks",
    "does not move",
    "not judged",
)
# other verdicts are not applicable
STATUS = {KEPT: OK, GROWS: FLAG, SHRINKS: FLAG, UNDECIDED: UNDECIDED}
ORDER = (ABSENT, KEPT, STILL, UNDECIDED, SHRINKS, GROWS)  # the worst last
# of an exponent that two others make up: half of the step between multiples of 1/2
UNCERTAIN = 0.25
WHOLE = 0.1  # an exponent this close to a multiple of 1/2 is written as that
RULE = (
    "The exponent is the slope through all {axis}s, or between the two largest if"
    " slopes between neighbours differ significantly. It is as expected if its interval"
    " of level 1e-4 lies within {tolerance:g} of what is expected, grows or shrinks if"
    " the interval lies beyond that, and is undecided otherwise: more draws, or {axis}s"
    " further apart, settle it"
)

LIMIT = (
    " Verdicts do not use the limit. Its error is two standard errors and the"
    " quadrature error of its Gaussian expectations; ≤ means that it may be 0."
)


class Exponent(NamedTuple):
    """The slope of log size against log width: a size grows like this power of the
    width.

    Parameters
    ----------
    value, error : float
        The slope, and its standard error.
    low, high : float
        The ends of its interval of level 1e-4.
    """

    value: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        value = round(self.value, 2) + 0.0  # no −0
        return f"{value:+.2f} ± {self.error:.2f}".replace("-", "−")

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {
            "value": self.value,
            "error": self.error,
            "low": self.low,
            "high": self.high,
        }


class Fit(NamedTuple):
    """A power law through all widths, and the slopes between neighbours, which are
    equal for a power law.

    Parameters
    ----------
    exponent : Exponent
        The least-squares slope through all widths.
    local : tuple of Exponent
        The slope from each width to the next.
    bend : Exponent or None
        The last of these minus the first; None for two widths.
    """

    exponent: Exponent
    local: tuple[Exponent, ...]
    bend: Exponent | None

    @property
    def bends(self) -> bool:
        """Whether the slopes between neighbours differ: the interval of `bend` excludes
        0.
        """
        return self.bend is not None and not self.bend.low <= 0 <= self.bend.high

    @property
    def last(self) -> Exponent:
        """The slope through all widths, or between the two largest if the slopes
        differ.
        """
        return self.local[-1] if self.bends else self.exponent


def fit(
    draws: Sequence[Floats], at: Sequence[float], level: float = LEVEL
) -> Fit | None:
    """The exponent of sizes (an array of replicas for each width); None if one is 0 or
    not finite.
    """
    if not all((some > 0).all() and np.isfinite(some).all() for some in draws):
        return None
    logs = [np.log(some) for some in draws]
    mean = np.array([some.mean() for some in logs])
    variance = np.array([some.var(ddof=1) / len(some) for some in logs])
    free = np.array([len(some) - 1 for some in logs])
    x = np.log(np.asarray(at, float))

    def combined(c: Floats) -> Exponent:
        parts = c**2 * variance
        total = parts.sum()
        df = total**2 / (parts**2 / free).sum() if total > 0 else 1.0
        value, error = float(c @ mean), float(np.sqrt(total))
        away = float(scipy.special.stdtrit(df, 1 - level / 2)) * error
        return Exponent(value, error, value - away, value + away)

    away = x - x.mean()
    # from each width to the next
    slopes = np.diff(np.eye(len(x)), axis=0) / np.diff(x)[:, None]
    bend = combined(slopes[-1] - slopes[0]) if len(slopes) > 1 else None
    return Fit(combined(away / (away @ away)), tuple(map(combined, slopes)), bend)


def size(
    draws: Floats, error: float = 0.0, squares: bool = True
) -> tuple[float, float, float]:
    """The geometric mean over replicas, and an interval of two standard errors, widened
    by an error of the squares.

    If a replica is 0 or not finite: the median (0 if no replica is positive), the
    smallest and the largest.
    """
    if (draws > 0).all() and np.isfinite(draws).all():
        logs = np.log(draws)
        mean, away = logs.mean(), 2 * logs.std(ddof=1) / len(logs) ** 0.5
        value, low, high = (
            float(np.exp(end)) for end in (mean, mean - away, mean + away)
        )
    else:
        value = float(np.median(draws)) if (draws > 0).any() else 0.0
        low, high = float(draws.min()), float(draws.max())
    if not error:
        return value, low, high
    power = 2 if squares else 1
    return (
        value,
        max(0.0, low**power - error) ** (1 / power),
        (high**power + error) ** (1 / power),
    )


class Verdict(NamedTuple):
    """The verdict on the worst block of an activation or a kind of weight.

    Parameters
    ----------
    entry : Entry
        `what` it is about ("change", "update" or "size"), the `name` of the activation
        or kind of weight, and the `block`, None outside of blocks; for several depths
        the first, middle and last blocks are 1, 2 and 3.
    promised : float or None
        The exponent that the parametrisation promises, if any.
    fit : Fit or None
        The measured exponents; None if a replica is 0 or not finite.
    verdict : str
        "as expected", "grows", "shrinks", "undecided", "does not move" (no fit) or "not
        judged" (no promise).
    """

    entry: Entry
    promised: float | None
    fit: Fit | None
    verdict: str

    @property
    def status(self) -> str:
        """The verdict as one of the statuses of all studies: "FLAG", "ok", "undecided"
        or "n/a".
        """
        return STATUS.get(self.verdict, NOT_APPLICABLE)

    @property
    def exponent(self) -> Exponent | None:
        """The exponent of the verdict: `fit.last`, or None without a fit."""
        return None if self.fit is None else self.fit.last

    @property
    def through(self) -> Exponent | None:
        """The exponent through all widths: `fit.exponent`, or None without a fit."""
        return None if self.fit is None else self.fit.exponent

    @property
    def beyond(self) -> float:
        """How far `through` is above the expected exponent; 0 if either is None."""
        return (
            0.0
            if self.through is None or self.promised is None
            else self.through.value - self.promised
        )


def judged(fit: Fit | None, promised: float | None, tolerance: float) -> str:
    """The verdict on one exponent."""
    if fit is None or promised is None:
        return STILL if fit is None else ABSENT
    low, high = fit.last.low, fit.last.high
    if low > promised + tolerance:
        return GROWS
    if high < promised - tolerance:
        return SHRINKS
    return (
        KEPT
        if promised - tolerance <= low and high <= promised + tolerance
        else UNDECIDED
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of several blocks; among equals the one furthest from the promise."""
    return max(verdicts, key=lambda v: (ORDER.index(v.verdict), abs(v.beyond)))


def broken(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that grow or shrink against the promise."""
    return [v for v in verdicts if v.verdict in (GROWS, SHRINKS)]


class WrongScale(NamedTuple):
    """A scale at initialisation that is not that of maximal updates."""

    words: str
    excess: float  # its power of n beyond the expected one
    slowed: frozenset[str]  # the kinds of weights whose updates are proportional to it
    # those whose updates depend on it in a way that is not known
    unjudged: frozenset[str] = frozenset()


def wrong_scales(
    scales: Sequence[Scale],
    changes: Sequence[Verdict],
    sizes: Sequence[Verdict],
    tolerance: float,
    updates: Sequence[Verdict] = (),
) -> list[WrongScale]:
    """The scales that explain what grows or shrinks: sizes before the step do not
    depend on learning rates.

    What they explain is the activation that they multiply, and updates that are
    proportional to them.

    An interval of the size's exponent beyond the expected one, on the side of the
    change, decides.
    """
    before = {s.entry.name: s.fit for s in sizes}
    verdicts = {c.entry.name: c for c in changes}
    found = []
    for scale in scales:
        change, size = verdicts.get(scale.activation), before.get(scale.measured)
        if change is None or size is None:
            continue
        explained = {
            change.verdict,
            *(u.verdict for u in updates if u.entry.name in scale.slowed),
        }
        grows = GROWS in explained and size.last.low > scale.expected + tolerance
        shrinks = SHRINKS in explained and size.last.high < scale.expected - tolerance
        if not grows and not shrinks:
            continue
        excess = size.last.value - scale.expected
        words = (
            f"scale {scale.what} by {{power}}: before the step {scale.measured} has"
            f" exponent {size.last} and should have {scale.expected:g}, so that its"
            f" change, {change.exponent}, is {change.promised:g}"
        )
        found.append(WrongScale(words, excess, scale.slowed, scale.unjudged))
    return found


def advice(
    updates: Sequence[Verdict],
    changes: Sequence[Verdict],
    sizes: Sequence[Verdict],
    letter: str,
    scales: Sequence[WrongScale] = (),
) -> list[str]:
    """What to change, in sentences; none if all is as expected.

    The change that an update makes is proportional to its learning rate. So its
    exponent through all widths, minus the promised one, is the power by which the rate
    must fall. If an activation breaks the promise and no update does, the cause is the
    initialisation. Updates by a gradient to which a wrong scale is a factor change with
    that scale.
    """
    lines = [scale.words.format(power=power(-scale.excess, letter)) for scale in scales]
    # by the power of the width that must multiply their learning rates
    alike: dict[str, list[Verdict]] = {}
    for u in updates:
        if (
            u.through is None
            or u.promised is None
            or any(u.entry.name in scale.unjudged for scale in scales)
        ):
            continue
        by_scale = sum(scale.excess for scale in scales if u.entry.name in scale.slowed)
        near = max(WHOLE, (u.through.high - u.through.low) / 2)
        left = u.beyond - by_scale
        if by_scale:
            near = max(near, UNCERTAIN)
            wrong = abs(left) > near
        else:
            wrong = u.verdict in (GROWS, SHRINKS)
        if wrong:
            alike.setdefault(power(-left, letter, near), []).append(u)
    for factor, some in alike.items():
        *first_names, last_name = [u.entry.name for u in some]
        names = last_name
        if first_names:
            names = f"{', '.join(first_names)} and {last_name}"
        several = "s" if first_names else ""
        exponents = ", ".join(str(u.through) for u in some)
        lines.append(
            f"scale the learning rate{several} of {names} by {factor}: the"
            f" exponent{several} of the update{several}, {exponents}, should be"
            f" {some[0].promised:g}"
        )
    if not lines:
        before = {s.entry.name: s.exponent for s in sizes}
        for c in broken(changes):
            own = before.get(c.entry.name)
            said = (
                ""
                if own is None
                else f" (before the step, {c.entry.name} itself has exponent {own})"
            )
            lines.append(
                f"{c.entry.name} {c.verdict}, exponent {c.exponent} rather than"
                f" {c.promised:g}, and no update does: no learning rate is the cause,"
                f" look at the standard deviations{said}"
            )
    return lines


def power(exponent: float, letter: str = "n", spread: float = WHOLE) -> str:
    """n^a; a is rounded to a multiple of 1/2 within the spread."""
    near = round(2 * exponent) / 2
    if abs(exponent - near) > spread:
        return f"{letter}^({exponent:.2f})".replace("-", "−")
    known = {1.0: letter, -1.0: f"1/{letter}", 0.5: f"√{letter}", -0.5: f"1/√{letter}"}
    return known.get(near, f"{letter}^({near:g})".replace("-", "−"))
