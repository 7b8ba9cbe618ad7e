"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

An array of vectors is written with an index for each axis, g^{(2)}_{ij}; a batch of matrices likewise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from . import _notation as tex
from . import _operation as ops
from ._array import Value, VectorAccess
from ._graph import LETTERS, names_of, narrow, topological_order, transposed
from ._notation import Indices
from ._operation import Acting, Constant, Data, Dot, MatMul, Source, SteppedMatMul, steps_of
from ._parameters import Weight
from ._probe import Probe
from ._rotary import Rotate
from ._score import Pool
from ._theorem_check import CONJECTURED, NO_LIMIT, Report
from ._vector import Vector
from ._width import Width


def latex(name: str, outputs: Sequence[Value], verdict: Report, document: bool, probes: Sequence[Probe] = ()) -> str:
    """The program with these outputs, its probes, and its limit law; a whole document, or its body."""
    count, every = len(outputs), narrow([*outputs, *(watched.value for watched in probes)])
    outputs = every[:count]
    values = topological_order(every)
    writer = Writer(values)
    program = [line for value in values for line in writer.program(value)]
    result = ", ".join(writer.ref(value, tex.letters(value.shape)) for value in outputs)
    body = [rf"\paragraph{{Program}} \texttt{{{tex.escape(name)}}} returns ${result}$, where", tex.gathered(program)]
    if probes:
        shown = zip(probes, every[count:], strict=True)
        watched = (rf"{each.name} ${writer.ref(value, tex.letters(value.shape))}$" for each, value in shown)
        body.append(f"Watched: {', '.join(watched)}.")
    body.append(r"\paragraph{Limit law}")
    if verdict.verdict == NO_LIMIT:
        body.append("There is no limit: " + tex.escape("; ".join(verdict.reasons)) + ".")
    else:
        status = "conjectured" if verdict.verdict == CONJECTURED else f"proved, {verdict.theorem}"
        body.append(
            f"({tex.escape(status)}.) As the widths go to infinity, coordinates of the vectors $h$ converge in "
            r"distribution to $Z^{h}$ and the scores $p$ to $\mathring p$; Gaussian variables of different matrices, "
            "of initial vectors and of scores are independent unless a covariance is given."
        )
        limits = [line for value in values for line in writer.limit(value)]
        body.append(tex.gathered(limits + writer.shared(values)))
    text = "\n".join(body)
    return tex.DOCUMENT % text if document else text


class Writer:
    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.names = names_of(values)
        self.transposed = transposed(values)  # sources with a matrix that acts transposed
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
            return tex.decimal(value.op.numbers.ravel()[0])
        letter, number = re.fullmatch(r"([a-zA-Z])(\d+)", self.names[value]).groups()  # type: ignore[union-attr]
        return letter + self.above(letter, number) + tex.below(indices, value.shape)

    def above(self, letter: str, number: str) -> str:
        """What distinguishes values of one letter."""
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
            name = tex.escape(self.names[weight.source]).replace(" ", r"\ ")
            return rf"\mathrm{{{name}}}" + tex.below(indices, weight.batch)
        base, above, number = match.groups()
        shown = number and (f"({number})" if number.isdigit() else rf"\mathrm{{{number}}}")
        top = ",".join(filter(None, [above, shown]))
        return base + (f"^{{{top}}}" if top else "") + tex.below(indices, weight.batch)

    # The program, one line an operation

    def program(self, value: Value) -> list[str]:
        """The line of a value; a weight is introduced where it first acts."""
        op, i = value.op, tex.letters(value.shape)
        ranges = ", ".join(rf"{index} \le {size}" for index, size in zip(i, value.shape, strict=True) if size > 1)
        where, name = rf"\qquad ({ranges})" if ranges else "", self.ref(value, i)
        match op:
            case Constant():
                return [] if value.size == 1 else [rf"{name} \in \mathbb{{R}} \text{{ given}} {where}"]
            case Data(vectors):
                return [rf"{name} \in {tex.space(Width(vectors.shape[-1]))} \text{{ given}} {where}"]
            case ops.Gaussian(_, mean, factor) if isinstance(value, Vector):
                law = tex.escape(tex.initial_law(mean, factor).replace("…", r"..."))
                given = " with independent coordinates" if factor.any() else " given"
                return [rf"{name} \in {tex.space(value.width)} \text{{{given}, {law}}} {where}"]
            case ops.Normal():
                return [rf"{self.drawn(value, name)} {where}"]
            case ops.Hyperparameter(given):
                return [rf"{name} = \text{{{tex.escape(given)}}} \text{{ given}}"]
            case ops.Root(over, under):
                top, bottom = (" ".join(map(tex.dimension, sizes)) or "1" for sizes in (over, under))
                return [rf"{name} = \sqrt{{{top}/({bottom})}}"]
            case MatMul() | SteppedMatMul():
                return self._product_lines(op, value, i, where)
        return [f"{name} = {tex.formula(value, i, self.ref)} {where}"]

    def _product_lines(self, op: Acting, value: Value, i: Indices, where: str) -> list[str]:
        """W x after the law of W, where it first acts; after steps, W' x and the sums of l r^T that moved W."""
        weight = op.weight.drawn
        matrix = self.matrix(weight, i[: len(weight.batch)])
        after = rf"({matrix})^{{({len(steps_of(op))})}}" if steps_of(op) else matrix
        turned = rf"({after})^{{\top}}" if op.weight.transposed else after
        if op.weight.fan != weight.fan:  # the adjoint, which a gradient is made by
            turned = rf"\sqrt{{{tex.dimension(weight.fan)}/{tex.dimension(op.weight.fan)}}} \, {turned}"
        line = f"{self.ref(value, i)} = {turned} {self.ref(op.x, self.multiplied(value, i))} {where}"
        if isinstance(op, SteppedMatMul):
            dots = [r"\cdot"] * 2
            pairs = zip(op.left, op.right, strict=True)
            along = ", ".join(rf"{self.ref(a, dots)} {self.ref(b, dots)}^{{\top}}" for a, b in pairs)
            steps = f"{len(op.steps)} step{'s' * (len(op.steps) > 1)} of {op.steps[-1].optimiser.name}"
            return [line, rf"{after} \text{{: }} {matrix} \text{{ after {steps} along }} {along}"]
        if self.uses(weight.source)[0] is not value:
            return [line]
        entries = rf"\mathcal N(0, {tex.decimal(weight.std**2)}/{tex.dimension(weight.fan)})"
        size = rf"\mathbb R^{{{tex.dimension(weight.out_width)} \times {tex.dimension(weight.in_width)}}}"
        return [rf"{matrix} \in {size} \text{{ with independent entries }} {entries}", line]

    def limit(self, value: Value) -> list[str]:
        """The law of the limit of a value, by the rule of Definition 3.1 for its operation."""
        op, i = value.op, tex.letters(value.shape)
        z, j = self.z(value, i), tex.primed(i)
        match op:
            case Constant() | Data() | ops.Hyperparameter() | ops.Root():
                return []
            case ops.Gaussian(_, mean, factor):
                if not factor.any():  # a multiple of (1, …, 1)
                    one = (mean == mean.ravel()[0]).all()
                    return [f"{z} = " + (tex.decimal(mean.ravel()[0]) if one else r"\text{ its mean}")]
                law = tex.escape(tex.initial_law(mean, factor).replace("…", "..."))
                return [rf"{z} \text{{ distributed as {law}}}"]
            case ops.Normal():
                return [self.drawn(value, z)]
            case MatMul(weight):
                return self.both_ways(value) if weight.source in self.transposed else [self.covariance(value, value)]
            case Dot(x, y, 1.0):
                left, right = tex.factors(op, i)
                return [rf"{z} = {self.product(x, left, y, right)}"]
            case Dot():
                cov = rf"\operatorname{{Cov}}({z}, {self.z(value, j)}) = {self.score_covariance(value, i, j)}"
                return [rf"{z} \text{{ jointly Gaussian, mean 0, independent of all }} Z", cov]
            case ops.Concat(x, axis) if isinstance(value, Vector):
                # (1/n) Σ_α over the joint space is the mean over its parts
                k = LETTERS[len(i)]
                of, with_ = ([*index[:axis], k, *index[axis:]] for index in (i, j))
                average = rf"\frac{{1}}{{{x.shape[axis]}}} \sum_{{{k}}} {self.product(x, of, x, with_)}"
                return [rf"{self.product(value, i, value, j)} = {average}"]
            case Rotate(x, _, base, fraction, stretch) if isinstance(value, Vector):
                turned = rf"\kappa(t({i[-1]}) - t({j[-1]})) \, {self.product(x, i, x, j)}"
                return [rf"{self.product(value, i, value, j)} = {turned}, \quad {tex.kappa(base, fraction, stretch)}"]
        known = op.acts in (None, VectorAccess.LINEARLY, VectorAccess.ON_COORDINATES) and not isinstance(op, Pool)
        return [f"{z} = {tex.formula(value, i, self.z)}" if known else rf"{z} \text{{ is not known}}"]

    def drawn(self, value: Value, name: str) -> str:
        """The law of random scalars."""
        assert isinstance(value.op, ops.Normal)
        return rf"{name} \sim \mathcal N(0, {tex.decimal(value.op.std**2)}) \text{{ independent}}"

    def multiplied(self, value: Value, i: Indices) -> Indices:
        """The indices of x in W x."""
        assert isinstance(value.op, Acting)
        return i if value.op.each else i[len(value.op.weight.batch) :]

    def gaussian(self, value: Value, i: Indices) -> str:
        """The Gaussian part of Z^{Wx}: all of it, unless the matrix acts transposed too."""
        assert isinstance(value.op, MatMul)
        return ("\\hat " if value.op.weight.source in self.transposed else "") + self.z(value, i)

    def both_ways(self, value: Value) -> list[str]:
        """Z^{Wx} of a matrix that acts transposed too: a Gaussian part, and what x has of W^T y, by Stein's lemma."""
        assert isinstance(value.op, MatMul)
        weight, x, i = value.op.weight, value.op.x, tex.letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self.uses(weight.source):
            assert isinstance(other.op, MatMul)
            if other.op.weight.transposed != weight.transposed:
                j = tex.primed(tex.letters(other.shape))
                over = ",".join(index for index in j if index != "1")
                of, by = self.z(x, self.multiplied(value, i)), self.z(other.op.x, self.multiplied(other, j))
                slope = rf"\mathbb{{E}}\left[\frac{{\partial {of}}}{{\partial {self.gaussian(other, j)}}}\right]"
                total = rf"\sum_{{{over}}} " if over else ""
                terms.append(f"{tex.variance(weight)} {total}{slope} {by}")
        return [self.covariance(value, value), f"{self.z(value, i)} = {' + '.join(terms)}"]

    def score_covariance(self, value: Value, i: Indices, j: Indices) -> str:
        """The covariance of two scores: Wick's formula, unless their factors are rotated."""
        assert isinstance(value.op, Dot)
        x, y = value.op.x, value.op.y
        (x1, y1), (x2, y2) = tex.factors(value.op, i), tex.factors(value.op, j)
        wick = rf"{self.product(x, x1, x, x2)} \, {self.product(y, y1, y, y2)}"
        if not tex.different_matrices(x, y):
            wick += rf" + {self.product(x, x1, y, y2)} \, {self.product(y, y1, x, x2)}"
        if x not in self.rotated and y not in self.rotated:
            return wick
        pairs = ((x1, y1), (x2, y2))
        dots = " ".join(rf"\langle {self.ref(x, a)}, {self.ref(y, b)} \rangle" for a, b in pairs)
        cov = rf"\lim {tex.dimension(x.width)}^{{-1}} \, \mathbb{{E}}[{dots}]"
        if isinstance(x.op, Rotate) and isinstance(y.op, Rotate) and tex.different_matrices(x.op.x, y.op.x):
            apart = [f"(t({b[-1]}) - t({a[-1]}))" for a, b in pairs]
            kernels = rf"{self.product(x.op.x, x1, x.op.x, x2)} \, {self.product(y.op.x, y1, y.op.x, y2)}"
            cov += rf" = \kappa({apart[0]} - {apart[1]}) \, {kernels}"
        return cov

    def product(self, x: Vector, i: Indices, y: Vector, j: Indices) -> str:
        """E[Z^x Z^y] given the scores; for data, the mean over its coordinates."""
        if isinstance(x.op, Data) and isinstance(y.op, Data):
            return rf"{tex.dimension(x.width)}^{{-1}} \langle {self.ref(x, i)}, {self.ref(y, j)} \rangle"
        given = self.given(x, y)
        return rf"\mathbb{{E}}[{self.z(x, i)} {self.z(y, j)}{given}]"

    def covariance(self, value: Value, other: Value) -> str:
        """Cov(Z^{Wx}, Z^{Wx'}) = σ_W² E[Z^x Z^x'], zero between different matrices of the batch."""
        assert isinstance(value.op, MatMul)
        assert isinstance(other.op, MatMul)
        weight, x, y = value.op.weight, value.op.x, other.op.x
        i, j = tex.letters(value.shape), tex.primed(tex.letters(other.shape))
        given = self.given(value, other)
        cov = rf"\operatorname{{Cov}}({self.gaussian(value, i)}, {self.gaussian(other, j)}{given})"
        same = self.same(weight, i[: len(weight.batch)], other.op.weight, j[: len(other.op.weight.batch)])
        of = self.product(x, self.multiplied(value, i), y, self.multiplied(other, j))
        mean = rf"{self.gaussian(value, i)} \text{{ Gaussian, mean 0}}, \quad " if value is other else ""
        return f"{mean}{cov} = {' '.join(filter(None, (same, tex.variance(weight), of)))}"

    def same(self, weight: Weight, i: Indices, other: Weight, j: Indices) -> str:
        """1 if two matrices of one batch are the same, else 0; nothing for a single matrix."""
        first, second = self.matrix(weight, i), self.matrix(other, j)
        return "" if first == second else rf"\mathbf 1_{{{first} = {second}}} \,"

    def shared(self, values: Sequence[Value]) -> list[str]:
        """The covariances between those of the values that one matrix made.

        W x and W^T v are independent in their Gaussian parts.
        """
        uses: dict[tuple[Source, bool], list[Value]] = {}
        for value in values:
            if isinstance(value.op, MatMul):
                uses.setdefault((value.op.weight.source, value.op.weight.transposed), []).append(value)
        return [self.covariance(*pair) for same in uses.values() for pair in combinations(same, 2)]

    def uses(self, source: Source) -> list[Value]:
        """The values that a matrix made."""
        return [v for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source is source]
