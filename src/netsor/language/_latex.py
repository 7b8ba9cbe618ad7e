"""A program and its limit law as LaTeX: Definition 3.1 of the paper, applied.

An array of vectors is written with an index for each axis, g^{(2)}_{ij}; a batch of matrices likewise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from ._check import CONJECTURED, NO_LIMIT, check
from ._function import ADD, MATMUL, MULTIPLY, SUBTRACT
from ._graph import ordered, transposed
from ._names import LETTERS, names_of, taken_indices
from ._narrow import narrow
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
    Normal,
    Root,
    Rotate,
    Scale,
    Source,
    Split,
    Take,
)
from ._print import initial_law
from ._tex import (
    DOCUMENT,
    Indices,
    broadcast_to,
    decimal,
    different_matrices,
    dimension,
    escape,
    gathered,
    kappa,
    letters,
    primed,
    space,
    transposes,
    variance,
)
from ._value import Value, Vector
from ._weight import Weight
from ._width import Width

OPERATORS = {ADD: "+", SUBTRACT: "-", MULTIPLY: r"\cdot", MATMUL: ""}


def latex(name: str, outputs: Sequence[Value], document: bool) -> str:
    """The program with these outputs and its limit law; a whole document, or its body."""
    verdict = check(name, outputs)
    outputs = narrow(outputs)
    values = ordered(outputs)
    writer = _Writer(values)
    program = [line for value in values for line in writer.program(value)]
    result = ", ".join(writer.ref(value, letters(value.shape)) for value in outputs)
    body = [
        rf"\paragraph{{Program}} \texttt{{{escape(name)}}} returns ${result}$, where",
        gathered(program),
        r"\paragraph{Limit law}",
    ]
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


def _broadcast(value: Value, indices: Indices) -> list[str]:
    return broadcast_to(value.shape, indices)


class _Writer:
    def __init__(self, values: Sequence[Value]) -> None:
        self.values = values
        self.names = names_of(values)
        self.transposed = transposed(values)  # sources of which some matrix acts transposed
        self.rotated: set[Value] = set()  # vectors whose coordinates were turned by angles of their own
        self.random: set[Value] = set()  # what depends on scores, and so is random in the limit
        for value in values:
            score = isinstance(value.op, Dot) and value.op.power == 0.5
            if score or any(x in self.random for x in value.op.inputs):
                self.random.add(value)
            passed = not isinstance(value.op, MatMul | Dot) and any(x in self.rotated for x in value.op.inputs)
            if passed or isinstance(value.op, Rotate):
                self.rotated.add(value)

    # Names

    def ref(self, value: Value, indices: Indices) -> str:
        """A value, with its indices."""
        if isinstance(value.op, Constant) and value.size == 1:
            return decimal(value.op.numbers.ravel()[0])
        letter, number = re.fullmatch(r"([a-zA-Z])(\d+)", self.names[value]).groups()  # type: ignore[union-attr]
        return f"{letter}^{{({number})}}" + (f"_{{{','.join(indices)}}}" if indices else "")

    def z(self, value: Value, indices: Indices) -> str:
        """The limit of a value: Z^h of a vector, the limit p° of a score; means and functions of scores likewise."""
        if isinstance(value, Vector):
            return f"Z^{{{self.ref(value, indices)}}}"
        if isinstance(value.op, Constant):
            return self.ref(value, indices)
        return re.sub(r"^([a-zA-Z])", r"\\mathring{\1}", self.ref(value, indices))

    def matrix(self, weight: Weight, indices: Indices) -> str:
        match = re.fullmatch(r"([A-Za-z])(?:\^([A-Za-z0-9]+))?(?:_([0-9]+))?", self.names[weight.source])
        if match is None:
            return rf"\text{{{escape(self.names[weight.source])}}}" + (f"_{{{','.join(indices)}}}" if indices else "")
        base, above, number = match.groups()
        top = ",".join(filter(None, [above, number and f"({number})"]))
        return base + (f"^{{{top}}}" if top else "") + (f"_{{{','.join(indices)}}}" if indices else "")

    # The program, one line an operation

    def program(self, value: Value) -> list[str]:
        """The line of a value; a weight is introduced where it first acts."""
        i = letters(value.shape)
        ranges = ", ".join(rf"{index} \le {size}" for index, size in zip(i, value.shape, strict=True) if size > 1)
        where = rf"\qquad ({ranges})" if ranges else ""
        match value.op:
            case Root(over, under):
                top, bottom = (" ".join(map(dimension, sizes)) or "1" for sizes in (over, under))
                return [rf"{self.ref(value, i)} = \sqrt{{{top}/({bottom})}}"]
            case Constant():
                if value.size == 1:
                    return []
                return [rf"{self.ref(value, i)} \in \mathbb{{R}} \text{{ given}} {where}"]
            case Gaussian(_, mean, factor):
                law = escape(initial_law(mean, factor).replace("…", r"..."))
                coordinate = rf"\text{{ with i.i.d.\ coordinates, {law}}}"
                if not factor.any():
                    coordinate = rf"\text{{ given, {law}}}"
                return [rf"{self.ref(value, i)} \in {space(_width(value))} {coordinate} {where}"]
            case Data():
                return [rf"{self.ref(value, i)} \in {space(_width(value))} \text{{ given}} {where}"]
            case Normal():
                return [rf"{self._drawn(value, self.ref(value, i))} {where}"]
            case MatMul(weight, x, _):
                batch = i[: len(weight.batch)]
                weight = weight.drawn
                entries = rf"\mathcal N(0, {decimal(weight.std**2)}/{dimension(weight.fan)})"
                new = next(v for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source is weight.source)
                size = rf"\mathbb R^{{{dimension(weight.out_width)} \times {dimension(weight.in_width)}}}"
                drawn = rf"{self.matrix(weight, batch)} \in {size} \text{{ with i.i.d.\ entries }} {entries}"
                top = r"^{\top}" if value.op.weight.transposed else ""
                turned = f"({self.matrix(weight, batch)}){top}" if top else self.matrix(weight, batch)
                if value.op.weight.fan != weight.fan:  # the adjoint, which a gradient is made by
                    turned = rf"\sqrt{{{dimension(weight.fan)}/{dimension(value.op.weight.fan)}}} \, {turned}"
                line = f"{self.ref(value, i)} = {turned} {self.ref(x, self._multiplied(value, i))}"
                return ([drawn] if new is value else []) + [f"{line} {where}"]
        return [f"{self.ref(value, i)} = {self.formula(value, i, limit=False)} {where}"]

    def _drawn(self, value: Value, name: str) -> str:
        assert isinstance(value.op, Normal)
        return rf"{name} \sim \mathcal N(0, {decimal(value.op.std**2)}) \text{{ independent}}"

    def _multiplied(self, value: Value, i: Indices) -> Indices:
        assert isinstance(value.op, MatMul)
        return i if value.op.each else i[len(value.op.weight.batch) :]

    def formula(self, value: Value, i: Indices, limit: bool) -> str:
        """The right-hand side of every operation that reads alike at finite width and in the limit."""
        ref = self.z if limit else self.ref
        match value.op:
            case Nonlin(f, vectors, scalars):
                arguments = [ref(v, _broadcast(v, i)) for v in vectors]
                if f in OPERATORS:
                    return f" {OPERATORS[f]} ".join(arguments)
                arguments += [decimal(p) for p in f.parameters]
                given = "; " + ", ".join(ref(p, _broadcast(p, i)) for p in scalars) if scalars else ""
                return rf"\operatorname{{{escape(f.name)}}}({', '.join(arguments)}{given})"
            case Add(x, y):
                return f"{ref(x, _broadcast(x, i))} + {ref(y, _broadcast(y, i))}"
            case Scale(c, x):
                return rf"{ref(c, _broadcast(c, i))} \, {ref(x, _broadcast(x, i))}"
            case Mix(a, x):
                j = LETTERS[len(i)]
                coefficient = ref(a, [*broadcast_to(a.shape[:-2], i[:-1]), "1" if a.shape[-2] == 1 else i[-1], j])
                return rf"\sum_{{{j}}} {coefficient} \, {ref(x, [*broadcast_to(x.shape[:-1], i[:-1]), j])}"
            case Concat(x, axis):
                first, last = ([*i[:axis], k, *i[axis:]] for k in ("1", str(x.shape[axis])))
                return rf"({ref(x, first)}; \dots; {ref(x, last)})"
            case Split(x, axis):
                return rf"({ref(x, [*i[:axis], *i[axis + 1 :]])})_{{\text{{part }} {i[axis]}}}"
            case Dot(x, y, power):
                left, right = self._factors(value, i)
                scale = rf"{dimension(x.width)}^{{{'-1/2' if power == 0.5 else '-1'}}}"
                return rf"{scale} \langle {self.ref(x, left)}, {self.ref(y, right)} \rangle"
            case Apply(f, scalars, axes):
                cut = max(p.ndim for p in scalars) - axes
                arguments = [
                    ref(p, broadcast_to(p.shape[: p.ndim - axes], i[:cut]) + [r"\cdot"] * axes) for p in scalars
                ]
                if f in OPERATORS and axes == 0:
                    return f" {OPERATORS[f]} ".join(arguments)
                arguments += [decimal(p) for p in f.parameters]
                entry = f"_{{{','.join(i[cut:])}}}" if i[cut:] else ""
                return rf"\operatorname{{{escape(f.name)}}}({', '.join(arguments)}){entry}"
            case Rotate(x, _, base, fraction, stretch):
                turned = "" if fraction == 1 else rf"^{{({decimal(fraction)})}}"
                bent = "" if stretch is None else rf"{', '.join(map(decimal, stretch))}, "
                return rf"R{turned}_{{{decimal(base)}, {bent}t({i[-1]})}} \, {ref(x, i)}"
            case Take(x, flat):
                indices = taken_indices(flat, x.shape)
                if indices is None:  # π: a selection that no formula in the indices gives
                    return ref(x, [rf"\pi({','.join(i)})"])
                return ref(x, [str(int(k) + 1) if k.isdigit() else k for k in indices])
            case Join(parts):
                i = [r"\cdot", *i[1:]]
                return rf"({', '.join(ref(part, i) for part in parts)})_{{{LETTERS[0]}}}"
        raise TypeError(f"unknown operation {value.op!r}")

    def _factors(self, value: Value, i: Indices) -> tuple[list[str], list[str]]:
        """The indices of the two factors of a dot."""
        assert isinstance(value.op, Dot)
        x, y = value.op.x, value.op.y
        return [*broadcast_to(x.shape[:-1], i[:-2]), i[-2]], [*broadcast_to(y.shape[:-1], i[:-2]), i[-1]]

    # The limit

    def limit(self, value: Value) -> list[str]:
        """The law of the limit of a value, by the rule of Definition 3.1 for its operation."""
        i = letters(value.shape)
        match value.op:
            case Constant() | Data() | Root():
                return []
            case Gaussian(_, mean, factor):
                law = escape(initial_law(mean, factor).replace("…", "..."))
                if not factor.any():  # a multiple of (1, …, 1)
                    constant = decimal(mean.ravel()[0]) if (mean == mean.ravel()[0]).all() else r"\text{ its mean}"
                    return [f"{self.z(value, i)} = {constant}"]
                return [rf"{self.z(value, i)} \text{{ distributed as {law}}}"]
            case MatMul(weight) if weight.source in self.transposed:
                return self._both_ways(value)
            case MatMul():
                return [self._covariance(value, value)]
            case Normal():
                return [self._drawn(value, self.z(value, i))]
            case Rotate(x, _, base, fraction, stretch):
                assert isinstance(value, Vector)
                j = primed(i)
                turned = rf"\kappa(t({i[-1]}) - t({j[-1]})) \, {self.product(x, i, x, j)}"
                return [rf"{self.product(value, i, value, j)} = {turned}, \quad {kappa(base, fraction, stretch)}"]
            case Dot(x, y, power):
                left, right = self._factors(value, i)
                if power == 1:
                    return [rf"{self.z(value, i)} = {self.product(x, left, y, right)}"]
                other = primed(i)
                left2, right2 = self._factors(value, other)
                cov = rf"\operatorname{{Cov}}({self.z(value, i)}, {self.z(value, other)})"
                wick = rf"{self.product(x, left, x, left2)} \, {self.product(y, right, y, right2)}"
                if not different_matrices(x, y):
                    wick += rf" + {self.product(x, left, y, right2)} \, {self.product(y, right, x, left2)}"
                gaussian = rf"{self.z(value, i)} \text{{ jointly Gaussian, mean 0, independent of all }} Z"
                if x in self.rotated or y in self.rotated:
                    wick = self._rotated_scores(value, i, other)
                return [gaussian, rf"{cov} = {wick}"]
            case Concat(x, axis):
                # (1/n) Σ_α over the joint space is the mean over its parts
                k = LETTERS[len(i)]
                of, with_ = ([*j[:axis], k, *j[axis:]] for j in (i, primed(i)))
                average = rf"\frac{{1}}{{{x.shape[axis]}}} \sum_{{{k}}} {self.product(x, of, x, with_)}"
                assert isinstance(value, Vector)
                return [rf"{self.product(value, i, value, primed(i))} = {average}"]
        return [f"{self.z(value, i)} = {self.formula(value, i, limit=True)}"]

    def gaussian(self, value: Value, i: Indices) -> str:
        """The Gaussian part of Z^{Wx}: all of it, unless the matrix acts transposed too."""
        assert isinstance(value.op, MatMul)
        return ("\\hat " if value.op.weight.source in self.transposed else "") + self.z(value, i)

    def _both_ways(self, value: Value) -> list[str]:
        """Z^{Wx} of a matrix that acts transposed too: a Gaussian part, and what x has of W^T y, by Stein's lemma."""
        assert isinstance(value.op, MatMul)
        weight, x, i = value.op.weight, value.op.x, letters(value.shape)
        terms = [self.gaussian(value, i)]
        for other in self._uses(weight.source):
            assert isinstance(other.op, MatMul)
            if other.op.weight.transposed != weight.transposed:
                j = primed(letters(other.shape))
                of, by = self.z(x, self._multiplied(value, i)), self.z(other.op.x, self._multiplied(other, j))
                slope = rf"\mathbb{{E}}\left[\frac{{\partial {of}}}{{\partial {self.gaussian(other, j)}}}\right]"
                total = rf"\sum_{{{','.join(j)}}} " if j else ""
                terms.append(f"{variance(weight)} {total}{slope} {by}")
        return [self._covariance(value, value), f"{self.z(value, i)} = {' + '.join(terms)}"]

    def _rotated_scores(self, value: Value, i: Indices, j: Indices) -> str:
        """The covariance of scores of rotated vectors, which is no product of covariances of their coordinates."""
        assert isinstance(value.op, Dot)
        x, y = value.op.x, value.op.y
        (x1, y1), (x2, y2) = self._factors(value, i), self._factors(value, j)
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
        given = r" \mid \mathring p" if x in self.random or y in self.random else ""
        return rf"\mathbb{{E}}[{self.z(x, i)} {self.z(y, j)}{given}]"

    def _covariance(self, value: Value, other: Value) -> str:
        """Cov(Z^{Wx}, Z^{Wx'}) = σ_W² E[Z^x Z^x'], zero between different matrices of the batch."""
        assert isinstance(value.op, MatMul)
        assert isinstance(other.op, MatMul)
        weight, x, y = value.op.weight, value.op.x, other.op.x
        i, j = letters(value.shape), primed(letters(other.shape))
        given = r" \mid \mathring p" if value in self.random or other in self.random else ""
        cov = rf"\operatorname{{Cov}}({self.gaussian(value, i)}, {self.gaussian(other, j)}{given})"
        batch = i[: len(weight.batch)], j[: len(other.op.weight.batch)]
        same = (
            rf"\mathbf 1_{{{self.matrix(weight, batch[0])} = {self.matrix(weight, batch[1])}}} \," if any(batch) else ""
        )
        of = self.product(x, self._multiplied(value, i), y, self._multiplied(other, j))
        mean = rf"{self.gaussian(value, i)} \text{{ Gaussian, mean 0}}, \quad " if value is other else ""
        return rf"{mean}{cov} = {same} {variance(weight)} {of}"

    def shared(self) -> list[str]:
        """The covariances between outputs of one matrix that was used more than once."""
        sources = dict.fromkeys(value.op.weight.source for value in self.values if isinstance(value.op, MatMul))
        return [
            self._covariance(first, second)
            for source in sources
            for first, second in combinations(self._uses(source), 2)
            if transposes(first) == transposes(second)  # W x and W^T v are independent in their Gaussian parts
        ]

    def _uses(self, source: Source) -> list[Value]:
        return [v for v in self.values if isinstance(v.op, MatMul) and v.op.weight.source is source]


def _width(value: Value) -> Width:
    assert isinstance(value, Vector)
    return value.width
