"""Probes name values and change nothing else."""

import doctest
import re

import numpy as np
import pytest

import netsor as ns

n = ns.Width("n")


def net(watched):
    name = ns.probe if watched else (lambda _, x: x)

    @ns.program
    def made():
        x = name("embedding", ns.gaussian(n, 3))
        a = ns.nn.attend(x, 2, 4, "causal")
        name("weights", a.weights)
        name("logits", ns.nn.logits(x, 5))  # which no output depends on
        return name("stream", x + ns.relu(a.output))

    return made()


def test_probe_has_no_effect_on_law_and_random_numbers():
    plain, watched = net(False), net(True)
    assert (len(plain.probes), [each.name for each in watched.probes]) == (
        0,
        ["embedding", "weights", "logits", "stream"],
    )
    for widths in ({"n": 8}, {"n": ns.inf}):
        np.testing.assert_array_equal(
            *(
                each.draw(draws=20, progress=False, **widths)
                for each in (plain, watched)
            ),
            strict=True,
        )
        assert (
            plain.plan(**widths).random_numbers == watched.plan(**widths).random_numbers
        )
    np.testing.assert_array_equal(
        *(each.simulate(n=8, draws=3, progress=False) for each in (plain, watched))
    )
    assert str(plain.check()) == str(watched.check())


def test_probes_are_printed():
    lines = str(net(True)).splitlines()
    assert (
        next(line for line in lines if line.startswith("probe"))
        == "probe embedding: h1"
    )
    assert "random scalars" in str(net(True))  # what only a probe needs is shown
    assert "Watched: embedding $h^{(1)}_{i}$, weights $a" in net(True).latex()
    assert "Watched" not in net(False).latex()
    assert net(True)[0].probes == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: ns.probe("strem", x),
            r"name='strem' must be one of embedding, .*stream, attention, mlp",
        ),
        (lambda x: ns.probe(3, x), "name=3 must be one of"),
        (
            lambda x: ns.probe("scores", x),
            r"scores must be scalars \(…, tokens, tokens\)",
        ),
        (lambda x: ns.probe("stream", x[0]), r"stream must be vectors \(tokens,\)"),
        (lambda x: ns.probe("stream", x[None]), "stream must be vectors"),
        (
            lambda x: ns.probe("stream", x, mask=[True]),
            "mask is for scores and weights, not for stream",
        ),
        (
            lambda x: ns.probe("scores", ns.mean_dot(x, x), mask=np.ones((2, 2), bool)),
            "does not broadcast to scores",
        ),
        (
            lambda x: ns.probe("scores", ns.mean_dot(x, x), mask=np.eye(3)),
            "must be 'causal' or a boolean array",
        ),
        (
            lambda x: ns.nn.shared(lambda u: ns.probe("stream", u))(x),
            "is inside ns.nn.shared",
        ),
    ],
)
def test_probe_errors(call, message):
    with pytest.raises(ns.TraceError) as found:
        ns.program(lambda: call(ns.gaussian(n, 3)))()
    # without the line of the user, which has these words here
    assert re.search(message, found.value.plain)


def test_outside_of_a_program_nobody_watches():
    with pytest.raises(
        ns.TraceError, match=r"must be called in a function that @ns.program decorates"
    ):
        ns.probe("stream", ns.gaussian(n, 3))


def test_program_inside_another_has_its_own_probes():
    @ns.program
    def outer():
        x = ns.probe("embedding", ns.gaussian(n, 2))
        assert len(net(True).probes) == 4
        return ns.probe("stream", x)

    assert [each.name for each in outer().probes] == ["embedding", "stream"]


@pytest.mark.parametrize("function", [ns.probe, ns.models.recipe])
def test_example_of_a_docstring_runs(function):
    (test,) = doctest.DocTestFinder(recurse=False).find(
        function, function.__name__, globs={"ns": ns}
    )
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))
    assert test.examples
