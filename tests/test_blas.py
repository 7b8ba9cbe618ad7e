"""BLAS has one thread wherever netsor computes: the last digits of a result depend on
nothing but the seed.
"""

import os
import subprocess
import sys
import threading

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

import netsor as ns
from tests.internals import CHUNK, ONE_THREAD, Workers, _array_api, one_blas_thread

n = ns.Width("n")

WORK = """
import netsor as ns
from threadpoolctl import ThreadpoolController

seen = []


def watched(u):
    import scipy.linalg  # has a BLAS of its own, loaded here at the latest

    seen.append([library.get_num_threads() for library in ThreadpoolController().lib_controllers])
    return u


def work():
    n = ns.Width("n")
    net = ns.Program(ns.weight(n, n) @ ns.nonlin(watched, ns.weight(n, n) @ ns.gaussian(n)))
    net.plan(n=ns.inf)
    planned = len(seen)
    net.law(n=64, draws=4, workers=1, progress=False)
    assert 0 < planned < len(seen)
    return seen
"""

DENSITY = """
import netsor as ns
import numpy as np
law, y = ns.Attention(np.eye(4)).law(heads=2, points=2**14), np.linspace(-2.83, 2.83, 41)
print(law.pdf(y).tobytes().hex(), np.array([law.pdf(float(point)) for point in y]).tobytes().hex())
"""


BLAS = [
    library
    for library in ThreadpoolController().lib_controllers
    if library.user_api == "blas"
]


def threads():
    return {library.get_num_threads() for library in BLAS}


def test_limit_is_counted_over_threads():
    """A block of code that ends in one thread does not end the limit of another, and
    the last one restores it.
    """
    inside, go = threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            go.wait(60)

    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            thread = threading.Thread(target=other)
            thread.start()
            assert inside.wait(60)
        assert threads() == {1}
        go.set()
        thread.join()
        assert threads() == {2}


class Library:
    """A BLAS with a number of threads for the process, or for each thread."""

    user_api = "blas"

    def __init__(self, local=False):
        self.threading_layer = "openmp" if local else "pthreads"
        self.local, self.threads = local, {}

    def get_num_threads(self):
        return self.threads.get(threading.get_ident() if self.local else 0, 4)

    def set_num_threads(self, threads):
        self.threads[threading.get_ident() if self.local else 0] = threads


@pytest.fixture
def loaded(monkeypatch):
    """The libraries that are found in memory; afterwards the real ones are looked up
    again.
    """
    libraries = []
    monkeypatch.setattr(
        _array_api,
        "ThreadpoolController",
        lambda: type("Found", (), {"lib_controllers": [*libraries]}),
    )
    _array_api._blas_libraries.cache_clear()
    yield libraries
    _array_api._blas_libraries.cache_clear()


def test_library_that_is_loaded_later_is_limited_too(loaded, monkeypatch):
    loaded.append(Library())
    with one_blas_thread():
        loaded.append(Library())
        monkeypatch.setitem(sys.modules, "a_module_with_a_library", None)
        with one_blas_thread():
            assert [library.get_num_threads() for library in loaded] == [1, 1]
        assert [library.get_num_threads() for library in loaded] == [1, 1]
    assert [library.get_num_threads() for library in loaded] == [4, 4]


def test_library_that_counts_for_each_thread_is_limited_in_each(loaded):
    loaded.append(Library(local=True))
    found = []

    def other():
        with one_blas_thread():
            found.append(loaded[0].get_num_threads())
        found.append(loaded[0].get_num_threads())

    with one_blas_thread():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert loaded[0].get_num_threads() == 1
    assert found == [1, 4]
    assert loaded[0].get_num_threads() == 4


def test_libraries_are_looked_up_once_a_run(monkeypatch):
    net = ns.paper.layer()
    net.law(n=16, draws=8, workers=1, progress=False)  # imports what it needs
    found, real = [], _array_api.ThreadpoolController
    monkeypatch.setattr(
        _array_api, "ThreadpoolController", lambda: found.append(1) or real()
    )
    _array_api._blas_libraries.cache_clear()
    law = net.law(n=16, draws=5 * CHUNK, workers=1, progress=False)
    assert len(law.component_var) == 5 * CHUNK
    assert len(found) == 1


def test_planning_and_laws_have_one_thread():
    seen = []

    def watched(u):
        seen.append(threads())
        return u

    with threadpool_limits(2, user_api="blas"):
        net = ns.Program(
            ns.weight(n, n) @ ns.nonlin(watched, ns.weight(n, n) @ ns.gaussian(n))
        )
        seen.clear()
        net.plan(n=ns.inf)
        planned = len(seen)
        assert planned > 0
        ns.paper.layer().law(n=16, draws=200, progress=False).expect(watched)
        assert len(seen) > planned
        assert threads() == {2}
    assert set.union(*seen) == {1}


def test_worker_has_one_thread_while_it_plans_and_computes(monkeypatch, tmp_path):
    """Of every BLAS, those that it loads later too, whatever the environment says."""
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "2")
    (tmp_path / "watched_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    from watched_work import work

    with Workers(1) as workers:
        seen = workers.submit(work).result()
    assert len(seen) > 1
    assert {count for libraries in seen for count in libraries} == {1}
    assert all(os.environ[name] == "2" for name in ONE_THREAD)


@pytest.mark.skipif(
    not BLAS, reason="numpy has a BLAS that threadpoolctl does not know"
)
def test_distances_do_not_depend_on_threads():
    laws = [
        ns.paper.layer().law(n=width, draws=2000, progress=False) for width in (16, 64)
    ]
    found = set()
    for count in (1, 4):
        with threadpool_limits(count, user_api="blas"):
            found.add(ns.total_variation(*laws)[:2])
    assert len(found) == 1


@pytest.mark.slow
def test_densities_have_the_same_bits_in_other_processes():
    """With any number of threads, and at a point whether it is asked for alone or among
    others.

    Kernels of BLAS differ in whether one row of a product is added up as many are: the
    oldest ones do.
    """
    kinds = {
        "OPENBLAS_CORETYPE": "ARMV8" if os.uname().machine == "aarch64" else "Haswell"
    }
    found = set()
    for count in ("1", "2"):
        environment = {**os.environ, **kinds, **dict.fromkeys(ONE_THREAD, count)}
        made = subprocess.run(
            [sys.executable, "-c", DENSITY],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        found |= set(made.stdout.split())
    assert len(found) == 1
