"""Gaussian expectations, against quadrature of another kind and against theorems."""

import pickle

import numpy as np
import pytest
from scipy import special

from tests.internals import (
    BatchedFunction,
    Function,
    _hermite_series,
    activations,
    kernel,
    moments,
)

from ..keep import keep
from . import quadrature

NAMED = [
    activations.IDENTITY,
    activations.RELU,
    activations.leaky_relu(0.1),
    activations.ABS,
    activations.clip(1.0),
    activations.clip(0.05),
    activations.ERF,
    activations.TANH,
    activations.SIGMOID,
    activations.GELU,
    activations.GELU_TANH,
    activations.SILU,
    activations.SIN,
    activations.COS,
]
# functions a user might write, with their breaks, which only the reference receives
OWN = [
    (Function("squared_relu", lambda u: np.maximum(u, 0.0) ** 2), (0.0,)),
    (Function("hard_sigmoid", lambda u: np.clip(u / 6 + 0.5, 0.0, 1.0)), (-3.0, 3.0)),
    (Function("step", lambda u: (u > 0.5) * 1.0), (0.5,)),
    (Function("narrow", lambda u: np.exp(-300 * u**2)), ()),
    (Function("softplus", lambda u: np.logaddexp(0.0, u)), ()),
    (Function("mish", lambda u: u * np.tanh(np.logaddexp(0.0, u))), ()),
    (Function("arctan", np.arctan), ()),
    (
        Function("elu", lambda u: np.where(u > 0, u, np.expm1(np.minimum(u, 0.0)))),
        (0.0,),
    ),
    (Function("relu", lambda u: u**3 - u), ()),
    (Function("sign", np.sign), (0.0,)),
]


def one(f, g, a, c, b, mu=0.0, nu=0.0):
    """One pair: the value and its error."""
    x, y = BatchedFunction(f, np.array([[mu]])), BatchedFunction(g, np.array([[nu]]))
    value, error = kernel(
        x, y, np.array([[[a]]]), np.array([[[[c]]]]), np.array([[[b]]])
    )
    return float(value[0, 0]), float(np.max(error))


def scale_of(f, g, a, b, mu, nu, breaks_f=(), breaks_g=()):
    squares = [
        quadrature.mean(lambda u, h=h: h(u) ** 2, m, np.sqrt(v), w)
        for h, m, v, w in ((f, mu, a, breaks_f), (g, nu, b, breaks_g))
    ]
    return np.sqrt(squares[0] * squares[1])


def some_correlation(rng):
    sign = rng.choice([-1.0, 1.0])
    return [
        rng.uniform(-1, 1),
        rng.choice([0.0, 1.0, -1.0]),
        sign * (1 - 10.0 ** -rng.integers(1, 13)),
        sign * rng.uniform(0.7, 1),
    ][rng.integers(4)]


def compare(rng, first, second, low, high, tolerance):
    (f, breaks_f), (g, breaks_g) = first, second
    a, b = np.exp(rng.uniform(np.log(low), np.log(high), 2))
    if rng.random() < 0.3:
        b = a
    mu, nu = rng.normal(size=2) * np.sqrt([a, b]) * rng.choice([0.0, 1.0, 3.0])
    c = some_correlation(rng) * np.sqrt(a) * np.sqrt(b)
    value, error = one(f, g, a, c, b, mu, nu)
    rho = np.clip(c / (np.sqrt(a) * np.sqrt(b)), -1.0, 1.0)
    true = quadrature.pair(
        f, g, mu, nu, np.sqrt(a), np.sqrt(b), rho, breaks_f, breaks_g
    )
    scale = scale_of(f, g, a, b, mu, nu, breaks_f, breaks_g)
    case = f"{f.name} {g.name} {a=} {b=} {rho=} {mu=} {nu=} {value=} {true=} {error=}"
    if scale > 1e-30:  # else the function has not yet begun where the reference ends
        assert abs(value - true) <= tolerance * scale, case
    # 1e-12: what the reference and a closed form round
    assert abs(value - true) <= error + 1e-12 * scale + 1e-40, case


def named_case(rng):
    f, g = (NAMED[k] for k in rng.integers(len(NAMED), size=2))
    if rng.random() < 0.4:
        g = f
    # the reference does not follow sin(100 x)
    waves = {activations.SIN, activations.COS} & {f, g}
    compare(rng, (f, f.breaks), (g, g.breaks), 1e-8, 1e2 if waves else 1e4, 1e-10)


def own_case(rng):
    first, second = (OWN[k] for k in rng.integers(len(OWN), size=2))
    compare(rng, first, second, 1e-4, 1e2, 1e-10)


@pytest.mark.parametrize("seed", range(15))
def test_named_activations(seed):
    named_case(np.random.default_rng([1, seed]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_named_activations_thoroughly(seed):
    rng = np.random.default_rng([2, seed])
    for _ in range(100):
        named_case(rng)


@pytest.mark.parametrize("seed", keep(range(10), *range(6)))
def test_expectations_of_own_functions_equal_quadrature(seed):
    own_case(np.random.default_rng([3, seed]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_expectations_of_own_functions_equal_quadrature_thoroughly(seed):
    rng = np.random.default_rng([4, seed])
    for _ in range(50):
        own_case(rng)


@pytest.mark.parametrize("std", [10.0, 30.0, 1000.0])
@pytest.mark.parametrize("f", [activations.TANH, activations.SIGMOID, activations.SILU])
def test_large_variances(f, std):
    value, error = one(f, f, std**2, std**2, std**2)
    true = quadrature.mean(lambda u: f(u) ** 2, 0.0, std)
    assert abs(value / true - 1) < 1e-12
    assert error < 1e-11 * true
    if f is activations.TANH and std == 10.0:
        assert value == pytest.approx(0.9205, abs=5e-5)


def test_expectation_of_narrow_function_is_exact():
    f = Function("narrow", lambda u: np.exp(-300 * u**2))
    for a in (1e-4, 1.0, 100.0):
        value, error = one(f, f, a, a, a)
        assert abs(value - 1 / np.sqrt(1 + 1200 * a)) <= error + 1e-15 < 1e-12


def test_function_is_known_by_what_it_computes():
    cube = Function("relu", lambda u: u**3)
    assert abs(one(cube, cube, 1.0, 0.5, 1.0)[0] - (9 * 0.5 + 6 * 0.5**3)) < 1e-12
    other = Function("my_function", activations.RELU.f)
    assert one(other, activations.RELU, 1.0, 0.5, 1.0) == one(
        activations.RELU, activations.RELU, 1.0, 0.5, 1.0
    )
    sent = pickle.loads(pickle.dumps(activations.leaky_relu(0.3)))
    assert one(sent, sent, 1.0, 0.5, 1.0) == one(
        activations.leaky_relu(0.3), sent, 1.0, 0.5, 1.0
    )
    assert one(sent, sent, 1.0, 0.5, 1.0)[1] == 0.0


def both_above(t, rho):
    """P(u > t, v > t) for unit variances, by Owen's function."""
    return special.ndtr(-t) - 2 * special.owens_t(t, np.sqrt((1 - rho) / (1 + rho)))


def test_jumps_are_found():
    for t in (0.5, 1 / 3, -2.0):
        f = Function("step", lambda u, t=t: (u > t) * 1.0)
        for rho in (-0.9, 0.3, 0.99):
            true = both_above(t, rho)
            value, error = one(f, f, 1.0, rho, 1.0)
            assert abs(value - true) <= error + 1e-11 < 1e-9


def test_declared_breaks():
    # a spike far thinner than any grid, which a declared break makes visible
    spike = Function(
        "spike",
        lambda u: np.where((u > 0.7) & (u < 0.7 + 1e-7), 1e3, 0.0),
        breaks=(0.7, 0.7 + 1e-7),
    )
    value, error = one(spike, spike, 1.0, 1.0, 1.0)
    true = 1e6 * (special.ndtr(0.7 + 1e-7) - special.ndtr(0.7))
    assert abs(value - true) <= error + 1e-8 * true
    with pytest.raises(ValueError, match="breaks"):
        Function("f", np.tanh, breaks=(np.inf,))


def test_errors_cover_what_cannot_be_resolved():
    rough = Function("rough", lambda u: np.tanh(u).astype(np.float32))
    for a, c in ((1.0, 0.9), (20.0, 19.9), (20.0, 20.0)):
        value, error = one(rough, rough, a, c, a)
        true = quadrature.pair(np.tanh, np.tanh, 0, 0, np.sqrt(a), np.sqrt(a), c / a)
        assert abs(value - true) <= error < 1e-4
    huge = Function("exp", np.exp)
    assert one(huge, huge, 400.0, 100.0, 400.0)[1] == np.inf  # E[e^(2u)] = e^800
    value, error = one(huge, huge, 1.0, 0.5, 1.0)
    assert abs(value / np.exp(1.5) - 1) < 1e-12
    assert error < 1e-9


@pytest.mark.parametrize("f", [*NAMED, OWN[0][0], OWN[2][0]])
def test_degenerate_rows(f):
    at = lambda u: float(f(np.array([u]))[0])  # noqa: E731
    assert one(f, f, 0.0, 0.0, 0.0, 0.3, -0.8)[0] == pytest.approx(
        at(0.3) * at(-0.8), abs=1e-15
    )
    mean = quadrature.mean(f, 0.7, 1.2, (0.0, 0.5, 1.0, -1.0, 0.05, -0.05))
    assert one(f, f, 0.0, 0.0, 1.44, 0.3, 0.7)[0] == pytest.approx(
        at(0.3) * mean, rel=1e-11, abs=1e-13
    )
    breaks = (0.0, 0.5, 1.0, -1.0, 0.05, -0.05)
    square = quadrature.mean(lambda u: f(u) ** 2, 0.0, 1.5, breaks)
    assert one(f, f, 2.25, 2.25, 2.25)[0] == pytest.approx(square, rel=1e-11)
    mirror = quadrature.mean(lambda u: f(u) * f(-u), 0.0, 1.5, (*breaks, -0.5))
    assert one(f, f, 2.25, -2.25, 2.25)[0] == pytest.approx(
        mirror, rel=1e-11, abs=1e-11 * square
    )


def test_impossible_covariance_is_in_the_error():
    f = activations.TANH
    assert one(f, f, 1.0, 1.0 + 1e-15, 1.0)[1] < 1e-11
    assert one(f, f, 1.0, 1.01, 1.0)[1] > 1e-3


def random_rows(rng, f, shape, count, mean=0.0):
    """Rows with a joint covariance: (Rows, covariance (…, count, count))."""
    factor = rng.normal(size=(*shape, count, count + 2))
    return BatchedFunction(
        f, np.full((*(1,) * len(shape), count, 1), mean)
    ), factor @ np.swapaxes(factor, -1, -2) / count


@pytest.mark.parametrize(
    "f", [activations.GELU, activations.TANH, activations.clip(0.5), OWN[1][0]]
)
@pytest.mark.parametrize("mean", [0.0, 0.4])
def test_batches_are_pairs(f, mean):
    rng = np.random.default_rng(5)
    x, joint = random_rows(rng, f, (3, 2), 4, mean)
    variance = np.einsum("...ii->...i", joint)[..., None, None]
    value, error = kernel(x, x, variance, joint[..., None, None], variance)
    assert value.shape == (3, 2, 4, 4)
    assert np.broadcast_shapes(error.shape, value.shape) == value.shape
    for index in ((0, 0, 0, 1), (2, 1, 3, 2), (1, 1, 2, 2)):
        *lead, i, j = index
        alone, bound = one(
            f, f, *(joint[(*lead, *p)] for p in ((i, i), (i, j), (j, j))), mean, mean
        )
        assert value[index] == pytest.approx(alone, abs=1e-11 + bound)
    # other rows on the right, the same for all replicas
    y = BatchedFunction(activations.SILU, np.zeros((1, 1, 2, 1)))
    cross = 0.1 * rng.normal(size=(3, 2, 4, 2))
    value, _ = kernel(x, y, variance, cross[..., None, None], np.ones((1, 1, 2, 1, 1)))
    assert value.shape == (3, 2, 4, 2)
    alone, bound = one(f, y.f, joint[1, 0, 2, 2], cross[1, 0, 2, 1], 1.0, mean, 0.0)
    assert value[1, 0, 2, 1] == pytest.approx(alone, abs=1e-11 + bound)


def test_symmetric_kernel_is_that_of_all_pairs():
    rng = np.random.default_rng(6)
    x, joint = random_rows(rng, activations.SILU, (20,), 5)
    variance = np.einsum("...ii->...i", joint)[..., None, None]
    half, _ = kernel(x, x, variance, joint[..., None, None], variance)
    full, _ = kernel(
        x, BatchedFunction(*x), variance, joint[..., None, None], variance.copy()
    )
    np.testing.assert_allclose(half, full, rtol=0, atol=1e-13)
    skewed = joint.copy()
    skewed[:, 0, 1] *= 0.5
    value, _ = kernel(x, x, variance, skewed[..., None, None], variance)
    assert abs(value[3, 0, 1] - value[3, 1, 0]) > 1e-4


def test_many_replicas_evaluate_the_function_at_few_points():
    counted = []

    def f(u):
        counted.append(u.size)
        return np.tanh(u)

    rng = np.random.default_rng(7)
    x, joint = random_rows(rng, Function("counted", f), (5_000,), 3)
    joint /= np.sqrt(
        np.einsum("...ii->...i", joint)[..., :, None]
        * np.einsum("...ii->...i", joint)[..., None, :]
    )
    joint *= rng.uniform(0.5, 1.5, size=(5_000, 1, 1))
    variance = np.einsum("...ii->...i", joint)[..., None, None]
    value, error = kernel(x, x, variance, joint[..., None, None], variance)
    assert np.max(error) < 1e-10
    # 67 a replica; the grid of the probe alone is three quarters
    assert sum(counted) < 1_000_000
    named, _ = kernel(
        BatchedFunction(activations.TANH, x.mean),
        x,
        variance,
        joint[..., None, None],
        variance,
    )
    np.testing.assert_allclose(value, named, rtol=0, atol=1e-11)


def test_hard_pairs_of_many_replicas():
    # correlations near 1 and large variances, by longer tables, must agree with what
    # few pairs get by conditioning
    rng = np.random.default_rng(8)
    for f in (activations.TANH, OWN[5][0]):
        a, b = rng.uniform(5, 40, size=(2, 600, 1))
        c = np.sqrt(a * b) * (1 - 10 ** rng.uniform(-3, -1, size=(600, 1)))
        x, y = (
            BatchedFunction(f, np.zeros((1, 1, 1))),
            BatchedFunction(f, np.zeros((1, 1, 1))),
        )
        value, error = kernel(
            x, y, a[..., None, None], c[..., None, None, None], b[..., None, None]
        )
        for k in (0, 100, 599):
            alone, bound = one(f, f, a[k, 0], c[k, 0], b[k, 0])
            assert abs(value[k, 0, 0] - alone) <= bound + error[k, 0, 0]
            assert bound + error[k, 0, 0] < 1e-9 * np.sqrt(a[k, 0] * b[k, 0])


@pytest.mark.slow
def test_parameters_by_replica():
    f = Function("scaled", lambda u, p, q: np.tanh(p * u) + q * u)
    rng = np.random.default_rng(9)
    p, q = rng.uniform(0.2, 2.0, size=(2, 7, 2))
    a, b, c = 1.3, 0.6, 0.5
    x = BatchedFunction(f, np.array([[[0.3], [0.0]]]), (p, q))
    variance = np.array([[a], [b]]).reshape(1, 2, 1, 1)
    cross = np.array([[a, c], [c, b]]).reshape(1, 2, 2, 1, 1)
    value, error = kernel(x, x, variance, cross, variance)
    assert value.shape == (7, 2, 2)
    for k in (0, 3, 6):
        u, v = (lambda u, k=k, i=i: np.tanh(p[k, i] * u) + q[k, i] * u for i in (0, 1))
        rho = c / np.sqrt(a * b)
        assert (
            abs(
                value[k, 0, 1]
                - quadrature.pair(u, v, 0.3, 0.0, np.sqrt(a), np.sqrt(b), rho)
            )
            <= 1e-11
        )
        assert (
            abs(
                value[k, 0, 0]
                - quadrature.mean(lambda t, u=u: u(t) ** 2, 0.3, np.sqrt(a))
            )
            <= 1e-11
        )
    assert error.max() < 1e-10
    # a jump at a place that differs by replica
    jump = Function("jump", lambda u, t: (u > t) * 1.0)
    t = rng.normal(size=(5, 1))
    x = BatchedFunction(jump, np.zeros((1, 1, 1)), (t,))
    value, error = kernel(
        x,
        x,
        np.ones((1, 1, 1, 1)),
        np.full((1, 1, 1, 1, 1), 0.95),
        np.ones((1, 1, 1, 1)),
    )
    for k in range(5):
        true = both_above(t[k, 0], 0.95)
        assert abs(value[k, 0, 0] - true) <= error[k, 0, 0] + 1e-11 < 1e-7


@pytest.mark.parametrize("f", [*NAMED, OWN[0][0], OWN[2][0], OWN[5][0]])
def test_moments(f):
    breaks = (0.0, 0.5, 1.0, -1.0, 0.05, -0.05)
    for mu, std in ((0.0, 1.3), (0.6, 0.2), (0.0, 12.0), (-0.4, 1e-4)):
        if f.name in ("sin", "cos") and std > 10:
            continue
        mean, slope, error = moments(
            BatchedFunction(f, np.array([[mu]])), np.array([[[std**2]]])
        )
        assert mean[0] == pytest.approx(
            quadrature.mean(f, mu, std, breaks), abs=1e-12 * max(1.0, std)
        )
        true = quadrature.mean(lambda u, m=mu: f(u) * (u - m), mu, std, breaks) / std**2
        assert slope[0, 0] * std == pytest.approx(true * std, abs=1e-12 * max(1.0, std))
        assert error[0] < 1e-11 * max(1.0, std)
    mean, slope, _ = moments(BatchedFunction(f, np.array([[0.3]])), np.zeros((1, 1, 1)))
    assert (mean[0], slope[0, 0]) == (float(f(np.array([0.3]))[0]), 0.0)


def test_coefficients_have_the_same_bits_in_blocks_of_any_size(monkeypatch):
    """Rows of a function with a kink have panels of their own, and are computed in
    blocks that fit in a cache.
    """
    rng = np.random.default_rng(4)
    x = BatchedFunction(OWN[0][0], rng.standard_normal((1, 7)))
    variances = rng.uniform(0.5, 2.0, (7, 1, 1))
    bits = set()
    for nodes in (1, 2**12, 2**20):
        monkeypatch.setattr(_hermite_series, "CACHED_NODES", nodes)
        mean, slope, _ = moments(x, variances)
        bits.add((mean.tobytes(), slope.tobytes()))
    assert len(bits) == 1
