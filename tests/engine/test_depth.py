"""Deep networks: what a plan draws and holds grows no faster than the program, and
turned frames are as accurate.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

import netsor as ns
from tests.internals import NUMPY, _ops, _rebase, make_plan, row_softmax

from ..keep import keep
from ..programs import programs
from .compare import conditional, n, smallest_p

d, h = ns.Width("d"), ns.Width("h")


def _spread(p):
    return p.std(axis=(-3, -2, -1))


def transformer(
    blocks,
    tokens=16,
    heads=4,
    norm=ns.rms_norm,
    widths=(n, d, h),
    vector=False,
    start=None,
):
    """Pre-norm blocks; of each the Gram matrix of the stream, and a number for all its
    scores.
    """
    wide, narrow, hidden = widths
    x = ns.gaussian(wide, tokens) if start is None else start
    outputs = []
    for _ in range(blocks):
        y = norm(x, eps=1e-3)
        q, k, v = (ns.weight(narrow, wide, heads) @ y for _ in range(3))
        p = ns.dot(q, k)
        x = x + ns.weight(wide, heads * narrow) @ ns.concat(
            ns.softmax(p, "causal") @ v, axis=0
        )
        x = x + ns.weight(wide, hidden) @ ns.gelu(
            ns.weight(hidden, wide) @ norm(x, eps=1e-3)
        )
        outputs += [ns.mean_dot(x, x), ns.apply(_spread, p, axes=3)]
    return ns.Program((*outputs, x) if vector else tuple(outputs))


@pytest.mark.parametrize(
    ("norm", "vector"),
    keep(
        itertools.product([ns.rms_norm, ns.layer_norm], [False, True]),
        (ns.rms_norm, False),
    ),
)
def test_numbers_and_time_are_linear_in_depth_and_bytes_constant(norm, vector):
    plans = [
        transformer(k, norm=norm, vector=vector).plan(n=4000, d=64, h=500)
        for k in (4, 8, 16)
    ]
    numbers, work = [p.random_numbers for p in plans], [p.operations for p in plans]
    # one part in a hundred: where frames are turned falls differently
    for amounts in (numbers, work):
        assert amounts[2] - amounts[1] == pytest.approx(
            2 * (amounts[1] - amounts[0]), rel=0.01
        )
    outputs = 8 * (256 + 1) * 12  # those of 12 more blocks are kept
    assert plans[2].bytes - plans[0].bytes < 1.2 * outputs
    outputs = transformer(16, norm=norm, vector=vector).outputs
    unturned = make_plan(outputs, {"n": 4000, "d": 64, "h": 500}, without=("turn",))
    assert numbers[2] < unturned.random_numbers


def test_at_infinite_width_too():
    plans = [
        transformer(k, vector=False).plan(n=ns.inf, d=ns.inf, h=ns.inf)
        for k in (2, 4, 8)
    ]
    work = [p.operations for p in plans]
    assert work[2] - work[1] == pytest.approx(2 * (work[1] - work[0]), rel=0.02)


def test_order_of_outputs_does_not_matter():
    outputs = transformer(12, vector=True).outputs
    plans = [
        ns.Program(order).plan(n=4000, d=64, h=500)
        for order in (outputs, outputs[::-1])
    ]
    assert plans[0].random_numbers == plans[1].random_numbers
    assert plans[0].bytes == plans[1].bytes


def llama(blocks):
    """The shape of the largest Llama 3, every weight N(0, 0.02²): grouped queries,
    rotary positions, gates.
    """
    wide, heads, groups, narrow, hidden, tokens = 16_384, 128, 8, 128, 53_248, 16

    def weight(out, into, batch=()):
        return ns.weight(out, into, batch, std=0.02 * math.sqrt(into))

    x, outputs = ns.gaussian(wide, tokens, cov=4e-4), []
    for _ in range(blocks):
        y = ns.rms_norm(x, eps=1e-5)
        q, k, v = (weight(narrow, wide, count) @ y for count in (heads, groups, groups))
        q, k = ns.rotary(q, base=5e5), ns.rotary(k, base=5e5)
        a = ns.softmax(
            ns.dot(q.reshape(groups, heads // groups, tokens), k[:, None]), "causal"
        )
        x = x + weight(wide, heads * narrow) @ ns.concat(
            (a @ v[:, None]).reshape(heads, tokens), axis=0
        )
        z = ns.rms_norm(x, eps=1e-5)
        x = x + weight(wide, hidden) @ (
            ns.silu(weight(hidden, wide) @ z) * (weight(hidden, wide) @ z)
        )
        outputs.append(ns.mean_dot(x, x))
    return ns.Program(tuple(outputs))


def test_block_of_a_huge_model_takes_what_its_coordinates_take():
    small, large = llama(8).plan(), llama(16).plan()
    needed = 16 * (2 * 53_248 + (128 + 8) * 128)  # hidden units twice, queries and keys
    assert large.random_numbers - small.random_numbers < 8 * 1.01 * needed
    assert large.bytes < 24 * 2**20


def test_width_that_happens_to_be_that_of_a_concatenation_is_one_space():
    fixed = transformer(3, tokens=3, heads=3, widths=(12, 4, 10)).plan()
    assert (
        fixed.random_numbers
        == transformer(3, tokens=3, heads=3).plan(n=12, d=4, h=10).random_numbers
    )


def test_vectors_that_meet_concatenation_have_its_blocks():
    x = ns.gaussian(12, 2)
    y = ns.concat(ns.weight(4, 12, 3) @ x, axis=0)
    net = ns.Program((ns.weight(12, 12) @ (x + y), ns.dot(x, y), ns.relu(y - x)))
    assert smallest_p(net) > 1e-6


def repeated(tokens=3):
    """Two tokens with one id: exactly equal vectors."""
    return ns.gaussian(n, tokens, cov=[[1, 0, 1], [0, 1, 0], [1, 0, 1]])


def recurrent():
    """A matrix that acts in every layer, and a stream with sources of its own."""
    w, x = ns.weight(n, n, std=0.7), ns.gaussian(n, 2)
    for _ in range(3):
        y = w @ ns.rms_norm(x, eps=0.1)
        x = x + y + ns.weight(n, n) @ ns.rms_norm(y, eps=0.1)
    return ns.Program((x, ns.mean_dot(x, x)))


def gradients(norm=ns.rms_norm):
    """The way back through five blocks: most vectors in use lie in the directions of
    the way forward.
    """
    start = x = ns.gaussian(n, 2)
    for _ in range(5):
        x = x + ns.weight(n, h) @ ns.tanh(ns.weight(h, n, std=1.3) @ norm(x, eps=0.1))
    first, p = ns.mean_dot(x, start), ns.dot(x, ns.gaussian(n, 1))
    g = ns.grad(p, start)
    return ns.Program(
        (ns.mean_dot(g, g), ns.mean_dot(g, start), ns.mean_dot(g, x), first, p)
    )


DEEP = {
    "recurrent": recurrent,
    "gradients": gradients,
    "gradients of layer norm": lambda: gradients(ns.layer_norm),
    "rms": lambda: transformer(3, tokens=2, heads=2, vector=True),
    "layer norm": lambda: transformer(
        3, tokens=2, heads=2, norm=ns.layer_norm, vector=True
    ),
    "means": lambda: transformer(
        3,
        heads=1,
        norm=ns.layer_norm,
        vector=True,
        start=ns.gaussian(n, 2, mean=[2.0, -1.0]),
    ),
    "equal tokens": lambda: transformer(2, heads=1, vector=True, start=repeated()),
    "one token": lambda: transformer(4, tokens=1, heads=1, vector=True),
    "coordinates of the stream": lambda: transformer(
        2, heads=1, vector=True, start=ns.tanh(ns.gaussian(n, 2))
    ),
}


@pytest.mark.parametrize(
    "name", keep(DEEP, *(set(DEEP) - {"gradients", "gradients of layer norm"}))
)
def test_turned_frames_have_the_literal_law(name, monkeypatch):
    """With a ratio so low that every frame is turned whenever it has a direction too
    many.
    """
    monkeypatch.setattr(_rebase, "DIRECTIONS_PER_VECTOR", 1)
    monkeypatch.setattr(_rebase, "FULL_WIDTH_PER_VECTOR", 0)
    spanned = []
    span = _rebase._span
    monkeypatch.setattr(
        _rebase, "_span", lambda *args: (spanned.append(args[2:]), span(*args))
    )
    # nine networks with at most 35 comparisons each, at 1e-7: a false alarm with
    # probability 3e-5
    net = DEEP[name]()
    wide = 40 if name.startswith("gradients") else 9  # the way back needs room for more
    assert (
        smallest_p(
            net, draws=3000, **{w: {"n": wide, "d": 3, "h": 5}[w] for w in net.widths}
        )
        > 1e-7
    )
    assert (len(spanned) > 2) == (name != "recurrent")
    # part of a frame
    keeps_directions = any(kept > 0 for (kept,) in filter(None, spanned))
    assert keeps_directions == name.startswith("gradients")


# 25 programs with 13 comparisons each, at 1e-8: a false alarm with probability 3e-6
@settings(max_examples=25, deadline=None, derandomize=True)
@given(programs(steps=14))
@pytest.mark.slow
def test_random_programs_with_turned_frames_have_the_literal_law(built):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rebase, "DIRECTIONS_PER_VECTOR", 1)
        patch.setattr(_rebase, "FULL_WIDTH_PER_VECTOR", 0)
        assert smallest_p(built.net, **built.widths) > 1e-8


@pytest.mark.usefixtures("unshifted")
@pytest.mark.parametrize("name", ["rms", "means", "equal tokens"])
def test_at_infinite_width_a_turned_frame_gives_the_same_numbers(name, monkeypatch):
    monkeypatch.setattr(_rebase, "DIRECTIONS_PER_VECTOR", 1)
    monkeypatch.setattr(_rebase, "FULL_WIDTH_PER_VECTOR", 0)
    widths = dict.fromkeys(("n", "d", "h"), ns.inf)
    net = DEEP[name]()
    turned, plain = (
        conditional(net.outputs, widths, 50, without=w, progress=False)
        for w in ((), ("turn",))
    )
    np.testing.assert_allclose(turned.mean, plain.mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(turned.cov, plain.cov, rtol=1e-9, atol=1e-10)


def test_small_vectors_beside_large_ones_keep_their_digits(monkeypatch):
    """(1e8 u + v) − 1e8 u is v, in a frame that was turned while both were in use."""
    monkeypatch.setattr(_rebase, "DIRECTIONS_PER_VECTOR", 1)
    monkeypatch.setattr(_rebase, "FULL_WIDTH_PER_VECTOR", 0)
    u, v, w = ((ns.weight(n, n, 4) @ ns.gaussian(n)).sum(0) / 2 for _ in range(3))
    large, both = 1e8 * u, 1e8 * u + v
    late = ns.weight(n, n) @ (
        ns.mean_dot((both + w)[None], w[None])[0, 0] * 1e-8 * ns.gaussian(n)
    )
    small = ((both + late) - (large + late))[None]
    net = ns.Program(ns.mean_dot(small, small))
    assert "turn the frame" in str(net.plan(n=30))
    made = net.draw(draws=2000, n=30, progress=False)
    assert made.mean() == pytest.approx(1.0, abs=0.06)  # five standard errors


@pytest.mark.parametrize("size", [1, 5, 16, 17, 33, 40])
@pytest.mark.parametrize("rank", [1.0, 0.5])
def test_factors_of_any_size_and_rank(size, rank):
    rows = np.random.default_rng(size).standard_normal((3, 2, size, 60))
    known = math.ceil(rank * size)
    rows[:, :, known:] = rows[:, :, : size - known] * 1e-5
    gram = rows @ np.swapaxes(rows, -1, -2)
    c = NUMPY.factor(gram)
    assert (np.triu(c, 1) == 0).all()
    assert (c[..., known:, known:] == 0).all()
    norms = np.sqrt(np.einsum("...ii->...i", gram))
    error = (c @ np.swapaxes(c, -1, -2) - gram) / norms[..., None] / norms[..., None, :]
    assert np.abs(error).max() < 1e-13
    x = np.zeros((3, 2, 4, size))
    x[..., :known] = np.random.default_rng(9).standard_normal((3, 2, 4, known))
    np.testing.assert_allclose(NUMPY.solve(c, x @ np.swapaxes(c, -1, -2)), x, atol=1e-9)


def test_functions_of_rows_go_by_pieces():
    """Axes in front, of which an argument may have one entry, are cut; the last ones
    are seen whole.
    """
    rng = np.random.default_rng(0)
    scores, mask = rng.standard_normal((2, 3, 150, 150)), np.tri(150)[None, None]
    made = _ops.apply(np, scores, mask, f=row_softmax, shape=scores.shape[1:], axes=1)
    np.testing.assert_array_equal(made, row_softmax(scores, mask))


@pytest.mark.parametrize("few", [False, True])
def test_functions_of_many_coordinates_go_by_pieces(few, monkeypatch):
    """Pieces of any size, written over an argument or not, make the same numbers."""
    x = ns.gaussian(n, 2)
    y = ns.nonlin(lambda a, b: np.tanh(a) * b + a, x, x[::-1])
    z = ns.silu(ns.weight(n, n) @ y) * (ns.weight(n, n) @ y) + ns.nonlin(
        np.cos, y[0] if few else y
    )
    outputs = ns.Program((z, ns.mean_dot(z, x), ns.mean_dot(y, y))).outputs
    whole = conditional(outputs, {"n": 40}, 60, progress=False)
    monkeypatch.setattr(_ops, "FUNCTION_ENTRIES_PER_BATCH", 1)
    pieces = conditional(outputs, {"n": 40}, 60, progress=False)
    np.testing.assert_array_equal(whole.mean, pieces.mean)
    np.testing.assert_array_equal(whole.cov, pieces.cov)
