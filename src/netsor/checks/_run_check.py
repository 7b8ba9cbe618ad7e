"""The law of the log of a training run, and a check of logs against it.

The law is literal: a front end trains fresh networks for the same steps on the same
batches, and `_run_bands` says where the numbers of one more run lie. If the log leaves
its bands, loops with common mistakes are trained in the same way, and those whose bands
hold the whole log are named.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from .._array_api import Floats
from .._validate import ArgumentError, counted, whole
from ..report._document import (
    FLAG,
    OK,
    Document,
    Item,
    Items,
    Paragraph,
    Section,
    Table,
    to_text,
)
from ..report._html import to_cell
from ..runtime._units import in_time
from ._run_bands import (
    CONSTANT,
    FEWEST,
    POWER,
    Band,
    band,
    band_given,
    enough_runs,
    regression,
)
from ._run_logs import Logged, RunLog, read_log

# the numbers of a log
LOSS, GRADIENT, CLIPPED = "loss", "grad_norm", "grad_norm_clipped"
UPDATE, PARAMETERS, RATE = "update_norm", "param_norm", "lr"
WORDS = {
    LOSS: "loss",
    GRADIENT: "gradient norm",
    CLIPPED: "gradient norm after clipping",
    UPDATE: "update norm",
    PARAMETERS: "parameter norm",
    RATE: "learning rate",
}
T = TypeVar("T")
LOG = logging.getLogger("netsor")
LONG = 5.0  # seconds: training that takes longer is announced
MOST_SHOWN = 8  # numbers outside their bands that `print` shows
STD_FACTOR = 1.05  # by which all matrices are multiplied, to see what depends on it
PAIRED = 8  # runs of that
FEWER = 2  # runs with each mistake, of the seeds of healthy ones
FEW = 4  # runs with the promising ones
MOST_SCREENED = 32  # mistakes that are tried with a few runs
MOST_TRIED = 8  # and with more
# what is added to the misfit of a mistake, as minus twice the logarithm of its odds
RARE = 4.0  # mistakes that are seldom made
FITTED = 20.0  # for each constant that is taken from the log: it fits a seed's noise
DECISIVE = 40.0  # differences of `_misfit` that no noise of few runs makes
SHRUNK = 0.2  # of correlations that runs show is noise
SHRUNK_OF_FEW = 0.5  # if few runs show how a mistake changes the numbers
MOST_EARLIER = 2  # steps besides the first one that predict a number
NARROWER = 0.8  # a prediction is used if it makes a band narrower by this factor
FARTHEST = 1e6  # standard deviations from what is expected; farther is as far
SMALL = 1.1  # factors below are shown in per cent
DEGREES = 4  # of freedom, of the law that orders mistakes
TOLERANCE = 1e-4  # of numbers in single precision on another device


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingLoop(ABC):
    """A training loop that runs literally: a front end says how.

    The fields with a default are those of a healthy loop. Another value there is a
    mistake that every front end can make (see `_run_mistakes`).

    Attributes
    ----------
    batches : sequence
        The batches of single passes, `accumulation` for each step; used again from the
        first on if there are fewer.
    steps : int
        The last step; steps are counted from 0.
    accumulation : int
        The passes whose mean gradient a step takes.
    clip : float or None
        The total gradient norm that gradients are clipped to before the optimiser.
    gradient_factor, logged_factor : float
        Factors of the gradients, and of the loss that is logged.
    updates : int
        How often the optimiser steps at each step.
    logged_first : int
        The step that is logged as step 0.
    of_log : callable or None
        A function of the numbers of a run that returns those that are logged.
    """

    batches: Sequence[Any]
    steps: int
    accumulation: int
    clip: float | None
    gradient_factor: float = 1.0
    logged_factor: float = 1.0
    updates: int = 1
    logged_first: int = 0
    of_log: Callable[[dict[str, Floats]], dict[str, Floats]] | None = None

    @abstractmethod
    def run(self, seed: int) -> dict[str, Floats]:
        """The numbers of a run by name, one for each step."""

    @abstractmethod
    def enlarged(self) -> Self:
        """The loop with all matrices multiplied by `STD_FACTOR` at the start."""

    @abstractmethod
    def mistakes(self, departures: Departures) -> list[Hypothesis]:
        """The mistakes that the loop can have, for a log that departs so."""


class Hypothesis(NamedTuple):
    """A mistake: its name, the question that a verdict asks, and its loop.

    `cost` is added to its misfit: rare mistakes, and constants that are taken from the
    log, explain it less readily.
    """

    name: str
    question: str
    loop: Any
    cost: float = 0.0


class Departures(NamedTuple):
    """How far a log is from what is expected.

    `factors` and `differences` are logged numbers over, and minus, expected ones, by
    quantity and step. Factors are those of positive numbers.
    """

    factors: Mapping[str, Mapping[int, float]]
    differences: Mapping[str, Mapping[int, float]]

    @classmethod
    def none(cls) -> Departures:
        """Those of an empty log."""
        return cls({}, {})

    def first(self, quantity: str) -> float | None:
        """The factor of a quantity at step 0."""
        return self.factors.get(quantity, {}).get(0)

    def first_difference(self, quantity: str) -> float | None:
        """The difference of a quantity at step 0."""
        return self.differences.get(quantity, {}).get(0)

    def first_of_groups(self, quantity: str) -> dict[str, float]:
        """The factors at step 0 of a quantity, and of it in each group."""
        return {
            name: steps[0]
            for name, steps in self.factors.items()
            if name.partition("/")[0] == quantity and 0 in steps
        }

    def has_groups(self) -> bool:
        """Whether the log has numbers of single groups."""
        return any("/" in name for name in self.differences)

    def of_steps(self, quantity: str) -> Mapping[int, float]:
        """The factors of a quantity by step."""
        return self.factors.get(quantity, {})

    def of_updates(self) -> Mapping[int, float]:
        """The factors of all updates by step, or of those of the first group."""
        names = [name for name in self.factors if name.partition("/")[0] == UPDATE]
        return self.of_steps(min(names, key=len)) if names else {}


@dataclass(frozen=True)
class RunFinding:
    """A logged number outside its band.

    Attributes
    ----------
    quantity, step : str, int
        The name and the step of the number.
    value : float
        The logged number.
    low, high, expected : float
        The band, and its centre.
    is_given_others : bool
        Whether the band is that of runs with the same total norm, and the same norms of
        the group at earlier steps, not of all runs.

    Examples
    --------
    >>> check = ns.torch.check_run(build, adamw, batch, log="run.csv")  # doctest: +SKIP
    >>> for finding in check.findings:  # doctest: +SKIP
    ...     print(finding.step, finding.quantity, finding.text)
    """

    quantity: str
    step: int
    value: float
    low: float
    high: float
    expected: float
    is_given_others: bool = False

    @property
    def text(self) -> str:
        """The number, its band and how far it is off."""
        value, low, high = _numbers(self.value, self.low, self.high)
        range_text = f"{low} to {high}" if low != high else low
        if self.is_given_others:
            range_text += " given the run's other numbers"
        text = f"{value}, expected {range_text}"
        if np.isfinite(self.value):
            text += f": {self._how_far()}"
        return text

    def _how_far(self) -> str:
        """How far the number is off, in words."""
        is_above = self.value > self.expected
        if self.quantity == LOSS:
            difference = abs(self.value - self.expected)
            digits = ".0f" if difference >= 100 else ".2g"
            return f"{difference:{digits}} too {'high' if is_above else 'low'}"
        direction = "large" if is_above else "small"
        if self.expected <= 0 or self.value <= 0:
            return f"too {direction}"
        factor = max(self.value / self.expected, self.expected / self.value)
        if factor < SMALL:
            return f"{_change(factor)} too {direction}"
        return f"{_factor(factor)} times too {direction}"


def _factor(factor: float) -> str:
    """A factor above 1, with digits that distinguish it from 1."""
    if factor >= 100:
        return f"{factor:.0f}"
    return f"{factor:.1f}" if factor >= 1.95 else f"{factor:.3g}"


def _numbers(*numbers: float) -> list[str]:
    """Numbers as text, with as many digits as tell them apart."""
    for digits in (3, 4, 5, 6, 8):
        texts = [f"{x:.{digits}g}" for x in numbers]
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


def words(quantity: str) -> str:
    """A quantity in words."""
    kind, _, group = quantity.partition("/")
    text = WORDS.get(kind, kind)
    if group:
        return f"{text} of group {group}"
    return text


@dataclass(frozen=True)
class RunPower:
    """What a check would have detected with probability 0.9.

    Attributes
    ----------
    factors : dict of str to float
        By quantity, the smallest factor that is detected, at the most sensitive step.
    std : float or None
        The factor of the standard deviation of all matrices; None if no number depends
        on it.

    Examples
    --------
    >>> check = ns.torch.check_run(build, adamw, batch, log="run.csv")  # doctest: +SKIP
    >>> detected = check.power.factors["loss"]  # doctest: +SKIP
    """

    factors: dict[str, float]
    std: float | None

    def text(self, expected_loss: float | None) -> str:
        """The detected factors, in words."""
        parts = []
        for quantity in (LOSS, GRADIENT, UPDATE):
            factor = self.factors.get(quantity)
            if factor is None:
                continue
            if quantity == LOSS and expected_loss is not None:
                parts.append(f"a loss off by {expected_loss * (factor - 1):.2g}")
            else:
                parts.append(f"{words(quantity)}s off by {_change(factor)}")
        if self.std is not None:
            parts.append(f"standard deviations of matrices off by {_change(self.std)}")
        return f"Detected with probability {POWER}: {'; '.join(parts)}."


def _change(factor: float) -> str:
    """A factor above 1, in words; small changes in per cent."""
    if factor >= SMALL:
        return f"a factor of {_factor(factor)}"
    return f"{100 * (factor - 1):.2g} %"


@dataclass(frozen=True)
class RunCheck:
    """The result of `check_run`; `print` shows the verdict first.

    Attributes
    ----------
    findings : list of RunFinding
        The numbers outside their bands, in the order of steps.
    explanations : list of str or None
        Questions that name the mistakes whose bands contain the whole log, the most
        probable one first; None if no hypothesis was tried.
    bands : dict of str to list of tuple of float
        By quantity and step: low, expected, high.
    numbers : int
        How many logged numbers were compared.
    source : str
        Where the law comes from, such as "31 initialisations".
    power : RunPower
        The mistakes that would have been detected.
    level : float
        The largest probability with which a healthy run is flagged.
    notes : list of str
        The omitted comparisons, with the reasons.
    steps : str
        The compared steps, such as "steps 0 to 5".

    Examples
    --------
    >>> ns.torch.check_run(build, adamw, batch, log="run.csv").ok  # doctest: +SKIP
    True
    """

    name: str
    log: str
    findings: list[RunFinding]
    explanations: list[str] | None
    bands: dict[str, list[tuple[float, float, float]]]
    numbers: int
    compared: list[str]
    source: str
    power: RunPower
    level: float
    notes: list[str]
    steps: str

    @property
    def status(self) -> str:
        """The result in a word: "FLAG" if a number is outside its band, or "ok"."""
        return FLAG if self.findings else OK

    @property
    def ok(self) -> bool:
        """Whether every compared number lies in its band."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """The first departure and its probable cause, in one sentence."""
        if not self.findings:
            subject = ", ".join(
                words(name) for name in self.compared if "/" not in name
            )
            return (
                f"{OK}: {counted(self.numbers, 'number')} as expected ({subject};"
                f" {self.steps})"
            )
        first = self.findings[0]
        text = f"{FLAG}: step {first.step} {words(first.quantity)} {first.text}"
        if self.explanations is None:
            return text
        if not self.explanations:
            return f"{text}; no hypothesis explains it"
        second = f" Or: {self.explanations[1]}" if len(self.explanations) > 1 else ""
        return f"{text}; {self.explanations[0]}{second}"

    def metrics(self) -> list[dict[str, float]]:
        """The bands for a tracker: one mapping for each step."""
        longest = max(map(len, self.bands.values()))
        rows: list[dict[str, float]] = [{} for _ in range(longest)]
        for name, steps in self.bands.items():
            for row, (low, _, high) in zip(rows, steps, strict=False):
                row[f"netsor/{name}_low"] = low
                row[f"netsor/{name}_high"] = high
        return rows

    def to_dict(self) -> dict[str, Any]:
        """All fields, `ok`, `status` and `verdict`, for JSON."""
        return {
            **asdict(self),
            "ok": self.ok,
            "status": self.status,
            "verdict": self.verdict,
        }

    def table(self, verbose: bool = False) -> str:
        """The report as text; with the bands of every step, if `verbose`.

        Parameters
        ----------
        verbose : bool
            Whether to print all bands.
        """
        return to_text(self._document(), verbose)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return to_cell(self._document())

    def _document(self) -> Document:
        """The report."""
        subject = (
            f"Source of the bands: {self.source}. A healthy run is flagged with"
            f" probability {self.level:g} at most."
        )
        return Document(
            f"First steps of {self.name}", self.verdict, subject, self._sections()
        )

    def _sections(self) -> list[Section]:
        """The numbers outside, other explanations, power, notes and bands."""
        items = [
            Item(FLAG, f"step {each.step}", f"{words(each.quantity)} {each.text}")
            for each in self.findings[:MOST_SHOWN]
        ]
        outside: list[Any] = [Items(items)] if items else []
        remaining = len(self.findings) - len(items)
        if remaining > 0:
            outside.append(Paragraph(f"… and {remaining} more: --json has all"))
        others = [
            Paragraph(f"also fits: {text}") for text in (self.explanations or [])[2:]
        ]
        losses = self.bands.get(LOSS)
        detected = self.power.text(losses[0][1] if losses else None)
        notes = [Paragraph(f"note: {note}") for note in self.notes]
        sections = [
            Section("Outside their bands", outside),
            Section("", others),
            Section("", [Paragraph(detected)]),
            Section("", notes),
            Section("Bands", [self._band_table()], show="verbose"),
        ]
        return [section for section in sections if section.blocks]

    def _band_table(self) -> Table:
        """The bands of all quantities and steps."""
        rows = []
        for name, steps in self.bands.items():
            for step, (low, middle, high) in enumerate(steps):
                texts = [f"{x:.5g}" for x in (low, middle, high)]
                rows.append([f"{words(name)}, step {step}", *texts])
        return Table(["", "low", "expected", "high"], rows)


@dataclass(frozen=True)
class RunLaw:
    """The law of the log of a run: the numbers of many healthy runs.

    Attributes
    ----------
    values : dict of str to numpy.ndarray
        By quantity, an array (runs, steps + 1).
    name : str
        The name of the module.
    level : float
        The probability of a false alarm in all numbers together.
    tolerance : float
        The relative difference that is also allowed.
    seconds : float
        How long one run takes; 0 if this is unknown.

    Examples
    --------
    >>> law = ns.torch.run_law(build, adamw, batch)  # doctest: +SKIP
    >>> law.check("run.csv").ok, law.check("other.csv").ok  # doctest: +SKIP
    (True, True)
    """

    name: str
    values: dict[str, Floats]
    level: float
    tolerance: float
    loop: TrainingLoop
    seeds: list[int]
    scaled: dict[str, Floats]  # of the runs whose matrices are too large by STD_FACTOR
    progress: bool = False
    seconds: float = 0.0
    # of runs with mistakes, by the name and the question of each, and the last step
    mistaken: dict[tuple[str, str, int], dict[str, Floats]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def source(self) -> str:
        """The origin of the numbers."""
        return counted(len(self.seeds), "initialisation")

    def check(
        self,
        log: Any,
        *,
        columns: Mapping[str, str] | None = None,
        first_step: int | None = None,
        hypotheses: bool = True,
    ) -> RunCheck:
        """Compare a log with the law; the parameters are those of `check_run`."""
        logged = read_log(log, self.values, columns, first_step)
        rates_were_logged = RATE in logged.numbers
        logged = self._without_next_rates(logged)
        bands = self.bands_of(self.values, logged)
        notes = self._notes(logged)
        if rates_were_logged and RATE not in logged.numbers:
            notes.append("the log has each learning rate after its schedule stepped")
        findings = self._findings(self.values, logged)
        explanations = None
        if findings and hypotheses:
            explanations = self._explanations(logged, findings[0].step)
        return RunCheck(
            name=self.name,
            log=logged.name,
            findings=findings,
            explanations=explanations,
            bands={
                name: [(b.low, b.middle, b.high) for b in steps]
                for name, steps in bands.items()
            },
            numbers=sum(map(len, compared(logged, self.loop.steps).values())),
            compared=list(bands),
            source=self.source,
            power=self._power(bands),
            level=self.level,
            notes=notes,
            steps=_range_of_steps(compared(logged, self.loop.steps), self.loop.steps),
        )

    def _without_next_rates(self, logged: RunLog) -> RunLog:
        """The log without learning rates that are those of the next step.

        Some trainers log them after the schedule stepped.
        """
        rates = logged.numbers.get(RATE)
        if rates is None:
            return logged
        rates_of_loop = self.values[RATE][0]  # those of the first run
        is_constant = np.ptp(rates_of_loop) == 0
        is_next = []
        for step, next_rate in enumerate(rates_of_loop[1:]):
            if step in rates:
                band_of_rate = band(np.full(2, next_rate), self.level, self.tolerance)
                is_next.append(band_of_rate.has(*rates[step]))
        if is_constant or not is_next or not all(is_next):
            return logged
        others = {name: x for name, x in logged.numbers.items() if name != RATE}
        if not others:
            return logged
        return replace(logged, numbers=others)

    def bands_of(
        self, values: Mapping[str, Floats], logged: RunLog
    ) -> dict[str, list[Band]]:
        """The bands of the logged quantities at all steps, from the values of runs."""
        level = self._level_of_number(logged, self._predicted(logged))
        return self._bands_of_all(values, logged, level)

    def _bands_of_all(
        self, values: Mapping[str, Floats], logged: RunLog, level: float
    ) -> dict[str, list[Band]]:
        """The same at this level of each number."""
        present = compared(logged, self.loop.steps)
        return {
            name: [band(column, level, self.tolerance) for column in values[name].T]
            for name in present
        }

    def _level_of_number(self, logged: RunLog, predicted: Sequence[Predicted]) -> float:
        """The level of one comparison: each number, and those that others predict."""
        count = sum(map(len, compared(logged, self.loop.steps).values()))
        return self.level / (count + len(predicted))

    def _predicted(self, logged: RunLog) -> list[Predicted]:
        """The numbers that others of the same run predict better than their law does.

        They are those of groups, given the number of all groups at the same step, and
        that of the group at earlier steps. Numbers of a whole network are not given
        earlier ones: now and then a healthy run jumps.
        """
        present = compared(logged, self.loop.steps)
        predicted = []
        for name, steps in present.items():
            whole = name.partition("/")[0]
            if name == whole or whole not in present:
                continue
            for step in sorted(set(steps) & set(present[whole])):
                earlier = [(name, k) for k in sorted(steps) if k < step]
                # the first number, and the last ones before this step
                used = earlier[:1] + earlier[1:][-MOST_EARLIER:]
                candidate = Predicted(name, step, ((whole, step), *used))
                if self._is_predictable(candidate):
                    predicted.append(candidate)
        return predicted

    def _is_predictable(self, predicted: Predicted) -> bool:
        """Whether other numbers of healthy runs narrow the band."""
        y = on_its_scale(self.values[predicted.name][:, predicted.step])
        spread = float(y.std(ddof=1))
        if spread <= max(CONSTANT, self.tolerance):
            return False
        known = on_its_scale(_known_numbers(self.values, predicted))
        return regression(y, known).spread < NARROWER * spread

    def _band_given(
        self,
        values: Mapping[str, Floats],
        logged: RunLog,
        predicted: Predicted,
        level: float,
    ) -> Band | None:
        """The band of a number, given other logged ones; None if they have none.

        An error of one of those is an error of the prediction, times its slope.
        """
        numbers = [logged.numbers[name][step] for name, step in predicted.known]
        x = _known_numbers(values, predicted)
        y = values[predicted.name][:, predicted.step]
        is_log = bool((x > 0).all() and (y > 0).all())
        known = np.array([each.value for each in numbers])
        errors = np.array([each.rounding for each in numbers])
        if not np.isfinite(known).all() or (is_log and (known <= 0).any()):
            return None
        own_error = self.tolerance
        if is_log:
            errors = errors / known + self.tolerance
            x = np.log(x)
            y = np.log(y)
            known = np.log(known)
        else:
            errors = errors + self.tolerance * abs(x).max(axis=0)
            own_error *= float(abs(y).max())
        of_runs = regression(y, x)
        return band_given(
            of_runs,
            known,
            level=level,
            allowed=own_error + float(abs(of_runs.slopes) @ errors),
            is_log=is_log,
        )

    def _findings(
        self, values: Mapping[str, Floats], logged: RunLog
    ) -> list[RunFinding]:
        """The logged numbers outside their bands, in the order of steps."""
        all_predicted = self._predicted(logged)
        level = self._level_of_number(logged, all_predicted)
        findings = []
        for name, steps in self._bands_of_all(values, logged, level).items():
            for step, b in enumerate(steps):
                number = logged.numbers[name].get(step)
                if number is not None and not b.has(*number):
                    findings.append(_finding(name, step, number.value, b))
        outside = {(each.quantity, each.step) for each in findings}
        for predicted in all_predicted:
            b_given = self._band_given(values, logged, predicted, level)
            number = logged.numbers[predicted.name][predicted.step]
            if b_given is None or b_given.has(*number) or predicted[:2] in outside:
                continue
            finding = _finding(predicted.name, predicted.step, number.value, b_given)
            findings.append(replace(finding, is_given_others=True))
        return sorted(findings, key=lambda each: each.step)

    def _notes(self, logged: RunLog) -> list[str]:
        """What the log lacks, and which columns were not read."""
        notes = []
        steps = {step for by_step in logged.numbers.values() for step in by_step}
        missing = [step for step in range(self.loop.steps + 1) if step not in steps]
        if missing:
            listed = ", ".join(map(str, missing))
            notes.append(f"the log has no step {listed}: nothing was compared there")
        lacking = [name for name in (LOSS, GRADIENT) if name not in logged.numbers]
        if lacking:
            listed = " and no ".join(words(name) for name in lacking)
            notes.append(f"the log has no {listed}: fewer mistakes can be found")
        if logged.first == 1:
            notes.append("the log counts steps from 1: its step 1 is step 0 here")
        return notes

    def _power(self, bands: Mapping[str, Sequence[Band]]) -> RunPower:
        """The mistakes that would have been detected."""
        factors = {}
        for name, steps in bands.items():
            shifts = [b.detected for b in steps if b.is_log]
            if shifts:
                factors[name] = float(np.exp(min(shifts)))
        steps_needed = []
        for name, steps in bands.items():
            changes = _mean_log_ratio(
                self.scaled[name], self.values[name][: len(self.scaled[name])]
            )
            for b, change in zip(steps, changes, strict=True):
                if b.is_log and abs(change) > 1e-6:
                    steps_needed.append(b.detected / abs(change))
        std = None
        if steps_needed:
            std = float(STD_FACTOR ** min(steps_needed))
        return RunPower(factors, std)

    def _explanations(self, logged: RunLog, first: int) -> list[str]:
        """The questions of the mistakes that explain the log, the likeliest first.

        All are tried with two runs up to the `first` finding, the better ones with a
        few up to the step after it, and the best with more runs of all steps.
        """
        mistakes = self.loop.mistakes(self._departures(logged))
        self._announce_search(len(mistakes), first)
        screened = self._ordered(mistakes, logged, FEWER, first)[:MOST_SCREENED]
        last = min(first + 1, self.loop.steps)
        likely = self._ordered([tried.mistake for tried in screened], logged, FEW, last)
        best = math.inf  # of those that hold the whole log, as ordered
        confirmed = []
        candidates = likely[:MOST_TRIED]
        for tried in shown_as_bar(candidates, self.progress, "likely ones", "mistake"):
            if tried.misfit > best + DECISIVE:
                break
            # with more runs, of all steps
            values = self._with_mistake(tried.mistake, FEWEST, self.loop.steps)
            if values and self._holds(values, logged):
                best = min(best, tried.misfit)
                misfit = self._misfit(values, logged) + tried.mistake.cost
                confirmed.append(Tried(misfit, tried.mistake))
        confirmed.sort(key=attrgetter("misfit"))
        named = [tried.mistake for tried in confirmed]
        if named and named[0].cost < FITTED:  # which a fitted constant only repeats
            named = [mistake for mistake in named if mistake.cost < FITTED]
        return list(dict.fromkeys(mistake.question for mistake in named))

    def _announce_search(self, mistakes: int, first: int) -> None:
        """Say how many mistakes are tried, and how long that takes at most."""
        all_steps = self.loop.steps + 1
        screened = min(mistakes, MOST_SCREENED)
        tried = min(mistakes, MOST_TRIED)
        steps = mistakes * FEWER * (first + 1)
        steps += screened * FEW * min(first + 2, all_steps)
        steps += tried * FEWEST * all_steps
        seconds = self.seconds * steps / all_steps
        text = f"numbers are outside their bands: trying {counted(mistakes, 'mistake')}"
        if seconds > LONG:
            text += f", which takes up to about {in_time(seconds)}"
        LOG.info("%s", text)

    def _ordered(
        self, mistakes: Sequence[Hypothesis], logged: RunLog, runs: int, last: int
    ) -> list[Tried]:
        """Mistakes by their misfit with a few runs up to a step, the best first."""
        beginning = _up_to(logged, last)
        possible = []
        title = f"mistakes, {runs} runs of each"
        for mistake in shown_as_bar(mistakes, self.progress, title, "mistake"):
            values = self._with_mistake(mistake, runs, last)
            if values:
                law = self._shifted(values)
                misfit = self._misfit(law, beginning, SHRUNK_OF_FEW)
                possible.append(Tried(misfit + mistake.cost, mistake))
        return sorted(possible, key=attrgetter("misfit"))

    def _departures(self, logged: RunLog) -> Departures:
        """How far the log is from the medians of healthy runs.

        Factors exist where the number and the median are positive.
        """
        factors: dict[str, dict[int, float]] = {}
        differences: dict[str, dict[int, float]] = {}
        for name, steps in compared(logged, self.loop.steps).items():
            medians = np.median(self.values[name], axis=0)
            factors[name] = {}
            differences[name] = {}
            for step, number in steps.items():
                value = number.value
                median = float(medians[step])
                if not np.isfinite(value):
                    continue
                differences[name][step] = value - median
                if median > 0 and value > 0:
                    factors[name][step] = value / median
        return Departures(factors, differences)

    def _with_mistake(
        self, mistake: Hypothesis, runs: int, last: int
    ) -> dict[str, Floats]:
        """The numbers of so many runs with a mistake, up to the `last` step.

        They are empty if it cannot run.
        Their seeds are those of the first healthy runs. They are kept for further logs.
        """
        key = mistake.name, mistake.question, last
        known = self.mistaken.get(key)
        if known is not None and (not known or len(known[LOSS]) >= runs):
            return known
        try:
            values = train(
                replace(mistake.loop, steps=last),
                self.seeds[:runs],
                first=runs_of(known or {}),
            )
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            values = {}  # the module does not allow it
        if not all(np.isfinite(numbers).all() for numbers in values.values()):
            values = {}
        self.mistaken[key] = values
        return values

    def _shifted(self, few: Mapping[str, Floats]) -> dict[str, Floats]:
        """The law of a mistake, from few runs that share their seeds with healthy ones.

        Most of the spread is that of the seeds, so the changes of few runs shift the
        healthy law and widen it. Numbers that are the same in all of them are
        constants.
        """
        shifted = {}
        for name, healthy in self.values.items():
            with_mistake = few[name]
            steps = with_mistake.shape[1]
            columns = [
                _moved(healthy[:, step], with_mistake[:, step]) for step in range(steps)
            ]
            shifted[name] = np.stack(columns, axis=1)
        return shifted

    def _misfit(
        self, values: Mapping[str, Floats], logged: RunLog, shrunk: float = SHRUNK
    ) -> float:
        """Minus twice the log likelihood of a log, up to a constant.

        It is that of Student's law with few degrees of freedom ν, whose correlations C
        are those of healthy runs: a seed that makes all gradients large counts once.
        For N numbers z standard deviations off it is
        (ν + N) log(1 + zᵀ C⁻¹ z / ν) + Σ log variance.
        """
        keys = []
        scores = []
        log_variances = 0.0
        for name, steps in compared(logged, self.loop.steps).items():
            for step, number in steps.items():
                score = self._score(number, values[name][:, step])
                keys.append((name, step))
                scores.append(score.distance)
                log_variances += math.log(score.variance)
        correlations = self._correlations(keys, shrunk)
        z = np.array(scores)
        square = float(z @ np.linalg.solve(correlations, z))
        likelihood_of_z = (DEGREES + len(z)) * math.log1p(square / DEGREES)
        return likelihood_of_z + log_variances

    def _score(self, number: Logged, values: Floats) -> Score:
        """How far a logged number is from its values in runs, (runs,).

        Positive numbers are compared by their logarithms.
        """
        value, rounding = number
        if (values > 0).all() and value > 0:
            rounding /= value
            value = math.log(value)
            values = np.log(values)
        variance = self.tolerance**2 + rounding**2 + float(values.var())
        distance = (value - float(values.mean())) / math.sqrt(variance)
        bounded = max(-FARTHEST, min(distance, FARTHEST))
        return Score(bounded, variance)

    def _correlations(self, keys: Sequence[tuple[str, int]], shrunk: float) -> Floats:
        """The correlations of numbers of healthy runs, (numbers, numbers).

        `keys` are their names and steps. Runs show correlations with errors, so the
        share `shrunk` of them is left out.
        """
        columns = [on_its_scale(self.values[name][:, step]) for name, step in keys]
        numbers = np.stack(columns)  # (numbers, runs)
        deviations = numbers - numbers.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(deviations, axis=1, keepdims=True)
        directions = np.zeros_like(deviations)
        np.divide(deviations, norms, out=directions, where=norms > 0)
        correlations: Floats = (1 - shrunk) * (directions @ directions.T)
        np.fill_diagonal(correlations, 1.0)
        return correlations

    def _holds(self, values: Mapping[str, Floats], logged: RunLog) -> bool:
        """Whether the bands of a mistake hold the whole log."""
        return not self._findings(values, logged)


class Tried(NamedTuple):
    """A mistake whose runs were compared with a log."""

    misfit: float  # minus twice the log of its likelihood and of its odds
    mistake: Hypothesis


class Score(NamedTuple):
    """How far a number is from those of runs."""

    distance: float  # in standard deviations, at most FARTHEST
    variance: float


class Predicted(NamedTuple):
    """A number that others of the run predict: their quantities and steps."""

    name: str
    step: int
    known: tuple[tuple[str, int], ...]


def _known_numbers(values: Mapping[str, Floats], predicted: Predicted) -> Floats:
    """The numbers of runs that predict another, (runs, numbers)."""
    return np.stack([values[name][:, step] for name, step in predicted.known], axis=1)


def on_its_scale(values: Floats) -> Floats:
    """The logarithms of numbers that are all positive; others as they are."""
    return np.log(values) if (values > 0).all() else values


def _moved(healthy: Floats, few: Floats) -> Floats:
    """Healthy numbers that move and spread as `few` of the same seeds did.

    Numbers that are all positive move by their logarithms. The spread of the changes is
    added with alternating signs, whose mean is 0 and whose variance is 1.
    """
    if (few == few[0]).all():
        return np.full_like(healthy, few[0])
    is_log = bool((healthy > 0).all() and (few > 0).all())
    before = healthy
    after = few
    if is_log:
        before = np.log(healthy)
        after = np.log(few)
    changes = after - before[: len(after)]
    signs = np.where(np.arange(len(before)) % 2, 1.0, -1.0)
    moved: Floats = before + changes.mean() + signs * changes.std(ddof=1)
    if is_log:
        moved = np.exp(moved)
    return moved


def _up_to(logged: RunLog, last: int) -> RunLog:
    """A log up to a step."""
    return replace(logged, numbers=compared(logged, last))


def runs_of(values: Mapping[str, Floats]) -> list[dict[str, Floats]]:
    """The numbers of each run, by name; empty without runs."""
    runs = len(next(iter(values.values()), ()))
    return [{name: numbers[k] for name, numbers in values.items()} for k in range(runs)]


def _range_of_steps(numbers: Mapping[str, Mapping[int, Logged]], last: int) -> str:
    """The compared steps, in words; also that the log ends before the last one."""
    steps = sorted({step for by_step in numbers.values() for step in by_step})
    if not steps:
        return "no step"
    first_step = steps[0]
    last_step = steps[-1]
    text = f"steps {first_step} to {last_step}"
    if first_step == last_step:
        text = f"step {first_step}"
    if last_step != last:
        text += f": the log ends before step {last}"
    return text


def _mean_log_ratio(scaled: Floats, values: Floats) -> Floats:
    """The mean change of a logarithm, step by step; 0 where there is no logarithm."""
    positive = ((scaled > 0) & (values > 0)).all(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.log(scaled / values).mean(axis=0)
    changes_where_known: Floats = np.where(positive, changes, 0.0)
    return changes_where_known


def compared(logged: RunLog, last: int) -> dict[str, dict[int, Logged]]:
    """The logged numbers of the steps up to the last one, by quantity and step."""
    numbers: dict[str, dict[int, Logged]] = {}
    for name, steps in logged.numbers.items():
        kept = {step: number for step, number in steps.items() if step <= last}
        if kept:
            numbers[name] = kept
    return numbers


def _finding(quantity: str, step: int, value: float, b: Band) -> RunFinding:
    """A logged number outside a band."""
    return RunFinding(
        quantity=quantity,
        step=step,
        value=value,
        low=b.low,
        high=b.high,
        expected=b.middle,
    )


def law_of_loop(
    loop: TrainingLoop,
    name: str,
    *,
    initialisations: int | None,
    level: float,
    tolerance: float,
    seed: int,
    progress: bool,
) -> RunLaw:
    """The law of the log of a loop that trains a network of this name."""
    first_seed, second_seed = seeds_of(seed, 2)
    run = loop.run(first_seed)
    start = time.monotonic()  # the first run also loads and compiles
    other_run = loop.run(second_seed)
    seconds = time.monotonic() - start
    _refuse_fixed_seed(name, other_run, run)
    # each number is compared by itself, and given earlier ones
    runs = enough_runs(level / (2 * sum(map(len, run.values()))))
    if initialisations is not None:
        runs = whole(
            initialisations,
            "initialisations",
            least=FEWEST,
            why=": fewer show no shape of the law",
        )
    seeds = seeds_of(seed, runs)
    _announce(runs + PAIRED, seconds)
    values = train(loop, seeds, progress, "healthy runs", [run, other_run])
    _refuse_not_finite(values)
    return RunLaw(
        name=name,
        values=values,
        level=level,
        tolerance=tolerance,
        loop=loop,
        seeds=seeds,
        scaled=train(loop.enlarged(), seeds[:PAIRED], progress, "power"),
        progress=progress,
        seconds=seconds,
    )


def _announce(runs: int, seconds: float) -> None:
    """Say how long all runs take, if it is long; one of them took these seconds."""
    total = seconds * runs
    if total > LONG:
        LOG.info("training %d healthy runs, which takes about %s", runs, in_time(total))


def seeds_of(seed: int, count: int) -> list[int]:
    """The seeds of independent runs; more of them begin with the same ones."""
    state = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(number) >> 1 for number in state]


def train(
    loop: TrainingLoop,
    seeds: Sequence[int],
    progress: bool = False,
    title: str = "",
    first: Sequence[Mapping[str, Floats]] = (),
) -> dict[str, Floats]:
    """The numbers of several runs, (runs, steps + 1) by name; `first` are the first."""
    runs = list(first)
    for seed in shown_as_bar(seeds[len(runs) :], progress, title, "run"):
        runs.append(loop.run(seed))
    return {name: np.stack([numbers[name] for numbers in runs]) for name in runs[0]}


def shown_as_bar(
    items: Sequence[T], progress: bool, title: str, unit: str
) -> Iterable[T]:
    """The items; a bar on a terminal shows how many are done, if `progress`."""
    from tqdm import tqdm  # slow to import

    hidden = None if progress else True  # None: shown on a terminal
    bar: Iterable[T] = tqdm(items, desc=title, unit=unit, leave=False, disable=hidden)
    return bar


def _refuse_fixed_seed(
    name: str, second: Mapping[str, Floats], first: Mapping[str, Floats]
) -> None:
    """Reject a function that makes the same module every time."""
    if second[PARAMETERS][0] == first[PARAMETERS][0]:
        raise ArgumentError(
            "build",
            name,
            "a function that draws new weights at each call: it returned the same ones"
            " twice, so remove the seed that it sets",
        )


def _refuse_not_finite(values: Mapping[str, Floats]) -> None:
    """Reject a loop that diverges by itself."""
    for name, numbers in values.items():
        if not np.isfinite(numbers).all():
            step = int(np.argwhere(~np.isfinite(numbers).all(axis=0))[0, 0])
            raise ValueError(
                f"the healthy runs have no finite {words(name)} at step {step}: lower"
                " the learning rate, or check fewer steps"
            )
