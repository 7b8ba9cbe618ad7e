"""The transformer of Tensor Programs: recursions, programs and literal networks say the
same, and verdicts can fail.
"""

import numpy as np
import pytest
from scipy import stats

from tests.internals import AGREES, DISAGREES
from tests.internals import _tensor_programs as study
from tests.internals import _yang as yang

WIDTH, DRAWS = 12, 400


def literal(width, rng):
    """The kernel of one network of Tensor Programs I, every matrix drawn."""
    k = np.linalg.cholesky(yang.word_kernel())
    x = (k @ rng.standard_normal((len(k), width)))[yang.PLACES] * np.sqrt(yang.VAR_U)
    for layer in range(2):
        if layer:
            x = x @ rng.standard_normal((width, width)) * np.sqrt(yang.VAR_U / width)
        mixed = []
        for first, last in yang.SPANS:
            some = x[first:last]
            weights = np.tril(np.exp(some @ some.T / width))
            mixed.append(some + weights / weights.sum(axis=1, keepdims=True) @ some)
        z = normed(np.concatenate(mixed))
        inner, outer = rng.standard_normal((2, width, width)) * np.sqrt(
            yang.VAR_W / width
        )
        biases = rng.standard_normal((2, width)) * np.sqrt(yang.VAR_B)
        x = normed(np.maximum(z @ inner + biases[0], 0) @ outer + biases[1] + z)
    return x @ x.T / width


def normed(x):
    x = x - x.mean(axis=1, keepdims=True)
    return x / x.std(axis=1, keepdims=True)


def test_program_has_the_law_of_literal_networks():
    """Two entries of the kernel, Kolmogorov–Smirnov at level 1e-4 each."""
    rng = np.random.default_rng(0)
    drawn = np.stack([literal(WIDTH, rng) for _ in range(DRAWS)])
    exact = np.asarray(
        yang.kernel_program(1, 2).draw(n=WIDTH, draws=DRAWS, progress=False)
    )[:, 0]
    for i, j in ((0, 6), (3, 12)):
        assert stats.ks_2samp(drawn[:, i, j], exact[:, i, j]).pvalue > 1e-4
    # another entry is rejected
    assert stats.ks_2samp(drawn[:, 0, 6], exact[:, 3, 12]).pvalue < 1e-4


@pytest.mark.slow
def test_recursion_and_program_agree_at_infinite_width():
    found = study.tangent_limit([2], seed=0)
    assert np.allclose(found["ours"], found["recursion"], rtol=1e-12)
    found = study.kernel_limit([1], seed=0)
    assert np.allclose(found["ours"], found["recursion"], rtol=1e-12)


def test_wide_networks_are_near_the_limit():
    off = study.tangent_width(1024, 30, seed=0)["off"]
    assert 0.5 < off.mean() * 32 < 2.5  # about 1.2 / √1024


@pytest.fixture(scope="module")
def numbers():
    """What a run would give that is as published."""
    rng = np.random.default_rng(0)
    made = {
        "tangent limit": {"ours": np.ones((1, 2, 2)), "recursion": np.ones((1, 2, 2))},
        "kernel limit": {"ours": np.ones((2, 3, 3)), "recursion": np.ones((2, 3, 3))},
    }
    for name, power, table in (
        ("tangent", -0.5, study.TANGENT),
        ("kernel", -1.0, study.KERNEL),
    ):
        for width in table:
            made[f"{name} {width}"] = {
                "off": 1.2 * width**power * np.exp(0.5 * rng.standard_normal(300))
            }
    return made


def verdicts(numbers):
    return [claim.verdict for claim in study.judge(numbers)]


def test_verdicts_can_agree_and_disagree(numbers):
    assert verdicts(numbers) == [AGREES] * 6
    for place, change in (
        (
            0,
            {
                "tangent limit": {
                    "ours": np.full((1, 2, 2), 1.001),
                    "recursion": np.ones((1, 2, 2)),
                }
            },
        ),
        (1, {"tangent 16384": {"off": 3 * numbers["tangent 16384"]["off"]}}),
        (
            2,
            {
                name: {"off": some["off"] ** 2}
                for name, some in numbers.items()
                if name[:8] == "tangent " and "off" in some
            },
        ),
        (4, {"kernel 64": {"off": numbers["kernel 64"]["off"] / 30}}),
        (
            5,
            {
                name: {"off": some["off"] ** 1.5}
                for name, some in numbers.items()
                if name[:7] == "kernel " and "off" in some
            },
        ),
    ):
        assert verdicts({**numbers, **change})[place] == DISAGREES


def test_figure_and_rows(numbers):
    assert len(list(study.rows(numbers))) == len(study.TANGENT) + len(study.KERNEL)
    assert len(study.draw(numbers).axes) == 2
