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
from ...report import _document as doc
from ...report._document import FLAG, OK, UNDECIDED, Cell, Paragraph, Section, Table
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
)
from .._parametrisation import Parametrisation
from .._study import svg_figure
from .._training_report import ByParametrisation, panels, steps_text
from ._causes import Scale, scales_of
from ._request import CHANGE, LETTERS, SIZE, UPDATE, Entry, Request
from ._rules import (
    GROWS,
    LIMIT,
    RULE,
    Fit,
    Verdict,
    advice,
    broken,
    fit,
    judged,
    size,
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
        return _of(name, self.verdicts)

    def __iter__(self) -> Iterator[str]:
        return (verdict.entry.name for verdict in self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def update(self, kind: str) -> Verdict:
        """The verdict on the update of a kind of weight, applied to its inputs before
        the step.
        """
        return _of(kind, self.updates)

    @cached_property
    def fits(self) -> dict[Entry, Fit | None]:
        """The exponent of each entry; None if a replica is 0 or not finite."""
        return {entry: fit(some, self.request.at) for entry, some in self.draws.items()}

    def blocks(self, what: str, step: int | None = None) -> list[Verdict]:
        """The verdict on every block; `verdicts` has the worst block alone.

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
        every = []
        for entry, power in self.fits.items():
            if (entry.what, entry.step) == (what, step):
                promised = self.rule.promise(entry.name, self.request.axis)
                every.append(
                    Verdict(
                        entry,
                        promised,
                        power,
                        judged(power, promised, self.request.tolerance),
                    )
                )
        return every

    def _worst(self, what: str, step: int | None = None) -> tuple[Verdict, ...]:
        every = self.blocks(what, step)
        names = dict.fromkeys(verdict.entry.name for verdict in every)
        return tuple(
            worst([verdict for verdict in every if verdict.entry.name == name])
            for name in names
        )

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
        last = {
            entry: why
            for entry, why in self.refused.items()
            if entry.what == CHANGE and entry.step is None
        }
        names = {
            why: dict.fromkeys(entry.name for entry in last if last[entry] == why)
            for why in last.values()
        }
        return {", ".join(some): why for why, some in names.items()}

    @cached_property
    def advice(self) -> list[str]:
        """What to change, in sentences; empty if nothing grows or shrinks more than
        expected.
        """
        r = self.request
        scales = wrong_scales(
            self._scales, self.verdicts, self.sizes, r.tolerance, self.updates
        )
        return advice(self.updates, self.verdicts, self.sizes, LETTERS[r.axis], scales)

    @cached_property
    def _scales(self) -> list[Scale]:
        """The scales of scores and logits, if something is flagged and maximal updates
        are expected.
        """
        maximal = (
            self.request.axis == "width"
            and not self.rule.features
            and not self.rule.outputs
        )
        if not maximal or not self.broken:
            return []
        cases = [
            case for case in self.request.cases(self.rule) if math.isfinite(case.width)
        ]
        networks = [
            (case.width, case.widths, case.network) for case in (cases[0], cases[-1])
        ]
        return scales_of(networks, self.request.optimiser)

    @property
    def kept(self) -> bool:
        """Whether `advice` is empty; undecided verdicts do not count."""
        return not self.advice

    @property
    def broken(self) -> list[str]:
        """The names of activations and updates that grow or shrink more than
        expected.
        """
        updates = (f"update of {v.entry.name}" for v in broken(self.updates))
        return [*(v.entry.name for v in broken(self.verdicts)), *updates]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each entry and width (or depth), and one for its limit."""
        at = self.request.at
        every = [
            (entry, n, draws)
            for entry, some in self.draws.items()
            for n, draws in zip(at, some, strict=True)
        ]
        every += [
            (entry, math.inf, draws) for entry, draws in (self.limit or {}).items()
        ]
        for entry, n, draws in every:
            value, low, high = self.limit_size(entry) if n == math.inf else size(draws)
            yield {
                "parametrisation": self.name,
                "what": entry.what,
                "name": entry.name,
                "block": "" if entry.block is None else entry.block,
                "step": 0 if entry.what == SIZE else entry.step or self.request.steps,
                self.request.axis: n,
                "value": value,
                "low": low,
                "high": high,
                "replicas": len(draws),
            }

    def limit_size(self, entry: Entry) -> tuple[float, float, float]:
        """The size of an entry at infinite width, and its interval."""
        if self.limit is None or entry not in self.limit:
            raise KeyError(f"{entry.what} of {entry.name} has no limit here")
        return size(
            self.limit[entry], self.errors.get(entry, 0.0), squares=entry.name != "loss"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the parametrisation, all exponents with their verdicts, and what to
        change.
        """
        return {
            "parametrisation": self.rule.fields(),
            "activations": [self._object(v) for v in self.blocks(CHANGE)],
            "updates": [self._object(v) for v in self.blocks(UPDATE)],
            "before": [self._object(v, judge=False) for v in self.blocks(SIZE)],
            "by_step": [
                {
                    "step": k,
                    "exponents": {
                        v.entry.name: v.through and v.through.as_dict()
                        for v in verdicts
                    },
                }
                for k, verdicts in enumerate(self.by_step, 1)
            ],
            "verdicts": {v.entry.name: v.verdict for v in self.verdicts},
            "statuses": {
                v.entry.name: v.status for v in (*self.verdicts, *self.updates)
            },
            "advice": self.advice,
            "limit": (
                None
                if self.limit is None
                else [
                    {
                        "what": e.what,
                        "name": e.name,
                        "block": e.block,
                        **_ends(self.limit_size(e)),
                    }
                    for e in self.limit
                    if e.step is None
                ]
            ),
            "no_limit": self.no_limit,
        }

    def _object(self, v: Verdict, judge: bool = True) -> dict[str, Any]:
        content = {
            "name": v.entry.name,
            "block": v.entry.block,
            "sizes": [_ends(size(d)) for d in self.draws[v.entry]],
            "exponent": v.fit and v.fit.exponent.as_dict(),
            "between": v.fit and [e.as_dict() for e in v.fit.local],
        }
        return content | (
            {"promised": v.promised, "verdict": v.verdict, "status": v.status}
            if judge
            else {}
        )


def _ends(size: tuple[float, float, float]) -> dict[str, float | None]:
    """A size and its interval, for JSON, which has no infinity."""
    ends = zip(("value", "low", "high"), size, strict=True)
    return {name: value if math.isfinite(value) else None for name, value in ends}


def _of(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in verdicts:
        if verdict.entry.name == name:
            return verdict
    raise KeyError(
        f"{name!r} is not measured; {', '.join(v.entry.name for v in verdicts)} are"
    )


def _item(check: Check) -> doc.Item:
    """The conclusion for one parametrisation, and what to change."""
    axis, parts = check.request.axis, []
    for verdicts, what in ((check.verdicts, "activations"), (check.updates, "updates")):
        if flagged := broken(verdicts):
            words = sorted(
                {"grow" if v.verdict == GROWS else "shrink" for v in flagged}
            )
            parts.append(
                f"{len(flagged)} of {len(verdicts)} {what} {' or '.join(words)} with"
                f" {axis}"
            )
    statuses = [v.status for v in (*check.verdicts, *check.updates)]
    undecided, confirmed = (
        statuses.count(UNDECIDED),
        f"{statuses.count(OK)} of {len(statuses)} confirmed",
    )
    parts = parts or [f"nothing grows or shrinks more than expected; {confirmed}"]
    parts += [f"{undecided} undecided"] if undecided else []
    more = [check.rule.words, *check.advice]
    if undecided and check.kept:
        more.append(f"use more draws, or {axis}s further apart, to decide the rest")
    worst = FLAG if not check.kept else UNDECIDED if undecided else OK
    return doc.Item(
        worst,
        check.name,
        "; ".join(parts),
        [f"{line[0].upper()}{line[1:]}." for line in more],
    )


def _exponent_cell(verdict: Verdict, short: bool = False) -> Cell:
    """An exponent with its interval and its status; a short cell shows a status only if
    it is a flag.
    """
    status, exponent = verdict.status, verdict.exponent
    if exponent is None:
        text = "–" if short else f"{verdict.verdict} {status}"
        return Cell(text, status="absent")
    text = f"{exponent.value:+.2f}"
    if not short:
        text += f" ({exponent.low:+.2f},{exponent.high:+.2f}) {status:>9}"
    elif status == FLAG:
        text += " FLAG"
    return Cell(text, status=COLOUR_CLASSES[status])


def size_table(check: Check, verdicts: Sequence[Verdict], title: str) -> Table:
    """Sizes at each width, a row for each of these verdicts."""
    at, deep = check.request.at, check.request.axis == "depth"
    few = len(at) <= MAX_WIDTH_COLUMNS
    shown = (
        list(range(len(at)))
        if few
        else [0, *range(len(at) - MAX_WIDTH_COLUMNS + 1, len(at))]
    )
    head = [title, *(f"{LETTERS[check.request.axis]} = {at[k]:,}" for k in shown)]
    head += ["∞"] * (check.limit is not None) + ["exponent", "expected", "status"]
    table: list[list[str | Cell]] = []
    for v in verdicts:
        numbers = [f"{size(check.draws[v.entry][k])[0]:.3g}" for k in shown]
        if check.limit is not None and v.entry not in check.limit:
            numbers.append("–")
        elif check.limit is not None:
            value, low, high = check.limit_size(v.entry)
            error = max(value - low, high - value)
            text = (
                str(Estimate(value, error)) if error > SHOWN * value else f"{value:.3g}"
            )
            numbers.append(f"≤ {high:.2g}" if low == 0 < high else text)
        block = v.entry.block
        name = (
            ""
            if block is None
            else f", {('first', 'middle', 'last')[block - 1] if deep else block}"
        )
        promised = (
            "–" if v.promised is None else f"{v.promised:+.1f}" if v.promised else "0"
        )
        word = Cell(
            f"FLAG {v.verdict}" if v.status == FLAG else v.status,
            status=COLOUR_CLASSES[v.status],
        )
        exponent = "–" if v.fit is None else f"{v.exponent}{' (bends)' * v.fit.bends}"
        table.append([v.entry.name + name, *numbers, exponent, promised, word])
    return Table(head, table)


def figure(checks: Sequence[Check], what: str) -> Any:
    """Sizes of changes, or of updates, against width or depth: a panel for each
    parametrisation.
    """
    r = checks[0].request
    at = np.array(r.at)

    def panel(axes: Any, check: Check) -> dict[str, Any]:
        """A line for each activation or kind of weight, in the block of its verdict."""
        lines: dict[str, Any] = {}
        verdicts = check.verdicts if what == CHANGE else check.updates
        for k, entry in enumerate(
            v.entry for v in verdicts if v.entry.name != "vocabulary"
        ):
            sizes = np.array([size(draws) for draws in check.draws[entry]])
            if not (sizes > 0).all():
                continue
            colour = COLOURS.get(
                entry.name if what == CHANGE else "", CYCLE[k % len(CYCLE)]
            )
            style = {
                "color": colour,
                "marker": MARKS[k % len(MARKS)],
                "ms": 3.2,
                "lw": 1.2,
                "elinewidth": 0.7,
            }
            away = np.abs(sizes[:, 1:] - sizes[:, :1]).T
            lines[entry.name] = axes.errorbar(at, sizes[:, 0], away, **style)
            if check.limit is not None and entry in check.limit:
                value, low, high = check.limit_size(entry)
                if low > 0:  # a logarithmic axis cannot show a limit that may be 0
                    axes.axhline(value, color=colour, lw=0.7, ls=(0, (4.0, 1.6)))
                    axes.axhspan(low, high, color=colour, alpha=0.12, lw=0)
        axes.set(xscale="log", yscale="log")
        large = [f"{v / 1024:g}k" if v % 1024 == 0 else f"{v / 1000:g}k" for v in at]
        axes.set_xticks(
            at,
            [
                f"{v:,.0f}" if v < 10_000 else brief
                for v, brief in zip(at, large, strict=True)
            ],
        )
        axes.minorticks_off()
        return lines

    labels = (
        f"{r.axis} {LETTERS[r.axis]}",
        "change of coordinates" if what == CHANGE else "size of ΔW x",
    )
    return panels(checks, panel, labels, (0.72, 0.9), share_x=True)


class CoordCheck(ByParametrisation[Check]):
    """A coordinate check: one `Check` for each parametrisation, by its name or its
    place; `ns.coord_check` makes it.

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
        return "; ".join(
            f"{c.name} {'nothing unexpected' if c.kept else 'not as expected'}"
            for c in self.parts
        )

    def _document(self, manifest: dict[str, Any] | None = None) -> doc.Document:
        r, checks, steps = self.request, self.parts, steps_text(self.request)
        counts = [
            doc.count_statuses([v.status for v in (*c.verdicts, *c.updates)])
            for c in checks
        ]
        verdict = "; ".join(
            f"{check.name}: {count}"
            for check, count in zip(checks, counts, strict=True)
        )
        caption = (
            f"√(mean square) of what {steps} of {r.optimiser} changes, against the"
            f" {r.axis}: geometric means over initialisations with two standard errors,"
            " in the block that the verdict is about. Maximal updates need flat lines"
        )
        if math.inf in r.widths:
            caption += "; a dashed line is the limit, in the band of its error"
        caption += "."
        rows: list[doc.Row] = []
        for name, some in {
            "": [c.verdicts for c in checks],
            " update": [c.updates for c in checks],
        }.items():
            rows += [
                [row[0].entry.name + name, *map(_exponent_cell, row)]
                for row in zip(*some, strict=True)
            ]
        exponents = Table(["", *(check.name for check in checks)], rows)
        sections = [
            Section(
                "Exponents with 99.99 % intervals (update: ΔW·x of a weight)",
                [exponents],
            )
        ]
        if r.steps > 1:
            after: list[doc.Row] = [
                [
                    f"{c.name}, {last.entry.name}",
                    *(_exponent_cell(step[k], short=True) for step in c.by_step),
                ]
                for c in checks
                for k, last in enumerate(c.verdicts)
            ]
            table = Table(["", *(f"step {k}" for k in range(1, r.steps + 1))], after)
            sections.append(Section("Exponents of changes after each step", [table]))
        for check in checks:
            tables = [
                size_table(check, check.verdicts, "change of"),
                size_table(check, check.updates, "update of"),
            ]
            limits = [
                Paragraph(f"No limit of {names}: {why}.")
                for names, why in check.no_limit.items()
            ]
            sections.append(
                Section(f"{check.name}: sizes", [*tables, *limits], "verbose")
            )
            blocks = [
                v
                for what in (CHANGE, UPDATE)
                for v in check.blocks(what)
                if v.entry.block is not None
            ]
            if blocks:
                every = [size_table(check, blocks, "every block")]
                sections.append(
                    Section(f"{check.name}: every block", every, "html", folded=True)
                )
        drawn = svg_figure(
            "updates",
            f"√(mean square) of ΔW x, against the {r.axis}.",
            figure,
            checks,
            UPDATE,
        )
        updates: list[doc.Block] = [
            Paragraph(UPDATE_NOTE.format(axis=r.axis)),
            doc.Figures([drawn]),
        ]
        sections.append(Section("What each learning rate does", updates, "html"))
        rule = (
            RULE.format(tolerance=r.tolerance, axis=r.axis)
            + "."
            + (LIMIT if math.inf in r.widths else "")
        )
        done, items = (
            f"{steps.capitalize()} of {r.optimiser}{{batch}}",
            [_item(check) for check in checks],
        )
        words = {
            "verdict": f"{r.name}, {verdict}",
            "done": done,
            "caption": caption,
            "rule": rule,
        }
        return self._assembled(manifest, items, sections, **words)

    def _figure(self) -> Any:
        return figure(self.parts, CHANGE)

    @property
    def _settings(self) -> dict[str, Any]:
        r = self.request
        plain = isinstance(r.lr, int | float) or (isinstance(r.lr, dict) and not r.own)
        eps, lr = (
            r.eps if isinstance(r.eps, int | float) else None,
            r.lr if plain else None,
        )
        settings = {"axis": r.axis, "at": list(r.at), "optimiser": r.optimiser}
        return {**settings, "eps": eps, "lr": lr, "tolerance": r.tolerance}
