"""The checker: does the theorem of the paper prove the limit of this program?

It checks Assumption 3.1 of the paper point by point. If a point fails, or is not known
to hold, the limit law is a conjecture. If an output depends on a score of correlated
factors, no limit exists.

The theorem covers dots of two MatMul outputs. The points below extend it with three
identities. ⟨x, y⟩ is bilinear, so scores of combinations of MatMul outputs with fixed
coefficients (scaled queries, for example) are combinations of such dots. A standard
Gaussian vector with no other use (a bias) has the law of W (1, …, 1) with a fresh W.
And W Σ_j a_j x_j is a combination of the W x_j, even if the a_j depend on scores.
Random scalars (`ns.normal`) are independent of everything else: conditional on them
they are fixed numbers, and the theorem holds.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._array_api import Bools
from .._html import BAD, CELL, GOOD, OPEN, TEXT_CELL_STYLE, title, verdict
from . import _operation as ops
from ._array import Operation, Value
from ._graph import asked_entries, compose_indices, names_of, topological_order
from ._linear_expansion import Expansion
from ._operation import (
    Add,
    Apply,
    Constant,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Normal,
    Scale,
    Take,
)
from ._readout import functions_of_outputs, readouts
from ._rotary import Rotate
from ._stop_gradient import ScaledGradient, without_stops
from ._vector import Vector

PROVED, CONJECTURED, NO_LIMIT = "proved", "conjectured", "no limit"
MARKS = {PROVED: "holds", CONJECTURED: "open", NO_LIMIT: "fails"}
COLOURS = {PROVED: GOOD, CONJECTURED: OPEN, NO_LIMIT: BAD}


@dataclass(frozen=True)
class Point:
    """A point of a `Report`.

    Parameters
    ----------
    name, verdict : str
        What the point requires, and what follows from it: `proved`, `conjectured` or
        `no limit`.
    findings : tuple of str
        One sentence for each violation.
    """

    name: str
    verdict: str
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict on a program, point by point; `print` shows it.

    Parameters
    ----------
    program, theorem : str
        The name of the program, and the theorem that applies if all points hold.
    points : tuple of Point
        The points of the assumption.

    Examples
    --------
    >>> report = ns.paper.layer().check()
    >>> report.verdict, report.points[0].name, report.points[0].findings
    ('proved', 'factors of scores are MatMul outputs', ())
    """

    program: str
    points: tuple[Point, ...]
    theorem: str

    @property
    def verdict(self) -> str:
        """`proved`, `conjectured` or `no limit`: the worst verdict of any point."""
        return max((point.verdict for point in self.points), key=list(MARKS).index)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings behind the verdict; empty if the limit is proved."""
        return tuple(
            f
            for point in self.points
            if point.verdict == self.verdict
            for f in point.findings
        )

    def _because(self) -> str:
        """The verdict and its reason."""
        names = ", ".join(
            point.name for point in self.points if point.verdict == self.verdict
        )
        return {
            PROVED: f"limit proved ({self.theorem})",
            CONJECTURED: f"limit conjectured; open: {names}",
            NO_LIMIT: f"no limit; fails: {names}",
        }[self.verdict]

    def __repr__(self) -> str:
        return (
            f"<Report on {self.program}: {self._because()}; print it for every point>"
        )

    def __str__(self) -> str:
        lines = [
            _wrapped(f"{self.program}: {self._because()}", "  "),
            "",
            "Assumption 3.1",
        ]
        for point in self.points:
            lines.append(f"  {MARKS[point.verdict]:6} {point.name}")
            lines += [
                _wrapped(f"{11 * ' '}{finding}", 11 * " ") for finding in point.findings
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr><td"
            f' style="{CELL}">{verdict(MARKS[point.verdict], COLOURS[point.verdict])}</td>'
            f'<td style="{TEXT_CELL_STYLE}">{"<br>".join(map(html.escape, (point.name, *point.findings)))}</td></tr>'
            for point in self.points
        )
        body = f'<table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>'
        return (
            title(self.program)
            + f"<div><strong>{verdict_of(self)}</strong></div><div>Assumption"
            f" 3.1</div>{body}"
        )


def _wrapped(text: str, indent: str) -> str:
    """Wrap text at 80 columns."""
    return textwrap.fill(
        text,
        80,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def verdict_of(report: Report) -> str:
    """The verdict of a report as HTML."""
    return verdict(report._because(), COLOURS[report.verdict])


# The operations that the theorems of the paper and of Yang (2019, 2020) cover, directly
# or by the identities above. Membership claims a proof: any operation outside this set
# makes a program conjectured.
COVERED: frozenset[type[Operation]] = frozenset(
    {
        Gaussian,
        ops.Data,
        Constant,
        ops.Hyperparameter,
        Normal,
        ops.Root,
        MatMul,
        Nonlin,
        Dot,
        Apply,
    }
    | {Add, Scale, Mix, ops.Concat, ops.Split, Take, Join, ScaledGradient}
)

# Whether the result of an operation is bounded: `rule(op, inputs)`, where `inputs` says
# whether all its inputs are. None means unknown, also for an operation without a rule.
# A bounded result does not imply that a theorem applies.
BOUNDED: dict[type[Operation], Callable[[Any, bool | None], bool | None]] = {
    **dict.fromkeys(COVERED | {Rotate}, lambda op, inputs: inputs),
    Gaussian: lambda op, inputs: not op.factor.any(),
    MatMul: lambda op, inputs: False,
    Dot: lambda op, inputs: inputs if op.power == 1 else False,
    # a pseudo-Lipschitz function is bounded on bounded sets
    **dict.fromkeys(
        (Nonlin, Apply),
        lambda op, inputs: True if op.f.lipschitz and inputs else op.f.bounded,
    ),
}

# The points of Assumption 3.1
POINTS = {
    "matmul": "factors of scores are MatMul outputs",
    "tied": "the two factors of a score have different matrices",
    "correlated": "the two factors of a score are uncorrelated",
    "elsewhere": "matrices of score factors are used for nothing else",
    "bounded": "inputs of score factors are bounded",
    "lipschitz": "functions are pseudo-Lipschitz",
    "transposed": "no matrix acts with its transpose if there are scores",
    "deep": "a vector that depends on a score is not multiplied again",
    "mean": "no mean enters a program with scores",
    "alike": "coordinates are treated alike",
    "widths": "every width goes to infinity",
    # listed only where it fails
    "unknown": "every operation is one that the theorems speak of",
}

Correlated = Callable[[Sequence[Value], Sequence[Value]], Collection[Value]]


def check(name: str, outputs: Sequence[Value], correlated: Correlated) -> Report:
    """Check Assumption 3.1; `correlated`, from the engine, finds the scores whose
    factors have E[Z^x Z^y] ≠ 0.
    """
    outputs = compose_indices(without_stops(outputs))
    facts = _Facts(outputs)
    against = facts.against()
    diverging = () if against["unknown"] else correlated(outputs, list(facts.scores))
    growth = (
        "E[Z^x Z^y] ≠ 0, and n^(-1/2) <x, y> grows like n^(1/2); mean_dot (1/n) has a"
        " limit"
    )
    for score in (score for score in facts.scores if score in diverging):
        against["correlated"].append(
            f"{facts.at(score)}: its factors are correlated, {growth}"
        )
    points = []
    for key, findings in against.items():
        fails = NO_LIMIT if key == "correlated" else CONJECTURED
        if findings or key != "unknown":
            points.append(
                Point(POINTS[key], fails if findings else PROVED, tuple(findings))
            )
    without_scores = (
        "Yang 2020, Netsor with transposes"
        if facts.expansion.transposed
        else "Yang 2019"
    )
    return Report(
        name,
        tuple(points),
        "Theorem 3.1" if facts.scores else f"{without_scores}: there are no scores",
    )


class _Facts:
    """The facts behind the points: expansions of vectors, dependence on scores,
    bounds.
    """

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = outputs
        self.values = topological_order(outputs)
        self.names = names_of(self.values)
        self.readouts = readouts(
            self.values, outputs, functions_of_outputs(self.values)
        )
        dots = {
            v: v.op for v in self.values if isinstance(v.op, Dot) and v.op.power == 0.5
        }
        self.scores = {
            value: op for value, op in dots.items() if value not in self.readouts
        }
        self.expansion = Expansion(self.values)
        self.depends = dict.fromkeys(self.values, False)  # depends on a score
        # linear in vectors that do not depend on scores
        self.linear = dict.fromkeys(self.values, True)
        self.bounded: dict[Value, bool | None] = {}
        self.fixed: set[Value] = set()  # data, numbers, and functions of only these
        for value in self.values:
            op, inputs = value.op, value.op.inputs
            self.depends[value] = value in self.scores or any(
                self.depends[x] for x in inputs
            )
            rule = BOUNDED.get(type(op))
            known = {self.bounded[x] for x in inputs}
            every = False if False in known else None if None in known else True
            self.bounded[value] = rule(op, every) if rule else None
            if isinstance(value, Vector) and self.depends[value]:
                passed = all(self.linear[x] for x in inputs if isinstance(x, Vector))
                self.linear[value] = passed and not isinstance(op, Nonlin)
            random = isinstance(op, Gaussian | MatMul | Dot | Normal)
            if not random and all(x in self.fixed for x in inputs):
                self.fixed.add(value)
        self.used: set[Value] = set()  # used by an operation other than indexing
        for value in reversed(self.values):
            moved = isinstance(value.op, Take | Join)
            self.used |= {x for x in value.op.inputs if not moved or value in self.used}
        factors = [x for op in self.scores.values() for x in op.inputs]
        self.factor_columns = {
            int(k) for x in factors for k in self.expansion.columns(x)
        }
        self.factor_matrices = {
            int(m) for x in factors for m in self.expansion.matrices(x)
        } - {-1}
        # E_k has the law of W (1, …, 1), so that the expansion gives it a matrix
        initial = [v for v in self.values if isinstance(v.op, Gaussian)]
        self.initial_matrices = {
            int(m) for v in initial for m in self.expansion.matrices(v)
        }

    def at(self, value: Value) -> str:
        return f"{self.names[value]} ({value.where})"

    def against(self) -> dict[str, list[str]]:
        """The findings against each point."""
        found: dict[str, list[str]] = {point: [] for point in POINTS}
        products = {v: v.op.x for v in self.values if isinstance(v.op, MatMul)}
        columns = {v: set(self.expansion.columns(v).tolist()) for v in products}
        # the inputs x of the factors W x of all scores
        score_inputs = {
            x: None
            for v, x in products.items()
            if not self.factor_columns.isdisjoint(columns[v])
        }
        for x in score_inputs:
            if self.bounded[x] is not True:
                known = (
                    "bounded"
                    if self.bounded[x] is False
                    else "known to be bounded (declare bounded=)"
                )
                why = "the paper assumes it for convenience, and uses ReLU itself"
                found["bounded"].append(f"{self.at(x)} is not {known}; {why}")
        for value in self.values:
            op = value.op

            def add(point: str, finding: str, value: Value = value) -> None:
                found[point].append(f"{self.at(value)}{finding}")

            match op:
                # a product W y, which is an output
                case Dot() if value in self.readouts:
                    y = self.readouts[value].y
                    if self.depends[y] and not self.linear[y]:
                        add(
                            "deep",
                            f": multiplies {self.names[y]}, which depends on a score"
                            " (the deep case)",
                        )
                case Dot(x, y, 0.5):
                    limit = "the score has a limit only if its factors are uncorrelated"
                    for factor in dict.fromkeys((x, y)):
                        # also if its matrix acts transposed
                        if -1 in self.expansion.matrices(factor):
                            what = (
                                f"{self.names[factor]} is not a combination of MatMul"
                                " outputs by fixed numbers"
                            )
                            add("matmul", f": the factor {what}; {limit}")
                    if self._tied(value, op):
                        add(
                            "tied",
                            ": tied factors W x, W x' have a limit only if E[Z^x"
                            " Z^x'] = 0",
                        )
                case Dot() if self.scores and value in self.used:
                    add(
                        "mean",
                        ": a mean used by the program; Yang (2019) covers it only"
                        " without scores",
                    )
                case Dot() if self.depends[value] and self.bounded[value] is not True:
                    add(
                        "mean",
                        ": a mean that depends on a score, of vectors not known to be"
                        " bounded",
                    )
                case MatMul(weight, x):
                    if self.scores and weight.transposed:
                        what = f"made by the transpose of {self.names[weight.source]}"
                        add(
                            "transposed",
                            f": {what}; Yang (2020) covers it only without scores",
                        )
                    # W Σ_j a_j x_j = Σ_j a_j W x_j, so the output matrix of attention
                    # is not a second multiplication. A product after a nonlinearity, or
                    # for the factors of another score, is.
                    if self.depends[x] and (x in score_inputs or not self.linear[x]):
                        add(
                            "deep",
                            f": multiplies {self.names[x]}, which depends on a score"
                            " (the deep case)",
                        )
                case Nonlin(f) | Apply(f) if f.lipschitz is not True:
                    known = (
                        "is not"
                        if f.lipschitz is False
                        else "is not known to be (declare lipschitz=)"
                    )
                    add("lipschitz", f": {f.name} {known} pseudo-Lipschitz")
                case Rotate():
                    add(
                        "alike",
                        " rotates pairs of coordinates, which the paper does not cover",
                    )
                case _ if type(op) not in COVERED:
                    add(
                        "unknown",
                        f" is made by {type(op).__name__}, which no theorem of the"
                        " checker covers",
                    )
            # their uses are checked instead
            passes_on = value in self.scores or value in self.expansion.combinations
            summed = isinstance(op, MatMul | Dot)
            for v in dict.fromkeys(op.inputs):
                if not passes_on and self._made_for_scores(v):
                    add("elsewhere", f" uses {self.names[v]}, {self._made_by(v)}")
                # a finite width matters only if its coordinates are summed over; a
                # read-out into R^1 is harmless
                if (
                    summed
                    and isinstance(v, Vector)
                    and v.width.name is None
                    and v not in self.fixed
                ):
                    add(
                        "widths",
                        f" sums over the coordinates of {self.names[v]} in R^{v.width},"
                        " which is finite",
                    )
        for output in filter(self._made_for_scores, self.outputs):
            found["elsewhere"].append(
                f"{self.at(output)} is an output, {self._made_by(output)}"
            )
        return found

    @cached_property
    def _asked(self) -> dict[Value, Bools]:
        """For each value, the entries that the outputs depend on."""
        return asked_entries(self.outputs)

    def _tied(self, score: Value, op: Dot) -> bool:
        """Whether one matrix made both factors of an entry that the outputs depend
        on.
        """
        x, y = op.x, op.y
        if not (
            np.intersect1d(self.expansion.matrices(x), self.expansion.matrices(y)) >= 0
        ).any():
            return False
        asked = self._asked[score]
        i, j = (np.arange(v.size).reshape(v.shape) for v in (x, y))
        places = (
            np.broadcast_to(k, score.shape)[asked]
            for k in (i[..., :, None], j[..., None, :])
        )
        return bool(
            asked.any()
            and (self.expansion.used(x) @ self.expansion.used(y).T)[*places].any()
        )

    def _made_for_scores(self, x: Value) -> bool:
        """Whether a vector was made by a matrix that also made factors of scores."""
        return isinstance(x, Vector) and not self.factor_matrices.isdisjoint(
            self.expansion.matrices(x).tolist()
        )

    def _made_by(self, x: Value) -> str:
        """What a vector has in common with the factors of scores: a matrix, or an
        initial vector.
        """
        matrices = set(self.expansion.matrices(x).tolist()) & self.factor_matrices
        if not matrices <= self.initial_matrices:
            return "made by a matrix of a score factor"
        return (
            "an initial vector that scores use"
            if isinstance(x.op, Gaussian)
            else "made of an initial vector of a score"
        )
