"""JAX: the whole plan compiled into one program for a block of replicas, on a CPU or a GPU.

Replicas come in groups of GROUP, and the numbers of a draw for one group are keyed by (seed, draw, group) with JAX's
counter-based generator. So they depend neither on the size of a block nor on who draws it, and one seed couples two
widths. What differs between two plans of the same structure (widths, constants) is an argument of the compiled
program: a law at another width or with another seed is not compiled again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import _instructions
from .._montecarlo import memory
from .._plan import RULES, Builder, Plan, Register, Step
from .._run import run
from ._base import Backend, NoDeviceError, largest_block
from ._chi import Chi, chi

Array = Any

GROUP = 64  # replicas with one key
PROGRAMS = 64  # compiled ones that are kept
LEAF = 4  # rows of a matrix, above which it is factored by a loop that is compiled once

_programs: OrderedDict[Any, Any] = OrderedDict()
_lock = threading.Lock()


class Inputs(NamedTuple):
    """What a compiled program is called with, besides the numbers of its groups."""

    keys: Any  # (draws, 2): of the generator, one for each draw of the plan
    tables: list[tuple[Any, Any, Any]]  # of each χ
    constants: list[Any]


class Jax(Backend):
    """JAX on one device."""

    name: ClassVar[str] = "jax"

    def check(self) -> None:
        """Whether the library is here, and sees the device."""
        try:
            import jax
        except ImportError:
            raise NoDeviceError("backend='jax' needs JAX: pip install 'netsor[jax]'") from None
        try:
            self._device()
        except (RuntimeError, IndexError):
            found = ", ".join(dict.fromkeys(d.platform for d in jax.devices()))
            raise NoDeviceError(f"device={self.device!r}: JAX sees no such device here, only {found}") from None

    def _device(self) -> Any:
        import jax

        kind, _, number = self.device.partition(":")
        return jax.devices(kind)[int(number or 0)]

    def _within(self) -> AbstractContextManager[Any]:
        import jax

        return jax.enable_x64(self.precision == "float64")  # in this thread alone

    def memory(self) -> float:
        """Of the device, as JAX may use it."""
        stats = self._device().memory_stats()
        return float(stats["bytes_limit"]) if stats and "bytes_limit" in stats else memory()

    def chunk(self, plan: Plan, draws: int) -> int:
        """One block, no larger than the draws need; the numbers drawn do not depend on it."""
        needed = GROUP * 2 ** max(-(-draws // GROUP) - 1, 0).bit_length()
        return self.fits(plan, min(needed, largest_block(plan, self.itemsize, self.kind, GROUP)))

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block, drawn whole and cut."""
        import jax

        with self._within(), jax.default_device(self._device()), jax.default_matmul_precision("highest"):
            ready = _Ready(plan, self.precision)
            groups = part.start // GROUP + np.arange(size // GROUP, dtype=np.uint32)
            mean, cov = ready.program(size)(groups, ready.inputs(seed))
        yield tuple(a if a.shape[0] == 1 else a[: len(part)] for a in (mean, cov))  # type: ignore[misc]
        tick(len(part))

    def numpy(self, array: Array) -> Array:
        """Brought from the device."""
        return np.asarray(array).astype(np.float64)


class _Ready:
    """A plan made ready for JAX: its draws, its constants, and the program that its structure compiles to."""

    def __init__(self, plan: Plan, precision: str) -> None:
        self.plan, self.precision = plan, precision
        self.draws = [step for step in plan.steps if step.kind in ("normals", "chi")]
        self.chi = {step: chi(step.params["freedom"], precision) for step in self.draws if step.kind == "chi"}
        used = [arg for step in plan.steps for arg in step.args] + [plan.mean, plan.columns]
        self.constants = list(dict.fromkeys(register for register in used if register.value is not None))

    def inputs(self, seed: int) -> Inputs:
        """For one seed."""
        keys = [np.random.SeedSequence(seed, spawn_key=step.params["key"]).generate_state(2) for step in self.draws]
        number = partial(np.asarray, dtype=self.precision)
        return Inputs(
            np.array(keys, dtype=np.uint32).reshape(-1, 2),
            [(number(c.polynomial), number(c.scale), number(c.squares)) for c in self.chi.values()],
            [number(register.value) for register in self.constants],
        )

    def program(self, replicas: int) -> Any:
        """The compiled program for a block of so many replicas."""
        import jax

        key = self.structure, replicas, self.precision
        with _lock:
            if key not in _programs:
                _programs[key] = jax.jit(partial(_block, self))
                if len(_programs) > PROGRAMS:
                    _programs.popitem(last=False)
            _programs.move_to_end(key)
            return _programs[key]

    @cached_property
    def structure(self) -> Any:
        """Equal for two plans that compile to the same program."""
        number: dict[Register, int] = {register: -1 - k for k, register in enumerate(self.constants)}
        parts: list[Any] = []
        for k, step in enumerate(self.plan.steps):
            number[step.out] = k
            args = tuple(number[arg] for arg in step.args)
            if step.kind in ("normals", "chi"):
                made = self.chi.get(step)
                shapes = (made.normals, made.polynomial.shape, made.squares.shape, made.order) if made else None
                parts.append((step.kind, step.out.shape, shapes))
            else:
                parts.append((args, step.out.shape, Builder.key(step.kind, (), step.params) or id(step)))
        shapes_of = tuple(register.shape for register in self.constants)
        return tuple(parts), shapes_of, number[self.plan.mean], number[self.plan.columns]


def _block(ready: _Ready, groups: Array, inputs: Inputs) -> tuple[Array, Array]:
    """Means and covariances of the replicas of these groups."""
    import jax
    import jax.numpy as jnp

    place = {step: k for k, step in enumerate(ready.draws)}
    table = dict(zip(ready.chi, inputs.tables, strict=True))
    constants = dict(zip(ready.constants, inputs.constants, strict=True))
    replicas = groups.shape[0] * GROUP

    def normals(step: Step, shape: tuple[int, ...]) -> Array:
        key = jax.random.wrap_key_data(inputs.keys[place[step]], impl="threefry2x32")
        keys = jax.vmap(partial(jax.random.fold_in, key))(groups)
        drawn = jax.vmap(lambda k: jax.random.normal(k, (GROUP, *shape), dtype=ready.precision))(keys)
        return jnp.reshape(drawn, (replicas, *shape))

    def draw(step: Step) -> Array:
        made: Chi | None = ready.chi.get(step)
        if made is None:
            return normals(step, step.out.shape)
        return made.of(jnp, normals(step, (*step.out.shape[:-1], made.normals)), *table[step])

    mean, columns = run(ready.plan, draw, constants.__getitem__, _compute)
    return mean, _instructions.gram(jnp, columns, columns)


def _compute(step: Step, given: Sequence[Array], _: int | None) -> Array:
    import jax.numpy as jnp

    if step.kind in _OWN:
        return _OWN[step.kind](*given)
    try:
        return RULES[step.kind](jnp, *given, **step.params)
    except Exception:
        if step.kind not in ("apply", "kernel", "moments"):
            raise
        return _on_host(step, given)


def _on_host(step: Step, given: Sequence[Array]) -> Array:
    """A step that JAX cannot trace (a function of one's own in numpy, a kernel by quadrature), done by numpy."""
    import jax

    kinds = list({id(a): a for a in given}.values())  # an array that is given twice is told so: kernels look at it
    which = [next(k for k, b in enumerate(kinds) if b is a) for a in given]
    replicas = max((a.shape[0] for a in given), key=lambda r: (r != 1, r))
    dtype = given[0].dtype

    def work(*arrays: Array) -> Array:
        double = [np.asarray(a, dtype=np.float64) for a in arrays]
        made = RULES[step.kind](np, *(double[k] for k in which), **step.params)
        return np.broadcast_to(made, (replicas, *step.out.shape)).astype(dtype)

    return jax.pure_callback(work, jax.ShapeDtypeStruct((replicas, *step.out.shape), dtype), *kinds)


# Triangular factors with loops: unrolled, the programs of many tokens would take minutes to compile.


def _factor(gram: Array, whole: Array | None = None) -> Array:
    import jax.numpy as jnp

    diagonal = jnp.diagonal(gram if whole is None else whole, axis1=-2, axis2=-1)
    return _factored(gram, _instructions.tolerance(jnp, gram.dtype) * diagonal)


def _factored(gram: Array, floor: Array) -> Array:
    import jax.numpy as jnp

    size = gram.shape[-1]
    if size <= LEAF:
        return _instructions.factored(jnp, gram, floor)
    if size > 8 * LEAF:
        half = size // 2
        first = _factored(gram[..., :half, :half], floor[..., :half])
        below = _solve(first, gram[..., half:, :half])
        second = _factored(gram[..., half:, half:] - below @ jnp.matrix_transpose(below), floor[..., half:])
        above = jnp.zeros((*first.shape[:-1], size - half), dtype=gram.dtype)
        return jnp.concat([jnp.concat([first, above], axis=-1), jnp.concat([below, second], axis=-1)], axis=-2)
    return _columns(gram, floor)


def _columns(gram: Array, floor: Array) -> Array:
    """Column by column, as `_instructions.factored`."""
    import jax
    import jax.numpy as jnp

    size = gram.shape[-1]

    def column(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, made = state
        pivot = jax.lax.dynamic_index_in_dim(jnp.diagonal(rest, axis1=-2, axis2=-1), j, -1, keepdims=False)
        fresh = pivot > jax.lax.dynamic_index_in_dim(floor, j, -1, keepdims=False)
        inverse = jnp.where(fresh, 1.0 / jnp.sqrt(jnp.where(fresh, pivot, 1.0)), 0.0)
        below = jax.lax.dynamic_index_in_dim(rest, j, -1, keepdims=False) * inverse[..., None]
        below = jnp.where(jnp.arange(size) >= j, below, 0.0)
        made = jax.lax.dynamic_update_index_in_dim(made, below, j, -1)
        return rest - below[..., :, None] * below[..., None, :], made

    return jax.lax.fori_loop(0, size, column, (gram, jnp.zeros_like(gram)))[1]


def _solve(lower: Array, b: Array) -> Array:
    """As `_instructions.solve`: a direction that no row has is one that nothing else depends on."""
    import jax
    import jax.numpy as jnp

    if lower.shape[-1] <= LEAF:
        return _instructions.solve(jnp, lower, b)
    batch = jnp.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
    lower = jnp.broadcast_to(lower, (*batch, *lower.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    missing = jnp.diagonal(lower, axis1=-2, axis2=-1) <= 0
    whole = lower + jnp.where(missing[..., None], jnp.eye(lower.shape[-1], dtype=lower.dtype), 0.0)
    found = jax.lax.linalg.triangular_solve(whole, b, left_side=False, lower=True, transpose_a=True)
    return jnp.where(missing[..., None, :], 0.0, found)


_OWN: dict[str, Callable[..., Array]] = {"factor": _factor, "residual": _factor, "solve": _solve}
