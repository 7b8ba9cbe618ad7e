"""Other people's libraries warn about themselves; that is no error here."""

import os

import pytest

# Keras chooses when it is imported
os.environ.setdefault("KERAS_BACKEND", "jax")


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))
