"""`ns.step` as a part of the language: what it makes, keeps and refuses."""

import re

import numpy as np
import pytest

import netsor as ns
from tests.internals import SteppedMatMul, SteppedParameter, topological_order

from ..specification import verify

n = ns.Width("n")


def net(batch=()):
    """A small network: loss, hidden vectors, weights."""
    x = ns.gaussian(n, 2, name="x")
    w, v = ns.weight(n, n, batch, name="first"), ns.weight(n, n, name="second")
    b = ns.gaussian(n, name="bias")
    h = ns.tanh(w @ x + b)
    h = h.sum(0) if batch else h
    loss = (ns.dot(ns.gaussian(n), v @ h) ** 2).sum()
    return loss, h, w, v, b, x


def test_structure_of_the_outputs_is_kept():
    loss, h, *_ = net()
    one = ns.step(h, loss, 0.1)
    assert isinstance(one, ns.Vector)
    assert one.shape == h.shape
    assert isinstance(ns.step((h, loss), loss, 0.1), tuple)
    made = ns.step([h, loss], loss, 0.1)
    assert isinstance(made, list)
    verify(made)


def test_value_without_moved_weight_is_kept():
    loss, h, w, v, b, x = net()
    assert ns.step(x, loss, 0.1) is x
    assert ns.step(h, loss, 0.1, weights=v) is h
    after = ns.step(h, loss, 0.1, weights=b)
    assert {type(value.op) for value in topological_order([after])} & {
        SteppedMatMul,
        SteppedParameter,
    } == {SteppedParameter}
    after = ns.step(h, loss, 0.1, weights=w)
    assert {type(value.op) for value in topological_order([after])} & {
        SteppedMatMul,
        SteppedParameter,
    } == {SteppedMatMul}


def test_weight_of_a_batch_moves_alone():
    loss, h, w, *_ = net(batch=3)
    all_, one = (ns.step(h, loss, 0.1, weights=chosen) for chosen in (w, w[1]))
    found = [
        ns.Program((h, after)).simulate(n=4, draws=3, seed=1) for after in (all_, one)
    ]
    assert (np.abs(found[0][1] - found[0][0]) > 1e-9).all()
    assert (found[0][1] != found[1][1]).any()
    (op,) = {
        value.op
        for value in topological_order([one])
        if isinstance(value.op, SteppedMatMul)
    }
    assert [part.members for part in op.parts] == [(1,)]


def test_rates_by_weight_by_name_and_for_all_others():
    loss, h, w, v, b, _ = net()
    given = {w: 0.0, b: 0.0, "second": 0.0, None: lambda fan_in, fan_out: 1.0}
    after = ns.step((h, loss), loss, given, weights=[w, v, b])
    before, moved = ns.Program((loss, after[1])).simulate(n=4, draws=3)
    np.testing.assert_array_equal(before, moved)
    shift = ns.normal(name="shift")
    after = ns.step(shift, loss + shift, {shift: 0.25, None: 1.0}, weights=[w, shift])
    before, moved = ns.Program((shift, after)).simulate(draws=3)
    np.testing.assert_allclose(moved, before - 0.25)
    with pytest.raises(ns.TraceError, match="lr has no entry for second"):
        ns.step(h, loss, {"first": 0.1, "bias": 0.1}, weights=[w, v, b])


def test_missing_rate_names_the_entries_that_would_give_it():
    x, r, b = ns.gaussian(n), ns.gaussian(n), ns.gaussian(n)
    w = ns.weight(n, n)
    loss = ns.dot(r, ns.tanh(w @ x + b)) ** 2
    remedy = "add the parameter itself, 'matrices' for all other weights, or None for"
    with pytest.raises(ns.TraceError, match=remedy):
        ns.step(loss, loss, {b: 0.1}, weights=[w, b])
    with pytest.raises(ns.TraceError, match="add the parameter itself, or None for"):
        ns.step(loss, loss, {w: 0.1}, weights=[w, b])


def test_rate_of_all_matrices_is_not_that_of_a_vector_of_this_name():
    x, r = ns.gaussian(n), ns.gaussian(n)
    bias = ns.gaussian(n, name="matrices")
    w = ns.weight(n, n)
    loss = ns.dot(r, ns.tanh(w @ x + bias)) ** 2
    rates = {"matrices": 0.1, None: 0.0}
    moved = ns.step(bias, loss, rates, weights=[w, bias])
    before, after = ns.Program((bias, moved)).simulate(n=4, draws=3)
    np.testing.assert_array_equal(before, after)


def test_rate_is_not_for_a_part_of_a_batch():
    """It would be that of all: a rate for w[0] is no rate for w[1]."""
    loss, h, w, *_ = net(batch=2)
    with pytest.raises(ns.TraceError, match="a part of a batch: give the whole batch"):
        ns.step(h, loss, {w[0]: 0.0, None: 0.1})
    assert ns.step(h, loss, {w[[1, 0]]: 0.2, None: 0.1}).shape == h.shape


def test_weight_listed_twice_moves_once():
    loss, _, w, _, b, _ = net()
    once, twice = (
        ns.step(loss, loss, 0.1, weights=listed) for listed in ([w, b], [b, w, w.T, b])
    )
    a, c = ns.Program((once, twice)).simulate(n=4, draws=3)
    np.testing.assert_allclose(a, c, rtol=1e-12)


def test_step_is_in_the_past_of_the_next_one():
    """Its vectors stay what they were: the second step moves W', and W is never
    differentiated again.
    """
    loss, h, w, *_ = net()
    first = ns.step((h, loss), loss, 0.1)
    second = ns.step(first, first[1], 0.2)
    steps = [
        value.op
        for value in topological_order(second)
        if isinstance(value.op, SteppedMatMul)
    ]
    assert {len(op.steps) for op in steps} == {1, 2}
    verify(second)
    # made before the first step: the weights that made it are gone
    assert ns.step(h, first[1], 0.1) is h
    kernel = ns.ntk(first[1], weights=w)  # with respect to W'
    assert ns.Program(kernel).simulate(n=4, draws=2).shape == (2,)


def test_equal_initial_vectors_are_one_parameter():
    """The embedding of a token that occurs twice gets both gradients."""
    e = ns.gaussian(n, 2, cov=np.ones((2, 2)), name="embedding")
    y = ns.tanh(ns.weight(n, n) @ e)
    loss = ns.dot(ns.gaussian(n), y).sum() + ns.dot(ns.gaussian(n), y[0])
    after = ns.step(e, loss, 0.3, weights=e)
    drawn = ns.Program(after).simulate(n=4, draws=3)
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 1])
    other = ns.gaussian(n, 2, cov=np.eye(2) + 0.5)
    with pytest.raises(ns.TraceError, match="are correlated: write them as sums"):
        ns.step(other, ns.mean_dot(other, other).sum(), 0.3, weights=other)


def test_biases_that_begin_at_the_same_number_are_parameters_of_their_own():
    b = ns.gaussian(n, 2, cov=0.0, name="biases")
    r = ns.gaussian(n, 2)
    loss = ns.dot(r[0], b[0]) + ns.dot(r[1], ns.tanh(b[1]))
    after, given = ns.Program((ns.step(b, loss, 0.3, weights=b), r)).simulate(
        n=4, draws=3
    )
    np.testing.assert_allclose(after, -0.3 * given / 4**0.5)


def test_gradients_pass_through_the_network_after_a_step():
    loss, h, *_, x = net()
    _, after = ns.step((h, loss), loss, 0.1)
    g = ns.grad(after, x)
    made = ns.Program((g, after)).simulate(n=3, draws=2)
    assert made[0].shape == (2, 2, 3)


def test_step_is_printed_with_what_moves_the_matrix():
    loss, h, w, _, b, _ = net()
    after = ns.Program(ns.step(h, loss, 0.1, weights=[w, b]))
    assert "first' h" in str(after)
    assert ", moved along " in str(after)
    assert r"after 1 step of SGD along" in after.latex()
    assert after.check().verdict == "conjectured"


LOSS, H, W, V, B, X = net()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ns.step(3.0, LOSS, 0.1), "outputs=3.0 must be a value"),
        (lambda: ns.step(H, H, 0.1), "loss must be a scalar"),
        (lambda: ns.step(H, 2.0, 0.1), "loss=2.0 must be a scalar of the program"),
        (
            lambda: ns.step(H, ns.mean_dot(X, X).sum(), 0.1),
            "depends on no weight: name the parameters",
        ),
        (lambda: ns.step(H, LOSS, "fast"), "lr='fast' must be"),
        (lambda: ns.step(H, LOSS, float("nan")), "lr=nan must be"),
        (lambda: ns.step(H, LOSS, {3: 0.1}), "lr has the key 3"),
        (
            lambda: ns.step(H, LOSS, 0.1, "lamb"),
            "optimiser='lamb' must be 'sgd', 'muon', 'adam' or 'lion'",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, weights=ns.weight(n, n)),
            "or random scalars .* of the program",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, weights=H),
            "or random scalars .* of the program",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", weights=B),
            "Muon updates only matrices",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, eps=0.1),
            "eps=0.1 is for optimiser='adam', got 'sgd'",
        ),
        (lambda: ns.step(H, LOSS, 0.1, "adam", eps=-1), "eps=-1 must be"),
        (
            lambda: ns.step(H, LOSS, 0.1, "adam", eps=lambda fan_in, fan_out: 0.1),
            "eps=<function .* must be a finite",
        ),
        (lambda: ns.step(H, LOSS, 0.1, newton_schulz=5), "is for optimiser='muon'"),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=0),
            "newton_schulz=0 must be a number of steps",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=10**9),
            "newton_schulz=1000000000 must be .* 1 to 100",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=-(10**30)),
            "must be a number of steps .* 1 to 100",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=[(1, 2, 3)] * 101),
            "at most 100 steps",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=(1, 2, float("nan"))),
            "three finite numbers",
        ),
        (
            lambda: ns.step(H, LOSS, 0.1, "muon", newton_schulz=(1, 2)),
            r"newton_schulz=\(1, 2\) must be",
        ),
        (lambda: ns.step(H, LOSS, 0.1, weight_decay=-0.1), "weight_decay=-0.1 must be"),
    ],
)
def test_step_errors(call, words):
    with pytest.raises(ns.TraceError) as found:
        call()
    # without the line of the user, which has these words here
    assert re.search(words, found.value.plain)


@pytest.mark.parametrize(
    "rate",
    [
        lambda fan_in, fan_out: 1 / 0,
        lambda fan_in, fan_out: float("inf"),
        lambda a, b: "x",
    ],
)
def test_rate_that_is_no_number_is_refused(rate):
    with pytest.raises(ns.TraceError, match="lr, scale or eps of first"):
        ns.Program(ns.step(H, LOSS, rate, weights=W)).law(n=4, draws=2)


def test_rate_for_a_name_that_nothing_has_is_refused():
    n = ns.Width("n")
    w = ns.weight(n, n, name="hidden")
    f = ns.dot(ns.gaussian(n), ns.tanh(w @ ns.gaussian(n)))
    with pytest.raises(
        ns.TraceError,
        match=r"lr has the key 'hiden', but the weights are called: hidden",
    ):
        ns.step(f, f**2, {"hiden": 0.1, None: 0.2}, weights=[w])
