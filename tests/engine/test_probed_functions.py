"""Which functions a library computes itself: those that agree with numpy on trial."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.internals import LinalgBackend, StepwiseBackend


class Library(StepwiseBackend):
    """numpy in another name, whose functions return what a test says."""

    library = LinalgBackend(np)
    answer = None

    def array(self, numbers, precision):
        return np.asarray(numbers, dtype=precision)

    def numpy(self, array):
        return np.asarray(array, dtype=np.float64)

    def normals(self, stream, shape, precision):
        raise NotImplementedError

    def native(self, step, inputs):
        return self.answer(*inputs)


def sums(*arrays):
    return sum(arrays)


def rejected(*arrays):
    raise ValueError


@pytest.mark.parametrize(
    ("in_numpy", "in_library", "is_native"),
    [
        (sums, sums, True),
        (sums, rejected, False),
        (sums, lambda x, y: x - y, False),
        (sums, lambda x, y: (x + y)[:, :1], False),  # of another shape
        (rejected, sums, True),  # the only choice
        (rejected, lambda x, y: np.nan * x, False),  # numpy's error is better
    ],
)
def test_function_runs_in_a_library_that_computes_what_numpy_does(
    in_numpy, in_library, is_native
):
    backend = Library()
    object.__setattr__(backend, "answer", in_library)
    x = SimpleNamespace(shape=(3,))
    params = {"f": in_numpy, "shape": (3,)}
    step = SimpleNamespace(kind="apply", args=(x, x), params=params)
    assert backend._probe(step) is is_native


def test_trial_of_a_step_with_equal_arguments_holds_for_others():
    """x − x and y − y are both 0, and x − y and y − x differ."""
    backend = Library()
    object.__setattr__(backend, "answer", lambda x, y: y - x)
    x = SimpleNamespace(shape=(3,))
    params = {"f": lambda x, y: x - y, "shape": (3,)}
    step = SimpleNamespace(kind="apply", args=(x, x), params=params)
    assert not backend._probe(step)
