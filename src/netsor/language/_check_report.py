"""What the checker says of a program: points, each with what was found against it, and the verdict."""

from __future__ import annotations

import html
from dataclasses import dataclass

from .._repr_html import BAD, CELL, GOOD, OPEN, TEXT_CELL_STYLE, title, verdict

PROVED, CONJECTURED, NO_LIMIT = "proved", "conjectured", "no limit"
MARKS = {PROVED: "holds", CONJECTURED: "open", NO_LIMIT: "fails"}
COLOURS = {PROVED: GOOD, CONJECTURED: OPEN, NO_LIMIT: BAD}


@dataclass(frozen=True)
class Point:
    """One point of the assumption: whether it holds, and for each finding against it a sentence.

    Parameters
    ----------
    name : str
        Of the point.
    verdict : str
        What follows from this point: `proved`, `conjectured` or `no limit`.
    findings : tuple of str
        For each finding against it a sentence.

    Examples
    --------
    >>> point = ns.paper.layer().check().points[0]
    >>> point.name, point.verdict, point.findings
    ('factors of scores are MatMul outputs', 'proved', ())
    """

    name: str
    verdict: str  # what the findings make of the limit: proved (there are none), conjectured, or no limit
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict on a program, with its points; `print` shows all of it.

    Parameters
    ----------
    program : str
        The name of the program.
    points : tuple of Point
        The points of the assumption.
    theorem : str
        What is proved if all of them hold.

    Examples
    --------
    >>> print(ns.paper.layer().check().verdict)
    proved
    """

    program: str
    points: tuple[Point, ...]
    theorem: str

    @property
    def verdict(self) -> str:
        """`proved`, `conjectured` or `no limit`: the worst that a point says."""
        return max((point.verdict for point in self.points), key=[PROVED, CONJECTURED, NO_LIMIT].index)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings that led to the verdict; none if the limit is proved."""
        verdict = self.verdict
        return tuple(f for point in self.points if point.verdict == verdict for f in point.findings)

    def _because(self) -> str:
        """The verdict and what it rests on."""
        verdict = self.verdict
        if verdict == PROVED:
            return f"proved ({self.theorem})"
        names = ", ".join(point.name for point in self.points if point.verdict == verdict)
        return f"conjectured; not shown: {names}" if verdict == CONJECTURED else f"no limit: {names}"

    def __repr__(self) -> str:
        return f"<Report on {self.program}: {self._because()}; print it for every point>"

    def __str__(self) -> str:
        lines = [f"Assumption 3.1 for {self.program}"]
        for point in self.points:
            lines.append(f"  {MARKS[point.verdict]:6} {point.name}")
            lines += [f"           {finding}" for finding in point.findings]
        return "\n".join([*lines, f"verdict: {self._because()}"])

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="{CELL}">{verdict(MARKS[point.verdict], COLOURS[point.verdict])}</td>'
            f'<td style="{TEXT_CELL_STYLE}">{"<br>".join(map(html.escape, (point.name, *point.findings)))}</td></tr>'
            for point in self.points
        )
        body = f'<table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>'
        return title(f"Assumption 3.1 for {self.program}") + body + f"<div><strong>{verdict_of(self)}</strong></div>"


def verdict_of(report: Report) -> str:
    """The verdict of a report as HTML."""
    return verdict(f"limit law: {report._because()}", COLOURS[report.verdict])
