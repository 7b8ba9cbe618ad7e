"""Muon's orthogonalised matrix from Gram matrices: no entry of a gradient is ever made.

G = Σ_k s_k l_k r_k^T has the polar factor l M r^T/√(out · in), where M depends on the Gram matrices A = ⟨l, l⟩/out and
B = ⟨r, r⟩/in alone. Write l_k = |l_k| Q_A (Λ_A^(1/2) U_A^T)_k with U_A Λ_A U_A^T the correlations of the l_k and Q_A
orthonormal, and r likewise. Between Q_A and Q_B the gradient is the small matrix T = Λ_A^(1/2) U_A^T S U_B Λ_B^(1/2),
S = diag(s_k |l_k| |r_k|), and its SVD gives M. Dependent uses (a token that occurs twice) leave eigenvalues of 0, which
have no part in G; nor have directions along which G is 1e-5 of its largest, where a polar factor jumps.
"""

from __future__ import annotations

from typing import Any

from ..._array_api import array_namespace
from ...optim import MUON_SINGULAR_VALUE_RTOL, Coefficients

Array = Any

EIGENVALUE_ULPS = 1e4  # times the rounding error: eigenvalues of correlations that count as 0


def orthogonalised(a: Array, b: Array, sizes: tuple[float, ...], steps: Coefficients | None, eps: float = 0.0) -> Array:
    """M of Gram matrices (…, K, K): of the polar factor, or of its Newton–Schulz polynomial if there are steps.

    The polynomial begins with G over its norm, or over eps if that is larger.
    """
    xp = array_namespace(a, b)
    size = xp.asarray(sizes, dtype=a.dtype)
    return _polar(xp, a, b, size) if steps is None else _iterated(xp, a, b, size, steps, eps)


def _polar(xp: Any, a: Array, b: Array, size: Array) -> Array:
    (long, forth, back), (other, right_forth, right_back) = _roots(xp, a), _roots(xp, b)
    t = (forth * (size * long * other)[..., None, :]) @ xp.matrix_transpose(right_forth)
    p, s, q = xp.linalg.svd(t, full_matrices=False)
    least = MUON_SINGULAR_VALUE_RTOL * xp.max(s, axis=-1, keepdims=True)
    turned = (p * xp.where(s > least, 1.0, 0.0)[..., None, :]) @ q
    m = xp.matrix_transpose(back) @ turned @ right_back
    inverse = [xp.where(v > 0, 1.0 / xp.where(v > 0, v, 1.0), 0.0) for v in (long, other)]
    return inverse[0][..., :, None] * m * inverse[1][..., None, :]


def _roots(xp: Any, gram: Array) -> tuple[Array, Array, Array]:
    """Lengths, and of the correlations C = U Λ U^T the factors Λ^(1/2) U^T and Λ^(−1/2) U^T."""
    length = xp.sqrt(xp.clip(xp.linalg.diagonal(gram), 0.0, None))
    safe = xp.where(length > 0, length, 1.0)
    values, vectors = xp.linalg.eigh(gram / (safe[..., :, None] * safe[..., None, :]))
    real = values > EIGENVALUE_ULPS * gram.shape[-1] * xp.finfo(gram.dtype).eps
    root = xp.sqrt(xp.where(real, values, 1.0))
    rows = xp.matrix_transpose(vectors)
    return length, xp.where(real, root, 0.0)[..., :, None] * rows, xp.where(real, 1.0 / root, 0.0)[..., :, None] * rows


def _iterated(xp: Any, a: Array, b: Array, size: Array, steps: Coefficients, eps: float) -> Array:
    """X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X from X = G/|G|, with X = l M r^T: X X^T X is l (M B M^T A M) r^T."""
    square = xp.sum(size[:, None] * a * b * size, axis=(-2, -1), keepdims=True)
    square = xp.clip(square, eps * eps, None)
    scale = xp.where(square > 0, 1.0 / xp.sqrt(xp.where(square > 0, square, 1.0)), 0.0)
    m = scale * xp.eye(a.shape[-1], dtype=a.dtype) * size
    for first, third, fifth in steps:
        by = m @ b @ xp.matrix_transpose(m) @ a
        cubed = by @ m
        m = first * m + third * cubed + fifth * (by @ cubed)
    return m
