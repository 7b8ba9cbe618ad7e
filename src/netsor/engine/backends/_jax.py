"""JAX: the whole plan compiled into one program for a block of replicas, on a CPU or a GPU.

Number e of a draw for replica r is Threefry(key; r, e) with the key of (seed, draw): JAX's own counter-based generator,
called with explicit counters. So a number depends neither on the size of a block nor on the process that draws it, and
laws of two widths with one seed are coupled. Pairs of uniforms become pairs of normals (Box and Muller 1958).

Widths, constants and seeds are arguments of the compiled program: for a plan of the same structure at another width or
with another seed nothing is compiled again.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from .._cells import Cells, Sums
from .._montecarlo import memory
from .._plan import RULES, Builder, Plan, Register, Step
from ._base import Device, NoDeviceError, largest_block
from ._chi import chi
from ._jax_factor import library
from ._jax_normals import normal_pairs
from ._jax_sums import gram, summed

Array = Any

LEAST = 8  # replicas in a block, at least
SMALL = 1024  # random numbers a replica up to which draws share one call of the generator: fewer calls compile faster
LONGEST = 40  # steps of a piece
PROGRAMS = 256  # compiled programs that are kept in memory

_programs: OrderedDict[Any, _Program] = OrderedDict()
_ready: WeakKeyDictionary[Plan, dict[Jax, list[Piece]]] = WeakKeyDictionary()
_lock = threading.RLock()


class Inputs(NamedTuple):
    """What a compiled program is called with, for one block."""

    first: Any  # the number of the first replica, below 2^32
    keys: Any  # (draws, 2): of the generator, one for each draw
    tables: list[tuple[Any, Any, Any]]  # polynomial, scale and squares of each χ (see `_chi`)
    factors: list[Any]  # the number of each `scale` step: functions of widths, mostly
    constants: list[Any]
    arrays: list[Any]  # made by earlier pieces


class Jax(Device):
    """JAX on one device."""

    name: ClassVar[str] = "jax"

    def check(self) -> None:
        """Refuse if JAX is not installed, or does not see the device."""
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

    @contextmanager
    def _within(self) -> Iterator[None]:
        """Set JAX's precision and device for this thread; matrix products in full precision, not in TF32."""
        import jax

        with (
            jax.enable_x64(self.precision == "float64"),
            jax.default_device(self._device()),
            jax.default_matmul_precision("highest"),
        ):
            yield

    def _pieces(self, plan: Plan) -> list[Piece]:
        """The pieces of the plan, made once for all its chunks."""
        with _lock:
            known = _ready.setdefault(plan, {})
            if self not in known:
                known[self] = pieces(plan, self.precision)
            return known[self]

    def _compile(self, found: Sequence[Piece], replicas: int) -> None:
        """Compile all pieces at once, in a thread each: the compiler does not hold Python's lock."""

        def compiled(piece: Piece) -> None:
            with self._within():
                piece.program(replicas).compile(piece.shapes(replicas))

        with self._within():
            programs = {piece.program(replicas): piece for piece in found if not piece.host}
        missing = [piece for program, piece in programs.items() if program.compiled is None]
        if missing:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(compiled, missing))

    def memory(self) -> float:
        """The memory of the device that JAX may use."""
        stats = self._device().memory_stats()
        return float(stats["bytes_limit"]) if stats and "bytes_limit" in stats else memory()

    def chunk(self, plan: Plan, draws: int) -> int:
        """One block, no larger than the draws need; the numbers drawn do not depend on its size."""
        needed = max(LEAST, 2 ** (draws - 1).bit_length())
        return self.fits(plan, min(needed, largest_block(plan, self.itemsize, self.kind, LEAST)))

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block of `size` replicas, cut to the part."""
        found = self._pieces(plan)
        self._compile(found, size)
        with self._within():
            made = _block(found, seed, part.start, size, self.precision)
            results = [made[r] if r.value is None else np.asarray(r.value) for r in (plan.mean, plan.columns)]
            mean, columns = (a if a.shape[0] in (1, len(part)) else a[: len(part)] for a in results)
        yield mean, columns
        tick(len(part))

    def given(self, plan: Plan, what: Callable[[Any, Array, Array], Array]) -> Callable[[Mapping[Register, Any]], Any]:
        """Compiled for LEAST replicas, or 4, 16, … times as many: compiling takes longer than to compute too many."""
        import jax
        import jax.numpy as jnp

        rest = replace(plan, steps=[step for step in plan.steps if step.kind not in ("normals", "chi")])
        with self._within():
            found, last = pieces(rest, self.precision), jax.jit(partial(what, library()))

        def made(drawn: Mapping[Register, Any]) -> Any:
            asked = len(next(iter(drawn.values())))
            replicas = LEAST * 4 ** -(-(-(-asked // LEAST) - 1).bit_length() // 2)
            self._compile(found, replicas)
            with self._within():
                more = np.r_[:asked, np.zeros(replicas - asked, dtype=np.intp)]  # the first again and again
                before = {register: jnp.asarray(a[more], dtype=self.precision) for register, a in drawn.items()}
                arrays = _block(found, 0, 0, replicas, self.precision, before)
                results = [arrays[r] if r.value is None else np.asarray(r.value) for r in (plan.mean, plan.columns)]
                return self.numpy(last(*results))[:asked]

        return made

    def cov(self, columns: Array) -> Array:
        """The covariances, computed on the device."""
        with self._within():
            return gram()(columns)

    def numpy(self, array: Array) -> Array:
        """The array copied from the device."""
        return np.asarray(array).astype(np.float64)

    def sums(self, cells: Cells, mean: Array, cov: Array) -> Sums:
        """The sums over cells, computed on the device, in double precision whatever the precision of the sampler."""
        import jax

        with jax.enable_x64(True):
            sums, outside = summed(cells)(mean, cov)
            sums = np.asarray(sums)
            strays = np.flatnonzero(np.asarray(outside)) if outside.any() else np.zeros(0, dtype=np.intp)
        m, v = (self.numpy(a) for a in ((mean[:, 0], cov[:, 0, 0]) if len(strays) else (np.zeros(1), np.zeros(1))))
        m, v = np.broadcast_arrays(m, v)
        found = np.flatnonzero(sums[0])
        return Sums(found, sums[:, found], m[strays], v[strays])


class Piece:
    """Consecutive steps of a plan that are compiled together, or one step that numpy does on the host."""

    def __init__(self, steps: Sequence[Step], host: bool, precision: str) -> None:
        self.steps, self.host, self.precision = list(steps), host, precision
        self.draws = [step for step in steps if step.kind in ("normals", "chi")]
        self.chi = {step: chi(step.params["freedom"], precision) for step in self.draws if step.kind == "chi"}
        self.reads: list[Register] = []  # arrays of earlier pieces that it reads
        self.writes: list[Register] = []  # arrays of this piece that later pieces read
        self.after: set[Register] = set()  # arrays that are read after it
        self.constants: list[Register] = []
        self._keys: tuple[tuple[int, int], Any] | None = None

    def link(self, after: set[Register]) -> set[Register]:
        """Set what it reads and writes, from the arrays read `after` it; return the arrays read from it on."""
        self.after = after
        made = {step.out for step in self.steps}
        used = list(dict.fromkeys(arg for step in self.steps for arg in step.args))
        self.constants = [register for register in used if register.value is not None]
        self.reads = [register for register in used if register.value is None and register not in made]
        self.writes = [step.out for step in self.steps if step.out in after]
        return (after - made) | set(self.reads)

    def inputs(self, seed: int, start: int, arrays: Mapping[Register, Array]) -> Inputs:
        """The inputs for one seed and a block that begins with replica `start`."""
        era, first = divmod(start, 2**32)  # counters have 32 bits; no block lies across two eras
        if self._keys is None or self._keys[0] != (seed, era):
            streams = [np.random.SeedSequence(seed, spawn_key=(*step.params["key"], era)) for step in self.draws]
            made = np.array([stream.generate_state(2) for stream in streams], dtype=np.uint32).reshape(-1, 2)
            self._keys = (seed, era), _placed(made)
        tables, factors, constants = self._fixed
        earlier = [arrays[register] for register in self.reads]
        return Inputs(np.uint32(first), self._keys[1], tables, factors, constants, earlier)

    @cached_property
    def _fixed(self) -> tuple[Any, ...]:
        number = partial(np.asarray, dtype=self.precision)
        tables = [(number(c.polynomial), number(c.scale), number(c.squares)) for c in self.chi.values()]
        factors = [number(step.params["by"]) for step in self.steps if step.kind == "scale"]
        return _placed((tables, factors, [number(register.value) for register in self.constants]))  # type: ignore[no-any-return]

    def shapes(self, replicas: int) -> Inputs:
        """Inputs for any seed and block, with shapes in place of the arrays that earlier pieces make."""
        import jax

        made = {r: jax.ShapeDtypeStruct((replicas, *r.shape), self.precision) for r in self.reads}
        return self.inputs(0, 0, made)

    def program(self, replicas: int) -> _Program:
        """The program for a block of so many replicas, which may have to be compiled."""
        import jax

        key = self.structure, replicas, self.precision
        with _lock:
            if key not in _programs:
                _programs[key] = _Program(jax.jit(partial(_traced, self, replicas), compiler_options=_options()))
                if len(_programs) > PROGRAMS:
                    _programs.popitem(last=False)
            _programs.move_to_end(key)
            return _programs[key]

    @cached_property
    def structure(self) -> Any:
        """Equal for two pieces that compile to the same program."""
        number = {register: -1 - k for k, register in enumerate([*self.constants, *self.reads])}
        parts: list[Any] = []
        for k, step in enumerate(self.steps):
            number[step.out] = k
            args = tuple(number[arg] for arg in step.args)
            if step in self.draws:
                made = self.chi.get(step)
                shapes = (made.normals, made.polynomial.shape, made.squares.shape, made.order) if made else None
                parts.append((step.kind, step.out.shape, shapes))
            else:
                params = {} if step.kind == "scale" else step.params
                parts.append((args, step.out.shape, Builder.key(step.kind, (), params) or id(step)))
        inputs = tuple(register.shape for register in [*self.constants, *self.reads])
        return tuple(parts), inputs, tuple(number[register] for register in self.writes)


class _Program:
    """A function that JAX compiles once, in one thread while others wait."""

    def __init__(self, function: Any) -> None:
        self.function, self.lock, self.compiled = function, threading.Lock(), None

    def compile(self, inputs: Inputs) -> None:
        """Compile it for inputs of these shapes."""
        with self.lock:
            if self.compiled is None:
                self.compiled = self.function.lower(inputs).compile()

    def __call__(self, inputs: Inputs) -> Any:
        self.compile(inputs)
        return self.compiled(inputs)  # type: ignore[misc]


def _options() -> dict[str, Any]:
    """How to compile: on a GPU without a trial of every kernel for each product, which takes 5 to 9 s a product."""
    import jax

    platform = (jax.config.jax_default_device or jax.devices()[0]).platform
    return (
        {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False} if platform == "gpu" else _older_emitters()
    )


@cache
def _older_emitters() -> dict[str, Any]:
    """On a CPU, before JAX 0.11: fused operations as they were once compiled, which takes half the time."""
    import jax

    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:  # it has no such option
        return {}
    return options


def _placed(arrays: Any) -> Any:
    """Arrays copied to the device, where they are kept."""
    import jax

    return jax.device_put(arrays)


def pieces(plan: Plan, precision: str) -> list[Piece]:
    """The plan cut at the steps that JAX cannot trace: functions of one's own in numpy, kernels by quadrature.

    And between equal blocks of a deep network: these pieces have one structure, and are compiled once. The others are
    cut where they are long, to be compiled side by side.
    """
    bounds = {loop.start + loop.period * k for loop in plan.loops for k in range(loop.times + 1)}
    traced = [_native(step, precision) for step in plan.steps]
    begins = [k for k in range(len(traced)) if k in bounds or not (k and traced[k] and traced[k - 1])]
    ends = [*begins[1:], len(traced)]
    begins = [k for begin, end in zip(begins, ends, strict=True) for k in range(begin, end, LONGEST)]
    ends = [*begins[1:], len(traced)]
    found = [Piece(plan.steps[k:end], not traced[k], precision) for k, end in zip(begins, ends, strict=True)]
    needed = {plan.mean, plan.columns}
    for piece in reversed(found):
        needed = piece.link(needed)
    for loop in plan.loops:  # the last block may be asked for less than the others: it makes the same
        inside = [(begin, piece) for begin, piece in zip(begins, found, strict=True) if loop.start <= begin < loop.stop]
        written = {
            (begin + k - loop.start) % loop.period
            for begin, piece in inside
            for k, step in enumerate(piece.steps)
            if step.out in piece.writes
        }
        for begin, piece in inside:
            places = enumerate(piece.steps, begin - loop.start)
            piece.writes = [step.out for k, step in places if k % loop.period in written]
    return found


def _native(step: Step, precision: str) -> bool:
    import jax
    import jax.numpy as jnp

    if step.kind not in ("apply", "kernel", "moments"):
        return True
    shapes = [jax.ShapeDtypeStruct((2, *arg.shape), precision) for arg in step.args]
    try:
        with jax.enable_x64(precision == "float64"):
            made = jax.eval_shape(lambda *arrays: RULES[step.kind](jnp, *arrays, **step.params), *shapes)
    except Exception:  # JAX cannot trace it: numpy computes it then, or raises the error that is meant for the user
        return False
    return bool(made.shape[1:] == step.out.shape)


def _block(
    found: Sequence[Piece],
    seed: int,
    start: int,
    replicas: int,
    precision: str,
    before: Mapping[Register, Array] = MappingProxyType({}),
) -> dict[Register, Array]:
    """All arrays that the pieces of a plan write, for a block of replicas, and those that were there `before`."""
    import jax.numpy as jnp

    arrays = dict(before)
    for piece in found:
        if piece.host:
            (step,) = piece.steps
            inputs = {r: np.asarray(arrays[r] if r.value is None else r.value, dtype=np.float64) for r in step.args}
            made = RULES[step.kind](np, *(inputs[register] for register in step.args), **step.params)
            arrays[step.out] = jnp.asarray(made, dtype=precision)
        else:
            results = piece.program(replicas)(piece.inputs(seed, start, arrays))
            arrays |= dict(zip(piece.writes, results, strict=True))
        arrays = {register: array for register, array in arrays.items() if register in piece.after}
    return arrays


def _traced(piece: Piece, replicas: int, inputs: Inputs) -> list[Array]:
    """The function that is compiled: the steps of a piece, for the replicas from `inputs.first` on."""
    import jax.numpy as jnp

    place = {step: k for k, step in enumerate(piece.draws)}
    table = dict(zip(piece.chi, inputs.tables, strict=True))
    arrays = dict(zip([*piece.constants, *piece.reads], [*inputs.constants, *inputs.arrays], strict=True))
    shape = {step: step.out.shape for step in piece.draws}
    shape |= {step: (*step.out.shape[:-1], made.normals) for step, made in piece.chi.items()}
    counted = inputs.first + jnp.arange(replicas, dtype=jnp.uint32)

    def normals(steps: Sequence[Step]) -> dict[Step, Array]:
        """The normals of some steps, from one call of the generator."""
        pairs = [-(-math.prod(shape[step]) // 2) for step in steps]
        number = np.concatenate([np.arange(m, dtype=np.uint32) for m in pairs])
        first, second = normal_pairs(
            inputs.keys[np.repeat([place[step] for step in steps], pairs)], counted, number, piece.precision
        )
        # side by side for each step, by one reading: a concatenation for each takes long to compile
        ends = np.cumsum(pairs)
        each = [np.r_[end - m : end, ends[-1] + end - m : ends[-1] + end] for m, end in zip(pairs, ends, strict=True)]
        both = jnp.concat([first, second], axis=1)[:, np.concatenate(each)]
        made = {}
        for step, m, end in zip(steps, pairs, ends.tolist(), strict=True):
            start = 2 * (end - m)
            made[step] = jnp.reshape(both[:, start : start + math.prod(shape[step])], (replicas, *shape[step]))
        return made

    small = [step for step in piece.draws if math.prod(shape[step]) <= SMALL]
    known = normals(small) if small else {}
    factors = iter(inputs.factors)
    for step in piece.steps:
        if step in place:
            z = known[step] if step in known else normals([step])[step]
            arrays[step.out] = piece.chi[step].of(jnp, z, *table[step]) if step in piece.chi else z
        else:
            args = [arrays[arg] for arg in step.args]
            if step.kind == "scale":
                arrays[step.out] = args[0] * next(factors)
            else:
                arrays[step.out] = library().compute(step, args)
    return [arrays[register] for register in piece.writes]
