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


@lru_cache(maxsize=8)
def summed(cells: MomentGrid) -> Any:
    """A function of means and covariances that returns sums over cells (sums, cells)
    and the replicas outside.
    """

    def add(mean: Array, cov: Array) -> tuple[Array, Array]:
        m, v = jnp.broadcast_arrays(
            mean[:, 0].astype(jnp.float64), cov[:, 0, 0].astype(jnp.float64)
        )
        place, weights, outside = cells.placed(jnp, m, v)
        # integers below 2^53 have exact sums: the same bits in any order
        return jnp.stack(
            [jnp.bincount(place, w, length=cells.size) for w in weights]
        ), outside

    return jax.jit(add)


class Jax(Device):
    """JAX on one device."""

    name: ClassVar[str] = "jax"
    compiles: ClassVar[bool] = True
    slowness: ClassVar[float] = 4.4  # measured: 3.6 to 5.3
    library_bytes: ClassVar[float] = 2.0**29

    def __post_init__(self) -> None:
        """Check that JAX sees the device."""
        try:
            self._device()
        except (RuntimeError, IndexError):
            found = ", ".join(dict.fromkeys(d.platform for d in jax.devices()))
            raise NoDeviceError(
                "device", self.device, f"one that JAX sees here: {found}"
            ) from None

    def _device(self) -> Any:
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
        distinct = len(plan.steps) - sum(
            loop.period * (loop.times - 1) for loop in plan.loops
        )
        return distinct * COMPILE_SECONDS / cores() + super().seconds(plan, draws)

    def memory(self) -> float:
        """The memory of the device that JAX may use."""
        stats = self._device().memory_stats()
        return (
            float(stats["bytes_limit"])
            if stats and "bytes_limit" in stats
            else super().memory()
        )

    def chunk(self, plan: Plan, draws: int) -> int:
        """One block, no larger than the draws need; its size does not change the random
        numbers.
        """
        needed = max(MIN_BLOCK_REPLICAS, 2 ** (draws - 1).bit_length())
        return self.fits(plan, min(needed, self.largest_block(plan)))

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block of `size` replicas, cut to the part."""
        found = pieces(plan, self.precision, self.rounded, self.device)
        compiled = programs(found, size, self._within)
        # On a CPU, two concurrent blocks can deadlock in XLA's threads.
        with _cpu_lock if self.kind == "cpu" else nullcontext(), self._within():
            made = block(found, compiled, seed, part.start, size)
            results = [
                made[r] if r.value is None else np.asarray(r.value)
                for r in (plan.mean, plan.columns)
            ]
            mean, columns = (
                a if a.shape[0] in (1, len(part)) else a[: len(part)] for a in results
            )
            if self.kind == "cpu":
                jax.block_until_ready((mean, columns))
        yield mean, columns
        tick(len(part))

    def given(
        self, plan: Plan, what: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """Compile for 1, 4, 16, … times MIN_BLOCK_REPLICAS: compiling takes longer than
        computing spare replicas.
        """
        rest = replace(
            plan,
            steps=[step for step in plan.steps if step.kind not in DRAWS],
        )
        with self._within():
            found, last = (
                pieces(rest, self.precision, device=self.device),
                jax.jit(partial(what, LIBRARY)),
            )

        def made(drawn: Mapping[Register, Any]) -> Any:
            asked, replicas = len(next(iter(drawn.values()))), MIN_BLOCK_REPLICAS
            while replicas < asked:
                replicas *= 4
            compiled = programs(found, replicas, self._within)
            with self._within():
                # pad with copies of the first
                more = np.r_[:asked, np.zeros(replicas - asked, dtype=np.intp)]
                before = {
                    register: jnp.asarray(a[more], dtype=self.precision)
                    for register, a in drawn.items()
                }
                arrays = block(found, compiled, 0, 0, replicas, before)
                results = [
                    arrays[r] if r.value is None else np.asarray(r.value)
                    for r in (plan.mean, plan.columns)
                ]
                return self.numpy(last(*results))[:asked]

        return made

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
            sums, strays = np.asarray(device_sums), bool(outside.any())
        found = np.flatnonzero(sums[0])
        if not strays:  # nothing else needs copying from the device
            return BlockMoments(found, sums[:, found], np.zeros(0), np.zeros(0))
        m, v = np.broadcast_arrays(self.numpy(mean[:, 0]), self.numpy(cov[:, 0, 0]))
        return BlockMoments(
            found, sums[:, found], m[np.asarray(outside)], v[np.asarray(outside)]
        )
