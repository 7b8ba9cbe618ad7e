"""A program and its limit law as a paper prints them: the lines that the law needs, and the law in a box.

E[Z^x Z^y] of outputs of matrices, of combinations and of concatenations is written by E[Z Z] of what they are made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from . import _notation as tex
from . import _operation as ops
from ._array import Value
from ._graph import LETTERS, narrow, topological_order
from ._latex import Writer
from ._notation import Indices
from ._operation import MatMul
from ._parameters import Weight
from ._theorem_check import CONJECTURED, NO_LIMIT, Report
from ._vector import Vector

EQUAL = (r"\delta", r"\mathbf 1")  # how a factor begins that says that two matrices are the same


class _Sum(NamedTuple):
    """Σ over letters of a product of factors and one expectation."""

    over: tuple[str, ...]
    factors: tuple[str, ...]
    core: str

    def times(self, *factors: str, over: tuple[str, ...] = ()) -> _Sum:
        """With more factors in front, and further sums."""
        return _Sum((*over, *self.over), (*(f for f in factors if f), *self.factors), self.core)

    def __str__(self) -> str:
        total = [rf"\sum_{{{','.join(self.over)}}}"] if self.over else []
        signed = [f"({f})" if f.startswith("-") else f for f in self.factors]
        numbers = [f for f in signed if f.startswith((r"\frac", "(-")) or f[0].isdigit()]
        equal = dict.fromkeys(f for f in signed if f.startswith(EQUAL))  # 1 or 0, so that one of each is enough
        rest = [f for f in signed if f not in numbers and f not in equal]
        return " ".join([*numbers, *total, *equal, *rest, self.core])


class _Paper(Writer):
    def __init__(self, values: Sequence[Value]) -> None:
        super().__init__(values)
        self.letters = Counter(self.names[value][0] for value in values)
        self.needed: set[Value] = set()  # values whose limit was written

    def above(self, letter: str, number: str) -> str:
        """A number, where there are several of this letter."""
        return super().above(letter, number) if self.letters[letter] > 1 else ""

    def z(self, value: Value, indices: Indices) -> str:
        """The limit of a value, which must then be defined."""
        self.needed.add(value)
        return super().z(value, indices)

    def same(self, weight: Weight, i: Indices, other: Weight, j: Indices) -> str:
        """Kronecker's δ of the indices, if each matrix of the batch stands in it once."""
        pairs = [f"{a} {b}" for a, b in zip(i, j, strict=False) if a != b]
        distinct = weight.members.size == np.unique(weight.members).size
        if weight.members is not other.members or len(i) != len(j) or not distinct:
            return super().same(weight, i, other, j)
        return " ".join(rf"\delta_{{{pair}}}" for pair in pairs)

    def product(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y], linear steps carried out."""
        return str(self.expanded_product(x, i, y, j))

    def expanded_product(self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()) -> _Sum:
        """The same as a sum; `used` are the letters of sums around it."""
        a, b = x.op, y.op
        if isinstance(a, MatMul) and isinstance(b, MatMul) and a.weight.source is b.weight.source:
            weight, other = a.weight, b.weight
            if weight.source not in self.transposed:
                same = self.same(weight, i[: len(weight.batch)], other, j[: len(other.batch)])
                inner = self.expanded_product(a.x, self.multiplied(x, i), b.x, self.multiplied(y, j), used)
                return inner.times(tex.variance(weight), same)
        letter = _unused_letter(i, j, used)
        if isinstance(a, ops.Concat) and x is y and letter:
            count, axis = a.x.shape[a.axis], a.axis
            k = letter if count > 1 else "1"
            of, with_ = ([*e[:axis], k, *e[axis:]] for e in (i, j))
            inner = self.expanded_product(a.x, of, a.x, with_, (*used, k))
            return inner.times(rf"\frac{{1}}{{{count}}}", over=(k,)) if count > 1 else inner
        if (step := self._expanded(x, i, letter)) is not None:
            factor, over, part, at = step
            return self.expanded_product(part, at, y, j, (*used, *over)).times(factor, over=over)
        if (step := self._expanded(y, j, letter)) is not None:
            factor, over, part, at = step
            return self.expanded_product(x, i, part, at, (*used, *over)).times(factor, over=over)
        return _Sum((), (), super().product(x, i, y, j))

    def _expanded(
        self, value: Vector, i: Indices, letter: str | None
    ) -> tuple[str, tuple[str, ...], Vector, Indices] | None:
        """A vector as Σ over letters of a factor times an entry of another; None if it is no such combination."""
        match value.op:
            case ops.Mix(a, x) if letter:
                k = letter if x.shape[-1] > 1 else "1"
                row = "1" if a.shape[-2] == 1 else i[-1]
                coefficient = self.z(a, [*tex.broadcast_to(a.shape[:-2], i[:-1]), row, k])
                part = [*tex.broadcast_to(x.shape[:-1], i[:-1]), k]
                return coefficient, (k,) if k != "1" else (), x, part
            case ops.Scale(c, x):
                return self.z(c, tex.broadcast_to(c.shape, i)), (), x, tex.broadcast_to(x.shape, i)
            case ops.Take(Vector() as x) as op if (taken := tex.taken_indices(op, i)) is not None:
                return "", (), x, taken
        return None

    def law(self, value: Value) -> list[str]:
        """What the box says of an output."""
        base = value
        while isinstance(base.op, ops.Take):
            base = base.op.x
        if not (isinstance(value, Vector) and isinstance(base.op, MatMul)) or base.op.weight.source in self.transposed:
            return self.limit(value)
        i = tex.letters(value.shape)
        j = tex.primed(i)
        given = self.given(value)
        z, other = super().z(value, i), super().z(value, j)
        condition = rf"\text{{ given }} {self.known} " if given else ""
        name = "Var" if z == other else "Cov"
        pair = z if z == other else f"{z}, {other}"
        cov = self.expanded_product(value, i, value, j)
        return [rf"{z} {condition}\text{{ Gaussian, mean 0}}", rf"\operatorname{{{name}}}({pair}{given}) = {cov}"]

    def limit(self, value: Value) -> list[str]:
        """As in the full style, but E[Z Z] of a concatenation by what it is made of."""
        if not isinstance(value.op, ops.Concat):
            return super().limit(value)
        i = tex.letters(value.shape)
        assert isinstance(value, Vector)
        given, expanded = (f(value, i, value, tex.primed(i)) for f in (super().product, self.product))
        return [f"{given} = {expanded}"]

    def score_covariance(self, value: Value, i: Indices, j: Indices) -> str:
        """As in the full style, with the δ of both factors written once."""
        assert isinstance(value.op, ops.Dot)
        x, y = value.op.x, value.op.y
        if x in self.rotated or y in self.rotated or not tex.different_matrices(x, y):
            return super().score_covariance(value, i, j)
        (x1, y1), (x2, y2) = tex.factors(value.op, i), tex.factors(value.op, j)
        left, right = self.expanded_product(x, x1, x, x2), self.expanded_product(y, y1, y, y2)
        if left.over or right.over:
            return super().score_covariance(value, i, j)
        return str(_Sum((), (*left.factors, *right.factors), rf"{left.core} \, {right.core}"))


def _unused_letter(i: Indices, j: Indices, used: Iterable[str]) -> str | None:
    """A letter that no index is written with; None, if all are taken."""
    taken = {character for index in (*i, *j, *used) for character in index}
    return next((letter for letter in LETTERS if letter not in taken), None)


def paper(name: str, outputs: Sequence[Value], verdict: Report, document: bool) -> str:
    """The program and its law, for a paper; a whole document, or its body."""
    outputs = narrow(outputs)
    program, limits, box, writer = _parts(outputs, verdict)
    result = ", ".join(writer.ref(value, tex.letters(value.shape)) for value in outputs)
    body = [rf"\paragraph{{Network}} \texttt{{{tex.escape(name)}}} returns ${result}$, where", tex.gathered(program)]
    body += [r"\paragraph{Limit}", tex.escape(_status(verdict))]
    if box:
        body.append(tex.gathered([*limits, box]))
    text = "\n".join(body)
    return tex.DOCUMENT % text if document else text


def display(outputs: Sequence[Value], verdict: Report) -> str:
    """The law alone, as one displayed formula, for MathJax and KaTeX."""
    return f"$${formula(outputs, verdict)}$$"


def formula(outputs: Sequence[Value], verdict: Report) -> str:
    """The law alone, for math mode."""
    _, limits, box, _ = _parts(narrow(outputs), verdict)
    said = rf"\text{{{_plain(_status(verdict))}}}"
    lines = " \\\\\n".join([said, *limits, *([box] if box else [])])
    return f"\\begin{{gathered}}\n{lines}\n\\end{{gathered}}"


def _parts(outputs: Sequence[Value], verdict: Report) -> tuple[list[str], list[str], str, _Paper]:
    """The lines of the program, those of the limits that the box needs, the box, and the writer."""
    values = topological_order(outputs)
    writer = _Paper(values)
    program = [line for value in values for line in writer.program(value)]
    if verdict.verdict == NO_LIMIT:
        return program, [], "", writer
    laws = [line for value in outputs for line in writer.law(value)]
    before = -1
    while before < len(writer.needed):  # what a line speaks of needs a line itself
        before = len(writer.needed)
        lines = [line for value in values if value in writer.needed - set(outputs) for line in writer.limit(value)]
        lines += writer.shared([value for value in values if value in writer.needed])
    inside = " \\\\ ".join(laws)
    box = rf"\boxed{{\begin{{gathered}} {inside} \end{{gathered}}}}" if laws else ""
    return program, lines, box, writer


def _status(verdict: Report) -> str:
    if verdict.verdict == NO_LIMIT:
        return "There is no limit: " + "; ".join(verdict.reasons) + "."
    known = "conjectured" if verdict.verdict == CONJECTURED else f"proved, {verdict.theorem}"
    return f"As the widths go to infinity ({known}):"


def _plain(text: str) -> str:
    """Text within a formula, for renderers that take nothing but letters there."""
    return "".join(c if c.isalnum() or c in " .,:;()+-=/" else " " for c in text).encode("ascii", "replace").decode()
