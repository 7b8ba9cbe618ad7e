"""PyTorch, step by step, on a CPU or a CUDA device: an alternative to JAX.

The generator of a draw for one block is keyed by (seed, draw, the block's first
replica). Block boundaries depend on the plan, and on the device if its memory is short.
Laws of two widths with one seed are coupled if blocks coincide.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from array_api_compat import torch as xp

from ..._array_api import Array, Floats
from ..._validate import Shape
from ...language.theorem._check_function import needs_spectrum
from ..linalg._batched_linalg import Library
from ..plan._device_memory import device_memory
from ..plan._ir import Register, Step
from ..plan._plan import Plan
from ._base import FAST_DOUBLE, FIRST, NoDeviceError
from ._stepwise import StepwiseBackend, Stream

# create arrays without an array argument
CREATES = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros")
MOST_KEPT = 512  # index arrays cached on a device
MOST_FIRST = 1024  # most replicas in the first block
# seconds per step in the first block of an accelerator: twice the launch time of a step
STEP_SECONDS = 2e-4
# speed relative to the single core of a plan's estimated seconds (800 to 3,000 on one
# H200)
SPEEDUP = 2000.0
# for steps that do not fill a GPU: eigenvalues, and their results
SIDE_THREAD = ThreadPoolExecutor(1)
# PyTorch loads its linear algebra at the first call, which fails in two threads at once
LOADING = threading.Lock()


class OnDevice:
    """PyTorch's functions with array-API names; new arrays are on one device."""

    # `with torch.device(…)` does the same, but runs Python code around every call of
    # PyTorch.

    def __init__(self, device: str) -> None:
        self._xp = xp
        self._device = device
        self._kept: dict[int, tuple[Any, Array]] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._xp, name)
        if name in CREATES:
            function = partial(function, device=self._device)
        setattr(self, name, function)  # found directly next time
        return function

    def asarray(self, numbers: Any, **options: Any) -> Array:
        """An array on the device. Index arrays, which plans have many of, are copied
        only once.
        """
        if not isinstance(numbers, np.ndarray) or numbers.dtype.kind != "i":
            return self._xp.asarray(numbers, device=self._device, **options)
        if id(numbers) not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            # PyTorch needs writable arrays
            tensor = self._xp.asarray(numbers.copy(), device=self._device)
            # with the array itself, so that no other gets its id
            self._kept[id(numbers)] = numbers, tensor
        _, tensor = self._kept[id(numbers)]
        return tensor


class TorchLibrary(Library):
    """PyTorch's factorisations and solves, with loops where they fail."""

    def __init__(self, device: str) -> None:
        super().__init__(OnDevice(device))
        with LOADING:
            torch.linalg.cholesky(torch.eye(1, device=device))

    def cholesky(self, a: Array) -> Array:
        """NaN on the diagonal where PyTorch reports a failure."""
        lower, failed = torch.linalg.cholesky_ex(a)
        return self.add_diagonal(
            lower, torch.where(failed == 0, 0.0, torch.nan)[..., None], fresh=True
        )

    def add_diagonal(self, a: Array, more: Array, fresh: bool = False) -> Array:
        """In place, or in a copy."""
        result = a if fresh else a.clone()
        result.diagonal(dim1=-2, dim2=-1).add_(more)
        return result

    def triangular(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b."""
        return torch.linalg.solve_triangular(lower.mT, b, upper=True, left=False)

    def recompute_where(
        self,
        result: Array,
        inexact: Array,
        recompute: Callable[..., Array],
        *arrays: Array,
    ) -> Array:
        """Recompute the inexact matrices in place; if these are all, copy nothing."""
        batch = inexact.shape
        count = int(inexact.sum())  # waits for the device, only here
        if count == 0:
            return result
        have_same_batch = all(a.shape[:-2] == batch for a in arrays)
        if count == inexact.numel() and have_same_batch:
            return recompute(*arrays)
        selected = []
        for a in arrays:
            whole_batch = a.expand(*batch, *a.shape[-2:])
            selected.append(whole_batch[inexact])
        result[inexact] = recompute(*selected)
        return result


library = cache(TorchLibrary)  # by device


class Torch(StepwiseBackend):
    """PyTorch on one device."""

    name: ClassVar[str] = "torch"
    slowness: ClassVar[float] = 3.5  # measured: 2.5 to 4.8
    library_bytes: ClassVar[float] = 2.0**28
    working: ClassVar[float] = 4.0  # measured: 2.2 for gradients of Llama 3 8B

    def __post_init__(self) -> None:
        """Check that PyTorch sees the device."""
        if self.kind == "cpu":
            return
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(self.device.partition(":")[2] or 0) >= count:
            allowed = (
                f"'cpu', or one of the {count} CUDA devices that PyTorch sees here"
            )
            raise NoDeviceError("device", self.device, allowed)

    @property
    def library(self) -> TorchLibrary:
        """PyTorch's functions on the device, shared by all blocks."""
        return library(self.device)

    def array(self, numbers: Array, precision: str) -> Array:
        """A tensor on the device."""
        return torch.tensor(
            np.array(numbers, order="C"),
            dtype=getattr(torch, precision),
            device=self.device,
        )

    def numpy(self, array: Array) -> Floats:
        """The array copied from the device."""
        numbers: Floats = array.double().cpu().numpy()
        return numbers

    def normals(self, stream: Stream, shape: Shape, precision: str) -> Array:
        """By PyTorch's generator of the device, seeded for each stream."""
        (seed,) = stream.words(1)
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return torch.randn(
            (stream.replicas, *shape),
            generator=generator,
            dtype=getattr(torch, precision),
            device=self.device,
        )

    def memory(self) -> float:
        """The memory of the device."""
        if self.kind == "cpu":
            return super().memory()
        return float(torch.cuda.get_device_properties(self.device).total_memory)

    def replica_bytes(self, plan: Plan) -> float:
        """The estimated memory of the device for one replica."""
        if self.kind == "cpu":
            return super().replica_bytes(plan)
        return device_memory(plan, self.itemsize).replica

    def shared_bytes(self, plan: Plan) -> float:
        """The estimated memory of the device for constants, indices and libraries."""
        if self.kind == "cpu":
            return super().shared_bytes(plan)
        return device_memory(plan, self.itemsize).shared

    @property
    def fast_double(self) -> bool:
        """From the compute capability of the device."""
        if self.kind != "cuda":
            return False
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"{major}.{minor}" in FAST_DOUBLE

    def first_block(self, plan: Plan) -> int:
        """A power of 2 that depends only on the plan and the kind of device; later
        blocks double.
        """
        if self.kind == "cpu":
            return FIRST
        launching = STEP_SECONDS * len(plan.steps)
        # so many replicas take as long as launching their steps
        hidden = launching / max(plan.seconds(1) / SPEEDUP, 1e-12)
        power_of_two = 2 ** math.ceil(math.log2(max(hidden, 1.0)))
        return int(min(MOST_FIRST, max(FIRST, power_of_two)))

    def evaluate(
        self,
        plan: Plan,
        draw: Callable[[Step], Array],
        constants: dict[Register, Array],
    ) -> tuple[Array, Array]:
        """Without gradients; wait for results from the separate stream."""
        with torch.no_grad():
            mean, columns = super().evaluate(plan, draw, constants)
            return _now(mean), _now(columns)

    def summary_of_draws(
        self, plan: Plan, summary: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """Without gradients."""
        of_draws = super().summary_of_draws(plan, summary)

        def without_gradients(numbers: Mapping[Register, Any]) -> Any:
            """The same function, without a graph of gradients."""
            with torch.no_grad():
                return of_draws(numbers)

        return without_gradients

    def native(self, step: Step, inputs: Sequence[Array]) -> Array:
        """The function applied to tensors; arrays that it creates are on the device."""
        with torch.device(self.device):
            return super().native(step, inputs)

    def compute(
        self,
        step: Step,
        inputs: Sequence[Array | Future[Array]],
        overwritten: int | None,
    ) -> Array | Future[Array]:
        """The result of a step on tensors, or a future of it.

        On a GPU, steps that need eigenvalues, and those that need their results, run on
        a separate stream and in a separate thread. The other steps go on meanwhile.
        """
        finds_eigenvalues = (
            step.kind == "apply"
            and self.kind == "cuda"
            and needs_spectrum(step.params["f"])
        )
        waits = any(isinstance(array, Future) for array in inputs)
        if not finds_eigenvalues and not waits:
            return super().compute(step, inputs, overwritten)
        stream = torch.cuda.current_stream(self.device)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(stream)

        def on_side_stream() -> Array:
            """The result, computed when its inputs are ready."""
            with torch.no_grad(), torch.cuda.stream(side):
                tensors = [_now(array) for array in inputs]
                result = super(Torch, self).compute(step, tensors, overwritten)
                side.synchronize()
            result.record_stream(stream)
            return result

        return SIDE_THREAD.submit(on_side_stream)


def _now(array: Array | Future[Array]) -> Array:
    """Wait for an array, if it is a future."""
    return array.result() if isinstance(array, Future) else array
