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
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..._array_api import Bools
from ..._validate import SourceLocation
from ...report._html import BAD, CELL, GOOD, OPEN, TEXT_CELL_STYLE, title, verdict
from ..operations._operation import (
    Apply,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Nonlin,
    Normal,
    Take,
)
from ..operations._readout import functions_of_outputs, readouts
from ..operations._stop_gradient import without_stops
from ..values._array import Value
from ..values._graph import asked_entries, compose_indices, names_of, topological_order
from ..values._vector import Vector
from ._linear_expansion import Expansion

PROVED, CONJECTURED, NO_LIMIT = "proved", "conjectured", "no limit"
# What a report writes before each point, in order: the worst verdict comes last.
MARKS = {PROVED: "holds", CONJECTURED: "open", NO_LIMIT: "fails"}
LISTED_NAMES = 6  # of values that one line of the user's code made
SCORES_THEOREM = "Theorem 3.1"
COLOURS = {PROVED: GOOD, CONJECTURED: OPEN, NO_LIMIT: BAD}


class Violation(NamedTuple):
    """What a value does that the theorem does not allow.

    Parameters
    ----------
    value : str
        The name of the value, as `print(net)` shows it.
    where : SourceLocation
        The line of your code that made it.
    reason : str
        What is wrong with it.
    """

    value: str
    where: SourceLocation
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.where}): {self.reason}"


@dataclass(frozen=True)
class Point:
    """A point of a `Report`.

    Parameters
    ----------
    name, verdict : str
        The requirement of the point, and the resulting verdict: `proved`, `conjectured`
        or `no limit`.
    violations : tuple of Violation
        The values that break it.
    """

    name: str
    verdict: str
    violations: tuple[Violation, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """A sentence for each violation."""
        return tuple(map(str, self.violations))

    def _by_line(self) -> dict[tuple[SourceLocation, str], list[str]]:
        """The names of values for which one line breaks this point for one reason."""
        names: dict[tuple[SourceLocation, str], list[str]] = {}
        for violation in self.violations:
            line = violation.where, violation.reason
            names.setdefault(line, []).append(violation.value)
        return names


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
        return tuple(chain.from_iterable(point.findings for point in self._decisive()))

    def _decisive(self) -> list[Point]:
        """The points that the verdict rests on."""
        return [point for point in self.points if point.verdict == self.verdict]

    def _summary(self) -> str:
        """The verdict and its reason."""
        if self.verdict == PROVED:
            return f"limit proved ({self.theorem})"
        names = ", ".join(point.name for point in self._decisive())
        if self.verdict == CONJECTURED:
            return f"limit conjectured; open: {names}"
        return f"no limit; fails: {names}"

    def _heading(self) -> str:
        """The name of the list of points."""
        if self.theorem == SCORES_THEOREM:
            return "Assumption 3.1"
        return "Assumptions"

    def __repr__(self) -> str:
        return (
            f"<Report on {self.program}: {self._summary()}; print it for every point>"
        )

    def __str__(self) -> str:
        lines = [
            _wrapped(f"{self.program}: {self._summary()}", "  "),
            "",
            self._heading(),
        ]
        indent = " " * 11  # below the name of a point
        for point in self.points:
            lines.append(f"  {MARKS[point.verdict]:6} {point.name}")
            for (where, reason), names in point._by_line().items():
                lines.append(_wrapped(f"{indent}{_listed(names)}: {reason}", indent))
                lines.append(_wrapped(f"{indent}  {where}", indent + "  "))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The verdict and a table of the points, for a notebook."""
        rows = "".join(_html_row(point) for point in self.points)
        return (
            f"{title(self.program)}<div><strong>{verdict_of(self)}</strong></div>"
            f"<div>{self._heading()}</div>"
            f'<table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>'
        )


def _html_row(point: Point) -> str:
    """A row of the table: whether a point holds, its name and its findings."""
    mark = verdict(MARKS[point.verdict], COLOURS[point.verdict])
    lines = [point.name]
    for (where, reason), names in point._by_line().items():
        lines.append(f"{_listed(names)} ({where}): {reason}")
    text = "<br>".join(map(html.escape, lines))
    return (
        f'<tr><td style="{CELL}">{mark}</td>'
        f'<td style="{TEXT_CELL_STYLE}">{text}</td></tr>'
    )


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    if len(names) <= LISTED_NAMES + 1:  # "and 1 more" would be as long as the name
        return ", ".join(names)
    listed = ", ".join(names[:LISTED_NAMES])
    return f"{listed} and {len(names) - LISTED_NAMES} more"


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
    return verdict(report._summary(), COLOURS[report.verdict])


# The points of Assumption 3.1, by the names that the code below uses.
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
    "unknown": "every operation is one that the theorems speak of",
}
# points that say nothing about a program without scores
ABOUT_SCORES = {
    "matmul",
    "tied",
    "correlated",
    "elsewhere",
    "bounded",
    "transposed",
    "deep",
    "mean",
}

Correlated = Callable[[Sequence[Value], Sequence[Value]], Collection[Value]]


def check(name: str, outputs: Sequence[Value], correlated: Correlated) -> Report:
    """Check Assumption 3.1 for a program.

    `correlated`, from the engine, finds the scores whose factors have E[Z^x Z^y] ≠ 0.
    """
    checker = _Checker(compose_indices(without_stops(outputs)))
    violations = checker.check_all_but_correlations()
    if not violations["unknown"]:
        violations["correlated"] = checker.correlated_scores(correlated)
    listed_only_if_broken = {"unknown"}
    if not checker.scores:
        listed_only_if_broken |= ABOUT_SCORES
    points = []
    for key, of_point in violations.items():
        if of_point:
            verdict_if_violated = NO_LIMIT if key == "correlated" else CONJECTURED
            points.append(Point(POINTS[key], verdict_if_violated, tuple(of_point)))
        elif key not in listed_only_if_broken:
            points.append(Point(POINTS[key], PROVED))
    return Report(name, tuple(points), checker.theorem)


class _Checker:
    """Facts about a program, and the violations of each point that follow."""

    def __init__(self, outputs: Sequence[Value]) -> None:
        """Find all facts, for values without stopped gradients and nested indexing."""
        self.outputs = outputs
        self.values = topological_order(outputs)
        self.names = names_of(self.values)
        self.readouts = readouts(
            self.values, outputs, functions_of_outputs(self.values)
        )
        self.scores = self._scores()
        self.expansion = Expansion(self.values)
        self.depends_on_score = self._dependence_on_scores()
        self.linear_in_scores = self._linearity_in_scores()
        self.bounded = self._boundedness()
        self.constants = self._constants()
        self.used = self._used_values()

        factors: list[Value] = []
        for op in self.scores.values():
            factors += op.inputs
        # columns and matrices of the expansion that occur in the factors of scores
        self.factor_columns: set[int] = set()
        for factor in factors:
            self.factor_columns.update(self.expansion.columns(factor).tolist())
        self.factor_matrices = self._matrices_of(factors) - {-1}
        # E_k has the law of W (1, …, 1), so that the expansion gives it a matrix
        initial_vectors = [x for x in self.values if isinstance(x.op, Gaussian)]
        self.initial_matrices = self._matrices_of(initial_vectors)
        self.score_inputs = self._score_inputs()
        self.violations: dict[str, list[Violation]] = {}
        for point in POINTS:
            self.violations[point] = []

    @property
    def theorem(self) -> str:
        """The theorem that proves the limit if all points hold."""
        if self.scores:
            return SCORES_THEOREM
        if self.expansion.transposed:
            return "Yang 2020, Netsor with transposes: there are no scores"
        return "Yang 2019: there are no scores"

    # Facts

    def _scores(self) -> dict[Value, Dot]:
        """The scores n^(−1/2) ⟨x, y⟩ that are no readouts, with their operations."""
        scores: dict[Value, Dot] = {}
        for value in self.values:
            op = value.op
            if value in self.readouts or not isinstance(op, Dot):
                continue
            if op.is_score:
                scores[value] = op
        return scores

    def _dependence_on_scores(self) -> dict[Value, bool]:
        """Whether each value depends on a score, or is one."""
        depends: dict[Value, bool] = {}
        for value in self.values:
            inherited = any(depends[x] for x in value.op.inputs)
            depends[value] = inherited or value in self.scores
        return depends

    def _linearity_in_scores(self) -> dict[Value, bool]:
        """Whether no nonlinearity lies between a score and each vector.

        Such a vector is linear in vectors that do not depend on scores.
        """
        linear: dict[Value, bool] = {}
        for value in self.values:
            if isinstance(value, Vector) and self.depends_on_score[value]:
                vectors = [x for x in value.op.inputs if isinstance(x, Vector)]
                inherited = all(linear[x] for x in vectors)
                linear[value] = inherited and not isinstance(value.op, Nonlin)
            else:
                linear[value] = True
        return linear

    def _boundedness(self) -> dict[Value, bool | None]:
        """Whether each value is bounded; None if that is not known."""
        bounded: dict[Value, bool | None] = {}
        for value in self.values:
            of_inputs = {bounded[x] for x in value.op.inputs}
            inputs_bounded: bool | None = True
            if False in of_inputs:
                inputs_bounded = False
            elif None in of_inputs:
                inputs_bounded = None
            bounded[value] = value.op.bounded(inputs_bounded)
        return bounded

    def _constants(self) -> set[Value]:
        """Data, numbers, and functions of only these."""
        constants: set[Value] = set()
        for value in self.values:
            is_random = isinstance(value.op, Gaussian | MatMul | Dot | Normal)
            if not is_random and constants.issuperset(value.op.inputs):
                constants.add(value)
        return constants

    def _used_values(self) -> set[Value]:
        """Values that an operation other than indexing reads."""
        used_values: set[Value] = set()
        for value in reversed(self.values):
            is_index = isinstance(value.op, Take | Join)
            if not is_index or value in used_values:
                used_values.update(value.op.inputs)
        return used_values

    def _matrices_of(self, vectors: Sequence[Value]) -> set[int]:
        """The matrices that made the vectors, with −1 if one has another origin."""
        numbers: set[int] = set()
        for x in vectors:
            numbers.update(self.expansion.matrices(x).tolist())
        return numbers

    def _score_inputs(self) -> dict[Value, None]:
        """The inputs x of the products W x in the factors of scores, in order.

        A factor may be a combination of several products. Each product is a column of
        the expansion, so that a product belongs to a factor if they share a column. An
        ordered set.
        """
        inputs: dict[Value, None] = {}
        for value in self.values:
            if not isinstance(value.op, MatMul):
                continue
            columns = self.expansion.columns(value).tolist()
            is_in_factor = not self.factor_columns.isdisjoint(columns)
            if is_in_factor:
                inputs[value.op.x] = None
        return inputs

    @cached_property
    def _asked(self) -> dict[Value, Bools]:
        """For each value, the entries that the outputs depend on."""
        return asked_entries(self.outputs)

    # Violations

    def check_all_but_correlations(self) -> dict[str, list[Violation]]:
        """The violations of each point.

        "correlated" is left empty, for `correlated_scores`.
        """
        for x in self.score_inputs:
            self._check_bounded(x)
        for value in self.values:
            self._check_operation(value)
            self._check_use_of_factors(value)
            self._check_summed_widths(value)
        for output in self.outputs:
            if self._shares_matrix_with_factors(output):
                origin = self._shared_origin(output)
                self._add("elsewhere", output, f"an output, {origin}")
        return self.violations

    def correlated_scores(self, correlated: Correlated) -> list[Violation]:
        """The scores of correlated factors, as the engine finds them."""
        diverging = correlated(self.outputs, list(self.scores))
        reason = (
            "the factors are correlated, E[Z^x Z^y] ≠ 0, and n^(-1/2) <x, y> grows"
            " like n^(1/2); mean_dot (1/n) has a limit"
        )
        return [
            Violation(self.names[score], score.where, reason)
            for score in self.scores
            if score in diverging
        ]

    def _add(self, point: str, value: Value, reason: str) -> None:
        """Add a violation of a point by a value."""
        violation = Violation(self.names[value], value.where, reason)
        self.violations[point].append(violation)

    def _check_bounded(self, x: Value) -> None:
        """Check the input of a score factor."""
        if self.bounded[x] is True:
            return
        if self.bounded[x] is False:
            property_ = "bounded"
        else:
            property_ = "known to be bounded (declare bounded=)"
        why = "the paper assumes it for convenience, and uses ReLU itself"
        self._add("bounded", x, f"not {property_}; {why}")

    def _check_operation(self, value: Value) -> None:
        """Check the operation that made a value, against all points that concern it."""
        op = value.op
        if not op.covered:
            point, reason = op.open_point()
            self._add(point, value, reason)
        match op:
            case Dot() if value in self.readouts:
                # the same as a product W y, which is an output
                y = self.readouts[value].y
                self._check_multiplication(value, y, for_score=False)
            case Dot(power=0.5):
                self._check_score(value, op)
            case Dot():
                self._check_mean(value)
            case MatMul(x=x):
                self._check_transpose(value, op)
                for_score = x in self.score_inputs
                self._check_multiplication(value, x, for_score)
            case Nonlin(f=f) | Apply(f=f) if f.lipschitz is not True:
                if f.lipschitz is False:
                    problem = "is not"
                else:
                    problem = "is not known to be (declare lipschitz=)"
                self._add("lipschitz", value, f"{f.name} {problem} pseudo-Lipschitz")

    def _check_multiplication(self, value: Value, x: Value, for_score: bool) -> None:
        """Check a product W x.

        W Σ_j a_j x_j = Σ_j a_j W x_j, so the output matrix of attention is not a second
        multiplication. A product after a nonlinearity, or for the factors of another
        score, is.
        """
        if self.depends_on_score[x] and (for_score or not self.linear_in_scores[x]):
            self._add(
                "deep",
                value,
                "multiplies a vector that depends on a score (the deep case)",
            )

    def _check_score(self, score: Value, op: Dot) -> None:
        """Check that the factors of a score are outputs of different matrices."""
        for factor in dict.fromkeys((op.x, op.y)):
            # a vector made by a matrix that acts transposed counts as none of these
            if -1 in self.expansion.matrices(factor):
                self._add(
                    "matmul",
                    score,
                    f"the factor {self.names[factor]} is not a combination of MatMul"
                    " outputs by fixed numbers; the score has a limit only if its"
                    " factors are uncorrelated",
                )
        if self._tied(score, op):
            self._add(
                "tied",
                score,
                "tied factors W x, W x' have a limit only if E[Z^x Z^x'] = 0",
            )

    def _check_mean(self, mean: Value) -> None:
        """Check that no program with scores uses a mean.

        A mean that is only returned may depend on a score if its vectors are bounded.
        """
        if self.scores and mean in self.used:
            self._add(
                "mean",
                mean,
                "a mean used by the program; Yang (2019) covers it only without scores",
            )
        elif self.depends_on_score[mean] and self.bounded[mean] is not True:
            self._add(
                "mean",
                mean,
                "a mean that depends on a score, of vectors not known to be bounded",
            )

    def _check_transpose(self, value: Value, op: MatMul) -> None:
        """Check that no matrix acts transposed in a program with scores."""
        if self.scores and op.weight.transposed:
            matrix = self.names[op.weight.source]
            self._add(
                "transposed",
                value,
                f"made by the transpose of {matrix}; Yang (2020) covers it only"
                " without scores",
            )

    def _check_use_of_factors(self, value: Value) -> None:
        """Check that no other operation than scores reads the factors of scores.

        More precisely, vectors made by the matrices of such factors. A combination of
        vectors by fixed numbers may read them, since it counts as made by the same
        matrices: what reads the combination is checked instead.
        """
        is_combination = value in self.expansion.combinations
        if value in self.scores or is_combination:
            return
        for x in dict.fromkeys(value.op.inputs):
            if self._shares_matrix_with_factors(x):
                origin = self._shared_origin(x)
                self._add("elsewhere", value, f"uses {self.names[x]}, {origin}")

    def _check_summed_widths(self, value: Value) -> None:
        """Check that sums over coordinates of random vectors have infinite width.

        Matrices and dots sum over the coordinates of their inputs. The width of a
        result may be finite, as in a readout from R^n into R^1.
        """
        if not isinstance(value.op, MatMul | Dot):
            return
        for x in dict.fromkeys(value.op.inputs):
            if x in self.constants or not isinstance(x, Vector):
                continue
            is_finite = x.width.name is None
            if is_finite:
                self._add(
                    "widths",
                    value,
                    f"sums over the coordinates of {self.names[x]} in R^{x.width},"
                    " which is finite",
                )

    def _tied(self, score: Value, op: Dot) -> bool:
        """Whether one matrix made both factors of an entry that the outputs need."""
        x = op.x
        y = op.y
        common = np.intersect1d(self.expansion.matrices(x), self.expansion.matrices(y))
        if not (common >= 0).any():  # −1 stands for vectors without a matrix
            return False
        is_read = self._asked[score]
        if not is_read.any():
            return False
        # (vectors of x, vectors of y): in how many matrices a pair agrees
        share_a_matrix = self.expansion.used(x) @ self.expansion.used(y).T
        # the flat positions in x and y of the two factors of each entry of the score
        position_in_x = np.arange(x.size).reshape(x.shape)[..., :, None]
        position_in_y = np.arange(y.size).reshape(y.shape)[..., None, :]
        read_in_x = np.broadcast_to(position_in_x, score.shape)[is_read]
        read_in_y = np.broadcast_to(position_in_y, score.shape)[is_read]
        return bool(share_a_matrix[read_in_x, read_in_y].any())

    def _shares_matrix_with_factors(self, x: Value) -> bool:
        """Whether a vector was made by a matrix that also made factors of scores."""
        if not isinstance(x, Vector):
            return False
        return not self.factor_matrices.isdisjoint(self._matrices_of([x]))

    def _shared_origin(self, x: Value) -> str:
        """What a vector has in common with factors of scores, in words."""
        shared = self._matrices_of([x]) & self.factor_matrices
        if not shared <= self.initial_matrices:
            return "made by a matrix of a score factor"
        if isinstance(x.op, Gaussian):
            return "an initial vector that scores use"
        return "made of an initial vector of a score"
