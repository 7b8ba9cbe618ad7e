"""PyTorch, step by step, on a CPU or a CUDA device: an alternative to JAX.

The generator of a draw for one block is keyed by (seed, draw, the block's first
replica). Block boundaries depend on the plan, and on the device if its memory is short.
Laws of two widths with one seed are coupled if blocks coincide.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from array_api_compat import torch as xp

from ..._array_api import Array
from ...language.theorem._check_function import is_builtin, needs_spectrum
from ..linalg._batched_linalg import Library
from ..linalg._gram_schmidt import NUMPY
from ..plan import _ops
from ..plan._instructions import FUNCTIONS
from ..plan._ir import Register, Step
from ..plan._plan import Plan, compute, run
from ..run._rng_keys import key_words
from ._base import FAST_DOUBLE, FIRST, MIN_BLOCK_REPLICAS, Device, NoDeviceError
from ._chi import Chi, chi

# create arrays without an array argument
CREATES = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros")
MOST_KEPT = 512  # index arrays cached on a device
MOST_FIRST = 1024  # most replicas in the first block
# seconds per step in the first block of an accelerator: twice the launch time of a step
BEGIN = 2e-4
# speed relative to the single core of a plan's estimated seconds (800 to 3,000 on one
# H200)
FASTER = 2000.0
PROBE_REPLICAS = 4  # replicas of random numbers to try functions on
MAX_PROBED_FUNCTIONS = 4096  # functions whose result is cached
# for steps that do not fill a GPU: eigenvalues, and their results
SIDE = ThreadPoolExecutor(1)
# PyTorch loads its linear algebra at the first call, which fails in two threads at once
LOADING = threading.Lock()
# user functions, and whether PyTorch computes the same as numpy
_tried: dict[int, tuple[Any, bool]] = {}


class OnDevice:
    """PyTorch's functions with array-API names; new arrays are on one device."""

    # `with torch.device(…)` does the same, but runs Python code around every call of
    # PyTorch.

    def __init__(self, device: str) -> None:
        self._xp, self._device = xp, device
        self._kept: dict[int, tuple[Any, Array]] = {}

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._xp, name)
        if name in CREATES:
            made = partial(made, device=self._device)
        setattr(self, name, made)  # found directly next time
        return made

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
            made = self._xp.asarray(numbers.copy(), device=self._device)
            # with the array itself, so that no other gets its id
            self._kept[id(numbers)] = numbers, made
        return self._kept[id(numbers)][1]


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
        made = a if fresh else a.clone()
        made.diagonal(dim1=-2, dim2=-1).add_(more)
        return made

    def triangular(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b."""
        return torch.linalg.solve_triangular(lower.mT, b, upper=True, left=False)

    def recompute_where(
        self, made: Array, again: Array, remake: Callable[..., Array], *arrays: Array
    ) -> Array:
        """Query the GPU once for their number; if all matrices are recomputed, copy
        nothing.
        """
        batch, count = again.shape, int(again.sum())
        if not count:
            return made
        if count == again.numel() and all(a.shape[:-2] == batch for a in arrays):
            return remake(*arrays)
        made[again] = remake(*(a.expand(*batch, *a.shape[-2:])[again] for a in arrays))
        return made


library = cache(TorchLibrary)  # by device


class Torch(Device):
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

    def memory(self) -> float:
        """The memory of the device."""
        if self.kind == "cpu":
            return super().memory()
        return float(torch.cuda.get_device_properties(self.device).total_memory)

    def chunk(self, plan: Plan, draws: int) -> int:
        """The largest block of the plan on this device."""
        return self.fits(
            plan,
            self.largest_block(plan, 1 if self.kind == "cpu" else MIN_BLOCK_REPLICAS),
        )

    @property
    def fast_double(self) -> bool:
        """From the compute capability of the device."""
        return (
            self.kind == "cuda"
            and "{}.{}".format(*torch.cuda.get_device_capability(self.device))
            in FAST_DOUBLE
        )

    def first_block(self, plan: Plan) -> int:
        """A power of 2 that depends only on the plan and the kind of device; later
        blocks double.
        """
        if self.kind == "cpu":
            return FIRST
        free = BEGIN * len(plan.steps) / max(plan.seconds(1) / FASTER, 1e-12)
        return int(
            min(MOST_FIRST, max(FIRST, 2 ** math.ceil(math.log2(max(free, 1.0)))))
        )

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block, cut to the part; the first chunk in blocks that double."""
        start = part.start
        while start < part.stop:
            replicas = min(size, max(self.first_block(plan), start))
            needed = min(replicas, part.stop - start)
            with torch.no_grad():
                work = _Block(self, seed, start, replicas, needed)
                mean, columns = map(
                    _now, run(plan, work.draw, work.constant, work.compute)
                )
            yield mean[:needed], columns[:needed]
            tick(needed)
            start += replicas

    def given(
        self, plan: Plan, what: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """Step by step; constants are copied to the device only once."""
        work = _Block(self, 0, 0, 0, 0)

        def found(drawn: Mapping[Register, Any]) -> Any:
            with torch.no_grad():
                made = run(
                    plan,
                    lambda step: work.array(drawn[step.out]),
                    work.constant,
                    work.compute,
                )
                return self.numpy(what(work.library, *map(_now, made)))

        return found

    def cov(self, columns: Array) -> Array:
        """The covariances, computed on the device."""
        return _ops.gram(library(self.device).xp, columns, columns)

    def numpy(self, array: Array) -> Array:
        """The array copied from the device."""
        return array.double().cpu().numpy()


def _now(array: Array | Future[Array]) -> Array:
    """Wait for an array, if it is a future."""
    return array.result() if isinstance(array, Future) else array


def _array(numbers: Array, precision: str, device: str) -> Array:
    return torch.tensor(
        np.array(numbers, order="C"), dtype=getattr(torch, precision), device=device
    )


@lru_cache(maxsize=1024)
def _chi(freedom: tuple[int, ...], precision: str, device: str) -> Chi:
    """The recipe for a row of χ on the device."""
    return Chi(*(_array(table, precision, device) for table in chi(freedom, precision)))


class _Block:
    """The work on the needed replicas of a block; random numbers are drawn for the
    whole block.
    """

    def __init__(
        self, backend: Torch, seed: int, start: int, replicas: int, needed: int
    ) -> None:
        self.backend, self.seed, self.start, self.replicas, self.needed = (
            backend,
            seed,
            start,
            replicas,
            needed,
        )
        self.library = library(backend.device)
        self.dtype = getattr(torch, backend.precision)
        self.known: dict[Register, Array] = {}

    def array(self, numbers: Array) -> Array:
        return _array(numbers, self.backend.precision, self.backend.device)

    def constant(self, register: Register) -> Array:
        if register not in self.known:
            self.known[register] = self.array(register.value)
        return self.known[register]

    def draw(self, step: Step) -> Array:
        """The random numbers of a step, (replicas, *shape)."""
        (key,) = key_words(
            self.seed, *step.params["key"], self.start, count=1, dtype=np.uint64
        )
        device, precision = (
            self.backend.device,
            "float32" if self.backend.rounded else self.backend.precision,
        )
        generator = torch.Generator(device=device)
        generator.manual_seed(int(key))

        def normals(*shape: int) -> Array:
            shape, dtype = (self.replicas, *shape), getattr(torch, precision)
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)[
                : self.needed
            ]

        if step.kind == "normals":
            return normals(*step.out.shape).to(self.dtype)
        made = _chi(tuple(step.params["freedom"]), precision, device)
        return made.of(self.library.xp, normals(*step.out.shape[:-1], made.normals)).to(
            self.dtype
        )

    def compute(
        self, step: Step, inputs: Sequence[Array | Future[Array]], _: int | None
    ) -> Array | Future[Array]:
        """Execute a step on tensors; on a GPU, eigenvalues and their results run on a
        separate stream.
        """
        spectral = (
            step.kind == "apply"
            and self.backend.kind == "cuda"
            and needs_spectrum(step.params["f"])
        )
        if not spectral and not any(isinstance(array, Future) for array in inputs):
            return self._computed(step, inputs)
        stream, side = (
            torch.cuda.current_stream(self.backend.device),
            torch.cuda.Stream(self.backend.device),
        )
        side.wait_stream(stream)

        def made() -> Array:
            with torch.no_grad(), torch.cuda.stream(side):
                found = self._computed(step, list(map(_now, inputs)))
                side.synchronize()
            found.record_stream(stream)
            return found

        return SIDE.submit(made)

    def _computed(self, step: Step, inputs: Sequence[Array]) -> Array:
        """A user function in numpy, or a kernel by quadrature, on the host."""
        if step.kind not in FUNCTIONS:
            return compute(self.library, step.kind, inputs, step.params)
        made = (
            self._by_torch(step, inputs)
            if step.kind != "apply" or self._as_in_numpy(step)
            else None
        )
        if made is None:
            # a repeated array stays one array
            known = {id(a): self.backend.numpy(a) for a in inputs}
            arrays = [known[id(a)] for a in inputs]
            made = compute(NUMPY, step.kind, arrays, step.params)
        return made if isinstance(made, torch.Tensor) else self.array(made)

    def _by_torch(self, step: Step, inputs: Sequence[Array]) -> Array | None:
        """The function applied to tensors; None if that fails."""
        # a user function may create arrays
        with suppress(Exception), torch.device(self.backend.device):
            return compute(self.library, step.kind, inputs, step.params)
        return None

    def _as_in_numpy(self, step: Step) -> bool:
        """Whether a function gives numpy's result in PyTorch (`p.std(axis=-1)` does
        not). Tried once.
        """
        f = step.params["f"]
        if is_builtin(f):
            return True
        if id(f) not in _tried:
            if len(_tried) >= MAX_PROBED_FUNCTIONS:
                _tried.clear()
            rng = np.random.default_rng(0)
            some = {
                arg: rng.standard_normal((PROBE_REPLICAS, *arg.shape))
                for arg in step.args
            }
            theirs = self._by_torch(
                step,
                [torch.tensor(some[a], device=self.backend.device) for a in step.args],
            )
            same = theirs is not None
            # if numpy fails, torch is the only choice
            with suppress(Exception), np.errstate(all="ignore"):
                expected = compute(
                    NUMPY, "apply", [some[arg] for arg in step.args], step.params
                )
                found: Any = (
                    self.backend.numpy(theirs)
                    if isinstance(theirs, torch.Tensor)
                    else theirs
                )
                same = same and bool(
                    np.allclose(found, expected, rtol=1e-6, atol=1e-9, equal_nan=True)
                )
            _tried[id(f)] = f, same  # keep the function, so that no other gets its id
        return _tried[id(f)][1]
