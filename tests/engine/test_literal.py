"""The literal interpreter: numbers of the paper's layer, determinism, chunks,
executors, interruption.
"""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from examples import attention_layer, cross_attention

import netsor as ns
from tests.internals import _parallel, _rng_keys
from tests.internals import engine_reference as _reference

n = ns.Width("n")


@pytest.fixture(scope="module")
def paper():
    """All tokens and coordinates at width 16, (10,000 draws, 64): those of one draw are
    dependent, so draws count.
    """
    return (
        attention_layer.net().simulate(n=16, draws=10_000, seed=1).reshape(10_000, -1)
    )


def test_simulated_layer_of_the_paper_has_its_known_moments(paper):
    # E[y²] = 0.4339 (standard error of that figure 0.0004), E[y⁴] = 0.940 (0.003); z
    # below 4, level 1e-4
    for power, known, error in ((2, 0.4339, 0.0004), (4, 0.940, 0.003)):
        sample = (paper**power).mean(axis=1)
        assert abs(sample.mean() - known) < 4 * np.hypot(
            sample.std() / np.sqrt(sample.size), error
        )


def test_moments_of_the_paper_reject_a_wrong_law(paper):
    """The limit law has E[y²] = 0.392, and 1/n scaling 0.25 · 1.19: both far outside
    the error.
    """
    sample = (paper**2).mean(axis=1)
    assert abs(sample.mean() - 0.392) > 12 * sample.std() / np.sqrt(sample.size)


def test_scores_scaled_by_1_over_n_have_variance_1_over_n():
    @ns.program
    def scores(scaling):
        x = ns.gaussian(n, 3)
        q, k = ns.weight(n, n) @ x, ns.weight(n, n) @ x
        return scaling(q, k)

    # Var p = E|x_i|²/n E|x_j|²/n ≈ 1 under 1/√n, and 1/n of it under 1/n: 9 × 2,000
    # draws, within 15%
    assert scores(ns.dot).simulate(n=32, draws=2000).var() == pytest.approx(1, rel=0.15)
    assert scores(ns.mean_dot).simulate(n=32, draws=2000).var() == pytest.approx(
        1 / 32, rel=0.15
    )


def test_simulated_attention_equals_its_formula_with_read_off_matrices():
    """With every matrix read off by its action on unit vectors, attention is recomputed
    by hand.
    """
    x = ns.data(np.random.default_rng(0).standard_normal((3, 4)))
    y = ns.nn.attention(x, heads=2, head_dim=5, sigma_q=2.0, mask="causal")
    (drawn,) = ns.Program((y,)).simulate(draws=50)
    matmuls = {
        v.op.weight.source.name: v.op.weight
        for v in _values(y)
        if hasattr(v.op, "weight")
    }
    read = [matmuls[f"W^{k}"] @ ns.data(np.eye(10 if k == "O" else 4)) for k in "QKVO"]
    again, wq, wk, wv, wo = ns.Program((y, *read)).simulate(draws=50)
    np.testing.assert_allclose(again, drawn)
    wq, wk, wv = (np.swapaxes(w, -1, -2) for w in (wq, wk, wv))  # (draws, heads, 5, 4)
    tokens = x.op.vectors
    q, k, v = (np.einsum("rhdn,sn->rhsd", w, tokens) for w in (wq, wk, wv))
    p = np.where(np.tri(3) > 0, np.einsum("rhid,rhjd->rhij", q, k) / 5**0.5, -np.inf)
    a = np.exp(p) / np.exp(p).sum(-1, keepdims=True)
    mixed = np.einsum("rhij,rhjd->rihd", a, v).reshape(50, 3, 10)
    np.testing.assert_allclose(drawn, np.einsum("rkn,rik->rin", wo, mixed), atol=1e-12)
    assert np.isclose(wq.std(), 2 / 4**0.5, rtol=0.1)  # 2,000 entries
    assert np.isclose(wo.std(), 1 / 10**0.5, rtol=0.1)


def _values(value):
    from tests.internals import topological_order

    return topological_order([value])


def _same(net, **arguments):
    alone = net.simulate(draws=700, workers=1, **arguments)
    return [
        alone,
        net.simulate(draws=700, workers=2, **arguments),
        net.simulate(draws=700, workers=7, **arguments),
    ]


def test_simulate_bits_do_not_depend_on_the_workers():
    alone, *others = _same(cross_attention.net(), n=24, d=5)
    assert all(np.array_equal(alone, other) for other in others)


def test_simulate_bits_do_not_depend_on_the_executor():
    net = cross_attention.net()
    alone = net.simulate(n=8, d=5, draws=5000, workers=1)
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        for executor in (threads, processes):
            assert np.array_equal(
                alone, net.simulate(n=8, d=5, draws=5000, executor=executor)
            )


def test_simulate_with_fewer_draws_returns_the_first_ones():
    net = attention_layer.net()
    more = net.simulate(n=32, draws=900, seed=5)
    assert np.array_equal(more[:130], net.simulate(n=32, draws=130, seed=5))
    assert not np.array_equal(more[:130], net.simulate(n=32, draws=130, seed=6))


def test_simulate_memory_is_bounded_by_chunks(monkeypatch):
    sizes = []
    original = _reference._Chunk.__call__

    def spy(self, part, tick):
        sizes.append(len(part))
        return original(self, part, tick)

    monkeypatch.setattr(_reference._Chunk, "__call__", spy)
    attention_layer.net().simulate(n=128, draws=40)
    matrices = (4 + 2 * 3 + 2) * 128**2 * 8
    assert sum(sizes) == 40
    assert max(sizes) <= _reference.CHUNK_BYTES / matrices


def test_simulate_selects_coordinates():
    net = attention_layer.net()
    every = net.simulate(n=6, draws=3)
    assert np.array_equal(net.simulate(n=6, draws=3, coordinates=2), every[..., 2])
    assert np.array_equal(
        net.simulate(n=6, draws=3, coordinates=[0, 5]), every[..., [0, 5]]
    )
    assert np.array_equal(
        net.simulate(n=6, draws=3, coordinates=slice(2)), every[..., :2]
    )


def test_simulate_narrows_products_to_one_query():
    from tests.internals import narrow, topological_order

    (first,) = narrow(attention_layer.net()[0].outputs)
    shapes = {
        v.op.weight.source.name: v.shape
        for v in topological_order([first])
        if hasattr(v.op, "weight")
    }
    assert shapes == {
        None: (4,),
        "W^Q": (2, 1),
        "W^K": (2, 4),
        "W^V": (2, 4),
        "W^O": (1,),
    }


def test_simulate_reports_progress():
    seen = []
    attention_layer.net().simulate(
        n=128, draws=40, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_simulate_stops_promptly_on_interrupt():
    begun = []

    def work(part, tick):
        begun.append(part)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        list(_parallel.run(work, _rng_keys.chunks(1000, 1), workers=1))
    assert len(begun) < 10  # of 1,000: what was queued and not begun is dropped


def test_simulate_raises_the_error_of_a_user_function():
    def fails(x):
        if x.size > 6:  # not while it is traced
            raise RuntimeError("from the user's function")
        return x

    with pytest.raises(RuntimeError, match="from the user's function"):
        ns.Program(ns.nonlin(fails, ns.gaussian(n))).simulate(n=4, draws=2)
