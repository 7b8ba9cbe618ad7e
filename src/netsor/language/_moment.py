"""The sign of E[Z^x Z^y], for two vectors of a program, where it can be told without sampling.

A score n^(−1/2) ⟨x, y⟩ has a limit only if E[Z^x Z^y] = 0: else it grows like n^(1/2). Both vectors are expanded in the
columns of `_expand`, and the moments of pairs of columns follow from Definition 3.1 (matrices are independent,
E[Z^{Wx} Z^{Wx'}] = σ_W² E[Z^x Z^x']) and from what is known of the library's functions: parity, sign, monotonicity. Of
a user's function nothing is known, so mostly nothing is said. Everything holds given the scores p°, which are
independent of the Z.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np

from .. import activations as known
from ..activations import Function, row_softmax
from ..derivatives import base
from ._expand import Entry, Expansion, Kind, places_read, vectors_read
from ._function import MULTIPLY
from ._operation import Apply, Concat, Data, Dot, MatMul, Mix, Nonlin, Normal, Scale, Split, Take
from ._rotary import Rotate
from ._score import rsqrt
from ._value import Value

Moment = float | str  # a number, or "+" (above 0), "−" (below 0), "?" (not known)

LONGEST = 100  # columns of a vector that are gone through


LEAKY, CLIP = base(known.leaky_relu(0.5)), base(known.clip(1.0))
RELU, ABS, SIGMOID = base(known.RELU), base(known.ABS), base(known.SIGMOID)
RISING = {base(known.IDENTITY), base(known.TANH), base(known.ERF), CLIP}  # odd, nowhere falling
NOT_NEGATIVE = {RELU, ABS, SIGMOID}
ZERO_AT_ZERO = {*RISING, ABS, base(known.GELU), base(known.SILU)}  # and nowhere else
# For Gaussian v of mean 0 and positive variance: E[φ'(v)] > 0, and E[φ(v)] > 0
POSITIVE_SLOPE = {*RISING, RELU, SIGMOID, base(known.GELU), base(known.SILU), base(known.SIN)}
POSITIVE_MEAN = {RELU, ABS, SIGMOID, base(known.GELU), base(known.SILU), base(known.COS)}


def total(terms: Iterable[tuple[float, Moment]]) -> Moment:
    """Σ c·m; numbers that cancel up to rounding are 0."""
    number, size = 0.0, 0.0
    signs: set[str] = set()
    for c, m in terms:
        if isinstance(m, str):
            signs.add(m if c > 0 or m == "?" else "−" if m == "+" else "+")
        else:
            number, size = number + c * m, size + abs(c * m)
    if abs(number) <= 1e-12 * size:
        number = 0.0
    if not signs:
        return number
    if number:
        signs.add("+" if number > 0 else "−")
    return signs.pop() if len(signs) == 1 else "?"


def product(a: Moment, b: Moment) -> Moment:
    """The product of two moments."""
    if a == 0 or b == 0:
        return 0.0
    if not isinstance(a, str) and not isinstance(b, str):
        return a * b
    first, second = sign(a), sign(b)
    return "?" if "?" in (first, second) else "+" if first == second else "−"


def sign(m: Moment) -> str:
    """ "+", "−", "0" or "?"."""
    return m if isinstance(m, str) else "+" if m > 0 else "−" if m < 0 else "0"


class Moments:
    """The moments of one program."""

    def __init__(self, expansion: Expansion) -> None:
        self.at = expansion
        self._known: dict[tuple[int, int], Moment] = {}
        self._depends: dict[int, frozenset[int]] = {}
        self._parities: dict[int, int] = {}
        self._kind = expansion.kind.tolist()  # numpy compares its integers slowly with an enumeration

    def of(self, x: Entry, y: Entry) -> Moment:
        """E[Z^x Z^y]."""
        first, second = self.at.row(x), self.at.row(y)
        if max(len(first), len(second)) > LONGEST:
            return "?"
        found = total((c * d, self._pair(a, b)) for a, c in first for b, d in second)
        return self._square(first) if found == "?" and first == second else found

    def _square(self, row: list[tuple[int, float]]) -> Moment:
        """E[(Z^x)²] > 0 if some column of x is independent of the others, and not 0."""
        for a, _ in row:
            own = self.at.matrix[a]
            apart = own >= 0 and not any(own in self._sources(b) for b, _ in row if b != a)
            if apart and sign(self._pair(a, a)) == "+":
                return "+"
        return "?"

    def mean(self, x: Entry) -> Moment:
        """E[Z^x]."""
        row = self.at.row(x)
        return "?" if len(row) > LONGEST else total((c, self._mean(a)) for a, c in row)

    def _pair(self, a: int, b: int) -> Moment:
        key = min(a, b), max(a, b)
        if key not in self._known:
            self._known[key] = "?"
            self._known[key] = self._found(*key)
        return self._known[key]

    def _found(self, a: int, b: int) -> Moment:
        at = self.at
        kinds = self._kind[a], self._kind[b]
        if Kind.OTHER not in kinds:
            if at.matrix[a] != at.matrix[b]:
                return 0.0
            if kinds[0] != Kind.PRODUCT:  # (1, …, 1) or E_k with itself
                return 1.0
            return product(float(at.variance[a]), self.of(at.entry(a), at.entry(b)))
        given = [self._value(c).op for c in (a, b) if self._kind[c] == Kind.OTHER]
        if any(isinstance(op, MatMul) for op in given):  # a matrix beside its transpose: Z is not Gaussian alone
            return "?"
        if all(isinstance(op, Data) for op in given) and len(given) == 2:
            return self._inner(at.entry(a), at.entry(b))
        if "0" in (self._factor(a), self._factor(b)):
            return 0.0
        if a == b and self._not_zero(a):
            return "+"
        if not self._sources(a) & self._sources(b):
            return product(self._mean(a), self._mean(b))
        if {self._parity(a), self._parity(b)} == {-1, 1}:
            return 0.0
        return self._linked(a, b)

    def _linked(self, a: int, b: int) -> Moment:
        """Two columns that share a source, the second or both from an operation that is not linear."""
        x, y = self._function(a), self._function(b)
        if isinstance(self._value(a).op, Concat) and isinstance(self._value(b).op, Concat):
            return self._blocks(self.at.entry(a), self.at.entry(b))
        if not (self._gaussian(a) and self._gaussian(b)):
            return "?"
        arguments = [self.at.row(v[1]) if v else [(c, 1.0)] for c, v in ((a, x), (b, y))]
        correlation = total((c * d, self._pair(i, j)) for i, c in arguments[0] for j, d in arguments[1])
        functions = [v[0] if v else None for v in (x, y)]
        if None in functions:  # Stein: E[u φ(v)] = E[u v] E[φ'(v)]
            (f,) = (f for f in functions if f is not None)
            return correlation if correlation == 0 else sign(correlation) if base(f) in POSITIVE_SLOPE else "?"
        bases = [base(f) for f in functions if f is not None]
        if all(f in RISING for f in bases):  # Price: it rises with E[u v], and is 0 with it
            return 0.0 if correlation == 0 else sign(correlation)
        alive = all(v is not None and self._alive(v[1]) for v in (x, y))
        if alive and all(f in NOT_NEGATIVE for f in bases) and (RELU not in bases or sign(correlation) in ("0", "+")):
            return "+"  # relu(u) relu(−u) = 0, so that u and v must not be opposite
        return "?"

    def _inner(self, x: Entry, y: Entry) -> float:
        first, second = (v.op.vectors.reshape(v.size, -1)[i] for v, i in (x, y) if isinstance(v.op, Data))
        return total([(1.0 / first.size, float(u)) for u in first * second])  # type: ignore[return-value]

    def _blocks(self, x: Entry, y: Entry) -> Moment:
        """(1/n) Σ_α over a concatenation is the mean over its parts."""
        first, second = (vectors_read(entry) for entry in (x, y))
        if len(first) != len(second):
            return "?"
        return total((1.0 / len(first), self.of(u, v)) for u, v in zip(first, second, strict=True))

    def _mean(self, a: int) -> Moment:
        if self._kind[a] != Kind.OTHER:
            return 1.0 if self._kind[a] == Kind.ONES else 0.0
        if self._parity(a) == -1:
            return 0.0
        found = self._function(a)
        if found is None:
            return "?"
        f, argument = found
        if base(f) is SIGMOID:
            return "+"
        if not (self._gaussian(a) and self._alive(argument)):
            return "?"
        if base(f) is LEAKY:
            return 0.0 if f.parameters[0] == 1 else "+" if f.parameters[0] < 1 else "−"
        return "+" if base(f) in POSITIVE_MEAN else "?"

    # What a column is

    def _value(self, a: int) -> Value:
        return self.at.entry(a)[0]

    def _function(self, a: int) -> tuple[Function, Entry] | None:
        """φ and u of a column φ(u)."""
        if self._kind[a] != Kind.OTHER:
            return None
        value, position = self.at.entry(a)
        match value.op:
            case Nonlin(f, (u,), ()):
                return f, (u, position)
        return None

    def _gaussian(self, a: int) -> bool:
        """Whether the column, or the argument of its function, is Gaussian of mean 0 in the limit."""
        if self._kind[a] != Kind.OTHER:
            return bool(self._kind[a] != Kind.ONES)
        found = self._function(a)
        return found is not None and all(self._kind[c] in (Kind.NORMAL, Kind.PRODUCT) for c, _ in self.at.row(found[1]))

    def _alive(self, x: Entry) -> bool:
        return sign(self.of(x, x)) == "+"

    def _not_zero(self, a: int) -> bool:
        """Whether a column is known not to be the vector 0."""
        inputs = vectors_read(self.at.entry(a))
        match self._value(a).op:
            case Nonlin(f, vectors, scalars):
                if base(f) is SIGMOID:
                    return True
                if not all(map(self._alive, inputs)):
                    return False
                if base(f) in ZERO_AT_ZERO or f is MULTIPLY:
                    return True
                if any(self._kind[c] == Kind.OTHER for entry in inputs for c, _ in self.at.row(entry)):
                    return False
                # a function of Gaussian vectors, then: it must not be 0 at a hundred numbers
                normals = np.random.default_rng(0).standard_normal((len(vectors) + len(scalars), 100))
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    return bool(np.any(f(*normals)))
            case Scale() | Rotate():
                return self._factor(a) != "?" and self._alive(inputs[0])
            case Mix(a=Value(op=Apply(f))) if base(f) is row_softmax:
                return all(map(self._alive, inputs))
            case Concat():
                return any(map(self._alive, inputs))
        return False

    def _factor(self, a: int) -> str:
        """What is known of the scalar of a column c·x: "0", "≠" (not 0) or "?"; of other columns, "≠"."""
        if self._kind[a] != Kind.OTHER:
            return "≠"
        value, position = self.at.entry(a)
        if not isinstance(value.op, Scale):
            return "≠"
        return self._scalar(value.op.c, places_read(value, position)[0][0])

    def _scalar(self, p: Value, position: int) -> str:
        match p.op:
            case Take(q, flat):
                return self._scalar(q, int(flat.ravel()[position]))
            case Normal(std=std):
                return "≠" if std > 0 else "0"
            case Apply(f) if base(f) in (row_softmax, rsqrt, SIGMOID):
                return "≠"
            case Dot(power=1.0):  # a mean: in the limit, the moment
                found = sign(self.of(*vectors_read((p, position))))
                return found if found in "0?" else "≠"
        return "?"

    def _sources(self, a: int) -> frozenset[int]:
        """The matrices and E_k that Z of a column is a function of; those of x in W x are not among them."""
        if self._kind[a] != Kind.OTHER:
            return frozenset() if self._kind[a] == Kind.ONES else frozenset([int(self.at.matrix[a])])
        if a not in self._depends:
            value, _ = self.at.entry(a)
            if isinstance(value.op, MatMul):  # it may depend on all that its matrix acted on
                return frozenset(self.at.matrix.tolist())
            columns = {c for entry in vectors_read(self.at.entry(a)) for c, _ in self.at.row(entry)}
            self._depends[a] = frozenset().union(*(self._sources(c) for c in columns))
        return self._depends[a]

    def _parity(self, a: int) -> int:
        """1 if Z stays, −1 if it turns when all Gaussian variables change sign (their law stays); 0 if neither."""
        if self._kind[a] != Kind.OTHER:
            return 1 if self._kind[a] == Kind.ONES else -1
        if a not in self._parities:
            self._parities[a] = self._parity_of(a)
        return self._parities[a]

    def _parity_of(self, a: int) -> int:
        if isinstance(self._value(a).op, MatMul | Concat | Split):  # no functions, coordinate by coordinate
            return 0
        parities = []
        for entry in vectors_read(self.at.entry(a)):
            of_columns = {self._parity(c) for c, _ in self.at.row(entry)}
            parities.append(of_columns.pop() if len(of_columns) == 1 else 0 if of_columns else 1)
        if all(p == 1 for p in parities):
            return 1
        match self._value(a).op:
            case Nonlin(f) if f is MULTIPLY:
                return parities[0] * parities[1]
            case Nonlin(f, (_,), ()) if f.parity is not None:
                return parities[0] if f.parity == -1 else abs(parities[0])
            case Scale() | Mix() | Rotate():
                return parities[0] if len(set(parities)) == 1 else 0
        return 0
