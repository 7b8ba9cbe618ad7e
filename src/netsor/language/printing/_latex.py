"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

The full style has one line per operation. The paper style has only the lines that the
law of the outputs needs, and a box with this law, in which E[Z^x Z^y] of products,
combinations and concatenations is expanded into their parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ..operations import _operation as ops
from ..operations._operation import (
    Acting,
    Constant,
    Data,
    Dot,
    MatMul,
    Source,
    SteppedMatMul,
    steps_of,
)
from ..operations._rotary import Rotate
from ..operations._score import Pool
from ..operations._stop_gradient import without_stops
from ..theorem._theorem_check import CONJECTURED, NO_LIMIT, Report
from ..values._array import Value, VectorAccess, taken_indices
from ..values._graph import names_of, narrow, topological_order, transposed
from ..values._parameters import Weight
from ..values._probe import Probe
from ..values._vector import Vector
from . import _notation as tex
from ._notation import LETTERS, Indices

FULL = (
    r"(%s.) As the widths go to infinity, coordinates of the vectors $h$ converge in"
    r" distribution to $Z^{h}$ and the "
    r"scores $p$ to $\mathring p$; Gaussian variables of different matrices, of initial"
    r" vectors and of scores are "
    "independent unless a covariance is given."
)
PAPER = (
    r"As the widths go to infinity (%s), coordinates of a vector $v$ converge in"
    r" distribution to $Z^{v}$ and a scalar "
    r"$p$ to $\mathring p$:"
)
# The same in math mode, in two lines
LIMITS = (
    r"\text{Coordinates of a vector } v \text{ converge to } Z^{v} \text{ and a scalar"
    r" } p \text{ to } \mathring p:"
)
FORMULA = "As the widths go to infinity (%s), in distribution:"
# prefixes of factors that are 1 if two matrices are the same
EQUAL = (r"\delta", r"\mathbf 1")


def latex(
    name: str,
    outputs: Sequence[Value],
    report: Report,
    document: bool,
    probes: Sequence[Probe],
    paper: bool,
) -> str:
    """The program with these outputs, its probes and its limit law, as a document or
    its body.
    """
    every = narrow(without_stops([*outputs, *(probe.value for probe in probes)]))
    writer = Writer(topological_order(every), paper)
    names = [writer.ref(value, tex.letters(value.shape)) for value in every]
    program = [line for value in writer.values for line in writer.program(value)]
    title, law = ("Network", "Limit") if paper else ("Program", "Limit law")
    result = ", ".join(names[: len(outputs)])
    body = [
        (
            rf"\paragraph{{{title}}} \texttt{{{tex.escape(name)}}} returns ${result}$,"
            r" where"
        ),
        tex.gathered(program),
    ]
    if probes:
        watched = zip(probes, names[len(outputs) :], strict=True)
        body.append(
            "Watched:"
            f" {', '.join(f'{probe.name} ${shown}$' for probe, shown in watched)}."
        )
    body += [
        rf"\paragraph{{{law}}}",
        _status(report, PAPER if paper else FULL, tex.escape),
    ]
    if lines := writer.limits(every[: len(outputs)], report):
        body.append(tex.gathered(lines))
    text = "\n".join(body)
    return tex.DOCUMENT % text if document else text


def formula(outputs: Sequence[Value], report: Report) -> str:
    """The program and its law for math mode; between $$ it is a displayed formula in
    MathJax and KaTeX.
    """
    outputs = narrow(without_stops(outputs))
    writer = Writer(topological_order(outputs), paper=True)
    program = [line for value in writer.values for line in writer.program(value)]
    limits = writer.limits(outputs, report)
    status = rf"\text{{{_status(report, FORMULA, _plain)}}}"
    lines = [*program, status, *([LIMITS] if limits else []), *limits]
    return "\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}"


def _status(report: Report, sentence: str, escape: Callable[[str], str]) -> str:
    """The status of the limit: proved or conjectured."""
    if report.verdict == NO_LIMIT:
        return f"The limit does not exist: {escape('; '.join(report.reasons))}."
    return sentence % escape(
        "conjectured" if report.verdict == CONJECTURED else f"proved, {report.theorem}"
    )


def _plain(text: str) -> str:
    """Text within a formula, for renderers that accept only letters there."""
    return (
        "".join(c if c.isalnum() or c in " .,:;()+-=/" else " " for c in text)
        .encode("ascii", "replace")
        .decode()
    )


class _Sum(NamedTuple):
    """Σ over letters of a product of factors and one expectation."""

    over: tuple[str, ...]
    factors: tuple[str, ...]
    core: str

    def times(self, *factors: str, over: tuple[str, ...] = ()) -> _Sum:
        """Multiply by more factors and add sums."""
        return _Sum(
            (*over, *self.over), (*(f for f in factors if f), *self.factors), self.core
        )

    def __str__(self) -> str:
        total = [rf"\sum_{{{','.join(self.over)}}}"] if self.over else []
        signed = [f"({f})" if f.startswith("-") else f for f in self.factors]
        numbers = [
            f for f in signed if f.startswith((r"\frac", "(-")) or f[0].isdigit()
        ]
        # each is 1 or 0, so one of each is enough
        equal = dict.fromkeys(f for f in signed if f.startswith(EQUAL))
        rest = [f for f in signed if f not in numbers and f not in equal]
        return " ".join([*numbers, *total, *equal, *rest, self.core])


class Writer:
    def __init__(self, values: Sequence[Value], paper: bool) -> None:
        self.values, self.paper = values, paper
        self.names = names_of(values)
        self.letters = Counter(self.names[value][0] for value in values)
        # sources whose matrices also act transposed
        self.transposed = transposed(values)
        self.uses: dict[Source, list[Any]] = {}  # the outputs of each matrix
        self.rotated: set[Value] = set()  # vectors with rotary positions
        # values that depend on scores or random scalars, hence random in the limit
        self.random: set[Value] = set()
        self.needed: set[Value] = set()  # values whose limit was written
        normals = any(isinstance(value.op, ops.Normal) for value in values)
        # numbers of the selections that no index formula describes
        self.selections: dict[object, int] = {}
        # everything random in the limit
        self.known = r"\text{scalars}" if normals else r"\mathring p"
        for value in values:
            op = value.op
            score = isinstance(op, ops.Normal) or (
                isinstance(op, Dot) and op.power == 0.5
            )
            if score or not self.random.isdisjoint(op.inputs):
                self.random.add(value)
            if isinstance(op, Rotate) or not (
                isinstance(op, MatMul | Dot) or self.rotated.isdisjoint(op.inputs)
            ):
                self.rotated.add(value)
            if isinstance(op, MatMul):
                self.uses.setdefault(op.weight.source, []).append(value)

    # Names

    def given(self, *values: Value) -> str:
        """The condition of an expectation of these values."""
        return "" if self.random.isdisjoint(values) else rf" \mid {self.known}"

    def ref(self, value: Value, indices: Indices) -> str:
        """A value with its indices; the paper style numbers values only if several
        share a letter.
        """
        if isinstance(value.op, Constant) and value.size == 1:
            return tex.decimal(value.op.numbers.ravel()[0])
        letter, number = self.names[value][0], self.names[value][1:]
        above = "" if self.paper and self.letters[letter] == 1 else f"^{{({number})}}"
        return letter + above + tex.below(indices, value.shape)

    def z(self, value: Value, indices: Indices) -> str:
        """The limit of a value, marked as needed: Z^h for a vector, p° for a score, a
        mean or a function.
        """
        self.needed.add(value)
        name = self.ref(value, indices)
        if isinstance(value, Vector):
            return f"Z^{{{name}}}"
        return (
            name
            if isinstance(value.op, Constant)
            else rf"\mathring{{{name[0]}}}{name[1:]}"
        )

    def matrix(self, weight: Weight, indices: Indices) -> str:
        match = re.fullmatch(
            r"([A-Za-z])(?:\^([A-Za-z0-9]+))?(?:_([A-Za-z0-9]+))?",
            self.names[weight.source],
        )
        if match is None:
            name = tex.escape(self.names[weight.source]).replace(" ", r"\ ")
            return rf"\mathrm{{{name}}}" + tex.below(indices, weight.batch)
        base, above, number = match.groups()
        shown = number and (
            f"({number})" if number.isdigit() else rf"\mathrm{{{number}}}"
        )
        top = ",".join(filter(None, [above, shown]))
        return base + (f"^{{{top}}}" if top else "") + tex.below(indices, weight.batch)

    def same(self, weight: Weight, i: Indices, other: Weight, j: Indices) -> str:
        """1 if two matrices of a batch are equal, else 0; in the paper style,
        Kronecker's δ where each occurs once.
        """
        distinct = (
            weight.members is other.members
            and weight.members.size == np.unique(weight.members).size
        )
        if self.paper and len(i) == len(j) and distinct:
            return " ".join(
                rf"\delta_{{{a} {b}}}" for a, b in zip(i, j, strict=True) if a != b
            )
        first, second = self.matrix(weight, i), self.matrix(other, j)
        return "" if first == second else rf"\mathbf 1_{{{first} = {second}}} \,"

    # The program

    def program(self, value: Value) -> list[str]:
        """The line of a value; the first use of a weight introduces it."""
        op, i = value.op, tex.letters(value.shape)
        ranges = ", ".join(
            rf"{index} \le {size}"
            for index, size in zip(i, value.shape, strict=True)
            if size > 1
        )
        where, name = rf"\qquad ({ranges})" if ranges else "", self.ref(value, i)
        match op:
            case Constant():
                return (
                    []
                    if value.size == 1
                    else [rf"{name} \in \mathbb{{R}} \text{{ given}} {where}"]
                )
            case Data(vectors):
                return [
                    rf"{name} \in \mathbb{{R}}^{{{vectors.shape[-1]}}} \text{{ given}}"
                    rf" {where}"
                ]
            case ops.Gaussian(_, mean, factor) if isinstance(value, Vector):
                space = rf"{name} \in \mathbb{{R}}^{{{tex.dimension(value.width)}}}"
                if not factor.any():
                    centre, given = tex.constant_vectors(mean, i)
                    return [
                        rf"{space}, \quad {name} = {centre} \, (1, \dots, 1)"
                        rf" {where}{given}"
                    ]
                return [
                    rf"{space} \text{{ with independent coordinates }}"
                    rf" {tex.gaussian_law(mean, factor)} {where}"
                ]
            case ops.Normal(std=std):
                return [rf"{name} {tex.normal(std)} {where}"]
            case ops.Hyperparameter(given):
                return [rf"{name} = \text{{{tex.escape(given)}}} \text{{ given}}"]
            case ops.Root(over, under):
                top, bottom = (
                    " ".join(map(tex.dimension, sizes)) or "1"
                    for sizes in (over, under)
                )
                return [rf"{name} = \sqrt{{{top}/({bottom})}}"]
            case MatMul() | SteppedMatMul():
                return self._product_lines(op, value, i, where)
        notation = tex.Notation(self.ref, self.positions)
        line = f"{name} = {op.latex(value, i, notation)} {where}"
        if isinstance(op, ops.Take) and taken_indices(op, i, 1) is None:
            return [rf"{line}, \quad {tex.selection(op, self.positions(op))}"]
        return [line]

    def positions(self, op: ops.Take) -> str:
        """The name of the positions that an index selects; equal selections share
        it.
        """
        key = op.x.shape, op.flat.shape, op.flat.tobytes()
        number = self.selections.setdefault(key, len(self.selections) + 1)
        return rf"\pi_{{{number}}}"

    def _product_lines(
        self, op: Acting, value: Value, i: Indices, where: str
    ) -> list[str]:
        """W x, after the law of W at its first use; after steps, W' x and the sums of l
        r^T that changed W.
        """
        weight = op.weight.drawn
        matrix = self.matrix(weight, i[: len(weight.batch)])
        after = rf"({matrix})^{{({len(steps_of(op))})}}" if steps_of(op) else matrix
        turned = rf"({after})^{{\top}}" if op.weight.transposed else after
        if op.weight.fan != weight.fan:  # the adjoint, used by gradients
            turned = (
                rf"\sqrt{{{tex.dimension(weight.fan)}/{tex.dimension(op.weight.fan)}}}"
                rf" \, {turned}"
            )
        line = (
            f"{self.ref(value, i)} = {turned}"
            f" {self.ref(op.x, tex.read_indices(value, i)[0])} {where}"
        )
        if isinstance(op, SteppedMatMul):
            dots = [r"\cdot"] * 2
            pairs = zip(op.left, op.right, strict=True)
            along = ", ".join(
                rf"{self.ref(a, dots)} ({self.ref(b, dots)})^{{\top}}" for a, b in pairs
            )
            steps = (
                f"{len(op.steps)} step{'s' * (len(op.steps) > 1)} of"
                f" {type(op.steps[-1].optimiser).__name__}"
            )
            return [
                line,
                rf"{after} \text{{: }} {matrix} \text{{ after {steps} along }} {along}",
            ]
        if self.uses[weight.source][0] is not value:
            return [line]
        entries = tex.entry_law(weight)
        size = (
            rf"\mathbb R^{{{tex.dimension(weight.out_width)} \times"
            rf" {tex.dimension(weight.in_width)}}}"
        )
        return [
            rf"{matrix} \in {size} \text{{ with independent entries }} {entries}",
            line,
        ]

    # The limit

    def limits(self, outputs: Sequence[Value], report: Report) -> list[str]:
        """The lines of the limit law; in the paper style, the last is the box."""
        if report.verdict == NO_LIMIT:
            return []
        if not self.paper:
            return [
                line for value in self.values for line in self.limit(value)
            ] + self.shared(self.values)
        laws = [line for value in outputs for line in self.law(value)]
        before = -1
        # a value that a line mentions needs its own line
        while before < len(self.needed):
            before = len(self.needed)
            needed = [value for value in self.values if value in self.needed]
            lines = [
                line
                for value in needed
                if value not in outputs
                for line in self.limit(value)
            ]
            lines += self.shared(needed)
        inside = r" \\ ".join(laws)
        boxed = rf"\boxed{{\begin{{gathered}} {inside} \end{{gathered}}}}"
        return [*lines, boxed] if laws else lines

    def limit(self, value: Value) -> list[str]:
        """The law of the limit of a value, by the rule of Definition 3.1 for its
        operation.
        """
        op, i = value.op, tex.letters(value.shape)
        z, j = self.z(value, i), tex.primed(i)
        match op:
            case Constant() | Data() | ops.Hyperparameter() | ops.Root():
                return []
            case ops.Gaussian(_, mean, factor):
                if not factor.any():  # a multiple of (1, …, 1)
                    return [f"{z} = {tex.constant_vectors(mean, i)[0]}"]
                return [rf"{z} \sim {tex.gaussian_law(mean, factor)}"]
            case ops.Normal(std=std):
                return [f"{z} {tex.normal(std)}"]
            case MatMul(weight):
                return (
                    self._both_ways(value)
                    if weight.source in self.transposed
                    else [self.covariance(value, value)]
                )
            case Dot(x, y, 1.0):
                left, right = tex.read_indices(value, i)
                return [rf"{z} = {self.product(x, left, y, right)}"]
            case Dot(x, y):
                cov = (
                    rf"\operatorname{{Cov}}({z}, {self.z(value, j)}) ="
                    rf" {self._score_covariance(value, x, y, i, j)}"
                )
                return [
                    rf"{z} \text{{ jointly Gaussian, mean 0, independent of all }} Z",
                    cov,
                ]
            case ops.Concat() if isinstance(value, Vector):
                return [
                    f"{self.expectation(value, i, value, j)} ="
                    f" {self.expanded(value, i, value, j)}"
                ]
        known = op.acts in (
            None,
            VectorAccess.LINEARLY,
            VectorAccess.ON_COORDINATES,
        ) and not isinstance(op, Pool)
        shown = f"{z} = {op.latex(value, i, tex.Notation(self.z, self.positions))}"
        return [shown if known else rf"{z} \text{{ is not known}}"]

    def law(self, value: Value) -> list[str]:
        """The line of an output in the box of the paper style."""
        if not isinstance(value, Vector) or tex.matrix_source(value) in (
            None,
            *self.transposed,
        ):
            return self.limit(value)
        i, given = tex.letters(value.shape), self.given(value)
        j = tex.primed(i)
        z, other = self.z(value, i), self.z(value, j)
        condition = rf"\text{{ given }} {self.known} " if given else ""
        cov = (
            rf"\operatorname{{Var}}({z}"
            if z == other
            else rf"\operatorname{{Cov}}({z}, {other}"
        )
        return [
            rf"{z} {condition}\text{{ Gaussian, mean 0}}",
            f"{cov}{given}) = {self.expanded(value, i, value, j)}",
        ]

    def gaussian(self, value: Any, i: Indices) -> str:
        """The Gaussian part of Z^{Wx}: all of it, unless the matrix also acts
        transposed.
        """
        return ("\\hat " if value.op.weight.source in self.transposed else "") + self.z(
            value, i
        )

    def _both_ways(self, value: Any) -> list[str]:
        """Z^{Wx} if W also acts transposed: a Gaussian part, and by Stein's lemma a
        part from the W^T y in x.
        """
        weight, i = value.op.weight, tex.letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self.uses[weight.source]:
            if other.op.weight.transposed != weight.transposed:
                j = tex.primed(tex.letters(other.shape))
                over = ",".join(index for index in j if index != "1")
                of, by = (
                    self.z(v.op.x, tex.read_indices(v, k)[0])
                    for v, k in ((value, i), (other, j))
                )
                slope = (
                    rf"\mathbb{{E}}\left[\frac{{\partial {of}}}{{\partial"
                    rf" {self.gaussian(other, j)}}}\right]"
                )
                total = rf"\sum_{{{over}}} " if over else ""
                terms.append(f"{tex.variance(weight)} {total}{slope} {by}")
        return [
            self.covariance(value, value),
            f"{self.z(value, i)} = {' + '.join(terms)}",
        ]

    def covariance(self, value: Any, other: Any) -> str:
        """The line of Cov(Z^{Wx}, Z^{Wx'})."""
        i, j = tex.letters(value.shape), tex.primed(tex.letters(other.shape))
        given = self.given(value, other)
        cov = (
            rf"\operatorname{{Cov}}({self.gaussian(value, i)},"
            rf" {self.gaussian(other, j)}{given})"
        )
        mean = (
            rf"{self.gaussian(value, i)} \text{{ Gaussian, mean 0}}, \quad "
            if value is other
            else ""
        )
        return f"{mean}{cov} = {self._images(value, i, other, j)}"

    def shared(self, values: Sequence[Value]) -> list[str]:
        """The covariances between outputs of one matrix; W x and W^T v have independent
        Gaussian parts.
        """
        among = set(values)
        pairs = (
            pair
            for uses in self.uses.values()
            for pair in combinations(uses, 2)
            if among.issuperset(pair)
        )
        return [
            self.covariance(x, y)
            for x, y in pairs
            if x.op.weight.transposed == y.op.weight.transposed
        ]

    def _score_covariance(
        self, value: Value, x: Vector, y: Vector, i: Indices, j: Indices
    ) -> str:
        """The covariance of two scores ⟨x, y⟩, by Wick's formula unless their factors
        have rotary positions.
        """
        (x1, y1), (x2, y2) = (tex.read_indices(value, k) for k in (i, j))
        if x in self.rotated or y in self.rotated:
            pairs = ((x1, y1), (x2, y2))
            dots = " ".join(
                rf"\langle {self.ref(x, a)}, {self.ref(y, b)} \rangle" for a, b in pairs
            )
            return rf"\lim {tex.dimension(x.width)}^{{-1}} \, \mathbb{{E}}[{dots}]"
        left, right = self.product(x, x1, x, x2), self.product(y, y1, y, y2)
        # the δ of both factors
        once = _Sum(
            (), (*left.factors, *right.factors), rf"{left.core} \, {right.core}"
        )
        wick = rf"{left} \, {right}" if left.over or right.over else str(once)
        sources = tex.matrix_source(x), tex.matrix_source(y)
        # independent matrices: E[Z^x Z^y] = 0
        if None not in sources and sources[0] is not sources[1]:
            return wick
        return rf"{wick} + {self.product(x, x1, y, y2)} \, {self.product(y, y1, x, x2)}"

    # E[Z^x Z^y]

    def expectation(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y] given the scores; for data, the mean over coordinates."""
        if isinstance(x.op, Data) and isinstance(y.op, Data):
            return (
                rf"{tex.dimension(x.width)}^{{-1}} \langle {self.ref(x, i)},"
                rf" {self.ref(y, j)} \rangle"
            )
        return rf"\mathbb{{E}}[{self.z(x, i)} {self.z(y, j)}{self.given(x, y)}]"

    def product(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y]; in the paper style, with linear operations expanded."""
        return (
            self.expanded(x, i, y, j, used)
            if self.paper
            else _Sum((), (), self.expectation(x, i, y, j))
        )

    def _images(
        self,
        value: Value,
        i: Indices,
        other: Value,
        j: Indices,
        used: tuple[str, ...] = (),
    ) -> _Sum:
        """E[Z^{Wx} Z^{Wy}] = σ_W² E[Z^x Z^y] for products with one weight; 0 between
        different matrices.
        """
        a: Any = value.op
        b: Any = other.op
        same = self.same(
            a.weight, i[: len(a.weight.batch)], b.weight, j[: len(b.weight.batch)]
        )
        inner = self.product(
            a.x, tex.read_indices(value, i)[0], b.x, tex.read_indices(other, j)[0], used
        )
        return inner.times(tex.variance(a.weight), same)

    def expanded(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y] expanded into the inputs of x and y; `used` are the summation
        letters already taken.
        """
        a, b = x.op, y.op
        weights = [op.weight.source for op in (a, b) if isinstance(op, MatMul)]
        if (
            len(weights) == 2
            and weights[0] is weights[1]
            and weights[0] not in self.transposed
        ):
            return self._images(x, i, y, j, used)
        taken = "".join((*i, *j, *used))
        letter = next((letter for letter in LETTERS if letter not in taken), None)
        # (1/n) Σ_α over the joint space is the mean over its parts
        if isinstance(a, ops.Concat) and x is y and letter:
            count = a.x.shape[a.axis]
            k = letter if count > 1 else "1"
            of, with_ = (tex.read_indices(x, e, k)[0] for e in (i, j))
            # in the full style the part has its own line
            inner = self.product(a.x, of, a.x, with_, (*used, k))
            return (
                inner.times(rf"\frac{{1}}{{{count}}}", over=(k,))
                if count > 1
                else inner
            )
        if (step := self._combination(x, i, letter)) is not None:
            factor, over, x, i = step
        elif (step := self._combination(y, j, letter)) is not None:
            factor, over, y, j = step
        else:
            return _Sum((), (), self.expectation(x, i, y, j))
        return self.expanded(x, i, y, j, (*used, *over)).times(factor, over=over)

    def _combination(
        self, value: Vector, i: Indices, letter: str | None
    ) -> tuple[str, tuple[str, ...], Vector, Indices] | None:
        """A vector as Σ over letters of a factor times an entry of another; None if it
        is not such a combination.
        """
        match value.op:
            case ops.Mix(c, x) | ops.Scale(c, x) as op if letter:
                over = (letter,) if isinstance(op, ops.Mix) and x.shape[-1] > 1 else ()
                coefficient, of = tex.read_indices(value, i, *(over or "1"))
                return self.z(c, coefficient), over, x, of
            case ops.Take(Vector() as x) as op if (
                taken := taken_indices(op, i, 1)
            ) is not None:
                return "", (), x, taken
        return None
