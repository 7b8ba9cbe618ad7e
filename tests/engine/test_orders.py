"""Orders of scalars at infinite width, read off the structure of a program."""

import numpy as np

import netsor as ns
from tests.internals import ONE, SMALL, ZERO, Orders, topological_order

n = ns.Width("n")


def orders_of(*values):
    found = Orders(lambda x: True)
    for value in topological_order(values):
        found.bits(value) if isinstance(value, ns.Vector) else found.of(value)
    return [found.of(value).tolist() for value in values]


def test_means():
    x = ns.gaussian(n, 2)
    y = ns.gaussian(n, 2, mean=[0.0, 1.0])
    assert orders_of(ns.mean_dot(x, x), ns.mean_dot(y, y), ns.mean_dot(x, y)) == [
        [[ONE, SMALL], [SMALL, ONE]],
        [[ONE, SMALL], [SMALL, ONE]],
        [[SMALL, SMALL], [SMALL, SMALL]],
    ]


def test_products_with_a_matrix_share_their_sources():
    """Given x, the outputs W x are correlated; those of another matrix are not."""
    x = ns.gaussian(n, 2)
    g, h = ns.weight(n, n) @ x, ns.weight(n, n) @ x
    both = ns.join([g, h])
    assert orders_of(ns.mean_dot(both, both)) == [
        np.kron(np.eye(2, dtype=int) + 1, [[1, 1], [1, 1]]).tolist()
    ]


def test_outputs_of_nonlinearities_depend_on_their_arguments():
    x, y = ns.gaussian(n), ns.gaussian(n)
    f = ns.tanh(x)
    assert orders_of(
        ns.mean_dot(f, x), ns.mean_dot(f, y), ns.mean_dot(f, ns.tanh(y))
    ) == [ONE, SMALL, ONE]


def test_arithmetic():
    x, y = ns.gaussian(n), ns.gaussian(n)
    small, one = ns.mean_dot(x, y), ns.mean_dot(x, x)
    assert orders_of(
        small * one, small + one, small - small * one, 0.0 * one, ns.dot(x, y)
    ) == [
        SMALL,
        ONE,
        SMALL,
        ZERO,
        ONE,
    ]
    assert orders_of(ns.mean_dot(x + small * y, y)) == [SMALL]


def test_part_of_an_initial_vector_is_that_vector():
    x = ns.gaussian(n, (2, 2), cov=np.eye(4) + 0.5)
    assert orders_of(ns.mean_dot(x[0], x[1])) == [[[ONE, ONE], [ONE, ONE]]]
