"""Functions with jumps where their arguments are equal: arguments that are one vector
are one variable.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    BatchedFunction,
    Function,
    kernel_of_several,
    moments_of_several,
)

from ..keep import keep

n = ns.Width("n")
AT_LEAST = Function("at least", lambda x, y: (x >= y) * 1.0)
ABOVE = Function("above", lambda x, y: (x > y) * 1.0)


def second_moment(x, width=ns.inf, draws=2):
    """E[x²] of the coordinates of vectors: the variance behind a fresh matrix."""
    return np.asarray(ns.Program(ns.weight(n, n) @ x).law(n=width, draws=draws).var())


def test_function_of_one_vector_twice_has_exact_moment():
    h = ns.gaussian(n)
    x = ns.nonlin(lambda x, y: np.where(x >= y, x, -y), h, h)
    assert second_moment(x) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.usefixtures("unshifted")
def test_repeated_ids_are_one_vector():
    e = ns.nn.embedding([5, 5, 6], n)
    for f, equal in ((AT_LEAST, 1.0), (ABOVE, 0.0)):
        found = second_moment(ns.nonlin(f, e[[0, 0]], e[[1, 2]]))
        # sums are rounded
        assert found[0] == pytest.approx(equal, rel=1e-12, abs=1e-12)
        assert found[1] == pytest.approx(0.5, abs=1e-5)


def test_every_pair_of_correlated_vectors():
    """Entries of one kernel agree on what is equal: those of equal vectors were 0 with
    themselves, 0.37 with others.
    """
    h = ns.gaussian(n, 2, cov=[[1, 0.8], [0.8, 1]])
    x = ns.nonlin(ABOVE, h[[0, 0, 1, 1]], h[[0, 1, 0, 1]])
    found = ns.Program(ns.weight(n, n) @ x).law(n=ns.inf)
    np.testing.assert_allclose(found.cov(), np.diag([0.0, 0.5, 0.5, 0.0]), atol=1e-5)
    # E[h 1(h > h')] = √((1 − ρ)/4π)
    along = np.sqrt(0.2 / (4 * np.pi)) * np.array([1.0, 0.0])
    expected = np.diag([0.5, 0.0]) + 1.0 + along[:, None] + along
    value, error = (
        ns.Program(ns.weight(n, n) @ (x[[1, 3]] + h[0])).law(n=ns.inf).with_error.cov()
    )
    assert (np.abs(value - expected) <= error + 1e-12).all()
    assert (error < 1e-4).all()


@pytest.mark.parametrize(
    ("nested", "width"),
    [
        (False, 16),
        (True, 16),
        (True, ns.inf),
        pytest.param(False, ns.inf, marks=pytest.mark.slow),
    ],
)
def test_equal_tokens_behind_random_scores(width, nested):
    """Their vectors differ in the last digits, by the order of sums; outputs,
    coordinates and expectations see one.
    """
    x = ns.nn.embedding([5, 7, 5, 3], n, position_std=0.5, positions=[0, 1, 0, 2])
    for _ in range(3):
        x = x + ns.nn.attention(ns.rms_norm(x), 2)
    x = ns.tanh(x) if nested else x
    if nested:
        # at nodes, if the width is inf
        x = np.array([[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0]]) @ x
    found = ns.nonlin(AT_LEAST, x[0], x[[2, 1]])
    law = ns.Program(found).law(n=width, draws=40)
    assert law.mean()[0] == pytest.approx(1.0, rel=1e-12)
    assert 0.1 < law.mean()[1] < 0.9
    np.testing.assert_array_equal(ns.Program(found[0]).simulate(n=4, draws=20), 1.0)
    assert second_moment(found[0], width) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.usefixtures("unshifted")
def test_nearly_equal_vectors_are_two():
    """The jump counts as half, and what is between them keeps its digits."""
    near = ns.gaussian(n, 2, cov=[[1, 1 - 1e-12], [1 - 1e-12, 1]])
    np.testing.assert_allclose(
        second_moment(ns.nonlin(AT_LEAST, near[0], near[1])), 0.5, atol=1e-4
    )
    x, z = ns.gaussian(n), ns.gaussian(n)
    for part in (1e-6, 1e-11):
        y = (part * z) + x
        np.testing.assert_allclose(
            second_moment(ns.nonlin(ABOVE, x, y)), 0.5, atol=1e-4
        )
        between = Function(
            "between", lambda x, y, d=part: (np.tanh(y) - np.tanh(x)) / d
        )
        expected = stats.norm.expect(lambda u: (1 - np.tanh(u) ** 2) ** 2)
        # the engine knows two arguments by their coordinates: 1e-16 of them is 1e-5 of
        # the smallest part
        assert second_moment(ns.nonlin(between, x, y)) == pytest.approx(
            expected, abs=1e-3
        )


@pytest.mark.usefixtures("unshifted")
@pytest.mark.parametrize(
    "scale", [1e-8, *(pytest.param(s, marks=pytest.mark.slow) for s in (1.0, 1e8))]
)
def test_opposite_scaled_and_constant_arguments(scale):
    x, y = scale * ns.gaussian(n), ns.gaussian(n)
    cases = [
        (lambda u, v: (u + v >= 0) * 1.0, (x, -x), 1.0),
        (lambda u, v: (u + v > 0) * 1.0, (x, -x), 0.0),
        (lambda u, v: (v >= 3 * u) * 1.0, (x, 3 * x), 1.0),
        (lambda u, v: (3 * u > v) * 1.0, (x, 3 * x), 0.0),
        (lambda u, v, w: (u >= v) * np.sign(w), (x, x, y), 1.0),
        (lambda u, v, w: (u >= w) * np.sign(v), (x, y, x), 1.0),
        (lambda u, v, w: (u + v >= w) * 1.0, (x, y, x + y), 1.0),
        (lambda u, v: (u >= v) * 1.0, (x - x, 0 * y), 1.0),
        (lambda u, v: np.sign(u) * (v >= 0), (x, y - y), 1.0),
        (lambda u, v: (np.floor(u / v) == 1) * 1.0, (x, x), 1.0),
        (lambda u, v: np.sign(u) * np.sign(v), (x, y), 1.0),
        (lambda u, v: (np.maximum(u, v) > u) * 1.0, (x, x), 0.0),
    ]
    for k, (f, vectors, expected) in enumerate(cases):
        found = second_moment(ns.nonlin(f, *vectors))
        assert found == pytest.approx(expected, abs=1e-4), k


@pytest.mark.parametrize("scale", keep([1e-8, 1e8], 1e8))
def test_expectations_of_equal_and_opposite_rows(scale):
    """u = v in the first row, u = −v in the second, both with a third argument of
    another size.
    """
    a = np.array(
        [[[1.0, 0.3], [1.0, 0.3], [0.2, 1.0]], [[1.0, 0.3], [-1.0, -0.3], [0.2, 1.0]]]
    )
    a[:, :2] *= scale
    a[:, 1] *= 1 + 1e-15  # a rounding
    x = BatchedFunction(
        Function("ties", lambda u, v, w: ((u >= v) + 2.0 * (u + v >= 0)) * np.sign(w)),
        np.zeros((2, 3)),
    )
    value, error = kernel_of_several(x, x, a, a)
    own = [
        stats.norm.expect(lambda z: (1 + 2 * (z >= 0)) ** 2),
        stats.norm.expect(lambda z: ((z >= 0) + 2.0) ** 2),
    ]
    cross = stats.norm.expect(lambda z: (1 + 2 * (z >= 0)) * ((z >= 0) + 2))
    assert (error < 1e-3).all()
    assert (np.abs(value - [[own[0], cross], [cross, own[1]]]) <= error + 1e-12).all()
    even = BatchedFunction(
        Function("equal", lambda u, v, w: (u == v) * 1.0), np.zeros((2, 3))
    )
    mean, slope, _ = moments_of_several(even, a)
    np.testing.assert_allclose(mean, [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(np.einsum("ir,irk->ik", slope, a), 0.0, atol=1e-9)


def test_initial_vectors_of_any_scale():
    """Beside a variance of 1e16 one of 1e-16 was dropped; equal covariances make equal
    vectors, to the last digit.
    """
    h = ns.gaussian(n, 3, cov=[[1e16, 0.5, 0], [0.5, 1e-16, 0], [0, 0, 1]])
    np.testing.assert_allclose(
        ns.Program(h).law(n=ns.inf).var(), [1e16, 1e-16, 1], rtol=1e-12
    )
    h = ns.gaussian(n, 3, cov=[[1, 0.3, -1], [0.3, 2, -0.3], [-1, -0.3, 1]])
    drawn = ns.Program(h).simulate(n=50, draws=4)
    np.testing.assert_array_equal(drawn[:, 0], -drawn[:, 2])
