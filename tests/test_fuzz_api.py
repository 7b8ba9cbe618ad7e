"""Misuses of the public API, with the contract as the oracle.

A call with a wrong argument or two gives a result, or an error that we raised ourselves
and that says something short: never one from inside numpy, scipy or Python, and never
NaN. If the one wrong argument has a name, the error names it.
"""

import itertools
import random
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

import netsor as ns
from tests.internals import ReproduceRequest as Request
from tests.internals import _memory, shown

from .keep import keep
from .misuses import FURTHER, LANGUAGE, d, n, net
from .misuses_of_laws import LAWS

PACKAGES = [Path(package.__file__).parent for package in (ns,)]
LONG = 400  # characters of a message


class Odd:
    """Something that is nothing of what is asked for."""

    def __repr__(self):
        return "<odd>"


WRONG = [
    None,
    True,
    0,
    -1,
    1,
    3,
    2.5,
    -2.5,
    1e300,
    1e-300,
    float("nan"),
    float("inf"),
    10**30,
    -(10**400),
    "",
    "x",
    "inf",
    b"x",
    [],
    [1],
    [[1.0, 2.0]],
    (),
    {},
    {"a": 1},
    set(),
    Odd(),
    Odd,
    len,
    1j,
    n,
    slice(None),
    ...,
    np.array([]),
    np.array([np.nan]),
    np.array(3.0),
    np.zeros((2, 2)),
    np.eye(3),
    -np.eye(2),
    np.array(["x"]),
    np.array([None]),
    np.zeros((0, 4)),
    np.float32(0.5),
    np.int8(3),
    range(3),
]


def deep():
    return ns.Program(
        ns.nn.attention(ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), 1), 1)[0]
    )


# what to call, and right arguments for it: those of a name are given by it
CALLS = {
    "program": {
        "law": (
            lambda **a: net().law(n=4, **a),
            {"draws": 20, "seed": 1, "coordinates": 0, "workers": 1, "progress": False},
        ),
        "limit": (
            lambda **a: deep().law(n=ns.inf, **a),
            {"draws": 20, "seed": 1, "workers": 1, "progress": False},
        ),
        "simulate": (
            lambda **a: net().simulate(n=4, **a),
            {"draws": 5, "seed": 1, "coordinates": 0, "workers": 1, "progress": False},
        ),
        "executor": (
            lambda **a: net().simulate(n=4, draws=5, progress=False, **a),
            {"executor": None},
        ),
        "reproduce": (
            lambda **a: Request(**a),
            {
                "names": ("1b",),
                "samples": 100,
                "trials": 1,
                "seed": 0,
                "workers": 1,
                "estimator": "both",
                "tokens": 4,
            },
        ),
    },
    "widths": {
        "law": (lambda **a: net().law(draws=20, progress=False, **a), {"n": 4}),
        "law of two widths": (
            lambda **a: ns.Program(
                ns.nn.attention(ns.tanh(ns.gaussian(n, 2)), 2, head_dim=d)[0]
            ).law(draws=20, progress=False, **a),
            {"n": 4, "d": 3},
        ),
        "plan": (lambda **a: net().plan(**a), {"n": 4}),
        "simulate": (
            lambda **a: net().simulate(draws=5, progress=False, **a),
            {"n": 4},
        ),
    },
    "language": LANGUAGE,
    "laws": LAWS,
}


FUNCTIONS = (
    "progress",
    "activation",
    "qk_norm",
    "attend",
    "feed",
    "norm",
    "layer",
    "function",
)


def wrong_for(key):
    """What may be written for an argument by mistake. A function that fails is nobody's
    but the caller's.
    """
    pool = WRONG + FURTHER
    return (
        [value for value in pool if not callable(value)] if key in FUNCTIONS else pool
    )


def misused(source, area):
    """A call with one or two wrong arguments."""
    name = source.choice(sorted(CALLS[area]))
    function, right = CALLS[area][name]
    arguments = dict(right)
    for key in source.sample(list(right), min(len(right), source.choice([1, 1, 2]))):
        arguments[key] = source.choice(wrong_for(key))
    return name, function, arguments


def examine(name, function, arguments, named=""):
    """What is wrong with what a call did; None if nothing is. An error must tell what
    is `named`.
    """
    positional = [arguments[i] for i in range(len(arguments)) if i in arguments]
    try:
        result = function(
            *positional, **{k: v for k, v in arguments.items() if isinstance(k, str)}
        )
        if isinstance(result, ns.Mixture):
            result = result.var()
    except (ValueError, TypeError, IndexError) as error:
        last, said = (
            traceback.extract_tb(error.__traceback__)[-1],
            str(error).split(" (at ")[0],
        )
        if not any(map(Path(last.filename).is_relative_to, PACKAGES)) or not (
            last.line or ""
        ).startswith("raise "):
            return f"raised in {last.filename}:{last.lineno}: {error!r}"
        return (
            None
            if 10 < len(said) < LONG and re.search(rf"\b({named})\b", said)
            else f"names no {named}, or says too much or little: {said}"
        )
    if name.endswith("ppf") or any(unknown(value) for value in arguments.values()):
        # as in scipy, NaN of NaN is NaN, and so is the quantile of no probability
        return None
    arrays = [
        a
        for a in (result if isinstance(result, tuple) else (result,))
        if isinstance(a, np.ndarray | float)
    ]
    return (
        "NaN is no answer" if any(np.isnan(array).any() for array in arrays) else None
    )


def unknown(value):
    """Whether numpy reads it as NaN."""
    try:
        return bool(np.isnan(np.asarray(value, dtype=float)).any())
    except Exception:
        return False


def check(name, function, arguments, named=""):
    given = {key: shown(value) for key, value in arguments.items()}
    try:
        wrong = examine(name, function, arguments, named)
    except BaseException as error:
        error.add_note(f"{name}: {given}")
        raise
    assert wrong is None, f"{wrong}, of {name}: {given}"


@pytest.fixture(autouse=True)
def two_gigabytes(monkeypatch):
    """What is refused does not depend on the machine."""
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**31)


def many(area, seed, count):
    source = random.Random(seed)
    for _ in range(count):
        check(*misused(source, area))


AREAS = ["program", "widths", "language", "laws"]
COUNT = {"program": 50, "widths": 100, "language": 1500, "laws": 150}


@pytest.mark.parametrize("step", keep([17, 1], 17))
@pytest.mark.parametrize(
    "area",
    [pytest.param("program", marks=pytest.mark.slow), "widths", "language", "laws"],
)
def test_every_misuse(area, step):
    """Every wrong value for every argument, one at a time; in a quick run every 17th,
    from another one each time.
    """
    begin = itertools.count()
    for name, (function, right) in CALLS[area].items():
        for key in right:
            for value in wrong_for(key)[next(begin) % step :: step]:
                named = (
                    ""
                    if isinstance(key, int)
                    else "names|FIGURE"
                    if key == "names"
                    else key
                )
                check(name, function, {**right, key: value}, named)


@pytest.mark.parametrize("seed", keep(range(4), 0))
@pytest.mark.parametrize("area", AREAS)
def test_misuses(area, seed):
    many(area, seed, COUNT[area])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("area", AREAS)
def test_many_misuses(area, seed):
    many(area, seed, 10 * COUNT[area])


def readings(made):
    """Every reading of a program."""
    net = made if isinstance(made, ns.Program) else ns.Program(made)
    finite, infinite = (dict.fromkeys(net.widths, width) for width in (4, ns.inf))
    assert str(net)
    assert net.latex()
    assert net.check()
    for widths in (finite, infinite):
        net.law(draws=4, progress=False, **widths)
    return net.simulate(draws=2, progress=False, **finite)


def accepted(source):
    """The result of a call that accepts a wrong argument; None if it is refused."""
    name, function, arguments = misused(source, "language")
    positional = [arguments[i] for i in range(len(arguments)) if i in arguments]
    try:
        made = function(
            *positional, **{k: v for k, v in arguments.items() if isinstance(k, str)}
        )
    except (ValueError, TypeError):
        return None
    made = made[0] if isinstance(made, tuple) else made
    small = isinstance(made, ns.Program) or (
        isinstance(made, ns.Value) and made.size < 200
    )
    return (name, lambda: readings(made), {}) if small else None


# 1/p for a p that is 0 in the limit, say
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 600), *(pytest.param(k, 6000, marks=pytest.mark.slow) for k in (1, 2))],
)
def test_accepted_arguments_give_readable_laws(seed, count):
    """A misuse that is let through fails nowhere later, or with an error of ours."""
    source = random.Random(seed)
    found = [
        call for call in (accepted(source) for _ in range(count)) if call is not None
    ]
    assert len(found) > count / 40
    for call in found:
        check(*call)


def test_right_arguments_are_right():
    for calls in CALLS.values():
        for function, arguments in calls.values():
            function(
                *[arguments[i] for i in range(9) if i in arguments],
                **{k: v for k, v in arguments.items() if isinstance(k, str)},
            )
