"""The checker: is the limit of this program proved by the paper?

It goes through Assumption 3.1 of the paper point by point. A point that does not hold, or is not known to, makes the
limit law a conjecture; a score of correlated factors has no limit at all, if an output depends on it.

The theorem speaks of dots of two MatMul outputs. Three identities carry it further, and the points below use them.
⟨x, y⟩ is bilinear, so scores of combinations of MatMul outputs by fixed numbers (scaled queries, say) are combinations
of such dots. A standard Gaussian vector that nothing else uses (a bias) has the law of W (1, …, 1), W fresh. And W
times a combination of vectors, W Σ_j a_j x_j, is a combination of the W x_j, even if the a_j depend on scores. Random
scalars (`ns.normal`) are independent of all else: given them they are fixed numbers, for which the theorem holds.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .._html import BAD, CELL, GOOD, OPEN, TEXT_CELL_STYLE, title, verdict
from . import _operation as ops
from ._array import Operation, Value
from ._graph import asked_entries, names_of, topological_order
from ._linear_expansion import Expansion
from ._operation import Add, Apply, Constant, Dot, Gaussian, Join, MatMul, Mix, Nonlin, Normal, Scale, Take
from ._rotary import Rotate
from ._vector import Vector

PROVED, CONJECTURED, NO_LIMIT = "proved", "conjectured", "no limit"
MARKS = {PROVED: "holds", CONJECTURED: "open", NO_LIMIT: "fails"}
COLOURS = {PROVED: GOOD, CONJECTURED: OPEN, NO_LIMIT: BAD}


@dataclass(frozen=True)
class Point:
    """A point of a `Report`.

    Parameters
    ----------
    name : str
        Of the point.
    verdict : str
        What follows from this point: `proved`, `conjectured` or `no limit`.
    findings : tuple of str
        For each finding against it a sentence.
    """

    name: str
    verdict: str
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
    >>> report = ns.paper.layer().check()
    >>> report.verdict, report.points[0].name, report.points[0].findings
    ('proved', 'factors of scores are MatMul outputs', ())
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
            return f"limit proved ({self.theorem})"
        names = ", ".join(point.name for point in self.points if point.verdict == verdict)
        return f"limit conjectured; open: {names}" if verdict == CONJECTURED else f"no limit; fails: {names}"

    def __repr__(self) -> str:
        return f"<Report on {self.program}: {self._because()}; print it for every point>"

    def __str__(self) -> str:
        lines = [_wrapped(f"{self.program}: {self._because()}", "  "), "", "Assumption 3.1"]
        for point in self.points:
            lines.append(f"  {MARKS[point.verdict]:6} {point.name}")
            lines += [_wrapped(f"{11 * ' '}{finding}", 11 * " ") for finding in point.findings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="{CELL}">{verdict(MARKS[point.verdict], COLOURS[point.verdict])}</td>'
            f'<td style="{TEXT_CELL_STYLE}">{"<br>".join(map(html.escape, (point.name, *point.findings)))}</td></tr>'
            for point in self.points
        )
        body = f'<table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>'
        return title(self.program) + f"<div><strong>{verdict_of(self)}</strong></div><div>Assumption 3.1</div>{body}"


def _wrapped(text: str, indent: str) -> str:
    """Text in lines of at most 80 columns."""
    return textwrap.fill(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def verdict_of(report: Report) -> str:
    """The verdict of a report as HTML."""
    return verdict(report._because(), COLOURS[report.verdict])


Correlated = Callable[[Sequence[Value], Sequence[Value]], Collection[Value]]


def check(name: str, outputs: Sequence[Value], correlated: Correlated) -> Report:
    """Assumption 3.1 for the program with these outputs.

    `correlated(outputs, scores)` says which of the scores have factors with E[Z^x Z^y] ≠ 0: the engine computes that.
    """
    facts = _CheckContext(outputs)
    at, rotations = facts.at, [v for v in facts.values if isinstance(v.op, Rotate)]
    others = [v for v in facts.values if type(v.op) not in COVERED and v not in rotations]
    not_covered = [f"{at(v)} is made by {type(v.op).__name__}, which no theorem of the checker covers" for v in others]
    diverging = () if others else correlated(outputs, list(facts.scores))
    growth = "E[Z^x Z^y] ≠ 0, and n^(-1/2) <x, y> grows like n^(1/2); mean_dot (1/n) has a limit"
    growing = tuple(f"{at(v)}: its factors are correlated, {growth}" for v in facts.scores if v in diverging)
    turned = [f"{at(v)} rotates pairs of coordinates, which the paper does not cover" for v in rotations]
    points = (
        _point("factors of scores are MatMul outputs", _not_matmul(facts)),
        _point("the two factors of a score have different matrices", _tied(facts)),
        Point("the two factors of a score are uncorrelated", NO_LIMIT if growing else PROVED, growing),
        _point("matrices of score factors are used for nothing else", _used_elsewhere(facts)),
        _point("inputs of score factors are bounded", _unbounded(facts)),
        _point("functions are pseudo-Lipschitz", _not_lipschitz(facts)),
        _point("no matrix acts with its transpose if there are scores", _transposed(facts)),
        _point("a vector that depends on a score is not multiplied again", _deep(facts)),
        _point("no mean enters a program with scores", _means(facts)),
        _point("coordinates are treated alike", turned),
        _point("every width goes to infinity", _fixed_widths(facts)),
        *([_point("every operation is one that the theorems speak of", not_covered)] if not_covered else []),
    )
    if facts.scores:
        theorem = "Theorem 3.1"
    elif facts.expansion.transposed:
        theorem = "Yang 2020, Netsor with transposes: there are no scores"
    else:
        theorem = "Yang 2019: there are no scores"
    return Report(name, points, theorem)


def _point(name: str, against: Iterable[str]) -> Point:
    findings = tuple(against)
    return Point(name, CONJECTURED if findings else PROVED, findings)


class _CheckContext:
    """What the points ask about: of what each vector is a combination, what depends on scores, what is bounded."""

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = outputs
        self.values = topological_order(outputs)
        self.names = names_of(self.values)
        self.scores = {v: v.op for v in self.values if isinstance(v.op, Dot) and v.op.power == 0.5}
        self.expansion = Expansion(self.values)
        self.depends = dict.fromkeys(self.values, False)  # on a score
        self.linear = dict.fromkeys(self.values, True)  # a vector linear in vectors free of scores
        self.bounded: dict[Value, bool | None] = {}
        self.fixed: set[Value] = set()  # data and numbers, and what is made of them alone
        for value in self.values:
            op, inputs = value.op, value.op.inputs
            self.depends[value] = value in self.scores or any(self.depends[x] for x in inputs)
            rule = BOUNDED.get(type(op))
            self.bounded[value] = rule(op, _all(self.bounded[x] for x in inputs)) if rule else None
            if isinstance(value, Vector) and self.depends[value]:
                passed = all(self.linear[x] for x in inputs if isinstance(x, Vector))
                self.linear[value] = passed and not isinstance(op, Nonlin)
            random = isinstance(op, Gaussian | MatMul | Dot | Normal)
            if not random and all(x in self.fixed for x in inputs):
                self.fixed.add(value)

    def at(self, value: Value) -> str:
        return f"{self.names[value]} ({value.where})"

    @cached_property
    def asked(self) -> dict[Value, npt.NDArray[np.bool_]]:
        """The entries of each value that the outputs depend on."""
        return asked_entries(self.outputs)


def _all(truths: Iterable[bool | None]) -> bool | None:
    """Three-valued: False if one is, else None (unknown) if one is."""
    listed = list(truths)
    return False if False in listed else None if None in listed else True


def _of_function(op: Nonlin | Apply, inputs: bool | None) -> bool | None:
    """A pseudo-Lipschitz function is bounded on bounded sets."""
    return True if _all([op.f.lipschitz, inputs]) else op.f.bounded


# The operations that the theorems of the paper and of Yang (2019, 2020) speak of, and those that the identities above
# reduce to them. This set claims proofs: an operation that is not in it makes a program conjectured, whatever else is
# known of it.
COVERED: frozenset[type[Operation]] = frozenset(
    {Gaussian, ops.Data, Constant, ops.Hyperparameter, Normal, ops.Root, MatMul, Nonlin, Dot, Apply}
    | {Add, Scale, Mix, ops.Concat, ops.Split, Take, Join}
)

# Whether what an operation makes is bounded, `rule(op, inputs)`, with `inputs` whether all its inputs are; None if that
# is not known, as for an operation without a rule. Being bounded says nothing about a theorem.
BOUNDED: dict[type[Operation], Callable[[Any, bool | None], bool | None]] = {
    Gaussian: lambda op, inputs: not op.factor.any(),
    MatMul: lambda op, inputs: False,
    Dot: lambda op, inputs: inputs if op.power == 1 else False,
    Nonlin: _of_function,
    Apply: _of_function,
    **dict.fromkeys((ops.Data, Constant, ops.Hyperparameter, Normal, ops.Root), lambda op, inputs: inputs),
    **dict.fromkeys((Add, Scale, Mix, ops.Concat, ops.Split, Take, Join, Rotate), lambda op, inputs: inputs),
}


def _not_matmul(facts: _CheckContext) -> Iterator[str]:
    for score in facts.scores:
        for factor in dict.fromkeys(score.op.inputs):
            if -1 in facts.expansion.matrices(factor):  # or of a matrix that acts transposed too
                what = f"the factor {facts.names[factor]} is not a combination of MatMul outputs by fixed numbers"
                yield f"{facts.at(score)}: {what}; the score has a limit only if its factors are uncorrelated"


def _tied(facts: _CheckContext) -> Iterator[str]:
    for score, op in facts.scores.items():
        x, y = op.x, op.y
        first, second = (facts.expansion.matrices(v) for v in (x, y))
        if not np.setdiff1d(np.intersect1d(first, second), [-1]).size or not facts.asked[score].any():
            continue
        i, j = (np.arange(v.size).reshape(v.shape) for v in (x, y))
        places = (np.broadcast_to(k, score.shape)[facts.asked[score]] for k in (i[..., :, None], j[..., None, :]))
        common = facts.expansion.used(x) @ facts.expansion.used(y).T
        if common[*places].any():
            yield f"{facts.at(score)}: tied factors W x, W x' have a limit only if E[Z^x Z^x'] = 0"


def _used_elsewhere(facts: _CheckContext) -> Iterator[str]:
    in_scores = {int(m) for score in facts.scores for x in score.op.inputs for m in facts.expansion.matrices(x)} - {-1}

    def concerned(x: Value) -> bool:
        return isinstance(x, Vector) and not in_scores.isdisjoint(facts.expansion.matrices(x).tolist())

    for value in facts.values if in_scores else ():
        match value.op:
            case Dot(power=0.5) | Take() | Join() | Add() | Scale(Value(op=Constant())) | Mix(Value(op=Constant())):
                continue  # a score, or a combination, which counts where it is used
        for x in dict.fromkeys(value.op.inputs):
            if concerned(x):
                yield f"{facts.at(value)} uses {facts.names[x]}, made by a matrix of a score factor"
    for output in facts.outputs:
        if concerned(output):
            yield f"{facts.at(output)} is an output, made by a matrix of a score factor"


def _score_inputs(facts: _CheckContext) -> dict[Value, None]:
    """The vectors x of the factors W x of all scores."""
    used = np.zeros(len(facts.expansion.matrix), dtype=bool)
    for score in facts.scores:
        for x in score.op.inputs:
            used[facts.expansion.columns(x)] = True
    products = ((v, v.op.x) for v in facts.values if isinstance(v.op, MatMul))
    return {x: None for product, x in products if used[facts.expansion.columns(product)].any()}


def _unbounded(facts: _CheckContext) -> Iterator[str]:
    for x in _score_inputs(facts):
        if facts.bounded[x] is not True:
            known = "is not bounded" if facts.bounded[x] is False else "is not known to be bounded (declare bounded=)"
            yield f"{facts.at(x)} {known}; the paper assumes it for convenience, and uses ReLU itself"


def _not_lipschitz(facts: _CheckContext) -> Iterator[str]:
    for value in facts.values:
        if isinstance(value.op, Nonlin | Apply) and value.op.f.lipschitz is not True:
            known = "is not" if value.op.f.lipschitz is False else "is not known to be (declare lipschitz=)"
            yield f"{facts.at(value)}: {value.op.f.name} {known} pseudo-Lipschitz"


def _transposed(facts: _CheckContext) -> Iterator[str]:
    for value in facts.values if facts.scores else ():
        if isinstance(value.op, MatMul) and value.op.weight.transposed:
            matrix = facts.names[value.op.weight.source]
            yield f"{facts.at(value)}: made by the transpose of {matrix}; Yang (2020) covers that without scores alone"


def _deep(facts: _CheckContext) -> Iterator[str]:
    # A linear combination commutes with a matrix, W Σ_j a_j x_j = Σ_j a_j W x_j, so attention's own output matrix is
    # no second multiplication; it is one after a nonlinearity, and for the factors of another score.
    inputs = _score_inputs(facts)
    for value in facts.values:
        x = value.op.x if isinstance(value.op, MatMul) else None
        if x is not None and facts.depends[x] and (x in inputs or not facts.linear[x]):
            yield f"{facts.at(value)}: multiplies {facts.names[x]}, which depends on a score (the deep case)"


def _means(facts: _CheckContext) -> Iterator[str]:
    if not facts.scores:
        return
    used: set[Value] = set()  # by an operation; indexing is none
    for value in reversed(facts.values):
        moved = isinstance(value.op, Take | Join)
        used |= {x for x in value.op.inputs if not moved or value in used}
    for value in facts.values:
        if not isinstance(value.op, Dot) or value.op.power != 1:
            continue
        if value in used:
            yield f"{facts.at(value)}: a mean used by the program; Yang (2019) covers it without scores alone"
        elif facts.depends[value] and facts.bounded[value] is not True:
            yield f"{facts.at(value)}: a mean that depends on a score, of vectors not known to be bounded"


def _fixed_widths(facts: _CheckContext) -> Iterator[str]:
    # a finite space matters only where its coordinates are summed over: a read-out into R^1 does no harm
    for value in facts.values:
        summed = value.op.inputs if isinstance(value.op, MatMul | Dot) else ()
        for x in dict.fromkeys(summed):
            if isinstance(x, Vector) and x.width.name is None and x not in facts.fixed:
                yield f"{facts.at(value)} sums over the coordinates of {facts.names[x]} in R^{x.width}, which is finite"
