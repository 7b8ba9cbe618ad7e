"""A large vocabulary is drawn in pieces: the law of the loss and of its gradient is the
same, in bounded memory.
"""

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    _loss_gradient,
    ends_of_head,
    first_head,
    first_words,
    more_head,
    more_words,
    of_head,
    of_logits,
    of_words,
)

T, KNOWN = 3, 4
PIECES = (20, 17, 5)
TARGETS = (2, 0, 2)  # one of them twice
LEVEL = 1e-5  # of one comparison: about forty are made
SIZES = {"layers": 1, "width": 16, "heads": 2, "groups": 2, "hidden": 32}


def given(known):
    rng = np.random.default_rng(0)
    root, noise = (
        rng.standard_normal((2, T, T)),
        [rng.standard_normal((2, T, size)) for size in PIECES],
    )
    return root, noise, [2.0 * rng.standard_normal((2, T, KNOWN))] * known


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("known", [False, True])
def test_logit_moments_of_pieces_equal_whole(known, cap):
    root, noise, others = given(known)
    state, count = (
        first_words(root, noise[0], *others, cap=cap),
        PIECES[0] + KNOWN * known,
    )
    assert state.shape[1:] == first_words.output_shape(
        root.shape[1:], noise[0].shape[1:]
    )
    for piece in noise[1:]:
        state = more_words(state, root, piece, count=count, cap=cap)
        count += piece.shape[-1]
    whole = of_logits(root, np.concatenate(noise, axis=-1), *others, cap=cap)
    np.testing.assert_allclose(of_words(state, count=count), whole, rtol=1e-12)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("known", [False, True])
def test_head_sums_of_pieces_equal_whole(known, cap):
    root, noise, others = given(known)
    first = [*others, root, noise[0]]
    state, count = first_head(*first, cap=cap), PIECES[0] + KNOWN * known
    shapes = [a.shape[1:] for a in first]
    assert state.shape[1:] == first_head.output_shape(*shapes)
    for piece in noise[1:]:
        state = more_head(state, root, piece, count=count, cap=cap)
        count += piece.shape[-1]
    found = ends_of_head(state, *first, targets=TARGETS, count=count, cap=cap)
    assert found.shape[1:] == ends_of_head.output_shape(state.shape[1:], *shapes)
    whole = of_head(
        *others, root, np.concatenate(noise, axis=-1), targets=TARGETS, cap=cap
    )
    np.testing.assert_allclose(found, whole, rtol=1e-11, atol=1e-14)


def model_of(name, vocabulary=60, **changes):
    return ns.models.read(name).replace(
        **SIZES, vocabulary=vocabulary, std_embedding=1.0, **changes
    )


TIED, UNTIED = ("gpt2", {}), ("llama-3-8b", {"std_logits": 0.5})
CASES = [
    (*UNTIED, None),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [(*UNTIED, 2.0), (*TIED, 2.0)]
    ),
]


@pytest.mark.parametrize(
    ("name", "changes", "logit_cap"),
    [*CASES, pytest.param(*TIED, None, marks=pytest.mark.slow)],
)
def test_pieces_do_not_change_the_law(name, changes, logit_cap, monkeypatch):
    """Loss, size of logits and all gradients, with a word that is a target twice, and
    one of the last words.
    """
    model = model_of(name, logit_cap=logit_cap, **changes)
    asked = {"ids": (7, 59, 7, 2, 59, 31), "gradients": True}
    whole = model.probes(**asked).measure(400, seed=1, progress=False)
    monkeypatch.setattr(_loss_gradient, "PIECE_NUMBERS", 60)
    probes = model.probes(**asked)
    pieces = probes.measure(400, seed=2, progress=False)
    assert sum(part.size for part in probes.source.logits(False).noise) > 60 * 2
    assert len(probes.source.logits(False).noise) > 2
    assert set(pieces) == set(whole)
    tested = [
        name
        for name in whole
        if name in ("loss", "logit_std", "max_probability") or name.startswith("grad")
    ]
    assert len(tested) > 8
    for quantity in tested:
        one, other = (
            np.reshape(found[quantity], (400, -1))[:, 0] for found in (whole, pieces)
        )
        assert stats.ks_2samp(one, other).pvalue > LEVEL, quantity


def test_ranges_with_pieces_are_finite(monkeypatch):
    monkeypatch.setattr(_loss_gradient, "PIECE_NUMBERS", 60)
    model = model_of("llama-3-8b", std_logits=0.5)
    found = model.probes(tokens=5, ranges=True).measure(16, progress=False)
    assert np.isfinite(found["logits_largest"]).all()


def test_memory_is_independent_of_vocabulary(monkeypatch):
    """Beyond the pieces; without them a draw holds all normals of all words."""
    monkeypatch.setattr(_loss_gradient, "PIECE_NUMBERS", 2**14)
    plans = [
        model_of("llama-3-8b", words).probes(tokens=16).plan()
        for words in (20_000, 200_000)
    ]
    small, large = (plan.bytes for plan in plans)
    assert large < 1.01 * small
    assert large < 8 * 16 * 200_000 / 4
