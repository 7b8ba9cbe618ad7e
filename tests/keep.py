"""Of the many cases of one rule, `make test` runs a few; `make test-all` runs them
all.
"""

import pytest


def keep(cases, *kept):
    """The cases for `parametrize`: all but those kept are marked slow."""
    cases = list(cases)
    assert all(case in cases for case in kept), "what is kept must be one of the cases"
    return [
        case if case in kept else pytest.param(*_values(case), marks=pytest.mark.slow)
        for case in cases
    ]


def _values(case):
    return case if isinstance(case, tuple) else (case,)
