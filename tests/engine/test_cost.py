"""Matrices are drawn where that costs less than sources for what their inputs span: the law is the same either way."""

import numpy as np
import pytest

import netsor as ns
from netsor.engine.lower import _cost, make_plan

from ..builder import Builder
from ..programs import STEPS, WIDTHS, grown
from .compare import smallest_p

n, m = ns.Width("n"), ns.Width("m")
LEVEL = 1e-6  # of one comparison: fewer than a hundred are made
FACTOR, DRAWN = 0.0, np.inf  # preferences that force either way


@ns.program
def perceptron(tokens):
    """Two layers, and all products of what they make."""
    x = ns.gaussian(n, tokens)
    y = ns.weight(n, m, name="V") @ ns.relu(ns.weight(m, n) @ x)
    return ns.mean_dot(y, y)


@ns.program
def block(tokens=4):
    """Residuals, norms and attention: frames that grow, and one of whole coordinates."""
    x = ns.gaussian(n, tokens)
    for _ in range(2):
        x = x + ns.nn.attention(ns.rms_norm(x), 2, 3)
        x = x + ns.nn.mlp(ns.layer_norm(x, eps=0.1), m)
    return x[0], ns.mean_dot(x, x)[0]


def forced(way, monkeypatch):
    monkeypatch.setattr(_cost, "PREFERENCE", way)
    monkeypatch.setattr(_cost, "FEWEST", 0)


def plan(net, way, monkeypatch, **widths):
    forced(way, monkeypatch)
    return make_plan(net.outputs, widths)


@pytest.mark.parametrize(("k", "width", "hidden"), [(4, 6, 9), (3, 8, 5), (2, 3, 7)])
def test_numbers_by_formula(k, width, hidden, monkeypatch):
    """Bartlett's triangle of k sources for the inputs, k · m coordinates, and k sources or m of them for the output."""

    def triangle(sources, width):
        return sum(min(i + 1, width) for i in range(sources))

    first = triangle(k, width) + k * hidden
    assert plan(perceptron(k), FACTOR, monkeypatch, n=width, m=hidden).random_numbers == first + triangle(k, width)
    drawn = plan(perceptron(k), DRAWN, monkeypatch, n=width, m=hidden)
    assert drawn.random_numbers == first + triangle(hidden, width)
    assert f"V x = x E, the matrix drawn: a factor for {k} inputs costs more" in str(drawn)


@pytest.mark.parametrize("tokens", [1, 4, 32, 128, 512, 2000])
def test_the_cheaper_is_chosen(tokens, monkeypatch):
    """As far as the estimate of a plan goes, and for few tokens the factor, for many the matrix."""
    chosen = make_plan(perceptron(tokens).outputs, {"n": 64, "m": 256}).seconds(1)
    both = [plan(perceptron(tokens), way, monkeypatch, n=64, m=256).seconds(1) for way in (FACTOR, DRAWN)]
    assert chosen <= 1.05 * min(both)
    assert chosen == both[tokens >= 128]


@pytest.mark.parametrize("way", [FACTOR, DRAWN])
def test_either_way_has_the_law_of_drawn_weights(way, monkeypatch):
    forced(way, monkeypatch)
    assert smallest_p(block(), 4000, n=5, m=6) > LEVEL


@pytest.mark.parametrize("seeds", [[3, 9, 17, 19], pytest.param(range(24), marks=pytest.mark.slow)])
def test_random_programs_either_way(seeds, monkeypatch):
    """With the weights drawn by the literal interpreter, and where the two ways differ."""
    differ = 0
    for seed in seeds:
        counts = set()
        for way in (FACTOR, DRAWN):
            forced(way, monkeypatch)
            built = grown(Builder(seed, WIDTHS), STEPS, 9, 12)  # anew: plans of one program are kept
            counts.add(make_plan(built.net.outputs, built.widths).random_numbers)
            assert smallest_p(built.net, 1000, **built.widths) > LEVEL
        differ += len(counts) == 2
    assert differ >= 4
