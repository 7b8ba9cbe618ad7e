"""Runs of work by chunks: the same bits whoever does it, heard as it goes, and left at
once.
"""

import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import netsor as ns
from tests.internals import Provenance, Tick, _memory, _sampler, check_memory, chunks
from tests.internals import run_parallel as run

HANG = 300  # seconds: a deadline that only a hang reaches


def doubled(part, tick):
    for _ in part:
        tick(1)
    return [2 * i for i in part]


def collected(**how):
    return sorted(
        (part.start, found)
        for part, found in run(doubled, chunks(1000, 30), progress=False, **how)
    )


def test_any_executor_gives_the_same():
    right = [(part.start, [2 * i for i in part]) for part in chunks(1000, 30)]
    assert collected() == collected(workers=1) == collected(workers=10_000) == right
    with ThreadPoolExecutor(2) as threads:
        assert collected(executor=threads) == right
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert collected(executor=processes) == right
        with pytest.raises(
            ValueError,
            match=r"executor: .* cannot be pickled .* Write its functions with def",
        ):
            list(
                run(
                    lambda part, tick: [],
                    chunks(10, 5),
                    executor=processes,
                    progress=False,
                )
            )


def test_ticks_count_for_themselves_in_another_process():
    tick = Tick()
    tick.cancelled.set()
    pickle.loads(pickle.dumps(tick))(3)
    assert tick.draws == 0


def test_progress_counts_every_draw_once_and_never_falls():
    heard = []
    for _ in run(
        doubled,
        chunks(1000, 300),
        workers=2,
        progress=lambda done, total: heard.append((done, total)),
    ):
        pass
    assert heard[-1] == (1000, 1000)
    assert heard == sorted(set(heard))


def test_progress_is_heard_within_a_chunk():
    """One chunk that ends only when its first half was heard."""
    heard = threading.Event()

    def work(part, tick):
        tick(50)
        assert heard.wait(HANG)
        tick(50)

    seen = []

    def progress(done, total):
        seen.append(done)
        heard.set()

    assert len(list(run(work, [range(100)], progress=progress))) == 1
    assert seen[0] == 50
    assert seen[-1] == 100


def test_run_that_is_left_stops_its_workers_at_the_next_block():
    begun, stopped = threading.Event(), threading.Event()

    def work(part, tick):
        if part.start == 0:
            return
        begun.set()
        try:
            while True:
                tick(0)
        finally:
            stopped.set()

    results = run(work, chunks(2, 1), workers=2, progress=False)
    next(results)
    assert begun.wait(HANG)
    results.close()
    assert stopped.wait(HANG)


def test_error_in_a_worker_is_the_callers():
    def work(part, tick):
        raise KeyError(part.start)

    with pytest.raises(KeyError):
        list(run(work, chunks(5, 1), progress=False))


INTERRUPTED = """
import sys, time
import netsor as ns
from netsor.runtime._parallel import run
from netsor.engine.run._rng_keys import chunks

def work(part, tick):
    print("begun", flush=True)
    time.sleep({long})  # a block that cannot be stopped

for _ in run(work, chunks(9, 1), workers=2):
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_interrupt_is_not_held_up_by_busy_threads():
    """The process ends long before the block that its threads are in."""
    script = INTERRUPTED.format(long=2 * HANG)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=HANG)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in error
    assert process.returncode == -signal.SIGINT


def test_law_beyond_memory_is_rejected_before_sampling(monkeypatch):
    monkeypatch.setattr(_memory, "memory", lambda: 2.0**30)
    check_memory(2.0**30, "x", "y")
    with pytest.raises(
        ValueError, match=r"x would need 2 GiB of memory \(available: 1 GiB\); y"
    ):
        check_memory(2.0**31, "x", "y")
    net = ns.paper.layer()
    with pytest.raises(
        ValueError, match=r"one draw of all matrices at n=20000 would need .* GiB"
    ):
        net.simulate(n=20000, draws=1, progress=False)
    with pytest.raises(ValueError, match="draws=1000000000 of 16 numbers would need"):
        net.simulate(n=16, draws=10**9, progress=False)
    with pytest.raises(ValueError, match=r"draws=10{12} must be at most 2\^34"):
        net.law(n=16, draws=10**12, progress=False)


def test_memory_is_the_limit_of_the_process():
    assert 2**26 < _memory.memory() < 2**60


@pytest.mark.parametrize(
    "wrong", [{"progress": 3}, {"progress": "yes"}, {"executor": 2}, {"workers": 0}]
)
def test_wrong_workers_executor_or_progress_are_named(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        ns.paper.layer().simulate(n=4, draws=2, **wrong)


def test_memory_error_of_a_joint_law_states_its_size(monkeypatch):
    """It was a third of it: the law was copied twice, and chunks that wait were not
    counted.
    """
    n = ns.Width("n")
    net = ns.Program(ns.weight(n, n) @ ns.gaussian(n, 24))
    said = []
    monkeypatch.setattr(
        _sampler, "check_memory", lambda size, *words: said.append(size)
    )
    net.law(n=4, draws=20, progress=False)
    tracemalloc.start()
    try:
        law = net.law(n=4, draws=20_000, workers=1, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert law.component_cov.nbytes < peak < said[-1] < 3 * peak


def test_running_out_of_memory_is_no_wrong_argument():
    class Huge:
        def __array__(self, *args, **kwargs):
            raise MemoryError("Unable to allocate 1 PiB")

    with pytest.raises(MemoryError, match="1 PiB"):
        ns.Joint(np.zeros((1, 1)), Huge(), Provenance("exact", "given"))


def test_joint_law_copies_only_writeable_covariances():
    mean, cov = np.zeros((2, 1)), np.ones((2, 1, 1))
    assert ns.Joint(mean, cov, Provenance("exact", "given")).component_cov is not cov
    cov.flags.writeable = False
    assert ns.Joint(mean, cov, Provenance("exact", "given")).component_cov is cov
    # another one may be written
    assert ns.Joint(mean, cov[:], Provenance("exact", "given")).component_cov is not cov
