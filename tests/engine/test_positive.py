"""Products of ReLU vectors from how many coordinates have which signs: the law of the
literal network.
"""

import math
import tracemalloc

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    Streams,
    _latent,
    _relu_sign_patterns,
    make_plan,
    positive_products,
)

from .compare import conditional, n, smallest_p

# of each of the comparisons with the literal interpreter, whose seeds are fixed
LEVEL = 1e-6


@ns.program
def tokens(count=3, heads=2):
    return ns.nn.attention(
        ns.relu(ns.weight(n, n, batch=count) @ ns.gaussian(n)), heads
    )[0]


@ns.program
def stack(depth=3):
    x = ns.gaussian(n)
    for _ in range(depth):
        x = ns.relu(ns.weight(n, n) @ x)
    return ns.weight(n, n) @ x


@ns.program
def given(count=2):
    """Initial vectors, and products as outputs."""
    x = 0.5 * ns.relu(-3.0 * ns.gaussian(n, count))
    return ns.mean_dot(ns.weight(n, n) @ x, ns.weight(n, n) @ x)


def kinds(net, **widths):
    return [step.kind for step in net.plan(**widths).steps]


@pytest.mark.parametrize(
    "net", [tokens(1), tokens(2), tokens(3), tokens(4), stack(), given(1), given(2)]
)
def test_law_is_that_of_the_literal_network(net, monkeypatch):
    """At small widths, where patterns of signs are often missing, and whole vectors are
    0.
    """
    monkeypatch.setattr(_relu_sign_patterns, "MIN_COORDINATES_PER_PATTERN", 0)
    for width in (1, 2, 5):
        assert "positive" in kinds(net, n=7)
        assert smallest_p(net, draws=3000, n=width) > LEVEL


def test_law_by_sign_patterns_has_right_products():
    """Of products, which vary little at this width: what is off by a tenth is seen."""
    v = ns.weight(n, n) @ ns.relu(ns.weight(n, n, batch=2) @ ns.gaussian(n))
    net = ns.Program((ns.mean_dot(v, v), v))
    assert "positive" in kinds(net, n=64)
    assert smallest_p(net, draws=2000, n=64) > LEVEL


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [3, 40])
def test_moments_of_the_products(width, dtype):
    """With x = max(g, 0): E x = (2π)^(−1/2), E x² = 1/2, E x⁴ = 3/2, and vectors and
    coordinates are independent.

    25 numbers at five standard errors, four times: a false alarm at 6e-5.
    """
    found = positive_products(
        (0,), width, 4, 40_000, np.dtype(dtype), Streams(0, 0, dtype).next
    )[:, 0].astype(float)
    one, two, four = 1 / math.sqrt(2 * math.pi), 0.5, 1.5
    np.testing.assert_array_equal(found, found.swapaxes(1, 2))
    mean = np.full((4, 4), width * one**2)
    np.fill_diagonal(mean, width * two)
    assert (
        np.abs(found.mean(axis=0) - mean)
        < 5 * found.std(axis=0) / math.sqrt(len(found))
    ).all()
    off = found - mean
    for (a, b), (c, d), each in (
        ((0, 0), (0, 0), four - two**2),
        ((0, 0), (1, 1), 0.0),
        ((0, 1), (0, 1), two**2 - one**4),
        ((0, 1), (0, 2), two * one**2 - one**4),
        ((0, 1), (2, 3), 0.0),
        ((0, 1), (2, 2), 0.0),
        ((1, 1), (1, 2), math.sqrt(2 / math.pi) * one - two * one**2),
        ((3, 3), (2, 3), math.sqrt(2 / math.pi) * one - two * one**2),
    ):
        product = off[:, a, b] * off[:, c, d]
        assert abs(product.mean() - width * each) < 5 * product.std() / math.sqrt(
            len(product)
        )


def test_random_numbers_by_formula():
    """Counts and χ; sizes where two or more are positive, on average."""
    for count, width in ((1, 32), (2, 64), (3, 128), (4, 256), (4, 1024)):
        sizes = width * (count / 2 - count / 2**count)
        attention = 2 * (count + 2)
        found = tokens(count).plan(n=width).random_numbers
        assert found == round(sizes) + 2**count - 1 + count + 1 + attention
        plain = make_plan(tokens(count).outputs, {"n": width}).random_numbers
        assert plain == count * width + 1 + attention
    counts = positive_products((0,), 100, 4, 20_000, np.dtype(float), _Counting().next)
    assert counts.shape == (20_000, 1, 4, 4)
    # standard error: 0.06
    assert abs(_Counting.drawn / 20_000 - 100 * (2 - 1 / 4)) < 0.5


@pytest.mark.parametrize(("count", "width"), [(2, 2**19), (3, 2**20), (4, 2**21)])
def test_memory_of_a_plan_is_what_it_takes(count, width):
    net = given(count)
    tracemalloc.start()
    net.draw(draws=2, n=width)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak == pytest.approx(net.plan(n=width).bytes, rel=0.05)
    # so few are taken for many replicas at once, and are no part of a block
    assert net.plan(n=width // 4).bytes < 5000


class _Counting(Streams):
    drawn = 0

    def __init__(self):
        super().__init__(0, 0)

    def next(self, key, made):
        for rng, some in super().next(key, made):
            _Counting.drawn += (
                int(some.sum()) if made.ndim == 1 and made.dtype.kind == "i" else 0
            )
            yield rng, some


def test_draws_do_not_depend_on_how_replicas_are_cut():
    """One by one, and in blocks and chunks of any size: the same bits."""
    sizes, dtype = [1, 1, 7, 130, 500, 361], np.dtype(float)
    cut, whole = Streams(0, 0), Streams(0, 0)
    parts = [positive_products((0,), 64, 4, size, dtype, cut.next) for size in sizes]
    np.testing.assert_array_equal(
        np.concatenate(parts), positive_products((0,), 64, 4, 1000, dtype, whole.next)
    )
    outputs, widths = tokens(4).outputs, {"n": 256}
    many = conditional(outputs, widths, 9000)
    np.testing.assert_array_equal(conditional(outputs, widths, 700).cov, many.cov[:700])
    np.testing.assert_array_equal(
        tokens(4).draw(draws=50, n=256), tokens(4).draw(draws=3000, n=256)[:50]
    )


def test_coordinates_that_serve_for_more_are_drawn():
    g = ns.weight(n, n, batch=2) @ ns.gaussian(n)
    x = ns.relu(g)
    v = ns.weight(n, n) @ x
    products = ns.mean_dot(v, v)
    others = {
        "the vectors themselves": ns.Program((products, x)),
        "what they are made of": ns.Program((products, ns.mean_dot(g, g))),
        "another function of it": ns.Program((products, ns.weight(n, n) @ ns.tanh(g))),
        "another function": ns.Program(ns.weight(n, n) @ ns.leaky_relu(g, 0.1)),
        "vectors that depend on each other": ns.Program(
            ns.weight(n, n) @ ns.relu(ns.weight(n, n) @ x)
        ),
        "a mean": ns.Program(ns.weight(n, n) @ ns.relu(ns.gaussian(n, 2, mean=0.1))),
    }
    for what, net in others.items():
        assert "apply" in kinds(net, n=64), what
    assert "apply" not in kinds(ns.Program(products), n=64)
    assert "positive" not in kinds(tokens(5), n=1024)
    assert "positive" not in kinds(tokens(4), n=255)


def test_other_places_draw_all_coordinates():
    """JAX and PyTorch have arrays of one shape for all replicas; chains move over
    normals alone.
    """
    assert "positive" not in [
        step.kind for step in make_plan(tokens().outputs, {"n": 256}).steps
    ]
    latent, _ = tokens()._at({"n": 256}).latent(1, ns.engine.backends.Numpy())
    assert isinstance(latent, _latent.Latent)
    assert latent.size > 3 * 256


def test_every_layer_of_a_deep_network():
    assert kinds(stack(12), n=64).count("positive") == 12
    keys = [
        step.params["key"]
        for step in stack(12).plan(n=64).steps
        if step.kind == "positive"
    ]
    assert len(set(keys)) == 12
