"""Where no thread and no process can start, as in a browser, the same numbers are
computed in the calling thread.
"""

import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import netsor as ns
from tests.internals import InlineExecutor, _executors, process_pool, thread_pool

SMALL = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 8,
}


@pytest.fixture
def alone(monkeypatch):
    """A machine without threads and processes."""

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    def unsupported(*_, **__):
        raise NotImplementedError("this Python has no semaphores")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(ProcessPoolExecutor, "__init__", unsupported)
    _executors.threads_start.cache_clear()
    yield
    _executors.threads_start.cache_clear()


def test_executors_are_chosen_by_what_can_start(alone):
    assert isinstance(thread_pool(2), InlineExecutor)
    assert isinstance(process_pool(2, int), InlineExecutor)


def test_executors_where_all_can_start():
    with thread_pool(2) as threads, process_pool(1, int) as processes:
        assert not isinstance(threads, InlineExecutor)
        assert isinstance(processes, ProcessPoolExecutor)
        assert list(threads.map(str, [1, 2])) == ["1", "2"]


def test_task_is_done_when_it_is_submitted():
    def interrupted():
        raise KeyboardInterrupt

    with InlineExecutor() as here:
        assert here.submit(pow, 2, 5).done()
        assert isinstance(here.submit(int, "a").exception(), ValueError)
        with pytest.raises(KeyboardInterrupt):
            here.submit(interrupted)


def test_laws_have_the_same_bits(alone, request):
    net = ns.paper.layer(tokens=3, heads=2)

    def numbers():
        law = net.law(n=32, draws=3_000, progress=False)
        return [law.var(), law.kurtosis(), *net.simulate(n=8, draws=50).ravel()]

    found = numbers()
    reported = []
    net.law(
        n=32, draws=3_000, progress=lambda done, total: reported.append((done, total))
    )
    assert reported[-1] == (3_000, 3_000)
    request.getfixturevalue("monkeypatch").undo()
    _executors.threads_start.cache_clear()
    assert _executors.threads_start()
    assert np.array_equal(found, numbers())


def test_studies_have_the_same_numbers(alone, request):
    """An audit, whose parts are done by processes elsewhere; here by threads, to start
    none in a test.
    """

    def numbers(executor=None):
        found = ns.audit(
            SMALL, tokens=4, draws=20, workers=2, executor=executor, progress=False
        )
        return np.concatenate(
            [found[name].median for name in ("mean_square", "entropy")]
        )

    found = numbers()
    request.getfixturevalue("monkeypatch").undo()
    with ThreadPoolExecutor(2) as threads:
        assert np.array_equal(found, numbers(threads))


def test_modules_missing_in_a_browser_are_not_imported():
    """By all names together."""
    code = """
import sys
import netsor as ns
every = [getattr(ns, name) for name in ns.__all__]
print([name for name in ("multiprocessing", "resource", "matplotlib", "tqdm") if name in sys.modules])
"""
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines()[-1] == "[]"
