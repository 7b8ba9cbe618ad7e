"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

The full style has one line per operation. The paper style has only the lines that the
law of the outputs needs, and a box with this law, in which E[Z^x Z^y] of products,
combinations and concatenations is expanded into their parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np

from ..._validate import Shape
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
from ..values._array import (
    Ints,
    Operation,
    Value,
    VectorAccess,
    index_formulas,
    taken_indices,
)
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
# The prefixes of factors that are 1 if two matrices are the same, else 0.
EQUAL = (r"\delta", r"\mathbf 1")
# The expectation E[Z^x Z^y] of images by independent matrices.
ZERO = "0"


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
    probed = [probe.value for probe in probes]
    results = narrow(without_stops([*outputs, *probed]))  # the outputs, then the probes
    returned = results[: len(outputs)]
    writer = Writer(topological_order(results), paper)
    names = [writer.ref(value, tex.letters(value.shape)) for value in results]
    names_of_probes = names[len(outputs) :]
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
        watched = []
        for probe, probe_name in zip(probes, names_of_probes, strict=True):
            watched.append(f"{probe.name} ${probe_name}$")
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
    body = " \\\\\n".join(lines)
    return f"\\begin{{gathered}}\n{body}\n\\end{{gathered}}"


def _status(report: Report, sentence: str, escape: Callable[[str], str]) -> str:
    """The status of the limit: proved or conjectured."""
    if report.verdict == NO_LIMIT:
        reasons = "; ".join(report.reasons)
        return f"The limit does not exist: {escape(reasons)}."
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
    """Σ over letters of a product of factors and one expectation, as a formula.

    For example, over ("k",), with the factors ("2", "c_k") and the core "E[Z^x Z^y]",
    it is "2 \\sum_{k} c_k E[Z^x Z^y]".
    """

    over: tuple[str, ...]
    factors: tuple[str, ...]
    core: str

    def times(self, *factors: str, over: tuple[str, ...] = ()) -> _Sum:
        """Multiply by more factors, where "" is 1, and sum over more letters."""
        new_factors = [factor for factor in factors if factor]
        return _Sum(
            over=(*over, *self.over),
            factors=(*new_factors, *self.factors),
            core=self.core,
        )

    def __str__(self) -> str:
        """Numbers, the sum, equalities, other factors and the expectation."""
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
        """From all values of a program, in order."""
        self.values = values
        self.paper = paper
        self.names = names_of(values)
        # how many values each letter names
        self.letters = Counter(self.names[value][0] for value in values)
        # sources whose matrices also act transposed
        self.transposed = transposed(values)
        self.uses: dict[Source, list[Any]] = {}  # the values W x of each matrix
        for value in values:
            if isinstance(value.op, MatMul):
                self.uses.setdefault(value.op.weight.source, []).append(value)
        # products before which the law of their matrices is stated
        self.first_products = _first_products(self.uses)
        self.batches = _batches_of_sources(values)
        self.rotated = _depending_on_positions(values)
        self.random = _depending_on_scores(values)
        self.needed: set[Value] = set()  # values whose limit was written
        # numbers of the selections that no index formula describes
        self.selections: dict[object, int] = {}
        # everything random in the limit
        has_normals = any(isinstance(value.op, ops.Normal) for value in values)
        self.known = r"\text{scalars}" if has_normals else r"\mathring p"

    def program_lines(self) -> list[str]:
        """The lines of all values."""
        return list(chain.from_iterable(map(self.program, self.values)))

    # Names

    def condition(self, *values: Value) -> str:
        """The condition of an expectation of these values, if some are random."""
        if self.random.isdisjoint(values):
            return ""
        return rf" \mid {self.known}"

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
        """A matrix of a batch: W^Q_1 becomes W^{Q,(1)}, and W_out W^{\\mathrm{out}}.

        The subscript is its index in the batch of the source: W_2 for `W[1]`.
        """
        name = self.names[weight.source]
        batch = self.batches[weight.source]
        index = index_formulas(weight.members, batch, indices, first=1)
        if index is None:
            positions = self.positions(weight.members, batch)
            index = [tex.selected(positions, indices)]
        subscript = tex.below(index, batch)
        # a letter, an exponent after ^ and a number or word after _
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
        """The factor that is 1 if entries i and j of batches are one matrix, else 0.

        It is "" if they are the same anyway. In the paper style it is Kronecker's δ
        where each matrix occurs once: δ_{a a'} for the heads a and a'.
        """
        same_batch = np.array_equal(weight.members, other.members)
        each_once = weight.members.size == np.unique(weight.members).size
        if self.paper and len(i) == len(j) and same_batch and each_once:
            deltas = []
            for index, other_index in zip(i, j, strict=True):
                if index != other_index:
                    deltas.append(rf"\delta_{{{index} {other_index}}}")
            return " ".join(deltas)
        name = self.matrix(weight, i)
        other_name = self.matrix(other, j)
        if name == other_name:
            return ""
        return rf"\mathbf 1_{{{name} = {other_name}}} \,"

    # The program

    def program(self, value: Value) -> list[str]:
        """The lines of a value; the first use of a weight introduces it."""
        op = value.op
        i = tex.letters(value.shape)
        name = self.ref(value, i)
        ranges = _index_ranges(value, i)
        match op:
            case Constant() if value.size == 1:
                return []
            case Constant():
                return [rf"{name} \in \mathbb{{R}} \text{{ given}} {ranges}"]
            case Data(vectors=vectors):
                return [
                    rf"{name} \in \mathbb{{R}}^{{{vectors.shape[-1]}}} \text{{ given}}"
                    rf" {ranges}"
                ]
            case ops.Gaussian() if isinstance(value, Vector):
                return [self._initial_vectors(op, value, i, ranges)]
            case ops.Normal(std=std):
                return [rf"{name} {tex.normal(std)} {ranges}"]
            case ops.Hyperparameter(name=symbol):
                return [rf"{name} = \text{{{tex.escape(symbol)}}} \text{{ given}}"]
            case ops.Root() as root:
                return [f"{name} = {_ratio_of_widths(root)}"]
            case MatMul() | SteppedMatMul():
                return self._product_lines(op, value, i, ranges)
        notation = tex.Notation(self.ref, self.positions)
        line = f"{name} = {op.latex(value, i, notation)} {ranges}"
        if isinstance(op, ops.Take) and taken_indices(op, i, first=1) is None:
            return [rf"{line}, \quad {self._selection(op.flat, op.x.shape)}"]
        return [line]

    def _initial_vectors(
        self, op: ops.Gaussian, value: Vector, i: Indices, ranges: str
    ) -> str:
        """The line of initial vectors: their space, and their law or their value."""
        name = self.ref(value, i)
        space = rf"{name} \in \mathbb{{R}}^{{{tex.dimension(value.width)}}}"
        if not op.factor.any():  # multiples of (1, …, 1)
            centre, definition = tex.constant_vectors(op.mean, i)
            return (
                rf"{space}, \quad {name} = {centre} \, (1, \dots, 1)"
                rf" {ranges}{definition}"
            )
        law = tex.gaussian_law(op.mean, op.factor)
        return rf"{space} \text{{ with independent coordinates }} {law} {ranges}"

    def positions(self, flat: Ints, shape: Shape) -> str:
        """The name π_k of selected positions in an array of this shape.

        Equal selections share a name.
        """
        selection = (shape, flat.shape, flat.tobytes())
        next_number = len(self.selections) + 1
        number = self.selections.setdefault(selection, next_number)
        return rf"\pi_{{{number}}}"

    def _selection(self, flat: Ints, shape: Shape) -> str:
        """The definition of the positions that an index selects."""
        return tex.selection(flat, shape, name=self.positions(flat, shape))

    def _steps_line(self, op: SteppedMatMul, matrix: str, after_steps: str) -> str:
        """The line that says which steps changed a matrix, and along which products."""
        all_entries = [r"\cdot", r"\cdot"]
        products = []
        for left, right in zip(op.left, op.right, strict=True):
            l_name = self.ref(left, all_entries)
            r_name = self.ref(right, all_entries)
            products.append(rf"{l_name} ({r_name})^{{\top}}")
        steps = steps_of(op)
        count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        optimiser = type(steps[-1].optimiser).__name__
        return (
            rf"{after_steps} \text{{: }} {matrix} \text{{ after {count} of"
            rf" {optimiser} along }} {', '.join(products)}"
        )

    def _product_lines(
        self, op: Acting, value: Value, i: Indices, where: str
    ) -> list[str]:
        """The lines of W x: at the first use of W, its law, and then the product.

        After optimiser steps, they are W' x and the sums of l r^T that changed W.
        """
        weight = op.weight.drawn
        member = i[: len(weight.batch)]
        matrix = self.matrix(weight, member)
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
        batch = self.batches[weight.source]
        if index_formulas(weight.members, batch, member, first=1) is None:
            line += rf", \quad {self._selection(weight.members, batch)}"
        if isinstance(op, SteppedMatMul):
            return [line, self._steps_line(op, matrix, after_steps)]
        if value not in self.first_products:
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
            limits = [self.limit(value) for value in self.values]
            return [*chain.from_iterable(limits), *self.shared(self.values)]
        laws = list(chain.from_iterable(self.law(output) for output in outputs))
        lines: list[str] = []
        # A value that a line mentions needs its own line, which may mention others: the
        # lines are written again until they mention no new value.
        count_before = -1
        while count_before < len(self.needed):
            count_before = len(self.needed)
            defined = [value for value in self.values if value in self.needed]
            not_returned = [value for value in defined if value not in outputs]
            limits = [self.limit(value) for value in not_returned]
            lines = [*chain.from_iterable(limits), *self.shared(defined)]
        if not laws:
            return lines
        inside = r" \\ ".join(laws)
        return [*lines, rf"\boxed{{\begin{{gathered}} {inside} \end{{gathered}}}}"]

    def limit(self, value: Value) -> list[str]:
        """The lines of the limit of a value, by the rule of Definition 3.1.

        A covariance is between its entries i and j. The values whose limits these lines
        mention are marked as needed.
        """
        op = value.op
        i = tex.letters(value.shape)
        j = tex.primed(i)
        z = self.z(value, i)
        match op:
            case Constant() | Data() | ops.Hyperparameter() | ops.Root():
                return []
            case ops.Gaussian(mean=mean, factor=factor):
                if not factor.any():  # a multiple of (1, …, 1)
                    return [f"{z} = {tex.constant_vectors(mean, i)[0]}"]
                return [rf"{z} \sim {tex.gaussian_law(mean, factor)}"]
            case ops.Normal(std=std):
                return [f"{z} {tex.normal(std)}"]
            case MatMul(weight=weight) if weight.source in self.transposed:
                return self._both_ways(value)
            case MatMul():
                return [self.covariance(value, value)]
            case Dot(x=x, y=y) if not op.is_score:  # a mean
                left, right = tex.read_indices(value, i)
                return [rf"{z} = {self.product(x, left, y, right)}"]
            case Dot(x=x, y=y):  # a score
                cov = self._score_covariance(value, x, y, i, j)
                return [
                    rf"{z} \text{{ jointly Gaussian, mean 0, independent of all }} Z",
                    rf"\operatorname{{Cov}}({z}, {self.z(value, j)}) = {cov}",
                ]
            case ops.Concat() if isinstance(value, Vector):
                product = self.expectation(value, i, y=value, j=j)
                return [f"{product} = {self.expanded(value, i, value, j)}"]
        # the operation's own formula, for limits instead of values; `self.z` marks
        # its inputs as needed, also if the limit is not known
        formula = op.latex(value, i, tex.Notation(self.z, self.positions))
        if not _applies_to_limits(op):
            return [rf"{z} \text{{ is not known}}"]
        return [f"{z} = {formula}"]

    def law(self, value: Value) -> list[str]:
        """The lines of an output in the box of the paper style."""
        source = tex.matrix_source(value)
        is_gaussian = source is not None and source not in self.transposed
        if not isinstance(value, Vector) or not is_gaussian:
            return self.limit(value)
        i = tex.letters(value.shape)
        j = tex.primed(i)
        condition = self.condition(value)
        z = self.z(value, i)
        other = self.z(value, j)
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
        """The Gaussian part of Z^{Wx}.

        It is all of it, unless the matrix also acts transposed.
        """
        z = self.z(value, i)
        return rf"\hat {z}" if value.op.weight.source in self.transposed else z

    def _both_ways(self, value: Any) -> list[str]:
        """The lines of Z^{Wx} if W also acts transposed.

        It has a Gaussian part, and by Stein's lemma a part σ² E[∂Z^x/∂Ẑ^{W^T y}] Z^y
        from every W^T y, on which x may depend.
        """
        weight = value.op.weight
        i = tex.letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self.uses[weight.source]:
            other_weight = other.op.weight
            if other_weight.transposed == weight.transposed:
                continue
            if _independent(weight, other_weight):
                continue
            z_of_x = self.z(value.op.x, tex.read_indices(value, i)[0])
            j = tex.primed(tex.letters(other.shape))
            over = ",".join(index for index in j if index != "1")
            total = ""
            if over:
                total = rf"\sum_{{{over}}}"
            z_of_y = self.z(other.op.x, tex.read_indices(other, j)[0])
            slope = (
                rf"\mathbb{{E}}\left[\frac{{\partial {z_of_x}}}{{\partial"
                rf" {self.gaussian(other, j)}}}\right]"
            )
            same = self.same(
                weight,
                i=i[: len(weight.batch)],
                other=other_weight,
                j=j[: len(other_weight.batch)],
            )
            factors = [tex.variance(weight), total, same, slope, z_of_y]
            terms.append(" ".join(factor.strip() for factor in factors if factor))
        return [
            self.covariance(value, value),
            f"{self.z(value, i)} = {' + '.join(terms)}",
        ]

    def covariance(self, value: Any, other: Any) -> str:
        """The line of Cov(Z^{Wx}, Z^{Wx'}) for `value` and `other`, maybe the same."""
        i = tex.letters(value.shape)
        j = tex.primed(tex.letters(other.shape))
        condition = self.condition(value, other)
        z = self.gaussian(value, i)
        other_z = self.gaussian(other, j)
        cov = rf"\operatorname{{Cov}}({z}, {other_z}{condition})"
        line = f"{cov} = {self._images(value, i, other, j)}"
        if value is other:
            line = rf"{z} \text{{ Gaussian, mean 0}}, \quad {line}"
        return line

    def shared(self, values: Sequence[Value]) -> list[str]:
        """The lines of covariances between different products W x with one matrix.

        Only products among `values` count. W x and W^T v have independent Gaussian
        parts, and so have products with different matrices of a batch.
        """
        listed = set(values)
        lines = []
        for uses in self.uses.values():
            products = [use for use in uses if use in listed]
            for x, y in combinations(products, 2):
                if x.op.weight.transposed != y.op.weight.transposed:
                    continue
                if not _independent(x.op.weight, y.op.weight):
                    lines.append(self.covariance(x, y))
        return lines

    def _score_covariance(
        self, value: Value, x: Vector, y: Vector, i: Indices, j: Indices
    ) -> str:
        """The covariance of the scores i and j of ⟨x, y⟩.

        It is by Wick's formula, E[x_i x_j] E[y_i y_j] + E[x_i y_j] E[y_i x_j], unless
        their factors have rotary positions.
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
        crossed = self.product(x, x1, y, y2)
        if crossed.core == ZERO:
            return wick
        return rf"{wick} + {crossed} \, {self.product(y, y1, x, x2)}"

    # E[Z^x Z^y]

    def expectation(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y] of entries i and j, given the scores; of data, ⟨x, y⟩/n."""
        if isinstance(x.op, Data) and isinstance(y.op, Data):
            width = tex.grouped(x.width)
            product = rf"\langle {self.ref(x, i)}, {self.ref(y, j)} \rangle"
            return rf"{width}^{{-1}} {product}"
        z_x = self.z(x, i)
        z_y = self.z(y, j)
        return rf"\mathbb{{E}}[{z_x} {z_y}{self.condition(x, y)}]"

    def product(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y] of entries i of x and j of y.

        In the paper style, linear operations are expanded. `used` are the summation
        letters of the sums around it.
        """
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
        """E[Z^{Wx} Z^{Wy}] = σ_W² E[Z^x Z^y] for two products with one weight.

        Between different matrices of a batch it is 0.
        """
        op: Any = value.op
        other_op: Any = other.op
        if _independent(op.weight, other_op.weight):
            return _Sum(over=(), factors=(), core=ZERO)
        member = i[: len(op.weight.batch)]
        other_member = j[: len(other_op.weight.batch)]
        same = self.same(op.weight, i=member, other=other_op.weight, j=other_member)
        x_entry = tex.read_indices(value, i)[0]
        y_entry = tex.read_indices(other, j)[0]
        expectation = self.product(op.x, x_entry, other_op.x, y_entry, used)
        return expectation.times(tex.variance(op.weight), same)

    def expanded(
        self, x: Vector, i: Indices, y: Vector, j: Indices, used: tuple[str, ...] = ()
    ) -> _Sum:
        """E[Z^x Z^y] expanded into the inputs of x and y.

        `used` are the summation letters of the sums around it.
        """
        if self._have_one_matrix(x, y):
            return self._images(x, i, other=y, j=j, used=used)
        letters_in_use = "".join((*i, *j, *used))
        unused = [letter for letter in LETTERS if letter not in letters_in_use]
        letter = unused[0] if unused else None
        if isinstance(x.op, ops.Concat) and x is y and letter:
            return self._expanded_concat(x, i, j, letter, used)
        terms = self._combination(x, i, letter)
        if terms is not None:
            x = terms.vector
            i = terms.entry
        else:
            terms = self._combination(y, j, letter)
            if terms is None:
                return _Sum((), (), self.expectation(x, i, y, j))
            y = terms.vector
            j = terms.entry
        expectation = self.expanded(x, i, y, j, (*used, *terms.over))
        return expectation.times(terms.factor, over=terms.over)

    def _have_one_matrix(self, x: Vector, y: Vector) -> bool:
        """Whether both are products with one weight, which only acts one way."""
        if not isinstance(x.op, MatMul) or not isinstance(y.op, MatMul):
            return False
        source = x.op.weight.source
        return source is y.op.weight.source and source not in self.transposed

    def _expanded_concat(
        self, x: Vector, i: Indices, j: Indices, letter: str, used: tuple[str, ...]
    ) -> _Sum:
        """E[Z^x_i Z^x_j] for a concatenation x: the mean over its parts.

        (1/n) Σ_α over the joint space is the mean of those over the parts.
        """
        op: Any = x.op
        count = op.x.shape[op.axis]
        k = letter if count > 1 else "1"
        entry = tex.read_indices(x, i, k)[0]
        other_entry = tex.read_indices(x, j, k)[0]
        # in the full style the part has its own line
        expectation = self.product(op.x, entry, op.x, other_entry, (*used, k))
        if count == 1:
            return expectation
        return expectation.times(rf"\frac{{1}}{{{count}}}", over=(k,))

    def _combination(
        self, value: Vector, i: Indices, letter: str | None
    ) -> _Terms | None:
        """Entry i of a vector as Σ over `letter` of factors times another vector.

        None if it is not such a combination, or if there is no letter for the sum.
        """
        match value.op:
            case ops.Mix(a=c, x=x) if letter and x.shape[-1] > 1:
                coefficient, entry = tex.read_indices(value, i, letter)
                return _Terms(
                    factor=self.z(c, coefficient), over=(letter,), vector=x, entry=entry
                )
            case ops.Mix(a=c, x=x) | ops.Scale(c=c, x=x) if letter:
                coefficient, entry = tex.read_indices(value, i, "1")
                return _Terms(
                    factor=self.z(c, coefficient), over=(), vector=x, entry=entry
                )
            case ops.Take(Vector() as x) as op:
                entry_of_x = taken_indices(op, i, first=1)
                if entry_of_x is not None:
                    return _Terms(factor="", over=(), vector=x, entry=entry_of_x)
        return None


def _independent(weight: Weight, other: Weight) -> bool:
    """Whether two batches with one source have no matrix in common."""
    return not np.isin(weight.members, other.members).any()


def _batches_of_sources(values: Sequence[Value]) -> dict[Source, Shape]:
    """The shape in which the matrices of each source are numbered.

    It is that of a product with all of them, in order, if there is one; otherwise they
    are numbered along one axis.
    """
    batches: dict[Source, Shape] = {}
    for value in values:
        if isinstance(value.op, Acting):
            weight = value.op.weight
            batches.setdefault(weight.source, (weight.count,))
            in_order = np.arange(weight.count)
            if np.array_equal(weight.members.ravel(), in_order):
                batches[weight.source] = weight.batch
    return batches


def _first_products(uses: Mapping[Source, Sequence[Any]]) -> set[Value]:
    """The products W x that are the first with one of their matrices."""
    first_products: set[Value] = set()
    for products in uses.values():
        seen: set[int] = set()
        for product in products:
            members = set(product.op.weight.members.ravel().tolist())
            if not members <= seen:
                first_products.add(product)
            seen |= members
    return first_products


def _depending_on_scores(values: Sequence[Value]) -> set[Value]:
    """The values that depend on scores or random scalars, and so have random limits.

    A score is n^(−1/2) ⟨x, y⟩, of order 1; a mean ⟨x, y⟩/n, the other power of n, has a
    limit that is a number.
    """
    random: set[Value] = set()
    for value in values:
        op = value.op
        is_score = isinstance(op, Dot) and op.is_score
        is_random = is_score or isinstance(op, ops.Normal)
        if is_random or not random.isdisjoint(op.inputs):
            random.add(value)
    return random


def _depending_on_positions(values: Sequence[Value]) -> set[Value]:
    """The vectors whose coordinates depend on their positions.

    A matrix or a product sums over coordinates, and its result does not.
    """
    rotated: set[Value] = set()
    for value in values:
        op = value.op
        sums_coordinates = isinstance(op, MatMul | Dot)
        inherits = not sums_coordinates and not rotated.isdisjoint(op.inputs)
        if inherits or op.acts is VectorAccess.BY_POSITION:
            rotated.add(value)
    return rotated


def _applies_to_limits(op: Operation) -> bool:
    """Whether the formula of an operation also holds for the limits of its values.

    It does for operations on scalars alone, whose `acts` is None, and for those that
    treat all coordinates alike, except functions of all coordinates at once.
    """
    if isinstance(op, Pool):
        return False
    return op.acts in (None, VectorAccess.LINEARLY, VectorAccess.ON_COORDINATES)


class _Terms(NamedTuple):
    """A vector as Σ over letters of a factor times an entry of another vector."""

    factor: str  # "" for 1
    over: tuple[str, ...]
    vector: Vector
    entry: Indices


def _ratio_of_widths(op: ops.Root) -> str:
    """√(n m/(k l)), for the widths of a root."""
    numerator = " ".join(map(tex.dimension, op.over)) or "1"
    denominator = " ".join(map(tex.dimension, op.under)) or "1"
    return rf"\sqrt{{{numerator}/({denominator})}}"


def _index_ranges(value: Value, i: Indices) -> str:
    """The ranges of the indices of a value, (i ≤ 3), after its formula."""
    ranges = []
    for index, size in zip(i, value.shape, strict=True):
        if size > 1:
            ranges.append(rf"{index} \le {size}")
    if not ranges:
        return ""
    return rf"\qquad ({', '.join(ranges)})"
