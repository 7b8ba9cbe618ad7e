"""A plan as a function of given standard normals.

χ are functions of normals (see `backends._chi`), so a replica is a function of one row
z of independent normals. Given z, the outputs are N(mean(z), cov(z)), which is all that
Markov chains over z need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._array_api import Floats, Ints, one_blas_thread
from .._executors import thread_pool
from .._validate import ArgumentError, whole
from ._ir import Step
from ._parallel import cores
from ._plan import BLOCK_BYTES, Plan, in_numpy, run
from ._rng_keys import CHUNK
from .backends import Backend, Device, Numpy
from .backends._base import DEVICE_BLOCK_BYTES
from .backends._chi import chi
from .backends._numpy import _laid_out


class Latent:
    """The outputs of a plan given rows of standard normals (replicas, size)."""

    def __init__(
        self, plan: Plan, workers: int | None = None, backend: Backend | None = None
    ) -> None:
        self.plan = plan
        self.backend = backend or Numpy()
        if self.backend.precision != "float64":
            raise ArgumentError(
                "precision",
                self.backend.precision,
                "'float64': chains need double precision",
            )
        self.workers = cores() if workers is None else whole(workers, "workers")
        self.places: dict[Step, slice] = {}  # position among the normals of a replica
        self.size = 0
        for step in self.plan.steps:
            if step.kind in ("normals", "chi"):
                self.places[step] = slice(
                    self.size, self.size + math.prod(self.shape(step))
                )
                self.size = self.places[step].stop

    @property
    def entries(self) -> int:
        """The number of outputs."""
        return self.plan.mean.size

    @property
    def block(self) -> int:
        """The replicas computed at a time; depends only on the plan."""
        return max(
            1, min(CHUNK, BLOCK_BYTES // max(self.plan.bytes + 8 * self.entries**2, 1))
        )

    def shape(self, step: Step) -> tuple[int, ...]:
        """The shape of the normals behind the random numbers of a step, in one
        replica.
        """
        if step.kind == "normals":
            return step.out.shape
        return *step.out.shape[:-1], chi(step.params["freedom"], "float64").normals

    def given(self, z: Floats) -> tuple[Floats, Floats]:
        """Mean (replicas, entries) and coefficients C (replicas, entries, ·) given
        normals; C C^T is the covariance.
        """
        mean, columns = run(
            self.plan, lambda step: self._drawn(step, z), lambda r: r.value, in_numpy
        )
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            raise ValueError(
                "the law is not finite: a function of the program gave NaN or infinity,"
                " or it overflowed"
            )
        return np.broadcast_to(mean, (len(z), self.entries)), np.broadcast_to(
            columns, (len(z), *columns.shape[1:])
        )

    def over(self, z: Floats, what: Callable[[Floats, Floats], Any]) -> list[Any]:
        """`what(mean, columns)` for each block of replicas, in threads; only the blocks
        in flight are in memory.
        """
        parts = [z[k : k + self.block] for k in range(0, len(z), self.block)]

        def one(part: Floats) -> Any:
            return what(*self.given(part))

        with one_blas_thread():
            if self.workers == 1 or len(parts) == 1:
                return list(map(one, parts))
            with thread_pool(min(self.workers, len(parts))) as pool:
                return list(pool.map(one, parts))

    def on_device(
        self, what: Callable[[Any, Any, Any], Any]
    ) -> Callable[[Floats], Floats]:
        """A function of normals (replicas, size) that computes `what(library, mean,
        columns)` on the device.
        """
        assert isinstance(self.backend, Device)
        size = DEVICE_BLOCK_BYTES[self.backend.kind] // max(
            self.plan.bytes + 32 * self.entries**2, 1
        )
        block = self.backend.fits(self.plan, max(1, min(CHUNK, size)))
        ask = self.backend.given(self.plan, what)

        def found(z: Floats) -> Floats:
            parts = [z[k : k + block] for k in range(0, len(z), block)]
            return np.concatenate(
                [
                    ask({step.out: self._drawn(step, part) for step in self.places})
                    for part in parts
                ]
            )

        return found

    def _drawn(self, step: Step, z: Floats) -> Any:
        own: Any = z[:, self.places[step]].reshape(len(z), *self.shape(step))
        if step.kind == "chi":
            own = chi(step.params["freedom"], "float64").of(np, own)
        own = _laid_out(own)
        # a step may overwrite dead arrays, but z belongs to the caller
        own.flags.writeable = False
        return own


def matched(small: Latent, large: Latent) -> Ints | None:
    """The positions of a plan's normals among those of another plan whose draws have
    the same keys, or None.
    """
    # A draw of the other plan may be larger: its first entries along every axis match
    # the smaller one.
    of = {(step.kind, step.params["key"]): step for step in large.places}
    places = [np.zeros(0, dtype=np.intp)]
    for step in small.places:
        other, shape = of.get((step.kind, step.params["key"])), small.shape(step)
        if other is None or len(large.shape(other)) != len(shape):
            return None
        some = np.arange(large.size)[large.places[other]].reshape(large.shape(other))[
            tuple(map(slice, shape))
        ]
        if some.shape != shape:
            return None
        places.append(some.ravel())
    return np.concatenate(places)


def embedding(small: Latent, large: Latent) -> Ints | None:
    """The positions of a plan's normals in a plan with more outputs; None if its
    outputs do not come first.
    """
    # Random normals test whether they do.
    found = matched(small, large)
    if found is None:
        return None
    z = np.random.default_rng(0).standard_normal((2, large.size))
    with one_blas_thread():
        (mean, own), (more, wide) = small.given(z[:, found]), large.given(z)
    k = small.entries
    cov, wider = (c @ np.swapaxes(c, 1, 2) for c in (own, wide[:, :k]))
    size = np.sqrt(np.diagonal(cov, axis1=1, axis2=2).max())
    same = (
        np.abs(more[:, :k] - mean).max() < 1e-7 * size
        and np.abs(wider - cov).max() < 1e-7 * size**2
    )
    return found if same else None
