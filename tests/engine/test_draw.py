"""Exact draws of the outputs: the literal law, the rules of seeds, and no array that
grows with the square of them.
"""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

import netsor as ns
from tests.internals import _numpy, _rng_keys

from ..programs import programs
from .compare import d, literal_draws, n, smallest_of


def flat(drawn, draws):
    parts = drawn if isinstance(drawn, tuple) else (drawn,)
    return np.concatenate([a.reshape(draws, -1) for a in parts], axis=1)


# 10 programs with 13 comparisons each, at 1e-8: a false alarm with probability 1e-6
@settings(max_examples=4, deadline=None, derandomize=True)
@given(programs(steps=10))
def test_draws_of_random_programs_have_the_literal_law(built):
    found = flat(built.net.draw(draws=1500, progress=False, **built.widths), 1500)
    assert smallest_of(found, literal_draws(built.net, 1500, **built.widths)) > 1e-8


def block():
    x = ns.gaussian(n, 3)
    q, k = ns.weight(d, n, 2) @ x, ns.weight(d, n, 2) @ x
    p = ns.dot(q, k)
    y = ns.weight(n, 2 * n) @ ns.concat(
        ns.softmax(p) @ (ns.weight(n, n, 2) @ x), axis=0
    )
    return ns.Program((y, p, ns.mean_dot(y, y)))


def test_shapes_are_those_of_the_outputs():
    y, p, gram = block().draw(draws=5, n=4, d=3, progress=False)
    assert (y.shape, p.shape, gram.shape) == ((5, 3), (5, 2, 3, 3), (5, 3, 3))
    assert block()[1].draw(draws=5, n=4, d=ns.inf, progress=False).shape == (5, 2, 3, 3)
    assert block()[1][0, 1, 2].draw(draws=1, n=4, d=3, progress=False).shape == (1,)


@pytest.mark.parametrize("widths", [{"n": 6, "d": 3}, {"n": ns.inf, "d": ns.inf}])
def test_coordinate_is_drawn_jointly_with_the_scalars(widths):
    """The mean of y_i y_j given the Gram matrix is its entry; at infinite width y is
    N(0, Gram).
    """
    y, _, gram = block().draw(draws=20_000, progress=False, **widths)
    products = y[:, :, None] * y[:, None, :]
    error = products - gram
    # a standard error each, at 5: nine means, a false alarm with probability 5e-6
    assert (np.abs(error.mean(axis=0)) < 5 * error.std(axis=0) / 20_000**0.5).all()
    slope = [np.polyfit(gram[:, i, i], products[:, i, i], 1)[0] for i in range(3)]
    # independent of the Gram matrix they would be 0
    np.testing.assert_allclose(slope, 1.0, atol=0.25)
    if widths["n"] == ns.inf:
        unit = y[:, 0] / np.sqrt(gram[:, 0, 0])
        assert stats.kstest(unit, "norm").pvalue > 1e-4


def test_draws_are_the_same_for_any_workers_and_blocks_and_begin_alike(monkeypatch):
    net, at = block(), {"n": 6, "d": 3, "progress": False, "seed": 4}
    first = flat(net.draw(draws=700, workers=1, **at), 700)
    np.testing.assert_array_equal(
        first, flat(net.draw(draws=700, workers=3, **at), 700)
    )
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(
            first, flat(net.draw(draws=700, executor=pool, **at), 700)
        )
    np.testing.assert_array_equal(first[:45], flat(net.draw(draws=45, **at), 45))
    for size, draws in ((7, 700), (1, 70)):
        monkeypatch.setattr(_numpy, "block_of", lambda *_, size=size: size)
        np.testing.assert_allclose(
            first[:draws],
            flat(net.draw(draws=draws, **at), draws),
            rtol=1e-9,
            atol=1e-12,
        )
    assert len(np.unique(first[:, 0])) == 700  # no two chunks draw the same


def reused():
    """One matrix thrice on three vectors of a narrow space: they are dependent, and
    some factors are made again.
    """
    w, x = ns.weight(n, n), ns.gaussian(n, 3)
    for _ in range(3):
        x = ns.relu(w @ x)
    return ns.Program((x, ns.mean_dot(x, x)))


@pytest.mark.parametrize("most", [2, 3, 5])
@pytest.mark.parametrize("net", [block(), reused()])
def test_bits_do_not_depend_on_what_is_computed_together(net, most, monkeypatch):
    """Sums are added in one order, whether few draws or many are in a block, and none
    is alone in one.
    """
    at = {"progress": False, "seed": 4, **dict.fromkeys(net.widths, 4)}
    whole = flat(net.draw(draws=41, workers=1, **at), 41)
    for draws, workers in ((9, 2), (17, 3), (41, 5)):
        np.testing.assert_array_equal(
            whole[:draws], flat(net.draw(draws=draws, workers=workers, **at), draws)
        )
    monkeypatch.setattr(_numpy, "block_of", lambda *_: most)
    np.testing.assert_array_equal(whole, flat(net.draw(draws=41, workers=1, **at), 41))


def test_one_seed_couples_two_widths():
    p = block()[1][:, 0, 1]
    limit = p.draw(draws=2000, n=ns.inf, d=ns.inf, progress=False)[:, 0]
    wide = [p.draw(draws=2000, n=w, d=w, progress=False)[:, 0] for w in (100, 10_000)]
    near = [np.corrcoef(limit, drawn)[0, 1] for drawn in wide]
    assert near[1] > near[0] > 0.9
    assert near[1] > 0.999


def test_chunks_cover_the_draws_and_grow_to_the_largest():
    parts = _rng_keys.growing_chunks(100_000)
    assert [i for part in parts for i in part] == list(range(100_000))
    assert len(parts[0]) == _rng_keys.FIRST == 8
    assert max(map(len, parts)) == _rng_keys.CHUNK
    assert parts[:20] == _rng_keys.growing_chunks(parts[19].stop)


def test_chunks_side_by_side_are_whole_and_as_many_as_workers_need():
    parts = _rng_keys.growing_chunks(100)
    for most, workers in ((1, 1), (24, 1), (1000, 1), (1000, 3)):
        found = _rng_keys.merge_chunks(parts, most, workers)
        assert [i for part in found for i in part] == list(range(100))
        assert {part.start for part in found} <= {part.start for part in parts}
        assert max(map(len, found)) <= max(most, max(map(len, parts)))
        assert len(found) >= workers
    assert [len(part) for part in _rng_keys.merge_chunks(parts, 24, 1)] == [
        24,
        24,
        16,
        16,
        20,
    ]


def test_streams_of_several_chunks_are_those_of_each():
    plan = block()[1].plan(n=6, d=3)
    drawn = [step for step in plan.steps if step.random_numbers]
    assert {step.kind for step in drawn} == {"normals", "chi"}
    together = _numpy.Streams(3, [range(8), range(8, 20), range(20, 21)])
    apart = [_numpy.Streams(3, start) for start in (0, 8, 20)]
    for step in drawn:
        # no piece ends with a chunk
        found = np.concatenate([together.draw(step, count) for count in (5, 1, 15)])
        wanted = np.concatenate(
            [
                each.draw(step, count)
                for each, count in zip(apart, (8, 12, 1), strict=True)
            ]
        )
        np.testing.assert_array_equal(found, wanted)


def test_draws_with_equal_replicas_are_independent():
    y = ns.Program(ns.gaussian(n, 2, cov=4.0)).draw(
        draws=4000, n=ns.inf, progress=False
    )
    assert stats.kstest(y[:, 0] / 2, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(y.T)[0, 1]) < 0.08  # five standard errors


def test_thousands_of_scalars_form_no_covariance():
    x = ns.gaussian(n, 64)
    net = ns.Program(ns.mean_dot(x, x))
    tracemalloc.start()
    try:
        made = net.draw(draws=8, n=100, workers=1, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.shape == (8, 64, 64)
    assert peak < 8 * 4096**2  # one covariance


@pytest.mark.parametrize(
    "wrong",
    [
        {"draws": 0},
        {"draws": 2.5},
        {"draws": 3, "seed": -1},
        {"draws": 3, "workers": 0},
    ],
)
def test_wrong_arguments_are_named(wrong):
    name = "draws" if wrong["draws"] != 3 else next(k for k in wrong if k != "draws")
    with pytest.raises(ValueError, match=f"{name}="):
        block().draw(n=4, d=3, **wrong)


def test_draws_that_are_not_finite_are_rejected():
    net = ns.Program(
        ns.apply(
            lambda p: np.where(p < 9, np.nan, p),
            ns.mean_dot(ns.gaussian(n, 1), ns.gaussian(n, 1)),
        )
    )
    with pytest.raises(ValueError, match="not finite"):
        net.draw(draws=3, n=4, progress=False)


def test_draw_at_infinite_width_without_limit_is_rejected():
    x = ns.gaussian(n, 1)
    g = ns.weight(n, n) @ x
    with pytest.raises(ns.NoLimitError):
        ns.Program(ns.dot(g, g)).draw(draws=3, n=ns.inf, progress=False)


@pytest.mark.parametrize("width", [16, ns.inf])
def test_outputs_drawn_alone_equal_those_drawn_together(width):
    """Asked for alone, an output is drawn from the same numbers as together with the
    others.
    """
    x = ns.gaussian(n, 3)
    y = ns.nn.attention(x, heads=2)
    net = ns.Program((ns.weight(n, n) @ x, ns.mean_dot(y, y)))
    whole, part = (
        net.draw(n=width, draws=4, seed=3)[1],
        net[1].draw(n=width, draws=4, seed=3),
    )
    np.testing.assert_allclose(part, whole, rtol=1e-12)
    # a program of its own has its own
    other = ns.Program(net.outputs[1]).draw(n=width, draws=4, seed=3)
    assert not np.allclose(other, whole)
