"""The results of an audit: one model at its lengths, or several models side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...report._document import FLAG, NOT_APPLICABLE, OK, STATUSES, Document
from .._study import Several, TableResult
from ._baseline import Baseline, Departure
from ._differences import Differences, differences
from ._document import document
from ._findings import Finding
from ._measurements import Draws, LengthResult, ranges_of
from ._plots import plot_quantity
from ._quantities import FINAL
from ._request import Request


class AuditResult(TableResult):
    """The common part of `Audit` and `Comparison`: printing, saving, plots and
    tests.
    """

    audits: tuple[Audit, ...]
    request: Request
    # the fields, verdicts and quantities in which several models differ
    differences: Any = None

    @property
    def _measured(self) -> list[Draws]:
        """The draws of all models, lengths and widths."""
        measured: list[Draws] = []
        for audit in self.audits:
            for result in audit.lengths:
                measured += result.measured
        return measured

    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        """The report."""
        return document(self.audits, self.differences, manifest)

    def rows(self) -> list[dict[str, Any]]:
        """Medians and bands as data: a row for each model, length, set of widths,
        quantity and block.
        """
        rows: list[dict[str, Any]] = []
        for audit in self.audits:
            for result in audit.lengths:
                rows += result.rows()
        return rows

    def _spent(self) -> dict[str, Any]:
        """The work and the findings, for the manifest."""
        parts = []
        for draws in self._measured:
            case = draws.subject
            parts.append(
                {
                    "model": case.model.name,
                    "tokens": case.tokens,
                    "infinite": case.infinite,
                    "draws": draws.draws,
                    "random_numbers": draws.random_numbers,
                    "seconds": round(draws.seconds, 3),
                    "precision": draws.precision,
                }
            )
        findings = [[asdict(f) for f in audit.findings] for audit in self.audits]
        return {**super()._spent(), "parts": parts, "findings": findings}

    def as_dict(self) -> dict[str, Any]:
        """The object that `netsor audit --json` prints."""
        contents = []
        for audit in self.audits:
            # the numbers of the first length and the verdicts of all lengths
            content = _as_dict(audit)
            if len(audit.lengths) > 1:
                content["lengths"] = [_as_dict(result) for result in audit.lengths]
                content["changing"] = list(audit.changing)
            contents.append(content)
        content = contents[0]  # that of the first model, and the others inside it
        if self.differences is not None:
            content["compare"] = contents[1:]
            if self.request.swept is not None:
                field, values = self.request.swept
                content["sweep"] = {"field": field, "values": list(values)}
            content["differences"] = _differences_as_dict(self.differences)
        return {
            **content,
            "random_numbers": self.random_numbers,
            "seconds": round(self.seconds, 3),
        }

    @property
    def random_numbers(self) -> int:
        """How many random numbers were drawn, over all models, lengths and widths."""
        return sum(draws.random_numbers for draws in self._measured)

    @property
    def seconds(self) -> float:
        """Seconds of one core that the draws took, including those kept from an earlier
        run.
        """
        return sum(draws.seconds for draws in self._measured)

    def failed(self, names: Sequence[str]) -> list[str]:
        """One line for each model and each named rule that is flagged or undecided. A
        rule that does not apply is a ValueError.
        """
        lines = []
        for audit in self.audits:
            for finding in map(audit.finding, names):
                if finding.verdict == NOT_APPLICABLE:
                    raise ValueError(
                        f"{finding.name} was not measured for {audit.model.name}:"
                        f" {finding.measured}"
                    )
                if finding.verdict != OK:
                    lines.append(
                        f"{audit.model.name}: {finding.name} {finding.verdict} at"
                        f" {finding.lengths_text}: {finding.measured}"
                    )
        return lines

    def assert_ok(self, *names: str) -> None:
        """Raise an AssertionError if a named rule is flagged or undecided at any
        length.

        A rule that was not measured is a ValueError, because a test of it would test
        nothing.
        """
        if lines := self.failed(names):
            raise AssertionError("\n".join(lines))

    def plot(self, quantity: str = "mean_square", ax: Any = None) -> Any:
        """Plot a quantity against depth: medians, 5–95 % bands, and dashed lines at
        infinite width.

        Parameters
        ----------
        quantity : str
            A quantity of the blocks, such as "entropy".
        ax : matplotlib.axes.Axes, optional
            Where to plot; pyplot's current axes by default.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The axes with the picture.
        """
        return plot_quantity(self.audits, quantity, ax)


class Audit(AuditResult, LengthResult):
    """The audit of one model, at one input length or several; returned by `ns.audit`.

    It maps quantities to bands: `audit["entropy"].median` has an entry for each block,
    and so have `low`, `high` and `blocks`, where 0 is the embedding. These numbers are
    of the first length; `audit.at(128)` has those of another.
    `audit.finding("entropy").verdict` is the verdict at the worst length.
    `audit.actual["entropy"]` holds the draws themselves, (draws, blocks), at the
    model's own widths, and `audit.limit` those at infinite widths.

    Parameters
    ----------
    lengths : sequence of LengthResult
        The measurements at each length.

    Examples
    --------
    >>> gpt2 = ns.models.read("gpt2")
    >>> tiny = gpt2.replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> audit = ns.audit(tiny, quick=True)
    >>> audit
    <Audit of gpt2: 16 draws; flagged: none; print it for the table>
    >>> audit["mean_square"].median.shape  # the embedding and the blocks
    (3,)
    >>> audit.actual["entropy"].shape  # draws, blocks
    (16, 2)
    >>> audit.assert_ok("entropy", "rank", "loss")
    >>> changed = ns.audit(tiny.replace(std=0.2), quick=True, seed=1)
    >>> changed.departures(audit.as_dict())[0].quantity
    'mean_square'
    """

    def __init__(self, lengths: Sequence[LengthResult]) -> None:
        self.lengths = tuple(lengths)
        self.audits = (self,)
        shortest = lengths[0]
        super().__init__(
            request=shortest.request,
            model=shortest.model,
            tokens=shortest.tokens,
            actual=shortest.actual,
            limit=shortest.limit,
        )

    def __repr__(self) -> str:
        flagged = [f.name for f in self.findings if f.verdict == FLAG]
        draws = self.request.draws_of(self.tokens)
        return (
            f"<Audit of {self.model.name}: {draws} draws; flagged:"
            f" {', '.join(flagged) or 'none'}; print it for the table>"
        )

    def departures(
        self, baseline: str | Path | Mapping[str, Any] | Baseline
    ) -> list[Departure]:
        """The numbers whose medians have left the bands of an earlier audit, the
        largest change first.

        The earlier audit is a JSON file (from `netsor audit --json` or `save`) or what
        `as_dict` returned. It must have measured all that this audit measures. A number
        departs if its median is outside the earlier 5–95 % band by more than chance
        explains: an unchanged model has a departure in at most one of 10,000 audits.
        """
        earlier = Baseline.of(baseline)
        earlier.check(self.request, self.model)
        return earlier.departures(self)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The finding of each rule at the length where its verdict is worst; its
        `tokens` are all lengths with this verdict.
        """
        findings = []
        for by_length in self._findings_by_rule():
            worst = min(by_length, key=lambda finding: STATUSES.index(finding.verdict))
            tokens: tuple[int, ...] = ()
            for finding in by_length:
                if finding.verdict == worst.verdict:
                    tokens += finding.tokens
            findings.append(replace(worst, tokens=tokens))
        return tuple(findings)

    def _findings_by_rule(self) -> list[tuple[Finding, ...]]:
        """For each rule its finding at every length."""
        return list(zip(*(result.findings for result in self.lengths), strict=True))

    @property
    def changing(self) -> tuple[str, ...]:
        """The rules whose verdict depends on the length: flagged at one, ok at
        another.
        """
        names = []
        for by_length in self._findings_by_rule():
            if {FLAG, OK} <= {finding.verdict for finding in by_length}:
                names.append(by_length[0].name)
        return tuple(names)


class Comparison(AuditResult, Several[Audit]):
    """Audits of several models; `ns.audit` makes it from `compare` or `sweep`.

    `comparison["name"]` is the audit of one model.

    Parameters
    ----------
    audits : sequence of Audit
        Of the models, at the same lengths.
    """

    def __init__(self, audits: Sequence[Audit]) -> None:
        self.audits = tuple(audits)
        self.request = audits[0].request
        self._by_name = {audit.model.name: audit for audit in audits}

    def __repr__(self) -> str:
        preferred = f"preferred: {self.preferred or 'none'}"
        return (
            f"<Comparison of {' and '.join(self._by_name)}: {preferred}; print it for"
            " the table>"
        )

    @cached_property
    def differences(self) -> Differences:
        """The fields, verdicts and quantities in which the models differ."""
        return differences(self.audits)

    @property
    def preferred(self) -> str | None:
        """The model that the rules prefer; None if they prefer none or disagree."""
        return self.differences.preferred


def _differences_as_dict(differences: Differences) -> dict[str, Any]:
    """The differences between models, for JSON."""
    rules = []
    for rule in differences.rules:
        rules.append(
            {
                "rule": rule.rule,
                "preferred": list(rule.preferred),
                "changes": rule.changes,
                "why": rule.why,
                "verdicts": [finding.verdict for finding in rule.findings],
                "values": [finding.value for finding in rule.findings],
                "tokens": rule.findings[0].tokens[0],
            }
        )
    return {
        **differences._asdict(),
        "fields": {name: list(values) for name, values in differences.fields.items()},
        "rules": rules,
        "quantities": [metric._asdict() for metric in differences.quantities],
    }


def _as_dict(result: LengthResult) -> dict[str, Any]:
    """The numbers and findings at one length, for JSON."""
    model = result.model
    request = result.request
    ids = request.ids_of(model)
    joint = result.joint_remedy
    content: dict[str, Any] = {
        "model": model.name,
        "sizes": model.sizes,
        "status": result.best.subject.status,
        "widths": "inf" if result.best.subject.infinite else "actual",
        "tokens": result.tokens,
        "ids": None if ids is None else list(ids),
        "draws": result.best.draws,
        **_summaries(result.best),
        "findings": [asdict(finding) for finding in result.findings],
        "joint_remedy": None if joint is None else joint._asdict(),
    }
    if request.ranges:
        content["ranges"] = []
        for activation in ranges_of(result.best.arrays):
            formats = [fit._asdict() for fit in activation.formats]
            content["ranges"].append({**activation._asdict(), "formats": formats})
    if model in request.refused:
        content |= {"limit": None, "no_limit": request.refused[model]}
    elif result.actual is not None and result.limit is not None:
        content["limit"] = {
            "status": result.limit.subject.status,
            **_summaries(result.limit),
        }
    reason = request.no_gradients(model, result.tokens)
    if reason:
        content["no_gradients"] = reason
    return content


def _summaries(draws: Draws) -> dict[str, Any]:
    """All bands for JSON: "embedding" and "final" are objects with a band for each
    quantity, "layers" is a list of such objects, one for each block. Quantities of the
    logits are null in "final" if there are none.
    """
    final = {q.name: None for q in FINAL if not q.name.startswith("grad")}
    # 0 is the embedding, None the output
    blocks: dict[int | None, dict[str, Any]] = {0: {}, None: final}
    for (block, name), numbers in draws.numbers.items():
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError(
                "a measured number is not finite: it leaves double precision"
            )
        summary = dict(numbers)
        if not draws.subject.infinite:  # finite widths have no error
            del summary["error"]
        blocks.setdefault(block, {})[name] = summary
    final = blocks.pop(None)
    embedding = blocks.pop(0)
    return {"embedding": embedding, "layers": list(blocks.values()), "final": final}
