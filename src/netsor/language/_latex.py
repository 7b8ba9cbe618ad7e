"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

An array of vectors is written with an index for each axis, g^{(2)}_{ij}; a batch of matrices likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from . import _operation as ops
from ._array import Operation, Value, VectorAccess
from ._check import CONJECTURED, NO_LIMIT, Report
from ._graph import LETTERS, names_of, narrow, topological_order, transposed
from ._latex_formulas import (
    DOCUMENT,
    Indices,
    below,
    decimal,
    different_matrices,
    dimension,
    escape,
    factors,
    formula,
    gathered,
    kappa,
    letters,
    primed,
    space,
    transposes,
    variance,
)
from ._operation import Constant, Data, Dot, MatMul, Source, SteppedMatMul
from ._parameters import Weight
from ._print import initial_law
from ._probe import Probe
from ._rotary import Rotate
from ._score import Pool
from ._vector import Vector


def latex(name: str, outputs: Sequence[Value], verdict: Report, document: bool, probes: Sequence[Probe] = ()) -> str:
    """The program with these outputs, what is watched in it, and its limit law; a whole document, or its body."""
    count, every = len(outputs), narrow([*outputs, *(watched.value for watched in probes)])
    outputs = every[:count]
    values = topological_order(every)
    writer = Writer(values)
    program = [line for value in values for line in writer.program(value)]
    result = ", ".join(writer.ref(value, letters(value.shape)) for value in outputs)
    body = [
        rf"\paragraph{{Program}} \texttt{{{escape(name)}}} returns ${result}$, where",
        gathered(program),
    ]
    if probes:
        shown = zip(probes, every[count:], strict=True)
        watched = (rf"{each.name} ${writer.ref(value, letters(value.shape))}$" for each, value in shown)
        body.append(f"Watched: {', '.join(watched)}.")
    body.append(r"\paragraph{Limit law}")
    if verdict.verdict == NO_LIMIT:
        body.append("There is none: " + escape("; ".join(verdict.reasons)) + ".")
    else:
        status = "conjectured" if verdict.verdict == CONJECTURED else f"proved, {verdict.theorem}"
        body.append(
            f"({escape(status)}.) As the widths go to infinity, coordinates of the vectors $h$ converge in "
            r"distribution to $Z^{h}$ and the scores $p$ to $\mathring p$; Gaussian variables of different matrices, "
            "of initial vectors and of scores are independent unless a covariance is given."
        )
        body.append(gathered([line for value in values for line in writer.limit(value)] + writer.shared()))
    text = "\n".join(body)
    return DOCUMENT % text if document else text


class Writer:
    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.names = names_of(values)
        self.transposed = transposed(values)  # sources of which some matrix acts transposed
        self.rotated: set[Value] = set()  # vectors whose coordinates were turned by angles of their own
        self.random: set[Value] = set()  # what depends on scores or random scalars, and so is random in the limit
        normals = any(isinstance(value.op, ops.Normal) for value in values)
        self.known = r"\text{scalars}" if normals else r"\mathring p"  # all that is random there
        for value in values:
            score = isinstance(value.op, ops.Normal) or (isinstance(value.op, Dot) and value.op.power == 0.5)
            if score or any(x in self.random for x in value.op.inputs):
                self.random.add(value)
            passed = not isinstance(value.op, MatMul | Dot) and any(x in self.rotated for x in value.op.inputs)
            if passed or isinstance(value.op, Rotate):
                self.rotated.add(value)

    def given(self, *values: Value) -> str:
        """What an expectation of such values is conditional on."""
        return rf" \mid {self.known}" if any(value in self.random for value in values) else ""

    # Names

    def ref(self, value: Value, indices: Indices) -> str:
        """A value, with its indices."""
        if isinstance(value.op, Constant) and value.size == 1:
            return decimal(value.op.numbers.ravel()[0])
        letter, number = re.fullmatch(r"([a-zA-Z])(\d+)", self.names[value]).groups()  # type: ignore[union-attr]
        return letter + self.above(letter, number) + below(indices, value.shape)

    def above(self, letter: str, number: str) -> str:
        """What tells values of one letter apart."""
        return f"^{{({number})}}"

    def z(self, value: Value, indices: Indices) -> str:
        """The limit of a value: Z^h of a vector, the limit p° of a score; means and functions of scores likewise."""
        if isinstance(value, Vector):
            return f"Z^{{{self.ref(value, indices)}}}"
        if isinstance(value.op, Constant):
            return self.ref(value, indices)
        return re.sub(r"^([a-zA-Z])", r"\\mathring{\1}", self.ref(value, indices))

    def matrix(self, weight: Weight, indices: Indices) -> str:
        match = re.fullmatch(r"([A-Za-z])(?:\^([A-Za-z0-9]+))?(?:_([A-Za-z0-9]+))?", self.names[weight.source])
        if match is None:
            name = escape(self.names[weight.source]).replace(" ", r"\ ")
            return rf"\mathrm{{{name}}}" + below(indices, weight.batch)
        base, above, number = match.groups()
        shown = number and (f"({number})" if number.isdigit() else rf"\mathrm{{{number}}}")
        top = ",".join(filter(None, [above, shown]))
        return base + (f"^{{{top}}}" if top else "") + below(indices, weight.batch)

    # The program, one line an operation

    def program(self, value: Value) -> list[str]:
        """The line of a value; a weight is introduced where it first acts."""
        i = letters(value.shape)
        ranges = ", ".join(rf"{index} \le {size}" for index, size in zip(i, value.shape, strict=True) if size > 1)
        where = rf"\qquad ({ranges})" if ranges else ""
        if type(value.op) in LINES:
            return LINES[type(value.op)](self, value.op, value, i, where)
        return [f"{self.ref(value, i)} = {formula(value, i, self.ref)} {where}"]

    def limit(self, value: Value) -> list[str]:
        """The law of the limit of a value, by the rule of Definition 3.1 for its operation."""
        i = letters(value.shape)
        if type(value.op) in LIMITS:
            return LIMITS[type(value.op)](self, value.op, value, i)
        if value.op.acts in (None, VectorAccess.LINEARLY, VectorAccess.ON_COORDINATES):
            return [f"{self.z(value, i)} = {formula(value, i, self.z)}"]
        return [rf"{self.z(value, i)} \text{{ is not known}}"]

    def drawn(self, value: Value, name: str) -> str:
        """The law of random scalars."""
        assert isinstance(value.op, ops.Normal)
        return rf"{name} \sim \mathcal N(0, {decimal(value.op.std**2)}) \text{{ independent}}"

    def multiplied(self, value: Value, i: Indices) -> Indices:
        """The indices of x in W x."""
        assert isinstance(value.op, MatMul | SteppedMatMul)
        return i if value.op.each else i[len(value.op.weight.batch) :]

    def gaussian(self, value: Value, i: Indices) -> str:
        """The Gaussian part of Z^{Wx}: all of it, unless the matrix acts transposed too."""
        assert isinstance(value.op, MatMul)
        return ("\\hat " if value.op.weight.source in self.transposed else "") + self.z(value, i)

    def both_ways(self, value: Value) -> list[str]:
        """Z^{Wx} of a matrix that acts transposed too: a Gaussian part, and what x has of W^T y, by Stein's lemma."""
        assert isinstance(value.op, MatMul)
        weight, x, i = value.op.weight, value.op.x, letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self.uses(weight.source):
            assert isinstance(other.op, MatMul)
            if other.op.weight.transposed != weight.transposed:
                j = primed(letters(other.shape))
                over = ",".join(index for index in j if index != "1")
                of, by = self.z(x, self.multiplied(value, i)), self.z(other.op.x, self.multiplied(other, j))
                slope = rf"\mathbb{{E}}\left[\frac{{\partial {of}}}{{\partial {self.gaussian(other, j)}}}\right]"
                total = rf"\sum_{{{over}}} " if over else ""
                terms.append(f"{variance(weight)} {total}{slope} {by}")
        return [self.covariance(value, value), f"{self.z(value, i)} = {' + '.join(terms)}"]

    def score_covariance(self, value: Value, i: Indices, j: Indices) -> str:
        """The covariance of two scores: Wick's formula, unless their factors are rotated."""
        assert isinstance(value.op, Dot)
        x, y = value.op.x, value.op.y
        (x1, y1), (x2, y2) = factors(value.op, i), factors(value.op, j)
        wick = (
            rf"{self.product(x, x1, x, x2)} \, {self.product(y, y1, y, y2)}"  # the paper style defines what this names
        )
        if not different_matrices(x, y):
            wick += rf" + {self.product(x, x1, y, y2)} \, {self.product(y, y1, x, x2)}"
        if x not in self.rotated and y not in self.rotated:
            return wick
        pairs = ((x1, y1), (x2, y2))
        dots = " ".join(rf"\langle {self.ref(x, a)}, {self.ref(y, b)} \rangle" for a, b in pairs)
        cov = rf"\lim {dimension(x.width)}^{{-1}} \, \mathbb{{E}}[{dots}]"
        if isinstance(x.op, Rotate) and isinstance(y.op, Rotate) and different_matrices(x.op.x, y.op.x):
            apart = [f"(t({b[-1]}) - t({a[-1]}))" for a, b in pairs]
            kernels = rf"{self.product(x.op.x, x1, x.op.x, x2)} \, {self.product(y.op.x, y1, y.op.x, y2)}"
            cov += rf" = \kappa({apart[0]} - {apart[1]}) \, {kernels}"
        return cov

    def product(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y] given the scores; for data, the mean over its coordinates."""
        if isinstance(x.op, Data) and isinstance(y.op, Data):
            return rf"{dimension(x.width)}^{{-1}} \langle {self.ref(x, i)}, {self.ref(y, j)} \rangle"
        given = self.given(x, y)
        return rf"\mathbb{{E}}[{self.z(x, i)} {self.z(y, j)}{given}]"

    def covariance(self, value: Value, other: Value) -> str:
        """Cov(Z^{Wx}, Z^{Wx'}) = σ_W² E[Z^x Z^x'], zero between different matrices of the batch."""
        assert isinstance(value.op, MatMul)
        assert isinstance(other.op, MatMul)
        weight, x, y = value.op.weight, value.op.x, other.op.x
        i, j = letters(value.shape), primed(letters(other.shape))
        given = self.given(value, other)
        cov = rf"\operatorname{{Cov}}({self.gaussian(value, i)}, {self.gaussian(other, j)}{given})"
        same = self.same(weight, i[: len(weight.batch)], other.op.weight, j[: len(other.op.weight.batch)])
        of = self.product(x, self.multiplied(value, i), y, self.multiplied(other, j))
        mean = rf"{self.gaussian(value, i)} \text{{ Gaussian, mean 0}}, \quad " if value is other else ""
        return f"{mean}{cov} = {' '.join(filter(None, (same, variance(weight), of)))}"

    def same(self, weight: Weight, i: Indices, other: Weight, j: Indices) -> str:
        """1 if two matrices of one batch are the same, else 0; nothing for a single matrix."""
        first, second = self.matrix(weight, i), self.matrix(other, j)
        return "" if first == second else rf"\mathbf 1_{{{first} = {second}}} \,"

    def shared(self) -> list[str]:
        """The covariances between outputs of one matrix that was used more than once."""
        sources = dict.fromkeys(value.op.weight.source for value in self.values if isinstance(value.op, MatMul))
        return [
            self.covariance(first, second)
            for source in sources
            for first, second in combinations(self.uses(source), 2)
            if transposes(first) == transposes(second)  # W x and W^T v are independent in their Gaussian parts
        ]

    def uses(self, source: Source) -> list[Value]:
        """The values that a matrix made."""
        return [v for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source is source]


# What introduces something new is a line of its own kind: `rule(w, op, value, i, where)`


def _given(w: Writer, op: Data, value: Vector, i: Indices, where: str) -> list[str]:
    return [rf"{w.ref(value, i)} \in {space(value.width)} \text{{ given}} {where}"]


def _numbers(w: Writer, op: Constant, value: Value, i: Indices, where: str) -> list[str]:
    return [] if value.size == 1 else [rf"{w.ref(value, i)} \in \mathbb{{R}} \text{{ given}} {where}"]


def _hyperparameter(w: Writer, op: ops.Hyperparameter, value: Value, i: Indices, where: str) -> list[str]:
    return [rf"{w.ref(value, i)} = \text{{{escape(op.name)}}} \text{{ given}}"]


def _root(w: Writer, op: ops.Root, value: Value, i: Indices, where: str) -> list[str]:
    top, bottom = (" ".join(map(dimension, sizes)) or "1" for sizes in (op.over, op.under))
    return [rf"{w.ref(value, i)} = \sqrt{{{top}/({bottom})}}"]


def _initial(w: Writer, op: ops.Gaussian, value: Vector, i: Indices, where: str) -> list[str]:
    law = escape(initial_law(op.mean, op.factor).replace("…", r"..."))
    coordinate = rf"\text{{ with independent coordinates, {law}}}" if op.factor.any() else rf"\text{{ given, {law}}}"
    return [rf"{w.ref(value, i)} \in {space(value.width)} {coordinate} {where}"]


def _matmul(w: Writer, op: MatMul, value: Vector, i: Indices, where: str) -> list[str]:
    batch, weight = i[: len(op.weight.batch)], op.weight.drawn
    entries = rf"\mathcal N(0, {decimal(weight.std**2)}/{dimension(weight.fan)})"
    size = rf"\mathbb R^{{{dimension(weight.out_width)} \times {dimension(weight.in_width)}}}"
    drawn = rf"{w.matrix(weight, batch)} \in {size} \text{{ with independent entries }} {entries}"
    turned = rf"({w.matrix(weight, batch)})^{{\top}}" if op.weight.transposed else w.matrix(weight, batch)
    if op.weight.fan != weight.fan:  # the adjoint, which a gradient is made by
        turned = rf"\sqrt{{{dimension(weight.fan)}/{dimension(op.weight.fan)}}} \, {turned}"
    line = f"{w.ref(value, i)} = {turned} {w.ref(op.x, w.multiplied(value, i))}"
    return ([drawn] if w.uses(weight.source)[0] is value else []) + [f"{line} {where}"]


def _stepped(w: Writer, op: SteppedMatMul, value: Vector, i: Indices, where: str) -> list[str]:
    """W' x, and by which sums of l r^T its steps moved W."""
    matrix = w.matrix(op.weight.drawn, i[: len(op.weight.batch)])
    after = rf"({matrix})^{{({len(op.steps)})}}"  # after so many steps
    turned = rf"({after})^{{\top}}" if op.weight.transposed else after
    if op.weight.fan != op.weight.drawn.fan:
        turned = rf"\sqrt{{{dimension(op.weight.drawn.fan)}/{dimension(op.weight.fan)}}} \, {turned}"
    dots = [r"\cdot"] * 2
    pairs = [rf"{w.ref(a, dots)} {w.ref(b, dots)}^{{\top}}" for a, b in zip(op.left, op.right, strict=True)]
    steps = f"{len(op.steps)} step{'s' * (len(op.steps) > 1)} of {op.steps[-1].optimiser.name}"
    moved = rf"{after} \text{{: }} {matrix} \text{{ after {steps} along }} {', '.join(pairs)}"
    return [f"{w.ref(value, i)} = {turned} {w.ref(op.x, w.multiplied(value, i))} {where}", moved]


LINES: dict[type[Operation], Callable[[Writer, Any, Any, Indices, str], list[str]]] = {
    Constant: _numbers,
    Data: _given,
    ops.Gaussian: _initial,
    ops.Normal: lambda w, op, value, i, where: [rf"{w.drawn(value, w.ref(value, i))} {where}"],
    ops.Hyperparameter: _hyperparameter,
    ops.Root: _root,
    MatMul: _matmul,
    SteppedMatMul: _stepped,
}

# The limits that are not the formulas of the program, with Z in place of vectors: `rule(w, op, value, i)`


def _initial_limit(w: Writer, op: ops.Gaussian, value: Vector, i: Indices) -> list[str]:
    law = escape(initial_law(op.mean, op.factor).replace("…", "..."))
    if not op.factor.any():  # a multiple of (1, …, 1)
        constant = decimal(op.mean.ravel()[0]) if (op.mean == op.mean.ravel()[0]).all() else r"\text{ its mean}"
        return [f"{w.z(value, i)} = {constant}"]
    return [rf"{w.z(value, i)} \text{{ distributed as {law}}}"]


def _matmul_limit(w: Writer, op: MatMul, value: Vector, i: Indices) -> list[str]:
    return w.both_ways(value) if op.weight.source in w.transposed else [w.covariance(value, value)]


def _dot_limit(w: Writer, op: Dot, value: Value, i: Indices) -> list[str]:
    if op.power == 1:
        left, right = factors(op, i)
        return [rf"{w.z(value, i)} = {w.product(op.x, left, op.y, right)}"]
    j = primed(i)
    cov = rf"\operatorname{{Cov}}({w.z(value, i)}, {w.z(value, j)}) = {w.score_covariance(value, i, j)}"
    return [rf"{w.z(value, i)} \text{{ jointly Gaussian, mean 0, independent of all }} Z", cov]


def _concat_limit(w: Writer, op: ops.Concat, value: Vector, i: Indices) -> list[str]:
    """(1/n) Σ_α over the joint space is the mean over its parts."""
    x, axis, k = op.x, op.axis, LETTERS[len(i)]
    of, with_ = ([*j[:axis], k, *j[axis:]] for j in (i, primed(i)))
    average = rf"\frac{{1}}{{{x.shape[axis]}}} \sum_{{{k}}} {w.product(x, of, x, with_)}"
    return [rf"{w.product(value, i, value, primed(i))} = {average}"]


def _rotate_limit(w: Writer, op: Rotate, value: Vector, i: Indices) -> list[str]:
    j = primed(i)
    turned = rf"\kappa(t({i[-1]}) - t({j[-1]})) \, {w.product(op.x, i, op.x, j)}"
    return [rf"{w.product(value, i, value, j)} = {turned}, \quad {kappa(op.base, op.fraction, op.stretch)}"]


LIMITS: dict[type[Operation], Callable[[Writer, Any, Any, Indices], list[str]]] = {
    **dict.fromkeys((Constant, Data, ops.Hyperparameter, ops.Root), lambda w, op, value, i: []),
    ops.Gaussian: _initial_limit,
    ops.Normal: lambda w, op, value, i: [w.drawn(value, w.z(value, i))],
    MatMul: _matmul_limit,
    Dot: _dot_limit,
    ops.Concat: _concat_limit,
    Rotate: _rotate_limit,
    Pool: lambda w, op, value, i: [rf"{w.z(value, i)} \text{{ is not known}}"],
}
