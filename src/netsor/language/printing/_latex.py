"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

The full style has one line per operation. The paper style has only the lines that the
law of the outputs needs, and a box with this law, in which E[Z^x Z^y] of products,
combinations and concatenations is expanded into their parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, combinations
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
    """The program with these outputs, its probes and its limit law.

    It is a document, or without `document` the body of one.
    """
    results = narrow(without_stops([*outputs, *(probe.value for probe in probes)]))
    returned = results[: len(outputs)]
    writer = Writer(topological_order(results), paper)
    names = [writer.ref(value, tex.letters(value.shape)) for value in results]
    program_title = "Network" if paper else "Program"
    law_title = "Limit" if paper else "Limit law"
    sentence = PAPER if paper else FULL
    listed = ", ".join(names[: len(outputs)])
    body = [
        (
            rf"\paragraph{{{program_title}}} \texttt{{{tex.escape(name)}}} returns"
            rf" ${listed}$, where"
        ),
        tex.gathered(writer.program_lines()),
    ]
    if probes:
        watched = [
            f"{probe.name} ${probe_name}$"
            for probe, probe_name in zip(probes, names[len(outputs) :], strict=True)
        ]
        body.append(f"Watched: {', '.join(watched)}.")
    body.append(rf"\paragraph{{{law_title}}}")
    body.append(_status(report, sentence, tex.escape))
    limits = writer.limits(returned, report)
    if limits:
        body.append(tex.gathered(limits))
    text = "\n".join(body)
    if document:
        text = tex.DOCUMENT % text
    return text


def formula(outputs: Sequence[Value], report: Report) -> str:
    """The program and its law for math mode.

    Between $$ it is a displayed formula in MathJax and KaTeX.
    """
    outputs = narrow(without_stops(outputs))
    writer = Writer(topological_order(outputs), paper=True)
    status = _status(report, FORMULA, _plain)
    lines = [*writer.program_lines(), rf"\text{{{status}}}"]
    limits = writer.limits(outputs, report)
    if limits:
        lines += [LIMITS, *limits]
    return "\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}"


def _status(report: Report, sentence: str, escape: Callable[[str], str]) -> str:
    """The status of the limit: proved or conjectured."""
    if report.verdict == NO_LIMIT:
        return f"The limit does not exist: {escape('; '.join(report.reasons))}."
    if report.verdict == CONJECTURED:
        return sentence % escape("conjectured")
    return sentence % escape(f"proved, {report.theorem}")


def _plain(text: str) -> str:
    """Text within a formula, for renderers that accept only letters there."""
    allowed = ""
    for character in text:
        is_allowed = character.isalnum() or character in " .,:;()+-=/"
        allowed += character if is_allowed else " "
    return allowed.encode("ascii", "replace").decode()


class _Sum(NamedTuple):
    """Σ over letters of a product of factors and one expectation."""

    over: tuple[str, ...]
    factors: tuple[str, ...]
    core: str

    def times(self, *factors: str, over: tuple[str, ...] = ()) -> _Sum:
        """Multiply by more factors (those that are not 1, written "") and add sums."""
        new_factors = [factor for factor in factors if factor]
        return _Sum(
            over=(*over, *self.over),
            factors=(*new_factors, *self.factors),
            core=self.core,
        )

    def __str__(self) -> str:
        numbers: list[str] = []
        # each of these is 1 or 0, so one of each is enough
        equalities: dict[str, None] = {}
        symbols: list[str] = []
        for factor in self.factors:
            if factor.startswith("-"):
                numbers.append(f"({factor})")
            elif factor.startswith(r"\frac") or factor[0].isdigit():
                numbers.append(factor)
            elif factor.startswith(EQUAL):
                equalities[factor] = None
            else:
                symbols.append(factor)
        sums = []
        if self.over:
            sums.append(rf"\sum_{{{','.join(self.over)}}}")
        return " ".join([*numbers, *sums, *equalities, *symbols, self.core])


class Writer:
    """The lines of a program and of its limit law.

    `paper` selects the paper style. `limits` collects the values whose limits other
    lines mention, so it is called once.
    """

    def __init__(self, values: Sequence[Value], paper: bool) -> None:
        self.values, self.paper = values, paper
        self.names = names_of(values)
        self.letters = Counter(self.names[value][0] for value in values)
        # sources whose matrices also act transposed
        self.transposed = transposed(values)
        self.uses: dict[Source, list[Any]] = {}  # the outputs of each matrix
        # vectors that depend on positions of coordinates
        self.rotated: set[Value] = set()
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
            is_score = isinstance(op, Dot) and op.power == 0.5
            is_random = is_score or isinstance(op, ops.Normal)
            if is_random or not self.random.isdisjoint(op.inputs):
                self.random.add(value)
            sums_coordinates = isinstance(op, MatMul | Dot)
            inherits = not sums_coordinates and not self.rotated.isdisjoint(op.inputs)
            if inherits or op.acts is VectorAccess.BY_POSITION:
                self.rotated.add(value)
            if isinstance(op, MatMul):
                self.uses.setdefault(op.weight.source, []).append(value)

    def program_lines(self) -> list[str]:
        """The lines of all values."""
        return list(chain.from_iterable(map(self.program, self.values)))

    # Names

    def given(self, *values: Value) -> str:
        """The condition of an expectation of these values."""
        return "" if self.random.isdisjoint(values) else rf" \mid {self.known}"

    def ref(self, value: Value, indices: Indices) -> str:
        """A value with its indices.

        The paper style numbers values only if several share a letter.
        """
        if isinstance(value.op, Constant) and value.size == 1:
            return tex.decimal(value.op.numbers.ravel()[0])
        name = self.names[value]
        letter = name[0]
        number = name[1:]
        subscript = tex.below(indices, value.shape)
        if self.paper and self.letters[letter] == 1:
            return letter + subscript
        return f"{letter}^{{({number})}}{subscript}"

    def z(self, value: Value, indices: Indices) -> str:
        """The limit of a value, which is marked as needed.

        It is Z^h for a vector, and p° for a score, a mean or a function.
        """
        self.needed.add(value)
        name = self.ref(value, indices)
        if isinstance(value, Vector):
            return f"Z^{{{name}}}"
        if isinstance(value.op, Constant):
            return name
        return rf"\mathring{{{name[0]}}}{name[1:]}"

    def matrix(self, weight: Weight, indices: Indices) -> str:
        """A matrix of a batch: W^Q_1 becomes W^{Q,(1)}."""
        name = self.names[weight.source]
        subscript = tex.below(indices, weight.batch)
        match = re.fullmatch(
            r"([A-Za-z])(?:\^([A-Za-z0-9]+))?(?:_([A-Za-z0-9]+))?", name
        )
        if match is None:
            escaped = tex.escape(name).replace(" ", r"\ ")
            return rf"\mathrm{{{escaped}}}{subscript}"
        letter, exponent, number = match.groups()
        superscripts = []
        if exponent is not None:
            superscripts.append(exponent)
        if number is not None and number.isdigit():
            superscripts.append(f"({number})")
        elif number is not None:
            superscripts.append(rf"\mathrm{{{number}}}")
        if superscripts:
            letter += f"^{{{','.join(superscripts)}}}"
        return letter + subscript

    def same(self, weight: Weight, i: Indices, other: Weight, j: Indices) -> str:
        """1 if two matrices of a batch are equal, else 0.

        In the paper style it is Kronecker's δ where each matrix occurs once.
        """
        distinct = (
            weight.members is other.members
            and weight.members.size == np.unique(weight.members).size
        )
        if self.paper and len(i) == len(j) and distinct:
            deltas = [
                rf"\delta_{{{a} {b}}}" for a, b in zip(i, j, strict=True) if a != b
            ]
            return " ".join(deltas)
        name = self.matrix(weight, i)
        other_name = self.matrix(other, j)
        if name == other_name:
            return ""
        return rf"\mathbf 1_{{{name} = {other_name}}} \,"

    # The program

    def program(self, value: Value) -> list[str]:
        """The line of a value; the first use of a weight introduces it."""
        op, i = value.op, tex.letters(value.shape)
        name, where = self.ref(value, i), _index_ranges(value, i)
        match op:
            case Constant() if value.size == 1:
                return []
            case Constant():
                return [rf"{name} \in \mathbb{{R}} \text{{ given}} {where}"]
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
                numerator = " ".join(map(tex.dimension, over)) or "1"
                denominator = " ".join(map(tex.dimension, under)) or "1"
                return [rf"{name} = \sqrt{{{numerator}/({denominator})}}"]
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
        """W x, after the law of W at its first use.

        After steps, it is W' x and the sums of l r^T that changed W.
        """
        weight = op.weight.drawn
        matrix = self.matrix(weight, i[: len(weight.batch)])
        steps = steps_of(op)
        after_steps = rf"({matrix})^{{({len(steps)})}}" if steps else matrix
        factor = after_steps
        if op.weight.transposed:
            factor = rf"({factor})^{{\top}}"
        if op.weight.fan != weight.fan:  # the adjoint, used by gradients
            ratio = f"{tex.dimension(weight.fan)}/{tex.grouped(op.weight.fan)}"
            factor = rf"\sqrt{{{ratio}}} \, {factor}"
        x = self.ref(op.x, tex.read_indices(value, i)[0])
        line = f"{self.ref(value, i)} = {factor} {x} {where}"
        if isinstance(op, SteppedMatMul):
            all_entries = [r"\cdot", r"\cdot"]
            products = []
            for left, right in zip(op.left, op.right, strict=True):
                l_name = self.ref(left, all_entries)
                r_name = self.ref(right, all_entries)
                products.append(rf"{l_name} ({r_name})^{{\top}}")
            count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
            optimiser = type(steps[-1].optimiser).__name__
            moved = (
                rf"{after_steps} \text{{: }} {matrix} \text{{ after {count} of"
                rf" {optimiser} along }} {', '.join(products)}"
            )
            return [line, moved]
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
            lines = list(chain.from_iterable(map(self.limit, self.values)))
            return lines + self.shared(self.values)
        laws = list(chain.from_iterable(map(self.law, outputs)))
        lines = []
        lines_for = -1  # the number of values whose limits `lines` was written for
        # a value that a line mentions needs its own line
        while lines_for < len(self.needed):
            lines_for = len(self.needed)
            needed = [value for value in self.values if value in self.needed]
            inner = [value for value in needed if value not in outputs]
            lines = list(chain.from_iterable(map(self.limit, inner)))
            lines += self.shared(needed)
        if not laws:
            return lines
        inside = r" \\ ".join(laws)
        return [*lines, rf"\boxed{{\begin{{gathered}} {inside} \end{{gathered}}}}"]

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
            case MatMul(weight) if weight.source in self.transposed:
                return self._both_ways(value)
            case MatMul():
                return [self.covariance(value, value)]
            case Dot(x, y, 1.0):
                left, right = tex.read_indices(value, i)
                return [rf"{z} = {self.product(x, left, y, right)}"]
            case Dot(x, y):
                cov = self._score_covariance(value, x, y, i, j)
                return [
                    rf"{z} \text{{ jointly Gaussian, mean 0, independent of all }} Z",
                    rf"\operatorname{{Cov}}({z}, {self.z(value, j)}) = {cov}",
                ]
            case ops.Concat() if isinstance(value, Vector):
                product = self.expectation(value, i, value, j)
                return [f"{product} = {self.expanded(value, i, value, j)}"]
        # its inputs are needed, also if the limit is not known
        formula = op.latex(value, i, tex.Notation(self.z, self.positions))
        if isinstance(op, Pool) or op.acts not in (
            None,
            VectorAccess.LINEARLY,
            VectorAccess.ON_COORDINATES,
        ):
            return [rf"{z} \text{{ is not known}}"]
        return [f"{z} = {formula}"]

    def law(self, value: Value) -> list[str]:
        """The line of an output in the box of the paper style."""
        source = tex.matrix_source(value)
        is_gaussian = source is not None and source not in self.transposed
        if not isinstance(value, Vector) or not is_gaussian:
            return self.limit(value)
        i = tex.letters(value.shape)
        j = tex.primed(i)
        condition = self.given(value)
        z, other = self.z(value, i), self.z(value, j)
        if z == other:
            cov = rf"\operatorname{{Var}}({z}{condition})"
        else:
            cov = rf"\operatorname{{Cov}}({z}, {other}{condition})"
        condition_in_words = ""
        if condition:
            condition_in_words = rf"\text{{ given }} {self.known} "
        return [
            rf"{z} {condition_in_words}\text{{ Gaussian, mean 0}}",
            f"{cov} = {self.expanded(value, i, value, j)}",
        ]

    def gaussian(self, value: Any, i: Indices) -> str:
        """The Gaussian part of Z^{Wx}: all of it, unless the matrix also acts
        transposed.
        """
        z = self.z(value, i)
        return rf"\hat {z}" if value.op.weight.source in self.transposed else z

    def _both_ways(self, value: Any) -> list[str]:
        """Z^{Wx} if W also acts transposed: a Gaussian part, and by Stein's lemma a
        part from the W^T y in x.
        """
        weight, i = value.op.weight, tex.letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self.uses[weight.source]:
            if other.op.weight.transposed == weight.transposed:
                continue
            z_of_x = self.z(value.op.x, tex.read_indices(value, i)[0])
            j = tex.primed(tex.letters(other.shape))
            over = ",".join(index for index in j if index != "1")
            total = rf"\sum_{{{over}}} " if over else ""
            z_of_y = self.z(other.op.x, tex.read_indices(other, j)[0])
            slope = (
                rf"\mathbb{{E}}\left[\frac{{\partial {z_of_x}}}{{\partial"
                rf" {self.gaussian(other, j)}}}\right]"
            )
            terms.append(f"{tex.variance(weight)} {total}{slope} {z_of_y}")
        return [
            self.covariance(value, value),
            f"{self.z(value, i)} = {' + '.join(terms)}",
        ]

    def covariance(self, value: Any, other: Any) -> str:
        """The line of Cov(Z^{Wx}, Z^{Wx'})."""
        i = tex.letters(value.shape)
        j = tex.primed(tex.letters(other.shape))
        condition = self.given(value, other)
        z, other_z = self.gaussian(value, i), self.gaussian(other, j)
        cov = rf"\operatorname{{Cov}}({z}, {other_z}{condition})"
        line = f"{cov} = {self._images(value, i, other, j)}"
        if value is other:
            line = rf"{z} \text{{ Gaussian, mean 0}}, \quad {line}"
        return line

    def shared(self, values: Sequence[Value]) -> list[str]:
        """The covariances between outputs of one matrix; W x and W^T v have independent
        Gaussian parts.
        """
        among = set(values)
        lines = []
        for uses in self.uses.values():
            for x, y in combinations([use for use in uses if use in among], 2):
                if x.op.weight.transposed == y.op.weight.transposed:
                    lines.append(self.covariance(x, y))
        return lines

    def _score_covariance(
        self, value: Value, x: Vector, y: Vector, i: Indices, j: Indices
    ) -> str:
        """The covariance of two scores ⟨x, y⟩, by Wick's formula unless their factors
        have rotary positions.
        """
        x1, y1 = tex.read_indices(value, i)
        x2, y2 = tex.read_indices(value, j)
        if x in self.rotated or y in self.rotated:
            score_i = rf"\langle {self.ref(x, x1)}, {self.ref(y, y1)} \rangle"
            score_j = rf"\langle {self.ref(x, x2)}, {self.ref(y, y2)} \rangle"
            mean = rf"\mathbb{{E}}[{score_i} {score_j}]"
            return rf"\lim {tex.grouped(x.width)}^{{-1}} \, {mean}"
        left = self.product(x, x1, x, x2)
        right = self.product(y, y1, y, y2)
        if left.over or right.over:
            wick = rf"{left} \, {right}"
        else:  # as one product, so that the δ of both factors occurs once
            factors = (*left.factors, *right.factors)
            wick = str(_Sum((), factors, rf"{left.core} \, {right.core}"))
        x_source = tex.matrix_source(x)
        y_source = tex.matrix_source(y)
        both_from_matrices = x_source is not None and y_source is not None
        # independent matrices: E[Z^x Z^y] = 0
        if both_from_matrices and x_source is not y_source:
            return wick
        return rf"{wick} + {self.product(x, x1, y, y2)} \, {self.product(y, y1, x, x2)}"

    # E[Z^x Z^y]

    def expectation(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y] given the scores; for data, the mean over coordinates."""
        if isinstance(x.op, Data) and isinstance(y.op, Data):
            return (
                rf"{tex.grouped(x.width)}^{{-1}} \langle {self.ref(x, i)},"
                rf" {self.ref(y, j)} \rangle"
            )
        return rf"\mathbb{{E}}[{self.z(x, i)} {self.z(y, j)}{self.given(x, y)}]"

    def product(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y]; in the paper style, with linear operations expanded."""
        if self.paper:
            return self.expanded(x, i, y, j, used)
        return _Sum((), (), self.expectation(x, i, y, j))

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
        member = i[: len(a.weight.batch)]
        other_member = j[: len(b.weight.batch)]
        same = self.same(a.weight, member, b.weight, other_member)
        x_entry = tex.read_indices(value, i)[0]
        y_entry = tex.read_indices(other, j)[0]
        inner = self.product(a.x, x_entry, b.x, y_entry, used)
        return inner.times(tex.variance(a.weight), same)

    def expanded(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y] expanded into the inputs of x and y.

        `used` are the summation letters of the sums around it.
        """
        a, b = x.op, y.op
        weights = [op.weight.source for op in (a, b) if isinstance(op, MatMul)]
        if (
            len(weights) == 2
            and weights[0] is weights[1]
            and weights[0] not in self.transposed
        ):
            return self._images(x, i, y, j, used)
        letters_in_use = "".join((*i, *j, *used))
        unused = (letter for letter in LETTERS if letter not in letters_in_use)
        letter = next(unused, None)
        # (1/n) Σ_α over the joint space is the mean over its parts
        if isinstance(a, ops.Concat) and x is y and letter:
            count = a.x.shape[a.axis]
            k = letter if count > 1 else "1"
            part_entry = tex.read_indices(x, i, k)[0]
            other_entry = tex.read_indices(x, j, k)[0]
            # in the full style the part has its own line
            inner = self.product(a.x, part_entry, a.x, other_entry, (*used, k))
            if count == 1:
                return inner
            return inner.times(rf"\frac{{1}}{{{count}}}", over=(k,))
        terms = self._combination(x, i, letter)
        if terms is not None:
            x, i = terms.vector, terms.entry
        else:
            terms = self._combination(y, j, letter)
            if terms is None:
                return _Sum((), (), self.expectation(x, i, y, j))
            y, j = terms.vector, terms.entry
        inner = self.expanded(x, i, y, j, (*used, *terms.over))
        return inner.times(terms.factor, over=terms.over)

    def _combination(
        self, value: Vector, i: Indices, letter: str | None
    ) -> _Terms | None:
        """A vector as Σ over letters of a factor times an entry of another vector.

        None if it is not such a combination.
        """
        match value.op:
            case ops.Mix(c, x) if letter and x.shape[-1] > 1:
                coefficient, entry = tex.read_indices(value, i, letter)
                return _Terms(self.z(c, coefficient), (letter,), x, entry)
            case ops.Mix(c, x) | ops.Scale(c, x) if letter:
                coefficient, entry = tex.read_indices(value, i, "1")
                return _Terms(self.z(c, coefficient), (), x, entry)
            case ops.Take(Vector() as x) as op:
                entry_of_x = taken_indices(op, i, 1)
                if entry_of_x is not None:
                    return _Terms("", (), x, entry_of_x)
        return None


class _Terms(NamedTuple):
    """A vector as Σ over letters of a factor times an entry of another vector."""

    factor: str  # "" for 1
    over: tuple[str, ...]
    vector: Vector
    entry: Indices


def _index_ranges(value: Value, i: Indices) -> str:
    """The ranges of the indices of a value, i ≤ 3, after its formula."""
    ranges = [
        rf"{index} \le {size}"
        for index, size in zip(i, value.shape, strict=True)
        if size > 1
    ]
    if not ranges:
        return ""
    return rf"\qquad ({', '.join(ranges)})"
