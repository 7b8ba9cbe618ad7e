"""Shortcuts: with each of them off the law is the same."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

import netsor as ns
from tests.internals import (
    SHORTCUTS,
    HeadSum,
    Mixture,
    PlanQuery,
    Provenance,
    lazy_head,
    recognise,
)

from ..builder import Builder
from ..keep import keep
from ..programs import LIMIT_STEPS, STEPS, WIDTHS, LimitBuilder, grown, programs
from .compare import conditional, exact_draws, literal_draws, n, smallest_of, smallest_p

LEVEL = 1e-8  # of the smallest of some 13 p-values

# Random programs (seeds of `Builder`, eight steps) in which a shortcut counts: without
# it the plan is another.
FINITE = {
    "condition": (2, 61, 132),
    "linearise": (13, 30, 149),
    "commute": (110, 244, 292),
    "fuse": (13, 25, 132),
    "leaves": (13, 25, 38),
    "undrawn": (25, 30, 61),
    "turn": (38, 135, 149),
    "all": (13, 38, 61, 149),
}


def planned(net, widths, without):
    """The plan of `exact_draws`, which is kept."""
    return PlanQuery(net.outputs, tuple(widths.items()), without=tuple(without)).plan()


def seeds_that_count(build, name, count=8):
    """The first seeds of programs whose plan is another without a shortcut, for
    `FINITE` or `COUNTS`. It takes seconds to minutes.

    `build(seed)` makes the program and its widths.
    """
    without = SHORTCUTS if name == "all" else (name,)
    seeds = []
    for seed in range(400):
        net, widths = build(seed)
        try:
            plans = [str(planned(net, widths, names)) for names in ((), without)]
        except ValueError:  # the engine rejects the program
            continue
        if plans[0] != plans[1]:
            seeds.append(seed)
        if len(seeds) == count:
            break
    return tuple(seeds)


def finite_program(seed):
    built = grown(Builder(seed, WIDTHS), STEPS, 8, 12)
    return built.net, built.widths


def infinite_program(seed):
    net = grown(LimitBuilder(seed, WIDTHS[:2]), LIMIT_STEPS, 5, 12).net
    return net, dict.fromkeys(net.widths, ns.inf)


@cache
def counted(seed):
    """A program, with draws of the literal interpreter."""
    net, widths = finite_program(seed)
    return net, widths, literal_draws(net, 1500, **widths)


@pytest.mark.parametrize("name", FINITE)
def test_without_a_shortcut_the_law_is_the_literal_one(name):
    """Each left out, and all of them: against the literal interpreter. 25 programs with
    13 comparisons at 1e-8.
    """
    without = SHORTCUTS if name == "all" else (name,)
    for seed in FINITE[name]:
        net, widths, literal = counted(seed)
        plans = [str(planned(net, widths, names)) for names in ((), without)]
        assert plans[0] != plans[1], (
            f"{name} does not count in program {seed}, nothing is compared: choose from"
            f" seeds_that_count(finite_program, {name!r})"
        )
        drawn = exact_draws(net, 1500, without=without, **widths)
        assert smallest_of(drawn, literal) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHORTCUTS, "all"])
def test_random_programs_without_a_shortcut_have_the_literal_law(name):
    @settings(max_examples=24, deadline=None, derandomize=True)
    @given(programs(steps=10))
    def run(built):
        assert (
            smallest_p(
                built.net,
                without=SHORTCUTS if name == "all" else (name,),
                **built.widths,
            )
            > LEVEL
        )

    run()


# At infinite width

NAMED = {
    "relu": ns.relu,
    "leaky": lambda x: ns.leaky_relu(x, 0.2),
    "abs": ns.abs,
    "clip": lambda x: ns.clip(x, 1.0),
    "erf": ns.erf,
    "tanh": ns.tanh,
    "sigmoid": ns.sigmoid,
    "gelu": ns.gelu,
    "gelu_tanh": ns.gelu_tanh,
    "silu": ns.silu,
    "sin": ns.sin,
    "cos": ns.cos,
}


@pytest.mark.parametrize("mean", keep([0.0, 0.4], 0.4))
@pytest.mark.parametrize("name", keep(NAMED, "relu", "erf", "gelu", "sin"))
def test_kernel_that_is_not_named_is_the_same(name, mean):
    """Within what the engine says of its quadrature; a formula that is wrong by a part
    in 10⁶ would be seen.
    """
    x = ns.gaussian(
        n, 3, mean=mean, cov=[[1.0, 0.5, -0.6], [0.5, 2.0, 0.1], [-0.6, 0.1, 0.7]]
    )
    outputs = ns.Program(ns.weight(n, n) @ NAMED[name](x)).outputs
    known, plain = (
        conditional(outputs, {"n": ns.inf}, 2, without=without, progress=False)
        for without in ((), ("named",))
    )
    size = np.sqrt(np.diagonal(known.cov[0]))
    error = np.abs(plain.cov[0] - known.cov[0]) / size[:, None] / size
    assert error.max() < 1e-9 + 3 * (known.quadrature_error + plain.quadrature_error)
    assert plain.quadrature_error < 1e-6


# Random programs (seeds of `LimitBuilder`, five steps) in which a shortcut counts:
# without it the plan is another.
COUNTS = {
    "condition": (9, 12, 16),
    "linearise": (10, 13, 63),
    "commute": (25, 171, 208),
    "compose": (25, 36, 109),
    "fuse": (20, 42, 65),
    "leaves": (19, 39, 117),
    "undrawn": (0, 3, 4),
    "apart": (15, 25, 34),
}


def test_every_shortcut_is_left_out_somewhere():
    """Functions by their names and the formula for heads: in this file; turned frames:
    in test_depth.

    Stacked and drawn matrices, which are for finite widths: in test_gradients and
    test_cost; repeated blocks: in test_repeated_blocks; products of ReLU vectors: in
    test_positive; chosen experts: in test_chosen_experts.
    """
    assert {
        *COUNTS,
        "repeated",
        "named",
        "recognise",
        "stacked",
        "drawn",
        "turn",
        "positive",
        "chosen",
    } == set(SHORTCUTS)


@pytest.mark.usefixtures("unshifted")
@pytest.mark.parametrize(
    ("name", "seed"),
    keep(
        [(name, seed) for name, seeds in COUNTS.items() for seed in seeds],
        *((name, seeds[0]) for name, seeds in COUNTS.items()),
    ),
)
def test_without_a_shortcut_the_limit_is_the_same(name, seed):
    """Each left out, against all of them; a program that is refused fails.

    24 programs with some 5 entries, at 1e-7: a false alarm at 2e-5.
    """
    net, widths = infinite_program(seed)
    plans = [str(planned(net, widths, without)) for without in ((), (name,))]
    assert plans[0] != plans[1], (
        f"{name} does not count in program {seed}, nothing is compared: choose from"
        f" seeds_that_count(infinite_program, {name!r})"
    )
    found = [
        exact_draws(net, 300, seed=k, without=w, **widths)
        for k, w in enumerate(((), (name,)))
    ]
    for a, b in zip(found[0].T, found[1].T, strict=True):
        size = max(np.abs(a).max(), 1e-300)
        if np.ptp(a) > 1e-6 * size:
            assert stats.ks_2samp(a, b, method="asymp").pvalue > 1e-7
        else:
            np.testing.assert_allclose(b / size, a / size, atol=1e-5)


def head_by_hand(x):
    """A head without an axis for heads."""
    q, k, v = (ns.weight(n, n, std=std) @ x for std in (2.0, 1.0, 1.0))
    return ns.weight(n, n) @ (ns.softmax(ns.dot(q, k)) @ v)


@pytest.mark.parametrize("heads", [None, 1, 3])
def test_layer_that_is_not_recognised_is_the_same(heads):
    x = ns.relu(ns.weight(n, n, batch=3) @ ns.gaussian(n))
    y = ns.nn.attention(x, heads, sigma_q=2.0) if heads else head_by_hand(x)
    net, widths = ns.Program(y)[0], {"n": ns.inf}
    layer = recognise(net.outputs, widths)
    assert layer is not None
    assert recognise(net.outputs, widths, without=("recognise",)) is None
    plain = conditional(
        net.outputs, widths, 40_000, without=("recognise",), progress=False
    )
    mixture = Mixture(plain.mean[:, 0], plain.cov[:, 0, 0], Provenance("exact", "test"))
    head = lazy_head(layer.scores, layer.values)
    formula = HeadSum(
        head, layer.heads, layer.scale, Provenance("exact", "test"), lambda: mixture
    )
    y = np.linspace(-2.0, 2.0, 9)
    value, error = mixture.with_error.cdf(y)
    # nine at five standard errors: 5e-6
    assert (np.abs(value - formula.cdf(y)) < 5 * error + 1e-9).all()
    assert np.ptp(plain.cov) > 0
