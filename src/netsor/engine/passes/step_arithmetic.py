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
    unit: str | None = None  # the name of n; None for a number of order 1

    def times(self, x: Any) -> Any:
        """The product with a value of the program, as a value."""
        is_one = isinstance(self.number, float) and self.number == 1
        product = x if is_one else value_of(self.number) * x
        if self.unit is None:
            return product
        return Scalar(Root((), (Width(self.unit),)), ()) * product


def value_of(number: Number) -> Scalar:
    """A number as a value of the program."""
    return number if isinstance(number, Scalar) else constant(np.asarray(number))


def largest(bound: Mapping[str, float]) -> dict[str, float]:
    """The widths, with infinity replaced by a large number."""
    large_width = 2.0 ** LOG2_PROBE_WIDTHS[-1]
    widths = {}
    for name, size in bound.items():
        widths[name] = size if math.isfinite(size) else large_width
    return widths


@dataclass(frozen=True, eq=False)
class Combination:
    """Σ c n^p a over terms a (matrices or vectors) and powers p of infinite widths n.

    Combinations are added, and multiplied with numbers. A number that depends on the
    widths is also a combination, Σ c n^p, whose term is None.

    Attributes
    ----------
    terms : dict
        The number c of each pair (a, powers). For example, 3 W − 2 n^(−1/2) G has the
        terms {(W, ()): 3.0, (G, (("n", -0.5),)): -2.0}.
    """

    terms: Mapping[tuple[Any, Powers], Number]

    @classmethod
    def of(cls, term: Any) -> Combination:
        """A single term, with coefficient 1."""
        return cls({(term, ()): 1.0})

    def __add__(self, other: Combination | Number) -> Combination:
        """The sum; numbers of the same term and powers are added."""
        total = dict(self.terms)
        for key, number in _combination(other).terms.items():
            if key in total:
                number = total[key] + number
            total[key] = number
        return Combination(total)

    def __mul__(self, other: Combination | Number) -> Combination:
        """One of the factors must be a number: its terms are None."""
        product = Combination({})
        factors = _combination(other).terms
        for (term, powers), number in self.terms.items():
            for (factor_term, factor_powers), factor in factors.items():
                term_of_product = factor_term if term is None else term
                powers_of_product = _product_of_powers(powers, factor_powers)
                key = term_of_product, powers_of_product
                product = product + Combination({key: number * factor})
        return product

    __rmul__ = __mul__

    def __sub__(self, other: Combination) -> Combination:
        return self + other * -1.0

    def __rsub__(self, other: float) -> Combination:
        return self * -1.0 + other

    def coefficients(self) -> dict[Any, Combination]:
        """The coefficient of each term, a number that depends on the widths.

        For example, 2 n a + 3 a + b has the coefficients 2 n + 3 of a and 1 of b.
        """
        # a number is a combination of one term, None
        terms_by_term: dict[Any, dict[tuple[None, Powers], Number]] = {}
        for (term, powers), number in self.terms.items():
            terms_of_number = terms_by_term.setdefault(term, {})
            terms_of_number[None, powers] = number
        coefficients = {}
        for term, terms_of_number in terms_by_term.items():
            coefficients[term] = Combination(terms_of_number)
        return coefficients

    def orders(self, value: Value, of: str) -> list[Order]:
        """The parts of a number that are of order 1, or of order n^(−1/2).

        Parts that vanish faster are dropped. Raises an error at `value` if the number
        grows, or if a part has powers of several widths; `of` is the name of the
        parameter that takes the step.
        """
        orders = []
        for (_, powers), number in self.terms.items():
            if isinstance(number, float) and number == 0:
                continue
            total = sum(power for _, power in powers)
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
            if not powers:
                orders.append(Order(number))
            elif total == -0.5:
                width, _ = powers[0]
                orders.append(Order(number, unit=width))
        return orders


def _combination(x: Combination | Number) -> Combination:
    """A number as a combination; combinations as they are."""
    return x if isinstance(x, Combination) else Combination({(None, ()): x})


def _product_of_powers(a: Powers, b: Powers) -> Powers:
    """The product of two products of powers of widths, without powers 0.

    For example, n · n^(−1/2) m has the powers (("m", 1.0), ("n", 0.5)).
    """
    exponents = Counter(dict(a))
    exponents.update(dict(b))
    return tuple(sorted((name, power) for name, power in exponents.items() if power))


def number_at(
    rate: WidthFunction, bound: Mapping[str, float], value: Value, of: str
) -> Combination:
    """A number that depends on the widths, as c times powers of the infinite ones.

    Each power is the slope of log |rate| against the log of the width, measured at very
    large widths. Raises an error at `value` if the rate is not a power there; `of` is
    the name of the parameter that takes the step.
    """
    large = largest(bound)
    number = rate(large)
    powers: dict[str, float] = {}
    infinite_widths = [name for name, size in bound.items() if math.isinf(size)]
    if number == 0:  # at every width
        infinite_widths = []
    for name in infinite_widths:
        rates = [abs(rate({**large, name: 2.0**k})) for k in LOG2_PROBE_WIDTHS]
        slopes = np.diff(np.log2(rates)) / np.diff(LOG2_PROBE_WIDTHS)
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
    step: int,
    bound: Mapping[str, float],
    at_widths: Callable[[WidthFunction], Any],
) -> Rates:
    """The learning rates, the decay and eps of one step of an optimiser.

    `at_widths` evaluates functions of the widths: as a `Combination` at infinite
    widths, which keeps their powers apart, and as a number where all are finite.
    """
    rule = op.steps[step] if isinstance(op, SteppedMatMul) else op.rule
    lr_scalar, decay_scalar = scalars_of(op, step)

    def weight_decay(_: Mapping[str, float]) -> float:
        """The weight decay, which is the same at all widths."""
        return rule.weight_decay

    return Rates(
        lr=at_widths(rule.rate) * lr_scalar,
        adjusted=at_widths(rule.adjusted) * lr_scalar,
        # a constant, but the optimiser multiplies it with lr: both need the same type
        decay=at_widths(weight_decay) * decay_scalar,
        # a plain number, which optimisers compare with 0: at infinite widths it is that
        # of the largest stand-ins
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
# Times the rounding error: smaller eigenvalues of correlations count as 0
EIGENVALUE_ULPS = 1e4


def orthogonalised(
    a: Array,
    b: Array,
    sizes: tuple[float, ...],
    steps: Coefficients | None,
    eps: float = 0.0,
    optimiser: str = "",
) -> Array:
    """M of the orthogonalised G = Σ_k sizes_k l_k r_k^T, l M r^T/√(out · in).

    `a` and `b`, (…, K, K), are the Gram matrices ⟨l, l⟩/out and ⟨r, r⟩/in, and so is M.
    Without `steps`, M gives the polar factor of G. With `steps`, the coefficients (c1,
    c3, c5) of each step, it gives the Newton–Schulz polynomial, which starts from G
    divided by its norm, or by eps if that is larger.

    `optimiser` is the name of the class that asks for it, for errors of lowering. Gram
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
        m, cancels = _newton_schulz_of_grams(xp, a, b, size, steps, eps)
        # while JAX compiles, arrays have no value to test
        if type(cancels) is not np.ndarray or cancels.any():
            m = xp.where(cancels, _between_bases(xp, a, b, size, steps, eps), m)
    return xp.where(a_is_finite & b_is_finite, m, xp.nan)


def _between_bases(
    xp: Any, a: Array, b: Array, size: Array, steps: Coefficients | None, eps: float
) -> Array:
    """M by way of the small matrix T, which is G in orthonormal bases.

    T is orthogonalised as a matrix, so that terms of G may cancel. See `orthogonalised`
    for the arguments, and the comment above it for T.
    """
    left = _roots(xp, a)
    right = _roots(xp, b)
    norms_of_terms = size * left.norms * right.norms
    scaled_left = left.root * norms_of_terms[..., None, :]
    t = scaled_left @ xp.matrix_transpose(right.root)
    if steps is None:
        orthogonal = _polar_factor(xp, t)
    else:
        orthogonal = _newton_schulz(xp, t, steps, eps)
    # back from the bases to l and r, which are not normalised
    middle = xp.matrix_transpose(left.inverse_root) @ orthogonal @ right.inverse_root
    rows = _inverse(xp, left.norms)[..., :, None]
    columns = _inverse(xp, right.norms)[..., None, :]
    return rows * middle * columns


def _polar_factor(xp: Any, t: Array) -> Array:
    """P Q of the singular value decomposition T = P Σ Q, without small singular
    values.
    """
    p, singular_values, q = xp.linalg.svd(t, full_matrices=False)
    largest = xp.max(singular_values, axis=-1, keepdims=True)
    is_large = singular_values > MUON_SINGULAR_VALUE_RTOL * largest
    new_singular_values = xp.where(is_large, 1.0, 0.0)
    return (p * new_singular_values[..., None, :]) @ q


def _newton_schulz(xp: Any, t: Array, steps: Coefficients, eps: float) -> Array:
    """X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X, from X = T/max(|T|, eps); 0 if T is."""
    square = xp.sum(t * t, axis=(-2, -1), keepdims=True)
    norm = xp.clip(xp.sqrt(square), eps, None)
    is_positive = norm > 0
    safe_norm = xp.where(is_positive, norm, 1.0)
    x = xp.where(is_positive, t / safe_norm, 0.0)
    for c1, c3, c5 in steps:
        xx = x @ xp.matrix_transpose(x)  # X X^T
        polynomial = c3 * xx + c5 * (xx @ xx)
        x = c1 * x + polynomial @ x
    return x


def _inverse(xp: Any, norms: Array) -> Array:
    """1/|v|, and 0 for v = 0."""
    return xp.where(norms > 0, 1.0 / xp.where(norms > 0, norms, 1.0), 0.0)


class _Roots(NamedTuple):
    """Norms of vectors, and roots of their correlations C = U Λ U^T."""

    norms: Array  # (…, K)
    root: Array  # Λ^(1/2) U^T, (…, K, K)
    inverse_root: Array  # Λ^(−1/2) U^T, with 0 for eigenvalues 0


def _roots(xp: Any, gram: Array) -> _Roots:
    """The norms of vectors, and the roots of their correlations, from a Gram matrix
    (…, K, K).
    """
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(gram), 0.0, None))
    safe_norms = xp.where(norms > 0, norms, 1.0)
    products_of_norms = safe_norms[..., :, None] * safe_norms[..., None, :]
    correlations = gram / products_of_norms
    eigenvalues, eigenvectors = xp.linalg.eigh(correlations)
    rounding = EIGENVALUE_ULPS * gram.shape[-1] * xp.finfo(gram.dtype).eps
    is_nonzero = eigenvalues > rounding
    safe_roots = xp.sqrt(xp.where(is_nonzero, eigenvalues, 1.0))
    roots = xp.where(is_nonzero, safe_roots, 0.0)
    inverse_roots = xp.where(is_nonzero, 1.0 / safe_roots, 0.0)
    rows = xp.matrix_transpose(eigenvectors)
    return _Roots(
        norms=norms,
        root=roots[..., :, None] * rows,
        inverse_root=inverse_roots[..., :, None] * rows,
    )


def _newton_schulz_of_grams(
    xp: Any, a: Array, b: Array, size: Array, steps: Coefficients, eps: float
) -> tuple[Array, Any]:
    """M of the Newton–Schulz polynomial of G, and where it is unusable, (…, 1, 1).

    X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X from X = G/|G|, with X = l M r^T: then X
    X^T X is l (M B M^T A M) r^T, so that M alone is iterated, from diag(sizes)/|G|.
    Where the terms of G cancel, that M is large and its powers are rounding errors: it
    is set to 0. See `orthogonalised` for the arguments.
    """
    # |G|² = Σ_kl s_k A_kl B_kl s_l
    products = size[:, None] * a * b * size
    square = xp.sum(products, axis=(-2, -1), keepdims=True)

    # the norms |s_k| |l_k| |r_k| of its terms
    squared_norms = xp.linalg.diagonal(a) * xp.linalg.diagonal(b)
    norms = xp.sqrt(xp.clip(squared_norms, 0.0, None))
    sum_of_norms = xp.sum(xp.abs(size) * norms, axis=-1)
    sum_of_norms = sum_of_norms[..., None, None]
    cancels = square < CANCELS * sum_of_norms**2

    # 1/|G|, or 0 where G is 0 or its terms cancel
    square = xp.clip(square, eps * eps, None)
    safe_square = xp.where(square > 0, square, 1.0)
    inverse_norm = 1.0 / xp.sqrt(safe_square)
    scale = xp.where((square > 0) & ~cancels, inverse_norm, 0.0)

    identity = xp.eye(a.shape[-1], dtype=a.dtype)
    m = scale * identity * size
    for c1, c3, c5 in steps:
        square_factor = m @ b @ xp.matrix_transpose(m) @ a  # M B M^T A
        cubed = square_factor @ m
        fifth_power = square_factor @ cubed
        m = c1 * m + c3 * cubed + c5 * fifth_power
    return m, cancels
