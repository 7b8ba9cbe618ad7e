"""The arithmetic of optimisers: linear combinations, numbers that depend on the widths,
Muon's orthogonalisation.

A learning rate may be a function of the widths. At infinite widths, its power of n is
found by evaluating it at huge ones. Powers in a coefficient add up; the result must be
of order 1, or of order n^(−1/2), which can change a score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, array_namespace
from ...language.operations._operation import (
    Root,
    SteppedMatMul,
    SteppedParameter,
    scalars_of,
)
from ...language.values._array import Value
from ...language.values._scalar import Scalar, constant
from ...language.values._width import Width
from ...optim import MUON_SINGULAR_VALUE_RTOL, Coefficients, Rates
from .._exceptions import ExactError, GrowingStepError

# powers of 2: widths at which the order of a number is measured
LOG2_PROBE_WIDTHS = (40, 50, 60)

Powers = tuple[tuple[str, float], ...]  # powers of infinite widths, by name
Number = Any  # a float, or a scalar of the program
WidthFunction = Callable[[Mapping[str, float]], float]


class Order(NamedTuple):
    """A number, or a number times n^(−1/2) for an infinite width n."""

    number: Number
    unit: str | None = None

    def times(self, x: Any) -> Any:
        """The product with a value."""
        is_one = isinstance(self.number, float) and self.number == 1
        product = x if is_one else value_of(self.number) * x
        if self.unit is None:
            return product
        return Scalar(Root((), (Width(self.unit),)), ()) * product


def value_of(number: Number) -> Scalar:
    """A number as a value of the program."""
    return number if isinstance(number, Scalar) else constant(np.asarray(number))


def largest(bound: Mapping[str, float]) -> dict[str, float]:
    """The widths, with a large number in place of infinity."""
    return {
        name: size if math.isfinite(size) else 2.0 ** LOG2_PROBE_WIDTHS[-1]
        for name, size in bound.items()
    }


@dataclass(frozen=True, eq=False)
class Combination:
    """Σ c n^p a over terms a (matrices or vectors) and powers p of infinite widths n; a
    number has a = None.
    """

    terms: Mapping[tuple[Any, Powers], Number]

    @classmethod
    def of(cls, term: Any) -> Combination:
        """A single term."""
        return cls({(term, ()): 1.0})

    def __add__(self, other: Combination | Number) -> Combination:
        total = dict(self.terms)
        for key, number in _combination(other).terms.items():
            total[key] = total[key] + number if key in total else number
        return Combination(total)

    def __mul__(self, other: Combination | Number) -> Combination:
        """One of the factors must be a number."""
        product = Combination({})
        for (term, powers), number in self.terms.items():
            for (other_term, other_powers), factor in _combination(other).terms.items():
                key = (
                    other_term if term is None else term,
                    _product_of_powers(powers, other_powers),
                )
                product = product + Combination({key: number * factor})
        return product

    __rmul__ = __mul__

    def __sub__(self, other: Combination) -> Combination:
        return self + other * -1.0

    def __rsub__(self, other: float) -> Combination:
        return self * -1.0 + other

    def coefficients(self) -> dict[Any, Combination]:
        """The coefficient of each term."""
        numbers: dict[Any, dict[tuple[None, Powers], Number]] = {}
        for (term, powers), number in self.terms.items():
            numbers.setdefault(term, {})[None, powers] = number
        return {term: Combination(number) for term, number in numbers.items()}

    def orders(self, value: Value, of: str) -> list[Order]:
        """The limit of a number; raises an error if it grows, and drops parts that
        vanish faster than n^(−1/2).
        """
        orders = []
        for (_, powers), number in self.terms.items():
            total = sum(power for _, power in powers)
            if isinstance(number, float) and number == 0:
                continue
            if len(powers) > 1 or total > 0:
                grows = " ".join(f"{name}^({power:g})" for name, power in powers)
                raise GrowingStepError(
                    value,
                    f"a step of {of} changes its output by order {grows}, which has no"
                    " limit",
                    instead=(
                        f"let its lr fall faster with the widths, by a factor {grows},"
                        " or bind them to numbers"
                    ),
                )
            if not powers or total == -0.5:
                orders.append(Order(number, powers[0][0] if powers else None))
        return orders


def _combination(x: Combination | Number) -> Combination:
    return x if isinstance(x, Combination) else Combination({(None, ()): x})


def _product_of_powers(a: Powers, b: Powers) -> Powers:
    """The product of two products of powers of widths, without powers 0."""
    exponents = Counter(dict(a))
    exponents.update(dict(b))
    return tuple(sorted((name, power) for name, power in exponents.items() if power))


def number_at(
    rate: WidthFunction, bound: Mapping[str, float], value: Value, of: str
) -> Combination:
    """Evaluate a number that depends on the widths, in a step of a parameter."""
    large = largest(bound)
    number = rate(large)
    powers: dict[str, float] = {}
    infinite_widths = [name for name, size in bound.items() if math.isinf(size)]
    if number == 0:  # at every width
        infinite_widths = []
    for name in infinite_widths:
        sizes = np.log2([abs(rate({**large, name: 2.0**k})) for k in LOG2_PROBE_WIDTHS])
        slopes = np.diff(sizes) / np.diff(LOG2_PROBE_WIDTHS)
        power = round(2 * float(slopes[-1])) / 2  # a multiple of 1/2
        if np.abs(slopes - power).max() > 1e-6:
            raise ExactError(
                value,
                f"a step of {of} with a learning rate that is not a power of {name} at"
                " large widths",
                instead=(
                    f"let lr be a power of the widths times a number, or bind {name} to"
                    " a number"
                ),
            )
        if power:
            powers[name] = power
            number *= 2.0 ** (-LOG2_PROBE_WIDTHS[-1] * power)
    return Combination({(None, tuple(sorted(powers.items()))): float(number)})


def rates_of(
    op: SteppedMatMul | SteppedParameter,
    number: int,
    bound: Mapping[str, float],
    at: Callable[[WidthFunction], Any],
) -> Rates:
    """The numbers of a step; `at` evaluates functions of the widths."""
    rule = op.steps[number] if isinstance(op, SteppedMatMul) else op.rule
    lr, decay = scalars_of(op, number)
    return Rates(
        lr=at(rule.rate) * lr,
        adjusted=at(rule.adjusted) * lr,
        decay=at(lambda _: rule.weight_decay) * decay,
        eps=rule.eps(largest(bound)),
    )


# Muon's orthogonalised matrix from Gram matrices, without computing any entry of a
# gradient. G = Σ_k s_k l_k r_k^T has the polar factor l M r^T/√(out · in), where M
# depends on the Gram matrices A = ⟨l, l⟩/out and B = ⟨r, r⟩/in alone. Write l_k = |l_k|
# Q_A (Λ_A^(1/2) U_A^T)_k with U_A Λ_A U_A^T the correlations of the l_k and Q_A
# orthonormal, and r likewise. In the bases Q_A and Q_B the gradient is the small matrix
# T = Λ_A^(1/2) U_A^T S U_B Λ_B^(1/2), S = diag(s_k |l_k| |r_k|), and its SVD gives M.
# Dependent uses (a token that occurs twice) give eigenvalues 0, which are dropped. So
# are singular values below 1e-5 of the largest, where the polar factor is
# discontinuous.
# |G|² relative to the squared sum of its terms' norms: below this, powers of M lose
# their digits
CANCELS = 1e-6
# times the rounding error: smaller eigenvalues of correlations count as 0
EIGENVALUE_ULPS = 1e4


def orthogonalised(
    a: Array,
    b: Array,
    sizes: tuple[float, ...],
    steps: Coefficients | None,
    eps: float = 0.0,
    optimiser: str = "",
) -> Array:
    """M from Gram matrices (…, K, K): for the polar factor or, with `steps`, for its
    Newton–Schulz polynomial.

    `optimiser` is the name of the class that asks for it, for errors of lowering.
    The polynomial starts from G divided by its norm, or by eps if that is larger. Gram
    matrices with NaN or infinity give NaN, which laws reject; numpy would raise a less
    helpful error.
    """
    xp = array_namespace(a, b)
    size = xp.asarray(sizes, dtype=a.dtype)
    a_is_finite = xp.all(xp.isfinite(a), axis=(-2, -1), keepdims=True)
    b_is_finite = xp.all(xp.isfinite(b), axis=(-2, -1), keepdims=True)
    a = xp.where(a_is_finite, a, 0.0)
    b = xp.where(b_is_finite, b, 0.0)
    if steps is None:
        m = _between_bases(xp, a, b, size, steps, eps)
    else:
        m, cancels = _powers(xp, a, b, size, steps, eps)
        # arrays of JAX have no value yet
        if type(cancels) is not np.ndarray or cancels.any():
            m = xp.where(cancels, _between_bases(xp, a, b, size, steps, eps), m)
    return xp.where(a_is_finite & b_is_finite, m, xp.nan)


def _between_bases(
    xp: Any, a: Array, b: Array, size: Array, steps: Coefficients | None, eps: float
) -> Array:
    """M from the small matrix T, whose entries come from G and do not cancel."""
    left, right = _roots(xp, a), _roots(xp, b)
    sizes = (size * left.norms * right.norms)[..., None, :]
    t = (left.root * sizes) @ xp.matrix_transpose(right.root)
    if steps is None:
        p, s, q = xp.linalg.svd(t, full_matrices=False)
        least = MUON_SINGULAR_VALUE_RTOL * xp.max(s, axis=-1, keepdims=True)
        x = (p * xp.where(s > least, 1.0, 0.0)[..., None, :]) @ q
    else:
        norm = xp.clip(xp.sqrt(xp.sum(t * t, axis=(-2, -1), keepdims=True)), eps, None)
        x = xp.where(norm > 0, t / xp.where(norm > 0, norm, 1.0), 0.0)
        for c1, c3, c5 in steps:
            outer = x @ xp.matrix_transpose(x)
            x = c1 * x + (c3 * outer + c5 * (outer @ outer)) @ x
    middle = xp.matrix_transpose(left.inverse_root) @ x @ right.inverse_root
    return (
        _inverse(xp, left.norms)[..., :, None]
        * middle
        * _inverse(xp, right.norms)[..., None, :]
    )


def _inverse(xp: Any, norms: Array) -> Array:
    """1/|v|, and 0 for v = 0."""
    return xp.where(norms > 0, 1.0 / xp.where(norms > 0, norms, 1.0), 0.0)


class _Roots(NamedTuple):
    """Of a Gram matrix with correlations C = U Λ U^T."""

    norms: Array  # the roots of the diagonal
    root: Array  # Λ^(1/2) U^T
    inverse_root: Array  # Λ^(−1/2) U^T


def _roots(xp: Any, gram: Array) -> _Roots:
    """The norms of vectors, and the roots of their correlations."""
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(gram), 0.0, None))
    safe = xp.where(norms > 0, norms, 1.0)
    values, vectors = xp.linalg.eigh(gram / (safe[..., :, None] * safe[..., None, :]))
    nonzero = values > EIGENVALUE_ULPS * gram.shape[-1] * xp.finfo(gram.dtype).eps
    root = xp.sqrt(xp.where(nonzero, values, 1.0))
    rows = xp.matrix_transpose(vectors)
    return _Roots(
        norms=norms,
        root=xp.where(nonzero, root, 0.0)[..., :, None] * rows,
        inverse_root=xp.where(nonzero, 1.0 / root, 0.0)[..., :, None] * rows,
    )


def _powers(
    xp: Any, a: Array, b: Array, size: Array, steps: Coefficients, eps: float
) -> tuple[Array, Any]:
    """X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X from X = G/|G|, with X = l M r^T: X X^T
    X is l (M B M^T A M) r^T.

    It also returns where the terms of G cancel. There powers of the large M are
    rounding errors, and M is set to 0.
    """
    square = xp.sum(size[:, None] * a * b * size, axis=(-2, -1), keepdims=True)
    lengths = xp.sqrt(xp.clip(xp.linalg.diagonal(a) * xp.linalg.diagonal(b), 0.0, None))
    sum_of_norms = xp.sum(xp.abs(size) * lengths, axis=-1)[..., None, None]
    cancels = square < CANCELS * sum_of_norms**2
    square = xp.clip(square, eps * eps, None)
    inverse_norm = 1.0 / xp.sqrt(xp.where(square > 0, square, 1.0))
    scale = xp.where((square > 0) & ~cancels, inverse_norm, 0.0)
    m = scale * xp.eye(a.shape[-1], dtype=a.dtype) * size
    for c1, c3, c5 in steps:
        square_factor = m @ b @ xp.matrix_transpose(m) @ a  # M B M^T A
        cubed = square_factor @ m
        m = c1 * m + c3 * cubed + c5 * (square_factor @ cubed)
    return m, cancels
