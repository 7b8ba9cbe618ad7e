"""Several devices of one machine: each does tasks, and together they give the numbers
of one.
"""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    Backend,
    DeviceThreads,
    LinalgBackend,
    StepwiseBackend,
    choose_several,
    on_device,
    several,
)

from ..command import netsor

DEVICES = ("cuda:0", "cuda:1")
HANG = 300  # seconds: a deadline that only a hang reaches


class Pretended(StepwiseBackend):
    """numpy, under the names of devices; it remembers who drew what."""

    library = LinalgBackend(np)
    used = []  # noqa: RUF012 (shared on purpose)

    def __post_init__(self):
        """Every device exists."""

    def memory(self):
        """That of a device."""
        return 2.0**30

    def array(self, numbers, precision):
        """A numpy array."""
        return np.asarray(numbers, dtype=precision)

    def numpy(self, array):
        """A numpy array."""
        return np.asarray(array, dtype=np.float64)

    def normals(self, stream, shape, precision):
        """By a counter-based generator."""
        self.used.append(self.device)
        generator = np.random.Generator(np.random.Philox(key=stream.words(2)))
        numbers = generator.standard_normal((stream.replicas, *shape))
        return numbers.astype(precision)

    def largest_block(self, plan, least=8):
        """Small ones, so that there are several."""
        return 64


@dataclass(frozen=True)
class Task:
    """A task of a study, which draws on a backend."""

    backend: Backend
    barrier: threading.Barrier

    def run(self):
        """Where it was done, once all devices are at work."""
        self.barrier.wait(timeout=HANG)
        return self.backend.device


def test_every_device_does_tasks_of_studies():
    """Two tasks at once, so that both devices are at work; and a method as a task."""
    task = Task(Pretended(), threading.Barrier(2))
    with DeviceThreads(DEVICES) as pool:
        both: list[Future[str]] = [pool.submit(Task.run, task) for _ in DEVICES]
        assert sorted(future.result() for future in both) == [*DEVICES]
        both = [pool.submit(lambda work: work(), task.run) for _ in DEVICES]
        assert sorted(future.result() for future in both) == [*DEVICES]
    assert on_device("text", "cuda:1") == "text"


def test_devices_give_the_numbers_of_one():
    """A law, and draws."""
    net = ns.paper.layer()
    backend = Pretended("cuda:0")
    Pretended.used.clear()
    with DeviceThreads(DEVICES) as pool:
        there = net.law(n=16, draws=1000, seed=3, backend=backend, executor=pool)
        drawn = net.draw(n=16, draws=1000, seed=3, backend=backend, executor=pool)
    assert set(Pretended.used) == set(DEVICES)
    here = net.law(n=16, draws=1000, seed=3, backend=backend)
    assert there.component_var.tobytes() == here.component_var.tobytes()
    expected = net.draw(n=16, draws=1000, seed=3, backend=backend)
    assert drawn.tobytes() == expected.tobytes()


def test_names_of_devices():
    """Each once, with its number."""
    assert several("cuda:0,cuda:1") == several("cuda:0, cuda:1") == DEVICES
    assert several("cuda:0") == several(None) == ()
    for names in ("cuda:0,cuda:0", "cuda,cpu", "cuda:0,"):
        with pytest.raises(ValueError, match="must be one device, or CUDA"):
            several(names)
    with pytest.raises(ValueError, match="one device with an executor"):
        choose_several("torch", "cuda:0,cuda:1", executor=DeviceThreads(DEVICES))


def test_devices_that_do_not_exist_are_refused():
    """One line that names the option."""
    result = netsor("law", "--device", "cuda:0,cuda:1")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "'cpu' for numpy" in result.stderr
