"""The exact engine against the literal interpreter, program by program and rule by
rule.
"""

from dataclasses import replace

import array_api_strict
import numpy as np
import pytest
from examples import (
    attention_layer,
    causal_attention,
    cross_attention,
    recurrent,
    residual_block,
)
from hypothesis import given, seed, settings

import netsor as ns
from tests.internals import (
    BartlettFrame,
    LinalgBackend,
    MatMul,
    Streams,
    _ir_builder,
    _plan_query,
    _state,
    compute,
    in_numpy,
    make_plan,
    passes,
)
from tests.internals import lowering as lower
from tests.internals import run_plan as run

from ..programs import programs
from .compare import d, mixture, n, smallest_p

# About 30 programs with 13 comparisons each, at 1e-8: a false alarm with probability
# 4e-6.
LEVEL = 1e-8


@settings(max_examples=30, deadline=None, derandomize=True)
@given(programs(steps=10))
def test_random_programs_match_the_reference_interpreter(built):
    assert smallest_p(built.net, **built.widths) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_many_random_programs_match_the_reference_interpreter(part):
    """Three thousand in all, in parts that several processes can take."""

    @seed(part)
    @settings(max_examples=500, deadline=None, database=None)
    @given(programs(steps=14))
    def run(built):
        assert smallest_p(built.net, **built.widths) > LEVEL

    run()


def recurrent_scores():
    """A matrix that is used again on what it made, and scores of its outputs."""
    w = ns.weight(n, n, std=1.3)
    x = ns.gaussian(n, 2, mean=0.5)
    y = w @ ns.relu(w @ x)
    return ns.Program((y, ns.dot(y, w @ y)))


def residual():
    x = ns.gaussian(n, 3)
    x = x + ns.nn.attention(ns.layer_norm(x, 0.1), 2, head_dim=d, mask="causal")
    return ns.Program((x, ns.mean_dot(x, x)))


def data_and_nonlinear():
    """Data that meets, after the last nonlinearity, vectors whose frame has been
    turned.
    """
    x = ns.relu(ns.gaussian(3))
    return ns.Program((x, ns.dot(x, ns.data([1.0, -0.5, 2.0]))))


def grouped():
    """Grouped queries: two heads share a key and a value matrix; and a matrix that
    meets several vectors by `each`.
    """
    x, twice = ns.gaussian(n, 2), [0, 0, 1, 1]
    q, k, v = (
        ns.weight(d, n, 4) @ x,
        ns.weight(d, n, 2)[twice] @ x,
        ns.weight(d, n, 2)[twice] @ x,
    )
    y = ns.weight(n, 4 * d) @ ns.concat(ns.softmax(ns.dot(q, k)) @ v, axis=0)
    z = ns.weight(n, n, 2)[[0, 1, 0]].each(ns.stack([y, x, x + y]))
    return ns.Program((y, z, ns.dot(z[0], z[2])))


def repeated():
    """Sums of initial vectors, some with a part in common: fused, they are clusters of
    unequal size.
    """
    return ns.Program(
        ns.nn.attention(
            ns.gaussian(n, 2)[[0, 0, 1]] + ns.gaussian(n, 3, cov=0.25), 2, d
        )
    )


def turned_blocks():
    """Rotary positions in a space that is a concatenation elsewhere: coordinates go
    from block to block.
    """
    y = ns.concat(ns.weight(n, n, 2).each(ns.tanh(ns.gaussian(n, (2, 3)))), 0)
    z = ns.rotary(y, [0, 3, 5], 10.0)
    q = ns.rotary(ns.weight(2 * n, 2 * n) @ y, [1, 2, 7], 5.0)
    return ns.Program((z[1], ns.dot(z, q)[0], ns.weight(n, 2 * n) @ (q + z)[:2]))


NETS = {
    "tokens that repeat": (repeated, {"n": 3, "d": 2}),
    "rotary positions across blocks": (turned_blocks, {"n": 3}),
    "data next to a nonlinearity": (data_and_nonlinear, {}),
    "the paper's layer": (attention_layer.net, {"n": 7}),
    "one token": (lambda: attention_layer.net()[0], {"n": 5}),
    "causal": (causal_attention.net, {"n": 3}),
    "low rank": (cross_attention.net, {"n": 6, "d": 2}),
    "recurrent": (recurrent.net, {"n": 4}),
    "recurrent with scores": (recurrent_scores, {"n": 5}),
    "residual": (residual, {"n": 6, "d": 3}),
    "grouped queries": (grouped, {"n": 4, "d": 3}),
    "transformer block": (residual_block.net, {"n": 4}),
    "relu tokens": (
        lambda: ns.Program(ns.nn.attention(ns.relu(ns.gaussian(n, 3)), 2, sigma_q=5)),
        {"n": 6},
    ),
    "width 1": (attention_layer.net, {"n": 1}),
    "width 2": (attention_layer.net, {"n": 2}),
    "width 3": (attention_layer.net, {"n": 3}),
    "sigmas": (
        lambda: ns.Program(
            ns.nn.attention(
                ns.gaussian(n, 2), 2, sigma_q=2, sigma_k=1.5, sigma_v=1.5, sigma_o=0.5
            )
        ),
        {"n": 5},
    ),
    "1/n scaling": (
        lambda: ns.Program(ns.nn.attention(ns.gaussian(n, 3), 2, scaling="linear")),
        {"n": 4},
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_networks_match_the_reference_interpreter(name):
    make, widths = NETS[name]
    # 18 networks with at most 24 comparisons each, at 1e-7: a false alarm with
    # probability 3e-5
    assert smallest_p(make(), draws=4000, **widths) > 1e-7


def _chi_one_degree_more(monkeypatch):
    original = _ir_builder.Builder.draw

    def draw(self, kind, key, shape, label, **params):
        if kind == "chi":
            params["freedom"] = params["freedom"] + 1
        return original(self, kind, key, shape, label, **params)

    monkeypatch.setattr(_ir_builder.Builder, "draw", draw)


def _no_root_of_width(monkeypatch):
    monkeypatch.setattr(_state.State, "norm", lambda self, x: 1.0)


def _no_sigma(monkeypatch):
    original = lower.matmul

    def matmul(state, value, op):
        return original(state, value, replace(op, weight=replace(op.weight, std=1.0)))

    monkeypatch.setitem(lower.VECTORS, MatMul, matmul)


def _no_projection(monkeypatch):
    span, all_along = LinalgBackend.span, LinalgBackend.along

    def along(self, rows, directions, *factor, **params):
        coefficients = all_along(self, rows, directions, *factor, **params)
        coefficients[..., : directions.shape[-2] - rows.shape[-2]] = 0.0
        return coefficients

    monkeypatch.setattr(
        LinalgBackend, "span", lambda self, rows, *known: span(self, rows)
    )
    monkeypatch.setattr(LinalgBackend, "along", along)


def _full_frame_forgotten(monkeypatch):
    original = BartlettFrame.add_sources

    def grow(self, **arguments):
        self.group.width += 2
        coordinates = original(self, **arguments)
        self.group.width -= 2
        return coordinates

    monkeypatch.setattr(BartlettFrame, "add_sources", grow)


def _gram_for_its_factor(monkeypatch):
    monkeypatch.setattr(LinalgBackend, "reduced", lambda self, gram, rows: gram)


def _wrong_orientation(monkeypatch):
    spheres = LinalgBackend.spheres
    monkeypatch.setattr(
        LinalgBackend, "spheres", lambda self, *a: 1.3 * spheres(self, *a)
    )


def _members_never_distinct(monkeypatch):
    kept = tuple(step for step in passes.PIPELINE if step.name != "distinct")
    assert len(kept) == len(passes.PIPELINE) - 1

    def rewrite(outputs, context, _):
        return passes.rewrite(outputs, context, kept)

    monkeypatch.setattr(_plan_query, "rewrite", rewrite)


MUTATIONS = {
    "χ with a wrong degree of freedom": (_chi_one_degree_more, "width 2"),
    "a missing √m": (_no_root_of_width, "the paper's layer"),
    "K without σ²": (_no_sigma, "sigmas"),
    "reuse as if fresh": (_no_projection, "recurrent with scores"),
    "a frame that never fills": (_full_frame_forgotten, "width 2"),
    "K instead of its factor": (_gram_for_its_factor, "relu tokens"),
    "a wrong orientation of the frame": (_wrong_orientation, "residual"),
    "copies of a matrix as if fresh": (_members_never_distinct, "grouped queries"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_comparison_rejects_a_broken_lowering_rule(name, monkeypatch):
    mutate, network = MUTATIONS[name]
    make, widths = NETS[network]
    net = make()
    mutate(monkeypatch)
    assert smallest_p(net, draws=4000, **widths) < 1e-7


# Streams


@pytest.mark.parametrize(
    "widths", [{"n": 9, "d": 3}, {"n": ns.inf, "d": 3}, {"n": ns.inf, "d": ns.inf}]
)
def test_law_bits_do_not_depend_on_the_workers(widths):
    net = cross_attention.net()
    laws = [net.law(draws=9000, workers=k, **widths) for k in (1, 2, 7)]
    for law in laws[1:]:
        assert np.array_equal(law.component_cov, laws[0].component_cov)


def test_law_bits_do_not_depend_on_the_executor():
    from concurrent.futures import ProcessPoolExecutor

    net = attention_layer.net()
    alone = net.law(n=8, draws=9000, workers=1)
    with ProcessPoolExecutor(2) as executor:
        assert np.array_equal(
            net.law(n=8, draws=9000, executor=executor).component_cov,
            alone.component_cov,
        )


def test_law_does_not_depend_on_the_block_size(monkeypatch):
    net = residual_block.net()
    alone = net.law(n=5, draws=300)
    monkeypatch.setattr("netsor.engine.backends._numpy.BLOCK_BYTES", 2**14)
    again = net.law(n=5, draws=300)
    np.testing.assert_allclose(
        again.component_mean, alone.component_mean, rtol=1e-9, atol=1e-12
    )


def test_one_seed_couples_two_widths():
    net = attention_layer.net()[0]
    laws = (net.law(n=w, draws=2000, seed=4) for w in (64, 10**6, ns.inf))
    far, near, limit = (mixture(law).component_var for law in laws)
    other_seed = net.law(n=10**6, draws=2000, seed=5).component_var
    assert np.corrcoef(near, limit)[0, 1] > 0.999
    assert np.corrcoef(far, limit)[0, 1] > 0.3
    assert abs(np.corrcoef(other_seed, limit)[0, 1]) < 0.1


def test_law_reports_progress_and_stops_on_interrupt():
    seen = []
    attention_layer.net().law(
        n=4, draws=10_000, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (10_000, 10_000)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attention_layer.net().law(n=4, draws=10_000, progress=stop)


# Singular and extreme


@pytest.mark.parametrize("width", [1, 2, 3, 10**6, 10**12, ns.inf])
def test_law_of_attention_has_a_valid_covariance_at_any_width(width):
    law = attention_layer.net().law(n=width, draws=200)
    assert np.isfinite(law.component_cov).all()
    assert (np.linalg.eigvalsh(law.component_cov) > -1e-9).all()


@pytest.mark.parametrize("width", [1, 2, 5, ns.inf])
def test_equal_tokens_have_equal_covariances_at_singular_kernels(width):
    x = ns.relu(ns.gaussian(n, 2))  # at width 1 often all zero
    x = ns.join([x, x, 0.0 * x])  # twice the same, and zero
    law = ns.Program(ns.nn.attention(x, 2)).law(n=width, draws=500)
    assert np.isfinite(law.component_cov).all()
    np.testing.assert_allclose(
        law.component_cov[:, 0, 0], law.component_cov[:, 2, 2], atol=1e-9
    )


def test_too_large_nonlinearity_raises_before_it_is_computed():
    with pytest.raises(
        ns.ExactError, match=r"needs .* bytes for one replica .*or width inf"
    ):
        ns.Program(ns.relu(ns.gaussian(n))).law(n=10**11)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_function_that_returns_nan_raises_an_error():
    with pytest.raises(ValueError, match="a function of the program gave NaN"):
        ns.Program(ns.weight(n, n) @ ns.nonlin(np.log, ns.gaussian(n))).law(
            n=8, draws=10
        )


def test_law_repr_origin_and_notes():
    law = attention_layer.net().law(n=ns.inf, draws=100)
    assert (law.status, law.random_numbers, law.replicas) == ("proved", 32, 100)
    assert law.notes == (
        "clip at 100 acts as the identity: it clips with probability e^-5000",
    )
    assert attention_layer.net()[0].law(n=9, draws=100).status == "exact"
    assert cross_attention.net().law(n=ns.inf, d=4, draws=100).status == "conjectured"
    assert "exact engine at n = inf" in repr(law)
    # a clip that does clip is a nonlinearity
    clipped = ns.Program(ns.weight(n, n) @ ns.clip(ns.gaussian(n), 2.0)).law(
        n=9, draws=10
    )
    assert clipped.notes == ()
    assert clipped.random_numbers == 9


def test_deterministic_law_has_one_replica():
    # three points
    perceptron = ns.Program(
        ns.weight(1, n) @ ns.relu(ns.weight(n, 3) @ ns.data(np.eye(3)))
    )
    assert perceptron.law(n=ns.inf).replicas == 1
    assert perceptron.law(n=ns.inf).random_numbers == 0
    assert perceptron.law(n=8, draws=60).replicas == 60


# Array libraries

STRICT = {
    "layer": (attention_layer.net, {"n": 16}),
    "layer, limit": (attention_layer.net, {"n": ns.inf}),
    "recurrent": (recurrent.net, {"n": 6}),
    "recurrent, limit": (recurrent.net, {"n": ns.inf}),
    "cross": (cross_attention.net, {"n": ns.inf, "d": 3}),
    "causal": (causal_attention.net, {"n": 4}),
    "block": (residual_block.net, {"n": 6}),
    "block, limit": (residual_block.net, {"n": ns.inf}),
}


def _joint(plan, xp):
    def strict(step, arrays, _):
        # numpy's alone, unless there is a formula
        if step.kind in ("kernel", "moments"):
            return xp.asarray(in_numpy(step, [np.asarray(a) for a in arrays], None))
        return compute(linalg, step.kind, arrays, step.params)

    linalg = LinalgBackend(xp)
    streams = Streams(3, 0)
    return run(
        plan,
        lambda step: xp.asarray(streams.draw(step, 40)),
        lambda register: xp.asarray(register.value),
        in_numpy if xp is np else strict,
    )


@pytest.mark.parametrize("name", STRICT)
def test_plans_run_with_array_api_strict(name):
    make, widths = STRICT[name]
    plan = make_plan(make().outputs, widths)
    by_numpy, by_strict = (
        _joint(plan, xp) for xp in (np, array_api_strict)
    )  # all tokens
    for a, b in zip(by_numpy, by_strict, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_shortcuts_save_random_numbers():
    """So each of them does something in the programs that it is for."""
    layer = attention_layer.net(tokens=4)[0]
    all_in = make_plan(layer.outputs, {"n": 16}).random_numbers
    for names in (["linearise"], ["commute", "fuse"], ["leaves"], ["undrawn"]):
        assert (
            make_plan(layer.outputs, {"n": 16}, without=names).random_numbers > all_in
        ), names
    x = ns.relu(ns.gaussian(n, 3))
    y = ns.Program(ns.mean_dot(x, x + ns.nn.attention(x, 2)))
    turned = make_plan(y.outputs, {"n": 64}).random_numbers
    assert make_plan(y.outputs, {"n": 64}, without=["turn"]).random_numbers > turned


def test_first_draws_do_not_depend_on_the_number_of_draws_at_large_scores():
    """A replica's bits do not depend on its neighbours, also where a softmax has to be
    shifted.
    """
    net = ns.paper.layer(sigma_q=10.0, sigma_k=10.0)
    of_100_draws, of_8000_draws = (
        net.law(n=64, draws=draws).component_var for draws in (100, 8000)
    )
    assert (of_100_draws == of_8000_draws[:100]).all()


def test_function_that_returns_its_argument_is_not_overwritten():
    """Its result is an array of its own: sums are written over arrays that nothing
    reads any more.
    """
    x = ns.gaussian(n, 2)
    y = ns.nonlin(lambda u: u, x)
    z = y + ns.weight(n, n) @ y
    assert smallest_p(ns.Program((z, ns.dot(z, x), x)), draws=4000, n=3) > 1e-7
