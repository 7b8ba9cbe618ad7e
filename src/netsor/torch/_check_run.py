"""A check of the first steps of a training run against the law of its log.

The law is literal: fresh modules of your own function are trained for the same steps
on the same batches, and `_run_bands` says where the numbers of one more run lie. If the
log leaves its bands, the mistakes of `_run_hypotheses` are trained in the same way, and
those whose bands hold the whole log are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from .._array_api import Floats
from .._validate import ArgumentError, also_spelled, counted, real, seed_number, whole
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
from ._run_bands import FEWEST, POWER, Band, band, enough_runs
from ._run_batches import Batch, as_batches, micro_batches
from ._run_hypotheses import Hypothesis, possible_mistakes
from ._run_logs import Logged, RunLog, read_log, rows_of
from ._run_loop import (
    CLIPPED,
    GRADIENT,
    LOSS,
    PARAMETERS,
    UPDATE,
    Loop,
    new_module_on,
    run,
    seeded,
)

WORDS = {
    LOSS: "loss",
    GRADIENT: "gradient norm",
    CLIPPED: "gradient norm after clipping",
    UPDATE: "update norm",
    PARAMETERS: "parameter norm",
}
MOST_SHOWN = 8  # numbers outside their bands that `print` shows
STD_FACTOR = 1.05  # by which all matrices are multiplied, to see what depends on it
PAIRED = 8  # runs of that
FEW = 4  # runs with each mistake
MOST_TRIED = 4  # mistakes that are tried with more runs
SMALL = 1.1  # factors below are shown in per cent
DEGREES = 4  # of freedom, of the law that orders mistakes
TOLERANCE = 1e-4  # of numbers in single precision on another device


@dataclass(frozen=True)
class RunFinding:
    """A logged number outside its band.

    Attributes
    ----------
    quantity, step : str, int
        Which number it is.
    value : float
        The logged number.
    low, high, expected : float
        The band, and its centre.
    """

    quantity: str
    step: int
    value: float
    low: float
    high: float
    expected: float

    @property
    def text(self) -> str:
        """The number, its band and how far it is off."""
        value, low, high = _numbers(self.value, self.low, self.high)
        range_text = f"{low} to {high}" if low != high else low
        text = f"{value}, expected {range_text}"
        return f"{text}: {self._how_far()}" if np.isfinite(self.value) else text

    def _how_far(self) -> str:
        """How far the number is off, in words."""
        direction = "large" if self.value > self.expected else "small"
        if self.quantity == LOSS:
            difference = abs(self.value - self.expected)
            direction = "high" if self.value > self.expected else "low"
            digits = ".0f" if difference >= 100 else ".2g"
            return f"{difference:{digits}} too {direction}"
        if self.expected <= 0 or self.value <= 0:
            return f"too {direction}"
        factor = max(self.value / self.expected, self.expected / self.value)
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
    return f"{text} of group {group}" if group else text


@dataclass(frozen=True)
class RunPower:
    """What a check would have detected with probability 0.9.

    Attributes
    ----------
    factors : dict of str to float
        By quantity, the factor by which it must be too large at the step that shows it
        best.
    std : float or None
        The factor of the standard deviation of all matrices; None if no number depends
        on it.
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
    """The result of `ns.torch.check_run`; `print` shows the verdict first.

    Attributes
    ----------
    findings : list of RunFinding
        The numbers outside their bands, in the order of steps.
    explanations : list of str or None
        Questions that name the mistakes whose bands hold the whole log, the most
        probable one first; None if no hypothesis was tried.
    bands : dict of str to list of tuple of float
        By quantity and step: low, expected, high.
    numbers : int
        How many logged numbers were compared.
    source : str
        Where the law comes from, such as "31 initialisations".
    power : RunPower
        What would have been detected.
    level : float
        The largest probability with which a healthy run is flagged.
    notes : list of str
        What was not compared, and why.

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
        """What is wrong first, and its probable cause, in one sentence."""
        if not self.findings:
            subject = ", ".join(
                words(name) for name in self.compared if "/" not in name
            )
            return f"{OK}: {counted(self.numbers, 'number')} as expected ({subject})"
        first = self.findings[0]
        text = f"{FLAG}: step {first.step} {words(first.quantity)} {first.text}"
        if self.explanations is None:
            return text
        if not self.explanations:
            return f"{text}; no hypothesis explains it"
        return f"{text}; {self.explanations[0]}"

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
            Paragraph(f"also fits: {text}") for text in (self.explanations or [])[1:]
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
        The relative difference that is allowed besides.

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
    loop: Loop
    seeds: list[int]
    scaled: dict[str, Floats]  # of the runs whose matrices are too large by STD_FACTOR
    progress: bool = False
    # of runs with mistakes, by the name and the question of each
    mistaken: dict[tuple[str, str], dict[str, Floats]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def source(self) -> str:
        """Where the numbers come from."""
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
        bands = self.bands_of(self.values, logged)
        notes = self._notes(logged)
        findings = _findings(bands, logged)
        explanations = None
        if findings and hypotheses:
            explanations = self._explanations(logged)
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
        )

    def bands_of(
        self, values: Mapping[str, Floats], logged: RunLog
    ) -> dict[str, list[Band]]:
        """The bands of the logged quantities at all steps, from the values of runs."""
        present = compared(logged, self.loop.steps)
        count = sum(map(len, present.values()))
        level = self.level / count
        return {
            name: [band(column, level, self.tolerance) for column in values[name].T]
            for name in present
        }

    def _notes(self, logged: RunLog) -> list[str]:
        """What the log lacks, and which columns were not read."""
        notes = []
        steps = {step for each in logged.numbers.values() for step in each}
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
        """What would have been detected."""
        factors = {}
        for name, steps in bands.items():
            shifts = [b.detected for b in steps if b.is_log]
            if shifts:
                factors[name] = float(np.exp(min(shifts)))
        needed = []
        for name, steps in bands.items():
            changes = _mean_log_ratio(
                self.scaled[name], self.values[name][: len(self.scaled[name])]
            )
            for b, change in zip(steps, changes, strict=True):
                if b.is_log and abs(change) > 1e-6:
                    needed.append(b.detected / abs(change))
        std = None
        if needed:
            std = float(STD_FACTOR ** min(needed))
        return RunPower(factors, std)

    def _explanations(self, logged: RunLog) -> list[str]:
        """The questions of the mistakes that explain the log, the likeliest first.

        All are tried with a few runs, and the best of them with more.
        """
        ratio = None
        first = logged.numbers.get(GRADIENT, {}).get(0)
        if first is not None:
            ratio = first.value / float(np.median(self.values[GRADIENT][:, 0]))
        mistakes = possible_mistakes(self.loop, ratio)
        for runs in (FEW, FEWEST):
            scored = []
            for mistake in mistakes:
                values = self._with_mistake(mistake, runs)
                if values:
                    scored.append((self._misfit(values, logged), mistake))
            scored.sort(key=lambda each: each[0])
            mistakes = [mistake for _, mistake in scored[:MOST_TRIED]]
        return [
            mistake.question
            for mistake in mistakes
            if self._holds(self.mistaken[mistake.name, mistake.question], logged)
        ]

    def _with_mistake(self, mistake: Hypothesis, runs: int) -> dict[str, Floats]:
        """The numbers of at least so many runs with a mistake; empty if it cannot run.

        They are kept for further logs.
        """
        key = mistake.name, mistake.question
        known = self.mistaken.get(key)
        if known is not None and (not known or len(known[LOSS]) >= runs):
            return known
        try:
            values = train(
                mistake.loop,
                seeds_of(self.seeds[0], runs),
                progress=self.progress,
                title=mistake.name,
            )
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            values = {}  # the module does not allow it
        if not all(np.isfinite(numbers).all() for numbers in values.values()):
            values = {}
        self.mistaken[key] = values
        return values

    def _misfit(self, values: Mapping[str, Floats], logged: RunLog) -> float:
        """Minus twice the log likelihood of a log, up to a constant.

        It is that of Student's law with few degrees of freedom, which no single number
        dominates. Of few runs the spread is taken together with the healthy one.
        """
        total = 0.0
        for name, steps in compared(logged, self.loop.steps).items():
            for step, number in steps.items():
                x, healthy = values[name][:, step], self.values[name][:, step]
                value = number.value
                if (x > 0).all() and (healthy > 0).all() and value > 0:
                    x, healthy, value = np.log(x), np.log(healthy), np.log(value)
                square = self.tolerance**2 + float(x.var())
                if len(x) < FEWEST:
                    square = (square + float(healthy.var())) / 2
                total += (DEGREES + 1) * np.log1p(
                    (value - x.mean()) ** 2 / (DEGREES * square)
                ) + np.log(square)
        return float(total)

    def _holds(self, values: Mapping[str, Floats], logged: RunLog) -> bool:
        """Whether the bands of a mistake hold the whole log."""
        bands = self.bands_of(values, logged)
        return not _findings(bands, logged)


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


def _findings(bands: Mapping[str, Sequence[Band]], logged: RunLog) -> list[RunFinding]:
    """The logged numbers outside their bands, in the order of steps."""
    findings = []
    for name, steps in bands.items():
        for step, b in enumerate(steps):
            number = logged.numbers[name].get(step)
            if number is None or b.has(*number):
                continue
            findings.append(
                RunFinding(
                    quantity=name,
                    step=step,
                    value=number.value,
                    low=b.low,
                    high=b.high,
                    expected=b.middle,
                )
            )
    return sorted(findings, key=lambda each: each.step)


@also_spelled(optimizer="optimiser", initialization="initialisation")
def run_law(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    steps: int = 5,
    accumulation: int = 1,
    clip: float | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    tokens: int | None = None,
    sequences: int | None = None,
    initialisations: int | None = None,
    level: float = 1e-3,
    tolerance: float = TOLERANCE,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> RunLaw:
    """The law of the log of a training run, to check several logs against.

    The parameters are those of `check_run`.

    Returns
    -------
    RunLaw
        The numbers of healthy runs, with a method `check`.

    Examples
    --------
    >>> law = ns.torch.run_law(build, adamw, batch)  # doctest: +SKIP
    >>> print(law.check("run.csv"))  # doctest: +SKIP
    """
    level = real(level, "level", above=0, most=0.5)
    tolerance = real(tolerance, "tolerance", least=0, most=1)
    seed = seed_number(seed)
    loop = loop_of(
        build,
        optimiser,
        batches,
        steps=steps,
        accumulation=accumulation,
        clip=clip,
        loss=loss,
        tokens=tokens,
        sequences=sequences,
        device=device,
    )
    first = run(loop, seeds_of(seed, 1)[0])
    runs = enough_runs(level / sum(map(len, first.values())))
    if initialisations is not None:
        runs = whole(
            initialisations,
            "initialisations",
            least=FEWEST,
            why=": fewer show no shape of the law",
        )
    seeds = seeds_of(seed, runs)
    _refuse_fixed_seed(loop, seeds[1], first)
    values = train(loop, seeds, progress, "healthy runs", first)
    _refuse_not_finite(values)
    too_large = replace(loop, of_module=_enlarge)
    scaled = train(too_large, seeds[:PAIRED], progress, "power")
    with seeded(0, loop.device):
        name = type(new_module_on(build, loop.device)).__name__
    return RunLaw(
        name=name,
        values=values,
        level=level,
        tolerance=tolerance,
        loop=loop,
        seeds=seeds,
        scaled=scaled,
        progress=progress,
    )


@also_spelled(optimizer="optimiser")
def check_run(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    log: Any,
    columns: Mapping[str, str] | None = None,
    first_step: int | None = None,
    hypotheses: bool = True,
    **options: Any,
) -> RunCheck:
    """Check the first steps of a training run: does its log look as it should?

    Fresh modules of `build` are trained for the same steps on the same batches. They
    give a band for the loss, the norms of gradients and updates at each step. Each band
    is a prediction interval for one new run. If a logged number leaves its band, the
    check trains with common mistakes too, such as gradients that are summed, not
    averaged, over accumulation steps, and names those that explain the whole log.

    Parameters
    ----------
    build : callable
        A function that returns a new module with its own random initialisation.
    optimiser : callable
        A function of the module that returns its torch optimiser, a list of several,
        or optimisers and schedules. Also spelled `optimizer`.
    batches : torch.Tensor, tuple, mapping or list
        What the module is called with: a tensor of ids, a tuple of inputs, or inputs by
        name. A list holds the batches of the passes, in order; one batch is used at
        every step. If the module returns logits, labels that it does not take itself
        are compared with them, or else the next token.
    log : str, pathlib.Path, list or mapping
        The log: a .csv or .jsonl file, a trainer_state.json, a file of events of
        TensorBoard, or rows by step.
    columns : mapping of str to str, optional
        The column of a quantity, as {"grad_norm": "gnorm"}; common names are known.
    first_step : int, optional
        The number that the log gives the first step; its lowest one, 0 or 1, if None.
    hypotheses : bool
        Whether to look for a mistake that explains the log.
    steps : int
        The last step; steps are counted from 0.
    accumulation : int
        The number of passes whose mean gradient is one step.
    clip : float, optional
        The total gradient norm that gradients are clipped to.
    loss : callable, optional
        A function of the module's output and the batch that returns the loss.
    tokens, sequences : int, optional
        Use the first tokens and sequences of each batch only.
    initialisations : int, optional
        The number of healthy runs; None takes as many as make the bands at most 1.5
        times as wide as those of a known normal law.
    level : float
        The probability with which a healthy run is flagged.
    tolerance : float
        The relative difference between devices and kernels that is allowed besides;
        0.01 for a run in bfloat16.
    device : str or torch.device, optional
        Where to train; a GPU, if there is one.
    seed : int
        The seed of the healthy runs.
    progress : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    RunCheck
        The verdict, the numbers outside their bands, and what explains them.

    Examples
    --------
    >>> def adamw(model):
    ...     return torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> print(ns.torch.check_run(build, adamw, batch, log="run.csv"))  # doctest: +SKIP
    """
    rows_of(log)  # a log that cannot be read raises its error before the training
    law = run_law(build, optimiser, batches, **options)
    return law.check(log, columns=columns, first_step=first_step, hypotheses=hypotheses)


def loop_of(
    build: Callable[[], Any],
    optimiser: Callable[[Any], Any],
    batches: Any,
    *,
    steps: int,
    accumulation: int,
    clip: float | None,
    loss: Callable[[Any, Any], Any] | None,
    tokens: int | None,
    sequences: int | None,
    device: Any,
) -> Loop:
    """The healthy loop of checked arguments."""
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise ArgumentError("build", build, "a function that returns a new module")
    if not callable(optimiser):
        raise ArgumentError(
            "optimiser",
            optimiser,
            "a function of the module that returns its optimiser",
        )
    steps = whole(steps, "steps", least=0, most=1000)
    accumulation = whole(accumulation, "accumulation")
    if clip is not None:
        clip = real(clip, "clip", above=0)
    place = _device(device)
    with seeded(0, place):
        module = new_module_on(build, place)
    entries = as_batches(batches, module)
    _refuse_large_ids(entries, module)
    if tokens is not None or sequences is not None:
        tokens = None if tokens is None else whole(tokens, "tokens", least=2)
        sequences = None if sequences is None else whole(sequences, "sequences")
        entries = [entry.cut(sequences, tokens) for entry in entries]
    entries = micro_batches(entries, accumulation)
    needed = (steps + 1) * accumulation
    if len(entries) not in (1, accumulation) and len(entries) < needed:
        raise ArgumentError(
            "batches",
            batches,
            f"one batch, or {needed} of them: {accumulation} for each of the"
            f" {steps + 1} steps 0 to {steps}, not {len(entries)}",
        )
    return Loop(
        build=build,
        optimiser=optimiser,
        batches=entries[: needed + accumulation],  # one step more, for a late log
        steps=steps,
        accumulation=accumulation,
        clip=clip,
        loss=loss,
        device=place,
    )


def _refuse_large_ids(batches: Sequence[Batch], module: Any) -> None:
    """Reject ids that have no row in any embedding: on a GPU, they end the process."""
    rows = [
        part.num_embeddings
        for part in module.modules()
        if isinstance(part, torch.nn.Embedding)
    ]
    ids = [batch.ids for batch in batches if batch.ids is not None]
    largest = max((int(each.max()) for each in ids if each.numel()), default=0)
    if rows and largest >= max(rows):
        raise ArgumentError(
            "batches",
            largest,
            f"ids below {max(rows)}: {type(module).__name__} has no larger embedding",
        )


def _device(device: Any) -> Any:
    """The device; a GPU by default, if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ArgumentError(
            "device", device, f"a device of this machine: {reason}"
        ) from None
    return place


def seeds_of(seed: int, count: int) -> list[int]:
    """The seeds of independent runs; more of them begin with the same ones."""
    state = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(number) >> 1 for number in state]


def train(
    loop: Loop,
    seeds: Sequence[int],
    progress: bool = False,
    title: str = "",
    first: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """The numbers of several runs, (runs, steps + 1) by name; `first` is the first."""
    from tqdm import tqdm  # slow to import

    hidden = None if progress else True  # None: shown on a terminal
    runs = [] if first is None else [first]
    for seed in tqdm(
        seeds[len(runs) :], desc=title, unit="run", leave=False, disable=hidden
    ):
        runs.append(run(loop, seed))
    return {name: np.stack([numbers[name] for numbers in runs]) for name in runs[0]}


def _enlarge(module: Any) -> None:
    """Multiply all matrices of a module by STD_FACTOR."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.mul_(STD_FACTOR)


def _refuse_fixed_seed(loop: Loop, seed: int, first: Mapping[str, Floats]) -> None:
    """Reject a function that makes the same module every time."""
    second = run(replace(loop, steps=0), seed)
    if second[PARAMETERS][0] == first[PARAMETERS][0]:
        raise ArgumentError(
            "build",
            loop.build,
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
