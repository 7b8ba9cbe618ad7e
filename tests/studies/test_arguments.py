"""Studies refuse arguments before any work, in one line that names the argument."""

import pytest

import netsor as ns

TINY = ns.models.read("gpt2").replace(
    layers=1, width=8, heads=2, hidden=32, vocabulary=12
)


@ns.program
def net(n):
    h = ns.probe("hidden", ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.5]]))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - 1.0) ** 2).mean()


def of_a_program(**given):
    return ns.coord_check(net, widths=[8, 16], lr=0.1, draws=4, progress=False, **given)


def of_a_model(**given):
    return ns.coord_check(
        TINY, widths=[8, 16], tokens=1, draws=4, progress=False, **given
    )


def sweep(**given):
    return ns.transfer(net, widths=[8, 16], draws=4, progress=False, **given)


def audit(**given):
    return ns.audit(TINY, quick=True, progress=False, **given)


EVERY = (of_a_program, of_a_model, sweep, audit, ns.literature, ns.paper.reproduce)
OUT = [(study, "out", value) for study in EVERY for value in (3, "", b"x", ["x"], True)]
SEED = [(study, "seed", value) for study in EVERY for value in (None, "x", -1, 1.5)]
EXECUTOR = [
    (study, "executor", value)
    for study in EVERY
    if study is not ns.literature
    for value in (3, "x", [])
]
PROMISE = [
    (of_a_program, "promise", value)
    for value in (3, "x", [1], {"loss": 0.0}, {"features": "x"}, float("nan"))
]


@pytest.mark.parametrize(
    ("study", "name", "value"),
    [*OUT, *SEED, *EXECUTOR, *PROMISE, (of_a_model, "parametrisation", [])],
)
def test_invalid_argument_is_named_in_one_line(study, name, value):
    with pytest.raises(ValueError, match=f"^{name}=") as error:
        study(**{name: value})
    assert "\n" not in str(error.value)
