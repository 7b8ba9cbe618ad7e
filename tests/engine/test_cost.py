"""Matrices are drawn where that costs less than sources for what their inputs span: the law is the same either way."""

import numpy as np
import pytest

import netsor as ns
from netsor.engine._prices import ACCELERATOR, CPU
from netsor.engine.backends import Numpy
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


@ns.program
def encoder(tokens, width, hidden, layers=2):
    """Post-norm, two heads, ReLU: the mean product of tokens."""
    x = ns.gaussian(width, tokens)
    for _ in range(layers):
        x = ns.layer_norm(x + ns.nn.attention(x, 2, width // 2), eps=0.01)
        x = ns.layer_norm(x + ns.nn.mlp(x, hidden, activation=ns.relu), eps=0.01)
    return ns.mean_dot(x, x)


def forced(way, monkeypatch, prices=CPU):
    monkeypatch.setattr(_cost, "PREFERENCE", way)
    monkeypatch.setattr(_cost, "FEWEST", 0)
    monkeypatch.setattr(Numpy, "prices", prices)


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


@pytest.mark.parametrize("prices", [CPU, ACCELERATOR], ids=lambda prices: prices.place)
@pytest.mark.parametrize("way", [FACTOR, DRAWN])
def test_either_way_has_the_law_of_drawn_weights(way, prices, monkeypatch):
    forced(way, monkeypatch, prices)
    assert smallest_p(block(), 4000, n=5, m=6) > LEVEL


@pytest.mark.parametrize("tokens", [64, 192, 1024])
def test_an_accelerator_draws_every_matrix(tokens):
    """The numbers of the literal network, and nothing but normals, products and functions."""
    width, hidden = 720, 2880
    plan = make_plan(encoder(tokens, width, hidden).outputs, {}, prices=ACCELERATOR)
    assert plan.random_numbers == tokens * width + 2 * (4 * width**2 + 2 * width * hidden)
    kinds = {step.kind for step in plan.steps}
    assert kinds <= {"normals", "product", "gram", "apply", "add", "multiply", "scale", "reshape", "permute"}
    assert "made for an accelerator" in str(plan)


def test_a_wide_space_has_a_frame_that_grows():
    """Of a million coordinates 64 vectors need 64."""
    net = encoder(64, 10**6, 256, layers=1)
    drawn = [make_plan(net.outputs, {}, prices=prices).random_numbers for prices in (CPU, ACCELERATOR)]
    assert max(drawn) < 1e7


def test_few_tokens_have_one_plan_everywhere():
    net = encoder(16, 64, 256)
    one, other = (make_plan(net.outputs, {}, prices=prices).steps for prices in (CPU, ACCELERATOR))
    assert [(s.kind, s.out.shape, s.params.get("key")) for s in one] == [
        (s.kind, s.out.shape, s.params.get("key")) for s in other
    ]


def test_a_law_has_the_plan_of_its_backend(monkeypatch):
    net = encoder(64, 64, 96)[0]
    drawn = {CPU: net.law(draws=2).random_numbers}
    monkeypatch.setattr(Numpy, "prices", ACCELERATOR)
    drawn[ACCELERATOR] = net.law(draws=2).random_numbers
    assert drawn == {prices: make_plan(net.outputs, {}, prices=prices).random_numbers for prices in drawn}
    assert drawn[CPU] != drawn[ACCELERATOR] == net.plan().random_numbers


@pytest.mark.parametrize("seeds", [[3, 9, 17, 19], pytest.param(range(24), marks=pytest.mark.slow)])
def test_random_programs_either_way(seeds, monkeypatch):
    """With the weights drawn by the literal interpreter, and where the ways differ."""
    differ = 0
    for seed in seeds:
        counts = set()
        for way, prices in ((FACTOR, CPU), (DRAWN, CPU), (DRAWN, ACCELERATOR)):
            forced(way, monkeypatch, prices)
            built = grown(Builder(seed, WIDTHS), STEPS, 9, 12)  # anew: plans of one program are kept
            counts.add(make_plan(built.net.outputs, built.widths, prices=prices).random_numbers)
            assert smallest_p(built.net, 1000, **built.widths) > LEVEL
        differ += len(counts) == 3
    assert differ >= 4
