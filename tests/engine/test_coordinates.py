"""Several coordinates of one vector, and the choice of one: against the literal
interpreter, which has them all.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import SHORTCUTS

from .compare import check_samples, conditional, replica_draws, smallest_ks

n = ns.Width("n")
DRAWS = 10_000
LEVEL = 1e-6  # of each comparison


def residual():
    """Given the rest, coordinates are i.i.d. in what comes out of the last matrix, and
    not in x.
    """
    x = ns.gaussian(n, 2)
    return x + ns.nn.attention(ns.rms_norm(x), 2)


def scaled():
    """A frame that grows: coordinates are those of random orthonormal directions."""
    x = ns.gaussian(n, 2)
    y = ns.weight(n, n) @ x
    return ns.mean_dot(y[0], x[0]) * x + y


def with_means():
    x = ns.gaussian(n, 2, mean=[1.0, -0.5])
    y = ns.weight(n, n) @ x
    return ns.layer_norm(x + y) * ns.mean_dot(x[0], y[0])


def turned():
    """After the nonlinearity the frame is turned; and a scalar next to the vectors has
    no coordinates.
    """
    x = ns.gaussian(n, 2)
    z = x + ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ x)
    p = ns.mean_dot(z[0], z[1])
    return z + ns.weight(n, n) @ ns.rms_norm(z) * p, p


def turned_alike():
    """Vectors that are all alike fill one direction of a frame that is turned: in a
    narrow space, few are left.
    """
    x = ns.relu(ns.gaussian(n, 2, cov=np.ones((2, 2))))
    z = x + 3 * (ns.weight(n, n) @ (ns.weight(n, n) @ x))
    return z, ns.mean_dot(z, z)


def concatenated():
    x = ns.gaussian(n, 2)
    c = ns.concat(ns.weight(n, n, batch=2) @ x, axis=0)
    return ns.mean_dot(c[0], c[1]) * c


def concatenated_tokens():
    """Blocks that one matrix made: a place in two of them is one row of it, which
    nothing draws.
    """
    return ns.concat(ns.weight(n, n) @ ns.relu(ns.gaussian(n, 3)), axis=0)


def rotated():
    x = ns.rotary(ns.weight(n, n) @ ns.gaussian(n, 3), [0, 1, 2])
    return x + x[0] * ns.mean_dot(x[1], x[2])


def given():
    """Data: no two coordinates have the same law."""
    x = ns.data(
        np.array([[1.0, 2.0, -1.0, 0.5, 3.0, 0.0], [0.0, 1.0, 1.0, -2.0, 0.3, 1.0]])
    )
    return x + ns.tanh(ns.weight(6, 6) @ x) * ns.mean_dot(x[0], ns.weight(6, 6) @ x[1])


CASES = [
    (residual, {"n": 6}, [0, 5]),
    (scaled, {"n": 4}, [3, 1]),
    (scaled, {"n": 3}, [0, 1, 2]),  # all of them: the frame is full
    (with_means, {"n": 5}, [0, -1]),
    (with_means, {"n": 3}, [2, 0, 1]),
    (turned, {"n": 6}, [0, 5]),
    (turned_alike, {"n": 3}, [0, 1]),
    (turned_alike, {"n": 4}, [3, 0]),
    (concatenated, {"n": 3}, [1, 4]),  # of two blocks
    (concatenated_tokens, {"n": 2}, [1, 3, 4]),
    (rotated, {"n": 4}, [0, 2]),
    (given, {}, [4, 0]),
    (given, {}, [3]),
]


def smallest_p(first, second):
    """Of tests of each entry, of the means of all products of two, of a few products,
    and of a few functions of all.
    """
    check_samples(first, second)
    count = first.shape[1]
    rng = np.random.default_rng(0)
    tests = [lambda a, k=k: a[:, k] for k in range(count)]
    tests += [lambda a, k=k: a[:, k] * a[:, k - 1] for k in range(min(count, 6))]
    tests += [lambda a: (a**2).sum(axis=1), lambda a: np.abs(a).max(axis=1)]
    tests += [lambda a, u=u: a @ u for u in rng.standard_normal((3, count))]
    tests += [
        lambda a, u=u: np.cos(a @ u) * a[:, 0] ** 2
        for u in rng.standard_normal((3, count))
    ]
    means, errors = zip(
        *((a.T @ a / len(a), (a**2).T @ a**2 / len(a) ** 2) for a in (first, second)),
        strict=True,
    )
    z = (means[0] - means[1]) / np.sqrt(sum(errors) + 1e-300)
    return min(
        smallest_ks((f(first), f(second)) for f in tests),
        2 * stats.norm.sf(np.abs(z).max()),
    )


def drawn(found, seed=3):
    """As many draws as the literal interpreter makes: one from each replica, or all
    from its only one.
    """
    return replica_draws(found, DRAWS, seed)


def literal(net, widths, coordinates):
    found = net.simulate(
        draws=DRAWS, seed=1, coordinates=coordinates, progress=False, **widths
    )
    return np.concatenate(
        [
            a.reshape(DRAWS, -1)
            for a in (found if isinstance(found, tuple) else (found,))
        ],
        axis=1,
    )


@pytest.mark.parametrize(
    "without",
    [(), pytest.param(SHORTCUTS, marks=pytest.mark.slow)],
    ids=["", "without shortcuts"],
)
@pytest.mark.parametrize(
    ("make", "widths", "coordinates"),
    CASES,
    ids=lambda a: getattr(a, "__name__", str(a)),
)
def test_coordinates_are_those_of_the_literal_interpreter(
    make, widths, coordinates, without
):
    net = ns.Program(make())
    found = conditional(
        net.outputs,
        widths,
        DRAWS,
        5,
        progress=False,
        without=without,
        picked=coordinates,
    )
    assert smallest_p(drawn(found), literal(net, widths, coordinates)) > LEVEL


def test_wrong_choice_of_coordinates_is_seen():
    """Other coordinates, and independent ones, fail: so the comparison can."""
    net = ns.Program(given())
    found = conditional(net.outputs, {}, DRAWS, 5, progress=False, picked=[4, 1])
    assert smallest_p(drawn(found), literal(net, {}, [4, 0])) < LEVEL
    net = ns.Program(scaled())
    found = conditional(
        net.outputs, {"n": 3}, DRAWS, 5, progress=False, picked=[0, 1, 2]
    )
    apart = drawn(found)
    # the second coordinate of others
    apart[:, 1::3] = apart[np.random.default_rng(0).permutation(DRAWS), 1::3]
    assert smallest_p(apart, literal(net, {"n": 3}, [0, 1, 2])) < LEVEL


def test_at_infinite_width_they_are_independent_given_the_scores():
    """And equal in law, correlated in their squares: against a wide literal network."""
    x = ns.gaussian(n, 2)
    net = ns.Program(ns.tanh(x) + ns.nn.attention(x, 1, sigma_q=2.0))[0]
    assert net.law(n=ns.inf, draws=100, coordinates=[0, 5]).dim == 2
    found = drawn(
        conditional(net.outputs, {"n": ns.inf}, DRAWS, 5, progress=False, picked=[0, 5])
    )
    wide = net.simulate(n=32, draws=4000, seed=1, coordinates=[0, 5], progress=False)
    assert smallest_p(found, wide) > LEVEL
    layer = ns.Program(ns.nn.attention(x, 1, sigma_q=3.0))[0]
    two = layer.law(n=ns.inf, coordinates=[0, 1])
    one = layer.law(n=ns.inf)
    np.testing.assert_allclose(two.var(), one.var(), rtol=0.02)
    # Cov(y_0², y_1²) = Var(v): v is what the scores leave random, and kurtosis ·
    # variance² = 3 Var(v)
    squares = (
        np.mean(two.component_cov[:, 0, 0] * two.component_cov[:, 1, 1])
        - one.var() ** 2
    )
    assert squares == pytest.approx(one.kurtosis() * one.var() ** 2 / 3, rel=0.1)
    assert not two.component_cov[:, 0, 1].any()


def test_one_coordinate_may_be_chosen():
    net = ns.Program(
        ns.data(np.array([1.0, 2.0, 5.0])) + ns.weight(3, 3) @ ns.data(np.ones(3))
    )
    for place, mean in ((0, 1.0), (2, 5.0), (-2, 2.0)):
        law = net.law(coordinates=place)
        assert law.mean() == mean
        assert not law.notes
    assert net.law(coordinates=[2, 0]).mean().tolist() == [5.0, 1.0]
    assert net.law(coordinates=np.array([2, 0])).mean().tolist() == [5.0, 1.0]
    assert net.law(coordinates=range(3)).mean().tolist() == [1.0, 2.0, 5.0]
    law = net.law()
    assert law.mean() == 1.0
    assert any(
        "coordinates of the output differ" in note and "law(coordinates=…)" in note
        for note in law.notes
    )


@pytest.mark.parametrize("make", [residual, scaled, with_means])
def test_where_coordinates_are_alike_nothing_is_noted(make):
    assert not any(
        "differ" in note for note in ns.Program(make()).law(n=4, draws=10).notes
    )


def test_rotary_positions_are_noted():
    assert any(
        "differ" in note for note in ns.Program(rotated()).law(n=4, draws=10).notes
    )


def test_bad_coordinates():
    net = ns.Program(residual())
    for bad, problem in (
        ([0, 4], r"coordinates=\[0, 4\] must be from -4 to 3"),
        ([0, -4], "must be integers that name each coordinate once"),
        ([], "must be an integer or a list of integers"),
        ("0", "must be an integer or a list of integers"),
        (1.5, "must be an integer or a list of integers"),
        ([True], "must be an integer or a list of integers"),
    ):
        with pytest.raises(ValueError, match=problem):
            net.law(n=4, coordinates=bad)
        with pytest.raises(ValueError, match=problem):
            net.plan(n=4, coordinates=bad)
    with pytest.raises(
        ValueError, match="coordinates=-1 must be 0 or more at infinite width"
    ):
        net.law(n=ns.inf, coordinates=-1)
    with pytest.raises(
        ValueError, match="must be left out: a scalar has no coordinates"
    ):
        ns.Program(ns.mean_dot(ns.gaussian(n), ns.gaussian(n))).law(n=4, coordinates=0)


@pytest.mark.parametrize("make", [residual, scaled, with_means, turned, rotated])
@pytest.mark.parametrize("places", [None, 2, [3, 0]])
def test_plan_counts_what_the_law_of_these_coordinates_draws(make, places):
    net = ns.Program(make())
    plan, law = (
        net.plan(n=4, coordinates=places),
        net.law(n=4, coordinates=places, draws=4),
    )
    assert plan.random_numbers == law.random_numbers
    assert plan.mean.shape == (law.dim,)
    assert ("coordinate" in plan.title) == (places is not None)
