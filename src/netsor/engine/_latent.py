"""A plan as a function of standard normals, which are given and not drawn: for Markov chains over them.

χ are functions of normals (see `backends._chi`), so all that a replica draws is a function of one row z of independent
standard normals, and given z the outputs are N(mean(z), cov(z)). Markov chains over z need this and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .._array_api import Floats, Ints, one_blas_thread
from .._executors import thread_pool
from .._validate import ArgumentError, whole
from ._ir import VIEWS, Register, Step
from ._parallel import cores
from ._plan import RULES, Plan, in_numpy, run
from ._psd_cholesky import directions
from ._rng_keys import CHUNK
from .backends import Backend, Device, Numpy
from .backends._base import DEVICE_BLOCK_BYTES
from .backends._chi import chi
from .backends._numpy import BLOCK_BYTES, _laid_out

MOVED = {*VIEWS, "take"}  # kinds of steps whose results are entries of what they read


class Latent:
    """The outputs of a plan given rows of standard normals (replicas, size): those that it reads."""

    def __init__(self, plan: Plan, workers: int | None = None, backend: Backend | None = None) -> None:
        self.plan = _shortened(plan)
        self.backend = backend or Numpy()
        if self.backend.precision != "float64":
            raise ArgumentError("precision", self.backend.precision, "'float64': chains need double precision")
        self.workers = cores() if workers is None else whole(workers, "workers")
        self.places: dict[Step, slice] = {}  # among all normals of a replica
        self.read: dict[Step, Ints] = {}  # which of a step's normals are read
        self.size = 0
        for step in self.plan.steps:
            if step.kind in ("normals", "chi"):
                self.read[step] = _read(self.plan, step, self.shape(step))
                self.places[step] = slice(self.size, self.size + len(self.read[step]))
                self.size += len(self.read[step])

    @property
    def entries(self) -> int:
        """The number of outputs."""
        return self.plan.mean.size

    @property
    def block(self) -> int:
        """How many replicas are worked on at a time; it depends on the plan alone."""
        return max(1, min(CHUNK, BLOCK_BYTES // max(self.plan.bytes + 8 * self.entries**2, 1)))

    def shape(self, step: Step) -> tuple[int, ...]:
        """The shape of the normals from which a step's random numbers are made, in one replica."""
        if step.kind == "normals":
            return step.out.shape
        return *step.out.shape[:-1], chi(step.params["freedom"], "float64").normals

    def given(self, z: Floats) -> tuple[Floats, Floats]:
        """Mean (replicas, entries) and coefficients C (replicas, entries, ·), C C^T the covariance, given normals."""
        mean, columns = run(self.plan, lambda step: self._drawn(step, z), lambda r: r.value, in_numpy)
        columns = _beside(np, columns)
        if not (np.isfinite(mean).all() and np.isfinite(columns).all()):
            raise ValueError("the law is not finite: a function of the program gave NaN or infinity, or it overflowed")
        replicas = len(z)
        return np.broadcast_to(mean, (replicas, self.entries)), np.broadcast_to(columns, (replicas, *columns.shape[1:]))

    def over(self, z: Floats, what: Callable[[Floats, Floats], Any]) -> list[Any]:
        """`what(mean, columns)` of each block of replicas, in threads: no more of them are held at a time."""
        parts = [slice(k, min(k + self.block, len(z))) for k in range(0, len(z), self.block)]

        def one(part: slice) -> Any:
            return what(*self.given(z[part]))

        with one_blas_thread():
            if self.workers == 1 or len(parts) == 1:
                return [one(part) for part in parts]
            with thread_pool(min(self.workers, len(parts))) as pool:
                return list(pool.map(one, parts))

    def on_device(self, what: Callable[[Any, Any, Any], Any]) -> Callable[[Floats], Floats]:
        """A function of normals (replicas, size): `what(library, mean, columns)`, all of it on the backend's device."""
        assert isinstance(self.backend, Device)
        size = DEVICE_BLOCK_BYTES[self.backend.kind] // max(self.plan.bytes + 32 * self.entries**2, 1)
        block = self.backend.fits(self.plan, max(1, min(CHUNK, size)))
        ask = self.backend.given(self.plan, lambda lib, mean, columns: what(lib, mean, _beside(lib.xp, columns)))

        def found(z: Floats) -> Floats:
            parts = [z[k : k + block] for k in range(0, len(z), block)]
            return np.concatenate([ask({step.out: self._drawn(step, part) for step in self.places}) for part in parts])

        return found

    def _drawn(self, step: Step, z: Floats) -> Any:
        shape, read = self.shape(step), self.read[step]
        own: Any = z[:, self.places[step]]
        if len(read) < math.prod(shape):
            own, some = np.zeros((len(z), math.prod(shape))), own
            own[:, read] = some
        own = own.reshape(len(z), *shape)
        if step.kind == "chi":
            recipe = chi(step.params["freedom"], "float64")
            own = recipe.of(np, own, recipe.polynomial, recipe.scale, recipe.squares)
        own = _laid_out(own)
        own.flags.writeable = False  # a step may overwrite what no later step reads, and z is the caller's
        return own


def _beside(xp: Any, columns: Any) -> Any:
    """C (replicas, …, entries, ·) of every head, side by side: (replicas, entries, ·)."""
    if columns.ndim == 3:
        return columns
    return xp.reshape(xp.moveaxis(columns, -2, 1), (columns.shape[0], columns.shape[-2], -1))


def _shortened(plan: Plan) -> Plan:
    """The plan that ends at vectors X, where the covariance of the outputs is Σ X X^T over heads."""
    # Many plans end in a Cholesky factor C with C C^T = X X^T (docs/theory.md, equation 5), made only to be multiplied
    # with itself. X serves as well, and so on backwards if X is itself such a factor.
    plan = _without_zeros(plan)
    while (shorter := _without_root(plan)) is not None:
        plan = shorter
    return plan


def _without_root(plan: Plan) -> Plan | None:
    """The plan without its last Cholesky factor C, if the covariance of its outputs is c² Σ C C^T over heads."""
    # It is if the steps after C are linear and keep C C^T but for c², which one random matrix in place of C shows.
    size = plan.mean.size
    root = next((step for step in reversed(plan.steps) if step.kind == "reduced"), None)
    if root is None or root.out.shape[-2:] != (size, size):
        return None
    tried = np.random.default_rng(0).standard_normal((1, *root.out.shape))
    arrays: dict[Register, Any] = {root.out: tried}
    for step in plan.steps:
        if not arrays.keys().isdisjoint(step.args):
            if step.kind not in (*MOVED, "pad", "scale") and (step.kind != "product" or step.args[1].varies):
                return None
            inputs = [arrays.get(arg, arg.value) for arg in step.args]
            arrays[step.out] = RULES[step.kind](np, *inputs, **step.params)
    mean, columns = (arrays.get(r, r.value) for r in (plan.mean, plan.columns))
    if mean is None or mean.any() or columns is None:
        return None
    cov, products = (rows @ np.swapaxes(rows, 1, 2) for rows in (_beside(np, a) for a in (columns, tried)))
    square = float(np.trace(cov[0]) / np.trace(products[0]))
    if not np.allclose(cov, square * products, rtol=0, atol=1e-12 * np.abs(cov).max()):
        return None
    steps, kept = _narrowed(plan.steps, root.args[1])
    columns = Register(kept.shape)
    steps = [*steps, Step("scale", columns, (kept,), {"by": math.sqrt(square)}, "", kept.size)]
    return replace(plan, steps=steps, mean=Register((size,), np.zeros((1, size))), columns=columns)


def _without_zeros(plan: Plan) -> Plan:
    """The same plan, with products ⟨a, b⟩ of a constant b taken along the directions that b has."""
    steps: list[Step] = []
    for step in plan.steps:
        if step.kind == "gram" and step.args[0].varies and step.args[1].value is not None:
            places = directions(step.args[1].value)
            if 0 < len(places) < step.args[1].shape[-1]:
                a, b = step.args
                some = Register((*a.shape[:-1], len(places)))
                steps.append(Step("take", some, (a,), {"places": places, "axis": len(a.shape) - 1}, "", some.size))
                kept = Register((*b.shape[:-1], len(places)), np.ascontiguousarray(step.args[1].value[..., places]))
                step = replace(step, args=(some, kept))
        steps.append(step)
    return replace(plan, steps=steps)


def _narrowed(steps: list[Step], rows: Register) -> tuple[list[Step], Register]:
    """Vectors `rows`, a part of the product of a varying and a constant array, without columns that are always 0."""
    made = {step.out: step for step in steps}
    whole, start = rows, 0
    while (step := made.get(whole)) is not None and (
        step.kind == "part" or (step.kind == "reshape" and step.args[0].shape[-1] == whole.shape[-1])
    ):
        whole, start = step.args[0], start + step.params.get("start", 0)
    if step is None or step.kind != "product" or step.args[1].value is None:
        return steps, rows
    read = step.args[1].value[..., start : start + rows.shape[-1]]
    few = np.ascontiguousarray(read[..., directions(read)])
    product = Register((*whole.shape[:-1], few.shape[-1]))
    out = Register((*rows.shape[:-1], few.shape[-1]))
    more = [
        replace(step, out=product, args=(step.args[0], Register(few.shape[1:], few))),
        Step("reshape", out, (product,), {"shape": out.shape}, "", 0),
    ]
    return [*steps, *more], out


def _read(plan: Plan, drawn: Step, shape: tuple[int, ...]) -> Ints:
    """The places of the normals of a step that later ones read: of kernels with few directions, as many."""
    # Each number is followed through steps that move numbers or multiply them by a constant; other steps read all.
    every = np.arange(math.prod(shape))
    if drawn.kind == "chi":
        return every
    at: dict[Register, Any] = {drawn.out: every.reshape(1, *shape)}
    found = []
    for step in plan.steps:
        for arg in at.keys() & set(step.args):
            others = [a for a in step.args if a is not arg]
            if step.kind in MOVED:
                at[step.out] = RULES[step.kind](np, at[arg], **step.params)
            elif (
                step.kind in ("scale", "multiply")
                and step.out.shape == arg.shape
                and all(a.value is not None for a in others)
            ):
                at[step.out] = at[arg]
            else:
                found.append(at[arg])
    found += [at[r] for r in (plan.mean, plan.columns) if r in at]
    return np.unique(np.concatenate([some.ravel() for some in found]))


def matched(small: Latent, large: Latent) -> Ints | None:
    """Where the normals of a plan stand among those of another with draws of the same keys, at least as large.

    The first entries along every axis are the same ones; −1 for those that the other does not read. None if there is
    no such draw.
    """
    of = {step.params["key"]: step for step in large.places}
    places = [np.zeros(0, dtype=np.intp)]
    for step in small.places:
        other = of.get(step.params["key"])
        shape = small.shape(step)
        if other is None or other.kind != step.kind or len(large.shape(other)) != len(shape):
            return None
        whole = np.full(math.prod(large.shape(other)), -1, dtype=np.intp)
        whole[large.read[other]] = np.arange(large.places[other].start, large.places[other].stop)
        whole = whole.reshape(large.shape(other))
        if any(a > b for a, b in zip(shape, whole.shape, strict=True)):
            return None
        places.append(whole[tuple(slice(k) for k in shape)].ravel()[small.read[step]])
    return np.concatenate(places)


def embedding(small: Latent, large: Latent) -> Ints | None:
    """Where the normals of a plan stand among those of a plan with more outputs, whose first outputs are its own.

    That these come out the same is tried with random normals; None if they do not.
    """
    found = matched(small, large)
    if found is None or (found < 0).any():
        return None
    z = np.random.default_rng(0).standard_normal((2, large.size))
    with one_blas_thread():
        (mean, own), (more, wide) = small.given(z[:, found]), large.given(z)
    k = small.entries
    cov, wider = (c @ np.swapaxes(c, 1, 2) for c in (own, wide[:, :k]))
    size = np.sqrt(np.diagonal(cov, axis1=1, axis2=2).max())
    same = np.abs(more[:, :k] - mean).max() < 1e-7 * size and np.abs(wider - cov).max() < 1e-7 * size**2
    return found if same else None
