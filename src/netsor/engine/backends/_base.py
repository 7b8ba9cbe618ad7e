"""The base class of backends: an array library, its generators, a device and a
precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..._array_api import Array
from ..._validate import ArgumentError
from ...runtime._memory import memory
from ...runtime._units import in_bytes
from ..plan._cost_model import Prices, prices_on
from ..plan._ir import Register
from ..plan._plan import Plan
from ..plan._recompute import recomputing
from ..run._moment_histogram import BlockMoments, MomentGrid, summed

PRECISIONS = ("float64", "float32")
# one of these, chosen for each plan (see `_precision`) before anything is sampled
AUTO = "auto"
# of a block's arrays: fits in a cache, or keeps a GPU busy
DEVICE_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**33}
MAX_BLOCK_REPLICAS = 2**22  # most replicas in a block
# the same, if the host may have to integrate for each replica
MAX_INTEGRATED_REPLICAS = 2**16
MIN_BLOCK_REPLICAS = 8  # fewest replicas in a block
FIRST = 16  # fewest replicas in the first block
# compute capabilities of NVIDIA's data-centre GPUs
FAST_DOUBLE = ("6.0", "7.0", "8.0", "9.0", "10.0")


class NoDeviceError(ArgumentError):
    """The backend is not installed, or the device does not exist or has too little
    memory.
    """


@dataclass(frozen=True)
class Backend(ABC):
    """An array library on a device, in a precision. You can pickle it; another process
    finds its own device.

    These are the methods that the sampler calls. For another array library derive a
    class from `StepwiseBackend`, which has a default for most of them.

    Attributes
    ----------
    name : str
        Its name in messages; by default that of the class in lower case.
    threads : bool
        Whether to sample in several threads; False if the library itself is parallel.
    compiles : bool
        Whether it compiles a plan first, so that a few replicas take long.
    slowness : float
        The seconds on a CPU for each second that a plan predicts.
    library_bytes : float
        The memory of the library itself.
    working : float
        The peak memory, with temporary arrays, relative to the bytes of a block's
        arrays.
    recomputes : bool
        Whether it can drop results and compute them again where memory is short. False
        if it merges equal steps.
    """

    device: str = "cpu"
    precision: str = "float64"
    # whether single precision is known to be accurate enough
    settled: bool = field(default=False, compare=False)
    rounded: bool = False  # whether random numbers are single precision

    name: ClassVar[str]
    threads: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    slowness: ClassVar[float] = 1.0
    library_bytes: ClassVar[float] = 0.0
    working: ClassVar[float] = 8.0
    recomputes: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        """Check that the device exists."""
        # subclasses override it: without this method, the shared `__init__` would not
        # call theirs
        return

    @property
    def itemsize(self) -> int:
        """The bytes per number."""
        return np.dtype(self.precision).itemsize

    @property
    def kind(self) -> str:
        """The kind of its device: cpu or cuda."""
        return self.device.partition(":")[0]

    @property
    def fast_double(self) -> bool:
        """Whether double precision is about as fast as single, as on data-centre
        GPUs.
        """
        return False

    @property
    def prices(self) -> Prices:
        """The cost of work on its device, for which plans are made."""
        return prices_on(self.kind)

    def memory(self) -> float:
        """The memory of the device, in bytes."""
        return memory()

    @abstractmethod
    def chunk(self, plan: Plan, draws: int) -> int:
        """The size of a chunk, the unit of work: a number of replicas that fits in
        memory.
        """

    @abstractmethod
    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield conditional means and coefficients (see `_plan.run`), block by block.

        `part` are the first replicas, or all, of a chunk of `size` replicas. `tick` is
        called with the number of replicas after each block.
        """

    @abstractmethod
    def cov(self, columns: Array) -> Array:
        """The covariances (replicas or 1, entries, entries) from coefficients.

        `columns` (replicas or 1, entries, ·) and the result are arrays of the library.
        """

    @abstractmethod
    def numpy(self, array: Array) -> Array:
        """Convert an array of the library to numpy in double precision."""

    def sums(self, cells: MomentGrid, mean: Array, cov: Array) -> BlockMoments:
        """The summary of a block of replicas of one output, by cells of a grid.

        It is computed on the host, unless a backend overrides it.
        """
        means = self.numpy(mean)[:, 0]
        variances = self.numpy(cov)[:, 0, 0]
        means, variances = np.broadcast_arrays(means, variances)
        return summed(cells, means, variances)

    def first_block(self, plan: Plan) -> int:
        """The replicas of the first block.

        On an accelerator, where launching steps dominates, more take hardly longer.
        """
        return FIRST

    def seconds(self, plan: Plan, draws: int) -> float:
        """The estimated seconds for this many draws on a CPU: on one core, or on all if
        the library uses them.
        """
        return self.slowness * plan.seconds(draws)

    def working_bytes(self, replica: float) -> float:
        """The estimated host memory for a block, with `replica` bytes per replica."""
        # An accelerator keeps the arrays in its own memory, which `fits` checks.
        if self.kind != "cpu":
            return self.library_bytes
        block = max(MIN_BLOCK_REPLICAS * replica, DEVICE_BLOCK_BYTES[self.kind])
        return self.library_bytes + self.working * block

    def replica_bytes(self, plan: Plan) -> float:
        """The estimated memory of the device for one replica."""
        # `plan.bytes` is the memory of a replica if a number takes 8 bytes
        itemsize = 8 if self.precision == AUTO else self.itemsize
        return self.working * plan.bytes * itemsize / 8

    def shared_bytes(self, plan: Plan) -> float:
        """The estimated memory of the device that all replicas share."""
        return 0.0

    def within_memory(self, plan: Plan) -> Plan:
        """The plan, or if not even one replica fits on the device, the same plan with
        results that are computed again in the backward pass.
        """
        least_bytes = self.replica_bytes(plan) + self.shared_bytes(plan)
        if not self.recomputes or least_bytes <= self.memory():
            return plan
        return recomputing(plan)

    def replicas_that_fit(self, plan: Plan, replicas: int) -> int:
        """The number of replicas, halved until they fit on the device.

        Raises an error if not even one fits.
        """
        replica = self.replica_bytes(plan)
        room = self.memory() - self.shared_bytes(plan)
        if replica > room:
            sizes = (
                f"one with {in_bytes(replica)} for a replica, and has {in_bytes(room)}"
            )
            remedy = "take fewer tokens or heads, a smaller width, or the backend numpy"
            raise NoDeviceError("device", self.device, f"{sizes}: {remedy}")
        while replicas * replica > room:
            replicas //= 2
        return replicas

    def largest_block(self, plan: Plan, least: int = MIN_BLOCK_REPLICAS) -> int:
        """The number of replicas, a power of 2, whose arrays take DEVICE_BLOCK_BYTES.

        It is at least `least`. It depends on the plan, the precision and the kind of
        device, and not on the memory that is free.
        """
        # `plan.bytes` is the memory of a replica if a number takes 8 bytes
        block_bytes = DEVICE_BLOCK_BYTES[self.kind]
        replicas = block_bytes * 8 // (self.itemsize * max(plan.bytes, 1))
        has_expectations = any(
            step.instruction.integral is not None for step in plan.steps
        )
        most = MAX_INTEGRATED_REPLICAS if has_expectations else MAX_BLOCK_REPLICAS
        power_of_two = 1 << max(replicas.bit_length() - 1, 0)  # at most `replicas`
        return max(least, min(most, power_of_two))

    def __str__(self) -> str:
        drawn = " from random numbers in float32" if self.rounded else ""
        return f"{self.name} on {self.device} in {self.precision}{drawn}"


class Device(Backend):
    """A backend whose arrays are not numpy's, and may be on another device."""

    @abstractmethod
    def summary_of_draws(
        self, plan: Plan, summary: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """A function that computes a summary of the outputs from given random numbers.

        Its argument is a dict of numpy arrays (replicas, *shape) by the registers of
        the plan that are drawn. It runs the plan on the device, and returns
        `summary(library, mean, columns)` of the outputs (see `_plan.run`) in numpy.
        """
