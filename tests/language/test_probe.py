"""Functions of the user's that are no functions of the language, refused while the
program is traced; and good ones.
"""

import math
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import special

import netsor as ns
from tests.internals import _check_function

n = ns.Width("n")


def x(*shape):
    return ns.gaussian(n, shape)


def scores(*shape):
    return ns.dot(ns.weight(n, n) @ x(*shape), ns.weight(n, n) @ x(*shape))


def in_place(u):
    u[u < 0] = 0
    return u


def in_place_by_ufunc(u):
    return np.tanh(u, out=u)


def in_place_when_large(u):
    if np.abs(u).max() > 100:
        u *= 0.5
    return u + 1


def in_place_of_the_second(u, v):
    v += u
    return v


def in_place_whatever_the_flag_says(u):
    u.flags.writeable = True
    u += 1.0
    return u


class Counter:
    """Gives other numbers at every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, u):
        self.calls += 1
        return u * self.calls


class Late(Counter):
    """Gives other numbers from the fifth call on."""

    def __call__(self, u):
        self.calls += 1
        return u + (self.calls > 5)


rng = np.random.default_rng(3)

WRITES = (
    "writes into its argument, which other operations read too: let it make a new array"
)
APART = (
    "is not coordinatewise: it gives other numbers when its arguments stand elsewhere"
)
AGAIN = "gives other numbers when it is called again: functions are deterministic"

REFUSED_NONLIN = {
    "in place": (in_place, WRITES),
    "in place by a ufunc": (in_place_by_ufunc, WRITES),
    "in place when large": (in_place_when_large, WRITES),
    "in place whatever the flag says": (in_place_whatever_the_flag_says, WRITES),
    "centred": (lambda u: u - u.mean(), APART),
    "centred over the last axis": (lambda u: u - u.mean(axis=-1, keepdims=True), APART),
    "centred over the first axis": (lambda u: u - u.mean(axis=0), APART),
    "softmax": (lambda u: special.softmax(u, axis=-1), APART),
    "sorted": (np.sort, APART),
    "cumulated": (lambda u: np.cumsum(u, axis=-1), APART),
    "turned": (lambda u: u[..., ::-1], APART),
    "scaled by the largest": (lambda u: u / np.abs(u).max(), APART),
    "with a position": (lambda u: u + np.arange(u.size).reshape(u.shape), APART),
    "with seeded noise": (
        lambda u: u + np.random.default_rng(0).standard_normal(u.shape),
        APART,
    ),
    "squeezed": (lambda u: np.squeeze(u), "is not coordinatewise"),
    "random": (lambda u: u + rng.standard_normal(u.shape), AGAIN),
    "dropout": (lambda u: u * (rng.random(u.shape) < 0.5), AGAIN),
    "counter": (Counter(), AGAIN),
    "a state that shows late": (Late(), "gives other numbers when"),
    "complex": (lambda u: u + 1j, "gives complex128 numbers; real ones are allowed"),
    "complex below 0": (
        np.emath.sqrt,
        "gives complex128 numbers; real ones are allowed",
    ),
    "objects": (
        lambda u: u.astype(object),
        "gives object numbers; real ones are allowed",
    ),
    "text": (lambda u: u.astype(str), "real ones are allowed"),
    "failing": (lambda u: u.nothing, "fails on arrays of shapes"),
    "a number": (lambda u: 1.0, r"the leading axes \(2, 3\) became \(\)"),
    "for small arrays": (lambda u: u if u.ndim < 3 else u[0], "is not coordinatewise"),
}


@pytest.mark.parametrize("name", REFUSED_NONLIN)
def test_functions_of_coordinates_that_are_rejected(name):
    f, message = REFUSED_NONLIN[name]
    with pytest.raises(ns.TraceError, match=message):
        ns.nonlin(f, x(2))


APPLY_APART = (
    "is not vectorised: it gives other numbers when its arguments stand elsewhere"
)

REFUSED_APPLY = {
    "in place": (in_place, 0, WRITES),
    "in place on an axis": (lambda p: p.sort(axis=-1), 1, "writes into its argument"),
    "random": (lambda p: p + rng.standard_normal(), 0, AGAIN),
    "needs axes": (special.softmax, 0, "with axes=1 it sees the last axis whole"),
    "needs axes, other shape": (
        np.sum,
        0,
        "became .* with axes=1 it sees the last axis whole",
    ),
    "needs two axes": (
        lambda p: p - p.mean(axis=(-1, -2), keepdims=True),
        1,
        "let it act only on the last axes",
    ),
    "over all axes": (lambda p: p / p.sum(), 1, APPLY_APART),
    "over the first axis": (lambda p: special.softmax(p, axis=0), 1, APPLY_APART),
    "not vectorised": (np.diag, 1, "is not vectorised|fails on arrays"),
    "complex": (lambda p: np.fft.fft(p), 1, "gives complex128 numbers"),
    "counter": (Counter(), 1, AGAIN),
}


@pytest.mark.parametrize("name", REFUSED_APPLY)
def test_functions_of_scalars_that_are_rejected(name):
    f, axes, message = REFUSED_APPLY[name]
    with pytest.raises(ns.TraceError, match=message):
        ns.apply(f, scores(3), axes=axes)


def test_every_argument_is_watched():
    with pytest.raises(ns.TraceError, match=WRITES):
        ns.nonlin(in_place_of_the_second, x(), x())
    with pytest.raises(ns.TraceError, match=WRITES):
        ns.nonlin(lambda u, p: in_place(p) + u, x(2), scores(2)[0])
    with pytest.raises(ns.TraceError, match=r"fails on arrays|does not broadcast"):
        ns.nonlin(
            lambda u, v: np.where(np.concatenate([u, v]).sum() > 0, u, v), x(2), x(2)
        )


ALLOWED = {
    "numpy": np.tanh,
    "scipy": special.erf,
    "single precision": lambda u: np.tanh(u).astype(np.float32),
    "half precision": lambda u: np.tanh(u).astype(np.float16),
    "booleans": lambda u: u > 0,
    "integers": lambda u: np.floor(np.tanh(u)).astype(int),
    "itself": lambda u: u,
    "a domain": np.log,
    "a domain that raises": np.vectorize(math.sqrt),
    "overflowing": np.exp,
    "steps": np.sign,
    "fast oscillation": lambda u: np.sin(1e6 * u),
    "tiny": lambda u: 1e-300 * u,
    "constant": np.ones_like,
    "piecewise, into a copy": lambda u: in_place(u.copy()),
    "warning": lambda u: (warnings.warn("look", stacklevel=1), u)[1],
    "a list": lambda u: u.tolist(),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_functions_that_are_accepted(name):
    """Without a warning, which the test run would raise."""
    assert ns.nonlin(ALLOWED[name], x(2)).shape == (2,)
    assert ns.apply(ALLOWED[name], scores(2)).shape == (2, 2)


def test_functions_with_axes():
    assert ns.apply(lambda p: np.sort(p, axis=-1), scores(3), axes=1).shape == (3, 3)
    assert ns.apply(np.linalg.det, scores(3), axes=2).shape == ()
    assert ns.apply(np.linalg.inv, scores(3), axes=2).shape == (3, 3)
    assert ns.apply(np.linalg.cholesky, ns.mean_dot(x(3), x(3)), axes=2).shape == (3, 3)
    assert ns.apply(lambda p, q: p @ q, scores(3), scores(3)[:, :2], axes=2).shape == (
        3,
        2,
    )
    assert ns.apply(lambda p, q: p + q, scores(3), scores(3)[0], axes=1).shape == (3, 3)


def test_function_is_probed_once():
    """A network with thousands of activations asks its function once for each way of
    calling it.
    """
    calls = []

    def f(u):
        calls.append(u.shape)
        return np.tanh(u)

    y = ns.nonlin(f, x(2))
    asked = len(calls)
    for _ in range(100):
        y = ns.nonlin(f, y)
    assert len(calls) == asked > 0
    ns.apply(f, scores(2))
    assert len(calls) == 2 * asked


def test_numpys_functions_are_probed_once():
    ns.nonlin(np.arctan, x(2))
    probed = _check_function._checked_shape.cache_info().misses
    ns.nonlin(np.arctan, x(3))
    assert _check_function._checked_shape.cache_info().misses == probed


def test_object_without_a_hash_is_probed_every_time():
    class Unhashable:
        __hash__ = None

        def __call__(self, u):
            return np.tanh(u)

    f = Unhashable()
    assert ns.nonlin(f, ns.nonlin(f, x(2))).shape == (2,)


def test_librarys_functions_are_not_probed(monkeypatch):
    monkeypatch.setattr(
        _check_function, "_checked_shape", lambda *given: pytest.fail("probed")
    )
    y = ns.nn.attention(ns.layer_norm(ns.gelu(ns.clip(x(3), 2.0))), 2, mask="causal")
    assert (ns.sigmoid(ns.mean_dot(y, y)) ** 2 / 3).sum().shape == ()


def test_large_function_of_the_library_is_asked_once_for_its_shape():
    """Also with arguments given beforehand; one of the user's is asked all that a small
    one is.
    """
    asked = []

    def scaled(p, by=1.0):
        asked.append(p.shape)
        return by * p

    large = ns.normal((2, 10_000))
    ns.apply(partial(scaled, by=2.0), large, axes=2)
    assert len(asked) > 10
    scaled.__module__ = "netsor.models"
    for f in (scaled, partial(scaled, by=3.0)):
        asked.clear()
        assert ns.apply(f, large, axes=2).shape == large.shape
        assert asked == [(1, 1, *large.shape)]


def test_partial_is_known_by_what_it_was_given():
    """Each block of a deep network makes one of its own, with the same numbers."""
    asked = []

    def masked(p, mask, by=1.0):
        asked.append(by)
        return by * p * mask

    p = ns.normal((2, 3))
    for by, mask, again in (
        (1.0, [1, 0, 1], True),
        (1.0, [1, 0, 1], False),
        (2.0, [1, 0, 1], True),
        (2.0, [1, 1, 1], True),
    ):
        asked.clear()
        ns.apply(partial(masked, mask=np.array(mask), by=by), p, axes=1)
        assert bool(asked) == again


def test_equal_functions_are_one():
    """A function that is defined in a loop over layers is tried once, and equal layers
    are recognised.
    """
    before = _check_function._checked_shape.cache_info().misses

    def tried():
        return _check_function._checked_shape.cache_info().misses - before

    def network(*scales):
        y, by = x(4), np.arange(1.0, 5.0)
        for scale in scales:

            def f(p, scale=scale):
                return scale * by * p**2 / (p**2).sum(axis=-1, keepdims=True)

            y = ns.rms_norm(
                y
                + ns.apply(f, ns.dot(ns.weight(n, n) @ y, ns.weight(n, n) @ y), axes=1)
                @ y
            )
        return ns.Program(y)

    same, different = network(*[1.0] * 12), network(1.0, 2.0, 1.0, 0.0, -0.0)
    assert tried() == 4  # of 1, 2, 0 and -0
    assert [loop.times for loop in same.plan(n=64).loops] == [11]
    assert different.plan(n=64).loops == []
    squares, cubes = (ns.apply(f, scores(2)) for f in (lambda p: p**2, lambda p: p**3))
    assert tried() == 6
    assert squares.op.f.f is not cubes.op.f.f


def test_declaring_properties_twice_is_rejected():
    """A Function says itself what is known of it."""
    with pytest.raises(
        ns.TraceError,
        match=r"tanh is a Function: declare its properties in ns.Function",
    ):
        ns.nonlin(ns.Function("tanh", np.tanh), x(), bounded=True)


def test_numbers_that_are_not_finite_are_refused_at_once():
    with pytest.raises(ns.TraceError, match="log: of the numbers given is not finite"):
        ns.apply(np.log, [-1.0, 0.0])
