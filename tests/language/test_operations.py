"""Every operation, drawn jointly with its inputs, against numpy."""

import numpy as np
import pytest
from scipy import special

import netsor as ns

n = ns.Width("n")
m = ns.Width("m")
N, M = 5, 7


def drawn(*values, draws=6):
    net = ns.Program(values)
    sizes = {"n": N, "m": M}
    return net.simulate(
        draws=draws, seed=3, **{name: sizes[name] for name in net.widths}
    )


@pytest.fixture
def x():
    return ns.gaussian(n, (2, 3))


ACTIVATIONS = {
    "identity": (ns.identity, lambda a: a),
    "relu": (ns.relu, lambda a: np.maximum(a, 0)),
    "leaky_relu": (
        lambda v: ns.leaky_relu(v, 0.3),
        lambda a: np.where(a > 0, a, 0.3 * a),
    ),
    "abs": (ns.abs, np.abs),
    "clip": (lambda v: ns.clip(v, 0.5), lambda a: np.clip(a, -0.5, 0.5)),
    "erf": (ns.erf, special.erf),
    "tanh": (ns.tanh, np.tanh),
    "sigmoid": (ns.sigmoid, special.expit),
    "gelu": (ns.gelu, lambda a: a * special.ndtr(a)),
    "silu": (ns.silu, lambda a: a * special.expit(a)),
    "sin": (ns.sin, np.sin),
    "cos": (ns.cos, np.cos),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_vectors_agree_with_numpy(x, name):
    phi, expected = ACTIVATIONS[name]
    a, b = drawn(3.0 * x, phi(3.0 * x))
    np.testing.assert_allclose(b, expected(a), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_scalars_agree_with_numpy(x, name):
    phi, expected = ACTIVATIONS[name]
    a, b = drawn(ns.dot(x, x), phi(ns.dot(x, x)))
    np.testing.assert_allclose(b, expected(a), rtol=1e-12, atol=1e-14)


def test_nonlin_of_vectors_and_scalars(x):
    y, p = ns.gaussian(n, 3), ns.mean_dot(x, x)[:, 0, :]  # p has the shape (2, 3) of x
    a, b, c, h = drawn(x, y, p, ns.nonlin(lambda u, v, s: np.sin(u) * v + s, x, y, p))
    np.testing.assert_allclose(h, np.sin(a) * b[:, None] + c[..., None])


def test_vector_arithmetic_agrees_with_numpy(x):
    y, one = ns.gaussian(n, 3), ns.gaussian(n)
    made = [
        x + y,
        x - y,
        2 * x,
        x * np.array([1.0, 2.0, 3.0]),
        x / 4.0,
        -x,
        x + 1.5,
        1 - x,
        x * y,
        x + one,
    ]
    a, b, c, *results = drawn(x, y, one, *made)
    b, c = b[:, None], c[:, None, None]
    scaled = a * np.array([1.0, 2.0, 3.0])[:, None]
    expected = [a + b, a - b, 2 * a, scaled, a / 4, -a, a + 1.5, 1 - a, a * b, a + c]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right)


def test_reductions_and_rearrangements(x):
    y = ns.gaussian(n, (2, 3))
    made = {
        "sum": (x.sum(0), lambda a, b: a.sum(1)),
        "sum of all": (x.sum(), lambda a, b: a.sum((1, 2))),
        "sum of two axes": (x.sum((1, 0)), lambda a, b: a.sum((1, 2))),
        "mean": (x.mean(-1), lambda a, b: a.mean(2)),
        "index": (x[1, ::2], lambda a, b: a[:, 1, ::2]),
        "fancy index": (x[:, [2, 0]], lambda a, b: a[:, :, [2, 0]]),
        "boolean index": (x[np.array([False, True])], lambda a, b: a[:, [1]]),
        "new axis": (x[:, None], lambda a, b: a[:, :, None]),
        "index of an index": (x[1][2], lambda a, b: a[:, 1, 2]),
        "transpose": (x.transpose(), lambda a, b: a.swapaxes(1, 2)),
        "reshape": (x.reshape(6), lambda a, b: a.reshape(-1, 6, N)),
        "reshape, as a tuple": (x.reshape((3, 2)), lambda a, b: a.reshape(-1, 3, 2, N)),
        "transpose, as a tuple": (x.transpose((1, 0)), lambda a, b: a.swapaxes(1, 2)),
        "broadcast": (x.broadcast_to((4, 2, 3)), lambda a, b: np.stack([a] * 4, 1)),
        "stack": (ns.stack([x, y], axis=-1), lambda a, b: np.stack([a, b], 3)),
        "join": (ns.join([x, y], axis=1), lambda a, b: np.concatenate([a, b], 2)),
        "concat": (
            ns.concat(x, axis=0),
            lambda a, b: np.concatenate([a[:, 0], a[:, 1]], -1),
        ),
        "concat last": (ns.concat(x, axis=-1), lambda a, b: a.reshape(-1, 2, 3 * N)),
    }
    a, b, *results = drawn(x, y, *(value for value, _ in made.values()))
    for (name, (value, expected)), result in zip(made.items(), results, strict=True):
        np.testing.assert_allclose(result, expected(a, b), err_msg=name)
        assert result.shape[1:-1] == value.shape, name


def test_iteration_ends(x):
    assert [v.shape for v in x] == [(3,), (3,)]


def test_combinations_follow_matmul(x):
    given = np.arange(12.0).reshape(4, 3)
    p = ns.dot(x, x)  # (2, 3, 3)
    a, s, *results = drawn(x, p, given @ x, p @ x, p[0] @ x, given[0] @ x)
    expected = [given @ a, s @ a, s[:, :1] @ a, given[0] @ a]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, atol=1e-12)


def test_numpy_on_the_left(x):
    """Arrays and numpy's numbers leave the operation to the value."""
    c, p = np.array([1.0, 2.0, 3.0]), ns.dot(x, x)
    a, s, *results = drawn(
        x,
        p,
        c + x,
        np.float64(2) - x,
        c * x,
        c + p,
        c - p,
        c / (1 + p * p),
        np.eye(3)[:2] @ p,
    )
    expected = [
        a + c[:, None],
        2 - a,
        a * c[:, None],
        c + s,
        c - s,
        c / (1 + s * s),
        s[:, :, :2],
    ]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, atol=1e-12)


def test_dot_and_mean_dot_agree_with_numpy(x):
    y, one = ns.gaussian(n, (2, 4)), ns.gaussian(n)
    made = [
        ns.dot(x, y),
        ns.mean_dot(x, y),
        ns.dot(one, y),
        ns.dot(x, one),
        ns.mean_dot(one, one),
    ]
    a, b, c, *results = drawn(x, y, one, *made)
    gram = np.einsum("rhin,rhjn->rhij", a, b)
    alone = (
        np.einsum("rn,rhjn->rhj", c, b),
        np.einsum("rhin,rn->rhi", a, c),
        np.einsum("rn,rn->r", c, c),
    )
    expected = [
        gram / N**0.5,
        gram / N,
        alone[0] / N**0.5,
        alone[1] / N**0.5,
        alone[2] / N,
    ]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, atol=1e-12)


def test_apply_agrees_with_numpy(x):
    p = ns.dot(x, x)
    mask = np.array([True, True, False])
    made = {
        "softmax": (ns.softmax(p), lambda s: special.softmax(s, -1)),
        "causal": (
            ns.softmax(p, "causal"),
            lambda s: special.softmax(np.where(np.tri(3) > 0, s, -np.inf), -1),
        ),
        "padding": (
            ns.softmax(p, mask),
            lambda s: special.softmax(np.where(mask, s, -np.inf), -1),
        ),
        "huge": (ns.softmax(1e6 * p), lambda s: special.softmax(1e6 * s, -1)),
        "elementwise": (ns.apply(np.exp, p), np.exp),
        "over two axes": (
            ns.apply(lambda s: np.linalg.det(s), p, axes=2),
            np.linalg.det,
        ),
        "arithmetic": (2 * p - p**2 / 3 + 1, lambda s: 2 * s - s**2 / 3 + 1),
        "division": (1 / (p**2 + 1), lambda s: 1 / (s**2 + 1)),
        "opposite": (1 - -p, lambda s: 1 + s),
        "product": (p @ p, lambda s: s @ s),
        "given product": (np.eye(3)[:2] @ p, lambda s: s[:, :, :2]),
        "sum": (p.sum(0), lambda s: s.sum(1)),
        "mean": (p.mean(), lambda s: s.mean((1, 2, 3))),
        "index": (p[0, :, 1], lambda s: s[:, 0, :, 1]),
        "stack": (ns.stack([p, p]), lambda s: np.stack([s, s], 1)),
    }
    s, *results = drawn(p, *(value for value, _ in made.values()))
    for (name, (value, expected)), result in zip(made.items(), results, strict=True):
        np.testing.assert_allclose(result, expected(s), atol=1e-12, err_msg=name)
        assert result.shape[1:] == value.shape, name


def test_numbers_alone_are_computed_at_once():
    p = ns.mean_dot(ns.data([[2.0, 0.0]]), ns.data([[1.0, 1.0]])) * ns.apply(
        np.sqrt, 4.0
    )
    np.testing.assert_allclose(ns.Program(p).simulate(draws=2), [[[2.0]], [[2.0]]])


def test_norms_agree_with_numpy(x):
    a, rms, layer, padded = drawn(
        x, ns.rms_norm(x), ns.layer_norm(x), ns.rms_norm(x, eps=0.5)
    )
    centred = a - a.mean(-1, keepdims=True)
    np.testing.assert_allclose(rms, a / np.sqrt((a**2).mean(-1, keepdims=True)))
    np.testing.assert_allclose(layer, centred / centred.std(-1, keepdims=True))
    np.testing.assert_allclose(
        padded, a / np.sqrt((a**2).mean(-1, keepdims=True) + 0.5)
    )


def test_random_scalars(x):
    z = ns.normal((2, 3), std=2.0)
    a, b, c, first, scaled = drawn(z, z, ns.normal((2, 3)), z[0], z * x, draws=20_000)
    assert np.array_equal(a, b)  # one draw, wherever it is used
    np.testing.assert_allclose(first, a[:, 0])
    assert scaled.shape == (20_000, 2, 3, N)
    size = a.size  # 120,000 numbers; z-scores below 5, level 1e-6 each
    assert abs(a.mean()) < 5 * 2 / np.sqrt(size)
    assert abs(a.var() - 4) < 5 * 4 * np.sqrt(2 / size)
    assert abs((a * c).mean()) < 5 * 2 / np.sqrt(size)  # two of them are independent
    assert abs(np.corrcoef(a.reshape(-1, 6).T)[0, 1]) < 5 / np.sqrt(20_000)


def test_parts_of_random_scalars_are_parts():
    net = ns.Program(ns.normal((2, 3)))
    whole = net.simulate(draws=4)
    np.testing.assert_array_equal(net[1, 2].simulate(draws=4), whole[:, 1, 2])
    assert not ns.Program(ns.normal(3, std=0.0)).simulate(draws=2).any()


@pytest.mark.parametrize(
    ("base", "fraction"), [(10000.0, 1.0), (100.0, 0.5), (0.5, 0.25)]
)
def test_rotary_rotates_pairs_by_position(base, fraction):
    """Against complex numbers: a pair of coordinates is a number, and turning it a
    product with e^(i t θ).
    """
    x = ns.gaussian(8 * n, (2, 3))
    at = np.array([0.0, 5.0, -2.5])
    a, b = drawn(x, ns.rotary(x, at, base=base, fraction=fraction))
    d = a.shape[-1]
    r = int(fraction * d)
    f = np.arange(r // 2)
    z = a[..., : r // 2] + 1j * a[..., r // 2 : r]
    turned = z * np.exp(1j * at[:, None] * base ** (-2 * f / r))
    np.testing.assert_allclose(
        b, np.concatenate([turned.real, turned.imag, a[..., r:]], -1), atol=1e-12
    )


def test_rotary_scores_depend_on_the_distance_alone():
    q, k = ns.gaussian(2 * n), ns.gaussian(2 * n)
    q3, k3 = (v.broadcast_to((3,)) for v in (q, k))
    near, far = drawn(
        ns.dot(ns.rotary(q3), ns.rotary(k3)),
        ns.dot(ns.rotary(q3, [7, 8, 9]), ns.rotary(k3, [7, 8, 9])),
    )
    np.testing.assert_allclose(near, far, atol=1e-11)
    np.testing.assert_allclose(near[:, 0, 1], near[:, 1, 2], atol=1e-12)
    assert not np.allclose(near[:, 0, 1], near[:, 1, 0])


def test_parts_of_rotated_vectors_keep_their_positions():
    net = ns.Program(ns.rotary(ns.gaussian(2 * n, (2, 3)), [3, 1, 4]))
    whole = net.simulate(n=N, draws=4)
    np.testing.assert_allclose(net[:, 2].simulate(n=N, draws=4), whole[:, :, 2])
    np.testing.assert_allclose(
        net[1, [1, 0]].simulate(n=N, draws=4), whole[:, 1, [1, 0]]
    )


def test_norm_of_zero_is_zero():
    (zero,) = drawn(ns.rms_norm(0.0 * ns.gaussian(n)))
    assert not zero.any()


def test_batch_of_matrices_is_linear(x):
    w = ns.weight(m, n, batch=2)
    y = ns.gaussian(n, (2, 3))
    wx, wy, sum_, first, each = drawn(w @ x, w @ y, w @ (x + y), w[0] @ x, w.each(x))
    np.testing.assert_allclose(sum_, wx + wy)
    np.testing.assert_allclose(first, wx[:, 0])
    np.testing.assert_allclose(each, np.stack([wx[:, 0, 0], wx[:, 1, 1]], 1))
    assert wx.shape == (6, 2, 2, 3, M)


def test_matrix_is_the_same_wherever_it_acts():
    """The matrix itself, read off by its action on the unit vectors."""
    w = ns.weight(n, n)
    x = ns.gaussian(n)
    e = ns.data(np.eye(N))
    fixed = ns.weight(4, N, batch=(2, 2), std=3.0)
    columns, image = drawn(fixed @ e, fixed @ ns.data(np.arange(float(N))))
    np.testing.assert_allclose(
        np.einsum("rabin,i->rabn", columns, np.arange(float(N))), image
    )
    x1, x2, twice = drawn(w @ x, w @ (w @ x), w @ (2.0 * (w @ x)))
    np.testing.assert_allclose(twice, 2 * x2)
    assert not np.allclose(x1, x2)


def test_entries_of_a_matrix_are_gaussian_of_the_stated_variance():
    (w,) = drawn(ns.weight(40, N, batch=2, std=3.0) @ ns.data(np.eye(N)), draws=400)
    size = w.size  # 160,000 entries; z-scores below 5, level 1e-6
    variance = 9 / N
    assert abs(w.mean()) < 5 * np.sqrt(variance / size)
    assert abs((w**2).mean() - variance) < 5 * variance * np.sqrt(2 / size)
    assert abs((w**4).mean() - 3 * variance**2) < 5 * variance**2 * np.sqrt(96 / size)
    between = (w[:, 0] * w[:, 1]).mean()  # matrices of a batch are independent
    assert abs(between) < 5 * variance / np.sqrt(size / 2)


def test_initial_vectors_have_the_stated_law():
    cov = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    (h,) = drawn(ns.gaussian(n, 3, mean=[1.0, 0.0, -2.0], cov=cov), draws=20_000)
    # 100,000 draws; z-scores below 5, level 1e-5 for all
    flat = h.swapaxes(1, 2).reshape(-1, 3)
    assert (
        abs(flat.mean(0) - [1, 0, -2]) <= 5 * np.sqrt(np.diag(cov) / len(flat))
    ).all()
    error = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(flat))
    assert (abs(np.cov(flat.T) - cov) <= 5 * error + 1e-12).all()


def test_cov_may_have_the_shape_twice():
    shape = (2, 3)
    cov = np.eye(6).reshape(shape + shape) * 4
    h, k = drawn(ns.gaussian(n, shape, cov=cov), ns.gaussian(n, shape, cov=4.0))
    assert h.shape == k.shape
    assert 3 < h.var() < 5  # 180 numbers


def test_widths_multiply():
    d = ns.Width("d")
    assert 3 * d == d * 3
    assert str(2 * (3 * d)) == "6d"
    assert 2 * ns.Width(4) == ns.Width(8)
    assert (2 * d).bind({"d": 5}) == 10
    assert d != ns.Width("e")
    assert len({d, ns.Width("d")}) == 1
