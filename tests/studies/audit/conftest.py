"""What the tests of audits share."""

import pytest

from tests.internals import _cases, _process_pool

from ...inline import Inline


@pytest.fixture
def inline(monkeypatch):
    """In this process, and in parts of 16 draws."""
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    monkeypatch.setattr(_cases, "PART_DRAWS", 16)
