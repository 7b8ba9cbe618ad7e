"""Plans of many tokens and blocks: no index has an entry for every number of them."""

from collections import Counter

import numpy as np
import pytest

import netsor as ns
from netsor.models import read
from tests.internals import (
    CONTEXT_BYTES,
    Clusters,
    Replacement,
    Streams,
    VectorsInUse,
    _array,
    _finite_frames,
    block,
    device_memory,
    fewest_directions,
    has_every_position,
)


def deep(tokens, blocks):
    """Inner products after a few blocks without nonlinearities of coordinates."""
    n = ns.Width("n")
    x = ns.gaussian(n, tokens)
    for _ in range(blocks):
        x = x + ns.weight(n, n) @ ns.rms_norm(x)
    return ns.Program(ns.mean_dot(x, x))


def numbers(net, **widths):
    """The kinds of the steps, and the numbers of three replicas."""
    plan = net.plan(**widths)
    mean, _ = block(plan, Streams(1, 0), 3)
    return [step.kind for step in plan.steps], mean


def test_rows_along_known_directions_are_joined(monkeypatch):
    """The same numbers without a position for each."""
    kinds, expected = numbers(deep(6, 4), n=64)
    monkeypatch.setattr(_finite_frames, "MIN_JOINED_ENTRIES", 1)
    joined_kinds, found = numbers(deep(6, 4), n=64)
    assert joined_kinds.count("join") > kinds.count("join")
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("axes", [(0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_large_transposes_move_axes(axes, monkeypatch):
    """The same numbers without a position for each."""
    scores = ns.normal((3, 4, 5))

    def net():
        return ns.Program(ns.softmax(ns.tanh(scores).transpose(*axes)))

    kinds, expected = numbers(net())
    monkeypatch.setattr(_array, "MIN_PERMUTED_ENTRIES", 1)
    moved_kinds, found = numbers(net())
    assert moved_kinds.count("permute") > kinds.count("permute")
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_positions_of_all_entries_are_shared():
    """Those of equal blocks are one array, which is known to have every entry."""
    first, second = (ns.normal((3, 4)).T.op.flat for _ in range(2))
    assert first is second
    assert has_every_position(first, (3, 4))
    assert not has_every_position(first, (3, 5))
    assert not has_every_position(first.copy(), (3, 4))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_planned_numbers_grow_with_blocks_not_with_their_square():
    """Of the arrays that a plan holds, in deep gradients of many tokens: each block
    adds as many as the one before, though its vectors have more directions.
    """

    def held(layers):
        model = read("llama-3-8b").replace(
            layers=layers, width=2048, heads=4, groups=2, hidden=64, vocabulary=100
        )
        plan = model.probes(tokens=64, gradients=True).plan()
        arrays = {}
        for step in plan.steps:
            for array in step.params.values():
                if isinstance(array, np.ndarray):
                    arrays[id(array)] = array.nbytes
        return sum(arrays.values())

    two, four, eight = held(2), held(4), held(8)
    assert eight - four < 3 * (four - two) + 2**16


def test_vectors_that_have_met_have_one_number():
    """An inner product of all vectors links them; another one adds no link."""
    n = ns.Width("n")
    x = ns.gaussian(n, 5)
    first = ns.dot(x, x)
    blocks = {x: 1}
    once, twice = Clusters([x, first], blocks), Clusters([x, first, first], blocks)
    assert once.labels().tolist() == twice.labels().tolist()
    assert len({*once.ids[x].ravel().tolist()}) == 1
    assert once.ids[x].shape == (5, 1)


@pytest.mark.parametrize("seed", range(5))
def test_fewest_directions_of_all_numbers_that_can_be_kept(seed):
    """Every number of kept directions is tried here."""
    rng = np.random.default_rng(seed)
    vectors_of_reach = Counter(rng.integers(1, 30, size=12).tolist())
    every_choice = []
    for kept in range(max(vectors_of_reach)):
        new = sum(count for reach, count in vectors_of_reach.items() if reach > kept)
        every_choice.append((kept + new, -kept, Replacement(kept, new)))
    assert fewest_directions(vectors_of_reach) == min(every_choice)[2]


def test_vectors_in_use_are_those_that_a_list_would_keep():
    """The counts of each reach, as values are added, forgotten and change theirs."""
    rng = np.random.default_rng(0)
    in_use = VectorsInUse()
    expected = {}
    for index in range(60):
        last_use, vectors, reach = rng.integers([index, 1, 0], [index + 20, 5, 8])
        expected[index] = [last_use, vectors, reach]
        in_use.add(index, last_use=last_use, vectors=vectors, reach=reach)
        in_use.forget(before=index)
        expected = {key: row for key, row in expected.items() if row[0] >= index}
        changed = int(rng.choice(list(expected)))
        expected[changed][2] = 3
        in_use.change_reach(changed, 3)
        assert in_use.values == list(expected)
        counts = Counter()
        for _, vectors, reach in expected.values():
            counts[reach] += vectors
        assert in_use.of_reach == counts


def test_memory_of_device_counts_what_functions_hold():
    """Normals, their softmax and two arrays inside it; a mask and its copy are shared;
    eigenvalues take three matrices of double precision.
    """
    plan = ns.Program(ns.softmax(ns.normal((3, 4)))).plan()
    assert device_memory(plan, 4) == (4 * 4 * 12, CONTEXT_BYTES)
    masked = ns.Program(ns.softmax(ns.normal((4, 4)), mask="causal")).plan()
    assert device_memory(masked, 4) == (4 * 4 * 16, CONTEXT_BYTES + 4 * 16)
    model = read("gpt2").replace(layers=2, width=16, heads=2, vocabulary=30)
    measured = model.probes(tokens=5).plan()
    replica, shared = device_memory(measured, 4)
    assert replica >= measured.bytes / 2 + 3 * 8 * 5**2
    assert shared > CONTEXT_BYTES
