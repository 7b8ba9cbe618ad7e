"""Operations that are defined outside the package, in one file, work in every reading:
the example of docs/developer.md, a linear operation, and one that needs positions.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate

import netsor as ns
from tests.internals import (
    Entrywise,
    FixedTerms,
    Operation,
    VectorAccess,
    asked_entries,
)

from ..engine.compare import smallest_p
from ..engine.differences import evaluated, slopes
from ..keep import keep
from ..specification import verify

n = ns.Width("n")
PAGE = Path(__file__).parent.parent.parent / "docs" / "developer.md"


@pytest.fixture(scope="module")
def maximum():
    """The function that the page defines."""
    section = PAGE.read_text().partition("## Adding an operation\n")[2]
    _, example, *_ = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {"ns": ns, "np": np}
    definitions = example.partition("\n\n\nh = maximum(")[0]
    exec(compile(definitions, str(PAGE), "exec"), names)
    return names["maximum"]


class Difference(Entrywise):
    """V: x[i] − y[i]."""

    acts = VectorAccess.LINEARLY
    x: ns.Vector
    y: ns.Vector

    def sample(self, value, samples):
        x = samples.align_axes(self.x, value.ndim)
        return x - samples.align_axes(self.y, value.ndim)

    def combine(self, value, lowering, arrays, coefficients):
        x = lowering.align_axes(arrays[0], self.x.ndim, value.ndim)
        y = lowering.align_axes(arrays[1], self.y.ndim, value.ndim)
        minus_y = lowering.builder.step("scale", y, by=-1.0)
        return lowering.builder.step("add", x, minus_y)

    def cotangents(self, result, d, backward):
        return [(0, d), (1, -1.0 * d)]


class Weighted(Operation):
    """V: y[…] = Σ_j c_j x[…, j], with numbers c."""

    acts = VectorAccess.LINEARLY
    x: ns.Vector
    numbers: tuple[float, ...]

    def sample(self, value, samples):
        return np.einsum("...jm,j->...m", samples[self.x], np.array(self.numbers))

    def combine(self, value, lowering, arrays, coefficients):
        numbers = lowering.builder.constant(np.array([self.numbers]))
        mixed = lowering.mix_rows(numbers, arrays[0])
        return lowering.builder.reshape(mixed, *value.shape, *mixed.shape[-2:])

    def fixed_terms(self, value):
        count = len(self.numbers)
        return [
            FixedTerms(
                rows=np.repeat(np.arange(value.size), count),
                columns=np.arange(value.size * count),
                coefficients=np.tile(self.numbers, value.size),
            )
        ]


class Reversed(Entrywise):
    """V: the coordinates of x in the opposite order."""

    acts = VectorAccess.BY_POSITION
    x: ns.Vector

    def sample(self, value, samples):
        return samples[self.x][..., ::-1]

    def lower(self, value, lowering):
        x = lowering.coordinates(self.x)
        positions = np.arange(x.shape[-1])[::-1]
        return lowering.builder.take(x, positions, axis=len(x.shape) - 1)

    def cotangents(self, result, d, backward):
        return [(0, ns.Vector(Reversed(d), d.shape, d.width))]


class Transposed(Operation):
    """V: y[i, j] = x[j, i]."""

    acts = VectorAccess.LINEARLY
    sliceable = True
    x: ns.Vector

    def reads(self, ndim):
        return ((1, 0),)


def difference(x, y):
    shape = np.broadcast_shapes(x.shape, y.shape)
    return ns.Vector(Difference(x, y), shape, x.width)


def weighted(x, *numbers):
    return ns.Vector(Weighted(x, numbers), x.shape[:-1], x.width)


def reversed_(x):
    return ns.Vector(Reversed(x), x.shape, x.width)


def hidden(count):
    """Outputs of a matrix, of correlated inputs."""
    cov = 0.5 * np.eye(count) + 0.5
    return ns.weight(n, n) @ ns.gaussian(n, count, cov=cov)


def readout_of(h):
    """Scores and products of vectors, which depend on all of their coordinates."""
    scores = ns.dot(ns.weight(n, n) @ h, ns.weight(n, n) @ h)
    return ns.Program((ns.softmax(scores) @ (ns.weight(n, n) @ h), ns.mean_dot(h, h)))


def programs(maximum):
    """A program of each operation; the first three have limits."""
    x = hidden(3)
    return {
        "maximum": readout_of(maximum(x[:2], x[2])),
        "difference": readout_of(difference(ns.tanh(x[:2]), x[2])),
        "weighted": readout_of(
            ns.join([weighted(ns.tanh(x), 2.0, -1.0, 0.5)[None], x])
        ),
        "reversed": readout_of(reversed_(ns.tanh(x)) + x),
    }


@pytest.mark.parametrize("name", ["maximum", "difference", "weighted", "reversed"])
@pytest.mark.parametrize("width", [2, 6])
def test_own_operation_exact_law_agrees_with_simulate(maximum, name, width):
    net = programs(maximum)[name]
    verify(net.outputs)
    assert smallest_p(net, draws=4000, n=width) > 1e-4


@pytest.mark.parametrize("name", keep(["maximum", "difference", "weighted"], "maximum"))
def test_own_operation_limit_agrees_with_large_widths(maximum, name):
    net = programs(maximum)[name]
    limit = net.law(n=ns.inf, draws=4000, seed=1)
    wide = net.law(n=2000, draws=4000, seed=2)
    np.testing.assert_allclose(limit.mean(), wide.mean(), atol=0.08)
    np.testing.assert_allclose(limit.var(), wide.var(), rtol=0.1, atol=0.02)


def test_own_linear_operation_limit_has_the_law_of_built_in_operations():
    x = hidden(3)
    own = readout_of(difference(ns.tanh(x[:2]), x[2]))
    built_in = readout_of(ns.tanh(x[:2]) - x[2])
    for width in (5, ns.inf):
        laws = [net.law(n=width, draws=500, seed=3) for net in (own, built_in)]
        np.testing.assert_allclose(laws[0].var(), laws[1].var(), rtol=0.2)
    x = ns.weight(n, n) @ ns.gaussian(n, 2)
    vanishes = ns.mean_dot(difference(x[0], x[0]), x)
    assert ns.Program(vanishes).law(n=ns.inf).var().max() == 0


def test_maximum_limit_agrees_with_quadrature(maximum):
    """E max(x, y) and E max(x, y)² for jointly Gaussian x and y."""
    x = ns.weight(n, n) @ ns.gaussian(n, 2, cov=[[1.0, 0.3], [0.3, 2.0]])
    h = maximum(x[0], x[1])
    moments = ns.Program((ns.mean_dot(h, ns.ones(n)), ns.mean_dot(h, h)))
    determinant = 1.0 * 2.0 - 0.3**2

    def density(x, y):
        square = (2.0 * x * x - 2 * 0.3 * x * y + y * y) / determinant
        return math.exp(-square / 2) / (2 * math.pi * math.sqrt(determinant))

    for power, found in zip((1, 2), moments.law(n=ns.inf).mean(), strict=True):
        # the integrand has a kink at x = y, where the inner integral is divided
        total = 0.0
        for low, high in ((-12.0, lambda x: x), (lambda x: x, 14.0)):
            total += integrate.dblquad(
                lambda y, x, power=power: max(x, y) ** power * density(x, y),
                -9.0,
                9.0,
                low,
                high,
                epsabs=1e-7,
            )[0]
        assert found == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("name", ["maximum", "difference", "reversed"])
def test_own_operation_gradient_agrees_with_differences(maximum, name):
    x = ns.gaussian(n, 2)
    h = {
        "maximum": lambda: maximum(ns.tanh(x[0]), x),
        "difference": lambda: difference(ns.tanh(x[0]), x),
        "reversed": lambda: reversed_(ns.tanh(x)),
    }[name]()
    p = (ns.dot(ns.gaussian(n), h) ** 2).sum()
    gradient = ns.grad(p, x)
    outputs = [p, gradient, x]
    array = evaluated(outputs, {"n": 6})[1]
    directions = np.random.default_rng(1).standard_normal((3, *array.shape))
    expected = slopes(outputs, {"n": 6}, 1, {x: directions})[0]
    found = (array * directions).sum(axis=(1, 2)) / np.sqrt(6)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_own_operation_gradient_at_infinite_width(maximum):
    """∂/∂x ⟨r, max(x, y)⟩/√n has the second moment P(x > y)."""
    x, y, r = ns.gaussian(n), ns.gaussian(n), ns.gaussian(n)
    gradient = ns.grad(ns.dot(r, maximum(x, y)), x)
    second_moment = ns.Program(ns.mean_dot(gradient, gradient)).law(n=ns.inf).mean()
    assert second_moment == pytest.approx(0.5, rel=1e-4)


def test_own_operation_notation(maximum):
    x = hidden(2)
    net = ns.Program(maximum(x[0], x[1]))
    assert "x1 = max(u1, u2)" in str(net)
    latex = net.latex()
    assert r"\max(u^{(1)}, u^{(2)})" in latex
    assert r"\max(Z^{u^{(1)}}, Z^{u^{(2)}})" in latex
    # without rules for printing, a function with the name of the class
    assert "u3 = difference(u1, u2)" in str(ns.Program(difference(x[0], x[1])))
    net = ns.Program(difference(x[0], x[1]))
    assert r"\operatorname{difference}(u^{(1)}, u^{(2)})" in net.latex()


def test_own_operation_theorem_facts(maximum):
    x = hidden(2)
    assert ns.Program(maximum(x[0], x[1])).check().verdict == "proved"
    assert ns.Program(difference(x[0], x[1])).check().verdict == "conjectured"

    class Larger(type(maximum(x[0], x[1]).op)):
        pass

    op = maximum(x[0], x[1]).op
    larger = ns.Vector(Larger(op.f, op.vectors, ()), (), n)
    assert ns.Program(larger).check().verdict == "conjectured"
    # pseudo-Lipschitz functions of bounded arguments are bounded
    bounded = maximum(*ns.tanh(x)).op
    assert bounded.bounded(inputs=True) is True
    assert bounded.bounded(inputs=False) is False


def test_positions_of_coordinates_have_no_limit():
    net = ns.Program(reversed_(hidden(2)))
    message = r"a function \(Reversed\) of coordinates .*to a number, n=64 say"
    with pytest.raises(ns.ExactError, match=message):
        net.law(n=ns.inf)


class Unfinished(Entrywise):
    """V: an operation without any rule."""

    acts = VectorAccess.BY_POSITION
    x: ns.Vector


@pytest.mark.parametrize(
    ("acts", "method", "read"),
    [
        (
            VectorAccess.BY_POSITION,
            "sample",
            lambda x: ns.Program(x).simulate(n=4, draws=1),
        ),
        (VectorAccess.BY_POSITION, "lower", lambda x: ns.Program(x).law(n=4, draws=2)),
        (VectorAccess.LINEARLY, "combine", lambda x: ns.Program(x).law(n=4, draws=2)),
        (
            VectorAccess.BY_POSITION,
            "cotangents",
            lambda x: ns.grad(ns.dot(x, x), x.op.x),
        ),
    ],
)
def test_missing_rule_error_names_class_method_and_page(
    acts, method, read, monkeypatch
):
    monkeypatch.setattr(Unfinished, "acts", acts)
    x = ns.gaussian(n)
    value = ns.Vector(Unfinished(x), x.shape, x.width)
    message = rf"Unfinished .*write the method Unfinished\.{method} \(docs/developer.md"
    with pytest.raises((TypeError, ns.TraceError), match=message):
        read(value)


def test_asked_entries_of_an_operation_that_reads_axes_in_another_order():
    x = ns.gaussian(n, (2, 3))
    y = ns.Vector(Transposed(x), (3, 2), n)
    asked = asked_entries([y[2, 1]])
    assert np.argwhere(asked[y]).tolist() == [[2, 1]]
    assert np.argwhere(asked[x]).tolist() == [[1, 2]]
