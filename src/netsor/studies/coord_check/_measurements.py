"""What was found for one parametrisation: exponents, verdicts and what to change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ._config import Request
from ._network import CHANGE, SIZE, UPDATE, Entry
from ._parametrisation import Parametrisation
from ._regression import Fit, fit, size
from ._rules import Verdict, advice, broken, finite, judged, worst

Floats = npt.NDArray[np.float64]


class Check(Mapping[str, Verdict]):
    """What one parametrisation does.

    A mapping of activations to verdicts: `check["stream"]` is that of the worst block. `check.update("head")` is the
    verdict on what the update of a kind of weight does.

    Parameters
    ----------
    request : Request
        What was asked.
    rule : Parametrisation
        The parametrisation, with what it promises.
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
    +1.05 ± 0.06 grows
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
        """The name of the parametrisation; "program" for a program, which has its own.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> check.name
        'sp'
        """
        return self.rule.name

    def __repr__(self) -> str:
        counts = Counter(v.verdict for v in self.verdicts)
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return f"<Check of {self.request.name}, {self.name}: of {len(self.verdicts)} activations {told}>"

    __eq__, __hash__ = object.__eq__, object.__hash__  # verdicts hold arrays, which have no truth value

    def __getitem__(self, name: str) -> Verdict:
        return _of(name, self.verdicts)

    def __iter__(self) -> Iterator[str]:
        return (verdict.entry.name for verdict in self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def update(self, kind: str) -> Verdict:
        """The verdict on what the update of a kind of weight does to the inputs that it had.

        Parameters
        ----------
        kind : str
            Its name, one of those in `updates`.

        Returns
        -------
        Verdict
            That of the worst block.

        Raises
        ------
        KeyError
            If there is no such kind.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> check.update("head").verdict
        'grows'
        """
        return _of(kind, self.updates)

    @cached_property
    def fits(self) -> dict[Entry, Fit | None]:
        """The exponent of everything that was measured, by entry; None of what is 0, or not finite, in some replica.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> print(check.fits[check["logits"].entry].exponent)
        +1.05 ± 0.06
        """
        return {entry: fit(some, self.request.at) for entry, some in self.draws.items()}

    def _promised(self, name: str) -> float | None:
        promised = self.rule.promise(name)
        return promised if self.request.axis == "width" or promised is None else 0.0

    def blocks(self, what: str) -> list[Verdict]:
        """The verdict on every block, where `verdicts`, `updates` and `sizes` have that of the worst alone.

        Parameters
        ----------
        what : str
            "change" of activations, "update" of kinds of weights, or "size" of activations before the step.

        Returns
        -------
        list of Verdict
            In the order of the network.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> [(v.entry.name, v.entry.block) for v in check.blocks("change")][:3]
        [('embedding', None), ('scores', 1), ('attention', 1)]
        """
        every = []
        for entry, found in self.fits.items():
            if entry.what == what:
                promised = self._promised(entry.name)
                every.append(Verdict(entry, promised, found, judged(found, promised, self.request.tolerance)))
        return every

    def _worst(self, what: str) -> tuple[Verdict, ...]:
        found: dict[str, list[Verdict]] = {}
        for verdict in self.blocks(what):
            found.setdefault(verdict.entry.name, []).append(verdict)
        return tuple(map(worst, found.values()))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """On each activation, the logits and the loss: what one step changes.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> [v.entry.name for v in check.verdicts if v.verdict == "grows"]
        ['attention', 'mlp', 'logits', 'loss']
        """
        return self._worst(CHANGE)

    @cached_property
    def updates(self) -> tuple[Verdict, ...]:
        """On each kind of weight: what its update does to the inputs that it had.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> [v.entry.name for v in check.updates if v.verdict == "does not move"]
        ['query', 'key']
        """
        return self._worst(UPDATE)

    @cached_property
    def sizes(self) -> tuple[Verdict, ...]:
        """On each activation before the step.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> [v.entry.name for v in check.sizes][:4]
        ['embedding', 'scores', 'attention', 'mlp']
        """
        return self._worst(SIZE)

    @property
    def no_limit(self) -> dict[str, str]:
        """Why activations have no limit, by their names; empty if all have one, or if infinite width was not asked for.

        Examples
        --------
        >>> @ns.program
        ... def net(n):
        ...     h = ns.probe("hidden", ns.weight(n, 1, name="first") @ ns.data([[1.0]]))
        ...     return ns.mean_dot(h, h).sum()
        >>> check = ns.coord_check(net, widths=[4, 8, ns.inf], lr=lambda fan_in, out: out**2, draws=4)[0]
        >>> for names, why in check.no_limit.items():
        ...     print(f"{names}: {why}")
        hidden, loss: a step of first changes what it makes by an amount of order n^(1), which has no limit; ...
        """
        found: dict[str, list[str]] = {}
        for entry, why in self.refused.items():
            if entry.what == CHANGE and entry.name not in found.get(why, ()):
                found.setdefault(why, []).append(entry.name)
        return {", ".join(names): why for why, names in found.items()}

    @property
    def advice(self) -> list[str]:
        """What to change, a sentence each; empty if no update, and no activation, grows or shrinks against the promise.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> print(check.advice[0])
        the learning rates of value matrices, ... and head should fall like 1/n: what the update makes of its inputs ...
        """
        return advice(self.updates, self.verdicts, self.sizes, self.request.letter)

    @property
    def kept(self) -> bool:
        """Whether there is nothing to change: `advice` is empty. What is undecided does not count.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> check.kept
        False
        """
        return not self.advice

    @property
    def broken(self) -> list[str]:
        """What grows or shrinks against the promise, by name: activations, and updates of kinds of weights.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> check.broken[2:5]
        ['logits', 'loss', 'update of value']
        """
        return [
            *(v.entry.name for v in broken(self.verdicts)),
            *(f"update of {v.entry.name}" for v in broken(self.updates)),
        ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each entry and width (or depth), and for each that has a limit one at infinite width.

        Returns
        -------
        iterator of dict
            With `parametrisation`, `what`, `name`, `block`, `width` (or `depth`), `value` (the geometric mean over
            replicas), `low` and `high` (two standard errors below and above, and at infinite width the quadrature
            error too), and the number of `replicas`.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> row = next(check.rows())
        >>> row["what"], row["name"], row["width"], row["replicas"]
        ('size', 'embedding', 8, 16)
        """
        for entry, some in self.draws.items():
            for at, draws in zip(self.request.at, some, strict=True):
                yield self._row(entry, at, draws)
        for entry, draws in (self.limit or {}).items():
            yield self._row(entry, math.inf, draws, self.errors.get(entry, 0.0))

    def _row(self, entry: Entry, at: float, draws: Floats, error: float = 0.0) -> dict[str, Any]:
        value, low, high = size(draws, error, squares=entry.name != "loss")
        return {
            "parametrisation": self.name, "what": entry.what, "name": entry.name,
            "block": "" if entry.block is None else entry.block, self.request.axis: at,
            "value": value, "low": low, "high": high, "replicas": len(draws),
        }  # fmt: skip

    def limit_size(self, entry: Entry) -> tuple[float, float, float]:
        """The size of an entry at infinite width, and the ends of an interval for it.

        Parameters
        ----------
        entry : Entry
            One of those in `limit`.

        Returns
        -------
        tuple of float
            The geometric mean over replicas; that less and plus two standard errors and the quadrature error. The
            second is 0 if the size is not told from 0.

        Examples
        --------
        >>> @ns.program
        ... def net(n):
        ...     h = ns.probe("hidden", ns.weight(n, 1, name="first") @ ns.data([[1.0]]))
        ...     return ns.mean_dot(h, h).sum()
        >>> check = ns.coord_check(net, widths=[4, 8, ns.inf], lr=lambda fan_in, out: 0.1 * out, draws=4)[0]
        >>> [f"{end:.3f}" for end in check.limit_size(check["hidden"].entry)]  # exact
        ['0.200', '0.200', '0.200']
        """
        if self.limit is None or entry not in self.limit:
            raise KeyError(f"{entry.what} of {entry.name} has no limit here")
        return size(self.limit[entry], self.errors.get(entry, 0.0), squares=entry.name != "loss")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the parametrisation, all exponents with their verdicts, and what to change.

        Returns
        -------
        dict
            Of plain numbers, texts and lists.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=1, width=8, heads=2, hidden=32, vocabulary=5)
        >>> check = ns.coord_check(tiny, widths=[8, 64], parametrisation="sp", tokens=1, draws=16)[0]
        >>> check.as_dict()["verdicts"]["logits"]
        'grows'
        """
        return {
            "parametrisation": self.rule.fields(),
            "activations": [self._object(v) for v in self.blocks(CHANGE)],
            "updates": [self._object(v) for v in self.blocks(UPDATE)],
            "before": [self._object(v, judge=False) for v in self.blocks(SIZE)],
            "verdicts": {v.entry.name: v.verdict for v in self.verdicts},
            "advice": self.advice,
            "limit": None if self.limit is None else [
                {"what": e.what, "name": e.name, "block": e.block, **_ends(self.limit_size(e))} for e in self.limit
            ],
            "no_limit": self.no_limit,
        }  # fmt: skip

    def _object(self, v: Verdict, judge: bool = True) -> dict[str, Any]:
        sizes: Any = [_ends(size(d)) for d in self.draws[v.entry]]
        found = None if v.fit is None else v.fit.exponent.as_dict()
        made = {"name": v.entry.name, "block": v.entry.block, "sizes": sizes, "exponent": found}
        made |= {"between": None if v.fit is None else [e.as_dict() for e in v.fit.local]}
        return made | ({"promised": v.promised, "verdict": v.verdict} if judge else {})


def _ends(size: tuple[float, float, float]) -> dict[str, float | None]:
    """A size and its interval, for JSON."""
    return dict(zip(("value", "low", "high"), map(finite, size), strict=True))


def _of(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in verdicts:
        if verdict.entry.name == name:
            return verdict
    raise KeyError(f"{name!r} is not watched; {', '.join(v.entry.name for v in verdicts)} are")
