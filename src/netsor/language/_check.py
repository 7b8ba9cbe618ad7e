"""The checker: is the limit of this program proved by the paper?

Goes through Assumption 3.1 of the paper point by point. A point that does not hold, or is not known to, makes the limit
law a conjecture; a score whose factors are tied has no limit at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._graph import ordered
from ._names import names_of
from ._operation import (
    Add,
    Apply,
    Concat,
    Constant,
    Data,
    Dot,
    Gaussian,
    Join,
    MatMul,
    Mix,
    Nonlin,
    Scale,
    Source,
    Take,
)
from ._value import Value, Vector

Ids = npt.NDArray[np.intp]

PROVED, CONJECTURED, NO_LIMIT = "proved", "conjectured", "no limit"


@dataclass(frozen=True)
class Point:
    """One point of the assumption: whether it holds, and for each finding against it a sentence."""

    name: str
    verdict: str  # what the findings make of the limit: proved (there are none), conjectured, or no limit
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The verdict on a program, with its points."""

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

    def __str__(self) -> str:
        marks = {PROVED: "holds", CONJECTURED: "open", NO_LIMIT: "fails"}
        lines = [f"Assumption 3.1 for {self.program}"]
        for point in self.points:
            lines.append(f"  {marks[point.verdict]:6} {point.name}")
            lines += [f"           {finding}" for finding in point.findings]
        because = {
            PROVED: f"proved ({self.theorem})",
            CONJECTURED: "conjectured; not shown: "
            + ", ".join(p.name for p in self.points if p.verdict == CONJECTURED),
            NO_LIMIT: "no limit: " + ", ".join(p.name for p in self.points if p.verdict == NO_LIMIT),
        }
        return "\n".join([*lines, f"verdict: {because[self.verdict]}"])


def check(name: str, outputs: Sequence[Value]) -> Report:
    """Assumption 3.1 for the program with these outputs."""
    facts = _Facts(outputs)
    points = (
        _point("factors of scores are MatMul outputs", _not_matmul(facts)),
        _point("the two factors of a score have different matrices", _tied(facts), _diverging(facts)),
        _point("matrices of score factors are used for nothing else", _used_elsewhere(facts)),
        _point("inputs of score factors are bounded", _unbounded(facts)),
        _point("functions are pseudo-Lipschitz", _not_lipschitz(facts)),
        _point("a vector that depends on a score is not multiplied again", _deep(facts)),
        _point("no mean enters a program with scores", _means(facts)),
        _point("every width goes to infinity", _fixed_widths(facts)),
    )
    theorem = "Theorem 3.1" if facts.scores else "Yang 2019: there are no scores"
    return Report(name, points, theorem)


def _point(name: str, conjectured: Iterable[str], no_limit: Iterable[str] = ()) -> Point:
    fatal = tuple(no_limit)
    findings = tuple(conjectured)
    return Point(name, NO_LIMIT if fatal else CONJECTURED if findings else PROVED, fatal or findings)


class _Facts:
    """What the points ask about: which vector is which, which matrix made it, what depends on scores."""

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = outputs
        self.values = ordered(outputs)
        self.names = names_of(self.values)
        self.scores = [v for v in self.values if isinstance(v.op, Dot) and v.op.power == 0.5]
        # Every vector has a number, the same wherever indexing or stacking moves it; a MatMul output also has the
        # number of its matrix and of the vector it was made from (others have −1).
        self.ids: dict[Value, Ids] = {}
        matrices: list[Ids] = []
        arguments: list[Ids] = []
        first: dict[Source, int] = {}  # the number of its first matrix
        count = known = 0
        for value in self.values:
            match value.op:
                case Take(x, flat):
                    self.ids[value] = self.ids[x].ravel()[flat]
                    continue
                case Join(parts):
                    self.ids[value] = np.concatenate([self.ids[part] for part in parts])
                    continue
                case MatMul(weight, x):
                    if weight.source not in first:
                        first[weight.source], known = known, known + weight.count
                    members = weight.members.reshape(weight.batch + (1,) * (value.ndim - len(weight.batch)))
                    matrices.append(np.broadcast_to(first[weight.source] + members, value.shape).ravel())
                    arguments.append(np.broadcast_to(self.ids[x], value.shape).ravel())
                case _:
                    matrices.append(np.full(value.size, -1))
                    arguments.append(np.full(value.size, -1))
            self.ids[value] = count + np.arange(value.size).reshape(value.shape)
            count += value.size
        self.matrix, self.argument = np.concatenate(matrices), np.concatenate(arguments)
        self.depends = dict.fromkeys(self.values, False)  # on a score
        self.linear = dict.fromkeys(self.values, True)  # a vector linear in vectors free of scores
        self.bounded: dict[Value, bool | None] = {}
        for value in self.values:
            self._classify(value)

    def _classify(self, value: Value) -> None:
        inputs = value.op.inputs
        self.depends[value] = any(self.depends[x] for x in inputs)
        self.bounded[value] = _all(self.bounded[x] for x in inputs)
        match value.op:
            case Gaussian(factor=factor):
                self.bounded[value] = not factor.any()
            case MatMul():
                self.bounded[value] = False
            case Dot(power=power):
                self.depends[value] |= power == 0.5
                self.bounded[value] = self.bounded[value] if power == 1 else False
            case Nonlin(f=f) | Apply(f=f):
                # a pseudo-Lipschitz function is bounded on bounded sets
                of_bounded = _all([f.lipschitz, self.bounded[value]])
                self.bounded[value] = f.bounded if of_bounded is not True else True
        if isinstance(value, Vector):
            vectors = [x for x in inputs if isinstance(x, Vector)]
            self.linear[value] = not self.depends[value] or (
                not isinstance(value.op, Nonlin) and all(self.linear[x] for x in vectors)
            )

    def at(self, value: Value) -> str:
        return f"{self.names[value]} ({value.where})"

    def pairs(self, score: Value) -> tuple[Ids, Ids]:
        """The numbers of the two factors of every score of an array, shaped like it."""
        assert isinstance(score.op, Dot)
        return self.ids[score.op.x][..., :, None], self.ids[score.op.y][..., None, :]


def _all(truths: Iterable[bool | None]) -> bool | None:
    """Three-valued: False if one is, else None (unknown) if one is."""
    found = list(truths)
    return False if False in found else None if None in found else True


def _not_matmul(facts: _Facts) -> Iterator[str]:
    for score in facts.scores:
        for factor in dict.fromkeys(score.op.inputs):
            if (facts.matrix[facts.ids[factor]] < 0).any():
                yield (
                    f"{facts.at(score)}: the factor {facts.names[factor]} is no MatMul output; "
                    "the score has a limit only if its factors are uncorrelated"
                )


def _coinciding(facts: _Facts, score: Value) -> bool:
    """Whether some score of the array is n^(−1/2) |g|², for a vector g or for W x by two MatMuls."""
    x, y = facts.pairs(score)
    tied = (facts.matrix[x] == facts.matrix[y]) & (facts.matrix[x] >= 0)
    return bool(((x == y) | (tied & (facts.argument[x] == facts.argument[y]))).any())


def _diverging(facts: _Facts) -> Iterator[str]:
    for score in facts.scores:
        assert isinstance(score.op, Dot)
        if score.op.x.width.name is not None and _coinciding(facts, score):
            yield f"{facts.at(score)}: tied factors, n^(-1/2) <g, g> grows like n^(1/2); mean_dot (1/n) has a limit"


def _tied(facts: _Facts) -> Iterator[str]:
    for score in facts.scores:
        x, y = (facts.matrix[ids] for ids in facts.pairs(score))
        if ((x == y) & (x >= 0)).any():
            yield f"{facts.at(score)}: tied factors W x, W x' have a limit only if E[Z^x Z^x'] = 0"


def _used_elsewhere(facts: _Facts) -> Iterator[str]:
    in_scores = np.zeros(facts.matrix.max(initial=-1) + 2, dtype=bool)  # the last entry stands for "no matrix", −1
    for score in facts.scores:
        for factor in score.op.inputs:
            in_scores[facts.matrix[facts.ids[factor]]] = True
    in_scores[-1] = False

    def concerned(x: Value) -> bool:
        return isinstance(x, Vector) and bool(in_scores[facts.matrix[facts.ids[x]]].any())

    for value in facts.values:
        if value in facts.scores or isinstance(value.op, Take | Join):
            continue
        for x in value.op.inputs:
            if concerned(x):
                yield f"{facts.at(value)} uses {facts.names[x]}, made by a matrix of a score factor"
    for output in facts.outputs:
        if concerned(output):
            yield f"{facts.at(output)} is an output, made by a matrix of a score factor"


def _score_inputs(facts: _Facts) -> dict[Value, None]:
    """The vectors x of the factors W x of all scores."""
    factor = np.zeros(len(facts.matrix), dtype=bool)
    for score in facts.scores:
        for x in score.op.inputs:
            factor[facts.ids[x]] = True
    return {v.op.x: None for v in facts.values if isinstance(v.op, MatMul) and factor[facts.ids[v]].any()}


def _unbounded(facts: _Facts) -> Iterator[str]:
    for x in _score_inputs(facts):
        if facts.bounded[x] is not True:
            known = "is not bounded" if facts.bounded[x] is False else "is not known to be bounded (declare bounded=)"
            yield f"{facts.at(x)} {known}; the paper assumes it for convenience, and uses ReLU itself"


def _not_lipschitz(facts: _Facts) -> Iterator[str]:
    for value in facts.values:
        if isinstance(value.op, Nonlin | Apply) and value.op.f.lipschitz is not True:
            known = "is not" if value.op.f.lipschitz is False else "is not known to be (declare lipschitz=)"
            yield f"{facts.at(value)}: {value.op.f.name} {known} pseudo-Lipschitz"


def _deep(facts: _Facts) -> Iterator[str]:
    # A linear combination commutes with a matrix, W Σ_j a_j x_j = Σ_j a_j W x_j, so attention's own output matrix is
    # no second multiplication; it is one after a nonlinearity, and for the factors of another score.
    inputs = _score_inputs(facts)
    for value in facts.values:
        if not isinstance(value.op, MatMul):
            continue
        x = value.op.x
        if facts.depends[x] and (x in inputs or not facts.linear[x]):
            yield f"{facts.at(value)}: multiplies {facts.names[x]}, which depends on a score (the deep case)"


def _means(facts: _Facts) -> Iterator[str]:
    if not facts.scores:
        return
    feeding = {x for v in facts.values for x in v.op.inputs}
    for value in facts.values:
        if isinstance(value.op, Dot) and value.op.power == 1 and value in feeding:
            yield f"{facts.at(value)}: a mean used by the program; Yang (2019) covers it without scores alone"


def _fixed_widths(facts: _Facts) -> Iterator[str]:
    # a space matters where its coordinates are summed over: a read-out into R^1 is no trouble
    for value in facts.values:
        summed = value.op.inputs if isinstance(value.op, MatMul | Dot) else ()
        for x in dict.fromkeys(summed):
            if isinstance(x, Vector) and x.width.name is None and not _is_data(x):
                yield f"{facts.at(value)} sums over the coordinates of {facts.names[x]} in R^{x.width}, which is finite"


def _is_data(value: Value) -> bool:
    """Given vectors, and what is made of them without randomness: their dimension is fixed by nature."""
    if isinstance(value.op, Take | Join | Add | Scale | Mix | Nonlin | Concat | Apply):
        return all(_is_data(x) for x in value.op.inputs)
    return isinstance(value.op, Data | Constant)
