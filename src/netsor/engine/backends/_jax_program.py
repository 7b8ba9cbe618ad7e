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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from ..._array_api import Array
from ..linalg import _gram_schmidt
from ..linalg._batched_linalg import Library
from ..plan._instructions import DRAWS, FUNCTIONS
from ..plan._ir import Loop, Register, Step, key_of
from ..plan._ops import squares
from ..plan._plan import Plan, compute
from ..run._rng_keys import key_words
from ._chi import Chi, chi

# Threefry's rotations in bits: of four rounds, in turn
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Threefry's third word of the key is the parity of the other two with it
PARITY = np.uint32(0x1BD11BDA)
# rows: up to this, a loop is fast and compiles faster than the alternative
MAX_LOOPED_ROWS = 32
# draws with fewer normals share a call of the generator: fewer calls compile faster
MAX_SHARED_NORMALS = 1024
PROGRAMS = 256  # compiled programs kept in memory
MAX_PIECE_STEPS = 40  # longer pieces are cut, so that they compile in parallel

_programs: dict[Any, Any] = {}  # compiled programs, most recently used last
_lock = threading.Lock()


def normal_pairs(
    keys: Array, replica: Array, number: Array, precision: str
) -> tuple[Array, Array]:
    """Two arrays of independent normals, (replicas, numbers) each.

    They are functions of the keys (numbers, 2) of draws, the numbers (numbers,) within
    a draw, and the numbers (replicas,) of the replicas. Box and Muller (1958) turn two
    uniform numbers into two normals.
    """

    def random_words(count: Array) -> tuple[Array, ...]:
        """Two words of 32 random bits, (replicas, numbers) each."""
        inputs = (keys[:, 0], keys[:, 1], replica[:, None], count)
        if on_gpu():  # where JAX has one kernel for it
            broadcast = jnp.broadcast_arrays(*inputs)
            return tuple(threefry2x32_p.bind(*broadcast))
        return threefry(*inputs)

    def integer_of_53_bits(count: Array) -> Array:
        """Two words as an integer of 53 bits: 32 high bits, and 21 low ones."""
        high, low = random_words(count)
        high_bits = high.astype(jnp.float64)
        low_bits = (low >> 11).astype(jnp.float64)
        return high_bits * 2**21 + low_bits

    # two uniform numbers between 0 and 1, of which `radial` is not 0
    if precision == "float32":
        radial_word, angular_word = random_words(number)
        radial = radial_word.astype(jnp.float32) * np.float32(2**-32)
        radial = radial + np.float32(2**-33)
        angular = angular_word.astype(jnp.float32) * np.float32(2**-32)
    else:
        radial = (integer_of_53_bits(2 * number) + 0.5) * 2**-53
        angular = integer_of_53_bits(2 * number + 1) * 2**-53

    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(radial, 1.0)))
    angle = 2 * np.pi * angular
    return radius * jnp.cos(angle), radius * jnp.sin(angle)


def threefry(
    key_0: Array, key_1: Array, counter_0: Array, counter_1: Array
) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), on words of 32 bits.

    It turns the two words of a counter into two random words; the arrays broadcast.
    """
    # JAX's own version is a loop on a CPU: with it, draws of the paper's layer take 1.5
    # times as long.
    keys = key_0, key_1, key_0 ^ key_1 ^ PARITY
    x = counter_0 + keys[0]
    y = counter_1 + keys[1]
    for group in range(5):  # of four rounds
        for bits in ROTATIONS[group % 2]:
            x = x + y
            rotated = (y << np.uint32(bits)) | (y >> np.uint32(32 - bits))
            y = rotated ^ x
        x = x + keys[(group + 1) % 3]
        y = y + (keys[(group + 2) % 3] + np.uint32(group + 1))
    return x, y


def on_gpu() -> bool:
    """Whether JAX compiles for a GPU, here and now."""
    return bool((jax.config.jax_default_device or jax.devices()[0]).platform == "gpu")


class JaxLibrary(Library):
    """JAX's factorisations, with compiled loops where they fail."""

    max_looped_rows = MAX_LOOPED_ROWS
    factors_in_double = False

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
        """The factor of any Gram matrix, column by column, in a compiled loop.

        The floors of squared pivots are (…, 1, rows), see `Library`.
        """
        size = gram.shape[-1]
        floors = floor[..., 0, :]

        def entry(a: Array, j: Any) -> Array:
            """The entries j along the last axis."""
            return jax.lax.dynamic_index_in_dim(a, j, -1, keepdims=False)

        def add_column(j: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            """Column j of the factor, and the Gram matrix minus its part."""
            residual, factor = state
            pivots = jnp.diagonal(residual, axis1=-2, axis2=-1)
            pivot = entry(pivots, j)
            is_independent = pivot > entry(floors, j)
            safe_pivot = jnp.where(is_independent, pivot, 1.0)
            inverse_root = jnp.where(is_independent, 1.0 / jnp.sqrt(safe_pivot), 0.0)

            column = entry(residual, j) * inverse_root[..., None]
            is_lower_triangle = jnp.arange(size) >= j
            column = jnp.where(is_lower_triangle, column, 0.0)
            factor = jax.lax.dynamic_update_index_in_dim(factor, column, j, -1)
            part_of_column = column[..., :, None] * column[..., None, :]
            return residual - part_of_column, factor

        start = gram, jnp.zeros_like(gram)
        _, factor = jax.lax.fori_loop(0, size, add_column, start)
        return factor

    def singly(self, rows: Array, *known: Array) -> Array:
        """`gram_schmidt`, row by row, in a compiled loop."""
        # rows of `directions` that are not yet computed are 0, and subtract nothing
        batch = jnp.broadcast_shapes(*(a.shape[:-2] for a in (rows, *known)))
        floor = _gram_schmidt.zero_threshold(jnp, rows)

        def add_direction(j: Any, directions: Array) -> Array:
            """Write the direction of row j."""
            x = jax.lax.dynamic_slice_in_dim(rows, j, 1, -2)
            once = _gram_schmidt.project_out(jnp, x, (*known, directions))
            twice = _gram_schmidt.project_out(jnp, once, (*known, directions))
            direction = _gram_schmidt.unit(
                jnp,
                twice,
                square_before=squares(jnp, once),
                floor=jax.lax.dynamic_slice_in_dim(floor, j, 1, -1),
            )
            return jax.lax.dynamic_update_slice_in_dim(directions, direction, j, -2)

        directions = jnp.zeros((*batch, *rows.shape[-2:]), dtype=rows.dtype)
        return jax.lax.fori_loop(0, rows.shape[-2], add_direction, directions)

    def recompute_where(
        self,
        result: Array,
        inexact: Array,
        recompute: Callable[..., Array],
        *arrays: Array,
    ) -> Array:
        """If any matrix is inexact, recompute all; use only the inexact ones."""

        def with_recomputed(inputs: tuple[Array, ...]) -> Array:
            """The result, with the inexact matrices computed again."""
            return jnp.where(inexact[..., None, None], recompute(*inputs), result)

        def unchanged(_: tuple[Array, ...]) -> Array:
            """The result as it is."""
            return result

        return jax.lax.cond(jnp.any(inexact), with_recomputed, unchanged, arrays)


LIBRARY = JaxLibrary(jnp)


class PieceInputs(NamedTuple):
    """The arguments of the compiled program of a piece."""

    first_replica: Any  # number of the first replica of the block
    keys: Any  # (draws, 2): the keys of its draws
    fixed: tuple[Any, Any, Any]  # tables of χ, factors of `scale` steps, constants
    earlier: list[Any]  # results of earlier pieces


class Piece:
    """Consecutive steps of a plan, compiled together.

    Or one step that numpy executes on the host.

    Parameters
    ----------
    steps : sequence of Step
        The steps.
    host : bool
        Whether numpy executes them.
    precision : str
        The precision of arrays.
    drawn : str
        The precision of random numbers.
    after : set of Register
        The arrays that later pieces read.

    Attributes
    ----------
    draws : list of Step
        The steps that draw; the keys of a call are in this order.
    chi : dict
        The recipe of each draw of χ, by its step.
    constants, reads : list of Register
        The constants and the earlier results that the steps read.
    writes : list of Register
        The results that the compiled program returns, in this order: those that later
        pieces read, and those that an equal piece must return.
    live : set of Register
        The arrays that this piece or a later one reads.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        host: bool,
        precision: str,
        drawn: str,
        after: set[Register],
    ) -> None:
        """Find what the steps read, draw and must return."""
        self.steps = list(steps)
        self.host = host
        self.precision = precision
        self.drawn = drawn
        self.after = after
        self.draws = [step for step in steps if step.kind in DRAWS]
        self.chi = {
            step: chi(step.params["freedom"], drawn)
            for step in self.draws
            if step.kind == "chi"
        }
        results = [step.out for step in steps]
        arguments = dict.fromkeys(arg for step in steps for arg in step.args)
        self.constants = [arg for arg in arguments if arg.value is not None]
        inputs = arguments.keys() - {*results, *self.constants}
        self.reads = [arg for arg in arguments if arg in inputs]
        self.writes = [register for register in results if register in after]
        # what is read from here on, without what the piece makes itself
        self.live = (after - {*results}) | inputs

    def inputs(
        self, seed: int, start: int, arrays: Mapping[Register, Array]
    ) -> PieceInputs:
        """The arguments for one seed and a block that starts at replica `start`."""
        # counters have 32 bits; no block lies across two eras
        era, first_replica = divmod(start, 2**32)
        keys = [
            key_words(seed, *step.params["key"], era, count=2) for step in self.draws
        ]
        return PieceInputs(
            first_replica=np.uint32(first_replica),
            keys=np.array(keys, dtype=np.uint32).reshape(-1, 2),
            fixed=self._fixed,
            earlier=[arrays[register] for register in self.reads],
        )

    @cached_property
    def _fixed(self) -> tuple[Any, Any, Any]:
        """The tables of each χ (see `_chi`), the factors of `scale`, and constants.

        The factors are numbers that depend on the widths: as arguments, they need no
        recompilation.
        """
        tables = []
        for recipe in self.chi.values():
            arrays = [np.asarray(table, dtype=self.drawn) for table in recipe]
            tables.append(Chi(*arrays))
        factors = []
        for step in self.steps:
            if step.kind == "scale":
                factors.append(np.asarray(step.params["by"], dtype=self.precision))
        constants = []
        for register in self.constants:
            constants.append(np.asarray(register.value, dtype=self.precision))
        return jax.device_put((tables, factors, constants))  # type: ignore[no-any-return]

    def compiled(self, replicas: int) -> Any:
        """The program for any seed and any block with this many replicas."""
        shapes = {
            register: jax.ShapeDtypeStruct((replicas, *register.shape), self.precision)
            for register in self.reads
        }
        traced = jax.jit(
            partial(_traced, self, replicas), compiler_options=_options(on_gpu())
        )
        return traced.lower(self.inputs(0, 0, shapes)).compile()

    @cached_property
    def structure(self) -> Any:
        """A key that is equal for pieces that compile to the same program.

        Registers are replaced by numbers: −1, −2, … for inputs, and for a result the
        position of its step. Streams, factors and constants are arguments of the
        program, so the key does not contain them.
        """
        inputs = [*self.constants, *self.reads]
        number = {register: -1 - k for k, register in enumerate(inputs)}
        steps: list[Any] = []
        for k, step in enumerate(self.steps):
            number[step.out] = k
            if step in self.draws:
                steps.append((step.kind, step.out.shape, self._table_shapes(step)))
                continue
            arguments = tuple(number[arg] for arg in step.args)
            params = {} if step.kind == "scale" else step.params
            # a step with a parameter that has no key equals no other: it is its own
            # key, since the id of a step that is gone may be given to another one
            content = key_of(step.kind, (), params) or step
            steps.append((arguments, step.out.shape, content))
        return (
            tuple(steps),
            len(self.constants),
            tuple(register.shape for register in inputs),
            tuple(number[register] for register in self.writes),
            self.precision,
            self.drawn,
        )

    def _table_shapes(self, step: Step) -> Any:
        """The shapes of the tables of a χ; None for normals."""
        recipe = self.chi.get(step)
        if recipe is None:
            return None
        return recipe.polynomial.shape, recipe.squares.shape


def programs(
    plan_pieces: Sequence[Piece],
    replicas: int,
    within: Callable[[], AbstractContextManager[None]],
) -> list[Any]:
    """The compiled programs of pieces, None for host pieces.

    They are for blocks of so many replicas. `within` sets JAX's precision and device.
    Programs that are not in memory compile in parallel, one thread each: the compiler
    releases Python's lock.
    """

    def compiled(piece: Piece) -> Any:
        """The compiled program of a piece."""
        with within():
            return piece.compiled(replicas)

    with within():
        device = jax.config.jax_default_device
        keys: list[Any] = [
            None if piece.host else (piece.structure, replicas, device)
            for piece in plan_pieces
        ]
    # equal pieces share a key
    piece_of = dict(zip(keys, plan_pieces, strict=True))
    piece_of.pop(None, None)
    with _lock:
        missing = [key for key in piece_of if key not in _programs]
        if missing:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                pieces_to_compile = [piece_of[key] for key in missing]
                results = pool.map(compiled, pieces_to_compile)
                _programs.update(zip(missing, results, strict=True))
        for key in piece_of:  # move to the end
            _programs[key] = _programs.pop(key)
        in_use = {key: _programs[key] for key in piece_of}
        least_recently_used = list(_programs)[:-PROGRAMS]
        for key in least_recently_used:
            del _programs[key]
    return [in_use.get(key) for key in keys]


@cache
def _options(gpu: bool) -> dict[str, Any]:
    """Options of the compiler, for speed, by their names."""
    if gpu:  # autotuning takes 5 to 9 s per matrix product
        return {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    # the older emitters take half the time
    options = {"xla_cpu_use_fusion_emitters": False}
    with suppress(jax.errors.JaxRuntimeError):  # JAX 0.11 removed this option
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
        return options
    return {}


def _traced(piece: Piece, replicas: int, inputs: PieceInputs) -> list[Array]:
    """The function to compile: the steps of a piece for a block of replicas.

    Returns the arrays of `piece.writes`. The inputs are in the order of the piece's
    lists, and the factors in that of its steps (see `Piece.inputs`).
    """
    tables, factors, constants = inputs.fixed
    recipes = dict(zip(piece.chi, tables, strict=True))
    arrays = dict(zip(piece.constants, constants, strict=True))
    arrays |= zip(piece.reads, inputs.earlier, strict=True)
    normals = _normals_of_draws(piece, replicas, inputs)
    remaining_factors = iter(factors)
    for step in piece.steps:
        if step.kind in DRAWS:
            numbers = normals(step)
            if step in recipes:
                numbers = recipes[step].of(jnp, numbers)
            arrays[step.out] = numbers.astype(piece.precision)
        elif step.kind == "scale":
            arrays[step.out] = arrays[step.args[0]] * next(remaining_factors)
        else:
            arguments = [arrays[arg] for arg in step.args]
            arrays[step.out] = compute(
                LIBRARY, step.kind, inputs=arguments, params=step.params
            )
    # arrays that depend only on hyperparameters have one replica
    return [
        jnp.broadcast_to(arrays[register], (replicas, *register.shape))
        for register in piece.writes
    ]


def _normals_of_draws(
    piece: Piece, replicas: int, inputs: PieceInputs
) -> Callable[[Step], Array]:
    """A function that returns the normals (replicas, …) of a step that draws.

    Those of a step `chi` are the ones that its recipe needs. The small draws of a piece
    share one call of the generator, which is made here.
    """
    key_of_step = dict(zip(piece.draws, inputs.keys, strict=True))
    replica_numbers = inputs.first_replica + jnp.arange(replicas, dtype=jnp.uint32)
    shape = {step: step.out.shape for step in piece.draws}
    for step, recipe in piece.chi.items():
        shape[step] = (*step.out.shape[:-1], recipe.normals)

    def generated(steps: Sequence[Step]) -> dict[Step, Array]:
        """The normals of several draws, from one call of the generator."""
        pairs = {step: math.ceil(math.prod(shape[step]) / 2) for step in steps}
        keys = []
        numbers = []
        for step, count in pairs.items():
            keys.append(jnp.broadcast_to(key_of_step[step], (count, 2)))
            numbers.append(np.arange(count, dtype=np.uint32))
        first_normals, second_normals = normal_pairs(
            jnp.concat(keys),
            replica=replica_numbers,
            number=np.concatenate(numbers),
            precision=piece.drawn,
        )
        normals = {}
        start = 0
        for step, count in pairs.items():
            of_step = slice(start, start + count)
            flat = jnp.concat(
                [first_normals[:, of_step], second_normals[:, of_step]], axis=1
            )
            flat = flat[:, : math.prod(shape[step])]  # an odd number has one too many
            normals[step] = jnp.reshape(flat, (replicas, *shape[step]))
            start += count
        return normals

    small = [
        step for step in piece.draws if math.prod(shape[step]) <= MAX_SHARED_NORMALS
    ]
    shared = generated(small) if small else {}

    def normals_of(step: Step) -> Array:
        """The normals of a step, which several pieces may share."""
        return shared[step] if step in shared else generated([step])[step]

    return normals_of


# once for all chunks of a plan, on each device: pieces keep arrays there
@lru_cache(maxsize=4)
def pieces(
    plan: Plan, precision: str, rounded: bool = False, device: str = ""
) -> list[Piece]:
    """The pieces of a plan, in order.

    The plan is cut at the steps that JAX cannot trace: user functions in numpy, and
    kernels by quadrature. It is also cut between equal blocks of a deep network, whose
    pieces compile once, and other long pieces are cut so that they compile in parallel.
    Random numbers may be `rounded` to single precision. The `device` is not read: it is
    a part of the key of the cache, since pieces keep arrays on their device.
    """
    if not plan.steps:
        return []
    native = [_native(step, precision) for step in plan.steps]
    begins = _cuts(plan, native)
    ends = [*begins[1:], len(plan.steps)]
    plan_pieces: list[Piece] = []
    live = {plan.mean, plan.columns}  # what later pieces read
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        piece = Piece(
            steps=plan.steps[begin:end],
            host=not native[begin],
            precision=precision,
            drawn="float32" if rounded else precision,
            after=live,
        )
        plan_pieces.insert(0, piece)
        live = piece.live
    for loop in plan.loops:
        _let_blocks_return_the_same(loop, begins, plan_pieces)
    return plan_pieces


def _cuts(plan: Plan, native: Sequence[bool]) -> list[int]:
    """The positions of the first steps of the pieces.

    `native` says for each step whether JAX can trace it; other steps are pieces by
    themselves. For example, True, True, False, True gives the positions 0, 2, 3.
    """
    block_bounds: set[int] = set()
    for loop in plan.loops:
        block_bounds.update(range(loop.start, loop.stop + 1, loop.period))
    begins = []
    for k in range(len(native)):
        continues_piece = k > 0 and native[k - 1] and native[k]
        if k in block_bounds or not continues_piece:
            begins.append(k)
    ends = [*begins[1:], len(native)]
    cuts: list[int] = []
    for begin, end in zip(begins, ends, strict=True):
        cuts += range(begin, end, MAX_PIECE_STEPS)
    return cuts


def _let_blocks_return_the_same(
    loop: Loop, begins: Sequence[int], plan_pieces: Sequence[Piece]
) -> None:
    """Extend `writes` of the pieces in a loop, so that equal pieces compile once.

    `writes` are the results that the compiled program of a piece returns. Later steps
    may read other results of the last block than of the blocks before it: if three
    blocks of 3 steps must return the results of their steps {2}, {2} and {}, all are
    made to return {2}. `block` drops the results that no later piece reads. `begins`
    are the positions of the first steps of the pieces in the plan.
    """
    pieces_in_loop = [
        (begin, piece)
        for begin, piece in zip(begins, plan_pieces, strict=True)
        if loop.start <= begin < loop.stop
    ]

    def steps_in_block(begin: int, piece: Piece) -> Iterator[tuple[int, Step]]:
        """The steps of a piece with their positions in their block, from 0."""
        for k, step in enumerate(piece.steps):
            steps_since_loop_start = begin + k - loop.start
            yield steps_since_loop_start % loop.period, step

    returned: set[int] = set()  # positions in a block
    for begin, piece in pieces_in_loop:
        for position, step in steps_in_block(begin, piece):
            if step.out in piece.writes:
                returned.add(position)
    for begin, piece in pieces_in_loop:
        piece.writes = [
            step.out
            for position, step in steps_in_block(begin, piece)
            if position in returned
        ]


def _native(step: Step, precision: str) -> bool:
    """Whether JAX can trace a step; if not, numpy computes it on the host."""
    if step.needs_numpy:
        return False
    if step.kind not in FUNCTIONS:
        return True
    shapes = [jax.ShapeDtypeStruct((2, *arg.shape), precision) for arg in step.args]
    try:
        with jax.enable_x64(precision == "float64"):
            result = jax.eval_shape(
                lambda *arrays: compute(
                    LIBRARY, step.kind, inputs=arrays, params=step.params
                ),
                *shapes,
            )
    except Exception:  # of a user's function; if it is wrong, numpy raises the error
        return False
    return bool(result.shape[1:] == step.out.shape)


def block(
    plan_pieces: Sequence[Piece],
    compiled: Sequence[Any],
    seed: int,
    start: int,
    replicas: int,
    arrays: Mapping[Register, Array] = MappingProxyType({}),
) -> dict[Register, Array]:
    """Run the pieces of a plan for the block of replicas from `start` on.

    `compiled` has the program of each piece, None for those that numpy executes.
    `arrays` are known arrays by register. Returns the arrays of the outputs, by
    register: those that the last piece computes or keeps.
    """
    arrays = dict(arrays)
    for piece, program in zip(plan_pieces, compiled, strict=True):
        if program is None:
            (step,) = piece.steps
            arrays[step.out] = _on_host(step, arrays, replicas, piece.precision)
        else:
            results = program(piece.inputs(seed, start, arrays))
            arrays |= zip(piece.writes, results, strict=True)
        arrays = {
            register: array
            for register, array in arrays.items()
            if register in piece.after
        }
    return arrays


def _on_host(
    step: Step, arrays: Mapping[Register, Array], replicas: int, precision: str
) -> Array:
    """The result (replicas, *shape) of a step that numpy computes."""
    # an argument that occurs twice stays one array: kernels of u and u are symmetric
    inputs = {}
    for arg in step.args:
        array = arrays[arg] if arg.value is None else arg.value
        inputs[arg] = np.asarray(array, dtype=np.float64)
    arguments = [inputs[arg] for arg in step.args]
    result = compute(
        _gram_schmidt.NUMPY, step.kind, inputs=arguments, params=step.params
    )
    result = np.broadcast_to(result, (replicas, *step.out.shape))
    return jnp.asarray(result, dtype=precision)
