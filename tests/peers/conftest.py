"""Other people's libraries warn about themselves; that is no error here."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))
