"""Misuses of studies, models, training and optimisers: the contract of `test_fuzz_api`
for their arguments.
"""

import pytest

from tests.internals import _memory, _process_pool

from .inline import Inline
from .keep import keep
from .misuses_of_studies import STUDIES
from .test_fuzz_api import WRONG, check

# what an error may name instead of the argument: the one that it disagrees with, or
# what it is called there
NAMES = {
    "ids": "ids|targets|tokens",
    "depths": "depths|widths",
    "model": "model|source|model_type|call",
    "source": "model|source|model_type|call",
    "compare": "compare|source|model_type|call",
    "finite": "draws",
    "limit": "draws",
    "texts": "texts|field",
    "steps": "steps|schedule",
    "x": "stream|x",
    "weights": "weights|value",
}
CALLABLE = [len]  # a function of the user, whose own errors are no misuse
DEAR = (
    "coord_check",
    "transfer",
    "coord_check of tokens",
    "posterior",
    "rate",
    "width_needed",
)  # what they accept takes seconds
STEP = 7  # of a quick run, from another value on for each argument


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is refused does not depend on the machine, and no process starts."""
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**31)
    monkeypatch.setattr(_process_pool, "Workers", Inline)


EVERY = [
    pytest.param(name, marks=pytest.mark.slow) if name in DEAR else name
    for name in STUDIES
]


@pytest.mark.parametrize("step", keep([STEP, 1], STEP))
@pytest.mark.parametrize("name", EVERY)
def test_misuse_of_an_argument_is_named(name, step):
    function, right = STUDIES[name]
    for place, key in enumerate(right):
        for value in WRONG[place % step :: step]:
            if any(value is each for each in CALLABLE):
                continue
            named = "recipe" if name.startswith("recipe") else NAMES.get(key, key)
            given = right if name in ("coord_check", "transfer") else {}
            check(name, function, {**given, key: value}, named)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_right_arguments_raise_no_error(name):
    function, right = STUDIES[name]
    if name in ("audit", "baseline"):
        right = {
            key: value
            for key, value in right.items()
            if key not in ("compare", "sweep", "baseline")
        }
    if name != "baseline":
        function(**right)
