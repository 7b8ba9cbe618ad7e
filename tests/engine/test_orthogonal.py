"""Orthonormal directions from the vectors themselves: what earlier vectors span has
nothing new, however they lean.
"""

import numpy as np
import pytest

import netsor as ns
from tests.internals import NUMPY

from .compare import conditional


def leaning(rng, count, directions, lean, scale=1.0):
    """Rows that differ from one vector by a share `lean` of it: far more than
    √tolerance, below which they are one.
    """
    rows = rng.standard_normal((50, 1, 1, directions)) + lean * rng.standard_normal(
        (50, 1, count, directions)
    )
    return scale * rows


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("lean", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("directions", [3, 9])
def test_rows_in_the_span_of_known_rows_add_no_direction(directions, lean, scale):
    rng = np.random.default_rng(1)
    first = leaning(rng, 3, directions, lean, scale)
    known = NUMPY.span(first)
    later = rng.standard_normal((50, 1, 4, 3)) @ first  # combinations of them
    new = NUMPY.span(later, known)
    assert not new.any()
    every = np.concatenate([known, new], axis=-2)
    c = NUMPY.along(later, every)
    size = np.linalg.norm(later, axis=-1, keepdims=True)
    # 1e-16 of the first, which lean
    np.testing.assert_allclose(c @ every / size, later / size, atol=1e-9)


@pytest.mark.parametrize("lean", [1.0, 1e-2, 1e-4])
def test_directions_are_orthonormal_and_the_products_kept(lean):
    rng = np.random.default_rng(2)
    first, second = leaning(rng, 3, 8, lean), leaning(rng, 4, 8, lean)
    second[:, :, 2] = 0.0
    known = NUMPY.span(first)
    every = np.concatenate([known, NUMPY.span(second, known)], axis=-2)
    products = every @ np.swapaxes(every, -1, -2)
    np.testing.assert_allclose(
        products,
        np.broadcast_to(np.diag([1, 1, 1, 1, 1, 0, 1]), products.shape),
        atol=1e-14,
    )
    rows = np.concatenate([first, second], axis=-2)
    c = NUMPY.along(rows, every)
    np.testing.assert_allclose(
        c @ np.swapaxes(c, -1, -2), rows @ np.swapaxes(rows, -1, -2), atol=1e-13
    )
    assert not np.triu(c, 1).any()  # exactly


@pytest.mark.parametrize("rows", [3, 12])
def test_rows_of_very_different_sizes(rows):
    """Down to squares that have lost most of their digits; by a general inverse small
    rows spoilt the others.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 1, rows, 30)) * 10.0 ** rng.uniform(
        -158, 0, (20, 1, rows, 1)
    )
    x[:, :, 1] = -2.0 * x[:, :, 0]  # and one that adds nothing
    made = NUMPY.span(x)
    products = made @ np.swapaxes(made, -1, -2)
    expected = np.eye(rows)
    expected[1, 1] = 0.0
    np.testing.assert_allclose(
        products, np.broadcast_to(expected, products.shape), atol=1e-13
    )


@pytest.mark.parametrize("lean", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("rows", [4, 12])
def test_directions_from_products_that_are_known(rows, lean):
    """As without them; a row of zeros among them has none, and costs the others
    nothing.
    """
    x = leaning(np.random.default_rng(4), rows, 30, lean)
    x[:25, :, 2] = 0.0
    lower = NUMPY.factor(x @ np.swapaxes(x, -1, -2))
    made = NUMPY.spanned(lower, x)
    found = made @ np.swapaxes(made, -1, -2)
    expected = np.broadcast_to(np.eye(rows), found.shape).copy()
    expected[:25, :, 2, 2] = 0.0
    np.testing.assert_allclose(found, expected, atol=1e-13)
    c = NUMPY.along(x, made, lower)
    np.testing.assert_allclose(c @ made, x, atol=1e-13)
    assert not np.triu(c, 1).any()
    np.testing.assert_allclose(c, NUMPY.along(x, made), atol=1e-13)


def test_matrix_that_knows_its_whole_space_draws_nothing_new():
    """Three vectors of R^3 span it: the matrix is known on all others, and the output
    is a point exactly.

    By products of the vectors, parts of 1e-4 of their lengths seemed new.
    """
    w, v = ns.weight(3, 3), ns.weight(3, 3)
    x = ns.tanh(
        v @ ns.tanh(v @ ns.gaussian(3, 3, cov=np.ones((3, 3)) + 1e-3 * np.eye(3)))
    )
    y = w @ x
    net = ns.Program((y, w @ ns.tanh(y), w @ ns.tanh(w @ ns.tanh(y))))
    law = conditional(net.outputs, {}, 500, progress=False)
    assert not law.cov[:, 3:, 3:].any()
