"""Numbers with errors: arithmetic, comparison, text."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from netsor import Estimate
from tests.internals import Provenance


def test_estimate_unpacks_to_value_and_error():
    e = Estimate(2.0, 0.5)
    value, error = e
    assert (value, error) == (e.value, e.error) == (e[0], e[1]) == (2.0, 0.5)
    assert float(e) == 2.0
    assert len(e) == 2
    assert pickle.loads(pickle.dumps(e)) == e


def test_arithmetic_of_independent_estimates():
    a, b = Estimate(3.0, 0.3), Estimate(2.0, 0.4)
    for found, value, error in (
        (2 * a, 6, 0.6),
        (a * 2, 6, 0.6),
        (a / 2, 1.5, 0.15),
        (a + 1, 4, 0.3),
        (1 - a, -2, 0.3),
        (a - b, 1, 0.5),
        (a + b, 5, 0.5),
        (a * b, 6, math.hypot(0.6, 1.2)),
        (a / b, 1.5, math.hypot(0.15, 0.3)),
        (6 / a, 2, 0.2),
        (-a, -3, 0.3),
        (abs(-a), 3, 0.3),
        (a**2, 9, 1.8),
        (a.log(), math.log(3), 0.1),
        (np.log(a), math.log(3), 0.1),
        (np.sqrt(a), math.sqrt(3), 0.15 / math.sqrt(3)),
        (a.exp(), math.exp(3), 0.3 * math.exp(3)),
        (np.float64(2.0) * a, 6, 0.6),
    ):
        assert isinstance(found, Estimate)
        assert found.value == pytest.approx(value)
        assert found.error == pytest.approx(error)


def test_errors_of_one_estimate_cancel():
    a = Estimate(3.0, 0.3)
    assert tuple(a - a) == (0.0, 0.0)
    assert (2 * a - a).error == pytest.approx(0.3)
    assert (a / a).error == pytest.approx(0, abs=1e-16)
    assert (a + a).error == pytest.approx(0.6)


def test_errors_from_the_same_draws_add_linearly():
    law = ns.Mixture(0.0, np.linspace(1, 2, 100), Provenance("exact", "test", seed=3))
    other = ns.Mixture(0.0, np.linspace(1, 3, 100), Provenance("exact", "test", seed=4))
    v, m = law.with_error.var(), law.with_error.moment(4)
    assert (v - m).error == pytest.approx(v.error + m.error)
    w = other.with_error.var()
    assert (v - w).error == pytest.approx(math.hypot(v.error, w.error))
    assert (v + w + m).error == pytest.approx(math.hypot(v.error + m.error, w.error))


def test_divergence_can_be_doubled():
    law = ns.paper.layer().law(n=64, draws=2000)
    found = ns.kl(law, law.gaussian())
    assert float(2 * found) == 2 * found.value
    assert (2 * found).error == 2 * found.error


def test_comparison_and_text():
    e = Estimate(1.234567e-3, 2.1e-5)
    assert e < 1
    assert e > 1e-3
    assert e == 1.234567e-3
    assert e != Estimate(1.234567e-3, 0.0)
    assert e <= Estimate(2.0, 1.0)
    assert str(e) == "0.001235 ± 2.1e-05"
    assert f"{e:.2e}" == "1.23e-03 ± 2.10e-05"
    assert f"{e}" == str(e)
    assert str(Estimate(3.0, math.inf)) == "3 ± inf (too few draws for an error)"
    assert sorted([Estimate(2.0, 0.1), Estimate(1.0, 0.1)])[0].value == 1.0


def test_undefined_arithmetic_raises():
    e = Estimate(0.0, 0.1)
    with pytest.raises(ZeroDivisionError):
        1 / e
    with pytest.raises(ValueError, match=r"log of 0 ± 0\.1: the value must be above 0"):
        e.log()
    with pytest.raises(TypeError, match="to the power of an estimate"):
        Estimate(2.0, 0.1) ** e
    with pytest.raises(TypeError):
        np.sin(e)


def test_arrays_of_values():
    e = ns.Mixture(0.0, [1.0, 2.0], Provenance("exact", "test")).with_error.pdf(
        [0.0, 1.0]
    )
    assert (2 * e).value.shape == (2,)
    assert (np.array([1.0, 2.0]) * e).error == pytest.approx(
        np.array([1.0, 2.0]) * e.error
    )


def test_numpy_functions_read_the_values():
    """Not for a list of two: a sum over estimates would add their errors."""
    several = [ns.Estimate(1.0, 0.5), ns.Estimate(2.0, 0.25)]
    assert np.asarray(several).tolist() == [1.0, 2.0]
    assert np.sum(several) == 3.0
    assert np.asarray(ns.Estimate(np.arange(3.0), np.ones(3))).tolist() == [
        0.0,
        1.0,
        2.0,
    ]


def test_distances_from_different_samples_have_independent_errors():
    """The laws of the samples are gone when the next distance is computed, and Python
    reuses their ids.
    """
    rng = np.random.default_rng(0)
    limit = stats.norm(0, 1)
    distances = [ns.kolmogorov(rng.standard_normal(50), limit) for _ in range(8)]
    errors = [distance.error for distance in distances]
    assert sum(distances).error == pytest.approx(np.hypot.reduce(errors))


def test_float_of_a_complex_estimate_raises():
    complex_value = ns.Mixture(
        [1.0, 2.0], 1.0, Provenance("exact", "for a test")
    ).with_error.cf(0.5)
    with pytest.raises(TypeError, match=r"float of the complex estimate .*value\.real"):
        float(complex_value)
    real = ns.Mixture(0.0, 1.0, Provenance("exact", "for a test")).with_error.var()
    assert float(real) == 1.0


def test_difference_of_an_estimate_without_known_error_from_itself_is_exact():
    unknown = ns.Estimate(2.0, math.inf)
    assert tuple(unknown - unknown) == (0.0, 0.0)
    assert (unknown + unknown).error == math.inf
    steep = ns.Estimate(0.0, 0.1).sqrt()  # infinitely steep at 0
    assert (steep - 2 * steep).error == math.inf


def test_power_with_exponent_zero_in_one_entry_keeps_the_errors_of_others():
    base = ns.Estimate(np.array([2.0, 3.0, 0.0]), np.array([0.1, 0.1, 0.1]))
    value, error = base ** np.array([0.0, 2.0, 0.0])
    np.testing.assert_allclose(value, [1.0, 9.0, 1.0])
    np.testing.assert_allclose(error, [0.0, 0.6, 0.0])


def test_absolute_value_at_zero_keeps_the_error():
    assert tuple(abs(ns.Estimate(0.0, 0.3))) == (0.0, 0.3)
    assert tuple(abs(ns.Estimate(-2.0, 0.3))) == (2.0, 0.3)
