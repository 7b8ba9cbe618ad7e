"""Places and contents of large arrays, found without making the arrays."""

import gc

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    _array,
    _check_function,
    box_index,
    index_positions,
    positions_in_box,
    smallest_box,
)

SHAPES = [(5,), (3, 4), (2, 3, 4), (1, 6, 1, 2)]
KEYS = [
    0,
    -1,
    slice(None),
    slice(1, None),
    (slice(None), 0),
    (..., 1),
    None,
    (None, ..., slice(None, None, -1)),
    [0, 0],
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_index_positions_are_those_of_numpy(shape, key, monkeypatch):
    monkeypatch.setattr(_array, "MAX_ENUMERATED_ENTRIES", 0)
    whole = np.arange(np.prod(shape)).reshape(shape)
    try:
        expected = whole[key]
    except IndexError:
        with pytest.raises(IndexError):
            index_positions(shape, key, "index")
        return
    if expected.size:
        np.testing.assert_array_equal(index_positions(shape, key, "index"), expected)
    else:
        with pytest.raises(ns.TraceError, match="selects nothing"):
            index_positions(shape, key, "index")


def test_positions_of_index_arrays(monkeypatch):
    monkeypatch.setattr(_array, "MAX_ENUMERATED_ENTRIES", 0)
    rng = np.random.default_rng(0)
    whole = np.arange(60).reshape(3, 4, 5)
    rows, columns = rng.integers(3, size=(2, 1)), rng.integers(4, size=6)
    np.testing.assert_array_equal(
        index_positions((3, 4, 5), (rows, columns), "index"), whole[rows, columns]
    )
    mask = rng.random((3, 4)) < 0.5
    np.testing.assert_array_equal(
        index_positions((3, 4, 5), mask, "index"), whole[mask]
    )


def test_positions_in_large_arrays_equal_those_in_small_ones(monkeypatch):
    """An index of an array with 131 million entries made all of their places."""
    x = ns.gaussian(ns.Width("n"), (3, 4, 5))
    plain = x[1:, [0, 2], ::2].op.flat
    monkeypatch.setattr(_array, "MAX_ENUMERATED_ENTRIES", 10)
    np.testing.assert_array_equal(x[1:, [0, 2], ::2].op.flat, plain)


@pytest.mark.parametrize("shape", [(), *SHAPES])
def test_around_is_the_smallest_box_of_positions(shape):
    rng = np.random.default_rng(1)
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for count in (1, 2, 3):
        places = rng.integers(whole.size, size=count)
        box = smallest_box(places, shape)
        assert [axis.size for axis in box] == list(shape)
        for k, axis in enumerate(box):
            np.testing.assert_array_equal(
                np.flatnonzero(axis), np.unique(np.unravel_index(places, shape)[k])
            )
        np.testing.assert_array_equal(
            whole[box_index(box)].ravel()[positions_in_box(places, shape, box)],
            places,
        )


def test_content_is_equal_for_equal_numbers():
    a = np.arange(6.0)
    key = _check_function.content_of(a)
    assert (
        key
        == _check_function.content_of(np.arange(6.0))
        != _check_function.content_of(a.reshape(2, 3))
    )
    assert key != _check_function.content_of(np.arange(6))
    a[0] = 1.0  # it can be written to, so that it is not remembered
    assert _check_function.content_of(a) != key


def test_equal_masks_are_one_array():
    mask = np.tri(5, dtype=bool)
    p = ns.normal((5, 5))
    first, second, causal = (
        ns.softmax(p, m).op.scalars[1].op.numbers for m in (mask, mask.copy(), "causal")
    )
    assert first is second is causal
    assert not first.flags.writeable
    np.testing.assert_array_equal(first, mask)
    assert ns.softmax(p, mask.T).op.scalars[1].op.numbers is not first


def test_contents_are_forgotten_with_their_arrays():
    gc.collect()  # what earlier tests left
    before = len(_check_function._content_cache)
    a = np.arange(3.0)
    a.setflags(write=False)
    _check_function.content_of(a)
    assert len(_check_function._content_cache) == before + 1
    del a
    gc.collect()
    assert len(_check_function._content_cache) == before


def test_reshape_to_the_same_shape_returns_the_value(monkeypatch):
    x = ns.normal((2, 3))
    # to list the positions of more entries is refused
    monkeypatch.setattr(_array, "NUMBERS", 5)
    assert x.reshape(2, 3) is x.reshape(-1, 3) is x.reshape((2, -1)) is x
    with pytest.raises(ns.TraceError, match="6 entries, more than 5"):
        x.reshape(6)
