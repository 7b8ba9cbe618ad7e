"""JAX: the plan compiled for a block of replicas, on a CPU or a GPU; see
`_jax_program`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..._array_api import Array
from ...runtime._parallel import cores
from ..plan import _ops
from ..plan._instructions import DRAWS
from ..plan._ir import Register
from ..plan._plan import Plan
from ..run._moment_histogram import BlockMoments, MomentGrid
from ._base import FAST_DOUBLE, MIN_BLOCK_REPLICAS, Device, NoDeviceError
from ._jax_program import LIBRARY, block, pieces, programs

COMPILE_SECONDS = 0.067  # of one core per distinct step; measured, 0.058 to 0.076

_gram = jax.jit(lambda a: _ops.gram(jnp, a, a))  # from coefficients to covariances
_cpu_lock = threading.Lock()


def _result(arrays: Mapping[Register, Array], register: Register) -> Array:
    """The array of an output, which may be a constant."""
    return arrays[register] if register.value is None else np.asarray(register.value)


@lru_cache(maxsize=8)
def summed(cells: MomentGrid) -> Any:
    """A compiled function of the means and covariances of a block.

    It returns the sums over the cells of a grid, (moments, cells), and which replicas
    are outside.
    """

    def add(mean: Array, cov: Array) -> tuple[Array, Array]:
        """The sums for means (replicas, 1) and covariances (replicas, 1, 1)."""
        means = mean[:, 0].astype(jnp.float64)
        variances = cov[:, 0, 0].astype(jnp.float64)
        means, variances = jnp.broadcast_arrays(means, variances)
        cell, weights, outside = cells.placed(jnp, means, variances)
        # integers below 2^53 have exact sums: the same bits in any order
        sums = [jnp.bincount(cell, weight, length=cells.size) for weight in weights]
        return jnp.stack(sums), outside

    return jax.jit(add)


class Jax(Device):
    """JAX on one device."""

    name: ClassVar[str] = "jax"
    compiles: ClassVar[bool] = True
    slowness: ClassVar[float] = 4.4  # measured: 3.6 to 5.3
    library_bytes: ClassVar[float] = 2.0**29
    recomputes: ClassVar[bool] = False  # XLA may merge equal steps

    def __post_init__(self) -> None:
        """Check that JAX sees the device."""
        try:
            self._device()
        except (RuntimeError, IndexError):
            platforms = dict.fromkeys(device.platform for device in jax.devices())
            requirement = f"one that JAX sees here: {', '.join(platforms)}"
            raise NoDeviceError("device", self.device, requirement) from None

    def _device(self) -> Any:
        """The device as an object of JAX."""
        kind, _, number = self.device.partition(":")
        return jax.devices(kind)[int(number or 0)]

    @property
    def fast_double(self) -> bool:
        """From the compute capability of the device."""
        return getattr(self._device(), "compute_capability", None) in FAST_DOUBLE

    @contextmanager
    def _within(self) -> Iterator[None]:
        """Set JAX's precision and device for this thread; matrix products in full
        precision, not in TF32.
        """
        with (
            jax.enable_x64(self.precision == "float64"),
            jax.default_device(self._device()),
            jax.default_matmul_precision("highest"),
        ):
            yield

    def seconds(self, plan: Plan, draws: int) -> float:
        """Includes compiling steps first, on all cores; equal blocks compile once."""
        repeated = sum(loop.period * (loop.times - 1) for loop in plan.loops)
        distinct = len(plan.steps) - repeated
        return distinct * COMPILE_SECONDS / cores() + super().seconds(plan, draws)

    def memory(self) -> float:
        """The memory of the device that JAX may use."""
        stats = self._device().memory_stats()
        if stats and "bytes_limit" in stats:
            return float(stats["bytes_limit"])
        return super().memory()

    def chunk(self, plan: Plan, draws: int) -> int:
        """The replicas of one block, no more than the draws need.

        The size of a block does not change the random numbers.
        """
        enough = max(MIN_BLOCK_REPLICAS, 2 ** (draws - 1).bit_length())
        return self.replicas_that_fit(plan, min(enough, self.largest_block(plan)))

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block of `size` replicas, cut to the part."""
        plan_pieces = pieces(plan, self.precision, self.rounded, self.device)
        compiled = programs(plan_pieces, size, self._within)

        def cut(array: Array) -> Array:
            """Only the replicas of this part; the block may have more."""
            if array.shape[0] in (1, len(part)):
                return array
            return array[: len(part)]

        # On a CPU, two concurrent blocks can deadlock in XLA's threads.
        with _cpu_lock if self.kind == "cpu" else nullcontext(), self._within():
            arrays = block(plan_pieces, compiled, seed, part.start, replicas=size)
            mean = cut(_result(arrays, plan.mean))
            columns = cut(_result(arrays, plan.columns))
            if self.kind == "cpu":
                jax.block_until_ready((mean, columns))
        yield mean, columns
        tick(len(part))

    def summary_of_draws(
        self, plan: Plan, summary: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """Compile for MIN_BLOCK_REPLICAS times 1, 4, 16, …, whichever is enough.

        Computing spare replicas takes less time than compiling for every number.
        """
        without_draws = replace(
            plan, steps=[step for step in plan.steps if step.kind not in DRAWS]
        )
        with self._within():
            plan_pieces = pieces(without_draws, self.precision, device=self.device)
            compiled_summary = jax.jit(partial(summary, LIBRARY))

        def of_draws(numbers: Mapping[Register, Any]) -> Any:
            """The summary for random numbers (replicas, …) by their register."""
            requested = len(next(iter(numbers.values())))
            replicas = MIN_BLOCK_REPLICAS
            while replicas < requested:
                replicas *= 4
            compiled = programs(plan_pieces, replicas, self._within)
            # spare replicas are copies of the first
            rows = np.zeros(replicas, dtype=np.intp)
            rows[:requested] = np.arange(requested)
            with self._within():
                draws = {
                    register: jnp.asarray(array[rows], dtype=self.precision)
                    for register, array in numbers.items()
                }
                arrays = block(
                    plan_pieces,
                    compiled,
                    seed=0,
                    start=0,
                    replicas=replicas,
                    arrays=draws,
                )
                mean = _result(arrays, plan.mean)
                columns = _result(arrays, plan.columns)
                return self.numpy(compiled_summary(mean, columns))[:requested]

        return of_draws

    def cov(self, columns: Array) -> Array:
        """The covariances, computed on the device."""
        with self._within():
            return _gram(columns)

    def numpy(self, array: Array) -> Array:
        """The array copied from the device."""
        return np.asarray(array).astype(np.float64)

    def sums(self, cells: MomentGrid, mean: Array, cov: Array) -> BlockMoments:
        """The sums over cells, computed on the device, always in double precision."""
        with jax.enable_x64(True):
            device_sums, outside = summed(cells)(mean, cov)
            sums = np.asarray(device_sums)
            has_strays = bool(outside.any())
        occupied = np.flatnonzero(sums[0])
        stray_mean = stray_var = np.zeros(0)
        if has_strays:  # otherwise nothing else needs copying from the device
            means = self.numpy(mean[:, 0])
            variances = self.numpy(cov[:, 0, 0])
            means, variances = np.broadcast_arrays(means, variances)
            is_outside = np.asarray(outside)
            stray_mean = means[is_outside]
            stray_var = variances[is_outside]
        return BlockMoments(
            cells=occupied, sums=sums[:, occupied], mean=stray_mean, var=stray_var
        )
