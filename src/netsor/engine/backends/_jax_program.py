"""Steps of a plan, compiled by JAX into one program for a block of replicas; its
generator and factorisations.

Number e of a draw for replica r is Threefry(key; r, e) with the key of (seed, draw). So
it depends neither on the block nor on the process, and laws of two widths with one seed
are coupled. Widths, constants and seeds are arguments of the compiled program, so
another width or seed needs no recompilation.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from ..._array_api import Array
from .. import _gram_schmidt
from .._instructions import DRAWS, FUNCTIONS
from .._ir import Register, Step, key_of
from .._ops import squares
from .._plan import Plan, compute
from .._rng_keys import key_words
from ._batched_linalg import Library
from ._chi import Chi, chi

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of four rounds, in turn
# Threefry's third word of the key is the parity of the other two with it
PARITY = np.uint32(0x1BD11BDA)
# rows: up to this, a loop is fast and compiles faster than the alternative
MAX_LOOPED_ROWS = 32
# draws with fewer normals share a call of the generator: fewer calls compile faster
MAX_SHARED_NORMALS = 1024
PROGRAMS = 256  # compiled programs kept in memory
LONGEST = 40  # most steps of a piece

_programs: dict[Any, Any] = {}  # compiled programs, most recently used last
_lock = threading.Lock()


def normal_pairs(
    keys: Array, replica: Array, number: Array, precision: str
) -> tuple[Array, Array]:
    """Pairs of normals (replicas, numbers), with one key per number (Box and Muller
    1958).
    """

    def words(count: Array) -> tuple[Array, ...]:
        given = keys[:, 0], keys[:, 1], replica[:, None], count
        if on_gpu():  # where JAX has one kernel for it
            return tuple(threefry2x32_p.bind(*jnp.broadcast_arrays(*given)))
        return threefry(*given)

    if precision == "float32":
        one, two = (w.astype(jnp.float32) * np.float32(2**-32) for w in words(number))
        one = one + np.float32(2**-33)  # above 0
    else:
        (a, b), (c, d) = words(2 * number), words(2 * number + 1)
        one = (
            a.astype(jnp.float64) * 2**21 + (b >> 11).astype(jnp.float64) + 0.5
        ) * 2**-53
        two = (c.astype(jnp.float64) * 2**21 + (d >> 11).astype(jnp.float64)) * 2**-53
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(one, 1.0)))
    return radius * jnp.cos(2 * np.pi * two), radius * jnp.sin(2 * np.pi * two)


def threefry(
    first_key: Array, second_key: Array, first: Array, second: Array
) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), of words of 32 bits."""
    # JAX's own version is a loop on a CPU: with it, draws of the paper's layer take 1.5
    # times as long.
    keys = first_key, second_key, first_key ^ second_key ^ PARITY
    x, y = first + keys[0], second + keys[1]
    for four in range(5):
        for bits in ROTATIONS[four % 2]:
            x = x + y
            y = ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits))) ^ x
        x, y = (
            x + keys[(four + 1) % 3],
            y + (keys[(four + 2) % 3] + np.uint32(four + 1)),
        )
    return x, y


def on_gpu() -> bool:
    """Whether JAX compiles for a GPU, here and now."""
    return bool((jax.config.jax_default_device or jax.devices()[0]).platform == "gpu")


class JaxLibrary(Library):
    """JAX's factorisations, with compiled loops where they fail."""

    few, wide = MAX_LOOPED_ROWS, False

    def cholesky(self, a: Array) -> Array:
        """JAX's own."""
        return jax.lax.linalg.cholesky(a, symmetrize_input=False)

    def triangular(self, lower: Array, b: Array) -> Array:
        """Solve X C^T = b."""
        batch = jnp.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
        lower = jnp.broadcast_to(lower, (*batch, *lower.shape[-2:]))
        b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
        return jax.lax.linalg.triangular_solve(
            lower, b, left_side=False, lower=True, transpose_a=True
        )

    def columns(self, gram: Array, floor: Array) -> Array:
        """As `_psd_cholesky.by_columns`."""
        size = gram.shape[-1]

        def column(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            rest, made = state
            pivot = jax.lax.dynamic_index_in_dim(
                jnp.diagonal(rest, axis1=-2, axis2=-1), j, -1, keepdims=False
            )
            fresh = pivot > jax.lax.dynamic_index_in_dim(
                floor[..., 0, :], j, -1, keepdims=False
            )
            inverse = jnp.where(
                fresh, 1.0 / jnp.sqrt(jnp.where(fresh, pivot, 1.0)), 0.0
            )
            below = (
                jax.lax.dynamic_index_in_dim(rest, j, -1, keepdims=False)
                * inverse[..., None]
            )
            below = jnp.where(jnp.arange(size) >= j, below, 0.0)
            made = jax.lax.dynamic_update_index_in_dim(made, below, j, -1)
            return rest - below[..., :, None] * below[..., None, :], made

        return jax.lax.fori_loop(0, size, column, (gram, jnp.zeros_like(gram)))[1]

    def singly(self, rows: Array, *known: Array) -> Array:
        """Rows of `made` not yet computed are 0, and subtract nothing."""
        batch = jnp.broadcast_shapes(*(a.shape[:-2] for a in (rows, *known)))
        floor = _gram_schmidt.zero_threshold(jnp, rows)

        def one(j: Any, made: Array) -> Array:
            x = jax.lax.dynamic_slice_in_dim(rows, j, 1, -2)
            once = _gram_schmidt.project_out(jnp, x, (*known, made))
            rest = _gram_schmidt.project_out(jnp, once, (*known, made))
            least = jax.lax.dynamic_slice_in_dim(floor, j, 1, -1)
            found = _gram_schmidt.unit(jnp, rest, squares(jnp, once), least)
            return jax.lax.dynamic_update_slice_in_dim(made, found, j, -2)

        return jax.lax.fori_loop(
            0,
            rows.shape[-2],
            one,
            jnp.zeros((*batch, *rows.shape[-2:]), dtype=rows.dtype),
        )

    def recompute_where(
        self, made: Array, again: Array, remake: Callable[..., Array], *arrays: Array
    ) -> Array:
        """If any matrix must be recomputed, recompute all, and use only those
        needed.
        """

        def both(inputs: tuple[Array, ...]) -> Array:
            return jnp.where(again[..., None, None], remake(*inputs), made)

        return jax.lax.cond(jnp.any(again), both, lambda _: made, arrays)


LIBRARY = JaxLibrary(jnp)


class Piece:
    """Consecutive steps of a plan, compiled together, or one step that numpy executes
    on the host.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        host: bool,
        precision: str,
        drawn: str,
        after: set[Register],
    ) -> None:
        """`drawn` is the precision of random numbers; `after` are the arrays that later
        pieces read.
        """
        self.steps, self.host, self.precision, self.drawn, self.after = (
            list(steps),
            host,
            precision,
            drawn,
            after,
        )
        self.draws = [step for step in steps if step.kind in DRAWS]
        self.chi = {
            step: chi(step.params["freedom"], drawn)
            for step in self.draws
            if step.kind == "chi"
        }
        made = {step.out for step in steps}
        used = list(dict.fromkeys(arg for step in steps for arg in step.args))
        self.constants = [register for register in used if register.value is not None]
        self.reads = [
            register
            for register in used
            if register.value is None and register not in made
        ]
        self.writes = [step.out for step in steps if step.out in after]
        # arrays read by this piece or later
        self.needed = (after - made) | set(self.reads)

    def inputs(
        self, seed: int, start: int, arrays: Mapping[Register, Array]
    ) -> tuple[Any, ...]:
        """The arguments of the compiled program for one seed and a block that starts at
        replica `start`.
        """
        # The first replica, the keys of all draws (draws, 2), the fixed arrays, and the
        # results of earlier pieces. counters have 32 bits; no block lies across two
        # eras
        era, first = divmod(start, 2**32)
        keys = [
            key_words(seed, *step.params["key"], era, count=2) for step in self.draws
        ]
        earlier = [arrays[register] for register in self.reads]
        return (
            np.uint32(first),
            np.array(keys, dtype=np.uint32).reshape(-1, 2),
            self._fixed,
            earlier,
        )

    @cached_property
    def _fixed(self) -> tuple[Any, ...]:
        """The tables of each χ (see `_chi`), the numbers of `scale` steps (functions of
        widths), and constants.
        """
        number = partial(np.asarray, dtype=self.precision)
        tables = [
            Chi(*(np.asarray(table, dtype=self.drawn) for table in c))
            for c in self.chi.values()
        ]
        factors = [
            number(step.params["by"]) for step in self.steps if step.kind == "scale"
        ]
        constants = [number(register.value) for register in self.constants]
        return jax.device_put((tables, factors, constants))  # type: ignore[no-any-return]

    def compiled(self, replicas: int) -> Any:
        """The program for any seed and any block with this many replicas."""
        shapes = {
            r: jax.ShapeDtypeStruct((replicas, *r.shape), self.precision)
            for r in self.reads
        }
        traced = jax.jit(
            partial(_traced, self, replicas), compiler_options=_options(on_gpu())
        )
        return traced.lower(self.inputs(0, 0, shapes)).compile()

    @cached_property
    def structure(self) -> Any:
        """A key that is equal for pieces that compile to the same program."""
        number = {
            register: -1 - k
            for k, register in enumerate([*self.constants, *self.reads])
        }
        parts: list[Any] = []
        for k, step in enumerate(self.steps):
            number[step.out] = k
            args = tuple(number[arg] for arg in step.args)
            if step in self.draws:
                made = self.chi.get(step)
                shapes = (made.polynomial.shape, made.squares.shape) if made else None
                parts.append((step.kind, step.out.shape, shapes))
            else:
                params = {} if step.kind == "scale" else step.params
                parts.append(
                    (args, step.out.shape, key_of(step.kind, (), params) or id(step))
                )
        inputs = tuple(register.shape for register in [*self.constants, *self.reads])
        return (
            tuple(parts),
            inputs,
            tuple(number[register] for register in self.writes),
            self.precision,
            self.drawn,
        )


def programs(
    found: Sequence[Piece],
    replicas: int,
    within: Callable[[], AbstractContextManager[None]],
) -> list[Any]:
    """The compiled programs of pieces, None for host pieces; `within` sets JAX's
    precision and device.
    """
    # They compile in parallel, one thread each: the compiler releases Python's lock.

    def compiled(piece: Piece) -> Any:
        with within():
            return piece.compiled(replicas)

    with within():
        keys: list[Any] = [
            None
            if piece.host
            else (piece.structure, replicas, jax.config.jax_default_device)
            for piece in found
        ]
    with _lock:
        # equal blocks share a key
        used = {key: _programs.pop(key, None) for key in {*keys} - {None}}
        missing = {
            key: piece
            for key, piece in zip(keys, found, strict=True)
            if key and used[key] is None
        }
        if missing:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                used |= zip(missing, pool.map(compiled, missing.values()), strict=True)
        _programs.update(used)
        for key in list(_programs)[:-PROGRAMS]:
            del _programs[key]
        return [used.get(key) for key in keys]


@cache
def _options(gpu: bool) -> dict[str, Any]:
    """Options of the compiler, for speed."""
    if gpu:  # autotuning takes 5 to 9 s per matrix product
        return {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    # the older emitters take half the time
    options = {"xla_cpu_use_fusion_emitters": False}
    with suppress(jax.errors.JaxRuntimeError):  # JAX 0.11 removed this option
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
        return options
    return {}


def _traced(piece: Piece, replicas: int, inputs: tuple[Any, ...]) -> list[Array]:
    """The function to compile: the steps of a piece for a block of replicas."""
    first_replica, keys, (tables, factors, constants), earlier = inputs
    key = dict(zip(piece.draws, keys, strict=True))
    recipes = dict(zip(piece.chi, tables, strict=True))
    arrays = dict(
        zip([*piece.constants, *piece.reads], [*constants, *earlier], strict=True)
    )
    shape = {step: step.out.shape for step in piece.draws}
    shape |= {
        step: (*step.out.shape[:-1], made.normals) for step, made in piece.chi.items()
    }
    counted = first_replica + jnp.arange(replicas, dtype=jnp.uint32)

    def normals(steps: Sequence[Step]) -> dict[Step, Array]:
        """The normals of several steps, from one call of the generator."""
        pairs = [-(-math.prod(shape[step]) // 2) for step in steps]
        keys = jnp.concat(
            [
                jnp.broadcast_to(key[step], (m, 2))
                for step, m in zip(steps, pairs, strict=True)
            ]
        )
        number = np.concatenate([np.arange(m, dtype=np.uint32) for m in pairs])
        first, second = normal_pairs(keys, counted, number, piece.drawn)
        made = {}
        for step, m, end in zip(steps, pairs, np.cumsum(pairs).tolist(), strict=True):
            both = jnp.concat(
                [first[:, end - m : end], second[:, end - m : end]], axis=1
            )
            made[step] = jnp.reshape(
                both[:, : math.prod(shape[step])], (replicas, *shape[step])
            )
        return made

    small = [
        step for step in piece.draws if math.prod(shape[step]) <= MAX_SHARED_NORMALS
    ]
    known = normals(small) if small else {}
    numbers = iter(factors)
    for step in piece.steps:
        if step in key:
            z = known[step] if step in known else normals([step])[step]
            made = recipes[step].of(jnp, z) if step in recipes else z
            arrays[step.out] = made.astype(piece.precision)
        elif step.kind == "scale":
            arrays[step.out] = arrays[step.args[0]] * next(numbers)
        else:
            arrays[step.out] = compute(
                LIBRARY, step.kind, [arrays[arg] for arg in step.args], step.params
            )
    # arrays that depend only on hyperparameters have one replica
    return [
        jnp.broadcast_to(arrays[register], (replicas, *register.shape))
        for register in piece.writes
    ]


# once for all chunks of a plan, on each device: pieces keep arrays there
@lru_cache(maxsize=4)
def pieces(
    plan: Plan, precision: str, rounded: bool = False, device: str = ""
) -> list[Piece]:
    """The plan cut at the steps that JAX cannot trace: user functions in numpy, and
    kernels by quadrature.
    """
    # It is also cut between equal blocks of a deep network, whose pieces compile once.
    # Other long pieces are cut so that they compile in parallel. Random numbers may be
    # `rounded` to single precision.
    if not plan.steps:
        return []
    bounds = {
        loop.start + loop.period * k
        for loop in plan.loops
        for k in range(loop.times + 1)
    }
    traced = [_native(step, precision) for step in plan.steps]
    begins = [
        k
        for k in range(len(traced))
        if k in bounds or not (k and traced[k] and traced[k - 1])
    ]
    ends = [*begins[1:], len(traced)]
    begins = [
        k
        for begin, end in zip(begins, ends, strict=True)
        for k in range(begin, end, LONGEST)
    ]
    ends = [*begins[1:], len(traced)]
    found: list[Piece] = []
    needed = {plan.mean, plan.columns}
    for begin, end in reversed(list(zip(begins, ends, strict=True))):
        drawn = "float32" if rounded else precision
        found.insert(
            0, Piece(plan.steps[begin:end], not traced[begin], precision, drawn, needed)
        )
        needed = found[0].needed
    # the last block may need fewer results, but computes the same
    for loop in plan.loops:
        inside = [
            (begin, piece)
            for begin, piece in zip(begins, found, strict=True)
            if loop.start <= begin < loop.stop
        ]
        written = {
            (begin + k - loop.start) % loop.period
            for begin, piece in inside
            for k, step in enumerate(piece.steps)
            if step.out in piece.writes
        }
        for begin, piece in inside:
            places = enumerate(piece.steps, begin - loop.start)
            piece.writes = [
                step.out for k, step in places if k % loop.period in written
            ]
    return found


def _native(step: Step, precision: str) -> bool:
    if step.kind not in FUNCTIONS:
        return True
    shapes = [jax.ShapeDtypeStruct((2, *arg.shape), precision) for arg in step.args]
    try:
        with jax.enable_x64(precision == "float64"):
            made = jax.eval_shape(
                lambda *arrays: compute(LIBRARY, step.kind, arrays, step.params),
                *shapes,
            )
    except Exception:
        # JAX cannot trace it: numpy computes it, or raises the error for the user
        return False
    return bool(made.shape[1:] == step.out.shape)


def block(
    found: Sequence[Piece],
    compiled: Sequence[Any],
    seed: int,
    start: int,
    replicas: int,
    arrays: Mapping[Register, Array] = MappingProxyType({}),
) -> dict[Register, Array]:
    """Run the pieces of a plan for a block of replicas, and return the given arrays
    with their results.
    """
    arrays = dict(arrays)
    for piece, program in zip(found, compiled, strict=True):
        if program is None:
            (step,) = piece.steps
            inputs = {
                r: np.asarray(
                    arrays[r] if r.value is None else r.value, dtype=np.float64
                )
                for r in step.args
            }
            made = compute(
                _gram_schmidt.NUMPY,
                step.kind,
                [inputs[register] for register in step.args],
                step.params,
            )
            made = np.broadcast_to(made, (replicas, *step.out.shape))
            arrays[step.out] = jnp.asarray(made, dtype=piece.precision)
        else:
            results = program(piece.inputs(seed, start, arrays))
            arrays |= zip(piece.writes, results, strict=True)
        arrays = {
            register: array
            for register, array in arrays.items()
            if register in piece.after
        }
    return arrays
