"""What was found for one parametrisation: exponents, verdicts and what to change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..._array_api import Floats
from .._parametrisation import Parametrisation
from ._request import CHANGE, SIZE, UPDATE, Entry, Request
from ._rules import Fit, Verdict, advice, broken, fit, judged, size, worst


class Check(Mapping[str, Verdict]):
    """What one parametrisation does.

    A mapping of activations to verdicts: `check["stream"]` is that of the worst block. `check.update("head")` is the
    verdict on what the update of a kind of weight does.

    Parameters
    ----------
    request : Request
        What was asked.
    rule : Parametrisation
        The parametrisation, with the exponents that it promises.
    draws : mapping of Entry to sequence of numpy.ndarray
        An array of replicas for each width (or depth), of √(mean square) of an activation (`entry.what` is "size"), of
        its change ("change"), and of what a kind of weight adds to its own outputs ("update").
    limit : mapping of Entry to numpy.ndarray, or None
        The same at infinite width, for what has a limit; None if it was not asked for.
    refused : mapping of Entry to str
        What has no limit, and why.
    errors : mapping of Entry to float
        The quadrature errors at infinite width: of the mean squares, and of the loss. Zero if not given.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
    >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
    >>> print(check["logits"].exponent, check["logits"].verdict)
    +1.09 ± 0.06 grows
    >>> len(check.draws), check.draws[check["logits"].entry][0].shape  # at the first width
    (27, (16,))
    """

    def __init__(
        self, request: Request, rule: Parametrisation, draws: Mapping[Entry, Sequence[Floats]],
        limit: Mapping[Entry, Floats] | None, refused: Mapping[Entry, str], errors: Mapping[Entry, float] | None = None,
    ) -> None:  # fmt: skip
        self.request, self.rule, self.draws = request, rule, dict(draws)
        self.limit, self.refused, self.errors = limit, dict(refused), dict(errors or {})

    @property
    def name(self) -> str:
        """The name of the parametrisation; "program" for a program, which has its own."""
        return self.rule.name

    def __repr__(self) -> str:
        counts = Counter(v.verdict for v in self.verdicts)
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return f"<Check of {self.request.name}, {self.name}: of {len(self.verdicts)} activations {listed}>"

    __eq__, __hash__ = object.__eq__, object.__hash__  # verdicts hold arrays, which have no truth value

    def __getitem__(self, name: str) -> Verdict:
        return _of(name, self.verdicts)

    def __iter__(self) -> Iterator[str]:
        return (verdict.entry.name for verdict in self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def update(self, kind: str) -> Verdict:
        """The verdict on the update of one kind of weight, applied to its old inputs."""
        return _of(kind, self.updates)

    @cached_property
    def fits(self) -> dict[Entry, Fit | None]:
        """The exponent of each entry; None if a replica of it is 0 or not finite."""
        return {entry: fit(some, self.request.at) for entry, some in self.draws.items()}

    def blocks(self, what: str, step: int | None = None) -> list[Verdict]:
        """The verdict on every block; `verdicts` has the worst block alone.

        Parameters
        ----------
        what : str
            "change", "update" or "size".
        step : int, optional
            The number of steps that a change is after; None: all of them.
        """
        every = []
        for entry, power in self.fits.items():
            if entry.what == what and entry.step == step:
                promised = self.rule.promise(entry.name)
                promised = promised if self.request.axis == "width" or promised is None else 0.0
                every.append(Verdict(entry, promised, power, judged(power, promised, self.request.tolerance)))
        return every

    def _worst(self, what: str, step: int | None = None) -> tuple[Verdict, ...]:
        every = self.blocks(what, step)
        names = dict.fromkeys(verdict.entry.name for verdict in every)
        return tuple(worst([verdict for verdict in every if verdict.entry.name == name]) for name in names)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on what one step changes: each activation, the logits and the loss."""
        return self._worst(CHANGE)

    @cached_property
    def by_step(self) -> tuple[tuple[Verdict, ...], ...]:
        """The verdicts on the changes after each step, the last ones those of `verdicts`."""
        return (*(self._worst(CHANGE, step) for step in range(1, self.request.steps)), self.verdicts)

    @cached_property
    def updates(self) -> tuple[Verdict, ...]:
        """The verdicts on the updates of each kind of weight, applied to their old inputs."""
        return self._worst(UPDATE)

    @cached_property
    def sizes(self) -> tuple[Verdict, ...]:
        """The verdicts on the size of each activation before the step."""
        return self._worst(SIZE)

    @property
    def no_limit(self) -> dict[str, str]:
        """Why activations have no limit, by name; empty if all have one or infinite width was not asked for."""
        last = {entry: why for entry, why in self.refused.items() if entry.what == CHANGE and entry.step is None}
        names = {why: dict.fromkeys(entry.name for entry in last if last[entry] == why) for why in last.values()}
        return {", ".join(some): why for why, some in names.items()}

    @property
    def advice(self) -> list[str]:
        """What to change, one sentence each; empty if nothing grows or shrinks more than expected."""
        return advice(self.updates, self.verdicts, self.sizes, self.request.letter)

    @property
    def kept(self) -> bool:
        """Whether `advice` is empty; what is undecided does not count."""
        return not self.advice

    @property
    def broken(self) -> list[str]:
        """The names of activations and updates that grow or shrink more than expected."""
        updates = [f"update of {v.entry.name}" for v in broken(self.updates)]
        return [v.entry.name for v in broken(self.verdicts)] + updates

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each entry and width (or depth), and one at infinite width where there is a limit."""
        for entry, some in self.draws.items():
            for at, draws in zip(self.request.at, some, strict=True):
                yield self._row(entry, at, draws)
        for entry, draws in (self.limit or {}).items():
            yield self._row(entry, math.inf, draws, self.errors.get(entry, 0.0))

    def _row(self, entry: Entry, at: float, draws: Floats, error: float = 0.0) -> dict[str, Any]:
        value, low, high = size(draws, error, squares=entry.name != "loss")
        return {
            "parametrisation": self.name, "what": entry.what, "name": entry.name,
            "block": "" if entry.block is None else entry.block,
            "step": 0 if entry.what == SIZE else entry.step or self.request.steps, self.request.axis: at,
            "value": value, "low": low, "high": high, "replicas": len(draws),
        }  # fmt: skip

    def limit_size(self, entry: Entry) -> tuple[float, float, float]:
        """The size of an entry at infinite width, and the ends of an interval for it."""
        if self.limit is None or entry not in self.limit:
            raise KeyError(f"{entry.what} of {entry.name} has no limit here")
        return size(self.limit[entry], self.errors.get(entry, 0.0), squares=entry.name != "loss")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the parametrisation, all exponents with their verdicts, and what to change."""
        return {
            "parametrisation": self.rule.fields(),
            "activations": [self._object(v) for v in self.blocks(CHANGE)],
            "updates": [self._object(v) for v in self.blocks(UPDATE)],
            "before": [self._object(v, judge=False) for v in self.blocks(SIZE)],
            "by_step": [
                {"step": k, "exponents": {v.entry.name: v.through and v.through.as_dict() for v in verdicts}}
                for k, verdicts in enumerate(self.by_step, 1)
            ],
            "verdicts": {v.entry.name: v.verdict for v in self.verdicts},
            "statuses": {v.entry.name: v.status for v in (*self.verdicts, *self.updates)},
            "advice": self.advice,
            "limit": None if self.limit is None else [
                {"what": e.what, "name": e.name, "block": e.block, **_ends(self.limit_size(e))}
                for e in self.limit if e.step is None
            ],
            "no_limit": self.no_limit,
        }  # fmt: skip

    def _object(self, v: Verdict, judge: bool = True) -> dict[str, Any]:
        content = {
            "name": v.entry.name, "block": v.entry.block, "sizes": [_ends(size(d)) for d in self.draws[v.entry]],
            "exponent": v.fit and v.fit.exponent.as_dict(), "between": v.fit and [e.as_dict() for e in v.fit.local],
        }  # fmt: skip
        return content | ({"promised": v.promised, "verdict": v.verdict, "status": v.status} if judge else {})


def _ends(size: tuple[float, float, float]) -> dict[str, float | None]:
    """A size and its interval, for JSON, which has no infinity."""
    ends = zip(("value", "low", "high"), size, strict=True)
    return {name: value if math.isfinite(value) else None for name, value in ends}


def _of(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in verdicts:
        if verdict.entry.name == name:
            return verdict
    raise KeyError(f"{name!r} is not watched; {', '.join(v.entry.name for v in verdicts)} are")
