"""Expectations of functions that nothing is known of: poles, spikes, growth,
oscillation; against closed forms.
"""

import numpy as np
import pytest
from scipy import special

import netsor as ns
from tests.internals import (
    BatchedFunction,
    Function,
    features,
    kernel,
    kernel_of_several,
)

from ..keep import keep
from .test_expect import one

n = ns.Width("n")


def law(f, std=1.0):
    """Of an output coordinate of W f(std · g): N(0, E f(std g)²)."""
    return ns.Program(ns.weight(n, n) @ ns.nonlin(f, std * ns.gaussian(n))).law(
        n=ns.inf
    )


def keep_slow(value):
    """A case for the slow tests only."""
    return pytest.param(value, marks=pytest.mark.slow)


def pole(power, at=0.0):
    """|u − b|^−a and E of its square."""
    true = (
        2**-power
        * special.gamma(0.5 - power)
        / np.sqrt(np.pi)
        * special.hyp1f1(power, 0.5, -(at**2) / 2)
    )
    return Function("pole", lambda u: np.abs(u - at) ** -power), true


@pytest.mark.parametrize(
    ("power", "at"),
    keep(
        [(0.1, 0.0), (0.45, 0.0), (0.49, 0.0), (0.4, 1 / 3), (0.45, -1.0), (0.4, 2.5)],
        (0.1, 0.0),
        (0.49, 0.0),
        (0.4, 1 / 3),
        (0.4, 2.5),
    ),
)
def test_second_moment_of_an_integrable_pole_equals_the_closed_form(power, at):
    f, true = pole(power, at)
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - true) <= error < 1e-5 * true
    assert abs(value - true) < 1e-11 * true


def test_pole_on_one_side_has_half_of_the_closed_form():
    power = 0.4
    below = Function("below", lambda u: np.where(u < 0, np.abs(u) ** -power, 0.0))
    value, error = one(below, below, 1.0, 1.0, 1.0)
    assert abs(value - pole(power)[1] / 2) <= error < 1e-6


def test_pole_of_tiny_arguments_scales_with_them():
    """E |σ u|^−2a = σ^−2a E |u|^−2a."""
    power = 0.4
    f, true = pole(power)
    value, error = one(f, f, 1e-16, 1e-16, 1e-16)
    assert abs(value - true * 1e16**power) <= error < 1e-10 * value


@pytest.mark.parametrize("rho", [0.5, keep_slow(0.9), keep_slow(-0.99), -1.0])
def test_poles_of_correlated_arguments_have_the_closed_form(rho):
    """E |u|^−a |v|^−a = 2^−a Γ((1 − a)/2)² ₂F₁(a/2, a/2; 1/2; ρ²)/π, and E φ² for an
    even function at ρ = −1.
    """
    power = 0.4
    f, square = pole(power)
    true = 2**-power * special.gamma((1 - power) / 2) ** 2 / np.pi
    true *= special.hyp2f1(power / 2, power / 2, 0.5, rho**2)
    if rho == -1.0:
        true = square
    value, error = one(f, f, 1.0, rho, 1.0)
    assert abs(value - true) <= error < 1e-5 * true


def test_law_of_a_function_with_an_integrable_pole():
    """The variance of W |g − 0.3|^−0.4 is E |g − 0.3|^−0.8."""
    f, true = pole(0.4, 0.3)
    value, error = law(Function("mine", f.f)).with_error.var()
    assert abs(value - true) < max(error, 1e-9)


INFINITE = {
    "root": lambda u: np.abs(u) ** -0.5,
    "inverse": lambda u: 1 / u,
    "shifted": lambda u: 1 / (u - 0.3),
    "tan": np.tan,
    "one side": lambda u: np.where(u > 1.5, 1 / (u - 1.5), 0.0),
    "small": lambda u: np.abs(u / 1e-8 - 1.0) ** -0.6,
    "large": lambda u: np.abs(u / 1e8 - 1.0) ** -0.6,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "breaks"),
    [
        *((name, None) for name in sorted(INFINITE)),
        *((name, ()) for name in ("one side", "small")),
    ],
)
def test_poles_without_a_second_moment_raise(name, breaks):
    """Also if the function is declared to have none."""
    std = {"small": 1e-8, "large": 1e8}.get(name, 1.0)
    match = "mine is infinite at u = .*, so that its second moment is infinite"
    with pytest.raises(ns.ExactError, match=match):
        law(Function("mine", INFINITE[name], breaks=breaks), std)


def test_pole_out_of_reach_does_no_harm():
    f = Function("mine", lambda u: 1 / (u - 100.0))
    # E (100 − u)^−2 = Σ_k (2k + 1) E u^2k 100^(−2k − 2)
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - (1e-4 + 3e-8 + 15e-12 + 105e-16 + 945e-20)) <= error < 1e-10
    # large, not infinite
    near = Function("mine", lambda u: 1 / (np.abs(u) + 1e-10) ** 0.1)
    assert one(near, near, 1.0, 1.0, 1.0)[0] == pytest.approx(pole(0.1)[1], rel=1e-7)


@pytest.mark.parametrize("at", [0.0, 0.3])
def test_logarithms_and_weak_poles_are_integrated(at):
    f, true = pole(0.05, at)
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - true) <= error < 1e-8 * true
    f = Function("log", lambda u: np.log(np.abs(u - at)))
    # the second derivative of E |u − b|^(2a) by 2a, at 0
    step = 1e-3
    around = [pole(-k * step / 2, at)[1] for k in (-2, -1, 0, 1, 2)]
    true = (
        -around[0] + 16 * around[1] - 30 * around[2] + 16 * around[3] - around[4]
    ) / (12 * step**2)
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - true) <= error + 1e-8
    assert error < 1e-8


DIVERGENT = {
    "flat": lambda u: np.exp(u**2 / 4),
    "inverse tail": lambda u: np.exp(u**2 / 4) / (1 + u**2) ** 0.25,
    "late": lambda u: np.exp(u**4 / 1e4),
    "large": lambda u: np.exp(20 * u),  # E = e^800
    "essential": lambda u: np.exp(1 / np.abs(u)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(DIVERGENT))
def test_function_without_second_moment_is_rejected(name):
    with pytest.raises(ns.ExactError, match="second moment of mine looks infinite"):
        law(Function("mine", DIVERGENT[name]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("std", [3.0, pytest.param(6.0, marks=pytest.mark.slow), 16.0])
def test_growth_is_followed_into_the_tails(std):
    f, a = Function("exp", np.exp), std**2
    for rho in (1.0, 0.4):
        value, error = one(f, f, a, rho * a, a)
        assert abs(value - np.exp(a * (1 + rho))) <= error < 1e-9 * np.exp(2 * a)
    if std < 10:
        found = law(f, std).with_error.var()
        assert abs(found.value - np.exp(2 * a)) <= found.error < 1e-9 * np.exp(2 * a)


def test_heavy_tails_that_have_a_second_moment():
    for power in (1 / 8, 0.24, 0.249):
        f = Function("heavy", lambda u, c=power: np.exp(c * u**2))
        value, error = one(f, f, 1.0, 1.0, 1.0)
        assert abs(value - 1 / np.sqrt(1 - 4 * power)) <= error
    # f² density is 1/(1 + u²), up to √2π
    f = Function("slow", lambda u: np.exp(u**2 / 4) / np.sqrt(1 + u**2))
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - np.sqrt(np.pi / 2)) <= error < 1.0


@pytest.mark.slow
def test_growth_of_correlated_arguments():
    f = Function("exp", np.exp)
    for rho in (0.9, 0.999):
        value, error = one(f, f, 64.0, rho * 64.0, 64.0)
        assert abs(value / np.exp(64 * (1 + rho)) - 1) < 1e-9
        assert abs(value - np.exp(64 * (1 + rho))) <= error


def test_narrow_features_are_found():
    mass = special.ndtr(1.235) - special.ndtr(1.234)
    found = law(lambda u: ((u > 1.234) & (u < 1.235)) * 1.0)
    assert found.var() == pytest.approx(mass, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2e-5, 1e-4, 1e-3])
def test_narrow_bumps_are_found(width):
    f = Function("bump", lambda u: np.exp(-0.5 * ((u - 0.7) / width) ** 2))
    v = 1 + width**2 / 2
    true = width / np.sqrt(2 * v) * np.exp(-(0.7**2) / 2 / v)
    value, error = one(f, f, 1.0, 1.0, 1.0)
    assert abs(value - true) <= error + 1e-12 * true


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_steps_of_any_place_and_scale(scale):
    rng = np.random.default_rng(13)
    for _ in range(4):
        at = scale * rng.uniform(0.05, 4.0) * rng.choice([-1.0, 1.0])
        width = abs(at) * 10 ** rng.uniform(-4.0, -2.0)
        f = Function(
            "step", lambda u, at=at, end=at + width: ((u > at) & (u < end)) * 1.0
        )
        octave = int(np.floor(np.log2(8 * scale)))
        breaks = features(f, octave - 10, octave).breaks
        np.testing.assert_allclose(breaks, [at, at + width], rtol=1e-11)


def test_law_notes_name_a_function_that_was_zero_at_every_point():
    found = law(lambda u: ((u > 1.234) & (u < 1.234 + 1e-6)) * 1.0)
    assert any("declare narrower" in note for note in found.notes)
    assert not any("declare narrower" in note for note in law(np.tanh).notes)


def test_poles_at_a_place_that_differs_by_replica():
    place = np.random.default_rng(14).normal(size=(20, 1))

    def square(power):
        x = BatchedFunction(
            Function("mine", lambda u, t: np.abs(u - t) ** -power),
            np.zeros((1, 1, 1)),
            (place,),
        )
        one = np.ones((1, 1, 1, 1))
        return (made[:, 0, 0] for made in kernel(x, x, one, one[..., None], one))

    for power in (0.1, 0.2, 0.4):
        value, error = square(power)
        true = (
            2**-power
            * special.gamma(0.5 - power)
            / np.sqrt(np.pi)
            * special.hyp1f1(power, 0.5, -(place**2) / 2)
        )
        assert np.all(np.abs(value - true[:, 0]) <= error)
        if power < 0.3:
            assert error.max() < 0.1
    for power in (0.5, 1.0):
        assert np.all(np.isinf(tuple(square(power))[1]))


def test_oscillation_without_end_is_refused_after_a_bounded_number_of_tries():
    tried = []

    def f(u):
        tried.append(u.size)
        return np.sin(1e4 * u)

    with pytest.raises(ns.ExactError, match="varies faster than can be resolved"):
        law(Function("wave", f))
    assert sum(tried) < 2e7


def two(f, correlation=0.0):
    """E f(u, v)² and its error."""
    rows = np.array([[[1.0, 0.0], [correlation, np.sqrt(1 - correlation**2)]]])
    x = BatchedFunction(Function("two", f), np.zeros((1, 2)))
    value, error = kernel_of_several(x, x, rows, rows)
    return float(value[0, 0]), float(error[0, 0])


def test_functions_of_several_arguments():
    for std in (1, 2, 4, 6):
        value, error = two(lambda u, v, s=std: np.exp(s * (u + v) / np.sqrt(2)))
        assert abs(value - np.exp(2.0 * std**2)) <= error < 1e-8 * np.exp(2.0 * std**2)
    value, error = two(lambda u, v: np.exp(u**2 / 8) * v)
    assert abs(value - np.sqrt(2)) <= error < 1e-8
    for power in (0.2, 0.4):
        value, error = two(lambda u, v, a=power: np.abs(u) ** -a * v)
        assert abs(value - pole(power)[1]) <= error
    divergent = (
        lambda u, v: v * np.abs(u) ** -0.5,
        lambda u, v: v / u,
        lambda u, v: 1 / (u - v),
        lambda u, v: np.tan(u + v),
        lambda u, v: v * np.exp(u**2 / 4),
    )
    for f in divergent:
        assert two(f)[1] == np.inf
