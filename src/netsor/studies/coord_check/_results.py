"""Results: exponents, verdicts and advice for each parametrisation, and the report (see
`netsor.report._document`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..._array_api import Floats
from ...laws import Estimate
from ...laws._power_law import Fit, fit
from ...maximal_update._rules import layer_pattern_of
from ...report import _document as doc
from ...report._document import (
    FLAG,
    NOT_APPLICABLE,
    OK,
    UNDECIDED,
    Cell,
    Paragraph,
    Section,
    Table,
)
from ...report._html import COLOUR_CLASSES
from ...report._mpl_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    label_ends,
    styled,
)
from .._parametrisation import Parametrisation
from .._study import svg_figure
from .._training_report import ByParametrisation, panels, steps_text
from ._causes import Scale, SizedNetwork, scales_of
from ._request import CHANGE, LETTERS, SIZE, UPDATE, Entry, Request
from ._rules import (
    GROWS,
    LIMIT,
    RULE,
    SLACK_NOTE,
    Size,
    Verdict,
    advice,
    broken,
    judged,
    size,
    slack_of,
    worst,
    wrong_scales,
)

SHOWN = 5e-4  # relative error from which a limit is shown with its error
MAX_WIDTH_COLUMNS = 6  # columns of widths; of more, the first and the last are shown
UPDATE_NOTE = (
    "The change ΔW x that the update of a weight makes to its inputs x, taken before"
    " the step. It is proportional to the learning rate of that weight alone, so its"
    " exponent says how that rate must scale with the {axis}."
)
COLOURS = {
    "embedding": SKY,
    "scores": ORANGE,
    "attention": GREEN,
    "mlp": PURPLE,
    "stream": BLUE,
    "hidden": BLUE,
    "final": GREY,
    "logits": VERMILLION,
    "loss": BLACK,
}
CYCLE = (BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)


@dataclass(frozen=True, eq=False, repr=False)
class Check(Mapping[str, Verdict]):
    """The result for one parametrisation: a mapping of activations to verdicts.

    `check["stream"]` is the verdict on the worst block, and `check.update("head")` that
    on the update of a weight.

    Parameters
    ----------
    request : Request
        The options of the check.
    rule : Parametrisation
        The parametrisation, with the exponents that it promises.
    draws : mapping of Entry to sequence of numpy.ndarray
        An array of replicas for each width (or depth): √(mean square) of an activation
        (`entry.what` is "size"), of its change ("change"), and of the change that the
        update of a kind of weight makes ("update").
    limit : mapping of Entry to numpy.ndarray, or None
        The same at infinite width, for entries that have a limit; None if it was not
        requested.
    refused : mapping of Entry to str
        Why entries have no limit.
    errors : mapping of Entry to float
        The quadrature errors at infinite width, of the mean squares and of the loss; 0
        by default.

    Examples
    --------
    >>> gpt2 = ns.models.read("gpt2")
    >>> tiny = gpt2.replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> options = {"parametrisation": "sp", "tokens": 1, "draws": 16}
    >>> check = ns.coord_check(tiny, widths=[8, 64], **options)[0]
    >>> logits = check["logits"]
    >>> print(logits.exponent, logits.verdict)
    +1.09 ± 0.06 grows
    >>> len(check.draws), check.draws[logits.entry][0].shape  # at the first width
    (27, (16,))
    """

    request: Request
    rule: Parametrisation
    draws: Mapping[Entry, Sequence[Floats]]
    limit: Mapping[Entry, Floats] | None = None
    refused: Mapping[Entry, str] = field(default_factory=dict)
    errors: Mapping[Entry, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the parametrisation; "program" for a program."""
        return self.rule.name

    def __repr__(self) -> str:
        counts = doc.count_statuses([v.status for v in self.verdicts])
        return f"<Check of {self.request.name}, {self.name}: activations {counts}>"

    __eq__, __hash__ = object.__eq__, object.__hash__  # arrays have no truth value

    def __getitem__(self, name: str) -> Verdict:
        return _verdict_of(name, self.verdicts)

    def __iter__(self) -> Iterator[str]:
        return (verdict.entry.name for verdict in self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def update(self, kind: str) -> Verdict:
        """The verdict on the update of a kind of weight, applied to its inputs before
        the step.
        """
        return _verdict_of(kind, self.updates)

    @cached_property
    def fits(self) -> dict[Entry, Fit | None]:
        """The exponent of each entry; None if a replica is 0 or not finite."""
        at = self.request.at
        return {entry: fit(draws, at) for entry, draws in self.draws.items()}

    def blocks(self, what: str, step: int | None = None) -> list[Verdict]:
        """The verdict on every block; `verdicts` has only the worst block.

        Parameters
        ----------
        what : str
            "change", "update" or "size".
        step : int, optional
            After how many steps; by default all.

        Returns
        -------
        verdicts : list of Verdict
            One for each block, the first layers first.
        """
        verdicts = []
        for entry, fitted in self.fits.items():
            if (entry.what, entry.step) != (what, step):
                continue
            promised = self.rule.promise(entry.name, self.request.axis)
            slack = slack_of(entry, self.rule, self.request)
            word = judged(fitted, promised, self.request.tolerance, slack)
            verdicts.append(
                Verdict(
                    entry=entry,
                    promised=promised,
                    fit=fitted,
                    verdict=word,
                    slack=slack,
                )
            )
        return verdicts

    def _worst(self, what: str, step: int | None = None) -> tuple[Verdict, ...]:
        """The verdict on the worst block of each activation or kind of weight."""
        verdicts_of: dict[str, list[Verdict]] = {}
        for verdict in self.blocks(what, step):
            verdicts_of.setdefault(verdict.entry.name, []).append(verdict)
        return tuple(worst(verdicts) for verdicts in verdicts_of.values())

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the changes of each activation, the logits and the loss."""
        return self._worst(CHANGE)

    @cached_property
    def by_step(self) -> tuple[tuple[Verdict, ...], ...]:
        """The verdicts on the changes after each step; the last are `verdicts`."""
        return (
            *(self._worst(CHANGE, step) for step in range(1, self.request.steps)),
            self.verdicts,
        )

    @cached_property
    def updates(self) -> tuple[Verdict, ...]:
        """The verdicts on the updates of each kind of weight, applied to its inputs
        before the step.
        """
        return self._worst(UPDATE)

    @cached_property
    def sizes(self) -> tuple[Verdict, ...]:
        """The verdicts on the size of each activation before the step."""
        return self._worst(SIZE)

    @property
    def no_limit(self) -> dict[str, str]:
        """Why activations have no limit, by name; empty if all have one or infinite
        width was not requested.
        """
        names_of: dict[str, list[str]] = {}  # by the reason
        for entry, why in self.refused.items():
            if entry.what != CHANGE or entry.step is not None:
                continue
            names = names_of.setdefault(why, [])
            if entry.name not in names:
                names.append(entry.name)
        return {", ".join(names): why for why, names in names_of.items()}

    @cached_property
    def advice(self) -> list[str]:
        """What to change, in sentences; empty if nothing grows or shrinks more than
        expected.
        """
        request = self.request
        scales = wrong_scales(
            self._scales,
            changes=self.verdicts,
            sizes=self.sizes,
            tolerance=request.tolerance,
            updates=self.updates,
        )
        letter = LETTERS[request.axis]
        return advice(
            self.updates,
            changes=self.verdicts,
            sizes=self.sizes,
            letter=letter,
            scales=scales,
        )

    @cached_property
    def _scales(self) -> list[Scale]:
        """The scales at initialisation that `advice` may blame: those of scores and
        logits. Empty unless something is flagged, against the width, and the
        parametrisation promises maximal updates.
        """
        request = self.request
        promises_maximal_updates = request.axis == "width" and self.rule.is_maximal
        if not promises_maximal_updates or not self.broken:
            return []
        cases = [case for case in request.cases(self.rule) if math.isfinite(case.width)]
        narrowest = cases[0]
        widest = cases[-1]
        return scales_of(
            SizedNetwork(narrowest.width, narrowest.widths, narrowest.network),
            SizedNetwork(widest.width, widest.widths, widest.network),
            request.optimiser,
        )

    @property
    def kept(self) -> bool:
        """Whether `broken` is empty; undecided verdicts do not count."""
        return not self.broken

    @property
    def status(self) -> str:
        """The status of the whole: FLAG if something is broken, "undecided" if it
        depends on exponents that are undecided, or "ok".
        """
        if self.broken:
            return FLAG
        return UNDECIDED if self.undecided else OK

    @property
    def undecided(self) -> list[str]:
        """The names of activations and updates whose exponents are undecided."""
        names = [v.entry.name for v in self.verdicts if v.status == UNDECIDED]
        for verdict in self.updates:
            if verdict.status == UNDECIDED:
                names.append(f"update of {verdict.entry.name}")
        return names

    @property
    def is_mostly_undecided(self) -> bool:
        """Whether more than half of the exponents that are judged are undecided."""
        statuses = [v.status for v in (*self.verdicts, *self.updates)]
        judged = [status for status in statuses if status != NOT_APPLICABLE]
        return 2 * len(self.undecided) > len(judged)

    @cached_property
    def not_checked(self) -> list[str]:
        """The parameters of a PyTorch module that the check leaves as they are, with *
        for the number of a layer.
        """
        moved = {verdict.entry.name for verdict in self.updates}
        names = (name for name in self.request.trainable if name not in moved)
        return list(dict.fromkeys(map(layer_pattern_of, names)))

    @property
    def broken(self) -> list[str]:
        """The names of activations and updates that grow or shrink more than
        expected.
        """
        names = [verdict.entry.name for verdict in broken(self.verdicts)]
        for verdict in broken(self.updates):
            names.append(f"update of {verdict.entry.name}")
        return names

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each entry and width (or depth), and one for its limit."""
        for entry, by_width in self.draws.items():
            for n, draws in zip(self.request.at, by_width, strict=True):
                yield self._row(entry, n, size=size(draws), replicas=len(draws))
        for entry, draws in (self.limit or {}).items():
            yield self._row(
                entry, n=math.inf, size=self.limit_size(entry), replicas=len(draws)
            )

    def _row(self, entry: Entry, n: float, size: Size, replicas: int) -> dict[str, Any]:
        """One row of `rows`: the size of an entry at one width (or depth) n; the column
        of n is named "width" or "depth".
        """
        step = entry.step or self.request.steps  # None: after the last step
        return {
            "parametrisation": self.name,
            "what": entry.what,
            "name": entry.name,
            "block": "" if entry.block is None else entry.block,
            "step": 0 if entry.what == SIZE else step,
            self.request.axis: n,
            **size._asdict(),
            "replicas": replicas,
        }

    def limit_size(self, entry: Entry) -> Size:
        """The size of an entry at infinite width, and its interval."""
        if self.limit is None or entry not in self.limit:
            raise KeyError(f"{entry.what} of {entry.name} has no limit here")
        return size(
            self.limit[entry], self.errors.get(entry, 0.0), squares=entry.name != "loss"
        )

    def as_dict(self) -> dict[str, Any]:
        """A dict for JSON: the parametrisation, all exponents with their verdicts, and
        what to change.
        """
        by_step = []
        for k, verdicts in enumerate(self.by_step, 1):
            by_step.append({"step": k, "exponents": _exponents_by_name(verdicts)})
        statuses = {}
        for verdict in (*self.verdicts, *self.updates):
            statuses[verdict.entry.name] = verdict.status
        return {
            "parametrisation": self.rule.fields(),
            "activations": [self._object(v) for v in self.blocks(CHANGE)],
            "updates": [self._object(v) for v in self.blocks(UPDATE)],
            "before": [self._object(v, judge=False) for v in self.blocks(SIZE)],
            "by_step": by_step,
            "verdicts": {v.entry.name: v.verdict for v in self.verdicts},
            "statuses": statuses,
            "status": self.status,
            "undecided": self.undecided,
            "is_mostly_undecided": self.is_mostly_undecided,
            "not_checked": self.not_checked,
            "advice": self.advice,
            "limit": self._limit_objects(),
            "no_limit": self.no_limit,
        }

    def _limit_objects(self) -> list[dict[str, Any]] | None:
        """The sizes at infinite width as dicts for JSON, after the last step; None if
        infinite width was not requested.
        """
        if self.limit is None:
            return None
        objects = []
        for entry in self.limit:
            if entry.step is None:
                content = {
                    "what": entry.what,
                    "name": entry.name,
                    "block": entry.block,
                    **_finite_ends(self.limit_size(entry)),
                }
                objects.append(content)
        return objects

    def _object(self, verdict: Verdict, judge: bool = True) -> dict[str, Any]:
        """A dict for JSON of an activation or a weight in one block: its size at each
        width and its exponents; with its verdict, unless `judge` is false, as for sizes
        before the step.
        """
        entry = verdict.entry
        fitted = verdict.fit
        content: dict[str, Any] = {
            "name": entry.name,
            "block": entry.block,
            "sizes": [_finite_ends(size(draws)) for draws in self.draws[entry]],
            "exponent": None,
            "between": None,
        }
        if fitted is not None:
            content["exponent"] = fitted.exponent.as_dict()
            content["between"] = [exponent.as_dict() for exponent in fitted.local]
        if judge:
            content["promised"] = verdict.promised
            content["verdict"] = verdict.verdict
            content["status"] = verdict.status
        if judge and verdict.slack:
            content["slack"] = verdict.slack
        return content


def _exponents_by_name(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The exponents through all widths as dicts for JSON, by the name of the entry;
    None stands for an exponent without a fit.
    """
    exponents: dict[str, Any] = {}
    for verdict in verdicts:
        through = verdict.through
        exponents[verdict.entry.name] = None if through is None else through.as_dict()
    return exponents


def _finite_ends(size: Size) -> dict[str, float | None]:
    """A size and the ends of its interval by name, for JSON, which has no infinity:
    None stands for a number that is not finite.
    """
    ends: dict[str, float | None] = dict(size._asdict())
    for name, value in size._asdict().items():
        if not math.isfinite(value):
            ends[name] = None
    return ends


def _verdict_of(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on the activation or kind of weight of this name."""
    for verdict in verdicts:
        if verdict.entry.name == name:
            return verdict
    raise KeyError(
        f"{name!r} is not measured; {', '.join(v.entry.name for v in verdicts)} are"
    )


def _conclusion(check: Check) -> doc.Item:
    """The conclusion for one parametrisation, as "2 of 9 activations grow with width; 1
    undecided", and below it, in sentences, what to change.
    """
    axis = check.request.axis
    statuses = [v.status for v in (*check.verdicts, *check.updates)]
    undecided = statuses.count(UNDECIDED)
    texts = [
        *_broken_text(check.verdicts, "activations", axis),
        *_broken_text(check.updates, "updates", axis),
    ]
    if not texts:
        confirmed = f"{statuses.count(OK)} of {len(statuses)} confirmed"
        texts.append(f"nothing grows or shrinks more than expected; {confirmed}")
    if undecided:
        texts.append(f"{undecided} undecided")
    sentences = [check.rule.words, *check.advice]
    if undecided and check.kept:
        sentences.append(
            f"use more draws, or {axis}s further apart, to decide the rest"
        )
    if check.not_checked:
        sentences.append(_not_checked_text(check))
    explanations = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]
    return doc.Item(
        status=check.status, name=check.name, text="; ".join(texts), more=explanations
    )


def _not_checked_text(check: Check) -> str:
    """Which parameters of a module take no step, and which option adds some."""
    text = f"not checked: {', '.join(check.not_checked)}"
    if not check.request.trains_vectors:
        text += ". --vectors bias,gain adds biases and gains"
    return text


def _exponents_text(statuses: Sequence[str]) -> str:
    """The verdicts on exponents in words, as "13 of 17 exponents flagged"."""
    judged = [status for status in statuses if status != NOT_APPLICABLE]
    flagged = judged.count(FLAG)
    undecided = judged.count(UNDECIDED)
    if not flagged and not undecided:
        return f"all {len(judged)} exponents as expected"
    if not flagged:
        return f"{undecided} of {len(judged)} exponents undecided, none flagged"
    text = f"{flagged} of {len(judged)} exponents flagged"
    return f"{text}, {undecided} undecided" if undecided else text


def _broken_text(verdicts: Sequence[Verdict], noun: str, axis: str) -> list[str]:
    """A list of one text, as "2 of 9 activations grow with width"; an empty list if
    none grows or shrinks more than expected.
    """
    flagged = broken(verdicts)
    if not flagged:
        return []
    verbs = {"grow" if v.verdict == GROWS else "shrink" for v in flagged}
    count = f"{len(flagged)} of {len(verdicts)} {noun}"
    return [f"{count} {' or '.join(sorted(verbs))} with {axis}"]


def _exponent_cell(verdict: Verdict, short: bool = False) -> Cell:
    """An exponent with its interval and its status; a short cell shows a status only if
    it is a flag.

    There is no exponent if a size is 0: steps do not move it. Sizes that are not finite
    are an error while they are drawn.
    """
    status = verdict.status
    colour = COLOUR_CLASSES[status]
    exponent = verdict.exponent
    if exponent is None:
        text = "–" if short else f"{verdict.verdict} {status}"
        return Cell(text, status=colour)
    text = f"{exponent.value:+.2f}"
    if not short:
        text += f" ({exponent.low:+.2f},{exponent.high:+.2f}) {status:>9}"
    elif status == FLAG:
        text += f" {FLAG}"
    return Cell(text, status=colour)


def size_table(check: Check, verdicts: Sequence[Verdict], title: str) -> Table:
    """Sizes at each width, a row for each of these verdicts. With more than
    MAX_WIDTH_COLUMNS widths it shows the first and the last ones.
    """
    at = check.request.at
    shown = list(range(len(at)))
    if len(at) > MAX_WIDTH_COLUMNS:
        shown = [0, *range(len(at) - MAX_WIDTH_COLUMNS + 1, len(at))]
    letter = LETTERS[check.request.axis]
    head = [title, *(f"{letter} = {at[k]:,}" for k in shown)]
    if check.limit is not None:
        head.append("∞")
    head += ["exponent", "expected", "status"]
    rows: list[doc.Row] = []
    for verdict in verdicts:
        draws = check.draws[verdict.entry]
        sizes = [f"{size(draws[k]).value:.3g}" for k in shown]
        if check.limit is not None:
            sizes.append(_limit_text(check, verdict.entry))
        name = _name_in_block(verdict.entry, check.request.axis)
        rows.append([name, *sizes, *_judged_cells(verdict)])
    return Table(head, rows)


def _limit_text(check: Check, entry: Entry) -> str:
    """The size at infinite width, with its error if that is above SHOWN: "0.318" or
    "0.32 ± 0.01". "≤ 0.01" if its interval begins at 0; "–" without a limit.
    """
    if check.limit is None or entry not in check.limit:
        return "–"
    value, low, high = check.limit_size(entry)
    if low == 0 < high:
        return f"≤ {high:.2g}"
    error = max(value - low, high - value)
    return str(Estimate(value, error)) if error > SHOWN * value else f"{value:.3g}"


def _name_in_block(entry: Entry, axis: str) -> str:
    """The name of an entry with its block, as "mlp, 2" or, for depths, "mlp, last"."""
    if entry.block is None:
        return entry.name
    if axis == "depth":
        return f"{entry.name}, {('first', 'middle', 'last')[entry.block - 1]}"
    return f"{entry.name}, {entry.block}"


def _judged_cells(verdict: Verdict) -> list[str | Cell]:
    """The last three cells of a row of `size_table`: the exponent, the expected one,
    and the verdict.
    """
    exponent = "–"
    if verdict.fit is not None:
        exponent = f"{verdict.exponent}{' (bends)' if verdict.fit.bends else ''}"
    expected = verdict.expected_text
    if verdict.promised and not verdict.slack:
        expected = f"{verdict.promised:+.1f}"
    status = verdict.status
    word = f"FLAG {verdict.verdict}" if status == FLAG else status
    return [exponent, expected, Cell(word, status=COLOUR_CLASSES[status])]


def figure(checks: Sequence[Check], what: str) -> Any:
    """Sizes of changes, or of updates, against width or depth: a panel for each
    parametrisation.
    """
    request = checks[0].request
    lines_of_axes: list[tuple[Any, dict[str, Any]]] = []

    def panel(axes: Any, check: Check) -> dict[str, Any]:
        """Draw one parametrisation; its lines have labels at their ends, no legend."""
        lines_of_axes.append((axes, _draw_panel(axes, check, what)))
        return {}

    labels = (
        f"{request.axis} {LETTERS[request.axis]}",
        "change of coordinates" if what == CHANGE else "size of ΔW x",
    )
    canvas = panels(
        checks,
        draw=panel,
        labels=labels,
        panel_width=0.95,
        legend_width=0.0,
        share_x=True,
    )
    with styled():
        for axes, lines in lines_of_axes:
            label_ends(axes, lines)
    return canvas


def _draw_panel(axes: Any, check: Check, what: str) -> dict[str, Any]:
    """Draw a line for each activation or kind of weight, in its worst block; the lines
    by name.
    """
    lines: dict[str, Any] = {}
    verdicts = check.verdicts if what == CHANGE else check.updates
    # the logits of the batch have a line: those of the whole vocabulary would repeat
    # it, and are in the table alone
    entries = [v.entry for v in verdicts if v.entry.name != "vocabulary"]
    for k, entry in enumerate(entries):
        colour = CYCLE[k % len(CYCLE)]
        if what == CHANGE:
            colour = COLOURS.get(entry.name, colour)
        marker = MARKS[k % len(MARKS)]
        line = _draw_sizes(axes, check, entry, colour, marker)
        if line is not None:
            lines[entry.name] = line.lines[0]
    at = np.array(check.request.at)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(at, [_tick_text(n) for n in at])
    axes.minorticks_off()
    summary = _summary(verdicts, what, check.request.axis)
    axes.set_title(f"{axes.get_title()}: {summary}")
    return lines


def _summary(verdicts: Sequence[Verdict], what: str, axis: str) -> str:
    """The finding in a few words, as "7 of 9 activations grow with width"."""
    noun = "activations" if what == CHANGE else "updates"
    flagged = _broken_text(verdicts, noun, axis)
    if flagged:
        return flagged[0]
    undecided = sum(verdict.status == UNDECIDED for verdict in verdicts)
    return f"{undecided} {noun} undecided" if undecided else f"{noun} as expected"


def _draw_sizes(axes: Any, check: Check, entry: Entry, colour: str, marker: str) -> Any:
    """Draw the sizes of an entry against the width or depth, with error bars, and its
    limit as a dashed line in a band; return the line of the sizes. The axes are
    logarithmic: None, and nothing is drawn, if a size or the low end of one is 0.
    """
    # (widths, 3): a value and the ends of its interval at each width
    sizes = np.array([size(draws) for draws in check.draws[entry]])
    if not (sizes > 0).all():
        return None
    value, low, high = sizes.T
    line = axes.errorbar(
        np.array(check.request.at),
        value,
        np.abs([low - value, high - value]),
        color=colour,
        marker=marker,
        ms=3.2,
        lw=1.2,
        elinewidth=0.7,
    )
    if check.limit is not None and entry in check.limit:
        limit = check.limit_size(entry)
        if limit.low > 0:
            axes.axhline(limit.value, color=colour, lw=0.7, ls=(0, (4.0, 1.6)))
            axes.axhspan(limit.low, limit.high, color=colour, alpha=0.12, lw=0)
    return line


def _tick_text(n: float) -> str:
    """A width or depth at an axis: from 10,000 on as 16k = 16,384 or 20k = 20,000."""
    if n < 10_000:
        return f"{n:,.0f}"
    return f"{n / 1024:g}k" if n % 1024 == 0 else f"{n / 1000:g}k"


class CoordCheck(ByParametrisation[Check]):
    """A coordinate check: one `Check` for each parametrisation, by its name or its
    place; `ns.coord_check` returns it.

    Print it for the table; `save(folder)` writes the report, the figures and the
    tables.

    Parameters
    ----------
    request : Request
        The arguments of the check.
    parts : sequence of Check
        The result for each parametrisation.
    random_numbers, seconds : float
        About how many random numbers were drawn, and the core-seconds that this took,
        in earlier runs too.
    """

    request: Request
    heading, data, key = "Coordinate check", "every size", "checks"

    @property
    def _verdict(self) -> str:
        """The verdicts in a line, as "sp not as expected; mup nothing unexpected"."""
        texts = []
        for check in self.parts:
            conclusion = "nothing unexpected" if check.kept else "not as expected"
            if check.undecided:
                conclusion += f", {len(check.undecided)} undecided"
            texts.append(f"{check.name} {conclusion}")
        return "; ".join(texts)

    def _document(self, manifest: dict[str, Any] | None = None) -> doc.Document:
        """The report; `manifest` is that of the folder it is saved to, None for a
        report on the screen.
        """
        request = self.request
        steps = steps_text(request).capitalize()
        return self._assembled(
            manifest,
            items=[_conclusion(check) for check in self.parts],
            own_sections=[
                self._exponents_section(),
                *self._steps_sections(),
                *self._size_sections(),
                self._updates_section(),
            ],
            verdict=f"{request.name}. {self._counts_text()}",
            done=f"{steps} of {request.optimiser}{{batch}}",
            caption=self._caption(),
            rule=self._rule_text(),
        )

    def _counts_text(self) -> str:
        """What was found, in a sentence for each parametrisation."""
        texts = []
        for check in self.parts:
            statuses = [v.status for v in (*check.verdicts, *check.updates)]
            texts.append(f"{check.name}: {_exponents_text(statuses)}.")
        return " ".join(texts)

    def _caption(self) -> str:
        """The caption of the main figure."""
        request = self.request
        caption = (
            f"√(mean square) of what {steps_text(request)} of {request.optimiser}"
            f" changes, against the {request.axis}: geometric means over"
            " initialisations with two standard errors, in the block that the verdict"
            " is about. Maximal updates need flat lines"
        )
        if math.inf in request.widths:
            caption += "; a dashed line is the limit, in the band of its error"
        return f"{caption}."

    def _rule_text(self) -> str:
        """How verdicts are reached."""
        request = self.request
        text = RULE.format(tolerance=request.tolerance, axis=request.axis) + "."
        if any(v.slack for check in self.parts for v in check.verdicts):
            text += SLACK_NOTE
        if math.inf in request.widths:
            text += LIMIT
        return text

    def _exponents_section(self) -> Section:
        """The exponents of all parametrisations, side by side: a row for each
        activation and for the update of each kind of weight.
        """
        # all parametrisations measure the same entries, in the same order
        rows: list[doc.Row] = []
        changes = zip(*(check.verdicts for check in self.parts), strict=True)
        for verdicts in changes:  # on one activation, by all parametrisations
            cells = [_exponent_cell(verdict) for verdict in verdicts]
            rows.append([verdicts[0].entry.name, *cells])
        updates = zip(*(check.updates for check in self.parts), strict=True)
        for verdicts in updates:
            cells = [_exponent_cell(verdict) for verdict in verdicts]
            rows.append([f"{verdicts[0].entry.name} update", *cells])
        table = Table(["", *(check.name for check in self.parts)], rows)
        title = "Exponents with 99.99 % intervals (update: ΔW·x of a weight)"
        return Section(title, [table])

    def _steps_sections(self) -> list[Section]:
        """The exponents after each step; nothing for one step."""
        steps = self.request.steps
        if steps == 1:
            return []
        rows: list[doc.Row] = []
        for check in self.parts:
            # the verdicts of every step are on the same activations, in the same order
            for k, verdict in enumerate(check.verdicts):
                row: list[str | Cell] = [f"{check.name}, {verdict.entry.name}"]
                for verdicts_after_step in check.by_step:
                    row.append(_exponent_cell(verdicts_after_step[k], short=True))
                rows.append(row)
        table = Table(["", *(f"step {k}" for k in range(1, steps + 1))], rows)
        return [Section("Exponents of changes after each step", [table])]

    def _size_sections(self) -> list[Section]:
        """For each parametrisation the sizes at every width, and those of every
        block.
        """
        sections = []
        for check in self.parts:
            blocks: list[doc.Block] = [
                size_table(check, check.verdicts, "change of"),
                size_table(check, check.updates, "update of"),
            ]
            for names, why in check.no_limit.items():
                blocks.append(Paragraph(f"No limit of {names}: {why}."))
            sections.append(Section(f"{check.name}: sizes", blocks, "verbose"))
            in_blocks = []
            for verdict in (*check.blocks(CHANGE), *check.blocks(UPDATE)):
                if verdict.entry.block is not None:
                    in_blocks.append(verdict)
            if in_blocks:
                table = size_table(check, in_blocks, "every block")
                title = f"{check.name}: every block"
                sections.append(
                    Section(title=title, blocks=[table], show="html", folded=True)
                )
        return sections

    def _updates_section(self) -> Section:
        """The figure of the updates, and what they tell about learning rates."""
        axis = self.request.axis
        caption = f"√(mean square) of ΔW x, against the {axis}."
        updates = svg_figure("updates", caption, figure, self.parts, UPDATE)
        note = Paragraph(UPDATE_NOTE.format(axis=axis))
        blocks: list[doc.Block] = [note, doc.Figures([updates])]
        return Section("What each learning rate does", blocks, "html")

    def _figure(self) -> Any:
        """The figure of the check."""
        return figure(self.parts, CHANGE)

    @property
    def _settings(self) -> dict[str, Any]:
        """The options that the files of a saved check state; None for functions
        and of learning rates by weight, which JSON cannot hold.
        """
        request = self.request
        is_number = isinstance(request.lr, int | float)
        is_by_kind = isinstance(request.lr, dict) and not request.is_user_program
        return {
            "axis": request.axis,
            "at": list(request.at),
            "optimiser": request.optimiser,
            "eps": request.eps if isinstance(request.eps, int | float) else None,
            "lr": request.lr if is_number or is_by_kind else None,
            "tolerance": request.tolerance,
        }
