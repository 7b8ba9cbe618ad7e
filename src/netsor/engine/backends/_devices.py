"""Several devices of one machine: an executor with a thread for each, and the backend
of all.

Each task draws on the device of the thread that does it. Its random numbers depend on
its seed and chunk, and on the kind of device, but not on which of equal devices draws.
So a law of two devices has the bits of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from ..._validate import ArgumentError

T = TypeVar("T")
SEPARATOR = ","


class DeviceThreads(Executor):
    """Threads of this process, one for each device.

    An argument of a task that has a field `backend`, or a method of an object that has
    one, gets that backend on the device of the thread.

    Parameters
    ----------
    devices : sequence of str
        The devices, such as "cuda:0" and "cuda:1".

    Examples
    --------
    >>> from netsor.engine.backends._devices import DeviceThreads
    >>> @dataclass(frozen=True)
    ... class Task:
    ...     backend: ns.engine.backends.Backend
    ...     def run(self):
    ...         return self.backend.device
    >>> with DeviceThreads(["cuda:1"]) as devices:
    ...     devices.submit(Task.run, Task(ns.engine.backends.Numpy())).result()
    'cuda:1'
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        # how many tasks are done at once, as in `ThreadPoolExecutor`
        self._max_workers = len(self.devices)
        self._threads = ThreadPoolExecutor(self._max_workers)
        self._free: SimpleQueue[str] = SimpleQueue()
        for device in self.devices:
            self._free.put(device)

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Do a task on the next device that is free."""
        return self._threads.submit(self._on_free_device, work, args, kwargs)

    def _on_free_device(
        self, work: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> T:
        """The result of a task, computed on a free device."""
        device = self._free.get()
        try:
            moved = [on_device(argument, device) for argument in args]
            return work(*moved, **kwargs)
        finally:
            self._free.put(device)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after their tasks."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def on_device(work: Any, device: str) -> Any:
    """The same work with its backend on another device; other objects stay.

    `work` is an object with a field `backend`, or a method of one.
    """
    owner = getattr(work, "__self__", None)
    if owner is not None and hasattr(owner, "backend"):
        return getattr(on_device(owner, device), work.__name__)
    if is_dataclass(work) and not isinstance(work, type) and hasattr(work, "backend"):
        return replace(work, backend=replace(work.backend, device=device))
    return work


def several(device: object) -> tuple[str, ...]:
    """The devices of an argument with several names, such as "cuda:0,cuda:1"; none if
    it names one.
    """
    if not isinstance(device, str) or SEPARATOR not in device:
        return ()
    devices = tuple(name.strip() for name in device.split(SEPARATOR))
    if len(set(devices)) < len(devices) or any(":" not in name for name in devices):
        allowed = "one device, or CUDA devices with their numbers: cuda:0,cuda:1"
        raise ArgumentError("device", device, allowed)
    return devices
