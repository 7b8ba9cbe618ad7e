"""A program and its limit law as a paper would print them: few lines, and one boxed law at the end.

The law of an output is that of Definition 3.1, with linear steps carried out: E[Z^x Z^y] of outputs of matrices, of
combinations and of concatenations is written by E[Z Z] of what they are made of. What is left to be defined is defined
above the box, and nothing else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from . import _operation as ops
from ._array import Value
from ._check import CONJECTURED, NO_LIMIT, Report
from ._graph import LETTERS, narrow, take_as_index, topological_order
from ._latex import Writer
from ._latex_formulas import (
    DOCUMENT,
    Indices,
    broadcast_to,
    different_matrices,
    escape,
    factors,
    gathered,
    letters,
    primed,
    variance,
)
from ._operation import MatMul
from ._parameters import Weight
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
        self.needed: set[Value] = set()  # values of which a limit was written

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
        return str(self.carried(x, i, y, j, ()))

    def carried(self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...]) -> _Sum:
        """The same as a sum; `used` are the letters of sums around it."""
        a, b = x.op, y.op
        if isinstance(a, MatMul) and isinstance(b, MatMul) and a.weight.source is b.weight.source:
            weight, other = a.weight, b.weight
            if weight.source not in self.transposed:
                same = self.same(weight, i[: len(weight.batch)], other, j[: len(other.batch)])
                inner = self.carried(a.x, self.multiplied(x, i), b.x, self.multiplied(y, j), used)
                return inner.times(variance(weight), same)
        letter = _fresh(i, j, used)
        if isinstance(a, ops.Concat) and isinstance(b, ops.Concat) and a.axis == b.axis and a.x.shape == b.x.shape:
            count, axis = a.x.shape[a.axis], a.axis
            if letter and x is y:
                k = letter if count > 1 else "1"
                of, with_ = ([*e[:axis], k, *e[axis:]] for e in (i, j))
                inner = self.carried(a.x, of, b.x, with_, (*used, k))
                share = rf"\frac{{1}}{{{count}}}" if count > 1 else ""
                return inner.times(share, over=(k,) if count > 1 else ())
        for side in (0, 1):
            value, e = ((x, i), (y, j))[side]
            op = value.op
            if isinstance(op, ops.Mix) and letter:
                k = letter if op.x.shape[-1] > 1 else "1"
                row = "1" if op.a.shape[-2] == 1 else e[-1]
                coefficient = self.z(op.a, [*broadcast_to(op.a.shape[:-2], e[:-1]), row, k])
                part = [*broadcast_to(op.x.shape[:-1], e[:-1]), k]
                inner = self._beside(op.x, part, (x, i), (y, j), side, (*used, k))
                return inner.times(coefficient, over=(k,) if k != "1" else ())
            if isinstance(op, ops.Scale):
                factor = self.z(op.c, broadcast_to(op.c.shape, e))
                inner = self._beside(op.x, broadcast_to(op.x.shape, e), (x, i), (y, j), side, used)
                return inner.times(factor)
            if (
                isinstance(op, ops.Take)
                and isinstance(op.x, Vector)
                and (taken := take_as_index(op.flat, op.x.shape)) is not None
            ):
                at = [str(int(k) + 1) if k.isdigit() else e[LETTERS.index(k[0])] + k[1:] for k in taken]
                return self._beside(op.x, at, (x, i), (y, j), side, used)
        return _Sum((), (), super().product(x, i, y, j))

    def _beside(
        self, part: Vector, at: Indices, first: tuple[Vector, Indices], second: tuple[Vector, Indices], side: int,
        used: tuple[str, ...],
    ) -> _Sum:  # fmt: skip
        """With one of the two vectors in place of what it is made of."""
        if side == 0:
            return self.carried(part, at, *second, used)
        return self.carried(*first, part, at, used)

    def law(self, value: Value) -> list[str]:
        """What the box says of an output."""
        made = value
        while isinstance(made.op, ops.Take):
            made = made.op.x
        if not (isinstance(value, Vector) and isinstance(made.op, MatMul)) or made.op.weight.source in self.transposed:
            return self.limit(value)
        i = letters(value.shape)
        j = primed(i)
        given = self.given(value)
        z, other = super().z(value, i), super().z(value, j)
        condition = rf"\text{{ given }} {self.known} " if given else ""
        name = "Var" if z == other else "Cov"
        pair = z if z == other else f"{z}, {other}"
        cov = self.carried(value, i, value, j, ())
        return [rf"{z} {condition}\text{{ Gaussian, mean 0}}", rf"\operatorname{{{name}}}({pair}{given}) = {cov}"]

    def limit(self, value: Value) -> list[str]:
        """As before; the covariance of scores with δ written once."""
        op = value.op
        if isinstance(op, ops.Concat):
            i = letters(value.shape)
            assert isinstance(value, Vector)
            given, made = (f(value, i, value, primed(i)) for f in (super().product, self.product))
            return [f"{given} = {made}"]
        if not (isinstance(op, ops.Dot) and op.power == 0.5 and different_matrices(op.x, op.y)):
            return super().limit(value)
        if op.x in self.rotated or op.y in self.rotated:
            return super().limit(value)
        i = letters(value.shape)
        j = primed(i)
        (x1, y1), (x2, y2) = factors(op, i), factors(op, j)
        left, right = self.carried(op.x, x1, op.x, x2, ()), self.carried(op.y, y1, op.y, y2, ())
        if left.over or right.over:
            return super().limit(value)
        both = _Sum((), (*left.factors, *right.factors), rf"{left.core} \, {right.core}")
        z, other = Writer.z(self, value, i), Writer.z(self, value, j)
        gaussian = rf"{z} \text{{ jointly Gaussian, mean 0, independent of all }} Z"
        return [gaussian, rf"\operatorname{{Cov}}({z}, {other}) = {both}"]  # one line would be wider than a page


def _fresh(i: Indices, j: Indices, used: Iterable[str]) -> str | None:
    """A letter that no index is written with; None, if all are taken."""
    taken = {character for index in (*i, *j, *used) for character in index}
    return next((letter for letter in LETTERS if letter not in taken), None)


def paper(name: str, outputs: Sequence[Value], verdict: Report, document: bool) -> str:
    """The program and its law, for a paper; a whole document, or its body."""
    outputs = narrow(outputs)
    program, limits, box, writer = _parts(outputs, verdict)
    result = ", ".join(writer.ref(value, letters(value.shape)) for value in outputs)
    body = [rf"\paragraph{{Network}} \texttt{{{escape(name)}}} returns ${result}$, where", gathered(program)]
    body += [r"\paragraph{Limit}", escape(_said(verdict))]
    if box:
        body.append(gathered([*limits, box]))
    text = "\n".join(body)
    return DOCUMENT % text if document else text


def display(outputs: Sequence[Value], verdict: Report) -> str:
    """The law alone, as one displayed formula, for MathJax and KaTeX."""
    _, limits, box, _ = _parts(narrow(outputs), verdict)
    said = rf"\text{{{_plain(_said(verdict))}}}"
    lines = " \\\\\n".join([said, *limits, *([box] if box else [])])
    return f"$$\\begin{{gathered}}\n{lines}\n\\end{{gathered}}$$"


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
        lines += _pairs(writer)
    inside = " \\\\ ".join(laws)
    box = rf"\boxed{{\begin{{gathered}} {inside} \end{{gathered}}}}" if laws else ""
    return program, lines, box, writer


def _pairs(writer: _Paper) -> list[str]:
    """Covariances between outputs of one matrix, where both are spoken of."""
    made = [v for v in writer.values if isinstance(v.op, MatMul) and v in writer.needed]
    return [
        writer.covariance(first, second)
        for k, first in enumerate(made)
        for second in made[k + 1 :]
        if isinstance(first.op, MatMul) and isinstance(second.op, MatMul)
        and first.op.weight.source is second.op.weight.source
        and first.op.weight.transposed == second.op.weight.transposed
    ]  # fmt: skip


def _said(verdict: Report) -> str:
    if verdict.verdict == NO_LIMIT:
        return "There is none: " + "; ".join(verdict.reasons) + "."
    known = "conjectured" if verdict.verdict == CONJECTURED else f"proved, {verdict.theorem}"
    return f"As the widths go to infinity ({known}):"


def _plain(text: str) -> str:
    """Text within a formula, for renderers that take nothing but letters there."""
    return "".join(c if c.isalnum() or c in " .,:;()+-=/" else " " for c in text).encode("ascii", "replace").decode()
