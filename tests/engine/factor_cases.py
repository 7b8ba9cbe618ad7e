"""Vectors whose Gram matrices are singular, nearly so, or of any scale; all libraries
must agree on them.
"""

import numpy as np

from tests.internals import NUMPY, gram

REPLICAS, ROWS, DIRECTIONS = 6, 12, 40
# of a row: errors of products and coefficients
EXACT = {"float64": 1e-12, "float32": 2e-5}


def vectors(seed=0):
    """By name: (replicas, rows, directions), in double precision."""
    rng = np.random.default_rng(seed)
    regular = rng.standard_normal((REPLICAS, ROWS, DIRECTIONS))
    repeated = regular[:, rng.integers(0, 4, ROWS)]
    some = regular.copy()
    # singular replicas among regular ones
    some[::2, 3], some[1, 7], some[2] = some[::2, 0], 0.0, repeated[2]
    zeros = regular.copy()
    zeros[:, [0, 5, 11]] = 0.0
    scaled = repeated * 10.0 ** rng.uniform(-8, 8, (REPLICAS, ROWS, 1))
    summed = regular.copy()
    summed[:, -1] = -summed[:, :-1].sum(axis=1)
    units = np.zeros_like(regular)  # rows along axes, behind rows that are 0
    units[:, 1::2] = np.eye(ROWS // 2, DIRECTIONS)
    near = {
        f"apart by {delta:g}": regular[:, :1] + delta * regular
        for delta in (1e-1, 1e-2)
    }
    return {
        "regular": regular,
        "repeated": repeated,
        "some singular": some,
        "rows of zeros": zeros,
        "of all scales": scaled,
        "summing to 0": summed,
        "along axes": units,
        "nothing": 0.0 * regular,
        **near,
    }


CASES = list(vectors())


def _relative(found, expected, rows):
    """The largest error, relative to the lengths of the rows."""
    length = np.sqrt((np.asarray(rows, dtype=np.float64) ** 2).sum(axis=-1))
    length = np.where(length > 0, length, 1.0)
    return np.abs(
        (np.asarray(found, dtype=np.float64) - expected) / length[..., None]
    ).max()


def assert_factors(case, precision, compute):
    """Each instruction, by `compute(kind, *arrays)` with a library's ways, makes what
    numpy makes in double precision.

    Rows that count as 0 are so in both; coefficients agree, and so do products;
    directions are orthonormal or 0.
    """
    rows = vectors()[case].astype(precision)
    # equal rows stay equal when they are rounded
    exact, small = vectors()[case], EXACT[precision]
    products = gram(np, rows, rows)
    lengths = np.sqrt((exact**2).sum(axis=-1))
    lengths = np.where(lengths > 0, lengths, 1.0)

    for kind, given in (("factor", (products,)), ("reduced", (products, rows))):
        c = compute(kind, *given)
        ours = NUMPY.reduced(gram(np, exact, exact), exact)
        assert c.dtype == precision
        assert not np.triu(c, 1).any()
        pivots, known = (np.diagonal(a, axis1=-2, axis2=-1) for a in (c, ours))
        assert (pivots >= 0).all()
        np.testing.assert_array_equal(pivots > 0, known > 0)
        assert not c[np.broadcast_to((pivots == 0)[..., None, :], c.shape)].any()
        # a pivot's error is that of its square over it
        assert _relative(c, ours, rows) < 100 * small
        products_error = (
            c.astype(np.float64) @ np.swapaxes(c, -1, -2) - products
        ) / lengths[..., None]
        assert np.abs(products_error / lengths[..., None, :]).max() < small

    q = compute("span", rows)
    assert_orthonormal(q, precision)
    assert _relative(exact @ np.swapaxes(q, -1, -2), ours, rows) < 100 * small
    known = compute("span", rows[:, :5])
    rest = compute("span", rows[:, 5:], known)
    assert_orthonormal(np.concatenate([known, rest], axis=-2), precision)
    assert (
        _relative(
            np.concatenate([known, rest], axis=-2), q, np.ones((*rows.shape[:2], 1))
        )
        < 100 * small
    )

    full = compute("basis", rows)
    np.testing.assert_allclose(
        full @ np.swapaxes(full, -1, -2),
        np.broadcast_to(np.eye(ROWS), c.shape),
        atol=small,
    )
    inside = exact @ np.swapaxes(full.astype(np.float64), -1, -2) @ full - exact
    assert np.abs(inside / lengths[..., None]).max() < small

    x = (
        np.random.default_rng(1).standard_normal((REPLICAS, 3, ROWS)).astype(precision)
        * (pivots > 0)[..., None, :]
    )
    b = x.astype(np.float64) @ np.swapaxes(c.astype(np.float64), -1, -2)
    assert (
        _relative(
            compute("solve", c, b.astype(precision)), x, np.ones((*x.shape[:2], 1))
        )
        < 1000 * small
    )


def assert_orthonormal(q, precision):
    """Rows of length 1, or 0, and orthogonal to each other."""
    products = q.astype(np.float64) @ np.swapaxes(q, -1, -2)
    ones = np.diagonal(products, axis1=-2, axis2=-1)
    assert ((np.abs(ones - 1) < EXACT[precision]) | (ones == 0)).all()
    np.testing.assert_allclose(
        products, np.eye(q.shape[-2]) * np.round(ones)[..., None], atol=EXACT[precision]
    )
