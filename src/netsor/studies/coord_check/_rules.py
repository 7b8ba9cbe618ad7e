"""Verdicts: does an exponent agree with the parametrisation, and if not, which learning
rate should change?

The exponents are those of `laws/_power_law.py`. `RULE` states the rule.
Its tolerance allows for terms that vanish as widths grow, which more draws do not
remove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..._array_api import Floats
from ...laws._power_law import Exponent, Fit
from ...optim import NAMED
from ...report._document import FLAG, NOT_APPLICABLE, OK, UNDECIDED
from .._parametrisation import Parametrisation
from ._causes import Scale
from ._request import SIZE, Entry, Request

KEPT, GROWS, SHRINKS, STILL, ABSENT = (
    "as expected",
    "grows",
    "shrinks",
    "does not move",
    "not judged",
)
# other verdicts are not applicable
STATUS = {KEPT: OK, GROWS: FLAG, SHRINKS: FLAG, UNDECIDED: UNDECIDED}
# What the first steps of gradient descent may change less than later ones, where wider
# heads grow: see `slack_of`.
UNALIGNED = frozenset({"scores", "query", "key"})
UNALIGNED_SLACK = 0.5
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

# after RULE, for verdicts with slack
SLACK_NOTE = (
    " Where the dimension of a head grows, the first steps of gradient descent change"
    " scores, and move queries and keys, up to √n less than maximal updates promise:"
    " values are not yet aligned with the gradients of outputs. Exponents down to 1/2"
    " below the promise are as expected there."
)
LIMIT = (
    " Verdicts do not use the limit. Its error is two standard errors and the"
    " quadrature error of its Gaussian expectations; ≤ means that it may be 0."
)


class Size(NamedTuple):
    """A size, and the ends of an interval for it."""

    value: float
    low: float
    high: float


def size(draws: Floats, error: float = 0.0, squares: bool = True) -> Size:
    """The size over replicas (replicas,): their geometric mean, with an interval of two
    standard errors.

    If a replica is 0 or not finite there are no logarithms: the median (0 if no replica
    is positive), with the smallest and the largest.

    `error`, that of the squares of the draws (of the draws themselves if `squares` is
    false), widens the interval on both sides.
    """
    if (draws > 0).all() and np.isfinite(draws).all():
        logs = np.log(draws)
        mean = logs.mean()
        two_errors = 2 * logs.std(ddof=1) / len(logs) ** 0.5
        value = float(np.exp(mean))
        low = float(np.exp(mean - two_errors))
        high = float(np.exp(mean + two_errors))
    else:
        value = float(np.median(draws)) if (draws > 0).any() else 0.0
        low = float(draws.min())
        high = float(draws.max())
    if not error:
        return Size(value, low, high)
    power = 2 if squares else 1
    return Size(
        value,
        low=max(0.0, low**power - error) ** (1 / power),
        high=(high**power + error) ** (1 / power),
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
    slack : float
        How far below `promised` an exponent is as expected too: 1/2 for scores and the
        updates of queries and keys in the first steps of gradient descent with wider
        heads, otherwise 0.
    """

    entry: Entry
    promised: float | None
    fit: Fit | None
    verdict: str
    slack: float = 0.0

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
        """How far `through` is above the expected exponents, or (negative) below them;
        0 if either is None.
        """
        return self.beyond_without(0.0)

    def beyond_without(self, excess: float) -> float:
        """The same, after a power of the width with another cause is divided out."""
        if self.through is None or self.promised is None:
            return 0.0
        above = self.through.value - excess - self.promised
        if above >= 0:
            return above
        return min(0.0, above + self.slack)

    @property
    def expected_text(self) -> str:
        """The expected exponents, as "0" or "−0.5 to 0"; "–" without a promise."""
        if self.promised is None:
            return "–"
        if not self.slack:
            return f"{self.promised:g}"
        return f"{self.promised - self.slack:g} to {self.promised:g}".replace("-", "−")


def slack_of(entry: Entry, rule: Parametrisation, request: Request) -> float:
    """How far below the promise of maximal updates an exponent may be: 0, or 1/2 for
    scores, queries and keys where the heads get wider.

    The gradient of a score is an inner product, over the d coordinates of a head, of
    values with gradients of the outputs. After training these are aligned, and the
    promise is about that. At first they are nearly independent: their product is √d
    times smaller, and so are the updates of queries and keys if these are proportional
    to gradients. How soon the aligned part is larger depends on the learning rates and
    on the scales at initialisation. So all exponents between are as expected where d
    grows with the width. Optimisers that normalise gradients do not notice.
    """
    if entry.what == SIZE or entry.name not in UNALIGNED:
        return 0.0
    if not (request.widens_heads and rule.is_maximal):
        return 0.0
    if not NAMED[request.optimiser].kind.proportional_to_gradient:
        return 0.0
    return UNALIGNED_SLACK


def judged(
    fit: Fit | None, promised: float | None, tolerance: float, slack: float = 0.0
) -> str:
    """The verdict on one exponent, by its interval: "as expected" if that is within the
    tolerance of the promised exponent, or down to `slack` below it; "grows" or
    "shrinks" if it is outside, otherwise "undecided".
    """
    if fit is None:
        return STILL
    if promised is None:
        return ABSENT
    lowest = promised - slack - tolerance
    highest = promised + tolerance
    if fit.last.low > highest:
        return GROWS
    if fit.last.high < lowest:
        return SHRINKS
    if lowest <= fit.last.low and fit.last.high <= highest:
        return KEPT
    return UNDECIDED


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of several blocks; among equals the one furthest from the promise."""
    return max(verdicts, key=lambda v: (ORDER.index(v.verdict), abs(v.beyond)))


def broken(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that grow or shrink against the promise."""
    return [v for v in verdicts if v.verdict in (GROWS, SHRINKS)]


class WrongScale(NamedTuple):
    """A scale at initialisation that is not that of maximal updates."""

    words: str  # advice, with {power} for the factor by which to scale
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
    """Those of the scales that are wrong and explain something that grows or shrinks.

    Sizes before the step depend on the initialisation and not on learning rates. So a
    scale is wrong if the exponent of the size that shows it (`scale.measured`) lies,
    with its interval, beyond the expected one. It explains the change of the activation
    that it multiplies, and updates that are proportional to it: growth if the size has
    a too large exponent, shrinking if it has a too small one.
    """
    fit_before = {size.entry.name: size.fit for size in sizes}
    change_of = {change.entry.name: change for change in changes}
    wrong = []
    for scale in scales:
        change = change_of.get(scale.activation)
        before = fit_before.get(scale.measured)
        if change is None or before is None:
            continue
        verdicts = {u.verdict for u in updates if u.entry.name in scale.slowed}
        verdicts.add(change.verdict)
        is_too_large = before.last.low > scale.expected + tolerance
        is_too_small = before.last.high < scale.expected - tolerance
        explains_growth = GROWS in verdicts and is_too_large
        explains_shrinking = SHRINKS in verdicts and is_too_small
        if not explains_growth and not explains_shrinking:
            continue
        excess = before.last.value - scale.expected
        words = (
            f"scale {scale.what} by {{power}}: before the step {scale.measured} has"
            f" exponent {before.last} and should have {scale.expected:g}, so that its"
            f" change, {change.exponent}, is {change.expected_text}"
        )
        wrong.append(WrongScale(words, excess, scale.slowed, scale.unjudged))
    return wrong


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
    # updates by the power of the width that must multiply their learning rates
    by_factor: dict[str, list[Verdict]] = {}
    for update in updates:
        factor = _missing_factor(update, letter, scales)
        if factor:
            by_factor.setdefault(factor, []).append(update)
    for factor, alike in by_factor.items():
        lines.append(_learning_rate_advice(factor, alike))
    if lines:
        return lines
    size_before = {size.entry.name: size.exponent for size in sizes}
    return [
        _initialisation_advice(change, size_before.get(change.entry.name))
        for change in broken(changes)
    ]


def _missing_factor(update: Verdict, letter: str, scales: Sequence[WrongScale]) -> str:
    """The power of the width that must multiply the learning rate of an update, as
    "1/n", besides what wrong scales explain.

    "" if the rate needs no factor, and if none can be known: without an exponent or a
    promise, or if the update depends on a wrong scale in an unknown way.
    """
    name = update.entry.name
    if update.through is None or update.promised is None:
        return ""
    if any(name in scale.unjudged for scale in scales):
        return ""
    # within it, the power is rounded to a multiple of 1/2
    spread = max(WHOLE, (update.through.high - update.through.low) / 2)
    by_scales = sum(scale.excess for scale in scales if name in scale.slowed)
    beyond = update.beyond_without(by_scales)
    if by_scales:
        # a difference of two measured exponents; the verdict is about one of them
        spread = max(spread, UNCERTAIN)
        is_wrong = abs(beyond) > spread
    else:
        is_wrong = update.verdict in (GROWS, SHRINKS)
    return power(-beyond, letter, spread) if is_wrong else ""


def _learning_rate_advice(factor: str, updates: Sequence[Verdict]) -> str:
    """Which learning rates to scale by the same factor, and why."""
    *first_names, last_name = [update.entry.name for update in updates]
    names = last_name
    several = ""
    if first_names:
        names = f"{', '.join(first_names)} and {last_name}"
        several = "s"
    exponents = ", ".join(str(update.through) for update in updates)
    return (
        f"scale the learning rate{several} of {names} by {factor}: the"
        f" exponent{several} of the update{several}, {exponents}, should be"
        f" {updates[0].expected_text}"
    )


def _initialisation_advice(change: Verdict, before: Exponent | None) -> str:
    """Where to look if an activation breaks the promise and no update does."""
    name = change.entry.name
    text = (
        f"{name} {change.verdict}, exponent {change.exponent} rather than"
        f" {change.expected_text}, and no update does: no learning rate is the cause,"
        " look at the standard deviations"
    )
    if before is not None:
        text += f" (before the step, {name} itself has exponent {before})"
    return text


def power(exponent: float, letter: str = "n", spread: float = WHOLE) -> str:
    """The power `exponent` of a size as text; within the spread the exponent is rounded
    to a multiple of 1/2: "1/√n" for −0.48, "n^(−0.70)" for −0.7.
    """
    rounded = round(2 * exponent) / 2
    if abs(exponent - rounded) > spread:
        return f"{letter}^({exponent:.2f})".replace("-", "−")
    short = {1.0: letter, -1.0: f"1/{letter}", 0.5: f"√{letter}", -0.5: f"1/√{letter}"}
    if rounded in short:
        return short[rounded]
    return f"{letter}^({rounded:g})".replace("-", "−")
