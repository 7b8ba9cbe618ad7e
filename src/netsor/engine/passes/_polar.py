"""The orthogonalised gradient of Muon, from Gram matrices.

G = Σ_k s_k l_k r_k^T has the polar factor l M r^T/√(out · in), with M a function of the Gram matrices A = ⟨l, l⟩/out
and B = ⟨r, r⟩/in. Write l_k = |l_k| Q_A (Λ_A^(1/2) U_A^T)_k with U_A Λ_A U_A^T the correlations of the l_k and Q_A
orthonormal; the same for r. Between Q_A and Q_B the gradient is T = Λ_A^(1/2) U_A^T S U_B Λ_B^(1/2), a small matrix,
with S = diag(s_k |l_k| |r_k|). Uses that depend on each other (a token that occurs twice) leave some eigenvalues at 0,
and these directions have no part in G. Nor have those along which G is 1e-5 of its largest: a polar factor jumps there.
"""

from __future__ import annotations

from typing import Any

from ..._arrays import array_namespace

Array = Any
Coefficients = tuple[tuple[float, float, float], ...]

SMALL = 1e4  # times the rounding error: eigenvalues of correlations that count as 0
LEAST = 1e-5  # over the largest: singular values that count as 0. Five steps of Newton and Schulz make 0.005 of it


def orthogonalised(a: Array, b: Array, sizes: tuple[float, ...], steps: Coefficients | None) -> Array:
    """M of Gram matrices (…, K, K): of the polar factor, or of its Newton–Schulz polynomial if there are steps."""
    xp = array_namespace(a, b)
    size = xp.asarray(sizes, dtype=a.dtype)
    return _polar(xp, a, b, size) if steps is None else _iterated(xp, a, b, size, steps)


def _polar(xp: Any, a: Array, b: Array, size: Array) -> Array:
    (long, forth, back), (other, right_forth, right_back) = _roots(xp, a), _roots(xp, b)
    t = (forth * (size * long * other)[..., None, :]) @ xp.matrix_transpose(right_forth)
    p, s, q = xp.linalg.svd(t, full_matrices=False)
    least = LEAST * xp.max(s, axis=-1, keepdims=True)
    turned = (p * xp.where(s > least, 1.0, 0.0)[..., None, :]) @ q
    m = xp.matrix_transpose(back) @ turned @ right_back
    inverse = [xp.where(v > 0, 1.0 / xp.where(v > 0, v, 1.0), 0.0) for v in (long, other)]
    return inverse[0][..., :, None] * m * inverse[1][..., None, :]


def _roots(xp: Any, gram: Array) -> tuple[Array, Array, Array]:
    """Lengths, and of the correlations C = U Λ U^T the factors Λ^(1/2) U^T and Λ^(−1/2) U^T."""
    length = xp.sqrt(xp.clip(xp.linalg.diagonal(gram), 0.0, None))
    safe = xp.where(length > 0, length, 1.0)
    values, vectors = xp.linalg.eigh(gram / (safe[..., :, None] * safe[..., None, :]))
    real = values > SMALL * gram.shape[-1] * xp.finfo(gram.dtype).eps
    root = xp.sqrt(xp.where(real, values, 1.0))
    rows = xp.matrix_transpose(vectors)
    return length, xp.where(real, root, 0.0)[..., :, None] * rows, xp.where(real, 1.0 / root, 0.0)[..., :, None] * rows


def _iterated(xp: Any, a: Array, b: Array, size: Array, steps: Coefficients) -> Array:
    """X ← c_1 X + c_3 X X^T X + c_5 (X X^T)² X from X = G/|G|, with X = l M r^T: X X^T X is l (M B M^T A M) r^T."""
    square = xp.sum(size[:, None] * a * b * size, axis=(-2, -1), keepdims=True)
    scale = xp.where(square > 0, 1.0 / xp.sqrt(xp.where(square > 0, square, 1.0)), 0.0)
    m = scale * xp.eye(a.shape[-1], dtype=a.dtype) * size
    for first, third, fifth in steps:
        by = m @ b @ xp.matrix_transpose(m) @ a
        cubed = by @ m
        m = first * m + third * cubed + fifth * (by @ cubed)
    return m
