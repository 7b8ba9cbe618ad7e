"""What is taken for a number, a shape, an index or a width, and what is not: the right
ones keep their value.
"""

import copy
import functools
import inspect
import pickle
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    LARGEST,
    SHOWN,
    ArgumentError,
    LawBase,
    as_floats,
    as_number,
    as_whole,
    chosen_seed,
    seed_number,
    shown,
    whole,
)

n, d = ns.Width("n"), ns.Width("d")


class Half(float):
    """A float that is called otherwise."""


class Three:
    """An integer that is called otherwise."""

    def __index__(self):
        return 3


HALVES = [
    0.5,
    Half(0.5),
    np.float32(0.5),
    np.float16(0.5),
    np.longdouble(0.5),
    np.array(0.5),
    Fraction(1, 2),
    Decimal("0.5"),
]


@pytest.mark.parametrize("half", HALVES, ids=lambda half: type(half).__name__)
def test_every_spelling_of_a_half_is_accepted(half):
    assert as_number(half) == 0.5
    assert ns.weight(n, n, std=half).std == 0.5
    assert ns.normal(std=half).op.std == 0.5
    assert ns.data([half, half]).op.vectors.tolist() == [0.5, 0.5]
    assert (half * ns.gaussian(n)).op.c.op.numbers == 0.5
    assert ns.clip(ns.gaussian(n), half).op.f.parameters == (0.5,)


@pytest.mark.parametrize(
    "three",
    [3, np.int8(3), np.uint64(3), np.array(3), Three()],
    ids=lambda k: type(k).__name__,
)
def test_every_spelling_of_three_is_accepted(three):
    assert type(as_whole(three)) is int
    assert ns.gaussian(three, three).shape == (3,)
    assert ns.gaussian(n, (2, three)).shape == (2, 3)
    assert three * n == n * three == ns.Width("n", 3)
    assert ns.nn.attention(ns.gaussian(n, 2), three).shape == (2,)
    assert ns.gaussian(n, 4)[three].op.flat == 3
    assert ns.Program(ns.gaussian(n)).simulate(n=three, draws=1).shape == (1, 3)
    assert ns.Program(ns.gaussian(n)).law(n=three).var() == 1


NO_NUMBERS = [
    None,
    "1",
    b"1",
    True,
    np.True_,
    np.array(True),
    1j,
    np.array(1j),
    [0.5],
    np.array([0.5]),
    {},
    np.datetime64(1, "s"),
    np.array("1", dtype=object),
    n,
    np.array(None),
    ns.gaussian(n),
    "inf",
]


def test_other_objects_are_not_numbers():
    for given in NO_NUMBERS:
        assert as_number(given) is None
        assert as_whole(given) is None
        with pytest.raises(ns.TraceError, match=r"std=.* must be a finite number"):
            ns.weight(n, n, std=given)
        with pytest.raises(ns.TraceError, match=r"heads=.* must be a positive integer"):
            ns.nn.attention(ns.gaussian(n, 2), given)


NO_ARRAYS = [
    ["1.5"],
    np.array(["1.5"], dtype=object),
    [1, None],
    [1j],
    [[1], [1, 2]],
    {1.0, 2.0},
    np.ma.array([1.0, 2.0], mask=[0, 1]),
    np.zeros(2, dtype="M8[s]"),
]


def test_other_objects_are_not_arrays():
    """numpy would read text, take None for NaN, and bring to light what a mask
    hides.
    """
    for given in NO_ARRAYS:
        assert as_floats(given) is None
        with pytest.raises(
            ns.TraceError, match=r"vectors=.* must be a real number or an array of them"
        ):
            ns.data(given)


def test_large_integers_are_numbers_and_no_counts():
    assert as_floats([10**30, 1]).tolist() == [1e30, 1.0]
    limit = ns.paper.layer().law(n=ns.inf)
    assert limit.cdf([10**400, -(10**400), Fraction(10**400)]).tolist() == [
        1.0,
        0.0,
        1.0,
    ]
    assert (limit.cdf(10**400), limit.pdf(-(10**400))) == (1.0, 0.0)
    for beyond in (10**400, -(10**400)):  # neither is a double, nor infinite
        assert as_number(beyond) is None
        with pytest.raises(
            ArgumentError,
            match="width n=an integer of 1329 bits must be a positive integer",
        ):
            ns.Program(ns.gaussian(n)).law(n=beyond)
    for count in (LARGEST, 10**400):
        with pytest.raises(ns.TraceError, match="below 2\\^53"):
            ns.gaussian(count)
        with pytest.raises(ns.TraceError, match="below 2\\^53"):
            ns.nn.attention(ns.gaussian(n, 2), count)
    with pytest.raises(ns.TraceError, match="at most 32 axes and 268,435,456 entries"):
        ns.weight(n, n, (2**20, 2**20))
    with pytest.raises(
        ns.TraceError, match="1,048,576 vectors; at most 16,384 are allowed"
    ):
        ns.gaussian(n, 2**20)
    with pytest.raises(ns.TraceError, match="entries, more than 268,435,456"):
        ns.mean_dot(
            ns.weight(n, n, 2**15) @ ns.ones(n), ns.weight(n, n, 2**15) @ ns.ones(n)
        )[0]


def test_whole_numbers_are_bounded():
    assert seed_number(2**128 - 1) == 2**128 - 1
    assert whole(np.int64(5), "draws") == 5
    for wrong in (2**53, 10**400, -(10**5000), True, 2.0, "3", None, 0):
        with pytest.raises(ArgumentError, match=r"n=.* must be a positive integer"):
            whole(wrong, "n")


def test_error_has_name_value_and_allowed():
    """The command line builds its own message from them."""
    with pytest.raises(ns.TraceError) as caught:
        ns.weight(n, n, std=-1)
    error = caught.value.argument
    assert (error.name, error.value, error.allowed) == (
        "std",
        -1,
        "a finite number, 0 or from 1e-50 to 1e+50",
    )
    assert str(caught.value).startswith(f"weight: {error} (at ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_axes_are_counted():
    x = ns.weight(n, n, (1,) * 32) @ ns.ones(n)
    with pytest.raises(ns.TraceError, match="33 axes; at most 32 are allowed"):
        x[None]
    with pytest.raises(ns.TraceError, match="33 axes; at most 32 are allowed"):
        ns.weight(n, n, 1) @ x


LONG = [
    None,
    "a" * 999,
    "a\nb",
    [[0] * 99] * 99,
    {i: i for i in range(999)},
    10**5000,
    -(10**5000),
    np.zeros(999),
    ns.gaussian(n, (1,) * 30),
    range(9),
]


def test_arguments_are_shown_in_one_short_line():
    for argument in LONG:
        assert 0 < len(shown(argument)) <= SHOWN
        assert "\n" not in shown(argument)


def test_bool_index_raises():
    x, w = ns.gaussian(n, (2, 3)), ns.weight(n, n, 2)
    for key in (True, False, np.True_, np.array(True), (0, True)):
        with pytest.raises(IndexError, match="None adds an axis, booleans do not"):
            x[key]
        with pytest.raises(IndexError, match="None adds an axis, booleans do not"):
            w[key]
    mask = np.array([[True, False, True], [False, False, True]])
    assert x[mask].op.flat.tolist() == np.arange(6).reshape(2, 3)[mask].tolist()
    assert w[[False, True]].members.tolist() == [1]
    for key in (
        slice(0.5, 2),
        slice(None, None, 0),
        slice("a", None),
        1.0,
        "a",
        [[0], [0, 1]],
        10**30,
    ):
        with pytest.raises(
            IndexError, match=r"indexing: index .* (on|is outside) shape \(2, 3\)"
        ):
            x[key]


def test_names_of_widths_are_as_python_reads_them():
    """Keywords are normalised: µ, the sign of micro, arrives as the Greek letter."""
    assert ns.Program(ns.gaussian(ns.Width("µ"))).simulate(µ=2, draws=1).shape == (1, 2)
    for word in ("lambda", "None", "class"):
        with pytest.raises(
            ns.TraceError, match=f"name='{word}' must be a Python identifier"
        ):
            ns.Width(word)


def test_multiples_of_widths_are_counted_too():
    net = ns.Program(ns.concat(ns.gaussian(n, 4)))
    assert net.law(n=2**50).var() == 1
    with pytest.raises(
        ValueError, match=r"width 4n at n=4503599627370496 must be below 2\^53, or inf"
    ):
        net.law(n=2**52)
    with pytest.raises(
        ns.TraceError,
        match=r"factor=9007199254740992 must be a positive integer \(below 2\^53\)",
    ):
        n * 2**52 * 2


@pytest.mark.parametrize("sigma", [1e-50, 1e-8, 1e8, 1e50])
def test_scales_at_the_ends(sigma):
    """The variance of an output grows with σ_O², to all digits, at the ends of what is
    allowed too.
    """
    for widths in ({"n": ns.inf}, {"n": 8, "draws": 100}):
        one, scaled = (
            ns.paper.layer(sigma_o=s).law(**widths).var() for s in (1.0, sigma)
        )
        assert scaled == pytest.approx(sigma**2 * one, rel=1e-12)


def test_scales_beyond_the_ends():
    x = ns.gaussian(n, 2)
    for number in (1e-51, 1e51, 1e300, 5e-324):
        for make in (
            lambda s: ns.weight(n, n, std=s),
            lambda s: ns.normal(std=s),
            lambda s: ns.gaussian(n, mean=s),
            lambda s: ns.gaussian(n, cov=max(s * 1e-50, 5e-324) if s < 1 else s * 1e50),
            lambda s: ns.data([s, s]),
            lambda s: s * x,
            lambda s: x / s,
            lambda s: x + s,
            lambda s: [[s, s]] @ x,
            lambda s: ns.clip(x, s),
        ):
            with pytest.raises(ns.TraceError) as caught:
                make(number)
            # the line of code has them too
            assert re.search(r"1e-50|1e-100|(not|must be) finite", caught.value.plain)


def test_position_that_no_double_resolves_is_refused():
    x = ns.gaussian(n, 2)
    ns.rotary(x, [0, 2**53])
    for more in (
        {"positions": [0, 1e17]},
        {"positions": [0, 1e300], "base": 1e-300},
        {"base": 1e-17},
    ):
        with pytest.raises(
            ns.TraceError, match=r"positions=.* make angles above 2\^53"
        ):
            ns.rotary(x, **more)


def test_functions_of_numpy_are_refused():
    x = ns.gaussian(n, (2, 3))
    for function in (
        np.sum,
        np.mean,
        np.stack,
        np.concatenate,
        np.reshape,
        np.transpose,
    ):
        with pytest.raises(
            ns.TraceError, match=rf"np\.{function.__name__}: acts on arrays"
        ):
            function(x, 0)
    with pytest.raises(ns.TraceError, match=r"holds no numbers: .*simulate"):
        np.asarray(x)


def _pickled(x):
    """What another process gets."""
    return pickle.loads(pickle.dumps(x))


class Sized:
    """A callable object with numbers of its own."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, heads):
        return ns.nn.attention(ns.gaussian(n, self.tokens), heads)


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, _pickled])
def test_program_of_a_callable_object_is_copied_and_pickled(take):
    traced = take(ns.program(Sized(3)))
    assert traced(2).name == "Sized(heads=2)"
    assert traced(2).output.shape == (3,)


def test_anything_that_is_called_can_be_a_program():
    class Net:
        def __call__(self, heads):
            return ns.nn.attention(ns.gaussian(n, 2), heads)

    def net(tokens, heads):
        return ns.nn.attention(ns.gaussian(n, tokens), heads)

    assert ns.program(Net())(2).name == "Net(heads=2)"
    assert ns.program(functools.partial(net, 2))(heads=1).name == "partial(heads=1)"
    with pytest.raises(
        TypeError,
        match=(
            r"missing a required argument: 'heads'; it is called as net\(tokens,"
            r" heads\)"
        ),
    ):
        ns.program(net)(2)
    with pytest.raises(ns.TraceError, match="program: function=3 must be a function"):
        ns.program(3)


def test_parts_of_a_program_of_several_values():
    net = ns.Program((ns.gaussian(n), ns.gaussian(n, 2), ns.gaussian(n, 3)))
    assert net[-1].shape == (3,)
    assert [value.shape for value in net[1:].outputs] == [(2,), (3,)]
    for key in (3, True, "a", [0], (0,), None, slice("a", None)):
        with pytest.raises(IndexError, match="program program: index "):
            net[key]
    with pytest.raises(ns.TraceError, match="selects nothing"):
        net[3:]


def test_program_of_given_numbers_prints():
    net = ns.Program(ns.apply(np.hypot, 3.0, 4.0))
    assert str(net).splitlines()[0] == "program program"
    assert net.law().mean() == 5


def test_generators_give_seeds():
    """As SPEC 7 asks; a generator that goes on gives another seed each time."""
    assert chosen_seed(5) == chosen_seed(0, 5) == chosen_seed(0, np.int8(5)) == 5
    rng = np.random.default_rng(1)
    first = chosen_seed(0, rng)
    assert first == chosen_seed(0, np.random.default_rng(1)) != chosen_seed(0, rng)
    assert 0 <= first < 2**63
    for seed, generator, words in (
        (1, 2, "seed=1 must be left out with rng: both determine the draws"),
        (0, 0.5, r"rng=0.5 must be a numpy.random.Generator or an integer"),
        (0, np.random.RandomState(0), "must be a numpy.random.Generator or an integer"),
        (0, -1, "rng=-1 must be an integer, 0 or more"),
        (-1, None, "seed=-1 must be an integer, 0 or more"),
    ):
        with pytest.raises(ArgumentError, match=words):
            chosen_seed(seed, generator)


def test_whatever_takes_a_seed_takes_a_generator():
    net = ns.Program(ns.weight(n, n) @ ns.gaussian(n))
    methods = [
        getattr(kind, name)
        for kind in (ns.Program, LawBase, ns.Law, ns.Joint)
        for name in vars(kind)
    ]
    things = [getattr(ns, name) for name in ns.__all__] + methods + [ns.paper.reproduce]
    seeded = [
        f
        for f in things
        if inspect.isfunction(f) and "seed" in inspect.signature(f).parameters
    ]
    assert {
        "law",
        "draw",
        "simulate",
        "posterior",
        "log_evidence",
        "audit",
        "coord_check",
        "rate",
        "literature",
        "rvs",
        "reproduce",
        "sliced_wasserstein",
        "transfer",
        "width_needed",
    } == {f.__name__ for f in seeded}
    assert [f for f in seeded if "rng" not in inspect.signature(f).parameters] == []
    for read in (net.law, net.draw, net.simulate):
        one, other, third = (
            read(n=4, draws=5, **given)
            for given in ({"rng": 3}, {"seed": 3}, {"rng": np.random.default_rng(3)})
        )
        same, differs = (
            (
                np.asarray(law.rvs(5, seed=0) if isinstance(law, ns.Law) else law)
                for law in pair
            )
            for pair in ((one, other), (one, third))
        )
        np.testing.assert_array_equal(*same)
        assert not np.array_equal(*differs)
    joint = ns.Joint(
        np.zeros((3, 2)), np.stack([np.eye(2)] * 3), net.law(n=4, draws=2).origin
    )
    values = [
        ns.sliced_wasserstein(joint, joint.gaussian(), 2, **given).value
        for given in ({"rng": 3}, {"seed": 3})
    ]
    assert values[0] == values[1]


def test_both_spellings():
    x = ns.weight(n, 2, name="W") @ ns.data([1.0, 0.0])
    loss = ns.dot(x, x) / 2
    first, second = (
        ns.Program(ns.step(loss, loss, 0.1, **{name: "sgd"})).law(n=8, draws=20)
        for name in ("optimiser", "optimizer")
    )
    assert first.var() == second.var()
    assert (
        ns.ntk(loss, parametrization="standard").shape
        == ns.ntk(loss, parametrisation="standard").shape
    )
    with pytest.raises(
        ArgumentError,
        match=r"^optimizer='sgd' must be left out: optimiser is the same argument$",
    ):
        ns.step(loss, loss, 0.1, optimiser="adam", optimizer="sgd")
