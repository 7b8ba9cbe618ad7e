"""What tests of the engine share."""

import pytest

from tests.internals import _quadrature_error


@pytest.fixture
def unshifted(monkeypatch):
    """Laws at infinite width without the effect of errors of expectations, for which
    each is planned twice more.
    """
    monkeypatch.setattr(_quadrature_error, "moves", lambda *_, **__: None)
