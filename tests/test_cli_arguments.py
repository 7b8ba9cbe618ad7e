"""Values of --arg: literals, words, and calls of names in the user's file."""

import re
import types

import pytest

from tests.internals import parts_of, value_of

from .command import netsor

CONFIGS = """
from dataclasses import dataclass
import os
import netsor as ns

n = ns.Width("n")
RATES = (1, 2)

@dataclass(frozen=True)
class Config:
    layers: int = 2
    rates: tuple = ()
    inner: object = None

    @classmethod
    def small(cls):
        return cls(1)

def fails():
    raise KeyError("theirs")

@ns.program
def net(config=None):
    x = ns.gaussian(n)
    for _ in range(config.layers):
        x = ns.tanh(ns.weight(n, n) @ x)
    return x
"""


@pytest.fixture(scope="module")
def configs():
    module = types.ModuleType("configs")
    exec(CONFIGS, vars(module))
    return module


VALUES = {
    "4": "4",
    "1e-3": "1e-3",
    "(1, 2)": "(1, 2)",
    "Config(layers=3)": "Config(layers=3)",
    "Config(3, rates=[1, -2.5])": "Config(3, rates=[1, -2.5])",
    "Config(rates=RATES, inner=Config(1))": "Config(rates=RATES, inner=Config(1))",
    "Config.small()": "Config.small()",
    "[Config(1), None]": "[Config(1), None]",
    "{'a': Config(1)}": "{'a': Config(1)}",
    "'Config(1)'": "'Config(1)'",
}


@pytest.mark.parametrize("text", VALUES)
def test_values_are_those_of_python(text, configs):
    assert value_of(text, configs) == eval(VALUES[text], vars(configs))


@pytest.mark.parametrize(
    "text", ["pre", "RATES", "a/b.json", "os.sep", "not a literal ("]
)
def test_words_stay_words(text, configs):
    assert value_of(text, configs) == text


REFUSED = {
    "Confg(layers=3)": "Confg is not in FILE: did you mean Config?",
    "print(1)": "print is not in FILE; put quotes around it if it is a text",
    "__builtins__()": "__builtins__ is not in FILE; put quotes",
    "__import__('os')": "__import__ is not in FILE; put quotes",
    "os.getcwd()": "os.getcwd cannot be used: only names of FILE and attributes of its",
    "Config.__subclasses__()": "Config.__subclasses__ cannot be used: only names of FILE",
    "Config(1).layers()": "'Config(1).layers' is neither a literal nor a call of a name",
    "Config(1)(2)": "'Config(1)' is not a name in FILE",
    "Config(2 * 3)": "'2 * 3' is neither a literal nor a call of a name in FILE; put",
    "Config(**{})": "** is not supported: write each argument",
    "RATES()": "RATES is not a function or class",
    "(lambda: 1)()": "'lambda: 1' is not a name in FILE",
    "[fails() for _ in Config()]": "is neither a literal nor a call of a name in FILE",
}


@pytest.mark.parametrize("text", REFUSED)
def test_nothing_else_is_evaluated(text, configs):
    with pytest.raises(ValueError, match=re.escape(REFUSED[text])):
        value_of(text, configs)


def test_words_are_cut_at_commas_outside_brackets():
    assert parts_of("a, b") == ["a", "b"]
    assert parts_of("Config(1, 2),Config([3, 4])") == ["Config(1, 2)", "Config([3, 4])"]
    assert parts_of("'a,b',c") == ["'a,b'", "c"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(CONFIGS)
    return tmp_path


def test_command_calls_names_of_the_file(folder):
    words = ["plan", "mine.py:net", "--bind", "n=8", "--json"]
    plans = [
        netsor(*words, "--arg", f"config={text}", cwd=folder).stdout
        for text in ("Config(layers=1)", "Config.small()", "Config(layers=2)")
    ]
    numbers = [plan.partition('"random_numbers": ')[2].split(",")[0] for plan in plans]
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Cfg()", "netsor: --arg 'config=Cfg()' cannot be read: Cfg is not in FILE"),
        ("fails()", "netsor: --arg 'config=fails()' cannot be read: 'theirs'"),
    ],
)
def test_command_says_in_one_line_what_cannot_be_read(text, message, folder):
    done = netsor("plan", "mine.py:net", "--arg", f"config={text}", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
