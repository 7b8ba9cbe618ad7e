"""Factors by LAPACK where a matrix is regular, by columns where it is not: one factor
either way.
"""

import numpy as np
import pytest

from tests.internals import NUMPY, Builder, _psd_cholesky


@pytest.mark.parametrize("rank", [8, 20])  # of twelve rows
@pytest.mark.parametrize("power", [0, 6])
def test_both_ways_to_a_factor_agree(rank, power, monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, 2, 12, rank)) * 10.0 ** rng.uniform(
        -power, power, (5, 2, 12, 1)
    )
    gram = rows @ np.swapaxes(rows, -1, -2)
    size = np.linalg.norm(rows, axis=-1)
    one = NUMPY.factor(gram)
    monkeypatch.setattr(_psd_cholesky, "LAPACK", 13)
    other = NUMPY.factor(gram)
    np.testing.assert_allclose(
        one / size[..., None],
        other / size[..., None],
        atol=1e-6 if rank < 12 else 1e-12,
    )
    np.testing.assert_allclose(
        (one @ np.swapaxes(one, -1, -2)) / size[..., None] / size[..., None, :],
        gram / size[..., None] / size[..., None, :],
        atol=1e-9,
    )
    assert (np.diagonal(one, axis1=-2, axis2=-1)[..., rank:] == 0).all()


def test_one_singular_matrix_among_regular_ones():
    gram = np.stack([np.eye(9), np.ones((9, 9))])
    found = NUMPY.factor(gram)
    np.testing.assert_array_equal(found[0], np.eye(9))
    np.testing.assert_array_equal(found[1], np.outer(np.ones(9), np.eye(9)[0]))


def test_equal_constants_are_one_array():
    build = Builder()
    first = build.constant(np.arange(6.0).reshape(2, 3))
    assert build.constant(np.arange(6.0).reshape(2, 3)) is first
    others = [
        np.arange(6.0).reshape(3, 2),
        np.arange(6).reshape(2, 3),
        -np.arange(6.0).reshape(2, 3),
    ]
    assert all(build.constant(other) is not first for other in others)
    mine = np.ones(3)
    kept = build.constant(mine)
    mine[:] = 2  # what is given may change later
    np.testing.assert_array_equal(kept.value, np.ones((1, 3)))


@pytest.mark.parametrize("start", range(-2, 5))
@pytest.mark.parametrize("columns", [2, 3, 5])
def test_product_with_a_shifted_identity_is_the_product(columns, start):
    """It is a pad if the whole identity is inside, and is not if only a part of it
    is.
    """
    a, shifted = np.arange(1.0, 9.0).reshape(2, 4)[:, :3], np.eye(3, columns, start)
    build = Builder()
    made = build.step("product", build.constant(a), build.constant(shifted))
    np.testing.assert_array_equal(made.value[0], a @ shifted)
