"""Sums over the vocabulary that a gradient needs, against the same from an array of all
logits.
"""

import array_api_strict as strict
import numpy as np
import pytest
from scipy import special

from tests.internals import _metrics, head_parts, of_head

T, WORDS, KNOWN = 3, 50, 4
TARGETS = (2, 0, 2)  # one of them twice


def given(known, others):
    rng = np.random.default_rng(0)
    arrays = [2.0 * rng.standard_normal((2, T, KNOWN))] if known else []
    return [
        *arrays,
        *(rng.standard_normal((2, T, size)) for size in ((T, WORDS) if others else ())),
    ]


def all_logits(arrays, known, others):
    return np.concatenate(
        ([arrays[0]] if known else []) + ([arrays[-2] @ arrays[-1]] if others else []),
        axis=-1,
    )


def direct(arrays, known, others, cap):
    raw = all_logits(arrays, known, others)
    capped = raw if cap is None else cap * np.tanh(raw / cap)
    hot = np.zeros((T, raw.shape[-1]))
    hot[np.arange(T), TARGETS] = 1.0  # the known words come first
    c = (
        (special.softmax(capped, axis=-1) - hot)
        / T
        * (1.0 if cap is None else 1 - np.tanh(raw / cap) ** 2)
    )
    rest = c[..., KNOWN if known else 0 :]
    sums = (
        [rest @ np.swapaxes(a, -1, -2) for a in (arrays[-1], rest)]
        if others
        else [np.zeros((2, T, T))] * 2
    )
    return [*sums, c[..., :KNOWN]] if known else sums


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize(
    ("known", "others"), [(True, True), (False, True), (True, False)]
)
@pytest.mark.parametrize("library", ["numpy", "numpy, in pieces", "strict"])
def test_of_head_matches_direct_sums(library, known, others, cap, monkeypatch):
    if library == "numpy, in pieces":
        monkeypatch.setattr(_metrics, "LOGITS_PER_BATCH", 7 * T)
    arrays = given(known, others)
    asked = [strict.asarray(a) for a in arrays] if library == "strict" else arrays
    made = np.asarray(of_head(*asked, targets=TARGETS, cap=cap))
    where = head_parts(T, KNOWN if known else 0)
    for place, right in zip(
        where[1:], direct(arrays, known, others, cap), strict=False
    ):
        np.testing.assert_allclose(made[:, place], right.reshape(2, -1), atol=1e-14)
    assert (
        made.shape[1:]
        == (where[-1].stop,)
        == of_head.output_shape(*(a.shape[1:] for a in arrays))
    )
    logits = all_logits(arrays, known, others)
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    np.testing.assert_allclose(made[:, 0], logits.std(axis=(1, 2)), rtol=1e-10)
    np.testing.assert_allclose(
        made[:, 1], special.logsumexp(logits, axis=-1).mean(axis=-1), rtol=1e-10
    )
