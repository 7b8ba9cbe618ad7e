"""The number of random numbers, by formula."""

import pytest
from examples import attention_layer

import netsor as ns

from .compare import d, mixture, n


@pytest.mark.parametrize(("s", "heads"), [(1, 1), (2, 3), (4, 2), (7, 5)])
def test_random_numbers_of_the_papers_layer(s, heads):
    net = attention_layer.net(tokens=s, heads=heads)[0]
    counts = [net.law(n=width, draws=10).random_numbers for width in (16, 1024, 10**9)]
    assert counts == [s * (s + 1) // 2 + 1 + heads * (s + 2)] * 3
    assert mixture(net.law(n=ns.inf, draws=10)).random_numbers == heads * s


def test_random_numbers_of_all_tokens():
    s, heads = 4, 2
    count = attention_layer.net().law(n=64, draws=10).random_numbers
    triangle = s * (s + 1) // 2
    # tokens; queries, scores, values
    assert count == 1 + triangle + heads * (triangle + s * s + triangle)


def test_relu_costs_its_coordinates():
    net = ns.Program(
        ns.nn.attention(ns.relu(ns.weight(n, n, 4) @ ns.gaussian(n)), 2)[0]
    )
    assert net.law(n=100, draws=10).random_numbers == 1 + 4 * 100 + 2 * (4 + 2)
    assert mixture(net.law(n=ns.inf, draws=10)).random_numbers == 2 * 4


def test_bias_is_fused():
    x = ns.tanh(ns.gaussian(n, 2))
    plain = (
        ns.Program(ns.mean_dot(ns.weight(d, n) @ x, ns.weight(d, n) @ x))
        .law(n=8, d=9, draws=4)
        .random_numbers
    )
    biased = ns.weight(d, n) @ x + ns.gaussian(d, 2)
    assert (
        ns.Program(ns.mean_dot(biased, ns.weight(d, n) @ x))
        .law(n=8, d=9, draws=4)
        .random_numbers
        == plain
    )
