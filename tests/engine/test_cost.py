"""Matrices are drawn where that costs less than sources for what their inputs span: the
law is the same either way.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import netsor as ns
from tests.internals import ACCELERATOR, CPU, Numpy, _cost_model, make_plan

from ..builder import Builder
from ..gradients import gradients
from ..keep import keep
from ..programs import STEPS, WIDTHS, grown
from .compare import exact_draws, literal_draws, smallest_of, smallest_p

n, m = ns.Width("n"), ns.Width("m")
# factors that cost more than any matrix
DEAR = replace(ACCELERATOR, chi=1e-6, factor_row=1e-5)
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
    """Residuals, norms and attention: frames that grow, and one of whole
    coordinates.
    """
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
    monkeypatch.setattr(_cost_model, "PREFERENCE", way)
    monkeypatch.setattr(_cost_model, "FEWEST", 0)
    monkeypatch.setattr(Numpy, "prices", prices)


@cache
def literal(make, **widths):
    return literal_draws(make(), 4000, **widths)


def smallest(make, **widths):
    """The smallest p-value of a program, made anew: plans of one program are kept."""
    return smallest_of(exact_draws(make(), 4000, **widths), literal(make, **widths))


def plan(net, way, monkeypatch, **widths):
    forced(way, monkeypatch)
    return make_plan(net.outputs, widths)


@pytest.mark.parametrize(("k", "width", "hidden"), [(4, 6, 9), (3, 8, 5), (2, 3, 7)])
def test_numbers_by_formula(k, width, hidden, monkeypatch):
    """Bartlett's triangle of k sources for the inputs, k · m coordinates, and k sources
    or m of them for the output.
    """

    def triangle(sources, width):
        return sum(min(i + 1, width) for i in range(sources))

    first = triangle(k, width) + k * hidden
    assert plan(
        perceptron(k), FACTOR, monkeypatch, n=width, m=hidden
    ).random_numbers == first + triangle(k, width)
    drawn = plan(perceptron(k), DRAWN, monkeypatch, n=width, m=hidden)
    assert drawn.random_numbers == first + triangle(hidden, width)
    assert f"V x = x E, the matrix drawn: a factor for {k} inputs costs more" in str(
        drawn
    )


@pytest.mark.parametrize("tokens", [1, 4, 32, 128, 512, 2000])
def test_cheaper_method_is_chosen(tokens, monkeypatch):
    """As far as the estimate of a plan goes, and for few tokens the factor, for many
    the matrix.
    """
    chosen = make_plan(perceptron(tokens).outputs, {"n": 64, "m": 256})
    both = [
        plan(perceptron(tokens), way, monkeypatch, n=64, m=256).seconds(1)
        for way in (FACTOR, DRAWN)
    ]
    assert chosen.seconds(1) <= 1.05 * min(both)
    assert ("V x = x E, the matrix drawn" in str(chosen)) == (tokens >= 128)


@pytest.mark.parametrize("prices", [CPU, DEAR], ids=lambda prices: prices.place)
@pytest.mark.parametrize("way", [FACTOR, DRAWN])
def test_either_way_has_the_law_of_drawn_weights(way, prices, monkeypatch):
    forced(way, monkeypatch, prices)
    assert smallest(block, n=5, m=6) > LEVEL


@pytest.mark.parametrize("prices", [CPU, DEAR], ids=lambda prices: prices.place)
def test_several_matrices_of_which_only_an_output_needs_something(prices, monkeypatch):
    """In a space with whole coordinates: nothing of them is drawn, and the law has a
    Gaussian part.
    """
    x = ns.weight(n, m) @ ns.gaussian(m, 3)
    net = ns.Program(((ns.weight(n, n, 2) @ x + x)[:, 0], ns.mean_dot(x, x)[0]))
    forced(DRAWN, monkeypatch, prices)
    assert smallest_p(net, 2000, n=5, m=4) > LEVEL
    assert make_plan(net.outputs, {"n": 5, "m": 4}, prices=prices).columns.size


@pytest.mark.parametrize("tokens", [64, 192, 1024])
def test_where_factors_are_dear_every_matrix_is_drawn(tokens):
    """The numbers of the literal network, and nothing but normals, products and
    functions.
    """
    width, hidden = 720, 2880
    plan = make_plan(encoder(tokens, width, hidden).outputs, {}, prices=DEAR)
    assert plan.random_numbers == tokens * width + 2 * (
        4 * width**2 + 2 * width * hidden
    )
    kinds = {step.kind for step in plan.steps}
    assert kinds <= {
        "normals",
        "product",
        "gram",
        "apply",
        "add",
        "multiply",
        "scale",
        "reshape",
        "permute",
    }
    assert "made for an accelerator" in str(plan)


def test_accelerator_takes_the_factor_for_few_tokens_and_draws_matrices_for_many():
    width, hidden, weights = 720, 2880, 2 * (4 * 720**2 + 2 * 720 * 2880)
    few, many = (
        make_plan(encoder(t, width, hidden).outputs, {}, prices=ACCELERATOR)
        for t in (128, 720)
    )
    assert few.random_numbers < weights / 4
    assert (
        sum(step.out.size for step in many.steps if step.kind == "normals")
        > 0.9 * weights
    )


def test_wide_space_has_a_frame_that_grows():
    """Of a million coordinates 64 vectors need 64."""
    net = encoder(64, 10**6, 256, layers=1)
    drawn = [
        make_plan(net.outputs, {}, prices=prices).random_numbers
        for prices in (CPU, ACCELERATOR)
    ]
    assert max(drawn) < 1e7


def test_few_tokens_have_one_plan_everywhere():
    net = encoder(16, 64, 256)
    one, other = (
        make_plan(net.outputs, {}, prices=prices).steps for prices in (CPU, ACCELERATOR)
    )
    assert [(s.kind, s.out.shape, s.params.get("key")) for s in one] == [
        (s.kind, s.out.shape, s.params.get("key")) for s in other
    ]


def test_law_has_the_plan_of_its_backend(monkeypatch):
    net = encoder(64, 64, 96)[0]
    drawn = {CPU: net.law(draws=2).random_numbers}
    monkeypatch.setattr(Numpy, "prices", DEAR)
    drawn[DEAR] = net.law(draws=2).random_numbers
    assert drawn == {
        prices: make_plan(net.outputs, {}, prices=prices).random_numbers
        for prices in drawn
    }
    assert drawn[CPU] != drawn[DEAR] == net.plan().random_numbers


@pytest.mark.parametrize(
    "seeds", [[3, 9, 17, 19], pytest.param(range(24), marks=pytest.mark.slow)]
)
def test_random_programs_either_way(seeds, monkeypatch):
    """With the weights drawn by the literal interpreter, and where the ways differ."""
    differ = 0
    for grain in seeds:
        counts, right = set(), None
        for way, prices in ((FACTOR, CPU), (DRAWN, CPU), (DRAWN, DEAR)):
            forced(way, monkeypatch, prices)
            # anew: plans of one program are kept
            built = grown(Builder(grain, WIDTHS), STEPS, 9, 12)
            counts.add(
                make_plan(built.net.outputs, built.widths, prices=prices).random_numbers
            )
            right = (
                literal_draws(built.net, 1000, **built.widths)
                if right is None
                else right
            )
            assert (
                smallest_of(exact_draws(built.net, 1000, **built.widths), right) > LEVEL
            )
        differ += len(counts) == 3
    assert differ >= 4


# Matrices that act in several places, or also as W^T


@ns.program
def shared(tokens=2, layers=3):
    """One block again and again, with a residual, and what its matrices make as W^T at
    the end.
    """
    up, down, x = (
        ns.weight(m, n, name="U"),
        ns.weight(n, m, name="D"),
        ns.gaussian(n, tokens),
    )
    for _ in range(layers):
        x = x + down @ ns.tanh(up @ x)
    back, other = up.T @ ns.relu(up @ x), down.T @ x
    return ns.mean_dot(x, x), ns.mean_dot(back, x), ns.mean_dot(other, other)


@ns.program
def square(tokens=2):
    """⟨y, W x⟩ and ⟨W^T y, x⟩, which are the same number, of a matrix that could be
    taken for its transpose.
    """
    w, x, y = ns.weight(n, n, name="W"), ns.gaussian(n, tokens), ns.gaussian(n, tokens)
    return ns.dot(w @ x, y), ns.dot(x, w.T @ y)


@pytest.mark.parametrize(
    ("tokens", "layers", "width", "hidden"), [(2, 3, 5, 7), (3, 2, 8, 4)]
)
def test_entries_of_a_matrix_that_acts_again_are_drawn_once(
    tokens, layers, width, hidden, monkeypatch
):
    net = shared(tokens, layers)
    made = plan(net, DRAWN, monkeypatch, n=width, m=hidden)
    assert made.random_numbers == tokens * width + 2 * width * hidden
    for name, acts in (("U", layers + 1), ("D", layers)):
        on = f"the matrix drawn: it acts on {tokens * (acts + 1)} vectors in all"
        assert str(made).count(f"{name} x = x E, {on}") == acts
        assert str(made).count(f"{name}^T x = x E^T, {on}") == 1
    assert "acts on" not in str(plan(net, FACTOR, monkeypatch, n=width, m=hidden))


@pytest.mark.parametrize(
    "prices", keep([CPU, ACCELERATOR], CPU), ids=lambda prices: prices.place
)
@pytest.mark.parametrize("way", [FACTOR, DRAWN])
def test_matrix_that_acts_again_has_its_law_either_way(way, prices, monkeypatch):
    forced(way, monkeypatch, prices)
    assert smallest(shared, n=5, m=6) > LEVEL
    assert smallest(square, n=4) > LEVEL


def test_transpose_is_that_of_the_same_entries(monkeypatch):
    """Draw by draw, not in law alone."""
    forced(DRAWN, monkeypatch)
    one, other = np.split(exact_draws(square(), 50, n=6), 2, axis=1)
    np.testing.assert_allclose(one, other, atol=1e-12)
    assert np.abs(one).min() > 1e-6


@pytest.mark.slow
def test_random_gradients_with_drawn_matrices(monkeypatch):
    """With the weights drawn by the literal interpreter; by directions: in
    test_gradients.
    """
    forced(DRAWN, monkeypatch)
    again = []

    @seed(5)
    @settings(
        max_examples=20,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(built=gradients(steps=4, most=45))
    def each(built):
        again.append("acts on" in str(make_plan(built.net.outputs, built.widths)))
        assert smallest_p(built.net, 400, **built.widths) > LEVEL

    each()
    assert sum(again) >= 5


@pytest.mark.parametrize("tokens", [12, 24, 400])
def test_matrices_that_act_on_many_vectors_are_drawn(tokens):
    """Where their entries cost less than sources for what they act on: not for few
    tokens, on a CPU for many.
    """
    net = shared(tokens, layers=2)
    at = {"n": 300, "m": 400}
    chosen = {
        p.place: "acts on" in str(make_plan(net.outputs, at, prices=p))
        for p in (CPU, ACCELERATOR)
    }
    assert chosen == {CPU.place: tokens == 400, ACCELERATOR.place: tokens > 12}


def test_rows_for_outputs_alone_are_not_drawn(monkeypatch):
    """A coordinate of W tanh(W x) is Gaussian given the rest: its law is a smooth
    mixture either way.
    """
    w = ns.weight(n, n)
    made = plan(ns.Program(w @ ns.tanh(w @ ns.gaussian(n))), DRAWN, monkeypatch, n=6)
    assert "acts on" not in str(made)
    assert made.columns.size > 0
