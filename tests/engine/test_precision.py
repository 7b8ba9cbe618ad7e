"""Single precision is refused where it does not hold the law, and nowhere else."""

import numpy as np
import pytest

import netsor as ns
from netsor.engine import _precision

n = ns.Width("n")
SINGLE = {"precision": "float32", "draws": 50, "progress": False}


def attention(scale, norm=False):
    x = scale * ns.gaussian(n, 3)
    return ns.Program(ns.nn.attention(ns.rms_norm(x) if norm else x, 2)[0])


def stream(scale):
    """Data, with an attention layer beside it whose output is of order 1."""
    x = ns.data(scale * np.array([[1.0, 2, 3, 4], [2, 0, 1, 1], [-1, 3, 2, 2]]))
    return ns.Program((x + ns.nn.attention(ns.rms_norm(x), 2))[0])


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e20])
@pytest.mark.parametrize("norm", [False, True])
def test_numbers_that_it_does_not_have(scale, norm):
    """A variance of 0, an infinite one, or a norm that is either: each was a law without a word."""
    net = attention(scale, norm)
    with pytest.raises(ValueError, match=r"precision='float32' does not hold this law: .*; take precision='float64'"):
        net.law(n=8, **SINGLE)
    with pytest.raises(ValueError, match=r"precision='float32' does not hold this law"):
        net.draw(n=8, **SINGLE)
    assert net.law(n=8, draws=50, progress=False).std() > 0


def test_a_spread_that_is_lost_beside_a_mean():
    with pytest.raises(ValueError, match=r"an output has spread 0\.\d+ beside a mean of 1e\+08"):
        stream(1e8).law(**SINGLE)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_what_it_holds(scale):
    for norm in (False, True):
        net = attention(scale, norm)
        ratio = net.law(n=8, **SINGLE | {"draws": 4000}).std() / net.law(n=8, draws=4000, progress=False).std()
        assert 0.9 < ratio < 1.1
    assert stream(min(scale, 100.0)).law(**SINGLE).std() > 0


def test_what_is_not_random_is_no_spread():
    x = ns.rms_norm(ns.gaussian(n, 2))
    assert ns.Program(ns.mean_dot(x, x)[0, 0]).law(n=8, **SINGLE).mean() == pytest.approx(1, abs=1e-5)
    assert ns.Program(0.0 * attention(1.0).output).law(n=8, **SINGLE).std() == 0


def test_a_plan_that_takes_long_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(_precision, "PATIENCE", 0.0)
    assert attention(1e-30).law(n=8, **SINGLE).std() == 0


def test_a_spread_that_is_lost_is_seen_where_draws_coincide(monkeypatch):
    """Cosines of tokens behind fifty layers were 1 up to rounding, and their spread that of rounding."""
    monkeypatch.setattr(_precision, "PATIENCE", 0.0)
    x = ns.gaussian(n)
    net = ns.Program(1.0 + 1e-7 * ns.tanh(ns.mean_dot(x, x)))
    with pytest.raises(
        ValueError, match=r"an output has spread \d.*e-0[89] beside a mean of 1; take precision='float64'"
    ):
        net.law(n=8, **SINGLE)
    assert 0 < net.law(n=8, draws=50, progress=False).std() < 1e-7


def test_draws_that_rounding_made_equal_are_no_atoms():
    """Of a continuous output: 29 atoms at 50,000 draws, which were taken out of its density."""
    net = ns.Program(ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))
    law = net.law(n=8, **SINGLE | {"draws": 50_000})
    assert law.atoms == ()
    assert len(np.unique(law.component_mean)) == 50_000
    same = net.law(n=8, **SINGLE | {"draws": 50_000})
    np.testing.assert_array_equal(law.component_mean, same.component_mean)


def test_atoms_that_double_precision_has_stay():
    """0 of a ReLU, and a bound that single precision does not have; what lies between them has a density."""
    x = ns.weight(n, n) @ ns.gaussian(n)
    law = ns.Program(ns.clip(ns.relu(x), 1.1)).law(n=8, **SINGLE | {"draws": 50_000})
    exact = ns.Program(ns.clip(ns.relu(x), 1.1)).law(n=8, draws=50_000, progress=False)
    assert [at for at, _ in law.atoms] == [0.0, np.float32(1.1)]
    for (_, one), (_, other) in zip(law.atoms, exact.atoms, strict=True):
        assert abs(one.value - other.value) < 4.5 * np.hypot(one.error, other.error)  # level 1e-5


def test_outputs_that_are_equal_stay_equal():
    y = ns.tanh(ns.weight(n, n) @ ns.gaussian(n))
    law = ns.Program(ns.stack([y, y])).law(n=8, **SINGLE | {"draws": 50_000})
    assert law[0].atoms == ()
    assert law.combination([1.0, -1.0]).support() == (0.0, 0.0)
