"""The examples of public docstrings run, and print what they say."""

import doctest
import inspect

import matplotlib
import numpy as np
import pytest

import netsor as ns

PUBLIC = {name: getattr(ns, name) for name in ns.__all__} | {
    f"nn.{name}": getattr(ns.nn, name) for name in ns.nn.__all__
}
FINDER = doctest.DocTestFinder(exclude_empty=True, recurse=True)


def examples():
    found = {}
    for name, thing in PUBLIC.items():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            for test in FINDER.find(thing, name, module=False, globs={"ns": ns, "np": np}):
                if test.examples:
                    found[test.name] = test
    return found


EXAMPLES = examples()


def test_they_are_found():
    assert {"rate", "Program.latex", "Law.expect", "nn.attention"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    matplotlib.use("Agg")
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(EXAMPLES[name], out=said.append)
    assert runner.failures == 0, "".join(said)
