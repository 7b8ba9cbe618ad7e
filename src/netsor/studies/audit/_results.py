"""What an audit gives back: one model at its lengths, or several models beside each other."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from .._document import FLAG, NOT_APPLICABLE, OK, Document, to_text
from .._html_report import to_cell
from .._output_dir import Folder
from ._baseline import Baseline, Departure
from ._config import Request
from ._differences import Differences, differences
from ._document import document
from ._json import of_comparison, of_model
from ._measurements import Band, Draws, LengthResult, changing, merged
from ._program_adapter import Model
from ._quantities import BLOCKS, FINAL
from ._rule import Finding, lengths_text

COMMAND = "netsor audit"
FILES = ("report.html", "audit.csv", "audit.json")


class Result(ABC):
    """What an `Audit` and a `Comparison` have in common: they are printed, saved and tested alike."""

    audits: tuple[Audit, ...]
    request: Request

    @property
    @abstractmethod
    def _document(self) -> Document: ...

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return to_cell(self._document)

    def table(self, verbose: bool = False) -> str:
        """The result as text of 80 columns, the verdict first; `verbose` adds bands, gradients and every length."""
        return to_text(self._document, verbose)

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """What `netsor audit --json` prints.

        Returns
        -------
        dict
            Of plain numbers, texts and lists.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> sorted(ns.audit(tiny, compare=tiny.replace(std=1.0, name="wide"), quick=True).as_dict())[:2]
        ['compare', 'differences']
        """

    @property
    def random_numbers(self) -> int:
        """All that were drawn, for all models, lengths and widths.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).random_numbers > 0
        True
        """
        return sum(m.random_numbers for audit in self.audits for found in audit.lengths for m in found.measured)

    @property
    def seconds(self) -> float:
        """What the draws took, in seconds of one core; those that were kept from an earlier run count too.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).seconds > 0
        True
        """
        return sum(m.seconds for audit in self.audits for found in audit.lengths for m in found.measured)

    @property
    def _spent(self) -> dict[str, Any]:
        return {"random_numbers": self.random_numbers, "seconds": round(self.seconds, 3)}

    def failed(self, names: Sequence[str]) -> list[str]:
        """A line for each model and each of these rules that is not *not found*: found, or undecided.

        Parameters
        ----------
        names : sequence of str
            Of rules.

        Returns
        -------
        list of str
            A line for each model and each of these rules that is not *not found*: found, or undecided.

        Raises
        ------
        ValueError
            If there is no such rule, or it was not measured.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).failed(["entropy", "rank"])
        []
        """
        lines = []
        for audit in self.audits:
            for finding in map(audit.finding, names):
                if finding.verdict == NOT_APPLICABLE:
                    raise ValueError(f"{finding.name} is not measured of {audit.model.name}: {finding.measured}")
                if finding.verdict != OK:
                    lines.append(
                        f"{audit.model.name}: {finding.name} {finding.verdict} {lengths_text(finding)}: "
                        f"{finding.measured}"
                    )
        return lines

    def assert_ok(self, *names: str) -> None:
        """Raise an AssertionError if one of these rules is found, or undecided, at any length; a line for each.

        Parameters
        ----------
        *names : str
            Of rules.

        Raises
        ------
        AssertionError
            If one is found or undecided.
        ValueError
            If one was not measured: a test of it would test nothing.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).assert_ok("entropy", "rank", "loss")
        """
        lines = self.failed(names)
        if lines:
            raise AssertionError("\n".join(lines))

    def save(self, out: str | Path) -> Path:
        """Write report.html, audit.csv, audit.json (what `as_dict` gives) and manifest.json into a folder.

        Parameters
        ----------
        out : str or pathlib.Path
            The folder. Files in it that are not of an earlier audit are never overwritten.

        Returns
        -------
        pathlib.Path
            That of the report.

        Raises
        ------
        ValueError
            If there are such files.

        Examples
        --------
        >>> import tempfile
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ns.audit(tiny, quick=True).save(f"{folder}/tiny").name
        ...
        'report.html'
        """
        from ._report import files  # matplotlib is slow to import

        path = Path(out)
        folder = folder_of(path)
        folder.prepare(FILES)
        models = [audit.lengths for audit in self.audits]
        compared = self.differences if isinstance(self, Comparison) else None
        made, manifest = files(models, compared, self._spent, COMMAND, path)
        folder.put({**made, "audit.json": json.dumps(self.as_dict(), indent=1).encode()}, manifest)
        return path / "report.html"


class Audit(Result, Mapping[str, Band]):
    """What was measured of a model, at one length of its input or several; `ns.audit` makes it.

    A mapping of quantities to bands: `audit["entropy"].median` has an entry for each block, and so have `low`, `high`
    and `blocks`, in which 0 is the embedding. `audit.finding("entropy").verdict` is that of the worst length. Of one
    length: `audit.at(128)["entropy"]` and `audit.at(128).findings`; the audit's own numbers are those of the first.
    `audit.actual["entropy"]` are the draws themselves, (draws, blocks), at the model's own widths, and those of `limit`
    at infinite ones.

    Parameters
    ----------
    request : Request
        What was asked.
    lengths : sequence of Found
        What was measured at each length.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> found = ns.audit(tiny, quick=True)
    >>> found
    <Audit of gpt2: 16 draws; flagged: none; print it for the table>
    >>> found["mean_square"].median.shape  # the embedding, and two blocks
    (3,)
    """

    def __init__(self, request: Request, lengths: Sequence[LengthResult]) -> None:
        self.request, self.lengths = request, tuple(lengths)
        self.audits = (self,)

    def __repr__(self) -> str:
        found = ", ".join(finding.name for finding in self.findings if finding.verdict == FLAG) or "none"
        draws = self.request.draws_of(self.lengths[0].tokens)
        return f"<Audit of {self.model.name}: {draws} draws; flagged: {found}; print it for the table>"

    @property
    def _document(self) -> Document:
        return document([self.lengths])

    __eq__, __hash__ = object.__eq__, object.__hash__  # arrays have no truth value

    def __getitem__(self, name: str) -> Band:
        return self.lengths[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lengths[0])

    def __len__(self) -> int:
        return len(self.lengths[0])

    def as_dict(self) -> dict[str, Any]:
        """What `netsor audit --json` prints.

        Returns
        -------
        dict
            Of plain numbers, texts and lists.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> sorted(ns.audit(tiny, quick=True).as_dict()["final"])
        ['logit_std', 'loss', 'max_probability']
        """
        return {**of_model(self.lengths), **self._spent}

    @property
    def model(self) -> Model:
        """The model.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).model.layers
        2
        """
        return self.lengths[0].model

    @property
    def actual(self) -> Draws | None:
        """The draws of the first length at the model's own widths, or None.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True).actual["entropy"].shape
        (16, 2)
        """
        return self.lengths[0].actual

    @property
    def limit(self) -> Draws | None:
        """The draws of the first length at infinite widths, or None.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True, widths="inf").limit["entropy"].shape
        (16, 2)
        """
        return self.lengths[0].limit

    def at(self, tokens: int) -> LengthResult:
        """What was measured on so many tokens.

        Parameters
        ----------
        tokens : int
            One of the lengths.

        Returns
        -------
        Found
            With `findings`, and quantities by name.

        Raises
        ------
        ValueError
            If nothing was measured at that length.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True, tokens=[4, 8]).at(8).finding("entropy").verdict
        'not found'
        """
        for found in self.lengths:
            if found.tokens == tokens:
                return found
        known = ", ".join(str(found.tokens) for found in self.lengths)
        raise ValueError(f"tokens={tokens} was not measured of {self.model.name}; what was: {known}")

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """A verdict for each rule: that of the length where it is worst, with all lengths that have it.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> [finding.name for finding in ns.audit(tiny, quick=True).findings][:4]
        ['growth', 'branches', 'rank', 'entropy']
        """
        return merged(self.lengths)

    def finding(self, name: str) -> Finding:
        """The verdict of one rule, at the length where it is worst.

        Parameters
        ----------
        name : str
            Of the rule.

        Returns
        -------
        Finding
            With its verdict, and what was measured.

        Raises
        ------
        ValueError
            If there is no such rule.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny.replace(std=1.0), quick=True).finding("entropy").verdict
        'found'
        """
        self.lengths[0].finding(name)  # which knows the names
        return next(finding for finding in self.findings if finding.name == name)

    def departures(self, baseline: str | Path | Mapping[str, Any] | Baseline) -> list[Departure]:
        """The numbers whose medians have left the bands of an earlier audit, the largest change first.

        A number has left its band if its median is outside the earlier 5–95 % band by more than chance explains: a
        model that has not changed has a departure in at most one of 10,000 audits, whatever the number of draws.

        Parameters
        ----------
        baseline : str, pathlib.Path or mapping
            The earlier audit: the path of a JSON file (what `netsor audit --json` printed, or `audit.json` of a folder)
            or what `as_dict` gave. It must have all that this audit measures.

        Returns
        -------
        list of Departure
            Empty if every median is within its band.

        Raises
        ------
        ValueError
            If it is no audit, is of another model, or has not all that is measured here.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> old = ns.audit(tiny, quick=True).as_dict()
        >>> ns.audit(tiny, quick=True, seed=1).departures(old)
        []
        >>> print(ns.audit(tiny.replace(std=0.2), quick=True, seed=1).departures(old)[0].quantity)
        mean_square
        """
        earlier = Baseline.of(baseline)
        earlier.check(self.request, self.model)
        draws = {
            found.tokens: {q.name: found.best.from_embedding(q.name) for q in (*BLOCKS, *FINAL) if q.name in found.best}
            for found in self.lengths
        }
        return earlier.departures(self.request, self.model, draws)

    @property
    def changing(self) -> tuple[str, ...]:
        """The rules whose verdict depends on the length: found at one, not found at another.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, quick=True, tokens=[4, 8]).changing
        ()
        """
        return changing(self.lengths)


class Comparison(Result):
    """Several models beside each other; `ns.audit` makes it of `compare` or `sweep`.

    `comparison["name"]` is the audit of one of them.

    Parameters
    ----------
    audits : sequence of Audit
        Of the models, at the same lengths.

    Examples
    --------
    >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> found = ns.audit(tiny, sweep={"std": [0.02, 1.0]}, quick=True)
    >>> found.preferred, found.differences.verdict
    ('gpt2, std=0.02', 'prefer “std=0.02”, by entropy and loss')
    """

    def __init__(self, audits: Sequence[Audit]) -> None:
        self.audits, self.request = tuple(audits), audits[0].request

    def __repr__(self) -> str:
        names = " and ".join(audit.model.name for audit in self.audits)
        return f"<Comparison of {names}: preferred: {self.preferred or 'none'}; print it for the table>"

    @property
    def _document(self) -> Document:
        return document([audit.lengths for audit in self.audits], self.differences)

    def __iter__(self) -> Iterator[Audit]:
        return iter(self.audits)

    def __len__(self) -> int:
        return len(self.audits)

    def __getitem__(self, name: str | int) -> Audit:
        if isinstance(name, int):
            return self.audits[name]
        for audit in self.audits:
            if audit.model.name == name:
                return audit
        known = ", ".join(repr(audit.model.name) for audit in self.audits)
        raise KeyError(f"{name!r} is no model of this comparison; they are {known}")

    def as_dict(self) -> dict[str, Any]:
        """What `netsor audit --json` prints.

        Returns
        -------
        dict
            Of plain numbers, texts and lists.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> "differences" in ns.audit(tiny, sweep={"std": [0.02, 1.0]}, quick=True).as_dict()
        True
        """
        return {**of_comparison([audit.lengths for audit in self.audits], self.differences), **self._spent}

    @cached_property
    def differences(self) -> Differences:
        """What is different in the models, and in what the rules and the numbers say of them.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> found = ns.audit(tiny, sweep={"std_q": [0.02, 5.0]}, quick=True)
        >>> found.differences.fields
        {'std_q': (0.02, 5.0)}
        """
        return differences([audit.lengths for audit in self.audits])

    @property
    def preferred(self) -> str | None:
        """The model that the rules prefer; None where they prefer none, or not the same.

        Examples
        --------
        >>> tiny = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> ns.audit(tiny, sweep={"std": [0.02, 1.0]}, quick=True).preferred
        'gpt2, std=0.02'
        """
        return self.differences.preferred


def folder_of(path: Path) -> Folder:
    """The folder of an audit."""
    return Folder(path, COMMAND)
